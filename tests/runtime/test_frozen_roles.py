"""Roles that freeze in the simulator: for a while, for longer than the failure timeout, for good; and planted bugs of excluded
ranks that go on."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from swjoin.cluster.role import RoleId, UnexpectedEventError
from swjoin.runtime.mpi.heartbeats import SILENT, FailureDetector
from swjoin.runtime.simulator.attempts import Freeze, Freezes, SimulatedHost
from swjoin.runtime.simulator.result import SimulationError, SimulationResult
from swjoin.runtime.simulator.simulator import Simulation
from swjoin.runtime.simulator.storage import MemorySink
from tests.support.planted import texts
from tests.tools.random_live_streams import LiveSimulation, shared_scenario
from tests.tools.random_plans import run_plan
from tests.tools.random_runs import Scenario, run_scenario

Plant = Callable[[pytest.MonkeyPatch], None]
SEEDS = 60
KINDS = ("gateway", "sink", "slave")
LIVE_GATEWAY = "live gateway"  # not the first one, which is on the master's rank
_TIMEOUT_US = 1_000


def _scenarios(kind: str, ratio: float | None) -> Iterator[Scenario]:
    """Runs with checkpoints and many tuples, whose results are stored. A role of this kind freezes twice. ratio: of duration
    to timeout; None: for good."""
    for seed in itertools.count():
        scenario = (shared_scenario if kind == LIVE_GATEWAY else Scenario.draw)(seed)
        config, of_kind = scenario.config, 0 if kind == LIVE_GATEWAY else KINDS.index(kind)
        counts = config.gateway_count - (kind == LIVE_GATEWAY), config.sink_count, scenario.slave_count
        stored = config.checkpoint.enabled and config.sink.kind != "count"
        if not stored or not counts[of_kind] or config.pace != "asap" or min(map(len, scenario.rows)) < 40:
            continue
        duration_us = None if ratio is None else int(ratio * _TIMEOUT_US)
        pick = (sum(counts[:of_kind]) + seed % counts[of_kind] + 0.5) / sum(counts)
        freezes = tuple(Freeze(step, pick, duration_us) for step in (30 + seed % 50, 90 + seed % 70))
        yield replace(scenario, freezes=Freezes(_TIMEOUT_US, freezes), crashes=())


def _result(scenario: Scenario) -> SimulationResult:
    return run_scenario(scenario, LiveSimulation if scenario.config.live else Simulation)


def _run(scenario: Scenario) -> None:
    try:
        _result(scenario)
    except (LookupError, UnexpectedEventError) as error:  # a role gets what can have no meaning for it
        raise SimulationError(f"{type(error).__name__}: {error}") from error


def _complaints(scenarios: Iterator[Scenario], enough: int = 1) -> int:
    """Of the first 60 scenarios, until there are enough."""
    return len(list(itertools.islice(texts(itertools.islice(scenarios, SEEDS), _run), enough)))


# ---------------------------------------------------------------- without a bug


@pytest.mark.parametrize("kind", [*KINDS, LIVE_GATEWAY])
def test_a_short_freeze_is_a_delay(kind: str) -> None:
    for scenario in itertools.islice(_scenarios(kind, 0.99), 2):
        result = _result(scenario)
        assert (result.excluded, result.recoveries) == (0, 0)


@pytest.mark.parametrize("ratio", [1.2, pytest.param(3.0, marks=pytest.mark.drawn), None])
@pytest.mark.parametrize("kind", [*KINDS, LIVE_GATEWAY])
def test_a_long_freeze_is_a_death(kind: str, ratio: float | None) -> None:
    for scenario in itertools.islice(_scenarios(kind, ratio), 2):
        result = _result(scenario)
        assert result.excluded >= result.recoveries >= 1


def test_a_role_that_is_awake_for_less_than_a_round_of_heartbeats_is_alive() -> None:
    run_plan(100_054)


@pytest.mark.long
@pytest.mark.parametrize("kind", [*KINDS, LIVE_GATEWAY])
def test_without_a_bug_nothing_is_caught(kind: str) -> None:
    assert _complaints(_scenarios(kind, 2.0)) == 0


# ---------------------------------------------------------------- planted bugs


def _messages_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An excluded rank's messages are taken for those of this attempt."""
    receiver = Simulation._receiver

    def taken(self: Simulation, sender: SimulatedHost, to: RoleId) -> SimulatedHost | None:
        return self._hosts.get(to) if sender.excluded else receiver(self, sender, to)

    monkeypatch.setattr(Simulation, "_receiver", taken)


def _results_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An excluded sink writes into the files of its successor."""
    monkeypatch.setattr(MemorySink, "successor", lambda self: self)


def _silent_for_half_the_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    """Is long enough to count as dead."""

    def suspects(self: FailureDetector, peers: list[int], now_s: float) -> dict[int, str]:
        return dict.fromkeys(self.silences(peers, now_s), SILENT)

    monkeypatch.setattr(FailureDetector, "suspects", suspects)


PLANTED = [*((_messages_are_taken, kind, 2.0) for kind in KINDS), (_results_are_taken, "sink", 2.0),
           (_silent_for_half_the_timeout, "slave", 0.9)]  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize(("plant", "kind", "ratio"), PLANTED, ids=lambda p: getattr(p, "__name__", str(p)))
@pytest.mark.parametrize("enough", [1, pytest.param(5, marks=pytest.mark.long)])
def test_planted_bugs_are_caught(plant: Plant, kind: str, ratio: float, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert _complaints(_scenarios(kind, ratio), enough) == enough
