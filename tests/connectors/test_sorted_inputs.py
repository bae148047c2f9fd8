"""`--sort`, `sort: true`: files in no order join as if they were in order, ids stay positions, contradictions are refused."""

from __future__ import annotations

import functools
import json
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest

import swjoin as sj
from swjoin.config.run import StreamConfig
from swjoin.connectors.files import source as file_source
from swjoin.connectors.files.source import open_sources
from swjoin.connectors.files.time_order import TimeOrder
from swjoin.core.errors import UserError

ON: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "within": "40ms"}
CLI = ["--on", "k", "--left-time", "t", "--right-time", "t", "--within", "40ms"]
ROWS = 900


@pytest.fixture(autouse=True, params=[1 << 27, 20_000], ids=["in memory", "on disk"])
def run_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(file_source, "TimeOrder", functools.partial(TimeOrder, request.param))
    return int(request.param)


def table(seed: int, rows: int = ROWS) -> pa.Table:
    random = np.random.default_rng(seed)
    times = random.permutation(rows) // 3 * 3_000
    return pa.table(
        {
            "k": random.integers(0, 40, rows),
            "t": pa.array(times, pa.timestamp("us")),
            "name": [None if i % 11 == 0 else f"row {i}" for i in range(rows)],
            "price": random.random(rows),
        }
    )


def more_types(found: pa.Table) -> pa.Table:
    names = found["name"].combine_chunks()
    return (
        found.append_column("d", names.dictionary_encode())
        .append_column("v", names.cast(pa.string_view()))
        .append_column("b", names.cast(pa.large_binary()))
        .append_column("m", found["k"].cast(pa.decimal128(21, 2)))
        .append_column("flag", pa.array([i % 2 == 0 for i in range(found.num_rows)]))
        .append_column("nothing", pa.nulls(found.num_rows))
    )


def write(folder: Path, name: str, found: pa.Table, form: str) -> Path:
    """Three files in a folder."""
    path = folder / f"{name}-{form}"
    path.mkdir()
    for i, start in enumerate(range(0, found.num_rows, 350)):
        part, file = found.slice(start, 350), path / f"{i}.{form}"
        if form == "parquet":
            pq.write_table(part, file, row_group_size=100)
        elif form == "csv":
            csv.write_csv(part, file)
        elif form == "orc":
            orc.write_table(part, file)
        elif form == "jsonl":
            lines = ({**row, "t": row["t"].isoformat()} for row in part.to_pylist())
            file.write_text("".join(json.dumps(line) + "\n" for line in lines))
        else:
            with pa.ipc.new_file(file, part.schema) as out:
                out.write_table(part, 150)
    return path


def sorted_rows(found: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(found.column(n).to_pylist() for n in found.column_names), strict=True), key=repr)


@pytest.mark.drawn
@pytest.mark.parametrize("form", ["parquet", "csv", "orc", "jsonl", "arrow"])
def test_every_format(form: str, swjoin: Any, tmp_path: Path) -> None:
    tables = table(1), table(2)
    if form in ("parquet", "arrow"):
        tables = more_types(tables[0]), more_types(tables[1])
    paths = [write(tmp_path, name, t, form) for name, t in zip(("left", "right"), tables, strict=True)]
    wanted = sj.join(*paths, **ON, ids=True)
    proof = sj.proof(wanted)
    assert proof is not None
    assert proof.count > 1_000
    done = swjoin("join", *paths, *CLI, "--sort", "-o", tmp_path / "out.parquet", "--report", tmp_path / "report.json")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "report.json").read_text())
    assert (report["results"]["count"], report["results"]["digest"]) == (proof.count, proof.digest)
    plain = pq.read_table(tmp_path / "out.parquet")
    assert sorted_rows(plain) == sorted_rows(wanted.select(plain.column_names))
    run = sj.run(
        {"within": "40ms", "on": "k", "left_time": "t", "right_time": "t", "sort": True, "sink": {"kind": "count"}}
        | {side: {"path": str(path)} for side, path in zip(("left", "right"), paths, strict=True)},
        out=tmp_path / "run",
    )
    assert (run.report["results"]["count"], run.report["results"]["digest"]) == (proof.count, proof.digest)
    assert sj.join(*paths, **ON, out=tmp_path / "again.parquet", columns=["name"]).digest == proof.digest


def test_a_run_can_go_on_at_every_row(tmp_path: Path) -> None:
    path = str(write(tmp_path, "left", table(3, 400), "parquet"))
    stream = StreamConfig(path, ("k",), "t")

    def rest(row: int) -> list[int]:
        left, right, _ = open_sources(stream, stream, carry_payload=False, sort=True)
        if row >= 0:
            left.read()
            left.seek(row)
        ids: list[int] = []
        while (batch := left.read()) is not None:
            ids += batch.id.tolist()
        left.close()
        right.close()
        return ids

    whole = rest(-1)
    times = np.asarray(pq.read_table(path)["t"].cast(pa.int64()))
    assert whole == np.argsort(times, kind="stable").tolist()
    for row in (0, 1, 57, 399, 400):
        assert rest(row) == whole[row:]


def test_rows_without_a_time(swjoin: Any, tmp_path: Path) -> None:
    left = table(4, 300)
    holes = pa.array([None if i % 50 == 7 else t for i, t in enumerate(left["t"].to_pylist())], pa.timestamp("us"))
    left = left.set_column(1, "t", holes)
    paths = [write(tmp_path, name, t, "parquet") for name, t in (("left", left), ("right", table(5, 300)))]
    done = swjoin("join", *paths, *CLI, "--sort", "-o", "count")
    assert done.code == 2
    assert "0.parquet, row 7 (counting from 0): no time; choose --late drop or --late side" in done.err[-1]
    done = swjoin("join", *paths, *CLI, "--sort", "--late", "side", "-o", tmp_path / "out.parquet")
    assert done.code == 0, done.err
    late = pq.read_table(tmp_path / "out.parquet.late.parquet")
    assert sorted(late["row_id"].to_pylist()) == [7, 57, 107, 157, 207, 257]
    assert set(late["reason"].to_pylist()) == {"null time"}


def test_errors_name_the_row(swjoin: Any, tmp_path: Path) -> None:
    left = table(6, 800)
    ids = pa.array([-5 if i == 799 else i for i in range(800)])
    paths = [write(tmp_path, name, t, "parquet") for name, t in (("left", left.append_column("id", ids)), ("right", left))]
    done = swjoin("join", *paths, *CLI, "--sort", "--left-id", "id", "-o", "count")
    assert (done.code, len(done.err)) == (2, 1)
    assert "2.parquet, row 99 (counting from 0): id column id is -5; ids are 0 to" in done.err[0]


def test_local_times_where_clocks_go_back(tmp_path: Path, swjoin: Any) -> None:
    """The order is that of the times, not of the local ones."""
    zone = ["--assume-timezone", "Europe/Berlin"]
    local = pa.array(["2026-10-25T01:59:00", "2026-10-25T03:01:00", "2026-10-25T00:10:00"]).cast(pa.timestamp("us"))
    paths = [write(tmp_path, name, pa.table({"k": [1, 1, 1], "t": local}), "parquet") for name in ("left", "right")]
    done = swjoin("join", *paths, *CLI[:-1], "90min", *zone, "--sort", "-o", "count")
    assert done.code == 0, done.err
    pairs = sj.count(*paths, **{**ON, "within": "90min"}, assume_timezone="Europe/Berlin")
    assert pairs.count == 3
    assert pairs.digest in done.out


def test_what_contradicts_it(swjoin: Any, tmp_path: Path) -> None:
    path = write(tmp_path, "left", table(7, 20), "parquet")
    done = swjoin("join", path, path, *CLI, "--sort", "--max-out-of-order", "1s", "-o", "count")
    assert (done.code, done.err) == (2, ["swjoin: --sort leaves no row out of order; leave --max-out-of-order out"])
    base = {"within": "1s", "on": "k", "left_time": "t", "right_time": "t", "time": {"sort": True}}
    files = {side: {"path": str(path)} for side in ("left", "right")}
    live = {side: {"path": None, "watch": str(path)} for side in ("left", "right")}
    for plain, text in (
        (
            {**base, **files, "max_out_of_order": "1s"},
            "time: sort leaves no row out of order; leave .*max_out_of_order out",
        ),
        ({**base, **files, "time": {"sort": True, "model": "arrival"}, "pace": "realtime"}, "time: sort needs model event"),
        ({"within": "1s", "sort": True}, "time: sort needs files"),
        ({**base, **live, "time": {"sort": True, "late": "drop"}}, "time: sort needs files"),
        ({**base, **files, "time": {"sort": "yes please"}}, "time.sort"),
    ):
        with pytest.raises(UserError, match=text):
            sj.run(plain, out=tmp_path / "run")


def test_closing_ends_the_sort(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(TimeOrder):
        def add(self, *row: Any) -> None:
            time.sleep(0.05)
            super().add(*row)

    monkeypatch.setattr(file_source, "TimeOrder", Slow)
    path = tmp_path / "left.parquet"
    pq.write_table(table(8, 20_000), path, row_group_size=10)
    monkeypatch.setattr(file_source, "BATCH_ROWS", 10)
    stream = StreamConfig(str(path), ("k",), "t")
    left, right, _ = open_sources(stream, stream, carry_payload=False, sort=True)
    assert not left.ready(0.0)
    left.close()
    right.close()
    assert not any(thread.name == "read-ahead" for thread in threading.enumerate())
    with pytest.raises(UserError):
        open_sources(StreamConfig(str(tmp_path / "x"), ("k",), "t"), stream, carry_payload=False, sort=True)
