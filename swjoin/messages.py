"""Events and commands of the three roles, and the two data messages between them.

What: small frozen dataclasses. Events (past tense) go into `handle(event, now_us)`, commands (imperative) come out.
Why: the same roles run under MPI, in one process and in the simulator; a runtime only performs commands and reports events.
Stays out: bytes on the wire (`runtime.wire`), decisions (`cluster`, `policy`), ranks (`runtime.mpi` alone knows them).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag
from typing import NewType

import numpy as np
from numpy.typing import NDArray

from swjoin.batch import I64, U64, Pairs, SourceBatch, TupleBatch

SlaveId = NewType("SlaveId", int)
GroupId = NewType("GroupId", int)
EpochIndex = NewType("EpochIndex", int)
QueryId = NewType("QueryId", int)

END_OF_TIME_US = 1 << 62  # the punctuation after the last tuple: nothing can come any more
BEGIN_OF_TIME_US = -(1 << 62)


class Route(IntFlag):
    """What a slave does with delivered tuples: keep them, match them, or both (hash partitioning uses BOTH)."""

    STORE = 1
    PROBE = 2
    BOTH = 3


# ---------------------------------------------------------------- data messages


@dataclass(frozen=True)
class Delivery:
    """Master -> slave, once per distribution epoch, also when empty: the tuples of the slave's partition-groups.

    groups: int64 (g,), ascending. left_counts, right_counts: int64 (g,): tuples of each group; `left` and `right` hold them
    group after group, each group in time order. left_time_us, right_time_us: punctuations, every later tuple of that stream
    has ts >= its punctuation. last: no delivery follows.
    """

    query: QueryId
    slave: SlaveId
    epoch: EpochIndex
    left_time_us: int
    right_time_us: int
    groups: I64
    left_counts: I64
    right_counts: I64
    left: TupleBatch
    right: TupleBatch
    last: bool = False
    left_route: Route = Route.BOTH
    right_route: Route = Route.BOTH

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes


@dataclass(frozen=True)
class GroupResults:
    """Count and digest of the pairs one partition-group produced in one distribution epoch (part of a ResultChunk)."""

    groups: I64  # (g,)
    counts: I64  # (g,)
    digests: U64  # (g,)


@dataclass(frozen=True)
class ResultChunk:
    """Slave -> collector: results of one distribution epoch, in chunks bounded by the result buffer.

    pairs: materialised pairs, or None with a count sink; they belong to `groups` in order, `pair_counts` each. final: the epoch
    is complete at this slave, the collector may commit it; only a final chunk carries `results`, `metrics` (float64, see
    `cluster.metrics.COLUMNS`) and `delay_histogram` (int64, see `state.histogram`). last: the slave's last chunk of the run.
    """

    query: QueryId
    slave: SlaveId
    epoch: EpochIndex
    final: bool
    last: bool
    pairs: Pairs | None = None
    results: GroupResults | None = None
    metrics: NDArray[np.float64] | None = None
    delay_histogram: I64 | None = None


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
class SlaveReported:
    """A slave is ready for its next delivery. occupancy_ratio: buffered bytes / stream buffer capacity."""

    slave: SlaveId
    occupancy_ratio: float


@dataclass(frozen=True)
class ClockAdvanced:
    """The run's clock moved (realtime pace: an epoch boundary may have passed)."""


@dataclass(frozen=True)
class ReadTuples:
    """Read the next batch of `stream`; answer with TuplesRead or StreamEnded."""

    stream: int


@dataclass(frozen=True)
class Deliver:
    """Send this delivery to its slave (which has reported and waits for it)."""

    delivery: Delivery


@dataclass(frozen=True)
class SetAside:
    """Write late rows of `stream` to the side output, with the reason (late policy `side`)."""

    stream: int
    batch: SourceBatch
    reason: str


@dataclass(frozen=True)
class FinishMaster:
    """Every slave has its last delivery; the master is done."""


# ---------------------------------------------------------------- slave


@dataclass(frozen=True)
class Delivered:
    """A delivery arrived."""

    delivery: Delivery


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
    """Hand pairs to the sink."""

    pairs: Pairs


@dataclass(frozen=True)
class CommitEpoch:
    """Every slave has completed this distribution epoch: its results are all with the sink."""

    epoch: EpochIndex


@dataclass(frozen=True)
class FinishCollector:
    """Every slave has sent its last chunk."""


MasterEvent = TuplesRead | StreamEnded | SlaveReported | ClockAdvanced
MasterCommand = ReadTuples | Deliver | SetAside | FinishMaster
SlaveEvent = Delivered | WorkDue | ExchangeDue | TimesMeasured
SlaveCommand = Report | SendResults | FinishSlave
CollectorEvent = ResultsReceived
CollectorCommand = WritePairs | CommitEpoch | FinishCollector
