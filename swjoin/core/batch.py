"""Columnar tuple batches: the format of tuples outside the windows.

What: `TupleBatch` (key, ts, id, arrival, payload rows) and `PayloadRows` (payload columns packed row by row into bytes),
with take, slice and concat; `SourceBatch`, `Pairs`, `ResultRows`; `StoredBatch`, which is not in memory.
Why: per-tuple work happens in kernels over these arrays; a message is one header and these columns.
Stays out: the payload's columns (`core.row_codec`), messages (`cluster.wire`), windows (`state`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed, SwjoinError
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items

I64 = NDArray[np.int64]
U64 = NDArray[np.uint64]
U8 = NDArray[np.uint8]
Bool = NDArray[np.bool_]

LEFT, RIGHT = 0, 1
BOTH = 2
STREAM_NAMES = ("left", "right")
MISSING_ID = np.uint64(0xFFFFFFFFFFFFFFFF)  # the id of the missing tuple in a row of one stream


@dataclass(frozen=True)
class RowLayout:
    """Shape of a packed payload row: `fixed_bytes` per row, plus a variable-length tail when `has_var`."""

    fixed_bytes: int = 0
    has_var: bool = False


def check_indexes(index: I64, first: int, end: int, what: str) -> None:
    """RunFailed unless all indexes lie in first .. end - 1: kernels do not check indexes."""
    if len(index):
        least, most = int(index.min()), int(index.max())
        if least < first or most >= end:
            raise RunFailed(f"internal error: {what}: rows {least} to {most} are asked for, there are {first} to {end - 1}")


def check_offsets(offsets: I64, size: int, what: str, error: type[SwjoinError] = RunFailed) -> None:
    """Raise `error` unless the offsets ascend within `size` bytes."""
    if len(offsets) == 0 or offsets[0] < 0 or offsets[-1] > size or (offsets[1:] < offsets[:-1]).any():
        ends = f"{offsets[0]} to {offsets[-1]}" if len(offsets) else "none"
        raise error(f"{what}: offsets ({ends}) of {len(offsets) - 1} rows do not fit {size} bytes")


@kernel
def _gather_bytes(var: U8, starts: I64, offsets: I64, out: U8) -> None:
    """Copy var[starts[i] : starts[i] + length] to out[offsets[i] : offsets[i + 1]] for every i."""
    for i in range(starts.shape[0]):
        copy_items(out, offsets[i], var, starts[i], offsets[i + 1] - offsets[i])


@dataclass(frozen=True)
class PayloadRows:
    """Payload of n tuples, packed row by row.

    fixed: uint8 (n, fixed_bytes). var_offsets: int64 (n + 1,) into var, or None when the layout has no tail.
    var: uint8 (bytes,), the tails one after the other, or None.
    """

    fixed: U8
    var_offsets: I64 | None = None
    var: U8 | None = None

    def __len__(self) -> int:
        return int(self.fixed.shape[0])

    @property
    def layout(self) -> RowLayout:
        return RowLayout(int(self.fixed.shape[1]), self.var_offsets is not None)

    @property
    def nbytes(self) -> int:
        tail = 0 if self.var is None or self.var_offsets is None else self.var.nbytes + self.var_offsets.nbytes
        return self.fixed.nbytes + tail

    @staticmethod
    def empty(layout: RowLayout) -> PayloadRows:
        fixed = np.empty((0, layout.fixed_bytes), np.uint8)
        if not layout.has_var:
            return PayloadRows(fixed)
        return PayloadRows(fixed, np.zeros(1, np.int64), np.empty(0, np.uint8))

    def take(self, index: I64) -> PayloadRows:
        """The rows with these indexes, in that order. RunFailed for an index without a row, or a tail outside `var`."""
        check_indexes(index, 0, len(self), "taking payload rows")
        fixed = np.take(self.fixed, index, axis=0)
        if self.var_offsets is None or self.var is None:
            return PayloadRows(fixed)
        starts, stops = self.var_offsets[index], self.var_offsets[index + 1]
        sizes = stops - starts
        if starts.min(initial=0) < 0 or stops.max(initial=0) > len(self.var) or sizes.min(initial=0) < 0:
            raise RunFailed(f"internal error: taking payload rows: tails do not lie within {len(self.var)} bytes")
        offsets = np.zeros(len(index) + 1, np.int64)
        np.cumsum(sizes, out=offsets[1:])
        var = np.empty(int(offsets[-1]), np.uint8)
        _gather_bytes(self.var, starts, offsets, var)
        return PayloadRows(fixed, offsets, var)

    def slice(self, start: int, stop: int) -> PayloadRows:
        """Rows start..stop; the fixed part is a view, tail offsets are rebased to zero."""
        fixed = self.fixed[start:stop]
        if self.var_offsets is None or self.var is None:
            return PayloadRows(fixed)
        offsets = self.var_offsets[start : stop + 1]
        return PayloadRows(fixed, offsets - offsets[0], self.var[offsets[0] : offsets[-1]])

    @staticmethod
    def concat(parts: Sequence[PayloadRows], layout: RowLayout) -> PayloadRows:
        if not parts:
            return PayloadRows.empty(layout)
        if len(parts) == 1:
            return parts[0]
        fixed = np.concatenate([p.fixed for p in parts])
        if not layout.has_var:
            return PayloadRows(fixed)
        lengths = [np.diff(p.var_offsets) for p in parts if p.var_offsets is not None]
        offsets = np.zeros(len(fixed) + 1, np.int64)
        np.cumsum(np.concatenate(lengths), out=offsets[1:])
        return PayloadRows(fixed, offsets, np.concatenate([p.var for p in parts if p.var is not None]))


@dataclass(frozen=True)
class TupleBatch:
    """n tuples of one stream, in stream order.

    key: int64 (n,), the join attribute (codes of strings and multi-column keys; between stages hashes of them).
    ts: int64 (n,), microseconds. id: uint64 (n,), position in the input, or the user's id.
    arrival_us: int64 (n,), when the master read the tuple, microseconds of the run's clock (production delay starts there).
    rows: the payload, or None when no payload is carried. columns: what travels between the stages of a plan, instead of rows.
    """

    key: I64
    ts: I64
    id: U64
    arrival_us: I64
    rows: PayloadRows | None = None
    columns: Columns | None = None

    def __len__(self) -> int:
        return int(self.key.shape[0])

    @property
    def nbytes(self) -> int:
        return 32 * len(self) + sum(part.nbytes for part in (self.rows, self.columns) if part is not None)

    @staticmethod
    def empty(layout: RowLayout | None = None) -> TupleBatch:
        zero = np.empty(0, np.int64)
        return TupleBatch(zero, zero, np.empty(0, np.uint64), zero, None if layout is None else PayloadRows.empty(layout))

    def take(self, index: I64) -> TupleBatch:
        rows = None if self.rows is None else self.rows.take(index)
        columns = None if self.columns is None else self.columns.take(index)
        key, ts = self.key.take(index), self.ts.take(index)
        return TupleBatch(key, ts, self.id.take(index), self.arrival_us.take(index), rows, columns)

    def pieces(self, starts: I64, lengths: I64) -> TupleBatch:
        """All tuples, in pieces from these positions on, one after the other. int64 (pieces,); each piece is of one
        partition-group, and these ascend."""
        return self.take(np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(len(self)))

    def slice(self, start: int, stop: int) -> TupleBatch:
        rows = None if self.rows is None else self.rows.slice(start, stop)
        columns = None if self.columns is None else self.columns.slice(start, stop)
        cut = slice(start, stop)
        return TupleBatch(self.key[cut], self.ts[cut], self.id[cut], self.arrival_us[cut], rows, columns)

    @staticmethod
    def concat(parts: Sequence[TupleBatch]) -> TupleBatch:
        return parts[0] if len(parts) == 1 else parts[0].followed_by(parts[1:])

    def followed_by(self, others: Sequence[TupleBatch]) -> TupleBatch:
        """This batch and the others after it, of the same kind."""
        parts = [self, *others]
        rows = None
        if self.rows is not None:
            rows = PayloadRows.concat([p.rows for p in parts if p.rows is not None], self.rows.layout)
        columns = [p.columns for p in parts if p.columns is not None]
        return TupleBatch(
            np.concatenate([p.key for p in parts]),
            np.concatenate([p.ts for p in parts]),
            np.concatenate([p.id for p in parts]),
            np.concatenate([p.arrival_us for p in parts]),
            rows,
            Columns.concat(columns) if columns else None,
        )


class StoredBatch(Protocol):
    """Tuples in time order outside of memory, stored as long as they are referenced."""

    @property
    def nbytes(self) -> int:
        """Bytes in memory once loaded."""
        ...

    @property
    def first_ts_us(self) -> int: ...

    @property
    def last_ts_us(self) -> int: ...

    def __len__(self) -> int: ...

    def load(self) -> TupleBatch:
        """The tuples. RunFailed when they cannot be read, or have changed."""
        ...


def in_memory(batch: TupleBatch | StoredBatch) -> TupleBatch:
    """The tuples, loaded if need be."""
    return batch if isinstance(batch, TupleBatch) else batch.load()


def check_layout(batches: Sequence[TupleBatch], layout: RowLayout | None, what: str) -> None:
    """RunFailed unless received batches have payload rows of this layout, whose width kernels do not check."""
    for batch in batches:
        found = None if batch.rows is None else batch.rows.layout
        if len(batch) and found != layout:
            raise RunFailed(f"{what}: payload rows of {found}, the stream has {layout}")


@dataclass(frozen=True)
class SourceBatch:
    """Rows of one stream as a source reads them, null keys and late rows included.

    key_valid, ts_valid: bool (n,), or None when every row is valid. A row with a null key never matches, a row with a null
    time follows the late policy; both keep their ids, and the master counts them. key and ts of invalid rows are unspecified.
    id: uint64 (n,). columns: of a source of a plan, whose keys are unspecified: each stage has keys of its own. high_us: int64
    (n,), ascending: of a stream that is merged from splits, the greatest time of each row's split up to that row, by which it
    is late; None: the rows' own times say it.
    """

    key: I64
    ts: I64
    id: U64
    key_valid: Bool | None = None
    ts_valid: Bool | None = None
    rows: PayloadRows | None = None
    columns: Columns | None = None
    high_us: I64 | None = None

    def __len__(self) -> int:
        return int(self.key.shape[0])


@dataclass(frozen=True)
class Pairs:
    """n joined pairs: the common key, both times (microseconds), both ids, and both payloads when the sink wants rows.

    side: LEFT or RIGHT for rows of that stream alone: the other id is 2^64 - 1, its time is unspecified, it has no payload.
    null_keys: the keys of such rows are unspecified, too. Pairs of ids only have empty keys and times.
    """

    key: I64
    left_ts: I64
    right_ts: I64
    left_id: U64
    right_id: U64
    left_rows: PayloadRows | None = None
    right_rows: PayloadRows | None = None
    side: int = BOTH
    null_keys: bool = False

    def __len__(self) -> int:
        return int(self.left_id.shape[0])

    @staticmethod
    def alone(stream: int, tuples: TupleBatch, *, null_keys: bool = False) -> Pairs:
        """Tuples of one stream as result rows."""
        nothing, missing = np.zeros(len(tuples), np.int64), np.full(len(tuples), MISSING_ID, np.uint64)
        key, ts, ids, rows = tuples.key, tuples.ts, tuples.id, tuples.rows
        if stream == LEFT:
            return Pairs(key, ts, nothing, ids, missing, rows, None, stream, null_keys)
        return Pairs(key, nothing, ts, missing, ids, None, rows, stream, null_keys)

    @property
    def nbytes(self) -> int:
        rows = sum(r.nbytes for r in (self.left_rows, self.right_rows) if r is not None)
        return 40 * len(self) + rows


@dataclass(frozen=True)
class ResultRows:
    """n rows of the result of a plan that ends with filters or projections. id: uint64 (n,), of the row. ts: int64 (n,),
    microseconds. columns: None where results are only counted. ranks: of rows of several queries at once, int64 (n,), of each
    row the first of these that has it, as have all after it (`plan.families`); None: they are of one query."""

    id: U64
    ts: I64
    columns: Columns | None
    ranks: I64 | None = None

    def __len__(self) -> int:
        return int(self.id.shape[0])

    def slice(self, start: int, stop: int) -> ResultRows:
        """A part of the rows, views."""
        columns = None if self.columns is None else self.columns.slice(start, stop)
        return ResultRows(
            self.id[start:stop], self.ts[start:stop], columns, None if self.ranks is None else self.ranks[start:stop]
        )

    @property
    def nbytes(self) -> int:
        ranks = 0 if self.ranks is None else self.ranks.nbytes
        return 16 * len(self) + ranks + (0 if self.columns is None else self.columns.nbytes)


def empty_pairs(left: RowLayout | None, right: RowLayout | None) -> Pairs:
    """No pairs, with payload rows of the given layouts."""
    zero, ids = np.empty(0, np.int64), np.empty(0, np.uint64)
    rows = [None if layout is None else PayloadRows.empty(layout) for layout in (left, right)]
    return Pairs(zero, zero, zero, ids, ids, rows[0], rows[1])
