"""Which rank plays which roles.

What: `RankMap`, made of the number of ranks and of sinks.
Why: launcher, ranks, `plan` and `explain` derive the same numbers, so that nothing has to be agreed on; ranks that are left
after a death get the roles of the others in the same way.
Stays out: starting ranks and their roles (`runtime.mpi`), which slave plays which instance of a plan (`cluster.instances`).

Rank 0 plays master and gateway, rank 1 the first sink, rank 2 and those after it an instance of every stage. Further sinks get
ranks of their own at the end while at least two ranks with instances are left; the others share ranks with instances. So three
ranks fit any number of sinks.
"""

from __future__ import annotations

from dataclasses import dataclass

from swjoin.cluster.role import RoleId, is_sink, is_slave, sink_of, slave_of

ROOT, COLLECTOR_RANK, FIRST_SLAVE = 0, 1, 2  # ranks: master and gateway, first sink, first instance
LEAST_RANKS = 3
_LEAST_INSTANCES = 2  # ranks with instances that are left when a sink gets a rank of its own


@dataclass(frozen=True)
class RankMap:
    """size: ranks of the run. sinks: their number."""

    size: int
    sinks: int = 1

    @staticmethod
    def of_width(width: int, sinks: int) -> RankMap:
        """The smallest one with so many ranks with instances."""
        size = FIRST_SLAVE + width
        while RankMap(size, sinks).slave_ranks < width:
            size += 1
        return RankMap(size, sinks)

    @property
    def _own(self) -> int:
        """Sinks with a rank of their own, besides the first one."""
        return min(self.sinks - 1, max(0, self.size - FIRST_SLAVE - _LEAST_INSTANCES))

    @property
    def slave_ranks(self) -> int:
        """Ranks with instances; with the join of two streams, the number of slaves."""
        return self.size - FIRST_SLAVE - self._own

    def rank_of(self, role: RoleId) -> int:
        if is_slave(role):
            return FIRST_SLAVE + slave_of(role) % self.slave_ranks
        return self._rank_of_sink(sink_of(role)) if is_sink(role) else ROOT

    def _rank_of_sink(self, sink: int) -> int:
        if sink == 0:
            return COLLECTOR_RANK
        if sink <= self._own:
            return self.size - self._own + sink - 1
        return FIRST_SLAVE + (sink - self._own - 1) % self.slave_ranks

    def sinks_of(self, rank: int) -> list[int]:
        return [sink for sink in range(self.sinks) if self._rank_of_sink(sink) == rank]

    def slave_of(self, rank: int) -> int | None:
        """The number of a rank among those with instances; None for one without."""
        number = rank - FIRST_SLAVE
        return number if 0 <= number < self.slave_ranks else None

    def name_of(self, rank: int) -> str:
        """The roles of a rank, for people."""
        if rank == ROOT:
            return "master"
        slave = self.slave_of(rank)
        names = [] if slave is None else [f"slave {slave}"]
        return ", ".join([*names, *("collector" if sink == 0 else f"sink {sink}" for sink in self.sinks_of(rank))])

    @property
    def names(self) -> list[str]:
        return [self.name_of(rank) for rank in range(self.size)]
