"""The two ways a command ends badly, and how they map to exit codes; the category of warnings; one remedy.

What: exceptions whose text is the one line a user reads: what is wrong, where, how to mend it.
Why: every layer can refuse input without knowing about the command line.
Stays out: printing, exiting, tracebacks (the `cli` does that).
"""

from __future__ import annotations


class SwjoinError(Exception):
    """Base of every error swjoin raises on purpose; `exit_code` is what the command returns."""

    exit_code = 1


class UserError(SwjoinError):
    """The user gave something wrong (a file, a key, a bound, a configuration). Exit 2."""

    exit_code = 2


class ImplausibleWarning(UserWarning):
    """The answer is right for this input, but the input is probably not what was meant (docs/semantics.md)."""


class RunFailed(SwjoinError):
    """The input was fine, the run was not (a rank died, memory ran out, the ledger does not balance). Exit 1."""

    exit_code = 1


class NotWritten(RunFailed):
    """A file cannot be written. full: because the disk or a quota is full."""

    def __init__(self, text: str, *, full: bool = False) -> None:
        super().__init__(text)
        self.full = full

    def mended_by(self, again: str) -> NotWritten:
        """The same, with what a user does before and after. again: how the run goes on."""
        return NotWritten(f"{self}; {'make room' if self.full else 'mend that'}, then {again}", full=self.full)


def how_to_install(extra: str) -> str:
    """The remedy in a message about a package of an extra that is not installed. No package index has swjoin yet."""
    return f"install swjoin with its {extra} extra: pip install '.[{extra}]' in a checkout"
