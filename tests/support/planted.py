"""Planted bugs: how many simulated runs complain of one; scenarios in which much moves, or is restored."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from swjoin.config.run import OverloadConfig
from swjoin.core.errors import SwjoinError
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.random_plans import PlanScenario, simulate
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


# ---------------------------------------------------------------- plans


def caught(plans: Sequence[PlanScenario], enough: int = 1) -> list[str]:
    """The first complaints of their runs."""
    found = texts(plans, lambda scenario: simulate(scenario, scenario.evaluated()["out"]))
    return list(itertools.islice(found, enough))


def may_move(scenario: PlanScenario) -> bool:
    reorganization = scenario.config.reorganization
    return (
        scenario.width > 1 and reorganization.policy == "random" and reorganization.active_slaves != 1 and not scenario.crashes
    )


def in_motion(scenario: PlanScenario) -> PlanScenario:
    """With many moves in short epochs, so that what moves has rows."""
    epoch_us = max(1, scenario.config.reorganization.epoch_us // 20)
    cluster = replace(scenario.config.cluster, distribution_epoch_us=epoch_us)
    often = replace(scenario.config.reorganization, epoch_us=2 * epoch_us, random_moves=10)
    config = replace(scenario.config, pace="asap", on_overload=OverloadConfig(), cluster=cluster, reorganization=often)
    return replace(scenario, config=config, batch_rows=3)


def restored(plans: Sequence[PlanScenario], first: int = 60, step: int = 40) -> tuple[PlanScenario, ...]:
    """These plans in short epochs, each of which ends with a checkpoint, and with a crash on the way: after so many steps in
    the first one, and so many more in each of the next eight."""
    found = []
    for i, plan in enumerate(plans):
        calm = PlanScenario.draw(plan.seed, calm=True)
        cluster = replace(calm.config.cluster, distribution_epoch_us=0, epoch_tuples=5)
        config = replace(calm.config, pace="asap", cluster=cluster, checkpoint=replace(calm.config.checkpoint, epochs=1))
        found.append(replace(calm, config=config, batch_rows=2, part_rows=None, crashes=((first + step * (i % 9), 1),)))
    return tuple(found)
