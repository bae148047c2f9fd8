"""The tuple queue: one stream's pending tuples at the master, in time order, partly on disk.

What: `Pending`, a queue of batches: append, merge, take from the front, drop single tuples, store and load again.
Why: tuples are taken from the front only, so the last ones can be spilled without an effect on callers.
Stays out: the set of queues (`cluster.gateway.mini_buffers`), the choice of dropped or stored tuples
(`cluster.gateway.overload`), files.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from swjoin.core.batch import Bool, RowLayout, StoredBatch, TupleBatch, in_memory
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US


class StoreFullError(RunFailed):
    """The store is full; the tuples to be stored stay in memory."""


Store = Callable[[TupleBatch], StoredBatch]
_STORED_AT_ONCE_BYTES = 4 << 20


class Pending:
    """One stream's tuples in time order. bytes: size in memory. stored_bytes: size on disk."""

    def __init__(self, layout: RowLayout | None) -> None:
        self._empty = TupleBatch.empty(layout)
        self.parts: list[TupleBatch | StoredBatch] = []
        self.tuples = 0
        self.bytes = 0
        self.stored_bytes = 0

    def append(self, batch: TupleBatch, store: Store | None = None) -> None:
        """Append tuples not older than those before; others, which come after a crash, are merged. store: where to store them
        at once, if it has room."""
        if len(batch) and self.parts and int(batch.ts[0]) < _last(self.parts[-1]):
            self.merge([batch], store, behind=True)
        elif len(batch):
            self._put(batch if store is None else _stored(batch, store) or batch)

    def _put(self, part: TupleBatch | StoredBatch) -> None:
        self.parts.append(part)
        self.tuples += len(part)
        if isinstance(part, TupleBatch):
            self.bytes += part.nbytes
        else:
            self.stored_bytes += part.nbytes

    def merge(self, batches: Sequence[TupleBatch], store: Store | None = None, *, behind: bool = False) -> None:
        """Merge tuples into the queue by time. store: stored parts are stored again afterwards.

        At equal times the new tuples come first, as held-back ones have waited longer; with `behind` they come last. Parts are
        merged one at a time, and only where new tuples belong: the whole queue may be larger than the memory.
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
        """Remove and yield all parts; the queue is empty at once and may be appended to. Yielded parts are not referenced."""
        parts, self.parts = deque(self.parts), []
        self.tuples = self.bytes = self.stored_bytes = 0
        return (parts.popleft() for _ in range(len(parts)))

    def take_all(self) -> Iterator[tuple[TupleBatch, bool]]:
        """Remove and yield all batches, each with whether it was stored; the queue is empty at once and may be appended to."""
        return ((in_memory(part), not isinstance(part, TupleBatch)) for part in self._take_parts())

    def time_after(self, nbytes: int) -> int:
        """A time below which about the oldest `nbytes` bytes wait; END_OF_TIME_US when fewer do."""
        for index, part in enumerate(self.parts):
            if part.nbytes > nbytes:
                return int(self._loaded(index).ts[nbytes * len(part) // part.nbytes]) + 1
            nbytes -= part.nbytes
        return END_OF_TIME_US

    def take_below(self, time_us: int) -> TupleBatch:
        """Remove and return the tuples with ts < time_us."""
        taken = self.take_parts_below(time_us)
        return TupleBatch.concat(taken) if taken else self._empty

    def take_parts_below(self, time_us: int) -> list[TupleBatch]:
        """The same, in parts as they lie."""
        taken: list[TupleBatch] = []
        while self.parts and _first(self.parts[0]) < time_us:
            head = self._loaded(0)
            n = int(np.searchsorted(head.ts, time_us, side="left"))
            self.bytes -= head.nbytes
            if n < len(head):
                taken.append(head.slice(0, n))
                self.parts[0] = rest = head.slice(n, len(head))
                self.bytes += rest.nbytes
                break
            taken.append(head)
            self.parts.pop(0)
        self.tuples -= sum(map(len, taken))
        return taken

    @property
    def first_ts_us(self) -> int | None:
        return _first(self.parts[0]) if self.parts else None

    @property
    def last_ts_us(self) -> int:
        return _last(self.parts[-1]) if self.parts else BEGIN_OF_TIME_US

    # ------------------------------------------------------------ on disk, and dropped

    def _loaded(self, index: int) -> TupleBatch:
        """The part at an index, loaded into memory."""
        part = self.parts[index]
        if isinstance(part, TupleBatch):
            return part
        self.parts[index] = batch = part.load()
        self.stored_bytes -= part.nbytes
        self.bytes += batch.nbytes
        return batch

    def store(self, nbytes: int, store: Store) -> int:
        """Store about `nbytes` bytes, the last tuples first; returns how many. The first part stays in memory.

        StoreFullError when the store is full.
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
        """Cut a large first part into pieces, so that most of it can be stored."""
        first = self.parts[0] if self.parts else None
        if isinstance(first, TupleBatch) and first.nbytes > 2 * _STORED_AT_ONCE_BYTES:
            rows = max(1, len(first) * _STORED_AT_ONCE_BYTES // first.nbytes)
            pieces = [_copied(first, at, min(at + rows, len(first))) for at in range(0, len(first), rows)]
            self.parts[:1] = pieces
            self.bytes += sum(piece.nbytes for piece in pieces) - first.nbytes

    def in_memory(self) -> list[TupleBatch]:
        """The batches in memory, in order."""
        return [part for part in self.parts if isinstance(part, TupleBatch)]

    def drop(self, masks: Sequence[Bool]) -> list[TupleBatch]:
        """Remove and return tuples. masks: one for each batch of `in_memory`, True for removed tuples."""
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
    """A copy of a slice, which does not keep the rest in memory."""
    return batch.take(np.arange(start, stop, dtype=np.int64))


def _stored(batch: TupleBatch, store: Store) -> StoredBatch | None:
    """None when the store is full."""
    try:
        return store(batch)
    except StoreFullError:
        return None


def _first(part: TupleBatch | StoredBatch) -> int:
    return int(part.ts[0]) if isinstance(part, TupleBatch) else part.first_ts_us


def _last(part: TupleBatch | StoredBatch) -> int:
    return int(part.ts[-1]) if isinstance(part, TupleBatch) else part.last_ts_us
