"""One function per command: arguments -> configuration -> job -> runtime -> summary.

What: a `run_...` for every command, and the hidden `run_rank` that mpirun starts; those that have a module of their own are
passed on to it.
Why: commands differ only in what they build; every runtime takes the same `Job`.
Stays out: parsing (`cli.main`), launching (`runtime.launch`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
from pathlib import Path
from typing import Any

from swjoin.api.arguments import CLUSTER_PARTITIONS, JOIN_PARTITIONS, JOIN_THETA_BYTES, side_units
from swjoin.batch import LEFT, RIGHT
from swjoin.cli.given import given_ranks, one_or_two, separate
from swjoin.config import ClusterConfig, ModuleConfig, QueryConfig, RunConfig, SinkConfig, StreamConfig, TimeConfig
from swjoin.errors import UserError
from swjoin.loading import config_from_plain, load_config
from swjoin.runtime.job import Job, late_target
from swjoin.runtime.new_folder import in_folder, in_new_folder, named
from swjoin.runtime.preflight import launcher_size
from swjoin.shipped import given_or_shipped, load_figures
from swjoin.units import parse_duration_us, parse_size_bytes

# ---------------------------------------------------------------- join


def _query(args: argparse.Namespace) -> QueryConfig:
    exclusive = tuple(e for e in args.exclusive.split(",") if e)
    for name in exclusive:
        if name not in ("lower", "upper"):
            raise UserError(f"--exclusive {args.exclusive}: write lower, upper, or lower,upper")
    rest: dict[str, Any] = {"how": args.how, "where": args.where}
    if args.last is not None:
        if exclusive or not (args.within is args.lower is args.upper is None):
            raise UserError("give --last, or bounds of time, not both")
        refusal = f"--last {args.last}: write a number of tuples, or two: of the left and of the right stream"
        return QueryConfig(0, 0, last=one_or_two(args.last, int, refusal), **rest)
    if args.within is not None:
        if args.lower is not None or args.upper is not None:
            raise UserError("give --within, or --lower and --upper, not both")
        window_us = parse_duration_us(args.within)
        if window_us < 0:
            raise UserError(f"--within {args.within}: a window cannot be negative")
        return QueryConfig(-window_us, window_us, exclusive, **rest)  # type: ignore[arg-type]
    if args.lower is None or args.upper is None:
        raise UserError("the window is missing: give --within, or --lower and --upper, or --last")
    lower_us, upper_us = parse_duration_us(args.lower), parse_duration_us(args.upper)
    return QueryConfig(lower_us, upper_us, exclusive, **rest)  # type: ignore[arg-type]


def _keys(args: argparse.Namespace) -> tuple[tuple[str, ...], tuple[str, ...]]:
    left, right = separate(args.left_on or args.on), separate(args.right_on or args.on)
    if not left or not right:
        raise UserError("the join columns are missing: give --on KEY, or --left-on and --right-on")
    return left, right


def sink_kind(out: str) -> str:
    """parquet, csv or count, by what -o says."""
    if out == "count":
        return "count"
    name = Path(out).name.lower()
    if name.endswith(".parquet"):
        return "parquet"
    if name.endswith((".csv", ".csv.gz")):
        return "csv"
    raise UserError(f"-o {out}: end it in .parquet, .csv or .csv.gz, or write count")


def join_config(args: argparse.Namespace) -> RunConfig:
    """The configuration of a `join`, with settings for speed rather than the paper's."""
    left_on, right_on = _keys(args)
    columns = None if args.columns is None else separate(args.columns)
    units, zone = side_units(args.time_unit, args.left_time_unit, args.right_time_unit), args.assume_timezone
    on_mpi = args.ranks is not None or launcher_size() > 1
    partitions = (CLUSTER_PARTITIONS if on_mpi else JOIN_PARTITIONS) if args.partitions is None else args.partitions
    cluster: dict[str, Any] = {"partition_count": partitions, "distribution_epoch_us": 0}
    cluster["communication"] = args.communication
    if args.pace == "realtime" and args.epoch is None:
        raise UserError("--pace realtime needs a distribution epoch: give --epoch, such as --epoch 250ms")
    if args.epoch is not None:
        cluster["distribution_epoch_us"] = parse_duration_us(args.epoch)
    module: dict[str, Any] = {"theta_bytes": JOIN_THETA_BYTES if args.theta is None else parse_size_bytes(args.theta)}
    if args.memory is not None:
        module["window_bytes"] = parse_size_bytes(args.memory)
    return RunConfig(
        queries=(_query(args),),
        left=StreamConfig(args.left, left_on, args.left_time, units[LEFT], args.left_id, columns, assume_timezone=zone),
        right=StreamConfig(args.right, right_on, args.right_time, units[RIGHT], args.right_id, columns, assume_timezone=zone),
        pace=args.pace,
        time=TimeConfig("event", parse_duration_us(args.max_out_of_order), args.late),
        cluster=ClusterConfig(**cluster),
        module=ModuleConfig(**module),
        sink=SinkConfig(sink_kind(args.out), ids=False),  # type: ignore[arg-type]
    )


def run_join(args: argparse.Namespace) -> int:
    config = join_config(args)
    ranks = given_ranks(args)
    target = None if args.out == "count" else Path(args.out)
    report = None if args.report is None else Path(args.report)
    if report is not None and not report.parent.is_dir():
        raise UserError(f"--report {report}: directory {report.parent} does not exist")
    job = Job(config, target, False, None, report, _typed())
    if config.time.late == "side" and late_target(job) is None:
        raise UserError("--late side with -o count: give --report, so that the late rows have a place beside it")
    return _start(job, ranks, args.debug, args.threads)


def _typed() -> str:
    return " ".join(["swjoin", *sys.argv[1:]])


def _start(job: Job, ranks: int | None, debug: bool, threads: int | None, hostfile: Path | None = None) -> int:
    """Run a job in-process, on MPI ranks that we launch, or as one of the ranks that somebody launched."""
    from swjoin.runtime import launch, preflight

    if ranks is not None:
        return launch.launch(job, ranks, debug, hostfile)
    if preflight.launcher_size() > 1:
        preflight.check_world()
        return _play_rank(job, debug)
    from swjoin.cli.summary import print_summary
    from swjoin.runtime.local import run_local

    print_summary(run_local(job, progress=True, slave_count=threads), job)
    return 0


def _play_rank(job: Job, debug: bool) -> int:
    from swjoin.cli.summary import print_summary
    from swjoin.runtime.mpi import run_rank as play

    play(job, progress=True, debug=debug, tell=lambda report: print_summary(report, job))
    return 0


def run_rank(args: argparse.Namespace) -> int:
    from swjoin.runtime import preflight

    preflight.check_world()
    try:
        text = Path(args.job).read_text()
    except OSError as error:
        preflight.end_all_ranks(
            f"{Path(args.job).parent} on {platform.node()}: no job to read ({error.strerror}); all hosts must share --out"
        )
    return _play_rank(Job.from_json(text), args.debug)


# ---------------------------------------------------------------- run


def hostfile(args: argparse.Namespace) -> Path | None:
    """The file of --hostfile. UserError when it cannot be used."""
    if args.hostfile is None:
        return None
    path = Path(args.hostfile)
    if args.ranks is None:
        raise UserError("--hostfile: say how many ranks to start on these hosts with -n")
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "not text"
        raise UserError(f"--hostfile {path}: cannot be read ({reason})") from None
    if not any(line.split("#")[0].strip() for line in lines):
        raise UserError(f"--hostfile {path}: names no host; write lines such as: node01 slots=4")
    return path.absolute()


def run_run(args: argparse.Namespace) -> int:
    config = None if args.config is None or args.resume else load_config(given_or_shipped(args.config), args.overrides)
    return start_run(args, config)


def start_run(args: argparse.Namespace, config: RunConfig | None) -> int:
    """`run` and `serve`. config: None: the run is resumed, or there is none."""
    ranks, hosts = given_ranks(args), hostfile(args)
    if args.resume is not None:
        if args.config is not None or args.overrides or args.out is not None:
            raise UserError("--resume: the run goes on as it was configured, in its own directory; leave everything else out")
        job = resumed_job(named(Path(args.resume)))
        job = dataclasses.replace(job, config=observed(job.config, args.dashboard))
        return _start(job, ranks, args.debug, args.threads, hosts)
    if config is None:
        raise UserError(f"the configuration is missing: swjoin {args.command} CONFIG.yaml, or --resume DIR")
    config = observed(config, args.dashboard)
    settings = config

    def start(out: Path) -> int:
        target = None if settings.sink.kind == "count" else out / "results"
        return _start(Job(settings, target, True, out, None, _typed()), ranks, args.debug, args.threads, hosts)

    if args.out is not None:
        return in_folder(Path(args.out), start)
    return in_new_folder(start, as_ranks=ranks is None and launcher_size() > 1)


def run_serve(args: argparse.Namespace) -> int:
    from swjoin.cli import live

    return live.run_serve(args)


def run_push(args: argparse.Namespace) -> int:
    from swjoin.cli import live

    return live.run_push(args)


def run_tail(args: argparse.Namespace) -> int:
    from swjoin.cli import live

    return live.run_tail(args)


def observed(config: RunConfig, port: int | None) -> RunConfig:
    """The same run with a page to look on at this port of 127.0.0.1 (0: a free one); None: as configured."""
    if port is None:
        return config
    return dataclasses.replace(config, observe=dataclasses.replace(config.observe, port=port))


def run_top(args: argparse.Namespace) -> int:
    from swjoin.cli import watching

    return watching.run_top(args)


def resumed_job(folder: Path) -> Job:
    """The job whose checkpoints lie in DIR/checkpoints, or in DIR. UserError when none does."""
    from swjoin.runtime.checkpoint_folder import CheckpointFolder

    for place in (folder / "checkpoints", folder) if os.path.isdir(folder) else ():
        checkpoints = CheckpointFolder(place, {})
        manifest = checkpoints.newest()
        told = checkpoints.started() if manifest is None else manifest.plain
        if told is None:
            continue
        try:
            config = config_from_plain(told["config"])
        except UserError as error:
            raise UserError(f"{place if manifest is None else manifest.path}: {error}") from None
        out = folder if place != folder else Path(told["run_dir"])
        target = None if config.sink.kind == "count" else out / "results"
        return Job(config, target, True, out, None, told["command"], resumes=True)
    raise UserError(f"{folder}: holds no checkpoints to resume from")


# ---------------------------------------------------------------- Spark


def _schedule(text: str) -> dict[str, Any]:
    kind, *settings = text.split(",")
    out: dict[str, Any] = {"kind": kind}
    for setting in settings:
        name, separator, value = setting.partition("=")
        if not separator:
            raise UserError(f"--schedule {text}: write KIND,key=value,...")
        number = value.replace(".", "", 1).isdigit()
        out[name] = (float(value) if "." in value else int(value)) if number else value
    return out


def run_generate(args: argparse.Namespace) -> int:
    from swjoin.loading import workload_from_plain
    from swjoin.spark.workload import generate

    plain = {
        "rate_per_s": args.rate,
        "duration": args.duration,
        "bias": args.bias,
        "domain": args.domain,
        "payload": args.payload,
        "drift": args.drift,
        "schedule": _schedule(args.schedule),
    }
    workload = workload_from_plain(plain)
    counts = generate(workload, args.seed, Path(args.out), args.spark_master)
    print(f"{args.out}: {counts[0]:,} left and {counts[1]:,} right tuples")
    return 0


def run_verify(args: argparse.Namespace) -> int:
    from swjoin.runtime.report import write_json
    from swjoin.spark.verify import verify

    result = verify(Path(args.dir), args.spark_master)
    write_json(Path(args.dir) / "verified.json", {"equal": result.equal, **dataclasses.asdict(result)})
    for line in result.lines():
        print(line)
    return 0 if result.equal else 1


def run_aggregate(args: argparse.Namespace) -> int:
    from swjoin.spark.aggregate import aggregate

    for path in aggregate([Path(d) for d in args.dirs], args.spark_master):
        print(path)
    return 0


def run_events(args: argparse.Namespace) -> int:
    from swjoin.cli.timeline import print_timeline

    print_timeline(Path(args.dir), separate(args.kinds), args.slave, args.group)
    return 0


def run_plot(args: argparse.Namespace) -> int:
    run_overview, adaptation = load_figures("run_overview"), load_figures("adaptation")
    experiments, sweep_tables, sweep_figures = (load_figures(m) for m in ("experiments", "sweep_tables", "sweep_figures"))
    target = given_or_shipped(args.target)
    if target.suffix in (".yaml", ".yml"):
        from swjoin.sweeps.store import sweep_directory

        experiment = experiments.read(target)
        sweep = Path(args.sweep) if args.sweep else sweep_directory(experiment)
        table = sweep_tables.load(sweep)
        if table.name != experiment.source.name:
            raise UserError(f"{sweep}: is a sweep of {table.name}, not of {experiment.source.name}")
        paths = sweep_figures.save(table, experiment, Path(args.out) if args.out else sweep / "plots")
    elif args.sweep or args.out:
        raise UserError(f"{target}: -o and --sweep are for the figure of an experiment (EXPERIMENT.yaml), not of a run")
    else:
        paths = [*run_overview.save(target), *adaptation.save(target)]
    for path in paths:
        print(path)
    return 0


# ---------------------------------------------------------------- experiments


def run_sweep(args: argparse.Namespace) -> int:
    from swjoin.cli import sweeping

    return sweeping.run_sweep(args)


# ---------------------------------------------------------------- foretelling runs


def run_simulate(args: argparse.Namespace) -> int:
    from swjoin.cli import simulation

    return simulation.run_simulate(args)


def run_plan(args: argparse.Namespace) -> int:
    from swjoin.cli import planning

    return planning.run_plan(args)


def run_calibrate(args: argparse.Namespace) -> int:
    from swjoin.cli import simulation

    return simulation.run_calibrate(args)


# ---------------------------------------------------------------- the machine


def run_doctor(args: argparse.Namespace) -> int:
    from swjoin.cli import doctor

    return doctor.run_doctor(args)


def run_explain(args: argparse.Namespace) -> int:
    from swjoin.cli import explaining

    return explaining.run_explain(args)


def run_report(args: argparse.Namespace) -> int:
    from swjoin.cli import reporting

    return reporting.run_report(args)
