"""The latest right row of each key of an as-of join: a hash table of buckets whose entries are the rows themselves.

What: `LatestRows`, its arrays as `Latest`; `entry_of` and `new_entry`, where a key is and where it goes, as kernels.
Why: of a key that has no row the tags of a bucket tell it, one line of the cache; and as a row overwrites the one that it
supersedes, what is superseded is not kept and need not be dropped.
Stays out: which rows are looked at, and when (`state.as_of_kernel`).

The low bits of a key's hash say in which bucket it is; those of its partition-group are the high ones, those of its tag are
between them. A bucket that is full drops the keys that nothing needs any more; if it is still full, a new key goes to the next
bucket, and this one is marked for good. A table with too many keys or marks is copied.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, U8
from swjoin.core.hashing import hash_key
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import KEY, ROW, TS
from swjoin.core.simd import LANES, match_mask, trailing_zeros

I32 = NDArray[np.int32]
NONE = -1
NO_ROW = -(1 << 63)  # in place of a row's time: there is a key, and no row of it
KEYS, ROWS, MARKS = 0, 1, 2  # of `Latest.counts`
_SLOTS = 56  # entries of a bucket that are in use; the last byte of its tags is its mark
_IN_USE = np.uint64((1 << _SLOTS) - 1)
_MARK = LANES - 1
_ONE, _NO_TAG = np.uint64(1), np.uint8(0)


class Latest(NamedTuple):
    """The entries of a table, LANES for each bucket. The number of buckets is a power of two."""

    tags: U8  # (size,) 0: no key is here
    rows: I64  # (size * ROW,) the latest row; its time is NO_ROW where there is none
    group: I32  # (size,) partition-group of the key
    last: I32  # (size,) position of the latest row in its stream, or NONE, if rows are chained; (0,) otherwise
    held: I32  # (size,) first of the held left rows of the key, or NONE, if left rows are held; (0,) otherwise
    counts: I64  # (3,) keys, those that have a row, and marked buckets


# ---------------------------------------------------------------- looking for a key


@kernel(inline="always")
def tag_of_key(hashed):  # type: ignore[no-untyped-def]
    """uint8 tag of a hash: bits 24 to 31, and 1 for 0."""
    return np.uint8(max((hashed >> np.uint64(24)) & np.uint64(0xFF), _ONE))


@kernel(inline="always")
def first_of_bucket(hashed, size):  # type: ignore[no-untyped-def]
    """The first entry of a key's bucket, in a table of so many entries."""
    return np.int64(hashed & np.uint64(size // LANES - 1)) * LANES


@kernel(inline="always")
def likely_entry(hashed, tags):  # type: ignore[no-untyped-def]
    """An entry of the key's bucket with its tag, or else a free one, or NONE; and which of them: what to prefetch."""
    first = first_of_bucket(hashed, tags.shape[0])
    found = match_mask(tags, first, tag_of_key(hashed)) & _IN_USE
    is_known = found != np.uint64(0)
    if not is_known:
        found = match_mask(tags, first, _NO_TAG) & _IN_USE
    return first + trailing_zeros(found) if found != np.uint64(0) else np.int64(NONE), is_known


@kernel
def entry_of(key: int, hashed: int, tags: U8, rows: I64) -> int:
    """The entry of a key, or NONE."""
    size, tag = tags.shape[0], tag_of_key(hashed)
    first = first_of_bucket(hashed, size)
    while True:
        found = match_mask(tags, first, tag) & _IN_USE
        while found != np.uint64(0):
            at = first + trailing_zeros(found)
            if rows[at * ROW + KEY] == key:
                return int(at)
            found &= found - _ONE
        if tags[first + _MARK] == _NO_TAG:
            return NONE
        first = (first + LANES) & (size - 1)


@kernel
def _entries_of(keys: I64, tags: U8, rows: I64, out: I64) -> None:
    for i in range(keys.shape[0]):
        out[i] = entry_of(keys[i], hash_key(keys[i]), tags, rows)


@kernel(inline="always")
def _is_needed(time, group, held, at, least, without):  # type: ignore[no-untyped-def]
    """Whether a key has a row that may still be a match, or a held left row, and is not of this partition-group."""
    holds = held.shape[0] > 0 and held[at] != NONE
    return group != without and (holds or (time != NO_ROW and time >= least[group]))


@kernel
def _drop_of_bucket(first: int, tags: U8, rows: I64, groups: I32, held: I32, counts: I64, least: I64) -> None:
    for at in range(first, first + _SLOTS):
        time = rows[at * ROW + TS]
        if tags[at] != _NO_TAG and not _is_needed(time, groups[at], held, at, least, NONE):
            tags[at] = _NO_TAG
            counts[KEYS] -= 1
            counts[ROWS] -= 0 if time == NO_ROW else 1


@kernel
def _made_free(first: int, tags: U8, rows: I64, groups: I32, held: I32, counts: I64, least: I64) -> int:
    """A free entry, of this bucket, which is full, or of the next one with room."""
    size, free = tags.shape[0], np.uint64(0)
    while free == np.uint64(0):
        _drop_of_bucket(first, tags, rows, groups, held, counts, least)
        free = match_mask(tags, first, _NO_TAG) & _IN_USE
        if free == np.uint64(0):
            counts[MARKS] += 1 if tags[first + _MARK] == _NO_TAG else 0
            tags[first + _MARK] = np.uint8(1)
            first = (first + LANES) & (size - 1)
            free = match_mask(tags, first, _NO_TAG) & _IN_USE
    return int(first + trailing_zeros(free))


@kernel(inline="always")
def new_entry(key, hashed, group, tags, rows, groups, last, held, counts, least):  # type: ignore[no-untyped-def]
    """An entry for a key that has none, without a row. tags to counts: of `Latest`. least: times below which rows are no
    matches any more, int64 (groups,)."""
    first = first_of_bucket(hashed, tags.shape[0])
    free = match_mask(tags, first, _NO_TAG) & _IN_USE
    if free != np.uint64(0):
        at = first + trailing_zeros(free)
    else:
        at = np.int64(_made_free(first, tags, rows, groups, held, counts, least))
    tags[at], rows[at * ROW + KEY], rows[at * ROW + TS], groups[at] = tag_of_key(hashed), key, NO_ROW, group
    if last.shape[0] > 0:
        last[at] = NONE
    if held.shape[0] > 0:
        held[at] = NONE
    counts[KEYS] += 1
    return at


@kernel(inline="always")
def is_full(tags, counts):  # type: ignore[no-untyped-def]
    """Whether the table is to be copied before another key comes."""
    buckets = tags.shape[0] // LANES
    return counts[KEYS] >= buckets * (_SLOTS * 3 // 4) or counts[MARKS] * 4 > buckets


# ---------------------------------------------------------------- copying


@kernel
def _about_needed(table: Latest, least: I64, without: int) -> int:
    """About how many keys are needed: of a large table a part is counted."""
    tags, rows, groups, held = table.tags, table.rows, table.group, table.held
    found = looked_at = 0
    every = 16 if tags.shape[0] >= 256 * LANES else 1
    for first in range(0, tags.shape[0], every * LANES):
        looked_at += LANES
        for at in range(first, first + _SLOTS):
            if tags[at] != _NO_TAG and _is_needed(rows[at * ROW + TS], groups[at], held, at, least, without):
                found += 1
    return int(found * tags.shape[0] // looked_at)


@kernel
def _copy_needed(table: Latest, least: I64, without: int, out: Latest) -> bool:
    """Whether all of them fit."""
    tags, rows, groups, last, held = table.tags, table.rows, table.group, table.last, table.held
    to_tags, to_rows, to_groups, to_last, to_held, counts = out.tags, out.rows, out.group, out.last, out.held, out.counts
    for first in range(0, tags.shape[0], LANES):
        for at in range(first, first + _SLOTS):
            if tags[at] == _NO_TAG or not _is_needed(rows[at * ROW + TS], groups[at], held, at, least, without):
                continue
            if is_full(to_tags, counts):
                return False
            key = rows[at * ROW + KEY]
            to = new_entry(key, hash_key(key), groups[at], to_tags, to_rows, to_groups, to_last, to_held, counts, least)
            for word in range(ROW):
                to_rows[to * ROW + word] = rows[at * ROW + word]
            if last.shape[0] > 0:
                to_last[to] = last[at]
            if held.shape[0] > 0:
                to_held[to] = held[at]
            counts[ROWS] += 1 if rows[at * ROW + TS] != NO_ROW else 0
    return not is_full(to_tags, counts)


def _lined_up(size: int) -> U8:
    """Tags of an empty table, whose buckets begin where lines of the cache do."""
    tags = np.zeros(size + LANES, np.uint8)
    start = -tags.ctypes.data % LANES
    return tags[start : start + size]


class LatestRows:
    """chained: earlier rows of a key are asked for too, so the position of the latest one is kept. holds: left rows are
    held."""

    def __init__(self, *, chained: bool, holds: bool) -> None:
        self._chained, self._holds = chained, holds
        self.table = self._new(1)

    def _new(self, buckets: int) -> Latest:
        size = buckets * LANES
        rows, group = np.empty(size * ROW, np.int64), np.empty(size, np.int32)
        last, held = (np.full(size if wanted else 0, NONE, np.int32) for wanted in (self._chained, self._holds))
        return Latest(_lined_up(size), rows, group, last, held, np.zeros(3, np.int64))

    @property
    def nbytes(self) -> int:
        return sum(part.nbytes for part in self.table)

    @property
    def row_count(self) -> int:
        return int(self.table.counts[ROWS])

    @property
    def records(self) -> I64:
        """int64 (size, ROW)."""
        return self.table.rows.reshape(-1, ROW)

    def keys(self) -> I64:
        """Entries of keys: int64 (n,)."""
        used = self.table.tags != 0
        used[_MARK::LANES] = False
        return np.flatnonzero(used)

    def entries(self) -> I64:
        """Entries of keys that have a row: int64 (n,)."""
        keys = self.keys()
        found: I64 = keys[self.records[keys, TS] != NO_ROW]
        return found

    def rebuild(self, least: I64, *, without: int = NONE) -> None:
        """Drop the keys that nothing needs; there is room for at least as many more as stay. least: as of `new_entry`. without:
        a partition-group that leaves."""
        old = self.table
        needed = _about_needed(old, least, without)
        buckets = 1 << max(0, -(-needed // (_SLOTS * 3 // 8)) - 1).bit_length()
        if needed * 8 > old.counts[KEYS] * 7 and without == NONE:  # few could be dropped, so more are to come
            buckets *= 2
        while True:
            self.table = self._new(buckets)
            if _copy_needed(old, least, without, self.table):
                return
            buckets *= 2

    def clear(self) -> None:
        self.table = self._new(1)

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant."""
        table, keys, entries = self.table, self.keys(), self.entries()
        counts = [len(keys), len(entries), np.count_nonzero(table.tags[_MARK::LANES])]
        assert table.counts.tolist() == counts, "keys, rows, or marks are not counted"
        assert (keys % LANES < _SLOTS).all(), "an entry that is not in use has a key"
        found = np.empty(len(keys), np.int64)
        _entries_of(self.records[keys, KEY], table.tags, table.rows, found)
        assert np.array_equal(found, keys), "a key is not where it is looked for"
        if self._chained:
            with_row = keys[table.last[keys] != NONE]
            assert np.array_equal(with_row, entries), "a latest row without a position"
