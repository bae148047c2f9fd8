"""Planted bugs: how many simulated runs complain of one."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from swjoin.core.errors import SwjoinError
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.random_runs import run_simulated


def complaints(seeds: Iterable[int], enough: int) -> int:
    """Of the scenarios with these seeds, until that is enough."""
    found = 0
    for _ in texts(seeds, run_simulated):
        found += 1
        if found == enough:
            break
    return found


T = TypeVar("T")


def texts(seeds: Iterable[T], run: Callable[[T], Any]) -> Iterator[str]:
    """The complaints of the runs of these seeds, or scenarios."""
    for seed in seeds:
        try:
            run(seed)
        except (SimulationError, SwjoinError) as error:
            yield str(error)
