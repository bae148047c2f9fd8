"""Flight source: a stream that producers push, and its write-ahead spool.

What: `FlightSource`; `Spool`, merged rows on disk since the oldest checkpoint in use.
Why: a producer may discard accepted rows: a recovery, or a resumed run, reads them from the spool. A producer must send rows
again that have not been accepted.
Stays out: the endpoint of producers (`connectors.flight.ingest`), merging (`connectors.producer_merge`).

Accepted rows survive the death of all processes of the run. They are not synced to disk batch by batch, so a power failure can
lose the last ones.
"""

from __future__ import annotations

import itertools
import json
import re
import threading
from collections import deque
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.live_source import MergedSource
from swjoin.core.batch import STREAM_NAMES, U8
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.storage import RecordFile, read_whole_records, writing

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import StreamConfig
    from swjoin.connectors.producer_merge import Merge
    from swjoin.connectors.row_encoder import StreamColumns
    from swjoin.core.key_encoder import KeyEncoder

_FILE_BYTES = 32 << 20
_LENGTH_BYTES = 8


class Spool:
    """Merged batches of one stream, in files of about 32 MB named by their first row."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._file: RecordFile | None = None

    def _files(self) -> list[tuple[int, Path]]:
        """First rows and files, in order."""
        if not self._folder.is_dir():
            return []
        pattern = re.compile(rf"{re.escape(self._name)}-(\d+)\.spool")
        return sorted((int(m[1]), path) for path in self._folder.iterdir() if (m := pattern.fullmatch(path.name)))

    def append(self, row: int, batch: pa.RecordBatch, position: dict[str, Any]) -> None:
        """Append a batch whose first row is `row`; `position` is the merge's position after it. The batch survives this
        process."""
        import pyarrow as pa

        if self._file is None or self._file.nbytes >= _FILE_BYTES:
            self.close()
            with writing(self._folder):
                self._folder.mkdir(parents=True, exist_ok=True)
            self._file = RecordFile(self._folder / f"{self._name}-{row:015d}.spool")
        head = json.dumps({"row": row, "position": position}).encode()
        sink = pa.BufferOutputStream()
        sink.write(len(head).to_bytes(_LENGTH_BYTES, "little") + head)
        with pa.ipc.new_stream(sink, batch.schema) as writer:
            writer.write_batch(batch)
        self._file.append(np.frombuffer(sink.getvalue(), np.uint8))
        self._file.flush()

    def from_row(self, row: int) -> list[tuple[int, pa.RecordBatch, dict[str, Any]]]:
        """All batches from this row on: first row, batch, position after it. RunFailed when the row is not stored."""
        if self._file is not None:
            self._file.flush()
        out: list[tuple[int, pa.RecordBatch, dict[str, Any]]] = []
        expected = row
        files = self._files()
        for index, (_, path) in enumerate(files):
            if index + 1 < len(files) and files[index + 1][0] < row:
                continue
            for record in read_whole_records(path):
                start, batch, position = _unpacked(record, path)
                if start < row and start + batch.num_rows <= row:
                    continue
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

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def remove(self) -> None:
        """Delete all files."""
        self.close()
        for _, path in self._files():
            path.unlink(missing_ok=True)
        with suppress(OSError):  # the other stream's files may be there
            self._folder.rmdir()


def _unpacked(record: U8, path: Path) -> tuple[int, pa.RecordBatch, dict[str, Any]]:
    import pyarrow as pa

    try:
        length = int.from_bytes(record[:_LENGTH_BYTES].tobytes(), "little")
        head = json.loads(record[_LENGTH_BYTES : _LENGTH_BYTES + length].tobytes())
        with pa.ipc.open_stream(pa.py_buffer(record[_LENGTH_BYTES + length :])) as reader:
            return int(head["row"]), reader.read_next_batch(), head["position"]
    except (ValueError, KeyError, TypeError, StopIteration, pa.ArrowException) as error:
        raise RunFailed(f"{path}: corrupt: a record is no batch of rows ({error})") from None


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    import pyarrow as pa

    return pa.record_batch([pa.array([], field.type) for field in schema], schema=schema)


class FlightSource(MergedSource):
    """keep: folder of the spool; None: the run makes no checkpoints and has no recovery."""

    def __init__(
        self,
        stream: int,
        config: StreamConfig,
        schema: pa.Schema,
        view: StreamColumns,
        keys: KeyEncoder,
        merge: Merge,
        keep: Path | None,
    ) -> None:
        super().__init__(stream, config, schema, view, keys, merge)
        self.accepted: dict[str, int] = {}  # rows by producer; replaced as a whole, so other threads can read it
        self._position: dict[str, Any] = merge.position()
        self._spool = None if keep is None else Spool(keep / "intake", STREAM_NAMES[stream])
        self._started = False
        self._spooled = 0  # rows in the spool since the start of the stream
        self._replay: deque[tuple[int, pa.RecordBatch, dict[str, Any]]] = deque()  # spooled batches to read again
        self._next_position: dict[str, Any] = self._position
        self._ends_spooled = self.merge.ends
        self._spooling = threading.Lock()  # locked while rows move from the merge to the disk
        self._over = False  # the spool is closed, or broken

    @property
    def ended(self) -> bool:
        return not self._replay and super().ended

    def next_batch(self) -> pa.RecordBatch | None:
        while self._replay:
            _, batch, self._next_position = self._replay.popleft()
            if batch.num_rows:
                return batch
        with self._spooling:
            batch = super().next_batch()
            position = self._store(batch)
        if batch is not None and position is not None:
            self._next_position = position
        return batch

    def _store(self, batch: pa.RecordBatch | None) -> dict[str, Any] | None:
        """Spool rows that have been taken, and ends of producers; returns the merge's position, or None without news."""
        ends = self.merge.ends
        if batch is None and ends == self._ends_spooled:
            return None
        position = self.merge.position()
        if self._spool is not None:
            over, self._over = self._over, True  # until the write has succeeded
            self._spool.append(self._spooled, _no_rows(self.schema) if batch is None else batch, position)
            self._over = over
        self._ends_spooled = ends
        self._accept(position)
        self._spooled += 0 if batch is None else batch.num_rows
        return position

    def settled(self, name: str) -> bool:
        """Whether all rows of a producer, and its end, survive this process. From any thread."""
        with self._spooling:
            if self._over or self.merge.taken(name) < self.merge.received(name):
                return False
            self._store(None)
            return True

    def finish(self) -> None:
        """End the stream durably. From any thread."""
        self.merge.finish()
        with self._spooling:
            if not self._over:
                self._store(None)

    def _accept(self, position: dict[str, Any]) -> None:
        self.accepted = {name: rows for name, (rows, *_) in position["lanes"].items()}

    def read(self) -> Any:
        out = super().read()
        self._position = self._next_position
        return out

    # ------------------------------------------------------------ across a crash

    def position(self) -> dict[str, Any]:
        return self._position

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        assert self._spool is not None, "a run without checkpoints has no recovery"
        fresh, self._started = not self._started, True  # in a new process only the spool has the producers' positions
        replay = self._spool.from_row(row)
        if fresh:
            last = replay[-1][2] if replay else position
            self.merge.restore(last)
            self._ends_spooled = self.merge.ends
            self._accept(last)
            self._spooled = row + sum(batch.num_rows for _, batch, _ in replay)
        elif row + sum(batch.num_rows for _, batch, _ in replay) != self._spooled:
            raise RunFailed(f"{STREAM_NAMES[self.stream]}: accepted rows from {row} on are not where they were kept")
        self._replay, self._next, self.rows, self._position = deque(replay), None, row, position

    def seek(self, row: int) -> None:
        if self._spool is None:
            assert not self._started, "a run without checkpoints has no recovery"
            self._started = True
            return
        self.resume_at(row, {"lanes": {}, "emitted_us": BEGIN_OF_TIME_US, "finished": False})

    def forget(self, row: int) -> None:
        if self._spool is not None:
            self._spool.forget(row)

    def done(self) -> None:
        if self._spool is not None:
            self._spool.remove()

    def close(self) -> None:
        super().close()
        with self._spooling:
            self._over = True
            if self._spool is not None:
                self._spool.close()
