"""Joins of many partners: the opposite stream's tuples in the order of their tags, so that the partners of a probe are a run.

What: `join_runs`, which joins the fresh tuples of one stream and mini-partition-group so, where that is worth its while.
Why: of a wide band, or a key that many tuples have, most of the time goes to taking matches out of masks one by one. A run is
checked eight tuples an instruction. The order costs a pass over the tuples, which many probes of a delivery share.
Stays out: the join by blocks (`state.join_kernel`), checks of single candidates (`state.candidates`).
"""

from __future__ import annotations

import numpy as np
from numba import uint64
from numpy.typing import NDArray

from swjoin.core.band_keys import GREATEST_KEY, LEAST_KEY
from swjoin.core.batch import I64, MISSING_ID
from swjoin.core.hashing import left_term, pair_hash, pair_of_terms, right_term
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import FLAGS, ID, KEY, MATCHED, REF, ROW, TS
from swjoin.core.simd import LANES as TAGS
from swjoin.core.simd import count_ones, match_mask, prefetch, range_mask
from swjoin.expressions.column_vm import LANES, evaluate_columns, load_columns
from swjoin.expressions.vm import Residual
from swjoin.state.arrays import (
    ACTIVE,
    AT,
    BASE,
    BUCKETS,
    COMPARED,
    FAR,
    FEWEST_TUPLES,
    FILL,
    FIRST_MATCHES,
    FIRST_TS,
    FROM_PROBE,
    GATHERED,
    HEADER,
    IDS_ALONE,
    LAST_TS,
    MARK_LEFT,
    MARK_RIGHT,
    NEXT,
    PAIRS,
    POSITION,
    PROBE,
    RUN_BUCKETS,
    RUN_TUPLES,
    SHIFT,
    STAT_CANDIDATES,
    STAT_PAIRS,
    TAKEN,
    TO_PROBE,
    Band,
    FreshTuples,
    Output,
    Pool,
    Reaches,
    Runs,
)
from swjoin.state.blocks import NONE, time_range
from swjoin.state.delay_histogram import record_delay

DECLINED, FULL_OUTPUT = -1, -2

_SAMPLE = 32  # one probe of so many is looked at, at most _SAMPLED
_SAMPLED = 4
_PROBE_COST = 8  # partners that cost as much as finding a probe's run
_ALL = np.uint64(0xFFFFFFFFFFFFFFFF)
_ONE = np.uint64(1)


@kernel(inline="always")
def _hits(tags, at, fill, probe, fresh_tags, low, reach, band):  # type: ignore[no-untyped-def]
    """Tags at .. at + fill that fit a probe's."""
    found = 0
    for chunk in range(0, fill, TAGS):
        limit = _ALL if fill - chunk >= TAGS else (_ONE << uint64(fill - chunk)) - _ONE
        if band is None:
            mask = match_mask(tags, at + chunk, fresh_tags[probe])
        else:
            mask = range_mask(tags, at + chunk, low[probe], reach[probe])
        found += count_ones(mask & limit)
    return found


@kernel
def _many_partners(part, position, begin, end, stop, pool, fresh, band):  # type: ignore[no-untyped-def]
    """Whether probes begin .. end meet each opposite tuple about once or more, by a sample of them."""
    header, tags, stride = pool.header, pool.tags, pool.shape[1]
    fresh_tags, low, reach = fresh.tags, fresh.low, fresh.reach
    probes = end - begin
    sampled = max(1, min(probes // _SAMPLE, _SAMPLED))
    hits = tuples = 0
    for i in range(sampled):
        probe = begin + (2 * i + 1) * probes // (2 * sampled)
        if part == 2:
            tuples += stop - position
            hits += _hits(fresh_tags, position, stop - position, probe, fresh_tags, low, reach, band)
            continue
        block = position
        while block != NONE:
            fill = header[block * HEADER + FILL]
            tuples += fill
            hits += _hits(tags, block * stride, fill, probe, fresh_tags, low, reach, band)
            block = header[block * HEADER + NEXT]
    return hits * probes >= tuples + sampled * _PROBE_COST * probes


@kernel
def _gather(runs, rows, tags, at_tag, at, fill):  # type: ignore[no-untyped-def]
    """Take tuples at .. at + fill, with tags from at_tag on, and prefetch their records; there must be room."""
    n = uint64(runs.control[GATHERED])
    tag, place = runs.tag, runs.place
    for j in range(0, fill, 2):
        prefetch(rows, (at + j) * ROW)
    for j in range(uint64(fill)):
        tag[n + j] = tags[uint64(at_tag) + j]
        place[n + j] = (uint64(at) + j) * uint64(ROW)
    runs.control[GATHERED] += fill


@kernel
def _put_in_order(kind, rows, runs):  # type: ignore[no-untyped-def]
    """Sort what was gathered by tag, into RUN_BUCKETS buckets at most. Returns whether a key stands for values beyond its own.

    Tags are counted from the least one on; of one cell of a band there are so few that a bucket has one tag.
    """
    n, control, tag, starts, following = uint64(runs.control[GATHERED]), runs.control, runs.tag, runs.starts, runs.next
    middle = np.int64(tag[0])
    least = greatest = np.int64(0)
    for i in range(n):
        apart = ((np.int64(tag[i]) - middle + 0x8000) & 0xFFFF) - 0x8000
        least, greatest = min(least, apart), max(greatest, apart)
    base, shift = middle + least, np.int64(0)
    while (greatest - least) >> shift >= RUN_BUCKETS:
        shift += 1
    buckets = ((greatest - least) >> shift) + 1
    control[BASE], control[SHIFT], control[BUCKETS] = base, shift, buckets
    for b in range(buckets + 1):
        starts[b] = 0
    for i in range(n):
        starts[uint64(((np.int64(tag[i]) - base) & 0xFFFF) >> shift) + uint64(1)] += 1
    for b in range(buckets):
        following[b] = starts[b]
        starts[b + 1] += starts[b]
    key, ts, term, place, row = runs.key, runs.ts, runs.term, runs.place, runs.row
    far = False
    for i in range(n):
        b = uint64(((np.int64(tag[i]) - base) & 0xFFFF) >> shift)
        to = uint64(following[b])
        following[b] += 1
        at = place[i]
        row[to] = at
        key[to] = rows[at + uint64(KEY)]
        ts[to] = rows[at + uint64(TS)]
        row_id = uint64(rows[at + uint64(ID)])
        term[to] = left_term(row_id) if kind == 1 else right_term(row_id)
        far |= (rows[at + uint64(KEY)] < LEAST_KEY) | (rows[at + uint64(KEY)] > GREATEST_KEY)
    return far


@kernel(inline="always")
def _check(s, key, low, high, start, keys, times, band, verdict, n):  # type: ignore[no-untyped-def]
    """verdict[j] = 1 for the tuples start + j, j < n, that a probe of stream s meets by key, and by time: low .. high."""
    at = uint64(start)
    if band is None:
        for j in range(n):
            verdict[j] = (keys[at + j] == key) & (times[at + j] >= low) & (times[at + j] <= high)
        return
    least = key >> band.cell_bits << band.cell_bits
    greatest, span = least + (np.int64(1) << band.cell_bits) - 1, band.span
    if s == band.wide:
        from_key = key - (key & 1) * (span + 1)
        least, greatest = max(least, from_key), min(greatest, from_key + span)
        for j in range(n):
            near = (times[at + j] >= low) & (times[at + j] <= high)
            verdict[j] = near & (keys[at + j] >= least) & (keys[at + j] <= greatest)
    else:  # tuples of the wide side may be copies
        for j in range(n):
            beyond = key - keys[at + j] + (-(keys[at + j] & 1) & (span + 1))
            near = (times[at + j] >= low) & (times[at + j] <= high)
            verdict[j] = near & (beyond >= 0) & (beyond <= span) & (keys[at + j] >= least) & (keys[at + j] <= greatest)


@kernel(inline="always")
def _count(start, terms, term, verdict, n):  # type: ignore[no-untyped-def]
    """Matches of a probe among the tuples start + j, j < n, and the sum of their digests."""
    at = uint64(start)
    matches, digest = np.int64(0), uint64(0)
    for j in range(n):
        matches += np.int64(verdict[j])
        digest += pair_of_terms(term, terms[at + j]) if verdict[j] else uint64(0)
    return matches, digest


@kernel
def _take(
    kind: int,
    g: int,
    p: int,
    start: int,
    n: int,
    rows: I64,
    fresh: FreshTuples,
    runs: Runs,
    mode: int,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> int:
    """Take the matches of a probe among the tuples start + j, j < n. Returns how many of these are done: output may be full."""
    probe_rows, arrival, verdict = fresh.rows, fresh.arrival, runs.verdict
    s = 1 if kind == 1 else 0
    at, capacity, used = p * ROW, out.capacity[0], out.used[0]
    probe_id = uint64(probe_rows[at + ID])
    pairs, first = mode & PAIRS != 0, mode & FIRST_MATCHES != 0
    mark_probe = mode & (MARK_LEFT if s == 0 else MARK_RIGHT) != 0
    mark_row = mode & (MARK_RIGHT if s == 0 else MARK_LEFT) != 0
    done = n
    for j in range(n):
        if not verdict[j]:
            continue
        r = np.int64(runs.row[start + j])
        left_ref = probe_rows[at + REF] if s == 0 else rows[r + REF]
        if pairs or (first and left_ref & MATCHED == 0):
            left_id = probe_id if s == 0 else uint64(rows[r + ID])
            right_id = MISSING_ID if first else uint64(rows[r + ID]) if s == 0 else probe_id
            if capacity > 0:
                if used == capacity:
                    done = j
                    break
                out.key[used] = rows[r + KEY]
                out.ts[s, used] = probe_rows[at + TS]
                out.ts[1 - s, used] = rows[r + TS]
                out.id[0, used] = left_id
                out.id[1, used] = right_id
                out.ref[s, used] = probe_rows[at + REF] & ~FLAGS
                out.ref[1 - s, used] = rows[r + REF] & ~FLAGS
                used += 1
            counts[g] += 1
            digests[g] += pair_hash(left_id, right_id)
            stats[STAT_PAIRS] += 1
            record_delay(now, max(arrival[p], arrival[r // ROW]) if kind == 2 else arrival[p], 1, stats, histogram)
        if mark_probe:
            probe_rows[at + REF] |= MATCHED
        if mark_row and rows[r + REF] & MATCHED == 0:
            rows[r + REF] |= MATCHED
    out.used[0] = used
    return done


@kernel
def _meet(
    kind: int,
    g: int,
    end: int,
    rows: I64,
    fresh: FreshTuples,
    runs: Runs,
    mode: int,
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
    """Join the probes up to `end`, from where the control fields say, with the tuples in order. False: the output is full."""
    probe_rows, arrival, tags, lows, reach = fresh.rows, fresh.arrival, fresh.tags, fresh.low, fresh.reach
    control, verdict, starts, keys, times, terms = runs.control, runs.verdict, runs.starts, runs.key, runs.ts, runs.term
    base, shift, buckets = control[BASE], control[SHIFT], control[BUCKETS]
    s = 1 if kind == 1 else 0
    low, high = reaches[2 * s], reaches[2 * s + 1]
    far_rows = control[FAR] != 0
    counts_alone = mode & ~IDS_ALONE == PAIRS and out.capacity[0] == 0
    counts_alone = counts_alone and (kind != 2 or fresh.arrivals[0] == fresh.arrivals[1])
    for p in range(control[PROBE], end):
        key, time = probe_rows[p * ROW + KEY], probe_rows[p * ROW + TS]
        first_tag = last_tag = np.int64(tags[p])
        if band is not None:
            first_tag = np.int64(lows[p])
            last_tag = first_tag + np.int64(reach[p])
        from_tag = (first_tag - base) & 0xFFFF
        to_tag = from_tag + last_tag - first_tag
        first = starts[min(from_tag >> shift, buckets)]
        until = total = starts[min((min(to_tag, np.int64(0xFFFF)) >> shift) + 1, buckets)] - first
        if to_tag > 0xFFFF:  # tags go on from 0
            total += starts[min(((to_tag - 0x10000) >> shift) + 1, buckets)]
        i, matches = control[AT], np.int64(0)
        probe_id = uint64(probe_rows[p * ROW + ID])
        term = right_term(probe_id) if s == 1 else left_term(probe_id)
        while i < total:
            start = first + i if i < until else i - until
            n = min(np.int64(LANES), (until if i < until else total) - i)
            _check(s, key, time + low, time + high, start, keys, times, band, verdict, uint64(n))
            if residual is not None:
                filtered = True
                if band is not None:
                    filtered = not band.exact or far_rows or not LEAST_KEY <= key <= GREATEST_KEY
                if filtered:
                    ref = probe_rows[p * ROW + REF] & ~FLAGS
                    evaluate_columns(residual, s, ref, key, time, start, times, runs.columns, verdict, n)
            if counts_alone:
                found, summed = _count(start, terms, term, verdict, uint64(n))
                matches += found
                digests[g] += summed
                i += n
                continue
            done = _take(kind, g, p, start, n, rows, fresh, runs, mode, now, out, counts, digests, stats, histogram)
            i += done
            if done < n:
                control[PROBE], control[AT] = p, i
                return False
        counts[g] += matches
        stats[STAT_PAIRS] += matches
        record_delay(now, arrival[p], matches, stats, histogram)
        stats[STAT_CANDIDATES] += total
        control[AT] = 0
    return True


@kernel
def _fill(kind, t, pool, fresh, runs, reaches, disorder):  # type: ignore[no-untyped-def]
    """Gather tuples that a probe's times reach, block by block, until there are RUN_TUPLES of them or no more."""
    size, stride, header, tags, control = pool.shape[0], pool.shape[1], pool.header, pool.tags, runs.control
    s = 1 if kind == 1 else 0
    begin, end, stop = fresh.begin[s, t], fresh.begin[s, t + 1], fresh.begin[1, t + 1]
    probe_rows = fresh.rows
    rows, block_tags = (probe_rows, fresh.tags) if kind == 2 else (pool.rows, tags)
    reach_low, reach_high = reaches[2 * s], reaches[2 * s + 1]
    from_probe, to_probe = control[FROM_PROBE], control[TO_PROBE]
    position = control[POSITION]
    while position != NONE:
        if kind == 2:
            at, at_tag, fill = position, position, min(np.int64(TAGS), stop - position)
            following = position + fill if position + fill < stop else NONE
            first_ts, last_ts = time_range(probe_rows, position, position + fill)
        else:
            at, at_tag, fill = position * size, position * stride, header[position * HEADER + FILL]
            following = header[position * HEADER + NEXT]
            first_ts, last_ts = header[position * HEADER + FIRST_TS], header[position * HEADER + LAST_TS]
        reached = np.int64(0)
        if disorder is None:
            while from_probe < end and probe_rows[from_probe * ROW + TS] + reach_high < first_ts:
                from_probe += 1
            if from_probe == end:
                position = NONE  # later blocks are too new for all these probes
                break
            while to_probe < end and probe_rows[to_probe * ROW + TS] + reach_low <= last_ts:
                to_probe += 1
            reached = max(np.int64(0), to_probe - from_probe)
        else:
            strips = fresh.strips[s]
            for strip in range(uint64(end - begin + TAGS - 1) // uint64(TAGS)):
                if strips[2 * strip + 1] + reach_high >= first_ts and strips[2 * strip] + reach_low <= last_ts:
                    reached += min(end - begin - np.int64(strip) * TAGS, TAGS)
        if reached > 0:
            taken = control[TAKEN]
            n = min(fill - taken, RUN_TUPLES - control[GATHERED])
            _gather(runs, rows, block_tags, at_tag + taken, at + taken, n)
            if taken + n < fill:
                control[TAKEN] = taken + n
                break
            control[TAKEN] = 0
        control[COMPARED] += fill * reached
        position = following
    control[FROM_PROBE], control[TO_PROBE], control[POSITION] = from_probe, to_probe, position


@kernel
def join_runs(
    kind: int,
    g: int,
    t: int,
    position: int,
    pool: Pool,
    fresh: FreshTuples,
    runs: Runs,
    mode: int,
    residual: Residual | None,
    band: Band | None,
    reaches: Reaches,
    disorder: I64 | None,
    now: int,
    out: Output,
    counts: I64,
    digests: NDArray[np.uint64],
    stats: I64,
    histogram: I64,
) -> int:
    """Join the fresh tuples of touched mini-partition-group t by runs, if they have many partners.

    kind: of candidates. position: the first block of the opposite stream's, or, for kind 2, its first fresh tuple. Returns how
    often blocks would have had tuples compared (`state.join_kernel`), DECLINED where nothing was done, or FULL_OUTPUT: call
    again, to continue exactly there.
    """
    s = 1 if kind == 1 else 0
    begin, end, control = fresh.begin[s, t], fresh.begin[s, t + 1], runs.control
    rows = fresh.rows if kind == 2 else pool.rows
    if control[ACTIVE] == 0:
        if position == NONE:
            return 0
        if control[FEWEST_TUPLES] > 0 and not _many_partners(
            kind, position, begin, end, fresh.begin[1, t + 1], pool, fresh, band
        ):
            return DECLINED
        control[ACTIVE:] = 0
        control[ACTIVE], control[POSITION], control[FROM_PROBE], control[TO_PROBE] = 1, position, begin, begin
    while True:
        if control[GATHERED] == 0:
            _fill(kind, t, pool, fresh, runs, reaches, disorder)
            if control[GATHERED] == 0:
                break
            control[FAR] = _put_in_order(kind, rows, runs)
            if residual is not None:
                load_columns(residual, 1 - s, rows, runs.row[: control[GATHERED]], runs.columns)
            control[PROBE] = begin
        if not _meet(
            kind, g, end, rows, fresh, runs, mode, residual, band, reaches, now, out, counts, digests, stats, histogram
        ):
            return FULL_OUTPUT
        control[GATHERED] = 0
    control[ACTIVE] = 0
    return int(control[COMPARED])
