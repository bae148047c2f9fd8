"""One job: a configuration and where its output goes, and what every runtime needs to open around the roles.

What: `Job` (travels to every rank as JSON), `open_job_sources`, `open_job_sink`, `MetricsFile`, `EventsFile`.
Why: the MPI and the in-process runtime differ in how messages travel, not in what they read and write.
Stays out: the roles, sending, the content of run.json (`runtime.report`).
"""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.cluster.metrics import COLUMNS, INTEGER_COLUMNS
from swjoin.config import RunConfig, to_plain
from swjoin.loading import config_from_plain
from swjoin.messages import RunEvent

if TYPE_CHECKING:
    from swjoin.sinks import Sink
    from swjoin.sinks.plan import OutputPlan
    from swjoin.sources import Source


@dataclass(frozen=True)
class Job:
    """config: the run. target: OUT file of `join`, DIR/results of `run`, None with a count sink. directory: target is a
    directory.
    run_dir: where metrics and run.json go (`run`), or None. report: another copy of run.json, or None. command: as typed.
    """

    config: RunConfig
    target: Path | None
    directory: bool
    run_dir: Path | None
    report: Path | None
    command: str

    def to_json(self) -> str:
        plain: dict[str, Any] = {"config": to_plain(self.config), "directory": self.directory, "command": self.command}
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
        )


def open_job_sources(job: Job) -> tuple[Source, Source]:
    """Both streams of a job: files, or the generator. UserError when one cannot be opened."""
    config = job.config
    carry = config.sink.kind != "count" or config.sink.carry_payload
    if config.left.path is None:
        from swjoin.sources.generator import GeneratorSource

        return (
            GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry),
            GeneratorSource(config.workload, config.seed, RIGHT, carry_payload=carry),
        )
    from swjoin.sources.files import open_sources

    time_is_ts = config.time.model == "event"
    left, right, _ = open_sources(config.left, config.right, carry_payload=carry, time_is_ts=time_is_ts)
    return left, right


def open_job_sink(job: Job, plan: OutputPlan) -> Sink:
    """The sink of a job. UserError when the target cannot be written."""
    from swjoin.sinks import open_sink

    return open_sink(job.config.sink.kind, job.target or Path(), plan, directory=job.directory)


class MetricsFile:
    """DIR/metrics/slaves.parquet: one row per slave and distribution epoch, written in bounded pieces."""

    ROWS = 4096

    def __init__(self, run_dir: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self.path = run_dir / "metrics" / "slaves.parquet"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._temporary = self.path.with_name(".slaves.parquet.tmp")
        self._schema = pa.schema([(n, pa.int64() if n in INTEGER_COLUMNS else pa.float64()) for n in COLUMNS])
        self._writer = pq.ParquetWriter(self._temporary, self._schema)
        self._rows: list[NDArray[np.float64]] = []

    def add(self, rows: list[NDArray[np.float64]]) -> None:
        self._rows += rows
        if len(self._rows) >= self.ROWS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._rows:
            return
        table = np.stack(self._rows)
        columns = [
            pa.array(table[:, i].astype(np.int64) if name in INTEGER_COLUMNS else table[:, i].copy())
            for i, name in enumerate(COLUMNS)
        ]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))
        self._rows = []

    def close(self) -> None:
        self._flush()
        self._writer.close()
        self._temporary.replace(self.path)


class EventsFile:
    """DIR/metrics/events.parquet: one row per `RunEvent`, in the order in which they happened."""

    def __init__(self, run_dir: Path) -> None:
        self.path = run_dir / "metrics" / "events.parquet"
        self._events: list[RunEvent] = []

    def add(self, event: RunEvent) -> None:
        self._events.append(event)

    def close(self) -> None:
        """Write them; decisions are few, so they fit into memory."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        kinds = {"int": pa.int64(), "str": pa.string(), "float": pa.float64()}
        names = dataclasses.fields(RunEvent)
        schema = pa.schema([(f.name, kinds[str(f.type)]) for f in names])
        columns = [pa.array([getattr(e, f.name) for e in self._events], schema.field(f.name).type) for f in names]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        temporary = self.path.with_name(".events.parquet.tmp")
        pq.write_table(pa.table(columns, schema=schema), temporary)
        temporary.replace(self.path)


def late_target(job: Job) -> Path | None:
    """Where late rows go under policy `side`: DIR/late.parquet, or OUT.late.parquet beside a join's output."""
    if job.config.time.late != "side":
        return None
    if job.run_dir is not None:
        return job.run_dir / "late.parquet"
    if job.target is not None:
        return job.target.with_name(job.target.name + ".late.parquet")
    return job.report.with_name(job.report.name + ".late.parquet") if job.report is not None else None


def row_place(sources: tuple[Source, Source], stream: int, row_id: int) -> str:
    """File and row of a row id, for error lines."""
    return f"{STREAM_NAMES[stream]}: {sources[stream].locate(row_id)}"
