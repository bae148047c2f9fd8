"""Joins with static tables in SQL: rows are DuckDB's, in process and on ranks; what they cannot keep is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as swjoin_api
from swjoin.config.connectors import StreamConfig
from swjoin.core.errors import RunFailed, UserError
from swjoin.duckdb.verify import verify
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.plan.columns import columns_of
from swjoin.plan.logical import Column, LogicalPlan, Result, Source
from swjoin.plan.lookups import Lookup
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.plan.stages import cut, describe_edge
from tests.support.drawn import mostly_drawn
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.queries import query_job, run_query
from tests.support.ranks import run_jobs

Inputs = dict[str, StreamConfig]
ROWS, SIDE_ROWS = 2_500, 90

QUERIES = {
    "inner": "SELECT b.v, s.w FROM bid b JOIN side s ON b.item = s.item",
    "using": "SELECT b.v, b.item, s.w FROM bid b JOIN side s USING (item)",
    "left, keys of several columns": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND s.x = b.x",
    "semi": "SELECT b.v FROM bid b SEMI JOIN side s ON b.item = s.item AND s.w > b.v % 50",
    "anti": "SELECT b.v FROM bid b ANTI JOIN side s ON b.item = s.item AND s.w > b.v % 50",
    "right": "SELECT b.v, s.w FROM side s RIGHT JOIN bid b ON b.item = s.item AND s.w % 3 = b.v % 4",
    "left, of one side": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND b.v % 2 = 0 AND s.w > 9",
    "where": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item WHERE s.w IS NULL OR s.w > b.v",
    "comma, an expression as key": "SELECT b.v, s.w FROM side s, bid b WHERE b.item + 1 = s.item AND s.w < 40",
    "no equality": "SELECT b.v, s.w FROM side s, bid b WHERE b.v < 100 AND s.w > b.v",
    "left, no equality": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON s.w > b.v",
    "cross": "SELECT b.v, s.w FROM bid b CROSS JOIN (SELECT w FROM side WHERE w < 3) s",
    "doubles": "SELECT b.v, s.w FROM bid b JOIN side s ON b.f = s.f AND b.x = s.x",
    "a double with an integer": "SELECT b.v FROM bid b ANTI JOIN side s ON b.f = s.item",
    "decimals": "SELECT b.v, s.w FROM bid b JOIN side s ON b.d = s.d",
    "times of several units": "SELECT b.v FROM bid b SEMI JOIN side s ON b.day = s.day",
    "null keys": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.opt = s.item",
    "division": "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND b.v / s.w > 20",
    "text functions": "SELECT b.v, upper(s.x) AS x FROM bid b JOIN side s ON upper(b.x) = upper(s.x) AND b.v % 40 = s.w",
    "windows": "SELECT item, window_end, sum(w) AS n FROM TUMBLE((SELECT b.item, ts, w FROM bid b JOIN side s "
    "ON b.item = s.item), ts, INTERVAL '1' SECOND) q GROUP BY item, window_end",
    "of groups": "SELECT g.item, g.n, s.x FROM (SELECT item, window_end, count(*) AS n "
    "FROM TUMBLE(bid, ts, INTERVAL '1' SECOND) GROUP BY item, window_end) g LEFT JOIN side s ON s.item = g.item AND s.w < g.n",
    "twice": "SELECT b.v, s.w, t.w AS tw FROM bid b JOIN (SELECT item, w FROM side WHERE w > 5) s ON b.item = s.item "
    "JOIN side t ON t.w = s.w + 1",
    "before a join": "SELECT a.v, b.v AS bv, s.w FROM bid a JOIN side s ON s.item = a.item JOIN bid b ON a.item = b.item "
    "AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '20' MILLISECOND AND b.v > s.w",
    "behind a join": "SELECT a.v, b.v AS bv, s.w FROM bid a LEFT JOIN bid b ON a.item = b.item "
    "AND b.ts BETWEEN a.ts - INTERVAL '20' MILLISECOND AND a.ts - INTERVAL '1' MILLISECOND LEFT JOIN side s ON s.item = b.item",
    "static with static": "SELECT b.v, s.w FROM side s JOIN side t ON s.w = t.item JOIN bid b ON b.item = s.item",
    "a union of tables": "SELECT b.v, w FROM bid b LEFT JOIN "
    "(SELECT item, w FROM side UNION ALL SELECT item + 1, w * 2 FROM side) s ON b.item = s.item",
    "in a union": "SELECT b.v, s.x FROM bid b JOIN side s ON b.item = s.item UNION ALL SELECT v, x FROM bid WHERE v < 40",
    "WITH": "WITH few AS (SELECT item, w FROM side WHERE w % 2 = 0) "
    "SELECT b.v, few.w FROM bid b JOIN few ON few.item = b.item WHERE b.v > 30",
    "an empty table": "SELECT b.v, s.w FROM bid b LEFT JOIN (SELECT * FROM side WHERE w < 0) s ON s.item = b.item",
}


def _tables(seed: int) -> dict[str, pa.Table]:
    random = np.random.default_rng(seed)
    ts = np.sort(random.integers(0, ROWS * 1000, ROWS))
    doubles = np.where(random.random(ROWS) < 0.1, np.nan, random.integers(-2, 3, ROWS) * 1.0)
    bid = pa.table(
        {
            "item": random.integers(0, 60, ROWS),
            "opt": pa.array([None if i % 5 == 0 else int(v) for i, v in enumerate(random.integers(0, 60, ROWS))]),
            "f": doubles,
            "d": pa.array(random.integers(0, 400, ROWS)).cast(pa.decimal128(19, 0)).cast(pa.decimal128(21, 2)),
            "day": pa.array(random.integers(0, 9, ROWS) * 86_400, pa.timestamp("s")),
            "x": [f"x{i % 9}" for i in range(ROWS)],
            "v": np.arange(ROWS),
            "ts": pa.array(ts, pa.timestamp("us")),
        }
    )
    keys = random.integers(0, 50, SIDE_ROWS)
    side = pa.table(
        {
            "item": pa.array([None if i % 17 == 0 else int(v) for i, v in enumerate(keys)], pa.int32()),
            "f": random.integers(-2, 3, SIDE_ROWS) * -1.0,  # -0.0 is 0.0
            "d": pa.array(keys).cast(pa.decimal128(19, 0)),
            "day": pa.array(random.integers(0, 6, SIDE_ROWS) * 86_400_000, pa.timestamp("ms")),
            "x": pa.array([f"x{i % 5}" for i in range(SIDE_ROWS)]).dictionary_encode(),
            "w": np.arange(SIDE_ROWS),
        }
    )
    return {"bid": bid, "side": side}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    """A stream in a file, and a table in two."""
    folder, tables = tmp_path_factory.mktemp("static"), _tables(1)
    pq.write_table(tables["bid"], folder / "bid.parquet", row_group_size=400)
    (folder / "side").mkdir()
    for i, part in enumerate((tables["side"].slice(0, 50), tables["side"].slice(50))):
        pq.write_table(part, folder / "side" / f"{i}.parquet")
    return {"bid": StreamConfig(str(folder / "bid.parquet"), (), "ts"), "side": StreamConfig(str(folder / "side"), (), "")}


def _expected(inputs: Inputs, text: str) -> Any:
    """DuckDB's rows. There a NaN equals itself, which no double of the table is."""
    side = dataclasses.replace(inputs["side"], path=f"{inputs['side'].path}/*.parquet")
    return duckdb_rows({**inputs, "side": side}, text)


@pytest.mark.parametrize("name", mostly_drawn(QUERIES))
def test_rows_are_those_of_duckdb(name: str, inputs: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(QUERIES[name], inputs, tmp_path)
    assert rows == _expected(inputs, QUERIES[name])
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert sum(rows.values()) > 10
    assert verify(tmp_path).lines()[-1] == "equal"


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(2 * PROCESS_S)
@pytest.mark.parametrize("ranks", [3, 4])
def test_ranks_give_the_same(ranks: int, inputs: Inputs, tmp_path: Path) -> None:
    names = list(QUERIES) if ranks == 4 else ["left, no equality", "of groups", "behind a join"]
    cluster = {"epoch_tuples": 300, "partition_count": 7} | ({"gateways": 2, "sinks": 2} if ranks == 4 else {})
    jobs = {name: query_job(QUERIES[name], inputs, tmp_path / str(i), cluster=cluster) for i, name in enumerate(names)}
    run_jobs(ranks, list(jobs.values()), tmp_path)
    for name, job in jobs.items():
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == _expected(inputs, QUERIES[name]), name


# ---------------------------------------------------------------- conditions that have no value


def test_an_overflow_in_the_condition_matches_nothing(inputs: Inputs, tmp_path: Path) -> None:
    most = 9_223_372_036_854_775_807
    text = f"SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND b.v + {most} - {ROWS} + s.w > 0"
    rows, _ = run_query(text, inputs, tmp_path / "residual")
    same = f"b.v::HUGEINT + {most} <= {most} AND b.v::HUGEINT + {most} - {ROWS} + s.w <= {most}"
    assert rows == _expected(inputs, f"SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND {same}")
    assert verify(tmp_path / "residual").equal
    key = f"SELECT b.v FROM bid b ANTI JOIN side s ON b.v + {most} - {most} = s.w"
    assert sum(run_query(key, inputs, tmp_path / "key")[0].values()) == ROWS - 1  # v = 0 has the least w
    with pytest.raises(RunFailed, match=r"lookup 1, row 1: b\.v // s\.w.*division by zero|division by zero"):
        run_query("SELECT b.v FROM bid b SEMI JOIN side s ON b.item = s.item AND b.v // s.w > 1", inputs, tmp_path / "division")


# ---------------------------------------------------------------- memory, columns, plans


def test_a_table_beyond_the_limit(inputs: Inputs, tmp_path: Path) -> None:
    big = pa.table({"item": np.arange(200_000), "name": [f"the name of item {i}" for i in range(200_000)]})
    pq.write_table(big, tmp_path / "big.parquet")
    tables = {**inputs, "side": StreamConfig(str(tmp_path / "big.parquet"), (), "")}
    small = {"module": {"window": "2MB"}}
    text = "SELECT b.v, s.name FROM bid b JOIN side s ON b.item = s.item"
    with pytest.raises(
        UserError, match="side: a static table is read whole, and it takes more than the limit of 2MB; raise the"
    ):
        run_query(text, tables, tmp_path / "big", **small)
    rows, _ = run_query(text.replace("s.name", "s.item"), tables, tmp_path / "few", **small)  # a column less
    assert sum(rows.values()) == ROWS


def _tables_of(inputs: Inputs) -> dict[str, Table]:
    schemas = {name: pq.read_schema(_file(config)) for name, config in inputs.items()}
    columns = {name: tuple((f.name, str(f.type)) for f in schema) for name, schema in schemas.items()}
    return {name: Table(columns[name], config.time or None) for name, config in inputs.items()}


def _file(config: StreamConfig) -> Path:
    path = Path(str(config.path))
    return path / "0.parquet" if path.is_dir() else path


def test_what_a_query_needs_is_read_and_travels(inputs: Inputs) -> None:
    text = """SELECT a.v, s.w FROM bid a JOIN side s ON s.item = a.item AND s.f < a.f
              JOIN bid b ON a.item = b.item AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '20' MILLISECOND"""
    plan = plan_query(text, _tables_of(inputs)).plan
    assert plan_from_plain(plan_to_plain(plan)) == plan
    stages = cut(plan)
    columns = columns_of(plan, stages, rows=True)
    assert [source.name for source in stages.sources] == ["bid"]
    assert columns.read == {"bid": ("item", "f", "v"), "side": ("item", "f", "w")}
    assert [columns.travels[edge.id] for edge in stages.edges[:2]] == [("a.v", "s.w"), ()]  # besides the key
    described = describe_edge(stages.edges[0])
    assert 'lookup in table s 1 on "a.item" = "s.item" AND (' in described


def test_plans_that_cannot_be(inputs: Inputs) -> None:
    stream = Source("s", (Column("k", "int64"), Column("ts", "timestamp[us]")), "ts")
    table = Source("t", (Column("j", "int64"), Column("n", "string")), None)
    wrong: dict[str, dict[str, Any]] = {
        "its table s has a time, ts": {"table": "s"},
        "kind full": {"how": "full"},
        "both s and t have a column k": {},
        "its condition is int64": {"where": "k + j"},
        "key 1 reads no column of t": {"keys": (("k", "1"),)},
        "= of an integer and text": {"keys": (("k", "n"),)},
        "column j is missing": {"keys": (("j", "j"),)},
    }
    for problem, change in wrong.items():
        twice = Source("t", (Column("k", "int64"),), None)
        lookup = dataclasses.replace(Lookup("l", "s", "t", (("k", "j"),)), **change)
        with pytest.raises(UserError, match=problem):
            LogicalPlan((stream, table if change else twice, lookup, Result("out", "l")))


SOON = "b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' SECOND"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "SELECT b.v FROM side s LEFT JOIN bid b ON b.item = s.item",
            "the join keeps rows of static table s without a match, which are known when no stream goes on; write JOIN, or "
            "FROM b LEFT JOIN s keeps those of b",
        ),
        ("SELECT b.v FROM bid b RIGHT JOIN side s ON b.item = s.item", "the join keeps rows of static table s without a match"),
        ("SELECT b.v FROM bid b FULL JOIN side s ON b.item = s.item", "the join keeps rows of static table s without a match"),
        (
            "SELECT s.w FROM side s SEMI JOIN bid b ON b.item = s.item",
            "SEMI JOIN has rows of static table s, which no stream has; put the stream first: FROM b SEMI JOIN s",
        ),
        ("SELECT s.w FROM side s ANTI JOIN bid b ON b.item = s.item", "ANTI JOIN has rows of static table s"),
        (
            "SELECT w FROM side",
            "a query of static table side, whose rows have no time; name its time column: --table side=PATH",
        ),
        ("SELECT s.w FROM side s JOIN side t ON s.w = t.w", "a query of static table side, whose rows have no time"),
        (
            "SELECT v FROM bid UNION ALL SELECT w FROM side",
            "UNION ALL, with a stream, of static table side, whose rows have no",
        ),
        (
            "SELECT count(*) AS n FROM TUMBLE(side, item, INTERVAL '1' SECOND) GROUP BY window_end",
            "TUMBLE of static table side",
        ),
        ("SELECT item, count(*) AS n FROM side GROUP BY item", "groups of static table side, whose rows have no time"),
        (
            "SELECT w, ROW_NUMBER() OVER (ORDER BY w) AS n FROM side",
            "ROW_NUMBER() of static table side, whose rows have no time",
        ),
        ("SELECT DISTINCT item FROM side", "groups of static table side, whose rows have no time"),
        ("SELECT b.v FROM bid b JOIN side s ON b.item = s.x", "b.item = s.x: = of an integer and text; cast one of them"),
        ("SELECT b.v FROM bid b JOIN side s ON b.item = s.item AND s.w", "s.w is no condition; use a comparison"),
        (
            f"SELECT a.v FROM bid a FULL JOIN bid b ON a.item = b.item AND {SOON} FULL JOIN side s ON s.w = a.v",
            "the join keeps rows",
        ),
    ],
)
def test_one_line_for_what_is_not_supported(text: str, problem: str, inputs: Inputs) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, _tables_of(inputs))
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


# ---------------------------------------------------------------- the command, and Python


def test_the_command(inputs: Inputs, swjoin: Any, tmp_path: Path) -> None:
    csv.write_csv(_tables(1)["side"].select(["item", "w"]), tmp_path / "side.csv")
    tables = [f"--table=bid={inputs['bid'].path}:ts", f"--table=side={tmp_path / 'side.csv'}"]
    text = "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item"
    done = swjoin("query", text, *tables, "-o", tmp_path / "out.parquet", "--report", tmp_path / "r.json")
    assert done.code == 0, done.err
    found = pq.read_table(tmp_path / "out.parquet")
    assert sorted(zip(*(c.to_pylist() for c in found.columns), strict=True), key=str) == sorted(
        _expected(inputs, text).elements(), key=str
    )
    said = " ".join(swjoin("explain", tmp_path / "r.json").out.split())
    assert "left lookup in table s 1 on" in said
    assert "A static table: every process that needs it reads it whole." in said
    refused = swjoin("query", text, *tables, "-o", tmp_path / "side.csv")
    assert refused.code == 2
    assert "is an input" in refused.err[0]


def _rows(table: pa.Table) -> list[tuple[Any, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True), key=str)


def _theirs(text: str, **tables: pa.Table) -> list[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, table in tables.items():
            db.register(name, table)
        return sorted(db.execute(text).fetchall(), key=str)


def test_frames_in_python() -> None:
    tables = _tables(2)
    text = "SELECT b.v, s.w FROM bid b LEFT JOIN side s ON b.item = s.item AND s.w > b.v % 70"
    assert _rows(swjoin_api.sql(text, **tables, time={"bid": "ts"})) == _theirs(text, **tables)
    bid, side = swjoin_api.stream(tables["bid"], time="ts").select("item", "v", "ts"), tables["side"].select(["item", "w"])
    joined = bid.join(side, on="item", how="left")
    assert joined.columns == ("item", "v", "ts", "w")
    assert joined.time == "ts"
    text = "SELECT b.item, b.v, b.ts, s.w FROM bid b {} JOIN side s ON b.item = s.item"
    assert _rows(joined.collect()) == _theirs(text.format("LEFT"), **tables)
    assert "left lookup in" in joined.explain()
    anti = bid.join(side, left_on="item", right_on="item", how="anti")
    assert _rows(anti.collect()) == _theirs(text.replace(", s.w", "").format("ANTI"), **tables)
    for options, problem in (
        ({"how": "full"}, "join: how='full' keeps rows of a static table; use left, which keeps the stream's"),
        ({"within": "1s"}, "join: within is given, and a static table has no time; make a stream of it"),
    ):
        with pytest.raises(UserError, match=problem):
            bid.join(side, on="item", **options)  # type: ignore[arg-type]


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(2 * PROCESS_S)
def test_frames_on_ranks() -> None:
    tables = _tables(3)
    text = "SELECT b.v, s.w FROM side s RIGHT JOIN bid b ON b.x = s.x AND s.w = b.item"
    assert _rows(swjoin_api.sql(text, **tables, time={"bid": "ts"}, ranks=3)) == _theirs(text, **tables)
