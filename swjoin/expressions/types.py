"""Types of expressions: the families that compare with each other, their common types, and which casts exist.

What: `family`, `read_as`, `described`, `common`, `castable`.
Why: operands of a function are brought to one type where the expression is bound, so kernels see no mixtures.
Stays out: columns of joins and files (`core.columns`), the casts themselves (`functions.casts`).

As in DuckDB: integers have 64 bits in expressions, floats are doubles, a decimal with a double is a double. A uint64 compares
with integers by value, and has no arithmetic.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Literal as OneOf
from typing import TypeAlias

import pyarrow as pa
import pyarrow.types as t

from swjoin.core.errors import UserError

Family: TypeAlias = OneOf[
    "null",
    "bool",
    "int",
    "uint64",
    "decimal",
    "float",
    "text",
    "binary",
    "timestamp",
    "timestamptz",
    "date",
    "time",
    "interval",
]
INT, DOUBLE, BOOL, TEXT, NULL = pa.int64(), pa.float64(), pa.bool_(), pa.string(), pa.null()
INTERVAL, TIMESTAMP, DATE = pa.duration("us"), pa.timestamp("us"), pa.date32()
MOST_DIGITS = 38
_WORDS: dict[Family, str] = {
    "null": "null",
    "bool": "a truth value",
    "int": "an integer",
    "uint64": "a uint64",
    "float": "a double",
    "text": "text",
    "timestamptz": "a timestamp with time zone",
    "interval": "an interval",
}


def family(kind: pa.DataType) -> Family:
    """UserError for types that no expression takes: lists, structs and so on."""
    tests: tuple[tuple[Family, bool], ...] = (
        ("null", t.is_null(kind)),
        ("bool", t.is_boolean(kind)),
        ("uint64", t.is_uint64(kind)),
        ("int", t.is_integer(kind)),
        ("decimal", t.is_decimal(kind)),
        ("float", t.is_floating(kind)),
        ("text", t.is_string(kind) or t.is_large_string(kind) or t.is_string_view(kind)),
        ("binary", t.is_binary(kind) or t.is_large_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)),
        ("timestamptz" if getattr(kind, "tz", None) else "timestamp", t.is_timestamp(kind)),
        ("date", t.is_date(kind)),
        ("time", t.is_time(kind)),
        ("interval", t.is_duration(kind)),
    )
    for name, holds in tests:
        if holds:
            return name
    raise UserError(f"type {kind} has no functions", remedy="select it as it is, or leave it out")


def read_as(kind: pa.DataType) -> pa.DataType:
    """The type in which expressions read a column of this type."""
    if t.is_dictionary(kind):
        return read_as(kind.value_type)
    match family(kind):
        case "int":
            return INT
        case "float":
            return DOUBLE
        case "text":
            return pa.large_string() if t.is_large_string(kind) else TEXT
        case "binary":
            return pa.large_binary() if t.is_large_binary(kind) else pa.binary()
        case "date":
            return DATE
        case _:
            return kind


def described(kind: pa.DataType) -> str:
    """As messages call it."""
    name = family(kind)
    return _WORDS.get(name, f"a {name}")


def as_decimal(kind: pa.DataType) -> pa.DataType:
    """The decimal type that holds every value of an integer or decimal type."""
    digits = {"int": 19, "uint64": 20, "null": 1}.get(family(kind))
    return kind if digits is None else pa.decimal128(digits, 0)


def _common_decimal(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    one, two = as_decimal(one), as_decimal(two)
    scale = max(one.scale, two.scale)
    digits = max(one.precision - one.scale, two.precision - two.scale) + scale
    return pa.decimal128(digits, scale) if digits <= MOST_DIGITS else pa.decimal256(digits, scale)


_UNITS = ("s", "ms", "us", "ns")


def finest(*units: str) -> OneOf["s", "ms", "us", "ns"]:
    return _UNITS[max(_UNITS.index(unit) for unit in units)]  # type: ignore[return-value]


def _common(one: pa.DataType, two: pa.DataType) -> pa.DataType:
    """The type that holds the values of both. LookupError if there is none."""
    families = {family(one), family(two)}
    if one == two or "null" in families:
        return two if family(one) == "null" else one
    if families <= {"int", "uint64", "decimal", "float"}:
        return DOUBLE if "float" in families else INT if families == {"int"} else _common_decimal(one, two)
    if families == {"text"}:
        return pa.large_string()
    if families == {"binary"}:
        return pa.large_binary()
    if families in ({"timestamp"}, {"timestamptz"}):
        return pa.timestamp(finest(one.unit, two.unit), one.tz)
    if families == {"interval"}:
        return pa.duration(finest(one.unit, two.unit))
    if families == {"time"}:
        return pa.time64("ns" if "ns" in (one.unit, two.unit) else "us")
    if families == {"date", "timestamp"}:
        return one if family(one) == "timestamp" else two
    raise LookupError


def common(what: str, kinds: Sequence[pa.DataType]) -> pa.DataType:
    """The type that holds the values of all. what: the function, for the message."""
    try:
        return functools.reduce(_common, kinds)
    except LookupError:
        names = list(dict.fromkeys(described(kind) for kind in kinds))
        together = f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else f"{names[0]} of several kinds"
        raise UserError(f"{what} of {together}", remedy="cast one of them so that both agree") from None


_FROM_TEXT: frozenset[Family] = frozenset({"bool", "int", "decimal", "float", "timestamp", "timestamptz", "date"})
_CASTS: dict[Family, frozenset[Family]] = {
    "bool": frozenset({"int", "float", "text"}),
    "int": frozenset({"bool", "uint64", "decimal", "float", "text"}),
    "uint64": frozenset({"int", "decimal", "float", "text"}),
    "decimal": frozenset({"int", "float", "text"}),
    "float": frozenset({"bool", "int", "decimal", "text"}),
    "text": _FROM_TEXT,
    "timestamp": frozenset({"timestamptz", "date", "text"}),
    "timestamptz": frozenset({"timestamp", "date", "text"}),
    "date": frozenset({"timestamp", "timestamptz", "text"}),
}


def castable(origin: pa.DataType, target: pa.DataType) -> bool:
    """Whether there is a cast between their families."""
    one, two = family(origin), family(target)
    return one in (two, "null") or two in _CASTS.get(one, ())
