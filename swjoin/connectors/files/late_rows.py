"""Side output of late rows (policy `side`): a Parquet file of stream, row id, time and reason.

What: `LateSink`, `late_schema`, `refuse_other_file`.
Why: rows that are not joined can be found.
Stays out: which rows are late (`cluster.gateway.intake`).
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from swjoin.connectors.files.sink import GROUP_ROWS
from swjoin.core.batch import STREAM_NAMES, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import AppendedFile, replacing, writing

if TYPE_CHECKING:
    import pyarrow as pa

_ROW = np.dtype([("stream", "u1"), ("reason", "u1"), ("known", "u1"), ("id", "<u8"), ("ts", "<i8")])
_REASONS = ("null time", "late", "shed")
LATE_ROW_BYTES = _ROW.itemsize
_COLUMNS = ("stream", "row_id", "ts", "reason")


def refuse_other_file(target: Path) -> None:
    """UserError when the file exists and is not one of late rows. Late rows of an earlier join are replaced, like its
    results."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if not target.exists():
        return
    try:
        files = list(target.glob("part-g*.parquet")) if target.is_dir() else [target]
        found = {tuple(pq.read_schema(file).names) for file in files}
    except (OSError, pa.ArrowException):
        found = set()
    if found != {_COLUMNS}:
        raise UserError(f"late rows {target}: is there already, and holds no late rows; move it, or give another name")


def late_schema() -> pa.Schema:
    import pyarrow as pa

    return pa.schema(zip(_COLUMNS, (pa.string(), pa.uint64(), pa.int64(), pa.string()), strict=True))


class LateSink:
    """Columns: stream (string), row_id (uint64), ts (int64 microseconds, null for null times), reason (string).

    rows: file for the rows until the end; None: a temporary file. names: of the streams, by number. part: number of the gateway
    where several of them write; the target is then a directory with a file of each.
    """

    def __init__(
        self,
        target: Path,
        rows: AppendedFile | None = None,
        names: Sequence[str] = STREAM_NAMES,
        part: int | None = None,
    ) -> None:
        if part is not None:
            target = target / f"part-g{part}.parquet"
        self._target, self._names = target, list(names)
        self._kept = rows is not None
        try:
            if rows is None:  # otherwise at the end: a stopped run may go on with another number of gateways
                target.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"{target}: cannot be written ({error.strerror or error})") from None
        self.rows = AppendedFile(target.with_name(f".{target.name}.rows")) if rows is None else rows

    def write(self, stream: int, batch: SourceBatch, reason: str) -> None:
        rows = np.zeros(len(batch), _ROW)
        rows["stream"], rows["reason"] = stream, _REASONS.index(reason)
        rows["known"] = True if batch.ts_valid is None else batch.ts_valid
        rows["id"], rows["ts"] = batch.id, batch.ts
        self.rows.append(rows.tobytes())

    def close(self) -> None:
        self._finish(self._target)

    def abort(self) -> None:
        """The rows of a resumable run stay in their file."""
        if self._kept:
            self.rows.close()
        else:
            self._finish(self._target.with_name(self._target.name + ".incomplete"))

    def _finish(self, target: Path) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        schema = late_schema()
        rows = np.frombuffer(self.rows.read(), _ROW)
        if len(rows) and (int(rows["stream"].max()) >= len(self._names) or int(rows["reason"].max()) >= len(_REASONS)):
            raise RunFailed(f"{self.rows.path}: corrupt: a row of no stream, or for no reason")
        with writing(target):
            target.parent.mkdir(parents=True, exist_ok=True)
        with replacing(target) as temporary, pq.ParquetWriter(temporary, schema) as writer:
            for at in range(0, len(rows), GROUP_ROWS):
                part = rows[at : at + GROUP_ROWS]
                names = [
                    pa.DictionaryArray.from_arrays(pa.array(part[field]), list(names)).cast(pa.string())
                    for field, names in (("stream", self._names), ("reason", _REASONS))
                ]
                times = pa.array(part["ts"].copy(), mask=part["known"] == 0)
                columns = [names[0], pa.array(part["id"].copy()), times, names[1]]
                writer.write_batch(pa.record_batch(columns, schema=schema))
        self.rows.close()
        if not self._kept:
            self.rows.path.unlink()
