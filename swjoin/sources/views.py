"""Arrow arrays as NumPy arrays, without a copy and without pandas.

What: `integers_of`, `booleans_of`.
Why: `numpy.asarray(arrow_array)` imports pandas where it is installed, which took 0.4 s out of the first read.
Stays out: types with a length of their own (`sources.codec`, `sources.keys`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import Bool

if TYPE_CHECKING:
    import pyarrow as pa


def integers_of(array: pa.Array) -> NDArray[Any]:
    """The values of an integer array, a view; the values of null rows are unspecified."""
    import pyarrow as pa

    sign = "u" if pa.types.is_unsigned_integer(array.type) else "i"
    dtype = np.dtype(f"{sign}{array.type.bit_width // 8}")
    data = array.buffers()[1]
    if data is None:
        return np.empty(0, dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array)]


def booleans_of(array: pa.Array) -> Bool:
    """A boolean array without nulls, as bytes."""
    import pyarrow as pa

    return integers_of(array.cast(pa.uint8())).view(np.bool_)
