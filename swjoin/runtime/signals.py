"""Signals that ask a run to stop with a checkpoint.

What: `stop_signals`, a flag that SIGTERM, SIGHUP, SIGINT and SIGUSR1 set during a run with checkpoints; `handling`.
Why: batch schedulers and terminals announce their end with a signal; a checkpoint then saves the work that has been done.
Stays out: the checkpoint itself (`cluster.master.checkpoint_coordinator`).
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from swjoin.config.job import Job
from swjoin.core.platforms import signals_named
from swjoin.core.stdio import mute_terminals

_STOP_SIGNALS = signals_named("SIGTERM", "SIGHUP", "SIGINT", "SIGUSR1")
_HANGUP = signals_named("SIGHUP")


@contextmanager
def handling(stop: Callable[[int], object]) -> Iterator[None]:
    """Call `stop` with the number of each signal that requests a stop; not of SIGHUP where it is ignored (nohup). Outside the
    main thread signals keep their usual effect."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def handle(number: int, _frame: FrameType | None) -> None:
        if number in _HANGUP:
            mute_terminals()
        stop(number)

    numbers = [n for n in _STOP_SIGNALS if n not in _HANGUP or signal.getsignal(n) != signal.SIG_IGN]
    before = {number: signal.signal(number, handle) for number in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def stop_signals(job: Job) -> Iterator[threading.Event]:
    """The flag. The second SIGINT interrupts at once. Without checkpoints signals keep their usual effect."""
    wanted = threading.Event()
    if job.checkpoints is None:
        yield wanted
        return

    def stop(number: int) -> None:
        if wanted.is_set() and number == signal.SIGINT:
            raise KeyboardInterrupt
        wanted.set()

    with handling(stop):
        yield wanted
