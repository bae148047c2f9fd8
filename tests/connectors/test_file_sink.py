"""Files of results: how columns are written, and what fails in the thread that writes."""

from __future__ import annotations

import gc
import os
import signal
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import RowColumns
from swjoin.core.errors import NotWritten
from tests.support.limits import PROCESS_S

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
    assert list(tmp_path.iterdir()) == []


def test_csv_of_many_rows(tmp_path: Path) -> None:
    file = sink(tmp_path / "out.csv", "csv")
    for batch in batches("csv"):
        file.write_rows(batch, 0)
    file.close()
    assert len((tmp_path / "out.csv").read_text().splitlines()) == ROWS + 1


def test_many_rows_are_written_by_one_other_thread_at_a_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    at_once, most = 0, 0  # of other threads than this one
    write_table = pq.ParquetWriter.write_table

    def noted(self: Any, table: pa.Table, **options: Any) -> None:
        nonlocal at_once, most
        apart = threading.current_thread() is not threading.main_thread()
        at_once += apart
        most = max(most, at_once)
        write_table(self, table, **options)
        at_once -= apart

    files = [sink(tmp_path / f"{name}.parquet") for name in "ab"]
    monkeypatch.setattr(pq.ParquetWriter, "write_table", noted)
    for batch in [*batches(), *batches()]:
        for file in files:
            file.write_rows(batch, 0)
    for file in files:
        file.close()
    assert most == 1
    started = [thread for thread in threading.enumerate() if thread.name == "files"]
    for thread in started:
        thread.join(PROCESS_S)
    assert not any(thread.is_alive() for thread in started)
    assert all(pq.read_metadata(tmp_path / f"{name}.parquet").num_rows == 2 * ROWS for name in "ab")


def test_an_interrupt_while_rows_are_written_leaves_a_whole_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_table, may_end = pq.ParquetWriter.write_table, threading.Event()

    def slow(self: Any, table: pa.Table, **options: Any) -> None:
        may_end.wait(PROCESS_S)
        write_table(self, table, **options)

    file = sink(tmp_path / "out.parquet")
    monkeypatch.setattr(pq.ParquetWriter, "write_table", slow)
    for batch in batches():
        file.write_rows(batch, 0)  # a row group is on its way
    interrupt = threading.Timer(0.3, lambda: os.kill(os.getpid(), signal.SIGINT))
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        file.close()
    threading.Timer(0.3, may_end.set).start()
    file.abort()
    assert pq.read_table(tmp_path / "out.parquet.incomplete").equals(pa.table(COLUMNS).slice(0, 140_000))


def test_columns_that_files_cannot_hold_are_refused_at_the_start(tmp_path: Path) -> None:
    columns = RowColumns((("nothing", pa.struct([])),), ids=False)
    with pytest.raises(pa.ArrowNotImplementedError):
        FileSink("parquet", tmp_path / "out.parquet", columns)
    assert list(tmp_path.iterdir()) == []


def test_a_generation_that_cannot_be_sealed_is_closed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*args: Any, **options: Any) -> None:
        raise OSError(28, "No space left on device")

    columns = RowColumns(tuple((name, array.type) for name, array in COLUMNS.items()), ids=False)
    file = FileSink("parquet", tmp_path / "results", columns, share=(0, 1), staged=True)
    for batch in batches():
        file.write_rows(batch, 0)
    monkeypatch.setattr(pq.ParquetWriter, "write_table", full)
    with pytest.raises(NotWritten, match="No space left on device"):
        file.seal(0)
    file.abort()
    gc.collect()
    assert not [name for name in os.listdir("/proc/self/fd") if "results" in _link(name)]


def _link(name: str) -> str:
    try:
        return os.readlink(f"/proc/self/fd/{name}")
    except OSError:
        return ""
