"""The join of one query in this process, as a cluster does it: the master's intake and mini-buffers, a slave's join module.

What: `Engine`: rows in (`read`), promises (`advance`, `end`), deliveries out (`deliver`), pairs (`joined`), and the ledger.
Why: the API must not be a second implementation: classifying, ordering, partitioning, joining, expiry and counting are the
cluster's own objects; only who calls whom is written here.
Stays out: Arrow (`api.tables`, `api.streaming`), threads, files.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

import numpy as np

from swjoin.cluster.gateway.arrival_sequence import ArrivalSequence, released
from swjoin.cluster.gateway.ingress import ingress_of
from swjoin.cluster.gateway.intake import StreamIntake, take_null_keys
from swjoin.cluster.gateway.mini_buffers import Order
from swjoin.config.run import RunConfig
from swjoin.core.batch import I64, LEFT, RIGHT, Pairs, RowLayout, SourceBatch
from swjoin.core.data_messages import Delivery, no_moves
from swjoin.core.errors import RunFailed
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.join_semantics import format_digest
from swjoin.core.ledger import Ledger, StreamCounts
from swjoin.core.sequence_numbers import wire_layouts
from swjoin.expressions.vm import Program
from swjoin.operators.configured_join import Join, join_of_run
from swjoin.operators.join_step import Work
from swjoin.operators.window_join import Matching
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition

_WHOLE = 1 << 40  # a step without a bound on tuples; the result buffer bounds it
LateRows = list[tuple[SourceBatch, str]]


@dataclasses.dataclass
class Joiner:
    """One join module, what it has joined, and what of that has been handed over. One thread at a time."""

    module: Join
    joined: I64 = dataclasses.field(default_factory=lambda: np.zeros(2, np.int64))
    produced: int = 0
    collected: int = 0
    digest: int = 0
    matches: int = 0

    def pairs_of(self, delivery: Delivery) -> Iterator[Pairs]:
        """Join a delivery, result buffer by result buffer; it is done when the iterator is.

        RunFailed when the windows are full, or when pairs were lost between join module and here.
        """
        work = self.module.open(delivery)
        count = digest = 0
        done = False
        while not done:
            step = self.module.step(work, 0, _WHOLE)
            done = step.done
            if step.pairs is not None and len(step.pairs):
                yield step.pairs
                count += len(step.pairs)  # the caller has used these when it asks for more
                digest += digest_pairs(step.pairs.left_id, step.pairs.right_id)
        self._account(work, count, digest)

    def count(self, delivery: Delivery) -> None:
        """Join a delivery of a module that does not materialise pairs."""
        work = self.module.open(delivery)
        while not self.module.step(work, 0, _WHOLE).done:
            pass
        self._account(work, work.pair_count, None)

    def _account(self, work: Work, count: int, digest: int | None) -> None:
        produced = work.pair_count
        expected = sum(int(np.add.reduce(part.digests, dtype=np.uint64)) for part in work.all_results)
        if digest is not None and (digest - expected) % 2**64:
            raise RunFailed(f"epoch {work.delivery.epoch}: {produced} pairs were produced, {count} others were collected")
        self.joined += (len(work.delivery.left), len(work.delivery.right))
        self.produced += produced
        self.matches += work.match_count(self.module.kind)
        self.collected += count
        self.digest = (self.digest + expected) % 2**64


class Engine:
    """Two streams, `slaves` join modules. Not thread-safe, but every `Joiner` may have a thread of its own.

    layouts: payload of each stream, or None. result_bytes: most bytes of pairs at once. where: the query's predicate, for rows
    of these layouts. ids_alone: of pairs, only ids come out.
    """

    def __init__(
        self,
        config: RunConfig,
        layouts: tuple[RowLayout | None, RowLayout | None] = (None, None),
        *,
        slaves: int = 1,
        result_bytes: int | None = None,
        where: Program | None = None,
        ids_alone: bool = False,
    ) -> None:
        wire = wire_layouts(layouts, count_windows=config.query.bounds.count_windows)
        self._limit_bytes = config.module.window_bytes
        ingress = ingress_of(config, layouts)
        self.streams = ingress.streams
        self.joiners = [
            Joiner(
                join_of_run(
                    config,
                    wire,
                    name="join" if slaves == 1 else f"slave {slave}",
                    matching=Matching(where),
                    ids_alone=ids_alone,
                    result_bytes=result_bytes or 0,
                )
            )
            for slave in range(slaves)
        ]
        router = HashPartition(GroupMap(round_robin(config.cluster.partition_count, slaves)), slaves)
        self._buffers = ingress.buffers(router)
        self._order = ArrivalSequence.of(config.query)
        self._epoch = 0
        self._promised = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)

    # ------------------------------------------------------------ the master's side

    def read(self, stream: int, batch: SourceBatch) -> LateRows:
        """Reads rows of a stream; returns the late ones under policy `side`.

        LateRowError under policy `error`; the join has failed then, so call `check_rows` first.
        """
        intake = self.streams[stream]
        aside = intake.read(batch, 0)
        intake.arrive_all()
        self._take(stream)
        waiting = sum(s.waiting_bytes for s in self.streams)
        if self._order is not None and waiting > self._limit_bytes:
            raise RunFailed(
                f"{waiting} bytes wait at one side for the other, by which their places are told; push that one, or promise "
                "with advance() what does not come"
            )
        return aside

    def advance(self, stream: int, time_us: int) -> None:
        """A promise: no row of this stream that comes from now on is below this time. What is will be late."""
        intake = self.streams[stream]
        intake.carry(time_us + intake.time.max_out_of_order_us)
        intake.become_active()
        self._take(stream)

    def end(self, stream: int) -> None:
        """No row of this stream will come."""
        self.streams[stream].end()
        self._take(stream)

    def _take(self, stream: int) -> None:
        for of, batch in released([self.streams[stream]], self._order, self.streams):
            self._buffers.append(of, batch)

    @property
    def times_us(self) -> tuple[int, int]:
        """What has been promised of each stream: every row to come has at least this time."""
        return self.streams[LEFT].watermark_us, self.streams[RIGHT].watermark_us

    @property
    def waiting_tuples(self) -> int:
        """Tuples in order that are in no delivery yet."""
        return self._buffers.tuples

    @property
    def due(self) -> bool:
        """Whether a delivery would have anything new for the join modules."""
        null_keys = any(intake.null_key_bytes for intake in self.streams)
        return null_keys or self._buffers.tuples > 0 or self.times_us != self._promised

    def deliver(self, below_us: int = END_OF_TIME_US) -> list[Delivery]:
        """The next distribution epoch, one delivery per join module: all tuples that wait and are below this time."""
        left, right = (min(below_us, time_us) for time_us in self.times_us)
        self._promised = promised = (left, right)
        slaves = len(self.joiners)
        last = min(left, right) >= END_OF_TIME_US
        if self._order is not None and not last:
            promised = self._order.passed(below_us)
        moves = (no_moves(), no_moves())
        orders = [Order(SlaveId(s), EpochIndex(self._epoch), slaves, 0, False) for s in range(slaves)]
        self._epoch += 1
        drained = self._buffers.drain((below_us, below_us), 0, range(slaves))
        return [
            part.delivery(
                order,
                promised,
                moves,
                last=last,
                inactive=False,
                null_keys=take_null_keys(self.streams, count_windows=self._order is not None),
            )
            for order, part in zip(orders, drained, strict=True)
        ]

    # ------------------------------------------------------------ the account

    @property
    def ledger(self) -> Ledger:
        """The account so far; it balances when everything has been delivered, joined and handed over."""
        joined = np.sum([j.joined for j in self.joiners], axis=0)
        left, right = (dataclasses.replace(intake.counts, joined=int(joined[intake.stream])) for intake in self.streams)
        return Ledger(left, right, sum(j.produced for j in self.joiners), sum(j.collected for j in self.joiners))

    @property
    def matches(self) -> int:
        """Pairs, of a semi or anti join left tuples that have a match."""
        return sum(j.matches for j in self.joiners)

    @property
    def count(self) -> int:
        return sum(j.collected for j in self.joiners)

    @property
    def digest(self) -> str:
        """Of the deliveries that have been joined completely: 16 hex digits."""
        return format_digest(sum(j.digest for j in self.joiners))

    @property
    def window_bytes(self) -> int:
        """Bytes of window state now."""
        return sum(j.module.window_bytes() for j in self.joiners)

    def check_ledger(self) -> Ledger:
        """The balanced ledger of a join that has ended. RunFailed, saying what is missing, if it does not balance."""
        ledger = self.ledger
        if not ledger.balanced:
            raise RunFailed("the ledger does not balance: " + "; ".join(ledger.complaints()))
        return ledger


def check_rows(
    streams: tuple[StreamIntake, ...], wanted: Sequence[tuple[int, SourceBatch | int]], highs_us: Sequence[int]
) -> list[int]:
    """LateRowError if one of these rows, in this order, would be refused by streams that have come so far; nothing is taken.

    wanted: rows of a stream, or promises (microseconds). Returns how far the streams will have come.
    """
    highs = list(highs_us)
    for stream, value in wanted:
        intake = streams[stream]
        if isinstance(value, SourceBatch):
            highs[stream] = intake.check(value, highs[stream])
        else:
            highs[stream] = max(highs[stream], value + intake.time.max_out_of_order_us)
    return highs


def empty_ledger() -> Ledger:
    """Of a join that has seen nothing."""
    return Ledger(StreamCounts(), StreamCounts())
