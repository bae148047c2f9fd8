"""The flights example: how long an aircraft stands in New York's reach between landing elsewhere and leaving New York again.

What: `plot(pairs) -> Figure`, `save(pairs_file, folder) -> paths`.
Why: a picture of a real join's result.
Stays out: preparing the data (`examples.flights`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from .style import COLOURS, figure
from .style import save as save_figure


def plot(pairs_file: Path) -> Figure:
    """Histogram of the hours between arrival at the destination and the same aircraft's later departure from New York."""
    table = pq.read_table(pairs_file, columns=["arrived", "departed"])
    gap = table.column("departed").to_numpy().astype("datetime64[us]") - table.column("arrived").to_numpy().astype(
        "datetime64[us]"
    )
    hours = gap / np.timedelta64(1, "h")
    fig, (axis,) = figure(1, 4.0)
    axis.hist(hours, bins=np.arange(0, 12.25, 0.25).tolist(), color=COLOURS[0], edgecolor="white", linewidth=0.4)
    axis.set_xlabel("hours from arrival at the destination to the same aircraft's next departures from New York")
    axis.set_ylabel("pairs per quarter of an hour")
    axis.set_xlim(0, 12)
    axis.set_title(f"{len(hours):,} pairs within 12 h, flights from New York in 2013", fontsize="medium")
    return fig


def save(pairs_file: Path, folder: Path) -> list[Path]:
    return save_figure(plot(pairs_file), folder, "turnaround")
