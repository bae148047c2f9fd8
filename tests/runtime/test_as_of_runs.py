"""As-of joins in random runs: disorder, late rows, moves, crashes, several gateways and sinks, against the definition; and
planted bugs, each of which some of them must catch (others in tests/operators/test_as_of_join.py)."""

from __future__ import annotations

import pytest

from swjoin.core.errors import SwjoinError
from swjoin.core.join_semantics import AsOf
from swjoin.operators import rows_by_time
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.random_runs import Scenario, run_scenario


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is gone is dropped all the time, though few rows are kept."""
    monkeypatch.setattr(rows_by_time, "_LEAST", 8)


@pytest.mark.parametrize("part", [0, *(pytest.param(part, marks=pytest.mark.drawn) for part in range(1, 5))])
def test_random_runs(part: int) -> None:
    for seed in range(12 * part, 12 * part + 12):
        run_scenario(Scenario.draw_as_of(seed))


@pytest.mark.long
@pytest.mark.drawn
@pytest.mark.parametrize("part", range(10))
def test_many_random_runs(part: int) -> None:
    for seed in range(1000 + 30 * part, 1000 + 30 * part + 30):
        run_scenario(Scenario.draw_as_of(seed))


# ---------------------------------------------------------------- planted bugs


def _is_caught() -> bool:
    """By one of 60 runs."""
    for seed in range(60):
        try:
            run_scenario(Scenario.draw_as_of(seed))
        except (SimulationError, SwjoinError, AssertionError):
            return True
    return False


def test_a_row_that_is_let_out_too_early_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before right rows that could be a better match have come."""
    monkeypatch.setattr(AsOf, "front_us", lambda self, times: max(times))
    assert _is_caught()


def test_a_front_without_the_left_stream_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right rows are superseded before the left rows that they match have come."""
    monkeypatch.setattr(AsOf, "front_us", lambda self, times: times[1])
    assert _is_caught()
