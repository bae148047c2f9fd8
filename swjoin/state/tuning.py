"""Fine tuning: extendible hashing inside every partition-group (paper section IV-D, SPEC section 4), as kernels.

What: `tune` splits mini-partition-groups above 2 * theta, merges buddies that together stay within it, doubles and halves
directories.
Why: block nested-loop join costs one comparison per stored tuple, so mini-partitions must stay small whatever the rate.
Stays out: joining and expiry (`state.kernels`).

Equal keys can never be separated. A mini-partition-group is left alone when what its most frequent key leaves over is below
theta / 2, or when no hash bit tells its tuples apart; it is looked at again when it has doubled (`guard`). So a hot key never
grows the directory.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from swjoin.batch import I64
from swjoin.hashing import hash_key
from swjoin.state.arrays import IN_USE, NEVER_USED, RECYCLED, Directories, Minis, Pool
from swjoin.state.kernels import NONE, append_selected, free_blocks, give_block

TUNED, NEED_MINIS, NEED_SLOTS = 0, 1, 2
MAX_DEPTH = 16  # 65,536 slots: bounds a directory even when hashes agree in many bits


@njit(cache=True, nogil=True)
def take_mini(minis: Minis, group: int, depth: int, pattern: int) -> int:
    """An empty mini-partition-group; the caller has made sure that there is a slot."""
    if minis.control[RECYCLED] > 0:
        minis.control[RECYCLED] -= 1
        mini = minis.free[minis.control[RECYCLED]]
    else:
        mini = minis.control[NEVER_USED]
        minis.control[NEVER_USED] += 1
    minis.control[IN_USE] += 1
    for s in range(2):
        minis.first[s, mini] = NONE
        minis.head[s, mini] = NONE
        minis.tuples[s, mini] = 0
    minis.depth[mini] = depth
    minis.pattern[mini] = pattern
    minis.group[mini] = group
    minis.guard[mini] = 0
    return int(mini)


@njit(cache=True, nogil=True)
def give_mini(minis: Minis, mini: int) -> None:
    minis.group[mini] = NONE
    minis.free[minis.control[RECYCLED]] = mini
    minis.control[RECYCLED] += 1
    minis.control[IN_USE] -= 1


@njit(cache=True, nogil=True)
def minis_left(minis: Minis) -> int:
    return int(minis.control[RECYCLED] + minis.group.shape[0] - minis.control[NEVER_USED])


@njit(cache=True, nogil=True)
def _gather(pool: Pool, minis: Minis, mini: int, s: int, out: I64) -> int:
    """Pool positions of a mini-partition's tuples in time order, into `out`; returns their number."""
    size = pool.block_tuples[0]
    fill, following = pool.fill, pool.next
    n = 0
    block = np.int64(minis.first[s, mini])
    while block != NONE:
        for j in range(block * size, block * size + fill[block]):
            out[n] = j
            n += 1
        block = np.int64(following[block])
    return n


@njit(cache=True, nogil=True)
def _can_help(pool: Pool, minis: Minis, mini: int, theta: int, positions: I64) -> bool:
    """Whether splitting can bring this mini-partition-group closer to its range."""
    key = pool.key
    candidate = 0
    votes = 0
    ones = np.uint64(0)
    zeros = np.uint64(0)
    for s in range(2):
        for i in range(_gather(pool, minis, mini, s, positions)):
            k = key[positions[i]]
            hashed = hash_key(k)
            ones |= hashed
            zeros |= ~hashed
            if votes == 0:
                candidate = k
                votes = 1
            elif k == candidate:
                votes += 1
            else:
                votes -= 1
    telling = (ones & zeros) >> np.uint64(minis.depth[mini])
    if telling & np.uint64((1 << (MAX_DEPTH - minis.depth[mini])) - 1) == 0:
        return False
    if votes == 0:
        return True  # no key has a majority
    others = 0
    for s in range(2):
        for i in range(_gather(pool, minis, mini, s, positions)):
            others += key[positions[i]] != candidate
    return 2 * others >= theta


@njit(cache=True, nogil=True)
def _blocks_of(pool: Pool, minis: Minis, mini: int) -> int:
    n = 0
    for s in range(2):
        block = minis.first[s, mini]
        while block != NONE:
            n += 1
            block = pool.next[block]
    return n


@njit(cache=True, nogil=True)
def _double(directories: Directories, group: int) -> bool:
    """Double a directory at the end of the arena; False when the arena is too short."""
    depth = directories.depth[group]
    size = 1 << depth
    start = directories.control[0]
    if start + 2 * size > directories.slots.shape[0]:
        return False
    old = directories.start[group]
    for i in range(size):
        directories.slots[start + i] = directories.slots[old + i]
        directories.slots[start + size + i] = directories.slots[old + i]
    directories.control[0] = start + 2 * size
    directories.start[group] = start
    directories.depth[group] = depth + 1
    return True


@njit(cache=True, nogil=True)
def _point(directories: Directories, minis: Minis, mini: int) -> None:
    """Let every directory entry with this mini's pattern point to it."""
    group = minis.group[mini]
    start = directories.start[group]
    step = 1 << minis.depth[mini]
    for i in range(minis.pattern[mini], 1 << directories.depth[group], step):
        directories.slots[start + i] = mini


@njit(cache=True, nogil=True)
def _split(pool: Pool, minis: Minis, directories: Directories, mini: int, positions: I64, scratch: I64) -> None:
    """Tuples whose hash has the next bit set move to a new mini-partition-group; time order is kept."""
    depth = minis.depth[mini]
    bit = np.uint64(depth)
    twin = take_mini(minis, minis.group[mini], depth + 1, minis.pattern[mini] | (1 << depth))
    minis.depth[mini] = depth + 1
    key = pool.key
    for s in range(2):
        n = _gather(pool, minis, mini, s, positions)
        stay = 0
        go = n
        for i in range(n):  # those that stay move to the front, those that go are kept behind, backwards
            at = positions[i]
            if (hash_key(key[at]) >> bit) & np.uint64(1):
                go -= 1
                scratch[go] = at
            else:
                positions[stay] = at
                stay += 1
        for i in range(n - stay):
            positions[stay + i] = scratch[n - 1 - i]
        old = np.int64(minis.first[s, mini])
        minis.first[s, mini] = NONE
        minis.head[s, mini] = NONE
        minis.tuples[s, mini] = 0
        append_selected(pool, minis, s, mini, positions, stay)
        append_selected(pool, minis, s, twin, positions[stay:], n - stay)
        while old != NONE:
            following = np.int64(pool.next[old])
            give_block(pool, old)
            old = following
    _point(directories, minis, twin)


@njit(cache=True, nogil=True)
def _merge(pool: Pool, minis: Minis, directories: Directories, mini: int, buddy: int, positions: I64, scratch: I64) -> None:
    """Both buddies' tuples into `mini`, merged by time."""
    ts = pool.ts
    for s in range(2):
        n = _gather(pool, minis, mini, s, positions)
        m = _gather(pool, minis, buddy, s, scratch)
        merged = np.empty(n + m, np.int64)
        i = 0
        k = 0
        for j in range(n + m):
            if k == m or (i < n and ts[positions[i]] <= ts[scratch[k]]):
                merged[j] = positions[i]
                i += 1
            else:
                merged[j] = scratch[k]
                k += 1
        mine, theirs = np.int64(minis.first[s, mini]), np.int64(minis.first[s, buddy])
        minis.first[s, mini] = NONE
        minis.head[s, mini] = NONE
        minis.tuples[s, mini] = 0
        append_selected(pool, minis, s, mini, merged, n + m)
        for old in (mine, theirs):
            block = old
            while block != NONE:
                following = np.int64(pool.next[block])
                give_block(pool, block)
                block = following
    minis.depth[mini] -= 1
    minis.pattern[mini] &= (1 << minis.depth[mini]) - 1
    minis.guard[mini] = 0
    give_mini(minis, buddy)
    _point(directories, minis, mini)


@njit(cache=True, nogil=True)
def tune(pool: Pool, minis: Minis, directories: Directories, theta: int) -> int:
    """Bring every mini-partition-group into [theta, 2 * theta] tuples of both streams, as far as its keys allow.

    Returns TUNED, or NEED_MINIS / NEED_SLOTS: grow those arrays and call again. A pool without room for the copy leaves a
    mini-partition-group as it is: tuning is never worth failing for.
    """
    largest = 2 * theta
    for mini in range(minis.control[NEVER_USED]):
        if minis.group[mini] != NONE:
            largest = max(largest, minis.tuples[0, mini], minis.tuples[1, mini])
    positions = np.empty(largest + 1, np.int64)
    scratch = np.empty(largest + 1, np.int64)
    mini = 0
    while mini < minis.control[NEVER_USED]:
        if minis.group[mini] != NONE:
            while True:
                n = minis.tuples[0, mini] + minis.tuples[1, mini]
                if n <= 2 * theta:
                    minis.guard[mini] = 0
                    break
                if n < minis.guard[mini]:
                    break
                if minis.depth[mini] >= MAX_DEPTH or not _can_help(pool, minis, mini, theta, positions):
                    minis.guard[mini] = 2 * n
                    break
                if free_blocks(pool) < _blocks_of(pool, minis, mini) + 4:
                    break
                if minis_left(minis) == 0:
                    return NEED_MINIS
                group = minis.group[mini]
                if minis.depth[mini] == directories.depth[group] and not _double(directories, group):
                    return NEED_SLOTS
                _split(pool, minis, directories, mini, positions, scratch)
        mini += 1
    for mini in range(minis.control[NEVER_USED]):
        while minis.group[mini] != NONE and minis.depth[mini] > 0:
            n = minis.tuples[0, mini] + minis.tuples[1, mini]
            if n >= theta:
                break
            group = minis.group[mini]
            buddy_entry = minis.pattern[mini] ^ (1 << (minis.depth[mini] - 1))
            buddy = directories.slots[directories.start[group] + buddy_entry]
            together = n + minis.tuples[0, buddy] + minis.tuples[1, buddy]
            if minis.depth[buddy] != minis.depth[mini] or together > 2 * theta:
                break
            if free_blocks(pool) < _blocks_of(pool, minis, mini) + _blocks_of(pool, minis, buddy) + 2:
                break
            _merge(pool, minis, directories, mini, buddy, positions, scratch)
    _halve(minis, directories)
    return TUNED


@njit(cache=True, nogil=True)
def _halve(minis: Minis, directories: Directories) -> None:
    """A directory deeper than its deepest mini-partition-group is halved: its low half already says everything."""
    deepest = np.zeros(directories.depth.shape[0], np.int64)
    for mini in range(minis.control[NEVER_USED]):
        if minis.group[mini] != NONE:
            deepest[minis.group[mini]] = max(deepest[minis.group[mini]], minis.depth[mini])
    for group in range(directories.depth.shape[0]):
        if directories.start[group] >= 0 and deepest[group] < directories.depth[group]:
            directories.depth[group] = deepest[group]


def compact(directories: Directories, slots: int) -> Directories:
    """The same directories without gaps, in an arena of `slots` entries."""
    fresh = Directories(np.zeros(slots, np.int32), directories.start.copy(), directories.depth.copy(), np.zeros(1, np.int64))
    used = 0
    for group in np.flatnonzero(directories.start >= 0):
        size = 1 << int(directories.depth[group])
        start = int(directories.start[group])
        fresh.slots[used : used + size] = directories.slots[start : start + size]
        fresh.start[group] = used
        used += size
    fresh.control[0] = used
    return fresh


def live_slots(directories: Directories) -> int:
    """Directory entries in use by all partition-groups."""
    return int((1 << directories.depth[directories.start >= 0]).sum())
