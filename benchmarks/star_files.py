"""A star of three streams in files, beside Flink's MultiJoin and two of its interval joins in a row.

What: `beside_flink`, which takes turns and prints rows per second and ratios; every count is that of DuckDB.
Why: Flink 2.1 has an operator for joins of several inputs by one key, as the multiway join here is.
Stays out: the operators alone (`benchmarks.stages star`), RDF streams (`benchmarks.rdf star`).

Partners of a probe are those within W on either side. Flink reads raw longs, its first run warms it up, and neither its start
nor that of its cluster counts; swjoin reads Parquet, in one process with two threads, and its time is that of the run.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks import ROOT
from benchmarks.peers.run import environment

WINDOW_US = 10_000_000
FANOUTS = (0.01, 2)
_BLOCK = 20_000  # rows of a stream within W
_NEAR = f"INTERVAL '{WINDOW_US}' MICROSECOND"
_WAYS = {"multijoin": "MultiJoin", "intervals": "two interval joins in a row"}


def write(folder: Path, rows: int, fanout: float, *, tiny: bool) -> list[Path]:
    """Three streams: ts in microseconds, ascending, and key, which is drawn anew for each stretch of W."""
    rng, block = np.random.default_rng(3), 200 if tiny else _BLOCK
    paths = [folder / f"{name}.parquet" for name in "abc"]
    for path in paths:
        ts = np.sort(rng.integers(0, rows * WINDOW_US // block, rows))
        domain = round(block / fanout)
        key = ts // WINDOW_US * domain + rng.integers(0, domain, rows)
        pq.write_table(pa.table({"ts": ts, "key": key}), path)
    return paths


def expected(paths: list[Path]) -> int:
    a, b, c = (f"'{path}'" for path in paths)
    near = " AND ".join(f"abs({one}.ts - {other}.ts) <= {WINDOW_US}" for one, other in ("ab", "ac", "bc"))
    with duckdb.connect() as database:
        found = database.execute(
            f"SELECT count(*) FROM {a} a JOIN {b} b ON a.key = b.key JOIN {c} c ON a.key = c.key WHERE {near}"
        ).fetchone()
    assert found is not None
    return int(found[0])


def ours(paths: list[Path], folder: Path) -> tuple[float, int]:
    """Seconds and rows of a run."""
    text = "SELECT a.key FROM a JOIN b ON a.key = b.key AND {} JOIN c ON a.key = c.key AND {} AND {}".format(
        *(f"{other}.ts BETWEEN {one}.ts - {_NEAR} AND {one}.ts + {_NEAR}" for one, other in ("ab", "ac", "bc"))
    )
    tables = [word for path in paths for word in ("--table", f"{path.stem}={path}:ts:us")]
    report = folder / "report.json"
    command = [sys.executable, "-m", "swjoin", "query", text, *tables, "-o", "count", "--threads", "2"]
    subprocess.run([*command, "--report", str(report), "-q"], check=True, stdout=subprocess.DEVNULL, timeout=600)
    found = json.loads(report.read_text())
    if not found["ledger"]["balanced"]:
        raise SystemExit("the ledger does not balance")
    return float(found["join_s"]), int(found["results"]["count"])


def theirs(paths: list[Path], way: str, repeat: int, *, tiny: bool) -> tuple[list[float], int, str]:
    """Seconds of runs, rows, version."""
    command = [str(environment("flink", ROOT / "runs" / "peers")), "-m", "benchmarks.peers.flink_join", "--api", way]
    command += [word for name, path in zip(("left", "right", "third"), paths, strict=True) for word in (f"--{name}", str(path))]
    command += ["--within-us", str(WINDOW_US), "--repeat", str(repeat)]
    command += ["--heap", "1g", "--young", "400m"] if tiny else []
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=1500, cwd=ROOT)
    found = json.loads(done.stdout.splitlines()[-1])
    return found["seconds"], int(found["count"]), str(found["version"])


def beside_flink(repeat: int, *, tiny: bool) -> None:
    rows = 2_000 if tiny else 600_000
    for fanout in FANOUTS:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            paths = write(folder, rows, fanout, tiny=tiny)
            answer = expected(paths)
            for way, title in _WAYS.items():
                mine = [ours(paths, folder) for _ in range(repeat)]
                seconds, count, version = theirs(paths, way, repeat, tiny=tiny)
                if {count, *(found for _, found in mine)} != {answer}:
                    raise SystemExit(f"{answer:,} rows by DuckDB, {count:,} by Flink, {mine} here")
                rates = [[3 * rows / s / 1e6 for s in of] for of in ([s for s, _ in mine], seconds)]
                shown = [f"{statistics.median(of):.3f} M rows/s ({min(of):.3f} to {max(of):.3f})" for of in rates]
                ratio = statistics.median(rates[0]) / statistics.median(rates[1])
                what = f"star of three, {fanout:g} partners, {answer:,} rows, Flink {version}, {title}"
                print(f"{what}: {shown[1]}; swjoin {shown[0]}, {ratio:.1f} times as fast; answers right", flush=True)
