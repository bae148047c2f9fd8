"""The host of a slave, in every runtime in real time.

What: `SlaveHost.work`: one piece of join work; it measures its times and emulates a slow node.
Why: it is the same in a thread and in an MPI rank.
Stays out: decisions of the slave (`cluster.slave.slave`), its log (`checkpoint.checkpointers`), transports.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

from swjoin.cluster.role import Event, Received, RestartClock, SavePart, WorkDue, slave_role
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.core.data_messages import Delivery
from swjoin.runtime.clock import RunClock
from swjoin.runtime.host import LONGEST_WAIT_US, Host
from swjoin.runtime.slow_node import SLEEP_US, Throttle

if TYPE_CHECKING:
    from swjoin.checkpoint.checkpointers import SlaveCheckpointer


class SlaveHost(Host):
    """A slave with its log. checkpointer: of a run with checkpoints."""

    role: Slave

    def __init__(self, slave: Slave, config: RunConfig, clock: RunClock) -> None:
        super().__init__(slave_role(slave.id))
        self.role, self.clock = slave, clock
        self.checkpointer: SlaveCheckpointer | None = None
        self._throttle = Throttle(config.nodes, slave.node)
        self._throttle.paused = slave.in_prefill
        self._rush = config.measure.rush
        self._process_us = self._join_cpu_us = 0  # since the times were last told; of this slave, not of its thread
        self.performers[SavePart] = self._save

    @property
    def ended(self) -> bool:
        return self.role.finished or self.role.stopped

    def start(self) -> None:
        self.rank.transport.meter.take()  # times count from here
        super().start()

    def work(self) -> bool:
        """Sleep as a slow node does, or do one piece of the slave's work."""
        if self._throttle.debt_us > 0:
            self._sleep()
        elif self.role.has_work and not self.ended:
            self._work()
        else:
            return False
        return True

    def deliver(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Delivery):
            if self.checkpointer is not None:
                self.checkpointer.received(event.message, event.frame)
            if self._rush and event.message.last:
                self._throttle.pause()  # a slow node is emulated only while the run is measured
        super().deliver(event)

    def patience_us(self) -> int:
        """Longest time to wait or sleep: until the next timer, and less while a delivery is expected."""
        until_us = self.until_timer_us()
        if until_us is None:
            return LONGEST_WAIT_US
        eager_us = self.rank.transport.eager_us
        return until_us if eager_us is None or not self.role.expects_delivery else min(eager_us, until_us)

    def _sleep(self) -> None:
        now_us = self.clock.now_us()
        self._throttle.after(0, now_us, min(SLEEP_US, self.patience_us()))
        self._process_us += self.clock.now_us() - now_us

    def _work(self) -> None:
        now_us = self.clock.now_us()
        times = replace(self.rank.transport.meter.take(), process_us=self._process_us, join_cpu_us=self._join_cpu_us)
        self.perform(self.role.handle(times, now_us))
        worked_ns = time.thread_time_ns()
        effects = self.role.handle(WorkDue(), now_us)
        self._join_cpu_us = (time.thread_time_ns() - worked_ns) // 1000
        self._throttle.after(self._join_cpu_us, now_us, 0)
        self._process_us = self.clock.now_us() - now_us
        self.perform(effects)

    def _restart_clock(self, effect: RestartClock) -> None:
        super()._restart_clock(effect)
        self.rank.transport.meter.take()  # drop the times of the prefill, and those by the clock before its restart
        self._process_us = self._join_cpu_us = 0
        self._throttle.paused = False

    def _save(self, effect: SavePart) -> None:
        assert self.checkpointer is not None, "a part of a checkpoint in a run without checkpoints"
        self.checkpointer.save(effect)
