"""What a run foretold of its memory and what it took: `memory` in run.json.

What: `job_profile`, `estimate_memory` (the plan of a job, or why there is none), `add_plan`.
Why: a plan is worth what it is compared with; and windows that do not return to nothing are a leak, whatever the answer was.
Stays out: what was taken (`runtime.run_report`), planning (`forecast.memory`), counting (the roles), printing (`cli`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from swjoin.config.job import Job
from swjoin.core.errors import SwjoinError
from swjoin.runtime.open import open_job_sources

if TYPE_CHECKING:
    from swjoin.forecast.input_profile import InputProfile
    from swjoin.forecast.memory import MemoryEstimate


def job_profile(job: Job, *, with_rates: bool = True) -> InputProfile:
    """What will come in. with_rates: from files' metadata. UserError when it cannot be known, or files cannot be read."""
    from swjoin.forecast.input_profile import NotEstimableError, file_profile, workload_profile

    if job.config.query.last is not None:
        raise NotEstimableError(
            "plan: count windows are not foreseen; they hold as many tuples of each stream as join.last says"
        )
    if job.config.live:
        mend = "put rate, duration and payload into a workload section, without left and right"
        raise NotEstimableError(f"plan: what live streams will bring is not known; {mend}")
    if job.config.left.path is None:
        return workload_profile(job.config)
    return file_profile(job.config, with_rates=with_rates, open_sources=lambda: open_job_sources(job))


def estimate_memory(job: Job, slave_count: int, *, in_process: bool = False) -> MemoryEstimate | str:
    """The plan of a job, or why there is none. Never an error: a run is not to be lost for want of a plan."""
    from swjoin.forecast.memory import plan_memory

    try:
        return plan_memory(job.config.fitted_to(slave_count), slave_count, job_profile(job), in_process=in_process)
    except SwjoinError as error:
        return str(error)
    except Exception as error:  # an input that the run could read, but whose metadata are odd
        return f"{type(error).__name__}: {error}"


def add_plan(report: dict[str, Any], job: Job) -> None:
    """Put what was to be expected beside what was taken. What ranks had when they started is theirs, the rest is foretold."""
    memory = report["memory"]
    plan = estimate_memory(job, len(memory["slaves"]), in_process=len(memory["ranks"]) == 1)
    if isinstance(plan, str):
        memory["unforeseen"] = plan
        return
    memory["unforeseen"] = None
    for slave in plan.slaves:
        found = memory["slaves"][slave.slave]
        found["window"]["predicted"] = round(slave.window_bytes)
        found["blocks"]["predicted"] = round(slave.block_bytes)
        found["payload"]["predicted"] = round(slave.payload_bytes)
        found["buffer"]["predicted"] = round(slave.buffer_bytes)
    memory["master"]["buffer"]["predicted"] = round(plan.master.buffer_bytes)
    for rank, grown in zip(memory["ranks"].values(), rank_bytes(plan, len(memory["ranks"])), strict=True):
        if rank["start"] is not None:
            rank["predicted"] = rank["start"] + round(grown)


def rank_bytes(plan: MemoryEstimate, rank_count: int) -> list[float]:
    """By how much each rank grows: master, collector, slaves; or all in one process. Slaves that rest grow by nothing."""
    slaves = [s.nbytes for s in plan.slaves]
    if rank_count == 1:
        return [plan.master.nbytes + plan.collector_bytes + sum(slaves)]
    parts = [plan.master.nbytes, plan.collector_bytes, *slaves]
    return parts + [0.0] * (rank_count - len(parts))
