"""Processes of a run: starting, finding and killing them, and their memory.

What: `LaunchedRun`, one `swjoin run` in processes of its own; `ranks_of`, its ranks; `memory_of` and `mapped_of`, memory of a
process; `left_of`, processes with a mark.
Why: chaos, soaks and benchmarks kill real ranks by their process ids, and check that none is left afterwards.
Stays out: which process is killed when (`tests.tools.random_kills`, `tests.tools.soak.run`).
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from swjoin.runtime.simulator.result import SimulationError

MARK = "SWJOIN_RUN_MARK"
FIRST_SLAVE = 2  # rank; those before are master and collector
_RANK = re.compile(rb"OMPI_COMM_WORLD_RANK=(\d+)")
_FIELDS = re.compile(r"^(VmRSS|RssAnon):\s+(\d+) kB", re.MULTILINE)
_MAP = re.compile(r"[0-9a-f]+-[0-9a-f]+ ")
_LARGE_BYTES = 192 << 20  # maps above this size are mostly the windows of a slave


def ranks_of(launcher: int) -> dict[int, int]:
    """MPI rank -> pid of the descendants of a launcher."""
    parents: dict[int, int] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parents[int(entry.name)] = parent_of(int(entry.name))
    found: dict[int, int] = {}
    for pid in parents:
        above, depth = pid, 0
        while above not in (launcher, 0, 1) and depth < 10:
            above, depth = parents.get(above, 0), depth + 1
        if above != launcher:
            continue
        rank = _RANK.search(_environment(pid))
        if rank is not None:
            found[int(rank[1])] = pid
    return found


def _environment(pid: int) -> bytes:
    """The environment; empty for a finished or foreign process."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return b""


def parent_of(pid: int) -> int:
    """0 when there is no such process."""
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])
    except (OSError, IndexError, ValueError):
        return 0


def left_of(mark: str) -> list[int]:
    """Processes with this mark in their environment, whatever their parents."""
    wanted = f"{MARK}={mark}".encode()
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if wanted in _environment(pid).split(b"\0")]


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
        found = dict(_FIELDS.findall(Path(f"/proc/{pid}/status").read_text()))
    except OSError:
        return None
    if len(found) < 2:  # ended, and not waited for yet
        return None
    return Memory(int(found["VmRSS"]) << 10, int(found["RssAnon"]) << 10)


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
        text = Path(f"/proc/{pid}/smaps").read_text()
    except OSError:
        return None
    proportional = reserved = 0
    large = nameless = False
    for line in text.splitlines():
        if line.startswith("Pss:"):
            proportional += int(line.split()[1]) << 10
        elif line.startswith("Size:"):
            large = nameless and int(line.split()[1]) << 10 >= _LARGE_BYTES
        elif line.startswith("Rss:") and large:
            reserved += int(line.split()[1]) << 10
        elif _MAP.match(line):
            nameless = len(line.split()) == 5  # no file, not the heap, not a stack
    return Mapped(proportional, reserved) if proportional else None


class LaunchedRun:
    """One `swjoin run`, its processes, and its output."""

    def __init__(self, arguments: Sequence[str], log: Path, environment: Mapping[str, str] | None = None) -> None:
        """environment: added to that of this process."""
        self._log = log
        with log.open("w") as out:
            command = [sys.executable, "-m", "swjoin", "run", *arguments]
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
