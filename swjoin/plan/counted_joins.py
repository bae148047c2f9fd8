"""Joins of rows that are alive at once where windows count rows, as nodes of logical plans.

What: `CountedJoin`; `counted_types`, `counted_columns_of`.
Why: a window of the latest n rows of an input ends with a row of that input, whatever its time, so which rows are alive at
once follows from one order of all inputs (CQELS Cloud: `[TRIPLES n]`), and not from bounds of time.
Stays out: watermarks (`plan.watermarks`), keeping and joining rows (`operators.counted_join`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from swjoin.core.columns import type_named
from swjoin.core.counted_columns import CountedColumns
from swjoin.core.errors import UserError
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import NAIVE, OneKeyedInput

_KEYS = ("string", "large_string", "int64")


@dataclass(frozen=True)
class CountedJoin(OneKeyedInput):
    """Rows of several parts, which are the inputs of one union, that agree in the columns which they share, and are alive at
    once.

    part: int64 column of the input, the number of a row's part, from 0 on. columns: of each part, those that its rows have; the
    others are null. streams: of each part, a number. counts, widths: of each part's window, rows, or if that is 0
    microseconds. All rows are in one order, that of time, stream, id and part. A row is alive from its place on: in a window of
    n rows up to the place of the n-th row of its part after it; in a window of a width w up to and with its time + w. A result
    has the columns of its parts' rows, shared ones once, and the time of the last one, in the columns `time`, of `time_type`,
    and `born`, int64, microseconds. Its id is that of a join of the parts in a row.
    """

    name: str
    input: str
    part: str
    columns: tuple[tuple[str, ...], ...]
    streams: tuple[int, ...]
    counts: tuple[int, ...]
    widths: tuple[int, ...]
    time: str = "ts"
    born: str = "born"
    time_type: str = NAIVE
    output_time: Literal["end"] = "end"

    @property
    def key(self) -> tuple[str, ...]:  # type: ignore[override]
        """None: one instance knows the order of all rows."""
        return ()

    @property
    def start(self) -> str:
        return ""

    @property
    def end(self) -> str:
        return self.time

    @property
    def shared(self) -> tuple[str, ...]:
        """Columns that two parts have, or more."""
        having = Counter(name for names in self.columns for name in names)
        return tuple(name for name, count in having.items() if count > 1)

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input from which these of its own come, and by which it joins."""
        return {self.part, *self.shared, *(wanted - {self.time, self.born})}

    @property
    def description(self) -> str:
        windows = ", ".join(
            f"the last {count:,} rows" if count else f"{format_duration(width)}"
            for count, width in zip(self.counts, self.widths, strict=True)
        )
        return f"join of {len(self.columns)} inputs by {', '.join(self.shared) or 'time alone'}, windows of {windows}"


def counted_types(node: CountedJoin, types: Mapping[str, str], time: str | None) -> list[tuple[str, str]]:
    """Names and types of the columns of a node's rows. types, time: of its input. UserError if it cannot have them."""
    if time is None:
        raise UserError(f"input {node.input} has no time", subject=node.name, remedy="name the time column of its sources")
    named = [node.part, *(name for names in node.columns for name in names)]
    missing = sorted(name for name in named if name not in types)
    if missing:
        raise UserError(f"no column {missing[0]}", subject=node.name, remedy=f"columns are {', '.join(types)}")
    parts = len(node.columns)
    alike = all(len(given) == parts for given in (node.streams, node.counts, node.widths))
    if parts < 2 or not alike:
        raise UserError(f"{parts} parts", subject=node.name, remedy="give two or more, each with a stream and a window")
    if nowhere := [name for name in types if name not in named]:
        raise UserError(f"column {nowhere[0]} is of no part", subject=node.name, remedy="say which parts have it")
    if types[node.part] != "int64":
        raise UserError(f"column {node.part} is {types[node.part]}", subject=node.name, remedy="number the parts in int64")
    if min(*node.counts, *node.widths) < 0:
        raise UserError("a window below zero", subject=node.name, remedy="give a number of rows, or a time")
    for name in node.shared:
        if types[name] not in _KEYS:
            remedy = f"cast it to one of {', '.join(_KEYS)}"
            raise UserError(f"shared column {name} is {types[name]}", subject=node.name, remedy=remedy)
    found = [(name, kind) for name, kind in types.items() if name != node.part]
    found += [(node.time, node.time_type), (node.born, "int64")]
    twice = [name for name, count in Counter(name for name, _ in found).items() if count > 1]
    if twice:
        raise UserError(f"two columns are named {twice[0]}", subject=node.name, remedy="name each once")
    return found


def counted_columns_of(node: CountedJoin, types: Mapping[str, str], wanted: set[str]) -> CountedColumns:
    """What an instance needs. types: of the input. wanted: columns of its rows that a later node needs."""
    home = {name: number for number, names in reversed(list(enumerate(node.columns))) for name in names}
    shown = tuple((name, home[name]) for name in types if name in wanted and name != node.part)
    time, born = (name if name in wanted else "" for name in (node.time, node.born))
    return CountedColumns(node.name, node.part, node.shared, shown, time, type_named(node.time_type), born)
