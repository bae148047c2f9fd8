"""Queries in Python: `swjoin.stream`, with Polars' verbs.

What: `Stream`, lazy; `Expr` with `col`, `lit`, `expr`, `row_count`; windows `tumble`, `hop`, `session` and `rows`;
`map_batches` for what SQL cannot say.
Why: a query that a program puts together is easier to read as calls than as text. Every verb makes an SQL query of the query
before, so both have one meaning, one plan and one set of errors.
Stays out: what SQL means (`frontends.sql`), running it (`api.queries`).
"""

from __future__ import annotations

import datetime
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, TypedDict, Unpack

from sqlglot import exp

from swjoin.api.inputs import Input, are_paths, to_table
from swjoin.api.queries import answer
from swjoin.config.arguments import duration_us, one_of
from swjoin.config.connectors import StreamConfig
from swjoin.config.options import Duration, Strategy, TimeUnit
from swjoin.config.window_bounds import is_unbounded
from swjoin.connectors.files.source import describe_columns
from swjoin.connectors.schema import parse_schema
from swjoin.core.errors import UserError, spelled
from swjoin.core.join_semantics import AsOf, Bounds
from swjoin.core.ledger import Proof
from swjoin.core.units import UNBOUNDED_US
from swjoin.frontends.sql.functions import NAME, Function, declared
from swjoin.frontends.sql.planner import Query, Table, plan_query
from swjoin.frontends.sql.tables import with_time
from swjoin.frontends.sql.windows import AS_OF, END, START
from swjoin.plan.map_batches import is_importable
from swjoin.plan.multiway import with_multiway_joins
from swjoin.plan.stages import cut, describe_edge, describe_stage

if TYPE_CHECKING:
    import pyarrow as pa


class TimeBounds(TypedDict, total=False):
    """Of right time - left time: within, or lower and upper."""

    within: Duration
    lower: Duration
    upper: Duration


Value: TypeAlias = Any  # an Expr, or a constant
How: TypeAlias = Literal["inner", "left", "right", "full", "semi", "anti"]
_HOWS: tuple[How, ...] = ("inner", "left", "right", "full", "semi", "anti")
_ASOF: tuple[dict[str, str], dict[str, str]] = ({}, {"method": "ASOF"})
_numbers = itertools.count(1)


# ---------------------------------------------------------------- expressions


def _node(value: Value) -> exp.Expr:
    """The SQL of an expression or a constant. UserError for other values."""
    if isinstance(value, Expr):
        return value.node.copy()
    if value is None:
        return exp.Null()
    if isinstance(value, bool):
        return exp.Boolean(this=value)
    if isinstance(value, (int, float)):
        number = exp.Literal.number(repr(abs(value)))
        return exp.Neg(this=number) if value < 0 else number
    if isinstance(value, str):
        return exp.Literal.string(value)
    if isinstance(value, datetime.datetime) and value.tzinfo is None:
        return exp.cast(exp.Literal.string(value.isoformat(sep=" ")), "TIMESTAMP")
    if isinstance(value, datetime.date) and not isinstance(value, datetime.datetime):
        return exp.cast(exp.Literal.string(value.isoformat()), "DATE")
    if isinstance(value, datetime.timedelta):
        return _interval(value // datetime.timedelta(microseconds=1))
    raise UserError(f"{value!r:.60} is no constant of a query", remedy="use numbers, text, dates or expr('SQL')")


def _interval(us: int) -> exp.Expr:
    return exp.Interval(this=exp.Literal.string(str(us)), unit=exp.Var(this="MICROSECOND"))


def _binary(kind: type[exp.Expr], left: Value, right: Value) -> Expr:
    return Expr(exp.Paren(this=kind(this=_node(left), expression=_node(right))))


@dataclass(frozen=True, eq=False)
class Expr:
    """An expression over columns, in SQL's meaning: null where an operand is null, three-valued conditions. name: of the column
    that it makes; "" for none."""

    node: exp.Expr
    name: str = ""

    def alias(self, name: str) -> Expr:
        return replace(self, name=name)

    def __bool__(self) -> bool:
        raise UserError("a condition of a query has no truth value", remedy="combine conditions by &, | and ~")

    def __add__(self, other: Value) -> Expr:
        return _binary(exp.Add, self, other)

    def __radd__(self, other: Value) -> Expr:
        return _binary(exp.Add, other, self)

    def __sub__(self, other: Value) -> Expr:
        return _binary(exp.Sub, self, other)

    def __rsub__(self, other: Value) -> Expr:
        return _binary(exp.Sub, other, self)

    def __mul__(self, other: Value) -> Expr:
        return _binary(exp.Mul, self, other)

    def __rmul__(self, other: Value) -> Expr:
        return _binary(exp.Mul, other, self)

    def __truediv__(self, other: Value) -> Expr:
        return _binary(exp.Div, self, other)

    def __rtruediv__(self, other: Value) -> Expr:
        return _binary(exp.Div, other, self)

    def __floordiv__(self, other: Value) -> Expr:
        return _binary(exp.IntDiv, self, other)

    def __mod__(self, other: Value) -> Expr:
        return _binary(exp.Mod, self, other)

    def __neg__(self) -> Expr:
        return Expr(exp.Paren(this=exp.Neg(this=self.node.copy())))

    def __eq__(self, other: Value) -> Expr:  # type: ignore[override]
        return _binary(exp.EQ, self, other)

    def __ne__(self, other: Value) -> Expr:  # type: ignore[override]
        return _binary(exp.NEQ, self, other)

    def __lt__(self, other: Value) -> Expr:
        return _binary(exp.LT, self, other)

    def __le__(self, other: Value) -> Expr:
        return _binary(exp.LTE, self, other)

    def __gt__(self, other: Value) -> Expr:
        return _binary(exp.GT, self, other)

    def __ge__(self, other: Value) -> Expr:
        return _binary(exp.GTE, self, other)

    def __and__(self, other: Value) -> Expr:
        return _binary(exp.And, self, other)

    def __or__(self, other: Value) -> Expr:
        return _binary(exp.Or, self, other)

    def __invert__(self) -> Expr:
        return Expr(exp.Not(this=exp.Paren(this=self.node.copy())))

    def is_null(self) -> Expr:
        return Expr(exp.Paren(this=exp.Is(this=self.node.copy(), expression=exp.Null())))

    def is_not_null(self) -> Expr:
        return ~self.is_null()

    def is_in(self, values: Sequence[Value]) -> Expr:
        return Expr(exp.Paren(this=exp.In(this=self.node.copy(), expressions=[_node(value) for value in values])))

    def is_between(self, low: Value, high: Value) -> Expr:
        """Both ends included."""
        return _binary(exp.And, _binary(exp.GTE, self, low), _binary(exp.LTE, self, high))

    def fill_null(self, value: Value) -> Expr:
        return Expr(exp.Coalesce(this=self.node.copy(), expressions=[_node(value)]))

    def cast(self, kind: str) -> Expr:
        """kind: as SQL names it, such as BIGINT, DOUBLE, VARCHAR."""
        return expr(f"CAST({self.node.sql('duckdb')} AS {kind})")

    def _called(self, function: type[exp.Expr]) -> Expr:
        return Expr(function(this=self.node.copy()), self.name)

    def sum(self) -> Expr:
        return self._called(exp.Sum)

    def mean(self) -> Expr:
        return self._called(exp.Avg)

    def _placed(self, call: exp.Expr, place: int) -> Expr:
        """place: among the least or greatest values, from 1 on."""
        if not isinstance(place, int) or isinstance(place, bool) or place < 1:
            raise UserError(f"place={place!r:.40} is no place", remedy="give an integer above zero: 1 is the first")
        if place > 1:
            call.set("count", exp.Literal.number(place))
            call = exp.Bracket(this=call, expressions=[exp.Literal.number(place - 1)])
        return Expr(call, self.name)

    def min(self, *, place: int = 1) -> Expr:
        """The least value; place=2 for the second least, and so on: equal values have a place each. Null if there are fewer."""
        return self._placed(exp.Min(this=self.node.copy()), place)

    def max(self, *, place: int = 1) -> Expr:
        """The greatest value, as `min`."""
        return self._placed(exp.Max(this=self.node.copy()), place)

    def count(self) -> Expr:
        """How many values are not null."""
        return self._called(exp.Count)

    def n_unique(self) -> Expr:
        """How many different values there are; null is none of them."""
        return Expr(exp.Count(this=exp.Distinct(expressions=[self.node.copy()])), self.name)

    def first(self) -> Expr:
        """The value of the earliest row that has one."""
        return self._called(exp.First)

    def last(self) -> Expr:
        """The value of the latest row that has one."""
        return self._called(exp.Last)

    def arg_min(self, by: Expr, *, place: int = 1) -> Expr:
        """The value of the row whose `by` is the least, or in this place among them; of equal ones the earliest is first."""
        return self._placed(exp.ArgMin(this=self.node.copy(), expression=_node(by)), place)

    def arg_max(self, by: Expr, *, place: int = 1) -> Expr:
        """The value of the row whose `by` is the greatest, as `arg_min`."""
        return self._placed(exp.ArgMax(this=self.node.copy(), expression=_node(by)), place)

    def where(self, condition: Expr) -> Expr:
        """An aggregate over the rows that satisfy a condition."""
        call, holds = self.node.copy(), exp.Where(this=_node(condition))
        if not isinstance(call, exp.Bracket):
            return replace(self, node=exp.Filter(this=call, expression=holds))
        call.set("this", exp.Paren(this=exp.Filter(this=call.this, expression=holds)))
        return replace(self, node=call)


def col(name: str) -> Expr:
    """A column."""
    return Expr(exp.column(name, quoted=True), name)


def lit(value: Value) -> Expr:
    """A constant."""
    return Expr(_node(value))


def expr(text: str) -> Expr:
    """Any expression of SQL (docs/queries.md)."""
    from swjoin.expressions.binder import parse_expression

    return Expr(exp.Paren(this=parse_expression(text)))


def row_count() -> Expr:
    """The rows of a group."""
    return Expr(exp.Count(this=exp.Star()))


Origin: TypeAlias = Literal["first"] | None


@dataclass(frozen=True)
class Window:
    """call: of the query, without its table and time. has_time: whether `window_end` is the time of a group's row. edges: names
    of the columns of a group's window."""

    name: str
    sizes: tuple[exp.Expr, ...]
    options: tuple[exp.Expr, ...] = ()
    has_time: bool = True
    edges: tuple[str, ...] = (START, END)

    def over(self, query: exp.Query, time: str) -> exp.Table:
        arguments = exp.Subquery(this=query.copy()), exp.column(time, quoted=True)
        call = exp.Anonymous(this=self.name, expressions=[*arguments, *(part.copy() for part in (*self.sizes, *self.options))])
        return exp.Table(this=call, alias=exp.TableAlias(this=exp.to_identifier("q")))


def tumble(size: Any, *, origin: Origin = None) -> Window:
    """Windows one after another. size: such as "10s", or a timedelta.

    origin: "first" for windows that each group counts from the time of its first row on; both ends of such a window belong to
    it. Without, windows begin at multiples of the size from 1970 on, and end before the next one begins.
    """
    return Window("TUMBLE", (_length(size, "size"),), _from_first(origin))


def hop(size: Any, *, every: Any, origin: Origin = None) -> Window:
    """Windows of this size, one beginning each `every`. origin: as of `tumble`."""
    return Window("HOP", (_length(every, "every"), _length(size, "size")), _from_first(origin))


def session(gap: Any) -> Window:
    """Sessions of a group's rows, which end with a pause of at least the gap, such as "30s"."""
    return Window("SESSION", (_length(gap, "gap"),))


def rows(n: int, *, every: int | None = None, partial: bool = False) -> Window:
    """Windows of n rows of a group, one beginning each `every` rows, which is n if it is left out, in the order of time.

    `window_start` and `window_end` are the times of a window's first and last row. partial: whether windows that the stream
    does not fill come out, at its end; such rows have no time, and no window, join or `head` can follow.
    """
    sizes = []
    for name, value in (("n", n), ("every", n if every is None else every)):
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise UserError(f"rows: {name}={value!r:.40} is no number of rows", remedy="give an integer above zero")
        sizes.append(exp.Literal.number(value))
    if not isinstance(partial, bool):
        raise UserError(f"rows: partial={partial!r:.40}", remedy="give True or False")
    return Window("ROWS", tuple(sizes), (_option("partial", exp.true()),) if partial else (), has_time=not partial)


def cumulate(every: Any) -> Window:
    """Views of all rows so far, one at every multiple of `every`, such as "10s", from 1970 on.

    `as_of` is a view's time: it has the groups of all rows at or before it. There are views from the first row to the last one,
    each with all groups. No window, join or `head` can follow.
    """
    return Window("CUMULATE", (_length(every, "every"),), has_time=False, edges=(AS_OF,))


def _length(value: Any, name: str) -> exp.Expr:
    us = duration_us(value, name)
    if us <= 0:
        raise UserError(f"{name}: {value!r:.40} is no length of a window", remedy="give a time above zero")
    return _interval(us)


def _from_first(origin: Origin) -> tuple[exp.Expr, ...]:
    if origin is None:
        return ()
    one_of(origin, ("first",), "origin")
    return (_option("origin", exp.Literal.string(origin)),)


def _option(name: str, value: exp.Expr) -> exp.Expr:
    return exp.Kwarg(this=exp.var(name), expression=value)


# ---------------------------------------------------------------- streams


@dataclass(frozen=True)
class _Source:
    """What a table of the query is. time: None of a static table. known: its columns, time and unit."""

    data: Input
    time: str | None
    unit: TimeUnit | None
    known: Table


@dataclass(frozen=True)
class _Function:
    """A function of the query. call: None of one that is imported by its name."""

    of_plan: Function
    call: Callable[[Any], Any] | None


@dataclass(frozen=True)
class Stream:
    """A query that has not been run. columns: of its rows. time: the column that is their time; None for none."""

    columns: tuple[str, ...]
    time: str | None
    _query: exp.Query = field(repr=False)
    _sources: Mapping[str, _Source | _Function] = field(repr=False)  # what the query names

    @property
    def sql(self) -> str:
        """The query's text."""
        return self._query.sql("duckdb")

    # ------------------------------------------------------------ verbs

    def filter(self, *conditions: Expr) -> Stream:
        """The rows that satisfy all conditions."""
        for condition in conditions:
            if not isinstance(condition, Expr):
                raise UserError(f"filter: {condition!r:.60} is no condition", remedy="write col('a') > 5, or expr('a > 5')")
        selected = self._selected([(name, col(name)) for name in self.columns])
        for condition in conditions:
            selected = selected.where(_node(condition))
        return replace(self, _query=selected)

    def select(self, *columns: str | Expr, **named: Value) -> Stream:
        """These columns alone: names, expressions with an alias, or name=expression."""
        return self._with(_items(columns, named))

    def with_columns(self, *columns: Expr, **named: Value) -> Stream:
        """All columns, and these, which take the place of others of their names."""
        items = dict(_items(columns, named))
        kept = [(name, items.pop(name, col(name))) for name in self.columns]
        return self._with([*kept, *items.items()])

    def rename(self, names: Mapping[str, str]) -> Stream:
        """Columns with other names. names: of old to new."""
        for name in names:
            self._check(name, "rename")
        return self._with([(names.get(name, name), col(name)) for name in self.columns])

    def map_batches(
        self, function: str | Callable[[pa.RecordBatch], Any], schema: str | pa.Schema | Mapping[str, Any]
    ) -> Stream:
        """The rows with the columns that a function computes from batches of them, each row from its own values alone.

        function: gets record batches of all columns, and gives each row one: a record batch, a table, a frame, or a mapping
        of names to arrays. A callable, or "package.module:function"; on ranks an importable one. Threads call it side by
        side, and it may see a row more than once. schema: the columns that it gives, with their Arrow types:
        "user: int64, score: double", a schema of Arrow, or a mapping. Every batch is checked. The time column stays the rows'
        time if it is among them; the function must leave it as it is.
        """
        columns = _declared(schema)
        key, names = f"map{next(_numbers)}", tuple(name for name, _ in columns)
        call = exp.Anonymous(this=NAME, expressions=[exp.Subquery(this=self._query.copy()), exp.Literal.string(key)])
        query = exp.select(*(exp.column(name, quoted=True) for name in names))
        query = query.from_(exp.Table(this=call, alias=exp.TableAlias(this=exp.to_identifier("q"))))
        time = self.time if self.time in names else None
        return Stream(names, time, query, {**self._sources, key: _function(function, key, columns)})

    def split(self, **conditions: Expr) -> dict[str, Stream]:
        """A stream for each condition, with the rows that satisfy it and none before it, and `rest`, with all others."""
        if "rest" in conditions:
            raise UserError("split: rest is what no condition takes", remedy="give the condition another name")
        found, earlier = {}, lit(True)
        for name, condition in conditions.items():
            holds = condition.fill_null(False)
            found[name] = self.filter(earlier & holds)
            earlier = earlier & ~holds
        return found | {"rest": self.filter(earlier)}

    def union(self, *others: Stream) -> Stream:
        """All rows of these streams, which have the same columns."""
        query, sources, time = self._query.copy(), dict(self._sources), self.time
        for other in others:
            if set(other.columns) != set(self.columns):
                odd = sorted(set(other.columns) ^ set(self.columns))[0]
                raise UserError(f"union: column {odd} is not in all streams", remedy="select the same columns of each")
            query = exp.union(query, other._selected([(name, col(name)) for name in self.columns]), distinct=False, copy=False)
            sources |= other._sources
            time = time if other.time == time else None
        return Stream(self.columns, time, query, sources)

    def join(
        self,
        other: Stream | Input,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        within: Any = None,
        lower: Any = None,
        upper: Any = None,
        how: How = "inner",
    ) -> Stream:
        """Pairs with equal keys and lower <= right time - left time <= upper; within: lower = -within, upper = within. other:
        another stream, or a static table, as of `stream`, which has neither time nor bounds; all kinds but right and full.

        Columns: of the left, then of the right but for keys of the same name; names that the left has, too, end in `_right`.
        The time is the left one's, of a right join the right one's; a full join has none.
        """
        with spelled("arguments"):
            one_of(how, _HOWS, "how")
            keys = _keys(on, left_on, right_on)
            bounds = None
            if isinstance(other, Stream):
                bounds = _bounds(within, lower, upper)
            else:
                _refuse_bounds(how, within, lower, upper)
                other = _static(other)
            return self._joined(other, keys, bounds, how)

    def _joined(
        self, other: Stream, keys: Sequence[tuple[str, str]], bounds: tuple[int, int] | None, how: How, *, as_of: bool = False
    ) -> Stream:
        if bounds is not None and (self.time is None or other.time is None):
            side = "left" if self.time is None else "right"
            raise UserError(f"join: the {side} stream has no time", remedy="keep its time column")
        for left, right in keys:
            self._check(left, "join")
            other._check(right, "join")
        merged = {right: left for left, right in keys if left == right}
        items = [exp.alias_(_key_or_column(name, merged, how), name, quoted=True) for name in self.columns]
        names = list(self.columns)
        renamed = {}
        for name in other.columns if how not in ("semi", "anti") else ():
            if name not in merged:
                shown = renamed[name] = f"{name}_right" if name in names else name
                if shown in names:
                    raise UserError(f"join: two columns are named {shown}", remedy="rename one before")
                names.append(shown)
                items.append(exp.alias_(_of("r", name), shown, quoted=True))
        conditions: list[exp.Expr] = [exp.EQ(this=_of("l", left), expression=_of("r", right)) for left, right in keys]
        if bounds is not None:
            low, high = (exp.Add(this=_of("l", str(self.time)), expression=_interval(us)) for us in bounds)
            conditions.append(exp.Between(this=_of("r", str(other.time)), low=low, high=high))
        right_side = exp.Join(this=_subquery(other._query, "r"), on=exp.and_(*conditions), **_kind(how), **_ASOF[as_of])
        query = exp.select(*items).from_(_subquery(self._query, "l"))
        query.append("joins", right_side)
        time = None if how == "full" else self.time
        if how == "right":
            time = merged.get(str(other.time)) or renamed[str(other.time)]
        return Stream(tuple(names), time, query, {**self._sources, **other._sources})

    def join_asof(
        self,
        other: Stream,
        on: str | Sequence[str] | None = None,
        *,
        left_on: str | Sequence[str] | None = None,
        right_on: str | Sequence[str] | None = None,
        how: Literal["inner", "left"] = "left",
        match: Literal["last", "first", "nearest"] = "last",
        **bounds: Unpack[TimeBounds],
    ) -> Stream:
        """Each row, with one of the other stream's rows with equal keys and within bounds of time (within, or lower and upper,
        as of `join`): the last at or before it, the first at or after it, or the nearest (docs/semantics.md#as-of-joins);
        without keys, of all its rows. how: "left", also the rows that have none; "inner". Columns and time: as of a left
        join."""
        with spelled("arguments"):
            one_of(match, ("last", "first", "nearest"), "match")
            one_of(how, ("inner", "left"), "how")
            if not isinstance(other, Stream):
                raise UserError("join_asof: the other side is no stream", remedy="make it one: swjoin.stream(..., time=...)")
            for name in bounds:
                one_of(name, ("within", "lower", "upper"), "join_asof")
            low, high = _bounds(*(bounds.get(name) for name in ("within", "lower", "upper")))
            found = AsOf(match, Bounds(low, high)).candidates
            # of rows at the left one's time alone, bounds do not say which
            if found.empty or (match == "nearest" and low == 0 < high) or (match == "first" and found.upper_us == 0):
                remedy = "write match='first'" if match == "nearest" else "widen the bounds, or take another match"
                raise UserError(f"join_asof: match {match!r} does not fit bounds from {low} us to {high} us", remedy=remedy)
            keys = [] if on is left_on is right_on is None else _keys(on, left_on, right_on)
            return self._joined(other, keys, (found.lower_us, found.upper_us), how, as_of=True)

    def sort(self, *by: str | Expr, descending: bool | Sequence[bool] = False) -> Stream:
        """The rows in this order, nulls last: at the end of a query alone, but for `head`. by: columns of it."""
        items = _items(by, {})
        down = [descending] * len(items) if isinstance(descending, bool) else list(descending)
        if not items or len(down) != len(items):
            raise UserError(f"sort: {len(items)} columns, {len(down)} of descending", remedy="give as many of both")
        for _, value in items:
            self._check(value.node.name if isinstance(value.node, exp.Column) else value.node.sql("duckdb"), "sort")
        selected = self._selected([(name, col(name)) for name in self.columns])
        order = [
            exp.Ordered(this=_node(value), desc=each, nulls_first=False) for (_, value), each in zip(items, down, strict=True)
        ]
        return replace(self, _query=selected.order_by(*order))

    def head(self, n: int = 5) -> Stream:
        """The first rows, at the end of a query alone: of those that `sort` gives, or in the order of their ids."""
        selected = (
            self._query if self._query.args.get("order") else self._selected([(name, col(name)) for name in self.columns])
        )
        return replace(self, _query=selected.copy().limit(n))

    def group_by(self, *keys: str | Expr, **named: Value) -> Groups:
        """Rows by these columns and, with `window`, by windows."""
        return Groups(self, _items(keys, named))

    # ------------------------------------------------------------ answers

    def collect(self, **options: Any) -> Any:
        """Run the query. options, and what is returned: as of `swjoin.sql`, such as returns, threads, ranks, memory."""
        for name in ("tables", "time", "time_unit"):
            if name in options:
                raise UserError(f"{name}: is given to swjoin.stream")
        tables = {name: source.data for name, source in self._tables.items()}
        times = {name: source.time for name, source in self._tables.items() if source.time is not None}
        units = {name: source.unit for name, source in self._tables.items() if source.unit is not None}
        given = {"tables": tables, "time": times, "time_unit": units or None, **options}
        of_process = {f.of_plan.function: f.call for f in self._functions.values() if f.call is not None}
        if options.get("ranks") is not None and of_process:
            remedy = "give one that they can import: map_batches('package.module:function', ...)"
            raise UserError(f"map_batches: ranks cannot call {min(of_process)}", remedy=remedy)
        return answer(self.sql, given, {name: f.of_plan for name, f in self._functions.items()}, of_process)

    def sink(self, path: str | os.PathLike[str], **options: Any) -> Proof:
        """Run the query, with its rows in a file (.parquet, .csv, .csv.gz). options: as of `swjoin.sql`."""
        proof: Proof = self.collect(out=path, **options)
        return proof

    def run(self, *, ranks: int | None = None, **options: Any) -> Any:
        """Run the query, on so many MPI ranks of this machine."""
        return self.collect(ranks=ranks, **options)

    def explain(self, strategy: Strategy = "subquery") -> str:
        """The stages of the query, and the edges between them, a line each. strategy: as of `swjoin.sql`."""
        stages = cut(with_multiway_joins(self._planned().plan), strategy)
        return "\n".join([*map(describe_stage, stages.stages), *map(describe_edge, stages.edges)])

    # ------------------------------------------------------------ making queries

    @property
    def _tables(self) -> dict[str, _Source]:
        return {name: given for name, given in self._sources.items() if isinstance(given, _Source)}

    @property
    def _functions(self) -> dict[str, _Function]:
        return {name: given for name, given in self._sources.items() if isinstance(given, _Function)}

    def _planned(self) -> Query:
        tables = {name: source.known for name, source in self._tables.items()}
        return plan_query(self.sql, tables, {name: f.of_plan for name, f in self._functions.items()})

    def _check(self, name: str, where: str) -> None:
        if name not in self.columns:
            raise UserError(f"{where}: no column {name}", remedy=f"columns are {', '.join(self.columns)}")

    def _selected(self, items: Sequence[tuple[str, Expr]]) -> exp.Select:
        named = [exp.alias_(_node(value), name, quoted=True) for name, value in items]
        return exp.select(*named).from_(_subquery(self._query, "q"))

    def _with(self, items: Sequence[tuple[str, Expr]]) -> Stream:
        """The stream of these columns; one of them may be the time."""
        names = tuple(name for name, _ in items)
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(f"two columns are named {twice[0]}", remedy="give one an alias")
        kept = [name for name, value in items if isinstance(value.node, exp.Column) and value.node.name == self.time]
        time = self.time if self.time in kept else next(iter(kept), None)
        return replace(self, columns=names, time=time, _query=self._selected(items))


@dataclass(frozen=True)
class Groups:
    """The rows of a stream by keys; `agg` makes a stream of it."""

    _of: Stream
    _keys: Sequence[tuple[str, Expr]]
    _window: Window | None = None

    def window(self, window: Window) -> Groups:
        """By windows, too."""
        if not isinstance(window, Window):
            remedy = "give tumble('10s'), hop('10s', every='2s'), session('30s'), rows(10) or cumulate('10s')"
            raise UserError(f"window: {window!r:.60} is no window", remedy=remedy)
        return replace(self, _window=window)

    def head(self, n: int, *by: str | Expr, descending: bool = False, rank: str = "rank") -> Stream:
        """The first rows of each group, all columns of them, with their numbers from 1 on in the column `rank`.

        by: columns and expressions with a name, nulls last; rows that are equal in them are in the order of their ids. The
        groups have windows, or the stream's time among their keys.
        """
        of, edges = self._of, self._edges
        names = [*of.columns, *(name for name, _ in edges), rank]
        if len(set(names)) < len(names):
            raise UserError("head: two columns have one name", remedy="name the column of numbers: rank='number'")
        order = [exp.Ordered(this=_node(value), desc=descending, nulls_first=False) for _, value in _items(by, {})]
        keys = [_node(value) for _, value in [*self._keys, *edges]]
        number = exp.Window(this=exp.RowNumber(), partition_by=keys, order=exp.Order(expressions=order) if order else None)
        columns = [exp.column(name, quoted=True) for name in names[:-1]]
        query = exp.select(*columns, exp.alias_(number, rank, quoted=True)).from_(self._from)
        query.set("qualify", exp.Qualify(this=exp.LTE(this=number.copy(), expression=exp.Literal.number(n))))
        return Stream(tuple(names), of.time if self._window is None else END, query, of._sources)

    @property
    def _edges(self) -> list[tuple[str, Expr]]:
        return [] if self._window is None else [(name, col(name)) for name in self._window.edges]

    @property
    def _from(self) -> exp.Expr:
        """The rows, with their windows."""
        of, window = self._of, self._window
        if window is None:
            return _subquery(of._query, "q")
        if of.time is None:
            raise UserError("window: the stream has no time", remedy="keep its time column")
        return window.over(of._query, of.time)

    def agg(self, *columns: Expr, **named: Expr) -> Stream:
        """A row for each group: keys, `window_start` and `window_end` or `as_of` if there is a window, and these aggregates."""
        found, of, edges = _items(columns, named), self._of, self._edges
        items = [*self._keys, *edges, *found]
        names = [name for name, _ in items]
        twice = [name for name in names if names.count(name) > 1]
        if twice:
            raise UserError(f"agg: two columns are named {twice[0]}", remedy="give one an alias")
        query = exp.select(*(exp.alias_(_node(value), name, quoted=True) for name, value in items)).from_(self._from)
        time = END if self._window is None or self._window.has_time else None
        if self._window is None:
            time = next((name for name, value in self._keys if value.node == exp.column(of.time or "", quoted=True)), None)
        grouped = [_node(value) for _, value in [*self._keys, *edges]]
        return Stream(tuple(names), time, query.group_by(*grouped, copy=False), of._sources)


def stream(data: Input, *, time: str, time_unit: TimeUnit | None = None) -> Stream:
    """A stream to query: an Arrow table, a pandas or polars frame, anything with `__arrow_c_stream__`, or a path or paths.

    time: the time column. time_unit: of a time column of integers: s, ms, us, ns. Nothing is read but the columns' types, until
    the query is run.
    """
    with spelled("arguments"):
        return _read("stream", data, time, time_unit)


def _static(data: Input) -> Stream:
    """The rows of a static table."""
    return _read("table", data, None, None)


def _read(what: str, data: Input, time: str | None, time_unit: TimeUnit | None) -> Stream:
    """All rows of a table. what: begins its name in the query."""
    name = f"{what}{next(_numbers)}"
    if are_paths(data):
        paths = [data] if isinstance(data, (str, os.PathLike)) else list(data)
        given = tuple(os.fspath(Path(each)) for each in paths)
        columns = describe_columns(StreamConfig(given[0] if len(given) == 1 else given, (), time or ""))
    else:
        table = to_table(data, "data", time or "")
        data, columns = table, tuple((f.name, str(f.type)) for f in table.schema)
    try:
        known = with_time(columns, time or "", time_unit, "give time_unit")
    except UserError as error:
        raise error.prefixed("time") from None
    names = tuple(dict(columns))
    select = exp.select(*(exp.column(each, quoted=True) for each in names)).from_(exp.to_identifier(name, quoted=True))
    return Stream(names, time, select, {name: _Source(data, time, time_unit, known)})


def _function(function: Any, key: str, columns: tuple[tuple[str, str], ...]) -> _Function:
    """What `map_batches` is given. key: its name in the query. UserError for what cannot be called."""
    from swjoin.expressions.batch_map import function_named, name_of

    if isinstance(function, str):
        if not is_importable(function):
            raise UserError(f"map_batches: {function!r:.60} names no function", remedy="write 'package.module:function'")
        function_named(function)
        return _Function(Function(function, columns), None)
    if not callable(function):
        raise UserError(f"map_batches: {function!r:.60} is no function", remedy="give one of a record batch")
    name = name_of(function)
    shown = getattr(function, "__name__", type(function).__name__)
    return _Function(Function(name or f"{shown} ({key}, of this process)", columns), None if name else function)


def _declared(schema: Any) -> tuple[tuple[str, str], ...]:
    """Names and Arrow types of columns. UserError for what declares none."""
    import pyarrow as pa

    found = list(parse_schema(schema, "map_batches")) if isinstance(schema, str) else schema
    if isinstance(found, Mapping):
        found = [pa.field(str(name), _type(str(name), kind)) for name, kind in found.items()]
    if not isinstance(found, (list, pa.Schema)) or not len(found) or not all(isinstance(each, pa.Field) for each in found):
        remedy = "write 'user: int64, score: double', or give a mapping or a schema of Arrow"
        raise UserError(f"map_batches: schema={schema!r:.60} declares no columns", remedy=remedy)
    try:
        return declared(found)
    except UserError as error:
        raise error.prefixed("map_batches: schema") from None


def _type(name: str, kind: Any) -> Any:
    """An Arrow type, given as one or by its name."""
    import pyarrow as pa

    return kind if isinstance(kind, pa.DataType) else parse_schema(f"{name}: {kind}", "map_batches").field(0).type


# ---------------------------------------------------------------- helpers


def _items(columns: Sequence[str | Expr], named: Mapping[str, Value]) -> list[tuple[str, Expr]]:
    """Names and expressions of columns. UserError for an expression without a name."""
    found = []
    for column in columns:
        if isinstance(column, str):
            found.append((column, col(column)))
        elif not isinstance(column, Expr):
            raise UserError(f"{column!r:.60} is no column", remedy="give a name, or an expression such as col('a') + 1")
        elif not column.name:
            shown = column.node.sql("duckdb")[:60]
            raise UserError(f"{shown} has no name", remedy="give it one: name=..., or .alias('name')")
        else:
            found.append((column.name, column))
    return [*found, *((name, value if isinstance(value, Expr) else lit(value)) for name, value in named.items())]


def _subquery(query: exp.Query, alias: str) -> exp.Subquery:
    return exp.Subquery(this=query.copy(), alias=exp.TableAlias(this=exp.to_identifier(alias)))


def _of(table: str, name: str) -> exp.Column:
    return exp.column(name, table, quoted=True)


def _key_or_column(name: str, merged: Mapping[str, str], how: How) -> exp.Expr:
    """A column of the left side; a key's value where right rows come out alone."""
    if name not in merged or how not in ("right", "full"):
        return _of("l", name)
    return _of("r", name) if how == "right" else exp.Coalesce(this=_of("l", name), expressions=[_of("r", name)])


def _kind(how: How) -> dict[str, str]:
    if how in ("semi", "anti"):
        return {"kind": how.upper()}
    return {} if how == "inner" else {"side": how.upper()}


def _keys(on: Any, left_on: Any, right_on: Any) -> list[tuple[str, str]]:
    """Pairs of key columns. UserError unless both sides have as many."""
    if (on is None) == (left_on is None and right_on is None):
        raise UserError("join: give on, or left_on and right_on")
    sides = [[given] if isinstance(given, str) else list(given or ()) for given in ((on, on) if on else (left_on, right_on))]
    if not sides[0] or len(sides[0]) != len(sides[1]):
        raise UserError(f"join: {len(sides[0])} key columns on the left, {len(sides[1])} on the right")
    return list(zip(*sides, strict=True))


def _refuse_bounds(how: How, within: Any, lower: Any, upper: Any) -> None:
    """UserError for what a join with a static table cannot have."""
    for name, value in (("within", within), ("lower", lower), ("upper", upper)):
        if value is not None:
            problem = f"join: {name} is given, and a static table has no time"
            raise UserError(problem, remedy="make a stream of it: swjoin.stream(table, time=...)")
    if how in ("right", "full"):
        raise UserError(f"join: how={how!r} keeps rows of a static table", remedy="use left, which keeps the stream's")


def _bounds(within: Any, lower: Any, upper: Any) -> tuple[int, int]:
    """Lower and upper, microseconds."""
    if (within is None) == (lower is None and upper is None):
        raise UserError("join: give within, or lower and upper")
    if within is not None:
        us = UNBOUNDED_US if is_unbounded(within) else duration_us(within, "within")
        return -us, us
    if lower is None or upper is None:
        raise UserError(f"join: {'lower' if lower is None else 'upper'} is missing")
    return duration_us(lower, "lower"), duration_us(upper, "upper")
