"""Flight streams of results during a run.

What: `TeeSink`, a sink that also appends every row to a `ResultLog`; `MetricsLog`; `serve_log`, which adds a log to an
endpoint.
Why: files and consumers receive the same rows in the same order, and the rows become final at the same moments.
Stays out: the log itself (`connectors.flight.result_log`), the endpoint (`connectors.flight.server`).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from swjoin.connectors.flight.result_log import ConsumerOffset, ResultLog
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.sink import Sink
from swjoin.core.batch import Pairs
from swjoin.core.errors import UserError
from swjoin.core.hashing import digest_pairs
from swjoin.core.metric_columns import metrics_batch, metrics_schema

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import ServeConfig
    from swjoin.connectors.flight.server import Endpoint, FlightStream, Metadata

_PART = re.compile(r"part-(\d+)-\d+\.parquet")
_METRICS_BYTES = 4 << 20


class ResultStreamSink(Protocol):
    """A sink that also accepts output rows. digest: of their ids."""

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None: ...


class TeeSink:
    """inner: the sink that also gets every row. folder: its Parquet files, if it writes any. run_dir: directory of a run with
    checkpoints. resumes: the run is resumed; consumers keep their offsets."""

    def __init__(
        self, inner: Sink, plan: OutputColumns, config: ServeConfig, folder: Path | None, run_dir: Path | None, *, resumes: bool
    ) -> None:
        self._inner, self._plan, self._folder = inner, plan, folder if run_dir is not None else None
        self._rows = cast("ResultStreamSink", inner) if hasattr(inner, "write_rows") else None
        self._patience_s = config.patience_us / 1e6
        eras = None if run_dir is None else run_dir / ".eras"
        in_files = self._folder is not None
        self.log = ResultLog(
            plan.schema, config.result_buffer_bytes, self._patience_s, in_files=in_files, eras=eras, fresh=not resumes
        )

    def write(self, pairs: Pairs, generation: int = 0) -> None:
        batch = self._plan.decode(pairs)
        if self._rows is not None:
            self._rows.write_rows(batch, generation, digest_pairs(pairs.left_id, pairs.right_id))
        if batch.num_rows:
            self.log.write(batch, generation)

    def seal(self, generation: int) -> list[Path]:
        return self._inner.seal(generation)

    def sync(self, files: Sequence[Path]) -> None:
        self._inner.sync(files)

    def name_of(self, file: Path) -> str:
        return self._inner.name_of(file)

    def publish(self, names: Sequence[str], generation: int) -> None:
        self._inner.publish(names, generation)
        self.log.publish(generation, [self._folder / name for name in names] if self._folder else [])

    def restore(self, names: Sequence[str], generation: int) -> None:
        self._inner.restore(names, generation)
        files: dict[int, list[Path]] = {g: [] for g in range(generation)}
        for name in names:
            part = _PART.fullmatch(name)
            if part is not None and self._folder is not None:
                files.setdefault(int(part[1]), []).append(self._folder / name)
        self.log.restore(generation, files)

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing to complete."""

    def close(self, whole: dict[str, Any] | None = None) -> None:
        self._inner.close(whole)
        self._end(None)

    def abort(self, *, started: bool = True) -> None:
        self._inner.abort(started=started)
        self._end(UserError("the run ended before the streams did; what is final has been given"))

    def _end(self, error: BaseException | None) -> None:
        self.log.close(error)
        self.log.drained(self._patience_s)


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
        nothing = pa.record_batch([pa.array([], field.type) for field in log.schema], schema=log.schema)
        yield nothing, {"kind": "began", "place": reader.offset.to_plain()}
        for taken in reader:
            metadata = {"kind": taken.kind, "generation": taken.generation, "place": reader.offset.to_plain()}
            yield (nothing if taken.batch is None else taken.batch), metadata

    return log.schema, batches()


def serve_log(endpoint: Endpoint, name: str, log: ResultLog) -> None:
    """Offer the rows of a log to consumers under this name."""
    endpoint.gets[name] = lambda request, context: stream_log(log, request, context)
    endpoint.schemas[name] = lambda: (log.schema, endpoint.location)
