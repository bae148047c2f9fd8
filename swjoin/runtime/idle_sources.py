"""Detection of idle sources: a source without rows for the idle timeout is idle until it has rows again.

What: `IdleDetector`, called before each read and, while a stream is idle, in every poll.
Why: a source without rows must not stop the other stream (`time.idle_timeout`).
Stays out: the effect of an idle stream on time (`cluster.gateway.read_scheduler`).
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from swjoin.connectors.source import is_live

if TYPE_CHECKING:
    from swjoin.connectors.source import Source

PATIENCE_S = 0.002  # of a poll, and between two polls of idle sources


class IdleDetector:
    """The idle streams of a run. timeout_us: 0: no stream becomes idle."""

    def __init__(self, timeout_us: int) -> None:
        self._timeout_us = timeout_us
        self._since_s: dict[int, float] = {}
        self._idle: set[int] = set()

    def of(self, stream: int, source: Source) -> bool | None:
        """None: read the source. False: it has no rows yet. True: it has had no rows for the timeout, and is idle from now on.

        A live source is read only when it has rows, so that the master never waits inside a read.
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
        """Remove and return the streams that have rows again."""
        spoke = [stream for stream in sorted(self._idle) if sources[stream].ready(0.0)]
        self._idle.difference_update(spoke)
        return spoke
