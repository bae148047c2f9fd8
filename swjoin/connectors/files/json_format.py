"""JSON lines as Arrow batches: an object per line, a column per field.

What: `json_schema`, `json_batches`.
Why: Arrow's reader takes texts for times only without fractions, and drops their time zone without an error.
Stays out: finding files (`connectors.files.inputs`), the other formats (`connectors.files.formats`).

Columns and types are those of the first 4 MiB. A text column all of whose values there are times is a time column, with a zone
or without, as in CSV files. A field that a row lacks is null; fields that the first rows lack are not read.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from swjoin.connectors.files.declared import declared_types
from swjoin.connectors.files.inputs import File, open_stream, text_of
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa

_BLOCK_BYTES = 4 << 20  # that are parsed at once; also the longest row


def json_schema(path: File) -> tuple[pa.Schema, bool]:
    """The columns of a file, and whether it has rows."""
    import pyarrow as pa

    if _empty(path):
        return pa.schema([]), False
    with _open(path, None) as reader:
        inferred = reader.schema
    with _open(path, pa.schema([field.with_type(_with_text(field.type)) for field in inferred])) as reader:
        batch = next(iter(reader))
    declared = declared_types(text_of(path))
    fields = zip(batch.schema, batch.columns, strict=True)
    return pa.schema([field.with_type(declared.get(field.name) or _time_type(column)) for field, column in fields]), True


def json_batches(path: File, schema: pa.Schema, columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Batches of a file with these columns. schema: their types. UserError for a text that is no time in a time column."""
    import pyarrow as pa

    wanted = pa.schema([schema.field(name) for name in columns])
    read = pa.schema([f.with_type(pa.string()) if pa.types.is_timestamp(f.type) else f for f in wanted])
    rows = 0
    if _empty(path):
        return
    with _open(path, read) as reader:
        for batch in reader:
            chosen = batch.select(columns)
            for index, field in enumerate(wanted):
                if pa.types.is_timestamp(field.type):
                    chosen = chosen.set_column(index, field, _times(chosen.column(index), field, path, rows))
            yield chosen
            rows += batch.num_rows


def _empty(path: File) -> bool:
    with open_stream(path) as text:
        return not text.read(_BLOCK_BYTES).strip()


def _open(path: File, schema: pa.Schema | None) -> Any:
    import pyarrow.json as pj

    fields = "infer" if schema is None else "ignore"
    options = pj.ParseOptions(explicit_schema=schema, unexpected_field_behavior=fields, newlines_in_values=False)
    return pj.open_json(open_stream(path), pj.ReadOptions(block_size=_BLOCK_BYTES), options)


def _with_text(kind: pa.DataType) -> pa.DataType:
    """The type with text for times, at any depth."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_timestamp(kind):
        return pa.string()
    if t.is_struct(kind):
        return pa.struct([field.with_type(_with_text(field.type)) for field in kind])
    return pa.list_(_with_text(kind.value_type)) if t.is_list(kind) else kind


def _time_type(column: pa.Array) -> pa.DataType:
    """Of a text column that holds times alone, the type of these; of any other column its own."""
    import pyarrow as pa

    if pa.types.is_string(column.type) and column.null_count < len(column):
        for kind in (pa.timestamp(unit, zone) for unit in ("us", "ns") for zone in (None, "UTC")):
            try:
                column.cast(kind)
            except pa.ArrowInvalid:
                continue
            return kind
    return column.type


def _times(column: pa.Array, field: pa.Field, path: File, first: int) -> pa.Array:
    import pyarrow as pa

    try:
        return column.cast(field.type)
    except pa.ArrowInvalid:
        row = next(row for row in range(len(column)) if not _is_time(column[row], field.type))
        zone = "without" if field.type.tz is None else "with"
        raise UserError(
            f"{path}, row {first + row} (counting from 0): column {field.name}: {column[row].as_py()!r} is no time {zone} a "
            "time zone, as those before are"
        ) from None


def _is_time(value: pa.Scalar, kind: pa.DataType) -> bool:
    import pyarrow as pa

    try:
        value.cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
