"""Rows that are kept until they are final, as nodes of logical plans: top-n, sessions, windows of tuples or of data, views.

What: `Ranked`, `Sessions`, `TupleWindows`, `AlignedWindows`, `Views`; `kept_types`, `kept_columns_of`; `Keyed`, these,
aggregates, `LiveGroups` (`plan.live_groups`) and `CountedJoin` (`plan.counted_joins`): nodes of groups with one input.
Why: key, order and windows, and the types of what they give, are one description for plans, explanations and instances.
Stays out: other nodes (`plan.logical`), watermarks (`plan.watermarks`), keeping rows (`operators.ranking`,
`operators.sessions`, `operators.group_windows`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final, Literal, TypeAlias

from swjoin.core.columns import type_named
from swjoin.core.errors import UserError
from swjoin.core.group_keys import GroupKeys
from swjoin.core.kept_columns import OrderKey, RankColumns, RepeatedColumns, SessionColumns
from swjoin.core.time_windows import TimeWindows
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import NAIVE, Aggregate, OneKeyedInput, WindowTime, ts_after
from swjoin.plan.counted_joins import CountedJoin
from swjoin.plan.live_groups import LiveGroups

WHOLE: Final = TimeWindows((1 << 61) - 1, (1 << 61) - 1, -(1 << 60))  # one window of all times


@dataclass(frozen=True)
class Ranked(OneKeyedInput):
    """The first rows of each window and group, with their numbers.

    key: grouping columns, any number; null is a group. order: rows that are equal in it are in the order of their ids. most:
    rows of each window and group. rank: name of the column of numbers, from 1 on. start, end: names of the window's columns, ""
    for none. output_time, time_type: as of an aggregate. A row's id is `core.kept_columns.window_row_ids`.
    """

    name: str
    input: str
    key: tuple[str, ...]
    order: tuple[OrderKey, ...]
    most: int
    windows: TimeWindows
    rank: str = "rank"
    start: str = ""
    end: str = ""
    output_time: WindowTime = "last"
    time_type: str = NAIVE

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it groups and orders."""
        return {*self.key, *(column for column, _, _ in self.order), *(wanted - {self.rank, self.start, self.end})}

    @property
    def ts_after_us(self) -> int:
        """Time of a row, from its window's start."""
        return ts_after(self.windows, self.output_time)

    @property
    def description(self) -> str:
        order = ", ".join(f"{column}{' descending' if down else ''}" for column, down, _ in self.order)
        what = f"first {self.most} rows" + (f" by {order}" if order else "") + f" of {', '.join(self.key) or 'window'}"
        if self.windows == WHOLE:
            return f"{what}, of the whole input"
        size, slide = (format_duration(us) for us in (self.windows.size_us, self.windows.slide_us))
        return f"{what}, windows of {size}" + ("" if size == slide else f" every {slide}")


@dataclass(frozen=True)
class Sessions(OneKeyedInput):
    """Rows with start and end of the session of their group that they are in.

    key: grouping columns, any number; null is a group. gap_us: pause, microseconds, from which on a session ends; its end is a
    gap after its last row. output_time: the time of a row: the last microsecond of its session, or its end.
    """

    name: str
    input: str
    key: tuple[str, ...]
    gap_us: int
    start: str = "window_start"
    end: str = "window_end"
    output_time: Literal["last", "end"] = "last"
    time_type: str = NAIVE

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it groups."""
        return {*self.key, *(wanted - {self.start, self.end})}

    @property
    def ts_after_us(self) -> int:
        """Time of a row, from its session's end."""
        return 0 if self.output_time == "end" else -1

    @property
    def description(self) -> str:
        return f"sessions by {', '.join(self.key) or 'time alone'}, gap {format_duration(self.gap_us)}"


@dataclass(frozen=True)
class TupleWindows(OneKeyedInput):
    """Rows, once for each window of tuples of their group that has them, with number and edges of the window.

    key: grouping columns, any number; null is a group. size, slide: rows; the rows of a group are numbered from 0 on in the
    order of time and id, and window k has the numbers k slide to k slide + size - 1. partial: whether windows that the stream
    does not fill come out, at its end. start, end: names of the columns of the times of a window's first and last row. window,
    row: of the numbers of window and row in their group. The time of a row is that of its window's last one; in a window that
    is not full it is `core.ids.LAST_TIME_US`.
    """

    name: str
    input: str
    key: tuple[str, ...]
    size: int
    slide: int
    partial: bool = False
    start: str = "window_start"
    end: str = "window_end"
    window: str = "window_number"
    row: str = "row_number"
    time_type: str = NAIVE
    output_time: Literal["end"] = "end"

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it groups."""
        return {*self.key, *(wanted - {self.start, self.end, self.window, self.row})}

    @property
    def spans(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("size", self.size), ("advance", self.slide)

    @property
    def description(self) -> str:
        every = "" if self.size == self.slide else f" every {self.slide}"
        partial = ", and those that the stream does not fill" if self.partial else ""
        return f"windows of {self.size} rows{every} by {', '.join(self.key) or 'time alone'}{partial}"


@dataclass(frozen=True)
class AlignedWindows(OneKeyedInput):
    """Rows, once for each window of time of their group that has them, with start and end of the window.

    key: grouping columns, any number; null is a group. size_us, slide_us: microseconds; t0 is the time of the group's first
    row, and window k, from 0 on, is [t0 + k slide, t0 + k slide + size], both ends included. start, end: names of the columns
    of its edges. output_time: the time of a row: the end of its window, or the start.
    """

    name: str
    input: str
    key: tuple[str, ...]
    size_us: int
    slide_us: int
    start: str = "window_start"
    end: str = "window_end"
    output_time: Literal["end", "start"] = "end"
    time_type: str = NAIVE

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it groups."""
        return {*self.key, *(wanted - {self.start, self.end})}

    @property
    def spans(self) -> tuple[tuple[str, int], tuple[str, int]]:
        return ("size", self.size_us), ("slide", self.slide_us)

    @property
    def description(self) -> str:
        size, slide = format_duration(self.size_us), format_duration(self.slide_us)
        every = "" if self.size_us == self.slide_us else f" every {slide}"
        return f"windows of {size}{every} from the first row on, by {', '.join(self.key) or 'time alone'}"


@dataclass(frozen=True)
class Views(OneKeyedInput):
    """The latest row of every group, once for each view: at every multiple of a time, from that of the first row to that of the
    last one. They are the complete answers of an online aggregation (BiStream, section 3.3), of which a running aggregate
    brings the groups that have changed.

    key: grouping columns, any number; null is a group. every_us: microseconds; the rows' times are multiples. as_of: name of
    the column of a view's time, which its rows have. All rows come to one instance: it knows which view is the last one. When
    rows of a view are out, and which view is the next, depends on rows that are yet to come; so there is no watermark.
    """

    name: str
    input: str
    key: tuple[str, ...]
    every_us: int
    as_of: str = "as_of"
    time_type: str = NAIVE
    output_time: Literal["end"] = "end"

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        return (), ()

    @property
    def start(self) -> str:
        return ""

    @property
    def end(self) -> str:
        return self.as_of

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it groups."""
        return {*self.key, *(wanted - {self.as_of})}

    @property
    def spans(self) -> tuple[tuple[str, int]]:
        return (("length", self.every_us),)

    @property
    def description(self) -> str:
        return f"views of {', '.join(self.key) or 'the total'} every {format_duration(self.every_us)}"


Repeated: TypeAlias = TupleWindows | AlignedWindows | Views
Kept: TypeAlias = Ranked | Sessions | TupleWindows | AlignedWindows | Views
Keyed: TypeAlias = Aggregate | Ranked | Sessions | TupleWindows | AlignedWindows | Views | LiveGroups | CountedJoin


def kept_types(node: Kept, types: Mapping[str, str], time: str | None) -> list[tuple[str, str]]:
    """Names and types of the columns of a node's rows. types, time: of its input. UserError if it cannot have them."""
    if time is None:
        raise UserError(f"input {node.input} has no time", subject=node.name, remedy="name the time column of its sources")
    missing = sorted(name for name in node.reads(set()) if name not in types)
    if missing:
        raise UserError(f"no column {missing[0]}", subject=node.name, remedy=f"columns are {', '.join(types)}")
    if isinstance(node, Ranked) and node.most < 1:
        raise UserError(f"the first {node.most} rows of a group", subject=node.name, remedy="keep one or more")
    if isinstance(node, Sessions) and node.gap_us < 1:
        raise UserError(f"a session's gap is {node.gap_us} us", subject=node.name, remedy="give a time above zero")
    for what, value in node.spans if isinstance(node, Repeated) else ():
        if value < 1:
            raise UserError(f"a window's {what} is {value}", subject=node.name, remedy="give a number above zero")
    try:
        GroupKeys([(name, type_named(types[name])) for name in node.key])
    except UserError as error:
        raise error.prefixed(node.name) from None
    found = [*types.items(), *((name, node.time_type) for name in (node.start, node.end) if name)]
    if isinstance(node, Ranked):
        found.append((node.rank, "int64"))
    if isinstance(node, TupleWindows):
        found += [(name, "int64") for name in (node.window, node.row)]
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"two columns are named {twice[0]}", subject=node.name, remedy="name each once")
    return found


def kept_columns_of(node: Kept, types: Mapping[str, str], wanted: set[str]) -> RankColumns | SessionColumns | RepeatedColumns:
    """What an instance needs. types: of the input. wanted: columns of its rows that a later node needs."""
    keys = tuple((name, type_named(types[name])) for name in node.key)
    shown = tuple(name for name in types if name in wanted)
    time: Any = type_named(node.time_type)
    start, end = (name if name in wanted else "" for name in (node.start, node.end))
    head = node.name, node.key, keys, shown, start, end, time
    if isinstance(node, Sessions):
        return SessionColumns(*head, node.ts_after_us)
    if isinstance(node, Repeated):
        numbers = (node.window, node.row) if isinstance(node, TupleWindows) else ()
        return RepeatedColumns(*head, *(name if name in wanted else "" for name in numbers))
    return RankColumns(*head, node.order, node.most, node.rank, node.windows.size_us, node.ts_after_us)
