"""The simulator: random runs are right, a run replays from its seed, and planted bugs are caught."""

from __future__ import annotations

import pytest

from swjoin.cluster.buffers import MiniBuffers
from swjoin.cluster.master import Master
from swjoin.cluster.slave import Slave
from swjoin.errors import SwjoinError
from swjoin.messages import Deliver
from swjoin.operators.window_join import WindowJoin
from swjoin.runtime.chaos import Scenario, main, run_simulated
from swjoin.runtime.simulator import Simulation, SimulationError

SEEDS = 120


def test_random_runs_are_right() -> None:
    assert main([str(SEEDS), "--simulated"]) == 0


def test_a_run_replays_from_its_seed() -> None:
    def play() -> tuple[int, str, int]:
        scenario = Scenario.draw(11)
        result = Simulation(scenario.config, ([scenario.rows[0]], [scenario.rows[1]]), 3, 11).run()
        return result.count, result.digest, result.steps

    assert play() == play()


def _caught(count: int = 40) -> int:
    """How many of the first seeds complain."""
    failures = 0
    for seed in range(count):
        try:
            run_simulated(seed)
        except (SimulationError, SwjoinError):
            failures += 1
    return failures


def test_a_lost_delivery_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Master._serve

    def lossy(self: Master) -> list[object]:
        commands = serve(self)
        return [c for c in commands if not (isinstance(c, Deliver) and c.delivery.epoch == 1)]

    monkeypatch.setattr(Master, "_serve", lossy)
    assert _caught() > 5


def test_early_expiry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = WindowJoin._dead_below
    monkeypatch.setattr(WindowJoin, "_dead_below", lambda self: tuple(t + 40 for t in limits(self)))
    assert _caught() > 5


def test_dropped_results_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    join_some = Slave._join_some
    monkeypatch.setattr(Slave, "_join_some", lambda self, now: [c for c in join_some(self, now) if not _has_pairs(c)])
    assert _caught() > 5


def _has_pairs(command: object) -> bool:
    chunk = getattr(command, "chunk", None)
    return chunk is not None and chunk.pairs is not None and not chunk.final


def test_tuples_shipped_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MiniBuffers.append

    def twice(self: MiniBuffers, stream: int, batch: object) -> None:
        append(self, stream, batch)  # type: ignore[arg-type]
        if stream == 0:
            append(self, stream, batch)  # type: ignore[arg-type]

    monkeypatch.setattr(MiniBuffers, "append", twice)
    assert _caught() > 5
