"""The highest rate (or other value) at which a system keeps up, by bisection.

What: `bisect(...) -> Found`.
Why: runs are dear, so each probe halves what is open.
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
    """value: the highest one that was sustained; None: not even low. between: it and the lowest that was not (or None)."""

    value: float | None
    between: tuple[float | None, float | None]
    note: str


def _between(low: float, high: float, whole: bool) -> float:
    """Their geometric mean, by 4 digits, so that it reads well; as whole numbers when both are."""
    middle = math.sqrt(low * high)
    digits = 3 - math.floor(math.log10(middle))
    rounded = round(middle, digits)
    if whole:
        rounded = round(rounded)
    return rounded if low < rounded < high else middle


def bisect(search: Search, probe: Callable[[float], bool]) -> Found:
    """The highest sustained value, by a factor of 1 + precision.

    Both ends are assumed (low sustained, high not) until all else has been tried: probes far beyond saturation are the dearest,
    and most searches end in between.
    """
    low, high = float(search.low), float(search.high)
    whole = isinstance(search.low, int) and isinstance(search.high, int)
    sure_of_low = sure_of_high = False
    while high / low > 1 + search.precision:
        value = _between(low, high, whole)
        if not low < value < high or (whole and value != int(value)):
            break
        if probe(int(value) if whole else value):
            low, sure_of_low = value, True
        else:
            high, sure_of_high = value, True
    if not sure_of_high:
        if probe(search.high):
            return Found(high, (high, None), f"at least {high:g}: the upper end of the search is sustained")
        sure_of_low = sure_of_low or probe(search.low)
    elif not sure_of_low:
        sure_of_low = probe(search.low)
    if not sure_of_low:
        return Found(None, (None, low), f"below {low:g}: the lower end of the search is not sustained")
    return Found(low, (low, high), "")
