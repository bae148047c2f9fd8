"""The master's mini-buffers: tuples that wait for the end of their slot.

What: `MiniBuffers`, both streams' pending tuples in time order, drained once per slot into deliveries; tuples of moving
partition-groups are held back in queues of their own.
Why: the paper keeps one mini-buffer per partition and stream and merges a slave's at the end of the epoch (section IV-B). Here
the pending tuples of a sub-group stay in arrival order and one counting sort at the drain lays out all mini-buffers of its
slaves at once: the same content, one copy instead of two.
Stays out: boundaries of epochs (`policy.epochs`), the order of deliveries (`cluster.master.master`), ownership
(`cluster.master.controller`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

import numpy as np

from swjoin.cluster.gateway.tuple_queue import Pending, Store, StoreFullError
from swjoin.core.batch import I64, LEFT, RIGHT, RowLayout, StoredBatch, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.ids import BEGIN_OF_TIME_US, EpochIndex, GroupId, SlaveId
from swjoin.core.sequence_numbers import sequence_as_time, wire_layouts
from swjoin.policy.epochs import sub_group_of
from swjoin.routing.hash_partition import HashPartition, arrange

_PUT_BACK_BYTES = 16 << 20
_Shelf = tuple[Pending, ...]  # a queue per stream


@dataclass(frozen=True)
class Order:
    """The header of a delivery, as in `core.data_messages.Delivery`."""

    slave: SlaveId
    epoch: EpochIndex
    served: int
    generation: int
    checkpoint: bool
    needed_us: tuple[int, int] = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


@dataclass(frozen=True)
class GroupedTuples:
    """The tuples of one slave's delivery, as in `core.data_messages.Delivery`."""

    groups: I64
    left_counts: I64
    right_counts: I64
    left: TupleBatch
    right: TupleBatch
    route: Route

    def delivery(
        self,
        order: Order,
        times_us: tuple[int, int],
        moves: tuple[I64, I64],
        *,
        last: bool,
        inactive: bool,
        null_keys: tuple[TupleBatch, TupleBatch],
    ) -> Delivery:
        """The delivery of these tuples. times_us: its punctuations. moves: out and in. null_keys: tuples of both streams."""
        return Delivery(
            0,
            order.slave,
            order.epoch,
            *times_us,
            self.groups,
            self.left_counts,
            self.right_counts,
            self.left,
            self.right,
            last,
            (self.route, self.route),
            order.served,
            *moves,
            inactive,
            order.generation,
            order.checkpoint,
            null_keys,
            order.needed_us,
        )


class MiniBuffers:
    """Pending tuples of both streams, or of all sources of a plan, which has neither sub-groups nor moves. Each sub-group,
    parked slave and moving partition-group has a queue per stream."""

    def __init__(
        self,
        layouts: tuple[RowLayout | None, ...],
        router: HashPartition,
        sub_group_count: int = 1,
        *,
        count_windows: bool = False,
    ) -> None:
        """count_windows: tuples carry sequence numbers, which replace their times in deliveries (`core.sequence_numbers`)."""
        self._count_windows = count_windows
        self.store: Store | None = None  # spilled tuples (`cluster.gateway.overload`)
        self._layouts = wire_layouts((layouts[LEFT], layouts[RIGHT]), count_windows=True) if count_windows else layouts
        self._sub_group_count = sub_group_count
        self._shelves = [self._new_shelf() for _ in range(sub_group_count)]
        self._held: dict[GroupId, _Shelf] = {}
        self._parked: dict[SlaveId, _Shelf] = {}
        self.router = router
        self._shelf_of_group = np.empty(0, np.int64)
        self._assign()

    def _new_shelf(self) -> _Shelf:
        return tuple(Pending(layout) for layout in self._layouts)

    def _assign(self) -> None:
        """Assign every partition-group to a shelf: its owner's sub-group, its parked owner, or its own while held back."""
        shelf_of_slave = np.array([sub_group_of(s, self._sub_group_count) for s in range(self.router.slave_count)], np.int64)
        for index, slave in enumerate(self._parked, self._sub_group_count):
            shelf_of_slave[slave] = index
        self._shelf_of_group = shelf_of_slave[self.router.map.owner]
        for index, group in enumerate(self._held, self._sub_group_count + len(self._parked)):
            self._shelf_of_group[group] = index
        self._open_shelves = [*self._shelves, *self._parked.values()]
        self._all_shelves = [*self._open_shelves, *self._held.values()]

    def append(self, stream: int, batch: TupleBatch, store: Store | None = None) -> None:
        """Append tuples of a stream, not older than those before. store: where to spill them at once."""
        if len(self._all_shelves) == 1:
            self._shelves[0][stream].append(batch, store)
            return
        arranged = arrange(batch, self._shelf_of_group, len(self._all_shelves))
        for index, shelf in enumerate(self._all_shelves):
            part = arranged.batch.slice(int(arranged.starts[index]), int(arranged.starts[index + 1]))
            deferred = index >= self._sub_group_count and 0 < len(part) < len(batch)
            if deferred:  # a long-lived view would keep the whole batch in memory
                part = part.take(np.arange(len(part), dtype=np.int64))
            shelf[stream].append(part, store)

    # ------------------------------------------------------------ partition-groups that move

    def hold(self, group: GroupId) -> None:
        """Hold back this partition-group's tuples from now on, pending ones included."""
        shelf = self._all_shelves[int(self._shelf_of_group[group])]
        self._held[group] = self._new_shelf()
        self._assign()
        self._shelve_again(shelf)

    def _shelve_again(self, shelf: _Shelf) -> None:
        """Distribute a shelf's tuples again after a new assignment."""
        for stream, queue in enumerate(shelf):
            for batch, stored in queue.take_all():
                self.append(stream, batch, self.store if stored else None)

    def park(self, slave: SlaveId) -> None:
        """Keep the tuples of a full slave in a shelf of their own, until `unpark`."""
        if slave not in self._parked:
            shelf = self._shelves[sub_group_of(slave, self._sub_group_count)]
            self._parked[slave] = self._new_shelf()
            self._assign()
            self._shelve_again(shelf)

    def unpark(self, slave: SlaveId) -> None:
        """Return a parked slave's tuples to its sub-group's shelf."""
        parked = self._parked.pop(slave, None)
        if parked is not None:
            self._assign()
            self._merge_into_slot(slave, *([batch for batch, _ in pending.take_all()] for pending in parked))

    def unpark_some(self, slave: SlaveId, limit_bytes: int) -> int | None:
        """Release about `limit_bytes` of a parked slave's tuples, the oldest. Returns the time below which none is parked.

        None when no tuple is left: the slave is no longer parked.
        """
        parked = self._parked.get(slave)
        if parked is None or sum(pending.bytes + pending.stored_bytes for pending in parked) <= limit_bytes:
            self.unpark(slave)
            return None
        cut = min(pending.time_after(limit_bytes // 2) for pending in parked)
        self._merge_into_slot(slave, *([pending.take_below(cut)] for pending in parked))
        return cut

    def unpark_group(self, slave: SlaveId, group: GroupId) -> None:
        """Release all parked tuples of one partition-group, which leaves the slave."""
        parked = self._parked.get(slave)
        if parked is None:
            return
        chosen = np.zeros(self.router.map.partition_count, np.int64)
        chosen[group] = 1
        taken: list[list[TupleBatch]] = []
        for pending in parked:
            taken.append([])
            for batch, stored in pending.take_all():
                arranged = arrange(batch, chosen, 2)
                pending.append(arranged.batch.slice(0, int(arranged.starts[1])), self.store if stored else None)
                if arranged.counts[1]:
                    taken[-1].append(arranged.batch.slice(int(arranged.starts[1]), int(arranged.starts[2])))
        self._merge_into_slot(slave, *taken)

    def _merge_into_slot(self, slave: SlaveId, left: list[TupleBatch], right: list[TupleBatch]) -> None:
        shelf = self._shelves[sub_group_of(slave, self._sub_group_count)]
        shelf[LEFT].merge(left, self.store)
        shelf[RIGHT].merge(right, self.store)

    def release(self, group: GroupId, router: HashPartition) -> int:
        """Move the held-back tuples of a partition-group to its new owner's shelf. Returns their count.

        router: the routing with the new owner.
        """
        held = self._held.pop(group)
        self.reroute(router)
        shelf = self._all_shelves[int(self._shelf_of_group[group])]
        for stream in (LEFT, RIGHT):
            shelf[stream].merge([batch for batch, _ in held[stream].take_all()], self.store)
        return held[LEFT].tuples + held[RIGHT].tuples

    def reroute(self, router: HashPartition) -> None:
        """Use new owners of partition-groups. All tuples of a partition-group with a new owner must be held back."""
        self.router = router
        self._assign()

    # ------------------------------------------------------------ across a crash

    def pending(self, stream: int) -> list[TupleBatch | StoredBatch]:
        """All pending tuples of a stream, shelf by shelf."""
        return [part for shelf in self._all_shelves for part in shelf[stream].parts]

    def put_back(self, stream: int, batches: list[TupleBatch]) -> None:
        """Fill empty buffers with the batches of `pending`. With a store, most tuples are spilled at once."""
        queue = Pending(self._layouts[stream])
        for batch in batches:
            queue.merge([batch], self.store, behind=True)
            if self.store is not None and queue.bytes > _PUT_BACK_BYTES:
                with suppress(StoreFullError):
                    queue.store(queue.bytes, self.store)
        for batch, stored in queue.take_all():
            self.append(stream, batch, self.store if stored else None)

    # ------------------------------------------------------------ measures

    def parked_bytes(self) -> dict[SlaveId, int]:
        """Bytes of parked tuples, by slave."""
        return {slave: sum(p.bytes + p.stored_bytes for p in shelf) for slave, shelf in self._parked.items()}

    def waiting(self, *, parked: bool) -> list[tuple[int, Pending]]:
        """(stream, queue) of every shelf: those of parked slaves, or the others."""
        shelves = list(self._parked.values()) if parked else [*self._shelves, *self._held.values()]
        return [(stream, queue) for shelf in shelves for stream, queue in enumerate(shelf)]

    @property
    def tuples(self) -> int:
        """Tuples that are not held back: deliverable now, or once their slave has room."""
        return sum(p.tuples for shelf in self._open_shelves for p in shelf)

    @property
    def held_tuples(self) -> int:
        return sum(p.tuples for shelf in self._held.values() for p in shelf)

    def stream_tuples(self, stream: int) -> int:
        """Tuples of a stream, held-back ones included."""
        return sum(shelf[stream].tuples for shelf in self._all_shelves)

    @property
    def nbytes(self) -> int:
        """Bytes in memory."""
        return sum(p.bytes for shelf in self._all_shelves for p in shelf)

    @property
    def stored_bytes(self) -> int:
        """Bytes on disk."""
        return sum(p.stored_bytes for shelf in self._all_shelves for p in shelf)

    @property
    def first_ts_us(self) -> int | None:
        """The lowest time of both streams' deliverable tuples; None when there are none."""
        times = [p.first_ts_us for shelf in self._open_shelves for p in shelf if p.first_ts_us is not None]
        return min(times, default=None)

    @property
    def last_ts_us(self) -> int:
        """The highest time of both streams' deliverable tuples; BEGIN_OF_TIME_US when there are none."""
        return max(p.last_ts_us for shelf in self._open_shelves for p in shelf)

    # ------------------------------------------------------------ draining

    def take_below(
        self, below_us: Sequence[int], sub_group: int, *, rebase_us: int | None = None, rebase_ts: bool = False
    ) -> list[TupleBatch]:
        """The sub-group's tuples of every stream with ts < below_us, by stream. rebase_us, rebase_ts: see `drain`."""
        taken = [queue.take_below(below) for queue, below in zip(self._shelves[sub_group], below_us, strict=True)]
        return [_rebased(batch, rebase_us, rebase_ts) for batch in taken]

    def take_parts_below(self, below_us: int, *, rebase_us: int | None = None) -> list[list[TupleBatch]]:
        """As `take_below`, of the only sub-group and one time, in parts as they lie."""
        taken = [queue.take_parts_below(below_us) for queue in self._shelves[0]]
        return [[_rebased(batch, rebase_us) for batch in parts] for parts in taken]

    def drain(
        self,
        below_us: Sequence[int],
        sub_group: int,
        slaves: Sequence[int],
        *,
        rebase_us: int | None = None,
        rebase_ts: bool = False,
    ) -> list[GroupedTuples]:
        """The sub-group's tuples with ts < below_us, by stream, grouped for each of `slaves`. Parked slaves receive none.

        slaves: all slaves of the sub-group that own partition-groups. rebase_us: subtracted from arrival stamps on the stream's
        time axis (realtime pace), and from ts with `rebase_ts` (time model arrival: ts is the arrival on the run's clock).
        """
        batches = self.take_below(below_us, sub_group, rebase_us=rebase_us, rebase_ts=rebase_ts)
        left, right = (self.router.partition(sequence_as_time(b) if self._count_windows else b) for b in batches)
        out = []
        for slave in slaves:
            span = self.router.slots_of(slave)
            used = span.start + np.flatnonzero(left.counts[span] + right.counts[span])
            out.append(
                GroupedTuples(
                    self.router.groups_in_order[used],
                    left.counts[used],
                    right.counts[used],
                    left.batch.slice(int(left.starts[span.start]), int(left.starts[span.stop])),
                    right.batch.slice(int(right.starts[span.start]), int(right.starts[span.stop])),
                    self.router.route,
                )
            )
        drained = sum(len(d.left) + len(d.right) for d in out)
        assert drained == len(left.batch) + len(right.batch), "tuples of a slave that is not served"
        return out

    def validate(self) -> None:
        for shelf in self._all_shelves:
            for pending in shelf:
                pending.validate()


def _rebased(batch: TupleBatch, rebase_us: int | None, rebase_ts: bool = False) -> TupleBatch:
    """See `MiniBuffers.drain`."""
    if rebase_us is None:
        return batch
    arrival = np.maximum(batch.arrival_us - rebase_us, 0)
    return replace(batch, ts=arrival if rebase_ts else batch.ts, arrival_us=arrival)
