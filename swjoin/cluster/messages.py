"""Messages between roles, besides the data messages of `core.data_messages`.

What: small frozen dataclasses, and `Message`, the union of all.
Why: a message is a value; `Send` and `Received` of `cluster.role` contain it under every transport.
Stays out: the data messages themselves, bytes on the wire (`cluster.wire`), effects and events (`cluster.role`).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swjoin.core.data_messages import Delivery, GroupLoads, MoveEnd, ResultChunk, StateChunk
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.routing.biclique import UnitTable
from swjoin.routing.hot_keys import HotKey

KeyLoad = tuple[int, int, int, int, int, tuple[tuple[int, int], ...]]  # see `EpochClosed.key_loads`
UnitLoad = tuple[int, int, int, tuple[int, ...]]  # see `EpochClosed.unit_loads`

# ---------------------------------------------------------------- between a gateway and the master


@dataclass(frozen=True)
class EpochWanted:
    """From a gateway to the master: it is ready to close its share of distribution epoch `epoch`.

    exhausted: none of its streams will yield another row. everything: this epoch can deliver all of its tuples. fed_bytes,
    parked_bytes: of every slave, delivered since the last such message, and kept back while its stream buffer is full.
    times_us: watermarks of its streams. idle: all of them are idle, or ended, and not all ended.
    """

    epoch: int
    exhausted: bool
    everything: bool
    fed_bytes: tuple[int, ...]
    parked_bytes: tuple[int, ...]
    times_us: tuple[int, ...] = ()
    idle: bool = False


@dataclass(frozen=True)
class EpochDue:
    """From the master to a gateway: another gateway wants this distribution epoch. In asap pace it closes its share at once."""

    epoch: int


@dataclass(frozen=True)
class EventNoted:
    """From one of several gateways to the master: an event for the run's log. values: the fields of a `RunEvent`."""

    values: tuple[Any, ...]


@dataclass(frozen=True)
class SplitWanted:
    """From a gateway to the master: it has no split of this stream, or its watermarks, times_us, have risen since it asked.
    finished: splits of this stream that it has read."""

    stream: int
    finished: int
    times_us: tuple[int, ...]


@dataclass(frozen=True)
class SplitDealt:
    """From the master to a gateway: it reads this split next (`core.splits.Split`), without its first `skip` rows.

    split: none where it has to wait: no row of its later splits has a time below `low_us`, or is before a row of time
    `before_us`. Or none is left: ended.
    """

    stream: int
    split: tuple[int, ...] = ()
    skip: int = 0
    before_us: int = BEGIN_OF_TIME_US
    low_us: int = BEGIN_OF_TIME_US
    ended: bool = False


@dataclass(frozen=True)
class EpochPlan:
    """From the master to all gateways: what holds in one distribution epoch. Their deliveries of this epoch follow it.

    served: slaves with a delivery, ascending. inactive: those of them that are inactive afterwards. everything: deliver all
    tuples. last: the last epoch of the run. generation: number of checkpoints before. checkpoint: one ends with this epoch.
    halt: the run stops with that checkpoint. moves: (move, partition-group, supplier, consumer) of each move that starts here.
    times_us: with several gateways that have not all read everything, up to where those with nothing but idle streams go: the
    least watermark of every stream at a gateway that is not idle; of a stream that is open at none of these the greatest of the
    others; if all are idle the greatest of all. hot_keys: the table of keys whose rows are spread from this epoch on, alone;
    empty: that of the last plan which has one. units: likewise the tables of units that are in use, of all stages.
    """

    epoch: int = -1
    served: tuple[int, ...] = ()
    inactive: tuple[int, ...] = ()
    everything: bool = False
    last: bool = False
    generation: int = 0
    checkpoint: bool = False
    halt: bool = False
    moves: tuple[tuple[int, int, int, int], ...] = ()
    times_us: tuple[int, ...] = ()
    hot_keys: tuple[tuple[HotKey, ...], ...] = ()
    units: tuple[tuple[UnitTable, ...], ...] = ()


@dataclass(frozen=True)
class EpochClosed:
    """From a gateway to the master: its share of this epoch is in deliveries.

    needed_us: no later checkpoint needs left and right tuples below these times. key_loads: where hot keys are spread, what it
    has sent over each edge to a join since it told of it last: stage, port, newest time so far, watermark, rows, and
    (key, rows) of the most frequent keys, from a sample. unit_loads: where the number of units follows their load, of each edge
    to such a join: stage, port, watermark, and the newest time in this epoch of each unit's rows, BEGIN_OF_TIME_US for none.
    """

    epoch: int
    needed_us: tuple[int, int]
    key_loads: tuple[KeyLoad, ...] = ()
    unit_loads: tuple[UnitLoad, ...] = ()


@dataclass(frozen=True)
class GroupMoved:
    """From the master to all gateways: supplier and consumer of this move have acknowledged it. state_bytes: of its tuples.
    waited_us: how long the consumer has waited for them."""

    move: int
    state_bytes: int
    waited_us: int = 0


@dataclass(frozen=True)
class PrefillJoined:
    """From a gateway to the master: every active slave has joined the share of the prefill that came from it."""


@dataclass(frozen=True)
class StopReading:
    """From the master to all gateways: the run is to stop with a checkpoint; read nothing more and deliver what was read."""


# ---------------------------------------------------------------- others


@dataclass(frozen=True)
class Report:
    """From a slave to a gateway: ready for its next delivery. occupancy_ratio: buffered bytes / stream buffer capacity."""

    occupancy_ratio: float


@dataclass(frozen=True)
class LoadReport:
    """From a slave to the master, with each `Report`, when partition-groups may move. loads: for policies that ask for them."""

    occupancy_ratio: float
    loads: GroupLoads | None = None


@dataclass(frozen=True)
class Granted:
    """From a receiver to one that sends to it: credit. until_epoch: it takes parts of epochs up to this one. consumed: parts
    of this sender that it has worked on since the start. Sinks grant chunks of results, of any epoch."""

    until_epoch: int
    consumed: int


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
    """A role's part of a checkpoint is durable. part: `master`, `gateway N`, `sink N` or `slave N`. content: ready for JSON.

    An event for that role, which sends it to the master.
    """

    generation: int
    part: str
    content: dict[str, Any]


@dataclass(frozen=True)
class CheckpointDurable:
    """From the master: the checkpoint that ends this generation is durable as a whole. stop: the run stops here.

    Sinks publish their results, gateways release the input before it. A slave receives it with `stop` alone.
    """

    generation: int
    stop: bool = False


Message = (
    Delivery
    | Report
    | LoadReport
    | Granted
    | ResultChunk
    | StateRequest
    | StateChunk
    | MoveEnd
    | MeasuringStarted
    | PartSaved
    | CheckpointDurable
    | EpochWanted
    | EpochDue
    | EventNoted
    | SplitWanted
    | SplitDealt
    | EpochPlan
    | EpochClosed
    | GroupMoved
    | PrefillJoined
    | StopReading
)
