"""Encoding of Arrow batches as tuples: keys, times, ids and payload.

What: `settle_types`, types for columns without values; `describe_streams`, the columns that a join needs of both sides and how
a result row gets them back; `describe_input`, those of an input of a plan; `TupleEncoder` and `ColumnsEncoder`, Arrow batch ->
`SourceBatch`.
Why: files, streams and tables in memory share one interpretation of columns, and one set of checks.
Stays out: the origin of batches (`connectors.files.source`, `api`), null keys and late rows (`cluster.gateway.intake`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.run import QueryConfig, StreamConfig
from swjoin.config.sections import check_key
from swjoin.connectors.times import TimeColumn, check_times, times_us, zoned
from swjoin.core.arrow_views import booleans_of, integers_of
from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, STREAM_NAMES, U64, Bool, SourceBatch
from swjoin.core.columns import Columns, type_named
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import RowCodec, StreamCodec, as_stored, returned, storage
from swjoin.expressions.compiler import resolve
from swjoin.expressions.parser import columns_of, parse_where

if TYPE_CHECKING:
    import pyarrow as pa


class RowEncoder:
    """Times and ids of one stream's batches. describe_row: position of a row -> its description in error messages."""

    def __init__(self, config: StreamConfig, time: TimeColumn, describe_row: Callable[[int], str]) -> None:
        self._config = config
        self._time = time
        self._describe_row = describe_row

    def of(self, batch: pa.RecordBatch, first: int | I64) -> SourceBatch:
        """n rows; `first` is the position of the first one, or the positions of all. UserError when a time or an id cannot be
        used."""
        at = first if isinstance(first, np.ndarray) else np.arange(first, first + batch.num_rows, dtype=np.int64)
        return self._encode(batch, at)

    def _encode(self, batch: pa.RecordBatch, at: I64) -> SourceBatch:
        """The rows at these positions, int64 (n,)."""
        raise NotImplementedError

    def ids(self, batch: pa.RecordBatch, at: I64) -> U64:
        """Ids of the rows at these positions. UserError when one is null, negative, or reserved for a missing side."""
        import pyarrow as pa

        if self._config.id is None:
            return at.view(np.uint64)
        column = batch.column(self._config.id)
        if column.null_count:
            row = int(np.flatnonzero(booleans_of(column.is_null()))[0])
            raise UserError(f"{self._describe_row(int(at[row]))}: id column {self._config.id} is null; every row needs an id")
        values = integers_of(column.cast(pa.uint64() if column.type == pa.uint64() else pa.int64()))
        wrong = values == MISSING_ID if values.dtype == np.uint64 else values < 0
        if self._config.kafka is not None and wrong.any():  # rows of nulls stand for messages (`connectors.kafka.decoder`)
            others = [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != self._config.id]
            wrong = wrong & np.any([booleans_of(other.is_valid()) for other in others], axis=0)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UserError(
                f"{self._describe_row(int(at[row]))}: id column {self._config.id} is {values[row]}; ids are 0 to 2^64 - 2"
            )
        return values.astype(np.uint64)

    def times(self, column: pa.Array, at: I64) -> tuple[I64, Bool | None]:
        """Microseconds, and which rows have a time. UserError as of `connectors.times.times_us`."""
        return times_us(column, self._time, lambda row: self._describe_row(int(at[row])))


class TupleEncoder(RowEncoder):
    """Encodes batches of one side of a join: with keys and packed payload rows."""

    def __init__(self, config: StreamConfig, view: StreamColumns, keys: KeyEncoder, describe_row: Callable[[int], str]) -> None:
        super().__init__(config, view.time, describe_row)
        self._codec = view.codec
        self._keys = keys

    def _encode(self, batch: pa.RecordBatch, at: I64) -> SourceBatch:
        keys, columns = [batch.column(name) for name in self._config.key], None
        if self._keys.shared:
            key, key_valid = self._keys.encode(keys)
        else:
            key, key_valid, columns = self._keys.to_send(keys)
        ts, ts_valid = self.times(batch.column(self._config.time), at)
        rows = None if self._codec.rows is None else self._codec.rows.encode(batch)
        return SourceBatch(key, ts, self.ids(batch, at), key_valid, ts_valid, rows, columns)


class ColumnsEncoder(RowEncoder):
    """Encodes batches of an input of a plan: with the columns that travel, and all keys zero."""

    def __init__(self, config: StreamConfig, view: StreamColumns, describe_row: Callable[[int], str]) -> None:
        super().__init__(config, view.time, describe_row)
        assert view.sent is not None, "an input of a plan, by describe_input"
        self._sent = view.sent

    def _encode(self, batch: pa.RecordBatch, at: I64) -> SourceBatch:
        import pyarrow as pa

        ts, ts_valid = self.times(batch.column(self._config.time), at)
        sent = batch.select(self._sent.names)
        if self._sent.names:
            arrays = [as_stored(column, field.type) for column, field in zip(sent.columns, self._sent, strict=True)]
            sent = pa.RecordBatch.from_arrays(arrays, schema=self._sent)
        zero = np.zeros(len(at), np.int64)
        return SourceBatch(zero, ts, self.ids(batch, at), None, ts_valid, columns=Columns(sent) if sent.schema.names else None)


@dataclass(frozen=True)
class StreamColumns:
    """columns: names of the columns to read. codec: how a result row gets them back. time: the time column. sent: columns that
    travel, with their types there; None: those of a join, which are packed."""

    codec: StreamCodec
    columns: list[str]
    time: TimeColumn
    sent: pa.Schema | None = None


def _origin(config: StreamConfig) -> str:
    """The stream's origin in error messages."""
    kind = "stream" if config.live else "generator" if config.generate else "table"
    return ", ".join(config.paths) or config.watch or kind


def _find(schema: pa.Schema, name: str, where: str, role: str) -> pa.DataType:
    """Type of a column. UserError, with the nearest name, when it is missing or ambiguous."""
    count = schema.names.count(name)
    if count == 1:
        return schema.field(name).type
    if count > 1:
        raise UserError(f"{where}: column {name} is there {count} times; rename one")
    name = name[:200]
    near = difflib.get_close_matches(name, schema.names, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"its columns are {', '.join(schema.names)[:1000] or 'none'}"
    raise UserError(f"{where}: {role}{' ' if role else ''}column {name} is missing; {hint}")


def settle_types(
    configs: Sequence[StreamConfig], schemas: Sequence[pa.Schema], whole: Sequence[bool]
) -> tuple[pa.Schema, pa.Schema]:
    """Both schemas with types for columns of the type null, which have no values: a key gets the other side's type, a time the
    type that fits its unit or zone, or the other side's type. whole: per side, whether the remaining columns become strings, as
    in CSV files."""
    import pyarrow as pa
    import pyarrow.types as t

    if not any(t.is_null(kind) for schema in schemas for kind in schema.types):
        return schemas[LEFT], schemas[RIGHT]
    settled = list(schemas)
    for side, (own, other) in enumerate((configs, configs[::-1])):
        theirs = {f.name: f.type for f in settled[1 - side] if not t.is_null(f.type)}
        partners = dict(zip(own.key, other.key, strict=False))
        fields = []
        for field in settled[side]:
            kind = field.type
            if not t.is_null(kind):
                pass
            elif field.name == own.time:
                kind = _time_without_values(own, other, theirs.get(other.time))
            elif field.name == own.id:
                kind = pa.int64()
            elif field.name in own.key:
                kind = theirs.get(partners.get(field.name, ""), pa.string())
                kind = _plain(kind) if whole[side] else kind
            elif whole[side]:
                kind = pa.string()
            fields.append(field.with_type(kind))
        settled[side] = pa.schema(fields, settled[side].metadata)
    return settled[LEFT], settled[RIGHT]


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type that CSV files with the same values would have."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.string() if t.is_string_view(kind) else pa.binary() if t.is_binary_view(kind) else kind


def _time_without_values(own: StreamConfig, other: StreamConfig, theirs: pa.DataType | None) -> pa.DataType:
    """The type of a time column without values. theirs: type of the other side's; None: that one has no values either."""
    import pyarrow as pa
    import pyarrow.types as t

    numbers, local = own.time_unit is not None, own.assume_timezone is not None
    if numbers and local:  # options for both sides, one of which has integers
        numbers = theirs is not None and not t.is_integer(theirs)
    if numbers:
        return theirs if theirs is not None and t.is_integer(theirs) else pa.int64()
    clock = theirs is not None and zoned(theirs) is False
    if local:
        return theirs if clock else pa.timestamp("us")
    if other.assume_timezone is not None and (clock or theirs is None):
        return pa.timestamp("us", "UTC")
    return theirs if theirs is not None and zoned(theirs) is not None else pa.timestamp("us")


@dataclass(frozen=True)
class _ColumnUse:
    """What a join does with one side's columns. payload: whether result rows hold them. packed: whether they travel as payload
    rows. native: whether the key is its own code. own_key: whether a row may come out without its partner's key. time_is_ts:
    whether result times are the time column. predicate: columns that a predicate reads."""

    payload: bool
    packed: bool
    native: bool
    own_key: bool
    time_is_ts: bool
    predicate: Collection[str]

    def origin(self, config: StreamConfig, name: str, kind: pa.DataType) -> str | None:
        """How a result row gets a column back: `key`, `ts` or `row`; None: from the other side's key."""
        import pyarrow as pa

        if name in config.key:
            return "key" if self.native else "row" if self.own_key or name in self.predicate else None
        same_time = pa.types.is_timestamp(kind) and kind.unit == "us" and (config.assume_timezone is None or zoned(kind))
        lossless = (kind == pa.int64() and config.time_unit == "us") or same_time
        return "ts" if name == config.time and lossless and self.time_is_ts else "row"


def _stream_columns(config: StreamConfig, schema: pa.Schema, time: TimeColumn, use: _ColumnUse) -> StreamColumns:
    import pyarrow as pa

    needed = [*config.key, config.time, *([config.id] if config.id else [])]
    unit = config.time_unit if pa.types.is_integer(schema.field(config.time).type) else None
    if not use.payload and not use.predicate:
        return StreamColumns(StreamCodec((), config.key, None, time_unit=unit), list(dict.fromkeys(needed)), time)
    chosen = schema.names if config.columns is None else [n for n in schema.names if n in {*config.columns, *needed}]
    shown = chosen if use.payload else []
    wanted = [name for name in schema.names if name in shown or name in use.predicate]
    columns: list[tuple[str, Any, str]] = []
    for name in wanted:
        kind = returned(schema.field(name).type) if use.packed else schema.field(name).type
        origin = use.origin(config, name, kind)
        if origin is not None:
            columns.append((name, kind, origin))
    in_rows = [(name, kind) for name, kind, origin in columns if origin == "row" and (use.packed or name in use.predicate)]
    rows = RowCodec(pa.schema(in_rows)) if use.packed or use.predicate else None
    hidden = tuple(name for name in wanted if name not in shown)
    codec = StreamCodec(tuple(columns), config.key, rows, hidden, unit)
    return StreamColumns(codec, list(dict.fromkeys([*needed, *wanted])), time)


def on_neither_side(name: str, columns: Iterable[str]) -> UserError:
    """The error of a chosen column. columns: of both sides."""
    there = list(dict.fromkeys(columns))
    near = difflib.get_close_matches(name[:200], there, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)[:1000]}"
    return UserError(f"columns: {name[:200]} is on neither side; {hint}")


def _check_chosen(left: tuple[StreamConfig, pa.Schema], right: tuple[StreamConfig, pa.Schema]) -> None:
    """UserError when a chosen column does not exist. A column chosen for both sides need exist on one only."""
    both = set(left[0].columns or ()) & set(right[0].columns or ())
    for side, (config, schema) in zip(STREAM_NAMES, (left, right), strict=True):
        for name in config.columns or ():
            if name not in both:
                _find(schema, name, f"{side} {_origin(config)}", "chosen")
            elif name not in left[1].names and name not in right[1].names:
                raise on_neither_side(name, [*left[1].names, *right[1].names])


def _predicate_columns(query: QueryConfig | None, *streams: tuple[StreamConfig, pa.Schema]) -> tuple[set[str], set[str]]:
    """The columns of both sides that a predicate reads. UserError when one does not exist."""
    found: tuple[set[str], set[str]] = (set(), set())
    if query is not None and query.where is not None:
        (left, left_schema), (right, right_schema) = streams
        for name in columns_of(parse_where(query.where)):
            side, column = resolve(name, (left_schema.names, right_schema.names), (left.key, right.key))
            found[side].add(column)
    return found


def _time_column(config: StreamConfig, schema: pa.Schema, side: str) -> TimeColumn:
    where = f"{side} {_origin(config)}"
    kind = _find(schema, config.time, where, "time")
    return TimeColumn(side, where, config.time, kind, config.time_unit, config.assume_timezone)


def _check_id(config: StreamConfig, schema: pa.Schema, where: str) -> None:
    import pyarrow.types as t

    if config.id is not None and not t.is_integer(_find(schema, config.id, where, "id")):
        raise UserError(f"{where}: id column {config.id} must hold integers")


def describe_streams(
    left: tuple[StreamConfig, pa.Schema],
    right: tuple[StreamConfig, pa.Schema],
    *,
    carry: bool,
    packed: bool,
    time_is_ts: bool = True,
    query: QueryConfig | None = None,
) -> tuple[tuple[StreamColumns, StreamColumns], KeyEncoder]:
    """Both streams of a join, checked by their schemas. UserError names the side and the column.

    carry: whether result rows hold all columns, as far as the kind of join has them, or keys, times and ids only. packed:
    whether columns travel as payload rows, which restricts their types; columns of a predicate always do. time_is_ts: whether
    result times are the time columns (not arrival times). query: None: an inner join without a predicate.
    """
    keys, times = [], []
    for side, (config, schema) in zip(STREAM_NAMES, (left, right), strict=True):
        where = f"{side} {_origin(config)}"
        check_key(config.key)
        keys.append([(name, _find(schema, name, where, "key")) for name in config.key])
        times.append(_time_column(config, schema, side))
        _check_id(config, schema, where)
        if carry and len(set(schema.names)) < len(schema.names):
            twice = next(n for n in schema.names if schema.names.count(n) > 1)
            raise UserError(f"{where}: column {twice} is there {schema.names.count(twice)} times; rename one")
    _check_chosen(left, right)
    check_times(times[LEFT], times[RIGHT])
    encoder, predicate = KeyEncoder(keys[0], keys[1]), _predicate_columns(query, left, right)
    join_kind = JOIN_KINDS["inner"] if query is None else query.kind
    views = []
    for index, (config, schema) in enumerate((left, right)):
        try:
            payload = carry and (index == LEFT or not join_kind.one_sided)
            own_key = index == LEFT or join_kind.unmatched[index]
            use = _ColumnUse(payload, packed, encoder.native, own_key, time_is_ts, predicate[index])
            view = _stream_columns(config, schema, times[index], use)
        except SwjoinError as error:
            raise error.prefixed(f"{STREAM_NAMES[index]} {_origin(config)}") from None
        views.append(view)
    return (views[0], views[1]), encoder


# ---------------------------------------------------------------- inputs of plans


def settle_input(
    config: StreamConfig, schema: pa.Schema, strings: bool, name: str, expected: Sequence[tuple[str, str]] = ()
) -> pa.Schema:
    """The schema of an input of a plan with types for columns of the type null, which have no values: the expected ones, or as
    `settle_types` does. strings: whether the remaining columns become strings. name: of the input in error messages. expected:
    names and types, as text, of columns that the input must have. UserError when one is missing or has another type."""
    import pyarrow as pa

    where = f"{name} {_origin(config)}"
    for column, text in expected:
        kind = _find(schema, column, where, "")
        if pa.types.is_null(kind):
            field = pa.field(column, type_named(text))
            schema = schema.set(schema.names.index(column), field)
        elif str(kind) != text:
            raise UserError(f"{where}: column {column} is {kind}, the plan has {text}")
    return settle_types((config, config), (schema, schema), (strings, strings))[0]


def describe_input(config: StreamConfig, schema: pa.Schema, name: str, columns: Sequence[str]) -> StreamColumns:
    """An input of a plan, checked by its schema. columns: names of those that travel. UserError names the input and the column.

    `StreamConfig.key` and `StreamConfig.columns` are not used: the plan has both.
    """
    import pyarrow as pa

    where = f"{name} {_origin(config)}"
    time = _time_column(config, schema, name)
    check_times(time, time)
    _check_id(config, schema, where)
    sent = []
    for column in dict.fromkeys(columns):
        kind = storage(_find(schema, column, where, ""))
        try:
            type_named(str(kind))
        except UserError as error:
            raise error.prefixed(f"{where}: column {column}") from None
        sent.append((column, kind))
    read = dict.fromkeys([config.time, *([config.id] if config.id else []), *columns])
    return StreamColumns(StreamCodec((), (), None), list(read), time, pa.schema(sent))
