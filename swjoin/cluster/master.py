"""The master: gateway and controller (SPEC sections 2 and 3), without I/O and without a clock.

What: `Master.handle(event, now_us) -> [command]`. It asks for rows, judges them (`intake`), buffers them (`buffers`), closes
distribution epochs (`policy.epochs`) and serves the slaves in their fixed order, each when it has reported.
Why: the same object runs under MPI, in one process and in the simulator.
Stays out: files, messages on the wire, ranks, window state.

Paces. asap: an epoch ends when both watermarks have passed its boundary in event time (or, with distribution_epoch_us = 0,
when `epoch_tuples` are buffered, more for large windows); full mini-buffers end it early. realtime: an epoch ends on the
run's clock; rows reach the master when the clock passes their place on the time axis, whether the other stream speaks or not.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from swjoin.batch import LEFT, RIGHT, STREAM_NAMES, RowLayout
from swjoin.cluster.buffers import MiniBuffers
from swjoin.cluster.intake import StreamIntake
from swjoin.config import RunConfig
from swjoin.errors import RunFailed
from swjoin.messages import (
    END_OF_TIME_US,
    ClockAdvanced,
    Deliver,
    Delivery,
    EpochIndex,
    FinishMaster,
    MasterCommand,
    MasterEvent,
    QueryId,
    ReadTuples,
    SetAside,
    SlaveReported,
    StreamEnded,
    TuplesRead,
)
from swjoin.policy.epochs import EpochSize, boundary_after_us, last_boundary_us
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition


class Master:
    """One master for one run. `start` first, then `handle` every event; `finished` once FinishMaster was commanded."""

    def __init__(self, config: RunConfig, slave_count: int, layouts: tuple[RowLayout | None, RowLayout | None]) -> None:
        self.config = config
        self.slave_count = slave_count
        self.streams = (StreamIntake(LEFT, config.time), StreamIntake(RIGHT, config.time))
        self.buffers = MiniBuffers(*layouts)
        self.router = HashPartition(GroupMap(round_robin(config.cluster.partition_count, slave_count)), slave_count)
        self.epoch = EpochIndex(-1)
        self.finished = False
        self.peak_buffer_bytes = 0
        self._query = QueryId(0)
        self._epoch_us = config.cluster.distribution_epoch_us
        self._realtime = config.pace == "realtime"
        self._epoch_size = EpochSize(config.cluster.epoch_tuples, config.query.bounds.retention_us)
        self._reading: int | None = None
        self._reported: set[int] = set()
        self._serving: deque[Delivery] = deque()
        self._last_closed = False
        self._next_boundary_us = self._epoch_us  # realtime pace, run clock
        self._origin_us: int | None = None  # start of the time axis: the lowest first time of both streams

    def start(self) -> list[MasterCommand]:
        """Ask for the first rows."""
        return self._advance(0)

    def handle(self, event: MasterEvent, now_us: int) -> list[MasterCommand]:
        """Take one event at `now_us` on the run's clock; the commands are to be performed in order.

        Raises LateRowError (late policy `error`) and RunFailed (buffers too small for the declared bound).
        """
        commands: list[MasterCommand] = []
        match event:
            case TuplesRead(stream, batch):
                self._reading = None
                aside = self.streams[stream].read(batch, None if self._realtime else now_us)
                commands += [SetAside(stream, rows, reason) for rows, reason in aside]
                if not self._realtime:
                    self._collect(stream)
            case StreamEnded(stream):
                self._reading = None
                self.streams[stream].end()
                if not self._realtime:
                    self._collect(stream)
            case SlaveReported(slave, _):
                self._reported.add(slave)
            case ClockAdvanced():
                pass
        return commands + self._advance(now_us)

    # ------------------------------------------------------------ one step after every event

    def _advance(self, now_us: int) -> list[MasterCommand]:
        commands: list[MasterCommand] = []
        commands += self._serve()
        while not self._serving and not self._last_closed and self._close_epoch(now_us):
            commands += self._serve()
        if self._last_closed and not self._serving and not self.finished:
            self.finished = True
            commands.append(FinishMaster())
        wanted = self._stream_to_read()
        if wanted is not None:
            self._reading = wanted
            commands.append(ReadTuples(wanted))
        return commands

    def _serve(self) -> list[MasterCommand]:
        """Deliver in the fixed order of slaves; a slave is served once it has reported."""
        commands: list[MasterCommand] = []
        while self._serving and self._serving[0].slave in self._reported:
            delivery = self._serving.popleft()
            self._reported.discard(delivery.slave)
            commands.append(Deliver(delivery))
        return commands

    def _collect(self, stream: int) -> None:
        """asap pace: what was read has arrived; what is in order goes to the mini-buffers."""
        intake = self.streams[stream]
        intake.arrive_all()
        for batch in intake.take_released():
            self.buffers.append(stream, batch)
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, self.waiting_bytes)

    # ------------------------------------------------------------ reading

    @property
    def waiting_bytes(self) -> int:
        """Bytes of tuples at the master: read, held for order, or in mini-buffers."""
        return self.buffers.nbytes + sum(s.waiting_bytes for s in self.streams)

    def _stream_to_read(self) -> int | None:
        """The stream to read next: the one that is behind, so that both advance together; None when the buffers suffice."""
        if self._reading is not None:
            return None
        open_streams = [s for s in self.streams if not s.ended]
        if not open_streams or self.waiting_bytes >= self.config.cluster.mini_buffer_bytes:
            return None
        behind = min(open_streams, key=lambda s: s.high_us)
        if self._realtime:
            origin = self._origin()
            if origin is None or behind.high_us - origin <= self._next_boundary_us + self._epoch_us:
                return behind.stream
            return None
        if self._epoch_end() is not None:
            return None
        return behind.stream

    def _origin(self) -> int | None:
        """Start of the time axis; known once each stream has shown a time or ended."""
        if self._origin_us is None and all(s.first_us is not None or s.ended for s in self.streams):
            self._origin_us = min((s.first_us for s in self.streams if s.first_us is not None), default=0)
        return self._origin_us

    # ------------------------------------------------------------ closing epochs

    @property
    def _exhausted(self) -> bool:
        return all(s.exhausted for s in self.streams)

    def _epoch_end(self) -> int | None:
        """asap pace: the event time below which tuples can be delivered now, or None while the epoch is still open."""
        exhausted = self._exhausted
        if self._epoch_us == 0:
            full = self.buffers.tuples >= self._epoch_size.tuples or self._full()
            return END_OF_TIME_US if exhausted or full else None
        first = self.buffers.first_ts_us
        origin = self._origin()
        if first is None or origin is None:
            if not exhausted:
                self._check_room()
            return END_OF_TIME_US if exhausted else None
        boundary = boundary_after_us(first, origin, self._epoch_us)
        if boundary <= min(s.watermark_us for s in self.streams):
            return boundary
        return END_OF_TIME_US if self._full() else None

    def _full(self) -> bool:
        self._check_room()
        return self.waiting_bytes >= self.config.cluster.mini_buffer_bytes

    def _check_room(self) -> None:
        """Full buffers that no delivery can empty would stop the run for ever: RunFailed."""
        if self.waiting_bytes >= self.config.cluster.mini_buffer_bytes and self.buffers.tuples == 0:
            raise RunFailed(
                f"master: {self.waiting_bytes} bytes wait for rows that may still come within max_out_of_order "
                f"({self.config.time.max_out_of_order_us} us); raise cluster.mini_buffer or declare a smaller bound"
            )

    def _close_epoch(self, now_us: int) -> bool:
        """Close the current epoch if it has ended; its deliveries wait in `_serving`."""
        return self._close_realtime(now_us) if self._realtime else self._close_asap()

    def _close_asap(self) -> bool:
        end = self._epoch_end()
        if end is None:
            return False
        times = [min(end, s.watermark_us) for s in self.streams]
        self._drain(end, (times[LEFT], times[RIGHT]), None)
        return True

    def _close_realtime(self, now_us: int) -> bool:
        boundary = last_boundary_us(now_us, self._epoch_us)
        origin = self._origin()
        if boundary < self._next_boundary_us or origin is None:
            return False
        self._next_boundary_us = boundary + self._epoch_us
        axis_us = origin + boundary
        times = []
        for intake in self.streams:
            intake.arrive_until(axis_us)
            for batch in intake.take_released():
                self.buffers.append(intake.stream, batch)
            times.append(intake.watermark_us)
        self.peak_buffer_bytes = max(self.peak_buffer_bytes, self.waiting_bytes)
        if not any(s.arriving for s in self.streams):
            self._check_room()
        if self.config.time.model == "arrival":
            times = [t if t == END_OF_TIME_US else t - origin for t in times]
        self._drain(END_OF_TIME_US, (times[LEFT], times[RIGHT]), origin)
        return True

    def _drain(self, below_us: int, times_us: tuple[int, int], rebase_us: int | None) -> None:
        self.epoch = EpochIndex(self.epoch + 1)
        if self._epoch_us == 0 and self.buffers.tuples:
            self._epoch_size.closed(self.buffers.last_ts_us, self.buffers.tuples)
        last = self._exhausted and self.buffers.last_ts_us < below_us
        if last:
            times_us = (END_OF_TIME_US, END_OF_TIME_US)
        deliveries = self.buffers.drain(
            below_us,
            times_us,
            self.router,
            self.slave_count,
            self._query,
            self.epoch,
            last=last,
            rebase_us=rebase_us,
            rebase_ts=self.config.time.model == "arrival",
        )
        self._last_closed = last
        self._serving.extend(deliveries)

    # ------------------------------------------------------------ after the run

    def waiting_tuples(self, stream: int) -> int:
        """Tuples of a stream that have been read and judged good but are in no Deliver command yet."""
        serving = sum(len(d.left if stream == LEFT else d.right) for d in self._serving)
        return self.streams[stream].waiting_tuples + self.buffers.stream_tuples(stream) + serving

    def summary(self) -> dict[str, Any]:
        """The master's share of run.json."""
        counts = {
            field: {name: getattr(self.streams[i].counts, field) for i, name in enumerate(STREAM_NAMES)}
            for field in ("tuples", "null_key", "late", "shed")
        }
        return {"counts": counts, "epochs": self.epoch + 1, "peak_buffer_bytes": self.peak_buffer_bytes}

    def validate(self) -> None:
        self.buffers.validate()
        for intake in self.streams:
            intake.validate()
        waiting = [d.slave for d in self._serving]
        assert waiting == sorted(waiting), f"slaves out of their fixed order: {waiting}"
