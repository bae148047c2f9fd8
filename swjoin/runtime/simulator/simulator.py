"""The seeded simulator: the production roles in virtual time, under delays that reorder everything that may be reordered.

What: `Simulation(...).run() -> SimulationResult`, a discrete-event run of master, slaves, collector; checkers after every step.
Why: a protocol bug that loses a few tuples once a week on a cluster shows here within seconds, with a seed that replays it.
Stays out: real time, real files, choosing scenarios (`tests.tools.random_runs`).

Order kept: messages of one sender to one receiver (as MPI keeps it). Everything else may overtake: each channel has its own
delays, each actor its own speed. Messages travel as packed frames, so the wire format is exercised too.
"""

from __future__ import annotations

import heapq
import json
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import numpy as np

from swjoin.checkpoint.checkpointers import CollectorCheckpointer, MasterCheckpointer, SlaveCheckpointer
from swjoin.cluster import wire
from swjoin.cluster.collector import Collector
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import (
    AcknowledgeMove,
    BeginMeasuring,
    ClockAdvanced,
    CommitEpoch,
    CompleteCheckpoint,
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
    PartSaved,
    PublishResults,
    ReadTuples,
    Report,
    ResultsReceived,
    SavePart,
    SendResults,
    SendState,
    SetAside,
    SlaveCommand,
    SlaveEvent,
    SlaveReported,
    StateReceived,
    StateWanted,
    StopRequested,
    StreamEnded,
    StreamIdle,
    StreamResumed,
    TuplesRead,
    WantState,
    WorkDue,
    WritePairs,
)
from swjoin.cluster.role import UnknownEffectError
from swjoin.cluster.slave.slave import Slave
from swjoin.config.job import Job
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, SourceBatch
from swjoin.core.data_messages import RunEvent
from swjoin.core.ids import SlaveId
from swjoin.core.storage import Executors
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.open import open_spill
from swjoin.runtime.simulator.checkers import check_owners, check_places, check_results, check_shown
from swjoin.runtime.simulator.result import Delays, SimulationError, SimulationResult
from swjoin.runtime.simulator.storage import BatchSource, MemorySink, VirtualDisk

Frame = np.ndarray[tuple[int], np.dtype[np.uint8]]

MASTER, COLLECTOR, FIRST_SLAVE = 0, 1, 2


class Simulation:
    """One run in virtual time. `sources`: the batches that each stream's source yields, in order.

    With checkpoints in its configuration it needs a `folder` for them, and can be given `crashes`: (step, slaves from then
    on). Every process dies at that step, whatever had been sent is lost, and new ones go on from the newest checkpoint. A crash
    with 0 slaves is a request to stop, followed by a resumption with as many as before.
    """

    MAX_STEPS = 200_000
    SOURCE: type[BatchSource] = BatchSource

    def __init__(
        self,
        config: RunConfig,
        sources: tuple[Sequence[SourceBatch], Sequence[SourceBatch]],
        slave_count: int,
        seed: int,
        layouts: tuple[RowLayout | None, RowLayout | None] = (None, None),
        folder: Path | None = None,
        crashes: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.config = config
        self.now_us = self._clock_ahead_us = (
            0  # ahead: the run's clock against virtual time: it starts anew when history is joined
        )
        self._layouts = layouts
        self._crashes = deque(sorted(crashes))
        self.recoveries = self._shown = 0
        self._sources = (self.SOURCE(sources[LEFT], layouts[LEFT]), self.SOURCE(sources[RIGHT], layouts[RIGHT]))
        self._delays = Delays(np.random.default_rng(seed), FIRST_SLAVE + max([slave_count, *(n for _, n in crashes)]))
        self._queue: list[tuple[int, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self._channel_free_us: dict[tuple[int, int], int] = {}
        self._in_flight = [0, 0]  # tuples in deliveries on their way
        self._steps: deque[str] = deque(maxlen=12)
        self._sink = MemorySink()
        self._commits: list[int] = []
        self._aside: list[tuple[int, SourceBatch, str]] = []
        self._aside_at: dict[int, int] = {}  # by generation: at the checkpoint that ends it
        self._events: list[RunEvent] = []
        self._moved = False  # moves were in flight after the step before
        self._changed: set[SlaveId] = set()  # slaves that took an event in this step
        self._job = Job(config, None, True, folder, None, "simulation")
        self._keepers: tuple[MasterCheckpointer, CollectorCheckpointer] | None = None
        if folder is not None:
            self._keepers = (
                MasterCheckpointer(self._job, self._sources, self._disk(MASTER)),
                CollectorCheckpointer(self._job, self._sink, self._disk(COLLECTOR)),
            )
        self._slave_keepers: list[SlaveCheckpointer] = []
        self._make_roles(slave_count)

    # ------------------------------------------------------------ roles, and what survives them

    def _disk(self, actor: int) -> Executors:
        """Disks of one actor."""

        def schedule(name: str, action: Callable[[], None]) -> None:
            self._at(self.now_us + self._delays.work_us(actor), name, action)

        return lambda name, done: VirtualDisk(name, done, schedule)

    def _make_roles(self, slave_count: int) -> None:
        """New roles, from the newest checkpoint if there is one."""
        config = self.config.fitted_to(slave_count)
        self.master = Master(config, slave_count, self._layouts, store=open_spill(self._job))
        self.slaves = [Slave(SlaveId(i), config, self._layouts) for i in range(slave_count)]
        self.collector = Collector(slave_count, materialised=config.sink.kind != "count")
        self._working = [False] * slave_count
        self._before: tuple[list[int], int] = ([0, 0], 0)  # joined tuples and produced pairs, before the checkpoint
        if self._keepers is None:
            return
        master, collector = self._keepers
        manifest = master.begin(self._tell_master)
        if manifest is not None:
            self._before = (manifest.joined, manifest.produced)
        master.restore(self.master, manifest, self.clock_us)
        collector.begin(self.collector, master.manifest_name, partial(self._saved, COLLECTOR))
        owner = self.master.controller.map.owner.tolist()
        for slave in self.slaves:
            actor = FIRST_SLAVE + slave.id
            folder, incarnation = master.folder.path, master.folder.incarnation
            checkpointer = SlaveCheckpointer(folder, incarnation, slave, config, partial(self._saved, actor), self._disk(actor))
            checkpointer.restore(master.manifest_name, owner, list(self.master.controller.active))
            slave.validate()
            self._slave_keepers.append(checkpointer)

    def _saved(self, actor: int, part: PartSaved) -> None:
        """A part has become durable; the master hears of it."""
        told = PartSaved(part.generation, part.part, json.loads(json.dumps(part.content)))
        self._send(actor, MASTER, f"{part.part} has saved generation {part.generation}", partial(self._tell_master, told))

    def _crash(self, slave_count: int) -> None:
        """Everybody dies; new processes go on from the newest checkpoint."""
        self._queue.clear()
        self._channel_free_us.clear()
        self._in_flight, self._moved = [0, 0], False
        self._changed.clear()
        for checkpointer in self._slave_keepers:
            checkpointer.close()
        self._slave_keepers.clear()
        self.recoveries += 1
        self._make_roles(slave_count)
        del self._aside[self._aside_at.get(self.master.checkpoints.generation - 1, 0) :]
        self._commits = [c for c in self._commits if c <= self.master.epoch]
        self._begin()

    @property
    def clock_us(self) -> int:
        """What the run's clock shows."""
        return self.now_us + self._clock_ahead_us

    # ------------------------------------------------------------ the event queue

    def _at(self, time_us: int, name: str, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (time_us, self._sequence, name, action))

    def _send(self, sender: int, receiver: int, name: str, action: Callable[[], None]) -> None:
        """A message: random delay, but never before an earlier one of the same channel."""
        channel = (sender, receiver)
        arrival = max(self.now_us + self._delays.message_us(sender, receiver), self._channel_free_us.get(channel, 0) + 1)
        self._channel_free_us[channel] = arrival
        self._at(arrival, name, action)

    def run(self) -> SimulationResult:
        """Run to the end. SimulationError when a checker complains or the roles wait for each other for ever."""
        self._begin()
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
                        continue  # what was about to happen has died as well
                action()
                self._check()
                if self._over and not self._crash_at_the_end():
                    break
            except AssertionError as error:
                raise self._error(str(error)) from error
        if not self._over:
            raise self._error("every role waits for another")
        return self._result(steps)

    def _begin(self) -> None:
        self._master_does(self.master.start(self.clock_us))
        for slave in self.slaves:
            self._slave_does(slave, slave.start())
        if self.config.pace == "realtime":
            self._tick()
            for slave in self.slaves:
                self._exchange(slave)

    def _interrupt(self, slave_count: int) -> None:
        if slave_count:
            self._steps.append(f"{self.now_us} us crash; {slave_count} slaves from now on")
            self._crash(slave_count)
        elif not self.master.finished:
            self._steps.append(f"{self.now_us} us request to stop")
            self._tell_master(StopRequested())

    def _crash_at_the_end(self) -> bool:
        """A crash that was to come later comes when all results can be seen, and the checkpoints are still there."""
        if self._keepers is None or not self._crashes:
            return False
        self._keepers[1].publish_all()
        self._crash(self._crashes.popleft()[1] or len(self.slaves))
        return True

    @property
    def _over(self) -> bool:
        return self.master.finished and self.collector.finished and all(s.finished for s in self.slaves)

    def _error(self, text: str) -> SimulationError:
        return SimulationError(f"{text}\n  last steps: " + "\n              ".join(self._steps))

    # ------------------------------------------------------------ actors

    def _tick(self) -> None:
        if self.master.finished:
            return
        slot_us = max(1, self.config.cluster.distribution_epoch_us // self.config.cluster.sub_group_count)
        due = next_exchange_us(self.clock_us, slot_us) - self._clock_ahead_us
        self._at(due + self._delays.work_us(MASTER), "clock", self._advance_clock)

    def _advance_clock(self) -> None:
        self._master_does(self.master.handle(ClockAdvanced(), self.clock_us))
        self._tick()

    def _exchange(self, slave: Slave) -> None:
        if slave.finished:
            return

        def due() -> None:
            self._slave_does(slave, slave.handle(ExchangeDue(), self.clock_us))
            self._exchange(slave)

        epoch_us = self.config.cluster.distribution_epoch_us
        offset_us = slot_offset_us(slave.id, self.config.cluster.sub_group_count, epoch_us)
        at = next_exchange_us(self.clock_us, epoch_us, offset_us) - self._clock_ahead_us
        self._at(at + self._delays.work_us(FIRST_SLAVE + slave.id), f"slot of slave {slave.id}", due)

    def _master_does(self, commands: list[MasterCommand]) -> None:
        for command in commands:
            match command:
                case ReadTuples(stream, instead):
                    self._ask(stream, instead)
                case Deliver(delivery):
                    frame = wire.pack_delivery(delivery)
                    self._in_flight[LEFT] += len(delivery.left)
                    self._in_flight[RIGHT] += len(delivery.right)
                    deliver = partial(self._deliver, self.slaves[delivery.slave], frame)
                    self._send(MASTER, FIRST_SLAVE + delivery.slave, f"{delivery.epoch} for {delivery.slave}", deliver)
                case BeginMeasuring(clock_us):
                    self._clock_ahead_us = clock_us - self.now_us
                    for slave in self.slaves:
                        began = partial(self._tell, slave, MeasuringBegan())
                        self._send(MASTER, FIRST_SLAVE + slave.id, f"slave {slave.id} begins to be measured", began)
                case SetAside(stream, batch, reason):
                    self._aside.append((stream, batch, reason))
                case SavePart(generation, snapshot) if self._keepers is not None:
                    self._aside_at[generation] = len(self._aside)
                    self._keepers[0].save(generation, snapshot)
                case CompleteCheckpoint() if self._keepers is not None:
                    self._keepers[0].folder.complete(command)
                case PublishResults():
                    self._send(MASTER, COLLECTOR, f"publish generation {command.generation}", partial(self._show, command))
                case Log(event):
                    self._events.append(event)
                case FinishMaster():
                    pass
                case _:
                    raise UnknownEffectError(command)

    def _ask(self, stream: int, instead: int | None) -> None:
        """Have a source read, or be silent for a while."""
        patience_us, at = self.config.time.idle_timeout_us, self.now_us + self._delays.work_us(MASTER)
        stall_us = self._delays.stall_us(patience_us) if patience_us else 0
        if stall_us <= patience_us:
            self._at(at + stall_us, f"read {STREAM_NAMES[stream]}", partial(self._read, stream))
        else:
            self._at(at + patience_us, "a stream is idle", partial(self._tell_master, StreamIdle(stream)))
            self._at(at + stall_us, "a stream speaks", partial(self._tell_master, StreamResumed(stream)))

    def _read(self, stream: int) -> None:
        batch = self._sources[stream].read()
        event = StreamEnded(stream) if batch is None else TuplesRead(stream, batch)
        self._master_does(self.master.handle(event, self.clock_us))

    def _show(self, command: PublishResults) -> None:
        assert self._keepers is not None
        self._keepers[1].publish(command.generation)
        shown, counted = self._sink.shown_count, self.config.sink.kind == "count"
        check_shown(shown, self._shown, command.generation, self._keepers[0].folder.newest(), counted=counted)
        self._shown = shown
        if command.stop:
            self._crash(len(self.slaves))

    def _deliver(self, slave: Slave, frame: Frame) -> None:
        delivery = wire.unpack_delivery(frame)
        if self._slave_keepers:
            self._slave_keepers[slave.id].received(delivery, frame)
        self._in_flight[LEFT] -= len(delivery.left)
        self._in_flight[RIGHT] -= len(delivery.right)
        self._slave_does(slave, slave.handle(Delivered(delivery), self.clock_us))
        self._keep_working(slave)

    def _keep_working(self, slave: Slave) -> None:
        if self._working[slave.id] or not slave.has_work:
            return
        self._working[slave.id] = True

        def work() -> None:
            self._working[slave.id] = False
            self._slave_does(slave, slave.handle(WorkDue(), self.clock_us))
            self._keep_working(slave)

        self._at(self.now_us + self._delays.work_us(FIRST_SLAVE + slave.id), f"work of slave {slave.id}", work)

    def _slave_does(self, slave: Slave, commands: list[SlaveCommand]) -> None:
        self._changed.add(slave.id)
        sender = FIRST_SLAVE + slave.id
        for command in commands:
            match command:
                case Report():
                    frame = wire.pack_report(command)
                    self._send(sender, MASTER, f"report of slave {slave.id}", partial(self._report, slave.id, frame))
                case AcknowledgeMove(end):
                    name = f"slave {slave.id} acknowledges move {end.move}"
                    self._send(sender, MASTER, name, partial(self._acknowledge, wire.pack_move_end(end)))
                case WantState(supplier, move):
                    name = f"slave {slave.id} wants state of move {move} from slave {supplier}"
                    wanted = partial(self._tell, self.slaves[supplier], StateWanted(move))
                    self._send(sender, FIRST_SLAVE + supplier, name, wanted)
                case SendState(chunk):
                    if chunk.pending:
                        self._in_flight[chunk.stream] += len(chunk.tuples)
                    name = f"chunk {chunk.index} of move {chunk.move} to slave {chunk.consumer}"
                    install = partial(self._receive_state, self.slaves[chunk.consumer], wire.pack_state(chunk))
                    self._send(sender, FIRST_SLAVE + chunk.consumer, name, install)
                case SavePart() if self._slave_keepers:
                    self._slave_keepers[slave.id].save(command)
                case SendResults(chunk):
                    frame = wire.pack_results(chunk)
                    self._send(
                        sender, COLLECTOR, f"results of slave {slave.id}, epoch {chunk.epoch}", partial(self._collect, frame)
                    )
                case FinishSlave():
                    pass
                case _:
                    raise UnknownEffectError(command)

    def _report(self, slave: SlaveId, frame: Frame) -> None:
        report = wire.unpack_report(frame)
        self._tell_master(SlaveReported(slave, report.occupancy_ratio, report.loads))

    def _acknowledge(self, frame: Frame) -> None:
        self._tell_master(MoveEnded(wire.unpack_move_end(frame)))

    def _tell_master(self, event: MasterEvent) -> None:
        self._master_does(self.master.handle(event, self.clock_us))

    def _tell(self, slave: Slave, event: SlaveEvent) -> None:
        self._slave_does(slave, slave.handle(event, self.clock_us))
        self._keep_working(slave)

    def _receive_state(self, slave: Slave, frame: Frame) -> None:
        chunk = wire.unpack_state(frame)
        if chunk.pending:
            self._in_flight[chunk.stream] -= len(chunk.tuples)
        self._tell(slave, StateReceived(chunk))

    def _collect(self, frame: Frame) -> None:
        for command in self.collector.handle(ResultsReceived(wire.unpack_results(frame)), self.clock_us):
            match command:
                case WritePairs(pairs, generation):
                    self._sink.write(pairs, generation)
                case SavePart(generation, snapshot) if self._keepers is not None:
                    self._keepers[1].save(generation, snapshot)
                case CommitEpoch(epoch):
                    self._commits.append(epoch)
                case FinishCollector():
                    pass
                case _:
                    raise UnknownEffectError(command)

    # ------------------------------------------------------------ checkers

    def _check(self) -> None:
        """Every role's own invariants, and the ledger while it is in motion: every row read is in exactly one place."""
        self.master.validate()
        self.collector.validate()
        for slave in self._changed:
            self.slaves[slave].validate()
        self._changed.clear()
        check_places(self.master, self.slaves, self._in_flight, self._before[0])
        if self.master.controller.moves or self._moved:
            check_owners(self.master.controller, self.slaves)
        self._moved = bool(self.master.controller.moves)

    def _result(self, steps: int) -> SimulationResult:
        summary, (joined, produced) = self.collector.summary(), self._before
        try:
            check_results(summary, produced + sum(s.produced for s in self.slaves), self._commits, self.master.epoch)
        except AssertionError as error:
            raise self._error(str(error)) from error
        return SimulationResult(
            self._sink.pairs,
            summary["count"],
            summary["digest"],
            {name: sum(s.joined[i] for s in self.slaves) + joined[i] for i, name in enumerate(STREAM_NAMES)},
            self.master.summary()["counts"],
            self._aside,
            steps,
            self._commits,
            self._events,
            self.master.controller.history,
            summary["history"],
            self.recoveries,
            self.master.checkpoints.completed,
        )
