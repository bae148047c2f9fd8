"""File source: Parquet, CSV or Arrow IPC; files of an input; read in batches, in bounded memory, all or in splits.

What: `open_sources(left, right) -> (FileSource, FileSource, KeyEncoder)`, both sides of a join; `open_columns_source(config,
columns) -> ColumnsSource`, an input of a plan; `describe_columns(config)`, what such an input has.
Why: any defect of a user's files becomes one line that names the file.
Stays out: encoding rows (`connectors.row_encoder`), which rows are splits (`connectors.files.splits`), null keys and late rows
(`cluster.gateway.intake`).

A background thread reads up to two batches ahead; Arrow releases the GIL while it decodes. It sorts, too, where that is asked
for (`connectors.files.time_order`).
"""

from __future__ import annotations

import bisect
import dataclasses
import logging
import threading
from collections.abc import Iterator, Sequence
from functools import partial
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
from swjoin.connectors.files.fragments import OpenFile, open_fragments, row_group_counts
from swjoin.connectors.files.inputs import File, InputFiles, file_format, find_files, refusing
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.files.splits import SplitInput, SplitReader, greatest_us
from swjoin.connectors.files.time_order import TimeOrder
from swjoin.connectors.row_encoder import StreamColumns, describe_input, describe_streams, settle_input, settle_types
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import I64, Bool, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.splits import Split

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
        counts = _row_groups(found)
        self.rows_total: int | None = None if counts is None else sum(map(sum, counts))
        self._schema, self._describer = described.schema, described.file
        self._columns = view.columns
        self._sorts, self._closed = sort, threading.Event()
        self._starts: list[int] = []  # by file: position of its first row
        self._skipped = (0, 0)  # files, and rows of the file after them, or of the sorted rows, that are not read
        self._ahead: ReadAhead | None = None
        self._reader = SplitReader(
            SplitInput(self.files, self._columns, view.time, self._encoder.times, self._open_file, counts)
        )
        self._in_splits = False  # whether the rows of a split are read

    def read(self) -> SourceBatch | None:
        if self._in_splits:
            return self._read_split()
        while (item := self._reading().next()) is not None:
            index, batch, positions = item
            if positions is None:
                self._start(index, self.rows)
            if batch.num_rows:
                with refusing(self.files[index]):
                    return self.encode(batch, positions)
        return None

    def _read_split(self) -> SourceBatch | None:
        batch = self._reader.next()
        if batch is None:
            return None
        with refusing(self.files[self._file_of(self.rows)]):
            found = self.encode(batch)
        self._reader.passed(found.ts, found.ts_valid)
        return found

    def ready(self, patience_s: float) -> bool:
        return (self._reader if self._in_splits else self._reading()).ready(patience_s)

    def _reading(self) -> ReadAhead:
        if self._ahead is None:
            self._ahead = ReadAhead(
                partial(self._in_order, self._closed, self._skipped[1])
                if self._sorts
                else partial(self._batches, self._columns, *self._skipped)
            )
        return self._ahead

    def _start(self, index: int, row: int) -> None:
        """A row at this position is of this file."""
        while len(self._starts) <= index:
            self._starts.append(row)

    def seek(self, row: int) -> None:
        """Parquet files are read from the row's row group on; other formats, and rows that are sorted, from the start."""
        self._reader.close()
        self._restart()
        if self._sorts:
            self.rows, self._skipped = row, (0, row)
            return
        counts = [row_count(path) for path in self.files] if file_format(self.files[0]) == "Parquet" else []
        for count in counts:
            if self.rows + count > row:
                break
            self._starts.append(self.rows)
            self.rows += count
        if counts:
            self._skipped = len(self._starts), row - self.rows
        if len(self._starts) < len(counts):
            self._starts.append(self.rows)
            self.rows = row
        elif self.rows < row and not counts:
            while self.rows < row:
                if self.read() is None:
                    break
        if self.rows != row:
            raise self._changed(row)

    def _restart(self) -> None:
        """Read all rows next, from the first one on."""
        if self._ahead is not None:
            self._closed.set()
            self._ahead.close()
            self._closed = threading.Event()
        self._ahead, self._in_splits, self.rows, self._starts, self._skipped = None, False, 0, [], (0, 0)

    def _changed(self, row: int) -> RunFailed:
        return RunFailed(f"{self.where}: row {row} is not where it was; the input has changed")

    # ------------------------------------------------------------ splits

    @property
    def why_whole(self) -> str | None:
        """As of `SplitSource`."""
        return "rows are sorted by time" if self._sorts else self._reader.why_whole

    def splits(self, reach_us: int) -> list[Split] | None:
        """As of `SplitSource`. UserError when a file cannot be read."""
        if self.why_whole is not None:
            return None
        self._starts = self._reader.file_starts
        return self._reader.splits(reach_us)

    def open_split(self, split: Split, skip: int = 0) -> int:
        """As of `SplitSource`. RunFailed when there are fewer rows."""
        if split.rows < 0:
            return self._open_whole(split.row + skip)
        self._restart()
        self._in_splits, self.rows, self._starts = True, split.row + skip, self._reader.file_starts
        return self._reader.open(split, skip)

    def _open_whole(self, row: int) -> int:
        """Continue at this row, to the end. Returns the greatest time of the rows before it."""
        high_us = BEGIN_OF_TIME_US
        if file_format(self.files[0]) == "Parquet" and not self._sorts:
            rest = row
            for ts, valid in self._times() if row else ():
                high_us = max(high_us, greatest_us(ts[:rest], None if valid is None else valid[:rest]))
                rest -= len(ts)
                if rest <= 0:
                    break
            self.seek(row)
            return high_us
        self._reader.close()
        self._restart()
        while self.rows < row:
            item = self._reading().next()
            if item is None:
                raise self._changed(row)
            index, batch, positions = item
            if positions is None:
                self._start(index, self.rows)
            count = min(batch.num_rows, row - self.rows)
            at = np.arange(self.rows, self.rows + count) if positions is None else positions[:count]
            with refusing(self.files[index]):
                high_us = max(high_us, greatest_us(*self._encoder.times(batch.column(self.config.time).slice(0, count), at)))
            self.rows += count
            if count < batch.num_rows:
                self._reading().put_back((index, batch.slice(count), None if positions is None else positions[count:]))
        return high_us

    def origin_us(self) -> int | None:
        """As of `SplitSource`."""
        firsts = (ts if valid is None else ts[valid] for ts, valid in self._times())
        if self._sorts:
            return min((int(ts.min()) for ts in firsts if len(ts)), default=None)
        return next((int(ts[0]) for ts in firsts if len(ts)), None)

    def _times(self) -> Iterator[tuple[I64, Bool | None]]:
        """Times of all rows in the order of the files, and which rows have one; no other column is decoded."""
        row = 0
        for index, batch, _ in self._batches([self.config.time]):
            self._start(index, row)
            with refusing(self.files[index]):
                yield self._encoder.times(batch.column(self.config.time), np.arange(row, row + batch.num_rows))
            row += batch.num_rows

    def _open_file(self, index: int) -> OpenFile:
        """For splits: a file, checked as others are."""
        path = self.files[index]
        if path != self._describer:
            self._check_schema(path)
        return open_fragments(path, self._schema, self.config.time)

    # ------------------------------------------------------------ batches of all files

    def _in_order(self, closed: threading.Event, skip: int) -> Iterator[tuple[int, pa.RecordBatch, I64]]:
        """The rows in order of time from the one at position `skip` of that order on, with their positions in the files."""
        rows, sorted_rows = 0, TimeOrder()
        for index, batch, _ in self._batches(self._columns):
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

    def _batches(self, columns: list[str], files: int = 0, skip: int = 0) -> Iterator[tuple[int, pa.RecordBatch, None]]:
        """files, skip: that are left out, and rows of the file after them (Parquet)."""
        for index, path in enumerate(self.files[files:], files):
            if path != self._describer:
                self._check_schema(path)
            if self.untyped:
                continue
            _LOG.debug("%s: reading columns %s", path, ", ".join(columns))
            for batch in read_batches(path, self._schema, columns, BATCH_ROWS, skip if index == files else 0):
                for start in range(0, max(1, batch.num_rows), BATCH_ROWS):
                    yield index, batch.slice(start, BATCH_ROWS), None

    def _check_schema(self, path: File) -> None:
        check_schema(path, self._schema, self._columns, self._describer)

    def describe_row(self, row: int) -> str:
        index = self._file_of(row)
        return describe_row(self.files[index], row - self._starts[index])

    def _file_of(self, row: int) -> int:
        return max(0, bisect.bisect_right(self._starts, row) - 1)

    def close(self) -> None:
        self._closed.set()
        self._reader.close()
        if self._ahead is not None:
            self._ahead.close()


class ColumnsSource(FileSource):
    """An input of a plan: batches have `Columns`, and neither keys nor payload rows."""

    def __init__(
        self, config: StreamConfig, found: InputFiles, described: Described, view: StreamColumns, *, sort: bool = False
    ) -> None:
        """As of `FileSource`. view: of `describe_input`."""
        super().__init__(config, found, described, view, None, sort=sort)


def _row_groups(found: InputFiles) -> list[list[int]] | None:
    """By file, rows of each row group, where the format has them."""
    if found.format != "Parquet":
        return None
    try:
        return [row_group_counts(path) for path in found.files]
    except UserError:
        return None  # reading the file will raise it


def check_schema(path: File, schema: pa.Schema, columns: Sequence[str], describer: File) -> None:
    """UserError unless a file has these columns with the types of the file that describes all."""
    import pyarrow as pa

    if file_format(path) == "JSON lines":  # any field may be missing in any row
        return
    found = read_schema(path)
    for name in columns:
        count = found.names.count(name)
        if count != 1:
            there = "missing" if not count else f"there {count} times"
            raise UserError(f"{path}: column {name} is {there}, {describer.name} has it once")
        mine, theirs = schema.field(name).type, found.field(name).type
        if mine != theirs and not pa.types.is_null(theirs) and file_format(path) != "CSV":
            raise UserError(f"{path}: column {name} is {theirs}, in {describer.name} it is {mine}")


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


def settled(config: StreamConfig, name: str, expected: Sequence[tuple[str, str]]) -> tuple[InputFiles, Described]:
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
    found, described = settled(config, name, expected)
    return ColumnsSource(config, found, described, describe_input(config, described.schema, name, columns), sort=sort)


def describe_columns(config: StreamConfig) -> tuple[tuple[str, str], ...]:
    """Names and types, as Arrow writes them, of all columns of an input of a plan. UserError when it cannot be read."""
    _, described = settled(config, "input", ())
    return tuple((field.name, str(field.type)) for field in described.schema)
