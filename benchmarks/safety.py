"""Cost of safety: throughput with checkpoints and with fault tolerance, and the time of a recovery over the window size.

What: `cost`, the same join in turns on the same ranks: without either, with checkpoints, with fault tolerance (ULFM) and the
resilient channel, with both; `recovery`, one slave of three, or the rank of a gateway or a sink, killed in the middle of a run
with windows of different lengths.
Every answer is checked in the run that is timed, against DuckDB's.
Why: users of checkpoints need to know their price and their benefit.
Stays out: correctness of recovery (`tests.tools.random_runs`), long runs (`tests.tools.soak.run`).

The reference workload is much longer than elsewhere, so that a run has several checkpoints of 10 s; its two Parquet files a
side are large and stay in FOLDER/streams until they are removed. ULFM without checkpoints is no mode of `swjoin run`, because a
death would end the run anyway; for this measurement this module starts such ranks itself.

Usage: python -m benchmarks.safety [--only cost|recovery] [--seconds 1800] [--ranks 5 4] [--repeats 5]
[--victims slave gateway sink] [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT, parse, run_mpirun
from benchmarks.run import environment, lines, row, say, turns
from benchmarks.workloads.expected_results import expected
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import gateway_role, sink_role, slave_role
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import SLOT_US, slot_count, slot_tuples
from swjoin.core.join_semantics import Bounds
from tests.tools.processes import LaunchedRun

RATE, BIAS, SEED, WINDOW_US = 100_000, 0.7, 1, 10_000_000
PIECE_S = 60  # of stream, in one file
WINDOWS_S = (1, 5, 20, 60)
AROUND_S = 12  # of a run with a death: before it with full windows, and after it
VICTIMS = ("slave", "gateway", "sink")
Answer = tuple[int, str]
Report = dict[str, Any]


# ---------------------------------------------------------------- cost


def write_streams(folder: Path, seconds: int) -> Answer:
    """Write the reference workload of `seconds` as Parquet files without payload; returns the expected answer."""
    workload = WorkloadConfig(RATE, seconds * 1_000_000, BIAS)
    cached = folder / "answer.json"
    if cached.exists() and json.loads(cached.read_text())["seconds"] == seconds:
        count, digest = json.loads(cached.read_text())["answer"]
        return count, digest
    shutil.rmtree(folder, ignore_errors=True)
    for side in range(2):
        (folder / str(side)).mkdir(parents=True)
        slots = PIECE_S * 1_000_000 // SLOT_US
        for piece, start in enumerate(range(0, slot_count(workload), slots)):
            parts = [slot_tuples(workload, SEED, side, s) for s in range(start, min(start + slots, slot_count(workload)))]
            table = pa.table({"ts": np.concatenate([p[0] for p in parts]), "key": np.concatenate([p[1] for p in parts])})
            pq.write_table(table, folder / str(side) / f"{piece:04d}.parquet", compression="lz4")
    answer = expected(workload, SEED, Bounds(-WINDOW_US, WINDOW_US))
    cached.write_text(json.dumps({"seconds": seconds, "answer": answer}))
    return answer


def cost_config(streams: Path, checkpoint: dict[str, Any]) -> Report:
    sides = {
        name: {"path": str(streams / str(i)), "key": ["key"], "time": "ts", "time_unit": "us"}
        for i, name in enumerate(("left", "right"))
    }
    return {
        **sides,
        "join": {"within": "10s"},
        "pace": "asap",
        "cluster": {"partition_count": 60, "distribution_epoch": 0},
        "module": {"theta": "32KB"},
        "sink": {"kind": "count"},
        "checkpoint": checkpoint,
    }


def run_once(plain: Report, ranks: int, answer: Answer, folder: Path, *, surviving: bool = False) -> Report:
    """Run; returns run.json. surviving: with ULFM and the resilient channel, with or without checkpoints."""
    out = folder / "run"
    shutil.rmtree(out, ignore_errors=True)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    if surviving:
        from swjoin.runtime.launch import mpirun_options
        from swjoin.runtime.preflight import find_mpirun

        job = folder / "job.json"
        job.write_text(Job(config_from_plain(plain), None, True, out, None, "benchmarks.safety").to_json())
        command = [
            *mpirun_options(find_mpirun(), ranks),
            "--with-ft",
            "ulfm",
            sys.executable,
            "-m",
            "benchmarks.safety",
            "--rank",
            str(job),
        ]
    else:
        config = folder / "config.yaml"
        config.write_text(json.dumps(plain))
        command = [sys.executable, "-m", "swjoin", "run", str(config), "-n", str(ranks), "--out", str(out)]
    run_mpirun(command, stdout=subprocess.DEVNULL, env=environment, timeout=1800)
    return checked(json.loads((out / "run.json").read_text()), answer)


def checked(report: Report, answer: Answer) -> Report:
    """SystemExit unless the run has this answer and its ledger balances."""
    if (report["results"]["count"], report["results"]["digest"]) != answer or not report["ledger"]["balanced"]:
        raise SystemExit(f"wrong answer {report['results']}, expected {answer}; ledger {report['ledger']}")
    return report


def play_rank(job: Path) -> None:
    """The rank program of a run with ULFM and without checkpoints: every rank gets the resilient channel."""
    from swjoin.runtime import preflight
    from swjoin.runtime.mpi import main
    from swjoin.runtime.mpi.resilient_channel import ResilientChannel, library_survives

    if not library_survives():
        raise SystemExit("this MPI library has no fault tolerance (mpirun --with-ft ulfm)")
    preflight.check_world()
    main.Channel = functools.partial(ResilientChannel, mend="start anew")  # type: ignore[assignment, attr-defined, misc]
    main.run_rank(Job.from_json(job.read_text()), progress=False)


def cost(streams: Path, folder: Path, answer: Answer, ranks: int, interval: str, repeats: int) -> dict[str, list[float]]:
    """Measure M tuples/s of each mode, in turns; print a table. Ratios are taken turn by turn."""
    off: dict[str, Any] = {}
    ways: dict[str, tuple[dict[str, Any], bool]] = {
        "neither": (off, False),
        f"checkpoints every {interval}": ({"interval": interval, "recover": False}, False),
        "ULFM": (off, True),
        "both, as `swjoin run` starts it": ({"interval": interval}, False),
    }
    made: dict[str, list[Report]] = {name: [] for name in ways}

    def measure(name: str) -> float:
        checkpoint, surviving = ways[name]
        report = run_once(cost_config(streams, checkpoint), ranks, answer, folder, surviving=surviving)
        made[name].append(report)
        return float(report["input_tuples_per_s"] / 1e6)

    figures = turns({name: functools.partial(measure, name) for name in ways}, repeats)
    first = made["neither"][0]
    tuples = sum(first["input"][side]["tuples"] for side in ("left", "right"))
    say(f"\n### {ranks} ranks ({ranks - 2} slaves), {tuples:,} tuples, {answer[0]:,} pairs, Parquet to count\n")
    say("| what | median | lowest to highest | floor | goal |\n|---|---|---|---|---|")
    for name, values in figures.items():
        row(name, values, "M tuples/s")
    base, *others = figures
    for name, goal in zip(others, ("0.9", "0.97", ""), strict=True):
        row(
            f"{name}, over {base}, turn by turn",
            [a / b for a, b in zip(figures[name], figures[base], strict=True)],
            "",
            goal=goal,
        )
    for name in (others[0], others[2]):
        reports = [report["checkpoints"] for report in made[name][1:]]
        counts, longest = ([r[field] for r in reports] for field in ("completed", "longest_s"))
        mib = statistics.median(r["bytes"] for r in reports) / 2**20
        say(
            f"\n{name}: {min(counts)} to {max(counts)} checkpoints a run, {mib:.0f} MiB in their folder, "
            f"each durable after {max(longest):.2f} s at most."
        )
    return figures


# ---------------------------------------------------------------- recovery


def recovery_config(window_s: int, rate: float, interval_s: float, around_s: int, victim: str = "slave") -> Report:
    """With several gateways and sinks where one of these is killed; results are written then, so the keys are uniform."""
    several = victim != "slave"
    return {
        "seed": SEED,
        "pace": "realtime",
        "join": {"within": f"{window_s}s"},
        "workload": {"rate": rate, "duration": f"{window_s + 2 * around_s}s", "bias": 0.5 if several else BIAS},
        "cluster": {
            "partition_count": 60,
            "distribution_epoch": "200ms",
            "mini_buffer": "256MB",
            **({"gateways": 2, "sinks": 2} if several else {}),
        },
        "module": {"theta": "32KB", "stream_buffer": "64MB", "window": "4GB"},
        "checkpoint": {"interval": f"{int(interval_s * 1e3)}ms"},
        "sink": {"kind": "parquet" if several else "count"},
    }


def rank_of_victim(plain: Report, ranks: int, victim: str) -> int:
    """Of the last slave, or of the second gateway or sink."""
    roles = RankMap.of(config_from_plain(plain), ranks)
    if victim == "slave":
        return roles.rank_of(slave_role(roles.slave_ranks - 1))
    return roles.rank_of(gateway_role(1) if victim == "gateway" else sink_role(1))


def newest(out: Path) -> Path | None:
    return max((out / "checkpoints").glob("checkpoint-*.json"), default=None)


def run_with_a_death(
    plain: Report, interval_s: float, around_s: int, answer: Answer, folder: Path, victim: str, ranks: int
) -> dict[str, float]:
    """A rank is killed half an interval after a checkpoint, when the windows have been full for a while."""
    out, config = folder / "run", folder / "config.yaml"
    shutil.rmtree(out, ignore_errors=True)
    config.write_text(json.dumps(plain))
    run = LaunchedRun([str(config), "-n", str(ranks), "--out", str(out)], folder / "log", {"PYTHONPATH": str(ROOT)})
    try:
        duration_s = config_from_plain(plain).workload.duration_us / 1e6
        full_us = 1e6 * (duration_s - 1.5 * around_s)
        seen = None
        while run.process.poll() is None:
            time.sleep(0.02)
            found = newest(out)
            if found is not None and found != seen:
                seen = found
                if json.loads(found.read_text())["clock_us"] >= full_us:
                    break
        time.sleep(interval_s / 2)
        run.kill([rank_of_victim(plain, ranks, victim)])
        if run.end(3 * duration_s + 300):
            raise SystemExit(f"the run with a death failed: {run.said()}")
    finally:
        if run.process.poll() is None:
            run.kill_all()
    report = checked(json.loads((out / "run.json").read_text()), answer)
    return recovery_of(report, out)


def recovery_of(report: Report, out: Path) -> dict[str, float]:
    """Seconds until the run went on, tuples replayed, seconds until delays were back at two distribution epochs."""
    (recovery,) = report["checkpoints"]["recoveries"]
    events = pq.read_table(out / "metrics" / "events.parquet").to_pylist()
    resumed_us = next(e["time_us"] for e in events if e["kind"] == "recovered")
    noticed_us = resumed_us - recovery["s"] * 1e6
    table = pq.read_table(out / "metrics" / "slaves.parquet", columns=["epoch_end_us", "delay_mean_us", "pairs"]).to_pydict()
    end, delay = (np.array(table[name], np.float64) for name in ("epoch_end_us", "delay_mean_us"))
    late = (end >= resumed_us) & (delay > 2 * report["config"]["cluster"]["distribution_epoch_us"])
    calm_us = float(end[late].max(initial=resumed_us))
    held = report["config"]["queries"][0]["upper_us"] / 1e6 * report["config"]["workload"]["rate_per_s"] * 2
    calm_s = (calm_us - noticed_us) / 1e6
    return {
        "s": recovery["s"],
        "tuples": recovery["tuples"],
        "calm_s": calm_s,
        "delay_s": report["delay_s"]["max"],
        "window_tuples": held,
    }


def recovery(folder: Path, args: argparse.Namespace, victim: str) -> None:
    """One table. victim: `slave`, `gateway` or `sink`."""
    rate, interval_s, repeats, around_s = args.rate, args.recovery_interval, args.recovery_repeats, args.around
    given = f"{rate:,.0f} tuples/s and stream, checkpoints every {interval_s:g} s, {repeats} deaths each"
    say(f"\n## Recovery from the death of a {victim}, beside three slaves (two others, if it is one), {given}\n")
    heads = [
        "goes on after (s), lowest to highest",
        "tuples replayed",
        "delay is back below 2 t_d after (s), lowest to highest",
    ]
    say("| " + " | ".join(["W", "tuples in the windows", *heads, "longest production delay (s)"]) + " |")
    say("|---" * 6 + "|")
    ranks = 5 if victim == "slave" else 7
    for window_s in args.windows:
        plain = recovery_config(window_s, rate, interval_s, around_s, victim)
        config = config_from_plain(plain)
        answer = expected(config.workload, SEED, config.query.bounds)
        runs = [run_with_a_death(plain, interval_s, around_s, answer, folder, victim, ranks) for _ in range(repeats)]
        values = {name: [r[name] for r in runs] for name in runs[0]}
        middle = {name: statistics.median(v) for name, v in values.items()}
        spans = {name: f"{middle[name]:.2f}, {min(values[name]):.2f} to {max(values[name]):.2f}" for name in ("s", "calm_s")}
        cells = [f"{window_s} s", f"{middle['window_tuples']:,.0f}", spans["s"], f"{middle['tuples']:,.0f}", spans["calm_s"]]
        say("| " + " | ".join([*cells, f"{middle['delay_s']:.1f}"]) + " |")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--only", choices=["cost", "recovery"])
    parser.add_argument("--seconds", type=int, default=1800, help="of event time; a run should see several checkpoints")
    parser.add_argument("--interval", default="10s", help="of checkpoints, where the cost is measured")
    parser.add_argument("--ranks", type=int, nargs="+", default=[5, 4])
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--windows", type=int, nargs="+", default=list(WINDOWS_S), help="seconds, where recovery is measured")
    parser.add_argument("--rate", type=float, default=20_000, help="tuples/s and stream, where recovery is measured")
    parser.add_argument("--recovery-interval", type=float, default=5.0, help="seconds between checkpoints there")
    parser.add_argument("--recovery-repeats", type=int, default=3)
    parser.add_argument("--victims", nargs="+", choices=VICTIMS, default=list(VICTIMS))
    parser.add_argument("--out", type=Path, default=ROOT / "runs" / "safety", help="streams and results.md")
    parser.add_argument("--rank", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--around", type=int, default=AROUND_S, help="seconds before the death and after it")
    few = {"ranks": [3], "repeats": 1, "windows": [1], "rate": 2_000, "recovery_interval": 1.0, "recovery_repeats": 1}
    args = parse(parser, seconds=5, interval="500ms", around=4, **few)
    if args.rank is not None:
        play_rank(args.rank)
        return
    args.out.mkdir(parents=True, exist_ok=True)
    say(f"{environment()}; medians; every answer checked.")
    with tempfile.TemporaryDirectory(prefix="run-", dir=args.out) as name:
        if args.only != "recovery":
            streams = args.out / "streams"
            answer = write_streams(streams, args.seconds)
            taken = f"{args.repeats} turns after one that is not counted"
            say(f"\n## Cost of checkpoints and fault tolerance, reference workload, {args.seconds} s of event time; {taken}")
            for ranks in args.ranks:
                cost(streams, Path(name), answer, ranks, args.interval, args.repeats)
        if args.only != "cost":
            for victim in args.victims:
                recovery(Path(name), args, victim)
    (args.out / "results.md").write_text("\n".join(lines) + "\n")
    print(f"\nkept in {args.out}/results.md; {args.out}/streams may be removed", file=sys.stderr)


if __name__ == "__main__":
    main()
