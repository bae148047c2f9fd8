"""Whether a run kept up with its input, by its metrics.

What: `sustained`, `growth`, `read_rows`.
Why: searches, capacity forecasts and benchmarks use one criterion for a *sustained* run.
Stays out: searching for the highest sustained rate of real runs (`sweeps.search`) or of the model (`forecast.capacity`).

A run is sustained when (1) it is complete and the machine was not overloaded, (2) the slope of the production delay over time
in the measured phase, weighted by pairs, is below GROWTH over all slaves, and below SLAVE_GROWTH for each one (a single slave's
delays are noisier), and (3) as many slaves as are active at the end have, within 1.5 t_d and 3 % of the measured phase before
its end, completed an epoch that is not further than that behind the newest: this finds slaves that fall behind without pairs.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

GROWTH, SLAVE_GROWTH = 0.02, 0.05  # s of delay per s
LATE_EPOCHS, LATE_RATIO = 1.5, 0.03
_COLUMNS = ("slave", "epoch_end_us", "pairs", "delay_mean_us", "epoch")


def read_rows(run_dir: Path) -> dict[str, Any]:
    """The columns that `sustained` needs, of DIR/metrics/slaves.parquet."""
    import pyarrow.parquet as pq

    table = pq.read_table(run_dir / "metrics" / "slaves.parquet", columns=list(_COLUMNS))
    return {name: table.column(name).to_numpy() for name in _COLUMNS}


def sustained(rows: Mapping[str, Sequence[float]], report: Mapping[str, Any]) -> tuple[bool, str]:
    """Whether a run was sustained, and the reason. rows: columns of metrics/slaves.parquet; report: its run.json."""
    if not report.get("complete"):
        return False, f"the run did not end: {report.get('failure') or 'it was given up'}"
    machine = report.get("machine") or {}
    if machine.get("overloaded"):
        return False, f"the machine was overloaded: {'; '.join(machine.get('reasons', []))}"
    slave, end, pairs, delay, epoch = (np.asarray(rows[name], dtype=np.float64) for name in _COLUMNS)
    phase = report.get("measured") or {}
    from_us = 1e6 * float(phase.get("from_s") or 0.0)
    to_us = 1e6 * float(phase["to_s"]) if phase.get("to_s") is not None else float(end.max(initial=0.0))
    measured = (end > from_us) & (end <= to_us)
    all_done_us = float(end.max(initial=0.0))
    slave, end, pairs, delay, epoch = (column[measured] for column in (slave, end, pairs, delay, epoch))
    if np.bincount(slave.astype(np.int64), minlength=1).max() < 3:
        return False, "fewer than 3 distribution epochs were completed in the measured phase"
    slope = growth(end, delay, pairs)
    if slope >= GROWTH:
        return False, f"the delay grows by {slope:.3g} s per s"
    for s in np.unique(slave):
        rows_of = slave == s
        own = growth(end[rows_of], delay[rows_of], pairs[rows_of])
        if own >= SLAVE_GROWTH:
            return False, f"the delay of slave {s:.0f} grows by {own:.3g} s per s"
    active = int(report["declustering"][-1]["active_slaves"])
    last = sorted((float(end[slave == s].max()) for s in np.unique(slave)), reverse=True)[:active]
    if len(last) < active:
        return False, f"{active - len(last)} of {active} active slaves completed no distribution epoch in the measured phase"
    t_d_us = report["config"]["cluster"]["distribution_epoch_us"]
    slack_us, behind_us = LATE_EPOCHS * t_d_us + LATE_RATIO * (to_us - from_us), to_us - last[-1]
    if "stages" in report and all_done_us - to_us > slack_us:  # rows of earlier stages, of which those of the last say nothing
        return False, f"the last rows come out {(all_done_us - to_us) / 1e6:.3g} s after the streams' end"
    newest = sorted((float(epoch[slave == s].max()) for s in np.unique(slave)), reverse=True)[:active]
    behind_us = max(behind_us, (newest[0] - newest[-1]) * t_d_us)
    if behind_us > slack_us:
        return False, f"a slave is {behind_us / 1e6:.3g} s behind at the end, {slack_us / 1e6:.3g} s is the limit"
    return True, f"the delay stays flat ({slope:+.2g} s per s)"


def growth(end: np.ndarray, delay: np.ndarray, pairs: np.ndarray) -> float:
    """Slope of the least-squares line of delay over end, weighted by pairs; 0 without pairs."""
    total = pairs.sum()
    if total <= 0:
        return 0.0
    x, y = end - (end * pairs).sum() / total, delay - (delay * pairs).sum() / total
    spread = (pairs * x * x).sum()
    return float((pairs * x * y).sum() / spread) if spread > 0 else 0.0
