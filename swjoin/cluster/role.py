"""The interface of a role: it handles events and returns effects, without I/O and without a clock.

What: the `Role` protocol, `RoleId`, the events that roles handle and the effects that they return.
Why: a runtime does not depend on single roles: `runtime.host` performs these effects and delivers these events for all roles.
An effect without a performer is an error in every runtime, because a dropped effect leads to a wrong result.
Stays out: messages between roles (`cluster.messages`), performing (`runtime`), decisions (`cluster.master`, `cluster.gateway`,
`cluster.slave`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NewType, Protocol

from swjoin.cluster.messages import Message, PartSaved
from swjoin.core.batch import Pairs, ResultRows, SourceBatch, StoredBatch, TupleBatch
from swjoin.core.data_messages import RunEvent
from swjoin.core.ids import EpochIndex, SlaveId
from swjoin.core.splits import Split

RoleId = NewType("RoleId", int)
_KIND = 1 << 24  # the numbers of one kind of role
MASTER, _GATEWAY, _SINK, _SLAVE = RoleId(0), _KIND, 2 * _KIND, 3 * _KIND


def gateway_role(gateway: int) -> RoleId:
    """The role of the gateway of this number."""
    return RoleId(_GATEWAY + gateway)


def gateway_of(role: RoleId) -> int:
    """The number of the gateway that plays this role."""
    return role - _GATEWAY


def is_gateway(role: RoleId) -> bool:
    return _GATEWAY <= role < _SINK


GATEWAY = gateway_role(0)  # the first gateway, on the rank of the master


def sink_role(sink: int) -> RoleId:
    """The role of the sink of this number."""
    return RoleId(_SINK + sink)


def sink_of(role: RoleId) -> int:
    """The number of the sink that plays this role."""
    return role - _SINK


def is_sink(role: RoleId) -> bool:
    return _SINK <= role < _SLAVE


COLLECTOR = sink_role(0)  # the first sink, which also takes metrics and production delays


def slave_role(slave: int) -> RoleId:
    """The role of the slave of this number."""
    return RoleId(_SLAVE + slave)


def slave_of(role: RoleId) -> SlaveId:
    """The number of the slave that plays this role."""
    return SlaveId(role - _SLAVE)


def is_slave(role: RoleId) -> bool:
    return role >= _SLAVE


# ---------------------------------------------------------------- events


@dataclass(frozen=True)
class Received:
    """A message arrived. frame: its bytes, if it was sent as bytes."""

    sender: RoleId
    message: Message
    frame: Any = field(default=None, compare=False, repr=False)


@dataclass(frozen=True)
class BatchRead:
    """A source yielded rows of `stream` (answers Read)."""

    stream: int
    batch: SourceBatch


@dataclass(frozen=True)
class SourceEnded:
    """A source, or with several gateways the open split, has no more rows (answers Read)."""

    stream: int


@dataclass(frozen=True)
class SplitOpened:
    """A split of `stream` can be read (answers OpenSplit). before_us: greatest time of the input's rows before its next one."""

    stream: int
    before_us: int


@dataclass(frozen=True)
class SourceIdle:
    """A source has had nothing to read for the idle timeout (answers Read)."""

    stream: int


@dataclass(frozen=True)
class SourceResumed:
    """The source of an idle stream has something to read again."""

    stream: int


@dataclass(frozen=True)
class TimerFired:
    """The time of a timer has come (answers SetTimer)."""

    timer: str


@dataclass(frozen=True)
class WorkDue:
    """Do one bounded piece of work; a slave with work receives this when no other event is due."""


@dataclass(frozen=True)
class TimesMeasured:
    """What the runtime measured since the last such event, in microseconds: CPU, communication, idle, join work, and its CPU
    time."""

    cpu_us: int = 0
    communication_us: int = 0
    idle_us: int = 0
    process_us: int = 0
    join_cpu_us: int = 0


@dataclass(frozen=True)
class CheckpointCompleted:
    """The checkpoint that ends this generation is durable as a whole. nbytes: of its files, those of earlier ones included."""

    generation: int
    nbytes: int = 0


@dataclass(frozen=True)
class StopRequested:
    """Stop the run with a checkpoint, so that it can be resumed."""


Event = (
    Received
    | BatchRead
    | SourceEnded
    | SplitOpened
    | SourceIdle
    | SourceResumed
    | TimerFired
    | WorkDue
    | TimesMeasured
    | PartSaved
    | CheckpointCompleted
    | StopRequested
)


# ---------------------------------------------------------------- effects


@dataclass(frozen=True)
class Send:
    """Send a message to another role. Messages of one role to another one arrive in the order of their effects."""

    to: RoleId
    message: Message


@dataclass(frozen=True)
class SetTimer:
    """Deliver `TimerFired(timer)` once the run's clock shows `at_us`. It replaces a timer of the same name."""

    timer: str
    at_us: int


@dataclass(frozen=True)
class RestartClock:
    """The run's clock shows `clock_us` now; the next event comes with a time of the new clock.

    The master's effect precedes the messages that announce it; where roles have clocks of their own, each restarts its own.
    """

    clock_us: int


@dataclass(frozen=True)
class Read:
    """Read the next batch of `stream`; answer with BatchRead, SourceEnded or SourceIdle.

    instead: of live streams, those to read when `stream` has nothing, the first that has.
    """

    stream: int
    instead: tuple[int, ...] = ()


@dataclass(frozen=True)
class OpenSplit:
    """Let the source of `stream` read this split next, without its first `skip` rows; answer with SplitOpened."""

    stream: int
    split: Split
    skip: int = 0


@dataclass(frozen=True)
class SetAside:
    """Write rows of `stream` that are left out to the side output, with the reason (late policy `side`; shed tuples always)."""

    stream: int
    batch: SourceBatch
    reason: str


@dataclass(frozen=True)
class Write:
    """Write pairs, or rows of a plan, to the sink. generation: as in the delivery that they come from. query: its
    number."""

    pairs: Pairs | ResultRows
    generation: int = 0
    query: int = 0


@dataclass(frozen=True)
class CommitEpoch:
    """Every slave has completed this distribution epoch: its results are all with the sink."""

    epoch: EpochIndex


@dataclass(frozen=True)
class Publish:
    """Make results up to the end of this generation visible."""

    generation: int


@dataclass(frozen=True)
class Snapshot:
    """A role's state at a checkpoint: `plain`, ready for JSON, and tuples by name, which do not change any more."""

    plain: dict[str, Any]
    tuples: Mapping[str, Sequence[TupleBatch | StoredBatch]] = field(default_factory=dict)


@dataclass(frozen=True)
class SavePart:
    """Make this durable as a role's part of the checkpoint that ends `generation`; answer with PartSaved.

    A slave's part is also the log of its deliveries, a collector's the result files.
    """

    generation: int
    snapshot: Snapshot


@dataclass(frozen=True)
class CompleteCheckpoint:
    """All parts are durable: bind them together; answer with CheckpointCompleted.

    alive_us: left and right tuples below these times match nothing to come.
    """

    generation: int
    epoch: EpochIndex
    clock_us: int
    alive_us: tuple[int, int]
    parts: dict[str, dict[str, Any]]


@dataclass(frozen=True)
class ReleaseInput:
    """A checkpoint is complete: rows of live sources before the oldest one that is kept are not read again."""


@dataclass(frozen=True)
class Log:
    """Keep this event in the run's log."""

    event: RunEvent


@dataclass(frozen=True)
class Finish:
    """The role has ended; it is `finished`."""


Effect = (
    Send
    | SetTimer
    | RestartClock
    | Read
    | OpenSplit
    | SetAside
    | Write
    | CommitEpoch
    | Publish
    | SavePart
    | CompleteCheckpoint
    | ReleaseInput
    | Log
    | Finish
)


class Role(Protocol):
    """Master, gateway, slave or collector: `start` first, then `handle` every event; `finished` after `Finish`."""

    @property
    def finished(self) -> bool: ...

    def start(self, now_us: int = 0) -> list[Effect]:
        """The first effects, to be performed in order. now_us: on the run's clock."""
        ...

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event; the effects are to be performed in order."""
        ...

    def validate(self) -> None:
        """AssertionError when an invariant is broken."""
        ...

    def summary(self) -> dict[str, Any]:
        """The role's share of run.json."""
        ...


class UnknownEffectError(TypeError):
    """A role returned an effect that has no performer in its runtime."""

    def __init__(self, effect: object) -> None:
        super().__init__(f"no performer for the effect {type(effect).__name__}")


class UnexpectedEventError(TypeError):
    """A runtime delivers an event, or a message, that is not for this role."""

    def __init__(self, role: str, event: object) -> None:
        kind = type(event.message if isinstance(event, Received) else event).__name__
        super().__init__(f"{role}: {kind} is not for this role")
