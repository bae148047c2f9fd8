"""Streams from files: Parquet, CSV, Arrow IPC; one file or a directory; read batch by batch, never whole.

What: `open_sources(left, right) -> (FileSource, FileSource, KeyEncoder)`.
Why: the user's own data, with every way it can be wrong told in one line that names the file.
Stays out: judging null keys and late rows (`cluster.intake`), output columns (`sinks.plan`).

A background thread reads up to two batches ahead; Arrow releases the GIL while it decodes.
"""

from __future__ import annotations

import bisect
import difflib
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.batch import I64, LEFT, U64, Bool, RowLayout, SourceBatch
from swjoin.config import QueryConfig, StreamConfig
from swjoin.errors import RunFailed, SwjoinError, UserError
from swjoin.oracle import JOIN_KINDS
from swjoin.sources.codec import RowCodec, StreamCodec
from swjoin.sources.formats import file_format, list_files, read_batches, read_schema, refusing, row_count
from swjoin.sources.keys import Dictionary, KeyEncoder
from swjoin.sources.predicate import resolve
from swjoin.sources.read_ahead import ReadAhead
from swjoin.sources.views import booleans_of, integers_of
from swjoin.units import MAX_SPAN_US
from swjoin.where import columns_of, parse_where

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65_536
_UNIT_US = {"s": 1_000_000, "ms": 1_000, "us": 1}


class FileSource:
    """One stream from files. `codec` says how its columns come back; `read` yields batches with ids by position."""

    def __init__(
        self,
        config: StreamConfig,
        files: list[Path],
        schema: pa.Schema,
        columns: list[str],
        codec: StreamCodec,
        keys: KeyEncoder,
    ) -> None:
        self.config = config
        self.codec = codec
        self.files = files
        self.rows_total = _rows_total(files)
        self._schema = schema
        self._columns = columns
        self._keys = keys
        self._starts: list[int] = []
        self._rows = 0
        self._skipped_files = self._skip = 0  # files, and rows of the first one after them, that are not read
        self._ahead: ReadAhead | None = None

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    def read(self) -> SourceBatch | None:
        if self._ahead is None:
            self._ahead = ReadAhead(self._batches)
        while (item := self._ahead.next()) is not None:
            index, batch = item
            while len(self._starts) <= index:
                self._starts.append(self._rows)
            if batch.num_rows:
                with refusing(self.files[index]):
                    return self._convert(batch)
        return None

    def ready(self, patience_s: float) -> bool:
        if self._ahead is None:
            self._ahead = ReadAhead(self._batches)
        return self._ahead.ready(patience_s)

    def seek(self, row: int) -> None:
        """Parquet is not read up to there but for what shares a row group with the row; other formats are."""
        self.close()
        self._ahead, self._rows, self._starts = None, 0, []
        counts = [row_count(path) for path in self.files] if file_format(self.files[0]) == "Parquet" else []
        self._skipped_files, self._skip = 0, 0
        for count in counts:
            if self._rows + count > row:
                break
            self._starts.append(self._rows)
            self._rows += count
            self._skipped_files += 1
        if counts and self._skipped_files < len(counts):
            self._starts.append(self._rows)
            self._skip = row - self._rows
            self._rows = row
        elif self._rows < row and not counts:
            while self._rows < row:
                if self.read() is None:
                    break
        if self._rows != row:
            raise RunFailed(f"{self.files[0].parent}: row {row} is not where it was; the input has changed")

    @property
    def dictionary(self) -> Dictionary | None:
        return None if self._keys.native else self._keys.dictionary

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch]]:
        for index, path in enumerate(self.files[self._skipped_files :], self._skipped_files):
            if index:
                self._check_schema(path)
            skip = self._skip if index == self._skipped_files else 0
            for batch in read_batches(path, self._schema, self._columns, BATCH_ROWS, skip):
                for start in range(0, max(1, batch.num_rows), BATCH_ROWS):
                    yield index, batch.slice(start, BATCH_ROWS)

    def _check_schema(self, path: Path) -> None:
        schema = read_schema(path)
        for name in self._columns:
            count = schema.names.count(name)
            if count != 1:
                there = "missing" if not count else f"there {count} times"
                raise UserError(f"{path}: column {name} is {there}, {self.files[0].name} has it once")
            mine, theirs = self._schema.field(name).type, schema.field(name).type
            if mine != theirs and file_format(path) != "CSV":
                raise UserError(f"{path}: column {name} is {theirs}, in {self.files[0].name} it is {mine}")

    def _convert(self, batch: pa.RecordBatch) -> SourceBatch:
        first = self._rows
        self._rows += batch.num_rows
        key, key_valid = self._keys.encode([batch.column(name) for name in self.config.key])
        ts, ts_valid = self._times(batch.column(self.config.time), first)
        rows = None if self.codec.rows is None else self.codec.rows.encode(batch)
        return SourceBatch(key, ts, self._ids(batch, first), key_valid, ts_valid, rows)

    def _ids(self, batch: pa.RecordBatch, first: int) -> U64:
        import pyarrow as pa

        if self.config.id is None:
            return np.arange(first, first + batch.num_rows, dtype=np.uint64)
        column = batch.column(self.config.id)
        if column.null_count:
            row = int(np.flatnonzero(booleans_of(column.is_null()))[0])
            raise UserError(f"{self._place(first + row)}: id column {self.config.id} is null; every row needs an id")
        return integers_of(column.cast(pa.uint64() if column.type == pa.uint64() else pa.int64())).astype(np.uint64)

    def _times(self, column: pa.Array, first: int) -> tuple[I64, Bool | None]:
        """Microseconds, and which rows have a time. UserError when a time is finer than microseconds or out of range."""
        import pyarrow as pa

        valid = booleans_of(column.is_valid()) if column.null_count else None
        kind = column.type
        if pa.types.is_timestamp(kind):
            unit = kind.unit
            column = column.cast(pa.int64())
        elif pa.types.is_date32(kind):
            column, unit = column.cast(pa.timestamp("s")).cast(pa.int64()), "s"
        elif pa.types.is_date64(kind):
            column, unit = column.cast(pa.int64()), "ms"
        else:
            unit = self.config.time_unit
        if column.null_count:
            column = column.fill_null(0)
        values = integers_of(column)
        if values.dtype == np.uint64 and len(values) and int(values.max()) > MAX_SPAN_US:
            values = np.minimum(values, MAX_SPAN_US)
        values = values.astype(np.int64, copy=False)
        if unit == "ns":
            self._refuse_first(
                values % 1000 != 0, valid, first, "is finer than one microsecond; round the column to microseconds"
            )
            values = values // 1000
        scale = _UNIT_US.get(str(unit), 1)
        limit = MAX_SPAN_US // scale
        self._refuse_first((values >= limit) | (values <= -limit), valid, first, "is out of range; check --time-unit")
        return (values if scale == 1 else values * scale), valid

    def _refuse_first(self, wrong: Bool, valid: Bool | None, first: int, what: str) -> None:
        wrong = wrong if valid is None else wrong & valid
        if wrong.any():
            raise UserError(f"{self._place(first + int(np.flatnonzero(wrong)[0]))}: time column {self.config.time} {what}")

    def locate(self, row_id: int) -> str:
        return f"{self.files[0].parent}: row with id {row_id}" if self.config.id is not None else self._place(row_id)

    def _place(self, position: int) -> str:
        index = max(0, bisect.bisect_right(self._starts, position) - 1)
        return f"{self.files[index]}, row {position - self._starts[index]} (counting from 0)"

    def close(self) -> None:
        if self._ahead is not None:
            self._ahead.close()


def _rows_total(files: list[Path]) -> int | None:
    if file_format(files[0]) != "Parquet":
        return None
    try:
        return sum(row_count(path) for path in files)
    except UserError:
        return None  # told with its place when the file is read


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


def _check_time(config: StreamConfig, kind: pa.DataType, side: str) -> None:
    import pyarrow.types as t

    if t.is_timestamp(kind) or t.is_date(kind):
        return
    if not t.is_integer(kind):
        raise UserError(
            f"{side} {config.path}: time column {config.time} is {kind}; it must be a timestamp, a date or an integer"
        )
    if config.time_unit is None:
        raise UserError(
            f"{side} {config.path}: time column {config.time} holds integers; say which unit with --time-unit s|ms|us|ns"
        )


def _stream_codec(
    config: StreamConfig,
    schema: pa.Schema,
    *,
    carry: bool,
    native: bool,
    own_key: bool,
    time_is_ts: bool,
    judged: Collection[str],
) -> tuple[StreamCodec, list[str]]:
    """Which columns are read, and how each comes back from a pair.

    own_key: a row may come out without its partner's key. judged: columns that a predicate needs.
    """
    import pyarrow as pa

    needed = [*config.key, config.time, *([config.id] if config.id else [])]
    if not carry and not judged:
        return StreamCodec((), config.key, None), list(dict.fromkeys(needed))
    chosen = schema.names if config.columns is None else [n for n in schema.names if n in {*config.columns, *needed}]
    shown = chosen if carry else []
    wanted = [name for name in schema.names if name in shown or name in judged]
    columns: list[tuple[str, Any, str]] = []
    for name in wanted:
        kind = schema.field(name).type
        lossless = (kind == pa.int64() and config.time_unit == "us") or (pa.types.is_timestamp(kind) and kind.unit == "us")
        if name in config.key:
            if native:
                columns.append((name, kind, "key"))
            elif own_key or name in judged:
                columns.append((name, kind, "row"))
        elif name == config.time and lossless and time_is_ts:
            columns.append((name, kind, "ts"))
        else:
            columns.append((name, kind, "row"))
    rows = RowCodec(pa.schema([(name, kind) for name, kind, origin in columns if origin == "row"]))
    hidden = tuple(name for name in wanted if name not in shown)
    return StreamCodec(tuple(columns), config.key, rows, hidden), list(dict.fromkeys([*needed, *wanted]))


def _judged(where: str | None, opened: Sequence[tuple[StreamConfig, Any, pa.Schema, Any]]) -> tuple[set[str], set[str]]:
    """The columns of both sides that a predicate needs. UserError when there is no such column."""
    found: tuple[set[str], set[str]] = (set(), set())
    if where is not None:
        (left, _, left_schema, _), (right, _, right_schema, _) = opened
        for name in columns_of(parse_where(where)):
            side, column = resolve(name, (left_schema.names, right_schema.names), (left.key, right.key))
            found[side].add(column)
    return found


def open_sources(
    left: StreamConfig, right: StreamConfig, *, carry_payload: bool, time_is_ts: bool = True, query: QueryConfig | None = None
) -> tuple[FileSource, FileSource, KeyEncoder]:
    """Both streams of a join, checked before any row is read. UserError says which file and column is wrong.

    carry_payload: read and pack all other columns too, as far as rows of this kind of join hold them. query: an inner join
    without a predicate if it is not given.
    time_is_ts: result times are the time columns (not arrival stamps).
    """
    import pyarrow.types as t

    opened = []
    kind = JOIN_KINDS["inner"] if query is None else query.kind
    for side, config in (("left", left), ("right", right)):
        files = list_files(Path(config.path or ""))
        schema = read_schema(files[0])
        keys = [(name, _find(schema, name, side, str(config.path), "key")) for name in config.key]
        _check_time(config, _find(schema, config.time, side, str(config.path), "time"), side)
        if config.id is not None and not t.is_integer(_find(schema, config.id, side, str(config.path), "id")):
            raise UserError(f"{side} {config.path}: id column {config.id} must hold integers")
        for name in config.columns or ():
            _find(schema, name, side, str(config.path), "chosen")
        if carry_payload and len(set(schema.names)) < len(schema.names):
            twice = next(n for n in schema.names if schema.names.count(n) > 1)
            raise UserError(f"{side} {config.path}: column {twice} is there {schema.names.count(twice)} times; rename one")
        opened.append((config, files, schema, keys))
    judged = _judged(None if query is None else query.where, opened)
    encoder = KeyEncoder(opened[0][3], opened[1][3])
    sources = []
    for index, (config, files, schema, _) in enumerate(opened):
        try:
            codec, columns = _stream_codec(
                config,
                schema,
                carry=carry_payload and (index == LEFT or not kind.one_sided),
                native=encoder.native,
                own_key=index == LEFT or kind.unmatched[index],
                time_is_ts=time_is_ts,
                judged=judged[index],
            )
        except SwjoinError as error:
            raise UserError(f"{('left', 'right')[index]} {config.path}: {error}") from None
        sources.append(FileSource(config, files, schema, columns, codec, encoder))
    return sources[0], sources[1], encoder
