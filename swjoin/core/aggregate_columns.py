"""Columns of an aggregate: what it reads of its input's rows, and the rows that it gives.

What: `AggregateColumns`: `encoded`, `argument`, `rows`; `Call`, `Totals`.
Why: the operator counts in integers and doubles, and knows nothing of Arrow's types.
Stays out: accumulating (`state.group_table`), windows (`core.time_windows`), which columns travel (`plan.columns`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.aggregate_functions import MOST_DIGITS, Accumulation, from_ordered, is_ordered, order_codes, ordered
from swjoin.core.arrow_views import (
    array_of,
    booleans_of,
    decimals_of_words,
    decoded,
    doubles_of,
    integers_of,
    scalar_of,
    words_of_decimals,
)
from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.row_digests import row_hashes

if TYPE_CHECKING:
    import pyarrow as pa

F64 = NDArray[np.float64]
_EXACT = 1 << 53
_MOST_HIGH = 10**MOST_DIGITS >> 64


class Call(NamedTuple):
    """A column that an aggregate computes. column: of its input; None for count(*). type: of the results. by: the column whose
    least or greatest value says the row. of_distinct: what is accumulated of a call of different values. place: 2 for the
    second least or greatest value, and so on. unit: 10^s of a mean of decimals with s digits after the point."""

    name: str
    function: str
    column: str | None
    accumulation: Accumulation
    type: pa.DataType
    by: str | None = None
    of_distinct: Accumulation | None = None
    place: int = 1
    unit: int = 1

    @property
    def accumulated(self) -> Accumulation:
        """Of the rows, or of those that decide."""
        return self.accumulation if self.of_distinct is None else self.of_distinct


class Argument(NamedTuple):
    """values: (n,) integers, ordered codes or doubles, of decimals (n, 2) words of 128 bits, the low one first; None where rows
    are only counted. valid: None for all rows."""

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
    ts_after_us: time of a row of the answer, from the window's start. order: column by which rows are earlier or later than
    others; "" for their time. pre_aggregated: rows come as groups, with their accumulators."""

    name: str
    key: tuple[str, ...]
    key_types: tuple[tuple[str, pa.DataType], ...]
    start: str
    end: str
    time: pa.DataType
    size_us: int
    ts_after_us: int
    calls: tuple[Call, ...]
    order: str = ""
    pre_aggregated: bool = False

    @property
    def accumulating(self) -> list[Call]:
        """The calls that have an accumulator of their own."""
        return [call for call in self.calls if call.column is not None and call.accumulation != Accumulation.ROWS]

    @property
    def accumulators(self) -> str:
        """Name of the column of accumulators, beside the key's, of groups that travel."""
        name = "accumulators"
        while name in self.key:
            name += "_"
        return name

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
        accumulation = call.accumulated
        if accumulation == Accumulation.COUNT:
            return Argument(None, valid)
        if accumulation == Accumulation.DOUBLES:
            return Argument(doubles_of(column), valid)
        if accumulation == Accumulation.INTEGERS and pa.types.is_decimal(column.type):
            words = words_of_decimals(column.fill_null(0))
            if len(words) and not -_MOST_HIGH - 1 <= words[:, 1].min() <= words[:, 1].max() <= _MOST_HIGH:
                raise RunFailed(f"{call.name}: a value has more than {MOST_DIGITS} digits; cast it to DOUBLE")
            return Argument(words, valid)
        if accumulation == Accumulation.INTEGERS:
            filled = column.fill_null(scalar_of(0, column.type)) if column.null_count else column
            unsigned = pa.types.is_uint64(column.type)
            values = integers_of(filled)
            return Argument(values.view(np.int64) if unsigned else values.astype(np.int64, copy=False), valid, unsigned)
        return Argument(ordered(column), valid)

    def grouped(self, rows: TupleBatch, accumulators: I64) -> TupleBatch:
        """Groups as they travel: the rows with their grouping columns alone, and accumulators, int64 (n, words)."""
        import pyarrow as pa

        kind = pa.binary(accumulators.shape[1] * 8)
        held = pa.Array.from_buffers(kind, len(rows), [None, pa.py_buffer(np.ascontiguousarray(accumulators))])
        keys = [] if rows.columns is None else [rows.columns.column(name) for name in self.key]
        return replace(rows, columns=Columns(pa.RecordBatch.from_arrays([*keys, held], [*self.key, self.accumulators])))

    def accumulated(self, rows: TupleBatch) -> I64:
        """The accumulators of groups that have travelled: int64 (n, words)."""
        assert rows.columns is not None, f"{self.name}: groups without accumulators"
        held = rows.columns.column(self.accumulators)
        words = held.type.byte_width // 8
        found: I64 = np.frombuffer(held.buffers()[1], np.int64).reshape(-1, words)[held.offset : held.offset + len(held)]
        return found

    def deciding(self, call: Call, slots: I64, rows: TupleBatch) -> I64:
        """Positions of the rows that decide a call: the first ones of each group, up to its place; rows with null decide
        nothing. slots: of the rows' groups. Of rows that are alike the earliest is first, by `last` the latest."""
        by_slot, numbers = self._numbered(call, slots, rows)
        out: I64 = by_slot[numbers < call.place]
        return out

    def values_of(self, call: Call, rows: TupleBatch) -> tuple[I64, Bool | None]:
        """Integers, int64 (n,), that are equal where a call's values are, and which rows have a value; None: all."""
        assert rows.columns is not None, f"{self.name}: rows without columns"
        column = decoded(rows.columns.column(str(call.column)))
        valid = booleans_of(column.is_valid()) if column.null_count else None
        if is_ordered(column.type):
            return ordered(column), valid
        codes: I64 = integers_of(column.dictionary_encode().indices).astype(np.int64)
        return codes, valid

    def _numbered(self, call: Call, slots: I64, rows: TupleBatch) -> tuple[I64, I64]:
        """Positions of the rows with a value, group by group, and their numbers in it, from 0 on."""
        assert rows.columns is not None, f"{self.name}: rows without columns"
        assert call.column is not None, f"{call.name}: rows that decide a count of rows"
        column, after = decoded(rows.columns.column(call.column)), [*self._order_of(rows), rows.ts, rows.id]
        valid, more = booleans_of(column.is_valid()), []
        if call.function == "last":
            after = [~part for part in after]
        elif call.function != "first":
            by = column if call.by is None else decoded(rows.columns.column(call.by))
            valid = valid & booleans_of(by.is_valid())
            more = order_codes(by, descending=call.function in ("max", "arg_max"))[-1:]
        at = np.flatnonzero(valid)
        by_slot = at[np.lexsort([part[at] for part in (*reversed(after), *more, slots)])]
        new = np.diff(slots[by_slot], prepend=-1) != 0
        at = np.arange(len(by_slot))
        return by_slot, at - np.maximum.accumulate(np.where(new, at, 0))

    def _order_of(self, rows: TupleBatch) -> list[I64]:
        if not self.order or rows.columns is None:
            return []
        return order_codes(rows.columns.column(self.order))

    def picked(self, call: Call, slots: I64, rows: TupleBatch, count: int) -> pa.Array:
        """The value of each group's row in the place of the call, of so many groups; null without one."""

        by_slot, numbers = self._numbered(call, slots, rows)
        at = by_slot[numbers == call.place - 1]
        index = np.full(count, -1, np.int64)
        index[slots[at]] = at
        assert rows.columns is not None, f"{self.name}: rows without columns"
        column = decoded(rows.columns.column(str(call.column)))
        found = column.take(array_of(index, index < 0))
        return found if found.type == call.type else found.cast(call.type)

    def rows(self, keys: GroupKeys, start_us: I64, codes: I64, nulls: Bool, totals: list[Totals | pa.Array]) -> ResultRows:
        """The rows of groups, with the start of each one's window. totals: by call; of calls that rows decide their values."""
        import pyarrow as pa

        groups = keys.columns_of(codes, nulls)
        edges = [array_of(us).view(self.time) for us in (start_us, start_us + self.size_us)]
        of_group = pa.RecordBatch.from_arrays([*groups, edges[0]], [*self.key, self.start])
        pairs = zip(self.calls, totals, strict=True)
        values = [self._values(call, total) if isinstance(total, Totals) else total for call, total in pairs]
        names = [*self.key, self.start, self.end, *(call.name for call in self.calls)]
        columns = Columns(pa.RecordBatch.from_arrays([*groups, *edges, *values], names))
        return ResultRows(row_hashes(of_group), start_us + self.ts_after_us, columns)

    def _values(self, call: Call, totals: Totals) -> pa.Array:
        import pyarrow as pa

        counts = totals.counts
        if call.function == "count":
            return array_of(counts)
        missing = counts == 0
        accumulation = call.accumulated
        if accumulation == Accumulation.DOUBLES:
            sums = totals.sums()
            return array_of(sums / np.maximum(counts, 1) if call.function == "avg" else sums, missing)
        if accumulation != Accumulation.INTEGERS:
            return from_ordered(totals.word(1), missing, call.type)
        low, high = totals.word(1), totals.word(2)
        if pa.types.is_decimal(call.type):
            return decimals_of_words(low, high, missing, call.type)  # no more digits than it has: see MOST_DIGITS
        fits = high == low >> np.int64(63)
        if call.function == "sum":
            if not fits.all():
                at = int(np.flatnonzero(~fits)[0])
                total = (int(high[at]) << 64) + int(low.view(np.uint64)[at])
                raise RunFailed(f"{call.name} of a group is {total}, which has more than 64 bits")
            return array_of(low, missing)
        unit = call.unit
        means = low / (np.maximum(counts, 1) * float(unit))
        for at in np.flatnonzero(
            ~(fits & (np.abs(low) < _EXACT) & (counts < _EXACT // unit))
        ).tolist():  # where float64 would round twice
            means[at] = ((int(high[at]) << 64) + int(low.view(np.uint64)[at])) / max(1, int(counts[at]) * unit)
        return array_of(means, missing)


def taken(values: pa.Array, index: I64) -> pa.Array:
    """The values at these positions."""

    return values.take(array_of(index))


def together(parts: Sequence[pa.Array]) -> pa.Array:
    """All values, one part after the other."""
    import pyarrow as pa

    return pa.concat_arrays(parts)
