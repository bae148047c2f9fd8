"""Routing to units that store one stream each: every row is stored at one, and probes those that store the other stream.

What: `Biclique`: its units for a number of instances, the copies of rows, and which partition-groups store left rows;
`UnitsInUse`, those of them that rows are stored at and probe, as long as this holds.
Why: a matrix stores a row in every cell of its line; here it is stored once, whatever the number of units, so windows may be
as long as all memory allows (BiStream, the join-biclique, section 3.1). The unit is a hash of the row's id, so it is the same
after a crash. Units may be divided into subgroups, which the join's key chooses: a row then probes one subgroup alone (section
3.1, content-sensitive routing and ContRand).
Stays out: how many units are in use (`policy.scaling`), and when that changes (`cluster.master.unit_scaling`); the order in
which a unit stores and probes (`cluster.slave.units`), cells (`routing.matrix`), keys and their hashes (`core.key_encoder`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, U64, Bool
from swjoin.core.hashing import hash_lines
from swjoin.routing.matrix import MOST_LINES

_TURN_BITS = 24  # of a row's id, for the choice among the units of a subgroup


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
        return self.all_units.copies(port, ids, hashes)

    @cached_property
    def all_units(self) -> UnitsInUse:
        return UnitsInUse(self, (1,) * self.count, (1,) * self.count)

    def units_of(self, port: int) -> range:
        """That store the rows of a port."""
        return range(self.left) if port == LEFT else range(self.left, self.count)

    def subgroups_of(self, port: int) -> list[range]:
        """The units of each subgroup of a port's, one after the other."""
        units, count = self.units_of(port), self.left_subgroups if port == LEFT else self.right_subgroups
        starts = [i * len(units) // count for i in range(count + 1)]
        return [units[start:end] for start, end in pairwise(starts)]

    def stores_left(self, groups: int) -> Bool:
        """Which partition-groups store left rows: bool (groups,). They are units, of which there are no more than groups."""
        found: Bool = np.arange(groups) < self.left
        return found


class UnitTable(NamedTuple):
    """The units of a stage that are in use. weights, probed: as of `UnitsInUse`, 0 or 1 for bool."""

    stage: int
    weights: tuple[int, ...]
    probed: tuple[int, ...]


class UnitsInUse:
    """Of a biclique, the units that rows are stored at, and those that they probe. Which ones may change while a run goes on:
    a unit that holds a row which may have a partner yet has to be probed, whether it stores more or not.

    weights: by unit; its share of its subgroup's rows, in whole numbers, 0 for none. probed: by unit; at least those that
    store. Every subgroup has one that stores.
    """

    def __init__(self, biclique: Biclique, weights: Sequence[int], probed: Sequence[int]) -> None:
        self.biclique = biclique
        self._storing, self._probed = [], []
        for port in (LEFT, RIGHT):
            subgroups = biclique.subgroups_of(port)
            self._storing.append(_Lists.of([[unit for unit in units for _ in range(weights[unit])] for units in subgroups]))
            self._probed.append(_Lists.of([[unit for unit in units if probed[unit]] for units in subgroups]))

    @property
    def by_key(self) -> bool:
        return self.biclique.by_key

    def copies(self, port: int, ids: U64, hashes: U64 | None = None) -> tuple[I64, I64]:
        """As `Biclique.copies`."""
        storing, probed = self._storing[port], self._probed[1 - port]
        first, count = probed.chosen(hashes, len(ids))
        last = np.cumsum(1 + count)  # position behind each row's copies
        positions = np.repeat(np.arange(len(ids), dtype=np.int64), 1 + count)
        places = np.arange(len(positions)) - np.repeat(last - count, 1 + count)  # -1 for the first copy, 0, 1, ...
        places += np.repeat(first, 1 + count)
        storing_copies = last - count - 1
        places[storing_copies] = 0
        units = probed.units[places]
        start, size = storing.chosen(hashes, len(ids))
        units[storing_copies] = storing.units[start + (hash_lines(ids, 1 << _TURN_BITS) * size >> _TURN_BITS)]
        return positions, units


class _Lists(NamedTuple):
    """A list of units for each subgroup, one after the other: int64. starts, sizes: of the lists."""

    units: I64
    starts: I64
    sizes: I64

    @staticmethod
    def of(lists: Sequence[Sequence[int]]) -> _Lists:
        assert all(lists), "a subgroup without units"
        sizes = np.array([len(units) for units in lists], np.int64)
        return _Lists(np.array([unit for units in lists for unit in units], np.int64), np.cumsum(sizes) - sizes, sizes)

    def chosen(self, hashes: U64 | None, rows: int) -> tuple[I64, I64]:
        """Of each row, by its hash: where the list of its subgroup begins, and how long it is: int64 (rows,)."""
        if len(self.sizes) == 1:
            return np.zeros(rows, np.int64), np.full(rows, self.sizes[0])
        assert hashes is not None, "subgroups without hashes"
        chosen = hash_lines(hashes, len(self.sizes))
        return self.starts[chosen], self.sizes[chosen]
