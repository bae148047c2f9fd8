"""Blocks and their chains, as kernels: taking, giving back, appending, expiry (SPEC section 4).

What: `take_block`, `give_block`, `append_row`, `append_columns`, `drain_runs`, `expire`, counts, `chain_fault`, a check.
Why: joining, tuning and state movement all build chains; they must do it the same way.
Stays out: joining (`state.join_kernel`), splitting and merging (`state.extendible_hash`).

Blocks of one mini-partition form a chain from the oldest (FIRST) to the head block (HEAD), in time order where tuples come so.
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64, U8, U64
from swjoin.core.hashing import hash_cell, tag_in_cell
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import (
    FLAG_BITS,
    FLAGS,
    ID,
    KEY,
    REF,
    ROW,
    TS,
)
from swjoin.state.arrays import (
    BLOCK_LIMIT,
    CELL_BITS,
    COUNTERS,
    FILL,
    FIRST,
    FIRST_TS,
    HEAD,
    HEADER,
    I32,
    IN_USE,
    LAST_TS,
    NEVER_USED,
    NEXT,
    RECYCLED,
    TUPLES,
    UNIT_BITS,
    Minis,
    Pool,
)

NONE = -1


@kernel
def take_block(header: I64, free: I32, control: I64, counters: I64, counter: int, s: int) -> int:
    """A free block, recycled if possible, as the new head block of a mini-partition; there must be one."""
    if control[RECYCLED] > 0:
        control[RECYCLED] -= 1
        block = int(free[control[RECYCLED]])
    else:
        block = int(control[NEVER_USED])
        control[NEVER_USED] += 1
    control[IN_USE] += 1
    header[block * HEADER + FILL] = 0
    header[block * HEADER + NEXT] = NONE
    head = counters[counter + HEAD + s]
    if head == NONE:
        counters[counter + FIRST + s] = block
    else:
        header[head * HEADER + NEXT] = block
    counters[counter + HEAD + s] = block
    return block


@kernel
def give_block(free: I32, control: I64, block: int) -> None:
    free[control[RECYCLED]] = block
    control[RECYCLED] += 1
    control[IN_USE] -= 1


@kernel
def free_blocks(pool: Pool) -> int:
    """Blocks that may still be taken: fewer than are free where payload has used the common limit."""
    return int(pool.control[BLOCK_LIMIT] - pool.control[IN_USE])


@kernel(inline="always")
def time_range(rows, start, stop):  # type: ignore[no-untyped-def]
    """The least and the greatest time of the records start .. stop, at least one."""
    first = last = rows[start * ROW + TS]
    for i in range(start + 1, stop):
        first = min(first, rows[i * ROW + TS])
        last = max(last, rows[i * ROW + TS])
    return first, last


@kernel(inline="always")
def note_times(header, block, fill, first, last):  # type: ignore[no-untyped-def]
    """Tuples with times from `first` to `last` are appended to a block that holds `fill` tuples."""
    at = block * HEADER
    header[at + FIRST_TS] = first if fill == 0 else min(header[at + FIRST_TS], first)
    header[at + LAST_TS] = last if fill == 0 else max(header[at + LAST_TS], last)


@kernel(inline="always")
def append_row(rows, tags, header, free, control, shape, counters, counter, s, row, tag):  # type: ignore[no-untyped-def]
    """Append the tuple of record `row` (a pool position) to a mini-partition, copying it; the source stays as it is.

    Arrays as in Pool and Minis. Inlined, because a call would copy what describes eight arrays.
    """
    head = counters[counter + HEAD + s]
    if head == NONE or header[head * HEADER + FILL] == shape[0]:
        head = take_block(header, free, control, counters, counter, s)
    fill = header[head * HEADER + FILL]
    to = (head * shape[0] + fill) * ROW
    for f in range(ROW):
        rows[to + f] = rows[row * ROW + f]
    tags[head * shape[1] + fill] = tag
    note_times(header, head, fill, rows[to + TS], rows[to + TS])
    header[head * HEADER + FILL] = fill + 1
    counters[counter + TUPLES + s] += 1


@kernel
def append_columns(pool: Pool, minis: Minis, s: int, mini: int, key: I64, ts: I64, ids: U64, flags: U8, first_ref: int) -> None:
    """Append n tuples from columns to a mini-partition; payload references count up from first_ref. flags: (n,) or empty."""
    counters, counter = minis.counters, mini * COUNTERS
    rows, header = pool.rows, pool.header
    cell_bits, unit_bits = pool.shape[CELL_BITS], pool.shape[UNIT_BITS]
    for i in range(key.shape[0]):
        head = counters[counter + HEAD + s]
        if head == NONE or header[head * HEADER + FILL] == pool.shape[0]:
            head = take_block(header, pool.free, pool.control, counters, counter, s)
        fill = header[head * HEADER + FILL]
        to = (head * pool.shape[0] + fill) * ROW
        rows[to + KEY] = key[i]
        rows[to + TS] = ts[i]
        rows[to + ID] = ids[i]
        rows[to + REF] = first_ref + i
        if flags.shape[0] > 0:
            rows[to + REF] |= np.int64(flags[i]) << FLAG_BITS
        pool.tags[head * pool.shape[1] + fill] = tag_in_cell(key[i], hash_cell(key[i], cell_bits), cell_bits, unit_bits)
        note_times(header, head, fill, ts[i], ts[i])
        header[head * HEADER + FILL] = fill + 1
    counters[counter + TUPLES + s] += key.shape[0]


@kernel
def append_runs(
    pool: Pool,
    minis: Minis,
    s: int,
    which: I64,
    counts: I64,
    key: I64,
    ts: I64,
    ids: U64,
    flags: U8,
    first_ref: int,
) -> None:
    """Append counts[i] tuples to mini-partition which[i], one run of the columns after the other. There must be room."""
    at = 0
    for i in range(which.shape[0]):
        to = at + counts[i]
        marks = flags[at:to] if flags.shape[0] > 0 else flags
        append_columns(pool, minis, s, which[i], key[at:to], ts[at:to], ids[at:to], marks, first_ref + at)
        at = to


@kernel
def drain_runs(
    pool: Pool,
    minis: Minis,
    s: int,
    which: I64,
    cursor: I64,
    dead_below: int,
    settles: bool,
    key: I64,
    ts: I64,
    ids: U64,
    refs: I64,
    counts: I64,
) -> int:
    """Take tuples out of mini-partitions, oldest first, until the columns are full or nothing is left; returns how many.

    cursor: (2,) index into `which` and tuples already taken from the oldest block there, both updated. Tuples with ts below
    `dead_below` are dropped; settles: only those of them that have matched or been emitted. Emptied blocks are given back.
    counts[i]: tuples taken from which[i].
    """
    counters, header, rows = minis.counters, pool.header, pool.rows
    size, room = pool.shape[0], key.shape[0]
    n = 0
    while cursor[0] < which.shape[0]:
        i = cursor[0]
        counter = which[i] * COUNTERS
        block = counters[counter + FIRST + s]
        while block != NONE:
            fill = header[block * HEADER + FILL]
            j = cursor[1]
            while j < fill and n < room:
                row = (block * size + j) * ROW
                j += 1
                if rows[row + TS] < dead_below and (not settles or rows[row + REF] & FLAGS != 0):
                    continue
                key[n], ts[n], refs[n] = rows[row + KEY], rows[row + TS], rows[row + REF]
                ids[n] = np.uint64(rows[row + ID])
                n += 1
                counts[i] += 1
            counters[counter + TUPLES + s] -= j - cursor[1]
            cursor[1] = j
            if j < fill:
                return n
            following = header[block * HEADER + NEXT]
            give_block(pool.free, pool.control, block)
            counters[counter + FIRST + s] = following
            if following == NONE:
                counters[counter + HEAD + s] = NONE
            cursor[1] = 0
            block = following
        cursor[0] += 1
        if n == room:
            break
    return n


@kernel
def tuples_by_group(minis: Minis, tuples: I64) -> None:
    """tuples[g] += window tuples of partition-group g, both streams, without hidden groups."""
    counters, group = minis.counters, minis.group
    for mini in range(minis.control[NEVER_USED]):
        if group[mini] >= 0:
            tuples[group[mini]] += counters[mini * COUNTERS + TUPLES] + counters[mini * COUNTERS + TUPLES + 1]


@kernel
def give_chain(pool: Pool, block: int) -> None:
    """Give back a block and all that follow it."""
    while block != NONE:
        following = int(pool.header[block * HEADER + NEXT])
        give_block(pool.free, pool.control, block)
        block = following


@kernel
def chain_blocks(header: I64, block: int) -> int:
    """Blocks from this one to the head block."""
    n = 0
    while block != NONE:
        n += 1
        block = int(header[block * HEADER + NEXT])
    return n


@kernel
def expire(pool: Pool, minis: Minis, dead_below_left: int, dead_below_right: int) -> int:
    """Drop, in every mini-partition, the blocks whose newest tuple has ts below its stream's limit. Returns tuples dropped."""
    header, free, control, in_order = pool.header, pool.free, pool.control, pool.shape[2] != 0
    counters, group = minis.counters, minis.group
    dropped = 0
    for mini in range(minis.control[NEVER_USED]):
        if group[mini] < 0:  # unused, or hidden: its consumer expires it
            continue
        counter = mini * COUNTERS
        for s in range(2):
            limit = dead_below_left if s == 0 else dead_below_right
            before, block = NONE, counters[counter + FIRST + s]
            while block != NONE:
                following = header[block * HEADER + NEXT]
                if header[block * HEADER + LAST_TS] >= limit:
                    if in_order:
                        break
                    before, block = block, following
                    continue
                n = header[block * HEADER + FILL]
                give_block(free, control, block)
                counters[counter + TUPLES + s] -= n
                dropped += n
                if before == NONE:
                    counters[counter + FIRST + s] = following
                else:
                    header[before * HEADER + NEXT] = following
                block = following
            if block == NONE:
                counters[counter + HEAD + s] = before
    return dropped


FAULTS = (  # what `chain_fault` finds, by number
    "",
    "a block without tuples, or with more than it holds",
    "out of time order",
    "has a key of another mini-partition-group",
    "a tag is not its key's",
    "a block's header has other times than its tuples",
    "a block twice in a chain",
    "the counter has another number of tuples",
    "head block is not the newest",
    "a chain leads to a block that is not in use",
)


@kernel
def chain_fault(pool: Pool, minis: Minis, mini: int, stream: int, in_order: bool) -> tuple[int, int]:
    """The first broken invariant of a mini-partition's chain, as an index of FAULTS (0: none), and the blocks of the chain."""
    rows, tags, header = pool.rows, pool.tags, pool.header
    block_tuples, stride, cell_bits, unit_bits = pool.shape[0], pool.shape[1], pool.shape[CELL_BITS], pool.shape[UNIT_BITS]
    pattern, mask = np.uint64(minis.pattern[mini]), np.uint64((1 << minis.depth[mini]) - 1)
    counter = mini * COUNTERS
    block, newest, blocks, tuples = minis.counters[counter + FIRST + stream], NONE, 0, 0
    previous = np.iinfo(np.int64).min
    while block != NONE:
        if not 0 <= block < pool.control[NEVER_USED]:
            return 9, blocks
        blocks += 1
        if blocks > pool.control[NEVER_USED]:
            return 6, blocks
        fill = header[block * HEADER + FILL]
        if not 0 < fill <= block_tuples:
            return 1, blocks
        for i in range(fill):
            row = (block * block_tuples + i) * ROW
            if in_order and rows[row + TS] < previous:
                return 2, blocks
            previous = rows[row + TS]
            hashed = hash_cell(rows[row + KEY], cell_bits)
            if hashed & mask != pattern:
                return 3, blocks
            if tags[block * stride + i] != tag_in_cell(rows[row + KEY], hashed, cell_bits, unit_bits):
                return 4, blocks
        first, last = time_range(rows, block * block_tuples, block * block_tuples + fill)
        low, high = header[block * HEADER + FIRST_TS], header[block * HEADER + LAST_TS]
        if low > first or high < last or (in_order and (low < first or high > last)):
            return 5, blocks
        tuples += fill
        newest, block = block, header[block * HEADER + NEXT]
    if tuples != minis.counters[counter + TUPLES + stream]:
        return 7, blocks
    return 0 if newest == minis.counters[counter + HEAD + stream] else 8, blocks


@kernel
def live_tuples(minis: Minis) -> tuple[int, int]:
    """Tuples in the windows, left and right."""
    left = 0
    right = 0
    counters, group = minis.counters, minis.group
    for mini in range(minis.control[NEVER_USED]):
        if group[mini] != NONE:
            left += counters[mini * COUNTERS + TUPLES]
            right += counters[mini * COUNTERS + TUPLES + 1]
    return left, right
