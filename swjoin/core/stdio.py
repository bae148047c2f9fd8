"""Standard streams that are closed, on a full disk, or of a closed terminal.

What: `prepare`, called once by the process of a command; `mute`, `mute_terminals`; `wait_until_read`.
Why: `swjoin ... >&-` equals `>/dev/null`; a full disk behind `>` gives one line; a run whose terminal is closed stops in order
instead of failing when it prints.
Stays out: the output. Imports are few and small, so that `swjoin --help` is instant.
"""

from __future__ import annotations

import array
import errno
import io
import os
import stat
import sys
import time
from collections.abc import Iterable
from typing import TextIO

from swjoin.core.errors import NotWritten

_NAMES = ("stdin", "stdout", "stderr")


class _Output(io.TextIOWrapper):
    """Wrapper of standard output, or standard error (quiet). A failed write raises NotWritten once, or never if quiet; later
    output goes to /dev/null. Closed pipes raise BrokenPipeError as usual."""

    def __init__(self, stream: TextIO, *, quiet: bool) -> None:
        lines, through = bool(stream.line_buffering), bool(getattr(stream, "write_through", False))
        super().__init__(stream.buffer, stream.encoding, stream.errors, "\n", lines, through)
        self._quiet = quiet

    def write(self, text: str) -> int:
        try:
            return super().write(text)
        except OSError as error:
            self._fail(error)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError as error:
            self._fail(error)

    def _fail(self, error: OSError) -> None:
        if isinstance(error, BrokenPipeError):
            raise error
        mute([self])
        if not self._quiet:
            raise NotWritten(f"standard output: cannot be written ({error.strerror or error})") from None


def prepare() -> None:
    """Open closed standard streams as /dev/null, for child processes as well, and report failed writes in one line."""
    for number, name in enumerate(_NAMES):
        try:
            os.fstat(number)
        except OSError:
            found = os.open(os.devnull, os.O_RDWR)
            if found != number:
                os.dup2(found, number)
                os.close(found)
            os.set_inheritable(number, True)
        if getattr(sys, name) is None:
            stream = os.fdopen(os.open(os.devnull, os.O_RDWR), "w" if number else "r")
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # keeps the stream open
    sys.stdout, sys.stderr = _Output(sys.stdout, quiet=False), _Output(sys.stderr, quiet=True)


def mute(streams: Iterable[TextIO]) -> None:
    """Send buffered and later output of these streams to /dev/null."""
    for stream in streams:
        _to_nowhere(stream.fileno())


def mute_terminals() -> None:
    """After SIGHUP: send output for a closed terminal to /dev/null."""
    import termios

    for number in (1, 2):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                _to_nowhere(number)


def wait_until_read(number: int = 2, limit_s: float = 1.0) -> None:
    """Wait until the reader of this standard stream, if it is a pipe, has taken everything written, at most so many seconds."""
    import fcntl
    import termios

    deadline = time.monotonic() + limit_s
    unread = array.array("i", [1])
    while stat.S_ISFIFO(os.fstat(number).st_mode) and unread[0] and time.monotonic() < deadline:
        fcntl.ioctl(number, termios.FIONREAD, unread)
        time.sleep(0.01 if unread[0] else 0)


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
