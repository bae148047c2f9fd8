"""The master: gateway and controller, without I/O and without a clock.

What: `Master.handle(event, now_us) -> [effect]`. It reads rows, classifies them (`intake`), buffers them (`mini_buffers`),
closes slots and distribution epochs (`policy.epochs`), serves the slaves of a sub-group in their fixed order, each when it has
reported, and adds the controller's orders to deliveries.
Why: the same object runs under MPI, in one process and in the simulator.
Stays out: files, messages on the wire, ranks, window state, ownership of partition-groups (`controller`).

Paces. asap: an epoch ends when both watermarks have passed its boundary in event time (or, with distribution_epoch_us = 0,
when `epoch_tuples` are buffered, more for large windows); full mini-buffers end it early. realtime: an epoch ends on the
run's clock; rows reach the master when the clock passes their position on the time axis, also while the other stream is idle.
Rows of live streams arrive as they are read. A distribution epoch has a slot for each sub-group; with one, slot and epoch are
the same.
The prefill (`measure.prefill`) precedes the first epoch of realtime pace, as fast as the slaves join it; then the clock starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from swjoin.cluster.master.arrival_sequence import ArrivalSequence, released
from swjoin.cluster.master.checkpoint_coordinator import Checkpoints
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.master.deferral import defer_full_slaves
from swjoin.cluster.master.ingress import Ingress, ingress_of
from swjoin.cluster.master.intake import take_null_keys
from swjoin.cluster.master.mini_buffers import Order
from swjoin.cluster.master.moves import Move
from swjoin.cluster.master.overload import Overload
from swjoin.cluster.master.phases import EpochPlan, Phase, Phases
from swjoin.cluster.master.prefill import Prefill
from swjoin.cluster.master.read_scheduler import ReadScheduler
from swjoin.cluster.master.slots import Slots
from swjoin.cluster.master.tuple_queue import Store
from swjoin.cluster.messages import MeasuringStarted, PartSaved, Report
from swjoin.cluster.role import (
    COLLECTOR,
    BatchRead,
    CheckpointCompleted,
    Effect,
    Event,
    Finish,
    Log,
    Read,
    Received,
    RestartClock,
    SavePart,
    Send,
    SetAside,
    SetTimer,
    Snapshot,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    StopRequested,
    TimerFired,
    UnexpectedEventError,
    slave_of,
    slave_role,
)
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout, StoredBatch, TupleBatch, in_memory
from swjoin.core.data_messages import Delivery, GroupLoads, MoveEnd
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.policy.epochs import next_exchange_us, slot_end_us, slots_ended, slots_to_skip, sub_group_of

SLOT = "slot"  # the timer of the end of a slot


class Master:
    """One master for one run. `start` first, then `handle` every event; `finished` once it has returned `Finish`.

    Raises UserError when the configuration needs more slaves than the run has.
    """

    def __init__(
        self,
        config: RunConfig,
        slave_count: int,
        layouts: tuple[RowLayout | None, RowLayout | None],
        ingress: Ingress | None = None,
        store: Store | None = None,
    ) -> None:
        """ingress: intakes and mini-buffers to use instead of those for tuples. store: spills tuples to disk."""
        config.check_slaves(slave_count)
        self.config = config
        self.slave_count = slave_count
        self.controller = Controller(config, slave_count)
        ingress = ingress or ingress_of(config, layouts)
        self.streams, self.buffers = ingress.streams, ingress.buffers(self.controller.router)
        self.order = ArrivalSequence.of(config.query)
        self.epoch = EpochIndex(-1)
        self.peak_buffer_bytes = 0
        self.peak_pending_tuples = 0  # arrived and not delivered
        self._query = QueryId(0)
        self._epoch_us = config.cluster.distribution_epoch_us
        self._sub_groups = config.cluster.sub_group_count
        self._realtime = config.pace == "realtime"
        self._reported: dict[int, tuple[float, GroupLoads | None]] = {}
        self._serving: deque[Delivery] = deque()
        self._released: list[tuple[Move, int]] = []  # installed moves, and the count of their released tuples
        self._sub_group = self._sub_groups - 1  # of the slot closed last
        self._plan = EpochPlan()  # of the distribution epoch `epoch`
        self.checkpoints = Checkpoints(config.checkpoint, slave_count)
        self.slots = Slots(config, self.streams, self.buffers, self.controller, self.checkpoints)
        self.overload = Overload(config, self.streams, self.buffers, self.slots, self.controller, store)
        self._saves: list[Effect] = []
        self._promised: dict[SlaveId, tuple[int, int]] = {}  # each slave's last punctuations
        self._prefill = Prefill(self.streams, config.measure.prefill_us)
        self.phases = Phases(prefill=self._prefill.length_us > 0)
        self._slots_closed = self._prefill.length_us // (self._epoch_us or 1) * self._sub_groups  # realtime pace, run clock
        self.streams_ended_us: int | None = None  # realtime pace: when the last tuple had arrived
        self.reading = ReadScheduler(config, self.streams, self.slots, self.overload, self._prefill, self.phases)

    @property
    def finished(self) -> bool:
        """Whether the run has ended for the master."""
        return self.phases.ended

    def start(self, now_us: int = 0) -> list[Effect]:
        """Read the first rows; a restored master may have deliveries at once."""
        timers = [self._next_slot(now_us)] if self._realtime and not self.phases.in_prefill else []
        return [*timers, *self._advance(now_us)]

    def _next_slot(self, now_us: int) -> SetTimer:
        """The end of the slot that is open at `now_us` (realtime pace)."""
        return SetTimer(SLOT, next_exchange_us(now_us, self.slot_us))

    @property
    def slot_us(self) -> int:
        """Length of a slot on the run's clock; 0 in asap pace."""
        return max(1, self._epoch_us // self._sub_groups) if self._realtime else 0

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event at `now_us` on the run's clock; the effects are to be performed in order.

        Raises LateRowError (late policy `error`) and RunFailed (buffers too small for the declared bound).
        """
        commands: list[Effect] = []
        match event:
            case BatchRead(stream, batch):
                self.reading.pending = None
                side_rows = self.streams[stream].read(batch, None if self._realtime and not self.config.live else now_us)
                commands += [SetAside(stream, rows, reason) for rows, reason in side_rows]
                self._collect(stream)
            case SourceEnded(stream):
                self.reading.pending = None
                self.streams[stream].end()
                self._collect(stream)
            case SourceIdle(stream):
                self.reading.become_idle(stream)
                self.controller.note(now_us, "idle", text=STREAM_NAMES[stream])
                self._collect(stream)
            case SourceResumed(stream):
                self.reading.stream_resumed(stream)
                self.controller.note(now_us, "speaks", text=STREAM_NAMES[stream])
            case Received(sender, Report(occupancy_ratio, loads)):
                self._reported[slave_of(sender)] = (occupancy_ratio, loads)
            case Received(message=MoveEnd() as end):
                move = self.controller.acknowledge(end, now_us)
                if move is not None:
                    self._released.append((move, self.buffers.release(move.group, self.controller.router)))
            case (PartSaved() as part) | Received(message=PartSaved() as part):
                commands += self.checkpoints.saved(part)
            case CheckpointCompleted():
                commands += self.checkpoints.complete(event, now_us)
                duration_us = self.checkpoints.durations_us[-1]
                self.controller.note(now_us, "checkpoint", duration_us=duration_us, amount=float(event.generation))
            case StopRequested():
                self.checkpoints.stopping = True
            case TimerFired():
                commands += [] if self.finished else [self._next_slot(now_us)]
            case _:
                raise UnexpectedEventError("master", event)
        commands += self._advance(now_us)
        return commands + [Log(event) for event in self.controller.take_events()]

    # ------------------------------------------------------------ one step after every event

    def _advance(self, now_us: int) -> list[Effect]:
        commands: list[Effect] = []
        commands += self._serve()
        if self.phases.in_prefill and self._prefill_joined():
            return [*commands, *self._start_measuring()]
        while not self._serving and self.phases.closes_slots and self._close_slot(now_us):
            commands += [*self._saves, *self._serve()]
            self._saves.clear()
        if not self._serving and (ended := self._ended()) is not None:
            self.phases.enter(ended)
            commands.append(Finish())
        return [*commands, *([] if self.phases.in_prefill else self.overload.relieve(now_us)), *self._read_on()]

    def _ended(self) -> Phase | None:
        """The final phase, once all deliveries are made; None before."""
        if self.phases.phase is Phase.HALTED and self.checkpoints.stopped:
            return Phase.STOPPED
        return Phase.FINISHED if self.phases.phase is Phase.DRAINING else None

    def _read_on(self) -> list[Effect]:
        unknown = self._realtime and self.reading.origin_us is None  # no slot can be closed before the origin is known
        wanted = None
        if unknown or not self.checkpoints.stopping:
            delivering = bool(self.buffers.tuples or self._serving)
            wanted = self.reading.next_stream(self._next_end_us, mid_epoch=self._mid_epoch, delivering=delivering)
        if wanted is not None:
            self.reading.pending = wanted
        return [] if wanted is None else [Read(wanted, self.reading.instead_of(wanted))]

    def _serve(self) -> list[Effect]:
        """Deliver in the fixed order of slaves; a slave is served once it has reported."""
        commands: list[Effect] = []
        while self._serving and self._serving[0].slave in self._reported:
            delivery = self._serving.popleft()
            occupancy_ratio, loads = self._reported.pop(delivery.slave)
            if not self.phases.in_prefill:
                self.controller.loads.sample(delivery.slave, occupancy_ratio, loads)
                self.controller.loads.delivered(delivery.slave, delivery.nbytes)
            commands.append(Send(slave_role(delivery.slave), delivery))
        return commands

    def _collect(self, stream: int) -> None:
        """asap pace, and prefill: admit the rows read and append the released tuples to the mini-buffers."""
        origin = self.reading.origin_us
        if not self._realtime:
            self.streams[stream].arrive_all()
            self.reading.carry()
        elif self.phases.in_prefill and origin is not None:
            self._prefill.admit(origin)
        else:
            return
        both = self._realtime or any(s.idle for s in self.streams)  # the other stream's time may have advanced, too
        for of, batch in released(self.streams if both else [self.streams[stream]], self.order, self.streams):
            self.buffers.append(of, batch)
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, self.slots.waiting_bytes)

    # ------------------------------------------------------------ prefill

    def _prefill_joined(self) -> bool:
        """Whether every slave has joined the prefill: during it, a slave reports once it has joined all of its deliveries."""
        waiting = self._serving or self.buffers.tuples or self._mid_epoch or not self._prefill.is_read(self.reading.origin_us)
        return not waiting and all(s in self._reported for s in self.controller.active)

    def _start_measuring(self) -> list[Effect]:
        """Start measuring: active slaves report again, in their slots; the report of an inactive slave stays valid."""
        self.phases.enter(Phase.RUNNING)
        clock_us = self._prefill.length_us
        self.controller.begin_measuring(self.epoch + 1, clock_us)
        self._reported = {s: report for s, report in self._reported.items() if s not in self.controller.active}
        others = [COLLECTOR, *(slave_role(s) for s in range(self.slave_count))]
        started = [Send(other, MeasuringStarted(clock_us)) for other in others]
        return [RestartClock(clock_us), *started, self._next_slot(clock_us), *self._read_on()]

    def _close_prefill(self, now_us: int) -> bool:
        origin, tuples = self.reading.origin_us, self.buffers.tuples
        full = tuples >= self.slots.size.tuples or self.slots.waiting_bytes >= self.config.cluster.mini_buffer_bytes
        if origin is None or not (tuples or self._mid_epoch) or not (full or self._prefill.is_read(origin)):
            return False
        times = self._prefill.times_us(origin, rebased=self.config.time.model == "arrival")
        self._drain(END_OF_TIME_US, times, now_us, origin)
        return True

    # ------------------------------------------------------------ closing slots

    @property
    def _mid_epoch(self) -> bool:
        """Some sub-groups of the current distribution epoch have not had their slot yet."""
        return self._sub_group < self._sub_groups - 1

    def _close_slot(self, now_us: int) -> bool:
        """Close the current slot if it has ended; its deliveries wait in `_serving`."""
        if self.phases.in_prefill:
            return self._close_prefill(now_us)
        return self._close_realtime(now_us) if self._realtime else self._close_asap(now_us)

    def _close_asap(self, now_us: int) -> bool:
        end = self.slots.end(self.reading.origin_us, mid_epoch=self._mid_epoch)
        if end is None:
            return False
        self._drain(end, self.slots.closed(end), now_us, None)
        return True

    @property
    def _next_end_us(self) -> int:
        """realtime pace: when the open slot ends on the run's clock."""
        return slot_end_us(self._slots_closed, self._epoch_us, self._sub_groups)

    def _close_realtime(self, now_us: int) -> bool:
        due = slots_ended(now_us, self._epoch_us, self._sub_groups)
        origin = self.reading.origin_us
        no_rows = origin is None and self.checkpoints.stopping and self.reading.pending is None  # idle from the start
        if self._slots_closed >= due or (origin is None and not no_rows) or not self._all_reported():
            return False
        self._slots_closed += slots_to_skip(self._slots_closed, due, self._sub_groups) + 1
        if origin is None:
            self._drain(END_OF_TIME_US, (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US), now_us, 0)
            return True
        axis_us = origin + slot_end_us(due - 1, self._epoch_us, self._sub_groups)
        self.overload.advance(axis_us if self.order is None else self.order.total)
        for intake in self.streams:
            intake.arrive_until(axis_us)
        self.reading.carry()
        for stream, batch in released(self.streams, self.order, self.streams):
            self.buffers.append(stream, batch)
            self.overload.arrived(stream, batch)
        times = [intake.watermark_us for intake in self.streams]
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, self.slots.waiting_bytes)
        if self.slots.exhausted and self.streams_ended_us is None:
            self.streams_ended_us = now_us
        if not any(s.arriving for s in self.streams):
            self.slots.check_room()
        if self.config.time.model == "arrival":
            times = [t if t == END_OF_TIME_US else t - origin for t in times]
        self._drain(END_OF_TIME_US, (times[LEFT], times[RIGHT]), now_us, origin)
        return True

    def _all_reported(self) -> bool:
        """Whether all slaves of the slot have reported their occupancy, as they do in every slot."""
        sub_group = (self._sub_group + 1) % self._sub_groups
        slaves = self._plan.served if self._mid_epoch else self.controller.active
        return all(s in self._reported for s in slaves if sub_group_of(s, self._sub_groups) == sub_group)

    def _make_room(self, slaves: list[SlaveId], rebase_us: int) -> dict[SlaveId, tuple[int, int]]:
        """realtime pace: see `cluster.master.deferral`. Otherwise, and at the end, all parked tuples are released."""
        if not self._realtime or self.phases.in_prefill or self._plan.everything:
            for slave in slaves:
                self.buffers.unpark(slave)
            return {}
        occupancies = {SlaveId(s): ratio for s, (ratio, _) in self._reported.items()}
        capacity = self.config.module.stream_buffer_bytes
        if self.slots.exhausted and self.buffers.stored_bytes:  # no more input: stored tuples may be loaded in larger pieces
            capacity = max(capacity, self.config.cluster.mini_buffer_bytes // (4 * self.slave_count))
        return defer_full_slaves(
            self.buffers, self.controller, slaves, occupancies, self._promised, capacity, rebase_us, self.order
        )

    def _drain(self, below_us: int, times_us: tuple[int, int], now_us: int, rebase_us: int | None) -> None:
        """Close a slot: deliveries to the active slaves of the next sub-group, with their orders."""
        self._sub_group = (self._sub_group + 1) % self._sub_groups
        if not self.phases.in_prefill:
            self.peak_pending_tuples = max(self.peak_pending_tuples, self.buffers.tuples + self.buffers.held_tuples)
        if self._sub_group == 0:
            self.controller.loads.parked_bytes = self.buffers.parked_bytes()
            self._plan = self._start_epoch(below_us, now_us)
        if self._plan.everything:
            below_us = END_OF_TIME_US
        if self.order is not None:
            times_us = self.order.passed(below_us)
        if self._plan.everything:
            times_us = (END_OF_TIME_US, END_OF_TIME_US)
        slaves = [s for s in self._plan.served if sub_group_of(s, self._sub_groups) == self._sub_group]
        behind = self._make_room(slaves, rebase_us if rebase_us is not None and self.config.time.model == "arrival" else 0)
        drained = self.buffers.drain(
            below_us, self._sub_group, slaves, rebase_us=rebase_us, rebase_ts=self.config.time.model == "arrival"
        )
        cut = self.phases.phase is Phase.CHECKPOINTING
        epoch = self.epoch, len(self._plan.served), self.checkpoints.generation, cut, self._needed_us
        for slave, tuples in zip(slaves, drained, strict=True):
            moves_out, moves_in = self.controller.movement.orders(slave)
            left_us, right_us = self.controller.movement.limit_times(slave, times_us)
            if slave in behind:
                left_us, right_us = min(left_us, behind[slave][LEFT]), min(right_us, behind[slave][RIGHT])
            self._promised[slave] = (left_us, right_us)
            for number in moves_out[:, 0].tolist():
                self.buffers.hold(self.controller.hold(number, times_us, now_us).group)
            self._serving.append(
                tuples.delivery(
                    Order(self._query, slave, *epoch),
                    (left_us, right_us),
                    (moves_out, moves_in),
                    last=self.phases.phase is Phase.LAST_EPOCH,
                    inactive=slave in self._plan.inactive,
                    null_keys=take_null_keys(self.streams, rebase_us or 0, count_windows=self.order is not None),
                )
            )
        for move, count in [x for x in self._released if x[0].consumer in slaves and x[0].consumer not in behind]:
            self._released.remove((move, count))
            self.controller.released(move, count, now_us)
        if not self._mid_epoch:
            self._close_epoch()

    def _least_promised(self) -> tuple[int, int]:
        left, right = (min(promise[stream] for promise in self._promised.values()) for stream in (LEFT, RIGHT))
        return left, right

    @property
    def _needed_us(self) -> tuple[int, int]:
        """Times below which a recovery needs no tuple. Slaves without partition-groups need none."""
        promises = [self._promised.get(s, (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)) for s in self.controller.owners()]
        left, right = (min(promise[stream] for promise in promises) for stream in (LEFT, RIGHT))
        return (self.order or self.config.query).needed_below((left, right))

    def _close_epoch(self) -> None:
        """After the last slot of the distribution epoch. If it ends with a checkpoint, all deliveries before the cut have been
        made, and the master's part of the checkpoint is its remaining state."""
        if self.phases.phase is Phase.LAST_EPOCH:
            self.phases.enter(Phase.DRAINING)
        elif self.phases.phase is Phase.CHECKPOINTING:
            generation = self.checkpoints.cut(self._needed_us)
            self.phases.enter(Phase.HALTED if self.checkpoints.is_last else Phase.RUNNING)
            self._saves.append(SavePart(generation, self.snapshot()))

    def _start_epoch(self, below_us: int, now_us: int) -> EpochPlan:
        """The next distribution epoch, its phase and its plan."""
        self.epoch = EpochIndex(self.epoch + 1)
        prefill = self.phases.in_prefill
        if (self._epoch_us == 0 or prefill) and self.buffers.tuples:
            newest = self.buffers.last_ts_us if self.order is None else self.order.total
            self.slots.size.closed(newest, self.buffers.tuples)
        exhausted = self.slots.exhausted
        everything = not prefill and exhausted and self.buffers.last_ts_us < below_us and not self.controller.moves
        everything = everything and not self.buffers.stored_bytes  # the last delivery must fit into memory
        last = everything and self.checkpoints.run_may_end
        due = not prefill and not last and self.checkpoints.due(self.epoch, now_us, everything=everything)
        checkpoint = due and not self.controller.moves
        still = due or self.checkpoints.being_joined
        inactive = self.controller.begin_epoch(self.epoch, now_us, ending=exhausted or prefill, still=still)
        if last:
            self.phases.enter(Phase.LAST_EPOCH)
        elif checkpoint:
            self.phases.enter(Phase.CHECKPOINTING)
            self.checkpoints.begin(self.epoch, now_us, everything=everything)
        else:
            return EpochPlan(sorted([*self.controller.active, *inactive]), inactive)
        slaves = [SlaveId(s) for s in range(self.slave_count)]  # inactive ones too, to end them or to get their part
        return EpochPlan(slaves, [s for s in slaves if checkpoint and s not in self.controller.active], everything)

    # ------------------------------------------------------------ across a crash

    def snapshot(self) -> Snapshot:
        """The master's state between two distribution epochs, with no move in flight.

        It consists of the tuples read and not delivered, the offsets of the streams, and a few counters. The rest follows from
        the configuration; window state is restored from the log of deliveries (`checkpoint.delivery_log`).
        """
        assert not self.controller.moves, "a snapshot in the middle of a state movement"
        plain: dict[str, Any] = {
            "master": self._plain_state(),
            "controller": self.controller.plain_state(),
            "overload": self.overload.plain_state(),
            "streams": [stream.plain_state() for stream in self.streams],
        }
        tuples: dict[str, Sequence[TupleBatch | StoredBatch]] = {}
        for stream in (LEFT, RIGHT):
            name = STREAM_NAMES[stream]
            tuples[f"{name} buffered"] = self.buffers.pending(stream)
            tuples |= {f"{name} {what}": batches for what, batches in self.streams[stream].tuples_kept().items()}
        return Snapshot(plain, tuples)

    def restore(self, plain: dict[str, Any], tuples: Mapping[str, Sequence[TupleBatch | StoredBatch]], now_us: int) -> None:
        """Continue a run from a snapshot, in a new master. tuples: as in the snapshot.

        With as many slaves as before, every partition-group goes to the slave of the same number; with another number of
        slaves, partition-groups are placed again.
        """
        self.controller.restore(plain["controller"], now_us)
        self.buffers.reroute(self.controller.router)
        for stream in (LEFT, RIGHT):
            name = STREAM_NAMES[stream]
            kept: dict[str, list[TupleBatch]] = {
                what.removeprefix(f"{name} "): [in_memory(batch) for batch in batches]
                for what, batches in tuples.items()
                if what.startswith(f"{name} ")
            }
            self.buffers.put_back(stream, kept.pop("buffered"))
            self.streams[stream].restore(plain["streams"][stream], kept)
        self.overload.restore(plain["overload"])
        self._restore_state(plain["master"], now_us)

    def _plain_state(self) -> dict[str, Any]:
        """State without streams, buffers and controller, ready for JSON."""
        return {
            "epoch": int(self.epoch),
            "generation": self.checkpoints.generation,
            "completed": self.checkpoints.completed,
            "all_held": self.checkpoints.covers_run,
            "promised": self._least_promised(),
            "epochs_closed": self._slots_closed // self._sub_groups,
            "origin_us": self.reading.origin_us,
            "boundary_us": self.slots.boundary_us,
            "streams_ended_us": self.streams_ended_us,
            "epoch_size": self.slots.size.plain_state(),
            "peaks": [self.peak_buffer_bytes, self.peak_pending_tuples],
            "order": None if self.order is None else self.order.plain_state(),
        }

    def _restore_state(self, plain: dict[str, Any], now_us: int) -> None:
        self.epoch = EpochIndex(plain["epoch"])
        self.checkpoints.restore(plain["generation"], plain["epoch"], now_us, plain["completed"] + 1)
        self.checkpoints.covers_run = plain["all_held"]
        self._slots_closed = plain["epochs_closed"] * self._sub_groups
        self._promised = {SlaveId(s): (plain["promised"][LEFT], plain["promised"][RIGHT]) for s in range(self.slave_count)}
        if self._realtime and self.buffers.nbytes + self.buffers.stored_bytes > self.config.module.stream_buffer_bytes:
            for slave in range(self.slave_count):  # released to each slave as its stream buffer has room
                self.buffers.park(SlaveId(slave))
        self.reading.restore(plain["origin_us"])
        self.slots.boundary_us = plain["boundary_us"]
        self.streams_ended_us = plain["streams_ended_us"]
        self.slots.size.restore(plain["epoch_size"])
        self.peak_buffer_bytes, self.peak_pending_tuples = plain["peaks"]
        if self.order is not None:
            self.order.restore(plain["order"], self.buffers)

    # ------------------------------------------------------------ after the run

    def waiting_tuples(self, stream: int) -> int:
        """Good tuples of a stream that have been read but are in no delivery yet."""
        serving = sum(len(d.left if stream == LEFT else d.right) for d in self._serving)
        return self.streams[stream].waiting_tuples + self.buffers.stream_tuples(stream) + serving

    def summary(self) -> dict[str, Any]:
        """The master's part of run.json."""
        counts = {
            field: {name: getattr(self.streams[i].counts, field) for i, name in enumerate(STREAM_NAMES)}
            for field in ("tuples", "null_key", "late", "shed", "earliest_us", "latest_us")
        }
        return {
            "counts": counts,
            "epochs": self.epoch + 1,
            "peak_buffer_bytes": self.peak_buffer_bytes,
            "peak_pending_tuples": self.peak_pending_tuples,
            "streams_ended_us": self.streams_ended_us,
            "checkpoints": self.checkpoints.summary(),
            "overload": self.overload.summary(),
            **self.controller.summary(),
        }

    def validate(self) -> None:
        self.buffers.validate()
        self.controller.validate()
        self.checkpoints.validate()
        for intake in self.streams:
            intake.validate()
        waiting = [d.slave for d in self._serving]
        assert waiting == sorted(waiting), f"slaves out of their fixed order: {waiting}"
