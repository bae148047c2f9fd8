"""Processes of a run: starting, finding and killing them, and their memory.

What: `LaunchedRun`, one `swjoin run` in processes of its own; `ranks_of`, its ranks; `memory_of` and `mapped_of`, memory of a
process; `left_of`, processes with a mark.
Why: chaos, soaks and benchmarks kill real ranks by their process ids, and check that none is left afterwards.
Stays out: which process is killed when (`tests.tools.random_kills`, `tests.tools.soak.run`).
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import psutil

from swjoin.runtime.simulator.result import SimulationError

MARK = "SWJOIN_RUN_MARK"
FIRST_SLAVE = 2  # rank; those before are master and collector
_LARGE_BYTES = 192 << 20  # maps above this size are mostly the windows of a slave


def ranks_of(launcher: int) -> dict[int, int]:
    """MPI rank -> pid of the descendants of a launcher."""
    try:
        below = psutil.Process(launcher).children(recursive=True)
    except psutil.NoSuchProcess:
        return {}
    ranks = {process.pid: _environment(process).get("OMPI_COMM_WORLD_RANK") for process in below}
    return {int(rank): pid for pid, rank in ranks.items() if rank is not None}


def _environment(process: psutil.Process) -> dict[str, str]:
    """The environment; empty for a finished or foreign process."""
    try:
        return process.environ()
    except psutil.Error:
        return {}


def parent_of(pid: int) -> int:
    """0 when there is no such process."""
    try:
        return psutil.Process(pid).ppid()
    except psutil.NoSuchProcess:
        return 0


def left_of(mark: str) -> list[int]:
    """Processes with this mark in their environment, whatever their parents."""
    return [process.pid for process in psutil.process_iter() if _environment(process).get(MARK) == mark]


def kill(pid: int, number: int) -> None:
    """Send a signal, unless the process has ended."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


@dataclass(frozen=True)
class Memory:
    """Resident bytes of a process: all, and those without a file behind them."""

    resident_bytes: int
    anonymous_bytes: int


def memory_of(pid: int) -> Memory | None:
    """None when it has ended."""
    try:
        found = psutil.Process(pid).memory_info()
    except psutil.NoSuchProcess:
        return None
    return Memory(found.rss, found.rss - found.shared) if found.rss else None  # ended, and not waited for yet


@dataclass(frozen=True)
class Mapped:
    """Resident bytes by map.

    proportional_bytes: shared pages divided by the number of their processes.
    reserved_bytes: resident bytes of large anonymous maps, which are the windows in a slave.
    """

    proportional_bytes: int
    reserved_bytes: int


def mapped_of(pid: int) -> Mapped | None:
    """None when it has ended. Takes some 10 ms: the system walks all pages."""
    try:
        maps = psutil.Process(pid).memory_maps(grouped=False)
    except psutil.NoSuchProcess:
        return None
    proportional = sum(found.pss for found in maps)
    reserved = sum(found.rss for found in maps if found.path == "[anon]" and found.size >= _LARGE_BYTES)
    return Mapped(proportional, reserved) if proportional else None


class LaunchedRun:
    """One `swjoin run`, its processes, and its output."""

    def __init__(
        self,
        arguments: Sequence[str],
        log: Path,
        environment: Mapping[str, str] | None = None,
        module: Sequence[str] = ("swjoin", "run"),
    ) -> None:
        """environment: added to that of this process. module: that Python runs, and its first arguments."""
        self._log = log
        with log.open("w") as out:
            command = [sys.executable, "-m", *module, *arguments]
            ours = {**os.environ, **(environment or {})}
            self.process = subprocess.Popen(command, stdout=out, stderr=out, env=ours, start_new_session=True)

    def ranks(self) -> dict[int, int]:
        """MPI rank -> pid of the running ranks."""
        return ranks_of(self.process.pid)

    def kill(self, ranks: Sequence[int], number: int = signal.SIGKILL) -> None:
        """Send a signal to these ranks, except finished ones."""
        pids = self.ranks()
        for rank in ranks:
            if rank in pids:
                kill(pids[rank], number)

    def kill_all(self) -> None:
        """Kill the launcher, mpirun and every rank."""
        pids = list(self.ranks().values())
        above = [p for p in (parent_of(pid) for pid in pids) if p not in (0, 1, os.getpid())]
        for pid in {*pids, *above, self.process.pid}:
            kill(pid, signal.SIGKILL)

    def end(self, limit_s: float) -> int:
        """Wait for the exit code. SimulationError at the time limit."""
        try:
            return self.process.wait(limit_s)
        except subprocess.TimeoutExpired:
            self.kill_all()
            self.process.wait()
            raise SimulationError(f"the run did not end within {limit_s:.0f} s: {self.said()}") from None

    def wait_for_start(self, out: Path, ranks: int, limit_s: float) -> None:
        """Wait until all ranks run and the folder of checkpoints exists, or the run has ended."""
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline and self.process.poll() is None:
            if (out / "checkpoints").is_dir() and len(self.ranks()) == ranks:
                return
            time.sleep(0.02)

    def said(self) -> str:
        return " ".join(self._log.read_text().split())[-400:]
