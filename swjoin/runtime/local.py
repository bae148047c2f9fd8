"""The in-process runtime: master, slaves and collector in one Python process, the embedded default.

What: `run_local(job, progress) -> report`.
Why: a join of two files needs no cluster; the same roles run here, a message is a function call.
Stays out: what the roles decide; MPI.
"""

from __future__ import annotations

import platform
import time
from typing import Any

from swjoin.cluster.slave import Slave
from swjoin.messages import (
    ClockAdvanced,
    Delivered,
    ExchangeDue,
    Report,
    SendResults,
    SlaveCommand,
    SlaveId,
    SlaveReported,
    TimesMeasured,
    WorkDue,
)
from swjoin.policy.epochs import next_exchange_us
from swjoin.runtime.clock import RunClock
from swjoin.runtime.job import Job
from swjoin.runtime.preload import load_master_kernels, load_slave_kernels
from swjoin.runtime.report import build_report, check_ledger, cpu_us, peak_rss_bytes, publish
from swjoin.runtime.shells import CollectorShell, MasterShell


def run_local(job: Job, progress: bool, slave_count: int = 1) -> dict[str, Any]:
    """Run a job in this process and return the content of run.json (also written where the job says).

    Raises UserError for bad input, RunFailed when the run or its ledger fails; results then stay marked incomplete.
    """
    started = time.monotonic()
    with MasterShell(job, progress) as shell:
        load_master_kernels(job.config, shell.layouts)
        load_slave_kernels(job.config, shell.layouts)
        clock = RunClock()
        with CollectorShell(job, shell.output_plan(), slave_count, clock) as collector:
            loop = _LocalLoop(job, shell, collector, clock, slave_count)
            loop.run()
            join_s = time.monotonic() - started if loop.first_tuple_s is None else time.monotonic() - loop.first_tuple_s
            report = build_report(
                job,
                master=shell.master.summary(),
                slaves=[s.summary() for s in loop.slaves],
                collector=collector.summary(),
                ranks=[{"rank": 0, "host": platform.node(), "role": "in-process", "peak_rss_bytes": peak_rss_bytes()}],
                wall_s=0.0,
                join_s=join_s,
            )
            check_ledger(report)
    report["wall_s"] = time.monotonic() - started
    publish(job, report)
    return report


class _LocalLoop:
    """Carries messages between the roles of one process."""

    def __init__(self, job: Job, shell: MasterShell, collector: CollectorShell, clock: RunClock, slave_count: int) -> None:
        self.shell = shell
        self.collector = collector
        self.clock = clock
        self.first_tuple_s: float | None = None
        self.slaves = [Slave(SlaveId(s), job.config, shell.layouts) for s in range(slave_count)]
        self._epoch_us = job.config.cluster.distribution_epoch_us
        self._realtime = job.config.pace == "realtime"
        self._exchange_at_us = [self._epoch_us] * slave_count
        self._boundary_us = self._epoch_us
        self._cpu_us = cpu_us()

    def run(self) -> None:
        self.shell.start(self.clock, len(self.slaves))
        for slave in self.slaves:
            self._perform(slave, slave.start())
        while not (self.shell.master.finished and all(s.finished for s in self.slaves) and not self.shell.outbox):
            if self._realtime:
                self._tick()
            if not self._step():
                assert self._realtime, "every role waits for another: the protocol is stuck"
                time.sleep(max(0.0, min(self._boundary_us - self.clock.now_us(), 20_000)) / 1e6)

    def _tick(self) -> None:
        now = self.clock.now_us()
        if now >= self._boundary_us:
            self._boundary_us = next_exchange_us(now, self._epoch_us)
            self.shell.handle(ClockAdvanced())
        for i, slave in enumerate(self.slaves):
            if now >= self._exchange_at_us[i]:
                self._exchange_at_us[i] = next_exchange_us(now, self._epoch_us)
                self._perform(slave, slave.handle(ExchangeDue(), now))

    def _step(self) -> bool:
        """One delivery, one piece of work or one read; False when there is nothing to do."""
        if self.shell.outbox:
            delivery = self.shell.outbox.popleft()
            slave = self.slaves[delivery.slave]
            self._perform(slave, slave.handle(Delivered(delivery), self.clock.now_us()))
            return True
        busy = False
        for slave in self.slaves:
            if slave.has_work:
                busy = True
                now = self.clock.now_us()
                commands = slave.handle(WorkDue(), now)
                cpu = cpu_us()
                slave.handle(TimesMeasured(cpu - self._cpu_us, 0, 0, self.clock.now_us() - now), now)
                self._cpu_us = cpu
                self._perform(slave, commands)
        if busy:
            return True
        if self.shell.wanted is not None:
            if self.first_tuple_s is None:
                self.first_tuple_s = time.monotonic()
            self.shell.read()
            return True
        return False

    def _perform(self, slave: Slave, commands: list[SlaveCommand]) -> None:
        for command in commands:
            match command:
                case Report(occupancy_ratio):
                    self.shell.handle(SlaveReported(slave.id, occupancy_ratio))
                case SendResults(chunk):
                    self.collector.receive(chunk)
                case _:
                    pass
