"""Joins without an equality or a band, on the cells of a matrix or at units of one stream each: rows are DuckDB's for any
number of them, in process and on ranks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import swjoin as api
from swjoin.config.connectors import StreamConfig
from swjoin.core.batch import LEFT
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from swjoin.routing.matrix import Matrix
from swjoin.runtime.in_process import run_local
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.queries import query_job, run_query
from tests.support.ranks import run_jobs
from tests.tools.random_queries import random_inputs

Inputs = dict[str, StreamConfig]
MS = "INTERVAL 9 MILLISECOND"
NEAR = "b.ts BETWEEN a.ts - INTERVAL '4' MILLISECOND AND a.ts + INTERVAL '3' MILLISECOND"
SMALLER = f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR} AND a.k < b.k"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return random_inputs(tmp_path_factory.mktemp("streams"))


THETA = [
    f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR}",
    f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR} AND abs(a.k - b.k) <= 2",
    f"SELECT a.v, b.v AS w FROM a, b WHERE {NEAR} AND a.x < b.x AND a.v % 3 = 1",
    f"SELECT a.v, b.v AS w FROM a LEFT JOIN b ON {NEAR} AND a.k < b.k",
    f"SELECT a.v, b.v AS w FROM a RIGHT JOIN b ON {NEAR} AND a.k < b.k AND b.x <> 'x3'",
    f"SELECT a.v FROM a ANTI JOIN b ON {NEAR} AND a.k < b.k",
    f"SELECT a.v FROM a SEMI JOIN b ON {NEAR} AND a.k + 1 < b.k",
    f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR} AND a.v / 2 = b.v / 2 - 150",  # doubles are no keys
    f"SELECT a.v, b.v AS w, c.v AS z FROM a JOIN b ON {NEAR} AND a.k <= b.k JOIN c ON c.k = b.k AND c.ts BETWEEN b.ts AND "
    f"b.ts + {MS}",
    f"SELECT q.e, count(*) AS n FROM (SELECT a.ts AS e, a.k FROM a JOIN b ON {NEAR} AND a.k > b.k) q GROUP BY q.e",
]


@pytest.mark.parametrize("text", THETA, ids=[text[:75] for text in THETA])
def test_joins_without_an_equality(text: str, streams: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(text, streams, tmp_path)
    assert rows == duckdb_rows(streams, text)
    assert len(rows) > 10
    assert report["ledger"]["balanced"]
    assert verify(tmp_path).equal


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_join_without_an_equality(streams: Inputs, tmp_path: Path) -> None:
    jobs = [query_job(text, streams, tmp_path / str(i), cluster={"epoch_tuples": 60}) for i, text in enumerate(THETA)]
    run_jobs(5, jobs, tmp_path)
    for job, text in zip(jobs, THETA, strict=True):
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(streams, text), text


@pytest.mark.parametrize(
    ("slaves", "routing", "lines", "copies"),
    [
        (1, "auto", [1, 1], [1, 1]),
        (3, "matrix", [1, 3], [3, 1]),
        (6, "auto", [2, 3], [3, 2]),
        (4, "matrix:3,5", [3, 5], [5, 3]),
        (2, "matrix:1,4", [1, 4], [4, 1]),
        (1, "random:1,1", [1, 1], [2, 2]),
        (3, "random", [3, 3], [4, 4]),
        (2, "random:4,3", [4, 3], [4, 5]),
        (5, "random:1,6", [1, 6], [7, 2]),
    ],
)
def test_any_places_give_the_same_rows(
    slaves: int, routing: str, lines: list[int], copies: list[int], streams: Inputs, tmp_path: Path
) -> None:
    """And copies travel: a row goes to every cell of its line, or to the unit that stores it and all of the other stream."""
    job = query_job(SMALLER, streams, tmp_path, cluster={"epoch_tuples": 50, "partition_count": 7, "routing": routing})
    report = run_local(job, False, slaves)
    assert rows_of(job) == duckdb_rows(streams, SMALLER)
    assert report["ledger"]["balanced"]
    assert [node["lines"] for node in report["plan"]["nodes"] if node["kind"] == "spread"] == [lines] * 2
    rows = [report["input"][name]["tuples"] for name in "ab"]
    assert list(report["stages"][0]["joined"].values()) == [n * each for n, each in zip(rows, copies, strict=True)]
    assert verify(tmp_path).equal


def test_windows_hold_a_row_once_whatever_the_units(streams: Inputs, tmp_path: Path) -> None:
    held = {}
    for routing in ("matrix:1,1", "random:1,1", "random:6,6", "matrix:6,6"):
        job = query_job(SMALLER, streams, tmp_path / routing, cluster={"epoch_tuples": 150, "routing": routing})
        report = run_local(job, False, 1)
        held[routing] = report["stages"][0]["peak_window_tuples"][0]
    assert held["random:6,6"] == held["random:1,1"] == held["matrix:1,1"]
    assert held["matrix:6,6"] == 6 * held["matrix:1,1"]


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_units(streams: Inputs, tmp_path: Path) -> None:
    texts = [THETA[0], THETA[2], THETA[8], THETA[9], SMALLER]
    routings = ["random", "random:1,3", "random:2,2", "random:5,1", "random:3,3"]
    jobs = [
        query_job(text, streams, tmp_path / str(i), cluster={"epoch_tuples": 60, "gateways": 2, "routing": routing})
        for i, (text, routing) in enumerate(zip(texts, routings, strict=True))
    ]
    run_jobs(6, jobs, tmp_path)
    for job, text in zip(jobs, texts, strict=True):
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(streams, text), text


def test_units_that_cannot_be(streams: Inputs, tmp_path: Path) -> None:
    job = query_job(SMALLER, streams, tmp_path / "many", cluster={"partition_count": 7, "routing": "random:4,4"})
    with pytest.raises(
        UserError, match="routing random:4,4: 8 units for 7 partition-groups; write fewer, or raise --partitions"
    ):
        run_local(job, False, 2)
    text = f"SELECT a.v FROM a LEFT JOIN b ON {NEAR} AND a.k < b.k"
    job = query_job(text, streams, tmp_path / "left", cluster={"routing": "random"})
    with pytest.raises(UserError, match="routing random: left, semi and anti joins need all partners of a row at one place"):
        run_local(job, False, 2)


def test_all_slaves_share_a_join_without_an_equality(streams: Inputs, tmp_path: Path) -> None:
    job = query_job(SMALLER, streams, tmp_path, cluster={"epoch_tuples": 150})
    report = run_local(job, False, 6)
    peaks = [slave["window"]["peak"] for slave in report["memory"]["slaves"]]
    assert len(peaks) == 6
    assert min(peaks) > 0.5 * max(peaks)


def test_a_copy_that_is_lost_is_noticed(streams: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Matrix.copies

    def without_last(self: Matrix, port: int, ids: Any) -> Any:
        positions, cells = copies(self, port, ids)
        return (positions[:-1], cells[:-1]) if port == LEFT and len(cells) > 1 else (positions, cells)

    monkeypatch.setattr(Matrix, "copies", without_last)
    text = f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR}"
    rows, _ = run_query(text, streams, tmp_path, cluster={"epoch_tuples": 150, "routing": "matrix:2,2"})
    assert rows != duckdb_rows(streams, text)
    assert not verify(tmp_path).equal


@pytest.mark.parametrize("kind", ["LEFT", "SEMI", "ANTI"])
def test_preserved_rows_have_one_column_of_cells(kind: str, streams: Inputs, tmp_path: Path) -> None:
    text = f"SELECT a.v FROM a {kind} JOIN b ON {NEAR} AND a.k < b.k"
    job = query_job(text, streams, tmp_path, cluster={"routing": "matrix:2,3"})
    with pytest.raises(UserError, match="left, semi and anti joins have one column of cells; write matrix:6,1"):
        run_local(job, False, 2)


def test_a_routing_without_a_use(streams: Inputs, swjoin: Any, tmp_path: Path) -> None:
    job = query_job(f"SELECT a.v FROM a JOIN b ON {NEAR} AND a.k = b.k", streams, tmp_path, cluster={"routing": "matrix:2,3"})
    with pytest.raises(UserError, match="no join of the query lacks both an equality and a band"):
        run_local(job, False, 2)
    table = f"a={streams['a'].path}:ts"
    done = swjoin("query", "SELECT k FROM a", "--table", table, "--routing", "matrix:x", "-o", tmp_path / "out.parquet")
    assert done.code == 2
    words = "must be auto, matrix or random, matrix:M,N of 1 to 64 rows and columns, or random:M,N of as many units"
    assert done.err == [f"swjoin: --routing matrix:x: {words}"]


def test_commands_on_a_run_with_a_matrix(streams: Inputs, swjoin: Any, tmp_path: Path) -> None:
    job = query_job(SMALLER, streams, tmp_path / "run", cluster={"epoch_tuples": 150, "routing": "matrix:2,3"})
    run_local(job, False, 2)
    run = tmp_path / "run"
    other = swjoin("explain", run, "--threads", 2, "--set", "cluster.routing=matrix:5,5")
    assert other.err == ["swjoin: routing matrix:5,5: the run has matrix:2,3, which it keeps; leave it out"]
    changed = swjoin("explain", run, "--threads", 2, "--set", "cluster.routing=random")
    assert changed.err == ["swjoin: routing random: the run has matrix:2,3, which it keeps; leave it out"]
    assert "a row of a matrix 2 x 3" in " ".join(swjoin("explain", run, "--threads", 5).out.split())
    rows = []
    for routing in ("matrix:1,1", "matrix:2,3", "matrix:16,16"):
        done = swjoin("plan", run, "--threads", 2, "--json", "--set", f"cluster.routing={routing}")
        assert done.code == 0, done.err
        plain = json.loads(done.out)
        rows.append((plain["edges"][0]["rows_per_s"], plain["stages"][0]["load"]))
    assert rows[1][0] == pytest.approx(3 * rows[0][0])
    assert rows[2][0] == pytest.approx(16 * rows[0][0])
    assert rows[1][1] < rows[2][1], "copies cost time"


@pytest.mark.parametrize("command", [("plan", "--threads", 2), ("simulate", "--slaves", 2), ("explain",)])
def test_the_join_of_two_streams_has_no_routing(command: tuple[object, ...], swjoin: Any) -> None:
    word, *options = command
    done = swjoin(word, "mpi_configs/local.yaml", *options, "--set", "cluster.routing=matrix:2,2")
    assert done.code == 2
    assert done.err == ["swjoin: routing matrix:2,2: is for joins without join columns; leave it out"]


@pytest.mark.parametrize("routing", [5, True, "", b"matrix:2,2", ("matrix", 2, 2), "matrix:65,1", "random:1"])
def test_routings_from_python_that_are_none(routing: Any) -> None:
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "k": [1, 2]})
    with pytest.raises(UserError, match="must be auto, matrix or random, matrix:M,N"):
        api.sql("SELECT a.k FROM a, b WHERE a.k < b.k AND a.ts = b.ts", a=table, b=table, time="ts", routing=routing)
