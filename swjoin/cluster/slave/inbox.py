"""The inbox of a slave with several gateways: their deliveries of a distribution epoch as one.

What: `Inbox`: `add` a delivery, `take` what all gateways have sent of the next epoch.
Why: merging, alignment and heartbeat are one rule: an epoch comes when all gateways' deliveries of it are here, and only that
moves watermarks and starts orders. A delivery has costs of its own, whatever its size, so each gateway's is not joined alone.
Stays out: joining (`cluster.slave.slave`), merging between stages of a plan (`cluster.slave.merger`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import replace

from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.merged_deliveries import Grouped, merged, on_common_groups

Times = tuple[int, int]
_NEVER = 1 << 62


def _least(times: list[Times]) -> Times:
    return min(left for left, _ in times), min(right for _, right in times)


def _concat(batches: Sequence[TupleBatch]) -> TupleBatch:
    """Of one stream; empty ones may lack the columns of others."""
    return TupleBatch.concat([batch for batch in batches if len(batch)] or batches[:1])


def _merged(deliveries: Sequence[Delivery]) -> Delivery:
    """All of one epoch; orders are the same in each."""
    sides = []
    for stream in (LEFT, RIGHT):
        parts = [Grouped.of(delivery, stream) for delivery in deliveries]
        sides.append(merged(parts, _concat([part.tuples for part in parts])))
    groups, (left_counts, right_counts) = on_common_groups(sides)
    left_us, right_us = _least([(d.left_time_us, d.right_time_us) for d in deliveries])
    return replace(
        deliveries[0],
        left_time_us=left_us,
        right_time_us=right_us,
        groups=groups,
        left_counts=left_counts,
        right_counts=right_counts,
        left=sides[LEFT].tuples,
        right=sides[RIGHT].tuples,
        null_keys=(_concat([d.null_keys[LEFT] for d in deliveries]), _concat([d.null_keys[RIGHT] for d in deliveries])),
        needed_us=_least([d.needed_us for d in deliveries]),
    )


class Inbox:
    """All gateways send a slave the same distribution epochs, each its share."""

    def __init__(self, gateway_count: int) -> None:
        self._queues: list[deque[Delivery]] = [deque() for _ in range(gateway_count)]
        self.needed_us: Times = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)  # no later checkpoint needs left and right tuples below
        self.bytes = 0  # that wait

    def add(self, gateway: int, delivery: Delivery) -> None:
        """Take a delivery; those of one gateway come in the order of epochs. Its keys are comparable with those of others."""
        self._queues[gateway].append(delivery)
        self.bytes += delivery.nbytes

    @property
    def open_epoch(self) -> int:
        """The epoch of which some deliveries are missing; above every epoch when there is none."""
        return min((queue[0].epoch for queue in self._queues if queue), default=_NEVER)

    def take(self) -> Delivery | None:
        """The next epoch that all gateways have sent, with the least of their watermarks."""
        if not all(self._queues):
            return None
        deliveries = [queue.popleft() for queue in self._queues]
        assert len({d.epoch for d in deliveries}) == 1, "gateways deliver different epochs"
        self.bytes -= sum(d.nbytes for d in deliveries)
        taken = _merged(deliveries)
        self.needed_us = taken.needed_us
        return taken

    def tuples(self) -> tuple[int, int]:
        """Left and right tuples that wait."""
        waiting = [delivery for queue in self._queues for delivery in queue]
        return sum(len(d.left) for d in waiting), sum(len(d.right) for d in waiting)

    def validate(self) -> None:
        assert self.bytes == sum(d.nbytes for queue in self._queues for d in queue), "wrong count of bytes that wait"
