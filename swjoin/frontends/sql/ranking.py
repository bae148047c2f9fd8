"""Top-n: ROW_NUMBER in SELECT or QUALIFY, and LIMIT.

What: `number_call`, what a SELECT numbers; `Numbered`, its relation; `limited`, with the condition that ends the numbering;
`limit_of`, such a condition.
Why: SQL numbers rows in one query and takes the first ones in the next, or in QUALIFY; a plan keeps only those.
Stays out: windows in FROM (`frontends.sql.windows`), the rest of SELECT (`frontends.sql.planner`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from sqlglot import exp

from swjoin.core.errors import UserError, one_line
from swjoin.core.kept_columns import OrderKey
from swjoin.core.time_windows import TimeWindows
from swjoin.frontends.sql.conditions import conjuncts, names_of
from swjoin.frontends.sql.relations import Aliased, Field, Filtered, Nodes, Relation, Selected, quoted
from swjoin.frontends.sql.windows import END, START, Windowed, window_type
from swjoin.plan.aggregates import NAIVE, WindowTime
from swjoin.plan.kept_rows import WHOLE, Ranked
from swjoin.plan.logical import Project

_FLIPPED: dict[type[exp.Expr], type[exp.Expr]] = {exp.GTE: exp.LTE, exp.GT: exp.LT, exp.EQ: exp.EQ}
_REMEDY = "number rows with ROW_NUMBER() OVER (PARTITION BY window_start, ... ORDER BY ...)"
Order = tuple[OrderKey, ...]  # of expressions


@dataclass(frozen=True)
class Numbered:
    """The first rows of each window and group, with their numbers. keys, order: expressions over `of`. most: None as long as no
    condition says it. rank: column of the numbers. time: of windows of FROM; None: the window is a time of the rows, one of
    `instants`, columns of `of`, or the whole input. table: name in FROM of the columns of windows."""

    of: Relation
    keys: tuple[str, ...]
    order: Order
    rank: str
    windows: TimeWindows
    most: int | None = None
    time: Field | None = None
    instants: tuple[str, ...] = ()
    table: str = ""

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return (*self.of.fields, *self._edges, Field("", self.rank, self.rank, "int64"))

    @property
    def _edges(self) -> tuple[Field, ...]:
        kind = None if self.time is None else window_type(self.time)
        return () if kind is None else tuple(Field(self.table, name, name, kind) for name in (START, END))

    @cached_property
    def times(self) -> tuple[str, ...]:
        return (START, END) if self.time is not None else self.instants

    def make(self, nodes: Nodes, time: str | None) -> str:
        if self.most is None:
            raise UserError("ROW_NUMBER() without a limit", remedy="write WHERE rn <= 10 in the query around it, or QUALIFY")
        most, output, taken = self.most, {START: "start", END: "end"}.get(str(time), "last"), {f.column for f in self.fields}
        below = self.time.column if self.time is not None else time or next(iter(self.instants), None)
        if self.instants:
            output = "start"
        source = self.of.make(nodes, below)
        plain = {quoted(f.column): f.column for f in self.of.fields}
        read = dict(plain)
        for text in (*self.keys, *(key.column for key in self.order)):
            if text not in read:
                name = f"key {len(read)}"
                while name in taken:
                    name += "_"
                read[text] = name
        columns = tuple((name, text) for text, name in read.items())
        if len(read) > len(plain):
            of = source
            source = nodes.add("select", lambda name: Project(name, of, columns))
        key, order = tuple(read[text] for text in self.keys), tuple(key._replace(column=read[key.column]) for key in self.order)
        edges = (START, END) if self.time is not None else ("", "")
        kind = NAIVE if self.time is None else window_type(self.time)
        out: WindowTime = output  # type: ignore[assignment]
        what = key, order, most, self.windows, self.rank
        return nodes.add("top", lambda name: Ranked(name, source, *what, *edges, out, kind))


def limited(relation: Relation, column: str, most: int) -> Relation | None:
    """With no more rows per group than these, if this column has the numbers of rows; None if it has others."""
    if isinstance(relation, Numbered):
        return replace(relation, most=min(most, relation.most or most)) if column == relation.rank else None
    if isinstance(relation, Aliased | Filtered):
        of = limited(relation.of, column, most)
        return None if of is None else replace(relation, of=of)
    if isinstance(relation, Selected):
        text = relation.texts[[f.column for f in relation.fields].index(column)]
        origin = next((f.column for f in relation.of.fields if quoted(f.column) == text), None)
        below = None if origin is None else limited(relation.of, origin, most)
        return None if below is None else replace(relation, of=below, _made={})
    return None


def limit_of(condition: exp.Expr) -> tuple[exp.Expr, int, bool] | None:
    """What a condition bounds from above, the greatest integer that it may be, and whether the condition says no more."""
    sides, kind = [condition.this, condition.expression], type(condition)
    if kind not in (exp.LT, exp.LTE, exp.EQ, exp.GT, exp.GTE):
        return None
    if isinstance(sides[0].unnest(), exp.Literal):
        sides, kind = sides[::-1], {**_FLIPPED, exp.LT: exp.GT, exp.LTE: exp.GTE}[kind]
    value, bound = (side.unnest() for side in sides)
    if kind not in (exp.LT, exp.LTE, exp.EQ) or not isinstance(bound, exp.Literal) or not str(bound.this).isdigit():
        return None
    most = int(str(bound.this)) - (kind is exp.LT)
    return value, most, kind is not exp.EQ or most == 1


@dataclass(frozen=True)
class NumberCall:
    """node: the call. most: of QUALIFY."""

    node: exp.Window
    most: int | None


def number_call(node: exp.Select) -> NumberCall | None:
    """What a SELECT numbers; None for nothing. UserError for another window function, or for several."""
    found, most = [call for item in node.expressions for call in item.find_all(exp.Window)], None
    if (qualify := node.args.get("qualify")) is not None:
        conditions = list(conjuncts(qualify.this))
        bound = limit_of(conditions[0]) if len(conditions) == 1 else None
        if bound is None or not bound[2] or not isinstance(bound[0], exp.Window):
            raise UserError(
                f"{one_line(qualify.sql('duckdb'), 100)} is not supported", remedy="write QUALIFY ROW_NUMBER() ... <= 10"
            )
        found.append(bound[0])
        most = bound[1]
    if not found:
        return None
    texts = {call.sql("duckdb") for call in found}
    if len(texts) > 1:
        raise UserError(f"{len(texts)} calls with OVER", remedy="number rows in one way, and in another query in another way")
    call, shown = found[0], one_line(found[0].sql("duckdb"), 100)
    if not isinstance(call.this, exp.RowNumber):
        raise UserError(f"{shown} is not supported", remedy=_REMEDY)
    more = [name for name, value in call.args.items() if value and name not in ("this", "partition_by", "order", "over")]
    if more or (most is not None and most < 1):
        raise UserError(f"{shown}: {(more or ['limit'])[0]} is not supported", remedy=_REMEDY)
    if any(node.args.get(name) for name in ("group", "having", "distinct")):
        raise UserError(f"{shown} beside GROUP BY", remedy="group in a subquery, and number its rows")
    return NumberCall(call, most)


def ordered_by(items: Sequence[exp.Expr]) -> Iterator[tuple[exp.Expr, bool, bool]]:
    """Of ORDER BY: each expression, whether it is descending, and whether nulls are first."""
    for item in items:
        if not isinstance(item, exp.Ordered):
            yield item, False, False
            continue
        if item.args.get("with_fill"):
            raise UserError(f"{one_line(item.sql('duckdb'), 100)} is not supported")
        yield item.this, bool(item.args.get("desc")), bool(item.args.get("nulls_first"))


def numbered(call: NumberCall, relation: Relation, windowed: Windowed | None) -> Numbered:
    """The rows that a SELECT numbers. relation: without the columns of windows. UserError without a window."""
    edges = () if windowed is None else windowed.edges
    names, keys, instants, has_window = names_of((*relation.fields, *edges)), [], [], False
    for item in call.node.args.get("partition_by") or []:
        column = item.unnest()
        f = names.field(column) if isinstance(column, exp.Column) else None
        if f is not None and f in edges:
            has_window = True
            continue
        keys.append(names.text(item)[0] if f is None else quoted(f.column))
        if f is not None and f.column in relation.times:
            instants.append(f.column)
    order = call.node.args.get("order")
    by = []
    for item, descending, nulls_first in ordered_by(order.expressions if order is not None else ()):
        column = item.unnest()
        f = names.field(column) if isinstance(column, exp.Column) else None
        if f is not None and f in edges:
            continue  # the same in a window
        by.append(OrderKey(names.text(item)[0] if f is None else quoted(f.column), descending, nulls_first))
    rank = "row number"
    while rank in {f.column for f in (*relation.fields, *edges)}:
        rank += "_"
    table = "" if windowed is None else windowed.table
    if windowed is not None and isinstance(windowed.windows, TimeWindows) and has_window:
        return Numbered(relation, tuple(keys), tuple(by), rank, windowed.windows, call.most, windowed.time, table=table)
    if windowed is not None or not instants:
        shown = one_line(call.node.sql("duckdb"), 100)
        raise UserError(f"{shown}: no window", remedy=f"FROM TUMBLE(...), and PARTITION BY {START}, {END} and what else groups")
    return Numbered(relation, tuple(keys), tuple(by), rank, TimeWindows(1, 1), call.most, instants=tuple(instants))


def first_rows(relation: Relation, order: Order, most: int) -> Numbered:
    """The first rows of all."""
    rank = "row number"
    while rank in {f.column for f in relation.fields}:
        rank += "_"
    return Numbered(relation, (), order, rank, WHOLE, most)
