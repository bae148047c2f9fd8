"""The window join inside Spark against Spark's own range join, in one session, turn by turn; the answer checked in each turn.

Usage: python -m benchmarks.spark_join [reference|uniform|small|paper|skewed] [--cores 2] [--repeat 5] [--cached] [--tiny]

Two measures: `count` counts and digests the pairs (ids only are read), `rows` writes every pair with both 48-byte payloads to
Spark's noop format. Spark's own join is written in two ways (see `SPARKS`); the one that takes the least CPU in the turn that
warms up is compared, per measure. Seconds are wall time; CPU seconds are of this process, the JVM and all Python workers, and
tell more on a busy machine. Turn 0 warms up and does not count.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import psutil

from benchmarks import parse
from benchmarks.workloads import WORKLOADS as COMMON
from benchmarks.workloads import expected, sized, stream
from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import payload_bytes
from swjoin.core.join_semantics import format_digest
from swjoin.spark import parquet, window_join
from swjoin.spark.row_digest import count_and_digest
from swjoin.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Hot keys and a short window: of a billion pairs of equal keys, one in 150 lies within it.
WORKLOADS = {**COMMON, "skewed": (WorkloadConfig(100_000, 30_000_000, 0.8), 100_000)}
FILES = 4  # of each stream
OURS = "swjoin.spark.window_join"
FILES_OURS = "swjoin.spark.window_join of parquet()"


def write(folder: Path, name: str, tiny: bool) -> tuple[tuple[int, str], int]:
    """Both streams as folders of Parquet files (id, ts, key, payload); the right answer and the number of tuples."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    workload, window_us = WORKLOADS[name]
    left, right = (stream(sized(workload, tiny), side) for side in range(2))
    for side, batch in enumerate((left, right)):
        ids = batch.id.view(np.int64)
        offsets = pa.py_buffer(np.arange(0, 48 * len(ids) + 1, 48, dtype=np.int32))
        data = pa.py_buffer(payload_bytes(batch.id, 1, side, 48).reshape(-1))
        payload = pa.Array.from_buffers(pa.binary(), len(ids), [None, offsets, data])
        table = pa.table({"id": ids, "ts": batch.ts, "key": batch.key, "payload": payload})
        (folder / str(side)).mkdir()
        for part in range(FILES):
            a, b = (len(ids) * p // FILES for p in (part, part + 1))
            pq.write_table(table.slice(a, b - a), folder / str(side) / f"{part}.parquet", compression="lz4")
    return expected(left, right, window_us), len(left) + len(right)


# ---------------------------------------------------------------- the joins: both have id, ts and payload of both sides

Join = Callable[["DataFrame", "DataFrame", int, int | None], "DataFrame"]


def ours(left: Any, right: Any, window_us: int, partitions: int | None, columns: list[str] | None = None) -> DataFrame:
    more: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us", "columns": columns}
    return window_join(left, right, within=f"{window_us}us", partitions=partitions, **more)


def _sides(left: DataFrame, right: DataFrame) -> tuple[DataFrame, DataFrame]:
    named = [
        frame.select("key", *(frame[c].alias(f"{name}_{c}") for c in frame.columns if c != "key"))
        for frame, name in ((left, "left"), (right, "right"))
    ]
    return named[0], named[1]


def plain(left: DataFrame, right: DataFrame, window_us: int, _: int | None) -> DataFrame:
    one, two = _sides(left, right)
    gap = two["right_ts"].between(one["left_ts"] - window_us, one["left_ts"] + window_us)
    return one.join(two, (one["key"] == two["key"]) & gap).drop(two["key"])


def bucketed(left: DataFrame, right: DataFrame, window_us: int, _: int | None) -> DataFrame:
    """A second equal column: the time bucket of the window's width; a window touches at most two."""
    from pyspark.sql import functions as f

    one, two = _sides(left, right)
    width = 2 * window_us + 1
    first = f.expr(f"floor((left_ts - {window_us}) / {width})")
    one = one.withColumn("bucket", f.explode(f.array(first, first + 1)))
    two = two.withColumn("bucket", f.expr(f"floor(right_ts / {width})"))
    joined = one.join(two, ["key", "bucket"])
    return joined.where(f.col("right_ts").between(f.col("left_ts") - window_us, f.col("left_ts") + window_us)).drop("bucket")


# A shuffled hash join (hint shuffle_hash) took 1.5 times the CPU of the sort-merge join here, and 12 times of `skewed`.
SPARKS: dict[str, Join] = {
    "Spark: key and time range": plain,
    "Spark: key, time bucket, range": bucketed,
}


# ---------------------------------------------------------------- measuring


_seen: dict[int, float] = {}  # CPU seconds of all descendants so far: finished Python workers are not waited for


def cpu_s() -> float:
    """CPU seconds of this process and all below it, those that have ended included."""
    here = psutil.Process()
    for process in (here, *here.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            _seen[process.pid] = times.user + times.system
    return sum(_seen.values())


class Bench:
    def __init__(self, spark: SparkSession, folder: Path, window_us: int, partitions: int | None, cached: bool) -> None:
        self.window_us, self.partitions = window_us, partitions
        left, right = (spark.read.parquet(str(folder / str(side))) for side in range(2))
        if cached:
            left, right = left.cache(), right.cache()
            for frame in (left, right):
                frame.count()
        files = (parquet(spark, str(folder / "0")), parquet(spark, str(folder / "1")))
        self.frames: tuple[Any, Any] = (left, right)
        self.sources: dict[str, tuple[Any, Any]] = {OURS: self.frames, FILES_OURS: files}

    def count(self, name: str) -> tuple[int, str]:
        """Spark's optimizer finds that a count needs only the ids; ours gets a list of columns."""
        if name in SPARKS:
            joined = SPARKS[name](*self.frames, self.window_us, self.partitions)
        else:
            joined = ours(*self.sources[name], self.window_us, self.partitions, ["left_id", "right_id"])
        pairs = joined.selectExpr("left_id AS l", "right_id AS r")
        count, digest = count_and_digest(pairs)
        return count, format_digest(digest)

    def rows(self, name: str) -> None:
        sides = self.sources.get(name, self.frames)
        joined = SPARKS.get(name, ours)(*sides, self.window_us, self.partitions)
        joined.write.format("noop").mode("overwrite").save()


def turns(bench: Bench, repeat: int, answer: tuple[int, str]) -> dict[Any, list[tuple[float, float]]]:
    """(measure, join) -> (seconds, CPU seconds) of each turn."""
    names = [OURS, FILES_OURS, *SPARKS]
    figures: dict[Any, list[tuple[float, float]]] = {(m, name): [] for m in ("count", "rows") for name in names}
    for turn in range(repeat + 1):
        for (measure, name), values in figures.items():
            cpu, start = cpu_s(), time.perf_counter()
            found = getattr(bench, measure)(name)
            figure = time.perf_counter() - start, cpu_s() - cpu
            if found not in (None, answer):
                raise SystemExit(f"{name}: wrong answer {found}, expected {answer}")
            print(f"turn {turn}, {measure}, {name}: {figure[0]:.2f} s, {figure[1]:.2f} CPU s", flush=True)
            values.append(figure)
        if turn == 0:
            for measure in ("count", "rows"):
                best = min(SPARKS, key=lambda name: figures[measure, name][0][1])
                for name in set(SPARKS) - {best}:
                    del figures[measure, name]
            figures = {key: [] for key in figures}
    return figures


def table(figures: dict[Any, list[tuple[float, float]]], tuples: int) -> None:
    print("\n| what | median | lowest to highest | tuples/s | CPU, median |\n|---|---|---|---|---|")
    for (measure, name), values in figures.items():
        wall, cpu = [sorted(v[i] for v in values) for i in (0, 1)]
        middle = statistics.median(wall)
        span = f"{wall[0]:.2f} to {wall[-1]:.2f} s"
        print(
            f"| {measure}: {name} | {middle:.2f} s | {span} | {tuples / middle / 1e6:.2f} M | {statistics.median(cpu):.2f} s |"
        )
    for measure in ("count", "rows"):
        best = next(name for name in SPARKS if (measure, name) in figures)
        for name in (OURS, FILES_OURS):
            pairs = list(zip(figures[measure, name], figures[measure, best], strict=True))
            for i, unit in enumerate(("wall", "CPU")):
                ratios = sorted(theirs[i] / own[i] for own, theirs in pairs)
                span = f"{ratios[0]:.2f} to {ratios[-1]:.2f}"
                print(f"| {measure}: {name}, times as fast as {best}, {unit} | {statistics.median(ratios):.2f} | {span} | | |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workload", nargs="?", default="reference", choices=WORKLOADS)
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--partitions", type=int, help="of both joins; ours has its own default, Spark's is 4 then")
    parser.add_argument("--cached", action="store_true", help="both inputs cached by Spark instead of read from Parquet")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further Spark setting")
    args = parse(parser, repeat=1)
    with tempfile.TemporaryDirectory(prefix="spark-join-") as name:
        folder = Path(name)
        answer, tuples = write(folder, args.workload, args.tiny)
        settings = {
            "spark.driver.memory": "1g" if args.tiny else "8g",
            "spark.local.dir": name,
            "spark.python.daemon.module": "swjoin.spark.worker_daemon",  # or a turn pays for workers that have ended meanwhile
            "spark.sql.shuffle.partitions": str(args.partitions or 2 * args.cores),
            **dict(setting.split("=", 1) for setting in args.set),
        }
        with open_session(f"local[{args.cores}]", "window join", settings) as spark:
            bench = Bench(spark, folder, WORKLOADS[args.workload][1], args.partitions, args.cached)
            window = f"W = {WORKLOADS[args.workload][1] / 1e6:g} s"
            print(
                f"{args.workload}: {tuples:,} tuples, {window}, {answer[0]:,} pairs, {args.cores} cores, Spark {spark.version}"
            )
            figures = turns(bench, args.repeat, answer)
    table(figures, tuples)
    print("every answer right")


if __name__ == "__main__":
    main()
