"""Bugs planted into units that store one stream each must be caught by random plans in the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache

import numpy as np
import pytest

from benchmarks.baselines.arrival_order import ArrivalOrder
from swjoin.cluster.slave import stage
from swjoin.cluster.slave.units import Units
from swjoin.core.batch import I64, RIGHT, U64
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.merged_deliveries import Grouped
from swjoin.plan.logical import Spread
from swjoin.routing.biclique import Biclique
from tests.support.planted import texts
from tests.tools.random_plans import PlanScenario, simulate

Monkey = pytest.MonkeyPatch
SEEDS = [50057, 50118, 50120, 50225, 50291, 50451, 50474]


@cache
def _plans(kind: str = "") -> tuple[PlanScenario, ...]:
    """Plans with units and three gateways, in short epochs, so that partners come in different ones and in any order. kind:
    restored, with a checkpoint after every epoch and a crash on the way."""
    found = []
    for i, seed in enumerate(SEEDS):
        scenario = PlanScenario.draw(seed, calm=True)
        assert any(isinstance(node, Spread) and node.form == "random" for node in scenario.plan.nodes), "a plan without units"
        cluster = replace(scenario.config.cluster, distribution_epoch_us=0, epoch_tuples=20, gateways=3)
        checkpoint = replace(scenario.config.checkpoint, epochs=1 if kind == "restored" else 0)
        config = replace(scenario.config, pace="asap", cluster=cluster, checkpoint=checkpoint)
        crashes = ((60 + 40 * (i % 9), 1),) if kind == "restored" else ()
        found.append(replace(scenario, config=config, batch_rows=7, part_rows=1, crashes=crashes))
    return tuple(found)


def _caught(kind: str = "") -> int:
    return len(list(texts(_plans(kind), lambda scenario: simulate(scenario, scenario.evaluated()["out"]))))


def _both(monkeypatch: Monkey) -> None:
    """Units store and probe both streams: the rule of places that have both."""
    part = Units._part
    monkeypatch.setattr(Units, "_part", lambda self, *given: replace(part(self, *given), routes=(Route.BOTH, Route.BOTH)))


def _stored_at_once(monkeypatch: Monkey) -> None:
    """Right units store the right tuples of an epoch before its last left ones have probed."""
    parts = Units.parts

    def hasty(self: Units, delivery: Delivery) -> list[Delivery]:
        rows = Grouped.of(delivery, RIGHT)
        at_once = [part for part in self._of_side(delivery, RIGHT, rows) if part.routes[RIGHT] == Route.STORE]
        found = parts(self, delivery)
        done = [part for part in found if part.routes[RIGHT] == Route.STORE and len(part.right) and not part.final]
        return [*at_once, *(part for part in found if all(part is not other for other in done))]

    monkeypatch.setattr(Units, "parts", hasty)


def _times_too_early(monkeypatch: Monkey) -> None:
    """Windows expire by the watermarks of the epoch before its right tuples have probed."""
    of_side = Units._of_side

    def hasty(self: Units, delivery: Delivery, side: int, rows: object) -> list[Delivery]:
        found = of_side(self, delivery, side, rows)  # type: ignore[arg-type]
        times = {"left_time_us": delivery.left_time_us, "right_time_us": delivery.right_time_us}
        return [replace(each, **times) for each in found] if delivery.final else found  # type: ignore[arg-type]

    monkeypatch.setattr(Units, "_of_side", hasty)


def _one_probe_less(monkeypatch: Monkey) -> None:
    copies = Biclique.copies

    def fewer(self: Biclique, port: int, ids: U64, hashes: U64 | None) -> tuple[I64, I64]:
        positions, units = copies(self, port, ids, hashes)
        return positions[:-1], units[:-1]

    monkeypatch.setattr(Biclique, "copies", fewer)


def _another_subgroup(monkeypatch: Monkey) -> None:
    """Rows of the right stream take the subgroups of other keys."""
    copies = Biclique.copies

    def wrong(self: Biclique, port: int, ids: U64, hashes: U64 | None) -> tuple[I64, I64]:
        return copies(self, port, ids, hashes + np.uint64(port) if hashes is not None else None)

    monkeypatch.setattr(Biclique, "copies", wrong)


BUGS: dict[str, Callable[[Monkey], None]] = {
    "right tuples that do not wait": lambda monkeypatch: monkeypatch.setattr(stage, "Units", ArrivalOrder),
    "units that store both streams": _both,
    "right units that store before the epoch has ended": _stored_at_once,
    "windows that expire before the last probes": _times_too_early,
    "a unit that is not probed": _one_probe_less,
    "keys that choose another subgroup": _another_subgroup,
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    _plans()
    BUGS[name](monkeypatch)
    assert _caught()


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["", "restored"])
def test_without_a_bug_nothing_is_caught(kind: str) -> None:
    assert _caught(kind) == 0
