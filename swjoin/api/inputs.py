"""Whole inputs of the API as Arrow: frames, files and folders.

What: `WholeInput`, `are_paths`.
Why: what a join of tables is given, in memory or in files, is read alike.
Stays out: reading frames (`connectors.frames`), which columns there must be (`connectors.row_encoder`).
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from typing import TYPE_CHECKING, TypeAlias, TypeGuard

from swjoin.config.connectors import TextConfig
from swjoin.connectors import frames
from swjoin.connectors.files.declared import TEXT
from swjoin.connectors.files.formats import (
    common_schema,
    read_batches,
    read_schema,
    refuse_mixed_times,
)
from swjoin.connectors.files.inputs import File, InputFiles, Paths, file_format, find_files, refusing
from swjoin.connectors.frames import Streamable
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BATCH_ROWS = 1 << 17

Input: TypeAlias = Streamable | str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


def are_paths(value: object) -> TypeGuard[Paths]:
    """Whether an input is in files: a path, or several."""
    paths = (str, os.PathLike)
    return isinstance(value, paths) or (isinstance(value, (list, tuple)) and all(isinstance(v, paths) for v in value))


class WholeInput:
    """A whole input. schema: its columns, of the type null where nothing is in them. csv: of CSV files, which are read when all
    types are known. untyped: CSV files without rows, whose columns have no types of their own. unread:
    what lies beside its files, for warnings. text_columns: all columns of files of text.

    time: its time column. wanted: of files, read these columns only. text: how text is read, if that is given. on_rows: called
    with numbers of rows, as they are read of files. UserError for what is no table, and for files that cannot be read.
    """

    def __init__(
        self,
        value: object,
        side: str,
        time: str,
        wanted: Collection[str] | None = None,
        text: TextConfig | None = None,
        on_rows: Callable[[int], object] | None = None,
    ) -> None:
        self._on_rows = on_rows
        self.csv = self.untyped = False
        self.unread: str | None = None
        self.text_columns: list[str] | None = None
        self._table: pa.Table | None = None
        if are_paths(value):
            if not value or "" in (value if isinstance(value, (list, tuple)) else ()):
                raise UserError(f"{side}: the path is empty; write . for the working directory")
            self._describe(find_files(value, text), time, wanted)
        else:
            self._table = frames.to_table(value, side, wanted)
            self.schema = self._table.schema

    def _describe(self, found: InputFiles, time: str, wanted: Collection[str] | None) -> None:
        import pyarrow as pa

        self._files, self.unread = found.files, found.unread
        described = common_schema(self._files)
        refuse_mixed_times(described.file, described.schema, time)
        self.schema, self._describer, self.untyped = described.schema, described.file, described.untyped
        self.csv = file_format(described.file) == "CSV"
        self.text_columns = self.schema.names if file_format(described.file) in TEXT else None
        if wanted is not None:
            self.schema = pa.schema([field for field in self.schema if field.name in wanted])
        if not self.csv:
            self._table = _from_files(self._files, self.schema, self._describer, self._on_rows)

    @property
    def empty(self) -> bool:
        """Whether it is known to have no rows."""
        return self.untyped or (self._table is not None and not self._table.num_rows)

    def read(self, schema: pa.Schema) -> pa.Table:
        """All of it. schema: its own, with types for columns in which nothing is."""
        if self._table is None:
            return _from_files(self._files, schema, self._describer, self._on_rows)
        if self._table.schema == schema:
            return self._table
        return self._table.cast(schema) if self._table.num_rows else schema.empty_table()


def to_table(value: object, side: str, time: str) -> pa.Table:
    """A whole input in memory, columns as they are."""
    found = WholeInput(value, side, time)
    return found.read(found.schema)


def _from_files(
    files: list[File], schema: pa.Schema, describer: File, on_rows: Callable[[int], object] | None = None
) -> pa.Table:
    import pyarrow as pa

    batches = []
    for file in files:
        own = schema if file == describer or file_format(file) == "JSON lines" else read_schema(file)
        for field in schema:
            if own.names.count(field.name) != 1:
                raise UserError(f"{file}: column {field.name} is missing or there twice, in {describer.name} it is there once")
            kind = own.field(field.name).type
            if kind != field.type and not pa.types.is_null(kind) and file_format(file) != "CSV":
                raise UserError(f"{file}: column {field.name} is {kind}, before it was {field.type}")
        for batch in read_batches(file, schema, schema.names, FILE_BATCH_ROWS):
            batches.append(batch)
            if on_rows is not None:
                on_rows(batch.num_rows)
    with refusing(files[0]):
        return pa.Table.from_batches(batches, schema)
