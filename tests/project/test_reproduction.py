"""Figures of sweeps, verdicts on the paper's claims, and the page that is generated from stored tables."""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from plots import claims, experiments, reproduction, sweep_figures, sweep_tables
from plots.findings import findings
from plots.knee import Knee, falls, grows, stays
from plots.sweep_tables import Table
from swjoin.core.errors import UserError
from swjoin.sweeps.experiment import Design, Experiment
from swjoin.sweeps.metrics import METRICS
from swjoin.sweeps.points import points
from swjoin.sweeps.store import sweep_directory
from tests.conftest import ROOT

RATES = [1000, 2000, 3000, 4000, 5000, 6000]
EPOCHS = ["500ms", "1s", "2s", "4s"]


Point = dict[str, Any]
Metrics = dict[
    str, tuple[str, Callable[[Point], Any]]
]  # "name" or "name:over" -> (unit, value or (mean, half the range) or None)
STATISTICS = ["runs", "mean", "sd", "ci_low", "ci_high", "min", "max", "invalid", "failed"]


def write_sweep(
    folder: Path,
    name: str,
    axes: dict[str, list[Any]],
    metrics: Metrics,
    censored: Callable[[Point], str] | None = None,
    **info: Any,
) -> Path:
    """A sweep's directory in the form of `swjoin sweep` and `swjoin aggregate`; without `censored`, of before that column."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*axes, "metric", "unit", "over", *STATISTICS, *["censored"] * bool(censored)])
        for values in product(*axes.values()):
            point = dict(zip(axes, values, strict=True))
            for key, (unit, value) in metrics.items():
                metric, _, over = key.partition(":")
                found = value(point)
                head, mark = [*values, metric, unit, over or "run"], [censored(point)] if censored else []
                if found is None:  # no valid run: two invalid, one failed
                    writer.writerow([*head, 0, "", "", "", "", "", "", 2, 1, *mark])
                    continue
                mean, half = found if isinstance(found, tuple) else (found, abs(found) * 0.01)
                writer.writerow([*head, 3, mean, half, mean - half, mean + half, mean - half, mean + half, 0, 0, *mark])
    about = {
        "format": 1, "experiment": name, "design_digest": "d", "preset": "paper", "time_scale": 1, "commit": "0123456789ab",
        "versions": {}, "axes": list(axes), "search": None, "node_speed": 0.0125, "runner": "mpi",
        "machine": {"cores": 2, "model": "a processor"}, **info,
    }  # fmt: skip
    (folder / "experiment.json").write_text(json.dumps(about))
    return folder


def table(tmp_path: Path, axes: dict[str, list[Any]], metrics: Metrics, **info: Any) -> Table:
    return sweep_tables.load(write_sweep(tmp_path / "sweep", "some", axes, metrics, **info))


def an_experiment(figure: int | str | None, **more: Any) -> Experiment:
    path = Path("experiments/fig.yaml")
    return Experiment("fig", path, "Why?", Design("fig", path), figure, **{"claim": "The paper's sentence.", **more})


# ---------------------------------------------------------------- tables in which the claims hold


def past(rate: float, knee: float, low: float, high: float) -> float:
    return low if rate < knee else high


def by_slaves(change: Callable[[Point, float], Any] | None = None) -> tuple[dict[str, list[Any]], Metrics]:
    """Figures 5 and 6: n slaves saturate from 1500 n on."""

    def delay(p: Point) -> Any:
        value = past(p["workload.rate"], 1500 * p["slaves"], 1.6, 30.0)
        return change(p, value) if change else value

    def growth(p: Point) -> Any:
        found = delay(p)
        return None if found is None else past(p["workload.rate"], 1500 * p["slaves"], 0.001, 0.5)

    metrics: Metrics = {"delay_mean_s": ("s", delay), "delay_growth": ("s/s", growth)}
    return {"slaves": [1, 2, 3, 4], "workload.rate": RATES}, metrics


def by_tuning(**change: Callable[[Point], Any]) -> tuple[dict[str, list[Any]], Metrics]:
    """Figures 7 to 10 and 12: without tuning CPU time grows with the rate squared, saturated at 4000; with tuning at 6000."""

    def cpu(p: Point) -> float:
        rate = p["workload.rate"]
        tuned = rate / 400 if rate < 6000 else 60.0
        return tuned if p["tuning"] == "on" else min(60.0, 60 * (rate / 4000) ** 2)

    found: Metrics = {
        "cpu_s:mean": ("s/min", cpu),
        "work_s:mean": ("s/min", lambda p: cpu(p) / 80),
        "delay_mean_s:run": ("s", lambda p: 1.8 if cpu(p) < 60 else 5.0),
        "delay_growth:run": ("s/s", lambda p: 0.0 if cpu(p) < 60 else 0.1),
        "idle_ratio:mean": ("", lambda p: 0.99 * (1 - cpu(p) / 60)),
        "communication_s:mean": ("s/min", lambda p: p["workload.rate"] / 1000),
        "communication_s:min": ("s/min", lambda p: p["workload.rate"] / 2000),
        "communication_s:max": ("s/min", lambda p: p["workload.rate"] / 500),
    }
    for name, value in change.items():
        key = next(key for key in found if key.replace(":", "_") == name)
        found[key] = (found[key][0], value)
    return {"workload.rate": RATES, "tuning": ["on", "off"]}, found


def by_declustering(
    each: Callable[[float], float] = lambda n: 2 / n + 1, adaptive: Callable[[float], float] = lambda n: 4.0
) -> tuple[dict[str, list[Any]], Metrics]:
    """Figure 11."""

    def total(p: Point) -> float:
        n = p["slaves"]
        return each(n) * n if p["declustering"] == "fixed" else min(each(n) * n, adaptive(n))

    metrics: Metrics = {
        "communication_s:mean": ("s/min", lambda p: total(p) / p["slaves"]),
        "communication_s:sum": ("s/min", total),
        "active_slaves": ("slaves", lambda p: p["slaves"] if p["declustering"] == "fixed" else 1.5),
    }
    return {"slaves": [1, 2, 3, 4, 5], "declustering": ["fixed", "adaptive"]}, metrics


def by_epoch(
    delay: Callable[[float], Any] = lambda t: 0.8 * t + 0.1, spent: Callable[[float], Any] = lambda t: 2 / t
) -> tuple[dict[str, list[Any]], Metrics]:
    """Figures 13 and 14."""

    def seconds(p: Point) -> float:
        return float(sweep_tables.parse_axis([p["cluster.distribution_epoch"]])[0])

    metrics: Metrics = {
        "delay_mean_s": ("s", lambda p: delay(seconds(p))),
        "busy_ratio:mean": ("", lambda p: 0.4),
        "communication_s:mean": ("s/min", lambda p: spent(seconds(p))),
    }
    return {"cluster.distribution_epoch": EPOCHS}, metrics


def by_nodes(rates: dict[int, float]) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's figures 7b and 7c."""
    return {"slaves": list(rates)}, {"sustainable_workload.rate": ("1/s", lambda p: rates[p["slaves"]])}


def by_strategy(**rates: float) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's figure 7f."""
    return {"cluster.strategy": list(rates)}, {"sustainable_workload.rate": ("1/s", lambda p: rates[p["cluster.strategy"]])}


def by_nodes_simulated(rates: dict[int, float]) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's figure 7a and claim 20."""
    metrics: Metrics = {
        name: ("tuples/s", lambda p: rates[p["slaves"]]) for name in ("saturation_tuples_per_s", "saturation_per_node")
    }
    return {"slaves": list(rates)}, metrics | {name: ("", lambda p: 0.1) for name in ("exchange_ratio", "waiting_ratio")}


def by_strategy_and_epoch(**rates: float) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's figure 8: at 200 ms these rates, at 1 s all strategies carry the same."""
    metrics: Metrics = {
        "saturation_tuples_per_s": (
            "tuples/s",
            lambda p: rates[p["cluster.strategy"]] if p["cluster.distribution_epoch"] == "200ms" else 1000.0,
        )
    }
    return {"cluster.distribution_epoch": ["200ms", "1s"], "cluster.strategy": list(rates)}, metrics


def by_cause(**shares: tuple[float, float]) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's figure 9: of each strategy, shares of communication and of idle time."""
    metrics: Metrics = {
        "exchange_ratio": ("", lambda p: shares[p["cluster.strategy"]][0]),
        "waiting_ratio": ("", lambda p: shares[p["cluster.strategy"]][1]),
        "operator_ratio": ("", lambda p: 1 - sum(shares[p["cluster.strategy"]])),
    }
    return {"cluster.strategy": list(shares)}, metrics


def by_rate(knee: float, busy: float = 1.0) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's queues of figure 7a."""
    metrics: Metrics = {
        "delay_mean_s": ("s", lambda p: 0.4 if p["workload.rate"] < knee else 5.0),
        "delay_growth": ("s/s", lambda p: 0.0 if p["workload.rate"] < knee else 0.3),
        "utilisation_slaves:mean": ("", lambda p: busy if p["workload.rate"] >= knee else 0.5),
    }
    return {"workload.rate": [100, 200, 400]}, metrics


def by_comparisons(**made: float) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's claim 4: comparisons per second of so many nodes."""
    return {"slaves": [int(n[1:]) for n in made]}, {"comparisons_per_s": ("comparisons/s", lambda p: made[f"n{p['slaves']}"])}


def by_rate_and_nodes(busy: float = 1.0, more: float = 0.5) -> tuple[dict[str, list[Any]], Metrics]:
    """StreamCloud's queues of figures 7b, 7d: 20 nodes are saturated at 400/s, 40 at 800/s. more: what 40 have of the delay
    and its growth of 20."""

    def load(p: Point) -> float:
        return float(p["workload.rate"]) / (20 * float(p["slaves"]))

    def share(p: Point) -> float:
        return more if p["slaves"] == 40 else 1.0

    metrics: Metrics = {
        "delay_mean_s": ("s", lambda p: share(p) * (0.4 if load(p) < 0.6 else 0.8 if load(p) < 1 else 5.0)),
        "delay_growth": ("s/s", lambda p: 0.0 if load(p) < 1 else 0.3 * share(p)),
        "utilisation_slaves:mean": ("", lambda p: busy if load(p) >= 1 else 0.5),
    }
    return {"slaves": [20, 40], "workload.rate": [100, 300, 400, 500, 800]}, metrics


GOOD: dict[int | str, Callable[[], tuple[dict[str, list[Any]], Metrics]]] = {
    5: by_slaves, 6: by_slaves, 7: by_tuning, 8: by_tuning, 9: by_tuning, 10: by_tuning, 11: by_declustering, 12: by_tuning,
    13: by_epoch, 14: by_epoch, "StreamCloud 7b": lambda: by_nodes({2: 100, 4: 190}),
    "StreamCloud 7c": lambda: by_nodes({1: 100, 2: 190, 4: 350}),
    "StreamCloud 7d": lambda: by_nodes_simulated({20: 100, 40: 140}),
    "StreamCloud 7f": lambda: by_strategy(subquery=500, operator=200, query=100),
    "StreamCloud 7b, queues": by_rate_and_nodes, "StreamCloud 7d, queues": by_rate_and_nodes,
    "StreamCloud claim 4": lambda: by_comparisons(n1=100, n2=80, n4=60),
    "StreamCloud 7a": lambda: by_nodes_simulated({2: 100, 20: 980}),
    "StreamCloud 7a, queues": lambda: by_rate(400),
    "StreamCloud 8": lambda: by_strategy_and_epoch(subquery=500, operator=200, query=100),
    "StreamCloud 9": lambda: by_cause(query=(0.5, 0.1), subquery=(0.1, 0.05), operator=(0.3, 0.35)),
    "StreamCloud claim 20": lambda: by_nodes_simulated({4: 100, 16: 98, 60: 92, 1024: 80}),
}  # fmt: skip


# ---------------------------------------------------------------- reading tables


def test_values_of_axes_become_numbers() -> None:
    assert sweep_tables.parse_axis(["1000", "2e3"]) == [1000.0, 2000.0]
    assert sweep_tables.parse_axis(["10ms", "2s", "0"]) == [0.01, 2.0, 0.0]
    assert sweep_tables.parse_axis(["4KB", "1.5MB"]) == [4096.0, 1.5 * 2**20]
    assert sweep_tables.parse_axis(["on", "off"]) == ["on", "off"]
    assert sweep_tables.parse_axis(["1s", "4KB"]) == ["1s", "4KB"]


def test_quick_runs_are_shown_in_the_papers_time(tmp_path: Path) -> None:
    metrics: Metrics = {
        "delay_mean_s": ("s", lambda p: 0.2),
        "pairs_per_s": ("1/s", lambda p: 500.0),
        "input_tuples_per_s": ("tuples/s", lambda p: 500.0),
        "cpu_s": ("s/min", lambda p: 30.0),
        "idle_ratio": ("", lambda p: 0.5),
        "delay_growth": ("s/s", lambda p: 0.03),
        "window_bytes": ("bytes", lambda p: 4096.0),
        "sustainable_workload.rate": ("tuples/s", lambda p: 7000.0),
    }
    found = table(tmp_path, {"workload.rate": [1000]}, metrics, time_scale=10, preset="quick")
    means = {row.metric: row.statistics["mean"] for row in found.rows}
    assert means == {
        "delay_mean_s": 2.0, "pairs_per_s": 50.0, "input_tuples_per_s": 50.0, "cpu_s": 30.0, "idle_ratio": 0.5,
        "delay_growth": 0.03, "window_bytes": 4096.0, "sustainable_workload.rate": 7000.0,
    }  # fmt: skip
    assert found.rows[0].axes == {"workload.rate": 1000.0}


def test_points_without_a_valid_run_are_no_points(tmp_path: Path) -> None:
    axes, metrics = by_slaves(lambda p, value: None if p["workload.rate"] == 2000 else value)
    found = table(tmp_path, axes, metrics)
    curve = found.curve("delay_mean_s", "workload.rate", None, {"slaves": 2})
    assert list(curve.x) == [1000, 3000, 4000, 5000, 6000]
    assert found.left_out() == (4 * 5 * 3, 4 * 2, 4 * 1)
    text = " ".join(sweep_figures.notes(found, an_experiment(5), "workload.rate"))
    assert "Left out: 8 while the machine itself was overloaded and 4 that failed, of the sweep's 72 runs." in text


def test_a_table_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no sweep lies here"):
        sweep_tables.load(tmp_path)
    sweep = write_sweep(tmp_path / "sweep", "some", *by_epoch())
    (sweep / "table.csv").unlink()
    with pytest.raises(UserError, match="run `swjoin aggregate"):
        sweep_tables.load(sweep)
    (sweep / "table.csv").write_text("a,b\n1,2\n")
    with pytest.raises(UserError, match="column metric is missing"):
        sweep_tables.load(sweep)
    write_sweep(sweep, "some", *by_epoch())
    text = (sweep / "table.csv").read_text()
    (sweep / "table.csv").write_text(text.replace(",0.5,", ",half,", 1))
    with pytest.raises(UserError, match=r"line 2: 'half' is no number"):
        sweep_tables.load(sweep)
    (sweep / "experiment.json").write_text("{")
    with pytest.raises(UserError, match="is no JSON"):
        sweep_tables.load(sweep)
    with pytest.raises(UserError, match=r"some\.csv is missing"):
        sweep_tables.load_stored(tmp_path, "some")


def test_settings_and_labels_have_units() -> None:
    said = [
        sweep_tables.setting(axis, value)
        for axis, value in (("slaves", 1.0), ("slaves", 3.0), ("tuning", "off"), ("workload.rate", 1500.0),
                            ("module.theta", 1.5 * 2**20), ("cluster.distribution_epoch", 0.5), ("policy", "balanced"))
    ]  # fmt: skip
    assert said == [
        "1 slave",
        "3 slaves",
        "without fine tuning",
        "1,500 tuples/s/stream",
        "theta = 1.5 MB",
        "t_d = 0.5 s",
        "balanced",
    ]
    assert sweep_tables.metric_label("communication_s", "s/min", "sum") == (
        "communication overhead (sum of the slaves, s per minute)"
    )
    assert sweep_tables.metric_label("sustainable_workload.rate", "tuples/s") == (
        "highest sustainable arrival rate (tuples/s/stream)"
    )


# ---------------------------------------------------------------- figures


@pytest.mark.parametrize("figure", [figure for figure in GOOD if isinstance(figure, int)])
def test_every_figure_is_labelled_and_its_legend_covers_nothing(figure: int, tmp_path: Path) -> None:
    found = table(tmp_path, *GOOD[figure](), time_scale=10, preset="quick")
    fig = sweep_figures.plot(found, an_experiment(figure))
    fig.draw_without_rendering()
    renderer = fig.canvas.get_renderer()  # type: ignore[attr-defined]
    assert f"Figure {figure}" in fig.get_suptitle()
    assert fig.get_supxlabel().startswith("The paper: The paper's sentence.\n")
    assert "Lines: mean over 3 repeats; bands: least and most of them." in fig.get_supxlabel()
    assert "times divided by 10 and rates multiplied by 10" in " ".join(fig.get_supxlabel().split())
    units = r"\(.*(s|s per minute|%|ratio|tuples/s/stream).*\)|slaves"
    assert re.search(units, fig.axes[-1].get_xlabel())
    bottom = fig.axes[-1].get_window_extent(renderer).y0
    assert max(text.get_window_extent(renderer).y1 for text in (fig._supxlabel,)) < bottom
    for axis in fig.axes:
        assert re.search(units, " ".join(axis.get_ylabel().split())), axis.get_ylabel()
        label = axis.yaxis.label.get_window_extent(renderer)
        assert label.height <= 1.1 * axis.get_window_extent(renderer).height
        assert label.x0 >= 0
        assert (axis.get_legend() is None) == (figure in (13, 14)), "one line needs none"
        assert (
            axis.get_legend() is None or axis.get_legend().get_window_extent(renderer).x0 >= axis.get_window_extent(renderer).x1
        )
        looks = [(line.get_color(), line.get_marker()) for line in axis.lines if line.get_marker() != "*"]
        assert len(looks) == len(set(looks)) >= 1
        assert not axis.texts, "nothing is missing"


def stars(axis: Any) -> list[tuple[float, float]]:
    found = [line for line in axis.lines if line.get_marker() == "*"]
    assert all(line.get_markerfacecolor() == "none" for line in found)
    return [(float(line.get_xdata()[0]), float(line.get_ydata()[0])) for line in found]


def test_numbers_of_the_papers_text_are_marked(tmp_path: Path) -> None:
    expected = {6: [(4000, 2)], 8: [(4000, 2), (4000, 48)], 9: [(4000, 0)], 10: [(6000, 0)], 5: [], 7: []}
    for figure, marked in expected.items():
        axis = sweep_figures.plot(table(tmp_path, *GOOD[figure]()), an_experiment(figure)).axes[0]
        assert stars(axis) == marked
        texts = [text.get_text() for text in axis.get_legend().get_texts()]
        assert texts.count("paper") == bool(marked)


def test_wide_ranges_are_logarithmic_and_narrow_ones_start_at_zero(tmp_path: Path) -> None:
    wide = sweep_figures.plot(table(tmp_path, *by_slaves()), an_experiment(5)).axes[0]
    assert wide.get_yscale() == "log"
    narrow = sweep_figures.plot(table(tmp_path, *by_epoch()), an_experiment(13)).axes[0]
    assert (narrow.get_yscale(), narrow.get_ylim()[0]) == ("linear", 0)


def test_lines_and_bands_are_the_tables_numbers(tmp_path: Path) -> None:
    axis = sweep_figures.plot(table(tmp_path, *by_epoch()), an_experiment(13)).axes[0]
    assert np.allclose(axis.lines[0].get_xdata(), [0.5, 1, 2, 4])
    assert np.allclose(axis.lines[0].get_ydata(), [0.5, 0.9, 1.7, 3.3])
    band = axis.collections[0].get_paths()[0].vertices
    assert np.isclose(band[:, 1].max(), 3.3 * 1.01)
    assert np.isclose(band[:, 1].min(), 0.5 * 0.99)


def test_any_experiment_can_be_drawn(tmp_path: Path) -> None:
    axes: dict[str, list[Any]] = {"slaves": [1, 2, 4], "workload.bias": [0.5, 0.7], "policy": ["paper", "balanced"]}
    metrics: Metrics = {
        "sustainable_workload.rate": ("tuples/s", lambda p: 1000.0 * p["slaves"] / p["workload.bias"]),
        "busy_ratio:mean": ("", lambda p: 0.5),
        "busy_ratio:max": ("", lambda p: 0.6),
    }
    found = table(tmp_path, axes, metrics)
    asked = {"x": "slaves", "series": "workload.bias", "panels": ["sustainable_workload.rate", "busy_ratio:max", "moves"]}
    fig = sweep_figures.plot(found, an_experiment(None, plot=asked, expected="More."))
    rate, busy, moves = fig.axes
    labels = [text.get_text() for text in rate.get_legend().get_texts()]
    assert labels == ["b = 0.5, paper", "b = 0.5, balanced", "b = 0.7, paper", "b = 0.7, balanced"]
    assert list(busy.lines[0].get_ydata()) == [0.6] * 3
    assert [text.get_text() for text in moves.texts] == ["not measured"]
    assert fig.get_suptitle() == "Why?"
    by_name = sweep_figures.plot(found, an_experiment(None, plot={**asked, "x": "policy", "series": ["slaves"]})).axes[-1]
    assert [text.get_text() for text in by_name.get_xticklabels()] == ["paper", "balanced"]
    said = findings(found, [("sustainable_workload.rate", None), ("busy_ratio", "max"), ("moves", None)])
    assert said == (
        "Highest sustainable arrival rate (tuples/s/stream): the highest is 8,000 (4 slaves and b = 0.5 and paper), the lowest "
        "1,429 (1 slave and b = 0.7 and paper), a ratio of 5.6. Busy time (most of the slaves, % of the time): 60% at all 12 "
        "points."
    )
    assert findings(found, [("moves", None)]) == "Not measured yet."


def bounds(p: Point) -> str:
    return {1000.0: "below", 9000.0: "at least"}.get(sustainable(p), "")


def sustainable(p: Point) -> float:
    """2500 for each slave but the first, as a search between 1000 and 9000 finds it."""
    return min(9000.0, max(1000.0, 2500.0 * (p["slaves"] - 1)))


def test_bounds_of_a_search_are_marked_and_said(tmp_path: Path) -> None:
    metrics: Metrics = {"sustainable_workload.rate": ("1/s", sustainable)}
    found = table(tmp_path, {"slaves": [1, 2, 4, 5, 6]}, metrics, censored=bounds)
    experiment = an_experiment(None, plot={"x": "slaves", "panels": ["sustainable_workload.rate"]})
    fig = sweep_figures.plot(found, experiment)
    (axis,) = fig.axes
    marks = {
        line.get_marker(): list(zip(line.get_xdata(), line.get_ydata(), strict=True))
        for line in axis.lines
        if line.get_markerfacecolor() == "white" and len(line.get_xdata())
    }
    assert marks == {"v": [(1, 1000)], "^": [(5, 9000), (6, 9000)]}
    assert [text.get_text() for text in axis.get_legend().get_texts()] == ["measured", "below this", "at least this"]
    assert "Hollow triangles: a search" in " ".join(fig.get_supxlabel().split())
    _, rows = sweep_figures.excerpt(found, experiment)
    assert [row[1].partition(" (")[0] for row in rows[1:]] == [
        "below 1,000", "2,500", "7,500", "at least 9,000", "at least 9,000",
    ]  # fmt: skip
    assert findings(found, [("sustainable_workload.rate", None)]) == (
        "Highest sustainable arrival rate (tuples/s/stream): the highest is at least 9,000 (5 slaves; 6 slaves), the lowest "
        "below 1,000 (1 slave), a ratio of at least 9."
    )
    top = table(tmp_path, {"slaves": [5, 6]}, metrics, censored=bounds)
    assert findings(top, [("sustainable_workload.rate", None)]).endswith(": at least 9,000 at all 2 points.")
    old = table(tmp_path, {"slaves": [1, 2]}, metrics)
    assert {row.censored for row in old.rows} == {""}
    assert findings(old, [("sustainable_workload.rate", None)]).endswith("the lowest 1,000 (1 slave), a ratio of 2.5.")
    assert sweep_figures.plot(old, experiment).axes[0].get_legend() is None


def test_labels_are_marked_and_compared_to_the_reference(tmp_path: Path) -> None:
    values = {"W 1 s": 9000.0, "b 0.9": 1000.0, "reference": 4000.0, "theta": 6000.0}
    metrics: Metrics = {"sustainable_workload.rate": ("1/s", lambda p: values[p["setting"]])}
    marks = {"W 1 s": "at least", "b 0.9": "below"}
    found = table(tmp_path, {"setting": list(values)}, metrics, censored=lambda p: marks.get(p["setting"], ""))
    assert findings(found, [("sustainable_workload.rate", None)]).endswith(
        "Against the reference (4,000): at least 2.2 times (W 1 s), 1.5 times (theta), below 0.25 times (b 0.9)."
    )
    experiment = an_experiment(None, plot={"x": "setting", "panels": ["sustainable_workload.rate"]})
    axis = sweep_figures.plot(found, experiment).axes[0]
    hollow = [line for line in axis.lines if line.get_markerfacecolor() == "white" and len(line.get_xdata())]
    assert {(line.get_marker(), line.get_xdata()[0]) for line in hollow} == {("^", 0.0), ("v", 1.0)}

    def some(p: Point) -> float | None:
        return None if p == {"slaves": 2, "setting": "reference"} else 10.0 * p["slaves"]

    axes = {"slaves": [1, 2], "setting": ["reference", "other"]}
    both = table(tmp_path, axes, {"sustainable_workload.rate": ("1/s", some)}, censored=lambda p: "at least")
    assert findings(both, [("sustainable_workload.rate", None)]).endswith(
        "1 slave: against the reference (at least 10): not known how many times (other). "
        "2 slaves: against the reference nothing can be told: it was not measured."
    )


@pytest.mark.parametrize(
    ("plot", "complaint"),
    [
        ({"x": "slave", "panels": ["delay_mean_s"]}, "'slave' is no axis of the sweep; its axes: cluster.distribution_epoch"),
        ({"series": ["tuning"], "panels": ["delay_mean_s"]}, "'tuning' is no axis"),
        ({"panels": ["moves"]}, "nothing to draw: no valid point of the table has moves"),
        ({}, "nothing to draw"),
    ],
)
def test_wrong_plots_are_refused(plot: dict[str, Any], complaint: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=complaint):
        sweep_figures.plot(table(tmp_path, *by_epoch()), an_experiment(None, plot=plot))


# ---------------------------------------------------------------- verdicts


def verdict(tmp_path: Path, figure: int | str, made: tuple[dict[str, list[Any]], Metrics], like: str = "") -> str:
    found = claims.assess(figure, table(tmp_path, *made))
    assert re.search(like, found.why), found.why
    assert found.why.endswith(".")
    assert "nan" not in found.why
    return found.verdict


@pytest.mark.parametrize("figure", GOOD)
def test_what_the_paper_claims_would_hold(figure: int | str, tmp_path: Path) -> None:
    assert verdict(tmp_path, figure, GOOD[figure]()) == claims.HOLDS


@pytest.mark.parametrize("figure", GOOD)
def test_what_was_not_measured_is_not_judged(figure: int | str, tmp_path: Path) -> None:
    axes, _ = GOOD[figure]()
    assert verdict(tmp_path, figure, (axes, {"moves": ("moves", lambda p: 1.0)})) == claims.UNKNOWN
    axes, metrics = GOOD[figure]()
    nothing: Metrics = {key: (unit, lambda p: None) for key, (unit, _) in metrics.items()}
    assert verdict(tmp_path, figure, (axes, nothing)) == claims.UNKNOWN


def test_figures_5_and_6(tmp_path: Path) -> None:
    def check(figure: int, change: Callable[[Point, float], Any], like: str = "") -> str:
        return verdict(tmp_path, figure, by_slaves(change), like)

    assert check(5, lambda p, d: d, "1 slave: 2,000; 2 slaves: 3,000; 3 slaves: 5,000; 4 slaves: 6,000") == claims.HOLDS
    varies = check(5, lambda p, d: 3.0 if (p["slaves"], p["workload.rate"]) == (4, 2000) else d, "varies 1.9-fold .4 slaves")
    assert varies == claims.SHAPE
    axes, metrics = by_slaves()
    equal: Metrics = {"delay_mean_s": ("s", lambda p: past(p["workload.rate"], 3000 + 1000 * (p["slaves"] == 4), 1.6, 9.0))}
    assert verdict(tmp_path, 5, (axes, equal), "too far apart") == claims.SHAPE
    falls: Metrics = {"delay_mean_s": ("s", lambda p: past(p["workload.rate"], 6000 - 1000 * p["slaves"], 1.6, 9.0))}
    assert verdict(tmp_path, 5, (axes, falls)) == claims.FAILS
    same: Metrics = {"delay_mean_s": ("s", lambda p: past(p["workload.rate"], 3000, 1.6, 9.0))}
    assert verdict(tmp_path, 5, (axes, same)) == claims.FAILS
    assert check(5, lambda p, d: 1.6 if p["slaves"] > 2 else d) == claims.HOLDS, "by growth alone"
    never: Metrics = {"delay_mean_s": ("s", lambda p: 1.6)}
    assert verdict(tmp_path, 5, (axes, never), "No measured rate saturated") == claims.UNKNOWN
    assert verdict(tmp_path, 5, ({"slaves": [4], "workload.rate": RATES}, metrics), "Fewer than two") == claims.UNKNOWN
    high: Metrics = {
        **metrics,
        "delay_growth": ("s/s", lambda p: 0.5 * (p["workload.rate"] >= (0, 1000, 2000, 3000, 4000)[p["slaves"]])),
    }
    assert verdict(tmp_path, 5, (axes, high), "too high already for 1 slave") == claims.SHAPE
    slow = check(6, lambda p, d: 2 * d if p["slaves"] == 4 else d, "take 3.2 s; the paper says about 2 s")
    assert slow == claims.SHAPE
    missing = check(6, lambda p, d: None if p["workload.rate"] == 4000 else d, "4,000 tuples/s/stream were not measured")
    assert missing == claims.SHAPE
    assert verdict(tmp_path, 6, (axes, falls)) == claims.FAILS


def test_streamcloud_rates_over_nodes(tmp_path: Path) -> None:
    for figure in ("StreamCloud 7b", "StreamCloud 7c"):
        assert (
            verdict(tmp_path, figure, by_nodes({1: 100, 2: 190, 4: 350}), "4 nodes carry 350/s, 0.92 of 2 times 2")
            == claims.HOLDS
        )
        assert verdict(tmp_path, figure, by_nodes({1: 100, 2: 190, 4: 300})) == claims.SHAPE
        assert verdict(tmp_path, figure, by_nodes({1: 100, 2: 110, 4: 210}), "2 nodes carry 110/s, 0.55 of") == claims.FAILS
        assert verdict(tmp_path, figure, by_nodes({4: 100})) == claims.UNKNOWN


def test_comparisons_of_a_product_over_nodes(tmp_path: Path) -> None:
    """They grow with the square of the rate."""
    assert verdict(tmp_path, "StreamCloud 7d", by_nodes_simulated({1: 100, 2: 140, 4: 196})) == claims.HOLDS
    assert verdict(tmp_path, "StreamCloud 7d", by_nodes_simulated({1: 100, 2: 120})) == claims.SHAPE
    text = "2 nodes carry 110/s, and compare 1.21 times as much as 1"
    assert verdict(tmp_path, "StreamCloud 7d", by_nodes_simulated({1: 100, 2: 110}), text) == claims.FAILS


def test_streamcloud_strategies(tmp_path: Path) -> None:
    def check(**rates: float) -> str:
        return verdict(tmp_path, "StreamCloud 7f", by_strategy(**rates))

    assert check(subquery=500, operator=200, query=100) == claims.HOLDS
    assert check(subquery=500, operator=400, query=100) == claims.SHAPE
    assert check(subquery=500, operator=100, query=510) == claims.FAILS
    assert check(subquery=500, query=10) == claims.SHAPE, "operators were not measured"
    assert check(subquery=500, operator=100) == claims.UNKNOWN


def test_streamcloud_on_many_processors(tmp_path: Path) -> None:
    def sixty(**rates: float) -> str:
        return verdict(tmp_path, "StreamCloud 8", by_strategy_and_epoch(**rates))

    assert sixty(subquery=500, operator=200, query=100) == claims.HOLDS
    assert sixty(subquery=500, operator=200, query=0) == claims.HOLDS, "nothing is carried"
    assert sixty(subquery=500, operator=300, query=100) == claims.SHAPE
    assert sixty(subquery=500, operator=600, query=100) == claims.FAILS
    assert sixty(subquery=500, operator=200) == claims.UNKNOWN

    def causes(**shares: tuple[float, float]) -> str:
        return verdict(tmp_path, "StreamCloud 9", by_cause(**shares), "query communicates")

    assert causes(query=(0.5, 0.1), subquery=(0.1, 0.05), operator=(0.3, 0.35)) == claims.HOLDS
    assert causes(query=(0.5, 0.1), subquery=(0.1, 0.05), operator=(0.3, 0.5)) == claims.SHAPE
    assert causes(query=(0.2, 0.1), subquery=(0.1, 0.05), operator=(0.3, 0.35)) == claims.FAILS

    def efficiency(**rates: float) -> str:
        found = by_nodes_simulated({int(name[1:]): rate for name, rate in rates.items()})
        return verdict(tmp_path, "StreamCloud claim 20", found)

    assert efficiency(n4=100, n16=98, n60=92, n1024=80) == claims.HOLDS
    assert efficiency(n4=100, n16=98, n60=92, n1024=70) == claims.SHAPE
    assert efficiency(n4=100, n16=120, n60=92, n1024=70) == claims.FAILS, "the best of small clusters counts"
    assert efficiency(n4=100, n60=92) == claims.UNKNOWN

    def queues(knee: float, busy: float = 1.0) -> str:
        return verdict(tmp_path, "StreamCloud 7a, queues", by_rate(knee, busy))

    assert (queues(400), queues(200, 0.8), queues(50), queues(500)) == (
        claims.HOLDS,
        claims.SHAPE,
        claims.UNKNOWN,
        claims.UNKNOWN,
    )


def test_fewer_comparisons(tmp_path: Path) -> None:
    def fewer(**made: float) -> str:
        return verdict(tmp_path, "StreamCloud claim 4", by_comparisons(**made))

    assert fewer(n1=100, n2=90, n4=80) == claims.HOLDS
    assert fewer(n1=100, n2=99, n4=80) == claims.SHAPE
    assert fewer(n1=100, n2=90, n4=100) == claims.FAILS
    assert fewer(n1=100) == claims.UNKNOWN


def test_queues_around_saturation(tmp_path: Path) -> None:
    for figure in ("StreamCloud 7b, queues", "StreamCloud 7d, queues"):
        assert verdict(tmp_path, figure, by_rate_and_nodes()) == claims.HOLDS
        assert verdict(tmp_path, figure, by_rate_and_nodes(busy=0.8)) == claims.SHAPE
        assert verdict(tmp_path, figure, by_rate_and_nodes(more=2.0)) == claims.FAILS
        alone, metrics = by_rate_and_nodes()
        assert verdict(tmp_path, figure, ({**alone, "slaves": [20]}, metrics)) == claims.UNKNOWN
        assert verdict(tmp_path, figure, ({**alone, "workload.rate": [100, 300]}, metrics)) == claims.UNKNOWN


def flat_to(**knees: tuple[list[int], int | None]) -> tuple[dict[str, list[Any]], Metrics]:
    """Figure 5 with own rates for each number of slaves ("s1"), the lowest that saturates, and runs missing at all others."""

    def delay(p: Point) -> Any:
        rates, knee = knees[f"s{p['slaves']}"]
        if p["workload.rate"] not in rates:
            return None
        return 1.6 if knee is None or p["workload.rate"] < knee else 9.0

    rates = sorted({rate for own, _ in knees.values() for rate in own})
    return {"slaves": [int(name[1:]) for name in knees], "workload.rate": rates}, {"delay_mean_s": ("s", delay)}


def test_a_curve_that_stays_flat_is_no_contradiction(tmp_path: Path) -> None:
    """It saturates above its last valid rate, and nobody knows where."""
    low, high = [500, 1000, 2000], [1000, 2000, 2500, 3000]
    made = flat_to(s1=(low, None), s2=(high, 2500))
    like = "1 slave: above 2,000; 2 slaves: 2,500. In the measured range the system did not saturate with 1 slave. .* too early"
    assert verdict(tmp_path, 5, made, like) == claims.UNKNOWN
    assert verdict(tmp_path, 5, flat_to(s1=(low, None), s2=(high, 2500), s3=([2000, 4000, 5000], 5000))) == claims.SHAPE
    assert verdict(tmp_path, 5, flat_to(s1=(low, 2000), s2=(high, None)), "not saturate with 2 slaves") == claims.HOLDS
    assert verdict(tmp_path, 5, flat_to(s1=(low, 2000), s2=([500, 1000], None))) == claims.UNKNOWN
    for knee in (1000, 2000):
        made = flat_to(s1=(low, None), s2=([500, 1000, 2000], knee))
        assert verdict(tmp_path, 5, made, "It is lower with 2 slaves than with 1 slave") == claims.FAILS
    far = flat_to(s1=(low, None), s2=(high, None), s3=([500, 1000, 2000], 2000))
    assert verdict(tmp_path, 5, far, "lower with 3 slaves than with 1 slave") == claims.FAILS


def test_rates_without_a_valid_run_are_told_and_prove_nothing(tmp_path: Path) -> None:
    lost = flat_to(s1=([1000, 2000], None), s2=([1000, 2000, 3000, 4000], 3000))
    like = "Left out, because no run of them is valid: 1 slave at 3,000, 4,000 tuples/s/stream."
    assert verdict(tmp_path, 5, lost, like) == claims.UNKNOWN
    whole = flat_to(s1=([1000, 2000, 3000], 3000), s2=([1000, 2000, 3000], 3000))
    assert verdict(tmp_path, 5, whole, "It does not grow") == claims.FAILS
    gap = flat_to(s1=([1000, 3000], 3000), s2=([1000, 2000, 3000], 3000))
    assert verdict(tmp_path, 5, gap, "too far apart.*") == claims.UNKNOWN
    gaps = flat_to(s1=([1000, 4000], 4000), s2=([1000, 3000, 4000], 3000), s3=([1000, 2000, 3000, 4000], None))
    assert verdict(tmp_path, 5, gaps, "1 slave at 2,000, 3,000; 2 slaves at 2,000") == claims.SHAPE


def test_what_two_knees_say() -> None:
    base = Knee(1000, 2000, True)
    for other, said in (
        (Knee(2000, 3000, True), "grows"),
        (Knee(2000, None, False), "grows"),
        (Knee(1500, 2500, True), "grows"),
        (Knee(1000, 3000, True), ""),
        (Knee(1500, None, False), ""),
        (Knee(1200, 1800, True), ""),  # within
        (Knee(1000, 2000, True), "stays"),
        (Knee(1000, 2000, False), ""),
        (Knee(500, 1500, True), "falls stays"),
        (Knee(500, 1500, False), ""),
        (Knee(500, 1000, False), "falls"),
    ):
        found = [rule.__name__ for rule in (grows, falls, stays) if rule(base, other)]
        assert " ".join(found) == said, other
    assert falls(Knee(2000, None, False), Knee(1000, 2000, False))
    assert not falls(Knee(2000, None, False), Knee(2000, 2500, True))
    assert not grows(Knee(2000, None, False), Knee(5000, 6000, True))


def test_figure_8_without_high_rates(tmp_path: Path) -> None:
    def lost(*, at: Callable[[Point], bool], knee: Callable[[Point], float] = lambda p: 9000) -> Any:
        def delay(p: Point) -> Any:
            return None if at(p) else 1.8 if p["workload.rate"] < knee(p) else 9.0

        return by_tuning(delay_mean_s_run=delay, delay_growth_run=lambda p: None if at(p) else 0.0)

    high = lost(at=lambda p: p["workload.rate"] >= 4000)
    like = r"measured range \(up to 3,000\), .* with tuning at 4,000, 5,000, 6,000; without tuning at .* it cannot be told"
    assert verdict(tmp_path, 8, high, like) == claims.UNKNOWN
    only_4000 = lost(at=lambda p: p["workload.rate"] == 4000, knee=lambda p: 3000 if p["tuning"] == "off" else 9000)
    assert verdict(tmp_path, 8, only_4000, "saturates at 3,000.*4,000 tuples/s/stream were not measured") == claims.SHAPE
    same = lost(at=lambda p: p["workload.rate"] == 4000, knee=lambda p: 3000)
    assert verdict(tmp_path, 8, same) == claims.FAILS
    earlier_on = lost(at=lambda p: p["workload.rate"] >= 4000, knee=lambda p: 3000 if p["tuning"] == "on" else 9000)
    assert verdict(tmp_path, 8, earlier_on) == claims.FAILS
    after_4000 = lost(at=lambda p: p["workload.rate"] == 4000, knee=lambda p: 5000)
    assert verdict(tmp_path, 8, after_4000, "cannot be told") == claims.UNKNOWN
    nothing = lost(at=lambda p: p["tuning"] == "off")
    assert verdict(tmp_path, 8, nothing, "with and without tuning. Left out, .*: without tuning at 1,000") == claims.UNKNOWN


def test_figure_7(tmp_path: Path) -> None:
    def cpu(off: Callable[[float], float]) -> Callable[[Point], float]:
        return lambda p: min(60.0, p["workload.rate"] / 100 if p["tuning"] == "on" else off(p["workload.rate"]))

    constant = by_tuning(cpu_s_mean=cpu(lambda rate: rate / 50))
    assert verdict(tmp_path, 7, constant, "does not grow") == claims.SHAPE
    assert verdict(tmp_path, 7, by_tuning(cpu_s_mean=cpu(lambda rate: 60)), "fully busy at all but one") == claims.SHAPE
    less = by_tuning(cpu_s_mean=cpu(lambda rate: rate / 200 if rate < 2000 else rate))
    assert verdict(tmp_path, 7, less, "not lower with tuning at 1,000 tuples") == claims.FAILS
    unreal = by_tuning(work_s_mean=lambda p: 0.5)
    assert verdict(tmp_path, 7, unreal, "really used is not lower at 1,000, 2,000") == claims.SHAPE
    assert verdict(tmp_path, 7, by_tuning(cpu_s_mean=lambda p: 60.0)) == claims.UNKNOWN


def test_figure_8(tmp_path: Path) -> None:
    good = by_tuning()
    assert verdict(tmp_path, 8, good, "grows by 0.1 s per s, .* 30 to 90 s over minutes 10 to 20") == claims.HOLDS
    much = by_tuning(delay_growth_run=lambda p: 0.9 if p["tuning"] == "off" and p["workload.rate"] >= 4000 else 0.0)
    assert verdict(tmp_path, 8, much, "270 to 810 s") == claims.SHAPE
    later = by_tuning(
        delay_mean_s_run=lambda p: 1.8 if p["workload.rate"] < 6000 or p["tuning"] == "on" else 9.0,
        delay_growth_run=lambda p: 0.0,
    )
    assert verdict(tmp_path, 8, later, "48 s would not be reached") == claims.SHAPE
    never = by_tuning(delay_mean_s_run=lambda p: 1.8, delay_growth_run=lambda p: 0.0)
    like = r"does not saturate in the measured range \(up to 6,000\), without it does not"
    assert verdict(tmp_path, 8, never, like) == claims.FAILS


def test_figures_9_and_10(tmp_path: Path) -> None:
    early = by_tuning(idle_ratio_mean=lambda p: 0.01 if p["workload.rate"] >= 2000 else 0.5)
    never = by_tuning(idle_ratio_mean=lambda p: 0.3)
    late = by_tuning(idle_ratio_mean=lambda p: 0.01 if p["workload.rate"] >= 5000 else 0.3)
    assert [verdict(tmp_path, 9, made) for made in (early, never, late)] == [claims.SHAPE, claims.FAILS, claims.SHAPE]
    assert verdict(tmp_path, 9, never, "stays above 5 % up to 6,000") == claims.FAILS
    assert [verdict(tmp_path, 10, made) for made in (early, never, late)] == [claims.SHAPE, claims.FAILS, claims.HOLDS]
    assert verdict(tmp_path, 10, by_tuning(), "not above that without at all 3 rates") == claims.HOLDS
    dear = by_tuning(communication_s_mean=lambda p: 3.0 if p["tuning"] == "on" else 1.0)
    assert verdict(tmp_path, 10, dear, r"higher with tuning at 1,000 \(3 against 1 s per minute\)") == claims.SHAPE
    axes, metrics = by_tuning()
    assert verdict(tmp_path, 10, ({**axes, "tuning": ["on"]}, metrics), "cannot be compared") == claims.SHAPE


def test_figure_11(tmp_path: Path) -> None:
    assert verdict(
        tmp_path, 11, by_declustering(), r"from 3 to 7 \(\+1 per slave, r\^2 = 1.00\).* 4 instead of 7 with 5 slaves"
    )
    uneven = by_declustering(each=lambda n: 4.0 if n == 4 else 2 / n + 1)
    assert verdict(tmp_path, 11, uneven) == claims.SHAPE
    close = by_declustering(adaptive=lambda n: n + 2 - 0.01)
    assert verdict(tmp_path, 11, close) == claims.SHAPE, "below, but within the repeats' spread"
    assert verdict(tmp_path, 11, by_declustering(each=lambda n: float(n))) == claims.FAILS, "grows per slave"
    assert verdict(tmp_path, 11, by_declustering(each=lambda n: 3 / n)) == claims.FAILS, "the sum does not grow"
    assert verdict(tmp_path, 11, by_declustering(adaptive=lambda n: 99.0)) == claims.FAILS, "adaptive is not below"
    axes, metrics = by_declustering()
    fixed = ({**axes, "declustering": ["fixed"]}, metrics)
    assert verdict(tmp_path, 11, fixed, "was not measured with 4 slaves or more") == claims.UNKNOWN


def test_figure_12(tmp_path: Path) -> None:
    bumpy = by_tuning(communication_s_max=lambda p: {2000: 30.0, 3000: 25.0, 6000: 20.0}.get(p["workload.rate"], 4.0))
    assert verdict(tmp_path, 12, bumpy) == claims.SHAPE
    assert verdict(tmp_path, 12, by_tuning(communication_s_max=lambda p: p["workload.rate"] / 2000 + 1)) == claims.FAILS
    unsure = by_tuning(communication_s_max=lambda p: (p["workload.rate"] / 500, 20.0))
    assert verdict(tmp_path, 12, unsure, "repeats spread by 20") == claims.FAILS


def test_figures_13_and_14(tmp_path: Path) -> None:
    assert verdict(tmp_path, 13, by_epoch(), r"slope of 0.80 .*0.5 \+ busy / 2 = 0.70") == claims.HOLDS
    for figure, worse in (
        (13, by_epoch(delay=lambda t: 2.0 if t == 0.5 else t)),
        (14, by_epoch(spent=lambda t: 8 - t + 5 * (t == 2))),
    ):
        assert verdict(tmp_path, figure, worse) == claims.SHAPE
    for figure, flat in ((13, by_epoch(delay=lambda t: (t, 4.0))), (14, by_epoch(spent=lambda t: 2.0))):
        assert verdict(tmp_path, figure, flat) == claims.FAILS


def test_each_rate_is_judged_by_itself(tmp_path: Path) -> None:
    def made(factor: Callable[[float], float]) -> tuple[dict[str, list[Any]], Metrics]:
        axes, metrics = by_epoch()
        one = metrics["delay_mean_s"][1]
        both: Metrics = {
            **metrics,
            "delay_mean_s": ("s", lambda p: one(p) * factor(p["workload.rate"]) + (p["workload.rate"] > 2000)),
        }
        return {**axes, "workload.rate": [1500, 4000]}, both

    like = r"^At 1,500 tuples/s/stream: from t_d = 0.5 s to 4 s .* 0.5 to 3.3 s, .* At 4,000 tuples/s/stream: .* 2 to 7.6 s"
    assert verdict(tmp_path, 13, made(lambda rate: 1 + (rate > 2000)), like) == claims.HOLDS
    assert verdict(tmp_path, 13, made(lambda rate: 1 - (rate > 2000))) == claims.SHAPE
    assert verdict(tmp_path, 13, made(lambda rate: -1.0)) == claims.FAILS
    fig = sweep_figures.plot(table(tmp_path, *made(lambda rate: 1.0)), an_experiment(13))
    texts = [text.get_text() for text in fig.axes[0].get_legend().get_texts()]
    assert texts == ["1,500 tuples/s/stream", "4,000 tuples/s/stream"]


def test_trend_is_a_rank_correlation() -> None:
    assert claims.trend(np.array([1.0, 2, 30])) == pytest.approx(1)
    assert claims.trend(np.array([3.0, 2, 1])) == pytest.approx(-1)
    assert claims.trend(np.array([1.0, 3, 2])) == pytest.approx(0.5)
    assert claims.trend(np.array([2.0, 2, 2])) == claims.trend(np.array([1.0])) == 0
    assert claims.line(np.array([1.0, 2, 3]), np.array([2.0, 4, 6])) == (pytest.approx(2), pytest.approx(1))


# ---------------------------------------------------------------- experiments and the page


YAML = """question: How does it go on {name}?
base: base.yaml
figure: {figure}
claim: It goes well; what | is said.
preset: {preset}
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A repository with experiments: a figure with a sweep, one that borrows its runs, two past the paper, some unswept."""
    (tmp_path / "experiments").mkdir()
    files = {
        "main.yaml": "question: No sweep?\nbase: base.yaml\naxes: {}\n",
        "fig05.yaml": YAML.format(name="five", figure=5, preset="quick") + "axes: {slaves: [1, 2, 3, 4]}\n",
        "fig06.yaml": YAML.format(name="six", figure=6, preset="quick")
        .replace("base: base.yaml\n", "")
        .replace("preset: quick\n", "")
        + "runs: fig05.yaml\n",
        "fig13.yaml": YAML.format(name="thirteen", figure=13, preset="paper") + "axes: {cluster.distribution_epoch: [1s]}\n",
        "policies.yaml": "question: B?\nbase: base.yaml\nexpected: A.\naxes: {slaves: [2]}\nplot: {panels: [delay_mean_s]}\n",
        "later.yaml": "question: And?\nbase: base.yaml\naxes: {slaves: [2]}\nplot: {x: slaves, panels: [moves]}\n",
    }
    for name, text in files.items():
        (tmp_path / "experiments" / name).write_text(text)
    (tmp_path / "base.yaml").write_text((ROOT / "mpi_configs" / "paper_scaled.yaml").read_text())
    sweeps = tmp_path / "sweeps"
    axes, metrics = by_slaves(lambda p, value: value / 10)
    more: Metrics = {**metrics, "pairs_per_s": ("1/s", lambda p: 1.0)}
    write_sweep(sweeps / "fig05-quick", "fig05", axes, more, preset="quick", time_scale=10)
    write_sweep(sweeps / "fig05-paper", "fig05", axes, metrics)
    write_sweep(
        sweeps / "policies", "policies", {"slaves": [1, 2]}, {"delay_mean_s": ("s", lambda p: 1 / p["slaves"])}, preset="none"
    )
    write_sweep(sweeps / "main", "main", {"slaves": [1]}, {"delay_mean_s": ("s", lambda p: 1.0)})
    return tmp_path


def test_experiments_are_read(checkout: Path) -> None:
    found = experiments.read_all(checkout / "experiments")
    assert [e.name for e in found] == ["fig05", "fig06", "fig13", "later", "policies"]
    assert [str(sweep_directory(e)) for e in found] == [
        "runs/sweeps/fig05-quick", "runs/sweeps/fig05-quick", "runs/sweeps/fig13-paper", "runs/sweeps/later",
        "runs/sweeps/policies",
    ]  # fmt: skip
    assert experiments.needed_metrics(found[0]) == {"delay_mean_s", "delay_growth"}
    assert experiments.needed_metrics(found[4]) == {"delay_mean_s"}
    for text, complaint in (
        ("base: base.yaml\n", "question is missing"),
        ("question: a\nbase: base.yaml\nfigure: 4\n", "figure 4 is not one of the paper's 5 to 14"),
        ("question: a\nbase: base.yaml\nmetrics: [delay]\n", "'delay' is no metric"),
    ):
        (checkout / "experiments" / "wrong.yaml").write_text(text)
        with pytest.raises(UserError, match=complaint):
            experiments.read(checkout / "experiments" / "wrong.yaml")


def test_the_page_follows_from_the_committed_tables(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    docs = checkout / "docs"
    assert reproduction.main(["--from", str(checkout / "sweeps")], checkout) == 0
    printed = capsys.readouterr().out.split()
    assert sorted(path.name for path in (docs / "reproduction" / "tables").iterdir()) == [
        "fig05.csv", "fig05.json", "policies.csv", "policies.json",
    ]  # fmt: skip
    assert json.loads((docs / "reproduction" / "tables" / "fig05.json").read_text())["preset"] == "quick", (
        "its own preset first"
    )
    assert "pairs_per_s" not in (docs / "reproduction" / "tables" / "fig05.csv").read_text()
    assert sorted(path.name for path in (docs / "reproduction").glob("*.png")) == ["fig05.png", "fig06.png", "policies.png"]
    assert not list((docs / "reproduction").glob("*.svg"))
    assert sorted(path.name for path in (checkout / "runs" / "figures").iterdir()) == ["fig05.svg", "fig06.svg", "policies.svg"]
    assert printed[-1] == "docs/reproduction.md"
    page = (docs / "reproduction.md").read_text()
    for expected in (
        "| [5](#figure-5) | It goes well; what \\| is said. | **holds** |",
        "| [6](#figure-6) | It goes well; what \\| is said. | **holds** |",
        "| [13](#figure-13) | It goes well; what \\| is said. | **not measured** |",
        "![Figure 6](reproduction/fig06.png)",
        "4 slaves at 4,000 tuples/s/stream take 1.6 s; the paper says about 2 s.",
        "| quick | 0.0125 of a core | a processor, 2 cores | 0123456789ab | `fig05` |",
        "**Found.** Average production delay (s): the highest is 1 (1 slave), the lowest 0.5 (2 slaves), a ratio of 2.",
        "**Found.** No table is committed yet.",
        "Table `docs/reproduction/tables/fig05.csv`; preset quick; 72 runs, 3 runs per point; commit 0123456789ab.",
        "Average production delay (s):\n\n| arrival rate (tuples/s/stream) | 1 slave | 2 slaves | 3 slaves | 4 slaves |\n|---|",
        "| 4,000 | 30 (29.7 to 30.3) | 30 (29.7 to 30.3) | 1.6 (1.58 to 1.62) | 1.6 (1.58 to 1.62) |\n",
        "| slaves | average production delay (s) |\n|---|---|\n| 1 | 1 (0.99 to 1.01) |\n",
        "Not written yet (docs/reproduction/notes.md).",
    ):
        assert expected in page, expected
    for link in re.findall(r"\]\(([^)#]+)\)", page):
        assert (docs / link).exists(), link
    for anchor in re.findall(r"\]\(#([^)]+)\)", page):
        assert f"### {anchor.replace('-', ' ').capitalize()}\n" in page


@pytest.mark.drawn
def test_the_page_is_the_same_every_time(checkout: Path) -> None:
    reproduction.main(["--from", str(checkout / "sweeps")], checkout)
    files = [checkout / "docs" / "reproduction.md", *sorted((checkout / "docs" / "reproduction" / "tables").iterdir())]
    files += [checkout / "docs" / "reproduction" / "fig05.png", checkout / "runs" / "figures" / "fig05.svg"]
    before = [path.read_bytes() for path in files]
    for path in files[-2:]:
        path.unlink()
    assert reproduction.main([], checkout) == 0
    assert [path.read_bytes() for path in files] == before
    assert reproduction.main(["--from", str(checkout / "sweeps")], checkout) == 0
    assert [path.read_bytes() for path in files] == before
    notes = checkout / "docs" / "reproduction" / "notes.md"
    notes.write_text("# Notes\n\nThe nodes are imitated ([how](../performance.md), [table](tables/fig05.csv)).\n")
    reproduction.build(checkout, draw=False)
    page = files[0].read_text()
    ending = "\nThe nodes are imitated ([how](performance.md), [table](reproduction/tables/fig05.csv)).\n"
    assert page.endswith(f"## What is not the same as in the paper\n{ending}")


def test_names_of_what_can_be_swept(checkout: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduction.main(["--names"], checkout) == 0
    assert capsys.readouterr().out.split() == ["fig05", "fig13", "later", "policies"]


def test_wrong_sweeps_are_refused(checkout: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    assert reproduction.main(["--from", str(checkout / "experiments")], checkout) == 2
    assert "no aggregated sweep of experiments/ lies there" in capsys.readouterr().err
    monkeypatch.setattr(reproduction, "MOST_TABLE_BYTES", 100)
    assert reproduction.main(["--from", str(checkout / "sweeps")], checkout) == 2
    assert "a committed table has at most 100" in capsys.readouterr().err


def test_plot_of_an_experiment(checkout: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(checkout)
    path = checkout / "experiments" / "fig05.yaml"
    done = swjoin("plot", path, "--sweep", checkout / "sweeps" / "fig05-quick", "-o", checkout / "out")
    assert (done.code, done.err) == (0, [])
    assert done.out.split() == [str(checkout / "out" / f"fig05.{kind}") for kind in ("png", "svg")]
    assert (checkout / "out" / "fig05.png").read_bytes().startswith(b"\x89PNG")
    done = swjoin("plot", path)
    assert done.code == 2
    assert "runs/sweeps/fig05-quick: no sweep lies here" in done.err[0]
    (checkout / "sweeps").rename(checkout / "runs")
    (checkout / "runs").rename(checkout / "elsewhere")
    (checkout / "runs").mkdir()
    (checkout / "elsewhere").rename(checkout / "runs" / "sweeps")
    done = swjoin("plot", checkout / "experiments" / "fig06.yaml")
    assert (done.code, done.out.split()) == (0, [f"runs/sweeps/fig05-quick/plots/fig06.{kind}" for kind in ("png", "svg")])
    for argv, complaint in (
        (("plot", checkout / "runs", "-o", "here"), "-o and --sweep are for the figure of an experiment"),
        (("plot", path, "--sweep", checkout / "experiments"), "no sweep lies here"),
        (("plot", path, "--sweep", checkout / "runs" / "sweeps" / "policies"), "is a sweep of policies"),
    ):
        done = swjoin(*argv)
        assert done.code == 2
        assert len(done.err) == 1
        assert complaint in done.err[0]


SWEEPS = [path for path in sorted((ROOT / "experiments").glob("*.yaml")) if experiments.is_sweep(path)]


@pytest.mark.drawn
@pytest.mark.parametrize("path", SWEEPS, ids=lambda path: path.stem)
def test_every_experiment_can_be_drawn_and_judged(path: Path, tmp_path: Path) -> None:
    """With a table of its own axes and metrics, all of one value."""
    experiment = experiments.read(path)
    source, shown = experiment.source, [point.axes for point in points(experiment)]
    columns = list(source.axis_units)
    metrics = [
        (name, METRICS[name].unit if name in METRICS else "1/s", over)
        for name in sorted(experiments.needed_metrics(experiment))
        for over in (METRICS[name].over if name in METRICS else ("run",))
    ]
    (tmp_path / "experiment.json").write_text(json.dumps({"experiment": source.name, "axis_units": source.axis_units}))
    with (tmp_path / "table.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*columns, "metric", "unit", "over", *STATISTICS])
        for point in shown:
            for name, unit, over in metrics:
                writer.writerow([*(point[axis] for axis in columns), name, unit, over, 2, 1, 0, 1, 1, 1, 1, 0, 0])
    found = sweep_tables.load(tmp_path)
    fig = sweep_figures.plot(found, experiment)
    fig.draw_without_rendering()
    renderer = fig.canvas.get_renderer()  # type: ignore[attr-defined]
    for axis in fig.axes:
        assert not axis.texts, "a panel has no data"
        assert axis.yaxis.label.get_window_extent(renderer).height <= 1.1 * axis.get_window_extent(renderer).height
        ticks = [tick.get_window_extent(renderer) for tick in axis.get_xticklabels() if tick.get_text() and tick.get_visible()]
        assert all(a.x1 < b.x0 for a, b in pairwise(ticks)), "labels of the x axis cover each other"
    text = reproduction._verdict(found, experiment).why
    assert text.endswith(".")
    assert "nan" not in text


def test_the_committed_page_follows_from_the_committed_tables(tmp_path: Path) -> None:
    page = ROOT / "docs" / "reproduction.md"
    if not page.is_file():
        pytest.skip("the page is not there yet")
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "reproduction").symlink_to(ROOT / "docs" / "reproduction")
    (tmp_path / "experiments").symlink_to(ROOT / "experiments")
    reproduction.build(tmp_path, draw=False)
    assert (tmp_path / "docs" / "reproduction.md").read_bytes() == page.read_bytes()
