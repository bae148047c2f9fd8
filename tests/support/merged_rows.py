"""The merged order of several producers, by definition."""

from __future__ import annotations

import numpy as np

from swjoin.core.ids import BEGIN_OF_TIME_US

Row = tuple[str, int]  # lane, number in the lane


def places_of(times: list[int | None]) -> list[int]:
    """By definition: the highest time of the lane so far."""
    return np.maximum.accumulate([BEGIN_OF_TIME_US if t is None else t for t in times]).tolist() if times else []


def merged_order(lanes: dict[str, list[int | None]]) -> list[Row]:
    """By definition: by place, then by the lane's name, then as in the lane."""
    placed = [(place, lane, row) for lane, times in lanes.items() for row, place in enumerate(places_of(times))]
    return [(lane, row) for _, lane, row in sorted(placed)]


def late_rows(times: list[int | None], bound: int) -> list[int]:
    high, late = BEGIN_OF_TIME_US, []
    for row, t in enumerate(times):
        if t is not None and t < high - bound:
            late.append(row)
        high = high if t is None else max(high, t)
    return late
