"""The join module alone: deliveries in, pairs out."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import HealthCheck, Phase, settings

from swjoin.core.batch import PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.join_semantics import Bounds
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition

# a planted bug is looked for in the same examples each time, and its example need not be small
SEARCH = settings(
    max_examples=300,
    deadline=None,
    derandomize=True,
    database=None,
    phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)


def payload(ids: np.ndarray, layout: RowLayout | None) -> PayloadRows | None:
    """Bytes that tell the id: fixed part from the id, tail of id % 4 bytes."""
    if layout is None:
        return None
    fixed = (ids.astype(np.int64)[:, None] * np.arange(1, layout.fixed_bytes + 1) % 251).astype(np.uint8)
    if not layout.has_var:
        return PayloadRows(fixed)
    sizes = ids.astype(np.int64) % 4
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    return PayloadRows(fixed, offsets, np.repeat(ids.astype(np.uint8), sizes))


def stream(keys: list[int], times: list[int], layout: RowLayout | None) -> TupleBatch:
    ts = np.array(sorted(times), np.int64)
    ids = np.arange(len(ts), dtype=np.uint64)
    return TupleBatch(np.array(keys, np.int64), ts, ids, np.arange(len(ts), dtype=np.int64), payload(ids, layout))


def delivery(
    epoch: int,
    left: TupleBatch,
    right: TupleBatch,
    times: tuple[int, int],
    groups: int,
    routes: tuple[Route, Route],
    cell_bits: int = 0,
) -> Delivery:
    router = HashPartition(GroupMap(round_robin(groups, 1)), 1, cell_bits)
    one, two = router.partition(left), router.partition(right)
    used = np.flatnonzero(one.counts + two.counts)
    return Delivery(
        QueryId(0),
        SlaveId(0),
        EpochIndex(epoch),
        times[0],
        times[1],
        router.groups_in_order[used],
        one.counts[used],
        two.counts[used],
        one.batch,
        two.batch,
        times[0] == END_OF_TIME_US,
        routes,
    )


def make(bounds: Bounds, **options: Any) -> WindowJoinOperator:
    """A join of small sizes. options: of `WindowSizes` and `WindowJoinOperator`; left_layout, right_layout, materialise."""
    sizes: dict[str, Any] = {"block_tuples": 4, "theta_tuples": 8, "window_bytes": 1 << 20, "in_order": True}
    sizes = {name: options.pop(name, default) for name, default in sizes.items()}
    layouts = options.pop("left_layout", None), options.pop("right_layout", None)
    most = options.pop("result_tuples", 16)
    result_tuples = most if options.pop("materialise", True) else 0
    return WindowJoinOperator(bounds, WindowSizes(**sizes), layouts, result_tuples=result_tuples, **options)


def drive(
    join: WindowJoinOperator, work_on: Delivery, budget: int = 10**9, limit: int | None = None
) -> tuple[list[Any], int, int]:
    """Join one delivery; returns (pairs, count, digest), checking the bound on every step."""
    work = join.open(work_on)
    pairs = []
    while True:
        step = join.step(work, 10**6, budget)
        if step.pairs is not None:
            assert limit is None or len(step.pairs) <= limit
            pairs.append(step.pairs)
        if step.done:
            break
    join.validate()
    parts = work.all_results
    assert int(work.delay_histogram.sum()) == int(work.results.counts.sum())
    assert work.pair_count == sum(int(part.counts.sum()) for part in parts)
    return pairs, work.pair_count, sum(int(np.add.reduce(part.digests, dtype=np.uint64)) for part in parts)
