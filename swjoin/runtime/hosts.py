"""The hosts of the master and of the collector, in every runtime in real time.

What: `MasterHost` owns the sources, the side file of late rows and the event log; `CollectorHost` owns the sink and the metrics
file. Each has the loop of its role, `run`.
Why: the in-process and the MPI runtime differ only in the transport of messages.
Stays out: transports, processes, the slave (`runtime.slave_host`).
"""

from __future__ import annotations

import contextlib
import logging
import math
import platform
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from swjoin.checkpoint.checkpointers import CollectorCheckpointer, MasterCheckpointer
from swjoin.cluster.collector import Collector
from swjoin.cluster.master.intake import LateRowError
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import Report
from swjoin.cluster.role import (
    BatchRead,
    CommitEpoch,
    CompleteCheckpoint,
    Event,
    Log,
    Publish,
    Read,
    Received,
    ReleaseInput,
    RestartClock,
    SavePart,
    Send,
    SetAside,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    StopRequested,
    Write,
    slave_of,
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
from swjoin.connectors.source import Source, is_live
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, empty_pairs
from swjoin.core.data_messages import Delivery, ResultChunk, RunEvent
from swjoin.core.errors import RunFailed, Spelling, SwjoinError
from swjoin.core.hashing import digest_pairs
from swjoin.monitor.role_watchers import CollectorWatcher
from swjoin.runtime.clock import RunClock
from swjoin.runtime.flight_serving import ServedResults, open_flight
from swjoin.runtime.host import LONGEST_WAIT_US, Host, nothing
from swjoin.runtime.idle_sources import PATIENCE_S, IdleDetector
from swjoin.runtime.open import (
    compile_job_where,
    open_job_sink,
    open_job_sources,
    open_job_watcher,
    open_spill,
    row_place,
)
from swjoin.runtime.progress import Progress, Wanted
from swjoin.runtime.run_report import partial_report, publish

if TYPE_CHECKING:
    from swjoin.connectors.files.late_rows import LateSink
    from swjoin.connectors.flight.ingest import FlightIngest
    from swjoin.connectors.flight.server import Endpoint
    from swjoin.connectors.output_columns import OutputColumns


_LOG = logging.getLogger(__name__)
_LONGEST_SLOT_WAIT_US = 20_000  # while a timer runs


def _progress_of(job: Job, sources: tuple[Source, Source], wanted: Wanted) -> Progress:
    """Progress over the rows that are read, or over the time of generated streams in realtime pace."""
    if job.config.pace == "realtime" and job.config.left.path is None and not job.config.live:
        return Progress(wanted, job.config.workload.duration_us / 1e6, "s")
    totals = [source.rows_total for source in sources]
    return Progress(wanted, None if None in totals else sum(filter(None, totals)))


class MasterHost(Host):
    """The master with its sources. Use as a context manager: sources are closed on the way out.

    stop_wanted: whether the run is to stop with a checkpoint. on_observed: called after each update of the status board.
    first_read_s, measured_s: when the first batch was read and the prefill had been joined, on the monotonic clock.
    """

    role: Master

    def __init__(self, job: Job, progress: Wanted) -> None:
        super().__init__()
        check_outputs(job)
        self.job = job
        self.sources = open_job_sources(job)
        self.layouts: tuple[RowLayout | None, RowLayout | None] = (self.sources[0].layout, self.sources[1].layout)
        self.where = compile_job_where(job, self.sources)
        self.ingest: FlightIngest | None = open_flight(job, self.sources)
        self.wanted: tuple[int, int | None] | None = None  # a stream, and one that may be read instead
        self._idle_detector = IdleDetector(job.config.time.idle_timeout_us)
        self.first_read_s: float | None = None
        self.measured_s: float | None = None
        self.stop_wanted: Callable[[], bool] = lambda: False
        self.on_observed: Callable[[], None] = lambda: None
        self.checkpointer = None if job.checkpoints is None else MasterCheckpointer(job, self.sources)
        self._late: LateSink | None = None
        self._spill = open_spill(job)
        self._events: EventsFile | None = None
        for name, source in zip(STREAM_NAMES, self.sources, strict=True):
            rows = "unknown" if source.rows_total is None else f"{source.rows_total:,}"
            _LOG.debug("%s: %s, rows: %s", name, type(source).__name__, rows)
        self.progress = _progress_of(job, self.sources, progress)
        self.watcher = open_job_watcher(job)
        if self.ingest is not None and self.watcher is not None:
            self.ingest.status = partial(self.watcher.board.snapshot, math.inf)
        self.performers |= {Read: self._want, SetAside: self._set_aside, Log: lambda effect: self._log(effect.event)}
        checkpointer = self.checkpointer
        if checkpointer is not None:
            self.performers |= {
                SavePart: lambda effect: checkpointer.save(effect.generation, effect.snapshot),
                CompleteCheckpoint: checkpointer.folder.complete,
                ReleaseInput: lambda _: checkpointer.forget(),
            }

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.progress.close()
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
        with contextlib.suppress(*() if kind is None else (SwjoinError,)):  # a full disk has been reported already
            if self._events is not None:
                resumable = self.checkpointer is not None and (kind is not None or self.role.checkpoints.stopped)
                self._events.close(resumable=resumable)
            if self._late is not None:
                if kind is None and not self.role.checkpoints.stopped:
                    self._late.close()
                else:
                    self._late.abort()

    def make_collector(self, clock: RunClock) -> CollectorHost:
        """The collector in the same process."""
        role_host = CollectorHost(self.job, self.output_plan(), clock, None if self.ingest is None else self.ingest.endpoint)
        if self.watcher is not None:
            role_host.send_view = self.watcher.board.set_collector
        return role_host

    def open_flight(self) -> None:
        """Let producers and consumers connect; called when sources and results are ready."""
        if self.ingest is not None:
            self.ingest.open()

    def output_plan(self) -> OutputColumns:
        """The columns of result rows, from the schemas of both sources."""
        from swjoin.connectors.output_columns import OutputColumns

        return OutputColumns.build(self.sources[LEFT], self.sources[RIGHT], self.job.config)

    @property
    def output_columns(self) -> list[str] | None:
        """Names of the columns of result rows; None when results are only counted."""
        return None if self.job.config.sink.kind == "count" else list(self.output_plan().schema.names)

    def make(self, clock: RunClock, slave_count: int, on_saved: Callable[[Any], None] | None = None) -> None:
        """Make the master, from the newest checkpoint if there is one; `run` starts it.

        on_saved: receives the events of background threads, which the master's own thread delivers.
        """
        self.clock = clock
        self.wanted = None
        self._idle_detector = IdleDetector(self.job.config.time.idle_timeout_us)
        checkpointer, manifest = self.checkpointer, None
        if checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            manifest = checkpointer.begin(on_saved)
        target = late_target(self.job)
        if target is not None and (self._late is None or checkpointer is not None):
            from swjoin.connectors.files.late_rows import LateSink

            self._late = LateSink(target, None if checkpointer is None else checkpointer.late_rows)
        if self.job.run_dir is not None and self._events is None:
            self._events = EventsFile(self.job.run_dir, resumes=self.job.resumes)
        self.role = Master(self.job.config.fitted_to(slave_count), slave_count, self.layouts, store=self._spill)
        if checkpointer is not None:
            checkpointer.restore(self.role, manifest, clock.now_us())
            self.progress.advance(sum(s.counts.tuples for s in self.role.streams) - self.progress.done)
        if self.watcher is not None:
            self.watcher.begin(self.role)

    def run(self) -> None:
        """Run the master until it and every other role on its transport have ended."""
        self.start()
        transport = self.transport
        while not (self.role.finished and transport.closed):
            transport.check()
            self.observe()
            event = transport.poll()
            if event is not None:
                self.deliver(event)
            elif self.stop_wanted() and self.checkpointer is not None and not self.role.checkpoints.stopping:
                self.deliver(StopRequested())
            elif self.fire():
                continue
            elif self.wanted is not None:
                self.read()
            else:
                event = transport.wait(self._patience_us())
                if event is not None:
                    self.deliver(event)

    def _patience_us(self) -> int:
        """How long the master may wait: to its next timer, poll of idle sources, or status update. It resumes streams."""
        if self.resume_sources():
            return int(PATIENCE_S * 1e6)
        if self.wanted is not None:  # a stream that has resumed is to be read now
            return 0
        until_us = self.until_timer_us()
        if until_us is not None:
            return min(until_us, _LONGEST_SLOT_WAIT_US)
        return LONGEST_WAIT_US if self.watcher is None else int(self.watcher.patience_s * 1e6)

    def deliver(self, event: Event) -> None:
        if self.watcher is not None and isinstance(event, Received) and isinstance(event.message, Report):
            report = event.message
            self.watcher.reported(slave_of(event.sender), report.occupancy_ratio, report.loads)
        try:
            effects = self.role.handle(event, self.clock.now_us())
        except LateRowError as error:
            raise error.at(row_place(self.sources, error.stream, error.row_id)) from None
        self.perform(effects)

    def read(self) -> None:
        """Read the batch that the master wants; a source without rows for the idle timeout is idle instead."""
        if self._idle_detector.any_idle:
            self.resume_sources()
        if self.first_read_s is None:
            self.first_read_s = time.monotonic()
        assert self.wanted is not None
        stream, instead = self.wanted
        silent = self._idle_detector.of(stream, self.sources[stream])
        if silent is not None and not silent:
            if instead is None or not self.sources[instead].ready(0.0):
                return
            stream, silent = instead, None
        self.wanted = None
        if silent:
            self.deliver(SourceIdle(stream))
            return
        batch = self.sources[stream].read()
        if batch is None:
            self._check_all_read(stream)
            self.deliver(SourceEnded(stream))
        else:
            self.progress.advance(len(batch))
            if self.watcher is not None:
                self.watcher.read(stream, batch)
            self.deliver(BatchRead(stream, batch))

    def observe(self) -> None:
        """Update the status board when that is due, and progress over time. Called in every round of the master's loop."""
        self.progress.reach(self.clock.now_us())
        if self.watcher is not None and self.watcher.due():
            self.watcher.sample(self.clock.now_us(), self.sources)
            self.on_observed()

    def resume_sources(self) -> bool:
        """Deliver `SourceResumed` for idle streams that have rows again. False when no stream is idle."""
        for stream in self._idle_detector.ended(self.sources):
            self.deliver(SourceResumed(stream))
        return self._idle_detector.any_idle

    def _check_all_read(self, stream: int) -> None:
        """RunFailed when a source ended early or late: the ledger would balance over a wrong answer."""
        rows, expected = self.role.streams[stream].counts.tuples, self.sources[stream].rows_total
        if expected is not None and rows != expected:
            raise RunFailed(f"{STREAM_NAMES[stream]}: {rows} rows were read of {expected}; the input changed while it was read")

    def remove_checkpoints(self) -> None:
        """End monitoring and remove the checkpoints; called when the run is complete and its report is written."""
        if self.watcher is not None:
            self.watcher.close()
        if self.checkpointer is not None and not self.role.checkpoints.stopped:
            for source in self.sources:
                if is_live(source):
                    source.done()
            self.checkpointer.folder.remove()

    def log_recovery(self, text: str, tuples: int, duration_us: int) -> None:
        """Log a complete recovery. duration_us: since the death was detected."""
        now_us = self.clock.now_us()
        event = RunEvent(
            now_us,
            int(self.role.epoch),
            "recovered",
            tuples=tuples,
            duration_us=duration_us,
            amount=float(self.role.slave_count),
            text=text,
        )
        self._log(event)

    def _log(self, event: RunEvent) -> None:
        if event.kind != "occupancy":  # one per slave and reorganization epoch
            _LOG.debug("%s", event)
        if self._events is not None:
            self._events.add(event)
        if self.watcher is not None:
            self.watcher.on_log_event(event)

    # ------------------------------------------------------------ performers

    def _want(self, effect: Read) -> None:
        self.wanted = effect.stream, effect.instead

    def _set_aside(self, effect: SetAside) -> None:
        if self._late is not None:
            self._late.write(effect.stream, effect.batch, effect.reason)
        if self.ingest is not None:
            self.ingest.set_aside(effect.stream, effect.batch, effect.reason)

    def _send(self, effect: Send) -> None:
        super()._send(effect)
        if self.watcher is not None and isinstance(effect.message, Delivery):
            self.watcher.delivered(effect.message)

    def _restart_clock(self, effect: RestartClock) -> None:
        super()._restart_clock(effect)
        if self.meter is not None:
            self.meter.start()
        self.measured_s = time.monotonic()
        if self.watcher is not None:
            self.watcher.measuring_started()


class CollectorHost(Host):
    """The collector with its sink and metrics.

    Use as a context manager: after an error the result files are `.incomplete`; with checkpoints, the files of complete
    checkpoints remain.
    """

    role: Collector

    def __init__(self, job: Job, plan: OutputColumns, clock: RunClock, endpoint: Endpoint | None = None) -> None:
        """endpoint: of the master, in one process; without it the collector opens its own if the run serves results."""
        super().__init__()
        self.clock = clock
        self.job = job
        self._started = False
        self.ranks: dict[str, dict[str, str]] = {"0": {"host": platform.node(), "role": "in-process"}}
        self.proof: dict[str, Any] | None = None  # of the whole result, once the ledger balances
        self.role = Collector(0, materialised=False)  # until `make`
        self._sink = open_job_sink(job, plan)
        self.offered = None if job.config.serve.listen is None else ServedResults(job, plan, self._sink, endpoint)
        if self.offered is not None and self.offered.sink is not None:
            self._sink = self.offered.sink
        if job.config.sink.kind != "count":  # load what the first results need before the run's clock starts
            plan.decode(empty_pairs(plan.left.layout, plan.right.layout))
            digest_pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))
        self.checkpointer = None if job.checkpoints is None else CollectorCheckpointer(job, self._sink)
        self._watcher = CollectorWatcher(job.config) if job.config.observed else None
        self.send_view: Callable[[dict[str, Any]], None] = lambda view: None  # set by the runtime
        self._metrics: MetricsFile | None = None
        checkpointer = self.checkpointer
        self.performers |= {Write: lambda effect: self._sink.write(effect.pairs, effect.generation), CommitEpoch: nothing}
        if checkpointer is not None:
            self.performers |= {
                SavePart: lambda effect: checkpointer.save(effect.generation, effect.snapshot),
                Publish: lambda effect: checkpointer.publish(effect.generation),
            }

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
        if error is not None or self.role.stopped:
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
        """Abort the outputs and write a partial report. Further errors, such as a full disk, do not replace `error`."""
        self._sink.abort(started=self._started)
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if error is not None and self._started:
                publish(self.job, partial_report(self.job, self.summary(), _reason(error, self.job.spelling), self.ranks))
        with contextlib.suppress(*() if error is None else (SwjoinError,)):
            if self._metrics is not None:
                self._metrics.abort()

    def make(self, slave_count: int, manifest_name: str | None = None, on_saved: Callable[[Any], None] | None = None) -> None:
        """Make the collector, from this checkpoint if one is given; `run` starts it. on_saved: receives `PartSaved`, which
        the collector's own thread delivers."""
        self.role = Collector(slave_count, materialised=self.job.config.sink.kind != "count")
        if self._watcher is not None:
            self._watcher.begin()
        if self.checkpointer is not None:
            assert on_saved is not None, "a run with checkpoints has to hear what is durable"
            self._metrics = self.checkpointer.begin(self.role, manifest_name, on_saved)
        elif self.job.run_dir is not None and self._metrics is None:
            self._metrics = MetricsFile(self.job.run_dir)
        self._started = True

    def run(self) -> None:
        """Run the collector until it has finished, or the run is stopped."""
        transport = self.transport
        self.start()
        while not self.role.finished and not self.role.stopped:
            transport.check()
            self.observe()
            event = transport.poll() or transport.wait(LONGEST_WAIT_US)
            if event is not None:
                self.deliver(event)
        self.observe(last=True)

    def deliver(self, event: Event) -> None:
        effects = self.role.handle(event, self.clock.now_us())
        if isinstance(event, Received) and isinstance(event.message, ResultChunk):
            rows = self.role.take_metrics()  # before effects: a part of a checkpoint contains them
            if self._watcher is not None:
                self._watcher.on_results(rows)
            if self._metrics is not None:
                self._metrics.add(rows)
            if self.offered is not None:
                self.offered.metrics.add(rows)
        self.perform(effects)

    def observe(self, *, last: bool = False) -> None:
        """Send a view to the status board when that is due. Called in every round of the collector's loop."""
        if self._watcher is not None and (last or self._watcher.due()):
            self.send_view(self._watcher.view(self.role))

    def summary(self) -> dict[str, Any]:
        return self.role.summary()


def _reason(error: BaseException, spelling: Spelling) -> str:
    """Why a run failed, for its report."""
    if isinstance(error, KeyboardInterrupt):
        return "interrupted"
    return error.text(spelling) if isinstance(error, SwjoinError) else f"internal error: {type(error).__name__}: {error}"
