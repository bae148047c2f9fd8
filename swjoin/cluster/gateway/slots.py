"""Ends of slots in asap pace, and the fill of the master's buffers.

What: `Slots.end`, the event time below which tuples can be delivered now; `waiting_bytes`, `full`, `check_room`.
Why: an epoch may be closed once all of its tuples have arrived, and must be when the buffers are full.
Stays out: realtime pace, where the clock decides (`policy.epochs`); delivering (`cluster.master.master`).
"""

from __future__ import annotations

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.gateway.run_state import RunState
from swjoin.config.run import RunConfig
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.policy.epochs import EpochSize, boundary_after_us


class Slots:
    """boundary_us: end of the last slot, in event time; the slaves have it as a watermark. passed_us: by stream, the greatest
    watermark that any slave was sent. A slot that full buffers or another gateway end early sends greater ones than its
    boundary; tuples below, which were held back for a move, go with the next slot, whatever its end: if they waited, their
    partition-group could move to a slave whose windows have expired by them."""

    def __init__(
        self,
        config: RunConfig,
        streams: tuple[StreamIntake, ...],
        buffers: MiniBuffers,
        state: RunState,
    ) -> None:
        self.boundary_us = BEGIN_OF_TIME_US
        self.passed_us = [BEGIN_OF_TIME_US] * len(streams)
        self.first: tuple[int, tuple[int, ...]] | None = None  # of the epoch: deliver below this time, watermarks
        self._announced: tuple[bool, tuple[int, ...]] | None = None  # all streams rest: `exhausted` for the master, watermarks
        self._several = config.gateway_count > 1
        last = config.query.last
        self.size = EpochSize(
            max(1, config.cluster.epoch_tuples // config.gateway_count), sum(last) if last else config.query.bounds.retention_us
        )
        self._streams, self._buffers, self._state = streams, buffers, state
        self._limit_bytes = config.cluster.mini_buffer_bytes
        self._count_windows = config.query.bounds.count_windows
        self._out_of_order_us = config.time.max_out_of_order_us
        self._by_count = config.cluster.distribution_epoch_us == 0
        self._step_us = config.cluster.distribution_epoch_us // config.cluster.sub_group_count

    # ------------------------------------------------------------ asap pace

    def end(self, origin_us: int | None, *, mid_epoch: bool) -> int | None:
        """The end of the current slot. END_OF_TIME_US: deliver everything. None: the slot is open, or waits for a move or a
        checkpoint.

        origin_us: start of the time axis, None while unknown. mid_epoch: some sub-groups have not had their slot.
        """
        waits = self._state.waits
        if self._state.stopping:  # deliver everything, but after the moves or the checkpoint in flight
            return END_OF_TIME_US if mid_epoch or self._state.moving.has_orders or not waits else None
        if self.exhausted and self._buffers.tuples == 0 and waits and not mid_epoch:
            return None  # held-back tuples remain, or the end needs a checkpoint first
        return self.ripe(origin_us, mid_epoch=mid_epoch)

    def ripe(self, origin_us: int | None, *, mid_epoch: bool) -> int | None:
        """As `end`, without regard to moves and checkpoints."""
        if self._resting and (self._state.others_read or not self.exhausted):  # an idle stream may stay idle
            watermarks_us = tuple(stream.watermark_us for stream in self._streams)
            news = self._several and self._announced != (self.exhausted, watermarks_us)
            if not (self._buffers.tuples or mid_epoch or self._null_keys_wait or news):
                return None
            if not self.exhausted:
                return END_OF_TIME_US
        if self._by_count:
            enough = self._buffers.tuples >= self.size.tuples
            return END_OF_TIME_US if self.exhausted or enough or self.full() else None
        first_us = self._buffers.first_ts_us
        if origin_us is None or (first_us is None and not mid_epoch):
            null_keys_fill = not self.exhausted and self.full() and self._buffers.tuples == 0
            return END_OF_TIME_US if self.exhausted or null_keys_fill else None
        boundary = self.boundary_us + self._step_us  # not before the last one, which is a watermark already
        if first_us is not None:
            boundary = max(boundary, boundary_after_us(first_us, origin_us, self._step_us))
        if boundary <= min(s.watermark_us for s in self._streams):
            return boundary
        return END_OF_TIME_US if self.full() else None

    def closed(self, end_us: int, *, again: bool = False) -> tuple[int, ...]:
        """Close the slot at `end_us`; returns the watermarks of all streams. again: after the master has planned its epoch."""
        if end_us < END_OF_TIME_US:
            self.boundary_us = end_us
        times_us = tuple(min(end_us, stream.watermark_us) for stream in self._streams)
        self.passed_us = [max(passed, time_us) for passed, time_us in zip(self.passed_us, times_us, strict=True)]
        if not again:
            self._announced = (self.exhausted, times_us) if self._resting else None
        elif self._announced is not None:
            self._announced = (self._announced[0], times_us) if self._resting else None
        return times_us

    @property
    def _resting(self) -> bool:
        """Whether all streams are idle, or have ended."""
        return all(stream.exhausted or stream.idle for stream in self._streams)

    @property
    def exhausted(self) -> bool:
        return all(s.exhausted for s in self._streams)

    # ------------------------------------------------------------ fill of the buffers

    @property
    def waiting_bytes(self) -> int:
        """Bytes of tuples at the master: in the intakes and in the mini-buffers."""
        return self._buffers.nbytes + sum(s.waiting_bytes for s in self._streams)

    @property
    def _stuck_bytes(self) -> int:
        """Of these, the bytes that wait for further rows; with count windows without those that wait for the other stream."""
        return sum(s.held_bytes for s in self._streams) if self._count_windows else self.waiting_bytes

    def full(self) -> bool:
        self.check_room()
        return self.waiting_bytes >= self._limit_bytes and (self._buffers.tuples > 0 or self._null_keys_wait)

    @property
    def _null_keys_wait(self) -> bool:
        return any(s.null_key_bytes for s in self._streams)

    def check_room(self) -> None:
        """RunFailed when full buffers cannot be emptied by any delivery."""
        if self._stuck_bytes < self._limit_bytes or self._buffers.tuples or self._state.moving or self._null_keys_wait:
            return
        raise RunFailed(
            f"gateway: {self._stuck_bytes} bytes wait for rows that may still come within max_out_of_order "
            f"({self._out_of_order_us} us); raise cluster.mini_buffer or declare a smaller bound"
        )
