"""The queue of BiStream's order-consistent protocol (section 3.2): a heap of tuples, taken in the order of their stamps.

What: `TupleQueue`: `add` a router's stamped tuples, `signal` that it has come so far, `take` what all routers have passed.
Why: its cost beside that of epochs, which merge parts and order nothing (`benchmarks.routings`, `order`).
Stays out: the merger of the system (`swjoin.cluster.slave.merger`), routers, joining.

Stamps of one router grow; equal stamps of two, which the paper leaves unordered, are in the order of the routers.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from swjoin.core.batch import I64


@njit
def _push(heap, size, stamp, router, row):  # type: ignore[no-untyped-def]
    at = size
    while at > 0:
        above = (at - 1) >> 1
        if heap[above, 0] < stamp or (heap[above, 0] == stamp and heap[above, 1] <= router):
            break
        heap[at] = heap[above]
        at = above
    heap[at, 0], heap[at, 1], heap[at, 2] = stamp, router, row


@njit
def _push_all(heap, size, stamps, router, first_row):  # type: ignore[no-untyped-def]
    for i in range(stamps.shape[0]):
        _push(heap, size + i, stamps[i], router, first_row + i)


@njit
def _pop_below(heap, size, until, out):  # type: ignore[no-untyped-def]
    """Rows with stamps up to `until`, in order; how many."""
    taken = 0
    while size > 0 and heap[0, 0] <= until:
        out[taken] = heap[0, 2]
        taken += 1
        size -= 1
        stamp, router, row = heap[size, 0], heap[size, 1], heap[size, 2]
        at = 0
        while 2 * at + 1 < size:
            below = 2 * at + 1
            if below + 1 < size and (
                heap[below + 1, 0] < heap[below, 0]
                or (heap[below + 1, 0] == heap[below, 0] and heap[below + 1, 1] < heap[below, 1])
            ):
                below += 1
            if stamp < heap[below, 0] or (stamp == heap[below, 0] and router <= heap[below, 1]):
                break
            heap[at] = heap[below]
            at = below
        heap[at, 0], heap[at, 1], heap[at, 2] = stamp, router, row
    return taken


class TupleQueue:
    """routers: how many send. room: most tuples that wait."""

    def __init__(self, routers: int, room: int) -> None:
        self._heap = np.empty((room, 3), np.int64)  # stamp, router, row
        self._out = np.empty(room, np.int64)
        self._size = 0
        self._signals = np.full(routers, np.iinfo(np.int64).min)

    def __len__(self) -> int:
        """Tuples that wait."""
        return self._size

    def add(self, router: int, stamps: I64, first_row: int) -> None:
        """stamps: int64 (n,), growing, above those that the router has signalled. Rows first_row, first_row + 1, ..."""
        _push_all(self._heap, self._size, stamps, router, first_row)
        self._size += len(stamps)

    def signal(self, router: int, stamp: int) -> None:
        """No later tuple of this router has a stamp up to this one."""
        self._signals[router] = stamp

    def take(self) -> I64:
        """Rows that can be processed, in the order of all units: int64 (n,)."""
        count = _pop_below(self._heap, self._size, int(self._signals.min()), self._out)
        self._size -= count
        return self._out[:count].copy()
