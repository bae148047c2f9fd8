"""A sweep's directory: its description, its runs, and a marker for each finished run.

What: `SweepStore` (open, points, searches), `sweep_directory`, `commit`, `machine`.
Why: an interrupted sweep resumes where it was; results of different code or designs are never mixed.
Stays out: running (`sweeps.runner`), tables over the runs (`sweeps.aggregate`).

DIR/experiment.json, DIR/points/<config digest>-s<slaves>-r<repeat>/ with the run and done.json, DIR/searches/<key>.json.
A point is finished when its done.json exists: it is written last, and atomically. A DIR without a sweep's experiment.json is
left as it is.
"""

from __future__ import annotations

import functools
import json
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from swjoin.core.errors import UserError
from swjoin.core.storage import locked, write_json
from swjoin.runtime.run_report import versions
from swjoin.sweeps.experiment import Experiment

FORMAT = 1
_SAME = ("experiment", "preset", "design_digest", "commit", "node_speed")
_POINT = re.compile(r".+-s\d+-r\d+")  # names of points and of their searches
_TABLES = ("table.parquet", "table.csv", "runs.parquet", "runs.csv")  # of `sweeps.aggregate`


def sweep_directory(experiment: Experiment) -> Path:
    """Default directory of an experiment's runs."""
    source = experiment.source
    suffix = "" if source.preset == "none" else f"-{source.preset}"
    return Path("runs") / "sweeps" / f"{source.name}{suffix}"


@functools.cache
def commit() -> str:
    """The commit of this code, 12 digits, `-dirty` when the package differs from it; `unknown` outside a repository."""
    package = Path(__file__).resolve().parents[1]

    def git(*arguments: str) -> str | None:
        command = ["git", "-C", str(package), *arguments]
        try:
            done = subprocess.run(command, capture_output=True, text=True, timeout=30, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        return done.stdout.strip() if done.returncode == 0 else None

    if git("ls-files", "--error-unmatch", "__init__.py") is None:
        return "unknown"
    head = git("rev-parse", "HEAD")
    if head is None:
        return "unknown"
    return head[:12] + ("-dirty" if git("status", "--porcelain", "--untracked-files=no", "--", ".") else "")


def machine() -> dict[str, Any]:
    """Cores, and the processor's name."""
    model = platform.processor() or platform.machine()
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    except OSError:
        pass
    return {"cores": os.cpu_count() or 1, "model": model}


def describe(experiment: Experiment, design_digest: str, node_speed: float | None, hosts: str | None = None) -> dict[str, Any]:
    """The content of experiment.json. hosts: text of the file of the ranks' hosts; None: as MPI finds them."""
    source, search = experiment.source, experiment.source.search
    return {
        "format": FORMAT,
        "experiment": source.name,
        "design_digest": design_digest,
        "preset": source.preset,
        "time_scale": source.time_scale,
        "commit": commit(),
        "versions": versions(),
        "axes": list(source.axis_units),
        "axis_units": source.axis_units,
        "search": None
        if search is None
        else {"axis": search.axis, "low": search.low, "high": search.high, "precision": search.precision},
        "node_speed": node_speed,
        "runner": source.runner,
        "hosts": None if hosts is None else hosts.splitlines(),
        "machine": machine(),
    }


def read_json(path: Path) -> dict[str, Any] | None:
    """Read a JSON object; None when the file is missing or damaged."""
    try:
        data = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return data if isinstance(data, dict) else None


class SweepStore:
    """The directory of one sweep."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        self.points, self.searches, self.profiles = (directory / name for name in ("points", "searches", "profiles"))

    # ------------------------------------------------------------ opening

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the directory. UserError when another process sweeps here."""
        try:
            self.directory.mkdir(parents=True, exist_ok=True)
            refusal = f"{self.directory}: another sweep is running there; wait for it or give another --out"
            file = locked(self.directory / ".lock", refusal)
        except OSError as error:
            raise UserError(f"--out {self.directory}: cannot be written ({error.strerror})") from None
        with file:
            yield

    def forget(self) -> None:
        """Remove all points, searches and tables (`--fresh`). experiment.json, calibrations and other files stay."""
        if self._description() is None:
            return
        for path in (*self.points.glob("*"), *self.profiles.glob("*")):
            if _POINT.fullmatch(path.name):
                shutil.rmtree(path, ignore_errors=True)
        for path in self.searches.glob("*.json"):
            if _POINT.fullmatch(path.stem):
                path.unlink()
        for folder in (self.points, self.searches, self.profiles):
            with suppress(OSError):  # not there, or not empty
                folder.rmdir()
        for name in _TABLES:
            with suppress(OSError):
                (self.directory / name).unlink()

    def _description(self) -> dict[str, Any] | None:
        """Content of experiment.json; None when it is missing, or not a sweep's."""
        found = read_json(self.directory / "experiment.json")
        valid = found is not None and found.get("format") == FORMAT and all(name in found for name in _SAME)
        return found if valid else None

    def check(self, description: dict[str, Any], *, fresh: bool = False) -> None:
        """UserError when the directory has results that do not fit `description` (node_speed None: not known yet).

        fresh: results of any sweep fit; they will be removed.
        """
        names = (p.name for p in self.directory.glob("*"))
        there = sorted(name for name in names if not name.startswith(("calibration", ".")) and name != "plots")
        old = self._description()
        if old is None:
            if there:
                raise UserError(f"{self.directory}: holds {there[0]}, but no sweep; give another --out (--fresh does not help)")
            return
        if fresh:
            return
        ended = [done for _, done in self.ended()]
        if not ended:
            return
        help_ = "give --fresh to measure all of it anew, or another --out"
        if description.get("hosts") != old.get("hosts"):
            raise UserError(f"{self.directory}: holds results of other hosts; {help_}")
        for name in _SAME:
            mine, its = description[name], old.get(name)
            if mine == its or (name == "node_speed" and mine is None):
                continue
            match name:
                case "experiment":
                    text = f"holds results of the experiment {its}, not of {mine}"
                case "commit":
                    text = f"holds results of commit {its}, this is {mine}"
                case "node_speed":
                    text = f"holds results with node_speed {its}, the calibration says {mine}"
                case "preset":
                    text = f"holds results with preset {its}, not {mine}"
                case _:
                    text = f"holds results of another design of {description['experiment']}: its file or its base has changed"
            raise UserError(f"{self.directory}: {text}; {help_}")
        for done in ended:
            if done.get("commit") != description["commit"]:
                text = f"holds results of commit {done.get('commit')}, this is {description['commit']}"
                raise UserError(f"{self.directory}: {text}; {help_}")

    def begin(self, description: dict[str, Any]) -> None:
        """Check again, now with the calibration, and write experiment.json."""
        self.check(description)
        write_json(self.directory / "experiment.json", description)

    # ------------------------------------------------------------ points

    def ended(self) -> list[tuple[str, dict[str, Any]]]:
        """(name, done.json) of every finished point."""
        found = ((path.parent.name, read_json(path)) for path in sorted(self.points.glob("*/done.json")))
        return [(name, done) for name, done in found if done is not None]

    def done(self, name: str) -> dict[str, Any] | None:
        return read_json(self.points / name / "done.json")

    def renew(self, name: str) -> Path:
        """An empty directory for a run; files of an interrupted, failed or invalid run are removed."""
        folder = self.points / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def profile(self, name: str) -> Path:
        """The directory of a short run that measures costs; made anew unless the run there is complete."""
        folder = self.profiles / name
        if not (read_json(folder / "run.json") or {}).get("complete"):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
        return folder

    def finish(self, name: str, done: dict[str, Any]) -> None:
        write_json(self.points / name / "done.json", done)

    # ------------------------------------------------------------ searches

    def searched(self, key: str) -> dict[str, Any] | None:
        return read_json(self.searches / f"{key}.json")

    def record(self, key: str, search: dict[str, Any]) -> None:
        write_json(self.searches / f"{key}.json", search)
