"""Durable files: whole or not there, with checksums, and a thread that writes them.

What: `write_records` and `read_records`, frames with checksums; `write_whole`, a temporary name, fsync, rename; `special`, what
must not be replaced so; `write_out`, which writes into devices as well; `AppendedFile`; `Background`, a thread that does such
things in order while the join goes on.
Why: what is read back after a crash must be exactly what was written, or be refused with its place.
Stays out: what the frames mean (`checkpoint.delivery_log`, `checkpoint.store`).

A file of records is a sequence of [magic, length, CRC-32, number] (int64, padded to 64 bytes) and as many bytes as `length`
says, padded to 64. Frames lie aligned, so that they can be read as views of the mapped file.
"""

from __future__ import annotations

import errno
import fcntl
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
from swjoin.core.units import is_utf8

MAGIC = 0x6B63656863  # "check"
_HEADER_BYTES = 64
_ALIGN = 64
_PIECE_BYTES = 1 << 20
_WAITING = 64  # operations that may wait for the disk; then whoever asks for more waits


def check_name(path: Path) -> None:
    """UserError for a name that is not UTF-8: Arrow opens no such file."""
    if not is_utf8(str(path)):
        raise UserError(f"{ascii(str(path))[1:-1]}: the name is not UTF-8; rename it, or choose another one")


def not_written(path: Path, error: OSError) -> NotWritten:
    """With the file, in the system's words."""
    text = f"{path}: cannot be written ({os.strerror(error.errno) if error.errno else error})"
    return NotWritten(text, full=error.errno in (errno.ENOSPC, errno.EDQUOT))


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """NotWritten, with the file, where the system cannot write it."""
    try:
        yield
    except OSError as error:
        raise not_written(path, error) from None


# A file is replaced by a rename, which must take the place of a regular file alone: where a symbolic link is, the file that it
# leads to is replaced; devices, FIFOs and sockets are never replaced.


def resolved(path: Path) -> Path:
    """Where the content of `path` lies: `path` itself, or what a symbolic link leads to, whether that exists or not."""
    return Path(os.path.realpath(path)) if path.is_symlink() else path


def special(path: Path) -> str | None:
    """What `path` is, links followed, when that is no regular file, such as "a device"; None for a file, or for nothing.

    OSError when the system cannot tell, as of a name that is too long or of links in a circle.
    """
    try:
        mode = os.stat(path).st_mode
    except (FileNotFoundError, NotADirectoryError):
        return None
    kinds = (stat.S_ISDIR, "a directory"), (stat.S_ISFIFO, "a FIFO"), (stat.S_ISSOCK, "a socket")
    return None if stat.S_ISREG(mode) else next((text for is_kind, text in kinds if is_kind(mode)), "a device")


def refuse_special(path: Path, words: str, *, streams: bool = False) -> None:
    """UserError when no file can be written under this name. words: what a user named it by.

    streams: `write_out` will write it, into a device, a FIFO or standard output as well.
    """
    if streams and is_stream(path):
        return
    beside = 16  # characters that the names of files beside it have more, such as NAME.incomplete
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
    """Whether `write_out` writes into `path` as it is: a character device, a FIFO, or this process's standard output."""
    return _standard(path) is not None or _is_open_ended(path)


def is_standard_output(path: Path) -> bool:
    """Whether `write_out` writes where this process prints."""
    return _standard(path) == 1


def _standard(path: Path) -> int | None:
    """1 or 2, where `path` leads to what this process has there, such as /dev/stdout, also when that is a file."""
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
    """What a user wants to read or to pass on: as `write_whole`, or into a character device, a FIFO or standard output."""
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
    """A temporary name beside `path`; what has been written there gets its name at the end. After an error nothing is left.

    A symbolic link stays, and the file that it leads to is replaced. NotWritten for a directory, a device, a FIFO or a socket.
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
        """Hand what has been appended to the system: it survives this process."""
        with writing(self.path):
            self._file.flush()

    def close(self) -> None:
        with writing(self.path):
            self._file.flush()
            os.fsync(self._file.fileno())
            self._file.close()

    def discard(self) -> None:
        """Close it and leave it to whoever clears up."""
        with suppress(OSError):
            self._file.close()


class AppendedFile:
    """A file that only grows, and of which a checkpoint remembers length and checksum. UserError when it cannot be opened."""

    def __init__(self, path: Path, mark: Sequence[int] = (0, 0), row_bytes: int = 1) -> None:
        """mark: length and checksum that it had. row_bytes: of which it holds whole ones."""
        """mark: length and CRC-32 of what counts; the rest is cut off. RunFailed when that is not what it was."""
        length, expected = mark
        try:
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
        """Hand what has been appended to the system; returns length and checksum."""
        with writing(self.path):
            self._file.flush()
        return [self._file.tell(), self._crc]

    def sync(self) -> None:
        """Make what has been flushed durable."""
        with writing(self.path):
            os.fsync(self._file.fileno())

    def read(self) -> bytes:
        """All of it."""
        end, _ = self.flush()
        self._file.seek(0)
        data = self._file.read(end)
        self._file.seek(end)
        return data

    def close(self) -> None:
        with writing(self.path):
            self._file.close()


def locked(path: Path, refusal: str) -> TextIO:
    """A file that is locked for this process until it is closed. UserError, with these words, while another one holds it."""
    file = path.open("w")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
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
    """Make names in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def write_records(path: Path, records: Iterable[U8]) -> int:
    """A whole file of records, under its name only when it is durable; returns its bytes."""
    with replacing(path) as temporary:
        file = RecordFile(temporary)
        for record in records:
            file.append(record)
        file.close()
    with writing(path):
        sync_folder(path.parent)
    return file.nbytes


def write_whole(path: Path, data: bytes) -> None:
    """A whole file, under its name only when it is durable."""
    with replacing(path) as temporary, temporary.open("wb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())
    with writing(path):
        sync_folder(resolved(path).parent)


def read_records(path: Path, nbytes: int, count: int) -> Iterator[U8]:
    """The records of a file that must have just so many bytes and records. RunFailed with file and offset otherwise.

    The frames are views of the mapped file. It is mapped copy-on-write, of which nobody makes use: kernels would be compiled
    anew for arrays that cannot be written to, for ten seconds in the middle of the first recovery.
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
            raise RunFailed(f"{path}: corrupt at byte {start + length}: something stands between records")
        yield record
    if at != size:
        raise RunFailed(f"{path}: {size - at} bytes follow its last record")


def read_whole_records(path: Path) -> Iterator[U8]:
    """The records of a file whose writer was killed: all that are whole, and in order. RunFailed when it cannot be read."""
    try:
        data = np.frombuffer(path.read_bytes(), np.uint8)
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
    """Does what it is given, in order, while the join goes on. failure: what an operation raised."""

    failure: BaseException | None

    def submit(self, operation: Callable[[], Any]) -> None: ...

    def end(self) -> None: ...


Executors = Callable[[str, Callable[[Any], None]], Executor]  # name, done -> executor


class Background(threading.Thread):
    """Does what it is given, in order, in a thread of its own.

    done: takes what an operation returns (unless None), or the exception that it raised; called in this thread. After an
    exception nothing more is done.
    """

    def __init__(self, name: str, done: Callable[[Any], None]) -> None:
        super().__init__(name=name, daemon=True)
        self._done = done
        self._operations: queue.Queue[Callable[[], Any] | None] = queue.Queue(_WAITING)
        self.failure: BaseException | None = None
        self.start()

    def run(self) -> None:
        while (operation := self._operations.get()) is not None:
            if self.failure is not None:
                continue
            try:
                result = operation()
            except BaseException as error:
                self.failure = error
                self._done(error)
                continue
            if result is not None:
                self._done(result)

    def submit(self, operation: Callable[[], Any]) -> None:
        """Waits while too many operations do."""
        self._operations.put(operation)

    def end(self) -> None:
        """Finish what was submitted, and the thread."""
        self._operations.put(None)
        self.join()


def json_bytes(report: dict[str, Any]) -> bytes:
    return (json.dumps(report, indent=2) + "\n").encode()


def write_json(path: Path, report: dict[str, Any]) -> None:
    """Write atomically: a temporary name, then a rename."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json_bytes(report))
