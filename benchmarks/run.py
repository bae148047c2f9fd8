"""Our side of the benchmarks: `./run.sh bench`. Every answer is checked in the run that is timed.

What: a table with one row per target, medians of five with their range, then ceilings, the breakdown of a tuple's nanoseconds,
and the curves. Measures that are compared (ours and the C++ program's, ours and DuckDB's) take turns, so that a drifting
machine hits both. Everything is printed and kept in runs/bench/ (results.md, sweeps.json, throughput.png).
Why: all claims of speed come from here.
Stays out: other systems (`peers/run.py`).

Usage: python -m benchmarks.run [--only module growth whole links memory start kernels sweeps] [--repeat N] [--out FOLDER]
    [--tiny]
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import growth, kernels, links, parse, sweeps, whole
from benchmarks.join_module import THETA_BYTES, checked
from benchmarks.join_module import run as run_module
from benchmarks.workloads import TINY, WORKLOADS, deliveries, epoch_of, expected, sized, stream, write_streams

REPEATS = 5
HERE = Path(__file__).parent
SECTIONS = ("module", "growth", "whole", "links", "memory", "start", "kernels", "sweeps")
lines: list[str] = []


def say(line: str = "") -> None:
    print(line, flush=True)
    lines.append(line)


def header(title: str) -> None:
    say(f"\n## {title}\n")
    say("| what | median | lowest to highest | floor | goal |\n|---|---|---|---|---|")


def row(what: str, values: list[float], unit: str, floor: str = "", goal: str = "", digits: int = 2) -> None:
    middle, low, high = statistics.median(values), min(values), max(values)
    say(f"| {what} | {middle:.{digits}f} {unit} | {low:.{digits}f} to {high:.{digits}f} | {floor} | {goal} |")


def turns(cases: dict[str, Callable[[], float]], repeats: int = REPEATS) -> dict[str, list[float]]:
    """Each case once per turn; the first turn warms caches and does not count."""
    figures: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(repeats + 1):
        for name, measure in cases.items():
            value = measure()
            if turn:
                figures[name].append(value)
    return figures


# ---------------------------------------------------------------- the join module


def _reference_program(folder: Path) -> Path | None:
    """The C++ symmetric hash join, built here; None without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    program = folder / "reference"
    source = HERE / "peers" / "reference.cpp"
    subprocess.run([compiler, "-std=c++20", "-O3", "-march=native", str(source), "-o", str(program)], check=True)
    return program


def _program_rate(program: Path, mode: str, raw: list[Path], answer: tuple[int, str], window_us: int) -> float:
    command = [str(program), mode, *map(str, raw), str(window_us), "1"]
    found = json.loads(subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout)
    if (found["count"], found["digest"]) != answer:
        raise SystemExit(f"C++ {mode}: wrong answer {found}, expected {answer}")
    return float(found["tuples"] / found["seconds"][0])


def bench_module(folder: Path, repeat: int, tiny: bool) -> None:
    header("Join module alone, one core, count and digest, M tuples/s")
    program = _reference_program(folder)
    for name, floor, goal in (("reference", "1.1", "1.3"), ("uniform", "0.95", "1.1")):
        workload, window_us = WORKLOADS[name]
        streams = [stream(sized(workload, tiny), side) for side in range(2)]
        answer = expected(streams[0], streams[1], window_us)
        work = deliveries(streams[0], streams[1], epoch_of(streams[0], streams[1], window_us))

        def ours(work: Any = work, window_us: int = window_us, answer: tuple[int, str] = answer, name: str = name) -> float:
            measured = checked(run_module(work, window_us), answer, name)
            return measured.tuples / measured.seconds / 1e6

        cases: dict[str, Callable[[], float]] = {"ours": ours}
        if program is not None:
            raw = [folder / f"{name}-{side}.bin" for side in range(2)]
            for path, batch in zip(raw, streams, strict=True):
                np.stack([batch.ts, batch.key], 1).tofile(path)
            for mode in ("batched", "plain"):
                cases[mode] = lambda mode=mode, raw=raw, answer=answer, w=window_us: (  # type: ignore[misc]
                    _program_rate(program, mode, raw, answer, w) / 1e6
                )
        figures = turns(cases, repeat)
        row(f"{name}: swjoin", figures["ours"], "M/s", digits=1)
        if program is None:
            say(f"| {name}: C++ | no g++ here | | | |")
            continue
        row(f"{name}: C++ symmetric hash join, batched prefetch, AVX-512 where present", figures["batched"], "M/s", digits=1)
        row(f"{name}: C++ symmetric hash join, plain", figures["plain"], "M/s", digits=1)
        ratios = [a / b for a, b in zip(figures["ours"], figures["batched"], strict=True)]
        row(f"{name}: swjoin over C++ batched, turn by turn", ratios, "", floor, goal)


def bench_growth(repeat: int, tiny: bool) -> None:
    header("ns per tuple while the window grows, one match per tuple, join module, one core")
    medians = {}
    rate = growth.RATE // TINY if tiny else growth.RATE
    for window_s in (1.0, 10.0, 100.0):
        figures, tuples, state = growth.measure(window_s, 1.0, THETA_BYTES, None, repeat, rate)
        medians[window_s] = statistics.median(figures)
        row(f"W = {window_s:g} s, {tuples:,} tuples in windows, {state >> 20} MiB of state", figures, "ns", digits=1)
    say(f"| growth factor, 100-fold | {medians[100.0] / medians[1.0]:.2f} | | 1.7 | 1.3 |")


# ---------------------------------------------------------------- commands and links


def bench_whole(folder: Path, repeat: int, tiny: bool) -> None:
    paths, answer, tuples = write_streams(folder, tiny=tiny)
    workload = f"{tuples:,} tuples of 64 bytes, b = 0.7, W = 10 s, {answer[0]:,} pairs"
    header(f"Whole commands on Parquet, {workload}, without start-up, M tuples/s")

    def join(out: str, more: list[str], one_core: bool = False) -> Callable[[], float]:
        return lambda: whole.join(paths, answer, folder, out, more, one_core) / 1e6

    figures = turns(
        {
            "in-process, Parquet to count, pinned to one core": join("count", [], True),
            "in-process, Parquet to count": join("count", []),
            "the same with one slave": join("count", ["--threads", "1"]),
            "DuckDB, Parquet to count, 2 threads": lambda: whole.duckdb_count(paths, answer, tuples) / 1e6,
            "MPI, 1 slave (3 ranks), Parquet to count": join("count", ["-n", "3"]),
            "MPI, 2 slaves (4 ranks), Parquet to count": join("count", ["-n", "4"]),
            "the same, communication: synchronous": join("count", ["-n", "4", "--communication", "synchronous"]),
        },
        repeat,
    )
    targets = {"MPI, 2 slaves (4 ranks), Parquet to count": ("2.5", "4")}
    for name, values in figures.items():
        row(name, values, "M tuples/s", *targets.get(name, ("", "")))
    ours = figures["in-process, Parquet to count"]
    theirs, ranks = figures["DuckDB, Parquet to count, 2 threads"], figures["MPI, 2 slaves (4 ranks), Parquet to count"]
    row("Parquet to count, over DuckDB, turn by turn", [a / b for a, b in zip(ours, theirs, strict=True)], "", "1.5", "2.0")
    row("MPI, 2 slaves, over in-process, turn by turn", [a / b for a, b in zip(ranks, ours, strict=True)], "", "1.0", "1.1")
    pairs = turns(
        {
            "in-process, Parquet to Parquet with payload": join("out.parquet", []),
            "DuckDB, the same, 2 threads": lambda: whole.duckdb_parquet(paths, answer, folder, tuples) / 1e6,
        },
        repeat,
    )
    for name, values in pairs.items():
        row(name, values, "M tuples/s")
    ours, theirs = pairs.values()
    row("Parquet to Parquet, over DuckDB, turn by turn", [a / b for a, b in zip(ours, theirs, strict=True)], "", "1.8", "2.5")


def bench_links(folder: Path, repeat: int, tiny: bool) -> None:
    header("The links alone, two MPI ranks")

    def figures(what: str) -> list[float]:
        return [v / 1e6 for v in links.start(what, [], folder / "link.json", repeat, tiny=tiny)]

    row("master to a null slave, rows in memory", figures("master"), "M tuples/s", "8", "20", 1)
    row("slave to collector, pairs of 40 bytes", figures("results"), "M pairs/s", "20", "40", 1)


def bench_memory(folder: Path, tiny: bool) -> None:
    window_s, rate = (5, 5_000) if tiny else (100, 100_000)
    header("Resident memory of a slave over the bytes of the tuples in its windows (64 each), payload stored")
    found = whole.memory(folder, 4, window_s, rate)
    resident = f"{found['resident_bytes'] / 2**20:.0f} MiB resident"
    what = f"2 slaves, W = {window_s} s, {found['window_tuples']:,.0f} tuples each, {resident}"
    row(what, [found["ratio"]], "", "1.5", "1.3")


def bench_start(folder: Path, repeat: int) -> None:
    header("Start-up, caches warm")
    found = [whole.start_up(folder) for _ in range(repeat + 1)][1:]
    row("`swjoin --help`", [f[0] for f in found], "s", "0.5", "0.2")
    row("5 MPI ranks, 2,000 tuples, start to end of the command", [f[1] for f in found], "s", "4 to first epoch", "2")


def bench_kernels(repeat: int, tiny: bool) -> None:
    from swjoin.monitor.process_settings import keep_freed_memory

    keep_freed_memory()
    best_of = 1 if tiny else kernels.REPEATS
    say(f"\n## Ceilings of this core, and single kernels\n\n| what | best of {best_of} |\n|---|---|")
    for name, (value, unit) in {**kernels.ceilings(best_of), **kernels.rates(best_of)}.items():
        say(f"| {name} | {value:.1f} {unit} |")
    say("\n## Where a tuple's nanoseconds go (reference workload, one core)\n\n| phase | ns |\n|---|---|")
    for name, value in kernels.breakdown(repeat, tiny=tiny).items():
        say(f"| {name} | {value:.1f} |")


def bench_sweeps(out: Path, tiny: bool) -> None:
    points = sweeps.measure_all(quick=True, tiny=tiny)
    (out / "sweeps.json").write_text(json.dumps(points, indent=1))
    say("\n## Curves (M tuples/s, one core, windows full; throughput.png)\n")
    for name, curve in points.items():
        say(f"- {sweeps.LABELS[name][0]}: " + ", ".join(f"{p['x']:g}: {p['rate'] / 1e6:.1f}" for p in curve))
    sweeps.draw(points, out)


def environment() -> str:
    import numba
    import numpy
    import pyarrow

    about = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.split(":")[1].strip() for line in about if line.startswith("model name")), platform.processor())
    versions = f"numpy {numpy.__version__}, numba {numba.__version__}, pyarrow {pyarrow.__version__}"
    return f"{os.cpu_count()} cores ({model}), Python {platform.python_version()}, {versions}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", nargs="+", choices=SECTIONS, default=SECTIONS)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    parser.add_argument("--repeat", type=int, default=REPEATS)
    args = parse(parser, repeat=1)
    repeat, tiny = args.repeat, args.tiny
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{environment()}; medians of {repeat}, a first turn not counted; every answer checked.")
    with tempfile.TemporaryDirectory(prefix="swjoin-bench-") as name:
        folder = Path(name)
        steps: dict[str, Callable[[], None]] = {
            "module": lambda: bench_module(folder, repeat, tiny),
            "growth": lambda: bench_growth(repeat, tiny),
            "whole": lambda: bench_whole(folder, repeat, tiny),
            "links": lambda: bench_links(folder, repeat, tiny),
            "memory": lambda: bench_memory(folder, tiny),
            "start": lambda: bench_start(folder, repeat),
            "kernels": lambda: bench_kernels(repeat, tiny),
            "sweeps": lambda: bench_sweeps(args.out, tiny),
        }
        for section in SECTIONS:
            if section in args.only:
                steps[section]()
                (args.out / "results.md").write_text("\n".join(lines) + "\n")
    print(f"\nkept in {args.out}/results.md", file=sys.stderr)


if __name__ == "__main__":
    main()
