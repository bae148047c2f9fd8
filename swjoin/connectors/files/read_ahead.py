"""Prefetching of batches in a thread.

What: `ReadAhead`: runs an iterator in a thread; `ready` polls it; `restart` runs another one.
Why: decoding overlaps with the gateway's work.
Stays out: the batches (`connectors.files.source`, `connectors.files.splits`).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

_READ_AHEAD = 2


class ReadAhead:
    """Runs iterators in a thread, one after another, a bounded number of items ahead; `next` raises their errors.

    The end of an iterator is None. An iterator that yields None has ended for the reader, and may go on with other work.
    """

    def __init__(self, make: Callable[[], Iterator[Any]], *, restarts: bool = False) -> None:
        """make: the first iterator. restarts: whether others may follow; otherwise the thread ends with it."""
        self._changed = threading.Condition()
        self._items: deque[Any] = deque()
        self._make: Callable[[], Iterator[Any]] | None = make  # of the iterator that is to be run next
        self._number = 0  # of that iterator, or of the one that runs
        self._done = self._closed = False
        self._thread = threading.Thread(target=self._run, args=(restarts,), daemon=True, name="read-ahead")
        self._thread.start()

    def _run(self, restarts: bool) -> None:
        while (taken := self._taken()) is not None:
            make, number = taken
            try:
                for item in make():
                    if not self._put(number, item):
                        break
                else:
                    self._put(number, None)
            except BaseException as error:
                self._put(number, error)
            if not restarts:
                return

    def _taken(self) -> tuple[Callable[[], Iterator[Any]], int] | None:
        """The next iterator, and its number; None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._make is not None)
            make, self._make = self._make, None
            return None if self._closed or make is None else (make, self._number)

    def _put(self, number: int, item: Any) -> bool:
        """Whether the iterator is to go on."""
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._number != number or len(self._items) < _READ_AHEAD)
            if self._closed or self._number != number:
                return False
            self._items.append(item)
            self._changed.notify_all()
            return True

    def restart(self, make: Callable[[], Iterator[Any]]) -> None:
        """Run another iterator from now on. What remains of the last one is dropped."""
        with self._changed:
            self._items.clear()
            self._make, self._number, self._done = make, self._number + 1, False
            self._changed.notify_all()

    def put_back(self, item: Any) -> None:
        """Let `next` return this item next."""
        with self._changed:
            self._items.appendleft(item)

    def ready(self, patience_s: float) -> bool:
        """Whether `next` would return at once; waits up to this long."""
        with self._changed:
            return self._done or self._changed.wait_for(lambda: len(self._items) > 0, patience_s)

    def next(self) -> Any:
        with self._changed:
            if self._done:
                return None
            self._changed.wait_for(lambda: self._items)
            item = self._items.popleft()
            self._changed.notify_all()
            self._done = item is None or isinstance(item, BaseException)
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        with self._changed:
            self._done = self._closed = True
            self._changed.notify_all()
        self._thread.join(timeout=5)
