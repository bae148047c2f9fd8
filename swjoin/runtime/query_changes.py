"""Queries added to a run, and dropped from it, while it goes on.

What: `QueryChanges`, on the run's side: takes requests from the folder `DIR/queries`, and makes the job with which the run goes
on after a checkpoint; `request_change`, `queries_of`, on the other side.
Why: a request is a file, so anybody who may write in the run's folder can ask from any process or host that shares it, and a
run needs no endpoint. A change is a stop with a checkpoint and a resumption within the same processes, which every runtime
has: the queries that go on notice a pause, and nothing else.
Stays out: what becomes of the plan (`plan.changes`) and of the checkpoint (`checkpoint.changed_plan`), the loop of rounds
(`runtime.in_process`, `runtime.mpi.main`).
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from swjoin.checkpoint.changed_plan import change_plan, check_change, ended_sources, first_new_us, reads_more
from swjoin.checkpoint.store import CheckpointStore
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig, to_plain
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import SwjoinError, UserError, one_line
from swjoin.core.storage import write_whole
from swjoin.frontends.sql.planner import Table, plan_query
from swjoin.frontends.sql.tables import with_time
from swjoin.plan.changes import periods, with_queries, without_queries
from swjoin.plan.logical import LogicalPlan, Source
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.runtime.open import instances_of, sized

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_OPEN = "open.json"
_REQUEST, _ANSWER = ".request.json", ".answer.json"


@dataclass(frozen=True)
class _Request:
    """path: of its file. added: plans of queries, each alone. dropped: names."""

    path: Path
    added: Mapping[str, LogicalPlan]
    dropped: tuple[str, ...]

    @staticmethod
    def read(path: Path) -> _Request:
        """UserError when it is none."""
        try:
            plain = json.loads(path.read_bytes())
            added = {str(name): plan_from_plain(plan) for name, plan in plain["add"].items()}
            return _Request(path, added, tuple(map(str, plain["drop"])))
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: is no request ({one_line(error)})") from None

    def changed(self, plan: LogicalPlan, time_us: int, ended_sources: Collection[str]) -> LogicalPlan:
        """The run's plan with this change at a time. UserError when it cannot be made."""
        return with_queries(without_queries(plan, self.dropped, time_us, ended_sources), self.added, time_us)


def takes_changes(job: Job) -> bool:
    """Whether queries can be added to a job, and dropped: it has queries with names, and checkpoints."""
    return bool(job.queries) and job.checkpoints is not None and job.run_dir is not None and not job.config.measure.prefill_us


class QueryChanges:
    """The requests to a run, on the rank of its master. Use as a context manager: at its end requests are refused."""

    def __init__(self, job: Job, width: int) -> None:
        """width: slave ranks."""
        assert job.run_dir is not None
        self.job, self.width = job, width
        self._folder = job.run_dir / "queries"
        self._accepted: list[_Request] = []
        self._next_poll_s = 0.0
        self._events: list[tuple[str, str, int]] = []
        self._pause_began_s = 0.0  # on the monotonic clock

    def __enter__(self) -> QueryChanges:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        (self._folder / _OPEN).unlink(missing_ok=True)
        for path in self._waiting():
            _answer(path, {"error": "the run has ended"})
        if not any(self._folder.iterdir()):
            self._folder.rmdir()

    def _show(self) -> None:
        """Tell others what they may ask, and that they may."""
        plain = {"plan": self.job.plan, "config": to_plain(self.job.config)}
        write_whole(self._folder / _OPEN, json.dumps(plain).encode())

    def _waiting(self) -> list[Path]:
        return sorted(path for path in self._folder.glob(f"*{_REQUEST}") if not path.name.startswith("."))

    def wanted(self) -> bool:
        """Whether the run is to stop, since a change was asked for that can be made. What cannot be made is refused here."""
        if self._accepted:
            return True
        now = time.monotonic()
        if now < self._next_poll_s:
            return False
        self._next_poll_s = now + _POLL_S
        job = self.job
        for path in self._waiting():
            try:
                request = _Request.read(path)
                job = self._changed(job, request)
            except SwjoinError as error:
                _answer(path, {"error": error.text("keys")})
                continue
            self._accepted.append(request)
        self._pause_began_s = now
        return bool(self._accepted)

    def _changed(self, job: Job, request: _Request, time_us: int = 0, ended_sources: Collection[str] = ()) -> Job:
        """UserError when the change cannot be made, now or later."""
        assert job.plan is not None
        plan = request.changed(plan_from_plain(job.plan), time_us, ended_sources)
        found = sized(replace(job, plan=plan_to_plain(plan)), self.width)
        before, after = instances_of(job, self.width), instances_of(found, self.width)
        assert before is not None, "a plan"
        assert after is not None, "a plan"
        check_change(before, after)
        return found

    def apply(self) -> Job:
        """After the stop: change the newest checkpoint; returns the job that goes on from it."""
        path = self.job.checkpoints
        assert path is not None
        manifest = CheckpointStore(path, {}).newest()
        assert manifest is not None, "stopped without a checkpoint"
        before = instances_of(self.job, self.width)
        assert before is not None, "a plan"
        job, answers = self.job, []
        for request in self._accepted:
            job = self._changed(job, request)
        after = instances_of(job, self.width)
        assert after is not None, "a plan"
        time_us, job = first_new_us(manifest, widened=reads_more(before, after)), self.job
        ended = ended_sources(manifest, before)
        for request in self._accepted:
            job = self._changed(job, request, time_us, ended)
            answers.append((request.path, {"time_us": time_us}))
            self._events += [("query_added", name, time_us) for name in request.added]
            self._events += [("query_dropped", name, time_us) for name in request.dropped]
        after = instances_of(job, self.width)
        assert after is not None, "a plan"
        change_plan(manifest, before, after, job.plan or {})
        self._accepted = []
        self.job = job = replace(job, resumes=True)
        self._show()
        for path, answer in answers:
            _answer(path, answer)
        return job

    def log(self, log: Callable[[RunEvent], None], now_us: int, epoch: int) -> None:
        """Once the run goes on: the events of changes. log: takes an event."""
        pause_us = round((time.monotonic() - self._pause_began_s) * 1e6)
        for kind, name, time_us in self._events:
            log(RunEvent(now_us, epoch, kind, duration_us=pause_us, amount=time_us / 1e6, text=name))
        self._events = []


def _answer(request: Path, plain: Mapping[str, Any]) -> None:
    """Answer a request, which then is no more."""
    name = request.name.removesuffix(_REQUEST) + _ANSWER
    write_whole(request.with_name(name), json.dumps(plain).encode())
    request.unlink(missing_ok=True)


# ---------------------------------------------------------------- the other side


def _shown(run_dir: Path) -> tuple[LogicalPlan, RunConfig] | None:
    """The plan and the configuration of a run that takes changes."""
    path = run_dir / "queries" / _OPEN
    try:
        plain = json.loads(path.read_bytes())
        return plan_from_plain(plain["plan"]), config_from_plain(plain["config"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read ({one_line(error)})") from None


def _open_run(run_dir: Path) -> tuple[LogicalPlan, RunConfig]:
    found = _shown(run_dir)
    if found is None:
        if not os.path.isdir(run_dir):
            raise UserError(f"{run_dir}: is no directory of a run")
        problem = f"{run_dir}: no run goes on there that takes queries"
        raise UserError(problem, remedy="it needs queries: with names, and checkpoints")
    return found


def _tables(plan: LogicalPlan, config: RunConfig) -> dict[str, Table]:
    sources = [node for node in plan.nodes if isinstance(node, Source)]
    return {
        source.name: with_time(tuple(tuple(c) for c in source.columns), source.time or "", stream.time_unit, "")  # type: ignore[misc]
        for source, stream in zip(sources, config.inputs, strict=True)
    }


def request_change(
    run_dir: Path,
    added: Mapping[str, str],
    dropped: Sequence[str] = (),
    timeout_s: float | None = None,
    wait: Callable[[float], None] = time.sleep,
) -> int:
    """Ask a run for more queries, and for some no longer, at once; returns the time from which on, or before which, they have
    rows, in microseconds. added: texts by name. wait: sleeps. UserError when the run refuses it, or none goes on there, or does
    not answer in time."""
    plan, config = _open_run(run_dir)
    tables, plans = _tables(plan, config), dict[str, LogicalPlan]()
    for name, text in added.items():
        try:
            plans[name] = plan_query(text, tables, {}, config.cluster.routing).plan
        except UserError as error:
            raise error.prefixed(name) from None
    with_queries(without_queries(plan, dropped, 0), plans, 0)  # what is wrong with it is known at once
    plain = {"add": {name: plan_to_plain(query) for name, query in plans.items()}, "drop": list(dropped)}
    folder, base = run_dir / "queries", f"{time.time_ns()}-{os.getpid()}"
    answer = folder / f"{base}{_ANSWER}"
    write_whole(folder / f"{base}{_REQUEST}", json.dumps(plain).encode())
    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    while not answer.exists():
        if until_s is not None and time.monotonic() > until_s:
            raise UserError(f"{run_dir}: no answer in {timeout_s:g} s; does the run still go on? The request waits there")
        if not (folder / _OPEN).exists() and not answer.exists():
            raise UserError(f"{run_dir}: the run has ended before it took the request")
        wait(0.05)
    found = json.loads(answer.read_bytes())
    answer.unlink()
    if "error" in found:
        raise UserError(str(found["error"]))
    return int(found["time_us"])


def queries_of(run_dir: Path) -> list[tuple[str, int | None, int | None]]:
    """Of a run that goes on or has ended: its queries, and the times, in microseconds, from which on and before which each has
    rows; None: from its beginning, to its end. UserError when there is none."""
    found = _shown(run_dir)
    if found is None:
        from swjoin.config.job import load_job

        job = load_job(run_dir, [], "")
        plan = plan_from_plain(job.plan) if job.queries and job.plan is not None else None
        if plan is None:
            raise UserError(f"{run_dir}: its run has no queries with names")
    else:
        plan = found[0]
    return [(name, *period) for name, period in periods(plan).items()]
