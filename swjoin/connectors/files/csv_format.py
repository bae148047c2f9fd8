"""CSV and TSV files as Arrow batches.

What: `csv_schema`, `csv_batches`, `csv_line`, `refuse_mixed_zones`, `csv_parse_options`.
Why: Arrow infers types from the first rows, and some of its errors have neither row nor cause; people see lines in an editor.
Stays out: finding files and how they are read (`connectors.files.inputs`), the other formats (`connectors.files.formats`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.files.declared import declared_types
from swjoin.connectors.files.inputs import File, delimiter_of, file_size, open_stream, refusing, text_of
from swjoin.core.errors import UserError, one_line, setting

if TYPE_CHECKING:
    import pyarrow as pa

_TIME = r"^\s*\d{4}-\d\d-\d\d[T ]\d\d"  # a timestamp, as Arrow reads it
_ZONE = r"^\s*\d{4}-\d\d-\d\d[T ][\d:.,]+\s*(Z|[+-]\d\d(:?\d\d)?)\s*$"
_BLOCK_BYTES = 4 << 20  # that are converted at once; also the longest row
_SMALL_BYTES = 1 << 16
_OTHERS = ";|\t,"  # delimiters of files that have one column by the delimiter in use


def csv_parse_options(path: File) -> Any:
    """Parse options of a CSV or TSV file: a quoted field may hold line breaks, also at the end of a block."""
    import pyarrow.csv as pacsv

    return pacsv.ParseOptions(delimiter=delimiter_of(path), newlines_in_values=True)


def _convert_options(path: File, schema: pa.Schema | None, columns: list[str] | None) -> Any:
    """schema: types of columns; None: as declared, others as they are found."""
    import pyarrow.csv as pacsv

    text = text_of(path)
    return pacsv.ConvertOptions(
        column_types=declared_types(text) if schema is None else {f.name: f.type for f in schema},
        include_columns=columns,
        null_values=list(text.nulls),  # by default the empty text alone: NA, null, nan and the like are values
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        timestamp_parsers=[*text.times, pacsv.ISO8601] if text.times else None,
    )


def _open(path: File, schema: pa.Schema | None = None, columns: list[str] | None = None) -> Any:
    """A reader of a file; accepts a header without a line break."""
    import pyarrow as pa
    import pyarrow.csv as pacsv

    options = {
        "convert_options": _convert_options(path, schema, columns),
        "parse_options": csv_parse_options(path),
        "read_options": pacsv.ReadOptions(block_size=_BLOCK_BYTES, encoding=text_of(path).encoding),
    }
    try:
        return pacsv.open_csv(open_stream(path), **options)
    except pa.ArrowInvalid as error:
        _refuse_long_row(path, 0, error)
        if file_size(path) > _SMALL_BYTES:
            raise
        with open_stream(path) as file:
            text = file.read()
        if not text.strip() or text.endswith(b"\n"):
            raise
        return pacsv.open_csv(pa.BufferReader(text + b"\n"), **options)


def _refuse_long_row(path: File, row: int, error: pa.ArrowInvalid) -> None:
    """UserError when the error is a row longer than a block."""
    if "straddl" in str(error):
        raise UserError(
            f"{_place(path, row)}: the row is longer than {_BLOCK_BYTES >> 20} MiB; is a closing quote missing? add it, "
            "or shorten the row"
        ) from None


def csv_schema(path: File) -> tuple[pa.Schema, bool]:
    """The columns of a file, of the type null where its first rows have no values, and whether it has rows or all types are
    declared. UserError when it has a single column with other delimiters in its name."""
    import pyarrow.types as t

    with _open(path) as reader:
        schema = reader.schema
        if len(schema) == 1 and (other := next((c for c in _OTHERS if c in schema.names[0]), None)) is not None:
            remedy = "delimiter=tab" if other == "\t" else f"delimiter='{other}'"
            what = f"{path}: has one column, {schema.names[0][:99]!r}; if {other!r} separates its fields, say "
            raise UserError((what, setting("csv"), f" {remedy}"))
        if not any(t.is_null(field.type) for field in schema):
            return schema, True
        declared = declared_types(text_of(path))
        untyped = all(t.is_null(field.type) or field.name in declared for field in schema)
        return schema, not untyped or next(iter(reader), None) is not None


def csv_batches(path: File, schema: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of a file with these columns. schema: their types."""
    import pyarrow as pa

    count = 0
    try:
        with _open(path, schema, columns) as reader:
            for batch in reader:
                yield batch
                count += batch.num_rows
    except pa.ArrowInvalid as error:
        _refuse_long_row(path, count, error)
        if "zone offset" in str(error):  # the error does not have the row
            for name in columns:
                if pa.types.is_timestamp(schema.field(name).type):
                    refuse_mixed_zones(path, name, schema.field(name).type.tz is not None)
        if "CSV conversion error" in str(error):
            what = f"{path}: cannot be read as CSV: {one_line(error, 500)}; a column's type is that of its first values: "
            raise UserError((what, "declare another with ", setting("csv"), " types='COLUMN: string'")) from None
        raise


def _place(path: File, row: int) -> str:
    line = csv_line(path, row)
    return f"{path}, row {row} (counting from 0)" if line is None else f"{path}, line {line}"


def csv_line(path: File, row: int) -> int | None:
    """The line, from 1, on which a row of a CSV file starts. Fields may hold line breaks; empty lines are no rows."""
    before, line = -1, 1  # the header is no row
    try:
        with io.TextIOWrapper(open_stream(path), encoding=text_of(path).encoding, errors="replace", newline="") as file:
            reader = csv.reader(file, delimiter=delimiter_of(path))
            for fields in reader:
                if fields and before == row:
                    return line
                before, line = before + bool(fields), reader.line_num + 1
    except csv.Error:  # a field is too long for that library
        return line if before == row else None
    except (OSError, EOFError, ValueError):
        pass
    return None


def refuse_mixed_zones(path: File, name: str, zoned: bool | None = None) -> None:
    """UserError, with the row, for the first timestamp in a column of a CSV file that differs from the others in having a
    zone. zoned: whether the others have one; None: as the first timestamp."""
    import pyarrow as pa
    import pyarrow.compute as pc

    first = 0
    text = pa.schema([(name, pa.string())])
    with refusing(path), _open(path, text, [name]) as reader:
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
                    f"{_place(path, first + row)}: column {name}: {column[row].as_py()!r} has {has[0]}, "
                    f"{has[1]}; give all of them a zone, or none"
                )
            first += batch.num_rows
