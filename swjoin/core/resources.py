"""Resources of the package: configurations, experiments, figures; beside it in a checkout, inside it in a wheel.

What: `shipped_folder(name)`, `find_resource(name)` (a file as the user names it), `relative_to`, `load_figures(module)`.
Why: commands of the documents work in any directory, with a checkout and with an installation.
Stays out: reading the files (`config.loader`, `sweeps.experiment`), drawing (`plots/`).
"""

from __future__ import annotations

import importlib
import os
import sys
from pathlib import Path
from typing import Any

from swjoin.core.errors import UserError, how_to_install

_PACKAGE = Path(__file__).resolve().parents[1]
_NAMED = ("mpi_configs", "experiments")


def shipped_folder(name: str) -> Path:
    """Directory `mpi_configs`, `experiments` or `plots`, which may not exist."""
    inside = _PACKAGE / name
    return inside if inside.is_dir() else _PACKAGE.parent / name


def find_resource(name: str | Path) -> Path:
    """The file `name`; if it does not exist, the shipped file of that name, such as mpi_configs/local.yaml."""
    path = Path(name)
    if len(path.parts) == 2 and path.parts[0] in _NAMED and not os.path.exists(path):
        shipped = shipped_folder(path.parts[0]) / path.parts[1]
        if os.path.exists(shipped):  # unlike Path.exists, it accepts names that are too long
            return shipped
    return path


def relative_to(path: str | Path) -> str:
    """Suffix of messages about a missing path: the directory that a relative path starts from."""
    try:
        return "" if os.path.isabs(path) else f" (relative to the working directory, {os.getcwd()})"
    except OSError:  # the directory was removed
        return ""


def load_figures(module: str) -> Any:
    """A module of `plots/`. UserError when matplotlib is not installed."""
    root = str(_PACKAGE.parent)
    if (_PACKAGE / "plots").is_dir():
        package = "swjoin.plots"
    else:
        package = "plots"
        if root not in sys.path:
            sys.path.append(root)
    try:
        return importlib.import_module(f"{package}.{module}")
    except ModuleNotFoundError as error:
        if error.name is not None and error.name.split(".")[0] in ("plots", "swjoin"):
            raise UserError(f"figures are drawn by {error.name}, which this installation lacks; install swjoin anew") from None
        raise UserError(f"figures need {error.name}, which is missing; {how_to_install('plots')}") from None
