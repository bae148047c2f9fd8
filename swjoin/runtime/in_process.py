"""The in-process runtime: master, slaves and collector in one Python process, the embedded default.

What: `run_local(job, progress) -> report`.
Why: a join of two files needs no cluster; the same roles run here, a message is an object in a queue. The master has the main
thread, every slave and the collector one of their own: kernels, decoding and writing release the GIL, so the master reads and
partitions an epoch while the slaves join the one before.
Stays out: what the roles decide; MPI.
"""

from __future__ import annotations

import os
import platform
import queue
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from swjoin.checkpoint.checkpointers import SlaveCheckpointer
from swjoin.checkpoint.store import Manifest
from swjoin.cluster.messages import (
    AcknowledgeMove,
    ClockAdvanced,
    Delivered,
    ExchangeDue,
    FinishSlave,
    MasterEvent,
    MeasuringBegan,
    MoveEnded,
    PublishResults,
    Report,
    SavePart,
    SendResults,
    SendState,
    SlaveCommand,
    SlaveEvent,
    SlaveReported,
    StateReceived,
    StateWanted,
    StopRequested,
    TimesMeasured,
    WantState,
    WorkDue,
)
from swjoin.cluster.role import UnknownEffectError
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job
from swjoin.core.data_messages import ResultChunk
from swjoin.core.errors import NotWritten
from swjoin.core.ids import SlaveId
from swjoin.monitor.host_load import RankMeter, machine_report
from swjoin.monitor.process_memory import FreedMemory, keep_freed_memory, peak_rss_bytes, rss_bytes
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.clock import RunClock
from swjoin.runtime.hosts import CollectorHost, MasterHost
from swjoin.runtime.idle_sources import PATIENCE_S
from swjoin.runtime.kernel_preload import load_master_kernels, load_slave_kernels
from swjoin.runtime.plausibility import add_warnings
from swjoin.runtime.run_report import CompleteReport, build_report, check_ledger, proof_of, publish
from swjoin.runtime.signals import stop_signals
from swjoin.runtime.slow_node import Throttle

_RESULT_CHUNKS = 4  # result chunks that may wait for the collector; then the slaves wait
_MOST_SLAVES = 4
_WAKE_S = 0.1  # how soon a waiting thread sees that the run has failed
SWITCH_S = 0.0005  # the interpreter's default of 5 ms would keep a finished kernel waiting for the GIL


def default_slave_count() -> int:
    """A slave for every core but the master's, at least one and at most four."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(cores - 1, _MOST_SLAVES))


def run_local(
    job: Job, progress: bool, slave_count: int | None = None, complete_report: CompleteReport | None = None
) -> dict[str, Any]:
    """Run a job in this process and return the content of run.json (also written where the job says).

    Raises UserError for bad input, RunFailed when the run or its ledger fails; results then stay marked incomplete.
    """
    try:
        return _run_local(job, progress, slave_count, complete_report)
    except NotWritten as error:
        raise error.mended_by(job.go_on()) from None


def _run_local(job: Job, progress: bool, slave_count: int | None, complete_report: CompleteReport | None) -> dict[str, Any]:
    started = time.monotonic()
    keep_freed_memory()
    slave_count = default_slave_count() if slave_count is None else slave_count
    if not job.resumes:
        job.config.check_slaves(slave_count)
    with MasterHost(job, progress) as role_host:
        load_master_kernels(job.config, role_host.layouts)
        load_slave_kernels(job.config, role_host.layouts)
        clock = RunClock()
        with role_host.collector_beside(clock) as collector, stop_signals(job) as stop_wanted:
            loop = _LocalLoop(job, role_host, collector, clock, slave_count, stop_wanted)
            role_host.open_flight()
            process: dict[str, Any] = {"rank": 0, "host": platform.node(), "role": "in-process", "start_rss_bytes": rss_bytes()}
            loop.run()
            ended_s = time.monotonic()
            machine = machine_report(
                loop.meter.summary(),
                [],
                slot_us=loop.slot_us if job.config.pace == "realtime" else 0,
                imitates=job.config.nodes.imitates,
            )
            join_s = ended_s - started if loop.first_tuple_s is None else time.monotonic() - loop.first_tuple_s
            report = build_report(
                job,
                master=role_host.master.summary(),
                slaves=[t.slave.summary() for t in loop.slaves],
                collector=collector.summary(),
                ranks=[{**process, "peak_rss_bytes": peak_rss_bytes()}],
                wall_s=0.0,
                join_s=join_s,
                restored=loop.restored,
                stopped=collector.stopped,
                prefill_s=None if loop.began_s is None else loop.began_s - (loop.first_tuple_s or loop.began_s),
                machine=machine,
                columns=role_host.output_columns,
            )
            if not collector.stopped:
                check_ledger(report)
                add_warnings(report, job, role_host.sources)  # before the result files are closed, which carry them
                collector.proof = proof_of(report)
    report["wall_s"] = time.monotonic() - started
    if report["join_s"] > 0:
        tuples = sum(report["input"][name]["tuples"] for name in ("left", "right"))
        report["input_tuples_per_s"] = (tuples - loop.resumed_tuples) / report["join_s"]
    if complete_report is not None:
        complete_report(report, job)
    publish(job, report)
    role_host.forget_checkpoints()
    return report


_ToMaster: TypeAlias = "queue.SimpleQueue[MasterEvent | BaseException | None]"
_T = TypeVar("_T")


class _StoppedError(Exception):
    """Another thread has failed; this one has nothing more to do."""


class _RoleThread(threading.Thread):
    """A role in a thread of its own. What it raises, and its end (None), reach the master's queue."""

    def __init__(self, name: str, to_master: _ToMaster, stop: threading.Event) -> None:
        super().__init__(name=name, daemon=True)
        self._to_master = to_master
        self._stop_event = stop

    def run(self) -> None:
        try:
            self.play()
            self._to_master.put(None)
        except _StoppedError:
            pass
        except BaseException as error:
            self._to_master.put(error)

    def play(self) -> None:
        raise NotImplementedError

    def _patiently(self, attempt: Callable[[float], _T]) -> _T:
        """Repeat a queue operation that takes a timeout until it succeeds or the run is stopped."""
        while True:
            if self._stop_event.is_set():
                raise _StoppedError
            try:
                return attempt(_WAKE_S)
            except (queue.Empty, queue.Full):
                continue


class _CollectorThread(_RoleThread):
    """Takes result chunks until the collector has all."""

    def __init__(self, role_host: CollectorHost, to_master: _ToMaster, stop: threading.Event) -> None:
        super().__init__("collector", to_master, stop)
        self._role_host = role_host
        self.chunks: queue.Queue[ResultChunk] = queue.Queue(_RESULT_CHUNKS)
        self.published: queue.SimpleQueue[PublishResults] = queue.SimpleQueue()

    def play(self) -> None:
        while not self._role_host.collector.finished and not self._role_host.stopped:
            if self._stop_event.is_set():
                raise _StoppedError
            self._role_host.observe()
            while not self.published.empty():
                command = self.published.get()
                self._role_host.show(command.generation, stop=command.stop)
            try:
                self._role_host.receive(self.chunks.get(timeout=_WAKE_S))
            except queue.Empty:
                continue
        self._role_host.observe(last=True)


class _SlaveThread(_RoleThread):
    """Joins what is delivered, in pieces, and meters where its time goes."""

    def __init__(
        self,
        slave: Slave,
        throttle: Throttle,
        collector: _CollectorThread,
        clock: RunClock,
        to_master: _ToMaster,
        stop: threading.Event,
        rush: bool,
    ) -> None:
        super().__init__(f"slave {slave.id}", to_master, stop)
        self.slave = slave
        self._rush = rush
        throttle.paused = slave.in_history
        self.peers: list[_SlaveThread] = []
        self.checkpointer: SlaveCheckpointer | None = None
        self._stopped = False
        self._throttle = throttle
        self.inbox: queue.SimpleQueue[SlaveEvent | None] = queue.SimpleQueue()
        self._collector = collector
        self._clock = clock
        self._communication_us = self._idle_us = self._process_us = 0
        self._cpu_ns = 0

    def play(self) -> None:
        slave, clock = self.slave, self._clock
        try:
            self._play(slave, clock)
        finally:
            if self.checkpointer is not None:
                self.checkpointer.close()

    def _play(self, slave: Slave, clock: RunClock) -> None:
        self._cpu_ns = time.thread_time_ns()
        self._perform(slave.start())
        while not slave.finished and not self._stopped:
            try:
                self._take(self.inbox.get_nowait())
            except queue.Empty:
                before = clock.now_us()
                if self._throttle.debt_us > 0:
                    self._throttle.after(0, before)
                    self._process_us += clock.now_us() - before
                    continue
                if not slave.has_work:
                    event = self._patiently(lambda wait: self.inbox.get(timeout=wait))
                    self._idle_us += clock.now_us() - before
                    self._take(event)
                    continue
                if self._stop_event.is_set():
                    raise _StoppedError from None
                slave.handle(self._take_times(), before)
                worked_ns = time.thread_time_ns()
                commands = slave.handle(WorkDue(), before)
                self._throttle.after((time.thread_time_ns() - worked_ns) // 1000, before)
                self._process_us += clock.now_us() - before
                self._perform(commands)

    def _take(self, event: SlaveEvent | None) -> None:
        """None: the run stops here, to be resumed."""
        if event is None:
            self._stopped = True
            return
        if isinstance(event, Delivered) and self.checkpointer is not None:
            self.checkpointer.received(event.delivery)
        self._perform(self.slave.handle(event, self._clock.now_us()))
        self._mind_the_phase()

    def _mind_the_phase(self) -> None:
        """Nodes are imitated while the run is measured."""
        if self._rush and self.slave.last_delivered:
            self._throttle.pause()
        elif self._throttle.paused and not self.slave.in_history:
            self._throttle.paused = False
            self._take_times()  # history's, and those of a clock that has been restarted since

    def _take_times(self) -> TimesMeasured:
        cpu = time.thread_time_ns()
        out = TimesMeasured((cpu - self._cpu_ns) // 1000, self._communication_us, self._idle_us, self._process_us)
        self._communication_us = self._idle_us = self._process_us = 0
        self._cpu_ns = cpu
        return out

    def _perform(self, commands: list[SlaveCommand]) -> None:
        for command in commands:
            match command:
                case Report(occupancy_ratio, loads):
                    self._to_master.put(SlaveReported(self.slave.id, occupancy_ratio, loads))
                case AcknowledgeMove(end):
                    self._to_master.put(MoveEnded(end))
                case WantState(supplier, move):
                    self.peers[supplier].inbox.put(StateWanted(move))
                case SendState(chunk):
                    self.peers[chunk.consumer].inbox.put(StateReceived(chunk))
                case SavePart() if self.checkpointer is not None:
                    self.checkpointer.save(command)
                case SendResults(chunk):
                    before = self._clock.now_us()
                    self._send(chunk)
                    self._communication_us += self._clock.now_us() - before
                case FinishSlave():
                    pass
                case _:
                    raise UnknownEffectError(command)

    def _send(self, chunk: ResultChunk) -> None:
        self._patiently(lambda wait: self._collector.chunks.put(chunk, timeout=wait))


class _LocalLoop:
    """The master's loop; carries messages between the roles of one process."""

    def __init__(
        self,
        job: Job,
        role_host: MasterHost,
        collector: CollectorHost,
        clock: RunClock,
        slave_count: int,
        stop_wanted: threading.Event,
    ) -> None:
        self.role_host = role_host
        self._stop_wanted = stop_wanted
        self.clock = clock
        self.first_tuple_s: float | None = None
        self.began_s: float | None = None
        self.meter = RankMeter()
        config = job.config.fitted_to(slave_count)
        self._in_history = config.measure.prefill_us > 0
        self._freed = FreedMemory()
        self._stop = threading.Event()
        self._inbox: _ToMaster = queue.SimpleQueue()
        self._collector = _CollectorThread(collector, self._inbox, self._stop)
        self.slaves = [
            _SlaveThread(
                Slave(SlaveId(s), config, role_host.layouts, where=role_host.where),
                Throttle(config.nodes, s),
                self._collector,
                clock,
                self._inbox,
                self._stop,
                job.config.measure.rush,
            )
            for s in range(slave_count)
        ]
        for thread in self.slaves:
            thread.peers = self.slaves
        self.resumed_tuples = 0  # read before this process
        self.restored = self._restore(job, collector)
        now_us = clock.now_us()
        self._running = slave_count + 1
        self._epoch_us = config.cluster.distribution_epoch_us
        self._realtime = config.pace == "realtime"
        sub_groups = config.cluster.sub_group_count
        self._offsets_us = [slot_offset_us(s, sub_groups, self._epoch_us) if self._realtime else 0 for s in range(slave_count)]
        self._exchange_at_us = [next_exchange_us(now_us, self._epoch_us, o) if self._realtime else 0 for o in self._offsets_us]
        self.slot_us = max(1, self._epoch_us // sub_groups)
        self._boundary_us = next_exchange_us(now_us, self.slot_us)

    def _restore(self, job: Job, collector: CollectorHost) -> Manifest | None:
        """Start the roles, from the newest checkpoint if there is one; returns that."""
        role_host, count = self.role_host, len(self.slaves)
        if role_host.checkpointer is None:
            role_host.start(self.clock, count)
            collector.start(count)
            return None
        manifest = role_host.checkpointer.folder.newest()
        if manifest is not None:
            self.clock.restart(manifest.plain["clock_us"])
        role_host.start(self.clock, count, self._inbox.put)
        self.resumed_tuples = sum(s.counts.tuples for s in role_host.master.streams)
        name, owner = role_host.checkpointer.manifest_name, role_host.master.controller.map.owner.tolist()
        collector.start(count, name, self._inbox.put)
        path, incarnation = role_host.checkpointer.folder.path, role_host.checkpointer.folder.incarnation
        try:
            for thread in self.slaves:
                thread.checkpointer = SlaveCheckpointer(
                    path, incarnation, thread.slave, role_host.master.config, self._inbox.put
                )
                thread.checkpointer.restore(name, owner, list(role_host.master.controller.active))
        except BaseException:
            for thread in self.slaves:
                if thread.checkpointer is not None:
                    thread.checkpointer.close()
            raise
        return manifest

    def run(self) -> None:
        """Play the master until every role has ended. Raises what any role raised."""
        threads: list[_RoleThread] = [self._collector, *self.slaves]
        interval = sys.getswitchinterval()
        sys.setswitchinterval(SWITCH_S)
        try:
            for thread in threads:
                thread.start()
            while self._running or not self.role_host.master.finished:
                self._step()
        finally:
            self._stop.set()
            for thread in threads:
                if thread.ident is not None:
                    thread.join()
            sys.setswitchinterval(interval)

    def _step(self) -> None:
        """Take what the other roles say, deliver, and read one batch or wait."""
        self.role_host.observe()
        if self._realtime and not self._in_history:
            self._tick()
        while self.role_host.outbox:
            delivery = self.role_host.outbox.popleft()
            self.slaves[delivery.slave].inbox.put(Delivered(delivery))
        while self.role_host.publish:
            self._publish(self.role_host.publish.popleft())
        if self._stop_wanted.is_set() and not self.role_host.master.checkpoints.stopping:
            self.role_host.handle(StopRequested())
        if self.role_host.clock_starts_us is not None:
            self._begin(self.role_host.clock_starts_us)
        idle = self.role_host.listen()
        try:
            reading = self.role_host.wanted is not None
            message = self._inbox.get(block=not reading, timeout=PATIENCE_S if idle else self._patience_s())
        except queue.Empty:
            if reading:
                if self.first_tuple_s is None:
                    self.first_tuple_s = time.monotonic()
                self.role_host.read()
            else:
                self._freed.mind()
            return
        match message:
            case None:
                self._running -= 1
            case BaseException():
                raise message
            case _:
                self.role_host.handle(message)

    def _publish(self, command: PublishResults) -> None:
        self._collector.published.put(command)
        if command.stop:
            for thread in self.slaves:
                thread.inbox.put(None)

    def _patience_s(self) -> float:
        """How long the master may wait for the other roles: to its next boundary, at most a second."""
        if not self._realtime or self._in_history:
            return 1.0 if self.role_host.watcher is None else self.role_host.watcher.patience_s
        due_us = min(self._boundary_us, *self._exchange_at_us)
        return max(0.0, min(due_us - self.clock.now_us(), 20_000)) / 1e6

    def _begin(self, clock_us: int) -> None:
        """All history is joined: the clock starts, for all threads at once."""
        self.clock.restart(clock_us)
        self.meter.start()
        self.role_host.clock_starts_us, self._in_history, self.began_s = None, False, time.monotonic()
        self._boundary_us = next_exchange_us(clock_us, self.slot_us)
        self._exchange_at_us = [next_exchange_us(clock_us, self._epoch_us, o) for o in self._offsets_us]
        for thread in self.slaves:
            thread.inbox.put(MeasuringBegan())

    def _tick(self) -> None:
        now = self.clock.now_us()
        if now >= self._boundary_us:
            self.meter.lateness.add(now - self._boundary_us)
            self._boundary_us = next_exchange_us(now, self.slot_us)
            self.role_host.handle(ClockAdvanced())
        for slave, thread in enumerate(self.slaves):
            if now >= self._exchange_at_us[slave]:
                self._exchange_at_us[slave] = next_exchange_us(now, self._epoch_us, self._offsets_us[slave])
                thread.inbox.put(ExchangeDue())
