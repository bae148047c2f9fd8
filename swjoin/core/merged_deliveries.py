"""Tuples that are grouped by partition-group: merged from several parts, and cut into parts.

What: `Grouped`, tuples of one stream group after group; `merged`, several of them as one; `on_common_groups`.
Why: a stage receives the parts of an epoch from many senders, and its join takes each partition-group in one piece.
Stays out: routing (`routing`), what is merged when (`cluster.slave.merger`, `cluster.slave.inbox`).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, LEFT, TupleBatch
from swjoin.core.data_messages import Delivery


@dataclass(frozen=True)
class Grouped:
    """groups: int64 (g,), ascending partition-groups. counts: int64 (g,), tuples of each, one group after the other."""

    groups: I64
    counts: I64
    tuples: TupleBatch

    @staticmethod
    def of(delivery: Delivery, stream: int) -> Grouped:
        """One stream of a delivery."""
        if stream == LEFT:
            return Grouped(delivery.groups, delivery.left_counts, delivery.left)
        return Grouped(delivery.groups, delivery.right_counts, delivery.right)

    @staticmethod
    def empty() -> Grouped:
        return Grouped(np.empty(0, np.int64), np.empty(0, np.int64), TupleBatch.empty())

    def cut(self, most: int) -> Iterator[Grouped]:
        """In parts of at most so many tuples; a part may end within a group. At least one part."""
        if len(self.tuples) <= most:
            yield self
            return
        ends = np.cumsum(self.counts)
        for start in range(0, len(self.tuples), most):
            stop = min(start + most, len(self.tuples))
            counts = np.minimum(ends, stop) - np.maximum(ends - self.counts, start)
            used = np.flatnonzero(counts > 0)
            yield Grouped(self.groups[used], counts[used], self.tuples.slice(start, stop))


def merged(parts: Sequence[Grouped], tuples: TupleBatch) -> Grouped:
    """The tuples of all parts, group after group. tuples: those of all parts, one part after the other."""
    if len(parts) == 1:
        return Grouped(parts[0].groups, parts[0].counts, tuples)
    groups = np.concatenate([part.groups for part in parts])
    counts = np.concatenate([part.counts for part in parts])
    sums = np.bincount(groups, weights=counts).astype(np.int64)
    used = np.flatnonzero(sums)
    if (groups[1:] >= groups[:-1]).all():
        return Grouped(used, sums[used], tuples)
    by_group = np.argsort(groups, kind="stable")  # of pieces, each one group of one part
    starts, lengths = (np.cumsum(counts) - counts)[by_group], counts[by_group]
    return Grouped(used, sums[used], tuples.pieces(starts, lengths))


def on_common_groups(sides: Sequence[Grouped]) -> tuple[I64, I64]:
    """The groups of any side, int64 (g,), ascending; and tuples of each in each side, int64 (sides, g)."""
    groups = np.unique(np.concatenate([side.groups for side in sides]))
    counts = np.zeros((len(sides), len(groups)), np.int64)
    for row, side in zip(counts, sides, strict=True):
        row[np.searchsorted(groups, side.groups)] = side.counts
    return groups, counts
