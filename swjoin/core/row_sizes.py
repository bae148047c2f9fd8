"""Sizes of the rows of Arrow arrays, and pieces of rows of bounded size.

What: `row_bytes`, `pieces_of`, `BLOCK_BYTES`.
Why: Arrow's take overflows 32-bit offsets beyond 2 GiB, and does not always report it.
Stays out: taking rows (`api.materialize`, `spark.executor_join`).
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.batch import I64

if TYPE_CHECKING:
    import pyarrow as pa

BLOCK_BYTES = 1 << 30  # Arrow's offsets of strings and lists reach 2 GiB, and take does not always report an overflow


def row_bytes(array: pa.Array) -> Any:
    """Upper bound of the bytes of every row: integers (rows,). It also bounds the number of elements in nested arrays."""
    import pyarrow as pa
    import pyarrow.types as t

    kind, n = array.type, len(array)
    if isinstance(kind, pa.BaseExtensionType):
        return row_bytes(array.storage)
    if t.is_string(kind) or t.is_binary(kind) or t.is_list(kind) or t.is_map(kind):
        bounds = _offsets(array, np.int32)
    elif t.is_large_string(kind) or t.is_large_binary(kind) or t.is_large_list(kind):
        bounds = _offsets(array, np.int64)
    elif t.is_fixed_size_list(kind):
        of_all = np.maximum(row_bytes(array.values), 1)[array.offset * kind.list_size : (array.offset + n) * kind.list_size]
        return of_all.reshape(n, kind.list_size).sum(axis=1)
    elif t.is_struct(kind):
        return sum((row_bytes(array.field(i)) for i in range(kind.num_fields)), np.zeros(n, np.int64))
    else:
        if t.is_union(kind):
            most = sum(int(row_bytes(array.field(i)).max(initial=0)) for i in range(kind.num_fields))
        elif t.is_run_end_encoded(kind):
            most = int(row_bytes(array.values).max(initial=0))
        else:
            fixed = t.is_primitive(kind) or t.is_decimal(kind) or t.is_fixed_size_binary(kind) or t.is_dictionary(kind)
            most = -(-kind.bit_width // 8) if fixed else 16  # views: their data is not copied
        return np.broadcast_to(np.int64(most), n)
    if not (t.is_list(kind) or t.is_large_list(kind) or t.is_map(kind)):
        return np.diff(bounds)
    below = [array.keys, array.items] if t.is_map(kind) else [array.values]
    of_each = np.maximum(sum(row_bytes(values) for values in below), 1)
    return np.diff(np.concatenate([np.zeros(1, np.int64), np.cumsum(of_each, dtype=np.int64)])[bounds])


def _offsets(array: pa.Array, dtype: Any) -> Any:
    data = array.buffers()[1]
    if len(array) == 0 or data is None:
        return np.zeros(len(array) + 1, dtype)
    return np.frombuffer(data, dtype)[array.offset : array.offset + len(array) + 1]


def pieces_of(sizes: I64) -> Iterator[tuple[int, int]]:
    """(start, stop) of pieces of at most `BLOCK_BYTES`; a longer row is a piece of its own."""
    ends = np.cumsum(sizes)
    start = 0
    while start < len(ends):
        before = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, before + BLOCK_BYTES, side="right")))
        yield start, stop
        start = stop
