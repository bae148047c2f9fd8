"""Queries in configurations: run, explained, verified, killed and resumed; and what is refused."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
import yaml

from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from swjoin.frontends.sql.planner import Table, plan_query
from tests.conftest import ROOT
from tests.support.limits import LONG_S, PROCESS_S
from tests.tools.processes import LaunchedRun

SQL = """
SELECT b.auction, b.window_end, b.bids, b.top, s.seller, k.kind
FROM (SELECT auction, window_start, window_end, count(*) AS bids, max(price) AS top, avg(fee) AS fee
      FROM HOP((SELECT bid.* FROM bid ANTI JOIN kind ON bid.price = kind.number AND kind.kind LIKE 'kind 7%'),
               at, INTERVAL '1' SECOND, INTERVAL '4' SECOND)
      GROUP BY auction, window_end) b
LEFT JOIN (SELECT auction, at, seller FROM sale) s
  ON s.auction = b.auction AND s.at BETWEEN b.window_end - INTERVAL '4' SECOND AND b.window_end
LEFT JOIN kind k ON k.number = s.seller % 100
"""


OF_A_MATRIX = """
SELECT b.price, b.auction, s.seller
FROM bid b JOIN sale s ON s.at BETWEEN b.at AND b.at + INTERVAL '100' MILLISECOND AND b.price % 50 < s.seller % 60
"""


def _write(folder: Path, rows: int) -> dict[str, Any]:
    """Inputs of the query, and the configuration of a run of it."""
    random = np.random.default_rng(5)
    bids = {"auction": random.integers(0, 50, rows), "price": random.integers(1, 999, rows), "at": np.arange(rows) * 2}
    auction = pa.array([None if i % 40 == 0 else f"a{i}" for i in bids["auction"].tolist()])
    table = pa.table(bids | {"auction": auction, "fee": random.random(rows)})
    pq.write_table(table, folder / "bids.parquet", row_group_size=max(1, rows // 10))
    few = rows // 20
    sales = {"auction": [f"a{i}" for i in random.integers(0, 60, few)], "at": np.arange(few) * 40, "seller": np.arange(few)}
    pq.write_table(pa.table(sales), folder / "sales.parquet")
    inputs = {name: {"path": str(folder / f"{name}s.parquet"), "time": "at", "time_unit": "ms"} for name in ("bid", "sale")}
    kinds = pa.table({"number": np.arange(150) // 2, "kind": [f"kind {i}" for i in range(150)]})
    pq.write_table(kinds, folder / "kinds.parquet")
    inputs["kind"] = {"path": str(folder / "kinds.parquet")}
    return {"queries": [{"sql": SQL}], "inputs": inputs, "cluster": {"epoch_tuples": 300}}


def _saved(folder: Path, plain: dict[str, Any], name: str = "run") -> Path:
    path = folder / f"{name}.yaml"
    path.write_text(yaml.safe_dump(plain))
    return path


def _report(folder: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / "run.json").read_text())
    return found


def test_a_configuration_with_a_query(swjoin: Any, tmp_path: Path) -> None:
    path = _saved(tmp_path, _write(tmp_path, 4000))
    done = swjoin("run", path, "--out", tmp_path / "out", "--set", "cluster.partition_count=7")
    assert done.code == 0, done.err
    report = _report(tmp_path / "out")
    assert report["ledger"]["balanced"]
    assert report["results"]["count"] > 500
    assert report["config"]["cluster"]["partition_count"] == 7
    assert verify(tmp_path / "out").equal
    said = swjoin("explain", path).out
    assert "count, max, avg by auction, windows of 4s every 1s" in " ".join(said.split())
    assert "left lookup in table k 1 on" in " ".join(said.split())
    assert "A static table: every process that needs it reads it whole." in " ".join(said.split())
    assert "In each stage with keys the key's hash says" in " ".join(said.split())
    assert swjoin("explain", tmp_path / "out").code == 0
    assert swjoin("simulate", path, "--slaves", "2").code in (0, 2)
    other = swjoin("run", path, "--out", tmp_path / "changed", "--set", f"inputs.bid.path={tmp_path / 'none.parquet'}")
    assert other.code == 2
    assert "inputs.bid: " in other.err[0]


def doubled(batch: pa.RecordBatch) -> dict[str, Any]:
    """As `SELECT auction, price * 2 AS price, at`."""
    return {"auction": batch["auction"], "price": pc.multiply(batch["price"], 2), "at": batch["at"]}


def scored(batch: pa.RecordBatch) -> dict[str, Any]:
    return {"user": batch["user"], "started": batch["started"], "score": pc.sqrt(batch["km"])}


_DOUBLED = {"call": f"{__name__}:doubled", "schema": "auction: string, price: int64, at: int64"}


def test_a_function_of_a_configuration(swjoin: Any, tmp_path: Path) -> None:
    plain = _write(tmp_path, 4000)
    sql = (
        "SELECT auction, window_end, sum(price) AS s, count(*) AS n FROM TUMBLE({}, at, INTERVAL '1' SECOND) "
        "GROUP BY auction, window_end"
    )
    plain["inputs"] = {"bid": plain["inputs"]["bid"]}
    digests = {}
    for name, rows, functions in (
        ("function", "(SELECT * FROM MAP_BATCHES((SELECT auction, price, at FROM bid), 'twice') q)", {"twice": _DOUBLED}),
        ("expression", "(SELECT auction, price * 2 AS price, at FROM bid)", {}),
    ):
        plain["queries"] = [{"sql": sql.format(rows), "functions": functions}]
        path = _saved(tmp_path, plain, name)
        done = swjoin("run", path, "--out", tmp_path / name)
        assert done.code == 0, done.err
        results = _report(tmp_path / name)["results"]
        digests[name] = (results["count"], results["digest"])
        assert results["count"] > 300
    assert digests["function"] == digests["expression"]
    assert "map_batches" in swjoin("explain", tmp_path / "function.yaml").out


@pytest.mark.parametrize(
    ("functions", "said"),
    [
        ({"twice": "tests:f"}, "queries.0.functions.twice: 'tests:f' is no function; write {call: package.module:function, "),
        ([_DOUBLED], "queries.0.functions: expected a mapping"),
        ({"twice": _DOUBLED | {"call": "doubled"}}, "queries.0.functions.twice.call: 'doubled' cannot be imported"),
        ({"twice": _DOUBLED | {"schema": "auction"}}, "queries.0.functions.twice: schema: 'auction': write NAME: TYPE"),
        ({"twice": _DOUBLED | {"schema": "a: list<int64>"}}, "queries.0.functions.twice: schema: column a"),
        ({"twice": _DOUBLED | {"call": "tests.frontends.test_configured:none"}}, "test_configured:none cannot be imported"),
        ({"other": _DOUBLED}, "queries.0.sql: MAP_BATCHES: no function twice was given"),
    ],
)
def test_functions_that_a_configuration_cannot_have(functions: Any, said: str, swjoin: Any, tmp_path: Path) -> None:
    plain = _write(tmp_path, 100)
    plain["queries"] = [{"sql": "SELECT * FROM MAP_BATCHES((SELECT * FROM bid), 'twice') q", "functions": functions}]
    plain["inputs"] = {"bid": plain["inputs"]["bid"]}
    done = swjoin("run", _saved(tmp_path, plain), "--out", tmp_path / "out")
    assert done.code == 2
    assert said in " ".join(done.err)
    assert not (tmp_path / "out").exists()


@pytest.mark.drawn
@pytest.mark.parametrize("policy", ["shed", "spill"])
def test_more_than_the_mini_buffers_hold(policy: str, swjoin: Any, tmp_path: Path) -> None:
    """A slot has more rows than that: they are dropped, and the rest is right, or wait on the disk."""
    plain = _write(tmp_path, 20_000 if policy == "shed" else 500_000)  # slaves grant credit for 131,072 rows and more
    for name in ("bid", "sale"):
        plain["inputs"][name]["time_unit"] = "us"  # rows come faster than they are worked on
    plain["queries"][0]["sql"] = SQL.replace("SECOND", "MILLISECOND")
    plain |= {"pace": "realtime", "on_overload": {"policy": policy}}
    plain |= {"nodes": {"node_speed": 0.03 if policy == "shed" else 0.1}}  # slow on any machine
    plain["cluster"] = {"distribution_epoch": "5ms", "mini_buffer": "16KB", "partition_count": 7}
    path = _saved(tmp_path, plain)
    done = swjoin("run", path, "--out", tmp_path / "out")
    assert done.code == 0, done.err
    report = _report(tmp_path / "out")
    assert report["ledger"]["balanced"]
    shed, spilled = sum(report["shed"].values()), report["overload"]["spilled_tuples"]
    assert (shed > 1000, spilled > 1000) == (policy == "shed", policy == "spill")
    assert f"{shed:,} tuples shed (random)" in done.out or policy == "spill"
    assert verify(tmp_path / "out").equal
    if policy == "spill":
        assert swjoin("run", path, "--out", tmp_path / "again", "--set", "pace=asap", "--set", "on_overload=block").code == 0
        assert _report(tmp_path / "again")["results"]["digest"] == report["results"]["digest"]


def test_slower_nodes(swjoin: Any, tmp_path: Path) -> None:
    """A node is a slave rank, with an instance of every stage, or of some."""
    path, found = _saved(tmp_path, _write(tmp_path, 4000)), set()
    for strategy in ("query", "subquery"):
        words = ["--set", "nodes.speed=[0.3, 1, 0.5]", "--set", f"cluster.strategy={strategy}", "--threads", 3]
        done = swjoin("run", path, "--out", tmp_path / strategy, *words)
        assert done.code == 0, done.err
        report = _report(tmp_path / strategy)
        assert report["ledger"]["balanced"]
        found.add(report["results"]["digest"])
    assert len(found) == 1
    assert swjoin("run", path, "--out", tmp_path / "no", "--threads", 2, *words[:2]).err == [
        "swjoin: nodes: speed lists 3 slaves, but the run has 2"
    ]


def test_the_configuration_of_the_document(
    trips_csv: Path, swjoin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(trips_csv.parent)
    block, with_function = re.findall(r"(?s)```yaml\n(queries:.*?)```", (ROOT / "docs" / "queries.md").read_text())
    (tmp_path / "q.yaml").write_text(block)
    done = swjoin("run", tmp_path / "q.yaml", "--out", tmp_path / "out")
    assert done.code == 0, done.err
    assert _report(tmp_path / "out")["results"]["count"] == 4
    assert verify(tmp_path / "out").equal
    plain = yaml.safe_load(with_function.replace("package.module:function", f"{__name__}:scored"))
    path = _saved(tmp_path, plain | {"inputs": yaml.safe_load(block)["inputs"]}, "scored")
    done = swjoin("run", path, "--out", tmp_path / "scored")
    assert done.code == 0, done.err
    assert 0 < _report(tmp_path / "scored")["results"]["count"] < len(csv.read_csv(trips_csv))


@pytest.fixture
def trips_csv(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    path = tmp_path / "in" / "trips.csv"
    rows = [f"{i},2026-01-01 00:{i:02}:00,{i / 4},{'Ulm' if i % 3 else 'Bonn'}" for i in range(30)]
    path.write_text("\n".join(["user,started,km,city", *rows, ""]))
    return path


def _killed(folder: Path, ranks: int, sql: str = SQL) -> LaunchedRun:
    """A run of the query on ranks, once it has made a checkpoint."""
    plain = _write(folder, 4000)  # 8 s of event time, in which files are read in realtime pace alone
    plain |= {"pace": "realtime", "checkpoint": {"epochs": 2}, "queries": [{"sql": sql}]}
    plain |= {"cluster": {"distribution_epoch": "100ms", "partition_count": 12}}
    path = _saved(folder, plain)
    run = LaunchedRun([str(path), "-n", str(ranks), "--out", str(folder / "out")], folder / "log")
    deadline = time.monotonic() + PROCESS_S
    while not any((folder / "out" / "checkpoints").glob("checkpoint-*.json")):
        assert run.process.poll() is None, run.said()
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.005)
    return run


def _same(folder: Path, swjoin: Any) -> dict[str, Any]:
    """The report of a run that has the digest of one in this process, and DuckDB's."""
    assert swjoin("run", folder / "run.yaml", "--out", folder / "alone", "--set", "pace=asap").code == 0
    report, alone = _report(folder / "out"), _report(folder / "alone")
    assert report["complete"]
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert report["results"]["digest"] == alone["results"]["digest"]
    assert report["results"]["count"] == alone["results"]["count"] > 500
    assert verify(folder / "out").equal
    return report


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("rank", [3, pytest.param(2, marks=pytest.mark.long), pytest.param(1, marks=pytest.mark.long)])
def test_a_rank_dies_and_the_others_go_on(rank: int, swjoin: Any, tmp_path: Path) -> None:
    run = _killed(tmp_path, 5)
    run.kill([rank])
    assert run.end(PROCESS_S) == 0, run.said()
    _same(tmp_path, swjoin)


@pytest.mark.mpi
@pytest.mark.long
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_run_that_ended_early_is_resumed(number: int, swjoin: Any, tmp_path: Path) -> None:
    run = _killed(tmp_path, 5)
    if number == signal.SIGKILL:
        run.kill_all()
        run.process.wait()
    else:
        run.process.send_signal(number)
        assert run.end(PROCESS_S) == 0, run.said()
        assert _report(tmp_path / "out")["resumable"], "it was over before the signal came"
    again = LaunchedRun(["--resume", str(tmp_path / "out"), "-n", "4"], tmp_path / "again")
    assert again.end(PROCESS_S) == 0, again.said()
    _same(tmp_path, swjoin)


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_a_resumed_run_keeps_its_matrix(swjoin: Any, tmp_path: Path) -> None:
    """With two slaves instead of three, where a new run would have another one."""
    run = _killed(tmp_path, 5, OF_A_MATRIX)
    run.kill_all()
    run.process.wait()
    again = LaunchedRun(["--resume", str(tmp_path / "out"), "-n", "4"], tmp_path / "again")
    assert again.end(PROCESS_S) == 0, again.said()
    report = _same(tmp_path, swjoin)
    lines = [node["lines"] for node in report["plan"]["nodes"] if node["kind"] == "spread"]
    assert lines == [[1, 3], [1, 3]]


@pytest.mark.mpi
@pytest.mark.timeout(LONG_S)
def test_a_static_table_that_has_changed_is_noticed(swjoin: Any, tmp_path: Path) -> None:
    run = _killed(tmp_path, 4)
    run.kill_all()
    run.process.wait()
    table = pq.read_table(tmp_path / "kinds.parquet")
    pq.write_table(table.slice(1), tmp_path / "kinds.parquet")
    done = swjoin("run", "--resume", tmp_path / "out")
    assert done.code == 2
    assert "kinds.parquet: has changed since the checkpoint" in done.err[0]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        ({"queries": []}, "queries: 0 queries; give one or more, as [{name: NAME, sql: SELECT ...}]"),
        ({"queries": [{"sql": "SELECT 1"}, {"sql": "SELECT 2"}]}, "queries.0: one of 2 queries has no name; write name: NAME"),
        ({"queries": "SELECT 1"}, "queries: no list of queries; give one or more"),
        ({"queries": [{"sql": SQL, "nme": "x"}]}, "queries.0: {'nme': 'x', 'sql': "),
        ({"queries": [{"sql": 5}]}, "queries.0: {'sql': 5} is no query; write sql:, or sparql:, and its text"),
        ({"queries": [{"sql": "SELECT x FROM bid"}]}, "queries.0.sql: column x is missing; there are bid.auction"),
        ({"queries": [{"sql": "SELECT auction FROM bids"}]}, "queries.0.sql: table bids is unknown; did you mean bid?"),
        ({"inputs": {}}, "inputs: missing; name each table of the query"),
        ({"inputs": None}, "inputs: missing; name each table of the query"),
        ({"inputs": {"bid": "x"}}, "inputs.bid: expected a mapping, got 'x'"),
        ({"inputs": {"bid": {"path": "b.parquet", "key": "k"}}}, "inputs.bid: key: joins of a query name their keys"),
        (
            {"inputs": {"bid": {"path": "b.parquet", "tme": "k"}}},
            "inputs.bid.tme: unknown configuration key; did you mean time?",
        ),
        (
            {"inputs": {"bid": {"time": "at"}}},
            "inputs.bid: give a path, a live stream (flight, kafka or watch), or generate",
        ),
        (
            {"inputs": {"bid": {"watch": "d", "schema": "k: int64"}}},
            "inputs.bid: a live stream needs its time column; write time: COLUMN",
        ),
        ({"inputs": {"b": {"path": "x", "time": "t"}, "B": {"path": "x", "time": "t"}}}, "inputs.b: the name is given twice"),
        ({"inputs": {"bid": {"path": "b.parquet", "time": "at", "columns": ["k"]}}}, "inputs.bid: columns: a query names what"),
        ({"inputs": {"bid": {"path": "b.parquet", "id": "k"}}}, "inputs.bid: id: a query names what it reads; leave it out"),
        ({"where": "price > 1"}, "where: is for the join of two streams; leave it out beside queries"),
        ({"how": "left"}, "how: is for the join of two streams"),
        ({"columns": ["price"]}, "columns: is for the join of two streams"),
        ({"right_time": "at"}, "right_time: is for the join of two streams"),
        ({"join": {"within": "5s"}}, "join: is for the join of two streams; leave it out beside queries"),
        ({"left": {"path": "x"}}, "left: is for the join of two streams; leave it out beside queries"),
        (
            {"routing": "matrix:2,2"},
            "queries.0.sql: routing matrix:2,2: left, right, semi and anti joins have one column of cells; write matrix:4,1",
        ),
        (
            {"routing": "matrix:0,2"},
            "cluster: routing matrix:0,2: must be auto, hash, skew, range, broadcast, matrix or matrix:M,N, random or",
        ),
        ({"clustr": {}}, "clustr: unknown configuration key; did you mean cluster?"),
    ],
)
def test_one_line_for_configurations_that_cannot_be(change: dict[str, Any], problem: str, swjoin: Any, tmp_path: Path) -> None:
    path = _saved(tmp_path, _write(tmp_path, 40) | change)
    done = swjoin("run", path, "--out", tmp_path / "out")
    assert done.code == 2
    (line,) = done.err
    assert line.startswith(f"swjoin: {path}: {problem}"), line
    assert not (tmp_path / "out").exists()


def test_a_time_without_a_unit_names_the_key(swjoin: Any, tmp_path: Path) -> None:
    plain = _write(tmp_path, 40)
    del plain["inputs"]["bid"]["time_unit"]
    done = swjoin("run", _saved(tmp_path, plain), "--out", tmp_path / "out")
    assert "inputs.bid: at is a number without a unit; write inputs.bid.time_unit: ms, or s, us, ns" in done.err[0]


def test_the_query_of_these_tests_is_one() -> None:
    columns = (("auction", "string"), ("price", "int64"), ("at", "int64"), ("fee", "double"), ("seller", "int64"))
    tables = {name: Table(columns, "at", 1e3) for name in ("bid", "sale")}
    tables["kind"] = Table((("number", "int64"), ("kind", "string")), None)
    assert sorted(plan_query(SQL, tables).tables) == ["bid", "kind", "sale"]
    with pytest.raises(UserError, match="table sale is unknown"):
        plan_query(SQL, {name: table for name, table in tables.items() if name != "sale"})
