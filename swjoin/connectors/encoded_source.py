"""Base of the sources whose rows are Arrow batches.

What: `EncodedSource`: encodes batches as tuples or as columns, numbers rows, describes rows in error messages.
Why: files, directories and live streams give the same tuples for the same columns.
Stays out: the encoding itself (`connectors.row_encoder`), where batches come from (the subclasses).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from swjoin.config.run import StreamConfig
from swjoin.connectors.row_encoder import ColumnsEncoder, RowEncoder, StreamColumns, TupleEncoder
from swjoin.core.batch import I64, RowLayout, SourceBatch
from swjoin.core.key_encoder import Dictionary, KeyEncoder
from swjoin.core.row_codec import StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa


class EncodedSource:
    """where: the stream as error messages name it. rows: position of the next row, the number of rows read unless they are read
    in splits."""

    rows_total: int | None = None

    def __init__(self, where: str, config: StreamConfig, view: StreamColumns, keys: KeyEncoder | None) -> None:
        """keys: None for an input of a plan, whose rows have columns instead of keys and payload rows."""
        self.where = where
        self.config = config
        self.time = view.time
        self.codec: StreamCodec = view.codec
        self.rows = 0
        self._keys = keys
        self._encoder: RowEncoder = (
            ColumnsEncoder(config, view, self.describe_row)
            if keys is None
            else TupleEncoder(config, view, keys, self.describe_row)
        )

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    @property
    def dictionary(self) -> Dictionary | None:
        keys = self._keys
        return None if keys is None or keys.native or not keys.shared else keys.dictionary

    @property
    def known_keys(self) -> Dictionary | None:
        """The codes that keys had before they travelled."""
        return None if self._keys is None else self._keys.known

    def let_keys_travel(self, known: Dictionary | None) -> None:
        """Before anything is read: keys that are no integers are encoded for slaves with dictionaries of their own. known: the
        codes that they have had."""
        if self._keys is not None:
            self._keys.shared, self._keys.known = False, known

    def encode(self, batch: pa.RecordBatch, positions: I64 | None = None) -> SourceBatch:
        """The next rows. positions: of these rows, where they are not read in their own order. UserError when a time
        or an id cannot be used."""
        first, self.rows = self.rows, self.rows + batch.num_rows
        return self._encoder.of(batch, first if positions is None else positions)

    def locate(self, row_id: int) -> str:
        return f"{self.where}: row with id {row_id}" if self.config.id is not None else self.describe_row(row_id)

    def describe_row(self, row: int) -> str:
        """The row at this position, for error messages."""
        return f"{self.where}, row {row} (counting from 0)"
