"""Ranks in virtual time: the loops of master, slaves and collector around their roles, and their durations.

What: `ModelMaster`, `ModelSlave`, `ModelCollector`.
Why: the loops are those of `runtime.mpi.main`. The master delivers, then receives reports, then reads; sending a large message
keeps it busy, because the send blocks. A slave polls for messages between two pieces of work. The collector takes one chunk
at a time.
Stays out: the costs (`forecast.costs`), the whole run (`forecast.model.run`), decisions of the roles.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import LoadReport, MeasuringStarted
from swjoin.cluster.role import (
    COLLECTOR,
    GATEWAY,
    MASTER,
    BatchRead,
    CommitEpoch,
    Effect,
    Event,
    Finish,
    Log,
    Read,
    Received,
    RestartClock,
    Role,
    RoleId,
    Send,
    SetTimer,
    SourceEnded,
    TimerFired,
    TimesMeasured,
    UnknownEffectError,
    WorkDue,
    slave_of,
    slave_role,
)
from swjoin.cluster.slave.slave import STEP_TUPLES, Slave
from swjoin.core.data_messages import Delivery, ResultChunk, RunEvent, StateChunk
from swjoin.core.ids import SlaveId
from swjoin.forecast.model.discrete_event import Action, Actor, Usage, World
from swjoin.forecast.model.join import ModelJoin
from swjoin.forecast.model.master_input import ModelBuffers, ModelSource
from swjoin.forecast.model.windows import Meter
from swjoin.runtime.host import Addressed, Performers, Timers, nothing, perform, settled

_HEADER_BYTES = 1024
_CHUNK_BYTES = 9_000  # a final result chunk without pairs: mostly the histogram of delays


class ModelMaster(Actor):
    """The rank that plays master and gateway."""

    def __init__(
        self, world: World, master: Master, gateway: Gateway, sources: tuple[ModelSource, ModelSource], payload_bytes: int
    ) -> None:
        super().__init__(world)
        self._payload_bytes = payload_bytes
        self.master, self.gateway = master, gateway
        self._roles: dict[RoleId, Role] = {MASTER: master, GATEWAY: gateway}
        self.slaves: list[ModelSlave] = []
        self.collector: ModelCollector
        self.events: list[RunEvent] = []
        self.first_read_us: float | None = None
        self.measured_from_us: float | None = None  # virtual time at the end of the prefill
        self._sources = sources
        self._outbox: deque[Delivery] = deque()
        self._inbox: deque[Addressed] = deque()
        self._wanted: int | None = None
        self._timers = Timers()
        self._performers: Performers = {
            Read: self._want,
            Send: self._send,
            Log: self._log,
            SetTimer: self._set_timer,
            RestartClock: self._restart_clock,
            Finish: nothing,
        }

    def start(self) -> None:
        perform(settled(self._roles, GATEWAY, self.gateway.start(), 0), self._performers)
        self.loop()

    @property
    def finished(self) -> bool:
        return all(role.finished for role in self._roles.values())

    def receive(self, to: RoleId, event: Event) -> None:
        self._inbox.append((to, event))
        self.wake()

    def loop(self) -> None:
        costs, now = self.world.costs, self.world.now_us
        if self._outbox:
            delivery = self._outbox.popleft()
            work_us = (costs.message_ns + costs.master_byte_ns * delivery.nbytes) / 1000
            self.work(work_us, partial(self._deliver, delivery))
        elif self._inbox:
            self._handle(*self._inbox.popleft(), costs.message_ns / 1000)
        elif (timer := self._timers.take(now)) is not None:
            self._handle(GATEWAY, TimerFired(timer[0]), 0.0)
        elif self._wanted is not None:
            self._read()
        else:
            self.rest()

    def _deliver(self, delivery: Delivery) -> None:
        slave = self.slaves[delivery.slave]
        groups = 24 * len(delivery.groups) + 24 * (len(delivery.moves_in) + len(delivery.moves_out))
        arrive = partial(slave.receive, Received(GATEWAY, delivery))
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
        event: Event = SourceEnded(stream) if batch is None else BatchRead(stream, batch)
        intake_us = costs.master_tuple_ns / 2 * rows / 1000
        self.work(source_ns * rows / 1000 + intake_us, partial(self._handle, GATEWAY, event, 0.0))

    def _handle(self, to: RoleId, event: Event, work_us: float) -> None:
        """Let the role handle the event at once, then spend the time that it costs."""
        buffers = self.gateway.buffers
        assert isinstance(buffers, ModelBuffers)
        before = buffers.drained_tuples
        effects = settled(self._roles, to, self._roles[to].handle(event, self.world.now_us), self.world.now_us)
        work_us += self.world.costs.master_tuple_ns / 2 * (buffers.drained_tuples - before) / 1000

        def then() -> None:
            perform(effects, self._performers)
            self.loop()

        self.work(work_us, then)

    # ------------------------------------------------------------ performers

    def _want(self, effect: Read) -> None:
        self._wanted = effect.stream

    def _send(self, effect: Send) -> None:
        message = effect.message
        if isinstance(message, Delivery):
            self._outbox.append(message)
        elif isinstance(message, MeasuringStarted):
            receiver = self.collector if effect.to == COLLECTOR else self.slaves[slave_of(effect.to)]
            self.world.time.after(self.world.transfer_us(_HEADER_BYTES), partial(receiver.start_measuring, message))
        else:
            raise UnknownEffectError(message)

    def _log(self, effect: Log) -> None:
        self.events.append(effect.event)

    def _set_timer(self, effect: SetTimer) -> None:
        """Run the loop at that time, unless busy."""
        self._timers.set(effect)
        self.world.at_clock(float(effect.at_us), lambda: None if self.busy else self.loop())

    def _restart_clock(self, effect: RestartClock) -> None:
        """Start measuring after the prefill: the run's clock shows stream time from now on."""
        world = self.world
        world.ahead_us = effect.clock_us - world.time.now_us
        self.measured_from_us = world.time.now_us
        self.usage.clear()
        world.cores.busy_us = 0.0


class ModelCollector(Actor):
    def __init__(self, world: World, collector: Collector) -> None:
        super().__init__(world)
        self.collector = collector
        self.nbytes = 0.0
        self.metrics: list[NDArray[np.float64]] = []
        self.slaves: list[ModelSlave] = []
        self._performers: Performers = {Send: self._grant, CommitEpoch: nothing, RestartClock: nothing, Finish: nothing}

    def _grant(self, effect: Send) -> None:
        slave = self.slaves[slave_of(effect.to)]
        event = Received(COLLECTOR, effect.message)
        self.world.time.after(self.world.transfer_us(_HEADER_BYTES), partial(slave.receive, event))

    def start_measuring(self, message: MeasuringStarted) -> None:
        perform(self.collector.handle(Received(MASTER, message), self.world.now_us), self._performers)

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
            received = Received(slave_role(chunk.slave), chunk)
            perform(self.collector.handle(received, self.world.now_us), self._performers)
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
        self._pair_bytes = pair_bytes  # 0: pairs are only counted
        self._kept_bytes = payload_bytes if pair_bytes else 0  # payload of a tuple in the windows
        self._owed_us = 0.0  # CPU time of messages handled, charged with the next piece of work
        self._process_us = 0.0
        self._measured = Usage()
        self._measured_at_us = 0.0
        self._sent_until_us: dict[SlaveId, float] = {}
        self._in_prefill = world.config.measure.prefill_us > 0
        self._performers: Performers = {
            Send: self._send,
            SetTimer: self._set_timer,
            RestartClock: nothing,  # the master's effect restarts the common clock
            Finish: nothing,
        }
        join.span_us = self._span_us

    def start(self) -> None:
        self._perform(self.slave.start(), self.loop)

    def start_measuring(self, message: MeasuringStarted) -> None:
        self._in_prefill = False
        self.usage.clear()
        self._measured = Usage()
        self._measured_at_us, self._process_us = self.world.time.now_us, 0.0
        self.receive(Received(MASTER, message))

    def _set_timer(self, effect: SetTimer) -> None:
        def fire() -> None:
            if not self.slave.finished:
                self.receive(TimerFired(effect.timer))

        self.world.at_clock(float(effect.at_us), fire)

    def receive(self, event: Event) -> None:
        """Take a message: the role handles it between two pieces of work, in no virtual time."""
        if self.blocked:
            self._callers.append(partial(self.receive, event))
            return
        self._owed_us += self.world.costs.message_ns / 1000
        self._perform(self.slave.handle(event, self.world.now_us), self.wake)

    def loop(self) -> None:
        if self.slave.finished or not self.slave.has_work:
            self.rest()
            return
        self._report_times()
        now, before = self.world.now_us, self._copy_meter()
        effects = self.slave.handle(WorkDue(), now)
        did = self._since(before)
        work_us = self._work_us(did) + self._owed_us
        self._owed_us = 0.0
        self.polls_us = work_us / self._pieces(did) / 2
        self._process_us += work_us

        def then() -> None:
            idle_us = work_us * (1 / self._speed() - 1)  # a slower node, see runtime.slow_node
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
            self._perform(effects, self.loop)

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
        if self.world.realtime and not self._in_prefill:
            ns *= c.slave_realtime_ratio * (1 + c.slave_sleep_ratio * (1 / self._speed() - 1))
        return ns / 1000

    def _pieces(self, did: Meter) -> float:
        """Steps of a real slave for this work: whole partition-groups, at least `STEP_TUPLES` tuples each."""
        if not did.tuples or not did.groups:
            return 1.0
        at_least = STEP_TUPLES if self._in_prefill else self.slave.step_tuples
        return max(1.0, did.groups / math.ceil(at_least * did.groups / did.tuples))

    def _speed(self) -> float:
        """The node's speed; slow nodes are not imitated during the prefill."""
        return 1.0 if self._in_prefill else self.world.config.nodes.speed_of(self.slave.id, self.world.now_us)

    def _span_us(self, did: Meter) -> float:
        """Time from the first to the last stamp of a step's pairs: up to the start of its last real piece."""
        work_us = self._work_us(did)
        return work_us * (1 - 1 / self._pieces(did)) * self.world.cores.slowdown / self._speed()

    def _report_times(self) -> None:
        now, used, past = self.world.time.now_us, self.usage, self._measured
        cpu, link = used.cpu_us - past.cpu_us, used.link_us + used.waiting_us - past.link_us - past.waiting_us
        idle = max(0.0, now - self._measured_at_us - link - self._process_us)
        self.slave.handle(TimesMeasured(int(cpu), int(link), int(idle), int(self._process_us)), int(now))
        self._measured, self._measured_at_us, self._process_us = Usage(used.cpu_us, used.link_us, used.waiting_us), now, 0.0

    # ------------------------------------------------------------ messages

    def _perform(self, effects: list[Effect], then: Action) -> None:
        """Perform effects in order; results may wait for the collector."""
        left = deque(effects)

        def perform_next() -> None:
            while left:
                effect = left.popleft()
                if isinstance(effect, Send) and isinstance(effect.message, ResultChunk):
                    chunk = effect.message
                    nbytes = _CHUNK_BYTES + 24 * (0 if chunk.results is None else len(chunk.results.groups))
                    self.send(nbytes, self.collector, partial(self.collector.receive, chunk, nbytes), perform_next)
                    return
                perform([effect], self._performers)
            then()

        perform_next()

    def _send(self, effect: Send) -> None:
        """Send a message without waiting."""
        message, time, transfer_us = effect.message, self.world.time, self.world.transfer_us
        event = Received(slave_role(self.slave.id), message)
        if effect.to in (MASTER, GATEWAY):
            loads = message.loads if isinstance(message, LoadReport) else None
            nbytes = _HEADER_BYTES if loads is None else _HEADER_BYTES + 24 * len(loads.groups)
            time.after(transfer_us(nbytes), partial(self.master.receive, effect.to, event))
            return
        peer = self.peers[slave_of(effect.to)]
        if not isinstance(message, StateChunk):
            time.after(transfer_us(_HEADER_BYTES), partial(peer.receive, event))
            return
        self.usage.link_us += transfer_us(message.nbytes)
        at_us = time.now_us + transfer_us(_HEADER_BYTES + message.nbytes) + peer.attention_us()
        at_us = max(at_us, self._sent_until_us.get(peer.slave.id, 0.0))  # messages stay in order
        self._sent_until_us[peer.slave.id] = at_us
        time.at(at_us, partial(peer.receive, event))
