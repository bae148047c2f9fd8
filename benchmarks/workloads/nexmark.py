"""Nexmark's files and queries for benchmarks and tests.

What: `QUERIES`, the files of `examples/nexmark`; `write(folder, events)`, a Parquet file of each table; `TIMES`, their times.
Why: benchmarks and tests read the same files.
Stays out: the events (`swjoin.connectors.generator.nexmark`), running queries (`benchmarks.nexmark`).
"""

from __future__ import annotations

import re
from pathlib import Path

from swjoin.connectors.generator.nexmark import EVENTS_AT_ONCE, TIMES, write_tables

__all__ = ["FOLDER", "QUERIES", "TIMES", "write"]

FOLDER = Path(__file__).resolve().parents[2] / "examples" / "nexmark"
QUERIES = {path.stem: path for path in sorted(FOLDER.glob("q*.sql"), key=lambda path: int(re.findall(r"\d+", path.stem)[0]))}


def write(folder: Path, events: int, seed: int = 1, part: int = EVENTS_AT_ONCE) -> dict[str, Path]:
    paths = {name: folder / f"{name}.parquet" for name in TIMES}
    write_tables(paths, events, seed, part)
    return paths
