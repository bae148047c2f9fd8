"""Runs mutated inputs in processes that may crash, hang or run out of memory without taking the fuzzer along.

What: `Target`, what one kind of input has to offer; `judge`, one input; `fuzz`, many, in worker processes that are watched.
Why: a segmentation fault of a library must be told with its seed, and an input that hangs must not stop all others.
Stays out: what is mutated and what a right answer is (the targets).

A worker writes the number of its input into a file before it begins with it. When it dies, or has not come further for
`limit_s`, that input is the finding, and another worker goes on behind it.
"""

from __future__ import annotations

import json
import mmap
import os
import random
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import psutil

from swjoin.core.errors import SwjoinError

ROOT = Path(__file__).resolve().parents[2]
LONGEST_LINE = 2000  # characters of an error that is still one line for a person
_POLL_S = 0.05
_TOLD_EVERY = 100  # inputs, after which a worker tells what became of them
_PER_WORKER = 20_000  # inputs; then a new process, so that nothing adds up unseen
_ENVIRONMENT = {"MALLOC_ARENA_MAX": "2", "OMP_NUM_THREADS": "1", "ARROW_NUM_THREADS": "1", "ARROW_IO_THREADS": "2"}


class Wrong(Exception):
    """An input was not dealt with as it must be."""


class Target(Protocol):
    """One kind of input. Everything about an input follows from its seed."""

    name: str

    def prepare(self, folder: Path) -> None:
        """Make what is mutated; once per process."""
        ...

    def attempt(self, random: random.Random) -> str:
        """Draw an input and deal with it. Returns `accepted: KIND` or `refused: KIND`, raises Wrong."""
        ...


def check_refusal(error: SwjoinError, *places: str) -> None:
    """A refusal is one line, of bearable length, that names one of the places."""
    text = " ".join(str(error).split())
    if not text:
        raise Wrong(f"a refusal without a word ({type(error).__name__})")
    if len(text) > LONGEST_LINE:
        raise Wrong(f"a refusal of {len(text)} characters: {text[:200]}...")
    if not any(place in text for place in places):
        raise Wrong(f"a refusal that names none of {list(places)}: {text}")


def judge(target: Target, seed: int) -> tuple[str, str | None]:
    """One input: what became of it (`accepted: ...`, `refused: ...`, `wrong`), and what is wrong with that, if anything."""
    try:
        return target.attempt(random.Random(seed)), None
    except Wrong as wrong:
        return "wrong", str(wrong)
    except MemoryError as error:
        return "wrong", f"MemoryError: {error}; {_where(error)}"
    except Exception as error:
        return "wrong", f"{type(error).__name__}: {str(error)[:300]}; {_where(error)}"


def _where(error: BaseException) -> str:
    """The innermost places of a traceback, the package's preferred."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "swjoin/" in f.filename] or frames
    return ", ".join(f"{Path(f.filename).name}:{f.lineno} {f.name}" for f in ours[-3:])


# ---------------------------------------------------------------- in the worker


def _address_space() -> int:
    """Bytes of address space that this process has taken."""
    return int(psutil.Process().memory_info().vms)


def work(target: Target, first: int, count: int, memory_bytes: int, slot: Path) -> None:
    """Inputs first, first + 1, ...; a JSON line for every finding, and now and then one with the counts."""
    with slot.open("r+b") as file, mmap.mmap(file.fileno(), 16) as progress, _scratch(target.name) as folder:
        target.prepare(Path(folder))
        if memory_bytes:
            limit = _address_space() + memory_bytes
            resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
        outcomes: Counter[str] = Counter()
        slowest, peak = (0.0, first), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        for done, seed in enumerate(range(first, first + count), 1):
            progress[:8] = seed.to_bytes(8, "little")
            begun = time.perf_counter()
            outcome, wrong = judge(target, seed)
            took = time.perf_counter() - begun
            now = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
            if wrong is None and seed > first and (now - peak) << 10 > memory_bytes // 2 > 0:
                outcome, wrong = "wrong", f"memory grew by {(now - peak) >> 10} MiB"
            peak = max(peak, now)
            outcomes[outcome] += 1
            slowest = max(slowest, (took, seed))
            if wrong is not None:
                print(json.dumps({"seed": seed, "wrong": wrong}), flush=True)
            progress[8:] = done.to_bytes(8, "little")
            if done % _TOLD_EVERY == 0 or done == count:
                print(json.dumps({"outcomes": outcomes, "slowest": slowest, "done": done}), flush=True)
                outcomes.clear()


def _scratch(name: str) -> tempfile.TemporaryDirectory[str]:
    """A folder in memory: a disk's syncs would take longer than everything else."""
    memory = Path("/dev/shm")
    return tempfile.TemporaryDirectory(prefix=f"swjoin-fuzz-{name}-", dir=memory if memory.is_dir() else None)


# ---------------------------------------------------------------- in the fuzzer


@dataclass
class Tally:
    """What became of a target's inputs. findings: seed and what is wrong. slowest: seconds and seed."""

    target: str
    outcomes: Counter[str] = field(default_factory=Counter)
    findings: list[tuple[int, str]] = field(default_factory=list)
    slowest: tuple[float, int] = (0.0, 0)
    wall_s: float = 0.0

    def count(self, word: str) -> int:
        return sum(n for outcome, n in self.outcomes.items() if outcome.startswith(word))

    def kinds(self) -> list[tuple[int, str, int]]:
        """Findings that are alike once: seed, what is wrong, how many."""
        first: dict[str, tuple[int, str]] = {}
        counts: Counter[str] = Counter()
        for seed, what in sorted(self.findings):
            kind = re.sub(r"\d+|/\S+|'[^']*'", "", what)[:100]
            first.setdefault(kind, (seed, what))
            counts[kind] += 1
        return [(*first[kind], count) for kind, count in counts.most_common()]

    @property
    def line(self) -> str:
        total = max(1, self.outcomes.total())
        shares = [f"{self.count(word)} {word} ({100 * self.count(word) / total:.1f} %)" for word in ("refused", "accepted")]
        slowest = f"slowest {self.slowest[0]:.2f} s (seed {self.slowest[1]})"
        return f"{self.target}: {self.outcomes.total()} inputs: {', '.join(shares)}; {self.wall_s:.0f} s, {slowest}"


class _Worker:
    """A process that works on some inputs; `poll` says when it has ended, and what killed it."""

    def __init__(self, target: str, first: int, count: int, limit_s: float, memory_bytes: int, folder: Path) -> None:
        self.first, self.count, self._limit_s = first, count, limit_s
        handle, name = tempfile.mkstemp(dir=folder)
        os.write(handle, first.to_bytes(8, "little") + bytes(8))
        os.close(handle)
        self._slot, self._out, self._err = Path(name), Path(f"{name}.out"), Path(f"{name}.err")
        command = [sys.executable, "-m", "tests.fuzzing", str(count), "--target", target, "--seed", str(first)]
        command += ["--memory", str(memory_bytes >> 20), "--slot", name]
        with self._out.open("wb") as out, self._err.open("wb") as err:
            self._process = subprocess.Popen(command, cwd=ROOT, stdout=out, stderr=err, env={**os.environ, **_ENVIRONMENT})
        self._seen: tuple[int, int] = (first, 0)
        self._seen_at = time.monotonic() + 60  # it has to start first
        self.ended_by: str | None = None

    @property
    def place(self) -> tuple[int, int]:
        """The input that it is at, and how many it has done."""
        data = self._slot.read_bytes()
        return int.from_bytes(data[:8], "little"), int.from_bytes(data[8:16], "little")

    def poll(self) -> bool:
        """Whether it has ended."""
        code = self._process.poll()
        if code is not None:
            if code < 0:
                self.ended_by = f"killed by {signal.Signals(-code).name}"
            elif code:
                self.ended_by = f"exit code {code}: {self._err.read_text(errors='replace').strip()[-300:]}"
            return True
        place, now = self.place, time.monotonic()
        if place != self._seen:
            self._seen, self._seen_at = place, now
        elif now - self._seen_at > self._limit_s:
            self._process.kill()
            self._process.wait()
            self.ended_by = f"took longer than {self._limit_s:g} s"
            return True
        return False

    def stop(self) -> None:
        self._process.kill()
        self._process.wait()

    def lines(self) -> list[dict[str, Any]]:
        return [json.loads(line) for line in self._out.read_text().splitlines() if line.startswith("{")]


def fuzz(target: str, first: int, count: int, *, workers: int, limit_s: float = 20, memory_bytes: int = 1 << 30) -> Tally:
    """So many inputs of a target, from this seed on."""
    tally, begun = Tally(target), time.monotonic()
    waiting = [(at, min(_PER_WORKER, first + count - at)) for at in range(first, first + count, _PER_WORKER)]
    if workers > 1 and len(waiting) < workers:
        share = -(-count // workers)
        waiting = [(at, min(share, first + count - at)) for at in range(first, first + count, share)]
    running: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="swjoin-fuzz-") as folder:
        try:
            while waiting or running:
                while waiting and len(running) < workers:
                    running.append(_Worker(target, *waiting.pop(0), limit_s, memory_bytes, Path(folder)))
                for worker in [w for w in running if w.poll()]:
                    running.remove(worker)
                    waiting = _settle(worker, tally) + waiting
                time.sleep(_POLL_S)
        finally:
            for worker in running:
                worker.stop()
    tally.wall_s = time.monotonic() - begun
    return tally


def _settle(worker: _Worker, tally: Tally) -> list[tuple[int, int]]:
    """Take over what a worker has found; returns what it has left undone."""
    told = 0
    for line in worker.lines():
        if "wrong" in line:
            tally.findings.append((line["seed"], line["wrong"]))
        else:
            told = line["done"]
            tally.outcomes.update(line["outcomes"])
            seconds, seed = line["slowest"]
            tally.slowest = max(tally.slowest, (seconds, seed))
    if told == worker.count and worker.ended_by is None:
        return []
    seed, finished = worker.place
    tally.findings.append((seed, worker.ended_by or "the worker ended without a word"))
    if finished == 0 and seed == worker.first and "exit code" in (worker.ended_by or ""):
        return []  # it cannot even start: the next one could not either
    tally.outcomes["not told, its worker died"] += finished - told
    tally.outcomes["wrong"] += 1
    left = worker.first + worker.count - (seed + 1)
    return [(seed + 1, left)] if left > 0 else []
