"""The join module alone, on one core: tuples per second, comparisons per second, and the answer checked in the same run.

Usage: python benchmarks/join_module.py [reference|uniform|small] [--theta BYTES ...] [--epoch-ms MS] [--repeat N]
Deliveries are prepared first (not timed); the check is a sort-based numpy join written here.
"""

from __future__ import annotations

import argparse
import time

import numpy as np

from swjoin.batch import TupleBatch
from swjoin.config import WorkloadConfig
from swjoin.messages import END_OF_TIME_US, Delivery, EpochIndex, QueryId, SlaveId
from swjoin.operators.window_join import WindowJoin
from swjoin.oracle import Bounds, format_digest, pair_digest
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.sources.bmodel import slot_count, slot_tuples

WORKLOADS = {
    "reference": (WorkloadConfig(100_000, 30_000_000, 0.7), 10_000_000),
    "uniform": (WorkloadConfig(100_000, 30_000_000, 0.5), 10_000_000),
    "small": (WorkloadConfig(10_000, 60_000_000, 0.7), 10_000_000),
}


def stream(workload: WorkloadConfig, index: int) -> TupleBatch:
    """One whole stream in memory."""
    parts = [slot_tuples(workload, 1, index, s) for s in range(slot_count(workload))]
    ts = np.concatenate([p[0] for p in parts])
    return TupleBatch(np.concatenate([p[1] for p in parts]), ts, np.arange(len(ts), dtype=np.uint64), ts)


def expected(left: TupleBatch, right: TupleBatch, window_us: int) -> tuple[int, str]:
    """Count and digest by sorting the right side on (key, ts) and searching both ends of every left tuple's window."""
    order = np.lexsort((right.ts, right.key))
    span = np.int64(1) << 32
    place = right.key[order] * span + right.ts[order] + (span >> 1)
    low = np.searchsorted(place, left.key * span + left.ts - window_us + (span >> 1), "left")
    high = np.searchsorted(place, left.key * span + left.ts + window_us + (span >> 1), "right")
    total, digest = 0, 0
    for a in range(0, len(left), 500_000):
        n = high[a : a + 500_000] - low[a : a + 500_000]
        first = np.repeat(low[a : a + 500_000] - np.concatenate(([0], np.cumsum(n)[:-1])), n)
        hits = order[first + np.arange(int(n.sum()))]
        digest += pair_digest(np.repeat(left.id[a : a + 500_000], n), right.id[hits])
        total += int(n.sum())
    return total, format_digest(digest)


def deliveries(left: TupleBatch, right: TupleBatch, epoch_us: int, groups: int) -> list[Delivery]:
    router = HashPartition(GroupMap(round_robin(groups, 1)), 1)
    out = []
    end = int(max(left.ts[-1], right.ts[-1])) + 1
    for e, start in enumerate(range(0, end, epoch_us)):
        stop = start + epoch_us
        sides = []
        for batch in (left, right):
            a, b = np.searchsorted(batch.ts, [start, stop])
            sides.append(router.partition(batch.slice(int(a), int(b))))
        mark = END_OF_TIME_US if stop >= end else stop
        ids = router.groups_in_order
        one, two = sides
        out.append(
            Delivery(
                QueryId(0),
                SlaveId(0),
                EpochIndex(e),
                mark,
                mark,
                ids,
                one.counts,
                two.counts,
                one.batch,
                two.batch,
                stop >= end,
            )
        )
    return out


def run(work: list[Delivery], window_us: int, theta_bytes: int) -> tuple[float, WindowJoin, int, int, str, int]:
    join = WindowJoin(
        Bounds(-window_us, window_us),
        block_tuples=64,
        theta_tuples=theta_bytes // 64,
        window_bytes=4 << 30,
        left_layout=None,
        right_layout=None,
        materialise=False,
        result_tuples=1,
    )
    count = digest = comparisons = minis = 0
    start = time.perf_counter()
    for delivery in work:
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        count += int(cursor.results.counts.sum())
        digest += int(np.add.reduce(cursor.results.digests))
        comparisons += cursor.comparisons
        minis = max(minis, join.mini_group_count())
    return time.perf_counter() - start, join, count, comparisons, format_digest(digest), minis


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="reference", choices=WORKLOADS)
    parser.add_argument("--theta", type=int, nargs="+", default=[8192])
    parser.add_argument("--epoch-ms", type=int, default=650)
    parser.add_argument("--groups", type=int, default=16)
    parser.add_argument("--repeat", type=int, default=3)
    args = parser.parse_args()
    workload, window_us = WORKLOADS[args.workload]
    left, right = stream(workload, 0), stream(workload, 1)
    answer = expected(left, right, window_us)
    work = deliveries(left, right, args.epoch_ms * 1000, args.groups)
    tuples = len(left) + len(right)
    window = f"W = {window_us / 1e6:g} s"
    print(f"{args.workload}: {tuples:,} tuples of 64 bytes, b = {workload.bias}, {window}, {answer[0]:,} pairs, one core")
    for theta in args.theta:
        runs = [run(work, window_us, theta) for _ in range(args.repeat + 1)][1:]
        for _, _, count, _, digest, _ in runs:
            if (count, digest) != answer:
                raise SystemExit(f"wrong answer: {count} {digest}, expected {answer}")
        seconds = sorted(r[0] for r in runs)
        median = seconds[len(seconds) // 2]
        comparisons, minis = runs[0][3], runs[0][5]
        print(
            f"theta {theta:>7} B, epoch {args.epoch_ms} ms: {tuples / median / 1e6:5.2f} M tuples/s "
            f"({tuples / seconds[-1] / 1e6:.2f} to {tuples / seconds[0] / 1e6:.2f}), {median / tuples * 1e9:4.0f} ns/tuple, "
            f"{comparisons / tuples:5.0f} comparisons/tuple, {comparisons / median / 1e9:4.1f} G/s, "
            f"up to {minis:,} mini-partition-groups; answer right"
        )


if __name__ == "__main__":
    main()
