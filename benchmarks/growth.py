"""Nanoseconds per tuple while the window grows a hundredfold and every tuple keeps its number of matches.

Why: a join whose cost per tuple grows with its window is no use for long windows; a hash join grows with its cache misses, a
nested-loop join with its window.
What is measured: the join module alone, one core, after the windows have filled; the answer is checked. The domain of uniform
keys grows with the window. Deliveries hold the same number of tuples throughout (131,072, the default), unless --deliver says otherwise.

Usage: python benchmarks/growth.py [--windows 1 10 100] [--matches 1] [--theta BYTES] [--repeat N] [--json FILE]
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
from join_module import deliveries, expected

from swjoin.batch import TupleBatch
from swjoin.operators.window_join import WindowJoin
from swjoin.oracle import Bounds, format_digest

RATE = 100_000  # tuples/s and stream


def stream(seed: int, tuples: int, domain: int) -> TupleBatch:
    random = np.random.default_rng(seed)
    ts = np.arange(tuples, dtype=np.int64) * (1_000_000 // RATE)
    return TupleBatch(random.integers(0, domain, tuples), ts, np.arange(tuples, dtype=np.uint64), np.zeros(tuples, np.int64))


def measure(window_s: float, matches: float, theta_bytes: int, epoch_tuples: int) -> dict[str, Any]:
    """One run over max(2 windows, window + 20 s) of event time; timed from the moment the windows are full."""
    window_us = int(window_s * 1e6)
    duration_s = max(2 * window_s, window_s + 20)
    domain = int(2 * RATE * window_s / (2 * matches))  # a tuple meets rate * window opposite tuples when it arrives
    streams = [stream(seed, int(RATE * duration_s), domain) for seed in (1, 2)]
    epoch_us = epoch_tuples * 1_000_000 // (2 * RATE)
    work = deliveries(*streams, epoch_us, 60)
    answer = expected(*streams, window_us)
    join = WindowJoin(
        Bounds(-window_us, window_us),
        block_tuples=64,
        theta_tuples=theta_bytes // 64,
        window_bytes=12 << 30,
        left_layout=None,
        right_layout=None,
        materialise=False,
        result_tuples=1,
    )
    count = digest = tuples = state_bytes = 0
    seconds = 0.0
    for delivery in work:
        start = time.perf_counter()
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        if delivery.left_time_us > window_us and not delivery.last:
            seconds += time.perf_counter() - start
            tuples += len(delivery.left) + len(delivery.right)
            state_bytes = max(state_bytes, join.window_bytes())
        count += int(cursor.results.counts.sum())
        digest += int(np.add.reduce(cursor.results.digests))
    if (count, format_digest(digest)) != answer:
        raise SystemExit(f"window {window_s} s: wrong answer {count}, expected {answer[0]}")
    return {
        "window_s": window_s,
        "window_tuples": int(2 * RATE * window_s),
        "state_bytes": state_bytes,
        "pairs": count,
        "ns_per_tuple": seconds / tuples * 1e9,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--matches", type=float, default=1.0)
    parser.add_argument("--theta", type=int, default=32 << 10)
    parser.add_argument("--deliver", type=int, default=131_072)
    parser.add_argument("--repeat", type=int, default=1)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    measure(1, args.matches, args.theta, args.deliver)
    rows = []
    for _ in range(args.repeat):
        rows += [measure(w, args.matches, args.theta, args.deliver) for w in args.windows]
    for row in rows:
        state = f"{row['state_bytes'] / 2**20:7.0f} MiB"
        print(f"W = {row['window_s']:6g} s, {row['window_tuples']:>11,} tuples in windows, {state}: {row['ns_per_tuple']:6.1f} ns/tuple")
    if args.json:
        args.json.write_text(json.dumps(rows))


if __name__ == "__main__":
    main()
