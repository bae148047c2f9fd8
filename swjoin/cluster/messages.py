"""Messages between roles, besides the data messages of `core.data_messages`.

What: small frozen dataclasses, and `Message`, the union of all.
Why: a message is a value; `Send` and `Received` of `cluster.role` contain it under every transport.
Stays out: the data messages themselves, bytes on the wire (`cluster.wire`), effects and events (`cluster.role`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swjoin.core.data_messages import Delivery, GroupLoads, MoveEnd, ResultChunk, StateChunk


@dataclass(frozen=True)
class Report:
    """From a slave to the master: ready for its next delivery. occupancy_ratio: buffered bytes / stream buffer capacity."""

    occupancy_ratio: float
    loads: GroupLoads | None = None


@dataclass(frozen=True)
class StateRequest:
    """From the consumer of a move to its supplier: there is room for one more chunk."""

    move: int


@dataclass(frozen=True)
class MeasuringStarted:
    """From the master to all others: the prefill is joined, and the run's clock starts at `clock_us`."""

    clock_us: int


@dataclass(frozen=True)
class PartSaved:
    """A role's part of a checkpoint is durable. part: `master`, `collector` or `slave N`. content: ready for JSON.

    An event for that role, which sends it to the master.
    """

    generation: int
    part: str
    content: dict[str, Any]


@dataclass(frozen=True)
class PublishResults:
    """From the master to the collector: publish the results up to the end of this generation. stop: the run stops here.

    A slave receives it with `stop` alone.
    """

    generation: int
    stop: bool = False


Message = Delivery | Report | ResultChunk | StateRequest | StateChunk | MoveEnd | MeasuringStarted | PartSaved | PublishResults
