"""Runs the points of an experiment, one after the other, each alone on the machine.

What: `sweep(experiment, directory) -> Summary`, `point_command` (the command line of a run), `estimate_s`, `Reporter`.
Why: a crashed or disturbed run must not cost the others; an interrupted sweep keeps all finished runs.
Stays out: points (`sweeps.points`), the directory (`sweeps.store`), output (`cli.sweep`).

Runs go by repeats, so that an interrupted sweep has all points, with fewer repeats. A failed run is recorded; an invalid one
(the machine was overloaded) is run once more. The next call runs both again.
"""

from __future__ import annotations

import dataclasses
import signal
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any, Protocol

from swjoin.config.run import RunConfig, digest
from swjoin.core.errors import RunFailed, SwjoinError, UserError
from swjoin.core.storage import write_whole
from swjoin.monitor.sustainability import read_rows, sustained
from swjoin.sweeps.experiment import Design, Experiment
from swjoin.sweeps.node_speed import calibrated_speed
from swjoin.sweeps.points import Point, design_digest, needs_calibration, points, probe_at, profile_points
from swjoin.sweeps.run_process import run_to_end
from swjoin.sweeps.search import Found, bisect
from swjoin.sweeps.store import SweepStore, commit, describe, read_json

STARTUP_S = 4.0  # interpreters, kernels, MPI, and the end
PREFILL_TUPLES_PER_S = 400_000  # both streams, at full speed on a small machine
SIMULATED_S = 20.0


class Reporter(Protocol):
    """Receives the progress of a sweep."""

    def begin(self, total: int, ended: int, estimate_s: float) -> None: ...
    def started(self, text: str) -> None: ...
    def line(self, text: str) -> None: ...
    def ended(self, text: str, remaining_s: float) -> None: ...


@dataclass
class Summary:
    """Counts of a sweep's runs. already: finished before. failures: (point, reason)."""

    done: int = 0
    already: int = 0
    invalid: int = 0
    failures: list[tuple[str, str]] = field(default_factory=list)
    wall_s: float = 0.0


class SweepInterruptedError(SwjoinError):
    """A signal ended the sweep; finished runs stay."""


# ---------------------------------------------------------------- the command and duration of a run


def point_command(design: Design, config: Path, slaves: int, out: Path, profiles: Sequence[Path] = ()) -> list[str]:
    """The command line of one run. profiles: of a simulated query, the runs that tell its costs."""
    start = [sys.executable, "-m", "swjoin"]
    match design.runner:
        case "simulate":
            rate = {"no": [], "yes": ["--saturate"], "balanced": ["--saturate", "--balance"]}[design.simulated.saturate]
            more = [*(f"--profile={profile}" for profile in profiles), *rate]
            command = [*start, "simulate", str(config), "--slaves", str(slaves), "--costs", design.simulated.costs]
            return [*command, *more, "--out", str(out)]
        case "local":
            return [*start, "run", str(config), "--threads", str(slaves), "--out", str(out)]
        case _:
            hosts = [] if design.hostfile is None else ["--hostfile", str(design.hostfile)]
            return [*start, "run", str(config), "-n", str(slaves + 2), *hosts, "--out", str(out)]


def _tuples(config: RunConfig, us: int) -> float:
    """Tuples of both streams in this time."""
    return 2 * config.workload.rate_per_s * us / 1e6


def estimate_s(config: RunConfig, runner: str) -> float:
    """About how long a run takes, start-up included."""
    if runner == "simulate":
        return SIMULATED_S
    prefill_us, whole_us = config.measure.prefill_us, config.workload.duration_us
    if config.pace != "realtime":
        return STARTUP_S + _tuples(config, whole_us) / PREFILL_TUPLES_PER_S
    return STARTUP_S + _tuples(config, prefill_us) / PREFILL_TUPLES_PER_S + (whole_us - prefill_us) / 1e6


def limit_s(config: RunConfig, runner: str) -> float:
    """Time after which a run is stopped: generous, because an overloaded run takes long."""
    if runner == "simulate":
        return 1800.0
    prefill_us, whole_us = config.measure.prefill_us, config.workload.duration_us
    paced_us = whole_us - prefill_us if config.pace == "realtime" else 0
    return 120 + 6 * paced_us / 1e6 + _tuples(config, whole_us - paced_us) / (PREFILL_TUPLES_PER_S / 10)


def plan_s(design: Design, planned: list[Point]) -> float:
    """About how long one repeat of all points takes."""
    runs = design.search.most_probes - 1 if design.search is not None else 1
    return runs * sum(estimate_s(_typical(design, point), design.runner) for point in planned)


def _typical(design: Design, point: Point) -> RunConfig:
    """The configuration of a point; with a search, at the middle of its range."""
    search = design.search
    if search is None:
        return point.config
    middle = (search.low * search.high) ** 0.5
    try:
        return probe_at(design, point, middle if isinstance(search.low, float) else round(middle), None).config
    except UserError:
        return point.config


# ---------------------------------------------------------------- one run


@contextmanager
def _signals() -> Iterator[None]:
    """SIGINT and SIGTERM raise `SweepInterruptedError`, so that the run in progress is ended too."""
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


def _write_config(point: Point, repeat: int, folder: Path) -> Path:
    import yaml

    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(point.plain(repeat), sort_keys=False))
    return path


def _profiles(design: Design, store: SweepStore, point: Point, repeat: int) -> tuple[list[Path], str | None]:
    """Directories of the short runs that tell the costs of a simulated query, each run once for all points of a repeat, and
    why one has failed. CPU times of threads are told, so other work on the machine makes them less exact, not invalid."""
    folders, real = [], dataclasses.replace(design, runner="local")
    for run in profile_points(design, point):
        folder = store.profile(run.name(repeat))
        folders.append(folder)
        if not (folder / "run.json").is_file():
            command = point_command(real, _write_config(run, repeat, folder), run.slaves, folder)
            failure = run_to_end(command, folder / "stderr.txt", limit_s(run.config, "local"))
            if failure is not None:
                return folders, f"profile: {failure}"
    return folders, None


def _execute(design: Design, store: SweepStore, point: Point, repeat: int) -> dict[str, Any]:
    """Run a point in a directory of its own; returns its done.json."""
    config, name = point.repeated(repeat), point.name(repeat)
    folder = store.renew(name)
    path = _write_config(point, repeat, folder)
    start_s = time.monotonic()
    profiles, failure = _profiles(design, store, point, repeat)
    if failure is None:
        command = point_command(design, path, point.slaves, folder, profiles)
        failure = run_to_end(command, folder / "stderr.txt", limit_s(config, design.runner))
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
        "wall_s": round(time.monotonic() - start_s, 3),
        "searched": point.searched,
    }
    store.finish(name, done)
    return done


def run_point(design: Design, store: SweepStore, point: Point, repeat: int) -> tuple[dict[str, Any], bool]:
    """(done.json, whether it ran now): run a point unless a valid run exists; twice if the machine was overloaded."""
    old = store.done(point.name(repeat))
    if old is not None and old["status"] == "done" and old["valid"]:
        return old, False
    tried_before = old is not None and old["status"] == "done"
    done = _execute(design, store, point, repeat)
    if done["status"] == "done" and not done["valid"] and not tried_before:
        done = _execute(design, store, point, repeat)
    return done, True


def _result(done: dict[str, Any], report: dict[str, Any], time_scale: int) -> str:
    """One line on a run; delays in the experiment's time."""
    if done["status"] == "failed":
        return f"failed: {done['failure']}"
    delay_s = (report.get("delay_s") or {}).get("mean")
    if delay_s is not None and report.get("config", {}).get("pace") == "realtime":
        text = f"delay {delay_s * time_scale:.3g} s"
    else:
        text = f"{report.get('input_tuples_per_s') or 0:,.0f} input tuples/s"
    return text if done["valid"] else f"{text}, INVALID ({'; '.join(done['reasons'])})"


# ---------------------------------------------------------------- all runs


class _Sweep:
    """One call of `sweep`, after all checks."""

    def __init__(
        self, design: Design, store: SweepStore, planned: list[Point], node_speed: float | None, reporter: Reporter
    ) -> None:
        self.design, self.store, self.planned = design, store, planned
        self.node_speed, self.reporter = node_speed, reporter
        self.summary = Summary()
        self._expected_s = self._elapsed_s = 0.0
        self._left_s = 0.0

    def _is_there(self, point: Point, repeat: int) -> bool:
        if self.design.search is not None:
            old = self.store.searched(point.name(repeat))
            return old is not None and old["status"] == "done"
        done = self.store.done(point.name(repeat))
        return done is not None and done["status"] == "done" and bool(done["valid"])

    def _cost_s(self, point: Point) -> float:
        return plan_s(self.design, [point])

    def run(self, repeats: int) -> Summary:
        start_s = time.monotonic()
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
            run = self._point if self.design.search is None else self._search
            text = run(point, repeat, label)
            elapsed_s = time.monotonic() - started
            self._expected_s, self._elapsed_s = self._expected_s + costs[i], self._elapsed_s + elapsed_s
            self._left_s -= costs[i]
            remaining_s = self._left_s * self._elapsed_s / max(1e-9, self._expected_s)
            self.reporter.ended(f"[{i + 1}/{len(units)}] {label}: {text}, {elapsed_s:.1f} s", remaining_s)
        self.summary.wall_s = time.monotonic() - start_s
        return self.summary

    def _point(self, point: Point, repeat: int, label: str) -> str:
        done, _ = run_point(self.design, self.store, point, repeat)
        report = read_json(self.store.points / point.name(repeat) / "run.json") or {}
        if done["status"] == "failed":
            self.summary.failures.append((label, str(done["failure"])))
        else:
            self.summary.done += 1
            self.summary.invalid += not done["valid"]
        return _result(done, report, self.design.time_scale)

    # ------------------------------------------------------------ searches

    def _search(self, point: Point, repeat: int, label: str) -> str:
        """Bisect at one point; write searches/<key>.json after every probe."""
        search = self.design.search
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
            at = probe_at(self.design, point, value, self.node_speed)
            name = at.name(repeat)
            done, ran = run_point(self.design, self.store, at, repeat)
            kept_up, why, valid = self._verdict(name, done)
            probes.append({"value": value, "sustained": kept_up, "why": why, "valid": valid, "point": name})
            self.store.record(key, state)
            duration = f", {done['wall_s']:.1f} s" if ran else ", already there"
            self.reporter.line(
                f"    {label} {search.axis}={value:g}: {'sustained' if kept_up else f'not sustained, {why}'}{duration}"
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
            state["status"] = "failed"  # a crash is no measurement; the next call runs it again
            self.summary.failures.append((label, f"{search.axis}={decisive['value']:g}: {decisive['why']}"))
        elif decisive is not None and not decisive["valid"]:
            state["status"] = "invalid"  # the limit is the machine's, not that of the measured system
            state["note"] = f"{search.axis}={decisive['value']:g}: {decisive['why']}"
            self.summary.invalid += 1
        else:
            state["status"] = "done"
            self.summary.done += 1
        self.store.record(key, state)
        text = f"{search.axis} {found.value:g} sustained" if found.value is not None else "nothing sustained"
        note = f" ({state['note']})" if state["note"] else ""
        return f"{text}{note}, {len(probes)} runs"

    def _verdict(self, name: str, done: dict[str, Any]) -> tuple[bool, str, bool]:
        """(sustained, reason, valid: the machine was not overloaded)."""
        if done["status"] == "failed":
            return False, f"it failed: {done['failure']}", True
        folder = self.store.points / name
        report = read_json(folder / "run.json") or {}
        try:
            kept_up, why = sustained(read_rows(folder), report)
        except OSError:
            return False, "it left no metrics", True
        return kept_up, why, bool(done["valid"])


def check_hosts(experiment: Experiment, hostfile: Path | None) -> str | None:
    """The text of a file of hosts. UserError when the runs of an experiment cannot be there. None: as MPI finds them."""
    if hostfile is None:
        return None
    if experiment.source.runner != "mpi":
        raise UserError(f"--hostfile: runs of this experiment have no MPI ranks (runner: {experiment.source.runner})")
    if needs_calibration(experiment):
        remedy = "set nodes.node_speed"
        raise UserError("--hostfile: the speed of imitated nodes is measured on this machine, not on the hosts", remedy=remedy)
    try:
        text = hostfile.read_text()
    except OSError as error:
        raise UserError(f"--hostfile {hostfile}: cannot be read ({error.strerror})") from None
    if not text.strip():
        raise UserError(f"--hostfile {hostfile}: cannot be read twice; write it to a file")
    return text


def sweep(
    experiment: Experiment,
    directory: Path,
    reporter: Reporter,
    *,
    repeat: int | None = None,
    only: int | None = None,
    fresh: bool = False,
    hostfile: Path | None = None,
) -> Summary:
    """Run the missing points of a directory. only: run just the first points. fresh: remove earlier runs. hostfile: of the MPI
    ranks of every run.

    UserError before the first run, when a point is wrong, the directory has other content, or runs have no ranks for hosts.
    """
    source, hosts = experiment.source, check_hosts(experiment, hostfile)
    points(experiment)  # with any node_speed: finds errors before a calibration takes its minute
    store, design = SweepStore(directory), design_digest(experiment)
    store.check(describe(experiment, design, None, hosts), fresh=fresh)  # before a lock is written there
    with store.locked(), _signals():
        store.check(describe(experiment, design, None, hosts), fresh=fresh)
        node_speed = None
        if needs_calibration(experiment):
            reporter.line("how fast an imitated node must be on this machine:")
            node_speed = calibrated_speed(directory, source.time_scale, reporter.line)
            if not node_speed > 0:
                raise RunFailed(f"calibration: node_speed {node_speed} is no speed")
        planned = points(experiment, node_speed)[: only or None]
        if fresh:  # after all checks
            store.forget()
        store.begin(describe(experiment, design, node_speed, hosts))
        if hosts is not None:  # the given file may change between runs
            write_whole(directory / ".hosts", hosts.encode())
            source = dataclasses.replace(source, hostfile=(directory / ".hosts").absolute())
        return _Sweep(source, store, planned, node_speed, reporter).run(repeat or source.repeat)
