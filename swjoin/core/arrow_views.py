"""Arrow arrays as NumPy arrays, without a copy and without pandas.

What: `integers_of`, `booleans_of`, `borrowed`; `decoded`, an array without dictionaries and views; `bits_of` doubles, and
`of_words`, an array from 64 bits a value; `words_of_decimals` and `decimals_of_words`, of two.
Why: `numpy.asarray(arrow_array)` imports pandas if it is installed, which took 0.4 s at the first read. Arrow's memory is
read-only, and numba compiles every kernel again for read-only arrays, some ten seconds at the first join of a table. So the
views are flagged writeable, but callers must not write.
Stays out: types with a length of their own (`core.row_codec`, `core.key_encoder`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import Bool

if TYPE_CHECKING:
    import pyarrow as pa


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
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        values = decoded(array.dictionary)
        if pa.types.is_string(values.type):
            values = values.cast(pa.large_string())  # has no limit of 2 GiB
        elif pa.types.is_binary(values.type):
            values = values.cast(pa.large_binary())
        return pc.take(values, array.indices)
    if pa.types.is_string_view(kind):
        return array.cast(pa.large_string())
    return array.cast(pa.large_binary()) if pa.types.is_binary_view(kind) else array


def integers_of(array: pa.Array) -> NDArray[Any]:
    """The values of an integer array, a view; the values of null rows are unspecified."""
    import pyarrow as pa

    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    dtype = np.dtype(f"{sign}{array.type.bit_width // 8}")
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return borrowed(data, dtype)[array.offset : array.offset + len(array)]


def booleans_of(array: pa.Array) -> Bool:
    """A boolean array without nulls, as bytes."""
    import pyarrow as pa

    return integers_of(array.cast(pa.uint8())).view(np.bool_)


def bits_of(column: pa.Array) -> NDArray[np.int64]:
    """The bits of floating values as doubles: one NaN, -0.0 as 0.0; those of null are unspecified."""
    import pyarrow as pa

    doubles = column.cast(pa.float64()).fill_null(0.0).to_numpy(zero_copy_only=False) + 0.0
    bits: NDArray[np.int64] = np.where(np.isnan(doubles), np.nan, doubles).view(np.int64)
    return bits


def of_words(words: NDArray[np.int64], missing: Bool, kind: pa.DataType) -> pa.Array:
    """Integers, times, truth values or doubles of this type from 64 bits each. missing: (n,), those that are null."""
    import pyarrow as pa

    if pa.types.is_boolean(kind):
        return pa.array(words != 0, mask=missing)
    if pa.types.is_floating(kind):
        return pa.array(words.view(np.float64), mask=missing).cast(kind)
    if pa.types.is_temporal(kind):
        return pa.array(words.astype(f"i{kind.bit_width // 8}"), mask=missing).view(kind)
    return pa.array(words.view(np.uint64) if pa.types.is_uint64(kind) else words, mask=missing).cast(kind)


def words_of_decimals(column: pa.Array) -> NDArray[np.int64]:
    """The digits of decimals as integers of 128 bits: int64 (n, 2), the low words first. There are no nulls."""
    import pyarrow as pa

    wide = column.cast(pa.decimal128(max(column.type.precision, 1), column.type.scale))
    words = borrowed(wide.buffers()[1], np.int64).reshape(-1, 2)
    return words[wide.offset : wide.offset + len(wide)]


def decimals_of_words(low: NDArray[np.int64], high: NDArray[np.int64], missing: Bool, kind: pa.DataType) -> pa.Array:
    """Decimals of this type, of 128 bits, from both words of their digits. missing: (n,), those that are null."""
    import pyarrow as pa

    data = pa.py_buffer(np.ascontiguousarray(np.stack([low, high], axis=1)))
    valid = pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(kind, len(low), [valid, data])
