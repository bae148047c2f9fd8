"""Runs of one workload compared: with and without moves, or with different policies.

What: `plot({label: run_dir}) -> Figure`, `save(runs, folder, name) -> paths`.
Why: the gain and the cost of adapting are differences between runs.
Stays out: one run alone (`run_overview`, `adaptation`), making the runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from . import stored
from .style import figure, legend, series_style
from .style import save as save_figure


def plot(runs: Mapping[str, Path]) -> Figure:
    """Production delay, occupancy of the fullest slave, active slaves and communication over time, a line per run.

    The keys of `runs` are the lines' labels. UserError when a directory holds no finished run with metrics.
    """
    fig, (delay, occupancy, active, communication) = figure(4, 2.1)
    most, end_s = 1, 0.0
    for i, (label, run_dir) in enumerate(runs.items()):
        # Earlier lines are broader, so that they are visible where runs are alike.
        style = {**series_style(i), "linewidth": 1.2 + 0.9 * (len(runs) - 1 - i)}
        report, rows = stored.report(run_dir), stored.metrics(run_dir)
        epochs, index = np.unique(rows["epoch"], return_inverse=True)
        time, fullest = np.zeros(len(epochs)), np.zeros(len(epochs))
        np.maximum.at(time, index, rows["epoch_end_us"] / 1e6)
        np.maximum.at(fullest, index, rows["occupancy_ratio"])
        spent = np.cumsum(np.bincount(index, rows["communication_us"]) / 1e6)
        last = float(time.max(initial=0))
        times, counts = stored.active_steps(report, last)
        delay.plot(*stored.mean_delay(rows), label=label, **style)
        occupancy.plot(time, fullest, **style)
        active.step(times, counts, where="post", **style)
        communication.plot(time, spent, **style)
        most, end_s = max(most, int(counts.max())), max(end_s, last)
    delay.set_ylabel("mean production\ndelay (ms)")
    occupancy.set_ylabel("occupancy of the\nfullest slave (ratio)")
    active.set_ylabel("active slaves")
    active.set_ylim(top=most + 0.5)
    active.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    communication.set_ylabel("communication of all\nslaves, summed (s)")
    communication.set_xlabel("time since the start of the run (s)")
    for axis in (delay, occupancy, active, communication):
        axis.set_ylim(bottom=0)
    communication.set_xlim(0, end_s * 1.01)
    legend(delay)
    return fig


def save(runs: Mapping[str, Path], folder: Path, name: str = "comparison") -> list[Path]:
    """FOLDER/NAME.png and .svg."""
    return save_figure(plot(runs), folder, name)
