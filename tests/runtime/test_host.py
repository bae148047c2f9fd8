"""The host of a role: timers of roles, their order, and what a host performs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import SLOT, Gateway
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import CheckpointDurable, MeasuringStarted, PartSaved, Report, StateRequest
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import (
    COLLECTOR,
    GATEWAY,
    MASTER,
    BatchRead,
    Effect,
    Publish,
    Received,
    RestartClock,
    Send,
    SetTimer,
    TimerFired,
    UnexpectedEventError,
    UnknownEffectError,
    is_sink,
    is_slave,
    sink_of,
    sink_role,
    slave_of,
    slave_role,
)
from swjoin.cluster.slave.slave import EXCHANGE, Slave
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import LEFT, SourceBatch
from swjoin.core.ids import SlaveId
from swjoin.monitor.host_load import RankMeter
from swjoin.runtime.host import Host, Timers
from tests.support.effects import sent


def realtime(**sections: Any) -> Any:
    plain = {
        "join": {"within": "1ms"},
        "pace": "realtime",
        "cluster": {"distribution_epoch_us": 1000, "sub_group_count": 2, "partition_count": 4},
    }
    return config_from_plain({**plain, **sections})


def timers(effects: list[Effect]) -> list[SetTimer]:
    return [effect for effect in effects if isinstance(effect, SetTimer)]


def test_timers_fire_in_the_order_of_their_times_and_a_new_one_replaces_the_old() -> None:
    found = Timers()
    assert found.next_us is None
    assert found.take(100) is None
    found.set(SetTimer("a", 30))
    found.set(SetTimer("b", 20))
    found.set(SetTimer("a", 10))
    assert found.next_us == 10
    assert [found.take(25), found.take(25), found.take(25)] == [("a", 10), ("b", 20), None]
    found.set(SetTimer("a", 40))
    assert not found.remove(SetTimer("a", 10))
    assert found.remove(SetTimer("a", 40))
    assert found.next_us is None


class _Echo:
    """A role that sets its timer again, ten later."""

    finished = False

    def start(self, now_us: int = 0) -> list[Effect]:
        return [SetTimer("x", now_us + 10)]

    def handle(self, event: Any, now_us: int) -> list[Effect]:
        self.heard = event
        return [SetTimer("x", now_us + 10)]

    def validate(self) -> None: ...

    def summary(self) -> dict[str, Any]:
        return {}


class _Clock:
    def __init__(self) -> None:
        self.us = 5

    def now_us(self) -> int:
        return self.us


def test_a_host_fires_when_it_is_time_and_measures_how_late() -> None:
    host, role, clock = Host(MASTER), _Echo(), _Clock()
    host.role, host.clock, host.meter = role, clock, RankMeter()
    assert not host.fire()
    host.start()
    clock.us = 14
    assert not host.fire()
    assert host.until_timer_us() == 1
    clock.us = 22
    assert host.fire()
    assert role.heard == TimerFired("x")
    assert host.timers.next_us == 32
    assert host.meter.lateness.quantiles() == {"p50": 7e-6, "p99": 7e-6, "max": 7e-6}
    with pytest.raises(UnknownEffectError, match="Publish"):
        host.perform([Publish(1)])


def test_the_gateway_sets_the_end_of_its_slot_and_skips_those_it_missed() -> None:
    gateway = Gateway(realtime(), 2, (None, None))
    assert timers(gateway.start(0)) == [SetTimer(SLOT, 500)]
    assert timers(gateway.handle(TimerFired(SLOT), 500)) == [SetTimer(SLOT, 1000)]
    assert timers(gateway.handle(TimerFired(SLOT), 2600)) == [SetTimer(SLOT, 3000)]
    asap = Gateway(config_from_plain({"join": {"within": "1ms"}}), 2, (None, None))
    assert not timers(asap.start(0))
    assert asap.slot_us == 0


def test_a_slave_sets_its_exchange_in_its_own_slot() -> None:
    slaves = [Slave(SlaveId(i), realtime(), (None, None)) for i in range(2)]
    assert [slave.start(0) for slave in slaves] == [[SetTimer(EXCHANGE, 500)], [SetTimer(EXCHANGE, 1000)]]
    effects = slaves[0].handle(TimerFired(EXCHANGE), 1700)
    assert timers(effects) == [SetTimer(EXCHANGE, 2500)]
    assert [message.occupancy_ratio for message in sent(effects, Report)] == [0.0]
    asap = Slave(SlaveId(0), config_from_plain({"join": {"within": "1ms"}}), (None, None))
    assert not timers(asap.start(0))


def test_slots_start_with_the_clock_after_the_warm_up() -> None:
    config = realtime(measure={"prefill": "2ms"}, cluster={"distribution_epoch_us": 1000, "partition_count": 4})
    gateway, slave = Gateway(config, 1, (None, None)), Slave(SlaveId(0), config, (None, None))
    assert not timers([*gateway.start(0), *slave.start(0)])
    started = MeasuringStarted(2000)
    assert slave.handle(Received(MASTER, started), 777) == [RestartClock(2000), SetTimer(EXCHANGE, 3000)]
    assert Collector(1, materialised=False).handle(Received(MASTER, started), 777) == [RestartClock(2000)]


def test_parts_of_a_checkpoint_go_to_the_master_by_every_role() -> None:
    part = PartSaved(0, "collector", {})
    collector, slave = Collector(1, materialised=False), Slave(SlaveId(0), realtime(), (None, None))
    assert collector.handle(part, 0) == slave.handle(part, 0) == [Send(MASTER, part)]
    assert Send(MASTER, part) in Gateway(realtime(), 1, (None, None)).handle(part, 0)
    assert collector.handle(Received(MASTER, CheckpointDurable(3, stop=True)), 0) == [Publish(3)]
    assert slave.handle(Received(MASTER, CheckpointDurable(3, stop=True)), 0) == []
    assert collector.stopped
    assert slave.stopped


def test_events_for_another_role_are_refused() -> None:
    roles = (
        Master(realtime(), 2),
        Gateway(realtime(), 2, (None, None)),
        Collector(1, materialised=False),
        Slave(SlaveId(0), realtime(), (None, None)),
    )
    rows = np.arange(2)
    for role in (roles[0], *roles[2:]):
        with pytest.raises(UnexpectedEventError, match="BatchRead is not for this role"):
            role.handle(BatchRead(LEFT, SourceBatch(rows, rows, rows.astype(np.uint64))), 0)
    with pytest.raises(UnexpectedEventError, match="master: StateRequest"):
        roles[0].handle(Received(slave_role(0), StateRequest(1)), 0)
    with pytest.raises(UnexpectedEventError, match="gateway: StateRequest"):
        roles[1].handle(Received(slave_role(0), StateRequest(1)), 0)


def test_ranks_of_roles() -> None:
    roles = (MASTER, GATEWAY, COLLECTOR, sink_role(3), slave_role(0), slave_role(7))
    assert len(set(roles)) == 6
    assert [RankMap(10).rank_of(role) for role in roles if role != sink_role(3)] == [0, 0, 1, 2, 9]
    assert [is_slave(role) for role in roles] == [False, False, False, False, True, True]
    assert [is_sink(role) for role in roles] == [False, False, True, True, False, False]
    assert slave_of(slave_role(7)) == 7
    assert sink_of(sink_role(3)) == 3


@pytest.mark.parametrize("sinks", range(1, 7))
@pytest.mark.parametrize("size", range(3, 12))
def test_every_role_has_one_rank(size: int, sinks: int) -> None:
    ranks = RankMap(size, sinks)
    assert ranks.slave_ranks >= min(2, size - 2)
    assert [rank for rank in range(size) if ranks.slave_of(rank) is not None] == list(range(2, 2 + ranks.slave_ranks))
    for slave in range(3 * ranks.slave_ranks):  # of a plan with three stages
        assert ranks.slave_of(ranks.rank_of(slave_role(slave))) == slave % ranks.slave_ranks
    for sink in range(sinks):
        assert [rank for rank in range(size) if sink in ranks.sinks_of(rank)] == [ranks.rank_of(sink_role(sink))]
    assert ranks.rank_of(COLLECTOR) == 1
    shared = [rank for rank in range(2, 2 + ranks.slave_ranks) if ranks.sinks_of(rank)]
    assert not shared or ranks.slave_ranks <= 2, "a sink shares a rank with instances though more than two have them"
    assert len(set(ranks.names)) == size
    assert RankMap.of_width(ranks.slave_ranks, sinks).slave_ranks == ranks.slave_ranks
