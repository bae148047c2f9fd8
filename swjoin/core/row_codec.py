"""Row codec: Arrow columns <-> packed payload rows.

What: `RowCodec` packs the payload columns of a batch row by row (null bitmap, fixed-width values, lengths, then a tail of
variable-length bytes) and unpacks them; `StreamCodec` adds the columns that a key or a time replaces.
Why: slaves store, move and gather payload as opaque rows without Arrow; only sources and sinks need the columns.
Stays out: files, keys (`core.key_encoder`), output names (`connectors.output_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.arrow_views import booleans_of, borrowed, decoded, integers_of
from swjoin.core.batch import I64, U8, PayloadRows, RowLayout, check_offsets
from swjoin.core.errors import RunFailed, UserError, setting
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items

if TYPE_CHECKING:
    import pyarrow as pa


@kernel
def _put_tail(offsets: I64, lengths: I64, data: U8, starts: I64, var: U8) -> None:
    """Copy each row's bytes of one column to its tail, at `offsets`, which advance."""
    for i in range(lengths.shape[0]):
        o = offsets[i]
        copy_items(var, o, data, starts[i], lengths[i])
        offsets[i] = o + lengths[i]


@kernel
def _pick_tail(cursors: I64, lengths: I64, var: U8, out: U8) -> None:
    """The inverse: gather one column's bytes from the tails, at `cursors`, which advance."""
    at = 0
    for i in range(lengths.shape[0]):
        copy_items(out, at, var, cursors[i], lengths[i])
        at += lengths[i]
        cursors[i] += lengths[i]


def _is_var(kind: pa.DataType) -> bool:
    import pyarrow.types as t

    return bool(t.is_string(kind) or t.is_binary(kind) or t.is_large_string(kind) or t.is_large_binary(kind))


def returned(kind: pa.DataType) -> pa.DataType:
    """The type of a packed column after unpacking. Dictionaries are rebuilt from the values of each batch: unordered, and with
    indices of 32 bits at least, because the number of values is unknown."""
    import pyarrow as pa

    if not pa.types.is_dictionary(kind):
        return kind
    index = kind.index_type if kind.index_type.bit_width >= 32 else pa.int32()
    return pa.dictionary(index, returned(kind.value_type))


def storage(kind: pa.DataType) -> pa.DataType:
    """The packed type: dictionaries as their values, view types as plain ones."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return storage(kind.value_type)
    if t.is_string(kind) or t.is_string_view(kind):
        return pa.large_string()
    if t.is_binary(kind) or t.is_binary_view(kind):
        return pa.large_binary()
    return kind


def as_stored(array: pa.Array, kind: pa.DataType) -> pa.Array:
    """The values of an array as its type `storage` has them. kind: that type."""
    return array if array.type == kind else decoded(array).cast(kind)


def _width(kind: pa.DataType) -> int | None:
    """Bytes of one value of a fixed-width type; None for types that cannot be packed."""
    import pyarrow.types as t

    if t.is_boolean(kind):
        return 1
    if t.is_null(kind):
        return 0
    if t.is_primitive(kind) or t.is_decimal(kind) or t.is_fixed_size_binary(kind):
        return int(kind.bit_width) // 8
    return None


@dataclass(frozen=True)
class ColumnSlot:
    """Location of a column in a packed row. offset, width: of its value, or of its length (4 bytes) when the value is in the
    tail. null_bit: bit that is set for null. before: offsets of the lengths of the preceding values in the tail."""

    offset: int
    width: int
    null_bit: int
    before: list[int]


class RowCodec:
    """Packs and unpacks the columns of a schema. UserError names a column whose type cannot be packed."""

    def __init__(self, schema: pa.Schema) -> None:
        import pyarrow as pa

        self.schema = pa.schema([(f.name, storage(f.type)) for f in schema])
        self._bitmap_bytes = -(-len(self.schema) // 8)
        self._slots: list[tuple[int, int]] = []  # (offset, width); var columns: width 4 for the length
        at = self._bitmap_bytes
        for column in self.schema:
            width = 4 if _is_var(column.type) else _width(column.type)
            if width is None:
                problem = f"column {column.name}: type {column.type} cannot be carried"
                raise UserError(problem, remedy=("leave it out with ", setting("columns")))
            self._slots.append((at, width))
            at += width
        self._var = [i for i, f in enumerate(self.schema) if _is_var(f.type)]
        self.layout = RowLayout(at, bool(self._var))

    @staticmethod
    def of(columns: Sequence[tuple[str, Any]]) -> RowCodec:
        """A codec of (name, type) pairs."""
        import pyarrow as pa

        return RowCodec(pa.schema(list(columns)))

    def slot_of(self, name: str) -> ColumnSlot:
        """Location of a column."""
        index = self.schema.names.index(name)
        offset, width = self._slots[index]
        return ColumnSlot(offset, width, index, [self._slots[i][0] for i in self._var if i < index])

    # ------------------------------------------------------------ packing

    def encode(self, batch: pa.RecordBatch) -> PayloadRows:
        """n rows of the schema's columns, by name, as packed rows."""
        import pyarrow as pa

        n = batch.num_rows
        fixed = np.zeros((n, self.layout.fixed_bytes), np.uint8)
        lengths: list[I64] = []
        sources: list[tuple[U8, I64]] = []
        for i, column in enumerate(self.schema):
            array = as_stored(batch.column(column.name), column.type)
            if array.null_count:
                missing = booleans_of(array.is_null())
                fixed[:, i // 8] |= missing.astype(np.uint8) << np.uint8(i % 8)
            offset, width = self._slots[i]
            if _is_var(column.type):
                bounds = (
                    borrowed(array.buffers()[1], np.int64)[array.offset : array.offset + n + 1] if n else np.zeros(1, np.int64)
                )
                data = array.buffers()[2]
                check_offsets(bounds, 0 if data is None else data.size, f"column {column.name}", UserError)
                size = np.diff(bounds)
                if array.null_count:
                    size = np.where(missing, 0, size)
                if n and int(size.max()) >= 1 << 32:
                    raise UserError(f"column {column.name}: a value of 4 GiB or more cannot be carried")
                _put_column(fixed, offset, size.astype("<u4").view(np.uint8).reshape(n, 4))
                lengths.append(size.astype(np.int64))
                sources.append((borrowed(data, np.uint8) if data is not None else np.empty(0, np.uint8), bounds[:n]))
            elif width and n:
                _put_column(fixed, offset, _fixed_bytes(array, width))
        if not self._var:
            return PayloadRows(fixed)
        offsets = np.zeros(n + 1, np.int64)
        np.cumsum(np.sum(lengths, axis=0), out=offsets[1:])
        var = np.empty(int(offsets[-1]), np.uint8)
        cursors = offsets[:-1].copy()
        for (data_bytes, starts), size in zip(sources, lengths, strict=True):
            _put_tail(cursors, size, data_bytes, np.ascontiguousarray(starts), var)
        assert isinstance(batch, pa.RecordBatch)
        return PayloadRows(fixed, offsets, var)

    # ------------------------------------------------------------ unpacking

    def decode(self, rows: PayloadRows) -> list[pa.Array]:
        """The schema's columns, in order, as they were packed, nulls included."""
        import pyarrow as pa

        n = len(rows)
        self._check_tails(rows)
        cursors = None if rows.var_offsets is None else rows.var_offsets[:-1].copy()
        arrays: list[pa.Array] = []
        some = [int(np.bitwise_or.reduce(rows.fixed[:, at])) for at in range(self._bitmap_bytes)]
        for i, column in enumerate(self.schema):
            offset, width = self._slots[i]
            nulls, valid = 0, None
            if some[i // 8] >> i % 8 & 1:
                missing = (rows.fixed[:, i // 8] >> np.uint8(i % 8)) & 1
                nulls, valid = int(missing.sum()), pa.py_buffer(np.packbits(missing == 0, bitorder="little"))
            if _is_var(column.type):
                assert cursors is not None
                assert rows.var is not None
                size = _column_bytes(rows.fixed, offset, 4).view("<u4").reshape(n).astype(np.int64)
                bounds = np.zeros(n + 1, np.int64)
                np.cumsum(size, out=bounds[1:])
                data = np.empty(int(bounds[-1]), np.uint8)
                _pick_tail(cursors, size, rows.var, data)
                arrays.append(pa.Array.from_buffers(column.type, n, [valid, pa.py_buffer(bounds), pa.py_buffer(data)], nulls))
            elif width == 0 and pa.types.is_null(column.type):
                arrays.append(pa.nulls(n))
            elif pa.types.is_boolean(column.type):
                bits = np.packbits(rows.fixed[:, offset] != 0, bitorder="little")
                arrays.append(pa.Array.from_buffers(column.type, n, [valid, pa.py_buffer(bits)], nulls))
            else:
                data = _column_bytes(rows.fixed, offset, width)
                arrays.append(pa.Array.from_buffers(column.type, n, [valid, pa.py_buffer(data)], nulls))
        return arrays

    def _check_tails(self, rows: PayloadRows) -> None:
        """RunFailed unless the lengths in the fixed parts add up to the tails, which are copied by these lengths."""
        if rows.var_offsets is None or rows.var is None:
            return
        check_offsets(rows.var_offsets, len(rows.var), "corrupt payload")
        total = np.zeros(len(rows), np.int64)
        for i in self._var:
            total += _column_bytes(rows.fixed, self._slots[i][0], 4).view("<u4").astype(np.int64)
        wrong = np.flatnonzero(total != np.diff(rows.var_offsets))
        if len(wrong):
            row = int(wrong[0])
            size = int(rows.var_offsets[row + 1] - rows.var_offsets[row])
            raise RunFailed(
                f"corrupt payload: row {row} of {len(rows)} has a tail of {size} bytes, its lengths say {total[row]}"
            )

    # ------------------------------------------------------------ serialization

    def to_bytes(self) -> bytes:
        return bytes(self.schema.serialize())

    @staticmethod
    def from_bytes(data: bytes) -> RowCodec:
        import pyarrow as pa

        return RowCodec(pa.ipc.read_schema(pa.py_buffer(data)))


def _fixed_bytes(array: pa.Array, width: int) -> NDArray[Any]:
    """The values of a fixed-width array as uint8 (n, width)."""
    import pyarrow as pa

    n = len(array)
    if pa.types.is_boolean(array.type):
        return integers_of(array.cast(pa.uint8()).fill_null(0)).reshape(n, 1)
    data = borrowed(array.buffers()[1], np.uint8)
    return data[array.offset * width : (array.offset + n) * width].reshape(n, width)


def _column_bytes(fixed: U8, offset: int, width: int) -> U8:
    """One column's bytes out of the packed rows, contiguous."""
    column = fixed[:, offset : offset + width]
    if width in _WORDS:
        return np.ascontiguousarray(column.view(f"u{width}")[:, 0]).view(np.uint8)
    return np.ascontiguousarray(column).reshape(-1)


def _put_column(fixed: U8, offset: int, values: U8) -> None:
    """The reverse. values: uint8 (n, width)."""
    width = values.shape[1]
    column = fixed[:, offset : offset + width]
    if width in _WORDS and values.strides == (width, 1):
        column.view(f"u{width}")[:, 0] = values.view(f"u{width}")[:, 0]
    else:
        column[:] = values


_WORDS = (1, 2, 4, 8)  # widths of values that are copied as integers, one by one


@dataclass(frozen=True)
class StreamCodec:
    """Conversion of one side of a pair back to columns.

    columns: (name, Arrow type, origin) in input order; origin "key" or "ts": rebuilt from the pair's key or time; "row":
    unpacked. rows: codec of the packed columns; None without payload. key: names of the join columns. hidden: columns that
    only a predicate reads. time_unit: declared unit of integer times; None: the time column's type has a unit.
    """

    columns: tuple[tuple[str, Any, str], ...]
    key: tuple[str, ...]
    rows: RowCodec | None
    hidden: tuple[str, ...] = ()
    time_unit: str | None = None

    @property
    def shown(self) -> list[tuple[str, Any, str]]:
        """Columns that a result may hold."""
        return [column for column in self.columns if column[0] not in self.hidden]

    @property
    def layout(self) -> RowLayout | None:
        """Layout of the packed rows; None without payload."""
        return None if self.rows is None else self.rows.layout
