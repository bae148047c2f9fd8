"""Routing to units that store one stream each: every row is stored at one of them, and probes all that store the other stream.

What: `Biclique`: its units for a number of instances, the copies of rows, and which partition-groups store left rows.
Why: a matrix stores a row in every cell of its line; here it is stored once, whatever the number of units, so windows may be as
long as all memory allows (BiStream, the join-biclique with content-insensitive routing, section 3.1). The unit is a hash of the
row's id, so it is the same after a crash.
Stays out: the order in which a unit stores and probes (`cluster.slave.stage`), cells (`routing.matrix`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, LEFT, U64, Bool
from swjoin.core.hashing import hash_lines
from swjoin.routing.matrix import MOST_LINES, keys_of_places


@dataclass(frozen=True)
class Biclique:
    """left, right: units that store left rows, and right ones, 1 to MOST_LINES each. The left ones have the first numbers."""

    left: int
    right: int

    @staticmethod
    def of_instances(count: int) -> Biclique:
        """A left and a right unit for each."""
        return Biclique(min(count, MOST_LINES), min(count, MOST_LINES))

    @property
    def count(self) -> int:
        """Units."""
        return self.left + self.right

    def copies(self, port: int, ids: U64) -> tuple[I64, I64]:
        """Positions of rows, each as often as it has copies and in their order, and the unit of each copy, the one that stores
        it first: int64 (copies,). ids: uint64 (n,) of the rows of the left or the right port."""
        own, other = (self.left, self.right) if port == LEFT else (self.right, self.left)
        first, opposite = (0, self.left) if port == LEFT else (self.left, 0)
        units = np.empty((len(ids), 1 + other), np.int64)
        units[:, 0] = first + hash_lines(ids, own)
        units[:, 1:] = opposite + np.arange(other)
        return np.repeat(np.arange(len(ids), dtype=np.int64), 1 + other), units.reshape(-1)

    def places(self, port: int, groups: int) -> Callable[[U64], tuple[I64, I64]]:
        """Of the ids of a port's rows: `copies`, and the keys of their units. groups: partition-groups."""
        keys = keys_of_places(self.count, groups)

        def of(ids: U64) -> tuple[I64, I64]:
            positions, units = self.copies(port, ids)
            return positions, keys[units]

        return of

    def stores_left(self, groups: int) -> Bool:
        """Which partition-groups store left rows: bool (groups,). They are units, of which there are no more than groups."""
        found: Bool = np.arange(groups) < self.left
        return found
