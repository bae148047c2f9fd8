"""The modules of `plots`, which lie beside the package in a checkout.

What: `figures_of(name)`.
Why: figures need matplotlib and are no part of the package; whoever has both gets them, everybody else a line that says so.
Stays out: drawing (`plots`).
"""

from __future__ import annotations

import importlib
import sys
from pathlib import Path
from types import ModuleType

from swjoin.errors import UserError


def figures_of(name: str) -> ModuleType:
    """plots/NAME.py. UserError without a checkout or matplotlib."""
    root = Path(__file__).resolve().parents[2]
    if (root / "plots").is_dir() and str(root) not in sys.path:
        sys.path.append(str(root))
    try:
        return importlib.import_module(f"plots.{name}")
    except ModuleNotFoundError as error:
        raise UserError(
            f"plots need the repository and matplotlib ({error.name} is missing); start ./run.sh from a checkout"
        ) from None
