"""Compile every kernel once, so that no run after the installation waits for the compiler.

What: `python -m swjoin.cli.warmup`: tiny joins, and plans of memory, through every kernel and type that real runs use.
Why: numba compiles at the first call and caches on disk; all ranks then load the cache.
Stays out: loading the cache at the start of a run (`runtime.preload`).
"""

from __future__ import annotations

import csv
import tempfile
import time
from pathlib import Path

from swjoin.cli.main import main
from swjoin.config import QueryConfig, RunConfig, WorkloadConfig
from swjoin.runtime.memory_plan import plan_memory
from swjoin.sources.inflow import workload_inflow


def _write(path: Path, rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "number", "name", "value"])
        for i in range(rows):
            writer.writerow([i, i % 7, f"n{i % 5}", i / 2])


def warm_up() -> None:
    """Joins with integer and string keys, with rows and with counts, with and without order."""
    with tempfile.TemporaryDirectory(prefix="swjoin-warmup-") as folder:
        left, right = Path(folder) / "left.csv", Path(folder) / "right.csv"
        _write(left, 2000)
        _write(right, 1500)
        common = ["--left-time", "t", "--right-time", "t", "--time-unit", "s", "--within", "10s"]
        for i, key in enumerate((["number"], ["name"], ["number", "name"])):
            for out in ("count", f"{folder}/{i}.parquet"):
                code = main(["join", str(left), str(right), "--on", *key, *common, "--max-out-of-order", "2s", "-o", out])
                if code:
                    raise SystemExit(code)
    _plan()


def _plan() -> None:
    """Memory is planned after every run: by every key of a domain, or by the heaviest of a large one."""
    for domain in (1000, 1 << 40):
        config = RunConfig((QueryConfig(-1_000_000, 1_000_000),), workload=WorkloadConfig(domain=domain))
        plan_memory(config, 1, workload_inflow(config))


if __name__ == "__main__":
    import contextlib
    import os

    start = time.monotonic()
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        warm_up()
    print(f"kernels ready ({time.monotonic() - start:.0f} s)")
