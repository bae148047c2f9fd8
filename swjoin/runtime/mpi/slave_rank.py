"""A slave as an MPI rank.

What: `SlaveRank`, with `set_up`, `run`, which may be called again after a death, and `close`.
Why: a slave's set-up under MPI, and the emulation of its link.
Stays out: the slave's loop (`runtime.slave_host`), its log (`checkpoint.checkpointers`).
"""

from __future__ import annotations

from collections import deque
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.cluster.messages import CheckpointDurable, Granted, MeasuringStarted, Message, StateRequest
from swjoin.cluster.role import slave_role
from swjoin.config.job import Job
from swjoin.core.batch import RowLayout
from swjoin.core.data_messages import Delivery, StateChunk
from swjoin.core.ids import SlaveId
from swjoin.runtime.host import HostedRoles
from swjoin.runtime.kernel_preload import load_plan_kernels, load_slave_kernels
from swjoin.runtime.mpi.channel import Channel
from swjoin.runtime.mpi.rank import BYE, SUMMARY, Rank, agree, identity
from swjoin.runtime.mpi.transport import COLLECTOR_RANK, FIRST_SLAVE, ROOT, MpiTransport
from swjoin.runtime.open import instances_of
from swjoin.runtime.slave_host import SlaveHost

if TYPE_CHECKING:
    from swjoin.checkpoint.checkpointers import SlaveCheckpointer
    from swjoin.expressions.vm import Program


def _layouts(setup: dict[str, Any]) -> tuple[RowLayout | None, RowLayout | None]:
    left, right = (None if item is None else RowLayout(*item) for item in setup["layouts"])
    return left, right


class _Transport(MpiTransport):
    """Emulates a slow link while the run is measured, and keeps the epoch in the label of the rank."""

    def __init__(self, rank: SlaveRank, channel: Channel) -> None:
        config = rank.job.config
        receives: list[tuple[int, type]] = [(ROOT, Delivery), (channel.any, StateRequest), (channel.any, StateChunk)]
        if rank.job.plan is not None:
            receives = [(channel.any, kind) for kind in (Delivery, Granted, StateRequest, StateChunk)]
        receives += [(ROOT, MeasuringStarted)] if config.measure.prefill_us else []
        receives += [(ROOT, CheckpointDurable)] if rank.job.checkpoints is not None else []
        super().__init__(channel, receives, rank.saved, partial(rank.start_measuring, channel))
        self._rank, self._nodes, self._rush = rank, config.nodes, config.measure.rush
        if not config.measure.prefill_us:
            self.link_bytes_per_s = config.nodes.link_bytes_per_s

    def restart_clock(self, clock_us: int) -> None:
        super().restart_clock(clock_us)
        self.link_bytes_per_s = self._nodes.link_bytes_per_s

    def _passed(self, message: Message) -> None:
        if isinstance(message, Delivery):
            self._rank.place[0] = f"{self._rank.where}, epoch {message.epoch}"
            if message.last and self._rush:
                self.link_bytes_per_s = 0.0
        super()._passed(message)


class SlaveRank(Rank):
    def __init__(self, job: Job, place: list[str]) -> None:
        super().__init__(job, place)
        self._layouts: tuple[RowLayout | None, RowLayout | None] = (None, None)
        self._where: Program | None = None
        self._checkpointers: list[SlaveCheckpointer] = []

    def set_up(self, channel: Channel) -> None:
        from swjoin.expressions.vm import program_in

        setup = agree(channel, ROOT, None)
        self._layouts = _layouts(setup)
        if setup["where"] is not None:
            self._where = program_in(setup["where"])
        agree(channel, COLLECTOR_RANK, None)
        instances = instances_of(self.job, 1)
        if instances is None:
            load_slave_kernels(self.job.config, self._layouts)
        else:
            load_plan_kernels(instances)

    def lost(self, text: str) -> None:
        self.close(None)

    def close(self, error: BaseException | None) -> None:
        checkpointers, self._checkpointers = self._checkpointers, []
        for checkpointer in checkpointers:
            checkpointer.close()

    def run(self, channel: Channel) -> None:
        from swjoin.cluster.slave.slave import Slave

        count, number = channel.size - FIRST_SLAVE, SlaveId(channel.rank - FIRST_SLAVE)
        setup = agree(channel, ROOT, None)
        config = self.job.config.fitted_to(count)
        instances = instances_of(self.job, count, setup["first_epoch"], setup["owners"])
        if instances is None:
            slaves = [Slave(number, config, self._layouts, where=self._where)]
        else:
            slaves = [Slave.of_plan(instances, SlaveId(s)) for s in range(number, instances.slave_count, count)]
        self.saved = deque()
        if self.job.checkpoints is not None:
            from swjoin.checkpoint.checkpointers import SlaveCheckpointer

            for slave in slaves:
                saved = partial(self.save, slave_role(slave.id))
                checkpointer = SlaveCheckpointer(Path(setup["folder"]), setup["incarnation"], slave, config, saved)
                self._checkpointers.append(checkpointer)
                checkpointer.restore(setup["manifest"], setup["owner"], setup["active"])
        clock = self.start_clock(channel, setup.get("clock_us"))
        hosts = [SlaveHost(slave, config, clock) for slave in slaves]
        for host, checkpointer in zip(hosts, self._checkpointers, strict=False):
            host.checkpointer = checkpointer
        for host in hosts:
            host.meter = self.meter
        HostedRoles(hosts, _Transport(self, channel)).run()
        me = identity(channel.rank, f"slave {number}", self.meter, self.start_rss_bytes)
        channel.send_json({"summaries": [slave.summary() for slave in slaves], "rank": me}, ROOT, SUMMARY)
        channel.farewell(BYE)
