"""Directory source: Parquet files that appear in a directory, as a stream.

What: `WatchSource`, `first_schema`.
Why: many systems publish data as files that get their names when they are complete. Every file is read once, crashes included.
Stays out: reading a file (`connectors.files.formats`), encoding rows (`connectors.row_encoder`).

Present files are read in the order of their names; a file that appears later comes next, whatever its name. The names of all
read files are stored, so that no file is read twice, even after the directory has been unavailable. A thread polls the
directory and reads ahead.
"""

from __future__ import annotations

import bisect
import os
import threading
import time
import zlib
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.config.run import StreamConfig
from swjoin.connectors.encoded_source import EncodedSource
from swjoin.connectors.files.formats import (
    describe_row,
    edges_checksum,
    read_batches,
    read_schema,
    row_count,
)
from swjoin.connectors.files.inputs import file_format, refusing
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.row_encoder import StreamColumns
from swjoin.connectors.schema import check_schema
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.resources import relative_to

if TYPE_CHECKING:
    import pyarrow as pa

END_MARKS = ("_END", "_SUCCESS")
_POLL_S = 0.2
_WHOLE_S = 30.0  # after which an unchanged, incomplete file is an error
_MAGIC = b"PAR1"


def first_schema(folder: Path, side: str) -> pa.Schema:
    """Columns of the first complete file. UserError when there is none."""
    _check_folder(folder, side)
    for name in _names(folder):
        if _whole(folder / name):
            return read_schema(folder / name)
    raise UserError(
        f"{side} {folder}: holds no Parquet file yet to tell the columns; declare them as schema, such as "
        "'user: int64, ts: timestamp[us]'"
    )


def _check_folder(folder: Path, side: str) -> None:
    if not folder.is_dir():
        raise UserError(f"{side} {folder}: no such directory{relative_to(folder)}")


def _names(folder: Path) -> list[str]:
    """Names of Parquet files, complete or not, in the order of reading."""
    try:
        with os.scandir(folder) as entries:
            files = [Path(entry.name) for entry in entries if entry.name[0] not in "._" and entry.is_file()]
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be read ({error.strerror or error})") from None
    return sorted(path.name for path in files if file_format(path) == "Parquet")


def _whole(path: Path) -> bool:
    """Whether the file starts and ends as a Parquet file does; its writer may not have finished."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        size = file.seek(0, 2)
        if size < 3 * len(_MAGIC):
            return False
        file.seek(-len(_MAGIC), 2)
        return head == file.read() == _MAGIC


@dataclass(frozen=True)
class _File:
    """One file. mark: size and checksum at the time of reading. rows: number of rows. first: position of the first row."""

    name: str
    mark: tuple[int, int]
    rows: int
    first: int


class WatchSource(EncodedSource):
    """One stream from a directory; ids are positions in the order of reading.

    name: of the stream. schema: as declared, or of the first file. keys: None for an input of a plan. UserError when the
    directory does not exist.
    """

    def __init__(
        self, name: str, config: StreamConfig, schema: pa.Schema, view: StreamColumns, keys: KeyEncoder | None
    ) -> None:
        import pyarrow as pa

        assert config.watch is not None, "not a directory stream"
        self.folder = Path(config.watch)
        super().__init__(f"{name} {self.folder}", config, view, keys)
        _check_folder(self.folder, name)
        self._schema = pa.schema([schema.field(name) for name in view.columns])
        self._taken: set[str] = set()  # names of completely read files
        self._log: list[_File] = []  # files since the oldest row that may be read again, in order
        self._current: tuple[_File, int] | None = None  # the file being read, and rows read of it
        self._waiting_files = 0
        self._ahead: ReadAhead | None = None
        self._stop = threading.Event()

    # ------------------------------------------------------------ read, by the master

    def ready(self, patience_s: float) -> bool:
        return self._reading.ready(patience_s)

    def read(self) -> SourceBatch | None:
        item = self._reading.next()
        if item is None:
            return None
        file, start, batch = item
        if not self._log or self._log[-1].first < file.first:
            self._log.append(file)
        with refusing(self.folder / file.name):
            made = self.encode(batch)
        self._current = (file, start + batch.num_rows)
        if self._current[1] == file.rows:
            self._taken.add(file.name)
            self._current = None
        return made

    @property
    def _reading(self) -> ReadAhead:
        if self._ahead is None:
            # Files are read again in the same order, and must be unchanged.
            reread = [file for file in self._log if file.first + file.rows > self.rows]
            partial = None if self._current is None else (self._current[0], self._current[1])
            if partial is not None and not (reread and reread[0] == partial[0]):
                reread.insert(0, partial[0])
            self._stop = threading.Event()
            taken, stop, row = set(self._taken), self._stop, self.rows
            self._ahead = ReadAhead(lambda: self._batches(reread, taken, row, stop))
        return self._ahead

    def describe_row(self, row: int) -> str:
        index = bisect.bisect_right([file.first for file in self._log], row) - 1
        if index < 0:
            return f"{self.where}, row {row} of all files (counting from 0)"
        file = self._log[index]
        return describe_row(self.folder / file.name, row - file.first)

    # ------------------------------------------------------------ read ahead, in a thread

    def _batches(
        self, reread: list[_File], taken: set[str], row: int, stop: threading.Event
    ) -> Iterator[tuple[_File, int, pa.RecordBatch]]:
        """Batches from this row on. reread: files with rows after it that have been read. taken: names of the other read
        files."""
        for known in reread:
            file = self._inspect(known.name, known.first, known)
            yield from self._rows_of(file, max(0, row - file.first))
            taken.add(file.name)
            row = max(row, file.first + file.rows)
        growing: dict[str, tuple[int, float]] = {}
        present: deque[str] = deque()
        polled_s = 0.0
        while not stop.is_set():
            if not present or time.monotonic() - polled_s >= _POLL_S:
                ended = any((self.folder / mark).exists() for mark in END_MARKS)  # before the files are listed
                present = deque(name for name in _names(self.folder) if name not in taken)
                polled_s = time.monotonic()
                if not present and ended:
                    return
            self._waiting_files = len(present)
            if not present or not self._is_whole(present[0], growing):
                stop.wait(_POLL_S)
                continue
            name = present.popleft()
            file = self._inspect(name, row, None)
            yield from self._rows_of(file, 0)
            taken.add(name)
            row += file.rows

    def _is_whole(self, name: str, growing: dict[str, tuple[int, float]]) -> bool:
        """False while the file may be growing. UserError when an incomplete file has stopped growing."""
        path = self.folder / name
        try:
            size = path.stat().st_size
            if _whole(path):
                growing.pop(name, None)
                return True
        except FileNotFoundError:  # removed again
            return False
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
        now_s = time.monotonic()
        last, since_s = growing.get(name, (-1, now_s))
        growing[name] = (size, now_s if size != last else since_s)
        if now_s - growing[name][1] >= _WHOLE_S:
            raise UserError(f"{path}: has been no whole Parquet file for {_WHOLE_S:g} s; write it anew or take it away")
        return False

    def _inspect(self, name: str, first: int, known: _File | None) -> _File:
        """The file's present state. RunFailed when `known` must be read again and has changed."""
        path = self.folder / name
        if known is not None and not path.exists():
            raise RunFailed(f"{path}: has to be read again and is gone; keep files until a checkpoint is past them")
        mark = path.stat().st_size, edges_checksum(path)
        if known is not None and known.mark != mark:
            raise RunFailed(f"{path}: has to be read again and has changed; run anew")
        with refusing(path):
            try:
                check_schema(read_schema(path), self._schema)
            except UserError as error:
                raise UserError(str(error) if str(path) in str(error) else f"{path}: {error}") from None
        return _File(name, mark, row_count(path), first)

    def _rows_of(self, file: _File, skip: int) -> Iterator[tuple[_File, int, pa.RecordBatch]]:
        path, row = self.folder / file.name, skip
        if skip >= file.rows:
            return
        for batch in read_batches(path, self._schema, self._schema.names, BATCH_ROWS, skip):
            if batch.num_rows:
                yield file, row, batch.select(self._schema.names)
                row += batch.num_rows
        if row != file.rows or (path.exists() and path.stat().st_size != file.mark[0]):
            raise RunFailed(f"{path}: has changed while it was read; files must be whole when they get their names")

    # ------------------------------------------------------------ across a crash

    def position(self) -> dict[str, Any]:
        """taken: names of the completely read files, compressed. current: the file being read, its size and checksum, its rows,
        and the number of rows read."""
        text = os.fsencode("\0".join(sorted(self._taken)))
        current = None
        if self._current is not None:
            file, read = self._current
            current = [file.name, *file.mark, file.rows, read]
        return {"taken": b64encode(zlib.compress(text)).decode(), "current": current}

    def seek(self, row: int) -> None:
        """Row 0: no file has been read."""
        assert row == 0, "the order of files is not known in advance"
        self._restart(0, set(), None)

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        text = os.fsdecode(zlib.decompress(b64decode(position["taken"])))
        current = None
        if position["current"] is not None:
            name, size, checksum, rows, read = position["current"]
            current = (_File(name, (size, checksum), rows, row - read), read)
            self._inspect(name, row - read, current[0])
        self._restart(row, set(text.split("\0")) if text else set(), current)

    def _restart(self, row: int, taken: set[str], current: tuple[_File, int] | None) -> None:
        self.close()
        self._ahead, self.rows, self._taken, self._current = None, row, taken, current

    def forget(self, row: int) -> None:
        self._log = [file for file in self._log if file.first + file.rows > row]

    def done(self) -> None:
        """Nothing is stored."""

    def status(self) -> dict[str, float]:
        return {
            "taken_files": float(len(self._taken)),
            "waiting_files": float(self._waiting_files),
            "read_rows": float(self.rows),
        }

    def close(self) -> None:
        self._stop.set()
        if self._ahead is not None:
            self._ahead.close()
