"""Subclusters: which slave ranks play the instances of which stage, by strategy.

What: `Subclusters.of(stages, width, strategy)`; `Communication`, the exchanges and channels that they need; `estimated_work`.
Why: gateway, master, slaves, runtimes and forecasts derive the same placement from the same plan, so nothing is agreed on.
Stays out: ranks of gateways and sinks (`cluster.ranks`), owners of partition-groups (`policy.placement`).

query: every rank plays an instance of every stage. subquery, operator: every stage has ranks of its own, as many as its share
of the work says; with subquery, stages that partition alike share theirs, so that rows stay on a rank. With fewer ranks than
subclusters stages are played as with query. Slaves are numbered stage by stage.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from swjoin.config.options import Strategy
from swjoin.core.errors import UserError
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.stages import Stage, StageId, StagePlan, allocate

_JOIN_WORK, _AGGREGATE_WORK, _STATELESS_WORK = 8.0, 16.0, 1.0  # of a row, about; measured, but it depends on windows and data
_ROWS_OF_AGGREGATE = 0.1  # per row that it takes


@dataclass(frozen=True)
class Subclusters:
    """width: slave ranks. ranks: by stage, the numbers of those that play it. apart: not all stages are on all ranks."""

    width: int
    ranks: tuple[range, ...]
    apart: bool

    @staticmethod
    def of(stages: StagePlan, width: int, strategy: Strategy, shares: Sequence[float] = ()) -> Subclusters:
        """shares: of the work, by stage; none: as `estimated_work`. UserError for another number of them."""
        count = len(stages.stages)
        if shares and len(shares) != count:
            problem = f"{len(shares)} numbers for {count} stages ({', '.join(stage.name for stage in stages.stages)})"
            raise UserError(problem, subject="cluster: instances", remedy="give one for every stage, or leave it out")
        work: dict[StageId, float] = {}  # of each subcluster, by its first stage
        for first, amount in zip(stages.subqueries, shares or estimated_work(stages), strict=True):
            work[first] = work.get(first, 0.0) + amount
        if strategy == "query" or width < len(work):
            return Subclusters(width, (range(width),) * count, apart=False)
        ends, counts = {}, allocate(work, width)
        for first, end in zip(counts, accumulate(counts.values()), strict=True):
            ends[first] = range(end - counts[first], end)
        return Subclusters(width, tuple(ends[first] for first in stages.subqueries), apart=len(work) > 1)

    @staticmethod
    def alone(width: int) -> Subclusters:
        """Of the join of two streams."""
        return Subclusters(width, (range(width),), apart=False)

    @cached_property
    def counts(self) -> tuple[int, ...]:
        """Instances of each stage."""
        return tuple(map(len, self.ranks))

    @cached_property
    def first(self) -> tuple[int, ...]:
        """The first slave of each stage; behind the last one, the number of slaves."""
        return tuple(accumulate(self.counts, initial=0))

    @property
    def slave_count(self) -> int:
        return self.first[-1]

    def stage_of(self, slave: int) -> int:
        return bisect_right(self.first, slave) - 1

    def index_of(self, slave: int) -> int:
        """The slave's number among the instances of its stage."""
        return slave - self.first[self.stage_of(slave)]

    def slaves_of(self, stage: int) -> range:
        return range(self.first[stage], self.first[stage + 1])

    @cached_property
    def places(self) -> tuple[int, ...]:
        """By slave, the number of its rank."""
        return tuple(rank for ranks in self.ranks for rank in ranks)

    @cached_property
    def _by_rank(self) -> tuple[list[int], ...]:
        found: tuple[list[int], ...] = tuple([] for _ in range(self.width))
        for slave, place in enumerate(self.places):
            found[place].append(slave)
        return found

    def slaves_on(self, rank: int) -> list[int]:
        """Those that a slave rank plays. rank: its number, from 0 on."""
        return self._by_rank[rank]


def estimated_work(stages: StagePlan) -> tuple[float, ...]:
    """Of each stage, in one unit: all sources give as many rows, filters pass all, a join gives as many as come to its larger
    port. `swjoin plan` of an earlier run tells measured shares."""
    given: dict[str, float] = {source.name: 1.0 for source in stages.sources}
    work = []
    for stage in stages.stages:
        ports = [0.0, 0.0]
        for edge in stages.edges:
            if edge.receiver == stage:
                ports[edge.port] += given[edge.sender.name]
        multiway = stage.node if isinstance(stage.node, MultiwayJoin) else None
        joins = stage.joins or multiway is not None
        work.append(sum(ports) * (_JOIN_WORK if joins else _STATELESS_WORK if stage.gathers else _AGGREGATE_WORK))
        given[stage.name] = max(ports) * (1.0 if joins or stage.gathers else _ROWS_OF_AGGREGATE)
        if multiway is not None:  # all inputs come to one port
            given[stage.name] /= len(multiway.inputs)
    return tuple(work)


@dataclass(frozen=True)
class Communication:
    """What a placement costs, as seed 004 counts it. steps: exchanges on the longest way of a row between operators; between
    stages that partition alike there are none, but as partition-groups may move, there are channels.
    channels: pairs of a sender and a receiver of any exchange. most_out: receivers of one rank's senders at most, if it plays
    all of them. of_inputs: further channels, from gateways that only read."""

    steps: int
    channels: int
    most_out: int
    of_inputs: int

    @staticmethod
    def of(stages: StagePlan, subclusters: Subclusters, gateways: int, strategy: Strategy) -> Communication:
        """gateways: their number. They do the filters and projections before the first stages, so they are the subcluster of
        these; with the strategy operator, whose stages do all of that, they only read."""
        reads = strategy == "operator"
        steps: dict[str, int] = {}
        receivers: dict[StageId | None, set[StageId]] = {}
        for edge in stages.edges:
            if not isinstance(edge.receiver, Stage):
                continue
            sender = edge.sender.id if isinstance(edge.sender, Stage) else None
            receivers.setdefault(sender, set()).add(edge.receiver.id)
            local = edge.origin is not None and sender is not None and stages.subqueries[sender] == edge.origin
            step = 0 if local or (sender is None and reads) else 1
            steps[edge.receiver.name] = max(steps.get(edge.receiver.name, 0), steps.get(edge.sender.name, 0) + step)
        out = {sender: sum(subclusters.counts[stage] for stage in found) for sender, found in receivers.items()}
        held = {sender: count * (gateways if sender is None else subclusters.counts[sender]) for sender, count in out.items()}
        of_inputs = held.pop(None, 0) if reads else 0
        most = [count for sender, count in out.items() if sender in held]
        most_out = max(most, default=0) if subclusters.apart else sum(most)
        return Communication(max(steps.values(), default=0), sum(held.values()), most_out, of_inputs)
