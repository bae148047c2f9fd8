"""Joins on columns by any routing: rows, columns and types of the join by hash, from Python and by the command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin as api
from swjoin.core.errors import UserError
from tests.frontends.test_joins_without_keys import ARGUMENTS, TIMES, rows_of, table_of

ROUTINGS = ["skew", "range", "matrix:3,2", "broadcast", "random:2,3", "contrand:3,4,2,2"]
KEYS: list[dict[str, Any]] = [
    {"on": "v"},
    {"on": ["name", "v"]},
    {"left_on": "only_left", "right_on": "v"},
    {"on": "v", "where": "left_x < right.x"},
]


@pytest.fixture(scope="module")
def tables() -> tuple[pa.Table, pa.Table]:
    return table_of(5, "ts", "only_left", 500), table_of(6, "at", "only_right", 500)


@pytest.mark.parametrize(
    "how", ["inner", *(pytest.param(how, marks=pytest.mark.drawn) for how in ("left", "right", "semi", "anti"))]
)
@pytest.mark.parametrize("key", KEYS, ids=[str(key) for key in KEYS])
def test_rows_are_those_of_a_join_by_hash(key: dict[str, Any], how: Any, tables: tuple[pa.Table, pa.Table]) -> None:
    expected, digests = api.join(*tables, how=how, **key, **TIMES), set()
    assert len(expected) > 5
    for routing in ROUTINGS:
        if how != "inner" and routing.startswith(("random", "contrand", "matrix")):
            routing = "matrix:4,1"
        found = api.join(*tables, how=how, routing=routing, **key, **TIMES)
        assert found.schema == expected.schema, routing
        assert rows_of(found) == rows_of(expected), routing
        counted = api.count(*tables, how=how, routing=routing, **key, **TIMES)
        digests |= {api.proof(found).digest, counted.digest}
        assert counted.count == len(expected)
        assert counted.ledger.balanced
    assert len(digests) == 1
    by_hash = api.join(*tables, how=how, routing="hash", **key, **TIMES)
    assert api.proof(by_hash).digest == api.proof(expected).digest


def test_columns_that_are_chosen(tables: tuple[pa.Table, pa.Table], tmp_path: Path) -> None:
    options = {"on": "v", "columns": ["x"], **TIMES}
    expected = api.join(*tables, **options)
    found = api.join(*tables, routing="random", **options)
    assert found.schema == expected.schema
    assert rows_of(found) == rows_of(expected)
    proof = api.join(*tables, routing="matrix:2,2", out=tmp_path / "out.parquet", **options)
    assert (proof.count, proof.digest) == (len(expected), api.proof(found).digest)
    assert rows_of(pq.read_table(tmp_path / "out.parquet")) == rows_of(expected)


@pytest.mark.parametrize(
    ("routing", "problem"),
    [
        (
            "contrand:2,2,3,1",
            "routing contrand:2,2,3,1: must be auto, hash, skew, range, broadcast, matrix or matrix:M,N, random or",
        ),
        ("rnage", "routing rnage: must be auto, hash, skew, range"),
        ("random:9,9", "routing random:9,9: 18 units for 16 partition-groups; write fewer, or raise"),
    ],
)
def test_routings_that_cannot_be(routing: str, problem: str, tables: tuple[pa.Table, pa.Table]) -> None:
    with pytest.raises(UserError) as error:
        api.join(*tables, on="v", routing=routing, **TIMES)
    assert str(error.value).startswith(problem)
    with pytest.raises(UserError, match="last: a join with a routing has no count windows; leave out routing"):
        api.join(*tables, on="v", routing="random", left_time="ts", right_time="at", last=5)


def _files(tables: tuple[pa.Table, pa.Table], folder: Path) -> tuple[Path, Path]:
    paths = folder / "left.parquet", folder / "right.parquet"
    for table, path, time in zip(tables, paths, ("ts", "at"), strict=True):
        pq.write_table(table.sort_by(time), path)
    return paths


def test_the_command(tables: tuple[pa.Table, pa.Table], swjoin: Any, tmp_path: Path) -> None:
    files, expected = _files(tables, tmp_path), api.join(*tables, on="v", **TIMES)
    for routing in ("hash", "range", "contrand:3,3,3,3"):
        rows, report = tmp_path / f"{routing}.parquet", tmp_path / f"{routing}.json"
        done = swjoin("join", *files, *ARGUMENTS, "--on", "v", "--routing", routing, "--report", report, "-o", rows)
        assert done.code == 0, done.err
        assert rows_of(pq.read_table(rows)) == rows_of(expected)
        assert json.loads(report.read_text())["ledger"]["balanced"]
    verified = swjoin("explain", tmp_path / "range.json")
    assert verified.code == 0, verified.err


@pytest.mark.mpi
@pytest.mark.drawn
def test_on_ranks(tables: tuple[pa.Table, pa.Table], swjoin: Any, tmp_path: Path) -> None:
    files, expected = _files(tables, tmp_path), api.join(*tables, on="v", **TIMES)
    for routing in ("range", "random:3,3", "contrand:4,4,2,4"):
        report = tmp_path / "report.json"
        words = ("--on", "v", "--routing", routing, "-n", 4, "--gateways", 2, "-o", "count", "--report", report)
        done = swjoin("join", *files, *ARGUMENTS, *words)
        assert done.code == 0, done.err
        assert json.loads(report.read_text())["results"]["count"] == len(expected)
        report.unlink()
