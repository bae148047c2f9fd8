"""File formats: Parquet, ORC, CSV, TSV, JSON lines, Arrow IPC and RDF, selected by extension, as Arrow batches.

What: `read_schema`, `common_schema`, `read_batches`, `completed`, `open_ipc`, `refuse_mixed_times`, `describe_row`,
`row_count`, `edges_checksum`.
Why: files are untrusted. Every error of a library becomes one line that names the file, and what a library does not check is
checked here, before the rows reach kernels without checks.
Stays out: finding files (`connectors.files.inputs`); text (`connectors.files.csv_format`, `connectors.files.json_format`,
`connectors.files.rdf_format`, `connectors.files.rdf_lines`); parts of files (`connectors.files.fragments`); keys, times,
payload, reading ahead (`connectors.files.source`).
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swjoin.connectors.files.csv_format import csv_batches, csv_line, csv_schema, refuse_mixed_zones
from swjoin.connectors.files.inputs import (
    File,
    file_format,
    open_input,
    open_random,
    open_stream,
    partition_of,
    refusing,
)
from swjoin.connectors.files.json_format import json_batches, json_schema
from swjoin.connectors.files.rdf_format import rdf_batches, rdf_schema
from swjoin.connectors.files.rdf_lines import lines_batches, lines_schema
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

_EDGE_BYTES = 1 << 16  # at either end of a file that the checksum covers


def read_schema(path: File) -> pa.Schema:
    """Column names and types of a file. UserError when it is not what its extension says.

    The columns of a CSV file without rows have the type null. Columns that are empty in its first rows are strings.
    """
    import pyarrow as pa

    schema, rows = _described(path)
    if file_format(path) != "CSV" or not rows:
        return schema
    return pa.schema([f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in schema])


@dataclass(frozen=True)
class Described:
    """The columns of files. file: the file that defines them. untyped: CSV files without rows, whose columns have no types."""

    schema: pa.Schema
    file: File
    untyped: bool


def common_schema(files: list[File]) -> Described:
    """The columns of all these files: those of the first file, or of the first CSV file with rows. A column of the type null,
    which has no values there, gets its type from the first file with another type."""
    import pyarrow.types as t

    describer = files[0]
    schema, rows = _described(describer)
    for path in files[1:] if not rows else ():
        found, rows = _described(path)
        if rows:
            schema, describer = found, path
            break
    if not rows and file_format(describer) == "JSON lines":
        raise UserError(f"{describer}: holds no rows, and nothing else names its columns; leave it out")
    untyped = not rows
    unknown = {f.name for f in schema if t.is_null(f.type) and schema.names.count(f.name) == 1}
    for path in () if untyped else files:
        if not unknown:
            break
        for field in _described(path)[0] if path != describer else ():
            if field.name in unknown and not t.is_null(field.type):
                unknown.remove(field.name)
                schema = schema.set(schema.names.index(field.name), field)
    return Described(schema, describer, untyped)


def _described(path: File) -> tuple[pa.Schema, bool]:
    """Columns of a file and of its folders' names, and whether a CSV file has rows. UserError as in `read_schema`."""
    import pyarrow as pa

    with refusing(path):
        schema, rows = _schema_of(path)
        names = schema.names  # fails when a name is no text
    for name, value in partition_of(path).items():
        if name in names:
            raise UserError(f"{path}: has a column {name}, and its folder {name}=... gives another; rename one of them")
        schema = schema.append(pa.field(name, value.type))
    return schema, rows


def _schema_of(path: File) -> tuple[pa.Schema, bool]:
    import pyarrow.orc as orc
    import pyarrow.parquet as pq

    kind = file_format(path)
    if kind == "Parquet":
        return pq.read_schema(open_input(path)), True
    if kind == "CSV":
        return csv_schema(path)
    if kind == "JSON lines":
        return json_schema(path)
    if kind == "RDF":
        return rdf_schema(), True
    if kind == "RDF lines":
        return lines_schema(), True
    if kind == "ORC":
        return orc.ORCFile(open_input(path)).schema, True
    with open_ipc(path) as reader:
        return reader.schema, True


def open_ipc(path: File) -> Any:
    """A reader of a file's record batches: those of a file with a footer by their index, those of a stream one by one."""
    import pyarrow as pa

    with open_stream(path) as file:
        magic = file.read(6)
    return pa.ipc.open_file(open_input(path)) if magic == b"ARROW1" else pa.ipc.open_stream(open_input(path))


def read_batches(path: File, schema: pa.Schema, columns: list[str], rows: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Batches of one file with these columns. schema: their types. rows: of a batch, about (Parquet). skip: number of rows to
    skip (Parquet)."""
    own = [name for name in columns if name not in partition_of(path)]
    with refusing(path):
        for batch in _batches(path, schema, own, rows, skip):
            yield completed(batch, path, schema, columns)


def completed(batch: pa.RecordBatch, path: File, schema: pa.Schema, columns: list[str]) -> pa.RecordBatch:
    """A batch of a file with the columns that its folders give, and with the schema's types for columns of the type null, which
    have no values."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_null(field.type) and not pa.types.is_null(kind := schema.field(field.name).type):
            batch = batch.set_column(index, field.with_type(kind), pa.nulls(batch.num_rows, kind))
    if not (partition := partition_of(path)):
        return batch
    found = [pa.repeat(partition[n], batch.num_rows) if n in partition else batch.column(n) for n in columns]
    return pa.RecordBatch.from_arrays(found, columns)


def _batches(path: File, schema: pa.Schema, columns: list[str], rows: int, skip: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.orc as orc
    import pyarrow.parquet as pq

    kind = file_format(path)
    if kind == "Parquet":
        with pq.ParquetFile(open_input(path)) as file:
            groups = list(range(file.num_row_groups))
            # an empty row group is read, too: it may be corrupt
            while groups and 0 < skip >= file.metadata.row_group(groups[0]).num_rows:
                skip -= file.metadata.row_group(groups.pop(0)).num_rows
            for batch in file.iter_batches(rows, row_groups=groups, columns=columns):
                if skip < batch.num_rows:
                    yield batch.slice(skip)
                skip = max(0, skip - batch.num_rows)
    elif kind == "CSV":
        yield from csv_batches(path, schema, columns)
    elif kind == "JSON lines":
        yield from json_batches(path, schema, columns)
    elif kind == "RDF":
        yield from rdf_batches(path, columns, rows)
    elif kind == "RDF lines":
        yield from lines_batches(path, columns)
    elif kind == "ORC":
        file = orc.ORCFile(open_input(path))
        for stripe in range(file.nstripes):
            yield file.read_stripe(stripe, columns).select(columns)
    else:
        with open_ipc(path) as reader:
            batches = (
                (reader.get_batch(i) for i in range(reader.num_record_batches))
                if isinstance(reader, pa.RecordBatchFileReader)
                else iter(reader)
            )
            for batch in batches:
                chosen = batch.select(columns)
                chosen.validate(full=True)  # Arrow does not check the lengths and offsets of a file
                yield chosen


def describe_row(path: File, row: int) -> str:
    """A row (counted from 0) of a file, for error messages: in a CSV file by the line that an editor shows."""
    line = csv_line(path, row) if file_format(path) == "CSV" else None
    return f"{path}, row {row} (counting from 0)" if line is None else f"{path}, line {line}"


def refuse_mixed_times(path: File, schema: pa.Schema, name: str) -> None:
    """UserError, with the row, for a time column of a CSV file that is text because only some values have a zone."""
    import pyarrow as pa

    if file_format(path) == "CSV" and schema.names.count(name) == 1 and pa.types.is_string(schema.field(name).type):
        refuse_mixed_zones(path, name)


def row_count(path: File) -> int:
    """Rows of a Parquet file. UserError when it cannot be read."""
    import pyarrow.parquet as pq

    with refusing(path):
        return int(pq.read_metadata(open_input(path)).num_rows)


def edges_checksum(path: File) -> int:
    """CRC-32 of a file's first and last bytes: a rewritten file differs in its footer or its first rows."""
    try:
        with open_random(path) as file:
            checksum = zlib.crc32(file.read(_EDGE_BYTES))
            file.seek(max(0, file.size() - _EDGE_BYTES))
            return zlib.crc32(file.read(_EDGE_BYTES), checksum)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
