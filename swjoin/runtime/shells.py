"""The I/O around the master and the collector that every real runtime shares.

What: `MasterShell` owns the sources and the side file of late rows and performs the master's commands; `CollectorShell` owns
the sink and the metrics file and performs the collector's. Deliveries are left in `outbox` for the runtime to carry, and the
start of the measured phase in `clock_starts_us`.
Why: in-process and MPI differ in how messages travel, in nothing else.
Stays out: carrying messages, clocks, processes.
"""

from __future__ import annotations

from collections import deque
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from swjoin.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, empty_pairs
from swjoin.cluster.collector import Collector
from swjoin.cluster.intake import LateRowError
from swjoin.cluster.master import Master
from swjoin.errors import SwjoinError
from swjoin.hashing import digest_pairs
from swjoin.messages import (
    BeginMeasuring,
    CommitEpoch,
    Deliver,
    Delivery,
    Log,
    MasterCommand,
    MasterEvent,
    ReadTuples,
    ResultChunk,
    ResultsReceived,
    SetAside,
    StreamEnded,
    TuplesRead,
    WritePairs,
)
from swjoin.runtime.clock import ReadingProgress, RunClock
from swjoin.runtime.job import EventsFile, Job, MetricsFile, late_target, open_job_sink, open_job_sources, row_place
from swjoin.runtime.report import partial_report, publish

if TYPE_CHECKING:
    from swjoin.sinks.late import LateSink
    from swjoin.sinks.plan import OutputPlan


class MasterShell:
    """The master with its sources. Use as a context manager: sources are closed on the way out."""

    def __init__(self, job: Job, progress: bool) -> None:
        self.job = job
        self.sources = open_job_sources(job)
        self.layouts: tuple[RowLayout | None, RowLayout | None] = (self.sources[0].layout, self.sources[1].layout)
        self.outbox: deque[Delivery] = deque()
        self.wanted: int | None = None
        self.clock_starts_us: int | None = None
        self._late_target: Path | None = late_target(job)
        self._late: LateSink | None = None
        self._events: EventsFile | None = None
        self._progress = ReadingProgress(progress, [s.rows_total for s in self.sources])
        self.master: Master
        self.clock: RunClock

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self._progress.close()
        for source in self.sources:
            source.close()
        if self._events is not None:
            self._events.close()
        if self._late is not None:
            if kind is None:
                self._late.close()
            else:
                self._late.abort()

    def output_plan(self) -> OutputPlan:
        """What result rows look like; made from both sources' schemas."""
        from swjoin.sinks.plan import OutputPlan

        return OutputPlan.build(self.sources[LEFT], self.sources[RIGHT], self.job.config.sink)

    def start(self, clock: RunClock, slave_count: int) -> None:
        self.clock = clock
        if self._late_target is not None:
            from swjoin.sinks.late import LateSink

            self._late = LateSink(self._late_target)
        if self.job.run_dir is not None:
            self._events = EventsFile(self.job.run_dir)
        self.master = Master(self.job.config, slave_count, self.layouts)
        self._perform(self.master.start())

    def handle(self, event: MasterEvent) -> None:
        try:
            commands = self.master.handle(event, self.clock.now_us())
        except LateRowError as error:
            raise error.at(row_place(self.sources, error.stream, error.row_id)) from None
        self._perform(commands)

    def read(self) -> None:
        """Read the batch that the master wants."""
        stream = self.wanted
        assert stream is not None
        self.wanted = None
        batch = self.sources[stream].read()
        if batch is None:
            self.handle(StreamEnded(stream))
        else:
            self._progress.advance(len(batch))
            self.handle(TuplesRead(stream, batch))

    def _perform(self, commands: list[MasterCommand]) -> None:
        for command in commands:
            match command:
                case ReadTuples(stream):
                    self.wanted = stream
                case Deliver(delivery):
                    self.outbox.append(delivery)
                case BeginMeasuring(clock_us):
                    self.clock_starts_us = clock_us
                case Log(event) if self._events is not None:
                    self._events.add(event)
                case SetAside(stream, batch, reason) if self._late is not None:
                    self._late.write(STREAM_NAMES[stream], batch, reason)
                case _:
                    pass


class CollectorShell:
    """The collector with its sink and metrics.

    Use as a context manager: an error leaves `.incomplete` files, never whole-looking ones.
    """

    def __init__(self, job: Job, plan: OutputPlan, slave_count: int, clock: RunClock) -> None:
        self.collector = Collector(slave_count, materialised=job.config.sink.kind != "count")
        self.clock = clock
        self.job = job
        self._sink = open_job_sink(job, plan)
        if self.collector.materialised:  # load what the first results need before the run's clock starts
            plan.decode(empty_pairs(plan.left.layout, plan.right.layout))
            digest_pairs(np.empty(0, np.uint64), np.empty(0, np.uint64))
        self._metrics = MetricsFile(job.run_dir) if job.run_dir is not None else None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None:
            self._sink.close()
        else:
            self._sink.abort()
            if isinstance(error, SwjoinError):
                publish(self.job, partial_report(self.job, self.summary(), str(error)))
        if self._metrics is not None:
            self._metrics.close()

    def receive(self, chunk: ResultChunk) -> None:
        for command in self.collector.handle(ResultsReceived(chunk), self.clock.now_us()):
            match command:
                case WritePairs(pairs):
                    self._sink.write(pairs)
                case CommitEpoch(epoch):
                    self._sink.commit(epoch)
                case _:
                    pass
        rows = self.collector.take_metrics()
        if self._metrics is not None:
            self._metrics.add(rows)

    def summary(self) -> dict[str, Any]:
        return self.collector.summary()
