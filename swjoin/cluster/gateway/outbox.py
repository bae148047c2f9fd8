"""The deliveries of a closed slot, until their slaves are ready for them.

What: `Outbox`: which slaves have reported, the deliveries in their fixed order, each slave's watermarks.
Why: a slave is served once it has reported, so both sides of a large message are present when it is sent (paper section IV),
and memory is bounded by the slaves' stream buffers.
Stays out: the content of deliveries (`cluster.gateway.gateway`), watermarks themselves (`cluster.gateway.slots`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from swjoin.cluster.role import Effect, Send, slave_role
from swjoin.core.batch import LEFT
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import BEGIN_OF_TIME_US, SlaveId

Times = tuple[int, int]
_NOTHING = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


def _least(promises: Collection[Times]) -> Times:
    return min(left for left, _ in promises), min(right for _, right in promises)


class Outbox:
    """occupancies: stream buffer ratios of slaves that are ready for a delivery. promised: each slave's last watermarks."""

    def __init__(self, slave_count: int) -> None:
        self.occupancies: dict[SlaveId, float] = {}
        self.promised: dict[SlaveId, Times] = {}
        self._deliveries: deque[Delivery] = deque()
        self._fed_bytes = [0] * slave_count

    def __bool__(self) -> bool:
        return bool(self._deliveries)

    def report(self, slave: SlaveId, occupancy_ratio: float) -> None:
        """The slave is ready for a delivery."""
        self.occupancies[slave] = occupancy_ratio

    def ask_again(self, slaves: Collection[SlaveId]) -> None:
        """Forget the reports of these slaves; they report again."""
        self.occupancies = {s: ratio for s, ratio in self.occupancies.items() if s not in slaves}

    def put(self, delivery: Delivery) -> None:
        self._deliveries.append(delivery)
        self.promised[delivery.slave] = delivery.left_time_us, delivery.right_time_us

    def serve(self) -> list[Effect]:
        """Send the deliveries whose turn it is and whose slaves are ready."""
        effects: list[Effect] = []
        while self._deliveries and self._deliveries[0].slave in self.occupancies:
            delivery = self._deliveries.popleft()
            del self.occupancies[delivery.slave]
            self._fed_bytes[delivery.slave] += delivery.nbytes
            effects.append(Send(slave_role(delivery.slave), delivery))
        return effects

    def take_fed_bytes(self) -> tuple[int, ...]:
        """Bytes sent to each slave since the last call."""
        fed_bytes, self._fed_bytes = self._fed_bytes, [0] * len(self._fed_bytes)
        return tuple(fed_bytes)

    def least_promised(self, slaves: Collection[SlaveId] | None = None) -> Times:
        """The least watermarks of these slaves, by default of all that have some."""
        chosen = self.promised.keys() if slaves is None else slaves
        return _least([self.promised.get(s, _NOTHING) for s in chosen])

    def tuples(self, stream: int) -> int:
        """Tuples of a stream that wait for their slaves."""
        return sum(len(d.left if stream == LEFT else d.right) for d in self._deliveries)

    def validate(self) -> None:
        waiting = [d.slave for d in self._deliveries]
        assert waiting == sorted(waiting), f"slaves out of their fixed order: {waiting}"
