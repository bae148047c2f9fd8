"""Routings of one join over another: a band by range and at random units, a hot key by hash and spread.

What: `band`: |left - right| <= 5 of values below 10^7, W = 10 s, about one partner at arrival; by range, at random units
and on a matrix. `hot`: an equality of which one key has 30 % of both streams, W = 10 ms; by hash, with the key found and
spread on the way, at units of which subgroups share a key, and on a matrix. Whole runs in this process from Parquet to
count and digest, on 4 slaves that are slowed down, so that the slaves and not this machine's cores are the limit; turn by
turn. For the band also the highest rate that 64 slaves sustain, foretold from runs of one slave at two rates. `order`:
nanoseconds a tuple for one order of the tuples of four routers: epochs, whose parts are merged, beside the queue of tuples
that BiStream's protocol has (`benchmarks.baselines.tuple_queue`).
Why: which routing is the faster one is a matter of the join and of the number of slaves.
Stays out: what a tuple costs a join module (`benchmarks.bands`, `benchmarks.join_module`).

Usage: python -m benchmarks.routings [band | hot | order] [--rate N] [--seconds N] [--speed F] [--repeat N] [--tiny]
rate: of either stream, tuples/s. speed: of a slave, as a fraction of a core.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import parse
from benchmarks.bands import I64, expected
from benchmarks.baselines.tuple_queue import TupleQueue
from benchmarks.nexmark import ranged
from benchmarks.run import turns
from benchmarks.workloads import GROUPS, from_columns
from swjoin.cli.plan_stages import capacity_of
from swjoin.cluster.role import RoleId
from swjoin.cluster.slave.merger import Merger
from swjoin.config.connectors import StreamConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import to_plain
from swjoin.core.batch import LEFT, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.merged_deliveries import merged
from swjoin.forecast.costs import PRESETS
from swjoin.forecast.summary import saturated
from swjoin.frontends.sql.planner import plan_query
from swjoin.frontends.sql.tables import described
from swjoin.plan.plain import plan_to_plain
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.runtime.in_process import run_local

SLAVES, MANY = 4, 64
VALUES, NEAR, HOT_SHARE, HOT = 10_000_000, 5, 0.3, -1
PARTS: dict[str, dict[str, Any]] = {
    "band": {
        "rate": 50_000,
        "seconds": 30,
        "condition": f"abs(b.v - a.v) <= {NEAR}",
        "near": NEAR,
        "window_ms": 10_000,
        "routings": {"range": "range", "random": "random:{half},{half}", "matrix": "matrix"},
        "ratios": [("range", "random", "floor 1.2, goal 1.4"), ("matrix", "random", "")],
    },
    "hot": {
        "rate": 20_000,
        "seconds": 15,
        "condition": "a.v = b.v",
        "near": 0,
        "window_ms": 10,
        "cluster": {"epoch_tuples": 8_192},
        "routings": {
            "hash": "hash",
            "skew": "skew",
            "contrand": "contrand:{all},{all},{half},{half}",
            "random": "random:{all},{all}",
            "matrix": "matrix",
        },
        "ratios": [(name, "hash", "floor 2, goal 3.5") for name in ("skew", "contrand", "random", "matrix")],
    },
}


def write(folder: Path, part: str, rate: int, seconds: int) -> dict[str, StreamConfig]:
    """Both streams: v, ts, and a column that brings a tuple to 64 bytes."""
    found = {}
    for seed, name in enumerate("ab"):
        random, rows = np.random.default_rng(seed), rate * seconds
        v = random.integers(0, VALUES, rows)
        v = np.where(random.random(rows) < HOT_SHARE, HOT, v) if part == "hot" else v
        ts = np.sort(random.integers(0, seconds * 1_000_000, rows))
        table = pa.table({"v": v, "ts": pa.array(ts, pa.timestamp("us")), "more": [b"0123456789abcdef" * 2] * rows})
        path = folder / f"{part}-{name}.parquet"
        pq.write_table(table, path)
        found[name] = StreamConfig(str(path), (), "ts")
    return found


def pairs_of(part: str, inputs: dict[str, StreamConfig]) -> int:
    """How many pairs there are, by sorting both streams by value."""
    tables = [pq.read_table(str(inputs[name].path)) for name in "ab"]
    left, right = (from_columns(t["v"].to_numpy(), t["ts"].cast(pa.int64()).to_numpy()) for t in tables)
    return expected(left, right, PARTS[part]["near"], 1000 * PARTS[part]["window_ms"])[0]


def job_of(part: str, inputs: dict[str, StreamConfig], routing: str, folder: Path, speed: float, more: Any = None) -> Job:
    """Count and digest of both rows' values."""
    of = PARTS[part]
    window = f"INTERVAL '{of['window_ms']}' MILLISECOND"
    near = f"b.ts BETWEEN a.ts - {window} AND a.ts + {window}"
    text = f"SELECT a.v, b.v AS w, a.more, b.more AS rest FROM a JOIN b ON {near} AND {of['condition']}"
    query = plan_query(text, {name: described(stream, "") for name, stream in inputs.items()}, None, routing)
    plain = {"join": {"lower_us": 0, "upper_us": 0}, "inputs": [to_plain(inputs[name]) for name in query.tables]}
    plain |= {"sink": {"kind": "count", "ids": False}, "nodes": {"node_speed": speed}}
    plain |= {"cluster": {"partition_count": 4 * SLAVES, "routing": routing, **of.get("cluster", {})}} | (more or {})
    return Job(config_from_plain(plain), None, True, folder, None, "bench", plan=plan_to_plain(query.plan))


def one(part: str, inputs: dict[str, StreamConfig], routing: str, folder: Path, speed: float, seen: dict[str, Any]) -> float:
    """Tuples/s of a run; what it joined goes to `seen`, which has the number of pairs. All runs must have one digest."""
    run = Path(tempfile.mkdtemp(dir=folder)) / "run"
    job, started = job_of(part, inputs, routing, run, speed), time.perf_counter()
    report = run_local(job, False, SLAVES)
    seconds = time.perf_counter() - started
    answer = report["results"]["count"], report["results"]["digest"]
    right = (seen["pairs"], seen.setdefault("digest", answer[1]))
    if answer != right or not report["ledger"]["balanced"]:
        raise SystemExit(f"{part} by {routing}: {answer}, not {right}")
    tuples = sum(stream["tuples"] for stream in report["input"].values())
    joined = sum(report["stages"][0]["joined"].values())
    seen[routing] = joined / tuples, sum(report["stages"][0]["peak_window_tuples"]) / tuples
    return float(tuples / seconds)


def foretold(part: str, folder: Path, routing: str, wide: str, rate: int) -> float:
    """The highest rate, tuples/s of both streams, that MANY slaves sustain."""
    runs, epochs = [], {"partition_count": 2 * MANY, "distribution_epoch": "200ms"}
    for share in (1, 4):
        where = Path(tempfile.mkdtemp(dir=folder)) / "run"
        (where.parent / "in").mkdir()
        inputs = write(where.parent / "in", part, rate * share // 4, 4)
        job = job_of(part, inputs, routing, where, 1.0, {"cluster": {**epochs, "routing": routing}})
        run_local(job, False, 1)
        runs.append(where)
    job = job_of(part, inputs, wide, runs[0], 1.0, {"cluster": {**epochs, "routing": wide}})
    report, _ = saturated(capacity_of(job, runs[0], MANY, PRESETS["modern"], profiles=runs), "", balance=True)
    return float(report["saturation_tuples_per_s"])


def compare(part: str, folder: Path, args: argparse.Namespace) -> None:
    of = PARTS[part]
    rate, seconds = args.rate or of["rate"], args.seconds or of["seconds"]
    inputs = write(folder, part, rate, seconds)
    seen: dict[str, Any] = {"pairs": pairs_of(part, inputs)}
    named: dict[str, str] = {name: text.format(half=SLAVES // 2, all=SLAVES) for name, text in of["routings"].items()}
    cases: dict[str, Callable[[], float]] = {
        name: partial(one, part, inputs, routing, folder, args.speed, seen) for name, routing in named.items()
    }
    found = turns(cases, args.repeat)
    print(f"\n### {part}: {of['condition']}; {2 * rate * seconds:,} tuples, {seen['pairs']:,} pairs, digest {seen['digest']}\n")
    print(f"{SLAVES} slaves at {args.speed:g} of a core, 64-byte tuples, window {of['window_ms']:,} ms; every answer right\n")
    print("| routing | tuples/s | copies joined per tuple | tuples in windows at most, of all |\n|---|---|---|---|")
    for name, routing in named.items():
        copies, held = seen[routing]
        print(f"| {routing} | {ranged(found[name], 0)} | {copies:.2f} | {held:.3f} |")
    print(f"\n| ratio | {SLAVES} slaves |\n|---|---|")
    for name, other, goals in of["ratios"]:
        ratios = [one / two for one, two in zip(found[name], found[other], strict=True)]
        print(f"| {name} over {other} | {ranged(ratios)} {goals} |")
    if part == "band":  # the model takes all partition-groups to be alike, so it knows no hot key
        texts = of["routings"].items()
        many = {n: foretold(part, folder, named[n], t.format(half=MANY // 2, all=MANY), rate) for n, t in texts}
        print(f"\nforetold for {MANY}: " + ", ".join(f"{name} {rate:,.0f} tuples/s" for name, rate in many.items()), end="")
        print(f"; range over random {many['range'] / many['random']:.1f} (floor 10, goal 15)" if many["random"] else "")


ROUTERS, EPOCHS, PART_TUPLES = 4, 20, 32_768


def by_epochs(parts: list[list[TupleBatch]]) -> tuple[float, I64]:
    """Seconds to merge every epoch's parts into one delivery, and the ids of the tuples in that order."""
    router = HashPartition(GroupMap(round_robin(GROUPS, 1)), 1)
    feeds = {(0, RoleId(i)): LEFT for i in range(ROUTERS)}
    merger, seconds, out = Merger("slave 0", feeds), 0.0, []
    for epoch, batches in enumerate(parts):
        made = []
        for batch in batches:
            grouped, none = router.partition(batch), np.zeros(GROUPS, np.int64)
            head = (0, SlaveId(0), EpochIndex(epoch), int(batch.ts[-1]), END_OF_TIME_US, router.groups_in_order, grouped.counts)
            made.append(Delivery(*head, none, grouped.batch, TupleBatch.empty()))
        start = time.perf_counter()
        for i, delivery in enumerate(made):
            merger.add(RoleId(i), delivery)
        while merger.ready:
            some = merger.take().parts[LEFT]
            whole = merged(some, TupleBatch.concat([part.tuples for part in some]))
            out.append(whole.tuples.id)
        seconds += time.perf_counter() - start
    return seconds, np.concatenate(out).astype(np.int64)


def by_queue(parts: list[list[TupleBatch]]) -> tuple[float, I64]:
    """Seconds for a queue, which stamps order: here times. A signal follows each part; the tuples are put in order, too."""
    queue, out = TupleQueue(ROUTERS, 2 * ROUTERS * PART_TUPLES), []
    rows = TupleBatch.concat([batch for batches in parts for batch in batches])
    queue.add(0, np.zeros(1, np.int64), 0)
    queue = TupleQueue(ROUTERS, 2 * ROUTERS * PART_TUPLES)  # compiled
    start, first = time.perf_counter(), 0
    for batches in parts:
        for i, batch in enumerate(batches):
            queue.add(i, batch.ts, first)
            queue.signal(i, int(batch.ts[-1]))
            first += len(batch)
        out.append(rows.take(queue.take()).id)
    for i in range(ROUTERS):
        queue.signal(i, END_OF_TIME_US)
    out.append(rows.take(queue.take()).id)
    return time.perf_counter() - start, np.concatenate(out).astype(np.int64)


def order(args: argparse.Namespace) -> None:
    """Both, turn by turn. Each must take every tuple, and the queue must take them in the order of their stamps."""
    size = PART_TUPLES // 32 if args.tiny else PART_TUPLES
    random, parts = np.random.default_rng(5), []
    taken: dict[str, list[float]] = {"epochs": [], "queue": []}
    for epoch in range(EPOCHS):
        times = epoch * 1_000_000 + np.sort(random.integers(0, 1_000_000, (ROUTERS, size)), axis=1)
        ids = np.arange(ROUTERS * size, dtype=np.uint64).reshape(ROUTERS, size) + np.uint64(epoch * ROUTERS * size)
        parts.append([replace(from_columns(random.integers(0, VALUES, size), times[i]), id=ids[i]) for i in range(ROUTERS)])
    stamps = np.concatenate([batch.ts for batches in parts for batch in batches])
    for turn in range(args.repeat + 1):
        for name, run in (("epochs", by_epochs), ("queue", by_queue)):
            seconds, found = run(parts)
            if not np.array_equal(np.sort(found), np.arange(len(stamps))):
                raise SystemExit(f"order by {name}: tuples are lost or doubled")
            if name == "queue" and (np.diff(stamps[found]) < 0).any():
                raise SystemExit("order by queue: not in the order of the stamps")
            if turn:
                taken[name].append(seconds)
    print(f"order: {ROUTERS} routers, {EPOCHS} epochs, {len(stamps):,} tuples without payload")
    for name, runs in taken.items():
        ns = sorted(1e9 * time_s / len(stamps) for time_s in runs)
        print(f"{name}: {median(ns):.1f} ns a tuple ({ns[0]:.1f} to {ns[-1]:.1f})")
    ratios = sorted(b / a for a, b in zip(taken["epochs"], taken["queue"], strict=True))
    print(f"queue over epochs: {median(ratios):.1f} ({ratios[0]:.1f} to {ratios[-1]:.1f}; floor 10, goal 20)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("part", nargs="?", choices=[*PARTS, "order"], help="default: all")
    parser.add_argument("--rate", type=int)
    parser.add_argument("--seconds", type=int)
    parser.add_argument("--speed", type=float, default=0.1)
    parser.add_argument("--repeat", type=int, default=3)
    args = parse(parser, rate=2_000, seconds=2, repeat=1, speed=0.3)
    with tempfile.TemporaryDirectory() as folder:
        for part in PARTS if args.part is None else [args.part] if args.part in PARTS else []:
            compare(part, Path(folder), args)
    if args.part in (None, "order"):
        order(args)


if __name__ == "__main__":
    main()
