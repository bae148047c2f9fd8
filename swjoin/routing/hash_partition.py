"""Routing by hash: key -> partition-group -> slave, through a versioned map.

What: `GroupMap` (owner of every partition-group, with a version); `HashPartition`, which sorts a batch into delivery order: by
slave, then by partition-group, each group in stream order.
Why: the level of indirection between keys and slaves allows moving partition-groups (paper section IV-C). One counting sort
fills all mini-buffers of an epoch at once, so that a slave's delivery is one contiguous slice of every column.
Stays out: the time of sending (`cluster.master.master`), the choice of owners (`policy`). Every tuple goes to one slave with
Route.BOTH.

A partition-group's slot is its index in delivery order.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numba import uint64

from swjoin.core.batch import I64, U64, TupleBatch
from swjoin.core.data_messages import Route
from swjoin.core.hashing import group_of, hash_cell
from swjoin.core.kernel_cache import kernel
from swjoin.core.simd import prefetch


@dataclass(frozen=True)
class GroupMap:
    """owner: int64 (partition_count,), slave id of every partition-group. version: number of changes."""

    owner: I64
    version: int = 0

    @property
    def partition_count(self) -> int:
        return int(self.owner.shape[0])

    def moved(self, group: int, slave: int) -> GroupMap:
        """The map after a partition-group has a new owner."""
        owner = self.owner.copy()
        owner[group] = slave
        return GroupMap(owner, self.version + 1)

    def groups_of(self, slave: int) -> I64:
        """Partition-groups of a slave, ascending: int64."""
        return np.flatnonzero(self.owner == slave).astype(np.int64)

    def validate(self, slave_count: int) -> None:
        assert ((self.owner >= 0) & (self.owner < slave_count)).all(), f"a partition-group has no slave: {self.owner.tolist()}"


@kernel
def _count_slots(key: I64, cell_bits: int, slot_of_group: I64, slot: I64, counts: I64) -> None:
    """slot[i] = slot of tuple i's partition-group; counts[p] = tuples of slot p."""
    partition_count = slot_of_group.shape[0]
    for i in range(key.shape[0]):
        p = slot_of_group[group_of(hash_cell(key[i], cell_bits), partition_count)]
        slot[i] = p
        counts[p] += 1


@kernel
def _count_groups(groups: I64, slot_of_group: I64, slot: I64, counts: I64) -> None:
    """As `_count_slots`, of tuples whose partition-groups are known: int64 (n,)."""
    for i in range(groups.shape[0]):
        p = slot_of_group[groups[i]]
        slot[i] = p
        counts[p] += 1


@kernel
def _groups_of_keys(key: I64, cell_bits: int, partition_count: int, out: I64) -> None:
    for i in range(key.shape[0]):
        out[i] = group_of(hash_cell(key[i], cell_bits), partition_count)


def groups_of_keys(keys: Sequence[int] | I64, partition_count: int, cell_bits: int = 0) -> I64:
    """Partition-groups of keys as they travel: int64 (n,). cell_bits: as of `HashPartition`."""
    given = np.asarray(keys, np.int64)
    out = np.empty(len(given), np.int64)
    _groups_of_keys(given, cell_bits, partition_count, out)
    return out


_LINE, _AHEAD = 8, 16  # values in a cache line; how many values ahead a line is prefetched


@kernel
def _scatter(
    slot: I64,
    cursor: I64,
    order: I64,
    key: I64,
    ts: I64,
    ids: U64,
    arrival: I64,
    key_to: I64,
    ts_to: I64,
    ids_to: U64,
    arrival_to: I64,
) -> None:
    """Stable counting sort by slot: the columns go to their targets, order[j] = source row of target row j. order may be empty.

    The targets were used last some epochs ago and are in no cache, and there are more places to write to than the hardware
    follows: each line is asked for before it is written, without which a tuple takes three times as long.
    """
    ordered = order.shape[0] > 0
    for i in range(key.shape[0]):
        p = uint64(slot[i])
        j = uint64(cursor[p])
        cursor[p] = j + uint64(1)
        if j % uint64(_LINE) == uint64(0):
            ahead = j + uint64(_AHEAD)
            if ordered:
                prefetch(order, ahead)
            prefetch(key_to, ahead)
            prefetch(ts_to, ahead)
            prefetch(ids_to, ahead)
            prefetch(arrival_to, ahead)
        if ordered:
            order[j] = i
        key_to[j] = key[i]
        ts_to[j] = ts[i]
        ids_to[j] = ids[i]
        arrival_to[j] = arrival[i]


@dataclass(frozen=True)
class Partitioned:
    """A batch ordered by slot. counts: int64 (slots,), tuples of each slot; `HashPartition.groups_in_order` has the groups.
    starts: int64 (slots + 1,), prefix sums of counts. slot: int64 (n,), of each tuple of the batch as it was given."""

    batch: TupleBatch
    counts: I64
    starts: I64
    slot: I64


class HashPartition:
    """Sorts batches into delivery order under a `GroupMap`. cell_bits: of the cells of a band's keys (`core.band_keys`)."""

    route = Route.BOTH

    def __init__(self, group_map: GroupMap, slave_count: int, cell_bits: int = 0) -> None:
        group_map.validate(slave_count)
        self.map = group_map
        self.slave_count = slave_count
        self.cell_bits = cell_bits
        per_slave = [group_map.groups_of(slave) for slave in range(slave_count)]
        self.groups_in_order = np.concatenate(per_slave)
        self.first_slot = np.concatenate(([0], np.cumsum([len(g) for g in per_slave]))).astype(np.int64)
        self._slot_of_group = np.empty(group_map.partition_count, np.int64)
        self._slot_of_group[self.groups_in_order] = np.arange(group_map.partition_count)

    def slots_of(self, slave: int) -> slice:
        """The slots of a slave, which are also the indexes of its groups in `groups_in_order`."""
        return slice(int(self.first_slot[slave]), int(self.first_slot[slave + 1]))

    def groups_of(self, keys: I64) -> I64:
        """Partition-groups of keys: int64 (n,)."""
        return groups_of_keys(keys, self.map.partition_count, self.cell_bits)

    def partition(self, batch: TupleBatch, groups: I64 | None = None) -> Partitioned:
        """Stable, O(n): one pass to count, one to scatter. groups: of the tuples, int64 (n,); None: those of their keys."""
        return arrange(batch, self._slot_of_group, self.map.partition_count, self.cell_bits, groups)


def arrange(
    batch: TupleBatch, slot_of_group: I64, slot_count: int, cell_bits: int = 0, groups: I64 | None = None
) -> Partitioned:
    """A batch ordered by slot. slot_of_group: int64 (partition_count,), in 0 .. slot_count - 1. cell_bits: as of
    `HashPartition`. groups: as of its `partition`."""
    n = len(batch)
    counts = np.zeros(slot_count, np.int64)
    slot = np.empty(n, np.int64)
    if groups is None:
        _count_slots(batch.key, cell_bits, slot_of_group, slot, counts)
    else:
        _count_groups(groups, slot_of_group, slot, counts)
    starts = np.zeros(slot_count + 1, np.int64)
    np.cumsum(counts, out=starts[1:])
    order = np.empty(0 if batch.rows is None and batch.columns is None else n, np.int64)
    key, ts, arrival = np.empty(n, np.int64), np.empty(n, np.int64), np.empty(n, np.int64)
    ids = np.empty(n, np.uint64)
    _scatter(slot, starts[:-1].copy(), order, batch.key, batch.ts, batch.id, batch.arrival_us, key, ts, ids, arrival)
    rows = None if batch.rows is None else batch.rows.take(order)
    columns = None if batch.columns is None else batch.columns.permuted(order)
    return Partitioned(TupleBatch(key, ts, ids, arrival, rows, columns), counts, starts, slot)
