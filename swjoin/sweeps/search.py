"""The highest rate (or other value) at which real runs are sustained, by bisection.

What: `bisect(search, probe) -> Found`.
Why: runs are expensive, so each probe halves the range.
Stays out: whether a run kept up (`monitor.sustainability`), running probes (`sweeps.runner`), which axis is searched
(`sweeps.experiment`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

from swjoin.sweeps.experiment import Search


@dataclass(frozen=True)
class Found:
    """value: the highest sustained one; None: the lower end is not. between: value and the lowest one that is not sustained."""

    value: float | None
    between: tuple[float | None, float | None]
    note: str


def _between(low: float, high: float, whole: bool) -> float:
    """The geometric mean, rounded to 4 digits for readability; a whole number when both ends are."""
    middle = math.sqrt(low * high)
    digits = 3 - math.floor(math.log10(middle))
    rounded = round(middle, digits)
    if whole:
        rounded = round(rounded)
    return rounded if low < rounded < high else middle


def bisect(search: Search, probe: Callable[[float], bool]) -> Found:
    """The highest sustained value, within a factor of 1 + precision.

    The ends are probed last, and assumed until then (low sustained, high not): probes far beyond saturation take longest, and
    most searches end in between.
    """
    low, high = float(search.low), float(search.high)
    whole = isinstance(search.low, int) and isinstance(search.high, int)
    low_probed = high_probed = False
    while high / low > 1 + search.precision:
        value = _between(low, high, whole)
        if not low < value < high or (whole and value != int(value)):
            break
        if probe(int(value) if whole else value):
            low, low_probed = value, True
        else:
            high, high_probed = value, True
    if not high_probed:
        if probe(search.high):
            return Found(high, (high, None), f"at least {high:g}: the upper end of the search is sustained")
        low_probed = low_probed or probe(search.low)
    elif not low_probed:
        low_probed = probe(search.low)
    if not low_probed:
        return Found(None, (None, low), f"below {low:g}: the lower end of the search is not sustained")
    return Found(low, (low, high), "")
