"""Functions of times: parts, truncation, formatting, times from integers.

Why: a time with a zone is taken in UTC, wherever a run is.
Stays out: arithmetic with intervals (`functions.numbers`), casts (`functions.casts`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.errors import UserError
from swjoin.expressions.functions.casts import cast, number
from swjoin.expressions.functions.catalogue import Options, Signature, Value, function
from swjoin.expressions.tree import Expr
from swjoin.expressions.types import DOUBLE, INT, TEXT, TIMESTAMP, described, family, finest

# part -> its number, of timestamps without zone
_PARTS: dict[str, Callable[[Value], Value]] = {
    "year": pc.year,
    "quarter": pc.quarter,
    "month": pc.month,
    "week": pc.iso_week,
    "day": pc.day,
    "dow": lambda value: pc.day_of_week(value, count_from_zero=True, week_start=7),
    "isodow": lambda value: pc.day_of_week(value, count_from_zero=False, week_start=1),
    "doy": pc.day_of_year,
    "hour": pc.hour,
    "minute": pc.minute,
    "second": pc.second,
    "millisecond": lambda value: _below_minute(value, 1_000),
    "microsecond": lambda value: _below_minute(value, 1),
    "epoch": lambda value: _seconds(value),
}
_UNITS = ("year", "quarter", "month", "week", "day", "hour", "minute", "second", "millisecond", "microsecond")
PARTS, UNITS = tuple(_PARTS), _UNITS


def _seconds(value: Value) -> Value:
    """Of a timestamp since 1970, or of an interval."""
    units = {"s": 1.0, "ms": 1e3, "us": 1e6, "ns": 1e9}[value.type.unit]
    return pc.divide(value.cast(INT).cast(DOUBLE, safe=False), units)


def _below_minute(value: Value, unit_us: int) -> Value:
    """What has passed of the minute, in units of so many microseconds."""
    passed = pc.subtract(value.cast(TIMESTAMP, safe=False), pc.floor_temporal(value.cast(TIMESTAMP, safe=False), unit="minute"))
    return pc.divide(passed.cast(INT), unit_us)


def _instant(name: str, arg: Expr) -> Expr:
    """A timestamp without zone, in UTC."""
    match family(arg.type):
        case "timestamp":
            return arg
        case "timestamptz":
            return cast(arg, pa.timestamp(arg.type.unit))
        case "date" | "null":
            return cast(arg, TIMESTAMP)
        case _:
            raise UserError(f"{name} of {described(arg.type)}", remedy="use a timestamp or a date")


def _part_rule(args: Sequence[Expr], options: Options) -> Signature:
    part = options[0]
    if part not in _PARTS:
        raise UserError(f"extract has no part {part}", remedy=f"use one of {', '.join(_PARTS)}")
    kind = DOUBLE if part == "epoch" else INT
    if part == "epoch" and family(args[0].type) == "interval":
        return Signature((args[0],), kind)
    return Signature((_instant("extract", args[0]),), kind)


@function("extract", _part_rule)
def _extract(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    value = args[0]
    if pa.types.is_duration(value.type):
        return _seconds(value)
    return _PARTS[options[0]](value).cast(kind)


def _epoch_rule(args: Sequence[Expr], options: Options) -> Signature:
    return Signature((_instant("epoch_us", args[0]),), INT)


@function("epoch_us", _epoch_rule)
def _epoch(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    if args[0].type.unit == "ns":
        return pc.divide(args[0].cast(kind), 1_000)  # towards zero
    return args[0].cast(pa.timestamp("us", args[0].type.tz)).cast(kind)


def _trunc_rule(args: Sequence[Expr], options: Options) -> Signature:
    if options[0] not in _UNITS:
        raise UserError(f"date_trunc has no unit {options[0]}", remedy=f"use one of {', '.join(_UNITS)}")
    arg = args[0]
    zone = getattr(arg.type, "tz", None)
    instant = _instant("date_trunc", arg)
    return Signature((instant,), pa.timestamp(finest(instant.type.unit, "us"), zone), can_fail=True)


@function("date_trunc", _trunc_rule)
def _trunc(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    naive = pc.floor_temporal(args[0].cast(pa.timestamp(kind.unit)), unit=options[0])
    return naive.cast(kind)


_FORMAT = re.compile(r"%[YmdHMS%]|[^%]")


def _format_rule(args: Sequence[Expr], options: Options) -> Signature:
    if "%" not in options[0] or "".join(_FORMAT.findall(options[0])) != options[0]:
        raise UserError(f"strftime: {options[0]!r} has a part that is not supported", remedy="use %Y, %m, %d, %H, %M, %S, %%")
    return Signature((_instant("strftime", args[0]),), TEXT)


@function("strftime", _format_rule)
def _strftime(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    seconds = pc.floor_temporal(args[0], unit="second").cast(pa.timestamp("s"))
    return pc.strftime(seconds, format=options[0]).cast(kind)


def _from_integer_rule(args: Sequence[Expr], options: Options) -> Signature:
    """options: the unit, ms, us or ns."""
    kind = pa.timestamp("ns" if options[0] == "ns" else "us")
    return Signature((number("make_timestamp", args[0], "int"),), kind, can_fail=options[0] == "ms")


@function("make_timestamp", _from_integer_rule)
def _from_integer(args: Sequence[Value], options: Options, kind: pa.DataType) -> Value:
    return args[0].cast(pa.timestamp(options[0])).cast(kind)
