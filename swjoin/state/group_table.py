"""Groups of rows and what is accumulated of each: an open-addressing table, and the accumulators in columns.

What: `GroupTable`: `slots_of`, `add`, `combine`; `taken` and `put`, its groups as bytes for moves.
Why: an aggregate keeps a few numbers per group and pane, whatever the number of rows, and two panes make one.
Stays out: panes and windows (`operators.aggregation`), types of columns (`core.aggregate_columns`).
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, Bool
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel
from swjoin.state.exact_sums import DIGITS, ExactSums, SumState

F64 = NDArray[np.float64]
_FIRST = 64  # slots of an empty table
_NO_PANES: I64 = np.empty(0, np.int64)
_SPECIAL = 3  # words that `ExactSums` has besides digits
_AT_ONCE = 256  # rows whose places are read before any is looked up: misses of the cache overlap
_COUNT, _INTEGERS, _LEAST, _GREATEST = (
    int(Accumulation.COUNT),
    int(Accumulation.INTEGERS),
    int(Accumulation.LEAST),
    int(Accumulation.GREATEST),
)


@kernel(inline="always")
def _read_places(keys, nulls, panes, begin, rows, table, places, seen):  # type: ignore[no-untyped-def]
    """Where these rows are looked up first. Their entries are read, so that misses of the cache overlap; what is in `seen` may
    be old by the time that a row's turn comes."""
    mask = np.uint64(table.shape[0] - 1)
    for j in range(rows):
        at = np.uint64(keys[begin + j]) * GOLDEN + np.uint64(nulls[begin + j])
        if panes.shape[0] > 0:
            at += mix64_scalar(np.uint64(panes[begin + j]))
        places[j] = mix64_scalar(at) & mask
    for j in range(rows):
        seen[j] = table[places[j], 0]


@kernel(allocates=True)
def _find(
    keys: I64,
    nulls: Bool,
    groups: I64,
    panes: I64,
    table: I64,
    key_of: I64,
    null_of: Bool,
    group_of: I64,
    pane_of: I64,
    count: int,
    first: int,
    out: I64,
) -> tuple[int, int]:
    """Slots of the groups from `first` on; new ones get the next. Returns the row for which there is no room, or their number,
    and the number of slots. panes: empty in a table of one pane. table: (n, 2), 2 slot + 2 + whether its key is null, and its
    key; 0 for none."""
    mask = np.uint64(table.shape[0] - 1)
    in_panes = panes.shape[0] > 0
    places, seen = np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.int64)
    for begin in range(first, keys.shape[0], _AT_ONCE):
        rows = min(_AT_ONCE, keys.shape[0] - begin)
        _read_places(keys, nulls, panes, begin, rows, table, places, seen)
        for j in range(rows):
            i, at = begin + j, places[j]
            null = np.int64(nulls[i])
            while True:
                entry = table[at, 0]
                if entry == 0:
                    if count >= key_of.shape[0]:
                        return i, count
                    key_of[count], null_of[count], group_of[count] = keys[i], nulls[i], groups[i]
                    if in_panes:
                        pane_of[count] = panes[i]
                    out[i] = count
                    count += 1
                    table[at, 0], table[at, 1] = 2 * count + null, keys[i]
                    break
                if table[at, 1] == keys[i] and (entry & 1) == null:
                    slot = (entry >> 1) - 1
                    if not in_panes or pane_of[slot] == panes[i]:
                        out[i] = slot
                        break
                at = (at + np.uint64(1)) & mask
    return keys.shape[0], count


@kernel(allocates=True)
def _rehash(table: I64, key_of: I64, null_of: Bool, pane_of: I64, count: int) -> None:
    mask = np.uint64(table.shape[0] - 1)
    places, seen = np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.int64)
    for begin in range(0, count, _AT_ONCE):
        rows = min(_AT_ONCE, count - begin)
        _read_places(key_of, null_of, pane_of, begin, rows, table, places, seen)
        for j in range(rows):
            slot, at = begin + j, places[j]
            while table[at, 0] != 0:
                at = (at + np.uint64(1)) & mask
            table[at, 0], table[at, 1] = 2 * slot + 2 + np.int64(null_of[slot]), key_of[slot]


@kernel
def _add_counts(slots: I64, valid: Bool, words: I64, at: int) -> None:
    every = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if every or valid[i]:
            words[slots[i], at] += 1


@kernel
def _add_integers(slots: I64, valid: Bool, values: I64, unsigned: bool, words: I64, at: int) -> None:
    every = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if every or valid[i]:
            slot, value = slots[i], values[i]
            before = np.uint64(words[slot, at + 1])
            low = before + np.uint64(value)
            words[slot, at] += 1
            words[slot, at + 1] = np.int64(low)
            words[slot, at + 2] += (1 if low < before else 0) - (1 if value < 0 and not unsigned else 0)


@kernel
def _add_wide(slots: I64, valid: Bool, values: I64, words: I64, at: int) -> None:
    """values: (n, 2) words, the low ones first."""
    every = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if every or valid[i]:
            slot = slots[i]
            before = np.uint64(words[slot, at + 1])
            low = before + np.uint64(values[i, 0])
            words[slot, at] += 1
            words[slot, at + 1] = np.int64(low)
            words[slot, at + 2] += values[i, 1] + (1 if low < before else 0)


@kernel
def _add_extremes(slots: I64, valid: Bool, codes: I64, greatest: bool, words: I64, at: int) -> None:
    every = valid.shape[0] == 0
    for i in range(slots.shape[0]):
        if every or valid[i]:
            slot = slots[i]
            held = words[slot, at + 1]
            if words[slot, at] == 0 or (codes[i] > held if greatest else codes[i] < held):
                words[slot, at + 1] = codes[i]
            words[slot, at] += 1


@kernel
def _combine(slots: I64, other: I64, kinds: I64, starts: I64, words: I64, sign: int) -> None:
    """Add the accumulators of other[i] to those of slot slots[i]; with sign -1 take them away, but for extremes."""
    for i in range(slots.shape[0]):
        slot = slots[i]
        for call in range(kinds.shape[0]):
            kind, at = kinds[call], starts[call]
            if kind == _INTEGERS:
                before = np.uint64(words[slot, at + 1])
                if sign > 0:
                    low = before + np.uint64(other[i, at + 1])
                    words[slot, at + 2] += other[i, at + 2] + (1 if low < before else 0)
                else:
                    low = before - np.uint64(other[i, at + 1])
                    words[slot, at + 2] -= other[i, at + 2] + (1 if low > before else 0)
                words[slot, at + 1] = np.int64(low)
            elif kind in (_LEAST, _GREATEST) and other[i, at] > 0:
                held, code = words[slot, at + 1], other[i, at + 1]
                if words[slot, at] == 0 or (code > held if kind == _GREATEST else code < held):
                    words[slot, at + 1] = code
            words[slot, at] += sign * other[i, at]


class GroupTable:
    """kinds: what is accumulated of each call."""

    def __init__(self, kinds: Sequence[Accumulation], size: int = 0, *, in_panes: bool = False) -> None:
        """size: groups for which there is to be room. in_panes: groups of several panes, which are apart."""
        self.kinds = tuple(kinds)
        self._kinds = np.array(self.kinds, np.int64)
        widths = [kind.words for kind in self.kinds]
        self._starts = np.cumsum([0, *widths], dtype=np.int64)[:-1]
        self._count = 0
        room = max(_FIRST, 1 << (size - 1).bit_length())
        self._table = np.zeros((2 * room, 2), np.int64)
        self._key, self._null, self._group = np.empty(room, np.int64), np.empty(room, np.bool_), np.empty(room, np.int64)
        self._pane = np.empty(room if in_panes else 0, np.int64)
        self._words = np.zeros((room, sum(widths)), np.int64)
        self._sums = {i: ExactSums(room) for i, kind in enumerate(self.kinds) if kind == Accumulation.DOUBLES}
        self._nbytes = self._own_bytes()

    def __len__(self) -> int:
        return self._count

    @property
    def nbytes(self) -> int:
        return self._nbytes + (sum(sums.nbytes for sums in self._sums.values()) if self._sums else 0)

    def _own_bytes(self) -> int:
        return sum(part.nbytes for part in (self._table, self._key, self._null, self._group, self._pane, self._words))

    @property
    def keys(self) -> I64:
        """Codes of the groups, int64 (n,)."""
        return self._key[: self._count]

    @property
    def nulls(self) -> Bool:
        """Which of them are null, bool (n,)."""
        return self._null[: self._count]

    @property
    def groups(self) -> I64:
        """Their partition-groups, int64 (n,)."""
        return self._group[: self._count]

    @property
    def in_panes(self) -> bool:
        return len(self._pane) > 0

    @property
    def panes(self) -> I64:
        """Starts of their panes, int64 (n,); none in a table of one pane."""
        return self._pane[: self._count]

    def slots_of(self, keys: I64, nulls: Bool, groups: I64, panes: I64 = _NO_PANES) -> I64:
        """The slot of each row's group, int64 (n,). groups: partition-groups of the rows. panes: starts of their panes, in a
        table of several."""
        assert len(panes) == (len(keys) if self.in_panes else 0), "rows of panes for a table of one, or the reverse"
        out = np.empty(len(keys), np.int64)
        done = 0
        while True:
            held = self._key, self._null, self._group, self._pane
            done, self._count = _find(keys, nulls, groups, panes, self._table, *held, self._count, done, out)
            if done == len(keys):
                return out
            self._grow()

    def _grow(self) -> None:
        """Twice the slots."""
        n = len(self._key)
        held = self._key, self._null, self._group, self._pane
        self._key, self._null, self._group, self._pane = (np.concatenate([a, a]) for a in held)
        words = np.zeros((2 * n, self._words.shape[1]), np.int64)
        words[:n] = self._words
        self._words = words
        for sums in self._sums.values():
            sums.resize(2 * n)
        self._table = np.zeros((4 * n, 2), np.int64)
        _rehash(self._table, self._key, self._null, self._pane, self._count)
        self._nbytes = self._own_bytes()

    def add(self, call: int, slots: I64, valid: Bool | None, values: I64 | F64 | None, *, unsigned: bool = False) -> None:
        """Add a value of each row to its slot. valid: bool (n,), rows with a value; None: all. values: (n,) integers, ordered
        codes or doubles, or (n, 2) words of integers of 128 bits; None where they are only counted."""
        at, kind = int(self._starts[call]), self.kinds[call]
        mask = np.empty(0, np.bool_) if valid is None else valid
        if kind in (Accumulation.COUNT, Accumulation.DOUBLES) or values is None:
            _add_counts(slots, mask, self._words, at)
        if kind == Accumulation.INTEGERS and values is not None and values.ndim == 2:
            _add_wide(slots, mask, values, self._words, at)
        elif kind == Accumulation.INTEGERS:
            _add_integers(slots, mask, values, unsigned, self._words, at)
        elif kind in (Accumulation.LEAST, Accumulation.GREATEST):
            _add_extremes(slots, mask, values, kind == Accumulation.GREATEST, self._words, at)
        elif kind == Accumulation.DOUBLES and values is not None:
            doubles = values.astype(np.float64, copy=False)
            self._sums[call].add(slots if valid is None else slots[valid], doubles if valid is None else doubles[valid])

    def combine(self, other: GroupTable, *, sign: int = 1) -> I64:
        """Add all groups of another table of the same calls; with sign -1 take them away, if no call is an extreme. Returns
        their slots here."""
        slots = self.slots_of(other.keys, other.nulls, other.groups, other.panes)
        _combine(slots, other._words[: other._count], self._kinds, self._starts, self._words, sign)
        for call, sums in self._sums.items():
            sums.combine(slots, other._sums[call], np.arange(other._count), sign=sign)
        return slots

    def add_groups(self, other: GroupTable, slots: I64, panes: I64 = _NO_PANES) -> None:
        """Add groups of another table of the same calls, those of these slots. panes: as for `slots_of`."""
        mine = self.slots_of(other._key[slots], other._null[slots], other._group[slots], panes)
        _combine(mine, other._words[slots], self._kinds, self._starts, self._words, 1)
        for call, sums in self._sums.items():
            sums.combine(mine, other._sums[call], slots)

    def slots_with(self, call: int) -> I64:
        """Slots of groups that have values of a call: int64 (n,)."""
        return np.flatnonzero(self._words[: self._count, self._starts[call]])

    def words(self, call: int, word: int, slots: I64) -> I64:
        """A word of the accumulators of these slots: 0, the number of values; 1 and 2, the sum's low and high bits, or the
        code: int64 (n,)."""
        out: I64 = self._words[slots, self._starts[call] + word]
        return out

    def sums(self, call: int, slots: I64) -> F64:
        """Sums of doubles, exactly rounded: float64 (n,)."""
        return self._sums[call].values(slots)

    # ------------------------------------------------------------ moves

    @property
    def row_words(self) -> int:
        """64-bit words of a group in `taken`: whether its key is null, accumulators, sums."""
        return 1 + self._words.shape[1] + len(self._sums) * (DIGITS + _SPECIAL)

    def taken(self, slots: I64) -> I64:
        """The accumulators of these slots: int64 (n, row_words)."""
        parts = [self._null[slots].astype(np.int64)[:, None], self._words[slots]]
        for sums in self._sums.values():
            parts += list(sums.export(slots))
        return np.concatenate(parts, axis=1)

    def put(self, keys: I64, group: int, rows: I64, panes: I64 = _NO_PANES) -> None:
        """Add groups of which `taken` made the rows. panes: as for `slots_of`."""
        self.add_taken(self.slots_of(keys, rows[:, 0] != 0, np.full(len(keys), group, np.int64), panes), rows)

    def add_taken(self, slots: I64, rows: I64) -> None:
        """Add what `taken` gave to these slots."""
        at = 1 + self._words.shape[1]
        _combine(slots, np.ascontiguousarray(rows[:, 1:at]), self._kinds, self._starts, self._words, 1)
        for sums in self._sums.values():
            digits = at + DIGITS
            sums.restore(slots, SumState(rows[:, at:digits], rows[:, digits : digits + _SPECIAL]))
            at = digits + _SPECIAL

    def without(self, group: int) -> GroupTable:
        """A table of the groups of all other partition-groups."""
        return self.only(np.flatnonzero(self.groups != group))

    def only(self, keep: I64) -> GroupTable:
        """A table of the groups of these slots."""
        rest = GroupTable(self.kinds, len(keep), in_panes=self.in_panes)
        if len(keep):
            rest.add_groups(self, keep, self.panes[keep] if self.in_panes else _NO_PANES)
        return rest
