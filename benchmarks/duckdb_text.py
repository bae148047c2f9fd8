"""Queries with windows in DuckDB's SQL.

What: `in_duckdb(text)`.
Why: DuckDB is the oracle and the peer of queries, and has no functions for windows: a row is there once for each window that it
is in.
Stays out: running queries (`benchmarks.nexmark`, tests), our dialect (`swjoin.frontends.sql.windows`).
"""

from __future__ import annotations

from typing import Any

from sqlglot import exp, parse_one

from swjoin.frontends.sql.windows import Dialect, partition_by, plain_arguments


def in_duckdb(text: str) -> str:
    """TUMBLE, HOP and SESSION as subqueries. A literal with a point is a double."""
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
    micros = [f"(epoch({length.sql('duckdb')}) * 1000000)::BIGINT" for length in lengths]
    slide, size, ts = micros[0], micros[-1], f"epoch_us({time.sql('duckdb')})"
    rows = f"FROM {source.sql('duckdb')}" + (" q" if source.key == "subquery" else "")
    if str(node.this.this).upper() == "SESSION":
        return _sessions(node, rows, ts, size)
    if len(lengths) == 1:
        start = f"({ts} - (({ts} % {size}) + {size}) % {size})"
    else:
        numbers = f"floor(({ts} - {size}) / {slide})::BIGINT + 1, floor({ts} / {slide})::BIGINT"
        start = f"{slide} * unnest(generate_series({numbers}))"
    starts = f"SELECT *, make_timestamp({start}) AS window_start {rows}"
    return f"SELECT *, window_start + to_microseconds({size}) AS window_end FROM ({starts})"


def _sessions(node: Any, rows: str, ts: str, gap: str) -> str:
    keys = [key.sql("duckdb") for key in partition_by(node.this)]
    if not keys:
        group = node.find_ancestor(exp.Select).args["group"]
        keys = [key.sql("duckdb") for key in group.expressions if key.name not in ("window_start", "window_end")]
    by = f"PARTITION BY {', '.join(keys)}" if keys else ""
    apart = f"SELECT *, {ts} AS us, coalesce({ts} - lag({ts}) OVER ({by} ORDER BY {ts}) >= {gap}, true) AS apart {rows}"
    numbered = f"SELECT *, sum(apart::BIGINT) OVER ({by} ORDER BY us) AS session FROM ({apart})"
    of = f"PARTITION BY {', '.join(['session', *keys])}"
    edges = f"make_timestamp(min(us) OVER ({of})) AS window_start, make_timestamp(max(us) OVER ({of}) + {gap}) AS window_end"
    return f"SELECT * EXCLUDE (us, apart, session), {edges} FROM ({numbered})"
