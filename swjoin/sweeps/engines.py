"""Engines that aggregate runs and sweeps: DuckDB on one machine, or Spark.

What: `Tables`, what queries need; `open_tables(engine, spark_master)`.
Why: tables are defined once, in SQL that both engines understand, and Java is needed only where Spark is wanted.
Stays out: the engines (`duckdb.tables`, `spark.tables`), the queries.

Common SQL: no identifiers in quotes, integers summed are cast, divisors that may be 0 are in nullif, the order of nulls is
written down.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow as pa

Engine = Literal["duckdb", "spark"]


class Tables(Protocol):
    """Named tables and queries of them."""

    def add_files(self, name: str, files: Sequence[Path]) -> list[str]:
        """A view of the rows of Parquet files and of their paths, column `file`; returns the files' columns. Where a file has
        no such column it has nulls."""

    def add_table(self, name: str, table: pa.Table) -> None: ...

    def query(self, sql: str) -> pa.Table: ...


def open_tables(engine: Engine, spark_master: str | None = None) -> AbstractContextManager[Tables]:
    """UserError when the engine is not installed; RunFailed, in one line, when it fails."""
    if engine == "spark":
        from swjoin.spark.tables import open_tables as open_in_spark

        return open_in_spark(spark_master)
    from swjoin.duckdb.tables import open_tables as open_in_duckdb

    return open_in_duckdb()
