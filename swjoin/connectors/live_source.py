"""Live streams: what all of them share.

What: `MergedSource`, a source whose rows come through a `Merge`.
Why: a stream that comes from outside is checked before anything runs, and read without ever holding up the master.
Stays out: schemas (`connectors.schema`), opening both streams (`connectors.open`), where the rows come from
(`connectors.flight.source`, `connectors.kafka.source`, `connectors.directory.source`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swjoin.config.run import StreamConfig
from swjoin.connectors.producer_merge import Merge
from swjoin.connectors.row_encoder import StreamColumns, TupleEncoder
from swjoin.core.batch import I64, STREAM_NAMES, Bool, RowLayout, SourceBatch
from swjoin.core.key_encoder import Dictionary, KeyEncoder
from swjoin.core.row_codec import StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa

from swjoin.connectors.schema import BATCH_ROWS, check_schema


class MergedSource:
    """One live stream, whose rows come through a `Merge`. A subclass fills the lanes, and knows how to go back.

    schema: of the columns that are read, in their order in every batch that is offered.
    """

    rows_total: int | None = None

    def __init__(
        self, stream: int, config: StreamConfig, schema: pa.Schema, view: StreamColumns, keys: KeyEncoder, merge: Merge
    ) -> None:
        import pyarrow as pa

        self.stream = stream
        self.config = config
        self.codec: StreamCodec = view.codec
        self.schema: pa.Schema = pa.schema([schema.field(name) for name in view.columns])
        self.merge = merge
        self.rows = 0  # read so far
        self._keys = keys
        self._tuples = TupleEncoder(config, view, keys, self._place)
        self._judge = TupleEncoder(config, view, keys, lambda row: f"row {row} of the batch (counting from 0)")
        self._next: pa.RecordBatch | None = None

    # ------------------------------------------------------------ offered, from any thread

    def times_of(self, batch: pa.RecordBatch) -> tuple[I64, Bool | None]:
        """Times of a batch as it is offered, and which rows have one. UserError when a time or an id cannot be used."""
        self._judge.ids(batch, 0)
        return self._judge.times(batch.column(self.config.time), 0)

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are read, of a batch that may have more. UserError when one is missing or of another type."""
        if batch.schema.names != self.schema.names or batch.schema.types != self.schema.types:
            check_schema(batch.schema, self.schema)
        return batch.select(self.schema.names)

    # ------------------------------------------------------------ read, by the master

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    @property
    def dictionary(self) -> Dictionary | None:
        return None if self._keys.native else self._keys.dictionary

    def ready(self, patience_s: float) -> bool:
        if self._look():
            return True
        if patience_s > 0:
            self.merge.wait(min(patience_s, self.merge.linger_s or patience_s))
            return self._look()
        return False

    def _look(self) -> bool:
        if self._next is None:
            self._next = self.next_batch()
        return self._next is not None or self.ended

    @property
    def ended(self) -> bool:
        """No row will come any more."""
        return self.merge.ended

    def next_batch(self) -> pa.RecordBatch | None:
        """The next rows, if there are any now."""
        return self.merge.take(BATCH_ROWS)

    def read(self) -> SourceBatch | None:
        while not self._look():
            self.ready(0.1)
        batch, self._next = self._next, None
        if batch is None:
            self.merge.finish()  # whoever comes now is told so
            return None
        first, self.rows = self.rows, self.rows + batch.num_rows
        return self._tuples.of(batch, first)

    def locate(self, row_id: int) -> str:
        return self._place(row_id)

    def _place(self, position: int) -> str:
        return f"{STREAM_NAMES[self.stream]} stream, row {position} (counting from 0)"

    def forget(self, row: int) -> None:
        """Nothing is kept."""

    def done(self) -> None:
        """Nothing is kept."""

    def status(self) -> dict[str, float]:
        return {"producers": float(self.merge.lanes), "waiting_rows": float(self.merge.waiting_rows)}

    def close(self) -> None:
        self.merge.close()
