"""An experiment's YAML file: a question, the runs that answer it, and how they are drawn.

What: `load_experiment(path) -> Experiment` with its `Design`; `Axis`, `Choice`, `Search`; `KEYS`, all configuration keys with
their units.
Why: every misspelling in a file is reported in one line, with the nearest known word.
Stays out: the points of a design (`sweeps.points`), which values a run accepts (`config`), drawing (`plots/`).
"""

from __future__ import annotations

import dataclasses
import difflib
import json
import math
import os
import typing
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn

from swjoin.config.loader import apply_overrides, as_bool, load_plain
from swjoin.config.option_keys import bare
from swjoin.config.run import QueryConfig, RunConfig, StreamConfig
from swjoin.core.errors import UserError
from swjoin.core.resources import find_resource
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.sweeps.metrics import METRICS, SUSTAINABLE, is_metric
from swjoin.sweeps.presets import PRESETS

RUNNERS = ("mpi", "simulate", "local")
SATURATE = ("no", "yes", "balanced")
_LONGEST = 1000  # characters of an error message, which may quote a value
_ABOUT = ("question", "figure", "claim", "expected", "plot", "metrics")  # keys also of an experiment with `runs`
_RUNS = (
    *("base", "preset", "set", "slaves", "runner", "costs", "measured", "prefill", "repeat", "axes", "search"),
    *("profile", "saturate"),
)
_COLUMNS = frozenset(("metric", "unit", "over", "runs", "mean", "sd", "ci_low", "ci_high", "min", "max", "invalid", "failed"))
_RUN_COLUMNS = frozenset(("point", "repeat", "status", "valid", "reasons"))

Settings = tuple[tuple[str, Any], ...]  # (configuration key or `slaves`, value as written)


@dataclass(frozen=True)
class Choice:
    """One value of an axis: how tables show it, and its settings."""

    shown: Any
    settings: Settings


@dataclass(frozen=True)
class Axis:
    """An axis of a design. unit: of the values in tables: s, bytes, 1/s, or none."""

    name: str
    choices: tuple[Choice, ...]
    unit: str = ""


@dataclass(frozen=True)
class Search:
    """Bisection for the highest sustainable value of `axis` between low and high, until they differ by `precision` at most."""

    axis: str
    low: float
    high: float
    precision: float = 0.05

    @property
    def most_probes(self) -> int:
        """About how many runs it takes at most."""
        return 2 + max(0, math.ceil(math.log2(math.log(self.high / self.low) / math.log(1 + self.precision))))


@dataclass(frozen=True)
class Simulated:
    """How points are simulated, with runner `simulate`. profile: of queries, settings of short runs that measure costs, over
    those of all points. saturate: of these, whether a point is simulated at the highest rate that is sustained, and `balanced`,
    with as many of the slaves as gateways as is best."""

    costs: str = "modern"
    profile: tuple[Settings, ...] = ()
    saturate: str = "no"


@dataclass(frozen=True)
class Design:
    """The runs of an experiment: a base configuration, what is set over it, and the axes that are varied.

    name, path: of the experiment that owns the runs.
    settings: over the base, for all points. products: the axes of each cross product; all products have the same axes.
    hostfile: hosts of the ranks of every run, not of the experiment; None: as MPI finds them.
    """

    name: str
    path: Path
    base: Path = Path()
    base_plain: dict[str, Any] = field(default_factory=dict)
    preset: str = "none"
    settings: Settings = ()
    slaves: int = 1
    runner: str = "mpi"
    simulated: Simulated = Simulated()
    measured_us: int | None = None
    prefill: bool = True
    repeat: int = 1
    products: tuple[tuple[Axis, ...], ...] = ()
    search: Search | None = None
    hostfile: Path | None = None

    @property
    def time_scale(self) -> int:
        return PRESETS[self.preset]

    @property
    def axis_units(self) -> dict[str, str]:
        """Names of all axes in order, with the units of their values."""
        return {axis.name: axis.unit for axis in (self.products[0] if self.products else ())}


@dataclass(frozen=True)
class Experiment:
    """A parsed file. source: its runs, its own or those of the experiment that `runs` names. figure: number of one in the first
    paper, or paper and figure, `StreamCloud 7c`."""

    name: str
    path: Path
    question: str
    source: Design
    figure: int | str | None = None
    claim: str = ""
    expected: str = ""
    plot: dict[str, Any] = field(default_factory=dict)
    metrics: tuple[str, ...] = ()


# ---------------------------------------------------------------- configuration keys


def _walk(kind: type, prefix: str) -> Iterable[tuple[str, str]]:
    """(dotted key, unit) of everything below a section, with and without the unit in the key."""
    hints = typing.get_type_hints(kind)
    for part in dataclasses.fields(kind):
        hint, key = hints[part.name], f"{prefix}{part.name}"
        if dataclasses.is_dataclass(hint) and isinstance(hint, type):
            yield from _walk(hint, f"{key}.")
            if hint is StreamConfig:
                yield f"{key}.on", ""
        elif part.name == "queries":
            yield from _walk(QueryConfig, "join.")
            yield "join.within", "s"
        else:
            suffix, unit = next(((s, u) for s, u in _UNITS if part.name.endswith(s)), ("", ""))
            yield key, unit
            yield key.removesuffix(suffix), unit


_UNITS = (("_us", "s"), ("_bytes", "bytes"), ("_per_s", "1/s"))
KEYS: dict[str, str] = dict(_walk(RunConfig, ""))


def _nearest(word: str, known: Iterable[str]) -> str:
    names = sorted(set(known))
    near = difflib.get_close_matches(word, names, 1, 0.5)
    return f"; did you mean {near[0]}?" if near else f"; known: {', '.join(names)}"


def _flat(plain: dict[str, Any], prefix: str = "") -> Settings:
    """Nested settings with dotted keys."""
    out: list[tuple[str, Any]] = []
    for key, value in plain.items():
        if isinstance(value, dict):
            out += _flat(value, f"{prefix}{key}.")
        else:
            out.append((f"{prefix}{key}", value))
    return tuple(out)


# ---------------------------------------------------------------- parsing


class _Parser:
    """Checks and converts the parts of a file; every error names the file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def fail(self, text: str) -> NoReturn:
        raise UserError(f"{self.path}: {text if len(text) <= _LONGEST else text[:_LONGEST] + ' ...'}")

    def whole(self, name: str, value: Any, least: int = 1) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < least:
            self.fail(f"{name}: expected a whole number of at least {least}, got {value!r}")
        return value

    def choice(self, name: str, value: Any, known: Iterable[str]) -> str:
        if not isinstance(value, str) or value not in known:
            self.fail(f"{name}: {value!r} is not known{_nearest(str(value), known)}")
        return str(value)

    def mapping(self, name: str, value: Any) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(f"{name}: expected a mapping with names as keys, got {value!r}")
        return value

    def text(self, name: str, value: Any) -> str:
        if not isinstance(value, str) or not value.strip():
            self.fail(f"{name}: expected a text")
        return " ".join(value.split())

    def key(self, what: str, key: str) -> None:
        if key != "slaves" and key not in KEYS:
            self.fail(f"{what} {key}: no such configuration key{_nearest(key, [*KEYS, 'slaves'])}")

    def settings(self, what: str, plain: Any) -> Settings:
        flat = _flat(self.mapping(what, plain))
        for key, value in flat:
            self.key(f"{what}:", key)
            if key == "slaves":
                self.whole(f"{what}: slaves", value)
        return flat

    def simulated(self, plain: dict[str, Any]) -> Simulated:
        costs = self.text("costs", plain.get("costs") or "modern")
        return Simulated(costs, self.profile(plain.get("profile") or []), self.saturate(plain.get("saturate", False)))

    def profile(self, given: Any) -> tuple[Settings, ...]:
        if not isinstance(given, list) or len(given) > 2:
            self.fail(f"profile: expected the settings of one or two runs as a list, got {given!r}")
        return tuple(self.settings(f"profile {i}", part) for i, part in enumerate(given))

    def saturate(self, given: Any) -> str:
        plain = {True: "yes", False: "no"}.get(as_bool(given), given) if not isinstance(given, list | dict) else given
        return self.choice("saturate", plain, SATURATE)

    def shown(self, name: str, value: Any) -> Any:
        """A value as tables show it: seconds, bytes, numbers; text for anything else."""
        unit = KEYS.get(name, "")
        try:
            if unit == "s":
                return parse_duration_us(value, in_us=name.endswith("_us")) / 1e6
            if unit == "bytes":
                return parse_size_bytes(value, in_bytes=name.endswith("_bytes"))
        except UserError as error:
            self.fail(f"axis {name}: {error}")
        if isinstance(value, bool) or value is None or isinstance(value, (list, dict)):
            return json.dumps(value)
        return value

    def axis(self, name: str, values: Any) -> Axis:
        if name in _COLUMNS | _RUN_COLUMNS:
            self.fail(f"axis {name}: a table has a column of that name; take another")
        if isinstance(values, dict):
            if name == "slaves" or name in KEYS:
                self.fail(f"axis {name}: labels cannot have the name of a configuration key; give a list, or another name")
            labels = self.mapping(f"axis {name}", values)
            choices = [Choice(label, self.settings(f"axis {name}: {label}", part)) for label, part in labels.items()]
            unit = ""
        else:
            self.key("axis", name)
            if not isinstance(values, list):
                self.fail(f"axis {name}: expected a list of values, or labels with settings, got {values!r}")
            if name == "slaves":
                values = [self.whole("axis slaves", value) for value in values]
            choices = [Choice(self.shown(name, value), ((name, value),)) for value in values]
            unit = KEYS.get(name, "")
        if not choices:
            self.fail(f"axis {name}: has no values")
        return Axis(name, tuple(choices), unit)

    def axes(self, plain: Any) -> tuple[tuple[Axis, ...], ...]:
        parts = plain if isinstance(plain, list) else [plain]
        products: list[tuple[Axis, ...]] = []
        for part in parts or [{}]:
            part = self.mapping("axes", part)
            if products and set(part) != {axis.name for axis in products[0]}:
                names = ", ".join(axis.name for axis in products[0])
                self.fail(f"axes: every mapping in the list must have the same axes ({names})")
            order = [axis.name for axis in products[0]] if products else list(part)
            products.append(tuple(self.axis(name, part[name]) for name in order))
        return tuple(products)

    def search(self, plain: Any, axes: Iterable[str]) -> Search:
        data = self.mapping("search", plain)
        known = [part.name for part in dataclasses.fields(Search)]
        for name in data:
            if name not in known:
                self.fail(f"search.{name}: unknown key{_nearest(name, known)}")
        for name in ("axis", "low", "high"):
            if name not in data:
                self.fail(f"search: {name} is missing")
        self.key("search: axis", str(data["axis"]))
        if data["axis"] == "slaves" or data["axis"] in axes:
            self.fail(
                f"search: axis {data['axis']} cannot be searched, it is given by "
                + ("slaves" if data["axis"] == "slaves" else "axes")
            )
        for name in ("low", "high", "precision"):
            value = data.get(name, 1)
            if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
                self.fail(f"search: {name} must be a number above 0, got {value!r}")
        if data["low"] >= data["high"]:
            self.fail(f"search: low ({data['low']}) must be below high ({data['high']})")
        if data["high"] / data["low"] > 1e12 or data.get("precision", 1) < 1e-6:
            self.fail("search: such a range, to such a precision, would take hundreds of runs")
        return Search(**data)


def _overridden(plain: dict[str, Any], overrides: Iterable[str], parser: _Parser) -> dict[str, Any]:
    """`--set`: a key of the experiment (`measured=2s`) changes it, any other goes to the end of its `set`."""
    known = (*_ABOUT, *_RUNS, "runs")
    own = [item for item in overrides if item.partition("=")[0].split(".")[0] in known]
    plain = apply_overrides(plain, own) if own else plain
    rest = [item for item in overrides if item not in own]
    settings: dict[str, Any] = {}
    for key, value in (*_flat(parser.mapping("set", plain.get("set") or {})), *_flat(apply_overrides({}, rest))):
        settings = {k: v for k, v in settings.items() if bare(k) != bare(key)} | {key: value}
    parts = plain.get("axes") if isinstance(plain.get("axes"), list) else [plain.get("axes")]
    axes = {bare(str(name)) for part in parts or [] if isinstance(part, dict) for name in part}
    for item in rest:
        key = item.partition("=")[0]
        if bare(key) in axes:
            raise UserError(f"--set {item}: {key} is an axis of {parser.path}; give --set 'axes={{...}}' to change its values")
    return {**plain, "set": settings} if rest else plain


def load_experiment(path: Path, preset: str | None = None, overrides: Iterable[str] = ()) -> Experiment:
    """Parse a file. preset: replaces the file's. overrides: of `--set`. UserError names file, key and the nearest known key."""
    parser, overrides = _Parser(path), list(overrides)
    plain = load_plain(path)
    draws = "runs" in plain
    if "question" not in plain and {"join", "queries"} & plain.keys():
        parser.fail(f"is the configuration of a run, not an experiment; run it with: swjoin run {path}")
    known = (*_ABOUT, "runs") if draws else (*_ABOUT, *_RUNS)
    for name in plain:
        if name not in known:
            if draws and name in _RUNS:
                parser.fail(f"{name}: cannot stand beside runs, the runs are those of {plain['runs']}")
            parser.fail(f"{name}: unknown key{_nearest(str(name), known)}")
    about = _about(parser, plain)
    if not draws:
        source = _design(parser, _overridden(plain, overrides, parser), preset)
    else:
        other = path.parent / parser.text("runs", plain["runs"])
        if "runs" in load_plain(other):
            parser.fail(f"runs: {other.name} draws from another experiment itself; name that one")
        source = load_experiment(other, preset, overrides).source
    experiment = Experiment(**about, source=source)
    _check_plot(parser, experiment)
    return experiment


def _about(parser: _Parser, plain: dict[str, Any]) -> dict[str, Any]:
    if "question" not in plain:
        parser.fail("question is missing: what does the experiment ask?")
    metrics = plain.get("metrics") or []
    if not isinstance(metrics, list):
        parser.fail(f"metrics: expected a list, got {metrics!r}")
    return {
        "name": parser.path.stem,
        "path": parser.path,
        "question": parser.text("question", plain["question"]),
        "figure": _figure(parser, plain.get("figure")),
        "claim": parser.text("claim", plain["claim"]) if "claim" in plain else "",
        "expected": parser.text("expected", plain["expected"]) if "expected" in plain else "",
        "plot": parser.mapping("plot", plain.get("plot") or {}),
        "metrics": tuple(str(m) for m in metrics),
    }


def _figure(parser: _Parser, given: Any) -> int | str | None:
    return given if given is None else parser.text("figure", given) if isinstance(given, str) else parser.whole("figure", given)


def _base(parser: _Parser, given: Any) -> tuple[Path, dict[str, Any]]:
    """The file of the base, and its keys; they may stand in the experiment's own file."""
    if isinstance(given, dict):
        return parser.path, given
    name = Path(parser.text("base", given))
    beside = parser.path.resolve().parent.parent / name
    # unlike Path.exists, os.path.exists accepts names that are too long
    base = beside if os.path.exists(beside) else find_resource(name)
    return base, load_plain(base)


def _design(parser: _Parser, plain: dict[str, Any], preset: str | None) -> Design:
    if "base" not in plain:
        parser.fail("base is missing: the configuration that the axes vary, such as mpi_configs/paper.yaml")
    base, base_plain = _base(parser, plain["base"])
    products = parser.axes(plain.get("axes") or {})
    axes = [axis.name for axis in products[0]]
    try:
        measured_us = None if plain.get("measured") is None else parse_duration_us(plain["measured"])
    except UserError as error:
        parser.fail(f"measured: {error}")
    if measured_us is not None and measured_us <= 0:
        parser.fail("measured: must be above 0")
    prefill = as_bool(plain.get("prefill", True))
    if not isinstance(prefill, bool):
        parser.fail(f"prefill: expected true or false, got {plain['prefill']!r}; set measure.prefill says how much")
    return Design(
        name=parser.path.stem,
        path=parser.path,
        base=base,
        base_plain=base_plain,
        preset=parser.choice("preset", preset or plain.get("preset") or "none", PRESETS),
        settings=parser.settings("set", plain.get("set") or {}),
        slaves=parser.whole("slaves", plain.get("slaves", 1)),
        runner=parser.choice("runner", plain.get("runner") or "mpi", RUNNERS),
        simulated=parser.simulated(plain),
        measured_us=measured_us,
        prefill=prefill,
        repeat=parser.whole("repeat", plain.get("repeat", 1)),
        products=products,
        search=parser.search(plain["search"], axes) if plain.get("search") else None,
    )


def _check_plot(parser: _Parser, experiment: Experiment) -> None:
    panels = experiment.plot.get("panels") or []
    if not isinstance(panels, (str, list)):
        parser.fail(f"plot.panels: expected a metric or a list of them, got {panels!r}")
    for where, names in (("metrics", experiment.metrics), ("plot.panels", [panels] if isinstance(panels, str) else panels)):
        for name in names:
            metric, _, over = str(name).partition(":")
            if not is_metric(metric) or (over and metric in METRICS and over not in METRICS[metric].over):
                if is_metric(metric):
                    parser.fail(f"{where}: {name}: slaves become one number by {' or '.join(METRICS[metric].over)}")
                searched = experiment.source.search
                known = [*METRICS, *([SUSTAINABLE + searched.axis] if searched else [])]
                parser.fail(f"{where}: {name!r} is no metric{_nearest(metric, known)}")
    axes = experiment.source.axis_units
    for part in ("x", "series"):
        name = experiment.plot.get(part)
        if name is not None and (not isinstance(name, str) or name not in axes):
            parser.fail(f"plot.{part}: {name!r} is no axis of {experiment.source.path.name}{_nearest(str(name), axes)}")
