"""How many units of one stream store its rows: a pure rule of their load (BiStream, section 3.4, "2PS").

What: `Limits`; `SubgroupScaling`, the rule for one subgroup of units.
Why: windows grow and shrink with the streams' rates. Units are added before memory is full, and given back when few would do.
Stays out: which rows a unit holds, where a row goes (`cluster.master.unit_scaling`, `routing.biclique`).

tau = (bytes of rows in all units of the subgroup) / (k C), where k units store, of C bytes each. Above T_h more units are
wanted, below T_l fewer; what is wanted several times in a row is done: k becomes (bytes) / (Psi C), rounded up, at least 1.
As T_l < Psi < T_h, tau is between them afterwards, as far as there are units.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swjoin.policy.declustering import Confirmation


@dataclass(frozen=True)
class Limits:
    """low, target, high: T_l, Psi and T_h, shares of the memory of a subgroup's units. capacity_bytes: C, memory of a unit."""

    low: float
    target: float
    high: float
    capacity_bytes: int

    def load(self, stored_bytes: int, units: int) -> float:
        """tau."""
        return stored_bytes / (units * self.capacity_bytes)


class SubgroupScaling:
    """most: units that the subgroup has. needed: how often in a row a change must be wanted. shrinks: units are given back,
    too; not where rows are kept for good."""

    def __init__(self, limits: Limits, most: int, needed: int, *, shrinks: bool = True) -> None:
        self._limits, self._most, self._shrinks = limits, most, shrinks
        self._confirmation = Confirmation(needed)

    def wanted_units(self, stored_bytes: int, units: int, *, draining: bool = False, filling: bool = False) -> int:
        """How many are to store from now on; so many as do, unless a change was wanted often enough. stored_bytes: of rows in
        all units of the subgroup. draining: some have rows, and store no more; then nothing changes. filling: no row has
        expired yet, so that more are to come; then none is given back."""
        load, limits = self._limits.load(stored_bytes, units), self._limits
        more, fewer = load > limits.high and units < self._most, load < limits.low and units > 1
        wish = 0 if draining else 1 if more else -1 if fewer and self._shrinks and not filling else 0
        if not self._confirmation.confirm(wish):
            return units
        enough = max(1, math.ceil(stored_bytes / (limits.target * limits.capacity_bytes)))
        return min(enough, self._most)

    def plain_state(self) -> list[int]:
        """Ready for JSON."""
        return self._confirmation.plain_state()

    def restore(self, plain: list[int]) -> None:
        self._confirmation.restore(plain)
