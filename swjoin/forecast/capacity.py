"""Capacity by the cost model: production delay at a rate, the highest sustained rate, slaves for a target.

What: `Model` (a configuration made steady, with costs and cores), `Outcome` of a modelled run at one rate,
`sustainable_rate`, `least_slaves`.
Why: before a run is submitted: which rate can it sustain, and how many ranks does a target need? The criterion is that of real
runs (`monitor.sustainability.sustained`), so forecasts and measurements can be compared.
Stays out: costs (`forecast.costs`), running the model (`forecast.model.run`), memory (`forecast.memory`), printing (`cli`).

A modelled run: realtime pace, prefilled windows, then some distribution epochs in steady state. Partition-groups are not
moved, and nodes keep their initial speed. Rates are per stream; the mean where the two streams differ.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from swjoin.cluster.ranks import RankMap
from swjoin.config.run import (
    CheckpointConfig,
    MeasureConfig,
    OverloadConfig,
    ReorganizationConfig,
    RunConfig,
    TimeConfig,
    WorkloadConfig,
)
from swjoin.config.sections import SHORT_EPOCH_US
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import RunFailed
from swjoin.core.metric_columns import COLUMNS
from swjoin.core.units import format_duration
from swjoin.forecast.costs import CostModel
from swjoin.forecast.input_profile import InputProfile
from swjoin.forecast.key_distribution import key_distribution
from swjoin.forecast.model.batch import TUPLE_BYTES
from swjoin.forecast.model.run import ModelStreams, generated_payload_bytes, simulate
from swjoin.forecast.summary import forecast
from swjoin.monitor.sustainability import sustained
from swjoin.operators.join_step import PAIR_BYTES

EPOCHS = 16  # distribution epochs that are measured
_MOST_EPOCHS = 2_000_000  # in a window: so many are modelled before it is full
PRECISION = 1.04  # lowest rate that is not sustained / highest sustained rate
MOST_SLAVES = 128  # more take minutes: they are left to `swjoin simulate`
_SEARCHED = 12  # slaves, times gateways; for more, the rate is derived from the utilisation of the busiest resource
_MOST_PROBES = 14
_MARGIN = 10.0  # a target above the reachable rate times this is not modelled: runs are short, and rows may be read ahead


class NotModelledError(Exception):
    """The model does not cover this kind of run; the text says why."""


@dataclass(frozen=True)
class Outcome:
    """A modelled run at one rate per stream.

    sustained, why: the verdict and its reason.
    delay_s: production delay: mean, p50, p99, max; None without pairs.
    resource, utilisation: the busiest resource and its utilisation; slaves_busy: utilisation of the busiest slave.
    pairs_per_s: mean over the run.
    """

    rate_per_s: float
    sustained: bool
    why: str
    delay_s: dict[str, float] | None
    resource: str
    utilisation: float
    slaves_busy: float
    pairs_per_s: float


@dataclass(frozen=True)
class SustainableRate:
    """The highest sustained rate.

    rate_per_s: per stream; 0: no rate that was tried is sustained.
    above_per_s: the lowest rate found that is not sustained, if any.
    resource: the one that saturates first.
    """

    rate_per_s: float
    above_per_s: float | None
    resource: str


@dataclass(frozen=True)
class Target:
    """slaves: the least number that sustains the target; None: no number up to `tried` does. why: the reason then."""

    slaves: int | None
    tried: int
    why: str
    outcome: Outcome | None


def rates_of(config: RunConfig, profile: InputProfile) -> tuple[float, float]:
    """Mean tuples per second of each stream, from its first to its last tuple."""
    if config.left.path is None:
        rates = (
            float(profile.arrived[s][-1]) / max(1e-6, (profile.times_us[-1] - profile.times_us[0]) / 1e6) for s in (LEFT, RIGHT)
        )
    else:
        rates = (_rate(profile, s) for s in (LEFT, RIGHT))
    left, right = rates
    return left, right


def _rate(profile: InputProfile, stream: int) -> float:
    """Mean rate of one stream of files; the other stream may start before and end after it."""
    arrived = profile.arrived[stream]
    some = np.flatnonzero(np.diff(arrived) > 0)
    if not len(some):
        return 0.0
    span_us = float(profile.times_us[some[-1] + 1] - profile.times_us[some[0]])
    return float(arrived[-1]) / max(1e-6, span_us / 1e6)


def equal_keys(config: RunConfig, profile: InputProfile) -> float:
    """Probability that a left and a right tuple have equal keys; of files by a sample of the first rows."""
    shares = getattr(profile.keys, "shares", None)
    if shares is not None:
        return float(np.dot(shares[LEFT], shares[RIGHT]))
    workload = dataclasses.replace(config.workload, duration_us=1_000_000, drift_us=0)
    distribution = key_distribution(dataclasses.replace(config, workload=workload, measure=MeasureConfig()))
    return float((distribution.equal[0] * distribution.share[0] ** 2).sum())


def pairs_per_s(config: RunConfig, rates_per_s: tuple[float, float], equal: float) -> float:
    """Pairs of equal keys within the bounds, per second, with full windows; `join.where` is not taken into account."""
    left, right = rates_per_s
    if config.query.last is not None:
        of_left, of_right = config.query.last
        return equal * (left * of_right + right * of_left)
    bounds = config.query.bounds
    return equal * left * right * (bounds.upper_us - bounds.lower_us + 1) / 1e6


@dataclass(frozen=True)
class Model:
    """A configuration as it is modelled.

    pair_factor: product of both streams' rates / square of their mean.
    notes: differences from the configuration that was given.
    ranks: which rank plays which roles; None: every role has a rank of its own, as far as `RankMap` gives it one.
    """

    config: RunConfig
    costs: CostModel
    host_cores: int
    profile: InputProfile
    pair_factor: float = 1.0
    notes: tuple[str, ...] = field(default=())
    ranks: RankMap | None = None

    @staticmethod
    def of(config: RunConfig, costs: CostModel, host_cores: int, profile: InputProfile, epochs: int = EPOCHS) -> Model:
        """epochs: that are measured. NotModelledError when the model does not cover such runs."""
        if config.query.last is not None:
            raise NotModelledError("count windows are not in the cost model")
        if config.query.unbounded:
            raise NotModelledError("windows without bounds are never in steady state")
        t_d = config.cluster.distribution_epoch_us or SHORT_EPOCH_US
        if config.query.bounds.retention_us // t_d > _MOST_EPOCHS:
            longer = "a longer cluster.distribution_epoch makes them fewer"
            raise NotModelledError(
                f"windows are {config.query.bounds.retention_us // t_d:,} distribution epochs long; {longer}"
            )
        left, right = rates_of(config, profile)
        mean = (left + right) / 2
        if mean <= 0:
            raise NotModelledError("the input has no tuples")
        prefill = -(-config.query.bounds.retention_us // t_d) * t_d
        model = TimeConfig(config.time.model if config.pace == "realtime" else "event")
        workload = dataclasses.replace(config.workload, rate_per_s=mean, duration_us=prefill + (epochs + 2) * t_d)
        steady = dataclasses.replace(
            config,
            queries=(dataclasses.replace(config.query, how="inner", where=None),),
            pace="realtime",
            cluster=dataclasses.replace(config.cluster, distribution_epoch_us=t_d),
            workload=workload,
            time=model,
            measure=MeasureConfig(prefill_us=prefill, warm_up_us=2 * t_d),
            reorganization=ReorganizationConfig(active_slaves=config.reorganization.active_slaves),
            nodes=dataclasses.replace(config.nodes, changes=()),
            checkpoint=CheckpointConfig(),
            on_overload=OverloadConfig(),
        )
        slower = config.nodes.link_bytes_per_s
        if slower:
            costs = dataclasses.replace(costs, link_bytes_per_s=min(slower, costs.link_bytes_per_s))
        return Model(steady, costs, host_cores, profile, left * right / mean**2, _differences(config, left, right))

    def _streams(self, config: RunConfig) -> ModelStreams | None:
        """The streams of files; None: the workload section describes them."""
        if config.left.path is None:
            return None
        groups = config.cluster.partition_count
        plain = WorkloadConfig(config.workload.rate_per_s, config.workload.duration_us, 0.5, 1)
        distribution = key_distribution(dataclasses.replace(config, workload=plain))
        keys: Any = self.profile.keys
        cells = keys.cells(groups, 0, 0.0, 1.0)
        share = (cells.left.sum(1) + cells.right.sum(1)) / 2
        square = np.zeros(groups)
        np.add.at(square, keys.groups(groups), keys.shares[LEFT] * keys.shares[RIGHT])
        square *= self.pair_factor
        equal = np.minimum(1.0, np.divide(square, share**2, out=np.zeros(groups), where=share > 0))
        distribution = dataclasses.replace(
            distribution, share=share[None, :], equal=equal[None, :], rotation=distribution.rotation * 0
        )
        payload = sum(self.profile.fixed_bytes) + sum(self.profile.tail_bytes)
        return ModelStreams(distribution, round(payload / 2))

    def reachable_per_s(self, slaves: int) -> tuple[float, str]:
        """An upper bound of the rate per stream, and the resource that sets it: by the costs of tuples and pairs alone."""
        config, c, bounds = self.config, self.costs, self.config.query.bounds
        streams = self._streams(config)
        payload = generated_payload_bytes(config) if streams is None else streams.payload_bytes
        nbytes = TUPLE_BYTES + payload
        pair_bytes = 0 if config.sink.kind == "count" else PAIR_BYTES + 2 * payload
        pairs = pairs_per_s(config, (1.0, 1.0), equal_keys(config, self.profile)) * self.pair_factor  # at one tuple/s
        master_ns = c.source_tuple_ns + c.source_byte_ns * payload + c.master_tuple_ns + c.master_byte_ns * nbytes
        gateways, sinks = config.gateway_count, config.sink_count
        feeder = "master" if gateways == 1 else "gateway"
        slave_pair_ns = c.slave_pair_ns + c.slave_result_byte_ns * pair_bytes
        stay_s = (max(0, bounds.upper_us) + max(0, -bounds.lower_us)) / 1e6
        linear = {  # share of each resource that two tuples per second take
            f"{feeder} CPU": 2 * master_ns / 1e9 / gateways,
            f"{feeder} link": 2 * nbytes / c.link_bytes_per_s / gateways,
            "slaves": 2 * c.slave_tuple_ns / 1e9 / slaves,
            "module.window": stay_s * nbytes / (slaves * config.module.window_bytes),
            "host": 2 * (master_ns + c.slave_tuple_ns) / 1e9 / self.host_cores if self.host_cores else 0.0,
        }
        square = {  # share that their pairs take, which grow with the square of the rate
            "slaves": slave_pair_ns * pairs / 1e9 / slaves,
            "collector" if sinks == 1 else "sinks": c.collector_byte_ns * pair_bytes * pairs / 1e9 / sinks,
        }
        found = [(1 / cost, name) for name, cost in linear.items() if cost > 0]
        found += [(cost**-0.5, name) for name, cost in square.items() if cost > 0]
        return min(found, default=(float("inf"), ""))

    def run_at(self, slaves: int, rate_per_s: float) -> Outcome:
        """Model a run at this rate per stream. Never RunFailed: a run that fails is not sustained."""
        workload = dataclasses.replace(self.config.workload, rate_per_s=rate_per_s)
        config = dataclasses.replace(self.config, workload=workload).fitted_to(slaves)
        limit_us = 1.5 * (workload.duration_us - config.measure.prefill_us) + 2 * config.cluster.distribution_epoch_us
        try:
            streams = self._streams(config)
            run = simulate(
                config, slaves, self.costs, host_cores=self.host_cores, limit_us=limit_us, streams=streams, ranks=self.ranks
            )
            report = forecast(run, "swjoin plan")
        except RunFailed as error:
            return Outcome(rate_per_s, False, str(error), None, "module.window", 1.0, 0.0, 0.0)
        rows = np.stack(run.metrics) if run.metrics else np.zeros((0, len(COLUMNS)))
        columns: dict[str, Any] = {name: rows[:, i] for i, name in enumerate(COLUMNS)}
        kept_up, why = sustained(columns, report) if len(rows) else (False, "nothing was joined")
        delay = report["delay_s"]
        first = report["saturates_first"]
        seconds = max(1e-6, (run.end_us - run.begin_us) / 1e6)
        return Outcome(
            rate_per_s,
            kept_up,
            why,
            None if delay["mean"] is None else {name: float(delay[name]) for name in ("mean", "p50", "p99", "max")},
            str(first["resource"]),
            float(first["utilisation"]),
            float(report["utilisation"]["slaves"]["max"]),
            report["results"]["count"] / seconds,
        )


def _differences(config: RunConfig, left: float, right: float) -> tuple[str, ...]:
    notes = []
    if config.cluster.distribution_epoch_us == 0:
        notes.append(
            f"delay and saturation are those of realtime pace with distribution epochs of {format_duration(SHORT_EPOCH_US)} "
            "(--set cluster.distribution_epoch=...)"
        )
    query = config.query
    apart = {"join.how": query.how != "inner", "join.match": query.match != "all", "join.where": query.where is not None}
    if any(apart.values()):
        what = " and ".join(name for name, given in apart.items() if given)
        notes.append(f"the cost model covers inner joins by keys and times; {what} is left out")
    if config.gateway_count > 1 and config.left.path is not None:
        notes.append("all gateways are taken to read equal shares of both inputs; `swjoin explain` shows their splits")
    if config.checkpoint.enabled:
        notes.append("checkpoints are not in the cost model")
    if config.reorganization.policy != "none" or config.nodes.changes:
        notes.append("delay and saturation are those of the initial placement and of the nodes' initial speed")
    if config.time.max_out_of_order_us:
        waits = config.time.max_out_of_order_us / 1e6
        notes.append(f"rows wait {waits:g} s for late ones (time.max_out_of_order); the delay does not include that")
    if max(left, right) > 1.1 * min(left, right):
        notes.append("delay and saturation are those of two streams at their mean rate; the number of pairs is exact")
    if config.left.path is None and (config.workload.schedule.kind != "constant"):
        notes.append("delay and saturation are those of the start of the schedule, at this mean rate")
    return tuple(notes)


# ---------------------------------------------------------------- the highest sustained rate


def sustainable_rate(model: Model, slaves: int, known: Outcome, precision: float | None = None) -> SustainableRate:
    """The highest rate per stream that `slaves` sustain. known: the outcome at any rate.

    Within `precision`, which is PRECISION for few slaves. For many, and without one given: the rate at which the busiest
    resource is fully used, extrapolated from one further run.
    """
    if precision is None and slaves * model.config.gateway_count > _SEARCHED:
        once = model.run_at(slaves, max(1.0, 0.8 * known.rate_per_s / max(1e-4, known.utilisation)))
        rate = once.rate_per_s / max(1e-4, once.utilisation)
        return SustainableRate(rate, None, once.resource)
    low: Outcome | None = known if known.sustained else None
    high: Outcome | None = None if known.sustained else known
    for _ in range(_MOST_PROBES):
        if low is not None and high is not None and high.rate_per_s <= (precision or PRECISION) * low.rate_per_s:
            break
        probed = model.run_at(slaves, _next(low, high))
        if probed.sustained:
            low = probed
        else:
            high = probed
    if low is None:
        return SustainableRate(0.0, high.rate_per_s if high else None, high.resource if high else "")
    resource = high.resource if high is not None and high.resource == "module.window" else low.resource
    return SustainableRate(low.rate_per_s, high.rate_per_s if high else None, resource)


def _next(low: Outcome | None, high: Outcome | None) -> float:
    """The rate to try next: at full utilisation of the busiest resource, or between `low` and `high`."""
    if low is None:
        assert high is not None
        return high.rate_per_s / 3
    linear = low.rate_per_s * min(50.0, max(1.1, 0.97 / max(1e-4, low.utilisation)))
    if high is None:
        return linear
    middle = float(np.sqrt(low.rate_per_s * high.rate_per_s))
    return min(linear, high.rate_per_s / 1.03) if 1.1 * low.rate_per_s < linear < middle else middle


# ---------------------------------------------------------------- slaves for a target


def least_slaves(model: Model, rate_per_s: float, delay_s: float | None, most: int) -> Target:
    """The least number of slaves up to `most` that sustains this rate per stream with at most this 99th percentile of the
    production delay (None: any).

    Tries 1 to 8 slaves, then doubles, then bisects between the last two. Stops early when another resource is the limit, which
    more slaves do not relieve.
    """
    reachable, resource = model.reachable_per_s(most)
    if rate_per_s > _MARGIN * reachable:
        return Target(None, most, f"the {resource} alone allows about {reachable:,.0f} at most", None)
    tried: dict[int, Outcome] = {}

    def suffices(count: int) -> bool:
        outcome = tried[count] = model.run_at(count, rate_per_s)
        return outcome.sustained and not _too_late(outcome, delay_s)

    counts = [*range(1, min(most, 8) + 1)]
    while counts[-1] < most:
        counts.append(min(2 * counts[-1], most))
    below = 0
    for count in counts:
        if suffices(count):
            found = count
            while found - below > 1:
                middle = (below + found) // 2
                below, found = (below, middle) if suffices(middle) else (middle, found)
            return Target(found, found, "", tried[found])
        below, outcome = count, tried[count]
        if not outcome.sustained and outcome.resource not in ("slaves", "module.window") and outcome.slaves_busy < 0.7:
            why = f"the {outcome.resource} is the limit, which more slaves do not relieve"
            return Target(None, count, why, outcome)
        if _too_late(outcome, delay_s) and outcome.sustained and outcome.slaves_busy < 0.3 and count > 1:
            break
    return Target(None, below, _limit_text(model, tried[below], delay_s), tried[below])


def _too_late(outcome: Outcome, delay_s: float | None) -> bool:
    return delay_s is not None and outcome.delay_s is not None and outcome.delay_s["p99"] > delay_s


def _limit_text(model: Model, last: Outcome, delay_s: float | None) -> str:
    if last.sustained and last.delay_s is not None:
        t_d_ms = model.config.cluster.distribution_epoch_us / 1e3
        return (
            f"99 % of the pairs come within {last.delay_s['p99'] * 1e3:,.0f} ms, and most of that is waiting for the next of "
            f"the distribution epochs of {t_d_ms:,.0f} ms; shorten them (--set cluster.distribution_epoch=...)"
        )
    return f"{last.why} ({last.resource} first)"
