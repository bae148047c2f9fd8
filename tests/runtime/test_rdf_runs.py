"""Runs of queries over RDF streams: while the streams go on, with queries that come and go, on ranks, and after a kill."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

import swjoin
from swjoin.core.errors import SwjoinError, UserError
from swjoin.duckdb.verify import verify
from swjoin.frontends.configured import job_of_query
from swjoin.frontends.rdf import live_planner
from swjoin.frontends.rdf.algebra import parse_query
from swjoin.frontends.rdf.live_planner import LivePlans, RdfStream
from swjoin.frontends.sql.planner import Table
from swjoin.runtime.in_process import run_local
from swjoin.runtime.query_requests import queries_of, request_change
from tests.runtime.test_query_changes import Running, started, wait_until
from tests.support.commands import command
from tests.support.limits import PROCESS_S

EX = "http://example.org/"
XSD = "http://www.w3.org/2001/XMLSchema#"
HEAD = f"PREFIX e: <{EX}> PREFIX xsd: <{XSD}>\n"
PAIRS = (
    HEAD
    + """SELECT ?one ?other ?room (?a + ?b AS ?sum) WHERE {
  STREAM e:readings [RANGE 20ms] { ?one e:value ?a } STREAM e:alarms [RANGE 100ms] { ?other e:level ?b }
  GRAPH e:rooms { ?one e:in ?room . ?other e:in ?room } FILTER(?a > 40 && ?one != ?other) }"""
)
HOT = HEAD + "SELECT ?s ?v WHERE { STREAM e:readings [NOW] { ?s e:value ?v } FILTER(?v >= 95) }"
MEANS = (
    HEAD
    + """SELECT ?room (AVG(?a) AS ?mean) (MAX(?a) AS ?most) (COUNT(*) AS ?n) WHERE {
  STREAM e:readings [RANGE 100ms SLIDE 50ms] { ?one e:value ?a } GRAPH e:rooms { ?one e:in ?room } } GROUP BY ?room"""
)
KINDS = HEAD + "SELECT DISTINCT ?s WHERE { STREAM e:alarms [RANGE 50ms] { ?s e:level ?v } }"
ALARMS = HEAD + """CONSTRUCT { ?s e:was ?v . ?s a e:Alarm } WHERE { STREAM e:alarms [RANGE 1ms] { ?s e:level ?v } }"""
NEAR, FAR = (
    HEAD
    + f"""SELECT ?one ?other ?b WHERE {{
  STREAM e:readings [RANGE {width}] {{ ?one e:value ?a . ?other e:value ?a }}
  STREAM e:alarms [RANGE 100ms] {{ ?one e:level ?b }} FILTER(?one != ?other) }}"""
    for width in ("20ms", "90ms")
)
EVER = (
    HEAD
    + """SELECT ?room (COUNT(?b) AS ?n) WHERE {
  STREAM e:alarms [ALL] { ?s e:level ?b } STREAM e:readings [NOW] { ?s e:value ?a } GRAPH e:rooms { ?s e:in ?room }
  FILTER(?a >= 90) } GROUP BY ?room"""
)
LATEST = (
    HEAD
    + """SELECT ?one ?room ?a ?b ?c WHERE {
  STREAM e:readings [TRIPLES 7] { ?one e:value ?a } STREAM e:alarms [TRIPLES 5] { ?one e:level ?b }
  STREAM e:alarms [RANGE 200ms] { ?one e:level ?c } GRAPH e:rooms { ?one e:in ?room } FILTER(?a >= 20) }"""
)
LAST = HEAD + "SELECT ?s ?v WHERE { STREAM e:readings [TRIPLES 1] { ?s e:value ?v } FILTER(?v >= 97) }"
ASKED_LATER = {"means": MEANS, "kinds": KINDS, "told": ALARMS, "near": NEAR, "far": FAR, "ever": EVER}
ASKED_LATER |= {"latest": LATEST, "last": LAST, "until": LATEST.replace("7", "9")}
CONFIG = f"""
queries:
  - name: pairs
    sparql: |
      {PAIRS.replace(chr(10), chr(10) + "      ")}
inputs:
  readings: {{watch: readings, time: at, schema: 'at: timestamp[us], s: string, p: string, o: string', iri: {EX}readings}}
  alarms: {{watch: alarms, time: at, schema: 'at: timestamp[us], s: string, p: string, o: string', iri: {EX}alarms}}
  rooms: {{path: rooms.parquet, iri: {EX}rooms}}
cluster: {{distribution_epoch: 20ms, partition_count: 7}}
checkpoint: {{epochs: 2}}
"""


class Sensors:
    """Two watched directories of triples, which get a file each for every second of stream time, and rooms of sensors, of which
    some are told twice."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.seconds = folder, 0
        self._random = np.random.default_rng(11)
        self._triples: dict[str, list[pa.Table]] = {"readings": [], "alarms": []}
        for name in self._triples:
            (folder / name).mkdir()
        rows = [(f"<{EX}s{i}>", f"<{EX}in>", f"<{EX}room{i % 4}>") for i in (*range(20), 3, 4)]
        self.rooms = pa.table([list(column) for column in zip(*rows, strict=True)], ["s", "p", "o"])
        pq.write_table(self.rooms, folder / "rooms.parquet")

    def write(self) -> None:
        for name, predicate, count in (("readings", "value", 300), ("alarms", "level", 60)):
            random = self._random
            ts = np.sort(random.integers(0, 1_000_000, count)) + self.seconds * 1_000_000
            halves = name == "alarms"  # MAX of numbers of several types has the widest in a run
            values = [f"{v}.5" if halves and v % 3 else str(v) for v in random.integers(0, 100, count)]
            kinds = ["decimal" if "." in value else "integer" for value in values]
            objects = [f'"{value}"^^<{XSD}{kind}>' for value, kind in zip(values, kinds, strict=True)]
            objects[7] = "no term"
            subjects = [f"<{EX}s{i}>" for i in random.integers(0, 20, count)]
            predicates = [f"<{EX}{predicate}>"] * count
            table = pa.table([pa.array(ts, pa.timestamp("us")), subjects, predicates, objects], ["at", "s", "p", "o"])
            path = self.folder / name / f"{self.seconds:03d}.parquet"
            pq.write_table(table, path.with_suffix(".tmp"))
            path.with_suffix(".tmp").rename(path)
            self._triples[name].append(table)
        self.seconds += 1

    def end(self) -> None:
        for name in self._triples:
            (self.folder / name / "_END").touch()

    def streams(self, from_us: int, until_us: int = 1 << 60) -> dict[str, pa.Table]:
        """All triples with times from a time on, and before another one."""
        found = {}
        for name, tables in self._triples.items():
            whole = pa.concat_tables(tables)
            ts = whole["at"].cast(pa.int64()).to_numpy()
            found[EX + name] = whole.rename_columns(["ts", "s", "p", "o"]).filter(pa.array((ts >= from_us) & (ts < until_us)))
        return found

    def config(self, cluster: str = "") -> Path:
        """cluster: more of the section."""
        path = self.folder / "run.yaml"
        path.write_text(CONFIG.replace("partition_count: 7", f"partition_count: 7{cluster}"))
        return path


@pytest.fixture
def sensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Sensors:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("swjoin.frontends.rdf.batch_functions._malformed", {})  # those that were logged
    return Sensors(tmp_path)


def rows_of(run_dir: Path, query: str) -> Counter[tuple[Any, ...]]:
    table = pa.concat_tables(pq.read_table(path) for path in sorted((run_dir / "results" / query).glob("*.parquet")))
    table = table.drop_columns(["row_id", "row_ts"])
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def check(sensors: Sensors, run_dir: Path, asked: Mapping[str, tuple[str, int] | tuple[str, int, int]]) -> None:
    """Rows and digest of each query are those of `swjoin rdf` over the triples from a time on, and before another, if given."""
    said = {query["name"]: query for query in json.loads((run_dir / "run.json").read_text())["queries"]}
    for name, (text, *times_us) in asked.items():
        alone = swjoin.rdf(text, sensors.streams(*times_us), static={f"{EX}rooms": sensors.rooms}, memory="1GB")
        assert rows_of(run_dir, name) == Counter(zip(*(c.to_pylist() for c in alone.columns), strict=True)), name
        assert alone.num_rows
        proof = swjoin.proof(alone)
        assert (said[name]["count"], said[name]["digest"]) == (proof.count, proof.digest), name


def test_queries_come_and_go(sensors: Sensors, caplog: pytest.LogCaptureFixture) -> None:
    sensors.write()
    run = Running(sensors)
    run.reached(500_000)
    hot_us = swjoin.Run(run.dir).query(HOT, "hot")
    sensors.write()
    run.reached(1_500_000)
    more_us = request_change(run.dir, ASKED_LATER, (), PROCESS_S)
    sensors.write()
    run.reached(2_500_000)
    end_us = request_change(run.dir, {}, ("pairs", "far", "near", "until"), PROCESS_S)
    sensors.write()
    sensors.end()
    assert run.end()["ledger"]["balanced"]
    asked = {"pairs": (PAIRS, 0, end_us), "hot": (HOT, hot_us), **{n: (text, more_us) for n, text in ASKED_LATER.items()}}
    asked |= {name: (ASKED_LATER[name], more_us, end_us) for name in ("far", "near", "until")}
    check(sensors, run.dir, asked)
    assert "no term: the object is no IRI, no blank node and no literal; such triples are in no answer" in caplog.text


@pytest.mark.mpi
@pytest.mark.drawn
@pytest.mark.parametrize("kills", [False, pytest.param(True, marks=pytest.mark.long)])
def test_on_ranks(sensors: Sensors, kills: bool) -> None:
    sensors.write()
    path = sensors.config(", sinks: 2, strategy: operator" if kills else ", sinks: 2")
    with started(sensors, str(path), "--out", "run", "-n", "5") as run:
        wait_until(Path("run"), 500_000)
        (sensors.folder / "hot.rq").write_text(HOT)
        added = command("queries", sensors.folder / "run", "add", sensors.folder / "hot.rq")
        assert added.stdout.startswith("hot: rows with times from 1970-01-01 00:00:0"), added.stderr
        sensors.write()
        wait_until(Path("run"), 1_500_000)
        if kills:
            run.kill([3])
            sensors.write()
            wait_until(Path("run"), 2_500_000)
        more_us = request_change(Path("run"), ASKED_LATER, (), PROCESS_S)
        sensors.write()
        sensors.end()
        assert run.end(PROCESS_S) == 0, (sensors.folder / "log").read_text()
    hot_us = next(since for name, since, _ in queries_of(Path("run")) if name == "hot")
    assert hot_us is not None
    asked = {"pairs": (PAIRS, 0), "hot": (HOT, hot_us)}
    check(sensors, Path("run"), asked | {name: (text, more_us) for name, text in ASKED_LATER.items()})


def test_verify_recomputes_queries_over_files(sensors: Sensors, swjoin: Any) -> None:
    for _ in range(2):
        sensors.write()
    plain = yaml.safe_load(CONFIG)
    plain |= {"queries": [{"name": name, "sparql": text} for name, text in {"pairs": PAIRS, "hot": HOT, **ASKED_LATER}.items()]}
    for name in ("readings", "alarms"):
        plain["inputs"][name] = {"path": str(sensors.folder / name / "*.parquet"), "time": "at", "iri": EX + name}
    plain["inputs"]["readings"]["malformed"] = "side"
    plain["cluster"] |= {"gateways": 2, "sinks": 2}
    rooms = sensors.folder / "rooms.nt"  # with copies, as in the table
    rooms.write_text("".join(f"{' '.join(row.values())} .\n" for row in sensors.rooms.to_pylist()))
    plain["inputs"]["rooms"]["path"] = str(rooms)
    Path("run.yaml").write_text(yaml.safe_dump(plain))
    done = swjoin("run", "run.yaml", "--out", "run")
    assert done.code == 0, done.err
    check(sensors, Path("run"), {"pairs": (PAIRS, 0), "hot": (HOT, 0), **{n: (text, 0) for n, text in ASKED_LATER.items()}})
    kept = rows_of(Path("run"), "malformed.readings")
    assert kept == malformed(sensors.streams(0)[EX + "readings"])
    assert kept.total() == 2
    done = swjoin("verify", "run")
    assert done.out.splitlines()[-1] == "equal", done.err
    files = sorted(Path("run/results/hot").glob("*.parquet"))
    table = pq.read_table(files[0])
    pq.write_table(table.slice(1), files[0])
    assert swjoin("verify", "run").code == 1


def malformed(triples: pa.Table) -> Counter[tuple[Any, ...]]:
    """As the query of an input's malformed triples has them."""
    rows = [tuple(row.values()) for row in triples.to_pylist() if row["o"] == "no term"]
    return Counter((ts, f"{s} {p} {o}", "the object is no IRI, no blank node and no literal") for ts, s, p, o in rows)


def test_malformed_triples_that_are_kept_need_a_name(sensors: Sensors) -> None:
    sensors.write()
    plain = yaml.safe_load(CONFIG)
    plain["inputs"]["readings"]["malformed"] = "side"
    for name, problem in (
        (
            "malformed.readings",
            r"inputs\.readings\.malformed: malformed\.readings is the name of another query; name each once.*",
        ),
        (None, r"inputs\.readings\.malformed: side: the query has no name; write name: NAME, as malformed triples have .*"),
    ):
        plain["queries"] = [{"sparql": PAIRS} | ({"name": name} if name else {})]
        with pytest.raises(UserError, match=problem):
            job_of_query(plain, "c", "test")
    plain["queries"] = [{"name": "pairs", "sparql": PAIRS}]
    assert [query["name"] for query in _results(plain)] == ["pairs", "malformed.readings"]
    plain["inputs"]["rooms"]["malformed"] = "side"
    with pytest.raises(UserError, match=r"inputs\.rooms\.malformed: side is for streams; leave it out, or write error"):
        job_of_query(plain, "c", "test")


def _results(plain: dict[str, Any]) -> list[dict[str, Any]]:
    job = job_of_query(plain, "c", "test")
    assert job.plan is not None
    return [node for node in job.plan["nodes"] if node["kind"] == "result"]


REFUSED = {
    "no such stream": (
        HOT.replace("readings", "reading"),
        r"STREAM <.*/reading>: no input of the run has this IRI; .*readings.*",
    ),
    "no such graph": (
        PAIRS.replace("e:rooms", "e:room"),
        r"GRAPH <.*/room>: no static graph of the run has this IRI; .*rooms.*",
    ),
    "groups over a window of triples": (
        HEAD + "SELECT (COUNT(*) AS ?n) WHERE { STREAM e:readings [TRIPLES 3] { ?s e:value ?v } }",
        r"groups over a window \[TRIPLES 3\]: not supported in a run; .*",
    ),
    "different rows over a window of triples": (
        HEAD + "SELECT DISTINCT ?s WHERE { STREAM e:readings [TRIPLES 3] { ?s e:value ?v } }",
        r"DISTINCT over a window \[TRIPLES 3\]: not supported in a run; .*",
    ),
    "windows of triples and boundaries": (
        HEAD
        + """SELECT ?s ?w WHERE { STREAM e:readings [TRIPLES 3] { ?s e:value ?v }
        STREAM e:readings [RANGE 1m TUMBLING] { ?s e:value ?w } }""",
        r"windows \[TRIPLES 3\] and \[RANGE 1min SLIDE 1min\] in one query: not supported in a run; .*",
    ),
    "a blank node that is made": (
        ALARMS.replace("a e:Alarm", "e:of [] "),
        r"CONSTRUCT of blank nodes is not supported in a run; .*",
    ),
    "values that may be equal": (
        HEAD + "SELECT (SUM(DISTINCT ?v) AS ?n) WHERE { STREAM e:readings [NOW] { ?s e:value ?v } }",
        r"SUM\(DISTINCT \?v\): .*",
    ),
    "an integer beyond those that are exact": (
        HOT.replace("95", str(2**53 + 1)),
        r".*9007199254740993.*: an integer beyond 2\^53.*",
    ),
    "a syntax error": (HOT.replace("FILTER(", "FILTER(("), r".*line 2.*"),
    "SQL over an unknown table": ("SELECT s FROM reading", r".*reading.*"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_refused(case: str, sensors: Sensors) -> None:
    text, line = REFUSED[case]
    plain = yaml.safe_load(CONFIG)
    plain["queries"] = [{"name": "q", "sql" if case.startswith("SQL") else "sparql": text}]
    with pytest.raises(UserError) as refused:
        job_of_query(plain, "run.yaml", "test")
    assert re.fullmatch(f"queries.0.(sparql|sql): {line}", str(refused.value)), str(refused.value)


INPUTS: dict[str, tuple[dict[str, Any], str]] = {
    "no column of terms": (
        {"schema": "at: timestamp[us], s: string, p: string"},
        r"input readings, <.*>: column o is missing; .*",
    ),
    "codes": ({"schema": "at: timestamp[us], s: int64, p: string, o: string"}, r"input readings, <.*>: column s is int64; .*"),
    "nanoseconds": (
        {"schema": "at: timestamp[ns], s: string, p: string, o: string"},
        r"input readings, <.*>: times of nanoseconds; .*",
    ),
    "times with a zone": (
        {"schema": "at: timestamp[us, tz=UTC], s: string, p: string, o: string"},
        r"input readings has times with a zone, input alarms times without; give both one kind",
    ),
    "local times": ({"assume_timezone": "Asia/Tokyo"}, r"inputs.readings: .*times of RDF streams have a zone, or are UTC"),
    "a relative IRI": ({"iri": "readings"}, r"inputs.readings: .*iri readings is no absolute IRI"),
    "the IRI of another": (
        {"iri": f"{EX}alarms"},
        r"inputs.alarms: input readings is <.*alarms>, too; give each an IRI of its own",
    ),
}


@pytest.mark.parametrize("case", INPUTS)
def test_inputs_that_are_no_streams_of_triples(case: str, sensors: Sensors) -> None:
    given, line = INPUTS[case]
    plain = yaml.safe_load(CONFIG)
    plain["inputs"]["readings"] |= given
    with pytest.raises(UserError) as refused:
        job_of_query(plain, "run.yaml", "test")
    assert re.fullmatch(f"(queries.0.sparql: )?{line}", str(refused.value)), str(refused.value)


def test_queries_in_both_languages(sensors: Sensors) -> None:
    """SQL reads the same inputs; a configuration with both keys, or functions of SPARQL, is refused."""
    sensors.write()
    sensors.end()
    plain = yaml.safe_load(CONFIG)
    plain["queries"].append({"name": "rows", "sql": "SELECT at, s FROM readings WHERE o = 'no term'"})
    job = job_of_query(plain, "run.yaml", "test")
    job = replace(job, target=Path("run/results"), directory=True, run_dir=Path("run"))
    Path("run").mkdir()
    report = run_local(job, False, 2)
    assert {query["name"]: query["count"] for query in report["queries"]}["rows"] == 1
    check(sensors, Path("run"), {"pairs": (PAIRS, 0)})
    for wrong in ({"sql": "SELECT s FROM readings"}, {"functions": {}}):
        plain["queries"] = [{"name": "q", "sparql": HOT, **wrong}]
        with pytest.raises(UserError, match=r"queries\.0: .* is no query; write sql:, or sparql:, and its text"):
            job_of_query(plain, "run.yaml", "test")


ADDED = {
    "a stream that is not read": (KINDS, "<.*alarms>: no query of the run reads it; read are <.*readings>; .*"),
    "a graph that is not read": (PAIRS.replace("alarms", "readings"), "<.*rooms>: no query of the run reads it; .*"),
    "a graph without a name": (
        HEAD + "SELECT ?s ?r { STREAM e:readings [NOW] { ?s e:value ?v } ?s e:in ?r }",
        "triples outside of STREAM, in a query that is added to a run; name their graph by GRAPH .*",
    ),
    "a column of ids": (HOT.replace("?v", "?row_id"), "q: its column row_id has the name that rows' ids have in files; .*"),
    "SQL with braces": ("SELECT s FROM reading -- {this}", "q: .*reading.*"),
}


@pytest.fixture(scope="module")
def open_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A run that goes on with the query HOT alone."""
    folder = tmp_path_factory.mktemp("open")
    with pytest.MonkeyPatch.context() as patched:
        patched.chdir(folder)
        sensors = Sensors(folder)
        sensors.write()
        path = sensors.config()
        plain = yaml.safe_load(path.read_text())
        plain["queries"] = [{"name": "hot", "sparql": HOT}]
        with pytest.MonkeyPatch.context() as of_config:
            of_config.setattr("tests.runtime.test_rdf_runs.CONFIG", yaml.safe_dump(plain))
            run = Running(sensors)
        run.reached(500_000)
        yield run.dir
        sensors.end()
        assert run.end()["complete"]


@pytest.mark.parametrize("case", ADDED)
def test_what_cannot_be_added_is_refused_and_the_run_goes_on(case: str, open_run: Path) -> None:
    text, line = ADDED[case]
    with pytest.raises(UserError) as refused:
        request_change(open_run, {"q": text}, (), PROCESS_S)
    assert re.fullmatch(line if line.startswith("q: ") else f"q: {line}", str(refused.value)), str(refused.value)
    assert [name for name, _, _ in queries_of(open_run)] == ["hot"]


@pytest.mark.parametrize("name", ["answer", *(pytest.param(name, marks=pytest.mark.drawn) for name in ("result", "terms"))])
def test_any_names(name: str, sensors: Sensors) -> None:
    """Those of the plan's nodes and columns, and two that differ in case only."""
    for _ in range(2):
        sensors.write()
    sensors.end()
    text = PAIRS.replace("?room", "?ONE").replace("?sum", "?Born")
    plain = yaml.safe_load(CONFIG)
    for input_name, given in (("readings", name), ("rooms", "select 1")):
        plain["inputs"][given] = plain["inputs"].pop(input_name)
    plain["inputs"][name] = {"path": str(sensors.folder / "readings" / "*.parquet"), "time": "at", "iri": f"{EX}readings"}
    plain["inputs"]["alarms"] = {"path": str(sensors.folder / "alarms" / "*.parquet"), "time": "at", "iri": f"{EX}alarms"}
    plain["queries"] = [{"name": "groups", "sparql": text}, {"name": "q", "sparql": KINDS}]
    run_dir = Path(f"of {name}")
    run_dir.mkdir()
    job = replace(job_of_query(plain, "run.yaml", "test"), target=run_dir / "results", directory=True, run_dir=run_dir)
    run_local(job, False, 2)
    check(sensors, run_dir, {"groups": (text, 0), "q": (KINDS, 0)})
    assert verify(run_dir).equal


SHAPES = {  # with how many plans are made, as constants of filters are in a shape
    "SELECT ?s {{ STREAM e:readings [RANGE 5ms] {{ ?s e:value {0} . ?s {1} {0} }} }}": 1,
    "CONSTRUCT {{ ?s {1} {0} }} {{ STREAM e:readings [RANGE 5ms] {{ {1} e:value ?s }} GRAPH e:rooms {{ ?s ?p {0} }} }}": 1,
    "SELECT (COUNT(?s) AS ?n) {{ STREAM e:readings [RANGE 9ms SLIDE 3ms] {{ ?s {1} {0} }} FILTER(?s != {1}) }}": 2,
}
TERMS = ('"a"', '"it\'s"', r'"\"q\" \\"', "<http://example.org/a>", '"v9"', "'v1_num'")


@pytest.mark.parametrize("shape", SHAPES)
def test_plans_of_one_shape_are_made_once(shape: str, sensors: Sensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """They are those of each query alone."""
    columns = tuple((name, "timestamp[us]" if name == "at" else "string") for name in ("at", "s", "p", "o"))
    streams = {f"{EX}readings": RdfStream("readings", Table(columns, "at"), 1)}
    streams[f"{EX}rooms"] = RdfStream("rooms", Table(columns[1:], None), 2)
    made = Mock(wraps=live_planner._planned)
    monkeypatch.setattr(live_planner, "_planned", made)
    plans = LivePlans(streams)
    asked = [HEAD + shape.format(one, two) for one in TERMS for two in ("<http://example.org/p>", "e:q")]
    found = [plans.plans({"q": text})["q"] for text in asked]
    assert made.call_count == SHAPES[shape]
    assert [plan.nodes for plan in found] == [live_planner._planned(parse_query(text), streams).nodes for text in asked]


def test_queries_within_the_windows_of_another_have_its_plan(sensors: Sensors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also those that cross each other; names and order of queries do not matter."""
    columns = tuple((name, "timestamp[us]" if name == "at" else "string") for name in ("at", "s", "p", "o"))
    streams = {f"{EX}{name}": RdfStream(name, Table(columns, "at"), i) for i, name in enumerate(("readings", "alarms"))}
    made = Mock(wraps=live_planner._planned)
    monkeypatch.setattr(live_planner, "_planned", made)
    text = HEAD + "SELECT ?s {{ STREAM e:readings [{0}] {{ ?s e:p ?x ; e:q ?y }} STREAM e:alarms [{1}] {{ ?s e:r ?z }} }}"
    widths = {"a": (9, 9), "b": (3, 1), "c": (1, 3), "d": (2, 2), "e": (1, 10)}
    texts = {name: text.format(*(f"RANGE {width}s" for width in of)) for name, of in widths.items()}
    found = LivePlans(streams).plans(texts)
    assert made.call_count == 2, "e is in no other's windows"
    assert list(found) == list(texts)
    again = LivePlans(streams).plans(dict(reversed(texts.items())))
    assert {name: plan.nodes for name, plan in again.items()} == {name: plan.nodes for name, plan in found.items()}
    made.reset_mock()
    LivePlans(streams).plans({f"q{i}": text.format("ALL", f"RANGE {i}s") for i in range(1, 5)})
    assert made.call_count == 1, "one block is the same in all"


def test_times_beyond_those_of_windows_end_the_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    query = {"name": "q", "sparql": HEAD + "SELECT * { STREAM e:a [ALL] { ?s e:p ?o } STREAM e:b [ALL] { ?s e:q ?x } }"}
    for most, rows in ((2**58, 1), (2**58 + 1, 0)):
        inputs = {}
        for name, predicate, ts in (("a", "p", -most), ("b", "q", most)):
            table = pa.table({"ts": [ts], "s": [f"<{EX}s>"], "p": [f"<{EX}{predicate}>"], "o": ['"1"']})
            pq.write_table(table, f"{name}.parquet")
            inputs[name] = {"path": f"{name}.parquet", "time": "ts", "time_unit": "us", "iri": EX + name}
        job = job_of_query({"queries": [query], "inputs": inputs, "sink": {"kind": "count"}}, "c", "test")
        if rows:
            assert run_local(job, False, 1)["queries"][0]["count"] == rows
        else:
            with pytest.raises(
                SwjoinError, match=r"a triple of time -?2882\d+; times of RDF streams are from -2\^58 to 2\^58 us"
            ):
                run_local(job, False, 1)


def test_texts_that_look_like_names_of_columns(sensors: Sensors) -> None:
    sensors.write()
    sensors.end()
    text = (
        HEAD
        + """SELECT ?s ("v9" AS ?x) (IF(?v > 50, "v1_num", "it's \\"v0\\"") AS ?y) WHERE {
      STREAM e:readings [NOW] { ?s e:value ?v } FILTER(?s != "v7" && !sameTerm(?v, "v0")) }"""
    )
    plain = yaml.safe_load(CONFIG)
    plain["queries"] = [{"name": "q", "sparql": text}]
    job = replace(job_of_query(plain, "c", "test"), target=Path("run/results"), directory=True, run_dir=Path("run"))
    Path("run").mkdir()
    run_local(job, False, 1)
    check(sensors, Path("run"), {"q": (text, 0)})


def test_a_malformed_triple_may_end_the_run(sensors: Sensors) -> None:
    sensors.write()
    sensors.end()
    plain = yaml.safe_load(CONFIG)
    plain["inputs"]["alarms"]["malformed"] = "error"
    job = replace(job_of_query(plain, "c", "test"), target=Path("run/results"), directory=True, run_dir=Path("run"))
    Path("run").mkdir()
    with pytest.raises(SwjoinError, match="no term: the object is no IRI, no blank node and no literal; mend it"):
        run_local(job, False, 1)
    del plain["inputs"]["alarms"]["iri"]
    with pytest.raises(UserError, match=r"inputs\.alarms: .*malformed is for RDF streams; write their iri"):
        job_of_query(plain, "c", "test")


LARGE = 2**53 - 1
COMPUTED = {
    "SELECT (SUM(?v) AS ?x)": "9007199254740992, computed: a number beyond 2^53",
    "SELECT (?v * ?v AS ?x)": "computed: a number beyond 2^53",
    "SELECT (?v - 1 AS ?x)": "",
    "SELECT (?v + 0.5 AS ?x)": "",
}


@pytest.mark.parametrize("head", COMPUTED)
def test_integers_are_exact_or_refused(head: str, sensors: Sensors) -> None:
    terms = {"s": [f"<{EX}s1>"] * 2, "p": [f"<{EX}value>"] * 2, "o": [f'"{v}"^^<{XSD}integer>' for v in (LARGE, 2)]}
    pq.write_table(pa.table({"at": pa.array([0, 5], pa.timestamp("us")), **terms}), sensors.folder / "large.parquet")
    plain = yaml.safe_load(CONFIG)
    plain["inputs"] = {"readings": {"path": "large.parquet", "time": "at", "iri": f"{EX}readings"}}
    text = f"{HEAD}{head} {{ STREAM e:readings [RANGE 1s] {{ ?s e:value ?v }} }}"
    plain["queries"] = [{"name": "q", "sparql": text}]
    run_dir = Path("run")
    run_dir.mkdir()
    job = replace(job_of_query(plain, "run.yaml", "test"), target=run_dir / "results", directory=True, run_dir=run_dir)
    if line := COMPUTED[head]:
        with pytest.raises(SwjoinError, match=re.escape(line)):
            run_local(job, False, 1)
        return
    run_local(job, False, 1)
    alone = swjoin.rdf(text, {f"{EX}readings": pq.read_table("large.parquet").rename_columns(["ts", "s", "p", "o"])})
    assert rows_of(run_dir, "q") == Counter(zip(*(c.to_pylist() for c in alone.columns), strict=True))
