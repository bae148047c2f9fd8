"""Time columns: whether both sides' can be compared, and their values in microseconds.

What: `TimeColumn`, `check_times` (the one check of every front end), `microseconds`, `instants`.
Why: a time with a zone is an instant, a time without one is what some clock showed. Compared with each other they give a wrong
answer that looks right.
Stays out: reading columns (`sources.formats`), what else a join needs of a stream (`sources.columns`).

Integers are instants: a unit since 1970, UTC. Dates are days of no zone, as times without a zone are.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.batch import I64, Bool
from swjoin.errors import UserError
from swjoin.sources.views import booleans_of, integers_of
from swjoin.units import MAX_SPAN_US

if TYPE_CHECKING:
    import pyarrow as pa

TIME_UNITS = ("s", "ms", "us", "ns")
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
ASSUME = (
    "or name the zone in which the {side} times are local with --assume-timezone ZONE "
    "({side}.assume_timezone in a configuration)"
)


def zoned(kind: pa.DataType) -> bool | None:
    """Whether times of a type have a zone; None for types that are neither timestamps nor dates."""
    import pyarrow.types as t

    if t.is_timestamp(kind):
        return kind.tz is not None
    return False if t.is_date(kind) else None


@dataclass(frozen=True)
class TimeColumn:
    """One side's time column. side: left or right. origin: where the side comes from, in error messages. unit: of integers.
    zone: the zone in which times without one are local."""

    side: str
    origin: str
    name: str
    kind: pa.DataType
    unit: str | None
    zone: str | None

    @property
    def where(self) -> str:
        return f"{self.origin}: time column {self.name}"


def check_times(left: TimeColumn, right: TimeColumn, remedy: str = ASSUME) -> None:
    """UserError unless the times of both sides can be compared, and each unit and zone that is given has a use. remedy: besides
    giving both sides a zone."""
    import pyarrow.types as t

    both = (left, right)
    for own in both:
        if not (zoned(own.kind) is not None or t.is_integer(own.kind)):
            raise UserError(f"{own.where} is {own.kind}; it must be a timestamp, a date or an integer")
    unitless = [own for own in both if t.is_integer(own.kind) and own.unit is None]
    if unitless:
        own = unitless[0]
        option = "--time-unit" if len(unitless) == 2 else f"--{own.side}-time-unit"
        raise UserError(
            f"{own.where} holds integers; say which unit with {option} s|ms|us|ns ({own.side}.time_unit in a configuration)"
        )
    for own, other in (both, both[::-1]):
        shared = own.unit == other.unit and t.is_integer(other.kind)
        if own.unit is not None and not t.is_integer(own.kind) and not shared:
            raise UserError(f"{own.where} is {own.kind}; time units are for integers: leave the {own.side} side's out")
        shared = own.zone == other.zone and zoned(other.kind) is False
        if own.zone is not None and zoned(own.kind) is not False and not shared:
            raise UserError(
                f"{own.where} is {own.kind}; --assume-timezone ({own.side}.assume_timezone in a configuration) is for "
                "timestamps and dates without a zone: leave it out"
            )
    naive = [own for own in both if zoned(own.kind) is False and own.zone is None]
    others = [own for own in both if own not in naive and zoned(own.kind) is not None]
    if naive and others:
        local, instant = naive[0], others[0]
        has = "is given one" if zoned(instant.kind) is False else "has one"
        raise UserError(
            f"{local.where} has no time zone ({local.kind}), {instant.where} {has} ({instant.zone or instant.kind}), so they "
            f"cannot be compared; give both a zone, {remedy.format(side=local.side)}"
        )


def cast_complaint(kind: pa.DataType, wanted: pa.DataType) -> str | None:
    """Why values of one type must not become another one's, though Arrow would cast them."""
    import pyarrow.types as t

    pair = zoned(kind), zoned(wanted)
    if pair in ((True, False), (False, True)):
        return "one has a time zone, the other has none; push times with the stream's kind, or declare the stream so"
    timed, number = (kind, wanted) if pair[0] is not None else (wanted, kind)
    if zoned(timed) is not None and (t.is_integer(number) or t.is_floating(number)):
        return "a number has no unit; cast it first"
    return None


def microseconds(column: pa.Array, time: TimeColumn, refuse: Callable[[Bool, str], None]) -> I64:
    """Microseconds since 1970; where a time is null, any number. refuse: raises UserError for the first row of a mask, if there
    is one."""
    import pyarrow as pa
    import pyarrow.types as t

    kind = column.type
    if time.zone is not None and zoned(kind) is False:
        column = instants(column, time.zone, refuse)
        unit = column.type.unit
    elif t.is_date32(kind):
        column, unit = column.cast(pa.timestamp("s")), "s"
    else:
        unit = kind.unit if t.is_timestamp(kind) else "ms" if t.is_date64(kind) else time.unit or "us"
    if not t.is_integer(column.type):
        column = column.cast(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    values = integers_of(column)
    if values.dtype == np.uint64 and len(values) and int(values.max()) > MAX_SPAN_US:
        values = np.minimum(values, MAX_SPAN_US)
    values = values.astype(np.int64, copy=False)
    if unit == "ns":
        refuse(values % 1000 != 0, "is finer than one microsecond; round the column to microseconds")
        values = values // 1000
    scale = _UNIT_US.get(unit, 1)
    limit = MAX_SPAN_US // scale
    if len(values) and (int(values.max()) >= limit or int(values.min()) <= -limit):
        hint = f"; check --time-unit, --{time.side}-time-unit" if t.is_integer(kind) else ""
        refuse((values >= limit) | (values <= -limit), f"is out of range{hint}")
    return values if scale == 1 else values * scale


def instants(column: pa.Array, zone: str, refuse: Callable[[Bool, str], None]) -> pa.Array:
    """Timestamps or dates without a zone as instants: they are local times of this zone; a date is its midnight. Refused: a
    local time that exists twice, or never."""
    import pyarrow as pa
    import pyarrow.compute as pc

    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    try:
        return pc.assume_timezone(column, zone)
    except pa.ArrowInvalid as error:
        early, late = (pc.assume_timezone(column, zone, ambiguous=w, nonexistent=w) for w in ("earliest", "latest"))
        wrong = booleans_of(pc.not_equal(early, late).fill_null(False))
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            twice = pc.local_timestamp(early.slice(row, 1)).equals(column.slice(row, 1))
            text = str(column[row])
            refuse(wrong, f"is {text}, which {'exists twice' if twice else 'does not exist'} in {zone}: {_CLOCKS[twice]}")
        raise UserError(f"assume_timezone {zone}: {' '.join(str(error).split())[:200]}") from None


_CLOCKS = {
    True: "its clocks are turned back over that time; give such times with a zone or an offset",
    False: "its clocks are turned forward over that time; is it the right zone?",
}


def local_as_us(value: Any, kind: pa.DataType, zone: str | None) -> float:
    """One timestamp or date, such as a file's statistics hold, in microseconds; a local time that exists twice is the first."""
    import pyarrow as pa
    import pyarrow.compute as pc

    time = pa.scalar(value, kind).cast(pa.timestamp("us", getattr(kind, "tz", None)))
    if zone is not None and zoned(kind) is False:
        time = pc.assume_timezone(time, zone, ambiguous="earliest", nonexistent="earliest")
    return float(time.value)
