"""Metrics and panels of an experiment's figure.

What: `read`, `read_all`, `panels`, `needed_metrics`; FIGURE_METRICS, the metrics of the paper's figures and verdicts.
Why: shared by figures, verdicts and the page of the reproduction.
Stays out: the file's format and running an experiment (`swjoin.sweeps`), tables.
"""

from __future__ import annotations

from pathlib import Path

from swjoin.config.loader import load_plain
from swjoin.core.errors import UserError
from swjoin.sweeps.experiment import Experiment, load_experiment

FIGURE_METRICS: dict[int | str, tuple[str, ...]] = {
    5: ("delay_mean_s", "delay_growth"),
    6: ("delay_mean_s", "delay_growth"),
    7: ("cpu_s", "work_s", "mini_group_count"),
    8: ("delay_mean_s", "delay_growth"),
    9: ("idle_ratio", "communication_s"),
    10: ("idle_ratio", "communication_s"),
    11: ("communication_s", "active_slaves"),
    12: ("communication_s",),
    13: ("delay_mean_s", "busy_ratio"),
    14: ("communication_s",),
    "StreamCloud 7a": ("saturation_tuples_per_s",),
    "StreamCloud 7a, queues": ("delay_mean_s", "delay_growth", "utilisation_slaves"),
    "StreamCloud 7b": ("sustainable_workload.rate",),
    "StreamCloud 7b, queues": ("delay_mean_s", "delay_growth", "utilisation_slaves"),
    "StreamCloud 7c": ("sustainable_workload.rate",),
    "StreamCloud 7d": ("saturation_tuples_per_s",),
    "StreamCloud 7d, queues": ("delay_mean_s", "delay_growth", "utilisation_slaves"),
    "StreamCloud 7f": ("sustainable_workload.rate",),
    "StreamCloud 8": ("saturation_tuples_per_s",),
    "StreamCloud 9": ("operator_ratio", "exchange_ratio", "waiting_ratio"),
    "StreamCloud claim 4": ("comparisons_per_s",),
    "StreamCloud claim 20": ("saturation_per_node", "exchange_ratio", "waiting_ratio"),
}


def read(path: Path) -> Experiment:
    """Parse a file. UserError, too, when it names a figure that the paper does not have."""
    experiment = load_experiment(path)
    if experiment.figure is not None and experiment.figure not in FIGURE_METRICS:
        numbers = [figure for figure in FIGURE_METRICS if isinstance(figure, int)]
        others = ", ".join(figure for figure in FIGURE_METRICS if isinstance(figure, str))
        raise UserError(
            f"{path}: figure {experiment.figure} is not one of the paper's {min(numbers)} to {max(numbers)}, nor {others}"
        )
    return experiment


def is_sweep(path: Path) -> bool:
    """Whether the file varies anything, or draws from another one that does."""
    plain = load_plain(path)
    return bool(plain.get("axes") or plain.get("runs") or plain.get("search"))


def read_all(folder: Path) -> list[Experiment]:
    """All sweeps of a folder: figures of the first paper by number, those of others, then the rest by name."""
    found = [read(path) for path in sorted(folder.glob("*.yaml")) if is_sweep(path)]
    return sorted(found, key=_place)


def _place(experiment: Experiment) -> tuple[int, int, str]:
    figure = experiment.figure
    return (0, figure, "") if isinstance(figure, int) else (1, 0, figure) if figure else (2, 0, experiment.name)


def panels(experiment: Experiment) -> list[tuple[str, str | None]]:
    """(metric, over) of each panel: `plot.panels`, else `metrics`, else what was searched for.

    `communication_s:sum` says how slaves become one number; without it there is one usual way.
    """
    named = experiment.plot.get("panels") or experiment.metrics
    if not named and experiment.source.search is not None:
        named = [f"sustainable_{experiment.source.search.axis}"]
    split = [str(item).partition(":") for item in ([named] if isinstance(named, str) else named)]
    return [(metric, over or None) for metric, _, over in split]


def needed_metrics(experiment: Experiment) -> set[str]:
    """Metrics that its figure, excerpt and verdict read."""
    if experiment.figure is not None:
        return set(FIGURE_METRICS[experiment.figure])
    return {metric for metric, _ in panels(experiment)}
