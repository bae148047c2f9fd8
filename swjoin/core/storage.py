"""Durable files: complete or absent, with checksums; and a background writer.

What: `write_records` and `read_records`, frames with checksums; `write_whole`: temporary name, fsync, rename; `special`: files
that must not be replaced; `write_out`, which also writes to devices; `AppendedFile`; `Background`, a thread that performs
operations in order.
Why: a read after a crash must return exactly the written bytes, or fail with the position of the damage.
Stays out: the content of frames (`checkpoint.delivery_log`, `checkpoint.store`).

A file of records is a sequence of [magic, length, CRC-32, number] (int64, padded to 64 bytes) and `length` bytes, padded to 64.
The alignment allows views of the mapped file.
"""

from __future__ import annotations

import errno
import json
import os
import queue
import stat
import sys
import threading
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, BinaryIO, Protocol, TextIO

import numpy as np

from swjoin.core.batch import U8
from swjoin.core.errors import NotWritten, RunFailed, UserError
from swjoin.core.platforms import lock
from swjoin.core.units import is_utf8

MAGIC = 0x6B63656863  # "check"
_HEADER_BYTES = 64
_ALIGN = 64
_PIECE_BYTES = 1 << 20
_WAITING = 64  # operations in the queue; `submit` waits while it is full
WAITING_BYTES = 32 << 20  # that operations in the queue keep; `submit` waits while they keep more


def check_name(path: Path) -> None:
    """UserError for a name that is not UTF-8: Arrow opens no such file."""
    if not is_utf8(str(path)):
        raise UserError(f"{ascii(str(path))[1:-1]}: the name is not UTF-8; rename it, or choose another one")


def not_written(path: Path, error: OSError) -> NotWritten:
    """The error with the file, in the system's words."""
    text = f"{path}: cannot be written ({os.strerror(error.errno) if error.errno else error})"
    return NotWritten(text, full=error.errno in (errno.ENOSPC, errno.EDQUOT))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Turns OSError into NotWritten with the file."""
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from None


# A rename replaces regular files only, for a symbolic link its target; devices, FIFOs and sockets are never replaced.


def resolved(path: Path) -> Path:
    """`path`, or the target of a symbolic link, which may not exist."""
    return Path(os.path.realpath(path)) if os.path.islink(path) else path  # no error where a name is too long


def special(path: Path) -> str | None:
    """The kind of a path that is no regular file, links followed, such as "a device"; None for a file, or no file.

    OSError when the system fails, as for a name that is too long, or circular links.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    kinds = (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")
    return None if stat.S_ISREG(mode) else next((text for is_kind, text in kinds if is_kind(mode)), "a device")


def refuse_special(path: Path, words: str, *, streams: bool = False) -> None:
    """UserError when no file can be written under this name. words: the option in messages.

    streams: `write_out` will write it, so a device, a FIFO or standard output is allowed.
    """
    if streams and is_stream(path):
        return
    beside = 16  # additional characters in names of files beside it, such as NAME.incomplete
    folder = resolved(path).parent
    try:
        kind = special(path)
        if folder.is_dir():
            special(folder / f"{resolved(path).name}{'x' * beside}")
    except (OSError, ValueError) as error:
        raise UserError(f"{words} {path}: cannot be written ({getattr(error, 'strerror', None) or error})") from None
    if kind is not None:
        raise UserError(f"{words} {path}: is {kind}; name a file")
    if not folder.is_dir():
        raise UserError(f"{words} {path}: directory {folder} does not exist")
    if not os.access(folder, os.W_OK):
        raise UserError(f"{words} {path}: cannot be written (Permission denied)")


def is_stream(path: Path) -> bool:
    """Whether `write_out` writes into `path` without replacing it: a character device, a FIFO, or standard output."""
    return _standard(path) is not None or _is_open_ended(path)


def is_standard_output(path: Path) -> bool:
    """Whether `path` is this process's standard output."""
    return _standard(path) == 1


def _standard(path: Path) -> int | None:
    """1 or 2 when `path` is this process's standard output or error, such as /dev/stdout, or the file behind it."""
    try:
        found = os.stat(path)
    except (OSError, ValueError):
        return None
    for handle in (1, 2):
        with suppress(OSError):  # closed
            if os.path.samestat(found, os.fstat(handle)):
                return handle
    return None


def _is_open_ended(path: Path) -> bool:
    try:
        mode = os.stat(path).st_mode
    except (OSError, ValueError):
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode)


def write_out(path: Path, data: bytes) -> None:
    """Write a user's output: as `write_whole`, or into a character device, a FIFO or standard output."""
    handle = _standard(path)
    if handle is None and not _is_open_ended(path):
        write_whole(path, data)
        return
    with writing(path):
        if handle is None:
            file = path.open("wb")
        else:
            (sys.stdout if handle == 1 else sys.stderr).flush()
            file = os.fdopen(os.dup(handle), "wb")
        with file:
            file.write(data)


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary name beside `path`; the file is renamed at the end, and deleted after an error.

    A symbolic link stays and its target is replaced. NotWritten for a directory, a device, a FIFO or a socket.
    """
    with writing(path):
        kind = special(path)
        if kind is not None:
            raise NotWritten(f"{path}: cannot be replaced: is {kind}")
        target = resolved(path)
    temporary = target.with_name(f".{target.name}.tmp")
    try:
        with writing(path):
            yield temporary
            temporary.replace(target)
    except BaseException:
        with suppress(OSError):
            temporary.unlink()
        raise


def _padded(size: int) -> int:
    return -(-size // _ALIGN) * _ALIGN


class RecordFile:
    """A file of records being written. `close` makes it durable."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.nbytes = 0
        self.count = 0
        with writing(path):
            self._file: BinaryIO = path.open("wb")

    def append(self, data: U8) -> None:
        with writing(self.path):
            self._append(data)

    def _append(self, data: U8) -> None:
        head = np.zeros(_HEADER_BYTES // 8, "<i8")
        head[:4] = (MAGIC, data.nbytes, zlib.crc32(data.data), self.count)
        self._file.write(head.tobytes())
        self._file.write(data.data)
        pad = _padded(data.nbytes) - data.nbytes
        if pad:
            self._file.write(bytes(pad))
        self.nbytes += _HEADER_BYTES + data.nbytes + pad
        self.count += 1

    def flush(self) -> None:
        """Pass appended records to the system: they survive this process."""
        with writing(self.path):
            self._file.flush()

    def close(self) -> None:
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Close the file, which is incomplete."""
        with suppress(OSError):
            self._file.close()


class AppendedFile:
    """A file that only grows; checkpoints store its length and checksum. UserError when it cannot be opened."""

    def __init__(self, path: Path, mark: Sequence[int] = (0, 0), row_bytes: int = 1, *, apart: bool = False) -> None:
        """mark: length and CRC-32 of the valid part; the rest is truncated. row_bytes: the length is a multiple of it. apart: a
        new file takes the place of the old one, to which another process may still write. RunFailed when the valid part has
        changed."""
        length, expected = mark
        try:
            if apart and path.exists():
                with replacing(path) as copy, path.open("rb") as old, copy.open("wb") as new:
                    while (left := length - new.tell()) > 0 and (piece := old.read(min(left, _PIECE_BYTES))):
                        new.write(piece)
            self._file: BinaryIO = path.open("r+b" if path.exists() else "w+b")
        except OSError as error:
            raise UserError(f"{path}: cannot be written ({error.strerror or error})") from None
        self.path = path
        size = self._file.seek(0, os.SEEK_END)
        if length % row_bytes:
            raise RunFailed(f"{path}: {length} bytes are no whole rows of {row_bytes} bytes")
        if size < length:
            raise RunFailed(f"{path}: has {size} bytes, the checkpoint says {length}")
        self._file.truncate(length)
        self._crc = 0
        self._file.seek(0)
        while piece := self._file.read(_PIECE_BYTES):
            self._crc = zlib.crc32(piece, self._crc)
        if self._crc != expected:
            raise RunFailed(f"{path}: corrupt: its first {length} bytes have another checksum than when they were written")

    def append(self, data: bytes) -> None:
        with writing(self.path):
            self._file.write(data)
        self._crc = zlib.crc32(data, self._crc)

    def flush(self) -> list[int]:
        """Pass appended bytes to the system; returns length and checksum."""
        with writing(self.path):
            self._file.flush()
        return [self._file.tell(), self._crc]

    def sync(self) -> None:
        """Make flushed bytes durable."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def read(self) -> bytes:
        """The whole content."""
        end, _ = self.flush()
        self._file.seek(0)
        data = self._file.read(end)
        self._file.seek(end)
        return data

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def locked(path: Path, refusal: str) -> TextIO:
    """A file, locked until it is closed. UserError, with this text, while another process has the lock."""
    file = path.open("w")
    try:
        lock(file)
    except (BlockingIOError, PermissionError):
        file.close()
        raise UserError(refusal) from None
    except OSError:
        pass  # a file system without locks
    return file


def sync_file(path: Path) -> None:
    """Make a file's content durable."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_folder(folder: Path) -> None:
    """Make names in a folder durable. Windows has no such call."""
    if sys.platform == "win32":
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_records(path: Path, records: Iterable[U8]) -> int:
    """Write a file of records, which gets its name once it is durable; returns its size in bytes."""
    with replacing(path) as temporary:
        file = RecordFile(temporary)
        for record in records:
            file.append(record)
        file.close()
    with writing(path):
        sync_folder(path.parent)
    return file.nbytes


def write_whole(path: Path, data: bytes) -> None:
    """Write a file, which gets its name once it is durable."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with writing(path):
        sync_folder(resolved(path).parent)


def read_records(path: Path, nbytes: int, count: int) -> Iterator[U8]:
    """The records of a file. RunFailed, with file and offset, unless it has exactly this many bytes and records.

    The records are views of the mapped file. The mapping is copy-on-write only to make the arrays writeable: numba would
    compile the kernels again for read-only arrays, for ten seconds during the first recovery.
    """
    try:
        size = path.stat().st_size
        if size != nbytes:
            raise RunFailed(f"{path}: has {size} bytes, the checkpoint says {nbytes}")
        data = np.memmap(path, np.uint8, "c") if size else np.empty(0, np.uint8)
    except OSError as error:
        raise RunFailed(f"{path}: cannot be read ({error.strerror or error})") from None
    at = 0
    for number in range(count):
        head = data[at : at + _HEADER_BYTES].view("<i8").tolist() if at + _HEADER_BYTES <= size else [0] * 4
        start, length = at + _HEADER_BYTES, head[1]
        if head[0] != MAGIC or head[3] != number or any(head[4:]) or not 0 <= length <= size - start:
            raise RunFailed(f"{path}: corrupt at byte {at}: no record {number} begins there")
        record = data[start : start + length]
        if zlib.crc32(record.data) != head[2]:
            raise RunFailed(f"{path}: corrupt at byte {start}: record {number} has another checksum than when it was written")
        at = start + _padded(length)
        if data[start + length : at].any():
            raise RunFailed(f"{path}: corrupt at byte {start + length}: there are bytes between records")
        yield record
    if at != size:
        raise RunFailed(f"{path}: {size - at} bytes follow its last record")


def read_whole_records(path: Path, nbytes: int | None = None) -> Iterator[U8]:
    """The complete records, in order, of a file whose writer was killed. nbytes: of the file; None: all. RunFailed when it
    cannot be read."""
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)[:nbytes]
    except OSError as error:
        raise RunFailed(f"{path}: cannot be read ({error.strerror or error})") from None
    at = number = 0
    while at + _HEADER_BYTES <= len(data):
        head = data[at : at + _HEADER_BYTES].view("<i8").tolist()
        start, length = at + _HEADER_BYTES, head[1]
        if head[0] != MAGIC or head[3] != number or not 0 <= length <= len(data) - start:
            return
        record = data[start : start + length]
        if zlib.crc32(record.data) != head[2]:
            return
        yield record
        at, number = start + _padded(length), number + 1


class Executor(Protocol):
    """Performs operations in order, in the background. failure: the exception of an operation."""

    failure: BaseException | None

    def submit(self, operation: Callable[[], Any], nbytes: int = 0) -> None:
        """nbytes: that the operation keeps in memory until it is performed."""

    def end(self) -> None: ...


Executors = Callable[[str, Callable[[Any], None]], Executor]  # name, done -> executor


class Background(threading.Thread):
    """Performs operations in order, in a thread.

    done: called in that thread with the result of an operation (unless None), or with its exception. No operation is performed
    after an exception.
    """

    def __init__(self, name: str, done: Callable[[Any], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._done = done
        self._operations: queue.Queue[tuple[Callable[[], Any], int] | None] = queue.Queue(_WAITING)
        self._waiting_bytes, self._less_waits = 0, threading.Condition()
        self._ended = False
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        try:
            self._perform_all()
        finally:
            with self._less_waits:
                self._ended = True
                self._less_waits.notify_all()

    def _perform_all(self) -> None:
        while (entry := self._operations.get()) is not None:
            operation, nbytes = entry
            if self.failure is None:
                self._perform(operation)
            del operation, entry  # with what they keep
            with self._less_waits:
                self._waiting_bytes -= nbytes
                self._less_waits.notify_all()

    def _perform(self, operation: Callable[[], Any]) -> None:
        try:
            result = operation()
        except BaseException as error:
            self.failure = error
            self._done(error)
            return
        if result is not None:
            self._done(result)

    def submit(self, operation: Callable[[], Any], nbytes: int = 0) -> None:
        """Enqueue an operation; waits while the queue is full, or keeps `WAITING_BYTES` or more."""
        with self._less_waits:
            self._less_waits.wait_for(lambda: self._ended or self._waiting_bytes < WAITING_BYTES)
            self._waiting_bytes += nbytes
        self._operations.put((operation, nbytes))

    def end(self) -> None:
        """Complete the submitted operations and end the thread."""
        self._operations.put(None)
        self.join()


def json_bytes(report: dict[str, Any]) -> bytes:
    return (json.dumps(report, indent=2) + "\n").encode()


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write a JSON file atomically, with its directory."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json_bytes(report))
