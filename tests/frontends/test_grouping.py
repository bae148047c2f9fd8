"""Windows, GROUP BY, HAVING and DISTINCT in SQL: against DuckDB, by hand where DuckDB differs, and what is refused."""

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
from tests.support.plan_runs import duckdb_rows, write_streams
from tests.support.queries import run_query

Inputs = dict[str, StreamConfig]
TABLES = {
    "a": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("d", "double"), ("ts", "timestamp[us]")), "ts"),
    "n": Table((("k", "int64"), ("at", "int64")), "at", 1000.0),
}
SECOND = "INTERVAL '1' SECOND"


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_streams(tmp_path_factory.mktemp("streams"), "abc", 300, 3, keys=12, null_share=0.1)


def _hop(slide: int, size: int, source: str = "a", time: str = "ts") -> str:
    return f"HOP({source}, {time}, INTERVAL '{slide}' MILLISECOND, INTERVAL '{size}' MILLISECOND)"


BOTH = "GROUP BY k, window_start, window_end"
QUERIES = [
    f"SELECT k, window_start, count(*) AS n, count(k) AS m FROM {_hop(100, 100)} {BOTH}",
    f"SELECT k, window_end, sum(v) AS s, min(ts) AS t, max(x > 'x3') AS b FROM {_hop(30, 100)} {BOTH}",  # no divisor
    f"SELECT k, window_end, sum(v) AS s FROM {_hop(100, 30)} {BOTH}",  # gaps
    f"SELECT k, window_start, avg(v) AS s FROM {_hop(1, 60)} {BOTH}",
    f"SELECT count(*) AS n, window_start FROM {_hop(50, 100)} GROUP BY window_start, window_end",
    f"SELECT x || '!' AS y, k % 2 AS odd, max(v) - min(v) AS d FROM {_hop(50, 50)} GROUP BY k % 2, x || '!', window_start",
    f"SELECT a.x, count(*) AS n FROM {_hop(50, 50)} a GROUP BY 1, window_end HAVING sum(v) % 2 = 0 OR max(k) IS NULL",
    f"SELECT x AS name, count(*) AS n FROM {_hop(50, 50)} GROUP BY name, window_end",
    f"SELECT count_if(v % 3 = 0) AS c, sum(CASE WHEN v > 50 THEN 1 END) AS s FROM {_hop(20, 40)} GROUP BY window_start",
    f"SELECT sum(v) FILTER (WHERE k > 5) AS s, min(v) FILTER (WHERE k > 20) AS none FROM {_hop(99, 99)} GROUP BY window_end",
    f"SELECT DISTINCT k, x, window_end FROM {_hop(60, 90)}",
    f"SELECT window_start, k FROM {_hop(60, 60)} t WHERE t.v % 2 = 1 AND window_end < TIMESTAMP '1970-01-01 00:00:00.2' {BOTH}",
    "SELECT ts, count(*) AS n FROM (SELECT date_trunc('second', ts) AS s, ts, k FROM a) q GROUP BY ts",
    f"SELECT q.w, sum(q.n) AS n FROM (SELECT window_end AS w, k, count(*) AS n FROM {_hop(20, 60)} {BOTH}) q GROUP BY q.w",
    f"SELECT window_end, max(n) AS m FROM TUMBLE((SELECT window_start AS w, count(*) AS n FROM {_hop(10, 20)} {BOTH}), w, "
    "INTERVAL '80' MILLISECOND) GROUP BY window_start, window_end",
    f"WITH g AS (SELECT k, window_start AS w, count(*) AS n FROM {_hop(50, 50)} {BOTH}) "
    "SELECT g.k, g.n, h.n AS before FROM g LEFT JOIN g h ON g.k = h.k AND h.w = g.w - INTERVAL '50' MILLISECOND",
    "SELECT u.k, window_end, count(*) AS n FROM TUMBLE((SELECT k, ts FROM a UNION ALL SELECT k, ts FROM b), ts, "
    f"INTERVAL '70' MILLISECOND) u {BOTH} UNION ALL SELECT 1, window_start, 2 FROM {_hop(70, 70)} {BOTH}",
    "SELECT j.k, window_start, sum(j.v + j.w) AS s FROM TUMBLE((SELECT a.k, a.v, b.v AS w, b.ts AS t FROM a JOIN b ON "
    "a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL '9' MILLISECOND), t, INTERVAL '40' MILLISECOND) j "
    "GROUP BY j.k, window_start, window_end",
    "SELECT j.k, window_start, count(*) AS n FROM TUMBLE((SELECT a.k, a.ts AS t, b.v FROM a LEFT JOIN b ON a.k = b.k AND b.ts "
    "BETWEEN a.ts AND a.ts + INTERVAL '9' MILLISECOND WHERE b.v IS NULL), t, INTERVAL '40' MILLISECOND) j GROUP BY j.k, "
    "window_start, window_end",
    f"SELECT k, window_start, window_end FROM {_hop(50, 50)} WHERE v % 2 = 0 AND window_end > TIMESTAMP '1970-01-01 00:00:00'",
    f"SELECT q.* FROM {_hop(30, 100)} q",
    f"SELECT v, window_start FROM {_hop(100, 30)}",  # gaps
    f"SELECT l.v, r.v AS w, l.window_end FROM {_hop(50, 50)} l JOIN {_hop(50, 50, 'b')} r ON l.k = r.k AND "
    "l.window_start = r.window_start AND l.window_end = r.window_end",
    f"SELECT l.v, r.v AS w FROM (SELECT ts, k, v, window_end AS e FROM {_hop(30, 60)}) l LEFT JOIN {_hop(30, 60, 'b')} r "
    "ON l.k = r.k AND l.e = r.window_end AND r.v % 3 = 0",
    f"SELECT l.v, r.v AS w FROM {_hop(20, 20)} l JOIN {_hop(20, 20, 'b')} r ON l.window_start = r.window_start AND l.x < r.x",
]


@pytest.mark.parametrize("text", QUERIES, ids=[text[:70] for text in QUERIES])
def test_groups_are_those_of_duckdb(text: str, streams: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(text, streams, tmp_path)
    both = text if "GROUP BY" not in text else text.replace("window_end HAVING", "window_start, window_end HAVING")
    wanted = duckdb_rows(streams, both)
    assert rows == wanted
    assert len(rows) > 1
    assert report["ledger"] == {"balanced": True, "complaints": []}
    assert verify(tmp_path).equal


def _one(table: dict[str, Any], text: str, folder: Path, **sections: Any) -> Counter[tuple[Any, ...]]:
    """Rows of a query over one table t, which DuckDB's recomputation of its plan has as well."""
    pq.write_table(pa.table(table), folder / "t.parquet")
    rows, _ = run_query(text, {"t": StreamConfig(str(folder / "t.parquet"), (), "ts")}, folder / "run", **sections)
    assert verify(folder / "run").equal
    return rows


def _us(*values: int, zone: str | None = None) -> pa.Array:
    return pa.array(values, pa.timestamp("us", zone))


def test_a_row_at_an_edge_is_in_the_next_window_and_times_may_be_negative(tmp_path: Path) -> None:
    table = {"ts": _us(-2_000_001, -2_000_000, -1, 0, 999_999, 1_000_000), "v": [1, 2, 3, 4, 5, 6]}
    text = f"SELECT sum(v) AS s, window_start FROM TUMBLE(t, ts, {SECOND}) GROUP BY window_start"
    found = {row[0]: (row[1] - datetime(1970, 1, 1)).total_seconds() for row in _one(table, text, tmp_path)}
    assert found == {1: -3.0, 2: -2.0, 3: -1.0, 9: 0.0, 6: 1.0}


@pytest.mark.parametrize("unit", ["s", "us", "ns"])
def test_windows_of_rows_are_those_of_groups(unit: str, tmp_path: Path) -> None:
    """With a zone or without, of negative times and of nanoseconds, too."""
    for zone in (None, "Europe/Berlin") if unit != "ns" else (None,):
        scale = {"s": 1, "us": 1_000_000, "ns": 1_000_000_000}[unit]
        times = [at * scale - 1_000 * (unit == "ns") for at in (-7, -3, 0, 1, 2, 5)]
        table = pa.table({"ts": pa.array(times, pa.int64()).view(pa.timestamp(unit, zone)), "v": range(6)})
        hop = "HOP(t, ts, INTERVAL '2' SECOND, INTERVAL '3' SECOND)"
        alone = swjoin.sql(f"SELECT v, window_start, window_end FROM {hop}", t=table, time="ts")
        grouped = swjoin.sql(
            f"SELECT v, window_start, window_end FROM {hop} GROUP BY v, window_start, window_end", t=table, time="ts"
        )
        assert alone.schema == grouped.schema
        assert sorted(map(str, alone.to_pylist())) == sorted(map(str, grouped.to_pylist()))


def test_keys_that_are_equal_are_one_group(tmp_path: Path) -> None:
    nan = float("nan")
    table = {"ts": _us(*range(7)), "d": [0.0, -0.0, nan, -nan, None, None, 1.5], "f": pa.array([1.5] * 7, pa.float32())}
    text = f"SELECT d, f, count(*) AS n FROM TUMBLE(t, ts, {SECOND}) GROUP BY d, f, window_start"
    found = sorted(((str(d), f, n) for d, f, n in _one(table, text, tmp_path)))
    assert found == [("0.0", 1.5, 2), ("1.5", 1.5, 1), ("None", 1.5, 2), ("nan", 1.5, 2)]


@pytest.mark.parametrize("alone", [True, False])
def test_keys_of_every_type_come_out_as_they_went_in(alone: bool, tmp_path: Path) -> None:
    values = {
        "tiny": pa.array([1, None, -3, 1], pa.int8()),
        "big": pa.array([(1 << 64) - 1, 0, None, 5], pa.uint64()),
        "flag": pa.array([True, None, False, True]),
        "text": pa.array(["", None, "Köln", "x" * 40]),
        "blob": pa.array([b"", None, b"\0", b"ab"]),
        "fixed": pa.array([b"ab", None, b"\0\0", b"ab"], pa.binary(2)),
        "day": pa.array([0, None, -1, 20_000], pa.date32()),
        "clock": pa.array([0, None, 5, 86_399], pa.time32("s")),
        "seconds": pa.array([0, None, -5, 10], pa.timestamp("s")),
        "zoned": pa.array([0, None, -5, 10], pa.timestamp("us", "UTC")),
        "kind": pa.array(["a", None, "b", "a"]).dictionary_encode(),
    }
    for i, (name, column) in enumerate(values.items()):
        folder = tmp_path / str(i)
        folder.mkdir()
        other = "" if alone else ", v"
        text = f"SELECT {name}{other}, count(*) AS n FROM TUMBLE(t, ts, {SECOND}) GROUP BY {name}{other}, window_start"
        rows = _one({"ts": _us(0, 1, 2, 3), name: column, "v": [1, 1, 1, 1]}, text, folder)
        counted = Counter(column.to_pylist())
        assert {row[0]: row[-1] for row in rows} == counted
        assert sum(rows.values()) == len(counted)


def test_sums_of_doubles_are_exactly_rounded_in_any_order(tmp_path: Path) -> None:
    random = np.random.default_rng(4)
    values = [*(random.normal(size=400) * 10.0 ** random.integers(-20, 20, 400)).tolist(), None, 1e308, 1e308, -1e308]
    text = f"SELECT sum(d) AS s, avg(d) AS a, min(d) AS lo, max(d) AS hi FROM TUMBLE(t, ts, {SECOND}) GROUP BY window_start"
    known = [v for v in values if v is not None]
    total = math.fsum([*known[:-3], 1e308])  # fsum itself does not get over 2e308 on the way
    for seed in range(3):
        folder = tmp_path / str(seed)
        folder.mkdir()
        order = np.random.default_rng(seed).permutation(len(values)).tolist()
        table = {"ts": _us(*range(len(values))), "d": [values[i] for i in order]}
        assert _one(table, text, folder) == Counter({(total, total / len(known), -1e308, 1e308): 1})


def test_infinities_and_nan(tmp_path: Path) -> None:
    inf, nan = math.inf, math.nan
    table = {"ts": _us(*range(7)), "k": [1, 1, 2, 2, 3, 3, 4], "d": [inf, 1.0, inf, -inf, nan, 2.0, -inf]}
    text = f"SELECT k, sum(d) AS s, min(d) AS lo, max(d) AS hi FROM TUMBLE(t, ts, {SECOND}) GROUP BY k, window_start"
    found = sorted(tuple(map(str, row)) for row in _one(table, text, tmp_path))
    wanted = [
        ("1", "inf", "1.0", "inf"),
        ("2", "nan", "-inf", "inf"),
        ("3", "nan", "2.0", "nan"),
        ("4", "-inf", "-inf", "-inf"),
    ]
    assert found == wanted


def test_sums_of_integers_beyond_64_bits(tmp_path: Path) -> None:
    most = (1 << 63) - 1
    text = f"SELECT k, sum(v) AS s, avg(v) AS a FROM TUMBLE(t, ts, {SECOND}) GROUP BY k, window_start"
    table = {"ts": _us(0, 1, 2, 3), "k": [1, 1, 1, 2], "v": [most, most, -most, -most - 1]}
    assert _one(table, text, tmp_path) == Counter({(1, most, most / 3): 1, (2, -most - 1, float(-most - 1)): 1})
    (tmp_path / "over").mkdir()
    with pytest.raises(RunFailed, match=rf"SUM\(v\) of a group is {2 * most}, which has more than 64 bits"):
        _one({"ts": _us(0, 1), "k": [1, 1], "v": [most, most]}, text, tmp_path / "over")
    (tmp_path / "unsigned").mkdir()
    unsigned = {"ts": _us(0, 1), "k": [1, 1], "v": pa.array([most, 0], pa.uint64())}
    assert _one(unsigned, text, tmp_path / "unsigned") == Counter({(1, most, most / 2): 1})


@pytest.mark.parametrize(("item", "key"), [("count(*)", ""), ("sum(v)", ""), ("count(*)", "v, ")])
def test_windows_of_zoned_times_are_zoned(item: str, key: str, tmp_path: Path) -> None:
    table = {"ts": _us(0, 3_600_000_000, zone="Europe/Berlin"), "v": [1, 2]}
    pq.write_table(pa.table(table), tmp_path / "t.parquet")
    text = f"SELECT window_start, window_end, {item} AS n FROM TUMBLE(t, ts, {SECOND}) GROUP BY {key}window_start, window_end"
    run_query(text, {"t": StreamConfig(str(tmp_path / "t.parquet"), (), "ts")}, tmp_path / "run")
    (file,) = (tmp_path / "run" / "results").glob("*.parquet")
    assert str(pq.read_table(file).schema.field("window_start").type) == "timestamp[us, tz=Europe/Berlin]"
    assert verify(tmp_path / "run").equal


def test_times_of_integers_and_nanoseconds(tmp_path: Path) -> None:
    text = f"SELECT window_start, count(*) AS n, min(ts) AS first FROM TUMBLE(t, ts, {SECOND}) GROUP BY window_start"
    nanos = pa.array([0, 999_999_000, 1_000_000_000], pa.timestamp("ns"))
    assert sorted(row[1] for row in _one({"ts": nanos}, text, tmp_path)) == [1, 2]
    pq.write_table(pa.table({"ts": [0, 999, 1000]}), tmp_path / "i.parquet")
    config = StreamConfig(str(tmp_path / "i.parquet"), (), "ts", "ms")
    rows, _ = run_query(text, {"t": config}, tmp_path / "ints")
    assert sorted(row[1] for row in rows) == [1, 2]
    assert verify(tmp_path / "ints").equal


def test_columns_may_have_any_name(tmp_path: Path) -> None:
    table = {
        "ts": _us(0, 1, 2),
        "COUNT(*)": [100, 100, 200],
        "k % 2": [5, 5, 6],
        "k": [1, 1, 2],
        "argument of SUM(k)": [0, 0, 0],
    }
    text = (
        'SELECT "COUNT(*)" AS a, "k % 2" AS b, k % 2 AS odd, count(*) AS n, sum(k) AS s, "argument of SUM(k)" AS z '
        f'FROM TUMBLE(t, ts, {SECOND}) GROUP BY "COUNT(*)", "k % 2", k % 2, "argument of SUM(k)", window_start HAVING s > 0'
    )
    assert _one(table, text, tmp_path) == Counter({(100, 5, 1, 2, 2, 0): 1, (200, 6, 0, 1, 2, 0): 1})
    having = "HAVING n > 1 AND total = 2"
    named = f"SELECT sum(k) AS total, count(*) AS n FROM TUMBLE(t, ts, {SECOND}) GROUP BY k, window_start {having}"
    (tmp_path / "alias").mkdir()
    assert _one(table, named, tmp_path / "alias") == Counter({(2, 2): 1})


def test_lengths_of_windows_are_durations(tmp_path: Path) -> None:
    items = "window_end - window_start AS len, min(ts) - window_start AS gap"
    text = f"SELECT {items} FROM TUMBLE(t, ts, {SECOND}) GROUP BY window_end"
    rows = _one({"ts": _us(5, 1_000_007)}, text, tmp_path)
    assert {(len_.total_seconds(), gap.microseconds) for len_, gap in rows} == {(1.0, 5), (1.0, 7)}


def test_ten_thousand_windows_of_few_rows_and_one_that_is_far_away(tmp_path: Path) -> None:
    times = sorted([*range(0, 3_000_000, 7_001), 10**15])
    text = f"SELECT window_start, count(*) AS n FROM {_hop(1, 25, 't')} GROUP BY window_start"
    rows = _one({"ts": _us(*times)}, text, tmp_path)
    assert sum(n * count for (_, n), count in rows.items()) == 25 * len(times)


def test_a_state_beyond_its_limit_ends_the_run(tmp_path: Path) -> None:
    n = 60_000
    table = {"ts": _us(*range(n)), "k": np.arange(n)}
    text = f"SELECT k, count(*) AS n FROM TUMBLE(t, ts, {SECOND}) GROUP BY k, window_start"
    with pytest.raises(RunFailed, match=r"windows hold \d+ bytes, above the limit of 1048576 \(module.window_bytes\)"):
        _one(table, text, tmp_path, module={"window_bytes": 1 << 20})


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("SELECT count(*) AS n FROM a", "GROUP BY, DISTINCT or an aggregate without a window; give one: FROM TUMBLE("),
        ("SELECT k FROM a GROUP BY k", "GROUP BY, DISTINCT or an aggregate without a window"),
        ("SELECT DISTINCT k FROM a", "GROUP BY, DISTINCT or an aggregate without a window"),
        ("SELECT k FROM a HAVING k > 2", "GROUP BY, DISTINCT or an aggregate without a window"),
        (f"SELECT count(*) AS n FROM TUMBLE(a, ts, {SECOND})", "groups without their window; write GROUP BY window_start"),
        (f"SELECT k FROM TUMBLE(a, ts, {SECOND}) GROUP BY k", "groups without their window; write GROUP BY window_start"),
        (
            "SELECT k FROM HOP(a, ts, INTERVAL '1' MICROSECOND, INTERVAL '1' SECOND)",
            "HOP: a row is in more than 100 windows; group",
        ),
        (
            f"SELECT l.k FROM TUMBLE(a, ts, {SECOND}) l JOIN HOP(a, ts, {SECOND}, INTERVAL '2' SECOND) r "
            "ON l.k = r.k AND l.window_start = r.window_start",
            "the join of two streams has no time condition",
        ),
        (
            f"SELECT v FROM TUMBLE(a, ts, {SECOND}) GROUP BY k, window_end",
            "v is neither in GROUP BY nor in an aggregate; add v",
        ),
        (f"SELECT k FROM TUMBLE(a, ts, {SECOND}) GROUP BY k, window_end HAVING v > 1", "v is neither in GROUP BY"),
        (
            f'SELECT "COUNT(*)" AS x, count(*) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end',
            "column COUNT(*) is missing",
        ),
        (
            f'SELECT sum(v) AS s FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end HAVING "SUM(v)" > 1',
            "column SUM(v) is missing",
        ),
        (
            f"SELECT t.v AS s FROM TUMBLE(a, ts, {SECOND}) AS t(ts, v, k) GROUP BY v, window_end",
            "columns is not supported, in t(",
        ),
        (f"SELECT count(* EXCLUDE k) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "COUNT(* EXCLUDE (k)) is not"),
        (f"SELECT sum(TABLE v) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "function TABLE is not supported"),
        (f"SELECT sum(DESCRIPTOR(v)) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "function DESCRIPTOR is not"),
        (f"SELECT DISTINCT k FROM TUMBLE(a, ts, {SECOND}) HAVING k > 1", "DISTINCT of groups is not supported"),
        (f"SELECT sum(v) IGNORE NULLS AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "SUM(v) is not supported"),
        (
            f"SELECT (SELECT sum(v) FROM a) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "(SELECT SUM(v) FROM a) is not",
        ),
        (f"SELECT kk FROM TUMBLE(a, ts, {SECOND}) GROUP BY k, window_end", "column kk is missing; did you mean k?"),
        (f"SELECT count(*) FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "column 1, COUNT(*), has no name"),
        (f"SELECT * FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "* of groups is not supported; name the columns"),
        (
            f"SELECT count(DISTINCT k, v) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "COUNT(DISTINCT CASE WHEN k IS NULL",  # sqlglot's meaning of two columns
        ),
        (f"SELECT sum(x) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "SUM(x): sum of "),
        (f"SELECT sum(DISTINCT x) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "SUM(DISTINCT x): sum of "),
        (
            f"SELECT median(v) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "MEDIAN(v) is not supported; use count, sum",
        ),
        (f"SELECT arg_max(v) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "ARG_MAX(v)"),
        (
            f"SELECT arg_max(v, k, 3) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "ARG_MAX(v, k, 3) is a list, which no column can be",
        ),
        (f"SELECT first(v ORDER BY k) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "FIRST(v ORDER BY k"),
        (
            f"SELECT max(v, 3) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "MAX(v, 3) is a list, which no column can be",
        ),
        (
            f"SELECT sum(sum(v)) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end",
            "SUM(SUM(v)): an aggregate of an aggregate",
        ),
        (f"SELECT min(window_end) AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY window_end", "MIN(window_end): an aggregate of a"),
        (f"SELECT count(*) AS n FROM TUMBLE(a, ts, {SECOND}) WHERE n > 3 GROUP BY window_end", "column n is missing"),
        (f"SELECT 1 AS n FROM TUMBLE(a, ts, {SECOND}) WHERE sum(v) > 3 GROUP BY window_end", "SUM(v): an aggregate in WHERE"),
        (f"SELECT 1 AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY sum(v), window_end", "SUM(v): GROUP BY of an aggregate"),
        (f"SELECT 1 AS n FROM TUMBLE(a, ts, {SECOND}) GROUP BY 3, window_end", "GROUP BY 3: there are 1 items"),
        (f"SELECT k FROM TUMBLE(a, ts, {SECOND}) GROUP BY ALL", "GROUP BY ALL is not supported; name each expression"),
        (f"SELECT k FROM TUMBLE(a, ts, {SECOND}) GROUP BY ROLLUP (k)", "GROUP BY ROLLUP (k) is not supported"),
        (
            f"SELECT k FROM TUMBLE(a, ts, {SECOND}) GROUP BY k, date_trunc('day', window_end)",
            "DATE_TRUNC('DAY', window_end): an",
        ),
        (f"SELECT DISTINCT ON (k) k FROM TUMBLE(a, ts, {SECOND})", "DISTINCT ON is not supported; write GROUP BY"),
        (f"SELECT DISTINCT count(*) AS n FROM TUMBLE(a, ts, {SECOND})", "DISTINCT of groups is not supported; leave it out"),
        (
            "SELECT 1 AS n FROM TUMBLE(a, v, INTERVAL '1' SECOND) GROUP BY window_end",
            "TUMBLE: v is no time of its rows; columns",
        ),
        (
            "SELECT 1 AS n FROM TUMBLE(a, ts) GROUP BY window_end",
            "TUMBLE(a, ts) is not complete; write TUMBLE(TABLE, TIME COLUMN",
        ),
        ("SELECT 1 AS n FROM TUMBLE(a, ts, 5) GROUP BY window_end", "TUMBLE(a, ts, 5): 5 is no interval; write TUMBLE("),
        ("SELECT 1 AS n FROM TUMBLE(a, ts, INTERVAL '0' SECOND) GROUP BY window_end", "TUMBLE(a, ts, INTERVAL '0' SECOND): "),
        ("SELECT 1 AS n FROM TUMBLE(a, ts, INTERVAL '-5' SECOND) GROUP BY window_end", "TUMBLE(a, ts, INTERVAL '-5' SECOND): "),
        (
            "SELECT 1 AS n FROM TUMBLE(5, ts, INTERVAL '5' SECOND) GROUP BY window_end",
            "TUMBLE(5, ts, INTERVAL '5' SECOND): its",
        ),
        (f"SELECT 1 AS n FROM HOP(a, ts, {SECOND}) GROUP BY window_end", "HOP(a, ts, INTERVAL '1' SECOND) is not complete"),
        (
            f"SELECT 1 AS n FROM CUMULATE(a, ts, {SECOND}) GROUP BY window_end",
            "column window_end is missing; there are",
        ),
        (f"SELECT 1 AS n FROM CUMULATE(a, ts, {SECOND}, {SECOND}) GROUP BY window_end", "CUMULATE(a, ts, INTERVAL '1' SECOND"),
        (f"SELECT 1 AS n FROM TUMBLE(b, ts, {SECOND}) GROUP BY window_end", "table b is unknown; there are a, n"),
        (
            f"SELECT 1 AS n FROM TUMBLE(a, ts, {SECOND}) t JOIN n ON n.k = t.k AND n.at = t.ts GROUP BY window_end",
            "TUMBLE beside",
        ),
    ],
)
def test_one_line_for_groups_that_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, TABLES)
    message = str(caught.value)
    assert message.startswith(problem) or f": {problem}" in message, message
    assert "\n" not in message
