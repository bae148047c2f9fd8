"""The forecast of a plan of several stages at other rates and widths, from the run.json of an earlier run of the plan.

What: `PlanProfile.of(report, plan, other)`, what the run tells of stages and edges; `flow(rates)`, rows and bytes at other
rates; `EpochWork`, the time that a distribution epoch takes of gateway, instances and collector; `Capacity`, loads and
saturation.
Why: selectivities and costs of a row depend on data and predicates; a sample measures them, and no model of the data is needed.
Stays out: files (`cli`), virtual time (`forecast.model.stages`), runs without a plan (`forecast.capacity`).

A row that comes out of a stage is assumed to take as long as one that goes in, and the rows of an instance are those of its
partition-groups, which are equal. Selectivities are those of the measured run. Two runs at different rates tell apart what an
epoch costs an instance and what a row costs; with one run all of the work is that of rows.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from swjoin.cluster.exchange import PART_ROWS
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import gateway_role, sink_role
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.forecast.costs import CostModel
from swjoin.forecast.model.batch import TUPLE_BYTES
from swjoin.forecast.model.run import ranks_of
from swjoin.plan.logical import Spread
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.stages import Edge, Stage, StageId, StagePlan, allocate
from swjoin.plan.subclusters import Subclusters

Sides = tuple[float, float]  # left, right
_SPLITS = 20  # that `balanced` tries
SAME_DATA = "selectivities and costs of a row are those of the measured run"


@dataclass(frozen=True)
class StageProfile:
    """A stage in the measured run: rows that came to its ports, rows out, and `matches`: pairs of these (semi and anti joins:
    matched left rows). kept_bytes, kept_rows: sum of its instances' peaks. work_s: CPU time for work_rows rows, in and out.
    epoch_s: CPU time of an instance for an epoch, whatever its rows. compared_s: where rows come to the cells of a matrix, the
    part of work_s that is comparing them, which grows with the product of both rates; the rest is that of rows in."""

    stage: Stage
    received: Sides
    produced: float
    matches: float
    kept_bytes: float
    kept_rows: float
    work_s: float
    work_rows: float
    epoch_s: float = 0.0
    compared_s: float | None = None

    @property
    def rows_out_per_row(self) -> float:
        return _ratio(self.produced, sum(self.received))

    @property
    def bytes_per_kept_row(self) -> float:
        return _ratio(self.kept_bytes, self.kept_rows)

    @property
    def ns_per_row(self) -> float:
        """Of rows in and out."""
        return 1e9 * _ratio(self.work_s, self.work_rows)

    def seconds(self, came: float, out: float, factors: Sides, span_s: float) -> float:
        """CPU time a second for so many rows a second. span_s: of the measured run. factors: as of `rows_out`."""
        if self.compared_s is None:
            return (came + out) * self.ns_per_row / 1e9
        row_s = _ratio(self.work_s - self.compared_s, sum(self.received))
        return came * row_s + self.compared_s / span_s * factors[LEFT] * factors[RIGHT]

    def of_copies(self, factors: Sequence[float], copy_s: float) -> StageProfile:
        """Of a join by a matrix, with so many times as many copies of the left and the right rows, which are compared with as
        many rows as before, together. copy_s: CPU time of a row in, but for comparing it; infinity where keys find partners: a
        copy costs what a row does."""
        came = sum(self.received)
        received = self.received[LEFT] * factors[LEFT], self.received[RIGHT] * factors[RIGHT]
        compared_s, more = max(0.0, self.work_s - copy_s * came) if came else 0.0, sum(received) - came
        return replace(
            self,
            received=received,
            kept_bytes=self.kept_bytes * _ratio(sum(received), came),
            work_s=self.work_s + more * _ratio(self.work_s - compared_s, came),
            work_rows=self.work_rows + more,
            compared_s=compared_s,
        )

    def rows_out(self, factors: Sides) -> float:
        """Rows out when so many times as many rows come to each port in the same time.

        A row meets the other port's rows within the bounds, and their number grows with that port's rate: pairs grow with the
        product of both factors. A row without a match, of chance q, has none at f times the opposite rate with
        chance q^f (matches that are independent of each other).
        """
        received = self.received
        if self.stage.gathers:
            return received[LEFT] * factors[LEFT]
        if isinstance(self.stage.node, MultiwayJoin):  # each of its inputs grows alike
            return self.produced * math.pow(factors[LEFT], len(self.stage.node.inputs))
        if not self.stage.joins:
            return self.produced  # groups and windows, whatever their rows
        kind = self.stage.join.semantics.kind
        if self.stage.join.semantics.as_of is not None:  # a row of each left one, if any right one matches
            chance = 1.0 - min(1.0, _ratio(self.matches, received[LEFT]))
            part = 1.0 if kind.unmatched[LEFT] else 1.0 - math.pow(chance, factors[RIGHT])
            return received[LEFT] * factors[LEFT] * part
        matched = self.matches if kind.pairs else 0.0
        out = matched * factors[LEFT] * factors[RIGHT]
        alone = sum(count for count, is_out in zip(received, kind.unmatched, strict=True) if is_out)
        chance = min(1.0, _ratio(self.produced - matched, alone))
        if kind.first:
            chance = 1.0 - _ratio(self.produced, received[LEFT])
            return received[LEFT] * factors[LEFT] * (1.0 - math.pow(chance, factors[RIGHT]))
        for port, is_out in enumerate(kind.unmatched):
            out += received[port] * factors[port] * math.pow(chance, factors[1 - port]) if is_out else 0.0
        return out

    def kept(self, factors: Sides) -> float:
        """Bytes of all windows when so many times as many rows come: of each port as many as come while they may match."""
        if self.stage.gathers:
            return 0.0
        if isinstance(self.stage.node, MultiwayJoin):
            return self.kept_bytes * factors[LEFT]
        if not self.stage.joins:
            return self.kept_bytes
        bounds = self.stage.join.semantics.bounds
        spans = max(bounds.upper_us, 0), max(-bounds.lower_us, 0)
        shares = [max(1, span) * count for span, count in zip(spans, self.received, strict=True)]
        return self.kept_bytes * _ratio(sum(s * f for s, f in zip(shares, factors, strict=True)), sum(shares))


@dataclass(frozen=True)
class EdgeProfile:
    """An edge between stages in the measured run. sender, receiver: names. rows_per_row: sent per row of its sender, which
    may leave out late rows and null keys. rows_per_source_row: sent per row that any source gave."""

    edge: Edge
    sender: str
    receiver: str
    rows_per_row: float
    rows_per_source_row: float
    bytes_per_row: float

    @property
    def port(self) -> str:
        return STREAM_NAMES[self.edge.port]


@dataclass(frozen=True)
class Flow:
    """Rows and bytes per second of event time. sources, edges: by name, by id. came: at the ports of each stage, factors: over
    the measured run."""

    sources: dict[str, float]
    edge_rows: dict[int, float]
    edge_bytes: dict[int, float]
    came: tuple[Sides, ...]
    factors: tuple[Sides, ...]
    out: tuple[float, ...]

    @property
    def total(self) -> float:
        return sum(self.sources.values())


@dataclass(frozen=True)
class PlanProfile:
    """What an earlier run tells. sources: rows read. span_s: of the rows' times. epochs: distribution epochs. gateway_row_s,
    gateway_epoch_s: CPU time of a gateway for a row and for an epoch, with filters and projections before the first stages;
    None where the run does not tell it, and the cost model has it."""

    plan: StagePlan
    sources: dict[str, float]
    span_s: float
    stages: tuple[StageProfile, ...]
    edges: tuple[EdgeProfile, ...]
    epochs: int
    gateway_row_s: float | None = None
    gateway_epoch_s: float = 0.0

    @staticmethod
    def of(report: Mapping[str, Any], plan: StagePlan, other: Mapping[str, Any] | None = None) -> PlanProfile:
        """other: report of a run at another rate. UserError for runs that tell too little."""
        profile = PlanProfile._of(report, plan)
        return profile if other is None else profile.fitted(report, other, PlanProfile._of(other, plan))

    @staticmethod
    def _of(report: Mapping[str, Any], plan: StagePlan) -> PlanProfile:
        keys = ("work_s", "work_rows", "peak_window_bytes", "peak_window_tuples")
        if not report.get("complete") or any(stage.get(key) is None for stage in report["stages"] for key in keys):
            raise UserError("the run tells no rows and times of whole stages; give one that has ended")
        read = report.get("input") or {}
        inner = [edge for edge in plan.edges if isinstance(edge.receiver, Stage)]
        counts = len(report["stages"]), len(report["edges"]), set(read)
        if counts != (len(plan.stages), len(inner), {source.name for source in plan.sources}):
            raise UserError("its stages, edges or inputs are not those of its plan")
        stages = tuple(_stage(plain, stage) for plain, stage in zip(report["stages"], plan.stages, strict=True))
        sources = {name: float(counts["tuples"]) for name, counts in read.items()}
        given = sources | {stage.stage.name: stage.produced for stage in stages}
        edges = []
        for plain, edge in zip(report["edges"], inner, strict=True):
            assert isinstance(edge.receiver, Stage)
            sender = edge.sender.name
            rows = plain["sent"]["rows"]
            shares = _ratio(rows, given[sender]), _ratio(rows, sum(sources.values()))
            edges.append(EdgeProfile(edge, sender, edge.receiver.name, *shares, _ratio(plain["bytes"], rows)))
        times = [counts.get(name) for counts in read.values() for name in ("earliest_us", "latest_us")]
        known = [time_us for time_us in times if time_us is not None]
        if not known or max(known) == min(known):
            raise UserError("its rows span no time, so they have no rate")
        span_s = (max(known) - min(known)) / 1e6
        cpu_s = [gateway.get("cpu_s") for gateway in report.get("gateways") or ()]
        row_s = _ratio(sum(cpu_s), sum(sources.values())) if cpu_s and None not in cpu_s else None
        return PlanProfile(plan, sources, span_s, stages, tuple(edges), report.get("epochs") or 1, row_s)

    def fitted(self, report: Mapping[str, Any], other: Mapping[str, Any], beside: PlanProfile) -> PlanProfile:
        """With costs of an epoch and of a row that explain both runs. UserError for runs of the same rate."""
        if _alike(sum(self.rates.values()) / self.epochs, sum(beside.rates.values()) / beside.epochs):
            raise UserError("both runs have as many rows in an epoch; give runs of different rates")
        stages = []
        for s, (mine, its) in enumerate(zip(self.stages, beside.stages, strict=True)):
            counts = [epochs * len(r["stages"][s]["work_s"]) for epochs, r in ((self.epochs, report), (beside.epochs, other))]
            runs = [(count, p.work_rows, p.work_s) for count, p in zip(counts, (mine, its), strict=True)]
            epoch_s, row_s = _fit(*runs)
            stages.append(replace(mine, work_s=row_s * mine.work_rows, epoch_s=epoch_s))
        found = replace(self, stages=tuple(stages))
        if self.gateway_row_s is None or beside.gateway_row_s is None:
            return found
        rows = [sum(p.sources.values()) for p in (self, beside)]
        epochs = [p.epochs * len(r["gateways"]) for p, r in ((self, report), (beside, other))]
        epoch_s, row_s = _fit(
            (epochs[0], rows[0], self.gateway_row_s * rows[0]), (epochs[1], rows[1], beside.gateway_row_s * rows[1])
        )
        return replace(found, gateway_row_s=row_s, gateway_epoch_s=epoch_s)

    def resized(self, plan: StagePlan, copy_s: float) -> PlanProfile:
        """With matrices of other sizes. plan: the same but for these. copy_s: as of `StageProfile.of_copies`. What a row takes
        a gateway is as measured."""
        edges, more = [], {stage.stage.id: [1.0, 1.0] for stage in self.stages}
        for edge, new in zip(self.edges, (edge for edge in plan.edges if isinstance(edge.receiver, Stage)), strict=True):
            pairs = [(a, b) for a, b in zip(edge.edge.steps, new.steps, strict=True) if isinstance(a, Spread)]
            factor = math.prod(b.copies / a.copies for a, b in pairs if isinstance(b, Spread))
            rows = edge.rows_per_row * factor, edge.rows_per_source_row * factor
            edges.append(replace(edge, edge=new, rows_per_row=rows[0], rows_per_source_row=rows[1]))
            if pairs and isinstance(new.receiver, Stage):  # it is the only way to its port
                more[new.receiver.id][new.port] = factor
        stages = []
        for profile, stage in zip(self.stages, plan.stages, strict=True):
            if plan.places_of(stage) is not None:
                profile = profile.of_copies(more[stage.id], copy_s if plan.compares_all(stage) else math.inf)
            stages.append(replace(profile, stage=stage))
        return replace(self, plan=plan, stages=tuple(stages), edges=tuple(edges))

    @cached_property
    def rates(self) -> dict[str, float]:
        """Rows per second of event time that each source gave."""
        return {name: rows / self.span_s for name, rows in self.sources.items()}

    def flow(self, rates: Mapping[str, float], keys_grow: bool = False) -> Flow:
        """At these rates of the sources, per second of event time. keys_grow: with so many more keys, that each key has as many
        rows as in the measured run, where a join has keys; the rates must be one multiple of the measured ones."""
        given, span_s = dict(rates), self.span_s
        edge_rows: dict[int, float] = {}  # by `EdgeId`
        came, factors, out = [], [], []
        for profile in self.stages:
            ports = [0.0, 0.0]
            for edge in self.edges:
                if edge.edge.receiver == profile.stage:
                    edge_rows[edge.edge.id] = given[edge.sender] * edge.rows_per_row
                    ports[edge.edge.port] += edge_rows[edge.edge.id]
            before = [rows / span_s for rows in profile.received]
            grown = [now / then if then else 1.0 for now, then in zip(ports, before, strict=True)]
            came.append((ports[LEFT], ports[RIGHT]))
            factors.append((grown[LEFT], grown[RIGHT]))
            of_keys = keys_grow and not self.plan.compares_all(profile.stage)
            rows_out = profile.produced * grown[LEFT] if of_keys else profile.rows_out(factors[-1])
            out.append(rows_out / span_s)
            given[profile.stage.name] = out[-1]
        nbytes: dict[int, float] = {edge.edge.id: edge_rows[edge.edge.id] * edge.bytes_per_row for edge in self.edges}
        return Flow(dict(rates), edge_rows, nbytes, tuple(came), tuple(factors), tuple(out))

    def epoch_s(self, config: RunConfig, rates: Mapping[str, float]) -> float:
        """Event time of a distribution epoch: as configured, or while as many rows come as in the measured run."""
        if config.cluster.distribution_epoch_us > 0:
            return config.cluster.distribution_epoch_us / 1e6
        return self.span_s / self.epochs * sum(self.rates.values()) / sum(rates.values())


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def _alike(first: float, second: float) -> bool:
    return abs(first - second) < 0.2 * max(first, second)


def _fit(first: tuple[float, float, float], second: tuple[float, float, float]) -> tuple[float, float]:
    """Costs (of an epoch, of a row), none below 0, of two runs (epochs, rows, seconds): exact where both are positive."""
    (a, b, s), (c, d, t) = first, second
    determinant = a * d - b * c
    if determinant:
        epoch_s, row_s = (s * d - b * t) / determinant, (a * t - s * c) / determinant
        if epoch_s >= 0 and row_s >= 0:
            return epoch_s, row_s
        if row_s < 0:
            return (s + t) / (a + c), 0.0
    return 0.0, _ratio(s + t, b + d)


def _stage(plain: Mapping[str, Any], stage: Stage) -> StageProfile:
    matches, how = plain.get("matches"), stage.join.semantics.how if stage.joins else "inner"
    if matches is None and how != "inner":
        raise UserError(f"it was resumed, so it does not tell the matches of a {how} join; give a run without that")
    kept = float(sum(plain["peak_window_bytes"])), float(sum(plain["peak_window_tuples"]))
    received = float(plain["received"]["left"]), float(plain["received"]["right"])
    produced = float(plain["produced"])
    matched = produced if how == "inner" else float(matches or 0)
    return StageProfile(stage, received, produced, matched, *kept, sum(plain["work_s"]), sum(plain["work_rows"]))


# ---------------------------------------------------------------- time


@dataclass(frozen=True)
class StageWork:
    """A stage's time for a distribution epoch, seconds. rows_s: joining all of its rows. link_s: packing and sending all of its
    rows. messages_s: deliveries that one instance takes and sends. epoch_s: what an epoch costs an instance, whatever its rows.
    shares, speeds: of the rows, and of a core, by instance."""

    rows_s: float
    link_s: float
    messages_s: float
    epoch_s: float
    shares: tuple[float, ...]
    speeds: tuple[float, ...]

    def operator_s(self, index: int) -> float:
        """Time of an instance inside its operator, on its node."""
        return (self.shares[index] * self.rows_s + self.epoch_s) / self.speeds[index]

    def communication_s(self, index: int) -> float:
        return self.shares[index] * self.link_s + self.messages_s

    def of(self, index: int) -> float:
        """Time of an instance."""
        return self.operator_s(index) + self.communication_s(index)

    @property
    def busiest_s(self) -> float:
        """Time of its busiest instance."""
        return max(map(self.of, range(len(self.shares))))


@dataclass(frozen=True)
class EpochWork:
    """Time that a distribution epoch takes, seconds, of each gateway and of each sink. A send blocks: link time is its
    sender's. gateway_operator_s: of the CPU time, reading, admitting, and operators before the first stages."""

    gateway_operator_s: float
    gateway_cpu_s: float
    gateway_link_s: float
    stages: tuple[StageWork, ...]
    collector_s: float
    subclusters: Subclusters

    @staticmethod
    def of(
        profile: PlanProfile, flow: Flow, epoch_s: float, config: RunConfig, subclusters: Subclusters, costs: CostModel
    ) -> EpochWork:
        """flow: per second. epoch_s: event time of the distribution epoch."""
        groups, most = config.cluster.partition_count, config.reorganization.active_slaves

        def shares(stage: Stage, count: int) -> tuple[float, ...]:
            if stage.gathers:  # rows go to its instances in turn, whatever their partition-group
                return (1 / count,) * count
            active = min(count, most) or count
            places = profile.plan.places_of(stage)
            if places is not None:
                held = Counter(place % groups % active for place in range(places.count))
                return tuple(held[i] / places.count for i in range(count))
            return tuple((groups // active + (i < groups % active)) / groups if i < active else 0.0 for i in range(count))

        def sent(sender: object, count: int) -> tuple[float, float, float]:
            """Messages of one of so many senders, bytes of all, bytes beyond the fixed part of a tuple. Rows of stages that
            partition alike stay on their rank."""
            mine = [e.edge.id for e in profile.edges if e.edge.sender == sender and e.edge.origin is None]
            nbytes = epoch_s * sum(flow.edge_bytes[i] for i in mine)
            rows = epoch_s * sum(flow.edge_rows[i] for i in mine)
            receivers = [e.edge.receiver for e in profile.edges if e.edge.sender == sender]
            messages = sum(subclusters.counts[receiver.id] for receiver in receivers if isinstance(receiver, Stage))
            return max(messages, rows / count / PART_ROWS), nbytes, max(0.0, nbytes - rows * TUPLE_BYTES)

        gateways, sinks = config.gateway_count, config.sink_count
        found, rows_in = [sent(source, gateways) for source in profile.plan.sources], epoch_s * flow.total / gateways
        messages, nbytes, more = (sum(each) for each in zip(*found, strict=True))
        row_s = profile.gateway_row_s
        row_ns = costs.master_tuple_ns if row_s is None else 1e9 * costs.row_ratio * row_s
        cpu_ns = operator_ns = rows_in * (costs.source_tuple_ns + row_ns) + 1e9 * costs.epoch_ratio * profile.gateway_epoch_s
        cpu_ns += (more * costs.source_byte_ns + nbytes * costs.master_byte_ns) / gateways + messages * costs.message_ns
        stages, chunks = [], 0.0
        for s, (stage, count) in enumerate(zip(profile.stages, subclusters.counts, strict=True)):
            out, nbytes, _ = sent(stage.stage, count)
            senders = [e for e in profile.edges if e.edge.receiver == stage.stage]
            before = (e.edge.sender for e in senders)
            taken = sum(subclusters.counts[sender.id] if isinstance(sender, Stage) else gateways for sender in before)
            of_messages = (taken + out + 1) * costs.message_ns / 1e9
            work_s = stage.seconds(sum(flow.came[s]), flow.out[s], flow.factors[s], profile.span_s)
            rows_s = costs.row_ratio * epoch_s * work_s
            link_s = nbytes / costs.link_bytes_per_s + nbytes * costs.master_byte_ns / 1e9
            times = rows_s, link_s, of_messages, costs.epoch_ratio * stage.epoch_s
            speeds = tuple(config.nodes.speed_of(rank, 0) for rank in subclusters.ranks[s])
            stages.append(StageWork(*times, shares(stage.stage, count), speeds))
            chunks += count
        results = epoch_s * flow.out[-1]
        chunks += results / PART_ROWS
        result_bytes = 0.0 if config.sink.kind == "count" else results * _result_bytes(profile) / sinks
        collector_ns = chunks * (costs.collector_chunk_ns + costs.message_ns) + result_bytes * costs.collector_byte_ns
        link_s = sum(nbytes for _, nbytes, _ in found) / costs.link_bytes_per_s / gateways
        return EpochWork(operator_ns / 1e9, cpu_ns / 1e9, link_s, tuple(stages), collector_ns / 1e9, subclusters)

    @property
    def gateway_s(self) -> float:
        return self.gateway_cpu_s + self.gateway_link_s

    def slave_s(self, rank: int) -> float:
        """Time of a slave rank, with the instances that it plays."""
        of, found = self.subclusters, 0.0
        for slave in of.slaves_on(rank):
            stage = self.stages[of.stage_of(slave)]
            found += stage.of(of.index_of(slave))
        return found

    def all_s(self, gateways: int, sinks: int) -> float:
        """Time of all ranks, without their links, at full speed."""
        slaves = sum(stage.rows_s + len(stage.shares) * (stage.epoch_s + stage.messages_s) for stage in self.stages)
        return gateways * self.gateway_cpu_s + sinks * self.collector_s + slaves


def _result_bytes(profile: PlanProfile) -> float:
    """Bytes of a result row: a row of each port, as it travels; the measured run does not tell it."""
    last = profile.stages[-1].stage
    widths = [[e.bytes_per_row for e in profile.edges if e.edge.receiver == last and e.edge.port == port] for port in (0, 1)]
    return sum(sum(found) / max(1, len(found)) for found in widths)


@dataclass(frozen=True)
class Capacity:
    """A plan on slaves of this width, each rank with a core of its own, or on `host_cores` that all ranks share. ranks: which
    rank plays which roles; None: every gateway and sink has a rank of its own, as far as `RankMap` gives it one. keys_grow: see
    `PlanProfile.flow`. sized: where the configuration gives stages no shares of the ranks, they are those of the measured
    work."""

    profile: PlanProfile
    config: RunConfig
    width: int
    costs: CostModel
    host_cores: int = 0
    ranks: RankMap | None = None
    keys_grow: bool = False
    sized: bool = False

    @cached_property
    def rank_map(self) -> RankMap:
        return self.ranks or ranks_of(self.config, self.width)

    @cached_property
    def _roles_by_rank(self) -> list[tuple[int | None, int, int]]:
        """Of every rank, its slave, and the number of its gateways and of its sinks."""
        ranks = self.rank_map
        gateways, sinks = [0] * ranks.size, [0] * ranks.size
        for number in range(ranks.gateways):
            gateways[ranks.rank_of(gateway_role(number))] += 1
        for number in range(ranks.sinks):
            sinks[ranks.rank_of(sink_role(number))] += 1
        return [(ranks.slave_of(rank), gateways[rank], sinks[rank]) for rank in range(ranks.size)]

    def work(self, rates: Mapping[str, float]) -> EpochWork:
        return self._work_on(self.subclusters, rates)

    def _work_on(self, subclusters: Subclusters, rates: Mapping[str, float]) -> EpochWork:
        flow, epoch_s = self.flow(rates), self.profile.epoch_s(self.config, rates)
        return EpochWork.of(self.profile, flow, epoch_s, self.config, subclusters, self.costs)

    def flow(self, rates: Mapping[str, float]) -> Flow:
        return self.profile.flow(rates, self.keys_grow)

    @cached_property
    def subclusters(self) -> Subclusters:
        cluster, plan = self.config.cluster, self.profile.plan
        found = Subclusters.of(plan, self.width, cluster.strategy, cluster.instances)
        if not self.sized or cluster.instances or not found.apart:
            return found
        work = self._work_on(found, self.profile.rates)
        shares = [stage.rows_s + stage.link_s for stage in work.stages]
        return Subclusters.of(plan, self.width, cluster.strategy, shares)

    def window_bytes(self, flow: Flow) -> list[float]:
        """Windows of each stage's heaviest instance."""
        works, stages = self.work(flow.sources).stages, self.profile.stages
        kept = [s.kept_bytes * f[LEFT] if self.keys_grow else s.kept(f) for s, f in zip(stages, flow.factors, strict=True)]
        return [max(work.shares) * nbytes for work, nbytes in zip(works, kept, strict=True)]

    def stage_loads(self, rates: Mapping[str, float]) -> list[float]:
        """Share of a core that each stage takes of the busiest slave."""
        work, epoch_s = self.work(rates), self.profile.epoch_s(self.config, rates)
        return [stage.busiest_s / epoch_s for stage in work.stages]

    def loads(self, rates: Mapping[str, float]) -> dict[str, float]:
        """Use of every resource, 1 when it is saturated. A rank with several roles is named after the one with most work.
        Windows are those of one instance, as `module.window` is."""
        work, epoch_s = self.work(rates), self.profile.epoch_s(self.config, rates)
        gateways, sinks = self.config.gateway_count, self.config.sink_count
        gateway = f"{'master' if gateways == 1 else 'gateway'} {'CPU' if work.gateway_cpu_s >= work.gateway_link_s else 'link'}"
        sink = "collector" if sinks == 1 else "sinks"
        found = {"slaves": 0.0, gateway: 0.0, sink: 0.0}
        for slave, gateway_count, sink_count in self._roles_by_rank:
            parts = {
                "slaves": 0.0 if slave is None else work.slave_s(slave),
                gateway: gateway_count * work.gateway_s,
                sink: sink_count * work.collector_s,
            }
            name = max(parts, key=lambda part: parts[part])
            found[name] = max(found[name], sum(parts.values()) / epoch_s)
        found["module.window"] = max(self.window_bytes(self.flow(rates))) / self.config.module.window_bytes
        if self.host_cores:
            found["host"] = work.all_s(gateways, sinks) / epoch_s / self.host_cores / self.costs.shared_capacity
        return found

    def allocation(self, rates: Mapping[str, float]) -> list[int]:
        """The ranks of each stage that its share of the work asks for, as `cluster.instances` takes them; none for fewer ranks
        than stages."""
        if self.width < len(self.profile.stages):
            return []
        work = self.work(rates)
        counts = allocate({StageId(s): stage.rows_s + stage.link_s for s, stage in enumerate(work.stages)}, self.width)
        return [counts[StageId(s)] for s in range(len(work.stages))]

    def saturation(self, rates: Mapping[str, float]) -> tuple[float, str]:
        """The largest multiple of these rates that is sustained, and the resource that saturates first beyond it."""

        def most(factor: float) -> tuple[float, str]:
            loads = self.loads({name: rate * factor for name, rate in rates.items()})
            resource = max(loads, key=lambda name: loads[name])
            return loads[resource], resource

        low, high = 0.0, 1.0
        while most(high)[0] < 1.0 and high < 1e12:
            low, high = high, 2 * high
        while high - low > 1e-6 * high:
            middle = (low + high) / 2
            low, high = (middle, high) if most(middle)[0] < 1.0 else (low, middle)
        return low, most(high)[1]

    def balanced(self) -> Capacity:
        """So many of the slave ranks as gateways instead, that the highest multiple of the measured rates is sustained."""
        tried = [self]
        for part in range(1, _SPLITS):
            count = round(part * self.width / _SPLITS)
            if 0 < count < self.width and count != tried[-1].config.gateway_count:
                cluster = replace(self.config.cluster, gateways=count)
                tried.append(replace(self, config=replace(self.config, cluster=cluster), width=self.width - count))
        rates = self.profile.rates
        return max(tried[1:] or tried, key=lambda capacity: capacity.saturation(rates)[0])

    def least_width(self, rates: Mapping[str, float], most: int) -> int | None:
        """The least number of slaves that sustain these rates; None if no number up to `most` does."""
        by_width = (Capacity(self.profile, self.config, n, self.costs, self.host_cores) for n in range(1, most + 1))
        return next((c.width for c in by_width if max(c.loads(rates).values()) < 1.0), None)
