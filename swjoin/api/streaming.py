"""`swjoin.WindowJoin`: two streams, pushed batch by batch, joined in this process in bounded memory.

What: `WindowJoin`: `push`, `advance`, `close`, each of which yields the pairs that have become certain, as record batches.
Why: whoever has a loop that gets batches from somewhere needs no cluster and no files.
Stays out: judging, joining and counting (`api.embedded`), whole tables (`api.tables`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import numpy as np

from swjoin.api.arguments import Bound, Columns, Duration, Last, Late, Request, TimeUnit, speaking_python
from swjoin.api.embedded import Engine, Joiner
from swjoin.api.inputs import Streamable, to_batches
from swjoin.batch import LEFT, RIGHT, STREAM_NAMES, Ledger, Pairs, SourceBatch
from swjoin.config import RunConfig
from swjoin.errors import RunFailed, UserError
from swjoin.oracle import How
from swjoin.sinks.plan import OutputPlan
from swjoin.sources.columns import Tuples, describe_streams
from swjoin.sources.predicate import compile_query
from swjoin.sources.times import zoned

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.sources.columns import StreamView


class WindowJoin:
    """Joins two streams as their batches come: equal keys and lower <= right time - left time <= upper, each pair once.

    The arguments are those of `swjoin.join`, but: rows must come in time order, up to max_out_of_order; later rows follow late:
    "error" (the batch is refused as a whole, and the join goes on without it), "drop", or "side" (see `late_rows`).
    left_schema, right_schema: Arrow schemas, if they are to be known before each side's first batch; until both are known, rows
    wait. memory: limit of the window state, such as "1GB"; RunFailed when the windows need more.

    `push`, `advance` and `close` return iterators of record batches. What is not taken from one comes with the next; joining is
    done while pairs are taken. A pair is certain when both of its rows have been joined: at once, or with max_out_of_order when
    their streams have come so much further. Leave a `with` block by `close`, or by `cancel`. Not thread-safe.
    """

    def __init__(
        self,
        *,
        on: Columns | None = None,
        left_time: str,
        right_time: str,
        within: Duration | None = None,
        lower: Duration | None = None,
        upper: Duration | None = None,
        last: Last | None = None,
        exclusive: Bound | Sequence[Bound] = (),
        time_unit: TimeUnit | None = None,
        left_time_unit: TimeUnit | None = None,
        right_time_unit: TimeUnit | None = None,
        assume_timezone: str | None = None,
        how: How = "inner",
        where: str | None = None,
        left_on: Columns | None = None,
        right_on: Columns | None = None,
        left_id: str | None = None,
        right_id: str | None = None,
        columns: Columns | None = None,
        max_out_of_order: Duration | None = None,
        late: Late = "error",
        ids: bool = False,
        memory: str | None = None,
        left_schema: pa.Schema | None = None,
        right_schema: pa.Schema | None = None,
    ) -> None:
        self._request = Request(
            on, left_time, right_time, within, lower, upper, exclusive, time_unit, how, where, left_on, right_on,
            left_id, right_id, columns, max_out_of_order, late, memory, ids, last,
            left_time_unit, right_time_unit, assume_timezone,
        )  # fmt: skip
        with speaking_python():
            self._config = self._request.config()
        self._schemas: list[pa.Schema | None] = [None, None]
        self._early: list[tuple[int, Any]] = []  # rows and promises that wait for the other side's schema
        self._opened: _Opened | None = None
        self._closed = False
        self._broken: RunFailed | None = None
        for stream, schema in ((LEFT, left_schema), (RIGHT, right_schema)):
            if schema is not None:
                self._meet(stream, schema)

    # ------------------------------------------------------------ in

    def push(self, *, left: Streamable | None = None, right: Streamable | None = None) -> Iterator[pa.RecordBatch]:
        """More rows of one side, or of both, the left ones first. Returns the pairs that have become certain.

        UserError when a batch is wrong (columns, types, times that go back too far, null times): none of its rows is taken.
        """
        self._check_open()
        if left is None and right is None:
            raise UserError("push: give left=batch, right=batch, or both")
        with speaking_python():
            for stream, value in ((LEFT, left), (RIGHT, right)):
                if value is not None:
                    self._push(stream, value)
        return self._results()

    def _push(self, stream: int, value: object) -> None:
        time = (self._config.left, self._config.right)[stream].time
        schema, batches = to_batches(value, STREAM_NAMES[stream], time)
        self._meet(stream, schema)
        for batch in batches:
            if self._opened is None:
                self._early.append((stream, batch))
                self._check_early()
            else:
                self._opened.read(stream, batch)

    def advance(self, to: object, *, side: Literal["left", "right", "both"] = "both") -> Iterator[pa.RecordBatch]:
        """A promise: no row that is pushed from now on has a time before `to`. Returns the pairs that have become certain.

        to: a value of the time columns: a datetime, an Arrow scalar, or a number in their unit. side: whose rows. A stream that
        is silent is carried on by this, so that windows expire and rows that wait for their order are joined.
        """
        self._check_open()
        if side not in ("left", "right", "both"):
            raise UserError(f"advance: side {side!r} is not one of 'left', 'right', 'both'")
        with speaking_python():
            for stream in (LEFT, RIGHT):
                if side in (STREAM_NAMES[stream], "both"):
                    if self._opened is None:
                        self._early.append((stream, _Promise(to)))
                    else:
                        self._opened.advance(stream, to)
        return self._results()

    def close(self) -> Iterator[pa.RecordBatch]:
        """Both streams have ended. Returns all pairs that are left; the ledger balances when they have been taken.

        RunFailed, from the iterator, should the ledger not balance.
        """
        self._check_open()
        self._closed = True
        with speaking_python():
            if self._opened is None:
                self._assume_missing_side()
        if self._opened is not None:
            self._opened.end()
        return self._results()

    def cancel(self) -> None:
        """Give up: what has not been taken is lost, and nothing more can be pushed."""
        self._closed, self._opened, self._early = True, None, []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        whole = self._closed and (self._opened is None or self._opened.finished)
        opened, self._closed = self._opened, True
        if kind is None and not whole:
            raise UserError("the with block ended before all pairs were taken; iterate over close(), or call cancel()")
        if kind is not None and opened is not None and not opened.finished:
            self._opened = None  # its memory

    # ------------------------------------------------------------ out

    def _results(self) -> Iterator[pa.RecordBatch]:
        while self._opened is not None:
            try:
                with speaking_python():
                    batch = self._opened.next()
            except RunFailed as error:
                self._broken = error
                raise
            if batch is None:
                return
            yield batch

    def late_rows(self) -> pa.Table:
        """Rows that were late since the last call (late="side"): stream, row_id, ts (microseconds, null without), reason."""
        return _late_table([] if self._opened is None else self._opened.take_late())

    # ------------------------------------------------------------ what it is and has done

    @property
    def schema(self) -> pa.Schema:
        """Of the record batches. UserError while a side's schema is not known."""
        if self._opened is None:
            raise UserError("schema: not known before each side's first batch; give left_schema and right_schema")
        return self._opened.plan.schema

    @property
    def ledger(self) -> Ledger:
        """The account of all rows and pairs so far; rows that wait are missing in it until they have been joined."""
        if self._opened is not None:
            return self._opened.engine.ledger
        ledger = Ledger()
        for stream, value in self._early:
            (ledger.left if stream == LEFT else ledger.right).tuples += getattr(value, "num_rows", 0)
        return ledger

    @property
    def count(self) -> int:
        """Pairs of all pushes whose pairs have been taken."""
        return 0 if self._opened is None else self._opened.engine.count

    @property
    def digest(self) -> str:
        """Of these pairs: 16 hex digits. After `close` it identifies the result, however the rows were pushed."""
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
        state = "closed" if self._closed else "open"
        last = self._config.query.last
        window = f"last {last[0]}, {last[1]}" if last else f"{bounds.lower_us}us..{bounds.upper_us}us"
        return f"<swjoin.WindowJoin {window}, {state}, {self.count:,} pairs>"

    # ------------------------------------------------------------ schemas

    def _check_open(self) -> None:
        if self._broken is not None:
            raise RunFailed(f"the join has failed before: {self._broken}")
        if self._closed:
            raise UserError("the join is closed; make a new WindowJoin")

    def _meet(self, stream: int, schema: object) -> None:
        """A side's schema, for the first time or again. UserError when it is another one."""
        import pyarrow as pa

        side = STREAM_NAMES[stream]
        if not isinstance(schema, pa.Schema):
            raise UserError(f"{side}_schema: a {type(schema).__name__} is no pyarrow.Schema")
        known = self._schemas[stream]
        if known is None:
            self._schemas[stream] = schema
            try:
                self._open()
            except UserError:
                self._schemas[stream] = None
                raise
            self._take_early()
            return
        if schema is known or schema.equals(known):
            return
        for field in known:
            if schema.names.count(field.name) != 1:
                raise UserError(f"{side}: column {field.name} is missing in this batch; its first batch had it")
            if schema.field(field.name).type != field.type:
                raise UserError(f"{side}: column {field.name} is {schema.field(field.name).type}, before it was {field.type}")
        extra = [name for name in schema.names if name not in known.names]
        if extra:
            raise UserError(f"{side}: column {extra[0]} is new in this batch; the first batch says which columns there are")

    def _open(self) -> None:
        """Begin, once both schemas are known."""
        left, right = self._schemas
        if left is None or right is None:
            return
        with speaking_python():
            self._opened = _Opened(self._request, self._config, left, right)

    def _take_early(self) -> None:
        """What came before both schemas were known; what is wrong in it is refused, the rest is taken."""
        if self._opened is None:
            return
        early, self._early = self._early, []
        refused: UserError | None = None
        for stream, value in early:
            try:
                if isinstance(value, _Promise):
                    self._opened.advance(stream, value.to)
                else:
                    self._opened.read(stream, value)
            except UserError as error:
                refused = refused or error
        if refused is not None:
            raise refused

    def _check_early(self) -> None:
        held = sum(getattr(value, "nbytes", 0) for _, value in self._early)
        limit = self._config.module.window_bytes
        if held > limit:
            side = STREAM_NAMES[1 - self._early[0][0]]
            raise RunFailed(f"{held} bytes wait for the first batch of the {side} side; give {side}_schema")

    def _assume_missing_side(self) -> None:
        """A side of which nothing is known at the end: as if it had had the other's keys and times, and no row."""
        import pyarrow as pa

        for stream in (LEFT, RIGHT):
            known, missing = self._schemas[1 - stream], self._schemas[stream]
            if missing is None and known is not None:
                own, other = self._request.stream(stream), self._request.stream(1 - stream)
                fields = dict(zip((*own.key, own.time), (*other.key, other.time), strict=False))
                if own.id is not None:
                    fields[own.id] = other.id or ""
                found = {n: known.field(o).type if known.names.count(o) == 1 else pa.int64() for n, o in fields.items()}
                self._meet(stream, pa.schema(list(found.items())))


class _Promise(NamedTuple):
    """Of `advance`."""

    to: object


class _Opened:
    """The join once both schemas are known."""

    def __init__(self, request: Request, config: RunConfig, left: pa.Schema, right: pa.Schema) -> None:
        request.check_columns(left.names, right.names)
        sides = (request.stream(LEFT, left.names), request.stream(RIGHT, right.names))
        query = config.query
        views, keys = describe_streams((sides[LEFT], left), (sides[RIGHT], right), carry=True, packed=True, query=query)
        codecs = (views[LEFT].codec, views[RIGHT].codec)
        self.plan = OutputPlan(*codecs, request.ids, query.how)
        where = compile_query(query, *codecs)
        self.engine = Engine(config, (codecs[LEFT].layout, codecs[RIGHT].layout), where=where)
        tuples = [Tuples(sides[s], views[s], keys, self._place) for s in (LEFT, RIGHT)]
        self._streams = [_Stream(s, sides[s].time, (left, right)[s], tuples[s], views[s]) for s in (LEFT, RIGHT)]
        self._joiner: Joiner = self.engine.joiners[0]
        self._pairs: Iterator[Pairs] = iter(())
        self._late: list[tuple[int, SourceBatch, str]] = []
        self._ended = self.finished = False

    def _place(self, position: int) -> str:
        return f"row {position} of the stream (counting from 0)"

    def read(self, stream: int, batch: pa.RecordBatch) -> None:
        mine = self._streams[stream]
        try:
            rows = mine.tuples.of(batch.select(mine.view.columns), mine.rows)
            aside = self.engine.read(stream, rows)
        except UserError as error:
            text = str(error)
            raise UserError(text if text.startswith(STREAM_NAMES[stream]) else f"{STREAM_NAMES[stream]}: {text}") from None
        mine.rows += batch.num_rows
        self._late += [(stream, part, reason) for part, reason in aside]

    def advance(self, stream: int, to: object) -> None:
        self.engine.advance(stream, self._streams[stream].time_us(to))

    def end(self) -> None:
        self._ended = True
        for stream in (LEFT, RIGHT):
            self.engine.end(stream)

    def next(self) -> pa.RecordBatch | None:
        """The next pairs that are certain; None when there are no more for now."""
        while True:
            pairs = next(self._pairs, None)
            if pairs is not None:
                return self.plan.decode(pairs)
            if not self.engine.due:
                if self._ended and not self.finished:
                    self.engine.check_ledger()
                    self.finished = True
                return None
            self._pairs = self._joiner.pairs_of(self.engine.deliver()[0])

    def take_late(self) -> list[tuple[int, SourceBatch, str]]:
        late, self._late = self._late, []
        return late


class _Stream:
    """One side. rows: so many have come."""

    def __init__(self, stream: int, time: str, schema: pa.Schema, tuples: Tuples, view: StreamView) -> None:
        self.tuples, self.view, self.rows = tuples, view, 0
        self._name, self._kind = f"the {STREAM_NAMES[stream]} side's time column {time}", schema.field(time).type

    def time_us(self, to: object) -> int:
        """A value of the time column in microseconds. UserError when it is none."""
        import pyarrow as pa

        try:
            value = pa.array([to])
            mixed = {zoned(value.type), zoned(self._kind)} == {True, False}
            if mixed and self.view.time.zone is None:
                what = f"{self._name}, which is {self._kind}"
                raise UserError(f"advance: {to} and {what}: one has a time zone, the other has none")
            if not mixed:  # else either means an instant
                value = value.cast(self._kind) if isinstance(to, (pa.Scalar, np.generic)) else pa.array([to], self._kind)
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            raise UserError(f"advance: {to!r} is no value of {self._name}, which is {self._kind}") from None
        if value.null_count:
            raise UserError("advance: to is null; give a time")
        try:
            return int(self.tuples.times(value, 0)[0][0])
        except UserError as error:
            why = str(error).partition(f"time column {self.view.time.name} ")[2]
            raise UserError(f"advance: {to!r} {why}") from None


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
