"""Joins of two streams that are run as plans: without join columns, with a routing, or with views of what they aggregate.

What: `planned(config, ...)`, such a join as the configuration of a plan's inputs, and the plan; `Views`.
Why: a join with columns is routed by their hash; one that a condition alone decides by the keys of a band or by places, which
plans have, as they have aggregates. The condition is written, and columns are named, as of a join with columns.
Stays out: bands and matrices (`frontends.sql.conditions`), the language of conditions (`expressions.parser`), views
(`plan.kept_rows`).
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa
from sqlglot import exp

from swjoin.config.run import QueryConfig, RunConfig, StreamConfig
from swjoin.config.sections import check_key
from swjoin.connectors.files.source import describe_columns
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.row_encoder import on_neither_side
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import Spelled, UserError, setting
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, Match
from swjoin.core.row_codec import StreamCodec
from swjoin.expressions.binder import parse_expression
from swjoin.expressions.compiler import resolve
from swjoin.expressions.parser import parse_where, to_text
from swjoin.frontends.sql.planner import Table, parse_query, plan_query
from swjoin.frontends.sql.tables import described
from swjoin.frontends.sql.windows import AS_OF
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Node, key_family
from swjoin.plan.plain import plan_to_plain

_NO_KEYS, _ROUTED = "a join without join columns", "a join with a routing"
_ON = setting("on")
_AGG = setting("agg")
_Key: TypeAlias = tuple[tuple[str, ...], tuple[str, ...]]  # join columns of the left and the right side


class Views(NamedTuple):
    """Of the pairs of a join, at every multiple of a time, microseconds: the aggregate of those whose later row is not after
    it. by: columns that group. aggregates: text of items of SELECT. Both name columns as conditions do."""

    by: tuple[str, ...]
    aggregates: str
    every_us: int


def planned(config: RunConfig, key: _Key = ((), ()), views: Views | None = None) -> tuple[RunConfig, dict[str, Any]]:
    """The configuration of the plan's inputs, and the plan as `plan_to_plain` writes it. config: its inputs are the left and
    the right stream, its query is the join. views: what is asked of the pairs; None: themselves. UserError for what such a join
    cannot have, and for inputs that cannot be read."""
    query = config.query
    _check(query, config, keyed=bool(key[LEFT]), with_views=views is not None)
    sides = _with_own_units(config.inputs)
    tables = {name: _described(name, side) for name, side in zip(STREAM_NAMES, sides, strict=True)}
    otherwise = ("name join columns: ", _ON) if not key[LEFT] else ("leave out ", setting("routing") if views is None else _AGG)
    _check_zones(tables, otherwise)
    names = [[column for column, _ in table.columns] for table in tables.values()]
    on = exp.and_(*_equal(key, tables), *_condition(query, names, key), *_bounds(query, sides))
    right = exp.Join(this=_table(RIGHT), on=on, **_kind(query), **({} if query.as_of is None else {"method": "ASOF"}))
    asked = None if views is None else _Viewed(views, sides, names, key)
    selected = exp.select(*(_selected(query, sides, names, key) if asked is None else asked.columns)).from_(_table(LEFT))
    selected.append("joins", right)
    plan = plan_query(
        (selected if asked is None else asked.query(selected)).sql("duckdb"), tables, None, config.cluster.routing
    )
    inputs = tuple(dataclasses.replace(sides[STREAM_NAMES.index(name)], columns=None) for name in plan.tables)
    found = plan.plan if query.as_of is None else _with_match(plan.plan, query.as_of.match)
    return dataclasses.replace(config, queries=(QueryConfig(0, 0),), inputs=inputs), plan_to_plain(found)


def _with_match(plan: LogicalPlan, match: Match) -> LogicalPlan:
    """Bounds alone do not always tell it."""

    def changed(node: Node) -> Node:
        if not isinstance(node, IntervalJoin):
            return node
        return dataclasses.replace(node, query=dataclasses.replace(node.semantics, match=match))

    return LogicalPlan(tuple(map(changed, plan.nodes)))


def _check(query: QueryConfig, config: RunConfig, *, keyed: bool, with_views: bool) -> None:
    remedy, what, numbers = ("name join columns: ", _ON), f"{_NO_KEYS} has", f"{_NO_KEYS} numbers its rows itself"
    if keyed:
        remedy, what, numbers = ("leave out ", setting("routing")), f"{_ROUTED} has", f"{_ROUTED} numbers its rows itself"
    if with_views:
        remedy, what, numbers = ("leave out ", _AGG), "views of a join have", "views number their rows themselves"
        if query.how != "inner":
            raise UserError((setting("how"), ": views are of pairs"), remedy="leave it out")
        if any(stream.columns is not None for stream in config.inputs):
            problem = (setting("columns"), ": views have the columns of ", setting("group_by"), " and ", _AGG)
            raise UserError(problem, remedy="leave it out")
    if query.last is not None:
        raise UserError((setting("last"), f": {what} no count windows"), remedy=remedy)
    if query.how == "full" and not keyed:
        raise UserError((setting("how"), f": {_NO_KEYS} cannot be full"), remedy=remedy)
    for side, stream in zip(STREAM_NAMES, config.inputs, strict=True):
        if stream.id is not None:
            raise UserError((setting(f"{side}_id"), f": {numbers}"), remedy="leave it out")
    if config.sink.ids:
        raise UserError((setting("ids"), f": {_ROUTED if keyed else _NO_KEYS} does not show them"), remedy=remedy)


def _with_own_units(sides: tuple[StreamConfig, ...]) -> tuple[StreamConfig, ...]:
    """A unit for both sides is for the integers among their times, if there are any."""
    kinds = [dict(describe_columns(side)).get(side.time, "") for side in sides]
    if not any("int" in kind for kind in kinds):
        return sides
    return tuple(
        side if "int" in kind else dataclasses.replace(side, time_unit=None) for side, kind in zip(sides, kinds, strict=True)
    )


def _check_zones(tables: dict[str, Table], otherwise: tuple[str | Spelled, ...]) -> None:
    """otherwise: what can be done, beside changing the input."""
    zoned = ["tz=" in dict(table.columns)[str(table.time)] for table in tables.values()]
    if len(set(zoned)) == 2:
        problem = f"{STREAM_NAMES[zoned.index(False)]}: the times have no time zone, those of the other side have one"
        raise UserError(problem, remedy=("give both columns a zone, or ", *otherwise))


def _described(side: str, stream: StreamConfig) -> Table:
    try:
        return described(stream, ("give ", setting("time_unit")))
    except UserError as error:
        raise error.prefixed(side) from None


def _table(side: int) -> exp.Table:
    return exp.Table(this=_name(STREAM_NAMES[side]))


def _name(text: str) -> exp.Identifier:
    return exp.to_identifier(text, quoted=True)


def _column(side: int, name: str) -> exp.Column:
    return exp.Column(this=_name(name), table=_name(STREAM_NAMES[side]))


def _equal(key: _Key, tables: dict[str, Table]) -> list[exp.Expr]:
    """The join columns are equal. UserError for what a join without a plan refuses, too."""
    if len(key[LEFT]) != len(key[RIGHT]):
        raise UserError(f"{len(key[LEFT])} join columns on the left, {len(key[RIGHT])} on the right")
    families: tuple[list[str], list[str]] = ([], [])
    for side, table in enumerate(tables.values()):
        types = dict(table.columns)
        for name in key[side]:
            if name not in types:
                raise UserError(f"{STREAM_NAMES[side]}: column {name} is missing", remedy=f"there are {', '.join(types)}")
            families[side].append(key_family(name, types[name]))
        if key[side]:
            check_key(key[side])
    for i, pair in enumerate(zip(*families, strict=True)):
        if len(set(pair)) == 2 and {"integer", "string", "binary"} & set(pair):
            one, two = (f"{key[side][i]} is {dict(tables[STREAM_NAMES[side]].columns)[key[side][i]]}" for side in (LEFT, RIGHT))
            raise UserError(f"join keys: left {one}, right {two}", remedy="cast one side so that both agree")
    return [exp.EQ(this=_column(LEFT, one), expression=_column(RIGHT, two)) for one, two in zip(*key, strict=True)]


class _Viewed:
    """A query of views. columns: that its pairs are to have, by the names by which the views read them."""

    def __init__(self, views: Views, sides: tuple[StreamConfig, ...], names: list[list[str]], key: _Key) -> None:
        try:
            select = parse_query(f"SELECT {views.aggregates}")
        except UserError as error:
            raise UserError(error.problem, subject=(_AGG,), remedy=error.remedy) from None
        if not isinstance(select, exp.Select) or {name for name, value in select.args.items() if value} != {"expressions"}:
            problem = (_AGG, f": {views.aggregates} is more than aggregates")
            raise UserError(problem, remedy="write such as 'count(*) AS n, sum(left_v) AS s'")
        self._views, self._items = views, select.expressions
        self._check_names()
        read = dict.fromkeys([*views.by, *map(_spelled, select.find_all(exp.Column))])
        if AS_OF in read:
            raise UserError(
                (_AGG, f": a column {AS_OF}, the name of a view's time"), remedy=f"write left_{AS_OF} or right_{AS_OF}"
            )
        self._time = "pair time"
        while self._time in read:
            self._time += "_"
        times = [_column(side, sides[side].time) for side in (LEFT, RIGHT)]
        later = exp.Greatest(this=times[LEFT], expressions=times[1:], ignore_nulls=True)  # as DuckDB has it
        self.columns = [exp.alias_(later, self._time, quoted=True)]
        for name in read:
            try:
                side, found = resolve(name, (names[LEFT], names[RIGHT]), key)
            except UserError as error:
                of = setting("group_by") if name in views.by else _AGG
                raise UserError(str(error).removeprefix("where: "), subject=(of,)) from None
            self.columns.append(exp.alias_(_column(side, found), name, quoted=True))

    def _check_names(self) -> None:
        """UserError for an item that is no aggregate, or has no name or another one's."""
        shown = [AS_OF, *self._views.by]
        for item in self._items:
            text = item.unalias().sql("duckdb")
            if not isinstance(item, exp.Alias):
                raise UserError((_AGG, f": {text} has no name"), remedy=f"give it one: {text} AS name")
            if item.find(exp.AggFunc) is None:
                raise UserError((_AGG, f": {text} is no aggregate"), remedy=("group by it: ", setting("group_by")))
            shown.append(item.alias)
        for name in shown:
            if sum(name.casefold() == other.casefold() for other in shown) > 1:
                raise UserError(f"{name} is twice among as_of, the columns that group, and the aggregates", remedy="rename one")

    def query(self, pairs: exp.Select) -> exp.Select:
        def column(node: exp.Expr) -> exp.Expr:
            return exp.Column(this=_name(_spelled(node))) if isinstance(node, exp.Column) else node

        every = exp.Interval(this=exp.Literal.string(str(self._views.every_us)), unit=exp.Var(this="MICROSECOND"))
        arguments = [exp.Subquery(this=pairs), exp.Column(this=_name(self._time)), every]
        views = exp.Table(this=exp.Anonymous(this="CUMULATE", expressions=arguments))
        grouped = [exp.Column(this=_name(name)) for name in (AS_OF, *self._views.by)]
        items = [part.copy() for part in grouped] + [item.copy().transform(column) for item in self._items]
        return exp.select(*items).from_(views).group_by(*grouped)


def _spelled(column: exp.Column) -> str:
    """A column's name as it was written, without quotes."""
    return ".".join(part.name for part in column.parts)


def _condition(query: QueryConfig, names: list[list[str]], key: _Key) -> list[exp.Expr]:
    """The condition, with the columns of SQL, if there is one. UserError unless it, or join columns, compare both sides."""
    if query.where is None:
        return []
    sides = {LEFT, RIGHT} if key[LEFT] else set()

    def column(name: str) -> str:
        side, found = resolve(name, (names[LEFT], names[RIGHT]), key)
        sides.add(side)
        return _column(side, found).sql("duckdb")

    condition = parse_expression(to_text(parse_where(query.where), column))
    for division in reversed(list(condition.find_all(exp.Div))):  # the inner ones first; x / 0 is null in conditions
        by = division.expression.copy()
        division.set("expression", exp.Nullif(this=by, expression=exp.Literal.number(0)))
    if (missing := {LEFT, RIGHT} - sides) and query.as_of is None:
        problem = (
            f"where: {_NO_KEYS} needs a condition on both sides, and this one reads no {STREAM_NAMES[missing.pop()]} column"
        )
        raise UserError(problem, remedy=("compare the sides, or name join columns: ", _ON))
    return [condition]


def _bounds(query: QueryConfig, sides: tuple[StreamConfig, ...]) -> list[exp.Expr]:
    """lower <= right time - left time <= upper."""
    left, right = (_column(side, sides[side].time) for side in (LEFT, RIGHT))
    found: list[exp.Expr] = []
    bounds = Bounds(query.lower_us, query.upper_us) if query.as_of is None else query.as_of.candidates
    for name, us in (("lower", bounds.lower_us), ("upper", bounds.upper_us)):
        span = exp.Interval(this=exp.Literal.string(str(us)), unit=exp.Var(this="MICROSECOND"))
        open_end = name in query.exclusive and query.as_of is None
        kind = (exp.GT if open_end else exp.GTE) if name == "lower" else (exp.LT if open_end else exp.LTE)
        found.append(kind(this=right.copy(), expression=exp.Add(this=left.copy(), expression=span)))
    return found


def _kind(query: QueryConfig) -> dict[str, str]:
    if JOIN_KINDS[query.how].one_sided:
        return {"kind": query.how.upper()}
    return {} if query.how == "inner" else {"side": query.how.upper()}


def _selected(query: QueryConfig, sides: tuple[StreamConfig, ...], names: list[list[str]], key: _Key) -> list[exp.Expr]:
    """The columns of the result, by the names that a join without a plan gives them."""
    codecs = []
    for side, stream in enumerate(sides):
        kept = names[side] if stream.columns is None else {*stream.columns, stream.time, *key[side]}
        chosen = tuple((name, pa.null(), "row") for name in names[side] if name in kept)
        codecs.append(StreamCodec(chosen, key[side], None))
    for name in sides[LEFT].columns or ():
        if name not in names[LEFT] and name not in names[RIGHT]:
            raise on_neither_side(name, [*names[LEFT], *names[RIGHT]])
    shown = OutputColumns(codecs[LEFT], codecs[RIGHT], ids=False, how=query.how)
    pairs = zip(shown.inputs, shown.schema.names, strict=True)
    found = []
    for (side, name), label in pairs:
        column: exp.Expr = _column(side, name)
        if side == LEFT and name in key[LEFT] and JOIN_KINDS[query.how].unmatched[RIGHT]:  # the right rows' own, too
            column = exp.Coalesce(this=column, expressions=[_column(RIGHT, key[RIGHT][key[LEFT].index(name)])])
        found.append(exp.alias_(column, label, quoted=True))
    return found
