"""The hot loops of the join module: numba kernels over flat arrays (SPEC section 4).

What: block nested-loop join of a partition-group's fresh tuples with exact key and time checks, appending to head blocks.
Why: free functions on plain arrays release the GIL, can be profiled alone and tested with the JIT off.
Stays out: bringing fresh tuples into order (`state.fresh`), blocks and expiry (`state.blocks`), splitting and merging
(`state.tuning`), ownership of the arrays (`state.partition_group`), the driver (`operators.window_join`).

A block's 64 tags are compared with a probe's tag at once; equal tags become candidates. Candidates are verified some hundreds
at a time, so that the cache misses of their records overlap. Index `s` is the stream (0 left, 1 right).
Everything is unpacked into locals first: reaching into a named tuple in a loop costs an atomic reference count each time.
"""

from __future__ import annotations

import numpy as np
from numba import njit, uint64
from numpy.typing import NDArray

from swjoin.batch import I64
from swjoin.hashing import mix64_scalar
from swjoin.state.arrays import (
    CANDIDATES,
    COUNTERS,
    DUE,
    FILL,
    FIRST,
    FIRST_TS,
    HEAD,
    HEADER,
    HITS,
    ID,
    KEY,
    LAST_TS,
    NEXT,
    REF,
    ROW,
    STAT_COMPARISONS,
    STAT_PAIRS,
    TOGETHER,
    TS,
    TUPLES,
    Candidates,
    Directories,
    FreshTuples,
    Hits,
    Inputs,
    Minis,
    Output,
    Pool,
)
from swjoin.state.blocks import NONE, free_blocks, take_block
from swjoin.state.fresh import scatter_fresh, sort_fresh
from swjoin.state.histogram import record_delay
from swjoin.state.simd import LANES, copy_items, count_ones, match_mask, prefetch, trailing_zeros

DONE, FULL, NEED_BLOCKS, BUDGET = 0, 1, 2, 3

# cursor fields
CUR_GROUP, CUR_SORTED, CUR_TOUCHED, CUR_PART, CUR_PLACE, CUR_CHUNK, CUR_PROBE, CUR_TOUCHED_COUNT = 0, 1, 2, 3, 4, 5, 6, 7
CURSOR_SIZE = 8

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_FARTHEST = 32  # blocks of a chain that are asked for in advance; in longer ones there are hits to wait for anyway

# ---------------------------------------------------------------- verifying candidates


@njit(cache=True, nogil=True)
def _count_matches(
    s: int,
    low: int,
    high: int,
    probe_rows: I64,
    rows: I64,
    probe_at: NDArray[np.uint64],
    row_at: NDArray[np.uint64],
    start: int,
    stop: int,
) -> tuple[int, np.uint64]:
    """Matches among candidates and the sum of their digests, without branches, so that several are checked at once."""
    matches = 0
    digest = uint64(0)
    for c in range(uint64(start), uint64(stop)):
        p, r = probe_at[c], row_at[c]
        apart = rows[r + uint64(TS)] - probe_rows[p + uint64(TS)]
        right = (rows[r] == probe_rows[p]) & (apart >= low) & (apart <= high)
        mine, theirs = uint64(probe_rows[p + uint64(ID)]), uint64(rows[r + uint64(ID)])
        left_id = mine if s == 0 else theirs
        right_id = theirs if s == 0 else mine
        mixed = mix64_scalar(left_id * _GOLDEN + mix64_scalar(right_id))
        digest += mixed if right else uint64(0)
        matches += 1 if right else 0
    return matches, digest


@njit(cache=True, nogil=True)
def _verify(
    kind: int,
    g: int,
    stored_rows: I64,
    fresh: FreshTuples,
    candidates: Candidates,
    lower: int,
    upper: int,
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
    low = lower if s == 0 else -upper  # stored - probe
    high = upper if s == 0 else -lower
    capacity = out.capacity[0]
    matches = 0
    digest = uint64(0)
    same_arrival = fresh.arrivals[0] == fresh.arrivals[1]
    c = start
    if capacity == 0:
        matches, digest = _count_matches(s, low, high, probe_rows, rows, probe_at, row_at, start, stop)
        if same_arrival and matches > 0:
            record_delay(now, fresh.arrivals[0], matches, stats, histogram)
        last, alike = fresh.arrivals[0], 0  # runs of pairs whose later tuples came at once
        while c < stop and not same_arrival:
            p, r = np.int64(probe_at[c]), np.int64(row_at[c])
            apart = rows[r + TS] - probe_rows[p + TS]
            if rows[r + KEY] == probe_rows[p + KEY] and apart >= low and apart <= high:
                came = arrival[p // ROW]
                if kind == 2:
                    came = max(came, arrival[r // ROW])
                if came != last:
                    record_delay(now, last, alike, stats, histogram)
                    last, alike = came, 0
                alike += 1
            c += 1
        record_delay(now, last, alike, stats, histogram)
        c = stop
    else:
        out_key, out_ts, out_id, out_ref, used = out.key, out.ts, out.id, out.ref, out.used[0]
        while c < stop:
            p, r = np.int64(probe_at[c]), np.int64(row_at[c])
            apart = rows[r + TS] - probe_rows[p + TS]
            if rows[r + KEY] == probe_rows[p + KEY] and apart >= low and apart <= high:
                if used == capacity:
                    break
                out_key[used] = rows[r + KEY]
                out_ts[s, used] = probe_rows[p + TS]
                out_ts[1 - s, used] = rows[r + TS]
                mine, theirs = uint64(probe_rows[p + ID]), uint64(rows[r + ID])
                out_id[s, used] = mine
                out_id[1 - s, used] = theirs
                out_ref[s, used] = probe_rows[p + REF]
                out_ref[1 - s, used] = rows[r + REF]
                used += 1
                if s == 0:
                    digest += mix64_scalar(mine * _GOLDEN + mix64_scalar(theirs))
                else:
                    digest += mix64_scalar(theirs * _GOLDEN + mix64_scalar(mine))
                matches += 1
                if not same_arrival:
                    came = arrival[p // ROW]
                    if kind == 2:  # the later arrival of the two
                        came = max(came, arrival[r // ROW])
                    record_delay(now, came, 1, stats, histogram)
            c += 1
        out.used[0] = used
        if same_arrival and matches > 0:
            record_delay(now, fresh.arrivals[0], matches, stats, histogram)
    counts[g] += matches
    digests[g] += digest
    stats[STAT_PAIRS] += matches
    if c == stop:
        candidates.found[kind] = 0
        candidates.done[kind] = 0
        return True
    candidates.done[kind] = c - kind * CANDIDATES
    return False


@njit(cache=True, nogil=True)
def _take_candidates(
    g: int,
    rows: I64,
    fresh: FreshTuples,
    hits: Hits,
    candidates: Candidates,
    lower: int,
    upper: int,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Turn hits into candidates, asking for their records. False when the output is full; call again then."""
    probe_at, row_at, found = candidates.probe, candidates.row, candidates.found
    masks, places, probes = hits.mask, hits.place, hits.probe
    for i in range(hits.control[1], hits.control[0]):
        mask, kind, at = masks[i], places[i] & 3, places[i] >> 2
        if found[kind] + LANES > CANDIDATES and not _verify(
            kind, g, rows, fresh, candidates, lower, upper, now, out, counts, digests, stats, histogram
        ):
            hits.control[1] = i
            return False
        to = kind * CANDIDATES + found[kind]
        found[kind] += count_ones(mask)
        probe = uint64(probes[i] * ROW)
        row = (at + trailing_zeros(mask)) * ROW
        mask &= mask - _ONE
        another = (at + trailing_zeros(mask)) * ROW if mask != uint64(0) else row  # two at once: mostly that is all
        probe_at[to], row_at[to] = probe, row
        probe_at[to + 1], row_at[to + 1] = probe, another
        if kind != 2:
            prefetch(rows, row)
            prefetch(rows, another)
        mask &= mask - _ONE if mask != uint64(0) else mask
        while mask != uint64(0):
            to += 1
            row = (at + trailing_zeros(mask)) * ROW
            if kind != 2:
                prefetch(rows, row)
            probe_at[to + 1], row_at[to + 1] = probe, row
            mask &= mask - _ONE
    hits.control[0] = hits.control[1] = 0
    return True


# ---------------------------------------------------------------- joining


@njit(cache=True, nogil=True)
def _walk_ahead(t: int, until: int, pool: Pool, minis: Minis, fresh: FreshTuples) -> None:
    """Ask for the headers and tags that touched mini-partition-groups t .. until are going to read.

    A chain's next block is known only from its header. Walking one chain waits for memory at every block; walking 32 in step
    waits once for all.
    """
    stride, size = pool.shape[1], pool.shape[0]
    header, tags, rows, counters = pool.header, pool.tags, pool.rows, minis.counters
    begins, touched, at = fresh.begin, fresh.touched, fresh.walk
    n = 0
    for i in range(t, until):
        counter = np.int64(touched[i]) * COUNTERS
        for s in range(2):
            if begins[1 - s, i] < begins[1 - s, i + 1]:
                block = counters[counter + FIRST + s]
                if block != NONE:
                    prefetch(header, block * HEADER)
                    at[n] = block
                    n += 1
            head = counters[counter + HEAD + s]
            if head != NONE:
                prefetch(header, head * HEADER)
    for _ in range(_FARTHEST):
        left = 0
        for i in range(n):
            block = at[i]
            prefetch(tags, block * stride)
            prefetch(tags, block * stride + 32)
            following = header[block * HEADER + NEXT]
            if following != NONE:
                prefetch(header, following * HEADER)
                at[left] = following
                left += 1
        n = left
        if n == 0:
            break
    for i in range(t, until):
        counter = np.int64(touched[i]) * COUNTERS
        for s in range(2):
            head = counters[counter + HEAD + s]
            if head != NONE:
                fill = header[head * HEADER + FILL]
                prefetch(rows, (head * size + fill) * ROW)
                prefetch(tags, head * stride + fill)


@njit(cache=True, nogil=True)
def _join_group(
    g: int,
    data: Inputs,
    pool: Pool,
    minis: Minis,
    fresh: FreshTuples,
    hits: Hits,
    candidates: Candidates,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    theta: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> bool:
    """Join and store one partition-group's sorted fresh tuples, from the cursor on. False when the output is full.

    Parts per touched mini: 0 fresh left x stored right, 1 fresh right x stored left, 2 fresh left x fresh right, then both are
    stored. Both the probes of a mini-partition and the blocks of a chain are in time order, so the probes that reach a block
    are a range whose two ends only move forward.
    """
    size, stride = pool.shape[0], pool.shape[1]
    rows, tags, header, free, control = pool.rows, pool.tags, pool.header, pool.free, pool.control
    counters, guard, due = minis.counters, minis.guard, minis.due
    fresh_rows, fresh_tags, begins, touched = fresh.rows, fresh.tags, fresh.begin, fresh.touched
    hit_mask, hit_place, hit_probe, hit_count = hits.mask, hits.place, hits.probe, hits.control[0]
    probe_left, probe_right, store_left, store_right = data.probe[0], data.probe[1], data.store[0], data.store[1]
    meet = (probe_left and store_right) or (probe_right and store_left)
    comparisons = 0
    t = cursor[CUR_TOUCHED]
    touched_count = cursor[CUR_TOUCHED_COUNT]
    walked = t
    while t < touched_count:
        if t >= walked:
            walked = min(t + TOGETHER, touched_count)
            _walk_ahead(t, walked, pool, minis, fresh)
        counter = np.int64(touched[t]) * COUNTERS
        part = cursor[CUR_PART]
        while part < 3:
            s = 1 if part == 1 else 0
            begin, end = begins[s, t], begins[s, t + 1]
            wanted = probe_left if part == 0 else probe_right if part == 1 else meet
            if not wanted or begin == end:
                part += 1
                continue
            reach_low = lower if s == 0 else -upper  # lower <= stored right - probe <= upper
            reach_high = upper if s == 0 else -lower
            place = cursor[CUR_PLACE]
            stop = begins[1, t + 1]
            if place == NONE:
                place = counters[counter + FIRST + 1 - s]
                if part == 2:
                    place = begins[1, t] if begins[1, t] < stop else NONE
            block_tags = fresh_tags if part == 2 else tags
            from_probe = begin
            to_probe = begin
            while place != NONE:
                if part == 2:
                    at, at_tag, fill = place, place, min(np.int64(LANES), stop - place)
                    following = place + fill if place + fill < stop else NONE
                    first_ts, last_ts = fresh_rows[place * ROW + TS], fresh_rows[(place + fill - 1) * ROW + TS]
                else:
                    at, at_tag, fill = place * size, place * stride, header[place * HEADER + FILL]
                    following = header[place * HEADER + NEXT]
                    first_ts, last_ts = header[place * HEADER + FIRST_TS], header[place * HEADER + LAST_TS]
                while from_probe < end and fresh_rows[from_probe * ROW + TS] + reach_high < first_ts:
                    from_probe += 1
                if from_probe == end:
                    break  # in time order: whatever follows is too new for all these probes
                if fresh_rows[(end - 1) * ROW + TS] + reach_low <= last_ts:
                    to_probe = end  # as for most blocks
                while to_probe < end and fresh_rows[to_probe * ROW + TS] + reach_low <= last_ts:
                    to_probe += 1
                if cursor[CUR_CHUNK] == NONE:
                    comparisons += fill * max(0, to_probe - from_probe)
                    chunk, probe = 0, from_probe
                else:
                    chunk, probe = cursor[CUR_CHUNK], cursor[CUR_PROBE]
                    cursor[CUR_CHUNK] = NONE
                while chunk < fill:
                    limit = _ALL if fill - chunk >= LANES else (_ONE << uint64(fill - chunk)) - _ONE
                    while probe < to_probe:
                        strip_end = min(probe + LANES, to_probe)
                        if hit_count + strip_end - probe > HITS:
                            hits.control[0] = hit_count
                            if not _take_candidates(
                                g, rows, fresh, hits, candidates, lower, upper, now, out, counts, digests, stats, histogram
                            ):
                                cursor[CUR_TOUCHED], cursor[CUR_PART], cursor[CUR_PLACE] = t, part, place
                                cursor[CUR_CHUNK], cursor[CUR_PROBE] = chunk, probe
                                stats[STAT_COMPARISONS] += comparisons
                                return False
                            hit_count = 0
                        k = uint64(hit_count)
                        for p in range(
                            uint64(probe), uint64(strip_end)
                        ):  # no branch: whether a block holds a match is anyone's guess
                            mask = match_mask(block_tags, at_tag + chunk, fresh_tags[p]) & limit
                            hit_mask[k] = mask
                            hit_place[k] = (at + chunk) * 4 + part
                            hit_probe[k] = p
                            k += uint64(mask != uint64(0))
                        hit_count = np.int64(k)
                        probe = strip_end
                    chunk += LANES
                    probe = from_probe
                place = following
            cursor[CUR_PLACE] = NONE
            part += 1
        for s in range(2):
            if not (store_left if s == 0 else store_right):
                continue
            head = counters[counter + HEAD + s]
            i, end = begins[s, t], begins[s, t + 1]
            counters[counter + TUPLES + s] += end - i
            while i < end:
                if head == NONE or header[head * HEADER + FILL] == size:
                    head = take_block(header, free, control, counters, counter, s)
                    header[head * HEADER + FIRST_TS] = fresh_rows[i * ROW + TS]
                fill = header[head * HEADER + FILL]
                n = min(end - i, size - fill)
                to, source = (head * size + fill) * ROW, i * ROW
                copy_items(rows, to, fresh_rows, source, n * ROW)
                to = head * stride + fill
                copy_items(tags, to, fresh_tags, i, n)
                i += n
                header[head * HEADER + FILL] = fill + n
                header[head * HEADER + LAST_TS] = fresh_rows[(i - 1) * ROW + TS]
        stored = counters[counter + TUPLES] + counters[counter + TUPLES + 1]
        if theta > 0 and stored > 2 * theta and stored >= guard[touched[t]]:
            due[minis.control[DUE]] = touched[t]
            minis.control[DUE] += 1
        cursor[CUR_PART] = 0
        t += 1
    cursor[CUR_TOUCHED] = t
    stats[STAT_COMPARISONS] += comparisons
    hits.control[0] = hit_count
    if not _take_candidates(g, rows, fresh, hits, candidates, lower, upper, now, out, counts, digests, stats, histogram):
        return False
    for kind in range(3):
        if candidates.found[kind] > 0 and not _verify(
            kind, g, rows, fresh, candidates, lower, upper, now, out, counts, digests, stats, histogram
        ):
            return False
    return True


@njit(cache=True, nogil=True)
def join_groups(
    data: Inputs,
    pool: Pool,
    minis: Minis,
    directories: Directories,
    fresh: FreshTuples,
    hits: Hits,
    candidates: Candidates,
    cursor: I64,
    lower: int,
    upper: int,
    now: int,
    theta: int,
    budget: int,
    out: Output,
    counts: I64,
    digest: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> tuple[int, int]:
    """Join whole partition-groups of a delivery from the cursor on, until `budget` tuples are done.

    Returns (status, tuples done): DONE, BUDGET, FULL (output; call again to go on exactly there) or NEED_BLOCKS (the pool is
    too small for the next group; call again when there is room). Per touched mini-partition-group: fresh left x stored right,
    fresh right x stored left, fresh left x fresh right, then both go to their head blocks: fresh tuples leave out the
    opposite's fresh tuples exactly once.
    """
    done = 0
    size = pool.shape[0]
    while cursor[CUR_GROUP] < data.groups.shape[0]:
        if done >= budget:
            return BUDGET, done
        g = cursor[CUR_GROUP]
        left_start, left_stop = data.offsets[0][g], data.offsets[0][g + 1]
        right_start, right_stop = data.offsets[1][g], data.offsets[1][g + 1]
        if cursor[CUR_SORTED] == 0:
            group = data.groups[g]
            fresh.arrivals[0], fresh.arrivals[1] = np.int64(1) << 62, -(np.int64(1) << 62)
            touched = sort_fresh(group, 0, left_start, left_stop, data, directories, minis, fresh, 0)
            touched = sort_fresh(group, 1, right_start, right_stop, data, directories, minis, fresh, touched)
            scatter_fresh(0, left_start, left_stop, data, minis, fresh, touched)
            scatter_fresh(1, right_start, right_stop, data, minis, fresh, touched)
            wanted = (left_stop - left_start + right_stop - right_start) // size + 2 * touched
            if wanted > free_blocks(pool):
                return NEED_BLOCKS, done
            cursor[CUR_SORTED] = 1
            cursor[CUR_TOUCHED_COUNT] = touched
            cursor[CUR_TOUCHED] = 0
            cursor[CUR_PART] = 0
            cursor[CUR_PLACE] = NONE
            cursor[CUR_CHUNK] = NONE
        if not _join_group(
            g,
            data,
            pool,
            minis,
            fresh,
            hits,
            candidates,
            cursor,
            lower,
            upper,
            now,
            theta,
            out,
            counts,
            digest,
            stats,
            histogram,
        ):
            return FULL, done
        done += left_stop - left_start + right_stop - right_start
        cursor[CUR_SORTED] = 0
        cursor[CUR_GROUP] = g + 1
    return DONE, done
