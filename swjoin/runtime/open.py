"""Opens the inputs and outputs of a job: sources, sink, spill folder, watcher.

What: `open_job_sources`, `open_job_sink`, `open_spill`, `open_job_watcher`.
Why: all runtimes open them in the same way.
Stays out: the job itself (`config.job`).
"""

from __future__ import annotations

import platform
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES

if TYPE_CHECKING:
    from swjoin.connectors.output_columns import OutputColumns
    from swjoin.connectors.sink import Sink
    from swjoin.connectors.source import Source
    from swjoin.expressions.vm import Program
    from swjoin.monitor.role_watchers import MasterWatcher
    from swjoin.runtime.spill import SpillFolder
from swjoin.config.job import Job


def open_job_sources(job: Job, *, as_stored: bool = False) -> tuple[Source, Source]:
    """Both streams of a job: files, live streams, or the generator. UserError when one cannot be opened. as_stored: rows of
    files come in the order of the files, also where the job sorts them: for samples."""
    config = job.config
    carry = config.sink.kind != "count" or config.sink.carry_payload
    query = config.query
    if config.left.path is None and not config.live:
        from swjoin.connectors.generator.source import GeneratorSource

        wanted = carry and not query.kind.one_sided, query.where is not None
        return (
            GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry or wanted[1]),
            GeneratorSource(config.workload, config.seed, RIGHT, carry_payload=any(wanted)),
        )
    if config.live:
        from swjoin.connectors.open import open_live_sources

        return open_live_sources(config, job.checkpoints)
    from swjoin.connectors.files.source import open_sources

    time_is_ts = config.time.model == "event"
    left, right, _ = open_sources(
        config.left,
        config.right,
        carry_payload=carry,
        time_is_ts=time_is_ts,
        query=query,
        sort=config.time.sort and not as_stored,
    )
    return left, right


def compile_job_where(job: Job, sources: tuple[Source, Source]) -> Program | None:
    """The predicate of a job, over rows as these sources pack them; None where a file without rows leaves the types
    unknown, so that there are no pairs. UserError when its types do not fit."""
    from swjoin.expressions.compiler import compile_text

    if any(getattr(source, "untyped", False) for source in sources):
        return None
    query = job.config.query
    return compile_text(query.where, sources[LEFT].codec, sources[RIGHT].codec, count_windows=query.bounds.count_windows)


def open_job_sink(job: Job, plan: OutputColumns) -> Sink:
    """The sink of a job. UserError when the target cannot be written."""
    from swjoin.connectors.sink import open_sink

    staged = job.checkpoints is not None
    sink, target = job.config.sink, job.target or Path()
    more: dict[str, Any] = {"staged": staged, "resumes": job.resumes, "kafka": sink.kafka, "run_id": job.run_id}
    return open_sink(sink.kind, target, plan, directory=job.directory, **more)


def open_spill(job: Job) -> SpillFolder | None:
    """The folder to which the master spills tuples, or None. UserError when it cannot be written."""
    from swjoin.runtime.spill import SpillFolder

    overload = job.config.on_overload
    if overload.policy != "spill":
        return None
    folder = Path(overload.directory) if overload.directory else job.run_dir or Path(tempfile.gettempdir())
    return SpillFolder(folder, overload.disk_bytes)


def open_job_watcher(job: Job) -> MasterWatcher | None:
    """The watcher of a monitored run, or None; the dashboard's address is printed, and is in a file of the run until its end.

    UserError when the port is taken, or a library is missing.
    """
    from swjoin.core.version import __version__
    from swjoin.monitor.role_watchers import open_watcher
    from swjoin.runtime.preflight import launcher_size

    config = job.config
    if not config.observed:
        return None
    return open_watcher(
        config,
        {
            "command": job.command,
            "version": __version__,
            "pace": config.pace,
            "runtime": "mpi" if launcher_size() > 1 else "in-process",
            "join": config.query.description,
            "host": platform.node(),
            "distribution_epoch_s": config.cluster.distribution_epoch_us / 1e6,
            "policy": config.reorganization.policy,
            "sink": config.sink.kind,
        },
        job.run_dir,
    )


def row_place(sources: tuple[Source, Source], stream: int, row_id: int) -> str:
    """File and row of a row id, for error lines."""
    return f"{STREAM_NAMES[stream]}: {sources[stream].locate(row_id)}"
