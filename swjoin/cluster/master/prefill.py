"""The prefill: what the slaves join at full speed before a realtime run is measured (`config.sections.MeasureConfig`).

What: `Prefill`: which part of the streams it is, what is still to be read, and whether all of it has been read.
Why: windows must be full before a measurement means anything, and filling them in real time takes as long as they are.
Stays out: buffering and delivering (`cluster.master.master`), counting its pairs apart (`cluster.collector`).
"""

from __future__ import annotations

from swjoin.cluster.master.intake import StreamIntake

Intakes = tuple[StreamIntake, StreamIntake]


class Prefill:
    """The first `length_us` of the streams' common time axis."""

    def __init__(self, streams: Intakes, length_us: int) -> None:
        self.length_us = length_us
        self._streams = streams

    def end_us(self, origin_us: int) -> int:
        """Where it ends on the time axis; `origin_us`: where that starts."""
        return origin_us + self.length_us

    def admit(self, origin_us: int) -> None:
        """What has been read of it has arrived."""
        for intake in self._streams:
            intake.arrive_until(self.end_us(origin_us))

    def is_read(self, origin_us: int | None) -> bool:
        """All of it has arrived; never before the origin is known."""
        return origin_us is not None and all(s.watermark_us >= self.end_us(origin_us) for s in self._streams)

    def times_us(self, origin_us: int, *, rebased: bool) -> tuple[int, int]:
        """Punctuations. rebased: counted from the origin."""
        left, right = (min(self.end_us(origin_us), s.watermark_us) - (origin_us if rebased else 0) for s in self._streams)
        return left, right

    def stream_to_read(self, origin_us: int | None) -> int | None:
        """The stream that is behind, of those that have more of it; None when none has."""
        speaking = [s for s in self._streams if not s.ended and not s.idle]
        needed = [s for s in speaking if origin_us is None or s.high_us < self.end_us(origin_us)]
        return min(needed, key=lambda s: s.high_us).stream if needed else None
