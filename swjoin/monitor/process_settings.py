"""Settings of the whole process that joins want: quick switches between threads, and freed memory that is reused.

What: `join_settings`, around a join in a process that belongs to somebody else (a notebook, a service): the settings are made
by the first join that runs and undone after the last; `keep_freed_memory`, for processes of our own (ranks).
Why: every delivery allocates and frees the same few megabytes. By default the C library returns such blocks to the system at
once, and the next ones cost a page fault per 4 KB: partitioning took 20 ns a tuple with that, 4 ns without. And with the
interpreter's switch interval of 5 ms a finished kernel waits for the GIL.
Stays out: returning freed memory while a run goes on (`monitor.process_memory`).
"""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3  # malloc.h
_KEPT_BYTES = 256 << 20
_LARGEST_BYTES = 32 << 20  # larger blocks come from the system and go back to it
_USERS_OWN = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_", "GLIBC_TUNABLES")
_SWITCH_S = 0.0005


def keep_freed_memory() -> bool:
    """Ask the C library to reuse freed blocks. False where it has no such setting (musl, macOS), or the user has made it."""
    return _set_malloc(_LARGEST_BYTES, _KEPT_BYTES)


def _set_malloc(largest_bytes: int, kept_bytes: int) -> bool:
    if any(name in os.environ for name in _USERS_OWN):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # another C library; Windows
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, largest_bytes)) and bool(mallopt(_M_TRIM_THRESHOLD, kept_bytes))


class _Settings:
    """Counts the joins that run in this process, in any of its threads.

    Without a lock, which an interrupt could leave locked. A join that begins while another thread ends the last one may run
    with the slow interval; the first interval comes back whatever happens.
    """

    def __init__(self) -> None:
        self._joins: set[object] = set()
        self._interval_s = 0.0

    def make(self, join: object) -> None:
        first = not self._joins
        self._joins.add(join)
        if not first:
            return
        interval_s = sys.getswitchinterval()
        if round(interval_s, 5) > _SWITCH_S:
            self._interval_s = interval_s
            sys.setswitchinterval(_SWITCH_S)
        keep_freed_memory()

    def undo(self, join: object) -> None:
        """An interval that other code has set meanwhile stays. May be repeated."""
        self._joins.discard(join)
        if self._joins:
            return
        if self._interval_s > _SWITCH_S and round(sys.getswitchinterval(), 5) == _SWITCH_S:
            sys.setswitchinterval(self._interval_s + 5e-7)  # the interpreter rounds down to microseconds
        # What glibc's own rule sets once a block of 32 MiB has been freed; the rule itself cannot be switched on again.
        _set_malloc(_LARGEST_BYTES, 2 * _LARGEST_BYTES)


_SETTINGS = _Settings()


@contextmanager
def join_settings() -> Iterator[None]:
    """The settings hold inside; joins in several threads may overlap."""
    join = object()
    try:
        try:
            _SETTINGS.make(join)
            yield
        finally:
            _SETTINGS.undo(join)
    finally:  # an interrupt may end the first call anywhere
        _SETTINGS.undo(join)
