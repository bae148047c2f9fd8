"""Ranks in virtual time: which roles a rank plays, and the loops around them with their durations.

What: `ModelRank`; `ModelMaster`, `ModelGateway`, `ModelSlave` and `ModelSink`, the hosts of its roles.
Why: the loops are those of `runtime.host` and `runtime.mpi`: the roles of a rank take turns. A gateway delivers, then takes
messages, then reads; sending a large delivery keeps its rank busy, because the send waits for the slave. A slave polls for
messages between two pieces of work. A sink takes one chunk at a time.
Stays out: the costs (`forecast.costs`), the whole run (`forecast.model.run`), decisions of the roles.
"""

from __future__ import annotations

import dataclasses
import math
from collections import deque
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import EpochPlan, EpochWanted, LoadReport, MeasuringStarted, Message
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import (
    MASTER,
    BatchRead,
    CommitEpoch,
    Effect,
    Event,
    Finish,
    OpenSplit,
    Read,
    Received,
    RestartClock,
    Role,
    RoleId,
    Send,
    SetTimer,
    SourceEnded,
    SplitOpened,
    TimerFired,
    TimesMeasured,
    WorkDue,
    Write,
    gateway_role,
    sink_role,
    slave_role,
)
from swjoin.cluster.slave.slave import STEP_TUPLES, Slave
from swjoin.cluster.wire import FORMATS
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.data_messages import Delivery, ResultChunk, StateChunk
from swjoin.forecast.model import discrete_event
from swjoin.forecast.model.discrete_event import Actor, Usage, World
from swjoin.forecast.model.join import ModelJoin
from swjoin.forecast.model.master_input import ModelSource
from swjoin.forecast.model.windows import Meter
from swjoin.runtime.host import Performers, Timers, nothing, perform
from swjoin.runtime.mpi.transport import MpiTransport, waits

_HEADER_BYTES = 1024
_CHUNK_BYTES = 9_000  # a final result chunk without pairs: mostly the histogram of delays
_GROUP_BYTES = 24  # of each partition-group in a message
_NUMBER_BYTES = 8  # of each slave in a message


def _numbers(message: Message) -> int:
    """Numbers in a message about an epoch, one or two for every slave."""
    if isinstance(message, EpochWanted):
        return len(message.fed_bytes) + len(message.parked_bytes)
    return len(message.served) if isinstance(message, EpochPlan) else 0


def wire_bytes(message: Message) -> float:
    """Bytes of a message between two ranks."""
    match message:
        case Delivery():
            moves = len(message.moves_in) + len(message.moves_out)
            return _HEADER_BYTES + _GROUP_BYTES * (len(message.groups) + moves) + message.nbytes
        case ResultChunk():
            pairs = 0 if message.pairs is None else message.pairs.nbytes
            sums = 0 if message.results is None else _CHUNK_BYTES + _GROUP_BYTES * len(message.results.groups)
            return pairs + (sums or _HEADER_BYTES)
        case StateChunk():
            return _HEADER_BYTES + message.nbytes
        case LoadReport():
            return _HEADER_BYTES + (0 if message.loads is None else _GROUP_BYTES * len(message.loads.groups))
        case _:
            return _HEADER_BYTES + _NUMBER_BYTES * _numbers(message)


class ModelRank(Actor):
    """One rank; its roles take turns."""

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self.hosts: deque[ModelHost] = deque()

    def loop(self) -> None:
        for _ in range(len(self.hosts)):
            self.hosts.rotate(-1)
            if self.hosts[-1].act():
                return
        self.rest()

    def longest_poll_us(self) -> float:
        """Shorter while a slave waits for its delivery."""
        longest_us = super().longest_poll_us()
        eager = any(host.expects_delivery for host in self.hosts)
        return min(longest_us, MpiTransport.eager_us or longest_us) if eager else longest_us


class ModelHost:
    """One role on its rank. hosts: of all roles of the run. ranks: which rank plays which roles."""

    role: Role

    def __init__(self, name: RoleId, rank: ModelRank, hosts: dict[RoleId, ModelHost], ranks: RankMap) -> None:
        self.name, self.rank, self.world = name, rank, rank.world
        self.usage = Usage()
        self.hosts, self._ranks = hosts, ranks
        self.performers: Performers = {
            Send: lambda effect: self.send(effect.to, effect.message),
            RestartClock: nothing,  # the master's effect restarts the common clock
            Finish: nothing,
        }
        rank.hosts.append(self)
        hosts[name] = self

    @property
    def expects_delivery(self) -> bool:
        return False

    def start(self) -> None:
        self.perform(self.role.start())

    def perform(self, effects: list[Effect]) -> None:
        perform(effects, self.performers)

    def receive(self, event: Event, cost_us: float) -> None:
        """Take a message. cost_us: CPU time of taking it from the wire."""
        raise NotImplementedError

    def act(self) -> bool:
        """Begin a piece of work on the rank, if there is some."""
        raise NotImplementedError

    def _is_here(self, role: RoleId) -> bool:
        return self.hosts[role].rank is self.rank

    def send(self, to: RoleId, message: Message, then: Callable[[], None] | None = None) -> None:
        """Send a message, then continue; where the rank waits inside a send, not before its end."""
        target, event = self.hosts[to], Received(self.name, message)
        blocks = then is not None and waits(self.name, self._ranks, FORMATS[type(message)])
        if self._is_here(to):
            target.receive(event, 0.0)
        else:
            costs = self.world.costs
            arrive = partial(target.receive, event, (costs.message_ns + costs.number_ns * _numbers(message)) / 1000)
            parcel = discrete_event.Message(wire_bytes(message), arrive, self.usage, target.usage, then if blocks else None)
            self.rank.send(target.rank, parcel)
            if blocks:
                return
        if then is not None:
            then()

    def _spend(self, work_us: float, effects: list[Effect]) -> None:
        """Work so long, then perform the effects."""

        def then() -> None:
            self.perform(effects)
            self.rank.loop()

        self.rank.work(self.usage, work_us, then)


class _Mailbox(ModelHost):
    """A role that handles one event after the other."""

    def __init__(self, name: RoleId, rank: ModelRank, hosts: dict[RoleId, ModelHost], ranks: RankMap) -> None:
        super().__init__(name, rank, hosts, ranks)
        self._inbox: deque[tuple[Event, float]] = deque()

    def receive(self, event: Event, cost_us: float) -> None:
        if isinstance(event, Received) and isinstance(event.message, MeasuringStarted):
            self.usage.clear()
        self._inbox.append((event, cost_us))

    def act(self) -> bool:
        if not self._inbox:
            return False
        self._handle(*self._inbox.popleft())
        return True

    def _work_us(self, effects: list[Effect]) -> float:
        """CPU time of what the role did, besides messages."""
        return 0.0

    def _handle(self, event: Event, work_us: float) -> None:
        """Let the role handle the event at once, then spend the time that this takes, and sending what follows."""
        effects = self.role.handle(event, self.world.now_us)
        work_us += self._work_us(effects)
        sent = (e.message for e in effects if isinstance(e, Send) and not self._is_here(e.to))
        messages = sum(not isinstance(message, Delivery) for message in sent)
        self._spend(work_us + messages * self.world.costs.message_ns / 1000, effects)


class ModelMaster(_Mailbox):
    """measured_from_us: virtual time at the end of the prefill."""

    role: Master

    def __init__(self, rank: ModelRank, master: Master, hosts: dict[RoleId, ModelHost], ranks: RankMap) -> None:
        super().__init__(MASTER, rank, hosts, ranks)
        self.role = master
        self.measured_from_us: float | None = None
        self.performers[RestartClock] = self._restart_clock

    def _restart_clock(self, effect: RestartClock) -> None:
        """Start measuring after the prefill: the run's clock shows stream time from now on."""
        world = self.world
        world.ahead_us = effect.clock_us - world.time.now_us
        self.measured_from_us = world.time.now_us
        self.usage.clear()
        world.cores.busy_us = 0.0


class ModelGateway(_Mailbox):
    """A gateway with its sources."""

    role: Gateway

    def __init__(
        self,
        rank: ModelRank,
        gateway: Gateway,
        sources: tuple[ModelSource, ModelSource],
        hosts: dict[RoleId, ModelHost],
        ranks: RankMap,
    ) -> None:
        super().__init__(gateway_role(gateway.number), rank, hosts, ranks)
        self.role = gateway
        self.first_read_us: float | None = None
        self._sources = sources
        self._outbox: deque[Send] = deque()
        self._to_open: deque[OpenSplit] = deque()
        self._wanted: int | None = None
        self._read: Event | None = None  # the batch that is being read
        self._unread_us = 0.0  # of reading it
        self._unread_rows = 0
        self._timers = Timers()
        self.performers |= {
            Read: self._want,
            OpenSplit: self._to_open.append,
            Send: self._send,
            SetTimer: self._set_timer,
        }

    def act(self) -> bool:
        if self._outbox:
            self._deliver(self._outbox.popleft())
        elif self._inbox:
            super().act()
        elif (timer := self._timers.take(self.world.now_us)) is not None:
            self._handle(TimerFired(timer[0]), 0.0)
        elif self._to_open:
            effect = self._to_open.popleft()
            before_us = self._sources[effect.stream].open_split(effect.split, effect.skip)
            self._handle(SplitOpened(effect.stream, before_us), 0.0)
        elif self._read is not None or self._wanted is not None:
            self._read_some()
        else:
            return False
        return True

    def _deliver(self, effect: Send) -> None:
        delivery = effect.message
        assert isinstance(delivery, Delivery)
        costs = self.world.costs
        work_us = (costs.message_ns + costs.master_byte_ns * delivery.nbytes) / 1000
        then = partial(self.send, effect.to, delivery, self.rank.loop)
        self.rank.work(self.usage, 0.0 if self._is_here(effect.to) else work_us, then)

    def _read_some(self) -> None:
        """Read the wanted batch, in pieces of at most `BATCH_ROWS` rows, as real batches are; then let the role handle it."""
        if self._read is None:
            self._begin_reading()
        assert self._read is not None
        share = min(1.0, BATCH_ROWS / max(1, self._unread_rows))
        piece_us = self._unread_us * share
        self._unread_us -= piece_us
        self._unread_rows -= min(BATCH_ROWS, self._unread_rows)
        then: Callable[[], None] = self.rank.loop
        if not self._unread_rows:
            then, self._read = partial(self._handle, self._read, 0.0), None
        self.rank.work(self.usage, piece_us, then)

    def _begin_reading(self) -> None:
        stream, self._wanted = self._wanted, None
        assert stream is not None
        if self.first_read_us is None:
            self.first_read_us = self.world.time.now_us
        source, costs = self._sources[stream], self.world.costs
        batch = source.read()
        self._unread_rows = 0 if batch is None else len(batch)
        source_ns = costs.source_tuple_ns + costs.source_byte_ns * source.payload_bytes
        self._unread_us = (source_ns + costs.master_tuple_ns / 2) * self._unread_rows / 1000
        self._read = SourceEnded(stream) if batch is None else BatchRead(stream, batch)

    def _work_us(self, effects: list[Effect]) -> float:
        tuples = sum(
            len(e.message.left) + len(e.message.right)
            for e in effects
            if isinstance(e, Send) and isinstance(e.message, Delivery)
        )
        return self.world.costs.master_tuple_ns / 2 * tuples / 1000

    # ------------------------------------------------------------ performers

    def _want(self, effect: Read) -> None:
        self._wanted = effect.stream

    def _send(self, effect: Send) -> None:
        """Deliveries wait for their turn."""
        if isinstance(effect.message, Delivery):
            self._outbox.append(effect)
        else:
            self.send(effect.to, effect.message)

    def _set_timer(self, effect: SetTimer) -> None:
        """Run the loop at that time, unless busy."""
        self._timers.set(effect)
        self.world.at_clock(float(effect.at_us), self.rank.go_on)


class ModelSink(_Mailbox):
    """The collector, or a further sink. metrics: of the first one."""

    role: Collector

    def __init__(self, rank: ModelRank, sink: Collector, hosts: dict[RoleId, ModelHost], ranks: RankMap) -> None:
        super().__init__(sink_role(sink.number), rank, hosts, ranks)
        self.role = sink
        self.nbytes = 0.0
        self.metrics: list[NDArray[np.float64]] = []
        self.performers |= {CommitEpoch: nothing, Write: nothing}

    def _handle(self, event: Event, work_us: float) -> None:
        effects = self.role.handle(event, self.world.now_us)
        if isinstance(event, Received) and isinstance(event.message, ResultChunk):
            chunk, costs = event.message, self.world.costs
            nbytes = 0 if chunk.pairs is None else chunk.pairs.nbytes
            work_us = (costs.collector_chunk_ns + costs.collector_byte_ns * nbytes) / 1000
            self.nbytes += wire_bytes(chunk)
            self.metrics += [row for _, row in self.role.take_metrics()]
        self.rank.polls_us = work_us / 2
        self._spend(work_us, effects)


class ModelSlave(ModelHost):
    """A slave. It handles messages between two pieces of work, in no virtual time; the next piece is charged for them."""

    role: Slave

    def __init__(
        self, rank: ModelRank, slave: Slave, join: ModelJoin, kept_bytes: int, hosts: dict[RoleId, ModelHost], ranks: RankMap
    ) -> None:
        """kept_bytes: payload of a tuple in the windows."""
        super().__init__(slave_role(slave.id), rank, hosts, ranks)
        self.role, self.join = slave, join
        self._kept_bytes = kept_bytes
        self._owed_us = 0.0
        self._process_us = 0.0
        self._measured = Usage()
        self._measured_at_us = 0.0
        self._in_prefill = self.world.config.measure.prefill_us > 0
        self.performers[SetTimer] = self._set_timer
        join.span_us = self._span_us

    @property
    def expects_delivery(self) -> bool:
        return self.role.expects_delivery

    def _set_timer(self, effect: SetTimer) -> None:
        def fire() -> None:
            if not self.role.finished:
                self.receive(TimerFired(effect.timer), self.world.costs.message_ns / 1000)
                self.rank.wake()

        self.world.at_clock(float(effect.at_us), fire)

    def receive(self, event: Event, cost_us: float) -> None:
        if isinstance(event, Received) and isinstance(event.message, MeasuringStarted):
            self._in_prefill = False
            self.usage.clear()
            self._measured = Usage()
            self._measured_at_us, self._process_us = self.world.time.now_us, 0.0
        self._owed_us += cost_us
        self.perform(self.role.handle(event, self.world.now_us))

    def act(self) -> bool:
        if self.role.finished or not self.role.has_work:
            return False
        self._report_times()
        meter = vars(self.join.meter)
        before = tuple(meter.values())
        effects = self.role.handle(WorkDue(), self.world.now_us)
        did = Meter(*(after - earlier for after, earlier in zip(meter.values(), before, strict=True)))
        work_us = self._work_us(did) + self._owed_us
        self._owed_us = 0.0
        self.rank.polls_us = work_us / self._pieces(did) / 2
        self._process_us += work_us

        def then() -> None:
            idle_us = work_us * (1 / self._speed() - 1)  # a slower node, see runtime.slow_node
            self._process_us += idle_us
            self.usage.slowed_us += idle_us
            if idle_us:
                self.world.time.after(idle_us, finish)
            else:
                finish()

        def finish() -> None:
            self.perform(effects)
            self.rank.loop()

        self.rank.work(self.usage, work_us, then)
        return True

    # ------------------------------------------------------------ what work costs

    def _work_us(self, did: Meter) -> float:
        c = self.world.costs
        ns = (c.slave_tuple_ns + c.slave_byte_ns * self._kept_bytes) * did.tuples
        ns += c.slave_comparison_ns * did.comparisons + c.slave_pair_ns * did.pairs
        ns += c.slave_visit_ns * did.visits + c.slave_delivery_ns * did.deliveries + c.slave_growth_ns * did.growth
        ns += c.slave_result_byte_ns * self.join.pair_bytes * did.pairs
        ns += c.extract_byte_ns * did.extracted_bytes + c.install_byte_ns * did.installed_bytes
        if self.world.realtime and not self._in_prefill:
            ns *= c.slave_realtime_ratio * (1 + c.slave_sleep_ratio * (1 / self._speed() - 1))
        return ns / 1000

    def _pieces(self, did: Meter) -> float:
        """Steps of a real slave for this work: whole partition-groups, at least `STEP_TUPLES` tuples each."""
        if not did.tuples or not did.groups:
            return 1.0
        at_least = STEP_TUPLES if self._in_prefill else self.role.step_tuples
        return max(1.0, did.groups / math.ceil(at_least * did.groups / did.tuples))

    def _speed(self) -> float:
        """The node's speed; slow nodes are not imitated during the prefill."""
        return 1.0 if self._in_prefill else self.world.config.nodes.speed_of(self.role.id, self.world.now_us)

    def _span_us(self, did: Meter) -> float:
        """Time from the first to the last stamp of a step's pairs: up to the start of its last real piece."""
        work_us = self._work_us(did)
        return work_us * (1 - 1 / self._pieces(did)) * self.world.cores.slowdown / self._speed()

    def _report_times(self) -> None:
        now, used, past = self.world.time.now_us, self.usage, self._measured
        cpu, link = used.cpu_us - past.cpu_us, used.link_us + used.waiting_us - past.link_us - past.waiting_us
        idle = max(0.0, now - self._measured_at_us - link - self._process_us)
        self.role.handle(TimesMeasured(int(cpu), int(link), int(idle), int(self._process_us)), int(now))
        self._measured, self._measured_at_us, self._process_us = dataclasses.replace(used), now, 0.0
