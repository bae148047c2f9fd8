"""Inputs of the API as Arrow.

What: `WholeInput` (a whole input), `to_batches` (a piece of a stream), `both_inputs` (when the two sides may be one object).
Why: Arrow tables, pandas, polars, DuckDB and other objects with the Arrow C stream interface are read alike, without a
dependency on any of them.
Stays out: which columns there must be (`connectors.row_encoder`).
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from swjoin.api.objects import refuse_mixed_objects
from swjoin.connectors.files.formats import (
    common_schema,
    file_format,
    list_files,
    read_batches,
    read_schema,
    refuse_mixed_times,
    refusing,
    unread_text,
)
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.units import named_path

if TYPE_CHECKING:
    import pyarrow as pa

FILE_BATCH_ROWS = 1 << 17


@runtime_checkable
class ArrowStream(Protocol):
    """Tables, record-batch readers, data frames: anything that can be read as a stream of Arrow record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """A single record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


Streamable: TypeAlias = ArrowStream | ArrowArray
Input: TypeAlias = ArrowStream | ArrowArray | str | os.PathLike[str]


class WholeInput:
    """A whole input. schema: its columns, of the type null where nothing is in them. csv: of CSV files, which are read when all
    types are known. untyped: CSV files without rows, whose columns have no types of their own. unread:
    what lies beside its files, for warnings.

    time: its time column. wanted: of files, read these columns only. UserError for what is no table, and for files that cannot
    be read.
    """

    def __init__(self, value: object, side: str, time: str, wanted: Collection[str] | None = None) -> None:
        import pyarrow as pa

        self.csv = self.untyped = False
        self.unread: str | None = None
        self._table: pa.Table | None = None
        if isinstance(value, (str, os.PathLike)):
            self._describe(named_path(value, side), time, wanted)
        else:
            refuse_mixed_objects(value, side, wanted)
            table = value if isinstance(value, pa.Table) else pa.Table.from_batches(*_opened(value, side))
            check_names(table.schema, side)
            self._table = _without_index(table)
            self.schema = self._table.schema

    def _describe(self, path: Path, time: str, wanted: Collection[str] | None) -> None:
        import pyarrow as pa

        self._path, self._files = path, list_files(path)
        self.unread = unread_text(path)
        described = common_schema(self._files)
        refuse_mixed_times(described.file, described.schema, time)
        self.schema, self._describer, self.untyped = described.schema, described.file, described.untyped
        self.csv = file_format(described.file) == "CSV"
        if wanted is not None:
            self.schema = pa.schema([field for field in self.schema if field.name in wanted])
        if not self.csv:
            self._table = _from_files(path, self._files, self.schema, self._describer)

    @property
    def empty(self) -> bool:
        """Whether it is known to have no rows."""
        return self.untyped or (self._table is not None and not self._table.num_rows)

    def read(self, schema: pa.Schema) -> pa.Table:
        """All of it. schema: its own, with types for columns in which nothing is."""
        if self._table is None:
            return _from_files(self._path, self._files, schema, self._describer)
        if self._table.schema == schema:
            return self._table
        return self._table.cast(schema) if self._table.num_rows else schema.empty_table()


def to_table(value: object, side: str, time: str) -> pa.Table:
    """A whole input in memory, columns as they are."""
    found = WholeInput(value, side, time)
    return found.read(found.schema)


def both_inputs(left: object, right: object) -> tuple[object, object]:
    """Both sides, when one object may be given for both. UserError for a reader, of which the right side would find the end;
    what may turn out to be one is read once, for both sides."""
    import pyarrow as pa

    if left is not right or left is None:
        return left, right
    if _is_reader(left):
        raise UserError(
            f"left and right: the same {type(left).__name__} is given for both sides, and can be read once; give a table, "
            "such as reader.read_all()"
        )
    if isinstance(left, (str, os.PathLike, pa.Table, pa.RecordBatch)) or hasattr(left, "__len__"):
        return left, right
    if not isinstance(left, ArrowStream):
        return left, right  # refused, or read, as one side
    table = pa.Table.from_batches(*_opened(left, STREAM_NAMES[LEFT]))
    return table, table


def _is_reader(value: object) -> bool:
    """It is at its end after it has been read."""
    import pyarrow as pa

    return isinstance(value, pa.RecordBatchReader) or (isinstance(value, ArrowStream) and isinstance(value, Iterator))


def check_names(schema: pa.Schema, side: str) -> None:
    """UserError when a column's name is no text."""
    try:
        _ = schema.names
    except UnicodeDecodeError:
        raise UserError(f"{side}: the name of a column is not UTF-8; rename it") from None


def _without_index(table: pa.Table) -> pa.Table:
    """The table without an unnamed index of pandas."""
    if not (table.schema.metadata or {}).get(b"pandas"):
        return table
    return table.drop_columns([name for name in table.column_names if re.fullmatch(r"__index_level_\d+__", name)])


def _from_files(path: Path, files: list[Path], schema: pa.Schema, describer: Path) -> pa.Table:
    import pyarrow as pa

    batches = []
    for file in files:
        own = schema if file == describer else read_schema(file)
        for field in schema:
            if own.names.count(field.name) != 1:
                raise UserError(f"{file}: column {field.name} is missing or there twice, in {describer.name} it is there once")
            kind = own.field(field.name).type
            if kind != field.type and not pa.types.is_null(kind) and file_format(file) != "CSV":
                raise UserError(f"{file}: column {field.name} is {kind}, before it was {field.type}")
        batches += list(read_batches(file, schema, schema.names, FILE_BATCH_ROWS))
    with refusing(path):
        return pa.Table.from_batches(batches, schema)


def to_batches(value: object, side: str, wanted: Collection[str] | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and record batches of a piece of a stream; a table's are as large as they can be without a copy. wanted: the
    columns that are used; None: all."""
    import pyarrow as pa

    if isinstance(value, pa.RecordBatch):
        return value.schema, iter([value])
    if isinstance(value, pa.Table):
        check_names(value.schema, side)
        whole = value if all(c.num_chunks == 1 for c in value.columns) else value.combine_chunks()
        return value.schema, iter(whole.to_batches())
    if isinstance(value, (str, os.PathLike)):
        raise UserError(f"{side}: {str(value)[:100]!r} is a path; a stream takes batches, swjoin.join takes paths")
    refuse_mixed_objects(value, side, wanted)
    batches, schema = _opened(value, side)
    return schema, batches


def _opened(value: object, side: str) -> tuple[Iterator[pa.RecordBatch], pa.Schema]:
    """Record batches and their schema, of anything that has Arrow's interface."""
    import pyarrow as pa

    if isinstance(value, pa.RecordBatch):
        return iter([value]), value.schema
    if isinstance(value, type) or not isinstance(value, (ArrowStream, ArrowArray)):
        raise UserError(
            f"{side}: a {type(value).__name__} is no table; give an Arrow table, record batch or reader, a data frame, "
            "or anything else with __arrow_c_stream__"
        )
    try:
        if isinstance(value, ArrowStream):
            reader = pa.RecordBatchReader.from_stream(value)
            return _with_side(_once(value, reader, side), side), reader.schema
        batch = pa.record_batch(value)
    except (pa.ArrowException, TypeError, ValueError, OverflowError, OSError) as error:
        raise _unreadable(side, error) from None
    return iter([batch]), batch.schema


_READ: weakref.WeakSet[Any] = weakref.WeakSet()  # readers that have been read here


def _once(value: object, reader: Any, side: str) -> Iterator[Any]:
    """Its batches. UserError for a reader that has been read here before, in another call perhaps."""
    if _is_reader(value):
        if value in _READ:
            raise UserError(
                f"{side}: this {type(value).__name__} has been read before, and can be read once; give a table, such as "
                "reader.read_all(), or a new reader"
            )
        _READ.add(value)
    yield from reader


def _with_side(batches: Iterator[Any], side: str) -> Iterator[Any]:
    """The same batches; UserError when reading fails."""
    import pyarrow as pa

    try:
        yield from batches
    except (pa.ArrowException, OSError) as error:
        raise _unreadable(side, error) from None


def _unreadable(side: str, error: Exception) -> UserError:
    text = " ".join(str(error).split())[:1000]
    return UserError(f"{side}: cannot be read as Arrow data: {text or type(error).__name__}")
