"""A slave: receives deliveries into its stream buffer and joins them (SPEC sections 2 to 4), without I/O and without a clock.

What: `Slave.handle(event, now_us) -> [command]`. `Delivered` fills the stream buffer; `WorkDue` does one bounded piece of join
work and may send one result chunk; `ExchangeDue` (realtime) reports although work is left.
Why: the same object runs under MPI, in one process and in the simulator; bounded pieces keep the exchange with the master on
time.
Stays out: window state and kernels (`operators`, `state`), sending, measuring CPU time (the runtime tells it by
`TimesMeasured`).
"""

from __future__ import annotations

from collections import deque
from typing import Any

import numpy as np

from swjoin.batch import LEFT, RowLayout
from swjoin.cluster.metrics import COLUMNS
from swjoin.config import RunConfig
from swjoin.messages import (
    Delivered,
    Delivery,
    EpochIndex,
    ExchangeDue,
    FinishSlave,
    QueryId,
    Report,
    ResultChunk,
    SendResults,
    SlaveCommand,
    SlaveEvent,
    SlaveId,
    TimesMeasured,
    WorkDue,
)
from swjoin.operators.window_join import Step, WindowJoin, Work

STEP_TUPLES = 16_384  # one WorkDue joins about this many tuples, some milliseconds of work
PAIR_BYTES = 40  # key, two times, two ids


class Slave:
    """One slave for one run. `start` first, then `handle` every event; `finished` once FinishSlave was commanded."""

    def __init__(self, slave: SlaveId, config: RunConfig, layouts: tuple[RowLayout | None, RowLayout | None]) -> None:
        module = config.module
        pair_bytes = PAIR_BYTES + sum(layout.fixed_bytes for layout in layouts if layout is not None)
        self.id = slave
        self.finished = False
        self.join = WindowJoin(
            config.query.bounds,
            block_tuples=module.block_tuples,
            theta_tuples=module.theta_tuples,
            window_bytes=module.window_bytes,
            left_layout=layouts[0],
            right_layout=layouts[1],
            materialise=config.sink.kind != "count",
            result_tuples=max(1, module.result_buffer_bytes // pair_bytes),
        )
        self.joined = [0, 0]
        self.produced = 0
        self.epoch = EpochIndex(-1)
        self.peak_buffer_bytes = 0
        self._realtime = config.pace == "realtime"
        self._overlapped = config.cluster.communication == "overlapped"
        self._awaiting = True  # a report is on its way, or its delivery is
        self._capacity_bytes = module.stream_buffer_bytes
        self._buffer: deque[Delivery] = deque()
        self._buffered_bytes = 0.0
        self._work: Work | None = None
        self._work_bytes = 0.0
        self._joined: Step | None = None  # the step that ended the work; the epoch is completed in a piece of work of its own
        self._occupancies: deque[float] = deque()
        self._exchange_due = False
        self._last_delivered = False
        self._times = TimesMeasured()
        self._query = QueryId(0)

    def start(self) -> list[SlaveCommand]:
        """Report for the first delivery."""
        return [Report(0.0)]

    @property
    def has_work(self) -> bool:
        return self._work is not None or bool(self._buffer)

    @property
    def occupancy_ratio(self) -> float:
        return self._buffered_bytes / self._capacity_bytes

    def handle(self, event: SlaveEvent, now_us: int) -> list[SlaveCommand]:
        """Take one event at `now_us` on the run's clock; the commands are to be performed in order.

        Raises RunFailed when the window state reaches its limit.
        """
        match event:
            case Delivered(delivery):
                return self._receive(delivery)
            case WorkDue():
                return self._join_some(now_us)
            case ExchangeDue():
                self._exchange_due = True
                return self._report_if_due()
            case TimesMeasured():
                past = self._times
                self._times = TimesMeasured(
                    past.cpu_us + event.cpu_us,
                    past.communication_us + event.communication_us,
                    past.idle_us + event.idle_us,
                    past.process_us + event.process_us,
                )
                return []

    def _receive(self, delivery: Delivery) -> list[SlaveCommand]:
        self._buffer.append(delivery)
        self._buffered_bytes += delivery.nbytes
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, int(self._buffered_bytes))
        self._occupancies.append(self.occupancy_ratio)
        self._last_delivered = delivery.last
        self._awaiting = False
        return []

    def _report_if_due(self) -> list[SlaveCommand]:
        """Ask for the next delivery.

        asap: when no delivery waits (overlapped: one may be joined meanwhile; synchronous: nor is any being joined).
        realtime: in the slot, unless the stream buffer is full (back-pressure).
        """
        if self._last_delivered:
            return []
        if self._realtime:
            ready = self._exchange_due and self.occupancy_ratio < 1
        else:
            ready = not self._awaiting and (not self._buffer if self._overlapped else not self.has_work)
        if not ready:
            return []
        self._exchange_due = False
        self._awaiting = True
        return [Report(self.occupancy_ratio)]

    def _join_some(self, now_us: int) -> list[SlaveCommand]:
        if self._work is None:
            if not self._buffer:
                return []
            delivery = self._buffer.popleft()
            self._work = self.join.open(delivery)
            self._work_bytes = float(delivery.nbytes)
            self.epoch = delivery.epoch
            return [] if self._realtime else self._report_if_due()
        work = self._work
        if self._joined is not None:
            return self._finish_epoch(work, self._joined, now_us)
        step = self.join.step(work, now_us, STEP_TUPLES)
        tuples = len(work.delivery.left) + len(work.delivery.right)
        used = work.delivery.nbytes * step.tuples / tuples if tuples else 0.0
        self._work_bytes -= used
        self._buffered_bytes -= used
        if step.done:
            self._joined = step
        elif step.pairs is not None and len(step.pairs):
            return [SendResults(ResultChunk(self._query, self.id, self.epoch, False, False, step.pairs))]
        return []

    def _finish_epoch(self, work: Work, step: Step, now_us: int) -> list[SlaveCommand]:
        """Send the final chunk; a piece of work of its own, so that the times measured before belong to this epoch."""
        self._buffered_bytes = max(0.0, self._buffered_bytes - self._work_bytes)
        self._work = self._joined = None
        commands: list[SlaveCommand] = [SendResults(self._complete(work, step, now_us))]
        if work.delivery.last:
            self.finished = True
            commands.append(FinishSlave())
        return commands + self._report_if_due()

    def _complete(self, work: Work, step: Step, now_us: int) -> ResultChunk:
        """The final chunk of an epoch, with its counts and metrics."""
        delivery = work.delivery
        left, right = len(delivery.left), len(delivery.right)
        self.joined[0] += left
        self.joined[1] += right
        pairs = int(work.results.counts.sum())
        self.produced += pairs
        values = {
            "slave": self.id,
            "epoch": delivery.epoch,
            "epoch_end_us": now_us,
            "left_tuples": left,
            "right_tuples": right,
            "delivered_bytes": delivery.nbytes,
            "pairs": pairs,
            "comparisons": work.comparisons,
            "process_us": self._times.process_us,
            "cpu_us": self._times.cpu_us,
            "communication_us": self._times.communication_us,
            "idle_us": self._times.idle_us,
            "occupancy_ratio": self._occupancies.popleft(),
            "delay_mean_us": work.delay_sum_us / pairs if pairs else 0.0,
            "delay_max_us": work.delay_max_us,
            "window_tuples": sum(self.join.window_tuples()),
            "window_bytes": self.join.window_bytes(),
            "mini_group_count": self.join.mini_group_count(),
            "block_count": self.join.block_count(),
        }
        self._times = TimesMeasured()
        metrics = np.array([values[name] for name in COLUMNS], np.float64)
        return ResultChunk(
            self._query, self.id, delivery.epoch, True, delivery.last, step.pairs, work.results, metrics, work.delay_histogram
        )

    def buffered_tuples(self, stream: int) -> int:
        """Tuples of a stream that were delivered and whose epoch is not completed."""
        deliveries = [*self._buffer, *([] if self._work is None else [self._work.delivery])]
        return sum(len(d.left if stream == LEFT else d.right) for d in deliveries)

    def summary(self) -> dict[str, Any]:
        """The slave's share of run.json."""
        return {
            "slave": int(self.id),
            "joined": {"left": self.joined[0], "right": self.joined[1]},
            "produced": self.produced,
            "peak_buffer_bytes": self.peak_buffer_bytes,
        }

    def validate(self) -> None:
        self.join.validate()
        assert self._buffered_bytes > -1, f"slave {self.id}: stream buffer below zero ({self._buffered_bytes})"
        assert not self.finished or (not self.has_work and sum(self.join.window_tuples()) == 0), (
            f"slave {self.id}: finished with {sum(self.join.window_tuples())} tuples in its windows"
        )
