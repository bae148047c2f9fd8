"""Generator source: the paper's streams, without files.

What: `GeneratorSource`: the same rows as `generate` writes for the same workload and seed.
Why: the paper generates its streams at the master (section VI-A); a sweep needs no disk.
Stays out: the random rows (`connectors.generator.bmodel`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import payload_bytes, slot_counts, slot_tuples
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import PayloadRows, RowLayout, SourceBatch
from swjoin.core.errors import RunFailed
from swjoin.core.row_codec import StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.core.key_encoder import Dictionary


def payload_schema(width: int) -> pa.Schema:
    """The payload column of generated streams."""
    import pyarrow as pa

    return pa.schema([("payload", pa.binary(width))])


class GeneratorSource:
    """One generated stream; columns key (int64), ts (int64 microseconds from 0), payload (fixed-size binary)."""

    def __init__(self, workload: WorkloadConfig, seed: int, stream: int, *, carry_payload: bool) -> None:
        import pyarrow as pa

        from swjoin.core.row_codec import RowCodec

        rows = RowCodec(payload_schema(workload.payload_bytes)) if carry_payload else None
        columns = [("key", pa.int64(), "key"), ("ts", pa.int64(), "ts")]
        if rows is not None:
            columns += [("payload", pa.binary(workload.payload_bytes), "row")] if workload.payload_bytes else []
        self.codec = StreamCodec(tuple(columns) if rows is not None else (), ("key",), rows)
        self._workload, self._seed, self._stream = workload, seed, stream
        self._counts = slot_counts(workload, seed, stream)
        self.rows_total: int | None = int(self._counts.sum())
        self._slot = 0
        self._rows = 0

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    def read(self) -> SourceBatch | None:
        times, keys, n = [], [], 0
        while self._slot < len(self._counts) and n < BATCH_ROWS:
            ts, key = slot_tuples(self._workload, self._seed, self._stream, self._slot)
            self._slot += 1
            times.append(ts)
            keys.append(key)
            n += len(ts)
        if n == 0:
            return None
        ids = np.arange(self._rows, self._rows + n, dtype=np.uint64)
        self._rows += n
        rows = None
        if self.codec.rows is not None:
            width = self._workload.payload_bytes
            fixed = np.zeros((n, self.codec.rows.layout.fixed_bytes), np.uint8)
            fixed[:, fixed.shape[1] - width :] = payload_bytes(ids, self._seed, self._stream, width)
            rows = PayloadRows(fixed)
        return SourceBatch(np.concatenate(keys), np.concatenate(times), ids, None, None, rows)

    def ready(self, patience_s: float) -> bool:
        return True

    def seek(self, row: int) -> None:
        ends = np.concatenate([[0], np.cumsum(self._counts)])
        slot = int(np.searchsorted(ends, row, side="left"))
        if slot == len(ends) or ends[slot] != row:
            raise RunFailed(f"generator: row {row} is not the first of any slot; another workload was read before")
        self._slot, self._rows = slot, row

    @property
    def dictionary(self) -> Dictionary | None:
        return None

    def locate(self, row_id: int) -> str:
        return f"generator, row {row_id}"

    def close(self) -> None:
        """Nothing is open."""
