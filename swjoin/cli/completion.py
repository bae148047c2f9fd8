"""The command `completion`: a script by which a shell completes commands, options, their values and files.

What: `run_completion`, `completion_script`.
Why: thirty options of a command are found by the Tab key.
Stays out: the language of each shell (shtab, of the extra `completion`).
"""

from __future__ import annotations

import argparse

from swjoin.cli.main import build_parser
from swjoin.core.errors import UserError, how_to_install

_FILES = {"FILE", "LEFT", "RIGHT", "OUT", "CONFIG.yaml", "EXPERIMENT.yaml", "REPORT.json", "F", "NAME|FILE", "COSTS.yaml"}
_FILES |= {"FILE.html", "CONFIG.yaml|DIR", "DIR|EXPERIMENT.yaml", "ADDRESS|PORT|DIR", "GRAPH.json"}
_FOLDERS = {"DIR", "D", "FOLDER"}


def completion_script(dialect: str) -> str:
    """The script. dialect: `bash`, `zsh` or `tcsh`. UserError when shtab is missing."""
    try:
        import shtab
    except ModuleNotFoundError:
        raise UserError(f"completion: shtab is missing; {how_to_install('completion')}") from None
    parser = build_parser()
    commands = next(action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    for name in [name for name in commands.choices if name[0] == "_"]:
        del commands.choices[name]
    for command in commands.choices.values():
        for action in command._actions:
            if action.metavar in _FILES | _FOLDERS:
                action.complete = shtab.FILE if action.metavar in _FILES else shtab.DIRECTORY  # type: ignore[attr-defined]
    return str(shtab.complete(parser, dialect))


def run_completion(args: argparse.Namespace) -> int:
    print(completion_script(args.dialect))
    return 0
