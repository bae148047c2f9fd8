"""The join operator of the model: windows of tuple counts.

What: `ModelJoin`, a `JoinOperator` whose windows are counts per partition-group, stream and stretch of time, and the two ends
of its state movements.
Why: the production slave, mover, master and controller run over it unchanged, for thousands of slaves.
Stays out: how long anything takes (`forecast.costs`; `meter` has the amount of work), tuples (`operators.window_join`).

Expectations are exact in the mean unless noted. Pairs: of n left and m right tuples of a partition-group, from two stretches
of time, n * m * equal * overlap match: `equal` is the probability of equal keys in that partition-group, `overlap` the
probability that the times satisfy the bounds. Counts are rounded down, and the remainder is added to the next ones.
Comparisons: a fresh tuple meets the opposite side of its mini-partition-group: the tuples of its own key (share `equal`) and a
share 2^-d of the others, where d is the depth at which a mini-partition-group of the mean size, within the spread by Poisson
arrivals and unequal keys, is within 2 * theta; with theta 0, the whole opposite window. The half-expired blocks at the end of
each chain are added to both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, Pairs, TupleBatch
from swjoin.core.data_messages import (
    Delivery,
    Directory,
    GroupResults,
    StateChunk,
)
from swjoin.core.errors import RunFailed
from swjoin.core.ids import (
    BEGIN_OF_TIME_US,
    END_OF_TIME_US,
    EpochIndex,
    GroupId,
)
from swjoin.forecast.model.batch import F64, TUPLE_BYTES, KeyDistribution, ModelBatch, ModelPairs, Overlaps
from swjoin.forecast.model.windows import Fresh, Meter, Windows, as_matrix, mini_shares, spread_delays
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import Step, WindowMemory, Work
from swjoin.operators.state_movement import pieces
from swjoin.operators.window_store import WindowSizes
from swjoin.state.arrays import MINI_BYTES, STAT_COMPARISONS, STAT_PAIRS, Inputs, block_bytes

_PIECES = 4  # steps of a delivery, at most, whatever the budget


@dataclass
class ModelWork(Work):
    """The expectations of an open delivery, per partition-group. Weights: float64 (partition-groups, runs' stretches)."""

    next_group: int = 0
    fresh: list[Fresh] = field(default_factory=list)
    pairs: F64 = field(default_factory=lambda: np.empty(0))
    compared: F64 = field(default_factory=lambda: np.empty(0))
    visits: F64 = field(default_factory=lambda: np.empty(0))
    even: list[F64] = field(default_factory=list)
    triangular: list[F64] = field(default_factory=list)
    arrivals: list[tuple[I64, I64]] = field(default_factory=list)


@dataclass
class _Live:
    """Tuples in the windows that can still match: float64 (rows of the windows,). mini_group_count: once it was asked for."""

    left: F64
    right: F64
    mini_group_count: int | None = None


class ModelJoin:
    """See `WindowJoinOperator`; no result buffer bounds its steps. distribution: of the keys of both streams.

    span_us: duration of a step that does the metered work, set by the runtime.
    """

    def __init__(
        self,
        distribution: KeyDistribution,
        overlaps: Overlaps,
        sizes: WindowSizes,
        tuple_bytes: int,
        pair_bytes: int = 0,
    ) -> None:
        """pair_bytes: of a result row; 0: pairs are only counted."""
        self.distribution, self.pair_bytes = distribution, pair_bytes
        self._overlaps = overlaps
        self.meter = Meter()
        self.span_us: Callable[[Meter], float] = lambda done: 0.0
        self._sizes, self._tuple_bytes = sizes, tuple_bytes
        self._windows = Windows()
        self._open: ModelWork | None = None
        self._times_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._remainder = np.zeros(distribution.partition_count)  # of rounding pairs
        self._most_stored = 0
        self._live: _Live | None = None  # as long as nothing changes

    # ------------------------------------------------------------ joining

    def check_rows(self, delivery: Delivery, where: str) -> None:
        """Counts of tuples have no rows."""

    def open(self, delivery: Delivery, *, settles: bool = False) -> ModelWork:
        assert self._open is None, "the delivery before is not done"
        known = len(self._windows.rows)
        rows = np.array([self._windows.open(GroupId(g)) for g in delivery.groups.tolist()], np.int64)
        if len(self._windows.rows) > known:
            self._live = None
        if self.window_bytes() > self._sizes.window_bytes:
            raise RunFailed(
                f"windows of {self.window_bytes()} bytes exceed module.window ({self._sizes.window_bytes} bytes); "
                "use more slaves, raise module.window, or use a shorter window"
            )
        zero = np.zeros(len(delivery.groups), np.int64)
        results = GroupResults(delivery.groups, zero, zero.astype(np.uint64))
        work = ModelWork(delivery, cast("Inputs", None), results, settles=settles)
        self._expect(work, rows)
        self._open = work
        self.meter.deliveries += 1
        return work

    def _expect(self, work: ModelWork, rows: I64) -> None:
        """Pairs, comparisons and touched mini-partition-groups of the whole delivery."""
        groups = work.delivery.groups
        fresh = work.fresh = [as_matrix(groups, b) for b in (work.delivery.left, work.delivery.right)]
        totals = [f.count.sum(1) for f in fresh]
        stored = [self._windows.counts[s][rows] for s in (LEFT, RIGHT)]
        kept, met = (
            [stored[s] @ alive[s] for s in (LEFT, RIGHT)]
            for alive in (self._alive(), self._alive(self._middle_of(work.delivery)))
        )
        equal = self.distribution.equal[self._rotation_now(fresh)][groups]
        share, minis = np.empty(len(groups)), np.empty(len(groups))
        mini_shares(kept[LEFT] + kept[RIGHT], equal, self._sizes.theta_tuples, self._sizes.block_tuples, share, minis)
        ragged = np.minimum(kept[LEFT] + kept[RIGHT], self._sizes.block_tuples / 2)  # half-expired blocks
        work.compared = share * totals[LEFT] * totals[RIGHT]
        for s in (LEFT, RIGHT):
            work.compared += totals[s] * (share * met[1 - s] + ragged)
        work.visits = minis * -np.expm1(-(totals[LEFT] + totals[RIGHT]) / minis)
        columns = np.arange(self._windows.counts.shape[2]) + self._windows.base
        work.pairs = np.zeros(len(groups))
        for s in (LEFT, RIGHT):
            used = np.flatnonzero(stored[1 - s].any(axis=0))
            even = fresh[s].count * self._matches(s, fresh[s].stretch, columns[used], stored[1 - s][:, used], groups)
            work.pairs += even.sum(1)
            work.even.append(even)
            work.triangular.append(np.zeros_like(even))
            work.arrivals.append((fresh[s].begin, fresh[s].end))
        for j in range(len(fresh[RIGHT].stretch)):  # fresh left x fresh right; the delay is the later one's
            which = fresh[RIGHT].stretch[j : j + 1]
            pairs = fresh[LEFT].count * self._matches(
                LEFT, fresh[LEFT].stretch, which, fresh[RIGHT].count[:, j : j + 1], groups
            )
            later = fresh[LEFT].stretch > which[0]
            same = fresh[LEFT].stretch == which[0]
            work.even[LEFT] += pairs * later
            work.triangular[RIGHT][:, j] += pairs[:, same].sum(1)
            work.even[RIGHT][:, j] += pairs[:, ~same & ~later].sum(1)
            work.pairs += pairs.sum(1)

    def _rotation_now(self, fresh: list[Fresh]) -> int:
        stretches = [int(f.stretch[-1]) for f in fresh if len(f.stretch)]
        return int(self.distribution.rotation[max(stretches, default=0)])

    def _matches(self, stream: int, mine: I64, other: I64, counts: F64, groups: I64) -> F64:
        """Expected matches of one tuple of `stream` from each stretch of `mine`, per partition-group: float64 (groups, mine).
        counts: float64 (groups, other), the opposite tuples."""
        distribution = self.distribution
        chance = self._overlaps.of(stream, mine, other)
        same = distribution.rotation[mine][:, None] == distribution.rotation[other][None, :]
        out = counts @ (chance * same).T * distribution.equal[distribution.rotation[mine]][:, groups].T
        if not same.all():
            out += counts @ (chance * ~same).T * distribution.apart[groups][:, None]
        return cast("F64", out)

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[Pairs]:
        """Join partition-groups until `tuple_budget` tuples, or a quarter of the epoch, are done."""
        assert isinstance(work, ModelWork)
        assert work is self._open, "step on a delivery that is not open"
        counts = work.delivery.left_counts + work.delivery.right_counts
        budget = max(tuple_budget, -(-int(counts.sum()) // _PIECES))
        done = np.cumsum(counts[work.next_group :])
        stop = min(work.next_group + int(np.searchsorted(done, budget)) + 1, len(counts))
        piece = slice(work.next_group, stop)
        work.next_group = stop
        tuples = int(counts[piece].sum())
        groups = work.delivery.groups[piece]
        self._remainder[groups] += work.pairs[piece]
        whole = np.floor(self._remainder[groups])
        self._remainder[groups] -= whole
        work.results.counts[piece] = whole
        work.comparisons_by_group[piece] = work.compared[piece]
        pairs = int(whole.sum())
        did = Meter(tuples, float(work.compared[piece].sum()), pairs, float(work.visits[piece].sum()), len(groups))
        work.stats[STAT_PAIRS] += pairs
        work.stats[STAT_COMPARISONS] += int(did.comparisons)
        self.meter.tuples += tuples
        self.meter.comparisons += did.comparisons
        self.meter.pairs += pairs
        self.meter.visits += did.visits
        self.meter.groups += did.groups
        self._record(work, piece, pairs, now_us, self.span_us(did))
        finished = stop == len(counts)
        if finished:
            self._close(work)
        return Step(ModelPairs.of(pairs, self.pair_bytes) if self.pair_bytes else None, finished, tuples)

    def _record(self, work: ModelWork, piece: slice, pairs: int, now_us: int, span_us: float) -> None:
        weights, triangular = (np.concatenate([w[piece].sum(0) for w in part]) for part in (work.even, work.triangular))
        if pairs and weights.sum() + triangular.sum() == 0:  # all pairs are from remainders
            weights = np.ones_like(weights)
        begins, ends = (np.concatenate([a[i] for a in work.arrivals]) for i in (0, 1))
        spread_delays(pairs, weights, triangular, begins, ends, now_us, span_us, work.stats, work.delay_histogram)

    def _close(self, work: ModelWork) -> None:
        self._open = None
        delivery = work.delivery
        self._store(delivery.groups, work.fresh)
        if not work.settles:
            self._times_us = (delivery.left_time_us, delivery.right_time_us)
        self._expire()
        stored = int(self._windows.counts.sum())
        self.meter.growth += max(0, stored - self._most_stored)
        self._most_stored = max(stored, self._most_stored)

    def _store(self, groups: I64, fresh: list[Fresh]) -> None:
        self._live = None
        rows = np.array([self._windows.rows[GroupId(g)] for g in groups.tolist()], np.int64)
        for stream, part in enumerate(fresh):
            if len(rows):
                self._windows.add(stream, rows, part.stretch, part.count)

    def _middle_of(self, delivery: Delivery) -> tuple[int, int]:
        """Times half-way through a delivery: blocks that expire during it are compared with half of its tuples."""
        after = (delivery.left_time_us, delivery.right_time_us)
        left, right = (
            t if not BEGIN_OF_TIME_US < t < a < END_OF_TIME_US else (t + a) // 2
            for t, a in zip(self._times_us, after, strict=True)
        )
        return left, right

    def _alive(self, times_us: tuple[int, int] | None = None) -> list[F64]:
        """Share of each column that can still match tuples after these times (default: the present ones), per stream."""
        left_time, right_time = times_us or self._times_us
        bounds = self._overlaps.bounds
        dead_below = (right_time - bounds.upper_us, left_time + bounds.lower_us)
        last = self.distribution.stretch_count - 1
        stretches = np.minimum(np.arange(self._windows.counts.shape[2]) + self._windows.base, last)
        begin, end = self.distribution.edges_us[stretches], self.distribution.edges_us[stretches + 1]
        return [np.minimum(np.maximum((end - dead) / (end - begin), 0.0), 1.0) for dead in dead_below]

    def _expire(self) -> None:
        self._live = None
        for stream, alive in enumerate(self._alive()):
            self._windows.counts[stream][:, alive == 0] = 0

    # ------------------------------------------------------------ after a crash

    def restore(self, delivery: Delivery) -> None:
        """Store the counts; nothing is joined."""
        assert self._open is None, "the delivery before is not done"
        for group in delivery.groups.tolist():
            self._windows.open(GroupId(group))
        groups = delivery.groups
        self._store(groups, [as_matrix(groups, batch) for batch in (delivery.left, delivery.right)])

    def restored_until(self, times_us: tuple[int, int]) -> None:
        self._times_us = times_us
        self._expire()

    def restored(self, times_us: I64) -> None:
        """Counts have no rows that could come out twice."""

    # ------------------------------------------------------------ state movement

    @property
    def may_append(self) -> bool:
        return True

    def group_ids(self) -> list[GroupId]:
        return sorted(self._windows.rows)

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> ModelExport:
        assert self._open is None, "a partition-group leaves between deliveries"
        return ModelExport(self, move_id, pending, chunk_bytes)

    def import_group(self, first: StateChunk) -> ModelImport:
        return ModelImport(self, first)

    def take_out(self, group: GroupId) -> tuple[ModelBatch, ModelBatch]:
        """Remove a partition-group's windows; returns its tuples of both streams for the transfer."""
        self._live = None
        self._windows.open(group)
        alive = self._alive()
        base = self._windows.base
        counts = self._windows.close(group)
        out = []
        for stream in (LEFT, RIGHT):
            count = np.rint(counts[stream] * (alive[stream] > 0)).astype(np.int64)
            used = np.flatnonzero(count)
            stretch = used + base
            ts = self.distribution.edges_us[stretch]
            zero = np.zeros(len(used), np.int64)
            size = self._tuple_bytes - 8  # without arrivals, see StateChunk.nbytes
            out.append(ModelBatch.of(np.full(len(used), group, np.int64), ts, stretch, zero, zero, count[used], size))
        return out[LEFT], out[RIGHT]

    def put_in(self, group: GroupId, tuples: tuple[list[ModelBatch], list[ModelBatch]]) -> None:
        """Add a partition-group that was moved here."""
        if group in self._windows.rows:
            raise RunFailed(f"partition-group {group} is here already")
        self._live = None
        row = np.array([self._windows.open(group)])
        for stream, batches in enumerate(tuples):
            for batch in batches:
                self._windows.add(stream, row, batch.stretch, batch.count[None, :].astype(np.float64))

    @property
    def times_us(self) -> tuple[int, int]:
        return self._times_us

    # ------------------------------------------------------------ measures

    def _live_now(self) -> _Live:
        if self._live is None:
            alive = self._alive()
            left, right = (self._windows.counts[s] @ alive[s] for s in (LEFT, RIGHT))
            self._live = _Live(left, right)
        return self._live

    def window_tuples(self) -> tuple[int, int]:
        """Stored tuples, with expired ones in blocks that are not expired."""
        live = self._live_now()
        left, right = int(live.left.sum()), int(live.right.sum())
        ragged = self.mini_group_count() * self._sizes.block_tuples // 2
        return left + min(left, ragged), right + min(right, ragged)

    def tuples_by_group(self, partition_count: int) -> I64:
        live = self._live_now()
        total = live.left + live.right
        out = np.zeros(partition_count, np.int64)
        for group, row in self._windows.rows.items():
            out[group] = int(total[row])  # type: ignore[index]
        return out

    def mini_group_count(self) -> int:
        live = self._live_now()
        if live.mini_group_count is None:
            rows = np.array(list(self._windows.rows.values()), np.int64)
            groups = np.array(list(self._windows.rows), np.int64)
            equal, sizes = self.distribution.equal[0][groups], self._sizes
            share, minis = np.empty(len(rows)), np.empty(len(rows))
            mini_shares((live.left + live.right)[rows], equal, sizes.theta_tuples, sizes.block_tuples, share, minis)
            live.mini_group_count = round(float(minis.sum()))
        return live.mini_group_count

    def block_count(self) -> int:
        """Expected blocks; the last one of each mini-partition-group and stream is half full."""
        tuples = sum(self.window_tuples())
        return tuples // self._sizes.block_tuples + min(tuples, self.mini_group_count())

    def window_bytes(self) -> int:
        payload = self._tuple_bytes - TUPLE_BYTES
        blocks = self.block_count() * block_bytes(self._sizes.block_tuples)
        return blocks + self.mini_group_count() * MINI_BYTES + sum(self.window_tuples()) * payload

    def window_memory(self) -> WindowMemory:
        """Memory in the end; `forecast.memory` estimates peaks."""
        return WindowMemory(0, 0, 0, self.window_bytes(), sum(self.window_tuples()))

    def validate(self) -> None:
        assert (self._windows.counts >= 0).all(), "negative counts in the windows"
        rows = list(self._windows.rows.values())
        assert len(rows) == len(set(rows)), "two partition-groups share a row"
        unused = np.setdiff1d(np.arange(self._windows.counts.shape[1]), rows)
        assert not self._windows.counts[:, unused].any(), "tuples of a partition-group that is not here"


_DIRECTORY = Directory(0, np.zeros(1, np.int64), np.zeros(1, np.int64))


class ModelExport:
    """The supplier's end of a move, as `GroupExport`."""

    def __init__(self, join: ModelJoin, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> None:
        self.move_id = move_id
        self.tuples = self.nbytes = 0
        self._times_us = join.times_us
        self._meter = join.meter
        parts: list[tuple[int, bool, TupleBatch]] = []
        for is_pending, batches in ((False, join.take_out(move_id.group)), (True, pending)):
            for stream, batch in enumerate(batches):
                parts += [(stream, is_pending, part) for part in pieces(batch, chunk_bytes) if len(part)]
        self._parts = deque(parts or [(LEFT, False, TupleBatch.empty())])
        self._index = 0

    @property
    def done(self) -> bool:
        return not self._parts

    def waiting_tuples(self, stream: int) -> int:
        return sum(len(batch) for s, pending, batch in self._parts if pending and s == stream)

    def next_chunk(self) -> StateChunk:
        stream, pending, tuples = self._parts.popleft()
        j, one = self.move_id, np.zeros(1, np.int64)
        index, self._index = self._index, self._index + 1
        counts = np.array([len(tuples)])
        times = self._times_us
        directory = _DIRECTORY if index == 0 else None
        head = (j.query, j.move, j.group, j.supplier, j.consumer, index, self.done, times, stream, pending)
        chunk = StateChunk(*head, one, counts, tuples, directory)
        self.tuples += len(tuples)
        self.nbytes += chunk.nbytes
        self._meter.extracted_bytes += chunk.nbytes
        return chunk


class ModelImport:
    """The consumer's end of a move, as `GroupImport`: the partition-group is hidden until it is settled."""

    def __init__(self, join: ModelJoin, first: StateChunk) -> None:
        self.first = first
        self.complete = False
        self.tuples = self.nbytes = 0
        self._join = join
        self._next = 0
        self._stored: tuple[list[ModelBatch], list[ModelBatch]] = ([], [])
        self._pending: tuple[list[ModelBatch], list[ModelBatch]] = ([], [])

    def add(self, chunk: StateChunk) -> None:
        if chunk.index != self._next or self.complete:
            raise RunFailed(f"partition-group {chunk.group}: chunk {chunk.index} came where {self._next} was expected")
        self._next += 1
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self._join.meter.installed_bytes += chunk.nbytes
        self.complete = chunk.last
        if isinstance(chunk.tuples, ModelBatch):
            (self._pending if chunk.pending else self._stored)[chunk.stream].append(chunk.tuples)

    def waiting_tuples(self, stream: int) -> int:
        return sum(len(part) for part in self._pending[stream])

    def settle(self, epoch: EpochIndex) -> Work | None:
        first = self.first
        self._join.put_in(first.group, self._stored)
        if not any(self._pending):
            return None
        left, right = (ModelBatch.concat(p) if p else TupleBatch.empty() for p in self._pending)
        self._pending = ([], [])
        group, counts = np.array([first.group], np.int64), [np.array([len(b)]) for b in (left, right)]
        delivery = Delivery(
            first.query, first.consumer, epoch, *first.times_us, group, counts[LEFT], counts[RIGHT], left, right
        )
        return self._join.open(delivery, settles=True)
