"""The run's clock.

What: `RunClock`, microseconds since the start of the run.
Why: roles take time as an argument; a runtime reads it here.
Stays out: decisions about time (`policy.epochs`).
"""

from __future__ import annotations

import time


class RunClock:
    """Monotonic microseconds since its creation; steps of the system clock have no effect."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def restart(self, at_us: int) -> None:
        """Set the clock to `at_us`."""
        self._start_ns = time.monotonic_ns() - at_us * 1000

    def now_us(self) -> int:
        return (time.monotonic_ns() - self._start_ns) // 1000
