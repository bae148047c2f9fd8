"""Record batches in the columns and types of a schema.

What: `fitted` (a batch with a schema's columns), `type_conflict` (why a type is not taken for another).
Why: libraries and versions of libraries have different types for the same values: pandas, polars and DuckDB alone have three
for text, and a column of missing values has no type at all. A stream has one schema, whoever pushes.
Stays out: types within lists and structs, which must be equal; reading frames (`connectors.frames`).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from swjoin.connectors.times import instants, zoned
from swjoin.core.batch import Bool
from swjoin.core.errors import UserError, one_line
from swjoin.core.pair_columns import as_type

if TYPE_CHECKING:
    import pyarrow as pa


def fitted(
    batch: pa.RecordBatch, wanted: pa.Schema, describe_row: Callable[[int], str], zone: str | None = None
) -> pa.RecordBatch:
    """The columns of a stream's schema, in its order and types, every value as it was. UserError when a column is missing or
    there twice, its type is no type of the same values (`type_conflict`), or a value does not fit.

    describe_row: row of the batch, or -1 for the batch -> its description in error messages. zone: times without a zone are
    local times of it, where the schema has a zone.
    """
    import pyarrow as pa

    if batch.schema.equals(wanted):
        return batch
    where, arrays = describe_row(-1), []
    for field in wanted:
        count = batch.schema.names.count(field.name)
        if count != 1:
            there = f"is missing; the stream wants {', '.join(wanted.names)}" if not count else f"is there {count} times"
            raise UserError(f"{where}: column {field.name} {there}")
        array = batch.column(field.name)
        if zone is not None and zoned(array.type) is False and zoned(field.type):
            array = instants(array, zone, partial(_refuse_first, describe_row, field.name))
        arrays.append(_column(array, field, where))
    return pa.record_batch(arrays, schema=wanted)


def _column(array: pa.Array, field: pa.Field, where: str) -> pa.Array:
    """A column in the type of a field."""
    import pyarrow as pa

    if array.type == field.type:
        return array
    if _untyped(array):
        return pa.nulls(len(array), field.type)
    reason = type_conflict(array.type, field.type)
    if reason is not None:
        raise UserError(f"{where}: column {field.name} is {array.type}, the stream wants {field.type}: {reason}")
    try:
        return as_type(array, field.type)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
        raise UserError(
            f"{where}: column {field.name}: {array.type} does not become {field.type} ({one_line(error)})"
        ) from None


def _untyped(array: pa.Array) -> bool:
    """Whether a column has no values, and a type that pandas and others give such columns."""
    import pyarrow.types as t

    return bool(t.is_null(array.type) or (t.is_floating(array.type) and array.null_count == len(array)))


def type_conflict(kind: pa.DataType, wanted: pa.DataType) -> str | None:
    """Why values of a type are not taken for values of another; None when they are, each unless it would change.

    The same values are: text of any type, bytes of any type, integers of any width, integers and floating-point numbers that
    are whole, floating-point numbers and wider ones, integers and decimals, times of any unit (both with a zone or both
    without), durations of any unit, and dictionaries of such values.
    """
    import pyarrow.types as t

    kind, wanted = _plain(kind), _plain(wanted)
    pair = zoned(kind), zoned(wanted)
    if pair in ((True, False), (False, True)):
        return "one has a time zone, the other has none; push times with the stream's kind, or declare the stream so"
    timed, number = (kind, wanted) if pair[0] is not None else (wanted, kind)
    if zoned(timed) is not None and (t.is_integer(number) or t.is_floating(number)):
        return "a number has no unit; cast it first"
    if t.is_null(wanted) and kind != wanted:
        return "its first batch had no values in this column, so the type is not known; give the side's schema"
    families = _family(kind), _family(wanted)
    if families == ("float", "float") and kind.bit_width > wanted.bit_width:
        return "its values would be rounded; cast it first"
    mixed = {("integer", "float"), ("float", "integer"), ("integer", "decimal"), ("date", "timestamp")}
    return None if families[0] == families[1] or families in mixed or t.is_null(kind) else "cast it first"


def _plain(kind: pa.DataType) -> pa.DataType:
    """The type of a dictionary's values; of others the type itself."""
    import pyarrow as pa

    return _plain(kind.value_type) if pa.types.is_dictionary(kind) else kind


def _family(kind: pa.DataType) -> str:
    """Types of one family hold the same values."""
    import pyarrow.types as t

    families = {
        "text": (t.is_string, t.is_large_string, t.is_string_view),
        "bytes": (t.is_binary, t.is_large_binary, t.is_binary_view, t.is_fixed_size_binary),
        "integer": (t.is_integer,),
        "float": (t.is_floating,),
        "decimal": (t.is_decimal,),
        "date": (t.is_date,),
        "timestamp": (t.is_timestamp,),
        "duration": (t.is_duration,),
        "time": (t.is_time,),
    }
    return next((name for name, tests in families.items() if any(test(kind) for test in tests)), str(kind))


def _refuse_first(describe_row: Callable[[int], str], name: str, wrong: Bool, what: str) -> None:
    if wrong.any():
        raise UserError(f"{describe_row(int(wrong.argmax()))}: column {name} {what}")
