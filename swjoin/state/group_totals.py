"""What is computed of the rows of each group that are alive, from one step to the next.

What: `GroupTotals`, by code of the group: `numbered`, `take`, `put`.
Why: a step costs the groups in which something happens, however many there are.
Stays out: births and deaths (`state.life_kernel`), which rows are kept (`operators.live_groups`).
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.hashing import GOLDEN, mix64_scalar
from swjoin.core.kernel_cache import kernel
from swjoin.state.life_kernel import Totals, no_totals

_LEAST = 16  # entries of a table
_FEW = 1_024  # groups, up to which those without rows stay


@kernel
def _slots_of(codes: I64, nulls: Bool, known: I64, known_nulls: Bool, table: I64, count: int, out: I64) -> int:
    """The slot of each row's group, a new one for a group that has none. known, known_nulls: of slots, of which so many are in
    use. table: int64, a power of two of entries: slots, or -1. Returns how many slots are in use."""
    mask = np.uint64(table.shape[0] - 1)
    for i in range(codes.shape[0]):
        at = mix64_scalar(np.uint64(codes[i]) * GOLDEN + np.uint64(nulls[i])) & mask
        while table[at] >= 0 and (known[table[at]] != codes[i] or known_nulls[table[at]] != nulls[i]):
            at = (at + np.uint64(1)) & mask
        if table[at] < 0:
            table[at], known[count], known_nulls[count] = count, codes[i], nulls[i]
            count += 1
        out[i] = table[at]
    return count


@kernel
def _number(slots: I64, number_of: I64, numbers: I64, touched: I64) -> int:
    """Numbers of the slots that occur, from 0 on, for each row, and these slots. number_of: of all slots, -1; is left so."""
    count = 0
    for i in range(slots.shape[0]):
        slot = slots[i]
        if number_of[slot] < 0:
            number_of[slot], touched[count] = count, slot
            count += 1
        numbers[i] = number_of[slot]
    for i in range(count):
        number_of[touched[i]] = -1
    return count


class GroupTotals:
    """calls: so many columns are computed."""

    def __init__(self, calls: int) -> None:
        self._count = 0  # slots in use
        self._alive = 0  # groups with rows
        self._set(np.empty(0, np.int64), np.empty(0, np.bool_), no_totals(calls, 0))

    @property
    def nbytes(self) -> int:
        arrays = (self._codes, self._nulls, self._number_of, self._table, *self._totals)
        return sum(array.nbytes for array in arrays)

    def numbered(self, codes: I64, nulls: Bool) -> tuple[I64, I64]:
        """A number, from 0 on, for the group of each row, int64 (n,), and the slots of these groups, int64 (groups,)."""
        if self._count + len(codes) > len(self._codes):
            self._grow(self._count + len(codes))
        slots, numbers, touched = np.empty((3, len(codes)), np.int64)
        self._count = _slots_of(codes, nulls, self._codes, self._nulls, self._table, self._count, slots)
        return numbers, touched[: _number(slots, self._number_of, numbers, touched)].copy()

    def take(self, slots: I64) -> Totals:
        """A copy of the totals of these groups."""
        alive, counts, low, high = (part[..., slots] for part in self._totals)
        return Totals(alive, counts, low, high)

    def put(self, slots: I64, totals: Totals) -> None:
        """Change those of these groups. Slots mean nothing any more."""
        self._alive += int(np.count_nonzero(totals.alive)) - int(np.count_nonzero(self._totals.alive[slots]))
        for mine, theirs in zip(self._totals, totals, strict=True):
            mine[..., slots] = theirs
        if self._count > max(_FEW, 2 * self._alive):
            self._keep(np.flatnonzero(self._totals.alive[: self._count]))

    def by_group(self) -> dict[tuple[int, bool], tuple[list[int], ...]]:
        """Of each group with rows that are alive: how many, and by call counts and words of sums."""
        slots = np.flatnonzero(self._totals.alive[: self._count])
        keys = zip(self._codes[slots].tolist(), self._nulls[slots].tolist(), strict=True)
        values = zip(*(np.atleast_2d(part).T.tolist() for part in self.take(slots)), strict=True)
        return dict(zip(keys, values, strict=True))

    def _keep(self, slots: I64) -> None:
        self._set(self._codes[slots], self._nulls[slots], self.take(slots))

    def _set(self, codes: I64, nulls: Bool, totals: Totals) -> None:
        """These groups alone."""
        self._codes, self._nulls, self._totals = codes, nulls, totals
        self._alive = int(np.count_nonzero(totals.alive))
        self._tabled(len(codes))

    def _grow(self, least: int) -> None:
        """Room for so many groups, or twice as many as there was."""
        used, size = self._count, max(least, 2 * len(self._codes))
        codes, nulls = np.empty(size, np.int64), np.empty(size, np.bool_)
        codes[:used], nulls[:used] = self._codes[:used], self._nulls[:used]
        totals = no_totals(len(self._totals.counts), size)
        for longer, part in zip(totals, self._totals, strict=True):
            longer[..., :used] = part[..., :used]
        self._codes, self._nulls, self._totals = codes, nulls, totals
        self._tabled(used)

    def _tabled(self, used: int) -> None:
        """The table anew, with so many groups, in the order of their slots."""
        size = _LEAST
        while size < 2 * len(self._codes):
            size *= 2
        self._table, self._number_of = np.full(size, -1, np.int64), np.full(len(self._codes), -1, np.int64)
        codes, nulls = self._codes[:used].copy(), self._nulls[:used].copy()
        self._count = _slots_of(codes, nulls, self._codes, self._nulls, self._table, 0, np.empty(used, np.int64))
