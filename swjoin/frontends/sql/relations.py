"""What stands in FROM, and what becomes of it: relations with named fields, which make the nodes of a plan.

What: `Field`, `Relation`: `TableRelation`, `Aliased`, `Filtered`, `Selected`, `Joined`, `United`; `Nodes`.
Why: which of its columns is a relation's time is known only from what reads it: a join of a join's rows may name the time of
either side. So a relation is described first, and makes its nodes when the wanted time is known.
Stays out: SQL (`frontends.sql.planner`), conditions of joins (`frontends.sql.conditions`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Protocol

from sqlglot import exp

from swjoin.config.sections import QueryConfig
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import LEFT
from swjoin.core.join_semantics import How, Match
from swjoin.core.kept_columns import OrderKey
from swjoin.frontends.sql.bands import Cells
from swjoin.plan.logical import (
    Column,
    Copies,
    Filter,
    IntervalJoin,
    LogicalPlan,
    Node,
    OutputTime,
    Project,
    Result,
    Source,
    Spread,
    Union,
    nodes_below,
)


def quoted(name: str) -> str:
    """A name in an expression's text."""
    return '"{}"'.format(name.replace('"', '""'))


@dataclass(frozen=True)
class Field:
    """A column as queries name it. table: "" for none. column, type: of the plan. unit_us: of integers that are times,
    microseconds of one, below 1 for nanoseconds; None for other columns."""

    table: str
    name: str
    column: str
    type: str
    unit_us: float | None = None


def instant_of(column: exp.Expr, f: Field) -> exp.Expr:
    """The timestamp that an integer stands for."""
    unit_us = f.unit_us
    if unit_us is None:
        return column
    if f.type == "uint64":
        column = exp.cast(column, "BIGINT")
    if unit_us < 1:
        return exp.Anonymous(this="make_timestamp_ns", expressions=[column])
    micros = column if unit_us == 1 else exp.Mul(this=column, expression=exp.Literal.number(int(unit_us)))
    return exp.UnixToTime(this=micros, scale=exp.Literal.number(6))


class Nodes:
    """Nodes of a plan, made one by one. reserved: names of sources."""

    def __init__(self, reserved: Iterable[str]) -> None:
        self.nodes: list[Node] = []
        self._reserved = set(reserved)

    def add(self, what: str, make: Callable[[str], Node]) -> str:
        """The name of a node. what: its kind, which is in the name; sources have their own."""
        taken = self._reserved | {node.name for node in self.nodes}
        number = 1
        while (name := f"{what} {number}") in taken:
            number += 1
        self.nodes.append(make(name))
        return name

    def source(self, source: Source) -> str:
        if source not in self.nodes:
            self.nodes.append(source)
        return source.name

    def plan(self, last: str, order: tuple[OrderKey, ...] = ()) -> LogicalPlan:
        """The plan of what this node needs, which is its result. order: of its rows, see `Result`."""
        found = {node.name: node for node in self.nodes}
        needed = nodes_below(found, last)
        name = "result"
        while name in needed:
            name += "_"
        return LogicalPlan((*(node for node in self.nodes if node.name in needed), Result(name, last, True, order)))


class Relation(Protocol):
    """fields: in order. times: columns each of which can be the rows' time, and expressions that are to be selected first."""

    @property
    def fields(self) -> tuple[Field, ...]: ...
    @property
    def times(self) -> tuple[str, ...]: ...
    def make(self, nodes: Nodes, time: str | None) -> str:
        """The node of its rows, which has the fields' columns. time: the column, of `times`, that is to be the rows' time;
        None: any may be."""


@dataclass(frozen=True)
class TableRelation:
    source: Source
    table: str
    unit_us: float | None = None  # of its time

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        unit = {self.source.time: self.unit_us}
        return tuple(Field(self.table, c.name, c.name, c.type, unit.get(c.name)) for c in self.source.columns)

    @cached_property
    def times(self) -> tuple[str, ...]:
        return () if self.source.time is None else (self.source.time,)

    def make(self, nodes: Nodes, time: str | None) -> str:
        return nodes.source(self.source)


@dataclass(frozen=True)
class _Over:
    """A relation with the columns of another one."""

    of: Relation

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return self.of.fields

    @cached_property
    def times(self) -> tuple[str, ...]:
        return self.of.times


@dataclass(frozen=True)
class Aliased(_Over):
    """A subquery, or a query of WITH, under the name that it has in FROM."""

    table: str

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return tuple(replace(f, table=self.table) for f in self.of.fields)

    def make(self, nodes: Nodes, time: str | None) -> str:
        return self.of.make(nodes, time)


@dataclass(frozen=True)
class Filtered(_Over):
    """The rows that satisfy a condition. condition: text over the columns."""

    condition: str

    def make(self, nodes: Nodes, time: str | None) -> str:
        below = self.of.make(nodes, time)
        return nodes.add("filter", lambda name: Filter(name, below, self.condition))


def filtered(relation: Relation, conditions: Sequence[str]) -> Relation:
    """The rows that satisfy all conditions, in this order: later ones are evaluated for the rows that get there."""
    if len(conditions) < 2:
        return Filtered(relation, conditions[0]) if conditions else relation
    return Filtered(relation, " AND ".join(f"({condition})" for condition in conditions))


@dataclass(frozen=True)
class Selected:
    """Computed columns. texts: by column of the fields, an expression over the columns below. instants: of columns that are
    times in another type, the columns below from which they come."""

    of: Relation
    fields: tuple[Field, ...]
    texts: tuple[str, ...]
    instants: Mapping[str, str] = field(default_factory=dict)
    _made: dict[str | None, str] = field(default_factory=dict, compare=False)

    @cached_property
    def times(self) -> tuple[str, ...]:
        return tuple(f.column for f in self.fields if self._origin(f.column) in self.of.times)

    def _origin(self, column: str) -> str | None:
        """The column below that has the same times."""
        text = self.texts[[f.column for f in self.fields].index(column)]
        return self.instants.get(column) or next((time for time in self.of.times if text in (quoted(time), time)), None)

    def make(self, nodes: Nodes, time: str | None) -> str:
        if time not in self._made:  # a query of WITH may be read several times
            names = [f.column for f in self.fields]
            below = self.of.make(nodes, None if time is None else self._origin(time))
            columns = tuple(zip(names, self.texts, strict=True))
            self._made[time] = nodes.add("select", lambda name: Project(name, below, columns))
        return self._made[time]


@dataclass(frozen=True)
class Side:
    """An input of a join. time: its column. keys: (column of both sides, expression over this side's columns), one for every
    equality. merged: its columns whose values are those of a key's column. cells: of a band, whose greatest key the rows have
    once more where it is in another cell than the last key. one_place, keyed: of rows that go to places, see `Spread`; None:
    rows go by keys."""

    of: Relation
    time: str
    keys: tuple[tuple[str, str], ...]
    merged: frozenset[str] = frozenset()
    cells: Cells | None = None
    one_place: bool | None = None
    keyed: bool = True

    def make(self, nodes: Nodes, port: int) -> str:
        """port: of the join."""
        below, columns, key = self.of.make(nodes, self.time), self.columns, self.keys[-1][0]
        if self.cells is not None:
            columns = (*columns[:-1], ("first cell", columns[-1][1]), ("second cell", self.cells.right[1]))
        shown = nodes.add("select", lambda name: Project(name, below, columns))
        if self.cells is not None:
            bits, ends = 0 if self.cells.keys is None else self.cells.keys.cell_bits, shown
            shown = nodes.add("copies", lambda name: Copies(name, ends, key, "first cell", "second cell", bits))
        if self.one_place is not None:
            rows, one_place = shown, self.one_place
            return nodes.add("spread", lambda name: Spread(name, rows, port, one_place, keyed=self.keyed))
        return shown

    @property
    def columns(self) -> tuple[tuple[str, str], ...]:
        """(column, expression) of its rows, as the join reads them."""
        names = {name for name, _ in self.keys}
        own = [f for f in self.of.fields if f.column not in self.merged and column_of(f) not in names]
        return (*((column_of(f), quoted(f.column)) for f in own), *self.keys)


@dataclass(frozen=True)
class Joined:
    """An interval join. fields: of the left side, then, but for semi and anti joins, of the right one. bounds: lower and upper,
    of right - left, microseconds, and which of them are exclusive. where: the residual predicate, and the same with the sides
    exchanged. band: what keys mean; its wide side is the right one. match: of the right rows that match, which one a left row
    joins; `all`: all."""

    fields: tuple[Field, ...]
    left: Side
    right: Side
    how: How
    bounds: tuple[int, int, tuple[str, ...]]
    where: tuple[str | None, str | None] = (None, None)
    band: BandKeys | None = None
    match: Match = "all"

    @cached_property
    def times(self) -> tuple[str, ...]:
        """Either side's of an inner join, and the texts of the later and the earlier of both; the left one's of a left, semi,
        anti or as-of join, and those texts of an inner as-of join."""
        names = [next(column_of(f) for f in side.of.fields if f.column == side.time) for side in (self.left, self.right)]
        if self.how != "inner":
            return () if self.how == "full" else (names[0],)
        if self.match != "all":
            return (names[0], *self._of_both)
        return (*names, *self._of_both)

    @property
    def _of_both(self) -> dict[str, OutputTime]:
        """The texts of the later and of the earlier time of a pair, as expressions over its columns have them."""
        texts = []
        for side in (self.left, self.right):
            f = next(f for f in side.of.fields if f.column == side.time)
            texts.append(instant_of(exp.column(column_of(f), quoted=True), f).sql("duckdb"))
        found: dict[str, OutputTime] = {}
        for one, two in (texts, texts[::-1]):
            found |= {f"GREATEST({one}, {two})": "max", f"LEAST({one}, {two})": "min"}
        return found

    def make(self, nodes: Nodes, time: str | None) -> str:
        of_both = self._of_both.get(time or "") if self.how == "inner" else None
        swapped = time is not None and of_both is None and time != self.times[0]
        sides = (self.right, self.left) if swapped else (self.left, self.right)
        lower, upper, exclusive = self.bounds
        if swapped:
            lower, upper = -upper, -lower
            exclusive = tuple({"lower": "upper", "upper": "lower"}[name] for name in exclusive)
        where: Any = {"where": self.where[swapped], "match": self.match}
        query = QueryConfig(lower, upper, exclusive=exclusive, how=self.how, **where)  # type: ignore[arg-type]
        left, right = (side.make(nodes, port) for port, side in enumerate(sides))
        key = tuple(name for name, _ in self.left.keys)
        output: OutputTime = of_both or ("max" if self.how == "full" else "left")
        band = self.band if self.band is None or not swapped else replace(self.band, wide=LEFT)
        return nodes.add("join", lambda name: IntervalJoin(name, left, right, key, key, query, output, band))


def column_of(f: Field) -> str:
    """The plan's name, behind a join, of a column of one of its sides. Points in names are doubled."""
    return ".".join(part.replace(".", "..") for part in (f.table, f.name) if part)


@dataclass(frozen=True)
class United:
    """UNION ALL: the rows of all inputs. inputs: with fields of the same columns and types."""

    inputs: tuple[Relation, ...]

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return self.inputs[0].fields

    @cached_property
    def times(self) -> tuple[str, ...]:
        return tuple(f.column for f in self.fields if all(f.column in r.times for r in self.inputs))

    def make(self, nodes: Nodes, time: str | None) -> str:
        made = tuple(relation.make(nodes, time) for relation in self.inputs)
        return nodes.add("union", lambda name: Union(name, made))


def source_of(name: str, columns: Sequence[tuple[str, str]], time: str | None) -> Source:
    return Source(name, tuple(Column(*column) for column in columns), time)
