"""The collector, or each of several sinks: merges results, commits them by distribution epoch. No I/O, no clock.

What: `Collector.handle(event, now_us) -> [effect]`. Pairs go to the sink as they arrive; an epoch is committed when every
slave has completed it. Pairs of the prefill (`config.sections.MeasureConfig`) are counted separately and discarded.
Why: recovery and exactly-once output need the labels (query, partition-group, distribution epoch) and the commits. The
collector counts and digests the received pairs, so that the ledger compares two independent counts.
Stays out: files (`connectors`), messages on the wire.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.messages import CheckpointDurable, Granted, MeasuringStarted, PartSaved
from swjoin.cluster.role import (
    MASTER,
    CommitEpoch,
    Effect,
    Event,
    Finish,
    Publish,
    Received,
    RestartClock,
    SavePart,
    Send,
    Snapshot,
    UnexpectedEventError,
    Write,
    slave_role,
)
from swjoin.core.batch import I64, Pairs, ResultRows
from swjoin.core.data_messages import ResultChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex
from swjoin.core.join_semantics import format_digest
from swjoin.core.metric_columns import COLUMNS
from swjoin.core.query_sums import NamedQueries, QuerySums
from swjoin.state.delay_histogram import HISTOGRAM_SIZE, histogram_quantile


@dataclass
class Tally:
    """Results of one generation (the time between two checkpoints). Delays in microseconds. by_query: of named queries, by
    number, count and digest of completed epochs; of a family, of the rows that the query is the first to have."""

    count: int = 0
    digest: int = 0
    prefill_count: int = 0
    prefill_digest: int = 0
    delay_sum_us: float = 0.0
    delay_max_us: float = 0.0
    histogram: I64 = field(default_factory=lambda: np.zeros(HISTOGRAM_SIZE, np.int64))
    by_query: QuerySums | None = None

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.count += other.count
        self.digest = (self.digest + other.digest) % 2**64
        self.prefill_count += other.prefill_count
        self.prefill_digest = (self.prefill_digest + other.prefill_digest) % 2**64
        self.delay_sum_us += other.delay_sum_us
        self.delay_max_us = max(self.delay_max_us, other.delay_max_us)
        self.histogram = self.histogram + other.histogram
        if other.by_query is not None:
            self.add_of_queries(other.by_query)

    def add_of_queries(self, sums: QuerySums) -> None:
        """Rows of named queries."""
        if self.by_query is None:
            self.by_query = QuerySums(len(sums))
        self.by_query.add(sums)

    def to_plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {name: getattr(self, name) for name in ("count", "digest", "delay_sum_us", "delay_max_us")}
        filled = np.flatnonzero(self.histogram)
        queries = {} if self.by_query is None else {"queries": self.by_query.to_table().tolist()}
        return {**plain, **queries, "histogram": [filled.tolist(), self.histogram[filled].tolist()]}

    @staticmethod
    def from_plain(plain: dict[str, Any], queries: int = 0) -> Tally:
        """queries: number of those that have names."""
        tally = Tally(plain["count"], plain["digest"], 0, 0, plain["delay_sum_us"], plain["delay_max_us"])
        buckets, counts = plain["histogram"]
        tally.histogram[buckets] = counts
        if queries:
            table = np.array(plain.get("queries", []), np.uint64).reshape(-1, 3)
            tally.add_of_queries(QuerySums.of_table(table, queries))
        return tally


def _sums(chunk: ResultChunk, queries: int) -> QuerySums | None:
    """Of the rows of a final chunk's epoch, as its slave has counted them; None when something is missing, or of a query that
    there is not."""
    results, metrics, delays = chunk.results, chunk.metrics, chunk.delay_histogram
    whole = results is not None and metrics is not None and delays is not None
    if whole and (len(metrics) != len(COLUMNS) or len(delays) != HISTOGRAM_SIZE):  # type: ignore[arg-type]
        return None
    if chunk.sent is not None:
        try:
            return QuerySums.of_table(chunk.sent, queries)
        except ValueError:
            return None
    if results is None or not whole:
        return None
    sums = QuerySums(queries)
    sums.counts[0] = results.counts.sum()
    sums.digests[0] = np.add.reduce(results.digests, dtype=np.uint64) if len(results.digests) else 0
    return sums


@dataclass
class _Sender:
    """What one slave has sent."""

    received: QuerySums  # in its open epoch
    completed: int = -1  # its last distribution epoch
    ended: bool = False
    chunks: int = 0
    in_prefill: bool = False

    @property
    def pairs(self) -> int:
        """Received in its open epoch."""
        return self.received.total[0]


class Collector:
    """One sink of one run; `finished` once every slave has sent its last chunk.

    materialised: slaves send pairs, which are counted and digested here; otherwise counts and digests only. number: of several
    sinks, each of which has its share of the pairs; the first one has metrics and production delays of all. of_rows: rows come
    that are no pairs; of those that have production delays some may not be among them. named: queries of the run; None: none
    of them has a name.
    """

    def __init__(
        self,
        slave_count: int,
        *,
        materialised: bool,
        number: int = 0,
        sink_count: int = 1,
        of_rows: bool = False,
        named: NamedQueries | None = None,
    ) -> None:
        self.number, self._delays_of_others = number, sink_count > 1 or of_rows
        self._name = f"sink {number}" if number else "collector"
        self.materialised, self._queries = materialised, named or NamedQueries(0)
        self.slave_count = slave_count
        self.finished = self.stopped = False  # stopped: the run is to be resumed from a checkpoint
        self.committed = EpochIndex(-1)
        self._past = Tally()  # up to the last checkpoint
        self._open: dict[int, Tally] = {}  # of later generations, by number; a slave may be ahead of the others
        self._cuts: dict[int, int] = {}  # distribution epoch that ends with a checkpoint: generation
        self._missing: dict[int, int] = {}  # distribution epoch not yet committed: slaves that have not completed it
        self._senders = [_Sender(QuerySums(self._queries.count)) for _ in range(slave_count)]
        self._metrics: list[tuple[int, NDArray[np.float64]]] = []

    def start(self, now_us: int = 0) -> list[Effect]:
        """No effects before the first results."""
        return []

    def handle(self, event: Event, now_us: int) -> list[Effect]:
        """Take one event; the effects are to be performed in order. RunFailed when a chunk contradicts the ones before."""
        match event:
            case Received(message=ResultChunk() as chunk):
                return self._collect(chunk)
            case Received(message=CheckpointDurable(generation, stop)):
                self.stopped = stop
                return [Publish(generation)]
            case Received(message=MeasuringStarted(clock_us)):
                return [RestartClock(clock_us)]
            case PartSaved():
                return [Send(MASTER, event)]
            case _:
                raise UnexpectedEventError(self._name, event)

    def _collect(self, chunk: ResultChunk) -> list[Effect]:
        effects: list[Effect] = []
        slave = int(chunk.slave)
        if not 0 <= slave < self.slave_count or self._senders[slave].ended:
            raise RunFailed(f"{self._name}: epoch {chunk.epoch}: results from slave {slave}, which is unknown or has finished")
        sender = self._senders[slave]
        sender.in_prefill = chunk.prefill
        if not 0 <= chunk.query < max(1, self._queries.count):
            raise RunFailed(f"{self._name}: slave {slave}: results of query {chunk.query}, of {self._queries.count}")
        if chunk.pairs is not None and len(chunk.pairs):
            self._count(chunk, self._received(chunk, chunk.pairs, sender.received))
            if not chunk.prefill:
                effects.append(Write(chunk.pairs, chunk.generation, chunk.query))
        sender.chunks += 1
        effects.append(Send(slave_role(slave), Granted(-1, sender.chunks)))
        if chunk.final:
            self._complete(chunk, sender)
            while self._missing.get(self.committed + 1) == 0:
                effects += self._commit()
        if all(s.ended for s in self._senders) and not self.finished:
            if self._missing:
                raise RunFailed(f"{self._name}: epoch {self.committed + 1} was never completed by all of its slaves")
            self.finished = True
            effects.append(Finish())
        return effects

    def _received(self, chunk: ResultChunk, pairs: Pairs | ResultRows, sums: QuerySums) -> int:
        """Add the rows of a chunk; how many results they are. RunFailed for ranks that they cannot have."""
        try:
            return self._queries.add(sums, pairs, chunk.query)
        except ValueError as error:
            raise RunFailed(f"{self._name}: slave {chunk.slave}: rows of query {chunk.query}: {error}") from None

    def _commit(self) -> list[Effect]:
        """Commit the next distribution epoch, and the generation that ends with it, if any."""
        self.committed = EpochIndex(self.committed + 1)
        del self._missing[self.committed]
        generation = self._cuts.pop(self.committed, None)
        if generation is None:
            return [CommitEpoch(self.committed)]
        self._past.add(self._open.pop(generation, Tally()))
        state = {"tally": self._past.to_plain(), "epoch": int(self.committed)}
        return [CommitEpoch(self.committed), SavePart(generation, Snapshot(state))]

    def restore(self, epoch: int, states: Sequence[dict[str, Any]]) -> None:
        """Take over the states that sinks saved in a checkpoint, which ended with this epoch."""
        for plain in states:
            self._past.add(Tally.from_plain(plain["tally"], self._queries.count))
        self.committed = EpochIndex(epoch)
        self._senders = [_Sender(QuerySums(self._queries.count), completed=epoch) for _ in self._senders]

    @property
    def tally(self) -> Tally:
        """The tally of all generations."""
        total = Tally()
        for part in (self._past, *self._open.values()):
            total.add(part)
        return total

    @property
    def sums_of_queries(self) -> list[tuple[int, int]]:
        """Count and digest of each query by number, of completed epochs; those of all rows when none has a name."""
        tally = self.tally
        return self._queries.of_each(tally.by_query) or [(tally.count, tally.digest)]

    def _count(self, chunk: ResultChunk, pairs: int) -> None:
        tally = self._open.setdefault(chunk.generation, Tally())
        if chunk.prefill:
            tally.prefill_count += pairs
        else:
            tally.count += pairs

    def _complete(self, chunk: ResultChunk, sender: _Sender) -> None:
        """Take a slave's completed epoch. RunFailed when its counts differ from the received pairs."""
        sums = _sums(chunk, self._queries.count)
        if sums is None:
            raise RunFailed(f"{self._name}: slave {chunk.slave}, epoch {chunk.epoch}: final chunk without counts")
        missing = self._missing.get(chunk.epoch, chunk.served)
        if chunk.epoch <= max(sender.completed, self.committed) or missing < 1:
            before = sender.completed
            raise RunFailed(f"{self._name}: slave {chunk.slave} completed epoch {chunk.epoch} after epoch {before}")
        self._missing[chunk.epoch] = missing - 1
        if not self.materialised:
            self._count(chunk, self._queries.total(sums)[0])
        else:
            self._compare(chunk, sums, sender.received)
        sender.received = QuerySums(self._queries.count)
        sender.completed, sender.ended = chunk.epoch, chunk.last
        if chunk.checkpoint:
            self._cuts[chunk.epoch] = chunk.generation
        tally = self._open.setdefault(chunk.generation, Tally())
        _, digest = self._queries.total(sums)
        if chunk.prefill:
            tally.prefill_digest += digest
            return
        tally.digest += digest
        if self._queries.count:
            tally.add_of_queries(sums)
        if chunk.metrics is None or chunk.delay_histogram is None:
            return  # the first sink has them
        mean_us, max_us = (float(chunk.metrics[COLUMNS.index(name)]) for name in ("delay_mean_us", "delay_max_us"))
        tally.histogram += chunk.delay_histogram
        tally.delay_sum_us += mean_us * int(chunk.delay_histogram.sum())
        tally.delay_max_us = max(tally.delay_max_us, max_us)
        self._metrics.append((chunk.generation, chunk.metrics))

    def _compare(self, chunk: ResultChunk, sums: QuerySums, received: QuerySums) -> None:
        """RunFailed unless the rows of a completed epoch are those that its slave has counted."""
        query = sums.differing(received)
        if query is not None:
            of = f" of query {query}" if self._queries.count else ""
            raise RunFailed(
                f"{self._name}: slave {chunk.slave}, epoch {chunk.epoch}: "
                f"produced {sums.counts[query]} pairs{of} with digest {format_digest(int(sums.digests[query]))}, "
                f"{received.counts[query]} with digest {format_digest(int(received.digests[query]))} arrived"
            )

    def take_metrics(self) -> list[tuple[int, NDArray[np.float64]]]:
        """Remove and return the metric rows received since the last call, with their generations."""
        rows, self._metrics = self._metrics, []
        return rows

    @staticmethod
    def merged(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The summary of all sinks together; delays are in the first one's."""
        history, queries = ([summary[name] for summary in summaries] for name in ("history", "queries"))

        def total(parts: Sequence[dict[str, Any]]) -> dict[str, Any]:
            digest = sum(int(part["digest"], 16) for part in parts)
            return {"count": sum(part["count"] for part in parts), "digest": format_digest(digest)}

        of_queries = [total(parts) for parts in zip(*queries, strict=True)]
        return {**summaries[0], **total(summaries), "history": total(history), "queries": of_queries}

    def summary(self) -> dict[str, Any]:
        """The sink's part of run.json: count and digest, also of each of several queries; production delay in seconds, null
        without results."""
        tally = self.tally
        delay: dict[str, float | None] = dict.fromkeys(("mean", "p50", "p99", "max"))
        timed = int(tally.histogram.sum())  # unmatched rows have no delay
        if timed:
            delay = {
                "mean": tally.delay_sum_us / timed / 1e6,
                "p50": histogram_quantile(tally.histogram, 0.5, tally.delay_max_us) / 1e6,
                "p99": histogram_quantile(tally.histogram, 0.99, tally.delay_max_us) / 1e6,
                "max": tally.delay_max_us / 1e6,
            }
        return {
            "sink": self.number,
            "count": tally.count,
            "digest": format_digest(tally.digest),
            "delay_s": delay,
            "committed_epoch": int(self.committed),
            "history": {"count": tally.prefill_count, "digest": format_digest(tally.prefill_digest)},
            "queries": [
                {"count": count, "digest": format_digest(digest)} for count, digest in self._queries.of_each(tally.by_query)
            ],
        }

    def validate(self) -> None:
        waiting = sum(sender.pairs for sender in self._senders if not sender.in_prefill)
        tally = self.tally
        assert self._delays_of_others or int(tally.histogram.sum()) + waiting <= tally.count, "collector: more delays than rows"
        assert all(epoch > self.committed for epoch in self._missing), "committed too early"
