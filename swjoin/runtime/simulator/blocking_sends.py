"""Sends that block the sender's rank until they are received, as MPI's may.

What: `Channels`; `BlockingSends`: which ranks wait inside a send, and what waits for these ranks.
Why: MPI copies a short message and returns, but nothing promises that: a protocol whose ranks wait for each other inside sends
works until messages grow.
Stays out: which messages block (`runtime.mpi.transport.waits`), delays (`runtime.simulator.simulator`).
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from swjoin.cluster.role import RoleId

Action: TypeAlias = Callable[[], None]


class BlockingSends:
    """A rank that sends waits for the receipt before it does anything else, and a rank that waits receives nothing."""

    def __init__(self, rank_of: Callable[[RoleId], int], schedule: Callable[[str, Action], None]) -> None:
        """rank_of: the rank that plays a role. schedule: puts a named action at the end of what is due now."""
        self._rank_of, self._schedule = rank_of, schedule
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
        self._schedule(f"rank {rank} goes on", lambda: self._next(rank))

    def _next(self, rank: int) -> None:
        waiting = self._waiting[rank]
        waiting[0]()
        waiting.popleft()
        if waiting and not self._outgoing[rank]:
            self._go_on(rank)


@dataclass
class Channels:
    """free_us: when the last message between two roles arrives; a later one comes after it. blocking: None: no send waits."""

    free_us: dict[tuple[RoleId, RoleId], int] = field(default_factory=dict)
    blocking: BlockingSends | None = None
