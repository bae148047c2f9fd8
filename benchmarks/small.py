"""The first result of an installation, the import, and joins of small frames beside polars.

What: processes that import swjoin and join 1,000 rows, or count them by key and window in SQL, with an empty cache of kernels,
and the join with a full one; `import swjoin`; repeated joins of two polars frames by `swjoin.join`, and by polars' join and a
filter by time. Every answer is checked.
Why: who tries swjoin first meets the compiler, and then the fixed cost of a join.
Stays out: large inputs (`api.py`), commands (`run.py`).

Usage: python -m benchmarks.small [--repeat N] [--rows N ...] [--tiny]
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np

import swjoin
from benchmarks import ROOT, parse
from benchmarks.run import row, turns

ROWS = (10, 1_000, 100_000)
BACK = timedelta(minutes=30)
BASICS: dict[str, Any] = {"on": "user", "left_time": "t", "right_time": "t", "lower": -BACK, "upper": timedelta(0)}
CALLS_S = 0.2  # calls of a turn take about so long together
FIRST = """
import time
start = time.perf_counter()
import swjoin
imported = time.perf_counter()
if {what!r} != "import":
    import numpy as np
    import pyarrow as pa
    user, t = np.arange(1000) % 50, pa.array(np.arange(1000) * 1_000_000, pa.timestamp("us"))
    if {what!r} == "query":
        rows = "TUMBLE(x, t, INTERVAL '100' SECONDS)"
        text = "SELECT user, window_end, count(*) AS n FROM " + rows + " WHERE y > 9 GROUP BY user, window_end"
        found = swjoin.sql(text, x=pa.table({{"user": user, "t": t, "y": np.arange(1000)}}), time="t")
        assert (found.num_rows, sum(found["n"].to_pylist())) == (500, 990), found
        print(time.perf_counter() - start)
        raise SystemExit
    left, right = pa.table({{"user": user, "t": t, "x": user}}), pa.table({{"user": user, "t": t, "y": user}})
    pairs = swjoin.join(left, right, on="user", left_time="t", right_time="t", lower="-30min", upper="0s")
    assert pairs.num_rows == sum(-(-(i + 1) // 50) for i in range(1000)), pairs.num_rows
    imported = time.perf_counter()
print(imported - start)
"""


def process_seconds(folder: Path, what: str) -> float:
    """A new process, from its first import to the imported package or the first result. folder: of kernels. what: "join",
    "query" or "import"."""
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(folder)}
    command = [sys.executable, "-c", FIRST.format(what=what)]
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=True)
    return float(done.stdout)


def first_results(repeat: int) -> None:
    """Rows of the table for processes."""
    empty: dict[str, list[float]] = {"join": [], "query": []}
    with tempfile.TemporaryDirectory(prefix="swjoin-kernels-") as kernels:
        for turn in range(repeat):
            for what, seconds in empty.items():
                seconds.append(process_seconds(Path(kernels) / f"{what} {turn}", what))
        cases: dict[str, Callable[[], float]] = {
            "loaded": lambda: process_seconds(Path(kernels) / "join 0", "join"),
            "import": lambda: process_seconds(Path(kernels) / "join 0", "import"),
        }
        loaded, imported = turns(cases, repeat).values()
    row("first result of an installation, kernels compiled", empty["join"], "s", "20 s", "3 s")
    row("the same for a query without joins", empty["query"], "s", "20 s", "8 s")
    row("the same with kernels that are there, as in the wheel of ./run.sh wheel", loaded, "s", "20 s", "3 s")
    row("import swjoin", [s * 1e3 for s in imported], "ms", "50", "30", digits=0)


def frames(rows: int) -> tuple[Any, Any]:
    """user, t (sorted) and a number, as polars frames; about ten rows a user."""
    import polars as pl

    random = np.random.default_rng(1)

    def frame(column: str) -> Any:
        t = np.sort(random.integers(0, rows * 1_000_000, rows)).astype("datetime64[us]")
        return pl.DataFrame({"user": random.integers(0, max(1, rows // 10), rows), "t": t, column: random.random(rows)})

    return frame("x"), frame("y")


def by_polars(left: Any, right: Any) -> Any:
    import polars as pl

    apart = pl.col("t_right") - pl.col("t")
    return left.join(right, on="user").filter((apart >= -BACK) & (apart <= timedelta(0)))


def second_calls(rows: int, repeat: int) -> None:
    left, right = frames(rows)
    ours, theirs = swjoin.join(left, right, **BASICS), by_polars(left, right)
    if ours.num_rows != theirs.height:
        raise SystemExit(f"{rows} rows: swjoin has {ours.num_rows} pairs, polars {theirs.height}")

    def calls(join: Callable[[], Any]) -> Callable[[], float]:
        start = time.perf_counter()
        join()
        count = max(1, int(CALLS_S / (time.perf_counter() - start)))

        def seconds() -> float:
            start = time.perf_counter()
            for _ in range(count):
                join()
            return (time.perf_counter() - start) / count

        return seconds

    cases = {"ours": calls(lambda: swjoin.join(left, right, **BASICS)), "theirs": calls(lambda: by_polars(left, right))}
    mine, others = turns(cases, repeat).values()
    row(f"swjoin.join of {rows:,} rows a side, {ours.num_rows:,} pairs", [s * 1e3 for s in mine], "ms")
    row("polars' join and filter of these", [s * 1e3 for s in others], "ms")
    row("the one over the other, turn by turn", [m / o for m, o in zip(mine, others, strict=True)], "", "3", "1.5")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="of either frame")
    args = parse(parser, repeat=1, rows=(10, 1_000))
    print("answers right in every process and of every size\n")
    print("| what | median | lowest to highest | floor | goal |\n|---|---|---|---|---|")
    first_results(args.repeat)
    for rows in args.rows:
        second_calls(rows, args.repeat)


if __name__ == "__main__":
    main()
