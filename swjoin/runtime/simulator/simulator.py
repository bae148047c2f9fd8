"""The seeded simulator: the production roles in virtual time, under random delays that change the order of events.

What: `Simulation(...).run() -> SimulationResult`, a discrete-event run of all roles; checkers after every step.
Why: a protocol bug that loses a few tuples once a week on a cluster appears here within seconds, with a seed that repeats it.
Stays out: real time, real files, choosing scenarios (`tests.tools.random_runs`).

Only messages from one sender to one receiver keep their order, as in MPI: each channel has delays of its own, each actor a
speed of its own. Messages travel as packed frames, so the wire format is tested, too.
"""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from swjoin.checkpoint.checkpointers import (
    CollectorCheckpointer,
    GatewayCheckpointer,
    MasterCheckpointer,
    SlaveCheckpointer,
    shared_before,
)
from swjoin.checkpoint.store import Manifest
from swjoin.cluster import wire
from swjoin.cluster.collector import Collector
from swjoin.cluster.gateway.gateway import Gateway, Share
from swjoin.cluster.master.master import Master
from swjoin.cluster.master.split_dealer import SplitDealer
from swjoin.cluster.messages import Message
from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import (
    MASTER,
    BatchRead,
    CommitEpoch,
    CompleteCheckpoint,
    Event,
    Log,
    OpenSplit,
    Publish,
    Read,
    Received,
    ReleaseInput,
    RestartClock,
    Role,
    RoleId,
    SavePart,
    Send,
    SetAside,
    SetTimer,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    SplitOpened,
    StopRequested,
    TimerFired,
    TimesMeasured,
    WorkDue,
    Write,
    gateway_of,
    gateway_role,
    is_gateway,
    is_sink,
    is_slave,
    sink_of,
    sink_role,
    slave_of,
    slave_role,
)
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, SourceBatch
from swjoin.core.data_messages import Delivery, RunEvent, StateChunk
from swjoin.core.ids import SlaveId
from swjoin.core.splits import WHOLE
from swjoin.core.storage import Executors
from swjoin.runtime.host import Host, Performers, nothing
from swjoin.runtime.mpi.transport import waits
from swjoin.runtime.open import open_spill
from swjoin.runtime.simulator.blocking_sends import BlockingSends, Channels
from swjoin.runtime.simulator.checkers import check_commits, check_ledger, check_owners, check_results, check_shown
from swjoin.runtime.simulator.result import Delays, SimulationError, SimulationResult
from swjoin.runtime.simulator.storage import BatchSource, MemorySink, SideRows, VirtualDisk

ACTORS = 3  # beside slaves, further gateways and further sinks
_MOST_GATEWAYS = 4  # after a crash


def actor_of(role: RoleId) -> int:
    """Number of a role among those with delays of their own; of gateways and sinks but the first ones, counted from the last
    one."""
    if is_slave(role):
        return ACTORS + slave_of(role)
    if is_sink(role):
        return -2 * sink_of(role) or ACTORS - 1
    if is_gateway(role):
        return 1 - 2 * gateway_of(role)
    return 0


Frame = np.ndarray[tuple[int], np.dtype[np.uint8]]


class _VirtualClock:
    """The run's clock in virtual time."""

    def __init__(self, simulation: Simulation) -> None:
        self._simulation = simulation

    def now_us(self) -> int:
        return self._simulation.clock_us


class _SimulatedHost(Host):
    """A host in the simulator. working: a piece of the slave's work is in the queue."""

    def __init__(self, name: RoleId, role: Role, clock: _VirtualClock, performers: Performers) -> None:
        super().__init__(name, performers)
        self.role, self.clock = role, clock
        self.working = False


def _describe(message: Message) -> str:
    """The text of a message in the list of the last steps."""
    about = [f"{name} {getattr(message, name)}" for name in ("epoch", "move", "index", "generation") if hasattr(message, name)]
    return " ".join([type(message).__name__, *about])


class Simulation:
    """One run in virtual time. `sources`: the batches that each stream's source yields, in order.

    With checkpoints in its configuration it needs a `folder` for them, and may have `crashes`: (step, slaves from then
    on). Every process dies at that step, messages in flight are lost, and new processes continue from the newest checkpoint. A
    crash with 0 slaves is a request to stop, followed by a resumption with as many as before.
    """

    MAX_STEPS = 400_000
    SOURCE: type[BatchSource] = BatchSource

    def __init__(
        self,
        config: RunConfig,
        sources: Sequence[Sequence[SourceBatch]],
        slave_count: int,
        seed: int,
        layouts: tuple[RowLayout | None, RowLayout | None] = (None, None),
        folder: Path | None = None,
        crashes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.now_us = self._clock_ahead_us = (
            0  # ahead: the run's clock minus virtual time, as the clock restarts after the prefill
        )
        self._layouts = layouts
        self._crashes = deque(sorted(crashes))
        self.recoveries = 0
        self._job = Job(config, None, True, folder, None, "simulation")
        most_gateways = 1 if config.gateway_count == 1 else max(_MOST_GATEWAYS, config.gateway_count)
        self._sources_of = [self._open_sources(sources) for _ in range(most_gateways)]  # of every gateway
        actors = self._actor_count(max([slave_count, *(n for _, n in crashes)]))
        actors += 2 * (max(most_gateways, config.sink_count) - 1)
        self._delays = Delays(np.random.default_rng(seed), actors)
        self._queue: list[tuple[int, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self._channels = Channels()
        self._in_flight: Counter[int] = Counter()  # tuples in messages in flight, by stream, or by edge of a plan
        self._steps: deque[str] = deque(maxlen=12)
        self._sinks = [MemorySink(number) for number in range(config.sink_count)]
        self._commits: list[list[int]] = [[] for _ in self._sinks]
        self._side_rows = SideRows()
        self._events: list[RunEvent] = []
        self._moved = False  # moves were in flight after the previous step
        self._changed: set[SlaveId] = set()  # slaves that handled an event in this step
        self._master_checkpointer: MasterCheckpointer | None = None
        self._gateway_checkpointers: list[GatewayCheckpointer] = []
        self._sink_checkpointers: list[CollectorCheckpointer] = []
        if folder is not None:
            self._master_checkpointer = MasterCheckpointer(self._job, self._disk(MASTER))
            for number, sink in enumerate(self._sinks):
                self._sink_checkpointers.append(CollectorCheckpointer(self._job, sink, self._disk(sink_role(number))))
        self._slave_checkpointers: list[SlaveCheckpointer] = []
        self._hosts: dict[RoleId, _SimulatedHost] = {}
        self._make_roles(slave_count)

    @property
    def config(self) -> RunConfig:
        return self._job.config

    # ------------------------------------------------------------ roles, hosts and disks

    def _disk(self, role: RoleId) -> Executors:
        """Disks of one role."""

        def schedule(name: str, action: Callable[[], None]) -> None:
            self._at(self.now_us + self._delays.work_us(actor_of(role)), name, action)

        return lambda name, done: VirtualDisk(name, done, schedule)

    def _open_sources(self, sources: Sequence[Sequence[SourceBatch]]) -> tuple[BatchSource, ...]:
        return tuple(self.SOURCE(batches, layout) for batches, layout in zip(sources, self._layouts, strict=True))

    def _actor_count(self, slave_count: int) -> int:
        return ACTORS + slave_count

    def _new_roles(self, slave_count: int) -> None:
        """Make new roles, at the start of the run."""
        config = self.config.fitted_to(slave_count)
        self.master = Master(config, slave_count, dealer=self._new_dealer(config))
        self.gateways = [
            Gateway(config, slave_count, self._layouts, store=open_spill(self._job), share=share) for share in self._shares()
        ]
        self.slaves = [Slave(SlaveId(i), config, self._layouts, in_order=not self._shared) for i in range(slave_count)]
        self._make_sinks(slave_count)

    @property
    def _dealt(self) -> bool:
        """Whether gateways read splits that are dealt to them."""
        return self._shared and not self.config.live

    @property
    def _shared(self) -> bool:
        """Whether gateways read splits, dealt ones or those of their number."""
        store = self._master_checkpointer
        return self.config.gateway_count > 1 or (store is not None and shared_before(store.folder.newest()))

    def _new_dealer(self, config: RunConfig) -> SplitDealer | None:
        if not self._dealt:
            return None
        splits = [source.splits(0) or [WHOLE] for source in self._sources_of[0]]
        return SplitDealer(splits, config.lead_us, config.gateway_count)

    def _shares(self) -> list[Share]:
        """Of all gateways."""
        firsts_us = [first_us for source in self._sources_of[0] if (first_us := source.origin_us()) is not None]
        origin_us = min(firsts_us, default=0) if self._dealt else None
        fixed = self._shared and not self._dealt
        return [Share(number, self._dealt, fixed, origin_us) for number in range(self.config.gateway_count)]

    @property
    def gateway(self) -> Gateway:
        """The first one."""
        return self.gateways[0]

    def _make_sinks(self, slave_count: int) -> None:
        count = len(self._sinks)
        materialised = self.config.sink.kind != "count"
        self.sinks = [Collector(slave_count, materialised=materialised, number=i, sink_count=count) for i in range(count)]

    def _make_roles(self, slave_count: int) -> None:
        """Make new roles, from the newest checkpoint if there is one."""
        config = self.config.fitted_to(slave_count)
        self._new_roles(slave_count)
        newest = None if self._master_checkpointer is None else self._master_checkpointer.folder.newest()
        self._side_rows.begin(len(self.gateways), None if newest is None else newest.generation)
        self._make_hosts()
        self._before: Manifest | None = None  # the checkpoint from which the roles were restored
        master = self._master_checkpointer
        if master is None:
            return
        manifest = master.begin(self._deliver)
        self._before = manifest
        master.restore(self.master, manifest, self.clock_us)
        controller = self.master.controller
        for gateway, sources in zip(self.gateways, self._sources_of, strict=False):
            role = gateway_role(gateway.number)
            saves = GatewayCheckpointer(self._job, sources, master.folder.path, gateway.number, self._disk(role))
            saves.begin(manifest, master.folder.incarnation, partial(self._deliver, role))
            saves.restore(gateway, manifest, controller.map.owner, controller.active)
            self._gateway_checkpointers.append(saves)
        for sink, saved in zip(self.sinks, self._sink_checkpointers, strict=True):
            saved.begin(sink, master.manifest_name, partial(self._deliver, sink_role(sink.number)))
        owner = self.master.controller.map.owner.tolist()
        for slave in self.slaves:
            actor = slave_role(slave.id)
            folder, incarnation = master.folder.path, master.folder.incarnation
            checkpointer = SlaveCheckpointer(
                folder, incarnation, slave, config, partial(self._deliver, actor), self._disk(actor)
            )
            checkpointer.restore(master.manifest_name, owner, list(self.master.controller.active))
            slave.validate()
            self._slave_checkpointers.append(checkpointer)

    def _make_hosts(self) -> None:
        """Make a host for every role, with the performers of its effects."""
        self._hosts.clear()
        master: Performers = {RestartClock: self._restart_clock, Log: self._log}
        store = self._master_checkpointer
        if store is not None:
            master |= {
                SavePart: lambda effect: store.save(effect.generation, effect.snapshot),
                CompleteCheckpoint: store.folder.complete,
            }
        self._host(MASTER, self.master, master)
        saves = store is not None
        for number, gateway in enumerate(self.gateways):
            reads: Performers = {
                Read: partial(self._read_wanted, number),
                OpenSplit: partial(self._open_split, number),
                SetAside: partial(self._set_aside, number),
                Log: self._log,
            }
            if saves:
                reads |= {SavePart: partial(self._save_gateway, number), ReleaseInput: partial(self._release_input, number)}
            self._host(gateway_role(number), gateway, reads)
        for number, sink in enumerate(self.sinks):
            performers: Performers = {Write: partial(self._write, number), CommitEpoch: partial(self._commit, number)}
            if saves:
                performers |= {SavePart: partial(self._save_results, number), Publish: partial(self._publish, number)}
            self._host(sink_role(number), sink, performers)
        for role in self.slaves:
            self._host(slave_role(role.id), role, {SavePart: partial(self._save_slave, role)} if saves else {})

    def _host(self, name: RoleId, role: Role, performers: Performers) -> None:
        shared: Performers = {
            Send: partial(self._dispatch, name),
            SetTimer: partial(self._set_timer, name),
            RestartClock: nothing,
        }
        self._hosts[name] = _SimulatedHost(name, role, _VirtualClock(self), {**shared, **performers})

    def _crash(self, slave_count: int) -> None:
        """All processes die; new ones continue from the newest checkpoint."""
        self._queue.clear()
        self._channels.free_us.clear()
        self._in_flight, self._moved = Counter(), False
        self._changed.clear()
        for checkpointer in self._slave_checkpointers:
            checkpointer.close()
        self._slave_checkpointers.clear()
        for saves in self._gateway_checkpointers:
            saves.close()
        self._gateway_checkpointers.clear()
        self.recoveries += 1
        if self._shared:
            count = self._delays.gateway_count(_MOST_GATEWAYS)
            self._job = replace(self._job, config=self.config.with_gateways(count))
        self._make_roles(slave_count)
        if self._channels.blocking is not None:
            self.block_sends()
        self._commits = [[c for c in commits if c <= self.master.epoch] for commits in self._commits]
        self._start()

    @property
    def _width(self) -> int:
        """Slaves, or instances of each stage."""
        return len(self.slaves)

    @property
    def clock_us(self) -> int:
        """Time on the run's clock."""
        return self.now_us + self._clock_ahead_us

    # ------------------------------------------------------------ the event queue

    def block_sends(self) -> None:
        """From the start, or from a crash on, ranks wait inside their sends, where MPI may make them wait."""
        self._channels.blocking = BlockingSends(self._ranks.rank_of, lambda name, action: self._at(self.now_us, name, action))

    @property
    def _ranks(self) -> RankMap:
        """The ranks that a cluster of this size has."""
        return RankMap.of_width(self._width, len(self.sinks), len(self.gateways))

    def _at(self, time_us: int, name: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (time_us, self._sequence, name, action))

    def _send(self, sender: RoleId, receiver: RoleId, name: str, action: Callable[[], None]) -> None:
        """Send a message: it arrives after a random delay, and after all earlier ones of the same channel."""
        channel = (sender, receiver)
        delay_us = self._delays.message_us(actor_of(sender), actor_of(receiver))
        arrival = max(self.now_us + delay_us, self._channels.free_us.get(channel, 0) + 1)
        self._channels.free_us[channel] = arrival
        self._at(arrival, name, action)

    def run(self) -> SimulationResult:
        """Run to the end. SimulationError when an invariant is broken or all roles wait for each other."""
        self._start()
        steps = 0
        while self._queue:
            self.now_us, _, name, action = heapq.heappop(self._queue)
            self._steps.append(f"{self.now_us} us {name}")
            steps += 1
            if steps > self.MAX_STEPS:
                raise self._error("no end in sight")
            try:
                if self._crashes and steps >= self._crashes[0][0]:
                    slave_count = self._crashes.popleft()[1]
                    self._interrupt(slave_count)
                    if slave_count:
                        continue  # the action of this step is lost in the crash
                action()
                self._check()
                if self._over and not self._crash_at_the_end():
                    break
            except AssertionError as error:
                raise self._error(str(error)) from error
        if not self._over:
            raise self._error("every role waits for another")
        return self._result(steps)

    def _start(self) -> None:
        for host in list(self._hosts.values()):
            host.start()

    def _interrupt(self, slave_count: int) -> None:
        if slave_count:
            self._steps.append(f"{self.now_us} us crash; {slave_count} slaves from now on")
            self._crash(slave_count)
        elif not self.master.finished:
            self._steps.append(f"{self.now_us} us request to stop")
            self._deliver(MASTER, StopRequested())

    def _crash_at_the_end(self) -> bool:
        """Perform a remaining crash, when all results are visible and the checkpoints still exist; False when none remains."""
        if self._master_checkpointer is None or not self._crashes:
            return False
        for checkpointer in self._sink_checkpointers:
            checkpointer.publish_all()
        self._crash(self._crashes.popleft()[1] or self._width)
        return True

    @property
    def _over(self) -> bool:
        roles: tuple[Role, ...] = (self.master, *self.gateways, *self.sinks, *self.slaves)
        return all(role.finished for role in roles)

    def _error(self, text: str) -> SimulationError:
        return SimulationError(f"{text}\n  last steps: " + "\n              ".join(self._steps))

    # ------------------------------------------------------------ events and messages

    def _deliver(self, name: RoleId, event: Event) -> None:
        """Deliver an event to a role, when its rank waits in no send."""
        if self._channels.blocking is None:
            self._handle(name, event)
        else:
            self._channels.blocking.when_free(name, partial(self._handle, name, event))

    def _handle(self, name: RoleId, event: Event) -> None:
        self._hosts[name].deliver(event)
        if is_slave(name):
            slave = self.slaves[slave_of(name)]
            self._changed.add(slave.id)
            self._keep_working(slave)
        elif is_sink(name) and all(sink.stopped for sink in self.sinks):
            self._crash(self._width)

    def _dispatch(self, sender: RoleId, effect: Send) -> None:
        """Send a message as a frame."""
        message, to = effect.message, effect.to
        self._count(message, 1)
        frame = wire.FORMATS[type(message)].pack(message)
        wire.address(frame, sender, to)
        arrive = partial(self._arrive, sender, to, type(message), frame)
        text = f"{_describe(message)} from role {sender} to role {to}"
        if self._channels.blocking is None:
            self._send(sender, to, text, arrive)
            return
        blocks = waits(sender, self._ranks, wire.FORMATS[type(message)])
        receive = partial(self._receive, sender, to, blocks, arrive)
        self._channels.blocking.send(sender, to, blocks, partial(self._send, sender, to, text, receive))

    def _receive(self, sender: RoleId, to: RoleId, blocks: bool, arrive: Callable[[], None]) -> None:
        """Take a message when the receiver's rank waits in no send; only then a sender that waits goes on."""
        sends = self._channels.blocking
        assert sends is not None

        def take() -> None:
            if blocks and self._ranks.rank_of(sender) != self._ranks.rank_of(to):
                sends.received(sender)
            arrive()

        sends.when_free(to, take)

    def _arrive(self, sender: RoleId, to: RoleId, kind: type, frame: Frame) -> None:
        message = wire.FORMATS[kind].unpack(frame)
        self._count(message, -1)
        if isinstance(message, Delivery) and self._slave_checkpointers:
            self._slave_checkpointers[slave_of(to)].received(message, frame)
        self._handle(to, Received(sender, message, frame))

    def _count(self, message: Message, sign: int) -> None:
        """Count the tuples of messages in flight."""
        if isinstance(message, Delivery):
            self._in_flight[LEFT] += sign * len(message.left)
            self._in_flight[RIGHT] += sign * len(message.right)
        elif isinstance(message, StateChunk) and message.pending:
            self._in_flight[message.stream] += sign * len(message.tuples)

    def _set_timer(self, name: RoleId, effect: SetTimer) -> None:
        self._hosts[name].timers.set(effect)
        due_us = max(self.now_us, effect.at_us - self._clock_ahead_us) + self._delays.work_us(actor_of(name))
        self._at(due_us, f"timer {effect.timer} of role {name}", partial(self._fire, name, effect))

    def _fire(self, name: RoleId, effect: SetTimer) -> None:
        if self._hosts[name].timers.remove(effect):
            self._deliver(name, TimerFired(effect.timer))

    def _keep_working(self, slave: Slave) -> None:
        host = self._hosts[slave_role(slave.id)]
        if host.working or not slave.has_work:
            return
        host.working = True

        work_us = self._work_us(slave)

        def work() -> None:
            host.working = False
            slave.handle(TimesMeasured(process_us=work_us), self.clock_us)
            self._deliver(slave_role(slave.id), WorkDue())

        self._at(self.now_us + work_us, f"work of slave {slave.id}", work)

    def _work_us(self, slave: Slave) -> int:
        """Duration of a slave's next piece of work."""
        return self._delays.work_us(actor_of(slave_role(slave.id)))

    # ------------------------------------------------------------ performers

    def _read_wanted(self, gateway: int, effect: Read) -> None:
        self._ask(gateway, effect.stream, effect.instead)

    def _ask(self, gateway: int, stream: int, instead: int | None) -> None:
        """Let a gateway's source read, or be idle for some time."""
        role = gateway_role(gateway)
        patience_us, at = self.config.time.idle_timeout_us, self.now_us + self._delays.work_us(actor_of(role))
        stall_us = self._delays.stall_us(patience_us) if patience_us else 0
        if stall_us <= patience_us:
            name = self.gateways[gateway].streams[stream].name
            self._at(at + stall_us, f"gateway {gateway} reads {name}", partial(self._read, gateway, stream))
        else:
            self._at(at + patience_us, "a stream is idle", partial(self._deliver, role, SourceIdle(stream)))
            self._at(at + stall_us, "a stream resumes", partial(self._deliver, role, SourceResumed(stream)))

    def _read(self, gateway: int, stream: int) -> None:
        batch = self._sources_of[gateway][stream].read()
        self._deliver(gateway_role(gateway), SourceEnded(stream) if batch is None else BatchRead(stream, batch))

    def _open_split(self, gateway: int, effect: OpenSplit) -> None:
        def opened() -> None:
            before_us = self._sources_of[gateway][effect.stream].open_split(effect.split, effect.skip)
            self._deliver(gateway_role(gateway), SplitOpened(effect.stream, before_us))

        delay_us = self._delays.work_us(actor_of(gateway_role(gateway)))
        self._at(self.now_us + delay_us, f"gateway {gateway} opens a split of stream {effect.stream}", opened)

    def _restart_clock(self, effect: RestartClock) -> None:
        self._clock_ahead_us = effect.clock_us - self.now_us

    def _set_aside(self, gateway: int, effect: SetAside) -> None:
        self._side_rows.add(gateway, effect.stream, effect.batch, effect.reason)

    def _log(self, effect: Log) -> None:
        self._events.append(effect.event)

    def _write(self, sink: int, effect: Write) -> None:
        self._sinks[sink].write(effect.pairs, effect.generation)

    def _commit(self, sink: int, effect: CommitEpoch) -> None:
        self._commits[sink].append(effect.epoch)

    def _save_results(self, sink: int, effect: SavePart) -> None:
        self._sink_checkpointers[sink].save(effect.generation, effect.snapshot)

    def _save_gateway(self, number: int, effect: SavePart) -> None:
        self._side_rows.cut(number, effect.generation)
        self._gateway_checkpointers[number].save(effect.generation, effect.snapshot)

    def _release_input(self, number: int, _effect: ReleaseInput) -> None:
        assert self._master_checkpointer is not None
        self._gateway_checkpointers[number].forget(self._master_checkpointer.folder.kept)

    def _save_slave(self, slave: Slave, effect: SavePart) -> None:
        self._slave_checkpointers[slave.id].save(effect)

    def _publish(self, sink: int, effect: Publish) -> None:
        assert self._master_checkpointer is not None
        self._sink_checkpointers[sink].publish(effect.generation)
        manifest, counted = self._master_checkpointer.folder.newest(), self.config.sink.kind == "count"
        check_shown(self._sinks[sink], effect.generation, manifest, counted=counted)

    # ------------------------------------------------------------ checkers

    def _check(self) -> None:
        """Every role's own invariants, and those over all roles (`runtime.simulator.checkers`)."""
        self.master.validate()
        for gateway in self.gateways:
            gateway.validate()
        for sink in self.sinks:
            sink.validate()
        for slave in self._changed:
            self.slaves[slave].validate()
        self._changed.clear()
        self._check_ledger()
        moving = any(controller.moves for controller in self.master.controllers)
        if moving or self._moved:
            self._check_owners()
        self._moved = moving

    def _check_owners(self) -> None:
        check_owners(self.master.controller, self.slaves)

    @property
    def _produced_before(self) -> int:
        """Rows of the result that were produced before the restored checkpoint."""
        return 0 if self._before is None else self._before.produced

    def _check_ledger(self) -> None:
        in_flight = [self._in_flight[stream] for stream in (LEFT, RIGHT)]
        check_ledger(self.gateways, self.slaves, in_flight, [0, 0] if self._before is None else self._before.joined)

    def _result(self, steps: int) -> SimulationResult:
        summary, before = Collector.merged([sink.summary() for sink in self.sinks]), self._before
        joined = [0, 0] if before is None else before.joined
        try:
            produced = self._produced_before + sum(s.produced for s in self.slaves if s.stage is None or s.stage.is_last)
            check_results(summary, produced)
            for sink, commits in zip(self.sinks, self._commits, strict=True):
                check_commits(sink, commits, self.master.epoch)
        except AssertionError as error:
            raise self._error(str(error)) from error
        return SimulationResult(
            [pairs for sink in self._sinks for pairs in sink.pairs],
            summary["count"],
            summary["digest"],
            {name: sum(s.joined[i] for s in self.slaves) + joined[i] for i, name in enumerate(STREAM_NAMES)},
            Gateway.merged([gateway.summary() for gateway in self.gateways])["counts"],
            self._side_rows.all,
            steps,
            self._commits[0],
            self._events,
            self.master.controller.resize_log,
            summary["history"],
            self.recoveries,
            self.master.checkpoints.completed,
        )
