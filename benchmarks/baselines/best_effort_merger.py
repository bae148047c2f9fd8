"""Best-effort merging: rows of several senders are taken as they come (StreamCloud, section 3.1: what its mergers avoid).

What: `BestEffortMerger`, which ends an epoch with the first sender's end of it, and its watermark; parts of slower senders come
in whatever epoch is open by then.
Why: what transparent merging costs is measured beside it (`benchmarks.query_costs`), and its wrong answers show what it is for
(`tests/runtime/test_planted_plan_bugs.py`).
Stays out: the merger of the system (`swjoin.cluster.slave.merger`).
"""

from __future__ import annotations

from dataclasses import replace

from swjoin.cluster.role import RoleId
from swjoin.cluster.slave.merger import Merger, Piece
from swjoin.core.batch import LEFT, RIGHT
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import END_OF_TIME_US, EpochIndex


class BestEffortMerger(Merger):
    """Parts are checked for nothing. The last epoch alone waits for all senders, so that every row is taken."""

    def add(self, sender: RoleId, delivery: Delivery) -> None:
        """Take a part; of an epoch that has ended it belongs to the open one."""
        if delivery.epoch > self.epoch:
            self._later.setdefault(delivery.epoch, []).append((sender, delivery))
        else:
            self._enter(sender, delivery)

    def _enter(self, sender: RoleId, delivery: Delivery) -> None:
        first = delivery.epoch == self.epoch and self._finals == 0
        if delivery.final and not delivery.last:
            if first:
                self._missing = {(delivery.edge, sender)}
            else:
                delivery = replace(delivery, final=False)
        super()._enter(sender, delivery)

    def take(self) -> Piece:
        """What has come of any epoch, as of the open one."""
        epoch = EpochIndex(self.epoch)
        piece = super().take()
        piece.came = [(sender, replace(delivery, epoch=epoch)) for sender, delivery in piece.came]
        return piece

    def _next_epoch(self) -> None:
        self.times_us = self._greatest(LEFT), self._greatest(RIGHT)
        self.epoch += 1
        self._missing = set(self.feeds)
        for sender, delivery in self._later.pop(self.epoch, []):
            self._enter(sender, delivery)

    def _greatest(self, port: int) -> int:
        return max((feed.next_watermark_us for feed in self.feeds.values() if feed.port == port), default=END_OF_TIME_US)
