"""Joins by a band of values: rows of DuckDB, every pair in one cell, at the ends of integers and of floats; rows are spread."""

from __future__ import annotations

import math
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlglot import exp

from swjoin.config.connectors import StreamConfig
from swjoin.core.band_keys import WIDEST
from swjoin.core.errors import UserError
from swjoin.duckdb.verify import verify
from swjoin.expressions.binder import Scope, bind, parse_expression
from swjoin.expressions.evaluator import evaluate
from swjoin.expressions.tree import Column
from swjoin.frontends.sql.bands import Band
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.plan.logical import Copies, LogicalPlan, Spread
from tests.support.drawn import mostly_drawn
from tests.support.limits import PROCESS_S
from tests.support.plan_runs import duckdb_rows, report_of, rows_of
from tests.support.queries import query_job, run_query
from tests.support.ranks import run_jobs

Inputs = dict[str, StreamConfig]
ROWS = 300
NEAR = "b.ts BETWEEN a.ts - INTERVAL '40' MILLISECOND AND a.ts + INTERVAL '30' MILLISECOND"
INNER = [
    "abs(a.i - b.i) <= 3",
    "abs(b.i - a.i) < 3 AND a.v <> b.v",
    "a.i - b.i BETWEEN -2 AND 5",
    "b.i >= a.i AND a.i + 4 > b.i",
    "4 >= abs(a.i - b.s + 1)",
    "b.s BETWEEN a.i - 1 AND a.i + 1.5",
    "a.i - b.i BETWEEN 0 AND 0",
    "b.j - a.j BETWEEN 1000000 AND 900000000",
    "abs(a.x - b.x) <= 0.25",
    "abs(a.x - b.i) < 0.5",
    "a.x = b.x",
    "a.x < b.x + 0.1 AND a.x + 0.1 > b.x",
    "abs(a.f - b.f) <= 0.125",
    "abs(a.f - b.x) <= 1e-3",
    "a.x * 2 - b.x BETWEEN -0.5 AND 0.5",
    "a.k = b.k AND abs(a.i - b.i) <= 3",
    "abs(a.d - b.d) <= 1.5",
    "a.d - b.x BETWEEN -0.5 AND 1.25",
    "b.due BETWEEN a.due - INTERVAL '3' HOUR AND a.due + INTERVAL '2' DAY",
    "a.due - b.due <= INTERVAL '90' MINUTE AND b.due < a.due + INTERVAL '1' HOUR",
    "a.fine >= b.fine AND a.fine <= b.fine + INTERVAL '5' MICROSECOND",  # DuckDB adds to whole microseconds
    "a.day BETWEEN b.day - INTERVAL '1' DAY AND b.day + INTERVAL '2' DAY",
    "abs(a.i - b.i) BETWEEN 1 AND 3",
]
TEXTS = [f"SELECT a.v, b.v AS w FROM a JOIN b ON {NEAR} AND {condition}" for condition in INNER]
TEXTS += [
    f"SELECT a.v, b.v AS w FROM a LEFT JOIN b ON {NEAR} AND abs(a.i - b.i) <= 1",
    f"SELECT a.v, b.v AS w FROM a RIGHT JOIN b ON {NEAR} AND abs(a.x - b.x) <= 0.25",
    f"SELECT a.v, b.v AS w FROM a LEFT JOIN b ON {NEAR} AND abs(a.i - b.i) <= 9 AND a.v / NULLIF(b.i + 3, 0) > 2",
    f"SELECT a.v FROM a SEMI JOIN b ON {NEAR} AND a.i BETWEEN b.i AND b.i + 2",
    f"SELECT a.v FROM a ANTI JOIN b ON {NEAR} AND a.x BETWEEN b.x AND b.x + 0.5",
    f"SELECT a.v, b.v AS w FROM a, b WHERE {NEAR} AND abs(a.i - b.i) <= 2 AND a.v % 3 = 1",
    "SELECT a.v, b.v AS w FROM (SELECT v, ts, i AS n FROM a) a JOIN (SELECT v, ts, x AS n FROM b) b "
    f"ON {NEAR} AND abs(a.n - b.n) < 0.3",
    f"SELECT b.i, count(*) AS n FROM a JOIN b ON {NEAR} AND abs(a.i - b.i) <= 2 GROUP BY b.i, b.ts",
]


def _table(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    whole = random.integers(-40, 40, ROWS)

    def some_null(values: Any) -> pa.Array:
        return pa.array(values, mask=random.random(ROWS) < 0.05)

    doubles = np.where(random.random(ROWS) < 0.05, math.inf, random.integers(-200, 200, ROWS) / 20)
    return pa.table(
        {
            "v": np.arange(ROWS),
            "ts": pa.array(np.sort(random.integers(0, 2000, ROWS)) * 1000, pa.timestamp("us")),
            "k": random.integers(0, 4, ROWS),
            "i": some_null(whole.astype(np.int32)),
            "s": some_null(whole.astype(np.int16)),
            "j": some_null(random.integers(-(1 << 61), 1 << 61, ROWS) // 10**9 * 10**9),
            "x": some_null(doubles),
            "f": some_null((random.integers(-99, 99, ROWS) / 8).astype(np.float32)),
            "due": some_null(whole * 1_800_000_000).cast(pa.timestamp("us")),
            "fine": pa.array(random.integers(0, 50, ROWS) * 1000, pa.timestamp("ns")),
            "day": pa.array(whole.astype(np.int32), pa.date32()),
            "d": pa.array([f"{n}.5" for n in whole], pa.string()).cast(pa.decimal128(10, 2)),
        }
    )


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    folder = tmp_path_factory.mktemp("bands")
    for seed, name in enumerate("ab"):
        pq.write_table(_table(seed), folder / f"{name}.parquet", row_group_size=70)
    return {name: StreamConfig(str(folder / f"{name}.parquet"), (), "ts") for name in "ab"}


@pytest.mark.parametrize("text", mostly_drawn(TEXTS), ids=[text.split("MILLISECOND AND ")[-1] for text in TEXTS])
def test_rows_of_duckdb(text: str, streams: Inputs, tmp_path: Path) -> None:
    rows, report = run_query(text, streams, tmp_path)
    assert rows == duckdb_rows(streams, text)
    assert len(rows) > 5 or "900000000" in text
    assert report["ledger"]["balanced"]
    assert verify(tmp_path).equal


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.timeout(4 * PROCESS_S)
def test_ranks_join_by_bands(streams: Inputs, tmp_path: Path) -> None:
    cluster = {"epoch_tuples": 60, "gateways": 2, "partition_count": 13}
    texts = TEXTS[::3]
    jobs = [query_job(text, streams, tmp_path / str(i), cluster=cluster) for i, text in enumerate(texts)]
    run_jobs(6, jobs, tmp_path)
    for job, text in zip(jobs, texts, strict=True):
        assert report_of(job)["ledger"]["balanced"]
        assert rows_of(job) == duckdb_rows(streams, text), text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e300, -0.0, 5e-324])
def test_values_that_are_no_usual_numbers(value: float, tmp_path: Path) -> None:
    """A NaN has no partner; infinities are equal, and their difference is a NaN."""
    for name in "ab":
        table = pa.table({"ts": pa.array([1, 2], pa.timestamp("us")), "x": [value, 1.0]})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    inputs = {name: StreamConfig(str(tmp_path / f"{name}.parquet"), (), "ts") for name in "ab"}
    near = "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '1' SECOND"
    for i, (condition, infinite) in enumerate(
        (("abs(a.x - b.x) <= 0.5", False), ("a.x <= b.x + 0.5 AND a.x >= b.x - 0.5", True))
    ):
        rows, _ = run_query(f"SELECT a.x, b.x AS y FROM a JOIN b ON {near} AND {condition}", inputs, tmp_path / str(i))
        assert sum(rows.values()) == (2 if math.isfinite(value) or (infinite and not math.isnan(value)) else 1)


@pytest.mark.parametrize(
    ("condition", "count"),
    [
        ("a.x >= b.x - 3 AND a.x < b.x + 1.5", 0),
        ("abs(a.x + 9223372036854775000 - b.x - 9223372036854775000) <= 5", 0),
        ("abs(a.x - b.x) <= 1", 401),
    ],
)
def test_what_a_condition_says_does_not_depend_on_other_rows(condition: str, count: int, tmp_path: Path) -> None:
    """With a constant that has a point it is one of doubles; a sum that overflows matches nothing. One value beyond those that
    keys have is in the same partition-group or in another one."""
    base = 1 << 56
    values = [base + i * (1 << 20) + more for i in range(100) for more in (0, 1)] + [1 << 61]
    for name in "ab":
        table = pa.table({"v": range(201), "ts": pa.array([1] * 201, pa.timestamp("us")), "x": pa.array(values, pa.int64())})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    inputs = {name: StreamConfig(str(tmp_path / f"{name}.parquet"), (), "ts") for name in "ab"}
    near = "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '1' SECOND"
    for groups in (1, 1000):
        folder = tmp_path / str(groups)
        cluster = {"epoch_tuples": 150, "partition_count": groups}
        rows, _ = run_query(f"SELECT a.v, b.v AS w FROM a JOIN b ON {near} AND {condition}", inputs, folder, cluster=cluster)
        assert sum(rows.values()) == count
        assert verify(folder).equal


@pytest.mark.parametrize("kind", [pa.int64(), pa.float64(), pa.float32()], ids=str)
def test_nulls_have_no_key(kind: pa.DataType, tmp_path: Path) -> None:
    """They come to no cell, where each would be compared with all others; nor do NaNs."""
    lost = [None, math.nan] if pa.types.is_floating(kind) else [None]
    for name in "ab":
        values = [*lost * 10, 1, 2, 50]
        table = pa.table({"ts": pa.array(range(len(values)), pa.timestamp("us")), "x": pa.array(values, kind)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
    inputs = {name: StreamConfig(str(tmp_path / f"{name}.parquet"), (), "ts") for name in "ab"}
    near = "b.ts BETWEEN a.ts - INTERVAL '1' SECOND AND a.ts + INTERVAL '1' SECOND"
    for how, alone in (("JOIN", 0), ("LEFT JOIN", 10 * len(lost))):
        text = f"SELECT a.x, b.x AS y FROM a {how} b ON {near} AND abs(a.x - b.x) <= 1"
        rows, report = run_query(text, inputs, tmp_path / how)
        assert sum(rows.values()) == 5 + alone
        (stage,) = report["stages"]
        found = sum(edge["null_key"] for edge in report["edges"]) + sum(stage["null_key"].values())
        assert found == 20 * len(lost)


# ---------------------------------------------------------------- cells

_INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
_NEAR_ENDS = st.one_of(_INTEGERS, st.integers(-50, 50), st.integers((1 << 63) - 50, (1 << 63) - 1))
_FINITE = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False), st.floats(-100, 100), st.integers(-9, 9).map(lambda n: n / 10)
)


def _values(text: str, column: str, kind: pa.DataType, values: list[Any]) -> list[Any]:
    found = bind(parse_expression(text), Scope({("", column): Column(column, kind)}))
    array: Any = evaluate(found, pa.RecordBatch.from_pydict({column: pa.array(values, kind)}))
    return array.to_pylist()  # type: ignore[no-any-return]


def _meetings(band: Band, left: list[Any], right: list[Any]) -> list[list[int]]:
    """How often rows of the left and of the right side meet, for each pair."""
    cells = band.cells('"l"', '"r"')
    assert cells is not None
    of_left = _values(cells.left, "l", band.types[0], left)
    first, last = (_values(text, "r", band.types[1], right) for text in cells.right)
    keys = cells.keys
    if keys is None:
        assert all(0 <= b - a <= 1 for a, b in zip(first, last, strict=True))
        return [[len({a, b} & {cell}) for a, b in zip(first, last, strict=True)] for cell in of_left]
    assert all(0 <= (b >> keys.cell_bits) - (a >> keys.cell_bits) <= 1 for a, b in zip(first, last, strict=True))
    twice = np.array(first) >> keys.cell_bits != np.array(last) >> keys.cell_bits
    met = [keys.meet(np.array(cell), np.array(first)) + (keys.meet(np.array(cell), np.array(last)) & twice) for cell in of_left]
    return [row.tolist() for row in met]


def _band(lower: Any, upper: Any, kind: pa.DataType, sums: Any = 0) -> Band:
    side = exp.column("l"), exp.column("r")
    return Band(
        *side, Fraction(lower), Fraction(upper), Fraction(sums), (kind, kind), alone=True, exact=pa.types.is_integer(kind)
    )


@given(
    st.lists(_NEAR_ENDS, min_size=1, max_size=20),
    st.lists(_NEAR_ENDS, min_size=1, max_size=20),
    st.one_of(st.integers(-60, 60), st.integers(-(WIDEST >> 1), WIDEST >> 1)),
    st.one_of(st.integers(0, 60), st.integers(0, WIDEST >> 1)),
)
@settings(max_examples=150, deadline=None)
def test_integers_of_a_band_share_one_cell(left: list[int], right: list[int], lower: int, width: int) -> None:
    upper = lower + width
    right = [*right, *(v for n in left for v in (n + lower, n + upper) if -(1 << 63) <= v < 1 << 63)]
    met = _meetings(_band(lower, upper, pa.int64()), left, right)
    for mine, row in zip(left, met, strict=True):
        for other, cells in zip(right, row, strict=True):
            if lower <= other - mine <= upper or abs(mine) >> 60 == 0:  # the condition tells others
                assert cells == (lower <= other - mine <= upper)


@given(
    st.lists(_FINITE, min_size=1, max_size=20),
    st.lists(_FINITE, min_size=1, max_size=20),
    st.floats(-1e6, 1e6),
    st.one_of(st.just(0.0), st.floats(0, 1e6)),
    st.floats(-10, 10),
)
@settings(max_examples=150, deadline=None)
def test_floats_of_a_band_share_one_cell(
    left: list[float], right: list[float], lower: float, width: float, added: float
) -> None:
    """As their conditions find them, which round: r - l + added between two bounds."""
    upper = lower + width
    right = [*right, *(n + end - added for n in left for end in (lower, upper))]
    exact = Fraction(lower) - Fraction(added), Fraction(upper) - Fraction(added)
    met = _meetings(_band(*exact, pa.float64(), abs(Fraction(added)) + max(map(abs, exact))), left, right)
    for mine, row in zip(left, met, strict=True):
        for other, cells in zip(right, row, strict=True):
            for difference in (other - mine + added, other + added - mine, other - (mine - added)):
                assert cells == 1 or not lower <= difference <= upper


def test_rows_are_spread_over_cells(streams: Inputs) -> None:
    """Many cells, and few of the rows of one side in two of them."""
    random = np.random.default_rng(3)
    left, right = (random.integers(0, 100_000, 2000).tolist() for _ in range(2))
    cells = _band(-5, 5, pa.int64()).cells('"l"', '"r"')
    assert cells is not None
    assert cells.keys is not None
    of = cells.keys.cell_bits
    assert len({key >> of for key in _values(cells.left, "l", pa.int64(), left)}) > 150
    first, last = (_values(text, "r", pa.int64(), right) for text in cells.right)
    assert 0 < np.mean([a >> of != b >> of for a, b in zip(first, last, strict=True)]) < 1 / 32


TABLES = {
    name: Table((("x", "int64"), ("d", "decimal128(9, 2)"), ("s", "string"), ("ts", "timestamp[us]")), "ts")  # type: ignore[arg-type]
    for name in "ab"
}
_ON = "SELECT a.x FROM a JOIN b ON b.ts BETWEEN a.ts AND a.ts + INTERVAL '1' SECOND AND "


def _is_band(plan: LogicalPlan) -> bool:
    """Whether one side goes to the cells of a band, once or twice; otherwise both go to those of a matrix."""
    kinds = [type(node) for node in plan.nodes if isinstance(node, Copies | Spread)]
    assert kinds in ([Copies], [Spread, Spread])
    return Copies in kinds


@pytest.mark.parametrize(
    ("condition", "band"),
    [
        ("abs(a.x - b.x) <= 5", True),
        ("a.x < b.x", False),
        ("a.d - b.d BETWEEN -5 AND 5", True),
        ("abs(a.x - b.x) >= 5", False),
        ("a.x - b.x = 5", True),
    ],
)
def test_what_is_a_band(condition: str, band: bool) -> None:
    plan = plan_query(_ON + condition, TABLES).plan
    assert _is_band(plan) == band


@pytest.mark.parametrize("condition", ["a.x - b.x BETWEEN 5 AND -5", "a.x > b.x AND a.x < b.x + 1", "abs(a.x - b.x) < 0"])
def test_a_band_without_values(condition: str) -> None:
    with pytest.raises(UserError, match=r"no values of a\.x and b\.x satisfy the conditions of the join; exchange its bounds"):
        plan_query(_ON + condition, TABLES)


@pytest.mark.parametrize(
    ("bound", "band"), [("1e-400", True), ("1e200", True), ("1e308", False), ("1e400", False), ("1e999999999", False)]
)
def test_bounds_at_the_ends_of_doubles(bound: str, band: bool) -> None:
    """Where the width of a cell would be no double, rows go to the cells of a matrix."""
    tables = {name: Table((("y", "double"), ("ts", "timestamp[us]")), "ts") for name in "ab"}
    text = f"{_ON.replace('a.x', 'a.y')} abs(a.y - b.y) <= {bound}"
    assert _is_band(plan_query(text, tables).plan) == band
