"""From equal tags to matches, as kernels: hits become candidates, candidates are checked by key and time.

What: `take_candidates` turns hits (a probe, a block, a mask of equal tags) into candidates and prefetches their records;
`verify` checks some hundreds of them, counts, digests, sets match flags, and writes the pairs if they are wanted.
Why: the records are scattered over memory. Prefetching hundreds before reading one lets their cache misses overlap.
Stays out: which tags are compared (`state.join_kernel`).
"""

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.band_keys import GREATEST_KEY, LEAST_KEY
from swjoin.core.batch import I64, MISSING_ID, U64
from swjoin.core.hashing import pair_hash
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import (
    FLAGS,
    ID,
    KEY,
    MATCHED,
    REF,
    ROW,
    TS,
)
from swjoin.core.simd import LANES, copy_items, count_ones, prefetch, trailing_zeros
from swjoin.expressions.vm import Residual, evaluate
from swjoin.state.arrays import (
    CANDIDATES,
    COUNT_WINDOWS,
    FIRST_MATCHES,
    IDS_ALONE,
    MARK_LEFT,
    MARK_RIGHT,
    PAIRS,
    STAT_CANDIDATES,
    STAT_PAIRS,
    Band,
    Candidates,
    FreshTuples,
    Hits,
    Output,
    Reaches,
)
from swjoin.state.delay_histogram import record_delay

_ONE = np.uint64(1)
_WITHIN = -LEAST_KEY  # + a key: 0 .. _KEYS, as uint64, unless it stands for values beyond (`core.band_keys`)
_KEYS = np.uint64(GREATEST_KEY - LEAST_KEY)


@kernel
def count_matches(
    s: int,
    low: int,
    high: int,
    probe_rows: I64,
    rows: I64,
    probe_at: NDArray[np.uint64],
    row_at: NDArray[np.uint64],
    verdict: NDArray[np.uint8],
    ids: U64,
    start: int,
    stop: int,
    band: Band | None,
) -> tuple[int, int]:
    """Matches among candidates, without branches, so that reads of several overlap; and how many of their keys are at the
    ends of what keys of a band can be.

    verdict[c] = 1 where candidate c is a match, 0 elsewhere. ids: of the matches, one after the other; (2, CANDIDATES), of
    probes and of rows.
    """
    matches = 0
    far = 0
    mine, theirs = ids[0], ids[1]
    for c in range(uint64(start), uint64(stop)):
        p, r = probe_at[c], row_at[c]
        apart = rows[r + uint64(TS)] - probe_rows[p + uint64(TS)]
        if band is None:
            right = (rows[r] == probe_rows[p]) & (apart >= low) & (apart <= high)
        else:
            wide = probe_rows[p] if s == band.wide else rows[r]
            narrow = rows[r] if s == band.wide else probe_rows[p]
            beyond = uint64(narrow - wide + (wide & 1) * (band.span + 1))
            in_cell = narrow >> band.cell_bits == wide >> band.cell_bits
            right = (beyond <= uint64(band.span)) & in_cell & (apart >= low) & (apart <= high)
            far += (uint64(narrow + _WITHIN) > _KEYS) | (uint64(wide + _WITHIN) > _KEYS)
        mine[uint64(matches)] = uint64(probe_rows[p + uint64(ID)])
        theirs[uint64(matches)] = uint64(rows[r + uint64(ID)])
        matches += 1 if right else 0
        verdict[c] = right
    return matches, far


@kernel
def count_in_last(
    reaches: Reaches,
    fresh: FreshTuples,
    probe_at: NDArray[np.uint64],
    row_at: NDArray[np.uint64],
    verdict: NDArray[np.uint8],
    ids: U64,
    start: int,
    stop: int,
) -> int:
    """`count_matches` for fresh left and fresh right tuples in count windows, where either may be the later one."""
    matches = 0
    rows, sequence = fresh.rows, fresh.sequence
    for c in range(start, stop):
        p, r = np.int64(probe_at[c]), np.int64(row_at[c])
        left = sequence[r // ROW] - rows[p + TS]
        right = sequence[p // ROW] - rows[r + TS]
        near = (reaches[0] <= left <= reaches[1]) or (reaches[2] <= right <= reaches[3])
        verdict[c] = rows[r + KEY] == rows[p + KEY] and near
        if verdict[c]:
            ids[0, matches], ids[1, matches] = uint64(rows[p + ID]), uint64(rows[r + ID])
            matches += 1
    return matches


@kernel
def digest_of(s: int, ids: U64, matches: int) -> np.uint64:
    """Sum of the digests of the first matches of `ids`, whose probes are of stream `s`: in a loop of its own, because then
    numba makes vector instructions of it."""
    left_id, right_id = ids[s], ids[1 - s]
    digest: np.uint64 = uint64(0)
    for i in range(matches):
        digest += pair_hash(left_id[i], right_id[i])
    return digest


@kernel
def mark_matches(
    probe_rows: I64,
    rows: I64,
    probe_at: NDArray[np.uint64],
    row_at: NDArray[np.uint64],
    verdict: NDArray[np.uint8],
    start: int,
    stop: int,
    mark_probe: bool,
    mark_row: bool,
) -> None:
    """Set the match flags of both tuples of every match, where they are wanted."""
    for c in range(uint64(start), uint64(stop)):
        if verdict[c]:
            if mark_probe:
                probe_rows[probe_at[c] + uint64(REF)] |= MATCHED
            if mark_row and rows[row_at[c] + uint64(REF)] & MATCHED == 0:  # avoids dirtying cache lines
                rows[row_at[c] + uint64(REF)] |= MATCHED


@kernel
def verify(
    kind: int,
    g: int,
    stored_rows: I64,
    fresh: FreshTuples,
    candidates: Candidates,
    residual: Residual | None,
    band: Band | None,
    reaches: Reaches,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Check the candidates of one kind by key and time and take the matches. False when the output is full; call again then."""
    probe_rows, arrival = fresh.rows, fresh.arrival
    rows = probe_rows if kind == 2 else stored_rows
    probe_at, row_at = candidates.probe, candidates.row
    start = kind * CANDIDATES + candidates.done[kind]
    stop = kind * CANDIDATES + candidates.found[kind]
    s = 1 if kind == 1 else 0
    low, high = reaches[2 * s], reaches[2 * s + 1]  # stored - probe
    capacity = out.capacity[0]
    mode = candidates.mode[0]
    pairs, first = mode & PAIRS != 0, mode & FIRST_MATCHES != 0
    mark_probe = mode & (MARK_LEFT if s == 0 else MARK_RIGHT) != 0
    mark_row = mode & (MARK_RIGHT if s == 0 else MARK_LEFT) != 0
    matches = 0
    digest = uint64(0)
    same_arrival = fresh.arrivals[0] == fresh.arrivals[1]
    c = start
    verdict, ids = candidates.right, candidates.ids
    if kind == 2 and mode & COUNT_WINDOWS != 0:
        far = 0
        found = count_in_last(reaches, fresh, probe_at, row_at, verdict, ids, start, stop)
    else:
        found, far = count_matches(s, low, high, probe_rows, rows, probe_at, row_at, verdict, ids, start, stop, band)
    filtered = False
    if residual is not None:  # a branch that numba compiles for joins with a predicate only
        filtered = True
        if band is not None:
            filtered = not band.exact or far > 0
        if filtered:
            program, left, right = residual.program, residual.left, residual.right
            evaluate(program, left, right, s, probe_rows, rows, probe_at, row_at, verdict, start, stop)
    ids_fit = mode & IDS_ALONE != 0 and stop - start <= capacity - out.used[0]
    if (capacity == 0 or ids_fit) and pairs and not filtered:
        if capacity > 0:
            copy_items(out.id[s], out.used[0], ids[0], 0, found)
            copy_items(out.id[1 - s], out.used[0], ids[1], 0, found)
            out.used[0] += found
        matches, digest = found, digest_of(s, ids, found)
        last, alike = fresh.arrivals[0], matches if same_arrival else 0  # a run of pairs with equal arrivals
        if not same_arrival:
            for at in range(uint64(start), uint64(stop)):
                arrived = arrival[probe_at[at] // uint64(ROW)]
                if kind == 2:
                    arrived = max(arrived, arrival[row_at[at] // uint64(ROW)])
                if arrived != last:
                    record_delay(now, last, alike, stats, histogram)
                    last, alike = arrived, 0
                alike += verdict[at]
        record_delay(now, last, alike, stats, histogram)
        if mark_probe or mark_row:
            mark_matches(probe_rows, rows, probe_at, row_at, verdict, start, stop, mark_probe, mark_row)
        c = stop
    else:
        out_key, out_ts, out_id, out_ref, used = out.key, out.ts, out.id, out.ref, out.used[0]
        while c < stop:
            if verdict[c]:
                p, r = np.int64(probe_at[c]), np.int64(row_at[c])
                left_ref = probe_rows[p + REF] if s == 0 else rows[r + REF]
                if pairs or (first and left_ref & MATCHED == 0):
                    mine, theirs = uint64(probe_rows[p + ID]), uint64(rows[r + ID])
                    left_id = mine if s == 0 else theirs
                    right_id = MISSING_ID if first else theirs if s == 0 else mine
                    if capacity > 0:
                        if used == capacity:
                            break
                        out_key[used] = rows[r + KEY]
                        out_ts[s, used] = probe_rows[p + TS]
                        out_ts[1 - s, used] = rows[r + TS]
                        out_id[0, used] = left_id
                        out_id[1, used] = right_id
                        out_ref[s, used] = probe_rows[p + REF] & ~FLAGS
                        out_ref[1 - s, used] = rows[r + REF] & ~FLAGS
                        used += 1
                    digest += pair_hash(left_id, right_id)
                    matches += 1
                    if not same_arrival:
                        arrived = arrival[p // ROW]
                        if kind == 2:  # the later arrival of the two
                            arrived = max(arrived, arrival[r // ROW])
                        record_delay(now, arrived, 1, stats, histogram)
                if mark_probe:
                    probe_rows[p + REF] |= MATCHED
                if mark_row and rows[r + REF] & MATCHED == 0:
                    rows[r + REF] |= MATCHED
            c += 1
        out.used[0] = used
        if same_arrival and matches > 0:
            record_delay(now, fresh.arrivals[0], matches, stats, histogram)
    counts[g] += matches
    digests[g] += digest
    stats[STAT_PAIRS] += matches
    if c == stop:
        stats[STAT_CANDIDATES] += candidates.found[kind]
        candidates.found[kind] = 0
        candidates.done[kind] = 0
        return True
    candidates.done[kind] = c - kind * CANDIDATES
    return False


@kernel
def take_candidates(
    g: int,
    rows: I64,
    fresh: FreshTuples,
    hits: Hits,
    candidates: Candidates,
    residual: Residual | None,
    band: Band | None,
    reaches: Reaches,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Turn hits into candidates and prefetch their records. False when the output is full; call again then."""
    probe_at, row_at, found = candidates.probe, candidates.row, candidates.found
    masks, positions, probes = hits.mask, hits.position, hits.probe
    for i in range(uint64(hits.control[1]), uint64(hits.control[0])):
        mask, kind, at = masks[i], positions[i] & 3, positions[i] >> 2
        if found[kind] + LANES > CANDIDATES and not verify(
            kind, g, rows, fresh, candidates, residual, band, reaches, now, out, counts, digests, stats, histogram
        ):
            hits.control[1] = i
            return False
        to = uint64(kind * CANDIDATES + found[kind])
        found[kind] += count_ones(mask)
        probe = uint64(probes[i] * ROW)
        row = (at + trailing_zeros(mask)) * ROW
        mask &= mask - _ONE
        another = (at + trailing_zeros(mask)) * ROW if mask != uint64(0) else row  # mostly a mask has at most two bits
        probe_at[to], row_at[to] = probe, row
        to += uint64(1)
        probe_at[to], row_at[to] = probe, another
        if kind != 2:
            prefetch(rows, row)
            prefetch(rows, another)
        mask &= mask - _ONE if mask != uint64(0) else mask
        while mask != uint64(0):
            to += uint64(1)
            row = (at + trailing_zeros(mask)) * ROW
            if kind != 2:
                prefetch(rows, row)
            probe_at[to], row_at[to] = probe, row
            mask &= mask - _ONE
    hits.control[0] = hits.control[1] = 0
    return True
