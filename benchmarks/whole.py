"""Whole commands as a user runs them: in-process and MPI joins, Parquet to count and to Parquet, memory, start-up.

What: one function per measurement; each checks the answer of every run. Joins are timed from the first tuple in to the last
result out (`join_s` in run.json), so without start-up; DuckDB from the query to its end.
Why: users run commands, not kernels.
Stays out: tables and repetition (`run.py`).
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

JOIN = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "--within", "10s"]
Answer = tuple[int, str]
_ON = "l.key = r.key AND abs(r.ts - l.ts) <= 10000000"


def swjoin(arguments: list[str], one_core: bool = False) -> float:
    """Run the command; its wall time in seconds."""
    pin = (lambda: os.sched_setaffinity(0, {0})) if one_core else None
    start = time.perf_counter()
    subprocess.run(
        [sys.executable, "-m", "swjoin", *arguments], check=True, stdout=subprocess.DEVNULL, preexec_fn=pin, timeout=600
    )
    return time.perf_counter() - start


def join(paths: list[Path], answer: Answer, folder: Path, out: str, more: list[str], one_core: bool = False) -> float:
    """Tuples per second of `swjoin join`."""
    report = folder / "report.json"
    target = folder / out
    target.unlink(missing_ok=True)
    swjoin(
        ["join", *map(str, paths), *JOIN, "-o", out if out == "count" else str(target), "--report", str(report), *more],
        one_core,
    )
    found = json.loads(report.read_text())
    if (found["results"]["count"], found["results"]["digest"]) != answer or not found["ledger"]["balanced"]:
        raise SystemExit(f"swjoin join {out} {more}: wrong answer {found['results']}, expected {answer}")
    target.unlink(missing_ok=True)
    return float(found["input_tuples_per_s"])


def duckdb_parquet(paths: list[Path], answer: Answer, folder: Path, tuples: int) -> float:
    """Tuples per second of DuckDB's batch join of the same files to Parquet, two threads, its default compression."""
    import duckdb

    target = folder / "duckdb.parquet"
    target.unlink(missing_ok=True)
    connection = duckdb.connect(config={"threads": 2, "preserve_insertion_order": False})
    columns = "l.key, l.ts AS left_ts, l.payload AS left_payload, r.ts AS right_ts, r.payload AS right_payload"
    query = f"SELECT {columns} FROM '{paths[0]}' l JOIN '{paths[1]}' r ON {_ON}"
    start = time.perf_counter()
    connection.execute(f"COPY ({query}) TO '{target}' (FORMAT parquet)")
    seconds = time.perf_counter() - start
    found = connection.execute(f"SELECT count(*) FROM '{target}'").fetchone()
    target.unlink()
    if found is None or found[0] != answer[0]:
        raise SystemExit(f"DuckDB: {found} pairs, expected {answer[0]}")
    return tuples / seconds


def duckdb_count(paths: list[Path], answer: Answer, tuples: int) -> float:
    """Tuples per second of DuckDB's batch join of the same files, counted only, two threads."""
    import duckdb

    connection = duckdb.connect(config={"threads": 2})
    start = time.perf_counter()
    found = connection.execute(f"SELECT count(*) FROM '{paths[0]}' l JOIN '{paths[1]}' r ON {_ON}").fetchone()
    seconds = time.perf_counter() - start
    if found is None or found[0] != answer[0]:
        raise SystemExit(f"DuckDB: {found} pairs, expected {answer[0]}")
    return tuples / seconds


def memory(folder: Path, ranks: int, window_s: int, rate: int = 100_000) -> dict[str, float]:
    """Resident bytes of a slave over the bytes of the tuples in its windows, 64 a tuple; the payload goes to Parquet."""
    out = folder / "memory"
    config = folder / "memory.yaml"
    plain = {
        "workload": {"rate": rate, "duration": f"{window_s + 15}s", "bias": 0.5, "domain": 1 << 31},
        "join": {"within": f"{window_s}s"},
        "cluster": {"distribution_epoch": 0},
        "module": {"theta": "32KB"},
        "sink": {"kind": "parquet"},
    }
    config.write_text(json.dumps(plain))
    swjoin(["run", str(config), "-n", str(ranks), "--out", str(out)])
    import pyarrow.parquet as pq

    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    metrics = pq.read_table(out / "metrics" / "slaves.parquet").to_pandas()
    held = metrics.groupby("slave")["window_tuples"].max()
    resident = [report["peak_rss_bytes"][rank] for rank, r in report["ranks"].items() if r["role"].startswith("slave")]
    ratios = [rss / (64 * tuples) for rss, tuples in zip(resident, held, strict=True)]
    return {"ratio": max(ratios), "resident_bytes": max(resident), "window_tuples": float(held.max())}


def start_up(folder: Path) -> tuple[float, float]:
    """Seconds of `swjoin --help`, and of a whole 5-rank run of 2,000 tuples, which bounds the time to the first epoch."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    path = folder / "tiny.parquet"
    if not path.exists():
        pq.write_table(pa.table({"ts": list(range(1000)), "key": list(range(1000))}), path)
    return swjoin(["--help"]), swjoin(["join", str(path), str(path), *JOIN, "-o", "count", "-n", "5"])
