"""How fast Spark Structured Streaming counts the pairs of an interval join of two Parquet files.

A stream-stream inner join with watermarks on both sides, in one local JVM: the first run warms it up and is left out
of the figures. Before any clock starts the Parquet files are cut by time into --files Parquet files a side holding
(ts, key), which the query reads one a micro-batch. Out of scope: fault tolerance beyond what the query cannot switch
off (its checkpoint lies in a temporary folder), emission of the pairs, more than one machine.

    python -m benchmarks.peers.spark_join --left L.parquet --right R.parquet --within-us 10000000 --repeat 3

Needs the packages of requirements-spark.txt and a Java runtime (17 or later). The last line of stdout is the result as
JSON; everything else goes to stderr.
"""

import argparse
import json
import os
import sys
import tempfile
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.peers import child

STORES = {
    "memory": "org.apache.spark.sql.execution.streaming.state.HDFSBackedStateStoreProvider",
    "rocksdb": "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider",
}
START = 1_600_000_000  # seconds; file times, which order the files for Spark


def cut(paths: list[Path], folder: Path, files: int) -> int:
    """Both streams cut at the same times into files of (ts, key), one folder a side; the number of rows."""
    tables = [pq.read_table(path, columns=["ts", "key"]) for path in paths]
    first = min(table["ts"][0].as_py() for table in tables)
    last = max(table["ts"][-1].as_py() for table in tables)
    for side, table in enumerate(tables):
        (folder / str(side)).mkdir()
        stamped = pa.table({"ts": table["ts"].cast(pa.timestamp("us", "UTC")), "key": table["key"]})
        for index in range(files):
            low, high = (first + (last + 1 - first) * step // files for step in (index, index + 1))
            within = pc.and_(pc.greater_equal(table["ts"], low), pc.less(table["ts"], high))
            path = folder / str(side) / f"{index:05d}.parquet"
            pq.write_table(stamped.filter(within), path, compression="lz4")
            os.utime(path, (START + index, START + index))
    return sum(map(len, tables))


def run_once(spark: Any, folder: Path, run: int, within_us: int) -> tuple[float, int]:
    """Seconds of one whole query and its pairs."""
    from pyspark.sql import functions as F

    sides = []
    for side, name in enumerate("lr"):
        stream = spark.readStream.schema("ts timestamp, key long").option("maxFilesPerTrigger", 1).parquet(f"{folder}/{side}")
        stream = stream.withColumnsRenamed({"ts": f"{name}_ts", "key": f"{name}_key"})
        sides.append(stream.withWatermark(f"{name}_ts", "0 seconds"))
    bound = f"interval {within_us} microseconds"
    condition = F.expr(f"l_key = r_key AND r_ts >= l_ts - {bound} AND r_ts <= l_ts + {bound}")
    joined = sides[0].join(sides[1], condition)
    counted: list[int] = []

    def count(batch: Any, index: int) -> None:
        counted.append(batch.count())
        print(f"run {run} batch {index}: {counted[-1]} pairs", file=sys.stderr)

    query = joined.select(F.lit(1)).writeStream.foreachBatch(count).trigger(availableNow=True)
    start = time.perf_counter()
    running = query.option("checkpointLocation", f"{folder}/checkpoint-{run}").start()
    running.awaitTermination()
    return time.perf_counter() - start, sum(counted)


def session(name: str, folder: Path, args: argparse.Namespace, more: dict[str, str]) -> Any:
    """Spark as it is measured. args: with cores, heap and store. more: settings."""
    from pyspark.sql import SparkSession

    settings = {
        "spark.driver.memory": args.heap,
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.extraJavaOptions": f"-Xms{args.heap} -XX:+UseParallelGC -XX:+AlwaysPreTouch -Djava.io.tmpdir={folder}",
        "spark.local.dir": str(folder),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.streaming.stateStore.providerClass": STORES[args.store],
        **more,
    }
    builder = SparkSession.builder.master(f"local[{args.cores}]").appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def work(args: argparse.Namespace) -> None:
    """In a process of its own: all runs, each a line "RUN seconds count"."""
    folder = args.worker
    more = {
        "spark.sql.shuffle.partitions": str(args.partitions),
        "spark.sql.streaming.noDataMicroBatches.enabled": "false",
        **dict(setting.split("=", 1) for setting in args.set),
    }
    spark = session("interval join", folder, args, more)
    for run in range(args.repeat + 1):
        seconds, pairs = run_once(spark, folder, run, args.within_us)
        print(f"RUN {seconds} {pairs}", flush=True)
    spark.stop()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--left", type=Path, required=True)
    parser.add_argument("--right", type=Path, required=True)
    parser.add_argument("--within-us", type=int, required=True)
    parser.add_argument("--repeat", type=int, default=2, help="measured runs, after one more that warms up")
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--files", type=int, default=5, help="files a side, one of each a micro-batch")
    parser.add_argument("--partitions", type=int, default=2, help="shuffle partitions")
    parser.add_argument("--store", choices=STORES, default="memory")
    parser.add_argument("--heap", default="10g", help="size of the Java heap")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="a further Spark setting")
    parser.add_argument("--timeout-s", type=float, default=1800, help="seconds for all runs together")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.worker:
        work(args)
        return
    with tempfile.TemporaryDirectory(prefix="spark-join-") as name:
        tuples = cut([args.left, args.right], Path(name), args.files)
        out = child.run(
            [sys.executable, "-m", "benchmarks.peers.spark_join", *sys.argv[1:], "--worker", name],
            args.timeout_s,
            {"SPARK_LOCAL_IP": "127.0.0.1"},
        )
    seconds, counts = [], set()
    for line in out.splitlines():
        print(line, file=sys.stderr)
        if line.startswith("RUN "):
            _, wall, pairs = line.split()
            seconds.append(float(wall))
            counts.add(int(pairs))
    if len(seconds) != args.repeat + 1 or len(counts) != 1:
        raise SystemExit(f"runs {len(seconds)}, counts {counts}: expected {args.repeat + 1} runs of one count")
    configuration = (
        f"stream-stream inner join, local[{args.cores}], heap {args.heap}, parallel collector, {args.store} state store, "
        f"{args.partitions} shuffle partitions, {args.files} Parquet files of (ts, key) a side, one of each a micro-batch, "
        f"trigger availableNow, count by foreachBatch, first run left out as warm-up{''.join(f', {item}' for item in args.set)}"
    )
    result = {
        "system": "Spark Structured Streaming",
        "version": version("pyspark"),
        "configuration": configuration,
        "count": counts.pop(),
        "seconds": [round(value, 3) for value in seconds[1:]],
        "tuples": tuples,
    }
    print(json.dumps(result))


if __name__ == "__main__":
    main()
