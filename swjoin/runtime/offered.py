"""What a run offers over Arrow Flight, in whichever process.

What: `open_door`, the master's endpoint; `OfferedResults`, the collector's side: its sink and metrics, and its own endpoint
if it is a process of its own.
Why: a run that serves nobody must not even load Flight.
Stays out: the endpoint and its handlers (`live`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swjoin.runtime.job import Job
from swjoin.sinks import Sink

if TYPE_CHECKING:
    from swjoin.live.door import LiveDoor
    from swjoin.live.endpoint import Endpoint
    from swjoin.live.served import MetricsLog, ServedSink
    from swjoin.sinks.plan import OutputPlan


def open_door(job: Job, sources: tuple[Any, Any]) -> LiveDoor | None:
    """The master's endpoint, if the run has one. UserError when it cannot be opened."""
    if job.config.serve.listen is None:
        return None
    from swjoin.live.door import LiveDoor

    return LiveDoor(job.config.serve, sources)


class OfferedResults:
    """sink: around the run's own, or None when results are only counted. endpoint: of the master, in one process."""

    def __init__(self, job: Job, plan: OutputPlan, inner: Sink, endpoint: Endpoint | None) -> None:
        from swjoin.live.endpoint import Endpoint
        from swjoin.live.served import MetricsLog, ServedSink, serve_log

        config = job.config
        self._own = Endpoint(config.serve, 0) if endpoint is None else None
        at = endpoint or self._own
        assert at is not None
        self.location = str(at.location)
        self.metrics: MetricsLog = MetricsLog()
        self.sink: ServedSink | None = None
        serve_log(at, "metrics", self.metrics.log)
        if config.sink.kind != "count":
            folder = job.target if config.sink.kind == "parquet" and job.directory else None
            run_dir = job.run_dir if job.checkpoints is not None else None
            self.sink = ServedSink(inner, plan, config.serve, folder, run_dir, resumes=job.resumes)
            serve_log(at, "results", self.sink.log)
        if self._own is not None:
            self._own.open()

    def close(self) -> None:
        self.metrics.log.close()
        if self._own is not None:
            self._own.close()
