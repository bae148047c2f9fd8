"""Signals that ask a run to stop with a checkpoint.

What: `stop_signals`, a flag that SIGTERM, SIGINT and SIGUSR1 set while a run with checkpoints goes on.
Why: batch schedulers announce the end of an allocation with a signal; what has been joined by then must not be lost.
Stays out: the checkpoint itself (`cluster.master.checkpoint_coordinator`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from swjoin.config.job import Job

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)


@contextmanager
def stop_signals(job: Job) -> Iterator[threading.Event]:
    """The flag. The second SIGINT interrupts at once. Without checkpoints, or in another thread than the main one, signals do
    what they always do."""
    wanted = threading.Event()
    if job.checkpoints is None or threading.current_thread() is not threading.main_thread():
        yield wanted
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        if wanted.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        wanted.set()

    before = {number: signal.signal(number, stop) for number in STOP_SIGNALS}
    try:
        yield wanted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
