"""What a slave runs behind the protocol: any join, also after a crash; the parts of the window join check themselves."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
import pytest

from swjoin.cluster.role import MASTER, Received, Send, WorkDue
from swjoin.cluster.slave.results import receipts
from swjoin.cluster.slave.slave import Slave
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import I64, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, ResultChunk, Route, StateChunk
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.join_semantics import Bounds, pair_digest
from swjoin.forecast.key_distribution import key_distribution
from swjoin.forecast.model.batch import ModelBatch, Overlaps
from swjoin.forecast.model.join import ModelJoin
from swjoin.operators.join_operator import IncomingGroup, JoinOperator, MoveId, OutgoingGroup
from swjoin.operators.join_step import Step, WindowMemory, Work
from swjoin.operators.window_store import WindowSizes
from swjoin.state.arrays import STAT_PAIRS, Inputs
from tests.support.join_module import delivery, drive, make, stream

BOTH = (Route.BOTH, Route.BOTH)
CONFIG = config_from_plain(
    {
        "workload": {"rate": 100, "duration": "1s"},
        "join": {"within": "10us"},
        "sink": {"kind": "count"},
        "cluster": {"distribution_epoch": "2ms", "partition_count": 4},
    }
)


class NestedLoops:
    """Another join than the window join: it keeps every tuple, and compares all with all. Counts only."""

    def __init__(self, bounds: Bounds) -> None:
        self.bounds = bounds
        self.stored = [TupleBatch.empty(), TupleBatch.empty()]
        self.restored_times: list[Any] = []

    def check_rows(self, delivery: Delivery, where: str) -> None:
        assert delivery.left.rows is None, where

    def open(self, delivery: Delivery) -> Work:
        groups = delivery.groups
        results = GroupResults(groups, np.zeros(len(groups), np.int64), np.zeros(len(groups), np.uint64))
        return Work(delivery, cast("Inputs", None), results)

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step:
        before = self._pairs()
        self.restore(work.delivery)
        found = sorted(self._pairs() - before)
        work.stats[STAT_PAIRS] = len(found)
        if found:
            ids = np.array(found, np.uint64)
            work.results.counts[0] = len(found)
            work.results.digests[0] = np.uint64(pair_digest(ids[:, 0], ids[:, 1]))
        if work.delivery.last:
            self.stored = [TupleBatch.empty(), TupleBatch.empty()]
        return Step(None, True, len(work.delivery.left) + len(work.delivery.right))

    def _pairs(self) -> set[tuple[int, int]]:
        left, right = self.stored
        apart = right.ts[None, :] - left.ts[:, None]
        equal = right.key[None, :] == left.key[:, None]
        i, j = np.nonzero(equal & (apart >= self.bounds.lower_us) & (apart <= self.bounds.upper_us))
        return set(zip(left.id[i].tolist(), right.id[j].tolist(), strict=True))

    def restore(self, delivery: Delivery) -> None:
        self.stored = [TupleBatch.concat([a, b]) for a, b in zip(self.stored, (delivery.left, delivery.right), strict=True)]

    def restored_until(self, times_us: tuple[int, int]) -> None:
        self.restored_times.append(times_us)

    def restored(self, times_us: I64) -> None:
        self.restored_times.append(times_us.tolist())

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> OutgoingGroup:
        raise NotImplementedError

    def import_group(self, first: StateChunk) -> IncomingGroup:
        raise NotImplementedError

    @property
    def may_append(self) -> bool:
        return True

    def group_ids(self) -> list[GroupId]:
        return [GroupId(0)]

    def tuples_by_group(self, partition_count: int) -> I64:
        return np.zeros(partition_count, np.int64)

    def window_tuples(self) -> tuple[int, int]:
        return len(self.stored[0]), len(self.stored[1])

    def window_bytes(self) -> int:
        return 32 * sum(self.window_tuples())

    def window_memory(self) -> WindowMemory:
        return WindowMemory(0, 0, 0, self.window_bytes(), sum(self.window_tuples()))

    def mini_group_count(self) -> int:
        return 1

    def block_count(self) -> int:
        return 0

    def validate(self) -> None:
        assert len(self.stored) == 2


def _batch(times: list[int], first: int) -> TupleBatch:
    n = len(times)
    ids = np.arange(first, first + n, dtype=np.uint64)
    return TupleBatch(np.array(times, np.int64) % 3, np.array(times, np.int64), ids, np.zeros(n, np.int64))


DELIVERIES = [
    (_batch([0, 1, 2, 5], 0), _batch([1, 3, 4], 0), (6, 6)),
    (_batch([6, 7, 11], 4), _batch([8, 9, 12], 3), (13, 13)),
    (_batch([13, 30], 7), _batch([14, 15, 16, 31], 6), (END_OF_TIME_US, END_OF_TIME_US)),
]


def _run(slave: Slave, epochs: range) -> tuple[int, int]:
    """Deliver and join; pairs and their digest, as the slave sends them."""
    slave.start()
    count = digest = 0
    for epoch in epochs:
        left, right, times = DELIVERIES[epoch]
        slave.handle(Received(MASTER, delivery(epoch, left, right, times, 4, BOTH)), epoch)
        while slave.has_work:
            effects = slave.handle(WorkDue(), epoch)
            for receipt in receipts(slave.results, effects):
                slave.handle(receipt, epoch)
            for effect in effects:
                slave.validate()
                if isinstance(effect, Send) and isinstance(effect.message, ResultChunk) and effect.message.results is not None:
                    count += int(effect.message.results.counts.sum())
                    digest += int(np.add.reduce(effect.message.results.digests, dtype=np.uint64))
    return count, digest % 2**64


JOINS: dict[str, Callable[[], JoinOperator | None]] = {
    "window join": lambda: None,
    "nested loops": lambda: NestedLoops(CONFIG.query.bounds),
}


def _slave(which: str) -> Slave:
    return Slave(SlaveId(0), CONFIG, (None, None), JOINS[which]())


def test_a_slave_runs_any_join() -> None:
    found = [_run(_slave(which), range(3)) for which in JOINS]
    assert found[0] == found[1]
    assert found[0][0] > 5


def test_a_slave_restores_any_join() -> None:
    """The first delivery had been joined before a crash: its pairs with later tuples come, and not those within it."""
    whole, first = _run(_slave("window join"), range(3)), _run(_slave("window join"), range(1))
    for which in JOINS:
        slave = _slave(which)
        left, right, times = DELIVERIES[0]
        slave.restore(delivery(0, left, right, times, 4, BOTH))
        slave.restored_until(times)
        slave.restored(np.array([times] * 4))
        slave.validate()
        count, digest = _run(slave, range(1, 3))
        assert count == whole[0] - first[0], which
        assert digest == (whole[1] - first[1]) % 2**64, which
    assert cast("NestedLoops", slave.join).restored_times == [(6, 6), [[6, 6]] * 4]


def test_a_join_over_counts_restores_its_windows() -> None:
    """Restored windows are those that joining leaves."""
    config = config_from_plain({"workload": {"rate": 1000, "duration": "4s"}, "join": {"within": "1s"}})
    distribution = key_distribution(config)
    sizes = WindowSizes(64, 256, 1 << 28)
    overlaps = Overlaps(distribution.edges_us, config.query.bounds)
    joined, restored = (ModelJoin(distribution, overlaps, sizes, 32) for _ in range(2))
    groups, n = np.arange(3), np.full(3, 50)
    for i in range(3):
        edges = distribution.edges_us
        zero = np.zeros(3, np.int64)
        batch = ModelBatch.of(groups, zero + edges[i], zero + i, zero, zero, n, 32)
        times = (int(edges[i + 1]), int(edges[i + 1]))
        work_on = Delivery(QueryId(0), SlaveId(0), EpochIndex(i), *times, groups, n, n, batch, batch)
        work = joined.open(work_on)
        while not joined.step(work, 0, 1 << 30).done:
            pass
        restored.check_rows(work_on, "nowhere")
        restored.restore(work_on)
        restored.restored_until(times)
    restored.restored(np.zeros((3, 2), np.int64))
    restored.validate()
    assert sum(joined.window_tuples()) > 0
    assert restored.window_tuples() == joined.window_tuples()
    assert restored.tuples_by_group(3).tolist() == joined.tuples_by_group(3).tolist()
    assert restored.times_us == joined.times_us


# ---------------------------------------------------------------- the window join's parts


def _filled() -> Any:
    join = make(Bounds(-50, 50))
    batch = stream(list(range(100)), [0] * 100, None)
    drive(join, delivery(0, batch, TupleBatch.empty(), (0, 0), 1, BOTH))
    return join


def test_windows_over_their_limit_are_caught() -> None:
    join = _filled()
    join.windows.store.limit_bytes = join.state.block_bytes
    with pytest.raises(AssertionError, match="the limit is"):
        join.validate()


def test_rows_taken_twice_are_caught() -> None:
    join = _filled()
    join._results._taken = 1
    with pytest.raises(AssertionError, match="1 rows taken of 0"):
        join.validate()


def test_settling_without_a_delivery_is_caught() -> None:
    join = _filled()
    join.windows._settles = True
    with pytest.raises(AssertionError, match="settling without an open delivery"):
        join.validate()
