"""Frames as Arrow: tables, readers, data frames and whatever else has Arrow's C stream interface.

What: `to_batches` (a frame's schema and record batches), `to_schema`, `both_inputs` (when the two sides may be one object).
Why: Arrow, pandas, polars, DuckDB and others are read alike by all of Python's calls, without a dependency on any of them.
Stays out: files (`connectors.files`), which columns there must be (`connectors.row_encoder`), their types
(`connectors.fitting`).
"""

from __future__ import annotations

import os
import re
import weakref
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, runtime_checkable

from swjoin.connectors.object_columns import refuse_mixed_objects
from swjoin.core.batch import LEFT, STREAM_NAMES
from swjoin.core.errors import UserError, one_line

if TYPE_CHECKING:
    import pyarrow as pa


@runtime_checkable
class ArrowStream(Protocol):
    """Tables, record-batch readers, data frames: anything that can be read as a stream of Arrow record batches."""

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object: ...


@runtime_checkable
class ArrowArray(Protocol):
    """A single record batch."""

    def __arrow_c_array__(self, requested_schema: object | None = None) -> tuple[object, object]: ...


@runtime_checkable
class LazyFrame(Protocol):
    """A data frame that is computed when it is collected, such as polars'."""

    def collect_schema(self) -> Any: ...

    def collect(self) -> Any: ...


@runtime_checkable
class ArrowSchema(Protocol):
    """A schema: of Arrow, of polars."""

    def __arrow_c_schema__(self) -> object: ...


Streamable: TypeAlias = ArrowStream | ArrowArray | LazyFrame


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
    if not isinstance(left, (ArrowStream, LazyFrame)):
        return left, right  # refused, or read, as one side
    table = to_table(left, STREAM_NAMES[LEFT])
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


def to_table(value: object, side: str, wanted: Collection[str] | None = None) -> pa.Table:
    """A whole frame in memory; an Arrow table as it is. wanted: the columns that are used; None: all."""
    import pyarrow as pa

    if isinstance(value, pa.Table):
        check_names(value.schema, side)
        names = _without_index(value.schema)
        return value if names is None else value.select(names)
    schema, batches = to_batches(value, side, wanted)
    return pa.Table.from_batches(batches, schema)


def to_batches(value: object, side: str, wanted: Collection[str] | None = None) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
    """Schema and record batches of a frame, without an unnamed index of pandas; a table's are as large as they can be without a
    copy. wanted: the columns that are used, of which at least these are returned; None: all. UserError for what is no frame, or
    cannot be read."""
    import pyarrow as pa

    if isinstance(value, (str, os.PathLike)):
        raise UserError(f"{side}: {str(value)[:100]!r} is a path; a stream takes batches, swjoin.join takes paths")
    if isinstance(value, pa.Table):
        check_names(value.schema, side)
        whole = value if all(c.num_chunks == 1 for c in value.columns) else value.combine_chunks()
        batches, schema = iter(whole.to_batches()), value.schema
    else:
        refuse_mixed_objects(value, side, wanted)
        batches, schema = _opened(_collected(value, side, wanted), side)
        check_names(schema, side)
    names = _without_index(schema)
    if names is None:
        return schema, batches
    return pa.schema([schema.field(name) for name in names]), (batch.select(names) for batch in batches)


def to_schema(value: object, argument: str) -> pa.Schema:
    """Columns and types of a schema of Arrow or polars, or of a frame, whose rows are not read. UserError for anything else."""
    import pyarrow as pa

    try:
        if isinstance(value, (pa.Schema, pa.Table, pa.RecordBatch, pa.RecordBatchReader)):
            schema = value if isinstance(value, pa.Schema) else value.schema
        elif isinstance(value, LazyFrame) and not isinstance(value, ArrowStream):
            schema = pa.schema(value.collect_schema())
        elif isinstance(value, ArrowSchema) and not isinstance(value, (type, pa.DataType, pa.Field)):
            schema = pa.schema(value)
        elif isinstance(value, ArrowStream) and not isinstance(value, type) and not _is_reader(value):
            schema = pa.RecordBatchReader.from_stream(value).schema
        else:
            raise UserError(f"{argument}: a {type(value).__name__} is no schema; give one of Arrow or polars, or a data frame")
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise _unreadable(argument, error) from None
    check_names(schema, argument)
    names = _without_index(schema)
    return schema if names is None else pa.schema([schema.field(name) for name in names])


def _without_index(schema: pa.Schema) -> list[str] | None:
    """The columns without an unnamed index of pandas; None: there is none."""
    if not (schema.metadata or {}).get(b"pandas"):
        return None
    names = [name for name in schema.names if not re.fullmatch(r"__index_level_\d+__", name)]
    return None if len(names) == len(schema.names) else names


def _collected(value: object, side: str, wanted: Collection[str] | None) -> object:
    """A lazy frame's rows, with no columns that are not used; anything else as it is."""
    if not isinstance(value, LazyFrame) or isinstance(value, (type, ArrowStream)):
        return value
    try:
        names = value.collect_schema().names()
        used = names if wanted is None else [name for name in names if name in wanted]
        return (value if used == names else value.select(used)).collect()  # type: ignore[attr-defined]
    except Exception as error:
        raise UserError(f"{side}: the {type(value).__name__} cannot be collected: {one_line(error)}") from error


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
