"""Casts: explicit ones as in DuckDB, and those that bring operands to one type.

What: `cast`, `aligned`, `doubles`, `condition`; the function `cast`.
Why: a double becomes the nearest integer, halves to the even one; a decimal the nearest, halves away from zero; what a type
cannot hold is an error, never another value.
Stays out: which casts exist (`expressions.types`).
"""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import scalar_of
from swjoin.core.errors import UserError, one_line
from swjoin.expressions.functions.catalogue import Options, Signature, Value, call, function
from swjoin.expressions.tree import Call, Expr, Literal
from swjoin.expressions.types import BOOL, DOUBLE, Family, as_decimal, castable, common, described, family, finest

_EXACT: frozenset[tuple[Family, Family]] = frozenset(
    {("int", "float"), ("uint64", "float"), ("decimal", "float"), ("bool", "int")}
)


def cast(expr: Expr, kind: pa.DataType, text: object = "") -> Expr:
    """The expression as a value of this type. text: as written, if a user wrote the cast. UserError where there is none."""
    if expr.type == kind:
        return expr
    if family(expr.type) == "null":
        return Literal.of(None, kind)
    whole = text or expr.text
    if not castable(expr.type, kind):
        numbers = family(expr.type) in ("int", "float") and family(kind) in ("timestamp", "timestamptz")
        remedy = "give the unit with the time column of its table" if numbers else "use a value of that type"
        raise UserError(f"{whole}: {described(expr.type)} cannot be cast to {described(kind)}", remedy=remedy)
    made = call("cast", (expr,), (kind,), whole)
    if isinstance(expr, Literal) and isinstance(made, Call):
        raise UserError(f"{whole}: {expr.text!r} is no value of type {kind}")
    return made


def _cast_rule(args: Sequence[Expr], options: Options) -> Signature:
    (arg,), (kind,) = args, options
    origin, target = family(arg.type), family(kind)
    sure = (origin, target) in _EXACT or target == "text" or (origin, target) == ("int", "bool")
    if origin == target == "decimal":
        sure = kind.scale >= arg.type.scale and kind.precision - kind.scale >= arg.type.precision - arg.type.scale
    elif target == "decimal" and origin in ("int", "uint64"):
        sure = kind.precision - kind.scale >= as_decimal(arg.type).precision
    elif origin == target:
        sure = origin in ("text", "binary") or kind in (pa.int64(), DOUBLE)
    return Signature((arg,), kind, can_fail=not sure)


@function("cast", _cast_rule)
def _cast(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    value = args[0]
    origin, target = family(value.type), family(kind)
    if target == "text":
        return _to_text(value, origin).cast(kind)
    if origin == "text" and target in ("int", "uint64", "decimal", "float"):
        return _number_text(value).cast(kind)
    if origin == "text":
        return _time_text(value, kind)
    if origin == "float" and target in ("int", "uint64"):
        return pc.round(value, ndigits=0, round_mode="half_to_even").cast(kind)
    if origin == "decimal" and target in ("int", "uint64", "decimal"):
        digits = kind.scale if target == "decimal" else 0
        if digits < value.type.scale:  # in a type that has room for another digit
            wide = value.cast(pa.decimal256(value.type.precision + 1, value.type.scale))
            value = pc.round(wide, ndigits=digits, round_mode="half_towards_infinity")
        return value.cast(kind)
    if target == "decimal" and origin in ("int", "uint64"):
        return value.cast(pa.decimal256(20 + kind.scale, kind.scale)).cast(kind)
    if target == "bool":
        return pc.not_equal(value, scalar_of(0, value.type))
    if target == "date" and origin in ("timestamp", "timestamptz"):
        return pc.floor_temporal(value.cast(pa.timestamp(value.type.unit)), unit="day").cast(kind)
    if target == "float" and origin == "decimal":  # Arrow's own cast does not round to the nearest
        return value.cast(pa.string()).cast(kind)
    if target == "float":
        return pc.cast(value, kind, safe=False)
    return value.cast(kind)


def _to_text(value: Value, origin: Family) -> Value:
    if origin == "float":
        return _double_text(value)
    if origin == "decimal":
        return _decimal_text(value)
    if origin in ("timestamp", "timestamptz"):  # without zeros at the end of a fraction
        text = value.cast(pa.timestamp(value.type.unit)).cast(pa.string())
        text = pc.replace_substring_regex(text, pattern=r"(\.\d*?)0+$", replacement=r"\1")
        text = pc.replace_substring_regex(text, pattern=r"\.$", replacement="")
        zone = scalar_of("+00" if origin == "timestamptz" else "", pa.string())
        return pc.binary_join_element_wise(text, zone, "")
    return value.cast(pa.string())


def _double_text(value: Value) -> Value:
    """As Python and DuckDB spell doubles: 1.0, 1e+20, 1e-05."""
    if isinstance(value, pa.Scalar):
        return scalar_of(None if value.as_py() is None else repr(value.as_py()), pa.string())
    numbers = pc.fill_null(value, 0.0).to_numpy(zero_copy_only=False)
    text = pa.array(numbers.astype("U"), pa.string())
    return pc.if_else(pc.is_valid(value), text, scalar_of(None, pa.string()))


def _decimal_text(value: Value) -> Value:
    """All digits, at least one before the point."""
    if isinstance(value, pa.Scalar):
        return _decimal_text(pa.array([value], value.type))[0]
    kind, scale = value.type, value.type.scale
    make = pa.decimal256 if pa.types.is_decimal256(kind) else pa.decimal128
    whole = value.view(make(kind.precision, 0))
    if scale == 0:
        return whole.cast(pa.string())
    digits = pc.utf8_lpad(pc.abs(whole).cast(pa.string()), width=scale + 1, padding="0")
    text = pc.replace_substring_regex(digits, pattern=rf"^(\d+)(\d{{{scale}}})$", replacement=r"\1.\2")
    sign = pc.if_else(pc.less(whole, scalar_of(0, whole.type)), scalar_of("-", pa.string()), scalar_of("", pa.string()))
    return pc.binary_join_element_wise(sign, text, "")


def _number_text(value: Value) -> Value:
    return pc.replace_substring_regex(pc.utf8_trim(value, characters=" \t\r\n"), pattern=r"^\+(\d)", replacement=r"\1")


def _time_text(value: Value, kind: pa.DataType) -> Value:
    if family(kind) == "timestamptz":  # UTC, if the text names no zone
        text = pc.if_else(pc.match_substring_regex(value, pattern=r":.*([Zz]|[-+]\d\d(:?\d\d)?)$"), value, _with_utc(value))
        return text.cast(kind)
    return value.cast(kind)


def _with_utc(value: Value) -> Value:
    zone, midnight, nothing = (scalar_of(text, value.type) for text in ("Z", " 00:00:00Z", ""))
    return pc.binary_join_element_wise(value, pc.if_else(pc.match_substring(value, pattern=":"), zone, midnight), nothing)


def aligned(what: str, args: Sequence[Expr]) -> tuple[tuple[Expr, ...], pa.DataType]:
    """The arguments, cast to their common type, and that type. Text literals beside times are read as times."""
    times = [arg.type for arg in args if family(arg.type) in ("timestamp", "timestamptz", "date", "time")]
    if times:
        wanted = common(what, times)
        if family(wanted) in ("timestamp", "timestamptz"):  # a literal may have microseconds
            wanted = pa.timestamp(finest(wanted.unit, "us"), wanted.tz)
        args = [cast(arg, wanted) if isinstance(arg, Literal) and family(arg.type) == "text" else arg for arg in args]
    kind = common(what, [arg.type for arg in args])
    return tuple(cast(arg, kind) for arg in args), kind


def number(what: str, arg: Expr, *allowed: Family) -> Expr:
    """The argument, of one of these families, or null. UserError for others."""
    name = family(arg.type)
    if name not in (*allowed, "null"):
        remedy = "cast it to bigint" if name == "uint64" else "cast it, or use another value"
        raise UserError(f"{what} of {described(arg.type)}", remedy=remedy)
    return arg


def doubles(what: str, args: Sequence[Expr]) -> tuple[Expr, ...]:
    return tuple(cast(number(what, arg, "int", "uint64", "decimal", "float"), DOUBLE) for arg in args)


def condition(what: str, arg: Expr) -> Expr:
    """The argument as a truth value."""
    if family(arg.type) not in ("bool", "null"):
        raise UserError(f"{what} is between conditions, not of {described(arg.type)}", remedy="compare the value")
    return cast(arg, BOOL)


def refused(error: pa.ArrowInvalid) -> str:
    """What a kernel refused, in a few words."""
    text = one_line(error, 150)
    return {"overflow": "integer overflow", "divide by zero": "division by zero"}.get(text, text)
