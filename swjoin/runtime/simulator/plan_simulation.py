"""The simulator over a plan of several stages.

What: `PlanSimulation`: as `Simulation`, with the instances of all stages and the ledger of all edges.
Why: merging, watermarks and credit between many senders and receivers break only under unlucky delays.
Stays out: virtual time, messages and hosts (`runtime.simulator.simulator`), the oracle (`tests.tools.plan_oracle`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from swjoin.checkpoint.checkpointers import owners_of
from swjoin.checkpoint.store import PlanState, first_epoch_of
from swjoin.cluster.gateway.feeds import Feeds
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import Message
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.core.batch import SourceBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import SlaveId
from swjoin.plan.columns import StaticTables
from swjoin.plan.logical import LogicalPlan, spread_over
from swjoin.plan.stages import Stage, cut
from swjoin.runtime.open import open_spill
from swjoin.runtime.simulator.checkers import StageLedger, check_owners
from swjoin.runtime.simulator.result import SimulationResult
from swjoin.runtime.simulator.simulator import ACTORS, Simulation
from swjoin.runtime.simulator.storage import BatchSource


class PlanSimulation(Simulation):
    """One run of a plan in virtual time. sources: batches of each of the plan's sources, with columns. width: slave ranks."""

    def __init__(
        self,
        plan: LogicalPlan,
        config: RunConfig,
        sources: Sequence[Sequence[SourceBatch]],
        width: int,
        seed: int,
        folder: Path | None = None,
        crashes: Sequence[tuple[int, int]] = (),
        tables: StaticTables | None = None,
    ) -> None:
        """folder, crashes: as of `Simulation`; the crashes say how many slave ranks are left from then on. tables: static
        ones, that lookups read."""
        self._plan = spread_over(plan, width, config.cluster.partition_count, config.cluster.routing)
        self._tables = tables
        super().__init__(config, sources, width, seed, folder=folder, crashes=crashes)

    def _open_sources(self, sources: Sequence[Sequence[SourceBatch]]) -> tuple[BatchSource, ...]:
        return tuple(self.SOURCE(batches, None) for batches in sources)

    def _actor_count(self, slave_count: int) -> int:
        return ACTORS + slave_count * len(cut(self._plan, self.config.cluster.strategy).stages)

    def _new_roles(self, slave_count: int) -> None:
        fitted = self.config.fitted_to(slave_count)
        saved = self._master_checkpointer
        manifest = None if saved is None else saved.folder.newest()
        owners = owners_of(manifest, fitted, self._plan, slave_count)
        first_epoch = first_epoch_of(manifest)
        self.instances = instances = Instances.of(self._plan, fitted, slave_count, first_epoch, owners, self._tables)
        config, count, store = instances.config_of_gateway, instances.slave_count, open_spill(self._job)
        self.master = Master.of_plan(instances, self._new_dealer(config))
        self.gateways = [
            Gateway(config, count, (None, None), store=store, feeds=Feeds(instances, share.number), share=share)
            for share in self._shares()
        ]
        self.slaves = [Slave.of_plan(instances, SlaveId(i)) for i in range(count)]
        self._make_sinks(count, of_rows=instances.of_rows, named=instances.named_queries)
        self._ledger = StageLedger(instances)

    def _check_owners(self) -> None:
        for stage, controller in zip(self.instances.stages.stages, self.master.controllers, strict=True):
            slaves = self.instances.slaves_of(stage)
            check_owners(controller, [self.slaves[slave] for slave in slaves], slaves[0])

    def _count(self, message: Message, sign: int) -> None:
        if isinstance(message, Delivery):
            rows = len(message.left) + len(message.right) + sum(map(len, message.null_keys))
            self._in_flight[message.edge] += sign * rows

    def _check_ledger(self) -> None:
        self._ledger.count(self._changed)
        self._ledger.check(self._in_flight, self._plan_before)

    @property
    def _plan_before(self) -> PlanState | None:
        return None if self._before is None else self._before.plan

    @property
    def _produced(self) -> int:
        before, produced = self._plan_before, 0
        for edge in self.instances.result_edges:
            assert isinstance(edge.sender, Stage), "a result of no stage"
            if before is not None:
                produced += int(before.stages[edge.sender.id]["produced"])
                produced -= before.edges["filtered"].get(str(edge.id), [0])[0]
            for slave in self.instances.slaves_of(edge.sender):
                stage = self.slaves[slave].stage
                assert stage is not None, "a slave of no stage"
                stage.settle()
                produced += self.slaves[slave].produced - stage.ledger.filtered[edge.id]
        return produced

    @property
    def _width(self) -> int:
        return self.instances.width

    @property
    def _rank_map(self) -> RankMap:
        return replace(super()._rank_map, places=self.instances.subclusters.places)

    def _result(self, steps: int) -> SimulationResult:
        for role in (*(gateway.feeds for gateway in self.gateways), *(slave.stage for slave in self.slaves)):
            assert role is not None, "a role without a stage"
            assert role.outlet.idle, "the run has ended with rows on their way"
        return super()._result(steps)
