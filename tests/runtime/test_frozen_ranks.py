"""Real ranks that are stopped, hang in a system call, or only seem to: who is declared dead, and what comes of it.

What: SIGSTOP of every role, for good and for a while; system calls that never return; machines that are busy.
Why: whether a process is frozen or busy shows in real processes alone.
Stays out: the detector (`test_heartbeats`), cut networks (`test_hosts`), random faults (`tests.tools.random_kills`).
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from benchmarks.workloads.expected_results import digest_of_files
from tests.support.limits import LONG_S, PROCESS_S
from tests.tools.processes import LaunchedRun, kill
from tests.tools.random_kills import FaultScenario

pytestmark = [pytest.mark.mpi, pytest.mark.timeout(LONG_S)]
TIMEOUT_S = 4.0
WHO = {0: r"rank 0 \(master\)", 1: r"rank 1 \(collector\)", 3: r"rank 3 \(slave 1\)"}
DEAD = rf" on \S+: no sign of life for {TIMEOUT_S:g} s \(cluster\.failure_timeout\)"


@dataclass
class _Run:
    """A run in realtime pace. pids: of its ranks, once it has made two checkpoints, or without checkpoints opened its files."""

    folder: Path
    plain: dict[str, Any]
    launched: LaunchedRun
    pids: dict[int, int]

    @property
    def out(self) -> Path:
        return self.folder / "run"

    def stop(self, *ranks: int) -> None:
        for rank in ranks:
            kill(self.pids[rank], signal.SIGSTOP)

    def go_on(self, *ranks: int) -> None:
        for rank in ranks:
            kill(self.pids[rank], signal.SIGCONT)

    def said(self) -> list[str]:
        return (self.folder / "log").read_text().splitlines()

    def report(self) -> dict[str, Any]:
        report: dict[str, Any] = json.loads((self.out / "run.json").read_text())
        return report

    def goes_on(self, recoveries: int) -> None:
        """It ends well, with the right answer after so many recoveries, and nothing is left."""
        assert self.launched.end(PROCESS_S) == 0, self.said()
        report = self.report()
        answer = FaultScenario(1, "", self.plain, 0, 0, 0, 0).expected()
        assert (report["results"]["count"], report["results"]["digest"]) == answer
        assert len(report["checkpoints"]["recoveries"]) == recoveries
        if self.plain["sink"]["kind"] == "parquet":
            assert digest_of_files(self.out / "results") == answer
            assert [p.name for p in (self.out / "results").iterdir() if not p.name.startswith("part-")] == []
        self.is_over()

    def fails(self, line: str) -> None:
        """It ends with exit code 1 and this line alone, and nothing is left."""
        assert self.launched.end(PROCESS_S) == 1, self.said()
        assert len(self.said()) == 1
        assert re.fullmatch(f"swjoin: {line}", self.said()[0]), self.said()
        assert self.report()["complete"] is False
        self.is_over()

    def is_over(self) -> None:
        """All its processes have ended; some may not have been waited for."""
        deadline = time.monotonic() + PROCESS_S
        for pid in self.pids.values():
            while _state(pid) not in "ZX" and time.monotonic() < deadline:
                time.sleep(0.05)
            assert _state(pid) in "ZX"


def _state(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return "X"


@contextlib.contextmanager
def _started(
    folder: Path, ranks: int, *, sink: str = "parquet", checkpoints: bool = True, environment: dict[str, str] | None = None
) -> Iterator[_Run]:
    plain: dict[str, Any] = {
        "join": {"within": "500ms"},
        "seed": 1,
        "pace": "realtime",
        "workload": {"rate_per_s": 1000.0, "duration": "8s", "domain": 1000, "payload": "16B"},
        "cluster": {"distribution_epoch": "50ms", "partition_count": 8, "failure_timeout": f"{TIMEOUT_S:g}s"},
        "module": {"window": "64MB"},
        "sink": {"kind": sink},
        **({"checkpoint": {"epochs": 5}} if checkpoints else {}),
    }
    (folder / "config.yaml").write_text(json.dumps(plain))
    launched = LaunchedRun(
        [str(folder / "config.yaml"), "-n", str(ranks), "--out", str(folder / "run")], folder / "log", environment
    )
    run = _Run(folder, plain, launched, {})
    there = "checkpoints/checkpoint-00000[1-9].json" if checkpoints else "metrics/.slaves.rows"
    try:
        deadline = time.monotonic() + PROCESS_S
        while not list(run.out.glob(there)) and launched.process.poll() is None:
            assert time.monotonic() < deadline
            time.sleep(0.05)
        run.pids = launched.ranks()
        if not checkpoints:
            time.sleep(1)
        yield run
    finally:
        launched.kill_all()
        launched.process.wait()
        for pid in run.pids.values():
            kill(pid, signal.SIGKILL)


# ---------------------------------------------------------------- for good


@pytest.mark.parametrize(
    ("rank", "sink"),
    [(3, "count"), *(pytest.param(*more, marks=pytest.mark.drawn) for more in ((1, "parquet"), (3, "parquet"), (1, "count")))],
)
def test_a_frozen_rank_is_named_and_the_others_go_on(rank: int, sink: str, tmp_path: Path) -> None:
    with _started(tmp_path, 5, sink=sink) as run:
        run.stop(rank)
        run.goes_on(recoveries=1)
        warnings = [line for line in run.said() if "no sign of life" in line]
        assert len(warnings) == 1
        assert re.fullmatch(f"swjoin: warning: {WHO[rank]}{DEAD}; the others go on without it", warnings[0]), warnings


@pytest.mark.drawn
def test_a_frozen_master_ends_the_run(tmp_path: Path) -> None:
    """In one line, from which it can be resumed."""
    with _started(tmp_path, 4) as run:
        run.stop(0)
        run.fails(f"{WHO[0]}{DEAD}; go on with: swjoin run --resume {re.escape(str(run.out))} -n 4")
        assert "no sign of life" in run.report()["failure"]
        run.launched = LaunchedRun(["--resume", str(run.out), "-n", "3"], tmp_path / "log")
        run.goes_on(recoveries=0)


@pytest.mark.long
def test_two_frozen_ranks(tmp_path: Path) -> None:
    with _started(tmp_path, 6) as run:
        run.stop(1, 4)
        assert run.launched.end(PROCESS_S) == 0, run.said()
        answer = FaultScenario(1, "", run.plain, 0, 0, 0, 0).expected()
        assert digest_of_files(run.out / "results") == answer
        assert sum("no sign of life" in line for line in run.said()) == 2
        run.is_over()


@pytest.mark.long
def test_too_few_ranks_are_left(tmp_path: Path) -> None:
    with _started(tmp_path, 3) as run:
        run.stop(2)
        few = r"too few ranks are left \(2 of at least 3\); go on from the last checkpoint with: swjoin run --resume .* -n 3"
        run.fails(rf"rank 0 \(master\) on \S+, epoch \d+: rank 2 \(slave 0\){DEAD}; {few}")


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_without_fault_tolerance_the_run_ends(rank: int, tmp_path: Path) -> None:
    """Results are marked as after any failure."""
    with _started(tmp_path, 4, checkpoints=False) as run:
        run.stop(rank)
        run.fails(f"{WHO[rank]}{DEAD}; start it again")
        names = [path.name for path in (run.out / "results").iterdir()]
        assert names == ["part-00000.parquet.incomplete"]


# ---------------------------------------------------------------- for a while


@pytest.mark.parametrize("rank", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(3, marks=pytest.mark.long)])
def test_a_stop_shorter_than_the_timeout_changes_nothing(rank: int, tmp_path: Path) -> None:
    with _started(tmp_path, 4) as run:
        run.stop(rank)
        time.sleep(TIMEOUT_S / 2)
        run.go_on(rank)
        run.goes_on(recoveries=0)
        assert not [line for line in run.said() if "no sign of life" in line]


@pytest.mark.long
@pytest.mark.parametrize("rank", [1, 3])
def test_a_rank_that_is_continued_too_late(rank: int, tmp_path: Path) -> None:
    with _started(tmp_path, 5) as run:
        run.stop(rank)
        time.sleep(2 * TIMEOUT_S)
        run.go_on(rank)
        run.goes_on(recoveries=1)


@pytest.mark.long
def test_all_ranks_are_stopped_for_a_while(tmp_path: Path) -> None:
    """With mpirun and the launcher, as a batch system suspends a job: nobody is to blame."""
    with _started(tmp_path, 5) as run:
        above = [run.launched.process.pid, *(int(_words(pid)[1]) for pid in run.pids.values())]
        for pid in {*above, *run.pids.values()}:
            kill(pid, signal.SIGSTOP)
        time.sleep(3 * TIMEOUT_S)
        for pid in {*above, *run.pids.values()}:
            kill(pid, signal.SIGCONT)
        run.goes_on(recoveries=0)


def _words(pid: int) -> list[str]:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()


# ---------------------------------------------------------------- system calls that do not return

_HANG = """
import os, signal
signal.signal(signal.SIGUSR2, lambda *_: open(os.environ["HANG"]).read())
"""


@pytest.mark.long
@pytest.mark.parametrize("rank", [0, 1, 3])
def test_a_rank_hangs_in_a_system_call(rank: int, tmp_path: Path) -> None:
    """It reads a pipe that nobody writes; its heartbeats go on."""
    (tmp_path / "hang").mkdir()
    (tmp_path / "hang" / "sitecustomize.py").write_text(_HANG)
    os.mkfifo(tmp_path / "fifo")
    environment = {"PYTHONPATH": str(tmp_path / "hang"), "HANG": str(tmp_path / "fifo")}
    with _started(tmp_path, 5, environment=environment) as run:
        os.kill(run.pids[rank], signal.SIGUSR2)
        reason = DEAD.replace("no sign of life", "hangs, no progress")
        if rank == 0:
            run.fails(f"{WHO[0]}{reason}; go on with: swjoin run --resume {re.escape(str(run.out))} -n 5")
            return
        run.goes_on(recoveries=1)
        warnings = [line for line in run.said() if "hangs, no progress" in line]
        assert re.fullmatch(f"swjoin: warning: {WHO[rank]}{reason}; the others go on without it", *warnings)


# ---------------------------------------------------------------- busy is not dead


@pytest.mark.long
def test_a_busy_machine_kills_nobody(tmp_path: Path) -> None:
    """Eight ranks beside a busy loop for each core, twice."""
    loops = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(2 * (os.cpu_count() or 1))]
    try:
        with _started(tmp_path, 8) as run:
            run.goes_on(recoveries=0)
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()


@pytest.mark.long
def test_ranks_that_compile_their_kernels_are_not_dead(tmp_path: Path) -> None:
    with _started(tmp_path, 4, environment={"NUMBA_CACHE_DIR": str(tmp_path / "cache")}) as run:
        run.goes_on(recoveries=0)
        assert any("compiled" in line for line in run.said())
