"""Groups that travel in place of rows: an aggregate gives the same rows for them, to the bit."""

from __future__ import annotations

import math
from dataclasses import replace
from decimal import Decimal
from random import Random
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.aggregation import Aggregation
from swjoin.operators.keyed_operator import Limits
from swjoin.operators.running_aggregation import RunningAggregation
from swjoin.plan.aggregates import Aggregate, AggregateCall, aggregate_columns_of, aggregate_types, is_pre_aggregated
from swjoin.state.pre_aggregation import PreAggregation

TYPES = {
    "k": "int64",
    "accumulators": "string",
    "n": "int64",
    "u": "uint64",
    "d": "double",
    "m": "decimal128(10, 2)",
    "ts": "x",
}
CALLS = (
    AggregateCall("rows", "count"),
    AggregateCall("values", "count", "n"),
    AggregateCall("total", "sum", "n"),
    AggregateCall("unsigned", "max", "u"),
    AggregateCall("mean", "avg", "d"),
    AggregateCall("exact", "sum", "d"),
    AggregateCall("money", "sum", "m"),
    AggregateCall("least", "min", "d"),
)


def node_of(rng: Random) -> Aggregate:
    running = rng.random() < 0.5
    size = rng.choice([7, 10, 2_000_000])
    slide = size if running else rng.choice([size, max(1, size // 3), 2 * size])  # some lie in no window
    key = rng.choice([(), ("k",), ("k", "accumulators"), ("accumulators",)])
    calls = tuple(rng.sample(CALLS, rng.randint(1, len(CALLS))))
    return Aggregate("a", "in", key, TimeWindows(size, slide, rng.randint(0, 5)), calls, running=running)


def rows_of(rng: Random, n: int) -> TupleBatch:
    def values(some: list[Any], kind: Any) -> pa.Array:
        return pa.array([None if rng.random() < 0.2 else rng.choice(some) for _ in range(n)], kind)

    columns = {
        "k": values([0, -1, 5, 1 << 62], pa.int64()),
        "accumulators": values(["", "a", "b"], pa.string()),
        "n": values([0, 1, -7, 1 << 40], pa.int64()),
        "u": values([0, (1 << 64) - 1], pa.uint64()),
        "d": values([0.1, 1e300, -1e300, 3.5e-200, math.inf], pa.float64()),
        "m": values([Decimal("0.01"), Decimal("-9.99")], pa.decimal128(10, 2)),
    }
    ts = np.array([rng.choice([rng.randint(-40, 40), rng.randint(0, 9_000_000)]) for _ in range(n)], np.int64)
    ids = np.array([rng.getrandbits(64) for _ in range(n)], np.uint64)
    batch = pa.record_batch(columns)
    return TupleBatch(np.zeros(n, np.int64), ts, ids, ts, None, Columns(batch))


def answer(node: Aggregate, columns: AggregateColumns, parts: list[TupleBatch]) -> list[tuple[Any, ...]]:
    kind = RunningAggregation if node.running else Aggregation
    operator = kind(node.windows, columns, columns.new_keys(), Limits(1 << 12, 1 << 24), "a")
    for part in parts:
        if len(part):
            operator._accumulate(part, np.zeros(len(part), np.int64))
            operator.validate()
    found = []
    for rows, _ in operator._closed(END_OF_TIME_US):
        assert rows.columns is not None
        values = zip(*(column.to_pylist() for column in rows.columns.batch.columns), strict=True)
        found += [(i, t, *map(str, v)) for i, t, v in zip(rows.id.tolist(), rows.ts.tolist(), values, strict=True)]
    return sorted(found)


@settings(max_examples=50, deadline=None)
@given(st.integers(0, 1 << 30))
def test_groups_have_the_rows_answer(seed: int) -> None:
    rng = Random(seed)
    node, parts = node_of(rng), [rows_of(rng, rng.choice([0, 1, 30])) for _ in range(4)]
    columns = replace(aggregate_columns_of(node, TYPES, dict(aggregate_types(node, TYPES, "ts"))), pre_aggregated=False)
    pre_aggregation = PreAggregation(columns, node.windows)
    grouped = [pre_aggregation(part) for part in parts]
    for part, groups in zip(parts, grouped, strict=True):
        panes = node.windows.panes(part.ts) if len(part) else part.ts
        assert len(groups) <= len(part)
        assert node.key or len(groups) <= len(set(panes.tolist()))
        assert set(groups.id.tolist()) <= set(part.id.tolist())
        assert groups.columns is not None
        assert groups.columns.names == [*node.key, columns.accumulators]
    wanted = answer(node, columns, parts)
    assert answer(node, replace(columns, pre_aggregated=True), grouped) == wanted


@pytest.mark.parametrize(
    ("key", "running", "function", "wanted"),
    [((), False, "sum", True), (("k",), True, "sum", True), (("k",), False, "sum", False), ((), False, "first", False)],
)
def test_where_groups_travel(key: tuple[str, ...], running: bool, function: str, wanted: bool) -> None:
    node = Aggregate("a", "in", key, TimeWindows(5, 5), (AggregateCall("x", function, "n"),), running=running)
    assert is_pre_aggregated(node, TYPES) is wanted
