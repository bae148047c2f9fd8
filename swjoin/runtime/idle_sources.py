"""Sources that have nothing to read: for how long, and which have been given up for now.

What: `IdleDetector`, asked before each read and, while a stream is idle, again and again.
Why: a source without rows must not stop the other stream (`time.idle_timeout`).
Stays out: what an idle stream means for time (`cluster.master.read_scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swjoin.connectors.source import is_live

if TYPE_CHECKING:
    from swjoin.connectors.source import Source

PATIENCE_S = 0.002  # between two polls; the master does everything else meanwhile


class IdleDetector:
    """Of both streams. timeout_us: 0 waits for ever."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._since_s: dict[int, float] = {}
        self._idle: set[int] = set()

    def of(self, stream: int, source: Source) -> bool | None:
        """None: read. False: not yet. True: it has had no rows for the timeout, and is idle from now on.

        A live source is never read before it has something: the master has more to do than to wait for it.
        """
        if (self._timeout_us == 0 and not is_live(source)) or source.ready(PATIENCE_S):
            self._since_s.pop(stream, None)
            return None
        since_s, now_s = self._since_s.setdefault(stream, time.monotonic()), time.monotonic()
        if self._timeout_us == 0 or (now_s - since_s) * 1e6 < self._timeout_us:
            return False
        self._since_s.pop(stream)
        self._idle.add(stream)
        return True

    @property
    def any_idle(self) -> bool:
        return bool(self._idle)

    def ended(self, sources: Sequence[Source]) -> list[int]:
        """Streams that are idle no longer."""
        spoke = [stream for stream in sorted(self._idle) if sources[stream].ready(0.0)]
        self._idle.difference_update(spoke)
        return spoke
