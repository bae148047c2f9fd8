"""Stars in SQL, which are one stage: their rows are DuckDB's, and those of joins in a row, with the same digest."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.connectors import StreamConfig
from swjoin.frontends.sql import planner
from swjoin.operators import multiway_join
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.stages import cut
from swjoin.state.arrangement import Arrangement
from tests.support.plan_runs import duckdb_rows
from tests.support.queries import check_on_ranks, checked_query, query_job, run_query

Inputs = dict[str, StreamConfig]
NEAR = "{0}.ts BETWEEN {1}.ts - INTERVAL 40 MILLISECOND AND {1}.ts + INTERVAL 60 MILLISECOND"
AB, AC, BC = (NEAR.format(*pair) for pair in ("ba", "ca", "cb"))
STAR = f"FROM a JOIN b ON a.k = b.k AND {AB} JOIN c ON a.k = c.k AND {AC}"
QUERIES = [
    f"SELECT a.k, a.v, b.v AS w, c.v AS u {STAR}",
    f"SELECT a.v, b.x, c.x AS y, a.ts, c.ts AS later {STAR} AND {BC}",
    f"SELECT a.v, b.v AS w, c.v AS u {STAR} WHERE a.x < b.x AND b.v + c.v > a.v",
    f"SELECT a.v, c.x {STAR} WHERE a.f < b.f OR c.f = b.f OR a.x IS NULL",
    f"SELECT a.x, a.v, b.v AS w FROM a JOIN b ON a.x = b.x AND {AB} JOIN c ON b.x = c.x AND {BC}",
    f"SELECT a.v FROM a JOIN b ON a.k = b.k AND a.x = b.x AND {AB} JOIN c ON c.x = a.x AND b.k = c.k AND {AC}",
    f"SELECT a.v, d.v AS w FROM a JOIN b ON a.k = b.k AND {AB} JOIN c ON b.k = c.k AND {BC} "
    f"JOIN a d ON d.k = c.k AND {NEAR.format('d', 'c')} JOIN a e ON e.k = a.k AND e.ts = d.ts",
    f"SELECT p.v + c.v AS n FROM (SELECT a.k, a.v * b.v AS v, a.ts FROM a JOIN b ON a.k = b.k AND {AB} WHERE a.v <> b.v) p "
    f"JOIN c ON p.k = c.k AND {NEAR.format('c', 'p')} AND c.v % 3 <> p.v % 3",
    "SELECT p.v, c.v AS u FROM (SELECT a.k, b.v, GREATEST(a.ts, b.ts) AS ts FROM a "
    f"JOIN b ON a.k = b.k AND {AB}) p JOIN c ON p.k = c.k AND {NEAR.format('c', 'p')}",
    f"SELECT p.v, q.v AS w FROM (SELECT a.k, a.v, a.ts FROM a JOIN b ON a.k = b.k AND {AB}) p JOIN "
    f"(SELECT c.k, c.v, c.ts FROM c JOIN b ON c.k = b.k AND {NEAR.format('b', 'c')}) q "
    f"ON p.k = q.k AND {NEAR.format('q', 'p')}",
    f"SELECT k, count(*) AS n, max(f) AS m, window_end FROM TUMBLE((SELECT a.k, c.f, a.ts {STAR}), ts, INTERVAL 1 SECOND) "
    "GROUP BY k, window_end",
]


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    return _written(tmp_path_factory.mktemp("star"), 2.5)


def _written(folder: Path, number: float) -> Inputs:
    """300 rows in a second each: keys of 40 values, text, floats with this one, nulls everywhere but in the time."""
    found = Inputs()
    for seed, name in enumerate("abc"):
        random = np.random.default_rng(seed)
        count = 300
        missing: dict[str, Any] = {column: random.random(count) < 0.1 for column in ("k", "x", "f")}
        table = pa.table(
            {
                "k": pa.array(random.integers(0, 40, count), mask=missing["k"]),
                "x": pa.array([f"text {i}" * (i % 3) for i in random.integers(0, 9, count)], mask=missing["x"]),
                "v": random.integers(0, 100, count),
                "f": pa.array(random.choice([0.0, -0.0, 1.5, math.inf, number], count), mask=missing["f"]),
                "ts": pa.array(np.sort(random.integers(0, 1_000_000, count)), pa.timestamp("us")),
            }
        )
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=100)
        found[name] = StreamConfig(str(folder / f"{name}.parquet"), (), "ts")
    return found


def _stages(text: str, streams: Inputs, folder: Path) -> list[object]:
    plan = query_job(text, streams, folder).plan
    assert plan is not None
    return [stage.node for stage in cut(plan_from_plain(plan)).stages]


@pytest.mark.parametrize("text", QUERIES, ids=range(len(QUERIES)))
def test_rows_are_those_of_duckdb_and_of_joins_in_a_row(
    text: str, streams: Inputs, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert any(isinstance(node, MultiwayJoin) for node in _stages(text, streams, tmp_path / "plan"))
    rows = checked_query(text, streams, tmp_path / "one")
    assert rows, "a query without rows shows nothing"
    _, one = run_query(text, streams, tmp_path / "again", cluster={"epoch_tuples": 37, "partition_count": 3})
    monkeypatch.setattr(planner, "with_multiway_joins", lambda plan: plan)
    assert not any(isinstance(node, MultiwayJoin) for node in _stages(text, streams, tmp_path / "plans"))
    _, apart = run_query(text, streams, tmp_path / "apart")
    assert one["results"]["digest"] == apart["results"]["digest"]
    assert one["results"]["count"] == sum(rows.values())


def test_conditions_mean_what_they_mean_in_joins_of_two(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparisons with NaN, remainders, division by zero."""
    streams = _written(tmp_path, math.nan)
    tests = (
        "a.f < b.f",
        "NOT (b.f >= c.f)",
        "c.f = c.f AND a.f <> b.f",
        "b.v % 7 > c.v % 5",
        "a.v / NULLIF(b.v % 2, 0) > c.v",
    )
    texts = [f"SELECT a.v, b.v AS w, c.v AS u {STAR} WHERE {test}" for test in tests]
    one = [run_query(text, streams, tmp_path / f"one{i}")[1]["results"] for i, text in enumerate(texts)]
    monkeypatch.setattr(planner, "with_multiway_joins", lambda plan: plan)
    apart = [run_query(text, streams, tmp_path / f"apart{i}")[1]["results"] for i, text in enumerate(texts)]
    sums = [[(found["count"], found["digest"]) for found in of] for of in (one, apart)]
    assert sums[0] == sums[1]
    assert all(found["count"] for found in one)


def test_rows_with_a_null_key_are_counted(streams: Inputs, tmp_path: Path) -> None:
    _, report = run_query(QUERIES[0], streams, tmp_path)
    nulls = {name: pq.read_table(streams[name].path).column("k").null_count for name in "abc"}  # type: ignore[arg-type]
    assert [edge["null_key"] for edge in report["edges"][:3]] == list(nulls.values())
    assert report["ledger"]["balanced"]


def test_hot_keys_have_products_that_come_out_in_pieces(tmp_path: Path) -> None:
    """One key: 60 rows of each of 3 inputs make 216,000 matches, in pieces of some hundred."""
    inputs = Inputs()
    for name in "abc":
        table = pa.table({"k": np.zeros(60, np.int64), "ts": pa.array(np.arange(60), pa.timestamp("us")), "v": np.arange(60)})
        pq.write_table(table, tmp_path / f"{name}.parquet")
        inputs[name] = StreamConfig(str(tmp_path / f"{name}.parquet"), (), "ts")
    text = f"SELECT a.v, b.v AS w, c.v AS u {STAR}"
    rows, report = run_query(text, inputs, tmp_path / "run", module={"result_buffer_bytes": "64KiB"})
    assert report["results"]["count"] == 60**3
    assert rows == duckdb_rows(inputs, text)


def test_pieces_of_matches_have_a_bounded_size_of_text(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(multiway_join, "TAIL_BYTES", 3_000)
    matches, sizes = Arrangement.matches, list[int]()

    def measured(self: Arrangement, search: Any, order: Any, most: int) -> Any:
        found = matches(self, search, order, most)
        sizes.append(len(found[0]))
        return found

    monkeypatch.setattr(Arrangement, "matches", measured)
    inputs = Inputs()
    for name in "abc":
        ts = pa.array(np.arange(9), pa.timestamp("us"))
        pq.write_table(pa.table({"k": np.zeros(9, np.int64), "ts": ts, "x": [name * 100] * 9}), tmp_path / f"{name}.parquet")
        inputs[name] = StreamConfig(str(tmp_path / f"{name}.parquet"), (), "ts")
    checked_query(f"SELECT a.x, b.x AS y, c.x AS z {STAR}", inputs, tmp_path / "run")
    assert max(sizes) == 10  # of three texts of 100 bytes each


def test_a_star_that_can_only_be_a_mistake_is_warned_about(tmp_path: Path) -> None:
    """Streams a day apart; a key that is null in every row; keys that nothing shares."""
    day, text = 86_400_000_000, f"SELECT a.v {STAR}"
    said = []
    for case, (shift, key) in enumerate([(day, 1), (0, None), (0, 2)]):
        inputs = Inputs()
        for name in "abc":
            keys = pa.array([key if name == "c" else 1] * 10, pa.int64())
            ts = pa.array(np.arange(10) + (shift if name == "b" else 0), pa.timestamp("us"))
            path = tmp_path / f"{case}{name}.parquet"
            pq.write_table(pa.table({"k": keys, "ts": ts, "v": np.arange(10)}), path)
            inputs[name] = StreamConfig(str(path), (), "ts")
        said.append(run_query(text, inputs, tmp_path / str(case))[1]["warnings"])
    far = "a 0 s to 9 us, b 86,400 s to 86,400.000009 s; b is 23 h 59 min 59 s too late"
    assert said[0] == [f"join 2 of a, b and c: the times of both sides cannot meet within the bounds: {far}"]
    assert said[1] == ["join 2 of a, b and c: every row of c has a null key (10 rows)"]
    assert said[2] == ["join 2 of a, b and c: nothing matched, of 10, 10 and 10 rows; check keys, times and conditions"]


def test_other_routings_keep_joins_apart(streams: Inputs, tmp_path: Path) -> None:
    job = query_job(QUERIES[0], streams, tmp_path, cluster={"routing": "skew"})
    assert job.plan is not None
    assert len(cut(plan_from_plain(job.plan)).stages) == 2


@pytest.mark.mpi
@pytest.mark.drawn
def test_on_ranks(streams: Inputs, tmp_path: Path) -> None:
    check_on_ranks(QUERIES, streams, tmp_path, 4)
