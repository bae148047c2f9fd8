"""Placement by measured traffic while the run goes on: policy `network` (KATTS, seed 001).

What: `Teams`, which stages of a plan can share ranks; `NetworkPlacement`: `reported` takes what slaves have sent and done,
`seek` looks for moves, of all stages at once, by what all have reported, `take_moves` gives them; `placed_again`, where
partition-groups go when a run goes on with another number of slaves.
Why: what a move saves depends on where the partition-groups of other stages are, so no stage can decide alone.
Stays out: the choice (`policy.placement`), counting (`cluster.traffic`), enacting (`cluster.master.controller`).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from swjoin.cluster.master.controller import Controller
from swjoin.config.run import RunConfig
from swjoin.config.sections import PlacementConfig
from swjoin.core.batch import I64
from swjoin.core.data_messages import GroupLoads, nothing_sent
from swjoin.core.ids import GroupId, SlaveId
from swjoin.policy.placement import BEFORE_A_RUN, FILLED, IN_A_RUN, is_worth, place, suggest
from swjoin.policy.reorganization import BUSY, Suggestion
from swjoin.policy.task_graph import F64, Machines, TaskGraph, cost

_STEPS = 4  # in which speeds of ranks differ, of that of the mean: measured ones are noisy, and partitions are matched by them
_DECAY = 0.5  # of a slice, over the one after it
_MOST_SAVED = 20_000  # pairs of partition-groups in a checkpoint
_SAME = 0.2  # ranks within this of the mean speed count as alike


class Teams(NamedTuple):
    """ends: of every edge between stages, its sender and its receiver. teams: stages that the same slave ranks play, of which
    some send to others. groups: partition-groups of a stage. hosts: numbers of the hosts of each team's ranks; none: they share
    one, or are not known. stages: how many there are, of no team too: with other ranks there are other teams."""

    ends: Mapping[int, tuple[int, int]]
    teams: tuple[tuple[int, ...], ...]
    groups: int
    hosts: tuple[tuple[int, ...], ...]
    stages: int

    @staticmethod
    def of(ends: Mapping[int, tuple[int, int]], ranks: Sequence[range], groups: int, hosts: Sequence[int] = ()) -> Teams:
        """ranks: by stage. hosts: of all slave ranks."""
        found: dict[range, list[int]] = {}
        for stage, mine in enumerate(ranks):
            found.setdefault(mine, []).append(stage)
        teams = [stages for stages in found.values() if any(ends_in(pair, stages) for pair in ends.values())]
        of_teams = [tuple(hosts[ranks[team[0]].start : ranks[team[0]].stop]) for team in teams] if hosts else []
        return Teams(ends, tuple(map(tuple, teams)), groups, tuple(of_teams), len(ranks))

    def host_of(self, team: Sequence[int]) -> I64 | None:
        """As of `policy.task_graph.Machines`."""
        return np.array(self.hosts[self.teams.index(tuple(team))], np.int64) if self.hosts else None


def ends_in(pair: tuple[int, int], stages: Sequence[int]) -> bool:
    return pair[0] in stages and pair[1] in stages


Slave = tuple[int, int]  # a stage, and the slave's number in it


@dataclass
class _Slice:
    """What was measured from one report of the slaves to the next: in a reorganization epoch, or in the first part of it. sent:
    int64 (n, 5), see `core.data_messages.TRAFFIC_COLUMNS`. work_ns, state_bytes: int64 (stages, groups). busy_us, worked_ns: of
    each slave, time and nominal work. epochs: distribution epochs. length_us: since the slice before was complete, or a
    share of that."""

    work_ns: I64
    state_bytes: I64
    sent: list[I64] = field(default_factory=list)
    busy_us: Counter[Slave] = field(default_factory=Counter)
    worked_ns: Counter[Slave] = field(default_factory=Counter)
    epochs: int = 0
    length_us: int = 0


class Placed(NamedTuple):
    """An event of the run's log: kind, amount, and what it is about."""

    kind: str
    amount: float
    text: str


class NetworkPlacement:
    """One for a run with policy `network`. seed: of placements. window_bytes: limit of the state of an instance."""

    def __init__(self, teams: Teams, settings: PlacementConfig, seed: int, window_bytes: int, interval: int) -> None:
        """interval: distribution epochs in a reorganization epoch."""
        self._teams, self._settings, self._seed = teams, settings, seed
        self._most_bytes, self._interval = FILLED * window_bytes, interval
        self._slices: deque[_Slice] = deque(maxlen=settings.slices)
        self._open: deque[_Slice] = deque()  # not all slaves have reported them
        self._reported: Counter[Slave] = Counter()  # slices
        self._closed = self._since_us = 0
        self._moves: list[tuple[int, Suggestion]] = []
        self._notes: list[Placed] = []

    @staticmethod
    def of(teams: Teams, config: RunConfig) -> NetworkPlacement:
        """For a run with this configuration."""
        reorganization = config.reorganization
        interval = reorganization.epoch_us // config.cluster.distribution_epoch_us
        return NetworkPlacement(teams, reorganization.placement, config.seed, config.module.window_bytes, interval)

    def _new_slice(self) -> _Slice:
        shape = self._teams.stages, self._teams.groups
        last = self._open or self._slices
        return _Slice(np.zeros(shape, np.int64), last[-1].state_bytes.copy() if last else np.zeros(shape, np.int64))

    def reported(self, stage: int, slave: int, loads: GroupLoads) -> None:
        """A slave's report at the end of a distribution epoch. slave: its number in the stage."""
        at = self._reported[stage, slave] - self._closed  # a slave may be ahead of others
        while len(self._open) <= at:
            self._open.append(self._new_slice())
        mine = self._open[at]
        mine.work_ns[stage, loads.groups] += loads.cost_ns
        mine.state_bytes[stage, loads.groups] = loads.state_bytes
        mine.busy_us[stage, slave] += loads.busy_us
        mine.worked_ns[stage, slave] += int(loads.cost_ns.sum())
        mine.epochs += (stage, slave) == (0, 0)
        if loads.sent is not None:
            mine.sent.append(loads.sent)
            self._reported[stage, slave] += 1

    def close_slices(self, counts: Sequence[int], now_us: int) -> bool:
        """Take the slices that all slaves have reported: before that, counts say who was first. Returns whether there are any.
        counts: slaves of every stage."""
        reported = [self._reported[stage, slave] for stage, count in enumerate(counts) for slave in range(count)]
        complete = min(reported) - self._closed
        for _ in range(complete):
            self._open[0].length_us = (now_us - self._since_us) // complete
            self._slices.append(self._open.popleft())
        if complete:
            self._since_us, self._closed = now_us, self._closed + complete
        return complete > 0

    def seek(self, controllers: Sequence[Controller], now_us: int) -> None:
        """Look for moves when the last slave has reported, usually while an epoch is under way: a search may take as long as a
        short epoch, so the plan of an epoch is not the place for it. controllers: of all stages."""
        if self.close_slices([controller.slave_count for controller in controllers], now_us):
            self._moves = self.suggested(controllers)

    def take_moves(self) -> list[tuple[int, Suggestion]]:
        """Remove and return the moves that were found last, each with its stage."""
        moves, self._moves = self._moves, []
        return moves

    def drop_moves(self) -> None:
        """Forget the moves that were found last, and what was expected of them."""
        self._moves = []
        self._notes = [note for note in self._notes if note.kind != "placed"]

    def suggested(self, controllers: Sequence[Controller]) -> list[tuple[int, Suggestion]]:
        """The moves by the last slices, each with its stage. controllers: of all stages."""
        self.drop_moves()
        return [move for stages in self._teams.teams for move in self._of_team(stages, controllers)]

    def _speeds(self, stages: Sequence[int], count: int) -> F64:
        """Of the ranks of a team, nominal work per time over that of the mean: in every stage, whose nominal work has another
        unit, and then on average. count: ranks."""
        found = np.ones((len(stages), count))
        for i, stage in enumerate(stages):
            busy_us, worked_ns = (
                np.array([sum(of[stage, slave] for of in column) for slave in range(count)], np.float64)
                for column in ([one.busy_us for one in self._slices], [one.worked_ns for one in self._slices])
            )
            known = (busy_us > 0) & (worked_ns > 0)
            if known.any():
                speed = worked_ns / np.maximum(busy_us, 1)
                found[i, known] = speed[known] / speed[known].mean()
        speeds: F64 = found.mean(axis=0)
        return speeds

    def _busy_ratio(self, stages: Sequence[int], count: int) -> float:
        """Of the busiest rank in the last slice."""
        last = self._slices[-1]
        return max(sum(last.busy_us[stage, slave] for stage in stages) for slave in range(count)) / max(1, last.length_us)

    def _of_team(self, stages: Sequence[int], controllers: Sequence[Controller]) -> list[tuple[int, Suggestion]]:
        count = controllers[stages[0]].slave_count
        machines = Machines(_steps(self._speeds(stages, count)), self._teams.host_of(stages), self._memory(stages, count))
        busy = self._busy_ratio(stages, count) > BUSY
        now = np.concatenate([controllers[stage].map.owner for stage in stages])
        pinned = np.full(len(now), -1, np.int64)
        for i, stage in enumerate(stages):
            for move in controllers[stage].moves.values():  # it goes on, and nothing else can be done with this one
                at = i * self._teams.groups + int(move.group)
                now[at] = pinned[at] = move.consumer
        graph = self._graph(stages, self._average(list(self._slices)), pinned)
        if not graph.tuples.any():
            return []
        then = suggest(graph, machines, self._settings, self._seed, now, busy=busy)
        kept = self._within_memory(graph.state_bytes, now, then, len(machines.speed))
        if (kept != then).any():
            then = kept if is_worth(graph, machines, self._settings, now, kept, busy=busy) else now
        self._note(stages, now, then, graph, machines)
        moves = []
        for at in np.flatnonzero(now != then).tolist():
            i, group = divmod(at, self._teams.groups)
            nbytes = int(graph.nbytes[(graph.source == at) | (graph.target == at)].sum())
            reason = f"traffic: {nbytes} bytes an epoch with others"
            moves.append((stages[i], Suggestion(GroupId(group), SlaveId(int(now[at])), SlaveId(int(then[at])), reason)))
        return moves

    def _memory(self, stages: Sequence[int], count: int) -> I64:
        """Of each of so many ranks."""
        return np.full(count, int(min(self._most_bytes * len(stages), 1 << 60)), np.int64)

    def _within_memory(self, state_bytes: I64, now: I64, then: I64, count: int) -> I64:
        """Without the moves that would fill an instance too much, and more than it is: those with most state first. A move that
        is not made leaves its state where it is, so the others are looked at again. count: machines of the team."""
        groups, found = self._teams.groups, then.copy()
        for first in range(0, len(now), groups):
            span = slice(first, first + groups)
            before = np.bincount(now[span], state_bytes[span], count)
            while True:
                over = np.bincount(found[span], state_bytes[span], count) > np.maximum(self._most_bytes, before)
                coming = first + np.flatnonzero(over[found[span]] & (now[span] != found[span]))
                if not len(coming):
                    break
                most = coming[state_bytes[coming].argmax()]
                found[most] = now[most]
        return found

    def _average(self, slices: Sequence[_Slice]) -> _Slice:
        """A whole reorganization epoch in the place of several slices, of which the newest counts most."""
        weights = _DECAY ** np.arange(len(slices))[::-1]
        weights *= self._interval / max(1.0, float(weights @ np.array([one.epochs for one in slices])))
        parts = [(part, weight) for one, weight in zip(slices, weights, strict=True) for part in one.sent]
        sent = np.concatenate([nothing_sent(), *(part for part, _ in parts)])
        weight = np.concatenate([np.zeros(0), *(np.full(len(part), weight) for part, weight in parts)])
        kept = (sent[:, 1] >= 0) & (sent[:, 1] < self._teams.groups) & (sent[:, 2] < self._teams.groups)
        sent, weight, groups = sent[kept], weight[kept], self._teams.groups
        pairs, which = np.unique((sent[:, 0] * groups + sent[:, 1]) * groups + sent[:, 2], return_inverse=True)
        counts = [np.ceil(np.bincount(which, weight * sent[:, column], len(pairs))).astype(np.int64) for column in (3, 4)]
        edge, source = np.divmod(pairs // groups, groups)
        work_ns = sum(weight * one.work_ns for one, weight in zip(slices, weights, strict=True))
        found = np.stack([edge, source, pairs % groups, *counts], axis=1)
        return _Slice(np.ceil(work_ns).astype(np.int64), slices[-1].state_bytes, [found], epochs=self._interval)

    def _graph(self, stages: Sequence[int], counts: _Slice, pinned: I64) -> TaskGraph:
        """The partition-groups of a team, stage by stage. counts: as of `_average`."""
        groups, (sent,) = self._teams.groups, counts.sent
        first = {stage: i * groups for i, stage in enumerate(stages)}
        edges = {edge: pair for edge, pair in self._teams.ends.items() if ends_in(pair, stages)}
        sent = sent[np.isin(sent[:, 0], list(edges))]
        begin = np.zeros((2, 1 + max(edges)), np.int64)  # of sender and receiver of every edge
        for edge, pair in edges.items():
            begin[:, edge] = [first[stage] for stage in pair]
        source, target = begin[0, sent[:, 0]] + sent[:, 1], begin[1, sent[:, 0]] + sent[:, 2]
        work_ns, state_bytes = (of[list(stages)].reshape(-1) for of in (counts.work_ns, counts.state_bytes))
        nothing = np.zeros(len(sent), np.int64)
        ids = tuple(range(len(stages) * groups))
        return TaskGraph(ids, work_ns, state_bytes, pinned, source, target, sent[:, 3], sent[:, 4], nothing)

    def _note(self, stages: Sequence[int], now: I64, then: I64, graph: TaskGraph, machines: Machines) -> None:
        before, after = cost(graph, now, machines), cost(graph, then, machines)
        total, moves = max(1, before.total_bytes), int((now != then).sum())
        crosses, expected = 100 * before.network_bytes / total, 100 * after.network_bytes / total
        text = f"{crosses:.1f} % of the bytes between stages are between ranks, {expected:.1f} % expected, {moves} moves"
        self._notes.append(Placed("placed", expected, text))
        last = self._graph(stages, self._average(list(self._slices)[-1:]), graph.pinned)
        best = cost(last, place(last, machines, self._settings, self._seed, now, IN_A_RUN), machines)
        seen = cost(last, now, machines)
        regret = 100 * max(0, seen.network_bytes - best.network_bytes) / max(1, seen.total_bytes)  # the bound may cost more
        self._notes.append(Placed("regret", regret, "points above the best placement for what was seen since the last one"))

    def plain_state(self) -> dict[str, Any]:
        """What was measured, for a checkpoint: the heaviest pairs of partition-groups of the average slice."""
        if not self._slices:
            return {}
        found = self._average(list(self._slices))
        (sent,) = found.sent
        heaviest = sent[np.sort(np.argsort(-sent[:, 4], kind="stable")[:_MOST_SAVED])]
        counts = {"work_ns": found.work_ns, "state_bytes": found.state_bytes, "sent": heaviest}
        return {name: of.tolist() for name, of in counts.items()}

    def restore(self, plain: dict[str, Any], now_us: int = 0) -> None:
        """Go on from `plain_state`, as if it were the slice before."""
        self._since_us = now_us
        if plain:
            shape = self._teams.stages, self._teams.groups
            work_ns, state_bytes = (np.array(plain[name], np.int64).reshape(shape) for name in ("work_ns", "state_bytes"))
            sent = np.array(plain["sent"], np.int64).reshape(-1, 5)
            self._slices.append(_Slice(work_ns, state_bytes, [sent], epochs=self._interval))

    def placed(self, counts: Sequence[int]) -> dict[int, I64]:
        """Owners of the partition-groups of each stage of a team, by what was measured. counts: instances of every stage."""
        found: dict[int, I64] = {}
        for stages in self._teams.teams if self._slices else ():
            graph = self._graph(
                stages, self._average(list(self._slices)), np.full(len(stages) * self._teams.groups, -1, np.int64)
            )
            count = counts[stages[0]]
            machines = Machines(np.ones(count), self._teams.host_of(stages), self._memory(stages, count))
            machine_of = place(graph, machines, self._settings, self._seed, effort=BEFORE_A_RUN)
            found |= dict(zip(stages, machine_of.reshape(len(stages), -1), strict=True))
        return found

    def take_notes(self) -> list[Placed]:
        """Remove and return the events since the last call."""
        notes, self._notes = self._notes, []
        return notes


def placed_again(plain: dict[str, Any], teams: Teams, config: RunConfig, counts: Sequence[int]) -> dict[int, I64]:
    """Owners of partition-groups by stage, where policy `network` had measured their traffic before the checkpoint: all state
    comes from there, so nothing is moved. plain: as of `NetworkPlacement.plain_state`. counts: instances of every stage."""
    if config.reorganization.policy != "network":
        return {}
    placement = NetworkPlacement.of(teams, config)
    placement.restore(plain)
    return placement.placed(counts)


def _steps(speeds: F64) -> F64:
    """Speeds in coarse steps, 1 for those near the mean."""
    ratio = speeds / speeds.mean()
    steps: F64 = np.where(np.abs(ratio - 1) <= _SAME, 1.0, np.maximum(1, np.rint(ratio * _STEPS)) / _STEPS)
    return steps
