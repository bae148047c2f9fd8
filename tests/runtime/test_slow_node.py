"""Slower nodes, imitated: speeds by configuration, debts exact on a false clock, about right on the real one."""

from __future__ import annotations

import itertools
import subprocess
import sys
import threading
import time

import pytest

from swjoin.config.run import NodesConfig, SpeedChange
from swjoin.runtime.slow_node import SLEEP_US, Throttle
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S


class Sleeper:
    """A false sleep and its clock; every sleep takes `late_us` longer than asked for."""

    def __init__(self, late_us: int = 0) -> None:
        self.late_us, self.now_ns = late_us, 5_000
        self.asked_us: list[int] = []

    def sleep(self, seconds: float) -> None:
        self.asked_us.append(round(seconds * 1e6))
        self.now_ns += self.asked_us[-1] * 1000 + self.late_us * 1000

    def clock_ns(self) -> int:
        return self.now_ns

    def throttle(self, nodes: NodesConfig, slave: int = 0) -> Throttle:
        return Throttle(nodes, slave, self.sleep, self.clock_ns)


# ---------------------------------------------------------------- speeds


@pytest.mark.parametrize("order", list(itertools.permutations(range(4))))
def test_the_latest_change_counts_in_whatever_order_they_are_written(order: tuple[int, ...]) -> None:
    changes = [SpeedChange(0, 100, 0.5), SpeedChange(0, 300, 1.0), SpeedChange(1, 200, 0.1), SpeedChange(0, 400, 0.25)]
    nodes = NodesConfig((0.8,), tuple(changes[i] for i in order))
    expected = {0: 0.8, 99: 0.8, 100: 0.5, 299: 0.5, 300: 1.0, 399: 1.0, 400: 0.25, 10**12: 0.25}
    assert {now_us: nodes.speed_of(0, now_us) for now_us in expected} == expected
    assert [nodes.speed_of(1, now_us) for now_us in (0, 199, 200, 500)] == [1.0, 1.0, 0.1, 0.1]


def test_slaves_beyond_the_list_run_at_full_speed() -> None:
    nodes = NodesConfig((0.5, 0.25))
    assert [nodes.speed_of(slave, 7) for slave in range(4)] == [0.5, 0.25, 1.0, 1.0]
    assert NodesConfig().speed_of(0, 0) == 1.0


def test_a_change_at_the_start_replaces_the_speed_in_the_list() -> None:
    assert NodesConfig((0.5,), (SpeedChange(0, 0, 1.0),)).speed_of(0, 0) == 1.0


# ---------------------------------------------------------------- debts


def test_at_a_quarter_of_the_speed_it_sleeps_three_times_the_work() -> None:
    sleeper = Sleeper()
    throttle = sleeper.throttle(NodesConfig((1.0, 0.25)), slave=1)
    throttle.after(1_000, 0)
    throttle.after(500, 10)
    assert sleeper.asked_us == [3_000, 1_500]
    assert throttle.debt_us == 0


def test_one_call_sleeps_20_ms_at_most_and_the_rest_stays_owed() -> None:
    sleeper = Sleeper()
    throttle = sleeper.throttle(NodesConfig((0.5,)))
    throttle.after(50_000, 0)
    assert sleeper.asked_us == [SLEEP_US] == [20_000]
    assert throttle.debt_us == 30_000
    for _ in range(4):
        throttle.after(0, 0)
    assert sleeper.asked_us == [20_000, 20_000, 10_000]
    assert throttle.debt_us == 0


def test_the_debt_shrinks_by_the_time_that_the_sleep_took() -> None:
    sleeper = Sleeper(late_us=60)
    throttle = sleeper.throttle(NodesConfig((0.5,)))
    for _ in range(1000):
        throttle.after(10, 0)
    slept_us = sum(sleeper.asked_us) + 60 * len(sleeper.asked_us)
    assert slept_us + throttle.debt_us == pytest.approx(10_000)
    assert -60 <= throttle.debt_us <= 0


def test_a_sleep_that_ends_early_leaves_the_rest_owed() -> None:
    sleeper = Sleeper(late_us=-400)
    throttle = sleeper.throttle(NodesConfig((0.5,)))
    throttle.after(1_000, 0)
    assert throttle.debt_us == pytest.approx(400)


def test_a_long_stall_does_not_buy_as_long_at_full_speed() -> None:
    sleeper = Sleeper(late_us=5_000_000)
    throttle = sleeper.throttle(NodesConfig((0.5,)))
    throttle.after(1_000, 0)
    assert throttle.debt_us == -SLEEP_US


def test_speed_changes_while_it_runs() -> None:
    sleeper = Sleeper()
    nodes = NodesConfig((), (SpeedChange(0, 2_000, 1.0), SpeedChange(0, 1_000, 0.1)))
    throttle = sleeper.throttle(nodes)
    throttle.after(700, 999)
    assert sleeper.asked_us == []
    throttle.after(3_000, 1_000)
    assert throttle.debt_us == pytest.approx(7_000)
    throttle.after(900, 2_000)  # at full speed: nothing new, but what is owed is owed
    assert sleeper.asked_us == [20_000, 7_000]
    throttle.after(900, 2_001)
    assert len(sleeper.asked_us) == 2
    assert throttle.debt_us == pytest.approx(0)


@pytest.mark.parametrize(
    "nodes",
    [
        NodesConfig(),
        NodesConfig((1.0, 1.0, 0.3)),
        NodesConfig((0.2,), (SpeedChange(0, 5, 0.5), SpeedChange(1, 5, 1.0))),
    ],
)
def test_a_node_that_is_never_slow_is_not_even_looked_up(nodes: NodesConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    sleeper = Sleeper()
    throttle = sleeper.throttle(nodes, slave=1)
    monkeypatch.setattr(NodesConfig, "speed_of", None)
    throttle.after(10**9, 0)
    assert sleeper.asked_us == []
    assert throttle.debt_us == 0


@pytest.mark.quiet
def test_on_the_real_clock() -> None:
    """0.1 s of CPU time at a quarter of the speed takes 0.4 s, and not much less or many times that."""
    throttle = Throttle(NodesConfig((0.25,)), 0)
    walls_s = []

    def spin() -> None:
        start_s, used_us = time.monotonic(), 0
        past_us = time.thread_time_ns() // 1000
        while used_us < 100_000 or throttle.debt_us > 0:
            cpu_us = time.thread_time_ns() // 1000 - past_us
            if cpu_us < 2_000 and used_us < 100_000:
                continue
            past_us += cpu_us
            used_us += cpu_us
            throttle.after(cpu_us, int((time.monotonic() - start_s) * 1e6))
        walls_s.append(time.monotonic() - start_s)

    thread = threading.Thread(target=spin)
    thread.start()
    thread.join(PROCESS_S)
    assert 0.35 <= walls_s[0] <= 4


def test_it_imports_little() -> None:
    code = (
        "import sys, swjoin.runtime.slow_node\n"
        "heavy = {'mpi4py', 'pyarrow', 'pyspark', 'rich'} & set(sys.modules)\nassert not heavy, heavy"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr
