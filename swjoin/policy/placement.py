"""Initial placement: the owner of every partition-group at the start of a run.

What: round-robin placement, as in the paper. Pure.
Why: placement is a decision of a policy; the master enacts it through the routing map.
Stays out: moves between slaves during the run.
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64


def round_robin(partition_count: int, slave_count: int) -> I64:
    """Owner of every partition-group: int64 (partition_count,) of slave ids; the counts of slaves differ by at most one."""
    return np.arange(partition_count, dtype=np.int64) % slave_count
