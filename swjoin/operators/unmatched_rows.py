"""Rows of one stream alone: tuples without a match, once nothing to come can match them.

What: `Unmatched`, which settles them after every delivery, in bounded steps, and says from which time on tuples may be
unsettled.
Why: an outer or anti row is certain when its window has passed, and must come out exactly once, whoever holds its block then.
Stays out: the kernel (`state.unmatched_kernel`), who has matched (`state.candidates`).

Every tuple below `unsettled_us` has matched, or has come out. Blocks and payload may be dropped below it only; so a tuple that
arrives when its window has passed already is not lost with an old block.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, Pairs, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.join_semantics import JoinKind
from swjoin.state.arrays import Output
from swjoin.state.unmatched_kernel import sweep
from swjoin.state.window_state import WindowState


class Unmatched:
    """Of one join. unsettled_us: left, right; END_OF_TIME_US where no such rows come out."""

    def __init__(self, kind: JoinKind, state: WindowState) -> None:
        self.unsettled_us = [END_OF_TIME_US, END_OF_TIME_US]
        self._streams = [stream for stream in (LEFT, RIGHT) if kind.unmatched[stream]]
        self._state = state
        self._todo: deque[tuple[int, TupleBatch | None]] = deque()
        self._cursor = np.zeros(1, np.int64)
        self._below_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._counts = np.zeros(1, np.int64)
        self._digests = np.zeros(1, np.uint64)

    @property
    def wanted(self) -> bool:
        return bool(self._streams)

    def settles(self, stream: int) -> bool:
        """Whether tuples of this stream come out alone: a tuple may be dead and still be needed."""
        return stream in self._streams

    # ------------------------------------------------------------ tuples come

    def stored(self, stream: int, batch: TupleBatch) -> None:
        """These are about to be stored."""
        if stream in self._streams and len(batch):
            self.unsettled_us[stream] = min(self.unsettled_us[stream], int(batch.ts.min()))

    def mark_unsettled(self) -> None:
        """A partition-group has come whose windows have been settled up to some earlier time."""
        for stream in self._streams:
            self.unsettled_us[stream] = BEGIN_OF_TIME_US

    def limits(self, dead_us: tuple[int, int]) -> tuple[int, int]:
        """What may be dropped of what is dead: below these times all is settled."""
        left, right = self.unsettled_us
        return min(dead_us[LEFT], left), min(dead_us[RIGHT], right)

    # ------------------------------------------------------------ rows come out

    def begin(self, dead_us: tuple[int, int], delivery: Delivery) -> None:
        """A delivery has been joined; what is below these times can match nothing any more."""
        self._below_us = dead_us
        self._todo = deque((stream, None) for stream in self._streams)
        self._todo += [(stream, delivery.null_keys[stream]) for stream in self._streams if len(delivery.null_keys[stream])]
        self._forget()

    def _forget(self) -> None:
        size = max(1, len(self._state.directories.start))
        self._counts, self._digests = np.zeros(size, np.int64), np.zeros(size, np.uint64)
        self._cursor[0] = 0

    @property
    def done(self) -> bool:
        """All of the delivery's rows have come out."""
        return not self._todo

    def step(self, output: Output, room: int, tail_bytes: int) -> tuple[int, TupleBatch | None]:
        """Some rows, of one stream, which is returned: those in `output`, or these, whose keys are null; at most `room`, 0: any
        number. tail_bytes: most bytes of the latter's tails, unless a single row has more."""
        stream, nulls = self._todo[0]
        if nulls is not None:
            if room and nulls.rows is not None and nulls.rows.var_offsets is not None:
                room = min(room, max(1, int(np.searchsorted(nulls.rows.var_offsets, tail_bytes, side="right")) - 1))
            return stream, self._take(stream, nulls, room)
        if self._sweep(stream, np.full(len(self._counts), self._below_us[stream], np.int64), output, emit=True):
            self.unsettled_us[stream] = self._below_us[stream]
            self._cursor[0] = 0
            self._todo.popleft()
        return stream, None

    def _take(self, stream: int, nulls: TupleBatch, room: int) -> TupleBatch:
        self._todo.popleft()
        if 0 < room < len(nulls):
            self._todo.appendleft((stream, nulls.slice(room, len(nulls))))
            nulls = nulls.slice(0, room)
        rows = Pairs.alone(stream, nulls)
        self._counts[0] += len(nulls)  # they belong to no partition-group; the first one stands for all
        with np.errstate(over="ignore"):
            self._digests[0] += np.uint64(digest_pairs(rows.left_id, rows.right_id))
        return nulls

    def _sweep(self, stream: int, below_us: I64, output: Output, *, emit: bool) -> bool:
        state, start = self._state, self.unsettled_us[stream]
        if int(below_us.max()) <= start:
            return True
        return bool(
            sweep(state.pool, state.minis, stream, start, below_us, self._cursor, emit, output, self._counts, self._digests)
        )

    def results(self) -> GroupResults:
        """Counts and digests of the delivery's rows."""
        groups = np.flatnonzero(self._counts)
        return GroupResults(groups, self._counts[groups], self._digests[groups])

    # ------------------------------------------------------------ after a crash

    def mark_settled_before(self, below_us: tuple[I64, I64], output: Output) -> None:
        """Restored windows: what is below these times, (groups,) of each stream, came out before the crash."""
        self._forget()
        size = len(self._counts)
        for stream in self._streams:
            limits = np.full(size, BEGIN_OF_TIME_US, np.int64)
            n = min(size, len(below_us[stream]))
            limits[:n] = below_us[stream][:n]
            self._cursor[0] = 0
            self._sweep(stream, limits, output, emit=False)
            here = self._state.group_ids()
            self.unsettled_us[stream] = int(limits[here].min()) if here else END_OF_TIME_US
