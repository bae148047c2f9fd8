"""Static tables: inputs of a plan that have no time, and are read whole.

What: `StaticTables(named, limit_bytes)`: called with the name of a table and columns of it, gives them.
Why: lookups find a stream's rows in a table that every process has; each reads it once, and counts it against the memory limit
on the way.
Stays out: lookups (`expressions.lookup`), which columns they read (`plan.columns`), streams (`connectors.files.source`).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from swjoin.config.connectors import StreamConfig
from swjoin.connectors.files.formats import read_batches
from swjoin.connectors.files.source import check_schema, settled
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.columns import Columns
from swjoin.core.errors import UserError, setting
from swjoin.core.row_codec import as_stored, storage
from swjoin.core.units import format_size


class StaticInput(NamedTuple):
    """columns: names and types that the input must have, as `describe_columns` has them."""

    config: StreamConfig
    columns: Sequence[tuple[str, str]]


class StaticTables:
    """The static tables of a run in this process."""

    def __init__(self, inputs: Mapping[str, StaticInput], limit_bytes: int) -> None:
        """inputs: by name. limit_bytes: of all tables together, as they are in memory."""
        self._inputs, self._limit_bytes = inputs, limit_bytes
        self._read: dict[tuple[str, tuple[str, ...]], tuple[Columns | None, int]] = {}
        self._held_bytes = 0
        self._lock = threading.Lock()

    def __call__(self, name: str, columns: tuple[str, ...]) -> tuple[Columns | None, int]:
        """These columns of a table, with types as of `storage`, None for none, and the number of its rows. UserError when its
        files cannot be read, or exceed the limit."""
        with self._lock:
            if (name, columns) not in self._read:
                self._read[name, columns] = self._load(name, columns)
            return self._read[name, columns]

    def _load(self, name: str, columns: tuple[str, ...]) -> tuple[Columns | None, int]:
        import pyarrow as pa

        config, expected = self._inputs[name]
        found, described = settled(config, name, expected)
        schema = described.schema
        stored = pa.schema([(column, storage(schema.field(column).type)) for column in columns])
        wanted = list(columns or schema.names[:1])  # of one column at least, so that rows are counted
        batches, count = [], 0
        for path in () if described.untyped else found.files:
            if path != described.file:
                check_schema(path, schema, wanted, described.file)
            for batch in read_batches(path, schema, wanted, BATCH_ROWS):
                count += batch.num_rows
                if columns:
                    arrays = [as_stored(array, field.type) for array, field in zip(batch.columns, stored, strict=True)]
                    batches.append(pa.RecordBatch.from_arrays(arrays, schema=stored))
                    self._count(name, batches[-1].nbytes)
        if not columns:
            return None, count
        whole = pa.Table.from_batches(batches, stored).combine_chunks().to_batches()
        return Columns(whole[0] if whole else pa.RecordBatch.from_pylist([], schema=stored)), count

    def _count(self, name: str, nbytes: int) -> None:
        self._held_bytes += nbytes
        if self._held_bytes > self._limit_bytes:
            held = "static tables take" if len(self._inputs) > 1 else "it takes"
            problem = f"a static table is read whole, and {held} more than the limit of {format_size(self._limit_bytes)}"
            limit = setting("memory", "module: window")
            remedy = ("raise the limit, ", limit, ", or give it a time and join within bounds of time")
            raise UserError(problem, subject=name, remedy=remedy)
