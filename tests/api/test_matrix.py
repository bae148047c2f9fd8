"""Every kind of input into every call, against brute force; every other kind is refused by each of them in one line."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.feather as feather
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.connectors.flight.client import connect
from tests.api.test_frames import EXPECTED, KINDS, LEFT, OPTIONS, RIGHT, SCHEMA, VALUES, Answer, plain, values_of
from tests.support.live_runs import config as live_config
from tests.support.live_runs import live

Found = tuple[Answer, list[str] | None]


def joined(left: Any, right: Any, folder: Path) -> Found:
    table = swjoin.join(left, right, **OPTIONS)
    return _of_proof(swjoin.proof(table), table)


def counted(left: Any, right: Any, folder: Path) -> Found:
    return _of_proof(swjoin.count(left, right, **OPTIONS), None)


def into_file(left: Any, right: Any, folder: Path) -> Found:
    proof = swjoin.join(left, right, **OPTIONS, out=folder / "out.parquet")
    assert swjoin.proof(folder / "out.parquet") == proof
    return _of_proof(proof, pq.read_table(folder / "out.parquet"))


def as_reader(left: Any, right: Any, folder: Path) -> Found:
    reader = swjoin.join(left, right, **OPTIONS, returns="reader")
    table = reader.read_all()
    return _of_proof(swjoin.proof(reader), table)


def _of_proof(proof: swjoin.Proof, table: pa.Table | None) -> Found:
    return (proof.count, proof.digest), None if table is None else values_of(table)


def pushed(left: Any, right: Any, folder: Path) -> Found:
    with swjoin.WindowJoin(**OPTIONS) as join:
        found = [*join.push(left=left, right=right), *join.close()]
    return (join.count, join.digest), values_of(found)


def read(left: Any, right: Any, folder: Path) -> Found:
    join = swjoin.WindowJoin(**OPTIONS)
    found = join.read(left, right).read_all()
    return (join.count, join.digest), values_of(found)


def streamed(left: Any, right: Any, folder: Path) -> Found:
    join = swjoin.WindowJoin(**OPTIONS)

    async def all_of() -> list[pa.RecordBatch]:
        return [batch async for batch in join.stream(left, right)]

    found = asyncio.run(all_of())
    return (join.count, join.digest), values_of(found)


def into_csv(left: Any, right: Any, folder: Path) -> Found:
    proof = swjoin.join(left, right, **OPTIONS, out=folder / "out.csv")
    return _of_proof(proof, csv.read_csv(folder / "out.csv", convert_options=csv.ConvertOptions(strings_can_be_null=True)))


WHOLE: dict[str, Callable[[Any, Any, Path], Found]] = {
    "join": joined,
    "count": counted,
    "join, out": into_file,
    "join, out CSV": into_csv,
    "join, reader": as_reader,
}
STREAMS: dict[str, Callable[[Any, Any, Path], Found]] = {"push": pushed, "read": read, "stream": streamed}
CALLS = {**WHOLE, **STREAMS}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_of_frame_into_every_call(kind: str, call: str, tmp_path: Path) -> None:
    """connect().push: test_frames.py; returns: there, too."""
    answer, values = CALLS[call](KINDS[kind](plain(LEFT)), KINDS[kind](plain(RIGHT)), tmp_path)
    assert answer == EXPECTED
    assert values in (VALUES, None)


def folder_of(table: pa.Table, path: Path) -> Path:
    path.mkdir()
    for i, batch in enumerate(table.to_batches(max_chunksize=12)):
        pq.write_table(pa.Table.from_batches([batch]), path / f"part-{i}.parquet")
    return path


def file_of(write: Callable[[pa.Table, str], object]) -> Callable[[pa.Table, Path], Path]:
    def written(table: pa.Table, path: Path) -> Path:
        write(table, str(path))
        return path

    return written


FILES: dict[str, Callable[[pa.Table, Path], Path]] = {
    ".parquet": file_of(pq.write_table),
    ".csv": file_of(csv.write_csv),
    ".arrow": file_of(feather.write_feather),
    "": folder_of,
}


@pytest.mark.parametrize("as_path", [str, Path])
@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("ending", FILES)
def test_files_into_every_call(ending: str, call: str, as_path: type, tmp_path: Path) -> None:
    left, right = (
        as_path(FILES[ending](plain(rows), tmp_path / f"{side}{ending}")) for side, rows in (("left", LEFT), ("right", RIGHT))
    )
    if call in STREAMS:
        with pytest.raises(swjoin.UserError, match=r"left: '.*' is a path; a stream takes batches, swjoin.join takes paths"):
            CALLS[call](left, right, tmp_path)
        return
    answer, values = CALLS[call](left, right, tmp_path)
    assert answer == EXPECTED
    assert values in (VALUES, None)


NO_TABLES: dict[str, Any] = {
    "dict": {"user": ["a"], "at": [0]},
    "list": [{"user": "a", "at": 0}],
    "tuple": ("a", 0),
    "int": 5,
    "ndarray": np.zeros(3, [("user", "i8"), ("at", "i8")]),
    "generator": (batch for batch in plain(LEFT).to_batches()),
    "type": pd.DataFrame,
    "Schema": SCHEMA,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", NO_TABLES)
def test_what_is_no_table(kind: str, call: str, tmp_path: Path) -> None:
    text = rf"^left: a {kind} is no table; give an Arrow table, record batch or reader, a data frame, or anything else"
    with pytest.raises(swjoin.UserError, match=text):
        CALLS[call](NO_TABLES[kind], plain(RIGHT), tmp_path)
    with pytest.raises(swjoin.UserError, match=text.replace("left", "right")):
        CALLS[call](plain(LEFT), NO_TABLES[kind], tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (pl.LazyFrame({"user": ["a"]}).select("nothing"), r"left: the LazyFrame cannot be collected: .*nothing"),
        (pd.DataFrame([[1, 2]], columns=pd.Index([1, 2])), "left.*: key column user is missing; its columns are 1, 2"),
        (pd.Series(["a"], name="user"), r"left: cannot be read as Arrow data: .*|left: a Series is no table.*"),
        (pl.Series("user", ["a"]), r"left: cannot be read as Arrow data: .*|left: a Series is no table.*"),
    ],
)
def test_frames_that_cannot_be_used(value: Any, text: str, call: str, tmp_path: Path) -> None:
    with pytest.raises(swjoin.UserError, match=text) as refused:
        CALLS[call](value, plain(RIGHT), tmp_path)
    assert "\n" not in str(refused.value)
    assert list(tmp_path.iterdir()) == []


def test_what_a_live_run_refuses(tmp_path: Path) -> None:
    stream = {"flight": {}, "schema": "user: string, at: timestamp[us], page: string, n: int64", "key": ["user"], "time": "at"}
    sections = {"left": {**stream, "id": None, "time_unit": None}, "right": {**stream, "id": None, "time_unit": None}}
    pq.write_table(plain(LEFT), tmp_path / "left.parquet")
    with live(live_config(**sections), tmp_path / "run") as (run, client):
        with connect(run.address) as other:
            for kind, value in NO_TABLES.items():
                if kind in ("list", "tuple", "ndarray", "generator", "Schema"):
                    continue  # several frames
                with pytest.raises(swjoin.UserError, match=f"push: a {kind} is no table"):
                    other.push("left", value)
            with pytest.raises(swjoin.UserError, match="push: a int is no table"):
                other.push("left", [5])  # type: ignore[list-item]
            for path in (tmp_path / "left.parquet", str(tmp_path / "left.parquet")):
                with pytest.raises(swjoin.UserError, match=r"push: '.*left.parquet' is a path; a stream takes batches"):
                    other.push("left", path)
        client.end("left")
        client.end("right")
        assert run.result()[0] == 0
