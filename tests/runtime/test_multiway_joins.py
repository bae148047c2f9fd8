"""Multiway joins in the simulator: random joins in a row by one key, with moves, crashes and freezes, against the oracle of
joins of two; and planted bugs, each of which some of them must catch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from swjoin.core.batch import I64, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.multiway_bounds import Bounds
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.operators import multiway_join
from swjoin.operators.multiway_join import MultiwayJoin
from swjoin.plan.multiway import MultiwayJoin as Node
from swjoin.plan.stages import cut
from swjoin.state.arrangement import Arrangement
from tests.support.planted import texts
from tests.tools.changing_queries import run_changes
from tests.tools.random_plans import PlanScenario, main, run_plan, simulate

Monkey = pytest.MonkeyPatch


@pytest.mark.parametrize(
    "seeds",
    [
        *(range(7), range(5_004, 5_009)),
        *(pytest.param(seeds, marks=pytest.mark.drawn) for seeds in (range(7, 15), range(5_000, 5_004), range(5_009, 5_015))),
    ],
    ids=str,
)
def test_random_joins_in_a_row_are_right(seeds: range) -> None:
    for seed in seeds:
        run_plan(seed, multiway=True)


@pytest.mark.parametrize(
    "seeds",
    [
        range(30_002, 30_007),
        *(pytest.param(s, marks=pytest.mark.drawn) for s in (range(30_001, 30_002), range(30_007, 30_014))),
    ],
    ids=str,
)
def test_queries_with_joins_in_a_row_come_and_go(seeds: range) -> None:
    assert sum(run_changes(seed, multiway=True) for seed in seeds) > 0


@pytest.mark.long
def test_more_queries_with_joins_in_a_row_come_and_go() -> None:
    assert sum(run_changes(seed, multiway=True) for seed in range(31_000, 31_075)) > 25


@pytest.mark.long
@pytest.mark.parametrize("first", range(10_000, 10_200, 100))
def test_more_random_joins_in_a_row_are_right(first: int) -> None:
    assert main(["100", "--seed", str(first), "--multiway"]) == 0


# ---------------------------------------------------------------- planted bugs


@cache
def _scenarios() -> list[PlanScenario]:
    """Of plans with a multiway join that has rows, all different."""
    found, seed = list[PlanScenario](), 20_000
    while len(found) < 12:
        scenario = PlanScenario.draw(seed, multiway=True)
        stages = cut(scenario.plan, scenario.config.cluster.strategy).stages
        if any(isinstance(stage.node, Node) for stage in stages) and len(scenario.evaluated()["out"]) > 3:
            found.append(scenario)
        seed += 1
    return found


def _narrow(bounds: Bounds) -> Bounds:
    return Bounds(bounds.lower, bounds.upper - (1 - np.eye(len(bounds.upper), dtype=np.int64)))


def upper_bounds_are_exclusive(monkeypatch: Monkey) -> None:
    init = Arrangement.__init__
    monkeypatch.setattr(Arrangement, "__init__", lambda self, bounds, *rest: init(self, _narrow(bounds), *rest))


def rows_expire_before_their_last_partner(monkeypatch: Monkey) -> None:
    expire = Arrangement.expire
    monkeypatch.setattr(Arrangement, "expire", lambda self, final_us: expire(self, final_us + 20))


def a_row_meets_itself_twice(monkeypatch: Monkey) -> None:
    """A delivery is searched again once its rows are linked."""
    matches = Arrangement.matches

    def twice(self: Arrangement, search: tuple[I64, I64], order: I64, most: int) -> tuple[Any, int, bool]:
        first = int(search[0][0])
        found, walked, done = matches(self, search, order, most)
        if done and not getattr(self, "again", False):
            self.again = True  # type: ignore[attr-defined]
            search[0][:] = first, -1
            return found, walked, False
        self.again = False  # type: ignore[attr-defined]
        return found, walked, done

    monkeypatch.setattr(Arrangement, "matches", twice)


def a_part_is_not_searched(monkeypatch: Monkey) -> None:
    """Rows of the first input look for the second one's partners among their own."""
    order = multiway_join.search_order

    def wrong(met: I64) -> I64:
        found = order(met)
        found[0, -1] = found[0, 0]
        return found

    monkeypatch.setattr(multiway_join, "search_order", wrong)


def a_restored_row_is_not_linked(monkeypatch: Monkey) -> None:
    link = Arrangement.link

    def less(self: Arrangement) -> None:
        self._linked = min(self._count, self._linked + 1)
        link(self)

    monkeypatch.setattr(Arrangement, "link", less)


def a_restored_delivery_is_forgotten(monkeypatch: Monkey) -> None:
    restore = MultiwayJoin.restore

    def every_other(self: MultiwayJoin, delivery: Delivery) -> None:
        if delivery.epoch % 2:
            restore(self, delivery)

    monkeypatch.setattr(MultiwayJoin, "restore", every_other)


def a_moved_row_is_lost(monkeypatch: Monkey) -> None:
    accumulate = MultiwayJoin._accumulate

    def less(self: MultiwayJoin, rows: TupleBatch, groups: I64, where: str = "") -> None:
        accumulate(self, rows if where else rows.slice(0, len(rows) - 1), groups if where else groups[:-1], where)

    monkeypatch.setattr(MultiwayJoin, "_accumulate", less)


def a_part_goes_under_another_number(monkeypatch: Monkey) -> None:
    part_columns = MultiwayColumns.part_columns
    monkeypatch.setattr(MultiwayColumns, "part_columns", lambda self, part, keys: part_columns(self, part and part - 1, keys))


def a_condition_between_the_joins_is_forgotten(monkeypatch: Monkey) -> None:
    rows_of = MultiwayColumns._joined

    def wide(self: MultiwayColumns, join: Any, *rest: Any) -> TupleBatch:
        return rows_of(self, replace(join, lower_us=-(1 << 60), upper_us=1 << 60), *rest)

    monkeypatch.setattr(MultiwayColumns, "_joined", wide)


def keys_of_all_rows_are_equal(monkeypatch: Monkey) -> None:
    stored = MultiwayColumns.stored

    def zeros(self: MultiwayColumns, keys: Any, rows: TupleBatch) -> TupleBatch:
        found = stored(self, keys, rows)
        return TupleBatch(np.zeros_like(found.key), found.ts, found.id, found.arrival_us, found.rows)

    monkeypatch.setattr(MultiwayColumns, "stored", zeros)


PLANTED: list[Callable[[Monkey], None]] = [
    upper_bounds_are_exclusive,
    rows_expire_before_their_last_partner,
    a_row_meets_itself_twice,
    a_part_is_not_searched,
    a_restored_row_is_not_linked,
    a_restored_delivery_is_forgotten,
    a_moved_row_is_lost,
    a_part_goes_under_another_number,
    a_condition_between_the_joins_is_forgotten,
    keys_of_all_rows_are_equal,
]


@pytest.mark.drawn
@pytest.mark.parametrize("plant", PLANTED)
def test_planted_bugs_are_caught(plant: Callable[[Monkey], None], monkeypatch: Monkey) -> None:
    scenarios = _scenarios()
    plant(monkeypatch)
    found = texts(scenarios, lambda scenario: simulate(scenario, scenario.evaluated()["out"]))
    assert list(islice(found, 1))


@pytest.mark.parametrize(("first", "last"), [(0, 4), pytest.param(4, 12, marks=pytest.mark.drawn)])
def test_the_scenarios_are_right_without_a_bug(first: int, last: int) -> None:
    for scenario in _scenarios()[first:last]:
        simulate(scenario, scenario.evaluated()["out"])
