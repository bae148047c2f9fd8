"""The host of a slave, in every runtime in real time.

What: `SlaveHost.run`: timers, then events, then join work, then waiting; it measures their times and emulates a slow node.
Why: the loop is the same in a thread and in an MPI rank.
Stays out: decisions of the slave (`cluster.slave.slave`), its log (`checkpoint.checkpointers`), transports.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from swjoin.cluster.role import Event, Received, RestartClock, SavePart, WorkDue
from swjoin.cluster.slave.slave import Slave
from swjoin.config.run import RunConfig
from swjoin.core.data_messages import Delivery
from swjoin.runtime.clock import RunClock
from swjoin.runtime.host import LONGEST_WAIT_US, Host, Transport
from swjoin.runtime.slow_node import SLEEP_US, Throttle

if TYPE_CHECKING:
    from swjoin.checkpoint.checkpointers import SlaveCheckpointer


class SlaveHost(Host):
    """A slave with its log. checkpointer: of a run with checkpoints."""

    role: Slave

    def __init__(self, slave: Slave, config: RunConfig, clock: RunClock, transport: Transport) -> None:
        super().__init__()
        self.role, self.clock, self.transport = slave, clock, transport
        self.checkpointer: SlaveCheckpointer | None = None
        self._throttle = Throttle(config.nodes, slave.id)
        self._throttle.paused = slave.in_prefill
        self._rush = config.measure.rush
        self.performers[SavePart] = self._save

    def run(self) -> None:
        """Run the slave until it has finished, or the run is stopped."""
        slave, transport = self.role, self.transport
        self.start()
        while not slave.finished and not slave.stopped:
            transport.check()
            if self.fire():
                continue
            event = transport.poll()
            if event is not None:
                self.deliver(event)
            elif self._throttle.debt_us > 0:
                self._sleep()
            elif slave.has_work:
                self._work()
            else:
                event = transport.wait(self._patience_us())
                if event is not None:
                    self.deliver(event)

    def deliver(self, event: Event) -> None:
        if isinstance(event, Received) and isinstance(event.message, Delivery):
            if self.checkpointer is not None:
                self.checkpointer.received(event.message, event.frame)
            if self._rush and event.message.last:
                self._throttle.pause()  # a slow node is emulated only while the run is measured
        super().deliver(event)

    def _patience_us(self) -> int:
        """Longest time to wait or sleep: until the next timer, and less while a delivery is expected."""
        until_us = self.until_timer_us()
        if until_us is None:
            return LONGEST_WAIT_US
        eager_us = self.transport.eager_us
        return until_us if eager_us is None or not self.role.expects_delivery else min(eager_us, until_us)

    def _sleep(self) -> None:
        now_us = self.clock.now_us()
        self._throttle.after(0, now_us, min(SLEEP_US, self._patience_us()))
        self.transport.meter.process_us += self.clock.now_us() - now_us

    def _work(self) -> None:
        meter, now_us = self.transport.meter, self.clock.now_us()
        self.perform(self.role.handle(meter.take(), now_us))
        worked_ns = time.thread_time_ns()
        effects = self.role.handle(WorkDue(), now_us)
        self._throttle.after((time.thread_time_ns() - worked_ns) // 1000, now_us, 0)
        meter.process_us += self.clock.now_us() - now_us
        self.perform(effects)

    def _restart_clock(self, effect: RestartClock) -> None:
        super()._restart_clock(effect)
        self.transport.meter.take()  # drop the times of the prefill, and those by the clock before its restart
        self._throttle.paused = False

    def _save(self, effect: SavePart) -> None:
        assert self.checkpointer is not None, "a part of a checkpoint in a run without checkpoints"
        self.checkpointer.save(effect)
