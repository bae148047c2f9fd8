"""How fast DuckDB and Polars join two Parquet files by key and time, given the whole input: two threads, Parquet to count.

They are the fastest way to the same pairs when nothing arrives over time, so they bound what streaming costs. Each is asked in
several ways, as none is best on all data; every one is a variant of its own. DuckDB: a hash join on the key with the time
condition on its matches, and one on key and time slot (slots of one window's width, each left row in three of them), which
meets fewer matches to reject. Polars: an equality join and a filter, on its streaming engine. With --out-parquet DuckDB also
writes all pairs with their payloads, on Parquet's default compression in DuckDB (Snappy) unless another is named.
Out of scope: digests, disorder, bounded state. Neither system holds to the order of time.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path

from benchmarks.peers import child, common

THREADS = 2
OUTPUT = "l.key, l.ts AS left_ts, l.payload AS left_payload, r.ts AS right_ts, r.payload AS right_payload"
VARIANTS = {
    "duckdb-key": f"{THREADS} threads, hash join on the key, abs(r.ts - l.ts) <= W on its matches",
    "duckdb-slot": f"{THREADS} threads, hash join on key and time slot (left rows in three slots), ts condition on its matches",
    "polars-stream": f"{THREADS} threads, lazy join on the key and filter by time, streaming engine",
    "polars-memory": f"{THREADS} threads, lazy join on the key and filter by time, in-memory engine",
}


def duckdb_query(way: str, select: str, left: str, right: str, within: int) -> str:
    scan = [f"read_parquet('{path.replace(chr(39), chr(39) * 2)}')" for path in (left, right)]
    if way == "duckdb-key":
        return f"SELECT {select} FROM {scan[0]} l JOIN {scan[1]} r ON l.key = r.key WHERE abs(r.ts - l.ts) <= {within}"
    width = max(within, 1)
    slot = f"floor(ts / {width})::BIGINT"
    return (
        f"SELECT {select} FROM (SELECT *, unnest([{slot} - 1, {slot}, {slot} + 1]) AS slot FROM {scan[0]}) l "
        f"JOIN (SELECT *, {slot} AS slot FROM {scan[1]}) r "
        f"ON l.key = r.key AND l.slot = r.slot AND r.ts BETWEEN l.ts - {within} AND l.ts + {within}"
    )


def run_duckdb(args: argparse.Namespace) -> tuple[str, list[float], list[int]]:
    import duckdb

    connection = duckdb.connect(config={"threads": THREADS})
    connection.execute("SET preserve_insertion_order = false")
    if args.out_parquet:
        query = duckdb_query(args.variant, OUTPUT, args.left, args.right, args.within_us)
        target = args.out_parquet.replace("'", "''")
        query = f"COPY ({query}) TO '{target}' (FORMAT parquet, COMPRESSION {args.compression})"
    else:
        query = duckdb_query(args.variant, "count(*)", args.left, args.right, args.within_us)
    seconds, counts = [], []
    for _ in range(args.repeat):
        if args.out_parquet:
            Path(args.out_parquet).unlink(missing_ok=True)
        start = time.perf_counter()
        row = connection.execute(query).fetchone()
        seconds.append(time.perf_counter() - start)
        assert row is not None
        counts.append(int(row[0]))
    if args.out_parquet:
        row = connection.execute("SELECT count(*) FROM read_parquet(?)", [args.out_parquet]).fetchone()
        assert row is not None
        counts.append(int(row[0]))
        print(f"{args.out_parquet}: {Path(args.out_parquet).stat().st_size:,} bytes", file=sys.stderr)
    return duckdb.__version__, seconds, counts


def run_polars(args: argparse.Namespace) -> tuple[str, list[float], list[int]]:
    import polars as pl

    seconds, counts = [], []
    for _ in range(args.repeat):
        start = time.perf_counter()
        left = pl.scan_parquet(args.left).select("key", pl.col("ts").alias("left_ts"))
        right = pl.scan_parquet(args.right).select("key", pl.col("ts").alias("right_ts"))
        near = (pl.col("right_ts") - pl.col("left_ts")).is_between(-args.within_us, args.within_us)
        query = left.join(right, on="key").filter(near).select(pl.len())
        counts.append(int(query.collect(engine="streaming" if args.variant == "polars-stream" else "in-memory").item()))
        seconds.append(time.perf_counter() - start)
    return pl.__version__, seconds, counts


def row_count(path: str) -> int:
    import pyarrow.parquet as pq

    return int(pq.read_metadata(path).num_rows)


def main() -> None:
    parser = common.arguments(__doc__)
    parser.add_argument("--variants", nargs="+", choices=VARIANTS, default=list(VARIANTS), help="default: all")
    parser.add_argument("--out-parquet", metavar="FILE", help="write the pairs with payloads there (DuckDB variants only)")
    parser.add_argument("--compression", default="snappy", choices=["snappy", "lz4", "zstd", "uncompressed"])
    parser.add_argument("--variant", help=argparse.SUPPRESS)  # in the child: the one to run
    args = parser.parse_args()
    if args.variant:
        run = run_duckdb if args.variant.startswith("duckdb") else run_polars
        version, seconds, counts = run(args)
        print(json.dumps([version, seconds, counts]))
        return
    tuples = row_count(args.left) + row_count(args.right)
    for variant in args.variants:
        command = [
            sys.executable,
            "-m",
            "benchmarks.peers.batch_joins",
            "--left",
            args.left,
            "--right",
            args.right,
            "--within-us",
            str(args.within_us),
        ]
        command += ["--repeat", str(args.repeat), "--variant", variant]
        ends = "Parquet in, count out"
        if args.out_parquet:
            if not variant.startswith("duckdb"):
                continue
            command += ["--out-parquet", args.out_parquet, "--compression", args.compression]
            ends = f"Parquet in, Parquet out with both payloads ({args.compression}), no row order kept"
        environment = {"POLARS_MAX_THREADS": str(THREADS)}
        out = child.run(command, args.timeout_s, {**os.environ, **environment})
        version, seconds, counts = json.loads(out.splitlines()[-1])
        system = "DuckDB" if variant.startswith("duckdb") else "Polars"
        common.report(system, version, f"{VARIANTS[variant]}; {ends}", common.same(counts), seconds, tuples)


if __name__ == "__main__":
    main()
