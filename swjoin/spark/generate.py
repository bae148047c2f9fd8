"""`generate`: the two b-model streams as Parquet, written by Spark.

What: `generate(workload, seed, out, master) -> (left rows, right rows)`.
Why: workloads of any size, on a cluster's file system as well, with the same rows for a seed whatever the number of Spark
partitions.
Stays out: how rows are drawn (`connectors.generator.bmodel`).

Writes OUT/left/*.parquet and OUT/right/*.parquet, whose name order is time order, so that a row's position is its id.
Columns: ts (int64,
microseconds from 0; integers say exactly what the join compares), key (int64), payload (binary). OUT/workload.json says how
they were made.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.run import WorkloadConfig, to_plain
from swjoin.connectors.generator.bmodel import payload_bytes, slot_counts, slot_tuples
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.storage import write_json
from swjoin.spark.session import open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

SLOTS_PER_BATCH = 10


def stream_frame(
    spark: SparkSession, workload: WorkloadConfig, seed: int, stream: int, partitions: int, *, payload: bool
) -> tuple[DataFrame, int]:
    """One stream as a frame (id, ts, key[, payload]), its partitions in time order, and its number of rows."""
    counts = slot_counts(workload, seed, stream)
    firsts = np.concatenate(([0], np.cumsum(counts)))[:-1].tolist()
    bounds = [round(i * len(firsts) / partitions) for i in range(partitions + 1)]
    ranges = [(a, b) for a, b in itertools.pairwise(bounds) if b > a]

    def rows(slots: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for batch in slots:
            for first, last in zip(batch.column("first").to_pylist(), batch.column("last").to_pylist(), strict=True):
                for start in range(first, last, SLOTS_PER_BATCH):
                    drawn = [slot_tuples(workload, seed, stream, s) for s in range(start, min(start + SLOTS_PER_BATCH, last))]
                    ts = np.concatenate([d[0] for d in drawn])
                    ids = np.arange(firsts[start], firsts[start] + len(ts), dtype=np.int64)
                    arrays: list[Any] = [pa.array(ids), pa.array(ts), pa.array(np.concatenate([d[1] for d in drawn]))]
                    names = ["id", "ts", "key"]
                    if payload:
                        data = payload_bytes(ids.astype(np.uint64), seed, stream, workload.payload_bytes)
                        width = workload.payload_bytes
                        offsets = (
                            np.arange(0, width * len(ids) + 1, width, dtype=np.int32)
                            if width
                            else np.zeros(len(ids) + 1, np.int32)
                        )
                        arrays.append(
                            pa.Array.from_buffers(
                                pa.binary(), len(ids), [None, pa.py_buffer(offsets), pa.py_buffer(data.reshape(-1))]
                            )
                        )
                        names.append("payload")
                    yield pa.record_batch(arrays, names)

    schema = "id long, ts long, key long" + (", payload binary" if payload else "")
    slots = spark.createDataFrame(ranges or [(0, 0)], "first long, last long")
    slots = slots.repartitionByRange(max(1, len(ranges)), "first").sortWithinPartitions("first")
    return slots.mapInArrow(rows, schema), int(counts.sum())


def generate(
    workload: WorkloadConfig, seed: int, out: Path, master: str | None, partitions: int | None = None
) -> tuple[int, int]:
    """Write both streams; returns their numbers of rows. UserError when OUT is not empty or cannot be written."""
    if out.exists() and not out.is_dir():
        raise UserError(f"{out}: is a file; name a directory with -o")
    if out.exists() and any(out.iterdir()):
        raise UserError(f"{out}: is not empty; choose another -o or remove it")
    building = out.with_name(f".{out.name}.building")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        shutil.rmtree(building, ignore_errors=True)
        building.mkdir()
    except OSError as error:
        raise UserError(f"{out}: cannot be written ({error.strerror})") from None
    totals = []
    with open_session(master, "swjoin generate") as spark:
        for stream, name in enumerate(STREAM_NAMES):
            parts = partitions or 2 * spark.sparkContext.defaultParallelism
            frame, count = stream_frame(spark, workload, seed, stream, parts, payload=True)
            frame.drop("id").write.option("compression", "lz4").parquet(str(building.resolve() / name))
            totals.append(count)
    counts = dict(zip(STREAM_NAMES, totals, strict=True))
    write_json(building / "workload.json", {"workload": to_plain(workload), "seed": seed, "tuples": counts})
    if out.exists():
        out.rmdir()
    building.rename(out)
    return totals[0], totals[1]
