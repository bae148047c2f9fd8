"""A join of whole tables on MPI ranks of this machine, and launching ranks from Python.

What: `join_on_ranks`, `launch_quietly`.
Why: `ranks=N` means what `swjoin join -n N` means. Only keys, times and positions travel, as Arrow IPC files; payload stays in
the tables that it will be taken from.
Stays out: joins in this process (`api.tables`), starting processes (`runtime.launch`).
"""

from __future__ import annotations

import dataclasses
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.api.arguments import Proof
from swjoin.api.whole import Side
from swjoin.batch import LEFT, RIGHT, STREAM_NAMES, Ledger, Pairs, StreamCounts
from swjoin.config import RunConfig, SinkConfig, StreamConfig
from swjoin.errors import RunFailed, UserError
from swjoin.runtime.job import Job
from swjoin.runtime.launch import launch_told

if TYPE_CHECKING:
    from swjoin.api.gather import Gathered


def launch_quietly(job: Job, ranks: int) -> None:
    """Run a job on MPI ranks. UserError or RunFailed with the line that a rank has said; nothing is printed."""
    code, said = launch_told(job, ranks, quiet=True)
    if code == 2:
        raise UserError(said)
    if code:
        raise RunFailed(said or f"the ranks ended with code {code}")


def ledger_of(report: dict[str, Any]) -> Ledger:
    """The account that run.json holds."""
    names = ("joined", "null_key", "late", "shed")
    left, right = (StreamCounts(report["input"][s]["tuples"], *(report[n][s] for n in names)) for s in STREAM_NAMES)
    prefill = report["prefill"]["pairs"] if report["prefill"] else 0
    results = report["results"]
    return Ledger(left, right, results["produced"] + prefill, results["count"] + prefill)


def join_on_ranks(config: RunConfig, sides: tuple[Side, Side], ranks: int, gathered: Gathered | None, *, sort: bool) -> Proof:
    """Join on ranks; pairs go to `gathered`, if there is one."""
    with tempfile.TemporaryDirectory(prefix="swjoin-api-") as name:
        folder = Path(name)
        streams = [_write(folder / f"{STREAM_NAMES[side.stream]}.arrow", side, sort=sort) for side in sides]
        sink = SinkConfig("count") if gathered is None else SinkConfig("parquet", ids=True)
        whole = dataclasses.replace(config, left=streams[LEFT], right=streams[RIGHT], sink=sink)
        target, report = folder / "pairs.parquet", folder / "report.json"
        launch_quietly(Job(whole, None if gathered is None else target, False, None, report, "swjoin.join"), ranks)
        found = json.loads(report.read_text())
        if gathered is not None:
            for pairs in _read(target):
                gathered.add(pairs)
    return Proof(found["results"]["count"], found["results"]["digest"], ledger_of(found))


def _write(path: Path, side: Side, *, sort: bool) -> StreamConfig:
    """Keys as their codes, times in microseconds, and ids."""
    import pyarrow as pa

    schema = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("id", pa.uint64())])
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for rows in side.rows(sort=sort):
            masks = [None if valid is None else ~valid for valid in (rows.key_valid, rows.ts_valid)]
            columns = [pa.array(rows.key, mask=masks[0]), pa.array(rows.ts, mask=masks[1]), pa.array(rows.id)]
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return StreamConfig(str(path), ("key",), "ts", "us", "id", ())


def _read(path: Path) -> Iterator[Pairs]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        for batch in file.iter_batches(columns=["left_id", "right_id", "left_ts", "right_ts"]):
            ids, times = ([batch.column(f"{s}_{n}").to_numpy() for s in STREAM_NAMES] for n in ("id", "ts"))
            yield Pairs(np.empty(len(ids[LEFT]), np.int64), times[LEFT], times[RIGHT], ids[LEFT], ids[RIGHT])
