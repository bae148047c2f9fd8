"""From an experiment to its runs.

What: `load_experiment`, `points(experiment) -> [Point]`, `probe_at` (a point of a search), `needs_calibration`,
`design_digest`.
Why: everything that can be wrong with a sweep of an hour is found before its first run.
Stays out: the YAML file (`sweeps.experiment`), faster presets (`sweeps.presets`), running (`sweeps.runner`).

Values of axes are in the *paper's* scale. In a point's `axes` durations are seconds and sizes bytes; labels and lists are text.
"""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from swjoin.config.loader import apply_overrides, bare, config_from_plain
from swjoin.config.run import RunConfig, digest
from swjoin.core.errors import UserError
from swjoin.sweeps.experiment import KEYS, Experiment, Settings, load_experiment
from swjoin.sweeps.presets import scaled

__all__ = ["Experiment", "Point", "design_digest", "load_experiment", "needs_calibration", "points", "probe_at"]


@dataclass(frozen=True)
class Point:
    """One run, but for its repeat. searched: the value that a search tries here."""

    axes: dict[str, Any]
    slaves: int
    config: RunConfig
    settings: Settings
    searched: float | None = None

    def repeated(self, repeat: int) -> RunConfig:
        """The configuration of the repeat-th run (1, 2, ...), which has a seed of its own."""
        return dataclasses.replace(self.config, seed=self.config.seed + repeat - 1)

    def name(self, repeat: int) -> str:
        """Of its directory."""
        return f"{digest(self.repeated(repeat))}-s{self.slaves}-r{repeat}"

    def text(self) -> str:
        shown = dict(self.axes)
        shown.setdefault("slaves", self.slaves)
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _lay(plain: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Settings over a parsed configuration."""
    import yaml

    def text(value: Any) -> str:
        return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf))

    return apply_overrides(plain, [f"{key}={text(value)}" for key, value in settings])


def _combinations(experiment: Experiment) -> Iterator[tuple[dict[str, Any], Settings]]:
    """(axes as shown, settings) of every point of the axes, once."""
    seen: set[str] = set()
    for product in experiment.products:
        for choices in itertools.product(*(axis.choices for axis in product)):
            axes = {axis.name: choice.shown for axis, choice in zip(product, choices, strict=True)}
            if (key := json.dumps(axes, sort_keys=True)) not in seen:
                seen.add(key)
                yield axes, tuple(setting for choice in choices for setting in choice.settings)


def needs_calibration(experiment: Experiment) -> bool:
    """Whether some point does not say how fast its nodes are, although its preset imitates the paper's."""
    source = experiment.source
    if source.preset == "none" or source.runner == "simulate":
        return False
    given = (_lay(source.base_plain, _configured(source, settings)).get("nodes") for _, settings in _combinations(source))
    return not all(isinstance(nodes, dict) and "node_speed" in nodes for nodes in given)


def _configured(experiment: Experiment, settings: Settings) -> Settings:
    """What goes over the base, in order; the number of slaves is not of the configuration."""
    return tuple((key, value) for key, value in (*experiment.settings, *settings) if key != "slaves")


def _measured(config: RunConfig, experiment: Experiment, own: set[str]) -> RunConfig:
    """History as long as the windows, then the measured phase, of which the first two distribution epochs do not count."""
    assert experiment.measured_us is not None
    t_d_us = config.cluster.distribution_epoch_us
    if t_d_us == 0:
        raise UserError("measured: needs a cluster.distribution_epoch above 0")
    if "workload.duration" in own:
        raise UserError("measured and workload.duration: give one of them")
    prefill_us = config.measure.prefill_us
    if "measure.prefill" not in own:
        prefill_us = -(-config.query.bounds.retention_us // t_d_us) * t_d_us if experiment.prefill else 0
    warm_up_us = config.measure.warm_up_us if "measure.warm_up" in own else 2 * t_d_us
    if warm_up_us >= experiment.measured_us:
        raise UserError(f"measured: {experiment.measured_us} us is not longer than the warm-up of {warm_up_us} us")
    return dataclasses.replace(
        config,
        measure=dataclasses.replace(config.measure, prefill_us=prefill_us, warm_up_us=warm_up_us),
        workload=dataclasses.replace(config.workload, duration_us=prefill_us + experiment.measured_us),
    )


def _build(experiment: Experiment, settings: Settings, node_speed: float | None) -> tuple[int, RunConfig]:
    """(slaves, configuration to be executed) of some settings."""
    layers = (*experiment.settings, *settings)
    slaves = next((value for key, value in reversed(layers) if key == "slaves"), experiment.slaves)
    own, laid = {bare(key) for key, _ in layers}, _configured(experiment, settings)
    if experiment.measured_us is not None and "measure.prefill" not in own:
        laid = (*laid, ("measure.prefill", 0))  # the base's may not fit another distribution epoch
    plain = _lay(experiment.base_plain, laid)
    config = config_from_plain(plain)
    if experiment.measured_us is not None:
        config = _measured(config, experiment, own)
    if experiment.runner == "simulate" and config.measure.prefill_us:
        raise UserError("runner simulate: a simulated run has no history to fill its windows with; write prefill: false")
    if experiment.search is not None and config.pace != "realtime":
        raise UserError("search: asks for a delay that stays flat, which needs pace realtime")
    if experiment.time_scale != 1 and experiment.runner == "simulate":
        raise UserError("runner simulate: virtual time needs no faster preset; take paper or none")
    if experiment.preset != "none":
        nodes = plain.get("nodes")
        given = isinstance(nodes, dict) and "node_speed" in nodes
        config = scaled(config, experiment.time_scale, None if given else node_speed or 1.0)
    config.check_slaves(slaves)
    return slaves, config


def probe_at(experiment: Experiment, point: Point, value: float, node_speed: float | None) -> Point:
    """The point of a search at one value of the axis that is searched."""
    assert experiment.search is not None
    try:
        slaves, config = _build(experiment, (*point.settings, (experiment.search.axis, value)), node_speed)
    except UserError as error:
        raise UserError(f"{experiment.path}: {experiment.search.axis}={value}: {error}") from None
    return Point(point.axes, slaves, config, point.settings, value)


def points(experiment: Experiment, node_speed: float | None = None) -> list[Point]:
    """All points of the axes in order, each built and checked. node_speed: from the calibration, as executed.

    With a search they are at its low end, and its high end is checked as well. UserError names the axes of the point.
    """
    experiment = experiment.source
    out: list[Point] = []
    named: dict[str, str] = {}
    for axes, settings in _combinations(experiment):
        search = experiment.search
        where = " ".join(f"{name}={_short(value)}" for name, value in axes.items())
        try:
            for value in [None] if search is None else [search.high, search.low]:
                tried = () if search is None else ((search.axis, value),)
                slaves, config = _build(experiment, (*settings, *tried), node_speed)
        except UserError as error:
            raise UserError(f"{experiment.path}: {f'{where}: ' if where else ''}{error}") from None
        point = Point(axes, slaves, config, settings, None if search is None else search.low)
        if (other := named.setdefault(point.name(1), where)) != where:
            raise UserError(f"{experiment.path}: {where} and {other} are the same run; leave one out")
        out.append(point)
    return out


def design_digest(experiment: Experiment) -> str:
    """Identity of everything but the values of axes and the number of repeats: 16 hex digits."""
    source = experiment.source
    labels = {
        axis.name: {str(c.shown): list(c.settings) for c in axis.choices} if axis.name not in {*KEYS, "slaves"} else None
        for product in source.products
        for axis in product
    }
    plain = {
        "base": source.base_plain,
        "settings": source.settings,
        "preset": source.preset,
        "runner": source.runner,
        "costs": source.costs if source.runner == "simulate" else None,
        "measured_us": source.measured_us,
        "prefill": source.prefill,
        "slaves": source.slaves,
        "axes": labels,
        "search": None if source.search is None else dataclasses.asdict(source.search),
    }
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
