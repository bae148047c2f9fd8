"""SQL queries over files: rows are DuckDB's, in process and on ranks; what is not supported gets one line."""

from __future__ import annotations

import json
import re
import shlex
import warnings
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as swjoin_api
from benchmarks.duckdb_text import in_duckdb
from swjoin.config.connectors import StreamConfig
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import format_digest
from swjoin.core.row_digests import row_hashes
from swjoin.duckdb.verify import verify
from swjoin.frontends.sql.planner import Table, plan_query
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.queries import query_job, run_query
from tests.support.ranks import run_jobs
from tests.tools.plan_oracle import row_hash, words_of
from tests.tools.random_queries import random_inputs, random_query

Inputs = dict[str, StreamConfig]
DOCUMENT = (ROOT / "docs" / "queries.md").read_text()
EXAMPLES = re.findall(r"```sql\n(.*?)```", DOCUMENT, re.DOTALL)
HOUR_US = 3_600_000_000


@pytest.fixture(scope="module")
def trips(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """The tables of docs/queries.md."""
    folder, random, n = tmp_path_factory.mktemp("trips"), np.random.default_rng(1), 400

    def some(values: list[Any]) -> list[Any]:
        return [None if random.random() < 0.05 else values[int(random.integers(len(values)))] for _ in range(n)]

    def times(unit_us: int) -> np.ndarray[Any, Any]:
        begin = int(np.datetime64("2026-01-01", "us").astype(int))
        return np.sort(begin + random.integers(0, 6 * HOUR_US, n)) // unit_us

    users = pa.array(some(list(range(8))), pa.int64())
    tables = {
        "trips": {
            "user": users,
            "started": pa.array(times(1), pa.timestamp("us")),
            "km": np.round(random.exponential(4, n), 2),
        },
        "payments": {"user": users.take(random.permutation(n)), "paid": pa.array(times(1), pa.timestamp("us"))},
        "alerts": {"user": users, "raised": pa.array(times(1000)), "level": some(["low", "high", "huge"])},
    }
    tables["trips"]["city"] = some(["Ulm", "Bonn", "Köln"])
    tables["payments"] |= {"eur": np.round(random.exponential(9, n), 2), "method": some(["cash", "card"])}
    tables["cities"] = {"name": ["Ulm", "Bonn", "Köln", "Köln", None], "country": ["BW", "NW", "NW", "50", "-"]}
    tables["cities"]["people"] = [126_000, 330_000, 1_085_000, 90_000, None]
    found = {}
    streams = ("trips", "started", None), ("payments", "paid", None), ("alerts", "raised", "ms")
    for name, time, unit in (*streams, ("cities", "", None)):
        pq.write_table(pa.table(tables[name]), folder / f"{name}.parquet", row_group_size=60)
        found[name] = StreamConfig(str(folder / f"{name}.parquet"), (), time, unit)  # type: ignore[arg-type]
    return found


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return random_inputs(tmp_path_factory.mktemp("streams"))


def expected(inputs: Inputs, text: str) -> Counter[tuple[Any, ...]]:
    """DuckDB's rows; there, integers that are times have to be made timestamps by hand."""
    with duckdb.connect() as db:
        for name, config in inputs.items():
            columns = "* REPLACE (make_timestamp(raised * 1000) AS raised)" if name == "alerts" else "*"
            db.execute(f"CREATE VIEW {name} AS SELECT {columns} FROM read_parquet('{config.path}')")
        found = db.execute(_without_asof(in_duckdb(text)))
        at = [i for i, column in enumerate(found.description or ()) if column[0] == "raised"]
        rows = found.fetchall()
    micros = lambda value: None if value is None else int(np.datetime64(value, "ms").astype(int))  # noqa: E731
    return Counter(tuple(micros(v) if i in at else v for i, v in enumerate(row)) for row in rows)


def _without_asof(text: str) -> str:
    """DuckDB's own ASOF JOIN has no second bound of time."""
    latest = r"(SELECT * FROM payments p WHERE \1 ORDER BY p.paid DESC LIMIT 1) p ON true"
    return re.sub(r"(?s)ASOF LEFT JOIN payments (?:AS )?p\s+ON (.*?)\s*$", f"LEFT JOIN LATERAL {latest}", text)


def _shortened(rows: Counter[tuple[Any, ...]]) -> Counter[tuple[Any, ...]]:
    """Without the last digits of doubles: DuckDB's sums are not exact. `verify` compares whole doubles with exact sums."""
    found: Counter[tuple[Any, ...]] = Counter()
    for row, count in rows.items():
        found[tuple(float(f"{v:.12g}") if isinstance(v, float) else v for v in row)] += count
    return found


# ---------------------------------------------------------------- right answers


@pytest.mark.parametrize("text", EXAMPLES, ids=[text.split("\n")[0][:40] for text in EXAMPLES])
def test_the_examples_of_the_document(text: str, trips: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(text, trips, tmp_path)
    assert _shortened(rows) == _shortened(expected(trips, text))
    assert len(rows) > 5
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert report["results"]["count"] == sum(rows.values())
    assert verify(tmp_path).lines()[-1] == "equal"


def test_the_commands_of_the_document(trips: Inputs, swjoin: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("trips", "payments"):
        csv.write_csv(pq.read_table(str(trips[name].path)), tmp_path / f"{name}.csv")
    commands = re.findall(r"```sh\n(.*?)```", DOCUMENT, re.DOTALL)
    assert len(commands) == 2
    for command in reversed(commands):
        program, *argv = shlex.split(command.replace("\\\n", " "))
        assert program == "swjoin"
        done = swjoin(*argv)
        assert done.code == 0, done.err
    found = pq.read_table(tmp_path / "paid.parquet")
    assert Counter(zip(*(column.to_pylist() for column in found.columns), strict=True)) == expected(trips, argv[1])


def test_the_document_has_an_example_of_every_clause() -> None:
    assert len(EXAMPLES) >= 9
    for word in (
        "TUMBLE(",
        "HOP(",
        "HAVING",
        "FILTER",
        "DISTINCT",
        "DESCRIPTOR",
        "WHERE",
        "LEFT JOIN",
        "ANTI JOIN",
        "UNION ALL",
        "WITH",
        "CASE",
        "EXTRACT",
        "FROM (SELECT",
        "trips r",
    ):
        assert any(word in text or word in text.replace("JOIN (SELECT", "FROM (SELECT") for text in EXAMPLES), word


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_the_same_rows_and_digests(trips: Inputs, tmp_path: Path) -> None:
    cluster = {"epoch_tuples": 150, "partition_count": 7, "gateways": 2, "sinks": 2}
    jobs = []
    for i, text in enumerate(EXAMPLES):  # one sink alone sorts
        jobs.append(query_job(text, trips, tmp_path / str(i), cluster=cluster | ({"sinks": 1} if "LIMIT" in text else {})))
    counted = query_job(EXAMPLES[-1], trips, tmp_path / "counted", "count")
    run_jobs(5, [*jobs, counted], tmp_path)
    for text, job in zip(EXAMPLES, jobs, strict=True):
        assert _shortened(rows_of(job)) == _shortened(expected(trips, text))
        report = report_of(job)
        assert report["ledger"]["balanced"]
        rows, local = run_query(text, trips, tmp_path / f"{job.run_id}")
        assert report["results"]["digest"] == local["results"]["digest"]
        assert report["results"]["count"] == sum(rows.values())
    assert report_of(counted)["results"]["digest"] == report_of(jobs[-1])["results"]["digest"]


MS = "INTERVAL 9 MILLISECOND"
BY_HAND = [
    "SELECT 5 AS n, 'x' AS s, true AS t FROM a",
    "SELECT 1 AS o FROM a WHERE 1 = 2 UNION ALL SELECT v FROM b",
    "WITH u AS (SELECT 1 AS o, k FROM a) SELECT o FROM u",
    "SELECT v FROM a WHERE " + " AND ".join(f"v <> {3 * i}" for i in range(300)),
    "SELECT k, v FROM a UNION ALL SELECT CAST(k AS SMALLINT) AS k, v * 0.5 FROM b",
    'SELECT q.v, "q.r".v AS w FROM a q JOIN b "q.r" ON q.k = "q.r".k AND "q.r".ts = q.ts + INTERVAL 1 MILLISECOND',
    f"SELECT q.g AS n, r.g AS s FROM (SELECT k AS g, ts FROM a) q JOIN (SELECT x AS g, k, ts FROM b) r ON q.g = r.k AND r.ts "
    f"BETWEEN q.ts AND q.ts + {MS}",
    f"SELECT a.v, left_a.v AS w FROM a JOIN b left_a ON a.k = left_a.k AND left_a.ts BETWEEN a.ts AND a.ts + {MS} AND "
    f"a.v + 55 < left_a.v JOIN c ON c.k = left_a.k AND c.ts BETWEEN left_a.ts AND left_a.ts + {MS}",
    f"SELECT a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + {MS} AND a.v / (b.v - 380) > 1",
    "SELECT CAST(v AS DECIMAL(5, 1)) / 10 AS d FROM a WHERE CAST(v AS DECIMAL(9, 1)) * 0.1::DECIMAL(2, 1) = 0.3",
    "SELECT ts::TIMESTAMP_NS AS t, v FROM a UNION ALL SELECT ts, v FROM b",
]


@pytest.mark.parametrize("text", BY_HAND, ids=[text[:60] for text in BY_HAND])
def test_what_once_was_wrong(text: str, streams: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(text, streams, tmp_path)
    wanted = duckdb_rows(streams, text)
    assert sum(rows.values()) == sum(wanted.values())
    if "TIMESTAMP_NS" not in text:  # Python's datetime has no nanoseconds
        assert rows == wanted
    assert report["ledger"]["balanced"]
    assert verify(tmp_path).equal


def test_times_of_different_units_are_united_as_timestamps(tmp_path: Path) -> None:
    begin = 1_767_225_600
    tables = {"m": ("ms", [begin * 1000 + 5, begin * 1000 + 1500]), "s": ("s", [begin, begin + 1])}
    inputs: Inputs = {}
    for name, (unit, times) in tables.items():
        pq.write_table(pa.table({"at": times, "v": [1, 2]}), tmp_path / f"{name}.parquet")
        inputs[name] = StreamConfig(str(tmp_path / f"{name}.parquet"), (), "at", unit)  # type: ignore[arg-type]
    union = "SELECT at, v FROM m UNION ALL SELECT at, v FROM s"
    rows, _ = run_query(f"SELECT date_trunc('second', at)::VARCHAR AS sec, v FROM ({union}) u", inputs, tmp_path / "u")
    assert rows == Counter({("2026-01-01 00:00:00", 1): 2, ("2026-01-01 00:00:01", 2): 2})
    joined = f"SELECT u.v, m.v AS w FROM ({union}) u JOIN m ON m.v = u.v AND m.at BETWEEN u.at AND u.at + INTERVAL 1 SECOND"
    rows, _ = run_query(joined, inputs, tmp_path / "j")
    assert rows == Counter({(1, 1): 2, (2, 2): 2})
    with pytest.raises(UserError, match="UNION ALL: column at of a timestamp and an integer"):
        plan_query("SELECT at FROM n UNION ALL SELECT k FROM n", TABLES)


def _compare(seed: int, streams: Inputs, folder: Path) -> None:
    text = random_query(np.random.default_rng([seed, 40]))
    rows, report = run_query(text, streams, folder)
    assert rows == duckdb_rows(streams, text), f"seed {seed}: {text}"
    assert report["ledger"]["balanced"]


@pytest.mark.parametrize("start", range(0, 40, 10))
def test_random_queries_have_the_rows_of_duckdb(start: int, streams: Inputs, tmp_path: Path) -> None:
    for seed in range(start, start + 10):
        _compare(seed, streams, tmp_path / str(seed))


@pytest.mark.long
@pytest.mark.parametrize("start", range(100, 400, 20))
def test_many_random_queries_have_the_rows_of_duckdb(start: int, streams: Inputs, tmp_path: Path) -> None:
    for seed in range(start, start + 20):
        _compare(seed, streams, tmp_path / str(seed))


def test_a_wrong_row_is_found_by_verify(trips: Inputs, tmp_path: Path) -> None:
    run_query(EXAMPLES[0], trips, tmp_path)
    (file,) = (tmp_path / "results").glob("*.parquet")
    table = pq.read_table(file)
    miles = table["miles"].to_numpy().copy()
    miles[3] += 1e-9
    changed = table.set_column(table.schema.get_field_index("miles"), "miles", pa.array(miles))
    pq.write_table(changed, file)
    result = verify(tmp_path)
    assert not result.equal
    assert len(result.missing) == len(result.surplus) == 1


# ---------------------------------------------------------------- the digest


def test_hashes_of_rows_are_those_of_their_words() -> None:
    decimals = pa.array(["1.50", "-0.000000000001", None], pa.string()).cast(pa.decimal128(20, 12))
    columns: dict[str, tuple[pa.Array, list[list[int]]]] = {
        "int": (pa.array([1, None, -3]), [[1], [], [-3]]),
        "small": (pa.array([1, None, -3], pa.int8()), [[1], [], [-3]]),
        "big": (pa.array([1 << 63, 0, None], pa.uint64()), [[1 << 63], [0], []]),
        "double": (pa.array([-0.0, float("nan"), 2.5]), [words_of(0.0), words_of(float("nan")), words_of(2.5)]),
        "float": (pa.array([1.5, None, -2.5], pa.float32()), [words_of(1.5), [], words_of(-2.5)]),
        "bool": (pa.array([True, None, False]), [[1], [], [0]]),
        "text": (pa.array(["", None, "Köln am Rhein"]), [[0], [], words_of("Köln am Rhein".encode())]),
        "view": (pa.array(["8 bytes!", "x", None], pa.string_view()), [words_of(b"8 bytes!"), words_of(b"x"), []]),
        "binary": (pa.array([b"\0", None, b"\0\0"], pa.binary()), [words_of(b"\0"), [], words_of(b"\0\0")]),
        "dictionary": (pa.array(["a", None, "a"]).dictionary_encode(), [words_of(b"a"), [], words_of(b"a")]),
        "decimal": (decimals, [words_of(b"1.5"), words_of(b"-0.000000000001"), []]),
        "seconds": (pa.array([1, -1, None], pa.timestamp("s")), [[1_000_000], [-1_000_000], []]),
        "nanoseconds": (pa.array([1500, -1, None], pa.timestamp("ns")), [[1], [-1], []]),
        "date": (pa.array([1, -1, None], pa.date32()), [[86_400_000_000], [-86_400_000_000], []]),
        "time": (pa.array([1, 2, None], pa.time32("ms")), [[1000], [2000], []]),
        "null": (pa.nulls(3), [[], [], []]),
    }
    batch = pa.record_batch({name: array for name, (array, _) in columns.items()})
    wanted = [row_hash([found[i] for _, found in columns.values()]) for i in range(3)]
    assert row_hashes(batch).tolist() == wanted
    assert row_hashes(batch.slice(1)).tolist() == wanted[1:]
    assert row_hashes(batch.slice(0, 0)).tolist() == []
    with pytest.raises(UserError, match="values of type list"):
        row_hashes(pa.record_batch({"x": [[1], [2]]}))


def test_the_digest_of_a_run_is_that_of_the_rows_in_its_files(trips: Inputs, tmp_path: Path) -> None:
    _, report = run_query(EXAMPLES[-1], trips, tmp_path)
    tables = [pq.read_table(file) for file in (tmp_path / "results").glob("*.parquet")]
    (batch,) = pa.concat_tables(tables).combine_chunks().to_batches()
    assert report["results"]["digest"] == format_digest(int(np.add.reduce(row_hashes(batch))))


# ---------------------------------------------------------------- plans


TABLES = {
    "a": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]")), "ts"),
    "b": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]")), "ts"),
    "n": Table((("k", "int64"), ("at", "int64")), "at", 1e3),
    "s": Table((("k", "int64"),), None),
    "l": Table((("many", "list<item: int64>"), ("ts", "timestamp[us]")), "ts"),
}
SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '5' SECOND"


def kinds(text: str) -> list[str]:
    return [type(node).__name__ for node in plan_query(text, TABLES).plan.nodes]


def test_conditions_of_one_side_are_tested_before_an_inner_join() -> None:
    text = f"SELECT a.v FROM a JOIN b ON a.k = b.k AND {SOON} WHERE b.x = 'u' AND a.v < 3 AND a.v + b.v < 9"
    assert kinds(text).count("Filter") == 3  # what can fail is tested on the joined rows
    plan = plan_query(text, TABLES).plan
    filters = [node for node in plan.nodes if type(node).__name__ == "Filter"]
    assert [node.input for node in filters[:2]] == ["a", "b"]  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "the query is empty"),
        ("SELECT * FRO a", "syntax error: invalid expression / Unexpected token at line 1, column 14, near 'a'"),
        ("SELECT 1 AS x", "a SELECT without FROM; name a table"),
        ("SELECT k FROM a; SELECT k FROM b", "2 statements; give one query"),
        ("INSERT INTO a SELECT 1", "INSERT INTO a SELECT 1 is no query; begin it with SELECT or WITH"),
        ("SELECT k FROM aa", "table aa is unknown; did you mean a?"),
        ("SELECT kk FROM a", "column kk is missing; did you mean k?"),
        (f"SELECT k FROM a JOIN b ON a.k = b.k AND {SOON}", "column k is ambiguous; write a.k or b.k"),
        ("SELECT k + 1 FROM a", "column 1, k + 1, has no name; give it one: ... AS name"),
        ("SELECT a.*, k FROM a", "2 columns are named k; give one another name: k AS other"),
        (f"SELECT * FROM a JOIN b ON a.k = b.k AND {SOON}", "2 columns are named k; give one another name: k AS other"),
        ("SELECT u.k FROM (SELECT k, v AS k FROM a) u", "2 columns of u are named k; give one another name: k AS other"),
        ("SELECT * EXCLUDE (k) FROM a", "except is not supported, in * EXCLUDE (k)"),
        ("SELECT b.* FROM a", "b.*: no table b; there are a"),
        ("SELECT NULL AS n FROM a", "NULL AS n is null for every row; cast it to a type: CAST(NULL AS BIGINT)"),
        ("SELECT k FROM a WHERE v", "v is no condition; use a comparison"),
        ("SELECT k FROM a WHERE x + 1 > 2", "x + 1: + of text; cast it, or use another value"),
        ("SELECT k FROM a WHERE k IN (SELECT k FROM b)", "k IN (SELECT k FROM b) is not supported"),
        (
            "SELECT sum(v) OVER () AS n FROM a",
            "SUM(v) OVER () is not supported; number rows with ROW_NUMBER() OVER (PARTITION BY",
        ),
        ("SELECT k FROM a ORDER BY v", "ORDER BY v: is no column of the answer; select it, and order by its name"),
        ("SELECT k FROM a ORDER BY 2", "ORDER BY 2: is no column of the answer"),
        ("SELECT k FROM a LIMIT 0", "LIMIT 0 is not supported; give a number of rows above zero: LIMIT 10"),
        ("SELECT k FROM a LIMIT 3 OFFSET 2", "OFFSET is not supported"),
        ("SELECT q.k FROM (SELECT k FROM a LIMIT 3) q", "LIMIT inside a query"),
        ("SELECT q.k FROM (SELECT k FROM a ORDER BY k) q", "ORDER BY inside a query; write it at the end, or ROW_NUMBER"),
        ("SELECT k FROM a UNION SELECT k FROM b", "UNION is not supported; write UNION ALL, which keeps rows that are equal"),
        ("SELECT k FROM a EXCEPT SELECT k FROM b", "EXCEPT is not supported; use UNION ALL, or a semi or anti join"),
        ("SELECT k, v FROM a UNION ALL SELECT k FROM b", "UNION ALL of 2 and 1 columns; select as many on both sides"),
        ("SELECT k FROM a UNION ALL SELECT x FROM b", "UNION ALL: column k of an integer and text; cast one of them"),
        ("SELECT k FROM s", "a query of static table s, whose rows have no time; name its time column: --table s=PATH:TIME"),
        ("SELECT k FROM generate(a, 3) t", "GENERATE(a, 3) AS t is not supported in FROM"),
        ("SELECT * FROM a NATURAL JOIN b", "NATURAL JOIN is not supported; write JOIN with its conditions"),
        ("SELECT a.k FROM a JOIN a ON a.k = a.k", "two tables are named a; give one an alias: FROM t AS other"),
        (
            "SELECT a.k FROM a, b",
            "the join of two streams has no time condition; add one: AND b.ts BETWEEN a.ts - INTERVAL '10' SECOND AND a.ts",
        ),
        (
            "SELECT a.k FROM a JOIN b ON a.k = b.k AND b.ts >= a.ts",
            "the join has no upper bound of b.ts; add one: AND b.ts <= a.ts + INTERVAL '10' SECOND",
        ),
        (
            f"SELECT a.k FROM a FULL JOIN b ON {SOON}",
            "a full join has no equality of its two sides; add one: ON a.key = b.key AND ...",
        ),
        ("SELECT a.k FROM a JOIN b ON a.v < b.v", "the join of two streams has no time condition; add one: AND b.ts BETWEEN"),
        (f"SELECT a.k FROM a JOIN b ON a.k = b.x AND {SOON}", "a.k = b.x: = of an integer and text; cast one of them"),
        (
            f"SELECT a.k FROM a LEFT JOIN b ON a.k = b.k AND lower(a.x || b.x) = 'u' AND {SOON}",
            "LOWER(a.x || b.x) = 'u' is not supported in ON of a left join; it may have comparisons, IS NULL, +",
        ),
        (
            f"SELECT n.k FROM a FULL JOIN b ON a.k = b.k AND {SOON} JOIN n ON n.k = a.k AND n.at = a.ts",
            "no column of a and b is the time of its rows; join rows whose time column is selected",
        ),
        ("SELECT k FROM n WHERE at > 5", '"at" > 5: > of a timestamp and an integer; cast one of them so that both agree'),
        (
            f"SELECT a.k FROM a JOIN b ON a.k = b.k AND {SOON.replace('SECOND', 'MONTH')}",
            "INTERVAL '5' MONTH: months and years",
        ),
        (
            "SELECT many FROM l",
            "select 1: column many: type list<item: int64> cannot travel between stages; leave the column out",
        ),
        ("SELECT ts FROM l WHERE many IS NULL", "many IS NULL: column many is list<item: int64>, which no expression reads"),
        (f"SELECT a.v FROM a JOIN b ON a.k = b.k AND {SOON} WHERE v < 3", "column v is ambiguous; write a.v or b.v"),
        (
            "WITH c AS (SELECT k FROM a), C AS (SELECT k FROM b) SELECT k FROM c",
            "two queries of WITH are named c; name each once",
        ),
        (f"SELECT a.k FROM a CROSS JOIN b ON a.k = b.k AND {SOON}", "CROSS JOIN has no conditions; write JOIN"),
        (f"SELECT a.k FROM a JOIN b A ON a.k = A.k AND {SOON}", "two tables are named a; give one an alias"),
        (
            "SELECT a.k FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts + INTERVAL '3' SECOND AND a.ts",
            "no times of a.ts and b.ts satisfy the conditions of the join; exchange its bounds",
        ),
        (
            f"SELECT a.k FROM a LEFT JOIN b ON a.k = b.k AND a.v / b.v > 2 AND {SOON}",
            "a.v / b.v > 2 is not supported in ON of a",
        ),
        ('SELECT "a\nb" FROM a', "column a b is missing"),
        ("WITH RECURSIVE r AS (SELECT k FROM a) SELECT k FROM r", "WITH RECURSIVE is not supported; a plan has no cycle"),
    ],
)
def test_one_line_for_what_a_query_cannot_mean(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, TABLES)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the command


def test_the_command_writes_rows_and_a_report(trips: Inputs, swjoin: Any, tmp_path: Path) -> None:
    tables = [f"--table={name}={config.path}{config.time and f':{config.time}'}" for name, config in trips.items()]
    tables[-2] += ":ms"
    (tmp_path / "q.sql").write_text(EXAMPLES[-1])
    done = swjoin("query", tmp_path / "q.sql", *tables, "-o", tmp_path / "out.parquet", "--report", tmp_path / "r.json")
    assert done.code == 0, done.err
    report = json.loads((tmp_path / "r.json").read_text())
    (batch,) = pq.read_table(tmp_path / "out.parquet").combine_chunks().to_batches()
    assert report["results"]["count"] == batch.num_rows > 100
    assert report["results"]["digest"] == format_digest(int(np.add.reduce(row_hashes(batch))))
    assert report["ledger"]["balanced"]
    assert "rows" in done.out
    shown = swjoin("explain", tmp_path / "r.json")
    assert shown.code == 0
    assert "stage 1 result: rows as they come" not in shown.out  # the last stage is the join
    assert "hash of" in shown.out


def _table(trips: Inputs, name: str = "trips", rest: str = ":started") -> str:
    return f"--table={name}={trips['trips'].path}{rest}"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (lambda trips: ["SELECT user FROM t"], "no tables: give --table NAME=PATH:TIME for each that the query names"),
        (lambda trips: ["SELECT user FROM t", "--table=t"], "--table t: write NAME=PATH:TIME"),
        (lambda trips: ["SELECT user FROM t", "--table=t=no.parquet:ts"], "--table t: "),
        (lambda trips: ["SELECT user FROM t", _table(trips, "t", ":when")], "--table t: no column when; columns are user, "),
        (lambda trips: ["SELECT user FROM t", _table(trips, "t", ":user")], "--table t: user is a number without a unit"),
        (lambda trips: ["SELECT user FROM T", _table(trips, "t"), _table(trips, "T")], "T is given twice"),
        (lambda trips: ["SELECT user FROM t", _table(trips, "t", "")], "a query of static table t, whose rows have no time"),
        (lambda trips: ["none.sql", _table(trips)], "none.sql: cannot be read (No such file or directory)"),
        (lambda trips: ["SELECT user FROM u", _table(trips)], "table u is unknown; there are trips"),
    ],
)
def test_refusals_of_the_command(
    options: Callable[[Inputs], list[str]], problem: str, trips: Inputs, swjoin: Any, tmp_path: Path
) -> None:
    done = swjoin("query", *options(trips), "-o", tmp_path / "out.parquet")
    assert done.code == 2
    assert len(done.err) == 1
    assert problem in done.err[0]
    assert not list(tmp_path.iterdir())


def test_a_table_is_not_overwritten(trips: Inputs, swjoin: Any) -> None:
    path = Path(str(trips["trips"].path))
    before = path.read_bytes()
    done = swjoin("query", "SELECT user FROM trips", _table(trips), "-o", path)
    assert done.code == 2
    assert "is an input" in done.err[0]
    assert path.read_bytes() == before


# ---------------------------------------------------------------- implausible answers


def _side(time: str, keys: Any, first_us: int = 0) -> pa.Table:
    ts = pa.array(np.arange(2_000) + first_us, pa.timestamp("us"))
    return pa.table({f"k{time}": keys, time: ts})


NUMBERS = pa.array(np.arange(2_000))


@pytest.mark.parametrize(
    ("keys", "first_us", "bound", "kind", "findings"),
    [
        (NUMBERS, 0, "100 MICROSECOND", "", []),
        (NUMBERS, 0, "1 HOUR", "", ["is longer than the data"]),
        (NUMBERS, 0, "1 HOUR", "ASOF", ["is longer than the data"]),
        (
            NUMBERS,
            10**9,
            "1 SECOND",
            "",
            ["the times of both sides cannot meet within the bounds: .*r is 16 min 38 s .* too late"],
        ),
        (pa.nulls(2_000, pa.int64()), 0, "100 MICROSECOND", "", ["every row of l has a null key .2,000 rows."]),
        (pa.array(np.arange(2_000) + 2_000), 0, "100 MICROSECOND", "", ["nothing matched, of 2,000 and 2,000 rows"]),
    ],
)
def test_implausible_answers_are_warned_of(keys: pa.Array, first_us: int, bound: str, kind: str, findings: list[str]) -> None:
    tables: dict[str, Any] = {"l": _side("t", keys), "r": _side("u", NUMBERS, first_us)}
    near = f"r.u BETWEEN l.t - INTERVAL {bound} AND l.t + INTERVAL {bound}"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        swjoin_api.sql(f"SELECT l.t, r.u FROM l {kind} JOIN r ON l.kt = r.ku AND {near}", time={"l": "t", "r": "u"}, **tables)
    found = [str(warning.message) for warning in caught]
    assert len(found) == len(findings), found
    for line, finding in zip(found, findings, strict=True):
        assert re.search(f"^join .* of l and r: .*{finding}", line), line
