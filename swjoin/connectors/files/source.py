"""Streams from files: Parquet, CSV, Arrow IPC; one file or a directory; read batch by batch, never whole.

What: `open_sources(left, right) -> (FileSource, FileSource, KeyEncoder)`.
Why: the user's own data, with every way it can be wrong told in one line that names the file.
Stays out: columns as tuples (`connectors.row_encoder`), judging null keys and late rows (`cluster.master.intake`).

A background thread reads up to two batches ahead; Arrow releases the GIL while it decodes.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.config.run import QueryConfig, StreamConfig
from swjoin.connectors.files.formats import (
    Described,
    common_schema,
    file_format,
    list_files,
    place_in,
    read_batches,
    read_schema,
    refuse_mixed_times,
    refusing,
    row_count,
    unread_text,
)
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.row_encoder import StreamColumns, TupleEncoder, describe_streams, settle_types
from swjoin.core.batch import RowLayout, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import Dictionary, KeyEncoder

if TYPE_CHECKING:
    import pyarrow as pa

BATCH_ROWS = 65_536


class FileSource:
    """One stream from files. `codec` says how its columns come back; `read` yields batches with ids by position."""

    def __init__(
        self,
        config: StreamConfig,
        files: list[Path],
        described: Described,
        view: StreamColumns,
        keys: KeyEncoder,
    ) -> None:
        """described: with types for all columns that are read."""
        self.config = config
        self.untyped = described.untyped
        self.unread = unread_text(Path(config.path or ""))
        self.codec = view.codec
        self.files = files
        self.rows_total = _rows_total(files)
        self._schema, self._describer = described.schema, described.file
        self._columns = view.columns
        self._keys = keys
        self._starts: list[int] = []
        self._rows = 0
        self._skipped_files = self._skip = 0  # files, and rows of the first one after them, that are not read
        self._ahead: ReadAhead | None = None
        self._tuples = TupleEncoder(config, view, keys, self._place)

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
            if path != self._describer:
                self._check_schema(path)
            if self.untyped:
                continue
            skip = self._skip if index == self._skipped_files else 0
            for batch in read_batches(path, self._schema, self._columns, BATCH_ROWS, skip):
                for start in range(0, max(1, batch.num_rows), BATCH_ROWS):
                    yield index, batch.slice(start, BATCH_ROWS)

    def _check_schema(self, path: Path) -> None:
        import pyarrow as pa

        schema = read_schema(path)
        for name in self._columns:
            count = schema.names.count(name)
            if count != 1:
                there = "missing" if not count else f"there {count} times"
                raise UserError(f"{path}: column {name} is {there}, {self._describer.name} has it once")
            mine, theirs = self._schema.field(name).type, schema.field(name).type
            if mine != theirs and not pa.types.is_null(theirs) and file_format(path) != "CSV":
                raise UserError(f"{path}: column {name} is {theirs}, in {self._describer.name} it is {mine}")

    def _convert(self, batch: pa.RecordBatch) -> SourceBatch:
        first = self._rows
        self._rows += batch.num_rows
        return self._tuples.of(batch, first)

    def locate(self, row_id: int) -> str:
        return f"{self.files[0].parent}: row with id {row_id}" if self.config.id is not None else self._place(row_id)

    def _place(self, position: int) -> str:
        index = max(0, bisect.bisect_right(self._starts, position) - 1)
        return place_in(self.files[index], position - self._starts[index])

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


def open_sources(
    left: StreamConfig, right: StreamConfig, *, carry_payload: bool, time_is_ts: bool = True, query: QueryConfig | None = None
) -> tuple[FileSource, FileSource, KeyEncoder]:
    """Both streams of a join, checked before any row is read. UserError says which file and column is wrong.

    carry_payload: read and pack all other columns too, as far as rows of this kind of join hold them. query: an inner join
    without a predicate if it is not given.
    time_is_ts: result times are the time columns (not arrival stamps).
    """
    files = [list_files(Path(config.path or "")) for config in (left, right)]
    described = [common_schema(found) for found in files]
    for config, d in zip((left, right), described, strict=True):
        refuse_mixed_times(d.file, d.schema, config.time)
    strings = [file_format(d.file) == "CSV" for d in described]
    schemas = settle_types((left, right), [d.schema for d in described], strings)
    views, encoder = describe_streams(
        (left, schemas[0]), (right, schemas[1]), carry=carry_payload, time_is_ts=time_is_ts, packed=True, query=query
    )
    sources = [
        FileSource(config, found, dataclasses.replace(d, schema=schema), view, encoder)
        for config, found, d, schema, view in zip((left, right), files, described, schemas, views, strict=True)
    ]
    return sources[0], sources[1], encoder
