"""The folder of a run: a new one in `runs` for a run that names none, and `runs/latest`, a link to the newest.

What: `in_new_folder(start)`; `in_folder(folder, start)`; `forget_worthless`, for processes that end at once; `named(folder)`,
what a link stands for.
Why: `swjoin run` without `--out` works every time, and overwrites nothing; a run that is refused, or stopped before it has
written anything, leaves everything as it was.
Stays out: what goes into the folder (`runtime.run_report`, `connectors`).
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


class _Before:
    """A folder as it was before a run. new: it was made for the run."""

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self._folder = folder
        self._there = set() if new else set(folder.rglob("*"))
        self._made = [folder] if new else [above for above in (folder, *folder.parents) if not above.exists()]
        self.link: str | None = None  # where `runs/latest` led
        _unsettled.append(self)

    def settle(self, *, well: bool) -> None:
        """The run has ended. Unless it has ended well, remove what it has left if that is nothing but empty files and
        folders."""
        _unsettled.remove(self)
        if well:
            return
        left = sorted(set(self._folder.rglob("*")) - self._there, reverse=True)  # what lies in a folder comes before it
        try:
            if any(path.is_symlink() or (not path.is_dir() and path.stat().st_size) for path in left):
                return
            for path in left:
                path.rmdir() if path.is_dir() else path.unlink()
            for path in self._made:
                path.rmdir()
        except OSError:
            return
        if LATEST.is_symlink() and LATEST.parent == self._folder.parent and os.readlink(LATEST) == self._folder.name:
            if self.link is None:
                LATEST.unlink()
            else:
                _point(self.link)


_unsettled: list[_Before] = []


def in_new_folder(start: Callable[[Path], int], *, as_ranks: bool) -> int:
    """Start a run in a new folder; its exit code. A folder in which a run has left nothing is removed.

    as_ranks: this process is one of the ranks that somebody launched, and all of them call this; the first makes the folder.
    """
    if as_ranks:
        preflight.check_world()
        folder = _agreed()
        if preflight.launcher_index() != 0:
            return start(folder)
    else:
        folder = _made()
    before = _Before(folder, new=True)
    before.link = _link_to(folder)
    return _settled(before, start, folder)


def in_folder(folder: Path, start: Callable[[Path], int]) -> int:
    """Start a run in this folder; its exit code. What a run that was refused or stopped has left is removed if it is empty."""
    if preflight.launcher_index() != 0:
        return start(folder)
    return _settled(_Before(folder), start, folder)


def _settled(before: _Before, start: Callable[[Path], int], folder: Path) -> int:
    code = None
    try:
        code = start(folder)
    finally:
        before.settle(well=code == 0)
    return code


def forget_worthless() -> None:
    """Before this process ends at once, not well: as at the end of `in_folder` and `in_new_folder`."""
    for before in list(_unsettled):
        before.settle(well=False)


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
