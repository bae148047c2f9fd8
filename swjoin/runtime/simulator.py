"""The seeded simulator: the production roles in virtual time, under delays that reorder everything that may be reordered.

What: `Simulation(...).run() -> SimulationResult`, one discrete-event run of master, slaves and collector; checkers after every
step.
Why: a protocol bug that loses a handful of tuples once a week on a cluster shows here within seconds, with a seed that replays
it.
Stays out: real time, real files, choosing scenarios (`runtime.chaos`).

Order kept: messages of one sender to one receiver (as MPI keeps it). Everything else may overtake: each channel has its own
delays,
each actor its own speed. Messages travel as packed frames, so the wire format is exercised too.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

from swjoin.batch import I64, LEFT, RIGHT, STREAM_NAMES, Pairs, RowLayout, SourceBatch
from swjoin.cluster.collector import Collector
from swjoin.cluster.master import Master
from swjoin.cluster.slave import Slave
from swjoin.config import RunConfig
from swjoin.messages import (
    AcknowledgeMove,
    BeginMeasuring,
    ClockAdvanced,
    CommitEpoch,
    Deliver,
    Delivered,
    ExchangeDue,
    GroupId,
    Log,
    MasterCommand,
    MasterEvent,
    MeasuringBegan,
    MoveEnded,
    ReadTuples,
    Report,
    ResultsReceived,
    RunEvent,
    SendResults,
    SendState,
    SetAside,
    SlaveCommand,
    SlaveEvent,
    SlaveId,
    SlaveReported,
    StateReceived,
    StateWanted,
    StreamEnded,
    TuplesRead,
    WantState,
    WorkDue,
    WritePairs,
)
from swjoin.policy.epochs import next_exchange_us, slot_offset_us
from swjoin.runtime.wire import (
    pack_delivery,
    pack_move_end,
    pack_report,
    pack_results,
    pack_state,
    unpack_delivery,
    unpack_move_end,
    unpack_report,
    unpack_results,
    unpack_state,
)

Frame = np.ndarray[tuple[int], np.dtype[np.uint8]]

MASTER, COLLECTOR, FIRST_SLAVE = 0, 1, 2


class SimulationError(AssertionError):
    """A checker found a broken invariant; the text holds the virtual time and the last steps."""


@dataclass
class SimulationResult:
    """What came out: pairs in arrival order at the sink, the roles' summaries, rows set aside, steps taken."""

    pairs: list[Pairs]
    count: int
    digest: str
    joined: dict[str, int]
    counts: dict[str, dict[str, int]]
    aside: int
    steps: int
    commits: list[int] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    declustering: list[dict[str, Any]] = field(default_factory=list)
    history: dict[str, Any] = field(default_factory=dict)

    def ids(self) -> tuple[I64, I64]:
        """Ids of all pairs, left and right, as int64."""
        empty = np.empty(0, np.uint64)
        left = np.concatenate([empty, *(p.left_id for p in self.pairs)])
        right = np.concatenate([empty, *(p.right_id for p in self.pairs)])
        return left.astype(np.int64), right.astype(np.int64)


class _Delays:
    """Random delays: each channel and actor draws a scale at the start, then heavy-tailed times around it (microseconds)."""

    def __init__(self, random: np.random.Generator, actors: int) -> None:
        self._random = random
        self._channel = 10.0 ** random.uniform(0, 5, (actors, actors))
        self._actor = 10.0 ** random.uniform(0, 4, actors)

    def message_us(self, sender: int, receiver: int) -> int:
        return 1 + int(self._channel[sender, receiver] * self._random.exponential())

    def work_us(self, actor: int) -> int:
        return 1 + int(self._actor[actor] * self._random.exponential())


class Simulation:
    """One run in virtual time. `sources`: the batches that each stream's source yields, in order."""

    MAX_STEPS = 200_000

    def __init__(
        self,
        config: RunConfig,
        sources: tuple[Sequence[SourceBatch], Sequence[SourceBatch]],
        slave_count: int,
        seed: int,
        layouts: tuple[RowLayout | None, RowLayout | None] = (None, None),
    ) -> None:
        self.config = config
        self.now_us = 0
        self._clock_ahead_us = 0  # the run's clock against virtual time: it starts anew when history is joined
        self.master = Master(config, slave_count, layouts)
        self.slaves = [Slave(SlaveId(i), config, layouts) for i in range(slave_count)]
        self.collector = Collector(slave_count, materialised=config.sink.kind != "count")
        self._sources = (deque(sources[LEFT]), deque(sources[RIGHT]))
        self._delays = _Delays(np.random.default_rng(seed), FIRST_SLAVE + slave_count)
        self._queue: list[tuple[int, int, str, Callable[[], None]]] = []
        self._sequence = 0
        self._channel_free_us: dict[tuple[int, int], int] = {}
        self._working = [False] * slave_count
        self._in_flight = [0, 0]  # tuples in deliveries on their way
        self._steps: deque[str] = deque(maxlen=12)
        self._pairs: list[Pairs] = []
        self._commits: list[int] = []
        self._aside = 0
        self._events: list[RunEvent] = []
        self._moved = False  # moves were in flight after the step before
        self._changed: set[SlaveId] = set()  # slaves that took an event in this step

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
        self._master_does(self.master.start())
        for slave in self.slaves:
            self._slave_does(slave, slave.start())
        if self.config.pace == "realtime":
            self._tick()
            for slave in self.slaves:
                self._exchange(slave)
        steps = 0
        while self._queue:
            self.now_us, _, name, action = heapq.heappop(self._queue)
            self._steps.append(f"{self.now_us} us {name}")
            steps += 1
            if steps > self.MAX_STEPS:
                raise self._error("no end in sight")
            try:
                action()
                self._check()
            except AssertionError as error:
                raise self._error(str(error)) from error
            if self._over:
                break
        if not self._over:
            raise self._error("every role waits for another")
        return self._result(steps)

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
        jitter = self._delays.work_us(MASTER)
        due = next_exchange_us(self.clock_us, slot_us) - self._clock_ahead_us
        self._at(due + jitter, "clock", self._advance_clock)

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
        jitter = self._delays.work_us(FIRST_SLAVE + slave.id)
        at = next_exchange_us(self.clock_us, epoch_us, offset_us) - self._clock_ahead_us
        self._at(at + jitter, f"slot of slave {slave.id}", due)

    def _master_does(self, commands: list[MasterCommand]) -> None:
        for command in commands:
            match command:
                case ReadTuples(stream):
                    self._at(
                        self.now_us + self._delays.work_us(MASTER),
                        f"read {STREAM_NAMES[stream]}",
                        partial(self._read, stream),
                    )
                case Deliver(delivery):
                    frame = pack_delivery(delivery)
                    self._in_flight[LEFT] += len(delivery.left)
                    self._in_flight[RIGHT] += len(delivery.right)
                    name = f"delivery of epoch {delivery.epoch} to slave {delivery.slave}"
                    receiver = FIRST_SLAVE + delivery.slave
                    self._send(MASTER, receiver, name, partial(self._deliver, self.slaves[delivery.slave], frame))
                case BeginMeasuring(clock_us):
                    self._clock_ahead_us = clock_us - self.now_us
                    for slave in self.slaves:
                        began = partial(self._tell, slave, MeasuringBegan())
                        self._send(MASTER, FIRST_SLAVE + slave.id, f"slave {slave.id} begins to be measured", began)
                case SetAside(_, batch, _):
                    self._aside += len(batch)
                case Log(event):
                    self._events.append(event)
                case _:
                    pass

    def _read(self, stream: int) -> None:
        queue = self._sources[stream]
        event = TuplesRead(stream, queue.popleft()) if queue else StreamEnded(stream)
        self._master_does(self.master.handle(event, self.clock_us))

    def _deliver(self, slave: Slave, frame: Frame) -> None:
        delivery = unpack_delivery(frame)
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
                    frame = pack_report(command)
                    self._send(sender, MASTER, f"report of slave {slave.id}", partial(self._report, slave.id, frame))
                case AcknowledgeMove(end):
                    name = f"slave {slave.id} acknowledges move {end.move}"
                    self._send(sender, MASTER, name, partial(self._acknowledge, pack_move_end(end)))
                case WantState(supplier, move):
                    name = f"slave {slave.id} wants state of move {move} from slave {supplier}"
                    wanted = partial(self._tell, self.slaves[supplier], StateWanted(move))
                    self._send(sender, FIRST_SLAVE + supplier, name, wanted)
                case SendState(chunk):
                    if chunk.pending:
                        self._in_flight[chunk.stream] += len(chunk.tuples)
                    name = f"chunk {chunk.index} of move {chunk.move} to slave {chunk.consumer}"
                    install = partial(self._receive_state, self.slaves[chunk.consumer], pack_state(chunk))
                    self._send(sender, FIRST_SLAVE + chunk.consumer, name, install)
                case SendResults(chunk):
                    frame = pack_results(chunk)
                    self._send(
                        sender, COLLECTOR, f"results of slave {slave.id}, epoch {chunk.epoch}", partial(self._collect, frame)
                    )
                case _:
                    pass

    def _report(self, slave: SlaveId, frame: Frame) -> None:
        report = unpack_report(frame)
        self._tell_master(SlaveReported(slave, report.occupancy_ratio, report.loads))

    def _acknowledge(self, frame: Frame) -> None:
        self._tell_master(MoveEnded(unpack_move_end(frame)))

    def _tell_master(self, event: MasterEvent) -> None:
        self._master_does(self.master.handle(event, self.clock_us))

    def _tell(self, slave: Slave, event: SlaveEvent) -> None:
        self._slave_does(slave, slave.handle(event, self.clock_us))
        self._keep_working(slave)

    def _receive_state(self, slave: Slave, frame: Frame) -> None:
        chunk = unpack_state(frame)
        if chunk.pending:
            self._in_flight[chunk.stream] -= len(chunk.tuples)
        self._tell(slave, StateReceived(chunk))

    def _collect(self, frame: Frame) -> None:
        for command in self.collector.handle(ResultsReceived(unpack_results(frame)), self.clock_us):
            match command:
                case WritePairs(pairs):
                    self._pairs.append(pairs)
                case CommitEpoch(epoch):
                    self._commits.append(epoch)
                case _:
                    pass

    # ------------------------------------------------------------ checkers

    def _check(self) -> None:
        """Every role's own invariants, and the ledger while it is in motion: every row read is in exactly one place."""
        self.master.validate()
        self.collector.validate()
        for slave in self._changed:
            self.slaves[slave].validate()
        self._changed.clear()
        for stream, name in enumerate(STREAM_NAMES):
            counts = self.master.streams[stream].counts
            somewhere = self.master.waiting_tuples(stream) + self._in_flight[stream]
            somewhere += sum(s.buffered_tuples(stream) + s.joined[stream] for s in self.slaves)
            good = counts.tuples - counts.null_key - counts.late - counts.shed
            assert somewhere == good, f"{name}: {good} good tuples were read, {somewhere} are somewhere"
        self._check_owners()

    def _check_owners(self) -> None:
        """Every partition-group has one place: its owner's directories, or on its way hidden at supplier and consumer."""
        moves = {m.group: m for m in self.master.controller.moves.values()}
        owner = self.master.controller.map.owner
        if not moves and not self._moved:
            return
        places: dict[int, list[SlaveId]] = {}
        for slave in self.slaves:
            for group in slave.join.group_ids():
                places.setdefault(group, []).append(slave.id)
        for place, at in places.items():
            group = GroupId(place)
            move = moves.get(group)
            allowed = {owner[group]} if move is None else {move.supplier, move.consumer}
            assert set(at) <= allowed, f"partition-group {group} is open at slaves {at}, its owner is slave {owner[group]}"
            assert len(at) == 1, f"partition-group {group} is open at slaves {at} at once"
        self._moved = bool(moves)

    def _result(self, steps: int) -> SimulationResult:
        summary = self.collector.summary()
        produced = sum(s.produced for s in self.slaves)
        history = summary["history"]
        if produced != summary["count"] + history["count"]:
            raise self._error(f"slaves produced {produced} pairs, the collector has {summary['count']} and {history['count']}")
        if (self._commits and self._commits != sorted(set(self._commits))) or self.collector.committed != self.master.epoch:
            raise self._error(f"commits {self._commits} do not lead to epoch {self.master.epoch}")
        joined = {name: sum(s.joined[i] for s in self.slaves) for i, name in enumerate(STREAM_NAMES)}
        counts = self.master.summary()["counts"]
        return SimulationResult(
            self._pairs,
            summary["count"],
            summary["digest"],
            joined,
            counts,
            self._aside,
            steps,
            self._commits,
            self._events,
            self.master.controller.history,
            history,
        )
