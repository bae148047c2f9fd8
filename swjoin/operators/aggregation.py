"""The operator of an aggregate over windows of time: counts, sums and extremes by group.

What: `Aggregation`, an operator as `JoinOperator` describes it.
Why: rows are accumulated in panes as they come, so a window costs a few numbers per group and pane; its rows come out once,
when the watermark has passed its end (StreamCloud, specs section 1).
Stays out: types of columns (`core.aggregate_columns`), edges of windows (`core.time_windows`), accumulators
(`state.group_table`).
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from swjoin.core.aggregate_columns import F64, AggregateColumns, Totals
from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, U8, U64, Bool, PayloadRows, ResultRows, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, GroupId
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import LIGHT_ROWS, Step, WindowMemory, Work, check_columns
from swjoin.state.delay_histogram import record_delays
from swjoin.state.group_table import GroupTable

if TYPE_CHECKING:
    from swjoin.state.arrays import Inputs

_NO_GROUPS: I64 = np.empty(0, np.int64)
_ROWS = -1  # the call that counts all rows of a group, after those of the aggregate
_MANY_PANES = 4  # of a window, from which on its groups are kept from one window to the next
_SPARSE = 1_000  # groups without rows beside as many again as have some


class Limits(NamedTuple):
    """result_bytes: most bytes of rows per step, about. window_bytes: most of the state."""

    result_bytes: int
    window_bytes: int


class Aggregation:
    """keys: the encoder of this instance. name: owner, for messages."""

    def __init__(self, windows: TimeWindows, columns: AggregateColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        self._windows, self._columns, self._keys, self._limits, self._name = windows, columns, keys, limits, name
        self._kinds = [*(call.accumulation for call in columns.calls if call.column is not None), Accumulation.COUNT]
        self._running: _Running | None = None
        self._panes = _Panes()
        self._next_us = BEGIN_OF_TIME_US  # start of the first window that is not closed
        self._open: Work | None = None
        self._at = 0  # rows of the open delivery that are accumulated
        self._groups: I64 = np.empty(0, np.int64)  # partition-groups of its rows
        self._out: Iterator[tuple[ResultRows, I64]] | None = None  # rows of the windows that close, and partition-groups
        self._came_us: int | None = None  # arrival of the newest row of the open delivery
        self._peak_bytes = 0

    @property
    def _calls(self) -> list[int]:
        """Numbers of the calls in `_kinds`."""
        numbers = itertools.count()
        return [_ROWS if call.column is None else next(numbers) for call in self._columns.calls]

    @property
    def _slides(self) -> bool:
        """Whether the groups of a window are kept for the next one: extremes cannot be taken away."""
        extremes = {Accumulation.LEAST, Accumulation.GREATEST} & set(self._kinds)
        return self._windows.size_us >= _MANY_PANES * self._windows.pane_us and not extremes

    def check_rows(self, delivery: Delivery, where: str) -> None:
        check_columns(delivery, where)

    def open(self, delivery: Delivery) -> Work:
        """Start a delivery: rows of the left side."""
        assert self._open is None, "the delivery before is not done"
        nothing: U64 = np.zeros(len(delivery.groups), np.uint64)
        results = GroupResults(delivery.groups, np.zeros(len(delivery.groups), np.int64), nothing)
        self._open, self._at = Work(delivery, cast("Inputs", None), results), 0
        self._groups = np.repeat(delivery.groups, delivery.left_counts)
        self._came_us = int(delivery.left.arrival_us.max()) if len(delivery.left) else None
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[ResultRows]:
        """Accumulate some rows; after the last one of an epoch, the next rows of windows that close, in pieces of bounded
        size. now_us: their production time."""
        assert work is self._open, "step on a delivery that is not open"
        delivery, start = work.delivery, self._at
        if start < len(delivery.left):
            self._at = stop = min(len(delivery.left), start + LIGHT_ROWS * tuple_budget)
            self._accumulate(delivery.left.slice(start, stop), self._groups[start:stop], f"epoch {delivery.epoch}")
            return Step(None, self._ends_here(delivery), stop - start)
        if not delivery.final:
            self._open = None
            return Step(None, True, 0)
        if self._out is None:
            self._out = self._closed(delivery.left_time_us)
        for rows, groups in self._out:
            self._count(work, rows, groups)
            if self._came_us is not None:
                record_delays(now_us, np.full(len(rows), self._came_us, np.int64), work.stats, work.delay_histogram)
            return Step(rows, False, 0)
        self._open = self._out = None
        return Step(None, True, 0)

    def _ends_here(self, delivery: Delivery) -> bool:
        """Whether the delivery is done: nothing closes before the end of an epoch."""
        if self._at < len(delivery.left) or delivery.final:
            return False
        self._open = None
        return True

    def _count(self, work: Work, rows: ResultRows, groups: I64) -> None:
        """Rows that came out, by partition-group."""
        before = work.unmatched or GroupResults(_NO_GROUPS, _NO_GROUPS, _NO_GROUPS.astype(np.uint64))
        size = 1 + max(int(groups.max()), int(before.groups.max(initial=0)))
        counts, digests = np.bincount(groups, minlength=size), np.zeros(size, np.uint64)
        counts[before.groups] += before.counts
        digests[before.groups] = before.digests
        np.add.at(digests, groups, rows.id)
        which = np.flatnonzero(counts)
        work.unmatched = GroupResults(which, counts[which], digests[which])

    # ------------------------------------------------------------ panes

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        """groups: partition-groups of the rows. where: of rows that no closed window may have; "": those are left out."""
        if (inside := self._windows.inside(rows.ts)) is not None and not inside.all():
            index = np.flatnonzero(inside)
            rows, groups = rows.take(index), groups[index]
        panes = self._windows.panes(rows.ts)
        if len(rows) and int(panes.min()) < self._next_us:
            if where:
                late_us = int(rows.ts.min())
                raise RunFailed(f"{self._name}, {where}: a row of time {late_us} us came after its windows had closed")
            index = np.flatnonzero(panes >= self._next_us)
            rows, groups, panes = rows.take(index), groups[index], panes[index]
        if not len(rows):
            return
        codes, nulls = self._columns.encoded(self._keys, rows)
        arguments = [self._columns.argument(call, rows) for call in self._columns.calls if call.column is not None]
        least = int(panes.min())
        whole = least == int(panes.max())
        order = np.empty(0, np.int64) if whole else np.argsort(panes, kind="stable")
        starts = [0] if whole else [0, *(np.flatnonzero(np.diff(panes[order])) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
            part: slice | I64 = slice(None) if whole else order[start:stop]
            pane = least if whole else int(panes[order[start]])
            table = self._panes.get(pane)
            if table is None:
                most = self._panes.usual if len(self._panes) < _MANY_PANES else min(self._panes.usual, stop - start)
                table = self._panes[pane] = GroupTable(self._kinds, most)
                self._panes.nbytes += table.nbytes
            before = table.nbytes
            slots = table.slots_of(codes[part], nulls[part], groups[part])
            table.add(_ROWS, slots, None, None)
            for call, (values, valid, unsigned) in enumerate(arguments):
                mine = None if valid is None else valid[part]
                table.add(call, slots, mine, None if values is None else values[part], unsigned=unsigned)
            self._panes.nbytes += table.nbytes - before
        self._check_memory()

    def _check_memory(self) -> None:
        held = self.window_bytes()
        self._peak_bytes = max(self._peak_bytes, held)
        if held > self._limits.window_bytes:
            text = f"{self._name}: windows hold {held} bytes, above the limit of {self._limits.window_bytes}"
            raise RunFailed(f"{text} (module.window_bytes)")

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of the windows that end by this time, oldest first, in pieces; of each row its partition-group."""
        windows, held = self._windows, list[_Piece]()
        while self._panes:
            start = max(windows.first_with(min(self._panes)), self._next_us)
            if start + windows.size_us > watermark_us:
                break
            for piece in self._pieces(start, self._table_of(start)):
                if held and sum(len(other.codes) for other in held) + len(piece.codes) > self._most_rows:
                    yield self._rows_of(held)
                    held = []
                held.append(piece)
            self._next_us = start + windows.slide_us
            self._forget()
        self._pass(watermark_us)
        if held:
            yield self._rows_of(held)

    def _pass(self, watermark_us: int) -> None:
        """Windows that end by this time are closed."""
        self._next_us = min(max(self._next_us, self._windows.first_after(watermark_us)), END_OF_TIME_US)
        self._forget()

    def _forget(self) -> None:
        for pane in [pane for pane in self._panes if pane < self._next_us]:
            table = self._panes.pop(pane)
            self._panes.usual = len(table)
            self._panes.nbytes -= table.nbytes
            if self._running is not None:
                self._running.take_away(pane, table)

    def _table_of(self, start_us: int) -> GroupTable:
        """The groups of a window."""
        end_us = start_us + self._windows.size_us
        if self._slides:
            if self._running is None:
                self._running = _Running(GroupTable(self._kinds))
            return self._running.until(end_us, self._panes)
        parts = [self._panes[pane] for pane in sorted(self._panes) if start_us <= pane < end_us]
        if len(parts) == 1:
            return parts[0]
        whole = GroupTable(self._kinds)
        for part in parts:
            whole.combine(part)
        return whole

    @property
    def _most_rows(self) -> int:
        """Of a step."""
        return max(1, self._limits.result_bytes // (16 * (3 + len(self._columns.key) + len(self._calls))))

    def _pieces(self, start_us: int, table: GroupTable) -> Iterator[_Piece]:
        found, most = table.slots_with(_ROWS), self._most_rows
        for at in range(0, len(found), most):
            slots = found[at : at + most]
            words = [[table.words(call, word, slots) for word in range(self._kinds[call].words)] for call in self._calls]
            doubles = [call for call in self._calls if self._kinds[call] == Accumulation.DOUBLES]
            sums = {call: table.sums(call, slots) for call in doubles}
            starts = np.full(len(slots), start_us)
            yield _Piece(starts, table.keys[slots], table.nulls[slots], table.groups[slots], words, sums)

    def _rows_of(self, pieces: Sequence[_Piece]) -> tuple[ResultRows, I64]:
        """Rows of groups, and their partition-groups."""
        whole = _Piece.together(pieces)
        totals = [
            Totals(words[0], words.__getitem__, partial(whole.sums.__getitem__, call))
            for call, words in zip(self._calls, whole.words, strict=True)
        ]
        return self._columns.rows(self._keys, whole.start_us, whole.codes, whole.nulls, totals), whole.groups

    # ------------------------------------------------------------ restore, moves

    def restore(self, delivery: Delivery) -> None:
        """Accumulate rows that were accumulated before a crash; those of closed windows are left out."""
        self._accumulate(delivery.left, np.repeat(delivery.groups, delivery.left_counts))

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """Nothing: `restored` has the last watermark."""

    def restored(self, times_us: I64) -> None:
        """The windows that had been closed by these watermarks, which are the same for all partition-groups, are out."""
        self._pass(int(times_us[:, 0].min()))

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingPanes:
        """A partition-group leaves with its part of every pane. Between two deliveries only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        assert not any(map(len, pending)), "delivered rows of a partition-group that leaves"
        parts = []
        self._running = None
        for pane, table in list(self._panes.items()):
            slots = np.flatnonzero(table.groups == move_id.group)
            if not len(slots):
                continue
            rows = table.taken(slots)
            fixed: U8 = np.ascontiguousarray(rows).view(np.uint8).reshape(len(slots), -1)
            ids = np.zeros(len(slots), np.uint64)
            times = np.full(len(slots), pane, np.int64)
            parts.append(TupleBatch(table.keys[slots], times, ids, np.zeros(len(slots), np.int64), PayloadRows(fixed)))
            self._panes[pane] = table.without(move_id.group)
            if not len(self._panes[pane]):
                del self._panes[pane]
        self._panes.nbytes = sum(table.nbytes for table in self._panes.values())
        tuples = TupleBatch.concat(parts) if parts else TupleBatch.empty()
        return LeavingPanes(move_id, tuples, self._next_us, chunk_bytes)

    def import_group(self, first: StateChunk) -> ComingPanes:
        return ComingPanes(self)

    def take_chunk(self, chunk: StateChunk) -> None:
        """Groups of a partition-group that comes. RunFailed for another layout, or if other windows are open here."""
        where = f"{self._name}: partition-group {chunk.group}"
        if chunk.times_us[0] != self._next_us:
            raise RunFailed(f"{where}: its windows are open from {chunk.times_us[0]} us on, those here from {self._next_us} us")
        if not len(chunk.tuples):
            return
        self._running = None
        rows, words = chunk.tuples.rows, GroupTable(self._kinds).row_words
        if rows is None or rows.fixed.shape[1] != 8 * words:
            raise RunFailed(f"{where}: groups of another layout")
        found: I64 = np.ascontiguousarray(rows.fixed).view(np.int64).reshape(len(chunk.tuples), words)
        for pane in np.unique(chunk.tuples.ts).tolist():
            index = np.flatnonzero(chunk.tuples.ts == pane)
            table = self._panes.setdefault(pane, GroupTable(self._kinds))
            table.put(chunk.tuples.key[index], int(chunk.group), found[index])
        self._panes.nbytes = sum(table.nbytes for table in self._panes.values())
        self._check_memory()

    @property
    def may_append(self) -> bool:
        return self._open is None

    def group_ids(self) -> list[GroupId]:
        found = [np.unique(table.groups) for table in self._panes.values()]
        return [GroupId(int(group)) for group in np.unique(np.concatenate(found))] if found else []

    def tuples_by_group(self, partition_count: int) -> I64:
        counts = np.zeros(partition_count, np.int64)
        for table in self._panes.values():
            counts += np.bincount(table.groups, minlength=partition_count)
        return counts

    def window_tuples(self) -> tuple[int, int]:
        """Groups in all panes."""
        return sum(map(len, self._panes.values())), 0

    def window_bytes(self) -> int:
        running = 0 if self._running is None else self._running.table.nbytes
        return running + self._panes.nbytes

    def window_memory(self) -> WindowMemory:
        return WindowMemory(self._peak_bytes, self._peak_bytes, 0, self.window_bytes(), self.window_tuples()[0])

    def mini_group_count(self) -> int:
        return 0

    def block_count(self) -> int:
        return 0

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        held = sum(table.nbytes for table in self._panes.values())
        assert self._panes.nbytes == held, f"{self._name}: panes hold {held} bytes, {self._panes.nbytes} are counted"
        for pane, table in self._panes.items():
            assert pane >= self._next_us, f"{self._name}: a pane of {pane} us, windows are open from {self._next_us} us on"
            pairs = zip(table.keys.tolist(), table.nulls.tolist(), strict=True)
            assert len(set(pairs)) == len(table) > 0, f"{self._name}: a group occurs twice in a pane, or a pane is empty"


class _Panes(dict[int, GroupTable]):
    """Tables by start of their pane. nbytes: of all. usual: groups of the one that was forgotten last."""

    nbytes = usual = 0


class _Running:
    """The groups of windows that slide: panes are added as windows reach them, and taken away as windows leave them. table:
    groups of panes that have been taken away have no rows."""

    def __init__(self, table: GroupTable) -> None:
        self.table = table
        self._until_us = BEGIN_OF_TIME_US

    def until(self, end_us: int, panes: Mapping[int, GroupTable]) -> GroupTable:
        """The groups of all panes that there are before this time."""
        for pane in [pane for pane in panes if self._until_us <= pane < end_us]:
            self.table.combine(panes[pane])
        self._until_us = end_us
        return self.table

    def take_away(self, pane: int, table: GroupTable) -> None:
        if pane >= self._until_us:
            return
        self.table.combine(table, sign=-1)
        living = self.table.slots_with(_ROWS)
        if len(self.table) > _SPARSE + 2 * len(living):
            self.table = self.table.only(living)


class _Piece(NamedTuple):
    """Groups of windows. start_us, codes, nulls, groups: (n,), of each one's window, its code, whether that is null, its
    partition-group. words: by call, as of `GroupTable.words`. sums: of doubles."""

    start_us: I64
    codes: I64
    nulls: Bool
    groups: I64
    words: list[list[I64]]
    sums: dict[int, F64]

    @staticmethod
    def together(pieces: Sequence[_Piece]) -> _Piece:
        if len(pieces) == 1:
            return pieces[0]
        words = [[np.concatenate(w) for w in zip(*call, strict=True)] for call in zip(*(p.words for p in pieces), strict=True)]
        sums = {call: np.concatenate([piece.sums[call] for piece in pieces]) for call in pieces[0].sums}
        return _Piece(
            np.concatenate([piece.start_us for piece in pieces]),
            np.concatenate([piece.codes for piece in pieces]),
            np.concatenate([piece.nulls for piece in pieces]),
            np.concatenate([piece.groups for piece in pieces]),
            words,
            sums,
        )


class LeavingPanes:
    """A partition-group's groups, as they leave. tuples: key and pane of each, with its accumulators as row."""

    def __init__(self, move_id: MoveId, tuples: TupleBatch, next_us: int, chunk_bytes: int) -> None:
        self._move_id, self._all, self._next_us = move_id, tuples, next_us
        self._most = max(1, chunk_bytes * len(tuples) // max(1, tuples.nbytes))
        self._index = 0
        self.tuples = self.nbytes = 0
        self.done = False

    def waiting_tuples(self, stream: int) -> int:
        return 0

    def next_chunk(self) -> StateChunk:
        """The next chunk; `done` once it is the last one."""
        start = self._index * self._most
        stop = min(len(self._all), start + self._most)
        self.done = stop == len(self._all)
        part = self._all.slice(start, stop)
        m, some = self._move_id, min(1, len(part))
        head = (m.query, m.move, m.group, m.supplier, m.consumer, self._index, self.done, (self._next_us, 0), 0, False)
        self._index += 1
        self.tuples += len(part)
        self.nbytes += part.nbytes
        return StateChunk(*head, np.zeros(some, np.int64), np.full(some, len(part), np.int64), part)


class ComingPanes:
    """The other end of a `LeavingPanes`."""

    def __init__(self, operator: Aggregation) -> None:
        self._operator, self._next = operator, 0
        self.tuples = self.nbytes = 0
        self.complete = False

    def add(self, chunk: StateChunk) -> None:
        """Install the next chunk. RunFailed when it does not fit."""
        if chunk.index != self._next or self.complete:
            raise RunFailed(f"partition-group {chunk.group}: chunk {chunk.index} came where {self._next} was expected")
        self._operator.take_chunk(chunk)
        self._next += 1
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self.complete = chunk.last

    def waiting_tuples(self, stream: int) -> int:
        return 0

    def settle(self, epoch: EpochIndex) -> Work | None:
        return None
