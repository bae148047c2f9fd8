"""Source, intake and mini-buffers of the model's gateways, over tuple counts.

What: `ModelSource` draws the tuples of a stretch of time per partition-group, `splits_of` has the splits of a stream,
`ModelIntake` stamps the tuples, `ModelBuffers` keeps them until their slot; each has the interface of its production
counterpart, so that `Gateway` runs unchanged.
Why: see `forecast.model.batch`.
Stays out: costs (`forecast.costs`), null keys and late rows (the generator makes none).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.mini_buffers import GroupedTuples, MiniBuffers
from swjoin.cluster.gateway.tuple_queue import Pending, Store
from swjoin.config.run import TimeConfig
from swjoin.connectors.source import BATCH_ROWS, SPLIT_ROWS
from swjoin.core.batch import I64, LEFT, RIGHT, SourceBatch, TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, GroupId, SlaveId
from swjoin.core.ledger import StreamCounts
from swjoin.core.splits import Split
from swjoin.forecast.key_distribution import draw
from swjoin.forecast.model.batch import KeyDistribution, ModelBatch
from swjoin.policy.epochs import sub_group_of
from swjoin.routing.hash_partition import HashPartition


@dataclass(frozen=True)
class ModelRows(SourceBatch):
    """A batch of `ModelSource`. stretches: their indexes. counts: int64 (partition-groups,) for each."""

    stretches: tuple[int, ...] = ()
    counts: tuple[I64, ...] = ()

    def __len__(self) -> int:
        return sum(int(c.sum()) for c in self.counts)


def splits_of(distribution: KeyDistribution, reach_us: int) -> list[Split]:
    """A stream in splits of whole stretches, as many as `SPLIT_ROWS` rows and the reach allow. Positions are numbers of
    stretches."""
    edges, mean = distribution.edges_us.tolist(), distribution.mean.tolist()
    found: list[Split] = []
    first, last = 0, distribution.stretch_count
    while first < last:
        end, rows = first + 1, mean[first]
        while end < last and edges[end + 1] - edges[first] <= reach_us and rows + mean[end] <= SPLIT_ROWS:
            rows += mean[end]
            end += 1
        before_us = edges[first] if first else BEGIN_OF_TIME_US
        found.append(Split(first, end - first, edges[first], edges[end] - 1, before_us))
        first = end
    return found


class ModelSource:
    """One stream, as `GeneratorSource` reads it: whole stretches until there are enough rows. payload_bytes: of a tuple."""

    def __init__(self, distribution: KeyDistribution, seed: int, stream: int, payload_bytes: int) -> None:
        self._distribution, self._seed, self._stream = distribution, seed, stream
        self.payload_bytes = payload_bytes
        self._next, self._end = 0, distribution.stretch_count

    def open_split(self, split: Split, skip: int) -> int:
        """Read this split next; returns the time before which no later row has its time."""
        self._next, self._end = split.row + skip, split.end
        return split.before_us

    def read(self) -> ModelRows | None:
        stretches, counts, rows = [], [], 0
        while self._next < self._end and rows < BATCH_ROWS:
            drawn = draw(self._distribution, self._seed, self._stream, self._next)
            stretches.append(self._next)
            counts.append(drawn)
            rows += int(drawn.sum())
            self._next += 1
        if not stretches:
            return None
        none = np.empty(0, np.int64)
        return ModelRows(none, none, none.astype(np.uint64), stretches=tuple(stretches), counts=tuple(counts))


class ModelIntake(StreamIntake):
    """An intake of counts: each stretch is one `ModelBatch` with a run for every partition-group."""

    def __init__(self, stream: int, time: TimeConfig, distribution: KeyDistribution, tuple_bytes: int) -> None:
        super().__init__(stream, time)
        self._distribution, self._tuple_bytes = distribution, tuple_bytes
        self._groups = np.arange(distribution.partition_count, dtype=np.int64)
        self.counts = StreamCounts()

    def read(self, batch: SourceBatch, arrival_us: int | None) -> list[tuple[SourceBatch, str]]:
        assert isinstance(batch, ModelRows)
        edges, ones = self._distribution.edges_us, np.ones(len(self._groups), np.int64)
        for stretch, counts in zip(batch.stretches, batch.counts, strict=True):
            begin, end = int(edges[stretch]), int(edges[stretch + 1])
            first, last = (begin, end) if arrival_us is None else (arrival_us, arrival_us)
            runs = ModelBatch.of(
                self._groups, begin * ones, stretch * ones, first * ones, last * ones, counts, self._tuple_bytes
            )
            if len(runs):
                self._arriving.append(runs)
            self.high_us = end
        self.counts.tuples += len(batch)
        if self.first_us is None:
            self.first_us = int(edges[0])
        return []

    def arrive_until(self, time_us: int) -> None:
        while self._arriving:
            head = self._arriving[0]
            assert isinstance(head, ModelBatch)
            if int(self._distribution.edges_us[head.stretch[0] + 1]) > time_us:
                time_us = min(time_us, int(head.ts[0]))
                break
            self._order(self._arriving.popleft())
        behind = not self.ended and self.high_us < time_us
        self._arrived_high_us = max(self._arrived_high_us, self.high_us if behind else time_us)
        self._release()

    def _release(self) -> None:
        mark = self.watermark_us
        while self._held and int(self._held[0].ts[0]) <= mark:
            self._released.append(self._held.pop(0))


class _Waiting:
    """A stretch of one stream in the mini-buffers."""

    def __init__(self, batch: ModelBatch) -> None:
        self.batch = batch
        self.counts = batch.count.copy()


class ModelBuffers(MiniBuffers):
    """Pending counts of both streams, by stretch and partition-group; shares only the interface of `MiniBuffers`.

    Counts are assigned to slots at the drain, so that none is moved when a partition-group is held back or changes its owner,
    or a slave is parked.
    """

    def __init__(self, router: HashPartition, sub_group_count: int, tuple_bytes: int) -> None:
        self.router = router
        self.drained_tuples = 0
        self._tuple_bytes = tuple_bytes
        self._waiting: tuple[list[_Waiting], list[_Waiting]] = ([], [])
        self._pending = np.zeros((2, router.map.partition_count), np.int64)
        self._held_back = np.zeros(router.map.partition_count, np.bool_)
        self._let_through = np.zeros(router.map.partition_count, np.bool_)
        self._parked_slaves = np.zeros(router.slave_count, np.bool_)
        self._total = 0
        self._sub_group_of_slave = np.array([sub_group_of(s, sub_group_count) for s in range(router.slave_count)], np.int64)

    def append(self, stream: int, batch: TupleBatch, store: Store | None = None) -> None:
        assert isinstance(batch, ModelBatch)
        self._waiting[stream].append(_Waiting(batch))
        self._pending[stream] += batch.count
        self._total += len(batch)

    def park(self, slave: SlaveId) -> None:
        self._parked_slaves[slave] = True

    def unpark(self, slave: SlaveId) -> None:
        self._parked_slaves[slave] = False

    def unpark_some(self, slave: SlaveId, limit_bytes: int) -> int | None:
        """All at once: counts need no memory."""
        self.unpark(slave)
        return None

    def unpark_group(self, slave: SlaveId, group: GroupId) -> None:
        self._let_through[group] = True

    def parked_bytes(self) -> dict[SlaveId, int]:
        owner, pending = self.router.map.owner, self._pending.sum(0)
        return {
            SlaveId(int(s)): int(pending[owner == s].sum()) * self._tuple_bytes for s in np.flatnonzero(self._parked_slaves)
        }

    def reroute(self, router: HashPartition) -> None:
        self.router = router

    def hold(self, group: GroupId) -> None:
        self._held_back[group] = True

    def release(self, group: GroupId, router: HashPartition) -> int:
        self._held_back[group] = False
        self.reroute(router)
        return int(self._pending[:, group].sum())

    @property
    def tuples(self) -> int:
        return self._total - self.held_tuples

    @property
    def held_tuples(self) -> int:
        return int(self._pending[:, self._held_back].sum()) if self._held_back.any() else 0

    def stream_tuples(self, stream: int) -> int:
        return int(self._pending[stream].sum())

    @property
    def nbytes(self) -> int:
        return self._total * self._tuple_bytes

    @property
    def stored_bytes(self) -> int:
        """Counts need no disk."""
        return 0

    def waiting(self, *, parked: bool) -> list[tuple[int, Pending]]:
        """Counts have no tuples to drop or to store."""
        return []

    def _has_some(self, waiting: _Waiting) -> bool:
        return bool(waiting.counts[~self._held_back].any())

    @property
    def first_ts_us(self) -> int | None:
        firsts = (next((int(w.batch.ts[0]) for w in part if self._has_some(w)), None) for part in self._waiting)
        return min((t for t in firsts if t is not None), default=None)

    @property
    def last_ts_us(self) -> int:
        lasts = (
            next((int(w.batch.ts[0]) for w in reversed(part) if self._has_some(w)), BEGIN_OF_TIME_US) for part in self._waiting
        )
        return max(lasts)

    def drain(
        self,
        below_us: Sequence[int],
        sub_group: int,
        slaves: Sequence[int],
        *,
        rebase_us: int | None = None,
        rebase_ts: bool = False,
    ) -> list[GroupedTuples]:
        router = self.router
        owner = router.map.owner
        wanted = (
            (self._sub_group_of_slave[owner] == sub_group)
            & (~self._parked_slaves[owner] | self._let_through)
            & ~self._held_back
        )
        self._let_through[:] = False
        taken = [self._take(stream, below_us[stream], wanted) for stream in (LEFT, RIGHT)]
        out = []
        for slave in slaves:
            owned = router.groups_in_order[router.slots_of(slave)]
            counts = [c[:, owned] for _, c in taken]
            used = np.flatnonzero(sum(c.sum(0) for c in counts))
            batches = [self._runs(taken[s][0], counts[s][:, used], owned[used], rebase_us or 0) for s in (LEFT, RIGHT)]
            sums = [c[:, used].sum(0) for c in counts]
            out.append(GroupedTuples(owned[used], sums[LEFT], sums[RIGHT], batches[LEFT], batches[RIGHT], router.route))
        count = sum(len(d.left) + len(d.right) for d in out)
        assert count == sum(int(c.sum()) for _, c in taken), "tuples of a slave that is not served"
        self.drained_tuples += count
        return out

    def _take(self, stream: int, below_us: int, wanted: I64) -> tuple[list[ModelBatch], I64]:
        """Remove counts that may be delivered: the stretches, and int64 (stretches, partition-groups)."""
        batches, rows = [], []
        for waiting in self._waiting[stream]:
            if int(waiting.batch.ts[0]) >= below_us:
                break
            row = np.where(wanted, waiting.counts, 0)
            waiting.counts -= row
            if row.any():
                batches.append(waiting.batch)
                rows.append(row)
        self._waiting[stream][:] = [w for w in self._waiting[stream] if w.counts.any()]
        counts = np.stack(rows) if rows else np.zeros((0, len(wanted)), np.int64)
        self._pending[stream] -= counts.sum(0)
        self._total -= int(counts.sum())
        return batches, counts

    def _runs(self, batches: list[ModelBatch], counts: I64, groups: I64, rebase_us: int) -> ModelBatch:
        """A slave's tuples of one stream, partition-group after partition-group."""
        heads = np.array(
            [(b.ts[0], b.stretch[0], b.arrival_us[0] - rebase_us, b.arrival_end_us[0] - rebase_us) for b in batches], np.int64
        ).reshape(len(batches), 4)
        group, index = np.nonzero(counts.T)
        ts, stretch, arrival, arrival_end = heads[index].T
        return ModelBatch.of(groups[group], ts, stretch, arrival, arrival_end, counts[index, group], self._tuple_bytes)

    def validate(self) -> None:
        for stream in (LEFT, RIGHT):
            total = sum((w.counts for w in self._waiting[stream]), np.zeros_like(self._pending[stream]))
            assert (total == self._pending[stream]).all(), "mini-buffer counts are wrong"
        assert self._total == self._pending.sum(), "mini-buffer total is wrong"
