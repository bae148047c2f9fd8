"""Parquet files that executors read themselves, for `window_join`.

What: `parquet(spark, *paths) -> ParquetFiles`, in the place of a DataFrame; `read_pieces` in executors.
Why: a row that Spark reads becomes columns, a row, and columns again before Python sees it; that costs more than the join.
Stays out: packing and joining (`spark.shuffle_batches`, `spark.executor_join`).

For files as they are, on storage that pyarrow and every executor can read (a shared file system, hdfs, s3, gs). For views,
filters and tables whose files are not all of the truth (Delta, Iceberg, partition columns in folder names): a DataFrame.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import UserError

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

PIECE_SCHEMA = "piece int, path string, row_group int"


@dataclass(frozen=True)
class ParquetFiles:
    """The files behind a frame that reads them, row group by row group."""

    frame: DataFrame
    row_groups: tuple[tuple[str, int], ...]

    def pieces(self) -> DataFrame:
        """One row and one Spark partition per row group."""
        rows = [(i, path, group) for i, (path, group) in enumerate(self.row_groups)]
        frame = self.frame.sparkSession.createDataFrame(rows, PIECE_SCHEMA)
        return frame.repartitionById(max(1, len(rows)), "piece")


def parquet(spark: SparkSession, *paths: str) -> ParquetFiles:
    """These Parquet files or folders of them, as a side of `window_join`. UserError when pyarrow cannot read them."""
    import pyarrow as pa

    frame = spark.read.parquet(*paths)
    groups = []
    for uri in sorted(frame.inputFiles()):
        try:
            with _open(uri) as file:
                names = file.schema_arrow.names
                groups += [(uri, i) for i in range(file.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise UserError(f"{uri}: cannot be read by executors ({str(error)[:200]}); give the DataFrame instead") from None
        missing = [name for name in frame.columns if name not in names]
        if missing:
            raise UserError(f"{uri}: has no column {missing[0]}; give the DataFrame instead")
    return ParquetFiles(frame, tuple(groups))


def _open(uri: str) -> Any:
    import pyarrow.fs as fs
    import pyarrow.parquet as pq

    system, path = fs.FileSystem.from_uri(uri)
    return pq.ParquetFile(path, filesystem=system)


def read_pieces(
    pieces: Iterator[pa.RecordBatch], columns: Sequence[str], kinds: Sequence[pa.DataType], required: int
) -> Iterator[pa.RecordBatch]:
    """In an executor: these columns of its row groups, as Spark would give them; no row with a null in the first `required`."""
    import pyarrow as pa

    for batch in pieces:
        for uri, group in zip(batch.column(1).to_pylist(), batch.column(2).to_pylist(), strict=True):
            with _open(uri) as file:
                for rows in file.iter_batches(
                    1 << 16, row_groups=[group], columns=list(dict.fromkeys(columns)), use_threads=False
                ):
                    arrays = [rows.column(name) for name in columns]
                    arrays = [a if a.type == kind else a.cast(kind) for a, kind in zip(arrays, kinds, strict=True)]
                    out = pa.RecordBatch.from_arrays(arrays, names=[f"c{i}" for i in range(len(arrays))])
                    if any(out.column(i).null_count for i in range(required)):
                        out = out.filter(_valid(out, required))
                    yield out


def _valid(rows: pa.RecordBatch, required: int) -> pa.Array:
    import pyarrow.compute as pc

    valid = rows.column(0).is_valid()
    for i in range(1, required):
        valid = pc.and_(valid, rows.column(i).is_valid())
    return valid
