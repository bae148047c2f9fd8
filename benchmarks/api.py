"""Overhead of the Python API over the join module: `swjoin.count` and `swjoin.join` on Arrow tables beside the module alone.

What: the reference workload with its 48-byte payload as two Arrow tables. In turns: the join module fed with prepared
deliveries (memory not touched beforehand, as the API's is not), `swjoin.count` and `swjoin.join` with one thread, all of each
call. Medians, and the ratio turn by turn; every answer is checked. `--profile` says where the time of the calls goes.
Why: the API is to add at most 10 % to the join module, and payload is to be copied only once the pairs are known.
Stays out: files (`whole.py`).

Usage: python -m benchmarks.api [reference|uniform|small|paper] [--repeat N] [--one-core] [--cpu] [--profile] [--tiny]
"""

from __future__ import annotations

import argparse
import cProfile
import os
import pstats
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa

import swjoin
from benchmarks import parse
from benchmarks.join_module import THETA_BYTES, new_join
from benchmarks.run import row, turns
from benchmarks.workloads import I64, WORKLOADS, deliveries, epoch_of, expected, sized, stream
from swjoin.config.arguments import JOIN_PARTITIONS
from swjoin.connectors.generator.bmodel import payload_bytes
from swjoin.core.batch import TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.join_semantics import format_digest
from swjoin.monitor.process_settings import keep_freed_memory

Answer = tuple[int, str]
_clock: Callable[[], float] = time.perf_counter
ARGUMENTS: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us"}


def table(batch: TupleBatch, side: int) -> pa.Table:
    """ts, key, and 48 bytes of payload: 64 bytes a tuple."""
    data = payload_bytes(batch.id, 1, side, 48).reshape(-1)
    payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(48), len(batch), [None, pa.py_buffer(data)])
    return pa.table({"ts": batch.ts, "key": batch.key, "payload": payload})


def module_seconds(work: list[Delivery], window_us: int, answer: Answer) -> float:
    """The join module alone, from its making to its last delivery."""
    start = _clock()
    join = new_join(window_us, THETA_BYTES)
    count = digest = 0
    for delivery in work:
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        count += int(cursor.results.counts.sum())
        digest += int(np.add.reduce(cursor.results.digests))
    seconds = _clock() - start
    _check("join module", (count, format_digest(digest)), answer)
    return seconds


def count_seconds(tables: list[pa.Table], window_us: int, answer: Answer, threads: int) -> float:
    start = _clock()
    found = swjoin.count(tables[0], tables[1], within=f"{window_us}us", threads=threads, **ARGUMENTS)
    seconds = _clock() - start
    _check("swjoin.count", (found.count, found.digest), answer)
    return seconds


def join_seconds(tables: list[pa.Table], window_us: int, answer: Answer, threads: int) -> float:
    start = _clock()
    found = swjoin.join(tables[0], tables[1], within=f"{window_us}us", threads=threads, **ARGUMENTS)
    seconds = _clock() - start
    proof = swjoin.proof(found)
    _check("swjoin.join", (found.num_rows, proof.digest), answer)
    return seconds


def take_seconds(tables: list[pa.Table], pairs: tuple[I64, I64]) -> float:
    """The least work of any API that returns rows: one Arrow `take` of every output column, with known pairs."""
    kept: list[Any] = []
    start = _clock()
    for at in range(0, len(pairs[0]), 131_072):
        left, right = (pa.array(side[at : at + 131_072]) for side in pairs)
        for source, index, names in ((tables[0], left, ("key", "ts", "payload")), (tables[1], right, ("ts", "payload"))):
            for name in names:
                kept.append(source.column(name).chunk(0).take(index))
    return _clock() - start


def _check(what: str, found: Answer, answer: Answer) -> None:
    if found != answer:
        raise SystemExit(f"{what}: wrong answer {found}, expected {answer}")


def profile(call: Callable[[], float], name: str) -> None:
    """The calling thread's functions by their own time; join modules are in threads of their own."""
    profiler = cProfile.Profile()
    profiler.enable()
    call()
    profiler.disable()
    print(f"\n{name}, calling thread:")
    pstats.Stats(profiler).sort_stats("tottime").print_stats(14)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="reference", choices=WORKLOADS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--one-core", action="store_true", help="pin everything to one core")
    parser.add_argument("--cpu", action="store_true", help="CPU time of all threads instead of wall time: for a busy machine")
    parser.add_argument("--profile", action="store_true")
    args = parse(parser, repeat=1)
    if args.cpu:
        globals()["_clock"] = time.process_time
    if args.one_core:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    keep_freed_memory()
    workload, window_us = WORKLOADS[args.workload]
    streams = [stream(sized(workload, args.tiny), side) for side in range(2)]
    answer = expected(streams[0], streams[1], window_us)
    work = deliveries(streams[0], streams[1], epoch_of(streams[0], streams[1], window_us), JOIN_PARTITIONS)
    tables = [table(batch, side) for side, batch in enumerate(streams)]
    tuples = sum(len(batch) for batch in streams)
    found = swjoin.join(tables[0], tables[1], within=f"{window_us}us", threads=1, ids=True, **ARGUMENTS)
    pairs = tuple(found.column(f"{side}_id").to_numpy().astype(np.int64) for side in ("left", "right"))
    del found
    cases: dict[str, Callable[[], float]] = {
        "join module alone": lambda: module_seconds(work, window_us, answer),
        "swjoin.count": lambda: count_seconds(tables, window_us, answer, 1),
        "swjoin.join": lambda: join_seconds(tables, window_us, answer, 1),
        "Arrow take alone": lambda: take_seconds(tables, (pairs[0], pairs[1])),
    }
    print(f"{args.workload}: {tuples:,} tuples of 64 bytes, {answer[0]:,} pairs, one join module; answer right in every turn\n")
    print("| what | median | lowest to highest | floor | goal |\n|---|---|---|---|---|")
    figures = turns(cases, args.repeat)
    for name, seconds in figures.items():
        row(name, [s * 1e3 for s in seconds], "ms", digits=0)
    alone, counted, joined, taken = figures.values()
    row("swjoin.count over the join module, turn by turn", [c / a for c, a in zip(counted, alone, strict=True)], "", "", "1.1")
    parts = zip(joined, counted, taken, strict=True)
    row("swjoin.join over swjoin.count and Arrow take, turn by turn", [j / (c + t) for j, c, t in parts], "", "", "1.1")
    if args.profile:
        for name in ("swjoin.count", "swjoin.join"):
            profile(cases[name], name)


if __name__ == "__main__":
    main()
