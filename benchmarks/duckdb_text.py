"""Queries with windows in DuckDB's SQL.

What: `in_duckdb(text)`.
Why: DuckDB is the oracle and the peer of queries, and has no functions for windows: a row is there once for each window that it
is in.
Stays out: running queries (`benchmarks.nexmark`, tests), our dialect (`swjoin.frontends.sql.windows`).
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp, parse_one

from swjoin.frontends.sql.windows import Dialect, named_arguments, partition_by, plain_arguments

_EDGES = ("window_start", "window_end", "as_of")


def in_duckdb(text: str) -> str:
    """TUMBLE, HOP, SESSION, ROWS and CUMULATE as subqueries. A literal with a point is a double."""
    tree = parse_one(text, read=Dialect)
    for node in list(tree.find_all(exp.Table))[::-1]:
        if isinstance(node.this, exp.Anonymous):
            source = plain_arguments(node.this)[0]
            name = node.alias or (source.name if isinstance(source, exp.Column) else "windows")
            windows = parse_one(_rows(node), read="duckdb")
            node.replace(exp.Subquery(this=windows, alias=exp.TableAlias(this=exp.to_identifier(name))))
    for literal in list(tree.find_all(exp.Literal)):
        if not literal.is_string and "." in str(literal.this):
            literal.replace(exp.cast(literal.copy(), "DOUBLE"))
    return tree.sql("duckdb")


def _rows(node: Any) -> str:
    """Rows with their windows."""
    source, time, *lengths = plain_arguments(node.this)
    name, ts = str(node.this.this).upper(), f"epoch_us({time.sql('duckdb')})"
    if name == "ROWS":
        return _of_tuples(node, time.sql("duckdb"), *(length.sql("duckdb") for length in lengths))
    micros = [f"(epoch({length.sql('duckdb')}) * 1000000)::BIGINT" for length in lengths]
    slide, size = micros[0], micros[-1]
    if name == "SESSION":
        return _sessions(node, ts, size)
    if name == "CUMULATE":
        return _views(node, ts, size)
    if "origin" in named_arguments(node.this):
        return _from_first(node, ts, size, slide)
    if len(lengths) == 1:
        start = f"({ts} - (({ts} % {size}) + {size}) % {size})"
    else:
        numbers = f"floor(({ts} - {size}) / {slide})::BIGINT + 1, floor({ts} / {slide})::BIGINT"
        start = f"{slide} * unnest(generate_series({numbers}))"
    starts = f"SELECT *, make_timestamp({start}) AS window_start {_from(source)}"
    return f"SELECT *, window_start + to_microseconds({size}) AS window_end FROM ({starts})"


def _from(source: Any) -> str:
    return f"FROM {source.sql('duckdb')}" + (" q" if source.key == "subquery" else "")


def _filtered(node: Any) -> str:
    """FROM, with the conditions of the query that are not about the window: they are tested before, since which windows there
    are depends on the rows of a group."""
    select, before, after = node.find_ancestor(exp.Select), list[exp.Expr](), list[exp.Expr]()
    if (where := select.args.get("where")) is not None:
        for condition in where.this.flatten() if isinstance(where.this, exp.And) else [where.this]:
            edges = any(column.name in _EDGES for column in condition.find_all(exp.Column))
            (after if edges else before).append(condition)
        select.set("where", exp.Where(this=exp.and_(*after)) if after else None)
    rows = _from(plain_arguments(node.this)[0])
    return rows + (f" WHERE {exp.and_(*before).sql('duckdb')}" if before else "")


def _keys(node: Any) -> list[str]:
    """What windows of groups are by."""
    if keys := partition_by(node.this):
        return [key.sql("duckdb") for key in keys]
    group = node.find_ancestor(exp.Select).args["group"]
    return [key.sql("duckdb") for key in group.expressions if key.name not in _EDGES]


def _by(keys: list[str]) -> str:
    return f"PARTITION BY {', '.join(keys)}" if keys else ""


def _of_tuples(node: Any, time: str, size: str, slide: str = "") -> str:
    """Rows with each window of tuples that has them. Of equal times the row that is read first is the earlier one."""
    keys, slide = _keys(node), slide or size
    placed = f"SELECT *, row_number() OVER () AS at__ {_filtered(node)}"
    order = f"{_by(keys)} ORDER BY {time}, at__"
    numbered = f"SELECT *, row_number() OVER ({order}) - 1 AS n__, count(*) OVER ({_by(keys)}) AS m__ FROM ({placed})"
    numbers = f"unnest(generate_series(greatest(0, (n__ + {slide} - {size}) // {slide}), n__ // {slide}))"
    partial = named_arguments(node.this).get("partial", exp.false()).sql("duckdb")
    full = f"({partial} OR window__ * {slide} + {size} <= m__)"
    windows = f"SELECT *, {numbers} AS window__ FROM ({numbered})"
    inside = f"SELECT * FROM ({windows}) WHERE n__ < window__ * {slide} + {size} AND {full}"
    of = _by(["window__", *keys])
    node.find_ancestor(exp.Select).args["group"].append("expressions", exp.column("window__"))
    edges = f"min({time}) OVER ({of}) AS window_start, max({time}) OVER ({of}) AS window_end"
    return f"SELECT * EXCLUDE (at__, n__, m__), {edges} FROM ({inside})"


def _from_first(node: Any, ts: str, size: str, slide: str) -> str:
    """Rows with each window that has them, counted from the first row of their group on."""
    first = f"SELECT *, {ts} AS us__, min({ts}) OVER ({_by(_keys(node))}) AS first__ {_filtered(node)}"
    numbers = f"unnest(generate_series(greatest(0, (us__ - first__ - {size}) // {slide}), (us__ - first__) // {slide}))"
    windows = f"SELECT *, first__ + {slide} * {numbers} AS start__ FROM ({first})"
    edges = f"make_timestamp(start__) AS window_start, make_timestamp(start__ + {size}) AS window_end"
    return f"SELECT * EXCLUDE (us__, first__, start__), {edges} FROM ({windows}) WHERE us__ <= start__ + {size}"


def _views(node: Any, ts: str, every: str) -> str:
    """Rows once for each view that is not before them, up to the first one that no row comes after."""
    counted = f"SELECT *, {ts} AS us__, max({ts}) OVER () AS last__ {_filtered(node)}"
    first, last = (f"(ceil({us} / {every})::BIGINT * {every})" for us in ("us__", "last__"))
    views = f"make_timestamp(unnest(generate_series({first}, {last}, {every}))) AS as_of"
    return f"SELECT * EXCLUDE (us__, last__), {views} FROM ({counted})"


def _sessions(node: Any, ts: str, gap: str) -> str:
    keys = _keys(node)
    by, of = _by(keys), _by(["session", *keys])
    order = f"{by} ORDER BY {ts}"
    apart = f"SELECT *, {ts} AS us, coalesce({ts} - lag({ts}) OVER ({order}) >= {gap}, true) AS apart {_filtered(node)}"
    numbered = f"SELECT *, sum(apart::BIGINT) OVER ({by} ORDER BY us) AS session FROM ({apart})"
    edges = f"make_timestamp(min(us) OVER ({of})) AS window_start, make_timestamp(max(us) OVER ({of}) + {gap}) AS window_end"
    return f"SELECT * EXCLUDE (us, apart, session), {edges} FROM ({numbered})"
