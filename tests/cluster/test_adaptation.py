"""Adapting while running: policies on tables of numbers, the controller's orders, hold-back, parking, refusals."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.gateway.gateway import SLOT
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.master.moves import MoveState
from swjoin.cluster.role import MASTER, BatchRead, Log, Received, SourceEnded, TimerFired, slave_role
from swjoin.cluster.slave.slave import Slave
from swjoin.config.loader import config_from_plain
from swjoin.config.run import ReorganizationConfig
from swjoin.core.batch import LEFT, RIGHT, SourceBatch, TupleBatch
from swjoin.core.data_messages import Delivery, MoveEnd
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.policy.declustering import Confirmation, next_to_rest, wanted_by_work, wanted_change
from swjoin.policy.placement import round_robin
from swjoin.policy.reorganization import Kind, SlaveLoad, at_random, balanced, classify, empty_slaves, paper
from swjoin.routing.hash_partition import GroupMap, HashPartition
from tests.support.effects import deliveries, reported
from tests.support.roles import FirstRank

CONFIG = ReorganizationConfig("paper")


def load(slave: int, occupancy: float, groups: list[int], cost: list[int] | None = None, **more: Any) -> SlaveLoad:
    costs = np.array([1000] * len(groups) if cost is None else cost, np.int64)
    sizes = np.array(more.pop("state_bytes", [100] * len(groups)), np.int64)
    more = {"busy_ratio": 0.9, **more}
    return SlaveLoad(SlaveId(slave), occupancy, np.array(groups, np.int64), cost_ns=costs, state_bytes=sizes, **more)


def random() -> np.random.Generator:
    return np.random.default_rng(1)


# ---------------------------------------------------------------- policies


def test_thresholds() -> None:
    kinds = [str(classify(load(0, f, [1]), CONFIG)) for f in (0.0, 0.0099, 0.01, 0.5, 0.51)]
    assert kinds == ["consumer", "consumer", "neutral", "neutral", "supplier"]
    assert classify(load(0, 0.9, [1], emptying=True), CONFIG) == Kind.NEUTRAL


def test_paper_pairs_suppliers_with_consumers_and_moves_one_group_each() -> None:
    loads = [load(0, 0.9, [0, 5]), load(1, 0.0, [1]), load(2, 0.7, [2]), load(3, 0.2, [3]), load(4, 0.6, [4])]
    loads.append(load(5, 0.005, []))
    moves = paper(loads, CONFIG, random())
    assert [(m.supplier, m.consumer) for m in moves] == [(0, 1), (2, 5)]
    assert moves[0].group in (0, 5)
    assert {paper(loads, CONFIG, np.random.default_rng(s))[0].group for s in range(20)} == {0, 5}
    assert paper(loads[:1], CONFIG, random()) == []
    assert paper([load(0, 0.9, []), load(1, 0.0, [1])], CONFIG, random()) == []


def test_balanced_evens_out_the_work() -> None:
    loads = [load(0, 0.9, list(range(10)), [100] * 10), load(1, 0.0, [10], [100]), load(2, 0.0, [], [])]
    moves = balanced(loads, CONFIG, random())
    after = {0: 1000, 1: 100, 2: 0}
    for move in moves:
        after[move.supplier] -= 100
        after[move.consumer] += 100
    assert max(after.values()) <= 400
    assert len(moves) <= 7
    assert len({m.group for m in moves}) == len(moves)


def test_balanced_gives_a_slow_node_less_and_takes_the_smallest_state() -> None:
    loads = [
        load(0, 0.0, list(range(8)), [100] * 8, speed=0.25, state_bytes=[900, 800, 700, 600, 10, 20, 30, 40]),
        load(1, 0.0, list(range(8, 16)), [100] * 8, speed=1.0),
    ]
    moves = balanced(loads, CONFIG, random())
    assert {m.supplier for m in moves} == {0}
    assert 4 <= len(moves) <= 6  # 1600 of work at speeds 0.25 and 1: 320 and 1280
    assert [m.group for m in moves][:4] == [4, 5, 6, 7]


def test_balanced_leaves_alone_what_is_even_or_idle() -> None:
    even = [load(0, 0.9, [0, 1], [100, 100]), load(1, 0.9, [2, 3], [105, 100])]
    assert balanced(even, CONFIG, random()) == []
    idle = [load(0, 0.0, [0, 1], [100, 100], busy_ratio=0.05), load(1, 0.0, [], busy_ratio=0.0)]
    assert balanced(idle, CONFIG, random()) == []
    one_hot_group = [load(0, 0.9, [0], [1000]), load(1, 0.0, [1], [10])]
    assert balanced(one_hot_group, CONFIG, random()) == [], "moving the only hot group moves the problem"


def test_random_moves_are_possible_ones() -> None:
    loads = [load(0, 0.0, [0, 3]), load(1, 0.0, [1]), load(2, 0.0, [2], emptying=True)]
    for seed in range(30):
        config = dataclasses.replace(CONFIG, random_moves=5)
        for move in at_random(loads, config, np.random.default_rng(seed)):
            assert move.group in loads[move.supplier].groups
            assert {move.supplier, move.consumer} == {0, 1}


def test_emptying_goes_to_the_least_occupied_in_turn_and_in_parts() -> None:
    loads = [load(0, 0.3, [0]), load(1, 0.1, [1]), load(2, 0.0, [2, 5, 8, 11], emptying=True)]
    moves = empty_slaves(loads, dataclasses.replace(CONFIG, emptied_groups=3))
    assert [(m.group, m.consumer) for m in moves] == [(2, 1), (5, 0), (8, 1)]


def test_degree_of_declustering_by_the_paper() -> None:
    sup, con, neu = Kind.SUPPLIER, Kind.CONSUMER, Kind.NEUTRAL
    assert wanted_change([neu, con, neu], 0.5, 0) == -1
    assert wanted_change([con], 0.5, 3) == 0, "never below one"
    assert wanted_change([sup, con, con], 0.5, 2) == 0
    assert wanted_change([sup, sup, con, con], 0.5, 2) == 1
    assert wanted_change([sup, sup, con, con], 0.5, 0) == 0, "none is left to wake"
    assert wanted_change([sup, neu], 0.5, 1) == 1


def test_degree_of_declustering_by_measured_work() -> None:
    def wish(busy: list[float], resting: int = 2, **more: float) -> int:
        return wanted_by_work([load(i, 0.0, [i], busy_ratio=b, **more) for i, b in enumerate(busy)], resting)

    assert wish([0.8, 0.8]) == 1
    assert wish([0.8, 0.8], resting=0) == 0
    assert wish([0.5, 0.5]) == 0
    assert wish([0.2, 0.2]) == -1
    assert wish([0.3, 0.3]) == 0, "one alone would be busy for 0.6"
    assert wish([0.1]) == 0, "never below one"
    assert wish([0.5, 0.5], backlog_ratio=1.0) == 1, "what waits is work, too"


def test_confirmation_over_several_epochs() -> None:
    confirmation = Confirmation(3)
    assert [confirmation.confirm(x) for x in (1, 1, -1, 1, 1, 1, 1, 1, 1, 0, -1)] == [0, 0, 0, 0, 0, 1, 0, 0, 1, 0, 0]
    assert [Confirmation(1).confirm(x) for x in (1, -1, 0)] == [1, -1, 0]


def test_the_least_occupied_rests() -> None:
    assert next_to_rest([load(0, 0.2, [0]), load(1, 0.0, [1, 4]), load(2, 0.0, [2, 5])]).slave == 2
    assert next_to_rest([load(0, 0.0, [0], state_bytes=[5]), load(1, 0.0, [1], state_bytes=[9])]).slave == 0


# ---------------------------------------------------------------- master and controller


def first_rank(slaves: int, **reorganization: Any) -> FirstRank:
    plain = {
        "join": {"within": "1ms"},
        "cluster": {"distribution_epoch_us": 100, "partition_count": 4},
        "reorganization": {"policy": "random", "epoch_us": 200, "random_moves": 1, **reorganization},
    }
    return FirstRank(config_from_plain(plain), slaves)


def rows(start: int, stop: int) -> SourceBatch:
    ts = np.arange(start, stop, dtype=np.int64)
    return SourceBatch(ts % 50, ts, ts.astype(np.uint64))


def serve(rank: FirstRank, slaves: int, now: int) -> list[Delivery]:
    out = []
    for slave in range(slaves):
        out += deliveries(rank.handle(reported(slave, 0.0), now))
    return out


def started(rank: FirstRank, slaves: int) -> dict[int, list[Delivery]]:
    """1,000 us of both streams, and epochs until a move is under way; deliveries by epoch."""
    rank.start()
    rank.handle(BatchRead(LEFT, rows(0, 1000)), 0)
    out: dict[int, list[Delivery]] = {}
    for delivery in deliveries(rank.handle(BatchRead(RIGHT, rows(0, 1000)), 0)):
        out.setdefault(delivery.epoch, []).append(delivery)
    for now in range(1, 4):
        for delivery in serve(rank, slaves, now):
            out.setdefault(delivery.epoch, []).append(delivery)
    rank.master.controller.config = dataclasses.replace(rank.master.controller.config, random_moves=0)  # one move is enough
    return out


def test_only_the_moving_group_is_held_back_and_until_both_have_acknowledged() -> None:
    rank = first_rank(2)
    by_epoch = started(rank, 2)
    (move,) = rank.master.controller.moves.values()
    assert move.state == MoveState.DECIDED
    ordered = by_epoch[2]
    assert ordered[move.supplier].moves_out.tolist() == [[move.number, move.group, move.consumer]]
    assert ordered[move.consumer].moves_in.tolist() == [[move.number, move.group, move.supplier]]
    before = rank.gateway.buffers.held_tuples
    assert before > 0, "all of the moving partition-group that was read is held back"
    assert all(move.group not in d.groups for d in serve(rank, 2, 5)), "delivered while it moves"
    assert rank.gateway.buffers.held_tuples == before

    def end(installed: bool) -> Received:
        slave = move.consumer if installed else move.supplier
        return Received(slave_role(slave), MoveEnd(move.number, move.group, slave, installed, 10, 240, 2, 7))

    rank.handle(end(True), 7)
    assert rank.master.controller.map.owner[move.group] == move.supplier, "one acknowledgement is not enough"
    with pytest.raises(RunFailed, match="installed after installed"):
        rank.handle(end(True), 7)
    commands = rank.handle(end(False), 8)
    assert rank.master.controller.map.owner[move.group] == move.consumer
    assert rank.gateway.buffers.held_tuples == 0
    later = deliveries(commands) + [d for now in range(9, 14) for d in serve(rank, 2, now)]
    assert {int(d.slave) for d in later if move.group in d.groups} == {move.consumer}
    rank.validate()
    with pytest.raises(RunFailed, match="which was not ordered"):
        rank.handle(end(False), 20)


def test_nobody_is_promised_more_than_what_is_held_back() -> None:
    """Held-back tuples come after others of later times: the consumer must not expire what they still have to meet."""
    rank = first_rank(2)
    by_epoch = started(rank, 2)
    (move,) = rank.master.controller.moves.values()
    held_at = by_epoch[2][move.supplier].left_time_us
    more = [d for now in range(5, 9) for d in serve(rank, 2, now)]
    assert {d.left_time_us for d in more if d.slave == move.consumer} == {held_at}
    assert max(d.left_time_us for d in more if d.slave == move.supplier) > held_at


def test_the_end_of_the_streams_waits_for_moves() -> None:
    rank = first_rank(2)
    started(rank, 2)
    (move,) = rank.master.controller.moves.values()
    for stream in (LEFT, RIGHT):
        rank.handle(SourceEnded(stream), 5)
    served = [d for now in range(6, 30) for d in serve(rank, 2, now)]
    assert not any(d.last for d in served)
    for installed, slave in ((False, move.supplier), (True, move.consumer)):
        commands = rank.handle(Received(slave_role(slave), MoveEnd(move.number, move.group, slave, installed, 0, 0, 0, 0)), 40)
    served = deliveries(commands) + [d for now in range(41, 50) for d in serve(rank, 2, now)]
    assert [d.last for d in served if d.left_time_us == END_OF_TIME_US and d.last] == [True, True]
    assert rank.finished


def test_a_resting_slave_gets_nothing_but_the_end() -> None:
    plain = {"join": {"within": "1ms"}, "cluster": {"distribution_epoch_us": 100, "partition_count": 4}}
    config = config_from_plain({**plain, "reorganization": {"active_slaves": 2}})
    rank = FirstRank(config, 3)
    by_epoch = started(rank, 3)
    assert all([d.slave for d in group] == [0, 1] for group in by_epoch.values())
    assert {d.served for group in by_epoch.values() for d in group} == {2}
    for stream in (LEFT, RIGHT):
        rank.handle(SourceEnded(stream), 5)
    served = [d for now in range(6, 30) for d in serve(rank, 3, now)]
    assert [(int(d.slave), d.last, d.served) for d in served if d.last or d.slave == 2][-3:] == [
        (0, True, 3),
        (1, True, 3),
        (2, True, 3),
    ]


def test_every_change_is_logged() -> None:
    rank = first_rank(2)
    logged: list[Any] = []
    handle = rank.handle

    def spy(event: Any, now_us: int) -> list[Any]:
        commands = handle(event, now_us)
        logged.extend(c.event for c in commands if isinstance(c, Log))
        return commands

    rank.handle = spy  # type: ignore[method-assign]
    started(rank, 2)
    kinds = [e.kind for e in logged]
    assert kinds[:4] == ["occupancy", "occupancy", "decided", "held"]
    assert logged[2].text == "at random"


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"reorganization": {"supplier_threshold": 0.1, "consumer_threshold": 0.2}}, "consumer_threshold (0.2) must lie in"),
        ({"reorganization": {"policy": "paper", "epoch": "3100ms"}}, "must be a whole multiple of cluster.distribution_epoch"),
        ({"reorganization": {"policy": "papre"}}, "did you mean paper?"),
        ({"cluster": {"sub_group_count": 5}}, "sub_group_count is 5, but the run has 4 slaves"),
        ({"reorganization": {"active_slaves": 5}}, "active_slaves is 5, but the run has 4 slaves"),
        ({"reorganization": {"declustering": "adaptive"}}, "adaptive declustering needs a policy"),
        ({"reorganization": {"declustering": "measured", "policy": "paper"}}, "measured declustering needs policy balanced"),
        ({"reorganization": {"policy": "paper", "beta": 1.0}}, "beta must lie between 0 and 1"),
        ({"cluster": {"distribution_epoch": 0}, "reorganization": {"policy": "paper"}}, "distribution_epoch above 0"),
        ({"cluster": {"distribution_epoch": 0, "sub_group_count": 2}}, "needs a distribution_epoch to divide"),
        ({"nodes": {"speed": [1, 0]}}, "every speed must lie in 0..1"),
        ({"nodes": {"changes": [{"slave": 7, "at": "1s", "speed": 0.5}]}}, "there is no slave 7"),
    ],
)
def test_bad_input_is_one_clear_line(sections: dict[str, Any], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        config_from_plain({"join": {"within": "5s"}, **sections}).check_slaves(4)
    assert complaint in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_full_slave_holds_nobody_up_and_loses_nothing() -> None:
    plain = {
        "join": {"within": "1ms"},
        "pace": "realtime",
        "cluster": {"distribution_epoch_us": 100, "partition_count": 4},
    }
    rank = FirstRank(config_from_plain(plain), 2)
    rank.start()
    for slave in (0, 1):
        rank.handle(reported(slave, 0.0), 0)
    rank.handle(BatchRead(LEFT, rows(0, 1000)), 0)
    rank.handle(BatchRead(RIGHT, rows(0, 1000)), 0)
    got: dict[int, list[Delivery]] = {0: [], 1: []}
    for epoch, occupancy in enumerate([0.0, 1.0, 1.5, 0.3], 1):
        now = 100 * epoch
        commands = rank.handle(reported(0, occupancy), now)
        commands += rank.handle(reported(1, 0.0), now)
        for delivery in deliveries(commands + rank.handle(TimerFired(SLOT), now + 1)):
            got[delivery.slave].append(delivery)
        rank.validate()
    assert [len(d.left) > 0 for d in got[1]] == [True] * 4
    assert [len(d.left) > 0 for d in got[0]] == [True, False, False, True]
    assert [d.left_time_us for d in got[0]] == [100, 100, 100, 400], "nothing is promised that has not been sent"
    assert [d.left_time_us for d in got[1]] == [100, 200, 300, 400]
    for slave in (0, 1):
        times = [t for d in got[slave] for t in sorted(d.left.ts.tolist())]
        assert times == sorted(times)
    assert sum(len(d.left) for of_slave in got.values() for d in of_slave) == 400


@pytest.mark.parametrize("seed", range(20))
def test_mini_buffers_keep_every_tuple_in_order_whatever_waits(seed: int) -> None:
    """Holding, releasing and parking in any order: every tuple is delivered once, each partition-group in time order."""
    random = np.random.default_rng(seed)
    groups, slaves = 6, 3
    router = HashPartition(GroupMap(round_robin(groups, slaves)), slaves)
    buffers = MiniBuffers((None, None), router, 2)
    held: set[int] = set()
    parked: set[int] = set()
    sent: list[tuple[int, int]] = []
    for step in range(60):
        ts = np.arange(10 * step, 10 * step + 10)
        buffers.append(LEFT, TupleBatch(random.integers(0, 99, 10), ts, ts.astype(np.uint64), ts))
        group, slave = int(random.integers(groups)), int(random.integers(slaves))
        if group in held:
            held.remove(group)
            router = HashPartition(router.map.moved(group, slave), slaves)
            buffers.release(GroupId(group), router)
        elif random.random() < 0.4:
            held.add(group)
            buffers.hold(GroupId(group))
        if slave in parked or random.random() < 0.3:
            (buffers.unpark if slave in parked else buffers.park)(SlaveId(slave))
            parked ^= {slave}
        for sub_group in (0, 1):
            for drained in buffers.drain((10 * step + 5,) * 2, sub_group, [s for s in range(slaves) if s % 2 == sub_group]):
                assert not held & set(drained.groups.tolist())
                at = 0
                for g, n in zip(drained.groups.tolist(), drained.left_counts.tolist(), strict=True):
                    sent += [(g, t) for t in drained.left.ts[at : at + n].tolist()]
                    at += n
        buffers.validate()
    for g in held:
        buffers.release(GroupId(g), router)
    for s in parked:
        buffers.unpark(SlaveId(s))
    for sub_group in (0, 1):
        for drained in buffers.drain((END_OF_TIME_US,) * 2, sub_group, [s for s in range(slaves) if s % 2 == sub_group]):
            at = 0
            for g, n in zip(drained.groups.tolist(), drained.left_counts.tolist(), strict=True):
                sent += [(g, t) for t in drained.left.ts[at : at + n].tolist()]
                at += n
    assert sorted(t for _, t in sent) == list(range(600))
    for g in range(groups):
        times = [t for of, t in sent if of == g]
        assert times == sorted(times)


def test_a_broken_promise_fails_the_run() -> None:
    """Pairs that expire too early are in no ledger: the slave refuses a tuple older than what it was promised."""
    config = config_from_plain({"join": {"within": "1ms"}, "module": {"window": "1MB"}})
    slave = Slave(SlaveId(3), config, (None, None))
    counts = np.array([1])
    late = TupleBatch(counts, counts * 50, counts.astype(np.uint64), counts)
    empty = TupleBatch.empty()
    none = np.empty(0, np.int64)
    delivery = Delivery(QueryId(0), SlaveId(3), EpochIndex(0), 100, 100, none, none, none, empty, empty)
    slave.handle(Received(MASTER, delivery), 0)
    worse = Delivery(QueryId(0), SlaveId(3), EpochIndex(1), 100, 100, counts, counts * 0, counts, empty, late)
    with pytest.raises(RunFailed, match="slave 3, epoch 1: a right tuple of time 50 us came after the promise of 100 us"):
        slave.handle(Received(MASTER, worse), 0)
