"""`swjoin run`, and how every command starts a job.

What: `start_job`: in-process, on MPI ranks that it launches, or as one of the ranks of a launcher; `run_rank`, which mpirun
starts; resumption.
Why: every runtime takes the same `Job`.
Stays out: launching (`runtime.launch`), configurations (`config`).
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import platform
import sys
from pathlib import Path

from swjoin.cli.common_args import given_ranks, hostfile, with_role_counts
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.errors import UserError
from swjoin.core.resources import find_resource
from swjoin.frontends.configured import job_to_run
from swjoin.runtime.new_folder import in_folder, in_new_folder, named
from swjoin.runtime.preflight import launcher_size
from swjoin.runtime.progress import Wanted


def typed_command() -> str:
    return " ".join(["swjoin", *sys.argv[1:]])


def start_job(job: Job, ranks: int | None, args: argparse.Namespace, hostfile: Path | None = None) -> int:
    """Run a job in-process, on MPI ranks that we launch, or as one of the ranks of a launcher."""
    from swjoin.runtime import launch, preflight

    if ranks is not None:
        return launch.launch(job, ranks, args.debug, hostfile, log_json=args.log_json, progress=shown_progress(args))
    if preflight.launcher_size() > 1:
        preflight.check_world()
        return _run_rank(job, args)
    from swjoin.cli.summary import print_summary
    from swjoin.forecast.memory_report import add_plan
    from swjoin.runtime.in_process import run_local

    print_summary(run_local(job, shown_progress(args), slave_count=args.threads, complete_report=add_plan), job, args)
    return 0


def shown_progress(args: argparse.Namespace) -> Wanted:
    """A bar on a terminal, unless standard error is for errors alone or for programs."""
    return False if args.quiet or args.log_json else None


def _run_rank(job: Job, args: argparse.Namespace) -> int:
    from swjoin.cli.summary import print_summary
    from swjoin.forecast.memory_report import add_plan
    from swjoin.runtime.mpi.main import run_rank

    progress: Wanted = "relay" if getattr(args, "progress", False) else shown_progress(args)
    run_rank(job, progress, args.debug, lambda report: print_summary(report, job, args), complete_report=add_plan)
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
    return _run_rank(Job.from_json(text), args)


def run_run(args: argparse.Namespace) -> int:
    job = None
    if args.config is not None and not args.resume:
        job = job_to_run(find_resource(args.config), args.overrides, typed_command())
    return start_run(args, job)


def start_run(args: argparse.Namespace, given: Job | None) -> int:
    """`run` and `serve`. given: without outputs; None: the run is resumed, or there is none."""
    ranks, hosts = given_ranks(args), hostfile(args)
    if args.resume is not None:
        if args.config is not None or args.overrides or args.out is not None:
            raise UserError("--resume: the run goes on as it was configured, in its own directory; leave everything else out")
        resumed = resumed_job(named(Path(args.resume)))
        resumed = dataclasses.replace(resumed, config=with_role_counts(observed(resumed.config, args.dashboard), args))
        return start_job(resumed, ranks, args, hosts)
    if given is None:
        raise UserError(f"the configuration is missing: swjoin {args.command} CONFIG.yaml, or --resume DIR")
    job = dataclasses.replace(given, config=observed(with_role_counts(given.config, args), args.dashboard))

    def start(out: Path) -> int:
        target = None if job.config.sink.kind == "count" else out / "results"
        return start_job(dataclasses.replace(job, target=target, directory=True, run_dir=out), ranks, args, hosts)

    if args.out is not None:
        return in_folder(Path(args.out), start)
    return in_new_folder(start, as_ranks=ranks is None and launcher_size() > 1)


def observed(config: RunConfig, port: int | None) -> RunConfig:
    """The same run with a dashboard at this port of 127.0.0.1 (0: a free one); None: as configured."""
    if port is None:
        return config
    return dataclasses.replace(config, observe=dataclasses.replace(config.observe, port=port))


def resumed_job(folder: Path) -> Job:
    """The job whose checkpoints lie in DIR/checkpoints, or in DIR. UserError when none does."""
    from swjoin.checkpoint.store import CheckpointStore

    for path in (folder / "checkpoints", folder) if os.path.isdir(folder) else ():
        checkpoints = CheckpointStore(path, {})
        manifest = checkpoints.newest()
        saved = checkpoints.started() if manifest is None else manifest.plain
        if saved is None:
            continue
        try:
            config = config_from_plain(saved["config"])
        except UserError as error:
            raise UserError(f"{path if manifest is None else manifest.path}: {error}") from None
        out = folder if path != folder else Path(saved["run_dir"])
        target = None if config.sink.kind == "count" else out / "results"
        job = Job(config, target, True, out, None, saved["command"], resumes=True).with_plan_of(saved)
        return dataclasses.replace(job, run_id=saved.get("run_id") or job.run_id)
    raise UserError(f"{folder}: holds no checkpoints to resume from")
