"""Joins with static tables.

What: `is_static`; `has_static`, `looked_up`: a join of which a side, or both, has no time; `LookedUp`; `refuse_static`.
Why: a table without a time is everywhere, whole, so a join with it needs neither bounds of times nor an equality.
Stays out: which condition is of which side (`frontends.sql.conditions`), joins of two streams.

A join keeps rows of its stream alone: a table cannot know which of its rows no row of the stream, of all ranks, will match.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import pyarrow as pa
from sqlglot import exp

from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.columns import type_named
from swjoin.core.errors import Spelled, UserError, one_line
from swjoin.expressions.tree import can_fail
from swjoin.frontends.sql.conditions import Conditions, Names, names_of
from swjoin.frontends.sql.relations import Field, Nodes, Relation, TableRelation, United, column_of, filtered, quoted
from swjoin.plan.logical import Project
from swjoin.plan.lookups import Lookup, LookupHow


def is_static(relation: Relation) -> bool:
    """Whether its rows have no time, as they are those of static tables alone."""
    if isinstance(relation, TableRelation):
        return relation.source.time is None
    if isinstance(relation, United):
        return all(map(is_static, relation.inputs))
    below = relation.stream if isinstance(relation, LookedUp) else getattr(relation, "of", None)
    return below is not None and is_static(below)


def has_static(conditions: Conditions) -> bool:
    return any(map(is_static, conditions.sides))


def refuse_static(relation: Relation, what: str) -> None:
    """UserError for rows without a time. what: is refused."""
    if is_static(relation):
        name = _source_of(relation)
        time = Spelled(f"--table {name}=PATH:TIME", f"time={{{name!r}: COLUMN}}", f"inputs.{name}.time")
        raise UserError(f"{what} of static table {name}, whose rows have no time", remedy=("name its time column: ", time))


def _source_of(relation: Relation) -> str:
    """The name of a static table among those that a relation reads."""
    while not isinstance(relation, TableRelation):
        below = relation.inputs[0] if isinstance(relation, United) else None
        relation = below or (relation.stream if isinstance(relation, LookedUp) else relation.of)  # type: ignore[attr-defined]
    return relation.source.name


@dataclass(frozen=True)
class LookedUp:
    """Rows of a stream with those of a static table that match. fields: in order. keys, where: texts over the columns of both,
    as `column_of` names them."""

    fields: tuple[Field, ...]
    stream: Relation
    table: Relation
    keys: tuple[tuple[str, str], ...]
    how: LookupHow
    where: str | None

    @cached_property
    def times(self) -> tuple[str, ...]:
        """Those of the stream."""
        return tuple(column_of(f) for f in self.stream.fields if f.column in self.stream.times)

    def make(self, nodes: Nodes, time: str | None) -> str:
        below = None if time is None else next(f.column for f in self.stream.fields if column_of(f) == time)
        stream, table = _renamed(self.stream, nodes, below, "select"), _renamed(self.table, nodes, None, "table")
        return nodes.add("lookup", lambda name: Lookup(name, stream, table, self.keys, self.how, self.where))


def _renamed(relation: Relation, nodes: Nodes, time: str | None, what: str) -> str:
    """The node of a relation's rows with the columns that they have behind a join."""
    below = relation.make(nodes, time)
    columns = tuple((column_of(f), quoted(f.column)) for f in relation.fields if _travels(f))
    named = what if what == "select" else f"{what} {relation.fields[0].table}"
    return nodes.add(named, lambda name: Project(name, below, columns))


def _travels(f: Field) -> bool:
    try:
        type_named(f.type)
    except UserError:
        return False  # a list, say, which a query need not select
    return True


def looked_up(conditions: Conditions) -> Relation:
    """The join with a static table. UserError for one that keeps rows of the table."""
    stream = RIGHT if is_static(conditions.sides[LEFT]) and not is_static(conditions.sides[RIGHT]) else LEFT
    how = _how(conditions, stream)
    names = names_of(replace(f, column=column_of(f)) for f in conditions.both.fields.values())
    keys, where = list(conditions.keys), []
    for node in conditions.rest:
        if (key := _key(conditions, node)) is not None:
            keys.append(key)
            continue
        where.append(_condition(names, node))
    sides_of = []
    for side in (LEFT, RIGHT):
        texts = [_condition(conditions.names[side], node)[1] for node in conditions.alone[side]]
        sides_of.append(filtered(conditions.sides[side], texts))
    ordered = keys if stream == LEFT else [(two, one) for one, two in keys]
    pairs = tuple((names.text(mine)[0], names.text(theirs)[0]) for mine, theirs in ordered)
    texts = [text for _, text in sorted(where, key=lambda part: part[0])]
    condition = " AND ".join(f"({text})" for text in texts) or None
    fields = tuple(replace(f, column=column_of(f)) for f in conditions.fields)
    return LookedUp(fields, sides_of[stream], sides_of[1 - stream], pairs, how, condition)


def _condition(names: Names, node: exp.Expr) -> tuple[bool, str]:
    """Whether a condition can fail, and its text."""
    text, expr = names.text(node)
    if not pa.types.is_boolean(expr.type):
        raise UserError(f"{one_line(node.sql('duckdb'), 100)} is no condition", remedy="use a comparison")
    return can_fail(expr), text


def _key(conditions: Conditions, node: exp.Expr) -> tuple[exp.Expr, exp.Expr] | None:
    """Both sides of an equality, also of doubles and decimals."""
    if not isinstance(node, exp.EQ):
        return None
    one, two = node.this.unnest(), node.expression.unnest()
    sides = [conditions.side_of(conditions.both.read_by(part)) for part in (one, two)]
    return (one, two) if sides == [LEFT, RIGHT] else (two, one) if sides == [RIGHT, LEFT] else None


def _how(conditions: Conditions, stream: int) -> LookupHow:
    """The kind, by the stream. stream: the side. UserError for one that keeps rows of the table."""
    how = conditions.how
    if how == "inner" or (how in ("left", "semi", "anti") and stream == LEFT):
        return how  # type: ignore[return-value]
    table, other = (_tables(conditions.sides[side]) for side in (1 - stream, stream))
    if how in ("semi", "anti"):
        problem = f"{how.upper()} JOIN has rows of static table {table}, which no stream has"
        raise UserError(problem, remedy=f"put the stream first: FROM {other} {how.upper()} JOIN {table}")
    problem = f"the join keeps rows of static table {table} without a match, which are known when no stream goes on"
    keep = f"FROM {other} LEFT JOIN {table} keeps those of {other}"
    raise UserError(problem, remedy=f"write JOIN, or {keep}")


def _tables(relation: Relation) -> str:
    return ", ".join(dict.fromkeys(f.table for f in relation.fields))
