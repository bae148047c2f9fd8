"""Joins by a band or a condition, in the join module on one core: against an equality with as many partners, with wide bands.

Usage: python -m benchmarks.bands [module|ours|files|flink] [--repeat N] [--tiny]
Two streams of 100,000 tuples/s each with values uniform in [0, 10^7), 64-byte tuples, W = 10 s, 30 s: 6.0 M tuples. band:
|left - right| <= 5, about one partner at arrival. wide: <= 500, 100 partners; also by blocks alone (decision 035). condition:
left < right, of payload, which holds for few pairs; 1,000 tuples/s each, and every pair within the window is evaluated: three
instructions. Beside the bands the C++ program of the peers, but not with `ours`: a hash join for the equality; a grid of
values with prefetch, for equal values, too; and the red-black trees of the paper. files: band and wide from Parquet to count,
beside DuckDB and Polars (`benchmarks.band_files`); flink: band, beside Flink in an environment of its own. All take turns;
deliveries are prepared first (not timed). The answers come from sorting by value, that of the condition from all pairs.
"""

from __future__ import annotations

import argparse
import json
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from statistics import median

import numpy as np
from numba import njit
from numpy.typing import NDArray

from benchmarks import band_files, parse
from benchmarks.join_module import BLOCK_TUPLES, THETA_BYTES, TUPLE_BYTES, touch
from benchmarks.peers import child, cpp_join
from benchmarks.peers.cpp_join import FLAGS
from benchmarks.workloads import TINY, deliveries, from_columns
from swjoin.core.band_keys import BandKeys
from swjoin.core.batch import RIGHT, PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.hashing import pair_hash
from swjoin.core.join_semantics import Bounds, format_digest
from swjoin.expressions.vm import INT, LESS, WIDTH, Program
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.operators.window_store import WindowSizes

I64 = NDArray[np.int64]
VALUES, RATE_PER_S, SECONDS, WINDOW_US = 10_000_000, 100_000, 30, 10_000_000
NARROW, WIDE = 5, 500
THINNED = 100  # times fewer tuples where every pair is evaluated
_LOAD = 1.5  # rows of a side to a bucket of the C++ programs; 0.7 and 3 are slower
_MODES = {"batched": "hash join", "grid": "value grid", "tree": "red-black trees"}
_RATIOS = (
    ("band", "equality"),
    ("band", "band, C++ red-black trees"),
    ("band", "band, C++ value grid"),
    ("wide", "wide, C++ value grid"),
    ("wide", "wide, by blocks"),
    ("equality, C++ value grid", "equality, C++ hash join"),
)


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


def expected(left: TupleBatch, right: TupleBatch, band: int, window_us: int = WINDOW_US) -> tuple[int, str]:
    """Count and digest of the pairs with |left - right| <= band, by sorting both sides by value. Keys are values."""
    orders = [np.argsort(b.key, kind="stable") for b in (left, right)]
    count, digest = _expected(left.key, right.key, *orders, left.ts, right.ts, band, window_us)
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


def run(
    work: list[Delivery], band: BandKeys | None, where: Program | None = None, *, by_runs: bool = True
) -> tuple[float, tuple[int, str]]:
    """Seconds, and count and digest. where: over payload of one 8-byte integer. by_runs: or by blocks alone (decision 035)."""
    layouts = (None, None) if where is None else (RowLayout(8), RowLayout(8))
    sizes = WindowSizes(BLOCK_TUPLES, THETA_BYTES // TUPLE_BYTES, 12 << 30)
    matching = Matching(where=where, band=band)
    join = WindowJoinOperator(Bounds(-WINDOW_US, WINDOW_US), sizes, layouts, result_tuples=0, matching=matching)
    if not by_runs:
        join._runs_after = lambda work: None  # type: ignore[method-assign]
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


@dataclass
class Case:
    """run: seconds, and count and digest. copies: rows that are there twice, of all tuples. evaluations: of a condition."""

    name: str
    run: Callable[[], tuple[float, tuple[int, str]]]
    answer: tuple[int, str]
    tuples: int
    copies: float = 0.0
    evaluations: int = 0


def condition() -> Program:
    """left < right, of the payload's integers."""
    code = np.zeros((3, WIDTH), np.int64)
    code[0, :5], code[1, :5], code[2, 0] = (INT, 0, 0, 8, -1), (INT, 1, 0, 8, -1), LESS
    nothing = np.empty(0, np.int64)
    return Program(code.ravel(), nothing.astype(np.float64), nothing.astype(np.uint8), nothing)


def _with_values(batch: TupleBatch, values: I64) -> TupleBatch:
    """Every tuple has one key, and a value as its payload."""
    rows = PayloadRows(values.astype("<i8").view(np.uint8).reshape(-1, 8))
    return replace(batch, key=np.zeros(len(batch), np.int64), rows=rows)


@njit
def _evaluated(left: I64, right: I64, left_ts: I64, right_ts: I64, window: int):  # type: ignore[no-untyped-def]
    near, count, digest, start = 0, 0, np.uint64(0), 0
    for i in range(len(left)):
        while start < len(right) and right_ts[start] < left_ts[i] - window:
            start += 1
        j = start
        while j < len(right) and right_ts[j] <= left_ts[i] + window:
            if left[i] < right[j]:
                count += 1
                digest += pair_hash(np.uint64(i), np.uint64(j))
            j += 1
        near += j - start
    return near, count, digest


def condition_case(*, tiny: bool) -> Case:
    """About one pair of 550 satisfies the condition."""
    rng = np.random.default_rng(3)
    batches = [b.take(np.sort(rng.permutation(len(b))[: len(b) // THINNED])) for b in streams(VALUES, tiny=tiny)]
    left, right = (replace(b, id=np.arange(len(b), dtype=np.uint64)) for b in batches)
    values = 1_000 + rng.integers(0, 1_000, len(left)), rng.integers(60, 1_060, len(right))
    near, count, digest = _evaluated(*values, left.ts, right.ts, WINDOW_US)
    tuples = len(left) + len(right)
    work = deliveries(_with_values(left, values[0]), _with_values(right, values[1]), max(1, tuples // 48))
    answer = int(count), format_digest(int(digest))
    return Case("condition", partial(run, work, None, condition()), answer, tuples, evaluations=int(near))


def program(folder: str) -> str | None:
    """The compiled C++ program; None without a compiler."""
    compiler = shutil.which("g++")
    if compiler is None:
        return None
    made = f"{folder}/reference"
    child.run([compiler, *FLAGS, str(Path(cpp_join.__file__).with_name("reference.cpp")), "-o", made], 120)
    return made


def cases(made: str | None, folder: str, *, tiny: bool) -> list[Case]:
    """All that is measured. made: the C++ program."""
    out = []
    for name, band in (("equality", 0), ("band", NARROW), ("wide", WIDE)):
        left, right = streams(VALUES if band else VALUES // (2 * NARROW + 1), tiny=tiny)
        answer, tuples, files = expected(left, right, band), len(left) + len(right), [f"{folder}/{name}-{i}" for i in (0, 1)]
        if made is not None:
            for file, batch in zip(files, (left, right), strict=True):
                np.stack([batch.ts, batch.key], axis=1).astype("<i8").tofile(file)
        keys = None
        if band:
            keys, left, right = banded(left, right, band)
        work = deliveries(left, right, cell_bits=0 if keys is None else keys.cell_bits)
        copies = sum(len(d.left) + len(d.right) for d in work) / tuples - 1
        out.append(Case(name, partial(run, work, keys), answer, tuples, copies))
        if name == "wide":
            out.append(Case("wide, by blocks", partial(run, work, keys, by_runs=False), answer, tuples, copies))
        modes = {"equality": ("batched", "grid"), "band": ("grid", "tree"), "wide": ("grid",)}[name]
        for mode in modes if made is not None else ():
            command = [str(made), mode, *files, str(WINDOW_US), "1", str(_LOAD), str(band)]
            out.append(Case(f"{name}, C++ {_MODES[mode]}", partial(_run_program, command), answer, tuples))
    return [*out, condition_case(tiny=tiny)]


def _run_program(command: list[str]) -> tuple[float, tuple[int, str]]:
    found = json.loads(child.run(command, 600))
    return found["seconds"][0], (found["count"], found["digest"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("part", nargs="?", choices=["module", "ours", "files", "flink"], default="module")
    args = parse(parser, repeat=1)
    if args.part == "flink":
        left, right = streams(VALUES, tiny=args.tiny)
        with tempfile.TemporaryDirectory(prefix="bands-") as folder:
            count, _ = expected(left, right, NARROW)
            band_files.beside_flink(left, right, NARROW, WINDOW_US, count, Path(folder), args.repeat)
        return
    if args.part == "files":
        for name, band in (("band", NARROW), ("wide", WIDE)):
            print(f"{name}:")
            left, right = streams(VALUES, tiny=args.tiny)
            with tempfile.TemporaryDirectory(prefix="bands-") as folder:
                count = expected(left, right, band)[0]
                band_files.measure(left, right, band, WINDOW_US, count, Path(folder), args.repeat)
        return
    with tempfile.TemporaryDirectory(prefix="bands-") as folder:
        made = None if args.part == "ours" else program(folder)
        if made is None and args.part == "module":
            print("g++ is not installed: no C++ programs")
        measured = cases(made, folder, tiny=args.tiny)
        taken: dict[str, list[float]] = {case.name: [] for case in measured}
        for turn in range(args.repeat + 1):
            for case in measured:
                seconds, found = case.run()
                if found != case.answer:
                    raise SystemExit(f"{case.name}: wrong answer {found}, expected {case.answer}")
                if turn:
                    taken[case.name].append(seconds)
    for case in measured:
        runs, count = taken[case.name], case.answer[0]
        print(
            f"{case.name}: {case.tuples / median(runs) / 1e6:.2f} M tuples/s ({case.tuples / max(runs) / 1e6:.2f} to "
            f"{case.tuples / min(runs) / 1e6:.2f}), {count / median(runs) / 1e6:.1f} M pairs/s, {count:,} pairs, "
            f"{100 * case.copies:.1f} % copies; answer right"
            + (f"; {case.evaluations / median(runs) / 1e6:.0f} M evaluations/s" if case.evaluations else "")
        )
    for one, other in _RATIOS:
        if one in taken and other in taken:
            ratios = sorted(b / a for a, b in zip(taken[one], taken[other], strict=True))
            print(f"{one} over {other}: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})")


if __name__ == "__main__":
    main()
