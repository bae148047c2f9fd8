"""One job: a configuration and where its output goes, and what every runtime needs to open around the roles.

What: `Job` (travels to every rank as JSON), `open_job_sources`, `open_job_sink`, `MetricsFile`, `EventsFile`.
Why: the MPI and the in-process runtime differ in how messages travel, not in what they read and write.
Stays out: the roles, sending, the content of run.json (`runtime.report`).
"""

from __future__ import annotations

import dataclasses
import json
import platform
import secrets
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.cluster.metrics import COLUMNS, INTEGER_COLUMNS
from swjoin.config import RunConfig, to_plain
from swjoin.deliveries import RunEvent
from swjoin.errors import RunFailed
from swjoin.loading import config_from_plain
from swjoin.storage import AppendedFile, check_name, replacing, writing

if TYPE_CHECKING:
    from swjoin.observe.watchers import MasterWatcher
    from swjoin.runtime.spill import SpillFolder
    from swjoin.sinks import Sink
    from swjoin.sinks.plan import OutputPlan
    from swjoin.sources import Source
    from swjoin.state.predicate import Program

RUN_FILES = ("run.json", "metrics/slaves.parquet", "metrics/events.parquet")  # that every run leaves in its directory
METRICS_ROW_BYTES = 8 * len(COLUMNS)


@dataclass(frozen=True)
class Job:
    """config: the run. target: OUT file of `join`, DIR/results of `run`, None with a count sink. directory: target is a
    directory.
    run_dir: where metrics and run.json go (`run`), or None. report: another copy of run.json, or None. command: as typed.
    resumes: go on from the newest checkpoint. run_id: random, in run.json and in every result file; a run that is resumed
    keeps it.
    """

    config: RunConfig
    target: Path | None
    directory: bool
    run_dir: Path | None
    report: Path | None
    command: str
    resumes: bool = False
    run_id: str = field(default_factory=lambda: secrets.token_hex(8))

    def __post_init__(self) -> None:
        for path in (self.target, self.run_dir):
            if path is not None:
                check_name(path)

    @property
    def checkpoints(self) -> Path | None:
        """Folder of the run's checkpoints; None when it makes none."""
        checkpoint = self.config.checkpoint
        if not checkpoint.enabled or self.run_dir is None:
            return None
        return self.run_dir / "checkpoints" if checkpoint.directory is None else Path(checkpoint.directory)

    @property
    def resume_command(self) -> str:
        """What a user types to go on from the newest checkpoint."""
        place = self.run_dir if self.config.checkpoint.directory is None else self.config.checkpoint.directory
        return f"swjoin run --resume {place}"

    def go_on(self, ranks: int | None = None) -> str:
        """What a user does after a run has ended early."""
        if self.checkpoints is None or not any(self.checkpoints.glob("checkpoint-*.json")):
            return "start it again"
        return f"go on with: {self.resume_command}{'' if ranks is None else f' -n {ranks}'}"

    def to_json(self) -> str:
        plain: dict[str, Any] = {"config": to_plain(self.config), "directory": self.directory, "command": self.command}
        plain |= {"resumes": self.resumes, "run_id": self.run_id}
        for name in ("target", "run_dir", "report"):
            value = getattr(self, name)
            plain[name] = None if value is None else str(value)
        return json.dumps(plain)

    @staticmethod
    def from_json(text: str) -> Job:
        plain = json.loads(text)
        paths = {n: None if plain[n] is None else Path(plain[n]) for n in ("target", "run_dir", "report")}
        return Job(
            config_from_plain(plain["config"]),
            paths["target"],
            plain["directory"],
            paths["run_dir"],
            paths["report"],
            plain["command"],
            plain["resumes"],
            plain["run_id"],
        )


def open_job_sources(job: Job) -> tuple[Source, Source]:
    """Both streams of a job: files, live streams, or the generator. UserError when one cannot be opened."""
    config = job.config
    carry = config.sink.kind != "count" or config.sink.carry_payload
    query = config.query
    if config.left.path is None and not config.live:
        from swjoin.sources.generator import GeneratorSource

        wanted = carry and not query.kind.one_sided, query.where is not None
        return (
            GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry or wanted[1]),
            GeneratorSource(config.workload, config.seed, RIGHT, carry_payload=any(wanted)),
        )
    if config.live:
        from swjoin.sources.live import open_live_sources

        return open_live_sources(config, job.checkpoints)
    from swjoin.sources.files import open_sources

    time_is_ts = config.time.model == "event"
    left, right, _ = open_sources(config.left, config.right, carry_payload=carry, time_is_ts=time_is_ts, query=query)
    return left, right


def compile_job_where(job: Job, sources: tuple[Source, Source]) -> Program | None:
    """The predicate of a job, over rows as these sources pack them; none where a file without rows does not tell the types, and
    there will be no pairs. UserError when its types do not fit."""
    from swjoin.sources.predicate import compile_query

    if any(getattr(source, "untyped", False) for source in sources):
        return None
    return compile_query(job.config.query, sources[LEFT].codec, sources[RIGHT].codec)


def open_job_sink(job: Job, plan: OutputPlan) -> Sink:
    """The sink of a job. UserError when the target cannot be written."""
    from swjoin.sinks import open_sink

    staged = job.checkpoints is not None
    sink, target = job.config.sink, job.target or Path()
    more: dict[str, Any] = {"staged": staged, "resumes": job.resumes, "kafka": sink.kafka, "run_id": job.run_id}
    return open_sink(sink.kind, target, plan, directory=job.directory, **more)


class MetricsFile:
    """DIR/metrics/slaves.parquet: one row per slave and distribution epoch, written at the end.

    rows: where they are kept until then (a temporary file without one); those of a generation are kept once it is cut.
    """

    ROWS = 4096

    def __init__(self, run_dir: Path, rows: AppendedFile | None = None) -> None:
        """RunFailed when rows that are there already hold what a table cannot."""
        if rows is not None:
            there = np.frombuffer(rows.read(), np.float64).reshape(-1, len(COLUMNS))
            integers = there[:, [name in INTEGER_COLUMNS for name in COLUMNS]]
            if not (np.abs(integers) < 2.0**63).all():
                raise RunFailed(f"{rows.path}: corrupt: a metric that must be an integer is not finite, or too large")
        self.path = run_dir / "metrics" / "slaves.parquet"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._kept = rows is not None
        self.rows = AppendedFile(self.path.with_name(".slaves.rows")) if rows is None else rows
        self._waiting: list[tuple[int, NDArray[np.float64]]] = []

    def add(self, rows: list[tuple[int, NDArray[np.float64]]]) -> None:
        """Rows with their generations."""
        self._waiting += rows
        if not self._kept:
            self.cut(self._waiting[-1][0] if self._waiting else 0)

    def cut(self, generation: int) -> None:
        """Keep the rows up to this generation."""
        self.rows.append(b"".join(row.tobytes() for g, row in self._waiting if g <= generation))
        self._waiting = [(g, row) for g, row in self._waiting if g > generation]

    def close(self) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.rows.append(b"".join(row.tobytes() for _, row in self._waiting))
        schema = pa.schema([(n, pa.int64() if n in INTEGER_COLUMNS else pa.float64()) for n in COLUMNS])
        everything = np.frombuffer(self.rows.read(), np.float64).reshape(-1, len(COLUMNS))
        with replacing(self.path) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for at in range(0, len(everything), self.ROWS):
                table = everything[at : at + self.ROWS]
                columns = [
                    pa.array(table[:, i].astype(np.int64) if name in INTEGER_COLUMNS else table[:, i].copy())
                    for i, name in enumerate(COLUMNS)
                ]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        self.rows.close()
        if not self._kept:
            self.rows.path.unlink()

    def abort(self) -> None:
        """Of a run that can be resumed the rows stay where they are kept."""
        if self._kept:
            self.rows.close()
        else:
            self.close()


def events_lines(run_dir: Path) -> Path:
    """The hidden file of a run's events. It is there from the start of a run to its end, also of one that was killed."""
    return run_dir / "metrics" / ".events.jsonl"


class EventsFile:
    """DIR/metrics/events.parquet: one row per `RunEvent`, in the order in which they happened.

    Until the end they are lines of JSON in a hidden file beside it: nothing grows in memory, and what a process has noted
    before it was killed is there when the run is resumed.
    """

    def __init__(self, run_dir: Path, *, resumes: bool = False) -> None:
        """resumes: those that are there come first."""
        self.path = run_dir / "metrics" / "events.parquet"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._lines = events_lines(run_dir)
        self._file = self._lines.open("a" if resumes else "w")
        if resumes:
            self._file.write("\n")  # the last line may be half of one

    def add(self, event: RunEvent) -> None:
        with writing(self.path):
            self._file.write(json.dumps(dataclasses.asdict(event)) + "\n")
            self._file.flush()

    def close(self, *, resumable: bool = False) -> None:
        """Write the table. resumable: more may follow."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        with writing(self.path):
            self._file.close()
        rows = [row for line in self._lines.read_text().splitlines() if (row := _whole_event(line)) is not None]
        kinds = {"int": pa.int64(), "str": pa.string(), "float": pa.float64()}
        schema = pa.schema([(f.name, kinds[str(f.type)]) for f in dataclasses.fields(RunEvent)])
        with replacing(self.path) as temporary:
            pq.write_table(pa.Table.from_pylist(rows, schema=schema), temporary)
        if not resumable:
            self._lines.unlink()


def _whole_event(line: str) -> dict[str, Any] | None:
    """None for a line that a process was writing when it was killed."""
    try:
        row = json.loads(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


def sets_aside(config: RunConfig) -> bool:
    """Rows that are left out are written to a file: late ones under policy `side`, shed ones always."""
    return config.time.late == "side" or config.on_overload.policy == "shed"


def open_spill(job: Job) -> SpillFolder | None:
    """Where the master spills tuples to, if it does. UserError when nothing can be written there."""
    from swjoin.runtime.spill import SpillFolder

    overload = job.config.on_overload
    if overload.policy != "spill":
        return None
    folder = Path(overload.directory) if overload.directory else job.run_dir or Path(tempfile.gettempdir())
    return SpillFolder(folder, overload.disk_bytes)


def open_job_watcher(job: Job) -> MasterWatcher | None:
    """Where the run can be looked at, if it can; the address is printed, and lies in the run's directory until the end.

    UserError when the port is taken, or a library is missing.
    """
    from swjoin import __version__
    from swjoin.observe.watchers import open_watcher
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
            "join": config.query.told,
            "host": platform.node(),
            "distribution_epoch_s": config.cluster.distribution_epoch_us / 1e6,
            "policy": config.reorganization.policy,
            "sink": config.sink.kind,
        },
        job.run_dir,
    )


def late_target(job: Job) -> Path | None:
    """Where rows that are left out go: DIR/late.parquet, or OUT.late.parquet beside a join's output."""
    if not sets_aside(job.config):
        return None
    if job.run_dir is not None:
        return job.run_dir / "late.parquet"
    if job.target is not None:
        return job.target.with_name(job.target.name + ".late.parquet")
    return job.report.with_name(job.report.name + ".late.parquet") if job.report is not None else None


def row_place(sources: tuple[Source, Source], stream: int, row_id: int) -> str:
    """File and row of a row id, for error lines."""
    return f"{STREAM_NAMES[stream]}: {sources[stream].locate(row_id)}"
