"""Tables in DuckDB, for queries in SQL that other engines understand, too.

What: `open_tables()`, a context manager of `DuckDbTables`.
Why: runs and sweeps are aggregated by one set of queries (`sweeps.run_tables`, `sweeps.run_metrics`), without Java.
Stays out: the queries.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.duckdb.session import open_database, path_list

if TYPE_CHECKING:
    import pyarrow as pa


class DuckDbTables:
    """Views of a DuckDB connection."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def add_files(self, name: str, files: Sequence[Path]) -> list[str]:
        """A view of the rows of Parquet files and of their paths, column `file`; returns the files' columns. Where a file has
        no such column it has nulls."""
        rows = f"read_parquet({path_list(files)}, union_by_name = true, hive_partitioning = false, filename = true)"
        self._db.execute(f"CREATE OR REPLACE VIEW {name} AS SELECT * EXCLUDE (filename), filename AS file FROM {rows}")
        columns = [row[0] for row in self._db.execute(f"DESCRIBE {name}").fetchall()]
        return columns[:-1]

    def add_table(self, name: str, table: pa.Table) -> None:
        self._db.register(name, table)

    def query(self, sql: str) -> pa.Table:
        return self._db.sql(sql).to_arrow_table()


@contextmanager
def open_tables() -> Iterator[DuckDbTables]:
    """UserError without duckdb; RunFailed, in one line, when DuckDB fails."""
    with open_database() as (db, _):
        yield DuckDbTables(db)
