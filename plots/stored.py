"""What a run stored, as arrays: the common ground of all figures about runs.

What: `report`, `metrics`, `events`, `mean_delay`, `active_steps`.
Why: a weighted mean, or what happens between two changes, must not differ from figure to figure.
Stays out: drawing, measuring (`swjoin.cluster.metrics`), tables (`swjoin.spark.aggregate`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from swjoin.errors import UserError

Columns = dict[str, np.ndarray]


def _columns(path: Path) -> Columns:
    table = pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def report(run_dir: Path) -> dict[str, Any]:
    """run.json. UserError when the directory holds no finished run with metrics."""
    if not (run_dir / "metrics" / "slaves.parquet").is_file() or not (run_dir / "run.json").is_file():
        raise UserError(f"{run_dir}: holds no metrics; is it the directory of a finished run?")
    found: dict[str, Any] = json.loads((run_dir / "run.json").read_text())
    return found


def metrics(run_dir: Path) -> Columns:
    """DIR/metrics/slaves.parquet, column by column."""
    return _columns(run_dir / "metrics" / "slaves.parquet")


def events(run_dir: Path) -> Columns:
    """DIR/metrics/events.parquet, column by column; without columns when there is none."""
    source = run_dir / "metrics" / "events.parquet"
    return _columns(source) if source.is_file() else {}


def mean_delay(rows: Columns) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, milliseconds): production delay of each distribution epoch that had pairs, over all slaves, weighted by pairs.

    An epoch stands where the slaves had completed it, weighted alike: an overloaded slave may be seconds behind the others.
    It never stands before an earlier epoch.
    """
    index = np.unique(rows["epoch"], return_inverse=True)[1]
    pairs = np.bincount(index, rows["pairs"].astype(np.float64))
    delay_us = np.bincount(index, rows["pairs"] * rows["delay_mean_us"])
    end_us = np.bincount(index, rows["pairs"] * rows["epoch_end_us"].astype(np.float64))
    some = pairs > 0
    return np.maximum.accumulate(end_us[some] / pairs[some] / 1e6), delay_us[some] / pairs[some] / 1e3


def active_steps(run: dict[str, Any], end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, active slaves), to be drawn as steps that hold until the next entry; the last one is at the run's end."""
    entries = run.get("declustering") or []
    if not entries:  # a run of a version that could not adapt
        count = sum(r["role"].startswith("slave") for r in run["ranks"].values())
        return np.array([0.0, end_s]), np.array([count, count])
    times = [e["time_s"] for e in entries]
    counts = [e["active_slaves"] for e in entries]
    return np.array([*times, max(end_s, times[-1])]), np.array([*counts, counts[-1]])
