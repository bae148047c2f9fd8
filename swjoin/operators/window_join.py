"""The windowed equi-join of one query on one slave: the driver that joins fresh tuples with stored ones.

What: `WindowJoinOperator.open(delivery) -> Work`, then `step(work, now_us, budget) -> Step` until done.
Why: bounded steps keep the slave on time and results bounded, even when one tuple has a million matches.
Stays out: kernels and tuning (`state`), memory and expiry (`operators.join_windows`), result pieces
(`operators.result_buffer`), state movement (`operators.state_movement`), messages (`cluster.slave.slave`).

A delivery's tuples are fresh until they have been joined. Per mini-partition-group, fresh left tuples meet the stored right
ones, fresh right tuples the stored left ones, fresh left the fresh right; then they are stored. So every pair is found once,
and each is checked by its times. After a delivery the windows expire by its watermarks and the mini-partition-groups are
tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import BOTH, I64, LEFT, RIGHT, STREAM_NAMES, Bool, Pairs, RowLayout, TupleBatch, check_layout
from swjoin.core.data_messages import Delivery, GroupResults, Route, StateChunk
from swjoin.core.ids import BEGIN_OF_TIME_US, GroupId
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, JoinKind
from swjoin.core.sequence_numbers import preceding_counts, with_times
from swjoin.expressions.column_vm import has_columns
from swjoin.expressions.vm import Program, Residual, no_rows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import Step, WindowMemory, Work, offsets
from swjoin.operators.join_windows import JoinWindows
from swjoin.operators.result_buffer import ResultBuffer
from swjoin.operators.state_movement import GroupExport, GroupImport
from swjoin.operators.window_store import WindowSizes, WindowStore
from swjoin.state.arrays import (
    COUNT_WINDOWS,
    COUNTERS,
    FIRST_MATCHES,
    FRESH,
    IDS_ALONE,
    MARK_LEFT,
    MARK_RIGHT,
    NEVER_USED,
    PAIRS,
    STAT_CANDIDATES,
    Band,
    Inputs,
    Runs,
    new_candidates,
    new_fresh,
    new_hits,
    new_runs,
)
from swjoin.state.join_kernel import CUR_GROUP, CUR_SORTED, DONE, NEED_BLOCKS, join_groups
from swjoin.state.payload_store import PayloadStore
from swjoin.state.window_state import WindowState

Layouts = tuple[RowLayout | None, RowLayout | None]

_MANY_PARTNERS = 8  # of a tuple, from which on looking for runs is worth its while
_NO_SEQUENCE = np.empty(0, np.int64)


def _mode(bounds: Bounds, kind: JoinKind, *, ids_alone: bool) -> int:
    """What kernels do with a match."""
    marks = (MARK_LEFT if kind.marks[LEFT] else 0) | (MARK_RIGHT if kind.marks[RIGHT] else 0)
    marks |= (COUNT_WINDOWS if bounds.count_windows else 0) | (IDS_ALONE if ids_alone else 0)
    return marks | (PAIRS if kind.pairs else 0) | (FIRST_MATCHES if kind.first else 0)


@dataclass(frozen=True)
class Matching:
    """Which rows are partners, beside their times. band: what keys mean; None: equal keys. where: residual predicate."""

    where: Program | None = None
    band: BandKeys | None = None


class WindowJoinOperator:
    """Joins the deliveries of one query; owns the windows of one slave's partition-groups.

    bounds: of times, or of sequence numbers for count windows; then layouts include sequence numbers, and watermarks are
    sequence numbers. layouts: payload of either stream, or None. result_tuples: most rows per step; 0: rows are only counted
    and digested. kind: inner, left, right, full, semi or anti. ids_alone: of rows, only ids are emitted. name: owner, for
    error messages.
    """

    def __init__(
        self,
        bounds: Bounds,
        sizes: WindowSizes,
        layouts: Layouts = (None, None),
        *,
        result_tuples: int,
        kind: JoinKind = JOIN_KINDS["inner"],
        matching: Matching = Matching(),
        ids_alone: bool = False,
        name: str = "slave",
    ) -> None:
        self.bounds = bounds
        self.kind = kind
        where, band = matching.where, matching.band
        stored = layouts if result_tuples > 0 or where is not None else (None, None)
        self.windows = JoinWindows(bounds, kind, WindowStore(sizes, stored, name, band))
        assert sizes.in_order or not bounds.count_windows, "count windows take tuples in order"
        assert band is None or not bounds.count_windows, "bands have windows of time"
        self._disorder = None if sizes.in_order else np.empty(0, np.int64)
        self._layouts = layouts
        self._where = where
        self._band = None if band is None else Band.of(band)
        self._results = ResultBuffer(result_tuples, self.payload, ids_alone=ids_alone, count_windows=bounds.count_windows)
        self._fresh = new_fresh(1024, 256)
        self._hits = new_hits()
        self._runs: Runs | None = None
        self._mode = _mode(bounds, kind, ids_alone=ids_alone)
        self._candidates = new_candidates(self._mode)
        self._sweeping = False  # the open delivery has been joined; its unmatched rows are being emitted
        self._open: Work | None = None

    @property
    def state(self) -> WindowState:
        return self.windows.state

    @property
    def payload(self) -> tuple[PayloadStore | None, ...]:
        return self.windows.store.payload

    def check_rows(self, delivery: Delivery, where: str) -> None:
        """RunFailed, which names `where`, unless the delivery's rows have this join's layouts."""
        for stream, batch in enumerate((delivery.left, delivery.right)):
            check_layout([batch, delivery.null_keys[stream]], self._layouts[stream], f"{where}, {STREAM_NAMES[stream]}")

    # ------------------------------------------------------------ joining

    def open(self, delivery: Delivery, *, settles: bool = False) -> Work:
        """Start a delivery: open its new partition-groups, store its payload. RunFailed when the windows are full.

        settles: the tuples of one partition-group that its supplier had not joined; they are older than this slave's
        watermarks.
        """
        assert self._open is None, "the delivery before is not done"
        self._results.clear()
        refs = self.windows.open(delivery, settles=settles)
        routes = delivery.routes
        left, right = delivery.left, delivery.right
        inputs = Inputs(
            (left.key, right.key),
            (preceding_counts(left), preceding_counts(right)) if self.bounds.count_windows else (left.ts, right.ts),
            (left.id, right.id),
            (left.arrival_us, right.arrival_us),
            refs,
            delivery.groups,
            (offsets(delivery.left_counts), offsets(delivery.right_counts)),
            (bool(routes[LEFT] & Route.STORE), bool(routes[RIGHT] & Route.STORE)),
            (bool(routes[LEFT] & Route.PROBE), bool(routes[RIGHT] & Route.PROBE)),
            (left.ts, right.ts) if self.bounds.count_windows else (_NO_SEQUENCE, _NO_SEQUENCE),
        )
        self._grow_fresh(delivery)
        count = len(delivery.groups)
        results = GroupResults(delivery.groups, np.zeros(count, np.int64), np.zeros(count, np.uint64))
        self._open = Work(delivery, inputs, results, settles=settles)
        return self._open

    def _grow_fresh(self, delivery: Delivery) -> None:
        """Make the scratch of fresh tuples large enough for every partition-group of the delivery."""
        largest = int(max(delivery.left_counts.max(initial=0), delivery.right_counts.max(initial=0)))
        minis, capacity = len(self.state.minis.group), int(self._fresh.base[0])
        if largest > capacity or minis > len(self._fresh.touched):
            self._fresh = new_fresh(2 * largest if largest > capacity else capacity, minis)

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[Pairs]:
        """Join partition-groups until `tuple_budget` tuples are done, the result buffer is full, or the delivery is done.

        now_us: production time of this step's rows. When the delivery is done, windows have expired and are tuned.
        """
        assert work is self._open, "step on a delivery that is not open"
        results, unmatched = self._results, self.windows.unmatched
        if results.has_rows:
            return Step(results.take_rest(), False, 0, results.origins)
        results.clear()
        if self._sweeping:
            return self._sweep(work, 0)
        before = work.results.counts.copy() if results.knows_origins else None
        status, tuples = self._join(work, now_us, tuple_budget)
        if before is not None:  # partition-groups are joined one after the other
            results.came_from(np.repeat(work.delivery.groups, work.results.counts - before))
        rows = results.take(LEFT if self.kind.one_sided else BOTH)
        if results.has_rows or status != DONE or int(work.cursor[CUR_GROUP]) < len(work.delivery.groups):
            return Step(rows, False, tuples, results.origins)
        if unmatched.wanted and not work.settles:
            self._sweeping = True
            self.windows.advance((work.delivery.left_time_us, work.delivery.right_time_us))
            unmatched.start(self.windows.dead_below(), work.delivery)
            return self._sweep(work, tuples) if rows is None else Step(rows, False, tuples, results.origins)
        self._close()
        return Step(rows, True, tuples, results.origins)

    def keep_origins(self) -> None:
        """Steps tell the partition-groups of their rows from now on."""
        self._results.knows_origins = True

    def _sweep(self, work: Work, tuples: int) -> Step[Pairs]:
        """Emit unmatched rows whose window has passed, as many as the result buffer holds. tuples: joined in this step."""
        rows, origins, results, unmatched = None, None, self._results, self.windows.unmatched
        while rows is None and not unmatched.done:
            stream, nulls = unmatched.step(results.output, results.capacity, results.tail_bytes)
            if nulls is None:
                if results.knows_origins:
                    results.came_from(results.output.ref[1 - stream, : int(results.output.used[0])].astype(np.int64))
                rows = results.take(stream)
                origins = results.origins
            elif results.capacity:
                rows = Pairs.alone(stream, nulls, null_keys=True)
                rows = with_times(rows) if self.bounds.count_windows else rows
                origins = np.full(len(rows), -1, np.int64)
        if not unmatched.done or results.has_rows:
            return Step(rows, False, tuples, origins)
        self._sweeping = False
        work.unmatched = unmatched.results()
        self._close()
        return Step(rows, True, tuples, origins)

    def _close(self) -> None:
        assert self._open is not None
        self._runs = self._runs_after(self._open)
        self._open = None
        self.windows.close()

    @property
    def _may_run(self) -> bool:
        """Whether runs can do what this join does."""
        return not self.bounds.count_windows and (self._where is None or has_columns(self._where))

    def _runs_after(self, work: Work) -> Runs | None:
        """How to join the next delivery: by runs of partners, if tuples of this one had many that could be theirs."""
        tuples = len(work.delivery.left) + len(work.delivery.right)
        if int(work.stats[STAT_CANDIDATES]) < _MANY_PARTNERS * tuples or not self._may_run:
            return None
        return new_runs() if self._runs is None else self._runs

    def _join(self, work: Work, now_us: int, tuple_budget: int) -> tuple[int, int]:
        """Status and tuples joined; if need be after expiry. RunFailed when the windows are full."""
        status, tuples = self._join_groups(work, now_us, tuple_budget)
        if status == NEED_BLOCKS:
            self.windows.expire(now=True)
            self.windows.store.trim()
            status, more = self._join_groups(work, now_us, tuple_budget - tuples)
            tuples += more
        if status == NEED_BLOCKS:
            raise self.windows.store.full()
        return status, tuples

    def _join_groups(self, work: Work, now_us: int, tuple_budget: int) -> tuple[int, int]:
        state, residual = self.state, None
        if self._where is not None:
            residual = Residual(self._where, *(no_rows() if store is None else store.rows() for store in self.payload))
        status, tuples = join_groups(
            work.inputs,
            state.pool,
            state.minis,
            state.directories,
            self._fresh,
            self._hits,
            self._runs,
            self._candidates,
            residual,
            self._band,
            work.cursor,
            self.bounds.reaches,
            self._disorder,
            now_us,
            state.theta_tuples,
            tuple_budget,
            self._results.output,
            work.results.counts,
            work.results.digests,
            work.stats,
            work.delay_histogram,
            work.comparisons_by_group,
        )
        return int(status), int(tuples)

    # ------------------------------------------------------------ after a crash

    def restore(self, delivery: Delivery) -> None:
        """Store tuples that had been joined before a crash, and emit nothing. Where match flags matter, the tuples are joined
        again. RunFailed when the windows are full."""
        marks = self._mode & (MARK_LEFT | MARK_RIGHT)
        nothing = TupleBatch.empty()
        route = Route.BOTH if marks else Route.STORE
        again = replace(delivery, left_time_us=BEGIN_OF_TIME_US, right_time_us=BEGIN_OF_TIME_US)
        work = self.open(replace(again, routes=(route, route), null_keys=(nothing, nothing)))
        self._candidates.mode[0] = self._mode & (MARK_LEFT | MARK_RIGHT | COUNT_WINDOWS)
        while self._join(work, 0, max(1, len(delivery.left) + len(delivery.right)))[0] != DONE:
            pass
        self._candidates.mode[0] = self._mode
        self._open = None
        self.windows.close_restored()

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """All deliveries of a distribution epoch with these watermarks have been restored."""
        self.windows.restored_until(times_us)

    def restored(self, times_us: I64) -> None:
        """Everything has been restored. times_us: int64 (groups, 2), watermarks up to which each partition-group had been
        joined."""
        self.windows.restored(times_us)

    # ------------------------------------------------------------ state movement

    def group_ids(self) -> list[GroupId]:
        return self.state.group_ids()

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> GroupExport:
        """Hide a partition-group, to be yielded in chunks. Between two deliveries only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        return GroupExport(self.windows, move_id, pending, chunk_bytes)

    def import_group(self, first: StateChunk) -> GroupImport:
        """Start to rebuild a partition-group from its first chunk. RunFailed when it is here already."""
        return GroupImport(self.windows, first, self.open)

    @property
    def may_append(self) -> bool:
        """Whether a chunk may take blocks now: blocks are reserved for a partition-group while it is being joined."""
        return self._open is None or int(self._open.cursor[CUR_SORTED]) == 0

    # ------------------------------------------------------------ measures and invariants

    def window_tuples(self) -> tuple[int, int]:
        return self.state.tuples()

    def tuples_by_group(self, partition_count: int) -> I64:
        """Window tuples of every partition-group, both streams: int64 (partition_count,)."""
        return self.state.tuples_by_group(partition_count)

    def bytes_by_unit(self, stores_left: Bool) -> I64:
        """Bytes in use of every partition-group, where each stores one stream alone: int64 (groups,). stores_left: which store
        left tuples, bool (groups,). Blocks and directories in proportion to tuples, payload likewise, of each stream apart."""
        tuples = self.tuples_by_group(len(stores_left)).astype(np.float64)
        payload = [0 if store is None else store.nbytes for store in self.payload]
        found = tuples * ((self.window_bytes() - sum(payload)) / max(1.0, tuples.sum()))
        for nbytes, stores in zip(payload, (stores_left, ~stores_left), strict=True):
            held = tuples * stores
            found += held * (nbytes / max(1.0, held.sum()))
        whole: I64 = found.astype(np.int64)
        return whole

    def window_bytes(self) -> int:
        """Bytes in use: blocks, pages of payload, mini-partition-groups, directories."""
        return self.windows.store.nbytes

    def window_memory(self) -> WindowMemory:
        return self.windows.store.memory()

    def mini_group_count(self) -> int:
        return self.state.mini_group_count

    def block_count(self) -> int:
        return self.state.block_count

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant (between deliveries and between steps)."""
        self.windows.validate()
        self._results.validate()
        assert not self._sweeping or self._open is not None, "unmatched rows of no delivery are being emitted"
        counters = self.state.minis.counters.reshape(-1, COUNTERS)[: int(self.state.minis.control[NEVER_USED])]
        assert not counters[:, FRESH : FRESH + 2].any(), "fresh tuples left uncounted"
