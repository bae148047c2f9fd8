"""Arithmetic: + - * / // % and negation, of numbers, times and intervals; functions of numbers.

Why: as in DuckDB, `/` gives a double, `//` and `%` truncate towards zero, a decimal keeps its digits. Integers beyond 64 bits
and decimals beyond 38 digits are errors.
Stays out: parts of times (`functions.times`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as t

from swjoin.core.arrow_views import scalar_of
from swjoin.core.errors import UserError
from swjoin.expressions.functions.casts import cast, doubles, number
from swjoin.expressions.functions.catalogue import Kernel, Options, Rule, Signature, Value, function, plain
from swjoin.expressions.tree import Expr
from swjoin.expressions.types import DATE, DOUBLE, INT, MOST_DIGITS, as_decimal, described, family, finest

_CHECKED: dict[str, Callable[..., Value]] = {"+": pc.add_checked, "-": pc.subtract_checked, "*": pc.multiply_checked}
_PLAIN: dict[str, Callable[..., Value]] = {"+": pc.add, "-": pc.subtract, "*": pc.multiply}
_MOST_PLACES = 18  # of an integer, and more than a double has


def _operands(sign: str, args: Sequence[Expr]) -> tuple[Expr, ...]:
    """Numbers of one family: integers, decimals or doubles."""
    numbers = [number(sign, arg, "int", "decimal", "float") for arg in args]
    families = {family(arg.type) for arg in numbers}
    if "float" in families:
        return tuple(cast(arg, DOUBLE) for arg in numbers)
    if "decimal" in families:
        return tuple(cast(arg, as_decimal(arg.type)) for arg in numbers)
    return tuple(cast(arg, INT) for arg in numbers)


# ---------------------------------------------------------------- + - *


def _rule(sign: str) -> Rule:
    def rule(args: Sequence[Expr], options: Options) -> Signature:
        times = _with_times(sign, args)
        if times is not None:
            return times
        operands = _operands(sign, args)
        one, two = (arg.type for arg in operands)
        if not t.is_decimal(one):
            return Signature(operands, one, can_fail=one == INT)
        if sign == "*":
            scale, digits = one.scale + two.scale, one.precision + two.precision
        else:
            scale = max(one.scale, two.scale)
            digits = max(one.precision - one.scale, two.precision - two.scale) + scale + 1
        if scale > MOST_DIGITS:
            raise UserError(f"{sign} of decimals with {scale} digits after the point", remedy="cast them to double")
        return Signature(operands, pa.decimal128(min(digits, MOST_DIGITS), scale), can_fail=True)

    return rule


def _with_times(sign: str, args: Sequence[Expr]) -> Signature | None:
    """Of times and intervals; None for numbers."""
    one, two = args
    families = family(one.type), family(two.type)
    instants = ("timestamp", "timestamptz")
    match (sign, *families):
        case ("+" | "-", "timestamp" | "timestamptz", "interval"):
            kind = pa.timestamp(finest(one.type.unit, two.type.unit), one.type.tz)
            return Signature((one, two), kind, can_fail=True)
        case ("+", "interval", "timestamp" | "timestamptz"):
            return _with_times("+", (two, one))
        case ("+" | "-", "date", "interval"):
            return _with_times(sign, (cast(one, pa.timestamp("us")), two))
        case ("+", "interval", "date"):
            return _with_times("+", (two, one))
        case ("-", "timestamp" | "timestamptz" | "date", "timestamp" | "timestamptz" | "date") if families != ("date", "date"):
            if families[0] != families[1] and set(families) == set(instants):
                raise UserError("- of times with and without time zone", remedy="cast one of them so that both agree")
            unit = finest(*(getattr(arg.type, "unit", "us") for arg in args), "us")
            both = tuple(cast(arg, pa.timestamp(unit, "UTC" if "timestamptz" in families else None)) for arg in args)
            return Signature(both, pa.duration(unit), can_fail=True)
        case ("-", "date", "date"):
            return Signature((one, two), INT)
        case ("+" | "-", "interval", "interval"):
            kind = pa.duration(finest(one.type.unit, two.type.unit))
            return Signature((cast(one, kind), cast(two, kind)), kind, can_fail=True)
        case ("*", "interval", "int"):
            return Signature((one, cast(two, INT)), one.type, can_fail=True)
        case ("*", "int", "interval"):
            return _with_times("*", (two, one))
        case _ if "interval" in families:
            raise UserError(f"{sign} of {described(one.type)} and {described(two.type)}", remedy="add intervals to times alone")
    return None


def _kernel(sign: str) -> Kernel:
    def kernel(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
        one, two = args
        if kind == DOUBLE:
            return _PLAIN[sign](one, two)
        if t.is_decimal(kind):
            wide = [arg.cast(pa.decimal256(arg.type.precision, arg.type.scale)) for arg in args]
            return _PLAIN[sign](*wide).cast(kind)  # refuses what has too many digits
        if one.type == DATE:
            return pc.subtract(one.cast(pa.int32()), two.cast(pa.int32())).cast(INT)
        if t.is_duration(kind) and sign == "*":
            return pc.multiply_checked(one.cast(INT), two).cast(kind)
        return _CHECKED[sign](one, two)

    return kernel


for _sign in _CHECKED:
    function(_sign, _rule(_sign))(_kernel(_sign))


def _negative_rule(args: Sequence[Expr], options: Options) -> Signature:
    arg = number("-", args[0], "int", "decimal", "float", "interval")
    arg = cast(arg, INT) if family(arg.type) in ("null", "int") else arg
    return Signature((arg,), arg.type, can_fail=arg.type != DOUBLE)


@function("negative", _negative_rule)
def _negative(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return pc.negate_checked(args[0].cast(INT)).cast(kind) if t.is_duration(kind) else pc.negate_checked(args[0])


# ---------------------------------------------------------------- / // %


def _doubles(name: str) -> Rule:
    return lambda args, options: Signature(doubles(name, args), DOUBLE)


_OF_DOUBLES: dict[str, Callable[..., Value]] = {
    "/": pc.divide,
    "floor": pc.floor,
    "ceil": pc.ceil,
    "sqrt": pc.sqrt,
    "exp": pc.exp,
    "ln": pc.ln,
    "power": pc.power,
}
for _name, _compute in _OF_DOUBLES.items():
    function(_name, _doubles(_name))(plain(_compute))


def _quotient(args: Sequence[Expr], options: Options) -> Signature:
    return Signature(tuple(cast(number("//", arg, "int"), INT) for arg in args), INT, can_fail=True)


function("//", _quotient)(plain(pc.divide_checked))


def _remainder(args: Sequence[Expr], options: Options) -> Signature:
    operands = _operands("%", args)
    if t.is_decimal(operands[0].type):
        operands = doubles("%", operands)
    return Signature(operands, operands[0].type, can_fail=operands[0].type == INT)


@function("%", _remainder)
def _modulo(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    one, two = args
    if kind == INT:
        two = pc.if_else(pc.equal(two, -1), 1, two)  # the same remainders, without overflow
        return pc.subtract(one, pc.multiply(pc.divide_checked(one, two), two))
    known = pc.and_(pc.is_valid(one), pc.is_valid(two))
    with np.errstate(invalid="ignore"):
        rest = np.fmod(_filled(one), _filled(two))  # as in C
    found = scalar_of(float(rest), DOUBLE) if rest.ndim == 0 else pa.array(rest, DOUBLE)
    return pc.if_else(known, found, scalar_of(None, DOUBLE))


def _filled(value: Value) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    if isinstance(value, pa.Scalar):
        return np.float64(value.as_py() or 0.0)  # type: ignore[return-value]
    return np.asarray(pc.fill_null(value, 0.0).to_numpy(zero_copy_only=False))


# ---------------------------------------------------------------- abs, round


def _abs_rule(args: Sequence[Expr], options: Options) -> Signature:
    arg = number("abs", args[0], "int", "decimal", "float")
    arg = cast(arg, INT) if family(arg.type) in ("null", "int") else arg
    return Signature((arg,), arg.type, can_fail=arg.type == INT)


function("abs", _abs_rule)(plain(pc.abs_checked))


def _round_rule(args: Sequence[Expr], options: Options) -> Signature:
    arg = number("round", args[0], "int", "uint64", "decimal", "float")
    if abs(options[0]) > _MOST_PLACES:
        raise UserError(f"round to {options[0]} digits", remedy=f"use {-_MOST_PLACES} to {_MOST_PLACES}")
    arg = cast(arg, INT if family(arg.type) in ("int", "null") else DOUBLE)
    return Signature((arg,), arg.type, can_fail=arg.type == INT)


@function("round", _round_rule)
def _round(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    """options: digits after the point; a negative number rounds before it. Halves go away from zero."""
    if kind == INT and options[0] >= 0:
        return args[0]
    return pc.round(args[0], ndigits=options[0], round_mode="half_towards_infinity")
