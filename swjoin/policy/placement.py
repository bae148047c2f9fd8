"""Which slave owns which partition-group at the start of a run.

What: round-robin placement, the paper's even start. Pure.
Why: initial placement is a decision like every other; the master enacts it through the routing map.
Stays out: moves between slaves while running.
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64


def round_robin(partition_count: int, slave_count: int) -> I64:
    """Owner of every partition-group: int64 (partition_count,) of slave ids; slaves own equally many, give or take one."""
    return np.arange(partition_count, dtype=np.int64) % slave_count
