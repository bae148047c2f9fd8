"""The table of a sweep for figures and verdicts: in the paper's time, axis values as numbers, curves by name.

What: `Table` (`load`, `load_stored`, `curve`, `missing`, `values`, `axis_label`, `left_out`), `Curve`, `metric_label`,
`setting`.
Why: times of preset `quick` are ten times shorter; the conversion must be in one place.
Stays out: making tables (`swjoin.sweeps.aggregate`), drawing, verdicts.

Values of the axes and results of searches (`sustainable_...`) are in the experiment's scale already. Metrics are in the run's
own scale: seconds are multiplied by `time_scale`, anything per second is divided by it.
"""

from __future__ import annotations

import csv
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.core.errors import UserError
from swjoin.core.units import parse_duration_us, parse_size_bytes

Value = float | str
Where = dict[str, Value]
RATE, EPOCH = "workload.rate", "cluster.distribution_epoch"
STATISTICS = ("mean", "sd", "ci_low", "ci_high", "min", "max")
COUNTS = ("runs", "invalid", "failed")

# axis: (in a sentence, on an axis of a figure)
AXES = {
    "slaves": ("slaves", "slaves"),
    "workload.rate": ("tuples/s/stream", "arrival rate (tuples/s/stream)"),
    "workload.bias": ("b", "skew b of the join attribute"),
    "module.theta": ("theta", "partition tuning parameter theta (bytes)"),
    "cluster.distribution_epoch": ("t_d", "distribution epoch t_d (s)"),
    "cluster.partition_count": ("partition-groups", "partition-groups"),
    "join.within": ("W", "window W of each stream (s)"),
    "window": ("W", "window W of each stream (s)"),
}
METRICS = {
    "delay_mean_s": "average production delay",
    "delay_p50_s": "median production delay",
    "delay_p95_s": "95th percentile of the production delay",
    "delay_p99_s": "99th percentile of the production delay",
    "delay_max_s": "longest production delay",
    "delay_growth": "growth of the production delay",
    "delay_last_third_s": "production delay in the last third",
    "busy_ratio": "busy time",
    "idle_ratio": "idle time",
    "cpu_s": "CPU time",
    "work_s": "CPU time really used",
    "communication_s": "communication overhead",
    "transfer_s": "transfer",
    "occupancy_mean": "mean occupancy",
    "occupancy_max": "highest occupancy",
    "window_bytes": "window size",
    "window_tuples": "window size",
    "delivered_bytes_per_s": "delivered",
    "comparisons_per_s": "comparisons",
    "pairs_per_s": "pairs",
    "joined_tuples_per_s": "tuples joined",
    "input_tuples_per_s": "input",
    "active_slaves": "active slaves",
    "moves": "state movements",
    "mini_group_count": "mini-partition-groups",
    "utilisation_slaves": "utilisation of the slaves",
    "utilisation_master": "utilisation of the master",
    "utilisation_collector": "utilisation of the collector",
    "saturation_tuples_per_s": "highest sustained rate",
    "saturation_per_node": "highest sustained rate of a node",
    "gateway_count": "gateways",
    "operator_ratio": "time in operators",
    "exchange_ratio": "time of communication",
    "waiting_ratio": "idle time of all processors",
    "late_s_master_p99": "master late for its slots, 99th percentile",
}
_UNIT_OF = {"s/s": "s per s", "s/min": "s per minute"}


@dataclass(frozen=True)
class Curve:
    """One metric along one axis; points without a valid run are not in it. `low` and `high` are the repeats' extremes.

    `censored`: BELOW or AT_LEAST where the mean is but a bound, else "".
    """

    x: np.ndarray
    mean: np.ndarray
    low: np.ndarray
    high: np.ndarray
    runs: np.ndarray
    censored: np.ndarray

    def at(self, x: Value) -> int | None:
        """The index of the point at x, or None."""
        found = [i for i, own in enumerate(self.x.tolist()) if own == x or (_both_numbers(own, x) and np.isclose(own, x))]
        return found[0] if found else None

    def __len__(self) -> int:
        return len(self.x)


@dataclass(frozen=True)
class Row:
    """One line of the table, in the paper's time."""

    axes: dict[str, Value]
    metric: str
    unit: str
    over: str
    statistics: dict[str, float]
    runs: int
    invalid: int
    failed: int
    censored: str = ""

    @property
    def counts(self) -> bool:
        return self.runs > 0 and bool(np.isfinite(self.statistics["mean"]))


@dataclass(frozen=True)
class Table:
    """All of a sweep's points. `info` is its experiment.json."""

    name: str
    info: dict[str, Any]
    axes: tuple[str, ...]
    rows: tuple[Row, ...]

    @property
    def time_scale(self) -> float:
        return float(self.info.get("time_scale") or 1)

    def values(self, axis: str) -> list[Value]:
        """All values of an axis in order: numbers by size, then labels in the table's order."""
        found = list(dict.fromkeys(row.axes[axis] for row in self.rows if axis in row.axes))
        numbers = sorted(value for value in found if not isinstance(value, str))
        return [*numbers, *(value for value in found if isinstance(value, str))]

    def metrics(self) -> list[str]:
        return list(dict.fromkeys(row.metric for row in self.rows))

    def unit(self, metric: str) -> str:
        return next((row.unit for row in self.rows if row.metric == metric), "")

    def axis_label(self, axis: str) -> str:
        """Label of the axis in a figure, with its unit."""
        if axis in AXES:
            return AXES[axis][1]
        words, unit = axis.rsplit(".", 1)[-1].replace("_", " "), (self.info.get("axis_units") or {}).get(axis)
        return f"{words} ({unit})" if unit else words

    def over(self, metric: str) -> str:
        """The default aggregate over slaves: none if there is such a row, otherwise their mean."""
        found = {row.over for row in self.rows if row.metric == metric}
        return next((over for over in ("run", "mean", "sum", "max", "min") if over in found), "run")

    def select(self, metric: str, over: str | None = None, where: Where | None = None) -> list[Row]:
        """Rows of a metric at all points that have the values in `where`; an axis that the table lacks is ignored."""
        over, wanted = over or self.over(metric), {k: v for k, v in (where or {}).items() if k in self.axes}
        return [
            row
            for row in self.rows
            if row.metric == metric and row.over == over and all(_same(row.axes[k], v) for k, v in wanted.items())
        ]

    def curve(self, metric: str, x: str, over: str | None = None, where: Where | None = None) -> Curve:
        """The metric along axis x; the first row where several have the same x (an axis left free)."""
        if x not in self.axes:
            return Curve(*(np.array([]) for _ in range(6)))
        order = {value: i for i, value in enumerate(self.values(x))}
        best: dict[Value, Row] = {}
        for row in self.select(metric, over, where):
            if row.counts:
                best.setdefault(row.axes[x], row)
        rows = [best[value] for value in sorted(best, key=order.__getitem__)]

        def column(name: str, other: str = "mean") -> np.ndarray:
            found = np.array([row.statistics[name] for row in rows], float)
            return np.where(np.isfinite(found), found, [row.statistics[other] for row in rows])

        xs = np.array([row.axes[x] for row in rows], dtype=object if any(isinstance(v, str) for v in best) else float)
        censored = np.array([row.censored for row in rows], dtype=object)
        return Curve(xs, column("mean"), column("min"), column("max"), np.array([row.runs for row in rows], int), censored)

    def missing(self, metric: str, x: str, where: Where | None = None) -> list[Value]:
        """Values of x in the table without a valid run."""
        rows = self.select(metric, None, where) if x in self.axes else []
        valid = {row.axes[x] for row in rows if row.counts}
        return [value for value in self.values(x) if value not in valid and any(row.axes[x] == value for row in rows)]

    def left_out(self, where: Where | None = None) -> tuple[int, int, int]:
        """(valid, invalid, failed) runs over all points with these values."""
        points: dict[tuple[Value, ...], tuple[int, int, int]] = {}
        for metric in self.metrics():
            for over in {row.over for row in self.rows if row.metric == metric}:
                for row in self.select(metric, over, where):
                    key = tuple(row.axes.values())
                    old = points.get(key, (0, 0, 0))
                    points[key] = (max(old[0], row.runs), max(old[1], row.invalid), max(old[2], row.failed))
        return tuple(sum(point[i] for point in points.values()) for i in range(3))  # type: ignore[return-value]


def _both_numbers(a: object, b: object) -> bool:
    return isinstance(a, (int, float)) and isinstance(b, (int, float))


def _same(a: Value, b: Value) -> bool:
    return a == b or (_both_numbers(a, b) and bool(np.isclose(float(a), float(b))))


# ---------------------------------------------------------------- reading


def load(sweep_dir: Path) -> Table:
    """The table of a sweep's directory. UserError when it was not aggregated."""
    if not (sweep_dir / "experiment.json").is_file():
        raise UserError(f"{sweep_dir}: no sweep lies here; run `swjoin sweep` first or give --sweep DIR")
    if not (sweep_dir / "table.csv").is_file():
        raise UserError(f"{sweep_dir}: table.csv is missing; run `swjoin aggregate {sweep_dir}` first")
    return read(sweep_dir / "table.csv", sweep_dir / "experiment.json")


def load_stored(folder: Path, name: str) -> Table:
    """The copy FOLDER/NAME.csv and NAME.json."""
    for suffix in ("csv", "json"):
        if not (folder / f"{name}.{suffix}").is_file():
            raise UserError(f"{folder / name}.{suffix} is missing; run its sweep and `swjoin aggregate`, then copy it here")
    return read(folder / f"{name}.csv", folder / f"{name}.json")


def read(table: Path, experiment: Path) -> Table:
    """Parse and convert. UserError when the two files are not a sweep's."""
    try:
        info = json.loads(experiment.read_text())
    except json.JSONDecodeError as error:
        raise UserError(f"{experiment}: is no JSON ({error.msg} in line {error.lineno})") from None
    with table.open(newline="") as file:
        reader = csv.DictReader(file)
        header, lines = list(reader.fieldnames or []), list(reader)
    missing = [name for name in ("metric", "unit", "over", *COUNTS, *STATISTICS) if name not in header]
    if missing:
        raise UserError(f"{table}: is no table of a sweep (column {missing[0]} is missing)")
    axes = tuple(header[: header.index("metric")])
    columns = {axis: parse_axis(line[axis] for line in lines) for axis in axes}
    scale = float(info.get("time_scale") or 1)
    rows = []
    for i, line in enumerate(lines):
        factor = conversion(line["metric"], line["unit"], scale)
        runs, invalid, failed = (int(_number(line[name] or "0", table, i)) for name in COUNTS)
        rows.append(
            Row(
                {axis: columns[axis][i] for axis in axes},
                line["metric"],
                line["unit"],
                line["over"],
                {name: _number(line[name], table, i) * factor for name in STATISTICS},
                runs,
                invalid,
                failed,
                line.get("censored") or "",
            )
        )
    return Table(str(info.get("experiment") or table.stem), info, axes, tuple(rows))


def _number(text: str, table: Path, i: int) -> float:
    if text.lower() in ("", "null", "none", "nan"):
        return float("nan")
    try:
        return float(text)
    except ValueError:
        raise UserError(f"{table}, line {i + 2}: {text!r} is no number") from None


def conversion(metric: str, unit: str, time_scale: float) -> float:
    """Factor that converts a metric to the paper's time."""
    if metric.startswith("sustainable_"):
        return 1.0
    if unit == "s":
        return time_scale
    if unit.endswith("/s") and unit != "s/s":
        return 1 / time_scale
    return 1.0


def parse_axis(texts: Iterable[str]) -> list[Value]:
    """Numbers if all are; seconds or bytes if all are durations or sizes (a bare 0 is either); otherwise labels."""
    texts = list(texts)

    def convert(parse: Any) -> list[Value] | None:
        try:
            return [0.0 if text in ("0", "0.0") else float(parse(text)) for text in texts]
        except (ValueError, UserError):
            return None

    for parse in (float, lambda text: parse_duration_us(text) / 1e6, parse_size_bytes):
        found = convert(parse)
        if found is not None:
            return found
    return list(texts)


# ---------------------------------------------------------------- words


def quantity(value: float) -> str:
    """A readable number: 4,000 and 0.5 and 12.3; at most three significant digits."""
    if not np.isfinite(value):
        return "-"
    if abs(value) >= 1000 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:.3g}"


def amount(metric: str, value: float) -> str:
    """A metric's value in a sentence or a table, without its unit, which the metric's label has."""
    return f"{100 * value:.3g}%" if metric.endswith("_ratio") and np.isfinite(value) else quantity(value)


def bounded(text: str, censored: str) -> str:
    """A value, or `at least 4,000` where only a bound is known."""
    return f"{censored} {text}".strip()


def size(value: float) -> str:
    for unit, scale in (("GB", 1 << 30), ("MB", 1 << 20), ("KB", 1 << 10)):
        if value >= scale:
            return f"{value / scale:g} {unit}"
    return f"{value:g} B"


def is_size(axis: str) -> bool:
    return axis.endswith(("theta", "_bytes", "block", "buffer"))


def _is_time(axis: str) -> bool:
    return axis.endswith(("epoch", "within", "window", "_us"))


def setting(axis: str, value: Value) -> str:
    """A value of an axis in a sentence or a legend: `4 slaves`, `with fine tuning`, `b = 0.7`."""
    if axis == "slaves" and not isinstance(value, str):
        return f"{value:g} slave" + ("" if value == 1 else "s")
    if axis == "tuning":
        return {"on": "with fine tuning", "off": "without fine tuning"}.get(str(value), str(value))
    if axis == "declustering":
        return {"fixed": "fixed declustering", "adaptive": "adaptive declustering", "measured": "by measured work"}.get(
            str(value), str(value)
        )
    words = AXES.get(axis, (axis.rsplit(".", 1)[-1].replace("_", " "), ""))[0]
    if isinstance(value, str):
        return f"{words} {value}" if "." in axis else value
    if is_size(axis):
        return f"{words} = {size(value)}"
    if axis in ("workload.rate", "cluster.partition_count"):
        return f"{quantity(value)} {words}"
    return f"{words} = {quantity(value)}" + (" s" if _is_time(axis) else "")


def metric_label(metric: str, unit: str, over: str = "run") -> str:
    """Label of a metric in a figure, with its aggregate over slaves and its unit."""
    if metric.startswith("sustainable_"):
        axis = metric.removeprefix("sustainable_")
        words, unit = f"highest sustainable {AXES.get(axis, (axis, axis))[1]}", ""
    else:
        words = METRICS.get(metric, metric.replace("_", " "))
    how = {"min": "least of the slaves", "mean": "mean of the slaves", "max": "most of the slaves", "sum": "sum of the slaves"}
    if metric.endswith("_ratio"):
        unit = "% of the time"
    elif metric.startswith(("occupancy_", "utilisation_")):
        unit = "ratio"
    unit = "" if words.endswith(unit) else _UNIT_OF.get(unit, unit)
    notes = ", ".join(part for part in (how.get(over, ""), unit) if part)
    return f"{words} ({notes})" if notes else words
