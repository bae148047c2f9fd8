"""The as-of join of one query on one slave: each left row joins at most one right row.

What: `AsOfJoin`, a `JoinOperator`.
Why: rows are looked at once, in the order of time, when no earlier one can come; so a left row comes out once, when nothing to
come can be a better match, and a right row is kept until another supersedes it.
Stays out: which row is the match (`core.join_semantics.AsOf`), looking at rows (`state.as_of_kernel`), the rows of a stream and
their memory (`operators.rows_by_time`).

Between deliveries all rows below the front of their partition-group (`AsOf.front_us`) have been looked at. A partition-group
that comes from another slave brings its rows, which are looked at with the next delivery, some of them once more.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, cast

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, U64, Pairs, TupleBatch, check_layout
from swjoin.core.data_messages import Delivery, GroupResults, StateChunk
from swjoin.core.errors import MORE_SLAVES, WINDOW_MEMORY, RunFailed
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, GroupId
from swjoin.core.join_semantics import AsOf, JoinKind
from swjoin.core.record_layout import ROW, TS
from swjoin.expressions.vm import Program, Residual, no_rows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import LIGHT_ROWS, Step, WindowMemory, Work
from swjoin.operators.join_windows import refuse_far
from swjoin.operators.keyed_operator import ComingState, LeavingState, StatePart
from swjoin.operators.result_buffer import TAIL_BYTES
from swjoin.operators.rows_by_time import Layouts, RowsByTime
from swjoin.state.arrays import STAT_COMPARISONS, STAT_PAIRS
from swjoin.state.as_of_kernel import LOOKED_AT, Rule, count_chosen
from swjoin.state.delay_histogram import record_delays
from swjoin.state.latest_rows import NO_ROW

if TYPE_CHECKING:
    from swjoin.state.arrays import Inputs


class AsOfJoin:
    """as_of: which right row a left one joins. layouts: payload of either stream, or None. result_tuples: most rows per step;
    0: rows are only counted and digested. kind: inner or left. where: residual predicate. ids_alone: of rows, only ids come
    out. window_bytes: limit of all rows that are kept. name: owner, for messages."""

    def __init__(
        self,
        as_of: AsOf,
        layouts: Layouts,
        *,
        result_tuples: int,
        kind: JoinKind,
        window_bytes: int,
        where: Program | None = None,
        ids_alone: bool = False,
        name: str = "slave",
    ) -> None:
        self.as_of, self.kind = as_of, kind
        stored = layouts if result_tuples > 0 or where is not None else (None, None)
        bounds = as_of.candidates
        rule = Rule(as_of.looks_back, as_of.looks_ahead, as_of.due_us, bounds.lower_us, bounds.upper_us)
        self._rows = RowsByTime(rule, stored, window_bytes, chained=where is not None)
        self._layouts, self._where, self._name = layouts, where, name
        self._result_tuples, self._ids_alone = result_tuples, ids_alone
        self._limit_bytes = window_bytes
        self._times_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._open: Work | None = None
        self._taken = [0, 0]  # tuples of the open delivery that are stored, left and right
        self._groups: tuple[I64, I64] = (np.empty(0, np.int64), np.empty(0, np.int64))  # partition-groups of all of them
        self._out: Iterator[tuple[Pairs, I64]] | None = None  # of the open delivery, with partition-groups
        self._peak_bytes = 0

    def check_rows(self, delivery: Delivery, where: str) -> None:
        """RunFailed, which names `where`, unless the delivery's rows have this join's layouts."""
        for stream, batch in enumerate((delivery.left, delivery.right)):
            check_layout([batch, delivery.null_keys[stream]], self._layouts[stream], f"{where}, {STREAM_NAMES[stream]}")

    # ------------------------------------------------------------ joining

    def open(self, delivery: Delivery, *, settles: bool = False) -> Work:
        """Start a delivery. settles: the tuples of one partition-group that its supplier had not joined."""
        assert self._open is None, "the delivery before is not done"
        nothing = GroupResults(delivery.groups, np.zeros(len(delivery.groups), np.int64), _no_digests(len(delivery.groups)))
        self._open = Work(delivery, cast("Inputs", None), nothing, settles=settles)
        self._taken = [0, 0]
        counts = delivery.left_counts, delivery.right_counts
        self._groups = np.repeat(delivery.groups, counts[LEFT]), np.repeat(delivery.groups, counts[RIGHT])
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[Pairs]:
        """Store about `tuple_budget` tuples; after the last one of an epoch, the rows that come out, piece by piece. now_us:
        their production time."""
        assert work is self._open, "step on a delivery that is not open"
        if stored := self._store(work.delivery, LIGHT_ROWS * tuple_budget):
            return Step(None, False, stored)
        if work.settles or not work.delivery.final:
            self._open = None
            return Step(None, True, 0)
        if self._out is None:
            self._out = self._come_out(work, now_us)
        for pairs, origins in self._out:
            return Step(pairs, False, 0, origins)
        self._open = self._out = None
        return Step(None, True, 0)

    def _store(self, delivery: Delivery, most: int) -> int:
        """Store tuples of the delivery that are not yet, of one stream. Returns how many."""
        for stream, batch in enumerate((delivery.left, delivery.right)):
            start = self._taken[stream]
            if start < len(batch):
                self._taken[stream] = stop = min(len(batch), start + most)
                self._add(stream, batch.slice(start, stop), self._groups[stream][start:stop])
                return stop - start
        return 0

    def _add(self, stream: int, batch: TupleBatch, groups: I64) -> None:
        """RunFailed when the rows do not fit."""
        refuse_far(self.as_of.bounds, batch)
        if not self._rows.fits(stream, batch):
            self._rows.drop_what_is_gone()
            if not self._rows.fits(stream, batch):
                raise self._full()
        self._rows.add(stream, batch, groups)
        self._peak_bytes = max(self._peak_bytes, self._rows.nbytes)

    def _full(self) -> RunFailed:
        held = f"{sum(self.window_tuples())} tuples, {self._rows.nbytes} bytes"
        return RunFailed(
            (f"its rows ({held}) would exceed ", WINDOW_MEMORY, f" ({self._limit_bytes} bytes) by what has come"),
            subject=self._name,
            remedy=(MORE_SLAVES, "raise ", WINDOW_MEMORY, ", or use closer bounds"),
        )

    def _come_out(self, work: Work, now_us: int) -> Iterator[tuple[Pairs, I64]]:
        """The rows that come out by the delivery's watermarks, with their partition-groups; they are counted at once."""
        delivery, rows = work.delivery, self._rows
        lefts, rights = self._look(self._advance((delivery.left_time_us, delivery.right_time_us)), work)
        nulls = delivery.null_keys[LEFT] if self.kind.unmatched[LEFT] else TupleBatch.empty()
        counted, pairs = self._counted(lefts, rights)
        work.unmatched = _with_nulls(counted, nulls)
        work.stats[STAT_PAIRS] = pairs
        came = (delivery.left.arrival_us, delivery.right.arrival_us)
        if pairs and any(map(len, came)):
            newest = max(int(part.max()) for part in came if len(part))
            record_delays(now_us, np.full(pairs, newest, np.int64), work.stats, work.delay_histogram)
        if self._result_tuples:
            matched = rights[:, TS] != NO_ROW
            yield from self._pairs(lefts[matched], rights[matched])
            if self.kind.unmatched[LEFT]:
                yield from self._pairs(lefts[~matched], None)
            for start in range(0, len(nulls), self._result_tuples):
                some = nulls.slice(start, start + self._result_tuples)
                yield Pairs.alone(LEFT, some, null_keys=True), np.full(len(some), -1, np.int64)
        if min(self._times_us) >= END_OF_TIME_US and not rows.arriving:
            rows.clear()
        else:
            rows.drop_if_due()

    def _advance(self, times_us: tuple[int, int]) -> int:
        """The front, by the watermarks so far and these; lower ones change nothing, as earlier ones still hold."""
        self._times_us = (max(self._times_us[LEFT], times_us[LEFT]), max(self._times_us[RIGHT], times_us[RIGHT]))
        return self.as_of.front_us(self._times_us)

    def _look(self, front_us: int | I64, work: Work | None = None) -> tuple[I64, I64]:
        """Look at the rows below the front. Returns the positions of left rows that come out, and their matches as records,
        int64 (n, ROW), whose time is NO_ROW where there is none."""
        chosen = self._rows.look(front_us, self._residual())
        if work is not None:
            work.stats[STAT_COMPARISONS] += chosen.counts[LOOKED_AT]
        self._peak_bytes = max(self._peak_bytes, self._rows.nbytes)
        return chosen.left, chosen.right.reshape(-1, ROW)

    def _residual(self) -> Residual | None:
        if self._where is None:
            return None
        return Residual(self._where, *(no_rows() if store is None else store.rows() for store in self._rows.payload))

    def _counted(self, lefts: I64, rights: I64) -> tuple[GroupResults, int]:
        """Counts and digests of what comes out, by partition-group, and how many of it are pairs."""
        counts, digests = np.zeros(self._rows.groups, np.int64), _no_digests(self._rows.groups)
        left, _ = self._rows.sides
        pairs = count_chosen(lefts, rights.reshape(-1), left, self.kind.unmatched[LEFT], counts, digests)
        which = np.flatnonzero(counts)
        return GroupResults(which, counts[which], digests[which]), pairs

    def _pairs(self, lefts: I64, rights: I64 | None) -> Iterator[tuple[Pairs, I64]]:
        """Rows that come out, in pieces of bounded size, and their partition-groups. rights: None for left rows alone."""
        records, start = self._rows.left_records(lefts), 0
        origins = self._rows.sides[LEFT].group[lefts].astype(np.int64)
        while start < len(lefts):
            stop = self._end_of_piece(records, rights, start)
            left = self._rows.take(LEFT, records[start:stop])
            if rights is None:
                pairs = Pairs.alone(LEFT, left)
            else:
                right = self._rows.take(RIGHT, rights[start:stop])
                pairs = Pairs(left.key, left.ts, right.ts, left.id, right.id, left.rows, right.rows)
            if self._ids_alone:
                pairs = Pairs(left.key[:0], left.key[:0], left.key[:0], pairs.left_id, pairs.right_id, side=pairs.side)
            yield pairs, origins[start:stop]
            start = stop

    def _end_of_piece(self, lefts: I64, rights: I64 | None, start: int) -> int:
        stop = min(len(lefts), start + self._result_tuples)
        if self._ids_alone:
            return stop
        sizes = self._rows.tail_sizes(LEFT, lefts[start:stop])
        if rights is not None:
            sizes = sizes + self._rows.tail_sizes(RIGHT, rights[start:stop])
        if int(sizes.sum()) <= TAIL_BYTES:
            return stop
        return start + max(1, int(np.searchsorted(np.cumsum(sizes), TAIL_BYTES, side="right")))

    # ------------------------------------------------------------ after a crash

    def restore(self, delivery: Delivery) -> None:
        """Store tuples that had been joined before a crash. RunFailed when they do not fit."""
        for stream, (batch, counts) in enumerate(
            ((delivery.left, delivery.left_counts), (delivery.right, delivery.right_counts))
        ):
            if len(batch):
                self._add(stream, batch, np.repeat(delivery.groups, counts))

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """What came out by these watermarks is out."""
        self._look(self._advance(times_us))
        self._rows.drop_if_due()

    def restored(self, times_us: I64) -> None:
        """Everything has been restored. times_us: int64 (groups, 2), watermarks up to which each partition-group had been
        joined."""
        if len(times_us):
            self._look(np.array([self.as_of.front_us((int(left), int(right))) for left, right in times_us], np.int64))

    # ------------------------------------------------------------ state movement

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its rows, and with delivered ones that have not been stored. Between two deliveries
        only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        parts = []
        for stream in (LEFT, RIGHT):
            parts.append(StatePart(self._rows.take_group(stream, int(move_id.group)), stream))
        parts += [StatePart(batch, stream, pending=True) for stream, batch in enumerate(pending)]
        self._rows.drop_if_due()
        return LeavingState(move_id, parts, self._times_us, chunk_bytes)

    def import_group(self, first: StateChunk) -> ComingState:
        """Start to take a partition-group."""
        self._rows.expect(int(first.group))
        return _ComingRows(self, first)

    def take_chunk(self, chunk: StateChunk) -> None:
        """Rows of a partition-group that comes. RunFailed if they do not fit."""
        check_layout([chunk.tuples], self._rows.layouts[chunk.stream], f"partition-group {chunk.group}, chunk {chunk.index}")
        self._add(chunk.stream, chunk.tuples, np.full(len(chunk.tuples), int(chunk.group), np.int64))

    def has_come(self, group: int) -> None:
        """A partition-group is whole: its rows are looked at from now on."""
        self._rows.has_come(group)

    @property
    def may_append(self) -> bool:
        """Not while rows come out: making room would move them."""
        return self._out is None

    # ------------------------------------------------------------ measures and invariants

    def group_ids(self) -> list[GroupId]:
        return [GroupId(int(group)) for group in np.flatnonzero(self._rows.by_group())]

    def tuples_by_group(self, partition_count: int) -> I64:
        """Rows that are kept of every partition-group, both streams: int64 (partition_count,)."""
        counts = np.zeros(partition_count, np.int64)
        found = self._rows.by_group()
        counts[: len(found)] = found
        return counts

    def window_tuples(self) -> tuple[int, int]:
        return self._rows.kept(LEFT), self._rows.kept(RIGHT)

    def window_bytes(self) -> int:
        return self._rows.nbytes

    def window_memory(self) -> WindowMemory:
        payload = self._rows.payload_peak_bytes
        return WindowMemory(self._peak_bytes, self._peak_bytes - payload, payload, self._rows.nbytes, sum(self.window_tuples()))

    def mini_group_count(self) -> int:
        return 0

    def block_count(self) -> int:
        return 0

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant (between deliveries and between steps)."""
        self._rows.validate()


class _ComingRows(ComingState):
    """A partition-group that comes, with tuples that its supplier had not stored. first: its first chunk."""

    def __init__(self, operator: AsOfJoin, first: StateChunk) -> None:
        super().__init__(operator, set())
        self._join, self._first = operator, first
        self._layouts = operator._layouts
        self._pending: tuple[list[TupleBatch], list[TupleBatch]] = ([], [])

    def _take(self, chunk: StateChunk) -> None:
        if chunk.pending:
            self._pending[chunk.stream].append(chunk.tuples)
        else:
            self._join.take_chunk(chunk)

    def waiting_tuples(self, stream: int) -> int:
        return sum(map(len, self._pending[stream]))

    def settle(self, epoch: EpochIndex) -> Work | None:
        """The work on the pending tuples, or None. Between two deliveries only."""
        first, pending = self._first, self._pending
        self._join.has_come(int(first.group))
        if not any(pending):
            return None
        left, right = (TupleBatch.concat(p) if p else TupleBatch.empty(self._layouts[s]) for s, p in enumerate(pending))
        self._pending = ([], [])
        group, *counts = (np.array([value], np.int64) for value in (first.group, len(left), len(right)))
        times = (first.query, first.consumer, epoch, *first.times_us)
        return self._join.open(Delivery(*times, group, counts[LEFT], counts[RIGHT], left, right), settles=True)


def _no_digests(groups: int) -> U64:
    return np.zeros(groups, np.uint64)


def _with_nulls(found: GroupResults, nulls: TupleBatch) -> GroupResults:
    """Rows with null keys are in no partition-group; group 0 counts them."""
    if not len(nulls):
        return found
    rows = Pairs.alone(LEFT, nulls)
    digest = np.array([digest_pairs(rows.left_id, rows.right_id)], np.uint64)
    none = np.zeros(1, np.int64)
    groups, counts = np.concatenate([none, found.groups]), np.concatenate([none + len(nulls), found.counts])
    return GroupResults(groups, counts, np.concatenate([digest, found.digests]))
