"""Functions of users in FROM: MAP_BATCHES((SELECT ...), 'name').

What: `Function`; `declared`, the columns of one; `map_call`, the call that an item of FROM is; `mapped`, the relation of its
rows.
Why: `map_batches` of a stream is a part of its query, as all verbs are. A query names functions that it was given: text alone
imports nothing.
Stays out: calling functions (`expressions.batch_map`); where they are given (`api.fluent`, `frontends.configured`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING

from sqlglot import exp

from swjoin.core.columns import type_named
from swjoin.core.errors import UserError, one_line
from swjoin.frontends.sql.relations import Field, Nodes, Relation, Selected, quoted
from swjoin.plan.map_batches import MapBatches

if TYPE_CHECKING:
    import pyarrow as pa

NAME = "MAP_BATCHES"
_FORM = f"write {NAME}((SELECT ...), 'name'), with functions: beside sql: in a configuration, or map_batches of swjoin.stream"


@dataclass(frozen=True)
class Function:
    """function, columns: as of `MapBatches`."""

    function: str
    columns: tuple[tuple[str, str], ...]


def declared(fields: Iterable[pa.Field]) -> tuple[tuple[str, str], ...]:
    """Columns that a function gives, with the types that queries have. UserError for a type that they have not."""
    return tuple((each.name, str(type_named(str(each.type)))) for each in fields)


def map_call(node: exp.Expr) -> tuple[exp.Subquery, str] | None:
    """The query whose rows a function gets, and the function's name; None for another item of FROM."""
    call = node.this if isinstance(node, exp.Table) else None
    if not isinstance(call, exp.Anonymous) or str(call.this).upper() != NAME:
        return None
    given = call.expressions
    if len(given) != 2 or not isinstance(given[0], exp.Subquery) or not isinstance(given[1], exp.Literal):
        raise UserError(f"{one_line(call.sql('duckdb'), 100)} is no call of a function", remedy=_FORM)
    return given[0], str(given[1].this)


def mapped(of: Relation, name: str, functions: Mapping[str, Function]) -> Relation:
    """The rows of a query with the columns that the function of this name gives. UserError for an unknown one."""
    if name not in functions:
        raise UserError(f"{NAME}: no function {one_line(name, 60)} was given", remedy=_FORM)
    declared = dict(functions[name].columns)
    for f in of.fields:
        if f.column in of.times and declared.get(f.name, f.type) != f.type:
            problem = f"map_batches: {f.name}, a time of its rows, is {f.type}, in its schema {declared[f.name]}"
            raise UserError(problem, remedy=f"declare it as {f.type}, or give what it computes another name")
    if any(f.column != f.name for f in of.fields):
        columns = tuple(replace(f, table="", column=f.name) for f in of.fields)
        of = Selected(of, columns, tuple(quoted(f.column) for f in of.fields))
    return _Mapped(of, functions[name])


@dataclass(frozen=True)
class _Mapped:
    """of: with fields of the columns' names."""

    of: Relation
    function: Function
    _made: dict[str | None, str] = field(default_factory=dict, compare=False)

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        units = {f.column: f.unit_us for f in self.of.fields}
        return tuple(
            Field("", name, name, kind, units[name] if name in self.times else None) for name, kind in self.function.columns
        )

    @cached_property
    def times(self) -> tuple[str, ...]:
        types = {f.column: f.type for f in self.of.fields}
        return tuple(name for name in self.of.times if (name, types.get(name)) in self.function.columns)

    def make(self, nodes: Nodes, time: str | None) -> str:
        if time not in self._made:
            below = self.of.make(nodes, time)
            of = self.function
            self._made[time] = nodes.add("map_batches", lambda name: MapBatches(name, below, of.function, of.columns))
        return self._made[time]
