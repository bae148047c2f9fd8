"""The degree of declustering (paper section V-A): pure rules for the number of active slaves.

What: `wanted_change` (one slave more, one fewer, or none), `wanted_by_work` (the same by measured work), `Confirmation` (the
same change several times in a row), and `next_to_rest`.
Why: idle nodes cost communication, overloaded ones delay; the system is kept minimally overloaded on purpose.
Stays out: emptying a slave (`policy.reorganization`), activating and deactivating it (`cluster.master.controller`).
"""

from __future__ import annotations

from collections.abc import Sequence

from swjoin.policy.reorganization import Kind, SlaveLoad


def wanted_change(kinds: Sequence[Kind], beta: float, resting: int) -> int:
    """+1, -1 or 0 active slaves.

    No supplier: one fewer, never below one. N_sup > beta * N_con: one more, if one is inactive. resting: inactive slaves.
    """
    suppliers, consumers = kinds.count(Kind.SUPPLIER), kinds.count(Kind.CONSUMER)
    if suppliers == 0:
        return -1 if len(kinds) > 1 else 0
    return 1 if suppliers > beta * consumers and resting > 0 else 0


_MOST_BUSY, _LEAST_BUSY = 0.7, 0.5  # busy ratio above which a slave is added; below which, with one fewer, one is removed


def wanted_by_work(loads: Sequence[SlaveLoad], resting: int) -> int:
    """+1, -1 or 0 active slaves, by their busy ratios, which rise before the occupancies of the paper's rule.

    Above 0.7 on average: one more, if one is inactive. One fewer when the others would stay below 0.5; never below one. A
    slave's backlog counts as work.
    """
    busy = sum(x.busy_ratio * (1 + x.backlog_ratio) for x in loads)
    if busy > _MOST_BUSY * len(loads):
        return 1 if resting > 0 else 0
    return -1 if len(loads) > 1 and busy < _LEAST_BUSY * (len(loads) - 1) else 0


class Confirmation:
    """Confirms a change that was wanted in `needed` reorganization epochs in a row (1: as in the paper)."""

    def __init__(self, needed: int) -> None:
        self._needed = needed
        self._change = 0
        self._count = 0

    def confirm(self, change: int) -> int:
        """The change, or 0 while it has not been wanted often enough."""
        self._count = self._count + 1 if change == self._change else 1
        self._change = change
        if change == 0 or self._count < self._needed:
            return 0
        self._count = 0
        return change

    def plain_state(self) -> list[int]:
        """Ready for JSON."""
        return [self._change, self._count]

    def restore(self, plain: list[int]) -> None:
        self._change, self._count = plain


def next_to_rest(loads: Sequence[SlaveLoad]) -> SlaveLoad:
    """The slave to be emptied: by least occupancy, then least state to move, then highest id."""
    return min(loads, key=lambda x: (x.occupancy_ratio, int(x.state_bytes.sum()), len(x.groups), -x.slave))
