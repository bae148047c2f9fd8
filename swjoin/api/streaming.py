"""`swjoin.WindowJoin`: two streams, pushed batch by batch, joined in this process in bounded memory.

What: `WindowJoin`: `push`, `advance`, `close`, each of which yields the pairs that have become certain, as record batches;
`read` and `stream`, for two whole streams.
Why: a loop that receives batches needs no cluster and no files.
Stays out: classifying, joining and counting (`api.embedded_join`), whole tables (`api.tables`), event loops
(`api.async_stream`).
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import AsyncGenerator, AsyncIterable, Callable, Collection, Iterator, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self, TypeAlias, Unpack

import numpy as np

from swjoin.api.embedded_join import Engine, Joiner, check_rows
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.config.arguments import Request
from swjoin.config.options import Columns, EngineOptions, complete, takes_options
from swjoin.config.run import RunConfig, StreamConfig
from swjoin.connectors.fitting import fitted
from swjoin.connectors.frames import ArrowSchema, Streamable, both_inputs, to_batches, to_schema
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.row_encoder import TupleEncoder, describe_streams, settle_types
from swjoin.connectors.schema import described
from swjoin.connectors.times import microseconds, zoned
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, Bool, SourceBatch
from swjoin.core.errors import RunFailed, SwjoinError, Text, UserError, spelled
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.ledger import Ledger
from swjoin.core.row_codec import returned, storage
from swjoin.expressions.compiler import compile_text
from swjoin.runtime.plausibility import Answer, warn, warnings_of

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.row_encoder import StreamColumns
    from swjoin.core.key_encoder import KeyEncoder

    Schemas: TypeAlias = tuple[pa.Schema | None, pa.Schema | None]

Item: TypeAlias = tuple[int, Any]  # of a stream: a record batch or a promise
Source: TypeAlias = AsyncIterable[Streamable] | Streamable
_INTERRUPTED = "it was interrupted"
_READ_ROWS = 16_384  # of a side at once


def _line(error: BaseException) -> str:
    """An exception in one line."""
    text = " ".join(str(error).split())[:1000]
    return text if isinstance(error, SwjoinError) else f"{type(error).__name__}: {text}" if text else type(error).__name__


class StreamOptions(EngineOptions, total=False):
    """Options of `swjoin.WindowJoin`."""

    columns: Columns | None
    ids: bool
    left_schema: ArrowSchema | Streamable | None
    right_schema: ArrowSchema | Streamable | None


class WindowJoin:
    """Joins two streams as their batches come: equal keys and lower <= right time - left time <= upper, each pair once.

    The arguments are those of `swjoin.join`, but: rows must come in time order, up to max_out_of_order; later rows follow late:
    "error" (the batch is refused as a whole, and the join goes on without it), "drop", or "side" (see `late_rows`).
    left_schema, right_schema: the columns and types of a side, if they are to be known before its first batch: a schema of
    Arrow or polars, or a frame, whose rows are not read; until both sides' are known, rows wait. Later batches may have their
    columns in another order, and other types of the same values. memory: limit of the window state, such as "1GB"; RunFailed
    when the windows need more.

    `push`, `advance` and `close` return iterators of record batches. What is not taken from one comes with the next; joining is
    done while pairs are taken. A pair is certain when both of its rows have been joined: at once, or with max_out_of_order when
    their streams have come so much further. Leave a `with` block by `close`, or by `cancel`. Not thread-safe.
    """

    @takes_options(StreamOptions)
    def __init__(self, **given: Unpack[StreamOptions]) -> None:
        options = complete(WindowJoin.__init__, given)
        with spelled("arguments"):
            self._request = Request.from_options(options)
            self._config = self._request.config()
        self._schemas: Schemas = (None, None)
        self._early = _Early()
        self._opened: _Opened | None = None
        self._closed = False
        self._failure: str | None = None  # set while anything changes, and for good when that fails
        for stream in (LEFT, RIGHT):
            schema = options[f"{STREAM_NAMES[stream]}_schema"]
            if schema is not None:
                with spelled("arguments"):
                    declared = to_schema(schema, f"{STREAM_NAMES[stream]}_schema")
                    self._take([], self._with_schema(self._schemas, stream, declared))

    # ------------------------------------------------------------ in

    def push(self, *, left: Streamable | None = None, right: Streamable | None = None) -> Iterator[pa.RecordBatch]:
        """More rows of one side, or of both, the left ones first. Returns the pairs that have become certain.

        UserError when anything is wrong (columns, types, times that go back too far, null times): nothing of the push is taken,
        neither of this side nor of the other. The same holds when a reader raises: it is read to its end first.
        """
        self._check_open()
        if left is None and right is None:
            raise UserError("push: give left=batch, right=batch, or both")
        rows: list[Item] = []
        schemas = self._schemas
        with spelled("arguments"):
            for stream, value in enumerate(both_inputs(left, right)):
                if value is not None:
                    schema, batches = to_batches(value, STREAM_NAMES[stream], self._used(stream))
                    rows, schemas = self._with_rows(rows, schemas, stream, schema, list(batches))
        return self._changed(lambda: self._take(rows, schemas))

    def _used(self, stream: int) -> set[str] | None:
        """Columns of a side that are read; None: all."""
        config = (self._config.left, self._config.right)[stream]
        if config.columns is None or self._config.query.where is not None:
            return None
        return {*config.key, config.time, *config.columns, *([] if config.id is None else [config.id])}

    def advance(self, to: object, *, side: Literal["left", "right", "both"] = "both") -> Iterator[pa.RecordBatch]:
        """A promise: no row that is pushed from now on has a time before `to`. Returns the pairs that have become certain.

        to: a value of the time columns: a datetime, an Arrow scalar, or a number in their unit. side: whose rows. This
        advances a stream that is idle, so that windows expire and rows that wait for their order are joined.
        """
        self._check_open()
        if side not in ("left", "right", "both"):
            raise UserError(f"advance: side {side!r} is not one of 'left', 'right', 'both'")
        promises: list[Item] = [(s, _Promise(to)) for s in (LEFT, RIGHT) if side in (STREAM_NAMES[s], "both")]
        return self._changed(lambda: self._take(promises, self._schemas))

    def close(self) -> Iterator[pa.RecordBatch]:
        """Both streams have ended. Returns all pairs that are left; the ledger balances when they have been taken.

        RunFailed, from the iterator, should the ledger not balance. Called again, it returns what has not been taken.
        """
        self._check_whole()
        if self._closed and self._opened is not None and not self._opened.finished:
            return self._results()
        self._check_open()
        return self._changed(self._close)

    def _close(self) -> None:
        if self._opened is None and self._schemas != (None, None):
            self._take([], self._assumed(self._schemas))
        if self._opened is not None:
            self._opened.end()
        self._closed = True

    def cancel(self) -> None:
        """Give up: what has not been taken is lost, and nothing more can be pushed."""
        self._closed, self._opened, self._early, self._failure = True, None, _Early(), None

    def __del__(self) -> None:
        opened = getattr(self, "_opened", None)
        if opened is not None and self._failure is None and opened.engine.due:
            text = "pairs of a swjoin.WindowJoin were never taken: iterate over push() and close(), or call cancel()"
            warnings.warn(text, ResourceWarning, 2, source=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        whole = self._closed and (self._opened is None or self._opened.finished)
        opened, self._closed = self._opened, True
        if kind is None:
            self._check_whole()
        if kind is None and not whole:
            raise UserError("the with block ended before all pairs were taken; iterate over close(), or call cancel()")
        if kind is not None and opened is not None and not opened.finished:
            self._opened = None  # its memory

    # ------------------------------------------------------------ out

    def read(self, left: Streamable, right: Streamable) -> pa.RecordBatchReader:
        """All pairs of two whole streams, as a reader that joins while it is read, in the memory of the windows.

        left, right: readers or frames, in time order as for `push`; the side that is behind is read next, and the join is
        closed at the end of both. What `push` would refuse is raised when it is read; the join has failed then.
        """
        import pyarrow as pa

        self._check_open()
        schemas = self._schemas
        with spelled("arguments"):
            found, sides = zip(*(self._whole(s, value) for s, value in enumerate(both_inputs(left, right))), strict=True)
            known = [schemas[stream] or schema for stream, schema in enumerate(found)]
            for stream, schema in enumerate(settle_types(self._request.streams, known, (False, False))):
                schemas = self._with_schema(schemas, stream, schema) if schemas[stream] is None else schemas
            self._take([], schemas)
        return pa.RecordBatchReader.from_batches(self.schema, self._read_whole(sides))

    def _whole(self, stream: int, value: object) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Columns and rows, in pieces, of a reader or frame; keys and times of an empty frame have the type null."""
        import pyarrow as pa

        schema, batches = to_batches(value, STREAM_NAMES[stream], self._used(stream))
        if self._untyped(stream, schema):
            first = next((batch for batch in batches if batch.num_rows), None)
            batches = iter(()) if first is None else itertools.chain([first], batches)
            for i, field in enumerate(schema if first is None else ()):
                if field.name in self._needed(stream) and pa.types.is_floating(field.type):
                    schema = schema.set(i, field.with_type(pa.null()))
        return schema, (piece for batch in batches for piece in _pieces(batch))

    def _needed(self, stream: int) -> tuple[str, ...]:
        """Keys and time of a side."""
        own = self._request.streams[stream]
        return (*own.key, own.time)

    def _untyped(self, stream: int, schema: pa.Schema) -> bool:
        """Whether a key or the time has a type that libraries give columns without values."""
        import pyarrow.types as t

        return any(f.name in self._needed(stream) and (t.is_null(f.type) or t.is_floating(f.type)) for f in schema)

    async def stream(self, left: Source, right: Source) -> AsyncGenerator[pa.RecordBatch]:
        """All pairs of two whole streams, for `async for`: asynchronous iterators of what `push` takes, or what `read` takes.

        Both are read at once, joining is done in a thread, and the join is closed at the end of both. An exception of an
        iterator, or what `push` would refuse, is raised here, and the join has failed; it is cancelled when its task is
        cancelled or the generator closed. Then nothing runs any more, and both iterators are closed.
        """
        from asyncio import CancelledError

        from swjoin.api.async_stream import Calls, async_batches, in_thread, join_streams

        self._check_open()
        sides = []
        with spelled("arguments"):
            for stream, value in enumerate(both_inputs(left, right)):
                if isinstance(value, AsyncIterable):
                    sides.append(value)
                    continue
                schema, batches = await in_thread(self._whole, stream, value)
                if self._schemas[stream] is None and not self._untyped(stream, schema):
                    self._take([], self._with_first(self._schemas, stream, schema))
                sides.append(async_batches(batches))
        found = join_streams(Calls(self.push, self._end, self.close, self._is_ahead), *sides)
        try:
            async for batch in found:
                yield batch
        except (GeneratorExit, CancelledError):
            self.cancel()
            raise
        except BaseException as error:  # what has been read of a side cannot be read again
            self._failure = self._failure or _line(error)
            raise
        finally:
            await found.aclose()

    def _end(self, streams: Collection[int]) -> Iterator[pa.RecordBatch]:
        """These streams have no more rows; one of which nothing is known has the keys and times of the other one."""

        def change() -> None:
            settled = all(schema is not None or stream in streams for stream, schema in enumerate(self._schemas))
            if self._opened is None and settled and self._schemas != (None, None):
                self._take([], self._assumed(self._schemas))
            if self._opened is not None:
                for stream in streams:
                    self._opened.engine.end(stream)

        self._check_open()
        return self._changed(change)

    def _is_ahead(self, stream: int) -> bool:
        """Whether later rows of this stream can match nothing that has been pushed of the other one, as far as is known."""
        if self._opened is None:
            return self._schemas[stream] is not None and self._schemas[1 - stream] is None
        own, other = self._opened.engine.streams[stream], self._opened.engine.streams[1 - stream]
        bounds = self._config.query.bounds
        if bounds.count_windows:
            return own.watermark_us > other.watermark_us
        lowest, highest = sorted((bounds.lower_us, bounds.upper_us))
        return not other.ended and own.watermark_us + (lowest if stream == LEFT else -highest) > other.high_us

    def _read_whole(self, sides: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        try:
            yield from self._read(sides)
        except GeneratorExit:
            raise
        except BaseException as error:  # what has been read of a side cannot be read again
            self._failure = self._failure or _line(error)
            raise

    def _read(self, sides: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[pa.RecordBatch]:
        ended = [False, False]
        while not all(ended):
            self._check_open()
            assert self._opened is not None
            opened, (left_us, right_us) = self._opened, self._opened.engine.times_us
            stream = LEFT if not ended[LEFT] and (ended[RIGHT] or left_us <= right_us) else RIGHT
            batch = next(sides[stream], None)
            if batch is None:
                ended[stream] = True
                yield from self._changed(partial(opened.engine.end, stream))
            else:
                yield from self.push(**{STREAM_NAMES[stream]: batch})
        yield from self.close()

    def _results(self) -> Iterator[pa.RecordBatch]:
        """Pairs of which the last one yielded has been handed over, also when no more are asked for."""
        while True:
            self._check_whole()
            if self._opened is None:
                return
            try:
                self._failure = _INTERRUPTED
                with spelled("arguments"):
                    batch = self._opened.next()
                self._failure = None
                if batch is None:
                    break
                yield batch
            except GeneratorExit:  # the caller stops after this batch; the rest comes with the next call
                raise
            except BaseException as error:
                self._failure = _line(error)
                raise
        warn(self._opened.take_warnings(), 2)

    def late_rows(self) -> pa.Table:
        """Rows that were late since the last call (late="side"): stream, row_id, ts (microseconds, null without), reason."""
        self._check_whole()
        found = None
        try:
            self._failure = _INTERRUPTED
            found = _late_table([] if self._opened is None else self._opened.take_late())
            self._failure = None
            return found
        except BaseException as error:
            self._failure = _line(error)
            raise

    # ------------------------------------------------------------ all or nothing

    def _changed(self, change: Callable[[], None]) -> Iterator[pa.RecordBatch]:
        """The pairs that are certain after a change. A change that is refused by a UserError has done nothing yet; after any
        other exception, wherever it strikes, the join has failed."""
        try:
            self._failure = _INTERRUPTED
            with spelled("arguments"):
                change()
            results = self._results()
            self._failure = None
            return results
        except UserError:
            self._failure = None
            raise
        except BaseException as error:
            self._failure = _line(error)
            raise

    def _check_whole(self) -> None:
        if self._failure is not None:
            raise RunFailed(f"the join has failed before ({self._failure}); make a new WindowJoin and push all rows again")

    def _take(self, items: list[Item], schemas: Schemas) -> None:
        """Rows and promises in this order: all of them or, with a UserError, none."""
        for stream in (LEFT, RIGHT):
            if self._schemas[stream] is None and schemas[stream] is not None:
                self._check_promises(stream, schemas)
        left, right = schemas
        opened, early = self._opened, self._early
        if opened is None and left is not None and right is not None:
            opened = _Opened(self._request, self._config, left, right)
            items = [*early.items, *items]
        if opened is None:
            early = early.with_items(items, [self._alone(s, schemas) for s in (LEFT, RIGHT)], self._config)
        else:
            opened.take(items)
            early = _Early()
        self._opened, self._early, self._schemas = opened, early, schemas

    def _alone(self, stream: int, schemas: Schemas) -> _Stream | None:
        """A side whose schema is known, without the other's. UserError when its columns cannot be used."""
        if schemas[stream] is None:
            return None
        known = self._early.streams[stream]
        if known is not None:
            return known
        left, right = self._assumed(schemas)
        sides = self._request.streams
        views, keys = describe_streams((sides[LEFT], left), (sides[RIGHT], right), carry=False, packed=True)
        return _Stream(stream, sides[stream], (left, right)[stream], keys, views[stream])

    def _check_promises(self, stream: int, schemas: Schemas) -> None:
        """Promises of a side of which nothing was known. One that turns out to be none is forgotten, with a UserError."""
        for item in self._early.items:
            alone = self._alone(stream, schemas) if item[0] == stream else None
            if alone is not None:
                try:
                    alone.time_us(item[1].to)
                except UserError:
                    self._early = self._early._replace(items=tuple(i for i in self._early.items if i is not item))
                    raise

    # ------------------------------------------------------------ properties

    @property
    def schema(self) -> pa.Schema:
        """Of the record batches. UserError while a side's schema is not known."""
        if self._opened is None:
            raise UserError("schema: not known before each side's first batch; give left_schema and right_schema")
        return self._opened.plan.schema

    @property
    def ledger(self) -> Ledger:
        """The account of all rows and pairs so far; rows that wait are missing in it until they have been joined."""
        self._check_whole()
        if self._opened is not None:
            return self._opened.engine.ledger
        ledger = Ledger()
        for stream, value in self._early.items:
            (ledger.left if stream == LEFT else ledger.right).tuples += getattr(value, "num_rows", 0)
        return ledger

    @property
    def count(self) -> int:
        """Pairs of all pushes whose pairs have been taken."""
        self._check_whole()
        return 0 if self._opened is None else self._opened.engine.count

    @property
    def digest(self) -> str:
        """Of these pairs: 16 hex digits. After `close` it identifies the result, however the rows were pushed."""
        self._check_whole()
        return "0" * 16 if self._opened is None else self._opened.engine.digest

    @property
    def window_bytes(self) -> int:
        """Memory of the windows now."""
        return 0 if self._opened is None else self._opened.engine.window_bytes

    @property
    def closed(self) -> bool:
        return self._closed

    def __repr__(self) -> str:
        bounds = self._config.query.bounds
        state = "failed" if self._failure is not None else "closed" if self._closed else "open"
        last = self._config.query.last
        pairs = 0 if self._opened is None else self._opened.engine.count
        window = f"last {last[0]}, {last[1]}" if last else f"{bounds.lower_us}us..{bounds.upper_us}us"
        window = "unbounded" if self._config.query.unbounded else window
        return f"<swjoin.WindowJoin {window}, {state}, {pairs:,} pairs>"

    # ------------------------------------------------------------ schemas

    def _check_open(self) -> None:
        self._check_whole()
        if self._closed:
            raise UserError("the join is closed; make a new WindowJoin")

    def _with_rows(
        self, rows: list[Item], schemas: Schemas, stream: int, schema: pa.Schema, batches: list[pa.RecordBatch]
    ) -> tuple[list[Item], Schemas]:
        """Rows and schemas with a side's batches, in types of its schema. UserError when they do not fit."""
        import pyarrow as pa

        side, known = STREAM_NAMES[stream], schemas[stream]
        if known is None:
            if self._untyped(stream, schema) and not any(b.num_rows for b in batches):
                return rows, schemas  # an empty frame, whose columns libraries call floating-point numbers
            schemas = self._with_first(schemas, stream, schema)
        elif not schema.equals(known):
            extra = [name for name in schema.names if name not in known.names]
            if extra:
                raise UserError(
                    f"{side}: column {extra[0]} is new in this batch; the side's schema is {described(known)[:1000]}"
                )
            kinds = {field.name: field.type for field in schema}
            alike = {f.name for f in known if f.name in kinds and storage(kinds[f.name]) == storage(f.type)}
            wanted = pa.schema([f.with_type(kinds[f.name]) if f.name in alike else f for f in known])  # packed alike
            batches = [fitted(batch, wanted, lambda _: side) for batch in batches]
        return [*rows, *((stream, batch) for batch in batches)], schemas

    @staticmethod
    def _with_schema(schemas: Schemas, stream: int, schema: pa.Schema) -> Schemas:
        """With a side's schema, in which dictionaries have room for the values of later batches."""
        import pyarrow as pa

        schema = pa.schema([field.with_type(returned(field.type)) for field in schema], schema.metadata)
        return (schema, schemas[RIGHT]) if stream == LEFT else (schemas[LEFT], schema)

    def _with_first(self, schemas: Schemas, stream: int, schema: pa.Schema) -> Schemas:
        """With the schema of a side's first batch. UserError when a key or the time has no type."""
        import pyarrow as pa

        for field in schema:
            if field.name in self._needed(stream) and pa.types.is_null(field.type):
                side, what = STREAM_NAMES[stream], f"column {field.name} has no values in the first batch"
                raise UserError(f"{side}: {what}, so its type is not known; give {side}_schema")
        return self._with_schema(schemas, stream, schema)

    def _assumed(self, schemas: Schemas) -> tuple[pa.Schema, pa.Schema]:
        """Both schemas; a side of which nothing is known has the other's keys and times, and nothing else."""
        import pyarrow as pa

        out = list(schemas)
        for stream in (LEFT, RIGHT):
            known, missing = schemas[1 - stream], schemas[stream]
            if missing is None and known is not None:
                own, other = self._request.streams[stream], self._request.streams[1 - stream]
                fields = dict(zip((*own.key, own.time), (*other.key, other.time), strict=False))
                if own.id is not None:
                    fields[own.id] = other.id or ""
                found = {n: known.field(o).type if known.names.count(o) == 1 else pa.int64() for n, o in fields.items()}
                found[own.time] = _assumed_time(own, other, found[own.time], known=known.names.count(other.time) == 1)
                out[stream] = pa.schema(list(found.items()))
        return out[LEFT], out[RIGHT]


def _assumed_time(own: StreamConfig, other: StreamConfig, kind: pa.DataType, *, known: bool) -> pa.DataType:
    """A type of time column that has a use for this side's unit and time zone. kind: the other side's, if it is known."""
    import pyarrow as pa

    if own.time_unit is not None and own.time_unit != other.time_unit:
        return pa.int64()
    local = zoned(kind) and own.assume_timezone is not None
    unitless = pa.types.is_integer(kind) and own.time_unit is None and other.time_unit is not None
    return pa.timestamp("us") if local or not known or unitless else kind


def _pieces(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Slices so small that windows hold little of a side that is ahead."""
    return (batch.slice(at, _READ_ROWS) for at in range(0, batch.num_rows, _READ_ROWS))


class _Promise(NamedTuple):
    """Of `advance`."""

    to: object


class _Early(NamedTuple):
    """Rows and promises from before both schemas were known. Rows are checked at once and read later.

    streams: the sides that are known. highs_us: their highest times.
    """

    items: tuple[Item, ...] = ()
    streams: Sequence[_Stream | None] = (None, None)
    highs_us: Sequence[int] = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)

    def with_items(self, items: list[Item], streams: Sequence[_Stream | None], config: RunConfig) -> _Early:
        """With more of them. RunFailed when they take too much memory."""
        every = (*self.items, *items)
        waiting_bytes = sum(getattr(value, "nbytes", 0) for _, value in every)
        if waiting_bytes > config.module.window_bytes:
            side = STREAM_NAMES[1 - every[-1][0]]
            raise RunFailed(f"{waiting_bytes} bytes wait for the first batch of the {side} side; give {side}_schema")
        fresh = [item for item in self.items if self.streams[item[0]] is None]  # promises, of which nothing could be said
        wanted = _converted(streams, [*fresh, *items])
        intakes = StreamIntake(LEFT, config.time), StreamIntake(RIGHT, config.time)
        highs = check_rows(intakes, wanted, self.highs_us)
        _count_on(streams, wanted)
        return _Early(every, streams, highs)


def _converted(streams: Sequence[_Stream | None], items: Sequence[Item]) -> list[tuple[int, SourceBatch | int]]:
    """Batches as tuples, promises as microseconds, as far as sides are known. UserError when one cannot be used."""
    out: list[tuple[int, SourceBatch | int]] = []
    rows = [0, 0]
    for stream, value in items:
        mine = streams[stream]
        if mine is None:
            continue
        if isinstance(value, _Promise):
            out.append((stream, mine.time_us(value.to)))
        else:
            out.append((stream, mine.of(value, mine.rows + rows[stream])))
            rows[stream] += value.num_rows
    return out


def _count_on(streams: Sequence[_Stream | None], taken: Sequence[tuple[int, SourceBatch | int]]) -> None:
    for stream, value in taken:
        mine = streams[stream]
        if mine is not None and isinstance(value, SourceBatch):
            mine.rows += len(value)


class _Opened:
    """The join once both schemas are known."""

    def __init__(self, request: Request, config: RunConfig, left: pa.Schema, right: pa.Schema) -> None:
        sides = request.streams
        self._config, query = config, config.query
        views, keys = describe_streams((sides[LEFT], left), (sides[RIGHT], right), carry=True, packed=True, query=query)
        codecs = (views[LEFT].codec, views[RIGHT].codec)
        self.plan = OutputColumns(*codecs, request.ids, query.how)
        where = compile_text(query.where, *codecs, count_windows=query.bounds.count_windows)
        self.engine = Engine(config, (codecs[LEFT].layout, codecs[RIGHT].layout), where=where)
        self._streams = [_Stream(s, sides[s], (left, right)[s], keys, views[s]) for s in (LEFT, RIGHT)]
        self._joiner: Joiner = self.engine.joiners[0]
        self._batches: Iterator[pa.RecordBatch] = iter(())
        self._late: list[tuple[int, SourceBatch, str]] = []
        self._ended = self.finished = self._warned = False

    def take(self, items: Sequence[Item]) -> None:
        """Rows and promises. Whatever is wrong with one of them is a UserError before the first is taken."""
        wanted = _converted(self._streams, items)
        check_rows(self.engine.streams, wanted, [intake.high_us for intake in self.engine.streams])
        for stream, value in wanted:
            if isinstance(value, SourceBatch):
                self._late += [(stream, part, reason) for part, reason in self.engine.read(stream, value)]
            else:
                self.engine.advance(stream, value)
        _count_on(self._streams, wanted)

    def end(self) -> None:
        self._ended = True
        for stream in (LEFT, RIGHT):
            self.engine.end(stream)

    def next(self) -> pa.RecordBatch | None:
        """The next pairs that are certain; None when there are no more for now."""
        while True:
            batch = next(self._batches, None)
            if batch is not None:
                return batch
            if not self.engine.due:
                if self._ended and not self.finished:
                    self.engine.check_ledger()
                    self.finished = True
                return None
            pairs = self._joiner.pairs_of(self.engine.deliver()[0])
            self._batches = (self.plan.decode(part) for part in pairs)

    def take_warnings(self) -> list[str]:
        """What makes the answer implausible, once, at the end. Rows that were pushed cannot be read again."""
        if not self.finished or self._warned:
            return []
        self._warned = True
        ledger, config = self.engine.ledger, self._config
        units = (self.plan.left.time_unit, self.plan.right.time_unit)
        columns = (self._streams[LEFT].time, self._streams[RIGHT].time)
        counts = (ledger.left, ledger.right)
        return warnings_of(Answer(config.query, config.time, counts, units, columns, self.engine.matches))

    def take_late(self) -> list[tuple[int, SourceBatch, str]]:
        late, self._late = self._late, []
        return late


class _Stream:
    """One side. rows: so many have come."""

    def __init__(self, stream: int, config: StreamConfig, schema: pa.Schema, keys: KeyEncoder, view: StreamColumns) -> None:
        self._side, self._columns, self.rows, self.time = STREAM_NAMES[stream], view.columns, 0, config.time
        self._time = view.time
        self._tuples = TupleEncoder(config, view, keys, lambda row: f"row {row} of the stream (counting from 0)")
        self._name, self._kind = f"the {self._side} side's time column {config.time}", schema.field(config.time).type

    def of(self, batch: pa.RecordBatch, first: int) -> SourceBatch:
        """A batch as tuples. UserError when a value cannot be used."""
        try:
            return self._tuples.of(batch.select(self._columns), first)
        except UserError as error:
            raise (error if str(error).startswith(self._side) else error.prefixed(self._side)) from None

    def time_us(self, to: object) -> int:
        """A value of the time column in microseconds. UserError when it is none."""
        import pyarrow as pa

        try:
            value = pa.array([to])
            mixed = {zoned(value.type), zoned(self._kind)} == {True, False}
            if mixed and self._time.zone is None:
                what = f"{self._name}, which is {self._kind}"
                raise UserError(f"advance: {to} and {what}: one has a time zone, the other has none")
            if not mixed:  # else either means an instant
                value = value.cast(self._kind) if isinstance(to, (pa.Scalar, np.generic)) else pa.array([to], self._kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise UserError(f"advance: {to!r} is no value of {self._name}, which is {self._kind}") from None
        if value.null_count:
            raise UserError("advance: to is null; give a time")

        def refuse(wrong: Bool, problem: str, remedy: Text = "") -> None:
            if wrong.any():
                raise UserError(f"advance: {to!r} {problem}", remedy=remedy)

        return int(microseconds(value, self._time, refuse)[0])


def _late_table(late: list[tuple[int, SourceBatch, str]]) -> pa.Table:
    import pyarrow as pa

    schema = pa.schema([("stream", pa.string()), ("row_id", pa.uint64()), ("ts", pa.int64()), ("reason", pa.string())])
    batches = []
    for stream, rows, reason in late:
        n = len(rows)
        unknown = None if rows.ts_valid is None else ~rows.ts_valid
        columns = [pa.array([STREAM_NAMES[stream]] * n), pa.array(rows.id), pa.array(rows.ts, mask=unknown)]
        batches.append(pa.record_batch([*columns, pa.array([reason] * n)], schema=schema))
    return pa.Table.from_batches(batches, schema)
