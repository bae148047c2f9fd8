"""The common order of both streams, for count windows: every tuple gets its place before it is partitioned.

What: `ArrivalSequence.place`, the tuples whose places are certain; `passed`, punctuations in places instead of times;
`released`, what leaves the master's door, with or without places.
Why: "the last N tuples" means nothing on a slave that sees a part of each stream. One order, given once at the door, makes the
answer a function of the input alone, whatever the number of slaves.
Stays out: how places travel (`places`), time order within a stream (`cluster.master.intake`), matching (`state.join_kernel`).

The order is that of time; of equal times left comes before right, then the order of rows. A left tuple is certain when no right
tuple before its time can come, a right one when no left tuple up to its time can.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from swjoin.cluster.master.intake import StreamIntake
from swjoin.cluster.master.mini_buffers import MiniBuffers
from swjoin.config.run import QueryConfig
from swjoin.core.batch import I64, LEFT, RIGHT, TupleBatch, in_memory
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.sequence_numbers import places_of, with_sequence

_MOST_ENDS = 1 << 14
_ENDS_KEPT = 1 << 9  # across a crash


class ArrivalSequence:
    """placed: tuples of each stream that have a place."""

    def __init__(self, query: QueryConfig) -> None:
        self._query = query
        self.placed = [0, 0]
        self._passed = [0, 0]  # of them, below the last slot's end
        self._waiting: tuple[deque[tuple[I64, I64]], deque[tuple[I64, I64]]] = (deque(), deque())  # times, places; the others
        self._last_us = BEGIN_OF_TIME_US
        self._ends: tuple[list[int], list[int], list[int]] = ([], [], [])  # of slots: time, tuples of each stream below it

    @staticmethod
    def of(query: QueryConfig) -> ArrivalSequence | None:
        """None for windows of time."""
        return ArrivalSequence(query) if query.bounds.count_windows else None

    @property
    def total(self) -> int:
        """Tuples of both streams that have a place."""
        return sum(self.placed)

    def place(self, streams: tuple[StreamIntake, StreamIntake]) -> Iterator[tuple[int, TupleBatch]]:
        """(stream, tuples in time order), of both streams together; tuples whose place is not certain stay at the door."""
        left = streams[LEFT].take_certain(streams[RIGHT].watermark_us, equal=True)
        right = streams[RIGHT].take_certain(streams[LEFT].watermark_us, equal=False)
        before = self.placed[LEFT], self.placed[RIGHT]
        for stream, mine, other in ((LEFT, left, right), (RIGHT, right, left)):
            if len(mine) == 0:
                continue
            places = np.arange(before[stream] + 1, before[stream] + 1 + len(mine), dtype=np.int64)
            earlier = np.searchsorted(other.ts, mine.ts, side="left" if stream == LEFT else "right")
            self.placed[stream] += len(mine)
            self._waiting[stream].append((mine.ts, places))
            self._last_us = max(self._last_us, int(mine.ts[-1]))
            yield stream, with_sequence(mine, places, before[1 - stream] + earlier.astype(np.int64))

    def passed(self, below_us: int) -> tuple[int, int]:
        """A slot ends there. Punctuations, left and right: every later tuple comes after so many of the other stream."""
        if self._ends[0] and below_us < self._ends[0][-1]:  # another sub-group's slot has ended later: everything went
            return self.promised_below(below_us)
        if below_us >= END_OF_TIME_US:
            self._passed = list(self.placed)
            for queue in self._waiting:
                queue.clear()
            below_us = max([self._last_us + 1, *self._ends[0][-1:]])
        for stream, queue in enumerate(self._waiting):
            while queue:
                times, places = queue[0]
                n = int(np.searchsorted(times, below_us, side="left"))
                if n:
                    self._passed[stream] = int(places[n - 1])
                if n < len(times):
                    queue[0] = times[n:], places[n:]
                    break
                queue.popleft()
        self._note_end(below_us)
        return self._passed[RIGHT], self._passed[LEFT]

    def _note_end(self, below_us: int) -> None:
        ends = self._ends
        for known, value in zip(ends, (below_us, *self._passed), strict=True):
            known.append(value)
        if len(ends[0]) > _MOST_ENDS:  # any of them may be missing: then more is kept than must be
            for known in ends:
                del known[1:-1:2]

    def promised_below(self, time_us: int) -> tuple[int, int]:
        """Punctuations, as of `passed`, where nothing below this time waits any more."""
        at = bisect_right(self._ends[0], time_us) - 1
        return (self._ends[1 + RIGHT][at], self._ends[1 + LEFT][at]) if at >= 0 else (0, 0)

    def needed_below(self, promised: tuple[int, int]) -> tuple[int, int]:
        """Left and right places below which nothing is needed any more after a crash, when so much has been promised."""
        bounds = self._query.bounds
        alive = bounds.dead_below(promised)
        if not any(self._query.kind.marks):
            return alive
        # Who of those alive has matched must be found again. Their partners come after the last slot before all of them.
        needed = list(alive)
        reach = bounds.upper_us, -bounds.lower_us
        for stream in (LEFT, RIGHT):
            at = bisect_left(self._ends[1 + 1 - stream], alive[1 - stream]) - 1
            earliest = self._ends[1 + stream][at] - reach[stream] if at >= 0 else BEGIN_OF_TIME_US
            needed[stream] = min(needed[stream], earliest)
        return needed[LEFT], needed[RIGHT]

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON; the rest follows from the tuples that wait."""
        step = max(1, len(self._ends[0]) // _ENDS_KEPT)
        ends = [known[:-1:step] + known[-1:] for known in self._ends]
        return {"placed": list(self.placed), "passed": list(self._passed), "last_us": self._last_us, "ends": ends}

    def restore(self, plain: dict[str, Any], buffers: MiniBuffers) -> None:
        """buffers: with all that waited."""
        self.placed, self._passed, self._last_us = list(plain["placed"]), list(plain["passed"]), plain["last_us"]
        below, lefts, rights = (list(known) for known in plain["ends"])
        self._ends = below, lefts, rights
        for stream in (LEFT, RIGHT):
            if self._passed[stream] == self.placed[stream]:
                continue
            waiting = [in_memory(batch) for batch in buffers.pending(stream)]
            times = np.concatenate([np.empty(0, np.int64), *(batch.ts for batch in waiting)])
            places = np.concatenate([np.empty(0, np.int64), *(places_of(batch) for batch in waiting)])
            order = np.argsort(places)
            order = order[places[order] > self._passed[stream]]
            if len(order):
                self._waiting[stream].append((times[order], places[order]))


def released(
    wanted: Iterable[StreamIntake], order: ArrivalSequence | None, streams: tuple[StreamIntake, StreamIntake]
) -> Iterator[tuple[int, TupleBatch]]:
    """(stream, tuples in time order) of the wanted streams that are ready to be partitioned; with an order, of both."""
    if order is not None:
        yield from order.place(streams)
        return
    for intake in wanted:
        for batch in intake.take_released():
            yield intake.stream, batch
