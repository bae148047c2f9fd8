"""A slower node, imitated: a slave sleeps for the time that its node would have worked longer.

What: `Throttle`, which a slave's loop tells the CPU time it has used.
Why: how a cluster of unequal and shared nodes behaves must be measurable on equal ones, by configuration alone (`NodesConfig`).
Stays out: measuring CPU time (the loops of the runtimes), what the speeds are (`config`); the simulator has speeds of its own
and no need to sleep.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from swjoin.config.run import NodesConfig

SLEEP_US = 20_000  # most per call: messages that arrive meanwhile wait no longer than that


class Throttle:
    """The debt of one slave: time it must still sleep to have been as slow as its node is said to be.

    debt_us: may fall below zero, by one longest sleep at most: what a sleep took longer than asked for counts for later ones.
    Without that, many short sleeps, each a little late, would make a node much slower than wanted; without the limit, one long
    stall of the machine would let it run unthrottled for as long.
    paused: the node is as fast as it is (history is being joined, or nobody measures any more).
    """

    def __init__(
        self,
        nodes: NodesConfig,
        slave: int,
        sleep: Callable[[float], None] = time.sleep,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.debt_us = 0.0
        self.paused = False
        self._nodes, self._slave = nodes, slave
        self._sleep, self._clock_ns = sleep, clock_ns
        times_us = [0, *(change.at_us for change in nodes.changes)]
        self._ever_slow = any(nodes.speed_of(slave, at_us) < 1 for at_us in times_us)

    def pause(self) -> None:
        self.paused, self.debt_us = True, 0.0

    def after(self, cpu_us: int, now_us: int, at_most_us: int = SLEEP_US) -> None:
        """Owe for `cpu_us` of work at the speed of `now_us` on the run's clock, and sleep off some of the debt.

        at_most_us: less than the usual 20 ms when something is expected sooner.
        """
        if not self._ever_slow or self.paused:
            return
        self.debt_us += cpu_us * (1 / self._nodes.speed_of(self._slave, now_us) - 1)
        if self.debt_us <= 0 or at_most_us <= 0:
            return
        start_ns = self._clock_ns()
        self._sleep(max(0.0, min(self.debt_us, SLEEP_US, at_most_us)) / 1e6)
        slept_us = (self._clock_ns() - start_ns) / 1000
        self.debt_us = max(self.debt_us - slept_us, float(-SLEEP_US))
