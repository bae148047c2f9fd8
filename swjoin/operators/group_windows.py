"""The operators of windows that depend on a group's other rows: windows of tuples, windows of time aligned to data, and views.

What: `TupleWindows`, `AlignedWindows` and `Views`, operators as `JoinOperator` describes them.
Why: a row's number in its group, the time from which a group's windows are counted, and the row after it are final when the
watermark has passed; rows are kept until then, and of every group one row for the run, which has the number or the time.
Stays out: columns of rows (`core.kept_columns`), what is computed of a window's rows (`operators.aggregation`, behind it).

A row comes out once for each window that has it. Window k of tuples has the rows of its group with numbers k slide to k slide
+ size - 1, in the order of time and id; one that the stream does not fill comes out at its end, or not at all. Window k aligned
to data is [t0 + k slide, t0 + k slide + size], both ends included, where t0 is the time of the group's first row. View k, at
time k slide, has the last row of each group that is not later; it comes out when a row of its time or a later one is final.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import END_OF_TIME_US, LAST_TIME_US
from swjoin.core.kept_columns import RepeatedColumns
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.keyed_operator import Limits

_WAITING = -1  # the number of a row that may come to have another
_FAR_US = 1 << 61  # beyond all ends of windows


class _Sorted(NamedTuple):
    """Rows by group, time and id, int64 (n,). by: their positions as they are kept. first: of the first row of each one's
    group, here. group: number of the group. keys, ts: of the rows."""

    by: I64
    first: I64
    group: I64
    keys: I64
    ts: I64


class _Closing(NamedTuple):
    """What ends by a watermark, of the rows of a `_Sorted`, int64 (n,) or bool (n,). low, high: first and last window of each
    row that ends. keys: of the rows from now on. kept: which are needed longer. base: the number, or the time, of the first row
    of the group that is kept. final: how many rows of the group are numbered. least_us: nothing ends before."""

    rows: _Sorted
    low: I64
    high: I64
    keys: I64
    kept: Bool
    base: I64
    final: I64
    least_us: int


class _GroupWindows(RowsOperator):
    what = "window"

    def __init__(self, span: tuple[int, int], columns: RepeatedColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._columns, self._keys = columns, keys
        self._size, self._slide = span

    @abstractmethod
    def _found(self, watermark_us: int) -> _Closing: ...

    @abstractmethod
    def _edges(self, closing: _Closing, at: I64, windows: I64) -> tuple[I64, I64, I64]:
        """Starts and ends of windows, and the times of their rows. at: of a row of each window. int64 (m,)."""

    def _ends(self, watermark_us: int) -> bool:
        """Whether something ends by this time."""
        return len(self._kept) > 0 and (self._least_us < watermark_us or watermark_us == END_OF_TIME_US)

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of the windows that end by this time."""
        if self._ends(watermark_us):
            closing = self._found(watermark_us)
            yield from self._rows_of(closing)
            self._drop(closing)
        self._final_us = max(self._final_us, watermark_us)

    def _pass(self, watermark_us: int) -> None:
        if self._ends(watermark_us):
            self._drop(self._found(watermark_us))
        self._final_us = max(self._final_us, watermark_us)

    def _rows_of(self, closing: _Closing) -> Iterator[tuple[ResultRows, I64]]:
        rows, groups = self._kept.rows, self._kept.groups
        until: I64 = np.cumsum(np.maximum(closing.high - closing.low + 1, 0))
        most = max(1, self._limits.result_bytes * len(rows) // max(1, rows.nbytes))
        for start in range(0, int(until[-1]), most):
            out: I64 = np.arange(start, min(start + most, int(until[-1])))
            at = np.searchsorted(until, out, "right")
            windows = closing.high[at] + 1 - (until[at] - out)
            starts, ends, ts = self._edges(closing, at, windows)
            positions = closing.rows.by[at]
            found = replace(rows.take(positions), key=closing.keys[at])
            yield self._columns.rows(found, windows, ts, (starts, ends)), groups[positions]

    def _drop(self, closing: _Closing) -> None:
        """Keep only the rows that are needed longer."""
        rows, groups = self._kept.rows, self._kept.groups
        positions = closing.rows.by[closing.kept]
        self._kept = KeptRows()
        self._kept.add(replace(rows.take(positions), key=closing.keys[closing.kept]), groups[positions])
        self._least_us = closing.least_us

    def _sorted(self) -> _Sorted:
        rows = self._kept.rows
        codes, nulls = self._columns.encoded(self._keys, rows)
        by = np.lexsort((rows.id, rows.ts, nulls, codes))
        codes, nulls = codes[by], nulls[by]
        new = np.ones(len(by), np.bool_)
        new[1:] = (codes[1:] != codes[:-1]) | (nulls[1:] != nulls[:-1])
        first: I64 = np.maximum.accumulate(np.where(new, np.arange(len(by)), 0))
        return _Sorted(by, first, np.cumsum(new) - 1, rows.key[by], rows.ts[by])


class TupleWindows(_GroupWindows):
    """span: size and slide, rows. partial: whether windows that are not full come out. keys: the encoder of this instance.
    name: owner, for messages. The key of a row that is kept is its number."""

    def __init__(
        self, span: tuple[int, int], columns: RepeatedColumns, keys: GroupKeys, limits: Limits, name: str, *, partial: bool
    ) -> None:
        super().__init__(span, columns, keys, limits, name)
        self._partial = partial

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        super()._accumulate(replace(rows, key=np.full(len(rows), _WAITING, np.int64)), groups, where)

    def _found(self, watermark_us: int) -> _Closing:
        rows, size, slide = self._sorted(), self._size, self._slide
        base = np.maximum(rows.keys[rows.first], 0)
        numbers = base + np.arange(len(base)) - rows.first
        final, known = rows.ts < watermark_us, rows.keys != _WAITING
        before, count = (base + np.bincount(rows.group, which)[rows.group].astype(np.int64) for which in (known, final))
        is_end = watermark_us == END_OF_TIME_US
        next_window = np.maximum((count - size) // slide + 1, 0)  # the first one that is not full
        low = np.maximum(np.maximum((numbers - size) // slide, (before - size) // slide) + 1, 0)
        high = numbers // slide
        if not (is_end and self._partial):
            high = np.minimum(high, next_window - 1)
        kept = ~final | (numbers >= np.minimum(next_window * slide, count - 1))
        if is_end:
            kept[:] = False
        waiting = rows.ts[~final]
        least_us = int(waiting.min()) if len(waiting) else END_OF_TIME_US
        return _Closing(rows, low, high, np.where(final, numbers, _WAITING), kept, base, count, least_us)

    def _edges(self, closing: _Closing, at: I64, windows: I64) -> tuple[I64, I64, I64]:
        rows, count = closing.rows, closing.final[at]
        begin, end = windows * self._slide, windows * self._slide + self._size
        offset = rows.first[at] - closing.base[at]
        starts, ends = rows.ts[offset + begin], rows.ts[offset + np.minimum(end, count) - 1]
        return starts, ends, np.where(end > count, LAST_TIME_US, ends)

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        if len(self._kept):
            rows = self._sorted()
            assert ((rows.keys != _WAITING) == (rows.ts < self._final_us)).all(), f"{self._name}: numbers that are not final"
            follows = (rows.first[1:] == rows.first[:-1]) & (rows.keys[1:] != _WAITING)
            assert (np.diff(rows.keys)[follows] == 1).all(), f"{self._name}: numbers of a group that do not follow each other"


class AlignedWindows(_GroupWindows):
    """span: size and slide, microseconds. at_start: whether a row's time is the start of its window, or the end. keys: the
    encoder of this instance. name: owner, for messages."""

    def __init__(
        self, span: tuple[int, int], columns: RepeatedColumns, keys: GroupKeys, limits: Limits, name: str, *, at_start: bool
    ) -> None:
        super().__init__(span, columns, keys, limits, name)
        self._at_start = at_start

    def _found(self, watermark_us: int) -> _Closing:
        rows, size, slide = self._sorted(), self._size, self._slide
        base = rows.ts[rows.first]
        since = rows.ts - base
        final_us, until_us = max(self._final_us, -_FAR_US), min(watermark_us, _FAR_US)
        low, high = np.maximum(-((size - since) // slide), 0), since // slide
        last_us = base + high * slide + size  # end of the last window that may have the row
        opened = np.maximum(low, -((base + size - until_us) // slide))  # the first window that does not end
        kept = (rows.ts >= watermark_us) | ((last_us >= rows.ts) & (last_us >= watermark_us))
        ends = np.where(rows.ts >= watermark_us, rows.ts, base + opened * slide + size)[kept]
        least_us = int(ends.min()) if len(ends) else END_OF_TIME_US
        kept |= rows.first == np.arange(len(base))
        if watermark_us == END_OF_TIME_US:
            kept[:] = False
        low = np.maximum(low, -((base + size - final_us) // slide))
        high = np.minimum(high, (until_us - 1 - size - base) // slide)
        return _Closing(rows, low, high, rows.keys, kept, base, np.zeros(0, np.int64), least_us)

    def _edges(self, closing: _Closing, at: I64, windows: I64) -> tuple[I64, I64, I64]:
        starts = closing.base[at] + windows * self._slide
        ends = starts + self._size
        return starts, ends, starts if self._at_start else ends

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        if len(self._kept):
            closing = self._found(self._final_us)
            assert closing.kept.all(), f"{self._name}: rows of windows that are closed"
            assert (closing.high < closing.low).all(), f"{self._name}: a window that ended by {self._final_us} us is not out"


class Views(_GroupWindows):
    """every_us: from one view to the next, microseconds. keys: the encoder of this instance. name: owner, for messages. Which
    views are out follows from the rows that are kept: those up to the last one that was final."""

    what = "view"

    def __init__(self, every_us: int, columns: RepeatedColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__((every_us, every_us), columns, keys, limits, name)

    def _found(self, watermark_us: int) -> _Closing:
        rows, every, most = self._sorted(), self._slide, len(self._kept)
        final, is_out = rows.ts < watermark_us, rows.ts < self._final_us
        last = int(rows.ts[final].max()) // every if final.any() else -_FAR_US
        first = int(rows.ts[is_out].max()) // every + 1 if is_out.any() else -_FAR_US
        numbers = -(-rows.ts // every)  # of the first view that has the row
        following: I64 = np.full(most, _FAR_US, np.int64)  # of the first one that has the row after it
        same = rows.group[1:] == rows.group[:-1]
        following[:-1][same] = numbers[1:][same]
        kept = ~final | (following > last)
        if watermark_us == END_OF_TIME_US:
            kept[:] = False
        waiting = rows.ts[~final]
        least_us = int(waiting.min()) if len(waiting) else END_OF_TIME_US
        low, high = np.maximum(numbers, first), np.where(final, np.minimum(following - 1, last), -_FAR_US)
        return _Closing(rows, low, high, rows.keys, kept, rows.ts, np.zeros(0, np.int64), least_us)

    def _edges(self, closing: _Closing, at: I64, windows: I64) -> tuple[I64, I64, I64]:
        times = windows * self._slide
        return times, times, times

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        if len(self._kept):
            closing = self._found(self._final_us)
            assert closing.kept.all(), f"{self._name}: a row that no later view has"
            assert (closing.high < closing.low).all(), f"{self._name}: a view of what was final is not out"
