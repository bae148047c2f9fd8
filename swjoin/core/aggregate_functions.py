"""The functions of aggregates: what they take, give and accumulate.

What: `FUNCTIONS`, `PICKS`, `Accumulation`, `result_type`, `accumulation_of`, `decimal_unit`; `ordered` and `from_ordered`;
`order_codes`.
Why: the plan needs the type of a result, the operator what it accumulates, and both the same list of functions.
Stays out: accumulators (`state.group_table`), columns in and out (`core.aggregate_columns`), SQL.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING, Final

import numpy as np

from swjoin.core.arrow_views import bits_of, booleans_of, decoded, integers_of, of_words
from swjoin.core.batch import I64, Bool
from swjoin.core.columns import plain_type_named
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

FUNCTIONS: Final = ("count", "sum", "avg", "min", "max", "first", "last", "arg_min", "arg_max")
PICKS: Final = ("first", "last", "arg_min", "arg_max")  # the value of one row
PLACED: Final = ("min", "max", "arg_min", "arg_max")  # also the second, the third least or greatest
MOST_DIGITS: Final = 28  # of decimals that are added, in 128 bits: sums of 10^10 rows are below 2^127
_SIGN: Final = np.int64(-(1 << 63))


class Accumulation(IntEnum):
    """What a group keeps of one call, besides the number of its values."""

    COUNT = 0
    INTEGERS = 1  # their sum, 128 bits; of decimals that of their digits
    DOUBLES = 2  # their sum, exact
    LEAST = 3  # the least of their ordered codes
    GREATEST = 4
    ROWS = 5  # the rows that decide it, not an accumulator

    @property
    def words(self) -> int:
        """64-bit words of an accumulator, of which the first is the number of values."""
        return {Accumulation.INTEGERS: 3, Accumulation.LEAST: 2, Accumulation.GREATEST: 2}.get(self, 1)


def accumulation_of(
    function: str, argument: str | None, by: str | None = None, *, distinct: bool = False, place: int = 1
) -> Accumulation:
    """argument: type of the column, as Arrow writes it; None for count(*). by: type of the column whose least or greatest value
    says the row. distinct: of different values alone. place: 2 for the second least or greatest value, and so on. UserError
    where the function takes none such."""
    import pyarrow as pa

    if function not in FUNCTIONS:
        raise UserError(f"no aggregate function {function}", remedy=f"use {', '.join(FUNCTIONS)}")
    if place < 1 or (place > 1 and (distinct or function not in PLACED)):
        raise UserError(f"value {place} of {function}", remedy=f"use a number above zero, of {', '.join(PLACED)}")
    if distinct:
        accumulation_of(function, argument)
        if argument is None or function not in ("count", "sum", "avg"):
            raise UserError(f"{function}(DISTINCT ...) is not supported", remedy="leave DISTINCT out")
        return Accumulation.ROWS
    if (by is not None) != function.startswith("arg_"):
        raise UserError(
            f"{function} {'needs a' if by is None else 'takes no'} column to compare", remedy="name one for arg_min, arg_max"
        )
    for kind in (argument, by):
        if function in PICKS and kind is not None and pa.types.is_interval(plain_type_named(kind)):
            raise UserError(f"{function} of {kind} is not supported", remedy="cast it to text")
    if function in PICKS and argument is not None:
        return Accumulation.ROWS
    if argument is None:
        if function != "count":
            raise UserError(f"{function} needs a column", remedy="name one")
        return Accumulation.COUNT
    kind = plain_type_named(argument)
    if function == "count":
        return Accumulation.COUNT
    floating = pa.types.is_floating(kind)
    if function in ("sum", "avg"):
        decimal = pa.types.is_decimal(kind) and kind.precision <= 38 and kind.scale >= 0
        if not floating and not pa.types.is_integer(kind) and not decimal:
            raise UserError(f"{function} of {argument}", remedy="cast it to BIGINT or DOUBLE")
        return Accumulation.DOUBLES if floating else Accumulation.INTEGERS
    temporal = pa.types.is_temporal(kind) and not pa.types.is_interval(kind)
    if pa.types.is_interval(kind) or pa.types.is_null(kind):
        raise UserError(f"{function} of {argument} is not supported", remedy="take it of numbers, times or text")
    if place > 1 or not (floating or pa.types.is_integer(kind) or pa.types.is_boolean(kind) or temporal):
        return Accumulation.ROWS
    return Accumulation.LEAST if function == "min" else Accumulation.GREATEST


def result_type(function: str, argument: str | None, by: str | None = None, *, distinct: bool = False, place: int = 1) -> str:
    """Type of a call's result, as Arrow writes it. Arguments as of `accumulation_of`."""
    import pyarrow as pa

    accumulation = accumulation_of(function, argument, by, distinct=distinct, place=place)
    if distinct:
        accumulation = accumulation_of(function, argument)
    if function == "count":
        return "int64"
    if function == "avg" or accumulation == Accumulation.DOUBLES:
        return "double"
    if function == "sum" and argument is not None and pa.types.is_decimal(kind := plain_type_named(argument)):
        return str(pa.decimal128(38, kind.scale))
    return "int64" if function == "sum" else str(pa.int64() if argument is None else plain_type_named(argument))


def decimal_unit(argument: str) -> int:
    """10^s of a decimal type with s digits after the point; 1 of other types. argument: as Arrow writes it."""
    import pyarrow as pa

    kind = plain_type_named(argument)
    return 10**kind.scale if pa.types.is_decimal(kind) else 1


def is_ordered(kind: pa.DataType) -> bool:
    """Whether `ordered` takes values of this type."""
    import pyarrow as pa

    t = pa.types
    return bool(t.is_floating(kind) or t.is_integer(kind) or t.is_boolean(kind) or t.is_temporal(kind))


def ordered(values: pa.Array) -> I64:
    """Integers in the order of the values, which are numbers, truth values or times; NaN is the greatest, -0.0 is 0.0. Those of
    null are unspecified."""
    import pyarrow as pa

    kind = values.type
    if pa.types.is_floating(kind):
        bits = bits_of(values)
        out: I64 = np.where(bits < 0, bits ^ ~_SIGN, bits)
        return out
    if pa.types.is_boolean(kind):
        values = values.cast(pa.uint8())
    elif pa.types.is_temporal(kind):
        values = values.view(pa.int32() if kind.bit_width == 32 else pa.int64())
    plain = integers_of(values)
    return plain.view(np.int64) ^ _SIGN if plain.dtype == np.uint64 else plain.astype(np.int64, copy=False)


def order_codes(column: pa.Array, *, descending: bool = False, nulls_first: bool = False) -> list[I64]:
    """Integers, int64 (n,), whose order is that of a column: first of nulls, if there are any, then of values."""
    import pyarrow.compute as pc

    column = decoded(column)
    if is_ordered(column.type):
        codes = ordered(column)
    else:
        codes = pc.rank(column, "ascending", tiebreaker="dense").to_numpy().astype(np.int64)
    codes = ~codes if descending else codes
    if not column.null_count:
        return [codes]
    missing = booleans_of(column.is_null())
    return [np.where(missing ^ nulls_first, 1, 0), np.where(missing, 0, codes)]


def from_ordered(codes: I64, missing: Bool, kind: pa.DataType) -> pa.Array:
    """The values, of this type, of which `ordered` made the codes. missing: bool (n,), those that are null."""
    import pyarrow as pa

    if pa.types.is_floating(kind):
        codes = np.where(codes < 0, codes ^ ~_SIGN, codes)
    elif pa.types.is_uint64(kind):
        codes = codes ^ _SIGN
    return of_words(codes, missing, kind)
