"""Windows in FROM: TUMBLE and HOP, in both spellings.

What: `Dialect`, DuckDB's SQL with `TABLE(TUMBLE(TABLE t, DESCRIPTOR(ts), ...))`; `window_call`; `Windowed`, their relation.
Why: no dialect of sqlglot reads Flink's spelling; RisingWave's, `TUMBLE(t, ts, ...)`, is a function of a table.
Stays out: GROUP BY (`frontends.sql.grouping`), what a window is (`core.time_windows`).
"""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
from sqlglot import exp
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.parsers.duckdb import DuckDBParser
from sqlglot.tokenizer_core import TokenType

from swjoin.core.errors import UserError, one_line
from swjoin.core.time_windows import TimeWindows
from swjoin.expressions.binder import Scope, bind
from swjoin.expressions.tree import Literal
from swjoin.frontends.sql.relations import Field, Nodes, Relation
from swjoin.plan.aggregates import NAIVE

_INTERVALS = {"TUMBLE": ("size",), "HOP": ("slide", "size")}
START, END = "window_start", "window_end"


class Dialect(DuckDB):
    """DuckDB's SQL, and windows as Flink writes them."""

    class Parser(DuckDBParser):
        def _parse_table(self, *args: Any, **options: Any) -> Any:
            if self._match_text_seq("SESSION", "("):
                raise UserError("SESSION is not supported", remedy="use TUMBLE or HOP")
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
                return exp.Anonymous(this="TABLE", expressions=[exp.column(self._parse_id_var() or "")])
            return super()._parse_lambda(*args, **options)


def plain_arguments(call: exp.Anonymous) -> list[exp.Expr]:
    """Of a window function: without `TABLE` and `DESCRIPTOR`."""
    found = []
    for part, word in itertools.zip_longest(call.expressions, ("TABLE", "DESCRIPTOR")):
        of = part.expressions if isinstance(part, exp.Anonymous) and str(part.this).upper() == word else ()
        found.append(of[0] if len(of) == 1 else part)
    return [part for part in found if part is not None]


@dataclass(frozen=True)
class WindowCall:
    """source: a table's name as a column, or a subquery. time: the time column."""

    name: str
    source: exp.Expr
    time: exp.Column
    windows: TimeWindows


def window_call(node: exp.Expr) -> WindowCall | None:
    """The windows that an item of FROM gives; None for another item. UserError for arguments that it cannot have."""
    call = node.this if isinstance(node, exp.Table) else None
    if not isinstance(call, exp.Anonymous) or str(call.this).upper() not in {*_INTERVALS, "SESSION", "CUMULATE"}:
        return None
    name, shown = str(call.this).upper(), one_line(call.sql("duckdb"), 100)
    if name not in _INTERVALS:
        raise UserError(f"{name} is not supported", subject=shown, remedy="use TUMBLE or HOP")
    lengths = _INTERVALS[name]
    form = f"{name}(TABLE, TIME COLUMN, {', '.join(f'INTERVAL {length}' for length in lengths)})"
    arguments = plain_arguments(call)
    source, time, *given = [*arguments, None, None][: max(2, len(arguments))]
    if len(given) != len(lengths) or not isinstance(time, exp.Column):
        raise UserError(f"{shown} is not complete", remedy=f"write {form}")
    if not isinstance(source, exp.Column | exp.Subquery) or (isinstance(source, exp.Column) and source.table):
        raise UserError(f"{shown}: its first argument is no table", remedy=f"write {form}")
    found = dict(zip(lengths, (_length(part, shown, form) for part in given), strict=True))
    return WindowCall(name, source, time, TimeWindows(found["size"], found.get("slide", found["size"])))


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


@dataclass(frozen=True)
class Windowed:
    """A relation whose rows are in windows. of: with its fields; table: its name in FROM. time: its time column."""

    of: Relation
    table: str
    time: Field
    windows: TimeWindows

    @property
    def fields(self) -> tuple[Field, ...]:
        kind = window_type(self.time)
        return (*self.of.fields, *(Field(self.table, name, name, kind) for name in (START, END)))

    @property
    def times(self) -> tuple[str, ...]:
        return self.of.times

    def make(self, nodes: Nodes, time: str | None) -> str:
        raise AssertionError("windows are made by the aggregate over them")
