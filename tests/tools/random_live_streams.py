"""Live streams in the simulator: rows that arrive at random virtual times.

What: `LiveSimulation`, a simulation whose sources are read when they have something, `LivePlanSimulation`, of a plan;
`LiveBatchSource`, which keeps what has been accepted until it is told to forget it, and has splits for several gateways;
`live_scenario`, a random scenario with live streams, `shared_scenario`, with several gateways, `run_live_plan`, of a plan.
Why: the live pace, and seeking to a position, must be right whenever rows arrive, streams are silent and processes die.
Stays out: real endpoints, producers and disks (`connectors.flight.source`, tests/runtime/test_live.py).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from swjoin.cluster.role import GATEWAY, SourceIdle, SourceResumed, gateway_of, gateway_role
from swjoin.config.run import FlightConfig, KafkaConfig, RunConfig, ServeConfig, StreamConfig
from swjoin.core.batch import RowLayout, SourceBatch
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.plan.logical import LogicalPlan, Source
from swjoin.plan.stages import cut
from swjoin.runtime.simulator.attempts import SimulatedHost
from swjoin.runtime.simulator.plan_simulation import PlanSimulation
from swjoin.runtime.simulator.simulator import Simulation, actor_of
from swjoin.runtime.simulator.storage import BatchSource
from tests.tools.random_plans import PlanScenario, simulate
from tests.tools.random_runs import Scenario

_LEAST_EPOCH_US, _SHARED_EPOCH_US = 300, 10_000
SPLITS = 5


class LiveBatchSource(BatchSource):
    """come: how many batches have come; one more than there are: the stream has ended."""

    def __init__(self, batches: Sequence[SourceBatch], layout: RowLayout | None) -> None:
        super().__init__(batches, layout)
        self.come = 0
        self._accepted = 0  # batches that are kept, whoever dies
        self._forgotten = 0  # rows
        self._rows = np.cumsum([0, *(len(batch) for batch in batches)]).tolist()
        self.shared = False
        self.split_count = SPLITS
        self._share = 0, 1
        self._forgotten_splits: dict[str, int] = {}  # batches before are not to be read again
        self._after: dict[str, int] = {}  # for each of its splits, the batch that follows those read

    def first_position(self) -> dict[str, Any]:
        return {}

    def take_share(self, gateway: int, gateways: int, first: dict[str, Any]) -> None:
        """Batch b is in split b mod SPLITS. Rows are late by those before them in the whole stream, as with one gateway."""
        if any(batch.high_us is None for batch in self._batches):
            high_us = BEGIN_OF_TIME_US
            for at, batch in enumerate(self._batches):
                known = batch.ts if batch.ts_valid is None else np.where(batch.ts_valid, batch.ts, BEGIN_OF_TIME_US)
                marks = np.maximum(np.maximum.accumulate(known), high_us)
                self._batches[at] = replace(batch, high_us=marks)
                high_us = int(marks[-1]) if len(marks) else high_us
        self.shared, self._share = True, (gateway, gateways)
        self._go_on({})

    def _go_on(self, after: dict[str, int]) -> None:
        gateway, gateways = self._share
        self._after = {str(split): after.get(str(split), split) for split in range(gateway, SPLITS, gateways)}
        self._next = self._least_after

    @property
    def _least_after(self) -> int:
        return min([*self._after.values(), len(self._batches)])

    def taken_over(self, positions: Sequence[dict[str, Any]]) -> dict[str, Any]:
        return {split: batch for position in positions for split, batch in position.items()}

    @property
    def all_come(self) -> bool:
        return self.come > len(self._batches)

    def ready(self, patience_s: float) -> bool:
        return self._next < self.come

    def read(self) -> SourceBatch | None:
        assert self.ready(0), "a live source was read before it had something"
        if self.shared and self._next < len(self._batches):
            batch: SourceBatch | None = self._batches[self._next]
            self._after[str(self._next % SPLITS)] += SPLITS
            self._next = self._least_after
        else:
            batch = super().read()
        self._accepted = max(self._accepted, self._next)
        return batch

    def crash(self) -> None:
        """What has not been accepted comes again, later."""
        self.come = min(self.come, self._accepted)

    def position(self) -> dict[str, Any]:
        return dict(self._after) if self.shared else {"batch": self._next}

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        if self.shared:
            self._go_on(position)
            for split, batch in self._after.items():
                assert batch >= self._forgotten_splits.get(split, 0), f"split {split} is to be read again, and is forgotten"
            return
        self._next = position["batch"]
        assert self._rows[self._next] == row, f"the position is at row {self._rows[self._next]}, {row} have been read"
        assert row >= self._forgotten, f"row {row} is to be read again, and all before {self._forgotten} are forgotten"

    def seek(self, row: int) -> None:
        super().seek(row)
        if self.shared:
            self._go_on({})
        assert row >= self._forgotten, f"row {row} is to be read again, and all before {self._forgotten} are forgotten"

    def forget(self, row: int) -> None:
        self._forgotten = max(self._forgotten, row)

    def forget_shared(self, positions: Sequence[dict[str, Any]]) -> None:
        for split, batch in self.taken_over(positions).items():
            self._forgotten_splits[split] = max(self._forgotten_splits.get(split, 0), batch)

    def done(self) -> None:
        """Nothing is on a disk."""

    def status(self) -> dict[str, float]:
        return {}


class LiveStreams(Simulation):
    """Batches come after random times, mostly soon, now and then after a long silence."""

    SOURCE = LiveBatchSource
    _sources_of: list[tuple[LiveBatchSource, ...]]  # type: ignore[assignment]

    def _draw_arrivals(self, config: RunConfig, seed: int) -> None:
        """Before anything is made."""
        self._random = np.random.default_rng([seed, 0x11FE])
        scales_us = [100.0, 3_000.0, 100_000.0] if config.gateway_count == 1 else [30.0, 100.0, 300.0]  # fewer epochs
        self._scale_us = float(self._random.choice(scales_us))
        self._wanted: dict[int, tuple[int, ...]] = {}  # by gateway
        self._asked: Counter[int] = Counter()
        self._idle: set[tuple[int, int]] = set()  # gateway, stream

    def _new_roles(self, slave_count: int) -> None:
        super()._new_roles(slave_count)
        for gateway, sources in enumerate(self._sources_of):
            for source in sources:
                source.shared = False  # after a crash before the first checkpoint one gateway may start again
                if self._shared:
                    source.take_share(gateway, self.config.gateway_count, {})

    def _start(self) -> None:
        self._wanted.clear()
        self._idle.clear()
        for gateway in range(self.config.gateway_count):
            for stream, source in enumerate(self._sources_of[gateway]):
                source.crash()
                self._wait_for(gateway, stream)
        super()._start()

    def _wait_for(self, gateway: int, stream: int) -> None:
        if not self._sources_of[gateway][stream].all_come:
            wait_us = self._scale_us * self._random.exponential() * float(self._random.choice([0.01, 1, 20], p=[0.3, 0.6, 0.1]))
            name, host = f"more of stream {stream} has come", self._hosts[gateway_role(gateway)]
            self._at(self.now_us + 1 + int(wait_us), host, name, partial(self._come, host, stream))

    def _come(self, host: SimulatedHost, stream: int) -> None:
        if self._excluded(host):
            return
        gateway = gateway_of(host.name)
        self._sources_of[gateway][stream].come += 1
        self._wait_for(gateway, stream)
        self._look(host)

    def _freezable(self) -> list[SimulatedHost]:
        """The first gateway is on the master's rank."""
        return [host for host in self._hosts.values() if host.name != GATEWAY]

    def _excluded(self, host: SimulatedHost) -> bool:
        """Whether others go on without this host: nothing comes to it any more."""
        return self._hosts.get(host.name) is not host

    def _ask(self, host: SimulatedHost, stream: int, instead: tuple[int, ...]) -> None:
        if self._excluded(host):
            return
        gateway = gateway_of(host.name)
        self._wanted[gateway] = stream, *instead
        self._asked[gateway] += 1
        delay_us = self._delays.work_us(actor_of(host.name))
        self._at(self.now_us + delay_us, host, "a look at the sources", partial(self._look, host))
        timeout_us = self.config.time.idle_timeout_us
        if timeout_us:
            give_up = partial(self._give_up, host, self._asked[gateway])
            self._at(self.now_us + timeout_us, host, "patience is over", give_up)

    def _look(self, host: SimulatedHost) -> None:
        """As `GatewayHost.work`."""
        if self._excluded(host):
            return
        gateway = gateway_of(host.name)
        sources = self._sources_of[gateway]
        for stream in [s for g, s in sorted(self._idle) if g == gateway and sources[s].ready(0)]:
            self._idle.remove((gateway, stream))
            self._deliver(host, SourceResumed(stream))
        for wanted in self._wanted.get(gateway, ()):
            if sources[wanted].ready(0):
                del self._wanted[gateway]
                self._read(host, wanted)
                return

    def _give_up(self, host: SimulatedHost, asked: int) -> None:
        gateway = gateway_of(host.name)
        wanted = self._wanted.get(gateway)
        if (
            not self._excluded(host)
            and asked == self._asked[gateway]
            and wanted is not None
            and not self._sources_of[gateway][wanted[0]].ready(0)
        ):
            del self._wanted[gateway]
            self._idle.add((gateway, wanted[0]))
            self._deliver(host, SourceIdle(wanted[0]))


class LiveSimulation(LiveStreams):
    """Of a join."""

    def __init__(self, config: RunConfig, sources: Any, slave_count: int, seed: int, *more: Any) -> None:
        self._draw_arrivals(config, seed)
        super().__init__(config, sources, slave_count, seed, *more)


class LivePlanSimulation(LiveStreams, PlanSimulation):
    """Of a plan."""

    def __init__(self, plan: LogicalPlan, config: RunConfig, sources: Any, width: int, seed: int, *more: Any) -> None:
        self._draw_arrivals(config, seed)
        super().__init__(plan, config, sources, width, seed, *more)


def live_plan_scenario(seed: int) -> PlanScenario:
    """As `PlanScenario.draw`, with streams that are pushed; or of topics, where there are several gateways."""
    scenario = PlanScenario.draw(seed)
    config, schema = scenario.config, "key: int64, ts: int64"
    kafka = KafkaConfig("nowhere:1", "topic") if config.gateway_count > 1 else None
    live = StreamConfig(key=(), kafka=kafka, flight=None if kafka else FlightConfig(), schema=schema, time_unit="us")
    table = StreamConfig(None, (), "")
    streams = {source.name for source in cut(scenario.plan).sources}
    nodes = [node.name for node in scenario.plan.nodes if isinstance(node, Source)]
    inputs = tuple(live if name in streams else table for name in nodes)
    changes: dict[str, Any] = {"inputs": inputs, "serve": ServeConfig(listen="127.0.0.1:0")}
    if config.pace == "realtime":  # all gateways and slaves exchange messages in every epoch
        least_us = _LEAST_EPOCH_US if kafka is None else _SHARED_EPOCH_US
        longer = -(-least_us // config.cluster.distribution_epoch_us)
        changes["cluster"] = replace(config.cluster, distribution_epoch_us=longer * config.cluster.distribution_epoch_us)
        changes["reorganization"] = replace(config.reorganization, epoch_us=longer * config.reorganization.epoch_us)
    return replace(scenario, config=replace(config, **changes))


def run_live_plan(seed: int) -> None:
    """As `tests.tools.random_plans.run_plan`."""
    scenario = live_plan_scenario(seed)
    simulate(scenario, scenario.evaluated()["out"], LivePlanSimulation)


def live_scenario(seed: int) -> Scenario:
    """As `Scenario.draw`, with streams that are pushed; every other one in realtime pace."""
    scenario = Scenario.draw(seed)
    config = scenario.config.with_sinks(1).with_gateways(1)
    stream = StreamConfig(flight=FlightConfig(), schema="key: int64, ts: int64", time_unit="us")
    changes: dict[str, Any] = {"left": stream, "right": stream, "serve": ServeConfig(listen="127.0.0.1:0")}
    changes["measure"] = replace(config.measure, prefill_us=0)
    if config.time.late == "error":
        changes["time"] = replace(config.time, late="side")
    epoch_us = config.cluster.distribution_epoch_us
    if seed % 2 and config.pace == "asap" and epoch_us:
        longer = -(-_LEAST_EPOCH_US // epoch_us)
        changes["pace"] = "realtime"
        changes["cluster"] = replace(config.cluster, distribution_epoch_us=longer * epoch_us)
        changes["reorganization"] = replace(config.reorganization, epoch_us=longer * config.reorganization.epoch_us)
    return replace(scenario, config=replace(config, **changes))


def shared_scenario(seed: int) -> Scenario:
    """As `live_scenario`, with two to four gateways, which a crash changes."""
    scenario = live_scenario(seed)
    stream = StreamConfig(kafka=KafkaConfig("nowhere:1", "topic"), schema="key: int64, ts: int64", time_unit="us")
    gateways = 1 if scenario.config.query.last is not None else 2 + seed // 2 % 3
    config = replace(scenario.config, left=stream, right=stream, serve=ServeConfig())
    if config.pace == "realtime":  # all gateways and slaves exchange messages in every epoch
        longer = -(-_SHARED_EPOCH_US // config.cluster.distribution_epoch_us)
        cluster, moves = config.cluster, config.reorganization
        cluster = replace(cluster, distribution_epoch_us=longer * cluster.distribution_epoch_us)
        moves = replace(moves, epoch_us=longer * moves.epoch_us)
        config = replace(config, cluster=cluster, reorganization=moves)
    return replace(scenario, config=config.with_gateways(gateways))
