"""Flight streams of results during a run.

What: `TeeSink`, a sink that also passes every row on to a `ResultLog`; `stream_of`, `streams_of`, `open_logs`; `MetricsLog`;
`serve_log`, which adds a log to an endpoint.
Why: files and consumers receive the same rows in the same order, and the rows become final at the same moments.
Stays out: the log itself (`connectors.flight.result_log`), the endpoint (`connectors.flight.server`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from swjoin.connectors.flight.result_log import ConsumerOffset, Eras, Part, ResultLog
from swjoin.connectors.output_columns import AnyColumns, QueryColumns, ResultColumns
from swjoin.connectors.sink import Sink
from swjoin.core.arrow_views import without_surplus
from swjoin.core.batch import Pairs, ResultRows
from swjoin.core.errors import UserError
from swjoin.core.hashing import digest_results
from swjoin.core.metric_columns import metrics_batch, metrics_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import ServeConfig
    from swjoin.connectors.flight.server import Endpoint, FlightStream, Metadata

_PART = re.compile(r"part-(?:s(?P<sink>\d+)-)?(?P<generation>\d+)-\d+\.parquet")
_METRICS_BYTES = 4 << 20


class ResultStreamSink(Protocol):
    """A sink that also accepts output rows. digest: of their ids."""

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None: ...


class ResultWriter(Protocol):
    """The way of one sink's rows to the log, in this process or another one."""

    def write(self, batch: pa.RecordBatch, generation: int) -> None: ...

    def publish(self, generation: int, files: Sequence[Path]) -> None: ...

    def restore(self, generation: int, files: Mapping[Part, Sequence[Path]]) -> None: ...

    def flush(self) -> None:
        """Wait until the log has everything, unless it is out of reach."""
        ...

    def close(self, error: BaseException | None = None) -> None: ...


RESULTS = "results"  # the stream of a run's rows


def open_logs(
    streams: Mapping[str, ResultColumns],
    config: ServeConfig,
    run_dir: Path | None,
    *,
    in_files: bool,
    resumes: bool,
    sinks: int,
    going_on: int,
) -> dict[str, ResultLog]:
    """The logs of results, by stream (`streams_of`). run_dir: directory of a run with checkpoints. in_files: it keeps final
    rows in Parquet files. resumes: the run is resumed; consumers keep their offsets. going_on: queries that have not been
    dropped, which share the memory for rows."""
    eras = Eras(None if run_dir is None else run_dir / ".eras", fresh=not resumes)
    limit_bytes, patience_s = config.result_buffer_bytes // max(1, going_on), config.patience_us / 1e6
    return {
        name: ResultLog(
            plan.schema,
            limit_bytes,
            patience_s,
            in_files=in_files,
            eras=eras,
            sinks=sinks,
            query=name.removeprefix(RESULTS),
        )
        for name, plan in streams.items()
    }


def stream_of(query: str) -> str:
    """Of the rows of a query with a name."""
    return f"{RESULTS}/{query}"


def streams_of(plan: AnyColumns) -> dict[str, ResultColumns]:
    """Columns by stream: that of results, or one for each of the queries with names."""
    if isinstance(plan, QueryColumns):
        return {stream_of(name): columns for name, columns in plan.queries}
    return {RESULTS: plan}


class TeeSink:
    """inner: the sink that also gets every row. results: the way to the log. folder: final rows lie in Parquet files there;
    None: they do not."""

    def __init__(self, inner: Sink, plan: ResultColumns, results: ResultWriter, folder: Path | None) -> None:
        self._inner, self._plan, self._results, self._folder = inner, plan, results, folder
        self._rows = cast("ResultStreamSink", inner) if hasattr(inner, "write_rows") else None

    def write(self, pairs: Pairs | ResultRows, generation: int = 0) -> None:
        batch = self._plan.decode(pairs)
        if self._rows is not None:
            self._rows.write_rows(batch, generation, digest_results(pairs))
        if batch.num_rows:
            self._results.write(batch, generation)

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None:
        """Decoded rows, of a query that shares them with others."""
        assert self._rows is not None, "a sink that takes no rows"
        self._rows.write_rows(rows, generation, digest)
        if rows.num_rows:
            self._results.write(without_surplus(rows), generation)

    def seal(self, generation: int) -> list[Path]:
        self._results.flush()  # rows that a checkpoint holds may be in the log alone
        return self._inner.seal(generation)

    def sync(self, files: Sequence[Path]) -> None:
        self._inner.sync(files)

    def name_of(self, file: Path) -> str:
        return self._inner.name_of(file)

    def publish(self, names: Sequence[str], generation: int) -> None:
        self._inner.publish(names, generation)
        self._results.publish(generation, [self._folder / name for name in names] if self._folder else [])

    def restore(self, names: Sequence[str], generation: int) -> None:
        self._inner.restore(names, generation)
        files: dict[Part, list[Path]] = {}
        for name in names:
            part = _PART.fullmatch(name)
            if part is not None and self._folder is not None:
                files.setdefault((int(part["generation"]), int(part["sink"] or 0)), []).append(self._folder / name)
        self._results.restore(generation, files)

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        self._inner.finish(whole)

    def close(self, whole: dict[str, Any] | None = None) -> None:
        self._inner.close(whole)
        self._results.close()

    def abort(self, *, started: bool = True) -> None:
        self._inner.abort(started=started)
        self._results.close(UserError("the run ended before the streams did; what is final has been given"))


class MetricsLog:
    """Log of metrics: one row per slave and distribution epoch. The oldest rows are dropped."""

    def __init__(self) -> None:
        self.schema = metrics_schema()
        self.log = ResultLog(self.schema, _METRICS_BYTES, 0.0, lossy=True)

    def add(self, rows: list[tuple[int, NDArray[np.float64]]]) -> None:
        if rows:
            self.log.write(metrics_batch(np.stack([row for _, row in rows])))


def stream_log(log: ResultLog, request: Metadata, context: Any) -> FlightStream:
    """Rows of a log as a request selects them: `from` (start, now, or an offset) and `final`."""
    final = request.get("final", False)
    if not isinstance(final, bool):
        raise UserError("final: write true or false")
    start = request.get("from", "now")
    offset = None if start == "now" else ConsumerOffset() if start == "start" else ConsumerOffset.from_plain(start)

    def batches() -> Iterator[tuple[pa.RecordBatch, Metadata]]:
        import pyarrow as pa

        reader = log.open(offset, final=final, given_up=context.is_cancelled)
        nothing = pa.record_batch([pa.nulls(0, field.type) for field in log.schema], schema=log.schema)
        yield nothing, {"kind": "began", "place": reader.offset.to_plain()}
        for taken in reader:
            metadata = {"kind": taken.kind, "generation": taken.generation, "place": reader.offset.to_plain()}
            yield (nothing if taken.batch is None else taken.batch), metadata

    return log.schema, batches()


def serve_log(endpoint: Endpoint, name: str, log: ResultLog) -> None:
    """Offer the rows of a log to consumers under this name."""
    endpoint.gets[name] = lambda request, context: stream_log(log, request, context)
    endpoint.schemas[name] = lambda: (log.schema, endpoint.location)
