"""Files of results: how columns are written, and what fails in the thread that writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.errors import NotWritten

ROWS = 150_000  # more than a row group
RANDOM = np.random.default_rng(3)
COLUMNS: dict[str, pa.Array] = {
    "id": pa.array(np.arange(ROWS)),
    "a.noise": pa.FixedSizeBinaryArray.from_buffers(
        pa.binary(24), ROWS, [None, pa.py_buffer(RANDOM.integers(0, 256, 24 * ROWS, np.uint8).tobytes())]
    ),
    "bytes": pa.array([b"payload " * 4] * ROWS),
    "text": pa.array(["a text", None] * (ROWS // 2)),
    "float": pa.array(RANDOM.random(ROWS)),
    "list": pa.array([[1, 2], []] * (ROWS // 2)),
    "decimal": pa.array(RANDOM.integers(0, 99, ROWS)).cast(pa.decimal128(30, 2)),
}


def sink(target: Path, kind: Any = "parquet") -> FileSink:
    columns = {name: array for name, array in COLUMNS.items() if kind == "parquet" or name in ("id", "text")}
    return FileSink(kind, target, RowColumns(tuple((name, array.type) for name, array in columns.items()), ids=False))


def batches(kind: str = "parquet") -> list[pa.RecordBatch]:
    table = pa.table(COLUMNS)
    return (table if kind == "parquet" else table.select(["id", "text"])).to_batches(max_chunksize=20_000)


def written(target: Path, rows: int = ROWS) -> pa.Table:
    file = sink(target)
    for batch in batches():
        file.write_rows(batch.slice(0, min(rows, len(batch))), 0)
        rows -= min(rows, len(batch))
    file.close()
    return pq.read_table(target)


@pytest.mark.parametrize("rows", [0, 1, 20_000, ROWS])
def test_rows_are_those_that_were_written(rows: int, tmp_path: Path) -> None:
    assert written(tmp_path / "out.parquet", rows).equals(pa.table(COLUMNS).slice(0, rows))


def test_columns_are_compressed_where_it_makes_them_smaller(tmp_path: Path) -> None:
    written(tmp_path / "out.parquet")
    found = pq.read_metadata(tmp_path / "out.parquet")
    assert found.num_row_groups > 1
    for group in range(found.num_row_groups):
        columns = {found.schema.column(i).path: found.row_group(group).column(i) for i in range(found.num_columns)}
        assert {path for path, column in columns.items() if column.compression == "UNCOMPRESSED"} == {"a.noise", "float"}
        assert {path for path, column in columns.items() if not column.is_stats_set} == {"a.noise", "bytes"}


def test_what_fails_in_the_thread_that_writes_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    file = sink(tmp_path / "out.parquet")

    def write() -> None:
        for batch in batches():
            file.write_rows(batch, 0)
        file.close()

    with pytest.raises(NotWritten, match=r"out.parquet: cannot be written \(No space left on device\)"):
        write()
    file.abort()
    assert list(tmp_path.glob("*.parquet")) == []


def test_csv_of_many_rows(tmp_path: Path) -> None:
    file = sink(tmp_path / "out.csv", "csv")
    for batch in batches("csv"):
        file.write_rows(batch, 0)
    file.close()
    assert len((tmp_path / "out.csv").read_text().splitlines()) == ROWS + 1
