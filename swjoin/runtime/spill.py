"""Tuples of full mini-buffers on disk, until their slave has room for them.

What: `SpillFolder`: called with a batch, it returns a `StoredBatch`.
Why: disks are larger than memory, and tuples that wait long are read once, in order.
Stays out: which tuples are spilled, and how many (`cluster.gateway.overload`).

Files have no names: the system frees their space at any end of the process, and the space of a file with the last of its
batches. Tuples that must survive a crash are in the checkpoint.
"""

from __future__ import annotations

import errno
import tempfile
import threading
import weakref
import zlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from swjoin.cluster.gateway.tuple_queue import StoreFullError
from swjoin.cluster.wire import pack_tuples, unpack_tuples
from swjoin.core.batch import U8, TupleBatch
from swjoin.core.errors import RunFailed, UserError

_FILE_BYTES = 64 << 20  # least size at which the next file begins
_MOST_FILES = 256  # each uses a descriptor
_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EMFILE, errno.ENFILE)


class _File:
    """A file without a name, for several threads."""

    def __init__(self, folder: Path) -> None:
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)  # noqa: SIM115 - lives as long as its batches
        weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()

    def write(self, offset: int, frame: U8) -> None:
        view = memoryview(frame.data).cast("B")
        with self._lock:
            self._file.seek(offset)
            while view:
                view = view[self._file.write(view) :]

    def read(self, offset: int, frame: U8) -> int:
        """Fill the frame; returns the number of bytes that were there."""
        view = memoryview(frame.data).cast("B")
        with self._lock:
            self._file.seek(offset)
            while view and (got := self._file.readinto(view)):
                view = view[got:]
        return frame.nbytes - len(view)


@dataclass(frozen=True)
class SpilledBatch:
    """A batch in a file, at `offset`; see `core.batch.StoredBatch`."""

    file: _File
    folder: Path
    offset: int
    length: int
    checksum: int
    tuples: int
    nbytes: int
    first_ts_us: int
    last_ts_us: int

    def __len__(self) -> int:
        return self.tuples

    def load(self) -> TupleBatch:
        """Read the batch, from any thread. RunFailed when its bytes differ from the written ones."""
        frame = np.empty(self.length, np.uint8)
        try:
            got = self.file.read(self.offset, frame)
        except OSError as error:
            raise RunFailed(f"{self.folder}: spilled tuples cannot be read ({error.strerror or error})") from None
        if got != self.length or zlib.crc32(frame.data) != self.checksum:
            raise RunFailed(f"{self.folder}: spilled tuples are not what was written")
        return unpack_tuples(frame)


class SpillFolder:
    """Stores batches in files of a folder. UserError when the folder cannot be written."""

    def __init__(self, folder: Path, disk_bytes: int = 0) -> None:
        """disk_bytes: approximate limit of all stored batches."""
        self._folder = folder
        self._file_bytes = max(_FILE_BYTES, disk_bytes // _MOST_FILES)
        self._file: _File | None = None
        self._end = 0
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._open()
        except OSError as error:
            raise UserError(f"{folder}: tuples cannot be spilled there ({error.strerror or error})") from None

    def _open(self) -> None:
        self._file = _File(self._folder)
        self._end = 0

    def __call__(self, batch: TupleBatch) -> SpilledBatch:
        """Write a batch. StoreFullError when the disk is full, RunFailed on another error of the disk."""
        frame = pack_tuples(batch)
        offset = self._end
        try:
            if self._end >= self._file_bytes:
                self._open()
                offset = 0
            assert self._file is not None
            self._file.write(offset, frame)
        except OSError as error:
            text = f"{self._folder}: tuples cannot be spilled ({error.strerror or error})"
            raise (StoreFullError(text) if error.errno in _FULL else RunFailed(text)) from None
        self._end = offset + frame.nbytes
        return SpilledBatch(
            self._file,
            self._folder,
            offset,
            frame.nbytes,
            zlib.crc32(frame.data),
            len(batch),
            batch.nbytes,
            int(batch.ts[0]),
            int(batch.ts[-1]),
        )
