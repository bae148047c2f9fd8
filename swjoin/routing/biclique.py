"""Routing to units that store one stream each: every row is stored at one, and probes those that store the other stream.

What: `Biclique`: its units for a number of instances, the copies of rows, and which partition-groups store left rows.
Why: a matrix stores a row in every cell of its line; here it is stored once, whatever the number of units, so windows may be
as long as all memory allows (BiStream, the join-biclique, section 3.1). The unit is a hash of the row's id, so it is the same
after a crash. Units may be divided into subgroups, which the join's key chooses: a row then probes one subgroup alone (section
3.1, content-sensitive routing and ContRand).
Stays out: the order in which a unit stores and probes (`cluster.slave.units`), cells (`routing.matrix`), keys and their hashes
(`core.key_encoder`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, LEFT, U64, Bool
from swjoin.core.hashing import hash_lines
from swjoin.routing.matrix import MOST_LINES


@dataclass(frozen=True)
class Biclique:
    """left, right: units that store left rows, and right ones, 1 to MOST_LINES each. The left ones have the first numbers.
    left_subgroups, right_subgroups: into how many, of equal size but for one unit, they are divided: 1, content-insensitive
    routing, is the paper's random one; as many as units is its content-sensitive one; others are its ContRand."""

    left: int
    right: int
    left_subgroups: int = 1
    right_subgroups: int = 1

    @staticmethod
    def of_instances(count: int) -> Biclique:
        """A left and a right unit for each."""
        return Biclique(min(count, MOST_LINES), min(count, MOST_LINES))

    @property
    def count(self) -> int:
        """Units."""
        return self.left + self.right

    @property
    def word(self) -> str:
        return "units"

    @property
    def by_key(self) -> bool:
        """Whether a row's units depend on its key."""
        return max(self.left_subgroups, self.right_subgroups) > 1

    def copies(self, port: int, ids: U64, hashes: U64 | None = None) -> tuple[I64, I64]:
        """Positions of rows, each as often as it has copies and in their order, and the unit of each copy, the one that stores
        it first: int64 (copies,). ids: uint64 (n,) of the rows of the left or the right port. hashes: of their keys, equal ones
        for partners; needed if there are subgroups."""
        own, other = (self.left, self.right) if port == LEFT else (self.right, self.left)
        first, opposite = (0, self.left) if port == LEFT else (self.left, 0)
        subgroups = self.left_subgroups, self.right_subgroups
        mine, theirs = subgroups if port == LEFT else subgroups[::-1]
        start, size = _subgroup(hashes, mine, own, len(ids))
        probed, count = _subgroup(hashes, theirs, other, len(ids))
        last = np.cumsum(1 + count)  # position behind each row's copies
        positions = np.repeat(np.arange(len(ids), dtype=np.int64), 1 + count)
        units = np.arange(len(positions)) - np.repeat(last - count, 1 + count)  # -1 for the first copy, 0, 1, ...
        units += np.repeat(opposite + probed, 1 + count)
        units[last - count - 1] = first + start + hash_lines(ids, own) % size
        return positions, units

    def stores_left(self, groups: int) -> Bool:
        """Which partition-groups store left rows: bool (groups,). They are units, of which there are no more than groups."""
        found: Bool = np.arange(groups) < self.left
        return found


def _subgroup(hashes: U64 | None, subgroups: int, units: int, rows: int) -> tuple[I64, I64]:
    """Of each row, by its hash: the first unit of its subgroup, and how many there are: int64 (rows,)."""
    if subgroups == 1:
        return np.zeros(rows, np.int64), np.full(rows, units)
    assert hashes is not None, "subgroups without hashes"
    chosen = hash_lines(hashes, subgroups)
    starts = np.arange(subgroups + 1) * units // subgroups
    return starts[chosen], np.diff(starts)[chosen]
