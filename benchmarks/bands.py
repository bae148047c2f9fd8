"""Joins by a band, in the join module on one core: against an equality with as many partners, and with wide bands.

Usage: python -m benchmarks.bands [--repeat N] [--tiny]
Two streams of 100,000 tuples/s each with values uniform in [0, 10^7), 64-byte tuples, W = 10 s, 30 s: 6.0 M tuples. band:
|left - right| <= 5, about one partner at arrival. wide: <= 500, 100 partners. All runs take turns; deliveries
are prepared first (not timed). The answer comes from sorting by value.
"""

from __future__ import annotations

import argparse
import time
from dataclasses import replace
from statistics import median

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks import parse
from benchmarks.join_module import BLOCK_TUPLES, THETA_BYTES, TUPLE_BYTES, touch
from benchmarks.workloads import TINY, deliveries, from_columns
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import RIGHT, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.hashing import pair_hash
from swjoin.core.join_semantics import Bounds, format_digest
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes

I64 = NDArray[np.int64]
VALUES, RATE_PER_S, SECONDS, WINDOW_US = 10_000_000, 100_000, 30, 10_000_000
NARROW, WIDE = 5, 500


@njit
def _expected(left: I64, right: I64, left_order: I64, right_order: I64, left_ts: I64, right_ts: I64, band: int, window: int):  # type: ignore[no-untyped-def]
    count, digest, start = 0, np.uint64(0), 0
    for i in left_order:
        while start < len(right_order) and right[right_order[start]] < left[i] - band:
            start += 1
        at = start
        while at < len(right_order) and right[right_order[at]] <= left[i] + band:
            j = right_order[at]
            if abs(right_ts[j] - left_ts[i]) <= window:
                count += 1
                digest += pair_hash(np.uint64(i), np.uint64(j))
            at += 1
    return count, digest


def expected(left: TupleBatch, right: TupleBatch, band: int) -> tuple[int, str]:
    """Count and digest of the pairs with |left - right| <= band, by sorting both sides by value. Keys are values."""
    orders = [np.argsort(b.key, kind="stable") for b in (left, right)]
    count, digest = _expected(left.key, right.key, *orders, left.ts, right.ts, band, WINDOW_US)
    return int(count), format_digest(int(digest))


def streams(values: int, *, tiny: bool) -> list[TupleBatch]:
    """Both streams; their keys are values below `values`."""
    rate = RATE_PER_S // (TINY if tiny else 1)
    out = []
    for seed in (1, 2):
        rng = np.random.default_rng(seed)
        ts = np.sort(rng.integers(0, SECONDS * 1_000_000, rate * SECONDS))
        out.append(from_columns(rng.integers(0, values, len(ts)), ts))
    return out


def banded(left: TupleBatch, right: TupleBatch, band: int) -> tuple[BandKeys, TupleBatch, TupleBatch]:
    """Both streams with the keys of a band, the right one with its copies."""
    keys = BandKeys.of_width(2 * band, RIGHT, exact=True)
    positions, key = keys.wide_keys(right.key - band)
    return keys, replace(left, key=keys.narrow_keys(left.key)), replace(right.take(positions), key=key)


def run(work: list[Delivery], band: BandKeys | None) -> tuple[float, tuple[int, str]]:
    """Seconds, and count and digest."""
    sizes = WindowSizes(BLOCK_TUPLES, THETA_BYTES // TUPLE_BYTES, 12 << 30)
    join = WindowJoinOperator(Bounds(-WINDOW_US, WINDOW_US), sizes, result_tuples=0, band=band)
    touch(join)
    count, digest, seconds = 0, 0, 0.0
    for delivery in work:
        start = time.perf_counter()
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        seconds += time.perf_counter() - start
        count += int(cursor.results.counts.sum())
        digest += int(np.add.reduce(cursor.results.digests))
    return seconds, (count, format_digest(digest))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    args = parse(parser, repeat=1)
    cases: dict[str, tuple[list[Delivery], BandKeys | None, tuple[int, str], int]] = {}
    for name, band in (("equality", 0), ("band", NARROW), ("wide", WIDE)):
        left, right = streams(VALUES // (2 * NARROW + 1) if name == "equality" else VALUES, tiny=args.tiny)
        answer, tuples = expected(left, right, band), len(left) + len(right)
        keys = None
        if band:
            keys, left, right = banded(left, right, band)
        bits = 0 if keys is None else keys.cell_bits
        cases[name] = deliveries(left, right, cell_bits=bits), keys, answer, tuples
    taken: dict[str, list[float]] = {name: [] for name in cases}
    for turn in range(args.repeat + 1):
        for name, (work, keys, answer, _) in cases.items():
            seconds, found = run(work, keys)
            if found != answer:
                raise SystemExit(f"{name}: wrong answer {found}, expected {answer}")
            if turn:
                taken[name].append(seconds)
    for name, (work, _, answer, tuples) in cases.items():
        runs, copies = taken[name], sum(len(d.left) + len(d.right) for d in work) / tuples - 1
        print(
            f"{name}: {tuples / median(runs) / 1e6:.2f} M tuples/s ({tuples / max(runs) / 1e6:.2f} to "
            f"{tuples / min(runs) / 1e6:.2f}), {answer[0] / median(runs) / 1e6:.1f} M pairs/s, {answer[0]:,} pairs, "
            f"{100 * copies:.1f} % copies; answer right"
        )
    over = median(a / b for a, b in zip(taken["equality"], taken["band"], strict=True))
    print(f"band over equality: {over:.2f}")


if __name__ == "__main__":
    main()
