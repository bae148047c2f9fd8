"""A tenth of the tests marked `drawn`, chosen anew for each session of tests.

What: `is_drawn`. Why: `./run.sh long` runs all of them, and the suite meets each of them every tenth time.
Stays out: the seed, which all workers of a session share, and the mark's effect (`tests.conftest`).
"""

from __future__ import annotations

import os
import zlib


def is_drawn(name: str) -> bool:
    return zlib.crc32(f"{os.environ['SWJOIN_DRAW']} {name}".encode()) % 10 == 0
