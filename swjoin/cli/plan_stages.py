"""The command `plan` for an earlier run of a plan of several stages: rates, windows, loads and saturation at some width.

What: `StagesForecast`, lines and JSON; `capacity_of`, what `plan` and `simulate` read of the run; `configured_rates`.
Why: an earlier run tells selectivities and costs, so that no model of the data is needed.
Stays out: arithmetic (`forecast.stages`), runs without a plan (`cli.plan`, `cli.plan_forecast`), parsing (`cli.main`).
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from swjoin.cli.parser import positive
from swjoin.cli.plan_forecast import ForecastOptions
from swjoin.cli.summary import size_text, table_lines
from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.connectors.files.run_folder import read_report
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.errors import UserError
from swjoin.forecast.costs import PRESETS, CostModel
from swjoin.forecast.stages import SAME_DATA, Capacity, PlanProfile
from swjoin.plan.logical import spread_over, without_sizes
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.stages import Edge, Stage, cut
from swjoin.runtime.traffic_report import TRAFFIC_FILE, expected_crossing


def capacity_of(
    job: Job,
    path: Path,
    width: int,
    costs: CostModel,
    host_cores: int = 0,
    ranks: RankMap | None = None,
    profiles: Sequence[Path] = (),
) -> Capacity:
    """Of a run of a plan. path: that run, or a configuration of its query beside `profiles`, one run of it or two at different
    rates. ranks: as of `Capacity`. UserError when their reports tell too little."""
    assert job.plan is not None, "a run without a plan"
    if not profiles and path.is_file() and path.suffix != ".json":
        remedy = "run it, and give the run's directory; simulate also takes it as --profile"
        raise UserError(f"{path}: what a query costs is known from a run of it", remedy=remedy)
    if len(profiles) > 2:
        raise UserError(f"--profile {profiles[2]}: at most two runs are compared; leave it out")
    places = list(profiles) or [path]
    reports = [read_report(place) for place in places]
    cluster, plan, measured = job.config.cluster, without_sizes(plan_from_plain(job.plan)), []
    for place, report in zip(places, reports, strict=True):
        if "stages" not in report:
            raise UserError(f"{place}: the run tells no stages; give one that has ended")
        known = isinstance(report.get("plan"), dict)
        measured.append(plan_from_plain(report["plan"]) if known else plan)
        if not known or without_sizes(measured[-1]) != plan:
            raise UserError(f"--profile {place}: is a run of another query than that of {path}")
        if measured[-1] != measured[0]:
            remedy = "run both with the same routing"
            raise UserError(f"--profile {place}: its matrices have other sizes than those of {places[0]}", remedy=remedy)
    job.config.check_slaves(width)
    try:
        profile = PlanProfile.of(reports[0], cut(measured[0], cluster.strategy), *reports[1:])
    except UserError as error:
        raise error.prefixed(" and ".join(map(str, places))) from None
    of_size = spread_over(plan, width, cluster.partition_count, cluster.routing)
    profile = profile.resized(cut(of_size, cluster.strategy), PRESETS["modern"].slave_tuple_ns / 1e9)
    return Capacity(profile, job.config.fitted_to(width), width, costs, host_cores, ranks, sized=bool(profiles))


def configured_rates(job: Job, measured: Mapping[str, float]) -> dict[str, float]:
    """Tuples per second of every source: of a generated one by the configuration, of others as measured."""
    generated = any(stream.generate is not None for stream in job.config.inputs)
    return {name: job.config.workload.rate_per_s if generated else rate for name, rate in measured.items()}


def _rates(text: str | None, measured: dict[str, float]) -> dict[str, float]:
    """Tuples per second of every source. text: one number for all, or one for each."""
    if text is None:
        return measured
    try:
        found = [positive(part) for part in text.split(",")]
    except (ValueError, argparse.ArgumentTypeError):
        found = []
    if len(found) not in (1, len(measured)):
        names = ",".join(measured)
        raise UserError(f"--rate {text}: write tuples per second, positive and finite, of all sources, or of each: {names}")
    return dict(zip(measured, found * len(measured) if len(found) == 1 else found, strict=True))


@dataclass(frozen=True)
class StagesForecast:
    """A plan on slaves of this width at these rates per second. target_per_s: of each source. crossing: as of
    `runtime.traffic_report.expected_crossing`; none where the run has not counted what went between partition-groups. unknown:
    why there is none though it has."""

    capacity: Capacity
    rates: dict[str, float]
    origin: str
    target_per_s: float | None
    most_slaves: int
    crossing: Mapping[tuple[int, int], tuple[int, int, int]] = field(default_factory=dict)
    unknown: str = ""

    @staticmethod
    def of(args: argparse.Namespace, job: Job, path: Path, width: int, ranks: RankMap | None) -> StagesForecast:
        """ranks: None in one process. UserError for an option that says nothing of stages."""
        for option, given in (("--row", args.row), ("--target-delay", args.target_delay)):
            if given is not None:
                raise UserError(f"{option}: not of a run of a plan; leave it out")
        options = ForecastOptions.of(args)
        capacity = capacity_of(job, path, width, options.costs, options.host_cores, ranks)
        rates = _rates(args.rate, capacity.profile.rates)
        folder = path if path.is_dir() else path.parent
        found = StagesForecast(capacity, rates, str(path), args.target_rate, options.most)
        if not (folder / TRAFFIC_FILE).exists() or job.plan is None:
            return found
        try:
            instances = Instances.of(plan_from_plain(job.plan), capacity.config, width)
            return replace(found, crossing=expected_crossing(instances, str(folder)))
        except UserError as error:  # the other figures are as good without it
            return replace(found, unknown=f"what goes between ranks is not known: {error}")

    def _between_ranks(self, edge: Edge) -> dict[str, float] | None:
        """Shares of the bytes of an edge between stages that go between ranks: by number, and placed by the run's traffic."""
        ends = edge.sender, edge.receiver
        one, other = (end.id if isinstance(end, Stage) else -1 for end in ends)
        total, by_number, placed = self.crossing.get((one, other), (0, 0, 0))
        return {"by_number": by_number / total, "by_traffic": placed / total} if total else None

    def to_plain(self) -> dict[str, Any]:
        capacity, profile = self.capacity, self.capacity.profile
        flow = capacity.flow(self.rates)
        windows, stage_loads = capacity.window_bytes(flow), capacity.stage_loads(self.rates)
        factor, resource = capacity.saturation(self.rates)
        target = None
        if self.target_per_s is not None:
            slaves = capacity.least_width(dict.fromkeys(self.rates, self.target_per_s), self.most_slaves)
            target = {"rate_per_s": self.target_per_s, "slaves": slaves}
        return {
            "slaves": capacity.width,
            "costs": capacity.costs.name,
            "host_cores": capacity.host_cores,
            "rate_per_s": self.rates,
            "measured_rate_per_s": profile.rates,
            "window_limit_bytes": capacity.config.module.window_bytes,
            "partition_count": capacity.config.cluster.partition_count,
            "fits": max(windows) <= capacity.config.module.window_bytes,
            "stages": [
                {
                    "stage": int(stage.stage.id),
                    "join": stage.stage.name,
                    "instances": capacity.subclusters.counts[stage.stage.id],
                    "received_per_s": {"left": came[LEFT], "right": came[RIGHT]},
                    "produced_per_s": out,
                    "rows_out_per_row": out / sum(came) if sum(came) else 0.0,
                    "window_bytes": nbytes,
                    "bytes_per_kept_row": stage.bytes_per_kept_row,
                    "ns_per_row": stage.ns_per_row,
                    "load": load,
                }
                for stage, came, out, nbytes, load in zip(
                    profile.stages, flow.came, flow.out, windows, stage_loads, strict=True
                )
            ],
            "edges": [
                {
                    "edge": int(edge.edge.id),
                    "from": edge.sender,
                    "to": edge.receiver,
                    "port": edge.port,
                    "rows_per_s": flow.edge_rows[edge.edge.id],
                    "bytes_per_s": flow.edge_bytes[edge.edge.id],
                    "bytes_per_row": edge.bytes_per_row,
                    "rows_per_source_row": edge.rows_per_source_row,
                    "between_ranks": self._between_ranks(edge.edge),
                }
                for edge in profile.edges
            ],
            "loads": capacity.loads(self.rates),
            "saturation": {
                "resource": resource,
                "rate_per_s": {name: rate * factor for name, rate in self.rates.items()},
                "input_tuples_per_s": factor * flow.total,
                "busiest_stage": profile.stages[stage_loads.index(max(stage_loads))].stage.name,
            },
            "target": target,
            "strategy": capacity.config.cluster.strategy,
            "allocation": capacity.allocation(self.rates),
            "notes": [f"{SAME_DATA}; pairs grow with the product of both inputs' rates", *filter(None, [self.unknown])],
        }


def stages_lines(plain: dict[str, Any], origin: str) -> list[str]:
    """The tables of `StagesForecast.to_plain`."""
    rates, found = plain["rate_per_s"], plain["saturation"]
    lines = [f"{'known from':<17} {origin}"]
    lines.append(f"{'input':<17} {', '.join(f'{rate:,.0f} {name}' for name, rate in rates.items())} tuples/s")
    stages = [["stage", "instances", "left rows/s", "right rows/s", "rows/s out", "windows of one", "load", "ns a row"]]
    for stage in plain["stages"]:
        came = stage["received_per_s"]
        counts = [f"{rows:,.0f}" for rows in (came["left"], came["right"], stage["produced_per_s"])]
        costs = [size_text(stage["window_bytes"]), f"{100 * stage['load']:,.1f} %", f"{stage['ns_per_row']:,.0f}"]
        stages.append([stage["join"], str(stage["instances"]), *counts, *costs])
    edges = [["edge", "rows/s", "bytes/s", "bytes a row", "between ranks", "placed by traffic"]]
    for edge in plain["edges"]:
        sizes = [size_text(edge["bytes_per_s"]), f"{edge['bytes_per_row']:,.0f}"]
        shares = edge["between_ranks"]
        sizes += ["-", "-"] if shares is None else [f"{100 * share:.1f} %" for share in shares.values()]
        edges.append([f"{edge['from']} to {edge['to']}, {edge['port']}", f"{edge['rows_per_s']:,.0f}", *sizes])
    lines += [*table_lines(stages), *table_lines(edges)]
    lines.append(f"{'busy':<17} {', '.join(f'{name} {100 * load:,.1f} %' for name, load in plain['loads'].items())}")
    lines.append(
        f"{'saturation':<17} {found['input_tuples_per_s']:,.0f} input tuples/s at most; {found['resource']} first; slaves work "
        f"most in {found['busiest_stage']}"
    )
    if (target := plain["target"]) is not None:
        wish = f"{target['rate_per_s']:,.0f} tuples/s of each source"
        slaves = target["slaves"]
        lines.append(f"{'target':<17} {wish}: {'no number of slaves does' if slaves is None else f'{slaves} slaves'}")
    lines.append(f"{'strategy':<17} {_strategy_text(plain)}")
    shared = "a core for every rank" if plain["host_cores"] == 0 else f"{plain['host_cores']} cores for all ranks"
    lines.append(f"{'assumed':<17} costs {plain['costs']} of gateway, collector and messages, {shared}")
    return lines + [f"{'note':<17} {note}" for note in plain["notes"]]


def _strategy_text(plain: dict[str, Any]) -> str:
    """The strategy, and the ranks of each stage that the measured work asks for."""
    if plain["strategy"] == "query":
        return "query: every slave plays an instance of every stage"
    if not plain["allocation"]:
        return f"{plain['strategy']}: fewer slaves than stages, so every slave plays an instance of every stage"
    counts = ", ".join(map(str, plain["allocation"]))
    return f"{plain['strategy']}: slaves of the stages by measured work: cluster.instances: [{counts}]"


def stages_excess(plain: dict[str, Any]) -> str:
    """What is wrong with a plan whose windows do not fit, and how to mend it."""
    stage = max(plain["stages"], key=lambda stage: stage["window_bytes"])
    needed = math.ceil(stage["window_bytes"] * plain["slaves"] / plain["window_limit_bytes"])
    limit = size_text(plain["window_limit_bytes"])
    mend = (
        f"use about {needed:,} slaves, or raise it"
        if needed <= plain["partition_count"]
        else "shorten the windows, or raise it"
    )
    need = size_text(stage["window_bytes"])
    return f"an instance of {stage['join']} will need {need} for its windows, module.window allows {limit}; {mend}"
