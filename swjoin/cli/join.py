"""`swjoin join`: two files or directories.

What: `join_config`, `run_join`; `shared_settings`, `start_with_outputs` and `copied`, which other commands share.
Why: settings for speed rather than the paper's.
Stays out: starting the job (`cli.run`).
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import shutil
import sys
from contextlib import redirect_stdout
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, BinaryIO, cast

from swjoin.cli.common_args import duration_of, given_ranks, one_or_two, separate, size_of, with_role_counts
from swjoin.cli.run import shown_progress, start_job, typed_command
from swjoin.config.arguments import CLUSTER_PARTITIONS, JOIN_PARTITIONS, side_units
from swjoin.config.connectors import TextConfig
from swjoin.config.job import Job, late_target
from swjoin.config.loader import text_from_plain
from swjoin.config.run import (
    ClusterConfig,
    ModuleConfig,
    QueryConfig,
    ReorganizationConfig,
    RunConfig,
    ScalingConfig,
    SinkConfig,
    StreamConfig,
    TimeConfig,
)
from swjoin.config.window_bounds import Bound, parse_window
from swjoin.connectors.files.inputs import is_remote, split_paths
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import NotWritten, UserError
from swjoin.routing.named import is_placed
from swjoin.runtime.preflight import launcher_size

_LOG = logging.getLogger(__name__)


def _query(args: argparse.Namespace) -> QueryConfig:
    exclusive = tuple(args.exclusive.split(",")) if args.exclusive else ()
    for name in exclusive:
        if name not in ("lower", "upper"):
            raise UserError(f"--exclusive {args.exclusive}: write lower, upper, or lower,upper")
    given = {name: getattr(args, name) for name in ("within", "lower", "upper", "last") if getattr(args, name) is not None}
    refusal = f"--last {args.last}: write a number of tuples, or two: of the left and of the right stream"
    window = parse_window(
        given,
        cast("tuple[Bound, ...]", exclusive),
        lambda text, name: duration_of(text, f"--{name}"),
        lambda text: one_or_two(text, int, refusal),
    )
    return QueryConfig(**window._asdict(), how=args.how, match=args.match, where=args.where)


def _keys(args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if args.on and args.left_on and args.right_on:
        raise UserError("give --on, or --left-on and --right-on: not all three")
    left, right = separate(args.left_on or args.on), separate(args.right_on or args.on)
    if not left and not right and (args.where is not None or args.match != "all"):
        return (), ()
    if not left or not right:
        raise UserError("the join columns are missing: give --on KEY, or --left-on and --right-on, or --where or --match alone")
    return left, right


def sink_kind(out: str, form: str | None = None) -> str:
    """parquet, csv or count, by what -o says. Standard output gets what a file of CSV or Parquet holds first."""
    if out == "-":
        return "parquet" if form == "arrow" else "csv"
    if out == "count":
        return "count"
    if is_remote(out):
        raise UserError(f"-o {out}: results are written to this machine's disks only; name a local file, then copy it")
    name = Path(out).name.lower()
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith((".csv", ".csv.gz")):
        return "csv"
    raise UserError(f"-o {out}: end it in .parquet, .csv or .csv.gz, or write count")


def _text(args: argparse.Namespace, side: str) -> TextConfig | None:
    """How one side's text is read: of `--csv KEY=VALUE`, or of `--left-csv`."""
    option, given = f"--{side}-csv", getattr(args, f"{side}_csv")
    if given is not None and args.csv is not None:
        raise UserError(f"give --csv, or {option}, not both")
    option, given = ("--csv", args.csv) if given is None else (option, given)
    if given is None:
        return None
    plain: dict[str, Any] = {}
    for item in given:
        key, separator, value = item.partition("=")
        if not separator or not key:
            raise UserError(f"{option} {item!r}: write KEY=VALUE, such as delimiter=;")
        if key in ("nulls", "times"):
            plain.setdefault(key, []).extend(value.split(",") if key == "nulls" else [value])
        elif key in plain:
            raise UserError(f"{option}: {key} is given twice")
        else:
            plain[key] = "\t" if key == "delimiter" and value in ("\\t", "tab") else value
    return text_from_plain(plain, option)


def join_config(args: argparse.Namespace) -> RunConfig:
    """The configuration of a `join`; without join columns, or with views, its streams are inputs of a plan."""
    left_on, right_on = _keys(args)
    keyed = bool(left_on) and args.agg is None and not is_placed(args.routing)
    columns = None if args.columns is None else separate(args.columns)
    texts = [_text(args, side) for side in STREAM_NAMES]
    units, zone = side_units(args.time_unit, args.left_time_unit, args.right_time_unit), args.assume_timezone
    module: dict[str, Any] = {} if args.theta is None else {"theta_bytes": size_of(args.theta, "--theta")}
    cluster = {"communication": args.communication} | ({} if args.routing is None else {"routing": args.routing})
    settings = shared_settings(args, cluster, module)

    def stream(side: int, path: str, key: tuple[str, ...]) -> StreamConfig:
        time, row_id = (getattr(args, f"{STREAM_NAMES[side]}_{name}") for name in ("time", "id"))
        paths, unit = split_paths(path), units[side]
        return StreamConfig(paths, key, time, unit, row_id, columns, assume_timezone=zone, csv=texts[side])

    left, right = (
        stream(side, path, key if keyed else ())
        for side, path, key in ((LEFT, args.left, left_on), (RIGHT, args.right, right_on))
    )
    streams: dict[str, Any] = {"left": left, "right": right} if keyed else {"inputs": (left, right)}
    return with_role_counts(RunConfig(queries=(_query(args),), pace=args.pace, **streams, **settings), args)


def shared_settings(args: argparse.Namespace, cluster: dict[str, Any], module: dict[str, Any]) -> dict[str, Any]:
    """The sections of a configuration that options of `join` and `query` give. cluster, module: further keys of these."""
    on_mpi = args.ranks is not None or launcher_size() > 1
    partitions = (CLUSTER_PARTITIONS if on_mpi else JOIN_PARTITIONS) if args.partitions is None else args.partitions
    if args.epoch is not None:
        cluster = cluster | {"distribution_epoch_us": duration_of(args.epoch, "--epoch")}
    if args.memory is not None:
        module = module | {"window_bytes": size_of(args.memory, "--memory")}
    return {
        "time": TimeConfig("event", duration_of(args.max_out_of_order, "--max-out-of-order"), args.late, sort=args.sort),
        "cluster": ClusterConfig(partition_count=partitions, **cluster),
        "module": ModuleConfig(**module),
        "reorganization": ReorganizationConfig(scaling=ScalingConfig(units=args.units or 0)),
        "sink": SinkConfig(sink_kind(args.out, args.format), ids=False),  # type: ignore[arg-type]
    }


def run_join(args: argparse.Namespace) -> int:
    for name in ("group_by", "every"):
        if args.agg is None and getattr(args, name) is not None:
            raise UserError(f"--{name.replace('_', '-')} without --agg: give what is aggregated, such as --agg 'count(*) AS n'")
    config, plan = join_config(args), None
    if config.inputs:
        from swjoin.frontends.planned_joins import Views, planned

        views = None
        if args.agg is not None:
            if args.every is None:
                raise UserError("--agg without --every: give the time from one view to the next, such as --every 1s")
            views = Views(separate(args.group_by), args.agg, duration_of(args.every, "--every"))
            if views.every_us <= 0:
                raise UserError(f"--every {args.every}: give a time above zero")
        config, plan = planned(config, _keys(args), views)
    return start_with_outputs(args, config, given_ranks(args), plan)


def start_with_outputs(
    args: argparse.Namespace,
    config: RunConfig,
    ranks: int | None,
    plan: dict[str, Any] | None = None,
) -> int:
    """Start a job whose results go to -o: to a file, to standard output, or nowhere. plan: see `Job`. UserError for
    options that do not fit."""
    target = None if args.out == "count" else Path(args.out)
    report = None if args.report is None else Path(args.report)
    job = Job(config, target, config.sink_count > 1, None, report, typed_command(), spelling="options", plan=plan)
    job = dataclasses.replace(job, directory=job.directory or bool(job.queries))
    if args.format is not None and args.out != "-":
        raise UserError(f"--format {args.format}: is for -o -, standard output; a file's extension says its format")
    if args.out == "-":
        return _to_standard_output(args, job, ranks)
    if job.config.time.late == "side" and late_target(job) is None:
        raise UserError("--late side with -o count: give --report, so that the late rows have a place beside it")
    return start_job(job, ranks, args)


def _to_standard_output(args: argparse.Namespace, job: Job, ranks: int | None) -> int:
    """Rows alone go to standard output, once all of them are there: a run that fails writes none. The summary goes to standard
    error."""
    if launcher_size() > 1:
        raise UserError("-o -: ranks that a launcher has started have no standard output in common; name a file, or use -n")
    config = job.config
    if config.time.late == "side":
        raise UserError("--late side with -o -: late rows need a place; name a file with -o")
    if job.queries:
        raise UserError(f"-o -: {len(job.queries)} queries have as many results, standard output is one; name a folder with -o")
    if config.sink_count > 1:
        raise UserError(f"--sinks {config.sink_count} with -o -: standard output is one; name a file with -o, or leave it out")
    with TemporaryDirectory(prefix="swjoin-", ignore_cleanup_errors=True) as folder:
        target = Path(folder) / f"pairs.{config.sink.kind}"
        job = dataclasses.replace(job, target=target)
        with redirect_stdout(sys.stderr):
            if ranks is None:
                code = start_job(job, None, args)
            else:
                from swjoin.runtime.launch import launch_with_reason

                code, failure = launch_with_reason(
                    job, ranks, args.debug, quiet=True, log_json=args.log_json, progress=shown_progress(args)
                )
                if failure:
                    _LOG.error("%s", failure)
        if code == 0:
            copied(target, sys.stdout.buffer)
    return code


def copied(target: Path, out: BinaryIO) -> None:
    """A file of results to standard output."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        if target.suffix == ".csv":
            with target.open("rb") as file:
                shutil.copyfileobj(file, out, 1 << 20)
        else:
            with pq.ParquetFile(target) as parquet, pa.ipc.new_stream(out, parquet.schema_arrow) as stream:
                for batch in parquet.iter_batches():
                    stream.write_batch(batch)
        out.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise NotWritten(f"standard output: cannot be written ({error.strerror or error})") from None
