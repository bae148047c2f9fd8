"""Roles without a runtime: intake, the epochs of master and gateway, the collector's refusals, and the policies they ask."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import SLOT
from swjoin.cluster.gateway.intake import LateRowError, StreamIntake
from swjoin.cluster.messages import Report
from swjoin.cluster.role import MASTER, BatchRead, Effect, Read, Received, SourceEnded, TimerFired, WorkDue, slave_role
from swjoin.cluster.slave.slave import EXCHANGE, MOST_DELIVERIES, Slave
from swjoin.config.loader import config_from_plain
from swjoin.config.run import TimeConfig
from swjoin.core.batch import LEFT, RIGHT, SourceBatch, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, ResultChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.metric_columns import COLUMNS
from swjoin.policy.epochs import boundary_after_us, next_exchange_us, slot_end_us, slot_offset_us, slots_ended, slots_to_skip
from swjoin.policy.placement import round_robin
from swjoin.state.delay_histogram import HISTOGRAM_SIZE
from tests.support.effects import deliveries, reported, sent
from tests.support.roles import FirstRank


def rows(times: Sequence[int | None], keys: Sequence[int | None] | None = None, first: int = 0) -> SourceBatch:
    keys = [1] * len(times) if keys is None else keys
    ts = np.array([0 if t is None else t for t in times], np.int64)
    key = np.array([0 if k is None else k for k in keys], np.int64)
    ids = np.arange(first, first + len(times), dtype=np.uint64)
    return SourceBatch(key, ts, ids, np.array([k is not None for k in keys]), np.array([t is not None for t in times]))


# ---------------------------------------------------------------- intake


@given(
    st.lists(st.one_of(st.none(), st.integers(-50, 50)), max_size=60),
    st.integers(0, 30),
    st.lists(st.integers(0, 60), max_size=4),
)
def test_intake_orders_what_is_not_late(times: list[int | None], bound: int, cuts: list[int]) -> None:
    intake = StreamIntake(LEFT, TimeConfig("event", bound, "drop"))
    out: list[int] = []
    marks = sorted(min(c, len(times)) for c in cuts)
    for a, b in zip([0, *marks], [*marks, len(times)], strict=True):
        intake.read(rows(times[a:b], first=a), 0)
        intake.arrive_all()
        for batch in intake.take_released():
            out += batch.ts.tolist()
        intake.validate()
        assert not out or out[-1] <= intake.watermark_us
    intake.end()
    intake.arrive_all()
    for batch in intake.take_released():
        out += batch.ts.tolist()
    high: int | None = None
    good = []
    for t in times:
        if t is not None and (high is None or t >= high - bound):
            good.append(t)
        if t is not None:
            high = t if high is None else max(high, t)
    assert out == sorted(good)
    assert intake.counts.late == len(times) - len(good)
    assert intake.watermark_us == END_OF_TIME_US


def test_null_key_rows_are_never_late_and_still_carry_time() -> None:
    intake = StreamIntake(LEFT, TimeConfig("event", 0, "error"))
    intake.read(rows([5, None, 3], [1, None, None]), 0)
    assert (intake.counts.null_key, intake.counts.late) == (2, 0)
    with pytest.raises(LateRowError, match="2us behind"):
        intake.read(rows([9, 7], [None, 1], first=3), 0)


def test_late_error_names_row_and_mend() -> None:
    intake = StreamIntake(RIGHT, TimeConfig("event", 10, "error"))
    with pytest.raises(LateRowError, match=r"row id 2: its time is 30us behind .* declare --max-out-of-order 30us"):
        intake.read(rows([40, 41, 11]), 0)
    with pytest.raises(LateRowError, match="no time"):
        StreamIntake(LEFT, TimeConfig()).read(rows([None]), 0)


def test_side_policy_hands_over_the_rows() -> None:
    intake = StreamIntake(LEFT, TimeConfig("event", 0, "side"))
    aside = intake.read(rows([5, 3, None, 6]), 0)
    assert [(reason, batch.id.tolist()) for batch, reason in aside] == [("null time", [2]), ("late", [1])]


def test_arrival_time_stamps_rows_in_order() -> None:
    intake = StreamIntake(LEFT, TimeConfig("arrival"))
    intake.read(rows([10, 8, None, 12]), None)
    intake.arrive_until(12)
    assert [b.ts.tolist() for b in intake.take_released()] == [[10, 10, 10]]


# ---------------------------------------------------------------- policies


@given(st.integers(-(10**12), 10**12), st.integers(1, 10**9))
def test_boundaries(time: int, epoch: int) -> None:
    boundary = boundary_after_us(max(time, 0), 0, epoch)
    assert boundary - epoch <= max(time, 0) < boundary
    assert next_exchange_us(boundary, epoch) == boundary + epoch


@given(st.integers(0, 10**9), st.integers(1, 10**7), st.integers(1, 9))
def test_slots(time: int, epoch: int, sub_groups: int) -> None:
    """Slots end where their numbers say; a whole epoch of slots ends with the epoch; who is behind keeps every turn."""
    epoch = max(epoch, sub_groups)
    ended = slots_ended(time, epoch, sub_groups)
    assert ended == 0 or slot_end_us(ended - 1, epoch, sub_groups) <= time
    assert slot_end_us(ended, epoch, sub_groups) > time
    assert slot_end_us(5 * sub_groups - 1, epoch, sub_groups) == 5 * epoch
    for slave in range(2 * sub_groups):
        assert slot_offset_us(slave, sub_groups, epoch) == slot_end_us(slave % sub_groups, epoch, sub_groups) % epoch
    skipped = slots_to_skip(3, 3 + ended, sub_groups)
    assert skipped % sub_groups == 0
    assert 3 + skipped < max(4, 3 + ended)
    assert ended - skipped <= sub_groups


def test_placement_is_even() -> None:
    owner = round_robin(60, 7)
    assert np.bincount(owner).max() - np.bincount(owner).min() <= 1


# ---------------------------------------------------------------- master and gateway


def first_rank(slaves: int = 2, **cluster: int) -> FirstRank:
    settings = {"distribution_epoch_us": 100, "partition_count": 4, **cluster}
    return FirstRank(config_from_plain({"join": {"within": "1ms"}, "cluster": settings}), slaves)


def test_slaves_are_served_in_fixed_order_each_after_its_report() -> None:
    rank = first_rank(3)
    assert rank.start() == [Read(LEFT)]
    assert rank.handle(BatchRead(LEFT, rows(list(range(0, 300, 3)))), 0) == [Read(RIGHT)]
    assert not deliveries(rank.handle(reported(2, 0.0), 1))
    commands = rank.handle(BatchRead(RIGHT, rows(list(range(0, 300, 3)))), 2)
    assert not deliveries(commands), "slave 0 has not reported"
    served = []
    for slave in (1, 0):
        served += deliveries(rank.handle(reported(slave, 0.0), 3))
    assert [d.slave for d in served] == [0, 1, 2]
    assert {d.epoch for d in served} == {0}
    assert all(d.left_time_us == d.right_time_us == 100 for d in served)
    assert sum(len(d.left) for d in served) == 34


def test_every_delivery_carries_both_times_also_when_empty() -> None:
    """FLINK-38477: with an idle input, time must go on."""
    rank = first_rank(1)
    rank.start()
    rank.handle(BatchRead(LEFT, rows(list(range(0, 1000, 10)))), 0)
    rank.handle(SourceEnded(RIGHT), 0)
    found: list[Delivery] = []
    for _ in range(20):
        commands = rank.handle(reported(0, 0.0), 0)
        found += deliveries(commands)
        if any(isinstance(c, Read) for c in commands):
            commands = rank.handle(SourceEnded(LEFT), 0)
            found += deliveries(commands)
    assert [d.right_time_us for d in found[:3]] == [100, 200, 300]
    assert found[-1].last
    assert found[-1].left_time_us == found[-1].right_time_us == END_OF_TIME_US
    assert sum(len(d.left) for d in found) == 100


def test_full_mini_buffers_close_an_epoch_early() -> None:
    rank = first_rank(1, distribution_epoch_us=10**12, mini_buffer_bytes=1 << 16)
    rank.start()
    rank.handle(reported(0, 0.0), 0)
    rank.handle(BatchRead(LEFT, rows(list(range(3000)))), 0)
    commands = rank.handle(BatchRead(RIGHT, rows(list(range(3000)))), 0)
    (delivery,) = deliveries(commands)
    assert len(delivery.left) == 3000
    assert delivery.left_time_us == 2999


def test_a_bound_that_the_buffers_cannot_hold_is_refused() -> None:
    config = config_from_plain(
        {"join": {"within": "1ms"}, "cluster": {"mini_buffer_bytes": 1 << 16}, "time": {"max_out_of_order": "1h"}}
    )
    rank = FirstRank(config, 1)
    rank.start()
    rank.handle(BatchRead(LEFT, rows(list(range(1000)))), 0)
    with pytest.raises(RunFailed, match=r"raise cluster\.mini_buffer"):
        rank.handle(BatchRead(RIGHT, rows(list(range(2000)))), 0)


def test_realtime_follows_the_clock_and_not_the_arrivals() -> None:
    config = config_from_plain(
        {"join": {"within": "1ms"}, "pace": "realtime", "cluster": {"distribution_epoch_us": 100, "partition_count": 4}}
    )
    rank = FirstRank(config, 1)
    rank.start()
    rank.handle(reported(0, 0.0), 0)
    rank.handle(BatchRead(LEFT, rows([1000, 1050, 1990])), 0)
    rank.handle(BatchRead(RIGHT, rows([1000, 1990])), 0)
    (delivery,) = deliveries(rank.handle(TimerFired(SLOT), 105))
    assert delivery.left.ts.tolist() == [1000, 1050]
    assert delivery.left.arrival_us.tolist() == [0, 50]
    assert (delivery.left_time_us, delivery.right_time_us) == (1100, 1100)
    (delivery,) = deliveries(rank.handle(reported(0, 0.0), 510))
    assert len(delivery.left) == 0
    assert delivery.left_time_us == 1500


def test_a_clock_that_steps_back_takes_no_promise_back() -> None:
    """No runtime's clock does (they are monotonic); if one did, nothing would happen until it is where it was."""
    config = config_from_plain(
        {"join": {"within": "1ms"}, "pace": "realtime", "cluster": {"distribution_epoch_us": 100, "partition_count": 4}}
    )
    rank = FirstRank(config, 1)
    rank.start()
    rank.handle(BatchRead(LEFT, rows([1000, 1250, 1990])), 0)
    rank.handle(BatchRead(RIGHT, rows([1000, 1990])), 0)
    promised: list[int] = []
    delivered: list[list[int]] = []
    for now_us in (0, 305, 110, 5, 290, 420, 60, 510):
        commands = rank.handle(reported(0, 0.0), now_us)
        promised += [d.left_time_us for d in deliveries(commands)]
        delivered += [d.left.ts.tolist() for d in deliveries(commands)]
        rank.validate()
    assert promised == [1300, 1400, 1500]
    assert delivered == [[1000, 1250], [], []]


# ---------------------------------------------------------------- collector


def final(slave: int, epoch: int, pairs: int, last: bool = False, served: int = 2) -> ResultChunk:
    results = GroupResults(np.zeros(1, np.int64), np.array([pairs]), np.array([5 * (pairs > 0)], np.uint64))
    histogram = np.zeros(HISTOGRAM_SIZE, np.int64)
    histogram[3] = pairs
    metrics = np.zeros(len(COLUMNS))
    return ResultChunk(QueryId(0), SlaveId(slave), EpochIndex(epoch), True, last, None, results, metrics, histogram, served)


def test_an_epoch_is_committed_when_every_slave_has_completed_it() -> None:
    collector = Collector(2, materialised=False)
    collector.handle(Received(slave_role(0), final(0, 0, 2)), 0)
    collector.handle(Received(slave_role(0), final(0, 1, 0)), 0)
    assert collector.committed == -1
    collector.handle(Received(slave_role(1), final(1, 0, 1)), 0)
    assert collector.committed == 0
    assert collector.tally.count == 3
    assert collector.summary()["digest"] == "000000000000000a"


def test_an_epoch_waits_for_the_slaves_that_it_served() -> None:
    """A resting slave has nothing to complete; one that was woken has, however late its results come."""
    collector = Collector(2, materialised=False)
    collector.handle(Received(slave_role(0), final(0, 0, 1, served=1)), 0)
    assert collector.committed == 0
    collector.handle(Received(slave_role(0), final(0, 1, 1, served=2)), 0)
    collector.handle(Received(slave_role(0), final(0, 2, 1, served=1)), 0)
    assert collector.committed == 0
    collector.handle(Received(slave_role(1), final(1, 1, 1, served=2)), 0)
    assert collector.committed == 2
    collector.validate()


@pytest.mark.parametrize(
    ("chunks", "complaint"),
    [
        ([final(0, 0, 1, last=True), final(0, 1, 1)], "unknown or has finished"),
        ([final(5, 0, 1)], "unknown or has finished"),
        ([final(0, 1, 1), final(0, 0, 1)], "completed epoch 0 after epoch 1"),
        ([final(0, 0, 1, served=1), final(1, 0, 1)], "completed epoch 0 after epoch -1"),
        ([final(0, 0, 1), final(1, 1, 1), final(0, 1, 0, last=True), final(1, 2, 0, last=True)], "epoch 0 was never completed"),
    ],
)
def test_collector_refuses_contradictions(chunks: list[ResultChunk], complaint: str) -> None:
    collector = Collector(2, materialised=False)
    for chunk in chunks[:-1]:
        collector.handle(Received(slave_role(0), chunk), 0)
    with pytest.raises(RunFailed, match=complaint):
        collector.handle(Received(slave_role(0), chunks[-1]), 0)


def test_collector_misses_pairs_that_were_produced_but_did_not_arrive() -> None:
    collector = Collector(1, materialised=True)
    with pytest.raises(RunFailed, match=r"produced 2 pairs .* 0 with digest"):
        collector.handle(Received(slave_role(0), final(0, 0, 2)), 0)


# ---------------------------------------------------------------- a slave that cannot even keep up with empty deliveries


def test_empty_deliveries_do_not_pile_up_for_ever() -> None:
    """Distribution epochs shorter than what an empty delivery takes: seeds 3713 and 4503 of the simulator never ended."""
    plain = {
        "join": {"within": "1s"},
        "pace": "realtime",
        "cluster": {"distribution_epoch": "2ms"},
        "module": {"window": "1MB"},
    }
    slave = Slave(SlaveId(0), config_from_plain(plain), (None, None))
    slave.start()
    nothing, none = TupleBatch.empty(), np.empty(0, np.int64)
    reports = 0
    for epoch in range(3 * MOST_DELIVERIES):
        if not sent(slave.handle(TimerFired(EXCHANGE), 2000 * epoch), Report):
            break
        reports += 1
        head = (QueryId(0), SlaveId(0), EpochIndex(epoch), epoch, epoch)
        slave.handle(Received(MASTER, Delivery(*head, none, none, none, nothing, nothing)), 2000 * epoch)
    assert reports == MOST_DELIVERIES
    told: list[Effect] = []
    for _ in range(10):
        told += slave.handle(WorkDue(), 10**6)
    assert len(sent(told, Report)) == 1, "the slot that has come is reported when there is room"
