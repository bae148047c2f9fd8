"""Columns of an aggregate: what it reads of its input's rows, and the rows that it gives.

What: `AggregateColumns`: `encoded`, `argument`, `rows`; `Call`, `Totals`.
Why: the operator counts in integers and doubles, and knows nothing of Arrow's types.
Stays out: accumulating (`state.group_table`), windows (`core.time_windows`), which columns travel (`plan.columns`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.aggregate_functions import Accumulation, from_ordered, ordered
from swjoin.core.arrow_views import booleans_of, decoded
from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.row_digests import row_hashes

if TYPE_CHECKING:
    import pyarrow as pa

F64 = NDArray[np.float64]
_EXACT = 1 << 53


class Call(NamedTuple):
    """A column that an aggregate computes. column: of its input; None for count(*). type: of the results."""

    name: str
    function: str
    column: str | None
    accumulation: Accumulation
    type: pa.DataType


class Argument(NamedTuple):
    """values: (n,) integers, ordered codes or doubles; None where rows are only counted. valid: None for all rows."""

    values: I64 | F64 | None
    valid: Bool | None
    unsigned: bool = False


class Totals(NamedTuple):
    """Of a call, of n groups. counts: int64 (n,). word: `GroupTable.words` of these groups. sums: `GroupTable.sums`."""

    counts: I64
    word: Callable[[int], I64]
    sums: Callable[[], F64]


@dataclass(frozen=True)
class AggregateColumns:
    """name: of the aggregate, for messages. key: grouping columns. start, end: names of the window's columns, of type `time`.
    ts_after_us: time of a row of the answer, from the window's start."""

    name: str
    key: tuple[str, ...]
    key_types: tuple[tuple[str, pa.DataType], ...]
    start: str
    end: str
    time: pa.DataType
    size_us: int
    ts_after_us: int
    calls: tuple[Call, ...]

    def new_keys(self) -> GroupKeys:
        """An encoder of the groups, with a dictionary of its own."""
        return GroupKeys(self.key_types)

    def encoded(self, keys: GroupKeys, rows: TupleBatch) -> tuple[I64, Bool]:
        """Codes of the rows' groups, int64 (n,), and which are null, bool (n,)."""
        return keys.encode([] if rows.columns is None else [rows.columns.column(name) for name in self.key], len(rows))

    def argument(self, call: Call, rows: TupleBatch) -> Argument:
        """What a call accumulates of these rows."""
        import pyarrow as pa

        if call.column is None:
            return Argument(None, None)
        assert rows.columns is not None, f"{self.name}: rows without columns"
        column = decoded(rows.columns.column(call.column))
        valid = booleans_of(column.is_valid()) if column.null_count else None
        if call.accumulation == Accumulation.COUNT:
            return Argument(None, valid)
        if call.accumulation == Accumulation.DOUBLES:
            doubles: F64 = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False)
            return Argument(doubles, valid)
        if call.accumulation == Accumulation.INTEGERS:
            filled = column.fill_null(0) if column.null_count else column
            unsigned = pa.types.is_uint64(column.type)
            values = filled.to_numpy(zero_copy_only=False)
            return Argument(values.view(np.int64) if unsigned else values.astype(np.int64, copy=False), valid, unsigned)
        return Argument(ordered(column), valid)

    def rows(self, keys: GroupKeys, start_us: int | I64, codes: I64, nulls: Bool, totals: list[Totals]) -> ResultRows:
        """The rows of groups of a window, or with the start of each one's window. totals: by call."""
        import pyarrow as pa

        n = len(codes)
        groups = keys.columns_of(codes, nulls)
        edges = [pa.array(np.full(n, us, np.int64)).view(self.time) for us in (start_us, start_us + self.size_us)]
        of_group = pa.RecordBatch.from_arrays([*groups, edges[0]], [*self.key, self.start])
        values = [self._values(call, total) for call, total in zip(self.calls, totals, strict=True)]
        names = [*self.key, self.start, self.end, *(call.name for call in self.calls)]
        columns = Columns(pa.RecordBatch.from_arrays([*groups, *edges, *values], names))
        return ResultRows(row_hashes(of_group), np.full(n, start_us + self.ts_after_us, np.int64), columns)

    def _values(self, call: Call, totals: Totals) -> pa.Array:
        import pyarrow as pa

        counts = totals.counts
        if call.function == "count":
            return pa.array(counts)
        missing = counts == 0
        if call.accumulation == Accumulation.DOUBLES:
            sums = totals.sums()
            return pa.array(sums / np.maximum(counts, 1) if call.function == "avg" else sums, mask=missing)
        if call.accumulation != Accumulation.INTEGERS:
            return from_ordered(totals.word(1), missing, call.type)
        low, high = totals.word(1), totals.word(2)
        fits = high == low >> np.int64(63)
        if call.function == "sum":
            if not fits.all():
                at = int(np.flatnonzero(~fits)[0])
                total = (int(high[at]) << 64) + int(low.view(np.uint64)[at])
                raise RunFailed(f"{call.name} of a group is {total}, which has more than 64 bits")
            return pa.array(low, mask=missing)
        means = low / np.maximum(counts, 1)
        for at in np.flatnonzero(
            ~(fits & (np.abs(low) < _EXACT) & (counts < _EXACT))
        ).tolist():  # where float64 would round twice
            means[at] = ((int(high[at]) << 64) + int(low.view(np.uint64)[at])) / int(counts[at])
        return pa.array(means, mask=missing)
