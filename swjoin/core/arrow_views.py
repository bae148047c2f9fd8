"""Arrow arrays as NumPy arrays, without a copy and without pandas.

What: `integers_of`, `booleans_of`, `borrowed`; `decoded`, an array without dictionaries and views.
Why: `numpy.asarray` of an Arrow array imports pandas where it is installed, 0.4 s of the first read. The views are flagged
writeable, but callers must not write: numba would compile every kernel a second time for read-only arrays, which took some ten
seconds at the first join of a table.
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
    """Memory of an array, which it keeps alive, as if it might be written to."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def borrowed(data: pa.Buffer, dtype: Any) -> NDArray[Any]:
    """The values in a buffer, a view. ValueError when its size is not a whole number of them."""
    array = np.frombuffer(data, dtype)
    return np.asarray(_WriteableView(array)) if len(array) else np.empty(0, dtype)


def decoded(array: pa.Array) -> pa.Array:
    """The values of a dictionary as a plain array, views as large strings or binary: `null_count` of the result counts every
    null. That of a dictionary counts null indices alone, not those that stand for a null among its values."""
    import pyarrow as pa
    import pyarrow.compute as pc

    kind = array.type
    if pa.types.is_dictionary(kind):
        values = decoded(array.dictionary)
        if pa.types.is_string(values.type):
            values = values.cast(pa.large_string())  # 2 GiB is not too much for it
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
