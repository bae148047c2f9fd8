"""Schemas of live streams in the notation of configurations.

What: `parse_schema`, `check_schema`, `described`.
Why: a live stream's columns are checked before the run starts.
Stays out: values (`connectors.row_encoder`).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from swjoin.connectors.times import zoned
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa


_ZONED = re.compile(r"timestamp\[(s|ms|us|ns), *(?:tz *= *)?([\w/+:-]+)\]")


def parse_schema(text: str, where: str) -> pa.Schema:
    """`name: type, ...` with Arrow's names of types. UserError, prefixed with `where`, for anything else."""
    import pyarrow as pa

    fields: list[pa.Field] = []
    for part in re.split(r",(?![^\[]*\])", text):
        name, separator, kind = (piece.strip() for piece in part.partition(":"))
        if not (name and separator and kind):
            raise UserError(f"{where}: schema: {part.strip()!r}: write NAME: TYPE, such as user: int64, ts: timestamp[us]")
        zoned = _ZONED.fullmatch(kind)
        try:
            found = pa.timestamp(zoned[1], zoned[2]) if zoned else pa.type_for_alias(kind)
        except ValueError:
            raise UserError(
                f"{where}: schema: column {name}: {kind!r} is no Arrow type; int64, double, string, bool, timestamp[us] are"
            ) from None
        if name in (field.name for field in fields):
            raise UserError(f"{where}: schema: column {name} is there twice")
        fields.append(pa.field(name, found))
    return pa.schema(fields)


def check_schema(schema: pa.Schema, expected: pa.Schema) -> None:
    """UserError unless the schema has all expected columns with their types; others are ignored."""
    for field in expected:
        count = schema.names.count(field.name)
        if count != 1:
            there = "is missing" if not count else f"is there {count} times"
            raise UserError(f"wrong schema: column {field.name} {there}; expected {described(expected)}")
        kind = schema.field(field.name).type
        if kind != field.type:
            mixed = {zoned(kind), zoned(field.type)} == {True, False}
            remedy = "; give all of its times a zone, or none" if mixed else ""
            raise UserError(f"wrong schema: column {field.name} is {kind}, expected {field.type}{remedy}")


def described(schema: pa.Schema) -> str:
    """A schema in the notation of configurations."""
    return ", ".join(f"{field.name}: {field.type}" for field in schema)
