"""`swjoin query`: an SQL query over files, or several in one run.

What: `run_query`; `table_of`, what --table says; `content_of` a file with a query.
Why: settings are those of `swjoin join`, as far as a plan has them.
Stays out: SQL (`frontends.sql`), starting the job (`cli.run`), writing results (`cli.join`).
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import cast, get_args

from swjoin.cli.common_args import given_ranks, with_role_counts
from swjoin.cli.join import shared_settings, start_with_outputs
from swjoin.config.connectors import StreamConfig
from swjoin.config.options import TimeUnit
from swjoin.config.run import QueryConfig, RunConfig
from swjoin.connectors.files.inputs import split_paths
from swjoin.core.errors import UserError, one_line
from swjoin.frontends.sql.planner import QueryText, Table, plan_queries
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.plan.sharing import check_query_name


def table_of(text: str) -> tuple[str, str, str | None, str | None]:
    """Name, path, time column and unit of NAME=PATH[:TIME[:UNIT]]. UserError for anything else."""
    name, separator, rest = text.partition("=")
    if not separator or not name.strip() or not rest:
        raise UserError(f"--table {text}: write NAME=PATH:TIME, such as bid=bids.parquet:ts")
    words = rest.split(":")
    unit = words.pop() if len(words) > 2 and words[-1] in get_args(TimeUnit) else None
    time = words.pop() if len(words) > 1 and words[-1] and not set(words[-1]) & set("/\\") else None
    if unit is not None and time is None:
        raise UserError(f"--table {text}: a unit without a time column; write NAME=PATH:TIME:UNIT")
    return name.strip(), ":".join(words), time, unit


def _inputs(args: argparse.Namespace) -> dict[str, StreamConfig]:
    """The tables that are given, by name; without a time column the time is empty."""
    found: dict[str, StreamConfig] = {}
    for text in args.tables or []:
        name, path, time, unit = table_of(text)
        if name.casefold() in map(str.casefold, found):
            raise UserError(f"--table {text}: {name} is given twice")
        found[name] = StreamConfig(
            split_paths(path), (), time or "", cast("TimeUnit | None", unit), assume_timezone=args.assume_timezone
        )
    if not found:
        raise UserError("no tables: give --table NAME=PATH:TIME for each that the query names")
    return found


def _described(name: str, config: StreamConfig) -> Table:
    try:
        return described(config, f"write {name}=PATH:{config.time}:ms, or with s, us, ns")
    except UserError as error:
        raise error.prefixed(f"--table {name}") from None


def content_of(given: str) -> str:
    """Of a file with a query. UserError when it cannot be read."""
    try:
        return Path(given).read_text()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"{given}: cannot be read ({reason})") from None


def _queries(given: list[str]) -> dict[str, QueryText]:
    """By the names of their files; a single one may be text."""
    if len(given) == 1:
        (text,) = given
        return {"": QueryText(content_of(text), {}, text) if _is_file(text) else QueryText(text, {})}
    found: dict[str, QueryText] = {}
    for path in given:
        if not _is_file(path):
            shown = one_line(path, 60)
            raise UserError(f"{shown}: one of {len(given)} queries; write each into a file NAME.sql, whose name is the query's")
        name = Path(path).stem
        check_query_name(name, path, found)
        found[name] = QueryText(content_of(path), {}, path)
    return found


def _is_file(text: str) -> bool:
    return text.lower().endswith(".sql")


def run_query(args: argparse.Namespace) -> int:
    ranks, queries = given_ranks(args), _queries(args.queries)
    given = {"strategy": args.strategy, "routing": args.routing}
    cluster = {name: value for name, value in given.items() if value is not None}
    config = with_role_counts(RunConfig(queries=(QueryConfig(0, 0),), **shared_settings(args, cluster, {})), args)
    inputs = _inputs(args)
    tables = {name: _described(name, stream) for name, stream in inputs.items()}
    query = plan_queries(queries, tables, config.cluster.routing)
    config = replace(config, inputs=tuple(inputs[name] for name in query.tables))
    return start_with_outputs(args, config, ranks, plan_to_plain(query.plan))
