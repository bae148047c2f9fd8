"""Processes that have a share of a core.

What: `held`, a context in which each of some processes has a CPU quota of its own.
Why: on a machine with two threads, that roles on further ranks bring as much as they should shows only where they, and nothing
else, are the bottleneck.
Stays out: starting processes.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

_QUOTA_US = 1_000


def _group(period_us: int) -> Path:
    """A new group of processes with a CPU quota. SystemExit where there can be none."""
    root = Path("/sys/fs/cgroup")
    try:
        if (root / "cgroup.controllers").exists():
            group = root / f"swjoin-bench-{os.getpid()}-{time.monotonic_ns()}"
            group.mkdir()
            (group / "cpu.max").write_text(f"{_QUOTA_US} {period_us}")
        else:
            group = root / "cpu" / f"swjoin-bench-{os.getpid()}-{time.monotonic_ns()}"
            group.mkdir()
            (group / "cpu.cfs_period_us").write_text(str(period_us))
            (group / "cpu.cfs_quota_us").write_text(str(_QUOTA_US))
    except OSError as error:
        raise SystemExit(f"a CPU quota needs root and control groups of the kernel: {error}") from None
    return group


@contextmanager
def held(pids: Sequence[int], share: int) -> Iterator[None]:
    """Each process has one part of so many of a core."""
    groups = [_group(share * _QUOTA_US) for _ in pids]
    try:
        for group, pid in zip(groups, pids, strict=True):
            (group / "cgroup.procs").write_text(str(pid))
        yield
    finally:
        for group in groups:
            deadline = time.monotonic() + 10
            while group.exists() and time.monotonic() < deadline:
                try:
                    group.rmdir()
                except OSError:
                    time.sleep(0.1)
