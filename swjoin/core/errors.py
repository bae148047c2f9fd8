"""Errors with their exit codes, and the category of warnings.

What: exceptions whose text is the one line a user reads: the problem, its location, its remedy.
Why: every layer can refuse input without depending on the command line.
Stays out: printing, exiting, tracebacks (the `cli` does that).
"""

from __future__ import annotations


class SwjoinError(Exception):
    """Base of the errors that swjoin raises; `exit_code` is the command's exit code."""

    exit_code = 1


class UserError(SwjoinError):
    """An input is wrong: a file, a key, a bound, a configuration. Exit code 2."""

    exit_code = 2


class ImplausibleWarning(UserWarning):
    """The result is right for this input, but the input is probably not the intended one (docs/semantics.md)."""


class RunFailed(SwjoinError):
    """A run with right inputs has failed: a rank died, memory ran out, the ledger does not balance. Exit code 1."""

    exit_code = 1


class NotWritten(RunFailed):
    """A file cannot be written. full: whether the disk or a quota is full."""

    def __init__(self, text: str, *, full: bool = False) -> None:
        super().__init__(text)
        self.full = full

    def mended_by(self, again: str) -> NotWritten:
        """The same error with its remedy. again: how to continue the run."""
        return NotWritten(f"{self}; {'make room' if self.full else 'mend that'}, then {again}", full=self.full)


def one_line(error: object, longest: int = 300) -> str:
    """The text of an error on one line, cut to this many characters."""
    return " ".join(str(error).split())[:longest]


def how_to_install(extra: str) -> str:
    """Remedy for a missing package of an extra. No package index has swjoin yet."""
    return f"install swjoin with its {extra} extra: pip install '.[{extra}]' in a checkout"
