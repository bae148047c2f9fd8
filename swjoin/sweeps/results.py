"""Results of a sweep, read from its directory: finished runs and searches.

What: `read_sweep(directory) -> Sweep` of `Run` and `Found`; `is_sweep`.
Why: names, axes and small files are read and checked before an engine starts; an error is one line.
Stays out: metrics and tables (`sweeps.aggregate`), writing (`sweeps.store`).
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from swjoin.core.errors import UserError
from swjoin.sweeps.metrics import AT_LEAST, BELOW
from swjoin.sweeps.store import SweepStore, read_json

Axes = tuple[Any, ...]  # one value per axis of the experiment, in its order
_DONE = ("axes", "slaves", "repeat", "commit", "status", "valid")  # required keys of done.json


@dataclass(frozen=True)
class Run:
    """One run of a point. done: its done.json. report: its run.json, empty for a failed run."""

    name: str
    axes: Axes
    done: Mapping[str, Any]
    report: Mapping[str, Any]
    metrics: Path | None

    @property
    def ended_well(self) -> bool:
        return bool(self.done["status"] == "done")

    @property
    def counts(self) -> bool:
        return self.ended_well and bool(self.done["valid"])

    @property
    def is_probe(self) -> bool:
        return self.done.get("searched") is not None

    @property
    def query_ranks(self) -> float | None:
        """Slave ranks of a real run of a query, each of which may have several rows in an epoch; None of other runs."""
        real = "stages" in self.report and not self.report.get("simulated")
        return float(self.done["slaves"]) if real else None

    @property
    def phase_s(self) -> tuple[float, float | None]:
        """The measured interval; its end is None where run.json has none."""
        measured = self.report.get("measured") or {}
        return float(measured.get("from_s") or 0.0), measured.get("to_s")


@dataclass(frozen=True)
class Found:
    """Result of one search. value: None when it failed, or is invalid: the machine was overloaded, and nothing sustained.

    censored: BELOW when the lower end was not sustained; AT_LEAST when the upper end was, or when the machine was overloaded
    above the value. The value is that bound.
    """

    axes: Axes
    value: float | None
    invalid: bool
    censored: str = ""


@dataclass(frozen=True)
class Sweep:
    """All results of a sweep. searched: the axis of its search."""

    directory: Path
    axes: tuple[str, ...]
    runs: tuple[Run, ...]
    searched: str | None = None
    found: tuple[Found, ...] = ()

    def order(self) -> list[Axes]:
        """The points of the table, in order: numbers by size, then labels."""
        named = {one.axes for one in (self.found if self.searched else [r for r in self.runs if not r.is_probe])}
        return sorted(named, key=lambda axes: [(isinstance(v, str), v is not None, v) for v in axes])


def is_sweep(directory: Path) -> bool:
    return os.path.isfile(directory / "experiment.json")


def _text(value: Any) -> str:
    """A value of an axis with labels, as text."""
    return value if isinstance(value, str) else json.dumps(value)


def _axis_values(values: Sequence[Any]) -> list[Any]:
    """Values of one type: whole numbers, otherwise numbers, otherwise text; None stays."""
    known = [v for v in values if v is not None]
    if any(isinstance(v, bool) or not isinstance(v, (int, float)) for v in known):
        return [None if v is None else _text(v) for v in values]
    whole = all(isinstance(v, int) for v in known)
    return [v if v is None or whole else float(v) for v in values]


def _typed(axes: Sequence[str], raw: Sequence[Mapping[str, Any]]) -> list[Axes]:
    columns = [_axis_values([one.get(axis) for one in raw]) for axis in axes]
    return list(zip(*columns, strict=True)) if columns else [()] * len(raw)


def read_sweep(directory: Path) -> Sweep:
    """Read all results except metrics. UserError when there is nothing to aggregate."""
    info = read_json(directory / "experiment.json")
    if info is None or not isinstance(info.get("axes"), list):
        raise UserError(f"{directory / 'experiment.json'}: does not describe a sweep; is {directory} the directory of one?")
    ended = SweepStore(directory).ended()
    if not ended:
        raise UserError(f"{directory}: no run of this sweep has ended; `swjoin sweep` it first")
    for name, done in ended:
        for key in _DONE:
            if key not in done:
                raise UserError(
                    f"{directory / 'points' / name / 'done.json'}: {key} is missing; remove the point and sweep again"
                )
    commits = sorted({str(done["commit"]) for _, done in ended})
    if len(commits) > 1:
        mixed = ", ".join(commits)
        raise UserError(
            f"{directory}: results of different commits ({mixed}) make no table; sweep with --fresh or another --out"
        )
    axes = tuple(str(axis) for axis in info["axes"])
    search = info.get("search")
    searches = _read_searches(directory) if search else []
    if search and not searches:
        raise UserError(f"{directory}: no search of this sweep has ended; `swjoin sweep` it to the end")
    typed = _typed(axes, [d["axes"] for d in (*(done for _, done in ended), *searches)])
    runs = [_read_run(directory / "points" / name, done, own) for (name, done), own in zip(ended, typed, strict=False)]
    found = [_found(s, own) for s, own in zip(searches, typed[len(ended) :], strict=True)]
    return Sweep(directory, axes, tuple(runs), str(search["axis"]) if search else None, tuple(found))


def _read_searches(directory: Path) -> list[dict[str, Any]]:
    """Finished searches."""
    read = [read_json(path) for path in sorted((directory / "searches").glob("*.json"))]
    return [s for s in read if s is not None and "axes" in s and s.get("status") in ("done", "failed", "invalid")]


def _found(search: Mapping[str, Any], axes: Axes) -> Found:
    limited = search["status"] == "invalid" and search.get("found") is not None
    if search["status"] != "done" and not limited:
        return Found(axes, None, search["status"] == "invalid")
    if search.get("found") is None:
        return Found(axes, float(search["low"]), False, BELOW)
    value = float(search["found"])
    return Found(axes, value, False, AT_LEAST if limited or value >= float(search["high"]) else "")


def _read_run(folder: Path, done: dict[str, Any], axes: Axes) -> Run:
    report, metrics = read_json(folder / "run.json"), folder / "metrics" / "slaves.parquet"
    run = Run(folder.name, axes, done, report or {}, metrics if metrics.is_file() and done["status"] == "done" else None)
    for path, there in ((folder / "run.json", report), (metrics, run.metrics)):
        if run.counts and there is None:
            raise UserError(
                f"{path}: is missing or damaged, but done.json says that the run has ended; remove the point, sweep again"
            )
    return run
