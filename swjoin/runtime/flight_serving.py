"""The Arrow Flight endpoints of a run, in one process or on ranks.

What: `open_flight`, a gateway's endpoint; `ServedResults`, the collector's side: its sink and metrics, and its own endpoint
if it has a process of its own.
Why: a run without an endpoint must not load Flight.
Stays out: the endpoint and its handlers (`connectors.flight`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from swjoin.config.job import Job
from swjoin.connectors.sink import Sink

if TYPE_CHECKING:
    from swjoin.connectors.flight.ingest import FlightIngest
    from swjoin.connectors.flight.result_stream import MetricsLog, TeeSink
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.output_columns import OutputColumns


def open_flight(job: Job, sources: Sequence[Any], names: Sequence[str], gateway: int, first: str) -> FlightIngest | None:
    """The endpoint of a gateway, if it has one. names: of the sources. first: location of the first gateway's. UserError when
    it cannot be opened."""
    config = job.config
    pushed = config.left.flight is not None or config.right.flight is not None
    if config.serve.listen is None or (gateway and not pushed):
        return None
    from swjoin.connectors.flight.ingest import FlightIngest

    return FlightIngest(config.serve, sources, names, gateway, first)


class ServedResults:
    """sink: wraps the sink of the run; None when results are only counted. endpoint: of the master, in one process."""

    def __init__(self, job: Job, plan: OutputColumns, inner: Sink, endpoint: Endpoint | None) -> None:
        from swjoin.connectors.flight.result_stream import MetricsLog, TeeSink, serve_log
        from swjoin.connectors.flight.server import Endpoint

        config = job.config
        self._own = Endpoint(config.serve, 0) if endpoint is None else None
        at = endpoint or self._own
        assert at is not None
        self.location = str(at.location)
        self.metrics: MetricsLog = MetricsLog()
        self.sink: TeeSink | None = None
        serve_log(at, "metrics", self.metrics.log)
        if config.sink.kind != "count":
            folder = job.target if config.sink.kind == "parquet" and job.directory else None
            run_dir = job.run_dir if job.checkpoints is not None else None
            self.sink = TeeSink(inner, plan, config.serve, folder, run_dir, resumes=job.resumes)
            serve_log(at, "results", self.sink.log)
        if self._own is not None:
            self._own.open()

    def close(self) -> None:
        self.metrics.log.close()
        if self._own is not None:
            self._own.close()
