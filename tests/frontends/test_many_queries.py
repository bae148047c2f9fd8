"""Many queries in one run: each has the rows, count and digest of a run of its own, whatever is shared; and what is refused."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import time
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import swjoin as library
from swjoin.cli.main import main
from swjoin.cluster import exchange
from swjoin.cluster.slave.results import ResultOutlet
from swjoin.cluster.slave.stage import StageInstance
from swjoin.core.errors import RunFailed, UserError
from swjoin.duckdb.verify import verify
from swjoin.plan.families import Ranking
from tests.cli.test_help import FILES
from tests.conftest import ROOT
from tests.support.limits import LONG_S, PROCESS_S
from tests.tools.processes import LaunchedRun

_NEAR = "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '1' SECOND"
QUERIES = {
    "near": f"SELECT a.k, a.v AS x, b.v AS y FROM a JOIN b ON a.k = b.k AND {_NEAR}",
    "near_too": f"SELECT a.k, a.v AS x, b.v AS y FROM a JOIN b ON a.k = b.k AND {_NEAR}",
    "larger": f"SELECT a.v + b.v AS sum, a.k FROM a JOIN b ON a.k = b.k AND {_NEAR} WHERE a.v < b.v",
    "alone": f"SELECT a.k, a.ts, b.v FROM a LEFT JOIN b ON a.k = b.k AND {_NEAR}",
    "counts": "SELECT k, window_end, count(*) AS n FROM TUMBLE(a, ts, INTERVAL '10' SECOND) GROUP BY k, window_end",
    "sums": f"""SELECT k, window_end, sum(y) AS s
        FROM TUMBLE((SELECT a.k, a.ts, b.v AS y FROM a JOIN b ON a.k = b.k AND {_NEAR}), ts, INTERVAL '10' SECOND)
        GROUP BY k, window_end""",
    "few": "SELECT k, v FROM a WHERE v < 10",
    "fewer": "SELECT v, k FROM a WHERE v < 10 AND k < 5",
    "kinds": "SELECT a.v, kind.name FROM a JOIN kind ON kind.k = a.k",
    "both": "SELECT k, v FROM a WHERE v < 5 UNION ALL SELECT k, v FROM b WHERE v > 95",
    "top": "SELECT v, k FROM b WHERE k = 3 ORDER BY v DESC, k",
}


def _inputs(folder: Path, rows: int = 2_000) -> dict[str, Any]:
    random = np.random.default_rng(4)
    for name in "ab":
        times = pa.array(np.sort(random.integers(0, 60_000_000, rows)), pa.timestamp("us"))
        table = {"k": random.integers(0, 40, rows), "v": random.integers(0, 100, rows), "ts": times}
        pq.write_table(pa.table(table), folder / f"{name}.parquet", row_group_size=max(1, rows // 10))
    pq.write_table(pa.table({"k": np.arange(20), "name": [f"kind {i}" for i in range(20)]}), folder / "kind.parquet")
    found = {name: {"path": str(folder / f"{name}.parquet"), "time": "ts"} for name in "ab"}
    return {**found, "kind": {"path": str(folder / "kind.parquet")}}


def _saved(folder: Path, **more: Any) -> Path:
    queries = [{"name": name, "sql": sql} for name, sql in QUERIES.items() if name != "top"]
    path = folder / "run.yaml"
    path.write_text(yaml.safe_dump({"queries": queries, "inputs": _inputs(folder), "cluster": {"epoch_tuples": 300}} | more))
    return path


@pytest.fixture(scope="module")
def lone(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Count and digest of each query in a run of its own."""
    folder = tmp_path_factory.mktemp("lone")
    _inputs(folder)
    tables = {name: folder / f"{name}.parquet" for name in ("a", "b", "kind")}
    times = {"a": "ts", "b": "ts"}
    proofs = {name: library.proof(library.sql(sql, **tables, time=times)) for name, sql in QUERIES.items()}
    return {name: (proof.count, proof.digest) for name, proof in proofs.items()}


def _found(folder: Path) -> dict[str, Any]:
    """Count and digest of each query, of a run whose ledger balances."""
    report = json.loads((folder / "run.json").read_text())
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert report["results"]["count"] == sum(query["count"] for query in report["queries"])
    assert all(query["produced"] == query["count"] for query in report["queries"])
    return {query["name"]: (query["count"], query["digest"]) for query in report["queries"]}


def _without_top(lone: dict[str, Any]) -> dict[str, Any]:
    return {name: sums for name, sums in lone.items() if name != "top"}


def test_queries_have_the_answers_of_runs_of_their_own(lone: dict[str, Any], swjoin: Any, tmp_path: Path) -> None:
    """Recomputed by DuckDB, one by one. What is equal is there once."""
    done = swjoin("run", _saved(tmp_path), "--out", tmp_path / "out", "--threads", 3)
    assert done.code == 0, done.err
    assert f"  near            {lone['near'][0]:,}, digest {lone['near'][1]}" in done.out
    assert _found(tmp_path / "out") == _without_top(lone)
    assert min(count for count, _ in lone.values()) > 10
    for name, (count, _) in _without_top(lone).items():
        assert pq.read_table(tmp_path / "out" / "results" / name, partitioning=None).num_rows == count
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    kinds = [node["kind"] for node in report["plan"]["nodes"]]
    assert (kinds.count("interval_join"), kinds.count("aggregate"), kinds.count("source")) == (3, 2, 3)
    assert len({stage["join"] for stage in report["stages"]}) == len(report["stages"]) == 7
    done = swjoin("verify", tmp_path / "out")
    assert (done.code, done.out.splitlines()[-1]) == (0, "equal")
    assert f"near: {lone['near'][0]:,} rows, digest {lone['near'][1]}: equal" in done.out
    assert json.loads((tmp_path / "out" / "verified.json").read_text())["queries"]["near"]["count"] == lone["near"][0]
    assert swjoin("report", tmp_path / "out").code == 0
    page = (tmp_path / "out" / "report.html").read_text()
    assert f"Verified: DuckDB finds the same {report['results']['count']:,} pairs" in page
    assert lone["near"][1] in page


def test_a_wrong_row_is_found_by_verify(swjoin: Any, tmp_path: Path) -> None:
    assert swjoin("run", _saved(tmp_path), "--out", tmp_path / "out").code == 0
    (file,) = (tmp_path / "out" / "results" / "few").iterdir()
    table = pq.read_table(file)
    pq.write_table(pa.concat_tables([table.slice(1), table.slice(1, 1)]), file)
    done = swjoin("verify", tmp_path / "out")
    assert (done.code, done.out.splitlines()[-1]) == (1, "DIFFERENT")
    assert [line.split(":")[0] for line in done.out.splitlines()[:-1] if line.endswith("DIFFERENT")] == ["few"]
    assert not verify(tmp_path / "out").equal


@pytest.mark.parametrize(
    ("queries", "problem"),
    [
        (lambda found: found[1:], "queries: has not the count and digest of each query; the file is damaged"),
        (lambda found: [{**found[0], "name": "../a"}, *found[1:]], "queries: has not the count and digest of each query"),
        (lambda found: [{**found[0], "count": "x"}, *found[1:]], "queries: has not the count and digest of each query"),
        (lambda found: [{**found[0], "digest": "x"}, *found[1:]], "queries: has not the count and digest of each query"),
        (lambda found: None, "queries: has not the count and digest of each query"),
        (lambda found: ["x"], "queries: has not the count and digest of each query"),
    ],
)
def test_a_damaged_report_is_one_line(queries: Any, problem: str, counted: Path, swjoin: Any, tmp_path: Path) -> None:
    run = Path(shutil.copytree(counted, tmp_path / "run"))
    report = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(report | {"queries": queries(report["queries"])}))
    done = swjoin("verify", run)
    assert done.code == 2
    assert len(done.err) == 1
    assert problem in done.err[0]


def test_totals_are_verified(counted: Path, swjoin: Any, tmp_path: Path) -> None:
    run = Path(shutil.copytree(counted, tmp_path / "run"))
    report = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps(report | {"results": report["results"] | {"count": 1}}))
    done = swjoin("verify", run)
    assert (done.code, done.out.splitlines()[-1]) == (1, "DIFFERENT")
    assert "all together: " in done.out


@pytest.fixture(scope="module")
def counted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run whose rows were counted."""
    folder = tmp_path_factory.mktemp("counted")
    path = _saved(folder, sink={"kind": "count"})
    assert main(["run", str(path), "--out", str(folder / "out")]) == 0
    return folder / "out"


@pytest.mark.parametrize("strategy", ["query", "subquery", "operator"])
def test_whatever_the_strategy_and_the_sinks(strategy: str, lone: dict[str, Any], swjoin: Any, tmp_path: Path) -> None:
    path = _saved(tmp_path, sink={"kind": "count" if strategy == "query" else "csv"})
    words = ["--set", f"cluster.strategy={strategy}", "--threads", 2, *(["--sinks", "2"] if strategy != "query" else [])]
    done = swjoin("run", path, "--out", tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert _found(tmp_path / "out") == _without_top(lone)
    if strategy != "query":
        files = sorted(path.name for path in (tmp_path / "out" / "results" / "near").iterdir())
        assert files == ["part-s0-00000.csv", "part-s1-00000.csv"]


def test_explained(swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("explain", _saved(tmp_path))
    assert done.code == 0, done.err
    assert "results of near_too" in done.out
    assert "DIR/results/QUERY/*.parquet" in done.out
    assert "near.k (int64)" in done.out.replace("\n", " ")
    assert swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "out").code == 0
    for words in (["plan", tmp_path / "out"], ["simulate", tmp_path / "out", "--slaves", "2", "--out", tmp_path / "sim"]):
        done = swjoin(*words)
        assert done.code == 0, done.err


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("strategy", ["query", "subquery", "operator"])
def test_on_ranks(strategy: str, lone: dict[str, Any], swjoin: Any, tmp_path: Path) -> None:
    words = ["--set", f"cluster.strategy={strategy}", "--set", "cluster.gateways=2", "--sinks", "2", "-n", "5"]
    done = swjoin("run", _saved(tmp_path), "--out", tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert _found(tmp_path / "out") == _without_top(lone)
    assert verify(tmp_path / "out").equal


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize("killed", ["a slave", "the collector", "all"])
def test_killed_in_the_middle(killed: str, swjoin: Any, tmp_path: Path) -> None:
    """Files of every query are those of the checkpoint, and the rest comes again."""
    more = {"pace": "realtime", "checkpoint": {"epochs": 2}, "cluster": {"distribution_epoch": "100ms", "partition_count": 12}}
    path = _saved(tmp_path, **more)
    plain = yaml.safe_load(path.read_text())
    for name in "ab":  # 6 s of event time
        table = pq.read_table(tmp_path / f"{name}.parquet")
        times = pa.array(table["ts"].to_numpy().astype("int64") // 10_000)
        pq.write_table(table.set_column(2, "ts", times), tmp_path / f"{name}.parquet", row_group_size=200)
        plain["inputs"][name]["time_unit"] = "ms"
    for query in plain["queries"]:
        query["sql"] = query["sql"].replace("'1' SECOND", "'100' MILLISECOND").replace("'10' SECOND", "'1' SECOND")
    path.write_text(yaml.safe_dump(plain))
    run = LaunchedRun([str(path), "-n", "5", "--out", str(tmp_path / "out")], tmp_path / "log")
    deadline = time.monotonic() + PROCESS_S
    while not any((tmp_path / "out" / "checkpoints").glob("checkpoint-*.json")):
        assert run.process.poll() is None, run.said()
        assert time.monotonic() < deadline, "no checkpoint"
        time.sleep(0.005)
    if killed == "all":
        run.kill_all()
        run.process.wait()
        run = LaunchedRun(["--resume", str(tmp_path / "out"), "-n", "4"], tmp_path / "again")
    else:
        run.kill([3 if killed == "a slave" else 1])
    assert run.end(PROCESS_S) == 0, run.said()
    assert swjoin("run", path, "--out", tmp_path / "alone", "--set", "pace=asap").code == 0
    assert _found(tmp_path / "out") == _found(tmp_path / "alone")
    assert verify(tmp_path / "out").equal


# ---------------------------------------------------------------- windows that differ


def _windows(folder: Path, **more: Any) -> dict[str, Any]:
    """Queries that differ in windows, most of which nest, with the same columns or others; times are multiples of 0.1 s."""
    inputs = _inputs(folder)
    for name in "ab":
        table = pq.read_table(folder / f"{name}.parquet")
        times = table["ts"].to_numpy().astype("datetime64[us]").astype("int64") // 100_000 * 100_000
        pq.write_table(table.set_column(2, "ts", pa.array(times, pa.timestamp("us"))), folder / f"{name}.parquet")
    del inputs["kind"]
    queries = []
    for before, after in [(10, 10), (5, 5), (1, 3), (0, 3), (0, 0), (5, 5), (3, 0), (-1, 2), (20, 0)]:
        within = f"b.ts BETWEEN a.ts - INTERVAL '{before}00' MILLISECOND AND a.ts + INTERVAL '{after}00' MILLISECOND"
        number = len(queries)
        queries.append({"name": f"plain{number}", "sql": f"SELECT a.k, a.v + b.v AS s FROM a JOIN b ON a.k = b.k AND {within}"})
        if number % 3 == 0:
            queries.append({"name": f"few{number}", "sql": f"{queries[-1]['sql']} WHERE a.v * b.v > 1000"})
            text = (
                f"SELECT k, window_end, count(*) AS n FROM TUMBLE((SELECT a.k, a.ts FROM a JOIN b ON a.k = b.k AND {within}),"
            )
            grouped = f"{text} ts, INTERVAL '5' SECOND) GROUP BY k, window_end"
            queries.append({"name": f"groups{number}", "sql": grouped})
    return {"queries": queries, "inputs": inputs, "cluster": {"epoch_tuples": 300}} | more


def _lone(folder: Path, plain: dict[str, Any]) -> dict[str, tuple[int, str]]:
    found = {}
    for query in plain["queries"]:
        proof = library.proof(library.sql(query["sql"], **_files(folder), time="ts"))
        found[query["name"]] = proof.count, proof.digest
    return found


@pytest.mark.parametrize("strategy", ["query", pytest.param("operator", marks=pytest.mark.drawn)])
def test_windows_that_differ(strategy: str, swjoin: Any, tmp_path: Path) -> None:
    """One join does for all that nest, and a row travels once for all queries that it is in."""
    plain = _windows(tmp_path, sink={"kind": "parquet"})
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(plain))
    words = ["--set", f"cluster.strategy={strategy}", "--threads", 3, "--sinks", 2]
    done = swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "out", *words)
    assert done.code == 0, done.err
    lone = _lone(tmp_path, plain)
    assert _found(tmp_path / "out") == lone
    assert min(count for count, _ in lone.values()) > 0
    assert len(set(lone.values())) > 12
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    joins = [node for node in report["plan"]["nodes"] if node["kind"] == "interval_join"]
    assert len(joins) == 2, "the widest, and one that reaches further back"
    assert verify(tmp_path / "out").equal
    counted = swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "counted", "--set", "sink.kind=count")
    assert counted.code == 0
    assert _found(tmp_path / "counted") == lone


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.timeout(LONG_S)
def test_windows_that_differ_on_ranks(swjoin: Any, tmp_path: Path) -> None:
    plain = _windows(tmp_path)
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(plain))
    words = ["--set", "cluster.gateways=2", "--sinks", "2", "-n", "5", "--set", "checkpoint.epochs=2"]
    done = swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "out", *words)
    assert done.code == 0, done.err
    assert _found(tmp_path / "out") == _lone(tmp_path, plain)
    assert verify(tmp_path / "out").equal


def _touching_left_out(self: Ranking, values: Any) -> Any:
    by_lower = np.searchsorted(-self.least[:, 0], -values[:, 0], side="right")
    return np.maximum(by_lower, np.searchsorted(self.most[:, 0], values[:, 0], side="left"))


def _narrowest_first(self: Ranking, values: Any) -> Any:
    return np.minimum(len(self.least) - 1, _RANKS(self, values) + 1)


_RANKS = Ranking.ranks


@pytest.mark.parametrize("ranks", [_touching_left_out, pytest.param(_narrowest_first, marks=pytest.mark.drawn)])
def test_wrong_ranks_are_noticed(ranks: Any, monkeypatch: pytest.MonkeyPatch, swjoin: Any, tmp_path: Path) -> None:
    """The ledger balances, as no row is lost on its way; DuckDB's answer differs."""
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(_windows(tmp_path)))
    monkeypatch.setattr(Ranking, "ranks", ranks)
    assert swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "out").code == 0
    monkeypatch.undo()
    assert not verify(tmp_path / "out").equal


def test_more_files_than_the_system_allows(monkeypatch: pytest.MonkeyPatch, swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "run.yaml").write_text(yaml.safe_dump(_windows(tmp_path)))
    monkeypatch.setattr("resource.getrlimit", lambda which: (100, 100))
    done = swjoin("run", tmp_path / "run.yaml", "--out", tmp_path / "out")
    assert (done.code, done.err[0][:60]) == (2, "swjoin: 27 queries have as many files open, and the system a")


# ---------------------------------------------------------------- options and Python


def _written(folder: Path, *names: str) -> list[Path]:
    for name in names:
        (folder / f"{name}.sql").write_text(QUERIES[name])
    return [folder / f"{name}.sql" for name in names]


def test_files_of_queries(lone: dict[str, Any], swjoin: Any, tmp_path: Path) -> None:
    """A query whose rows are sorted is so in its file."""
    _inputs(tmp_path)
    tables = [word for n in "ab" for word in ("--table", f"{n}={tmp_path / n}.parquet:ts")]
    words = [*_written(tmp_path, "near", "few", "top"), *tables, "--report", tmp_path / "report.json"]
    done = swjoin("query", *words, "-o", tmp_path / "rows.parquet")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "report.json").read_text())
    found = {query["name"]: (query["count"], query["digest"]) for query in report["queries"]}
    assert found == {name: lone[name] for name in ("near", "few", "top")}
    values = pq.read_table(tmp_path / "rows.parquet" / "top")["v"].to_pylist()
    assert values == sorted(values, reverse=True)
    assert library.proof(tmp_path / "rows.parquet" / "few" / "part-00000.parquet").digest == lone["few"][1]
    again = swjoin("query", *words, "-o", tmp_path / "rows.parquet")
    assert (again.code, again.err) == (
        2,
        [f"swjoin: {tmp_path}/rows.parquet/near: is not empty; choose another folder or remove it"],
    )
    (tmp_path / "mine.parquet").mkdir()
    (tmp_path / "mine.parquet" / "notes.txt").write_text("mine")
    refusals = {"mine.parquet": "holds something else", "report.json/x.parquet": "", "a.csv.gz": "end it in .parquet or .csv"}
    for name, problem in refusals.items():
        refused = swjoin("query", *words, "-o", tmp_path / name)
        assert (refused.code, len(refused.err)) == (2, 1)
        assert problem in refused.err[0]
    (tmp_path / "file.parquet").write_text("mine")
    refused = swjoin("query", *words, "-o", tmp_path / "file.parquet")
    assert refused.err == [
        f"swjoin: -o {tmp_path}/file.parquet: is a file; several queries write into a folder, give another name"
    ]
    counted = swjoin("query", *words, "-o", "count")
    assert counted.code == 0
    assert json.loads((tmp_path / "report.json").read_text())["queries"] == report["queries"]


def test_the_page(swjoin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Its command, its configuration and its Python."""
    monkeypatch.chdir(tmp_path)
    for name in ("trips.csv", "payments.csv", "paid.sql", "long.sql"):
        (tmp_path / name).write_text(FILES[name])
    page = (ROOT / "docs" / "many-queries.md").read_text()
    (command,), (configuration,), (code,) = (re.findall(rf"(?s)```{kind}\n(.*?)```", page) for kind in ("sh", "yaml", "python"))
    done = swjoin(*shlex.split(command)[1:])
    assert done.code == 0, done.err
    assert {path.name for path in (tmp_path / "rows.parquet").iterdir()} == {"paid", "long"}
    (tmp_path / "run.yaml").write_text(configuration)
    done = swjoin("run", "run.yaml", "--out", "out")
    assert done.code == 0, done.err
    assert {name: count for name, (count, _) in _found(tmp_path / "out").items()} == {"paid": 2, "long": 2, "hours": 2}
    texts = {query["name"]: query["sql"] for query in yaml.safe_load(configuration)["queries"]}
    for name in ("paid", "long"):
        code = code.replace(f'"{name}": "SELECT ..."', f'"{name}": {texts[name]!r}')
    names: dict[str, Any] = {"swjoin": library}
    exec(code, names)
    assert {name: rows.num_rows for name, rows in names["answers"].items()} == {"paid": 2, "long": 2}


def test_from_python(lone: dict[str, Any], tmp_path: Path) -> None:
    _inputs(tmp_path)
    names = ("near", "sums", "few")
    given: dict[str, Any] = {name: pq.read_table(tmp_path / f"{name}.parquet") for name in "ab"} | {"time": "ts"}
    found = library.sql({name: QUERIES[name] for name in names}, **given)
    assert {name: (library.proof(rows).count, library.proof(rows).digest) for name, rows in found.items()} == {
        name: lone[name] for name in names
    }
    assert found["few"].column_names == ["k", "v"]
    single = library.sql({"few": QUERIES["few"]}, **given, returns="polars")
    assert list(single) == ["few"]
    assert single["few"].height == lone["few"][0]
    shuffled = given | {"a": given["a"].take(np.random.default_rng(1).permutation(len(given["a"])))}
    proofs = library.sql({name: QUERIES[name] for name in names}, **shuffled, out=tmp_path / "rows.csv")
    assert {name: (proof.count, proof.digest) for name, proof in proofs.items()} == {name: lone[name] for name in names}
    assert sorted(path.name for path in (tmp_path / "rows.csv" / "near").iterdir()) == ["part-00000.csv"]


@pytest.mark.parametrize(
    ("query", "words"),
    [
        ({}, r"^query: \{\} is no text; give the query, or \{name: query, ...\}$"),
        ({"a b": "SELECT k FROM a"}, "^query: 'a b' is no name of a query"),
        ({"x": "SELECT k FROM a", "X": "SELECT v FROM a"}, "^query: X is the name of another query"),
        ({"x": 5}, "^query x: 5 is no text"),
        ({"x": "SELECT k FROM a", "y": "SELECT q FROM a"}, "^query y: column q is missing"),
        ({"a": "SELECT k FROM a", "y": "SELECT k FROM a"}, "^query a: an input has this name, too; name the query otherwise"),
    ],
)
def test_what_is_no_mapping_of_queries(query: Any, words: str, tmp_path: Path) -> None:
    _inputs(tmp_path, 20)
    with pytest.raises(UserError, match=words):
        library.sql(query, a=tmp_path / "a.parquet", time="ts")


def test_command_lines_that_are_refused(swjoin: Any, tmp_path: Path) -> None:
    _inputs(tmp_path, 20)
    table = ["--table", f"a={tmp_path}/a.parquet:ts"]
    one, other = _written(tmp_path, "few", "fewer")
    (tmp_path / "a.sql").write_text(QUERIES["few"])
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "FEW.sql").write_text(QUERIES["few"])
    cases = [
        ([one, QUERIES["few"]], "SELECT k, v FROM a WHERE v < 10: one of 2 queries; write each into a file NAME.sql"),
        ([one, tmp_path / "more" / "FEW.sql"], "FEW is the name of another query; name each once"),
        ([one, tmp_path / "a.sql"], "query a: an input has this name, too"),
        ([one, other, "-o", "-"], "-o -: 2 queries have as many results, standard output is one"),
        ([one, other, "-o", "count", "--late", "side"], "--late side with -o count: give --report"),
    ]
    for words, problem in cases:
        out = [] if "-o" in words else ["-o", tmp_path / "o.parquet"]
        done = swjoin("query", *words, *table, *out)
        assert done.code == 2, words
        assert len(done.err) == 1
        assert problem in done.err[0]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"queries": [{"sql": "SELECT k FROM a"}, {"sql": "SELECT v FROM a"}]}, "queries.0: one of 2 queries has no name"),
        ({"queries": [{"name": "..", "sql": "SELECT k FROM a"}]}, "queries.0.name: '..' is no name of a query"),
        (
            {"sink": {"kind": "kafka", "kafka": {"servers": "localhost:1", "topic": "t"}}},
            "sink.kafka.topic: 10 queries have a topic each; write {query} where a query's name belongs",
        ),
        (
            {"serve": {"listen": "127.0.0.1:0"}, "cluster": {"sinks": 40}, "sink": {"kind": "parquet"}},
            "serve.listen: 10 queries at 40 sinks: each sink passes the rows of each query on",
        ),
    ],
)
def test_configurations_that_are_refused(more: dict[str, Any], problem: str, swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("run", _saved(tmp_path, **more), "--out", tmp_path / "out")
    assert done.code == 2, done.out
    assert len(done.err) == 1
    assert problem in done.err[0]
    assert not (tmp_path / "out").exists()


# ---------------------------------------------------------------- planted bugs


_HALF = "INTERVAL '30' SECOND"
CONSTANTS = {
    **{f"key_{k}": f"SELECT k, v FROM a WHERE k = {k}" for k in range(-1, 9)},
    **{f"twice_{k}": f"SELECT v, k + 1 AS k FROM a WHERE {k} = k" for k in range(4)},
    **{f"above_{v}": f"SELECT k, v FROM a WHERE v {'>' if v % 2 else '>='} {v}" for v in range(92, 102)},
    **{f"below_{v}": f"SELECT * FROM b WHERE v < {v} AND k <> 3" for v in range(0, 18, 2)},
    **{f"text_{k}": f"SELECT name, v FROM t WHERE name = 'name {k}'" for k in range(8)},
    **{f"joined_{k}": f"SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND {_NEAR} WHERE a.k = {k}" for k in range(8)},
    "hours": f"SELECT window_end, count(*) AS n FROM TUMBLE((SELECT * FROM a WHERE k = 2), ts, {_HALF}) GROUP BY window_end",
}


@pytest.mark.parametrize(
    ("kind", "most"), [("parquet", 5), ("count", 16_384), pytest.param("parquet", 16_384, marks=pytest.mark.drawn)]
)
def test_constants_that_differ(kind: str, most: int, monkeypatch: pytest.MonkeyPatch, swjoin: Any, tmp_path: Path) -> None:
    """Filters of many queries are searched together: each query has the rows that DuckDB finds."""
    monkeypatch.setattr(exchange, "PART_ROWS", most)  # also of rows that are projected together
    inputs = _inputs(tmp_path)
    table = pq.read_table(tmp_path / "a.parquet")
    names = pa.array([f"name {k}" if k < 30 else None for k in table["k"].to_pylist()]).dictionary_encode()
    pq.write_table(table.append_column("name", names), tmp_path / "t.parquet")
    inputs |= {"t": {"path": str(tmp_path / "t.parquet"), "time": "ts"}}
    queries = [{"name": name, "sql": sql} for name, sql in CONSTANTS.items()]
    path = tmp_path / "run.yaml"
    path.write_text(yaml.safe_dump({"queries": queries, "inputs": inputs, "sink": {"kind": kind, "ids": False}}))
    swjoin("run", path, "--out", tmp_path / "out")
    report = json.loads((tmp_path / "out" / "run.json").read_text())
    assert report["ledger"]["balanced"]
    counts = {query["name"]: query["count"] for query in report["queries"]}
    with duckdb.connect() as db:
        for name in "abt":
            db.sql(f"CREATE VIEW {name} AS SELECT * FROM '{tmp_path / name}.parquet'")
        for name, sql in CONSTANTS.items():
            plain = re.sub(
                r"window_end, count", "time_bucket(INTERVAL 30 SECOND, ts) + INTERVAL 30 SECOND AS window_end, count", sql
            )
            plain = re.sub(r"TUMBLE\((.*), ts, INTERVAL '30' SECOND\)", r"\1", plain)
            expected = Counter(db.sql(plain).fetchall())
            assert counts[name] == expected.total(), name
            if kind == "parquet":
                found = pq.ParquetDataset(tmp_path / "out" / "results" / name).read()
                assert Counter(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected, name
    assert sum(count == 0 for count in counts.values()) < 10


def test_a_row_that_fails_is_that_of_its_query(tmp_path: Path) -> None:
    """Rows of queries that differ in a constant are computed together."""
    table = pa.table({"k": np.arange(100) % 10, "v": np.arange(100), "ts": pa.array(np.arange(100), pa.timestamp("us"))})
    queries = {f"of_{k}": f"SELECT k, 1 % (v - 17) AS q FROM a WHERE k = {k}" for k in range(10)}
    steps = {query: plan for query, plan in queries.items() if query != "of_7"}
    assert sum(map(len, library.sql(steps, a=table, time="ts").values())) == 90
    with pytest.raises(RunFailed, match=r"row 17") as found:
        library.sql(queries, a=table, time="ts")
    alone = library.sql
    with pytest.raises(RunFailed) as expected:
        alone({"of_7": queries["of_7"]}, a=table, time="ts")
    assert str(found.value).split(", row")[1] == str(expected.value).split(", row")[1]


def test_rows_under_another_query_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """On their way to the sink."""
    _inputs(tmp_path)
    send = ResultOutlet._send

    def mixed_up(self: ResultOutlet, sink: int, chunk: Any) -> Any:
        if not chunk.final:
            object.__setattr__(chunk, "query", 1 - chunk.query)
        return send(self, sink, chunk)

    monkeypatch.setattr(ResultOutlet, "_send", mixed_up)
    with pytest.raises(RunFailed, match=r"produced .* pairs of query . with digest"):
        library.sql({name: QUERIES[name] for name in ("few", "both")}, **_files(tmp_path), time="ts", threads=1)


def test_rows_of_a_query_that_are_lost_are_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Before anything is counted: the ledger has what the stage produced."""
    _inputs(tmp_path)
    rows_for_sinks = StageInstance.rows_for_sinks
    monkeypatch.setattr(StageInstance, "rows_for_sinks", lambda self, pairs: rows_for_sinks(self, pairs)[:1])
    queries = {"near": QUERIES["near"], "sums": QUERIES["near"].replace("a.v AS x, b.v AS y", "a.v + b.v AS sum")}
    with pytest.raises(RunFailed, match=r"query sums: slaves produced .*, the collector collected 0"):
        library.sql(queries, **_files(tmp_path), time="ts")


def _files(folder: Path) -> dict[str, Path]:
    return {name: folder / f"{name}.parquet" for name in "ab"}


def test_spellings_that_differ_in_case_are_not_one() -> None:
    """Equal conditions of several queries are read once; texts in two cases, and numbers of two types, are not equal."""
    rows = pa.table({"t": [1, 2, 3], "s": ["x", "X", "y"], "n": [1, 2, 3]})
    conditions = {
        "small": "s = 'x'", "large": "s = 'X'", "quoted": "\"S\" = 'x'", "text": "CAST(n AS VARCHAR) = '1'", "number": "n = 1",
        "double": "n = 1.0", "again": "s = 'X'",
    }  # fmt: skip
    found = library.sql(
        {name: f"SELECT n FROM a WHERE {text}" for name, text in conditions.items()}, a=rows, time="t", time_unit="s"
    )
    wanted = {"small": [1], "large": [2], "quoted": [1], "text": [1], "number": [1], "double": [1], "again": [2]}
    assert {name: table["n"].to_pylist() for name, table in found.items()} == wanted


def test_a_chain_of_many_alternatives_is_planned() -> None:
    """What is kept of a condition is found without a frame of Python for each."""
    rows = pa.table({"t": list(range(20)), "n": list(range(20))})
    chain = " OR ".join(f"n = {number}" for number in range(10, 800))
    found = library.sql(f"SELECT n FROM a WHERE {chain}", a=rows, time="t", time_unit="s")
    assert sorted(found["n"].to_pylist()) == list(range(10, 20))
