"""Sums of doubles without an error but the last rounding, of any number of groups, in any order of the values.

What: `ExactSums`: slots, each the sum of the values added to it; `add`, `combine`, `values`, `clear`,
`export`, `restore`; `new_slots`, for other kernels.
Why: the sum of floats in the order of their arrival depends on that order, so on ranks, moves and crashes. Here a sum is an
integer, a multiple of the least double, that is rounded once, half to even, when it is read (as Python's fsum does): the same
whatever the order, and values that have been added can be taken away again, as windows slide.
Stays out: which values belong to which slot. Sums of integers, which need none of this.

A slot is an integer of 32-bit digits, each with a sign. Most sums are of doubles of similar size: six digits, from a `base`
on, are kept in the slot itself. A value that needs others moves the slot's sum to a row of all `DIGITS`. A digit is kept in 64
bits, so 2^30 values go by before carries have to be moved. Infinities and NaN are counted apart.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64
from swjoin.core.kernel_cache import kernel

F64 = NDArray[np.float64]
I32 = NDArray[np.int32]

DIGITS: Final = 68  # digits of 32 bits: doubles have bits from 2^-1074 to 2^1023, sums of 2^63 of them 63 bits more
_NEAR: Final = 6  # digits of a slot without a row
_UNUSED: Final = -1  # base of a slot to which nothing but zeros has been added
_CARRY_AFTER: Final = 1 << 30  # values
_MASK: Final = (1 << 32) - 1
_POSITIVE, _NEGATIVE, _NAN = 0, 1, 2  # columns of `special`


class Slots(NamedTuple):
    """near: int64 (slots, 6), digits. base: int32 (slots,), of the first of these, or -1. row: int32 (slots,), the row in
    `wide`, or -1. uncarried: int64 (slots,), values since carries were moved. special: int64 (slots, 3), infinities and NaN.
    wide: int64 (rows, DIGITS). free: int64 (rows,), rows that no slot has, which are zero."""

    near: I64
    base: I32
    row: I32
    uncarried: I64
    special: I64
    wide: I64
    free: I64


@kernel
def _carry(digits: I64, count: int) -> None:
    """Move carries upwards: all digits but the last become 0 .. 2^32 - 1."""
    for i in range(count - 1):
        up = digits[i] >> 32
        digits[i] -= up << 32
        digits[i + 1] += up


@kernel
def _widen(slots: Slots, slot: int, row: int) -> None:
    """Move the digits of a slot to an empty row."""
    slots.row[slot] = row
    if slots.base[slot] != _UNUSED:
        for i in range(_NEAR):
            slots.wide[row, slots.base[slot] + i] += slots.near[slot, i]


@kernel
def add_values(slots: Slots, at: I64, values: F64, sign: int, start: int, free: int) -> tuple[int, int]:
    """Add values to slots, or with sign -1 take them away, from the value `start` on. free: how many of `slots.free` are.
    Returns the value for which there is no row, or their number, and the rows that are free."""
    bits = values.view(np.int64)
    for i in range(start, values.shape[0]):
        slot, word = at[i], bits[i]
        exponent = (word >> 52) & 0x7FF
        mantissa = word & 0xFFFFFFFFFFFFF
        if exponent == 0x7FF:
            which = _NAN if mantissa else _NEGATIVE if word < 0 else _POSITIVE
            slots.special[slot, which] += sign
            continue
        if exponent:
            mantissa |= 1 << 52
            exponent -= 1
        if mantissa == 0:
            continue
        digit, shift = exponent >> 5, exponent & 31
        if slots.row[slot] < 0:
            if slots.base[slot] == _UNUSED:
                slots.base[slot] = min(max(digit - 2, 0), DIGITS - _NEAR)
            offset = digit - slots.base[slot]
            crowded = slots.uncarried[slot] >= _CARRY_AFTER  # the last digit may be near its end
            if offset < 0 or offset > _NEAR - 3 or crowded:
                if free == 0:
                    return i, free
                free -= 1
                _widen(slots, slot, slots.free[free])
        low = (mantissa << shift) & _MASK
        rest = mantissa >> (32 - shift)  # shift is 31 at most
        middle, high = rest & _MASK, rest >> 32
        if (word < 0) != (sign < 0):
            low, middle, high = -low, -middle, -high
        slots.uncarried[slot] += 1
        if slots.row[slot] < 0:
            offset = digit - slots.base[slot]
            slots.near[slot, offset] += low
            slots.near[slot, offset + 1] += middle
            slots.near[slot, offset + 2] += high
            continue
        digits = slots.wide[slots.row[slot]]
        if slots.uncarried[slot] >= _CARRY_AFTER:
            _carry(digits, DIGITS)
            slots.uncarried[slot] = 1
        digits[digit] += low
        digits[digit + 1] += middle
        digits[digit + 2] += high
    return values.shape[0], free


@kernel
def _rounded(digits: I64, count: int, base: int) -> float:
    """The double nearest to the integer of these `count` carried digits, whose last one has the sign, times 2^(32 base - 1074).
    The digits are overwritten."""
    negative = digits[count - 1] < 0
    if negative:
        for i in range(count):
            digits[i] = -digits[i]
        _carry(digits, count)
    top = count - 1
    while top >= 0 and digits[top] == 0:
        top -= 1
    if top < 0:
        return 0.0
    length = 0  # bits of the highest digit
    while digits[top] >> length:
        length += 1
    lowest = max(32 * top + length - 53, 0)  # of the bits that a double has
    digit, shift = lowest >> 5, lowest & 31
    mantissa = digits[digit] >> shift
    if digit < top:
        mantissa |= digits[digit + 1] << (32 - shift)
    if digit + 1 < top:  # then the shift is 12 at least
        mantissa |= digits[digit + 2] << (64 - shift)
    if lowest > 0:
        digit, shift = (lowest - 1) >> 5, (lowest - 1) & 31
        half = (digits[digit] >> shift) & 1
        below = digits[digit] & ((1 << shift) - 1)
        for i in range(digit):
            below |= digits[i]
        if half and (below or mantissa & 1):
            mantissa += 1
    value = math.ldexp(np.float64(mantissa), lowest + 32 * base - 1074)
    return -value if negative else value


@kernel
def copy_digits(slots: Slots, at: I64, out: I64) -> None:
    """out[i] = all digits of slot at[i], with carries moved."""
    for i in range(at.shape[0]):
        slot = at[i]
        if slots.row[slot] >= 0:
            for k in range(DIGITS):
                out[i, k] = slots.wide[slots.row[slot], k]
        elif slots.base[slot] != _UNUSED:
            for k in range(_NEAR):
                out[i, slots.base[slot] + k] = slots.near[slot, k]
        _carry(out[i], DIGITS)


@kernel(allocates=True)
def read_values(slots: Slots, at: I64, out: F64) -> None:
    """out[i] = the sum of slot at[i], rounded."""
    digits = np.zeros(DIGITS, np.int64)
    for i in range(at.shape[0]):
        slot = at[i]
        special = slots.special[slot]
        if special[_NAN] or (special[_POSITIVE] and special[_NEGATIVE]):
            out[i] = np.nan
        elif special[_POSITIVE]:
            out[i] = np.inf
        elif special[_NEGATIVE]:
            out[i] = -np.inf
        elif slots.row[slot] >= 0:
            digits[:] = slots.wide[slots.row[slot]]
            _carry(digits, DIGITS)
            out[i] = _rounded(digits, DIGITS, 0)
        elif slots.base[slot] == _UNUSED:
            out[i] = 0.0
        else:
            digits[:_NEAR] = slots.near[slot]
            digits[_NEAR : _NEAR + 2] = 0  # of carries
            _carry(digits, _NEAR + 2)
            out[i] = _rounded(digits, _NEAR + 2, slots.base[slot])


@kernel(inline="always")
def _add_row(to, row, sign):  # type: ignore[no-untyped-def]
    for k in range(row.shape[0]):
        to[k] += sign * row[k]


@kernel
def combine_slots(slots: Slots, into: I64, of: Slots, at: I64, sign: int, start: int, free: int) -> tuple[int, int]:
    """Add the sums of slots `at` of `of` to slots `into`, or take them away; see `add_values`."""
    for i in range(start, at.shape[0]):
        slot, other = into[i], at[i]
        if of.row[other] < 0 and of.base[other] == _UNUSED:
            _add_row(slots.special[slot], of.special[other], sign)
            continue
        near = of.row[other] < 0
        if slots.row[slot] < 0:
            if near and slots.base[slot] == _UNUSED:
                slots.base[slot] = of.base[other]
            same = near and slots.base[slot] == of.base[other]
            if not same or slots.uncarried[slot] + of.uncarried[other] >= _CARRY_AFTER:
                if free == 0:
                    return i, free
                free -= 1
                _widen(slots, slot, slots.free[free])
        _add_row(slots.special[slot], of.special[other], sign)
        slots.uncarried[slot] += of.uncarried[other]
        if slots.row[slot] < 0:
            for k in range(_NEAR):
                slots.near[slot, k] += sign * of.near[other, k]
            continue
        digits = slots.wide[slots.row[slot]]
        if slots.uncarried[slot] >= _CARRY_AFTER:
            _carry(digits, DIGITS)
            slots.uncarried[slot] = 1 + of.uncarried[other]
        if near:
            for k in range(_NEAR):
                digits[of.base[other] + k] += sign * of.near[other, k]
        else:
            _add_row(digits, of.wide[of.row[other]], sign)
    return at.shape[0], free


@kernel
def clear_slots(slots: Slots, at: I64, free: int) -> int:
    """Make slots zero. Returns the rows that are free."""
    for i in range(at.shape[0]):
        slot = at[i]
        if slots.row[slot] >= 0:
            slots.wide[slots.row[slot], :] = 0
            slots.free[free] = slots.row[slot]
            free += 1
        slots.near[slot, :] = 0
        slots.special[slot, :] = 0
        slots.base[slot] = slots.row[slot] = _UNUSED
        slots.uncarried[slot] = 0
    return free


class SumState(NamedTuple):
    """Sums of n slots on their own: digits, int64 (n, DIGITS), without carries; special, int64 (n, 3)."""

    digits: I64
    special: I64


class ExactSums:
    """Sums in slots 0 .. size - 1, which are 0.0 at first."""

    def __init__(self, size: int = 0) -> None:
        self._slots = _empty(0, 0)
        self._free = 0  # rows
        self.resize(size)

    @property
    def size(self) -> int:
        return len(self._slots.base)

    @property
    def nbytes(self) -> int:
        return sum(int(part.nbytes) for part in self._slots)

    def resize(self, size: int) -> None:
        """More slots, which are 0.0."""
        if size > self.size:
            self._slots = _grown(self._slots, size, len(self._slots.wide))

    def add(self, slots: I64, values: F64, *, sign: int = 1) -> None:
        """Add each value to its slot; with sign -1 take it away. slots, values: (n,)."""
        self._until_done(len(values), lambda at: add_values(self._slots, slots, values, sign, at, self._free))

    def combine(self, into: I64, other: ExactSums, slots: I64, *, sign: int = 1) -> None:
        """Add the sums of slots of another `ExactSums` to slots of this one; with sign -1 take them away. (n,)."""
        assert other is not self, "slots are combined with those of others"
        self._until_done(len(slots), lambda at: combine_slots(self._slots, into, other._slots, slots, sign, at, self._free))

    def _until_done(self, count: int, some: Callable[[int], tuple[int, int]]) -> None:
        """Repeat a kernel, from the position at which it lacked a row."""
        done, self._free = some(0)
        while done < count:
            rows = len(self._slots.wide)
            more = max(16, rows)
            self._slots = _grown(self._slots, self.size, rows + more)
            self._slots.free[:more] = np.arange(rows, rows + more)  # none was free
            self._free = more
            done, self._free = some(done)

    def values(self, slots: I64) -> F64:
        """The sums of these slots, each rounded once: float64 (n,)."""
        out = np.empty(len(slots))
        read_values(self._slots, slots, out)
        return out

    def clear(self, slots: I64) -> None:
        """Make the sums of these slots, each named once, 0.0."""
        self._free = clear_slots(self._slots, slots, self._free)

    def export(self, slots: I64) -> SumState:
        """The sums of these slots, to be moved or saved."""
        digits = np.zeros((len(slots), DIGITS), np.int64)
        copy_digits(self._slots, slots, digits)
        return SumState(digits, self._slots.special[slots])

    def restore(self, slots: I64, state: SumState) -> None:
        """Add exported sums to these slots."""
        whole = _empty(len(slots), len(slots))
        whole.wide[:] = state.digits
        whole.special[:] = state.special
        whole.row[:] = np.arange(len(slots))
        whole.uncarried[:] = 1
        other = ExactSums()
        other._slots = whole
        self.combine(slots, other, np.arange(len(slots)))


def new_slots(count: int) -> Slots:
    """Slots that are 0.0, for kernels, with a free row for each."""
    slots = _empty(count, count)
    slots.free[:] = np.arange(count)
    return slots


def _empty(slots: int, rows: int) -> Slots:
    unused = np.full(slots, _UNUSED, np.int32)
    return Slots(
        np.zeros((slots, _NEAR), np.int64),
        unused,
        unused.copy(),
        np.zeros(slots, np.int64),
        np.zeros((slots, 3), np.int64),
        np.zeros((rows, DIGITS), np.int64),
        np.zeros(rows, np.int64),
    )


def _grown(slots: Slots, size: int, rows: int) -> Slots:
    """The same sums with room for more slots and rows."""
    grown = _empty(size, rows)
    for name, old in slots._asdict().items():
        getattr(grown, name)[: len(old)] = old
    return grown
