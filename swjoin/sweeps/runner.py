"""Runs the points of an experiment one after the other: they own the machine.

What: `sweep(experiment, directory) -> Summary`, `point_command` (what starts a run), `estimate_s`, `Reporter`.
Why: one crashed or disturbed run must not cost the others; whoever interrupts a sweep finds all that had ended.
Stays out: what a point is (`sweeps.points`), what lies where (`sweeps.store`), what a person sees (`cli.sweep`).

All points of the first repeat, then of the second: an interrupted sweep has the whole picture, less often. A failed run is
recorded; an invalid one (the machine was overloaded) is tried once more. The next call tries both again.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from swjoin.config.run import RunConfig, digest, to_plain
from swjoin.core.errors import RunFailed, SwjoinError, UserError
from swjoin.monitor.sustainability import read_rows, sustained
from swjoin.sweeps.experiment import Experiment
from swjoin.sweeps.node_speed import calibrated_speed
from swjoin.sweeps.points import Point, design_digest, needs_calibration, points, probe_at
from swjoin.sweeps.run_process import run_to_end
from swjoin.sweeps.search import Found, bisect
from swjoin.sweeps.store import SweepStore, commit, describe, read_json

STARTUP_S = 4.0  # interpreters, kernels, MPI, and the end
HISTORY_TUPLES_PER_S = 400_000  # both streams, at full speed on a small machine
SIMULATED_S = 20.0


class Reporter(Protocol):
    """Who is told how a sweep goes."""

    def begin(self, total: int, ended: int, estimate_s: float) -> None: ...
    def started(self, text: str) -> None: ...
    def line(self, text: str) -> None: ...
    def ended(self, text: str, remaining_s: float) -> None: ...


@dataclass
class Summary:
    """How a sweep went. failures: (point, why)."""

    done: int = 0
    already: int = 0
    invalid: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    wall_s: float = 0.0


class SweepInterruptedError(SwjoinError):
    """A signal ended the sweep; what had ended stays."""


# ---------------------------------------------------------------- what a run is and takes


def point_command(experiment: Experiment, config: Path, slaves: int, out: Path) -> list[str]:
    """The command line of one run."""
    start = [sys.executable, "-m", "swjoin"]
    match experiment.runner:
        case "simulate":
            return [*start, "simulate", str(config), "--slaves", str(slaves), "--costs", experiment.costs, "--out", str(out)]
        case "local":
            return [*start, "run", str(config), "--threads", str(slaves), "--out", str(out)]
        case _:
            return [*start, "run", str(config), "-n", str(slaves + 2), "--out", str(out)]


def _tuples(config: RunConfig, us: int) -> float:
    """Of both streams in so much time."""
    return 2 * config.workload.rate_per_s * us / 1e6


def estimate_s(config: RunConfig, runner: str) -> float:
    """About how long a run takes, with its start."""
    if runner == "simulate":
        return SIMULATED_S
    history_us, whole_us = config.measure.prefill_us, config.workload.duration_us
    if config.pace != "realtime":
        return STARTUP_S + _tuples(config, whole_us) / HISTORY_TUPLES_PER_S
    return STARTUP_S + _tuples(config, history_us) / HISTORY_TUPLES_PER_S + (whole_us - history_us) / 1e6


def limit_s(config: RunConfig, runner: str) -> float:
    """When a run is given up: generous, because an overloaded one takes long."""
    if runner == "simulate":
        return 1800.0
    history_us, whole_us = config.measure.prefill_us, config.workload.duration_us
    paced_us = whole_us - history_us if config.pace == "realtime" else 0
    return 120 + 6 * paced_us / 1e6 + _tuples(config, whole_us - paced_us) / (HISTORY_TUPLES_PER_S / 10)


def plan_s(experiment: Experiment, planned: list[Point]) -> float:
    """About how long one repeat of all points takes."""
    runs = experiment.search.most_probes - 1 if experiment.search is not None else 1
    return runs * sum(estimate_s(_typical(experiment, point), experiment.runner) for point in planned)


def _typical(experiment: Experiment, point: Point) -> RunConfig:
    """The point's configuration; of a search, in the middle."""
    search = experiment.search
    if search is None:
        return point.config
    middle = (search.low * search.high) ** 0.5
    try:
        return probe_at(experiment, point, middle if isinstance(search.low, float) else round(middle), None).config
    except UserError:
        return point.config


# ---------------------------------------------------------------- one run


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM become `SweepInterruptedError`, so that the run in progress is ended too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, _frame: FrameType | None) -> None:
        error = SweepInterruptedError(f"stopped by {signal.Signals(number).name}; the same command goes on from here")
        error.exit_code = 128 + number
        raise error

    before = {number: signal.signal(number, stop) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _execute(experiment: Experiment, store: SweepStore, point: Point, repeat: int) -> dict[str, Any]:
    """One run in a directory of its own; its done.json."""
    import yaml

    config, name = point.repeated(repeat), point.name(repeat)
    folder = store.renew(name)
    (folder / "config.yaml").write_text(yaml.safe_dump(to_plain(config), sort_keys=False))
    began = time.monotonic()
    command = point_command(experiment, folder / "config.yaml", point.slaves, folder)
    failure = run_to_end(command, folder / "stderr.txt", limit_s(config, experiment.runner))
    report = read_json(folder / "run.json") or {}
    if failure is None:
        if not report:
            failure = "left no run.json"
        elif not report.get("complete") and not report.get("simulated"):
            failure = str(report.get("failure") or "is not complete")
        elif report.get("config_digest", digest(config)) != digest(config):
            failure = f"ran another configuration ({report['config_digest']}) than it was given"
    machine = report.get("machine") or {}
    overloaded = failure is None and bool(machine.get("overloaded"))
    done = {
        "config_digest": digest(config),
        "slaves": point.slaves,
        "repeat": repeat,
        "axes": point.axes,
        "commit": commit(),
        "status": "done" if failure is None else "failed",
        "failure": failure,
        "valid": failure is None and not overloaded,
        "reasons": list(machine.get("reasons") or []) if overloaded else [],
        "wall_s": round(time.monotonic() - began, 3),
        "searched": point.searched,
    }
    store.finish(name, done)
    return done


def run_point(experiment: Experiment, store: SweepStore, point: Point, repeat: int) -> tuple[dict[str, Any], bool]:
    """(done.json, whether it ran now) of a point that has ended well, or is run now: twice if the machine is overloaded."""
    old = store.done(point.name(repeat))
    if old is not None and old["status"] == "done" and old["valid"]:
        return old, False
    tried_before = old is not None and old["status"] == "done"
    done = _execute(experiment, store, point, repeat)
    if done["status"] == "done" and not done["valid"] and not tried_before:
        done = _execute(experiment, store, point, repeat)
    return done, True


def _result(done: dict[str, Any], report: dict[str, Any], time_scale: int) -> str:
    """What a line says of a run: the delay in the experiment's time."""
    if done["status"] == "failed":
        return f"failed: {done['failure']}"
    delay_s = (report.get("delay_s") or {}).get("mean")
    if delay_s is not None and report.get("config", {}).get("pace") == "realtime":
        text = f"delay {delay_s * time_scale:.3g} s"
    else:
        text = f"{report.get('input_tuples_per_s') or 0:,.0f} input tuples/s"
    return text if done["valid"] else f"{text}, INVALID ({'; '.join(done['reasons'])})"


# ---------------------------------------------------------------- all of them


class _Sweep:
    """One call of `sweep`, after everything was checked."""

    def __init__(
        self, experiment: Experiment, store: SweepStore, planned: list[Point], node_speed: float | None, reporter: Reporter
    ) -> None:
        self.experiment, self.store, self.planned = experiment, store, planned
        self.node_speed, self.reporter = node_speed, reporter
        self.summary = Summary()
        self._expected_s = self._took_s = 0.0
        self._left_s = 0.0

    def _is_there(self, point: Point, repeat: int) -> bool:
        if self.experiment.search is not None:
            old = self.store.searched(point.name(repeat))
            return old is not None and old["status"] == "done"
        done = self.store.done(point.name(repeat))
        return done is not None and done["status"] == "done" and bool(done["valid"])

    def _cost_s(self, point: Point) -> float:
        return plan_s(self.experiment, [point])

    def run(self, repeats: int) -> Summary:
        began = time.monotonic()
        units = [(point, repeat) for repeat in range(1, repeats + 1) for point in self.planned]
        todo = {i for i, unit in enumerate(units) if not self._is_there(*unit)}
        costs = {i: self._cost_s(units[i][0]) for i in todo}
        self._left_s = sum(costs.values())
        self.summary.already = len(units) - len(todo)
        self.reporter.begin(len(units), self.summary.already, self._left_s)
        for i in sorted(todo):
            point, repeat = units[i]
            label = f"{point.text()} r{repeat}"
            self.reporter.started(label)
            started = time.monotonic()
            told = (
                self._search(point, repeat, label) if self.experiment.search is not None else self._point(point, repeat, label)
            )
            took = time.monotonic() - started
            self._expected_s, self._took_s = self._expected_s + costs[i], self._took_s + took
            self._left_s -= costs[i]
            remaining_s = self._left_s * self._took_s / max(1e-9, self._expected_s)
            self.reporter.ended(f"[{i + 1}/{len(units)}] {label}: {told}, {took:.1f} s", remaining_s)
        self.summary.wall_s = time.monotonic() - began
        return self.summary

    def _point(self, point: Point, repeat: int, label: str) -> str:
        done, _ = run_point(self.experiment, self.store, point, repeat)
        report = read_json(self.store.points / point.name(repeat) / "run.json") or {}
        if done["status"] == "failed":
            self.summary.failures.append((label, str(done["failure"])))
        else:
            self.summary.done += 1
            self.summary.invalid += not done["valid"]
        return _result(done, report, self.experiment.time_scale)

    # ------------------------------------------------------------ searches

    def _search(self, point: Point, repeat: int, label: str) -> str:
        """Bisect at one point; searches/<key>.json is written after every probe."""
        search = self.experiment.search
        assert search is not None
        key = point.name(repeat)
        probes: list[dict[str, Any]] = []
        state: dict[str, Any] = {
            "axes": point.axes,
            "slaves": point.slaves,
            "repeat": repeat,
            "axis": search.axis,
            "found": None,
            "low": search.low,
            "high": search.high,
            "precision": search.precision,
            "probes": probes,
            "status": "running",
            "note": "",
        }

        def probe(value: float) -> bool:
            at = probe_at(self.experiment, point, value, self.node_speed)
            name = at.name(repeat)
            done, ran = run_point(self.experiment, self.store, at, repeat)
            kept_up, why, valid = self._judge(name, done)
            probes.append({"value": value, "sustained": kept_up, "why": why, "valid": valid, "point": name})
            self.store.record(key, state)
            took = f", {done['wall_s']:.1f} s" if ran else ", already there"
            self.reporter.line(
                f"    {label} {search.axis}={value:g}: {'sustained' if kept_up else f'not sustained, {why}'}{took}"
            )
            return kept_up

        found: Found = bisect(search, probe)
        state |= {"found": found.value, "between": list(found.between), "note": found.note}
        by_value = {p["value"]: p for p in probes}
        decisive = by_value.get(found.between[1]) if found.between[1] is not None else None
        lowest = by_value.get(search.low)
        if found.value is None and lowest is not None and self.store.done(lowest["point"])["status"] == "failed":  # type: ignore[index]
            state["status"] = "failed"
            self.summary.failures.append((label, f"even {search.axis}={search.low:g} fails: {lowest['why']}"))
        elif decisive is not None and (ended := self.store.done(decisive["point"])) is not None and ended["status"] == "failed":
            state["status"] = "failed"  # a crash is no measurement; the next call tries again
            self.summary.failures.append((label, f"{search.axis}={decisive['value']:g}: {decisive['why']}"))
        elif decisive is not None and not decisive["valid"]:
            state["status"] = "invalid"  # what limits is the machine, not the system that is measured
            state["note"] = f"{search.axis}={decisive['value']:g}: {decisive['why']}"
            self.summary.invalid += 1
        else:
            state["status"] = "done"
            self.summary.done += 1
        self.store.record(key, state)
        text = f"{search.axis} {found.value:g} sustained" if found.value is not None else "nothing sustained"
        note = f" ({state['note']})" if state["note"] else ""
        return f"{text}{note}, {len(probes)} runs"

    def _judge(self, name: str, done: dict[str, Any]) -> tuple[bool, str, bool]:
        """(sustained, why, whether the machine had time for it)."""
        if done["status"] == "failed":
            return False, f"it failed: {done['failure']}", True
        folder = self.store.points / name
        report = read_json(folder / "run.json") or {}
        try:
            kept_up, why = sustained(read_rows(folder), report)
        except OSError:
            return False, "it left no metrics", True
        return kept_up, why, bool(done["valid"])


def sweep(
    experiment: Experiment,
    directory: Path,
    reporter: Reporter,
    *,
    repeat: int | None = None,
    only: int | None = None,
    fresh: bool = False,
) -> Summary:
    """Run what is missing in a directory. only: the first points alone. fresh: forget what is there.

    UserError before anything runs, when a point cannot be built or the directory holds something else.
    """
    source = experiment.source
    points(source)  # all of them, with any node_speed, before a calibration takes its minute
    store, design = SweepStore(directory), design_digest(source)
    store.check(describe(source, design, None), fresh=fresh)  # before a lock is written there
    with store.locked(), _signals():
        store.check(describe(source, design, None), fresh=fresh)
        node_speed = None
        if needs_calibration(source):
            reporter.line("how fast an imitated node must be on this machine:")
            node_speed = calibrated_speed(directory, source.time_scale, reporter.line)
            if not node_speed > 0:
                raise RunFailed(f"calibration: node_speed {node_speed} is no speed")
        planned = points(source, node_speed)[: only or None]
        if fresh:  # now that nothing is left to be refused
            store.forget()
        store.begin(describe(source, design, node_speed))
        return _Sweep(source, store, planned, node_speed, reporter).run(repeat or source.repeat)
