"""The overload policy: load shedding or spilling when more tuples arrive than the slaves can join (realtime pace).

What: `Overload.relieve`, after every step of the master: sheds tuples, or spills them to disk, until the buffers have room.
Why: a source that cannot wait must not make the master's memory grow; shed tuples and lost pairs are counted, estimated and
logged.
Stays out: full slaves (`cluster.gateway.deferral`), files (`runtime.spill`), when a source waits (`cluster.master.master`).

Tuples of full slaves are removed first, then those that wait for their slot. The random choice has its own seed, so that a run
is as repeatable as its timing.
Shedding the tuples with the fewest matches is the heuristic PROB of Das, Gehrke and Riedewald (Approximate join processing over
data streams, SIGMOD 2003).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import MiniBuffers
from swjoin.cluster.gateway.selectivity import F64, MatchEstimates
from swjoin.cluster.gateway.slots import Slots
from swjoin.cluster.gateway.tuple_queue import Pending, Store, StoreFullError
from swjoin.cluster.role import SetAside
from swjoin.config.run import RunConfig
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, SourceBatch, StoredBatch, TupleBatch
from swjoin.routing.hash_partition import arrange

_FREED_SHARE = 8  # of full buffers, 1 / _FREED_SHARE is freed at once


class Overload:
    """The overload policy of one run. `relieve` after every step; `arrived` for all tuples that enter the mini-buffers."""

    def __init__(
        self,
        config: RunConfig,
        streams: tuple[StreamIntake, ...],
        buffers: MiniBuffers,
        slots: Slots,
        note: Callable[..., None],
        store: Store | None,
        *,
        keyed: bool = True,
    ) -> None:
        """note: takes time, kind and fields of an event for the run's log. store: spills tuples to disk. keyed: the tuples are
        those of a join, with keys, so that matches and partition-groups of shed ones are known."""
        self.config = config.on_overload
        self._streams, self._buffers, self._slots = streams, buffers, slots
        self._note, self._store = note, store
        self._limit_bytes = config.cluster.mini_buffer_bytes
        self._count_windows = config.query.bounds.count_windows
        self._random = np.random.default_rng([config.seed, 0x5ED])
        self.estimates = MatchEstimates(config.query.bounds) if self._sheds and keyed else None
        self.by_group: I64 = np.zeros((2, config.cluster.partition_count), np.int64)
        self._groups = np.arange(config.cluster.partition_count, dtype=np.int64)
        self.spilled_tuples = 0
        self.peak_stored_bytes = 0
        self._most_stored_bytes = 1 << 62  # for which the disk had room
        if self.config.policy == "spill":
            buffers.store = store

    @property
    def _sheds(self) -> bool:
        return self.config.policy == "shed"

    def arrived(self, stream: int, batch: TupleBatch) -> None:
        """Count tuples that entered the mini-buffers."""
        if self.estimates is not None:
            self.estimates.arrived(stream, batch.key)

    def advance(self, time_us: int) -> None:
        """Advance the time of the estimates, on the streams' time axis."""
        if self.estimates is not None:
            self.estimates.advance(time_us)

    @property
    def full(self) -> bool:
        """Whether reading should stop. Rows read ahead of their time count only with policy `block`."""
        waiting_bytes = self._slots.waiting_bytes if self.config.policy == "block" else self._arrived_bytes
        return waiting_bytes >= self._limit_bytes

    @property
    def _arrived_bytes(self) -> int:
        """With count windows without unnumbered tuples, which can be neither shed nor spilled."""
        return self._buffers.nbytes + (0 if self._count_windows else sum(s.arrived_bytes for s in self._streams))

    def relieve(self, now_us: int) -> list[SetAside]:
        """Shed or spill tuples of full buffers, as far as possible; returns the shed rows."""
        if self.config.policy == "block" or not self.full or self._buffers.nbytes == 0:
            return []
        excess = self._arrived_bytes - self._limit_bytes
        wanted = min(excess + self._limit_bytes // _FREED_SHARE, self._buffers.nbytes)
        if self._sheds:
            return self._shed(wanted, now_us)
        self._spill(wanted, now_us)
        return []

    # ------------------------------------------------------------ spilling

    def _spill(self, nbytes: int, now_us: int) -> None:
        stored_bytes, before = self._buffers.stored_bytes, self.spilled_tuples
        nbytes = min(nbytes, min(self.config.disk_bytes, self._most_stored_bytes) - stored_bytes)
        freed = 0
        try:
            for parked in (True, False):
                for _, pending in self._buffers.waiting(parked=parked):
                    if freed < nbytes:
                        freed += pending.store(nbytes - freed, self._put)
        except StoreFullError as error:  # the limit until tuples are loaded again
            self._most_stored_bytes = self._buffers.stored_bytes
            self._note(now_us, "spilled", text=str(error), amount=float(self._most_stored_bytes))
        tuples, now_stored = self.spilled_tuples - before, self._buffers.stored_bytes
        if tuples:
            self.peak_stored_bytes = max(self.peak_stored_bytes, now_stored)
            spilled_bytes = now_stored - stored_bytes
            self._note(now_us, "spilled", tuples=tuples, state_bytes=spilled_bytes, amount=float(now_stored))

    def _put(self, batch: TupleBatch) -> StoredBatch:
        assert self._store is not None, "policy spill without a store"
        stored = self._store(batch)
        self.spilled_tuples += len(batch)
        return stored

    # ------------------------------------------------------------ shedding

    def _shed(self, nbytes: int, now_us: int) -> list[SetAside]:
        dropped: list[list[TupleBatch]] = [[] for _ in self._streams]
        for parked in (True, False):
            nbytes -= self._drop(self._buffers.waiting(parked=parked), nbytes, dropped)
        shed = []
        for stream, batches in enumerate(dropped):
            for batch in batches:
                self._streams[stream].counts.shed += len(batch)
                shed.append(SetAside(stream, SourceBatch(batch.key, batch.ts, batch.id), "shed"))
        if shed and self.estimates is not None:
            self._count_lost(self.estimates, dropped)
        if shed:
            every = [batch for batches in dropped for batch in batches]
            self._note(now_us, "shed", tuples=sum(map(len, every)), state_bytes=sum(batch.nbytes for batch in every))
        return shed

    def _count_lost(self, estimates: MatchEstimates, dropped: Sequence[Sequence[TupleBatch]]) -> None:
        """Count shed tuples of a join by partition-group, and estimate their pairs."""
        keys = [np.concatenate([np.empty(0, np.int64), *(batch.key for batch in batches)]) for batches in dropped]
        for counts, batches in zip(self.by_group, dropped, strict=True):
            for batch in batches:
                counts += arrange(batch, self._groups, len(self._groups)).counts
        estimates.dropped((keys[LEFT], keys[RIGHT]))

    def _drop(self, waiting: list[tuple[int, Pending]], nbytes: int, dropped: list[list[TupleBatch]]) -> int:
        """Drop tuples of these queues worth about `nbytes`, the lowest scores first; returns how many bytes."""
        batches = [(stream, batch) for stream, pending in waiting for batch in pending.in_memory()]
        total, count = sum(batch.nbytes for _, batch in batches), sum(len(batch) for _, batch in batches)
        if nbytes <= 0 or count == 0:
            return 0
        chosen = np.ones(count, np.bool_)
        wanted = -(-nbytes * count // total)
        if wanted < count:
            scores = np.concatenate([self._scores(stream, batch) for stream, batch in batches])
            chosen[:] = False
            chosen[np.argpartition(scores, wanted - 1)[:wanted]] = True
        at = 0
        for stream, pending in waiting:
            masks = []
            for batch in pending.in_memory():
                masks.append(chosen[at : at + len(batch)])
                at += len(batch)
            dropped[stream].extend(pending.drop(masks))
        return nbytes if wanted < count else total

    def _scores(self, stream: int, batch: TupleBatch) -> F64:
        """Scores of tuples; the lowest are dropped first."""
        if self.config.victims == "oldest":
            return batch.ts.astype(np.float64)
        chance: F64 = self._random.random(len(batch))
        if self.estimates is None or self.config.victims == "random":
            return chance
        return self.estimates.matches(stream, batch.key) + chance * 1e-3

    # ------------------------------------------------------------ across a crash, and after the run

    def plain_state(self) -> dict[str, Any]:
        """Ready for JSON."""
        estimates = None if self.estimates is None else self.estimates.plain_state()
        return {
            "by_group": self.by_group.tolist(),
            "estimates": estimates,
            "spilled_tuples": self.spilled_tuples,
            "peak_stored_bytes": self.peak_stored_bytes,
        }

    def restore(self, plain: dict[str, Any]) -> None:
        """Add the counts of a gateway whose rows this one takes over."""
        self.by_group += np.array(plain["by_group"], np.int64)
        self.spilled_tuples += plain["spilled_tuples"]
        self.peak_stored_bytes = max(self.peak_stored_bytes, plain["peak_stored_bytes"])
        if self.estimates is not None:
            self.estimates.restore(plain["estimates"])

    @staticmethod
    def merged(summaries: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """The summary of all gateways together."""
        first, shed = summaries[0], [s["shed_by_group"] for s in summaries]
        by_group = first["shed_by_group"] and {name: np.sum([s[name] for s in shed], axis=0).tolist() for name in STREAM_NAMES}
        lost = None if first["lost_pairs_estimate"] is None else sum(s["lost_pairs_estimate"] for s in summaries)
        return {
            **first,
            "shed_by_group": by_group,
            "lost_pairs_estimate": lost,
            **{name: sum(s[name] for s in summaries) for name in ("spilled_tuples", "peak_spilled_bytes")},
        }

    def summary(self) -> dict[str, Any]:
        """For run.json."""
        return {
            "policy": self.config.policy,
            "victims": self.config.victims if self._sheds else None,
            "shed_by_group": None if self.estimates is None else dict(zip(STREAM_NAMES, self.by_group.tolist(), strict=True)),
            "lost_pairs_estimate": None if self.estimates is None else max(0.0, self.estimates.lost_pairs),
            "spilled_tuples": self.spilled_tuples,
            "peak_spilled_bytes": self.peak_stored_bytes,
        }
