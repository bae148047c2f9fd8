"""What a process has freed is its own for a while, and then the system's."""

from __future__ import annotations

import subprocess
import sys

import pytest

from swjoin.monitor import process_settings
from tests.support.limits import PROCESS_S

_PROGRAM = """
import numpy as np
from swjoin.monitor import process_memory as memory
from swjoin.monitor.process_settings import keep_freed_memory

keep_freed_memory()
backlog = [np.ones(1 << 18, np.uint8) for _ in range(400)]  # 100 MiB in blocks that the C library keeps
pinned = backlog[::50]
full = memory.rss_bytes()
del backlog
kept = memory.rss_bytes()
freed = memory.FreedMemory()
freed.trim_if_due()
early = memory.rss_bytes()
memory.time.monotonic = lambda then=memory.time.monotonic(): then + 60
freed.trim_if_due()
print(*(x >> 20 for x in (full, kept, early, memory.rss_bytes())), sum(int(block.sum()) for block in pinned))
"""


@pytest.mark.skipif(not process_settings.keep_freed_memory(), reason="the C library has no mallopt")
def test_what_a_backlog_took_is_given_back_after_a_while() -> None:
    run = subprocess.run([sys.executable, "-c", _PROGRAM], capture_output=True, text=True, timeout=PROCESS_S, check=True)
    full, kept, early, late, pinned = map(int, run.stdout.split())
    assert full - kept < 10, "what is freed is kept"
    assert full - early < 10, "for a while"
    assert full - late > 60, "and then given back, though blocks above it are in use"
    assert pinned == 8 << 18
