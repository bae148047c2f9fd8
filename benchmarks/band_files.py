"""A join by a band from two Parquet files to a count: swjoin beside DuckDB and Polars, which have the whole input at hand, and
beside Flink.

What: `measure`, which takes turns and prints rows per second and ratios, and `beside_flink`; every count is checked.
Why: users run commands; a batch engine is the fastest way to the same pairs where nothing arrives over time.
Stays out: the join module alone, C++ programs (`benchmarks.bands`).

DuckDB is asked in three ways, as none is best on all data: with inequalities alone, of values and times (its IEJoin); by an
equality of cells of the value, as wide as the band, each left row in three; and by cells of time. Polars: `join_where` with
both inequalities, and an equality of cells. Each has two threads; swjoin runs in one process. swjoin's time is from the first
tuple to the last result (`join_s` of its report), theirs that of the query; start-up is in none of them. What does not end
within a minute is left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median

from benchmarks import ROOT
from benchmarks.peers import child
from benchmarks.peers.run import environment
from swjoin.core.batch import TupleBatch

THREADS, LIMIT_S = 2, 60
_DUCKDB = """
import duckdb, json, sys, time
connection = duckdb.connect(config={"threads": int(sys.argv[1]), "preserve_insertion_order": False})
connection.execute("SET enable_progress_bar = false")  # it would be printed beside the answer
start = time.perf_counter()
count = connection.execute(sys.argv[2]).fetchone()[0]
print(json.dumps([time.perf_counter() - start, count]))
"""
_POLARS = """
import json, sys, time
import polars as pl
way, one, other, band, within = sys.argv[1], *sys.argv[2:4], *map(int, sys.argv[4:6])
start = time.perf_counter()
left, right = (pl.scan_parquet(path).select(pl.all().name.suffix(side)) for path, side in ((one, "_l"), (other, "_r")))
value, ts = pl.col("v_r") - pl.col("v_l"), pl.col("ts_r") - pl.col("ts_l")
near = value.is_between(-band, band) & ts.is_between(-within, within)
if way == "where":
    low, high = pl.col("v_l") - band, pl.col("v_l") + band
    query = left.join_where(right, pl.col("v_r") >= low, pl.col("v_r") <= high, ts >= -within, ts <= within)
else:
    cell = pl.col("v_l") // (band + 1)
    left = left.with_columns(c=pl.concat_list(cell - 1, cell, cell + 1)).explode("c")
    query = left.join(right.with_columns(c=pl.col("v_r") // (band + 1)), on="c").filter(near)
count = query.select(pl.len()).collect(engine="streaming").item()
print(json.dumps([time.perf_counter() - start, count]))
"""


def write(left: TupleBatch, right: TupleBatch, folder: Path) -> list[Path]:
    """Both streams as Parquet: ts in microseconds, and the value v, for Flink also as key."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    paths = [folder / "left.parquet", folder / "right.parquet"]
    for path, batch in zip(paths, (left, right), strict=True):
        pq.write_table(pa.table({"ts": batch.ts, "v": batch.key, "key": batch.key}), path)
    return paths


def duckdb_query(way: str, paths: list[Path], band: int, within: int) -> str:
    one, other = (f"read_parquet('{path}')" for path in paths)
    value, time = f"r.v BETWEEN l.v - {band} AND l.v + {band}", f"r.ts BETWEEN l.ts - {within} AND l.ts + {within}"
    if way == "inequalities":
        return f"SELECT count(*) FROM {one} l JOIN {other} r ON {value} AND {time}"
    column, width = ("v", band + 1) if way == "cells of value" else ("ts", within + 1)
    cell = f"{column} // {width}"
    return (
        f"SELECT count(*) FROM (SELECT *, unnest([{cell} - 1, {cell}, {cell} + 1]) AS c FROM {one}) l "
        f"JOIN (SELECT *, {cell} AS c FROM {other}) r ON l.c = r.c AND {value} AND {time}"
    )


def _ours(paths: list[Path], band: int, within: int, folder: Path) -> tuple[float, int]:
    report = folder / "report.json"
    command = ["join", *map(str, paths), "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "-o", "count"]
    command += ["--within", f"{within}us", "--where", f"abs(left_v - right_v) <= {band}", "--report", str(report)]
    subprocess.run([sys.executable, "-m", "swjoin", *command], check=True, stdout=subprocess.DEVNULL, timeout=600)
    found = json.loads(report.read_text())
    assert found["ledger"]["balanced"]
    return float(found["join_s"]), int(found["results"]["count"])


def _child(script: str, *arguments: str) -> tuple[float, int]:
    out = child.run([sys.executable, "-c", script, *arguments], LIMIT_S, {**os.environ, "POLARS_MAX_THREADS": str(THREADS)})
    seconds, count = json.loads(next(line for line in reversed(out.splitlines()) if line.startswith("[")))
    return float(seconds), int(count)


def measure(left: TupleBatch, right: TupleBatch, band: int, within: int, answer: int, folder: Path, repeat: int) -> None:
    """Turn by turn; prints a line for each system, and swjoin's rate over it."""
    paths = write(left, right, folder)
    names = list(map(str, paths))
    runs: dict[str, Callable[[], tuple[float, int]]] = {"swjoin": partial(_ours, paths, band, within, folder)}
    for way in ("inequalities", "cells of value", "cells of time"):
        runs[f"DuckDB, {way}"] = partial(_child, _DUCKDB, str(THREADS), duckdb_query(way, paths, band, within))
    for way in ("where", "cells"):
        runs[f"Polars, {way}"] = partial(_child, _POLARS, way, *names, str(band), str(within))
    taken: dict[str, list[float]] = {}
    for turn in range(repeat + 1):
        for name, run in list(runs.items()):
            try:
                seconds, found = run()
            except (subprocess.SubprocessError, OSError, SystemExit) as error:
                print(f"{name}: failed, {type(error).__name__}: {' '.join(str(error).split())[-100:]}", flush=True)
                del runs[name]
                continue
            if found != answer:
                raise SystemExit(f"{name}: wrong answer {found:,}, expected {answer:,}")
            if turn:
                taken.setdefault(name, []).append(seconds)
    rows = len(left) + len(right)
    for name, times in taken.items():
        ratios = sorted(b / a for a, b in zip(taken["swjoin"], times, strict=False))
        over = "" if name == "swjoin" else f"; swjoin over it: {median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        rate, spread = rows / median(times) / 1e6, f"{rows / max(times) / 1e6:.2f} to {rows / min(times) / 1e6:.2f}"
        print(f"{name}: {rate:.2f} M rows/s ({spread}), {answer:,} pairs; answer right{over}", flush=True)


# ---------------------------------------------------------------- Flink

SQL_ROWS = 40_000  # of both streams that Flink's SQL gets: it compares every row with all of the window, on one task
_WAYS: dict[str, tuple[str, ...]] = {
    "cells, interval join": ("--api", "datastream"),
    "sorted maps, right side to all": ("--api", "broadcast"),
    "SQL, on one task": ("--api", "sql", "--watermark-every", "100"),
}


def beside_flink(left: TupleBatch, right: TupleBatch, band: int, within: int, answer: int, folder: Path, repeat: int) -> None:
    """In ways that a user has: an interval join by cells of the value, left rows in three; sorted maps in a function, the right
    side sent to all tasks; an SQL join without an equality, of the first rows. Best of its settings, reading raw longs;
    start-up and warm-up are not counted. swjoin from Parquet to count, in one process, before each of them."""
    paths, rows = write(left, right, folder), len(left) + len(right)
    until_us = int(left.ts[min(len(left) - 1, SQL_ROWS // 2)])
    for way, words in _WAYS.items():
        ours = [_ours(paths, band, within, folder) for _ in range(repeat)]
        if any(count != answer for _, count in ours):
            raise SystemExit(f"swjoin: {ours}, expected {answer:,} pairs")
        command = [str(environment("flink", ROOT / "runs" / "peers")), "-m", "benchmarks.peers.flink_join", *words]
        command += ["--left", str(paths[0]), "--right", str(paths[1]), "--within-us", str(within), "--band", str(band)]
        few = "SQL" in way
        command += ["--repeat", str(repeat), *(("--until-us", str(until_us), "--heap", "4g", "--young", "2g") if few else ())]
        done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1500, cwd=ROOT)
        found = json.loads(done.stdout.splitlines()[-1])
        wanted = pairs_before(left, right, band, within, until_us) if few else answer
        if found["count"] != wanted:
            raise SystemExit(f"Flink, {way}: {found['count']:,} pairs, expected {wanted:,}")
        rates = [rows / seconds for seconds, _ in ours]
        theirs = [found["tuples"] / seconds for seconds in found["seconds"]]
        ratio = median(rates) / median(theirs)
        shown = f"{median(theirs) / 1e6:.3f} M rows/s ({min(theirs) / 1e6:.3f} to {max(theirs) / 1e6:.3f})"
        print(f"Flink {found['version']}, {way}: {shown}, {found['tuples']:,} rows; answer right; ", end="")
        print(f"swjoin {median(rates) / 1e6:.2f} M rows/s, {ratio:.1f} times as fast", flush=True)


def pairs_before(left: TupleBatch, right: TupleBatch, band: int, within: int, until_us: int) -> int:
    """Pairs of rows before a time, by DuckDB's equality of cells."""
    import duckdb
    import pyarrow as pa

    tables = [pa.table({"ts": b.ts[b.ts < until_us], "v": b.key[b.ts < until_us]}) for b in (left, right)]
    connection = duckdb.connect()
    for name, table in zip(("one", "other"), tables, strict=True):
        connection.register(name, table)
    cells = f"(SELECT *, unnest([v // {band + 1} - 1, v // {band + 1}, v // {band + 1} + 1]) AS c FROM one)"
    near = f"abs(r.v - l.v) <= {band} AND abs(r.ts - l.ts) <= {within}"
    text = f"SELECT count(*) FROM {cells} l JOIN (SELECT *, v // {band + 1} AS c FROM other) r ON l.c = r.c AND {near}"
    (count,) = connection.execute(text).fetchone() or (0,)
    return int(count)
