"""A tenth of the tests marked `drawn`, chosen anew for each session of tests.

What: `is_drawn`, `mostly_drawn`. Why: `./run.sh long` runs all of them, and the suite meets each of them every tenth time.
Stays out: the seed, which all workers of a session share, and the mark's effect (`tests.conftest`).
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Iterable
from typing import Any

import pytest


def is_drawn(name: str) -> bool:
    return zlib.crc32(f"{os.environ['SWJOIN_DRAW']} {name}".encode()) % 10 == 0


def mostly_drawn(cases: Iterable[Any], every: int = 3) -> list[Any]:
    """Parameters of a test of many alike cases: of so many, one is always run and the others are drawn."""
    return [case if i % every == 0 else pytest.param(case, marks=pytest.mark.drawn) for i, case in enumerate(cases)]
