"""Tuples per second over the number of gateways: where they are the bottleneck, and where nothing is held.

What: `python -m benchmarks.gateways`: a join on MPI ranks with 1, 2 and 4 gateways, each on a rank of its own held to a
thirty-second of a core by the kernel's CPU quota, in the second half of the epochs, since to start takes such a gateway 20 s;
and the same numbers, not held, with four gateways over one at the same total rate. The numbers in turns, count and digest
checked in every run. Then the production delay in realtime pace with four gateways and with one, at half the rate that four
sustain.
Why: one gateway reads and routes so many tuples, whatever the number of slaves; several shall take as many times as many, and
cost little where one would do.
Stays out: other bottlenecks (`benchmarks.sinks`), forecasts of larger clusters (`benchmarks.simulation`).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks import parse
from benchmarks.cpu_quota import held
from benchmarks.workloads.steady_state import metrics_of, steady
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import gateway_role
from tests.tools.processes import LaunchedRun

SLAVES = 2
EPOCH_TUPLES = 131_072  # where nothing is held
EPOCH_MS = 10  # where delay is measured
_HELD_EPOCHS = 20  # as the start takes, perhaps, a quarter of them; large ones, as a round of messages takes 0.1 s then
_NOT_HELD = 2.5  # so many times the rate
_LEAST_RATE = 1_000
_LIMIT_S = 600.0


def config_of(gateways: int, seconds: int, rate: int, pace: str = "asap", epoch_tuples: int = EPOCH_TUPLES) -> dict[str, Any]:
    epoch = {"epoch_tuples": epoch_tuples} if pace == "asap" else {"distribution_epoch": f"{EPOCH_MS}ms"}
    return {
        "pace": pace,
        "join": {"within": "1s"},
        "workload": {"rate": rate, "duration": f"{seconds}s", "bias": 0.5, "domain": 10_000_000},
        "cluster": {"gateways": gateways, **epoch},
        "sink": {"kind": "count"},
    }


def run(plain: dict[str, Any], folder: Path, share: int) -> dict[str, Any]:
    """run.json. share: of a core that each gateway has; 0: as much as it gets."""
    gateways = plain["cluster"]["gateways"]
    out = folder / f"run{time.monotonic_ns()}"
    path = folder / "config.yaml"
    path.write_text(json.dumps(plain))
    ranks = RankMap.of_width(SLAVES, 1).size + gateways - 1  # the further gateways have ranks of their own
    roles = RankMap(ranks, 1, gateways)
    launched = LaunchedRun([str(path), "-n", str(ranks), "--out", str(out)], folder / "log")
    deadline = time.monotonic() + _LIMIT_S
    while share and not (out / "metrics").is_dir() and launched.process.poll() is None and time.monotonic() < deadline:
        time.sleep(0.005)
    pids = launched.ranks() if share else {}
    with held([pids[roles.rank_of(gateway_role(gateway))] for gateway in range(gateways) if share], share or 1):
        code = launched.end(_LIMIT_S)
    if code:
        raise SystemExit(f"{gateways} gateways: exit code {code}: {launched.said()}")
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report


def newest_run(folder: Path) -> Path:
    return max(folder.glob("run*"), key=lambda run: run.stat().st_mtime_ns)


def answer(report: dict[str, Any]) -> tuple[int, str]:
    """Count and digest."""
    return report["results"]["count"], report["results"]["digest"]


def _table(args: argparse.Namespace, folder: Path, share: int, seconds: int, rate: int) -> float:
    """Prints it; returns the median throughput of the most gateways, tuples per second of both streams."""
    speeds: dict[int, list[float]] = {gateways: [] for gateways in args.gateways}
    answers = set()
    for _ in range(args.repeat):
        for gateways, found in speeds.items():
            epoch_tuples = 2 * rate * seconds // _HELD_EPOCHS if share else EPOCH_TUPLES
            report = run(config_of(gateways, seconds, rate, epoch_tuples=epoch_tuples), folder, share)
            found.append(steady(metrics_of(newest_run(folder)))[0] if share else report["input_tuples_per_s"])
            answers.add(answer(report))
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    how = f"every gateway held to 1/{share} of a core" if share else "nothing held"
    print(f"2 x {rate * seconds:,} tuples, W = 1 s, uniform, {SLAVES} slaves; {how}")
    print("| gateways | k tuples/s | over one | range |\n|---|---|---|---|")
    for gateways, found in speeds.items():
        ratios = [speed / one for speed, one in zip(found, speeds[1], strict=True)]
        median, ratio = statistics.median(found) / 1e3, statistics.median(ratios)
        print(f"| {gateways} | {median:,.0f} | {ratio:.2f} | {min(ratios):.2f} to {max(ratios):.2f} |")
    return statistics.median(speeds[args.gateways[-1]])


def _sustained(gateways: int, folder: Path, seconds: int, rate: int, most_s: float) -> int:
    """The first rate, falling by a quarter each time, that so many gateways sustain in realtime pace, tuples per second of each
    stream: the p99 delay is at most `most_s`. rate: above it."""
    while rate >= _LEAST_RATE:
        report = run(config_of(gateways, seconds, rate, "realtime"), folder, 0)
        if report["delay_s"]["p99"] <= most_s:
            return rate
        rate = rate * 3 // 4
    raise SystemExit(f"{gateways} gateways do not sustain {_LEAST_RATE:,} tuples/s")


def _delays(args: argparse.Namespace, folder: Path, seconds: int, rate: int) -> None:
    """rate: tuples per second of each stream."""
    delays: dict[int, list[tuple[float, float]]] = {args.gateways[0]: [], args.gateways[-1]: []}
    answers = set()
    for _ in range(args.repeat):
        for gateways, found in delays.items():
            report = run(config_of(gateways, seconds, rate, "realtime"), folder, 0)
            found.append((1e3 * report["delay_s"]["p50"], 1e3 * report["delay_s"]["p99"]))
            answers.add(answer(report))
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    print(f"realtime pace, 2 x {rate:,} tuples/s for {seconds} s, W = 1 s, uniform, {SLAVES} slaves, t_d = {EPOCH_MS} ms")
    print("| gateways | delay p50 (ms) | p99 (ms) | range |\n|---|---|---|---|")
    for gateways, found in delays.items():
        p50, p99 = (sorted(values) for values in zip(*found, strict=True))
        print(f"| {gateways} | {statistics.median(p50):.1f} | {statistics.median(p99):.1f} | {p99[0]:.1f} to {p99[-1]:.1f} |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seconds", type=int, default=40, help="length of the streams; half of it in realtime pace")
    parser.add_argument(
        "--rate", type=int, default=400_000, help="tuples per second of each stream; 2.5 times as many, not held"
    )
    parser.add_argument("--share", type=int, default=32, help="of a core that a held gateway has: the inverse")
    parser.add_argument("--sustained-s", type=float, default=0.1, help="p99 delay, at most, of a rate that is sustained")
    parser.add_argument("--gateways", type=int, nargs="+", default=[1, 2, 4], help="their numbers, the first one 1")
    args = parse(parser, repeat=1, seconds=4, rate=100_000, share=2, sustained_s=60.0, gateways=[1, 2])
    with TemporaryDirectory(prefix="swjoin-bench-") as folder:
        _table(args, Path(folder), args.share, args.seconds, args.rate)
        reached = _table(args, Path(folder), 0, args.seconds, int(_NOT_HELD * args.rate))
        most = args.gateways[-1]
        sustained = _sustained(most, Path(folder), max(1, args.seconds // 4), int(reached / 4), args.sustained_s)
        print(f"{most} gateways sustain 2 x {sustained:,} tuples/s in realtime pace, t_d = {EPOCH_MS} ms")
        _delays(args, Path(folder), args.seconds // 2, sustained // 2)


if __name__ == "__main__":
    main()
