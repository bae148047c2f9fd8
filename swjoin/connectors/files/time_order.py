"""Rows in time order: an external merge sort.

What: `TimeOrder`, which takes batches with their times and gives all rows back in order of time; equal times in the order of
reading, rows without a time last.
Why: files in no order are joined in bounded memory, whatever their size.
Stays out: reading files, what a time is (`connectors.files.source`), rows that are late (`cluster.gateway.intake`).

Sorted runs of bounded size go to files in the folder for temporary files (TMPDIR). They have no names: the system frees their
space when the process ends, however it ends. Where many runs exist, they are merged into one. Input that fits into one run
causes no file. A run goes on as long as rows come in order, so ordered inputs make one run.
"""

from __future__ import annotations

import errno
import itertools
import tempfile
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING

import numpy as np

from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.arrow_views import array_of, decoded, integers_of
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import NotWritten

if TYPE_CHECKING:
    import pyarrow as pa

RUN_BYTES = 128 << 20  # of rows that are sorted at once
_MOST_RUNS = 64  # that are merged at once; each uses a descriptor
_NO_TIME_US = np.iinfo(np.int64).max
_TIME, _POSITION = -2, -1  # columns of a batch in a run


class TimeOrder:
    """Sorts the rows of one stream. Memory: about 3 `run_bytes`. NotWritten when temporary files cannot be written."""

    def __init__(self, run_bytes: int = RUN_BYTES) -> None:
        self._run_bytes = run_bytes
        self._collected: list[pa.RecordBatch] = []
        self._bytes = 0
        self._generations: list[list[_Run]] = [[]]  # runs by how many times they were merged
        self._read = 0

    def add(self, batch: pa.RecordBatch, ts: I64, valid: Bool | None) -> None:
        """The next rows. ts: microseconds, int64 (rows,). valid: which of them have a time; None: all."""
        import pyarrow as pa

        if not batch.num_rows:
            return
        known = ts if valid is None else np.where(valid, ts, _NO_TIME_US)
        positions = np.arange(self._read, self._read + batch.num_rows, dtype=np.int64)
        self._read += batch.num_rows
        columns = [*map(decoded, batch.columns), array_of(known), array_of(positions)]
        self._collected.append(pa.RecordBatch.from_arrays(columns, [*batch.schema.names, "", ""]))
        self._bytes += self._collected[-1].nbytes
        if self._bytes >= self._run_bytes:
            self._spill()

    @property
    def runs(self) -> int:
        """Sorted runs on disk so far."""
        return sum(map(len, self._generations))

    def rows(self) -> Iterator[tuple[pa.RecordBatch, I64]]:
        """All rows in order, a batch at a time, each with the positions at which its rows were added, int64 (rows,)."""
        if not self._read:
            return
        if any(self._generations):
            self._spill()
            parts = _merged([run for runs in self._generations for run in runs])
        else:
            parts = _sorted(self._collected, BATCH_ROWS)
            self._collected = []
        for part in parts:
            for start in range(0, part.num_rows, BATCH_ROWS):
                batch = part.slice(start, BATCH_ROWS)
                yield batch.select(range(batch.num_columns - 2)), integers_of(batch.column(_POSITION))

    def _spill(self) -> None:
        """Write what was collected as a run, or at the end of the last one."""
        if not self._collected:
            return
        rows = self._run_bytes * sum(batch.num_rows for batch in self._collected) // (2 * _MOST_RUNS * max(1, self._bytes))
        batches = _sorted(self._collected, BATCH_ROWS)
        self._collected, self._bytes = [], 0
        first = next(batches)
        runs = self._generations[0]
        if not (runs and runs[-1].last_us <= _times(first)[0]):
            self._make_room()
            runs.append(_Run(first.schema, min(max(1, rows), BATCH_ROWS)))
        for batch in itertools.chain([first], batches):
            runs[-1].write(batch)

    def _make_room(self) -> None:
        """Merge the runs of a generation when there are many, so that the number of files stays bounded."""
        for generation, runs in enumerate(self._generations):
            if len(runs) < _MOST_RUNS:
                return
            if generation + 1 == len(self._generations):
                self._generations.append([])
            merged = _Run(runs[0].schema, min(run.rows for run in runs))
            for part in _merged(runs):
                merged.write(part)
            runs.clear()
            self._generations[generation + 1].append(merged)


def _times(batch: pa.RecordBatch) -> I64:
    return integers_of(batch.column(_TIME))


def _sorted(batches: list[pa.RecordBatch], rows: int) -> Iterator[pa.RecordBatch]:
    """The rows of these batches, which leave the list, in order of time, stable, at most `rows` in a batch."""
    import pyarrow as pa

    ts = np.concatenate([_times(batch) for batch in batches])
    if (ts[1:] >= ts[:-1]).all():
        yield from batches
        return
    whole = pa.concat_batches(batches)
    batches.clear()
    order = np.argsort(ts, kind="stable")
    for start in range(0, len(order), rows):
        yield whole.take(array_of(order[start : start + rows]))


class _Run:
    """Sorted rows in a file without a name, in batches of at most `rows`."""

    def __init__(self, schema: pa.Schema, rows: int) -> None:
        import pyarrow as pa

        self.schema, self.rows, self.last_us = schema, rows, 0
        with _on_disk():
            self._file: IO[bytes] = tempfile.TemporaryFile(prefix="swjoin-")  # noqa: SIM115 - lives as long as the run
            weakref.finalize(self, self._file.close)
            self._writer = pa.ipc.new_stream(self._file, schema, options=pa.ipc.IpcWriteOptions(compression="lz4"))

    def write(self, batch: pa.RecordBatch) -> None:
        with _on_disk():
            for start in range(0, batch.num_rows, self.rows):
                self._writer.write_batch(batch.slice(start, self.rows))
        self.last_us = int(_times(batch)[-1])

    def read(self) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        with _on_disk():
            self._writer.close()
            self._file.flush()
            self._file.seek(0)
            reader = pa.ipc.open_stream(self._file)
        while True:
            with _on_disk():
                try:
                    batch = reader.read_next_batch()
                except StopIteration:
                    return
            yield batch


@contextmanager
def _on_disk() -> Iterator[None]:
    """Turns errors of the disk into one line."""
    try:
        yield
    except OSError as error:
        reason, full = error.strerror or str(error), error.errno in (errno.ENOSPC, errno.EDQUOT)
        text = f"{tempfile.gettempdir()}: rows cannot be sorted there ({reason}); name a folder with more room in TMPDIR"
        raise NotWritten(text, full=full) from None


class _Head:
    """The next rows of a run, in order."""

    def __init__(self, run: _Run) -> None:
        self._rest, self._enough = run.read(), run.rows
        self.batch = next(self._rest)
        self.ended = False

    def fill(self) -> None:
        """Read on, so that each round of the merge takes about a batch of every run."""
        import pyarrow as pa

        while not self.ended and self.batch.num_rows < self._enough:
            following = next(self._rest, None)
            if following is None:
                self.ended = True
            else:
                self.batch = pa.concat_batches([self.batch, following]) if self.batch.num_rows else following

    @property
    def last(self) -> tuple[int, int]:
        """Time and position of the last of these rows."""
        return int(_times(self.batch)[-1]), int(integers_of(self.batch.column(_POSITION))[-1])

    def take_to(self, last: tuple[int, int] | None) -> pa.RecordBatch:
        """Remove and return the rows up to this time and position; None: all."""
        count = self.batch.num_rows
        if last is not None:
            ts = _times(self.batch)
            low, high = (int(np.searchsorted(ts, last[0], side=side)) for side in ("left", "right"))
            equal = integers_of(self.batch.column(_POSITION))[low:high]
            count = low + int(np.searchsorted(equal, last[1], side="right"))
        taken, self.batch = self.batch.slice(0, count), self.batch.slice(count)
        return taken


def _merged(runs: list[_Run]) -> Iterator[pa.RecordBatch]:
    """The rows of all runs in order. Rows up to the first one after which a run has to be read on are final."""
    import pyarrow as pa

    heads = [_Head(run) for run in runs]
    while heads:
        for head in heads:
            head.fill()
        last = min((head.last for head in heads if not head.ended), default=None)
        parts = [part for head in heads if (part := head.take_to(last)).num_rows]
        heads = [head for head in heads if head.batch.num_rows or not head.ended]
        if len(parts) == 1:
            yield parts[0]
        elif parts:
            whole = pa.concat_batches(parts)
            order = np.lexsort((integers_of(whole.column(_POSITION)), _times(whole)))
            yield whole.take(array_of(order))
