"""The prefill: tuples that the slaves join at full speed before a realtime run is measured (`config.sections.MeasureConfig`).

What: `Prefill`: its end on the time axis, the stream to read next, and whether it has been read.
Why: a measurement needs full windows, and filling them in real time takes one window length.
Stays out: buffering and delivering (`cluster.master.master`), the separate count of its pairs (`cluster.collector`).
"""

from __future__ import annotations

from collections.abc import Callable

from swjoin.cluster.gateway.intake import StreamIntake

Intakes = tuple[StreamIntake, ...]


class Prefill:
    """The first `length_us` of the streams' common time axis."""

    def __init__(self, streams: Intakes, length_us: int) -> None:
        self.length_us = length_us
        self.reported = False  # to the master, that all have joined it
        self._streams = streams

    def end_us(self, origin_us: int) -> int:
        """The end of the prefill on the time axis, which starts at `origin_us`."""
        return origin_us + self.length_us

    def admit(self, origin_us: int) -> None:
        """Admit all rows read of the prefill."""
        for intake in self._streams:
            intake.arrive_until(self.end_us(origin_us))

    def is_read(self, origin_us: int | None) -> bool:
        """Whether all of the prefill has arrived; False while the origin is unknown."""
        return origin_us is not None and all(s.watermark_us >= self.end_us(origin_us) for s in self._streams)

    def times_us(self, origin_us: int, *, rebased: bool) -> tuple[int, int]:
        """Punctuations. rebased: relative to the origin."""
        left, right = (min(self.end_us(origin_us), s.watermark_us) - (origin_us if rebased else 0) for s in self._streams)
        return left, right

    def stream_to_read(self, origin_us: int | None, time_us: Callable[[StreamIntake], int]) -> int | None:
        """Of the streams with unread prefill, the one with the lower time; None when there is none. time_us: from which a
        stream is read next."""
        active = [s for s in self._streams if not s.ended and not s.idle]
        needed = [s for s in active if origin_us is None or s.high_us < self.end_us(origin_us)]
        return min(needed, key=time_us).stream if needed else None
