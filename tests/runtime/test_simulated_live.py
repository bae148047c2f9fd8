"""Live streams in the simulator: any moment for rows, silences and crashes; and planted bugs, which have to be caught."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from swjoin.checkpoint.checkpointers import GatewayCheckpointer
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.read_scheduler import ReadScheduler
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import SwjoinError
from swjoin.runtime.simulator.result import SimulationError
from tests.support.limits import LONG_S
from tests.tools.random_live_streams import LiveBatchSource, LiveSimulation, live_scenario, run_live_plan, shared_scenario
from tests.tools.random_runs import Scenario, run_scenario

pytestmark = pytest.mark.timeout(LONG_S)


def _complaints(seeds: Iterable[int], enough: int, draw: Callable[[int], Scenario] = live_scenario) -> int:
    found = 0
    for seed in seeds:
        try:
            run_scenario(draw(seed), LiveSimulation)
        except (SimulationError, AssertionError, SwjoinError):
            found += 1
            if found == enough:
                break
    return found


def _chosen(count: int, wanted: Callable[[Any], bool], *known: int) -> Iterator[int]:
    """known: seeds that are tried first. Then such scenarios with many tuples, among so many seeds."""
    yield from known
    for seed in range(count):
        scenario = live_scenario(seed)
        if wanted(scenario) and min(map(len, scenario.rows)) > 30:
            yield seed


@pytest.mark.parametrize("seed", range(6))
def test_seeds(seed: int) -> None:
    run_scenario(live_scenario(seed), LiveSimulation)


@pytest.mark.parametrize("seed", [*range(9), 1_072])  # after the death in the last one there are fewer gateways
def test_seeds_with_several_gateways(seed: int) -> None:
    run_scenario(shared_scenario(seed), LiveSimulation)


@pytest.mark.drawn
@pytest.mark.parametrize("seed", range(24))
def test_seeds_of_plans(seed: int) -> None:
    run_live_plan(seed)


@pytest.mark.long
@pytest.mark.parametrize("part", range(10))
def test_many_seeds(part: int) -> None:
    assert _complaints(range(6 + part, 200, 10), 1) == 0
    assert _complaints(range(9 + part, 100, 10), 1, shared_scenario) == 0
    for seed in range(24 + part, 300, 10):
        run_live_plan(seed)


def _plan_complaints(seeds: Iterable[int]) -> int:
    found = 0
    for seed in seeds:
        try:
            run_live_plan(seed)
        except (SimulationError, AssertionError, SwjoinError):
            found += 1
    return found


@pytest.mark.drawn
def test_a_plan_whose_silent_stream_is_passed_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were idle: its watermark follows the others'."""

    def carry(self: ReadScheduler) -> None:
        for mine in self._streams:
            mine.carry(max(other.high_us for other in self._streams))

    monkeypatch.setattr(ReadScheduler, "carry", carry)
    assert _plan_complaints(range(20)) >= 2


def _crashing(scenario: Any) -> bool:
    return scenario.config.checkpoint.enabled and len(scenario.crashes) > 0


def test_time_that_passes_a_silent_stream_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if it were idle: what it brings later finds its partners gone."""

    def carry(self: ReadScheduler) -> None:
        for mine, other in (self._streams, self._streams[::-1]):
            mine.carry(other.high_us)

    monkeypatch.setattr(ReadScheduler, "carry", carry)
    assert _complaints(_chosen(60, lambda s: s.config.time.idle_timeout_us == 0, 3), 2) == 2


def test_a_clock_that_carries_live_streams_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watermark of what may still be pushed, instead of what has arrived."""
    arrive_until = StreamIntake.arrive_until

    def hasty(self: StreamIntake, time_us: int) -> None:
        arrive_until(self, time_us)
        if self.first_us is not None:
            self.carry(self.first_us + time_us)

    monkeypatch.setattr(StreamIntake, "arrive_until", hasty)
    assert _complaints(_chosen(60, lambda s: s.config.pace == "realtime" and s.config.query.last is None, 9), 2) == 2


def test_a_source_that_does_not_go_back_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveBatchSource, "resume_at", lambda self, row, position: None)
    assert _complaints(_chosen(60, _crashing, 26), 1) == 1


def test_rows_forgotten_too_early_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that have been read, instead of those that a checkpoint holds."""
    gateways: list[Any] = []
    restore = GatewayCheckpointer.restore

    def remember(self: GatewayCheckpointer, gateway: Any, *more: Any) -> None:
        gateways.append(gateway)
        restore(self, gateway, *more)

    def forget(self: GatewayCheckpointer, kept: Any) -> None:
        for source, intake in zip(self._sources, gateways[-1].streams, strict=True):
            source.forget(intake.counts.tuples)  # type: ignore[attr-defined]

    monkeypatch.setattr(GatewayCheckpointer, "restore", remember)
    monkeypatch.setattr(GatewayCheckpointer, "forget", forget)
    assert _complaints(_chosen(60, _crashing, 26), 1) == 1


def test_lateness_by_gateway_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is late by what its gateway has read, instead of what is before it in its split."""
    classify = StreamIntake._classify

    def careless(self: StreamIntake, batch: SourceBatch, *more: Any) -> Any:
        return classify(self, replace(batch, high_us=None), *more)

    monkeypatch.setattr(StreamIntake, "_classify", careless)
    assert _complaints([1, 21, *range(60)], 2, shared_scenario) == 2


def test_positions_of_one_gateway_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Splits of other gateways begin anew."""
    taken_over = LiveBatchSource.taken_over
    monkeypatch.setattr(LiveBatchSource, "taken_over", lambda self, positions: taken_over(self, positions[:1]))
    assert _complaints([16, 26, *range(60)], 1, shared_scenario) == 1
