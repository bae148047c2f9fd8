"""The I/O around the master and the collector that every real runtime shares.

What: `MasterHost` owns the sources and the side file of late rows and performs the master's commands; `CollectorHost` owns
the sink and the metrics file and performs the collector's. Deliveries are left in `outbox` for the runtime to carry, and the
start of the measured phase in `clock_starts_us`.
Why: in-process and MPI differ in how messages travel, in nothing else.
Stays out: carrying messages, clocks, processes.
"""

from __future__ import annotations

import contextlib
import math
import platform
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from swjoin.checkpoint.checkpointers import CollectorCheckpointer, MasterCheckpointer
from swjoin.cluster.collector import Collector
from swjoin.cluster.master.intake import LateRowError
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import (
    BeginMeasuring,
    CompleteCheckpoint,
    Deliver,
    Log,
    MasterCommand,
    MasterEvent,
    PublishResults,
    ReadTuples,
    ResultsReceived,
    SavePart,
    SetAside,
    StreamEnded,
    StreamIdle,
    StreamResumed,
    TuplesRead,
    WritePairs,
)
from swjoin.config.job import (
    Job,
    late_target,
)
from swjoin.connectors.files.run_files import (
    EventsFile,
    MetricsFile,
)
from swjoin.connectors.output_paths import check_outputs
from swjoin.connectors.source import is_live
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, empty_pairs
from swjoin.core.data_messages import Delivery, ResultChunk, RunEvent
from swjoin.core.errors import RunFailed, Spelling, SwjoinError
from swjoin.core.hashing import digest_pairs
from swjoin.monitor.role_watchers import CollectorWatcher
from swjoin.runtime.clock import ReadingProgress, RunClock
from swjoin.runtime.flight_serving import ServedResults, open_flight
from swjoin.runtime.idle_sources import IdleDetector
from swjoin.runtime.open import (
    compile_job_where,
    open_job_sink,
    open_job_sources,
    open_job_watcher,
    open_spill,
    row_place,
)
from swjoin.runtime.run_report import partial_report, publish

if TYPE_CHECKING:
    from swjoin.connectors.files.late_rows import LateSink
    from swjoin.connectors.flight.ingest import FlightIngest
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.output_columns import OutputColumns


class MasterHost:
    """The master with its sources. Use as a context manager: sources are closed on the way out."""

    def __init__(self, job: Job, progress: bool) -> None:
        check_outputs(job)
        self.job = job
        self.sources = open_job_sources(job)
        self.layouts: tuple[RowLayout | None, RowLayout | None] = (self.sources[0].layout, self.sources[1].layout)
        self.where = compile_job_where(job, self.sources)
        self.outbox: deque[Delivery] = deque()
        self.publish: deque[PublishResults] = deque()
        self.ingest: FlightIngest | None = open_flight(job, self.sources)
        self.wanted: tuple[int, int | None] | None = None  # a stream, and one that may be read instead
        self._idle_detector = IdleDetector(job.config.time.idle_timeout_us)
        self.clock_starts_us: int | None = None
        self.checkpointer = None if job.checkpoints is None else MasterCheckpointer(job, self.sources)
        self._late_target: Path | None = late_target(job)
        self._late: LateSink | None = None
        self._spill = open_spill(job)
        self._events: EventsFile | None = None
        self._progress = ReadingProgress(progress, [s.rows_total for s in self.sources])
        self.watcher = open_job_watcher(job)
        if self.ingest is not None and self.watcher is not None:
            self.ingest.status = partial(self.watcher.board.snapshot, math.inf)
        self.master: Master
        self.clock: RunClock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.close()
        if self.watcher is not None:
            if kind is None:
                self.watcher.end(self.clock.now_us(), self.sources)
            else:
                self.watcher.close()
        if self.ingest is not None:
            self.ingest.close()
        for source in self.sources:
            source.close()
        if self.checkpointer is not None:
            self.checkpointer.close()
        with contextlib.suppress(*() if kind is None else (SwjoinError,)):  # a full disk has been told of already
            if self._events is not None:
                resumable = self.checkpointer is not None and (kind is not None or self.master.checkpoints.stopped)
                self._events.close(resumable=resumable)
            if self._late is not None:
                if kind is None and not self.master.checkpoints.stopped:
                    self._late.close()
                else:
                    self._late.abort()

    def collector_beside(self, clock: RunClock) -> CollectorHost:
        """The collector in the same process."""
        role_host = CollectorHost(self.job, self.output_plan(), clock, None if self.ingest is None else self.ingest.endpoint)
        if self.watcher is not None:
            role_host.tell = self.watcher.board.take_collector
        return role_host

    def open_flight(self) -> None:
        """Everything is there that clients may ask for."""
        if self.ingest is not None:
            self.ingest.open()

    def output_plan(self) -> OutputColumns:
        """What result rows look like; made from both sources' schemas."""
        from swjoin.connectors.output_columns import OutputColumns

        return OutputColumns.build(self.sources[LEFT], self.sources[RIGHT], self.job.config)

    @property
    def output_columns(self) -> list[str] | None:
        """Names of the columns of result rows; None when none are kept."""
        return None if self.job.config.sink.kind == "count" else list(self.output_plan().schema.names)

    def start(self, clock: RunClock, slave_count: int, on_saved: Callable[[Any], None] | None = None) -> None:
        """Begin, or go on from the newest checkpoint.

        on_saved: takes what has become durable, and passes it to `handle` in the master's own thread.
        """
        self.clock = clock
        self.outbox.clear()
        self.publish.clear()
        self.wanted = None
        self._idle_detector = IdleDetector(self.job.config.time.idle_timeout_us)
        checkpointer, manifest = self.checkpointer, None
        if checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            manifest = checkpointer.begin(on_saved)
        if self._late_target is not None and (self._late is None or checkpointer is not None):
            from swjoin.connectors.files.late_rows import LateSink

            self._late = LateSink(self._late_target, None if checkpointer is None else checkpointer.late_rows)
        if self.job.run_dir is not None and self._events is None:
            self._events = EventsFile(self.job.run_dir, resumes=self.job.resumes)
        self.master = Master(self.job.config.fitted_to(slave_count), slave_count, self.layouts, store=self._spill)
        if checkpointer is not None:
            checkpointer.restore(self.master, manifest, clock.now_us())
            self._progress.restart(sum(s.counts.tuples for s in self.master.streams))
        if self.watcher is not None:
            self.watcher.begin(self.master)
        self._perform(self.master.start(clock.now_us()))

    def handle(self, event: MasterEvent) -> None:
        if self.watcher is not None:
            self.watcher.took(event)
        try:
            commands = self.master.handle(event, self.clock.now_us())
        except LateRowError as error:
            raise error.at(row_place(self.sources, error.stream, error.row_id)) from None
        self._perform(commands)

    def read(self) -> None:
        """Read the batch that the master wants, or give it up for now when the source has been silent for too long."""
        if self._idle_detector.any_idle:
            self.listen()
        assert self.wanted is not None
        stream, instead = self.wanted
        silent = self._idle_detector.of(stream, self.sources[stream])
        if silent is not None and not silent:
            if instead is None or not self.sources[instead].ready(0.0):
                return
            stream, silent = instead, None
        self.wanted = None
        if silent:
            self.handle(StreamIdle(stream))
            return
        batch = self.sources[stream].read()
        if batch is None:
            self._check_all_read(stream)
            self.handle(StreamEnded(stream))
        else:
            self._progress.advance(len(batch))
            if self.watcher is not None:
                self.watcher.read(stream, batch)
            self.handle(TuplesRead(stream, batch))

    def observe(self) -> bool:
        """In every round of the master's loop: let whoever looks on see how things stand. True when it was time for that."""
        if self.watcher is None or not self.watcher.due():
            return False
        self.watcher.look(self.clock.now_us(), self.sources)
        return True

    def listen(self) -> bool:
        """Take note of idle streams that have something to say again. False when there are no idle streams."""
        for stream in self._idle_detector.ended(self.sources):
            self.handle(StreamResumed(stream))
        return self._idle_detector.any_idle

    def _check_all_read(self, stream: int) -> None:
        """A source that ended elsewhere than at its end would be a wrong answer that balances."""
        rows, expected = self.master.streams[stream].counts.tuples, self.sources[stream].rows_total
        if expected is not None and rows != expected:
            raise RunFailed(f"{STREAM_NAMES[stream]}: {rows} rows were read of {expected}; the input changed while it was read")

    def forget_checkpoints(self) -> None:
        """The run is complete and its report is written: there is nothing to go on from, and nothing more to look at."""
        if self.watcher is not None:
            self.watcher.close()
        if self.checkpointer is not None and not self.master.checkpoints.stopped:
            for source in self.sources:
                if is_live(source):
                    source.done()
            self.checkpointer.folder.remove()

    def note_recovery(self, text: str, tuples: int, duration_us: int) -> None:
        """The run goes on after something has died. duration_us: since that was noticed."""
        now_us = self.clock.now_us()
        event = RunEvent(
            now_us,
            int(self.master.epoch),
            "recovered",
            tuples=tuples,
            duration_us=duration_us,
            amount=float(self.master.slave_count),
            text=text,
        )
        if self._events is not None:
            self._events.add(event)
        if self.watcher is not None:
            self.watcher.happened(event)

    def _perform(self, commands: list[MasterCommand]) -> None:
        for command in commands:
            if self.watcher is not None:
                self.watcher.performed(command)
            match command:
                case ReadTuples(stream, instead):
                    self.wanted = stream, instead
                case Deliver(delivery):
                    self.outbox.append(delivery)
                case BeginMeasuring(clock_us):
                    self.clock_starts_us = clock_us
                case Log(event) if self._events is not None:
                    self._events.add(event)
                case SetAside(stream, batch, reason):
                    if self._late is not None:
                        self._late.write(stream, batch, reason)
                    if self.ingest is not None:
                        self.ingest.aside(stream, batch, reason)
                case SavePart(generation, snapshot) if self.checkpointer is not None:
                    self.checkpointer.save(generation, snapshot)
                case CompleteCheckpoint() if self.checkpointer is not None:
                    self.checkpointer.folder.complete(command)
                case PublishResults():
                    self.publish.append(command)
                    if self.checkpointer is not None:
                        self.checkpointer.forget()
                case _:
                    pass


class CollectorHost:
    """The collector with its sink and metrics.

    Use as a context manager: an error leaves `.incomplete` files, never whole-looking ones; with checkpoints, whole ones of a
    prefix.
    """

    def __init__(self, job: Job, plan: OutputColumns, clock: RunClock, endpoint: Endpoint | None = None) -> None:
        """endpoint: of a run in one process, where results are offered; otherwise the collector opens its own."""
        self.clock = clock
        self.job = job
        self.stopped = False
        self._begun = False
        self.ranks: dict[str, dict[str, str]] = {"0": {"host": platform.node(), "role": "in-process"}}
        self.proof: dict[str, Any] | None = None  # of the whole result, once the ledger balances
        self.collector = Collector(0, materialised=False)  # until `start`
        self._sink = open_job_sink(job, plan)
        self.offered = None if job.config.serve.listen is None else ServedResults(job, plan, self._sink, endpoint)
        if self.offered is not None and self.offered.sink is not None:
            self._sink = self.offered.sink
        if job.config.sink.kind != "count":  # load what the first results need before the run's clock starts
            plan.decode(empty_pairs(plan.left.layout, plan.right.layout))
            digest_pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))
        self.checkpointer = None if job.checkpoints is None else CollectorCheckpointer(job, self._sink)
        self._watcher = CollectorWatcher(job.config) if job.config.observed else None
        self.tell: Callable[[dict[str, Any]], None] = lambda view: None  # the runtime's
        self._metrics: MetricsFile | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        failure = None if self.checkpointer is None else self.checkpointer.end()
        if kind is None and failure is not None:
            self._leave(failure)
            raise failure
        self._leave(error)

    def _leave(self, error: BaseException | None) -> None:
        try:
            self._close(error)
        finally:
            if self.offered is not None:
                self.offered.close()

    def _close(self, error: BaseException | None) -> None:
        if error is not None or self.stopped:
            self._give_up(error)
            return
        try:
            if self.checkpointer is not None:
                self.checkpointer.publish_all()
            self._sink.close(self.proof)
            if self._metrics is not None:
                self._metrics.close()
        except SwjoinError as failure:
            self._give_up(failure)
            raise

    def _give_up(self, error: BaseException | None) -> None:
        """What goes wrong besides, on a full disk, does not hide the error itself."""
        self._sink.abort(begun=self._begun)
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if error is not None and self._begun:
                publish(self.job, partial_report(self.job, self.summary(), _reason(error, self.job.spelling), self.ranks))
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if self._metrics is not None:
                self._metrics.abort()

    def start(self, slave_count: int, manifest_name: str | None = None, on_saved: Callable[[Any], None] | None = None) -> None:
        """Begin, or go on from this checkpoint. on_saved: takes PartSaved, to be sent to the master."""
        self.stopped = False
        self.collector = Collector(slave_count, materialised=self.job.config.sink.kind != "count")
        if self._watcher is not None:
            self._watcher.begin()
        if self.checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            self._metrics = self.checkpointer.begin(self.collector, manifest_name, on_saved)
        elif self.job.run_dir is not None and self._metrics is None:
            self._metrics = MetricsFile(self.job.run_dir)
        self._begun = True

    def receive(self, chunk: ResultChunk) -> None:
        commands = self.collector.handle(ResultsReceived(chunk), self.clock.now_us())
        rows = self.collector.take_metrics()
        if self._watcher is not None:
            self._watcher.took(rows)
        if self._metrics is not None:
            self._metrics.add(rows)
        if self.offered is not None:
            self.offered.metrics.add(rows)
        for command in commands:
            match command:
                case WritePairs(pairs, generation):
                    self._sink.write(pairs, generation)
                case SavePart(generation, snapshot) if self.checkpointer is not None:
                    self.checkpointer.save(generation, snapshot)
                case _:
                    pass

    def observe(self, *, last: bool = False) -> None:
        """In every round of the collector's loop: `tell` now and then what the master is to put on its board (`observe`)."""
        if self._watcher is not None and (last or self._watcher.due()):
            self.tell(self._watcher.view(self.collector))

    def show(self, generation: int, *, stop: bool) -> None:
        """The checkpoint that ends this generation is complete; with `stop`, so is the run for now."""
        assert self.checkpointer is not None, "results are published by checkpoints only"
        self.checkpointer.publish(generation)
        self.stopped = stop

    def summary(self) -> dict[str, Any]:
        return self.collector.summary()


def _reason(error: BaseException, spelling: Spelling) -> str:
    """Why a run failed, for its report."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return error.text(spelling) if isinstance(error, SwjoinError) else f"internal error: {type(error).__name__}: {error}"
