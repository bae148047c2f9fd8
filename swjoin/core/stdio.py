"""Standard input, output and error that are closed, full, or belonged to a terminal that is gone.

What: `prepare`, called once by a process that is a command; `mute`, `mute_terminals`.
Why: `swjoin ... >&-` is the same as `>/dev/null`; a full disk behind `>` is one line; a run whose terminal is closed stops in
order instead of failing at its last words.
Stays out: what is printed. No imports but small ones: `swjoin --help` must be instant.
"""

from __future__ import annotations

import errno
import io
import os
import sys
import termios
from collections.abc import Iterable
from typing import TextIO

from swjoin.core.errors import NotWritten

_NAMES = ("stdin", "stdout", "stderr")


class _Output(io.TextIOWrapper):
    """Standard output, or standard error (quiet), around the one that Python made. What cannot be written raises NotWritten
    once, or never where it is quiet; all that comes later goes to /dev/null. Closed pipes raise what they always do."""

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
    """Whichever was closed when the process started is /dev/null from now on, for the processes that this one starts, too; and
    what cannot be written is one line."""
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
            setattr(sys, f"__{name}__", stream)  # which keeps it open
    sys.stdout, sys.stderr = _Output(sys.stdout, quiet=False), _Output(sys.stderr, quiet=True)


def mute(streams: Iterable[TextIO]) -> None:
    """What these have still in their buffers, and all that comes, goes to /dev/null."""
    for stream in streams:
        _to_nowhere(stream.fileno())


def mute_terminals() -> None:
    """After SIGHUP: what goes to a terminal that is gone goes to /dev/null."""
    for number in (1, 2):
        try:
            termios.tcgetattr(number)
        except termios.error as error:
            if error.args[0] == errno.EIO:
                _to_nowhere(number)


def _to_nowhere(number: int) -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, number)
    os.close(nowhere)
