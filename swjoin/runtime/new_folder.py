"""The folder of a run that names none: a new one in `runs`, and `runs/latest`, a link to the newest.

What: `in_new_folder(start)`; `named(folder)`, what a link stands for.
Why: `swjoin run` without `--out` works every time, and overwrites nothing.
Stays out: what goes into the folder (`runtime.run_report`, `sinks`).
"""

from __future__ import annotations

import itertools
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from swjoin.core.errors import UserError
from swjoin.runtime import preflight

RUNS = Path("runs")
LATEST = RUNS / "latest"


def in_new_folder(start: Callable[[Path], int], *, as_ranks: bool) -> int:
    """Start a run in a new folder; its exit code. A folder in which a refused run has left nothing is removed.

    as_ranks: this process is one of the ranks that somebody launched, and all of them call this; the first makes the folder.
    """
    if as_ranks:
        preflight.check_world()
        folder = _agreed()
        if preflight.launcher_index() != 0:
            return start(folder)
    else:
        folder = _made()
    before = _link_to(folder)
    try:
        code = start(folder)
    except UserError:
        _forget(folder, before)
        raise
    if code == UserError.exit_code:
        _forget(folder, before)
    return code


def named(folder: Path) -> Path:
    """The folder itself, where `folder` is a link, which may soon lead to another one."""
    return folder.parent / os.readlink(folder) if os.path.islink(folder) else folder


def _made() -> Path:
    stamp = time.strftime("%Y-%m-%d-%H%M%S")
    for number in itertools.count(1):
        folder = RUNS / (stamp if number == 1 else f"{stamp}-{number}")
        try:
            RUNS.mkdir(exist_ok=True)
            folder.mkdir()
            return folder
        except FileExistsError:
            if not RUNS.is_dir():
                raise UserError(f"{RUNS}: is no directory; give --out DIR") from None
        except OSError as error:
            raise UserError(f"{folder}: cannot be made ({error.strerror}); give --out DIR") from None
    raise AssertionError


def _agreed() -> Path:
    """The same folder on all ranks."""
    from mpi4py import MPI

    buffer = np.zeros(64, np.uint8)
    if MPI.COMM_WORLD.rank == 0:
        try:
            name = _made().name.encode()
        except UserError as error:
            preflight.end_all_ranks(str(error))
        buffer[: len(name)] = np.frombuffer(name, np.uint8)
    MPI.COMM_WORLD.Bcast([buffer, MPI.BYTE], root=0)
    return RUNS / buffer.tobytes().rstrip(b"\0").decode()


def _link_to(folder: Path) -> str | None:
    """Make `runs/latest` lead there; where it led before. What is no link is the user's and stays."""
    before = os.readlink(LATEST) if LATEST.is_symlink() else None
    if before is None and os.path.lexists(LATEST):
        print(f"swjoin: {LATEST} is no link and stays as it is; this run is in {folder}", file=sys.stderr)
        return None
    _point(folder.name)
    return before


def _point(target: str) -> None:
    beside = RUNS / f".latest-{os.getpid()}"
    try:
        beside.unlink(missing_ok=True)
        beside.symlink_to(target)
        beside.replace(LATEST)
    except OSError:  # a file system without links
        beside.unlink(missing_ok=True)


def _forget(folder: Path, before: str | None) -> None:
    """Remove an empty folder; what is in any other may be of use."""
    try:
        folder.rmdir()
    except OSError:
        return
    if LATEST.is_symlink() and os.readlink(LATEST) == folder.name:
        if before is None:
            LATEST.unlink()
        else:
            _point(before)
