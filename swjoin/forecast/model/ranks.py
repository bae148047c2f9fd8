"""Ranks in virtual time: what master, slaves and collector do with their roles, and how long it takes them.

What: `ModelMaster`, `ModelSlave`, `ModelCollector`. Why: the loops are those of `runtime.mpi.main`: the master delivers, then
hears reports, then reads; it is busy while it sends a large message, because that is sent blocking, to a slave that has asked
for it; a slave looks for messages between two pieces of work; the collector takes one chunk after the other.
Stays out: what costs what (`forecast.costs`), the run as a whole (`forecast.model.run`), what roles decide.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import (
    AcknowledgeMove,
    BeginMeasuring,
    ClockAdvanced,
    CommitEpoch,
    Deliver,
    Delivered,
    ExchangeDue,
    FinishCollector,
    FinishMaster,
    FinishSlave,
    Log,
    MasterCommand,
    MasterEvent,
    MeasuringBegan,
    MoveEnded,
    ReadTuples,
    Report,
    ResultsReceived,
    SendResults,
    SendState,
    SlaveCommand,
    SlaveEvent,
    SlaveReported,
    StateReceived,
    StateWanted,
    StreamEnded,
    TimesMeasured,
    TuplesRead,
    WantState,
    WorkDue,
)
from swjoin.cluster.role import UnknownEffectError
from swjoin.cluster.slave.slave import STEP_TUPLES, Slave
from swjoin.core.data_messages import Delivery, ResultChunk, RunEvent
from swjoin.core.ids import SlaveId
from swjoin.forecast.model.discrete_event import Action, Actor, Usage, World
from swjoin.forecast.model.join import ModelJoin
from swjoin.forecast.model.master_input import ModelBuffers, ModelSource
from swjoin.forecast.model.windows import Meter
from swjoin.policy.epochs import next_exchange_us, slot_offset_us

_HEADER_BYTES = 1024
_CHUNK_BYTES = 9_000  # a final result chunk without pairs: mostly the histogram of delays


class ModelMaster(Actor):
    def __init__(self, world: World, master: Master, sources: tuple[ModelSource, ModelSource], payload_bytes: int) -> None:
        super().__init__(world)
        self._payload_bytes = payload_bytes
        self.master = master
        self.slaves: list[ModelSlave] = []
        self.events: list[RunEvent] = []
        self.first_read_us: float | None = None
        self.measured_from_us: float | None = None  # virtual time at which history had been joined
        self._sources = sources
        self._outbox: deque[Delivery] = deque()
        self._inbox: deque[MasterEvent] = deque()
        self._wanted: int | None = None
        cluster = world.config.cluster
        self._slot_us = max(1, cluster.distribution_epoch_us // cluster.sub_group_count)
        self._boundary_us = self._slot_us

    def start(self) -> None:
        self._perform(self.master.start())
        if self.world.realtime and not self.world.config.measure.prefill_us:
            self._tick()
        self.loop()

    @property
    def _slotted(self) -> bool:
        """Slots follow the clock; not during history."""
        return self.world.realtime and (self.measured_from_us is not None or not self.world.config.measure.prefill_us)

    def _tick(self) -> None:
        """Look up at every boundary."""
        if self.master.finished:
            return

        def due() -> None:
            if not self.busy:
                self.loop()
            self._tick()

        self.world.at_clock(float(next_exchange_us(self.world.now_us, self._slot_us)), due)

    def hear(self, event: MasterEvent) -> None:
        self._inbox.append(event)
        self.wake()

    def loop(self) -> None:
        costs, now = self.world.costs, self.world.now_us
        if self._outbox:
            delivery = self._outbox.popleft()
            work_us = (costs.message_ns + costs.master_byte_ns * delivery.nbytes) / 1000
            self.work(work_us, partial(self._deliver, delivery))
        elif self._inbox:
            self._handle(self._inbox.popleft(), costs.message_ns / 1000)
        elif self._slotted and now >= self._boundary_us and not self.master.finished:
            self._boundary_us = next_exchange_us(now, self._slot_us)
            self._handle(ClockAdvanced(), 0.0)
        elif self._wanted is not None:
            self._read()
        else:
            self.rest()

    def _deliver(self, delivery: Delivery) -> None:
        slave = self.slaves[delivery.slave]
        groups = 24 * len(delivery.groups) + 24 * (len(delivery.moves_in) + len(delivery.moves_out))
        arrive = partial(slave.receive, Delivered(delivery))
        self.send(_HEADER_BYTES + groups + delivery.nbytes, slave, arrive, self.loop)

    def _read(self) -> None:
        stream, self._wanted = self._wanted, None
        assert stream is not None
        if self.first_read_us is None:
            self.first_read_us = self.world.time.now_us
        batch = self._sources[stream].read()
        costs = self.world.costs
        rows = 0 if batch is None else len(batch)
        source_ns = costs.source_tuple_ns + costs.source_byte_ns * self._payload_bytes
        event: MasterEvent = StreamEnded(stream) if batch is None else TuplesRead(stream, batch)
        judge_us = costs.master_tuple_ns / 2 * rows / 1000
        self.work(source_ns * rows / 1000 + judge_us, partial(self._handle, event, 0.0))

    def _handle(self, event: MasterEvent, work_us: float) -> None:
        """The role acts at once; what that cost follows."""
        buffers = self.master.buffers
        assert isinstance(buffers, ModelBuffers)
        before = buffers.drained_tuples
        commands = self.master.handle(event, self.world.now_us)
        work_us += self.world.costs.master_tuple_ns / 2 * (buffers.drained_tuples - before) / 1000

        def then() -> None:
            self._perform(commands)
            self.loop()

        self.work(work_us, then)

    def _perform(self, commands: list[MasterCommand]) -> None:
        for command in commands:
            match command:
                case ReadTuples(stream):
                    self._wanted = stream
                case Deliver(delivery):
                    self._outbox.append(delivery)
                case Log(event):
                    self.events.append(event)
                case BeginMeasuring(clock_us):
                    self._begin_measuring(clock_us)
                case FinishMaster():
                    pass
                case _:
                    raise UnknownEffectError(command)

    def _begin_measuring(self, clock_us: int) -> None:
        """History has been joined: the run's clock shows stream time from now on."""
        world = self.world
        world.ahead_us = clock_us - world.time.now_us
        self._boundary_us = next_exchange_us(clock_us, self._slot_us)
        self.measured_from_us = world.time.now_us
        self.usage.clear()
        world.cores.busy_us = 0.0
        self._tick()
        for slave in self.slaves:
            world.time.after(world.transfer_us(_HEADER_BYTES), slave.begin_measuring)


class ModelCollector(Actor):
    def __init__(self, world: World, collector: Collector) -> None:
        super().__init__(world)
        self.collector = collector
        self.nbytes = 0.0
        self.metrics: list[NDArray[np.float64]] = []

    def loop(self) -> None:
        if self._callers:
            self._begin()
            self._callers.popleft()()
        else:
            self.rest()

    def when_attentive(self, caller: Action) -> None:
        self._callers.append(caller)
        self.wake()

    def receive(self, chunk: ResultChunk | None, nbytes: float) -> None:
        costs = self.world.costs
        self.nbytes += nbytes
        if chunk is not None:
            for command in self.collector.handle(ResultsReceived(chunk), self.world.now_us):
                if not isinstance(command, CommitEpoch | FinishCollector):
                    raise UnknownEffectError(command)
            self.metrics += [row for _, row in self.collector.take_metrics()]
            nbytes -= _CHUNK_BYTES
        self.work((costs.collector_chunk_ns + costs.collector_byte_ns * max(0.0, nbytes)) / 1000, self.loop)


class ModelSlave(Actor):
    def __init__(self, world: World, slave: Slave, join: ModelJoin, payload_bytes: int, pair_bytes: int) -> None:
        super().__init__(world)
        self.slave, self.join = slave, join
        self.master: ModelMaster
        self.collector: ModelCollector
        self.peers: list[ModelSlave] = []
        self._pair_bytes = pair_bytes  # 0: pairs are counted only
        self._kept_bytes = payload_bytes if pair_bytes else 0  # of a tuple, with the windows
        self._owed_us = 0.0  # CPU time of messages handled, charged with the next piece of work
        self._process_us = 0.0
        self._told = Usage()
        self._told_at_us = 0.0
        self._sent_until_us: dict[SlaveId, float] = {}
        self._in_history = world.config.measure.prefill_us > 0
        join.span_us = self._span_us

    def start(self) -> None:
        self._perform(self.slave.start(), self.loop)
        if self.world.realtime and not self.world.config.measure.prefill_us:
            self._exchange()

    def begin_measuring(self) -> None:
        """Slots follow the clock from now on."""
        self._in_history = False
        self.usage.clear()
        self._told = Usage()
        self._told_at_us, self._process_us = self.world.time.now_us, 0.0
        self.receive(MeasuringBegan())
        self._exchange()

    def _exchange(self) -> None:
        cluster = self.world.config.cluster
        t_d = cluster.distribution_epoch_us
        offset_us = slot_offset_us(self.slave.id, cluster.sub_group_count, t_d)

        def due() -> None:
            if not self.slave.finished:
                self.receive(ExchangeDue())
                self._exchange()

        self.world.at_clock(float(next_exchange_us(self.world.now_us, t_d, offset_us)), due)

    def receive(self, event: SlaveEvent) -> None:
        """A message: handled between two pieces of work, at once for the role."""
        if self.blocked:
            self._callers.append(partial(self.receive, event))
            return
        self._owed_us += self.world.costs.message_ns / 1000
        self._perform(self.slave.handle(event, self.world.now_us), self.wake)

    def loop(self) -> None:
        if self.slave.finished or not self.slave.has_work:
            self.rest()
            return
        self._tell_times()
        now, before = self.world.now_us, self._copy_meter()
        commands = self.slave.handle(WorkDue(), now)
        did = self._since(before)
        work_us = self._work_us(did) + self._owed_us
        self._owed_us = 0.0
        self.polls_us = work_us / self._pieces(did) / 2
        self._process_us += work_us

        def then() -> None:
            idle_us = work_us * (1 / self._speed() - 1)  # a slower node, see runtime.throttle
            self._process_us += idle_us
            self.usage.slowed_us += idle_us
            if idle_us:
                self.world.time.after(idle_us, send)
            else:
                send()

        def send() -> None:
            nbytes = self._pair_bytes * did.pairs
            if nbytes:
                self.send(nbytes, self.collector, partial(self.collector.receive, None, nbytes), finish)
            else:
                finish()

        def finish() -> None:
            self._perform(commands, self.loop)

        self.work(work_us, then)

    # ------------------------------------------------------------ what work costs

    def _copy_meter(self) -> Meter:
        return dataclasses.replace(self.join.meter)

    def _since(self, past: Meter) -> Meter:
        now = self.join.meter
        return Meter(*(getattr(now, f.name) - getattr(past, f.name) for f in dataclasses.fields(Meter)))

    def _work_us(self, did: Meter) -> float:
        c = self.world.costs
        ns = (c.slave_tuple_ns + c.slave_byte_ns * self._kept_bytes) * did.tuples
        ns += c.slave_comparison_ns * did.comparisons + c.slave_pair_ns * did.pairs
        ns += c.slave_visit_ns * did.visits + c.slave_delivery_ns * did.deliveries + c.slave_growth_ns * did.growth
        ns += c.slave_result_byte_ns * self._pair_bytes * did.pairs
        ns += c.extract_byte_ns * did.extracted_bytes + c.install_byte_ns * did.installed_bytes
        if self.world.realtime and not self._in_history:
            ns *= c.slave_realtime_ratio * (1 + c.slave_sleep_ratio * (1 / self._speed() - 1))
        return ns / 1000

    def _pieces(self, did: Meter) -> float:
        """Steps of a real slave: whole partition-groups each, until so many tuples are done."""
        if not did.tuples or not did.groups:
            return 1.0
        at_least = STEP_TUPLES if self._in_history else self.slave.step_tuples
        return max(1.0, did.groups / math.ceil(at_least * did.groups / did.tuples))

    def _speed(self) -> float:
        """Slow nodes are not imitated during history."""
        return 1.0 if self._in_history else self.world.config.nodes.speed_of(self.slave.id, self.world.now_us)

    def _span_us(self, did: Meter) -> float:
        """How long pairs of a step keep coming: to the start of its last real piece, whose clock they are stamped with."""
        work_us = self._work_us(did)
        return work_us * (1 - 1 / self._pieces(did)) * self.world.cores.slowdown / self._speed()

    def _tell_times(self) -> None:
        now, used, told = self.world.time.now_us, self.usage, self._told
        cpu, link = used.cpu_us - told.cpu_us, used.link_us + used.waiting_us - told.link_us - told.waiting_us
        idle = max(0.0, now - self._told_at_us - link - self._process_us)
        self.slave.handle(TimesMeasured(int(cpu), int(link), int(idle), int(self._process_us)), int(now))
        self._told, self._told_at_us, self._process_us = Usage(used.cpu_us, used.link_us, used.waiting_us), now, 0.0

    # ------------------------------------------------------------ messages

    def _perform(self, commands: list[SlaveCommand], then: Action) -> None:
        """Carry messages away, one after the other."""
        left = deque(commands)
        time, transfer_us = self.world.time, self.world.transfer_us

        def go_on() -> None:
            while left:
                command = left.popleft()
                match command:
                    case Report(occupancy_ratio, loads):
                        event = SlaveReported(self.slave.id, occupancy_ratio, loads)
                        nbytes = _HEADER_BYTES if loads is None else _HEADER_BYTES + 24 * len(loads.groups)
                        time.after(transfer_us(nbytes), partial(self.master.hear, event))
                    case AcknowledgeMove(end):
                        time.after(transfer_us(_HEADER_BYTES), partial(self.master.hear, MoveEnded(end)))
                    case WantState(supplier, move):
                        wanted = partial(self.peers[supplier].receive, StateWanted(move))
                        time.after(transfer_us(_HEADER_BYTES), wanted)
                    case SendState(chunk):  # sent without waiting (`send_later`)
                        came = partial(self.peers[chunk.consumer].receive, StateReceived(chunk))
                        self.usage.link_us += transfer_us(chunk.nbytes)
                        at_us = (
                            time.now_us + transfer_us(_HEADER_BYTES + chunk.nbytes) + self.peers[chunk.consumer].attention_us()
                        )
                        at_us = max(at_us, self._sent_until_us.get(chunk.consumer, 0.0))  # none overtakes another
                        self._sent_until_us[chunk.consumer] = at_us
                        time.at(at_us, came)
                    case SendResults(chunk):
                        nbytes = _CHUNK_BYTES + 24 * (0 if chunk.results is None else len(chunk.results.groups))
                        self.send(nbytes, self.collector, partial(self.collector.receive, chunk, nbytes), go_on)
                        return
                    case FinishSlave():
                        pass
                    case _:
                        raise UnknownEffectError(command)
            then()

        go_on()
