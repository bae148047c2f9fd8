"""Which rank plays which roles.

What: `RankMap`, made of the number of ranks, of gateways and of sinks.
Why: launcher, ranks, `plan` and `explain` derive the same numbers, so that nothing has to be agreed on; ranks that are left
after a death get the roles of the others in the same way.
Stays out: starting ranks and their roles (`runtime.mpi`), which slave plays which instance of a plan (`cluster.instances`).

Rank 0 plays master and first gateway, rank 1 the first sink, rank 2 and those after it an instance of every stage. Further
gateways, and then further sinks, get ranks of their own at the end while at least two ranks with instances are left; the others
share ranks with instances. So three ranks fit any number of gateways and sinks.
"""

from __future__ import annotations

from dataclasses import dataclass

from swjoin.cluster.role import RoleId, gateway_of, is_gateway, is_sink, is_slave, sink_of, slave_of
from swjoin.config.run import RunConfig

ROOT, COLLECTOR_RANK, FIRST_SLAVE = 0, 1, 2  # ranks: master and first gateway, first sink, first instance
LEAST_RANKS = 3
_LEAST_INSTANCES = 2  # ranks with instances that are left when another role gets a rank of its own


@dataclass(frozen=True)
class RankMap:
    """size: ranks of the run. sinks, gateways: their numbers. places: of a plan, by slave, the number of its rank among those
    with instances; none: slave s is on the rank with the number s modulo theirs."""

    size: int
    sinks: int = 1
    gateways: int = 1
    places: tuple[int, ...] = ()

    @staticmethod
    def of(config: RunConfig, size: int) -> RankMap:
        return RankMap(size, config.sink_count, config.gateway_count)

    @staticmethod
    def of_width(width: int, sinks: int, gateways: int = 1) -> RankMap:
        """The smallest one with so many ranks with instances."""
        size = FIRST_SLAVE + width
        while RankMap(size, sinks, gateways).slave_ranks < width:
            size += 1
        return RankMap(size, sinks, gateways)

    @property
    def _own_gateways(self) -> int:
        """Gateways with a rank of their own, besides the first one."""
        return min(self.gateways - 1, max(0, self.size - FIRST_SLAVE - _LEAST_INSTANCES))

    @property
    def _own_sinks(self) -> int:
        """Sinks with a rank of their own, besides the first one."""
        return min(self.sinks - 1, max(0, self.size - FIRST_SLAVE - _LEAST_INSTANCES - self._own_gateways))

    @property
    def slave_ranks(self) -> int:
        """Ranks with instances; with the join of two streams, the number of slaves."""
        return self.size - FIRST_SLAVE - self._own_gateways - self._own_sinks

    def rank_of(self, role: RoleId) -> int:
        if is_slave(role):
            slave = slave_of(role)
            return FIRST_SLAVE + (self.places[slave] if self.places else slave % self.slave_ranks)
        if is_sink(role):
            return self._rank_of_sink(sink_of(role))
        return self._rank_of_gateway(gateway_of(role)) if is_gateway(role) else ROOT

    def _rank_of_sink(self, sink: int) -> int:
        if sink == 0:
            return COLLECTOR_RANK
        if sink <= self._own_sinks:
            return self.size - self._own_sinks + sink - 1
        return FIRST_SLAVE + (sink - self._own_sinks - 1) % self.slave_ranks

    def _rank_of_gateway(self, gateway: int) -> int:
        """Those without a rank of their own begin at the last rank with instances, as sinks begin at the first one."""
        first = FIRST_SLAVE + self.slave_ranks
        if gateway == 0:
            return ROOT
        if gateway <= self._own_gateways:
            return first + gateway - 1
        return first - 1 - (gateway - self._own_gateways - 1) % self.slave_ranks

    def sinks_of(self, rank: int) -> list[int]:
        return [sink for sink in range(self.sinks) if self._rank_of_sink(sink) == rank]

    def gateways_of(self, rank: int) -> list[int]:
        return [gateway for gateway in range(self.gateways) if self._rank_of_gateway(gateway) == rank]

    @property
    def writers(self) -> list[int]:
        """Ranks but the first with files that are to be completed at the end: of results, or of late rows."""
        return [rank for rank in range(1, self.size) if self.sinks_of(rank) or self.gateways_of(rank)]

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
        names += [f"gateway {gateway}" for gateway in self.gateways_of(rank)]
        return ", ".join([*names, *("collector" if sink == 0 else f"sink {sink}" for sink in self.sinks_of(rank))])

    @property
    def names(self) -> list[str]:
        return [self.name_of(rank) for rank in range(self.size)]
