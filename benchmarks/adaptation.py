"""Cost and gain of adapting, on real MPI ranks: the pause of a move, a slowed slave, a changing rate, sub-groups, units.

What: `pause`, `slowed_slave`, `changing_rate`, `sub_groups`, `units_in_use`; each runs whole commands, checks that all runs of
a question have the same count and digest, prints a table and, but for the last, draws its figure.
Why: moves must not stop the join, and must gain more than they cost.
Stays out: speed at full load (`run.py`), prediction (`simulation.py`).

Slow nodes are imitated (`nodes.speed`): four slaves with a twentieth of a core each leave two cores mostly idle, so the
protocol is measured and not an overloaded machine.

Usage: python -m benchmarks.adaptation [--out FOLDER] [--only pause|slowed|rate|sub-groups|units] [--tiny]
"""

from __future__ import annotations

import argparse
import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT, parse

PAUSE = {
    "seed": 1,
    "pace": "realtime",
    "join": {"within": "15s"},
    "workload": {"rate": 200_000, "duration": "45s", "bias": 0.5, "domain": 1_000_000_000, "payload": "48B"},
    "cluster": {"distribution_epoch": "250ms", "mini_buffer": "512MB"},
    "module": {"theta": "32KB", "window": "4GB", "stream_buffer": "64MB"},
    "reorganization": {"policy": "random", "epoch": "2s", "random_moves": 1},
    "sink": {"kind": "parquet"},
}
PARTITIONS = {100: 4, 10: 40, 1: 400}  # MB of a partition-group: their number, so that all windows hold about 430 MB
SLOW_NODE, SLOWED_AT_S = 0.05, 15
SLOWED = {
    "seed": 1,
    "pace": "realtime",
    "time": {"model": "arrival"},
    "join": {"within": "1s"},
    "workload": {"rate": 400_000, "duration": "60s", "bias": 0.7},
    "cluster": {"distribution_epoch": "200ms", "mini_buffer": "512MB"},
    "module": {"theta": "32KB", "window": "1GB", "stream_buffer": "4MB"},
    "reorganization": {"epoch": "2s"},
    "sink": {"kind": "count"},
}
RATE = {
    "seed": 1,
    "pace": "realtime",
    "time": {"model": "arrival"},
    "join": {"within": "1s"},
    "workload": {
        "rate": 200_000,
        "duration": "90s",
        "bias": 0.7,
        "schedule": {"kind": "sine", "amplitude": 0.9, "period": "60s"},
    },
    "cluster": {"distribution_epoch": "200ms", "mini_buffer": "512MB"},
    "module": {"theta": "32KB", "window": "1GB", "stream_buffer": "4MB"},
    "reorganization": {"policy": "balanced", "epoch": "1s", "supplier_threshold": 0.05, "confirmations": 2},
    "nodes": {"speed": [SLOW_NODE] * 4},
    "sink": {"kind": "count"},
}
SLOTS = {
    "seed": 1,
    "pace": "realtime",
    "time": {"model": "arrival"},
    "join": {"within": "1s"},
    "workload": {"rate": 20_000, "duration": "12s", "bias": 0.5},
    "cluster": {"distribution_epoch": "1s"},
    "module": {"window": "256MB", "stream_buffer": "16MB"},
    "sink": {"kind": "count"},
}
UNITS = {
    "pace": "realtime",
    "cluster": {"routing": "random:4,4", "distribution_epoch": "200ms"},
    "module": {"window": "15MB"},
    "sink": {"kind": "count"},
}
UNITS_SQL = """SELECT l.v FROM l JOIN r ON abs(l.v - r.v) <= 5
    AND r.ts BETWEEN l.ts - INTERVAL '{0}' MILLISECOND AND l.ts + INTERVAL '{0}' MILLISECOND"""
UNITS_WINDOW_MS, UNITS_RATES = 5_000, ((0, 1), (8, 1), (14, 6), (22, 6), (26, 1), (40, 1))  # (s, multiple of the least rate)
UNITS_RATE = 5_000  # the least, of either stream, tuples/s
# With --tiny every question has these settings, too: a tenth of the time, and few tuples.
SHORTER = 10
TINY = {
    "pause": ["join.within=1500ms", "workload.duration=4500ms", "workload.rate=5000", "workload.domain=10000"],
    "slowed": ["join.within=500ms", "workload.duration=6s", "workload.rate=4000", "workload.domain=10000"],
    "rate": ["join.within=500ms", "workload.duration=6s", "workload.rate=4000", "workload.domain=10000"],
    "sub-groups": ["workload.duration=4s", "workload.rate=4000", "workload.domain=10000"],
}
TINY["pause"] += ["cluster.distribution_epoch=50ms", "reorganization.epoch=500ms"]
TINY["slowed"] += ["reorganization.epoch=600ms"]
TINY["rate"] += ["workload.schedule.period=4s"]
Report = dict[str, Any]


def run(config: dict[str, Any], folder: Path, slaves: int, *more: str) -> Report:
    """Run on MPI ranks; returns run.json."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    path = folder.with_suffix(".yaml")
    path.write_text(json.dumps(config))
    shutil.rmtree(folder, ignore_errors=True)  # an earlier measurement; a run replaces no other
    command = [sys.executable, "-m", "swjoin", "run", str(path), "-n", str(slaves + 2), "--out", str(folder)]
    command += [word for setting in more for word in ("--set", setting)]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, timeout=1200, cwd=ROOT)
    report: Report = json.loads((folder / "run.json").read_text())
    if not report["ledger"]["balanced"]:
        raise SystemExit(f"{folder.name}: the ledger does not balance")
    return report


def same_answer(reports: dict[str, Report]) -> None:
    """SystemExit unless all runs of a comparison, which join the same tuples, have the same answer."""
    answers = {name: (r["results"]["count"], r["results"]["digest"]) for name, r in reports.items()}
    if len(set(answers.values())) != 1:
        raise SystemExit(f"different answers: {answers}")


def columns(path: Path) -> dict[str, Any]:
    table = pq.read_table(path)
    return {name: table.column(name).to_numpy(zero_copy_only=False) for name in table.column_names}


# ---------------------------------------------------------------- the pause


def pause(folder: Path, tiny: bool) -> list[dict[str, Any]]:
    """Hold-back, speed, and the other partition-groups' delay, for partition-groups of 1, 10 and 100 MB."""
    rows = []
    reports = {}
    for size, partitions in PARTITIONS.items():
        out = folder / f"pause-{size}"
        reports[str(size)] = run(PAUSE, out, 3, f"cluster.partition_count={partitions}", *(TINY["pause"] if tiny else []))
        rows.append({"size": size, **(pause_of(out, 1_000_000, 4_400_000, 50_000) if tiny else pause_of(out))})
    same_answer(reports)
    return rows


def pause_of(out: Path, full_us: int = 16_000_000, end_us: int = 44_000_000, settle_us: int = 500_000) -> dict[str, Any]:
    """Hold-back, speed and the others' delay from full_us, when the windows are full, to end_us, shortly before the end.

    During a move (held to installed) a slave joins other partition-groups only: the moving one's tuples are held back or joined
    after it. An epoch is quiet when no move touches it: it ends before the move's hold-back, or settle_us after its release.
    """
    events, slaves = columns(out / "metrics" / "events.parquet"), columns(out / "metrics" / "slaves.parquet")
    moves = [
        {
            kind: i
            for kind in ("held", "left", "installed", "released")
            for i in np.flatnonzero((events["kind"] == kind) & (events["amount"] == number))
        }
        for number in np.unique(events["amount"][events["kind"] == "released"])
    ]
    moves = [m for m in moves if events["time_us"][m["held"]] > full_us]
    held = np.array([events["duration_us"][m["released"]] for m in moves]) / 1e3
    done = np.array([events["time_us"][m["installed"]] - events["time_us"][m["held"]] for m in moves]) / 1e3
    state = np.array([events["state_bytes"][m["installed"]] for m in moves]) / 1e6
    speed = state / np.array([events["duration_us"][m["installed"]] for m in moves]) * 1e6
    end, p99 = slaves["epoch_end_us"], slaves["delay_p99_us"] / 1e3
    some = (slaves["pairs"] > 0) & (end > full_us) & (end < end_us)
    during, quiet = np.zeros(len(end), bool), some.copy()
    for move in moves:
        start, installed, released = (events["time_us"][move[k]] for k in ("held", "installed", "released"))
        during |= some & (end >= start) & (end - slaves["process_us"] <= installed) & (end < released)
        quiet &= (end < start) | (end > released + settle_us)
    return {
        "moves": len(moves),
        "state_mb": float(np.median(state)),
        "held_ms": np.quantile(held, [0.5, 0.99]).tolist(),
        "transfer_ms": np.quantile(done, [0.5, 0.99]).tolist(),
        "mb_per_s": np.quantile(speed, [0.5, 0.01]).tolist(),
        "quiet_p99_ms": float(np.median(p99[quiet])),
        "during_p99_ms": float(np.median(p99[during])) if during.any() else float("nan"),
        "epochs": [int(quiet.sum()), int(during.sum())],
    }


def pause_table(rows: list[dict[str, Any]]) -> str:
    lines = [
        "| partition-group | moves | hold-back p50, p99 (ms) | order to installed p50, p99 (ms) | MB/s median, slowest | "
        "others' p99 delay quiet, during (ms) | ratio | epochs quiet, during |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for r in rows:
        ratio = r["during_p99_ms"] / r["quiet_p99_ms"]
        lines.append(
            f"| {r['state_mb']:.1f} MB | {r['moves']} | {r['held_ms'][0]:.0f}, {r['held_ms'][1]:.0f} | "
            f"{r['transfer_ms'][0]:.0f}, {r['transfer_ms'][1]:.0f} | {r['mb_per_s'][0]:.0f}, {r['mb_per_s'][1]:.0f} | "
            f"{r['quiet_p99_ms']:.0f}, {r['during_p99_ms']:.0f} | {ratio:.2f} | {r['epochs'][0]}, {r['epochs'][1]} |"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------- a slowed slave, a changing rate


def mean_delay_ms(out: Path, start_s: float, stop_s: float) -> float:
    """Mean production delay of the pairs produced in an interval of a run."""
    rows = columns(out / "metrics" / "slaves.parquet")
    inside = (rows["epoch_end_us"] >= start_s * 1e6) & (rows["epoch_end_us"] < stop_s * 1e6)
    pairs = rows["pairs"][inside]
    return float((rows["delay_mean_us"][inside] * pairs).sum() / max(1, pairs.sum()) / 1e3)


def compare(runs: dict[str, Path], target: Path, name: str) -> None:
    from plots import comparison
    from plots.style import save

    save(comparison.plot(runs), target, name)


def slowed_nodes(faster: int) -> dict[str, Any]:
    """Four slow nodes, one of which becomes slower."""
    change = {"slave": 0, "at": f"{1000 * SLOWED_AT_S // faster}ms", "speed": SLOW_NODE / 4}
    return {"speed": [SLOW_NODE] * 4, "changes": [change]}


def slowed_slave(folder: Path, target: Path, tiny: bool) -> str:
    """One slave of four drops to a quarter of its speed; without moves, with the paper's, with the balanced policy."""
    policies = {"without moves": "none", "paper": "paper", "balanced": "balanced"}
    runs = {name: folder / f"slowed-{policy}" for name, policy in policies.items()}
    more = TINY["slowed"] if tiny else []
    faster = SHORTER if tiny else 1
    plain = {**SLOWED, "nodes": slowed_nodes(faster)}
    reports = {name: run(plain, runs[name], 4, f"reorganization.policy={policy}", *more) for name, policy in policies.items()}
    same_answer(reports)
    compare(runs, target, "slowed_slave")
    edges = [5, *(SLOWED_AT_S + step for step in (0, 5, 10, 20, 30, 40))]
    spans = list(itertools.pairwise(edges))
    lines = [
        "| | " + " | ".join(f"{a} to {b} s" for a, b in spans) + " | moves | whole run (s) |",
        "|---" * (len(spans) + 3) + "|",
    ]
    for name, out in runs.items():
        delays = " | ".join(f"{mean_delay_ms(out, a / faster, b / faster):.0f}" for a, b in spans)
        lines.append(f"| {name} | {delays} | {reports[name]['moves']} | {reports[name]['join_s']:.1f} |")
    return "\n".join(lines)


def changing_rate(folder: Path, target: Path, tiny: bool) -> str:
    """A sine-shaped rate: with all four slaves active, with adaptive declustering, and by measured work."""
    settings = {
        "four slaves": ["reorganization.declustering=fixed"],
        "paper's rule": ["reorganization.declustering=adaptive", "reorganization.active_slaves=2"],
        "by measured work": ["reorganization.declustering=measured", "reorganization.active_slaves=2"],
    }
    runs = {name: folder / f"rate-{i}" for i, name in enumerate(settings)}
    more = TINY["rate"] if tiny else []
    reports = {name: run(RATE, runs[name], 4, *settings[name], *more) for name in settings}
    same_answer(reports)
    compare(runs, target, "changing_rate")
    lines = [
        "| | communication, summed over slaves (s) | deliveries | mean delay (ms) | p99 delay (ms) | "
        "active slaves, mean | moves |",
        "|---" * 7 + "|",
    ]
    for name, out in runs.items():
        rows, report = columns(out / "metrics" / "slaves.parquet"), reports[name]
        epochs = len(np.unique(rows["epoch"]))
        delay = report["delay_s"]
        lines.append(
            f"| {name} | {rows['communication_us'].sum() / 1e6:.2f} | {len(rows['epoch'])} | {delay['mean'] * 1e3:.0f} | "
            f"{delay['p99'] * 1e3:.0f} | {len(rows['epoch']) / epochs:.2f} | {report['moves']} |"
        )
    return "\n".join(lines)


# ---------------------------------------------------------------- sub-groups


def sub_groups(folder: Path, target: Path, tiny: bool) -> str:
    """The master's peak of pending tuples for 1, 2, 4 and 8 sub-groups of 8 slaves, and the paper's formula."""
    points = []
    reports = {}
    for count in (1, 2, 4, 8):
        report = run(
            SLOTS, folder / f"sub-groups-{count}", 8, f"cluster.sub_group_count={count}", *(TINY["sub-groups"] if tiny else [])
        )
        reports[str(count)] = report
        points.append((count, report["peak_pending_tuples"], report["delay_s"]["mean"] * 1e3))
    same_answer(reports)
    rate, epoch_s = report["config"]["workload"]["rate_per_s"], 1.0
    formula = {n: 2 * rate * epoch_s / 2 * (1 + 1 / n) for n, _, _ in points}  # two streams
    from plots import sub_groups as figure
    from plots.style import save

    save(figure.plot({n: peak for n, peak, _ in points}, formula), target, "sub_groups")
    lines = [
        "| sub-groups | measured peak (tuples) | (r t_d / 2)(1 + 1/n_g), both streams | ratio | mean delay (ms) |",
        "|---" * 5 + "|",
    ]
    for n, peak, delay in points:
        lines.append(f"| {n} | {peak:,} | {formula[n]:,.0f} | {peak / formula[n]:.2f} | {delay:.0f} |")
    return "\n".join(lines)


# ---------------------------------------------------------------- units in use


def units_in_use(folder: Path, tiny: bool) -> str:
    """A rate that rises to six times and falls again: with all units, and with one that stores at first. Gaps: between two
    distribution epochs with results, of any slave; memory is back once the units that store no more are empty."""
    inputs, faster = {}, SHORTER / 2 if tiny else 1.0
    for seed, name in enumerate(("l", "r")):
        random = np.random.default_rng(seed)
        at_s = np.arange(0, UNITS_RATES[-1][0], 0.001)
        rates = np.interp(at_s, [s for s, _ in UNITS_RATES], [multiple for _, multiple in UNITS_RATES]) * UNITS_RATE / faster
        counts = random.poisson(rates * 0.001)
        times = np.sort(np.repeat(at_s, counts) + random.random(counts.sum()) * 0.001) / faster
        table = {
            "v": random.integers(0, 1_000_000, len(times)),
            "ts": pa.array((times * 1e6).astype(np.int64), pa.timestamp("us")),
        }
        path = folder / f"units-{name}.parquet"
        pq.write_table(pa.table(table), path)
        inputs[name] = {"path": str(path), "time": "ts"}
    few = ["reorganization.scaling.units=1", f"reorganization.scaling.confirmations={1 if tiny else 3}"]
    few += [f"reorganization.scaling.every={500 / faster:g}ms"]
    settings = {"all units": [], "as many as are needed": few}
    shorter = ["cluster.distribution_epoch=100ms", "module.window=4MB"] if tiny else []
    window_ms = int(UNITS_WINDOW_MS / faster)
    config = UNITS | {"queries": [{"sql": UNITS_SQL.format(window_ms)}], "inputs": inputs}
    runs = {name: folder / f"units-{i}" for i, name in enumerate(settings)}
    reports = {name: run(config, runs[name], 4, *settings[name], *shorter) for name in settings}
    same_answer(reports)
    epoch_s = reports["all units"]["config"]["cluster"]["distribution_epoch_us"] / 1e6
    lines = [
        "| | longest gap without results (t_d) | mean delay (ms) | units, left and right, at most | peak of windows (MB), all "
        "slaves | slaves with windows | memory back after (windows) |",
        "|---" * 7 + "|",
    ]
    for name, out in runs.items():
        rows, stage = columns(out / "metrics" / "slaves.parquet"), reports[name]["stages"][0]
        end_us = UNITS_RATES[-1][0] * 1e6 / faster
        ends = np.unique(rows["epoch_end_us"][(rows["pairs"] > 0) & (rows["epoch_end_us"] < end_us)])
        gap = float(np.diff(ends).max()) / 1e6 / epoch_s
        peaks = [peak / 1e6 for peak in stage["peak_window_bytes"]]
        units, back = "4, 4", ""
        if "units" in stage:
            changes = stage["units"]["changes"]
            most = [max([1, *(c["to"] for c in changes if c["side"] == side)]) for side in ("left", "right")]
            units, back = "{}, {}".format(*most), f"{emptied_s(out) * 1_000 / window_ms:.2f}"
        delay_ms = reports[name]["delay_s"]["mean"] * 1e3
        used = sum(peak > 0.01 for peak in peaks)
        lines.append(f"| {name} | {gap:.2f} | {delay_ms:.0f} | {units} | {sum(peaks):.1f} | {used} | {back} |")
    return "\n".join(lines)


def emptied_s(out: Path) -> float:
    """Longest time, on the run's clock, from when a unit stores no more until it is empty."""
    events = columns(out / "metrics" / "events.parquet")
    closing: dict[int, float] = {}
    longest = 0.0
    for kind, group, time_us in zip(events["kind"], events["group"], events["time_us"], strict=True):
        if kind == "unit_closing":
            closing[group] = time_us
        elif kind == "unit_closed" and group in closing:
            longest = max(longest, (time_us - closing.pop(group)) / 1e6)
    return longest


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "adaptation", help="where runs and figures go")
    parser.add_argument("--only", choices=["pause", "slowed", "rate", "sub-groups", "units"])
    args = parse(parser)
    subprocess.run(["rm", "-rf", str(args.out)], check=True)
    args.out.mkdir(parents=True)
    parts: dict[str, tuple[str, Callable[[], str]]] = {
        "pause": ("The pause of a state movement", lambda: pause_table(pause(args.out, args.tiny))),
        "slowed": (
            "One slave of four slowed to a quarter: mean production delay (ms)",
            lambda: slowed_slave(args.out, args.out, args.tiny),
        ),
        "rate": ("A sine-shaped rate", lambda: changing_rate(args.out, args.out, args.tiny)),
        "sub-groups": ("Sub-groups", lambda: sub_groups(args.out, args.out, args.tiny)),
        "units": ("Units in use", lambda: units_in_use(args.out, args.tiny)),
    }
    for name, (title, measure) in parts.items():
        if args.only in (None, name):
            print(f"\n### {title}\n\n{measure()}", flush=True)
    print(f"\nfigures: {args.out}/*.png")


if __name__ == "__main__":
    main()
