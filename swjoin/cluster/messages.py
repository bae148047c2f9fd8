"""Events and commands of the three roles.

What: small frozen dataclasses. Events (past tense) go into `Master.handle(event, now_us)`, commands (imperative) come out.
Why: the same roles run under MPI, in one process and in the simulator; a runtime only performs commands and reports events.
Stays out: what they carry (`core.data_messages`), bytes on the wire (`cluster.wire`), decisions (`cluster`, `policy`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from swjoin.core.batch import Pairs, SourceBatch, StoredBatch, TupleBatch
from swjoin.core.data_messages import Delivery, GroupLoads, MoveEnd, ResultChunk, RunEvent, StateChunk
from swjoin.core.ids import EpochIndex, SlaveId

# ---------------------------------------------------------------- checkpoints


@dataclass(frozen=True)
class Snapshot:
    """A role's state at a checkpoint: `plain`, ready for JSON, and tuples by name, which nobody changes any more."""

    plain: dict[str, Any]
    tuples: Mapping[str, Sequence[TupleBatch | StoredBatch]] = field(default_factory=dict)


@dataclass(frozen=True)
class PartSaved:
    """A role's part of a checkpoint is durable. part: `master`, `collector` or `slave N`. content: ready for JSON."""

    generation: int
    part: str
    content: dict[str, Any]


@dataclass(frozen=True)
class CheckpointCompleted:
    """The checkpoint that ends this generation is durable as a whole. nbytes: of its files, those of earlier ones included."""

    generation: int
    nbytes: int = 0


@dataclass(frozen=True)
class StopRequested:
    """Somebody wants the run to stop with a checkpoint, so that it can be resumed."""


@dataclass(frozen=True)
class SavePart:
    """Make this durable as a role's part of the checkpoint that ends `generation`; answer the master with PartSaved.

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
class PublishResults:
    """Tell the collector that results up to this generation's end may be seen. stop: and that the run stops here."""

    generation: int
    stop: bool = False


# ---------------------------------------------------------------- master


@dataclass(frozen=True)
class TuplesRead:
    """A source yielded rows of `stream` (answers ReadTuples)."""

    stream: int
    batch: SourceBatch


@dataclass(frozen=True)
class StreamEnded:
    """A source has no more rows (answers ReadTuples)."""

    stream: int


@dataclass(frozen=True)
class StreamIdle:
    """A source has had nothing to read for the idle timeout (answers ReadTuples)."""

    stream: int


@dataclass(frozen=True)
class StreamResumed:
    """The source of an idle stream has something to read again."""

    stream: int


@dataclass(frozen=True)
class SlaveReported:
    """A slave is ready for its next delivery. occupancy_ratio: buffered bytes / stream buffer capacity."""

    slave: SlaveId
    occupancy_ratio: float
    loads: GroupLoads | None = None


@dataclass(frozen=True)
class MoveEnded:
    """A supplier or a consumer acknowledged a state movement."""

    end: MoveEnd


@dataclass(frozen=True)
class ClockAdvanced:
    """The run's clock moved (realtime pace: an epoch boundary may have passed)."""


@dataclass(frozen=True)
class ReadTuples:
    """Read the next batch of `stream`; answer with TuplesRead or StreamEnded.

    instead: of live streams, what may be read as well when that one has nothing.
    """

    stream: int
    instead: int | None = None


@dataclass(frozen=True)
class Deliver:
    """Send this delivery to its slave (which has reported and waits for it)."""

    delivery: Delivery


@dataclass(frozen=True)
class SetAside:
    """Write rows of `stream` that are left out to the side output, with the reason (late policy `side`; shed tuples always)."""

    stream: int
    batch: SourceBatch
    reason: str


@dataclass(frozen=True)
class Log:
    """Keep this event in the run's log."""

    event: RunEvent


@dataclass(frozen=True)
class BeginMeasuring:
    """All history is joined: tell every slave (`MeasuringBegan`), and let the run's clock start at `clock_us`.

    The next event must come with a time of the new clock.
    """

    clock_us: int


@dataclass(frozen=True)
class FinishMaster:
    """Every slave has its last delivery; the master is done."""


# ---------------------------------------------------------------- slave


@dataclass(frozen=True)
class Delivered:
    """A delivery arrived."""

    delivery: Delivery


@dataclass(frozen=True)
class MeasuringBegan:
    """All slaves have joined all history; from now on the clock counts."""


@dataclass(frozen=True)
class StateWanted:
    """The consumer of a move has room for one more chunk."""

    move: int


@dataclass(frozen=True)
class StateReceived:
    """A chunk of a partition-group arrived from its supplier."""

    chunk: StateChunk


@dataclass(frozen=True)
class WorkDue:
    """Do one bounded piece of join work from the stream buffer."""


@dataclass(frozen=True)
class ExchangeDue:
    """The slave's slot came (realtime pace): report now, even when the stream buffer still holds tuples."""


@dataclass(frozen=True)
class TimesMeasured:
    """What the runtime measured since the last such event, in microseconds: CPU, communication, idle, join work."""

    cpu_us: int = 0
    communication_us: int = 0
    idle_us: int = 0
    process_us: int = 0


@dataclass(frozen=True)
class Report:
    """Tell the master that the slave is ready for its next delivery."""

    occupancy_ratio: float
    loads: GroupLoads | None = None


@dataclass(frozen=True)
class WantState:
    """Tell the supplier of a move that there is room for one more chunk."""

    supplier: SlaveId
    move: int


@dataclass(frozen=True)
class SendState:
    """Send a chunk to its consumer, which has asked for it."""

    chunk: StateChunk


@dataclass(frozen=True)
class AcknowledgeMove:
    """Tell the master that this side of a state movement is done."""

    end: MoveEnd


@dataclass(frozen=True)
class SendResults:
    """Send a chunk to the collector."""

    chunk: ResultChunk


@dataclass(frozen=True)
class FinishSlave:
    """The last delivery is processed and its results are sent."""


# ---------------------------------------------------------------- collector


@dataclass(frozen=True)
class ResultsReceived:
    """A chunk arrived from a slave."""

    chunk: ResultChunk


@dataclass(frozen=True)
class WritePairs:
    """Hand pairs to the sink. generation: as in the delivery that they come from."""

    pairs: Pairs
    generation: int = 0


@dataclass(frozen=True)
class CommitEpoch:
    """Every slave has completed this distribution epoch: its results are all with the sink."""

    epoch: EpochIndex


@dataclass(frozen=True)
class FinishCollector:
    """Every slave has sent its last chunk."""


MasterEvent = (
    TuplesRead
    | StreamEnded
    | StreamIdle
    | StreamResumed
    | SlaveReported
    | MoveEnded
    | ClockAdvanced
    | PartSaved
    | CheckpointCompleted
    | StopRequested
)
MasterCommand = (
    ReadTuples | Deliver | SetAside | Log | BeginMeasuring | SavePart | CompleteCheckpoint | PublishResults | FinishMaster
)
SlaveEvent = Delivered | MeasuringBegan | StateWanted | StateReceived | WorkDue | ExchangeDue | TimesMeasured
SlaveCommand = Report | SendResults | WantState | SendState | AcknowledgeMove | SavePart | FinishSlave
CollectorEvent = ResultsReceived
CollectorCommand = WritePairs | CommitEpoch | SavePart | FinishCollector
