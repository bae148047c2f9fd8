"""Time columns: the check that both sides are comparable, and conversion to microseconds.

What: `TimeColumn`, `check_times` (the check of all front ends), `times_us`, `microseconds`, `instants`.
Why: a time with a zone is an instant, a time without one is a clock reading. Comparing the two gives a plausible wrong answer.
Stays out: reading columns (`connectors.files.formats`), other columns of a join (`connectors.row_encoder`).

Integers are instants: a number of units since 1970, UTC. Dates and timestamps without a zone are local.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Protocol

import numpy as np

from swjoin.core.arrow_views import booleans_of, integers_of
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import Spelled, Text, UserError, setting
from swjoin.core.units import MAX_SPAN_US

if TYPE_CHECKING:
    import pyarrow as pa

TIME_UNITS = ("s", "ms", "us", "ns")
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}
_PER_SECOND = {"s": 1, "ms": 1_000, "us": 1_000_000, "ns": 1_000_000_000}
_DAY_S = 86_400
_EPOCH = datetime(1970, 1, 1)
_FIRST_S, _LAST_S = (int((datetime(year, 1, 1) - _EPOCH).total_seconds()) for year in (1, 9999))


def zoned(kind: pa.DataType) -> bool | None:
    """Whether times of a type have a zone; None for types that are neither timestamps nor dates."""
    import pyarrow.types as t

    if t.is_timestamp(kind):
        return kind.tz is not None
    return False if t.is_date(kind) else None


@dataclass(frozen=True)
class TimeColumn:
    """One side's time column. side: left or right. origin: the side's origin in error messages. unit: of integers. zone: the
    zone of local times."""

    side: str
    origin: str
    name: str
    kind: pa.DataType
    unit: str | None
    zone: str | None

    @property
    def where(self) -> str:
        return f"{self.origin}: time column {self.name}"


def check_times(left: TimeColumn, right: TimeColumn, remedy: str | None = None) -> None:
    """UserError unless the times of both sides are comparable, and every given unit and zone applies. remedy: the alternative
    to giving both sides a zone; None: to name the zone of the side without one."""
    import pyarrow.types as t

    both = (left, right)
    for own in both:
        if not (zoned(own.kind) is not None or t.is_integer(own.kind)):
            raise UserError(f"{own.where} is {own.kind}; it must be a timestamp, a date or an integer")
    unitless = [own for own in both if t.is_integer(own.kind) and own.unit is None]
    if unitless:
        own = unitless[0]
        name = "time_unit" if len(unitless) == 2 else f"{own.side}_time_unit"
        unit = setting(name, f"{own.side}.time_unit", *TIME_UNITS)
        raise UserError(f"{own.where} holds integers", remedy=("say which unit with ", unit))
    for own, other in (both, both[::-1]):
        shared = own.unit == other.unit and t.is_integer(other.kind)
        if own.unit is not None and not t.is_integer(own.kind) and not shared:
            raise UserError(f"{own.where} is {own.kind}; time units are for integers: leave the {own.side} side's out")
        shared = own.zone == other.zone and zoned(other.kind) is False
        if own.zone is not None and zoned(own.kind) is not False and not shared:
            zone = setting("assume_timezone", f"{own.side}.assume_timezone")
            raise UserError(
                f"{own.where} is {own.kind}", remedy=(zone, " is for timestamps and dates without a zone: leave it out")
            )
    naive = [own for own in both if zoned(own.kind) is False and own.zone is None]
    others = [own for own in both if own not in naive and zoned(own.kind) is not None]
    if naive and others:
        local, instant = naive[0], others[0]
        has = "is given one" if zoned(instant.kind) is False else "has one"
        zone = setting("assume_timezone", f"{local.side}.assume_timezone", "ZONE")
        named = f"or name the zone in which the {local.side} times are local with ", zone
        raise UserError(
            f"{local.where} has no time zone ({local.kind}), {instant.where} {has} ({instant.zone or instant.kind}), so they "
            "cannot be compared",
            remedy=("give both a zone, ", *(named if remedy is None else (remedy,))),
        )


class Refuse(Protocol):
    """Raises UserError for the first row of a mask, if there is one."""

    def __call__(self, wrong: Bool, problem: str, remedy: Text = "") -> None: ...


def times_us(column: pa.Array, time: TimeColumn, describe_row: Callable[[int], str] | None = None) -> tuple[I64, Bool | None]:
    """Microseconds since 1970, and which rows have a time; None: all. describe_row: for errors.

    UserError for a time that is finer than microseconds, out of range, or a local time that its zone has twice or never.
    """
    valid = booleans_of(column.is_valid()) if column.null_count else None

    def refuse(wrong: Bool, problem: str, remedy: Text = "") -> None:
        wrong = wrong if valid is None else wrong & valid
        if wrong.any():
            subject = "" if describe_row is None else describe_row(int(np.flatnonzero(wrong)[0]))
            raise UserError(f"time column {time.name} {problem}", subject=subject, remedy=remedy)

    return microseconds(column, time, refuse), valid


def microseconds(column: pa.Array, time: TimeColumn, refuse: Refuse) -> I64:
    """Microseconds since 1970; unspecified for nulls."""
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
        column = column.view(pa.int64())
    if column.null_count:
        column = column.fill_null(0)
    values = integers_of(column)
    if unit == "ns":
        refuse(values % 1000 != 0, "is finer than one microsecond; round the column to microseconds")
        values = values // 1000
    if values.dtype == np.uint64 and len(values) and int(values.max()) > MAX_SPAN_US:
        values = np.minimum(values, MAX_SPAN_US)
    values = values.astype(np.int64, copy=False)
    scale = _UNIT_US.get(unit, 1)
    limit = MAX_SPAN_US // scale
    if len(values) and (int(values.max()) >= limit or int(values.min()) <= -limit):
        units = setting("time_unit", f"{time.side}.time_unit"), setting(f"{time.side}_time_unit", f"{time.side}.time_unit")
        both = Spelled(*(", ".join(dict.fromkeys(words)) for words in zip(*units, strict=True)))
        refuse((values >= limit) | (values <= -limit), "is out of range", ("check ", both) if t.is_integer(kind) else "")
    return values if scale == 1 else values * scale


def instants(column: pa.Array, zone: str, refuse: Callable[[Bool, str], None]) -> pa.Array:
    """Local times of a zone as instants; a date is its midnight. Times that the zone has twice or never are refused."""
    import pyarrow as pa

    if not pa.types.is_timestamp(column.type):
        column = column.cast(pa.timestamp("s" if pa.types.is_date32(column.type) else "ms"))
    per_s = _PER_SECOND[column.type.unit]
    known = booleans_of(column.is_valid())
    values = integers_of(column.cast(pa.int64()).fill_null(0))
    seconds = values // per_s
    refuse(((seconds < _FIRST_S) | (seconds >= _LAST_S)) & known, f"is out of range: {zone} has local times in years 1 to 9998")
    before, after = _offsets_s(zone, np.clip(seconds, _FIRST_S, _LAST_S - 1))
    wrong = (before != after) & known
    if wrong.any():
        row = int(wrong.argmax())
        what = (
            f"exists twice in {zone}: its clocks are turned back over it; give such times with a zone or an offset"
            if before[row] > after[row]
            else f"does not exist in {zone}: its clocks are turned forward over it; is it the right zone?"
        )
        refuse(wrong, f"is {column[row]}, which {what}")
    return pa.array(values - before * per_s, mask=~known).cast(pa.timestamp(column.type.unit, "UTC"))


def _offsets_s(zone: str, local_s: I64) -> tuple[I64, I64]:
    """Offsets from UTC of these local times, for their first and their second occurrence. Only days with a clock change have
    more than one piece. Arrow's own rules end in 2037."""
    pieces = [piece for day in np.unique(local_s // _DAY_S).tolist() for piece in _pieces(zone, day)]
    starts, before, after = (np.array(column, np.int64) for column in zip(*pieces, strict=True)) if pieces else [local_s] * 3
    at = np.searchsorted(starts, local_s, side="right") - 1
    return before[at], after[at]


@lru_cache(maxsize=1 << 12)
def _pieces(zone: str, day: int) -> list[tuple[int, int, int]]:
    """Pieces of a local day with constant offsets: (first second, offset of the first occurrence, of the second one)."""
    from zoneinfo import ZoneInfo

    rules = ZoneInfo(zone)

    def offsets(local_s: int) -> tuple[int, int]:
        time = _EPOCH + timedelta(seconds=local_s)
        both = (time.replace(tzinfo=rules, fold=fold).utcoffset() or timedelta() for fold in (0, 1))
        first, second = (offset.days * _DAY_S + offset.seconds for offset in both)
        return first, second

    def changes(low: int, high: int) -> list[int]:
        """Seconds in (low, high] at which the offsets change."""
        if offsets(low) == offsets(high):
            return []
        middle = (low + high) // 2
        return [high] if high - low == 1 else changes(low, middle) + changes(middle, high)

    first = day * _DAY_S
    return [(at, *offsets(at)) for at in [first, *changes(first, first + _DAY_S - 1)]]
