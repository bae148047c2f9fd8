"""Windows of tuples, and windows aligned to data: against DuckDB, edges by hand, in Python, and what is refused."""

from __future__ import annotations

from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin import col, hop, row_count, rows, stream, tumble
from swjoin.config.connectors import StreamConfig
from swjoin.core.errors import UserError
from swjoin.frontends.sql.planner import Table, plan_query
from tests.support.drawn import mostly_drawn
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import write_streams
from tests.support.queries import check_on_ranks, checked_query, run_query

Inputs = dict[str, StreamConfig]
TABLES = {"a": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]")), "ts")}
BY = "GROUP BY k, window_start, window_end"
EPOCH = datetime(1970, 1, 1)


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_streams(tmp_path_factory.mktemp("streams"), "ab", 300, 3, keys=12, null_share=0.1)


def _ms(milliseconds: int) -> str:
    return f"INTERVAL '{milliseconds}' MILLISECOND"


FIRST = f"TUMBLE(a, ts, {_ms(30)}, origin => 'first')"
QUERIES = [
    # of tuples
    f"SELECT k, window_start, window_end, count(*) AS n, sum(v) AS s, avg(v) AS m FROM ROWS(a, ts, 5) {BY}",
    f"SELECT k, window_end, arg_max(x, v) AS a, arg_min(k, x || v) AS b, count(DISTINCT x) AS d FROM ROWS(a, ts, 10, 3) {BY}",
    f"SELECT k, window_end, count(*) AS n, min(x) AS x FROM ROWS(a, ts, 7, 4, partial => true) {BY}",
    f"SELECT k, window_end, sum(v) AS s FROM ROWS(a, ts, 2, 5) {BY}",
    f"SELECT k, window_start, sum(v) AS s FROM ROWS(a, ts, 3, 1) WHERE v % 2 = 0 AND window_end > '1970-01-01 00:00:00.1' {BY}",
    "SELECT window_end, count(*) AS n FROM ROWS(a, ts, 20, 10) GROUP BY window_end HAVING sum(v) > 20",
    "SELECT k % 3 AS m, x, max(v) AS s FROM ROWS((SELECT * FROM a WHERE v > 5), ts, 4, partial => false) "
    "GROUP BY k % 3, x, window_start, window_end",
    f"SELECT k, window_end, count(*) AS n FROM TABLE(ROWS(TABLE a, DESCRIPTOR(ts), 6, 2)) r {BY}",
    f"SELECT window_start, sum(n) AS n FROM TUMBLE((SELECT k, window_end AS w, count(*) AS n FROM ROWS(a, ts, 3) {BY}), w, "
    f"{_ms(50)}) GROUP BY window_start, window_end",
    f"SELECT q.k, q.w, b.v FROM (SELECT k, window_end AS w, count(*) AS n FROM ROWS(a, ts, 6) {BY}) q "
    f"JOIN b ON q.k = b.k AND b.ts BETWEEN q.w AND q.w + {_ms(9)}",
    # aligned to data
    f"SELECT k, window_start, window_end, count(*) AS n, arg_max(x, v) AS a FROM {FIRST} {BY}",
    f"SELECT k, window_start, sum(v) AS s FROM HOP(a, ts, {_ms(7)}, {_ms(25)}, origin => 'first') {BY}",
    f"SELECT k, window_end, sum(v) AS s FROM HOP(a, ts, {_ms(50)}, {_ms(20)}, origin => 'first') WHERE v > 9 {BY}",
    f"SELECT x, count(*) AS n, window_end FROM {FIRST} GROUP BY x, window_start, window_end HAVING count(*) > 2",
    f"SELECT q.w, sum(q.n) AS n FROM (SELECT k, window_start AS w, count(*) AS n FROM {FIRST} {BY}) q GROUP BY q.w",
    f"SELECT q.k, q.w, b.v FROM (SELECT k, window_start AS w, count(*) AS n FROM {FIRST} {BY}) q "
    f"JOIN b ON q.k = b.k AND b.ts BETWEEN q.w AND q.w + {_ms(9)}",
]


@pytest.mark.parametrize("text", mostly_drawn(QUERIES, every=2), ids=[text[:70] for text in QUERIES])
def test_rows_are_those_of_duckdb(text: str, streams: Inputs, tmp_path: Path) -> None:
    assert len(checked_query(text, streams, tmp_path)) >= 1


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_the_same_rows(streams: Inputs, tmp_path: Path) -> None:
    check_on_ranks([QUERIES[i] for i in (0, 2, 4, 8, 10, 15)], streams, tmp_path, 5)


def _table(ms: list[int], k: list[Any] | None = None) -> pa.Table:
    """Rows at these milliseconds, with their places as values."""
    times = pa.array([EPOCH + timedelta(milliseconds=each) for each in ms], pa.timestamp("us"))
    return pa.table({"k": k or [1] * len(ms), "v": list(range(len(ms))), "ts": times})


def _at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _answer(query: Any) -> list[tuple[Any, ...]]:
    found = query.collect(max_out_of_order="1s")
    return _sorted([tuple(row.values()) for row in found.to_pylist()])


def _sorted(found: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    return sorted(found, key=str)


def test_rows_are_numbered_by_time_and_place() -> None:
    """The file's rows are out of order, and two have one time; null is a group."""
    table = _table([5, 3, 9, 3, 7, 1, 1], [1, 1, 1, 1, 1, None, None])
    groups = stream(table, time="ts").group_by("k")
    items = {"n": row_count(), "v": col("v").sum(), "first": col("v").first(), "last": col("v").last()}
    of_three = _answer(groups.window(rows(3, every=2)).agg(**items))
    assert of_three == [(1, _at(3), _at(5), 3, 4, 1, 0), (1, _at(5), _at(9), 3, 6, 0, 2)]
    partial = _answer(groups.window(rows(3, every=2, partial=True)).agg(**items))
    left = [(1, _at(9), _at(9), 1, 2, 2, 2), (None, _at(1), _at(1), 2, 11, 5, 6)]
    assert partial == _sorted([*of_three, *left])
    gaps = _answer(groups.window(rows(1, every=3)).agg(v=col("v").sum()))
    assert gaps == [(1, _at(3), _at(3), 1), (1, _at(7), _at(7), 4), (None, _at(1), _at(1), 5)]


def test_two_windows_may_have_the_same_times() -> None:
    query = stream(_table([4, 4, 4, 4, 4]), time="ts").group_by("k").window(rows(2)).agg(v=col("v").sum())
    assert _answer(query) == [(1, _at(4), _at(4), 1), (1, _at(4), _at(4), 5)]


def test_windows_begin_with_the_first_row_and_have_both_ends() -> None:
    table = _table([7, 17, 27, 28, 3, 13], [1, 1, 1, 1, 2, 2])
    groups = stream(table, time="ts").group_by("k")
    found = _answer(groups.window(tumble("10ms", origin="first")).agg(n=row_count(), v=col("v").max()))
    of_one = [(1, _at(7), _at(17), 2, 1), (1, _at(17), _at(27), 2, 2), (1, _at(27), _at(37), 2, 3)]
    assert found == _sorted([*of_one, (2, _at(3), _at(13), 2, 5), (2, _at(13), _at(23), 1, 5)])
    found = _answer(groups.window(hop("2ms", every="10ms", origin="first")).agg(n=row_count()))
    ends = [(1, _at(7), _at(9), 1), (1, _at(17), _at(19), 1), (1, _at(27), _at(29), 2)]
    assert found == _sorted([*ends, (2, _at(3), _at(5), 1), (2, _at(13), _at(15), 1)])
    negative = _answer(
        stream(_table([-9, -4, 0]), time="ts").group_by("k").window(tumble("4ms", origin="first")).agg(n=row_count())
    )
    assert negative == _sorted([(1, _at(-9), _at(-5), 1), (1, _at(-5), _at(-1), 1), (1, _at(-1), _at(3), 1)])


def test_first_of_a_session_is_the_earliest_row() -> None:
    """Also where rows are out of order, and a session's rows come out with one time."""
    table = _table([5, 3, 9, 4, 70])
    found = swjoin.sql(
        f"SELECT k, first(v) AS f, last(v) AS l, arg_min(v, k) AS a FROM SESSION(a, ts, {_ms(20)}) {BY}",
        tables={"a": table},
        time={"a": "ts"},
        max_out_of_order="1s",
    )
    assert sorted(map(tuple, (row.values() for row in found.to_pylist()))) == [(1, 1, 2, 1), (1, 4, 4, 4)]


def test_a_stream_of_one_row_per_window_is_bounded(tmp_path: Path) -> None:
    """What is kept does not grow with the rows, but with the groups."""
    n = 20_000
    pq.write_table(_table(list(range(n)), [i % 10 for i in range(n)]), tmp_path / "a.parquet")
    inputs = {"a": StreamConfig(str(tmp_path / "a.parquet"), (), "ts")}
    for i, window in enumerate(("ROWS(a, ts, 10, 5)", f"TUMBLE(a, ts, {_ms(100)}, origin => 'first')")):
        _, report = run_query(
            f"SELECT k, window_end, count(*) AS n FROM {window} {BY}", inputs, tmp_path / str(i), cluster={"epoch_tuples": 500}
        )
        assert max(max(stage["peak_window_tuples"]) for stage in report["stages"]) < 3_000


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"SELECT k FROM ROWS(a, ts, 0) {BY}", "ROWS(a, ts, 0): 0 rows are no window; give a number above zero"),
        (f"SELECT k FROM ROWS(a, ts, 5, -2) {BY}", "ROWS(a, ts, 5, -2): -2 rows are no window; give a number above zero"),
        (f"SELECT k FROM ROWS(a, ts, 1.5) {BY}", "ROWS(a, ts, 1.5): 1.5 is no number of rows; write ROWS(TABLE, TIME COLUMN,"),
        (f"SELECT k FROM ROWS(a, ts) {BY}", "ROWS(a, ts) is not complete; write ROWS(TABLE, TIME COLUMN, SIZE[, ADVANCE]"),
        (f"SELECT k FROM ROWS(a, ts, 1, 2, 3) {BY}", "ROWS(a, ts, 1, 2, 3) is not complete"),
        (f"SELECT k FROM ROWS(a, v, 2) {BY}", "ROWS: v is no time of its rows; columns that are: ts"),
        (f"SELECT k FROM ROWS(a, ts, 2, partial => 1) {BY}", "ROWS(a, ts, 2, partial => 1): partial is 1; give true or false"),
        (f"SELECT k FROM ROWS(a, ts, 2, origin => 'first') {BY}", "ROWS(a, ts, 2, origin => 'first'): ROWS has no origin"),
        (
            f"SELECT k FROM ROWS(a, ts, 2, partial => true, partial => true) {BY}",
            "ROWS(a, ts, 2, partial => TRUE, partial => TRUE): partial is given twice",
        ),
        ("SELECT k FROM ROWS(a, ts, 2)", "ROWS without GROUP BY window_start"),
        ("SELECT k, count(*) AS n FROM ROWS(a, ts, 2) GROUP BY k", "groups without their window; write GROUP BY window_start"),
        ("SELECT DISTINCT k, window_end FROM ROWS(a, ts, 2)", "DISTINCT over ROWS: two windows may have the same times"),
        (
            f"SELECT k FROM TABLE(ROWS(TABLE a PARTITION BY k, DESCRIPTOR(ts), 5)) {BY}",
            "ROWS(TABLE(a, (k)), DESCRIPTOR(ts), 5): PARTITION BY is for sessions",
        ),
        (
            f"SELECT window_start FROM TUMBLE((SELECT window_end AS w FROM ROWS(a, ts, 2, partial => true) {BY}), w, {_ms(5)}) "
            "GROUP BY window_start",
            "TUMBLE: w is no time of its rows; columns that are: none",
        ),
        (
            f"SELECT k FROM TUMBLE(a, ts, {_ms(5)}, origin => 'last') {BY}",
            "TUMBLE(a, ts, INTERVAL '5' MILLISECOND, origin => 'last'): origin is 'last'; give 'first', or leave it out",
        ),
        (f"SELECT k FROM SESSION(a, ts, {_ms(5)}, origin => 'first') {BY}", "SESSION(a, ts, INTERVAL '5' MILLISECOND, origin"),
        (f"SELECT k FROM {FIRST}", "TUMBLE without GROUP BY window_start"),
    ],
)
def test_one_line_for_what_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, TABLES)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda: rows(0), "rows: n=0 is no number of rows; give an integer above zero"),
        (lambda: rows(3, every=-1), "rows: every=-1 is no number of rows; give an integer above zero"),
        (lambda: rows("3"), "rows: n='3' is no number of rows"),
        (lambda: rows(True), "rows: n=True is no number of rows"),
        (lambda: rows(3, partial="yes"), "rows: partial='yes'; give True or False"),
        (lambda: tumble("5s", origin="last"), "origin: 'last' is not one of 'first'"),
        (lambda: hop("5s", every="1s", origin=0), "origin: 0 is not one of 'first'"),
        (lambda: hop("0s", every="1s"), "size: '0s' is no length of a window; give a time above zero"),
        (
            lambda: _groups(rows(3, partial=True)).group_by("k").window(tumble("1s")).agg(n=row_count()).sql,
            "window: the stream has no time; keep its time column",
        ),
    ],
)
def test_one_line_for_windows_in_python(make: Any, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        make()
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)


def _groups(window: Any) -> Any:
    return stream(_table([1, 2]), time="ts").group_by("k").window(window).agg(n=row_count())


def test_explanations_name_the_windows() -> None:
    lines = _groups(rows(10, every=5)).explain().splitlines()
    assert (
        "windows of 10 rows every 5 by k; time of a row: the last row of its window; watermark: that of its input" in lines[0]
    )
    lines = _groups(rows(2, partial=True)).explain().splitlines()
    assert "windows of 2 rows by k, and those that the stream does not fill; time of a row: the last row" in lines[0]
    lines = _groups(hop("10s", every="5s", origin="first")).explain().splitlines()
    assert (
        "windows of 10s every 5s from the first row on, by k; time of a row: the end of its window; watermark: that" in lines[0]
    )
