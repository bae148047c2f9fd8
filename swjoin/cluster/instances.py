"""The instances of a plan: which slave plays which instance of which stage, and between whom tuples travel.

What: `Instances`, made of a plan, a configuration and a width (slave ranks).
Why: gateway, slaves, sink and runtimes derive the same numbers from the same plan, so that nothing has to be agreed on.
Stays out: ranks (`runtime`), deliveries (`cluster.exchange`).

Slaves are numbered stage by stage (`plan.subclusters`). A stage has an instance on every slave rank, or on those of its
subcluster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from swjoin.cluster.master.key_spreading import SkewedJoin
from swjoin.cluster.master.network_placement import Teams
from swjoin.cluster.master.unit_scaling import ScaledJoin
from swjoin.cluster.role import RoleId, gateway_role, slave_role
from swjoin.cluster.traffic import MOST_GROUPS
from swjoin.config.connectors import QUERY_IN_TOPIC
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError, setting
from swjoin.core.ids import QueryId, SlaveId
from swjoin.core.query_sums import NamedQueries
from swjoin.plan.columns import PlanColumns, StageColumns, StaticTables, columns_of
from swjoin.plan.families import Family
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Result, Source
from swjoin.plan.multiway import MultiwayJoin
from swjoin.plan.stages import Edge, Stage, StagePlan, cut
from swjoin.plan.subclusters import Subclusters
from swjoin.policy.placement import round_robin
from swjoin.routing.biclique import Biclique
from swjoin.routing.hash_partition import GroupMap

_MOST_PASSED_ON = 256  # connections from further sinks to the first one, one for each query


@dataclass(frozen=True)
class Instances:
    """subclusters: instances of every stage, and the slave ranks that play them. first_epoch: the distribution epoch with which
    this incarnation of the run begins. group_maps: by stage, indexes of the instances that own its partition-groups then.
    hosts: numbers of those of the slave ranks; none: they have one, or it is not known."""

    config: RunConfig
    logical: LogicalPlan
    stages: StagePlan
    columns: PlanColumns
    subclusters: Subclusters
    first_epoch: int
    group_maps: tuple[GroupMap, ...]
    hosts: tuple[int, ...] = ()

    @staticmethod
    def of(
        logical: LogicalPlan,
        config: RunConfig,
        width: int,
        first_epoch: int = 0,
        owners: Sequence[Sequence[int]] = (),
        tables: StaticTables | None = None,
    ) -> Instances:
        """owners: of partition-groups, by stage; none: the placement at the start of a run. tables: as of `columns_of`.
        UserError for a plan or a setting that runs of plans do not have yet."""
        stages = cut(logical, config.cluster.strategy)
        _check_plan(stages)
        _check_config(config)
        _check_sinks(stages, config)
        _check_skew(stages, config)
        _check_scaling(stages, config)
        columns = columns_of(logical, stages, rows=config.sink.kind != "count", tables=tables)
        for stage in columns.stages:
            stage.compiled_where()  # a predicate whose types do not fit is refused before any slave starts
        return Instances(config, logical, stages, columns, Subclusters.alone(width), 0, ()).at(
            config, width, first_epoch, owners
        )

    def at(self, config: RunConfig, width: int, first_epoch: int = 0, owners: Sequence[Sequence[int]] = ()) -> Instances:
        """The same plan on so many slave ranks. config: of the same sink and strategy. owners: as in `of`. UserError for a
        setting that runs of plans do not have yet."""
        _check_config(config)
        subclusters = Subclusters.of(self.stages, width, config.cluster.strategy, config.cluster.instances)
        groups, most = config.cluster.partition_count, config.reorganization.active_slaves
        maps = [round_robin(groups, min(count, most) or count) for count in subclusters.counts]
        group_maps = tuple(GroupMap(np.array(owner, np.int64)) for owner in owners or maps)
        found = replace(self, config=config, subclusters=subclusters, first_epoch=first_epoch, group_maps=group_maps)
        _check_network(found)
        return found

    @property
    def width(self) -> int:
        """Slave ranks."""
        return self.subclusters.width

    @cached_property
    def result_edges(self) -> tuple[Edge, ...]:
        """From stages to the sinks, in the order of the queries, whose results they are."""
        by_result = {edge.receiver.name: edge for edge in self.stages.edges if isinstance(edge.receiver, Result)}
        return tuple(by_result[result.name] for result in self.stages.results)

    @property
    def families(self) -> tuple[Family, ...]:
        """Results that differ in windows or limits alone."""
        return self.columns.families

    @cached_property
    def families_of_queries(self) -> tuple[tuple[QueryId, ...], ...]:
        """The numbers of the queries of each family, from the narrowest to the widest."""
        numbers = {edge.id: QueryId(query) for query, edge in enumerate(self.result_edges)}
        return tuple(tuple(numbers[edge.id] for edge in family.edges) for family in self.families)

    @cached_property
    def named_queries(self) -> NamedQueries:
        return NamedQueries(self.query_count, self.families_of_queries)

    @property
    def query_count(self) -> int:
        """Of queries that have names."""
        return sum(result.named for result in self.stages.results)

    @property
    def of_rows(self) -> bool:
        """Whether results have rows that were gathered, aggregated, or made by filters and projections, or whose values are
        digested, or are of named queries, not pairs of the last join."""
        edge, result = self.result_edges[0], self.stages.results[0]
        as_they_are = not edge.steps and isinstance(edge.sender, Stage) and edge.sender.joins
        return not as_they_are or result.of_values or result.named

    @cached_property
    def teams(self) -> Teams:
        """Stages that may be placed by what they send each other."""
        return teams_of(self.stages, self.subclusters, self.config.cluster.partition_count, self.hosts)

    @cached_property
    def skewed_joins(self) -> tuple[SkewedJoin, ...]:
        """Joins whose hot keys are spread: with `cluster.routing: skew` those that read sources."""
        if self.config.cluster.routing != "skew":
            return ()
        found = []
        for stage in self.stages.stages:
            if _may_be_spread(self.stages, stage):
                bounds, kind = stage.join.semantics.bounds, stage.join.semantics.kind
                dealt = LEFT if kind.first or kind.unmatched[LEFT] else RIGHT if kind.unmatched[RIGHT] else None
                count = self.subclusters.counts[stage.id]
                found.append(SkewedJoin(stage.id, bounds.lower_us, bounds.upper_us, dealt, count))
        return tuple(found)

    @cached_property
    def scaled_joins(self) -> tuple[ScaledJoin, ...]:
        """Joins whose units are used as their load needs them: with `scaling.units` those that read sources."""
        found = []
        for stage in self.stages.stages if self.config.reorganization.scaling.units else ():
            if (units := _scaled_units(self.stages, stage)) is not None:
                bounds, unbounded = stage.join.semantics.bounds, stage.join.semantics.unbounded
                of_slave = sum(-(-len(units.units_of(port)) // self.subclusters.counts[stage.id]) for port in (LEFT, RIGHT))
                capacity = self.config.module.window_bytes // of_slave
                found.append(ScaledJoin(stage.id, bounds.lower_us, bounds.upper_us, unbounded, units, capacity))
        return tuple(found)

    @property
    def slave_count(self) -> int:
        return self.subclusters.slave_count

    def stage_of(self, slave: int) -> Stage:
        return self.stages.stages[self.subclusters.stage_of(slave)]

    def columns_of(self, slave: int) -> StageColumns:
        return self.columns.stages[self.subclusters.stage_of(slave)]

    def index_of(self, slave: int) -> int:
        """The slave's number among the instances of its stage."""
        return self.subclusters.index_of(slave)

    def slaves_of(self, stage: Stage) -> list[SlaveId]:
        return [SlaveId(slave) for slave in self.subclusters.slaves_of(stage.id)]

    def results_of(self, stage: Stage) -> list[tuple[QueryId, Edge]]:
        """The queries whose results a stage brings forth."""
        return [(QueryId(query), edge) for query, edge in enumerate(self.result_edges) if edge.sender == stage]

    def edges_from(self, sender: Source | Stage) -> list[Edge]:
        """Edges to other stages."""
        return [edge for edge in self.stages.edges_from(sender) if isinstance(edge.receiver, Stage)]

    def senders_to(self, stage: Stage) -> dict[tuple[int, RoleId], int]:
        """The port of every edge and sender from which a stage receives."""
        found: dict[tuple[int, RoleId], int] = {}
        for edge in self.stages.edges:
            if edge.receiver == stage:
                if isinstance(edge.sender, Source):
                    senders = [gateway_role(gateway) for gateway in range(self.config.gateway_count)]
                else:
                    senders = [slave_role(slave) for slave in self.slaves_of(edge.sender)]
                found |= {(edge.id, sender): edge.port for sender in senders}
        return found

    def config_of(self, slave: int) -> RunConfig:
        """The run as the slave's operator sees it."""
        stage = self.stage_of(slave)
        return self.config if not stage.joins else replace(self.config, queries=(stage.join.semantics,))

    @cached_property
    def config_of_gateway(self) -> RunConfig:
        """The run as the gateway sees it: its epochs follow the longest window."""
        queries = [join.semantics for stage in self.stages.stages for join in joins_of(stage)]
        longest = max(queries, key=lambda query: query.bounds.retention_us, default=self.config.query)
        return replace(self.config, queries=(longest,))


def joins_of(stage: Stage) -> tuple[IntervalJoin, ...]:
    """The joins that a stage makes."""
    if isinstance(stage.node, MultiwayJoin):
        return stage.node.joins
    return (stage.join,) if stage.joins else ()


def _check_plan(stages: StagePlan) -> None:
    if len(stages.results) > 1 and not all(result.named for result in stages.results):
        raise UserError(f"{len(stages.results)} results without names", subject="plan", remedy="name each for its query")
    for stage in stages.stages:
        if stage.joins and stage.join.semantics.bounds.count_windows:
            raise UserError("count windows", subject=stage.name, remedy="runs of plans join within bounds of time for now")


def _check_sinks(stages: StagePlan, config: RunConfig) -> None:
    """Rows are sorted by one sink, at the end."""
    where = "" if config.sink.kind in ("parquet", "csv", "count") else f"sink {config.sink.kind}"
    apart = {
        "several sinks": config.sink_count > 1,
        "checkpoints": config.checkpoint.enabled,
        where: bool(where),
    }
    if any(result.order for result in stages.results) and config.sink.kind != "count":
        for name, given in apart.items():
            if given:
                raise UserError(f"ORDER BY with {name}", remedy="leave it out, and sort what comes out")
    several, kafka = len(stages.results) > 1, config.sink.kafka
    passed_on = len(stages.results) * (config.sink_count - 1)
    if config.serve.listen is not None and passed_on > _MOST_PASSED_ON:
        problem = f"{len(stages.results)} queries at {config.sink_count} sinks: each sink passes the rows of each query on"
        raise UserError(problem, subject="serve.listen", remedy="take one sink (cluster: {sinks: 1}), or fewer queries")
    if several and kafka is not None and QUERY_IN_TOPIC not in kafka.topic:
        problem = f"{len(stages.results)} queries have a topic each"
        raise UserError(problem, subject="sink.kafka.topic", remedy=f"write {QUERY_IN_TOPIC} where a query's name belongs")


def _may_be_spread(stages: StagePlan, stage: Stage) -> bool:
    """Whether it is a join by hash of which gateways are the only senders, and one side's rows may have copies."""
    if not stage.joins or stage.join.band is not None or all(stage.join.semantics.kind.unmatched):
        return False
    if stage.join.semantics.as_of is not None:  # one place knows all matches of a row
        return False
    return all(isinstance(edge.sender, Source) and edge.spread is None for edge in stages.edges if edge.receiver == stage)


def _check_skew(stages: StagePlan, config: RunConfig) -> None:
    if config.cluster.routing == "skew" and not any(_may_be_spread(stages, stage) for stage in stages.stages):
        problem, apart = "hot keys are spread where a join by hash reads its inputs, and none does", config.cluster.strategy
        remedy = "take another strategy, or leave it out" if apart == "operator" else "leave it out"
        raise UserError(problem, subject="cluster.routing: skew", remedy=remedy)


def _scaled_units(stages: StagePlan, stage: Stage) -> Biclique | None:
    """Of a join of which gateways are the only senders; None for another."""
    if not stage.joins or not all(isinstance(edge.sender, Source) for edge in stages.edges if edge.receiver == stage):
        return None
    places = stages.places_of(stage)
    return places if isinstance(places, Biclique) else None


def _check_scaling(stages: StagePlan, config: RunConfig) -> None:
    if not config.reorganization.scaling.units:
        return
    asked, found = setting("units", "reorganization: scaling.units"), [_scaled_units(stages, stage) for stage in stages.stages]
    scaled = [units for units in found if units is not None]
    if not scaled:
        remedy = "leave it out" if config.cluster.strategy != "operator" else "take another strategy, or leave it out"
        raise UserError((asked, ": units are scaled where a join reads its inputs, and none does"), remedy=remedy)
    most = max(len(units) for each in scaled for port in (LEFT, RIGHT) for units in each.subgroups_of(port))
    if config.reorganization.scaling.units > most:
        raise UserError(
            (asked, f" {config.reorganization.scaling.units}: no subgroup has more than {most} units"), remedy="write fewer"
        )


def teams_of(stages: StagePlan, subclusters: Subclusters, groups: int, hosts: Sequence[int] = ()) -> Teams:
    """Stages that may be placed by what they send each other. groups: of a stage. hosts: of all slave ranks, if known."""
    ends = {
        int(edge.id): (int(edge.sender.id), int(edge.receiver.id))
        for edge in stages.edges
        if isinstance(edge.sender, Stage) and isinstance(edge.receiver, Stage)
    }
    return Teams.of(ends, subclusters.ranks, groups, hosts)


def _check_network(instances: Instances) -> None:
    """Placement by traffic is between stages that can share ranks, of few enough partition-groups."""
    reorganization, groups = instances.config.reorganization, instances.config.cluster.partition_count
    if reorganization.policy != "network":
        return
    if groups > MOST_GROUPS:
        raise UserError(f"policy network with {groups} partition-groups", remedy=f"take {MOST_GROUPS} at most")
    if not instances.teams.teams:
        problem = "policy network places stages that share slave ranks by what they send each other, and here are none"
        apart = len(instances.stages.stages) > 1
        raise UserError(problem, remedy="set cluster.strategy: query" if apart else "take policy balanced")


def _check_config(config: RunConfig) -> None:
    refused = {
        "cluster.sub_group_count": config.cluster.sub_group_count > 1,
        "cluster.communication: synchronous": config.cluster.communication == "synchronous",
        "measure.prefill": config.measure.prefill_us > 0,
        "on_overload.victims: least_matching": config.on_overload.victims == "least_matching",
        "time.model: arrival": config.time.model == "arrival",
    }
    for name, given in refused.items():
        if given:
            raise UserError("runs of plans do not have this yet", subject=name, remedy="leave it out")
