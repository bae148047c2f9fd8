"""A tenth of large matrices of tests, drawn for each session of tests.

What: `drawn_marks`. Why: `./run.sh long` runs all of them, and the suite meets each of them every tenth time.
Stays out: the seed, which all workers of a session share (`tests.conftest`).
"""

from __future__ import annotations

import os
import zlib

import pytest


def drawn_marks(name: str) -> list[pytest.MarkDecorator]:
    """Marks of the test of this name: none if it is drawn, else that of `./run.sh long`."""
    draw = zlib.crc32(f"{os.environ['SWJOIN_DRAW']} {name}".encode()) % 10
    return [] if draw == 0 else [pytest.mark.long]
