"""Payload rows of one stream's windows: stored once per slave, found by reference, freed by time.

What: `PayloadStore.append(rows, newest_us) -> first reference`, `gather(references) -> rows`, `expire(dead_below_us)`.
Why: splitting and merging move 32 bytes per tuple, not the payload; rows are gathered only for pairs that leave. Rows are
freed when no pair can need them, which is exact, while blocks leave as a whole.
Stays out: keys and times (`state.arrays`).

The fixed part of a row lies in pages that are used again; so resident memory is what the windows need, and nothing is moved.
Tails of variable length lie in one buffer whose dead front is reclaimed when it would have to grow.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from swjoin.core.batch import I64, U8, PayloadRows, RowLayout, check_indexes, check_offsets
from swjoin.core.errors import WINDOW_MEMORY, RunFailed
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import copy_items, prefetch
from swjoin.expressions.vm import PAGE_BITS, Rows, no_rows

PAGE_ROWS = 1 << PAGE_BITS
_SLACK, _SLACK_BYTES = 4, 1 << 14  # buffers of tails may have so many times the size of their content, and so many bytes more
_AHEAD = 16  # rows between the prefetch of one and its copy


@kernel
def _gather_rows(arena: U8, slots: I64, first_page: int, references: I64, width: int, out: U8) -> None:
    """Copy the rows with these references to out, one after the other."""
    n = references.shape[0]
    for i in range(n):
        if i + _AHEAD < n:
            r = references[i + _AHEAD]
            ahead = (slots[(r >> PAGE_BITS) - first_page] * PAGE_ROWS + (r & (PAGE_ROWS - 1))) * width
            prefetch(arena, ahead)
            prefetch(arena, ahead + width - 1)
        r = references[i]
        source = (slots[(r >> PAGE_BITS) - first_page] * PAGE_ROWS + (r & (PAGE_ROWS - 1))) * width
        copy_items(out, i * width, arena, source, width)


class _Pages:
    """Rows of a fixed width with consecutive references, in pages of PAGE_ROWS rows."""

    def __init__(self, width: int, limit_bytes: int) -> None:
        self.width = width
        self._page_count = max(2, limit_bytes // max(1, width * PAGE_ROWS) + 2)
        try:
            self._arena = np.empty((self._page_count * PAGE_ROWS, width), np.uint8)
        except MemoryError:
            problem = f"{limit_bytes} bytes of payload cannot be reserved"
            raise RunFailed(problem, subject=(WINDOW_MEMORY,), remedy="set it lower") from None
        self._never_used = 0
        self._free: list[int] = []
        self._slots = np.zeros(64, np.int64)  # arena page of every page from _first_page on
        self._first_page = 0
        self._page_end = 0  # pages up to here exist
        self.next_reference = 0

    def append(self, fixed: U8) -> int:
        first = self.next_reference
        at = 0
        while at < len(fixed):
            page, row = divmod(self.next_reference, PAGE_ROWS)
            if page == self._page_end:
                self._add_page()
            n = min(PAGE_ROWS - row, len(fixed) - at)
            to = int(self._slots[page - self._first_page]) * PAGE_ROWS + row
            self._arena[to : to + n] = fixed[at : at + n]
            self.next_reference += n
            at += n
        return first

    def _add_page(self) -> None:
        if self._free:
            slot = self._free.pop()
        elif self._never_used < self._page_count:
            slot, self._never_used = self._never_used, self._never_used + 1
        else:
            problem = f"payload of {self._page_count * PAGE_ROWS * self.width} bytes is full"
            raise RunFailed(problem, remedy=("raise ", WINDOW_MEMORY))
        if self._page_end - self._first_page == len(self._slots):
            self._slots = np.concatenate([self._slots, np.zeros(len(self._slots), np.int64)])
        self._slots[self._page_end - self._first_page] = slot
        self._page_end += 1

    def gather(self, references: I64) -> U8:
        out = np.empty((len(references), self.width), np.uint8)
        if self.width:
            _gather_rows(self._arena.reshape(-1), self._slots, self._first_page, references, self.width, out.reshape(-1))
        return out

    @property
    def bytes(self) -> U8:
        return self._arena.reshape(-1)

    @property
    def slots(self) -> I64:
        return self._slots

    @property
    def first_page(self) -> int:
        return self._first_page

    @property
    def in_use(self) -> int:
        return self._page_end - self._first_page

    @property
    def peak(self) -> int:
        """Most pages that were in use at once: freed ones are taken first."""
        return self._never_used

    def more_for(self, rows: int) -> int:
        """How many further pages so many rows take."""
        return max(0, -(-(self.next_reference + rows) // PAGE_ROWS) - self._page_end)

    def take_back(self, rows: int) -> None:
        """Free the rows that were appended last."""
        self.next_reference -= rows
        end = max(self._first_page, -(-self.next_reference // PAGE_ROWS))
        self._free += self._slots[end - self._first_page : self._page_end - self._first_page].tolist()
        self._page_end = end

    def clear(self) -> None:
        """Free all pages; the next row starts a new one."""
        self.next_reference = self._page_end << PAGE_BITS
        self.free_below(self.next_reference)

    def free_below(self, reference: int) -> None:
        """Free the rows below this reference; pages with only such rows are used again."""
        dead = min(reference >> PAGE_BITS, self._page_end) - self._first_page
        if dead > 0:
            self._free += self._slots[:dead].tolist()
            self._slots[: len(self._slots) - dead] = self._slots[dead:].copy()
            self._first_page += dead

    def validate(self) -> None:
        used = self._slots[: self._page_end - self._first_page].tolist()
        pages = sorted(used + self._free)
        assert pages == list(range(self._never_used)), f"payload: pages {pages} of {self._never_used}, one lost or twice"
        assert self.next_reference <= self._page_end << PAGE_BITS, "payload: rows beyond the last page"


class _Tails:
    """Bytes of rows with consecutive references."""

    def __init__(self) -> None:
        self._offsets = np.zeros(1, np.int64)  # into _bytes, for rows 0..size
        self._bytes = np.empty(0, np.uint8)
        self._base = 0  # reference of row 0
        self._size = 0
        self._used = 0
        self.peak_bytes = 0
        self.longest = 0  # of all tails there have been
        self.tight = False  # grow by what is needed, and no more

    @property
    def offsets(self) -> I64:
        return self._offsets

    @property
    def bytes(self) -> U8:
        return self._bytes

    @property
    def base(self) -> int:
        return self._base

    def live_bytes(self, live: int) -> int:
        """Bytes of the rows from reference `live` on, and of their offsets."""
        return self._used - int(self._offsets[live - self._base]) + 8 * (self._base + self._size - live)

    @property
    def nbytes(self) -> int:
        """Of the buffers, as they are allocated."""
        return len(self._bytes) + 8 * (len(self._offsets) - 1)

    def more_for(self, rows: int, size: int, live: int) -> int:
        """By how much the buffers grow for so many rows of so many bytes in all."""
        if self._fits(rows, size):
            return 0
        capacity, capacity_bytes = self._capacity(rows, size, live)
        return max(0, capacity_bytes + 8 * capacity - self.nbytes)

    def clear(self, reference: int) -> None:
        """No row is needed any more; the next one has this reference."""
        self._offsets, self._bytes = np.zeros(1, np.int64), np.empty(0, np.uint8)
        self._base, self._size, self._used = reference, 0, 0

    def take_back(self, rows: int) -> None:
        """Free the rows that were appended last."""
        self._size -= rows
        self._used = int(self._offsets[self._size])

    def append(self, offsets: I64, data: U8, live: int) -> None:
        n = len(offsets) - 1
        self.longest = max(self.longest, int(np.diff(offsets).max(initial=0)))
        self._reserve(n, len(data), live)
        self._offsets[self._size + 1 : self._size + n + 1] = offsets[1:] + self._used
        self._bytes[self._used : self._used + len(data)] = data
        self._used += len(data)
        self._size += n

    def _fits(self, rows: int, size: int) -> bool:
        return self._size + rows < len(self._offsets) and self._used + size <= len(self._bytes)

    def _kept(self, live: int) -> tuple[int, int]:
        """Rows and bytes from reference `live` on."""
        dead = live - self._base
        return self._size - dead, self._used - int(self._offsets[dead])

    def _capacity(self, rows: int, size: int, live: int) -> tuple[int, int]:
        kept, kept_bytes = self._kept(live)
        if self.tight:
            return kept + rows, kept_bytes + size
        return max(len(self._offsets) - 1, 2 * (kept + rows)), max(len(self._bytes), 2 * (kept_bytes + size))

    def _reserve(self, rows: int, size: int, live: int) -> None:
        if not self._fits(rows, size):
            self._resize(live, *self._capacity(rows, size, live))

    def trim(self, live: int) -> None:
        """Release unused capacity."""
        self._resize(live, *self._kept(live))

    def _resize(self, live: int, capacity: int, capacity_bytes: int) -> None:
        """Move the rows from reference `live` on to buffers of this size."""
        kept, kept_bytes = self._kept(live)
        start = self._used - kept_bytes
        offsets, data = np.empty(capacity + 1, np.int64), np.empty(capacity_bytes, np.uint8)
        offsets[: kept + 1] = self._offsets[self._size - kept : self._size + 1] - start
        data[:kept_bytes] = self._bytes[start : self._used]
        self._offsets, self._bytes, self._used = offsets, data, kept_bytes
        self._base, self._size = live, kept
        self.peak_bytes = max(self.peak_bytes, self.nbytes)

    def sizes(self, references: I64) -> I64:
        """Bytes of the tails of these references."""
        rows = references - self._base
        return self._offsets[rows + 1] - self._offsets[rows]

    def gather(self, references: I64, fixed: U8) -> PayloadRows:
        """The tails of these references, beside the fixed parts already gathered."""
        everything = PayloadRows(
            np.empty((self._size, 0), np.uint8), self._offsets[: self._size + 1], self._bytes[: self._used]
        )
        tails = everything.take(references - self._base)
        return PayloadRows(fixed, tails.var_offsets, tails.var)

    def validate(self, live: int, end: int) -> None:
        """live, end: references of the oldest row that has not been freed, and after the newest."""
        assert self._base <= live, f"payload: tails from {self._base} on, rows from {live} on are live"
        assert self._base + self._size == end, f"payload: tails up to {self._base + self._size}, rows up to {end}"
        check_offsets(self._offsets[: self._size + 1], self._used, "tails of payload")


class PayloadStore:
    """Rows of one layout with consecutive references. limit_bytes: most bytes of fixed parts, reserved and not touched."""

    def __init__(self, layout: RowLayout, limit_bytes: int) -> None:
        self.layout = layout
        self._pages = _Pages(layout.fixed_bytes, limit_bytes)
        self._tails = _Tails() if layout.has_var else None
        self._live = 0  # reference of the oldest row that may still be needed
        self._epochs: deque[tuple[int, int]] = deque()  # (reference after the last row, newest time)

    @property
    def _page_bytes(self) -> int:
        return PAGE_ROWS * self.layout.fixed_bytes

    @property
    def nbytes(self) -> int:
        """Bytes in use: pages as wholes, and the buffers of tails."""
        return self._pages.in_use * self._page_bytes + (0 if self._tails is None else self._tails.nbytes)

    @property
    def peak_bytes(self) -> int:
        """The most there have been; of pages and of tails, each at its own moment."""
        return self._pages.peak * self._page_bytes + (0 if self._tails is None else self._tails.peak_bytes)

    @property
    def live_from(self) -> int:
        """Reference of the oldest row that has not been freed."""
        return self._live

    @property
    def page_count(self) -> int:
        """Pages in use."""
        return self._pages.in_use

    def more_for(self, rows: PayloadRows) -> int:
        """By how many bytes appending these rows makes the store grow."""
        tails = 0 if self._tails is None or rows.var is None else self._tails.more_for(len(rows), len(rows.var), self._live)
        return self._pages.more_for(len(rows)) * self._page_bytes + tails

    @property
    def tight(self) -> bool:
        """Grow buffers for the next rows without a reserve; reset by the next `append`."""
        return self._tails is not None and self._tails.tight

    @tight.setter
    def tight(self, value: bool) -> None:
        if self._tails is not None:
            self._tails.tight = value

    def trim(self) -> None:
        """Release reserves."""
        if self._tails is not None:
            self._tails.trim(self._live)

    def _trim_if_slack(self) -> None:
        """Shrink buffers that are mostly empty, as after a burst."""
        if self._tails is not None and self._tails.nbytes > _SLACK * self._tails.live_bytes(self._live) + _SLACK_BYTES:
            self._tails.trim(self._live)

    @property
    def mean_bytes(self) -> int:
        """Bytes of a row, on average; at least 1."""
        rows = self._pages.next_reference - self._live
        tails = 0 if self._tails is None or rows == 0 else self._tails.live_bytes(self._live) // rows
        return max(1, self.layout.fixed_bytes + tails)

    def append(self, rows: PayloadRows, newest_us: int) -> int:
        """Store rows (copied); returns the reference of the first. newest_us: the highest time among them.

        RunFailed when the pages are full, or the rows are not whole.
        """
        if rows.layout != self.layout:
            raise RunFailed(f"internal error: storing payload: rows of {rows.layout}, the stream has {self.layout}")
        if rows.var_offsets is not None and rows.var is not None:
            check_offsets(rows.var_offsets, len(rows.var), "internal error: storing payload")
        first = self._pages.append(rows.fixed)
        if self._tails is not None and rows.var_offsets is not None and rows.var is not None:
            self._tails.append(rows.var_offsets, rows.var, self._live)
            self._tails.tight = False
        if len(rows):
            self._epochs.append((self._pages.next_reference, newest_us))
        return first

    def take_back(self, first: int, rows: int) -> None:
        """Free the rows of one `append`, if no others have come since. first: as it has returned."""
        if rows and first >= self._live and first + rows == self._pages.next_reference:
            self._epochs.pop()
            self._pages.take_back(rows)
            if self._tails is not None:
                self._tails.take_back(rows)

    def rows(self) -> Rows:
        """The arrays of all rows, for a predicate; valid until the next change."""
        pages = self._pages
        shape = np.array([pages.first_page, pages.width, 0], np.int64)
        if self._tails is None:
            return no_rows()._replace(arena=pages.bytes, slots=pages.slots, shape=shape)
        shape[2] = self._tails.base
        return Rows(pages.bytes, pages.slots, self._tails.offsets, self._tails.bytes, shape)

    def gather(self, references: I64) -> PayloadRows:
        """The rows of live references, in that order: int64 (n,) -> n rows. RunFailed when one of them has been freed."""
        check_indexes(references, self._live, self._pages.next_reference, "gathering payload")
        fixed = self._pages.gather(references)
        return PayloadRows(fixed) if self._tails is None else self._tails.gather(references, fixed)

    @property
    def longest_tail(self) -> int:
        """No row has a longer one, in bytes."""
        return 0 if self._tails is None else self._tails.longest

    def tail_sizes(self, references: I64) -> I64:
        """Bytes of the tails of live references: int64 (n,)."""
        return np.zeros(len(references), np.int64) if self._tails is None else self._tails.sizes(references)

    def expire(self, dead_below_us: int, keep: int | None = None) -> None:
        """Free rows whose time is below the limit: no pair needs them.

        keep: rows from this reference on are still to be joined, and stay whatever their times.
        """
        while self._epochs and self._epochs[0][1] < dead_below_us and (keep is None or self._epochs[0][0] <= keep):
            self._live = self._epochs.popleft()[0]
        if self._epochs or self._live < self._pages.next_reference:
            self._pages.free_below(self._live)
            self._trim_if_slack()
        elif self._pages.in_use:
            self._pages.clear()
            self._live = self._pages.next_reference
            if self._tails is not None:
                self._tails.clear(self._live)

    def validate(self) -> None:
        self._pages.validate()
        assert 0 <= self._live <= self._pages.next_reference, f"payload: {self._live} of {self._pages.next_reference}"
        assert self._pages.first_page << PAGE_BITS <= self._live, "payload: a page with live rows has been freed"
        if self._tails is not None:
            self._tails.validate(self._live, self._pages.next_reference)
        assert not self._epochs or self._epochs[-1][0] == self._pages.next_reference, "payload: rows without an epoch"
