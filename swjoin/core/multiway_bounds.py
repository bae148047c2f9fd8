"""Bounds between the times of the inputs of a multiway join.

What: `Bounds`; MOST_PARTS.
Why: plans derive them from joins in a row, and the search compares by them.
Stays out: plans (`plan.multiway`), the search (`state.arrangement`).
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np

from swjoin.core.batch import I64

MOST_PARTS: Final = 8  # inputs of a multiway join


class Bounds(NamedTuple):
    """Of the time of a row of the second part - that of one of the first, both inclusive, microseconds: int64 (parts,
    parts)."""

    lower: I64
    upper: I64

    @property
    def reach_us(self) -> I64:
        """By part, how much later than a row its last partner may come: int64 (parts,)."""
        others = self.upper.copy()
        np.fill_diagonal(others, np.iinfo(np.int64).min)
        found: I64 = others.max(axis=1)
        return found
