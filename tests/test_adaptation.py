"""Adapting while running: policies on tables of numbers, the controller's orders, planted bugs that must be caught."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from swjoin.batch import LEFT, RIGHT, PayloadRows, RowLayout, SourceBatch, TupleBatch
from swjoin.cluster.buffers import MiniBuffers
from swjoin.cluster.controller import Controller, Move, Phase
from swjoin.cluster.master import Master
from swjoin.cluster.slave import Slave
from swjoin.config import ReorganizationConfig
from swjoin.errors import RunFailed, SwjoinError, UserError
from swjoin.loading import config_from_plain
from swjoin.messages import (
    END_OF_TIME_US,
    ClockAdvanced,
    Deliver,
    Delivered,
    Delivery,
    Directory,
    EpochIndex,
    GroupId,
    Log,
    MoveEnd,
    MoveEnded,
    QueryId,
    SlaveId,
    SlaveReported,
    StateChunk,
    StreamEnded,
    TuplesRead,
)
from swjoin.operators.state_movement import Arrival, Departure, Journey
from swjoin.operators.window_join import WindowJoin, Work
from swjoin.oracle import Bounds
from swjoin.policy.declustering import Confirmation, next_to_rest, wanted_by_work, wanted_change
from swjoin.policy.placement import round_robin
from swjoin.policy.reorganization import Kind, SlaveLoad, at_random, balanced, classify, empty_slaves, paper
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.runtime.chaos import Scenario, run_simulated
from swjoin.runtime.simulator import FIRST_SLAVE, Simulation, SimulationError
from swjoin.sources.bmodel import payload_bytes
from swjoin.state.kernels import CUR_GROUP

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


def a_master(slaves: int, **reorganization: Any) -> Master:
    plain = {
        "join": {"within": "1ms"},
        "cluster": {"distribution_epoch_us": 100, "partition_count": 4},
        "reorganization": {"policy": "random", "epoch_us": 200, "random_moves": 1, **reorganization},
    }
    return Master(config_from_plain(plain), slaves, (None, None))


def rows(start: int, stop: int) -> SourceBatch:
    ts = np.arange(start, stop, dtype=np.int64)
    return SourceBatch(ts % 50, ts, ts.astype(np.uint64))


def deliveries(commands: list[Any]) -> list[Delivery]:
    return [c.delivery for c in commands if isinstance(c, Deliver)]


def serve(master: Master, slaves: int, now: int) -> list[Delivery]:
    out = []
    for slave in range(slaves):
        out += deliveries(master.handle(SlaveReported(SlaveId(slave), 0.0), now))
    return out


def started(master: Master, slaves: int) -> dict[int, list[Delivery]]:
    """1,000 us of both streams, and epochs until a move is under way; deliveries by epoch."""
    master.start()
    master.handle(TuplesRead(LEFT, rows(0, 1000)), 0)
    out: dict[int, list[Delivery]] = {}
    for delivery in deliveries(master.handle(TuplesRead(RIGHT, rows(0, 1000)), 0)):
        out.setdefault(delivery.epoch, []).append(delivery)
    for now in range(1, 4):
        for delivery in serve(master, slaves, now):
            out.setdefault(delivery.epoch, []).append(delivery)
    master.controller.config = dataclasses.replace(master.controller.config, random_moves=0)  # one move is enough
    return out


def test_only_the_moving_group_is_held_back_and_until_both_have_acknowledged() -> None:
    master = a_master(2)
    by_epoch = started(master, 2)
    (move,) = master.controller.moves.values()
    assert move.phase == Phase.HELD
    ordered = by_epoch[2]
    assert ordered[move.supplier].moves_out.tolist() == [[move.number, move.group, move.consumer]]
    assert ordered[move.consumer].moves_in.tolist() == [[move.number, move.group, move.supplier]]
    before = master.buffers.held_tuples
    assert before > 0, "all of the moving partition-group that was read is held back"
    assert all(move.group not in d.groups for d in serve(master, 2, 5)), "delivered while it moves"
    assert master.buffers.held_tuples == before

    def end(installed: bool) -> MoveEnded:
        slave = move.consumer if installed else move.supplier
        return MoveEnded(MoveEnd(move.number, move.group, slave, installed, 10, 240, 2, 7))

    master.handle(end(True), 7)
    assert master.controller.map.owner[move.group] == move.supplier, "one acknowledgement is not enough"
    with pytest.raises(RunFailed, match="installed after installed"):
        master.handle(end(True), 7)
    commands = master.handle(end(False), 8)
    assert master.controller.map.owner[move.group] == move.consumer
    assert master.buffers.held_tuples == 0
    later = deliveries(commands) + [d for now in range(9, 14) for d in serve(master, 2, now)]
    assert {int(d.slave) for d in later if move.group in d.groups} == {move.consumer}
    master.validate()
    with pytest.raises(RunFailed, match="which nobody ordered"):
        master.handle(end(False), 20)


def test_nobody_is_promised_more_than_what_is_held_back() -> None:
    """Held-back tuples come after others of later times: the consumer must not expire what they still have to meet."""
    master = a_master(2)
    by_epoch = started(master, 2)
    (move,) = master.controller.moves.values()
    held_at = by_epoch[2][move.supplier].left_time_us
    more = [d for now in range(5, 9) for d in serve(master, 2, now)]
    assert {d.left_time_us for d in more if d.slave == move.consumer} == {held_at}
    assert max(d.left_time_us for d in more if d.slave == move.supplier) > held_at


def test_the_end_of_the_streams_waits_for_moves() -> None:
    master = a_master(2)
    started(master, 2)
    (move,) = master.controller.moves.values()
    for stream in (LEFT, RIGHT):
        master.handle(StreamEnded(stream), 5)
    served = [d for now in range(6, 30) for d in serve(master, 2, now)]
    assert not any(d.last for d in served)
    for installed, slave in ((False, move.supplier), (True, move.consumer)):
        commands = master.handle(MoveEnded(MoveEnd(move.number, move.group, slave, installed, 0, 0, 0, 0)), 40)
    served = deliveries(commands) + [d for now in range(41, 50) for d in serve(master, 2, now)]
    assert [d.last for d in served if d.left_time_us == END_OF_TIME_US and d.last] == [True, True]
    assert master.finished


def test_a_resting_slave_gets_nothing_but_the_end() -> None:
    plain = {"join": {"within": "1ms"}, "cluster": {"distribution_epoch_us": 100, "partition_count": 4}}
    config = config_from_plain({**plain, "reorganization": {"active_slaves": 2}})
    master = Master(config, 3, (None, None))
    by_epoch = started(master, 3)
    assert all([d.slave for d in group] == [0, 1] for group in by_epoch.values())
    assert {d.served for group in by_epoch.values() for d in group} == {2}
    for stream in (LEFT, RIGHT):
        master.handle(StreamEnded(stream), 5)
    served = [d for now in range(6, 30) for d in serve(master, 3, now)]
    assert [(int(d.slave), d.last, d.served) for d in served if d.last or d.slave == 2][-3:] == [
        (0, True, 3),
        (1, True, 3),
        (2, True, 3),
    ]


def test_every_change_is_logged() -> None:
    master = a_master(2)
    logged: list[Any] = []
    handle = master.handle

    def spy(event: Any, now_us: int) -> list[Any]:
        commands = handle(event, now_us)
        logged.extend(c.event for c in commands if isinstance(c, Log))
        return commands

    master.handle = spy  # type: ignore[method-assign]
    started(master, 2)
    kinds = [e.kind for e in logged]
    assert kinds[:4] == ["occupancy", "occupancy", "decided", "held"]
    assert logged[2].text == "at random"


@pytest.mark.parametrize(
    ("sections", "complaint"),
    [
        ({"reorganization": {"supplier_threshold": 0.1, "consumer_threshold": 0.2}}, "consumer_threshold (0.2) must lie in"),
        ({"reorganization": {"policy": "paper", "epoch": "3s"}}, "must be a whole multiple of cluster.distribution_epoch"),
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


# ---------------------------------------------------------------- planted bugs: tests of the checkers


def _moving_seeds(count: int) -> list[int]:
    """The first scenarios with many moves at random."""
    seeds = []
    seed = 0
    while len(seeds) < count:
        scenario = Scenario.draw(seed)
        many = scenario.slave_count > 1 and scenario.config.pace == "asap" and sum(map(len, scenario.rows)) > 100
        if many and scenario.config.reorganization.policy == "random" and scenario.config.reorganization.active_slaves != 1:
            seeds.append(seed)
        seed += 1
    return seeds


def _caught(enough: int, count: int = 60) -> int:
    """How many of the scenarios complain, until that is enough."""
    failures = 0
    for seed in _moving_seeds(count):
        try:
            run_simulated(seed)
        except (SimulationError, SwjoinError):
            failures += 1
            if failures == enough:
                break
    return failures


def test_without_a_bug_nothing_is_caught() -> None:
    assert _caught(1) == 0


def test_a_new_owner_that_opens_an_empty_group_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Arrival, "_append", lambda self, chunk: None)
    assert _caught(5) == 5


def test_tuples_that_overtake_their_state_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is held back: the new owner is sent the partition-group's tuples from the moment of the order."""
    monkeypatch.setattr(MiniBuffers, "hold", lambda self, group: None)
    monkeypatch.setattr(MiniBuffers, "release", lambda self, group, router: self.reroute(router) or 0)
    hold = Controller.hold

    def hold_and_route(self: Controller, *args: Any) -> Move:
        move = hold(self, *args)
        self._reroute(self.map.moved(move.group, move.consumer))
        return move

    monkeypatch.setattr(Controller, "hold", hold_and_route)
    assert _caught(5) == 5


def test_release_on_one_acknowledgement_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    acknowledge = Controller.acknowledge

    def hasty(self: Controller, end: MoveEnd, now_us: int) -> Move | None:
        move = self.moves.get(end.move)
        if move is None:
            return None
        if move.phase == Phase.HELD:
            acknowledge(self, dataclasses.replace(end, installed=not end.installed), now_us)
        return acknowledge(self, end, now_us)

    monkeypatch.setattr(Controller, "acknowledge", hasty)
    assert _caught(5) == 5


def test_a_directory_that_is_not_sent_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """The consumer puts everything into one mini-partition-group instead."""
    chunk = Departure._chunk

    def undirected(self: Departure, *args: Any) -> StateChunk:
        out = chunk(self, *args)
        zero = np.zeros(1, np.int64)
        directory = None if out.directory is None else Directory(0, zero, zero)
        return dataclasses.replace(out, minis=out.minis * 0, directory=directory)

    monkeypatch.setattr(Departure, "_chunk", undirected)
    assert _caught(5) == 5


def _patched(name: str, change: Callable[[Any], Any], owner: type) -> Callable[[pytest.MonkeyPatch], None]:
    return lambda monkeypatch: monkeypatch.setattr(owner, name, change(getattr(owner, name)))


@pytest.mark.parametrize(
    "plant",
    [
        pytest.param(_patched("limit_times", lambda _: lambda self, slave, times: times, Controller), id="promise too much"),
        pytest.param(_patched("_pending_chunk", lambda f: lambda self: _emptied(f(self)), Departure), id="pending lost"),
        pytest.param(_patched("settle", lambda f: lambda self, epoch: _unsettled(f(self, epoch)), Arrival), id="never joined"),
    ],
)
def test_other_planted_bugs_are_caught(plant: Callable[[pytest.MonkeyPatch], None], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert _caught(1, 150) == 1


def _unsettled(work: Work | None) -> Work | None:
    """The partition-group is there, but what its supplier had not joined is forgotten."""
    if work is not None:
        work.cursor[CUR_GROUP] = 1
    return work


def test_payload_waits_for_a_group_on_its_way() -> None:
    """Both slaves' time goes on while a partition-group moves; what it carries must not be freed by their times."""
    n = 30_000
    ids = np.arange(n, dtype=np.uint64)
    ts = np.arange(n, dtype=np.int64)
    rows = PayloadRows(payload_bytes(ids, 1, 0, 8))
    batch = TupleBatch(ts % 1000, ts, ids, ts, rows)
    options: dict[str, Any] = {"block_tuples": 64, "theta_tuples": 256, "window_bytes": 8 << 20, "result_tuples": 10_000}
    layout = RowLayout(8)
    joins = [WindowJoin(Bounds(-n, n), left_layout=layout, right_layout=layout, materialise=True, **options) for _ in range(2)]
    empty = TupleBatch.empty(layout)

    def deliver(join: WindowJoin, group: int, left: TupleBatch, time_us: int) -> None:
        counts = np.array([len(left)])
        times = (EpochIndex(0), time_us, time_us)
        work = join.open(Delivery(QueryId(0), SlaveId(0), *times, np.array([group]), counts, counts * 0, left, empty))
        while not join.step(work, 0, 10**9).done:
            pass

    one, two = joins
    deliver(one, 0, batch, n)
    departure = one.depart(Journey(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1)), (empty, empty), 20_000)
    arrival = two.arrive(first := departure.next_chunk())
    arrival.add(first)
    for later in range(10 * n, 10**9, n):
        if departure.done:
            break
        newer = dataclasses.replace(batch, ts=batch.ts + later).slice(0, 5000)
        deliver(one, 1, newer, later)  # by these times the moving windows would be gone
        deliver(two, 2, newer, later)
        arrival.add(departure.next_chunk())
        one.validate()
        two.validate()
    right = TupleBatch(ts[:1000], np.full(1000, n), ids[:1000], ts[:1000], PayloadRows(payload_bytes(ids[:1000], 1, 1, 8)))
    arrival._pending[RIGHT].append(right)
    work = arrival.settle(EpochIndex(0))
    assert work is not None
    found = 0
    done = False
    while not done:
        step = two.step(work, 0, 10**9)
        done = step.done
        if step.pairs is not None and step.pairs.left_rows is not None:
            assert np.array_equal(step.pairs.left_rows.fixed, payload_bytes(step.pairs.left_id, 1, 0, 8))
            found += len(step.pairs)
    assert found == n
    assert 0 not in one.group_ids()
    assert not one.state.hidden
    assert not two.state.hidden


def _emptied(chunk: StateChunk) -> StateChunk:
    return dataclasses.replace(chunk, tuples=chunk.tuples.slice(0, 0))


def test_a_full_slave_holds_nobody_up_and_loses_nothing() -> None:
    plain = {
        "join": {"within": "1ms"},
        "pace": "realtime",
        "cluster": {"distribution_epoch_us": 100, "partition_count": 4},
    }
    master = Master(config_from_plain(plain), 2, (None, None))
    master.start()
    for slave in (0, 1):
        master.handle(SlaveReported(SlaveId(slave), 0.0), 0)
    master.handle(TuplesRead(LEFT, rows(0, 1000)), 0)
    master.handle(TuplesRead(RIGHT, rows(0, 1000)), 0)
    got: dict[int, list[Delivery]] = {0: [], 1: []}
    for epoch, occupancy in enumerate([0.0, 1.0, 1.5, 0.3], 1):
        now = 100 * epoch
        commands = master.handle(SlaveReported(SlaveId(0), occupancy), now)
        commands += master.handle(SlaveReported(SlaveId(1), 0.0), now)
        for delivery in deliveries(commands + master.handle(ClockAdvanced(), now + 1)):
            got[delivery.slave].append(delivery)
        master.validate()
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
            for drained in buffers.drain(10 * step + 5, sub_group, [s for s in range(slaves) if s % 2 == sub_group]):
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
        for drained in buffers.drain(END_OF_TIME_US, sub_group, [s for s in range(slaves) if s % 2 == sub_group]):
            at = 0
            for g, n in zip(drained.groups.tolist(), drained.left_counts.tolist(), strict=True):
                sent += [(g, t) for t in drained.left.ts[at : at + n].tolist()]
                at += n
    assert sorted(t for _, t in sent) == list(range(600))
    for g in range(groups):
        times = [t for of, t in sent if of == g]
        assert times == sorted(times)


def _crowded(seed: int) -> tuple[bool, int]:
    """A simulated realtime run of slaves too slow for their tiny stream buffers; whether it is right, and how often only a part
    of what waited for a slave was let go."""
    random = np.random.default_rng([seed, 9])
    ts = np.sort(random.integers(0, 60_000, (2, 1500)), axis=1)
    keys = random.integers(0, 300, (2, 1500))
    streams = tuple(SourceBatch(k, t, np.arange(1500, dtype=np.uint64)) for k, t in zip(keys, ts, strict=True))
    plain = {
        "join": {"within": int(random.choice([300, 3_000]))},
        "pace": "realtime",
        "seed": seed,
        "cluster": {"partition_count": 12, "distribution_epoch_us": 1_000, "sub_group_count": 1 + seed % 2},
        "module": {"block_bytes": 256, "theta_bytes": 1024, "window_bytes": 1 << 20, "stream_buffer_bytes": 256 << seed % 4},
        "reorganization": {"policy": "random", "epoch_us": 1_000 << seed % 3, "random_moves": seed % 3, "chunk_bytes": 1024},
        "sink": {"kind": "count"},
    }
    scenario = Scenario(seed, config_from_plain(plain), 4, (streams[0], streams[1]))
    simulation = Simulation(scenario.config, ([streams[0]], [streams[1]]), 4, seed)
    simulation._delays._channel[:] = 20.0
    simulation._delays._actor[FIRST_SLAVE:] = random.choice([100.0, 500.0, 1_500.0], 4)
    parts = 0
    unpark_some = simulation.master.buffers.unpark_some

    def count(slave: SlaveId, limit_bytes: int) -> int | None:
        nonlocal parts
        cut = unpark_some(slave, limit_bytes)
        parts += cut is not None
        return cut

    simulation.master.buffers.unpark_some = count  # type: ignore[method-assign]
    result = simulation.run()
    pairs, digest = scenario.expected()
    return (result.count, result.digest) == (pairs.total(), digest), parts


CROWDED = range(12)


def test_runs_whose_slaves_have_no_room_are_right() -> None:
    outcomes = [_crowded(seed) for seed in CROWDED]
    assert all(right for right, _ in outcomes)
    assert sum(parts for _, parts in outcomes) > 200


def test_promising_what_is_parked_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    make_room = Master._make_room
    monkeypatch.setattr(Master, "_make_room", lambda self, *args: make_room(self, *args) and {})

    def wrong(seed: int) -> bool:
        try:
            return not _crowded(seed)[0]
        except (SimulationError, RunFailed):
            return True

    assert any(wrong(seed) for seed in CROWDED)


def test_a_broken_promise_fails_the_run() -> None:
    """Pairs that expire too early are in no ledger: the slave refuses a tuple older than what it was promised."""
    config = config_from_plain({"join": {"within": "1ms"}, "module": {"window": "1MB"}})
    slave = Slave(SlaveId(3), config, (None, None))
    counts = np.array([1])
    late = TupleBatch(counts, counts * 50, counts.astype(np.uint64), counts)
    empty = TupleBatch.empty()
    none = np.empty(0, np.int64)
    slave.handle(Delivered(Delivery(QueryId(0), SlaveId(3), EpochIndex(0), 100, 100, none, none, none, empty, empty)), 0)
    worse = Delivery(QueryId(0), SlaveId(3), EpochIndex(1), 100, 100, counts, counts * 0, counts, empty, late)
    with pytest.raises(RunFailed, match="slave 3, epoch 1: a right tuple of time 50 us came after the promise of 100 us"):
        slave.handle(Delivered(worse), 0)
