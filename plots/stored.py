"""Stored data of a run, as arrays, for all figures of runs.

What: `report`, `setting`, `metrics`, `events`, `drawing`, `mean_delay`, `active_steps`.
Why: weighted means and steps between changes must be the same in all figures.
Stays out: drawing, measuring (`swjoin.core.metric_columns`), tables (`swjoin.sweeps.run_tables`).
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import fields
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np

from swjoin.connectors.files.run_folder import read_events, read_metrics, read_report
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError

from .style import SAVING

Columns = dict[str, np.ndarray]


def report(run_dir: Path) -> dict[str, Any]:
    """run.json. UserError when there is none, or it is damaged."""
    return read_report(run_dir)


def setting(run: dict[str, Any], *path: str) -> Any:
    """A key of a run's configuration, UserError when it is missing."""
    value: Any = run["config"]
    for part in path:
        if not isinstance(value, dict) or part not in value:
            raise UserError(f"run.json: config.{'.'.join(path)} is missing; the file is damaged, or of another version")
        value = value[part]
    return value


def metrics(run_dir: Path) -> Columns:
    """DIR/metrics/slaves.parquet, column by column. UserError when there is none, or it is damaged."""
    return dict(read_metrics(run_dir))


def events(run_dir: Path) -> Columns:
    """DIR/metrics/events.parquet, column by column; without columns when there is none. UserError when it is damaged."""
    if not os.path.exists(run_dir / "metrics" / "events.parquet"):
        return {}
    rows = read_events(run_dir)
    return {field.name: np.array([getattr(row, field.name) for row in rows]) for field in fields(RunEvent)} if rows else {}


@contextmanager
def drawing(run_dir: Path) -> Iterator[None]:
    """UserError when the values of a run cannot be drawn."""
    try:
        with np.errstate(all="ignore"), warnings.catch_warnings(), mpl.rc_context(SAVING):
            warnings.simplefilter("ignore")
            yield
    except (ValueError, ArithmeticError, LookupError, TypeError) as error:
        text = " ".join(str(error).split())[:300]
        raise UserError(f"{run_dir}: what the run has left cannot be drawn ({type(error).__name__}: {text})") from error


def mean_delay(rows: Columns) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, milliseconds): production delay of each distribution epoch with pairs, over all slaves, weighted by pairs.

    The time of an epoch is the mean of its completion by the slaves, weighted alike: an overloaded slave may be seconds behind.
    It is never before the time of an earlier epoch.
    """
    index = np.unique(rows["epoch"], return_inverse=True)[1]
    pairs = np.bincount(index, rows["pairs"].astype(np.float64))
    delay_us = np.bincount(index, rows["pairs"] * rows["delay_mean_us"])
    end_us = np.bincount(index, rows["pairs"] * rows["epoch_end_us"].astype(np.float64))
    some = pairs > 0
    return np.maximum.accumulate(end_us[some] / pairs[some] / 1e6), delay_us[some] / pairs[some] / 1e3


def active_steps(run: dict[str, Any], end_s: float) -> tuple[np.ndarray, np.ndarray]:
    """(seconds, active slaves) as steps, each constant until the next entry; the last one is at the run's end."""
    entries = run.get("declustering") or []
    if not entries:  # a run of a version that could not adapt
        count = sum(r["role"].startswith("slave") for r in (run.get("ranks") or {}).values())
        return np.array([0.0, end_s]), np.array([count, count])
    times = [e["time_s"] for e in entries]
    counts = [e["active_slaves"] for e in entries]
    return np.array([*times, max(end_s, times[-1])]), np.array([*counts, counts[-1]])
