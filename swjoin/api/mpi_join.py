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
from typing import TYPE_CHECKING

import numpy as np

from swjoin.api.table_input import JoinInput
from swjoin.config.job import Job
from swjoin.config.run import RunConfig, SinkConfig, StreamConfig
from swjoin.core.batch import LEFT, MISSING_ID, RIGHT, STREAM_NAMES, Pairs, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ledger import Proof
from swjoin.core.pair_columns import rebuilt
from swjoin.core.row_codec import storage
from swjoin.expressions.compiler import resolve
from swjoin.expressions.parser import parse_where, to_text
from swjoin.runtime.launch import launch_with_reason
from swjoin.runtime.progress import Wanted
from swjoin.runtime.run_report import ledger_of

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.api.materialize import OutputGatherer

_PREDICATE = "judged_"  # before the names of a predicate's columns, so that they clash with none of ours


def launch_quietly(job: Job, ranks: int, progress: Wanted) -> None:
    """Run a job on MPI ranks. UserError or RunFailed with the error of a rank; nothing is printed here but the progress."""
    code, said = launch_with_reason(job, ranks, quiet=True, progress=progress)
    if code == 2:
        raise UserError(said)
    if code:
        raise RunFailed(said or f"the ranks ended with code {code}")


def join_on_ranks(
    config: RunConfig,
    sides: tuple[JoinInput, JoinInput],
    ranks: int,
    gathered: OutputGatherer | None,
    *,
    sort: bool,
    progress: Wanted,
) -> tuple[Proof, int | None]:
    """Join on ranks; pairs go to `gathered`, if there is one. Also how many matches there are."""
    with tempfile.TemporaryDirectory(prefix="swjoin-api-") as name:
        folder = Path(name)
        where, needed = _over_files(config.query.where, sides)
        streams = [
            _write(folder / f"{STREAM_NAMES[side.stream]}.arrow", side, needed[side.stream], sort=sort) for side in sides
        ]
        sink = SinkConfig("count") if gathered is None else SinkConfig("parquet", ids=True)
        queries = (dataclasses.replace(config.query, where=where),)
        whole = dataclasses.replace(config, queries=queries, left=streams[LEFT], right=streams[RIGHT], sink=sink)
        target, report = folder / "pairs.parquet", folder / "report.json"
        out = None if gathered is None else target
        launch_quietly(Job(whole, out, False, None, report, "swjoin.join", spelling="arguments"), ranks, progress)
        found = json.loads(report.read_text())
        if gathered is not None:
            for pairs in _read(target):
                gathered.add(pairs)
    results = found["results"]
    return Proof(results["count"], results["digest"], ledger_of(found)), results["matches"]


def _over_files(where: str | None, sides: tuple[JoinInput, JoinInput]) -> tuple[str | None, tuple[list[str], list[str]]]:
    """A predicate as it is for the files that ranks get, and the columns of both sides that it needs."""
    needed: tuple[list[str], list[str]] = ([], [])
    if where is None:
        return None, needed
    left, right = ([name for name, _, _ in side.codec.columns] for side in sides)

    def renamed(name: str) -> str:
        side, column = resolve(name, (left, right), (sides[LEFT].codec.key, sides[RIGHT].codec.key))
        if column not in needed[side]:
            needed[side].append(column)
        quoted = f"{_PREDICATE}{column}".replace('"', '""')
        return f'{STREAM_NAMES[side]}."{quoted}"'

    return to_text(parse_where(where), renamed), needed


def _predicate_arrays(side: JoinInput, names: list[str], rows: SourceBatch) -> list[pa.Array]:
    """The columns of these rows that a predicate needs."""
    codec = side.codec.rows
    unpacked = {} if codec is None or rows.rows is None else dict(zip(codec.schema.names, codec.decode(rows.rows), strict=True))
    kinds, origins = _predicate_kinds(side), {name: origin for name, _, origin in side.codec.columns}
    found = {"key": rows.key, "ts": rows.ts}
    return [unpacked[n] if n in unpacked else rebuilt(found[origins[n]], kinds[n]) for n in names]


def _predicate_kinds(side: JoinInput) -> dict[str, pa.DataType]:
    """Types of the columns for a predicate: a file of Arrow IPC has room for one dictionary of a column, so it has none."""
    kinds = {name: storage(kind) for name, kind, _ in side.codec.columns}
    return kinds if side.codec.rows is None else kinds | {field.name: field.type for field in side.codec.rows.schema}


def _write(path: Path, side: JoinInput, needed: list[str], *, sort: bool) -> StreamConfig:
    """Keys as their codes, times in microseconds, ids, and what a predicate needs."""
    import pyarrow as pa

    kinds = _predicate_kinds(side)
    schema = pa.schema(
        [("key", pa.int64()), ("ts", pa.int64()), ("id", pa.uint64()), *((f"{_PREDICATE}{n}", kinds[n]) for n in needed)]
    )
    with pa.OSFile(str(path), "wb") as file, pa.ipc.new_file(file, schema) as writer:
        for rows in side.rows(sort=sort):
            masks = [None if valid is None else ~valid for valid in (rows.key_valid, rows.ts_valid)]
            columns = [pa.array(rows.key, mask=masks[0]), pa.array(rows.ts, mask=masks[1]), pa.array(rows.id)]
            columns += _predicate_arrays(side, needed, rows)
            writer.write_batch(pa.record_batch(columns, schema=schema))
    return StreamConfig(str(path), ("key",), "ts", "us", "id", ())


def _read(path: Path) -> Iterator[Pairs]:
    import pyarrow.parquet as pq

    with pq.ParquetFile(path) as file:
        names = [n for n in ("left_id", "right_id", "left_ts", "right_ts") if n in file.schema_arrow.names]
        for batch in file.iter_batches(columns=names):
            missing = {"id": int(MISSING_ID), "ts": 0}
            found = {n: batch.column(n).fill_null(missing[n[-2:]]).to_numpy() for n in names}
            n = batch.num_rows
            no_key, no_id = np.zeros(n, np.int64), np.full(n, MISSING_ID, np.uint64)
            times = found["left_ts"], found.get("right_ts", no_key)
            yield Pairs(no_key, *times, found["left_id"], found.get("right_id", no_id))
