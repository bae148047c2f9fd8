"""Moving a partition-group from one slave's windows to another's, chunk by chunk (paper section IV-C).

What: `GroupExport` at the supplier yields `StateChunk`s of bounded size; `GroupImport` at the consumer installs them, and
`settle` opens a delivery of the tuples that the supplier had not joined.
Why: a partition-group may be large; copying it at once would need its size in memory twice and stall both slaves.
Stays out: when to move, and messages (`cluster.slave.state_mover`), blocks (`state`).

`GroupExport` hides the partition-group at the supplier, which then neither joins nor expires nor tunes it. The consumer hides
it, too, until it is complete, and reveals it when its pending tuples start to be joined: the consumer's watermarks may be
ahead of the supplier's, and its expiry would drop windows that the pending tuples still have to meet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, U8, TupleBatch, check_layout
from swjoin.core.data_messages import Delivery, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId
from swjoin.core.record_layout import FLAG_BITS, FLAGS
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import Work
from swjoin.operators.join_windows import JoinWindows

_TUPLE_BYTES = 24  # key, time, id


class GroupExport:
    """Hides a partition-group and yields it. pending: delivered tuples that have not been joined, left and right, in time
    order."""

    def __init__(self, windows: JoinWindows, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> None:
        self.move_id = move_id
        self.tuples = 0
        self.nbytes = 0
        self.done = False
        self._windows = windows
        self._chunk_bytes = chunk_bytes
        windows.state.open_groups(np.array([move_id.group], np.int64))
        self._times_us = windows.times_us
        self._dead_us = windows.bounds.dead_below(self._times_us)
        windows.pin_payload(move_id.group, self._times_us)
        self._hidden = windows.state.hide_group(move_id.group)
        self._stream = LEFT
        self._cursor = np.zeros(2, np.int64)
        self._index = 0
        self._pending = deque(
            (stream, part) for stream in (LEFT, RIGHT) for part in pieces(pending[stream], chunk_bytes) if len(part)
        )

    def waiting_tuples(self, stream: int) -> int:
        """Pending tuples that are still here."""
        return sum(len(part) for s, part in self._pending if s == stream)

    def next_chunk(self) -> StateChunk:
        """The next chunk; `done` once it is the last one."""
        chunk = self._window_chunk() if self._stream <= RIGHT else self._pending_chunk()
        if chunk.last:
            self.done = True
            self._windows.state.forget_group(self.move_id.group)
            self._windows.unpin_payload(self.move_id.group)
            self._windows.release_payload_if_empty()
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self._index += 1
        return chunk

    def _window_chunk(self) -> StateChunk:
        stream, windows = self._stream, self._windows
        store = windows.store.payload[stream]
        most_tuples = max(1, self._chunk_bytes // (_TUPLE_BYTES + (0 if store is None else store.mean_bytes)))
        settles = windows.unmatched.settles(stream)
        counts, (key, ts, ids, refs) = windows.state.drain(
            self._hidden, stream, self._cursor, self._dead_us[stream], most_tuples, settles=settles
        )
        which = np.flatnonzero(counts)
        flags = (refs >> FLAG_BITS).astype(np.uint8) if windows.kind.marks[stream] else None
        refs &= ~FLAGS
        rows = None if store is None else store.gather(refs)
        tuples = TupleBatch(key, ts, ids, np.zeros(len(key), np.int64), rows)
        if self._cursor[0] == len(self._hidden.minis):
            self._stream += 1
            self._cursor[:] = 0
        return self._chunk(stream, False, which, counts[which], tuples, flags)

    def _pending_chunk(self) -> StateChunk:
        stream, tuples = self._pending.popleft()
        none = np.empty(0, np.int64)
        return self._chunk(stream, True, none, none, tuples)

    def _chunk(
        self, stream: int, pending: bool, which: I64, counts: I64, tuples: TupleBatch, flags: U8 | None = None
    ) -> StateChunk:
        m = self.move_id
        last = self._stream > RIGHT and not self._pending
        directory = self._hidden.directory if self._index == 0 else None
        head = (m.query, m.move, m.group, m.supplier, m.consumer, self._index, last, self._times_us, stream, pending)
        return StateChunk(*head, which, counts, tuples, directory, flags)


def pieces(batch: TupleBatch, chunk_bytes: int) -> list[TupleBatch]:
    """A batch in parts of about `chunk_bytes` each."""
    rows = max(1, chunk_bytes * len(batch) // max(1, batch.nbytes))
    return [batch.slice(at, min(at + rows, len(batch))) for at in range(0, len(batch), rows)]


class GroupImport:
    """Rebuilds a partition-group from its chunks, in order. RunFailed when they do not fit.

    open_delivery: `WindowJoinOperator.open` of the join that owns the windows.
    """

    def __init__(self, windows: JoinWindows, first: StateChunk, open_delivery: Callable[..., Work]) -> None:
        if first.directory is None or first.index != 0:
            raise RunFailed(f"partition-group {first.group}: chunk {first.index} came before the directory")
        self.first = first
        self.complete = False
        self.tuples = 0
        self.nbytes = 0
        self._windows = windows
        self._open_delivery = open_delivery
        self._next = 0
        windows.pin_payload(first.group, first.times_us)
        self._hidden = windows.state.expect_group(first.group, first.directory)
        self._pending: tuple[list[TupleBatch], list[TupleBatch]] = ([], [])

    def add(self, chunk: StateChunk) -> None:
        """Install the next chunk. Not while a partition-group is being joined (`WindowJoinOperator.may_append`)."""
        if chunk.index != self._next or self.complete:
            raise RunFailed(f"partition-group {chunk.group}: chunk {chunk.index} came where {self._next} was expected")
        if len(chunk.minis) and chunk.minis[-1] >= len(self._hidden.minis):
            raise RunFailed(
                f"partition-group {chunk.group}: chunk {chunk.index} holds mini-partition-group {chunk.minis[-1]} of "
                f"{len(self._hidden.minis)}"
            )
        store = self._windows.store.payload[chunk.stream]
        if store is not None:
            check_layout([chunk.tuples], store.layout, f"partition-group {chunk.group}, chunk {chunk.index}")
        if not chunk.pending and (chunk.flags is not None) != self._windows.kind.marks[chunk.stream]:
            raise RunFailed(
                f"partition-group {chunk.group}: chunk {chunk.index} and this join disagree on whether tuples have match flags"
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
        windows, state, tuples = self._windows, self._windows.state, chunk.tuples
        if not windows.reserve((tuples,), chunk.stream, state.blocks_wanted(chunk.counts)):
            raise state.no_room(chunk.group, len(tuples))
        first_ref = windows.store.append_payload(chunk.stream, tuples)
        windows.store.limit_blocks()
        columns = (tuples.key, tuples.ts, tuples.id)
        state.append_runs(self._hidden, chunk.stream, chunk.minis, chunk.counts, columns, chunk.flags, first_ref)

    def waiting_tuples(self, stream: int) -> int:
        """Pending tuples that have arrived, before `settle`."""
        return sum(len(part) for part in self._pending[stream])

    @property
    def has_pending(self) -> bool:
        return any(self._pending)

    def settle(self, epoch: EpochIndex) -> Work | None:
        """Reveal the partition-group; returns the work on its pending tuples, or None. Between two deliveries only."""
        first, pending = self.first, self._pending
        self._windows.state.reveal_group(first.group)
        self._windows.rewind_expiry(first.times_us)
        if not self.has_pending:
            self._windows.unpin_payload(first.group)
            return None
        layouts = [None if store is None else store.layout for store in self._windows.store.payload]
        left, right = (TupleBatch.concat(p) if p else TupleBatch.empty(layouts[s]) for s, p in enumerate(pending))
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
        return self._open_delivery(delivery, settles=True)


def take_group(delivery: Delivery, group: GroupId) -> tuple[Delivery, TupleBatch | None, TupleBatch | None]:
    """Split a partition-group off a delivery; returns the rest and the group's tuples, None if there are none."""
    index = int(np.searchsorted(delivery.groups, group))
    if index == len(delivery.groups) or delivery.groups[index] != group:
        return delivery, None, None
    keep = np.arange(len(delivery.groups)) != index
    rest, taken = [], []
    for batch, counts in ((delivery.left, delivery.left_counts), (delivery.right, delivery.right_counts)):
        start = int(counts[:index].sum())
        stop = start + int(counts[index])
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
