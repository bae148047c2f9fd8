"""A gateway with its master, as one rank plays both: what they send each other does not show."""

from __future__ import annotations

from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.gateway.tuple_queue import Store
from swjoin.cluster.master.master import Master
from swjoin.cluster.messages import PartSaved, Report
from swjoin.cluster.role import (
    GATEWAY,
    MASTER,
    CheckpointCompleted,
    Effect,
    Event,
    Received,
    Role,
    RoleId,
    StopRequested,
)
from swjoin.config.run import RunConfig
from swjoin.runtime.host import settled


class FirstRank:
    """Master and gateway of one run. `start` and `handle` as a role's."""

    def __init__(self, config: RunConfig, slave_count: int, store: Store | None = None) -> None:
        self.master, self.gateway = Master(config, slave_count), Gateway(config, slave_count, (None, None), store=store)
        self._roles: dict[RoleId, Role] = {MASTER: self.master, GATEWAY: self.gateway}

    @property
    def finished(self) -> bool:
        return self.master.finished and self.gateway.finished

    def start(self, now_us: int = 0) -> list[Effect]:
        return settled(self._roles, GATEWAY, self.gateway.start(now_us), now_us)

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Give an event to the role that it is for."""
        message = event.message if isinstance(event, Received) else event
        if isinstance(event, Received):
            to = GATEWAY if isinstance(message, Report) else MASTER
        else:
            to = MASTER if isinstance(event, StopRequested | CheckpointCompleted | PartSaved) else GATEWAY
        return settled(self._roles, to, self._roles[to].handle(event, now_us), now_us)

    def validate(self) -> None:
        self.master.validate()
        self.gateway.validate()
        assert (self.master.controller.map.owner == self.gateway.buffers.router.map.owner).all()
