"""Live streams in the simulator: rows that arrive at random virtual times.

What: `LiveSimulation`, a simulation whose sources are read when they have something; `LiveBatchSource`, which keeps what has
been accepted until it is told to forget it; `live_scenario`, a random scenario with live streams.
Why: the live pace, and seeking to a position, must be right whenever rows arrive, streams are silent and processes die.
Stays out: real endpoints, producers and disks (`connectors.flight.source`, tests/runtime/test_live.py).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from functools import partial
from typing import Any

import numpy as np

from swjoin.cluster.role import GATEWAY, SourceIdle, SourceResumed
from swjoin.config.run import FlightConfig, ServeConfig, StreamConfig
from swjoin.core.batch import STREAM_NAMES, RowLayout, SourceBatch
from swjoin.runtime.simulator.attempts import SimulatedHost
from swjoin.runtime.simulator.simulator import Simulation, actor_of
from swjoin.runtime.simulator.storage import BatchSource
from tests.tools.random_runs import Scenario

_LEAST_EPOCH_US = 300


class LiveBatchSource(BatchSource):
    """come: how many batches have come; one more than there are: the stream has ended."""

    def __init__(self, batches: Sequence[SourceBatch], layout: RowLayout | None) -> None:
        super().__init__(batches, layout)
        self.come = 0
        self._accepted = 0  # batches that are kept, whoever dies
        self._forgotten = 0  # rows
        self._rows = np.cumsum([0, *(len(batch) for batch in batches)]).tolist()

    @property
    def all_come(self) -> bool:
        return self.come > len(self._batches)

    def ready(self, patience_s: float) -> bool:
        return self._next < self.come

    def read(self) -> SourceBatch | None:
        assert self.ready(0), "a live source was read before it had something"
        batch = super().read()
        self._accepted = max(self._accepted, self._next)
        return batch

    def crash(self) -> None:
        """What has not been accepted comes again, later."""
        self.come = min(self.come, self._accepted)

    def position(self) -> dict[str, Any]:
        return {"batch": self._next}

    def resume_at(self, row: int, position: dict[str, Any]) -> None:
        self._next = position["batch"]
        assert self._rows[self._next] == row, f"the position is at row {self._rows[self._next]}, {row} have been read"
        assert row >= self._forgotten, f"row {row} is to be read again, and all before {self._forgotten} are forgotten"

    def seek(self, row: int) -> None:
        super().seek(row)
        assert row >= self._forgotten, f"row {row} is to be read again, and all before {self._forgotten} are forgotten"

    def forget(self, row: int) -> None:
        self._forgotten = max(self._forgotten, row)

    def done(self) -> None:
        """Nothing is on a disk."""

    def status(self) -> dict[str, float]:
        return {}


class LiveSimulation(Simulation):
    """Batches come after random times, mostly soon, now and then after a long silence."""

    SOURCE = LiveBatchSource
    _sources_of: list[tuple[LiveBatchSource, LiveBatchSource]]  # type: ignore[assignment]

    def __init__(self, config: Any, sources: Any, slave_count: int, seed: int, *more: Any) -> None:
        self._random = np.random.default_rng([seed, 0x11FE])
        self._scale_us = float(self._random.choice([100.0, 3_000.0, 100_000.0]))
        self._wanted: tuple[int, int | None] | None = None
        self._asked = 0
        self._idle: set[int] = set()
        super().__init__(config, sources, slave_count, seed, *more)

    @property
    def _sources(self) -> tuple[LiveBatchSource, LiveBatchSource]:
        return self._sources_of[0]

    def _start(self) -> None:
        self._wanted = None
        self._idle.clear()
        for stream, source in enumerate(self._sources):
            source.crash()
            self._wait_for(stream)
        super()._start()

    def _wait_for(self, stream: int) -> None:
        if not self._sources[stream].all_come:
            wait_us = self._scale_us * self._random.exponential() * float(self._random.choice([0.01, 1, 20], p=[0.3, 0.6, 0.1]))
            name = f"more of {STREAM_NAMES[stream]} has come"
            self._at(self.now_us + 1 + int(wait_us), self._hosts[GATEWAY], name, partial(self._come, stream))

    def _come(self, stream: int) -> None:
        self._sources[stream].come += 1
        self._wait_for(stream)
        self._look()

    def _freezable(self) -> list[SimulatedHost]:
        """The only gateway is on the master's rank."""
        return [host for host in self._hosts.values() if host.name != GATEWAY]

    def _ask(self, host: SimulatedHost, stream: int, instead: int | None) -> None:
        self._wanted, self._asked = (stream, instead), self._asked + 1
        self._at(self.now_us + self._delays.work_us(actor_of(GATEWAY)), host, "a look at the sources", self._look)
        timeout_us = self.config.time.idle_timeout_us
        if timeout_us:
            self._at(self.now_us + timeout_us, host, "patience is over", partial(self._give_up, self._asked))

    def _look(self) -> None:
        """As `GatewayHost.work`."""
        for stream in [s for s in sorted(self._idle) if self._sources[s].ready(0)]:
            self._idle.remove(stream)
            self._deliver(self._hosts[GATEWAY], SourceResumed(stream))
        for wanted in self._wanted or ():
            if wanted is not None and self._sources[wanted].ready(0):
                self._wanted = None
                self._read(self._hosts[GATEWAY], wanted)
                return

    def _give_up(self, asked: int) -> None:
        if asked == self._asked and self._wanted is not None and not self._sources[self._wanted[0]].ready(0):
            stream, self._wanted = self._wanted[0], None
            self._idle.add(stream)
            self._deliver(self._hosts[GATEWAY], SourceIdle(stream))


def live_scenario(seed: int) -> Scenario:
    """As `Scenario.draw`, with streams that are pushed; every other one in realtime pace."""
    scenario = Scenario.draw(seed)
    config = scenario.config.with_sinks(1).with_gateways(1)
    stream = StreamConfig(flight=FlightConfig(), schema="key: int64, ts: int64", time_unit="us")
    changes: dict[str, Any] = {"left": stream, "right": stream, "serve": ServeConfig(listen="127.0.0.1:0")}
    changes["measure"] = dataclasses.replace(config.measure, prefill_us=0)
    if config.time.late == "error":
        changes["time"] = dataclasses.replace(config.time, late="side")
    epoch_us = config.cluster.distribution_epoch_us
    if seed % 2 and config.pace == "asap" and epoch_us:
        longer = -(-_LEAST_EPOCH_US // epoch_us)
        changes["pace"] = "realtime"
        changes["cluster"] = dataclasses.replace(config.cluster, distribution_epoch_us=longer * epoch_us)
        changes["reorganization"] = dataclasses.replace(config.reorganization, epoch_us=longer * config.reorganization.epoch_us)
    return dataclasses.replace(scenario, config=dataclasses.replace(config, **changes))
