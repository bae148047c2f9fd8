"""When a slot ends in asap pace: event time decides, or how much is buffered.

What: `AsapSlots.end`, the event time below which tuples can be delivered now.
Why: an epoch may be closed when nothing can come any more that belongs to it, and must be when the buffers are full.
Stays out: realtime pace, where the clock decides (`policy.epochs`); delivering (`cluster.master`).
"""

from __future__ import annotations

from collections.abc import Callable

from swjoin.config import ClusterConfig
from swjoin.deliveries import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.policy.epochs import boundary_after_us


class AsapSlots:
    """boundary_us: where the last slot ended, in event time; it has been promised that nothing older comes."""

    def __init__(self, cluster: ClusterConfig) -> None:
        self.boundary_us = BEGIN_OF_TIME_US
        self._by_count = cluster.distribution_epoch_us == 0
        self._step_us = cluster.distribution_epoch_us // cluster.sub_group_count

    def end(
        self,
        first_us: int | None,
        origin_us: int | None,
        watermark_us: int,
        *,
        mid_epoch: bool,
        exhausted: bool,
        enough: bool,
        full: Callable[[], bool],
    ) -> int | None:
        """END_OF_TIME_US: everything goes. None: the slot is still open.

        first_us: the oldest tuple that can be delivered. origin_us: start of the time axis, or None while it is not known.
        enough: an epoch by number of tuples is complete. full: whether the buffers are; may raise when that cannot be helped.
        """
        if self._by_count:
            return END_OF_TIME_US if exhausted or enough or full() else None
        if origin_us is None or (first_us is None and not mid_epoch):
            if not exhausted:
                full()
            return END_OF_TIME_US if exhausted else None
        boundary = self.boundary_us + self._step_us  # not before the last one, which was promised
        if first_us is not None:
            boundary = max(boundary, boundary_after_us(first_us, origin_us, self._step_us))
        if boundary <= watermark_us:
            return boundary
        return END_OF_TIME_US if full() else None

    def closed(self, end_us: int) -> None:
        if end_us < END_OF_TIME_US:
            self.boundary_us = end_us
