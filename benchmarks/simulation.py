"""Accuracy of the model: predicted against measured throughput and production delay, on real MPI ranks of this machine.

What: twelve configurations that differ in slaves, pace, rate, skew, distribution epoch, fine tuning, node speeds, payload and
moves; each is run with `swjoin run -n` and modelled with one set of costs, measured on this machine before or given, and the
same for all configurations. Every answer is compared with DuckDB's. Throughput and delay are those of the second half of the
distribution epochs, as in the paper: a short run spends much of its time on starting, on memory used for the first time, and on
its report.
Why: a forecast needs a known error.
Stays out: keeping the figures; they are printed. Many gateways (`benchmarks.scale`, which this command runs as well).

Usage: python -m benchmarks.simulation [accuracy|scale] [--costs FILE] [--repeat N] [--only NAME ...] [--fit NAME] [--json FILE]
[--tiny]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import yaml

from benchmarks import parse, scale
from benchmarks.workloads.expected_results import expected
from benchmarks.workloads.steady_state import metrics_of, steady
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.calibrate.roles import calibrate
from swjoin.forecast.costs import CostModel, load_costs
from swjoin.forecast.model.run import simulate
from swjoin.forecast.summary import forecast


def _case(slaves: int, pace: str = "asap", **sections: Any) -> tuple[int, dict[str, Any]]:
    plain: dict[str, Any] = {
        "pace": pace,
        "join": {"within": "5s"},
        "workload": {"rate": 100_000, "duration": "40s"},
        "cluster": {"distribution_epoch": "500ms"},
        "module": {"theta": "32KB", "window": "2GB", "stream_buffer": "8MB"},
        "sink": {"kind": "count"},
    }
    for name, values in sections.items():
        plain[name] = {**plain.get(name, {}), **values}
    return slaves, plain


CASES: dict[str, tuple[int, dict[str, Any]]] = {
    "1 slave": _case(1),
    "3 slaves": _case(3),
    "5 slaves": _case(5),
    "3 slaves, uniform keys": _case(3, workload={"bias": 0.5}),
    "2 slaves, skewed keys": _case(2, workload={"bias": 0.8, "rate": 40_000}),
    "2 slaves, epochs of 50 ms": _case(2, cluster={"distribution_epoch": "50ms"}),
    "2 slaves, no fine tuning": _case(2, workload={"rate": 40_000}, module={"theta": 0}),
    "2 slaves, 48 B of payload": _case(2, sink={"carry_payload": True}),
    "2 slaves, one at half speed": _case(2, nodes={"speed": [1, 0.5]}),
    "3 slaves, real time": _case(3, "realtime", workload={"rate": 50_000, "duration": "15s"}),
    "2 slaves, real time, 2 sub-groups, t_d 2 s": _case(
        2, "realtime", workload={"rate": 100_000, "duration": "16s"}, cluster={"distribution_epoch": "2s", "sub_group_count": 2}
    ),
    "3 slaves, real time, moves": _case(
        3,
        "realtime",
        workload={"rate": 50_000, "duration": "15s"},
        reorganization={"policy": "random", "epoch": "1s", "random_moves": 4},
    ),
}


def measure(slaves: int, plain: dict[str, Any]) -> dict[str, Any]:
    """Run for real; returns run.json."""
    with tempfile.TemporaryDirectory(prefix="swjoin-simulation-") as folder:
        path = Path(folder) / "config.yaml"
        path.write_text(yaml.safe_dump(plain))
        command = [sys.executable, "-m", "swjoin", "run", str(path), "-n", str(slaves + 2), "--out", f"{folder}/run"]
        subprocess.run(command, check=True, capture_output=True, timeout=600)
        report: dict[str, Any] = json.loads((Path(folder) / "run" / "run.json").read_text())
        report["steady"] = steady(metrics_of(Path(folder) / "run"))
    return report


def checked(runs: list[dict[str, Any]], config: RunConfig) -> int:
    """The number of pairs of these runs; SystemExit when one is wrong."""
    answer = expected(config.workload, config.seed, config.query.bounds)
    for report in runs:
        found = report["results"]["count"], report["results"]["digest"]
        if found != answer or not report["ledger"]["balanced"]:
            raise SystemExit(f"wrong answer {found}, expected {answer}; ledger {report['ledger']}")
    return answer[0]


def _error(predicted: float, measured: float) -> str:
    return f"{100 * (predicted / measured - 1):+.0f} %"


def fitted(costs: CostModel, name: str, rate: float, cores: int) -> CostModel:
    """The costs with shared_capacity fitted to this configuration; the other configurations are then held out."""
    slaves, plain = CASES[name]
    low, high = 0.1, 1.0
    for _ in range(12):
        middle = dataclasses.replace(costs, shared_capacity=(low + high) / 2)
        planned = simulate(config_from_plain(plain), slaves, middle, host_cores=cores)
        faster = steady(dict(zip(COLUMNS, np.stack(planned.metrics).T, strict=True)))[0] > rate
        low, high = (low, middle.shared_capacity) if faster else (middle.shared_capacity, high)
    return dataclasses.replace(costs, shared_capacity=(low + high) / 2)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=("accuracy", "scale"), help="one of both parts alone")
    parser.add_argument("--costs", help="a preset or a file of swjoin calibrate (default: measure now)")
    parser.add_argument("--repeat", type=int, default=3, help="real runs per configuration; the median counts")
    parser.add_argument("--only", nargs="+", choices=CASES, metavar="NAME")
    parser.add_argument("--fit", choices=CASES, metavar="NAME", help="fit shared_capacity to this run")
    parser.add_argument("--json", type=Path)
    args = parse(parser, repeat=1, only=["1 slave", "3 slaves, real time"])
    costs: CostModel = calibrate(args.tiny, lambda line: None)[0] if args.costs is None else load_costs(args.costs)
    if args.part != "scale":
        accuracy(args, costs)
    if args.part != "accuracy":
        print()
        scale.tables(costs, args.repeat, tiny=args.tiny)


def accuracy(args: argparse.Namespace, costs: CostModel) -> None:
    """Run and model every configuration."""
    cores = os.cpu_count() or 1
    print(f"costs: {costs}\n{cores} cores shared by all ranks\n", flush=True)
    print(
        "| configuration | tuples/s predicted | measured | error | mean delay predicted | measured | error | ns in the join "
        "module | moves | pairs |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|")
    out = []
    names = list(args.only or CASES)
    if args.fit is not None:
        names = [args.fit, *(n for n in names if n != args.fit)]
    for name in names:
        slaves, plain = CASES[name]
        if args.tiny:
            plain = {**plain, "workload": {**plain["workload"], "rate": plain["workload"]["rate"] // 20, "domain": 10_000}}
        runs = [measure(slaves, plain) for _ in range(args.repeat)]
        if name == args.fit:
            costs = fitted(costs, name, statistics.median(r["steady"][0] for r in runs), cores)
        planned = simulate(config_from_plain(plain), slaves, costs, host_cores=cores)
        report = forecast(planned, "benchmarks.simulation")
        predicted = steady(dict(zip(COLUMNS, np.stack(planned.metrics).T, strict=True)))
        rate, delay, work = (statistics.median(r["steady"][i] for r in runs) for i in (0, 1, 2))
        pairs = checked(runs, config_from_plain(plain))
        print(
            f"| {name} | {predicted[0]:,.0f} | {rate:,.0f} | {_error(predicted[0], rate)} | {predicted[1] * 1e3:,.1f} ms | "
            f"{delay * 1e3:,.1f} ms | {_error(predicted[1], delay)} | "
            f"{predicted[2]:.0f} and {work:.0f} | {report['moves']} and {runs[0]['moves']} | "
            f"{_error(report['results']['count'], pairs)} |",
            flush=True,
        )
        out.append({"name": name, "predicted": predicted, "measured": (rate, delay, work), "first": report["saturates_first"]})
    counted = [r for r in out if r["name"] != args.fit]
    errors = [[abs(r["predicted"][i] / r["measured"][i] - 1) for r in counted] for i in (0, 1)]
    for what, values in zip(("throughput", "mean delay"), errors, strict=True):
        print(f"\n{what}: error {100 * statistics.median(values):.0f} % in the median, {100 * max(values):.0f} % at most")
    if args.json is not None:
        args.json.write_text(json.dumps(out, indent=2) + "\n")


if __name__ == "__main__":
    main()
