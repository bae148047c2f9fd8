"""Hashes of rows by their values, of which the digest of a query's answer is the sum.

What: `row_hashes(batch) -> uint64 (n,)`.
Why: the answer of a query must not show its plan, so its digest cannot be one of ids: rows with the same values have the same
hash, whatever joined them, and any engine's rows can be compared.
Stays out: digests of ids (`core.hashing`).

A value is a sequence of 64-bit words: none for null; one for integers, times (microseconds), truth values and doubles (IEEE
bits, -0.0 as 0.0, one NaN); the little-endian words of the bytes, padded with zeros, and then their length, for text, binary
and decimals (text without trailing zeros). Its hash: h = G, then h = mix64(word * G + h) for each word. A row's: h = G, then
h = mix64(v * G + h) for the hash v of every column, the last one first. G = 0x9E3779B97F4A7C15.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from swjoin.core.arrow_views import booleans_of, doubles_of, integers_of, scalar_of
from swjoin.core.batch import I64, U8, U64, Bool
from swjoin.core.errors import UserError
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel

if TYPE_CHECKING:
    import pyarrow as pa

_NAN = np.float64("nan").view(np.uint64)
_PER_UNIT = {"s": 1_000_000, "ms": 1_000}
_DAY_US = 86_400_000_000


@kernel
def _words_hashed(words: U64, out: U64) -> None:
    for i in range(out.shape[0]):
        out[i] = mix64_scalar(words[i] * GOLDEN + GOLDEN)


@kernel
def _bytes_hashed(offsets: I64, data: U8, out: U64) -> None:
    for i in range(out.shape[0]):
        start, stop = offsets[i], offsets[i + 1]
        h = GOLDEN
        at = start
        while at < stop:
            word = np.uint64(0)
            if at + 8 <= data.shape[0]:  # one load; bytes beyond the end are cut off
                for j in range(8):
                    word |= np.uint64(data[at + j]) << np.uint64(8 * j)
                if stop - at < 8:
                    word &= (np.uint64(1) << np.uint64(8 * (stop - at))) - np.uint64(1)
            else:
                for j in range(stop - at):
                    word |= np.uint64(data[at + j]) << np.uint64(8 * j)
            h = mix64_scalar(word * GOLDEN + h)
            at += 8
        out[i] = mix64_scalar(np.uint64(stop - start) * GOLDEN + h)


@kernel
def _folded(values: U64, out: U64) -> None:
    for i in range(out.shape[0]):
        out[i] = mix64_scalar(values[i] * GOLDEN + out[i])


def row_hashes(batch: pa.RecordBatch) -> U64:
    """The hash of every row, uint64 (n,). UserError for a column whose type has no hash."""
    out = np.full(batch.num_rows, GOLDEN, np.uint64)
    for column in reversed(batch.columns):
        _folded(value_hashes(column), out)
    return out


def value_hashes(array: pa.Array) -> U64:
    """The hash of every value, uint64 (n,)."""
    import pyarrow as pa
    import pyarrow.types as t

    out = np.empty(len(array), np.uint64)
    kind = array.type
    if t.is_dictionary(kind):
        found = np.append(value_hashes(array.dictionary), GOLDEN)
        hashes: U64 = found[integers_of(array.indices.cast(pa.int64()).fill_null(scalar_of(len(found) - 1, pa.int64())))]
        return hashes
    if t.is_null(kind):
        out[:] = GOLDEN
        return out
    if t.is_decimal(kind):
        array = _decimal_texts(array)
    if (words := _words(array)) is not None:
        _words_hashed(words, out)
    else:
        _bytes_hashed(*_bytes(array), out)
    if array.null_count:
        out[~booleans_of(array.is_valid())] = GOLDEN
    return out


def _words(array: pa.Array) -> U64 | None:
    """The word of every value, of any value for null; None for values of several words."""
    import pyarrow as pa
    import pyarrow.types as t

    kind = array.type
    if t.is_floating(kind):
        doubles = doubles_of(array)
        words: U64 = (doubles + 0.0).view(np.uint64)
        return np.where(np.isnan(doubles), _NAN, words)
    if t.is_boolean(kind):
        values: Bool = booleans_of(array.fill_null(scalar_of(False, kind)))
        return values.astype(np.uint64)
    if t.is_uint64(kind):
        return _filled(array).view(np.uint64)
    if t.is_integer(kind):
        return _filled(array).astype(np.int64, copy=False).view(np.uint64)
    if t.is_date32(kind):
        return (_filled(array.view(pa.int32())).astype(np.int64) * _DAY_US).view(np.uint64)
    if t.is_date64(kind):
        return (_filled(array.view(pa.int64())) * 1_000).view(np.uint64)
    if t.is_timestamp(kind) or t.is_time(kind) or t.is_duration(kind):
        raw = _filled(array.view(pa.int32() if kind.bit_width == 32 else pa.int64())).astype(np.int64, copy=False)
        if kind.unit == "us":
            return raw.view(np.uint64)
        return (raw // 1_000 if kind.unit == "ns" else raw * _PER_UNIT[kind.unit]).view(np.uint64)
    return None


def _filled(array: pa.Array) -> I64:
    return integers_of(array.fill_null(scalar_of(0, array.type)) if array.null_count else array)


def _bytes(array: pa.Array) -> tuple[I64, U8]:
    """Offsets and bytes of texts."""
    import pyarrow as pa
    import pyarrow.types as t

    kind = array.type
    if not (t.is_large_string(kind) or t.is_large_binary(kind)):
        texts = t.is_string(kind) or t.is_string_view(kind)
        binaries = t.is_binary(kind) or t.is_binary_view(kind) or t.is_fixed_size_binary(kind)
        if not texts and not binaries:
            raise UserError(f"values of type {kind} have no digest", remedy="cast the column, or leave it out")
        array = array.cast(pa.large_binary())
    _, offsets, data = array.buffers()
    ends: I64 = np.frombuffer(offsets, np.int64)[array.offset : array.offset + len(array) + 1]
    raw: U8 = np.empty(0, np.uint8) if data is None else np.frombuffer(data, np.uint8)
    return ends, raw


def _decimal_texts(array: pa.Array) -> pa.Array:
    """Decimals as text without trailing zeros."""
    import pyarrow as pa
    import pyarrow.compute as pc

    texts = array.cast(pa.string())
    if pc.any(pc.match_substring(texts, "E")).as_py():  # Arrow's way for small numbers
        texts = pa.array([None if value is None else f"{value:f}" for value in array.to_pylist()], pa.string())
    if array.type.scale <= 0:
        return texts
    return pc.utf8_rtrim(pc.utf8_rtrim(texts, "0"), ".")
