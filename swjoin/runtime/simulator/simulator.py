"""The seeded simulator: the production roles in virtual time, under random delays that change the order of events.

What: `Simulation(...).run() -> SimulationResult`, a discrete-event run of all roles; checkers after every step.
Why: a protocol bug that loses a few tuples once a week on a cluster appears here within seconds, with a seed that repeats it.
Stays out: real time, real files, choosing scenarios (`tests.tools.random_runs`).

Only messages from one sender to one receiver keep their order, as in MPI: each channel has delays of its own, each actor a
speed of its own. Messages travel as packed frames, so the wire format is tested, too. A message belongs to the attempt of its
sender, and is dropped in any other one, as the tags of MPI messages have it.
"""

from __future__ import annotations

import copy
import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.checkpoint.checkpointers import (
    CollectorCheckpointer,
    GatewayCheckpointer,
    MasterCheckpointer,
    SlaveCheckpointer,
    deals,
    shares,
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
from swjoin.core.errors import SwjoinError
from swjoin.core.ids import SlaveId
from swjoin.core.query_sums import NamedQueries
from swjoin.core.splits import WHOLE
from swjoin.core.storage import Executors
from swjoin.runtime.host import Performers, nothing
from swjoin.runtime.mpi.transport import waits
from swjoin.runtime.open import open_spill
from swjoin.runtime.simulator.attempts import NEVER_US, Attempt, Freeze, Freezes, SimulatedHost, Step, Watch
from swjoin.runtime.simulator.blocking_sends import BlockingSends
from swjoin.runtime.simulator.checkers import check_commits, check_ledger, check_owners, check_results, check_shown
from swjoin.runtime.simulator.result import Delays, OfQueries, SimulationError, SimulationResult
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

    MAX_STEPS = 1_000_000  # slow links and buffers of two tuples need half as many
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
        self._freezes: deque[Freeze] = deque()
        self._timeout_us = self.recoveries = self.excluded = 0
        self._job = Job(config, None, True, folder, None, "simulation")
        most_gateways = 1 if config.gateway_count == 1 else max(_MOST_GATEWAYS, config.gateway_count)
        self._sources_of = [self._open_sources(sources) for _ in range(most_gateways)]  # of every gateway
        actors = self._actor_count(max([slave_count, *(n for _, n in crashes)]))
        actors += 2 * (max(most_gateways, config.sink_count) - 1)
        self._delays = Delays(np.random.default_rng(seed), actors)
        self._queue: list[Step] = []
        self._sequence = 0
        self._attempt = Attempt()
        self._in_flight: Counter[int] = Counter()  # tuples in messages in flight, by stream, or by edge of a plan
        self._steps: deque[str] = deque(maxlen=12)
        self._sinks = [MemorySink(number) for number in range(config.sink_count)]
        self._commits: list[list[int]] = [[] for _ in self._sinks]
        self._side_rows = SideRows()
        self._events: list[RunEvent] = []
        self._moved = False  # moves were in flight after the previous step
        self._changed: dict[RoleId, Role] = {}  # those that did something in this step
        self._master_checkpointer: MasterCheckpointer | None = None
        self._sink_checkpointers: list[CollectorCheckpointer] = []
        if folder is not None:
            self._master_checkpointer = MasterCheckpointer(self._job, self._disk(MASTER))
            self._sink_checkpointers = [self._sink_checkpointer(sink) for sink in self._sinks]
        self._make_roles(slave_count)

    @property
    def config(self) -> RunConfig:
        return self._job.config

    # ------------------------------------------------------------ roles, hosts and disks

    @property
    def _hosts(self) -> dict[RoleId, SimulatedHost]:
        return self._attempt.hosts

    def _disk(self, role: RoleId) -> Executors:
        """Disks of one role."""

        def disk(name: str, done: Callable[[Any], None]) -> VirtualDisk:
            host = self._hosts[role]

            def schedule(name: str, action: Callable[[], None]) -> None:
                self._at(self.now_us + self._delays.work_us(actor_of(role)), host, name, action)

            return VirtualDisk(name, done, schedule)

        return disk

    def _sink_checkpointer(self, sink: MemorySink) -> CollectorCheckpointer:
        return CollectorCheckpointer(self._job, sink, self._disk(sink_role(sink.number)))

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
        return deals(self._job.config, self._newest)

    @property
    def _shared(self) -> bool:
        return shares(self._job.config, self._newest)

    @property
    def _newest(self) -> Manifest | None:
        store = self._master_checkpointer
        return None if store is None else store.folder.newest()

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

    def _make_sinks(self, slave_count: int, *, of_rows: bool = False, named: NamedQueries | None = None) -> None:
        """of_rows: the result has rows that are no pairs. named: as of `Collector`."""
        count, materialised = len(self._sinks), of_rows or self.config.sink.kind != "count"
        make = partial(Collector, slave_count, materialised=materialised, of_rows=of_rows, named=named)
        self.sinks = [make(number=i, sink_count=count) for i in range(count)]
        families = {} if named is None else named.by_first
        for sink in self._sinks:
            sink.families = {first: family.tolist() for first, family in families.items()}

    def _make_roles(self, slave_count: int) -> None:
        """Make new roles, from the newest checkpoint if there is one."""
        config = self.config.fitted_to(slave_count)
        self._attempt = Attempt()
        self._new_roles(slave_count)
        newest = None if self._master_checkpointer is None else self._master_checkpointer.folder.newest()
        self._side_rows.begin(len(self.gateways), None if newest is None else newest.generation)
        self._make_hosts()
        self._changed = {name: host.role for name, host in self._hosts.items()}
        self._before: Manifest | None = None  # the checkpoint from which the roles were restored
        master = self._master_checkpointer
        if master is None:
            return
        manifest = master.begin(lambda role, event: self._deliver(self._hosts[role], event))
        self._before = manifest
        master.restore(self.master, manifest, self.clock_us)
        controller = self.master.controller
        for gateway, sources in zip(self.gateways, self._sources_of, strict=False):
            host = self._hosts[gateway_role(gateway.number)]
            saves = GatewayCheckpointer(self._job, sources, master.folder.path, gateway.number, self._disk(host.name))
            saves.begin(manifest, master.folder.incarnation, partial(self._deliver, host))
            saves.restore(gateway, manifest, controller.map.owner, controller.active)
            host.checkpointer = saves
        for sink, saved in zip(self.sinks, self._sink_checkpointers, strict=True):
            saved.begin(sink, master.manifest_name, partial(self._deliver, self._hosts[sink_role(sink.number)]))
        owner = self.master.controller.map.owner.tolist()
        for slave in self.slaves:
            host = self._hosts[slave_role(slave.id)]
            folder, incarnation = master.folder.path, master.folder.incarnation
            done = partial(self._deliver, host)
            checkpointer = SlaveCheckpointer(folder, incarnation, slave, config, done, self._disk(host.name))
            checkpointer.restore(master.manifest_name, owner, list(self.master.controller.active))
            slave.validate()
            host.checkpointer = checkpointer

    def _make_hosts(self) -> None:
        """Make a host for every role, with the performers of its effects. What belongs to a process is bound to its host, as an
        excluded one goes on with it."""
        host = self._host(MASTER, self.master)
        master: Performers = {RestartClock: self._restart_clock, Log: partial(self._log, host)}
        store = self._master_checkpointer
        if store is not None:
            master |= {
                SavePart: lambda effect: store.save(effect.generation, effect.snapshot),
                CompleteCheckpoint: store.folder.complete,
            }
        host.performers |= master
        saves = store is not None
        for number, gateway in enumerate(self.gateways):
            host = self._host(gateway_role(number), gateway)
            host.sources = self._sources_of[number]
            host.performers |= {
                Read: partial(self._read_wanted, host),
                OpenSplit: partial(self._open_split, host),
                SetAside: partial(self._set_aside, host),
                Log: partial(self._log, host),
            }
            if saves:
                host.performers[SavePart] = partial(self._save_gateway, host)
                host.performers[ReleaseInput] = partial(self._release_input, host)
        for number, sink in enumerate(self.sinks):
            host = self._host(sink_role(number), sink)
            files = self._sinks[number]
            host.performers |= {Write: partial(self._write, files), CommitEpoch: partial(self._commit, host)}
            if saves:
                saved = self._sink_checkpointers[number]
                host.performers[SavePart] = partial(self._save_results, saved)
                host.performers[Publish] = partial(self._publish, files, saved)
        for role in self.slaves:
            host = self._host(slave_role(role.id), role)
            if saves:
                host.performers[SavePart] = partial(self._save_slave, host)

    def _host(self, name: RoleId, role: Role) -> SimulatedHost:
        host = self._hosts[name] = SimulatedHost(name, role, _VirtualClock(self), self._attempt)
        host.performers |= {
            Send: partial(self._dispatch, host),
            SetTimer: partial(self._set_timer, host),
            RestartClock: nothing,
        }
        return host

    def _crash(self, slave_count: int) -> None:
        """All processes die; new ones continue from the newest checkpoint."""
        self._queue.clear()
        self._recover(slave_count)

    def _exclude(self, dead: Sequence[SimulatedHost]) -> None:
        """The others go on from the newest checkpoint without these roles. New processes play them, the others begin anew: of
        what they were to do nothing is left, but messages still arrive."""
        self._steps.append(f"{self.now_us} us roles {[host.name for host in dead]} count as dead")
        self.excluded += len(dead)
        for host in dead:
            host.excluded = True
            if is_sink(host.name):
                number = sink_of(host.name)
                self._sinks[number] = self._sinks[number].successor()
                self._sink_checkpointers[number] = self._sink_checkpointer(self._sinks[number])
            elif is_gateway(host.name):
                number = gateway_of(host.name)
                self._sources_of[number] = tuple(map(copy.copy, self._sources_of[number]))
        self._keep(step for step in self._queue if step.message or step.host.excluded)
        gone = {self._rank_map.rank_of(host.name) for host in dead if is_slave(host.name)}
        self._recover(max(1, self._width - len(gone)))

    def _recover(self, slave_count: int) -> None:
        """The next attempt, from the newest checkpoint."""
        self._in_flight, self._moved = Counter(), False
        self._attempt.close_logs()
        self.recoveries += 1
        if self._shared:
            count = self._delays.gateway_count(_MOST_GATEWAYS)
            self._job = replace(self._job, config=self.config.with_gateways(count))
        blocking = self._attempt.blocking is not None
        self._make_roles(slave_count)
        if blocking:
            self.block_sends()
        self._commits = [[c for c in commits if c <= self.master.epoch] for commits in self._commits]
        self._start()

    @property
    def _width(self) -> int:
        """Slaves, or instances of each stage."""
        return len(self.slaves)

    @property
    def _rank_map(self) -> RankMap:
        """Ranks that play the roles."""
        return RankMap.of_width(self._width, len(self.sinks), len(self.gateways))

    @property
    def clock_us(self) -> int:
        """Time on the run's clock."""
        return self.now_us + self._clock_ahead_us

    # ------------------------------------------------------------ the event queue

    def block_sends(self) -> None:
        """From the start, or from a crash on, ranks wait inside their sends, where MPI may make them wait."""
        attempt = self._attempt
        ranks = self._rank_map

        def schedule(rank: int, action: Callable[[], None]) -> None:
            self._at(self.now_us, attempt.host_on(rank), f"rank {rank} goes on", action)

        attempt.blocking = BlockingSends(ranks, schedule)

    def freeze(self, freezes: Freezes) -> None:
        """Roles freeze in this run. Longer than the timeout they may do so only in a run with checkpoints."""
        self._freezes, self._timeout_us = deque(sorted(freezes.all, key=lambda freeze: freeze.step)), freezes.timeout_us

    def _at(self, time_us: int, host: SimulatedHost, name: str, action: Callable[[], None], *, message: bool = False) -> None:
        """Let a host do something, and later if it is frozen then."""
        self._sequence += 1
        heapq.heappush(self._queue, Step(time_us, self._sequence, host, name, action, message))

    def _keep(self, steps: Iterable[Step]) -> None:
        """Only these are left."""
        self._queue = list(steps)
        heapq.heapify(self._queue)

    def _send(self, sender: SimulatedHost, receiver: RoleId, name: str, action: Callable[[], None]) -> None:
        """Send a message: it arrives after a random delay, and after all earlier ones of the same channel."""
        channel, free_us = (sender.name, receiver), sender.attempt.free_us
        delay_us = self._delays.message_us(actor_of(sender.name), actor_of(receiver))
        arrival = free_us[channel] = max(self.now_us + delay_us, free_us.get(channel, 0) + 1)
        self._at(arrival, sender.attempt.hosts[receiver], name, action, message=True)

    def run(self) -> SimulationResult:
        """Run to the end. SimulationError when an invariant is broken or all roles wait for each other."""
        self._start()
        steps = 0
        while self._queue and self._queue[0].time_us < NEVER_US:
            while self._freezes and steps >= self._freezes[0].step:
                self._freeze(self._freezes.popleft())
            step = heapq.heappop(self._queue)
            if step.host.awake_us > step.time_us:
                heapq.heappush(self._queue, step._replace(time_us=step.host.awake_us))
                continue
            self.now_us = step.time_us
            self._steps.append(f"{self.now_us} us {step.name}")
            steps += 1
            if steps > self.MAX_STEPS:
                raise self._error("no end in sight")
            try:
                if self._crashes and steps >= self._crashes[0][0]:
                    slave_count = self._crashes.popleft()[1]
                    self._interrupt(slave_count)
                    if slave_count:
                        continue  # the action of this step is lost in the crash
                self._take(step)
                self._check()
                if self._over and not self._crash_at_the_end():  # excluded roles may still do harm
                    self._freezes.clear()
                    self._keep(step for step in self._queue if step.host.excluded)
            except AssertionError as error:
                raise self._error(str(error)) from error
        if not self._over:
            raise self._error("every role waits for another")
        self._changed = {name: host.role for name, host in self._hosts.items()}
        try:
            self._check()
        except AssertionError as error:
            raise self._error(f"at the end: {error}") from error
        return self._result(steps)

    def _take(self, step: Step) -> None:
        """Do what is due. An excluded role goes on for some time, and fails alone."""
        host = step.host
        if host.attempt is self._attempt:
            self._changed[host.name] = host.role
        if not host.excluded:
            step.action()
        elif host.steps_left:
            host.steps_left -= 1
            try:
                step.action()
            except (SwjoinError, OSError) as error:
                self._steps.append(f"{self.now_us} us excluded role {host.name} ends: {error}")
                host.steps_left = 0

    def _freeze(self, freeze: Freeze) -> None:
        attempt = self._attempt
        if attempt.watch is None:
            attempt.watch = Watch(self._timeout_us, [h for h in self._hosts.values() if h.name != MASTER], self.now_us)
            self._next_round(attempt.watch)
        victims = attempt.freeze(freeze, self._freezable(), self.now_us)
        attempt.watch.heard(victims, self.now_us)  # until now; also when one has been awake for less than a round
        for host in victims:
            self._steps.append(f"{self.now_us} us role {host.name} freezes until {host.awake_us} us")

    def _freezable(self) -> Sequence[SimulatedHost]:
        """Hosts of roles that may freeze."""
        return list(self._hosts.values())

    def _next_round(self, watch: Watch) -> None:
        self._at(self.now_us + watch.interval_us, self._hosts[MASTER], "heartbeats", partial(self._heartbeats, watch))

    def _heartbeats(self, watch: Watch) -> None:
        dead = watch.round(self.now_us)
        if dead:
            self._exclude(dead)
        elif watch.ends(self.now_us):
            self._attempt.watch = None
        else:
            self._next_round(watch)

    def _start(self) -> None:
        for host in list(self._hosts.values()):
            host.start()

    def _interrupt(self, slave_count: int) -> None:
        if slave_count:
            self._steps.append(f"{self.now_us} us crash; {slave_count} slaves from now on")
            self._crash(slave_count)
        elif not self.master.finished:
            self._steps.append(f"{self.now_us} us request to stop")
            self._deliver(self._hosts[MASTER], StopRequested())

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

    def _deliver(self, host: SimulatedHost, event: Event) -> None:
        """Deliver an event to a role, when its rank waits in no send."""
        blocking = host.attempt.blocking
        if blocking is None:
            self._handle(host, event)
        else:
            blocking.when_free(host.name, partial(self._handle, host, event))

    def _handle(self, host: SimulatedHost, event: Event) -> None:
        host.deliver(event)
        if host.attempt is self._attempt:  # it may have been the last event of an attempt
            self._changed[host.name] = host.role
        if isinstance(host.role, Slave):
            self._keep_working(host, host.role)
        elif is_sink(host.name) and not host.excluded and all(sink.stopped for sink in self.sinks):
            self._crash(self._width)

    def _dispatch(self, host: SimulatedHost, effect: Send) -> None:
        """Send a message as a frame."""
        message, to = effect.message, effect.to
        if host.attempt is self._attempt:
            self._count(message, 1)
        frame = wire.FORMATS[type(message)].pack(message)
        wire.address(frame, host.name, to)
        arrive = partial(self._arrive, host, to, type(message), frame)
        text = f"{_describe(message)} from role {host.name} to role {to}"
        blocking = host.attempt.blocking
        if blocking is None:
            self._send(host, to, text, arrive)
            return
        blocks = waits(host.name, blocking.ranks, wire.FORMATS[type(message)])
        receive = partial(self._receive, blocking, host, to, blocks, arrive)
        blocking.send(host.name, to, blocks, partial(self._send, host, to, text, receive))

    def _receive(
        self, sends: BlockingSends, sender: SimulatedHost, to: RoleId, blocks: bool, arrive: Callable[[], None]
    ) -> None:
        """Take a message when the receiver's rank waits in no send; only then a sender that waits goes on. Ranks in another
        attempt take messages of earlier ones at once."""

        def take() -> None:
            if blocks and sends.ranks.rank_of(sender.name) != sends.ranks.rank_of(to) and self._acts(sender):
                received = partial(sends.received, sender.name)
                if sender.awake_us > self.now_us:
                    self._at(self.now_us, sender, "a message has been received", received)
                else:
                    received()
            arrive()

        if self._receiver(sender, to) is None:
            take()
        else:
            sends.when_free(to, take)

    def _acts(self, host: SimulatedHost) -> bool:
        """Whether it takes part, or is excluded: all others of earlier attempts have left them."""
        return host.excluded or host.attempt is self._attempt

    def _receiver(self, sender: SimulatedHost, to: RoleId) -> SimulatedHost | None:
        """Who takes a message; None: nobody, as it is of an earlier attempt."""
        host = sender.attempt.hosts[to]
        return host if self._acts(host) else None

    def _arrive(self, sender: SimulatedHost, to: RoleId, kind: type, frame: Frame) -> None:
        message = wire.FORMATS[kind].unpack(frame)
        host = self._receiver(sender, to)
        if host is None:
            return
        if host.attempt is self._attempt:
            self._count(message, -1)
        if isinstance(message, Delivery) and isinstance(host.checkpointer, SlaveCheckpointer):
            host.checkpointer.received(message, frame)
        self._handle(host, Received(sender.name, message, frame))

    def _count(self, message: Message, sign: int) -> None:
        """Count the tuples of messages in flight."""
        if isinstance(message, Delivery):
            self._in_flight[LEFT] += sign * len(message.left)
            self._in_flight[RIGHT] += sign * len(message.right)
        elif isinstance(message, StateChunk) and message.pending:
            self._in_flight[message.stream] += sign * len(message.tuples)

    def _set_timer(self, host: SimulatedHost, effect: SetTimer) -> None:
        host.timers.set(effect)
        due_us = max(self.now_us, effect.at_us - self._clock_ahead_us) + self._delays.work_us(actor_of(host.name))
        self._at(due_us, host, f"timer {effect.timer} of role {host.name}", partial(self._fire, host, effect))

    def _fire(self, host: SimulatedHost, effect: SetTimer) -> None:
        if host.timers.remove(effect):
            self._deliver(host, TimerFired(effect.timer))

    def _keep_working(self, host: SimulatedHost, slave: Slave) -> None:
        if host.working or not slave.has_work:
            return
        host.working = True

        work_us = self._work_us(slave)

        def work() -> None:
            host.working = False
            slave.handle(TimesMeasured(process_us=work_us), self.clock_us)
            self._deliver(host, WorkDue())

        self._at(self.now_us + work_us, host, f"work of slave {slave.id}", work)

    def _work_us(self, slave: Slave) -> int:
        """Duration of a slave's next piece of work."""
        return self._delays.work_us(actor_of(slave_role(slave.id)))

    # ------------------------------------------------------------ performers

    def _read_wanted(self, host: SimulatedHost, effect: Read) -> None:
        self._ask(host, effect.stream, effect.instead)

    def _ask(self, host: SimulatedHost, stream: int, instead: tuple[int, ...]) -> None:
        """Let a gateway's source read, or be idle for some time."""
        patience_us, at = self.config.time.idle_timeout_us, self.now_us + self._delays.work_us(actor_of(host.name))
        stall_us = self._delays.stall_us(patience_us) if patience_us else 0
        if stall_us <= patience_us:
            name = f"gateway {gateway_of(host.name)} reads stream {stream}"
            self._at(at + stall_us, host, name, partial(self._read, host, stream))
        else:
            self._at(at + patience_us, host, "a stream is idle", partial(self._deliver, host, SourceIdle(stream)))
            self._at(at + stall_us, host, "a stream resumes", partial(self._deliver, host, SourceResumed(stream)))

    def _read(self, host: SimulatedHost, stream: int) -> None:
        batch = host.sources[stream].read()
        self._deliver(host, SourceEnded(stream) if batch is None else BatchRead(stream, batch))

    def _open_split(self, host: SimulatedHost, effect: OpenSplit) -> None:
        def opened() -> None:
            before_us = host.sources[effect.stream].open_split(effect.split, effect.skip)
            self._deliver(host, SplitOpened(effect.stream, before_us))

        name = f"gateway {gateway_of(host.name)} opens a split of stream {effect.stream}"
        self._at(self.now_us + self._delays.work_us(actor_of(host.name)), host, name, opened)

    def _restart_clock(self, effect: RestartClock) -> None:
        self._clock_ahead_us = effect.clock_us - self.now_us

    def _set_aside(self, host: SimulatedHost, effect: SetAside) -> None:
        if not host.excluded:  # into a file of its own, which no checkpoint has
            self._side_rows.add(gateway_of(host.name), effect.stream, effect.batch, effect.reason)

    def _log(self, host: SimulatedHost, effect: Log) -> None:
        if not host.excluded:  # the file is on the master's rank
            self._events.append(effect.event)

    def _write(self, files: MemorySink, effect: Write) -> None:
        files.write(effect.pairs, effect.generation, effect.query)

    def _commit(self, host: SimulatedHost, effect: CommitEpoch) -> None:
        if not host.excluded:  # no effect outside of its process
            self._commits[sink_of(host.name)].append(effect.epoch)

    def _save_results(self, saved: CollectorCheckpointer, effect: SavePart) -> None:
        saved.save(effect.generation, effect.snapshot)

    def _save_gateway(self, host: SimulatedHost, effect: SavePart) -> None:
        assert isinstance(host.checkpointer, GatewayCheckpointer), "a gateway without checkpoints"
        if not host.excluded:
            self._side_rows.cut(gateway_of(host.name), effect.generation)
        host.checkpointer.save(effect.generation, effect.snapshot)

    def _release_input(self, host: SimulatedHost, _effect: ReleaseInput) -> None:
        assert self._master_checkpointer is not None
        assert isinstance(host.checkpointer, GatewayCheckpointer), "a gateway without checkpoints"
        host.checkpointer.forget(self._master_checkpointer.folder.kept)

    def _save_slave(self, host: SimulatedHost, effect: SavePart) -> None:
        assert isinstance(host.checkpointer, SlaveCheckpointer), "a slave without checkpoints"
        host.checkpointer.save(effect)

    def _publish(self, files: MemorySink, saved: CollectorCheckpointer, effect: Publish) -> None:
        assert self._master_checkpointer is not None
        saved.publish(effect.generation)
        manifest, counted = self._master_checkpointer.folder.newest(), self.config.sink.kind == "count"
        check_shown(files, effect.generation, manifest, counted=counted)

    # ------------------------------------------------------------ checkers

    def _check(self) -> None:
        """The invariants of every role that did something, and those over all roles (`runtime.simulator.checkers`)."""
        for role in self._changed.values():
            role.validate()
        self._check_ledger()
        self._changed.clear()
        moving = any(controller.moves for controller in self.master.controllers)
        if moving or self._moved:
            self._check_owners()
        self._moved = moving

    def _check_owners(self) -> None:
        check_owners(self.master.controller, self.slaves)

    @property
    def _produced(self) -> int:
        """Rows of the result that slaves have produced, those before the restored checkpoint included."""
        return (0 if self._before is None else self._before.produced) + sum(slave.produced for slave in self.slaves)

    def _check_ledger(self) -> None:
        in_flight = [self._in_flight[stream] for stream in (LEFT, RIGHT)]
        check_ledger(self.gateways, self.slaves, in_flight, [0, 0] if self._before is None else self._before.joined)

    def _result(self, steps: int) -> SimulationResult:
        summary, before = Collector.merged([sink.summary() for sink in self.sinks]), self._before
        joined = [0, 0] if before is None else before.joined
        try:
            check_results(summary, self._produced)
            for sink, commits in zip(self.sinks, self._commits, strict=True):
                check_commits(sink, commits, self.master.epoch)
        except AssertionError as error:
            raise self._error(str(error)) from error
        return SimulationResult(
            [pairs for sink in self._sinks for _, pairs in sink.pairs],
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
            self.excluded,
            OfQueries([query for sink in self._sinks for query, _ in sink.pairs], summary["queries"]),
        )
