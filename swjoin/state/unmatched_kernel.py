"""Tuples whose window has passed without a match, as a kernel.

What: `sweep` finds them in the chains, writes, counts and digests them, and marks them as settled.
Why: unmatched rows of an outer or anti join are final only then; each is emitted once, however often its chain is visited.
Stays out: when it runs (`operators.unmatched_rows`), match flags (`state.candidates`), dropping blocks (`state.blocks`).
"""

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.batch import I64, MISSING_ID
from swjoin.core.hashing import pair_hash
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import (
    FLAGS,
    ID,
    KEY,
    REF,
    ROW,
    SETTLED,
    TS,
)
from swjoin.core.simd import prefetch
from swjoin.state.arrays import (
    COUNTERS,
    FILL,
    FIRST,
    FIRST_TS,
    HEADER,
    LAST_TS,
    NEVER_USED,
    NEXT,
    Minis,
    Output,
    Pool,
)
from swjoin.state.blocks import NONE

_STAGE = 8  # mini-partition-groups between the prefetches of two levels
_LINES = 6  # cache lines of tuples that are prefetched


@kernel
def _guess(header: I64, block: int, time_us: int) -> int:
    """About where in a block tuples of this time lie: steady streams are the common case, and every wrong guess is a miss."""
    first, last = header[block * HEADER + FIRST_TS], header[block * HEADER + LAST_TS]
    if time_us <= first:
        return 0
    n = header[block * HEADER + FILL]
    return int(n - 1) if time_us >= last else int((time_us - first) / (last - first) * n)


@kernel
def _first_not_below(rows: I64, at: int, n: int, guess: int, time_us: int) -> int:
    """Index of the first of n records from `at` on whose time is not below this one; the search starts at `guess`."""
    j = guess
    while j > 0 and rows[(at + j - 1) * ROW + TS] >= time_us:
        j -= 1
    while j < n and rows[(at + j) * ROW + TS] < time_us:
        j += 1
    return int(j)


@kernel
def _prefetch_ahead(mini: int, until: int, s: int, from_us: int, pool: Pool, minis: Minis) -> None:
    """Prefetch counters, then headers, then tuples of the mini-partition-groups after this one."""
    counters, header = minis.counters, pool.header
    if mini + 3 * _STAGE < until:
        prefetch(counters, (mini + 3 * _STAGE) * COUNTERS)
    if mini + 2 * _STAGE < until:
        block = counters[(mini + 2 * _STAGE) * COUNTERS + FIRST + s]
        if block != NONE:
            prefetch(header, block * HEADER)
    if mini + _STAGE < until:
        block = counters[(mini + _STAGE) * COUNTERS + FIRST + s]
        if block != NONE:
            row = (block * pool.shape[0] + _guess(header, block, from_us)) * ROW
            for line in range(row - 8, row + 8 * _LINES, 8):
                prefetch(pool.rows, line)


@kernel
def sweep(
    pool: Pool,
    minis: Minis,
    s: int,
    from_us: int,
    below_us: I64,
    cursor: I64,
    emit: bool,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
) -> bool:
    """Settle the unmatched tuples of stream s with from_us <= ts < below_us[partition-group]. False when the output is full;
    call again then.

    cursor: (1,), 0 at first. emit: False if they were emitted before a crash. counts, digests: (groups,), of emitted rows,
    added to. Hidden partition-groups are skipped.
    """
    rows, header, size, in_order = pool.rows, pool.header, pool.shape[0], pool.shape[2] != 0
    counters, group = minis.counters, minis.group
    out_key, out_ts, out_id, out_ref = out.key, out.ts, out.id, out.ref
    capacity, used = out.capacity[0], out.used[0]
    until = minis.control[NEVER_USED]
    for mini in range(cursor[0], until):
        _prefetch_ahead(mini, until, s, from_us, pool, minis)
        g = group[mini]
        if g < 0:
            continue
        stop = below_us[g]
        block = counters[mini * COUNTERS + FIRST + s]
        while block != NONE:
            if header[block * HEADER + FIRST_TS] >= stop:
                if in_order:
                    break
            elif header[block * HEADER + LAST_TS] >= from_us:
                at, n = block * size, header[block * HEADER + FILL]
                j = _first_not_below(rows, at, n, _guess(header, block, from_us), from_us) if in_order else 0
                while j < n:
                    row = (at + j) * ROW
                    if rows[row + TS] >= stop:
                        if in_order:
                            break
                    elif rows[row + REF] & FLAGS == 0 and (in_order or rows[row + TS] >= from_us):
                        if emit:
                            mine = uint64(rows[row + ID])
                            if capacity > 0:
                                if used == capacity:
                                    cursor[0] = mini
                                    out.used[0] = used
                                    return False
                                out_key[used] = rows[row + KEY]
                                out_ts[s, used], out_ts[1 - s, used] = rows[row + TS], 0
                                out_id[s, used], out_id[1 - s, used] = mine, MISSING_ID
                                out_ref[s, used], out_ref[1 - s, used] = rows[row + REF], g  # no payload: the group's place
                                used += 1
                            counts[g] += 1
                            digests[g] += pair_hash(mine, MISSING_ID) if s == 0 else pair_hash(MISSING_ID, mine)
                        rows[row + REF] |= SETTLED
                    j += 1
            block = header[block * HEADER + NEXT]
    cursor[0] = until
    out.used[0] = used
    return True
