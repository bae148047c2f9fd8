"""Tuples of one stream that wait at the master, in time order; some of them may lie on disk.

What: `Pending`, a queue of batches: appended, merged, taken from the front, dropped one by one, stored and fetched again.
Why: what waits is taken from the front only, so what came last can lie elsewhere without anybody noticing.
Stays out: which tuples wait where (`cluster.master.mini_buffers`), what is dropped or stored, and when
(`cluster.master.overload`), files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from swjoin.core.batch import Bool, RowLayout, StoredBatch, TupleBatch, in_memory
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US


class StoreFullError(RunFailed):
    """There is no room for more tuples; those that were to be stored are still where they were."""


Store = Callable[[TupleBatch], StoredBatch]
_STORED_AT_ONCE_BYTES = 4 << 20


class Pending:
    """One stream's tuples in time order. bytes: of those in memory; stored_bytes: of the others."""

    def __init__(self, layout: RowLayout | None) -> None:
        self._empty = TupleBatch.empty(layout)
        self.parts: list[TupleBatch | StoredBatch] = []
        self.tuples = 0
        self.bytes = 0
        self.stored_bytes = 0

    def append(self, batch: TupleBatch, store: Store | None = None) -> None:
        """Tuples not older than those before. store: give them away at once, if there is room."""
        if len(batch):
            self._put(batch if store is None else _stored(batch, store) or batch)

    def _put(self, part: TupleBatch | StoredBatch) -> None:
        self.parts.append(part)
        self.tuples += len(part)
        if isinstance(part, TupleBatch):
            self.bytes += part.nbytes
        else:
            self.stored_bytes += part.nbytes

    def merge(self, batches: Sequence[TupleBatch], store: Store | None = None, *, behind: bool = False) -> None:
        """Put tuples among those that wait already, by time. store: what lay elsewhere lies there again afterwards.

        What was held back has waited longer, so it is first among equals; with `behind` it is last. One part after the other,
        and only those among which tuples belong: the whole may be larger than the memory.
        """
        if not batches:
            return
        new = _in_order(TupleBatch.concat(batches))
        for part in self._take_parts():
            n = int(np.searchsorted(new.ts, _last(part), side="left" if behind else "right"))
            if n and int(new.ts[n - 1]) < _first(part) + (not behind):
                self.append(_copied(new, 0, n))
                self._put(part)
            elif n:
                stored = not isinstance(part, TupleBatch)
                pieces = [new.slice(0, n), in_memory(part)]
                self.append(_in_order(TupleBatch.concat(pieces[::-1] if behind else pieces)), store if stored else None)
            else:
                self._put(part)
            new = new.slice(n, len(new))
        self.append(new)

    def _take_parts(self) -> Iterator[TupleBatch | StoredBatch]:
        """Everything; the queue is empty at once, and may be appended to. What has been given is not held any longer."""
        parts, self.parts = deque(self.parts), []
        self.tuples = self.bytes = self.stored_bytes = 0
        return (parts.popleft() for _ in range(len(parts)))

    def take_all(self) -> Iterator[tuple[TupleBatch, bool]]:
        """Everything, batch by batch, and whether it lay elsewhere; the queue is empty at once, and may be appended to."""
        return ((in_memory(part), not isinstance(part, TupleBatch)) for part in self._take_parts())

    def time_after(self, nbytes: int) -> int:
        """A time below which about so many bytes wait, of these the oldest; END_OF_TIME_US when fewer do."""
        for place, part in enumerate(self.parts):
            if part.nbytes > nbytes:
                return int(self._fetched(place).ts[nbytes * len(part) // part.nbytes]) + 1
            nbytes -= part.nbytes
        return END_OF_TIME_US

    def take_below(self, time_us: int) -> TupleBatch:
        """Remove and return the tuples with ts < time_us."""
        taken: list[TupleBatch] = []
        while self.parts and _first(self.parts[0]) < time_us:
            head = self._fetched(0)
            n = int(np.searchsorted(head.ts, time_us, side="left"))
            self.bytes -= head.nbytes
            if n < len(head):
                taken.append(head.slice(0, n))
                self.parts[0] = rest = head.slice(n, len(head))
                self.bytes += rest.nbytes
                break
            taken.append(head)
            self.parts.pop(0)
        if not taken:
            return self._empty
        batch = TupleBatch.concat(taken)
        self.tuples -= len(batch)
        return batch

    @property
    def first_ts_us(self) -> int | None:
        return _first(self.parts[0]) if self.parts else None

    @property
    def last_ts_us(self) -> int:
        return _last(self.parts[-1]) if self.parts else BEGIN_OF_TIME_US

    # ------------------------------------------------------------ on disk, and dropped

    def _fetched(self, place: int) -> TupleBatch:
        """The part at a place, in memory from now on."""
        part = self.parts[place]
        if isinstance(part, TupleBatch):
            return part
        self.parts[place] = batch = part.load()
        self.stored_bytes -= part.nbytes
        self.bytes += batch.nbytes
        return batch

    def store(self, nbytes: int, store: Store) -> int:
        """Give about so many bytes away, those that are needed last first; returns how many. The first part stays.

        StoreFullError when there is no room for more.
        """
        self._divide_first()
        freed, stop = 0, len(self.parts)
        while freed < nbytes and stop > 1:
            start, size = stop, 0
            while start > 1 and size < min(nbytes - freed, _STORED_AT_ONCE_BYTES):
                part = self.parts[start - 1]
                if not isinstance(part, TupleBatch):
                    break
                start, size = start - 1, size + part.nbytes
            if start < stop:
                stored = store(TupleBatch.concat([in_memory(p) for p in self.parts[start:stop]]))
                self.parts[start:stop] = [stored]
                self.bytes -= size
                self.stored_bytes += stored.nbytes
                freed += size
                stop = start
            else:
                stop -= 1
        return freed

    def _divide_first(self) -> None:
        """Cut a large first part into pieces, so that most of it can be given away."""
        first = self.parts[0] if self.parts else None
        if isinstance(first, TupleBatch) and first.nbytes > 2 * _STORED_AT_ONCE_BYTES:
            rows = max(1, len(first) * _STORED_AT_ONCE_BYTES // first.nbytes)
            pieces = [_copied(first, at, min(at + rows, len(first))) for at in range(0, len(first), rows)]
            self.parts[:1] = pieces
            self.bytes += sum(piece.nbytes for piece in pieces) - first.nbytes

    def in_memory(self) -> list[TupleBatch]:
        """What does not lie on disk, in order."""
        return [part for part in self.parts if isinstance(part, TupleBatch)]

    def drop(self, masks: Sequence[Bool]) -> list[TupleBatch]:
        """Remove tuples. masks: of each batch of `in_memory`, which. Returns what was removed."""
        dropped: list[TupleBatch] = []
        left: list[TupleBatch | StoredBatch] = []
        chosen = iter(masks)
        for part in self.parts:
            mask = next(chosen) if isinstance(part, TupleBatch) else None
            if not isinstance(part, TupleBatch) or mask is None or not mask.any():
                left.append(part)
                continue
            dropped.append(part.take(np.flatnonzero(mask).astype(np.int64)))
            self.tuples -= len(dropped[-1])
            self.bytes -= part.nbytes
            if not mask.all():
                rest = part.take(np.flatnonzero(~mask).astype(np.int64))
                self.bytes += rest.nbytes
                left.append(rest)
        self.parts = left
        return dropped

    def validate(self) -> None:
        assert self.tuples == sum(len(p) for p in self.parts), "mini-buffer count is wrong"
        assert all(len(p) for p in self.parts), "an empty batch is pending"
        times = [t for p in self.parts for t in (_first(p), _last(p))]
        assert times == sorted(times), "pending tuples out of time order"
        assert self.bytes == sum(p.nbytes for p in self.in_memory()), "bytes of the mini-buffer are wrong"
        stored = sum(p.nbytes for p in self.parts if not isinstance(p, TupleBatch))
        assert self.stored_bytes == stored, "stored bytes of the mini-buffer are wrong"


def _in_order(batch: TupleBatch) -> TupleBatch:
    return batch.take(np.argsort(batch.ts, kind="stable").astype(np.int64))


def _copied(batch: TupleBatch, start: int, stop: int) -> TupleBatch:
    """A slice that does not keep the rest in memory."""
    return batch.take(np.arange(start, stop, dtype=np.int64))


def _stored(batch: TupleBatch, store: Store) -> StoredBatch | None:
    """None when there is no room."""
    try:
        return store(batch)
    except StoreFullError:
        return None


def _first(part: TupleBatch | StoredBatch) -> int:
    return int(part.ts[0]) if isinstance(part, TupleBatch) else part.first_ts_us


def _last(part: TupleBatch | StoredBatch) -> int:
    return int(part.ts[-1]) if isinstance(part, TupleBatch) else part.last_ts_us
