"""From the text of a query to a logical plan.

What: `parse_query`, `plan_query(text, tables) -> Query`, `plan_queries` of several; `Table`.
Why: sqlglot parses, in DuckDB's dialect; what of a clause is not read is refused by name, so nothing is passed over.
Stays out: conditions of joins (`frontends.sql.conditions`), the nodes (`frontends.sql.relations`), expressions
(`expressions.binder`).

Clauses: WITH, SELECT with expressions, aliases and stars, FROM with tables, windows, subqueries and joins, WHERE, GROUP BY,
HAVING, DISTINCT, ROW_NUMBER, QUALIFY, UNION ALL, and at the end of a query ORDER BY and LIMIT.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa
from sqlglot import exp, parse

from swjoin.core.columns import type_named
from swjoin.core.errors import UserError, one_line
from swjoin.core.kept_columns import OrderKey
from swjoin.core.time_windows import TimeWindows
from swjoin.expressions.binder import parsed
from swjoin.expressions.tree import can_fail
from swjoin.expressions.types import common, read_as
from swjoin.frontends.sql.conditions import Conditions, conjuncts, instant_text, instant_type, joined, names_of
from swjoin.frontends.sql.functions import NAME, Function, map_call, mapped
from swjoin.frontends.sql.grouping import Grouping, checked_where, is_grouped
from swjoin.frontends.sql.lookups import has_static, is_static, looked_up, refuse_static
from swjoin.frontends.sql.ranking import NumberCall, first_rows, limit_of, limited, number_call, numbered, ordered_by
from swjoin.frontends.sql.relations import (
    Aliased,
    Field,
    Nodes,
    Relation,
    Selected,
    TableRelation,
    United,
    filtered,
    quoted,
    source_of,
)
from swjoin.frontends.sql.windows import END, START, Dialect, InWindows, WindowCall, Windowed, edge_names, window_call
from swjoin.plan.logical import LogicalPlan, check_routing
from swjoin.plan.multiway import with_multiway_joins
from swjoin.plan.sharing import shared

_CLAUSES = {
    "offset": "OFFSET",
    "windows": "WINDOW",
    "sample": "a sample",
    "laterals": "LATERAL",
    "pivots": "PIVOT",
    "into": "INTO",
    "kind": "SELECT AS",
    "hint": "a hint",
    "locks": "FOR UPDATE",
    "match": "MATCH_RECOGNIZE",
    "prewhere": "PREWHERE",
}
_MOST_WINDOWS = 100  # of a row that is not grouped
_INNER = {"": "inner", "INNER": "inner", "CROSS": "inner", "SEMI": "semi", "ANTI": "anti"}
_JOIN_KINDS = {("", kind): how for kind, how in _INNER.items()}
_JOIN_KINDS |= {(side, kind): side.lower() for side in ("LEFT", "RIGHT", "FULL") for kind in ("", "OUTER")}


@dataclass(frozen=True)
class Table:
    """A table that queries may name. columns: names and types, as Arrow writes them. time: its time column; None: it is static.
    unit_us: of times that are integers, microseconds of one; below 1 for nanoseconds."""

    columns: tuple[tuple[str, str], ...]
    time: str | None
    unit_us: float | None = None


@dataclass(frozen=True)
class Query:
    """plan: with the columns of the answer, by the names that they have in the query. tables: that it reads, in the order of
    the plan's sources."""

    plan: LogicalPlan
    tables: tuple[str, ...]


@dataclass(frozen=True)
class QueryText:
    """A query before it is planned. functions: that it may name. where: it begins errors; empty: nothing does."""

    text: str
    functions: Mapping[str, Function]
    where: str = ""


def plan_queries(queries: Mapping[str, QueryText | LogicalPlan], tables: Mapping[str, Table], routing: str = "auto") -> Query:
    """The plan of queries, by their names, that share what is equal in them; of one with no name, that of `plan_query`.
    Joins in a row by one key are one (`plan.multiway`). queries: those of another language are planned already. UserError as
    there."""
    plans = {}
    for name, query in queries.items():
        if isinstance(query, LogicalPlan):
            plans[name] = query
            continue
        try:
            plans[name] = plan_query(query.text, tables, query.functions, routing).plan
        except UserError as error:
            raise (error.prefixed(query.where) if query.where else error) from None
    plan = plans[""] if "" in plans else shared(plans)
    plan = with_multiway_joins(plan) if routing in ("auto", "hash") else plan
    return Query(plan, tuple(node.name for node in plan.nodes if not node.inputs))


def parse_query(text: str) -> exp.Query:
    """The tree of a query. UserError with line and column of a syntax error."""
    found = [statement for statement in parsed(text, "query", lambda: parse(text, read=Dialect)) if statement is not None]
    if len(found) != 1:
        raise UserError(f"{len(found)} statements", remedy="give one query")
    if not isinstance(found[0], exp.Query) or isinstance(found[0], exp.Values):
        raise UserError(f"{one_line(found[0].sql('duckdb'), 60)} is no query", remedy="begin it with SELECT or WITH")
    return found[0]


def plan_query(
    text: str,
    tables: Mapping[str, Table],
    functions: Mapping[str, Function] | None = None,
    routing: str = "auto",
    time: str | None = None,
) -> Query:
    """The plan of a query. functions: that it may name. routing: of its joins of streams, see `config.sections.ClusterConfig`.
    time: the column of the answer that is to be its rows' time, if it may be. UserError, one line, for what it cannot mean or
    what is not supported."""
    try:
        tree = parse_query(text)
        last = {name: tree.args.pop(name, None) for name in ("order", "limit")}
        relation = _Planner(tables, functions or {}, routing).query(tree, {})
    except RecursionError:
        raise UserError("the query is too deeply nested") from None
    except UserError as error:
        raise (UserError(one_line(error, 2_000)) if "\n" in str(error) else error) from None
    refuse_static(relation, "a query")
    names = [f.name for f in relation.fields]
    if "" in names:
        shown = relation.fields[names.index("")].column
        raise UserError(f"column {names.index('') + 1}, {shown}, has no name", remedy="give it one: ... AS name")
    _differ(relation)
    order = tuple(_ordered(tree, last["order"], relation)) if last["order"] is not None else ()
    columns = tuple(replace(f, column=f.name) for f in relation.fields)
    top: Relation = relation
    if last["limit"] is not None:
        by = tuple(OrderKey(quoted(relation.fields[at].column), *how) for at, *how in order)
        top = first_rows(relation, by, _limit(last["limit"]))
    if not isinstance(top, Selected) or any(f.column != f.name for f in relation.fields):
        top = Selected(top, columns, tuple(quoted(f.column) for f in relation.fields))
    nodes = Nodes(tables)
    plan = nodes.plan(
        top.make(nodes, time if time in top.times else None), tuple(OrderKey(columns[at].name, *how) for at, *how in order)
    )
    check_routing(plan, routing)
    return Query(plan, tuple(node.name for node in plan.nodes if not node.inputs))


def _ordered(tree: exp.Query, order: exp.Order, relation: Relation) -> Iterator[tuple[int, bool, bool]]:
    """Of ORDER BY at the end: the position of each column of the answer, whether it is descending, whether nulls are first."""
    names, selects = [f.name for f in relation.fields], [item.unalias().sql("duckdb") for item in tree.selects]
    for item, descending, nulls_first in ordered_by(order.expressions):
        shown = item.sql("duckdb")
        if isinstance(item, exp.Literal) and str(item.this).isdigit() and 1 <= int(str(item.this)) <= len(names):
            yield int(str(item.this)) - 1, descending, nulls_first
        elif isinstance(item, exp.Column) and not item.table and item.name in names:
            yield names.index(item.name), descending, nulls_first
        elif len(selects) == len(names) and shown in selects:
            yield selects.index(shown), descending, nulls_first
        else:
            raise UserError(
                f"ORDER BY {one_line(shown, 60)}: is no column of the answer", remedy="select it, and order by its name"
            )


def _limit(limit: exp.Expr) -> int:
    count = limit.args.get("expression")
    if (
        not isinstance(limit, exp.Limit)
        or not isinstance(count, exp.Literal)
        or not str(count.this).isdigit()
        or not int(count.this)
    ):
        raise UserError(
            f"{one_line(limit.sql('duckdb'), 60)} is not supported", remedy="give a number of rows above zero: LIMIT 10"
        )
    return int(str(count.this))


def _differ(relation: Relation, where: str = "") -> None:
    """UserError for two columns of one name."""
    names = [f.name for f in relation.fields]
    for name in names:
        if name and names.count(name) > 1:
            remedy = f"give one another name: {name} AS other"
            raise UserError(f"{names.count(name)} columns{where} are named {name}", remedy=remedy)


class _Planner:
    def __init__(self, tables: Mapping[str, Table], functions: Mapping[str, Function], routing: str) -> None:
        self._tables, self._functions, self._routing = tables, functions, routing

    def query(self, node: exp.Expr, outer: Mapping[str, Relation]) -> Relation:
        """outer: queries of WITH that can be named, by their names."""
        named = dict(outer)
        if (given := node.args.get("with_")) is not None:
            if given.args.get("recursive"):
                raise UserError("WITH RECURSIVE is not supported", remedy="a plan has no cycle")
            for cte in given.expressions:
                _only(cte, "this", "alias")
                if cte.args["alias"].args.get("columns"):
                    raise UserError(f"WITH {cte.alias}(...) is not supported", remedy="name its columns in its SELECT")
                if sum(cte.alias.casefold() == other.alias.casefold() for other in given.expressions) > 1:
                    raise UserError(f"two queries of WITH are named {cte.alias}", remedy="name each once")
                named[cte.alias] = self.query(cte.this, named)
        if isinstance(node, exp.Subquery):
            _only(node, "this", "with_")
            return self.query(node.this, named)
        if isinstance(node, exp.Union):
            return self._union(node, named)
        if isinstance(node, exp.SetOperation):
            raise UserError(f"{node.key.upper()} is not supported", remedy="use UNION ALL, or a semi or anti join")
        if not isinstance(node, exp.Select):
            raise UserError(f"{one_line(node.sql('duckdb'), 60)} is not supported here", remedy="write a SELECT")
        return self._select(node, named)

    # ------------------------------------------------------------ UNION ALL

    def _union(self, node: exp.Union, named: Mapping[str, Relation]) -> Relation:
        _only(node, "this", "expression", "with_", "distinct")
        if node.args.get("distinct"):
            raise UserError("UNION is not supported", remedy="write UNION ALL, which keeps rows that are equal")
        parts = [self.query(part, named) for part in (node.this, node.expression)]
        if is_static(parts[0]) != is_static(parts[1]):
            refuse_static(parts[is_static(parts[1])], "UNION ALL, with a stream,")
        counts = [len(part.fields) for part in parts]
        if counts[0] != counts[1]:
            raise UserError(f"UNION ALL of {counts[0]} and {counts[1]} columns", remedy="select as many on both sides")
        pairs = list(zip(*(part.fields for part in parts), strict=True))
        types = [_united(*fields) for fields in pairs]
        names = [f.name for f in parts[0].fields]
        made = []
        for part in parts:
            fields, texts, instants = [], [], {}
            for i, (name, (kind, sql, unit_us), f) in enumerate(zip(names, types, part.fields, strict=True)):
                column, text = f"{name or 'column'} {i}", quoted(f.column)
                if sql is not None and (f.type != kind or f.unit_us != unit_us):
                    text = f"CAST({instant_text(f)} AS {sql})"
                    if "timestamp" in kind:
                        instants[column] = f.column
                fields.append(Field("", name, column, kind, unit_us))
                texts.append(text)
            made.append(Selected(part, tuple(fields), tuple(texts), instants))
        return United(tuple(made))

    # ------------------------------------------------------------ SELECT

    def _select(self, node: exp.Select, named: Mapping[str, Relation]) -> Relation:
        for name, clause in _CLAUSES.items():
            if node.args.get(name):
                raise UserError(f"{clause} is not supported", remedy="leave it out")
        for name in ("order", "limit"):
            if node.args.get(name):
                raise UserError(
                    f"{name.upper()}{' BY' * (name == 'order')} inside a query", remedy="write it at the end, or ROW_NUMBER"
                )
        _only(node, "with_", "expressions", "from_", "joins", "where", "group", "having", "distinct", "qualify")
        call = number_call(node)
        if node.args.get("from_") is None:
            raise UserError("a SELECT without FROM", remedy="name a table")
        where = node.args.get("where")
        conditions = [] if where is None else list(conjuncts(where.this))
        checked_where(conditions)
        if call is not None:
            return self._numbered(node, call, named, conditions)
        if is_grouped(node):
            return self._grouped(node, named, conditions)
        relation = self._from(node, named, conditions)
        return self._selected(relation, [found for item in node.expressions for found in self._item(item, relation.fields)])

    def _numbered(self, node: exp.Select, call: NumberCall, named: Mapping[str, Relation], where: list[exp.Expr]) -> Relation:
        """A SELECT whose rows are numbered. Its WHERE is tested before, but for the edges of windows, which are the same in a
        group."""
        windowed, edges = self._windows_of(node, named), []
        if windowed is None:
            relation = self._from(node, named, where)
            refuse_static(relation, "ROW_NUMBER()")
        else:
            below = names_of(windowed.of.fields)
            edges = [c for c in where if not below.knows(c)]
            relation = _filtered(windowed.of, [c for c in where if below.knows(c)])
        rows = numbered(call, relation, windowed)
        top, shown = _filtered(rows, edges), rows.fields[:-1]
        found, text = [], call.node.sql("duckdb")

        def changed(part: exp.Expr) -> exp.Expr:
            is_call = isinstance(part, exp.Window) and part.sql("duckdb") == text
            return exp.column(rows.rank, quoted=True) if is_call else part

        for item in node.expressions:
            star = isinstance(item, exp.Star) or isinstance(item.this, exp.Star)
            for f, value in self._item(item.copy().transform(changed), shown if star else top.fields):
                unnamed = value == quoted(rows.rank) and not isinstance(item, exp.Alias)
                found.append((replace(f, name="", column=one_line(item.sql("duckdb"), 100)) if unnamed else f, value))
        return self._selected(top, found)

    def _grouped(self, node: exp.Select, named: Mapping[str, Relation], where: list[exp.Expr]) -> Relation:
        """A SELECT of groups. Its WHERE is tested before, but for the window's edges, which are the same in a group."""
        windowed, edges = self._windows_of(node, named), []
        if windowed is None:
            relation = self._from(node, named, where)
            refuse_static(relation, "groups")
            grouping = Grouping(node, relation, None, "")
        else:
            below = names_of(windowed.of.fields)
            edges = [c for c in where if not below.knows(c)]
            relation = _filtered(windowed.of, [c for c in where if below.knows(c)])
            grouping = Grouping(node, relation, windowed, windowed.table)
        tested = [grouping.rewritten(condition) for condition in edges]
        if node.args.get("having"):
            tested.append(grouping.condition(node.args["having"].this))
        groups = _filtered(grouping.relation, tested)
        found = []
        for item in node.expressions:
            if isinstance(item, exp.Star) or (isinstance(item, exp.Column) and isinstance(item.this, exp.Star)):
                raise UserError("* of groups is not supported", remedy="name the columns")
            for f, text in self._item(grouping.rewritten(item), groups.fields):
                named_so = isinstance(item, exp.Alias) or isinstance(item.unnest(), exp.Column)
                shown = one_line(item.sql("duckdb"), 100)
                found.append((f if named_so else replace(f, name="", column=shown), text))
        return self._selected(groups, found)

    def _windows_of(self, node: exp.Select, named: Mapping[str, Relation]) -> Windowed | None:
        """The windows of FROM; None without."""
        first = node.args["from_"].this
        call = window_call(first)
        if call is None:
            return None
        if node.args.get("joins"):
            raise UserError(f"{call.name} beside a join", remedy=f"join in a subquery: {call.name}((SELECT ...), ...)")
        return self._windowed(first, call, named)

    def _windowed(self, node: exp.Expr, call: WindowCall, named: Mapping[str, Relation]) -> Windowed:
        """The table of a window function with its time column. UserError for a column that is no time of its rows."""
        _only(node, "this", "alias")
        if node.args.get("alias") is not None:
            _only(node.args["alias"], "this")
        source = call.source
        if isinstance(source, exp.Column):
            relation = self._table(exp.Table(this=source.this.copy()), named)
            table = node.alias or source.name
        else:
            table = node.alias or call.name.lower()
            relation = self._aliased(self.query(source, named), table)
        refuse_static(relation, call.name)
        of = Aliased(relation, table)
        time = names_of(of.fields).field(call.time)
        if time.column not in of.times:
            known = ", ".join(f.name for f in of.fields if f.column in of.times) or "none"
            raise UserError(f"{call.name}: {time.name} is no time of its rows", remedy=f"columns that are: {known}")
        for f in of.fields:
            if f.name.casefold() in edge_names(call.windows):
                raise UserError(f"{call.name}: the rows have a column {f.name} already", remedy="give it another name before")
        return Windowed(of, table, time, call.windows)

    def _selected(self, relation: Relation, found: Sequence[tuple[Field, str]]) -> Relation:
        """The columns of SELECT. found: with their texts."""
        fields, texts = [f for f, _ in found], [text for _, text in found]
        columns = [f.column for f in fields]
        while len(set(columns)) < len(columns):
            columns = [f"{c} {i}" if columns.count(c) > 1 else c for i, c in enumerate(columns)]
        numbered = tuple(replace(f, column=column) for f, column in zip(fields, columns, strict=True))
        return Selected(relation, numbered, tuple(texts))

    def _item(self, item: exp.Expr, fields: Sequence[Field]) -> Iterator[tuple[Field, str]]:
        """The columns that an item of SELECT makes of these, and their texts."""
        star = item if isinstance(item, exp.Star) else item.this if isinstance(item, exp.Column) else None
        if isinstance(star, exp.Star):
            _only(star)
            table = item.table if isinstance(item, exp.Column) else None
            found = [f for f in fields if table is None or f.table.casefold() == table.casefold()]
            if not found:
                raise UserError(f"{table}.*: no table {table}", remedy=_near(str(table), {f.table for f in fields}))
            yield from ((replace(f, table="", column=f.name), quoted(f.column)) for f in found)
            return
        names = names_of(fields)
        value = item
        if isinstance(item, exp.Alias):
            _only(item, "this", "alias")
            value = item.this
        if isinstance(value, exp.Paren) and isinstance(value.unnest(), exp.Column):
            value = value.unnest()
        if isinstance(value, exp.Column):
            f = names.field(value)
            name = item.alias if isinstance(item, exp.Alias) else value.name
            yield replace(f, table="", name=name, column=name), quoted(f.column)
            return
        text, expr = names.text(value)
        if pa.types.is_null(expr.type):
            shown = one_line(item.sql("duckdb"), 100)
            raise UserError(f"{shown} is null for every row", remedy="cast it to a type: CAST(NULL AS BIGINT)")
        yield Field("", item.alias, item.alias or one_line(item.sql("duckdb"), 100), str(expr.type)), text

    # ------------------------------------------------------------ FROM, WHERE

    def _from(self, node: exp.Select, named: Mapping[str, Relation], where: list[exp.Expr]) -> Relation:
        """The rows of FROM that satisfy WHERE. Its conditions are tested as early as that is right: those of a join's rows are
        conditions of the join if it is an inner one; what can fail is tested last."""
        relation = self._table(node.args["from_"].this, named)
        joins = node.args.get("joins") or []
        hows = [self._how(join) for join in joins]
        rights = [self._table(join.this, named) for join in joins]
        tables = [next(iter(r.fields)).table for r in (relation, *rights)]
        for table in tables:
            if sum(table.casefold() == other.casefold() for other in tables) > 1:
                raise UserError(f"two tables are named {table}", remedy="give one an alias: FROM t AS other")
        shown = [r for r, how in zip(rights, hows, strict=True) if how not in ("semi", "anti")]
        known = names_of(f for r in (relation, *shown) for f in r.fields)
        for condition in where:
            known.read_by(condition)  # its names are known, and not ambiguous
        if not joins:
            relation, where = _limited(relation, where)
        relation, where = _tested(relation, where, hows)
        for i, (join, how, right) in enumerate(zip(joins, hows, rights, strict=True)):
            conditions = Conditions(relation, right, how, as_of=bool(join.method))
            for name in join.args.get("using") or []:
                conditions.equal(name.name)
            if join.args.get("on") is not None:
                conditions.add_all(conjuncts(join.args["on"]))
            if how == "inner" and not conditions.as_of:
                where = conditions.take(where, pushed=_keep_rows(hows[i + 1 :]))
            if conditions.as_of:
                refuse_static(relation, "ASOF JOIN")
                refuse_static(right, "ASOF JOIN")
            relation = looked_up(conditions) if has_static(conditions) else joined(conditions, self._routing)
            relation, where = _tested(relation, where, hows[i + 1 :])
        return _filtered(relation, where)

    def _aliased(self, relation: Relation, alias: str) -> Relation:
        _differ(relation, f" of {alias}")
        return Aliased(relation, alias)

    def _how(self, join: exp.Join) -> str:
        if join.method.upper() not in ("", "ASOF"):
            raise UserError(f"{join.method} JOIN is not supported", remedy="write JOIN with its conditions")
        _only(join, "this", "on", "using", "side", "kind", "method")
        if join.method and join.args.get("using"):
            remedy = "write ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '10' SECOND AND a.ts"
            raise UserError("ASOF JOIN with USING bounds no time", remedy=remedy)
        if join.method and (join.side.upper() not in ("", "LEFT") or join.kind.upper() not in ("", "INNER", "OUTER")):
            shown = f"ASOF {join.side} {join.kind} JOIN".replace("  ", " ")
            raise UserError(f"{shown} is not supported", remedy="write ASOF JOIN, or ASOF LEFT JOIN")
        if join.kind.upper() == "CROSS" and (join.args.get("on") or join.args.get("using")):
            raise UserError("CROSS JOIN has no conditions", remedy="write JOIN")
        found = _JOIN_KINDS.get((join.side.upper(), join.kind.upper()))
        if found is None:
            raise UserError(f"{join.side} {join.kind} JOIN is not supported".replace("  ", " "))
        return found

    def _table(self, node: exp.Expr, named: Mapping[str, Relation]) -> Relation:
        if isinstance(node, exp.Subquery):
            _only(node, "this", "alias", "with_")
            alias = node.args.get("alias")
            if alias is None:
                raise UserError(f"{one_line(node.sql('duckdb'), 60)} has no name", remedy="give the subquery an alias")
            _only(alias, "this")
            return self._aliased(self.query(node.this, named), node.alias)
        if (found := map_call(node)) is not None:
            _only(node, "this", "alias")
            query, function = found
            relation = self._aliased(self.query(query, named), NAME)
            return self._aliased(mapped(relation, function, self._functions), node.alias or NAME.lower())
        if (call := window_call(node)) is not None:
            windowed = self._windowed(node, call, named)
            if not isinstance(windowed.windows, TimeWindows):
                edge = edge_names(windowed.windows)[0]
                raise UserError(f"{call.name} without GROUP BY {edge}", remedy="select groups, in a subquery beside a join")
            if windowed.windows.size_us > _MOST_WINDOWS * windowed.windows.slide_us:
                problem = f"{call.name}: a row is in more than {_MOST_WINDOWS} windows"
                raise UserError(problem, remedy=f"group by {START}, {END}")
            return self._aliased(InWindows(windowed), windowed.table)
        if not isinstance(node, exp.Table) or not isinstance(node.this, exp.Identifier):
            raise UserError(f"{one_line(node.sql('duckdb'), 60)} is not supported in FROM", remedy="name a table or a subquery")
        _only(node, "this", "alias")
        if node.args.get("alias") is not None:
            _only(node.args["alias"], "this")
        name, alias = node.name, node.alias or node.name
        for known in (named, self._tables):
            spelled = name if name in known else next((k for k in known if k.casefold() == name.casefold()), None)
            if spelled is None:
                continue
            if known is named:
                return self._aliased(named[spelled], alias)
            table = self._tables[spelled]
            return TableRelation(source_of(spelled, table.columns, table.time), alias, table.unit_us)
        raise UserError(f"table {name} is unknown", remedy=_near(name, {*named, *self._tables}))


def _near(name: str, known: set[str]) -> str:
    near = difflib.get_close_matches(name, sorted(known), 1, 0.5)
    return f"did you mean {near[0]}?" if near else f"there are {', '.join(sorted(known)) or 'none'}"


def _only(node: exp.Expr, *read: str) -> None:
    """UserError if the node says more than what is read of it."""
    more = [name for name, value in node.args.items() if value and name not in read]
    if more:
        shown = one_line(node.sql("duckdb"), 100)
        raise UserError(f"{more[0].strip('_').replace('_', ' ')} is not supported, in {shown}")


def _keep_rows(hows: Sequence[str]) -> bool:
    """Whether a condition on the rows of a join may be tested before these joins: none of them gives them back."""
    return all(how in ("inner", "left", "semi", "anti") for how in hows)


def _filtered(relation: Relation, conditions: Sequence[exp.Expr]) -> Relation:
    """The rows that satisfy all of these conditions; those that can fail are last."""
    names, found = names_of(relation.fields), []
    for condition in conditions:
        text, expr = names.text(condition)
        if not pa.types.is_boolean(expr.type) and not pa.types.is_null(expr.type):
            raise UserError(f"{one_line(condition.sql('duckdb'), 100)} is no condition", remedy="use a comparison")
        found.append((can_fail(expr), text))
    return filtered(relation, [text for _, text in sorted(found, key=lambda part: part[0])])


def _limited(relation: Relation, where: list[exp.Expr]) -> tuple[Relation, list[exp.Expr]]:
    """With the conditions on numbers of rows that say how many are kept; the other conditions."""
    names, rest = names_of(relation.fields), []
    for condition in where:
        bound = limit_of(condition)
        found = None
        if bound is not None and isinstance(bound[0], exp.Column):
            f = names.field(bound[0])
            found = limited(relation, f.column, bound[1])
            if found is not None and bound[1] < 1:
                raise UserError(
                    f"{one_line(condition.sql('duckdb'), 60)}: no row has such a number", remedy="numbers begin at 1"
                )
        relation = found or relation
        if found is None or bound is None or not bound[2]:
            rest.append(condition)
    return relation, rest


def _tested(relation: Relation, where: list[exp.Expr], later: Sequence[str]) -> tuple[Relation, list[exp.Expr]]:
    """The relation's rows that satisfy the conditions which can be tested here, and the other conditions."""
    if not later or not _keep_rows(later):
        return relation, where
    names = names_of(relation.fields)
    mine = [c for c in where if names.knows(c) and not can_fail(names.text(c)[1])]
    return _filtered(relation, mine), [c for c in where if c not in mine]


def _united(one: Field, two: Field) -> tuple[str, str | None, float | None]:
    """The type of a column of a union, its name in SQL if an input is to be cast, and the unit of integers that are times."""
    if (one.type, one.unit_us) == (two.type, two.unit_us):
        return one.type, None, one.unit_us
    kinds = [instant_type(f) or read_as(type_named(f.type)) for f in (one, two)]
    found = common(f"UNION ALL: column {one.name}", kinds)
    found = pa.string() if pa.types.is_large_string(found) else found
    sql = _sql_name(found)
    if sql is None:
        raise UserError(f"UNION ALL: column {one.name} is {one.type} and {two.type}", remedy="cast one so that both agree")
    return str(found), sql, None


def _sql_name(kind: Any) -> str | None:
    """The name of a type in SQL; None for one that no cast gives."""
    if pa.types.is_decimal128(kind):
        return f"DECIMAL({kind.precision}, {kind.scale})"
    names = {
        "int64": "BIGINT",
        "double": "DOUBLE",
        "bool": "BOOLEAN",
        "string": "VARCHAR",
        "timestamp[us]": "TIMESTAMP",
        "timestamp[ms]": "TIMESTAMP_MS",
        "timestamp[ns]": "TIMESTAMP_NS",
        "date32[day]": "DATE",
    }
    return names.get(str(kind))
