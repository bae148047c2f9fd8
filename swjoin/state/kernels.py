"""The hot loops of the join module: numba kernels over flat arrays (SPEC section 4).

What: sorting a partition-group's fresh tuples by mini-partition-group, block nested-loop join with exact time checks, appending to head
blocks, expiry by block; and the production-delay histogram.
Why: free functions on plain arrays release the GIL, can be profiled alone and tested with the JIT off.
Stays out: splitting and merging (`state.tuning`), ownership of the arrays (`state.arrays`), the driver (`operators.window_join`).

Index `s` is the stream (0 left, 1 right), `o` the opposite one. Blocks of one mini-partition form a chain from the oldest (`first`) to the head
block (`head`), in time order; block b holds pool positions b * block_tuples ... + fill[b].
"""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from swjoin.batch import I64
from swjoin.hashing import hash_key, mix64_scalar
from swjoin.state.arrays import (
    IN_USE,
    MINI_USED,
    NEVER_USED,
    RECYCLED,
    STAT_COMPARISONS,
    STAT_DELAY_MAX,
    STAT_DELAY_SUM,
    STAT_PAIRS,
    Directories,
    FreshTuples,
    Inputs,
    Minis,
    Output,
    Pool,
)

DONE, FULL, NEED_BLOCKS, BUDGET = 0, 1, 2, 3

# cursor fields
CUR_GROUP, CUR_SORTED, CUR_TOUCHED, CUR_PART, CUR_BLOCK, CUR_PROBE, CUR_TOUCHED_COUNT = 0, 1, 2, 3, 4, 5, 6
CURSOR_SIZE = 7

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_CHUNK = 16
NONE = -1

_SUB_BITS = 4  # 16 histogram buckets per power of two: at most 1/16 wide, at most 3.2 % from the middle
HISTOGRAM_SIZE = 16 + 59 * 16


@njit(cache=True, nogil=True, inline="always")
def histogram_index(value_us):  # type: ignore[no-untyped-def]
    """Bucket of a delay in microseconds (>= 0)."""
    if value_us < 16:
        return value_us
    exponent = 4
    while (value_us >> (exponent + 1)) > 0:
        exponent += 1
    return 16 + (exponent - 4) * 16 + ((value_us >> (exponent - _SUB_BITS)) & 15)


def histogram_quantile(histogram: I64, q: float) -> float:
    """The q-quantile in microseconds, from the middle of its bucket; 0.0 for an empty histogram."""
    total = int(histogram.sum())
    if total == 0:
        return 0.0
    index = int(np.searchsorted(np.cumsum(histogram), max(1, int(np.ceil(q * total)))))
    if index < 16:
        return float(index)
    exponent, sub = divmod(index - 16, 16)
    width = 1 << exponent
    return float((16 + sub) * width + width / 2 - 0.5)


# ---------------------------------------------------------------- blocks


@njit(cache=True, nogil=True)
def take_block(pool: Pool) -> int:
    """A free block, recycled if possible; the caller has made sure that there is one."""
    if pool.control[RECYCLED] > 0:
        pool.control[RECYCLED] -= 1
        block = pool.free[pool.control[RECYCLED]]
    else:
        block = pool.control[NEVER_USED]
        pool.control[NEVER_USED] += 1
    pool.control[IN_USE] += 1
    pool.fill[block] = 0
    pool.next[block] = NONE
    return block


@njit(cache=True, nogil=True)
def give_block(pool: Pool, block: int) -> None:
    pool.free[pool.control[RECYCLED]] = block
    pool.control[RECYCLED] += 1
    pool.control[IN_USE] -= 1


@njit(cache=True, nogil=True)
def free_blocks(pool: Pool) -> int:
    return pool.control[RECYCLED] + pool.fill.shape[0] - pool.control[NEVER_USED]


@njit(cache=True, nogil=True)
def append_tuple(pool: Pool, minis: Minis, s: int, mini: int, key: int, ts: int, ident: np.uint64, ref: int) -> None:
    """Put one tuple into the head block of a mini-partition."""
    size = pool.block_tuples[0]
    head = minis.head[s, mini]
    if head == NONE or pool.fill[head] == size:
        block = take_block(pool)
        if head == NONE:
            minis.first[s, mini] = block
        else:
            pool.next[head] = block
        minis.head[s, mini] = block
        head = block
    at = head * size + pool.fill[head]
    pool.fill[head] += 1
    pool.key[at] = key
    pool.ts[at] = ts
    pool.id[at] = ident
    pool.ref[at] = ref
    minis.count[s, mini] += 1


# ---------------------------------------------------------------- fresh tuples


@njit(cache=True, nogil=True)
def sort_fresh(
    group: int, s: int, start: int, stop: int, data: Inputs, directories: Directories, fresh: FreshTuples, touched_count: int
) -> int:
    """Count a group's tuples of one stream per mini-partition; new mini-partitions join the touched list. Returns its length."""
    base = directories.start[group]
    mask = np.uint64((1 << directories.depth[group]) - 1)
    for i in range(start, stop):
        mini = directories.slots[base + np.int64(hash_key(data.key[s][i]) & mask)]
        fresh.mini_of[s, i - start] = mini
        if fresh.count[0, mini] == 0 and fresh.count[1, mini] == 0:
            fresh.touched[touched_count] = mini
            touched_count += 1
        fresh.count[s, mini] += 1
    return touched_count


@njit(cache=True, nogil=True)
def scatter_fresh(s: int, start: int, stop: int, data: Inputs, fresh: FreshTuples, touched_count: int) -> None:
    """Stable scatter of one stream's tuples into mini-partition order; fresh.begin[s, t] is where touched mini t starts."""
    position = 0
    for t in range(touched_count):
        mini = fresh.touched[t]
        fresh.begin[s, t] = position
        n = fresh.count[s, mini]
        fresh.count[s, mini] = position
        position += n
    fresh.begin[s, touched_count] = position
    for i in range(start, stop):
        mini = fresh.mini_of[s, i - start]
        j = fresh.count[s, mini]
        fresh.count[s, mini] = j + 1
        fresh.key[s, j] = data.key[s][i]
        fresh.ts[s, j] = data.ts[s][i]
        fresh.id[s, j] = data.id[s][i]
        fresh.arrival[s, j] = data.arrival[s][i]
        fresh.ref[s, j] = data.ref[s] + i
    for t in range(touched_count):
        fresh.count[s, fresh.touched[t]] = 0


# ---------------------------------------------------------------- joining


@njit(cache=True, nogil=True, inline="always")
def _record_delay(now, arrival, matches, stats, histogram):  # type: ignore[no-untyped-def]
    delay = now - arrival
    if delay < 0:
        delay = 0
    histogram[histogram_index(delay)] += matches
    stats[STAT_DELAY_SUM] += delay * matches
    if delay > stats[STAT_DELAY_MAX]:
        stats[STAT_DELAY_MAX] = delay


@njit(cache=True, nogil=True)
def _match_range(
    s: int,
    i: int,
    key: I64,
    ts: I64,
    ids: NDArray[np.uint64],
    ref: I64,
    low: int,
    high: int,
    fresh: FreshTuples,
    lower: int,
    upper: int,
    out: Output,
    digest: NDArray[np.uint64],
    g: int,
) -> int:
    """Probe i of stream s against positions low..high of the opposite side's columns; emits matches, returns their number."""
    k = fresh.key[s, i]
    t = fresh.ts[s, i]
    ident = fresh.id[s, i]
    if s == 0:  # stored right tuples: lower <= stored - t <= upper
        earliest = t + lower
        latest = t + upper
    else:
        earliest = t - upper
        latest = t - lower
    matches = 0
    total = np.uint64(0)
    at = low
    while at < high:
        stop = min(at + _CHUNK, high)
        hits = 0
        for j in range(at, stop):
            hits += key[j] == k
        if hits > 0:
            for j in range(at, stop):
                if key[j] == k and ts[j] >= earliest and ts[j] <= latest:
                    if s == 0:
                        total += mix64_scalar(ident * _GOLDEN + mix64_scalar(ids[j]))
                    else:
                        total += mix64_scalar(ids[j] * _GOLDEN + mix64_scalar(ident))
                    if out.capacity[0] > 0:
                        n = out.used[0]
                        out.key[n] = k
                        out.ts[s, n] = t
                        out.ts[1 - s, n] = ts[j]
                        out.id[s, n] = ident
                        out.id[1 - s, n] = ids[j]
                        out.ref[s, n] = fresh.ref[s, i]
                        out.ref[1 - s, n] = ref[j]
                        out.used[0] = n + 1
                    matches += 1
        at = stop
    digest[g] += total
    return matches


@njit(cache=True, nogil=True)
def _join_stored(
    s: int,
    t: int,
    mini: int,
    g: int,
    pool: Pool,
    minis: Minis,
    fresh: FreshTuples,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    out: Output,
    counts: I64,
    digest: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Fresh tuples of stream s in touched mini t, against the opposite mini-partition's blocks. False when the output is full."""
    o = 1 - s
    begin, end = fresh.begin[s, t], fresh.begin[s, t + 1]
    block = minis.first[o, mini] if cursor[CUR_BLOCK] == NONE else cursor[CUR_BLOCK]
    if begin == end:
        return True
    size = pool.block_tuples[0]
    first_ts, last_ts = fresh.ts[s, begin], fresh.ts[s, end - 1]
    if s == 0:
        earliest = first_ts + lower
        latest = last_ts + upper
    else:
        earliest = first_ts - upper
        latest = last_ts - lower
    while block != NONE:
        low = block * size
        fill = pool.fill[block]
        if pool.ts[low] > latest:
            break  # blocks are in time order: every later one is too new for all these probes
        if pool.ts[low + fill - 1] >= earliest:
            probe = begin if cursor[CUR_PROBE] == NONE else cursor[CUR_PROBE]
            while probe < end:
                if out.capacity[0] > 0 and out.capacity[0] - out.used[0] < size:
                    cursor[CUR_BLOCK] = block
                    cursor[CUR_PROBE] = probe
                    return False
                matches = _match_range(
                    s, probe, pool.key, pool.ts, pool.id, pool.ref, low, low + fill, fresh, lower, upper, out, digest, g
                )
                if matches > 0:
                    counts[g] += matches
                    stats[STAT_PAIRS] += matches
                    _record_delay(now, fresh.arrival[s, probe], matches, stats, histogram)
                probe += 1
            stats[STAT_COMPARISONS] += (end - begin) * fill
            cursor[CUR_PROBE] = NONE
        block = pool.next[block]
    cursor[CUR_BLOCK] = NONE
    return True


@njit(cache=True, nogil=True)
def _join_fresh(
    t: int,
    g: int,
    size: int,
    fresh: FreshTuples,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    out: Output,
    counts: I64,
    digest: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Fresh left against fresh right tuples of touched mini t, in ranges of one block. False when the output is full."""
    begin, end = fresh.begin[0, t], fresh.begin[0, t + 1]
    right_begin, right_end = fresh.begin[1, t], fresh.begin[1, t + 1]
    probe = begin if cursor[CUR_PROBE] == NONE else cursor[CUR_PROBE]
    low = right_begin if cursor[CUR_BLOCK] == NONE else cursor[CUR_BLOCK]
    key, ts, ids, ref = fresh.key[1], fresh.ts[1], fresh.id[1], fresh.ref[1]
    while probe < end:
        while low < right_end:
            if out.capacity[0] > 0 and out.capacity[0] - out.used[0] < size:
                cursor[CUR_BLOCK] = low
                cursor[CUR_PROBE] = probe
                return False
            high = min(low + size, right_end)
            matches = _match_range(0, probe, key, ts, ids, ref, low, high, fresh, lower, upper, out, digest, g)
            if matches > 0:
                counts[g] += matches
                stats[STAT_PAIRS] += matches
                t_left = fresh.ts[0, probe]
                for j in range(low, high):  # the later arrival of the two differs from pair to pair
                    gap = ts[j] - t_left
                    if key[j] == fresh.key[0, probe] and gap >= lower and gap <= upper:
                        _record_delay(now, max(fresh.arrival[0, probe], fresh.arrival[1, j]), 1, stats, histogram)
            stats[STAT_COMPARISONS] += high - low
            low = high
        low = right_begin
        probe += 1
    cursor[CUR_BLOCK] = NONE
    cursor[CUR_PROBE] = NONE
    return True


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

    Returns (status, tuples done): DONE, BUDGET, FULL (output; call again to go on exactly there) or NEED_BLOCKS (the pool is too small for the
    next group). Per touched mini-partition-group: fresh left x stored right, fresh right x stored left, fresh left x
    fresh right, then both go to their head blocks: fresh tuples leave out the opposite's fresh tuples exactly once.
    """
    done = 0
    size = pool.block_tuples[0]
    store_left, probe_left = data.store[0], data.probe[0]
    store_right, probe_right = data.store[1], data.probe[1]
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
        while cursor[CUR_TOUCHED] < cursor[CUR_TOUCHED_COUNT]:
            t = cursor[CUR_TOUCHED]
            mini = fresh.touched[t]
            if cursor[CUR_PART] == 0:
                if probe_left and not _join_stored(
                    0, t, mini, g, pool, minis, fresh, cursor, lower, upper, now, out, counts, digest, stats, histogram
                ):
                    return FULL, done
                cursor[CUR_PART] = 1
            if cursor[CUR_PART] == 1:
                if probe_right and not _join_stored(
                    1, t, mini, g, pool, minis, fresh, cursor, lower, upper, now, out, counts, digest, stats, histogram
                ):
                    return FULL, done
                cursor[CUR_PART] = 2
            if cursor[CUR_PART] == 2:
                meet = (probe_left and store_right) or (probe_right and store_left)
                if meet and not _join_fresh(t, g, size, fresh, cursor, lower, upper, now, out, counts, digest, stats, histogram):
                    return FULL, done
            for s in range(2):
                if data.store[s]:
                    for i in range(fresh.begin[s, t], fresh.begin[s, t + 1]):
                        append_tuple(pool, minis, s, mini, fresh.key[s, i], fresh.ts[s, i], fresh.id[s, i], fresh.ref[s, i])
            cursor[CUR_PART] = 0
            cursor[CUR_TOUCHED] = t + 1
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
                minis.count[s, mini] -= n
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
            left += minis.count[0, mini]
            right += minis.count[1, mini]
    return left, right


assert MINI_USED == IN_USE
