"""Planted bugs: how many simulated runs complain of one."""

from __future__ import annotations

from collections.abc import Iterable

from swjoin.core.errors import SwjoinError
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.random_runs import run_simulated


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
