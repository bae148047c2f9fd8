"""A soak: one run on real MPI ranks for many minutes, with moves, resizes, and a kill every minute.

What: `Soak.run`, the run with all its parts; `draw_kill`, what is killed; `check`, what must hold in the end; and `python -m
tests.tools.soak.run [MINUTES]`.
Why: slow memory growth, files left behind and drifting counts show only in a long run with many failures.
Stays out: the run's shape and the machine's capacity (`tests.tools.soak.capacity`), the verdict on memory
(`tests.tools.soak.memory_growth`), the figure (`plots.soak`), short runs by the dozen (`tests.tools.random_runs`).

The job survives the death of a slave or of the collector. When only two slaves are left, or when the master or all processes
are killed, or a stop is requested, the run ends and is resumed on a random number of ranks. FOLDER has the run in `run`, the
output of each part, `memory.parquet`, `checkpoints.json` and `soak.json`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import os
import shutil
import signal
import sys
import time
import uuid
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.workloads.expected_results import digest_of_files, expected
from swjoin.cli.parser import Parser
from swjoin.config.run import RunConfig, to_plain
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.resources import load_figures
from swjoin.core.units import parse_duration_us, parse_size_bytes
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.processes import MARK, LaunchedRun, kill, left_of, mapped_of, memory_of
from tests.tools.soak.capacity import SHARE_OF_DISK, Shape, find_capacity, result_bytes
from tests.tools.soak.memory_growth import Sample, Samples, growth

SURVIVED = ("slave", "collector")
ENDING = ("master", "stop", "everybody")
SURVIVED_SHARE, COLLECTOR_SHARE = 0.8, 0.15  # of the kills, while there are enough slaves; of the former
FEWEST_SLAVES = 2
FEWEST_RANKS, MOST_RANKS = 4, 7
_SAMPLE_S, _MAPPED_S = 1.0, 5.0
_ROUND_S = 0.1
_END_S = 90.0  # time until all processes must have ended after a kill that ends the run
_GONE_S = 5.0
_QUIET_S = 60.0  # a run without a checkpoint for this time, and two intervals, hangs


def draw_kill(random: np.random.Generator, slaves: int) -> str:
    """What is killed: mostly a slave, at times the collector; with only two slaves left, a process whose death ends the run."""
    if slaves > FEWEST_SLAVES and random.random() < SURVIVED_SHARE:
        return "collector" if random.random() < COLLECTOR_SHARE else "slave"
    return str(random.choice(ENDING))


def roles_of(ranks: Iterable[int]) -> dict[int, str]:
    """The roles of the ranks that are left: the first one after the master's has the collector."""
    names = itertools.chain(("master", "collector"), itertools.repeat("slave"))
    return dict(zip(sorted(ranks), names, strict=False))


@dataclass(frozen=True)
class Kill:
    """time_s: since the start of the soak. slaves: living before the kill."""

    time_s: float
    part: int
    kind: str
    rank: int
    slaves: int


@dataclass(frozen=True)
class CheckpointSample:
    """A checkpoint, from its manifest. buffered_bytes: tuples that the master had read and not delivered."""

    time_s: float
    part: int
    generation: int
    clock_s: float
    slaves: int
    active_slaves: int
    buffered_bytes: int
    joined: int


@dataclass
class Soak:
    """every_s: between two kills. ranks: of the first part. most: number of kills."""

    config: RunConfig
    folder: Path
    ranks: int
    every_s: float
    seed: int
    most: int = sys.maxsize
    say: Callable[[str], None] = print
    samples: Samples = field(default_factory=Samples)
    cuts: list[CheckpointSample] = field(default_factory=list)
    kills: list[Kill] = field(default_factory=list)
    parts: list[dict[str, Any]] = field(default_factory=list)
    mark: str = field(default_factory=lambda: uuid.uuid4().hex)

    def __post_init__(self) -> None:
        self.out = self.folder / "run"
        self._random = np.random.default_rng([self.seed, 6])
        self._start_s = time.monotonic()
        memory = Path("/dev/shm")
        self.shared = (memory if memory.is_dir() else self.folder) / f"swjoin-soak-{self.mark[:8]}"

    @property
    def now_s(self) -> float:
        return time.monotonic() - self._start_s

    # ------------------------------------------------------------ parts

    def run(self) -> dict[str, Any]:
        """Run all parts until the run is complete; returns its run.json. SimulationError when something is wrong."""
        config, ranks = self.folder / "config.yaml", self.ranks
        config.write_text(json.dumps(to_plain(self.config)))  # JSON is YAML
        self.shared.mkdir()
        arguments = [str(config), "--out", str(self.out)]
        self._start_s = time.monotonic()
        while True:
            report = self._part([*arguments, "-n", str(ranks)], ranks)
            if report.get("complete"):
                return report
            arguments, ranks = ["--resume", str(self.out)], int(self._random.integers(FEWEST_RANKS, MOST_RANKS + 1))
            self.say(f"{self.now_s:6.0f} s  resumed on {ranks} ranks")

    def _part(self, arguments: list[str], ranks: int) -> dict[str, Any]:
        """Run from a start or a resumption until the ranks have ended; returns run.json, if this part wrote it."""
        number, start_s = len(self.parts), self.now_s
        started_at = time.time()
        visible = self._visible_results()
        environment = {MARK: self.mark, "OMPI_MCA_btl_sm_backing_directory": str(self.shared)}
        run = LaunchedRun(arguments, self.folder / f"part-{number:02d}.log", environment)
        try:
            last = self._sample_and_kill(run, number)
            code = run.end(_END_S)
        finally:
            if run.process.poll() is None:
                run.kill_all()
        report = _report(self.out, started_at)
        facts = {"recoveries": (report.get("checkpoints") or {}).get("recoveries"), "moves": report.get("moves")}
        facts["peak_pending_tuples"] = report.get("peak_pending_tuples")
        self.parts.append({"part": number, "from_s": start_s, "to_s": self.now_s, "ranks": ranks, "code": code, **facts})
        missing = [name for name in visible if not (self.out / "results" / name).exists()]
        if missing:
            raise SimulationError(f"part {number}: results {missing[:5]} were visible before, and are missing")
        kind = None if last is None else last.kind
        if code == 2 or (code and kind not in ("master", "everybody")):
            raise SimulationError(f"part {number}: exit code {code} after {kind or 'nothing'}: {run.said()}")
        if not code and kind != "stop" and not report.get("complete"):
            raise SimulationError(f"part {number}: ended by itself after {kind or 'nothing'}: {run.said()}")
        return report

    def _visible_results(self) -> list[str]:
        folder = self.out / "results"
        return sorted(p.name for p in folder.glob("part-*")) if folder.is_dir() else []

    def _sample_and_kill(self, run: LaunchedRun, part: int) -> Kill | None:
        """Sample and kill until the run ends, or until a kill that ends it, which is returned."""
        next_sample_s = killed_s = checkpoint_s = self.now_s
        mapped_s = 0.0
        while run.process.poll() is None:
            now = self.now_s
            if now >= next_sample_s:
                next_sample_s += _SAMPLE_S
                with_maps = now >= mapped_s + _MAPPED_S
                slaves = self._sample(run, part, with_maps)
                mapped_s = now if with_maps else mapped_s
                if self._note_checkpoint(part, slaves):
                    checkpoint_s = now
                if now > checkpoint_s + _QUIET_S + 2 * self.config.checkpoint.interval_us / 1e6:
                    raise SimulationError(f"part {part}: no checkpoint for {now - checkpoint_s:.0f} s: {run.said()}")
            if now >= killed_s + self.every_s and self._may_kill(part):
                killed_s = now
                killed = self._kill(run, part)
                if killed is not None and killed.kind in ENDING:
                    return killed
            time.sleep(_ROUND_S)
        return None

    # ------------------------------------------------------------ sampling

    def _sample(self, run: LaunchedRun, part: int, with_maps: bool) -> int:
        """Add a row for each rank; returns the number of living slaves."""
        ranks, now = run.ranks(), self.now_s
        roles = roles_of(ranks)
        slaves = sum(role == "slave" for role in roles.values())
        for rank, pid in sorted(ranks.items()):
            memory = memory_of(pid)
            if memory is not None:
                mapped = mapped_of(pid) if with_maps else None
                maps = (0, 0) if mapped is None else (mapped.proportional_bytes, mapped.reserved_bytes)
                row = (now, part, rank, roles[rank], pid, slaves)
                self.samples.add(Sample(*row, memory.resident_bytes, memory.anonymous_bytes, *maps))
        return slaves

    def _note_checkpoint(self, part: int, slaves: int) -> bool:
        """Add the newest checkpoint. False without a new one."""
        newest = max((self.out / "checkpoints").glob("checkpoint-*.json"), default=None)
        if newest is None:
            return False
        generation = int(newest.stem.split("-")[1])
        if self.cuts and (self.cuts[-1].part, self.cuts[-1].generation) >= (part, generation):
            return False
        try:
            plain = json.loads(newest.read_text())
        except (OSError, ValueError):
            return False  # just removed: a newer one follows
        state = plain["master"]["state"]["controller"]
        sizes = (len(state["active"]), sum(part["frames"]["nbytes"] for part in plain["gateways"]), sum(plain["joined"]))
        new = not self.cuts or self.cuts[-1].generation != generation
        if new:
            self.cuts.append(CheckpointSample(self.now_s, part, generation, plain["clock_us"] / 1e6, slaves, *sizes))
        return new

    # ------------------------------------------------------------ killing

    def _may_kill(self, part: int) -> bool:
        """Whether this part has made a checkpoint, and the end of the streams is not near."""
        if not self.cuts or self.cuts[-1].part != part or len(self.kills) >= self.most:
            return False
        newest = self.cuts[-1]
        clock_s = newest.clock_s + self.now_s - newest.time_s
        return clock_s < self.config.workload.duration_us / 1e6 - 2 * self.config.checkpoint.interval_us / 1e6

    def _kill(self, run: LaunchedRun, part: int) -> Kill | None:
        """Kill a process, or all; None when the run has just ended."""
        ranks = run.ranks()
        roles = roles_of(ranks)
        slaves = [rank for rank, role in roles.items() if role == "slave"]
        if not slaves:
            return None
        kind = draw_kill(self._random, len(slaves))
        victims = [rank for rank, role in roles.items() if role == kind]
        rank = int(self._random.choice(victims)) if victims else -1
        killed = Kill(self.now_s, part, kind, rank, len(slaves))
        if kind == "everybody":
            run.kill_all()
        elif kind == "stop":
            kill(run.process.pid, signal.SIGTERM)
        else:
            run.kill([rank])
        self.kills.append(killed)
        target = f"rank {rank} ({roles[rank]})" if rank >= 0 else kind
        self.say(f"{killed.time_s:6.0f} s  {'SIGTERM' if kind == 'stop' else 'SIGKILL'}: {target}; {len(slaves)} slaves lived")
        return killed

    # ------------------------------------------------------------ the end

    def clear_up(self) -> dict[str, Any]:
        """Remove remaining processes and files of shared memory; returns how many there were."""
        deadline = time.monotonic() + _GONE_S
        while (pids := left_of(self.mark)) and time.monotonic() < deadline:
            time.sleep(_ROUND_S)
        for pid in pids:
            kill(pid, signal.SIGKILL)
        segments = [path.stat().st_blocks * 512 for path in self.shared.iterdir()] if self.shared.is_dir() else []
        shutil.rmtree(self.shared, ignore_errors=True)
        return {"processes": len(pids), "shared_memory_files": len(segments), "shared_memory_bytes": sum(segments)}

    def save(self, table: Path, more: dict[str, Any]) -> None:
        """Write the table of memory, checkpoints.json and soak.json."""
        self.samples.save(table)
        (self.folder / "checkpoints.json").write_text(json.dumps([asdict(cut) for cut in self.cuts], indent=1) + "\n")
        plain = {"strikes": [asdict(s) for s in self.kills], "parts": self.parts, "table": str(table), **more}
        (self.folder / "soak.json").write_text(json.dumps(plain, indent=1) + "\n")


def _report(out: Path, since: float) -> dict[str, Any]:
    """run.json, if it was written after `since`."""
    path = out / "run.json"
    if not path.exists() or path.stat().st_mtime < since:
        return {}
    plain: dict[str, Any] = json.loads(path.read_text())
    return plain


def check(soak: Soak, report: dict[str, Any], left: dict[str, Any], answer: tuple[int, str]) -> list[str]:
    """Errors of a finished run, memory excepted."""
    wrong = []
    results = report["results"]
    if (results["count"], results["digest"]) != answer:
        wrong.append(f"{results['count']} pairs with digest {results['digest']}; DuckDB has {answer[0]} with {answer[1]}")
    if not report["ledger"]["balanced"]:
        wrong.append(f"the ledger does not balance: {report['ledger']['complaints']}")
    if soak.config.sink.kind != "count":
        found = digest_of_files(soak.out / "results")
        if found != answer:
            wrong.append(f"the result files hold {found[0]} pairs with digest {found[1]}")
        rest = [p.name for p in (soak.out / "results").iterdir() if not p.name.startswith("part-")]
        if rest:
            wrong.append(f"left behind in results: {rest[:5]}")
    if (soak.out / "checkpoints").exists():
        wrong.append(f"left behind in checkpoints: {[p.name for p in (soak.out / 'checkpoints').iterdir()][:5]}")
    if left["processes"]:
        wrong.append(f"{left['processes']} processes were left, and have been killed")
    return wrong


# ---------------------------------------------------------------- the command


def _arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = Parser(prog="run.sh soak", description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "minutes", metavar="MINUTES", nargs="?", type=float, default=30.0, help="length of the streams (default 30)"
    )
    parser.add_argument("--table", metavar="FILE", type=Path, help="memory of every rank and second, .parquet or .csv")
    parser.add_argument("--rate", type=float, help="tuples/s and stream; default: SHARE of the capacity")
    parser.add_argument(
        "--capacity", type=float, help="tuples/s and stream that the machine keeps up with; default: is searched"
    )
    parser.add_argument("--share", type=float, default=0.7, help="of the capacity (default 0.7)")
    parser.add_argument("--window", default="10s", help="W (default 10s)")
    parser.add_argument("--epoch", default="200ms", help="distribution epoch (default 200ms)")
    parser.add_argument("--checkpoint", default="5s", help="interval of checkpoints (default 5s)")
    parser.add_argument("--every", default="60s", help="between two kills (default 60s)")
    parser.add_argument(
        "--most", type=int, default=sys.maxsize, help="kills, all together (default: as many as there is time for)"
    )
    parser.add_argument("--domain", type=int, default=Shape.domain, help="of the keys (default 10^9: about a pair per tuple)")
    parser.add_argument(
        "--sink", choices=["auto", "parquet", "count"], default="auto", help="auto: parquet if the disk has room"
    )
    parser.add_argument("--theta", default="32KB", help="theta (default 32KB; 0KB: no fine tuning, so that a tuple costs more)")
    parser.add_argument("--groups", type=int, default=Shape.groups, help="partition-groups (default 60)")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("-n", dest="ranks", type=int, default=6, help="ranks of the first part (default 6)")
    parser.add_argument(
        "--bound", type=float, default=1.0, help="percent a minute by which a role's memory may grow (default 1)"
    )
    parser.add_argument("--keep", action="store_true", help="keep the result files; without, right ones are removed in the end")
    parser.add_argument(
        "--out", type=Path, default=Path("runs/soak"), help="folder (default runs/soak); an older soak there goes"
    )
    args = parser.parse_args(argv)
    if args.ranks < FEWEST_RANKS:
        parser.error(f"-n must be at least {FEWEST_RANKS}")
    for name in ("minutes", "rate", "capacity", "share", "bound"):
        value = getattr(args, name)
        if value is not None and not 0 < value < math.inf:
            parser.error(f"{'MINUTES' if name == 'minutes' else f'--{name}'} must be a number above 0")
    for name, least in (("most", 0), ("domain", 1), ("groups", 1), ("seed", 0)):
        if getattr(args, name) < least:
            parser.error(f"--{name} must be at least {least}")
    return args


def _seconds(text: str) -> float:
    return parse_duration_us(text) / 1e6


def choose_rate(args: argparse.Namespace, shape: Shape, say: Callable[[str], None]) -> tuple[Shape, float, dict[str, Any]]:
    """The shape with its sink, the rate of each stream, and the capacity."""
    kinds = ["parquet", "count"] if args.sink == "auto" else [args.sink]
    given = args.rate or (args.capacity and args.share * args.capacity)
    if given:
        return replace(shape, sink=kinds[0]), given, {"capacity": args.capacity}
    trials = args.out / "capacity"
    for kind in kinds:
        shape = replace(shape, sink=kind)
        say(f"capacity of {args.ranks} ranks, sink {kind}:")
        best = find_capacity(shape, args.ranks, trials, say)
        rate = args.share * best.rate_per_s
        needed, free = result_bytes(best, shape, rate, 60 * args.minutes), shutil.disk_usage(args.out).free
        say(f"capacity {best.rate_per_s:,.0f} tuples/s and stream; the soak has {rate:,.0f}, {args.share:.0%} of it")
        if kind != kinds[-1] and needed > SHARE_OF_DISK * free:
            say(f"results would take {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free: sink count")
            continue
        say(f"sink {kind}: about {needed / 1e9:.1f} GB of results" if kind != "count" else "sink count: no result files")
        break
    return shape, rate, {"capacity": best.rate_per_s}


def _fresh(folder: Path) -> None:
    """Empty the folder of an older soak. UserError when it has other content."""
    if folder.exists() and any(folder.iterdir()):
        if not (folder / "soak.json").exists():
            raise UserError(f"{folder}: is not empty, and holds no soak; choose another --out")
        shutil.rmtree(folder)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "soak.json").write_text("{}\n")


def prepare(args: argparse.Namespace) -> tuple[Shape, float]:
    """The shape and seconds between two kills, and an empty folder. UserError before an older soak is removed."""
    spans, every_s = (_seconds(args.window), _seconds(args.epoch), _seconds(args.checkpoint)), _seconds(args.every)
    if every_s <= 0:
        raise UserError(f"--every {args.every}: must be above 0")
    shape = Shape(*spans, args.domain, parse_size_bytes(args.theta), args.groups, seed=args.seed)
    shape.config(args.rate or 1000.0, 60 * args.minutes)
    _fresh(args.out)
    return shape, every_s


def run_soak(args: argparse.Namespace, shape: Shape, every_s: float, say: Callable[[str], None]) -> list[str]:
    """Run, check and store a soak; returns its errors."""
    shape, rate, found = choose_rate(args, shape, say)
    config = shape.config(rate, 60 * args.minutes)
    soak = Soak(config, args.out, args.ranks, every_s, args.seed, args.most, say)
    table = args.table or args.out / "memory.parquet"
    more: dict[str, Any] = {"rate_per_s": rate, **found, "shape": asdict(shape), "cores": os.cpu_count()}
    left: dict[str, Any] = {}
    try:
        report = soak.run()
    finally:
        left = soak.clear_up()
        soak.save(table, {**more, "left": left})
    say(f"{soak.now_s:6.0f} s  complete: {report['results']['count']:,} pairs; DuckDB joins the same streams")
    answer = expected(config.workload, config.seed, config.query.bounds)
    wrong = check(soak, report, left, answer)
    grown = growth(soak.samples.columns(), 2 * shape.window_s + _seconds(args.checkpoint))
    for role in grown:
        line = f"memory of the {role.line(args.bound / 100)}"
        say(line)
        wrong += [line] if role.flat(args.bound / 100) is False else []
    counts = {kind: sum(s.kind == kind for s in soak.kills) for kind in (*SURVIVED, *ENDING)}
    say(f"{len(soak.kills)} kills ({', '.join(f'{n} {kind}' for kind, n in counts.items() if n)}), {len(soak.parts)} parts")
    say(f"left in shared memory: {left['shared_memory_files']} files, {left['shared_memory_bytes'] / 2**20:.1f} MiB; removed")
    more |= {"left": left, "results": report["results"], "ledger": report["ledger"], "answer": answer, "wrong": wrong}
    soak.save(table, {**more, "memory": [asdict(g) for g in grown], "bound_percent": args.bound, "input": report["input"]})
    if not wrong and not args.keep:
        shutil.rmtree(soak.out / "results", ignore_errors=True)
    return wrong


def draw(folder: Path, say: Callable[[str], None]) -> None:
    """Draw the figure, also of a failed soak, where matplotlib is installed."""
    try:
        for path in load_figures("soak").save(folder):
            say(str(path))
    except UserError as error:
        say(f"no figure: {error}")


def main(argv: list[str] | None = None) -> int:
    """Exit code 0 if the results are right and memory is flat."""
    args = _arguments(argv)

    def say(line: str) -> None:
        print(line, flush=True)

    try:
        shape, every_s = prepare(args)
    except UserError as error:
        print(f"run.sh: {error}", file=sys.stderr)
        return 2
    try:
        wrong = run_soak(args, shape, every_s, say)
    except (SimulationError, SwjoinError) as error:
        print(f"soak: {error}", file=sys.stderr)
        return 2 if isinstance(error, UserError) else 1
    except KeyboardInterrupt:
        print("soak: interrupted; its processes have been killed", file=sys.stderr)
        return 130
    finally:
        draw(args.out, say)
    for line in wrong:
        print(f"soak: {line}", file=sys.stderr)
    if not wrong:
        say("right: count and digest, ledger, nothing left behind, memory")
    return 1 if wrong else 0


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    raise SystemExit(main())
