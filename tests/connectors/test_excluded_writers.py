"""Files of results that two processes write: one that others have excluded from the run, and its successor."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.connectors.files.sink import FileSink
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.sink import open_sink
from swjoin.core.errors import RunFailed
from swjoin.core.row_codec import StreamCodec
from swjoin.core.storage import AppendedFile

_STREAM = StreamCodec((("key", pa.int64(), "key"), ("at", pa.timestamp("us"), "ts")), ("key",), None)
PLAN = OutputColumns(_STREAM, _STREAM, ids=True)


def _rows(first: int, count: int) -> pa.RecordBatch:
    numbers = np.arange(first, first + count)
    return pa.record_batch([pa.array(numbers).cast(field.type) for field in PLAN.schema], schema=PLAN.schema)


def _open(folder: Path, **options: Any) -> FileSink:
    sink = open_sink("parquet", folder, PLAN, staged=True, share=(0, 1), **options)
    assert isinstance(sink, FileSink)
    return sink


def _sealed(sink: FileSink, generation: int) -> list[str]:
    hidden = sink.seal(generation)
    sink.sync(hidden)
    return [sink.name_of(path) for path in hidden]


def _keys(folder: Path) -> dict[str, list[int]]:
    """The keys in each visible file."""
    return {path.name: pq.read_table(path)["key"].to_pylist() for path in sorted(folder.glob("part-*"))}


def test_an_excluded_writer_does_not_touch_the_files_of_its_successor(tmp_path: Path) -> None:
    """It was stopped after a checkpoint, before it could name the results; it wakes up and goes on, as it must not."""
    old = _open(tmp_path)
    old.restore([], 0)
    old.write_rows(_rows(0, 10), 0)
    names = _sealed(old, 0)
    new = _open(tmp_path, resumes=True)
    new.restore(names, 1)
    assert _keys(tmp_path) == {"part-000000-00000.parquet": list(range(10))}, "those of the checkpoint are there"
    new.write_rows(_rows(10, 10), 1)
    later = _sealed(new, 1)
    old.write_rows(_rows(500, 10), 1)
    assert _sealed(old, 1) == later, "it calls its file the same"
    old.publish(names, 0)
    with pytest.raises(RunFailed, match=r"part-000001-00000\.parquet: results that a checkpoint holds are in several files"):
        _open(tmp_path, resumes=True).restore([*names, *later], 2)
    new.publish(later, 1)
    new.write_rows(_rows(20, 10), 2)
    new.close()
    assert _keys(tmp_path) == {f"part-{g:06d}-00000.parquet": list(range(10 * g, 10 * g + 10)) for g in range(3)}
    assert len(list(tmp_path.iterdir())) == 3, "and nothing else is left"


def test_a_file_that_grows_continues_in_a_new_one(tmp_path: Path) -> None:
    old = AppendedFile(tmp_path / "rows")
    old.append(b"abc")
    mark = old.flush()
    new = AppendedFile(tmp_path / "rows", mark, apart=True)
    new.append(b"new")
    new.flush()
    old.append(b"stale bytes of a process that wakes up")
    old.close()
    assert new.read() == b"abcnew"
    new.close()
    assert (tmp_path / "rows").read_bytes() == b"abcnew"
    with pytest.raises(RunFailed, match="has 6 bytes, the checkpoint says 7"):
        AppendedFile(tmp_path / "rows", (7, 0), apart=True)
