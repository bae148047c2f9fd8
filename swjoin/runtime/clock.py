"""The run's clock, and progress on a terminal.

What: `RunClock`, microseconds since the start of the run; `ReadingProgress`, a bar over the rows read.
Why: roles take time as an argument; a runtime reads it here.
Stays out: decisions about time (`policy.epochs`).
"""

from __future__ import annotations

import os
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.progress import Progress, TaskID


class RunClock:
    """Monotonic microseconds since its creation; steps of the system clock have no effect."""

    def __init__(self) -> None:
        self._start_ns = time.monotonic_ns()

    def restart(self, at_us: int) -> None:
        """Set the clock to `at_us`."""
        self._start_ns = time.monotonic_ns() - at_us * 1000

    def now_us(self) -> int:
        return (time.monotonic_ns() - self._start_ns) // 1000


class ReadingProgress:
    """A progress bar over the rows of both streams; silent unless wanted and standard error is a terminal."""

    def __init__(self, wanted: bool, totals: list[int | None]) -> None:
        self._progress: Progress | None = None
        self._task: TaskID | None = None
        if not (wanted and sys.stderr.isatty()) or "SWJOIN_PLAIN" in os.environ:
            return
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        known = [t for t in totals if t is not None]
        self._progress = Progress(
            TextColumn("joining"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("tuples"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=Console(stderr=True),
            transient=True,
        )
        self._progress.start()
        self._task = self._progress.add_task("joining", total=sum(known) if len(known) == len(totals) else None)

    def advance(self, rows: int) -> None:
        if self._progress is not None and self._task is not None:
            self._progress.advance(self._task, rows)

    def restart(self, rows: int) -> None:
        """Set the count of rows read."""
        if self._progress is not None and self._task is not None:
            self._progress.update(self._task, completed=rows)

    def close(self) -> None:
        if self._progress is not None:
            self._progress.stop()
