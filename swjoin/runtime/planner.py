"""A run foretold: the production roles in virtual time, over counts, with a cost model.

What: `plan(config, slaves, costs) -> Plan`.
Why: what a cluster of 1,024 slaves would do is asked before there is one; roles and policies are the ones that would run there.
Stays out: what costs what (`runtime.costs`), what is concluded (`runtime.forecast`), counts (`operators.counted_join`).

The loops of the ranks are those of `runtime.mpi`: the master delivers, then hears reports, then reads; it is busy while it sends a
large message, because that is sent blocking, to a slave that has asked for it; a slave looks for messages between two pieces of
work; the collector takes one chunk after the other. What differs from `runtime.simulator`: there delays are random and every
step is checked, here they are costs and a step may hold a million tuples.
"""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import LEFT, RIGHT, RowLayout
from swjoin.cluster.collector import Collector
from swjoin.cluster.master import Door, Master
from swjoin.cluster.slave import STEP_TUPLES, Slave
from swjoin.config import RunConfig
from swjoin.errors import UserError
from swjoin.messages import (
    AcknowledgeMove,
    ClockAdvanced,
    Deliver,
    Delivered,
    Delivery,
    ExchangeDue,
    Log,
    MasterCommand,
    MasterEvent,
    MoveEnded,
    ReadTuples,
    Report,
    ResultChunk,
    ResultsReceived,
    RunEvent,
    SendResults,
    SendState,
    SlaveCommand,
    SlaveEvent,
    SlaveId,
    SlaveReported,
    StateReceived,
    StateWanted,
    StreamEnded,
    TimesMeasured,
    TuplesRead,
    WantState,
    WorkDue,
)
from swjoin.operators.counted_join import CountedJoin, Meter
from swjoin.operators.counts import TUPLE_BYTES, Census
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.costs import CostModel
from swjoin.runtime.counted import CountedBuffers, CountedIntake, CountedSource
from swjoin.runtime.virtual import Action, Cores, Task, Timeline
from swjoin.sources.census import take_census

_FIRST_POLL_US = 20.0
_HEADER_BYTES = 1024
_CHUNK_BYTES = 9_000  # a final result chunk without pairs: mostly the histogram of delays


@dataclass
class Usage:
    """Where an actor's time went, microseconds: CPU, on the link, waiting for a receiver, and what a slower node adds."""

    cpu_us: float = 0.0
    link_us: float = 0.0
    waiting_us: float = 0.0
    slowed_us: float = 0.0


@dataclass
class Plan:
    """What was foretold. end_us: when everything had ended; begin_us: when the first tuple was read."""

    config: RunConfig
    slave_count: int
    costs: CostModel
    begin_us: float
    end_us: float
    complete: bool
    steps: int
    master: Master
    slaves: list[Slave]
    collector: Collector
    usage: dict[str, Any]
    cores: Cores
    results_bytes: float
    metrics: list[NDArray[np.float64]] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)


class _World:
    """What all actors share."""

    def __init__(self, config: RunConfig, costs: CostModel, host_cores: int) -> None:
        self.config, self.costs = config, costs
        self.time = Timeline()
        self.cores = Cores(self.time, host_cores, costs.shared_capacity)
        self.realtime = config.pace == "realtime"

    @property
    def now_us(self) -> int:
        return int(self.time.now_us)

    def transfer_us(self, nbytes: float) -> float:
        return self.costs.link_latency_us + nbytes / self.costs.link_bytes_per_s * 1e6


class _Actor:
    """A rank: idle, working, or blocked while it sends."""

    def __init__(self, world: _World) -> None:
        self.world = world
        self.usage = Usage()
        self.task: Task | None = None
        self.busy = False
        self.blocked = False
        self.polls_us = 0.0  # half of what a piece of work takes that is not interrupted
        self._idle_since_us = 0.0
        self._waking = False
        self._callers: deque[Action] = deque()

    def loop(self) -> None:
        """Do the next thing, or be idle."""
        raise NotImplementedError

    def _begin(self) -> None:
        """Idle no more; on a shared host the looks for messages have taken CPU time from the others."""
        if not self.busy and self.world.cores.shared:
            looks_us = self._looks()[0] * self.world.costs.look_ns / 1000
            if looks_us:
                self.world.cores.run(looks_us, lambda: None)
        self.busy = True

    def work(self, work_us: float, then: Action) -> None:
        self._begin()
        self.usage.cpu_us += work_us

        def done() -> None:
            self.task = None
            then()

        self.task = self.world.cores.run(work_us, done)

    def rest(self) -> None:
        self.busy = False
        self._idle_since_us = self.world.time.now_us

    def attention_us(self) -> float:
        """How long a message waits until it is noticed: half the interval between two looks."""
        return self.polls_us if self.busy else self._looks()[1] / 2

    def _looks(self) -> tuple[int, float]:
        """How often an idle rank has looked for messages, and the interval to the next look (see `runtime.mpi`)."""
        costs = self.world.costs
        if not costs.poll_longest_us:
            return 0, 0.0
        left = self.world.time.now_us - self._idle_since_us
        count, interval = 0, _FIRST_POLL_US
        while interval < costs.poll_longest_us and left > interval + costs.sleep_extra_us:
            left -= interval + costs.sleep_extra_us
            interval = min(1.5 * interval, costs.poll_longest_us)
            count += 1
        whole = max(0.0, left) / (interval + costs.sleep_extra_us)
        return count + int(whole), interval + costs.sleep_extra_us

    def wake(self) -> None:
        """Something has come."""
        if self.busy or self._waking:
            return
        self._waking = True
        self.world.time.after(self.attention_us(), self._awake)

    def _awake(self) -> None:
        self._waking = False
        if not self.busy:
            self.loop()

    def when_attentive(self, caller: Action) -> None:
        """Call back once this rank takes a large message."""
        if self.blocked:
            self._callers.append(caller)
        else:
            self.world.time.after(self.attention_us(), caller)

    def send(self, nbytes: float, receiver: _Actor, arrive: Action, then: Action) -> None:
        """A message: a small one goes by itself, a large one waits for its receiver and takes both ranks' time."""
        costs, time = self.world.costs, self.world.time
        transfer_us = self.world.transfer_us(nbytes)
        if nbytes <= costs.eager_bytes:
            time.after(transfer_us, arrive)
            then()
            return
        self._begin()
        self.blocked = True
        begun_us = time.now_us

        def begin() -> None:
            self.usage.waiting_us += time.now_us - begun_us
            self.usage.link_us += transfer_us
            receiver.usage.link_us += transfer_us
            if receiver.task is not None:
                self.world.cores.extend(receiver.task, transfer_us)
            self.world.cores.run(transfer_us, end)

        def end() -> None:
            self.blocked = False
            arrive()
            while self._callers:
                self._callers.popleft()()
            then()

        receiver.when_attentive(begin)


class _MasterActor(_Actor):
    def __init__(self, world: _World, master: Master, sources: tuple[CountedSource, CountedSource], payload_bytes: int) -> None:
        super().__init__(world)
        self._payload_bytes = payload_bytes
        self.master = master
        self.slaves: list[_SlaveActor] = []
        self.events: list[RunEvent] = []
        self.first_read_us: float | None = None
        self._sources = sources
        self._outbox: deque[Delivery] = deque()
        self._inbox: deque[MasterEvent] = deque()
        self._wanted: int | None = None
        cluster = world.config.cluster
        self._slot_us = max(1, cluster.distribution_epoch_us // cluster.sub_group_count)
        self._boundary_us = self._slot_us

    def start(self) -> None:
        self._perform(self.master.start())
        if self.world.realtime:
            self._tick()
        self.loop()

    def _tick(self) -> None:
        """Look up at every boundary."""
        if self.master.finished:
            return

        def due() -> None:
            if not self.busy:
                self.loop()
            self._tick()

        self.world.time.at(float(next_exchange_us(self.world.now_us, self._slot_us)), due)

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
        elif self.world.realtime and now >= self._boundary_us and not self.master.finished:
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
        assert isinstance(buffers, CountedBuffers)
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
                case _:
                    pass


class _CollectorActor(_Actor):
    def __init__(self, world: _World, collector: Collector) -> None:
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
            self.collector.handle(ResultsReceived(chunk), self.world.now_us)
            self.metrics += self.collector.take_metrics()
            nbytes -= _CHUNK_BYTES
        self.work((costs.collector_chunk_ns + costs.collector_byte_ns * max(0.0, nbytes)) / 1000, self.loop)


class _SlaveActor(_Actor):
    def __init__(self, world: _World, slave: Slave, join: CountedJoin, pair_bytes: int) -> None:
        super().__init__(world)
        self.slave, self.join = slave, join
        self.master: _MasterActor
        self.collector: _CollectorActor
        self.peers: list[_SlaveActor] = []
        self._pair_bytes = pair_bytes  # 0: pairs are counted only
        self._owed_us = 0.0  # CPU time of messages handled, charged with the next piece of work
        self._process_us = 0.0
        self._told = Usage()
        self._told_at_us = 0.0
        self._sent_until_us: dict[SlaveId, float] = {}
        join.span_us = self._span_us

    def start(self) -> None:
        self._perform(self.slave.start(), self.loop)
        if self.world.realtime:
            self._exchange()

    def _exchange(self) -> None:
        cluster = self.world.config.cluster
        t_d = cluster.distribution_epoch_us
        offset_us = slot_offset_us(self.slave.id, cluster.sub_group_count, t_d)

        def due() -> None:
            if not self.slave.finished:
                self.receive(ExchangeDue())
                self._exchange()

        self.world.time.at(float(next_exchange_us(self.world.now_us, t_d, offset_us)), due)

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
        self.polls_us = work_us * min(1.0, STEP_TUPLES / max(1, did.tuples)) / 2
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
        ns = c.slave_tuple_ns * did.tuples + c.slave_comparison_ns * did.comparisons + c.slave_pair_ns * did.pairs
        ns += c.slave_visit_ns * did.visits + c.slave_delivery_ns * did.deliveries + c.slave_growth_ns * did.growth
        ns += c.slave_result_byte_ns * self._pair_bytes * did.pairs
        ns += c.extract_byte_ns * did.extracted_bytes + c.install_byte_ns * did.installed_bytes
        return ns / 1000

    def _speed(self) -> float:
        return self.world.config.nodes.speed_of(self.slave.id, self.world.now_us)

    def _span_us(self, did: Meter) -> float:
        """How long pairs of a step keep coming: to the start of its last real piece, whose clock they are stamped with."""
        work_us = self._work_us(did)
        pieces = max(1.0, did.tuples / STEP_TUPLES)
        return work_us * (1 - 1 / pieces) * self.world.cores.slowdown / self._speed()

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
                    case _:
                        pass
            then()

        go_on()


def _layouts(config: RunConfig) -> tuple[RowLayout | None, RowLayout | None]:
    """Payload as the generator would carry it."""
    from swjoin.sources.generator import GeneratorSource

    carry = config.sink.kind != "count" or config.sink.carry_payload
    layout = GeneratorSource(config.workload, config.seed, LEFT, carry_payload=carry).layout if carry else None
    return layout, layout


def _join(config: RunConfig, census: Census, tuple_bytes: int) -> CountedJoin:
    module = config.module
    return CountedJoin(
        census,
        config.query.bounds,
        block_tuples=module.block_tuples,
        theta_tuples=module.theta_tuples,
        window_bytes=module.window_bytes,
        tuple_bytes=tuple_bytes,
    )


def plan(
    config: RunConfig,
    slave_count: int,
    costs: CostModel,
    *,
    host_cores: int = 0,
    limit_us: float = float("inf"),
    check: Callable[[Plan], None] | None = None,
) -> Plan:
    """Run a configuration in virtual time. host_cores: all ranks share so many; 0: a core for every rank. limit_us: end then,
    `complete` is False. check: called after every step (tests).

    UserError when the configuration reads files or needs more slaves; RunFailed when the windows or buffers are too small.
    """
    if config.left.path is not None:
        raise UserError("simulate draws its tuples from the workload section; leave out left.path and right.path")
    if slave_count < 1:
        raise UserError(f"--slaves {slave_count}: at least one slave is needed")
    config.check_slaves(slave_count)
    world = _World(config, costs, host_cores)
    layouts = _layouts(config)
    payload_bytes = 0 if layouts[LEFT] is None else layouts[LEFT].fixed_bytes
    tuple_bytes = TUPLE_BYTES + payload_bytes
    pair_bytes = 0 if config.sink.kind == "count" else 40 + 2 * payload_bytes
    census = take_census(config)
    intakes = [CountedIntake(stream, config.time, census, tuple_bytes) for stream in (LEFT, RIGHT)]
    door = Door(
        (intakes[LEFT], intakes[RIGHT]),
        lambda router: CountedBuffers(router, config.cluster.sub_group_count, tuple_bytes),
    )
    sources = (CountedSource(census, config.seed, LEFT), CountedSource(census, config.seed, RIGHT))
    master = _MasterActor(world, Master(config, slave_count, layouts, door), sources, payload_bytes)
    collector = _CollectorActor(world, Collector(slave_count, materialised=False))
    actors = []
    for i in range(slave_count):
        join = _join(config, census, tuple_bytes)
        actors.append(_SlaveActor(world, Slave(SlaveId(i), config, layouts, join), join, pair_bytes))
    master.slaves = actors
    for actor in actors:
        actor.master, actor.collector, actor.peers = master, collector, actors
    out = Plan(
        config,
        slave_count,
        costs,
        0.0,
        0.0,
        False,
        0,
        master.master,
        [a.slave for a in actors],
        collector.collector,
        {"master": master.usage, "collector": collector.usage, "slaves": [a.usage for a in actors]},
        world.cores,
        0.0,
        collector.metrics,
        master.events,
    )
    for actor in actors:
        actor.start()
    master.start()
    while world.time.now_us < limit_us and world.time.step():
        if check is not None:
            check(out)
        if collector.collector.finished and master.master.finished and all(a.slave.finished for a in actors):
            out.complete = True
            break
    out.begin_us = master.first_read_us or 0.0
    out.end_us, out.steps, out.results_bytes = world.time.now_us, world.time.steps, collector.nbytes
    return out
