"""Base of the live sources.

What: `MergedSource`, a source whose rows come through a `Merge`.
Why: rows are checked where producers offer them, and the master reads without waiting for a producer.
Stays out: schemas (`connectors.schema`), opening both streams (`connectors.open`), producers (`connectors.flight.source`,
`connectors.kafka.source`).
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from swjoin.config.run import StreamConfig
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.producer_merge import Merge
from swjoin.connectors.row_encoder import RowEncoder, StreamColumns
from swjoin.connectors.schema import check_schema
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import I64, Bool, SourceBatch
from swjoin.core.key_encoder import KeyEncoder

if TYPE_CHECKING:
    import pyarrow as pa


class MergedSource(EncodedSource):
    """One live stream, whose rows come through a `Merge`. A subclass fills the lanes and resumes at a position.

    name: of the stream. keys: None for an input of a plan. schema: the columns that are read, in the order of every offered
    batch. shared: several gateways read the stream, each a share of its splits; batches from the merge then end with two
    columns more: numbers of the rows, and merge times.
    """

    def __init__(
        self, name: str, config: StreamConfig, schema: pa.Schema, view: StreamColumns, keys: KeyEncoder | None, merge: Merge
    ) -> None:
        import pyarrow as pa

        super().__init__(f"{name} stream", config, view, keys)
        self.name = name
        self.schema: pa.Schema = pa.schema([schema.field(name) for name in view.columns])
        self.merge = merge
        self.shared = False
        self._checker = RowEncoder(config, view.time, lambda row: f"row {row} of the batch (counting from 0)")
        self._next: pa.RecordBatch | None = None

    # ------------------------------------------------------------ offered, from any thread

    def times_of(self, batch: pa.RecordBatch) -> tuple[I64, Bool | None]:
        """Times of an offered batch, and which rows have one. UserError when a time or an id cannot be used."""
        at = np.arange(batch.num_rows)
        self._checker.ids(batch, at)
        return self._checker.times(batch.column(self.config.time), at)

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are read, of an offered batch. UserError when one is missing or of another type."""
        if batch.schema.names != self.schema.names or batch.schema.types != self.schema.types:
            check_schema(batch.schema, self.schema)
        return batch.select(self.schema.names)

    # ------------------------------------------------------------ read, by the master

    def ready(self, patience_s: float) -> bool:
        if self._fetch():
            return True
        if patience_s > 0:
            self.merge.wait(min(patience_s, self.merge.linger_s or patience_s))
            return self._fetch()
        return False

    def _fetch(self) -> bool:
        if self._next is None:
            self._next = self.next_batch()
        return self._next is not None or self.ended

    @property
    def ended(self) -> bool:
        """Whether no more rows will come."""
        return self.merge.ended

    def next_batch(self) -> pa.RecordBatch | None:
        """The next rows; None when none are ready."""
        return self.merge.take(BATCH_ROWS)

    def read(self) -> SourceBatch | None:
        while not self._fetch():
            self.ready(0.1)
        batch, self._next = self._next, None
        if batch is None:
            self.merge.finish()  # later producers are refused
            return None
        if not self.shared:
            return self.encode(batch)
        numbers, high_us = (np.array(column, np.int64) for column in batch.columns[-2:])  # copies: kernels write arrays
        return replace(self.encode(batch.select(list(range(len(self.schema)))), numbers), high_us=high_us)

    def locate(self, row_id: int) -> str:
        return self.describe_row(row_id)

    def forget(self, row: int) -> None:
        """Nothing is stored."""

    def done(self) -> None:
        """Nothing is stored."""

    def status(self) -> dict[str, float]:
        return {"producers": float(self.merge.lanes), "waiting_rows": float(self.merge.waiting_rows)}

    def close(self) -> None:
        self.merge.close()
