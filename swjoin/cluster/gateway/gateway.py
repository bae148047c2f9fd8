"""The gateway: reads, classifies, buffers and delivers the tuples, without I/O and without a clock.

What: `Gateway.handle(event, now_us) -> [effect]`. It reads rows, classifies them (`intake`), buffers them (`mini_buffers`),
closes slots and distribution epochs (`policy.epochs`), and serves the slaves of a sub-group in their fixed order, each when it
has reported. Before it closes its share of a distribution epoch it asks the master what holds in it (`EpochPlan`).
Why: the same object runs under MPI, in one process and in the simulator. The master decides and no tuple passes it, so that
there may be many gateways, which read the splits of the inputs that the master deals out (`open_splits`).
Stays out: files, messages on the wire, ranks, window state, placement and moves of partition-groups (`cluster.master`).

Paces. asap: an epoch ends when both watermarks have passed its boundary in event time (or, with distribution_epoch_us = 0,
when `epoch_tuples` are buffered, more for large windows); full mini-buffers end it early. realtime: an epoch ends on the
run's clock; rows reach the gateway when the clock passes their position on the time axis, also while the other stream is idle.
Rows of live streams arrive as they are read. A distribution epoch has a slot for each sub-group; with one, slot and epoch are
the same.
With several gateways all close a distribution epoch together: in asap pace, when it is ripe for one of them.
The prefill (`measure.prefill`) precedes the first epoch of realtime pace, as fast as the slaves join it; then the clock starts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass, replace
from typing import Any

import numpy as np

from swjoin.cluster.edge_ledger import summed
from swjoin.cluster.exchange import EpochHeader
from swjoin.cluster.gateway.arrival_sequence import ArrivalSequence, released
from swjoin.cluster.gateway.deferral import defer_full_slaves
from swjoin.cluster.gateway.feeds import Feeds
from swjoin.cluster.gateway.ingress import Ingress, ingress_of
from swjoin.cluster.gateway.intake import StreamIntake, take_null_keys
from swjoin.cluster.gateway.mini_buffers import Order
from swjoin.cluster.gateway.open_splits import OpenSplits
from swjoin.cluster.gateway.outbox import Outbox
from swjoin.cluster.gateway.overload import Overload
from swjoin.cluster.gateway.prefill import Prefill
from swjoin.cluster.gateway.read_scheduler import ReadScheduler
from swjoin.cluster.gateway.run_state import Moving, RunState
from swjoin.cluster.gateway.slots import Slots
from swjoin.cluster.gateway.tuple_queue import Store
from swjoin.cluster.messages import (
    CheckpointDurable,
    EpochClosed,
    EpochDue,
    EpochPlan,
    EpochWanted,
    EventNoted,
    Granted,
    GroupMoved,
    MeasuringStarted,
    Message,
    PartSaved,
    PrefillJoined,
    Report,
    SplitDealt,
    StopReading,
)
from swjoin.cluster.role import (
    MASTER,
    BatchRead,
    Effect,
    Event,
    Finish,
    Log,
    Read,
    Received,
    ReleaseInput,
    SavePart,
    Send,
    SetAside,
    SetTimer,
    Snapshot,
    SourceEnded,
    SourceIdle,
    SourceResumed,
    SplitOpened,
    TimerFired,
    UnexpectedEventError,
    slave_of,
)
from swjoin.config.run import RunConfig
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, RowLayout, StoredBatch, TupleBatch, in_memory
from swjoin.core.data_messages import RunEvent
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.policy.epochs import next_exchange_us, slot_end_us, slots_ended, slots_to_skip, sub_group_of
from swjoin.policy.placement import round_robin
from swjoin.routing.biclique import UnitTable
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.routing.hot_keys import HotKey

SLOT = "slot"  # the timer of the end of a slot
_Closing = tuple[int, tuple[int, ...], int | None]  # of a slot: deliver below this time, watermarks, start of the time axis


@dataclass(frozen=True)
class Share:
    """What a gateway is among several. number: of the gateway. dealt: it reads splits that the master deals out. fixed: it
    reads those of live streams that belong to its number. origin_us: start of the time axis, where it is known before anything
    is read."""

    number: int = 0
    dealt: bool = False
    fixed: bool = False
    origin_us: int | None = None


class Gateway:
    """One gateway of one run. `start` first, then `handle` every event; `finished` once it has returned `Finish`."""

    def __init__(
        self,
        config: RunConfig,
        slave_count: int,
        layouts: tuple[RowLayout | None, RowLayout | None],
        ingress: Ingress | None = None,
        store: Store | None = None,
        feeds: Feeds | None = None,
        share: Share | None = None,
    ) -> None:
        """ingress: intakes and mini-buffers to use instead of those for tuples. store: spills tuples to disk. feeds: edges to
        the stages of a plan. share: among several gateways."""
        share = share or Share()
        self.config = config
        self.slave_count = slave_count
        self.active = [SlaveId(s) for s in range(config.reorganization.active_slaves or slave_count)]
        self.feeds = feeds
        ingress = ingress or (ingress_of(config, layouts) if feeds is None else feeds.ingress())
        group_map = GroupMap(round_robin(config.cluster.partition_count, len(self.active)))
        self.streams, self.buffers = ingress.streams, ingress.buffers(HashPartition(group_map, slave_count))
        self.order = ArrivalSequence.of(config.query)
        self.epoch = EpochIndex(-1)
        self.finished = False
        self.peak_buffer_bytes = 0
        self.peak_pending_tuples = 0  # arrived and not delivered
        self._epoch_us = config.cluster.distribution_epoch_us
        self._realtime = config.pace == "realtime"
        self.outbox = Outbox(slave_count)
        self._sub_group = self._sub_groups - 1  # of the slot closed last
        self._plan = EpochPlan()  # of the distribution epoch `epoch`
        self._closing: _Closing | None = None  # the first slot of an epoch, which waits for the master's plan
        self._effects: list[Effect] = []  # of the slot that is being closed, and events for the run's log
        self._prefill = Prefill(self.streams, config.measure.prefill_us)
        self.state = RunState(in_prefill=self._prefill.length_us > 0, gateway=share.number, fixed=share.fixed)
        self.slots = Slots(config, self.streams, self.buffers, self.state)
        self.overload = Overload(config, self.streams, self.buffers, self.slots, self._note, store, keyed=feeds is None)
        self._slots_closed = self._prefill.length_us // (self._epoch_us or 1) * self._sub_groups  # realtime pace, run clock
        self.streams_ended_us: int | None = None  # realtime pace: when the last tuple had arrived
        splits = OpenSplits(self.streams) if share.dealt else None
        self.reading = ReadScheduler(config, self.streams, self.slots, self.overload, self._prefill, self.state, splits)
        self.reading.restore(share.origin_us)

    @property
    def number(self) -> int:
        return self.state.gateway

    @property
    def splits(self) -> OpenSplits | None:
        """What it is dealt; None where it reads the whole input."""
        return self.reading.splits

    @property
    def _several(self) -> bool:
        """Whether it is one of several gateways."""
        return self.config.gateway_count > 1

    def start(self, now_us: int = 0) -> list[Effect]:
        """Read the first rows; a restored gateway may have deliveries at once."""
        timers = [self._next_slot(now_us)] if self._realtime and not self.state.in_prefill else []
        return [*timers, *self._advance(now_us)]

    def _next_slot(self, now_us: int) -> SetTimer:
        """The end of the slot that is open at `now_us` (realtime pace)."""
        return SetTimer(SLOT, next_exchange_us(now_us, self.slot_us))

    @property
    def _sub_groups(self) -> int:
        return self.config.cluster.sub_group_count

    @property
    def slot_us(self) -> int:
        """Length of a slot on the run's clock; 0 in asap pace."""
        return max(1, self._epoch_us // self._sub_groups) if self._realtime else 0

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event at `now_us` on the run's clock; the effects are to be performed in order.

        Raises LateRowError (late policy `error`) and RunFailed (buffers too small for the declared bound).
        """
        effects: list[Effect] = []
        match event:
            case BatchRead(stream, batch):
                self.reading.pending = None
                intake = self.streams[stream]
                side_rows = intake.read(batch, None if self._realtime and not intake.live else now_us)
                effects += [SetAside(stream, rows, reason) for rows, reason in side_rows]
                if self.splits is not None:
                    effects += self.splits.count(stream, len(batch))
                self._collect(stream)
            case SourceEnded(stream):
                self.reading.pending = None
                if self.splits is None:
                    self.streams[stream].end()
                else:
                    effects += self.splits.ended(stream)
                self._collect(stream)
            case SplitOpened(stream, before_us) if self.splits is not None:
                self.splits.opened(stream, before_us)
                self._collect(stream)
            case Received(message=SplitDealt() as dealt) if self.splits is not None:
                effects += self.splits.take(dealt)
                self._collect(dealt.stream)
            case SourceIdle(stream):
                self.reading.become_idle(stream)
                self._note(now_us, "idle", text=self.streams[stream].name)
                self._collect(stream)
            case SourceResumed(stream):
                self.reading.stream_resumed(stream)
                self._note(now_us, "speaks", text=self.streams[stream].name)
            case Received(sender, Report(occupancy_ratio)):
                self.outbox.report(slave_of(sender), occupancy_ratio)
            case Received(sender, Granted() as credit) if self.feeds is not None:
                effects += self.feeds.granted(sender, credit)
            case Received(message=MeasuringStarted(clock_us)):
                return self._start_measuring(clock_us)
            case Received(message=message):
                effects += self._obey(message, now_us)
            case PartSaved():
                effects.append(Send(MASTER, event))
            case TimerFired():
                effects += [] if self.finished else [self._next_slot(now_us)]
            case _:
                raise UnexpectedEventError("gateway", event)
        return effects + self._advance(now_us)

    def _obey(self, message: Message, now_us: int) -> list[Effect]:
        """Take a message of the master."""
        match message:
            case EpochPlan():
                self._begin_epoch(message, now_us)
            case EpochDue(epoch):
                self.state.due_epoch = epoch
            case GroupMoved(_, state_bytes, waited_us) if self.feeds is not None:
                self.state.moving.finished.append((waited_us, state_bytes))  # it was routed to its consumer at once
            case GroupMoved(number, state_bytes):
                move = self.state.moving.end(number)
                router = HashPartition(self.buffers.router.map.moved(move.group, move.consumer), self.slave_count)
                move.state_bytes, move.released = state_bytes, self.buffers.release(move.group, router)
            case CheckpointDurable(_, stop):
                self.state.checkpoint_under_way = False
                self.finished = stop
                return [ReleaseInput(), *([Finish()] if stop else [])]
            case StopReading():
                self.state.stopping = True
            case _:
                raise UnexpectedEventError("gateway", Received(MASTER, message))
        return []

    def _note(self, now_us: int, kind: str, **fields: Any) -> None:
        event = RunEvent(now_us, int(self.epoch), kind, **fields)
        if not self._several:
            self._effects.append(Log(event))
            return
        text = f"{event.text} (gateway {self.number})".lstrip()
        self._effects.append(Send(MASTER, EventNoted(astuple(replace(event, text=text)))))

    def _note_move(self, now_us: int, kind: str, move: Moving, **fields: Any) -> None:
        if self.number:
            return  # all gateways hold the same partition-groups back
        subjects = {"slave": move.supplier, "peer": move.consumer, "group": move.group}
        self._note(now_us, kind, **subjects, amount=float(move.number), **fields)

    # ------------------------------------------------------------ one step after every event

    def _advance(self, now_us: int) -> list[Effect]:
        effects = [*self._taken_effects(), *self.outbox.serve()]
        while self._may_close and self._close_slot(now_us):
            effects += [*self._taken_effects(), *self.outbox.serve()]
        if self.state.in_prefill and not self._prefill.reported and self._prefill_joined():
            self._prefill.reported = True
            effects.append(Send(MASTER, PrefillJoined()))
        if self._plan.last and self.state.closed and self._delivered and not self.finished:
            self.finished = True
            effects.append(Finish())
        if not self.state.in_prefill:
            effects += self.overload.relieve(now_us)
        return [*effects, *self._taken_effects(), *self._read_on()]

    def _read_on(self) -> list[Effect]:
        unknown = self._realtime and self.reading.origin_us is None  # no slot can be closed before the origin is known
        wanted = None
        if unknown or not self.state.stopping:
            delivering = bool(self.buffers.tuples or self._delivers)
            wanted = self.reading.next_stream(self._next_end_us, mid_epoch=self._mid_epoch, delivering=delivering)
        if wanted is None:
            return []
        if self.splits is not None and not self.splits.ready(wanted):
            return self.splits.ask(wanted)
        self.reading.pending = wanted
        return [Read(wanted, self.reading.instead_of(wanted))]

    def _collect(self, stream: int) -> None:
        """asap pace, and prefill: admit the rows read and append the released tuples to the mini-buffers."""
        origin = self.reading.origin_us
        if not self._realtime:
            self.streams[stream].arrive_all()
            self.reading.carry()
        elif self.state.in_prefill and origin is not None:
            self._prefill.admit(origin)
        else:
            return
        both = self._realtime or any(s.idle for s in self.streams)  # the other stream's time may have advanced, too
        self._append_released(self.streams if both else [self.streams[stream]])

    def _append_released(self, streams: Sequence[StreamIntake]) -> None:
        for of, batch in released(streams, self.order, self.streams):
            self.buffers.append(of, batch)
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, self.slots.waiting_bytes)

    # ------------------------------------------------------------ prefill

    def _prefill_joined(self) -> bool:
        """Whether every slave has joined the prefill: during it, a slave reports once it has joined all of its deliveries."""
        waiting = self.outbox or self.buffers.tuples or self._mid_epoch or self._closing is not None
        read = self._prefill.is_read(self.reading.origin_us)
        return read and not waiting and all(s in self.outbox.occupancies for s in self.active)

    def _start_measuring(self, clock_us: int) -> list[Effect]:
        """Active slaves report again, in their slots; the report of an inactive slave stays valid."""
        self.state.in_prefill = False
        self.outbox.ask_again(self.active)
        self.outbox.take_fed_bytes()
        return [self._next_slot(clock_us), *self._read_on()]

    def _close_prefill(self) -> bool:
        origin, tuples = self.reading.origin_us, self.buffers.tuples
        full = tuples >= self.slots.size.tuples or self.slots.waiting_bytes >= self.config.cluster.mini_buffer_bytes
        ripe = (tuples or self._mid_epoch) and (full or self._prefill.is_read(origin))
        if origin is None or not (ripe or self._due or (self._several and self._mid_epoch)):
            return False
        times = self._prefill.times_us(origin, rebased=self.config.time.model == "arrival")
        self._closing = END_OF_TIME_US, times, origin
        return True

    # ------------------------------------------------------------ closing slots

    @property
    def _mid_epoch(self) -> bool:
        """Some sub-groups of the current distribution epoch have not had their slot yet."""
        return self._sub_group < self._sub_groups - 1

    @property
    def _may_close(self) -> bool:
        return not (self._delivers or self.state.closed or self._closing)

    @property
    def _delivers(self) -> bool:
        """Whether deliveries wait for their receivers."""
        return bool(self.outbox) if self.feeds is None else self.feeds.outlet.waits

    @property
    def _delivered(self) -> bool:
        """Whether all deliveries have left; those of a plan have been worked on, too, so that no credit is on its way."""
        return not self.outbox if self.feeds is None else self.feeds.outlet.idle

    def _close_slot(self, now_us: int) -> bool:
        """Close the current slot if it has ended: its deliveries wait in `outbox`, or it waits for the plan of its epoch."""
        if self.state.in_prefill:
            ended = self._close_prefill()
        else:
            ended = self._close_realtime(now_us) if self._realtime else self._close_asap()
        if ended and self._mid_epoch:
            self._drain(now_us)
        elif ended:
            self._effects.append(Send(MASTER, self._epoch_wanted()))
        return ended

    @property
    def _due(self) -> bool:
        """Whether the slot is to be closed as it is: another gateway wants its epoch."""
        return self.state.due_epoch > self.epoch

    def _close_asap(self) -> bool:
        at_once = self._several or self.splits is not None  # slaves wait for all gateways; a checkpoint holds splits back
        if at_once and self._mid_epoch and self.slots.first is not None:
            self._closing = *self.slots.first, None
            return True
        end = self.slots.end(self.reading.origin_us, mid_epoch=self._mid_epoch)
        if end is None and self._due:
            end = END_OF_TIME_US
        if end is None:
            return False
        self._end_slot(end)
        return True

    def _end_slot(self, end_us: int, *, again: bool = False) -> None:
        """asap pace: close the first slot of an epoch at this time. again: as of `Slots.closed`."""
        self.slots.first = end_us, self.slots.closed(end_us, again=again)
        self._closing = *self.slots.first, None

    @property
    def _next_end_us(self) -> int:
        """realtime pace: when the open slot ends on the run's clock."""
        return slot_end_us(self._slots_closed, self._epoch_us, self._sub_groups)

    def _close_realtime(self, now_us: int) -> bool:
        due = slots_ended(now_us, self._epoch_us, self._sub_groups)
        origin = self.reading.origin_us
        no_rows = origin is None and self.state.stopping and self.reading.pending is None  # idle from the start
        if self._slots_closed >= due or (origin is None and not no_rows) or not self._all_reported():
            return False
        self._slots_closed += slots_to_skip(self._slots_closed, due, self._sub_groups) + 1
        if origin is None:
            self._closing = END_OF_TIME_US, (BEGIN_OF_TIME_US,) * len(self.streams), 0
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
        self._closing = END_OF_TIME_US, tuple(times), origin
        return True

    def _all_reported(self) -> bool:
        """Whether all slaves of the slot have reported their occupancy, as they do in every slot, or take the next epoch."""
        if self.feeds is not None:
            return self.feeds.outlet.until_epoch > self.epoch
        sub_group = (self._sub_group + 1) % self._sub_groups
        slaves = self._plan.served if self._mid_epoch else self.active
        return all(s in self.outbox.occupancies for s in slaves if sub_group_of(s, self._sub_groups) == sub_group)

    def _epoch_wanted(self) -> EpochWanted:
        assert self._closing is not None, "no slot is being closed"
        below_us, _, _ = self._closing
        if (self._epoch_us == 0 or self.state.in_prefill) and self.buffers.tuples:
            newest = self.buffers.last_ts_us if self.order is None else self.order.total
            self.slots.size.closed(newest, self.buffers.tuples)
        exhausted = self.slots.exhausted
        everything = exhausted and not self.state.in_prefill and self.buffers.last_ts_us < below_us and not self.state.moving
        everything = everything and not self.buffers.stored_bytes  # the last delivery must fit into memory
        parked = self.buffers.parked_bytes()
        parked_bytes = tuple(parked.get(SlaveId(s), 0) for s in range(self.slave_count))
        wanted = EpochWanted(self.epoch + 1, exhausted, everything, self.outbox.take_fed_bytes(), parked_bytes)
        if not self._several:
            return wanted
        times_us = tuple(int(stream.watermark_us) for stream in self.streams)
        return replace(wanted, times_us=times_us, idle=not exhausted and all(s.idle or s.exhausted for s in self.streams))

    def _begin_epoch(self, plan: EpochPlan, now_us: int) -> None:
        """The master has planned the epoch whose first slot has ended."""
        assert self._closing is not None, f"gateway: a plan of epoch {plan.epoch}, which was not asked for"
        assert plan.epoch == self.epoch + 1, f"gateway: a plan of epoch {plan.epoch} after epoch {self.epoch}"
        self.epoch, self._plan = EpochIndex(plan.epoch), plan
        self.active = [SlaveId(s) for s in plan.served if s not in plan.inactive]
        self.state.checkpoint_under_way |= plan.checkpoint
        self.state.others_read = bool(plan.times_us)
        if self.reading.carry_to(plan.times_us) and not self._realtime:
            self._append_released(self.streams)  # below the watermark that this delivery has
            self._end_slot(self._closing[0], again=True)
        if self.feeds is None:
            self.state.moving.begin(plan)
        else:
            for table in plan.hot_keys:
                self.feeds.outlet.spread([HotKey(*hot) for hot in table])
            for units in plan.units:
                self.feeds.outlet.use([UnitTable(*table) for table in units])
        self._drain(now_us)

    def _make_room(self, slaves: list[SlaveId], rebase_us: int) -> dict[SlaveId, tuple[int, int]]:
        """realtime pace: see `cluster.gateway.deferral`. Otherwise, and at the end, all parked tuples are released."""
        if not self._realtime or self.state.in_prefill or self._plan.everything:
            for slave in slaves:
                self.buffers.unpark(slave)
            return {}
        capacity = self.config.module.stream_buffer_bytes
        if self.slots.exhausted and self.buffers.stored_bytes:  # no more input: stored tuples may be loaded in larger pieces
            capacity = max(capacity, self.config.cluster.mini_buffer_bytes // (4 * self.slave_count))
        return defer_full_slaves(self.buffers, self.state.moving, slaves, self.outbox, capacity, rebase_us, self.order)

    def _drain(self, now_us: int) -> None:
        """Close a slot: deliveries to the active slaves of the next sub-group, with their orders."""
        assert self._closing is not None, "no slot is being closed"
        (below_us, times_us, rebase_us), self._closing = self._closing, None
        self._sub_group = (self._sub_group + 1) % self._sub_groups
        if not self.state.in_prefill:
            self.peak_pending_tuples = max(self.peak_pending_tuples, self.buffers.tuples + self.buffers.held_tuples)
        plan = self._plan
        if plan.everything:
            below_us = END_OF_TIME_US
        if self.feeds is None:
            self._deliver(below_us, (times_us[LEFT], times_us[RIGHT]), rebase_us, now_us)
        else:
            times_us = (END_OF_TIME_US,) * len(self.streams) if plan.everything else times_us
            header = EpochHeader(self.epoch, len(plan.served), plan.generation, plan.checkpoint, plan.last, plan.moves)
            parts = self.buffers.take_parts_below(below_us, rebase_us=rebase_us)
            self._effects += self.feeds.deliver(parts, times_us, header)
        if not self._mid_epoch:
            self._close_epoch()

    def _deliver(self, below_us: int, times_us: tuple[int, int], rebase_us: int | None, now_us: int) -> None:
        """Put a delivery to each slave of the slot into the outbox."""
        plan, by_arrival = self._plan, self.config.time.model == "arrival"
        limits_us = [max(below_us, passed_us) for passed_us in self.slots.passed_us]
        if self.order is not None:
            times_us = self.order.passed(below_us)
            limits_us = [max(below_us, self.order.ended_us)] * 2
        if plan.everything:
            times_us = (END_OF_TIME_US, END_OF_TIME_US)
        slaves = [SlaveId(s) for s in plan.served if sub_group_of(SlaveId(s), self._sub_groups) == self._sub_group]
        behind = self._make_room(slaves, rebase_us if rebase_us is not None and by_arrival else 0)
        drained = self.buffers.drain(limits_us, self._sub_group, slaves, rebase_us=rebase_us, rebase_ts=by_arrival)
        epoch = self.epoch, len(plan.served), plan.generation, plan.checkpoint, self._needed_us
        for slave, tuples in zip(slaves, drained, strict=True):
            moves_out, moves_in = self.state.moving.orders(slave)
            left_us, right_us = self.state.moving.limit_times(slave, times_us)
            if slave in behind:
                left_us, right_us = min(left_us, behind[slave][LEFT]), min(right_us, behind[slave][RIGHT])
            for number in moves_out[:, 0].tolist():
                move = self.state.moving.hold(number, times_us, now_us)
                self.buffers.hold(move.group)
                self._note_move(now_us, "held", move)
            self.outbox.put(
                tuples.delivery(
                    Order(slave, *epoch),
                    (left_us, right_us),
                    (moves_out, moves_in),
                    last=plan.last,
                    inactive=slave in plan.inactive,
                    null_keys=take_null_keys(self.streams, rebase_us or 0, count_windows=self.order is not None),
                )
            )
        for move in self.state.moving.deliver({s for s in slaves if s not in behind}, now_us):
            held_us = now_us - move.held_us
            counts = {"tuples": move.released, "state_bytes": move.state_bytes}
            self._note_move(now_us, "released", move, **counts, duration_us=held_us)

    def _close_epoch(self) -> None:
        """After the last slot of the distribution epoch. If it ends with a checkpoint, all deliveries before the cut have been
        made, and the gateway's part of the checkpoint is its remaining state."""
        plan = self._plan
        self.state.closed = plan.last or plan.halt
        outlet = None if self.feeds is None else self.feeds.outlet
        loads = ((), ()) if outlet is None else (outlet.key_loads(), outlet.unit_loads())
        self._effects.append(Send(MASTER, EpochClosed(self.epoch, self._needed_us, *loads)))
        if plan.checkpoint:
            self._effects.append(SavePart(plan.generation, self.snapshot()))

    def _taken_effects(self) -> list[Effect]:
        effects, self._effects = self._effects, []
        return effects

    @property
    def _needed_us(self) -> tuple[int, int]:
        """Times below which a recovery needs no tuple. Slaves without partition-groups need none."""
        if self.feeds is not None:
            return BEGIN_OF_TIME_US, BEGIN_OF_TIME_US
        owners = {SlaveId(s) for s in np.unique(self.buffers.router.map.owner).tolist()} | self.state.moving.consumers
        return (self.order or self.config.query).needed_below(self.outbox.least_promised(owners))

    # ------------------------------------------------------------ across a crash

    def snapshot(self) -> Snapshot:
        """The gateway's state between two distribution epochs, with no move in flight.

        It consists of the tuples read and not delivered, the offsets of the streams, and a few counters. The rest follows from
        the configuration; window state is restored from the log of deliveries (`checkpoint.delivery_log`).
        """
        assert not self.state.moving, "a snapshot in the middle of a state movement"
        plain: dict[str, Any] = {
            "gateway": self._plain_state(),
            "overload": self.overload.plain_state(),
            "streams": [stream.plain_state() for stream in self.streams],
        }
        tuples: dict[str, Sequence[TupleBatch | StoredBatch]] = {}
        for stream, intake in enumerate(self.streams):
            name = self._label(stream)
            tuples[f"{name} buffered"] = self.buffers.pending(stream)
            tuples |= {f"{name} {what}": batches for what, batches in intake.tuples_kept().items()}
        if self.feeds is not None:
            plain["edges"] = self.feeds.outlet.ledger.to_plain()
            plain["newest_us"] = self.feeds.newest_us
        if self.splits is not None:
            plain["splits"] = self.splits.plain_state()
        elif self.state.fixed:
            plain["splits"] = [[] for _ in self.streams]  # none is half read: sources know their positions
        return Snapshot(plain, tuples)

    def _label(self, stream: int) -> str:
        """A stream in the names of a snapshot's tuples."""
        return STREAM_NAMES[stream] if self.feeds is None else f"source {stream}"

    def place(self, owner: I64, active: Sequence[int]) -> None:
        """Before `restore`: the owners of partition-groups, and the active slaves. owner: int64 (partition_count,)."""
        self.active = [SlaveId(s) for s in active]
        self.buffers.reroute(HashPartition(GroupMap(owner), self.slave_count))

    def restore(self, saved: Sequence[dict[str, Any]], shares: Sequence[Snapshot]) -> None:
        """Continue a run from a checkpoint, in a new gateway. `place` comes first.

        saved: states of all gateways then. shares: snapshots of those whose rows this gateway takes over.
        """
        for stream, intake in enumerate(self.streams):
            states = [state["streams"][stream] for state in saved]
            if self.state.fixed:  # a gateway that has read all of its splits is behind nobody
                states = [state for state in states if not state["ended"]] or states
            arrived_us = min(state["arrived_high_us"] for state in states)  # of an idle stream above the other
            intake.restore_time(max(arrived_us, min(state["high_us"] for state in states)), arrived_us)
        for number, share in enumerate(shares):
            for stream, intake in enumerate(self.streams):
                name = self._label(stream)
                kept: dict[str, list[TupleBatch]] = {
                    what.removeprefix(f"{name} "): [in_memory(batch) for batch in batches]
                    for what, batches in share.tuples.items()
                    if what.startswith(f"{name} ")
                }
                self.buffers.put_back(stream, kept.pop("buffered"))
                plain = share.plain["streams"][stream]
                if self.splits is not None or self.state.fixed or number:
                    intake.take_over(plain, kept)
                else:
                    intake.restore(plain, kept)
            self.overload.restore(share.plain["overload"])
        if self.feeds is not None:
            self.feeds.restore(max(state["newest_us"] for state in saved))
        self._restore_state([state["gateway"] for state in saved], [share.plain["gateway"] for share in shares])

    def _plain_state(self) -> dict[str, Any]:
        """State without streams and buffers, ready for JSON."""
        return {
            "epoch": int(self.epoch),
            "promised": self.outbox.least_promised() if self.feeds is None else (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US),
            "epochs_closed": self._slots_closed // self._sub_groups,
            "origin_us": self.reading.origin_us,
            "boundary_us": self.slots.boundary_us,
            "passed_us": self.slots.passed_us,
            "streams_ended_us": self.streams_ended_us,
            "epoch_size": self.slots.size.plain_state(),
            "peaks": [self.peak_buffer_bytes, self.peak_pending_tuples],
            "order": None if self.order is None else self.order.plain_state(),
            "finished_moves": list(self.state.moving.finished),  # a copy: the checkpoint is written while the run continues
        }

    def _restore_state(self, saved: Sequence[dict[str, Any]], shares: Sequence[dict[str, Any]]) -> None:
        """saved, shares: as of `restore`."""
        plain = saved[0]
        self.epoch = EpochIndex(plain["epoch"])
        self._slots_closed = max(state["epochs_closed"] for state in saved) * self._sub_groups
        left_us, right_us = (min(state["promised"][stream] for state in saved) for stream in (LEFT, RIGHT))
        self.outbox.promised = {SlaveId(s): (left_us, right_us) for s in range(self.slave_count)}
        waiting_bytes = self.buffers.nbytes + self.buffers.stored_bytes
        if self._realtime and self.feeds is None and waiting_bytes > self.config.module.stream_buffer_bytes:
            for slave in range(self.slave_count):  # released to each slave as its stream buffer has room
                self.buffers.park(SlaveId(slave))
        self.reading.restore(plain["origin_us"])
        self.slots.boundary_us = max(state["boundary_us"] for state in saved)
        self.slots.passed_us = list(map(max, *(state["passed_us"] for state in saved), self.slots.passed_us))
        self.streams_ended_us = plain["streams_ended_us"]
        self.slots.size.restore(plain["epoch_size"])
        for share in shares:
            self.peak_buffer_bytes = max(self.peak_buffer_bytes, share["peaks"][0])
            self.peak_pending_tuples = max(self.peak_pending_tuples, share["peaks"][1])
        self.state.moving.finished = [(held_us, size) for held_us, size in plain["finished_moves"]]
        if self.order is not None:
            self.order.restore(plain["order"], self.buffers)

    # ------------------------------------------------------------ after the run

    def waiting_tuples(self, stream: int) -> int:
        """Good tuples of a stream that have been read but are in no delivery yet."""
        delivered = self.outbox.tuples(stream) if self.feeds is None else 0
        return self.streams[stream].waiting_tuples + self.buffers.stream_tuples(stream) + delivered

    @staticmethod
    def merged(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The summary of all gateways together. All follow the same moves."""
        first = summaries[0]
        if len(summaries) == 1:
            return first

        def merge(field: str, name: str) -> int | None:
            values: list[int] = [s["counts"][field][name] for s in summaries if s["counts"][field][name] is not None]
            if field in ("earliest_us", "latest_us"):
                return (min if field == "earliest_us" else max)(values, default=None)
            return sum(values)

        counts = {field: {name: merge(field, name) for name in names} for field, names in first["counts"].items()}
        ended_us = [s["streams_ended_us"] for s in summaries]
        return {
            **first,
            "counts": counts,
            "edges": summed([s["edges"] for s in summaries]) if first["edges"] else {},
            "peak_buffer_bytes": max(s["peak_buffer_bytes"] for s in summaries),
            "peak_pending_tuples": sum(s["peak_pending_tuples"] for s in summaries),
            "streams_ended_us": None if None in ended_us else max(ended_us),
            "overload": Overload.merged([s["overload"] for s in summaries]),
        }

    def summary(self) -> dict[str, Any]:
        """The gateway's part of run.json: its counts, its peaks, count and bytes of moves and quantiles of their hold-back."""
        counts = {
            field: {stream.name: getattr(stream.counts, field) for stream in self.streams}
            for field in ("tuples", "null_key", "late", "shed", "earliest_us", "latest_us")
        }
        finished = self.state.moving.finished
        hold_backs_s = np.array([held_us for held_us, _ in finished], np.float64) / 1e6
        quantiles = {f"p{q}": float(np.quantile(hold_backs_s, q / 100)) if len(hold_backs_s) else None for q in (50, 99)}
        return {
            "gateway": self.number,
            "counts": counts,
            "edges": {} if self.feeds is None else self.feeds.outlet.ledger.to_plain(),
            "traffic": {} if self.feeds is None else self.feeds.outlet.traffic.to_plain(),
            "peak_buffer_bytes": self.peak_buffer_bytes,
            "peak_pending_tuples": self.peak_pending_tuples,
            "streams_ended_us": self.streams_ended_us,
            "overload": self.overload.summary(),
            "moves": len(finished),
            "movement": {
                "state_bytes": sum(nbytes for _, nbytes in finished),
                "hold_back_s": {**quantiles, "max": float(hold_backs_s.max()) if len(hold_backs_s) else None},
            },
        }

    def validate(self) -> None:
        self.buffers.validate()
        self.buffers.router.map.validate(self.slave_count)
        for intake in self.streams:
            intake.validate()
        self.outbox.validate()
        if self.feeds is not None:
            self.feeds.outlet.validate()
