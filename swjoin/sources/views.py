"""Arrow arrays as NumPy arrays, without a copy and without pandas.

What: `integers_of`, `booleans_of`, `borrowed`.
Why: `numpy.asarray(arrow_array)` imports pandas where it is installed, which took 0.4 s out of the first read. And what Arrow
lends may not be written to; numba compiles a kernel anew for every mixture of arrays that may and may not be, which took some
ten seconds at the first join of a table. So these views say that they may be written to. Nobody does.
Stays out: types with a length of their own (`sources.codec`, `sources.keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import Bool

if TYPE_CHECKING:
    import pyarrow as pa


class _Lent:
    """Memory of an array, which it keeps alive, as if it might be written to."""

    def __init__(self, array: NDArray[Any]) -> None:
        self.array = array
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def borrowed(data: pa.Buffer, dtype: Any) -> NDArray[Any]:
    """The values in a buffer, a view. ValueError when its size is not a whole number of them."""
    array = np.frombuffer(data, dtype)
    return np.asarray(_Lent(array)) if len(array) else np.empty(0, dtype)


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
