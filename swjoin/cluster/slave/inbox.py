"""The inbox of a slave with several gateways: their deliveries, one distribution epoch after the other.

What: `Inbox`: `add` a delivery, `take` what can be joined; every delivery but the last one of an epoch is a part.
Why: merging, alignment and heartbeat are one rule: an epoch ends when all gateways' deliveries of it are here, and only that
moves watermarks and starts orders. Parts are joined as they come; deliveries of later epochs wait.
Stays out: joining (`cluster.slave.slave`), merging between stages of a plan (`cluster.slave.merger`).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace

from swjoin.core.data_messages import Delivery, no_moves
from swjoin.core.ids import BEGIN_OF_TIME_US

Times = tuple[int, int]
_NEVER = 1 << 62


def _least(times: list[Times]) -> Times:
    return min(left for left, _ in times), min(right for _, right in times)


class Inbox:
    """All gateways send a slave the same distribution epochs, each its share."""

    def __init__(self, gateway_count: int) -> None:
        self._queues: list[deque[Delivery]] = [deque() for _ in range(gateway_count)]
        self._taken: dict[int, tuple[int, Times]] = {}  # of the open epoch, by gateway: its number and watermarks
        self._times_us: Times = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)  # watermarks of the last epoch that has ended
        self._needed_us: list[Times] = [(BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)] * gateway_count
        self.bytes = 0  # that wait

    def add(self, gateway: int, delivery: Delivery) -> None:
        """Take a delivery; those of one gateway come in the order of epochs."""
        self._queues[gateway].append(delivery)
        self.bytes += delivery.nbytes

    @property
    def open_epoch(self) -> int:
        """The epoch of which some parts are missing; above every epoch when there is none."""
        return next((epoch for epoch, _ in self._taken.values()), _NEVER)

    @property
    def needed_us(self) -> Times:
        """Times below which no later checkpoint needs left and right tuples."""
        return _least(self._needed_us)

    def take(self) -> Delivery | None:
        """The next part that can be joined, or the end of its epoch, with the least watermarks of all gateways."""
        gateway = next((g for g, queue in enumerate(self._queues) if queue and g not in self._taken), None)
        if gateway is None:
            return None
        delivery = self._queues[gateway].popleft()
        self.bytes -= delivery.nbytes
        self._needed_us[gateway] = delivery.needed_us
        self._taken[gateway] = int(delivery.epoch), (delivery.left_time_us, delivery.right_time_us)
        if len(self._taken) < len(self._queues):
            left_us, right_us = self._times_us
            part = replace(delivery, left_time_us=left_us, right_time_us=right_us, final=False, last=False)
            return replace(part, moves_out=no_moves(), moves_in=no_moves())
        assert len({epoch for epoch, _ in self._taken.values()}) == 1, "gateways deliver different epochs"
        left_us, right_us = self._times_us = _least([times_us for _, times_us in self._taken.values()])
        self._taken.clear()
        return replace(delivery, left_time_us=left_us, right_time_us=right_us, needed_us=self.needed_us)

    def tuples(self) -> tuple[int, int]:
        """Left and right tuples that wait."""
        waiting = [delivery for queue in self._queues for delivery in queue]
        return sum(len(d.left) for d in waiting), sum(len(d.right) for d in waiting)

    def validate(self) -> None:
        assert self.bytes == sum(d.nbytes for queue in self._queues for d in queue), "wrong count of bytes that wait"
