"""Runs of plans from Python: what `swjoin.sql` and joins without join columns have in common.

What: `settings_of`, options as a configuration; `stored`, an input as paths; `Planned`, the configuration of inputs and a plan;
`answered`, its rows and their proof, `answered_queries`, those of several queries; `report_of`, the report of its run.
Why: tables in memory are written to a temporary folder, from which threads or ranks read them, as from any files.
Stays out: queries (`api.queries`), joins (`api.tables`), runs (`runtime`).
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

from swjoin.api.inputs import are_paths, to_table
from swjoin.api.mpi_join import launch_quietly
from swjoin.cluster.gateway.intake import LateRowError
from swjoin.config.arguments import CLUSTER_PARTITIONS, JOIN_PARTITIONS, duration_us, one_of, size_bytes
from swjoin.config.job import Job
from swjoin.config.options import Strategy
from swjoin.config.run import (
    ClusterConfig,
    ModuleConfig,
    QueryConfig,
    ReorganizationConfig,
    RunConfig,
    ScalingConfig,
    SinkConfig,
    TimeConfig,
)
from swjoin.core.errors import UserError
from swjoin.core.ledger import Proof
from swjoin.runtime.in_process import run_local
from swjoin.runtime.run_report import ledger_of

if TYPE_CHECKING:
    import pyarrow as pa

Written: TypeAlias = tuple[Path, Literal["parquet", "csv"]]  # a file of rows, and its kind
_ROWS = "rows.parquet"


class Planned(NamedTuple):
    """config: its inputs are those of the plan. plan: as `plan_to_plain` writes it. command: of what made it."""

    config: RunConfig
    plan: dict[str, Any]
    command: str


def settings_of(options: Mapping[str, Any]) -> RunConfig:
    """The configuration, without inputs, of late, memory, max_out_of_order, ranks, routing, units, and of strategy if there
    is one."""
    late, memory, bound = options["late"], options["memory"], options["max_out_of_order"]
    one_of(late, ("error", "drop"), "late")
    strategy = options.get("strategy") or ClusterConfig.strategy
    one_of(strategy, get_args(Strategy), "strategy")
    on_ranks = options["ranks"] is not None
    routing = ClusterConfig.routing if options["routing"] is None else options["routing"]
    placed: dict[str, Any] = {"strategy": strategy, "routing": routing}
    units = 0 if options["units"] is None else options["units"]
    if not isinstance(units, int) or isinstance(units, bool):
        raise UserError(f"units: {units!r} is no number of units")
    sort = bound is None and (late == "drop" or on_ranks)  # otherwise only if need be
    return RunConfig(
        queries=(QueryConfig(0, 0),),
        time=TimeConfig("event", 0 if bound is None else duration_us(bound, "max_out_of_order"), late, sort=sort),
        cluster=ClusterConfig(partition_count=CLUSTER_PARTITIONS if on_ranks else JOIN_PARTITIONS, **placed),
        reorganization=ReorganizationConfig(scaling=ScalingConfig(units=units)),
        module=ModuleConfig() if memory is None else ModuleConfig(window_bytes=size_bytes(memory, "memory")),
    )


def stored(value: object, name: str, time: str, file: Path) -> str | tuple[str, ...]:
    """The path or paths of an input; a table in memory is written to this file. UserError for what is no input."""
    import pyarrow as pa

    if are_paths(value):
        paths = [value] if isinstance(value, (str, os.PathLike)) else list(value)
        texts = tuple(os.fspath(path) for path in paths)
        return texts[0] if len(texts) == 1 else texts
    table = to_table(value, name, time)
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return str(file)


def answered(
    planned: Planned, options: Mapping[str, Any], written: Written | None, folder: Path, *, counted: bool = False
) -> tuple[pa.Table | None, Proof]:
    """The rows, unless they are written or counted only. options: threads, ranks, progress, max_out_of_order. folder: for the
    rows and the report."""
    import pyarrow.parquet as pq

    nowhere: Written = folder / _ROWS, "parquet"
    target, kind = nowhere if written is None else written
    found = report_of(planned, options, (None, "count") if counted else (target, kind), folder)
    proof = Proof(found["results"]["count"], found["results"]["digest"], ledger_of(found), tuple(found["warnings"]))
    return (pq.read_table(target) if written is None and not counted else None), proof


def answered_queries(
    planned: Planned, options: Mapping[str, Any], written: Written | None, folder: Path
) -> dict[str, tuple[pa.Table | None, Proof]]:
    """As `answered`, of each query. written: a folder, and the kind of the files in it."""
    import pyarrow.parquet as pq

    nowhere: Written = folder / "rows", "parquet"
    target, kind = nowhere if written is None else written
    found = report_of(planned, options, (target, kind), folder)
    ledger, warnings, answers = ledger_of(found), tuple(found["warnings"]), {}
    for query in found["queries"]:
        rows = pq.read_table(target / query["name"], partitioning=None) if written is None else None
        answers[query["name"]] = rows, Proof(query["count"], query["digest"], ledger, warnings)
    return answers


def report_of(
    planned: Planned,
    options: Mapping[str, Any],
    output: tuple[Path | None, Literal["parquet", "csv", "count"]],
    folder: Path,
) -> dict[str, Any]:
    """Run a plan; its report. output: the file of its rows, and its kind. The rest as `answered`."""
    target, kind = output
    config = dataclasses.replace(planned.config, sink=SinkConfig(kind, ids=False))
    job = Job(config, target, False, None, folder / "report.json", planned.command, spelling="arguments", plan=planned.plan)
    return _run(dataclasses.replace(job, directory=bool(job.queries)), options)


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
        for path in [path for of_query in job.result_folders for path in of_query.glob("part-*.incomplete")]:
            path.unlink()  # the folders were empty
        config = dataclasses.replace(job.config, time=dataclasses.replace(job.config.time, sort=True))
        return run_local(dataclasses.replace(job, config=config), progress, threads)
    found: dict[str, Any] = json.loads(job.report.read_text())
    return found
