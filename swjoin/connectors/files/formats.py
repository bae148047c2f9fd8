"""File formats: Parquet, CSV and Arrow IPC, selected by extension, as Arrow batches.

What: `list_files`, `unread_text`, `read_schema`, `common_schema`, `read_batches`, `refuse_mixed_zones`, `describe_row`,
`row_count`, `edges_checksum`.
Why: files are untrusted. Every error of a library becomes one line that names the file, and what a library does not check is
checked here, before the rows reach kernels without checks.
Stays out: keys, times, payload, reading ahead (`connectors.files.source`).
"""

from __future__ import annotations

import bz2
import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.errors import UserError, one_line
from swjoin.core.resources import relative_to
from swjoin.core.storage import check_name

if TYPE_CHECKING:
    import pyarrow as pa

_SUFFIXES = {
    ".parquet": "Parquet",
    ".pq": "Parquet",
    ".csv": "CSV",
    ".csv.gz": "CSV",
    ".csv.bz2": "CSV",
    ".arrow": "Arrow IPC",
    ".feather": "Arrow IPC",
    ".ipc": "Arrow IPC",
    ".arrows": "Arrow IPC",
}
_EDGE_BYTES = 1 << 16  # at either end of a file that the checksum covers
_TIME = r"^\s*\d{4}-\d\d-\d\d[T ]\d\d"  # a timestamp in CSV, as Arrow reads it
_ZONE = r"^\s*\d{4}-\d\d-\d\d[T ][\d:.,]+\s*(Z|[+-]\d\d(:?\d\d)?)\s*$"
_BLOCK_BYTES = 4 << 20  # of a CSV file that are converted at once; also the longest row
_SHOWN = 5  # directory entries in a message
_LONGEST = 1000  # characters of an error message with text of a library, or of a path


def file_format(path: Path) -> str | None:
    """Format by extension; None for an unknown extension."""
    name = path.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def list_files(path: Path) -> list[Path]:
    """The data files of a path, in name order. UserError when there are none, or of several formats."""
    check_name(path)
    if not os.path.exists(path):  # unlike Path.exists, it accepts names that are too long
        raise UserError(f"{str(path)[:_LONGEST]}: no such file or directory{relative_to(path)}")
    if path.is_file():
        if file_format(path) is None:
            raise UserError(f"{path}: unknown extension; known are {', '.join(_SUFFIXES)}")
        return [path]
    if not path.is_dir():
        raise UserError(f"{path}: is neither a file nor a directory; pipes and devices cannot be read twice: save it as a file")
    files = sorted(p for p in path.iterdir() if p.is_file() and p.name[0] not in "._" and file_format(p) is not None)
    if not files:
        raise UserError(f"{path}: holds no data files ({', '.join(_SUFFIXES)})")
    for file in files:
        check_name(file)
    formats = {file_format(p) for p in files}
    if len(formats) > 1:
        raise UserError(f"{path}: mixes {' and '.join(sorted(str(f) for f in formats))}; keep one format per directory")
    return files


def unread_text(path: Path) -> str | None:
    """A warning about entries of a directory that are not data files; None when there are none. Names that start with `_` or
    `.` are marks of the writer, and are ignored."""
    if not os.path.isdir(path):
        return None
    names = sorted(p.name for p in path.iterdir() if p.name[0] not in "._" and not (p.is_file() and file_format(p)))
    if not names:
        return None
    shown = [n if n.isprintable() else ascii(n) for n in names[:_SHOWN]]
    listed = ", ".join(shown) + (f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else "")
    many = f"{len(names)} entries are" if len(names) > 1 else "1 entry is"
    return f"{path}: {many} not read: {listed}; name files of one format, or give their folder"


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """Turns errors of libraries into UserError with the file."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
        text = one_line(error, _LONGEST)
        raise UserError(f"{path}: cannot be read as {file_format(path)}: {text or type(error).__name__}") from None


def csv_parse_options() -> Any:
    """Parse options of all CSV files: a quoted field may hold line breaks, also at the end of a block."""
    import pyarrow.csv as pacsv

    return pacsv.ParseOptions(newlines_in_values=True)


def _csv_options(schema: pa.Schema | None, columns: list[str] | None) -> Any:
    import pyarrow.csv as pacsv

    types = None if schema is None else {f.name: f.type for f in schema}
    return pacsv.ConvertOptions(
        column_types=types,
        include_columns=columns,
        null_values=[""],  # NA, null, nan and the like are values
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def read_schema(path: Path) -> pa.Schema:
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
    file: Path
    untyped: bool


def common_schema(files: list[Path]) -> Described:
    """The columns of all these files: those of the first file, or of the first CSV file with rows. A column of the type null,
    which has no values there, gets its type from the first file with another type."""
    import pyarrow.types as t

    describer = files[0]
    schema, rows = _described(describer)
    for path in files[1:] if file_format(describer) == "CSV" and not rows else ():
        found, rows = _described(path)
        if rows:
            schema, describer = found, path
            break
    untyped = file_format(describer) == "CSV" and not rows
    unknown = {f.name for f in schema if t.is_null(f.type) and schema.names.count(f.name) == 1}
    for path in () if untyped else files:
        if not unknown:
            break
        for field in _described(path)[0] if path != describer else ():
            if field.name in unknown and not t.is_null(field.type):
                unknown.remove(field.name)
                schema = schema.set(schema.names.index(field.name), field)
    return Described(schema, describer, untyped)


def _described(path: Path) -> tuple[pa.Schema, bool]:
    """Columns of a file, and whether a CSV file has rows. UserError as in `read_schema`."""
    with refusing(path):
        schema, rows = _schema_of(path)
        _ = schema.names  # fails when a name is no text
        return schema, rows


def _schema_of(path: Path) -> tuple[pa.Schema, bool]:
    import pyarrow.parquet as pq
    import pyarrow.types as t

    kind = file_format(path)
    if kind == "Parquet":
        return pq.read_schema(path), True
    if kind == "CSV":
        with _open_csv(path, convert_options=_csv_options(None, None)) as reader:
            untyped = all(t.is_null(field.type) for field in reader.schema)
            return reader.schema, not untyped or next(iter(reader), None) is not None
    with _open_ipc(path) as reader:
        return reader.schema, True


def _open_csv(path: Path, **options: Any) -> Any:
    """A reader of a CSV file; accepts a header without a line break."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options |= {"parse_options": csv_parse_options(), "read_options": pacsv.ReadOptions(block_size=_BLOCK_BYTES)}
    try:
        return pacsv.open_csv(path, **options)
    except pa.ArrowInvalid as error:
        _refuse_long_row(path, 0, error)
        if path.stat().st_size > _EDGE_BYTES:
            raise
        with pa.input_stream(str(path)) as file:
            text = file.read()
        if not text.strip() or text.endswith(b"\n"):
            raise
        return pacsv.open_csv(pa.BufferReader(text + b"\n"), **options)


def _refuse_long_row(path: Path, row: int, error: pa.ArrowInvalid) -> None:
    """UserError when the error is a row longer than a block."""
    if "straddl" in str(error):
        raise UserError(
            f"{describe_row(path, row)}: the row is longer than {_BLOCK_BYTES >> 20} MiB; is a closing quote missing? add it, "
            "or shorten the row"
        ) from None


def _open_ipc(path: Path) -> Any:
    import pyarrow as pa

    with path.open("rb") as file:
        magic = file.read(6)
    return pa.ipc.open_file(path) if magic == b"ARROW1" else pa.ipc.open_stream(path)


def read_batches(path: Path, schema: pa.Schema, columns: list[str], rows: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Batches of one file with these columns. schema: their types. rows: of a batch, about (Parquet). skip: number of rows to
    skip (Parquet)."""
    with refusing(path):
        yield from _batches(path, schema, columns, rows, skip)


def _batches(path: Path, schema: pa.Schema, columns: list[str], rows: int, skip: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = file_format(path)
    if kind == "Parquet":
        with pq.ParquetFile(path) as file:
            groups = list(range(file.num_row_groups))
            # an empty row group is read, too: it may be corrupt
            while groups and 0 < skip >= file.metadata.row_group(groups[0]).num_rows:
                skip -= file.metadata.row_group(groups.pop(0)).num_rows
            for batch in file.iter_batches(rows, row_groups=groups, columns=columns):
                if skip < batch.num_rows:
                    yield _with_types(batch, schema).slice(skip)
                skip = max(0, skip - batch.num_rows)
    elif kind == "CSV":
        count = 0
        try:
            with _open_csv(path, convert_options=_csv_options(schema, columns)) as reader:
                for batch in reader:
                    yield batch
                    count += batch.num_rows
        except pa.ArrowInvalid as error:
            _refuse_long_row(path, count, error)
            if "zone offset" in str(error):  # the error does not have the row
                for name in columns:
                    if pa.types.is_timestamp(schema.field(name).type):
                        refuse_mixed_zones(path, name, schema.field(name).type.tz is not None)
            raise
    else:
        with _open_ipc(path) as reader:
            batches = (
                (reader.get_batch(i) for i in range(reader.num_record_batches))
                if isinstance(reader, pa.RecordBatchFileReader)
                else iter(reader)
            )
            for batch in batches:
                chosen = batch.select(columns)
                chosen.validate(full=True)  # Arrow does not check the lengths and offsets of a file
                yield _with_types(chosen, schema)


def _with_types(batch: pa.RecordBatch, schema: pa.Schema) -> pa.RecordBatch:
    """The batch with the schema's types for columns of the type null, which have no values."""
    import pyarrow as pa

    for index, field in enumerate(batch.schema):
        if pa.types.is_null(field.type) and not pa.types.is_null(kind := schema.field(field.name).type):
            batch = batch.set_column(index, field.with_type(kind), pa.nulls(batch.num_rows, kind))
    return batch


def describe_row(path: Path, row: int) -> str:
    """A row (counted from 0) of a file, for error messages: in a CSV file by the line that an editor shows."""
    line = _line_of(path, row) if file_format(path) == "CSV" else None
    return f"{path}, row {row} (counting from 0)" if line is None else f"{path}, line {line}"


def _line_of(path: Path, row: int) -> int | None:
    """The line, from 1, on which a row of a CSV file starts. Fields may hold line breaks; empty lines are no rows."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    opened = openers.get(path.suffix.lower(), open)
    before, line = -1, 1  # the header is no row
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            reader = csv.reader(file)
            for fields in reader:
                if fields and before == row:
                    return line
                before, line = before + bool(fields), reader.line_num + 1
    except csv.Error:  # a field is too long for that library
        return line if before == row else None
    except (OSError, EOFError):
        pass
    return None


def refuse_mixed_zones(path: Path, name: str, zoned: bool | None = None) -> None:
    """UserError, with the row, for the first timestamp in a column of a CSV file that differs from the others in having a
    zone. zoned: whether the others have one; None: as the first timestamp."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = 0
    text = pa.schema([(name, pa.string())])
    with refusing(path), _open_csv(path, convert_options=_csv_options(text, [name])) as reader:
        for batch in reader:
            column = batch.column(0)
            times, zones = (np.asarray(pc.match_substring_regex(column, p).fill_null(False)) for p in (_TIME, _ZONE))
            if zoned is None and times.any():
                zoned = bool(zones[times.argmax()])
            wrong = times & (zones != bool(zoned))
            if wrong.any():
                row = int(wrong.argmax())
                has = ("no time zone", "those before have one") if zoned else ("a time zone", "those before have none")
                raise UserError(
                    f"{describe_row(path, first + row)}: column {name}: {column[row].as_py()!r} has {has[0]}, "
                    f"{has[1]}; give all of them a zone, or none"
                )
            first += batch.num_rows


def refuse_mixed_times(path: Path, schema: pa.Schema, name: str) -> None:
    """UserError, with the row, for a time column of a CSV file that is text because only some values have a zone."""
    import pyarrow as pa

    if file_format(path) == "CSV" and schema.names.count(name) == 1 and pa.types.is_string(schema.field(name).type):
        refuse_mixed_zones(path, name)


def row_count(path: Path) -> int:
    """Rows of a Parquet file. UserError when it cannot be read."""
    import pyarrow.parquet as pq

    with refusing(path):
        return int(pq.read_metadata(path).num_rows)


def edges_checksum(path: Path) -> int:
    """CRC-32 of a file's first and last bytes: a rewritten file differs in its footer or its first rows."""
    try:
        with path.open("rb") as file:
            checksum = zlib.crc32(file.read(_EDGE_BYTES))
            file.seek(max(0, path.stat().st_size - _EDGE_BYTES))
            return zlib.crc32(file.read(_EDGE_BYTES), checksum)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
