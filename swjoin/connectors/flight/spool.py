"""Write-ahead spool of a stream that producers push.

What: `Spool`, merged rows on disk since the oldest checkpoint in use, in a run with one gateway; `RecordFiles`, what it has in
common with the spool of several gateways; `unpack_batch`.
Why: a producer may discard accepted rows: a recovery, or a resumed run, reads them from the spool.
Stays out: what is accepted (`connectors.flight.source`), the spool of several gateways (`connectors.flight.shared_spool`).
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import numpy as np

from swjoin.core.batch import U8
from swjoin.core.errors import RunFailed
from swjoin.core.storage import RecordFile, read_whole_records, writing

if TYPE_CHECKING:
    import pyarrow as pa

_FILE_BYTES = 32 << 20
_LENGTH_BYTES = 8


class RecordFiles:
    """Merged batches of one stream as records in files of about 32 MB. name: of the stream."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, quote(name, safe="").replace("-", "%2D")
        self._file: RecordFile | None = None

    @property
    def _is_full(self) -> bool:
        """Whether another file is to begin."""
        return self._file is None or self._file.nbytes >= _FILE_BYTES

    def _begin(self, name: str) -> None:
        self.close()
        self._file = RecordFile(self._folder / name)

    def _write(self, head: dict[str, Any], batch: pa.RecordBatch) -> Path:
        """Append a record that survives this process; returns its file."""
        assert self._file is not None, "no file has begun"
        self._file.append(_pack_batch(head, batch))
        self._file.flush()
        return self._file.path

    def _remove(self, paths: Iterable[Path]) -> None:
        self.close()
        for path in paths:
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the other stream's files may be there
            self._folder.rmdir()

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None


class Spool(RecordFiles):
    """The files are named by their first row."""

    def _files(self) -> list[tuple[int, Path]]:
        """First rows and files, in order."""
        if not self._folder.is_dir():
            return []
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)\.spool")
        return sorted((int(m[1]), path) for path in self._folder.iterdir() if (m := pattern.fullmatch(path.name)))

    def append(self, row: int, batch: pa.RecordBatch, position: dict[str, Any]) -> None:
        """Append a batch whose first row is `row`; `position` is the merge's position after it. The batch survives this
        process."""
        if self._is_full:
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            self._begin(f"{self._name}-{row:015d}.spool")
        self._write({"row": row, "position": position}, batch)

    def from_row(self, row: int, *, within: bool = False) -> list[tuple[int, pa.RecordBatch, dict[str, Any]]]:
        """All batches from this row on: first row, batch, position after it. within: the row may be in the middle of a batch,
        of which the rest is returned. RunFailed when the row is not stored."""
        if self._file is not None:
            self._file.flush()
        out: list[tuple[int, pa.RecordBatch, dict[str, Any]]] = []
        expected = row
        files = self._files()
        for index, (_, path) in enumerate(files):
            if index + 1 < len(files) and files[index + 1][0] < row:
                continue
            for record in read_whole_records(path):
                head, batch = unpack_batch(record, path)
                with reading_records(path):
                    start, position = int(head["row"]), head["position"]
                if start < row and start + batch.num_rows <= row:
                    continue
                if within and start < row:
                    batch, start = batch.slice(row - start), row
                if start != expected:
                    raise RunFailed(f"{path}: goes on at row {start}, no batch begins with row {expected}")
                out.append((start, batch, position))
                expected = start + batch.num_rows
        return out

    def forget(self, row: int) -> None:
        """Delete files that hold only rows before this one."""
        files = self._files()
        for (_, path), (following, _) in itertools.pairwise(files):
            if following <= row:
                path.unlink(missing_ok=True)

    def remove(self) -> None:
        """Delete all files."""
        self._remove(path for _, path in self._files())


def _pack_batch(head: dict[str, Any], batch: pa.RecordBatch) -> U8:
    """A record: JSON values, and rows."""
    import pyarrow as pa

    text = json.dumps(head).encode()
    sink = pa.BufferOutputStream()
    sink.write(len(text).to_bytes(_LENGTH_BYTES, "little") + text)
    with pa.ipc.new_stream(sink, batch.schema) as writer:
        writer.write_batch(batch)
    return np.frombuffer(sink.getvalue(), np.uint8)


def unpack_batch(record: U8, path: Path) -> tuple[dict[str, Any], pa.RecordBatch]:
    """A record of these files. RunFailed names its file when it is none."""
    import pyarrow as pa

    with reading_records(path):
        length = int.from_bytes(record[:_LENGTH_BYTES].tobytes(), "little")
        head = json.loads(record[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        with pa.ipc.open_stream(pa.py_buffer(record[_LENGTH_BYTES + length :])) as reader:
            return head, reader.read_next_batch()


@contextmanager
def reading_records(path: Path) -> Iterator[None]:
    """RunFailed names this file when a record has other content than it should."""
    import pyarrow as pa

    try:
        yield
    except (ValueError, KeyError, TypeError, StopIteration, pa.ArrowException) as error:
        raise RunFailed(f"{path}: corrupt: a record is no batch of rows ({error})") from None
