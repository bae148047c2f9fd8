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
from swjoin.routing.named import WORDS
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
        (4, "matrix:3,2", [3, 2], [2, 3]),
        (3, "broadcast", [3, 1], [1, 3]),
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
        cluster = {"epoch_tuples": 150, "partition_count": 36, "routing": routing}
        job = query_job(SMALLER, streams, tmp_path / routing, cluster=cluster)
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
    job = query_job(SMALLER, streams, tmp_path / "cells", cluster={"partition_count": 7, "routing": "matrix:2,4"})
    with pytest.raises(UserError, match="routing matrix:2,4: 8 cells for 7 partition-groups; write fewer, or raise"):
        run_local(job, False, 2)


EQUAL = "a.k = b.k"
BAND = "abs(a.k - b.k) <= 1"
ONE_RESULT = [
    ([EQUAL], ["auto", "hash", "range"]),
    ([BAND], ["auto", "range"]),
    ([EQUAL, BAND, "a.v < b.v"], ["hash", "range"]),
    (["a.x = b.x", "a.v < b.v"], ["auto", "hash"]),
    (["a.x = b.x", EQUAL], ["hash", "range"]),
    (["a.k < b.k"], ["auto"]),
]
PLACED = [
    "matrix:2,3",
    "broadcast",
    "random:3,2",
    "contrand:4,3,2,2",
    "contrand:3,3,3,3",
    "contrand:5,2,1,2",
    "matrix",
    "random",
]


def _digests(
    conditions: list[str], routings: list[str], kind: str, streams: Inputs, folder: Path
) -> dict[str, tuple[int, str]]:
    """Count and digest by routing, with one to three gateways and slaves; rows are DuckDB's."""
    text = f"SELECT a.v, b.v AS w FROM a {kind} JOIN b ON {' AND '.join([NEAR, *conditions])}"
    found = {}
    for i, routing in enumerate(routings):
        cluster = {"epoch_tuples": 60, "partition_count": 9, "gateways": 1 + i % 3, "routing": routing}
        job = query_job(text, streams, folder / str(i), cluster=cluster)
        report = run_local(job, False, 1 + i % 4)
        assert report["ledger"]["balanced"], routing
        found[routing] = report["results"]["count"], report["results"]["digest"]
        if i == 0:
            assert rows_of(job) == duckdb_rows(streams, text)
        if i % 4 == 1:
            assert verify(folder / str(i)).equal
    return found


@pytest.mark.drawn
@pytest.mark.parametrize(("conditions", "routings"), ONE_RESULT, ids=[" and ".join(c) for c, _ in ONE_RESULT])
def test_any_routing_gives_one_digest(conditions: list[str], routings: list[str], streams: Inputs, tmp_path: Path) -> None:
    """Of joins by an equality, of numbers or texts, by a band, and by neither, which has no values that choose subgroups."""
    placed = [routing for routing in PLACED if conditions != ["a.k < b.k"] or "contrand" not in routing]
    found = _digests(conditions, [*routings, *placed], "", streams, tmp_path)
    assert len(set(found.values())) == 1, found
    assert found[routings[0]][0] > 10


@pytest.mark.parametrize(
    ("kind", "conditions"),
    [
        *(pytest.param(kind, [EQUAL], id=f"equality-{kind}") for kind in ("LEFT", "SEMI")),
        *(pytest.param(kind, [BAND, "a.v < b.v"], id=f"band-{kind}") for kind in ("RIGHT", "ANTI")),
        *(pytest.param(kind, [EQUAL], id=f"equality-{kind}", marks=pytest.mark.drawn) for kind in ("RIGHT", "ANTI")),
        *(pytest.param(kind, [BAND, "a.v < b.v"], id=f"band-{kind}", marks=pytest.mark.drawn) for kind in ("LEFT", "SEMI")),
    ],
)
def test_preserved_rows_by_any_routing(kind: str, conditions: list[str], streams: Inputs, tmp_path: Path) -> None:
    text = f"SELECT a.v{'' if kind in ('SEMI', 'ANTI') else ', b.v AS w'} FROM a {kind} JOIN b ON "
    text += " AND ".join([NEAR, *conditions])
    for i, routing in enumerate(["range", "matrix:5,1", "broadcast", "matrix"]):
        cluster = {"epoch_tuples": 60, "partition_count": 9, "gateways": 1 + i % 2, "routing": routing}
        job = query_job(text, streams, tmp_path / routing, cluster=cluster)
        assert run_local(job, False, 3)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(streams, text), routing
        assert verify(tmp_path / routing).equal


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_any_routing(streams: Inputs, tmp_path: Path) -> None:
    jobs, texts = [], []
    for i, ((conditions, _), routing) in enumerate(
        zip(ONE_RESULT[:5], ["random:3,3", *PLACED[3:6], "matrix:3,3"], strict=True)
    ):
        texts.append(f"SELECT a.v, b.v AS w FROM a JOIN b ON {' AND '.join([NEAR, *conditions])}")
        cluster = {"epoch_tuples": 60, "gateways": 2, "routing": routing}
        jobs.append(query_job(texts[-1], streams, tmp_path / str(i), cluster=cluster))
    run_jobs(6, jobs, tmp_path)
    for job, text in zip(jobs, texts, strict=True):
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(streams, text), text


@pytest.mark.parametrize(
    ("kind", "condition", "routing", "problem"),
    [
        (
            "",
            "a.k < b.k",
            "hash",
            "routing hash: the join of a and b has no equality of "
            "values that can be hashed; leave it out, or write range or matrix",
        ),
        ("", BAND, "hash", "routing hash: the join of a and b has no equality of values that can be hashed"),
        (
            "",
            "a.k < b.k",
            "range",
            "routing range: the join of a and b bounds no difference of numbers or times from both sides",
        ),
        ("", "a.x = b.x", "range", "routing range: the join of a and b bounds no difference"),
        (
            "",
            "a.k < b.k",
            "contrand:2,2,2,1",
            "routing contrand:2,2,2,1: the join of a and b has neither an equality nor a band",
        ),
        ("FULL", EQUAL, "matrix:2,1", "routing matrix:2,1: a full join needs all partners of a row at one place; leave it out"),
        ("FULL", EQUAL, "range", "routing range: a full join needs all partners of a row at one place; leave it out"),
        ("LEFT", EQUAL, "random", "routing random: left, right, semi and anti joins need all partners of a row at one place"),
        ("SEMI", BAND, "contrand:2,2,2,1", "routing contrand:2,2,2,1: left, right, semi and anti joins need all partners"),
        (
            "ANTI",
            EQUAL,
            "matrix:2,3",
            "routing matrix:2,3: left, right, semi and anti joins have one column of cells; write matrix:6,1",
        ),
    ],
)
def test_routings_that_a_join_cannot_have(kind: str, condition: str, routing: str, problem: str, streams: Inputs) -> None:
    text = f"SELECT a.v FROM a {kind} JOIN b ON {NEAR} AND {condition}"
    with pytest.raises(UserError) as error:
        query_job(text, streams, Path("unused"), cluster={"routing": routing})
    assert str(error.value).startswith(problem)


def test_all_slaves_share_a_join_without_an_equality(streams: Inputs, tmp_path: Path) -> None:
    job = query_job(SMALLER, streams, tmp_path, cluster={"epoch_tuples": 150})
    report = run_local(job, False, 6)
    peaks = [slave["window"]["peak"] for slave in report["memory"]["slaves"]]
    assert len(peaks) == 6
    assert min(peaks) > 0.5 * max(peaks)


def test_a_copy_that_is_lost_is_noticed(streams: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copies = Matrix.copies

    def without_last(self: Matrix, port: int, ids: Any, hashes: Any) -> Any:
        positions, cells = copies(self, port, ids, hashes)
        return (positions[:-1], cells[:-1]) if port == LEFT and len(cells) > 1 else (positions, cells)

    monkeypatch.setattr(Matrix, "copies", without_last)
    text = f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR}"
    rows, _ = run_query(text, streams, tmp_path, cluster={"epoch_tuples": 150, "routing": "matrix:2,2"})
    assert rows != duckdb_rows(streams, text)
    assert not verify(tmp_path).equal


def test_a_routing_without_a_use(streams: Inputs, swjoin: Any, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="routing matrix:2,3: the query has no join of two streams; leave it out"):
        query_job("SELECT v FROM a", streams, tmp_path / "none", cluster={"routing": "matrix:2,3"})
    table = f"a={streams['a'].path}:ts"
    done = swjoin("query", "SELECT k FROM a", "--table", table, "--routing", "matrix:x", "-o", tmp_path / "out.parquet")
    assert done.code == 2
    assert done.err == [f"swjoin: --routing matrix:x: must be {WORDS}"]


def test_commands_on_a_run_with_a_matrix(streams: Inputs, swjoin: Any, tmp_path: Path) -> None:
    cluster = {"epoch_tuples": 150, "partition_count": 60, "routing": "matrix:2,3"}
    job = query_job(SMALLER, streams, tmp_path / "run", cluster=cluster)
    run_local(job, False, 2)
    run = tmp_path / "run"
    other = swjoin("explain", run, "--threads", 2, "--set", "cluster.routing=matrix:5,5")
    assert other.err == ["swjoin: routing matrix:5,5: the run has matrix:2,3, which it keeps; leave it out"]
    changed = swjoin("explain", run, "--threads", 2, "--set", "cluster.routing=random")
    assert changed.err == ["swjoin: routing random: the run has matrix:2,3, which it keeps; leave it out"]
    hashed = swjoin("explain", run, "--threads", 2, "--set", "cluster.routing=hash")
    assert hashed.err == ["swjoin: routing hash: the run's joins go by places, which it keeps; leave it out"]
    assert "a row of a matrix 2 x 3" in " ".join(swjoin("explain", run, "--threads", 5).out.split())
    rows = []
    for routing in ("matrix:1,1", "matrix:2,3", "matrix:4,14"):
        done = swjoin("plan", run, "--threads", 2, "--json", "--set", f"cluster.routing={routing}")
        assert done.code == 0, done.err
        plain = json.loads(done.out)
        rows.append((plain["edges"][0]["rows_per_s"], plain["stages"][0]["load"]))
    assert rows[1][0] == pytest.approx(3 * rows[0][0])
    assert rows[2][0] == pytest.approx(14 * rows[0][0])
    assert rows[1][1] < rows[2][1], "copies cost time"


@pytest.mark.parametrize("command", [("plan", "--threads", 2), ("simulate", "--slaves", 2), ("explain",)])
def test_the_join_of_two_streams_has_no_routing(command: tuple[object, ...], swjoin: Any) -> None:
    word, *options = command
    done = swjoin(word, "mpi_configs/local.yaml", *options, "--set", "cluster.routing=matrix:2,2")
    assert done.code == 2
    assert done.err == [
        "swjoin: routing matrix:2,2: a configuration of two streams goes by hash; leave it out, or write a query"
    ]


@pytest.mark.parametrize("routing", [5, True, "", b"matrix:2,2", ("matrix", 2, 2), "matrix:65,1", "random:1"])
def test_routings_from_python_that_are_none(routing: Any) -> None:
    table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "k": [1, 2]})
    with pytest.raises(UserError, match="must be auto, hash, skew, range, broadcast, matrix"):
        api.sql("SELECT a.k FROM a, b WHERE a.k < b.k AND a.ts = b.ts", a=table, b=table, time="ts", routing=routing)
