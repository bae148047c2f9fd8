"""Data messages between roles: deliveries, result chunks, state of moving partition-groups, reports of slaves.

What: small frozen dataclasses over columnar batches.
Why: the wire, the delivery log and the roles share one definition.
Stays out: identifiers (`core.ids`), other messages (`cluster.messages`), bytes (`cluster.wire`), decisions (`cluster`,
`policy`), ranks (`runtime.mpi.main`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntFlag

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, U8, U64, Pairs, ResultRows, TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId


class Route(IntFlag):
    """A slave's use of delivered tuples: store, probe, or both (hash partitioning uses BOTH)."""

    STORE = 1
    PROBE = 2
    BOTH = 3


def no_moves() -> I64:
    """An empty list of moves: int64 (0, 3)."""
    return np.empty((0, 3), np.int64)


TRAFFIC_COLUMNS = ("edge", "source", "target", "tuples", "bytes")  # partition-groups of sender and receiver; -1: not known


def nothing_sent() -> I64:
    """Empty counts of traffic: int64 (0, 5)."""
    return np.empty((0, len(TRAFFIC_COLUMNS)), np.int64)


_NOTHING = TupleBatch.empty()


# ---------------------------------------------------------------- data messages


@dataclass(frozen=True)
class Delivery:
    """Tuples for the partition-groups of a slave, from the gateway or from a slave of the stage before, once per distribution
    epoch, also when empty.

    Between the stages of a plan there is one per edge, sender and receiver, in parts of bounded size; its tuples are in one of
    the two streams, the receiver's port, and in any order of time. edge: of the plan; 0 for the join of two streams. final: no
    part of this epoch follows; watermarks hold after it, and moves_out and moves_in are those of all stages, one beside the
    other.

    groups: int64 (g,), ascending. left_counts, right_counts: int64 (g,), tuples of each group; `left` and `right` hold them
    group after group, each group in time order. left_time_us, right_time_us: watermarks; later tuples of the stream have ts >=
    watermark. last: no delivery follows. routes: of left and right tuples. served: number of slaves with a delivery of this
    distribution epoch. moves_out: int64 (m, 3), (move, partition-group, consumer); these groups leave with all tuples delivered
    so far, including this delivery. moves_in: int64 (m, 3), (move, partition-group, supplier). Moves are numbered in the order
    of decision. null_keys: left and right tuples with a null key. They never match; outer and anti joins emit them. They belong
    to no partition-group. inactive: the slave has no partition-groups from this delivery to its next one. generation: number of
    checkpoints before this distribution epoch. checkpoint: one ends with this distribution epoch, in which all slaves are
    served. needed_us: no later checkpoint needs left and right tuples below these times.
    """

    edge: int
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
    routes: tuple[Route, Route] = (Route.BOTH, Route.BOTH)
    served: int = 1
    moves_out: I64 = field(default_factory=no_moves)
    moves_in: I64 = field(default_factory=no_moves)
    inactive: bool = False
    generation: int = 0
    checkpoint: bool = False
    null_keys: tuple[TupleBatch, TupleBatch] = (_NOTHING, _NOTHING)
    needed_us: tuple[int, int] = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
    final: bool = True

    @property
    def nbytes(self) -> int:
        return self.left.nbytes + self.right.nbytes + sum(batch.nbytes for batch in self.null_keys)


@dataclass(frozen=True)
class Directory:
    """A partition-group's directory. depth: global depth. patterns, depths: int64 (minis,), the low hash bits and
    the local depth of each mini-partition-group."""

    depth: int
    patterns: I64
    depths: I64


@dataclass(frozen=True)
class StateChunk:
    """Supplier -> consumer: a part of a moving partition-group (paper section IV-C), of bounded size.

    move: number of the move. index: 0, 1, ...; chunk 0 has the directory. times_us: watermarks up to which the windows have
    been joined. tuples: of one stream. pending False: window tuples, `counts` (int64) of each of the mini-partition-groups
    `minis` (int64, indexes into the directory's lists), in time order; their arrival times are unused. pending True: tuples
    that were delivered to the supplier and are not joined yet. flags: uint8 (tuples,), which window tuples have matched and
    which have been emitted (`state.arrays`); None where the join does not need them.
    """

    query: QueryId
    move: int
    group: GroupId
    supplier: SlaveId
    consumer: SlaveId
    index: int
    last: bool
    times_us: tuple[int, int]
    stream: int
    pending: bool
    minis: I64
    counts: I64
    tuples: TupleBatch
    directory: Directory | None = None
    flags: U8 | None = None

    @property
    def nbytes(self) -> int:
        """Bytes of the tuples in a message, without arrival times of window tuples."""
        return self.tuples.nbytes - (0 if self.pending else self.tuples.arrival_us.nbytes)


@dataclass(frozen=True)
class GroupLoads:
    """Cost of a slave's partition-groups since its last report.

    busy_us: time in the join module. groups: int64 (g,), ascending, all that the slave owns. cost_ns: int64 (g,), nominal cost
    of tuples, comparisons and pairs on a node of speed 1. state_bytes: int64 (g,), of window tuples. sent: what it has sent to
    later stages since it told of that last: int64 (n, 5), see `TRAFFIC_COLUMNS`; None where it does not tell now.
    """

    busy_us: int
    groups: I64
    cost_ns: I64
    state_bytes: I64
    sent: I64 | None = None


@dataclass(frozen=True)
class MoveEnd:
    """Slave -> master: this side of a state movement is done.

    installed: True from the consumer, False from the supplier, whose state has left. tuples, state_bytes: size of the moved
    state. begun_us, ended_us: on the run's clock.
    """

    move: int
    group: GroupId
    slave: SlaveId
    installed: bool
    tuples: int
    state_bytes: int
    started_us: int
    ended_us: int


@dataclass(frozen=True)
class GroupResults:
    """Count and digest of the pairs that each partition-group produced in one distribution epoch (part of a ResultChunk).

    A partition-group that has just arrived may occur twice: once for tuples that its supplier had not joined.
    """

    groups: I64  # (g,)
    counts: I64  # (g,)
    digests: U64  # (g,)


@dataclass(frozen=True)
class ResultChunk:
    """Slave -> sink: results of one distribution epoch, in chunks bounded by the result buffer.

    query: whose rows they are; of several queries at once, whose rows have ranks, the first one. pairs: materialised pairs, or
    the rows of a plan that ends with filters or projections; None with a count sink. final: the
    epoch is complete at this slave; only final chunks, and of several sinks only those to the first one, have `results`,
    `metrics` (float64, see `core.metric_columns.COLUMNS`) and `delay_histogram` (int64, see `state.delay_histogram`). last: the
    slave's last chunk of the run.
    sent: of a final chunk to one of several sinks, or of a plan that ends with filters, uint64 (queries, 3): the epoch's rows
    that went to this sink: query, count and digest. Of rows with ranks those of the query that is the first to have them.
    edges: of an instance of a plan's stage, int64 (n, 4): edge, rows and bytes that it has taken since it was started, and of
    these the bytes from instances on other ranks; with `metrics`. served: number of slaves with this distribution epoch.
    prefill: joined in the prefill, before measuring starts (`config.sections.MeasureConfig`); counted apart and not written.
    generation, checkpoint: as in the delivery.
    """

    query: QueryId
    slave: SlaveId
    epoch: EpochIndex
    final: bool
    last: bool
    pairs: Pairs | ResultRows | None = None
    results: GroupResults | None = None
    metrics: NDArray[np.float64] | None = None
    delay_histogram: I64 | None = None
    served: int = 1
    prefill: bool = False
    generation: int = 0
    checkpoint: bool = False
    edges: I64 | None = None
    sent: U64 | None = None


@dataclass(frozen=True)
class RunEvent:
    """A decision or a change in the run; a row of DIR/metrics/events.parquet.

    kind: see `cluster.master.controller`. slave, peer, group: its subjects, -1 where none. amount: defined by `kind`, in its
    unit. stage: of a plan; -1 where none.
    """

    time_us: int
    epoch: int
    kind: str
    slave: int = -1
    peer: int = -1
    group: int = -1
    tuples: int = 0
    state_bytes: int = 0
    duration_us: int = 0
    amount: float = 0.0
    text: str = ""
    stage: int = -1
