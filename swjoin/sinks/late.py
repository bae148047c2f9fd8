"""The side output of late rows (policy `side`): a Parquet file of stream, row id, time and reason.

What: `LateSink`.
Why: a row that is left out of the join stays findable.
Stays out: which rows are late (`cluster.intake`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from swjoin.batch import SourceBatch
from swjoin.errors import UserError


class LateSink:
    """Columns: stream (string), row_id (uint64), ts (int64 microseconds, null for null times), reason (string)."""

    def __init__(self, target: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        self._target = target
        self._temporary = target.with_name(f".{target.name}.tmp")
        self._schema = pa.schema(
            [("stream", pa.string()), ("row_id", pa.uint64()), ("ts", pa.int64()), ("reason", pa.string())]
        )
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, self._schema)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None

    def write(self, stream: str, batch: SourceBatch, reason: str) -> None:
        import pyarrow as pa

        n = len(batch)
        missing = np.zeros(n, bool) if batch.ts_valid is None else ~batch.ts_valid
        columns = [pa.array([stream] * n), pa.array(batch.id), pa.array(batch.ts, mask=missing), pa.array([reason] * n)]
        self._writer.write_batch(pa.record_batch(columns, schema=self._schema))

    def close(self) -> None:
        self._writer.close()
        self._temporary.replace(self._target)

    def abort(self) -> None:
        self._writer.close()
        self._temporary.replace(self._target.with_name(self._target.name + ".incomplete"))
