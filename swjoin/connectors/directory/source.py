"""A directory in which Parquet files appear, as a stream.

What: `WatchSource`, and `first_schema`.
Why: many systems hand over data as files that appear under their names when they are whole. Each is read once, across crashes,
too.
Stays out: reading a file (`connectors.files.formats`), columns as tuples (`connectors.row_encoder`).

Files are taken in the order of their names, as they are there; one that appears later is taken next, whatever its name. All
names taken are remembered: a file is never read twice, not even when the directory was gone for a while. A thread looks and
reads ahead.
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
from swjoin.connectors.files.formats import (
    edges_checksum,
    file_format,
    place_in,
    read_batches,
    read_schema,
    refusing,
    row_count,
)
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.row_encoder import StreamColumns, TupleEncoder
from swjoin.connectors.schema import BATCH_ROWS, check_schema
from swjoin.core.batch import STREAM_NAMES, RowLayout, SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import Dictionary, KeyEncoder
from swjoin.core.resources import relative_to
from swjoin.core.row_codec import StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa

END_MARKS = ("_END", "_SUCCESS")
_LOOK_S = 0.2
_WHOLE_S = 30.0  # that a file may stay as it is without being whole
_MAGIC = b"PAR1"


def first_schema(folder: Path, side: str) -> pa.Schema:
    """Columns of the first file there. UserError when there is none."""
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
    """Files that are, or will be, Parquet files, in the order in which they are taken."""
    try:
        with os.scandir(folder) as entries:
            files = [Path(entry.name) for entry in entries if entry.name[0] not in "._" and entry.is_file()]
    except OSError as error:
        raise RunFailed(f"{folder}: cannot be read ({error.strerror or error})") from None
    return sorted(path.name for path in files if file_format(path) == "Parquet")


def _whole(path: Path) -> bool:
    """Whether it begins and ends as a Parquet file does; its writer may not have come so far."""
    with path.open("rb") as file:
        head = file.read(len(_MAGIC))
        size = file.seek(0, 2)
        if size < 3 * len(_MAGIC):
            return False
        file.seek(-len(_MAGIC), 2)
        return head == file.read() == _MAGIC


@dataclass(frozen=True)
class _File:
    """One file as it was taken. mark: its size and a checksum. rows: how many. first: position of its first row."""

    name: str
    mark: tuple[int, int]
    rows: int
    first: int


class WatchSource:
    """One stream from a directory; ids by position in the order in which files are taken.

    schema: of the columns, as declared or of the first file. UserError when there is no such directory.
    """

    rows_total: int | None = None

    def __init__(self, stream: int, config: StreamConfig, schema: pa.Schema, view: StreamColumns, keys: KeyEncoder) -> None:
        import pyarrow as pa

        assert config.watch is not None, "a stream from elsewhere"
        self.config = config
        self.codec: StreamCodec = view.codec
        self.folder = Path(config.watch)
        self.where = f"{STREAM_NAMES[stream]} {self.folder}"
        _check_folder(self.folder, STREAM_NAMES[stream])
        self._schema = pa.schema([schema.field(name) for name in view.columns])
        self._keys = keys
        self._tuples = TupleEncoder(config, view, keys, self._place)
        self._rows = 0  # read
        self._taken: set[str] = set()  # files read as a whole
        self._log: list[_File] = []  # files taken since the oldest row that may be read again, in order
        self._current: tuple[_File, int] | None = None  # the file being read, and rows read of it
        self._waiting_files = 0
        self._ahead: ReadAhead | None = None
        self._stop = threading.Event()

    @property
    def layout(self) -> RowLayout | None:
        return self.codec.layout

    @property
    def dictionary(self) -> Dictionary | None:
        return None if self._keys.native else self._keys.dictionary

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
        first, self._rows = self._rows, self._rows + batch.num_rows
        with refusing(self.folder / file.name):
            made = self._tuples.of(batch, first)
        self._current = (file, start + batch.num_rows)
        if self._current[1] == file.rows:
            self._taken.add(file.name)
            self._current = None
        return made

    @property
    def _reading(self) -> ReadAhead:
        if self._ahead is None:
            # What is read again is read in the same order, and must be the same.
            again = [file for file in self._log if file.first + file.rows > self._rows]
            begun = None if self._current is None else (self._current[0], self._current[1])
            if begun is not None and not (again and again[0] == begun[0]):
                again.insert(0, begun[0])
            self._stop = threading.Event()
            taken, stop, row = set(self._taken), self._stop, self._rows
            self._ahead = ReadAhead(lambda: self._batches(again, taken, row, stop))
        return self._ahead

    def locate(self, row_id: int) -> str:
        return f"{self.where}: row with id {row_id}" if self.config.id is not None else self._place(row_id)

    def _place(self, position: int) -> str:
        index = bisect.bisect_right([file.first for file in self._log], position) - 1
        if index < 0:
            return f"{self.where}, row {position} of all files (counting from 0)"
        file = self._log[index]
        return place_in(self.folder / file.name, position - file.first)

    # ------------------------------------------------------------ read ahead, in a thread

    def _batches(
        self, again: list[_File], taken: set[str], row: int, stop: threading.Event
    ) -> Iterator[tuple[_File, int, pa.RecordBatch]]:
        """Rows from this one on. again: files that were being read, or have been read, after that row. taken: others."""
        for known in again:
            file = self._look_at(known.name, known.first, known)
            yield from self._rows_of(file, max(0, row - file.first))
            taken.add(file.name)
            row = max(row, file.first + file.rows)
        growing: dict[str, tuple[int, float]] = {}
        there: deque[str] = deque()
        looked_s = 0.0
        while not stop.is_set():
            if not there or time.monotonic() - looked_s >= _LOOK_S:
                ended = any((self.folder / mark).exists() for mark in END_MARKS)  # before the look at what is there
                there = deque(name for name in _names(self.folder) if name not in taken)
                looked_s = time.monotonic()
                if not there and ended:
                    return
            self._waiting_files = len(there)
            if not there or not self._is_whole(there[0], growing):
                stop.wait(_LOOK_S)
                continue
            name = there.popleft()
            file = self._look_at(name, row, None)
            yield from self._rows_of(file, 0)
            taken.add(name)
            row += file.rows

    def _is_whole(self, name: str, growing: dict[str, tuple[int, float]]) -> bool:
        """False while somebody may be writing it. UserError when nobody does any more."""
        path = self.folder / name
        try:
            size = path.stat().st_size
            if _whole(path):
                growing.pop(name, None)
                return True
        except FileNotFoundError:  # taken away again
            return False
        except OSError as error:
            raise UserError(f"{path}: cannot be read ({error.strerror or error})") from None
        now_s = time.monotonic()
        last, since_s = growing.get(name, (-1, now_s))
        growing[name] = (size, now_s if size != last else since_s)
        if now_s - growing[name][1] >= _WHOLE_S:
            raise UserError(f"{path}: has been no whole Parquet file for {_WHOLE_S:g} s; write it anew or take it away")
        return False

    def _look_at(self, name: str, first: int, known: _File | None) -> _File:
        """A file as it is now. RunFailed when it is to be read again and is not what it was."""
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
        """taken: names of the files read as a whole, compressed. current: the file being read, its size and checksum, its rows,
        and how many have been read."""
        text = os.fsencode("\0".join(sorted(self._taken)))
        current = None
        if self._current is not None:
            file, read = self._current
            current = [file.name, *file.mark, file.rows, read]
        return {"taken": b64encode(zlib.compress(text)).decode(), "current": current}

    def seek(self, row: int) -> None:
        """Row 0: nothing has been taken."""
        assert row == 0, "files are taken as they appear; go_on"
        self._go_on(0, set(), None)

    def go_on(self, row: int, position: dict[str, Any]) -> None:
        text = os.fsdecode(zlib.decompress(b64decode(position["taken"])))
        current = None
        if position["current"] is not None:
            name, size, checksum, rows, read = position["current"]
            current = (_File(name, (size, checksum), rows, row - read), read)
            self._look_at(name, row - read, current[0])
        self._go_on(row, set(text.split("\0")) if text else set(), current)

    def _go_on(self, row: int, taken: set[str], current: tuple[_File, int] | None) -> None:
        self.close()
        self._ahead, self._rows, self._taken, self._current = None, row, taken, current

    def forget(self, row: int) -> None:
        self._log = [file for file in self._log if file.first + file.rows > row]

    def done(self) -> None:
        """Nothing is kept."""

    def status(self) -> dict[str, float]:
        return {
            "taken_files": float(len(self._taken)),
            "waiting_files": float(self._waiting_files),
            "read_rows": float(self._rows),
        }

    def close(self) -> None:
        self._stop.set()
        if self._ahead is not None:
            self._ahead.close()
