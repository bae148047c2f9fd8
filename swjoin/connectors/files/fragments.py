"""Fragments of files: row groups of Parquet, record batches of Arrow IPC files, each of which is read alone.

What: `RowGroups`, `RecordBatches`: an open file, by fragment; `open_fragments`, `row_group_counts`, `why_whole`.
Why: several gateways read one file, each some fragments of it. The other formats do not say where rows are.
Stays out: splits (`connectors.files.splits`), files that are read from their start (`connectors.files.formats`).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from swjoin.connectors.files.formats import completed, open_ipc
from swjoin.connectors.files.inputs import File, file_format, local_path, open_input, partition_of, refusing
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.arrow_views import array_of

if TYPE_CHECKING:
    import pyarrow as pa

_WHOLE = {
    "CSV": "CSV files do not say how many rows they have",
    "JSON lines": "JSON lines files do not say how many rows they have",
    "RDF": "RDF files do not say how many triples they have",
    "RDF lines": "files of lines do not say how many triples they have",
    "ORC": "rows and times of the stripes of ORC files are unknown",  # pyarrow has them of whole files only
}
_BITS = {"INT32": 32, "INT64": 64}


def row_group_counts(file: File) -> list[int]:
    """Rows of each row group of a Parquet file. UserError when it cannot be read."""
    import pyarrow.parquet as pq

    with refusing(file):
        return _counts(pq.read_metadata(open_input(file)))


def _counts(metadata: Any) -> list[int]:
    return [metadata.row_group(index).num_rows for index in range(metadata.num_row_groups)]


def why_whole(files: list[File]) -> str | None:
    """Why these files have no fragments; None if they have. Reads no rows."""
    import pyarrow as pa

    kind = str(file_format(files[0]))
    for file in files if kind == "Arrow IPC" else ():
        with refusing(file), open_ipc(file) as reader:
            if not isinstance(reader, pa.RecordBatchFileReader):
                return f"{file} is an Arrow IPC stream, which does not say how many rows it has"
    return _WHOLE.get(kind)


class RowGroups:
    """The row groups of an open Parquet file. schema: types of its columns. time: the time column."""

    def __init__(self, file: File, schema: pa.Schema, time: str) -> None:
        import pyarrow.parquet as pq

        self._path, self._schema, self._time = file, schema, time
        with refusing(file):
            self._file = pq.ParquetFile(open_input(file))

    @cached_property
    def counts(self) -> list[int]:
        """Rows, by row group."""
        return _counts(self._file.metadata)

    def range_of(self, index: int) -> pa.Array | None:
        """The least and the greatest time of a row group, as the footer has them; nulls if no row has one; None: unknown."""
        import pyarrow as pa

        if self._time in (partition := partition_of(self._path)):
            return pa.repeat(partition[self._time], 1)
        kind = self._schema.field(self._time).type
        with refusing(self._path):
            if pa.types.is_null(self._file.schema_arrow.field(self._time).type):
                return pa.nulls(1, kind)
            found = self._statistics(index)
            if found is None or found.physical_type not in _BITS:
                return None
            if found.has_min_max:
                return _values([found.min_raw, found.max_raw], _BITS[found.physical_type], kind)
            return pa.nulls(1, kind) if found.has_null_count and found.null_count == self.counts[index] else None

    def _statistics(self, index: int) -> Any:
        """Of the time column, or None."""
        schema, group = self._file.metadata.schema, self._file.metadata.row_group(index)
        names = [(schema.column(i).name, schema.column(i).path) for i in range(group.num_columns)]
        number = names.index((self._time, self._time))  # a column within another has another path
        column, expected = group.column(number), schema.column(number).physical_type
        if column.physical_type != expected:  # `statistics` would end the process
            raise ValueError(f"row group {index} has {self._time} as {column.physical_type}, not as {expected}")
        return column.statistics

    def batches(self, index: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a row group."""
        own = [name for name in columns if name not in partition_of(self._path)]
        with refusing(self._path):
            for batch in self._file.iter_batches(BATCH_ROWS, row_groups=[index], columns=own):
                yield completed(batch, self._path, self._schema, columns)


def _values(raw: list[int], bits: int, kind: pa.DataType) -> pa.Array | None:
    """Statistics, which are signed integers of so many bits, as values of the type; None where the type is stored otherwise."""
    import pyarrow.types as t

    if t.is_unsigned_integer(kind):
        return array_of(np.array([value & ((1 << kind.bit_width) - 1) for value in raw], np.uint64)).cast(kind)
    if t.is_integer(kind):
        return array_of(np.array(raw, np.int64)).cast(kind)
    return array_of(np.array(raw, f"i{bits // 8}")).view(kind) if bits == kind.bit_width else None


class RecordBatches:
    """The record batches of an open Arrow IPC file. The time column of local files is mapped into memory."""

    def __init__(self, file: File, schema: pa.Schema, time: str) -> None:
        import pyarrow as pa

        self._path, self._schema, self._time = file, schema, time
        local = local_path(file)
        with refusing(file):
            source = open_input(file) if local is None else pa.memory_map(str(local))
            names = pa.ipc.open_file(source).schema.names
            fields = [names.index(time)] if time in names else []  # none: all
            self._times = pa.ipc.open_file(source, options=pa.ipc.IpcReadOptions(included_fields=fields))

    @cached_property
    def counts(self) -> list[int]:
        """Rows, by record batch."""
        with refusing(self._path):
            return [self._times.get_batch(index).num_rows for index in range(self._times.num_record_batches)]

    @cached_property
    def _columns(self) -> Any:
        """The reader of all columns."""
        return open_ipc(self._path)

    def batches(self, index: int, columns: list[str]) -> Iterator[pa.RecordBatch]:
        """The rows of a record batch."""
        with refusing(self._path):
            batch = (self._times if columns == [self._time] else self._columns).get_batch(index)
            own = batch.select([name for name in columns if name not in partition_of(self._path)])
            own.validate(full=True)  # Arrow does not check the lengths and offsets of a file
            yield completed(own, self._path, self._schema, columns)


OpenFile: TypeAlias = RowGroups | RecordBatches


def open_fragments(file: File, schema: pa.Schema, time: str) -> OpenFile:
    """UserError when the file cannot be read."""
    return (RowGroups if file_format(file) == "Parquet" else RecordBatches)(file, schema, time)
