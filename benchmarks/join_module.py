"""The join module alone, on one core: tuples per second, comparisons per second, and the answer checked in the same run.

Usage: python -m benchmarks.join_module [reference|uniform|small|paper] [--theta BYTES ...] [--deliver TUPLES] [--repeat N]
    [--tiny]
Deliveries are prepared first (not timed).
"""

from __future__ import annotations

import argparse
import time
from dataclasses import dataclass

import numpy as np

from benchmarks import parse
from benchmarks.workloads import GROUPS, WORKLOADS, deliveries, epoch_of, expected, sized, stream
from swjoin.core.data_messages import Delivery
from swjoin.core.join_semantics import Bounds, format_digest
from swjoin.core.record_layout import ROW
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes
from swjoin.state.arrays import HEADER

THETA_BYTES = 32 << 10
BLOCK_TUPLES, TUPLE_BYTES = 64, 64


@dataclass
class Measured:
    """One run. seconds: all of it, or from `settled_us` on when that is given, with the tuples joined in that time."""

    seconds: float
    tuples: int
    count: int
    digest: str
    comparisons: int
    minis: int
    state_bytes: int


def new_join(window_us: int, theta_bytes: int = THETA_BYTES) -> WindowJoinOperator:
    """The module as a slave makes it for a count."""
    return WindowJoinOperator(
        Bounds(-window_us, window_us),
        WindowSizes(BLOCK_TUPLES, theta_bytes // TUPLE_BYTES, 12 << 30),
        result_tuples=0,
    )


def run(work: list[Delivery], window_us: int, theta_bytes: int = THETA_BYTES, settled_us: int = -(1 << 62)) -> Measured:
    """Join the deliveries. settled_us: only deliveries whose punctuation is later are timed."""
    join = new_join(window_us, theta_bytes)
    touch(join)
    out = Measured(0.0, 0, 0, "", 0, 0, 0)
    digest = 0
    for delivery in work:
        start = time.perf_counter()
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        if delivery.left_time_us > settled_us:
            out.seconds += time.perf_counter() - start
            out.tuples += len(delivery.left) + len(delivery.right)
        out.count += int(cursor.results.counts.sum())
        digest += int(np.add.reduce(cursor.results.digests))
        out.comparisons += cursor.comparisons
        out.minis = max(out.minis, join.mini_group_count())
        out.state_bytes = max(out.state_bytes, join.window_bytes())
    out.digest = format_digest(digest)
    return out


def touch(join: WindowJoinOperator, tuples: int = 3_500_000) -> None:
    """Allocate the memory of `tuples` tuples before the clock starts, as the C++ program does."""
    pool = join.state.pool
    pool.rows[: tuples * ROW] = 0
    pool.tags[:tuples] = 0
    pool.header[: tuples // BLOCK_TUPLES * HEADER] = 0


def checked(measured: Measured, answer: tuple[int, str], what: str) -> Measured:
    """SystemExit when the answer is wrong."""
    if (measured.count, measured.digest) != answer:
        raise SystemExit(f"{what}: wrong answer {measured.count} {measured.digest}, expected {answer}")
    return measured


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="reference", choices=WORKLOADS)
    parser.add_argument("--theta", type=int, nargs="+", default=[THETA_BYTES])
    parser.add_argument("--deliver", type=int, help="tuples per delivery (default: as many as in an asap run)")
    parser.add_argument("--groups", type=int, default=GROUPS)
    parser.add_argument("--repeat", type=int, default=5)
    args = parse(parser, repeat=1)
    workload, window_us = WORKLOADS[args.workload]
    workload = sized(workload, args.tiny)
    left, right = stream(workload, 0), stream(workload, 1)
    answer = expected(left, right, window_us)
    deliver = args.deliver or epoch_of(left, right, window_us)
    work = deliveries(left, right, deliver, args.groups)
    tuples = len(left) + len(right)
    window = f"W = {window_us / 1e6:g} s"
    print(f"{args.workload}: {tuples:,} tuples of 64 bytes, b = {workload.bias}, {window}, {answer[0]:,} pairs, one core")
    for theta in args.theta:
        runs = [checked(run(work, window_us, theta), answer, args.workload) for _ in range(args.repeat + 1)][1:]
        seconds = sorted(r.seconds for r in runs)
        median = seconds[len(seconds) // 2]
        comparisons = runs[0].comparisons
        print(
            f"theta {theta:>7} B, {deliver} tuples a delivery: {tuples / median / 1e6:5.2f} M tuples/s "
            f"({tuples / seconds[-1] / 1e6:.2f} to {tuples / seconds[0] / 1e6:.2f}), {median / tuples * 1e9:4.0f} ns/tuple, "
            f"{comparisons / tuples:5.0f} comparisons/tuple, {comparisons / median / 1e9:4.1f} G/s, "
            f"up to {runs[0].minis:,} mini-partition-groups; answer right"
        )


if __name__ == "__main__":
    main()
