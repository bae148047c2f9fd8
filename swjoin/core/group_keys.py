"""Exact encoding of grouping columns as int64 codes, and the way back.

What: `GroupKeys`: `encode`, `hashed`, `columns_of`.
Why: an aggregate finds its groups by codes; null is a value like any other, all NaN are one, and -0.0 is 0.0, unlike in a
join's key (`core.key_encoder`), and the values have to come out again.
Stays out: the groups' accumulators (`state.group_table`).

A single integer-like column is its own code, and null is told apart. Other columns become byte strings with a code each, in
a dictionary: for every column, whether it is null, eight bytes, and its value, eight bytes or length and bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.arrow_views import array_of, bits_of, booleans_of, decoded, of_words, scalar_of
from swjoin.core.batch import I64, U8, Bool
from swjoin.core.errors import UserError
from swjoin.core.kernel_cache import kernel
from swjoin.core.key_encoder import BYTES, INTEGER, Dictionary, KeyEncoder
from swjoin.core.row_codec import storage
from swjoin.core.simd import copy_items

if TYPE_CHECKING:
    import pyarrow as pa


@kernel
def _take_integers(data: U8, cursors: I64, out: I64) -> None:
    for i in range(out.shape[0]):
        value = np.uint64(0)
        for j in range(8):
            value |= np.uint64(data[cursors[i] + j]) << np.uint64(8 * j)
        out[i] = np.int64(value)
        cursors[i] += 8


@kernel
def _take_bytes(data: U8, cursors: I64, offsets: I64, out: U8) -> None:
    for i in range(cursors.shape[0]):
        size = offsets[i + 1] - offsets[i]
        copy_items(out, offsets[i], data, cursors[i], size)
        cursors[i] += size


class GroupKeys:
    """types: names and Arrow types of the grouping columns, any number. UserError for a type that cannot group."""

    native: bool

    def __init__(self, types: Sequence[tuple[str, pa.DataType]]) -> None:
        import pyarrow as pa

        self._types = [storage(kind) for _, kind in types]
        for (name, _), kind in zip(types, self._types, strict=True):
            if pa.types.is_decimal(kind) or pa.types.is_interval(kind) or pa.types.is_null(kind):
                raise UserError(f"column {name} is {kind}, by which rows cannot be grouped", remedy="cast it to text")
        plain = [(name, _comparable(kind)) for (name, _), kind in zip(types, self._types, strict=True)]
        pairs = [pair for name, kind in plain for pair in ((f"{name} is null", pa.bool_()), (name, kind))]
        single = KeyEncoder(plain, plain) if len(plain) == 1 else None
        self.native = not plain or (single is not None and single.native)
        self._encoder = single if single is not None and self.native else KeyEncoder(pairs, pairs)
        self.dictionary: Dictionary = self._encoder.dictionary

    def encode(self, columns: Sequence[pa.Array], count: int) -> tuple[I64, Bool]:
        """Codes, int64 (count,), of this instance, and which of them are null: bool (count,); only of a single column."""
        if not self._types:
            return np.zeros(count, np.int64), np.zeros(count, np.bool_)
        if self.native:
            codes, valid = self._encoder.encode([_value(columns[0])])
            return codes, np.zeros(count, np.bool_) if valid is None else ~valid
        return self._encoder.encode(self._marked(columns))[0], np.zeros(count, np.bool_)

    def hashed(self, columns: Sequence[pa.Array], count: int) -> I64:
        """Equal for equal groups, at any sender: int64 (count,). columns: none where the rows of all groups are together."""
        if not columns:
            return np.zeros(count, np.int64)
        given = [_value(columns[0])] if self.native else self._marked(columns)
        return self._encoder.hashed(given)[0]

    def _marked(self, columns: Sequence[pa.Array]) -> list[pa.Array]:
        """Each column without nulls, after a column that says where they were."""
        out = []
        for column in map(_value, columns):
            out += [column.is_null(), column.fill_null(_zero(column.type)) if column.null_count else column]
        return out

    def columns_of(self, codes: I64, nulls: Bool) -> list[pa.Array]:
        """The grouping columns of these groups, in the types that `row_codec.storage` has for theirs."""
        import pyarrow as pa

        if not self._types:
            return []
        if self.native:
            return [of_words(codes, nulls, self._types[0])]
        packed = self.dictionary.of_codes(codes).column("key")
        offsets: I64 = np.frombuffer(packed.buffers()[1], np.int64)[packed.offset : packed.offset + len(packed) + 1]
        raw = packed.buffers()[2]
        data: U8 = np.empty(0, np.uint8) if raw is None else np.frombuffer(raw, np.uint8)
        cursors, out = offsets[:-1].copy(), []
        for kind, how in zip(self._types, self._encoder.dictionary.kinds[1::2], strict=True):
            marks, words = np.empty(len(codes), np.int64), np.empty(len(codes), np.int64)
            _take_integers(data, cursors, marks)
            _take_integers(data, cursors, words)
            missing = marks != 0
            if how == INTEGER:
                out.append(of_words(words, missing, kind))
                continue
            assert how == BYTES, "a kind of key without a way back"
            ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(words)])
            held = np.empty(int(ends[-1]), np.uint8)
            _take_bytes(data, cursors, ends, held)
            values = pa.Array.from_buffers(pa.large_binary(), len(codes), [None, pa.py_buffer(ends), pa.py_buffer(held)])
            out.append(pa.compute.if_else(array_of(missing), scalar_of(None, values.type), values).cast(kind))
        return out


def _comparable(kind: pa.DataType) -> pa.DataType:
    """The type under which values are compared: doubles by their bits."""
    import pyarrow as pa

    return pa.int64() if pa.types.is_floating(kind) else kind


def _value(column: pa.Array) -> pa.Array:
    import pyarrow as pa

    column = decoded(column)
    if not pa.types.is_floating(column.type):
        return column
    return array_of(bits_of(column), booleans_of(column.is_null()) if column.null_count else None)


def _zero(kind: pa.DataType) -> Any:
    """A value in the place of null."""
    import pyarrow as pa

    if pa.types.is_fixed_size_binary(kind):
        return pa.scalar(bytes(kind.byte_width), kind)
    plain = pa.types.is_large_string(kind) or pa.types.is_string(kind)
    if plain or pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        return pa.scalar("" if plain else b"", kind)
    return of_words(np.zeros(1, np.int64), np.zeros(1, np.bool_), kind)[0]
