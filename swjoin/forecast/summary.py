"""Results of a modelled run: throughput, delay, utilisation, and the resource that saturates first.

What: `forecast(run) -> dict`; of a plan of several stages `simulate_plan`, `forecast_plan`, and `saturated`, at the highest
rate; `store` (simulation.json, run.json, metrics), `feed` (how many slaves the gateways can feed).
Why: one resource limits a cluster; its name says what to buy or to change.
Stays out: running the model (`forecast.model.run`), printing (`cli.simulate`).

Utilisation is the busy share of the time from the first read to the end, of a role; what saturates first is a rank with all of
its roles, named after the busiest of them. A gateway's CPU and its link are one resource, because its sends block: together
they cannot exceed 1, and the bottleneck is named after the larger part. Master and one gateway, which share a rank, are one
resource. Where ranks share the cores of one host, these are a resource of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cluster.ranks import FIRST_SLAVE
from swjoin.cluster.role import MASTER, gateway_role, sink_role, slave_role
from swjoin.config.job import Job
from swjoin.config.run import RunConfig, to_plain
from swjoin.connectors.files.run_files import RUN_FILES, EventsFile, MetricsFile
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import write_json
from swjoin.forecast.costs import CostModel
from swjoin.forecast.model.discrete_event import Usage
from swjoin.forecast.model.run import SimulatedRun, simulate
from swjoin.forecast.model.stages import PlanSimulation
from swjoin.forecast.stages import SAME_DATA, Capacity
from swjoin.monitor.sustainability import GROWTH, growth
from swjoin.runtime.run_report import RunOutcome, build_report, check_ledger, input_names

SIMULATION_FILES = ("simulation.json", *RUN_FILES)  # written by `store`
LEAST_EPOCHS = 40  # of a plan at given rates
SATURATED = 0.99  # of the rate at which some resource has no time left
LEAST_FACTOR = 1e-6  # of the measured rates


def _spread(shares: list[float]) -> dict[str, float]:
    return {"min": min(shares), "mean": sum(shares) / len(shares), "max": max(shares)}


def _cpu_or_link(kind: str, used: Usage) -> str:
    return f"{kind} {'CPU' if used.cpu_us >= used.link_us else 'link'}"


def _utilisation(run: SimulatedRun) -> tuple[dict[str, Any], dict[str, float]]:
    """Utilisation of all roles, and of the busiest rank of every kind by what its busiest role is short of. Master and one
    gateway, which share a rank, are one resource."""
    elapsed_us = max(1.0, run.end_us - run.begin_us)
    usage = run.usage
    several = len(run.gateways) > 1

    def share(busy_us: float) -> float:
        return min(1.0, busy_us / elapsed_us)  # unfinished work counts in full

    gateways = [usage.of_roles[gateway_role(number)] for number in range(len(run.gateways))]
    sinks = [usage.of_roles[sink_role(number)] for number in range(len(run.sinks))]
    slaves = [usage.of_roles[slave_role(number)] for number in range(run.slave_count)]
    master = usage.of_roles[MASTER] if several else usage.of_roles[MASTER] + gateways[0]
    out: dict[str, Any] = {
        "slaves": _spread([share(used.busy_us) for used in slaves]),
        "master": share(master.busy_us),
        "master_cpu": share(master.cpu_us),
        "master_link": share(master.link_us),
        "collector": max(share(used.busy_us) for used in sinks),
    }
    names = {id(used): "slaves" for used in slaves} | {id(used): "sinks" if len(sinks) > 1 else "collector" for used in sinks}
    names |= {id(usage.of_roles[MASTER]): _cpu_or_link("master", master)}
    if several:
        busiest = max(gateways, key=lambda used: used.busy_us)
        out["gateways"] = _spread([share(used.busy_us) for used in gateways])
        out |= {"gateway_cpu": share(busiest.cpu_us), "gateway_link": share(busiest.link_us)}
    names |= {id(used): _cpu_or_link("gateway" if several else "master", used if several else master) for used in gateways}
    candidates = dict.fromkeys(names.values(), 0.0)
    for roles in usage.by_rank():
        name = names[id(max(roles, key=lambda used: used.busy_us))]
        candidates[name] = max(candidates[name], share(sum(used.busy_us for used in roles)))
    if usage.cores.most:
        out["host"] = candidates["host"] = share(usage.cores.busy_us / usage.cores.most)
    return out, candidates


def _most(candidates: dict[str, float]) -> tuple[str, float]:
    """The most utilised resource, and its utilisation."""
    return max(candidates.items(), key=lambda item: item[1])


def forecast(run: SimulatedRun, command: str) -> dict[str, Any]:
    """The content of simulation.json: that of run.json, with figures that only a model has. RunFailed when the ledger does not
    balance."""
    config, elapsed_s = run.config, max(1e-6, (run.end_us - run.begin_us) / 1e6)
    job = Job(config, None, False, None, None, command)
    report = build_report(
        job,
        RunOutcome(
            master=run.master.summary(),
            gateways=[g.summary() for g in run.gateways],
            slaves=[s.summary() for s in run.slaves],
            sinks=[s.summary() for s in run.sinks],
            ranks=[
                {"rank": i, "host": "simulated", "role": role, "peak_rss_bytes": 0}
                for i, role in enumerate(run.usage.ranks.names)
            ],
            wall_s=elapsed_s,
            join_s=elapsed_s,
        ),
    )
    if run.complete:
        check_ledger(report)
    utilisation, candidates = _utilisation(run)
    name, most = _most(candidates)
    joined = sum(report["joined"].values())
    duration_s = config.workload.duration_us / 1e6
    behind_s = elapsed_s - duration_s
    report |= {
        "simulated": True,
        "complete": run.complete,
        "costs": dataclasses.asdict(run.costs),
        "slaves": run.slave_count,
        "joined_tuples_per_s": joined / elapsed_s,
        "utilisation": utilisation,
        "saturates_first": {"resource": name, "utilisation": most},
        "results_bytes_per_s": run.results_bytes / elapsed_s,
        "epoch_s": elapsed_s / max(1, report["epochs"]),
        "steps": run.steps,
    }
    if config.pace == "realtime":
        slack_s = 2 * config.cluster.distribution_epoch_us / 1e6 + 0.02 * duration_s
        report["keeps_up"] = run.complete and behind_s <= slack_s
        report["behind_s"] = max(0.0, behind_s)
        report["largest_rate_per_s"] = joined / elapsed_s / most / 2
    owners = len(set(run.master.controller.map.owner.tolist()))
    report["notes"] = []
    if config.cluster.partition_count < run.slave_count:
        report["notes"].append(
            f"{config.cluster.partition_count} partition-groups keep {owners} of {run.slave_count} slaves busy at most; "
            f"set cluster.partition_count to many more than slaves, such as {min(65536, 15 * run.slave_count)}"
        )
    return report


def _plan_utilisation(run: PlanSimulation, cpu: float) -> tuple[dict[str, Any], dict[str, float]]:
    """As `_utilisation`. cpu: share of a gateway's work that is not sending. The master's own work is left out."""
    elapsed_us = max(1.0, run.time.now_us)
    gateways, sinks = ([role.busy_us / elapsed_us for role in team.roles] for team in (run.gateway, run.collector))
    feeder = f"{'master' if len(gateways) == 1 else 'gateway'} {'CPU' if cpu >= 0.5 else 'link'}"
    sink = "collector" if len(sinks) == 1 else "sinks"
    of_rank = {id(rank): {feeder: 0.0, sink: 0.0, "slaves": 0.0} for rank in run.ranks}
    for kind, team in ((feeder, run.gateway), (sink, run.collector), *(("slaves", team) for team in run.stages)):
        for role in team.roles:
            of_rank[id(role.rank)][kind] += role.busy_us / elapsed_us
    candidates = {feeder: 0.0, sink: 0.0, "slaves": 0.0}
    for parts in of_rank.values():
        name, _ = _most(parts)
        candidates[name] = max(candidates[name], sum(parts.values()))
    used: dict[str, Any] = {
        "slaves": _spread([of_rank[id(rank)]["slaves"] for rank in run.ranks[FIRST_SLAVE:][: run.roles.slave_ranks]]),
        **{"master": gateways[0], "master_cpu": gateways[0] * cpu, "master_link": gateways[0] * (1 - cpu)},
        "collector": max(sinks),
    }
    if len(gateways) > 1:
        most = max(gateways)
        used |= {"gateways": _spread(gateways), "gateway_cpu": most * cpu, "gateway_link": most * (1 - cpu)}
    return used, candidates


def simulate_plan(capacity: Capacity, rates: Mapping[str, float] | None = None) -> PlanSimulation:
    """Run a plan of several stages in virtual time, for as long as the rows of the measured run span, but at least for
    `LEAST_EPOCHS`. rates: of the sources; None: those of the measured run."""
    epoch_s = capacity.profile.epoch_s(capacity.config, capacity.profile.rates if rates is None else rates)
    least = 1 if rates is None else LEAST_EPOCHS
    run = PlanSimulation(capacity, max(least, round(capacity.profile.span_s / epoch_s)), rates)
    run.run()
    return run


def forecast_plan(
    capacity: Capacity, command: str, rates: Mapping[str, float] | None = None, run: PlanSimulation | None = None
) -> dict[str, Any]:
    """The same of a plan of several stages. rates: as of `simulate_plan`. run: one that has been simulated at these rates."""
    profile, config, given = capacity.profile, capacity.config, rates
    rates = profile.rates if given is None else given
    flow, work, epoch_s = capacity.flow(rates), capacity.work(rates), profile.epoch_s(config, rates)
    run = simulate_plan(capacity, given) if run is None else run
    epochs = run.epochs
    elapsed_us = max(1.0, run.time.now_us)
    used, candidates = _plan_utilisation(run, work.gateway_cpu_s / work.gateway_s if work.gateway_s else 0.0)
    if run.cores.most:
        used["host"] = candidates["host"] = min(1.0, run.cores.busy_us / elapsed_us / run.cores.most)
    resource, most = _most(candidates)
    shared = {name: round(rate * epochs * epoch_s / config.gateway_count) for name, rate in rates.items()}
    whole_s, delays_s = epochs * epoch_s, np.array(run.delays_us) / 1e6
    quantiles = {"p50": 0.5, "p99": 0.99, "max": 1.0}
    report: dict[str, Any] = {
        "command": command,
        **{"simulated": True, "complete": True},
        "config": to_plain(config),
        "costs": dataclasses.asdict(capacity.costs),
        "slaves": capacity.width,
        "gateways": [{"gateway": n, "tuples": shared} for n in range(config.gateway_count)],
        "sinks": [{"sink": n, "count": round(flow.out[-1] * whole_s / config.sink_count)} for n in range(config.sink_count)],
        "input": {name: {"tuples": round(rate * whole_s)} for name, rate in rates.items()},
        "results": {"count": round(flow.out[-1] * whole_s)},
        "join_s": elapsed_us / 1e6,
        "input_tuples_per_s": flow.total * whole_s / elapsed_us * 1e6,
        "epochs": epochs,
        "delay_s": {"mean": float(delays_s.mean()), **{n: float(np.quantile(delays_s, q)) for n, q in quantiles.items()}},
        "utilisation": used,
        "causes": _causes(run, elapsed_us, 1e6 * epoch_s if config.pace == "realtime" else 0.0),
        "saturates_first": {"resource": resource, "utilisation": most},
        "stages": [
            {
                **{"stage": int(stage.stage.id), "join": stage.stage.name},
                "received": {name: round(rows * whole_s) for name, rows in zip(STREAM_NAMES, came, strict=True)},
                "produced": round(out * whole_s),
                "utilisation": sum(role.busy_us for role in team.roles) / elapsed_us / len(team.roles),
            }
            for stage, came, out, team in zip(profile.stages, flow.came, flow.out, run.stages, strict=True)
        ],
        "edges": [
            {
                **{"edge": int(edge.edge.id), "from": edge.sender, "to": edge.receiver, "port": edge.port},
                "rows": round(flow.edge_rows[edge.edge.id] * whole_s),
                "bytes_per_s": flow.edge_bytes[edge.edge.id] * whole_s / elapsed_us * 1e6,
            }
            for edge in profile.edges
        ],
        "moves": 0,
        "declustering": [{"time_s": 0.0, "active_slaves": sum(len(team.roles) for team in run.stages)}],
        "notes": [
            SAME_DATA,
            "delays are of whole distribution epochs, from their end at the gateway until the collector has them",
        ],
    }
    if config.pace == "realtime":
        behind_s = elapsed_us / 1e6 - whole_s
        report["measured"] = {"from_s": min(4 * epoch_s, whole_s / 2), "to_s": whole_s}
        later = slice(epochs // 2, None)
        ends_us, ones = np.arange(epochs)[later] * 1e6 * epoch_s, np.ones(epochs)[later]
        grows = growth(ends_us, 1e6 * delays_s[later], ones) >= GROWTH
        report |= {"behind_s": max(0.0, behind_s), "keeps_up": behind_s <= 2 * epoch_s + 0.02 * whole_s or not grows}
        report["largest_rate_per_s"] = capacity.saturation(rates)[0] * flow.total / len(rates)
    if config.reorganization.policy != "none" or config.checkpoint.enabled:
        report["notes"].append("moves of partition-groups and checkpoints are left out")
    return report


def saturated(capacity: Capacity, command: str, *, balance: bool = False) -> tuple[dict[str, Any], PlanSimulation]:
    """The forecast of a plan at the highest multiple of the measured rates that is sustained, with as many more keys: weak
    scaling, in realtime pace. The arithmetic of loads gives the multiple, and the simulation must keep up with it. balance:
    see `Capacity.balanced`. Nothing is sustained where messages and epochs alone take all of the time."""
    config = dataclasses.replace(capacity.config, pace="realtime")
    capacity = dataclasses.replace(capacity, config=config, keys_grow=True)
    capacity = capacity.balanced() if balance else capacity
    factor = SATURATED * capacity.saturation(capacity.profile.rates)[0]
    while True:
        rates = {name: rate * factor for name, rate in capacity.profile.rates.items()}
        run = simulate_plan(capacity, rates)
        report = forecast_plan(capacity, command, rates, run)
        if report["keeps_up"] or factor < LEAST_FACTOR:
            break
        factor *= SATURATED
    report["saturation_tuples_per_s"] = sum(rates.values()) if report["keeps_up"] else 0.0
    return report, run


def _causes(run: PlanSimulation, elapsed_us: float, slot_us: float) -> dict[str, float]:
    """Shares of the time of gateways and slaves in steady state, by what takes it."""
    roles = [role for team in (run.gateway, *run.stages) for role in team.roles]
    whole_us = max(slot_us, elapsed_us / run.epochs if not slot_us else 0.0) * (run.roles.slave_ranks + run.roles.gateways)
    inside, all_us = sum(role.operator_us for role in roles), sum(role.work_us for role in roles)
    shares = {"operators": inside / whole_us, "communication": (all_us - inside) / whole_us}
    return shares | {"idle": max(0.0, 1.0 - sum(shares.values()))}


def store(report: dict[str, Any], run: SimulatedRun | PlanSimulation, run_dir: Path) -> None:
    """Write simulation.json, run.json, the same for readers of runs, and the metrics of slaves; of a run without a plan also
    events."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        write_json(run_dir / "simulation.json", report)
        metrics = MetricsFile(run_dir)
        metrics.add([(0, row) for row in run.metrics])
        metrics.close()
        if isinstance(run, SimulatedRun):
            events = EventsFile(run_dir)
            for event in run.events:
                events.add(event)
            events.close()
        write_json(run_dir / "run.json", report)
    except OSError as error:
        raise UserError(f"--out {run_dir}: cannot be written ({error.strerror})") from None


def feed(
    config: RunConfig, most_slaves: int, costs: CostModel, host_cores: int
) -> Iterator[tuple[int, dict[str, Any] | RunFailed]]:
    """Forecasts in asap pace for 1, 2, 4, ... up to `most_slaves` slaves; or the error of a run that fails."""
    config = dataclasses.replace(config, pace="asap", time=dataclasses.replace(config.time, model="event"))
    count = 1
    while True:
        try:
            yield count, forecast(simulate(config, count, costs, host_cores=host_cores), "swjoin simulate --search")
        except RunFailed as error:  # the windows of few slaves may be too small
            yield count, error
        if count == most_slaves:
            return
        count = min(2 * count, most_slaves)


def fed(reports: list[dict[str, Any]]) -> str:
    """One sentence on the forecasts of `feed`: how many slaves the gateways can feed."""
    if not reports:
        return "none of these runs would succeed"
    last, gateways = reports[-1], len(reports[-1]["gateways"])
    feeders = "one master feeds" if gateways == 1 else f"{gateways:,} gateways feed"
    limited = [r for r in reports if r["saturates_first"]["resource"] not in ("slaves", "host")]
    if not limited:
        return f"{feeders} all {last['slaves']:,} slaves: they saturate first"
    best = max(r["input_tuples_per_s"] for r in reports)
    first = limited[0]
    return (
        f"{feeders} fewer than {first['slaves']:,} slaves: from there on the {first['saturates_first']['resource']} "
        f"saturates first, at {best:,.0f} input tuples/s"
    )


def streams(report: dict[str, Any]) -> str:
    """Text: tuples of all streams."""
    return ", ".join(f"{report['input'][name]['tuples']:,} {name}" for name in input_names(report))
