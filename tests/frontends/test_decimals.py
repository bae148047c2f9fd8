"""Sums and means of decimals: exact, of the type that they have in DuckDB, however windows overlap."""

from __future__ import annotations

import random
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.config.connectors import StreamConfig
from swjoin.core.arrow_views import decimals_of_words, words_of_decimals
from swjoin.core.errors import RunFailed
from swjoin.duckdb.verify import verify
from tests.support.plan_runs import duckdb_rows
from tests.support.queries import run_query

Inputs = dict[str, StreamConfig]
KINDS = {
    "small": pa.decimal32(7, 2),
    "money": pa.decimal128(15, 2),
    "wide": pa.decimal128(38, 10),
    "whole": pa.decimal64(18, 0),
}
DIGITS = {"small": 7, "money": 15, "wide": 28, "whole": 18}


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    drawn, path = random.Random(4), tmp_path_factory.mktemp("decimals") / "a.parquet"
    columns: dict[str, Any] = {"ts": pa.array(range(600), pa.timestamp("ms")), "k": [drawn.randrange(4) for _ in range(600)]}
    columns["n"] = [drawn.randrange(-9, 9) for _ in range(600)]
    for name, kind in KINDS.items():
        most = 10 ** DIGITS[name] - 1
        values = [Decimal(drawn.choice([most, -most, drawn.randint(-most, most)])).scaleb(-kind.scale) for _ in range(600)]
        columns[name] = pa.array([None if drawn.random() < 0.1 else v for v in values], pa.decimal128(38, kind.scale)).cast(
            kind
        )
    pq.write_table(pa.table(columns), path)
    return {"a": StreamConfig(str(path), (), "ts")}


MS = "INTERVAL '{}' MILLISECOND"
SUMS = [
    "sum(small) AS a, sum(money) AS b, sum(wide) AS c, sum(whole) AS d",
    "sum(DISTINCT money) AS a, sum(money) FILTER (WHERE n > 0) AS b, sum(money * n) AS c, min(money) AS d, count(wide) AS e",
    "sum(CASE WHEN k > 9 THEN money END) AS none",
]


@pytest.mark.parametrize("calls", SUMS)
@pytest.mark.parametrize(("slide", "size"), [(100, 100), (30, 200), (1, 150)])
def test_sums_are_those_of_duckdb(slide: int, size: int, calls: str, streams: Inputs, tmp_path: Path) -> None:
    source = f"HOP(a, ts, {MS.format(slide)}, {MS.format(size)})"
    text = f"SELECT k, window_end, {calls} FROM {source} GROUP BY k, window_start, window_end"
    rows, report = run_query(text, streams, tmp_path)
    assert rows == duckdb_rows(streams, text)
    assert len(rows) > 20
    assert report["ledger"]["balanced"]
    assert verify(tmp_path).equal


def test_means_are_rounded_once(streams: Inputs, tmp_path: Path) -> None:
    text = f"SELECT window_start, {', '.join(f'avg({name}) AS {name}' for name in KINDS)} "
    rows, _ = run_query(text + f"FROM TUMBLE(a, ts, {MS.format(50)}) GROUP BY window_start", streams, tmp_path)
    table = pq.read_table(str(streams["a"].path))
    wanted = set()
    for start in range(0, 600, 50):
        part, means = table.slice(start, 50), []
        for name in KINDS:
            values = [Fraction(v) for v in part.column(name).to_pylist() if v is not None]
            means.append(float(sum(values) / len(values)))
        wanted.add(tuple(means))
    assert {row[1:] for row in rows} == wanted
    assert verify(tmp_path).equal


def test_values_of_too_many_digits(tmp_path: Path) -> None:
    values = pa.array([Decimal(1), Decimal(10**29)], pa.decimal128(38, 0))
    pq.write_table(pa.table({"ts": pa.array([1, 2], pa.timestamp("ms")), "d": values}), tmp_path / "a.parquet")
    inputs = {"a": StreamConfig(str(tmp_path / "a.parquet"), (), "ts")}
    text = f"SELECT sum(d) AS s FROM TUMBLE(a, ts, {MS.format(9)}) GROUP BY window_start"
    with pytest.raises(RunFailed, match="a value has more than 28 digits; cast it to DOUBLE"):
        run_query(text, inputs, tmp_path / "run")


@given(st.lists(st.none() | st.integers(-(10**38) + 1, 10**38 - 1), min_size=1))
def test_words_of_decimals(values: list[int | None]) -> None:
    column = pa.array([None if v is None else Decimal(v) for v in values], pa.decimal128(38, 0)).slice(1)
    words = words_of_decimals(column.fill_null(0))
    for value, (low, high) in zip(values[1:], words.tolist(), strict=True):
        assert (high << 64) + low % (1 << 64) == (value or 0)
    missing = column.is_null().to_numpy(zero_copy_only=False)
    assert decimals_of_words(words[:, 0], words[:, 1], missing, column.type).equals(column)
