"""The hot loops of the join module: numba kernels over flat arrays (SPEC section 4).

What: block nested-loop join of a partition-group's fresh tuples, appending to head blocks.
Why: free functions on plain arrays release the GIL, can be profiled alone and tested with the JIT off.
Stays out: sorting fresh tuples (`state.fresh_tuples`), exact key and time checks (`state.candidates`), blocks and
expiry (`state.blocks`), splitting and merging (`state.extendible_hash`), ownership of the arrays (`state.window_state`), the
driver (`operators.window_join`).

A block's 64 tags are compared with a probe's tag at once, or with the tags that its band allows; one that fits is a hit. Index
`s` is the stream (0 left, 1 right).
"""

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.batch import I64
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import (
    MATCHED,
    REF,
    ROW,
    TS,
)
from swjoin.core.simd import LANES, copy_items, match_mask, prefetch, range_mask
from swjoin.expressions.vm import Residual
from swjoin.state.arrays import (
    ACTIVE,
    COUNT_WINDOWS,
    COUNTERS,
    DUE,
    FEWEST_PROBES,
    FEWEST_TUPLES,
    FILL,
    FIRST,
    FIRST_TS,
    HEAD,
    HEADER,
    HITS,
    LAST_TS,
    MARK_LEFT,
    MARK_RIGHT,
    NEXT,
    PREFETCH_MINIS,
    STAT_COMPARISONS,
    TUPLES,
    Band,
    Candidates,
    Directories,
    FreshTuples,
    Hits,
    Inputs,
    Minis,
    Output,
    Pool,
    Reaches,
    Runs,
)
from swjoin.state.blocks import NONE, free_blocks, note_times, take_block, time_range
from swjoin.state.candidates import take_candidates, verify
from swjoin.state.fresh_tuples import scatter_fresh, sort_fresh
from swjoin.state.partner_runs import DECLINED, FULL_OUTPUT, join_runs

DONE, FULL, NEED_BLOCKS, BUDGET = 0, 1, 2, 3

# cursor fields
CUR_GROUP, CUR_SORTED, CUR_TOUCHED, CUR_PART, CUR_POSITION, CUR_CHUNK, CUR_PROBE, CUR_TOUCHED_COUNT = 0, 1, 2, 3, 4, 5, 6, 7
CURSOR_SIZE = 8

_ONE = np.uint64(1)
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_MAX_TIME = 1 << 62
_MAX_PREFETCH_BLOCKS = 32  # blocks of a chain that are prefetched; longer chains have hits to wait for anyway

# ---------------------------------------------------------------- joining


@kernel
def _walk_ahead(t: int, until: int, pool: Pool, minis: Minis, fresh: FreshTuples) -> None:
    """Prefetch the headers and tags of touched mini-partition-groups t .. until.

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
    for _ in range(_MAX_PREFETCH_BLOCKS):
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
                prefetch(tags, head * stride + fill)
                last = min(fill + begins[s, i + 1] - begins[s, i], size)
                for row in range(fill, last, 2):
                    prefetch(rows, (head * size + row) * ROW)


@kernel(inline="always")
def _note_strips(rows, begin, end, strips):  # type: ignore[no-untyped-def]
    """The times of every LANES of the records begin .. end go to `strips`. Returns the least and the greatest of all."""
    earliest, latest = np.int64(_MAX_TIME), np.int64(-_MAX_TIME)
    for k in range(uint64(end - begin + LANES - 1) // uint64(LANES)):
        start = begin + np.int64(k) * LANES
        first, last = time_range(rows, start, min(start + LANES, end))
        strips[2 * k], strips[2 * k + 1] = first, last
        earliest, latest = min(earliest, first), max(latest, last)
    return earliest, latest


@kernel
def _join_group(
    g: int,
    data: Inputs,
    pool: Pool,
    minis: Minis,
    fresh: FreshTuples,
    hits: Hits,
    runs: Runs | None,
    candidates: Candidates,
    residual: Residual | None,
    band: Band | None,
    cursor: I64,
    reaches: Reaches,
    disorder: I64 | None,
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
    stored. Where tuples come in time order, the probes of a mini-partition that reach a block are a range, both ends of which
    only move forward from block to block. disorder: not None where tuples come in any order: then a strip of LANES of them
    probes a block or does not, and blocks may be of any times; a type of its own, so that numba compiles a version for each.
    runs: not None where many matches are expected; a type of its own, too.
    """
    size, stride = pool.shape[0], pool.shape[1]
    rows, tags, header, free, control = pool.rows, pool.tags, pool.header, pool.free, pool.control
    counters, guard, due = minis.counters, minis.guard, minis.due
    home, mode = fresh.home, candidates.mode[0]
    count_windows = mode & COUNT_WINDOWS != 0
    fresh_rows, fresh_tags, begins, touched = fresh.rows, fresh.tags, fresh.begin, fresh.touched
    if band is not None:
        fresh_low, fresh_reach = fresh.low, fresh.reach
    hit_mask, hit_position, hit_probe, hit_count = hits.mask, hits.position, hits.probe, hits.control[0]
    probe_left, probe_right, store_left, store_right = data.probe[0], data.probe[1], data.store[0], data.store[1]
    meet = (probe_left and store_right) or (probe_right and store_left)
    comparisons = 0
    t = cursor[CUR_TOUCHED]
    touched_count = cursor[CUR_TOUCHED_COUNT]
    walked = t
    while t < touched_count:
        if t >= walked:
            walked = min(t + PREFETCH_MINIS, touched_count)
            _walk_ahead(t, walked, pool, minis, fresh)
        counter = np.int64(touched[t]) * COUNTERS
        part = cursor[CUR_PART]
        if disorder is not None:
            earliest_left, latest_left = _note_strips(fresh_rows, begins[0, t], begins[0, t + 1], fresh.strips[0])
            earliest_right, latest_right = _note_strips(fresh_rows, begins[1, t], begins[1, t + 1], fresh.strips[1])
        while part < 3:
            s = 1 if part == 1 else 0
            begin, end = begins[s, t], begins[s, t + 1]
            wanted = probe_left if part == 0 else probe_right if part == 1 else meet
            if not wanted or begin == end:
                part += 1
                continue
            reach_low, reach_high = reaches[2 * s], reaches[2 * s + 1]
            position = cursor[CUR_POSITION]
            stop = begins[1, t + 1]
            if position == NONE:
                position = counters[counter + FIRST + 1 - s]
                if part == 2:
                    position = begins[1, t] if begins[1, t] < stop else NONE
            if runs is not None:
                opposite = stop - begins[1, t] if part == 2 else counters[counter + TUPLES + 1 - s]
                many = end - begin >= runs.control[FEWEST_PROBES] and opposite >= runs.control[FEWEST_TUPLES]
                if runs.control[ACTIVE] != 0 or (many and not count_windows and cursor[CUR_POSITION] == NONE):
                    compared = join_runs(
                        part, g, t, position, pool, fresh, runs, mode, residual, band, reaches, disorder, now, out, counts,
                        digests, stats, histogram,
                    )  # fmt: skip
                    if compared == FULL_OUTPUT:
                        cursor[CUR_TOUCHED], cursor[CUR_PART] = t, part
                        hits.control[0] = hit_count
                        stats[STAT_COMPARISONS] += comparisons
                        return False
                    if compared != DECLINED:
                        comparisons += compared
                        part += 1
                        continue
            block_tags = fresh_tags if part == 2 else tags
            from_probe = begin
            to_probe = begin
            if disorder is not None:
                strips, others = fresh.strips[s], fresh.strips[1 - s]
                earliest, latest = (earliest_left, latest_left) if s == 0 else (earliest_right, latest_right)
            while position != NONE:
                if part == 2:
                    at, at_tag, fill = position, position, min(np.int64(LANES), stop - position)
                    following = position + fill if position + fill < stop else NONE
                    first_ts, last_ts = fresh_rows[position * ROW + TS], fresh_rows[(position + fill - 1) * ROW + TS]
                    if count_windows:  # either tuple's window decides: `count_in_last` checks both
                        first_ts, last_ts = -_MAX_TIME, _MAX_TIME
                    elif disorder is not None:
                        first_ts, last_ts = others[(position - begins[1, t]) // 32], others[(position - begins[1, t]) // 32 + 1]
                else:
                    at, at_tag, fill = position * size, position * stride, header[position * HEADER + FILL]
                    following = header[position * HEADER + NEXT]
                    first_ts, last_ts = header[position * HEADER + FIRST_TS], header[position * HEADER + LAST_TS]
                if disorder is None:
                    while from_probe < end and fresh_rows[from_probe * ROW + TS] + reach_high < first_ts:
                        from_probe += 1
                    if from_probe == end:
                        break  # later blocks are too new for all these probes
                    if fresh_rows[(end - 1) * ROW + TS] + reach_low <= last_ts:
                        to_probe = end  # as for most blocks
                    while to_probe < end and fresh_rows[to_probe * ROW + TS] + reach_low <= last_ts:
                        to_probe += 1
                elif latest + reach_high < first_ts or earliest + reach_low > last_ts:
                    position = following
                    continue
                else:
                    to_probe = end
                if cursor[CUR_CHUNK] == NONE:
                    if disorder is None:
                        comparisons += fill * max(0, to_probe - from_probe)
                    chunk, probe = 0, from_probe
                else:
                    chunk, probe = cursor[CUR_CHUNK], cursor[CUR_PROBE]
                    cursor[CUR_CHUNK] = NONE
                while chunk < fill:
                    limit = _ALL if fill - chunk >= LANES else (_ONE << uint64(fill - chunk)) - _ONE
                    while probe < to_probe:
                        strip_end = min(probe + LANES, to_probe)
                        if disorder is not None:
                            strip = (probe - begin) // 32  # two times of each LANES tuples
                            if strips[strip + 1] + reach_high < first_ts or strips[strip] + reach_low > last_ts:
                                probe = strip_end
                                continue
                            comparisons += min(fill - chunk, LANES) * (strip_end - probe)
                        if hit_count + strip_end - probe > HITS:
                            hits.control[0] = hit_count
                            if not take_candidates(
                                g,
                                rows,
                                fresh,
                                hits,
                                candidates,
                                residual,
                                band,
                                reaches,
                                now,
                                out,
                                counts,
                                digests,
                                stats,
                                histogram,
                            ):
                                cursor[CUR_TOUCHED], cursor[CUR_PART], cursor[CUR_POSITION] = t, part, position
                                cursor[CUR_CHUNK], cursor[CUR_PROBE] = chunk, probe
                                stats[STAT_COMPARISONS] += comparisons
                                return False
                            hit_count = 0
                        k = uint64(hit_count)
                        for p in range(uint64(probe), uint64(strip_end)):  # no branch: matches are unpredictable
                            if band is None:
                                mask = match_mask(block_tags, at_tag + chunk, fresh_tags[p]) & limit
                            else:
                                mask = range_mask(block_tags, at_tag + chunk, fresh_low[p], fresh_reach[p]) & limit
                            hit_mask[k] = mask
                            hit_position[k] = (at + chunk) * 4 + part
                            hit_probe[k] = p
                            k += uint64(mask != uint64(0))
                        hit_count = np.int64(k)
                        probe = strip_end
                    chunk += LANES
                    probe = from_probe
                position = following
            cursor[CUR_POSITION] = NONE
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
                    header[head * HEADER + FIRST_TS] = fresh.sequence[i] if count_windows else fresh_rows[i * ROW + TS]
                fill = header[head * HEADER + FILL]
                n = min(end - i, size - fill)
                to, source = (head * size + fill) * ROW, i * ROW
                copy_items(rows, to, fresh_rows, source, n * ROW)
                if count_windows:
                    for j in range(n):
                        rows[to + j * ROW + TS] = fresh.sequence[i + j]
                to = head * stride + fill
                copy_items(tags, to, fresh_tags, i, n)
                if mode & (MARK_LEFT | MARK_RIGHT) != 0:
                    for j in range(n):
                        home[i + j] = head * size + fill + j
                if disorder is not None:
                    first, last = time_range(fresh_rows, i, i + n)
                    note_times(header, head, fill, first, last)
                i += n
                header[head * HEADER + FILL] = fill + n
                if disorder is None:
                    header[head * HEADER + LAST_TS] = fresh.sequence[i - 1] if count_windows else fresh_rows[(i - 1) * ROW + TS]
        stored = counters[counter + TUPLES] + counters[counter + TUPLES + 1]
        if theta > 0 and stored > 2 * theta and stored >= guard[touched[t]]:
            due[minis.control[DUE]] = touched[t]
            minis.control[DUE] += 1
        cursor[CUR_PART] = 0
        t += 1
    cursor[CUR_TOUCHED] = t
    stats[STAT_COMPARISONS] += comparisons
    hits.control[0] = hit_count
    if not take_candidates(
        g, rows, fresh, hits, candidates, residual, band, reaches, now, out, counts, digests, stats, histogram
    ):
        return False
    for kind in range(3):
        if candidates.found[kind] > 0 and not verify(
            kind, g, rows, fresh, candidates, residual, band, reaches, now, out, counts, digests, stats, histogram
        ):
            return False
    for s in range(2):  # matches are verified late, when both tuples may have been stored already
        if mode & (MARK_LEFT if s == 0 else MARK_RIGHT) != 0 and (store_left if s == 0 else store_right):
            for i in range(begins[s, 0], begins[s, touched_count]):
                if fresh_rows[i * ROW + REF] & MATCHED != 0:
                    rows[home[i] * ROW + REF] |= MATCHED
    return True


@kernel
def join_groups(
    data: Inputs,
    pool: Pool,
    minis: Minis,
    directories: Directories,
    fresh: FreshTuples,
    hits: Hits,
    runs: Runs | None,
    candidates: Candidates,
    residual: Residual | None,
    band: Band | None,
    cursor: I64,
    reaches: Reaches,
    disorder: I64 | None,
    now: int,
    theta: int,
    budget: int,
    out: Output,
    counts: I64,
    digest: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
    comparisons: I64,
) -> tuple[int, int]:
    """Join whole partition-groups of a delivery from the cursor on, until `budget` tuples are done.

    Returns (status, tuples done): DONE, BUDGET, FULL (output; call again to continue exactly there) or NEED_BLOCKS (the pool is
    too small for the next group; call again when there is room). comparisons[g] grows by those of the g-th group. Per touched
    mini-partition-group: fresh left x stored right, fresh right x stored left, fresh left x fresh right, then both go to their
    head blocks: fresh tuples leave out the opposite's fresh tuples exactly once.
    """
    done = 0
    size = pool.shape[0]
    while cursor[CUR_GROUP] < data.groups.shape[0]:
        if done >= budget:
            return BUDGET, done
        g = cursor[CUR_GROUP]
        tuples = 0
        for s in range(2):
            tuples += data.offsets[s][g + 1] - data.offsets[s][g]
        if cursor[CUR_SORTED] == 0:
            group = data.groups[g]
            fresh.arrivals[0], fresh.arrivals[1] = np.int64(1) << 62, -(np.int64(1) << 62)
            touched = np.int64(0)
            for s in range(2):  # not 0 and 1, for each of which numba compiles a version
                touched = sort_fresh(
                    group, s, data.offsets[s][g], data.offsets[s][g + 1], data, pool, directories, minis, fresh, touched
                )
            for s in range(2):
                scatter_fresh(s, data.offsets[s][g], data.offsets[s][g + 1], data, pool, minis, fresh, touched, band)
            wanted = tuples // size + 2 * touched
            if wanted > free_blocks(pool):
                return NEED_BLOCKS, done
            cursor[CUR_SORTED] = 1
            cursor[CUR_TOUCHED_COUNT] = touched
            cursor[CUR_TOUCHED] = 0
            cursor[CUR_PART] = 0
            cursor[CUR_POSITION] = NONE
            cursor[CUR_CHUNK] = NONE
        compared = stats[STAT_COMPARISONS]
        joined = _join_group(
            g,
            data,
            pool,
            minis,
            fresh,
            hits,
            runs,
            candidates,
            residual,
            band,
            cursor,
            reaches,
            disorder,
            now,
            theta,
            out,
            counts,
            digest,
            stats,
            histogram,
        )
        comparisons[g] += stats[STAT_COMPARISONS] - compared
        if not joined:
            return FULL, done
        done += tuples
        cursor[CUR_SORTED] = 0
        cursor[CUR_GROUP] = g + 1
    return DONE, done
