"""CSV files with a header and no rows: an empty stream, alone, on both sides, and anywhere in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as sj

ROWS = "user,at,price\na,2026-01-01 10:00:00,1.5\nb,2026-01-01 10:00:01,2.5\n"
HEADER = "user,at,price\n"
ON = ["--on", "user", "--left-time", "at", "--right-time", "at"]


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def command(swjoin: Any, left: Path, right: Path, out: Path, *more: object) -> dict[str, str]:
    done = swjoin("join", left, right, *ON, "--within", "1h", "-o", out, *more)
    assert (done.code, done.err) == (0, [])
    return {line[:17].strip(): line[17:].strip() for line in done.out.splitlines()}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return written(tmp_path, rows=ROWS, empty=HEADER, unended=HEADER.strip())


@pytest.mark.parametrize("empty", ["empty.csv", "unended.csv"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "anti"])
@pytest.mark.parametrize("turned", [False, True])
def test_one_side_is_empty(empty: str, how: str, turned: bool, files: Path, swjoin: Any, tmp_path: Path) -> None:
    sides = [files / "rows.csv", files / empty]
    left, right = reversed(sides) if turned else sides
    rows = 2 if how == "full" or (how == "right" if turned else how in ("left", "anti")) else 0
    out = tmp_path / "out.parquet"
    found = command(swjoin, left, right, out, "--how", how)
    assert found["pairs"] == str(rows)
    types = {f.name: f.type for f in pq.read_schema(out)}
    assert types["user"] == pa.string()
    assert pq.read_metadata(out).num_rows == rows
    assert sj.join(left, right, on="user", left_time="at", right_time="at", within="1h", how=how).num_rows == rows


def test_both_sides_are_empty(files: Path, swjoin: Any, tmp_path: Path) -> None:
    empty = files / "empty.csv"
    out = tmp_path / "out.parquet"
    assert command(swjoin, empty, empty, out)["pairs"] == "0"
    schema = pq.read_schema(out)
    assert schema.field("user").type == pa.string()
    assert pa.types.is_timestamp(schema.field("left_at").type)
    assert schema.field("left_price").type == pa.string()
    assert sj.count(empty, empty, on="user", left_time="at", right_time="at", within="1h").count == 0


@pytest.mark.parametrize("suffix", ["csv", "count"])
def test_an_empty_side_takes_the_types_of_the_other(suffix: str, swjoin: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"user": pa.array([7, 8], pa.uint64()), "at": pa.array([1, 2], pa.int64())}), other)
    written(tmp_path, empty=HEADER)
    out = "count" if suffix == "count" else tmp_path / "out.csv"
    for sides in ((other, tmp_path / "empty.csv"), (tmp_path / "empty.csv", other)):
        assert command(swjoin, *sides, out, "--time-unit", "s", "--left-id", "at", "--right-id", "at")["pairs"] == "0"
    if suffix == "csv":
        assert csv.read_csv(out).num_rows == 0


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("a", "c")])
def test_an_empty_hour_of_a_directory(names: tuple[str, str], swjoin: Any, tmp_path: Path) -> None:
    late = ROWS.replace("10:00:0", "11:00:0")
    hours = written(tmp_path / "hours", **{names[0]: HEADER, names[1]: ROWS, "x": HEADER, "y": late, "z": HEADER})
    whole = written(tmp_path / "whole", rows=ROWS + late.removeprefix(HEADER))
    answers = [command(swjoin, folder, whole, "count", "--late", "drop") for folder in (hours, whole)]
    assert answers[0]["digest"] == answers[1]["digest"]
    assert answers[0]["pairs"] == answers[1]["pairs"] != "0"
    joined = sj.join(hours, whole, on="user", left_time="at", right_time="at", within="1h")
    assert joined.num_rows == int(answers[0]["pairs"])
    assert joined.schema.field("left_price").type == pa.float64()


def test_a_predicate_over_columns_without_types(files: Path, swjoin: Any, tmp_path: Path) -> None:
    sides = files / "empty.csv", files / "rows.csv"
    condition = "left_price < right_price"
    assert command(swjoin, *sides, tmp_path / "o.parquet", "--where", condition, "--how", "right")["pairs"] == "2"
    joined = sj.join(*sides, on="user", left_time="at", right_time="at", within="1h", where=condition, how="right")
    assert joined.num_rows == 2
    done = swjoin("join", *sides, *ON, "--within", "1h", "-o", "count", "--where", "left_cost < right_price")
    assert done.code == 2
    assert "cost" in done.err[0]


def test_what_stays_refused(files: Path, swjoin: Any) -> None:
    (files / "nothing.csv").write_text("")
    for name, text in (("nothing.csv", "Empty CSV file"), ("empty.csv", "key column nobody is missing")):
        done = swjoin("join", files / name, files / "rows.csv", "--on", "nobody", *ON[2:], "--within", "1h", "-o", "count")
        assert done.code == 2
        assert text in done.err[0]
    hours = written(files / "hours", a="user,when\n", b=ROWS)
    done = swjoin("join", hours, files / "rows.csv", *ON, "--within", "1h", "-o", "count")
    assert done.code == 2
    assert "a.csv: column at is missing, b.csv has it once" in done.err[0]
