"""Nanoseconds per tuple while the window grows a hundredfold and every tuple keeps its number of matches.

Why: a hash join grows with its cache misses, a nested-loop join with its window; a user's window is what it is.
What is measured: the join module alone, one core, from the moment the windows are full; the answer is checked. The domain of
the uniform keys grows with the window. Deliveries are as an asap run makes them (`policy.epochs`; `--deliver` fixes them).

Usage: python -m benchmarks.growth [--windows 1 10 100] [--matches 1] [--theta BYTES] [--deliver TUPLES] [--repeat N] [--tiny]
"""

from __future__ import annotations

import argparse
import statistics

import numpy as np

from benchmarks import parse
from benchmarks.join_module import THETA_BYTES, checked, run
from benchmarks.workloads import TINY, deliveries, epoch_of, expected, from_columns

RATE = 100_000  # tuples/s and stream


def measure(
    window_s: float, matches: float, theta_bytes: int, deliver: int | None, repeat: int, rate: int = RATE
) -> tuple[list[float], int, int]:
    """ns/tuple of each repetition over max(2 windows, window + 10 s) of event time; tuples in the windows; bytes of state."""
    window_us = int(window_s * 1e6)
    duration_s = max(2 * window_s, window_s + 10)
    domain = max(1, int(rate * window_s / matches))  # an arriving tuple meets rate * window opposite tuples
    n = int(rate * duration_s)
    ts = np.arange(n, dtype=np.int64) * (1_000_000 // rate)
    left, right = (from_columns(np.random.default_rng(seed).integers(0, domain, n), ts) for seed in (1, 2))
    window_tuples = int(2 * rate * window_s)
    answer = expected(left, right, window_us)
    work = deliveries(left, right, deliver or epoch_of(left, right, window_us))
    del left, right
    figures, state_bytes = [], 0
    for turn in range(repeat + (repeat > 1)):
        measured = checked(run(work, window_us, theta_bytes, window_us), answer, f"W = {window_s} s")
        if turn or repeat == 1:
            figures.append(measured.seconds / measured.tuples * 1e9)
        state_bytes = measured.state_bytes
    return figures, window_tuples, state_bytes


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--windows", type=float, nargs="+", default=[1, 10, 100])
    parser.add_argument("--matches", type=float, default=1.0)
    parser.add_argument("--theta", type=int, default=THETA_BYTES)
    parser.add_argument("--deliver", type=int)
    parser.add_argument("--repeat", type=int, default=5)
    args = parse(parser, windows=[1, 10], repeat=1)
    medians = []
    for window_s in args.windows:
        figures, tuples, state = measure(
            window_s, args.matches, args.theta, args.deliver, args.repeat, RATE // TINY if args.tiny else RATE
        )
        medians.append(statistics.median(figures))
        spread = f"{min(figures):.1f} to {max(figures):.1f}"
        held = f"{tuples:>11,} tuples in windows, {state >> 20:6,} MiB"
        print(f"W = {window_s:6g} s, {held}: {medians[-1]:6.1f} ns/tuple ({spread})")
    print(f"growth factor from W = {args.windows[0]:g} s to {args.windows[-1]:g} s: {medians[-1] / medians[0]:.2f}")


if __name__ == "__main__":
    main()
