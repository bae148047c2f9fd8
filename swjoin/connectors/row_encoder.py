"""Columns of a stream as tuples: keys, times, ids and payload out of Arrow batches.

What: `settle_types` (of columns that no row gives a type), `describe_streams` (which columns a join needs of both sides, and
how each comes back from a pair), and `TupleEncoder`, which makes a `SourceBatch` of an Arrow batch.
Why: files and tables in memory mean the same by the same columns, and are refused for the same reasons.
Stays out: where batches come from (`connectors.files.source`, `api`), judging null keys and late rows
(`cluster.master.intake`).
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.run import QueryConfig, StreamConfig
from swjoin.connectors.times import TimeColumn, check_times, times_us, zoned
from swjoin.core.arrow_views import booleans_of, integers_of
from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, STREAM_NAMES, U64, Bool, SourceBatch
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import RowCodec, StreamCodec, returned
from swjoin.expressions.compiler import resolve
from swjoin.expressions.parser import columns_of, parse_where

if TYPE_CHECKING:
    import pyarrow as pa


class TupleEncoder:
    """Makes tuples of one stream's batches. place: where a row is, by its position, for error lines."""

    def __init__(self, config: StreamConfig, view: StreamColumns, keys: KeyEncoder, place: Callable[[int], str]) -> None:
        self._config = config
        self._codec = view.codec
        self._time = view.time
        self._keys = keys
        self._place = place

    def of(self, batch: pa.RecordBatch, first: int) -> SourceBatch:
        """n rows, the first of them at this position. UserError when a time or an id cannot be used."""
        key, key_valid = self._keys.encode([batch.column(name) for name in self._config.key])
        ts, ts_valid = self.times(batch.column(self._config.time), first)
        rows = None if self._codec.rows is None else self._codec.rows.encode(batch)
        return SourceBatch(key, ts, self.ids(batch, first), key_valid, ts_valid, rows)

    def ids(self, batch: pa.RecordBatch, first: int) -> U64:
        """Ids of the rows. UserError when one is null, negative, or the id of a missing side."""
        import pyarrow as pa

        if self._config.id is None:
            return np.arange(first, first + batch.num_rows, dtype=np.uint64)
        column = batch.column(self._config.id)
        if column.null_count:
            row = int(np.flatnonzero(booleans_of(column.is_null()))[0])
            raise UserError(f"{self._place(first + row)}: id column {self._config.id} is null; every row needs an id")
        values = integers_of(column.cast(pa.uint64() if column.type == pa.uint64() else pa.int64()))
        wrong = values == MISSING_ID if values.dtype == np.uint64 else values < 0
        if (
            self._config.kafka is not None and wrong.any()
        ):  # rows of nulls stand for unusable messages (`connectors.kafka.decoder`)
            others = [column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name != self._config.id]
            wrong = wrong & np.any([booleans_of(other.is_valid()) for other in others], axis=0)
        if wrong.any():
            row = int(np.flatnonzero(wrong)[0])
            raise UserError(f"{self._place(first + row)}: id column {self._config.id} is {values[row]}; ids are 0 to 2^64 - 2")
        return values.astype(np.uint64)

    def times(self, column: pa.Array, first: int) -> tuple[I64, Bool | None]:
        """Microseconds, and which rows have a time. UserError as of `connectors.times.times_us`."""
        return times_us(column, self._time, lambda row: self._place(first + row))


@dataclass(frozen=True)
class StreamColumns:
    """columns: what has to be read of a stream. codec: how its columns come back from a pair. time: its time column."""

    codec: StreamCodec
    columns: list[str]
    time: TimeColumn


def _origin(config: StreamConfig) -> str:
    """Where a stream comes from, in complaints."""
    return config.path or config.watch or ("stream" if config.live else "table")


def _find(schema: pa.Schema, name: str, side: str, path: str, role: str) -> pa.DataType:
    """Type of a column. UserError, with the nearest name, when it is missing or ambiguous."""
    count = schema.names.count(name)
    if count == 1:
        return schema.field(name).type
    if count > 1:
        raise UserError(f"{side} {path}: column {name} is there {count} times; rename one")
    name = name[:200]
    near = difflib.get_close_matches(name, schema.names, 1, 0.5)
    hint = f"did you mean {near[0]}?" if near else f"its columns are {', '.join(schema.names)[:1000]}"
    raise UserError(f"{side} {path}: {role} column {name} is missing; {hint}")


def settle_types(
    configs: Sequence[StreamConfig], schemas: Sequence[pa.Schema], whole: Sequence[bool]
) -> tuple[pa.Schema, pa.Schema]:
    """Both schemas with types for columns of the type null, in which nothing is: keys have the other side's, times one for
    which the side's own unit or zone is right, or the other side's. whole: of this side, which CSV files are, the columns that
    are no keys, times or ids become strings, too."""
    import pyarrow as pa
    import pyarrow.types as t

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
    """The type of the same values that CSV files are read as."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_dictionary(kind):
        return _plain(kind.value_type)
    return pa.string() if t.is_string_view(kind) else pa.binary() if t.is_binary_view(kind) else kind


def _time_without_values(own: StreamConfig, other: StreamConfig, theirs: pa.DataType | None) -> pa.DataType:
    """The type of a time column in which nothing is. theirs: of the other side's, None: nothing is in that, either."""
    import pyarrow as pa
    import pyarrow.types as t

    numbers, local = own.time_unit is not None, own.assume_timezone is not None
    if numbers and local:  # given for both sides, of which one has numbers
        numbers = theirs is not None and not t.is_integer(theirs)
    if numbers:
        return theirs if theirs is not None and t.is_integer(theirs) else pa.int64()
    clock = theirs is not None and zoned(theirs) is False
    if local:
        return theirs if clock else pa.timestamp("us")
    if other.assume_timezone is not None and (clock or theirs is None):
        return pa.timestamp("us", "UTC")
    return theirs if theirs is not None and zoned(theirs) is not None else pa.timestamp("us")


def _stream_view(
    config: StreamConfig,
    schema: pa.Schema,
    time: TimeColumn,
    *,
    carry: bool,
    packed: bool,
    native: bool,
    own_key: bool,
    time_is_ts: bool,
    judged: Collection[str],
) -> StreamColumns:
    """Which columns are read, and how each comes back from a pair.

    own_key: a row may come out without its partner's key. judged: columns that a predicate needs.
    """
    import pyarrow as pa

    needed = [*config.key, config.time, *([config.id] if config.id else [])]
    unit = config.time_unit if pa.types.is_integer(schema.field(config.time).type) else None
    if not carry and not judged:
        return StreamColumns(StreamCodec((), config.key, None, time_unit=unit), list(dict.fromkeys(needed)), time)
    chosen = schema.names if config.columns is None else [n for n in schema.names if n in {*config.columns, *needed}]
    shown = chosen if carry else []
    wanted = [name for name in schema.names if name in shown or name in judged]
    columns: list[tuple[str, Any, str]] = []
    for name in wanted:
        kind = returned(schema.field(name).type) if packed else schema.field(name).type
        same_time = pa.types.is_timestamp(kind) and kind.unit == "us" and (config.assume_timezone is None or zoned(kind))
        lossless = (kind == pa.int64() and config.time_unit == "us") or same_time
        if name in config.key:
            if native:
                columns.append((name, kind, "key"))
            elif own_key or name in judged:
                columns.append((name, kind, "row"))
        elif name == config.time and lossless and time_is_ts:
            columns.append((name, kind, "ts"))
        else:
            columns.append((name, kind, "row"))
    in_rows = [(name, kind) for name, kind, origin in columns if origin == "row" and (packed or name in judged)]
    rows = RowCodec(pa.schema(in_rows)) if packed or judged else None
    hidden = tuple(name for name in wanted if name not in shown)
    codec = StreamCodec(tuple(columns), config.key, rows, hidden, unit)
    return StreamColumns(codec, list(dict.fromkeys([*needed, *wanted])), time)


def _check_chosen(left: tuple[StreamConfig, pa.Schema], right: tuple[StreamConfig, pa.Schema]) -> None:
    """UserError when a chosen column does not exist. One that is chosen of both sides may be on one of them alone."""
    both = set(left[0].columns or ()) & set(right[0].columns or ())
    for side, (config, schema) in zip(STREAM_NAMES, (left, right), strict=True):
        for name in config.columns or ():
            if name not in both:
                _find(schema, name, side, _origin(config), "chosen")
            elif name not in left[1].names and name not in right[1].names:
                there = list(dict.fromkeys([*left[1].names, *right[1].names]))
                near = difflib.get_close_matches(name[:200], there, 1, 0.5)
                hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(there)[:1000]}"
                raise UserError(f"columns: {name[:200]} is on neither side; {hint}")


def _judged(query: QueryConfig | None, *streams: tuple[StreamConfig, pa.Schema]) -> tuple[set[str], set[str]]:
    """The columns of both sides that a predicate needs. UserError when there is no such column."""
    found: tuple[set[str], set[str]] = (set(), set())
    if query is not None and query.where is not None:
        (left, left_schema), (right, right_schema) = streams
        for name in columns_of(parse_where(query.where)):
            side, column = resolve(name, (left_schema.names, right_schema.names), (left.key, right.key))
            found[side].add(column)
    return found


def describe_streams(
    left: tuple[StreamConfig, pa.Schema],
    right: tuple[StreamConfig, pa.Schema],
    *,
    carry: bool,
    packed: bool,
    time_is_ts: bool = True,
    query: QueryConfig | None = None,
) -> tuple[tuple[StreamColumns, StreamColumns], KeyEncoder]:
    """Both streams of a join, checked by their schemas. UserError says which side and column is wrong.

    carry: all other columns too, as far as rows of this kind of join hold them, else keys, times and ids alone. packed: they
    travel as payload rows, so their types must be such as can be packed; what a predicate needs does so in any case.
    time_is_ts: result times are the time columns (not arrival stamps). query: None: an inner join without a predicate.
    """
    import pyarrow.types as t

    keys, times = [], []
    for side, (config, schema) in zip(STREAM_NAMES, (left, right), strict=True):
        where = _origin(config)
        keys.append([(name, _find(schema, name, side, where, "key")) for name in config.key])
        kind = _find(schema, config.time, side, where, "time")
        unit, zone = config.time_unit, config.assume_timezone
        times.append(TimeColumn(side, f"{side} {where}", config.time, kind, unit, zone))
        if config.id is not None and not t.is_integer(_find(schema, config.id, side, where, "id")):
            raise UserError(f"{side} {where}: id column {config.id} must hold integers")
        if carry and len(set(schema.names)) < len(schema.names):
            twice = next(n for n in schema.names if schema.names.count(n) > 1)
            raise UserError(f"{side} {where}: column {twice} is there {schema.names.count(twice)} times; rename one")
    _check_chosen(left, right)
    check_times(times[LEFT], times[RIGHT])
    encoder, judged = KeyEncoder(keys[0], keys[1]), _judged(query, left, right)
    join_kind = JOIN_KINDS["inner"] if query is None else query.kind
    views = []
    for index, (config, schema) in enumerate((left, right)):
        try:
            view = _stream_view(
                config,
                schema,
                times[index],
                carry=carry and (index == LEFT or not join_kind.one_sided),
                packed=packed,
                native=encoder.native,
                own_key=index == LEFT or join_kind.unmatched[index],
                time_is_ts=time_is_ts,
                judged=judged[index],
            )
        except SwjoinError as error:
            raise error.prefixed(f"{STREAM_NAMES[index]} {_origin(config)}") from None
        views.append(view)
    return (views[0], views[1]), encoder
