"""Result files: Parquet and CSV, whole or not there.

What: `FileSink`: rows go to a temporary name beside the target; `close` syncs and renames, `abort` renames to `.incomplete`.
Why: a reader must never take half a result for a whole one, whenever it looks.
Stays out: what a row looks like (`sinks.plan`).

Parquet is written with LZ4 and without dictionaries: results are wide, hardly repeat, and are written once per run at full
speed.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.batch import Pairs
from swjoin.errors import RunFailed, UserError
from swjoin.sinks.plan import OutputPlan

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS = 131_072
FILE_BYTES = 256 << 20


class _OpenFile:
    """One file being written."""

    def __init__(self, kind: str, target: Path, schema: pa.Schema) -> None:
        import pyarrow as pa
        import pyarrow.csv as csv
        import pyarrow.parquet as pq

        self.target = target
        self.temporary = target.with_name(f".{target.name}.{os.getpid()}.tmp")
        compression = "gzip" if target.name.endswith(".gz") else None
        self._stream: Any = pa.output_stream(str(self.temporary), compression=compression)
        self._parquet = kind == "parquet"
        self._writer: Any = (
            pq.ParquetWriter(self._stream, schema, compression="lz4", use_dictionary=False)
            if self._parquet
            else csv.CSVWriter(self._stream, schema)
        )
        self.bytes = 0

    def write(self, table: pa.Table) -> None:
        if self._parquet:
            self._writer.write_table(table, row_group_size=GROUP_ROWS)
        else:
            self._writer.write_table(table)
        self.bytes += table.nbytes

    def _finish(self) -> None:
        self._writer.close()
        self._stream.close()
        with self.temporary.open("rb") as file:
            os.fsync(file.fileno())

    def close(self) -> None:
        self._finish()
        self.temporary.replace(self.target)

    def abort(self) -> None:
        try:
            self._finish()
            self.temporary.replace(self.target.with_name(self.target.name + ".incomplete"))
        except OSError:
            self.temporary.unlink(missing_ok=True)


class FileSink:
    """Writes one file, or a directory of files rolled at about 256 MB. UserError at once when the target cannot be written."""

    def __init__(self, kind: str, target: Path, plan: OutputPlan, *, directory: bool) -> None:
        self._kind = kind
        self._target = target
        self._plan = plan
        self._schema = plan.schema
        self._directory = directory
        self._batches: list[pa.RecordBatch] = []
        self._rows = 0
        self._written: list[_OpenFile] = []
        self._prepare()
        try:
            self._file = self._next_file()
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None

    def _prepare(self) -> None:
        if self._directory:
            try:
                self._target.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise UserError(f"{self._target}: cannot be made ({error.strerror})") from None
            if any(self._target.iterdir()):
                raise UserError(f"{self._target}: is not empty; choose another --out or remove it")
        elif self._target.is_dir():
            raise UserError(f"{self._target}: is a directory; name a file with -o")
        elif not self._target.parent.is_dir():
            raise UserError(f"{self._target}: directory {self._target.parent} does not exist")

    def _next_file(self) -> _OpenFile:
        if not self._directory:
            return _OpenFile(self._kind, self._target, self._schema)
        name = f"part-{len(self._written):05d}.{'parquet' if self._kind == 'parquet' else 'csv'}"
        return _OpenFile(self._kind, self._target / name, self._schema)

    def write(self, pairs: Pairs) -> None:
        self._batches.append(self._plan.decode(pairs))
        self._rows += len(pairs)
        if self._rows >= GROUP_ROWS:
            self._flush()

    def commit(self, epoch: int) -> None:
        """Rows are kept until a row group is full; the run's end makes them visible."""

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._batches:
            return
        table = pa.Table.from_batches(self._batches, self._schema)
        self._batches, self._rows = [], 0
        try:
            self._file.write(table)
            if self._directory and self._file.bytes >= FILE_BYTES:
                self._written.append(self._file)
                self._file.close()
                self._file = self._next_file()
        except OSError as error:
            raise RunFailed(f"{self._file.target}: cannot be written ({error.strerror or error})") from None

    def close(self) -> None:
        self._flush()
        try:
            self._file.close()
        except OSError as error:
            raise RunFailed(f"{self._file.target}: cannot be written ({error.strerror or error})") from None

    def abort(self) -> None:
        """Keep what was collected, under names that say it is not whole."""
        try:
            self._flush()
        except RunFailed:
            self._batches = []
        self._file.abort()
        for file in self._written:
            file.target.replace(file.target.with_name(file.target.name + ".incomplete"))
