"""Emulation of a slower node: a slave sleeps for the time that the slower node would have needed beyond its CPU time.

What: `Throttle`, which receives the CPU time of a slave's work.
Why: a configuration (`NodesConfig`) alone makes equal nodes behave as unequal or shared ones in experiments.
Stays out: measuring CPU time (`runtime.slave_host`), the speeds (`config`); the simulator has speeds of its own and does not
sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swjoin.config.run import NodesConfig

SLEEP_US = 20_000  # longest sleep per call, so that arriving messages wait no longer


class Throttle:
    """The debt of one slave: the time that it still has to sleep to be as slow as its configured node.

    debt_us: may fall below zero, by one longest sleep at most: the excess of a sleep counts for later ones. Otherwise many
    short sleeps, each a little too long, would make a node much slower than configured; without the limit, a long stall of the
    machine would be followed by as much time without sleeps.
    node: number of the slave rank. paused: no slower node is emulated (during the prefill, and after the measured phase).
    """

    def __init__(
        self,
        nodes: NodesConfig,
        node: int,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.debt_us = 0.0
        self.paused = False
        self._nodes, self._node = nodes, node
        self._sleep, self._clock_ns = sleep, clock_ns
        times_us = [0, *(change.at_us for change in nodes.changes)]
        self._ever_slow = any(nodes.speed_of(node, at_us) < 1 for at_us in times_us)

    def pause(self) -> None:
        self.paused, self.debt_us = True, 0.0

    def after(self, cpu_us: int, now_us: int, at_most_us: int = SLEEP_US) -> None:
        """Add the debt of `cpu_us` of work at the speed of `now_us` on the run's clock, and sleep for a part of the debt.

        at_most_us: longest sleep, less than the usual 20 ms when an event is expected earlier.
        """
        if not self._ever_slow or self.paused:
            return
        self.debt_us += cpu_us * (1 / self._nodes.speed_of(self._node, now_us) - 1)
        if self.debt_us <= 0 or at_most_us <= 0:
            return
        start_ns = self._clock_ns()
        self._sleep(max(0.0, min(self.debt_us, SLEEP_US, at_most_us)) / 1e6)
        slept_us = (self._clock_ns() - start_ns) / 1000
        self.debt_us = max(self.debt_us - slept_us, float(-SLEEP_US))
