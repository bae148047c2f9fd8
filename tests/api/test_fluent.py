"""`swjoin.stream`: the rows of its verbs against DuckDB, and one line for what cannot be."""

from __future__ import annotations

import datetime
from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from benchmarks.duckdb_text import in_duckdb
from swjoin import col, expr, hop, lit, row_count, session, stream, tumble
from swjoin.api.fluent import Stream


def _table(seed: int, rows: int = 300) -> pa.Table:
    random = np.random.default_rng(seed)
    key = pa.array([None if k == 9 else int(k) for k in random.integers(0, 10, rows)])
    ts = pa.array(np.sort(random.integers(0, 300_000_000, rows)), pa.timestamp("us"))
    return pa.table({"k": key, "v": random.integers(-50, 50, rows), "x": [f"x{i % 5}" for i in range(rows)], "ts": ts})


A, B = _table(1), _table(2)


@pytest.fixture
def a() -> Stream:
    return stream(A, time="ts")


@pytest.fixture
def b() -> Stream:
    return stream(B, time="ts")


def _rows(query: Stream, **options: Any) -> Counter[tuple[Any, ...]]:
    table = query.collect(**options)
    assert tuple(table.schema.names) == query.columns
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _duckdb(text: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.register("a", A)
        db.register("b", B)
        return Counter(db.execute(in_duckdb(text)).fetchall())


def test_filters_and_columns(a: Stream) -> None:
    query = a.filter(col("v") > 3, ~(col("k") == 2) | col("x").is_in(["x1", "x4"]))
    query = query.with_columns(v=col("v") * 2 + 1, w=-col("v") % 7, u=expr("upper(x)")).rename({"x": "name"})
    wanted = "SELECT k, v * 2 + 1, x, ts, -v % 7, upper(x) FROM a WHERE v > 3 AND (NOT k = 2 OR x IN ('x1', 'x4'))"
    assert _rows(query) == _duckdb(wanted)
    assert query.columns == ("k", "v", "name", "ts", "w", "u")
    assert query.time == "ts"


def test_expressions(a: Stream) -> None:
    third = 2 - col("v") / 3
    columns = {
        "a": third,
        "b": col("k").fill_null(-1) // 2,
        "c": col("v").is_between(-3, 7),
        "d": col("k").is_null(),
        "e": col("v").cast("VARCHAR"),
        "f": col("ts") >= datetime.datetime(1970, 1, 1, 0, 2),
        "g": col("ts") + datetime.timedelta(seconds=5),
        "h": (col("v") != 4) & (col("v") <= 9) & lit(True),
        "i": 3 * col("v") + 1.5,
    }
    text = (
        "SELECT 2 - v / 3, coalesce(k, -1) // 2, v BETWEEN -3 AND 7, k IS NULL, v::VARCHAR, "
        "ts >= TIMESTAMP '1970-01-01 00:02:00', ts + INTERVAL '5' SECOND, v <> 4 AND v <= 9, 3 * v + 1.5::DOUBLE FROM a"
    )
    assert _rows(a.select(**columns)) == _duckdb(text)


def test_windows(a: Stream) -> None:
    query = a.group_by("k", odd=col("v") % 2).window(hop("1min", every="20s"))
    query = query.agg(
        n=row_count(), s=col("v").sum(), few=row_count().where(col("v") > 10), m=col("v").mean(), lo=col("v").min()
    )
    text = (
        "SELECT k, v % 2 AS odd, window_start, window_end, count(*), sum(v), count(*) FILTER (v > 10), avg(v), min(v) "
        "FROM HOP(a, ts, INTERVAL '20' SECOND, INTERVAL '1' MINUTE) GROUP BY k, v % 2, window_start, window_end"
    )
    assert _rows(query) == _duckdb(text)
    assert query.time == "window_end"
    again = query.group_by("window_end").agg(most=col("n").max())
    assert _rows(again) == _duckdb(
        f"SELECT q.window_end, max(q.n) FROM ({text.replace('count(*),', 'count(*) AS n,', 1)}) q GROUP BY 1"
    )
    total = a.group_by().window(tumble(datetime.timedelta(minutes=1))).agg(col("v").max(), n=col("k").count())
    assert _rows(total) == _duckdb(
        "SELECT window_start, window_end, max(v), count(k) FROM TUMBLE(a, ts, INTERVAL '1' MINUTE) "
        "GROUP BY window_start, window_end"
    )


def test_sessions_and_calls_that_rows_decide(a: Stream) -> None:
    query = a.group_by("x").window(session("2s"))
    query = query.agg(n=row_count(), u=col("k").n_unique(), top=col("k").arg_max(col("v") * 1000 + col("k")))
    text = (
        "SELECT x, window_start, window_end, count(*), count(DISTINCT k), arg_max(k, v * 1000 + k) "
        "FROM SESSION(a, ts, INTERVAL '2' SECOND) GROUP BY x, window_start, window_end"
    )
    assert _rows(query) == _duckdb(text)
    ends = a.group_by("k").window(tumble("1min")).agg(col("v").first(), last=col("x").last(), low=col("x").arg_min(col("ts")))
    wanted = (
        "SELECT k, window_start, window_end, arg_min(v, ts), arg_max(x, ts), arg_min(x, ts) "
        "FROM TUMBLE(a, ts, INTERVAL '1' MINUTE) GROUP BY k, window_start, window_end"
    )
    assert _rows(ends) == _duckdb(wanted)
    assert query.time == ends.time == "window_end"


def test_first_rows_of_groups_and_of_all(a: Stream) -> None:
    number = "ROW_NUMBER() OVER (PARTITION BY {} ORDER BY v DESC, ts DESC)"
    windows = a.group_by("k").window(hop("1min", every="30s")).head(2, "v", "ts", descending=True)
    both = number.format("k, window_start")
    rows = "FROM HOP(a, ts, INTERVAL '30' SECOND, INTERVAL '1' MINUTE)"
    assert _rows(windows) == _duckdb(f"SELECT *, {both} AS rank {rows} QUALIFY {both} <= 2")
    assert windows.columns == (*a.columns, "window_start", "window_end", "rank")
    again = windows.filter(col("rank") == 1).group_by("window_end").agg(n=row_count())
    firsts = f"SELECT * FROM (SELECT *, {both} AS rank {rows}) q WHERE rank = 1"
    assert _rows(again) == _duckdb(f"SELECT window_end, count(*) FROM ({firsts}) q GROUP BY window_end")
    alone = a.group_by("ts", m=col("v") % 2).head(1, "v", "ts", descending=True, rank="number")
    each = number.format("ts, v % 2")
    assert _rows(alone) == _duckdb(f"SELECT *, {each} AS number FROM a QUALIFY {each} = 1")
    ordered = a.filter(col("v") > 0).sort("x", "v", "ts", descending=[True, False, True])
    wanted = sorted(
        (row for row in A.to_pylist() if row["v"] > 0),
        key=lambda row: (-int(row["x"][1:]), row["v"], -(row["ts"] - datetime.datetime(1970, 1, 1)).total_seconds()),
    )
    assert ordered.collect().to_pylist() == wanted
    assert ordered.head(7).collect().to_pylist() == wanted[:7]
    assert a.head(3).collect().num_rows == 3


@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "semi", "anti"])
def test_joins(how: Any, a: Stream, b: Stream) -> None:
    query = a.join(b, on="k", lower="-5s", upper="10s", how=how)
    on = f"{how.upper()} JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts - INTERVAL '5' SECOND AND a.ts + INTERVAL '10' SECOND"
    key = {"right": "b.k", "full": "coalesce(a.k, b.k)"}.get(how, "a.k")
    more = "" if how in ("semi", "anti") else ", b.v, b.x, b.ts"
    assert _rows(query) == _duckdb(f"SELECT {key}, a.v, a.x, a.ts{more} FROM a {on}")
    assert query.time == {"right": "ts_right", "full": None}.get(how, "ts")


def test_a_join_of_other_keys_and_a_chain(a: Stream, b: Stream) -> None:
    named = b.rename({"k": "other", "ts": "at"})
    query = a.join(named, left_on=["k", "x"], right_on=["other", "x"], within="5s")
    query = query.rename({"v_right": "w"}).join(b, on="k", within="2s")
    text = (
        "SELECT a.k, a.v, a.x, a.ts, b.k AS other, b.v AS w, b.ts AS at, c.v, c.x, c.ts FROM a JOIN b "
        "ON a.k = b.k AND a.x = b.x AND b.ts BETWEEN a.ts - INTERVAL '5' SECOND AND a.ts + INTERVAL '5' SECOND "
        "JOIN b c ON c.k = a.k AND c.ts BETWEEN a.ts - INTERVAL '2' SECOND AND a.ts + INTERVAL '2' SECOND"
    )
    assert _rows(query) == _duckdb(text)


def test_split_and_union(a: Stream, b: Stream) -> None:
    parts = a.split(high=col("v") > 20, odd=col("k") % 2 == 1)
    assert _rows(parts["high"]) == _duckdb("SELECT * FROM a WHERE v > 20")
    assert _rows(parts["odd"]) == _duckdb("SELECT * FROM a WHERE v <= 20 AND k % 2 = 1")
    assert _rows(parts["rest"]) == _duckdb("SELECT * FROM a WHERE v <= 20 AND (k % 2 = 0 OR k IS NULL)")
    whole = parts["high"].union(parts["odd"], parts["rest"])
    assert _rows(whole) == _duckdb("SELECT * FROM a")
    both = a.union(b.select("ts", "x", "v", "k")).group_by("x").window(tumble("100s")).agg(n=row_count())
    united = "(SELECT * FROM a UNION ALL SELECT * FROM b)"
    wanted = f"SELECT x, window_start, window_end, count(*) FROM TUMBLE({united}, ts, INTERVAL '100' SECOND)"
    assert _rows(both) == _duckdb(f"{wanted} GROUP BY x, window_start, window_end")


def test_answers(a: Stream, tmp_path: Path) -> None:
    query = a.filter(col("k") == 3)
    frame = query.collect(returns="pandas")
    assert list(frame.columns) == ["k", "v", "x", "ts"]
    proof = query.sink(tmp_path / "out.parquet")
    assert proof.count == len(frame) == pq.read_table(tmp_path / "out.parquet").num_rows
    assert swjoin.proof(query.collect()).digest == proof.digest
    assert "source stream" in query.explain()
    assert query.sql.startswith('SELECT "k" AS "k"')
    pq.write_table(A, tmp_path / "a.parquet")
    assert _rows(stream(str(tmp_path / "a.parquet"), time="ts").filter(col("k") == 3)) == _rows(query)
    integers = A.set_column(3, "ts", A["ts"].cast(pa.int64()))
    counted = stream(integers, time="ts", time_unit="us").group_by("k").window(tumble("100s")).agg(n=row_count())
    assert _rows(counted) == _rows(a.group_by("k").window(tumble("100s")).agg(n=row_count()))


@pytest.mark.drawn
@pytest.mark.mpi
def test_on_ranks(a: Stream, b: Stream) -> None:
    query = a.join(b, on="k", within="5s").group_by("k").window(tumble("1min")).agg(n=row_count())
    there = query.run(ranks=4)
    assert swjoin.proof(there).digest == swjoin.proof(query.collect()).digest


@pytest.mark.parametrize(
    ("make", "problem"),
    [
        (lambda a, b: stream(A, time="t"), "time: no column t; columns are k, v, x, ts"),
        (lambda a, b: stream(A, time="v"), "time: v is a number without a unit; give time_unit"),
        (lambda a, b: stream(5, time="t"), "data: "),  # type: ignore[arg-type]
        (lambda a, b: a.filter("v > 3"), "filter: 'v > 3' is no condition; write col('a') > 5"),
        (lambda a, b: a.filter(col("w") > 3).collect(), "column w is missing"),
        (lambda a, b: a.filter(col("v") > 3 and col("k") > 1), "a condition of a query has no truth value; combine"),
        (lambda a, b: a.select(col("v") + 1), '("v" + 1) has no name; give it one'),
        (lambda a, b: a.select("v", v=col("k")), "two columns are named v; give one an alias"),
        (lambda a, b: a.select(5), "5 is no column; give a name, or an expression"),  # type: ignore[arg-type]
        (lambda a, b: a.rename({"w": "z"}), "rename: no column w; columns are k, v, x, ts"),
        (lambda a, b: a.split(rest=col("v") > 1), "split: rest is what no condition takes"),
        (lambda a, b: a.union(b.select("k", "ts")), "union: column v is not in all streams"),
        (lambda a, b: a.join(b, on="k"), "join: give within, or lower and upper"),
        (lambda a, b: a.join(b, on="k", lower="1s"), "join: upper is missing"),
        (lambda a, b: a.join(b, within="1s"), "join: give on, or left_on and right_on"),
        (lambda a, b: a.join(b, on="z", within="1s"), "join: no column z"),
        (lambda a, b: a.join(b, left_on="k", right_on=["k", "v"], within="1s"), "join: 1 key columns on the left, 2"),
        (lambda a, b: a.join(b, on="k", within="1s", how="outer"), "how: 'outer'"),  # type: ignore[arg-type]
        (
            lambda a, b: a.with_columns(v_right=lit(1)).join(b, on="k", within="1s"),
            "join: two columns are named v_right; rename one before",
        ),
        (lambda a, b: a.select("k").join(b, on="k", within="1s"), "join: the left stream has no time; keep its time column"),
        (lambda a, b: a.select("k").group_by("k").window(tumble("1s")).agg(n=row_count()), "window: the stream has no time"),
        (lambda a, b: a.group_by("k").window("1s"), "window: '1s' is no window; give tumble('10s')"),  # type: ignore[arg-type]
        (lambda a, b: a.group_by("k").agg(n=row_count()).collect(), "GROUP BY, DISTINCT or an aggregate without a window"),
        (lambda a, b: a.group_by("k").window(tumble("1s")).agg(k=row_count()), "agg: two columns are named k"),
        (lambda a, b: a.group_by("k").window(tumble("1s")).agg(row_count()), "COUNT(*) has no name; give it one"),
        (lambda a, b: tumble("often"), "size: "),
        (lambda a, b: a.filter(col("v") > object()), "<object object at"),
        (lambda a, b: a.collect(time="ts"), "time: is given to swjoin.stream"),
        (lambda a, b: expr("v +"), "syntax error"),
    ],
)
def test_one_line_for_what_cannot_be(make: Any, problem: str, a: Stream, b: Stream) -> None:
    with pytest.raises(swjoin.UserError) as caught:
        make(a, b)
    assert str(caught.value).startswith(problem), str(caught.value)
    assert "\n" not in str(caught.value)
