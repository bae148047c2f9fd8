"""Unmatched rows of outer and anti joins: a tuple without a match is emitted once its window has passed.

What: `Unmatched`, which settles such tuples after every delivery, in bounded steps: it emits them or finds that they match.
Why: every unmatched tuple is emitted exactly once, even if its partition-group moves or its window has passed on arrival.
Stays out: the kernel (`state.unmatched_kernel`), match flags (`state.candidates`).

Every tuple below `unsettled_us` has matched or has been emitted. Blocks and payload are dropped only below that time, also
when they are dead: a block may contain a late tuple that has not been settled.
"""

from __future__ import annotations

from collections import deque

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, Pairs, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.join_semantics import JoinKind
from swjoin.state.arrays import Output, new_output
from swjoin.state.unmatched_kernel import sweep
from swjoin.state.window_state import WindowState

_NO_OUTPUT = new_output(0)


class Unmatched:
    """Unmatched rows of one join. unsettled_us: left, right; END_OF_TIME_US where they are not wanted."""

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
        """Whether unmatched tuples of this stream are emitted; then a dead tuple may still be needed."""
        return stream in self._streams

    # ------------------------------------------------------------ stored tuples

    def stored(self, stream: int, batch: TupleBatch) -> None:
        """Take account of tuples that are about to be stored."""
        if stream in self._streams and len(batch):
            self.unsettled_us[stream] = min(self.unsettled_us[stream], int(batch.ts.min()))

    def mark_unsettled(self) -> None:
        """A partition-group has arrived whose windows have been settled up to an earlier, unknown time."""
        for stream in self._streams:
            self.unsettled_us[stream] = BEGIN_OF_TIME_US

    def limits(self, dead_us: tuple[int, int]) -> tuple[int, int]:
        """The part of the dead tuples that may be dropped: below these times all are settled."""
        left, right = self.unsettled_us
        return min(dead_us[LEFT], left), min(dead_us[RIGHT], right)

    # ------------------------------------------------------------ emitting rows

    def start(self, dead_us: tuple[int, int], delivery: Delivery) -> None:
        """Start settling after a delivery: tuples below these times can match nothing any more."""
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
        """All unmatched rows of the delivery have been emitted."""
        return not self._todo

    def step(self, output: Output, room: int, tail_bytes: int) -> tuple[int, TupleBatch | None]:
        """Emit some rows of one stream. Returns the stream, and the rows if their keys are null; others are in `output`.

        room: most rows; 0: any number. tail_bytes: most bytes of tails of rows with null keys, unless a single row has more.
        """
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
        self._counts[0] += len(nulls)  # rows with null keys are in no partition-group; group 0 counts them
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

    def mark_settled_before(self, below_us: tuple[I64, I64]) -> None:
        """Mark restored tuples below these times, (groups,) of each stream, as settled: they were emitted before the crash."""
        self._forget()
        size = len(self._counts)
        for stream in self._streams:
            limits = np.full(size, BEGIN_OF_TIME_US, np.int64)
            n = min(size, len(below_us[stream]))
            limits[:n] = below_us[stream][:n]
            self._cursor[0] = 0
            self._sweep(stream, limits, _NO_OUTPUT, emit=False)
            here = self._state.group_ids()
            self.unsettled_us[stream] = int(limits[here].min()) if here else END_OF_TIME_US
