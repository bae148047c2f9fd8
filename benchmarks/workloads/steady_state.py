"""A run in steady state, by the metrics of its slaves.

What: `metrics_of` a run's directory; `steady`: throughput, production delay and join work of the second half of a run.
Why: a short run spends much of its time on starting, on memory used for the first time, and on its report.
Stays out: running, modelling.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq


def metrics_of(run_dir: Path) -> dict[str, Any]:
    """The columns of metrics/slaves.parquet."""
    table = pq.read_table(run_dir / "metrics" / "slaves.parquet")
    return {name: table[name].to_numpy() for name in table.column_names}


def steady(rows: dict[str, Any]) -> tuple[float, float, float]:
    """Input tuples per second, mean production delay (seconds) and the slaves' nanoseconds in the join module per tuple, of the
    second half of the distribution epochs but the last, which empties the windows."""
    count = int(rows["epoch"].max()) + 1
    ends = np.zeros(count)
    np.maximum.at(ends, rows["epoch"].astype(int), rows["epoch_end_us"].astype(float))
    first, last = count // 2 - 1, count - 2
    inside = (rows["epoch"] > first) & (rows["epoch"] <= last)
    tuples = float((rows["left_tuples"] + rows["right_tuples"])[inside].sum())
    pairs = float(rows["pairs"][inside].sum())
    delay_us = float((rows["pairs"] * rows["delay_mean_us"])[inside].sum()) / max(1.0, pairs)
    work_ns = 1e3 * float(rows["process_us"][inside].sum()) / tuples
    return tuples / (ends[last] - ends[first]) * 1e6, delay_us / 1e6, work_ns
