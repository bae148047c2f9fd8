"""One run over time: throughput, production delay, and the stream buffer's occupancy per slave.

What: `plot(run_dir) -> Figure`, `save(run_dir) -> paths` (DIR/plots/overview.png and .svg).
Why: whether a run kept up, and which slave did not, is seen at a glance.
Stays out: aggregation; it reads DIR/metrics/slaves.parquet and DIR/run.json.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from . import stored
from .style import COLOURS, figure, legend
from .style import save as save_figure


def plot(run_dir: Path) -> Figure:
    """The overview of a run. UserError when the directory holds no finished run with metrics."""
    report, rows = stored.report(run_dir), stored.metrics(run_dir)
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
        delay.plot(time[some], rows["delay_mean_us"][mine][some] / 1e3, color=colour, linewidth=1.2, label=f"slave {slave}")
        occupancy.plot(time, rows["occupancy_ratio"][mine], color=colour, linewidth=1.2, label=f"slave {slave}")
    delay.set_ylabel("mean production\ndelay (ms)")
    delay.set_ylim(bottom=0)
    legend(delay)
    occupancy.set_ylabel("stream buffer\noccupancy (ratio)")
    occupancy.set_ylim(bottom=0)
    occupancy.set_xlabel("time since the start of the run (s)")
    legend(occupancy)
    results, config = report["results"], report["config"]
    fig.suptitle(
        f"{results['count']:,} pairs, digest {results['digest']}; pace {config['pace']}, "
        f"t_d = {config['cluster']['distribution_epoch_us'] / 1e6:g} s, {len(slaves)} slave{'s' if len(slaves) > 1 else ''}",
        fontsize="medium",
    )
    return fig


def save(run_dir: Path) -> list[Path]:
    return save_figure(plot(run_dir), run_dir / "plots", "overview")
