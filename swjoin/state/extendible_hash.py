"""Fine tuning: extendible hashing inside every partition-group (paper section IV-D, SPEC section 4), as kernels.

What: `split_due` splits mini-partition-groups above 2 * theta, `merge_small` merges buddies that together stay within it;
directories double and halve.
Why: block nested-loop join costs one comparison per stored tuple, so mini-partitions must stay small whatever the rate.
Stays out: joining (`state.join_kernel`), expiry (`state.blocks`).

Equal keys can never be separated. A mini-partition-group is not split while the tuples without its most frequent key are
fewer than theta / 2, or while no hash bit distinguishes its tuples; the test is repeated when it has doubled (`guard`). So a
hot key never grows the directory.
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.hashing import hash_cell, tag_of
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import (
    KEY,
    ROW,
    TS,
)
from swjoin.core.simd import copy_items, prefetch
from swjoin.state.arrays import (
    CELL_BITS,
    COUNTERS,
    DUE,
    FILL,
    FIRST,
    FIRST_TS,
    FRESH,
    HEAD,
    HEADER,
    IN_USE,
    LAST_TS,
    NEVER_USED,
    NEXT,
    RECYCLED,
    TUPLES,
    Directories,
    Minis,
    Pool,
)
from swjoin.state.blocks import NONE, append_row, chain_blocks, free_blocks, give_block, give_chain, note_times, take_block

TUNED, NEED_MINIS, NEED_SLOTS = 0, 1, 2
MAX_DEPTH = 16  # 65,536 slots: bounds a directory even when hashes agree in many bits


@kernel
def _empty(counters: I64, counter: int, s: int) -> None:
    """No blocks and no tuples; the blocks themselves are the caller's."""
    counters[counter + FIRST + s] = NONE
    counters[counter + HEAD + s] = NONE
    counters[counter + TUPLES + s] = 0


@kernel
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
        _empty(minis.counters, mini * COUNTERS, s)
        minis.counters[mini * COUNTERS + FRESH + s] = 0
    minis.depth[mini] = depth
    minis.pattern[mini] = pattern
    minis.group[mini] = group
    minis.guard[mini] = 0
    return int(mini)


@kernel
def give_mini(minis: Minis, mini: int) -> None:
    minis.group[mini] = NONE
    minis.free[minis.control[RECYCLED]] = mini
    minis.control[RECYCLED] += 1
    minis.control[IN_USE] -= 1


@kernel
def minis_left(minis: Minis) -> int:
    return int(minis.control[RECYCLED] + minis.group.shape[0] - minis.control[NEVER_USED])


@kernel
def _stored(counters: I64, mini: int) -> int:
    return int(counters[mini * COUNTERS + TUPLES] + counters[mini * COUNTERS + TUPLES + 1])


@kernel
def _blocks_of(pool: Pool, minis: Minis, mini: int) -> int:
    counters, counter = minis.counters, mini * COUNTERS
    first, second = int(counters[counter + FIRST]), int(counters[counter + FIRST + 1])
    return int(chain_blocks(pool.header, first) + chain_blocks(pool.header, second))


@kernel
def _bits_differ(pool: Pool, minis: Minis, mini: int) -> bool:
    """Whether a hash bit that a directory can use distinguishes two of its tuples; usually the first two differ."""
    useful = np.uint64((1 << MAX_DEPTH) - (1 << minis.depth[mini]))
    first = np.uint64(0)
    seen = False
    for s in range(2):
        block = minis.counters[mini * COUNTERS + FIRST + s]
        while block != NONE:
            at = block * pool.shape[0]
            for row in range(at, at + pool.header[block * HEADER + FILL]):
                hashed = hash_cell(pool.rows[row * ROW + KEY], pool.shape[CELL_BITS]) & useful
                if not seen:
                    first, seen = hashed, True
                elif hashed != first:
                    return True
            block = pool.header[block * HEADER + NEXT]
    return False


@kernel(inline="always")
def _key_tag(pool, block, j):  # type: ignore[no-untyped-def]
    """The tag that stands for a tuple's key, or for the cell of its key."""
    if pool.shape[CELL_BITS] == 0:
        return pool.tags[block * pool.shape[1] + j]
    return tag_of(hash_cell(pool.rows[(block * pool.shape[0] + j) * ROW + KEY], pool.shape[CELL_BITS]))


@kernel
def _can_help(pool: Pool, minis: Minis, mini: int, theta: int) -> bool:
    """Whether splitting can bring this mini-partition-group closer to its range. Tags stand for keys: hot keys show in them."""
    if not _bits_differ(pool, minis, mini):
        return False
    header = pool.header
    candidate = pool.tags[0]
    votes = 0
    others = 0
    for sweep in range(2):
        for s in range(2):
            block = minis.counters[mini * COUNTERS + FIRST + s]
            while block != NONE:
                for j in range(header[block * HEADER + FILL]):
                    tag = _key_tag(pool, block, j)
                    if sweep == 1:
                        others += 1 if tag != candidate else 0
                    elif tag == candidate:
                        votes += 1
                    elif votes == 0:
                        candidate, votes = tag, 1
                    else:
                        votes -= 1
                block = header[block * HEADER + NEXT]
        if votes == 0:
            return True  # no key has a majority
    return 2 * others >= theta


@kernel
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


@kernel
def _point(directories: Directories, minis: Minis, mini: int) -> None:
    """Let every directory entry with this mini's pattern point to it."""
    group = minis.group[mini]
    start = directories.start[group]
    step = 1 << minis.depth[mini]
    for i in range(minis.pattern[mini], 1 << directories.depth[group], step):
        directories.slots[start + i] = mini


@kernel(inline="always")
def _seal(header, rows, block, size, fill, in_order):  # type: ignore[no-untyped-def]
    """Write a filled block's header. In order, its last tuple is its newest; otherwise its times have been noted."""
    header[block * HEADER + FILL] = fill
    if in_order:
        header[block * HEADER + LAST_TS] = rows[(block * size + fill - 1) * ROW + TS]


@kernel(allocates=True)
def _split(pool: Pool, minis: Minis, directories: Directories, mini: int) -> int:
    """Tuples whose hash has the next bit set move to a new mini-partition-group, which is returned; their order is kept."""
    depth = minis.depth[mini]
    bit = np.uint64(depth)
    twin = int(take_mini(minis, np.int64(minis.group[mini]), depth + 1, minis.pattern[mini] | (1 << depth)))
    minis.depth[mini] = depth + 1
    counters, header, rows, tags = minis.counters, pool.header, pool.rows, pool.tags
    free, control, size, stride, in_order = pool.free, pool.control, pool.shape[0], pool.shape[1], pool.shape[2] != 0
    cell_bits = pool.shape[CELL_BITS]
    counter = np.array([mini * COUNTERS, twin * COUNTERS])  # indexed by the bit, so that no branch depends on it
    head = np.empty(2, np.int64)
    fill = np.empty(2, np.int64)
    for s in range(2):
        block = int(counters[mini * COUNTERS + FIRST + s])
        _empty(counters, mini * COUNTERS, s)
        fill[:] = size
        while block != NONE:
            at, at_tag = block * size, block * stride
            n = header[block * HEADER + FILL]
            low, high = header[block * HEADER + FIRST_TS], header[block * HEADER + LAST_TS]
            for side in range(2 if not in_order else 0):
                if fill[side] < size:  # tuples of this block may follow in it
                    note_times(header, head[side], fill[side], low, high)
            following = int(header[block * HEADER + NEXT])
            if following != NONE:  # it lies elsewhere in the pool, and is read in a moment
                prefetch(header, following * HEADER)
                for line in range(following * size * ROW, (following + 1) * size * ROW, 8):
                    prefetch(rows, line)
            for j in range(n):
                goes = np.int64((hash_cell(rows[(at + j) * ROW + KEY], cell_bits) >> bit) & np.uint64(1))
                if fill[goes] == size:
                    if counters[counter[goes] + FIRST + s] != NONE:
                        _seal(header, rows, head[goes], size, size, in_order)
                        counters[counter[goes] + TUPLES + s] += size
                    head[goes] = take_block(header, free, control, counters, counter[goes], s)
                    header[head[goes] * HEADER + FIRST_TS] = rows[(at + j) * ROW + TS] if in_order else low
                    header[head[goes] * HEADER + LAST_TS] = high
                    fill[goes] = 0
                to = head[goes] * size + fill[goes]
                copy_items(rows, to * ROW, rows, (at + j) * ROW, ROW)
                tags[head[goes] * stride + fill[goes]] = tags[at_tag + j]
                fill[goes] += 1
            give_block(free, control, block)
            block = following
        for side in range(2):
            if counters[counter[side] + FIRST + s] != NONE:
                _seal(header, rows, head[side], size, fill[side], in_order)
                counters[counter[side] + TUPLES + s] += fill[side]
    _point(directories, minis, twin)
    return twin


@kernel
def _merge(pool: Pool, minis: Minis, directories: Directories, mini: int, buddy: int) -> None:
    """Both buddies' tuples into `mini`, merged by time where both are in order."""
    counters, header, rows, tags = minis.counters, pool.header, pool.rows, pool.tags
    free, control, shape = pool.free, pool.control, pool.shape
    counter = mini * COUNTERS
    size, stride = shape[0], shape[1]
    for s in range(2):
        mine, theirs = counters[counter + FIRST + s], counters[buddy * COUNTERS + FIRST + s]
        first, second = mine, theirs
        i = 0
        k = 0
        _empty(counters, counter, s)
        while mine != NONE or theirs != NONE:
            from_mine = theirs == NONE or (
                mine != NONE and rows[(mine * size + i) * ROW + TS] <= rows[(theirs * size + k) * ROW + TS]
            )
            if from_mine:
                append_row(
                    rows, tags, header, free, control, shape, counters, counter, s, mine * size + i, tags[mine * stride + i]
                )
                i += 1
                if i == header[mine * HEADER + FILL]:
                    mine, i = header[mine * HEADER + NEXT], 0
            else:
                append_row(
                    rows, tags, header, free, control, shape, counters, counter, s, theirs * size + k, tags[theirs * stride + k]
                )
                k += 1
                if k == header[theirs * HEADER + FILL]:
                    theirs, k = header[theirs * HEADER + NEXT], 0
        give_chain(pool, first)
        give_chain(pool, second)
    minis.depth[mini] -= 1
    minis.pattern[mini] &= (1 << minis.depth[mini]) - 1
    minis.guard[mini] = 0
    give_mini(minis, buddy)
    _point(directories, minis, mini)


@kernel
def split_due(pool: Pool, minis: Minis, directories: Directories, theta: int) -> int:
    """Split the mini-partition-groups that joining marked as due until none exceeds 2 * theta tuples, as far as keys allow.

    Returns TUNED, or NEED_MINIS / NEED_SLOTS: grow those arrays and call again. A mini-partition-group without room for
    its copy in the pool stays unsplit: a run never fails because of tuning.
    """
    control, due = minis.control, minis.due
    while control[DUE] > 0:
        mini = np.int64(due[control[DUE] - 1])
        n = _stored(minis.counters, mini)
        if minis.group[mini] == NONE or n <= 2 * theta or n < minis.guard[mini]:
            control[DUE] -= 1
            continue
        if minis.depth[mini] >= MAX_DEPTH or not _can_help(pool, minis, mini, theta):
            minis.guard[mini] = 2 * n
            control[DUE] -= 1
            continue
        if free_blocks(pool) < _blocks_of(pool, minis, mini) + 4:
            control[DUE] -= 1
            continue
        if minis_left(minis) == 0 or control[DUE] == due.shape[0]:
            return NEED_MINIS
        group = minis.group[mini]
        if minis.depth[mini] == directories.depth[group] and not _double(directories, group):
            return NEED_SLOTS
        due[control[DUE]] = _split(pool, minis, directories, mini)  # both halves are tested again
        control[DUE] += 1
    return TUNED


@kernel
def merge_small(pool: Pool, minis: Minis, directories: Directories, theta: int) -> None:
    """Merge mini-partition-groups below theta tuples with their buddies where both together stay within 2 * theta.

    An eighth of that is kept free: windows fluctuate, and what is merged to the brim would be split again at once.
    """
    counters = minis.counters
    for mini in range(minis.control[NEVER_USED]):
        while minis.group[mini] >= 0 and minis.depth[mini] > 0:
            n = _stored(counters, mini)
            if n >= theta:
                break
            group = minis.group[mini]
            buddy_entry = minis.pattern[mini] ^ (1 << (minis.depth[mini] - 1))
            buddy = np.int64(directories.slots[directories.start[group] + buddy_entry])
            if minis.depth[buddy] != minis.depth[mini] or 8 * (n + _stored(counters, buddy)) > 7 * 2 * theta:
                break
            if free_blocks(pool) < _blocks_of(pool, minis, mini) + _blocks_of(pool, minis, buddy) + 2:
                break
            _merge(pool, minis, directories, mini, buddy)
    _halve(minis, directories)


@kernel(allocates=True)
def _halve(minis: Minis, directories: Directories) -> None:
    """A directory deeper than its deepest mini-partition-group is halved: its low half already says everything."""
    deepest = np.zeros(directories.depth.shape[0], np.int64)
    for mini in range(minis.control[NEVER_USED]):
        if minis.group[mini] >= 0:
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
