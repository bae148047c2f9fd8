"""Figures of sweeps: the paper's figures 5 to 14, and the panels of other experiments.

What: `plot(table, experiment) -> Figure`, `save`, `FIGURES` (figure -> its function), `excerpt` (its numbers as rows of text).
Why: the figures differ in metric, axis and series only; axes, units, legends, spread and footnotes share their code.
Stays out: aggregation, conversion to the paper's time (`sweep_tables`), verdicts (`claims`).

Each line is the mean over repeats; its band reaches from the lowest to the highest repeat.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from itertools import product
from pathlib import Path

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, PercentFormatter

from swjoin.config.loader import as_bool
from swjoin.core.errors import UserError
from swjoin.sweeps.experiment import Experiment
from swjoin.sweeps.metrics import AT_LEAST, BELOW

from . import experiments
from .claims import OFF, ON
from .style import COLOURS, MARKERS, caption, hollow, legend, series_style, star
from .style import figure as new_figure
from .style import save as save_figure
from .sweep_tables import (
    EPOCH,
    RATE,
    Curve,
    Table,
    Value,
    Where,
    amount,
    bounded,
    is_size,
    metric_label,
    quantity,
    setting,
    size,
)

WIDE, WIDEST = 8.0, 100.0  # a panel whose largest value is so many times its smallest gets a logarithmic axis:
STEEP = ("delay_", "sustainable_")  # these, what overload multiplies, from WIDE on; all others from WIDEST on
MOST_SERIES = 24
MOST_ACROSS = 8  # with more names along x they are turned upright
TITLE_COLUMNS = 90
ALONE = "measured"  # the label of a line without others
BOUNDS = {BELOW: ("v", "below this"), AT_LEAST: ("^", "at least this")}  # hollow markers, of what a search could not reach


@dataclass(frozen=True)
class Line:
    """One curve of a panel: its points, aggregate over slaves (None: the default), and legend."""

    label: str
    where: Where
    over: str | None = None


@dataclass(frozen=True)
class Panel:
    """One panel. stars: (index of the line, x, y) of numbers from the paper's text."""

    metric: str
    lines: list[Line]
    stars: tuple[tuple[int, float, float], ...] = ()
    over: str | None = None  # for the label of the axis; None: the lines' own


# ---------------------------------------------------------------- the paper's figures


def _by_slaves(table: Table, where: Where) -> list[Line]:
    counts = table.values("slaves")
    return [Line(setting("slaves", n), {"slaves": n, **where}) for n in counts] or [Line(ALONE, where)]


def _by_tuning(table: Table, over: str | None = None) -> list[Line]:
    four = _four(table)
    return [Line(setting("tuning", on), {**four, "tuning": on}, over) for on in ("on", "off")]


def _by_rate(table: Table, over: str | None) -> list[Line]:
    return [Line(setting(RATE, rate), {RATE: rate}, over) for rate in table.values(RATE)] or [Line(ALONE, {}, over)]


def _four(table: Table) -> Where:
    return {"slaves": 4.0} if 4.0 in table.values("slaves") else {}


def figure_5(table: Table) -> tuple[str, str, list[Panel]]:
    return "average production delay over the arrival rate", RATE, [Panel("delay_mean_s", _by_slaves(table, ON))]


def figure_6(table: Table) -> tuple[str, str, list[Panel]]:
    lines = _by_slaves(table, ON)
    four = [i for i, line in enumerate(lines) if line.where.get("slaves") == 4]
    stars = tuple((i, 4000.0, 2.0) for i in four)
    return "average production delay over the arrival rate", RATE, [Panel("delay_mean_s", lines, stars)]


def figure_7(table: Table) -> tuple[str, str, list[Panel]]:
    panels = [Panel(metric, _by_tuning(table, "mean"), over="mean") for metric in ("cpu_s", "work_s")]
    return "CPU time with and without fine tuning", RATE, panels


def figure_8(table: Table) -> tuple[str, str, list[Panel]]:
    stars = ((0, 4000.0, 2.0), (1, 4000.0, 48.0))
    panels = [Panel("delay_mean_s", _by_tuning(table), stars)]
    return "average production delay with and without fine tuning", RATE, panels


def _idle_and_communication(table: Table, where: Where, rate: float) -> list[Panel]:
    line = [Line(setting("tuning", where["tuning"]), {**_four(table), **where}, "mean")]
    return [Panel("idle_ratio", line, ((0, rate, 0.0),), "mean"), Panel("communication_s", line, (), "mean")]


def figure_9(table: Table) -> tuple[str, str, list[Panel]]:
    return "idle time and communication overhead without fine tuning", RATE, _idle_and_communication(table, OFF, 4000.0)


def figure_10(table: Table) -> tuple[str, str, list[Panel]]:
    return "idle time and communication overhead with fine tuning", RATE, _idle_and_communication(table, ON, 6000.0)


def figure_11(table: Table) -> tuple[str, str, list[Panel]]:
    def lines(over: str | None) -> list[Line]:
        return [Line(setting("declustering", kind), {"declustering": kind}, over) for kind in ("fixed", "adaptive")]

    panels = [Panel("communication_s", lines(over), over=over) for over in ("mean", "sum")]
    if "active_slaves" in table.metrics():
        panels.append(Panel("active_slaves", lines(None)))
    return "communication overhead over the slaves", "slaves", panels


def figure_12(table: Table) -> tuple[str, str, list[Panel]]:
    where = {**_four(table), **ON}
    lines = [Line(f"{over} of the slaves", where, over) for over in ("max", "mean", "min")]
    return "communication overhead across the slaves", RATE, [Panel("communication_s", lines, over="run")]


def figure_13(table: Table) -> tuple[str, str, list[Panel]]:
    return "average production delay over the distribution epoch", EPOCH, [Panel("delay_mean_s", _by_rate(table, None))]


def figure_14(table: Table) -> tuple[str, str, list[Panel]]:
    panels = [Panel("communication_s", _by_rate(table, "mean"), over="mean")]
    return "communication overhead over the distribution epoch", EPOCH, panels


FIGURES: dict[int, Callable[[Table], tuple[str, str, list[Panel]]]] = {
    5: figure_5,
    6: figure_6,
    7: figure_7,
    8: figure_8,
    9: figure_9,
    10: figure_10,
    11: figure_11,
    12: figure_12,
    13: figure_13,
    14: figure_14,
}


# ---------------------------------------------------------------- other experiments


def _generic(table: Table, experiment: Experiment) -> tuple[str, str, list[Panel]]:
    """x and series of the experiment's `plot:`; every other axis with several values makes further series."""
    many = [axis for axis in table.axes if len(table.values(axis)) > 1]
    x = str(experiment.plot.get("x") or (many or list(table.axes) or [""])[0])
    series = experiment.plot.get("series") or []
    named = [str(name) for name in ([series] if isinstance(series, str) else series)]
    for axis in (x, *named):
        if axis not in table.axes:
            raise UserError(f"{experiment.path}: plot: {axis!r} is no axis of the sweep; its axes: {', '.join(table.axes)}")
    apart = list(dict.fromkeys(axis for axis in (*named, *many) if axis != x))
    lines = []
    for values in product(*(table.values(axis) for axis in apart)):
        where = dict(zip(apart, values, strict=True))
        lines.append(Line(", ".join(setting(axis, value) for axis, value in where.items()) or ALONE, where))
    if len(lines) > MOST_SERIES:
        raise UserError(f"{experiment.path}: plot: {len(lines)} lines in one panel; at most {MOST_SERIES} can be told apart")
    panels = []
    for metric, over in experiments.panels(experiment):
        mine = [Line(line.label, line.where, over) for line in lines if table.select(metric, over, line.where)]
        panels.append(Panel(metric, mine, over=over or table.over(metric)))
    return "", x, panels


# ---------------------------------------------------------------- drawing


def layout(table: Table, experiment: Experiment) -> tuple[str, str, list[Panel]]:
    """(title, axis along x, panels) of an experiment. UserError without a measured point."""
    draw = FIGURES.get(experiment.figure) if isinstance(experiment.figure, int) else None
    if draw is None:
        title, x, panels = _generic(table, experiment)
        title = title or experiment.question
    else:
        title, x, panels = draw(table)
        title = f"Figure {experiment.figure}: {title}"
    if not any(len(table.curve(panel.metric, x, line.over, line.where)) for panel in panels for line in panel.lines):
        metrics = ", ".join(dict.fromkeys(panel.metric for panel in panels)) or "no metric at all"
        raise UserError(f"{experiment.path}: nothing to draw: no valid point of the table has {metrics} over {x}")
    return title, x, panels


def plot(table: Table, experiment: Experiment) -> Figure:
    """The figure of an experiment, with its claim as the caption."""
    title, x, panels = layout(table, experiment)
    positions = {value: float(i) for i, value in enumerate(table.values(x))}
    named = any(isinstance(value, str) for value in positions)
    upright = 1.2 if named and len(positions) > MOST_ACROSS else 0.0
    fig, axes = new_figure(len(panels), (3.3 if len(panels) == 1 else 2.7) + upright / len(panels))
    for axis, panel in zip(axes, panels, strict=True):
        _panel(axis, table, x, panel, positions if named else None)
    bottom = axes[-1]
    bottom.set_xlabel(table.axis_label(x))
    _x_axis(bottom, table, x, bool(as_bool(experiment.plot.get("log_x"))))
    fig.suptitle("\n".join(textwrap.wrap(title, TITLE_COLUMNS)), fontsize="medium")
    caption(fig, *notes(table, experiment, x))
    return fig


def notes(table: Table, experiment: Experiment, x: str) -> list[str]:
    """Notes below the axes: the claim, the meaning of the bands, the time scale, runs left out."""
    found = [f"The paper: {experiment.claim}"] if experiment.claim else []
    if experiment.expected and not experiment.claim:
        found.append(f"Expected: {experiment.expected}")
    counted, invalid, failed = table.left_out()
    runs = {row.runs for row in table.rows if row.runs > 0}
    if runs and max(runs) > 1:
        count = f"{min(runs)} to {max(runs)}" if min(runs) < max(runs) else f"{max(runs)}"
        found.append(f"Lines: mean over {count} repeats; bands: least and most of them.")
    if table.time_scale != 1:
        k = quantity(table.time_scale)
        found.append(f"Measured with times divided by {k} and rates multiplied by {k}; shown in the paper's time.")
    if any(row.censored in BOUNDS for row in table.rows):
        found.append("Hollow triangles: a search (one repeat's at least) stopped at an end of its range; the value is a bound.")
    if invalid or failed:
        parts = [f"{invalid} while the machine itself was overloaded"] * bool(invalid) + [f"{failed} that failed"] * bool(
            failed
        )
        found.append(f"Left out: {' and '.join(parts)}, of the sweep's {counted + invalid + failed} runs.")
    return found


def _panel(axis: Axes, table: Table, x: str, panel: Panel, positions: dict[Value, float] | None) -> None:
    drawn: list[Curve] = []
    for i, line in enumerate(panel.lines):
        curve = table.curve(panel.metric, x, line.over, line.where)
        if len(curve) == 0:
            continue
        drawn.append(curve)
        look = {**series_style(i), "marker": MARKERS[i % len(MARKERS)], "markersize": 4.5, "label": line.label}
        at = curve.x
        if positions is None:
            axis.plot(curve.x.astype(float), curve.mean, **look)
            if (curve.runs > 1).any():
                axis.fill_between(curve.x.astype(float), curve.low, curve.high, color=look["color"], alpha=0.18, linewidth=0)
        else:  # names have no order, so nothing joins their points
            at = np.array([positions[value] for value in curve.x]) + 0.08 * (i - (len(panel.lines) - 1) / 2)
            spread = np.abs(np.stack([curve.mean - curve.low, curve.high - curve.mean]))
            axis.errorbar(at, curve.mean, spread, capsize=3, **{**look, "linestyle": "none"})
        for mark, (marker, _) in BOUNDS.items():
            bound = curve.censored == mark
            hollow(axis, at[bound].astype(float), curve.mean[bound], marker, look["color"])
    if not drawn:
        axis.text(0.5, 0.5, "not measured", transform=axis.transAxes, ha="center", va="center", color="#555555")
    for mark, (marker, label) in BOUNDS.items():
        if any(mark in curve.censored for curve in drawn):
            hollow(axis, np.array([]), np.array([]), marker, "#333333", label)
    stars = [(i, at, y) for i, at, y in panel.stars if panel.lines[i].label in axis.get_legend_handles_labels()[1]]
    for k, (i, rate, y) in enumerate(stars):
        star(axis, rate, y, COLOURS[i % len(COLOURS)], "paper" if k == 0 else None)
    over = panel.over or (panel.lines[0].over if panel.lines else None) or table.over(panel.metric)
    axis.set_ylabel(wrapped(metric_label(panel.metric, table.unit(panel.metric), over)))
    _y_axis(axis, panel, np.concatenate([[y for _, _, y in stars], *(curve.mean for curve in drawn)]))
    if axis.get_legend_handles_labels()[1] not in ([], [ALONE]):
        legend(axis)


def wrapped(text: str, columns: int = 28) -> str:
    """A label wrapped to the height of a panel; brackets start a new line, and so does the unit in them."""
    if len(text) <= columns:
        return text
    words, bracket, notes = text.partition(" (")
    parts = [words, *(bracket[1:] + notes).replace(", ", ",|").split("|")]
    return "\n".join(line for part in parts for line in textwrap.wrap(part, columns))


def _y_axis(axis: Axes, panel: Panel, values: np.ndarray) -> None:
    known = values[np.isfinite(values)]
    if panel.metric.endswith("_ratio"):
        axis.yaxis.set_major_formatter(PercentFormatter(1.0))
    elif len(known) and known.min() > 0 and known.max() >= known.min() * (WIDE if panel.metric.startswith(STEEP) else WIDEST):
        _log(axis.set_yscale, axis.yaxis, known)
        return
    else:
        axis.yaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(float(value))))
    if len(known) and known.min() >= 0:
        axis.set_ylim(0, max(axis.get_ylim()[1], float(known.max()) * 1.05) or 1.0)


def _log(set_scale: Callable[..., None], axis: object, known: np.ndarray, text: Callable[[float], str] = quantity) -> None:
    """A logarithmic axis with plain numbers: 2 and 0.5, not powers of ten."""
    set_scale("log")
    subs = (1.0, 2.0, 5.0) if known.max() < 2000 * known.min() else (1.0,)
    axis.set_major_locator(LogLocator(subs=subs))  # type: ignore[attr-defined]
    axis.set_major_formatter(FuncFormatter(lambda value, _: text(float(value))))  # type: ignore[attr-defined]
    axis.set_minor_formatter(NullFormatter())  # type: ignore[attr-defined]


def _x_axis(axis: Axes, table: Table, x: str, log: bool) -> None:
    values = table.values(x)
    if any(isinstance(value, str) for value in values):
        many = len(values) > MOST_ACROSS
        texts = [setting(x, value) for value in values]
        axis.set_xticks(range(len(values)), texts if many else [_wrapped(text) for text in texts], rotation=90 if many else 0)
        axis.set_xlim(-0.5, len(values) - 0.5)
        return
    known = np.array([value for value in values if isinstance(value, (int, float))], float)
    text = size if is_size(x) else quantity
    log = (log or (len(known) > 2 and known.min() > 0 and known.max() >= 30 * known.min())) and known.min() > 0
    if log:
        axis.set_xscale("log")
        axis.minorticks_off()
    if log or x == "slaves" or is_size(x):
        steps = max(1, -(-len(known) // 12))
        axis.set_xticks(known[::steps], [text(value) for value in known[::steps]])
    else:
        axis.xaxis.set_major_formatter(FuncFormatter(lambda value, _: quantity(float(value))))


def _wrapped(text: str) -> str:
    return text.replace(" ", "\n", 1) if len(text) > 14 else text


def save(
    table: Table, experiment: Experiment, folder: Path, dpi: int = 150, kinds: tuple[str, ...] = ("png", "svg")
) -> list[Path]:
    """FOLDER/NAME.png and .svg."""
    return save_figure(plot(table, experiment), folder, experiment.name, dpi, kinds)


# ---------------------------------------------------------------- numbers beside the figure


def excerpt(table: Table, experiment: Experiment, most_rows: int = 14, most_columns: int = 6) -> tuple[str, list[list[str]]]:
    """The figure's numbers: (what they are, rows with a header first), a row per x, a column per line; no rows if too many.

    A cell is the mean, and in brackets the least and the most of the repeats.
    """
    _, x, panels = layout(table, experiment)
    columns: list[tuple[str, str, str, Curve]] = []  # line, metric in words, metric, curve
    for panel in panels:
        for line in panel.lines:
            curve = table.curve(panel.metric, x, line.over, line.where)
            if len(curve):
                over = line.over or table.over(panel.metric)
                label = metric_label(panel.metric, table.unit(panel.metric), over)
                columns.append((line.label, label, panel.metric, curve))
    values = table.values(x)
    if len(values) > most_rows or len(columns) > most_columns:
        return "", []
    labels, alone = {label for _, label, _, _ in columns}, {name for name, _, _, _ in columns} == {ALONE}
    names = [label if alone else name if len(labels) == 1 else f"{name}: {label}" for name, label, _, _ in columns]
    rows = [[table.axis_label(x), *names]]
    for value in values:
        cells = [_cell(metric, curve, value) for _, _, metric, curve in columns]
        if any(cells):
            text = setting(x, value) if isinstance(value, str) else size(value) if is_size(x) else quantity(value)
            rows.append([text, *cells])
    said = labels.pop() if len(labels) == 1 and not alone else ""
    return said[:1].upper() + said[1:], rows


def _cell(metric: str, curve: Curve, x: Value) -> str:
    i = curve.at(x)
    if i is None:
        return ""
    mean, low, high = (amount(metric, float(column[i])) for column in (curve.mean, curve.low, curve.high))
    mean = bounded(mean, curve.censored[i])
    return mean if curve.runs[i] < 2 else f"{mean} ({low} to {high})"
