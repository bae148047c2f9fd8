"""The collector: merges the slaves' results, commits them by distribution epoch, measures production delay. No I/O, no clock.

What: `Collector.handle(event, now_us) -> [effect]`. Pairs go to the sink as they arrive; an epoch is committed when every
slave has completed it. Pairs of the prefill (`config.sections.MeasureConfig`) are counted separately and discarded.
Why: recovery and exactly-once output need the labels (query, partition-group, distribution epoch) and the commits. The
collector counts and digests the received pairs, so that the ledger compares two independent counts.
Stays out: files (`connectors`), messages on the wire.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.cluster.messages import CheckpointDurable, MeasuringStarted, PartSaved
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
)
from swjoin.core.batch import I64
from swjoin.core.data_messages import ResultChunk
from swjoin.core.errors import RunFailed
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import EpochIndex
from swjoin.core.join_semantics import format_digest
from swjoin.core.metric_columns import COLUMNS
from swjoin.state.delay_histogram import HISTOGRAM_SIZE, histogram_quantile


@dataclass
class Tally:
    """Results of one generation (the time between two checkpoints). Delays in microseconds."""

    count: int = 0
    digest: int = 0
    prefill_count: int = 0
    prefill_digest: int = 0
    delay_sum_us: float = 0.0
    delay_max_us: float = 0.0
    histogram: I64 = field(default_factory=lambda: np.zeros(HISTOGRAM_SIZE, np.int64))

    def add(self, other: Tally) -> None:
        """Add another tally to this one."""
        self.count += other.count
        self.digest = (self.digest + other.digest) % 2**64
        self.prefill_count += other.prefill_count
        self.prefill_digest = (self.prefill_digest + other.prefill_digest) % 2**64
        self.delay_sum_us += other.delay_sum_us
        self.delay_max_us = max(self.delay_max_us, other.delay_max_us)
        self.histogram = self.histogram + other.histogram

    def to_plain(self) -> dict[str, Any]:
        """Ready for JSON."""
        plain = {name: getattr(self, name) for name in ("count", "digest", "delay_sum_us", "delay_max_us")}
        filled = np.flatnonzero(self.histogram)
        return {**plain, "histogram": [filled.tolist(), self.histogram[filled].tolist()]}

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Tally:
        tally = Tally(plain["count"], plain["digest"], 0, 0, plain["delay_sum_us"], plain["delay_max_us"])
        buckets, counts = plain["histogram"]
        tally.histogram[buckets] = counts
        return tally


class Collector:
    """One collector for one run; `finished` once every slave has sent its last chunk.

    materialised: slaves send pairs, which are counted and digested here; otherwise counts and digests only.
    """

    def __init__(self, slave_count: int, *, materialised: bool) -> None:
        self.materialised = materialised
        self.slave_count = slave_count
        self.finished = self.stopped = False  # stopped: the run is to be resumed from a checkpoint
        self.committed = EpochIndex(-1)
        self._past = Tally()  # up to the last checkpoint
        self._open: dict[int, Tally] = {}  # of later generations, by number; a slave may be ahead of the others
        self._cuts: dict[int, int] = {}  # distribution epoch that ends with a checkpoint: generation
        self._completed = [-1] * slave_count
        self._missing: dict[int, int] = {}  # distribution epoch not yet committed: slaves that have not completed it
        self._ended = [False] * slave_count
        self._epoch_pairs = [0] * slave_count  # received in the slave's open epoch, and their digest
        self._epoch_digest = [0] * slave_count
        self._epoch_in_prefill = [False] * slave_count
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
                raise UnexpectedEventError("collector", event)

    def _collect(self, chunk: ResultChunk) -> list[Effect]:
        effects: list[Effect] = []
        slave = int(chunk.slave)
        if not 0 <= slave < self.slave_count or self._ended[slave]:
            raise RunFailed(f"collector: epoch {chunk.epoch}: results from slave {slave}, which is unknown or has finished")
        self._epoch_in_prefill[slave] = chunk.prefill
        if chunk.pairs is not None and len(chunk.pairs):
            self._count(chunk, len(chunk.pairs))
            self._epoch_pairs[slave] += len(chunk.pairs)
            self._epoch_digest[slave] += digest_pairs(chunk.pairs.left_id, chunk.pairs.right_id)
            if not chunk.prefill:
                effects.append(Write(chunk.pairs, chunk.generation))
        if chunk.final:
            self._complete(chunk, slave)
            while self._missing.get(self.committed + 1) == 0:
                effects += self._commit()
        if all(self._ended) and not self.finished:
            if self._missing:
                raise RunFailed(f"collector: epoch {self.committed + 1} was never completed by all of its slaves")
            self.finished = True
            effects.append(Finish())
        return effects

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

    def restore(self, plain: dict[str, Any]) -> None:
        """Take over the state that another collector saved in a checkpoint."""
        self._past, self.committed = Tally.from_plain(plain["tally"]), EpochIndex(plain["epoch"])
        self._completed = [self.committed] * self.slave_count

    @property
    def tally(self) -> Tally:
        """The tally of all generations."""
        total = Tally()
        for part in (self._past, *self._open.values()):
            total.add(part)
        return total

    def _count(self, chunk: ResultChunk, pairs: int) -> None:
        tally = self._open.setdefault(chunk.generation, Tally())
        if chunk.prefill:
            tally.prefill_count += pairs
        else:
            tally.count += pairs

    def _complete(self, chunk: ResultChunk, slave: int) -> None:
        """Take a slave's completed epoch. RunFailed when its counts differ from the received pairs."""
        if chunk.results is None or chunk.metrics is None or chunk.delay_histogram is None:
            raise RunFailed(f"collector: slave {slave}, epoch {chunk.epoch}: final chunk without counts")
        if len(chunk.metrics) != len(COLUMNS) or len(chunk.delay_histogram) != HISTOGRAM_SIZE:
            sizes = f"{len(chunk.metrics)} metrics, {len(chunk.delay_histogram)} delays"
            raise RunFailed(f"collector: slave {slave}, epoch {chunk.epoch}: final chunk of {sizes}")
        missing = self._missing.get(chunk.epoch, chunk.served)
        if chunk.epoch <= self._completed[slave] or chunk.epoch <= self.committed or missing < 1:
            raise RunFailed(f"collector: slave {slave} completed epoch {chunk.epoch} after epoch {self._completed[slave]}")
        self._missing[chunk.epoch] = missing - 1
        pairs = int(chunk.results.counts.sum())
        digest = int(np.add.reduce(chunk.results.digests, dtype=np.uint64)) if len(chunk.results.digests) else 0
        if not self.materialised:
            self._count(chunk, pairs)
        elif pairs != self._epoch_pairs[slave] or (digest - self._epoch_digest[slave]) % 2**64:
            raise RunFailed(
                f"collector: slave {slave}, epoch {chunk.epoch}: produced {pairs} pairs with digest {format_digest(digest)}, "
                f"{self._epoch_pairs[slave]} with digest {format_digest(self._epoch_digest[slave])} arrived"
            )
        self._epoch_digest[slave] = 0
        self._epoch_pairs[slave] = 0
        self._completed[slave] = chunk.epoch
        self._ended[slave] = chunk.last
        if chunk.checkpoint:
            self._cuts[chunk.epoch] = chunk.generation
        tally = self._open.setdefault(chunk.generation, Tally())
        if chunk.prefill:
            tally.prefill_digest += digest
            return
        tally.digest += digest
        tally.histogram += chunk.delay_histogram
        tally.delay_sum_us += self._metric(chunk, "delay_mean_us") * int(chunk.delay_histogram.sum())
        tally.delay_max_us = max(tally.delay_max_us, self._metric(chunk, "delay_max_us"))
        self._metrics.append((chunk.generation, chunk.metrics))

    @staticmethod
    def _metric(chunk: ResultChunk, name: str) -> float:
        assert chunk.metrics is not None
        return float(chunk.metrics[COLUMNS.index(name)])

    def take_metrics(self) -> list[tuple[int, NDArray[np.float64]]]:
        """Remove and return the metric rows received since the last call, with their generations."""
        rows, self._metrics = self._metrics, []
        return rows

    def summary(self) -> dict[str, Any]:
        """The collector's part of run.json: count, digest, production delay in seconds (null without results)."""
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
            "count": tally.count,
            "digest": format_digest(tally.digest),
            "delay_s": delay,
            "committed_epoch": int(self.committed),
            "history": {"count": tally.prefill_count, "digest": format_digest(tally.prefill_digest)},
        }

    def validate(self) -> None:
        waiting = sum(p for p, prefill in zip(self._epoch_pairs, self._epoch_in_prefill, strict=True) if not prefill)
        tally = self.tally
        assert int(tally.histogram.sum()) + waiting <= tally.count, "collector: more delays than rows"
        assert all(epoch > self.committed for epoch in self._missing), "committed too early"
