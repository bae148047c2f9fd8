"""`swjoin.sql`: tables in memory and in files, frames out, proofs, what is refused."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import PlanLedger
from swjoin.core.row_digests import row_hashes
from tests.support.limits import PROCESS_S

N = 400
QUERY = (
    "SELECT a.k, a.v, b.v AS w FROM a JOIN b ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 SECOND WHERE a.v % 2 = 0"
)


def table(seed: int) -> pa.Table:
    random = np.random.default_rng(seed)
    ts = pa.array(np.sort(random.integers(0, 100_000_000, N)), pa.timestamp("us"))
    return pa.table({"k": random.integers(0, 8, N), "v": np.arange(N) + seed * N, "ts": ts})


A, B = table(1), table(2)


def rows(found: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(column.to_pylist() for column in found.columns), strict=True))


def expected(query: str, **tables: pa.Table) -> Counter[tuple[Any, ...]]:
    with duckdb.connect() as db:
        for name, found in tables.items():
            db.register(name, found)
        return Counter(db.execute(query).fetchall())


def digest_of(found: pa.Table) -> str:
    (batch,) = found.combine_chunks().to_batches()
    return format_digest(int(np.add.reduce(row_hashes(batch))))


def test_tables_and_files_give_duckdbs_rows_and_a_proof(tmp_path: Path) -> None:
    pq.write_table(B, tmp_path / "b.parquet")
    wanted = expected(QUERY, a=A, b=B)
    for b in (B, pl.from_arrow(B), B.to_pandas(), tmp_path / "b.parquet", [str(tmp_path / "b.parquet")]):
        found = swjoin.sql(QUERY, a=A, b=b, time="ts")
        assert rows(found) == wanted
        assert found.column_names == ["k", "v", "w"]
        proof = swjoin.proof(found)
        assert (proof.count, proof.digest) == (found.num_rows, digest_of(found))
        assert isinstance(proof.ledger, PlanLedger)
        assert proof.ledger.balanced
        assert {name: counts.joined for name, counts in proof.ledger.sources.items()} == {"a": N, "b": N}


def test_rows_in_any_order_are_sorted_and_a_bound_says_which_are_late() -> None:
    shuffled = A.take(np.random.default_rng(1).permutation(N))
    assert rows(swjoin.sql(QUERY, a=shuffled, b=B, time={"a": "ts", "b": "ts"})) == expected(QUERY, a=A, b=B)
    with pytest.raises(swjoin.UserError, match="behind an earlier row, more than the declared 0s"):
        swjoin.sql(QUERY, a=shuffled, b=B, time="ts", max_out_of_order="0s")
    found = swjoin.sql("SELECT v FROM a", a=shuffled, time="ts", max_out_of_order="0s", late="drop")
    ledger = swjoin.proof(found).ledger
    assert isinstance(ledger, PlanLedger)
    assert ledger.sources["a"].late == N - found.num_rows > 300


def test_strategies_give_the_same_rows() -> None:
    """Of a join and groups within its key, by a text."""
    texts = [one.set_column(0, "k", one["k"].cast(pa.string())) for one in (A, B)]
    pairs = (
        "SELECT a.k AS k, a.ts AS ts, b.v - a.v AS d FROM a JOIN b "
        "ON a.k = b.k AND b.ts BETWEEN a.ts AND a.ts + INTERVAL 5 SECOND"
    )
    query = (
        f"SELECT q.k, q.d % 3 AS r, q.window_end, count(*) AS n FROM TUMBLE(({pairs}), ts, INTERVAL 10 SECOND) q "
        "GROUP BY q.k, q.d % 3, q.window_end HAVING count(*) > 1"
    )
    found = [
        swjoin.sql(query, a=texts[0], b=texts[1], time="ts", threads=4, strategy=strategy)
        for strategy in ("query", "subquery", "operator", None)
    ]
    assert len(found[0]) > 100
    assert [rows(one) for one in found] == [rows(found[0])] * 4
    assert len({swjoin.proof(one).digest for one in found}) == 1
    with pytest.raises(UserError, match="strategy"):
        swjoin.sql(query, a=texts[0], b=texts[1], time="ts", strategy="node")


def test_frames_come_out_as_asked() -> None:
    found = swjoin.sql(QUERY, a=pl.from_arrow(A), b=B, time="ts", returns="same")
    assert isinstance(found, pl.DataFrame)
    assert isinstance(swjoin.sql(QUERY, a=A, b=B, time="ts", returns="pandas"), pd.DataFrame)
    assert swjoin.sql("SELECT time.v FROM time", tables={"time": A}, time="ts").num_rows == N


def test_a_file_has_the_rows_and_their_proof(tmp_path: Path) -> None:
    proof = swjoin.sql(QUERY, a=A, b=B, time="ts", out=tmp_path / "out.parquet", threads=2)
    found = pq.read_table(tmp_path / "out.parquet")
    assert rows(found) == expected(QUERY, a=A, b=B)
    assert (proof.count, proof.digest) == (found.num_rows, digest_of(found))
    assert swjoin.proof(tmp_path / "out.parquet") == proof
    with pytest.raises(swjoin.UserError, match="is an input"):
        swjoin.sql("SELECT v FROM a", a=tmp_path / "out.parquet", time="v", time_unit="s", out=tmp_path / "out.parquet")


def test_integers_are_times_of_their_unit() -> None:
    seconds = pa.table({"at": [1_767_225_600, 1_767_225_700], "v": [1, 2]})
    found = swjoin.sql("SELECT at, extract(year FROM at) AS y FROM t WHERE v = 2", t=seconds, time="at", time_unit={"t": "s"})
    assert found.to_pylist() == [{"at": 1_767_225_700, "y": 2026}]


@pytest.mark.mpi
@pytest.mark.timeout(2 * PROCESS_S)
def test_ranks_give_the_same() -> None:
    shuffled = A.take(np.random.default_rng(1).permutation(N))
    found = swjoin.sql(QUERY, a=shuffled, b=B, time="ts", ranks=3)
    assert rows(found) == expected(QUERY, a=A, b=B)
    assert swjoin.proof(found).digest == digest_of(found)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({}, "no tables; give each that the query names: swjoin.sql(query, bid=frame, time='ts')"),
        ({"a": A, "tables": {"a": A}}, "a: is given twice, in tables, too"),
        ({"a": A, "tables": [A]}, "tables: list is no mapping of names to tables"),
        ({"a": A, "time": {"b": "ts"}}, "time: b is no table; tables are a"),
        ({"a": A, "time": {}}, "a query of static table a, whose rows have no time; name its time column: time={'a': COLUMN}"),
        ({"a": A, "time": 5}, "time: 5 is no column of a; give time={'a': COLUMN}, or none"),
        ({"a": A, "time": "when"}, "a: no column when; columns are k, v, ts"),
        ({"a": A, "time": "v"}, "a: v is a number without a unit; give time_unit"),
        ({"a": A, "time_unit": "h"}, "time_unit: 'h' is not one of"),
        ({"a": A, "time_unit": "s"}, "a: ts is timestamp[us], which has a unit; leave the unit out"),
        ({"a": 3}, "a: a int is no table"),
        ({"a": "none.parquet"}, "a: none.parquet: no such file or directory"),
        ({"a": A, "late": "side"}, "late: 'side' is not one of"),
        ({"a": A, "returns": "reader"}, "returns: 'reader' is not for queries; give out, and read the file"),
        ({"a": A, "returns": "polars", "out": "x.csv"}, "returns: 'polars' and out are given"),
        ({"a": A, "out": "x.txt"}, "out: x.txt: end it in .parquet, .csv or .csv.gz"),
        ({"a": A, "threads": 0}, "threads: 0: must be 1 or more"),
        ({"a": A, "query": 5}, "query: 5 is no text"),
        ({"a": A, "query": "SELECT kk FROM a"}, "column kk is missing; did you mean k?"),
    ],
)
def test_one_line_for_what_is_wrong(options: dict[str, Any], problem: str) -> None:
    given = {"time": "ts"} | options
    query = given.pop("query", "SELECT k FROM a")
    with pytest.raises(swjoin.UserError) as caught:
        swjoin.sql(query, **given)
    assert str(caught.value).startswith(problem)
    assert "\n" not in str(caught.value)
