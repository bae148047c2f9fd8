"""Second pass in Spark's executors: parcels of one Spark partition, in the order of their first times, become joined rows.

What: `join_parcels(parcels, plan)`: rows of `shuffle_batches.PARCEL_SCHEMA` in, Arrow batches of output rows out.
Why: before the next parcel, all tuples below its first time are there, of both streams; so tuples are delivered in time order,
windows expire, and memory follows the windows instead of the partition.
Stays out: parcels (`spark.shuffle_batches`), the join (`operators.window_join`), what is asked for and named
(`spark.dataframe_join`).

The join sees key, time and the row's number in its stream. What else the result needs stays in Arrow, outside of it, and is
gathered by these numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, U64, Pairs, PayloadRows, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed, spelled
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.join_semantics import JOIN_KINDS, AsOf, Bounds, How, Match
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import RowCodec, StreamCodec
from swjoin.core.row_sizes import BLOCK_BYTES, pieces_of, row_bytes
from swjoin.expressions.compiler import compile_text
from swjoin.operators.as_of_join import AsOfJoin
from swjoin.operators.configured_join import Join
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.operators.window_store import WindowSizes
from swjoin.spark.shuffle_batches import StreamSpec, ascending, stream_times_us, unpack

if TYPE_CHECKING:
    import pyarrow as pa

# As a run's module has them by default, or where the join of one partition-group is fastest.
BLOCK_TUPLES = 64
THETA_TUPLES = 512
FIRST_DELIVERY = 2048  # the directory has to split before much can be compared
LARGEST_DELIVERY = 1 << 16
RESULT_TUPLES = 1 << 16
GATHERED_ROWS = 1 << 17  # rows that are put beside the windows' rows at once


ReadColumns: TypeAlias = tuple[tuple[str, "pa.DataType", int], ...]  # name, type, index in the stream's parcels


@dataclass(frozen=True)
class JoinSpec:
    """The join as an executor gets it.

    how, match: which rows come out. streams: left and right. columns: of the output, in its order: side, and index in that
    side's parcels. names, types: theirs. window_bytes: limit of the windows. where: a residual predicate; read: what it reads
    of each stream.
    """

    bounds: Bounds
    how: How
    streams: tuple[StreamSpec, StreamSpec]
    columns: tuple[tuple[int, int], ...]
    names: tuple[str, ...]
    types: tuple[pa.DataType, ...]
    window_bytes: int
    where: str | None = None
    read: tuple[ReadColumns, ReadColumns] = ((), ())
    match: Match = "all"

    @property
    def as_of(self) -> AsOf | None:
        return None if self.match == "all" else AsOf(self.match, self.bounds)

    def codecs(self) -> tuple[StreamCodec, StreamCodec]:
        """Of the packed rows that the predicate reads. UserError for columns that it cannot read."""
        left, right = (_codec(columns) for columns in self.read)
        return left, right


def _codec(columns: ReadColumns) -> StreamCodec:
    named = [(name, kind) for name, kind, _ in columns]
    return StreamCodec(tuple((*column, "row") for column in named), (), RowCodec.of(named) if named else None)


@dataclass
class _Run:
    """Rows of one parcel that are not delivered yet, in time order."""

    rows: pa.RecordBatch
    key: I64
    ts: I64


class _Stream:
    """One stream: the runs to be delivered, and the rows beside the windows, numbered from `first` on.

    columns: of its parcels, those that the output has or a predicate reads; only these are kept. read, codec: of the predicate.
    """

    def __init__(self, columns: list[int], read: ReadColumns, codec: RowCodec | None) -> None:
        self.columns = columns
        self._read, self._codec = read, codec
        self.runs: list[_Run] = []
        self.waiting = 0
        self.rows: pa.RecordBatch | None = None
        self.ts = np.empty(0, np.int64)
        self.first = 0
        self._measured: tuple[pa.RecordBatch | None, I64, int] = None, np.empty(0, np.int64), 0

    def put(self, rows: pa.RecordBatch, key: I64, ts: I64) -> None:
        self.runs.append(_Run(rows, key, ts))
        self.waiting += len(ts)

    def take_below(self, time_us: int, dead_us: int) -> TupleBatch:
        """What waits from before `time_us`, in time order; rows older than `dead_us` are forgotten."""
        import pyarrow as pa

        fresh: list[_Run] = []
        rest: list[_Run] = []
        for run in self.runs:
            cut = int(np.searchsorted(run.ts, time_us))
            if cut:
                fresh.append(_Run(run.rows.slice(0, cut), run.key[:cut], run.ts[:cut]))
            if cut < len(run.ts):
                rest.append(_Run(run.rows.slice(cut), run.key[cut:], run.ts[cut:]))
        self.runs = rest
        gone = int(np.searchsorted(self.ts, dead_us))
        self.first += gone
        self.ts = self.ts[gone:]
        kept = [] if self.rows is None else [self.rows.slice(gone)]
        number = self.first + len(self.ts)
        if not fresh:
            self.rows = kept[0] if kept else None
            return TupleBatch.empty(None if self._codec is None else self._codec.layout)
        key = np.concatenate([run.key for run in fresh])
        ts = np.concatenate([run.ts for run in fresh])
        self.waiting -= len(ts)
        try:
            if ascending(ts):
                self.rows = pa.concat_batches([*kept, *(run.rows for run in fresh)])
            else:
                order = np.argsort(ts, kind="stable")
                key, ts = key[order], ts[order]
                together = pa.concat_batches([run.rows for run in fresh]).take(pa.array(order))
                self.rows = pa.concat_batches([*kept, together])
        except pa.ArrowInvalid as error:
            raise RunFailed(
                f"the windows' rows do not fit into one Spark partition ({error}); use more partitions or fewer columns"
            ) from None
        packed = None if self._codec is None else self._packed(self._codec, self.rows.slice(len(self.ts)))
        self.ts = np.concatenate([self.ts, ts])
        return TupleBatch(key, ts, np.arange(number, number + len(ts), dtype=np.uint64), np.zeros(len(ts), np.int64), packed)

    def _packed(self, codec: RowCodec, rows: pa.RecordBatch) -> PayloadRows:
        """What the predicate reads of rows."""
        import pyarrow as pa

        columns = [rows.column(self.columns.index(index)) for _, _, index in self._read]
        return codec.encode(pa.RecordBatch.from_arrays(columns, names=[name for name, _, _ in self._read]))

    def indexes_of(self, numbers: U64) -> I64:
        """Indexes in `rows` of rows with these numbers."""
        return (numbers - np.uint64(self.first)).view(np.int64)

    def measured(self) -> tuple[I64, int]:
        """Bytes of every row beside the windows, and the most of them."""
        if self.rows is not self._measured[0]:
            columns = [] if self.rows is None else self.rows.columns
            sizes = sum((row_bytes(column) for column in columns), np.zeros(len(self.ts), np.int64))
            self._measured = self.rows, sizes, int(sizes.max(initial=0))
        return self._measured[1:]


def _join_of(plan: JoinSpec, codecs: tuple[StreamCodec, StreamCodec]) -> Join:
    layouts, kind = (codecs[LEFT].layout, codecs[RIGHT].layout), JOIN_KINDS[plan.how]
    where = compile_text(plan.where, *codecs, count_windows=False)
    of_rows: dict[str, Any] = {"result_tuples": RESULT_TUPLES, "kind": kind, "ids_alone": True, "name": "Spark partition"}
    if plan.as_of is not None:
        return AsOfJoin(plan.as_of, layouts, window_bytes=plan.window_bytes, where=where, **of_rows)
    sizes = WindowSizes(BLOCK_TUPLES, THETA_TUPLES, plan.window_bytes)
    return WindowJoinOperator(plan.bounds, sizes, layouts, matching=Matching(where), **of_rows)


class Joiner:
    """Joins the parcels of one Spark partition. `window_rows`: most rows beside the windows at any time."""

    def __init__(self, plan: JoinSpec) -> None:
        self.plan = plan
        kind = JOIN_KINDS[plan.how]
        own_keys = [(RIGHT, index) for index in range(plan.streams[RIGHT].key_count)] if kind.unmatched[RIGHT] else []
        wanted = [*plan.columns, *own_keys, *((side, index) for side in (LEFT, RIGHT) for _, _, index in plan.read[side])]
        kept = [list(dict.fromkeys(index for side, index in wanted if side == s)) for s in (LEFT, RIGHT)]
        codecs = plan.codecs()
        one, two = (_Stream(kept[side], plan.read[side], codecs[side].rows) for side in (LEFT, RIGHT))
        self.streams = one, two
        self.window_rows = 0
        self._encoder: KeyEncoder | None = None
        self._join = _join_of(plan, codecs)
        self._time_us = BEGIN_OF_TIME_US
        self._delivery_rows = FIRST_DELIVERY
        self._check_at = GATHERED_ROWS
        self._groups = np.zeros(1, np.int64)

    def put(self, side: int, first_us: int, rows: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
        """Take a parcel; yields the rows that are certain now."""
        if sum(stream.waiting for stream in self.streams) >= self._check_at:
            yield from self.advance(first_us)
        plan = self.plan.streams[side]
        if self._encoder is None:
            kinds = [("key", rows.schema.field(i).type) for i in range(plan.key_count)]
            self._encoder = KeyEncoder(kinds, kinds)
        key, _ = self._encoder.encode(rows.columns[: plan.key_count])
        ts = stream_times_us(rows.column(plan.key_count), plan)
        self.streams[side].put(rows.select(self.streams[side].columns), np.array(key), ts)

    def advance(self, time_us: int) -> Iterator[pa.RecordBatch]:
        """Join all tuples below `time_us`, in time order; none of them is still to come."""
        times, as_of = (self._time_us, self._time_us), self.plan.as_of
        dead = self.plan.bounds.dead_below(times) if as_of is None else as_of.needed_below(as_of.front_us(times))
        left, right = (s.take_below(time_us, d) for s, d in zip(self.streams, dead, strict=True))
        self.window_rows = max(self.window_rows, sum(len(stream.ts) for stream in self.streams))
        self._time_us = time_us
        i = j = 0
        while True:
            size = self._delivery_rows
            # No more than the windows hold: a delivery's own tuples are compared with each other before any has expired.
            stored = sum(self._join.window_tuples())
            self._delivery_rows = min(2 * size, LARGEST_DELIVERY, max(FIRST_DELIVERY, stored))
            stop = time_us
            if i + size < len(left):
                stop = min(stop, int(left.ts[i + size]))
            if j + size < len(right):
                stop = min(stop, int(right.ts[j + size]))
            a, b = int(np.searchsorted(left.ts, stop)), int(np.searchsorted(right.ts, stop))
            if (a, b) == (i, j) and stop < time_us:  # more tuples of one time than a delivery should have
                stop += 1
                a, b = int(np.searchsorted(left.ts, stop)), int(np.searchsorted(right.ts, stop))
            yield from self._deliver(left.slice(i, a), right.slice(j, b), stop)
            i, j = a, b
            if stop >= time_us:
                break
        # Searching the waiting rows and copying those of the windows costs time in their number: wait for as many new ones.
        rows = sum(stream.waiting + len(stream.ts) // 2 for stream in self.streams)
        self._check_at = GATHERED_ROWS + rows

    def _deliver(self, left: TupleBatch, right: TupleBatch, time_us: int) -> Iterator[pa.RecordBatch]:
        head = (QueryId(0), SlaveId(0), EpochIndex(0), time_us, time_us, self._groups)
        counts = np.array([len(left)], np.int64), np.array([len(right)], np.int64)
        work = self._join.open(Delivery(*head, *counts, left, right))
        while True:
            step = self._join.step(work, 0, 1 << 40)
            if step.pairs is not None:
                yield from self._rows(step.pairs)
            if step.done:
                return

    def _rows(self, pairs: Pairs) -> Iterator[pa.RecordBatch]:
        numbers = (pairs.left_id, pairs.right_id)
        indexes = [
            stream.indexes_of(n) if stream.columns and pairs.side != 1 - side else None
            for side, (stream, n) in enumerate(zip(self.streams, numbers, strict=True))
        ]
        measured = [(stream.measured(), at) for stream, at in zip(self.streams, indexes, strict=True) if at is not None]
        if len(pairs) * sum(most for (_, most), _ in measured) <= BLOCK_BYTES:
            yield self._batch(pairs, indexes, 0, len(pairs))
            return
        for start, stop in pieces_of(sum((sizes[at] for (sizes, _), at in measured), np.zeros(len(pairs), np.int64))):
            yield self._batch(pairs, indexes, start, stop)

    def _batch(self, pairs: Pairs, indexes: list[I64 | None], start: int, stop: int) -> pa.RecordBatch:
        """Rows of some of the pairs. indexes: of all of them, in the rows of each stream."""
        import pyarrow as pa
        import pyarrow.compute as pc

        columns = []
        for (side, index), kind in zip(self.plan.columns, self.plan.types, strict=True):
            if side == LEFT and pairs.side == RIGHT and index < self.plan.streams[LEFT].key_count:
                side = RIGHT  # a key is the same on both sides
            if pairs.side == 1 - side:
                columns.append(pa.nulls(stop - start, kind))
                continue
            stream, at = self.streams[side], indexes[side]
            assert stream.rows is not None
            assert at is not None
            column = pc.take(stream.rows.column(stream.columns.index(index)), pa.array(at[start:stop]), boundscheck=False)
            columns.append(column if column.type == kind else column.cast(kind))
        return pa.RecordBatch.from_arrays(columns, names=list(self.plan.names))


def join_parcels(batches: Iterator[pa.RecordBatch], plan: JoinSpec) -> Iterator[pa.RecordBatch]:
    """Joined rows of one Spark partition; the parcels come in the order of their first times."""
    joiner: Joiner | None = None
    with spelled("arguments"):
        for batch in batches:
            sides, firsts = batch.column(0).to_pylist(), batch.column(2).to_pylist()
            for i, (side, first) in enumerate(zip(sides, firsts, strict=True)):
                joiner = joiner or Joiner(plan)
                yield from joiner.put(side, first, unpack(batch.column(3)[i]))
        if joiner is not None:
            yield from joiner.advance(END_OF_TIME_US)
