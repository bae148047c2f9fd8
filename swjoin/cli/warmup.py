"""Compile every kernel once, so that no run after the installation waits for the compiler.

What: `python -m swjoin.cli.warmup`: tiny joins through every kernel and type that real joins use.
Why: numba compiles at the first call and caches on disk; all ranks then load the cache.
Stays out: loading the cache at the start of a run (`runtime.preload`).
"""

from __future__ import annotations

import csv
import tempfile
import time
from pathlib import Path

from swjoin.cli.main import main


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


if __name__ == "__main__":
    import contextlib
    import os

    start = time.monotonic()
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        warm_up()
    print(f"kernels ready ({time.monotonic() - start:.0f} s)")
