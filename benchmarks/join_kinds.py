"""Cost of outer, semi and anti joins over the inner join: the join module alone, on one core, in turns.

Usage: python -m benchmarks.join_kinds [reference|uniform|small|paper] [--repeat N] [--pairs] [--tiny]
Deliveries are prepared first (not timed). Every kind's answer is compared with one that sorting gives. --pairs: rows leave the
module, with 48 bytes of payload a side, instead of being counted only.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import time

import numpy as np
from numpy.typing import NDArray

from benchmarks import parse
from benchmarks.join_module import BLOCK_TUPLES, THETA_BYTES, TUPLE_BYTES, touch
from benchmarks.workloads import GROUPS, WORKLOADS, deliveries, epoch_of, expected, sized, stream
from swjoin.core.batch import LEFT, MISSING_ID, RIGHT, PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How, format_digest, pair_digest
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes

PAYLOAD = RowLayout(48)


def has_match(one: TupleBatch, other: TupleBatch, window_us: int) -> NDArray[np.bool_]:
    """Which tuples of `one` have a partner: by binary search among the other's, sorted by key and time."""
    order = np.lexsort((other.ts, other.key))
    key, ts = other.key[order], other.ts[order]
    start, stop = np.searchsorted(key, one.key, "left"), np.searchsorted(key, one.key, "right")
    span = int(max(one.ts.max(), ts.max())) + 2 * window_us + 1
    flat = key * span + ts  # ascending; keys are below 10^7, times below 10^9
    low = np.searchsorted(flat, one.key * span + np.maximum(one.ts - window_us, 0), "left")
    high = np.searchsorted(flat, one.key * span + one.ts + window_us, "right")
    return np.asarray(np.maximum(low, start) < np.minimum(high, stop))


def answers(left: TupleBatch, right: TupleBatch, window_us: int) -> dict[How, tuple[int, str]]:
    """Count and digest of every kind."""
    count, digest = expected(left, right, window_us)
    streams = (left, right)
    matched = (has_match(left, right, window_us), has_match(right, left, window_us))

    def alone(side: int, chosen: NDArray[np.bool_]) -> tuple[int, int]:
        ids = streams[side].id[chosen]
        missing = np.full(len(ids), MISSING_ID, np.uint64)
        return len(ids), pair_digest(ids, missing) if side == LEFT else pair_digest(missing, ids)

    out: dict[How, tuple[int, str]] = {}
    for how, kind in JOIN_KINDS.items():
        parts = [(count, int(digest, 16))] if kind.pairs else []
        parts += [alone(LEFT, matched[LEFT])] if kind.first else []
        parts += [alone(side, ~matched[side]) for side in (LEFT, RIGHT) if kind.unmatched[side]]
        out[how] = sum(p[0] for p in parts), format_digest(sum(p[1] for p in parts))
    return out


def with_payload(work: list[Delivery]) -> list[Delivery]:
    """The same deliveries with payload."""

    def loaded(batch: TupleBatch) -> TupleBatch:
        return dataclasses.replace(batch, rows=PayloadRows(np.zeros((len(batch), PAYLOAD.fixed_bytes), np.uint8)))

    return [dataclasses.replace(d, left=loaded(d.left), right=loaded(d.right)) for d in work]


def run(work: list[Delivery], window_us: int, how: How, pairs: bool) -> tuple[float, int, str]:
    """Seconds, count, digest."""
    layout = PAYLOAD if pairs else None
    join = WindowJoinOperator(
        Bounds(-window_us, window_us),
        WindowSizes(BLOCK_TUPLES, THETA_BYTES // TUPLE_BYTES, 6 << 30),
        (layout, layout),
        result_tuples=32_768 if pairs else 0,
        kind=JOIN_KINDS[how],
    )
    touch(join)
    count = digest = 0
    start = time.perf_counter()
    for delivery in work:
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        count += cursor.pair_count
        digest += sum(int(np.add.reduce(part.digests, dtype=np.uint64)) for part in cursor.all_results)
    return time.perf_counter() - start, count, format_digest(digest)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("workload", nargs="?", default="reference", choices=WORKLOADS)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--pairs", action="store_true")
    args = parse(parser, repeat=1)
    workload, window_us = WORKLOADS[args.workload]
    workload = sized(workload, args.tiny)
    left, right = stream(workload, LEFT), stream(workload, RIGHT)
    right_answers = answers(left, right, window_us)
    work = deliveries(left, right, epoch_of(left, right, window_us), GROUPS)
    if args.pairs:
        work = with_payload(work)
    tuples = len(left) + len(right)
    what = "rows with payload" if args.pairs else "count and digest"
    print(f"{args.workload}: {tuples:,} tuples, b = {workload.bias}, W = {window_us / 1e6:g} s, {what}, one core, in turns")
    seconds: dict[How, list[float]] = {how: [] for how in JOIN_KINDS}
    for turn in range(args.repeat + 1):
        for how in JOIN_KINDS:
            elapsed_s, *found = run(work, window_us, how, args.pairs)
            if tuple(found) != right_answers[how]:
                raise SystemExit(f"{how}: wrong answer {found}, expected {right_answers[how]}")
            if turn:
                seconds[how].append(elapsed_s)
    print("| how | rows | M tuples/s | time beside the inner join's | range |\n|---|---|---|---|---|")
    for how, took_s in seconds.items():
        ratios = [mine / inner for mine, inner in zip(took_s, seconds["inner"], strict=True)]
        speed = tuples / statistics.median(took_s) / 1e6
        print(
            f"| {how} | {right_answers[how][0]:,} | {speed:.2f} | {statistics.median(ratios):.2f} "
            f"| {min(ratios):.2f} to {max(ratios):.2f} |"
        )


if __name__ == "__main__":
    main()
