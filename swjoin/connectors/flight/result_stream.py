"""Results that consumers take over Flight while the run goes on.

What: `TeeSink`, a sink around another one that also puts every row into a `ResultLog`; `serve_log`, its side of an
endpoint.
Why: what goes into files and what consumers get are the same rows in the same order, with the same moments at which they are
final.
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
from swjoin.core.metric_columns import COLUMNS, INTEGER_COLUMNS

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import ServeConfig
    from swjoin.connectors.flight.server import Endpoint, FlightStream, Metadata

_PART = re.compile(r"part-(\d+)-\d+\.parquet")
_METRICS_BYTES = 4 << 20


class ResultStreamSink(Protocol):
    """A sink that takes output rows as well as pairs. digest: of their ids."""

    def write_rows(self, rows: pa.RecordBatch, generation: int, digest: int = 0) -> None: ...


class TeeSink:
    """inner: where rows go besides. folder: of Parquet files, if that is where. run_dir: of a run that makes checkpoints.
    resumes: the run goes on, and is the same to its consumers."""

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

    def close(self, whole: dict[str, Any] | None = None) -> None:
        self._inner.close(whole)
        self._end(None)

    def abort(self, *, begun: bool = True) -> None:
        self._inner.abort(begun=begun)
        self._end(UserError("the run ended before the streams did; what is final has been given"))

    def _end(self, error: BaseException | None) -> None:
        self.log.close(error)
        self.log.drained(self._patience_s)


class MetricsLog:
    """Rows of metrics as slaves report them: one per slave and distribution epoch. The oldest are forgotten."""

    def __init__(self) -> None:
        import pyarrow as pa

        self.schema = pa.schema([(n, pa.int64() if n in INTEGER_COLUMNS else pa.float64()) for n in COLUMNS])
        self.log = ResultLog(self.schema, _METRICS_BYTES, 0.0, lossy=True)

    def add(self, rows: list[tuple[int, NDArray[np.float64]]]) -> None:
        import pyarrow as pa

        if not rows:
            return
        table = np.stack([row for _, row in rows])
        columns = [
            pa.array(table[:, i].astype(np.int64) if name in INTEGER_COLUMNS else table[:, i].copy())
            for i, name in enumerate(COLUMNS)
        ]
        self.log.write(pa.record_batch(columns, schema=self.schema))


def give(log: ResultLog, request: Metadata, context: Any) -> FlightStream:
    """Rows of a log as a call asks for them: from (start, now, or a place), final."""
    final = request.get("final", False)
    if not isinstance(final, bool):
        raise UserError("final: write true or false")
    start = request.get("from", "now")
    place = None if start == "now" else ConsumerOffset() if start == "start" else ConsumerOffset.from_plain(start)

    def batches() -> Iterator[tuple[pa.RecordBatch, Metadata]]:
        import pyarrow as pa

        reader = log.open(place, final=final, given_up=context.is_cancelled)
        nothing = pa.record_batch([pa.array([], field.type) for field in log.schema], schema=log.schema)
        yield nothing, {"kind": "began", "place": reader.place.to_plain()}
        for taken in reader:
            told = {"kind": taken.kind, "generation": taken.generation, "place": reader.place.to_plain()}
            yield (nothing if taken.batch is None else taken.batch), told

    return log.schema, batches()


def serve_log(endpoint: Endpoint, name: str, log: ResultLog) -> None:
    """Let consumers take the rows of a log under this name."""
    endpoint.gets[name] = lambda request, context: give(log, request, context)
    endpoint.schemas[name] = lambda: (log.schema, endpoint.location)
