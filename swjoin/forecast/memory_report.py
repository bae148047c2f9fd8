"""The memory forecast of a job, and its comparison with the run: `memory` in run.json.

What: `job_profile`, `estimate_memory` (the estimate, or why there is none), `add_plan`.
Why: every run shows how accurate its forecast was.
Stays out: measured memory (`runtime.run_report`), the estimate (`forecast.memory`), printing (`cli`).

run.json calls the reason for a missing estimate `unforeseen`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import slave_role
from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.core.errors import SwjoinError
from swjoin.runtime.open import open_job_sources

if TYPE_CHECKING:
    from swjoin.forecast.input_profile import InputProfile
    from swjoin.forecast.memory import MemoryEstimate


def job_profile(job: Job, *, with_rates: bool = True) -> InputProfile:
    """The input profile of a job. with_rates: rates from files' metadata. UserError when it cannot be estimated or read."""
    from swjoin.forecast.input_profile import NotEstimableError, file_profile, workload_profile

    if job.plan is not None:
        raise NotEstimableError("plan: the memory of plans with several joins is not estimated yet")
    if job.config.query.last is not None:
        raise NotEstimableError(
            "plan: count windows are not estimated; they hold as many tuples of each stream as join.last says"
        )
    if job.config.live:
        mend = "put rate, duration and payload into a workload section, without left and right"
        raise NotEstimableError(f"plan: the rates of live streams are not known; {mend}")
    if job.config.left.path is None:
        return workload_profile(job.config)
    return file_profile(job.config, with_rates=with_rates, open_sources=lambda: open_job_sources(job, as_stored=True))


def estimate_memory(job: Job, slave_count: int, *, in_process: bool = False) -> MemoryEstimate | str:
    """The estimate of a job, or why there is none. Never raises: a run must not fail for want of an estimate."""
    from swjoin.forecast.memory import plan_memory

    try:
        return plan_memory(job.config.fitted_to(slave_count), slave_count, job_profile(job), in_process=in_process)
    except SwjoinError as error:
        return str(error)
    except Exception as error:  # readable input with unexpected metadata
        return f"{type(error).__name__}: {error}"


def add_plan(report: dict[str, Any], job: Job) -> None:
    """Add the estimates to a report. A rank's estimate is its measured memory at the start and the estimated growth."""
    memory = report["memory"]
    estimate = estimate_memory(job, len(memory["slaves"]), in_process=len(memory["ranks"]) == 1)
    if isinstance(estimate, str):
        memory["unforeseen"] = estimate
        return
    memory["unforeseen"] = None
    for slave in estimate.slaves:
        found = memory["slaves"][slave.slave]
        found["window"]["predicted"] = round(slave.window_bytes)
        found["blocks"]["predicted"] = round(slave.block_bytes)
        found["payload"]["predicted"] = round(slave.payload_bytes)
        found["buffer"]["predicted"] = round(slave.buffer_bytes)
    memory["master"]["buffer"]["predicted"] = round(estimate.master.buffer_bytes)
    for rank, growth in zip(memory["ranks"].values(), rank_bytes(estimate, len(memory["ranks"]), job.config), strict=True):
        if rank["start"] is not None:
            rank["predicted"] = rank["start"] + round(growth)


def rank_bytes(plan: MemoryEstimate, rank_count: int, config: RunConfig) -> list[float]:
    """Growth of each rank, or of the one process. Inactive slaves do not grow; every gateway grows as one alone would."""
    if rank_count == 1:
        others = config.gateway_count * plan.master.nbytes + config.sink_count * plan.collector_bytes
        return [others + sum(s.nbytes for s in plan.slaves)]
    ranks = RankMap.of(config, rank_count)
    found = [
        len(ranks.gateways_of(rank)) * plan.master.nbytes + len(ranks.sinks_of(rank)) * plan.collector_bytes
        for rank in range(rank_count)
    ]
    for slave in plan.slaves:
        found[ranks.rank_of(slave_role(slave.slave))] += slave.nbytes
    return found
