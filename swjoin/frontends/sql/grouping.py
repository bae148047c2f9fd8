"""GROUP BY, HAVING, DISTINCT and aggregate functions.

What: `is_grouped`, `Grouping`: the relation of groups, and items of SELECT and HAVING over its columns; `Aggregated`.
Why: SQL writes calls and grouping expressions anywhere in an item; an aggregate has them as columns.
Stays out: windows in FROM (`frontends.sql.windows`), the rest of SELECT (`frontends.sql.planner`).

An aggregate needs an end: groups of a window of FROM, or of a column that is the rows' time, such as the `window_end` of a
subquery's windows, in GROUP BY.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import pyarrow as pa
from sqlglot import exp

from swjoin.core.aggregate_functions import FUNCTIONS, PICKS, accumulation_of, result_type
from swjoin.core.errors import UserError, one_line
from swjoin.core.time_windows import TimeWindows
from swjoin.frontends.sql.conditions import names_of
from swjoin.frontends.sql.relations import Field, Nodes, Relation, quoted
from swjoin.frontends.sql.windows import (
    AS_OF,
    END,
    START,
    Counted,
    Cumulated,
    Gap,
    GroupWindows,
    InGroupWindows,
    Windowed,
    edge_names,
    window_type,
)
from swjoin.plan.aggregates import NAIVE, Aggregate, AggregateCall, WindowTime, check_running
from swjoin.plan.kept_rows import Views
from swjoin.plan.logical import Project

_FUNCTIONS: dict[type[exp.Expr], str] = {
    **{exp.Count: "count", exp.Sum: "sum", exp.Avg: "avg", exp.Min: "min", exp.Max: "max"},
    **{exp.First: "first", exp.AnyValue: "first", exp.Last: "last", exp.ArgMin: "arg_min", exp.ArgMax: "arg_max"},
}
_REMEDY = f"use {', '.join(FUNCTIONS)}"


def is_grouped(node: exp.Select) -> bool:
    """Whether the rows of a SELECT are groups."""
    if node.args.get("group") or node.args.get("having") or node.args.get("distinct"):
        return True
    return any(_calls(item) for item in node.expressions)


def _calls(node: exp.Expr) -> list[exp.Expr]:
    """The aggregate functions that an expression calls, each with its FILTER and place; not those of window functions."""
    found: list[exp.Expr] = []
    for call in node.find_all(exp.AggFunc):
        whole: exp.Expr = call.parent if isinstance(call.parent, exp.Filter) else call
        outer = whole.parent.parent if isinstance(whole.parent, exp.Paren) else whole.parent
        if isinstance(outer, exp.Bracket) and outer.this.unnest() is whole:
            whole = outer
        if not isinstance(whole.parent, exp.Window):
            found.append(whole)
    return found


@dataclass(frozen=True)
class Key:
    """A grouping expression. text: over the fields below. field: its column of the groups. plain: it is a column."""

    text: str
    field: Field
    plain: bool


class CallText(NamedTuple):
    """A call. name: column of the result. text, by: over the rows below; None for count(*), and without a value to compare.
    place: of the least or greatest values."""

    name: str
    function: str
    text: str | None
    type: str
    by: str | None = None
    distinct: bool = False
    place: int = 1


@dataclass(frozen=True)
class Aggregated:
    """Groups. time: column of `of` that is the rows' time in windows; None: the window is a time itself, one of `instants`:
    (column of a key, column of `of`). order: column of `of` by which rows are earlier or later; "" for their time. of_all:
    views of all rows so far, at the ends of the windows."""

    of: Relation
    table: str
    keys: tuple[Key, ...]
    calls: tuple[CallText, ...]
    windows: TimeWindows
    time: Field | None
    instants: tuple[tuple[str, str], ...] = ()
    order: str = ""
    of_all: bool = False

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        keys = tuple(key.field for key in self.keys)
        kind, edges = None if self.time is None else window_type(self.time), (AS_OF,) if self.of_all else (START, END)
        windows = () if kind is None else tuple(Field(self.table, name, name, kind) for name in edges)
        return (*keys, *windows, *(Field("", call.name, call.name, call.type) for call in self.calls))

    @cached_property
    def times(self) -> tuple[str, ...]:
        if self.of_all:
            return ()  # see `Views`
        return (
            (START, END)
            if self.time is not None
            else tuple(column for column, below in self.instants if below in self.of.times)
        )

    def make(self, nodes: Nodes, time: str | None) -> str:
        keys = tuple(key.field.column for key in self.keys)
        read: dict[str, str] = {}
        order = quoted(self.order) if self.order and any(call.function in PICKS for call in self.calls) else None
        for text in (text for text in (*(t for call in self.calls for t in (call.text, call.by)), order) if text is not None):
            argument = f"argument {len(read) + 1}"
            while argument in keys:
                argument += "_"
            read.setdefault(text, argument)
        calls = tuple(
            AggregateCall(c.name, c.function, read.get(c.text or ""), read.get(c.by or ""), c.distinct, c.place)
            for c in self.calls
        )
        start, end, output = START, END, {START: "start", END: "end"}.get(str(time), "last")
        below_time = None if self.time is None else self.time.column
        if below_time is None:
            below_time = dict(self.instants)[time] if time is not None else self.instants[0][1]
            start, end, output = "instant", "after", "start"
        below = self.of.make(nodes, below_time)
        computed = (*((key.field.column, key.text) for key in self.keys), *((name, text) for text, name in read.items()))
        if computed:
            source = below
            below = nodes.add("select", lambda name: Project(name, source, computed))
        out: WindowTime = output  # type: ignore[assignment]
        kind, by = window_type(self.time) if self.time is not None else NAIVE, "" if order is None else read[order]
        what = keys, self.windows, calls, start, end, out, kind, by, self.of_all
        groups = nodes.add("aggregate", lambda name: Aggregate(name, below, *what))
        if not self.of_all:
            return groups
        return nodes.add("views", lambda name: Views(name, groups, keys, self.windows.size_us, AS_OF, kind))


class Grouping:
    """Of one SELECT. of: what it groups, without the columns of windows. windowed: the windows of FROM; None for none."""

    def __init__(self, node: exp.Select, of: Relation, windowed: Windowed | None, table: str) -> None:
        self._of, self._windowed, self._table = of, windowed, table
        self._edges = () if windowed is None else windowed.edges
        self._names = names_of((*of.fields, *self._edges))
        self._items: list[exp.Expr] = [item.this if isinstance(item, exp.Alias) else item for item in node.expressions]
        self._aliases = [item.alias if isinstance(item, exp.Alias) else "" for item in node.expressions]
        self._keys: list[Key] = []
        self._has_window = False
        self._taken = {START, END, AS_OF, "instant", "after"}  # names of columns of the groups
        self._found: dict[str, CallText] = {}  # by their text
        for expression in self._grouped_by(node):
            self._add_key(expression)
        for item in [*node.expressions, *([node.args["having"].this] if node.args.get("having") else [])]:
            for call in _calls(item):
                self._add_call(call)
        self.relation = self._aggregated()

    # ------------------------------------------------------------ keys

    def _grouped_by(self, node: exp.Select) -> Iterator[exp.Expr]:
        distinct, group = node.args.get("distinct"), node.args.get("group")
        if distinct is not None:
            if distinct.args.get("on"):
                raise UserError("DISTINCT ON is not supported", remedy="write GROUP BY")
            if group is not None or node.args.get("having") or any(map(_calls, node.expressions)):
                raise UserError("DISTINCT of groups is not supported", remedy="leave it out")
            if self._windowed is not None and isinstance(self._windowed.windows, Counted):
                raise UserError("DISTINCT over ROWS: two windows may have the same times", remedy="write GROUP BY")
            yield from self._items
            return
        if group is None:
            return
        more = [name for name, value in group.args.items() if value and name != "expressions"]
        if more:
            raise UserError(f"GROUP BY {more[0].upper().replace('_', ' ')} is not supported", remedy="name each expression")
        for expression in group.expressions:
            yield self._meant(expression)

    def _meant(self, expression: exp.Expr) -> exp.Expr:
        """An expression of GROUP BY, which may be the number or the alias of an item."""
        if isinstance(expression, exp.GroupingSets | exp.Rollup | exp.Cube):
            raise UserError(
                f"GROUP BY {one_line(expression.sql('duckdb'), 60)} is not supported", remedy="name each expression"
            )
        if isinstance(expression, exp.Literal) and not expression.is_string:
            number = int(str(expression.this)) if str(expression.this).isdigit() else 0
            if not 1 <= number <= len(self._items):
                raise UserError(f"GROUP BY {expression.this}: there are {len(self._items)} items", remedy="name the expression")
            return self._items[number - 1]
        if isinstance(expression, exp.Column) and not expression.table and not self._names.knows(expression):
            for alias, item in zip(self._aliases, self._items, strict=True):
                if alias.casefold() == expression.name.casefold():
                    return item
        return expression

    def _add_key(self, expression: exp.Expr) -> None:
        if isinstance(expression.unnest(), exp.Column):
            expression = expression.unnest()
        shown = one_line(expression.sql("duckdb"), 100)
        if isinstance(expression, exp.Star) or (isinstance(expression, exp.Column) and isinstance(expression.this, exp.Star)):
            raise UserError(f"{shown} in GROUP BY or DISTINCT is not supported", remedy="name the columns")
        if _calls(expression):
            raise UserError(f"{shown}: GROUP BY of an aggregate", remedy="group in a subquery")
        read = self._names.read_by(expression)
        if any(f in self._edges for f in read):
            if not isinstance(expression, exp.Column):
                edges = ", ".join(f.name for f in self._edges)
                raise UserError(f"{shown}: an expression of a window in GROUP BY", remedy=f"group by {edges}")
            self._has_window = True
            return
        if isinstance(expression, exp.Column):
            f = self._names.field(expression)
            if all(key.text != quoted(f.column) for key in self._keys):
                self._keys.append(Key(quoted(f.column), replace(f, column=self._free(f.name, ())), True))
            return
        text, expr = self._names.text(expression)
        if pa.types.is_null(expr.type):
            raise UserError(f"{shown} is null for every row", remedy="leave it out of GROUP BY")
        if all(key.text != text for key in self._keys):
            column = self._free(shown, self._names.fields)
            self._keys.append(Key(text, Field("", column, column, str(expr.type)), False))

    def _free(self, name: str, others: Iterable[tuple[str, str]]) -> str:
        """A name that no column of the groups has, nor one of these, (table, name)."""
        taken = {other.casefold() for _, other in others} | {other.casefold() for other in self._taken}
        while name.casefold() in taken:
            name += "_"
        self._taken.add(name)
        return name

    # ------------------------------------------------------------ calls

    def _add_call(self, node: exp.Expr) -> None:
        text = node.sql("duckdb")
        if text in self._found:
            return
        shown, call, where = one_line(text, 100), node, None
        if isinstance(node, exp.Bracket):
            call = node.this.unnest()
        if isinstance(call, exp.Filter):
            call, where = call.this, call.expression.this
        function = "count" if isinstance(call, exp.CountIf) else _FUNCTIONS.get(type(call))
        if function is None:
            raise UserError(f"{shown} is not supported", remedy=_REMEDY)
        argument, by = call.this, call.args.get("expression") if function.startswith("arg_") else None
        distinct, place = isinstance(argument, exp.Distinct), _place(node, call, shown)
        if distinct and call.args.get("count"):
            raise UserError(f"{shown} is not supported", remedy="leave DISTINCT out")
        if distinct:
            if len(argument.expressions) != 1 or argument.args.get("on"):
                raise UserError(f"{shown} is not supported", remedy="name one column behind DISTINCT")
            argument = argument.expressions[0]
        if distinct and function in ("min", "max", "first", "last"):
            distinct = False  # says nothing
        read = {"this", "big_int", "count", *(("expression",) if by is not None else ())}
        more = [name for name, value in call.args.items() if value and name not in read]
        if more or isinstance(argument, exp.Order):
            raise UserError(f"{shown} is not supported", remedy=_REMEDY)
        if isinstance(argument, exp.Star) and not any(argument.args.values()):
            argument = None
        if isinstance(argument, exp.Star):
            raise UserError(f"{shown} is not supported", remedy="write count(*)")
        if argument is None and function != "count":
            raise UserError(f"{shown} needs a column", remedy="name one")
        if any(_calls(part) for part in (argument, where, by) if part is not None):
            raise UserError(f"{shown}: an aggregate of an aggregate", remedy="aggregate in a subquery")
        if isinstance(call, exp.CountIf):
            argument, where = None, argument if where is None else exp.and_(argument, where)
        if where is not None:
            argument = exp.Case(ifs=[exp.If(this=where.copy(), true=argument or exp.Literal.number(1))])
        name = self._free(shown, self._names.fields)
        if argument is None:
            self._found[text] = CallText(name, function, None, "int64")
            return
        value, kind = self._argument(argument, shown)
        other, other_kind = (None, None) if by is None else self._argument(by, shown)
        try:
            found = result_type(function, kind, other_kind, distinct=distinct, place=place)
            if self._windowed is not None and isinstance(self._windowed.windows, Cumulated):
                check_running(accumulation_of(function, kind, other_kind, distinct=distinct, place=place))
            self._found[text] = CallText(name, function, value, found, other, distinct, place)
        except UserError as error:
            raise error.prefixed(shown) from None

    def _argument(self, argument: exp.Expr, shown: str) -> tuple[str, str]:
        """Text and type of what a call reads."""
        if any(f in self._edges for f in self._names.read_by(argument)):
            edges = " or ".join(f.name for f in self._edges)
            raise UserError(f"{shown}: an aggregate of a window's edge", remedy=f"write {edges} by itself")
        value, expr = self._names.text(argument)
        if pa.types.is_null(expr.type):
            raise UserError(f"{shown}: its argument is null for every row", remedy="leave it out")
        return value, str(expr.type)

    # ------------------------------------------------------------ groups

    def _aggregated(self) -> Aggregated:
        keys, calls = tuple(self._keys), tuple(self._found.values())
        if self._windowed is not None:
            windows, time = self._windowed.windows, self._windowed.time
            if not self._has_window:
                edges = ", ".join(edge_names(windows))
                raise UserError("groups without their window", remedy=f"write GROUP BY {edges} and what else groups")
            if isinstance(windows, Cumulated):
                until = TimeWindows(windows.every_us, windows.every_us, 1)  # their last microseconds are multiples
                return Aggregated(self._of, self._table, keys, calls, until, time, of_all=True)
            if not isinstance(windows, TimeWindows):
                return self._of_group_windows(windows, time, calls)
            return Aggregated(self._of, self._table, keys, calls, windows, time)
        texts = {text: time for time in self._of.times for text in (quoted(time), time)}
        instants = tuple((key.field.column, texts[key.text]) for key in keys if key.text in texts)
        if not instants:
            remedy = f"FROM TUMBLE(table, time, INTERVAL '1' MINUTE) ... GROUP BY {START}, {END}"
            raise UserError("GROUP BY, DISTINCT or an aggregate without a window", remedy=f"give one: {remedy}")
        return Aggregated(self._of, self._table, keys, calls, TimeWindows(1, 1), None, instants)

    def _of_group_windows(self, windows: GroupWindows, time: Field, calls: tuple[CallText, ...]) -> Aggregated:
        """Groups of rows with their windows, which are by the other keys, or by those of the table's argument."""
        given = windows.keys if isinstance(windows, Gap) else None
        texts = [key.text for key in self._keys] if given is None else [self._names.text(key)[0] for key in given]
        rows = InGroupWindows(self._of, self._table, tuple(dict.fromkeys(texts)), time, windows)
        edges = tuple(Key(quoted(f.column), replace(f, column=f.name), True) for f in rows.edges)
        number = tuple(Key(quoted(f.column), replace(f, column=self._free(f.name, ())), True) for f in rows.numbers[:1])
        instants = tuple((f.name, f.column) for f in (rows.edges[1], rows.edges[0]))
        instants = instants if instants[1][1] in rows.times else instants[:1]
        keys = (*self._keys, *edges, *number)
        return Aggregated(rows, self._table, keys, calls, TimeWindows(1, 1), None, instants, rows.order)

    def rewritten(self, item: exp.Expr) -> exp.Expr:
        """An expression of SELECT or HAVING over the columns of the groups. UserError for what is not the same in a group."""
        self._check_names(item)
        computed = {key.text: key.field.column for key in self._keys if not key.plain}

        def changed(node: exp.Expr) -> exp.Expr:
            call = self._found.get(node.sql("duckdb")) if isinstance(node, exp.AggFunc | exp.Filter | exp.Bracket) else None
            column = None if call is None else call.name
            if column is None and computed and not isinstance(node, exp.Column | exp.Literal | exp.Identifier | exp.Alias):
                column = computed.get(self._text(node))
            return node if column is None else exp.column(column, quoted=True)

        out = item.copy().transform(changed)
        names, mine = names_of(self.relation.fields), {f.column for f in self.relation.fields if not f.table}
        for column in out.find_all(exp.Column):
            if column.name not in mine and not names.knows(column):
                shown = column.sql("duckdb")
                raise UserError(f"{shown} is neither in GROUP BY nor in an aggregate", remedy=f"add {shown} to GROUP BY")
        return out

    def condition(self, having: exp.Expr) -> exp.Expr:
        """A condition of HAVING, which may name items by their aliases."""

        def meant(node: exp.Expr) -> exp.Expr:
            if isinstance(node, exp.Column) and not node.table and not self._names.knows(node):
                for alias, item in zip(self._aliases, self._items, strict=True):
                    if alias.casefold() == node.name.casefold():
                        return exp.Paren(this=item.copy())
            return node

        return self.rewritten(having.copy().transform(meant))

    def _check_names(self, item: exp.Expr) -> None:
        """UserError for a name that the rows before grouping do not have, or for what no group has."""
        for node in item.find_all(exp.IgnoreNulls, exp.RespectNulls, exp.WithinGroup, exp.Subquery, exp.Select):
            raise UserError(f"{one_line(node.sql('duckdb'), 100)} is not supported", remedy=_REMEDY)
        self._names.read_by(item)

    def _text(self, node: exp.Expr) -> str:
        if _calls(node) or not self._names.knows(node):
            return ""
        return self._names.written(node).sql("duckdb")


def _place(node: exp.Expr, call: exp.Expr, shown: str) -> int:
    """Which of the values of max(x, n)[i], and of the likes, is asked for; 1 for max(x). UserError for a list, and for no
    place in it."""
    count = call.args.get("count")
    if count is None and not isinstance(node, exp.Bracket):
        return 1
    form = "max(x, 3)[1], [2] or [3]"
    if count is None or not isinstance(node, exp.Bracket):
        problem = "no list" if count is None else "a list, which no column can be"
        raise UserError(f"{shown} is {problem}", remedy=f"take values of n by their places: {form}")
    at = node.expressions[0] if len(node.expressions) == 1 else None
    numbers = [int(n.this) if isinstance(n, exp.Literal) and str(n.this).isdigit() else -1 for n in (at, count)]
    if not 0 <= numbers[0] < numbers[1]:  # places count from 0 in the tree
        raise UserError(f"{shown} has no such place", remedy=f"give numbers from 1 on, the place up to n: {form}")
    return numbers[0] + 1


def checked_where(conditions: Sequence[exp.Expr]) -> None:
    """UserError for an aggregate in WHERE."""
    for condition in conditions:
        for call in condition.find_all(exp.AggFunc):
            raise UserError(f"{one_line(call.sql('duckdb'), 100)}: an aggregate in WHERE", remedy="write it in HAVING")
