"""Keys of a join by a band: pairs whose values differ by at most so much, where an equality asks for equal values.

What: `BandKeys`, which says what a key of either side means.
Why: hashing tells equal values from others; partners of a band are near each other. So what is hashed is the cell in which a
value lies, 2 ** cell_bits keys wide, and the tag of a key counts on within its cell: a comparison of tags finds a range of
values as it finds one value. Partition-groups, their moves and their tuning stay those of an equality.
Stays out: which conditions are bands (`frontends.sql.bands`), the hash of a cell (`core.hashing`), comparing
(`state.join_kernel`, `state.candidates`).

The narrow side's row with the value x has the key 2 x. The wide side's partners lie in first .. first + width: its row has the
key 2 first and, where first + width lies in the next cell, a copy with 2 (first + width) + 1. Of each pair, one of the two has
the cell of x. A cell is at least 32 times as wide as the span, so few rows are copied. Keys have 63 bits: values beyond
2 ** 61 are taken as the nearest one within, and such pairs are tested by the condition itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError

LEAST_VALUE, GREATEST_VALUE = -(1 << 61), (1 << 61) - 1
LEAST_KEY, GREATEST_KEY = 2 * LEAST_VALUE + 2, 2 * GREATEST_VALUE - 1  # others stand for values beyond, too
WIDEST = 1 << 55  # of `BandKeys.of_width`
_SPANS = 32  # that fit a cell


@dataclass(frozen=True)
class BandKeys:
    """width: greatest distance of a partner from the first possible one, in values. cell_bits: of keys. wide: the side, LEFT or
    RIGHT, whose rows may have a copy. exact: keys within bounds tell partners without the condition."""

    width: int
    cell_bits: int
    wide: int
    exact: bool = False

    @classmethod
    def of_width(cls, width: int, wide: int, *, exact: bool) -> BandKeys:
        """width: at most WIDEST."""
        return cls(width, (_SPANS * (2 * width + 2) - 1).bit_length(), wide, exact)

    def check(self, subject: str) -> None:
        """UserError for keys that overlap more than two cells, or more bits than there are."""
        if self.width < 0 or self.wide not in (0, 1) or not 0 < self.cell_bits < 63 or 2 * self.width + 2 > 1 << self.cell_bits:
            raise UserError(f"no keys of a band: {self}", subject=subject)

    @property
    def span(self) -> int:
        """Greatest difference of the keys of partners, but for a copy's."""
        return 2 * self.width

    @property
    def unit_bits(self) -> int:
        """Keys that share a tag are 2 ** unit_bits; a span has at most 32 tags, a cell at most 2 ** 16."""
        return max(0, self.span.bit_length() - 5, self.cell_bits - 16)

    def narrow_keys(self, values: I64) -> I64:
        """Keys of the narrow side's rows, int64 (n,)."""
        return 2 * np.clip(values, LEAST_VALUE, GREATEST_VALUE)

    def wide_keys(self, first: I64) -> tuple[I64, I64]:
        """Of the wide side's rows with partners first .. first + width, int64 (n,), and of their copies behind them: positions
        and keys. first + width must not overflow."""
        one, other = self.narrow_keys(first), self.narrow_keys(first + self.width) + 1
        twice = one >> self.cell_bits != other >> self.cell_bits
        positions = np.repeat(np.arange(len(first)), 1 + twice)
        keys = one[positions]
        keys[np.cumsum(1 + twice)[twice] - 1] = other[twice]
        return positions, keys

    def meet(self, left: I64, right: I64) -> Bool:
        """Which pairs of keys, int64 (n,), are those of partners, as far as keys tell: the definition that kernels follow."""
        narrow, wide = (left, right) if self.wide else (right, left)
        apart = narrow - wide + (wide & 1) * (self.span + 1)
        out: Bool = (apart >= 0) & (apart <= self.span) & (narrow >> self.cell_bits == wide >> self.cell_bits)
        return out
