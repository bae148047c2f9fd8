"""As-of joins: of two frames, beside polars' `join_asof` and DuckDB's ASOF JOIN; of two streams, beside the inner join; memory.

Usage: python -m benchmarks.as_of [--rows 5000000] [--keys 10000 1000000] [--repeat 5] [--tiny]
Frames: `swjoin.join(..., match="last", how="left")` of tables in memory, in this process, all cores for everyone; turn by turn,
the first turn not counted. Times are sorted, as polars wants them; the tolerance is as long as keys are apart, on average.
Streams: the join module alone on one core, deliveries prepared, counted and digested, turn by turn with the inner join within
the same bounds. Memory: right rows of a slave at the ends of epochs, per key. Answers: those of the three engines are one, and
those of streams are DuckDB's.
"""

from __future__ import annotations

import argparse
import statistics
import time
import warnings
from typing import Any

import duckdb
import numpy as np
import polars as pl
import pyarrow as pa

import swjoin
from benchmarks import parse
from benchmarks.join_module import BLOCK_TUPLES, THETA_BYTES, TUPLE_BYTES
from benchmarks.workloads import GROUPS, WORKLOADS, deliveries, epoch_of, sized, stream
from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import ImplausibleWarning
from swjoin.core.join_semantics import JOIN_KINDS, AsOf, Bounds
from swjoin.operators.as_of_join import AsOfJoin
from swjoin.operators.configured_join import Join
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes

SPAN_US = 1_000_000_000
_MEMORY = 6 << 30


def tables(rows: int, keys: int) -> tuple[pa.Table, pa.Table]:
    rng, found = np.random.default_rng(1), []
    for time_name, number in (("t", "a"), ("u", "b")):
        ts = np.sort(rng.integers(0, SPAN_US, rows))
        found.append(pa.table({"k": rng.integers(0, keys, rows), time_name: ts, number: np.arange(rows)}))
    return found[0], found[1]


def of_frames(rows: int, keys: int, repeat: int) -> None:
    left, right = tables(rows, keys)
    frames = pl.DataFrame(pl.from_arrow(left)), pl.DataFrame(pl.from_arrow(right))
    tolerance = SPAN_US * keys // rows
    times: dict[str, Any] = {"left_time": "t", "right_time": "u", "time_unit": "us"}

    def ours() -> Any:
        return swjoin.join(left, right, on="k", lower=f"-{tolerance}us", upper="0us", match="last", how="left", **times)

    def polars() -> Any:
        options: dict[str, Any] = {"strategy": "backward", "tolerance": tolerance, "check_sortedness": False}
        return frames[LEFT].join_asof(frames[RIGHT], left_on="t", right_on="u", by="k", **options).to_arrow()

    def ducks() -> Any:
        near = f"CASE WHEN t - u <= {tolerance} THEN"
        shown = f"l.k, t, a, {near} u END AS u, {near} b END AS b"
        with duckdb.connect() as db:
            db.register("l", left)
            db.register("r", right)
            query = f"SELECT {shown} FROM l ASOF LEFT JOIN r ON l.k = r.k AND l.t >= r.u"
            return db.sql(query).to_arrow_table()

    engines = {"swjoin": ours, "polars": polars, "DuckDB": ducks}
    took: dict[str, list[float]] = {name: [] for name in engines}
    answers = set()
    for turn in range(repeat + 1):
        for name, join in engines.items():
            start = time.perf_counter()
            table = join()
            elapsed_s = time.perf_counter() - start
            if turn:
                took[name].append(elapsed_s)
            if turn <= 1:
                times_of = np.where(table["b"].is_null(), -1, table["u"].fill_null(0))
                answers.add((len(table), int(np.bitwise_xor.reduce(np.array(table["a"]) * 1_000_003 + times_of))))
    if len(answers) != 1:
        raise SystemExit(f"different answers: {answers}")
    shown = [f"{name} {statistics.median(s):.2f} s ({min(s):.2f} to {max(s):.2f})" for name, s in took.items()]
    ratios = [
        f"{statistics.median([theirs / mine for theirs, mine in zip(took[name], took['swjoin'], strict=True)]):.2f} x {name}"
        for name in ("polars", "DuckDB")
    ]
    print(f"| {rows:,} | {keys:,} | {' | '.join(shown)} | {', '.join(ratios)} |", flush=True)


# ---------------------------------------------------------------- streams


def _run(join: Join, work: list[Delivery]) -> tuple[float, int, list[int]]:
    """Seconds, rows, and right rows that are kept at the ends of epochs."""
    count, kept = 0, []
    start = time.perf_counter()
    for delivery in work:
        cursor = join.open(delivery)
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        count += cursor.pair_count
        if isinstance(join, AsOfJoin):
            kept.append(join.window_tuples()[RIGHT])
    return time.perf_counter() - start, count, kept


def _expected(left: TupleBatch, right: TupleBatch, window_us: int) -> int:
    """How many left rows have a match, by DuckDB."""
    sides = [pa.table({"k": side.key, "t": side.ts}) for side in (left, right)]
    with duckdb.connect() as db:
        db.register("l", sides[LEFT])
        db.register("r", sides[RIGHT])
        near = f"SELECT count(*) FROM l ASOF JOIN r ON l.k = r.k AND l.t >= r.t WHERE l.t - r.t <= {window_us}"
        found = db.execute(near).fetchone()
    assert found is not None
    return int(found[0])


def of_streams(name: str, repeat: int, *, tiny: bool) -> None:
    workload, window_us = WORKLOADS[name]
    left, right = (stream(sized(workload, tiny), side) for side in (LEFT, RIGHT))
    work, bounds = deliveries(left, right, epoch_of(left, right, window_us), GROUPS), Bounds(-window_us, 0)
    sizes = WindowSizes(BLOCK_TUPLES, THETA_BYTES // TUPLE_BYTES, _MEMORY)
    joins: dict[str, Any] = {
        "as-of": lambda: AsOfJoin(
            AsOf("last", bounds), (None, None), result_tuples=0, kind=JOIN_KINDS["inner"], window_bytes=_MEMORY
        ),
        "inner": lambda: WindowJoinOperator(bounds, sizes, (None, None), result_tuples=0),
    }
    took: dict[str, list[float]] = {which: [] for which in joins}
    for turn in range(repeat + 1):
        for which, made in joins.items():
            join = made()
            elapsed_s, count, kept = _run(join, work)
            if turn:
                took[which].append(elapsed_s)
            if which == "as-of":
                if count != (wanted := _expected(left, right, window_us) if turn == 0 else count):
                    raise SystemExit(f"{name}: {count} matches, DuckDB has {wanted}")
                most, peak_mib = max(kept), join.window_memory().peak_bytes / 2**20
            else:
                pairs = count
    ratios = [inner / mine for inner, mine in zip(took["inner"], took["as-of"], strict=True)]
    tuples, keys = len(left) + len(right), len(np.unique(right.key))
    speeds = [f"{tuples / statistics.median(s) / 1e6:.1f}" for s in took.values()]
    ratio = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
    print(
        f"| {name} | {tuples:,} | {pairs:,} | {speeds[0]} | {speeds[1]} | {ratio} | {most / keys:.2f} | {peak_mib:.0f} |",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=5_000_000)
    parser.add_argument("--keys", type=int, nargs="+", default=[10_000, 1_000_000])
    parser.add_argument("--repeat", type=int, default=5)
    args = parse(parser, rows=20_000, keys=[100], repeat=1)
    warnings.simplefilter("ignore", ImplausibleWarning)
    print("| rows a side | keys | swjoin | polars | DuckDB | speed over |\n|---|---|---|---|---|---|")
    for keys in args.keys:
        of_frames(args.rows, keys, args.repeat)
    more = "as-of, M tuples/s | inner, M tuples/s | as-of over inner | right rows kept a key | most MiB"
    print(f"\n| stream | tuples | pairs | {more} |")
    print("|---|---|---|---|---|---|---|---|")
    for name in ("reference", "uniform", "small"):
        of_streams(name, args.repeat, tiny=args.tiny)


if __name__ == "__main__":
    main()
