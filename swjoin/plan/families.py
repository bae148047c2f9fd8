"""Families: results of one join that differ in its windows alone, which nest.

What: `Family`, `families_of(stages)`.
Why: a row of the widest windows is in the results of all wider ones than its own, so one rank says in which: k queries cost a
search per row and k sums at the end of an epoch (CQELS Cloud, router of the shared multiple join), not k conditions per row.
Stays out: sharing the join (`plan.sharing`), sending the rows (`cluster.slave.stage`), sums (`cluster.collector`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.plan.logical import Filter, Project, Result, Within
from swjoin.plan.lookups import Lookup
from swjoin.plan.stages import Edge, Stage, StagePlan, Step


@dataclass(frozen=True, eq=False)
class Family:
    """edges: to the results, from the narrowest windows to the widest. steps: that the rows of all pass after these. lower_us,
    upper_us: of right time - left time, int64 (n,): bounds of the windows, the first ones descending, the others ascending."""

    edges: tuple[Edge, ...]
    steps: tuple[Step, ...]
    lower_us: I64
    upper_us: I64

    def __len__(self) -> int:
        return len(self.edges)

    def ranks(self, differences_us: I64) -> I64:
        """The narrowest windows that a pair is in, int64 (n,), as an index of `edges`; their number: it is in none.

        differences_us: right time - left time, int64 (n,)."""
        by_lower = np.searchsorted(-self.lower_us, -differences_us, side="left")
        by_upper = np.searchsorted(self.upper_us, differences_us, side="left")
        return np.maximum(by_lower, by_upper)


def families_of(stages: StagePlan) -> tuple[Family, ...]:
    """Of two results or more each; a result is in one at most."""
    alike: dict[object, list[tuple[tuple[int, int], Edge]]] = {}
    for edge in stages.edges:
        if isinstance(edge.receiver, Result) and edge.receiver.named and isinstance(edge.sender, Stage) and edge.sender.joins:
            bounds, rest = _windows(edge)
            content = tuple(replace(step, name="", input="") for step in rest if isinstance(step, Filter | Project | Lookup))
            if len(content) == len(rest):  # others, as functions of batches, may look at more than a row
                key = (edge.sender.id, edge.receiver.of_values, edge.receiver.order, content)
                alike.setdefault(key, []).append((bounds, edge))
    return tuple(family for members in alike.values() for family in _nested(members))


def _windows(edge: Edge) -> tuple[tuple[int, int], tuple[Step, ...]]:
    """The windows of an edge, and the steps after them."""
    if edge.steps and isinstance(first := edge.steps[0], Within):
        return (first.lower_us, first.upper_us), edge.steps[1:]
    return (BEGIN_OF_TIME_US, END_OF_TIME_US), edge.steps


def _nested(members: list[tuple[tuple[int, int], Edge]]) -> Iterator[Family]:
    chains: list[list[tuple[tuple[int, int], Edge]]] = []
    for member in sorted(members, key=lambda of: of[0][0] - of[0][1]):
        (lower_us, upper_us), _ = member
        fits = (chain for chain in chains if chain[-1][0][0] <= lower_us and upper_us <= chain[-1][0][1])
        chain = next(fits, None)
        if chain is None:
            chains.append([member])
        else:
            chain.append(member)
    for chain in chains:
        if len(chain) > 1:
            chain.reverse()
            bounds = np.array([bounds for bounds, _ in chain], np.int64)
            yield Family(tuple(edge for _, edge in chain), _windows(chain[0][1])[1], bounds[:, 0].copy(), bounds[:, 1].copy())
