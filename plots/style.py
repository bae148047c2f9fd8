"""Style of all figures: sizes, colours that colour-blind readers can distinguish, saving as PNG and SVG.

What: `figure`, `COLOURS`, `MARKERS`, `series_style`, `bar_style`, `points`, `legend`, `caption`, `star`, `hollow`, `save`.
Why: the figures of one project should look alike. Figures are made without `pyplot`, whose backend and list of open figures
belong to the notebook or program that calls.
Stays out: data.
"""

from __future__ import annotations

import io
import textwrap
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from swjoin.core.errors import UserError

SAVING: Any = {"svg.hashsalt": "swjoin"}  # rcParams; the same figure is the same file
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#F0E442")  # Okabe and Ito

MARKERS = "osD^vP<>"
CAPTION_COLUMNS = 128  # characters in a line below a figure 8 inches wide


class RunFigure(Figure):
    """A figure that notebooks show as a picture whether or not they have loaded `pyplot`."""

    def __init__(self, width: float, height: float) -> None:
        super().__init__(figsize=(width, height), layout="constrained")
        FigureCanvasAgg(self)

    def _repr_png_(self) -> bytes:
        out = io.BytesIO()
        self.savefig(out, format="png")
        return out.getvalue()


def figure(rows: int, height: float = 2.4) -> tuple[Figure, list[Axes]]:
    """A figure of `rows` panels, one below the other, with a common x axis."""
    fig = RunFigure(8, height * rows)
    axes = fig.subplots(rows, 1, sharex=True, squeeze=False)
    panels = [row[0] for row in axes]
    for axis in panels:
        axis.grid(True, color="#dddddd", linewidth=0.6)
        axis.spines[["top", "right"]].set_visible(False)
        axis.set_axisbelow(True)
    return fig, panels


def series_style(i: int) -> dict[str, Any]:
    """Style of the i-th line of a panel; lines beyond the number of colours are dashed."""
    return {"color": COLOURS[i % len(COLOURS)], "linestyle": ("-", "--", ":")[i // len(COLOURS) % 3], "linewidth": 1.2}


def bar_style(i: int) -> dict[str, Any]:
    """Style of the i-th bar; bars beyond the number of colours are hatched."""
    return {"color": COLOURS[i % len(COLOURS)], "hatch": (None, "////", "....")[i // len(COLOURS) % 3], "edgecolor": "white"}


def legend(axis: Axes) -> None:
    """A legend beside the panel, where it covers no data, in two columns if it is long. No legend without data."""
    count = len(axis.get_legend_handles_labels()[0])
    if not count:
        return
    columns = 1 if count <= 8 else 2
    axis.legend(
        loc="center left", bbox_to_anchor=(1.01, 0.5), frameon=False, fontsize="small", ncols=columns, columnspacing=1.0
    )


def caption(fig: Figure, *paragraphs: str) -> None:
    """Wrapped text below the axes; empty paragraphs are left out."""
    lines = [line for paragraph in paragraphs for line in textwrap.wrap(paragraph, CAPTION_COLUMNS)]
    fig.supxlabel("\n".join(lines), x=0.01, ha="left", fontsize="small", color="#333333")


def star(axis: Axes, x: float, y: float, colour: str, label: str | None = None) -> None:
    """A hollow star for a number from a paper's text, not clipped at the edge of the panel."""
    axis.plot(
        [x], [y], marker="*", markersize=15, markerfacecolor="none", markeredgecolor=colour, markeredgewidth=1.4,
        linestyle="none", label=label, clip_on=False, zorder=5,
    )  # fmt: skip


def hollow(axis: Axes, x: Any, y: Any, marker: str, colour: str, label: str | None = None) -> None:
    """Hollow markers for bounds, drawn over the line."""
    if len(x) or label:
        axis.plot(
            x, y, marker=marker, markersize=9, markerfacecolor="white", markeredgecolor=colour, markeredgewidth=1.4,
            linestyle="none", label=label, zorder=4,
        )  # fmt: skip


def save(fig: Figure, folder: Path, name: str, dpi: int = 150, kinds: tuple[str, ...] = ("png", "svg")) -> list[Path]:
    """Write NAME.png and NAME.svg; returns their paths. UserError when the folder cannot be written."""
    paths = [folder / f"{name}.{kind}" for kind in kinds]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with mpl.rc_context(SAVING):
            for path in paths:
                fig.savefig(path, dpi=dpi, metadata={"Date": None} if path.suffix == ".svg" else None)
    except OSError as error:
        raise UserError(f"{folder}: figures cannot be written ({error.strerror or error})") from None
    return paths


def points(count: int) -> str | None:
    """The marker of a line of `count` points: a single point is invisible without a marker."""
    return "o" if count == 1 else None
