"""The common order of both streams, for count windows: every tuple gets a sequence number before it is partitioned.

What: `ArrivalSequence.place` numbers the tuples whose order is final; `passed` gives punctuations as sequence numbers;
`released` takes tuples from the intake, numbered or not.
Why: "the last N tuples" means nothing on a slave that receives a part of each stream. One order, fixed at the intake, makes the
answer a function of the input alone, whatever the number of slaves.
Stays out: numbered batches (`core.sequence_numbers`), sorting one stream (`cluster.gateway.intake`), matching
(`state.join_kernel`).

Tuples are ordered by time; at equal times left before right, then by row. The order of a left tuple is final when no earlier
right tuple can arrive, that of a right tuple when no left tuple up to its time can.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.config.run import QueryConfig
from swjoin.core.batch import I64, LEFT, RIGHT, TupleBatch, in_memory
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.sequence_numbers import sequence_numbers_of, with_sequence

_MOST_ENDS = 1 << 14
_ENDS_KEPT = 1 << 9  # across a crash


class ArrivalSequence:
    """placed: count of numbered tuples, by stream."""

    def __init__(self, query: QueryConfig) -> None:
        self._query = query
        self.placed = [0, 0]
        self._passed = [0, 0]  # of these, below the end of the last slot
        self._waiting: tuple[deque[tuple[I64, I64]], deque[tuple[I64, I64]]] = (deque(), deque())  # times, numbers
        self._last_us = BEGIN_OF_TIME_US
        self._ends: tuple[list[int], list[int], list[int]] = ([], [], [])  # of slots: time, tuples of both streams below it

    @staticmethod
    def of(query: QueryConfig) -> ArrivalSequence | None:
        """None for windows of time."""
        return ArrivalSequence(query) if query.bounds.count_windows else None

    @property
    def total(self) -> int:
        """Count of numbered tuples of both streams."""
        return sum(self.placed)

    def place(self, streams: tuple[StreamIntake, ...]) -> Iterator[tuple[int, TupleBatch]]:
        """(stream, numbered tuples in time order) of both streams; tuples whose order is not final stay in the intake."""
        left = streams[LEFT].take_certain(streams[RIGHT].watermark_us, equal=True)
        right = streams[RIGHT].take_certain(streams[LEFT].watermark_us, equal=False)
        before = self.placed[LEFT], self.placed[RIGHT]
        for stream, mine, other in ((LEFT, left, right), (RIGHT, right, left)):
            if len(mine) == 0:
                continue
            numbers = np.arange(before[stream] + 1, before[stream] + 1 + len(mine), dtype=np.int64)
            earlier = np.searchsorted(other.ts, mine.ts, side="left" if stream == LEFT else "right")
            self.placed[stream] += len(mine)
            self._waiting[stream].append((mine.ts, numbers))
            self._last_us = max(self._last_us, int(mine.ts[-1]))
            yield stream, with_sequence(mine, numbers, before[1 - stream] + earlier.astype(np.int64))

    @property
    def ended_us(self) -> int:
        """The latest end of a slot: tuples below it that still wait were held back, and go with the next slot."""
        return self._ends[0][-1] if self._ends[0] else BEGIN_OF_TIME_US

    def passed(self, below_us: int) -> tuple[int, int]:
        """Close the slot at `below_us`. Returns the watermarks (left, right) as sequence numbers: any later tuple is preceded
        by at least that many tuples of the other stream."""
        below_us = max(below_us, self.ended_us)  # another sub-group's slot may have ended later
        if below_us >= END_OF_TIME_US:
            self._passed = list(self.placed)
            for queue in self._waiting:
                queue.clear()
            below_us = max(self._last_us + 1, self.ended_us)
        for stream, queue in enumerate(self._waiting):
            while queue:
                times, numbers = queue[0]
                n = int(np.searchsorted(times, below_us, side="left"))
                if n:
                    self._passed[stream] = int(numbers[n - 1])
                if n < len(times):
                    queue[0] = times[n:], numbers[n:]
                    break
                queue.popleft()
        self._note_end(below_us)
        return self._passed[RIGHT], self._passed[LEFT]

    def _note_end(self, below_us: int) -> None:
        ends = self._ends
        for known, value in zip(ends, (below_us, *self._passed), strict=True):
            known.append(value)
        if len(ends[0]) > _MOST_ENDS:  # a missing end is safe: more tuples are kept than needed
            for known in ends:
                del known[1:-1:2]

    def promised_below(self, time_us: int) -> tuple[int, int]:
        """The watermarks of `passed`, once no tuple below this time waits."""
        at = bisect_right(self._ends[0], time_us) - 1
        return (self._ends[1 + RIGHT][at], self._ends[1 + LEFT][at]) if at >= 0 else (0, 0)

    def needed_below(self, promised: tuple[int, int]) -> tuple[int, int]:
        """Left and right sequence numbers below which a recovery needs no tuple, given the watermarks sent."""
        bounds = self._query.bounds
        alive = bounds.dead_below(promised)
        if not any(self._query.kind.marks):
            return alive
        # Recovery finds the matched live tuples again. Their partners follow the last slot before all of them.
        needed = list(alive)
        reach = bounds.upper_us, -bounds.lower_us
        for stream in (LEFT, RIGHT):
            at = bisect_left(self._ends[1 + 1 - stream], alive[1 - stream]) - 1
            earliest = self._ends[1 + stream][at] - reach[stream] if at >= 0 else BEGIN_OF_TIME_US
            needed[stream] = min(needed[stream], earliest)
        return needed[LEFT], needed[RIGHT]

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON; the rest follows from the pending tuples."""
        step = max(1, len(self._ends[0]) // _ENDS_KEPT)
        ends = [known[:-1:step] + known[-1:] for known in self._ends]
        return {"placed": list(self.placed), "passed": list(self._passed), "last_us": self._last_us, "ends": ends}

    def restore(self, plain: dict[str, Any], buffers: MiniBuffers) -> None:
        """buffers: with all pending tuples."""
        self.placed, self._passed, self._last_us = list(plain["placed"]), list(plain["passed"]), plain["last_us"]
        below, lefts, rights = (list(known) for known in plain["ends"])
        self._ends = below, lefts, rights
        for stream in (LEFT, RIGHT):
            if self._passed[stream] == self.placed[stream]:
                continue
            waiting = [in_memory(batch) for batch in buffers.pending(stream)]
            times = np.concatenate([np.empty(0, np.int64), *(batch.ts for batch in waiting)])
            numbers = np.concatenate([np.empty(0, np.int64), *(sequence_numbers_of(batch) for batch in waiting)])
            order = np.argsort(numbers)
            order = order[numbers[order] > self._passed[stream]]
            if len(order):
                self._waiting[stream].append((times[order], numbers[order]))


def released(
    wanted: Iterable[StreamIntake], order: ArrivalSequence | None, streams: tuple[StreamIntake, ...]
) -> Iterator[tuple[int, TupleBatch]]:
    """(stream, tuples in time order) of the wanted streams, ready to be partitioned; with an order, of both streams."""
    if order is not None:
        yield from order.place(streams)
        return
    for intake in wanted:
        for batch in intake.take_released():
            yield intake.stream, batch
