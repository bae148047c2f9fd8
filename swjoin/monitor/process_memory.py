"""Memory and CPU time of this process, and the release of freed memory.

What: `keep_freed_memory`, called once by a process that runs roles; `FreedMemory`, which trims the heap from time to time;
`rss_bytes`, `peak_rss_bytes`, `cpu_us`.
Why: every delivery allocates and frees the same few megabytes. By default the C library returns such blocks to the system at
once, and the next ones cost a page fault per 4 KB: partitioning took 20 ns a tuple with that, 4 ns without. But memory that a
backlog took (after a recovery, say) is not needed again and has to be returned in the end.
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
_LEFT_BYTES = 16 << 20  # of freed memory after a trim
_TRIM_S = 10.0  # between two trims: pages that are needed again cost faults


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks. False where the library has no such setting (musl, macOS)."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


class FreedMemory:
    """Returns freed memory to the system from time to time. For one thread, which calls `trim_if_due` when it is idle."""

    def __init__(self) -> None:
        self._next_s = time.monotonic() + _TRIM_S
        try:
            trim = ctypes.CDLL(None).malloc_trim
            trim.argtypes = (ctypes.c_size_t,)
            self._trim: Callable[[int], object] | None = trim
        except (AttributeError, OSError):
            self._trim = None

    def trim_if_due(self) -> None:
        """Trim the heap when it is due."""
        now_s = time.monotonic()
        if self._trim is not None and now_s >= self._next_s:
            self._trim(_LEFT_BYTES)
            self._next_s = now_s + _TRIM_S


def rss_bytes() -> int:
    """Resident memory of this process now; 0 on systems other than Linux."""
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
