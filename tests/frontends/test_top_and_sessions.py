"""Top-n, sessions, calls that rows decide, ORDER BY and LIMIT: against DuckDB, edges by hand, and what is refused."""

from __future__ import annotations

import math
from collections import Counter
from datetime import datetime
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.config.connectors import StreamConfig
from swjoin.core.errors import RunFailed, UserError
from swjoin.duckdb.verify import verify
from swjoin.frontends.sql.planner import Table, plan_query
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import write_streams
from tests.support.queries import check_on_ranks, checked_query, run_query

Inputs = dict[str, StreamConfig]
TABLES = {
    "a": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]")), "ts"),
    "n": Table((("k", "int64"), ("at", "int64")), "at", 1000.0),
}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_streams(tmp_path_factory.mktemp("streams"), "ab", 300, 3, keys=12, null_share=0.1)


def _ms(milliseconds: int) -> str:
    return f"INTERVAL '{milliseconds}' MILLISECOND"


TUMBLE, HOP = f"TUMBLE(a, ts, {_ms(50)})", f"HOP(a, ts, {_ms(30)}, {_ms(100)})"
NUMBER = "ROW_NUMBER() OVER (PARTITION BY window_start, {} ORDER BY {})"
SESSION = f"SESSION(a, ts, {_ms(8)})"
QUERIES = [
    # top-n
    f"SELECT q.k, q.v, q.rn FROM (SELECT *, {NUMBER.format('k', 'v DESC')} AS rn FROM {TUMBLE}) q WHERE rn <= 2",
    f"SELECT k, v, window_end FROM {HOP} QUALIFY {NUMBER.format('x', 'v % 10 DESC NULLS FIRST, v')} < 4",
    f"SELECT k, v, {NUMBER.format('x', 'k NULLS FIRST, v')} AS n FROM {TUMBLE} WHERE v % 3 > 0 QUALIFY "
    f"{NUMBER.format('x', 'k NULLS FIRST, v')} <= 2",
    f"SELECT q.v FROM (SELECT v, {NUMBER.format('k % 2', 'x || k DESC, v')} AS rn FROM {TUMBLE}) q WHERE rn = 2 AND v > 9",
    f"WITH g AS (SELECT k, window_end AS w, count(*) AS n FROM {TUMBLE} GROUP BY k, window_start, window_end), "
    "r AS (SELECT *, ROW_NUMBER() OVER (PARTITION BY w ORDER BY n DESC, k) AS rn FROM g) SELECT * FROM r WHERE 3 >= rn",
    f"SELECT q.k, q.rn FROM (SELECT k, window_end AS w, {NUMBER.format('x', 'v')} AS rn FROM {TUMBLE}) q "
    "WHERE rn BETWEEN 2 AND 3 AND q.w > TIMESTAMP '1970-01-01 00:00:00.1'",
    f"SELECT q.k, count(*) AS n FROM (SELECT k, window_end AS w, {NUMBER.format('x', 'v')} AS rn FROM {TUMBLE}) q "
    "WHERE rn <= 4 GROUP BY q.k, q.w",
    f"SELECT q.v, b.v AS w FROM (SELECT k, v, ts FROM a) q JOIN b ON q.k = b.k AND b.ts BETWEEN q.ts AND q.ts + {_ms(9)} "
    "QUALIFY ROW_NUMBER() OVER (PARTITION BY q.k, q.ts, q.v ORDER BY b.v DESC) <= 1",
    # sessions
    f"SELECT k, window_start, window_end, count(*) AS n, sum(v) AS s FROM {SESSION} GROUP BY k, window_start, window_end",
    f"SELECT count(*) AS n, window_start FROM {SESSION} WHERE x <> 'x1' GROUP BY window_start, window_end HAVING count(*) > 1",
    f"SELECT k % 3 AS m, x, max(v) AS s FROM {SESSION} GROUP BY k % 3, x, window_start, window_end",
    f"SELECT k, window_end, count(*) AS n FROM TABLE(SESSION(TABLE a PARTITION BY k, DESCRIPTOR(ts), {_ms(6)})) "
    "GROUP BY k, window_start, window_end",
    f"SELECT x, window_start, count(*) AS n FROM TABLE(SESSION(TABLE a PARTITION BY (k, x), DESCRIPTOR(ts), {_ms(6)})) "
    "GROUP BY x, window_start, window_end",
    f"SELECT q.w, sum(q.n) AS n FROM (SELECT k, window_end AS w, count(*) AS n FROM {SESSION} GROUP BY k, window_start, "
    "window_end) q GROUP BY q.w",
    # calls that rows decide
    f"SELECT k, count(DISTINCT x) AS c, count(*) AS n FROM {TUMBLE} GROUP BY k, window_start, window_end",
    f"SELECT window_end, count(DISTINCT k) AS c, count(DISTINCT x) FILTER (WHERE v > 70) AS d, sum(DISTINCT v % 7) AS s, "
    f"avg(DISTINCT v % 5) AS m, max(v) AS top FROM {HOP} GROUP BY window_start, window_end",
    f"SELECT window_end, arg_max(x, v) AS a, max_by(k, v) AS b, arg_min(v, k * 1000 + v) AS c, min(x) AS d, max(x || k) AS e "
    f"FROM {HOP} GROUP BY window_start, window_end",
    f"SELECT x, window_end, count(DISTINCT k) > 2 AS many FROM {TUMBLE} GROUP BY x, window_start, window_end "
    "HAVING count(DISTINCT k) <> 3",
    # LIMIT
    "SELECT k, v, x FROM a WHERE v % 2 = 1 ORDER BY k DESC NULLS LAST, v LIMIT 7",
    f"SELECT k, count(*) AS n FROM {TUMBLE} GROUP BY k, window_start, window_end ORDER BY 2 DESC, k LIMIT 1",
    "SELECT v FROM a UNION ALL SELECT v FROM b ORDER BY v DESC LIMIT 11",
]


@pytest.mark.parametrize("text", QUERIES, ids=[text[:70] for text in QUERIES])
def test_rows_are_those_of_duckdb(text: str, streams: Inputs, tmp_path: Path) -> None:
    assert len(checked_query(text, streams, tmp_path)) >= 1


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_the_same_rows(streams: Inputs, tmp_path: Path) -> None:
    check_on_ranks([QUERIES[i] for i in (0, 4, 8, 12, 15, 16, 18)], streams, tmp_path, 5)


def _us(*values: int) -> pa.Array:
    return pa.array(values, pa.timestamp("us"))


def _one(table: dict[str, Any], text: str, folder: Path, **sections: Any) -> Counter[tuple[Any, ...]]:
    """Rows of a query over one table t, which DuckDB's recomputation of its plan has as well."""
    pq.write_table(pa.table(table), folder / "t.parquet")
    rows, _ = run_query(text, {"t": StreamConfig(str(folder / "t.parquet"), (), "ts")}, folder / "run", **sections)
    assert verify(folder / "run").equal
    return rows


def test_a_pause_of_exactly_the_gap_starts_a_session(tmp_path: Path) -> None:
    table = {"ts": _us(-5_000_000, -4_000_001, -3_000_001, 0, 999_999, 999_999), "v": [1, 2, 3, 4, 5, 6]}
    both = "window_start, window_end"
    text = f"SELECT {both}, sum(v) AS s FROM SESSION(t, ts, INTERVAL '1' SECOND) GROUP BY {both}"
    zero = datetime(1970, 1, 1)
    found = {(s, (start - zero).total_seconds(), (end - zero).total_seconds()) for start, end, s in _one(table, text, tmp_path)}
    assert found == {(3, -5.0, -3.000001), (3, -3.000001, -2.000001), (15, 0.0, 1.999999)}


def test_a_session_as_long_as_the_input_and_one_group_of_all_rows(tmp_path: Path) -> None:
    n = 30_000
    table = {"ts": _us(*range(0, 100 * n, 100)), "v": np.arange(n)}
    text = "SELECT count(*) AS n, max(v) AS m FROM SESSION(t, ts, INTERVAL '150' MICROSECOND) GROUP BY window_start, window_end"
    assert _one(table, text, tmp_path) == Counter({(n, n - 1): 1})


def test_groups_of_sessions_and_top_n_are_those_of_aggregates(tmp_path: Path) -> None:
    """Null is a group, all NaN are one, and -0.0 is 0.0."""
    nan = math.nan
    table = {"ts": _us(*range(7)), "d": [0.0, -0.0, nan, -nan, None, None, 1.5], "v": [3, 1, 2, 4, 6, 5, 0]}
    text = "SELECT count(*) AS n, max(v) AS m FROM SESSION(t, ts, INTERVAL '1' SECOND) GROUP BY d, window_start, window_end"
    assert _one(table, text, tmp_path) == Counter({(2, 3): 1, (2, 4): 1, (2, 6): 1, (1, 0): 1})
    (tmp_path / "top").mkdir()
    number = "ROW_NUMBER() OVER (PARTITION BY window_start, d ORDER BY v)"
    top = f"SELECT v, {number} AS rn FROM TUMBLE(t, ts, INTERVAL '1' SECOND) QUALIFY {number} <= 1"
    assert _one(table, top, tmp_path / "top") == Counter({(1, 1): 1, (2, 1): 1, (5, 1): 1, (0, 1): 1})


def test_order_of_nulls_numbers_and_text(tmp_path: Path) -> None:
    """As DuckDB: NaN is the greatest number, text is ordered by its bytes, nulls are last unless told otherwise."""
    texts = ["b", "", None, "a", "Z", "ä", "aa"]
    table = pa.table({"ts": _us(*range(7)), "d": [1.0, math.nan, None, -math.inf, -0.0, 0.0, math.inf], "s": texts})
    found = {}
    for order in ("d, ts", "d DESC, ts", "d NULLS FIRST, ts", "d DESC NULLS FIRST, ts", "s", "s DESC", "s DESC NULLS FIRST"):
        rows = swjoin.sql(f"SELECT ts, d, s FROM t ORDER BY {order}", t=table, time="ts", out=tmp_path / "o.parquet")
        assert rows.count == 7
        found[order] = [t.microsecond for t in pq.read_table(tmp_path / "o.parquet")["ts"].to_pylist()]
        limited = swjoin.sql(f"SELECT ts, d, s FROM t ORDER BY {order} LIMIT 3", t=table, time="ts")
        assert [t.microsecond for t in limited["ts"].to_pylist()] == found[order][:3]
    assert found == {
        "d, ts": [3, 4, 5, 0, 6, 1, 2],
        "d DESC, ts": [1, 6, 0, 4, 5, 3, 2],
        "d NULLS FIRST, ts": [2, 3, 4, 5, 0, 6, 1],
        "d DESC NULLS FIRST, ts": [2, 1, 6, 0, 4, 5, 3],
        "s": [1, 4, 3, 6, 0, 5, 2],
        "s DESC": [5, 0, 6, 3, 4, 1, 2],
        "s DESC NULLS FIRST": [2, 5, 0, 6, 3, 4, 1],
    }


def test_rows_that_are_alike_are_in_the_order_of_their_ids(tmp_path: Path) -> None:
    """Ids of a file's rows are their places, so the first rows of equals are taken, on any number of slaves."""
    table = {"ts": _us(*[5] * 4_000), "v": np.arange(4_000), "k": [i % 2 for i in range(4_000)]}
    text = "SELECT v FROM TUMBLE(t, ts, INTERVAL '1' SECOND) QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start, k) <= 2"
    assert set(_one(table, text, tmp_path)) == {(0,), (1,), (2,), (3,)}
    (tmp_path / "limit").mkdir()
    assert set(_one(table, "SELECT v FROM t LIMIT 3", tmp_path / "limit")) == {(0,), (1,), (2,)}
    (tmp_path / "first").mkdir()
    items = "k, first(v) AS f, last(v) AS l, arg_max(v, k) AS a"
    picks = f"SELECT {items} FROM TUMBLE(t, ts, INTERVAL '1' SECOND) GROUP BY k, window_end"
    assert set(_one(table, picks, tmp_path / "first")) == {(0, 0, 3_998, 0), (1, 1, 3_999, 1)}


def test_rows_without_a_value_decide_nothing(tmp_path: Path) -> None:
    table = {"ts": _us(*range(4)), "x": [None, "b", "c", None], "v": [9, None, 2, 1], "g": [0, 0, 0, 1]}
    items = "g, first(x) AS f, last(x) AS l, arg_max(x, v) AS a, arg_min(v, x) AS b, min(x) AS m, count(DISTINCT x) AS n"
    text = f"SELECT {items} FROM TUMBLE(t, ts, INTERVAL '1' SECOND) GROUP BY g, window_end"
    assert set(_one(table, text, tmp_path)) == {(0, "b", "c", "c", 2, "b", 2), (1, None, None, None, None, None, 0)}


@pytest.mark.parametrize("kind", ["text", "binary", "decimal", "double", "bool", "day", "time", "zoned", "small"])
def test_values_of_every_type_are_picked_and_told_apart(kind: str, tmp_path: Path) -> None:
    values = {
        "text": pa.array(["b", "a", "c", "a", None]),
        "binary": pa.array([b"b", b"a", b"\xff", b"a", None]),
        "decimal": pa.array([2, 1, 3, 1, None], pa.decimal128(9, 2)),
        "double": pa.array([0.5, -1.5, math.inf, -1.5, None]),
        "bool": pa.array([False, False, True, False, None]),
        "day": pa.array([5, 0, 9, 0, None], pa.date32()),
        "time": pa.array([5, 0, 9, 0, None], pa.time64("us")),
        "zoned": pa.array([5, 0, 9, 0, None], pa.timestamp("ms", "UTC")),
        "small": pa.array([5, 0, 9, 0, None], pa.uint8()),
    }[kind]
    table = pa.table({"ts": _us(*range(5)), "x": values})
    text = (
        "SELECT max(x) AS m, last(x) AS l, count(DISTINCT x) AS n FROM TUMBLE(t, ts, INTERVAL '1' SECOND) GROUP BY window_end"
    )
    found = swjoin.sql(text, t=table, time="ts").to_pylist()
    plain = values.to_pylist()
    assert found == [{"m": plain[2], "l": plain[3], "n": 2 if kind == "bool" else 3}]


def test_a_top_n_keeps_few_rows(tmp_path: Path) -> None:
    """A window of 200,000 rows, of which ten come out, in less than 200 bytes a row that comes."""
    n = 200_000
    table = {"ts": _us(*range(n)), "v": np.random.default_rng(1).permutation(n)}
    text = (
        "SELECT v FROM TUMBLE(t, ts, INTERVAL '1' DAY) QUALIFY ROW_NUMBER() OVER (PARTITION BY window_start ORDER BY v) <= 10"
    )
    found = _one(table, text, tmp_path, module={"window_bytes": 4 << 20}, cluster={"epoch_tuples": 50_000})
    assert set(found) == {(i,) for i in range(10)}
    (tmp_path / "all").mkdir()
    with pytest.raises(RunFailed, match=r"windows hold \d+ bytes, above the limit of 4194304"):
        _one(table, text.replace("<= 10", "<= 100000"), tmp_path / "all", module={"window_bytes": 4 << 20})


def test_order_by_in_files(streams: Inputs, swjoin_command: Any, tmp_path: Path) -> None:
    table = f"a={streams['a'].path}:ts"
    for name in ("o.csv", "o.parquet"):
        done = swjoin_command("query", "SELECT v, x FROM a ORDER BY x DESC, v", "--table", table, "-o", str(tmp_path / name))
        assert done.code == 0, done.err
    rows = pq.read_table(tmp_path / "o.parquet").to_pylist()
    assert rows == sorted(rows, key=lambda row: (-int(row["x"][1:]), row["v"]))
    assert len(rows) == 300
    lines = (tmp_path / "o.csv").read_text().splitlines()[1:]
    assert [int(line.split(",")[0]) for line in lines] == [row["v"] for row in rows]
    for more in (["--sinks", "2"], ["-o", "-", "--sinks", "2"]):
        text = "SELECT v FROM a ORDER BY v"
        done = swjoin_command("query", text, "--table", table, "-o", str(tmp_path / "many"), "-n", "5", *more)
        assert done.code == 2, done.out
        assert len(done.err) == 1
        assert not (tmp_path / "many").exists()


@pytest.fixture
def swjoin_command(request: pytest.FixtureRequest) -> Any:
    """The command; its fixture's name is the package's."""
    return request.getfixturevalue("swjoin")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (
            "SELECT k, ROW_NUMBER() OVER (ORDER BY v) AS rn FROM a",
            "ROW_NUMBER() OVER (ORDER BY v): no window; FROM TUMBLE(...)",
        ),
        (f"SELECT k, ROW_NUMBER() OVER (PARTITION BY k) AS rn FROM {TUMBLE}", "ROW_NUMBER() OVER (PARTITION BY k): no window"),
        (f"SELECT k, {NUMBER.format('k', 'v')} AS rn FROM {TUMBLE}", "ROW_NUMBER() without a limit; write WHERE rn <= 10"),
        (
            f"SELECT q.k FROM (SELECT k, {NUMBER.format('k', 'v')} AS rn FROM {TUMBLE}) q WHERE rn < 1",
            "rn < 1: no row has such",
        ),
        (f"SELECT k, RANK() OVER (PARTITION BY window_start ORDER BY v) AS r FROM {TUMBLE}", "RANK() OVER (PARTITION BY"),
        (
            f"SELECT k, {NUMBER.format('k', 'v')} AS a, {NUMBER.format('x', 'v')} AS b FROM {TUMBLE}",
            "2 calls with OVER; number",
        ),
        (f"SELECT k FROM {TUMBLE} QUALIFY {NUMBER.format('k', 'v')} > 2", "QUALIFY ROW_NUMBER() OVER"),
        (f"SELECT k FROM {TUMBLE} QUALIFY v < 2", "QUALIFY v < 2 is not supported; write QUALIFY ROW_NUMBER() ... <= 10"),
        (
            f"SELECT k, count(*) AS n FROM {TUMBLE} GROUP BY k, window_end QUALIFY {NUMBER.format('k', 'n')} < 2",
            "ROW_NUMBER() OVER",
        ),
        (f"SELECT k, {NUMBER.format('y', 'v')} AS a FROM {TUMBLE}", "column y is missing"),
        (
            f"SELECT {NUMBER.format('k', 'v')} FROM {TUMBLE} QUALIFY {NUMBER.format('k', 'v')} < 3",
            "column 1, ROW_NUMBER() OVER",
        ),
        (f"SELECT k FROM {SESSION} QUALIFY {NUMBER.format('k', 'v')} < 3", "ROW_NUMBER() OVER (PARTITION BY window_start, k"),
        (f"SELECT k FROM {SESSION}", "SESSION without GROUP BY window_start"),
        (f"SELECT k FROM {SESSION} GROUP BY k", "groups without their window; write GROUP BY window_start"),
        ("SELECT 1 AS n FROM SESSION(a, ts) GROUP BY window_end", "SESSION(a, ts) is not complete; write SESSION(TABLE, TIME"),
        ("SELECT 1 AS n FROM SESSION(a, ts, INTERVAL '0' DAY) GROUP BY window_end", "SESSION(a, ts, INTERVAL '0' DAY): "),
        (
            f"SELECT 1 AS n FROM TABLE(TUMBLE(TABLE a PARTITION BY k, DESCRIPTOR(ts), {_ms(5)})) GROUP BY window_end",
            "TUMBLE(TABLE(a, (k)), DESCRIPTOR(ts), INTERVAL '5' MILLISECOND): PARTITION BY is for sessions",
        ),
        (
            f"SELECT 1 AS n FROM TABLE(SESSION(TABLE a PARTITION BY y, DESCRIPTOR(ts), {_ms(5)})) GROUP BY window_end",
            "column y is missing",
        ),
    ],
)
def test_one_line_for_what_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, TABLES)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
