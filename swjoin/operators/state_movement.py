"""A partition-group leaves one slave's windows and enters another's, chunk by chunk (paper section IV-C).

What: `GroupExport` at the supplier yields `StateChunk`s of bounded size; `GroupImport` at the consumer takes them, and
`settle` joins what the supplier had not joined yet.
Why: a partition-group may be large; copying it at once would need its size in memory twice and stall both slaves.
Stays out: when to move and whom to tell (`cluster.slave.state_mover`), blocks (`state`).

From `GroupExport` on, the partition-group is hidden at the supplier: neither joined nor expired nor tuned there. At the
consumer it is hidden until it is complete, and then revealed at the very moment when its pending tuples begin to be joined:
the consumer may be ahead of the supplier in time, and its expiry would drop windows that those tuples still have to meet.
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Protocol

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, U8, RowLayout, TupleBatch, check_layout
from swjoin.core.data_messages import Delivery, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId
from swjoin.core.join_semantics import Bounds, JoinKind
from swjoin.core.record_layout import FLAG_BITS, FLAGS
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import Work
from swjoin.operators.unmatched_rows import Unmatched
from swjoin.state.payload_store import PayloadStore
from swjoin.state.window_state import WindowState

_TUPLE_BYTES = 24  # key, time, id


class MovableWindows(Protocol):
    """What a movement needs of the join whose windows a partition-group leaves or enters (`WindowJoin`)."""

    bounds: Bounds
    kind: JoinKind
    state: WindowState
    payload: tuple[PayloadStore | None, ...]
    unmatched: Unmatched

    @property
    def times_us(self) -> tuple[int, int]: ...
    def open(self, delivery: Delivery, *, settles: bool = False) -> Work: ...
    def pin_payload(self, group: GroupId, times_us: tuple[int, int]) -> None: ...
    def unpin_payload(self, group: GroupId) -> None: ...
    def rewind_expiry(self, times_us: tuple[int, int]) -> None: ...
    def reserve_window_memory(self, batches: tuple[TupleBatch, ...], first_stream: int = LEFT, blocks: int = 0) -> bool: ...
    def store_payload(self, stream: int, batch: TupleBatch) -> int: ...
    def limit_blocks(self) -> None: ...
    def forget_payload(self) -> None: ...


class GroupExport:
    """Hides a partition-group of `join` and yields it. pending: delivered, not joined tuples, left and right, in time order."""

    def __init__(self, join: MovableWindows, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> None:
        self.move_id = move_id
        self.tuples = 0
        self.nbytes = 0
        self.done = False
        self._join = join
        self._chunk_bytes = chunk_bytes
        join.state.open_groups(np.array([move_id.group], np.int64))
        self._times_us = join.times_us
        self._dead_us = join.bounds.dead_below(self._times_us)
        join.pin_payload(move_id.group, self._times_us)
        self._hidden = join.state.hide_group(move_id.group)
        self._stream = LEFT
        self._place = np.zeros(2, np.int64)
        self._index = 0
        self._pending = deque(
            (stream, part) for stream in (LEFT, RIGHT) for part in pieces(pending[stream], chunk_bytes) if len(part)
        )

    def waiting_tuples(self, stream: int) -> int:
        """Pending tuples that have not left yet."""
        return sum(len(part) for s, part in self._pending if s == stream)

    def next_chunk(self) -> StateChunk:
        """The next chunk; `done` once it is the last one."""
        chunk = self._window_chunk() if self._stream <= RIGHT else self._pending_chunk()
        if chunk.last:
            self.done = True
            self._join.state.forget_group(self.move_id.group)
            self._join.unpin_payload(self.move_id.group)
            self._join.forget_payload()
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self._index += 1
        return chunk

    def _window_chunk(self) -> StateChunk:
        stream, store = self._stream, self._join.payload[self._stream]
        room = max(1, self._chunk_bytes // (_TUPLE_BYTES + (0 if store is None else store.mean_bytes)))
        counts, (key, ts, ids, refs) = self._join.state.drain(
            self._hidden, stream, self._place, self._dead_us[stream], room, settles=self._join.unmatched.settles(stream)
        )
        which = np.flatnonzero(counts)
        flags = (refs >> FLAG_BITS).astype(np.uint8) if self._join.kind.marks[stream] else None
        refs &= ~FLAGS
        rows = None if store is None else store.gather(refs)
        tuples = TupleBatch(key, ts, ids, np.zeros(len(key), np.int64), rows)
        if self._place[0] == len(self._hidden.minis):
            self._stream += 1
            self._place[:] = 0
        return self._chunk(stream, False, which, counts[which], tuples, flags)

    def _pending_chunk(self) -> StateChunk:
        stream, tuples = self._pending.popleft()
        none = np.empty(0, np.int64)
        return self._chunk(stream, True, none, none, tuples)

    def _chunk(
        self, stream: int, pending: bool, which: I64, counts: I64, tuples: TupleBatch, flags: U8 | None = None
    ) -> StateChunk:
        j = self.move_id
        last = self._stream > RIGHT and not self._pending
        directory = self._hidden.directory if self._index == 0 else None
        return StateChunk(
            j.query,
            j.move,
            j.group,
            j.supplier,
            j.consumer,
            self._index,
            last,
            self._times_us,
            stream,
            pending,
            which,
            counts,
            tuples,
            directory,
            flags,
        )


def pieces(batch: TupleBatch, chunk_bytes: int) -> list[TupleBatch]:
    """A batch in parts of about `chunk_bytes` each."""
    rows = max(1, chunk_bytes * len(batch) // max(1, batch.nbytes))
    return [batch.slice(at, min(at + rows, len(batch))) for at in range(0, len(batch), rows)]


class GroupImport:
    """Rebuilds a partition-group in the windows of `join` from its chunks, in order. RunFailed when they do not fit."""

    def __init__(self, join: MovableWindows, first: StateChunk) -> None:
        if first.directory is None or first.index != 0:
            raise RunFailed(f"partition-group {first.group}: chunk {first.index} came before the directory")
        self.first = first
        self.complete = False
        self.tuples = 0
        self.nbytes = 0
        self._join = join
        self._next = 0
        join.pin_payload(first.group, first.times_us)
        self._hidden = join.state.expect_group(first.group, first.directory)
        self._pending: tuple[list[TupleBatch], list[TupleBatch]] = ([], [])

    def add(self, chunk: StateChunk) -> None:
        """Take the next chunk. Not while a partition-group is being joined (`WindowJoin.may_append`)."""
        if chunk.index != self._next or self.complete:
            raise RunFailed(f"partition-group {chunk.group}: chunk {chunk.index} came where {self._next} was expected")
        if len(chunk.minis) and chunk.minis[-1] >= len(self._hidden.minis):
            raise RunFailed(
                f"partition-group {chunk.group}: chunk {chunk.index} holds mini-partition-group {chunk.minis[-1]} of "
                f"{len(self._hidden.minis)}"
            )
        store = self._join.payload[chunk.stream]
        if store is not None:
            check_layout([chunk.tuples], store.layout, f"partition-group {chunk.group}, chunk {chunk.index}")
        if not chunk.pending and (chunk.flags is not None) != self._join.kind.marks[chunk.stream]:
            raise RunFailed(
                f"partition-group {chunk.group}: chunk {chunk.index} tells who has matched, or not, unlike this join"
            )
        self._next += 1
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self.complete = chunk.last
        if chunk.pending:
            self._pending[chunk.stream].append(chunk.tuples)
        elif len(chunk.tuples):
            self._append(chunk)

    def _append(self, chunk: StateChunk) -> None:
        join, state, tuples = self._join, self._join.state, chunk.tuples
        if not join.reserve_window_memory((tuples,), chunk.stream, state.blocks_wanted(chunk.counts)):
            raise state.no_room(chunk.group, len(tuples))
        first_ref = join.store_payload(chunk.stream, tuples)
        join.limit_blocks()
        columns = (tuples.key, tuples.ts, tuples.id)
        state.append_runs(self._hidden, chunk.stream, chunk.minis, chunk.counts, columns, chunk.flags, first_ref)

    def waiting_tuples(self, stream: int) -> int:
        """Pending tuples that have arrived and are not being joined yet."""
        return sum(len(part) for part in self._pending[stream])

    @property
    def has_pending(self) -> bool:
        return any(self._pending)

    def settle(self, epoch: EpochIndex) -> Work | None:
        """Reveal the partition-group; the work on what its supplier had not joined, or None. Between two deliveries only."""
        first, pending = self.first, self._pending
        self._join.state.reveal_group(first.group)
        self._join.rewind_expiry(first.times_us)
        if not self.has_pending:
            self._join.unpin_payload(first.group)
            return None
        left, right = (TupleBatch.concat(p) if p else TupleBatch.empty(_layout(self._join, s)) for s, p in enumerate(pending))
        self._pending = ([], [])
        delivery = Delivery(
            first.query,
            first.consumer,
            epoch,
            *first.times_us,
            np.array([first.group], np.int64),
            np.array([len(left)], np.int64),
            np.array([len(right)], np.int64),
            left,
            right,
        )
        return self._join.open(delivery, settles=True)


def _layout(join: MovableWindows, stream: int) -> RowLayout | None:
    store = join.payload[stream]
    return None if store is None else store.layout


def take_group(delivery: Delivery, group: GroupId) -> tuple[Delivery, TupleBatch | None, TupleBatch | None]:
    """A delivery without a partition-group, and that group's tuples of both streams (None when it holds none)."""
    place = int(np.searchsorted(delivery.groups, group))
    if place == len(delivery.groups) or delivery.groups[place] != group:
        return delivery, None, None
    keep = np.arange(len(delivery.groups)) != place
    rest, taken = [], []
    for batch, counts in ((delivery.left, delivery.left_counts), (delivery.right, delivery.right_counts)):
        start = int(counts[:place].sum())
        stop = start + int(counts[place])
        taken.append(batch.slice(start, stop))
        rest.append(TupleBatch.concat([batch.slice(0, start), batch.slice(stop, len(batch))]))
    thinner = replace(
        delivery,
        groups=delivery.groups[keep],
        left_counts=delivery.left_counts[keep],
        right_counts=delivery.right_counts[keep],
        left=rest[LEFT],
        right=rest[RIGHT],
    )
    return thinner, taken[LEFT], taken[RIGHT]
