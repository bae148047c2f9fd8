"""The argument parser of all commands and of the words of run.sh: one line for what is wrong, and words where people put them.

What: `Parser`, an `argparse.ArgumentParser` that suggests the nearest option or command, takes no abbreviations and no empty
values, and lets options with several values stand before the positional arguments; `positive`, the type of options that are
amounts.
Why: `swjoin join --on user a.csv b.csv` is what people type; plain argparse takes all three words for values of `--on`.
Stays out: which commands and options there are (`cli.main`).
"""

from __future__ import annotations

import argparse
import difflib
import math
import os
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NoReturn

_SEVERAL = ("+", "*", "?")


def positive(text: str) -> float:
    """An amount that was given as text: above 0, and neither infinite nor NaN."""
    try:
        number = float(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is no number") from None
    if not (math.isfinite(number) and number > 0):
        raise argparse.ArgumentTypeError(f"{text}: must be positive and finite")
    return number


@dataclass
class _Values:
    """The words after an option that takes several values, or one at most. at: index of the first word."""

    action: argparse.Action
    option: str
    at: int
    words: list[str]

    @property
    def least(self) -> int:
        """How many of the words the option cannot do without."""
        return 1 if self.action.nargs == "+" else 0


class Parser(argparse.ArgumentParser):
    """argparse without abbreviations. Complaints are one line, with the nearest option or command."""

    def __init__(self, *args: Any, log_json: bool = False, **options: Any) -> None:
        """log_json: complaints are lines of JSON."""
        super().__init__(*args, **{**options, "allow_abbrev": False})
        self._log_json = log_json

    def error(self, message: str) -> NoReturn:
        from swjoin.core.log_lines import complaint_line

        text = f"{' '.join(message.split())} (see {self.prog} --help)"
        print(complaint_line(text, as_json=self._log_json, program=self.prog.split()[0]), file=sys.stderr)
        raise SystemExit(2)

    def parse_known_args(self, args: Sequence[str] | None = None, namespace: Any = None) -> Any:  # type: ignore[override]
        words = list(sys.argv[1:] if args is None else args)
        found, extra = super().parse_known_args(
            self._with_command(words) if self._subparsers is not None else self._arranged(words), namespace
        )
        if extra:
            self.error(f"unexpected {'word' if len(extra) == 1 else 'words'} {' '.join(extra)}")
        for action in self._actions:
            value = getattr(found, action.dest, None)
            several = not action.option_strings or isinstance(action, argparse._AppendAction)
            if (value == "" != action.default) or (several and isinstance(value, list) and "" in value):
                name = "/".join(action.option_strings) or action.metavar or action.dest
                self.error(f"argument {name}: the value is empty")  # a path that is empty would be the working directory
        return found, extra

    # ------------------------------------------------------------ commands

    def _with_command(self, words: list[str]) -> list[str]:
        """The words, the command among them checked; `help COMMAND` is `COMMAND --help`."""
        at = next((i for i, word in enumerate(words) if word[:1] != "-"), len(words))
        for word in words[:at]:
            self._known(word)
        commands = next(dict(a.choices) for a in self._actions if isinstance(a, argparse._SubParsersAction))
        if at < len(words) and words[at] == "help":
            words = [*words[:at], *words[at + 1 : at + 2], "--help"]
        if at < len(words) and words[at] not in commands and words[at] != "--help":
            shown = [name for name in commands if name[:1] != "_"]
            near = difflib.get_close_matches(words[at], shown, 1, 0.5)
            self.error(f"unknown command {words[at]}; {f'did you mean {near[0]}?' if near else ', '.join(shown)}")
        return words

    # ------------------------------------------------------------ options

    def _known(self, word: str) -> tuple[str, argparse.Action]:
        """An option as it was typed, and what it is; complains of one that does not exist."""
        options = self._option_string_actions
        name = word.partition("=")[0] if word.startswith("--") or word in options else word[:2]
        if name not in options:
            name = word.partition("=")[0]
            near = difflib.get_close_matches(name, [option for option in options if option.startswith("--")], 1, 0.6)
            self.error(f"unknown option {name}" + (f"; did you mean {near[0]}?" if near else ""))
        return name, options[name]

    def _arranged(self, words: list[str]) -> list[str]:
        """The same words, options first, in an order and a form that argparse understands as people mean them.

        Where positional arguments are missing, they are the last words after an option that takes several values. A value
        that begins with a minus is attached to its option.
        """
        options: list[str] = []
        several: list[_Values] = []
        plain: list[tuple[int, str]] = []  # positional arguments, by where they stand
        i = 0
        while i < len(words):
            word = words[i]
            i += 1
            if word == "--":
                plain += enumerate(words[i:], i)
                break
            if not _is_option(word):
                plain.append((i - 1, word))
                continue
            name, action = self._known(word)
            if action.nargs in _SEVERAL and "=" not in word:
                end = next((k for k in range(i, len(words)) if _is_option(words[k])), len(words))
                end = min(end, i + 1) if action.nargs == "?" else end
                several.append(_Values(action, name, i, words[i:end]))
                i = end
            elif action.nargs is None and word == name and i < len(words) and not _is_option(words[i]):
                options += [f"{word}={words[i]}"] if words[i][:1] == "-" and word[:2] == "--" else [word, words[i]]
                i += 1
            else:
                options.append(word)
        plain = sorted([*plain, *self._taken_back(several, len(plain))])
        for values in several:
            if values.action.nargs == "?" and not values.words:
                options.append(f"{values.option}={values.action.const}")
            if values.action.nargs == "+" and not values.words:
                self.error(f"argument {values.option}: expected at least one argument")
            options += [f"{values.option}={word}" for word in values.words]
        tail = [word for _, word in plain]
        return [*options, "--", *tail] if any(_is_option(word) for word in tail) else [*options, *tail]

    def _taken_back(self, several: list[_Values], found: int) -> list[tuple[int, str]]:
        """Words after options that are positional arguments; they are taken away there. found: how many there are besides."""
        positionals = [action for action in self._actions if not action.option_strings]
        taken: list[tuple[int, str]] = []
        for values in several:
            if values.action.nargs == "?" and found + len(taken) < len(positionals) and not _fits(values):
                taken.append((values.at, values.words.pop()))
        missing = sum(action.nargs is None for action in positionals) - found - len(taken)
        able = [values for values in several if missing > 0 and len(values.words) >= values.least + missing]
        if able:
            there = [values for values in able if all(os.path.exists(word) for word in values.words[-missing:])]
            values = (there or able)[-1]
            at = values.at + len(values.words) - missing
            taken += enumerate(values.words[-missing:], at)
            del values.words[-missing:]
        return taken


def _is_option(word: str) -> bool:
    """Whether a word is an option, and no value such as `-`, `-1h`, `-PT5M` or a condition with spaces."""
    return word[:1] == "-" and not re.match(r"-($|\d|\.|PT?\d)", word) and " " not in word


def _fits(values: _Values) -> bool:
    """Whether the word after an option can be its value."""
    if not values.words or values.action.type is None:
        return True
    try:
        values.action.type(values.words[0])  # type: ignore[operator]
    except (TypeError, ValueError, argparse.ArgumentTypeError):
        return False
    return True
