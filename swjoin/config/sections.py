"""The sections of a configuration: frozen dataclasses with units in the names.

What: one dataclass per section; each refuses values outside its range.
Why: a section is checked where it is described.
Stays out: what must hold between sections (`config.run`), YAML files and `--set` (`config.loader`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, get_args

from swjoin.config.options import Strategy
from swjoin.core.errors import Text, UserError, setting
from swjoin.core.join_semantics import JOIN_KINDS, AsOf, Bounds, How, JoinKind, Match
from swjoin.core.units import MAX_SPAN_US, UNBOUNDED_US, format_duration
from swjoin.expressions.parser import parse_where
from swjoin.routing.named import WORDS, is_routing

MOST_PARTITION_GROUPS = 65_536
MOST_SINKS = MOST_GATEWAYS = 1024
EPOCH_LEFT_OUT = -(1 << 62)  # `RunConfig` puts 0 or SHORT_EPOCH_US in its place
SHORT_EPOCH_US = 200_000
SHORTEST_FAILURE_TIMEOUT_US = 1_000_000


def check(ok: bool, message: Text) -> None:
    """UserError unless ok; a section made by hand is spelled as in a configuration."""
    if not ok:
        error = UserError(message)
        error.spelling = "keys"
        raise error


def check_key(columns: Sequence[str]) -> None:
    """UserError unless these can be the join columns of one side.

    A column that is named twice is paired with two columns of the other side, of which results show one.
    """
    check(len(columns) > 0, "stream: key names no column")
    twice = [name for name in columns if columns.count(name) > 1]
    check(not twice, f"join columns: {twice[0] if twice else ''} is named twice on one side; name each column once")


@dataclass(frozen=True)
class QueryConfig:
    """One join: equal keys and lower_us <= right.ts - left.ts <= upper_us (SPEC section 1). `within: W` sets both, and
    `within: unbounded` the greatest there are: nothing expires.

    lower_us, upper_us: lowest and highest right time - left time. exclusive: the bounds that do not count themselves. name: of
    the join in reports. how: `inner`; `left`, `right`, `full`: also the tuples of that side, or of both, that match nothing;
    `semi`, `anti`: the left tuples alone that match something, that match nothing. Tuples with a null key match nothing. where:
    residual predicate (syntax: `expressions.parser`); None: none. last: count windows instead of those bounds: each tuple meets
    that many of the latest earlier tuples of the other stream; sizes for the left and the right stream. match: of the right
    tuples that match, a left one joins all, or `last`, `first`, `nearest` (`core.join_semantics.AsOf`); inner and left joins.
    """

    lower_us: int
    upper_us: int
    exclusive: tuple[Literal["lower", "upper"], ...] = ()
    name: str = "join"
    how: How = "inner"
    where: str | None = None
    last: tuple[int, int] | None = None
    match: Match = "all"

    def __post_init__(self) -> None:
        check(
            self.lower_us <= self.upper_us,
            f"join: lower ({format_duration(self.lower_us)}) is above upper ({format_duration(self.upper_us)}); swap them",
        )
        check(max(abs(self.lower_us), abs(self.upper_us)) < MAX_SPAN_US, "join: a bound is too large")
        if self.where is not None:
            parse_where(self.where)
        if self.last is not None:
            check(len(self.last) == 2, "join: last takes one number, or two: of left tuples, of right tuples")
            check(min(self.last) >= 1, f"join: last ({min(self.last)}) must be 1 or more")
            check(max(self.last) < MAX_SPAN_US, "join: last is too large")
            timeless = self.lower_us == self.upper_us == 0 and not self.exclusive
            check(timeless, "join: give last, or bounds of time, not both")
        if (as_of := self.as_of) is not None:
            check(self.last is None, f"join: match {self.match} is of bounds of time; leave last out")
            fits = self.how in ("inner", "left")
            kind = f"{'an' if self.how == 'anti' else 'a'} {self.how} join"
            check(fits, f"join: {kind} has no match {self.match}; leave it out, or make it inner or left")
            side = "at or before" if self.match == "last" else "at or after"
            problem = f"join: match {self.match}: the bounds have no right time {side} a left one"
            check(not as_of.candidates.empty, f"{problem}; {'lower' if self.match == 'last' else 'upper'} is beyond 0")

    @property
    def bounds(self) -> Bounds:
        if self.last is not None:
            return Bounds.last(*self.last)
        return Bounds.of(self.lower_us, self.upper_us, self.exclusive)

    @property
    def as_of(self) -> AsOf | None:
        """Of an as-of join, which right tuple a left one joins."""
        return None if self.match == "all" else AsOf(self.match, self.bounds)

    @property
    def unbounded(self) -> bool:
        """Whether partners may lie any time apart, so that windows hold the full history."""
        return self.last is None and -self.lower_us == self.upper_us == UNBOUNDED_US

    @property
    def description(self) -> str:
        """The join as one line of text."""
        kind = "" if self.how == "inner" else f"{self.how} join, "
        kind += "" if self.match == "all" else f"{self.match} match, "
        where = "" if self.where is None else f", where {self.where}"
        if self.last is not None:
            return f"{kind}last {self.last[0]:,} left, {self.last[1]:,} right tuples{where}"
        if self.unbounded:
            return f"{kind}at any times{where}"
        low, high = ("<" if side in self.exclusive else "<=" for side in ("lower", "upper"))
        return f"{kind}{self.lower_us / 1e6:g} s {low} right - left {high} {self.upper_us / 1e6:g} s{where}"

    @property
    def kind(self) -> JoinKind:
        return JOIN_KINDS[self.how]

    def needed_below(self, times_us: tuple[int, int]) -> tuple[int, int]:
        """Times below which left and right tuples are not needed after a crash, when the watermarks are `times_us`.

        For time windows; `cluster.gateway.arrival_sequence` has the rule for count windows."""
        if (as_of := self.as_of) is not None:
            return as_of.needed_below(as_of.front_us(times_us))
        alive_us = self.bounds.dead_below(times_us)
        # Match flags of tuples in the windows are rebuilt, also from partners that have expired.
        return self.bounds.partners_below(alive_us) if any(self.kind.marks) else alive_us


@dataclass(frozen=True)
class ScheduleConfig:
    """How the rate changes over time: rate(t) = rate * factor(t), t from the start of the stream.

    kind: `step`, factor `factor` from `at_us` on; `sine`, 1 + amplitude * sin(2 pi t / period_us); `burst`, `factor` during the
    first `length_us` of every `period_us`; `constant`, 1. factor: of steps and bursts. at_us: of the step. amplitude: of the
    sine, 0 to 1. period_us: of sine and bursts. length_us: of a burst.
    """

    kind: Literal["constant", "step", "sine", "burst"] = "constant"
    factor: float = 2.0
    at_us: int = 0
    amplitude: float = 0.5
    period_us: int = 60_000_000
    length_us: int = 1_000_000

    def __post_init__(self) -> None:
        check(self.factor >= 0, "schedule: factor must not be negative")
        check(0 <= self.amplitude <= 1, "schedule: amplitude must lie in 0..1")
        check(self.period_us > 0, "schedule: period must be positive")
        check(0 <= self.length_us <= self.period_us, "schedule: length must lie within the period")


@dataclass(frozen=True)
class WorkloadConfig:
    """The paper's synthetic streams (SPEC section 5): Poisson arrivals, b-model keys in [0, domain), a fixed payload.

    rate_per_s: mean tuples per second of each stream. duration_us: length of the streams. bias: b of the b-model, 0.5 up to 1.
    domain: number of different keys. payload_bytes: of a tuple.
    drift_us: after every such time the hot keys are other ones (all keys are rotated within the domain); 0: never.
    """

    rate_per_s: float = 1500.0
    duration_us: int = 60_000_000
    bias: float = 0.7
    domain: int = 10_000_000
    payload_bytes: int = 48
    drift_us: int = 0
    schedule: ScheduleConfig = field(default_factory=ScheduleConfig)

    def __post_init__(self) -> None:
        check(self.rate_per_s > 0, "workload: rate must be positive")
        check(self.duration_us > 0, "workload: duration must be positive")
        check(0.5 <= self.bias < 1, "workload: bias must lie in [0.5, 1)")
        check(1 <= self.domain < 1 << 62, "workload: domain must be at least 1")
        check(0 <= self.payload_bytes <= 65536, "workload: payload must be 0 to 65536 bytes")
        check(self.drift_us >= 0, "workload: drift must not be negative (0: the hot keys stay)")


@dataclass(frozen=True)
class TimeConfig:
    """What a tuple's time is, and which tuples are late.

    model: `event`, the time column; `arrival`, the master stamps tuples as it reads them (realtime pace only).
    max_out_of_order_us: a tuple is late when its time is more than this below the highest time seen before it in its stream.
    late: of late tuples and those without a time: `error`, the run ends; `drop`, they are counted; `side`, they are also
    written. idle_timeout_us: a stream whose source has had nothing to read for this long is idle and no longer holds the
    watermark back; its later rows may be late. 0: never. sort: the rows of files are sorted by time before the join, on disk
    where they are many, so that none is late; their ids stay their positions in the files.
    """

    model: Literal["event", "arrival"] = "event"
    max_out_of_order_us: int = 0
    late: Literal["error", "drop", "side"] = "error"
    idle_timeout_us: int = 0
    sort: bool = False

    def __post_init__(self) -> None:
        behind = setting("max_out_of_order", "time: max_out_of_order")
        check(0 <= self.max_out_of_order_us < MAX_SPAN_US, (behind, " must not be negative"))
        order = setting("sort", "time: sort")
        check(not self.sort or self.max_out_of_order_us == 0, (order, " leaves no row out of order; leave ", behind, " out"))
        check(not self.sort or self.model == "event", (order, " needs model event; arrival times are in order"))
        check(self.idle_timeout_us >= 0, "time: idle_timeout must not be negative (0: never)")
        check(
            self.idle_timeout_us == 0 or self.model == "event",
            "time: idle_timeout needs model event; with arrival times no row is ever late",
        )
        check(
            self.idle_timeout_us == 0 or self.late != "error",
            "time: after an idle_timeout rows may be late; choose late: drop or side",
        )


@dataclass(frozen=True)
class ClusterConfig:
    """The master's side: partition-groups, distribution epochs, buffers; how many ranks or threads take part beside slaves.

    partition_count: number of partition-groups. epoch_tuples: buffered tuples that end an epoch when distribution_epoch_us is
    0. distribution_epoch_us: t_d; 0 lets the master close an epoch at `epoch_tuples` buffered tuples; with larger windows at
    1/8 of the tuples in them, up to twice `epoch_tuples`, or at 1/16 of them if that is more (asap pace only); left out, it is
    0 in asap pace, and 200 ms in realtime pace, with live streams, a reorganization policy or sub-groups. sub_group_count: n_g;
    the slaves are divided into sub-groups and the distribution epoch into as many slots; each sub-group is served in its slot
    (paper section V-B). mini_buffer_bytes: limit of the master's buffers; when they are full, the epoch ends early (asap) or
    the source waits. communication: `overlapped`, a slave receives a delivery while it joins the one before; `synchronous`, it
    asks for the next when it has joined all it has (the paper's mode). Realtime pace exchanges in its slots either way.
    gateways: how many roles read the inputs, each its share of their splits. sinks: how many roles write results, each files of
    its own, or to the topic; results that are only counted have one. strategy: of plans, which slave ranks play which stage:
    `subquery`, each stage has ranks of its own, but if these are fewer than stages, all play every stage; `query`, all of them
    do; `operator`, as `subquery`, and every operator is a stage. routing: how rows of joins find their partners: `hash`, by an
    equality; `skew`, likewise, but rows of keys that have very many are dealt and copied over all slaves; `range`, by a band;
    `matrix:M,N`, a left row is in all cells of one of M rows of a matrix, a right row in all cells of one of N columns;
    `broadcast`, one column; `random:M,N`, a left row is stored at one of M units, a right row at one of N others, and each
    probes all units of the other side; `contrand:M,N,D,E`, units are in D and E subgroups, which the key chooses, and a row
    probes one of them; without numbers these are chosen by the number of instances; `auto`, the first of hash, range and matrix
    that the condition allows. instances: shares of the ranks, a number for each stage; left out, as the work is estimated.
    failure_timeout_us: with MPI ranks, one that has given no sign of life for so long, or whose main thread has made no
    progress, counts as dead; 0: never.
    """

    partition_count: int = 60
    distribution_epoch_us: int = EPOCH_LEFT_OUT
    sub_group_count: int = 1
    epoch_tuples: int = 131_072
    mini_buffer_bytes: int = 64 << 20
    communication: str = "overlapped"
    gateways: int = 1
    sinks: int = 1
    failure_timeout_us: int = 30_000_000
    strategy: Strategy = "subquery"
    routing: str = "auto"
    instances: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        strategies = ", ".join(get_args(Strategy))
        check(self.strategy in get_args(Strategy), (setting("strategy", "cluster: strategy"), f" must be one of {strategies}"))
        check(
            is_routing(self.routing), (setting("routing", "cluster: routing"), f" {self.routing or repr('')}: must be {WORDS}")
        )
        check(all(count > 0 for count in self.instances), "cluster: instances must be numbers above 0")
        gateways = setting("gateways", "cluster: gateways")
        check(1 <= self.gateways <= MOST_GATEWAYS, (gateways, f" must be 1 to {MOST_GATEWAYS}"))
        check(1 <= self.sinks <= MOST_SINKS, (setting("sinks", "cluster: sinks"), f" must be 1 to {MOST_SINKS}"))
        check(
            1 <= self.partition_count <= MOST_PARTITION_GROUPS,
            (setting("partitions", "cluster: partition_count"), f" must be 1 to {MOST_PARTITION_GROUPS}"),
        )
        epoch = setting("epoch", "cluster: distribution_epoch")
        left_out = self.distribution_epoch_us == EPOCH_LEFT_OUT
        check(left_out or self.distribution_epoch_us >= 0, (epoch, " must not be negative"))
        check(self.sub_group_count >= 1, "cluster: sub_group_count must be at least 1")
        check(
            left_out or self.sub_group_count == 1 or self.distribution_epoch_us >= self.sub_group_count,
            f"cluster: sub_group_count {self.sub_group_count} needs a distribution_epoch to divide, of as many us at least",
        )
        check(self.epoch_tuples >= 1, "cluster: epoch_tuples must be at least 1")
        check(self.communication in ("overlapped", "synchronous"), "cluster: communication must be overlapped or synchronous")
        check(self.mini_buffer_bytes >= 1 << 10, "cluster: mini_buffer must be at least 1KB")
        watched = self.failure_timeout_us >= SHORTEST_FAILURE_TIMEOUT_US
        check(watched or self.failure_timeout_us == 0, "cluster: failure_timeout must be 0 (off), or 1s or more")


@dataclass(frozen=True)
class ModuleConfig:
    """The join module of a slave (SPEC section 4).

    theta_bytes: a partition-group above 2 * theta is fine-tuned; 0 turns fine tuning off; the default, 512 tuples, is near the
    fastest (the paper's 1.5 MB are five times slower). block_bytes: one block.
    tuple_bytes: what one tuple counts for in both. stream_buffer_bytes: capacity of the stream buffer (occupancy 1.0).
    window_bytes: limit of the window state of one slave; the run fails with one line when it is reached.
    result_buffer_bytes: results leave a slave in chunks of at most this size.
    """

    theta_bytes: int = 32 << 10
    block_bytes: int = 4096
    tuple_bytes: int = 64
    stream_buffer_bytes: int = 1 << 20
    window_bytes: int = 8 << 30
    result_buffer_bytes: int = 4 << 20

    def __post_init__(self) -> None:
        check(self.tuple_bytes >= 16, "module: tuple_bytes must be at least 16 (time and key)")
        check(self.block_bytes >= self.tuple_bytes, "module: a block must hold at least one tuple")
        check(
            self.theta_bytes == 0 or self.theta_bytes >= self.block_bytes,
            "module: theta must be at least one block (or 0: off)",
        )
        check(self.stream_buffer_bytes >= self.tuple_bytes, "module: stream_buffer must hold at least one tuple")
        check(self.result_buffer_bytes >= 1 << 12, "module: result_buffer must be at least 4KB")
        check(self.window_bytes >= 1 << 20, (setting("memory", "module: window"), " must be at least 1MB"))

    @property
    def block_tuples(self) -> int:
        return self.block_bytes // self.tuple_bytes

    @property
    def theta_tuples(self) -> int:
        """theta in tuples of both streams; 0 when fine tuning is off."""
        return self.theta_bytes // self.tuple_bytes


@dataclass(frozen=True)
class ScalingConfig:
    """How many units of a join with `routing: random` or `contrand` are in use (BiStream, section 3.4). Off unless `units` is
    given.

    units: of each subgroup, that store rows at the start; others do when they are needed; 0: all, always. low, target, high:
    T_l, Psi and T_h, shares of the memory of the units that store, `module.window` divided by the most units of a slave: above
    `high` more are used, below `low` fewer, as many as are filled to `target`. every_us: time of the streams between two
    checks; 0: they are checked in each distribution epoch. confirmations: checks in a row that must want a change.
    """

    units: int = 0
    low: float = 0.3
    target: float = 0.6
    high: float = 0.8
    every_us: int = 0
    confirmations: int = 3

    def __post_init__(self) -> None:
        check(self.units >= 0, (setting("units", "reorganization: scaling.units"), " must not be negative (0: all, always)"))
        check(
            0 <= self.low < self.target < self.high <= 1,
            f"reorganization: scaling.low {self.low:g}, target {self.target:g}, high {self.high:g} must ascend, within 0 to 1",
        )
        check(self.every_us >= 0, "reorganization: scaling.every must not be negative (0: in each distribution epoch)")
        check(self.confirmations >= 1, "reorganization: scaling.confirmations must be at least 1")


@dataclass(frozen=True)
class PlacementConfig:
    """Where partition-groups of a query's stages are, by what they send each other (KATTS, seed 001). The section can be
    written as `placement:`, too.

    policy: `network`, the least traffic between machines; `round_robin`, by number. objective: which counts the traffic is of,
    `bytes`, `tuples`, or (of `swjoin place`) `deliveries`, bytes and a cost for each message. imbalance: how full the fullest
    machine may be, over its share of the work; where no placement is so even, the most even ones count. statistics: directory
    of an earlier run of the same query, by whose traffic partition-groups are placed at the start; None: by number. slices:
    with `reorganization.policy: network`, reorganization epochs of which the traffic is expected to go on, each counting half
    as much as the one after it. horizon: for how many of them a move has to pay for the state that it moves.
    """

    policy: Literal["network", "round_robin"] = "network"
    objective: Literal["bytes", "tuples", "deliveries"] = "bytes"
    imbalance: float = 1.03
    statistics: str | None = None
    slices: int = 3
    horizon: float = 10.0

    def __post_init__(self) -> None:
        check(1 <= self.imbalance <= 1e9, "placement: imbalance must be at least 1, the fullest machine's work over the mean")
        check(1 <= self.slices <= 1000, "placement: slices must be 1 to 1000")
        check(0 < self.horizon <= 1e9, "placement: horizon must be above 0, in reorganization epochs")


@dataclass(frozen=True)
class ReorganizationConfig:
    """How the run adapts while it runs (paper sections IV-C and V-A). Off unless a policy, or `scaling.units`, is named.

    policy: `none`; `paper`, one random partition-group from each supplier to a consumer; `balanced`, as many and such
    partition-groups as even out the measured work; `network`, of a query, those that lessen the measured traffic between slave
    ranks; `random`, moves (and, with adaptive declustering, resizes) at random, to test with. epoch_us: t_r, a whole multiple
    of the distribution epoch. supplier_threshold, consumer_threshold: Th_sup, Th_con of the average occupancy. declustering:
    `fixed`; `adaptive`, the paper's rule with granularity beta; or `measured`, by how busy the slaves are (policy balanced).
    beta: granularity of declustering, between 0 and 1. active_slaves: how many start active; 0: all. confirmations:
    reorganization epochs in a row that must want the same change of the degree of declustering. random_moves: moves per
    reorganization epoch of policy `random`. emptied_groups: most partition-groups that a slave which is about to rest yields in
    one reorganization epoch. chunk_bytes: largest message of a state movement. scaling: of units that store one stream each.
    placement: of `network`, and at the start.
    """

    policy: Literal["none", "paper", "balanced", "network", "random"] = "none"
    epoch_us: int = 20_000_000
    supplier_threshold: float = 0.5
    consumer_threshold: float = 0.01
    declustering: Literal["fixed", "adaptive", "measured"] = "fixed"
    beta: float = 0.5
    active_slaves: int = 0
    confirmations: int = 1
    random_moves: int = 1
    emptied_groups: int = 16
    chunk_bytes: int = 1 << 20
    scaling: ScalingConfig = field(default_factory=ScalingConfig)
    placement: PlacementConfig = field(default_factory=PlacementConfig)

    def __post_init__(self) -> None:
        check(self.epoch_us > 0, "reorganization: epoch must be positive")
        fixed = self.declustering == "fixed" and not self.active_slaves
        by_traffic = self.policy == "network" or self.placement.statistics is not None
        check(fixed or not by_traffic, "placement: by traffic on all slaves; leave out declustering and active_slaves")
        check(
            self.placement.objective != "deliveries",
            "placement: objective deliveries is for swjoin place; in a run every sender sends every instance a message in each "
            "epoch, wherever partition-groups are",
        )
        check(
            0 <= self.consumer_threshold < self.supplier_threshold,
            f"reorganization: consumer_threshold ({self.consumer_threshold:g}) must lie in 0 up to, but not at, "
            f"supplier_threshold ({self.supplier_threshold:g}), or a slave could be both",
        )
        check(0 < self.beta < 1, "reorganization: beta must lie between 0 and 1")
        check(self.active_slaves >= 0, "reorganization: active_slaves must not be negative (0: all)")
        check(self.confirmations >= 1, "reorganization: confirmations must be at least 1")
        check(self.random_moves >= 0, "reorganization: random_moves must not be negative")
        check(self.emptied_groups >= 1, "reorganization: emptied_groups must be at least 1")
        check(self.chunk_bytes >= 1 << 10, "reorganization: chunk must be at least 1KB")


@dataclass(frozen=True)
class SpeedChange:
    """From `at_us` on the run's clock on, `slave` runs at `speed`, as on a shared node whose other load changes."""

    slave: int
    at_us: int
    speed: float

    def __post_init__(self) -> None:
        check(self.slave >= 0, "nodes.changes: slave must not be negative")
        check(self.at_us >= 0, "nodes.changes: at must not be negative")
        check(0 < self.speed <= 1, "nodes.changes: speed must lie in 0..1, above 0")


@dataclass(frozen=True)
class NodesConfig:
    """Slower, heterogeneous and non-dedicated nodes, imitated on fast equal ones: a slave at speed 0.25 gets a quarter of a
    core.

    node_speed: what speed 1 stands for, as a fraction of a core. speed: of slave 0, 1, ... (of a query: slave ranks, with all
    that they play), relative to node_speed; slaves beyond the list run at 1. changes: in any order. link_bytes_per_s: a slower
    network between MPI ranks, for what slaves receive; 0: as fast as it is.
    """

    speed: tuple[float, ...] = ()
    changes: tuple[SpeedChange, ...] = ()
    node_speed: float = 1.0
    link_bytes_per_s: float = 0.0

    def __post_init__(self) -> None:
        check(0 < self.node_speed <= 1, "nodes: node_speed must lie in 0..1, above 0")
        check(all(0 < s <= 1 for s in self.speed), "nodes: every speed must lie in 0..1, above 0")
        check(self.link_bytes_per_s >= 0, "nodes: link_bytes_per_s must not be negative (0: as fast as it is)")

    @property
    def imitates(self) -> bool:
        """Whether any node is slower than a core."""
        return min([self.node_speed, *self.speed, *(c.speed for c in self.changes)]) < 1

    def speed_of(self, slave: int, now_us: int) -> float:
        """Speed of a slave at a time on the run's clock, as a fraction of a core."""
        speed = self.speed[slave] if slave < len(self.speed) else 1.0
        due = [c for c in self.changes if c.slave == slave and c.at_us <= now_us]
        return self.node_speed * (max(due, key=lambda c: c.at_us).speed if due else speed)


@dataclass(frozen=True)
class MeasureConfig:
    """Which part of a realtime run is measured; for experiments whose windows must be full before anything counts.

    prefill_us: a whole multiple of the distribution epoch: tuples of the first prefill_us of the streams are joined as
    fast as possible, before the run's clock, which then starts at prefill_us, so that it shows stream time. Pairs of two such
    tuples are counted separately and not kept. warm_up_us: start of the measured phase that aggregation leaves out. rush: when
    the streams have ended, the remaining tuples are joined at full speed, without `nodes`, so that an overloaded run ends soon
    after its streams; aggregation leaves that out, too.
    """

    prefill_us: int = 0
    warm_up_us: int = 0
    rush: bool = False

    def __post_init__(self) -> None:
        check(0 <= self.prefill_us < MAX_SPAN_US, "measure: prefill must not be negative")
        check(self.warm_up_us >= 0, "measure: warm_up must not be negative")


@dataclass(frozen=True)
class CheckpointConfig:
    """When the run's state is made durable, so that the run survives the death of any process. Off unless a measure is given.

    interval_us: a checkpoint at the first distribution epoch that ends so long after the last one began, on the run's clock.
    epochs: or after so many distribution epochs; 0: not by this measure. directory: where; None: `checkpoints` in the run's
    directory. On several hosts all must see it. recover: with MPI ranks, go on without a rank that died (needs
    fault tolerance of the MPI library); otherwise the run ends and can be resumed.
    """

    interval_us: int = 0
    epochs: int = 0
    directory: str | None = None
    recover: bool = True

    def __post_init__(self) -> None:
        check(self.interval_us >= 0, "checkpoint: interval must not be negative (0: off)")
        check(self.epochs >= 0, "checkpoint: epochs must not be negative (0: off)")

    @property
    def enabled(self) -> bool:
        return self.interval_us > 0 or self.epochs > 0


@dataclass(frozen=True)
class OverloadConfig:
    """What the master does when its mini-buffers are full (realtime pace; in asap pace the source always waits).

    policy: `block`, the source waits; `shed`, tuples are dropped, each one counted and written down; `spill`, tuples go to disk
    until their slave has room. victims: which are dropped; `oldest`, those that have waited longest, `random`, or
    `least_matching`, those whose keys are expected to match the fewest tuples of the other stream. disk_bytes: at most so much
    is spilled; then the source waits. directory: of spilled tuples; None: the run's directory.
    """

    policy: Literal["block", "shed", "spill"] = "block"
    victims: Literal["oldest", "random", "least_matching"] = "random"
    disk_bytes: int = 16 << 30
    directory: str | None = None

    def __post_init__(self) -> None:
        check(self.disk_bytes >= 1 << 20, "on_overload: disk must be at least 1MB")


@dataclass(frozen=True)
class ObserveConfig:
    """Monitoring of a run in progress. Off, and free of cost, unless a port is given.

    port: of the page, /status.json and /metrics on 127.0.0.1; 0: a free one, which is printed. interval_us: how often the roles
    are sampled. hot_keys: so many of the most frequent keys of each stream, from a sample; 0: none, as with several gateways.
    board: keep the status also without a port, for other clients.
    """

    port: int | None = None
    interval_us: int = 250_000
    hot_keys: int = 10
    board: bool = False

    def __post_init__(self) -> None:
        check(self.port is None or 0 <= self.port <= 65535, "observe: port must be 0 to 65535 (0: a free one)")
        check(self.interval_us >= 10_000, "observe: interval must be at least 10ms")
        check(0 <= self.hot_keys <= 1000, "observe: hot_keys must be 0 to 1000 (0: none)")

    @property
    def enabled(self) -> bool:
        return self.port is not None or self.board
