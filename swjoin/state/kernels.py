"""The hot loops of the join module: numba kernels over flat arrays (SPEC section 4).

What: sorting a partition-group's fresh tuples by mini-partition-group, block nested-loop join with exact time checks,
appending to head blocks, expiry by block.
Why: free functions on plain arrays release the GIL, can be profiled alone and tested with the JIT off.
Stays out: splitting and merging (`state.tuning`), ownership of the arrays (`state.arrays`), the driver
(`operators.window_join`).

Index `s` is the stream (0 left, 1 right), `o` the opposite one. Blocks of one mini-partition form a chain from the oldest
(`first`) to the head block (`head`), in time order; block b holds pool positions b * block_tuples ... + fill[b].
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from swjoin.batch import I64
from swjoin.hashing import hash_key, mix64_scalar
from swjoin.state.arrays import (
    I32,
    IN_USE,
    NEVER_USED,
    RECYCLED,
    STAT_COMPARISONS,
    STAT_PAIRS,
    Directories,
    FreshTuples,
    Inputs,
    Minis,
    Output,
    Pool,
)
from swjoin.state.histogram import record_delay

DONE, FULL, NEED_BLOCKS, BUDGET = 0, 1, 2, 3

# cursor fields
CUR_GROUP, CUR_SORTED, CUR_TOUCHED, CUR_PART, CUR_BLOCK, CUR_PROBE, CUR_TOUCHED_COUNT = 0, 1, 2, 3, 4, 5, 6
CURSOR_SIZE = 7

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
NONE = -1

# ---------------------------------------------------------------- blocks


@njit(cache=True, nogil=True)
def _take_block(free: I32, fill: I32, following: I32, control: I64) -> int:
    """A free block, recycled if possible; the caller has made sure that there is one."""
    if control[RECYCLED] > 0:
        control[RECYCLED] -= 1
        block = np.int64(free[control[RECYCLED]])
    else:
        block = control[NEVER_USED]
        control[NEVER_USED] += 1
    control[IN_USE] += 1
    fill[block] = 0
    following[block] = NONE
    return int(block)


@njit(cache=True, nogil=True)
def give_block(pool: Pool, block: int) -> None:
    pool.free[pool.control[RECYCLED]] = block
    pool.control[RECYCLED] += 1
    pool.control[IN_USE] -= 1


@njit(cache=True, nogil=True)
def free_blocks(pool: Pool) -> int:
    return int(pool.control[RECYCLED] + pool.fill.shape[0] - pool.control[NEVER_USED])


@njit(cache=True, nogil=True)
def append_selected(pool: Pool, minis: Minis, s: int, mini: int, positions: I64, count: int) -> None:
    """Append pool tuples (positions[:count], in time order) to a mini-partition, copying them; sources stay as they are."""
    size = pool.block_tuples[0]
    key, ts, ids, ref = pool.key, pool.ts, pool.id, pool.ref
    fill, following, free, control = pool.fill, pool.next, pool.free, pool.control
    head = minis.head[s, mini]
    for i in range(count):
        if head == NONE or fill[head] == size:
            block = _take_block(free, fill, following, control)
            if head == NONE:
                minis.first[s, mini] = block
            else:
                following[head] = block
            head = block
        to = head * size + fill[head]
        at = positions[i]
        key[to] = key[at]
        ts[to] = ts[at]
        ids[to] = ids[at]
        ref[to] = ref[at]
        fill[head] += 1
    minis.head[s, mini] = head
    minis.tuples[s, mini] += count


@njit(cache=True, nogil=True)
def append_columns(
    pool: Pool, minis: Minis, s: int, mini: int, key: I64, ts: I64, ids: NDArray[np.uint64], first_ref: int
) -> None:
    """Append n tuples from columns to a mini-partition; payload references count up from first_ref."""
    size = pool.block_tuples[0]
    head = minis.head[s, mini]
    for i in range(key.shape[0]):
        if head == NONE or pool.fill[head] == size:
            block = _take_block(pool.free, pool.fill, pool.next, pool.control)
            if head == NONE:
                minis.first[s, mini] = block
            else:
                pool.next[head] = block
            head = block
        to = head * size + pool.fill[head]
        pool.key[to] = key[i]
        pool.ts[to] = ts[i]
        pool.id[to] = ids[i]
        pool.ref[to] = first_ref + i
        pool.fill[head] += 1
    minis.head[s, mini] = head
    minis.tuples[s, mini] += key.shape[0]


# ---------------------------------------------------------------- fresh tuples


@njit(cache=True, nogil=True)
def sort_fresh(
    group: int, s: int, start: int, stop: int, data: Inputs, directories: Directories, fresh: FreshTuples, touched_count: int
) -> int:
    """Count a group's tuples of one stream per mini-partition; new mini-partitions join the touched list.

    Returns its length.
    """
    base = directories.start[group]
    mask = np.uint64((1 << directories.depth[group]) - 1)
    slots, key = directories.slots, data.key[s]
    mini_of, count, touched = fresh.mini_of, fresh.tuples, fresh.touched
    for i in range(start, stop):
        mini = slots[base + np.int64(hash_key(key[i]) & mask)]
        mini_of[s, i - start] = mini
        if count[0, mini] == 0 and count[1, mini] == 0:
            touched[touched_count] = mini
            touched_count += 1
        count[s, mini] += 1
    return touched_count


@njit(cache=True, nogil=True)
def scatter_fresh(s: int, start: int, stop: int, data: Inputs, fresh: FreshTuples, touched_count: int) -> None:
    """Stable scatter of one stream's tuples into mini-partition order; fresh.begin[s, t] is where touched mini t starts."""
    key, ts, ids, arrival, first_ref = data.key[s], data.ts[s], data.id[s], data.arrival[s], data.ref[s]
    mini_of, count, touched, begin = fresh.mini_of, fresh.tuples, fresh.touched, fresh.begin
    key_to, ts_to, id_to, arrival_to, ref_to = fresh.key, fresh.ts, fresh.id, fresh.arrival, fresh.ref
    position = 0
    for t in range(touched_count):
        mini = touched[t]
        begin[s, t] = position
        n = count[s, mini]
        count[s, mini] = position
        position += n
    begin[s, touched_count] = position
    for i in range(start, stop):
        mini = mini_of[s, i - start]
        j = count[s, mini]
        count[s, mini] = j + 1
        key_to[s, j] = key[i]
        ts_to[s, j] = ts[i]
        id_to[s, j] = ids[i]
        arrival_to[s, j] = arrival[i]
        ref_to[s, j] = first_ref + i
    for t in range(touched_count):
        count[s, touched[t]] = 0


# ---------------------------------------------------------------- joining


@njit(cache=True, nogil=True)
def _join_group(
    g: int,
    data: Inputs,
    pool: Pool,
    minis: Minis,
    fresh: FreshTuples,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Join and store one partition-group's sorted fresh tuples, from the cursor on. False when the output is full.

    Parts per touched mini: 0 fresh left x stored right, 1 fresh right x stored left, 2 fresh left x fresh right, then both are
    stored. Everything is unpacked into locals first: reaching into a named tuple costs an atomic reference count each time.
    """
    size = pool.block_tuples[0]
    pool_key, pool_ts, pool_id, pool_ref = pool.key, pool.ts, pool.id, pool.ref
    pool_fill, pool_next, pool_free, pool_control = pool.fill, pool.next, pool.free, pool.control
    first, heads, stored = minis.first, minis.head, minis.tuples
    fresh_key, fresh_ts, fresh_id, fresh_ref, arrival = fresh.key, fresh.ts, fresh.id, fresh.ref, fresh.arrival
    right_key, right_ts, right_id, right_ref = fresh.key[1], fresh.ts[1], fresh.id[1], fresh.ref[1]
    begins, touched = fresh.begin, fresh.touched
    out_key, out_ts, out_id, out_ref = out.key, out.ts, out.id, out.ref
    capacity, used = out.capacity[0], out.used[0]
    probe_left, probe_right, store_left, store_right = data.probe[0], data.probe[1], data.store[0], data.store[1]
    meet = (probe_left and store_right) or (probe_right and store_left)
    pairs = 0
    comparisons = 0
    digest = np.uint64(0)
    full = False
    t = cursor[CUR_TOUCHED]
    while t < cursor[CUR_TOUCHED_COUNT]:
        mini = touched[t]
        part = cursor[CUR_PART]
        while part < 3:
            s = 1 if part == 1 else 0
            begin, end = begins[s, t], begins[s, t + 1]
            wanted = probe_left if part == 0 else probe_right if part == 1 else meet
            if not wanted or begin == end:
                part += 1
                continue
            if part == 2:
                key, ts, ids, ref = right_key, right_ts, right_id, right_ref
                place = begins[1, t] if cursor[CUR_BLOCK] == NONE else cursor[CUR_BLOCK]
                last = begins[1, t + 1]
                if place >= last:
                    place = NONE
            else:
                key, ts, ids, ref = pool_key, pool_ts, pool_id, pool_ref
                place = np.int64(first[1 - s, mini]) if cursor[CUR_BLOCK] == NONE else cursor[CUR_BLOCK]
                last = 0
            if s == 0:  # stored right tuples: lower <= stored - probe <= upper
                reach_low, reach_high = lower, upper
            else:
                reach_low, reach_high = -upper, -lower
            earliest_any = fresh_ts[s, begin] + reach_low
            latest_any = fresh_ts[s, end - 1] + reach_high
            while place != NONE:
                if part == 2:
                    low = place
                    high = min(place + size, last)
                    following = high if high < last else NONE
                else:
                    low = place * size
                    high = low + pool_fill[place]
                    following = np.int64(pool_next[place])
                if ts[low] > latest_any:
                    break  # in time order: whatever follows is too new for all these probes
                if ts[high - 1] >= earliest_any:
                    probe = begin if cursor[CUR_PROBE] == NONE else cursor[CUR_PROBE]
                    while probe < end:
                        if capacity > 0 and capacity - used < size:
                            cursor[CUR_TOUCHED], cursor[CUR_PART] = t, part
                            cursor[CUR_BLOCK], cursor[CUR_PROBE] = place, probe
                            full = True
                            break
                        probe_ts = fresh_ts[s, probe]
                        earliest, latest = probe_ts + reach_low, probe_ts + reach_high
                        if ts[low] > latest or ts[high - 1] < earliest:  # long epochs: most of a block is out of reach
                            probe += 1
                            continue
                        comparisons += high - low
                        k = fresh_key[s, probe]
                        hits = 0
                        for j in range(uint64(low), uint64(high)):  # unsigned: no wrap-around check, so vector compares
                            hits += key[j] == k
                        if hits > 0:
                            ident = fresh_id[s, probe]
                            came = arrival[s, probe]
                            matches = 0
                            j = uint64(low)
                            while hits > 0:
                                if key[j] == k:
                                    hits -= 1
                                    if ts[j] >= earliest and ts[j] <= latest:
                                        if s == 0:
                                            digest += mix64_scalar(ident * _GOLDEN + mix64_scalar(ids[j]))
                                        else:
                                            digest += mix64_scalar(ids[j] * _GOLDEN + mix64_scalar(ident))
                                        if capacity > 0:
                                            out_key[used] = k
                                            out_ts[s, used] = probe_ts
                                            out_ts[1 - s, used] = ts[j]
                                            out_id[s, used] = ident
                                            out_id[1 - s, used] = ids[j]
                                            out_ref[s, used] = fresh_ref[s, probe]
                                            out_ref[1 - s, used] = ref[j]
                                            used += 1
                                        if part == 2:  # the later arrival of the two differs from pair to pair
                                            record_delay(now, max(came, arrival[1, j]), 1, stats, histogram)
                                        matches += 1
                                j += uint64(1)
                            if matches > 0:
                                pairs += matches
                                if part != 2:
                                    record_delay(now, came, matches, stats, histogram)
                        probe += 1
                    if full:
                        break
                    cursor[CUR_PROBE] = NONE
                place = following
            if full:
                break
            cursor[CUR_BLOCK] = NONE
            part += 1
        if full:
            break
        for s in range(2):
            if not (store_left if s == 0 else store_right):
                continue
            head = heads[s, mini]
            begin, end = begins[s, t], begins[s, t + 1]
            i = begin
            while i < end:
                if head == NONE or pool_fill[head] == size:
                    block = _take_block(pool_free, pool_fill, pool_next, pool_control)
                    if head == NONE:
                        first[s, mini] = block
                    else:
                        pool_next[head] = block
                    head = block
                    heads[s, mini] = head
                n = min(end - i, size - pool_fill[head])
                to = head * size + pool_fill[head]
                for j in range(n):
                    pool_key[to + j] = fresh_key[s, i + j]
                    pool_ts[to + j] = fresh_ts[s, i + j]
                    pool_id[to + j] = fresh_id[s, i + j]
                    pool_ref[to + j] = fresh_ref[s, i + j]
                pool_fill[head] += n
                i += n
            stored[s, mini] += end - begin
        cursor[CUR_PART] = 0
        t += 1
        cursor[CUR_TOUCHED] = t
    counts[g] += pairs
    digests[g] += digest
    stats[STAT_PAIRS] += pairs
    stats[STAT_COMPARISONS] += comparisons
    out.used[0] = used
    return not full


@njit(cache=True, nogil=True)
def join_groups(
    data: Inputs,
    pool: Pool,
    minis: Minis,
    directories: Directories,
    fresh: FreshTuples,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    budget: int,
    out: Output,
    counts: I64,
    digest: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> tuple[int, int]:
    """Join whole partition-groups of a delivery from the cursor on, until `budget` tuples are done.

    Returns (status, tuples done): DONE, BUDGET, FULL (output; call again to go on exactly there) or NEED_BLOCKS (the pool is
    too small for the next group). Per touched mini-partition-group: fresh left x stored right, fresh right x stored left,
    fresh left x fresh right, then both go to their head blocks: fresh tuples leave out the opposite's fresh tuples exactly
    once.
    """
    done = 0
    size = pool.block_tuples[0]
    while cursor[CUR_GROUP] < data.groups.shape[0]:
        if done >= budget:
            return BUDGET, done
        g = cursor[CUR_GROUP]
        left_start, left_stop = data.offsets[0][g], data.offsets[0][g + 1]
        right_start, right_stop = data.offsets[1][g], data.offsets[1][g + 1]
        if cursor[CUR_SORTED] == 0:
            group = data.groups[g]
            touched = sort_fresh(group, 0, left_start, left_stop, data, directories, fresh, 0)
            touched = sort_fresh(group, 1, right_start, right_stop, data, directories, fresh, touched)
            scatter_fresh(0, left_start, left_stop, data, fresh, touched)
            scatter_fresh(1, right_start, right_stop, data, fresh, touched)
            wanted = (left_stop - left_start + right_stop - right_start) // size + 2 * touched
            if wanted > free_blocks(pool):
                return NEED_BLOCKS, done
            cursor[CUR_SORTED] = 1
            cursor[CUR_TOUCHED_COUNT] = touched
            cursor[CUR_TOUCHED] = 0
            cursor[CUR_PART] = 0
            cursor[CUR_BLOCK] = NONE
            cursor[CUR_PROBE] = NONE
        if not _join_group(g, data, pool, minis, fresh, cursor, lower, upper, now, out, counts, digest, stats, histogram):
            return FULL, done
        done += left_stop - left_start + right_stop - right_start
        cursor[CUR_SORTED] = 0
        cursor[CUR_GROUP] = g + 1
    return DONE, done


# ---------------------------------------------------------------- expiry


@njit(cache=True, nogil=True)
def expire(pool: Pool, minis: Minis, dead_below_left: int, dead_below_right: int) -> int:
    """Drop, in every mini-partition, the blocks whose newest tuple has ts below its stream's limit. Returns tuples dropped."""
    size = pool.block_tuples[0]
    dropped = 0
    for mini in range(minis.control[NEVER_USED]):
        if minis.group[mini] == NONE:
            continue
        for s in range(2):
            limit = dead_below_left if s == 0 else dead_below_right
            block = minis.first[s, mini]
            while block != NONE and pool.ts[block * size + pool.fill[block] - 1] < limit:
                n = pool.fill[block]
                following = pool.next[block]
                give_block(pool, block)
                minis.tuples[s, mini] -= n
                dropped += n
                block = following
            minis.first[s, mini] = block
            if block == NONE:
                minis.head[s, mini] = NONE
    return dropped


@njit(cache=True, nogil=True)
def live_tuples(minis: Minis) -> tuple[int, int]:
    """Tuples in the windows, left and right."""
    left = 0
    right = 0
    for mini in range(minis.control[NEVER_USED]):
        if minis.group[mini] != NONE:
            left += minis.tuples[0, mini]
            right += minis.tuples[1, mini]
    return left, right
