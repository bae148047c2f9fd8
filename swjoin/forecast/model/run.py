"""Runs the model: the production roles in virtual time, over tuple counts, with a cost model.

What: `simulate(config, slaves, costs) -> SimulatedRun`, with as many gateways and sinks as configured.
Why: predicts a cluster of 1,024 slaves before there is one; roles and policies are those of a real run.
Stays out: the ranks' loops (`forecast.model.ranks`), costs (`forecast.costs`), conclusions (`forecast.summary`), counts
(`forecast.model.join`).

`runtime.simulator.simulator` draws random delays and checks every step; here delays are costs, and a step may stand for a
million tuples.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway, Share
from swjoin.cluster.gateway.ingress import Ingress
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.split_dealer import SplitDealer, span_us
from swjoin.cluster.ranks import ROOT, RankMap
from swjoin.cluster.role import Log, RoleId, gateway_role, sink_role, slave_role
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, RowLayout
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import UserError
from swjoin.core.ids import SlaveId
from swjoin.forecast.costs import CostModel
from swjoin.forecast.key_distribution import key_distribution
from swjoin.forecast.model.batch import TUPLE_BYTES, KeyDistribution, Overlaps
from swjoin.forecast.model.discrete_event import Cores, Usage, World
from swjoin.forecast.model.join import ModelJoin
from swjoin.forecast.model.master_input import ModelBuffers, ModelIntake, ModelSource, splits_of
from swjoin.forecast.model.ranks import ModelGateway, ModelHost, ModelMaster, ModelRank, ModelSink, ModelSlave
from swjoin.operators.join_step import PAIR_BYTES
from swjoin.operators.window_store import WindowSizes


@dataclass(frozen=True)
class RunUsage:
    """Where the time went. of_roles: of every role. ranks: which rank plays which roles. cores: of the host."""

    of_roles: dict[RoleId, Usage]
    ranks: RankMap
    cores: Cores

    def by_rank(self) -> list[list[Usage]]:
        """Usage of the roles of every rank."""
        found: list[list[Usage]] = [[] for _ in range(self.ranks.size)]
        for role, used in self.of_roles.items():
            found[self.ranks.rank_of(role)].append(used)
        return found


@dataclass
class SimulatedRun:
    """Outcome of the model. begin_us, end_us: virtual time of the first read and of the end. results_bytes: sent to sinks."""

    config: RunConfig
    costs: CostModel
    begin_us: float
    end_us: float
    complete: bool
    steps: int
    master: Master
    gateways: list[Gateway]
    slaves: list[Slave]
    sinks: list[Collector]
    usage: RunUsage
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


def ranks_of(config: RunConfig, slave_count: int) -> RankMap:
    """So many ranks with slaves, and as many others as can be."""
    ranks = RankMap.of_width(slave_count, config.sink_count, config.gateway_count)
    while (larger := dataclasses.replace(ranks, size=ranks.size + 1)).slave_ranks == slave_count:
        ranks = larger
    return ranks


class _ModelCluster:
    """The ranks of one modelled run and their roles."""

    def __init__(self, config: RunConfig, ranks: RankMap, world: World, streams: ModelStreams | None) -> None:
        self.world, self.map = world, ranks
        self.hosts: dict[RoleId, ModelHost] = {}
        self.events: list[RunEvent] = []
        self._config, self._ranks = config, [ModelRank(world) for _ in range(ranks.size)]
        self._layout = _layout(config) if streams is None else None
        self._payload_bytes = generated_payload_bytes(config) if streams is None else streams.payload_bytes
        self._distribution = key_distribution(config) if streams is None else streams.distribution
        self._overlaps = Overlaps(self._distribution.edges_us, config.query.bounds)
        splits, dealer = splits_of(self._distribution, span_us(config)), None
        if config.gateway_count > 1:
            dealer = SplitDealer.of(config, [splits, splits])
        self.master = ModelMaster(self._ranks[ROOT], Master(config, ranks.slave_ranks, dealer=dealer), self.hosts, ranks)
        self.gateways = [self._gateway(number) for number in range(config.gateway_count)]
        self.sinks = [self._sink(number) for number in range(config.sink_count)]
        self.slaves = [self._slave(SlaveId(number)) for number in range(ranks.slave_ranks)]
        for host in (self.master, *self.gateways):
            host.performers[Log] = lambda effect: self.events.append(effect.event)

    def _rank(self, role: RoleId) -> ModelRank:
        return self._ranks[self.map.rank_of(role)]

    @property
    def _tuple_bytes(self) -> int:
        return TUPLE_BYTES + self._payload_bytes

    def _gateway(self, number: int) -> ModelGateway:
        config, distribution, tuple_bytes = self._config, self._distribution, self._tuple_bytes
        left, right = (ModelIntake(stream, config.time, distribution, tuple_bytes) for stream in (LEFT, RIGHT))
        sub_groups = config.cluster.sub_group_count
        ingress = Ingress((left, right), lambda router: ModelBuffers(router, sub_groups, tuple_bytes))
        share = Share(number, dealt=True, origin_us=int(distribution.edges_us[0])) if config.gateway_count > 1 else None
        role = Gateway(config, self.map.slave_ranks, (self._layout, self._layout), ingress, share=share)
        sources = (
            ModelSource(distribution, config.seed, LEFT, self._payload_bytes),
            ModelSource(distribution, config.seed, RIGHT, self._payload_bytes),
        )
        return ModelGateway(self._rank(gateway_role(number)), role, sources, self.hosts, self.map)

    @property
    def _pair_bytes(self) -> int:
        """0: pairs are only counted."""
        return 0 if self._config.sink.kind == "count" else PAIR_BYTES + 2 * self._payload_bytes

    def _sink(self, number: int) -> ModelSink:
        role = Collector(
            self.map.slave_ranks,
            materialised=self._pair_bytes > 0,
            number=number,
            sink_count=self._config.sink_count,
        )
        return ModelSink(self._rank(sink_role(number)), role, self.hosts, self.map)

    def _slave(self, number: SlaveId) -> ModelSlave:
        config, module = self._config, self._config.module
        sizes = WindowSizes(module.block_tuples, module.theta_tuples, module.window_bytes)
        join = ModelJoin(self._distribution, self._overlaps, sizes, self._tuple_bytes, self._pair_bytes)
        role = Slave(number, config, (self._layout, self._layout), join)
        kept_bytes = self._payload_bytes if self._pair_bytes else 0
        return ModelSlave(self._rank(slave_role(number)), role, join, kept_bytes, self.hosts, self.map)

    def start(self) -> None:
        for host in (*self.slaves, *self.gateways):
            host.start()
        for rank in self._ranks:
            rank.go_on()

    @property
    def finished(self) -> bool:
        return self.sinks[0].role.finished and all(host.role.finished for host in self.hosts.values())

    @property
    def first_read_us(self) -> float:
        read = [host.first_read_us for host in self.gateways if host.first_read_us is not None]
        return min(read, default=0.0)

    def outcome(self, config: RunConfig, costs: CostModel) -> SimulatedRun:
        """The run before its first step. Roles, usage, metrics and events are shared with the ranks and grow with them."""
        return SimulatedRun(
            config=config,
            costs=costs,
            begin_us=0.0,
            end_us=0.0,
            complete=False,
            steps=0,
            master=self.master.role,
            gateways=[host.role for host in self.gateways],
            slaves=[host.role for host in self.slaves],
            sinks=[host.role for host in self.sinks],
            usage=RunUsage({name: host.usage for name, host in self.hosts.items()}, self.map, self.world.cores),
            results_bytes=0.0,
            metrics=self.sinks[0].metrics,
            events=self.events,
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
    ranks: RankMap | None = None,
) -> SimulatedRun:
    """Run a configuration in virtual time; prefill (`measure.prefill`) is modelled too, and left out of usage and `begin_us`.

    host_cores: cores that all ranks share; 0: a core for each rank.
    limit_us: virtual time after prefill at which the model stops; `complete` is False then.
    check: called after every step (tests).
    streams: the input, where the workload section does not describe it.
    ranks: which rank plays which roles; None: every role has a rank of its own, as far as `RankMap` gives it one.

    UserError when the configuration reads files or needs more slaves; RunFailed when the windows or buffers are too small.
    """
    _check_modelled(config, slave_count, streams)
    world = World(config, costs, host_cores)
    cluster = _ModelCluster(config, ranks or ranks_of(config, slave_count), world, streams)
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
    out.begin_us = master.measured_from_us or cluster.first_read_us
    out.end_us, out.steps = world.time.now_us, world.time.steps
    out.results_bytes = sum(host.nbytes for host in cluster.sinks)
    return out
