"""Aggregates of the rows of each group that are alive, as nodes of logical plans.

What: `LiveGroups`; `live_types`, `live_columns_of`.
Why: mappings of RDF streams live from a birth to a death, whatever their window is (CQELS Cloud), and what a query says of a
group changes whenever one of its mappings is born or dies; both times are columns, so no negative mapping travels.
Stays out: watermarks (`plan.watermarks`), births and deaths in order (`state.life_kernel`), keeping rows
(`operators.live_groups`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, TypeAlias

from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.columns import type_named
from swjoin.core.errors import UserError
from swjoin.core.group_keys import GroupKeys
from swjoin.core.life_columns import LifeCall, LifeColumns
from swjoin.core.units import format_duration
from swjoin.plan.aggregates import AggregateCall, OneKeyedInput

LifeMode: TypeAlias = Literal["changes", "boundaries", "births"]
_FUNCTIONS = ("count", "sum", "min", "max")
_MODES = ("changes", "boundaries", "births")


@dataclass(frozen=True)
class LiveGroups(OneKeyedInput):
    """Results of functions over the rows of a group that are alive at an instant.

    key: grouping columns, any number; null is a group. born, dead: int64 columns, microseconds: a row is alive in [born, dead),
    and never dies if `dead` is `core.ids.LAST_TIME_US` or later. No row is born before its own time. calls: count, sum, min and
    max of int64 or double columns, count and sum also of different values. as_of: name of the int64 column of the instant,
    which is the time of a row. every_us: microseconds, of boundaries. longest_us: no row dies later than this after its own
    time, and none lives for ever; 0: unknown. mode: the instants of a group.

    changes: those at which a row of it is born or dies, the one at which it empties among them. boundaries: multiples of
    `every_us`, of which all births and deaths are some, at which a row of it is alive; where a row never dies, up to the last
    birth or death in the group. births: those at which a row of it is born when no other one is alive, where the deaths of an
    instant come before its births; there are no calls then.
    """

    name: str
    input: str
    key: tuple[str, ...]
    born: str
    dead: str
    calls: tuple[AggregateCall, ...] = ()
    as_of: str = "as_of"
    every_us: int = 0
    mode: LifeMode = "changes"
    longest_us: int = 0
    output_time: Literal["end"] = "end"

    @property
    def start(self) -> str:
        return ""

    @property
    def end(self) -> str:
        return self.as_of

    @property
    def may_wait(self) -> bool:
        """Whether a boundary that has passed may come out later: in the group of a row that never dies."""
        return self.mode == "boundaries" and not self.longest_us

    def reads(self, wanted: set[str]) -> set[str]:
        """Columns of its input. wanted: columns of its rows that are needed; all are made."""
        return {*self.key, self.born, self.dead, *(call.column for call in self.calls if call.column is not None)}

    @property
    def description(self) -> str:
        what = ", ".join(call.description for call in self.calls) or "groups"
        when = {
            "changes": "at births and deaths",
            "births": "as the first row is born",
            "boundaries": f"every {format_duration(self.every_us)}",
        }
        return f"{what} of rows that are alive by {', '.join(self.key) or 'instant'}, {when.get(self.mode, self.mode)}"


def live_types(node: LiveGroups, types: Mapping[str, str], time: str | None) -> list[tuple[str, str]]:
    """Names and types of the columns of a node's rows. types, time: of its input. UserError if it cannot have them."""
    if time is None:
        raise UserError(f"input {node.input} has no time", subject=node.name, remedy="name the time column of its sources")
    missing = sorted(name for name in node.reads(set()) if name not in types)
    if missing:
        raise UserError(f"no column {missing[0]}", subject=node.name, remedy=f"columns are {', '.join(types)}")
    _check(node, types)
    found = [(name, types[name]) for name in node.key] + [(node.as_of, "int64")]
    try:
        GroupKeys([(name, type_named(types[name])) for name in node.key])
        found += [(call.name, _type_of(call, types)) for call in node.calls]
    except UserError as error:
        raise error.prefixed(node.name) from None
    names = [name for name, _ in found]
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise UserError(f"two columns are named {twice[0]}", subject=node.name, remedy="name each once")
    return found


def _check(node: LiveGroups, types: Mapping[str, str]) -> None:
    for name in (node.born, node.dead):
        if types[name] != "int64":
            raise UserError(f"column {name} is {types[name]}", subject=node.name, remedy="give int64, microseconds")
    if node.mode not in _MODES:
        raise UserError(f"mode {node.mode}", subject=node.name, remedy=f"use {', '.join(_MODES)}")
    if node.mode == "boundaries" and node.every_us < 1:
        raise UserError(f"a boundary every {node.every_us} us", subject=node.name, remedy="give a time above zero")
    if node.longest_us < 0:
        raise UserError(f"lives of {node.longest_us} us", subject=node.name, remedy="give a time above zero, or 0: unknown")
    if node.mode == "births" and node.calls:
        raise UserError("births of groups have no aggregates", subject=node.name, remedy="leave the calls out")


def _type_of(call: AggregateCall, types: Mapping[str, str]) -> str:
    """Type of a call's result. UserError for a call that is not supported."""
    if call.function not in _FUNCTIONS or call.by is not None or call.place != 1:
        raise UserError(f"{call.description} of rows that are alive", remedy=f"use {', '.join(_FUNCTIONS)}")
    found = call.result_type(types)
    if call.column is not None and call.function != "count" and types[call.column] not in ("int64", "double"):
        raise UserError(f"{call.function} of {types[call.column]}", remedy="cast it to BIGINT or DOUBLE")
    return found


def live_columns_of(node: LiveGroups, types: Mapping[str, str]) -> LifeColumns:
    """What an instance needs. types: of the input."""
    keys = tuple((name, type_named(types[name])) for name in node.key)
    calls = []
    for call in node.calls:
        kept = Accumulation.COUNT
        floating = call.column is not None and types[call.column] == "double"
        if call.function == "sum":
            kept = Accumulation.DOUBLES if floating else Accumulation.INTEGERS
        elif call.function != "count":
            kept = Accumulation.LEAST if call.function == "min" else Accumulation.GREATEST
        calls.append(LifeCall(call.name, call.column, kept, call.distinct, floating))
    read = tuple(name for name in types if name in {*node.key, *(call.column for call in node.calls)})
    return LifeColumns(node.name, node.key, keys, node.born, node.dead, node.as_of, read, tuple(calls))
