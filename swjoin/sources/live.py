"""Live streams: what all of them share.

What: `parse_schema`, the columns of a stream as its configuration tells them; `MergedSource`, a source whose rows come
through a `Merge`; `open_live_sources`, both streams of a configuration.
Why: a stream that comes from outside is checked before anything runs, and read without ever holding up the master.
Stays out: where the rows come from (`sources.flight`, `sources.kafka`, `sources.watch`).
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.batch import I64, STREAM_NAMES, Bool, RowLayout, SourceBatch
from swjoin.config import RunConfig, StreamConfig
from swjoin.errors import UserError
from swjoin.sources.codec import StreamCodec
from swjoin.sources.columns import StreamView, Tuples, describe_streams
from swjoin.sources.keys import Dictionary, KeyEncoder
from swjoin.sources.merge import Merge
from swjoin.sources.times import zoned

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.sources import LiveSource

BATCH_ROWS = 65_536
_LINGERS = 16  # times in a distribution epoch that rows are taken from a merge
_LONGEST_LINGER_S, _SHORTEST_LINGER_S = 0.02, 0.001
_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz *= *)?([\w/+:-]+)\]")


def parse_schema(text: str, where: str) -> pa.Schema:
    """`name: type, ...` with Arrow's names of types. UserError, which begins with `where`, says what is no column."""
    import pyarrow as pa

    fields: list[pa.Field] = []
    for part in re.split(r",(?![^\[]*\])", text):
        name, separator, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and separator and kind):
            raise UserError(f"{where}: schema: {part.strip()!r}: write NAME: TYPE, such as user: int64, ts: timestamp[us]")
        zoned = _ZONED.fullmatch(kind)
        try:
            found = pa.timestamp(zoned[1], zoned[2]) if zoned else pa.type_for_alias(kind)
        except ValueError:
            raise UserError(
                f"{where}: schema: column {name}: {kind!r} is no Arrow type; int64, double, string, bool, timestamp[us] are"
            ) from None
        if name in (field.name for field in fields):
            raise UserError(f"{where}: schema: column {name} is there twice")
        fields.append(pa.field(name, found))
    return pa.schema(fields)


def check_schema(schema: pa.Schema, expected: pa.Schema) -> None:
    """UserError unless all expected columns are there, with their types; others are left out."""
    for field in expected:
        count = schema.names.count(field.name)
        if count != 1:
            there = "is missing" if not count else f"is there {count} times"
            raise UserError(f"wrong schema: column {field.name} {there}; expected {described(expected)}")
        kind = schema.field(field.name).type
        if kind != field.type:
            mixed = {zoned(kind), zoned(field.type)} == {True, False}
            remedy = "; give all of its times a zone, or none" if mixed else ""
            raise UserError(f"wrong schema: column {field.name} is {kind}, expected {field.type}{remedy}")


def described(schema: pa.Schema) -> str:
    """A schema as a configuration spells it."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)


class MergedSource:
    """One live stream, whose rows come through a `Merge`. A subclass fills the lanes, and knows how to go back.

    schema: of the columns that are read, in their order in every batch that is offered.
    """

    rows_total: int | None = None

    def __init__(
        self, stream: int, config: StreamConfig, schema: pa.Schema, view: StreamView, keys: KeyEncoder, merge: Merge
    ) -> None:
        import pyarrow as pa

        self.stream = stream
        self.config = config
        self.codec: StreamCodec = view.codec
        self.schema: pa.Schema = pa.schema([schema.field(name) for name in view.columns])
        self.merge = merge
        self.rows = 0  # read so far
        self._keys = keys
        self._tuples = Tuples(config, view, keys, self._place)
        self._judge = Tuples(config, view, keys, lambda row: f"row {row} of the batch (counting from 0)")
        self._next: pa.RecordBatch | None = None

    # ------------------------------------------------------------ offered, from any thread

    def times_of(self, batch: pa.RecordBatch) -> tuple[I64, Bool | None]:
        """Times of a batch as it is offered, and which rows have one. UserError when a time or an id cannot be used."""
        self._judge.ids(batch, 0)
        return self._judge.times(batch.column(self.config.time), 0)

    def chosen(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        """The columns that are read, of a batch that may have more. UserError when one is missing or of another type."""
        if batch.schema.names != self.schema.names or batch.schema.types != self.schema.types:
            check_schema(batch.schema, self.schema)
        return batch.select(self.schema.names)

    # ------------------------------------------------------------ read, by the master

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    @property
    def dictionary(self) -> Dictionary | None:
        return None if self._keys.native else self._keys.dictionary

    def ready(self, patience_s: float) -> bool:
        if self._look():
            return True
        if patience_s > 0:
            self.merge.wait(min(patience_s, self.merge.linger_s or patience_s))
            return self._look()
        return False

    def _look(self) -> bool:
        if self._next is None:
            self._next = self.next_batch()
        return self._next is not None or self.ended

    @property
    def ended(self) -> bool:
        """No row will come any more."""
        return self.merge.ended

    def next_batch(self) -> pa.RecordBatch | None:
        """The next rows, if there are any now."""
        return self.merge.take(BATCH_ROWS)

    def read(self) -> SourceBatch | None:
        while not self._look():
            self.ready(0.1)
        batch, self._next = self._next, None
        if batch is None:
            self.merge.finish()  # whoever comes now is told so
            return None
        first, self.rows = self.rows, self.rows + batch.num_rows
        return self._tuples.of(batch, first)

    def locate(self, row_id: int) -> str:
        return self._place(row_id)

    def _place(self, position: int) -> str:
        return f"{STREAM_NAMES[self.stream]} stream, row {position} (counting from 0)"

    def forget(self, row: int) -> None:
        """Nothing is kept."""

    def done(self) -> None:
        """Nothing is kept."""

    def status(self) -> dict[str, float]:
        return {"producers": float(self.merge.lanes), "waiting_rows": float(self.merge.waiting_rows)}

    def close(self) -> None:
        self.merge.close()


def merge_of(config: RunConfig, *, expected: int = 0) -> Merge:
    """For one stream of a run. With arrival times no row is ever late: no lane waits for another one."""
    linger_s = min(_LONGEST_LINGER_S, max(_SHORTEST_LINGER_S, config.cluster.distribution_epoch_us / 1e6 / _LINGERS))
    return Merge(
        expected=expected,
        lane_bytes=config.serve.producer_buffer_bytes,
        idle_timeout_us=1 if config.time.model == "arrival" else config.time.idle_timeout_us,
        linger_s=linger_s,
    )


def open_live_sources(config: RunConfig, keep: Path | None) -> tuple[LiveSource, LiveSource]:
    """Both streams of a configuration with live ones, checked by their schemas. UserError says what is wrong with which.

    keep: folder for what has to be read again after a recovery and cannot be had anew; None: the run makes no checkpoints.
    """
    sides = (config.left, config.right)
    schemas = [_schema_of(side, name) for side, name in zip(sides, STREAM_NAMES, strict=True)]
    carry = config.sink.kind != "count" or config.sink.carry_payload
    views, keys = describe_streams(
        (config.left, schemas[0]),
        (config.right, schemas[1]),
        carry=carry,
        time_is_ts=config.time.model == "event",
        packed=True,
        query=config.query,
    )
    left, right = (_open(stream, config, sides[stream], schemas[stream], views[stream], keys, keep) for stream in (0, 1))
    return left, right


def _schema_of(side: StreamConfig, name: str) -> pa.Schema:
    if side.schema is not None:
        return parse_schema(side.schema, name)
    from swjoin.sources.watch import first_schema

    assert side.watch is not None, "a live stream without a schema is a directory"
    return first_schema(Path(side.watch), name)


def _open(
    stream: int,
    config: RunConfig,
    side: StreamConfig,
    schema: pa.Schema,
    view: StreamView,
    keys: KeyEncoder,
    keep: Path | None,
) -> LiveSource:
    if side.flight is not None:
        from swjoin.sources.flight import FlightSource

        return FlightSource(stream, side, schema, view, keys, merge_of(config, expected=side.flight.producers), keep)
    if side.kafka is not None:
        from swjoin.sources.kafka import KafkaSource

        return KafkaSource(stream, side, schema, view, keys, lambda: merge_of(config))
    from swjoin.sources.watch import WatchSource

    return WatchSource(stream, side, schema, view, keys)
