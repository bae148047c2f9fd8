"""What a plan says: throughput, delay, utilisation, and which resource saturates first.

What: `forecast(plan) -> dict`, `store` (simulation.json, run.json, metrics), `feed` (how far one master can feed).
Why: one resource limits a cluster; knowing which one tells what to buy or to change.
Stays out: running the plan (`forecast.model.run`), printing (`cli.simulate`).

Utilisation is the busy share of the time from the first read to the end. The master's CPU and its link are one chain, because
it sends blocking: together they cannot exceed 1, and the larger part gives the bottleneck its name. Where ranks share the cores
of one host, those are a resource of their own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.connectors.files.run_files import RUN_FILES, EventsFile, MetricsFile
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.storage import write_json
from swjoin.forecast.costs import CostModel
from swjoin.forecast.model.discrete_event import Usage
from swjoin.forecast.model.run import SimulatedRun, plan
from swjoin.runtime.run_report import build_report, check_ledger

SIMULATION_FILES = ("simulation.json", *RUN_FILES)  # that `store` writes


def _utilisation(foretold: SimulatedRun) -> dict[str, Any]:
    """Busy shares of all resources."""
    elapsed_us = max(1.0, foretold.end_us - foretold.begin_us)

    def share(used: Usage) -> float:
        return min(1.0, (used.cpu_us + used.link_us + used.slowed_us) / elapsed_us)  # work begun counts in full

    master, slaves = foretold.usage["master"], [share(u) for u in foretold.usage["slaves"]]
    out: dict[str, Any] = {
        "slaves": {"min": min(slaves), "mean": sum(slaves) / len(slaves), "max": max(slaves)},
        "master": share(master),
        "master_cpu": min(1.0, master.cpu_us / elapsed_us),
        "master_link": min(1.0, master.link_us / elapsed_us),
        "collector": share(foretold.usage["collector"]),
    }
    if foretold.cores.most:
        out["host"] = min(1.0, foretold.cores.busy_us / elapsed_us / foretold.cores.most)
    return out


def saturates_first(utilisation: dict[str, Any]) -> tuple[str, float]:
    """The most utilised resource, and its utilisation."""
    master = "master CPU" if utilisation["master_cpu"] >= utilisation["master_link"] else "master link"
    candidates = {
        "slaves": utilisation["slaves"]["max"],
        master: utilisation["master"],
        "collector": utilisation["collector"],
        "host": utilisation.get("host", 0.0),
    }
    name = max(candidates, key=lambda n: candidates[n])
    return name, candidates[name]


def forecast(foretold: SimulatedRun, command: str) -> dict[str, Any]:
    """The content of simulation.json: that of run.json, and what only a plan knows. RunFailed when its ledger does not
    balance."""
    config, elapsed_s = foretold.config, max(1e-6, (foretold.end_us - foretold.begin_us) / 1e6)
    job = Job(config, None, False, None, None, command)
    roles = ["master", "collector", *(f"slave {i}" for i in range(foretold.slave_count))]
    report = build_report(
        job,
        master=foretold.master.summary(),
        slaves=[s.summary() for s in foretold.slaves],
        collector=foretold.collector.summary(),
        ranks=[{"rank": i, "host": "simulated", "role": role, "peak_rss_bytes": 0} for i, role in enumerate(roles)],
        wall_s=elapsed_s,
        join_s=elapsed_s,
    )
    if foretold.complete:
        check_ledger(report)
    utilisation = _utilisation(foretold)
    name, most = saturates_first(utilisation)
    joined = sum(report["joined"].values())
    duration_s = config.workload.duration_us / 1e6
    behind_s = elapsed_s - duration_s
    report |= {
        "simulated": True,
        "complete": foretold.complete,
        "costs": dataclasses.asdict(foretold.costs),
        "slaves": foretold.slave_count,
        "joined_tuples_per_s": joined / elapsed_s,
        "utilisation": utilisation,
        "saturates_first": {"resource": name, "utilisation": most},
        "results_bytes_per_s": foretold.results_bytes / elapsed_s,
        "epoch_s": elapsed_s / max(1, report["epochs"]),
        "steps": foretold.steps,
    }
    if config.pace == "realtime":
        slack_s = 2 * config.cluster.distribution_epoch_us / 1e6 + 0.02 * duration_s
        report["keeps_up"] = foretold.complete and behind_s <= slack_s
        report["behind_s"] = max(0.0, behind_s)
        report["largest_rate_per_s"] = joined / elapsed_s / most / 2
    owners = len(set(foretold.master.controller.map.owner.tolist()))
    report["notes"] = []
    if config.cluster.partition_count < foretold.slave_count:
        report["notes"].append(
            f"{config.cluster.partition_count} partition-groups keep {owners} of {foretold.slave_count} slaves busy at most; "
            f"set cluster.partition_count to many more than slaves, such as {min(65536, 15 * foretold.slave_count)}"
        )
    return report


def store(report: dict[str, Any], foretold: SimulatedRun, run_dir: Path) -> None:
    """simulation.json, the same as run.json for what reads runs, and the metrics of slaves and events."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        metrics, events = MetricsFile(run_dir), EventsFile(run_dir)
        metrics.add([(0, row) for row in foretold.metrics])
        metrics.close()
        for event in foretold.events:
            events.add(event)
        events.close()
        write_json(run_dir / "simulation.json", report)
        write_json(run_dir / "run.json", report)
    except OSError as error:
        raise UserError(f"--out {run_dir}: cannot be written ({error.strerror})") from None


def feed(
    config: RunConfig, most_slaves: int, costs: CostModel, host_cores: int
) -> Iterator[tuple[int, dict[str, Any] | RunFailed]]:
    """How far one master can feed: forecasts in asap pace for 1, 2, 4, ... up to `most_slaves` slaves; or why a run fails."""
    config = dataclasses.replace(config, pace="asap", time=dataclasses.replace(config.time, model="event"))
    count = 1
    while True:
        try:
            yield count, forecast(plan(config, count, costs, host_cores=host_cores), "swjoin simulate --search")
        except RunFailed as error:  # the windows of few slaves may be too small
            yield count, error
        if count == most_slaves:
            return
        count = min(2 * count, most_slaves)


def fed(reports: list[dict[str, Any]]) -> str:
    """One sentence on the forecasts of `feed`."""
    if not reports:
        return "none of these runs would succeed"
    last = reports[-1]
    held = [r for r in reports if r["saturates_first"]["resource"] not in ("slaves", "host")]
    if not held:
        return f"one master feeds all {last['slaves']:,} slaves: they saturate first"
    best = max(r["input_tuples_per_s"] for r in reports)
    first = held[0]
    return (
        f"one master feeds fewer than {first['slaves']:,} slaves: from there on the {first['saturates_first']['resource']} "
        f"saturates first, at {best:,.0f} input tuples/s"
    )


def streams(report: dict[str, Any]) -> str:
    """Tuples of both streams."""
    return ", ".join(f"{report['input'][name]['tuples']:,} {name}" for name in STREAM_NAMES)
