"""Sends that block the sender's rank until they are received, as MPI's may.

What: `BlockingSends`: which ranks wait inside a send, and what waits for these ranks.
Why: MPI copies a short message and returns, but nothing promises that: a protocol whose ranks wait for each other inside sends
works until messages grow.
Stays out: which messages block (`runtime.mpi.transport.waits`), delays (`runtime.simulator.simulator`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from typing import TypeAlias

from swjoin.cluster.ranks import RankMap
from swjoin.cluster.role import RoleId

Action: TypeAlias = Callable[[], None]


class BlockingSends:
    """A rank that sends waits for the receipt before it does anything else, and a rank that waits receives nothing."""

    def __init__(self, ranks: RankMap, schedule: Callable[[int, Action], None]) -> None:
        """ranks: which of them plays a role. schedule: puts an action of a rank at the end of what is due now."""
        self.ranks, self._rank_of, self._schedule = ranks, ranks.rank_of, schedule
        self._outgoing: defaultdict[int, deque[tuple[bool, Action]]] = defaultdict(deque)  # the first one is on its way
        self._waiting: defaultdict[int, deque[Action]] = defaultdict(deque)

    def send(self, sender: RoleId, to: RoleId, waits: bool, go: Action) -> None:
        """Call `go` when all earlier messages of the sender's rank have left. waits: it leaves when it is received."""
        rank = self._rank_of(sender)
        if rank == self._rank_of(to):
            go()
        elif self._outgoing[rank]:
            self._outgoing[rank].append((waits, go))
        else:
            if waits:
                self._outgoing[rank].append((waits, go))
            go()

    def received(self, sender: RoleId) -> None:
        """The receiver has taken the message for which the sender's rank waits."""
        rank = self._rank_of(sender)
        outgoing = self._outgoing[rank]
        outgoing.popleft()
        while outgoing:
            waits, go = outgoing[0]
            go()
            if waits:
                return
            outgoing.popleft()
        if self._waiting[rank]:
            self._go_on(rank)

    def when_free(self, role: RoleId, action: Action) -> None:
        """Do it when the role's rank waits in no send, after all that waits already."""
        rank = self._rank_of(role)
        if self._outgoing[rank] or self._waiting[rank]:
            self._waiting[rank].append(action)
        else:
            action()

    def _go_on(self, rank: int) -> None:
        self._schedule(rank, lambda: self._next(rank))

    def _next(self, rank: int) -> None:
        waiting = self._waiting[rank]
        waiting[0]()
        waiting.popleft()
        if waiting and not self._outgoing[rank]:
            self._go_on(rank)
