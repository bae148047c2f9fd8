"""Calibration in realtime pace: the ratio of a slave's CPU time there to its CPU time in asap pace.

What: `realtime_costs(costs) -> (slave_realtime_ratio, slave_sleep_ratio)`.
Why: the other costs are measured on a slave that works without a break, with warm caches. In realtime pace a slave works in
pieces, between sleeps and beside the other roles, and the same work takes more CPU time; the ratio depends on the machine and
its other load. A slave that imitates a slower node (`runtime.slow_node`) sleeps after each piece; longer sleeps leave less of
its data cached.
Stays out: the other costs (`forecast.calibrate.roles`), their use (`forecast.model.ranks`).

Short real runs on imitated nodes of half a core and of a twentieth are limited to their share of CPU time, so that the measured
time is CPU time without waits for a core. The forecast of these runs uses neither ratio. On two shared cores with busy
neighbours the work took 1.8 times as long at half a core, 2.2 at a fifth, 3.1 at a tenth and 5.4 at a twentieth; an hour later,
without them, 1.1 to 1.3, and 1.7 to 1.9 at a twentieth. So calibrate shortly before a forecast.
"""

from __future__ import annotations

import dataclasses
import os
import statistics
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.costs import CostModel
from swjoin.forecast.model.run import simulate

LEAST, MOST = 0.5, 5.0  # bounds of the ratio; values beyond are errors of measurement
MOST_ASLEEP = 1.0
FAST, SLOW = 0.5, 0.05  # of a core
_RATES = {FAST: 600_000, SLOW: 60_000}  # tuples/s and stream: windows of 45 MB, larger than caches; a sustainable rate
_EPOCH_US = 200_000


def _config(bias: float, speed: float) -> RunConfig:
    return config_from_plain(
        {
            "pace": "realtime",
            "join": {"within": "1s"},
            "workload": {"rate": _RATES[speed], "duration": "3s", "bias": bias},
            "cluster": {"distribution_epoch_us": _EPOCH_US, "mini_buffer": "1GB"},
            "module": {"theta": "32KB", "window": "4GB", "stream_buffer": "64MB"},
            "nodes": {"node_speed": speed},
            "measure": {"prefill": "1s"},
            "sink": {"kind": "count"},
        }
    )


def _work_us(rows: dict[str, Any]) -> float:
    """Microseconds in the join module per tuple, over the middle of the measured epochs."""
    tuples = rows["left_tuples"] + rows["right_tuples"]
    chosen = (rows["epoch_end_us"] > 1e6 + 2 * _EPOCH_US) & (rows["epoch_end_us"] < 3e6 - _EPOCH_US) & (tuples > 0)
    return float(rows["process_us"][chosen].sum() / max(1.0, float(tuples[chosen].sum())))


def _measured(config: RunConfig) -> float:
    import pyarrow.parquet as pq

    from swjoin.runtime.in_process import run_local

    with tempfile.TemporaryDirectory(prefix="swjoin-paced-") as folder:
        run_local(Job(config, None, False, Path(folder), None, "calibrate"), progress=False, slave_count=1)
        table = pq.read_table(Path(folder) / "metrics" / "slaves.parquet")
    return _work_us({name: table[name].to_numpy() for name in table.column_names})


def realtime_costs(costs: CostModel, repeats: int = 3) -> tuple[float, float]:
    """(`slave_realtime_ratio`, `slave_sleep_ratio`): medians over two workloads with `repeats` runs each, limited to LEAST and
    MOST, 0 and MOST_ASLEEP. costs: their own two ratios are ignored."""
    plain = dataclasses.replace(costs, slave_realtime_ratio=1.0, slave_sleep_ratio=0.0)
    ratios = []
    for speed in (FAST, SLOW):
        measured = []
        for bias in (0.7, 0.5):
            config = _config(bias, speed)
            forecast = np.stack(simulate(config, 1, plain, host_cores=os.cpu_count() or 1).metrics).T
            expected = _work_us(dict(zip(COLUMNS, forecast, strict=True)))
            if expected <= 0:
                return 1.0, 0.0  # a machine too slow for these rates
            measured += [_measured(config) / expected for _ in range(repeats)]
        ratios.append(statistics.median(measured))
    sleep = [1 / speed - 1 for speed in (FAST, SLOW)]  # per working time
    more = max(1.0, ratios[1] / ratios[0])
    asleep = min(MOST_ASLEEP, (more - 1) / (sleep[1] - more * sleep[0])) if more * sleep[0] < sleep[1] else MOST_ASLEEP
    return min(MOST, max(LEAST, ratios[0] / (1 + asleep * sleep[0]))), asleep
