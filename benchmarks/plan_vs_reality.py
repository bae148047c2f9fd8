"""Accuracy of `swjoin plan`: predicted against measured sustainable rate and memory, on six configurations of this machine.

What: six configurations that differ in window, payload, skew, distribution epoch, kind of join, slaves, ranks or threads. Each
is planned with costs measured on this machine just before it, or given. Its sustainable rate is then searched with real runs,
and its memory measured in three runs at half that rate: run.json has predicted and measured memory.
Sustainable rate: the highest rate per stream at which a run in realtime pace, with prefilled windows, keeps its production
delay flat (`monitor.sustainability.sustained`, the same criterion for both; an overloaded machine is no objection here). It is
found by bisection until the lowest rate that is not sustained is within 8 %; the answer is the middle. A rate counts as
sustained if one of two runs sustains it: other load of the machine can only lower the rate.
Four configurations imitate slower nodes, limited to their share of CPU time, so that the slaves are the limit and not the
shared cores of the machine; two use the cores as they are. Memory: window state of the heaviest slave, and resident bytes of
all ranks together, peak against predicted; medians. Answers are checked: the ledger of every run balances, and the number of
its pairs is within 3 % of the forecast where the forecast has one (inner joins). The calibration is the full one, for each
configuration anew, because the speed of a shared machine changes; --quick has too few tuples in a delivery for their cost.
Why: a forecast needs a known error.
Stays out: keeping the figures; they are printed.

Usage: python -m benchmarks.plan_vs_reality [--costs FILE] [--only NAME ...] [--json FILE] [--tiny]
"""

from __future__ import annotations

import argparse
import json
import math
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import yaml

from benchmarks import parse
from swjoin.monitor.sustainability import read_rows, sustained

EPOCHS = 16  # that are measured
STEP = 1.08
GOAL = {"saturation": 0.25, "windows": 0.15, "resident": 0.15}


def _case(slaves: int, mpi: bool, window_s: float, epoch_s: float, **sections: Any) -> tuple[int, bool, dict[str, Any]]:
    plain: dict[str, Any] = {
        "pace": "realtime",
        "join": {"within": f"{window_s}s"},
        "workload": {"rate": 50_000, "duration": "10s"},
        "cluster": {"distribution_epoch": f"{epoch_s}s", "mini_buffer": "1GB"},
        "module": {"theta": "32KB", "window": "4GB", "stream_buffer": "64MB"},
        "sink": {"kind": "count"},
    }
    for name, values in sections.items():
        plain[name] = {**plain.get(name, {}), **values}
    return slaves, mpi, plain


CASES: dict[str, tuple[int, bool, dict[str, Any]]] = {
    "1 thread, W 2 s": _case(1, False, 2, 0.25),
    "2 threads, W 1 s, 48 B": _case(2, False, 1, 0.25, sink={"carry_payload": True}),
    "1 slow rank, W 4 s, uniform keys": _case(1, True, 4, 0.5, workload={"bias": 0.5}, nodes={"node_speed": 0.1}),
    "2 slow ranks, W 2 s, skewed keys": _case(2, True, 2, 0.25, workload={"bias": 0.8}, nodes={"node_speed": 0.1}),
    "3 slow ranks, W 3 s, 200 B": _case(
        3, True, 3, 0.3, workload={"payload": "200B"}, sink={"carry_payload": True}, nodes={"node_speed": 0.05}
    ),
    "2 slow ranks, semi-join, no fine tuning": _case(
        2, True, 2, 0.2, join={"how": "semi"}, module={"theta": 0}, nodes={"node_speed": 0.1, "speed": [1, 0.5]}
    ),
}


def _swjoin(*words: str) -> str:
    done = subprocess.run([sys.executable, "-m", "swjoin", *words], capture_output=True, text=True, check=False, timeout=600)
    if done.returncode:
        raise SystemExit(f"swjoin {' '.join(words)}: {done.stderr.strip()[-600:]}")
    return done.stdout


def _ranks(slaves: int, mpi: bool) -> list[str]:
    return ["-n", str(slaves + 2)] if mpi else ["--threads", str(slaves)]


def planned(path: Path, slaves: int, mpi: bool, costs: Path) -> dict[str, Any]:
    """The output of `swjoin plan --json`."""
    words = ["plan", str(path), *_ranks(slaves, mpi), "--costs", str(costs), "--host-cores", str(os.cpu_count() or 1), "--json"]
    found: dict[str, Any] = json.loads(_swjoin(*words))
    return found


def run(path: Path, slaves: int, mpi: bool, rate_per_s: float) -> tuple[bool, str, dict[str, Any]]:
    """Run at this rate: whether it is sustained, the reason, and run.json. SystemExit when the ledger does not balance."""
    plain = yaml.safe_load(path.read_text())
    t_d, window = (float(plain[a][b][:-1]) for a, b in (("cluster", "distribution_epoch"), ("join", "within")))
    prefill = math.ceil(window / t_d - 1e-9) * t_d
    settings = {
        "measure.prefill": f"{prefill:g}s",
        "measure.warm_up": f"{2 * t_d:g}s",
        "measure.rush": "true",
        "workload.duration": f"{prefill + (EPOCHS + 2) * t_d:g}s",
        "workload.rate": f"{rate_per_s:.0f}",
    }
    if plain["join"].get("how", "inner") != "inner":  # has no history: its windows fill in real time
        settings |= {"measure.prefill": "0s", "measure.warm_up": f"{prefill + 2 * t_d:g}s"}
    sets = [w for name, value in settings.items() for w in ("--set", f"{name}={value}")]
    with tempfile.TemporaryDirectory(prefix="swjoin-reality-") as folder:
        _swjoin("run", str(path), *_ranks(slaves, mpi), *sets, "--out", f"{folder}/run")
        out = Path(folder) / "run"
        report: dict[str, Any] = json.loads((out / "run.json").read_text())
        if not report["ledger"]["balanced"]:
            raise SystemExit(f"{path}: the ledger does not balance: {report['ledger']['complaints']}")
        kept, why = sustained(read_rows(out), {**report, "machine": None})
    return kept, why, report


def measured_rate(path: Path, slaves: int, mpi: bool, first: float, step: float) -> float:
    """The highest rate that is sustained, by bisection from `first` to a factor of `step`."""
    low, high, rate = 0.0, math.inf, first
    while high > step * low:
        for _ in range(2):
            kept, why, _ = run(path, slaves, mpi, rate)
            say(f"{rate:,.0f}: {why}")
            if kept:
                break
        low, high = (rate, high) if kept else (low, rate)
        rate = low * 1.5 if high == math.inf else high / 1.5 if low == 0 else math.sqrt(low * high)
    return math.sqrt(low * high)


def memory(reports: list[dict[str, Any]]) -> dict[str, tuple[float, float]]:
    """Medians over runs of predicted and highest bytes."""
    found = [memory_of(report) for report in reports]
    return {what: tuple(statistics.median(f[what][i] for f in found) for i in (0, 1)) for what in found[0]}  # type: ignore[misc]


def memory_of(report: dict[str, Any]) -> dict[str, tuple[float, float]]:
    """Predicted and highest bytes: windows of the heaviest slave, all ranks' resident memory."""
    found = report["memory"]
    if found["unforeseen"] is not None:
        raise SystemExit(f"no estimate: {found['unforeseen']}")
    heaviest = max(found["slaves"], key=lambda s: s["window"]["predicted"])["window"]
    ranks = found["ranks"].values()
    return {
        "windows": (heaviest["predicted"], heaviest["peak"]),
        "resident": (sum(r["predicted"] for r in ranks), sum(r["peak"] for r in ranks)),
    }


def error(predicted: float, measured: float) -> float:
    return predicted / measured - 1


def measure(name: str, folder: Path, costs: Path, tiny: bool) -> dict[str, Any]:
    """One configuration: {what: (predicted, measured)}."""
    slaves, mpi, plain = CASES[name]
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump(plain))
    forecast = planned(path, slaves, mpi, costs)
    predicted = forecast["saturation"]["rate_per_s"]
    say(f"{name}: plan says {predicted:,.0f} ({forecast['saturation']['resource']})")
    found = measured_rate(path, slaves, mpi, predicted / 3, 2.0) if tiny else measured_rate(path, slaves, mpi, predicted, STEP)
    reports = [run(path, slaves, mpi, found / 2)[2] for _ in range(1 if tiny else 3)]
    report = reports[0]
    if plain["join"].get("how", "inner") == "inner":
        half = report["config"]["workload"]["rate_per_s"] / plain["workload"]["rate"]  # pairs grow with the square of the rate
        expected = (
            forecast["network"]["pairs_per_s"] * half**2 * (EPOCHS + 2) * report["config"]["cluster"]["distribution_epoch_us"]
        )
        if abs(error(expected / 1e6, report["results"]["count"])) > 0.03:
            raise SystemExit(f"{name}: {report['results']['count']:,} pairs, {expected / 1e6:,.0f} were expected")
    return {"saturation": (predicted, found), "resource": forecast["saturation"]["resource"], **memory(reports)}


def say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--costs", type=Path, help="a file of swjoin calibrate (default: swjoin calibrate, now)")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME")
    parser.add_argument("--json", type=Path)
    args = parse(parser, only=[next(iter(CASES))])
    out: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory(prefix="swjoin-reality-") as name:
        folder = Path(name)
        print(f"{os.cpu_count()} cores shared by all ranks\n")
        head = (
            "tuples/s and stream, plan | measured | error | windows, plan (MB) | measured | error | all ranks | saturates first"
        )
        print(f"| configuration | {head} |\n|{'---|' * 9}", flush=True)
        for case in args.only or CASES:
            costs = args.costs
            if costs is None:
                costs = folder / "costs.yaml"
                _swjoin("calibrate", "-o", str(costs), *["--quick"] * args.tiny)
            say(f"costs: {' '.join(costs.read_text().split())}")
            found = out[case] = measure(case, folder, costs, args.tiny)
            rate, window, resident = (found[w] for w in GOAL)
            print(
                f"| {case} | {rate[0]:,.0f} | {rate[1]:,.0f} | {100 * error(*rate):+.0f} % | {window[0] / 1e6:,.1f} | "
                f"{window[1] / 1e6:,.1f} | {100 * error(*window):+.1f} % | {100 * error(*resident):+.1f} % | "
                f"{found['resource']} |",
                flush=True,
            )
    print()
    for what, goal in GOAL.items():
        errors = [abs(error(*found[what])) for found in out.values()]
        within = sum(e <= goal for e in errors)
        middle, most = 100 * statistics.median(errors), 100 * max(errors)
        print(f"{what}: {middle:.0f} % in the median, {most:.0f} % at most; {within} of {len(errors)} within {goal:.0%}")
    if args.json is not None:
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
