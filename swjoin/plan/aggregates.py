"""Aggregates over windows of time, as nodes of logical plans.

What: `Aggregate`, `aggregate_types`, `aggregate_columns_of`.
Why: its key, windows and calls, and the types of what it gives, are one description for plans, explanations and instances.
Stays out: other nodes (`plan.logical`), its watermark rule (`plan.watermarks`), accumulating (`operators.aggregation`).

A row of the answer has the grouping columns, the window's start and end, and the results of the calls. Its id is the hash of
the group's values and the window's start (`core.row_digests`). A running aggregate has the results of all rows of the group up
to the end of the window, for each window in which the group has rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeAlias

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.aggregate_columns import Call as CallColumns
from swjoin.core.aggregate_functions import Accumulation, accumulation_of, decimal_unit, result_type
from swjoin.core.columns import type_named
from swjoin.core.errors import UserError
from swjoin.core.group_keys import GroupKeys
from swjoin.core.row_codec import storage
from swjoin.core.time_windows import TimeWindows
from swjoin.core.units import format_duration

WindowTime: TypeAlias = Literal["last", "start", "end"]
NAIVE = "timestamp[us]"
_AFTER = {"last": -1, "end": 0}  # of the window's end, microseconds


def ts_after(windows: TimeWindows, output_time: WindowTime) -> int:
    """Time of a row, microseconds from its window's start."""
    return 0 if output_time == "start" else windows.size_us + _AFTER[output_time]


@dataclass(frozen=True)
class AggregateCall:
    """A column that is computed. column: of the input; None for count(*). by: of arg_min and arg_max, the column that is
    compared. distinct: of different values alone. place: of min, max, arg_min and arg_max, 2 for the second least or greatest
    value, and so on; null if there are fewer."""

    name: str
    function: str
    column: str | None = None
    by: str | None = None
    distinct: bool = False
    place: int = 1

    @property
    def description(self) -> str:
        return f"{self.function}{' distinct' if self.distinct else ''}{f' {self.place}' if self.place > 1 else ''}"

    def accumulation(self, types: Mapping[str, str]) -> Accumulation:
        """types: of the input. UserError where the function takes none such."""
        return accumulation_of(self.function, *self._arguments(types), distinct=self.distinct, place=self.place)

    def result_type(self, types: Mapping[str, str]) -> str:
        return result_type(self.function, *self._arguments(types), distinct=self.distinct, place=self.place)

    def _arguments(self, types: Mapping[str, str]) -> tuple[str | None, str | None]:
        return None if self.column is None else types[self.column], None if self.by is None else types[self.by]


class OneKeyedInput:
    """A node of groups with one input. key: grouping columns."""

    input: str
    key: tuple[str, ...]

    @property
    def inputs(self) -> tuple[str, ...]:
        return (self.input,)

    @property
    def keys(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """By port."""
        return self.key, ()


@dataclass(frozen=True)
class Aggregate(OneKeyedInput):
    """Results of functions over the rows of each window and group.

    key: grouping columns, any number; null is a group. start, end: names of the window's columns. output_time: the time of a
    row: the last microsecond of its window, its start or its end. time_type: of the window's columns, a timestamp of
    microseconds, with a zone if the rows' times have one. order: a column by which rows are earlier or later than others, for
    the calls that take one of them; "" for their time. running: results are of all rows of the group that are before the end
    of the window; windows do not overlap then, and no call is decided by rows.
    """

    name: str
    input: str
    key: tuple[str, ...]
    windows: TimeWindows
    calls: tuple[AggregateCall, ...] = ()
    start: str = "window_start"
    end: str = "window_end"
    output_time: WindowTime = "last"
    time_type: str = NAIVE
    order: str = ""
    running: bool = False

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input. wanted: columns of its rows that are needed; all are made."""
        read = {name for call in self.calls for name in (call.column, call.by) if name is not None}
        return {*self.key, *read, *([self.order] if self.order else [])}

    @property
    def ts_after_us(self) -> int:
        """Time of a row, from its window's start."""
        return ts_after(self.windows, self.output_time)

    @property
    def description(self) -> str:
        size, slide = (format_duration(us) for us in (self.windows.size_us, self.windows.slide_us))
        kind = f"windows of {size}" + ("" if size == slide else f" every {slide}")
        kind = f"totals every {slide}" if self.running else kind
        return f"{', '.join(call.description for call in self.calls) or 'groups'} by {', '.join(self.key) or 'window'}, {kind}"


@dataclass(frozen=True)
class PreAggregate:
    """What a sender of rows to an aggregate does last: it sends groups, with their accumulators (`state.pre_aggregation`)."""

    node: Aggregate

    @property
    def description(self) -> str:
        return "aggregated before they travel"


def is_pre_aggregated(node: Aggregate, types: Mapping[str, str]) -> bool:
    """Whether groups come to an aggregate: for views, and where one instance has all rows, as there are no groups; but not
    where rows decide a call. types: of the input."""
    few = node.running or not node.key
    by_rows = any(call.accumulation(types) == Accumulation.ROWS for call in node.calls)
    return few and not by_rows


def aggregate_types(node: Aggregate, types: Mapping[str, str], time: str | None) -> list[tuple[str, str]]:
    """Names and types of the columns of an aggregate's rows. types, time: of its input. UserError if it cannot have them."""
    if time is None:
        raise UserError(f"input {node.input} has no time", subject=node.name, remedy="name the time column of its sources")
    missing = sorted(name for name in node.reads(set()) if name not in types)
    if missing:
        raise UserError(f"no column {missing[0]}", subject=node.name, remedy=f"columns are {', '.join(types)}")
    if node.running and node.windows.size_us != node.windows.slide_us:
        raise UserError("totals of windows that overlap, or leave gaps", subject=node.name, remedy="give one length")
    found = [(name, types[name]) for name in node.key]
    found += [(name, node.time_type) for name in (node.start, node.end)]
    try:
        GroupKeys([(name, type_named(types[name])) for name in node.key])
        for call in node.calls:
            found.append((call.name, call.result_type(types)))
            if node.running:
                check_running(call.accumulation(types))
    except UserError as error:
        raise error.prefixed(node.name) from None
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"two columns are named {twice[0]}", subject=node.name, remedy="name each once")
    return found


def check_running(accumulation: Accumulation) -> None:
    """UserError for a call that a running aggregate cannot have."""
    if accumulation == Accumulation.ROWS:
        raise UserError("is decided by rows, of which views keep none", remedy="use count, sum, avg, or min or max of numbers")


def aggregate_columns_of(node: Aggregate, types: Mapping[str, str], out: Mapping[str, str]) -> AggregateColumns:
    """What an instance needs. types: of the input. out: of the aggregate's rows."""
    calls = []
    for call in node.calls:
        kind: Any = storage(type_named(out[call.name]))
        plain = replace(call, distinct=False).accumulation(types)
        how = call.accumulation(types)
        of_distinct = plain if call.distinct else None
        unit = decimal_unit(types[call.column]) if call.function == "avg" and call.column is not None else 1
        calls.append(CallColumns(call.name, call.function, call.column, how, kind, call.by, of_distinct, call.place, unit))
    keys = tuple((name, type_named(types[name])) for name in node.key)
    time: Any = type_named(out[node.start])
    windows = node.windows.size_us, node.ts_after_us
    edges = node.start, node.end, time
    grouped = is_pre_aggregated(node, types)
    return AggregateColumns(node.name, node.key, keys, *edges, *windows, tuple(calls), node.order, pre_aggregated=grouped)
