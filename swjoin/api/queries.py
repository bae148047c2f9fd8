"""SQL from Python: `swjoin.sql`.

What: a query and tables in, an Arrow table, a data frame or a file out.
Why: the same plans and runtimes as `swjoin query`; tables in memory are written to a temporary folder, from which threads or
ranks read them.
Stays out: SQL (`frontends.sql`), runs (`runtime`), proofs (`api.proofs`).
"""

from __future__ import annotations

import dataclasses
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from swjoin.api.inputs import Input
from swjoin.api.planned_runs import Planned, answered, answered_queries, settings_of, stored
from swjoin.api.proofs import remember
from swjoin.api.result_files import result_file
from swjoin.api.result_frames import converter
from swjoin.config.arguments import check_workers, one_of
from swjoin.config.connectors import StreamConfig
from swjoin.config.options import SqlOptions, TimeUnit, complete, takes_options
from swjoin.core.errors import UserError, spelled
from swjoin.core.ledger import Proof
from swjoin.frontends.sql.functions import Function
from swjoin.frontends.sql.planner import QueryText, plan_queries
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.plan.sharing import check_query_names
from swjoin.runtime.plausibility import warn
from swjoin.runtime.progress import check_progress

if TYPE_CHECKING:
    import pyarrow as pa


@takes_options(SqlOptions, named="named")
def sql(query: str | Mapping[str, str], /, **given: Any) -> Any:
    """The rows of an SQL query (docs/queries.md) as an Arrow table, in no order; of several queries in one run, which are given
    by their names, a dictionary of tables by these names.

    named: the tables by the names that the query has for them, as `swjoin.join` takes its inputs: Arrow tables, pandas, polars,
    anything with `__arrow_c_stream__`, or paths. tables: the same as a mapping, for names that are arguments here. time: the
    time column of all tables, or of each by its name; a table without one is static. time_unit: likewise, of time
    columns of integers: s, ms, us, ns.
    max_out_of_order: rows that lie further behind an earlier one are late (default: no row is, whatever the order); late:
    "error" or "drop". memory: limit of the window state of a thread or rank, such as "4GB". threads: in this process (default:
    one per core but one, at most four). ranks: start so many MPI ranks on this machine instead, at least 3. strategy: which of
    them play which stage: "query", "subquery" or "operator" (docs/queries.md). routing: how rows of joins find their partners,
    such as "range" or "matrix:2,3" (docs/queries.md#routings; default: by the condition). units, progress: as of
    `swjoin.join`.
    returns: "arrow", "pandas" or "polars"; "same": what the first table is. out: a file for the rows, .parquet, .csv or
    .csv.gz; returns its `Proof`. Of several queries out is a folder, with a folder for each, and their proofs are returned by
    name.

    `swjoin.proof(table)` has the count, the digest of the rows' values and the ledger of an Arrow table.

    Raises UserError for a query, input or arguments that are wrong, RunFailed when the run fails.
    """
    return answer(query, given, {}, {})


def answer(
    query: str | Mapping[str, str],
    given: Mapping[str, Any],
    functions: Mapping[str, Function],
    of_process: Mapping[str, Callable[[Any], Any]],
) -> Any:
    """As `sql`, of which `given` are the arguments. functions: that the query names. of_process: those of them that only this
    process has, by the names that plans have for them."""
    options = complete(sql, {name: value for name, value in given.items() if name in SqlOptions.__annotations__})
    tables = {name: value for name, value in given.items() if name not in options}
    with spelled("arguments"), tempfile.TemporaryDirectory(prefix="swjoin-sql-", ignore_cleanup_errors=True) as name:
        check_workers(options["threads"], options["ranks"])
        check_progress(options["progress"])
        tables = _tables(options["tables"], tables)
        convert = _converter(options, tables)
        written = None if options["out"] is None else result_file(options["out"])
        queries = _texts(query, functions)
        planned = _planned(queries, tables, options, Path(name))
        with _known(of_process):
            if "" in queries:
                answers = {"": answered(planned, options, written, Path(name))}
            else:
                answers = answered_queries(planned, options, written, Path(name))
    return given_back(answers, convert)


def given_back(answers: Mapping[str, tuple[pa.Table | None, Proof]], convert: Callable[[pa.Table], Any]) -> Any:
    """What the caller gets for rows and proofs by query, or those of a single query, "", after its warnings."""
    warn(next(iter(answers.values()))[1].warnings, 3)
    for rows, found in answers.values():
        if rows is not None:
            remember(rows, found)
    shown = {name: proof if rows is None else convert(rows) for name, (rows, proof) in answers.items()}
    return shown.get("", shown)


def texts_of(query: object) -> dict[str, str]:
    """By the names of the queries; a single one has none. UserError for what is no query."""
    if isinstance(query, str):
        return {"": query}
    if not isinstance(query, Mapping) or not query:
        raise UserError(f"query: {query!r:.60} is no text", remedy="give the query, or {name: query, ...}")
    check_query_names((name, "query") for name in query)
    for name, text in query.items():
        if not isinstance(text, str):
            raise UserError(f"query {name}: {text!r:.60} is no text")
    return dict(query)


def _texts(query: object, functions: Mapping[str, Function]) -> dict[str, QueryText]:
    texts = texts_of(query)
    if "" in texts:
        return {"": QueryText(texts[""], functions)}
    return {name: QueryText(text, functions, f"query {name}") for name, text in texts.items()}


def _known(of_process: Mapping[str, Callable[[Any], Any]]) -> AbstractContextManager[None]:
    if not of_process:
        return nullcontext()
    from swjoin.expressions.batch_map import functions_of_process

    return functions_of_process(of_process)


def _converter(options: Mapping[str, Any], tables: Mapping[str, Any]) -> Callable[[pa.Table], Any]:
    returns = options["returns"]
    if returns == "reader":
        raise UserError("returns: 'reader' is not for queries", remedy="give out, and read the file")
    if options["out"] is not None and returns != "arrow":
        raise UserError(f"returns: {returns!r} and out are given; the rows go into the file")
    return converter(returns, next(iter(tables.values())))


def _planned(
    queries: Mapping[str, QueryText], tables: Mapping[str, Input], options: Mapping[str, Any], folder: Path
) -> Planned:
    """folder: for tables in memory."""
    streams, known = _streams(tables, options["time"], options["time_unit"], folder), {}
    for name, stream in streams.items():
        try:
            known[name] = described(stream, "give time_unit")
        except UserError as error:
            raise error.prefixed(name) from None
    settings = settings_of(options)
    planned = plan_queries(queries, known, settings.cluster.routing)
    inputs = tuple(streams[name] for name in planned.tables)
    config = dataclasses.replace(settings, inputs=inputs)
    return Planned(config, plan_to_plain(planned.plan), "swjoin.sql")


def _tables(tables: Mapping[str, Input] | None, named: Mapping[str, Input]) -> dict[str, Input]:
    if tables is not None and not isinstance(tables, Mapping):
        raise UserError(f"tables: {type(tables).__name__} is no mapping of names to tables")
    if twice := set(tables or {}) & set(named):
        raise UserError(f"{min(twice)}: is given twice, in tables, too")
    found = {**(tables or {}), **named}
    if not found:
        raise UserError("no tables", remedy="give each that the query names: swjoin.sql(query, bid=frame, time='ts')")
    return found


def _of_each(value: object, name: str) -> Any:
    """What is given for all tables, or for this one."""
    return value.get(name) if isinstance(value, Mapping) else value


def _streams(given: Mapping[str, Input], time: object, unit: object, folder: Path) -> dict[str, StreamConfig]:
    """The inputs; tables in memory are written to the folder."""
    for argument, value in (("time", time), ("time_unit", unit)):
        if isinstance(value, Mapping) and (unknown := set(value) - set(given)):
            raise UserError(f"{argument}: {min(map(str, unknown))} is no table; tables are {', '.join(given)}")
    found = {}
    for number, (name, value) in enumerate(given.items()):
        column, its_unit = _of_each(time, name), _of_each(unit, name)
        if column is not None and (not isinstance(column, str) or not column):
            raise UserError(f"time: {column!r:.60} is no column of {name}", remedy=f"give time={{{name!r}: COLUMN}}, or none")
        if its_unit is not None:
            one_of(its_unit, get_args(TimeUnit), "time_unit")
        paths = stored(value, name, column or "", folder / f"table{number}.arrow")
        found[name] = StreamConfig(paths, (), column or "", its_unit)
    return found
