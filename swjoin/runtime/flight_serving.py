"""The Arrow Flight endpoints of a run, in one process or on ranks.

What: `open_flight`, a gateway's endpoint; `ServedResults`, a sink's side: its rows on their way to consumers; of the first one
also the log of all sinks' rows, the metrics, and its own endpoint if it has a process of its own.
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
    from swjoin.connectors.flight.result_log import ResultLog
    from swjoin.connectors.flight.result_stream import MetricsLog, ResultWriter, TeeSink
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.flight.sink_rows import SinkRows
    from swjoin.connectors.output_columns import ResultColumns


def open_flight(job: Job, sources: Sequence[Any], names: Sequence[str], gateway: int, first: str) -> FlightIngest | None:
    """The endpoint of a gateway, if it has one. names: of the sources. first: location of the first gateway's. UserError when
    it cannot be opened."""
    config = job.config
    if config.serve.listen is None or (gateway and not config.pushed):
        return None
    from swjoin.connectors.flight.ingest import FlightIngest

    return FlightIngest(config.serve, sources, names, gateway, first)


class ServedResults:
    """sink: wraps a sink of the run; None when results are only counted. log: of the results, of the first sink. number: of the
    sink. endpoint: of the master, in one process."""

    def __init__(
        self,
        job: Job,
        plan: ResultColumns,
        inner: Sink,
        number: int = 0,
        endpoint: Endpoint | None = None,
        first: ServedResults | None = None,
    ) -> None:
        """first: of the first sink, in the same process; without it another sink sends its rows there."""
        from swjoin.connectors.flight.result_stream import MetricsLog, TeeSink

        self._config, self._sinks, self._number = job.config.serve, job.config.sink_count, number
        self._own: Endpoint | None = None
        self._rows_in: SinkRows | None = None
        self.log: ResultLog | None = None if first is None else first.log
        self.metrics: MetricsLog = MetricsLog()
        self.location = ""
        staged = job.checkpoints is not None and job.run_dir is not None
        folder = job.target if job.config.sink.kind == "parquet" and job.directory and staged else None
        if number == 0:
            self._serve(job, plan, endpoint, in_files=folder is not None)
        self._writer = self._open_writer(plan)
        self.sink: TeeSink | None = None if self._writer is None else TeeSink(inner, plan, self._writer, folder)

    def _serve(self, job: Job, plan: ResultColumns, endpoint: Endpoint | None, *, in_files: bool) -> None:
        """Offer results and metrics at the master's endpoint, or at one of this rank's own."""
        from swjoin.connectors.flight.result_stream import open_log, serve_log
        from swjoin.connectors.flight.server import Endpoint
        from swjoin.connectors.flight.sink_rows import SinkRows

        self._own = Endpoint(self._config, 0) if endpoint is None else None
        at = endpoint or self._own
        assert at is not None
        self.location = str(at.location)
        serve_log(at, "metrics", self.metrics.log)
        if job.config.sink.kind != "count":
            run_dir, resumes = job.run_dir if job.checkpoints is not None else None, job.resumes
            log = self.log = open_log(plan, self._config, run_dir, in_files=in_files, resumes=resumes, sinks=self._sinks)
            serve_log(at, "results", log)
            if self._own is not None and self._sinks > 1:
                self._rows_in = SinkRows(self._own, log)
        if self._own is not None:
            self._own.open()

    def _open_writer(self, plan: ResultColumns) -> ResultWriter | None:
        from swjoin.connectors.flight.result_log import SinkWriter
        from swjoin.connectors.flight.sink_rows import RemoteWriter

        if self.log is not None:
            return SinkWriter(self.log, self._number)
        return None if self._number == 0 else RemoteWriter(self._number, plan.schema, self._config)

    def offer(self) -> dict[str, Any]:
        """Where consumers find the results from now on, and what other sinks need to send theirs."""
        return {"results": self.location, "secret": None if self._rows_in is None else self._rows_in.offer()}

    def connect(self, offer: dict[str, Any]) -> None:
        """Send rows to the first sink, which is elsewhere; called once it is restored."""
        from swjoin.connectors.flight.sink_rows import RemoteWriter

        if isinstance(self._writer, RemoteWriter):
            self._writer.connect(offer["results"], offer["secret"])

    def flush(self) -> None:
        """Wait until the log has what this sink has written."""
        if self._writer is not None:
            self._writer.flush()

    def close(self) -> None:
        """The sink is closed: wait for consumers, and end."""
        if self._number == 0 and self.log is not None:
            self.log.drained(self._config.patience_us / 1e6)
        self.metrics.log.close()
        if self._own is not None:
            self._own.close()
