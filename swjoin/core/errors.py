"""Errors with their exit codes, and the category of warnings.

What: exceptions of subject, problem and remedy, whose text is the one line a user reads; `setting`, which names settings in it.
Why: every layer can refuse input without depending on the command line, and a front end spells settings as its users do:
`--late drop` (options), `late='drop'` (arguments of Python), `time.late: drop` (keys of a configuration).
Stays out: printing, exiting, tracebacks (the `cli` does that).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal, NamedTuple, Self, TypeAlias

Spelling: TypeAlias = Literal["options", "arguments", "keys"]


class Spelled(NamedTuple):
    """A piece of a message as each front end words it; the fields are named as `Spelling` names them."""

    options: str
    arguments: str
    keys: str


Text: TypeAlias = str | tuple[str | Spelled, ...]


def setting(name: str, key: str | None = None, *values: str) -> Spelled:
    """A setting, or values to choose from. name: of the argument, and with dashes of the option. key: in a configuration."""
    option, key = "--" + name.replace("_", "-"), name if key is None else key
    if not values:
        return Spelled(option, name, key)
    quoted = " or ".join(map(repr, values))
    return Spelled(f"{option} {'|'.join(values)}", f"{name}={quoted}", f"{key}: {'|'.join(values)}")


def _pieces(text: Text) -> tuple[str | Spelled, ...]:
    return (text,) if isinstance(text, str) else text


class SwjoinError(Exception):
    """Base of the errors that swjoin raises: `subject: problem; remedy`.

    `exit_code` is the command's exit code. spelling: how the text names settings, which a front end sets (`spelled`).
    """

    exit_code = 1
    spelling: Spelling = "options"

    def __init__(self, problem: Text = "", *, subject: Text = "", remedy: Text = "") -> None:
        self.subject, self.problem, self.remedy = subject, problem, remedy
        super().__init__(self.text("options"))

    def text(self, spelling: Spelling) -> str:
        """The line that a user of this front end reads."""
        subject, problem, remedy = (
            "".join(p if isinstance(p, str) else getattr(p, spelling) for p in _pieces(part))
            for part in (self.subject, self.problem, self.remedy)
        )
        return f"{subject}{': ' if subject else ''}{problem}{'; ' if remedy else ''}{remedy}"

    def prefixed(self, where: str) -> Self:
        """This error, with where it was found before its subject."""
        self.subject = (where, *((": ", *_pieces(self.subject)) if self.subject else ()))
        return self

    def __str__(self) -> str:
        return self.text(self.spelling)


@contextmanager
def spelled(spelling: Spelling) -> Iterator[None]:
    """Errors from inside name settings as the users of this front end spell them."""
    try:
        yield
    except SwjoinError as error:
        error.spelling = spelling
        raise


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


WINDOW_MEMORY = setting("memory", "module.window")
_MORE = "use more slaves (swjoin plan tells how many), "
MORE_SLAVES = Spelled(options=_MORE, arguments="", keys=_MORE)  # joins from Python have the threads or ranks that they ask for


def how_to_install(extra: str) -> str:
    """Remedy for a missing package of an extra. No package index has swjoin yet."""
    return f"install swjoin with its {extra} extra: pip install '.[{extra}]' in a checkout"
