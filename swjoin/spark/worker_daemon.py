"""Spark's Python daemon with the kernels loaded before it forks: `spark.python.daemon.module = swjoin.spark.worker_daemon`.

What: `load_kernels()`, then pyspark's own daemon.
Why: executors' Python workers end after a minute without work, and each new one would take seconds to import numba and to load
kernels; what the daemon has loaded, they share.
Stays out: compiling kernels in the first place (`cli.kernels`), what workers do.
"""

from __future__ import annotations

import numpy as np

from swjoin.core.join_semantics import Bounds
from swjoin.spark.executor_join import JoinSpec, join_parcels
from swjoin.spark.shuffle_batches import StreamSpec, pack


def load_kernels() -> None:
    """Join a few rows, so that every kernel of both passes is in memory. Nothing is written to standard output."""
    import pyarrow as pa

    bounds = Bounds(-1, 1)
    plans = tuple(StreamSpec(side, 1, True, "ts", "us", 1, 1) for side in (0, 1))
    column = np.arange(4096)
    rows = pa.record_batch([pa.array(column % 512), pa.array(column)], names=["key", "ts"])
    parcels = [parcel for plan in plans for parcel in pack(iter([rows]), plan)]
    types = (pa.int64(), pa.int64())
    plan = JoinSpec(bounds, "inner", (plans[0], plans[1]), ((0, 0), (1, 1)), ("key", "ts"), types, 16 << 20)
    assert sum(batch.num_rows for batch in join_parcels(iter(parcels), plan)) == len(column)


if __name__ == "__main__":
    from pyspark.daemon import manager

    load_kernels()
    manager()
