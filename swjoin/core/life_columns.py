"""Columns of rows that live: births and deaths, what is computed of those that are alive, and the rows that come out.

What: `LifeColumns`: `lives`, `encoded`, `words`, `rows`; `LifeCall`.
Why: births and deaths are gone through in integers, which know nothing of Arrow's types.
Stays out: the order of births and deaths (`state.life_kernel`), keeping rows (`operators.live_groups`).
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from swjoin.core.aggregate_functions import Accumulation, from_ordered, is_ordered, ordered
from swjoin.core.arrow_views import array_of, bits_of, booleans_of, decoded, integers_of
from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.row_digests import row_hashes

if TYPE_CHECKING:
    import pyarrow as pa

_WORST = np.iinfo(np.int64).max  # the word of NaN for `max`, which has any other value first
_NAN = np.array(np.nan).view(np.int64)[()]


class LifeCall(NamedTuple):
    """A column that is computed. column: of the input; None for count(*). accumulation: of its values; ROWS does not occur.
    distinct: of different values alone. floating: whether the values are doubles."""

    name: str
    column: str | None
    accumulation: Accumulation
    distinct: bool = False
    floating: bool = False


class LifeTotals(NamedTuple):
    """Of a call, of n groups and instants, int64 (n,). counts: values. low, high: of a sum of integers both words of 128 bits;
    otherwise low is the word of the sum, or of the least or greatest value."""

    counts: I64
    low: I64
    high: I64


@dataclass(frozen=True)
class LifeColumns:
    """name: of the operator, for messages. key: grouping columns. born, dead: of the times. as_of: name of the column of the
    instant. read: columns of the input that are kept."""

    name: str
    key: tuple[str, ...]
    key_types: tuple[tuple[str, pa.DataType], ...]
    born: str
    dead: str
    as_of: str
    read: tuple[str, ...]
    calls: tuple[LifeCall, ...]

    def new_keys(self) -> GroupKeys:
        """An encoder of the groups, with a dictionary of its own."""
        return GroupKeys(self.key_types)

    def encoded(self, keys: GroupKeys, rows: TupleBatch) -> tuple[I64, Bool]:
        """Codes of the rows' groups, int64 (n,), and which are null, bool (n,)."""
        return keys.encode([] if rows.columns is None else [rows.columns.column(name) for name in self.key], len(rows))

    def lives(self, rows: TupleBatch) -> TupleBatch:
        """The rows as they are kept: their time is that of their birth, their key that of their death. RunFailed for a row
        without one of them."""
        assert rows.columns is not None, f"{self.name}: rows without births and deaths"
        times = []
        for name in (self.born, self.dead):
            column = rows.columns.column(name)
            if column.null_count:
                raise RunFailed(f"{self.name}: {name} is null in {column.null_count} rows; give every row a birth and a death")
            times.append(integers_of(column))
        kept = rows.columns.select(self.read) if self.read else None
        return replace(rows, ts=times[0], key=times[1], columns=kept)

    def words(self, call: LifeCall, rows: TupleBatch) -> tuple[I64, Bool | None]:
        """Of a call's values: integers, bits of doubles, or what is the less the sooner a value is the answer; equal for equal
        values. int64 (n,). And which rows have a value, bool (n,); None: all."""
        if call.column is None:
            return np.zeros(len(rows), np.int64), None
        assert rows.columns is not None, f"{self.name}: rows without columns"
        column = decoded(rows.columns.column(call.column))
        valid = booleans_of(column.is_valid()) if column.null_count else None
        if call.accumulation == Accumulation.COUNT:
            return _codes(column) if call.distinct else np.zeros(len(rows), np.int64), valid
        if call.accumulation == Accumulation.DOUBLES:
            return bits_of(column), valid
        codes = ordered(column)
        if call.accumulation == Accumulation.GREATEST:
            codes = np.where(bits_of(column) == _NAN, _WORST, ~codes) if call.floating else ~codes
        return codes, valid

    def rows(self, keys: GroupKeys, codes: I64, nulls: Bool, instants: I64, totals: list[LifeTotals]) -> ResultRows:
        """The rows of groups at instants. totals: by call. RunFailed for a sum of integers that has more than 64 bits."""
        import pyarrow as pa

        of_instant = [*keys.columns_of(codes, nulls), array_of(instants)]
        names = [*self.key, self.as_of]
        hashes = row_hashes(pa.RecordBatch.from_arrays(of_instant, names))
        values = [self._values(call, total) for call, total in zip(self.calls, totals, strict=True)]
        columns = pa.RecordBatch.from_arrays([*of_instant, *values], [*names, *(call.name for call in self.calls)])
        return ResultRows(hashes, instants, Columns(columns))

    def _values(self, call: LifeCall, totals: LifeTotals) -> pa.Array:
        import pyarrow as pa

        counts, low, high = totals
        if call.accumulation == Accumulation.COUNT:
            return array_of(counts)
        missing = counts == 0
        if call.accumulation == Accumulation.DOUBLES:
            return array_of(low.view(np.float64), missing)
        if call.accumulation == Accumulation.INTEGERS:
            fits = high == low >> np.int64(63)
            if not fits.all():
                at = int(np.flatnonzero(~fits)[0])
                total = (int(high[at]) << 64) + int(low.view(np.uint64)[at])
                raise RunFailed(
                    f"{self.name}: {call.name} of a group is {total}, which has more than 64 bits; cast it to DOUBLE"
                )
            return array_of(low, missing)
        kind = pa.float64() if call.floating else pa.int64()
        if call.accumulation == Accumulation.LEAST:
            return from_ordered(low, missing, kind)
        return from_ordered(np.where(low == _WORST, _NAN, ~low) if call.floating else ~low, missing, kind)


def _codes(column: pa.Array) -> I64:
    """Integers that are equal where values of a column are; those of null are unspecified."""
    if is_ordered(column.type):
        return ordered(column)
    codes: I64 = integers_of(column.dictionary_encode().indices.fill_null(0)).astype(np.int64)
    return codes
