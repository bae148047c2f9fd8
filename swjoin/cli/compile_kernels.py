"""Compile every kernel once, so that no run after the installation waits for the compiler.

What: `python -m swjoin.cli.compile_kernels`: tiny joins through every kernel and type that real joins use, one of generated
streams whose partition-groups move, split and merge, and plans.
Why: numba compiles at the first call and caches on disk; all ranks then load the cache.
Stays out: loading the cache at the start of a run (`runtime.kernel_preload`).
"""

from __future__ import annotations

import csv
import json
import tempfile
import time
from pathlib import Path

from swjoin.cli.main import main
from swjoin.config.run import QueryConfig, RunConfig, WorkloadConfig
from swjoin.forecast.costs import PRESETS
from swjoin.forecast.input_profile import workload_profile
from swjoin.forecast.memory import plan_memory
from swjoin.forecast.model.run import simulate

MOVING = {
    "join": {"within": "300ms"},
    "workload": {"rate": 3000, "duration": "3s", "bias": 0.7, "domain": 1000, "payload": "8B", "schedule": {"kind": "burst"}},
    "cluster": {"distribution_epoch": "100ms", "partition_count": 4},
    "module": {"theta": "4KB", "block": "1KB", "window": "64MB"},
    "reorganization": {"policy": "random", "epoch": "100ms", "random_moves": 2, "declustering": "adaptive"},
}


def _write(path: Path, rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "number", "name", "value"])
        for i in range(rows):
            writer.writerow([i, i % 7, f"n{i % 5}", i / 2])


def warm_up() -> None:
    """Joins with integer and string keys, with rows and with counts, with and without order; state movements."""
    with tempfile.TemporaryDirectory(prefix="swjoin-warmup-") as folder:
        left, right = Path(folder) / "left.csv", Path(folder) / "right.csv"
        _write(left, 2000)
        _write(right, 1500)
        common = ["--left-time", "t", "--right-time", "t", "--time-unit", "s", "--within", "10s"]
        joins = []
        for i, key in enumerate((["number"], ["name"], ["number", "name"])):
            joins += [[*key, "--max-out-of-order", "2s", "-o", out] for out in ("count", f"{folder}/{i}.parquet")]
        joins.append(["number", "--how", "full", "-o", "count"])
        for words in joins:
            code = main(["join", str(left), str(right), *common, "--on", *words])
            if code:
                raise SystemExit(code)
        config = Path(folder) / "moving.yaml"
        config.write_text(json.dumps(MOVING))  # JSON is YAML
        code = main(["run", str(config), "--threads", "2", "--out", f"{folder}/moving"])
        if code:
            raise SystemExit(code)
    _plan()


def _plan() -> None:
    """Memory is planned after every run, by every key of a domain, or by the heaviest of a large one; delay when asked for."""
    for domain in (1000, 1 << 40):
        config = RunConfig((QueryConfig(-1_000_000, 1_000_000),), workload=WorkloadConfig(domain=domain))
        plan_memory(config, 1, workload_profile(config))
        simulate(config.fitted_to(1), 1, PRESETS["modern"], limit_us=1e6)


if __name__ == "__main__":
    import contextlib
    import os

    start = time.monotonic()
    with open(os.devnull, "w") as quiet, contextlib.redirect_stdout(quiet):
        warm_up()
    print(f"kernels ready ({time.monotonic() - start:.0f} s)")
