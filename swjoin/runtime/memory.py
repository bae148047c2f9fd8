"""Memory that a process has freed stays its own; how much it has.

What: `keep_freed_memory`, called once by a process that plays roles; `rss_bytes`, resident memory now.
Why: every delivery allocates and frees the same few megabytes. By default the C library gives such blocks back to the system at
once and pays a page fault for every 4 KB of the next: partitioning took 20 ns a tuple with that, 4 ns without.
Stays out: the windows, which are one reserved pool (`state.arrays`).
"""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 256 << 20
_LARGEST_BYTES = 32 << 20  # larger blocks come from the system and go back to it


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks. False where it does not know how (musl, macOS): then all is as before."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, _LARGEST_BYTES)) and bool(mallopt(_M_TRIM_THRESHOLD, _KEPT_BYTES))


def rss_bytes() -> int:
    """Resident memory of this process now; 0 where the system does not tell (elsewhere than on Linux)."""
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0
