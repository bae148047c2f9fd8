"""Spark Structured Streaming for the comparison of Nexmark's queries: a process that runs the queries that stdin names.

What: cuts the Parquet files of a folder by time into --files files a table, prints "READY version configuration", and then
answers "CHECK query rows" and "TIME query" with "RUN seconds count ..." or "FAILED reason". CHECK writes the rows, a Parquet
file for each micro-batch; TIME counts and hashes them.
Why: Spark's stream of files takes whole files, one of each table a micro-batch.
Stays out: which queries run, their texts, the comparison (`benchmarks.peers.nexmark`).

A query with windows gets one more row of each table, two days after the last: Spark closes a window when a later row has moved
the watermark, and has no word for the end of a stream. That row's own windows stay open, and its keys are in no other row.

Needs the packages of requirements-spark.txt and a Java runtime (17 or later).

    python -m benchmarks.peers.nexmark_spark --folder FOLDER --cores 2
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import time
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from benchmarks.peers.spark_join import START, STORES, session

TIME = "date_time"
LATER_US = 2 * 86_400_000_000


def _write(table: pa.Table, path: Path, order: int) -> None:
    """A file; Spark reads files in the order of their times."""
    pq.write_table(table, path, compression="lz4")
    os.utime(path, (START + order, START + order))


def _last(table: pa.Table, number: int) -> pa.Table:
    """The row that closes windows: integers are negative and of no other table."""
    row: dict[str, Any] = {}
    for column in table.schema:
        last = table[column.name].slice(len(table) - 1)
        if pa.types.is_timestamp(column.type):
            row[column.name] = pc.add(last, pa.scalar(LATER_US, pa.duration("us")))
        else:
            row[column.name] = pa.array([-number], pa.int64()) if pa.types.is_integer(column.type) else last
    return pa.table(row)


def cut(folder: Path, to: Path, files: int) -> list[tuple[str, bool]]:
    """All tables cut at the same times; their names, and whether they are streams."""
    tables = {path.stem: pq.read_table(path) for path in sorted(folder.glob("*.parquet"))}
    times = [table[TIME].cast(pa.int64()) for table in tables.values() if TIME in table.column_names]
    first, end = min(pc.min(column).as_py() for column in times), max(pc.max(column).as_py() for column in times) + 1
    for number, (name, table) in enumerate(tables.items(), 1):
        (to / name).mkdir(parents=True)
        if TIME not in table.column_names:
            _write(table, to / name / "data.parquet", 0)
            continue
        us = table[TIME].cast(pa.int64())
        for at, column in enumerate(table.schema):
            if pa.types.is_timestamp(column.type):
                table = table.set_column(at, column.name, table[column.name].cast(pa.timestamp("us", "UTC")))
        for index in range(files):
            low, high = (first + (end - first) * step // files for step in (index, index + 1))
            within = pc.and_(pc.greater_equal(us, low), pc.less(us, high))
            _write(table.filter(within), to / name / f"data-{index:05d}.parquet", index)
        _write(_last(table, number), to / name / "last.parquet", files)
    return [(name, TIME in table.column_names) for name, table in tables.items()]


class Queries:
    """Runs queries in a session, each from new streams and a new checkpoint."""

    def __init__(self, spark: Any, folder: Path, tables: list[tuple[str, bool]]) -> None:
        self._spark, self._folder, self._tables, self._runs = spark, folder, tables, 0

    def _views(self, text: str) -> None:
        pattern = "*.parquet" if "window(" in text else "data*.parquet"
        for name, is_stream in self._tables:
            path = str(self._folder / name)
            table = self._spark.read.parquet(path)
            if is_stream:
                stream = self._spark.readStream.schema(table.schema).option("maxFilesPerTrigger", 1)
                table = stream.option("pathGlobFilter", pattern).parquet(path).withWatermark(TIME, "0 seconds")
            table.createOrReplaceTempView(name)

    def run(self, text: str, rows: str) -> tuple[float, int]:
        """Seconds and rows; with a path, rows are written."""
        self._runs += 1
        self._views(text)
        counts: list[int] = []

        def count(batch: Any, index: int) -> None:
            if not rows:
                counts.append(batch.selectExpr("count(*)", "bit_xor(xxhash64(*))").collect()[0][0])
                return
            table = batch.toArrow()
            pq.write_table(table.rename_columns([str(at) for at in range(table.num_columns)]), f"{rows}.{index}.parquet")
            counts.append(len(table))

        checkpoint = self._folder / f"checkpoint-{self._runs}"
        query = self._spark.sql(text).writeStream.foreachBatch(count).trigger(availableNow=True)
        start = time.perf_counter()
        query.option("checkpointLocation", str(checkpoint)).start().awaitTermination()
        seconds = time.perf_counter() - start
        shutil.rmtree(checkpoint, ignore_errors=True)
        return seconds, sum(counts)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument(
        "--folder", type=Path, required=True, help="with a Parquet file for each table; cut files go there, too"
    )
    parser.add_argument("--cores", type=int, default=2)
    parser.add_argument("--heap", default="6g", help="size of the Java heap")
    parser.add_argument("--files", type=int, default=5, help="files a table, one of each a micro-batch")
    parser.add_argument("--store", choices=STORES, default="memory")
    args = parser.parse_args()
    folder = args.folder / "spark"
    tables = cut(args.folder, folder, args.files)
    spark = session("nexmark", folder, args, {"spark.sql.shuffle.partitions": str(args.cores)})
    queries = Queries(spark, folder, tables)
    configuration = (
        f"local[{args.cores}], heap {args.heap}, parallel collector, {args.store} state store, {args.cores} shuffle "
        f"partitions, {args.files} Parquet files a table, one of each a micro-batch, trigger availableNow, rows counted and "
        "hashed by foreachBatch"
    )
    print(f"READY\tSpark Structured Streaming {version('pyspark')}\t{configuration}", flush=True)
    for line in sys.stdin:
        word, query, *rows = line.rstrip("\n").split("\t")
        try:
            seconds, count = queries.run(Path(query).read_text(), rows[0] if word == "CHECK" else "")
            print(f"RUN\t{seconds}\t{count}\t{'wrote' if word == 'CHECK' else 'hashed'}", flush=True)
        except Exception as error:  # whatever Spark says, the next query may run
            print(error, file=sys.stderr, flush=True)
            print(f"FAILED\t{' '.join(str(error).split())}", flush=True)


if __name__ == "__main__":
    main()
