"""Lookups in static tables, as nodes of logical plans.

What: `Lookup`; `lookup_columns`, the columns of its rows; `lookup_reads`, what it reads of both inputs.
Why: a static table is everywhere, whole, so a row of a stream meets all of its rows at once: a lookup has no state, windows or
watermark of its own, and is a step on the way of rows, as a filter is.
Stays out: other nodes (`plan.logical`), finding the rows (`expressions.lookup`), reading the table (`runtime.open`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from swjoin.core.errors import UserError
from swjoin.plan.bound import columns_read_by, type_of

LookupHow: TypeAlias = Literal["inner", "left", "semi", "anti"]
_Columns: TypeAlias = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Lookup:
    """Rows of a stream with the rows of a static table that match them.

    input: the stream. table: a node whose rows have no time: a source without one, or what filters, projections, unions and
    lookups make of such. keys: pairs of expressions, over the stream's and over the table's columns, that are equal in a match,
    as `=` says; none: all rows match. where: a further condition, over the columns of both. how: left keeps rows of the
    stream without a match; semi and anti keep those with one, or without, once.
    """

    name: str
    input: str
    table: str
    keys: tuple[tuple[str, str], ...] = ()
    how: LookupHow = "inner"
    where: str | None = None

    @property
    def inputs(self) -> tuple[str, ...]:
        return self.input, self.table

    @property
    def widens(self) -> bool:
        """Whether its rows have the table's columns."""
        return self.how in ("inner", "left")

    @property
    def description(self) -> str:
        tests = [f"{stream} = {table}" for stream, table in self.keys]
        tests += [] if self.where is None else [self.where]
        kind = "" if self.how == "inner" else f"{self.how} "
        return f"{kind}lookup in {self.table}" + (f" on {' AND '.join(tests)}" if tests else "")


def lookup_columns(node: Lookup, stream: _Columns, table: _Columns) -> list[tuple[str, str]]:
    """Names and types of the columns of its rows. stream, table: those of its inputs. UserError if they do not fit."""
    if node.how not in ("inner", "left", "semi", "anti"):
        raise UserError(f"kind {node.how}", subject=node.name, remedy="use inner, left, semi or anti")
    twice = sorted({name for name, _ in stream} & {name for name, _ in table})
    if twice:
        problem = f"both {node.input} and {node.table} have a column {twice[0]}"
        raise UserError(problem, subject=node.name, remedy="give one another name by a projection")
    for mine, theirs in node.keys:
        for text, columns, port in ((mine, stream, node.input), (theirs, table, node.table)):
            if not columns_read_by(text, columns, node.name):
                raise UserError(f"key {text} reads no column of {port}", subject=node.name, remedy="put it into the condition")
        type_of(equality(mine, theirs), [*stream, *table], node.name)
    if node.where is not None:
        kind = type_of(node.where, [*stream, *table], node.name)
        if kind != "bool":
            raise UserError(f"its condition is {kind}", subject=node.name, remedy="use a comparison")
    return [*stream, *table] if node.widens else list(stream)


def equality(mine: str, theirs: str) -> str:
    """The condition that a pair of keys is."""
    return f"({mine}) = ({theirs})"


def lookup_reads(node: Lookup, stream: _Columns, table: _Columns, wanted: set[str]) -> tuple[set[str], set[str]]:
    """Columns of both inputs that it reads, if of its rows these columns are wanted."""
    found = {name for name, _ in stream} & wanted, {name for name, _ in table} & (wanted if node.widens else set())
    for mine, theirs in node.keys:
        found[0].update(columns_read_by(mine, stream, node.name))
        found[1].update(columns_read_by(theirs, table, node.name))
    if node.where is not None:
        for name in columns_read_by(node.where, [*stream, *table], node.name):
            found[name in dict(table)].add(name)
    return found
