"""A DuckDB database in a temporary folder, with bounded memory.

What: `open_database(memory_bytes)`, a context manager; `name`, `text` and `path_list`, quoted for SQL.
Why: memory, spilling, time zone and one line per error belong in one place; nothing of it may stay on the disk.
Stays out: what is computed.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from swjoin.core.errors import RunFailed, UserError, how_to_install, one_line

MEMORY_BYTES = 4 << 30  # at most; on machines with less than twice as much, half of what they have


@contextmanager
def open_database(memory_bytes: int | None = None) -> Iterator[tuple[Any, Path]]:
    """A connection to an empty database, and the folder below TMPDIR of its tables and of what does not fit into memory; the
    folder is removed at the end.

    memory_bytes: limit of DuckDB's memory; None: MEMORY_BYTES. UserError without duckdb; RunFailed, in one line, when DuckDB
    fails.
    """
    import psutil

    try:
        import duckdb
    except ImportError:
        raise UserError(f"duckdb is missing; {how_to_install('verify')}, or choose --engine spark") from None
    limit = min(MEMORY_BYTES, psutil.virtual_memory().total // 2) if memory_bytes is None else memory_bytes
    with tempfile.TemporaryDirectory(prefix="swjoin-duckdb-") as folder:
        settings: dict[str, str | bool | int | float | list[str]] = {
            "memory_limit": f"{limit}B",
            "temp_directory": str(Path(folder) / "spilled"),
            "autoinstall_known_extensions": "false",  # nothing is fetched from the network
        }
        try:
            with duckdb.connect(str(Path(folder) / "tables.duckdb"), config=settings) as connection:
                connection.execute("SET TimeZone = 'UTC'")
                connection.execute("SET enable_progress_bar = false")
                yield connection, Path(folder)
        except duckdb.OutOfMemoryException as error:
            remedy = f"make room in {tempfile.gettempdir()}, or set TMPDIR to a directory with more"
            raise RunFailed(f"DuckDB: {one_line(error)}", remedy=remedy) from None
        except duckdb.Error as error:
            raise RunFailed(f"DuckDB: {one_line(error, 500)}") from error


def name(identifier: str) -> str:
    return '"' + identifier.replace('"', '""') + '"'


def text(literal: str) -> str:
    return "'" + literal.replace("'", "''") + "'"


def path_list(paths: Iterable[Path]) -> str:
    """Files as a list in SQL; characters of patterns in their names stand for themselves."""
    return "[" + ", ".join(text(re.sub(r"([*?\[])", r"[\1]", str(path.resolve()))) for path in paths) + "]"
