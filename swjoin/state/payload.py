"""Payload rows of one stream's windows: stored once per slave, found by reference, freed by time.

What: `PayloadStore.append(rows, newest_us) -> first reference`, `gather(references) -> rows`, `expire(dead_below_us)`.
Why: splitting and merging move 32 bytes per tuple, not the payload; rows are gathered only for pairs that leave. Rows are
freed when no pair can need them, which is exact, while blocks leave as a whole.
Stays out: keys and times (`state.arrays`).
"""

from __future__ import annotations

from collections import deque

import numpy as np

from swjoin.batch import I64, PayloadRows, RowLayout


class PayloadStore:
    """Rows with consecutive references in one buffer; the dead front is reclaimed when the buffer would have to grow."""

    def __init__(self, layout: RowLayout) -> None:
        self.layout = layout
        self._fixed = np.empty((0, layout.fixed_bytes), np.uint8)
        self._offsets = np.zeros(1, np.int64)  # into _var, for rows 0..size (has_var only)
        self._var = np.empty(0, np.uint8)
        self._base = 0  # reference of row 0 of the buffers
        self._size = 0
        self._var_size = 0
        self._live = 0  # reference of the oldest row that may still be needed
        self._epochs: deque[tuple[int, int]] = deque()  # (reference after the last row, newest time)

    @property
    def next_reference(self) -> int:
        return self._base + self._size

    @property
    def nbytes(self) -> int:
        """Bytes of rows that may still be needed."""
        rows = self.next_reference - self._live
        tail = self._var_size - int(self._offsets[self._live - self._base]) + 8 * rows if self.layout.has_var else 0
        return rows * self.layout.fixed_bytes + tail

    def append(self, rows: PayloadRows, newest_us: int) -> int:
        """Store rows (copied); returns the reference of the first. newest_us: the highest time among them."""
        n = len(rows)
        self._reserve(n, 0 if rows.var is None else len(rows.var))
        first = self.next_reference
        self._fixed[self._size : self._size + n] = rows.fixed
        if rows.var is not None and rows.var_offsets is not None:
            self._offsets[self._size + 1 : self._size + n + 1] = rows.var_offsets[1:] + self._var_size
            self._var[self._var_size : self._var_size + len(rows.var)] = rows.var
            self._var_size += len(rows.var)
        self._size += n
        if n:
            self._epochs.append((self.next_reference, newest_us))
        return first

    def _reserve(self, rows: int, var: int) -> None:
        fits = self._size + rows <= len(self._fixed) and self._var_size + var <= len(self._var)
        if fits:
            return
        dead = self._live - self._base
        live, kept_var = self._size - dead, self._var_size - int(self._offsets[dead]) if self.layout.has_var else 0
        capacity, var_capacity = len(self._fixed), len(self._var)
        if 2 * (live + rows) > capacity:
            capacity = 2 * (live + rows)
        if 2 * (kept_var + var) > var_capacity:
            var_capacity = 2 * (kept_var + var)
        fixed = self._fixed if capacity == len(self._fixed) else np.empty((capacity, self.layout.fixed_bytes), np.uint8)
        fixed[:live] = self._fixed[dead : self._size]
        self._fixed = fixed
        if self.layout.has_var:
            start = int(self._offsets[dead])
            offsets = np.empty(capacity + 1, np.int64)
            offsets[: live + 1] = self._offsets[dead : self._size + 1] - start
            tail = np.empty(var_capacity, np.uint8)
            tail[:kept_var] = self._var[start : self._var_size]
            self._offsets, self._var, self._var_size = offsets, tail, kept_var
        self._base, self._size = self._live, live

    def gather(self, references: I64) -> PayloadRows:
        """The rows of live references, in that order: int64 (n,) -> n rows."""
        rows = PayloadRows(self._fixed[: self._size])
        if self.layout.has_var:
            rows = PayloadRows(rows.fixed, self._offsets[: self._size + 1], self._var[: self._var_size])
        return rows.take(references - self._base)

    def expire(self, dead_below_us: int) -> None:
        """Rows whose time is below the limit are needed by no pair any more."""
        while self._epochs and self._epochs[0][1] < dead_below_us:
            self._live = self._epochs.popleft()[0]

    def validate(self) -> None:
        assert self._base <= self._live <= self.next_reference, (
            f"payload: {self._base} <= {self._live} <= {self.next_reference}"
        )
        assert self._size <= len(self._fixed), "payload: buffer overrun"
        assert not self._epochs or self._epochs[-1][0] == self.next_reference, "payload: rows without an epoch"
