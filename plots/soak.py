"""A soak over time: memory of every rank, slaves, and tuples waiting at the master, with each kill and each resumption.

What: `plot(folder) -> Figure`, `save(folder) -> paths` (FOLDER/plots/soak.png and .svg), and `python -m plots.soak FOLDER`.
Why: shows whether memory is flat, and beside which events it changes.
Stays out: the run and the verdicts (`tests.tools.soak.run`), which write the table of memory, FOLDER/soak.json and
FOLDER/checkpoints.json.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from swjoin.core.errors import UserError

from .style import COLOURS, caption, figure, legend, series_style
from .style import save as save_figure

_MIB = 2**20
_FIRST_SLAVE = 2


def _table(path: Path) -> dict[str, np.ndarray]:
    table = pyarrow.csv.read_csv(path) if path.suffix == ".csv" else pq.read_table(path)
    return {name: table.column(name).to_numpy() for name in table.column_names}


def plot(folder: Path) -> Figure:
    """Memory by rank, living and active slaves, and the master's undelivered tuples at each checkpoint. UserError without a
    soak."""
    soak = json.loads((folder / "soak.json").read_text()) if (folder / "soak.json").is_file() else {}
    if "table" not in soak:
        raise UserError(f"{folder}: holds no soak that has ended")
    samples, cuts = _table(Path(soak["table"])), json.loads((folder / "checkpoints.json").read_text())
    fig, (memory, slaves, waiting) = figure(3, 2.6)
    _memory(memory, samples)
    _slaves(slaves, samples, cuts)
    times = np.array([cut["time_s"] for cut in cuts])
    buffered = np.array([cut["buffered_bytes"] for cut in cuts]) / _MIB
    waiting.plot(times / 60, buffered, marker=".", markersize=3, linewidth=0.8, color=COLOURS[0])
    waiting.set_ylim(bottom=0)
    waiting.set_ylabel("read and not delivered\nat checkpoints (MiB)")
    waiting.set_xlabel("time since the start of the soak (min)")
    for axis in (memory, slaves, waiting):
        _marks(axis, soak, label=axis is memory)
    legend(memory)
    legend(slaves)
    lines = [
        f"{g['role']}: mean {g['mean_bytes'] / _MIB:.0f} MiB, {100 * g['within_per_min'] / g['mean_bytes']:+.2f} % a minute "
        f"within stretches, {100 * g['over_all_per_min'] / g['mean_bytes']:+.2f} % over all"
        for g in soak.get("memory", [])
    ]
    fig.suptitle(
        f"{soak['rate_per_s']:,.0f} tuples/s and stream, W = {soak['shape']['window_s']:g} s, checkpoints every "
        f"{soak['shape']['checkpoint_s']:g} s: {len(soak['strikes'])} kills, {len(soak['parts'])} parts",
        fontsize="medium",
    )
    caption(fig, "; ".join(lines))
    return fig


def _memory(axis: Axes, samples: dict[str, np.ndarray]) -> None:
    """A line per rank, with a gap where its process was replaced."""
    for i, rank in enumerate(np.unique(samples["rank"])):
        mine = samples["rank"] == rank
        gaps = np.flatnonzero(np.diff(samples["pid"][mine])) + 1
        time = np.insert(samples["time_s"][mine] / 60, gaps, np.nan)
        value = np.insert(samples["resident_bytes"][mine] / _MIB, gaps, np.nan)
        name = ("master", "collector")[rank] if rank < _FIRST_SLAVE else f"rank {rank}, slave"
        axis.plot(time, value, label=name, **series_style(i))
    axis.set_ylim(bottom=0)
    axis.set_ylabel("resident memory (MiB)")


def _slaves(axis: Axes, samples: dict[str, np.ndarray], cuts: list[dict[str, Any]]) -> None:
    times, first = np.unique(samples["time_s"], return_index=True)
    axis.step(times / 60, samples["slaves"][first], where="post", color="#000000", linewidth=1.4, label="living")
    at = [cut["time_s"] / 60 for cut in cuts]
    active = [cut["active_slaves"] for cut in cuts]
    axis.plot(at, active, ".", color=COLOURS[1], markersize=4, label="active, at\ncheckpoints")
    axis.set_ylim(bottom=0)
    axis.yaxis.set_major_locator(MaxNLocator(integer=True, nbins=6))
    axis.set_ylabel("slaves")


def _marks(axis: Axes, soak: dict[str, Any], *, label: bool) -> None:
    """Vertical lines: kills of slaves dotted, ends of the run dashed, resumptions solid and green."""
    named = set()

    def line(time_s: float, name: str, style: str, colour: str) -> None:
        axis.axvline(
            time_s / 60,
            linestyle=style,
            color=colour,
            linewidth=0.8,
            zorder=1,
            label=name if label and name not in named else None,
        )
        named.add(name)

    for strike in soak["strikes"]:
        if strike["kind"] == "slave":
            line(strike["time_s"], "a slave is killed", ":", "#777777")
        else:
            line(strike["time_s"], "the run is ended", "--", COLOURS[1])
    for part in soak["parts"][1:]:
        line(part["from_s"], "resumed", "-", COLOURS[2])


def save(folder: Path) -> list[Path]:
    return save_figure(plot(folder), folder / "plots", "soak")


if __name__ == "__main__":
    for path in save(Path(sys.argv[1])):
        print(path)
