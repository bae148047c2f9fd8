"""Joins by a condition alone: rows, columns and types of the join on a column of one value, and DuckDB's; tables and files, the
command line, ranks; every refusal."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.core.errors import UserError
from tests.support.drawn import mostly_drawn

TIMES: dict[str, Any] = {"left_time": "ts", "right_time": "at", "lower": "-30ms", "upper": "40ms"}
WHERE = [
    "abs(left_v - right_v) <= 2",
    "abs(left_v - right_v) <= 2 and left_x < right.x",
    "left_v - right_v < 4 and right_v <= left_v + 1",
    "left.x - right.x < 0.05 and right.x - left.x <= 5e-2",
    "left_v < right_v - 90",
    "left_v = right_v",
    "left_name = right_name and left_v <> right_v",
    "left_v = right_v or left_x > right_x + 2",
    "left_v / 10 = right_v + 0.5",
    "left_v / right_v > 20",
    "left_x / (right_v - left_v / (right_x - 1)) > 0.1",
    "left_v * 9000000000000000000 < right_v",
    "only_left < only_right and (left_v is null or right_v > 30)",
    "at > ts and left_v * 2 < right_v and not left_x > 0",
    "left_x <> left_x and right_v = 7",
    "left_v > 90 and right_v > 90",
]
KINDS = ["inner", "left", "right", "semi", "anti"]


def table_of(seed: int, time: str, own: str, rows: int = 250) -> pa.Table:
    """Columns v, x, name with nulls, x also with NaN and infinities, a time and a column of its own; times in no order."""
    random = np.random.default_rng(seed)

    def some_null(values: Any, share: float = 0.06) -> pa.Array:
        return pa.array(values, mask=random.random(rows) < share)

    x = random.normal(size=rows)
    x[random.random(rows) < 0.05] = math.nan
    x[random.random(rows) < 0.02] = math.inf
    return pa.table(
        {
            "v": some_null(random.integers(0, 100, rows)),
            "x": some_null(x),
            "name": some_null([f"n{n}" for n in random.integers(0, 9, rows)]),
            time: pa.array(random.integers(0, 1_000_000, rows), pa.timestamp("us")),
            own: random.integers(0, 50, rows),
        }
    )


@pytest.fixture(scope="module")
def tables() -> tuple[pa.Table, pa.Table]:
    return table_of(1, "ts", "only_left"), table_of(2, "at", "only_right")


@pytest.fixture
def files(tables: tuple[pa.Table, pa.Table], tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "left.parquet", tmp_path / "right.parquet"
    for table, path, time in zip(tables, paths, ("ts", "at"), strict=True):
        pq.write_table(table.sort_by(time), path)
    return paths


def rows_of(table: pa.Table) -> list[str]:
    return sorted(repr(tuple(row.values())) for row in table.to_pylist())


def on_one_value(left: pa.Table, right: pa.Table, **options: Any) -> pa.Table:
    """The join on a column of one value, without that column."""
    one, two = (t.append_column("one", pa.array(np.ones(len(t), np.int64))) for t in (left, right))
    return api.join(one, two, on="one", **options).drop_columns("one")


@pytest.mark.parametrize("case", mostly_drawn(((where, how) for where in WHERE for how in KINDS), every=4), ids=str)
def test_the_answer_is_that_of_a_key_of_one_value(case: tuple[str, Any], tables: tuple[pa.Table, pa.Table]) -> None:
    where, how = case
    expected = on_one_value(*tables, where=where, how=how, **TIMES)
    found = api.join(*tables, where=where, how=how, **TIMES)
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)
    counted, proof = api.count(*tables, where=where, how=how, threads=3, **TIMES), api.proof(found)
    assert (counted.count, counted.digest) == (proof.count, proof.digest) == (len(found), proof.digest)
    assert proof.ledger.balanced
    assert counted.ledger.balanced


@pytest.mark.parametrize("where", ["abs(left_v - right_v) <= 2", "only_left * 2 < only_right - 30", "left_name = right_name"])
def test_the_answer_is_duckdbs(where: str, tables: tuple[pa.Table, pa.Table]) -> None:
    left, right = tables
    with duckdb.connect() as db:
        db.register("l", left)
        db.register("r", right)
        text = where.replace("left_", "l.").replace("right_", "r.").replace("only_l.", "only_left")
        text = text.replace("only_left", "l.only_left").replace("only_right", "r.only_right").replace("l.l.", "l.")
        between = "r.at - l.ts BETWEEN INTERVAL '-30' MILLISECOND AND INTERVAL '40' MILLISECOND"
        (count, total) = db.execute(
            f"SELECT count(*), sum(l.only_left * 51 + r.only_right) FROM l, r WHERE {text} AND {between}"
        ).fetchone()  # type: ignore[misc]
    found = api.join(left, right, where=where, **TIMES)
    assert len(found) == count > 0
    assert sum(a * 51 + b for a, b in zip(*(found[n].to_pylist() for n in ("only_left", "only_right")), strict=True)) == total


def test_bounds_and_columns(tables: tuple[pa.Table, pa.Table]) -> None:
    options: dict[str, Any] = {
        "where": "abs(left_v - right_v) <= 9",
        "exclusive": ["lower", "upper"],
        "columns": ["x", "only_left"],
    }
    ms = [pa.array(t[3].cast(pa.int64()).to_numpy() // 1000) for t in tables]
    arrow = [t.set_column(3, t.schema.names[3], times) for t, times in zip(tables, ms, strict=True)]
    found, expected = (join(*arrow, time_unit="ms", **options, **TIMES) for join in (api.join, on_one_value))
    assert found.schema == expected.schema
    assert found.schema.names == ["left_x", "ts", "only_left", "right_x", "at"]
    assert rows_of(found) == rows_of(expected)
    assert 0 < len(found) < len(api.join(*arrow, time_unit="ms", **(options | {"exclusive": ()}), **TIMES))


def test_names_that_clash_are_those_of_joins_with_columns() -> None:
    ts = pa.array([1, 2], pa.timestamp("us"))
    left = pa.table({"ts": ts, "left_v": [1, 2], "v": [1, 2], "a b": [1, 2], 'quo"te': ["x", "y"]})
    right = pa.table({"ts": ts, "v": [1, 2], "right_v": [3, 4], "a b": [5, 6]})
    options: dict[str, Any] = {"left_time": "ts", "right_time": "ts", "within": "1s", "where": 'left."a b" + 4 = right."a b"'}
    found, expected = (join(left, right, **options) for join in (api.join, on_one_value))
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)


def _timed(kind: pa.DataType) -> pa.Table:
    return pa.table({"ts": pa.array(range(20), kind), "v": list(range(20))})


@pytest.mark.parametrize(
    ("left", "right", "options"),
    [
        (pa.int32(), pa.timestamp("us"), {"time_unit": "us"}),
        (pa.int64(), pa.int64(), {"left_time_unit": "us", "right_time_unit": "ms", "within": "1s"}),
        (pa.timestamp("ms"), pa.timestamp("us"), {}),
        (pa.timestamp("us", "UTC"), pa.timestamp("us", "Europe/Berlin"), {}),
        (pa.timestamp("us"), pa.timestamp("us"), {"assume_timezone": "Europe/Berlin"}),
        (pa.date32(), pa.timestamp("us"), {"within": "3d"}),
    ],
    ids=str,
)
def test_times_of_every_kind(left: pa.DataType, right: pa.DataType, options: dict[str, Any]) -> None:
    given = {"left_time": "ts", "right_time": "ts", "where": "left_v < right_v - 12", "within": "5ms", **options}
    found, expected = (join(_timed(left), _timed(right), **given) for join in (api.join, on_one_value))
    assert len(found)
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)


@pytest.mark.parametrize(
    ("left", "right", "options", "message"),
    [
        (
            pa.timestamp("us", "UTC"),
            pa.timestamp("us"),
            {},
            "right: the times have no time zone, those of the other side have one",
        ),
        (pa.float64(), pa.timestamp("us"), {}, "left: time column ts is double; it must be a timestamp, a date or an integer"),
        (pa.int64(), pa.int64(), {}, "left: ts is a number without a unit; give time_unit"),
        (
            pa.timestamp("us"),
            pa.timestamp("us"),
            {"time_unit": "us"},
            "ts is timestamp.us., which has a unit; leave the unit out",
        ),
        (
            pa.timestamp("us"),
            pa.timestamp("us"),
            {"last": 5, "within": None},
            "last: a join without join columns has no count windows",
        ),
        (pa.timestamp("us"), pa.timestamp("us"), {"ids": True}, "ids: a join without join columns does not show them"),
        (pa.timestamp("us"), pa.timestamp("us"), {"late": "side"}, "late: 'side' needs a place"),
        (
            pa.timestamp("us"),
            pa.timestamp("us"),
            {"where": None},
            "the join columns are missing: give on, or left_on and right_on",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_from_python(left: pa.DataType, right: pa.DataType, options: dict[str, Any], message: str) -> None:
    given = {"left_time": "ts", "right_time": "ts", "where": "left_v < right_v - 12", "within": "5ms", **options}
    for call in (api.join, api.count):
        if "ids" not in options or call is api.join:
            with pytest.raises(UserError, match=message):
                call(_timed(left), _timed(right), **given)
    with pytest.raises(UserError, match="the join columns are missing"):
        api.WindowJoin(left_time="ts", right_time="ts", within="1s", where="left_v < right_v")


def test_results_in_every_form(tables: tuple[pa.Table, pa.Table], files: tuple[Path, Path], tmp_path: Path) -> None:
    options: dict[str, Any] = {"where": "abs(left_v - right_v) <= 2", **TIMES}
    whole = api.join(*tables, **options)
    reader = api.join(*tables, returns="reader", **options)
    assert rows_of(reader.read_all()) == rows_of(whole)
    assert api.proof(reader).digest == api.proof(whole).digest
    assert len(api.join(*tables, returns="pandas", **options)) == len(whole)
    assert api.join(tables[0].to_pandas(), tables[1], returns="same", **options).shape == whole.to_pandas().shape
    written = api.join(*files, out=tmp_path / "out.parquet", **options)
    assert (written.count, written.digest) == (len(whole), api.proof(whole).digest)
    assert rows_of(pq.read_table(tmp_path / "out.parquet")) == rows_of(whole)
    with pytest.raises(UserError, match="is an input"):
        api.join(*files, out=files[0], **options)


def test_nothing_to_join() -> None:
    empty = table_of(1, "ts", "only_left").slice(0, 0)
    for pair in ((empty, table_of(2, "at", "only_right")), (empty, table_of(2, "at", "only_right").slice(0, 0))):
        for how in KINDS:
            found = api.join(*pair, where="abs(left_v - right_v) <= 2", how=how, **TIMES)  # type: ignore[arg-type]
            assert len(found) == (len(pair[1]) if how == "right" else 0)


# ---------------------------------------------------------------- the command

ARGUMENTS = ("--left-time", "ts", "--right-time", "at", "--lower", "-30ms", "--upper", "40ms")


def test_the_command(files: tuple[Path, Path], tables: tuple[pa.Table, pa.Table], swjoin: Any, tmp_path: Path) -> None:
    band, other = "abs(left_v - right_v) <= 2", "left_v < right_v - 90"
    done = swjoin("join", *files, *ARGUMENTS, "--where", band, "-o", tmp_path / "o.csv", "--report", tmp_path / "r.json")
    assert done.code == 0, done.err
    report, expected = json.loads((tmp_path / "r.json").read_text()), api.join(*tables, where=band, **TIMES)
    assert (report["results"]["count"], report["results"]["digest"]) == (len(expected), api.proof(expected).digest)
    assert report["ledger"]["balanced"]
    assert csv.read_csv(tmp_path / "o.csv").num_rows == len(expected)
    done = swjoin(
        "join", *files, *ARGUMENTS, "--where", other, "--routing", "matrix:2,3", "-o", "count", "--report", tmp_path / "m.json"
    )
    assert done.code == 0, done.err
    report, expected = json.loads((tmp_path / "m.json").read_text()), api.join(*tables, where=other, **TIMES)
    assert (report["results"]["count"], report["results"]["digest"]) == (len(expected), api.proof(expected).digest)
    (spread, _) = [node["lines"] for node in report["plan"]["nodes"] if node["kind"] == "spread"]
    assert spread == [2, 3]
    done = swjoin("join", *files, *ARGUMENTS, "--where", other, "--how", "anti", "--columns", "x", "-o", "-")
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 1 + len(api.join(*tables, where=other, how="anti", **TIMES))


@pytest.mark.drawn
@pytest.mark.mpi
def test_on_ranks(files: tuple[Path, Path], tables: tuple[pa.Table, pa.Table], swjoin: Any, tmp_path: Path) -> None:
    for where, routing in (("abs(left_v - right_v) <= 2", ()), ("left_v < right_v - 90", ("--routing", "matrix:2,2"))):
        report = tmp_path / "report.json"
        done = swjoin("join", *files, *ARGUMENTS, "--where", where, *routing, "-n", 4, "-o", "count", "--report", report)
        assert done.code == 0, done.err
        found, expected = json.loads(report.read_text())["results"], api.join(*tables, where=where, **TIMES)
        assert (found["count"], found["digest"]) == (len(expected), api.proof(expected).digest)
        report.unlink()


_ONE_SIDE = (
    "where: a join without join columns needs a condition on both sides, and this one reads no {} column; compare the sides, "
    "or name join columns: --on"
)


def _refused(files: tuple[Path, Path]) -> dict[str, tuple[list[object], str]]:
    where: list[object] = ["--where", "left_v < right_v"]
    return {
        "no condition": (
            [],
            "the join columns are missing: give --on KEY, or --left-on and --right-on, or --where or --match alone",
        ),
        "full": ([*where, "--how", "full"], "--how: a join without join columns cannot be full; name join columns: --on"),
        "ids": ([*where, "--left-id", "v"], "--left-id: a join without join columns numbers its rows itself; leave it out"),
        "unknown": (["--where", "left_v < right_w"], "where: column right_w is missing; did you mean right_x?"),
        "ambiguous": (["--where", "v < right_v"], "where: both sides have a column v; write left_v or right_v"),
        "one side": (["--where", "left_v < 5"], _ONE_SIDE.format("right")),
        "no side": (["--where", "true"], _ONE_SIDE.format("left")),
        "impossible": (
            ["--where", "left_v - right_v > 5 and left_v - right_v < 3"],
            'no values of "left"."v" and "right"."v" satisfy the conditions of the join; exchange its bounds',
        ),
        "no such column": ([*where, "--columns", "xx"], "columns: xx is on neither side; did you mean x?"),
        "cells": (
            [*where, "--how", "left", "--routing", "matrix:2,2"],
            "routing matrix:2,2: left, right, semi and anti joins have one column of cells; write matrix:4,1",
        ),
        "no equality": (
            ["--where", "abs(left_v - right_v) < 2", "--routing", "hash"],
            "routing hash: the join of left and right has no equality of "
            "values that can be hashed; leave it out, or write range or matrix",
        ),
        "ids beside a routing": (
            [*where, "--on", "v", "--routing", "matrix:2,2", "--left-id", "v"],
            "--left-id: a join with a routing numbers its rows itself; leave it out",
        ),
        "full beside a routing": (
            [*where, "--on", "v", "--routing", "range", "--how", "full"],
            "routing range: a full join needs all partners of a row at one place; leave it out",
        ),
        "no numbers to be near": (
            ["--on", "name", "--routing", "range"],
            "routing range: the join of left and right bounds no difference of numbers or times from both sides; leave it out, "
            "or write hash or matrix",
        ),
        "text": (["--where", "left_v < right_name"], None),
    }


@pytest.mark.parametrize("name", list(_refused((Path(), Path()))))
def test_what_cannot_be_is_one_line(name: str, files: tuple[Path, Path], swjoin: Any, tmp_path: Path) -> None:
    options, message = _refused(files)[name]
    done = swjoin("join", *files, *ARGUMENTS, *options, "-o", tmp_path / "out.parquet")
    assert done.code == 2
    assert len(done.err) == 1
    if message is not None:
        assert done.err == [f"swjoin: {message}"]
    assert not (tmp_path / "out.parquet").exists()
