"""Events for roles and what their effects send."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

from swjoin.cluster.messages import Report
from swjoin.cluster.role import Effect, Received, Send, slave_role
from swjoin.core.data_messages import Delivery

_T = TypeVar("_T")


def reported(slave: int, occupancy_ratio: float = 0.0) -> Received:
    """A slave's report, for the master."""
    return Received(slave_role(slave), Report(occupancy_ratio))


def sent(effects: Iterable[Effect], kind: type[_T]) -> list[_T]:
    """Messages of this type among the effects of a role."""
    return [effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)]


def deliveries(effects: Iterable[Effect]) -> list[Delivery]:
    return sent(effects, Delivery)
