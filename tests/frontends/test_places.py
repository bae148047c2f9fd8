"""The second and further least and greatest values: against DuckDB, when panes are cut down, and one line for the rest."""

from __future__ import annotations

from collections import Counter
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pytest

import swjoin
from benchmarks.duckdb_text import in_duckdb
from swjoin import col, stream, tumble
from swjoin.core.aggregate_columns import AggregateColumns, Call
from swjoin.core.aggregate_functions import accumulation_of, result_type
from swjoin.core.batch import I64, TupleBatch
from swjoin.core.errors import UserError
from swjoin.operators import kept_rows

ROWS = 500
_random = np.random.default_rng(1)
A = pa.table(
    {
        "k": _random.integers(0, 4, ROWS),
        "v": pa.array([None if i % 11 == 0 else int(x) for i, x in enumerate(_random.integers(-20, 20, ROWS))]),
        "d": [None if i % 7 == 0 else float(x) / 3 for i, x in enumerate(_random.integers(-50, 50, ROWS))],
        "x": [f"x{i * 7 % 101}" for i in range(ROWS)],
        "u": _random.permutation(ROWS),
        "ts": pa.array(np.sort(_random.integers(0, 300_000_000, ROWS)), pa.timestamp("us")),
    }
)
CALLS = """max(v, 3)[1] AS a, max(v, 3)[2] AS b, min(v, 5)[5] AS c, max(d, 2)[2] AS d, min(x, 4)[3] AS e,
           arg_max(v, u, 3)[3] AS f, arg_min(x, u, 3)[2] AS g, max(v, 2)[2] + 1 AS h,
           (max(v, 3) FILTER (WHERE u % 2 = 0))[2] AS i, max(ts, 2)[2] AS j, max(v) AS m"""
WINDOWS = "HOP(a, ts, INTERVAL '3' SECOND, INTERVAL '10' SECOND)"
HOP = f"SELECT k, window_end, {CALLS} FROM {WINDOWS} GROUP BY k, window_start, window_end"
QUERIES = {
    "hop": HOP,
    "having": f"{HOP} HAVING max(v, 2)[2] IS NULL OR max(v, 2)[2] > 0",
    "tumble": HOP.replace(WINDOWS, "TUMBLE(a, ts, INTERVAL '100' SECOND)"),
    "session": HOP.replace(WINDOWS, "SESSION(a, ts, INTERVAL '5' SECOND)"),
}


def _rows(query: str) -> Counter[tuple[Any, ...]]:
    table = swjoin.sql(query, a=A, time="ts", threads=2)
    return Counter(zip(*(column.to_pylist() for column in table.columns), strict=True))


def _wanted(query: str) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        db.register("a", A)
        return Counter(db.execute(in_duckdb(query)).fetchall())


@pytest.mark.parametrize("name", QUERIES)
def test_places_are_those_of_duckdb(name: str) -> None:
    assert _rows(QUERIES[name]) == _wanted(QUERIES[name])


def test_panes_keep_what_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut down all the time, they have all places; a planted bug, that they keep the first alone, is caught."""
    monkeypatch.setattr(kept_rows, "_LEAST", 1)
    wanted = _wanted(QUERIES["tumble"])
    query = QUERIES["tumble"]
    assert _rows(query) == wanted
    deciding = AggregateColumns.deciding

    def first(self: AggregateColumns, call: Call, slots: I64, rows: TupleBatch) -> I64:
        return deciding(self, call._replace(place=1), slots, rows)

    monkeypatch.setattr(AggregateColumns, "deciding", first)
    assert _rows(query) != wanted


def test_equal_values_have_a_place_each() -> None:
    ts = pa.array([0, 1, 2, 3], pa.timestamp("us"))
    table = pa.table({"v": [5, 5, None, 3], "w": ["a", "b", "c", "d"], "ts": ts})
    query = "SELECT window_end, max(v, 4)[2] AS two, max(v, 4)[3] AS three, max(v, 4)[4] AS four, arg_max(w, v, 2)[2] AS w "
    found = swjoin.sql(f"{query} FROM TUMBLE(t, ts, INTERVAL '1' SECOND) GROUP BY window_end", t=table, time="ts").to_pylist()
    assert [{name: row[name] for name in ("two", "three", "four", "w")} for row in found] == [
        {"two": 5, "three": 3, "four": None, "w": "b"}
    ]


def test_calls_in_python() -> None:
    v, u = col("v"), col("u")
    query = stream(A, time="ts").group_by("k").window(tumble("20s"))
    query = query.agg(
        b=v.max(place=2), c=v.min(place=2).where(u > 100), e=col("x").arg_max(u, place=2), f=v.arg_min(u), g=v.max()
    )
    text = """SELECT k, window_start, window_end, max(v, 2)[2] AS b, (min(v, 2) FILTER (WHERE u > 100))[2] AS c,
                     arg_max(x, u, 2)[2] AS e, arg_min(v, u) AS f, max(v) AS g
              FROM TUMBLE(a, ts, INTERVAL '20' SECOND) GROUP BY k, window_start, window_end"""
    assert swjoin.proof(query.collect()).digest == swjoin.proof(swjoin.sql(text, a=A, time="ts")).digest
    for place in (0, -1, True, 1.5):
        with pytest.raises(UserError, match=f"place={place} is no place; give an integer above zero"):
            v.max(place=place)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("call", "problem"),
    [
        ("max(v, 3)", "MAX(v, 3) is a list, which no column can be; take values of n by their places: max(x, 3)[1]"),
        ("arg_max(v, u, 2)", "ARG_MAX(v, u, 2) is a list"),
        ("max(v, 3)[4]", "MAX(v, 3)[4] has no such place; give numbers from 1 on, the place up to n"),
        ("max(v, 3)[0]", "MAX(v, 3)[0] has no such place"),
        ("max(v, 3)[-1]", "MAX(v, 3)[-1] has no such place"),
        ("max(v, 3)[1:2]", "MAX(v, 3)[1:2] has no such place"),
        ("max(v, k)[1]", "MAX(v, k)[1] has no such place"),
        ("max(v)[1]", "MAX(v)[1] is no list"),
        ("sum(v)[1]", "SUM(v)[1] is no list"),
        ("max(DISTINCT v, 3)[2]", "MAX(DISTINCT v, 3)[2] is not supported; leave DISTINCT out"),
    ],
)
def test_one_line_for_what_cannot_be(call: str, problem: str) -> None:
    with pytest.raises(UserError) as caught:
        swjoin.sql(
            f"SELECT {call} AS y, window_end FROM TUMBLE(a, ts, INTERVAL '1' MINUTE) GROUP BY window_end", a=A, time="ts"
        )
    assert str(caught.value).startswith(problem), str(caught.value)
    assert "\n" not in str(caught.value)


def test_functions_without_places() -> None:
    assert result_type("max", "int32", place=3) == "int32"
    assert accumulation_of("max", "int32", place=3) == accumulation_of("first", "int32")
    for function, place in (("sum", 2), ("first", 2), ("max", 0)):
        with pytest.raises(UserError, match=f"value {place} of {function}; use a number above zero, of min, max, arg_min"):
            result_type(function, "int64", place=place)
