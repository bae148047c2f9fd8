"""Columns of operators that keep rows: which groups rows are in, their order, and the rows that come out.

What: `RankColumns`, of the first rows of each window and group; `SessionColumns`, of rows with the session that they are in;
`RepeatedColumns`, of rows with each window that they are in; `OrderKey`, `sorted_rows`.
Why: the operators handle positions, times and codes, and know nothing of Arrow's types.
Stays out: keeping rows (`operators.ranking`, `operators.sessions`, `operators.group_windows`), which columns travel
(`plan.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from swjoin.core.aggregate_functions import order_codes
from swjoin.core.arrow_views import array_of
from swjoin.core.batch import I64, U64, Bool, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.group_keys import GroupKeys
from swjoin.core.hashing import GOLDEN
from swjoin.core.join_semantics import mix64

if TYPE_CHECKING:
    import pyarrow as pa

Key = I64 | U64 | Bool
Leading = Callable[[I64, Bool, I64 | None, I64], I64]


class OrderKey(NamedTuple):
    """A column by which rows are ordered. NaN is the greatest number; text is ordered by its bytes."""

    column: str
    descending: bool = False
    nulls_first: bool = False


@dataclass(frozen=True)
class KeptColumns:
    """name: of the operator, for messages. key: grouping columns. shown: columns of the input that come out. start, end: names
    of the window's columns, of type `time`; "" for none."""

    name: str
    key: tuple[str, ...]
    key_types: tuple[tuple[str, pa.DataType], ...]
    shown: tuple[str, ...]
    start: str
    end: str
    time: pa.DataType

    def new_keys(self) -> GroupKeys:
        """An encoder of the groups, with a dictionary of its own."""
        return GroupKeys(self.key_types)

    def encoded(self, keys: GroupKeys, rows: TupleBatch) -> tuple[I64, Bool]:
        """Codes of the rows' groups, int64 (n,), and which are null, bool (n,)."""
        return keys.encode([] if rows.columns is None else [rows.columns.column(name) for name in self.key], len(rows))

    def _with_window(self, rows: TupleBatch, starts: I64, ends: I64, more: Sequence[tuple[str, pa.Array]]) -> Columns:
        """The columns that come out. starts, ends: microseconds, int64 (n,). more: names and columns after those."""
        import pyarrow as pa

        found = [(name, rows.columns.column(name)) for name in self.shown if rows.columns is not None]
        for name, times in ((self.start, starts), (self.end, ends)):
            if name:
                found.append((name, array_of(times).view(self.time)))
        found += more
        return Columns(pa.RecordBatch.from_arrays([array for _, array in found], [name for name, _ in found]))


@dataclass(frozen=True)
class RankColumns(KeptColumns):
    """most: rows of each window and group. rank: name of the column of their numbers, from 1 on. ts_after_us: time of a row
    that comes out, from the window's start."""

    order: tuple[OrderKey, ...]
    most: int
    rank: str
    size_us: int
    ts_after_us: int

    def first(
        self, keys: GroupKeys, rows: TupleBatch, starts: I64 | None = None, leading: Leading | None = None
    ) -> tuple[I64, I64]:
        """Positions of the first rows of each group, in order, int64 (m,), and their numbers. Rows that are equal in all
        columns of the order are in that of their ids. starts: int64 (n,), of the windows of the rows; None: of one window.
        leading: finds the rows of which one is the first of its group; where one is wanted, these alone are sorted."""
        codes, nulls = self.encoded(keys, rows)
        order: list[I64] = []
        for key in self.order:
            assert rows.columns is not None, f"{self.name}: rows without column {key.column}"
            order += _codes(key, rows.columns.column(key.column))
        groups: list[Key] = [codes, nulls] if starts is None else [starts, codes, nulls]
        head: list[Key] = [*groups, *order[:1]]
        tail: list[Key] = [*order[1:], rows.id]
        some = None
        if leading is not None and order and self.most == 1:
            some = leading(codes, nulls, starts, order[0])
            head, tail = [key[some] for key in head], [key[some] for key in tail]
        by = _positions_by(head, tail)
        by = by if some is None else some[by]
        new = _changes(groups, by)
        at = np.arange(len(by))
        ranks = at - np.maximum.accumulate(np.where(new, at, 0)) + 1
        kept = ranks <= self.most
        return by[kept], ranks[kept]

    def rows(self, rows: TupleBatch, ranks: I64, starts: I64) -> ResultRows:
        """Rows with their numbers. starts: int64 (n,), of their windows."""
        columns = self._with_window(rows, starts, starts + self.size_us, [(self.rank, array_of(ranks))])
        return ResultRows(window_row_ids(starts, rows.id), starts + self.ts_after_us, columns)


@dataclass(frozen=True)
class SessionColumns(KeptColumns):
    """ts_after_us: time of a row that comes out, from its session's end."""

    ts_after_us: int

    def rows(self, rows: TupleBatch, starts: I64, ends: I64) -> ResultRows:
        """Rows with their sessions, microseconds, int64 (n,)."""
        return ResultRows(rows.id, ends + self.ts_after_us, self._with_window(rows, starts, ends, []))


def _positions_by(first: Sequence[Key], then: Sequence[Key]) -> I64:
    """Positions of rows in the order of these keys, int64 (n,). Rows that are alike in the first ones, mostly few, are compared
    by the others."""
    by = np.lexsort(first[::-1])
    new = _changes(first, by)
    alike = ~new
    alike[:-1] |= ~new[1:]
    at = np.flatnonzero(alike)
    some = by[at]
    by[at] = some[np.lexsort((*(key[some] for key in reversed(then)), np.cumsum(new)[at]))]
    return by


def _changes(keys: Sequence[Key], by: I64) -> Bool:
    """Which rows, in this order, are not like the one before: bool (n,)."""
    new = np.ones(len(by), np.bool_)
    new[1:] = np.logical_or.reduce([key[by[1:]] != key[by[:-1]] for key in keys])
    return new


@dataclass(frozen=True)
class RepeatedColumns(KeptColumns):
    """Of rows that come out once for each window of their group that has them. window, row: names of the columns of the
    window's number and of the row's, both from 0 on; "" for none."""

    window: str = ""
    row: str = ""

    def rows(self, rows: TupleBatch, windows: I64, ts: I64, edges: tuple[I64, I64]) -> ResultRows:
        """Rows, whose keys are their numbers. windows: numbers of theirs. ts: times of what comes out. edges: starts and ends
        of the windows. int64 (n,), times in microseconds."""
        numbers = [(name, array_of(values)) for name, values in ((self.window, windows), (self.row, rows.key)) if name]
        return ResultRows(window_row_ids(windows, rows.id), ts, self._with_window(rows, *edges, numbers))


def window_row_ids(window: int | I64, ids: U64) -> U64:
    """Ids, uint64 (n,), of rows as rows of a window, since a row may be in several. window: its start or number, for each row
    or for all."""
    with np.errstate(over="ignore"):
        return mix64(ids + np.asarray(window, np.int64).astype(np.uint64) * GOLDEN)


def sorted_rows(rows: pa.Table, order: Sequence[OrderKey]) -> pa.Table:
    """The rows in this order; those that are equal in all of its columns stay as they are."""
    import pyarrow as pa

    whole = rows.combine_chunks()
    codes = [c for key in order for c in _codes(key, pa.concat_arrays(whole.column(key.column).chunks))]
    return whole.take(array_of(np.lexsort(codes[::-1]))) if len(whole) else whole


def _codes(key: OrderKey, column: pa.Array) -> list[I64]:
    return order_codes(column, descending=key.descending, nulls_first=key.nulls_first)
