"""What a slave's work takes in realtime pace, over what it takes in one go: the last cost that `calibrate` measures.

What: `realtime_ratio(costs) -> float`.
Why: the other costs are of a slave that works without a break, with warm caches. In realtime pace it works in pieces, between
sleeps and beside the other roles, and the same work takes more CPU time; how much depends on the machine, and on who else uses
it.
Stays out: the other costs (`runtime.calibrate`), where it is applied (`runtime.actors`).

A short real run on an imitated slower node: it is held to its share of CPU time, so that the time it is charged is CPU time and
no waiting for a core. The same run is foretold with a ratio of 1.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cluster.metrics import COLUMNS
from swjoin.config import RunConfig
from swjoin.loading import config_from_plain
from swjoin.runtime.costs import CostModel
from swjoin.runtime.job import Job
from swjoin.runtime.planner import plan

LEAST, MOST = 0.5, 5.0  # beyond, something else was measured
_EPOCH_US = 200_000


def _config(bias: float) -> RunConfig:
    return config_from_plain(
        {
            "pace": "realtime",
            "join": {"within": "1s"},
            "workload": {"rate": 100_000, "duration": "3s", "bias": bias},
            "cluster": {"distribution_epoch_us": _EPOCH_US, "mini_buffer": "1GB"},
            "module": {"theta": "32KB", "window": "4GB", "stream_buffer": "64MB"},
            "nodes": {"node_speed": 0.1},
            "measure": {"prefill": "1s"},
            "sink": {"kind": "count"},
        }
    )


def _work_us(rows: dict[str, Any]) -> float:
    """Time in the join module per tuple, of the middle of the measured epochs."""
    tuples = rows["left_tuples"] + rows["right_tuples"]
    counted = (rows["epoch_end_us"] > 1e6 + 2 * _EPOCH_US) & (rows["epoch_end_us"] < 3e6 - _EPOCH_US) & (tuples > 0)
    return float(rows["process_us"][counted].sum() / max(1.0, float(tuples[counted].sum())))


def _measured(config: RunConfig) -> float:
    import pyarrow.parquet as pq

    from swjoin.runtime.local import run_local

    with tempfile.TemporaryDirectory(prefix="swjoin-paced-") as folder:
        run_local(Job(config, None, False, Path(folder), None, "calibrate"), progress=False, slave_count=1)
        table = pq.read_table(Path(folder) / "metrics" / "slaves.parquet")
    return _work_us({name: table[name].to_numpy() for name in table.column_names})


def realtime_ratio(costs: CostModel, repeats: int = 3) -> float:
    """Median of two workloads, so many times each; within LEAST and MOST. costs: their own ratio does not
    count."""
    plain = dataclasses.replace(costs, slave_realtime_ratio=1.0)
    ratios = []
    for bias in (0.7, 0.5):
        config = _config(bias)
        told = np.stack(plan(config, 1, plain, host_cores=os.cpu_count() or 1).metrics).T
        expected = _work_us(dict(zip(COLUMNS, told, strict=True)))
        if expected <= 0:
            return 1.0  # a machine too slow for these rates: nothing would be joined in time
        ratios += [_measured(config) / expected for _ in range(repeats)]
    return min(MOST, max(LEAST, statistics.median(ratios)))
