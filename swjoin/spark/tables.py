"""Tables in Spark, for queries in SQL that other engines understand, too.

What: `open_tables(master)`, a context manager of `SparkTables`.
Why: runs and sweeps are aggregated by one set of queries (`sweeps.run_tables`, `sweeps.run_metrics`).
Stays out: the queries.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from swjoin.spark.session import open_session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession


class SparkTables:
    """Views of a Spark session."""

    def __init__(self, spark: SparkSession) -> None:
        self._spark = spark

    def add_files(self, name: str, files: Sequence[Path]) -> list[str]:
        """A view of the rows of Parquet files and of their paths, column `file`; returns the files' columns. Where a file has
        no such column it has nulls."""
        from pyspark.sql import functions as f

        paths = [re.sub(r"([\\\[\]{}*?])", r"\\\1", str(path.resolve())) for path in files]
        frame = self._spark.read.option("mergeSchema", "true").parquet(*paths)
        frame.select("*", f.col("_metadata.file_path").alias("file")).createOrReplaceTempView(name)
        return list(frame.columns)

    def add_table(self, name: str, table: pa.Table) -> None:
        self._spark.createDataFrame(table).createOrReplaceTempView(name)

    def query(self, sql: str) -> pa.Table:
        return self._spark.sql(sql).toArrow()


@contextmanager
def open_tables(master: str | None) -> Iterator[SparkTables]:
    """UserError without pyspark or Java; RunFailed, in one line, when Spark fails."""
    with open_session(master, "swjoin aggregate") as spark:
        yield SparkTables(spark)
