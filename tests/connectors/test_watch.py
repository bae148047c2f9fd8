"""A directory in which files appear: each is read once, in order, across crashes; what is not whole is waited for."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.connectors.directory import source as watch_module
from swjoin.connectors.directory.source import WatchSource, first_schema
from swjoin.connectors.open import open_live_sources
from swjoin.connectors.source import is_live
from swjoin.core.errors import RunFailed, UserError

SCHEMA = pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us")), ("note", pa.string())])


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watch_module, "_POLL_S", 0.02)


@pytest.fixture
def opened() -> Iterator[list[WatchSource]]:
    sources: list[WatchSource] = []
    yield sources
    for source in sources:
        source.close()


def config_of(folder: Path, **side: Any) -> RunConfig:
    declared = {"watch": str(folder), "key": "key", "time": "ts", **side}
    return config_from_plain(
        {"left": declared, "right": declared, "join": {"within": "1s"}, "time": {"late": "side"}, "sink": {"kind": "parquet"}}
    )


def source_of(folder: Path, opened: list[WatchSource], **side: Any) -> WatchSource:
    left, right = open_live_sources(config_of(folder, **side), None)
    assert isinstance(left, WatchSource)
    assert isinstance(right, WatchSource)
    assert is_live(left)
    opened.append(left)
    return left


def put(folder: Path, name: str, keys: list[int], schema: pa.Schema = SCHEMA, **options: Any) -> Path:
    columns = {"key": keys, "ts": keys, "note": [f"n{k}" for k in keys]}
    hidden = folder / f"{name}.tmp"
    pq.write_table(pa.table({n: pa.array(columns[n], schema.field(n).type) for n in schema.names}), hidden, **options)
    hidden.rename(folder / name)
    return folder / name


def keys_of(source: WatchSource, patience_s: float = 0.3) -> list[int]:
    """All that is there now; ids are positions."""
    found: list[int] = []
    while source.ready(patience_s):
        batch = source.read()
        if batch is None:
            break
        assert batch.id.tolist() == list(range(int(batch.id[0]), int(batch.id[0]) + len(batch)))
        found += batch.ts.tolist()
    return found


def test_files_are_taken_in_order_as_they_appear(tmp_path: Path, opened: list[WatchSource]) -> None:
    put(tmp_path, "b.parquet", [3, 4])
    put(tmp_path, "a.parquet", [1, 2])
    put(tmp_path, "empty.parquet", [])
    (tmp_path / "_metadata.parquet").write_bytes(b"not yet")
    (tmp_path / ".c.parquet").write_bytes(b"not yet")
    (tmp_path / "c.parquet.tmp").write_bytes(b"not yet")
    (tmp_path / "d.parquet.incomplete").write_bytes(b"not yet")
    (tmp_path / "e.csv").write_text("key,ts\n1,1\n")
    source = source_of(tmp_path, opened)
    assert keys_of(source) == [1, 2, 3, 4]
    put(tmp_path, "c.parquet", [7, 8])
    assert keys_of(source) == [7, 8]
    put(tmp_path, "aa.parquet", [5, 6])  # a name before those that have been taken
    assert keys_of(source) == [5, 6]
    assert source.status()["taken_files"] == 4
    assert source.locate(4) == f"{tmp_path / 'c.parquet'}, row 0 (counting from 0)"
    put(tmp_path, "z.parquet", [9])
    (tmp_path / "_END").touch()
    assert keys_of(source) == [9]
    assert source.ready(1)
    assert source.read() is None


def test_a_file_that_is_being_written_is_waited_for(tmp_path: Path, opened: list[WatchSource]) -> None:
    whole = put(tmp_path, "x.parquet", [1, 2, 3]).read_bytes()
    (tmp_path / "x.parquet").unlink()
    growing = tmp_path / "a.parquet"
    growing.write_bytes(whole[:-40])
    put(tmp_path, "b.parquet", [4])
    source = source_of(tmp_path, opened, schema="key: int64, ts: timestamp[us], note: string")
    assert keys_of(source) == [], "what comes after it waits, too"
    growing.write_bytes(whole)
    assert keys_of(source) == [1, 2, 3, 4]


def test_a_file_that_never_becomes_whole_is_told(
    tmp_path: Path, opened: list[WatchSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "_WHOLE_S", 0.2)
    put(tmp_path, "a.parquet", [1])
    (tmp_path / "b.parquet").write_bytes(b"PAR1 and no more")
    source = source_of(tmp_path, opened)
    with pytest.raises(UserError, match=r"b\.parquet: has been no whole Parquet file for 0\.2 s; write it anew"):
        keys_of(source, 2)


@pytest.mark.parametrize(
    ("schema", "line"),
    [
        (pa.schema([("key", pa.int64()), ("ts", pa.timestamp("us"))]), r"b\.parquet: wrong schema: column note is missing"),
        (pa.schema([("key", pa.int32()), ("ts", pa.timestamp("us")), ("note", pa.string())]), "column key is int32, expected"),
    ],
)
def test_another_schema_is_refused(tmp_path: Path, opened: list[WatchSource], schema: pa.Schema, line: str) -> None:
    put(tmp_path, "a.parquet", [1])
    put(tmp_path, "b.parquet", [2], schema)
    with pytest.raises(UserError, match=line):
        keys_of(source_of(tmp_path, opened), 2)


def test_a_corrupt_file_is_refused(tmp_path: Path, opened: list[WatchSource]) -> None:
    path = put(tmp_path, "a.parquet", list(range(2000)))
    data = bytearray(path.read_bytes())
    data[200:4000] = bytes(3800)
    path.write_bytes(data)
    with pytest.raises(UserError, match=r"a\.parquet: cannot be read as Parquet"):
        keys_of(source_of(tmp_path, opened), 2)


def test_the_columns_come_from_the_first_file_or_are_declared(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"left .*: holds no Parquet file yet to tell the columns; declare them as schema"):
        first_schema(tmp_path, "left")
    with pytest.raises(UserError, match="no such directory"):
        first_schema(tmp_path / "gone", "left")
    with pytest.raises(UserError, match="no such directory"):
        open_live_sources(config_of(tmp_path / "gone", schema="key: int64, ts: timestamp[us]"), None)
    put(tmp_path, "a.parquet", [1])
    assert first_schema(tmp_path, "left").names == SCHEMA.names


def through_json(position: dict[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = json.loads(json.dumps(position))
    return plain


FILES = st.lists(st.lists(st.integers(0, 99), max_size=7), min_size=1, max_size=6)


@settings(max_examples=25, deadline=None)
@given(FILES, st.data())
def test_another_process_goes_on_where_one_was(
    tmp_path_factory: pytest.TempPathFactory, files: list[list[int]], data: st.DataObject
) -> None:
    """Wherever it stops, and whatever appears meanwhile."""
    folder = tmp_path_factory.mktemp("watched")
    sources: list[WatchSource] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(watch_module, "BATCH_ROWS", 2)
        patch.setattr(watch_module, "_POLL_S", 0.01)
        there = data.draw(st.integers(1, len(files)))
        for index, keys in enumerate(files[:there]):
            put(folder, f"{index}.parquet", keys, row_group_size=3)
        first = source_of(folder, sources)
        expected = [k for keys in files[:there] for k in keys]
        found: list[int] = []
        for _ in range(data.draw(st.integers(0, 8))):
            batch = first.read() if len(found) < len(expected) else None
            found += [] if batch is None else batch.ts.tolist()
        position = through_json(first.position())
        second = source_of(folder, sources)
        second.resume_at(len(found), position)
        for index, keys in enumerate(files[there:], there):
            put(folder, f"{index}.parquet", keys)
            expected += keys
        (folder / "_SUCCESS").touch()
        while (batch := second.read()) is not None:
            assert batch.id[0] == len(found)
            found += batch.ts.tolist()
        assert found == expected
        # and the first one, which goes back, reads what it had read
        first.seek(0)
        again: list[int] = []
        while (batch := first.read()) is not None:
            again += batch.ts.tolist()
        assert again == expected
        for source in sources:
            source.close()


def test_the_same_order_again(tmp_path: Path, opened: list[WatchSource]) -> None:
    """A file that was taken out of order is read again where it was."""
    put(tmp_path, "b.parquet", [1, 2])
    source = source_of(tmp_path, opened)
    assert keys_of(source) == [1, 2]
    position = through_json(source.position())
    put(tmp_path, "c.parquet", [3])
    assert keys_of(source) == [3]
    put(tmp_path, "a.parquet", [4])
    assert keys_of(source) == [4]
    source.resume_at(2, position)
    assert keys_of(source) == [3, 4]
    source.forget(4)
    source.resume_at(2, position)  # nobody knows the order any more
    assert keys_of(source) == [4, 3]


def test_what_has_to_be_read_again_must_be_there_and_the_same(tmp_path: Path, opened: list[WatchSource]) -> None:
    put(tmp_path, "a.parquet", [1, 2])
    put(tmp_path, "b.parquet", [3, 4])
    source = source_of(tmp_path, opened)
    assert keys_of(source) == [1, 2, 3, 4]
    put(tmp_path, "b.parquet", [3, 5])
    source.seek(0)
    with pytest.raises(RunFailed, match=r"b\.parquet: has to be read again and has changed"):
        keys_of(source)
    (tmp_path / "b.parquet").unlink()
    source.seek(0)
    with pytest.raises(RunFailed, match=r"b\.parquet: has to be read again and is gone"):
        keys_of(source)


def test_a_file_that_is_half_read_must_be_the_same_in_another_process(
    tmp_path: Path, opened: list[WatchSource], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(watch_module, "BATCH_ROWS", 2)
    path = put(tmp_path, "a.parquet", [1, 2, 3, 4, 5])
    source = source_of(tmp_path, opened)
    batch = source.read()
    assert batch is not None
    assert batch.ts.tolist() == [1, 2]
    position = through_json(source.position())
    other = source_of(tmp_path, opened)
    other.resume_at(2, position)
    assert keys_of(other) == [3, 4, 5]
    put(tmp_path, "a.parquet", [1, 2, 3, 4, 6])
    with pytest.raises(RunFailed, match="has changed"):
        other.resume_at(2, position)
    path.unlink()
    with pytest.raises(RunFailed, match="is gone"):
        other.resume_at(2, position)


def test_files_taken_before_may_go_and_are_not_taken_again(tmp_path: Path, opened: list[WatchSource]) -> None:
    path = put(tmp_path, "a.parquet", [1, 2])
    source = source_of(tmp_path, opened, schema="key: int64, ts: timestamp[us], note: string")
    assert keys_of(source) == [1, 2]
    position = through_json(source.position())
    path.unlink()
    other = source_of(tmp_path, opened, schema="key: int64, ts: timestamp[us], note: string")
    other.resume_at(2, position)
    assert keys_of(other) == []
    put(tmp_path, "a.parquet", [1, 2])
    put(tmp_path, "b.parquet", [3])
    assert keys_of(other) == [3]


def test_nobody_waits_for_long(tmp_path: Path, opened: list[WatchSource]) -> None:
    put(tmp_path, "a.parquet", [1])
    source = source_of(tmp_path, opened)
    assert keys_of(source) == [1]
    assert not source.ready(0.0)
    assert not source.ready(0.05)
    source.close()
    assert source._ahead is not None
    assert not source._ahead._thread.is_alive()
