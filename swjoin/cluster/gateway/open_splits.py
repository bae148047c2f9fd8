"""The splits that a gateway reads, one of each stream at a time.

What: `OpenSplits`: which split is open, how much of it has been read, when to ask the master for the next one.
Why: with several gateways a gateway reads what it is dealt; what it knows of rows that others read are the greatest time before
its next split, and that split's least time.
Stays out: dealing (`cluster.master.split_dealer`), rows (`cluster.gateway.intake`), files (`connectors`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.messages import SplitDealt, SplitWanted
from swjoin.cluster.role import MASTER, Effect, OpenSplit, Send
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.splits import Split


class OpenSplits:
    """streams: intakes of all streams. With one gateway, which reads its sources from start to end, there is none of these."""

    def __init__(self, streams: Sequence[StreamIntake]) -> None:
        self._streams = streams
        self._open: list[Split | None] = [None] * len(streams)
        self._read = [0] * len(streams)  # rows of the open split, skipped ones included
        self._opened = [False] * len(streams)  # the source is at its first row
        self._low_us = [BEGIN_OF_TIME_US] * len(streams)  # of a split that is waited for
        self._finished = [0] * len(streams)  # splits
        self._asked: list[tuple[int, ...] | None] = [None] * len(streams)  # watermarks at the last wish

    def time_us(self, stream: int) -> int:
        """The time from which a stream is read next, as far as that is known."""
        intake = self._streams[stream]
        return intake.high_us if self._open[stream] is not None else max(intake.high_us, self._low_us[stream])

    def take(self, dealt: SplitDealt) -> list[Effect]:
        """A split, or what is known of the next one."""
        stream = dealt.stream
        intake = self._streams[stream]
        if dealt.ended:
            self._asked[stream] = None
            intake.end()
        elif not dealt.split:
            intake.pass_time(dealt.before_us)
            self._low_us[stream] = dealt.low_us
        else:
            assert self._open[stream] is None, f"{intake.name}: a split while another one is read"
            self._open[stream], self._read[stream], self._asked[stream] = Split(*dealt.split), dealt.skip, None
            return [OpenSplit(stream, Split(*dealt.split), dealt.skip)]
        return []

    def opened(self, stream: int, before_us: int) -> None:
        """The source is ready. before_us: greatest time of the input's rows before the next one."""
        self._opened[stream] = True
        self._streams[stream].pass_time(before_us)

    def count(self, stream: int, rows: int) -> list[Effect]:
        """Rows of the open split were read; perhaps the last ones."""
        split = self._open[stream]
        self._read[stream] += rows
        return self.ended(stream) if split is not None and self._read[stream] == split.rows else []

    def ended(self, stream: int) -> list[Effect]:
        """The open split has no more rows."""
        self._open[stream], self._opened[stream], self._low_us[stream] = None, False, BEGIN_OF_TIME_US
        self._finished[stream] += 1
        return self.ask(stream)

    def ready(self, stream: int) -> bool:
        """Whether a row of this stream can be read."""
        return self._opened[stream]

    def waits(self, stream: int) -> bool:
        """Whether it has asked for a split, and has none."""
        return self._asked[stream] is not None

    def ask(self, stream: int) -> list[Effect]:
        """Ask for a split, unless the master knows that already."""
        times_us = tuple(int(intake.watermark_us) for intake in self._streams)
        if self._open[stream] is not None or self._streams[stream].ended or self._asked[stream] == times_us:
            return []
        self._asked[stream] = times_us
        return [Send(MASTER, SplitWanted(stream, self._finished[stream], times_us))]

    def plain_state(self) -> list[list[int]]:
        """For every stream the open split and the rows of it that were read; empty without one."""
        return [[] if split is None else [*astuple(split), read] for split, read in zip(self._open, self._read, strict=True)]
