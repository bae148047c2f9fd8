"""The forecast of `plan` besides memory: network, production delay, saturation, and slaves for a target.

What: `ForecastOptions`, the options; called with a configuration it gives `Forecast`: JSON, lines and notes.
Why: a figure that the cost model cannot estimate becomes a note, so that the others are still shown.
Stays out: memory (`cli.plan`), the model (`forecast.capacity`), bytes on the way (`forecast.network`).
"""

from __future__ import annotations

import argparse
import dataclasses
from dataclasses import dataclass, field
from typing import Any

from swjoin.cli.common_args import duration_of
from swjoin.cli.summary import duration_text, size_text
from swjoin.cluster.ranks import RankMap
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import SwjoinError, UserError
from swjoin.core.platforms import core_count
from swjoin.forecast.capacity import (
    MOST_SLAVES,
    Model,
    NotModelledError,
    Outcome,
    SustainableRate,
    Target,
    equal_keys,
    least_slaves,
    pairs_per_s,
    rates_of,
    sustainable_rate,
)
from swjoin.forecast.costs import CostModel, load_costs
from swjoin.forecast.input_profile import InputProfile
from swjoin.forecast.model.run import ranks_of
from swjoin.forecast.network import NetworkEstimate, plan_network

_HOW = {"left": "left rows", "right": "right rows", "full": "rows of either side"}


@dataclass
class Forecast:
    """plain: for JSON. rows: (name, text) of the table. notes: what is left out, and why."""

    plain: dict[str, Any] = field(default_factory=dict)
    rows: list[tuple[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        return [f"{name:<17} {text}" for name, text in [*self.rows, *(("note", n) for n in self.notes)]]


@dataclass(frozen=True)
class ForecastOptions:
    """host_cores: that all ranks share; 0: each has one. target_rate_per_s: of each stream; None: no target. most: slaves."""

    costs: CostModel
    host_cores: int
    target_rate_per_s: float | None
    target_delay_s: float | None
    most: int

    @staticmethod
    def of(args: argparse.Namespace) -> ForecastOptions:
        """UserError when an option means nothing."""
        cores = _this_machine() if args.host_cores is None else args.host_cores
        if cores < 0:
            raise UserError(f"--host-cores {cores}: must not be negative (0: a core for every rank)")
        if not 1 <= args.most_slaves <= MOST_SLAVES:
            raise UserError(f"--most-slaves {args.most_slaves}: must be 1 to {MOST_SLAVES}")
        delay = None if args.target_delay is None else duration_of(args.target_delay, "--target-delay") / 1e6
        if delay is not None and args.target_rate is None:
            raise UserError("--target-delay: of which rate? give --target-rate as well")
        if delay is not None and delay <= 0:
            raise UserError(f"--target-delay {args.target_delay}: must be positive")
        return ForecastOptions(load_costs(args.costs), cores, args.target_rate, delay, args.most_slaves)

    def __call__(self, config: RunConfig, slaves: int, profile: InputProfile, ranks: RankMap | None) -> Forecast:
        """ranks: None in one process. Never an error: what cannot be estimated is None in JSON, and a note."""
        out = Forecast(
            {"costs": self.costs.name, "host_cores": self.host_cores, "delay_s": None, "keeps_up": None}
            | {"saturation": None, "target": None}
        )
        rates = rates_of(config, profile)
        try:
            self._network(out, config, slaves, profile, rates)
        except SwjoinError as error:
            out.plain["network"] = None
            out.notes.append(f"the network is not estimated: {error}")
        try:
            self._model(out, Model.of(config, self.costs, self.host_cores, profile), slaves, ranks)
        except (NotModelledError, SwjoinError) as error:
            out.notes.append(f"delay and saturation are not estimated: {error}")
        return out

    def _network(
        self, out: Forecast, config: RunConfig, slaves: int, profile: InputProfile, rates: tuple[float, float]
    ) -> None:
        found = pairs_per_s(config, rates, equal_keys(config, profile))
        network = plan_network(config, slaves, profile, rates, found)
        out.plain |= {"rate_per_s": {"left": rates[LEFT], "right": rates[RIGHT]}, "network": network.to_plain()}
        out.rows += _network_rows(network, rates, config)
        if config.pace == "asap":
            out.notes.append("network is per second of the streams' time; asap pace replays them as fast as it goes")
        if config.query.where is not None:
            out.notes.append(f"pairs are of equal keys within the bounds; what {config.query.where!r} leaves out is not known")
        if config.query.match != "all":
            out.notes.append("an as-of join gives at most one row for each left row, not these pairs, and keeps fewer rows")
        elif config.query.how in _HOW:
            out.notes.append(f"{_HOW[config.query.how]} that match nothing come in addition to these pairs")
        elif config.query.how != "inner":
            out.notes.append(f"a {config.query.how} join gives at most one row for each left row, not these pairs")
        if config.left.path is not None:
            out.notes.append("pairs per second are by the keys of the files' first rows")

    def _model(self, out: Forecast, model: Model, slaves: int, ranks: RankMap | None) -> None:
        out.notes += model.notes
        if slaves > MOST_SLAVES:
            out.notes.append(f"delay and saturation of {slaves:,} slaves take minutes; swjoin simulate foretells them")
        else:
            placed = dataclasses.replace(model, ranks=ranks)
            outcome = placed.run_at(slaves, model.config.workload.rate_per_s)
            found = sustainable_rate(placed, slaves, outcome)
            out.plain |= {
                "delay_s": outcome.delay_s,
                "keeps_up": outcome.sustained,
                "busiest": {"resource": outcome.resource, "utilisation": outcome.utilisation},
                "saturation": dataclasses.asdict(found),
            }
            out.rows += [*_delay_rows(outcome), ("saturation", _saturation_text(found))]
        if self.target_rate_per_s is not None:
            target = least_slaves(model, self.target_rate_per_s, self.target_delay_s, self.most)
            out.plain["target"] = {
                "rate_per_s": self.target_rate_per_s,
                "delay_s": self.target_delay_s,
                "slaves": target.slaves,
                "ranks": None if target.slaves is None else ranks_of(model.config, target.slaves).size,
                "tried": target.tried,
                "why": target.why,
            }
            out.rows.append(
                ("target", _target_text(target, self.target_rate_per_s, self.target_delay_s, out.plain["target"]["ranks"]))
            )
        shared = "a core for every rank" if self.host_cores == 0 else f"{self.host_cores} cores for all ranks"
        out.rows.append(
            ("assumed", f"costs {self.costs.name} (swjoin calibrate measures this machine's), {shared}, realtime pace")
        )


def _this_machine() -> int:
    return core_count()


def _network_rows(network: NetworkEstimate, rates: tuple[float, float], config: RunConfig) -> list[tuple[str, str]]:
    each = network.to_slaves
    most = f", at most {size_text(max(each))}/s to one" if len(each) > 1 else ""
    sizes = f"{network.tuple_bytes[LEFT]:,.0f} B" if len(set(network.tuple_bytes)) == 1 else (
        f"{network.tuple_bytes[LEFT]:,.0f} and {network.tuple_bytes[RIGHT]:,.0f} B"
    )  # fmt: skip
    pairs = f"{network.pairs_per_s:,.0f} pairs/s expected, {network.pair_bytes:,.0f} B each" if network.pair_bytes else (
        f"{network.pairs_per_s:,.0f} pairs/s expected, which are counted only"
    )  # fmt: skip
    senders = "master to slaves" if config.gateway_count == 1 else f"{config.gateway_count} gateways"
    receivers = "to the collector" if config.sink_count == 1 else f"to {config.sink_count} sinks"
    return [
        ("input", f"{rates[LEFT]:,.0f} left and {rates[RIGHT]:,.0f} right tuples/s, {sizes} each on the way"),
        (senders, f"{size_text(sum(each))}/s{most}; reports back {size_text(network.to_master)}/s"),
        (receivers, f"{size_text(network.to_collector)}/s; {pairs}"),
    ]


def _delay_rows(outcome: Outcome) -> list[tuple[str, str]]:
    busiest = f"the busiest is: {outcome.resource}, {100 * outcome.utilisation:.0f} % of its time"
    if not outcome.sustained:
        return [("production delay", f"grows: {outcome.rate_per_s:,.0f} tuples/s and stream are too many ({outcome.why})")]
    if outcome.delay_s is None:
        return [("production delay", f"no pairs; {busiest}")]
    text = ", ".join(f"{name} {duration_text(outcome.delay_s[name] * 1e6)}" for name in ("p50", "p99"))
    return [("production delay", f"{text} at {outcome.rate_per_s:,.0f} tuples/s and stream; {busiest}")]


def _saturation_text(found: SustainableRate) -> str:
    if found.rate_per_s == 0:
        return f"below {found.above_per_s or 0:,.0f} tuples/s and stream: {found.resource}"
    return f"{found.rate_per_s:,.0f} tuples/s and stream at most; {found.resource} first"


def _target_text(target: Target, rate_per_s: float, delay_s: float | None, ranks: int | None) -> str:
    wish = f"{rate_per_s:,.0f} tuples/s and stream" if rate_per_s < 1e15 else f"{rate_per_s:.3g} tuples/s and stream"
    wish += "" if delay_s is None else f" with 99 % within {duration_text(delay_s * 1e6)}"
    if target.slaves is None:
        return f"{wish}: no number of slaves up to {target.tried} does; {target.why}"
    delay = target.outcome.delay_s if target.outcome else None
    has = "" if delay is None else f" (p99 {duration_text(delay['p99'] * 1e6)})"
    return f"{wish}: {target.slaves} slaves, -n {ranks}{has}"
