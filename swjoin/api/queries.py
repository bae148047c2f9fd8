"""SQL from Python: `swjoin.sql`.

What: a query and tables in, an Arrow table, a data frame or a file out.
Why: the same plans and runtimes as `swjoin query`; tables in memory are written to a temporary folder, from which threads or
ranks read them.
Stays out: SQL (`frontends.sql`), runs (`runtime`), proofs (`api.proofs`).
"""

from __future__ import annotations

import dataclasses
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

from swjoin.api.inputs import Input, are_paths, to_table
from swjoin.api.mpi_join import launch_quietly
from swjoin.api.proofs import remember
from swjoin.api.result_files import result_file
from swjoin.api.result_frames import converter
from swjoin.cluster.gateway.intake import LateRowError
from swjoin.config.arguments import CLUSTER_PARTITIONS, JOIN_PARTITIONS, check_workers, duration_us, one_of, size_bytes
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.options import SqlOptions, Strategy, TimeUnit, complete, takes_options
from swjoin.config.run import ClusterConfig, ModuleConfig, QueryConfig, RunConfig, SinkConfig, TimeConfig
from swjoin.core.errors import UserError, spelled
from swjoin.core.ledger import Proof
from swjoin.frontends.sql.functions import Function
from swjoin.frontends.sql.planner import plan_query
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.runtime.in_process import run_local
from swjoin.runtime.plausibility import warn
from swjoin.runtime.progress import check_progress
from swjoin.runtime.run_report import ledger_of

if TYPE_CHECKING:
    import pyarrow as pa

Written: TypeAlias = tuple[Path, Literal["parquet", "csv"]]  # a file of rows, and its kind
_ROWS = "rows.parquet"


@takes_options(SqlOptions, named="named")
def sql(query: str, /, **given: Any) -> Any:
    """The rows of an SQL query (docs/queries.md) as an Arrow table, in no order.

    named: the tables by the names that the query has for them, as `swjoin.join` takes its inputs: Arrow tables, pandas, polars,
    anything with `__arrow_c_stream__`, or paths. tables: the same as a mapping, for names that are arguments here. time: the
    time column of all tables, or of each by its name; a table without one is static. time_unit: likewise, of time
    columns of integers: s, ms, us, ns.
    max_out_of_order: rows that lie further behind an earlier one are late (default: no row is, whatever the order); late:
    "error" or "drop". memory: limit of the window state of a thread or rank, such as "4GB". threads: in this process (default:
    one per core but one, at most four). ranks: start so many MPI ranks on this machine instead, at least 3. strategy: which of
    them play which stage: "query", "subquery" or "operator" (docs/queries.md). routing: of joins without an equality or a band:
    "matrix:ROWS,COLUMNS" (default: by the threads or ranks). progress: as of `swjoin.join`.
    returns: "arrow", "pandas" or "polars"; "same": what the first table is. out: a file for the rows, .parquet,
    .csv or .csv.gz; returns its `Proof`.

    `swjoin.proof(table)` has the count, the digest of the rows' values and the ledger of an Arrow table.

    Raises UserError for a query, input or arguments that are wrong, RunFailed when the run fails.
    """
    return answer(query, given, {}, {})


def answer(
    query: str,
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
        job = _job(query, tables, functions, options, written, Path(name))
        with _known(of_process):
            report = _run(job, options)
        results = report["results"]
        found = Proof(results["count"], results["digest"], ledger_of(report), tuple(report["warnings"]))
        rows = _read(Path(name) / _ROWS) if written is None else None
    warn(found.warnings, 3)
    if rows is None:
        return found
    remember(rows, found)
    return convert(rows)


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


def _job(
    query: object,
    tables: Mapping[str, Input],
    functions: Mapping[str, Function],
    options: Mapping[str, Any],
    written: Written | None,
    folder: Path,
) -> Job:
    """folder: for tables in memory, and for rows that do not go into a file."""
    if not isinstance(query, str):
        raise UserError(f"query: {query!r:.60} is no text")
    streams, known = _streams(tables, options["time"], options["time_unit"], folder), {}
    for name, stream in streams.items():
        try:
            known[name] = described(stream, "give time_unit")
        except UserError as error:
            raise error.prefixed(name) from None
    planned = plan_query(query, known, functions)
    nowhere: Written = folder / _ROWS, "parquet"
    target, kind = nowhere if written is None else written
    inputs = tuple(streams[name] for name in planned.tables)
    config = dataclasses.replace(_config(options), inputs=inputs, sink=SinkConfig(kind, ids=False))
    outputs = target, False, None, folder / "report.json"
    return Job(config, *outputs, "swjoin.sql", spelling="arguments", plan=plan_to_plain(planned.plan))


def _tables(tables: Mapping[str, Input] | None, named: Mapping[str, Input]) -> dict[str, Input]:
    if tables is not None and not isinstance(tables, Mapping):
        raise UserError(f"tables: {type(tables).__name__} is no mapping of names to tables")
    if twice := set(tables or {}) & set(named):
        raise UserError(f"{min(twice)}: is given twice, in tables, too")
    found = {**(tables or {}), **named}
    if not found:
        raise UserError("no tables", remedy="give each that the query names: swjoin.sql(query, bid=frame, time='ts')")
    return found


def _config(options: Mapping[str, Any]) -> RunConfig:
    late, memory, bound = options["late"], options["memory"], options["max_out_of_order"]
    one_of(late, ("error", "drop"), "late")
    strategy = options["strategy"] or ClusterConfig.strategy
    one_of(strategy, get_args(Strategy), "strategy")
    on_ranks = options["ranks"] is not None
    routing = ClusterConfig.routing if options["routing"] is None else options["routing"]
    placed: dict[str, Any] = {"strategy": strategy, "routing": routing}
    sort = bound is None and (late == "drop" or on_ranks)  # otherwise only if need be
    return RunConfig(
        queries=(QueryConfig(0, 0),),
        time=TimeConfig("event", 0 if bound is None else duration_us(bound, "max_out_of_order"), late, sort=sort),
        cluster=ClusterConfig(partition_count=CLUSTER_PARTITIONS if on_ranks else JOIN_PARTITIONS, **placed),
        module=ModuleConfig() if memory is None else ModuleConfig(window_bytes=size_bytes(memory, "memory")),
    )


def _of_each(value: object, name: str) -> Any:
    """What is given for all tables, or for this one."""
    return value.get(name) if isinstance(value, Mapping) else value


def _streams(given: Mapping[str, Input], time: object, unit: object, folder: Path) -> dict[str, StreamConfig]:
    """The inputs; tables in memory are written to the folder."""
    import pyarrow as pa

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
        if are_paths(value):
            paths = [value] if isinstance(value, (str, os.PathLike)) else list(value)
            path: str | tuple[str, ...] = tuple(os.fspath(each) for each in paths)
            found[name] = StreamConfig(path[0] if len(path) == 1 else path, (), column or "", its_unit)
            continue
        table = to_table(value, name, column or "")
        file = folder / f"table{number}.arrow"
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        found[name] = StreamConfig(str(file), (), column or "", its_unit)
    return found


def _run(job: Job, options: Mapping[str, Any]) -> dict[str, Any]:
    """The report. Rows out of order are sorted, unless a bound says which are late; inputs in order, which most are, need not
    be."""
    assert job.report is not None
    progress, threads = options["progress"], options["threads"]
    try:
        if options["ranks"] is None:
            return run_local(job, progress, threads)
        launch_quietly(job, options["ranks"], progress)
    except LateRowError as error:
        if options["max_out_of_order"] is not None or error.no_time:
            raise
        config = dataclasses.replace(job.config, time=dataclasses.replace(job.config.time, sort=True))
        return run_local(dataclasses.replace(job, config=config), progress, threads)
    found: dict[str, Any] = json.loads(job.report.read_text())
    return found


def _read(path: Path) -> pa.Table:
    import pyarrow.parquet as pq

    return pq.read_table(path)
