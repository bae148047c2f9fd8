"""Workloads as Parquet, written by Spark: the two b-model streams, Nexmark's tables, LSBench's streams of triples.

What: `generate(workload, seed, out, master) -> (left rows, right rows)`; `generate_nexmark(events, seed, out, master)`;
`generate_lsbench(events, users, seed, out, master)`.
Why: workloads of any size, on a cluster's file system as well, with the same rows for a seed whatever the number of Spark
partitions.
Stays out: how rows are drawn (`connectors.generator`).

`generate` writes OUT/left/*.parquet and OUT/right/*.parquet, whose name order is time order, so that a row's position is its
id. Columns: ts (int64, microseconds from 0; integers say exactly what the join compares), key (int64), payload (binary).
`generate_nexmark` writes OUT/person, OUT/auction, OUT/bid and OUT/side_input likewise, `generate_lsbench` a folder for each
stream and for the graph; without Spark they write the same rows in this process. OUT/workload.json says how they were made.
"""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
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


@contextmanager
def _building(out: Path) -> Iterator[Path]:
    """A folder that becomes OUT when all is written. UserError when OUT is not empty or cannot be written."""
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
    yield building
    if out.exists():
        out.rmdir()
    building.rename(out)


def _parts(spark: SparkSession, partitions: int | None) -> int:
    return partitions or 2 * spark.sparkContext.defaultParallelism


def generate(
    workload: WorkloadConfig, seed: int, out: Path, master: str | None, partitions: int | None = None
) -> tuple[int, int]:
    """Write both streams; returns their numbers of rows. UserError when OUT is not empty or cannot be written."""
    totals = []
    with _building(out) as building:
        with open_session(master, "swjoin generate") as spark:
            for stream, name in enumerate(STREAM_NAMES):
                frame, count = stream_frame(spark, workload, seed, stream, _parts(spark, partitions), payload=True)
                frame.drop("id").write.option("compression", "lz4").parquet(str(building.resolve() / name))
                totals.append(count)
        counts = dict(zip(STREAM_NAMES, totals, strict=True))
        write_json(building / "workload.json", {"workload": to_plain(workload), "seed": seed, "tuples": counts})
    return totals[0], totals[1]


def table_frame(
    spark: SparkSession, made: Callable[[int, int], pa.Table], count: int, partitions: int, at_once: int
) -> DataFrame:
    """A table of so many events, its partitions in their order. made: its rows of the events from the first one on, by first
    and count; so many at once at most."""
    from pyspark.sql.pandas.types import from_arrow_schema

    partitions = max(1, min(partitions, count))

    def rows(numbers: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in numbers:
            for number in batch.column("id").to_pylist():
                first, end = (count * at // partitions for at in (number, number + 1))
                for at in range(first, end, at_once):
                    yield from made(at, min(at_once, end - at)).combine_chunks().to_batches()

    schema = from_arrow_schema(made(0, 0).schema, prefer_timestamp_ntz=True)
    return spark.range(0, partitions, 1, partitions).mapInArrow(rows, schema)


def _write_frames(
    frames: Mapping[str, tuple[Callable[[int, int], pa.Table], int]],
    building: Path,
    session: tuple[str | None, int | None],
    at_once: int,
) -> None:
    """frames: how a table is made, and of how many events, by name. session: Spark master, partitions."""
    master, partitions = session
    with open_session(master, "swjoin generate") as spark:
        for name, (made, count) in frames.items():
            frame = table_frame(spark, made, count, _parts(spark, partitions), at_once)
            frame.write.option("compression", "lz4").parquet(str((building / name).resolve()))


def _rows_of(building: Path, names: Iterable[str]) -> dict[str, int]:
    import pyarrow.parquet as pq

    return {name: sum(pq.read_metadata(path).num_rows for path in (building / name).glob("*.parquet")) for name in names}


def generate_nexmark(
    events: int, seed: int, out: Path, master: str | None, partitions: int | None = None, *, spark: bool = True
) -> dict[str, int]:
    """Write Nexmark's tables; returns their numbers of rows. UserError as of `generate`."""
    from swjoin.connectors.generator.nexmark import EVENTS_AT_ONCE, TIMES, table, write_tables

    with _building(out) as building:
        by_spark = [name for name, time in TIMES.items() if spark and time]
        paths = {name: building / name / "part-00000.parquet" for name in TIMES if name not in by_spark}
        for path in paths.values():
            path.parent.mkdir()
        write_tables(paths, events, seed)
        if by_spark:
            frames = {name: (partial(table, name, seed=seed), events) for name in by_spark}
            _write_frames(frames, building, (master, partitions), EVENTS_AT_ONCE)
        counts = _rows_of(building, TIMES)
        write_json(building / "workload.json", {"workload": "nexmark", "events": events, "seed": seed, "tuples": counts})
    return counts


def generate_lsbench(
    size: tuple[int, int], seed: int, out: Path, master: str | None, partitions: int | None = None, *, spark: bool = True
) -> dict[str, int]:
    """Write LSBench's streams and graph; returns their numbers of triples. size: events, users. UserError as of `generate`."""
    from swjoin.connectors.generator.lsbench import EVENTS_AT_ONCE, GRAPH, STREAMS, made, write_streams

    events, users = size
    with _building(out) as building:
        if spark:
            frames = {name: (partial(made, name, users=users, seed=seed), events) for name in STREAMS}
            frames[GRAPH] = partial(made, GRAPH, users=users, seed=seed), users
            _write_frames(frames, building, (master, partitions), EVENTS_AT_ONCE)
        else:
            paths = {name: building / name / "part-00000.parquet" for name in (*STREAMS, GRAPH)}
            for path in paths.values():
                path.parent.mkdir()
            write_streams(paths, events, users, seed)
        counts = _rows_of(building, (*STREAMS, GRAPH))
        plain = {"workload": "lsbench", "events": events, "users": users, "seed": seed, "tuples": counts}
        write_json(building / "workload.json", plain)
    return counts
