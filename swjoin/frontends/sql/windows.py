"""Windows in FROM: TUMBLE, HOP, SESSION, ROWS and CUMULATE, in both spellings.

What: `Dialect`, DuckDB's SQL with `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), ...))`; `window_call`; `Windowed`, their relation;
`InWindows`, of rows with windows of time; `InGroupWindows`, of rows with sessions, windows of tuples or aligned to data;
`window_columns`.
Why: no dialect of sqlglot reads Flink's spelling; RisingWave's, `TUMBLE(t, ts, ...)`, is a function of a table.
Stays out: GROUP BY (`frontends.sql.grouping`), what a window is (`core.time_windows`, `operators.group_windows`).
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from swjoin.core.errors import UserError, one_line
from swjoin.core.time_windows import TimeWindows
from swjoin.expressions.binder import Scope, bind
from swjoin.expressions.tree import Literal
from swjoin.frontends.sql.relations import Aliased, Field, Filtered, Nodes, Relation, Selected, instant_of, quoted
from swjoin.plan.aggregates import NAIVE
from swjoin.plan.kept_rows import AlignedWindows, Sessions, TupleWindows
from swjoin.plan.logical import Filter, Node, Project, Union

_INTERVALS = {"TUMBLE": ("size",), "HOP": ("slide", "size"), "SESSION": ("gap",), "CUMULATE": ("every",)}
_FORMS = {
    **{name: f"INTERVAL {', INTERVAL '.join(lengths)}" for name, lengths in _INTERVALS.items()},
    "ROWS": "SIZE[, ADVANCE][, partial => true]",
}
_OPTIONS: dict[str, dict[str, tuple[str, ...]]] = {
    "TUMBLE": {"origin": ("'first'",)},
    "HOP": {"origin": ("'first'",)},
    "ROWS": {"partial": ("true", "false")},
}
START, END = "window_start", "window_end"
AS_OF = "as_of"  # the time of a view


class Dialect(DuckDB):
    """DuckDB's SQL, and windows as Flink writes them."""

    class Parser(DuckDBParser):
        def _parse_table(self, *args: Any, **options: Any) -> Any:
            for name in ("SESSION", "ROWS"):  # elsewhere words for settings and for parts of a window
                if self._match_text_seq(name, "("):
                    arguments = self._parse_csv(self._parse_lambda)
                    self._match_r_paren()
                    table = exp.Table(this=exp.Anonymous(this=name, expressions=arguments))
                    table.set("alias", self._parse_table_alias())
                    return table
            if not self._match_pair(TokenType.TABLE, TokenType.L_PAREN):
                return super()._parse_table(*args, **options)
            inner = self._parse_table()
            self._match_r_paren()
            alias = self._parse_table_alias()
            if alias is not None and inner is not None:
                inner.set("alias", alias)
            return inner

        def _parse_lambda(self, *args: Any, **options: Any) -> Any:
            if self._match(TokenType.TABLE):
                found: list[exp.Expr] = [exp.column(self._parse_id_var() or "")]
                if self._match(TokenType.PARTITION_BY):
                    several = self._match(TokenType.L_PAREN)
                    keys = self._parse_csv(self._parse_column) if several else [self._parse_column()]
                    if several:
                        self._match_r_paren()
                    found.append(exp.Tuple(expressions=keys))
                return exp.Anonymous(this="TABLE", expressions=found)
            return super()._parse_lambda(*args, **options)


def plain_arguments(call: exp.Anonymous) -> list[exp.Expr]:
    """Of a window function: those without a name, without `TABLE` and `DESCRIPTOR`."""
    found, given = [], [part for part in call.expressions if not isinstance(part, exp.Kwarg)]
    for part, word in itertools.zip_longest(given, ("TABLE", "DESCRIPTOR")):
        of = list(part.expressions) if isinstance(part, exp.Anonymous) and str(part.this).upper() == word else []
        keyed = word == "TABLE" and bool(partition_by(call))
        found.append(of[0] if len(of) == 1 or keyed else part)
    return [part for part in found if part is not None]


def named_arguments(call: exp.Anonymous) -> dict[str, exp.Expr]:
    """Of a window function: `name => value`."""
    found: dict[str, exp.Expr] = {}
    for part in call.expressions:
        if isinstance(part, exp.Kwarg):
            name = part.this.name.lower()
            if name in found:
                raise UserError(f"{name} is given twice", subject=one_line(call.sql("duckdb"), 100))
            found[name] = part.expression
    return found


def partition_by(call: exp.Anonymous) -> list[exp.Expr]:
    """What sessions are by, where a table's argument says it."""
    table = call.expressions[0] if call.expressions else None
    given = table.expressions[1:] if isinstance(table, exp.Anonymous) and str(table.this).upper() == "TABLE" else []
    return given[0].expressions if given else []


@dataclass(frozen=True)
class Gap:
    """Sessions. keys: of these; None: of what groups their rows."""

    us: int
    keys: tuple[exp.Expr, ...] | None


@dataclass(frozen=True)
class Counted:
    """Windows of tuples. size, slide: rows. partial: whether those come out that the stream does not fill."""

    size: int
    slide: int
    partial: bool


@dataclass(frozen=True)
class Aligned:
    """Windows of time that begin with their group's first row."""

    size_us: int
    slide_us: int


@dataclass(frozen=True)
class Cumulated:
    """Views of all rows so far, one at every multiple of a time, microseconds."""

    every_us: int


GroupWindows: TypeAlias = Gap | Counted | Aligned  # which windows there are depends on the rows of a group
Windows: TypeAlias = TimeWindows | GroupWindows | Cumulated


@dataclass(frozen=True)
class WindowCall:
    """source: a table's name as a column, or a subquery. time: the time column."""

    name: str
    source: exp.Expr
    time: exp.Column
    windows: Windows


def window_call(node: exp.Expr) -> WindowCall | None:
    """The windows that an item of FROM gives; None for another item. UserError for arguments that it cannot have."""
    call = node.this if isinstance(node, exp.Table) else None
    if not isinstance(call, exp.Anonymous) or str(call.this).upper() not in _FORMS:
        return None
    name, shown = str(call.this).upper(), one_line(call.sql("duckdb"), 100)
    form = f"{name}(TABLE, TIME COLUMN, {_FORMS[name]})"
    arguments = plain_arguments(call)
    source, time, *given = [*arguments, None, None][: max(2, len(arguments))]
    counts = (1, 2) if name == "ROWS" else (len(_INTERVALS[name]),)
    if len(given) not in counts or not isinstance(time, exp.Column):
        raise UserError(f"{shown} is not complete", remedy=f"write {form}")
    if not isinstance(source, exp.Column | exp.Subquery) or (isinstance(source, exp.Column) and source.table):
        raise UserError(f"{shown}: its first argument is no table", remedy=f"write {form}")
    keys = partition_by(call)
    if keys and name != "SESSION":
        raise UserError(f"{shown}: PARTITION BY is for sessions", remedy="leave it out, and group by it")
    return WindowCall(name, source, time, _windows_of(name, given, tuple(keys), named_arguments(call), shown, form))


def _windows_of(
    name: str,
    given: Sequence[exp.Expr | None],
    keys: tuple[exp.Expr, ...],
    named: Mapping[str, exp.Expr],
    shown: str,
    form: str,
) -> Windows:
    """What a window function says. given: its arguments after the table and the time. named: those with names."""
    option = _OPTIONS.get(name, {})
    for key, node in named.items():
        text = one_line(node.sql("duckdb"), 60)
        if key not in option:
            raise UserError(f"{shown}: {name} has no {key}", remedy=f"write {form}")
        if text.lower() not in option[key]:
            raise UserError(f"{shown}: {key} is {text}", remedy=f"give {' or '.join(option[key])}, or leave it out")
    if name == "ROWS":
        size, *slide = (_count(part, shown, form) for part in given)
        partial = "partial" in named and named["partial"].sql("duckdb").lower() == "true"
        return Counted(size, slide[0] if slide else size, partial)
    found = dict(zip(_INTERVALS[name], (_length(part, shown, form) for part in given), strict=True))
    if name == "SESSION":
        return Gap(found["gap"], keys or None)
    if name == "CUMULATE":
        return Cumulated(found["every"])
    size, slide_us = found["size"], found.get("slide", found["size"])
    return Aligned(size, slide_us) if "origin" in named else TimeWindows(size, slide_us)


def _count(node: exp.Expr | None, shown: str, form: str) -> int:
    """A number of rows."""
    sign = -1 if isinstance(node, exp.Neg) else 1
    value = node.this if isinstance(node, exp.Neg) else node
    if not isinstance(value, exp.Literal) or value.is_string or not str(value.this).isdigit():
        text = "nothing" if node is None else one_line(node.sql("duckdb"), 60)
        raise UserError(f"{shown}: {text} is no number of rows", remedy=f"write {form}")
    if sign * int(str(value.this)) < 1:
        raise UserError(f"{shown}: {sign * int(str(value.this))} rows are no window", remedy="give a number above zero")
    return int(str(value.this))


def _length(node: exp.Expr | None, shown: str, form: str) -> int:
    """Microseconds of an interval."""
    if not isinstance(node, exp.Interval):
        raise UserError(
            f"{shown}: {'nothing' if node is None else one_line(node.sql('duckdb'), 60)} is no interval", remedy=f"write {form}"
        )
    length = bind(node, Scope({}))
    assert isinstance(length, Literal), "intervals are constants"
    us = int(length.scalar.cast(pa.int64()).as_py())
    if us <= 0:
        raise UserError(f"{shown}: {one_line(node.sql('duckdb'), 60)} is no length of a window", remedy="give one above zero")
    return us


def window_type(f: Field) -> str:
    """Type of the columns of windows over this time column."""
    zone = re.fullmatch(r"timestamp\[\w+, (tz=.+)\]", f.type)
    return f"timestamp[us, {zone[1]}]" if zone else NAIVE


def edge_names(windows: Windows) -> tuple[str, ...]:
    """The names of the columns that windows add."""
    return (AS_OF,) if isinstance(windows, Cumulated) else (START, END)


@dataclass(frozen=True)
class Windowed:
    """A relation whose rows are in windows. of: with its fields; table: its name in FROM. time: its time column."""

    of: Relation
    table: str
    time: Field
    windows: Windows

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return (*self.of.fields, *self.edges)

    @property
    def edges(self) -> tuple[Field, ...]:
        """The columns of a row's window: its start and end, or the time of a view."""
        return tuple(Field(self.table, name, name, window_type(self.time)) for name in edge_names(self.windows))

    @cached_property
    def times(self) -> tuple[str, ...]:
        return self.of.times

    def make(self, nodes: Nodes, time: str | None) -> str:
        raise AssertionError("windows are made by the aggregate over them")


@dataclass(frozen=True)
class InWindows:
    """Rows, once for each window that has them. windowed: their windows, which are `TimeWindows`."""

    windowed: Windowed

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return self.windowed.fields

    @cached_property
    def times(self) -> tuple[str, ...]:
        return self.windowed.times

    def make(self, nodes: Nodes, time: str | None) -> str:
        of, windows = self.windowed.of, self.windowed.windows
        assert isinstance(windows, TimeWindows), "windows that depend on the rows of a group"
        below, size, slide = of.make(nodes, time), windows.size_us, windows.slide_us
        instant = exp.column(self.windowed.time.column, quoted=True)
        micros = f"date_trunc('microsecond', {instant_of(instant, self.windowed.time).sql('duckdb')})"
        us, zoned = f"epoch_us({micros})", "tz=" in self.windowed.time.type
        if zoned and "[ns" in self.windowed.time.type:
            raise UserError("windows of rows with zoned nanoseconds", remedy=f"group by {START}, {END}, or cast the time")
        plain = tuple((f.column, quoted(f.column)) for f in of.fields)
        made = []
        for back in range(-(-size // slide)):  # windows that began so many slides before the newest one
            after = f"(({us} % {slide} + {slide}) % {slide} + {back * slide})"  # how far the window began before the row
            edges = []
            for name, length in ((START, 0), (END, size)):
                text = f"make_timestamp({us} - {after} + {length})"
                edges.append((name, f"{micros} - ({after} - {length}) * INTERVAL '1' MICROSECOND" if zoned else text))
            rows = below
            if (back + 1) * slide > size:
                inside = f"{after} < {size}"
                rows = nodes.add("filter", lambda name, inside=inside: Filter(name, below, inside))  # type: ignore[misc]
            made.append(nodes.add("select", lambda name, r=rows, e=edges: Project(name, r, (*plain, *e))))  # type: ignore[misc]
        return made[0] if len(made) == 1 else nodes.add("union", lambda name: Union(name, tuple(made)))


def window_columns(relation: Relation) -> dict[str, tuple[str, TimeWindows, str]]:
    """Of the columns that are edges of rows' windows: which edge, the windows, and the column of the rows' time."""
    if isinstance(relation, InWindows) and isinstance(relation.windowed.windows, TimeWindows):
        windows, time = relation.windowed.windows, relation.windowed.time.column
        return {f.column: (f.name, windows, time) for f in relation.fields[-2:]}
    if isinstance(relation, Aliased | Filtered):
        return window_columns(relation.of)
    if isinstance(relation, Selected):
        below = {quoted(column): found for column, found in window_columns(relation.of).items()}
        shown = {text: f.column for f, text in zip(relation.fields, relation.texts, strict=True)}
        return {
            shown[text]: (edge, windows, shown[quoted(time)])
            for text, (edge, windows, time) in below.items()
            if text in shown and quoted(time) in shown
        }
    return {}


@dataclass(frozen=True)
class InGroupWindows:
    """Rows with their sessions, or once for each of their windows. keys: expressions over `of`. time: its time column."""

    of: Relation
    table: str
    keys: tuple[str, ...]
    time: Field
    windows: GroupWindows

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        return (*self.of.fields, *self.edges, *self.numbers)

    @property
    def edges(self) -> tuple[Field, Field]:
        """Start and end of a row's window."""
        kind = window_type(self.time)
        start, end = self._free("start"), self._free("end")
        return Field(self.table, START, start, kind), Field(self.table, END, end, kind)

    @property
    def numbers(self) -> tuple[Field, ...]:
        """Of windows of tuples: the window's number and the row's, which SQL has no names for."""
        names = ("number", "row") if isinstance(self.windows, Counted) else ()
        return tuple(Field("", column, column, "int64") for column in map(self._free, names))

    def _free(self, what: str) -> str:
        name = f"session {what}" if isinstance(self.windows, Gap) else f"window {what}"
        while name in {f.column for f in self.of.fields}:
            name = f"{name}_"
        return name

    @property
    def order(self) -> str:
        """The column that says which rows of a window are earlier."""
        return self.numbers[1].column if self.numbers else self.time.column

    @cached_property
    def times(self) -> tuple[str, ...]:
        start, end = (f.column for f in self.edges)
        if isinstance(self.windows, Aligned):
            return end, start
        return () if isinstance(self.windows, Counted) and self.windows.partial else (end,)

    def make(self, nodes: Nodes, time: str | None) -> str:
        below = self.of.make(nodes, self.time.column)
        added = [f.column for f in (*self.edges, *self.numbers)]
        read: dict[str, str] = {quoted(f.column): f.column for f in self.of.fields}
        plain = len(read)
        for text in self.keys:
            name = f"key {len(read)}"
            while name in (*added, *read.values()):
                name += "_"
            read.setdefault(text, name)
        if len(read) > plain:
            source, columns = below, tuple((name, text) for text, name in read.items())
            below = nodes.add("select", lambda name: Project(name, source, columns))
        key, what = tuple(read[text] for text in self.keys), "sessions" if isinstance(self.windows, Gap) else "windows"
        return nodes.add(what, lambda name: self._node(name, below, key, time))

    def _node(self, name: str, below: str, key: tuple[str, ...], time: str | None) -> Node:
        (start, end), kind, windows = (f.column for f in self.edges), window_type(self.time), self.windows
        if isinstance(windows, Counted):
            number, row = (f.column for f in self.numbers)
            size, slide, partial = windows.size, windows.slide, windows.partial
            return TupleWindows(name, below, key, size, slide, partial, start, end, number, row, kind)
        if isinstance(windows, Aligned):
            what = windows.size_us, windows.slide_us
            return AlignedWindows(name, below, key, *what, start, end, "start" if time == start else "end", kind)
        return Sessions(name, below, key, windows.us, start, end, "end" if time == end else "last", kind)
