"""The gateway of a run of a plan: tuples of any number of sources, and their way to the stages that read them.

What: `Feeds`, the edges from the sources.
Why: a plan has any number of sources, and each stage has keys and columns of its own.
Stays out: rows that are read (`cluster.gateway.intake`), epochs (`cluster.gateway.gateway`), the exchange (`cluster.exchange`).
"""

from __future__ import annotations

from collections.abc import Sequence

from swjoin.cluster.exchange import EpochHeader, Outlet
from swjoin.cluster.gateway.ingress import Ingress
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import Granted
from swjoin.cluster.role import Effect, RoleId
from swjoin.core.batch import TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.plan.stages import Stage


class Feeds:
    """The edges from the sources of a plan to its stages. edges: ids of those of each source."""

    def __init__(self, instances: Instances, gateway: int = 0) -> None:
        """gateway: its number."""
        sources = instances.stages.sources
        self.edges = [[edge.id for edge in instances.edges_from(source)] for source in sources]
        self.outlet = Outlet(instances, [edge for source in sources for edge in instances.edges_from(source)], gateway)
        self._unkeyed = {e.id for e in instances.stages.edges if isinstance(e.receiver, Stage) and e.receiver.gathers}
        self.instances = instances
        self._newest_us = BEGIN_OF_TIME_US  # of rows that were delivered
        self._watermarks_us = dict.fromkeys(self.outlet.edges, BEGIN_OF_TIME_US)  # sent last

    def columns_of(self, source: int) -> tuple[str, ...]:
        """Names of the columns that are read from a source."""
        return self.instances.columns.read[self.instances.stages.sources[source].name]

    @property
    def newest_us(self) -> int:
        """The greatest time of the rows and of the watermarks that were delivered, but for that of a source's end."""
        watermarks_us = (time_us for time_us in self._watermarks_us.values() if time_us < END_OF_TIME_US)
        return max([self._newest_us, *watermarks_us])

    def restore(self, newest_us: int) -> None:
        self._newest_us = newest_us

    def ingress(self) -> Ingress:
        """Intakes and buffers of all sources."""
        config = self.instances.config
        names = [source.name for source in self.instances.stages.sources]
        streams = tuple(StreamIntake(i, config.time, live=config.live, name=name) for i, name in enumerate(names))
        return Ingress(streams, lambda router: MiniBuffers((None,) * len(names), router))

    def deliver(
        self, batches: Sequence[Sequence[TupleBatch]], watermarks_us: Sequence[int], header: EpochHeader
    ) -> list[Effect]:
        """End an epoch with these tuples of every source, in parts: where no key divides them they go as they lie.
        watermarks_us: by source; an epoch that full buffers have ended sends those of rows that were read, which the ends of
        later epochs may be below."""
        for edges, parts, watermark_us in zip(self.edges, batches, watermarks_us, strict=True):
            self._newest_us = max([self._newest_us, *(int(part.ts.max(initial=BEGIN_OF_TIME_US)) for part in parts)])
            unkeyed = tuple(edge for edge in edges if edge in self._unkeyed)
            keyed = tuple(edge for edge in edges if edge not in self._unkeyed)
            for batch in parts if unkeyed else ():
                self.outlet.add(unkeyed, batch, header)
            if keyed and parts:
                self.outlet.add(keyed, TupleBatch.concat(parts), header)
            for edge in edges:
                self._watermarks_us[edge] = max(self._watermarks_us[edge], watermark_us)
        self.outlet.close(header, self._watermarks_us)
        return self.outlet.serve()

    def granted(self, receiver: RoleId, credit: Granted) -> list[Effect]:
        self.outlet.granted(receiver, credit)
        return self.outlet.serve()
