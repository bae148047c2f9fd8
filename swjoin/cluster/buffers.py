"""The master's mini-buffers: tuples that wait for the end of their distribution epoch.

What: `MiniBuffers`, both streams' pending tuples in time order, drained once per epoch into deliveries.
Why: the paper keeps one mini-buffer per partition and stream and merges a slave's at the end of the epoch (section IV-B). Here
the pending tuples stay in arrival order and one counting sort at the drain lays out all mini-buffers of all slaves at once:
the same content, one copy instead of two.
Stays out: what an epoch is (`policy.epochs`), who is served when (`cluster.master`).
"""

from __future__ import annotations

import numpy as np

from swjoin.batch import LEFT, RIGHT, RowLayout, TupleBatch
from swjoin.messages import BEGIN_OF_TIME_US, Delivery, EpochIndex, QueryId, SlaveId
from swjoin.routing.hash_partition import HashPartition


class _Pending:
    """One stream's tuples in time order."""

    def __init__(self, layout: RowLayout | None) -> None:
        self._empty = TupleBatch.empty(layout)
        self.parts: list[TupleBatch] = []
        self.tuples = 0
        self.bytes = 0

    def append(self, batch: TupleBatch) -> None:
        if len(batch):
            self.parts.append(batch)
            self.tuples += len(batch)
            self.bytes += batch.nbytes

    def take_below(self, time_us: int) -> TupleBatch:
        """Remove and return the tuples with ts < time_us."""
        taken: list[TupleBatch] = []
        while self.parts:
            head = self.parts[0]
            n = int(np.searchsorted(head.ts, time_us, side="left"))
            if n < len(head):
                if n:
                    taken.append(head.slice(0, n))
                    self.parts[0] = head.slice(n, len(head))
                break
            taken.append(self.parts.pop(0))
        if not taken:
            return self._empty
        batch = TupleBatch.concat(taken)
        self.tuples -= len(batch)
        self.bytes -= batch.nbytes if self.parts else self.bytes
        return batch

    @property
    def first_ts_us(self) -> int | None:
        return int(self.parts[0].ts[0]) if self.parts else None

    @property
    def last_ts_us(self) -> int:
        return int(self.parts[-1].ts[-1]) if self.parts else BEGIN_OF_TIME_US


class MiniBuffers:
    """Pending tuples of both streams; `drain` turns them into one delivery per slave."""

    def __init__(self, left_layout: RowLayout | None, right_layout: RowLayout | None) -> None:
        self._pending = (_Pending(left_layout), _Pending(right_layout))

    def append(self, stream: int, batch: TupleBatch) -> None:
        self._pending[stream].append(batch)

    @property
    def tuples(self) -> int:
        return self._pending[LEFT].tuples + self._pending[RIGHT].tuples

    def stream_tuples(self, stream: int) -> int:
        return self._pending[stream].tuples

    @property
    def nbytes(self) -> int:
        return self._pending[LEFT].bytes + self._pending[RIGHT].bytes

    @property
    def first_ts_us(self) -> int | None:
        """The lowest pending time of both streams, or None when nothing is pending."""
        times = [p.first_ts_us for p in self._pending if p.first_ts_us is not None]
        return min(times, default=None)

    @property
    def last_ts_us(self) -> int:
        """The highest pending time of both streams; BEGIN_OF_TIME_US when nothing is pending."""
        return max(p.last_ts_us for p in self._pending)

    def drain(
        self,
        below_us: int,
        times_us: tuple[int, int],
        router: HashPartition,
        slave_count: int,
        query: QueryId,
        epoch: EpochIndex,
        *,
        last: bool,
        rebase_us: int | None = None,
        rebase_ts: bool = False,
    ) -> list[Delivery]:
        """One delivery per slave with the tuples of ts < below_us and both punctuations `times_us`.

        rebase_us: subtracted from arrival stamps that are on the stream's time axis (realtime pace), and from ts as well with
        `rebase_ts` (time model arrival: ts is the arrival on the run's clock).
        """
        parts = []
        for stream in (LEFT, RIGHT):
            batch = self._pending[stream].take_below(below_us)
            if rebase_us is not None:
                arrival = np.maximum(batch.arrival_us - rebase_us, 0)
                batch = TupleBatch(batch.key, arrival if rebase_ts else batch.ts, batch.id, arrival, batch.rows)
            parts.append(router.partition(batch))
        left, right = parts
        deliveries = []
        for slave in range(slave_count):
            places = router.places_of(slave)
            used = places.start + np.flatnonzero(left.counts[places] + right.counts[places])
            deliveries.append(
                Delivery(
                    query,
                    SlaveId(slave),
                    epoch,
                    times_us[LEFT],
                    times_us[RIGHT],
                    router.groups_in_order[used],
                    left.counts[used],
                    right.counts[used],
                    left.batch.slice(int(left.starts[places.start]), int(left.starts[places.stop])),
                    right.batch.slice(int(right.starts[places.start]), int(right.starts[places.stop])),
                    last,
                    router.route,
                    router.route,
                )
            )
        return deliveries

    def validate(self) -> None:
        for pending in self._pending:
            assert pending.tuples == sum(len(p) for p in pending.parts), "mini-buffer count is wrong"
            assert all(len(p) for p in pending.parts), "an empty batch is pending"
