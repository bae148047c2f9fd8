"""The read scheduler: chooses the next stream to read and fixes the origin of the time axis.

What: `ReadScheduler`: `next_stream`, `origin_us`; idle and resumed streams, and their effect on the time of both.
Why: both streams must advance together and within the buffers' limits, and an idle stream must not stop the other.
Stays out: rows (`cluster.gateway.intake`), sources, the detection of idle sources (the runtimes).
"""

from __future__ import annotations

from collections.abc import Sequence

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.open_splits import OpenSplits
from swjoin.cluster.gateway.overload import Overload
from swjoin.cluster.gateway.prefill import Prefill
from swjoin.cluster.gateway.run_state import RunState
from swjoin.cluster.gateway.slots import Slots
from swjoin.config.run import RunConfig

_LEAST_LEAD_US = 1_000_000
_ARRIVING = 4  # in mini-buffer sizes, the most that may arrive with one slot


class ReadScheduler:
    """Schedules one read at a time. pending: the stream that is being read. splits: as given."""

    def __init__(
        self,
        config: RunConfig,
        streams: tuple[StreamIntake, ...],
        slots: Slots,
        overload: Overload,
        prefill: Prefill,
        state: RunState,
        splits: OpenSplits | None = None,
    ) -> None:
        """splits: that this gateway is dealt; None: it reads the whole input."""
        self.splits = splits
        self.pending: int | None = None
        self._origin_us: int | None = None
        self._streams, self._slots, self._overload = streams, slots, overload
        self._prefill, self._state = prefill, state
        self._realtime = config.pace == "realtime"
        self._live = any(stream.live for stream in streams)
        kept_us = 0 if config.query.unbounded else config.query.bounds.retention_us
        self._lead_us = max(_LEAST_LEAD_US, kept_us)  # with count windows the lower limit
        self._epoch_us = config.cluster.distribution_epoch_us
        self._limit_bytes = config.cluster.mini_buffer_bytes
        self._count_windows = config.query.bounds.count_windows
        self._by_arrival = config.time.model == "arrival"

    @property
    def origin_us(self) -> int | None:
        """Start of the time axis: the lowest first time of all streams; known once each stream has a time, ended or is idle.

        Live streams in realtime pace: 0, as their tuples are stamped on the run's clock.
        """
        if self._live and self._realtime:
            return 0
        streams = self._streams
        firsts = [s.first_us for s in streams if s.first_us is not None]
        known = all(s.first_us is not None or s.ended or s.idle for s in streams)
        if self._origin_us is None and known and (firsts or all(s.ended for s in streams)):
            self._origin_us = min(firsts, default=0)
        return self._origin_us

    def restore(self, origin_us: int | None) -> None:
        self._origin_us = origin_us

    def next_stream(self, next_end_us: int, *, mid_epoch: bool, delivering: bool) -> int | None:
        """The stream with the lower time, so that both advance together; None while one is read, or when enough is buffered.

        next_end_us: end of the open slot, on the run's clock (realtime pace). delivering: some tuples can be delivered.
        """
        if self.pending is not None:
            return None
        origin = self.origin_us
        if self._state.in_prefill:
            # When nothing can be delivered, the prefill is read even past the limit of the mini-buffers.
            full = self._slots.waiting_bytes >= self._limit_bytes and delivering
            return None if full else self._prefill.stream_to_read(origin, self._time_us)
        open_streams = [s for s in self._streams if not s.ended and not s.idle]
        # Nothing can be delivered before the origin is known: then a stream without a time is read even past the limit. With
        # count windows so is the stream with the lower time, for which the other's tuples wait.
        if not open_streams or (self._overload.full and origin is not None and (delivering or not self._count_windows)):
            return None
        behind = min(open_streams, key=self._time_us)
        if self._realtime and self._live:  # rows not yet arrived can be neither shed nor spilled
            enough = sum(s.arriving_bytes for s in self._streams) >= _ARRIVING * self._limit_bytes
        elif self._realtime:
            enough = origin is not None and self._time_us(behind) - origin > next_end_us + self._epoch_us
        else:
            enough = self._slots.ripe(origin, mid_epoch=mid_epoch) is not None
        return None if enough else behind.stream

    def _time_us(self, stream: StreamIntake) -> int:
        """The time from which a stream is read next."""
        return stream.high_us if self.splits is None else self.splits.time_us(stream.stream)

    def instead_of(self, stream: int) -> tuple[int, ...]:
        """Live streams: those to read when `stream` has no rows, that of the lowest time first. One may be ahead by the window
        length or one second, which bounds the windows while others have no rows; with arrival times, the clock advances all."""
        if not self._live:
            return ()
        mine = self._streams[stream]
        others = sorted((s for s in self._streams if s is not mine and not s.ended and not s.idle), key=self._time_us)
        return tuple(other.stream for other in others if self._by_arrival or not self._leads(other, mine))

    def _leads(self, other: StreamIntake, mine: StreamIntake) -> bool:
        """Whether a stream is so far ahead that it waits."""
        since_us = mine.high_us if mine.first_us is not None else other.first_us
        return other.first_us is not None and since_us is not None and other.high_us - since_us > self._lead_us

    # ------------------------------------------------------------ idle streams

    def become_idle(self, stream: int) -> None:
        """Mark the stream idle; its watermark then follows the other stream. In realtime pace this takes effect at the end of
        the slot: rows already read are admitted then and must not be older than a watermark already sent."""
        self.pending = None
        self._streams[stream].become_idle()
        if not self._realtime:
            self.carry()

    def stream_resumed(self, stream: int) -> None:
        """Mark the stream active again. A live stream may be read at once, even while another read is pending."""
        self._streams[stream].become_active()
        if self._live:
            self.pending = None

    def carry(self) -> None:
        """Advance an idle stream to the others' time (asap pace, live streams). In realtime pace the clock advances it."""
        for mine in self._streams:
            if mine.idle and (self._live or not self._realtime):
                mine.carry(max(other.high_us for other in self._streams if other is not mine))

    def carry_to(self, times_us: Sequence[int]) -> bool:
        """A gateway with nothing but idle streams goes along with the others; whether it is one. times_us: watermarks of every
        stream."""
        resting = bool(times_us) and all(stream.idle or stream.ended for stream in self._streams)
        if resting:
            for mine, time_us in zip(self._streams, times_us, strict=True):
                if mine.idle:
                    mine.carry_watermark(time_us)
        return resting
