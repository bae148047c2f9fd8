"""`swjoin simulate` and `swjoin calibrate`: the forecast of a run, and the costs that it uses.

What: `run_simulate`, `run_calibrate`, and their tables.
Why: `cli.run` is about runs.
Stays out: parsing (`cli.main`), the plan (`forecast.model.run`), measuring (`forecast.calibrate.roles`).
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from pathlib import Path
from typing import Any

from swjoin.cli.common_args import check_slave_count, duration_of, given_ranks
from swjoin.cli.plan_stages import capacity_of, configured_rates
from swjoin.cli.summary import size_text
from swjoin.cluster.ranks import RankMap
from swjoin.config.run import RunConfig
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.resources import find_resource
from swjoin.forecast.costs import CostModel
from swjoin.forecast.stages import Capacity
from swjoin.frontends.configured import job_of

_LOG = logging.getLogger(__name__)


def _percent(value: float) -> str:
    return f"{100 * value:.1f} %"


def _spread_text(shares: dict[str, float]) -> str:
    return f"busy {_percent(shares['min'])} (least), {_percent(shares['mean'])} (mean), {_percent(shares['max'])} (most)"


def _busy_text(used: dict[str, Any], role: str, busy: float) -> str:
    return f"busy {_percent(busy)}: CPU {_percent(used[f'{role}_cpu'])}, link {_percent(used[f'{role}_link'])}"


def forecast_rows(report: dict[str, Any]) -> list[tuple[str, str]]:
    """(name, value) lines of a forecast."""
    from swjoin.forecast.summary import streams

    used, first = report["utilisation"], report["saturates_first"]
    further = "".join(
        f", {len(report.get(name, ())):,} {name}" for name in ("gateways", "sinks") if len(report.get(name, ())) > 1
    )
    rows = [
        (
            "simulated",
            f"{report['slaves']:,} slaves{further}, costs {report['costs']['name']}, pace {report['config']['pace']}",
        ),
        ("input", f"{streams(report)} tuples"),
        ("pairs", f"{report['results']['count']:,} expected"),
        ("time", f"{report['join_s']:,.2f} s of virtual time, {report['epochs']:,} distribution epochs"),
        ("throughput", f"{report['input_tuples_per_s']:,.0f} input tuples/s"),
    ]
    delay = report["delay_s"]
    if delay["mean"] is not None:
        text = ", ".join(f"{name} {delay[name] * 1e3:,.1f} ms" for name in ("mean", "p50", "p99", "max"))
        rows.append(("production delay", text))
    for stage in report.get("stages", ()):
        counts = [f"{rows:,} {port}" for port, rows in stage["received"].items()]
        text = f"busy {_percent(stage['utilisation'])}: {' and '.join(counts)} rows, {stage['produced']:,} out"
        rows.append((f"stage {stage['join']}", text))
    for edge in report.get("edges", ()):
        text = f"{edge['rows']:,} rows, {size_text(edge['bytes_per_s'])}/s"
        rows.append((f"edge {edge['edge']}", f"{edge['from']} to {edge['to']}, {edge['port']}: {text}"))
    rows += [("slaves", _spread_text(used["slaves"])), ("master", _busy_text(used, "master", used["master"]))]
    if "gateways" in used:
        rows.append(("gateways", _spread_text(used["gateways"])))
        rows.append(("busiest gateway", _busy_text(used, "gateway", used["gateways"]["max"])))
    rows.append(("collector" if len(report.get("sinks", ())) < 2 else "busiest sink", f"busy {_percent(used['collector'])}"))
    if "host" in used:
        rows.append(("host's cores", f"busy {_percent(used['host'])}"))
    rows.append(("saturates first", f"{first['resource']}, at {_percent(first['utilisation'])}"))
    if "causes" in report:
        shares = (f"{name} {_percent(share)}" for name, share in report["causes"].items())
        rows.append(("gateways, slaves", ", ".join(shares)))
    if report.get("saturation_tuples_per_s") is not None:
        text = f"{report['saturation_tuples_per_s']:,.0f} tuples/s of all sources, with as many more keys, are sustained"
        rows.append(("saturation", text))
    elif "keeps_up" in report:
        kept = "keeps up" if report["keeps_up"] else f"falls behind: {report['behind_s']:,.1f} s at the end"
        rows.append(
            ("rate", f"{kept}; about {report['largest_rate_per_s']:,.0f} tuples/s and stream at most, if a tuple costs no more")
        )
    if report["moves"] or len(report["declustering"]) > 1:
        counts = [entry["active_slaves"] for entry in report["declustering"]]
        rows.append(
            ("adaptation", f"{report['moves']:,} moves, active slaves {min(counts)} to {max(counts)}, {counts[-1]} at the end")
        )
    if not report["complete"]:
        rows.append(("ended early", "after twice the duration, or by --limit; figures are of the part that was simulated"))
    return rows + [("note", note) for note in report["notes"]]


def _print_rows(rows: list[tuple[str, str]]) -> None:
    for name, value in rows:
        print(f"{name:<17} {value}", flush=True)


def _limit_us(config: RunConfig) -> float:
    """Where a real-time run that falls behind is given up: at twice its duration."""
    if config.pace == "asap":
        return float("inf")
    return 2.0 * config.workload.duration_us + 4.0 * config.cluster.distribution_epoch_us


def run_simulate(args: argparse.Namespace) -> int:
    from swjoin.connectors.output_paths import refuse_files, refuse_run
    from swjoin.forecast.costs import load_costs, with_changes
    from swjoin.forecast.model.run import simulate
    from swjoin.forecast.summary import SIMULATION_FILES, forecast, store

    if args.out is not None:
        started = refuse_run(Path(args.out), "--out", simulated=True)
        if not started:
            refuse_files(Path(args.out), SIMULATION_FILES)
    if args.ranks is None:
        check_slave_count(f"--slaves {args.slaves}", args.slaves)
    else:
        given_ranks(args)
    if args.host_cores < 0:
        raise UserError(f"--host-cores {args.host_cores}: must not be negative (0: a core for every rank)")
    limit_us = None if args.limit is None else float(duration_of(args.limit, "--limit"))
    if limit_us is not None and limit_us <= 0:
        raise UserError(f"--limit {args.limit}: must be above 0")
    costs = with_changes(load_costs(args.costs), args.changes)
    path = find_resource(args.config)
    job = job_of(path, args.overrides, "simulate")
    config = job.config
    ranks = None if args.ranks is None else RankMap.of(config, args.ranks)
    slave_count = args.slaves if ranks is None else ranks.slave_ranks
    from swjoin.runtime.open import refuse_without_plan

    refuse_without_plan(job)
    if job.plan is not None:
        profiles = [Path(profile) for profile in args.profiles]
        capacity = capacity_of(job, path, slave_count, costs, args.host_cores, ranks, profiles)
        rates = configured_rates(job, capacity.profile.rates) if profiles else None
        return _simulate_plan(args, capacity, rates)
    for option, wrong in (("--profile", args.profiles), ("--saturate", args.saturate), ("--balance", args.balance)):
        if wrong:
            raise UserError(f"{option}: of queries alone; the costs of a join of two streams are those of --costs")
    if config.measure.prefill_us:
        raise UserError("simulate plays no history; leave out measure.prefill (--set measure.prefill=0)")
    if config.query.how != "inner" or config.query.match != "all" or config.query.where is not None:
        raise UserError(f"{args.config}: inner joins by keys and times are modelled; leave join.how, match and where out")
    if args.search:
        return _search(config, slave_count, costs, args.host_cores)
    limit_us = _limit_us(config) if limit_us is None else limit_us
    run = simulate(config, slave_count, costs, host_cores=args.host_cores, limit_us=limit_us, ranks=ranks)
    report = forecast(run, " ".join(["swjoin", *sys.argv[1:]]))
    _print_rows(forecast_rows(report))
    if args.out is not None:
        store(report, run, Path(args.out))
        print(f"{'simulation':<17} {args.out}")
    return 0


def _search(config: RunConfig, most_slaves: int, costs: CostModel, host_cores: int) -> int:
    from swjoin.forecast.summary import fed, feed

    reports = []
    feeder = "master CPU" if config.gateway_count == 1 else "gateway CPU"
    print(
        f"{'slaves':>7} {'input tuples/s':>16} {'slaves busy':>12} {feeder:>11} {'link':>7} {'collector':>10}  saturates first"
    )
    for slaves, report in feed(config, most_slaves, costs, host_cores):
        if isinstance(report, RunFailed):
            print(f"{slaves:>7,}  fails: {report}", flush=True)
            continue
        used = report["utilisation"]
        cpu, link = (used.get(f"gateway_{what}", used[f"master_{what}"]) for what in ("cpu", "link"))
        print(
            f"{slaves:>7,} {report['input_tuples_per_s']:>16,.0f} {_percent(used['slaves']['max']):>12} "
            f"{_percent(cpu):>11} {_percent(link):>7} {_percent(used['collector']):>10}  "
            f"{report['saturates_first']['resource']}",
            flush=True,
        )
        reports.append(report)
    print(fed(reports))
    return 0


def _simulate_plan(args: argparse.Namespace, capacity: Capacity, rates: dict[str, float] | None) -> int:
    """rates: of the sources; None: those of the measured run."""
    from swjoin.forecast.summary import forecast_plan, saturated, simulate_plan, store

    for option, given in (("--search", args.search), ("--limit", args.limit is not None)):
        if given:
            raise UserError(f"{option}: not of a run of a plan; leave it out")
    if args.balance and not args.saturate:
        raise UserError("--balance: finds the gateways of the highest rate; give --saturate too")
    command = " ".join(["swjoin", *sys.argv[1:]])
    if args.saturate:
        report, run = saturated(capacity, command, balance=args.balance)
    else:
        run = simulate_plan(capacity, rates)
        report = forecast_plan(capacity, command, rates, run)
    _print_rows(forecast_rows(report))
    if args.out is not None:
        store(report, run, Path(args.out))
        print(f"{'simulation':<17} {args.out}")
    return 0


def run_calibrate(args: argparse.Namespace) -> int:
    from swjoin.connectors.output_paths import refuse_foreign
    from swjoin.forecast.calibrate.roles import calibrate
    from swjoin.forecast.costs import is_costs, save_costs

    if args.out is not None:
        refuse_foreign(Path(args.out), "-o", "file of costs", is_costs)
    costs, fits = calibrate(quick=args.quick, progress=_LOG.info)
    for name, value in dataclasses.asdict(costs).items():
        print(f"{name:<22} {value if isinstance(value, str) else f'{value:,.4g}'}")
    for line in fits:
        print(line)
    if args.out is not None:
        save_costs(costs, Path(args.out))
        print(f"{'written':<22} {args.out}")
    return 0
