"""What a run is: its sections, and what must hold between them.

What: `RunConfig`, `to_plain`, `digest`; the sections themselves are in `config.sections` and `config.connectors`.
Why: one validated value describes a run completely; equal configurations have equal digests.
Stays out: YAML files and `--set` (`config.loader`), reading data, decisions at run time.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from swjoin.config.connectors import FlightConfig, KafkaConfig, KafkaSinkConfig, ServeConfig, SinkConfig, StreamConfig
from swjoin.config.sections import (
    EPOCH_LEFT_OUT,
    SHORT_EPOCH_US,
    CheckpointConfig,
    ClusterConfig,
    MeasureConfig,
    ModuleConfig,
    NodesConfig,
    ObserveConfig,
    OverloadConfig,
    PlacementConfig,
    QueryConfig,
    ReorganizationConfig,
    ScalingConfig,
    ScheduleConfig,
    SpeedChange,
    TimeConfig,
    WorkloadConfig,
    check,
)
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import Spelled, setting
from swjoin.core.units import format_duration
from swjoin.routing.named import kind_of

__all__ = [
    "CheckpointConfig",
    "ClusterConfig",
    "FlightConfig",
    "KafkaConfig",
    "KafkaSinkConfig",
    "MeasureConfig",
    "ModuleConfig",
    "NodesConfig",
    "ObserveConfig",
    "OverloadConfig",
    "PlacementConfig",
    "QueryConfig",
    "ReorganizationConfig",
    "RunConfig",
    "ScalingConfig",
    "ScheduleConfig",
    "ServeConfig",
    "SinkConfig",
    "SpeedChange",
    "StreamConfig",
    "TimeConfig",
    "WorkloadConfig",
    "digest",
    "to_plain",
]


SORT_NEEDS_FILES = (setting("sort", "time: sort"), " needs files")


@dataclass(frozen=True)
class RunConfig:
    """A complete run.

    queries: the joins; one for now, by whose name results, state and ledger are keyed. inputs: of a plan, one for each of its
    sources, in the order of its nodes, in the place of left and right. seed: of generated streams and of random choices. pace:
    `asap`, as fast as it goes; `realtime`, at the rows' times.
    """

    queries: tuple[QueryConfig, ...]
    left: StreamConfig = field(default_factory=StreamConfig)
    right: StreamConfig = field(default_factory=StreamConfig)
    inputs: tuple[StreamConfig, ...] = ()
    seed: int = 1
    pace: Literal["asap", "realtime"] = "asap"
    workload: WorkloadConfig = field(default_factory=WorkloadConfig)
    time: TimeConfig = field(default_factory=TimeConfig)
    cluster: ClusterConfig = field(default_factory=ClusterConfig)
    module: ModuleConfig = field(default_factory=ModuleConfig)
    reorganization: ReorganizationConfig = field(default_factory=ReorganizationConfig)
    nodes: NodesConfig = field(default_factory=NodesConfig)
    measure: MeasureConfig = field(default_factory=MeasureConfig)
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    on_overload: OverloadConfig = field(default_factory=OverloadConfig)
    observe: ObserveConfig = field(default_factory=ObserveConfig)
    sink: SinkConfig = field(default_factory=SinkConfig)
    serve: ServeConfig = field(default_factory=ServeConfig)

    def __post_init__(self) -> None:
        check(len(self.queries) == 1, f"join: {len(self.queries)} queries given; one query per run for now")
        check(self.seed >= 0, "seed: must not be negative")
        check((self.left.path is None) == (self.right.path is None), "left and right: give both paths, or neither (generator)")
        for side in STREAM_NAMES:
            check(len(getattr(self, side).key) > 0, f"{side}: stream: key names no column")
        self._check_live()
        kept = self.live and any(query.unbounded for query in self.queries)
        check(
            not kept or self.module.window_bytes != ModuleConfig.window_bytes,
            ("a window without bounds keeps all that comes: limit it with ", setting("memory", "module: window")),
        )
        self._choose_epoch()
        if self.pace == "realtime":
            epoch = Spelled("--epoch: realtime pace needs one", "", "cluster: realtime pace needs a distribution_epoch")
            check(self.cluster.distribution_epoch_us > 0, (epoch, " above 0"))
        else:
            check(self.time.model == "event", "time: model arrival needs pace realtime")
            policy = self.on_overload.policy
            check(policy == "block", f"on_overload: {policy} needs pace realtime; in asap pace the source waits for the join")
        if self.query.match != "all":
            policy, match = self.on_overload.policy, self.query.match
            check(policy != "shed", f"on_overload: shed drops tuples, so match {match} would find others; use block or spill")
        if self.cluster.gateways > 1:
            gateways = setting("gateways", "cluster: gateways")
            check(self.query.last is None, (gateways, " must be 1 for count windows: one gateway gives tuples their places"))
            watched = any(stream.watch is not None for stream in self.streams)
            check(not watched, (gateways, " must be 1 for watched directories"))
            any_number = any(stream.flight is not None and not stream.flight.producers for stream in self.streams)
            check(
                not any_number or self.time.idle_timeout_us > 0,
                (
                    gateways,
                    " above 1 needs flight: {producers: N} or time.idle_timeout: a gateway without producers would hold up the "
                    "others",
                ),
            )
        if self.measure.prefill_us:
            self._check_prefill()
        if self.reorganization.policy != "none":
            t_d, t_r = self.cluster.distribution_epoch_us, self.reorganization.epoch_us
            check(t_d > 0, "reorganization: needs a cluster.distribution_epoch above 0")
            check(
                t_d == 0 or t_r % t_d == 0,
                f"reorganization: epoch ({format_duration(t_r)}) must be a whole multiple of cluster.distribution_epoch "
                f"({format_duration(t_d)})",
            )
        of_units = kind_of(self.cluster.routing) in ("random", "contrand")
        asked, routing = setting("units", "reorganization: scaling.units"), setting("routing", "cluster.routing")
        check(not self.reorganization.scaling.units or of_units, (asked, " needs ", routing, " random or contrand"))
        adaptive = self.reorganization.declustering != "fixed"
        check(
            not adaptive or self.reorganization.policy != "none",
            "reorganization: adaptive declustering needs a policy (paper, balanced)",
        )
        check(
            self.reorganization.declustering != "measured" or self.reorganization.policy == "balanced",
            "reorganization: measured declustering needs policy balanced, which measures",
        )

    def _choose_epoch(self) -> None:
        """A distribution epoch that was left out: by the number of tuples where nothing needs an interval of time, because
        intervals that are short beside the gaps between tuples deliver a few tuples at a time."""
        if self.cluster.distribution_epoch_us != EPOCH_LEFT_OUT:
            return
        timed = self.pace == "realtime" or self.live or self.reorganization.policy != "none" or self.cluster.sub_group_count > 1
        cluster = dataclasses.replace(self.cluster, distribution_epoch_us=SHORT_EPOCH_US if timed else 0)
        object.__setattr__(self, "cluster", cluster)

    @property
    def live(self) -> bool:
        """Whether its streams arrive while the run goes on."""
        return any(stream.live for stream in self.streams)

    @property
    def streams(self) -> tuple[StreamConfig, ...]:
        """Both streams of a join, or the inputs of a plan, also its static tables."""
        return self.inputs or (self.left, self.right)

    @property
    def pushed(self) -> bool:
        """Whether producers push a stream over Arrow Flight."""
        return any(stream.flight is not None for stream in self.streams)

    @property
    def observed(self) -> bool:
        """Whether the run keeps its status: for the dashboard, or for clients that ask for it."""
        return self.observe.enabled or self.serve.listen is not None

    def _check_live(self) -> None:
        check(not (self.time.sort and self.live), SORT_NEEDS_FILES)
        made = self.left.generate is None and self.right.generate is None
        check(made, "left and right: generate is for queries; leave both out, or give both paths")
        check(self.left.live == self.right.live, "left and right: both are live (flight, kafka, watch), or neither")
        timed = [stream.live for stream in self.inputs if stream.time]
        check(len(set(timed)) <= 1, "inputs: all with a time are live (flight, kafka, watch), or none of them is")
        check(all(stream.time for stream in self.inputs if stream.live), "inputs: a live stream needs its time column as time")
        check(self.sink.kind != "flight" or self.serve.listen is not None, "sink: kind flight needs serve.listen")
        served = self.serve.listen is None or self.sink.kind != "csv"
        check(
            served, "serve: results are served from memory and from Parquet files; choose sink kind parquet or flight, not csv"
        )
        check(not self.pushed or self.serve.listen is not None, "flight: needs serve.listen, where producers find the run")
        if not self.live:
            return
        tolerant = self.time.model == "arrival" or self.time.late != "error"
        check(tolerant, "time: with live streams a late row must not end the run; choose late: drop or side")
        check(self.measure.prefill_us == 0, "measure: live streams have no history; leave prefill out")

    def _check_prefill(self) -> None:
        t_d = self.cluster.distribution_epoch_us
        check(self.pace == "realtime", "measure: prefill needs pace realtime (asap has no phase that is measured)")
        check(
            self.measure.prefill_us % t_d == 0,
            f"measure: prefill ({format_duration(self.measure.prefill_us)}) must be a whole multiple of "
            f"cluster.distribution_epoch ({format_duration(t_d)})",
        )
        check(self.time.max_out_of_order_us == 0, "measure: prefill needs streams in time order (time.max_out_of_order 0)")
        check(self.query.last is None, "measure: count windows cannot be measured after a prefill; leave it out")
        check(self.query.how == "inner", f"measure: a {self.query.how} join cannot be measured after a prefill; leave it out")
        check(self.query.match == "all", f"measure: match {self.query.match} cannot be measured after a prefill; leave it out")
        check(not self.checkpoint.enabled, "measure: a run with prefill cannot be checkpointed; leave checkpoint out")

    def check_slaves(self, slave_count: int) -> None:
        """UserError when this configuration needs more slaves than the run has."""
        active, groups = self.reorganization.active_slaves, self.cluster.sub_group_count
        check(active <= slave_count, f"reorganization: active_slaves is {active}, but the run has {slave_count} slaves")
        check(groups <= slave_count, f"cluster: sub_group_count is {groups}, but the run has {slave_count} slaves")
        check(
            len(self.nodes.speed) <= slave_count,
            f"nodes: speed lists {len(self.nodes.speed)} slaves, but the run has {slave_count}",
        )
        for change in self.nodes.changes:
            check(change.slave < slave_count, f"nodes.changes: there is no slave {change.slave}, the run has {slave_count}")

    def fitted_to(self, slave_count: int) -> RunConfig:
        """The same run on this number of slaves, after some have died or been added: settings of missing slaves are dropped."""
        nodes, reorganization, cluster = self.nodes, self.reorganization, self.cluster
        return dataclasses.replace(
            self,
            cluster=dataclasses.replace(cluster, sub_group_count=min(cluster.sub_group_count, slave_count)),
            reorganization=dataclasses.replace(reorganization, active_slaves=min(reorganization.active_slaves, slave_count)),
            nodes=dataclasses.replace(
                nodes, speed=nodes.speed[:slave_count], changes=tuple(c for c in nodes.changes if c.slave < slave_count)
            ),
        )

    @property
    def query(self) -> QueryConfig:
        return self.queries[0]

    @property
    def sink_count(self) -> int:
        """Sinks of the run; one where results are only counted."""
        return 1 if self.sink.kind == "count" else self.cluster.sinks

    @property
    def gateway_count(self) -> int:
        """Gateways of the run."""
        return self.cluster.gateways

    @property
    def lead_us(self) -> int:
        """How far a gateway may read ahead of the others: as far as the windows reach."""
        return self.query.bounds.retention_us + self.time.max_out_of_order_us

    def with_gateways(self, count: int) -> RunConfig:
        """The same run with so many gateways."""
        return replace(self, cluster=replace(self.cluster, gateways=count))

    def with_sinks(self, count: int) -> RunConfig:
        """The same run with so many sinks."""
        return replace(self, cluster=replace(self.cluster, sinks=count))


def to_plain(value: Any) -> Any:
    """A configuration as dicts, lists and scalars, ready for JSON and YAML."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: to_plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, (tuple, list)):
        return [to_plain(v) for v in value]
    return value


def digest(config: RunConfig) -> str:
    """Identity of a configuration: 16 hex digits of SHA-256 of its canonical JSON without `observe`, which changes nothing."""
    plain = {name: value for name, value in to_plain(config).items() if name != "observe"}
    text = json.dumps(plain, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()[:16]
