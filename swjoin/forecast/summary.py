"""Results of a modelled run: throughput, delay, utilisation, and the resource that saturates first.

What: `forecast(run) -> dict`, `store` (simulation.json, run.json, metrics), `feed` (how many slaves one master can feed).
Why: one resource limits a cluster; its name says what to buy or to change.
Stays out: running the model (`forecast.model.run`), printing (`cli.simulate`).

Utilisation is the busy share of the time from the first read to the end. The master's CPU and its link are one resource,
because its sends block: together they cannot exceed 1, and the bottleneck is named after the larger part. Where ranks share
the cores of one host, these are a resource of their own.
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
from swjoin.forecast.model.run import SimulatedRun, simulate
from swjoin.runtime.run_report import RunOutcome, build_report, check_ledger

SIMULATION_FILES = ("simulation.json", *RUN_FILES)  # written by `store`


def _utilisation(run: SimulatedRun) -> dict[str, Any]:
    """Utilisation of all resources."""
    elapsed_us = max(1.0, run.end_us - run.begin_us)

    def share(used: Usage) -> float:
        return min(1.0, (used.cpu_us + used.link_us + used.slowed_us) / elapsed_us)  # unfinished work counts in full

    master, slaves = run.usage["master"], [share(u) for u in run.usage["slaves"]]
    out: dict[str, Any] = {
        "slaves": {"min": min(slaves), "mean": sum(slaves) / len(slaves), "max": max(slaves)},
        "master": share(master),
        "master_cpu": min(1.0, master.cpu_us / elapsed_us),
        "master_link": min(1.0, master.link_us / elapsed_us),
        "collector": share(run.usage["collector"]),
    }
    if run.cores.most:
        out["host"] = min(1.0, run.cores.busy_us / elapsed_us / run.cores.most)
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


def forecast(run: SimulatedRun, command: str) -> dict[str, Any]:
    """The content of simulation.json: that of run.json, with figures that only a model has. RunFailed when the ledger does not
    balance."""
    config, elapsed_s = run.config, max(1e-6, (run.end_us - run.begin_us) / 1e6)
    job = Job(config, None, False, None, None, command)
    roles = ["master", "collector", *(f"slave {i}" for i in range(run.slave_count))]
    report = build_report(
        job,
        RunOutcome(
            master=run.master.summary(),
            gateways=[run.gateway.summary()],
            slaves=[s.summary() for s in run.slaves],
            collector=run.collector.summary(),
            ranks=[{"rank": i, "host": "simulated", "role": role, "peak_rss_bytes": 0} for i, role in enumerate(roles)],
            wall_s=elapsed_s,
            join_s=elapsed_s,
        ),
    )
    if run.complete:
        check_ledger(report)
    utilisation = _utilisation(run)
    name, most = saturates_first(utilisation)
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


def store(report: dict[str, Any], run: SimulatedRun, run_dir: Path) -> None:
    """Write simulation.json, the same as run.json for readers of runs, and the metrics of slaves and events."""
    try:
        run_dir.mkdir(parents=True, exist_ok=True)
        metrics, events = MetricsFile(run_dir), EventsFile(run_dir)
        metrics.add([(0, row) for row in run.metrics])
        metrics.close()
        for event in run.events:
            events.add(event)
        events.close()
        write_json(run_dir / "simulation.json", report)
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
    """One sentence on the forecasts of `feed`: how many slaves one master can feed."""
    if not reports:
        return "none of these runs would succeed"
    last = reports[-1]
    limited = [r for r in reports if r["saturates_first"]["resource"] not in ("slaves", "host")]
    if not limited:
        return f"one master feeds all {last['slaves']:,} slaves: they saturate first"
    best = max(r["input_tuples_per_s"] for r in reports)
    first = limited[0]
    return (
        f"one master feeds fewer than {first['slaves']:,} slaves: from there on the {first['saturates_first']['resource']} "
        f"saturates first, at {best:,.0f} input tuples/s"
    )


def streams(report: dict[str, Any]) -> str:
    """Text: tuples of both streams."""
    return ", ".join(f"{report['input'][name]['tuples']:,} {name}" for name in STREAM_NAMES)
