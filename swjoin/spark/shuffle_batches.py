"""First pass in Spark's executors: rows become parcels, one per partition-group and stretch of time.

What: `pack(batches, plan)`: Arrow batches of one stream in, rows of `PARCEL_SCHEMA` out; `unpack` one of them again.
Why: Spark's shuffle costs per row. A parcel is one row for thousands of tuples, so that shuffling them costs as much as copying
their bytes.
Stays out: joining (`spark.executor_join`), what is asked for and named (`spark.dataframe_join`).

A parcel is an Arrow IPC stream of one batch, in time order. Columns: the key columns, the time, what else the result needs,
and, when the key is not an integer-like column of its own, a hash of the key.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from swjoin.connectors.times import TimeColumn, times_us
from swjoin.core.batch import I64, STREAM_NAMES, TupleBatch
from swjoin.core.errors import UserError, spelled
from swjoin.core.key_encoder import KeyEncoder
from swjoin.routing.hash_partition import arrange

if TYPE_CHECKING:
    import pyarrow as pa

PARCEL_SCHEMA = "side int, partition int, first long, rows binary"
PACKED_ROWS = 1 << 16
PACKED_BYTES = 64 << 20
LEAST_ROWS = 1024  # no parcel is cut by time into smaller ones


@dataclass(frozen=True)
class StreamSpec:
    """A stream as an executor gets it.

    side: LEFT or RIGHT. key_count: of the batches' columns these are the key, the next one is the time. native: the key is its
    own int64; otherwise the last column is a hash of it. time_unit: of a time column of integers, else None. time, name it in
    error lines.
    """

    side: int
    key_count: int
    native: bool
    time: str
    time_unit: str | None
    partition_count: int
    retention_us: int


def stream_times_us(column: pa.Array, plan: StreamSpec) -> I64:
    """Microseconds of a time column without nulls, an array of its own. UserError for what is out of range or too fine."""
    name = STREAM_NAMES[plan.side]
    with spelled("arguments"):
        return np.array(times_us(column, TimeColumn(name, name, plan.time, column.type, plan.time_unit, None))[0])


def pack(batches: Iterator[pa.RecordBatch], plan: StreamSpec) -> Iterator[pa.RecordBatch]:
    """Rows of PARCEL_SCHEMA, a batch of them for every PACKED_ROWS rows."""
    waiting: list[pa.RecordBatch] = []
    rows = size = 0
    for batch in batches:
        waiting.append(batch)
        rows += batch.num_rows
        size += batch.nbytes
        if rows >= PACKED_ROWS or size >= PACKED_BYTES:
            yield _parcels(waiting, plan)
            waiting, rows, size = [], 0, 0
    if rows:
        yield _parcels(waiting, plan)


def _parcels(batches: list[pa.RecordBatch], plan: StreamSpec) -> pa.RecordBatch:
    import pyarrow as pa

    whole = pa.concat_batches(batches)
    ts = stream_times_us(whole.column(plan.key_count), plan)
    # Integer-like keys are their own hash's input; of others Spark has made one that is the same on both sides.
    route = np.array(_route(whole, plan))
    order = np.arange(len(ts), dtype=np.uint64)
    if not ascending(ts):
        by_time = np.argsort(ts, kind="stable")
        route, ts, order = route[by_time], ts[by_time], order[by_time]
    slots = np.arange(plan.partition_count, dtype=np.int64)
    sorted_rows = arrange(TupleBatch(route, ts, order, ts), slots, plan.partition_count)
    whole = whole.take(pa.array(sorted_rows.batch.id.view(np.int64)))
    ts = sorted_rows.batch.ts
    sink = pa.BufferOutputStream()
    ends, partitions, firsts = [0], [], []
    for partition in np.flatnonzero(sorted_rows.counts).tolist():
        start, stop = sorted_rows.starts[partition : partition + 2].tolist()
        for a, b in _cuts(ts, start, stop, plan.retention_us):
            with pa.ipc.new_stream(sink, whole.schema) as writer:
                writer.write_batch(whole.slice(a, b - a))
            ends.append(sink.tell())
            partitions.append(partition)
            firsts.append(int(ts[a]))
    if ends[-1] >= 1 << 31:
        raise UserError("rows are too wide to be packed: 2 GiB in few rows; select the columns that the result needs")
    count = len(partitions)
    bounds = pa.py_buffer(np.array(ends, np.int32))
    rows = pa.Array.from_buffers(pa.binary(), count, [None, bounds, sink.getvalue()])
    sides = pa.array(np.full(count, plan.side, np.int32))
    return pa.record_batch(
        [sides, pa.array(partitions, pa.int32()), pa.array(firsts, pa.int64()), rows],
        names=["side", "partition", "first", "rows"],
    )


def _route(whole: pa.RecordBatch, plan: StreamSpec) -> I64:
    column = whole.column(0 if plan.native else whole.num_columns - 1)
    kind = [("key", column.type)]
    return KeyEncoder(kind, kind).encode([column])[0]


def _cuts(ts: I64, start: int, stop: int, retention_us: int) -> Iterator[tuple[int, int]]:
    """Rows start..stop of one partition-group, cut so that a parcel spans little more than the windows, if it has the rows."""
    span = int(ts[stop - 1]) - int(ts[start])
    pieces = min(span // max(1, retention_us), (stop - start) // LEAST_ROWS)
    if pieces <= 1:
        yield start, stop
        return
    edges = int(ts[start]) + np.arange(1, pieces) * (span // pieces)
    at = start
    for edge in (start + np.searchsorted(ts[start:stop], edges)).tolist():
        if edge > at:
            yield at, edge
            at = edge
    yield at, stop


def unpack(rows: Any) -> pa.RecordBatch:
    """The batch of one parcel (a binary scalar), without a copy."""
    import pyarrow as pa

    return pa.ipc.open_stream(rows.as_buffer()).read_next_batch()


def ascending(values: NDArray[Any]) -> bool:
    return bool((values[1:] >= values[:-1]).all())
