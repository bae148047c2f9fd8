"""Views of all rows so far: CUMULATE against DuckDB, its edges by hand, `cumulate` in Python, `swjoin join --agg`, and what is
refused."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin import col, cumulate, row_count, stream
from swjoin.config.connectors import StreamConfig
from swjoin.core.errors import UserError
from swjoin.frontends.sql.planner import Table, plan_query
from tests.frontends.test_joins_without_keys import table_of
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import write_streams
from tests.support.queries import check_on_ranks, checked_query

Inputs = dict[str, StreamConfig]
EPOCH = datetime(1970, 1, 1)
TABLES = {
    "a": Table((("k", "int64"), ("v", "int64"), ("x", "string"), ("ts", "timestamp[us]")), "ts"),
    "b": Table((("k", "int64"), ("as_of", "int64"), ("ts", "timestamp[us]")), "ts"),
}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return write_streams(tmp_path_factory.mktemp("streams"), "ab", 300, 3, keys=12, null_share=0.1)


def _ms(milliseconds: int) -> str:
    return f"INTERVAL '{milliseconds}' MILLISECOND"


BOUNDS = f"b.ts BETWEEN a.ts - {_ms(40)} AND a.ts + {_ms(30)}"
PAIRS = f"(SELECT a.k, a.v, b.v AS w, b.x, greatest(a.ts, b.ts) AS t FROM a JOIN b ON a.k = b.k AND {BOUNDS})"
EARLIER = f"(SELECT a.v, least(b.ts, a.ts) AS t, a.ts, b.x FROM a JOIN b ON abs(a.k - b.k) <= 1 AND {BOUNDS})"
WINDOWS = f"SELECT k, window_end AS w, sum(v) AS s FROM TUMBLE(a, ts, {_ms(20)}) GROUP BY k, window_end"
QUERIES = [
    f"SELECT as_of, k, count(*) AS n, sum(v) AS s, avg(v) AS m FROM CUMULATE(a, ts, {_ms(50)}) GROUP BY as_of, k",
    f"SELECT as_of AS z, count(v) AS n, min(v) AS lo, max(v) AS hi FROM CUMULATE(a, ts, {_ms(30)}) GROUP BY as_of",
    f"SELECT as_of, x, sum(w) AS s, count(*) AS n FROM CUMULATE({PAIRS}, t, {_ms(50)}) GROUP BY as_of, x",
    f"SELECT as_of, sum(w / 4) AS s, k % 3 AS m FROM CUMULATE({PAIRS}, t, {_ms(9)}) WHERE v > 2 GROUP BY as_of, k % 3 "
    "HAVING count(*) > 3",
    f"SELECT x, as_of, count(*) AS n FROM TABLE(CUMULATE(TABLE a, DESCRIPTOR(ts), {_ms(7)})) "
    "WHERE as_of > '1970-01-01 00:00:00.1' AND v % 5 = 0 GROUP BY 1, 2",
    f"SELECT as_of, count(*) AS n FROM CUMULATE(({WINDOWS}), w, {_ms(50)}) GROUP BY as_of",
    f"SELECT as_of, x, count(*) AS n, sum(v) AS s FROM CUMULATE({EARLIER}, t, {_ms(40)}) GROUP BY as_of, x",
    f"SELECT as_of, count(*) AS n FROM CUMULATE({EARLIER}, ts, {_ms(40)}) GROUP BY as_of",
    f"SELECT window_end AS e, count(*) AS n, max(w) AS w FROM TUMBLE({PAIRS}, t, {_ms(25)}) GROUP BY window_end",
]


@pytest.mark.parametrize("text", QUERIES, ids=[text[:70] for text in QUERIES])
def test_rows_are_those_of_duckdb(text: str, streams: Inputs, tmp_path: Path) -> None:
    assert len(checked_query(text, streams, tmp_path)) > 4


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_have_the_same_rows(streams: Inputs, tmp_path: Path) -> None:
    check_on_ranks([QUERIES[i] for i in (0, 2, 3, 6)], streams, tmp_path, 6)


# ---------------------------------------------------------------- edges, in Python


def _table(ms: list[int], k: list[Any]) -> pa.Table:
    """Rows at these milliseconds, with their places as values."""
    times = pa.array([_at(each) for each in ms], pa.timestamp("us"))
    return pa.table({"k": pa.array(k, pa.int64()), "v": pa.array(range(len(ms)), pa.int64()), "ts": times})


def _at(ms: int) -> datetime:
    return EPOCH + timedelta(milliseconds=ms)


def _views(table: pa.Table, every: str) -> list[tuple[Any, ...]]:
    query = stream(table, time="ts").group_by("k").window(cumulate(every)).agg(n=row_count(), s=col("v").sum())
    assert query.columns == ("k", "as_of", "n", "s")
    return sorted((tuple(row.values()) for row in query.collect(max_out_of_order="10s").to_pylist()), key=str)


def test_a_view_has_what_is_at_its_time_and_every_group_before() -> None:
    """20 ms is in the view of 20 ms, a millisecond more in the next; 2 has no row after 10 ms; null is a group."""
    found = _views(_table([3, 20, 21, 10, 42, 9], [1, 1, 1, 2, 1, None]), "10ms")
    of_one = [(1, _at(10), 1, 0), (1, _at(20), 2, 1), (1, _at(30), 3, 3), (1, _at(40), 3, 3), (1, _at(50), 4, 7)]
    of_two = [(2, _at(ms), 1, 3) for ms in (10, 20, 30, 40, 50)]
    of_null = [(None, _at(ms), 1, 5) for ms in (10, 20, 30, 40, 50)]
    assert found == sorted([*of_one, *of_two, *of_null], key=str)


def test_times_before_1970_and_no_rows() -> None:
    assert _views(_table([-25, -20, 0], [1, 1, 1]), "10ms") == sorted(
        [(1, _at(-20), 2, 1), (1, _at(-10), 2, 1), (1, _at(0), 3, 3)], key=str
    )
    assert _views(_table([], []), "10ms") == []


@pytest.mark.parametrize("make", [lambda: cumulate("0s"), lambda: cumulate("-1s")])
def test_no_length(make: Any) -> None:
    with pytest.raises(UserError, match=r"every: '.*' is no length of a window; give a time above zero"):
        make()


def test_views_are_explained_and_refuse_what_would_follow() -> None:
    views = stream(_table([1], [1]), time="ts").group_by("k").window(cumulate("10s")).agg(n=row_count())
    lines = views.explain().splitlines()
    assert any("count by k, totals every 10s; time of a row: the last microsecond of its window" in line for line in lines)
    rule = "views of k every 10s; time of a row: the time of its view; watermark: none before the end of its input"
    assert any(rule in line for line in lines)
    with pytest.raises(UserError, match="window: the stream has no time; keep its time column"):
        views.group_by("k").window(cumulate("20s")).agg(m=row_count()).collect()


# ---------------------------------------------------------------- what is refused

EVERY = "INTERVAL '1' SECOND"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"SELECT as_of, count(DISTINCT k) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY as_of", "COUNT(DISTINCT k): is decided"),
        (f"SELECT as_of, min(x) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY as_of", "MIN(x): is decided by rows, of which"),
        (f"SELECT as_of, first(v) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY as_of", "FIRST(v): is decided by rows"),
        (
            f"SELECT k, count(*) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY k",
            "groups without their window; write GROUP BY as_of",
        ),
        (f"SELECT window_end, count(*) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY window_end", "column window_end is missing"),
        (f"SELECT as_of, v FROM CUMULATE(a, ts, {EVERY})", "CUMULATE without GROUP BY as_of; select groups"),
        (f"SELECT as_of, count(*) AS n FROM CUMULATE(b, ts, {EVERY}) GROUP BY as_of", "CUMULATE: the rows have a column as_of"),
        (
            f"SELECT as_of, count(*) AS n FROM CUMULATE(a, ts, {EVERY}, INTERVAL '1' DAY) GROUP BY as_of",
            "CUMULATE(a, ts, INTERVAL '1' SECOND, INTERVAL '1' DAY) is not complete; write CUMULATE(TABLE, TIME COLUMN",
        ),
        ("SELECT as_of, count(*) AS n FROM CUMULATE(a, ts, 5) GROUP BY as_of", "CUMULATE(a, ts, 5): 5 is no interval"),
        (f"SELECT as_of, count(*) AS n FROM CUMULATE(a, v, {EVERY}) GROUP BY as_of", "CUMULATE: v is no time of its rows"),
        (
            f"SELECT n FROM (SELECT as_of, count(*) AS n FROM CUMULATE(a, ts, {EVERY}) GROUP BY as_of) q GROUP BY as_of, n",
            "GROUP BY, DISTINCT or an aggregate without a window",
        ),
        (
            f"SELECT k FROM (SELECT k, ROW_NUMBER() OVER (PARTITION BY as_of ORDER BY v) AS r FROM CUMULATE(a, ts, {EVERY})) q "
            "WHERE r <= 2",
            "ROW_NUMBER() OVER (PARTITION BY as_of ORDER BY v): no window",
        ),
    ],
)
def test_one_line_for_views_that_cannot_be(text: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        plan_query(text, TABLES)
    message = str(caught.value)
    assert message.startswith(problem), message
    assert "\n" not in message


# ---------------------------------------------------------------- the command

ARGUMENTS = ("--left-time", "ts", "--right-time", "at", "--within", "40ms")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """left.parquet and right.parquet, and the same with times that are integers, milliseconds."""
    found = tmp_path_factory.mktemp("sides")
    for seed, name, time in ((1, "left", "ts"), (2, "right", "at")):
        table = table_of(seed, time, f"only_{name}").sort_by(time)
        pq.write_table(table, found / f"{name}.parquet")
        at = table.column_names.index(time)
        whole = table.column(time).cast(pa.timestamp("ms"), safe=False).cast(pa.int64())
        pq.write_table(table.set_column(at, time, whole), found / f"{name}_ms.parquet")
    return found


def _expected(folder: Path, condition: str, by: str, items: str, ms: str = "") -> Counter[tuple[Any, ...]]:
    """In DuckDB: a view is an aggregate of the pairs that are not after it."""
    files = [f"'{folder / name}{ms}.parquet'" for name in ("left", "right")]
    times = ["make_timestamp(l.ts * 1000)", 'make_timestamp(r."at" * 1000)'] if ms else ["l.ts", 'r."at"']
    near = f"epoch_us({times[1]}) - epoch_us({times[0]}) BETWEEN -40000 AND 40000"
    at = f"greatest({times[0]}, {times[1]}) AS later, l.v AS left_v, r.v AS right_v"
    pairs = (
        f"SELECT {at}, l.name AS left_name, only_left, only_right FROM {files[0]} l JOIN {files[1]} r ON {near} AND {condition}"
    )
    edge = "(ceil(epoch_us({}(later)) / 100000) * 100000)::BIGINT"
    times_of = f"SELECT unnest(generate_series({edge.format('min')}, {edge.format('max')}, 100000)) AS us FROM pairs"
    grouped = f", {by}" if by else ""
    with duckdb.connect() as db:
        db.execute(f"CREATE TABLE pairs AS {pairs}")
        query = f"SELECT make_timestamp(us){grouped}, {items} FROM ({times_of}) JOIN pairs ON epoch_us(later) <= us"
        return Counter(db.execute(f"{query} GROUP BY us{grouped}").fetchall())


@pytest.mark.parametrize(
    ("options", "condition", "by", "items"),
    [
        ("--on v", "l.v = r.v", "left_name", "count(*), sum(right_v)"),
        ("--where 'abs(left_v - right_v) <= 2'", "abs(l.v - r.v) <= 2", "left_name, only_right", "count(*), sum(right_v)"),
        (
            "--left-on v --right-on only_right --where 'left_x < 1'",
            "l.v = only_right AND l.x < 1 AND NOT isnan(l.x)",
            "",
            "count(*)",
        ),
    ],
)
def test_the_command(options: str, condition: str, by: str, items: str, folder: Path, swjoin: Any, tmp_path: Path) -> None:
    group = ["--group-by", by.replace(" ", "")] if by else []
    agg = "count(*) AS n, sum(right.v) AS s" if "sum" in items else "count(*) AS n"
    for ms in ("", "_ms"):
        files = [folder / f"{name}{ms}.parquet" for name in ("left", "right")]
        unit = ["--time-unit", "ms"] if ms else []
        out, report = tmp_path / f"views{ms}.parquet", tmp_path / f"report{ms}.json"
        more = [*shlex.split(options), "--agg", agg, *group, "--every", "100ms", "-o", out, "--report", report]
        done = swjoin("join", *files, *ARGUMENTS, *unit, *more)
        assert done.code == 0, done.err
        table = pq.read_table(out)
        assert table.column_names == ["as_of", *([] if not by else by.split(", ")), "n", *(["s"] if "sum" in items else [])]
        found = Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))
        assert found == _expected(folder, condition, by, items, ms)
        assert len(found) > 4
        assert json.loads(report.read_text())["ledger"]["balanced"]


VIEWS = "--on v --agg 'count(*) AS n' --every 1s"


@pytest.mark.parametrize(
    ("options", "line"),
    [
        ("--on v --agg 'count(*) AS n'", "--agg without --every: give the time from one view to the next, such as --every 1s"),
        ("--on v --every 1s", "--every without --agg: give what is aggregated, such as --agg 'count(*) AS n'"),
        ("--on v --group-by v", "--group-by without --agg: give what is aggregated, such as --agg 'count(*) AS n'"),
        ("--on v --agg 'count(*) AS n' --every 0s", "--every 0s: give a time above zero"),
        ("--on v --agg 'sum(nope) AS n' --every 1s", "--agg: column nope is missing; did you mean name?"),
        ("--on v --agg 'min(name) AS n' --every 1s", "--agg: both sides have a column name; write left_name or right_name"),
        (f"{VIEWS} --group-by zz", "--group-by: column zz is missing; there are left_v, left_x, left_name"),
        ("--on v --agg 'left_x AS n' --every 1s", "--agg: left_x is no aggregate; group by it: --group-by"),
        ("--on v --agg '1 AS n' --every 1s", "--agg: 1 is no aggregate; group by it: --group-by"),
        ("--on v --agg 'sum(left_x) + right_x AS n' --every 1s", '"right_x" is neither in GROUP BY nor in an aggregate'),
        (
            "--on v --agg 'count(*) AS v' --group-by v --every 1s",
            "v is twice among as_of, the columns that group, and the aggr",
        ),
        (f"{VIEWS} --group-by left_v left_v", "left_v is twice among as_of, the columns that group, and the aggregates"),
        ("--on v --agg 'sum(as_of) AS s' --every 1s", "--agg: a column as_of, the name of a view's time; write left_as_of or"),
        ("--on x --agg 'count(*) AS n' --every 1s", "key column x: type double cannot be a join key; round it to"),
        (
            "--left-on name --right-on v --agg 'count(*) AS n' --every 1s",
            "join keys: left name is string, right v is int64; cast",
        ),
        (
            "--left-on v v --right-on v only_right --agg 'count(*) AS n' --every 1s",
            "join columns: v is named twice on one side",
        ),
        (
            "--on v --agg 'count(*) AS n FROM x' --every 1s",
            "--agg: count(*) AS n FROM x is more than aggregates; write such as",
        ),
        ("--on v --agg 'count(*' --every 1s", "--agg: syntax error: expecting ) at line 1, column"),
        ("--on v --agg 'count(*)' --every 1s", "--agg: COUNT(*) has no name; give it one: COUNT(*) AS name"),
        (f"{VIEWS} --how left", "--how: views are of pairs; leave it out"),
        (f"{VIEWS} --columns x", "--columns: views have the columns of --group-by and --agg; leave it out"),
        (f"{VIEWS} --left-id v", "--left-id: views number their rows themselves; leave it out"),
        ("--on v --agg 'count(*) AS n' --every 1s --last 5", "--last: views of a join have no count windows; leave out --agg"),
        ("--on w --agg 'count(*) AS n' --every 1s", "left: column w is missing; there are v, x, name, ts, only_left"),
        ("--on name --agg 'count(*) AS n' --every 1s --routing range", "routing range: the join of left and right bounds no"),
    ],
)
def test_what_cannot_be_is_one_line(options: str, line: str, folder: Path, swjoin: Any, tmp_path: Path) -> None:
    files = [folder / f"{name}.parquet" for name in ("left", "right")]
    bounds = ARGUMENTS[:4] if "--last" in options else ARGUMENTS
    done = swjoin("join", *files, *bounds, *shlex.split(options), "-o", tmp_path / "o.csv")
    assert done.code == 2
    (error,) = done.err
    assert error.startswith(f"swjoin: {line}")
    assert not (tmp_path / "o.csv").exists()
