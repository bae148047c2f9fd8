"""The master's peak buffer against the number of sub-groups, measured and by the paper's formula (section V-B).

What: `plot(measured, formula) -> Figure`.
Why: compares the saving by slots with the paper's.
Stays out: running (`benchmarks/adaptation.py`).
"""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.figure import Figure

from .style import COLOURS, figure, legend


def plot(measured: Mapping[int, float], formula: Mapping[int, float]) -> Figure:
    """Peak pending tuples (both streams) by number of sub-groups."""
    fig, (axis,) = figure(1, 3.6)
    counts = sorted(measured)
    positions = range(len(counts))
    axis.bar(positions, [measured[n] / 1e3 for n in counts], width=0.5, color=COLOURS[0], label="measured")
    axis.plot(
        positions, [formula[n] / 1e3 for n in counts], "o--", color=COLOURS[1], label=r"$(r\,t_d/2)(1 + 1/n_g)$ per stream"
    )
    axis.set_xticks(list(positions), [str(n) for n in counts])
    axis.set_xlabel("sub-groups $n_g$")
    axis.set_ylabel("peak of pending tuples\nat the master (thousands)")
    axis.set_ylim(bottom=0)
    legend(axis)
    return fig
