"""Arrow arrays as NumPy arrays, and back, without a copy and without pandas.

What: `integers_of`, `doubles_of`, `booleans_of`, `borrowed`; `array_of`, `texts_of` and `scalar_of`, the way back;
`decoded`, an array without dictionaries and views; `bits_of` doubles, and `of_words`, an array from 64 bits a value;
`words_of_decimals` and `decimals_of_words`, of two; `retained_bytes` and `without_surplus`, memory behind rows.
Why: `numpy.asarray(arrow_array)` and `pyarrow.array` import pandas if it is installed, which took 0.4 s. Arrow's memory is
read-only, and numba compiles every kernel again for read-only arrays, some ten seconds at the first join of a table. So the
views are flagged writeable, but callers must not write.
Stays out: types with a length of their own (`core.row_codec`, `core.key_encoder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pyarrow as pa


_SMALL_BYTES = 1 << 10  # of a message, besides its rows


class _WriteableView:
    """An array's memory, flagged writeable; keeps the array alive."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def borrowed(data: pa.Buffer, dtype: Any) -> NDArray[Any]:
    """The values in a buffer, a view. ValueError when its size is not a whole number of them."""
    array = np.frombuffer(data, dtype)
    return np.asarray(_WriteableView(array)) if len(array) else np.empty(0, dtype)


def decoded(array: pa.Array) -> pa.Array:
    """The values of a dictionary as a plain array, views as large strings or binary. `null_count` of the result counts all
    nulls; that of a dictionary does not count indices of a null value."""
    import pyarrow as pa

    kind = array.type
    if pa.types.is_dictionary(kind):
        import pyarrow.compute as pc  # which takes 0.08 s

        values = decoded(array.dictionary)
        if pa.types.is_string(values.type):
            values = values.cast(pa.large_string())  # has no limit of 2 GiB
        elif pa.types.is_binary(values.type):
            values = values.cast(pa.large_binary())
        return pc.take(values, array.indices)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else array


def array_of(values: NDArray[Any], missing: NDArray[np.bool_] | None = None) -> pa.Array:
    """As `pyarrow.array`, of numbers or truth values; numbers are not copied. missing: (n,), those that are null."""
    import pyarrow as pa

    data = np.packbits(values, bitorder="little") if values.dtype == np.bool_ else np.ascontiguousarray(values)
    valid = None if missing is None or not missing.any() else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.from_numpy_dtype(values.dtype), len(values), [valid, pa.py_buffer(data)])


def texts_of(values: Sequence[str | None]) -> pa.Array:
    """As `pyarrow.array`, of strings of 2 GiB at most."""
    import pyarrow as pa

    missing = np.array([value is None for value in values], np.bool_)
    data = [(value or "").encode() for value in values]
    ends = np.cumsum([0, *map(len, data)], dtype=np.int32)
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little")) if missing.any() else None
    return pa.Array.from_buffers(pa.string(), len(data), [valid, pa.py_buffer(ends), pa.py_buffer(b"".join(data))])


def scalar_of(value: Any, kind: pa.DataType) -> pa.Scalar:
    """As `pyarrow.scalar`."""
    import pyarrow as pa

    if value is None:
        return pa.nulls(1, kind)[0]
    whole = pa.types.is_integer(kind) or pa.types.is_duration(kind) or pa.types.is_timestamp(kind)
    if type(value) is int and whole and -(1 << 63) <= value < 1 << 63:
        return array_of(np.array([value], np.int64))[0].cast(kind)
    if type(value) is float and pa.types.is_float64(kind):
        return array_of(np.array([value]))[0]
    if type(value) is bool and pa.types.is_boolean(kind):
        return array_of(np.array([value]))[0]
    if type(value) is timedelta and pa.types.is_duration(kind) and kind.unit == "us":
        return array_of(np.array([value // timedelta(microseconds=1)]))[0].cast(kind)
    if type(value) is str and (pa.types.is_string(kind) or pa.types.is_large_string(kind)):
        return texts_of([value])[0].cast(kind)
    return pa.scalar(value, kind)


def integers_of(array: pa.Array) -> NDArray[Any]:
    """The values of an integer array, a view; the values of null rows are unspecified."""
    import pyarrow as pa

    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    dtype = np.dtype(f"{sign}{array.type.bit_width // 8}")
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return borrowed(data, dtype)[array.offset : array.offset + len(array)]


def doubles_of(array: pa.Array) -> NDArray[np.float64]:
    """The values of a floating array as doubles; those of null rows are 0.0."""
    import pyarrow as pa

    wide = array.cast(pa.float64())
    wide = wide.fill_null(scalar_of(0.0, wide.type)) if wide.null_count else wide
    return borrowed(wide.buffers()[1], np.float64)[wide.offset : wide.offset + len(wide)] if len(wide) else np.empty(0)


def booleans_of(array: pa.Array) -> NDArray[np.bool_]:
    """A boolean array without nulls, as bytes."""
    import pyarrow as pa

    return integers_of(array.cast(pa.uint8())).view(np.bool_)


def bits_of(column: pa.Array) -> NDArray[np.int64]:
    """The bits of floating values as doubles: one NaN, -0.0 as 0.0; those of null are unspecified."""
    doubles = doubles_of(column) + 0.0
    bits: NDArray[np.int64] = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
    return bits


def of_words(words: NDArray[np.int64], missing: NDArray[np.bool_], kind: pa.DataType) -> pa.Array:
    """Integers, times, truth values or doubles of this type from 64 bits each. missing: (n,), those that are null."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return array_of(words != 0, missing)
    if pa.types.is_floating(kind):
        return array_of(words.view(np.float64), missing).cast(kind)
    if pa.types.is_temporal(kind):
        return array_of(words.astype(f"i{kind.bit_width // 8}"), missing).view(kind)
    return array_of(words.view(np.uint64) if pa.types.is_uint64(kind) else words, missing).cast(kind)


def words_of_decimals(column: pa.Array) -> NDArray[np.int64]:
    """The digits of decimals as integers of 128 bits: int64 (n, 2), the low words first. There are no nulls."""
    import pyarrow as pa

    wide = column.cast(pa.decimal128(max(column.type.precision, 1), column.type.scale))
    words = borrowed(wide.buffers()[1], np.int64).reshape(-1, 2)
    return words[wide.offset : wide.offset + len(wide)]


def decimals_of_words(
    low: NDArray[np.int64], high: NDArray[np.int64], missing: NDArray[np.bool_], kind: pa.DataType
) -> pa.Array:
    """Decimals of this type, of 128 bits, from both words of their digits. missing: (n,), those that are null."""
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(np.stack([low, high], axis=1)))
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(low), [valid, data])


def retained_bytes(batch: pa.RecordBatch) -> int:
    """Bytes that a batch keeps in memory: the whole messages behind its columns. Reads no value."""
    roots: dict[int, int] = {}
    for column in batch.columns:
        for buffer in column.buffers():
            if buffer is not None:
                while buffer.parent is not None:
                    buffer = buffer.parent
                roots[buffer.address] = max(buffer.size, roots.get(buffer.address, 0))
    return sum(roots.values())


def without_surplus(batch: pa.RecordBatch) -> pa.RecordBatch:
    """The rows, copied where they keep much more memory than they have, as a part of a large batch or message does."""
    if retained_bytes(batch) <= 2 * batch.nbytes + _SMALL_BYTES:
        return batch
    return batch.take(array_of(np.arange(batch.num_rows)))
