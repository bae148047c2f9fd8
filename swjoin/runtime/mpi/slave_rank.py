"""A slave as an MPI rank.

What: `SlaveRank`, with `set_up`, `play`, which may be tried again after a death, and `close`.
Why: the loop around a slave: its slots, what came from other ranks, then join work; and what it sends.
Stays out: what the slave decides (`cluster.slave.slave`), its log (`checkpoint.checkpointers`).
"""

from __future__ import annotations

import time
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.cluster.messages import (
    AcknowledgeMove,
    Delivered,
    ExchangeDue,
    FinishSlave,
    MeasuringBegan,
    Report,
    SavePart,
    SendResults,
    SendState,
    SlaveCommand,
    StateReceived,
    StateWanted,
    WantState,
    WorkDue,
)
from swjoin.cluster.role import UnknownEffectError
from swjoin.cluster.wire import (
    pack_move_end,
    pack_report,
    pack_results,
    pack_state,
    unpack_delivery,
    unpack_state,
)
from swjoin.config.job import Job
from swjoin.core.batch import RowLayout
from swjoin.core.ids import SlaveId
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.clock import RunClock
from swjoin.runtime.kernel_preload import load_slave_kernels
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import (
    BEGIN,
    BYE,
    COLLECTOR,
    DELIVERY,
    FIRST_SLAVE,
    MASTER,
    MOVE_END,
    PUBLISH,
    REPORT,
    RESULTS,
    STATE,
    SUMMARY,
    WANT,
    Rank,
    agree,
    identity,
    parse,
)
from swjoin.runtime.slow_node import Throttle

if TYPE_CHECKING:
    from swjoin.checkpoint.checkpointers import SlaveCheckpointer
    from swjoin.cluster.slave.slave import Slave
    from swjoin.expressions.vm import Program

_EAGER_WAIT_US = 100  # a slave that has reported in its slot looks for its delivery so often


def _layouts(setup: dict[str, Any]) -> tuple[RowLayout | None, RowLayout | None]:
    left, right = (None if item is None else RowLayout(*item) for item in setup["layouts"])
    return left, right


class SlaveRank(Rank):
    def __init__(self, job: Job, place: list[str]) -> None:
        super().__init__(job, place)
        self._layouts: tuple[RowLayout | None, RowLayout | None] = (None, None)
        self._where: Program | None = None
        self._checkpointer: SlaveCheckpointer | None = None

    def set_up(self, channel: Channel) -> None:
        from swjoin.expressions.vm import program_in

        setup = agree(channel, MASTER, None)
        self._layouts = _layouts(setup)
        if setup["where"] is not None:
            self._where = program_in(setup["where"])
        agree(channel, COLLECTOR, None)
        load_slave_kernels(self.job.config, self._layouts)

    def lost(self, text: str) -> None:
        self.close(None)

    def close(self, error: BaseException | None) -> None:
        checkpointer, self._checkpointer = self._checkpointer, None
        if checkpointer is not None:
            checkpointer.close()

    def play(self, channel: Channel) -> None:
        from swjoin.cluster.slave.slave import Slave

        config = self.job.config.fitted_to(channel.size - FIRST_SLAVE)
        slave = Slave(SlaveId(channel.rank - FIRST_SLAVE), config, self._layouts, where=self._where)
        setup = agree(channel, MASTER, None)
        self.saved = deque()
        if self.job.checkpoints is not None:
            from swjoin.checkpoint.checkpointers import SlaveCheckpointer

            self._checkpointer = SlaveCheckpointer(
                Path(setup["folder"]), setup["incarnation"], slave, config, self.saved.append
            )
            self._checkpointer.restore(setup["manifest"], setup["owner"], setup["active"])
        clock = self.start_clock(channel, setup.get("clock_us"))
        self._join(channel, slave, clock)
        me = identity(channel.rank, f"slave {slave.id}", self.meter, self.start_rss_bytes)
        channel.send_json({"summary": slave.summary(), "rank": me}, MASTER, SUMMARY)
        channel.farewell(BYE)

    def _join(self, channel: Channel, slave: Slave, clock: RunClock) -> None:
        """The slave's loop."""
        config, measure = self.job.config, self.job.config.measure
        throttle = Throttle(config.nodes, slave.id)
        throttle.paused = in_history = measure.prefill_us > 0
        link, rush = config.nodes.link_bytes_per_s, measure.rush
        realtime = config.pace == "realtime"
        epoch_us = config.cluster.distribution_epoch_us
        sub_groups = min(config.cluster.sub_group_count, channel.size - FIRST_SLAVE)
        offset_us = slot_offset_us(slave.id, sub_groups, epoch_us) if realtime else 0
        exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us) if realtime else 0
        stopped = False
        self._perform(channel, slave.start())
        while not slave.finished and not stopped:
            channel.check()
            if realtime and not in_history and clock.now_us() >= exchange_at_us:
                self.meter.lateness.add(clock.now_us() - exchange_at_us)
                exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us)
                self._perform(channel, slave.handle(ExchangeDue(), clock.now_us()))
            if self.saved:
                self.tell_saved(channel)
            if channel.probe(MASTER, DELIVERY):
                frame = channel.receive()
                delivery = unpack_delivery(frame)
                self.place[0] = f"{self.where}, epoch {delivery.epoch}"
                if delivery.last and rush:
                    throttle.pause()
                    link = 0.0
                elif not in_history:
                    channel.imitate_transfer(delivery.nbytes, link)
                if self._checkpointer is not None:
                    self._checkpointer.received(delivery, frame)
                self._perform(channel, slave.handle(Delivered(delivery), clock.now_us()))
            elif channel.probe(channel.any, WANT):
                move = int(channel.receive().view(np.int64)[0])
                self._perform(channel, slave.handle(StateWanted(move), clock.now_us()))
            elif channel.probe(channel.any, STATE):
                chunk = unpack_state(channel.receive())
                channel.imitate_transfer(chunk.nbytes, link)
                self._perform(channel, slave.handle(StateReceived(chunk), clock.now_us()))
            elif in_history and channel.probe(MASTER, BEGIN):
                channel.receive()
                self.begin_measuring(channel, measure.prefill_us)
                throttle.paused = in_history = False
                exchange_at_us = next_exchange_us(clock.now_us(), epoch_us, offset_us)
                self._perform(channel, slave.handle(MeasuringBegan(), clock.now_us()))
            elif self._checkpointer is not None and channel.probe(MASTER, PUBLISH):
                stopped = bool(parse(channel.receive())["stop"])
            elif throttle.debt_us > 0:
                now = clock.now_us()
                if realtime:
                    throttle.after(0, now, _EAGER_WAIT_US if slave.expects_delivery else exchange_at_us - now)
                else:
                    throttle.after(0, now)
                channel.meter.process_us += clock.now_us() - now
            elif slave.has_work:
                now, worked_ns = clock.now_us(), time.thread_time_ns()
                slave.handle(channel.meter.take(), now)
                commands = slave.handle(WorkDue(), now)
                throttle.after((time.thread_time_ns() - worked_ns) // 1000, now, 0)
                channel.meter.process_us += clock.now_us() - now
                self._perform(channel, commands)
            elif not realtime or in_history:
                channel.sleep()
            else:
                channel.sleep(_EAGER_WAIT_US if slave.expects_delivery else exchange_at_us - clock.now_us())

    def _perform(self, channel: Channel, commands: list[SlaveCommand]) -> None:
        """Carry a slave's messages away. What goes to other slaves never waits for them."""
        for command in commands:
            match command:
                case Report():
                    channel.send(pack_report(command), MASTER, REPORT)
                case SendResults(chunk):
                    channel.send(pack_results(chunk), COLLECTOR, RESULTS)
                case WantState(supplier, move):
                    channel.send_later(np.array([move]).view(np.uint8), FIRST_SLAVE + supplier, WANT)
                case SendState(chunk):
                    channel.send_later(pack_state(chunk), FIRST_SLAVE + chunk.consumer, STATE)
                case AcknowledgeMove(end):
                    channel.send(pack_move_end(end), MASTER, MOVE_END)
                case SavePart() if self._checkpointer is not None:
                    self._checkpointer.save(command)
                case FinishSlave():
                    pass
                case _:
                    raise UnknownEffectError(command)
