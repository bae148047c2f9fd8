"""Memory and CPU time of this process, and the release of freed memory.

What: `FreedMemory`, which trims the heap from time to time; `rss_bytes`, `peak_rss_bytes`, `cpu_us`.
Why: a process that runs roles reuses freed memory (`monitor.process_settings`). But memory that a backlog took (after a
recovery, say) is not needed again and has to be returned in the end.
Stays out: the windows, which are one reserved pool (`state.arrays`).
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable

from swjoin.core.platforms import this_process

_LEFT_BYTES = 16 << 20  # of freed memory after a trim
_TRIM_S = 10.0  # between two trims: pages that are needed again cost faults


class FreedMemory:
    """Returns freed memory to the system from time to time. For one thread, which calls `trim_if_due` when it is idle."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TRIM_S
        try:
            trim = ctypes.CDLL(None).malloc_trim
            trim.argtypes = (ctypes.c_size_t,)
            self._trim: Callable[[int], object] | None = trim
        except (AttributeError, OSError, TypeError):  # another C library; Windows
            self._trim = None

    def trim_if_due(self) -> None:
        """Trim the heap when it is due."""
        now_s = time.monotonic()
        if self._trim is not None and now_s >= self._next_s:
            self._trim(_LEFT_BYTES)
            self._next_s = now_s + _TRIM_S


def rss_bytes() -> int:
    """Resident memory of this process now."""
    return int(this_process().memory_info().rss)


def peak_rss_bytes() -> int:
    """Highest resident memory of this process so far."""
    try:
        import resource
    except ImportError:  # Windows
        return int(getattr(this_process().memory_info(), "peak_wset", 0))
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)


def cpu_us() -> int:
    """CPU time of this process, user and system, in microseconds."""
    return time.process_time_ns() // 1000
