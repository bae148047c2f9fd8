"""Compile every kernel once, so that no run after the installation waits for the compiler.

What: `python -m swjoin.runtime.warmup`: tiny joins through every kernel and type that real joins use; `load_master_kernels`,
`load_slave_kernels`: a rank calls its own kernels once before the run's clock starts.
Why: numba compiles at the first call and caches on disk. Loading the cache takes most of a second, which must not become
production delay of the first distribution epochs.
Stays out: measuring.
"""

from __future__ import annotations

import csv
import dataclasses
import tempfile
import time
from pathlib import Path

import numpy as np

from swjoin.batch import PayloadRows, RowLayout, SourceBatch, TupleBatch
from swjoin.cluster.master import Master
from swjoin.cluster.slave import Slave
from swjoin.config import RunConfig, TimeConfig
from swjoin.messages import (
    END_OF_TIME_US,
    Delivered,
    Delivery,
    EpochIndex,
    QueryId,
    SlaveId,
    StreamEnded,
    TuplesRead,
    WorkDue,
)
from swjoin.runtime.wire import pack_delivery, unpack_delivery


def _write(path: Path, rows: int) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["t", "number", "name", "value"])
        for i in range(rows):
            writer.writerow([i, i % 7, f"n{i % 5}", i / 2])


def _two_rows(layout: RowLayout | None) -> PayloadRows | None:
    if layout is None:
        return None
    offsets, var = (np.zeros(3, np.int64), np.empty(0, np.uint8)) if layout.has_var else (None, None)
    return PayloadRows(np.zeros((2, layout.fixed_bytes), np.uint8), offsets, var)


def load_master_kernels(config: RunConfig, layouts: tuple[RowLayout | None, RowLayout | None]) -> None:
    """Judge, order and partition two tuples."""
    relaxed = dataclasses.replace(config, time=TimeConfig("event", 1_000_000, "drop"), pace="asap")
    master = Master(relaxed, 1, layouts)
    master.start()
    for stream, layout in enumerate(layouts):
        two = np.arange(2, dtype=np.int64)
        master.handle(TuplesRead(stream, SourceBatch(two, two, two.astype(np.uint64), None, None, _two_rows(layout))), 0)
        master.handle(StreamEnded(stream), 0)


def load_slave_kernels(config: RunConfig, layouts: tuple[RowLayout | None, RowLayout | None]) -> None:
    """Join two pairs of tuples, with the payload layouts of the run."""
    module = dataclasses.replace(config.module, window_bytes=1 << 20)
    slave = Slave(SlaveId(0), dataclasses.replace(config, module=module), layouts)
    batches = []
    for layout in layouts:
        two = np.zeros(2, np.int64)
        batches.append(TupleBatch(two, two, two.astype(np.uint64), two, _two_rows(layout)))
    one, counts = np.zeros(1, np.int64), np.full(1, 2, np.int64)
    end = END_OF_TIME_US
    delivery = Delivery(QueryId(0), SlaveId(0), EpochIndex(0), end, end, one, counts, counts, batches[0], batches[1], True)
    slave.handle(Delivered(unpack_delivery(pack_delivery(delivery))), 0)
    while not slave.finished:
        slave.handle(WorkDue(), 0)


def warm_up() -> None:
    """Joins with integer and string keys, with rows and with counts, with and without order."""
    from swjoin.cli.main import main

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
