"""A run foretold: the production roles in virtual time, over counts, with a cost model.

What: `plan(config, slaves, costs) -> SimulatedRun`.
Why: what a cluster of 1,024 slaves would do is asked before there is one; roles and policies are the ones that would run there.
Stays out: what ranks do with their time (`forecast.model.ranks`), what costs what (`forecast.costs`), what is concluded
(`forecast.summary`), counts (`forecast.model.join`).

What differs from `runtime.simulator.simulator`: there delays are random and every step is checked, here they are costs and a
step may hold a million tuples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.master.ingress import Ingress
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
    """What was foretold. end_us: when everything had ended; begin_us: when the first tuple was read."""

    config: RunConfig
    slave_count: int
    costs: CostModel
    begin_us: float
    end_us: float
    complete: bool
    steps: int
    master: Master
    slaves: list[Slave]
    collector: Collector
    usage: dict[str, Any]
    cores: Cores
    results_bytes: float
    metrics: list[NDArray[np.float64]] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)


@dataclass(frozen=True)
class ModelStreams:
    """What comes in, known from elsewhere than the workload section. payload_bytes: of a tuple of either stream."""

    distribution: KeyDistribution
    payload_bytes: int


def _layout(config: RunConfig) -> RowLayout | None:
    """Payload as the generator would carry it."""
    from swjoin.connectors.generator.source import GeneratorSource

    carry = config.sink.kind != "count" or config.sink.carry_payload
    return GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry).layout if carry else None


def generated_payload_bytes(config: RunConfig) -> int:
    """Payload of a tuple that the generator makes, as far as it travels."""
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


def plan(
    config: RunConfig,
    slave_count: int,
    costs: CostModel,
    *,
    host_cores: int = 0,
    limit_us: float = float("inf"),
    check: Callable[[SimulatedRun], None] | None = None,
    streams: ModelStreams | None = None,
) -> SimulatedRun:
    """Run a configuration in virtual time. host_cores: all ranks share so many; 0: a core for every rank. limit_us: end then,
    `complete` is False; counted from the end of history. check: called after every step (tests). streams: what comes in, where
    the workload section does not say it.

    History (`measure.prefill`) is played as in a run; usage and `begin_us` are of the time after it.

    UserError when the configuration reads files or needs more slaves; RunFailed when the windows or buffers are too small.
    """
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
    world = World(config, costs, host_cores)
    layout = _layout(config) if streams is None else None
    payload_bytes = 0 if layout is None else layout.fixed_bytes
    if streams is not None:
        payload_bytes = streams.payload_bytes
    tuple_bytes = TUPLE_BYTES + payload_bytes
    pair_bytes = 0 if config.sink.kind == "count" else PAIR_BYTES + 2 * payload_bytes
    distribution = key_distribution(config) if streams is None else streams.distribution
    intakes = [ModelIntake(stream, config.time, distribution, tuple_bytes) for stream in (LEFT, RIGHT)]
    ingress = Ingress(
        (intakes[LEFT], intakes[RIGHT]),
        lambda router: ModelBuffers(router, config.cluster.sub_group_count, tuple_bytes),
    )
    sources = (ModelSource(distribution, config.seed, LEFT), ModelSource(distribution, config.seed, RIGHT))
    master = ModelMaster(world, Master(config, slave_count, (layout, layout), ingress), sources, payload_bytes)
    collector = ModelCollector(world, Collector(slave_count, materialised=False))
    actors = []
    for i in range(slave_count):
        join = _join(config, distribution, tuple_bytes)
        actors.append(ModelSlave(world, Slave(SlaveId(i), config, (layout, layout), join), join, payload_bytes, pair_bytes))
    master.slaves, master.collector = actors, collector
    for actor in actors:
        actor.master, actor.collector, actor.peers = master, collector, actors
    out = SimulatedRun(
        config,
        slave_count,
        costs,
        0.0,
        0.0,
        False,
        0,
        master.master,
        [a.slave for a in actors],
        collector.collector,
        {"master": master.usage, "collector": collector.usage, "slaves": [a.usage for a in actors]},
        world.cores,
        0.0,
        collector.metrics,
        master.events,
    )
    for actor in actors:
        actor.start()
    master.start()
    history = config.measure.prefill_us > 0
    while world.time.now_us - (master.measured_from_us or 0.0) < limit_us or (history and master.measured_from_us is None):
        if not world.time.step():
            break
        if check is not None:
            check(out)
        if collector.collector.finished and master.master.finished and all(a.slave.finished for a in actors):
            out.complete = True
            break
    out.begin_us = master.measured_from_us or master.first_read_us or 0.0
    out.end_us, out.steps, out.results_bytes = world.time.now_us, world.time.steps, collector.nbytes
    return out
