"""Sorting the fresh tuples of one partition-group by mini-partition, as kernels.

What: `sort_fresh` counts them per mini-partition-group, `scatter_fresh` lays them out.
Why: a build block is read once for all its probes if the probes are adjacent.
Stays out: joining and storing them (`state.join_kernel`).
"""

from __future__ import annotations

import numpy as np
from numba import uint64

from swjoin.core.hashing import hash_cell, hash_key, tag_in_cell, tag_of
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import ID, KEY, REF, ROW, TS
from swjoin.core.simd import prefetch
from swjoin.state.arrays import CELL_BITS, COUNTERS, FRESH, UNIT_BITS, Band, Directories, FreshTuples, Inputs, Minis, Pool


@kernel(inline="always")
def tags_before(key, s, band):  # type: ignore[no-untyped-def]
    """Where the tags of possible partners begin, before a tuple's own, and how many follow the first one."""
    if s == band.wide:
        return (key & 1) * band.reach, band.reach
    within = key & ((np.int64(1) << band.cell_bits) - 1)  # a copy in this cell may be behind it, near the cell's begin alone
    return band.reach, band.reach * 2 if within <= band.span + 1 else band.reach


@kernel
def sort_fresh(
    group: int,
    s: int,
    start: int,
    stop: int,
    data: Inputs,
    pool: Pool,
    directories: Directories,
    minis: Minis,
    fresh: FreshTuples,
    touched_count: int,
) -> int:
    """Count a group's tuples of one stream per mini-partition; new mini-partitions join the touched list.

    Returns its length.
    """
    first_slot = directories.start[group]
    mask = np.uint64((1 << directories.depth[group]) - 1)
    cell_bits = pool.shape[CELL_BITS]
    slots, key, arrival = directories.slots, data.key[s], data.arrival[s]
    counters, mini_of, touched = minis.counters, fresh.mini_of, fresh.touched
    earliest, latest = fresh.arrivals[0], fresh.arrivals[1]
    first, last = uint64(start), uint64(stop)  # numba reads a negative index from the end, and tests for one
    offset = uint64(s * fresh.base[0])
    for i in range(first, last):
        mini = slots[uint64(first_slot) + (hash_cell(key[i], cell_bits) & mask)]
        mini_of[offset + (i - first)] = mini
        prefetch(counters, int(mini) * COUNTERS)
        earliest = min(earliest, arrival[i])
        latest = max(latest, arrival[i])
    for i in range(first, last):
        counter = uint64(mini_of[offset + (i - first)]) * uint64(COUNTERS) + uint64(FRESH)
        if counters[counter] == 0 and counters[counter + uint64(1)] == 0:
            touched[touched_count] = mini_of[offset + (i - first)]
            touched_count += 1
        counters[counter + uint64(s)] += 1
    fresh.arrivals[0], fresh.arrivals[1] = earliest, latest
    return touched_count


@kernel
def scatter_fresh(
    s: int,
    start: int,
    stop: int,
    data: Inputs,
    pool: Pool,
    minis: Minis,
    fresh: FreshTuples,
    touched_count: int,
    band: Band | None,
) -> None:
    """Stable scatter of one stream's tuples into mini-partition order; fresh.begin[s, t] is where touched mini t starts."""
    cell_bits, unit_bits = pool.shape[CELL_BITS], pool.shape[UNIT_BITS]
    key, ts, ids, arrival, first_ref = data.key[s], data.ts[s], data.id[s], data.arrival[s], data.ref[s]
    counters, mini_of, touched, begin = minis.counters, fresh.mini_of, fresh.touched, fresh.begin
    rows, tags, arrival_to = fresh.rows, fresh.tags, fresh.arrival
    sequence, count_windows = data.sequence[s], data.sequence[s].shape[0] > 0
    offset = s * fresh.base[0]
    position = offset
    for t in range(touched_count):
        counter = np.int64(touched[t]) * COUNTERS + FRESH + s
        begin[s, t] = position
        n = counters[counter]
        counters[counter] = position
        position += n
    begin[s, touched_count] = position
    first, at = uint64(start), uint64(offset)
    for i in range(first, uint64(stop)):
        counter = uint64(mini_of[at + (i - first)]) * uint64(COUNTERS) + uint64(FRESH + s)
        j = uint64(counters[counter])
        counters[counter] = j + uint64(1)
        row = j * uint64(ROW)
        k = key[i]
        rows[row + uint64(KEY)] = k
        rows[row + uint64(TS)] = ts[i]
        rows[row + uint64(ID)] = np.int64(ids[i])
        rows[row + uint64(REF)] = first_ref + np.int64(i)
        if band is None:
            tags[j] = tag_of(hash_key(k))
        else:
            tag = tag_in_cell(k, hash_cell(k, cell_bits), cell_bits, unit_bits)
            tags[j] = tag
            before, reach = tags_before(k, s, band)
            fresh.low[j] = np.uint16((np.int64(tag) - before) & 0xFFFF)
            fresh.reach[j] = reach
        arrival_to[j] = arrival[i]
        if count_windows:
            fresh.sequence[j] = sequence[i]
    for t in range(touched_count):
        counters[np.int64(touched[t]) * COUNTERS + FRESH + s] = 0
