"""The folder of a run: a new one in `runs` for a run that names none, and `runs/latest`, a link to the newest.

What: `in_new_folder(start)`; `in_folder(folder, start)`; `forget_worthless`, for processes that end at once; `named(folder)`,
the target of a link.
Why: `swjoin run` without `--out` overwrites nothing; a run that is refused, or stopped before its first output, changes
nothing.
Stays out: the content of the folder (`runtime.run_report`, `connectors`).
"""

from __future__ import annotations

import itertools
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np

from swjoin.core.errors import UserError
from swjoin.runtime import preflight

_LOG = logging.getLogger(__name__)
RUNS = Path("runs")
LATEST = RUNS / "latest"


class _Before:
    """The content of a folder before a run. new: the folder was made for the run."""

    def __init__(self, folder: Path, *, new: bool = False) -> None:
        self._folder = folder
        self._there = set() if new else set(folder.rglob("*"))
        self._made = [folder] if new else [above for above in (folder, *folder.parents) if not above.exists()]
        self.link: str | None = None  # the earlier target of `runs/latest`
        _unsettled.append(self)

    def settle(self, *, well: bool) -> None:
        """Called at the end of the run. Unless the run has ended well, remove its files and folders if all of these are
        empty."""
        _unsettled.remove(self)
        if well:
            return
        left = sorted(set(self._folder.rglob("*")) - self._there, reverse=True)  # the content of a folder precedes the folder
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
    """Start a run in a new folder; returns its exit code. A folder in which a failed run has left nothing is removed.

    as_ranks: this process is a rank of a launcher, and all of its ranks call this function; the first makes the folder.
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
    """Start a run in this folder; returns its exit code. If a run that was refused or stopped left only empty files, they
    are removed."""
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
    """Settle all folders; called before this process ends at once after a failure."""
    for before in list(_unsettled):
        before.settle(well=False)


def named(folder: Path) -> Path:
    """The target of `folder` if it is a link, which a later run may change; otherwise `folder`."""
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
    """Point `runs/latest` to this folder; returns its earlier target. A `runs/latest` that is no link is left unchanged."""
    before = os.readlink(LATEST) if LATEST.is_symlink() else None
    if before is None and os.path.lexists(LATEST):
        _LOG.info("%s is no link and stays as it is; this run is in %s", LATEST, folder)
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
