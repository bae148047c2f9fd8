"""Columns of Python objects in pandas' data frames, checked before Arrow makes one type of each.

What: `refuse_mixed_objects(value, side, names)`.
Why: Arrow takes the type of such a column from its first values and converts others that fit, silently: a datetime after a date
loses its time of day, a zone is dropped or made up, text becomes bytes, an integer becomes a date.
Stays out: values within lists and structs, and mixtures that Arrow refuses itself.
"""

from __future__ import annotations

import datetime as dt
from collections.abc import Collection, Iterator
from numbers import Number
from typing import Any

import numpy as np

from swjoin.core.errors import UserError

# The first that fits: a bool is an int, a datetime is a date.
_KINDS: tuple[tuple[tuple[type, ...], str], ...] = (
    ((bool, np.bool_), "a boolean"),
    ((dt.datetime,), "a datetime"),
    ((dt.date,), "a date"),
    ((dt.time,), "a time of day"),
    ((dt.timedelta, np.timedelta64), "a duration"),
    ((np.datetime64,), "a numpy.datetime64"),
    ((str,), "text"),
    ((bytes, bytearray, memoryview), "bytes"),
    ((Number, np.number), "a number"),
)
_ZONED = {"a datetime", "a time of day"}
_SIMPLE = {str, type(None)}


def refuse_mixed_objects(value: object, side: str, names: Collection[str] | None) -> None:
    """UserError for a column or index level of a data frame of pandas that holds objects of several kinds, or times that Arrow
    would cut. names: the columns that are used; None: all."""
    if not any(kind.__module__.partition(".")[0] == "pandas" for kind in type(value).__mro__):
        return
    for name, column in _columns(value):
        if names is None or name in names:
            values = _objects(column)
            if values is not None:
                _check(values, column, f"{side}, row", f"(counting from 0): column {name}:")


def _columns(frame: Any) -> Iterator[tuple[str, Any]]:
    """The columns of a data frame and the levels of its index, by the names that Arrow gives them."""
    for i, name in enumerate(getattr(frame, "columns", ())):
        yield str(name), frame.iloc[:, i]
    index = getattr(frame, "index", None)
    for i, name in enumerate(getattr(index, "names", ())):
        if name is not None:
            yield str(name), index.get_level_values(i)  # type: ignore[union-attr]


def _objects(column: Any) -> Any:
    """The values of a column whose type, or whose categories' type, is object; None for others."""
    categories = getattr(column.dtype, "categories", None)
    if (column.dtype if categories is None else categories.dtype).kind != "O":
        return None
    if categories is not None and set(map(type, categories)) <= _SIMPLE:
        return None
    return np.asarray(column.astype(object), object)


def _check(values: Any, column: Any, row: str, name: str) -> None:
    types = set(map(type, values))
    if types <= _SIMPLE:
        return
    known = np.flatnonzero(np.asarray(column.notna()))  # what pandas calls missing is of any type
    values = values[known]
    types = set(map(type, values))
    kinds = {_kind_of(kind) for kind in types} - {None}
    if len(kinds) > 1 or (kinds & _ZONED and len({getattr(item, "tzinfo", None) is None for item in values}) > 1):
        _refuse_kinds(values, known, row, name)
    if any(hasattr(kind, "nanosecond") or hasattr(kind, "nanoseconds") for kind in types):
        for i, item in enumerate(values):
            if getattr(item, "nanosecond", 0) or getattr(item, "nanoseconds", 0):
                raise UserError(
                    f"{row} {known[i]} {name} {item} is finer than one microsecond, which a column of objects would lose; "
                    "round it, or make the column datetime64 or timedelta64"
                )


def _refuse_kinds(values: Any, rows: Any, row: str, name: str) -> None:
    """UserError with the first value of each of two kinds. rows: of the values."""
    one = at = None
    for i, item in enumerate(values):
        kind = _kind_of_value(item)
        if kind is None or kind == one:
            continue
        if one is None:
            one, at = kind, i
            continue
        zones = one.partition(" with")[0] == kind.partition(" with")[0]
        raise UserError(
            f"{row} {rows[i]} {name} {item!s:.60} is {kind}, {values[at]!s:.60} in row {rows[at]} is {one}; "
            f"{'give all of them a zone, or none' if zones else 'give all values of the column one type'}"
        )


def _kind_of(kind: type) -> str | None:
    """What values of a type are, for people; None for types that are not looked into."""
    return next((name for types, name in _KINDS if issubclass(kind, types)), None)


def _kind_of_value(item: Any) -> str | None:
    kind = _kind_of(type(item))
    if isinstance(item, (dt.datetime, dt.time)):
        return f"{kind} {'without' if item.tzinfo is None else 'with'} a time zone"
    return kind
