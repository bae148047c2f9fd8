"""Checks before ranks exchange messages: launcher, number of ranks, mpi4py.

What: `launcher_size`, `launcher_index`, `check_world`, `find_mpirun`.
Why: under a wrong launcher every process would wait for the others, or every process would be a master.
Stays out: starting anything (`runtime.launch`), Java (`spark.java`).
"""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

from swjoin.core.errors import UserError, how_to_install
from swjoin.core.stdio import wait_until_read

_LOG = logging.getLogger(__name__)
_NO_MPI4PY = (
    f"MPI ranks need mpi4py, which is missing; {how_to_install('mpi')}, or build mpi4py against your site's MPI library "
    "(docs/clusters.md)"
)
# (variables that hold the number of processes, variables that hold this process's index), by launcher
_SIZES = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "MPI_LOCALNRANKS", "SLURM_STEP_NUM_TASKS")
_INDEXES = ("OMPI_COMM_WORLD_RANK", "PMI_RANK", "PMIX_RANK", "SLURM_PROCID")


def _number(environment: Mapping[str, str], names: tuple[str, ...]) -> int | None:
    return next((int(environment[n]) for n in names if environment.get(n, "").isdigit()), None)


def launcher_size(environment: Mapping[str, str] = os.environ) -> int:
    """Number of processes that the launcher reports; 1 without a launcher (0 processes of an srun count as 1)."""
    size = _number(environment, _SIZES)
    index = _number(environment, _INDEXES)
    return max(size or 1, 1 if index is None else index + 1)


def launcher_index(environment: Mapping[str, str] = os.environ) -> int:
    """Index of this process among those of the launcher; 0 without a launcher."""
    return _number(environment, _INDEXES) or 0


def check_world(environment: Mapping[str, str] = os.environ) -> None:
    """UserError when MPI sees another number of ranks than the launcher started, or too few; empty except on the first."""
    expected = launcher_size(environment)
    try:
        from mpi4py import MPI
    except ModuleNotFoundError:
        raise UserError(_NO_MPI4PY) from None
    except (ImportError, RuntimeError) as error:
        raise UserError(f"mpi4py cannot be loaded ({' '.join(str(error).split())}); is an MPI library installed?") from None
    size = MPI.COMM_WORLD.size
    complaint = world_complaint(expected, size)
    if complaint is not None:
        first = launcher_index(environment) == 0 and MPI.COMM_WORLD.rank == 0
        raise UserError(complaint if first else "")


def end_all_ranks(text: str) -> NoReturn:
    """Log the error and end every rank, because ranks on other hosts may not have detected it and would wait."""
    from mpi4py import MPI

    _LOG.error("%s", text)
    wait_until_read()  # of a rank that aborts mpirun drops what it has not read yet
    MPI.COMM_WORLD.Abort(UserError.exit_code)
    raise UserError("")  # Abort does not return


def world_complaint(expected: int, size: int) -> str | None:
    """The error of a world of `size` ranks when the launcher started `expected` processes, or None."""
    if size != expected and size == 1:
        return (
            f"started as {expected} separate processes, not as {expected} MPI ranks: the launcher and mpi4py's MPI library "
            f"do not know each other; use that library's own mpirun, or srun --mpi=pmix"
        )
    if size < 3:
        return f"{size} MPI ranks; a cluster needs at least 3: master, collector and one slave (mpirun -n 3)"
    return None


def has_mpi4py() -> bool:
    return importlib.util.find_spec("mpi4py") is not None


def find_mpirun() -> Path:
    """The mpirun of this Python environment, else the one on PATH. UserError when there is none, or no mpi4py."""
    if not has_mpi4py():
        raise UserError(_NO_MPI4PY)
    beside = Path(sys.executable).parent / "mpirun"
    if beside.exists():
        return beside
    found = shutil.which("mpirun")
    if found is None:
        raise UserError(f"mpirun was not found; load your site's MPI, or {how_to_install('mpi')}")
    return Path(found)
