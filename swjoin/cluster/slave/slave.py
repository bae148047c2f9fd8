"""A slave: receives deliveries into its stream buffer and joins them, without I/O and without a clock.

What: `Slave.handle(event, now_us) -> [effect]`. A `Delivery` fills the stream buffer; `WorkDue` does one bounded piece of join
work and may send one result chunk; the timer `EXCHANGE` (realtime) sends a report even while work is left.
Why: the same object runs under MPI, in one process and in the simulator; bounded pieces keep the exchange with the master on
time.
Stays out: window state and kernels (`operators`, `state`), sending, measuring CPU time (the runtime reports it by
`TimesMeasured`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import asdict, fields, replace
from typing import Any

import numpy as np

from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import CheckpointDurable, Granted, LoadReport, MeasuringStarted, PartSaved, Report, StateRequest
from swjoin.cluster.role import (
    MASTER,
    Effect,
    Event,
    Finish,
    Received,
    RestartClock,
    RoleId,
    SavePart,
    Send,
    SetTimer,
    Snapshot,
    TimerFired,
    TimesMeasured,
    UnexpectedEventError,
    WorkDue,
    gateway_of,
    gateway_role,
    is_sink,
)
from swjoin.cluster.slave.inbox import Inbox
from swjoin.cluster.slave.operator_of_stage import operator_of
from swjoin.cluster.slave.results import ResultOutlet
from swjoin.cluster.slave.stage import StageInstance
from swjoin.cluster.slave.state_mover import StateMover
from swjoin.cluster.slave.text_keys import TextKeys
from swjoin.config.run import RunConfig
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, Pairs, ResultRows, RowLayout
from swjoin.core.data_messages import (
    Delivery,
    GroupLoads,
    GroupResults,
    ResultChunk,
    StateChunk,
)
from swjoin.core.errors import RunFailed
from swjoin.core.ids import (
    BEGIN_OF_TIME_US,
    END_OF_TIME_US,
    EpochIndex,
    QueryId,
    SlaveId,
)
from swjoin.core.join_semantics import JoinKind
from swjoin.core.key_encoder import Dictionary
from swjoin.core.metric_columns import COLUMNS
from swjoin.core.sequence_numbers import preceding_counts, wire_layouts
from swjoin.expressions.vm import Program
from swjoin.operators.configured_join import join_of_run
from swjoin.operators.counted_join import CountedJoin
from swjoin.operators.join_operator import JoinOperator
from swjoin.operators.join_step import AnyStep, Work
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.policy.epochs import next_exchange_us, slot_offset_us, traffic_is_due
from swjoin.state.delay_histogram import HISTOGRAM_SIZE, histogram_quantile

EXCHANGE = "exchange"  # the timer of a slave's slot
STEP_TUPLES = 16_384  # one WorkDue joins about this many tuples, some milliseconds of work
LEAST_STEP_TUPLES = 256  # a slow node joins fewer, so that a step takes as long; but a step has its own cost
MOST_DELIVERIES = 64  # in the stream buffer, most of them empty; then the master waits for this slave
_TUPLE_NS, _COMPARISON_NS, _PAIR_NS = 30.0, 0.007, 8.0  # nominal work: only ratios matter, to compare partition-groups


_QUERY = QueryId(0)
_NO_RESULTS = GroupResults(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))


class Slave:
    """One slave for one run. `start` first, then `handle` every event; `finished` once it has returned `Finish`."""

    def __init__(
        self,
        slave: SlaveId,
        config: RunConfig,
        layouts: tuple[RowLayout | None, RowLayout | None],
        join: JoinOperator | None = None,
        where: Program | None = None,
        stage: StageInstance | None = None,
        *,
        in_order: bool = True,
    ) -> None:
        """join: a join module to use instead of the configured one. where: residual predicate, for rows of these layouts.
        stage: in a run of a plan, what is around the join. in_order: tuples of a stream come in order of time; not from several
        gateways, also before a crash."""
        reorganization = config.reorganization
        layouts = wire_layouts(layouts, count_windows=config.query.bounds.count_windows)
        self.id = slave
        self.finished = self.stopped = False  # stopped: the run is to be resumed from a checkpoint
        self.stage = stage
        of_rows = stage is not None and stage.of_rows
        more: dict[str, Any] = {} if stage is None else {"queries": len(stage.results), "named": stage.named_queries}
        self.results = ResultOutlet(config.sink_count, config.module.result_buffer_bytes, of_rows=of_rows, **more)
        self._config = config
        several = config.gateway_count > 1
        self.join: JoinOperator = join or join_of_run(
            config, layouts, name=f"slave {slave}", matching=Matching(where), in_order=in_order and not several
        )
        self.inbox = Inbox(config.gateway_count) if several and stage is None else None
        keys = TextKeys(Dictionary()) if stage is None else stage.text_keys
        self.joined = [0, 0]
        self.produced = self.matches = 0
        self.epoch = EpochIndex(-1)
        self._generation = 0  # of the next joined tuples
        self.peak_buffer_bytes = 0
        self.in_prefill = config.measure.prefill_us > 0
        self._realtime = config.pace == "realtime" and not self.in_prefill
        self.prefill_produced = 0
        node, changes = self.node, config.nodes.changes
        slowest = min([config.nodes.speed_of(node, 0), *(config.nodes.speed_of(node, c.at_us) for c in changes)])
        self.step_tuples = max(LEAST_STEP_TUPLES, int(STEP_TUPLES * slowest))
        self._awaiting = True  # a report or its delivery is in flight
        self._buffer: deque[Delivery] = deque()
        self._buffered_bytes = 0.0
        self._work: Work | None = None
        self._work_bytes = 0.0
        self._joined: AnyStep | None = None  # it ended the work; the epoch is completed in a piece of work of its own
        self._occupancies: deque[float] = deque()
        self._exchanges_us: deque[int] = deque()
        self._reported_us: int | None = None  # None: the wait for this delivery is not part of an exchange
        self._exchange_due = False
        self._last_delivered = self._last_joined = False
        self._times = TimesMeasured()
        self.mover = StateMover(slave, _QUERY, self.join, layouts, reorganization.chunk_bytes, keys)
        self._mover_turn = True
        self._promised_us = [(BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)] * config.gateway_count
        self._moved_last = False  # the last piece of work was a state movement's, not the join's
        self._settled: list[Work] = []  # pending tuples of imported partition-groups; counted with the next epoch
        self._inactive = stage is None and 0 < reorganization.active_slaves <= slave
        self._cost_ns = np.zeros(config.cluster.partition_count)
        self._busy_us = 0
        self._state_tuple_bytes = 24 + sum(layout.fixed_bytes for layout in layouts if layout is not None) // 2

    @staticmethod
    def of_plan(instances: Instances, slave: SlaveId) -> Slave:
        """The slave that plays one instance of a stage. UserError when the types of a predicate do not fit."""
        config, stage = instances.config_of(slave), StageInstance(instances, slave)
        rows = config.sink.kind != "count" or not stage.is_last or instances.of_rows
        return Slave(slave, config, stage.layouts, operator_of(stage, config, f"slave {slave}", rows=rows), stage=stage)

    @property
    def node(self) -> int:
        """The number of its slave rank."""
        return self.id if self.stage is None else self.stage.node

    def restore(self, delivery: Delivery) -> None:
        """Before `start`: restore tuples that were joined before a crash, in the order of their delivery."""
        delivery = self.mover.keys.received(delivery) if self.stage is None else self.stage.packed(delivery)
        self._check_numbers(delivery)
        self.join.check_rows(delivery, f"slave {self.id}, epoch {delivery.epoch}")
        self.join.restore(delivery)

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """Before `start`: end a restored distribution epoch, whose deliveries had at least these watermarks."""
        self.join.restored_until(times_us)

    def restored(self, times_us: I64) -> None:
        """Before `start`: end the restore. times_us: see `WindowJoinOperator.restored`."""
        self.join.restored(times_us)

    def set_active(self, active: Sequence[int]) -> None:
        """Before `start`, after a crash: set whether the slave is active, instead of the configuration."""
        self._inactive = self.id not in active

    def start(self, now_us: int = 0) -> list[Effect]:
        """Ask for the first delivery.

        In realtime pace the slave sends no report before its first slot. An extra report would shift every later one by a slot,
        and slaves with slow clocks would receive deliveries one slot early.
        """
        if self.stage is not None:
            self._awaiting = False
            return []
        if self._realtime:
            self._awaiting = False
            return [self._next_exchange(now_us)]
        return self._report(0.0)

    def _report(self, occupancy_ratio: float) -> list[Effect]:
        """Ready for a delivery of every gateway."""
        return [Send(gateway_role(g), Report(occupancy_ratio)) for g in range(self._config.gateway_count)]

    def _next_exchange(self, now_us: int) -> SetTimer:
        """The slave's next slot (realtime pace)."""
        cluster = self._config.cluster
        offset_us = slot_offset_us(self.id, cluster.sub_group_count, cluster.distribution_epoch_us)
        return SetTimer(EXCHANGE, next_exchange_us(now_us, cluster.distribution_epoch_us, offset_us))

    @property
    def expects_delivery(self) -> bool:
        """Whether an active slave has reported and waits for its delivery."""
        return self._awaiting and not self._inactive

    @property
    def last_delivered(self) -> bool:
        """Whether the last delivery has arrived."""
        return self._last_delivered

    @property
    def has_work(self) -> bool:
        return self._joins or self.mover.ready or self.mover.wants_to_begin or self.mover.wants_to_settle

    @property
    def kind(self) -> JoinKind:
        return self._config.query.kind

    @property
    def _joins(self) -> bool:
        if self.results.waits or (self.stage is not None and self.stage.outlet.waits):
            return False  # until the rows that came out have room; partition-groups move meanwhile
        return self._work is not None or bool(self._buffer) or self._stage_ready

    @property
    def _stage_ready(self) -> bool:
        """Whether parts of a plan's epoch can be joined: not before a partition-group that comes here is whole."""
        return self.stage is not None and self.stage.ready and not self.mover.imports

    @property
    def occupancy_ratio(self) -> float:
        waiting_bytes = max(0.0, self._buffered_bytes)  # rounding of fractional pieces
        if self.stage is not None:
            waiting_bytes += self.stage.merger.waiting_bytes  # of a later epoch too: this instance lags behind its senders
        if self.inbox is not None:
            waiting_bytes += self.inbox.bytes
        return waiting_bytes / self._config.module.stream_buffer_bytes

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event at `now_us` on the run's clock; the effects are to be performed in order.

        Raises RunFailed when the window state reaches its limit, or a delivery has tuples below an earlier watermark.
        """
        match event:
            case Received(sender, Delivery() as delivery):
                return self._receive(sender, delivery, now_us)
            case Received(sender, Granted() as credit) if is_sink(sender):
                self.results.granted(sender, credit)
                return self._finish_if_ended()
            case Received(sender, Granted() as credit) if self.stage is not None:
                return [*self.stage.granted(sender, credit), *self._finish_if_ended()]
            case WorkDue():
                return self._work_some(now_us)
            case Received(message=MeasuringStarted(clock_us)):
                self.in_prefill, self._realtime = False, True
                self._awaiting = self._inactive  # the master has discarded the reports of active slaves
                self.peak_buffer_bytes = self._busy_us = 0
                self._reported_us = None
                self._times = TimesMeasured()
                return [RestartClock(clock_us), self._next_exchange(clock_us)]
            case Received(message=StateRequest(move)):
                self.mover.wanted(move)
                return []
            case Received(message=StateChunk() as chunk):
                self.mover.received(chunk)
                return []
            case TimerFired():
                self._exchange_due = True
                return [] if self.finished else [self._next_exchange(now_us), *self._report_if_due(now_us)]
            case PartSaved():
                return [Send(MASTER, event)]
            case Received(message=CheckpointDurable(_, stop)):
                self.stopped = stop
                return []
            case TimesMeasured():
                self._busy_us += 0 if self._moved_last else event.process_us
                if self.stage is not None and not self._moved_last:
                    self.stage.join_cpu_us += event.join_cpu_us
                past = self._times
                self._times = TimesMeasured(
                    past.cpu_us + event.cpu_us,
                    past.communication_us + event.communication_us,
                    past.idle_us + event.idle_us,
                    past.process_us + event.process_us,
                )
                return []
            case _:
                raise UnexpectedEventError(f"slave {self.id}", event)

    def _receive(self, sender: RoleId, delivery: Delivery, now_us: int) -> list[Effect]:
        self._check_numbers(delivery)
        if self.stage is not None:
            self.stage.merger.add(sender, delivery)
            self.peak_buffer_bytes = max(self.peak_buffer_bytes, int(self._buffered_bytes) + self.stage.merger.waiting_bytes)
            return []
        self.join.check_rows(delivery, f"slave {self.id}, epoch {delivery.epoch}")
        gateway = 0 if self.inbox is None else gateway_of(sender)
        self._check_promise(gateway, delivery)
        delivery = self.mover.keys.received(delivery)
        if self.inbox is None:
            return self._take(delivery, now_us)
        self.inbox.add(gateway, delivery)
        effects: list[Effect] = []
        while (epoch := self.inbox.take()) is not None:
            effects += self._take(epoch, now_us)
        return effects

    def _take(self, delivery: Delivery, now_us: int) -> list[Effect]:
        """Put the delivery of an epoch into the stream buffer."""
        self._buffer.append(delivery)
        self._buffered_bytes += delivery.nbytes
        waiting_bytes = 0 if self.inbox is None else self.inbox.bytes
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, int(self._buffered_bytes) + waiting_bytes)
        self._occupancies.append(self.occupancy_ratio)
        self._exchanges_us.append(0 if self._reported_us is None else now_us - self._reported_us)
        self._reported_us = None
        self._last_delivered = delivery.last
        self._awaiting = False
        self._inactive = delivery.inactive
        return self.mover.order(delivery, now_us)

    def _check_numbers(self, delivery: Delivery) -> None:
        """Check the partition-groups of a delivery, whose ids kernels trust, as they do the widths of rows."""
        label = f"slave {self.id}, epoch {delivery.epoch}"
        groups, moves = delivery.groups, (delivery.moves_out, delivery.moves_in)
        largest = [int(groups[-1]) if len(groups) else 0, *(int(m[:, 1].max()) for m in moves if len(m))]
        if max(largest) >= len(self._cost_ns) or any((m < 0).any() for m in moves):
            raise RunFailed(f"{label}: a delivery of partition-group {max(largest)}, the run has {len(self._cost_ns)}")

    def _check_promise(self, gateway: int, delivery: Delivery) -> None:
        """Check tuples against the gateway's earlier watermarks: windows have expired by them, so an older tuple would lose
        pairs."""
        for stream, batch in ((LEFT, delivery.left), (RIGHT, delivery.right)):
            times = preceding_counts(batch) if self._config.query.bounds.count_windows else batch.ts
            oldest_us = int(times.min()) if len(batch) else END_OF_TIME_US
            promised_us = self._promised_us[gateway][stream]
            if oldest_us < promised_us:
                where = f"slave {self.id}, epoch {delivery.epoch}: a {STREAM_NAMES[stream]} tuple"
                raise RunFailed(f"{where} of time {oldest_us} us came after the promise of {promised_us} us")
        left_us, right_us = self._promised_us[gateway]  # a later promise may be lower: earlier ones still hold
        self._promised_us[gateway] = max(left_us, delivery.left_time_us), max(right_us, delivery.right_time_us)

    def _report_if_due(self, now_us: int) -> list[Effect]:
        """Ask for the next delivery.

        asap: when no delivery waits in the stream buffer (overlapped), and none is being joined (synchronous, and prefill).
        realtime: in every slot, with the occupancy of the stream buffer, unless it has `MOST_DELIVERIES`. An inactive slave
        reports once and then waits.
        """
        if self._last_delivered or self.stage is not None:
            return []
        if self._inactive:
            ready = not self._awaiting and not self.has_work
        elif self._realtime:
            ready = self._exchange_due and len(self._buffer) < MOST_DELIVERIES
        else:
            overlapped = self._config.cluster.communication == "overlapped" and not self.in_prefill
            ready = not self._awaiting and (not self._buffer if overlapped else not self._joins)
        if not ready:
            return []
        self._exchange_due = False
        if not self._awaiting:
            self._reported_us = None if self._inactive else now_us
        self._awaiting = True
        report = self._report(self.occupancy_ratio)
        if not self._reports_loads or self.in_prefill:
            return report
        return [self._load_report(), *report]

    def _load_report(self) -> Send:
        loads = self._loads() if self._measures_loads or self._config.reorganization.scaling.units else None
        return Send(MASTER, LoadReport(self.occupancy_ratio, loads))

    @property
    def _reports_loads(self) -> bool:
        return self._config.reorganization.policy != "none" or self._config.reorganization.scaling.units > 0

    @property
    def _measures_loads(self) -> bool:
        return self._config.reorganization.policy in ("balanced", "network")

    def _loads(self) -> GroupLoads:
        """The cost of every partition-group since the last report."""
        groups = np.array(self.join.group_ids(), np.int64)
        cost_ns = self._cost_ns[groups].astype(np.int64)
        busy_us, self._busy_us = self._busy_us, 0
        self._cost_ns[:] = 0
        state_bytes = self._state_bytes()[groups]
        stores_left = None if self.stage is None else self.stage.stores_left
        if stores_left is not None and isinstance(self.join, WindowJoinOperator):  # of what the limit holds for
            state_bytes = self.join.bytes_by_unit(stores_left)[groups]
        sent = self.stage.traffic.fresh() if self.stage is not None and self._reports_traffic else None
        return GroupLoads(busy_us, groups, cost_ns, state_bytes, sent)

    def _state_bytes(self) -> I64:
        """Of every partition-group: int64 (groups,)."""
        found: I64 = self.join.tuples_by_group(len(self._cost_ns)) * self._state_tuple_bytes
        return found

    @property
    def _reports_traffic(self) -> bool:
        reorganization, t_d = self._config.reorganization, self._config.cluster.distribution_epoch_us
        return reorganization.policy == "network" and traffic_is_due(self.epoch + 1, reorganization.epoch_us // t_d)

    def _work_some(self, now_us: int) -> list[Effect]:
        """Do one piece of join work or of a state movement, in turns when both are due."""
        self._moved_last = False
        if self._work is None:
            if self.mover.wants_to_settle:
                return self._settle()
            if self.mover.wants_to_begin:
                before = sum(d.nbytes for d in self._buffer)
                self.mover.begin(self._buffer)
                self._buffered_bytes -= before - sum(d.nbytes for d in self._buffer)
                return []
        self._mover_turn = not self._mover_turn
        if self.mover.ready and (self._mover_turn or not self._joins):
            self._moved_last = True
            return self.mover.step(now_us) + (self._report_if_due(now_us) if self._inactive else [])
        return self._join_some(now_us) if self._joins else []

    def _settle(self) -> list[Effect]:
        """Join the pending tuples of an imported partition-group, which its supplier had not joined."""
        self._work = self.mover.settle(self.epoch)
        if self._work is not None:
            self._work_bytes = float(self._work.delivery.nbytes)
            self._buffered_bytes += self._work_bytes
        return []

    def _join_some(self, now_us: int) -> list[Effect]:
        if self._work is None:
            delivery = self._next_delivery()
            if delivery is None:
                return []
            self._work = self.join.open(delivery)
            self._work_bytes = float(delivery.nbytes)
            self.epoch, self._generation = delivery.epoch, delivery.generation
            return [] if self._realtime else self._report_if_due(now_us)
        work = self._work
        if self._joined is not None:
            return self._finish_epoch(work, self._joined, now_us)
        step = self.join.step(work, now_us, STEP_TUPLES if self.in_prefill else self.step_tuples)
        tuples = len(work.delivery.left) + len(work.delivery.right)
        used = work.delivery.nbytes * step.tuples / tuples if tuples else 0.0
        self._work_bytes -= used
        self._buffered_bytes -= used
        ends_epoch = work.delivery.final and not work.settles
        if step.done and ends_epoch and (self.stage is None or self.stage.is_last):
            self._joined = step
            return []
        effects = self._emit(step, work.delivery)
        if step.done and ends_epoch:
            self._joined = replace(step, pairs=None)
        elif step.done:
            self._buffered_bytes = max(0.0, self._buffered_bytes - self._work_bytes)
            self._work = None
            self._settled.append(work)
            self._account(work)
            if self.stage is not None:
                effects += self.stage.joined(ended=False)
        return effects

    def _next_delivery(self) -> Delivery | None:
        """The delivery to be joined next, if there is one."""
        if self.stage is None:
            return self._buffer.popleft() if self._buffer else None
        if not self._stage_ready:
            return None
        delivery = self.stage.take()
        self._buffered_bytes += delivery.nbytes
        if delivery.final:
            self._occupancies.append(self.occupancy_ratio)
            self._exchanges_us.append(0)
        return delivery

    def _emit(self, step: AnyStep, delivery: Delivery) -> list[Effect]:
        """Send the rows of a step on: to the collector, or to the next stages of a plan."""
        if step.pairs is None or not len(step.pairs):
            return []
        found = [(_QUERY, step.pairs)] if self.stage is None else self.stage.rows_for_sinks(step.pairs)
        effects = [] if self.stage is None else self.stage.emit(step, delivery)
        for query, rows in found:
            if len(rows) or len(found) == 1:
                chunk = ResultChunk(query, self.id, self.epoch, False, False, rows)
                effects += self.results.send(replace(chunk, prefill=self.in_prefill, generation=self._generation))
        return effects

    def _results(self, pairs: Pairs | ResultRows | None) -> Pairs | ResultRows | None:
        """What goes to a sink of these pairs, the last of an epoch; those of several queries have been sent."""
        if pairs is None or self.stage is None or not self.stage.is_last:
            return pairs
        ((_, rows),) = self.stage.rows_for_sinks(pairs)
        return rows

    def _account(self, work: Work) -> None:
        """Count a joined delivery."""
        delivery = work.delivery
        self.joined[LEFT] += len(delivery.left)
        self.joined[RIGHT] += len(delivery.right)
        self.produced += work.pair_count
        self.matches += work.match_count(self.kind)
        self.prefill_produced += work.pair_count if self.in_prefill else 0
        if self._measures_loads or self.stage is not None:
            tuples = delivery.left_counts + delivery.right_counts
            cost = _TUPLE_NS * tuples + _COMPARISON_NS * work.comparisons_by_group + _PAIR_NS * work.results.counts
            self._cost_ns[delivery.groups] += cost
            if self.stage is not None:
                self.stage.traffic.work_ns[delivery.groups] += cost.astype(np.int64)

    def _finish_epoch(self, work: Work, step: AnyStep, now_us: int) -> list[Effect]:
        """Send the final chunk. A separate piece of work, so that the times measured before belong to this epoch."""
        self._buffered_bytes = max(0.0, self._buffered_bytes - self._work_bytes)
        self._work = self._joined = None
        effects = self.results.end(self._complete(work, step, now_us))
        if self.stage is not None:
            kept = sum(self.join.window_tuples())
            if self.stage.traffic.wants_state(kept):
                self.stage.traffic.held(kept, self._state_bytes())
            self.stage.peak_window_tuples = max(self.stage.peak_window_tuples, kept)
            effects += [*self.stage.end(work.delivery), *self.stage.joined(ended=True)]
            effects += self.mover.order(work.delivery, now_us)
            if self._reports_loads:
                effects.append(self._load_report())
        if work.delivery.checkpoint:
            times_us = [work.delivery.left_time_us, work.delivery.right_time_us]
            plain: dict[str, Any] = {"joined": list(self.joined), "produced": self.produced, "times_us": times_us}
            kept_since_us = self.join.needed_us() if isinstance(self.join, CountedJoin) else None
            plain |= {} if self.stage is None else self.stage.plain_state(kept_since_us)
            effects.append(SavePart(self._generation, Snapshot(plain)))
            self._generation += 1
        self._last_joined = work.delivery.last
        return effects + self._finish_if_ended() + self._report_if_due(now_us)

    def _finish_if_ended(self) -> list[Effect]:
        """It ends when sinks and next stages have taken all of its rows."""
        ended = self._last_joined if self.stage is None else self.stage.ended and self.stage.outlet.idle
        if not ended or self.finished or not self.results.idle:
            return []
        self.finished = True
        return [Finish()]

    def _complete(self, work: Work, step: AnyStep, now_us: int) -> ResultChunk:
        """The final chunk of an epoch, with its counts and metrics."""
        delivery = work.delivery
        self._account(work)
        works, self._settled = [*self._settled, work], []
        left, right = (sum(len(w.delivery.left if s == LEFT else w.delivery.right) for w in works) for s in (LEFT, RIGHT))
        pairs = sum(w.pair_count for w in works)
        is_result = self.stage is None or bool(self.stage.results)
        emitted = works if is_result else []  # rows for the next stages are no results, and have no production delay
        parts = [_NO_RESULTS, *(part for w in emitted for part in w.all_results)]
        results = GroupResults(*(np.concatenate([getattr(p, f.name) for p in parts]) for f in fields(GroupResults)))
        histogram = sum((w.delay_histogram for w in emitted), np.zeros(HISTOGRAM_SIZE, np.int64))
        timed = int(histogram.sum())  # unmatched rows have no delay
        delay_max_us = max((w.delay_max_us for w in emitted), default=0)
        values = {
            "slave": self.id,
            "epoch": delivery.epoch,
            "epoch_end_us": now_us,
            "left_tuples": left,
            "right_tuples": right,
            "delivered_bytes": sum(w.delivery.nbytes for w in works if not w.settles),
            "pairs": pairs,
            "comparisons": sum(w.comparisons for w in works),
            "process_us": self._times.process_us,
            "cpu_us": self._times.cpu_us,
            "communication_us": self._times.communication_us,
            "exchange_us": self._exchanges_us.popleft(),
            "idle_us": self._times.idle_us,
            "occupancy_ratio": self._occupancies.popleft(),
            "delay_mean_us": sum(w.delay_sum_us for w in emitted) / timed if timed else 0.0,
            "delay_p99_us": histogram_quantile(histogram, 0.99, delay_max_us),
            "delay_max_us": delay_max_us,
            "window_tuples": sum(self.join.window_tuples()),
            "window_bytes": self.join.window_bytes(),
            "mini_group_count": self.join.mini_group_count(),
            "block_count": self.join.block_count(),
        }
        self._times = TimesMeasured()
        metrics = np.array([values[name] for name in COLUMNS], np.float64)
        labels = (_QUERY, self.id, delivery.epoch, True, delivery.last)
        sums = (results, metrics, histogram, delivery.served, self.in_prefill)
        edges = None if self.stage is None else self.stage.ledger.received_rows()
        return ResultChunk(*labels, self._results(step.pairs), *sums, self._generation, delivery.checkpoint, edges)

    def buffered_tuples(self, stream: int) -> int:
        """Delivered tuples of a stream whose epoch is not completed."""
        deliveries = [*self._buffer, *([] if self._work is None else [self._work.delivery])]
        waiting = self.mover.waiting_tuples(stream) + (0 if self.inbox is None else self.inbox.tuples()[stream])
        return sum(len(d.left if stream == LEFT else d.right) for d in deliveries) + waiting

    def summary(self) -> dict[str, Any]:
        """The slave's part of run.json."""
        return {
            "slave": int(self.id),
            "joined": {"left": self.joined[0], "right": self.joined[1]},
            "produced": self.produced,
            "matches": self.matches,
            "history_produced": self.prefill_produced,
            "peak_buffer_bytes": self.peak_buffer_bytes,
            "windows": asdict(self.join.window_memory()),
            **({} if self.stage is None else {**self.stage.summary(), "traffic": self.stage.traffic.to_plain()}),
        }

    def validate(self) -> None:
        self.join.validate()
        self.mover.validate()
        self.results.validate()
        if self.inbox is not None:
            self.inbox.validate()
        if self.stage is not None:
            self.stage.validate()
        assert not self.finished or self.mover.idle, f"slave {self.id}: finished in the middle of a state movement"
        assert self._buffered_bytes > -1, f"slave {self.id}: stream buffer below zero ({self._buffered_bytes})"
        assert not self.finished or (not self.has_work and sum(self.join.window_tuples()) == 0), (
            f"slave {self.id}: finished with {sum(self.join.window_tuples())} tuples in its windows"
        )
