"""The command `plan`: memory rank by rank, network, delay and saturation of a run, before it is submitted.

What: `run_plan` and its table of memory.
Why: a script can ask, by the exit code, whether the windows fit, and how many slaves they need.
Stays out: parsing (`cli.main`), planning (`forecast.memory`), all but memory (`cli.plan_forecast`), plans of stages
(`cli.plan_stages`), what a process takes at its start (`diagnostics.startup_memory`).
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from swjoin.cli.common_args import given_ranks, in_process_or_ranks, one_or_two, size_of, with_role_counts
from swjoin.cli.gateways import fitted
from swjoin.cli.parser import positive
from swjoin.cli.plan_forecast import ForecastOptions
from swjoin.cli.plan_stages import StagesForecast, stages_excess, stages_lines
from swjoin.cli.summary import size_text, table_lines
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import slave_role
from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.resources import find_resource
from swjoin.forecast.input_profile import InputProfile, NotEstimableError
from swjoin.forecast.memory import MemoryEstimate, SlaveEstimate, plan_memory, to_plain
from swjoin.forecast.memory_report import job_profile, rank_bytes
from swjoin.frontends.configured import job_of

_MOST_LINES = 8  # slaves that are all shown


def _rates(text: str) -> tuple[float, float]:
    refusal = f"--rate {text}: write tuples per second of each stream, positive and finite, such as 5000 or 5000,200"
    return one_or_two(text, positive, refusal)


def _profile(args: argparse.Namespace, config: RunConfig) -> InputProfile:
    generated = config.left.path is None
    rates = None if args.rate is None else _rates(args.rate)
    if args.rate is not None and generated:
        raise UserError("--rate is for files; of generated streams set the rate with --set workload.rate=R")
    if args.rate is not None and config.query.unbounded:
        raise UserError(
            "--rate with a window without bounds: it grows without end; leave out --rate, and the files are measured"
        )
    if args.row is not None and generated:
        raise UserError("--row is for files; of generated streams set the payload with --set workload.payload=B")
    try:
        profile = job_profile(Job(config, None, False, None, None, "plan"), with_rates=rates is None)
    except NotEstimableError as error:
        raise UserError(str(error)) from None
    if rates is not None:
        profile = profile.at_rates(rates, config.query.bounds.retention_us)
    if args.row is not None:
        width = size_of(args.row, "--row")
        profile = dataclasses.replace(
            profile, fixed_bytes=(width, width), tail_bytes=(0.0, 0.0), origin=f"payload as given; {profile.origin}"
        )
    return profile


def _start_bytes(roles: list[str]) -> list[int | None]:
    """What processes in these roles take before the first tuple, measured on this machine."""
    from swjoin.diagnostics.startup_memory import measure

    alike = {"sink": "collector", "gateway": "master"}
    kinds = [alike.get(kind := role.split()[0].rstrip(","), kind) for role in roles]
    distinct = sorted(set(kinds))
    with ThreadPoolExecutor(len(distinct)) as pool:
        found = dict(zip(distinct, pool.map(measure, distinct), strict=True))
    return [found[kind] for kind in kinds]


def plan_json(plan: MemoryEstimate, roles: list[str], starts: list[int | None], config: RunConfig) -> dict[str, Any]:
    """What --json prints: the plan, and all of each rank."""
    grown = rank_bytes(plan, len(roles), config)
    ranks = {
        str(i): {
            "role": role,
            "start_bytes": start,
            "grows_by_bytes": round(more),
            "bytes": None if start is None else start + round(more),
        }
        for i, (role, start, more) in enumerate(zip(roles, starts, grown, strict=True))
    }
    return {**to_plain(plan), "ranks": ranks}


def _columns(start: int | None, parts: tuple[float, float, float, float], role: str) -> list[str]:
    total = sum(parts) + (start or 0)
    cells = [size_text(part) if part else "-" for part in ((start or 0), *parts)]
    return [role, "unknown" if start is None else cells[0], *cells[1:], size_text(total)]


def plan_lines(plan: MemoryEstimate, ranks: RankMap | None, starts: list[int | None], config: RunConfig) -> list[str]:
    """The table: a line for every rank, or of many slaves for the heaviest and the lightest."""

    def of(slave: SlaveEstimate) -> tuple[float, float, float, float]:
        return slave.block_bytes + slave.directory_bytes, slave.payload_bytes, slave.buffer_bytes, slave.other_bytes

    def others(gateways: int, sinks: int) -> tuple[float, float, float, float]:
        other = gateways * plan.master.other_bytes + sinks * plan.collector_bytes
        return 0.0, 0.0, gateways * plan.master.buffer_bytes, other

    gateways, sinks = config.gateway_count, config.sink_count
    table = [["", "at start", "windows", "payload", "buffers", "other", "in all"]]
    many = len(plan.slaves) > _MOST_LINES
    ordered = sorted(plan.slaves, key=lambda s: s.window_bytes)
    shown = [ordered[-1], ordered[0]] if many else list(plan.slaves)
    if ranks is None:
        parts = [others(gateways, sinks), *(of(s) for s in plan.slaves)]
        table += [_columns(0, of(s), f"thread of slave {s.slave}") for s in shown]
        writers = "thread of the collector" if sinks == 1 else f"threads of {sinks} sinks"
        readers = "thread of the master" if gateways == 1 else f"threads of {gateways} gateways"
        table += [_columns(0, others(gateways, 0), readers), _columns(0, others(0, sinks), writers)]
        sums = [sum(part[i] for part in parts) for i in range(4)]
        table.append(_columns(starts[0], (sums[0], sums[1], sums[2], sums[3]), "the process"))
    else:
        names = {shown[0].slave: " (heaviest)", shown[-1].slave: " (lightest)"} if many else {}
        slaves = {ranks.rank_of(slave_role(s.slave)): s for s in shown}
        for rank in [0, 1, *slaves, *(rank for rank in range(2, ranks.size) if ranks.slave_of(rank) is None)]:
            label, parts = f"{rank} {ranks.name_of(rank)}", [others(len(ranks.gateways_of(rank)), len(ranks.sinks_of(rank)))]
            if rank in slaves:
                label += names.get(slaves[rank].slave, "")
                parts.append(of(slaves[rank]))
            windows, payload, buffers, other = (sum(part[i] for part in parts) for i in range(4))
            table.append(_columns(starts[rank], (windows, payload, buffers, other), label))
    lines = [f"{'known from':<17} {plan.origin}", *table_lines(table)]
    heaviest = plan.heaviest
    lines.append(
        f"{'windows':<17} {size_text(heaviest.window_bytes)} on slave {heaviest.slave}, the heaviest, with "
        f"{heaviest.window_tuples:,.0f} tuples, {plan.at_s:,.1f} s after the start; "
        f"module.window allows {size_text(plan.limit_bytes)}"
    )
    needed = "no number of slaves" if plan.needed is None else f"{plan.needed:,} slave{'s' if plan.needed > 1 else ''}"
    lines.append(f"{'enough':<17} {needed}{' or more' if plan.needed else ''} within this limit")
    return lines + [f"{'note':<17} {note}" for note in plan.notes]


def excess(plan: MemoryEstimate) -> str:
    """What is wrong with a plan that does not fit, and how to mend it."""
    heaviest = plan.heaviest
    mend = (
        "one partition-group alone is too large for that; raise it, use more partition-groups, or a shorter window"
        if plan.needed is None
        else f"use {plan.needed:,} slaves or more, or raise it"
    )
    return (
        f"slave {heaviest.slave} will need {size_text(heaviest.window_bytes)} for its windows, module.window allows "
        f"{size_text(plan.limit_bytes)}; {mend}"
    )


def _plan_stages(forecast: StagesForecast, *, as_json: bool) -> int:
    plain = forecast.to_plain()
    print(json.dumps(plain, indent=2) if as_json else "\n".join(stages_lines(plain, forecast.origin)), flush=True)
    if not plain["fits"]:
        raise RunFailed(stages_excess(plain))
    return 0


def run_plan(args: argparse.Namespace) -> int:
    given_ranks(args)  # wrong numbers are told first
    path = find_resource(args.config)
    job = job_of(path, args.overrides, "plan")
    job, _ = fitted(dataclasses.replace(job, config=with_role_counts(job.config, args)))
    ranks, slaves = in_process_or_ranks(args, job.config)
    from swjoin.runtime.open import refuse_without_plan

    refuse_without_plan(job)
    if job.plan is not None:
        return _plan_stages(StagesForecast.of(args, job, path, slaves, ranks), as_json=args.json)
    config = job.config
    config.check_slaves(slaves)
    estimate_all_else = ForecastOptions.of(args)
    profile = _profile(args, config)
    plan = plan_memory(config, slaves, profile, in_process=ranks is None)
    roles = ["in-process"] if ranks is None else ranks.names
    starts = _start_bytes(roles)
    if not args.json:
        print("\n".join(plan_lines(plan, ranks, starts, config)), flush=True)
    estimate = estimate_all_else(config, slaves, profile, ranks)
    if args.json:
        plain = plan_json(plan, roles, starts, config)
        print(json.dumps({**plain, **estimate.plain, "notes": [*plain["notes"], *estimate.notes]}, indent=2))
    else:
        print("\n".join(estimate.lines()))
    sys.stdout.flush()
    if not plan.fits:
        raise RunFailed(excess(plan))
    return 0
