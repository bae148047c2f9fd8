"""The simulator: random runs are right, a run replays from its seed, and planted bugs are caught."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest

from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.gateway.outbox import Outbox
from swjoin.cluster.role import Effect, Send
from swjoin.cluster.slave.slave import Slave
from swjoin.core.data_messages import Delivery
from swjoin.operators.join_windows import JoinWindows
from swjoin.runtime.simulator import simulator
from swjoin.runtime.simulator.simulator import Simulation
from tests.support.limits import PROCESS_S
from tests.support.planted import complaints
from tests.tools.random_runs import Scenario, main


@pytest.mark.parametrize(
    ("first", "count"),
    [(0, 12), pytest.param(12, 28, marks=pytest.mark.drawn), pytest.param(0, 400, marks=pytest.mark.long)],
)
def test_random_runs_are_right(first: int, count: int) -> None:
    assert main([str(count), "--simulated", "--seed", str(first)]) == 0


def test_a_run_replays_from_its_seed() -> None:
    def play() -> tuple[int, str, int]:
        scenario = Scenario.draw(11)
        result = Simulation(scenario.config, ([scenario.rows[0]], [scenario.rows[1]]), 3, 11).run()
        return result.count, result.digest, result.steps

    assert play() == play()


def _caught() -> int:
    """How many of the first seeds complain; two are enough."""
    return complaints(range(80), 2)


def test_a_lost_delivery_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    serve = Outbox.serve

    def lossy(self: Outbox) -> list[Effect]:
        commands = serve(self)
        return [c for c in commands if not (isinstance(c, Send) and isinstance(c.message, Delivery) and c.message.epoch == 1)]

    monkeypatch.setattr(Outbox, "serve", lossy)
    monkeypatch.setattr(Simulation, "MAX_STEPS", 10_000)  # in realtime pace a run that waits for ever goes on ticking
    assert _caught() == 2


def test_early_expiry_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Windows that forget their bounds: a tuple leaves as soon as the opposite stream has reached its time."""
    monkeypatch.setattr(JoinWindows, "dead_below", lambda self: (self.times_us[1], self.times_us[0]))
    assert _caught() == 2


def test_dropped_results_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    complete = Slave._complete
    monkeypatch.setattr(Slave, "_complete", lambda self, *args: dataclasses.replace(complete(self, *args), pairs=None))
    assert _caught() == 2


def test_tuples_shipped_twice_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    append = MiniBuffers.append

    def twice(self: MiniBuffers, stream: int, *batch: object) -> None:
        append(self, stream, *batch)  # type: ignore[arg-type]
        if stream == 0:
            append(self, stream, *batch)  # type: ignore[arg-type]

    monkeypatch.setattr(MiniBuffers, "append", twice)
    assert _caught() == 2


def test_ranks_that_wait_for_each_other_inside_sends_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Control messages that travel against the stream, and wait until they are received."""
    monkeypatch.setattr(simulator, "waits", lambda *_: True)
    monkeypatch.setattr(Simulation, "MAX_STEPS", 10_000)
    assert complaints(range(3, 80, 4), 2) == 2


def test_kernels_run_without_the_compiler() -> None:
    """The hot loops stay plain Python at heart: they can be stepped through, and do not depend on compiled overflow."""
    code = "from tests.tools.random_runs import run_simulated\nfor seed in (8, 20): run_simulated(seed)"
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1", "PYTHONWARNINGS": "ignore"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, timeout=PROCESS_S, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Scenario.draw(8).expected()[0].total() > 50
