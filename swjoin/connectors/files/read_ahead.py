"""Prefetching of batches in a thread.

What: `ReadAhead`: runs an iterator in a thread; `ready` polls it.
Why: decoding overlaps with the master's work.
Stays out: the batches (`connectors.files.source`).
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

_READ_AHEAD = 2


class ReadAhead:
    """Runs an iterator in a thread, a bounded number of items ahead; `next` raises its errors."""

    def __init__(self, make: Callable[[], Iterator[Any]]) -> None:
        self._queue: queue.Queue[Any] = queue.Queue(_READ_AHEAD)
        self._stop = threading.Event()
        self._done = False
        self._next: tuple[Any] | None = None  # taken from the queue, not returned yet
        self._thread = threading.Thread(target=self._run, args=(make,), daemon=True, name="read-ahead")
        self._thread.start()

    def _run(self, make: Callable[[], Iterator[Any]]) -> None:
        try:
            for item in make():
                if not self._put(item):
                    return
            self._put(None)
        except BaseException as error:
            self._put(error)

    def _put(self, item: Any) -> bool:
        while not self._stop.is_set():
            try:
                self._queue.put(item, timeout=0.1)
                return True
            except queue.Full:
                continue
        return False

    def ready(self, patience_s: float) -> bool:
        """Whether `next` would return at once; waits up to this long."""
        if self._next is None and not self._done:
            with suppress(queue.Empty):
                self._next = (self._queue.get(patience_s > 0, patience_s or None),)
        return self._done or self._next is not None

    def next(self) -> Any:
        if self._done:
            return None
        (item,) = self._next or (self._queue.get(),)
        self._next = None
        if isinstance(item, BaseException):
            self._done = True
            raise item
        self._done = item is None
        return item

    def close(self) -> None:
        self._done = True
        self._stop.set()
        self._thread.join(timeout=5)
