"""Planted bugs: how many simulated runs complain of one."""

from __future__ import annotations

from collections.abc import Iterable

from swjoin.errors import SwjoinError
from swjoin.runtime.chaos import run_simulated
from swjoin.runtime.simulation_result import SimulationError


def complaints(seeds: Iterable[int], enough: int) -> int:
    """Of the scenarios with these seeds, until that is enough."""
    found = 0
    for seed in seeds:
        try:
            run_simulated(seed)
        except (SimulationError, SwjoinError):
            found += 1
            if found == enough:
                break
    return found
