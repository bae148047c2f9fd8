"""Delay over the distribution epoch at a low rate: inside the run, and from a producer's push to a consumer.

What: `plot(folder) -> Figure`, `save(folder) -> paths` (FOLDER/plots/live_delay.png and .svg).
Why: the distribution epoch is the price of batching; it is chosen by the delay that a user sees.
Stays out: the sessions (`benchmarks/live.py`); it reads FOLDER/delay.json.
"""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from swjoin.core.errors import UserError

from .style import COLOURS, caption, figure, legend
from .style import save as save_figure

_SERIES = ("production delay, p50", "production delay, p99", "push to consumer, p50", "push to consumer, p99")


def plot(folder: Path) -> Figure:
    """Medians over runs, with the range as a band. UserError without the measurement."""
    source = folder / "delay.json"
    if not source.is_file():
        raise UserError(f"{source}: is missing; run ./run.sh bench live delay --out {folder}")
    points = json.loads(source.read_text())
    epochs = [point["epoch_ms"] for point in points]
    values = np.array([[np.quantile(np.array(point["all"]), q, axis=0) * 1e3 for q in (0.0, 0.5, 1.0)] for point in points])
    drawn, (axes,) = figure(1, 4.2)
    for index, name in enumerate(_SERIES):
        colour = COLOURS[index // 2]
        axes.plot(epochs, values[:, 1, index], "-" if index % 2 == 0 else "--", marker="o", color=colour, label=name)
        axes.fill_between(epochs, values[:, 0, index], values[:, 2, index], color=colour, alpha=0.15)
    axes.plot(epochs, epochs, ":", color="grey", label="the epoch itself")
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(epochs, [str(epoch) for epoch in epochs])
    axes.set_xlabel("distribution epoch (ms)")
    axes.set_ylabel("delay (ms)")
    legend(axes)
    caption(drawn, f"{len(points[0]['all'])} run(s) each; bands: lowest to highest")
    return drawn


def save(folder: Path) -> list[Path]:
    return save_figure(plot(folder), folder / "plots", "live_delay")
