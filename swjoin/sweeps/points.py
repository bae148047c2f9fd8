"""The points of an experiment: one configuration per run.

What: `load_experiment`, `points(experiment) -> [Point]`, `probe_at` (a point of a search), `profile_points` (the short runs
that measure the costs of a simulated query), `needs_calibration`, `design_digest`.
Why: every error of a sweep that may take hours is found before its first run.
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
from dataclasses import dataclass, field
from typing import Any

from swjoin.config.loader import apply_overrides, config_from_plain
from swjoin.config.option_keys import bare
from swjoin.config.run import RunConfig, digest, to_plain
from swjoin.core.errors import UserError
from swjoin.frontends.configured import has_query, job_of_query
from swjoin.sweeps.experiment import KEYS, Design, Experiment, Settings, Simulated, load_experiment
from swjoin.sweeps.presets import scaled

__all__ = [
    "Experiment",
    "Point",
    "design_digest",
    "load_experiment",
    "needs_calibration",
    "points",
    "probe_at",
    "profile_points",
]


@dataclass(frozen=True)
class Point:
    """The runs of one combination of axis values, one per repeat. searched: the value that a search probes here. query: keys of
    a query's configuration in the place of a join's; none of a join."""

    axes: dict[str, Any]
    slaves: int
    config: RunConfig
    settings: Settings
    searched: float | None = None
    query: dict[str, Any] = field(default_factory=dict)

    def repeated(self, repeat: int) -> RunConfig:
        """The configuration of repeat 1, 2, ..., each with its own seed."""
        return dataclasses.replace(self.config, seed=self.config.seed + repeat - 1)

    def plain(self, repeat: int) -> dict[str, Any]:
        """The configuration of a repeat, to be written as YAML."""
        plain: dict[str, Any] = to_plain(self.repeated(repeat))
        if self.query:
            plain = {key: value for key, value in plain.items() if key not in ("left", "right")} | self.query
        return plain

    def name(self, repeat: int) -> str:
        """Name of a repeat's directory."""
        return f"{digest(self.repeated(repeat))}-s{self.slaves}-r{repeat}"

    def text(self) -> str:
        shown = dict(self.axes)
        shown.setdefault("slaves", self.slaves)
        return " ".join(f"{name}={_short(value)}" for name, value in shown.items())


def _short(value: Any) -> str:
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def _lay(plain: dict[str, Any], settings: Settings) -> dict[str, Any]:
    """Apply settings to a parsed configuration."""
    import yaml

    def text(value: Any) -> str:
        return str(yaml.safe_dump(value, default_flow_style=True, width=math.inf))

    return apply_overrides(plain, [f"{key}={text(value)}" for key, value in settings])


def _combinations(design: Design) -> Iterator[tuple[dict[str, Any], Settings]]:
    """(axes as shown, settings) of every combination of axis values, without duplicates."""
    seen: set[str] = set()
    for product in design.products:
        for choices in itertools.product(*(axis.choices for axis in product)):
            axes = {axis.name: choice.shown for axis, choice in zip(product, choices, strict=True)}
            if (key := json.dumps(axes, sort_keys=True)) not in seen:
                seen.add(key)
                yield axes, tuple(setting for choice in choices for setting in choice.settings)


def needs_calibration(experiment: Experiment) -> bool:
    """Whether the preset imitates the paper's nodes and some point does not set how fast they are."""
    source = experiment.source
    if source.preset == "none" or source.runner == "simulate":
        return False
    given = (_lay(source.base_plain, _configured(source, settings)).get("nodes") for _, settings in _combinations(source))
    return not all(isinstance(nodes, dict) and "node_speed" in nodes for nodes in given)


def _configured(design: Design, settings: Settings) -> Settings:
    """Settings over the base, in order, without the number of slaves, which is not part of a configuration."""
    return tuple((key, value) for key, value in (*design.settings, *settings) if key != "slaves")


def _measured(config: RunConfig, design: Design, own: set[str]) -> RunConfig:
    """Prefill as long as the windows, then the measured phase, whose first two distribution epochs are warm-up."""
    assert design.measured_us is not None
    t_d_us = config.cluster.distribution_epoch_us
    if t_d_us == 0:
        raise UserError("measured: needs a cluster.distribution_epoch above 0")
    if "workload.duration" in own:
        raise UserError("measured and workload.duration: give one of them")
    prefill_us = config.measure.prefill_us
    if "measure.prefill" not in own:
        prefill_us = -(-config.query.bounds.retention_us // t_d_us) * t_d_us if design.prefill else 0
    warm_up_us = config.measure.warm_up_us if "measure.warm_up" in own else 2 * t_d_us
    if warm_up_us >= design.measured_us:
        raise UserError(f"measured: {design.measured_us} us is not longer than the warm-up of {warm_up_us} us")
    return dataclasses.replace(
        config,
        measure=dataclasses.replace(config.measure, prefill_us=prefill_us, warm_up_us=warm_up_us),
        workload=dataclasses.replace(config.workload, duration_us=prefill_us + design.measured_us),
    )


def _build(design: Design, settings: Settings, node_speed: float | None) -> tuple[int, RunConfig, dict[str, Any]]:
    """(slaves, configuration to run, `Point.query`) of some settings."""
    layers = (*design.settings, *settings)
    slaves = next((value for key, value in reversed(layers) if key == "slaves"), design.slaves)
    own, laid = {bare(key) for key, _ in layers}, _configured(design, settings)
    if design.measured_us is not None and "measure.prefill" not in own:
        laid = (*laid, ("measure.prefill", 0))  # the base's may not fit another distribution epoch
    plain = _lay(design.base_plain, laid)
    query: dict[str, Any] = {key: plain.get(key) for key in ("queries", "inputs")} if has_query(plain) else {}
    config = job_of_query(plain, "", "sweep").config if query else config_from_plain(plain)
    if design.measured_us is not None:
        config = _measured(config, design, own)
    if design.runner == "simulate" and config.measure.prefill_us:
        raise UserError("runner simulate: a simulated run has no prefill; write prefill: false")
    if design.runner == "simulate" and bool(query) != bool(design.simulated.profile):
        remedy = "a query needs profile: the settings of one or two short runs of it" if query else "profile: is for queries"
        raise UserError(f"runner simulate: {remedy}")
    if design.simulated.saturate != "no" and (design.runner != "simulate" or not query):
        raise UserError("saturate: is for simulated queries; real runs search: for the highest rate")
    if design.search is not None and config.pace != "realtime":
        raise UserError("search: asks for a delay that stays flat, which needs pace realtime")
    if design.time_scale != 1 and design.runner == "simulate":
        raise UserError("runner simulate: virtual time needs no faster preset; take paper or none")
    if design.preset != "none":
        nodes = plain.get("nodes")
        given = isinstance(nodes, dict) and "node_speed" in nodes
        config = scaled(config, design.time_scale, None if given else node_speed or 1.0)
    config.check_slaves(slaves)
    return slaves, config, query


def probe_at(design: Design, point: Point, value: float, node_speed: float | None) -> Point:
    """The point of a search at one value of the searched axis."""
    assert design.search is not None
    try:
        slaves, config, query = _build(design, (*point.settings, (design.search.axis, value)), node_speed)
    except UserError as error:
        raise UserError(f"{design.path}: {design.search.axis}={value}: {error}") from None
    return Point(point.axes, slaves, config, point.settings, value, query)


def profile_points(design: Design, point: Point) -> list[Point]:
    """The short runs that tell what the query of a simulated point costs: with the settings of all points and their own, on
    full cores, as fast as they can. Stages are those of the point's strategy; `query` and `subquery` have the same."""
    strategy = "operator" if point.config.cluster.strategy == "operator" else "query"
    real = dataclasses.replace(design, runner="local", measured_us=None, search=None, simulated=Simulated())
    out = []
    for i, own in enumerate(design.simulated.profile):
        settings = (("slaves", 1), *own, ("pace", "asap"), ("cluster.strategy", strategy), ("nodes.node_speed", 1.0))
        try:
            slaves, config, query = _build(real, settings, None)
        except UserError as error:
            raise UserError(f"{design.path}: profile {i}: {error}") from None
        out.append(Point({}, slaves, config, settings, None, query))
    return out


def points(experiment: Experiment, node_speed: float | None = None) -> list[Point]:
    """All points in order of the axes, each checked. node_speed: of the calibration.

    With a search the points are at its low end, and its high end is checked too. UserError names the axes of the point.
    """
    design = experiment.source
    out: list[Point] = []
    named: dict[str, str] = {}
    for axes, settings in _combinations(design):
        search = design.search
        where = " ".join(f"{name}={_short(value)}" for name, value in axes.items())
        try:
            for value in [None] if search is None else [search.high, search.low]:
                tried = () if search is None else ((search.axis, value),)
                slaves, config, query = _build(design, (*settings, *tried), node_speed)
        except UserError as error:
            raise UserError(f"{design.path}: {f'{where}: ' if where else ''}{error}") from None
        point = Point(axes, slaves, config, settings, None if search is None else search.low, query)
        profile_points(design, point)
        if (other := named.setdefault(point.name(1), where)) != where:
            raise UserError(f"{design.path}: {where} and {other} are the same run; leave one out")
        out.append(point)
    return out


def design_digest(experiment: Experiment) -> str:
    """16 hex digits that identify a design without the values of its axes and the number of repeats."""
    source, simulated = experiment.source, experiment.source.simulated
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
        "costs": source.simulated.costs if source.runner == "simulate" else None,
        "measured_us": source.measured_us,
        "prefill": source.prefill,
        **({"profile": simulated.profile, "saturate": simulated.saturate} if simulated.profile else {}),
        "slaves": source.slaves,
        "axes": labels,
        "search": None if source.search is None else dataclasses.asdict(source.search),
    }
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"), default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:16]
