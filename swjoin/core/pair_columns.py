"""Columns of joined pairs, from both sides' packed rows, keys and times.

What: `PairColumn`, `PairColumns.arrays(pairs)`; `as_type`, `rebuilt`, `unpacked`.
Why: sinks and the exchanges between stages give the same columns for the same pairs.
Stays out: names and order of the columns of results (`connectors.output_columns`) and of stages (`plan.columns`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from swjoin.core.arrow_views import array_of, booleans_of, decoded
from swjoin.core.batch import I64, LEFT, RIGHT, Pairs, PayloadRows
from swjoin.core.columns import Columns
from swjoin.core.row_codec import RowCodec, StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa


class PairColumn(NamedTuple):
    """A column of the rows that come out of a join. side, origin, source: the input, how its codec gets the column back, and
    its name there. A key's column has the right key where a right row comes out alone."""

    name: str
    type: Any
    side: int
    origin: str
    source: str


@dataclass(frozen=True)
class PairColumns:
    """left, right: codecs of both sides' rows."""

    left: StreamCodec
    right: StreamCodec
    columns: tuple[PairColumn, ...]

    def of(self, pairs: Pairs) -> Columns | None:
        """These columns by name; None if there are none."""
        import pyarrow as pa

        names = [column.name for column in self.columns]
        return Columns(pa.RecordBatch.from_arrays(self.arrays(pairs), names)) if names else None

    def arrays(self, pairs: Pairs) -> list[pa.Array]:
        """The columns of these pairs. A missing side is null."""
        import pyarrow as pa

        rows = [unpacked(self.left.rows, pairs.left_rows), unpacked(self.right.rows, pairs.right_rows)]
        times = (pairs.left_ts, pairs.right_ts)
        arrays: list[pa.Array] = []
        for _, kind, side, origin, name in self.columns:
            is_key = side == LEFT and name in self.left.key
            if is_key and pairs.side == RIGHT:
                side, name = RIGHT, self.right.key[self.left.key.index(name)]
            if pairs.side == 1 - side or (origin == "key" and pairs.null_keys):
                arrays.append(pa.nulls(len(pairs), kind))
            elif origin == "row":
                array = rows[side][name]
                arrays.append(array if array.type == kind else as_type(array, kind))
            else:
                arrays.append(rebuilt(pairs.key if origin == "key" else times[side], kind))
        return arrays


def unpacked(codec: RowCodec | None, rows: PayloadRows | None) -> dict[str, pa.Array]:
    """The columns of packed rows by name; none without rows."""
    if codec is None or rows is None:
        return {}
    return dict(zip(codec.schema.names, codec.decode(rows), strict=True))


def as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A cast. Arrow has none to dictionaries of other types than strings, and none from dictionaries of views."""
    import pyarrow as pa

    plain = decoded(array)
    if not pa.types.is_dictionary(kind):
        return plain.cast(kind)
    try:
        encoded = plain.dictionary_encode()
        indices, values = encoded.indices, encoded.dictionary
    except pa.ArrowNotImplementedError:  # Arrow cannot hash the type: every row has its own value
        indices, values = array_of(np.arange(len(plain)), ~booleans_of(plain.is_valid())), plain
    return pa.DictionaryArray.from_arrays(indices.cast(kind.index_type), as_type(values, kind.value_type), ordered=kind.ordered)


def rebuilt(values: I64, kind: pa.DataType) -> pa.Array:
    """A key or time column from int64 values."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return as_type(rebuilt(values, kind.value_type), kind)
    if pa.types.is_uint64(kind):
        return array_of(values.view(np.uint64))
    if pa.types.is_boolean(kind):
        return array_of(values != 0)
    if pa.types.is_temporal(kind):
        return array_of(values).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return array_of(values).cast(kind)
