"""File source: Parquet, CSV or Arrow IPC; files of an input; read in batches, in bounded memory.

What: `open_sources(left, right) -> (FileSource, FileSource, KeyEncoder)`, both sides of a join; `open_columns_source(config,
columns) -> ColumnsSource`, an input of a plan; `describe_columns(config)`, what such an input has.
Why: any defect of a user's files becomes one line that names the file.
Stays out: encoding rows (`connectors.row_encoder`), null keys and late rows (`cluster.gateway.intake`).

A background thread reads up to two batches ahead; Arrow releases the GIL while it decodes. It sorts, too, where that is asked
for (`connectors.files.time_order`).
"""

from __future__ import annotations

import bisect
import dataclasses
import functools
import logging
import threading
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np

from swjoin.config.run import QueryConfig, StreamConfig
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.files.declared import TEXT, refuse_unknown
from swjoin.connectors.files.formats import (
    Described,
    common_schema,
    describe_row,
    read_batches,
    read_schema,
    refuse_mixed_times,
    row_count,
)
from swjoin.connectors.files.inputs import File, InputFiles, file_format, find_files, refusing
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.files.time_order import TimeOrder
from swjoin.connectors.row_encoder import StreamColumns, describe_input, describe_streams, settle_input, settle_types
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import I64, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import KeyEncoder

if TYPE_CHECKING:
    import pyarrow as pa

_LOG = logging.getLogger(__name__)


class FileSource(EncodedSource):
    """One stream from files, with ids by position unless a column has them."""

    def __init__(
        self,
        config: StreamConfig,
        found: InputFiles,
        described: Described,
        view: StreamColumns,
        keys: KeyEncoder | None,
        *,
        sort: bool = False,
    ) -> None:
        """described: has types for all columns that are read. keys: None for an input of a plan. sort: rows come in order of
        time, with their own positions."""
        super().__init__(str(found.files[0]).rpartition("/")[0] or ".", config, view, keys)
        self.untyped = described.untyped
        self.unread = found.unread
        self.files = found.files
        self.rows_total: int | None = _rows_total(found)
        self._schema, self._describer = described.schema, described.file
        self._columns = view.columns
        self._sorts, self._closed = sort, threading.Event()
        self._starts: list[int] = []  # by file: position of its first row
        self._skipped_files = self._skip = 0  # files, and rows of the file after them, that are not read
        self._ahead: ReadAhead | None = None

    def read(self) -> SourceBatch | None:
        while (item := self._reading().next()) is not None:
            index, batch, positions = item
            if positions is None:
                self._start(index, self.rows)
            if batch.num_rows:
                with refusing(self.files[index]):
                    return self.encode(batch, positions)
        return None

    def ready(self, patience_s: float) -> bool:
        return self._reading().ready(patience_s)

    def _reading(self) -> ReadAhead:
        if self._ahead is None:
            in_order = functools.partial(self._in_order, self._closed, self._skip)
            self._ahead = ReadAhead(in_order if self._sorts else self._batches)
        return self._ahead

    def _start(self, index: int, row: int) -> None:
        """A row at this position is of this file."""
        while len(self._starts) <= index:
            self._starts.append(row)

    def seek(self, row: int) -> None:
        """Parquet files are read from the row's row group on; other formats, and rows that are sorted, from the start."""
        self.close()
        self._closed = threading.Event()
        self._ahead, self.rows, self._starts = None, 0, []
        self._skipped_files, self._skip = 0, 0
        if self._sorts:
            self.rows = self._skip = row
            return
        counts = [row_count(path) for path in self.files] if file_format(self.files[0]) == "Parquet" else []
        for count in counts:
            if self.rows + count > row:
                break
            self._starts.append(self.rows)
            self.rows += count
            self._skipped_files += 1
        if counts and self._skipped_files < len(counts):
            self._starts.append(self.rows)
            self._skip = row - self.rows
            self.rows = row
        elif self.rows < row and not counts:
            while self.rows < row:
                if self.read() is None:
                    break
        if self.rows != row:
            raise self._changed(row)

    def _changed(self, row: int) -> RunFailed:
        return RunFailed(f"{self.where}: row {row} is not where it was; the input has changed")

    def _in_order(self, closed: threading.Event, skip: int) -> Iterator[tuple[int, pa.RecordBatch, I64]]:
        """The rows in order of time from the one at position `skip` of that order on, with their positions in the files."""
        rows, sorted_rows = 0, TimeOrder()
        for index, batch, _ in self._batches():
            if closed.is_set():
                return
            self._start(index, rows)
            with refusing(self.files[index]):
                times = self._encoder.times(batch.column(self.config.time), np.arange(rows, rows + batch.num_rows))
            sorted_rows.add(batch, *times)
            rows += batch.num_rows
        _LOG.debug("%s: sorting %d rows by %s, %d sorted runs on disk", self.where, rows, self.config.time, sorted_rows.runs)
        if rows < skip:
            raise self._changed(skip)
        for whole, places in sorted_rows.rows():
            batch, positions = whole.slice(skip), places[skip:]
            skip = max(0, skip - len(places))
            if len(positions):
                yield self._file_of(int(positions[0])), batch, positions

    def _batches(self) -> Iterator[tuple[int, pa.RecordBatch, None]]:
        for index, path in enumerate(self.files[self._skipped_files :], self._skipped_files):
            if path != self._describer:
                self._check_schema(path)
            if self.untyped:
                continue
            skip = self._skip if index == self._skipped_files and not self._sorts else 0
            _LOG.debug("%s: reading columns %s", path, ", ".join(self._columns))
            for batch in read_batches(path, self._schema, self._columns, BATCH_ROWS, skip):
                for start in range(0, max(1, batch.num_rows), BATCH_ROWS):
                    yield index, batch.slice(start, BATCH_ROWS), None

    def _check_schema(self, path: File) -> None:
        import pyarrow as pa

        if file_format(path) == "JSON lines":  # any field may be missing in any row
            return
        schema = read_schema(path)
        for name in self._columns:
            count = schema.names.count(name)
            if count != 1:
                there = "missing" if not count else f"there {count} times"
                raise UserError(f"{path}: column {name} is {there}, {self._describer.name} has it once")
            mine, theirs = self._schema.field(name).type, schema.field(name).type
            if mine != theirs and not pa.types.is_null(theirs) and file_format(path) != "CSV":
                raise UserError(f"{path}: column {name} is {theirs}, in {self._describer.name} it is {mine}")

    def describe_row(self, row: int) -> str:
        index = self._file_of(row)
        return describe_row(self.files[index], row - self._starts[index])

    def _file_of(self, row: int) -> int:
        return max(0, bisect.bisect_right(self._starts, row) - 1)

    def close(self) -> None:
        self._closed.set()
        if self._ahead is not None:
            self._ahead.close()


class ColumnsSource(FileSource):
    """An input of a plan: batches have `Columns`, and neither keys nor payload rows. time: the time column."""

    def __init__(
        self, config: StreamConfig, found: InputFiles, described: Described, view: StreamColumns, *, sort: bool = False
    ) -> None:
        """As of `FileSource`. view: of `describe_input`."""
        super().__init__(config, found, described, view, None, sort=sort)
        self.time = view.time


def _rows_total(found: InputFiles) -> int | None:
    if found.format != "Parquet":
        return None
    try:
        return sum(row_count(path) for path in found.files)
    except UserError:
        return None  # reading the file will raise it


def _described(*configs: StreamConfig) -> tuple[list[InputFiles], list[Described]]:
    """Files and columns of all inputs of a run. UserError names the file."""
    inputs = [find_files(config.path or "", config.csv) for config in configs]
    described = [common_schema(found.files) for found in inputs]
    for config, d in zip(configs, described, strict=True):
        refuse_mixed_times(d.file, d.schema, config.time)
    names = [d.schema.names if file_format(d.file) in TEXT else None for d in described]
    refuse_unknown([config.csv for config in configs], names)
    return inputs, described


def open_sources(
    left: StreamConfig,
    right: StreamConfig,
    *,
    carry_payload: bool,
    time_is_ts: bool = True,
    query: QueryConfig | None = None,
    sort: bool = False,
) -> tuple[FileSource, FileSource, KeyEncoder]:
    """Both streams of a join, checked before any row is read. UserError names the file and the column.

    carry_payload: read and pack all columns, as far as the kind of join has them in result rows. time_is_ts: result times are
    the time columns (not arrival times). query: None: an inner join without a predicate. sort: read rows in order of time.
    """
    inputs, described = _described(left, right)
    strings = [file_format(d.file) == "CSV" for d in described]
    schemas = settle_types((left, right), [d.schema for d in described], strings)
    views, encoder = describe_streams(
        (left, schemas[0]), (right, schemas[1]), carry=carry_payload, time_is_ts=time_is_ts, packed=True, query=query
    )
    sources = [
        FileSource(config, found, dataclasses.replace(d, schema=schema), view, encoder, sort=sort)
        for config, found, d, schema, view in zip((left, right), inputs, described, schemas, views, strict=True)
    ]
    return sources[0], sources[1], encoder


def _settled(config: StreamConfig, name: str, expected: Sequence[tuple[str, str]]) -> tuple[InputFiles, Described]:
    """An input of a plan, with types for all columns. UserError as of `open_columns_source`."""
    if config.path is None:
        raise UserError("no path", subject=name, remedy="inputs of plans are files: Parquet, ORC, CSV, JSON lines, Arrow IPC")
    (found,), (described,) = _described(config)
    schema = settle_input(config, described.schema, file_format(described.file) == "CSV", name, expected)
    return found, dataclasses.replace(described, schema=schema)


def open_columns_source(
    config: StreamConfig,
    columns: Sequence[str],
    *,
    sort: bool = False,
    name: str = "input",
    expected: Sequence[tuple[str, str]] = (),
) -> ColumnsSource:
    """An input of a plan, checked before any row is read. UserError names the input, the file and the column.

    columns: names of the columns that travel, with types as of `storage`; time and id are read besides. sort: read rows in
    order of time. name: of the input in error messages. expected: names and types that the input must have, as
    `describe_columns` has them.
    """
    found, described = _settled(config, name, expected)
    return ColumnsSource(config, found, described, describe_input(config, described.schema, name, columns), sort=sort)


def describe_columns(config: StreamConfig) -> tuple[tuple[str, str], ...]:
    """Names and types, as Arrow writes them, of all columns of an input of a plan. UserError when it cannot be read."""
    _, described = _settled(config, "input", ())
    return tuple((field.name, str(field.type)) for field in described.schema)
