"""Named columns of tuples between stages, in Arrow's layout.

What: `Columns`, a record batch with take, slice, concat and bytes; `type_named` and `plain_type_named`, Arrow types from text.
Why: stages exchange columns, and pack rows only where windows store them; a plan travels as text, so its types do, too. The
roles handle `Columns` without Arrow.
Stays out: packed rows (`core.row_codec`), messages (`cluster.wire`).
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from swjoin.core.arrow_views import array_of
from swjoin.core.errors import RunFailed, UserError

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Columns:
    """Columns of n tuples."""

    batch: pa.RecordBatch

    def __len__(self) -> int:
        return int(self.batch.num_rows)

    @cached_property
    def nbytes(self) -> int:
        return int(self.batch.nbytes)

    @property
    def names(self) -> list[str]:
        return list(self.batch.schema.names)

    def column(self, name: str) -> pa.Array:
        return self.batch.column(name)

    def take(self, index: NDArray[np.int64]) -> Columns:
        """The tuples with these indexes, in that order."""
        return Columns(self.batch.take(array_of(index)))

    def permuted(self, order: NDArray[np.int64]) -> Columns:
        """All tuples in this order, which has every index once: Arrow does not check it."""
        import pyarrow.compute as pc

        return Columns(pc.take(self.batch, array_of(order), boundscheck=False))

    def slice(self, start: int, stop: int) -> Columns:
        return Columns(self.batch.slice(start, stop - start))

    def select(self, names: Sequence[str]) -> Columns:
        return self if self.names == list(names) else Columns(self.batch.select(list(names)))

    @staticmethod
    def concat(parts: Sequence[Columns]) -> Columns:
        """The tuples of all parts, which have the same columns. At least one part."""
        import pyarrow as pa

        return parts[0] if len(parts) == 1 else Columns(pa.concat_batches([part.batch for part in parts]))

    def to_bytes(self) -> NDArray[np.uint8]:
        """A stream of Arrow IPC, with the schema."""
        import pyarrow as pa

        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, self.batch.schema) as writer:
            writer.write_batch(self.batch)
        return np.frombuffer(sink.getvalue(), np.uint8)

    @staticmethod
    def from_bytes(data: NDArray[np.uint8]) -> Columns:
        """Views into `data`. RunFailed unless the bytes are one whole batch."""
        import pyarrow as pa

        try:
            with pa.ipc.open_stream(pa.py_buffer(data)) as reader:
                batches = list(reader)
                batch = batches[0] if len(batches) == 1 else None
            if batch is not None:
                batch.validate(full=True)
        except (pa.ArrowException, OSError, ValueError, MemoryError) as error:
            raise RunFailed(f"corrupt columns: {' '.join(str(error).split())}") from None
        if batch is None:
            raise RunFailed(f"corrupt columns: {len(batches)} batches instead of one")
        return Columns(batch)


_UNITS = "(s|ms|us|ns)"
_DICTIONARY = re.compile(r"dictionary<values=(.+), indices=(u?int(?:8|16|32|64)), ordered=([01])>")


@lru_cache(1024)
def type_named(text: str) -> pa.DataType:
    """The Arrow type that is written like this, as by `str(type)`. UserError for one without a value in one piece, such as a
    list, or that is unknown."""
    import pyarrow as pa

    if found := _DICTIONARY.fullmatch(text):
        return pa.dictionary(type_named(found[2]), type_named(found[1]), ordered=found[3] == "1")
    if found := re.fullmatch(rf"timestamp\[{_UNITS}(?:, tz=(.+))?\]", text):
        return pa.timestamp(found[1], found[2])
    if found := re.fullmatch(r"date(?:32\[day\]|64\[ms\])", text):
        return pa.date32() if text == "date32[day]" else pa.date64()
    if found := re.fullmatch(rf"(time32|time64|duration)\[{_UNITS}\]", text):
        return getattr(pa, found[1])(found[2])
    if found := re.fullmatch(r"decimal(32|64|128|256)\((\d+), (-?\d+)\)", text):
        make = getattr(pa, f"decimal{found[1]}", None)
        if make is not None:
            return make(int(found[2]), int(found[3]))
    if found := re.fullmatch(r"fixed_size_binary\[(\d+)\]", text):
        return pa.binary(int(found[1]))
    if re.fullmatch(r"null|bool|u?int(8|16|32|64)|(half)?float|double|(large_)?(string|binary)|(string|binary)_view", text):
        names = {"bool": "bool_", "halffloat": "float16", "float": "float32", "double": "float64"}
        return getattr(pa, names.get(text, text))()
    raise UserError(f"type {text} cannot travel between stages", remedy="leave the column out")


def plain_type_named(text: str) -> pa.DataType:
    """The same; of a dictionary the type of its values."""
    kind = type_named(text)
    return getattr(kind, "value_type", kind)
