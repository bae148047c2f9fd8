"""The Arrow Flight endpoints of a run, in one process or on ranks.

What: `Ports`; `open_flight`, a gateway's endpoint; `ServedResults`, a sink's side: its rows on their way to consumers; of the
first one also the logs of all sinks' rows, the metrics, and its own endpoint if it has a process of its own.
Why: a run without an endpoint must not load Flight.
Stays out: the endpoint and its handlers (`connectors.flight`).
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from swjoin.config.job import Job
from swjoin.connectors.sink import QuerySinks, RowSink, Sink

if TYPE_CHECKING:
    from swjoin.connectors.flight.ingest import FlightIngest
    from swjoin.connectors.flight.result_log import ResultLog
    from swjoin.connectors.flight.result_stream import MetricsLog, ResultWriter
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.flight.sink_rows import SinkRows
    from swjoin.connectors.output_columns import AnyColumns, ResultColumns


def open_flight(job: Job, sources: Sequence[Any], names: Sequence[str], gateway: int, first: str) -> FlightIngest | None:
    """The endpoint of a gateway, if it has one. names: of the sources. first: location of the first gateway's. UserError when
    it cannot be opened."""
    config = job.config
    if config.serve.listen is None or (gateway and not config.pushed):
        return None
    from swjoin.connectors.flight.ingest import FlightIngest

    serve = config.serve
    if job.flight_port is not None and not gateway:
        host, colon, _ = config.serve.listen.rpartition(":")
        serve = replace(serve, listen=f"{host}{colon}{job.flight_port}")
    return FlightIngest(serve, sources, names, gateway, first)


class Ports(NamedTuple):
    """Of a run's servers that others know, None where there is none."""

    dashboard: int | None = None
    flight: int | None = None


class ServedResults:
    """sink: wraps a sink of the run; None when results are only counted. logs: of the results by stream, of the first sink.
    number: of the sink. endpoint: of the master, in one process."""

    def __init__(
        self,
        job: Job,
        plan: AnyColumns,
        inner: Sink,
        number: int = 0,
        endpoint: Endpoint | None = None,
        first: ServedResults | None = None,
    ) -> None:
        """first: of the first sink, in the same process; without it another sink sends its rows there."""
        from swjoin.connectors.flight.result_stream import MetricsLog, streams_of

        self._config, self._sinks, self._number = job.config.serve, job.config.sink_count, number
        self._own: Endpoint | None = None
        self._rows_in: list[SinkRows] = []
        self.logs: dict[str, ResultLog] = {} if first is None else first.logs
        self.metrics: MetricsLog = MetricsLog()
        self.location = ""
        self._waits = True  # for consumers, at the end
        staged = job.checkpoints is not None and job.run_dir is not None
        folder = job.target if job.config.sink.kind == "parquet" and job.directory and staged else None
        self._in_files = folder is not None
        streams = streams_of(plan)
        if number == 0:
            self._serve(job, streams, endpoint, plan.going_on)
        self._writers = self._open_writers(streams)
        self.sink: Sink | None = self._tee(streams, inner, folder) if self._writers else None

    def _serve(self, job: Job, streams: dict[str, ResultColumns], endpoint: Endpoint | None, going_on: int) -> None:
        """Offer results and metrics at the master's endpoint, or at one of this rank's own. going_on: as of `open_logs`."""
        from swjoin.connectors.flight.result_stream import open_logs, serve_log
        from swjoin.connectors.flight.server import Endpoint
        from swjoin.connectors.flight.sink_rows import SinkRows

        self._own = Endpoint(self._config, 0) if endpoint is None else None
        at = endpoint or self._own
        assert at is not None
        self.location = str(at.location)
        serve_log(at, "metrics", self.metrics.log)
        if job.config.sink.kind != "count":
            run_dir, resumes = job.run_dir if job.checkpoints is not None else None, job.resumes
            self.logs = open_logs(
                streams, self._config, run_dir, in_files=self._in_files, resumes=resumes, sinks=self._sinks, going_on=going_on
            )
            for name, log in self.logs.items():
                serve_log(at, name, log)
                if self._own is not None and self._sinks > 1:
                    self._rows_in.append(SinkRows(self._own, log, name))
        if self._own is not None:
            self._own.open()

    def _open_writers(self, streams: dict[str, ResultColumns]) -> dict[str, ResultWriter]:
        from swjoin.connectors.flight.result_log import SinkWriter
        from swjoin.connectors.flight.sink_rows import AHEAD_BYTES, RemoteWriter

        if self.logs:
            return {name: SinkWriter(log, self._number) for name, log in self.logs.items()}
        remote = streams if self._number else {}
        ahead_bytes = AHEAD_BYTES // max(1, len(remote))
        return {name: RemoteWriter(self._number, plan.schema, self._config, name, ahead_bytes) for name, plan in remote.items()}

    def _tee(self, streams: dict[str, ResultColumns], inner: Sink, folder: Path | None) -> Sink:
        from swjoin.connectors.flight.result_stream import RESULTS, TeeSink, stream_of

        if not isinstance(inner, QuerySinks):
            return TeeSink(inner, streams[RESULTS], self._writers[RESULTS], folder)

        def teed(query: str, sink: RowSink) -> RowSink:
            stream = stream_of(query)
            return TeeSink(sink, streams[stream], self._writers[stream], folder and folder / query)

        return inner.wrapped(teed)

    def offer(self) -> dict[str, Any]:
        """Where consumers find the results from now on, and what other sinks need to send theirs."""
        from swjoin.connectors.flight.sink_rows import new_secret

        secret = new_secret()
        for rows in self._rows_in:
            rows.offer(secret)
        return {"results": self.location, "secret": secret}

    def connect(self, offer: dict[str, Any]) -> None:
        """Send rows to the first sink, which is elsewhere; called once it is restored."""
        from swjoin.connectors.flight.sink_rows import RemoteWriter

        for writer in self._writers.values():
            if isinstance(writer, RemoteWriter):
                writer.connect(offer["results"], offer["secret"])

    def note_added(self, queries: Collection[str]) -> None:
        """After a restore: these have no rows before."""
        from swjoin.connectors.flight.result_stream import stream_of

        for query in queries:
            if (log := self.logs.get(stream_of(query))) is not None and self._number == 0:
                log.note_whole()

    def flush(self) -> None:
        """Wait until the logs have what this sink has written."""
        for writer in self._writers.values():
            writer.flush()

    def pause(self) -> None:
        """The run goes on with other queries: consumers come again. Final rows in files need not be taken before."""
        from swjoin.connectors.flight.server import queries_change

        for log in (*self.logs.values(), self.metrics.log):
            log.close(queries_change())
        self._waits = not self._in_files

    def close(self) -> None:
        """The sink is closed: wait for consumers, and end."""
        from swjoin.connectors.flight.result_log import drain

        if self._number == 0:
            drain(self.logs.values(), self._config.patience_us / 1e6 if self._waits else 0.0)
        self.metrics.log.close()
        if self._own is not None:
            self._own.close()
