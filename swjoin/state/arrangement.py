"""Rows of several inputs by their common key: the windows of a multiway join, and the search for partners.

What: `Arrangement`: `add` rows, then `link` them, or `matches` of them, which links each row once it has met those before it;
`expire`, `keep`.
Why: the inputs of a star have one key, so one table finds the partners of all of them, and a key that one input lacks costs a
look at one entry, however many inputs there are (CQELS Cloud, Algorithm 2).
Stays out: which rows are needed (`operators.multiway_join`), columns (`core.multiway_columns`).

Keys are hashed to buckets. The rows of a bucket and an input are a chain, the newest first. A row meets those that were linked
before it, so each match is found once, by the last of its rows, in whatever order they come. Rows are numbered as they come.
Those before the first one that is needed are gone: a chain ends where it reaches them, and nothing is done to it.

A row is a record of 64-bit words: key, time, id, and a word of its partition-group, part, and the next older row of its chain;
then its payload. Records are rows of a `PayloadStore`, so that what a partner needs lies in one place.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, U8, U64, Bool, PayloadRows, RowLayout, TupleBatch
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel
from swjoin.core.multiway_bounds import MOST_PARTS, Bounds
from swjoin.core.simd import prefetch
from swjoin.expressions.vm import PAGE_BITS
from swjoin.state.payload_store import PayloadStore

I32 = NDArray[np.int32]
I8 = NDArray[np.int8]
_NONE: Final = -1  # the end of a chain
_KEY, _TS, _ID, _LINK, _HEAD = range(5)  # words of a record; its payload begins at _HEAD
_OLDER: Final = (1 << 32) - 1  # bits of the next older row in the word of links
_PART_BIT, _GROUP_BIT = 32, 40
_FIRST = 1_024  # buckets at first: a power of 2
_MOST_ROWS: Final = (1 << 31) - 1  # numbers of rows
_AHEAD, _NEXT, _SOON = 32, 20, 10  # rows whose buckets, the newest of whose chains, and the ones after those, are fetched ahead
_WALKED = 1 << 18  # rows of chains that a call looks at, about
_GONE = 4  # rows are packed when one of so many is needed no longer
_ROW, _LEVEL = 0, 1  # of a cursor
_PAGE_MASK = (1 << PAGE_BITS) - 1


@kernel(inline="always")
def _place(row, slots, first_page, words):  # type: ignore[no-untyped-def]
    """Where a row's record begins."""
    return ((slots[(row >> PAGE_BITS) - first_page] << PAGE_BITS) | (row & _PAGE_MASK)) * words


@kernel(inline="always")
def _bucket(key, buckets):  # type: ignore[no-untyped-def]
    return np.int64(mix64_scalar(np.uint64(key) * GOLDEN) & np.uint64(buckets - 1))


@kernel(inline="always")
def _older(link):  # type: ignore[no-untyped-def]
    return np.int64(np.int32(link & _OLDER))


@kernel(inline="always")
def _with_older(link, row):  # type: ignore[no-untyped-def]
    return (link & ~np.int64(_OLDER)) | (np.int64(row) & _OLDER)


@kernel(allocates=True)
def _buckets_of(keys: I64, buckets: int) -> I64:
    out = np.empty(keys.shape[0], np.int64)
    for i in range(keys.shape[0]):
        out[i] = _bucket(keys[i], buckets)
    return out


@kernel
def _link(arena: I64, slots: I64, shape: I64, heads: I32, parts: int, first: int, stop: int) -> None:
    first_page, words, buckets = shape[0], shape[1], heads.shape[0] // parts
    for i in range(first, stop):
        if i + _AHEAD < stop:
            ahead = arena[_place(i + _AHEAD, slots, first_page, words) + _KEY]
            prefetch(heads, _bucket(ahead, buckets) * parts)
        at = _place(i, slots, first_page, words)
        link = arena[at + _LINK]
        head = _bucket(arena[at + _KEY], buckets) * parts + ((link >> _PART_BIT) & 0xFF)
        arena[at + _LINK] = _with_older(link, heads[head])
        heads[head] = i


@kernel
def _expire(arena: I64, slots: I64, shape: I64, reach: I64, final: int, first: int, stop: int, counts: I64) -> int:
    """The first of these rows that is needed after this time. counts: of rows by partition-group, without those before it."""
    first_page, words = shape[0], shape[1]
    for i in range(first, stop):
        at = _place(i, slots, first_page, words)
        link = arena[at + _LINK]
        if arena[at + _TS] + reach[(link >> _PART_BIT) & 0xFF] >= final:
            return i
        counts[link >> _GROUP_BIT] -= 1
    return stop


@kernel
def _count_needed(arena: I64, slots: I64, shape: I64, reach: I64, final: int, first: int, stop: int) -> int:
    first_page, words, found = shape[0], shape[1], 0
    for i in range(first, stop):
        at = _place(i, slots, first_page, words)
        found += arena[at + _TS] + reach[(arena[at + _LINK] >> _PART_BIT) & 0xFF] >= final
    return found


@kernel
def _bases(arena: I64, slots: I64, shape: I64, buckets: int, first: int, out: I64) -> None:
    """Where the chains of rows begin in `heads`. out: (n,), of the rows from the first one on."""
    first_page, words, parts = shape[0], shape[1], shape[2]
    for i in range(out.shape[0]):
        out[i] = _bucket(arena[_place(first + i, slots, first_page, words) + _KEY], buckets) * parts


@kernel
def _fill(out: I64, keys: I64, ts: I64, ids: I64, groups: I64, parts: I8) -> None:
    """The first words of records. out: (n, words)."""
    for i in range(keys.shape[0]):
        out[i, _KEY], out[i, _TS], out[i, _ID] = keys[i], ts[i], ids[i]
        out[i, _LINK] = groups[i] << _GROUP_BIT | np.int64(parts[i]) << _PART_BIT


@kernel(inline="always")
def _fetch(arena, slots, shape, heads, least, row, base, further):  # type: ignore[no-untyped-def]
    """Prefetch the newest rows of the chains that a row will be searched in, or those after them, if there is one in each."""
    first_page, words, parts = shape[0], shape[1], shape[2]
    p = (arena[_place(row, slots, first_page, words) + _LINK] >> _PART_BIT) & 0xFF
    for q in range(parts):
        if q != p and heads[base + q] < least:
            return
    for q in range(parts):
        if q != p:
            at = _place(np.int64(heads[base + q]), slots, first_page, words)
            if further:
                r = _older(arena[at + _LINK])
                if r >= least:
                    prefetch(arena, _place(r, slots, first_page, words))
            else:
                prefetch(arena, at)


@kernel
def _match(
    arena: I64,
    slots: I64,
    shape: I64,
    heads: I32,
    lower: I64,
    upper: I64,
    order: I64,
    span: I64,
    cursor: I64,
    current: I64,
    bases: I64,
    met: I64,
    out: I32,
) -> tuple[int, int]:
    """Matches of the rows from the cursor on, each of a row with rows that were linked before it. Returns how many there are,
    at most as many as `out` has room for, and how many rows of chains were looked at; the cursor is behind the last row when
    all are found.

    arena, slots: of records. shape: (3,), the first page that is in use, the words of a record, and the parts. order: (parts,
    parts - 1), in which the other parts are searched. span: (2,), the first row that is needed, and behind the last one.
    current: (parts,), the row of each other part that is looked at. bases: as of `_bases`, of the last rows. met: (parts,
    parts, 2), rows with the key that were looked at for a row of the first part in the second's chains, and partners. out: (m,
    parts), rows.
    """
    parts, most, first_page, words = lower.shape[0], out.shape[0], shape[0], shape[1]
    last, walked, found = parts - 2, 0, 0
    least, stop = span[0], span[1]
    begin = stop - bases.shape[0]
    i, level = cursor[_ROW], cursor[_LEVEL]
    while i < stop:
        here = _place(i, slots, first_page, words)
        k, t, p = arena[here + _KEY], arena[here + _TS], (arena[here + _LINK] >> _PART_BIT) & 0xFF
        base = bases[i - begin]
        if level < 0:
            if i + _AHEAD < stop:
                prefetch(heads, bases[i + _AHEAD - begin])
            if i + _NEXT < stop:
                _fetch(arena, slots, shape, heads, least, i + _NEXT, bases[i + _NEXT - begin], False)
                _fetch(arena, slots, shape, heads, least, i + _SOON, bases[i + _SOON - begin], True)
            alone = False
            for j in range(parts - 1):
                if heads[base + order[p, j]] < least:
                    alone = True
                    break
            if not alone:
                level = 0
                current[0] = heads[base + order[p, 0]]
        while level >= 0:
            q = order[p, level]
            r = current[level]
            while r >= least:
                walked += 1
                at = _place(r, slots, first_page, words)
                if arena[at + _KEY] == k:
                    met[p, q, 0] += 1
                    apart = arena[at + _TS] - t
                    if lower[p, q] <= apart <= upper[p, q]:
                        fits = True
                        for j in range(level):
                            other = order[p, j]
                            between = arena[at + _TS] - arena[_place(current[j], slots, first_page, words) + _TS]
                            if between < lower[other, q] or between > upper[other, q]:
                                fits = False
                                break
                        if fits:
                            break
                r = _older(arena[at + _LINK])
            if r < least:
                level -= 1
                if level >= 0:
                    current[level] = _older(arena[_place(current[level], slots, first_page, words) + _LINK])
                    if walked >= _WALKED:
                        cursor[_ROW], cursor[_LEVEL] = i, level
                        return found, walked
                continue
            met[p, q, 1] += 1
            if level < last:
                current[level] = r
                level += 1
                current[level] = heads[base + order[p, level]]
                continue
            for j in range(last):
                out[found, order[p, j]] = current[j]
            out[found, q], out[found, p] = r, i
            found += 1
            current[level] = _older(arena[_place(r, slots, first_page, words) + _LINK])
            if found == most:
                cursor[_ROW], cursor[_LEVEL] = i, level
                return found, walked
        arena[here + _LINK] = _with_older(arena[here + _LINK], heads[base + p])
        heads[base + p] = i
        i += 1
        if walked >= _WALKED:
            break
    cursor[_ROW], cursor[_LEVEL] = i, -1
    return found, walked


class Search(NamedTuple):
    """cursor, current, bases: as of `_match`."""

    cursor: I64
    current: I64
    bases: I64


class Rows(NamedTuple):
    """Rows of an arrangement: keys, times in microseconds, ids, partition-groups and parts, (n,), and payload, if there is
    any."""

    key: I64
    ts: I64
    id: U64
    group: I64
    part: I64
    payload: PayloadRows | None


class Arrangement:
    """bounds: of the times of each two parts, 2 to MOST_PARTS. layout: of payload rows; None: there are none. limit_bytes: most
    of the records."""

    def __init__(self, bounds: Bounds, layout: RowLayout | None, limit_bytes: int) -> None:
        self.parts = len(bounds.lower)
        assert 2 <= self.parts <= MOST_PARTS, f"a join of {self.parts} inputs"
        self._bounds, self._reach = bounds, bounds.reach_us
        self._payload, self._limit_bytes = layout, limit_bytes
        fixed = 0 if layout is None else layout.fixed_bytes
        self._layout = RowLayout(8 * (_HEAD + -(-fixed // 8)), layout is not None and layout.has_var)
        self.met = np.zeros((self.parts, self.parts, 2), np.int64)
        self._clear()

    def _clear(self) -> None:
        """Rows are numbered from 0 on again."""
        self._first = self._count = self._linked = 0
        self._check_at = _FIRST  # rows at which those that are needed are counted
        self.counts: I64 = np.zeros(0, np.int64)  # of rows by partition-group
        self._store = PayloadStore(self._layout, self._limit_bytes)
        self._make_buckets(_FIRST)

    def _make_buckets(self, count: int) -> None:
        """count: a power of 2."""
        self._heads = np.full(count * self.parts, _NONE, np.int32)

    def __len__(self) -> int:
        return self._count - self._first

    @property
    def nbytes(self) -> int:
        """Of records and heads of chains, as it is allocated."""
        return self._heads.nbytes + self._store.nbytes

    @property
    def longest_tail(self) -> int:
        """No row has a longer payload of variable length, in bytes."""
        return self._store.longest_tail

    @property
    def _records(self) -> tuple[I64, I64, I64]:
        """Arena and slots, as of `_match`."""
        found = self._store.rows()
        words = self._layout.fixed_bytes // 8
        return found.arena.view(np.int64), found.slots, np.array([found.shape[0], words, self.parts])

    # ------------------------------------------------------------ rows

    @property
    def numbers(self) -> I64:
        """The rows that are here, as they came: int64 (n,)."""
        return np.arange(self._first, self._count)

    @property
    def end(self) -> int:
        """The number of the next row."""
        return self._count

    def rows(self, numbers: I64) -> Rows:
        """numbers: int64 (n,)."""
        found = self._store.gather(numbers)
        words = found.fixed.view(np.int64)
        link, payload = words[:, _LINK], None
        if self._payload is not None:
            fixed = np.ascontiguousarray(found.fixed[:, 8 * _HEAD : 8 * _HEAD + self._payload.fixed_bytes])
            payload = PayloadRows(fixed, found.var_offsets, found.var)
        group, part = link >> _GROUP_BIT, (link >> _PART_BIT) & 0xFF
        return Rows(words[:, _KEY].copy(), words[:, _TS].copy(), words[:, _ID].copy().view(np.uint64), group, part, payload)

    def needed(self, rows: Rows, final_us: int) -> Bool:
        """Which rows may have partners from this time on: bool (n,)."""
        found: Bool = self.needed_until(rows.ts, rows.part) >= final_us
        return found

    def needed_until(self, ts: I64, part: I64 | I8) -> I64:
        """The greatest time of a partner of rows of these times, int64 (n,)."""
        found: I64 = ts + self._reach[part]
        return found

    def add(self, rows: TupleBatch, part: I64 | I8, groups: I64, final_us: int) -> None:
        """Rows that meet nothing yet: with their keys, and payload if there is any. groups: partition-groups. final_us: rows
        that are needed no longer at this time may be given up."""
        if not len(rows):
            return
        self._make_room(len(rows), final_us)
        fixed = np.empty((len(rows), self._layout.fixed_bytes), np.uint8)
        fixed[:, 8 * _HEAD + (0 if self._payload is None else self._payload.fixed_bytes) :] = 0
        words = fixed.view(np.int64)
        _fill(words, rows.key, rows.ts, rows.id.view(np.int64), groups, part.astype(np.int8, copy=False))
        tails: tuple[I64 | None, U8 | None] = None, None
        if self._payload is not None:
            assert rows.rows is not None, "rows without payload"
            fixed[:, 8 * _HEAD : 8 * _HEAD + self._payload.fixed_bytes] = rows.rows.fixed
            tails = rows.rows.var_offsets, rows.rows.var
        first = self._store.append(PayloadRows(fixed, *tails), int(self.needed_until(rows.ts, part).max()))
        assert first == self._count, "a record of another row"
        self._count += len(rows)
        added = np.bincount(groups, minlength=len(self.counts))
        added[: len(self.counts)] += self.counts
        self.counts = added

    def _make_room(self, more: int, final_us: int) -> None:
        """For further rows: chains do not grow with their number, and rows that are needed no longer do not stay."""
        if self._count + more > _MOST_ROWS:
            self.keep(self.numbers)  # numbered from 0 on again
        held = len(self) + more
        if held >= self._check_at:
            needed = _count_needed(*self._records, self._reach, final_us, self._first, self._count)
            if (len(self) - needed) * _GONE >= len(self):
                self.keep(self.numbers[self.needed(self.rows(self.numbers), final_us)])
            self._check_at = held + held // _GONE
        buckets = len(self._heads) // self.parts
        if held > buckets:  # with twice as many rows three times as many have to look at rows of other keys
            while held > buckets:
                buckets *= 2
            linked, self._linked = self._linked, self._first
            self._make_buckets(buckets)
            self._link_until(linked)

    def link(self) -> None:
        """Rows that were added take their places, and meet nothing."""
        self._link_until(self._count)

    def _link_until(self, stop: int) -> None:
        _link(*self._records, self._heads, self.parts, self._linked, stop)
        self._linked = stop

    # ------------------------------------------------------------ matches

    def begin(self) -> Search:
        """A search for matches of the rows that are not linked: where it is, for `matches`."""
        bases = np.empty(self._count - self._linked, np.int64)
        _bases(*self._records, len(self._heads) // self.parts, self._linked, bases)
        return Search(np.array([self._linked, -1]), np.empty(self.parts, np.int64), bases)

    def matches(self, search: Search, order: I64, most: int) -> tuple[I32, int, bool]:
        """Some matches, rows by part: int32 (m, parts), m at most `most`; how many rows of chains were looked at; and whether
        there are no more. order: (parts, parts - 1), in which the other parts are searched for each."""
        cursor = search.cursor
        out, span = np.empty((most, self.parts), np.int32), np.array([self._first, self._count])
        found, walked = _match(*self._records, self._heads, *self._bounds, order, span, *search, self.met, out)
        self._linked = int(cursor[_ROW])
        return out[:found], walked, self._linked == self._count

    # ------------------------------------------------------------ what is kept

    def expire(self, final_us: int) -> None:
        """Give up the rows before the first one that may have partners from this time on."""
        assert self._linked == self._count, "rows that have not met those before them"
        span = self._first, self._count
        self._first = _expire(*self._records, self._reach, final_us, *span, self.counts)
        if self._first == self._count:
            if self._count:
                self._clear()
            return
        self._store.expire(final_us)

    def keep(self, numbers: I64) -> None:
        """These rows alone, int64 (n,), in this order."""
        assert self._linked == self._count, "rows that have not met those before them"
        rows = self.rows(numbers)
        batch = TupleBatch(rows.key, rows.ts, rows.id, np.zeros(len(numbers), np.int64), rows.payload)
        self._clear()
        self.add(batch, rows.part, rows.group, np.iinfo(np.int64).min)
        self.link()

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        assert self._linked == self._count, "rows that have not met those before them"
        assert 0 <= self._first <= self._count, f"rows from {self._first} to {self._count}"
        numbers = self.numbers
        rows, buckets = self.rows(numbers), len(self._heads) // self.parts
        places = _buckets_of(rows.key, buckets) * self.parts + rows.part
        last = np.full(len(self._heads), _NONE, np.int32)
        last[places] = numbers  # the last assignment stays
        assert (np.where(self._heads >= self._first, self._heads, _NONE) == last).all(), "a chain begins with another row"
        words = self._store.gather(numbers).fixed.view(np.int64)
        older = (words[:, _LINK] & _OLDER).astype(np.uint32).view(np.int32).astype(np.int64)
        linked = older >= self._first
        assert (older[linked] < numbers[linked]).all(), "a chain goes on to a newer row"
        assert (places[older[linked] - self._first] == places[linked]).all(), "a chain has rows of two buckets or parts"
        assert int(np.count_nonzero(~linked)) == len(np.unique(places)), "rows are in no chain"
        size = len(self.counts)
        assert (np.bincount(rows.group, minlength=size) == self.counts).all(), "partition-groups have other numbers of rows"
        self._store.validate()
