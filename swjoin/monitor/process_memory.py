"""What becomes of memory that a process has freed; how much it has.

What: `keep_freed_memory`, called once by a process that plays roles; `FreedMemory`, which gives back what was kept for too
long; `rss_bytes`, resident memory now.
Why: every delivery allocates and frees the same few megabytes. By default the C library gives such blocks back to the system at
once and pays a page fault for every 4 KB of the next: partitioning took 20 ns a tuple with that, 4 ns without. But what a
backlog took (after a recovery, say) is not needed again, and is nobody's as long as it is kept.
Stays out: the windows, which are one reserved pool (`state.arrays`).
"""

from __future__ import annotations

import ctypes
import os
import resource
import time
from collections.abc import Callable
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 256 << 20
_LARGEST_BYTES = 32 << 20  # larger blocks come from the system and go back to it
_LEFT_BYTES = 16 << 20  # of what is freed, after giving back
_GIVE_BACK_S = 10.0  # now and then: pages that are needed again cost faults


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks. False where it does not know how (musl, macOS): then all is as before."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


class FreedMemory:
    """Gives freed memory back to the system now and then. For one thread, which calls `mind` when it has nothing to do."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _GIVE_BACK_S
        try:
            trim = ctypes.CDLL(None).malloc_trim
            trim.argtypes = (ctypes.c_size_t,)
            self._trim: Callable[[int], object] | None = trim
        except (AttributeError, OSError):
            self._trim = None

    def mind(self) -> None:
        """Give back, if it is time for that."""
        now_s = time.monotonic()
        if self._trim is not None and now_s >= self._next_s:
            self._trim(_LEFT_BYTES)
            self._next_s = now_s + _GIVE_BACK_S


def rss_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not tell (elsewhere than on Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0


def peak_rss_bytes() -> int:
    """Highest resident memory of this process so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def cpu_us() -> int:
    """CPU time of this process, user and system, in microseconds."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return int((usage.ru_utime + usage.ru_stime) * 1e6)
