"""Queries added to a run, and dropped from it, while it goes on.

What: `QueryChanges` takes requests from the folder `queries` of a run, and makes the job with which the run goes on after a
checkpoint.
Why: a change is a stop with a checkpoint and a resumption within the same processes, which every runtime has: the queries that
go on notice a pause, and nothing else.
Whether a change can be made is found in a thread of its own: planning thousands of queries takes seconds.
Stays out: who asks (`runtime.query_requests`), what becomes of the plan (`plan.changes`) and of the checkpoint
(`checkpoint.changed_plan`), the loop of rounds (`runtime.in_process`, `runtime.mpi.main`).
"""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

from swjoin.checkpoint.changed_plan import change_plan, check_change, ended_sources, time_of_change
from swjoin.checkpoint.store import CheckpointStore
from swjoin.cluster.instances import Instances
from swjoin.config.connectors import KafkaSinkConfig
from swjoin.config.job import Job
from swjoin.config.run import to_plain
from swjoin.core.data_messages import RunEvent
from swjoin.core.errors import SwjoinError, UserError, one_line
from swjoin.core.storage import locked, write_whole
from swjoin.plan.changes import with_queries, without_queries
from swjoin.plan.logical import LogicalPlan
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.runtime.flight_serving import Ports
from swjoin.runtime.open import instances_of, plan_output, sized

_LOG = logging.getLogger(__name__)
_POLL_S = 0.2
_FORGOTTEN_S = 60.0  # an answer that nobody has taken for so long
_LOCK = ".lock"
OPEN: Final = "open.json"  # in the folder `queries` while the run takes requests
REQUEST: Final = ".request.json"
ANSWER: Final = ".answer.json"


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
            added = {str(name): plan_from_plain(plan, keeps=False) for name, plan in plain["add"].items()}
            dropped = plain["drop"]
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{path}: is no request ({one_line(error)})") from None
        if not isinstance(dropped, list) or not all(isinstance(name, str) for name in dropped) or not (added or dropped):
            raise UserError(f"{path}: is no request (it adds and drops nothing)")
        return _Request(path, added, tuple(dropped))

    @property
    def events(self) -> list[tuple[str, str]]:
        """Kind and query of each."""
        return [("query_added", name) for name in self.added] + [("query_dropped", name) for name in self.dropped]

    def changed(self, plan: LogicalPlan, time_us: int, ended_sources: Collection[str]) -> LogicalPlan:
        """The run's plan with this change at a time. UserError when it cannot be made."""
        return with_queries(without_queries(plan, self.dropped, time_us, ended_sources), self.added, time_us)


def _check_topics(kafka: KafkaSinkConfig | None, request: _Request) -> None:
    """UserError without the topic of an added query, which would end the run that goes on with it."""
    if kafka is not None and request.added:
        from swjoin.connectors.kafka.sink import KafkaBroker

        broker = KafkaBroker(kafka)
        for name in request.added:
            broker.partitions_of(kafka.topic_of(name))


class QueryChanges:
    """The requests to a run, on the rank of its master. Use as a context manager: at its end requests are refused."""

    def __init__(self, job: Job, width: int) -> None:
        """width: slave ranks."""
        assert job.run_dir is not None
        self.job, self.width = job, width
        self._folder = job.run_dir / "queries"
        self._accepted: list[_Request] = []
        self._trial = job, width  # with the accepted changes at no time, and for so many ranks
        self._thread = ThreadPoolExecutor(1, "query-changes")  # planning thousands of queries takes seconds
        self._planning: Future[tuple[list[_Request], tuple[Job, int]]] | None = None
        self._answered = set[Path]()  # requests, also where they cannot be removed
        self._planned: list[tuple[object, int, Instances]] = []
        self._next_poll_s = 0.0
        self._ended = False
        self._events: list[tuple[str, str, int]] = []
        self._made: dict[Path, int] = {}  # requests in the newest checkpoint that may not be answered yet, and their times
        self._locked: TextIO | None = None
        self._pause_began_s = time.monotonic()

    def __enter__(self) -> QueryChanges:
        self._folder.mkdir(parents=True, exist_ok=True)
        refusal = f"{self._folder}: another process takes requests there; is the run still going on?"
        self._locked = locked(self._folder / _LOCK, refusal)  # before anything of a run that goes on is touched
        self._finish()
        self._show()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended = True
        self._thread.shutdown(cancel_futures=True)
        with contextlib.suppress(OSError):
            (self._folder / OPEN).unlink(missing_ok=True)
            for path in self._waiting():
                made = self._made.get(path)
                self._answer(path, {"error": "the run has ended"} if made is None else {"time_us": made})
            for path in self._folder.glob(f"*{ANSWER}"):
                if time.time() - path.stat().st_mtime > _FORGOTTEN_S:
                    path.unlink(missing_ok=True)
            (self._folder / _LOCK).unlink(missing_ok=True)
            if not any(self._folder.iterdir()):
                self._folder.rmdir()
        if self._locked is not None:
            self._locked.close()

    def _finish(self) -> None:
        """Answer the requests that a process had taken which died before it answered."""
        assert self.job.checkpoints is not None, "a run that takes changes"
        manifest = CheckpointStore(self.job.checkpoints, {}).newest() if self.job.resumes else None
        changes = {} if manifest is None else manifest.plain.get("changes", {})
        for path in self._waiting():
            if path.name in changes:
                change = changes[path.name]
                self._events += [(kind, name, change["time_us"]) for kind, name in change["events"]]
                self._answer(path, {"time_us": change["time_us"]})

    def _show(self) -> None:
        """Tell others what they may ask, and that they may."""
        plain = {"plan": self.job.plan, "config": to_plain(self.job.config)}
        write_whole(self._folder / OPEN, json.dumps(plain).encode())

    def _waiting(self) -> list[Path]:
        found = self._folder.glob(f"*{REQUEST}")
        return sorted(path for path in found if path not in self._answered and path.name[0] != "." and path.is_file())

    def _answer(self, request: Path, plain: Mapping[str, Any]) -> None:
        """Answer a request, which then is no more. What cannot be written does not end the run."""
        self._answered.add(request)
        try:
            write_whole(request.with_name(request.name.removesuffix(REQUEST) + ANSWER), json.dumps(plain).encode())
            request.unlink(missing_ok=True)
        except (OSError, SwjoinError) as error:
            _LOG.warning("%s: cannot be answered (%s)", request, one_line(error))

    def wanted(self) -> bool:
        """Whether the run is to stop, as a change was asked for that can be made. The run goes on while that is found out."""
        if self._accepted:
            return True
        now = time.monotonic()
        if self._planning is not None:
            if not self._planning.done():
                return False
            self._accepted, self._trial = self._planning.result()
            self._planning, self._pause_began_s = None, now
            return bool(self._accepted)
        if now >= self._next_poll_s:
            self._next_poll_s = now + _POLL_S
            if requests := self._waiting():
                self._planning = self._thread.submit(self._planned_on_trial, requests, self.job, self.width)
        return False

    def _planned_on_trial(self, paths: list[Path], job: Job, width: int) -> tuple[list[_Request], tuple[Job, int]]:
        """Requests that can be fulfilled, and the job with them for so many slave ranks; the others are refused."""
        accepted = list[_Request]()
        for path in paths:
            if self._ended:
                break
            try:
                request = _Request.read(path)
                changed = self._changed(job, width, request)
                _check_topics(job.config.sink.kafka, request)
            except SwjoinError as error:
                self._answer(path, {"error": error.text("keys")})
                continue
            accepted.append(request)
            job = changed
        return accepted, (job, width)

    def _changed(self, job: Job, width: int, request: _Request, time_us: int = 0, ended_sources: Collection[str] = ()) -> Job:
        """UserError when the change cannot be made, now or later."""
        assert job.plan is not None
        plan = request.changed(plan_from_plain(job.plan), time_us, ended_sources)
        found = sized(replace(job, plan=plan_to_plain(plan)), width)
        try:
            changed = self._instances(found, width)
            check_change(self._instances(job, width), changed)
        except UserError as error:
            raise error.prefixed(", ".join([*request.added, *request.dropped])) from None
        if job.config.sink.kind != "count":
            plan_output(changed)  # refuses names that columns of results cannot have
        return found

    def _with_accepted(self, time_us: int, ended_sources: Collection[str]) -> Job:
        job = self.job
        for request in self._accepted:
            job = self._changed(job, self.width, request, time_us, ended_sources)
        return job

    def _instances(self, job: Job, width: int) -> Instances:
        """Of a job's plan; those asked for last are kept, as planning thousands of queries takes seconds."""
        for plan, of_width, found in self._planned:
            if plan is job.plan and of_width == width:
                return found
        made = instances_of(job, width)
        assert made is not None, "a plan"
        self._planned = [*self._planned[-2:], (job.plan, width, made)]
        return made

    def apply(self, ports: Ports) -> Job:
        """After the stop: change the newest checkpoint; returns the job that goes on from it. ports: that the run keeps."""
        path = self.job.checkpoints
        assert path is not None
        manifest = CheckpointStore(path, {}).newest()
        assert manifest is not None, "stopped without a checkpoint"
        before = self._instances(self.job, self.width)
        trial, width = self._trial
        if width != self.width:  # ranks have gone since
            trial = self._with_accepted(0, ())
        time_us = time_of_change(manifest, before, self._instances(trial, self.width))
        job = self._with_accepted(time_us, ended_sources(manifest, before))
        made = {request.path.name: {"time_us": time_us, "events": request.events} for request in self._accepted}
        change_plan(manifest, before, self._instances(job, self.width), job.plan or {}, made)
        self._made = {request.path: time_us for request in self._accepted}
        observe = job.config.observe if ports.dashboard is None else replace(job.config.observe, port=ports.dashboard)
        config = replace(job.config, observe=observe)
        self.job = job = replace(job, resumes=True, config=config, flight_port=ports.flight)
        self._show()
        for request in self._accepted:
            self._events += [(kind, name, time_us) for kind, name in request.events]
            self._answer(request.path, {"time_us": time_us})
        self._accepted = []
        return job

    def log(self, log: Callable[[RunEvent], None], now_us: int, epoch: int) -> None:
        """Once the run goes on: the events of changes. log: takes an event."""
        pause_us = round((time.monotonic() - self._pause_began_s) * 1e6)
        for kind, name, time_us in self._events:
            log(RunEvent(now_us, epoch, kind, duration_us=pause_us, amount=time_us / 1e6, text=name))
        self._events = []
