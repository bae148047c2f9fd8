"""Runs the model: the production roles in virtual time, over tuple counts, with a cost model.

What: `simulate(config, slaves, costs) -> SimulatedRun`.
Why: predicts a cluster of 1,024 slaves before there is one; roles and policies are those of a real run.
Stays out: the ranks' loops (`forecast.model.ranks`), costs (`forecast.costs`), conclusions (`forecast.summary`), counts
(`forecast.model.join`).

`runtime.simulator.simulator` draws random delays and checks every step; here delays are costs, and a step may stand for a
million tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.gateway.ingress import Ingress
from swjoin.cluster.master.master import Master
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, RowLayout
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from swjoin.core.ids import SlaveId
from swjoin.forecast.costs import CostModel
from swjoin.forecast.key_distribution import key_distribution
from swjoin.forecast.model.batch import TUPLE_BYTES, KeyDistribution
from swjoin.forecast.model.discrete_event import Cores, World
from swjoin.forecast.model.join import ModelJoin
from swjoin.forecast.model.master_input import ModelBuffers, ModelIntake, ModelSource
from swjoin.forecast.model.ranks import ModelCollector, ModelMaster, ModelSlave
from swjoin.operators.join_step import PAIR_BYTES
from swjoin.operators.window_store import WindowSizes


@dataclass
class SimulatedRun:
    """Outcome of the model. begin_us, end_us: virtual time of the first read and of the end."""

    config: RunConfig
    costs: CostModel
    begin_us: float
    end_us: float
    complete: bool
    steps: int
    master: Master
    gateway: Gateway
    slaves: list[Slave]
    collector: Collector
    usage: dict[str, Any]
    cores: Cores
    results_bytes: float
    metrics: list[NDArray[np.float64]] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)

    @property
    def slave_count(self) -> int:
        return len(self.slaves)


@dataclass(frozen=True)
class ModelStreams:
    """Input that the workload section does not describe. payload_bytes: of a tuple, mean of both streams."""

    distribution: KeyDistribution
    payload_bytes: int


def _layout(config: RunConfig) -> RowLayout | None:
    """Payload layout of generated tuples; None when the run reads no payload."""
    from swjoin.connectors.generator.source import GeneratorSource

    carry = config.sink.kind != "count" or config.sink.carry_payload
    return GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry).layout if carry else None


def generated_payload_bytes(config: RunConfig) -> int:
    """Payload bytes of a generated tuple; 0 when the run reads no payload."""
    layout = _layout(config)
    return 0 if layout is None else layout.fixed_bytes


def _join(config: RunConfig, distribution: KeyDistribution, tuple_bytes: int) -> ModelJoin:
    module = config.module
    return ModelJoin(
        distribution,
        config.query.bounds,
        WindowSizes(module.block_tuples, module.theta_tuples, module.window_bytes),
        tuple_bytes,
    )


def _check_modelled(config: RunConfig, slave_count: int, streams: ModelStreams | None) -> None:
    """UserError for a run that the model does not cover."""
    if config.left.path is not None and streams is None:
        raise UserError("simulate draws its tuples from the workload section; leave out left.path and right.path")
    if config.query.last is not None:
        raise UserError("simulate knows windows of time only; join.last gives count windows")
    if config.checkpoint.enabled:
        raise UserError("simulate makes no checkpoints; leave out checkpoint")
    if config.on_overload.policy != "block":
        raise UserError(f"simulate sheds and spills nothing; leave out on_overload (it is {config.on_overload.policy})")
    if slave_count < 1:
        raise UserError(f"--slaves {slave_count}: at least one slave is needed")
    config.check_slaves(slave_count)


class _ModelCluster:
    """The ranks of one modelled run, connected to each other."""

    def __init__(self, config: RunConfig, slave_count: int, world: World, streams: ModelStreams | None) -> None:
        layout = _layout(config) if streams is None else None
        payload_bytes = generated_payload_bytes(config) if streams is None else streams.payload_bytes
        distribution = key_distribution(config) if streams is None else streams.distribution
        tuple_bytes = TUPLE_BYTES + payload_bytes
        pair_bytes = 0 if config.sink.kind == "count" else PAIR_BYTES + 2 * payload_bytes
        intakes = [ModelIntake(stream, config.time, distribution, tuple_bytes) for stream in (LEFT, RIGHT)]
        ingress = Ingress(
            (intakes[LEFT], intakes[RIGHT]),
            lambda router: ModelBuffers(router, config.cluster.sub_group_count, tuple_bytes),
        )
        sources = (ModelSource(distribution, config.seed, LEFT), ModelSource(distribution, config.seed, RIGHT))
        self.world = world
        gateway = Gateway(config, slave_count, (layout, layout), ingress)
        self.master = ModelMaster(world, Master(config, slave_count), gateway, sources, payload_bytes)
        self.collector = ModelCollector(world, Collector(slave_count, materialised=False))
        self.slaves = []
        for i in range(slave_count):
            join = _join(config, distribution, tuple_bytes)
            slave = Slave(SlaveId(i), config, (layout, layout), join)
            self.slaves.append(ModelSlave(world, slave, join, payload_bytes, pair_bytes))
        self.master.slaves, self.master.collector = self.slaves, self.collector
        self.collector.slaves = self.slaves
        for rank in self.slaves:
            rank.master, rank.collector, rank.peers = self.master, self.collector, self.slaves

    def start(self) -> None:
        for slave in self.slaves:
            slave.start()
        self.master.start()

    @property
    def finished(self) -> bool:
        slaves = (rank.slave.finished for rank in self.slaves)
        return self.collector.collector.finished and self.master.finished and all(slaves)

    def outcome(self, config: RunConfig, costs: CostModel) -> SimulatedRun:
        """The run before its first step. Roles, usage, metrics and events are shared with the ranks and grow with them."""
        master, collector, slaves = self.master, self.collector, self.slaves
        return SimulatedRun(
            config=config,
            costs=costs,
            begin_us=0.0,
            end_us=0.0,
            complete=False,
            steps=0,
            master=master.master,
            gateway=master.gateway,
            slaves=[rank.slave for rank in slaves],
            collector=collector.collector,
            usage={"master": master.usage, "collector": collector.usage, "slaves": [rank.usage for rank in slaves]},
            cores=self.world.cores,
            results_bytes=0.0,
            metrics=collector.metrics,
            events=master.events,
        )


def simulate(
    config: RunConfig,
    slave_count: int,
    costs: CostModel,
    *,
    host_cores: int = 0,
    limit_us: float = float("inf"),
    check: Callable[[SimulatedRun], None] | None = None,
    streams: ModelStreams | None = None,
) -> SimulatedRun:
    """Run a configuration in virtual time; prefill (`measure.prefill`) is modelled too, and left out of usage and `begin_us`.

    host_cores: cores that all ranks share; 0: a core for each rank.
    limit_us: virtual time after prefill at which the model stops; `complete` is False then.
    check: called after every step (tests).
    streams: the input, where the workload section does not describe it.

    UserError when the configuration reads files or needs more slaves; RunFailed when the windows or buffers are too small.
    """
    _check_modelled(config, slave_count, streams)
    world = World(config, costs, host_cores)
    cluster = _ModelCluster(config, slave_count, world, streams)
    out, master = cluster.outcome(config, costs), cluster.master
    cluster.start()
    prefill = config.measure.prefill_us > 0
    while world.time.now_us - (master.measured_from_us or 0.0) < limit_us or (prefill and master.measured_from_us is None):
        if not world.time.step():
            break
        if check is not None:
            check(out)
        if cluster.finished:
            out.complete = True
            break
    out.begin_us = master.measured_from_us or master.first_read_us or 0.0
    out.end_us, out.steps, out.results_bytes = world.time.now_us, world.time.steps, cluster.collector.nbytes
    return out
