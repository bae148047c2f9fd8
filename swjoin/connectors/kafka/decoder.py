"""Decoding of messages (JSON objects or Arrow IPC streams) to Arrow batches of a declared schema.

What: `MessageDecoder`; `Decoded`, which has the message of every row.
Why: the content of a message is untrusted and cannot be corrected. An unusable message must neither end the run nor vanish: a
row of nulls represents it, and the join counts that row among the null keys.
Stays out: consuming messages (`connectors.kafka.source`).

JSON messages are parsed together, each wrapped as `{"m":MESSAGE}` and a line end. Two wrapped messages cannot parse as one
value, because `}` followed by `{` occurs between values only. So every message gives at least one row, and equal numbers of
rows and messages mean one row each. After an error the messages are bisected until the unusable one is found. Timestamps are
parsed as text first: Arrow's JSON reader accepts a zoned timestamp for a column without a zone, and the reverse.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from swjoin.connectors.schema import check_schema
from swjoin.connectors.times import zoned
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import SwjoinError, UserError, one_line

if TYPE_CHECKING:
    import pyarrow as pa

STAMP = "_timestamp"  # name of the column with the messages' own times


@dataclass(frozen=True)
class Decoded:
    """n rows. message: (n,) index of each row's message, ascending. unusable: (n,) rows that represent an unusable message."""

    batch: pa.RecordBatch
    message: I64
    unusable: Bool


class MessageDecoder:
    """schema: the columns to decode. check: raises SwjoinError for an unusable batch. id: name of the row id column. UserError
    when the format cannot represent the schema."""

    def __init__(
        self,
        format: Literal["json", "arrow"],
        schema: pa.Schema,
        check: Callable[[pa.RecordBatch], object],
        id: str | None,
    ) -> None:
        import pyarrow as pa

        self._schema, self._check, self._id = schema, check, id
        self.complaint: str | None = None  # error of the first unusable message
        self._sent = pa.schema([field for field in schema if field.name != STAMP])
        self._decode = self._json if format == "json" else self._arrow
        self._refused = (pa.ArrowException, SwjoinError, OSError, EOFError, ValueError, OverflowError, MemoryError)
        if STAMP in schema.names and not zoned(schema.field(STAMP).type):
            raise UserError(
                f"schema: column {STAMP} is the messages' own time; declare it as a timestamp with a zone, such as "
                "timestamp[ms, tz=UTC]"
            )
        if format == "json":
            for field in self._sent:
                try:
                    _parsed([b"{}"], pa.schema([field]))
                except pa.ArrowNotImplementedError:
                    raise UserError(
                        f"schema: column {field.name}: JSON cannot be read as {field.type}; declare another type, or send arrow"
                    ) from None

    def decode(self, messages: Sequence[bytes | None], stamps_ms: I64) -> Decoded:
        """messages: (m,) contents, None for an empty one. stamps_ms: (m,) their own times, negative for a message without."""
        return self._decode(messages, stamps_ms)

    def _complain(self, error: Exception) -> None:
        if self.complaint is None:
            self.complaint = one_line(error) or type(error).__name__

    # ------------------------------------------------------------ formats

    def _json(self, messages: Sequence[bytes | None], stamps_ms: I64) -> Decoded:
        try:
            columns, valid = _parsed([b"null" if m is None else m for m in messages], self._sent)
            batch = self._finished(columns, stamps_ms, ~valid)
            return Decoded(batch, np.arange(len(messages)), ~valid)
        except self._refused as error:
            if len(messages) == 1:
                self._complain(error)
                return self._null_row()
            half = len(messages) // 2
            return _joined([self._json(messages[:half], stamps_ms[:half]), self._json(messages[half:], stamps_ms[half:])], half)

    def _arrow(self, messages: Sequence[bytes | None], stamps_ms: I64) -> Decoded:
        import pyarrow as pa

        parts = []
        for index, message in enumerate(messages):
            try:
                if message is None:
                    raise ValueError("no content")
                with pa.ipc.open_stream(message) as reader:
                    table = reader.read_all().combine_chunks()
                table.validate(full=True)  # Arrow does not check the lengths and offsets of a message
                batch = pa.record_batch([_whole(column) for column in table.columns], schema=table.schema)
                check_schema(batch.schema, self._sent)
                batch = batch.select(self._sent.names)
                stamps = np.full(batch.num_rows, stamps_ms[index])
                good = self._finished(batch.columns, stamps, np.zeros(batch.num_rows, np.bool_))
                part = Decoded(good, np.full(good.num_rows, index), np.zeros(good.num_rows, np.bool_))
            except self._refused as error:
                self._complain(error)
                null = self._null_row()
                part = Decoded(null.batch, np.full(1, index), null.unusable)
            parts.append(part)
        return _together(parts)

    # ------------------------------------------------------------ rows

    def _finished(self, columns: list[pa.Array], stamps_ms: I64, unusable: Bool) -> pa.RecordBatch:
        """Columns with message times and, for rows that represent a message, an id. Raises what `check` raises."""
        import pyarrow as pa

        by_name = dict(zip(self._sent.names, columns, strict=True))
        if STAMP in self._schema.names:
            mask = unusable | (stamps_ms < 0)
            by_name[STAMP] = pa.array(stamps_ms, pa.timestamp("ms"), mask=mask).cast(self._schema.field(STAMP).type)
        if self._id is not None and unusable.any():
            import pyarrow.compute as pc

            column = by_name[self._id]
            by_name[self._id] = pc.if_else(pa.array(unusable), _no_id(column.type), column)
        batch = pa.record_batch([by_name[name] for name in self._schema.names], schema=self._schema)
        batch.validate(full=True)
        self._check(batch)
        return batch

    def _null_row(self) -> Decoded:
        """One row of nulls."""
        import pyarrow as pa

        unusable = np.ones(1, np.bool_)
        batch = self._finished([pa.nulls(1, field.type) for field in self._sent], np.full(1, -1), unusable)
        return Decoded(batch, np.zeros(1, np.int64), unusable)


def _no_id(kind: pa.DataType) -> pa.Scalar:
    """The id of a row that represents a message: all bits set."""
    import pyarrow as pa

    return pa.scalar((1 << kind.bit_width) - 1 if pa.types.is_unsigned_integer(kind) else -1, kind)


def _parsed(messages: list[bytes], schema: pa.Schema) -> tuple[list[pa.Array], Bool]:
    """Columns, and which messages are an object. Raises for a message that is neither object nor null, or has other types."""
    import pyarrow as pa
    import pyarrow.json as pj

    data = b'{"m":' + b'}\n{"m":'.join(messages) + b"}\n"
    texts = [pa.field(f.name, pa.string()) if pa.types.is_timestamp(f.type) else f for f in schema]
    wrapped = pa.schema([("m", pa.struct(texts))])
    table = pj.read_json(
        pa.py_buffer(data),
        # One block: a message may hold line ends.
        read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
        parse_options=pj.ParseOptions(explicit_schema=wrapped, unexpected_field_behavior="ignore"),
    )
    if table.num_rows != len(messages):
        raise ValueError("a message holds more than one object")
    column = _whole(table.column("m"))
    columns = [_timed(array, field) for array, field in zip(column.flatten(), schema, strict=True)]
    return columns, np.asarray(column.is_valid().to_numpy(zero_copy_only=False), np.bool_)


def _timed(column: pa.Array, field: pa.Field) -> pa.Array:
    """Text as timestamps. UserError where only one of text and type has a zone."""
    import pyarrow as pa

    if column.type == field.type:
        return column
    try:
        return column.cast(field.type)
    except pa.ArrowInvalid as error:
        raise UserError(f"column {field.name}, declared as {field.type}: {error}") from None


def _whole(column: pa.ChunkedArray) -> pa.Array:
    import pyarrow as pa

    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays(column.chunks or [pa.nulls(0, column.type)])


def _joined(parts: list[Decoded], half: int) -> Decoded:
    """Two halves of the same messages."""
    first, second = parts
    return _together([first, Decoded(second.batch, second.message + half, second.unusable)])


def _together(parts: list[Decoded]) -> Decoded:
    import pyarrow as pa

    if len(parts) == 1:
        return parts[0]
    batch = pa.concat_batches([part.batch for part in parts])
    return Decoded(batch, np.concatenate([p.message for p in parts]), np.concatenate([p.unusable for p in parts]))
