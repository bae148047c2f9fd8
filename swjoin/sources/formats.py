"""Files of rows as Arrow batches: Parquet, CSV, Arrow IPC, told apart by their extensions.

What: `list_files`, `read_schema`, `common_schema`, `read_batches`, `refuse_mixed_zones`, `place_in`, `row_count`,
`edges_checksum`.
Why: what these files hold was written by anybody. Whatever a library says about them becomes one line that names the file, and
what it does not look at is looked at here, before kernels that check nothing see it.
Stays out: keys, times, payload, reading ahead (`sources.files`).
"""

from __future__ import annotations

import bz2
import csv
import gzip
import os
import zlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.errors import UserError
from swjoin.shipped import relative_to
from swjoin.storage import check_name

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
_EDGE_BYTES = 1 << 16  # of a file, at either end, that its checksum is of
_TIME = r"^\s*\d{4}-\d\d-\d\d[T ]\d\d"  # of a CSV file, as Arrow reads them
_ZONE = r"^\s*\d{4}-\d\d-\d\d[T ][\d:.,]+\s*(Z|[+-]\d\d(:?\d\d)?)\s*$"
_LONGEST = 1000  # characters of a complaint that a library or a path has a part in


def file_format(path: Path) -> str | None:
    """Format by extension, or None when the extension is not known."""
    name = path.name.lower()
    return next((kind for suffix, kind in _SUFFIXES.items() if name.endswith(suffix)), None)


def list_files(path: Path) -> list[Path]:
    """The data files of a path, in name order. UserError when there are none, or of several formats."""
    check_name(path)
    if not os.path.exists(path):  # unlike Path.exists, it has no opinion on names that are too long
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


@contextmanager
def refusing(path: Path) -> Iterator[None]:
    """UserError, with the file, for whatever a library finds wrong with what is in it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, EOFError, ValueError, OverflowError) as error:
        text = " ".join(str(error).split())[:_LONGEST]
        raise UserError(f"{path}: cannot be read as {file_format(path)}: {text or type(error).__name__}") from None


def _csv_options(schema: pa.Schema | None, columns: list[str] | None) -> Any:
    import pyarrow.csv as pacsv

    types = None if schema is None else {f.name: f.type for f in schema}
    return pacsv.ConvertOptions(
        column_types=types,
        include_columns=columns,
        null_values=[""],  # and not NA, null, nan and the like, which are values as others are
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
    )


def read_schema(path: Path) -> pa.Schema:
    """Column names and types of a file. UserError when it is not what its extension says.

    The columns of a CSV file without rows have the type null: nothing says more of them.
    """
    with refusing(path):
        schema = _schema_of(path)
        _ = schema.names  # which fails where a name is no text
        return schema


def is_untyped(schema: pa.Schema) -> bool:
    """Whether this is the schema of a CSV file without rows."""
    import pyarrow.types as t

    return all(t.is_null(field.type) for field in schema)


def common_schema(files: list[Path]) -> tuple[pa.Schema, Path]:
    """The columns of all these files, and the file that they are read from: the first one, or of CSV files the first one with
    rows, if there is any."""
    first = read_schema(files[0])
    if file_format(files[0]) == "CSV" and is_untyped(first):
        for path in files[1:]:
            schema = read_schema(path)
            if not is_untyped(schema):
                return schema, path
    return first, files[0]


def _schema_of(path: Path) -> pa.Schema:
    import pyarrow as pa
    import pyarrow.parquet as pq

    kind = file_format(path)
    if kind == "Parquet":
        return pq.read_schema(path)
    if kind == "CSV":
        with _open_csv(path, convert_options=_csv_options(None, None)) as reader:
            if is_untyped(reader.schema) and next(iter(reader), None) is None:
                return reader.schema
            return pa.schema([f.with_type(pa.string()) if pa.types.is_null(f.type) else f for f in reader.schema])
    with _open_ipc(path) as reader:
        return reader.schema


def _open_csv(path: Path, **options: Any) -> Any:
    """A header that no line break ends is one, too."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    try:
        return pacsv.open_csv(path, **options)
    except pa.ArrowInvalid:
        if path.stat().st_size > _EDGE_BYTES:
            raise
        with pa.input_stream(str(path)) as file:
            text = file.read()
        if not text.strip() or text.endswith(b"\n"):
            raise
        return pacsv.open_csv(pa.BufferReader(text + b"\n"), **options)


def _open_ipc(path: Path) -> Any:
    import pyarrow as pa

    with path.open("rb") as file:
        magic = file.read(6)
    return pa.ipc.open_file(path) if magic == b"ARROW1" else pa.ipc.open_stream(path)


def read_batches(path: Path, schema: pa.Schema, columns: list[str], rows: int, skip: int = 0) -> Iterator[pa.RecordBatch]:
    """Batches of one file with just these columns, of about so many rows (Parquet). skip: so many rows (of Parquet) are left
    out."""
    with refusing(path):
        yield from _batches(path, schema, columns, rows, skip)


def _batches(path: Path, schema: pa.Schema, columns: list[str], rows: int, skip: int) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    import pyarrow.csv as pacsv
    import pyarrow.parquet as pq

    kind = file_format(path)
    if kind == "Parquet":
        with pq.ParquetFile(path) as file:
            groups = list(range(file.num_row_groups))
            # a row group of no rows is read, too: it may be corrupt
            while groups and 0 < skip >= file.metadata.row_group(groups[0]).num_rows:
                skip -= file.metadata.row_group(groups.pop(0)).num_rows
            for batch in file.iter_batches(rows, row_groups=groups, columns=columns):
                if skip < batch.num_rows:
                    yield batch.slice(skip)
                skip = max(0, skip - batch.num_rows)
    elif kind == "CSV":
        options = pacsv.ReadOptions(block_size=4 << 20)
        try:
            with _open_csv(path, read_options=options, convert_options=_csv_options(schema, columns)) as reader:
                yield from reader
        except pa.ArrowInvalid as error:
            if "zone offset" in str(error):  # which does not say the row
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
                chosen.validate(full=True)  # the library takes lengths and offsets as they stand in the file
                yield chosen


def place_in(path: Path, row: int) -> str:
    """A row (counted from 0) of a file, for complaints: of a CSV file the line that an editor shows."""
    line = _line_of(path, row) if file_format(path) == "CSV" else None
    return f"{path}, row {row} (counting from 0)" if line is None else f"{path}, line {line}"


def _line_of(path: Path, row: int) -> int | None:
    """The line, from 1, on which a row of a CSV file begins. Fields may hold line breaks; empty lines are no rows."""
    openers: dict[str, Callable[..., Any]] = {".gz": gzip.open, ".bz2": bz2.open}
    opened = openers.get(path.suffix.lower(), open)
    try:
        with opened(path, "rt", encoding="utf-8", errors="replace", newline="") as file:
            reader, before, line = csv.reader(file), -1, 1  # the header is no row
            for fields in reader:
                if fields and before == row:
                    return line
                before, line = before + bool(fields), reader.line_num + 1
    except (OSError, EOFError, csv.Error):
        pass
    return None


def refuse_mixed_zones(path: Path, name: str, zoned: bool | None = None) -> None:
    """UserError, with its row, for the first timestamp of a column of a CSV file that has a zone where others have none, or
    the other way round. zoned: whether those before have one; None: as the first one. Nothing happens if there is none."""
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
                    f"{place_in(path, first + row)}: column {name}: {column[row].as_py()!r} has {has[0]}, "
                    f"{has[1]}; give all of them a zone, or none"
                )
            first += batch.num_rows


def refuse_mixed_times(path: Path, schema: pa.Schema, name: str) -> None:
    """UserError, with its row, for a time column of a CSV file that is text because some of its values have a zone."""
    import pyarrow as pa

    if file_format(path) == "CSV" and schema.names.count(name) == 1 and pa.types.is_string(schema.field(name).type):
        refuse_mixed_zones(path, name)


def row_count(path: Path) -> int:
    """Rows of a Parquet file. UserError when it cannot be read."""
    import pyarrow.parquet as pq

    with refusing(path):
        return int(pq.read_metadata(path).num_rows)


def edges_checksum(path: Path) -> int:
    """CRC-32 of a file's first and last bytes: whoever writes a file anew changes its footer, or its first rows."""
    try:
        with path.open("rb") as file:
            checksum = zlib.crc32(file.read(_EDGE_BYTES))
            file.seek(max(0, path.stat().st_size - _EDGE_BYTES))
            return zlib.crc32(file.read(_EDGE_BYTES), checksum)
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
