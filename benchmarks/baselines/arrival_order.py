"""Units that join tuples as they come: BiStream without its order-consistent protocol (section 3.2, figure 4).

What: `ArrivalOrder`: right tuples do not wait for the left ones of their epoch, so two units may see partners in two orders,
and a pair is found twice or never.
Why: its wrong answers show what the order of epochs is for (`tests/runtime/test_planted_units.py`).
Stays out: the units of the system (`swjoin.cluster.slave.units`).
"""

from __future__ import annotations

from swjoin.cluster.slave.units import Units
from swjoin.core.batch import RIGHT
from swjoin.core.data_messages import Delivery


class ArrivalOrder(Units):
    """Windows still expire at the end of an epoch, so that tuples are lost and doubled by their order alone."""

    def parts(self, delivery: Delivery) -> list[Delivery]:
        """Left and right tuples of a delivery at once."""
        whole = super().parts(delivery)
        if not self._right or delivery.final:
            return whole
        rows, self._right = self._right, []
        return [*whole, *(part for each in rows for part in self._of_side(delivery, RIGHT, each))]
