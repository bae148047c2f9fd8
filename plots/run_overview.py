"""One run over time: throughput, production delay, and the stream buffer's occupancy per slave.

What: `plot(run_dir) -> Figure`, `save(run_dir) -> paths` (DIR/plots/overview.png and .svg).
Why: shows whether a run kept up, and which slave did not.
Stays out: aggregation; it reads DIR/metrics/slaves.parquet and DIR/run.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from swjoin.core.errors import UserError

from . import stored
from .style import COLOURS, figure, legend, points
from .style import save as save_figure


def plot(run_dir: Path) -> Figure:
    """The overview of a run. UserError when the directory holds no run with metrics."""
    report, rows = stored.report(run_dir), stored.metrics(run_dir)
    if not len(rows["epoch"]):
        raise UserError(f"{run_dir}: nothing to show: no distribution epoch was completed")
    with stored.drawing(run_dir):
        return _plot(report, rows)


def _plot(report: dict[str, Any], rows: stored.Columns) -> Figure:
    slaves = np.unique(rows["slave"]).astype(int)
    fig, (throughput, delay, occupancy) = figure(3)
    end = {int(e): rows["epoch_end_us"][rows["epoch"] == e].max() / 1e6 for e in np.unique(rows["epoch"])}
    epochs = np.array(sorted(end))
    at = np.array([end[e] for e in epochs])
    # Two distribution epochs can be complete at the same moment; a bin of a second (or a fiftieth of the run) is steady.
    width = max(at.max() / 50, 1.0) if len(at) else 1.0
    bins = np.arange(0, at.max() + width, width) if len(at) else np.array([0.0, 1.0])
    for label, columns, colour in (
        ("input tuples", ("left_tuples", "right_tuples"), COLOURS[0]),
        ("pairs", ("pairs",), COLOURS[1]),
    ):
        values = np.zeros(len(bins) - 1)
        for column in columns:
            values += np.histogram(rows["epoch_end_us"] / 1e6, bins, weights=rows[column])[0]
        throughput.stairs(values / width, bins, label=label, color=colour, linewidth=1.6)
    throughput.set_ylabel("per second")
    throughput.set_ylim(bottom=0)
    throughput.ticklabel_format(axis="y", style="sci", scilimits=(-3, 4))
    legend(throughput)
    for i, slave in enumerate(slaves):
        mine = rows["slave"] == slave
        colour = COLOURS[i % len(COLOURS)]
        time = rows["epoch_end_us"][mine] / 1e6
        some = rows["pairs"][mine] > 0
        for axis, chosen, values in (
            (delay, some, rows["delay_mean_us"][mine] / 1e3),
            (occupancy, np.ones_like(some), rows["occupancy_ratio"][mine]),
        ):
            style: dict[str, Any] = {"color": colour, "linewidth": 1.2, "marker": points(chosen.sum()), "markersize": 4}
            axis.plot(time[chosen], values[chosen], label=f"slave {slave}", **style)
    delay.set_ylabel("mean production\ndelay (ms)")
    delay.set_ylim(bottom=0)
    legend(delay)
    occupancy.set_ylabel("stream buffer\noccupancy (ratio)")
    occupancy.set_ylim(bottom=0)
    occupancy.set_xlabel("time since the start of the run (s)")
    legend(occupancy)
    results = report["results"]
    pairs = "an unknown number of pairs" if results.get("count") is None else f"{results['count']:,} pairs"
    epoch_s = stored.setting(report, "cluster", "distribution_epoch_us") / 1e6
    fig.suptitle(
        f"{pairs}, digest {results.get('digest')}; pace {stored.setting(report, 'pace')}, "
        f"t_d = {epoch_s:g} s, {len(slaves)} slave{'s' if len(slaves) > 1 else ''}",
        fontsize="medium",
    )
    return fig


def save(run_dir: Path) -> list[Path]:
    drawn = plot(run_dir)
    with stored.drawing(run_dir):
        return save_figure(drawn, run_dir / "plots", "overview")
