"""The operator of an aggregate over windows of time: counts, sums and extremes by group.

What: `Aggregation`, an operator as `JoinOperator` describes it.
Why: rows are accumulated in panes as they come, so a window costs a few numbers per group and pane; its rows come out once,
when the watermark has passed its end (StreamCloud, specs section 1).
Stays out: types of columns (`core.aggregate_columns`), edges of windows (`core.time_windows`), accumulators
(`state.group_table`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, U8, Bool, PayloadRows, ResultRows, TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.deciding_rows import DecidingRows, Result, Words, joined
from swjoin.operators.join_operator import MoveId
from swjoin.operators.keyed_operator import LeavingState, Limits, StatePart, WindowOperator
from swjoin.state.group_table import GroupTable
from swjoin.state.pre_aggregation import kinds_of

_ROWS = -1  # the call that counts all rows of a group, after those of the aggregate
_MANY_PANES = 4  # of a window, from which on its groups are kept from one window to the next
_SPARSE = 1_000  # groups without rows beside as many again as have some


class Aggregation(WindowOperator[GroupTable]):
    """keys: the encoder of this instance. name: owner, for messages."""

    def __init__(self, windows: TimeWindows, columns: AggregateColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(windows, limits, name)
        self._columns, self._keys = columns, keys
        self._own = columns.accumulating
        self._kinds = kinds_of(columns)
        # places of calls in `_kinds`
        self._counting = {i: _ROWS for i, call in enumerate(columns.calls) if call.column is None}
        self._counting |= {columns.calls.index(call): place for place, call in enumerate(self._own)}
        self._deciding = DecidingRows(windows, columns, keys)
        self._running: _Running | None = None
        self._pane_bytes = 0
        self._usual = 0  # groups of the pane that was forgotten last

    @property
    def _slides(self) -> bool:
        """Whether the groups of a window are kept for the next one: extremes and rows cannot be taken away."""
        extremes = {Accumulation.LEAST, Accumulation.GREATEST} & set(self._kinds)
        return self._windows.size_us >= _MANY_PANES * self._windows.pane_us and not extremes and not self._deciding

    # ------------------------------------------------------------ panes

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        rows, groups, panes = self._in_open_panes(rows, groups, where)
        if not len(rows):
            return
        codes, nulls = self._columns.encoded(self._keys, rows)
        accumulators = self._columns.accumulated(rows) if self._columns.pre_aggregated else None
        arguments = [] if accumulators is not None else [self._columns.argument(call, rows) for call in self._own]
        buckets = self._windows.buckets(panes)
        least = int(buckets.min())
        whole = least == int(buckets.max())
        order = np.empty(0, np.int64) if whole else np.argsort(buckets, kind="stable")
        starts = [0] if whole else [0, *(np.flatnonzero(np.diff(buckets[order])) + 1).tolist()]
        for start, stop in zip(starts, [*starts[1:], len(rows)], strict=True):
            part: slice | I64 = slice(None) if whole else order[start:stop]
            pane = least if whole else int(buckets[order[start]])
            table = self._panes.get(pane)
            if table is None:
                if len(self._panes) < _MANY_PANES:  # when the second one opens, none was forgotten
                    most = max([self._usual, *map(len, self._panes.values())])
                else:
                    most = min(self._usual, stop - start)
                table = self._panes[pane] = self._new_table(most)
                self._pane_bytes += table.nbytes
            before = table.nbytes
            slots = table.slots_of(codes[part], nulls[part], groups[part], *((panes[part],) if table.in_panes else ()))
            if accumulators is not None:
                table.add_taken(slots, accumulators[part])
            else:
                table.add(_ROWS, slots, None, None)
            for call, (values, valid, unsigned) in enumerate(arguments):
                mine = None if valid is None else valid[part]
                table.add(call, slots, mine, None if values is None else values[part], unsigned=unsigned)
            if self._deciding:
                self._deciding.add(pane, rows if isinstance(part, slice) else rows.take(part), groups[part], table)
            self._pane_bytes += table.nbytes - before
        self._check_memory()

    def _new_table(self, size: int = 0) -> GroupTable:
        """Of the groups of a bucket."""
        return GroupTable(self._kinds, size, in_panes=self._windows.in_buckets)

    def _open_part(self, start_us: int, pane: GroupTable) -> GroupTable | None:
        is_open = pane.panes >= self._next_us
        if is_open.all():
            return pane
        if not is_open.any():
            return None
        self._deciding.drop_before(start_us, self._next_us)
        rest = pane.only(np.flatnonzero(is_open))
        self._usual = len(pane)
        self._pane_bytes += rest.nbytes - pane.nbytes
        return rest

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of the windows that end by this time, oldest first, in pieces; of each row its partition-group."""
        held: list[_Piece] = []
        count = 0
        for start, end in self._closing(watermark_us):
            for piece in self._pieces_between(start, end):
                if held and count + len(piece.codes) > self._most_rows:
                    yield self._rows_of(held)
                    held, count = [], 0
                held.append(piece)
                count += len(piece.codes)
        self._pass(watermark_us)
        if held:
            yield self._rows_of(held)

    def _left(self, start_us: int, pane: GroupTable) -> None:
        self._usual = len(pane)
        self._pane_bytes -= pane.nbytes
        self._deciding.drop(start_us)
        if self._running is not None:
            self._running.take_away(start_us, pane)

    def _table_of(self, start_us: int) -> GroupTable:
        """The groups of a window."""
        end_us = start_us + self._windows.size_us
        if self._slides:
            if self._running is None:
                self._running = _Running(GroupTable(self._kinds))
            return self._running.until(end_us, self._panes)
        if self._windows.pane_us == self._windows.size_us and start_us in self._panes:
            return self._panes[start_us]
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
        return max(1, self._limits.result_bytes // (16 * (3 + len(self._columns.key) + len(self._columns.calls))))

    def _pieces_between(self, start_us: int, end_us: int) -> Iterator[_Piece]:
        """Groups of a window, or of all windows of buckets between these times."""
        if not self._windows.in_buckets:
            yield from self._pieces(start_us, end_us, self._table_of(start_us))
            return
        for bucket in sorted(self._panes):
            if bucket < end_us:
                yield from self._pieces(bucket, end_us, self._panes[bucket])

    def _pieces(self, start_us: int, end_us: int, table: GroupTable) -> Iterator[_Piece]:
        """start_us: of the window, or of the bucket."""
        found, most = table.slots_with(_ROWS), self._most_rows
        if table.in_panes:
            found = found[table.panes[found] < end_us]
            found = found[np.argsort(table.panes[found], kind="stable")]
        length_us = self._windows.bucket_us if table.in_panes else self._windows.size_us
        results = self._deciding.results(start_us, start_us + length_us, table)
        results |= {i: partial(Words.of, table, place) for i, place in self._counting.items()}
        for at in range(0, len(found), most):
            slots = found[at : at + most]
            of_calls = [results[i](slots) for i in range(len(self._columns.calls))]
            starts = table.panes[slots] if table.in_panes else np.full(len(slots), start_us)
            yield _Piece(starts, table.keys[slots], table.nulls[slots], table.groups[slots], of_calls)

    def _rows_of(self, pieces: Sequence[_Piece]) -> tuple[ResultRows, I64]:
        """Rows of groups, and their partition-groups."""
        whole = _Piece.together(pieces)
        totals = [result.totals if isinstance(result, Words) else result for result in whole.results]
        return self._columns.rows(self._keys, whole.start_us, whole.codes, whole.nulls, totals), whole.groups

    # ------------------------------------------------------------ moves

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its part of every pane. Between two deliveries only."""
        self._leaves(pending)
        parts = []
        self._running = None
        for pane, table in list(self._panes.items()):
            part = leaving_groups(table, int(move_id.group), pane)
            if not len(part):
                continue
            parts.append(part)
            self._panes[pane] = table.without(move_id.group)
            if not len(self._panes[pane]):
                del self._panes[pane]
        parts += self._totals_leave(int(move_id.group))
        self._pane_bytes = sum(table.nbytes for table in self._panes.values())
        some = [StatePart(TupleBatch.concat(part)) for part in (parts, self._deciding.take_out(int(move_id.group))) if part]
        return LeavingState(move_id, some, (self._next_us, 0), chunk_bytes)

    def _totals_leave(self, group: int) -> list[TupleBatch]:
        """What a partition-group has beside its panes, of a time before them."""
        return []

    def _table_for(self, bucket: int) -> GroupTable:
        """Where groups of a partition-group that comes belong."""
        return self._panes.setdefault(bucket, self._new_table())

    def take_chunk(self, chunk: StateChunk) -> None:
        """Groups of a partition-group that comes. RunFailed for another layout, or if other windows are open here."""
        where = f"{self._name}: partition-group {chunk.group}"
        self._check_open(chunk)
        if not len(chunk.tuples):
            return
        self._running = None
        if chunk.tuples.rows is None:
            return self._take_rows(chunk)
        rows, words = chunk.tuples.rows, GroupTable(self._kinds).row_words
        if rows.fixed.shape[1] != 8 * words:
            raise RunFailed(f"{where}: groups of another layout")
        found: I64 = np.ascontiguousarray(rows.fixed).view(np.int64).reshape(len(chunk.tuples), words)
        buckets = self._windows.buckets(chunk.tuples.ts)
        for pane in np.unique(buckets).tolist():
            index = np.flatnonzero(buckets == pane)
            table = self._table_for(pane)
            panes = (chunk.tuples.ts[index],) if table.in_panes else ()
            table.put(chunk.tuples.key[index], int(chunk.group), found[index], *panes)
        self._pane_bytes = sum(table.nbytes for table in self._panes.values())
        self._check_memory()

    def _take_rows(self, chunk: StateChunk) -> None:
        """Rows of a partition-group that decide calls; its groups have come before."""
        panes = self._windows.buckets(self._windows.panes(chunk.tuples.ts))
        groups = np.full(len(chunk.tuples), int(chunk.group), np.int64)
        for pane in np.unique(panes).tolist():
            index = np.flatnonzero(panes == pane)
            self._deciding.add(pane, chunk.tuples.take(index), groups[index], self._panes[pane])
        self._check_memory()

    def window_bytes(self) -> int:
        running = 0 if self._running is None else self._running.table.nbytes
        return running + self._deciding.nbytes + self._pane_bytes

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        held = sum(table.nbytes for table in self._panes.values())
        assert self._pane_bytes == held, f"{self._name}: panes hold {held} bytes, {self._pane_bytes} are counted"
        for pane, table in self._panes.items():
            panes = table.panes if table.in_panes else np.full(len(table), pane)
            pairs = zip(table.keys.tolist(), table.nulls.tolist(), panes.tolist(), strict=True)
            assert len(set(pairs)) == len(table) > 0, f"{self._name}: a group occurs twice in a pane, or a pane is empty"
            where = f"{self._name}: a pane of {panes.min()} us"
            assert panes.min() >= self._next_us, f"{where}, windows are open from {self._next_us} us on"
            assert (self._windows.buckets(panes) == pane).all(), f"{where} in the bucket of {pane} us"
        self._deciding.validate(self._panes)


def leaving_groups(table: GroupTable, group: int, pane: int) -> TupleBatch:
    """The groups of a partition-group, as they leave. pane: start of the table's pane."""
    slots = np.flatnonzero(table.groups == group)
    rows = table.taken(slots)
    fixed: U8 = np.ascontiguousarray(rows).view(np.uint8).reshape(len(slots), 8 * table.row_words)
    times = table.panes[slots] if table.in_panes else np.full(len(slots), pane, np.int64)
    no_ids, no_arrival = np.zeros(len(slots), np.uint64), np.zeros(len(slots), np.int64)
    return TupleBatch(table.keys[slots], times, no_ids, no_arrival, PayloadRows(fixed))


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
    partition-group. results: by call."""

    start_us: I64
    codes: I64
    nulls: Bool
    groups: I64
    results: list[Result]

    @staticmethod
    def together(pieces: Sequence[_Piece]) -> _Piece:
        if len(pieces) == 1:
            return pieces[0]
        return _Piece(
            np.concatenate([piece.start_us for piece in pieces]),
            np.concatenate([piece.codes for piece in pieces]),
            np.concatenate([piece.nulls for piece in pieces]),
            np.concatenate([piece.groups for piece in pieces]),
            [joined(parts) for parts in zip(*(piece.results for piece in pieces), strict=True)],
        )
