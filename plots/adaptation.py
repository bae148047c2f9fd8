"""Adaptation of a run over time: occupancy against the thresholds, active slaves, moves, and production delay.

What: `plot(run_dir) -> Figure`, `save(run_dir) -> paths` (DIR/plots/adaptation.png and .svg; none without adaptation).
Why: all four on one time axis show whether moves followed load, and what they cost.
Stays out: aggregation; it reads DIR/metrics/events.parquet, DIR/metrics/slaves.parquet and DIR/run.json.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from swjoin.core.errors import UserError

from . import stored
from .style import bar_style, figure, legend, points, series_style
from .style import save as save_figure

MOST_BARS = 60  # more moves are shown as bytes per second


def has_adapted(run_dir: Path) -> bool:
    """Whether the run reported occupancies or moved anything."""
    events = stored.events(run_dir)
    return bool(events) and bool(np.isin(events["kind"], ["occupancy", "decided"]).any())


def plot(run_dir: Path) -> Figure:
    """Occupancy, active slaves, moves and production delay over time. UserError when the run did not adapt itself."""
    report = stored.report(run_dir)
    if not has_adapted(run_dir):
        raise UserError(f"{run_dir}: nothing to show: the run had no reorganization.policy")
    with stored.drawing(run_dir):
        return _plot(report, stored.events(run_dir), stored.metrics(run_dir))


def _plot(report: dict[str, Any], events: stored.Columns, rows: stored.Columns) -> Figure:
    end_s = max(rows["epoch_end_us"].max(initial=0), events["time_us"].max()) / 1e6
    slaves = np.union1d(rows["slave"], events["slave"][events["kind"] == "occupancy"]).astype(int)
    fig, (occupancy, active, moves, delay) = figure(4, 2.1)
    settings = stored.setting(report, "reorganization")
    _occupancy(occupancy, events, slaves, settings)
    times, counts = stored.active_steps(report, end_s)
    active.step(times, counts, where="post", color="#000000", linewidth=1.6)
    active.set_ylim(0, counts.max() + 0.5)
    active.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    active.set_ylabel("active slaves")
    _moves(moves, events, slaves, end_s)
    _delay(delay, rows, slaves)
    delay.set_xlabel("time since the start of the run (s)")
    delay.set_xlim(0, end_s * 1.01)
    fig.suptitle(
        f"policy {settings['policy']}, {settings['declustering']} declustering, t_r = {settings['epoch_us'] / 1e6:g} s, "
        f"t_d = {stored.setting(report, 'cluster', 'distribution_epoch_us') / 1e6:g} s: {report.get('moves') or 0:,} moves, "
        f"{((report.get('movement') or {}).get('state_bytes') or 0) / 2**20:,.1f} MiB",
        fontsize="medium",
    )
    return fig


def _occupancy(axis: Axes, events: stored.Columns, slaves: np.ndarray, settings: dict[str, float]) -> None:
    mine = events["kind"] == "occupancy"
    times = np.unique(events["time_us"][mine])
    for i, slave in enumerate(slaves):
        own = mine & (events["slave"] == slave)
        values = np.full(len(times), np.nan)  # an inactive slave reports nothing: its line has a gap
        values[np.searchsorted(times, events["time_us"][own])] = events["amount"][own]
        axis.plot(times / 1e6, values, marker=".", markersize=4, label=f"slave {slave}", **series_style(i))
    for name, label, style in (("supplier_threshold", "Th_sup", "--"), ("consumer_threshold", "Th_con", ":")):
        axis.axhline(settings[name], color="#555555", linestyle=style, linewidth=1.1, label=f"{label} = {settings[name]:g}")
    axis.set_ylim(bottom=-0.02)
    axis.set_ylabel("average\noccupancy (ratio)")
    legend(axis)


def _moves(axis: Axes, events: stored.Columns, slaves: np.ndarray, end_s: float) -> None:
    """A bar for each move, as long as its hold-back; with many moves, bytes per second that left each slave."""
    done = {name: column[events["kind"] == "released"] for name, column in events.items()}
    if len(done["kind"]) > MOST_BARS:
        left = events["kind"] == "left"
        width = max(1.0, end_s / 60)
        bins = np.arange(0, end_s + width, width)
        below = np.zeros(len(bins) - 1)
        for i, slave in enumerate(slaves):
            own = left & (events["slave"] == slave)
            weights = events["state_bytes"][own] / 2**20 / width
            height = np.histogram(events["time_us"][own] / 1e6, bins, weights=weights)[0]
            if height.any():
                axis.bar(
                    bins[:-1], height, width, below, align="edge", label=f"from slave {slave}", linewidth=0, **bar_style(i)
                )
            below += height
        axis.set_ylabel("state moved\n(MiB/s)")
        legend(axis)
        return
    for i, slave in enumerate(slaves):
        own = done["slave"] == slave
        lasted = done["duration_us"][own] / 1e6
        if own.any():
            begin = done["time_us"][own] / 1e6 - lasted
            axis.barh(done["amount"][own], lasted, 0.8, begin, label=f"from slave {slave}", linewidth=0, **bar_style(i))
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.set_ylabel("move, from held\nto released")
    if len(done["kind"]):
        axis.set_ylim(done["amount"].max() + 1, -1)  # the first move on top, as in `swjoin events`
        legend(axis)
    else:
        axis.set_yticks([])
        axis.text(0.5, 0.5, "no moves", transform=axis.transAxes, ha="center", va="center", color="#555555")


def _delay(axis: Axes, rows: stored.Columns, slaves: np.ndarray) -> None:
    for i, slave in enumerate(slaves):
        own = (rows["slave"] == slave) & (rows["pairs"] > 0)
        epochs = rows["epoch"][own]
        # Epochs in which this slave had no pairs or was inactive interrupt its line.
        gaps = np.flatnonzero(np.diff(epochs) > 1) + 1
        time = np.insert(rows["epoch_end_us"][own] / 1e6, gaps, np.nan)
        style = {**series_style(i), "linewidth": 0.7, "marker": points(len(epochs)), "markersize": 3}
        axis.plot(time, np.insert(rows["delay_mean_us"][own] / 1e3, gaps, np.nan), **style)
    at_s, delay_ms = stored.mean_delay(rows)
    label = "all slaves\n(thin: each)"
    axis.plot(at_s, delay_ms, color="#000000", linewidth=1.6, marker=points(len(at_s)), markersize=4, label=label)
    axis.set_ylim(bottom=0)
    axis.set_ylabel("mean production\ndelay (ms)")
    legend(axis)


def save(run_dir: Path) -> list[Path]:
    """Draw, unless the run did not adapt itself."""
    if not has_adapted(run_dir):
        return []
    drawn = plot(run_dir)
    with stored.drawing(run_dir):
        return save_figure(drawn, run_dir / "plots", "adaptation")
