"""What a result row looks like.

What: `OutputPlan`, output columns from both streams' codecs, and `decode(pairs) -> RecordBatch`.
Why: the collector may be another process than the master that read the schemas: a plan travels as bytes, without pickle.
Stays out: files (`sinks.files`).

Columns: the key once, named as on the left, then every other column of both sides, prefixed `left_` / `right_` where names
clash; with ids also left_id, right_id (uint64) and left_ts, right_ts (int64 microseconds).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.batch import I64, Pairs, PayloadRows
from swjoin.config import SinkConfig
from swjoin.errors import UserError
from swjoin.sources.codec import RowCodec, StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.sources import Source

_ID_COLUMNS = ("left_id", "right_id", "left_ts", "right_ts")


@dataclass(frozen=True)
class OutputPlan:
    """left, right: codecs of both streams. ids: whether the four id and time columns come first."""

    left: StreamCodec
    right: StreamCodec
    ids: bool

    @staticmethod
    def build(left: Source, right: Source, config: SinkConfig) -> OutputPlan:
        return OutputPlan(left.codec, right.codec, config.ids)

    # ------------------------------------------------------------ columns

    def _columns(self) -> list[tuple[str, Any, int, str, str]]:
        """(output name, type, side, origin, input name) of every column from the streams."""
        left_names = [name for name, _, _ in self.left.columns]
        right_names = [name for name, _, _ in self.right.columns if name not in self.right.key]
        reserved = set(_ID_COLUMNS) if self.ids else set()
        taken: set[str] = set(reserved)
        out: list[tuple[str, Any, int, str, str]] = []
        keys = [c for c in self.left.columns if c[0] in self.left.key]
        others = [c for c in self.left.columns if c[0] not in self.left.key]
        mine = [(c, 0) for c in [*keys, *others]] + [(c, 1) for c in self.right.columns if c[0] not in self.right.key]
        for (name, kind, origin), side in mine:
            is_key = side == 0 and name in self.left.key
            clash = name in (right_names if side == 0 else left_names) or name in reserved
            label = name if is_key or not clash else f"{('left', 'right')[side]}_{name}"
            while label in taken:
                label += "_"
            taken.add(label)
            out.append((label, kind, side, origin, name))
        return out

    @property
    def inputs(self) -> list[tuple[int, str]]:
        """(side, input name) of every column from the streams, in output order."""
        return [(side, name) for _, _, side, _, name in self._columns()]

    @property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        ids = [("left_id", pa.uint64()), ("right_id", pa.uint64()), ("left_ts", pa.int64()), ("right_ts", pa.int64())]
        return pa.schema([*(ids if self.ids else []), *((label, kind) for label, kind, _, _, _ in self._columns())])

    def check_text(self) -> None:
        """UserError when a column cannot be written as text."""
        import pyarrow.types as t

        for field in self.schema:
            kind = field.type.value_type if t.is_dictionary(field.type) else field.type
            if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
                raise UserError(f"column {field.name} is {kind}, which CSV cannot hold; write Parquet or leave the column out")

    def decode(self, pairs: Pairs) -> pa.RecordBatch:
        """Pairs as a batch of output rows."""
        import pyarrow as pa

        unpacked = [_unpack(self.left.rows, pairs.left_rows), _unpack(self.right.rows, pairs.right_rows)]
        times = (pairs.left_ts, pairs.right_ts)
        arrays: list[pa.Array] = []
        if self.ids:
            arrays += [pa.array(a) for a in (pairs.left_id, pairs.right_id, pairs.left_ts, pairs.right_ts)]
        for _, kind, side, origin, name in self._columns():
            if origin == "row":
                array = unpacked[side][name]
                arrays.append(array if array.type == kind else _as_type(array, kind))
            else:
                arrays.append(_rebuilt(pairs.key if origin == "key" else times[side], kind))
        return pa.record_batch(arrays, schema=self.schema)

    # ------------------------------------------------------------ to another process

    def to_bytes(self) -> bytes:
        return json.dumps({"ids": self.ids, "left": _codec_out(self.left), "right": _codec_out(self.right)}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> OutputPlan:
        plain = json.loads(data)
        return OutputPlan(_codec_in(plain["left"]), _codec_in(plain["right"]), plain["ids"])


def _unpack(codec: RowCodec | None, rows: PayloadRows | None) -> dict[str, pa.Array]:
    if codec is None or rows is None:
        return {}
    return dict(zip(codec.schema.names, codec.decode(rows), strict=True))


def _as_type(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """A cast; Arrow has none to dictionaries of anything but strings."""
    import pyarrow as pa

    if not pa.types.is_dictionary(kind):
        return array.cast(kind)
    encoded = array.cast(kind.value_type).dictionary_encode()
    return pa.DictionaryArray.from_arrays(encoded.indices.cast(kind.index_type), encoded.dictionary, ordered=kind.ordered)


def _rebuilt(values: I64, kind: pa.DataType) -> pa.Array:
    """A key or time column from int64 values."""
    import pyarrow as pa

    if pa.types.is_dictionary(kind):
        return _as_type(_rebuilt(values, kind.value_type), kind)
    if pa.types.is_uint64(kind):
        return pa.array(values.view(np.uint64))
    if pa.types.is_boolean(kind):
        return pa.array(values != 0)
    if pa.types.is_temporal(kind):
        return pa.array(values).cast(pa.int32() if kind.bit_width == 32 else pa.int64()).cast(kind)
    return pa.array(values).cast(kind)


def _codec_out(codec: StreamCodec) -> dict[str, Any]:
    import pyarrow as pa

    schema = pa.schema([(name, kind) for name, kind, _ in codec.columns])
    return {
        "schema": base64.b64encode(bytes(schema.serialize())).decode(),
        "origins": [origin for _, _, origin in codec.columns],
        "key": list(codec.key),
        "rows": None if codec.rows is None else base64.b64encode(codec.rows.to_bytes()).decode(),
    }


def _codec_in(plain: dict[str, Any]) -> StreamCodec:
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plain["schema"])))
    columns = tuple((f.name, f.type, origin) for f, origin in zip(schema, plain["origins"], strict=True))
    rows = None if plain["rows"] is None else RowCodec.from_bytes(base64.b64decode(plain["rows"]))
    return StreamCodec(columns, tuple(plain["key"]), rows)
