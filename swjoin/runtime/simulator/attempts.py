"""Attempts of a simulated run, and roles that freeze.

What: `Attempt`: the hosts of all roles from a start, or a recovery, to the next; `SimulatedHost`; `Freezes`: which roles stop,
when and for how long; `Watch`: the failure detector of real ranks, in virtual time.
Why: a rank that is stopped is excluded from the run, and may wake up later: what it does then must not reach its successor.
Stays out: virtual time and recovery (`runtime.simulator.simulator`); the tags of MPI messages, sockets and processes
(`runtime.mpi`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from swjoin.checkpoint.checkpointers import GatewayCheckpointer, SlaveCheckpointer
from swjoin.cluster.ranks import ROOT
from swjoin.cluster.role import MASTER, Role, RoleId
from swjoin.runtime.host import Clock, Host
from swjoin.runtime.mpi.heartbeats import FailureDetector
from swjoin.runtime.simulator.blocking_sends import BlockingSends
from swjoin.runtime.simulator.storage import BatchSource

NEVER_US = 1 << 60
_ROUNDS = 10  # of heartbeats in a timeout
_STEPS_AFTER = 1_000  # of an excluded role that wakes up; a real one ends itself at the first heartbeat


class Freeze(NamedTuple):
    """One role stops at this step. pick: which one, from 0 to 1. duration_us: None: for good."""

    step: int
    pick: float
    duration_us: int | None


class Freezes(NamedTuple):
    """Of one run. timeout_us: a role without a sign of life for longer counts as dead; a multiple of 10, as it has 10 rounds of
    heartbeats."""

    timeout_us: int
    all: tuple[Freeze, ...]

    @property
    def exclude(self) -> bool:
        """Whether some of them may be longer than the timeout."""
        return any(freeze.duration_us is None or freeze.duration_us > self.timeout_us for freeze in self.all)


NO_FREEZES = Freezes(0, ())


class Step(NamedTuple):
    """What is to happen at a time. host: does it, unless it is frozen. message: it is the arrival of a message."""

    time_us: int
    sequence: int
    host: SimulatedHost
    name: str
    action: Callable[[], None]
    message: bool


class SimulatedHost(Host):
    """A host in the simulator, with what belongs to the process of its role alone.

    working: a piece of the slave's work is in the queue. frozen_us, awake_us: when it froze, and when it wakes up. excluded: it
    counted as dead, and belongs to an earlier attempt. steps_left: of an excluded one.
    """

    def __init__(self, name: RoleId, role: Role, clock: Clock, attempt: Attempt) -> None:
        super().__init__(name)
        self.role, self.clock, self.attempt = role, clock, attempt
        self.working = self.excluded = False
        self.checkpointer: SlaveCheckpointer | GatewayCheckpointer | None = None
        self.sources: tuple[BatchSource, ...] = ()
        self.frozen_us = self.awake_us = 0
        self.steps_left = _STEPS_AFTER


@dataclass(eq=False)
class Attempt:
    """hosts: of all roles. free_us: when the last message between two roles arrives; a later one comes after it. blocking:
    None: no send waits. watch: while some role is frozen."""

    hosts: dict[RoleId, SimulatedHost] = field(default_factory=dict)
    free_us: dict[tuple[RoleId, RoleId], int] = field(default_factory=dict)
    blocking: BlockingSends | None = None
    watch: Watch | None = None

    def host_on(self, rank: int) -> SimulatedHost:
        """One of the hosts of a rank, where sends block."""
        assert self.blocking is not None, "no send blocks"
        return next(host for host in self.hosts.values() if self.blocking.ranks.rank_of(host.name) == rank)

    def close_logs(self) -> None:
        """Of all processes that take no further part."""
        for host in self.hosts.values():
            if host.checkpointer is not None and not host.excluded:
                host.checkpointer.close()

    def freeze(self, freeze: Freeze, candidates: Iterable[SimulatedHost], now_us: int) -> list[SimulatedHost]:
        """Stop one of these roles, of those that are awake; where sends block, all roles of its rank, but no role of the
        master's rank. Returns who has stopped."""
        ranks = None if self.blocking is None else self.blocking.ranks
        awake = [host for host in candidates if host.name != MASTER and host.awake_us <= now_us]
        if ranks is not None:
            awake = [host for host in awake if ranks.rank_of(host.name) != ROOT]
        if not awake:
            return []
        victims = [awake[int(freeze.pick * len(awake))]]
        if ranks is not None:
            victims = [host for host in awake if ranks.rank_of(host.name) == ranks.rank_of(victims[0].name)]
        for host in victims:
            host.frozen_us = now_us
            host.awake_us = NEVER_US if freeze.duration_us is None else now_us + freeze.duration_us
        return victims


class Watch:
    """Finds roles that count as dead, in rounds of heartbeats, which arrive at once from every role that is awake. The detector
    gets microseconds in place of seconds."""

    def __init__(self, timeout_us: int, hosts: Iterable[SimulatedHost], now_us: int) -> None:
        """All these are alive now."""
        self._timeout_us = timeout_us
        self._detector = FailureDetector(timeout_us)
        self._hosts = {host.name: host for host in hosts}
        self._detector.observe(now_us)
        self.heard(self._hosts.values(), now_us)

    @property
    def interval_us(self) -> int:
        return max(1, self._timeout_us // _ROUNDS)

    def heard(self, hosts: Iterable[SimulatedHost], now_us: int) -> None:
        """Heartbeats of these roles."""
        for host in hosts:
            self._detector.heard(host.name, now_us, now_us)

    def round(self, now_us: int) -> list[SimulatedHost]:
        """The roles that count as dead now."""
        self._detector.observe(now_us)
        self.heard((host for host in self._hosts.values() if host.awake_us <= now_us), now_us)
        dead = [self._hosts[RoleId(name)] for name in self._detector.suspects(list(self._hosts), now_us)]
        for host in dead:
            silent_us = now_us - host.frozen_us if host.awake_us > now_us else 0
            assert silent_us > self._timeout_us, f"role {host.name} counts as dead after {silent_us} us of {self._timeout_us}"
        return dead

    def ends(self, now_us: int) -> bool:
        """Whether all are awake."""
        return all(host.awake_us <= now_us for host in self._hosts.values())
