"""What operating systems do differently: signals, locks of files, cores, limits.

What: `signals_named`, `lock`, `end_group`, `core_count`, `file_limits`, `this_process`, `kernel_id`.
Why: joins in one process need nothing that Linux alone has, so such differences are in one place. macOS and Windows have never
been tried; tests/api/test_other_systems.py hides what they lack.
Stays out: MPI, /dev/shm and settings of malloc, which need Linux and say so where they are used.
"""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    import subprocess

    import psutil


def signals_named(*names: str) -> tuple[signal.Signals, ...]:
    """The signals of these names that this system has."""
    return tuple(signal.Signals[name] for name in names if name in signal.Signals.__members__)


def lock(file: IO[Any]) -> None:
    """Lock a file until it is closed. BlockingIOError or PermissionError when another process has the lock, OSError where the
    file system has no locks."""
    if sys.platform == "win32":
        import msvcrt

        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
    else:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


def end_group(process: subprocess.Popen[Any], *numbers: signal.Signals) -> None:
    """Send signals to a process that leads a session and to all processes in it; where there are no sessions, end it."""
    if hasattr(os, "killpg"):
        for number in numbers:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, number)
    else:
        process.kill()


def core_count() -> int:
    """Cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def file_limits() -> tuple[int, int] | None:
    """Open files at once, and to what this process may raise that; None where the system has no such limits."""
    try:
        import resource
    except ImportError:
        return None
    return resource.getrlimit(resource.RLIMIT_NOFILE)


@functools.cache
def this_process() -> psutil.Process:
    """This process, to ask about its memory and children."""
    import psutil

    return psutil.Process()


def kernel_id() -> str:
    """The same for all hosts, such as containers and network namespaces, that share one running kernel, and with it its cores;
    empty where the system has none."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""
