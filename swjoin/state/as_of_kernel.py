"""As-of joins over rows in the order of time, as kernels.

What: `match_due` looks at the left and right rows that are due, in the order of time; `settle_passed` lets left rows out whose
time for a better match has passed; `in_order`, `merge_orders`, `survivors`, `count_chosen`.
Why: of all right rows of a key only the latest can be a match, so a row costs a lookup, whatever the bounds; and of right rows
that another has superseded nothing is kept.
Stays out: the table of latest rows (`state.latest_rows`), when rows are due, memory, moves (`operators.as_of_join`), which row
is a match (`core.join_semantics.AsOf`).

Rows of either stream are at positions from 0 on, in the order in which they came. A right row that has been looked at goes to
the table of latest rows. With a residual predicate an earlier one may be the match, so right rows of a key are a chain, the
latest first, and are kept as long as bounds say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, MISSING_ID, U8, U64
from swjoin.core.hashing import hash_key, pair_hash
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import ID, KEY, REF, ROW, TS
from swjoin.core.simd import copy_items, prefetch
from swjoin.expressions.vm import Residual, evaluate
from swjoin.state.latest_rows import (
    I32,
    NO_ROW,
    NONE,
    ROWS,
    Latest,
    entry_of,
    first_of_bucket,
    is_full,
    likely_entry,
    new_entry,
)

WAITS, HELD, GONE = 0, 1, 2  # not looked at yet; a left row that may get a better match, a right one that may be a match; done
CHOSEN, LEFT_LATER, RIGHT_LATER = 0, 1, 2  # of `Chosen.counts`
LOOKED_AT, RIGHT_LOOKED_AT = 3, 4  # and of rows that were due
_AHEAD = 12  # rows between the prefetch of a key's tags and that of its row, and between that and its use
_AT_ONCE = 32  # candidates for which a predicate is evaluated together


class Rows(NamedTuple):
    """Rows of one stream, at positions 0 .. n - 1. Arrays may be longer."""

    rows: I64  # (n * ROW,)
    hashed: U64  # (n,) hashes of their keys
    group: I32  # (n,) partition-groups
    next: I32  # (n,) of a held row, another held one of its key: of right rows the one before, of left rows any
    state: U8  # (n,)
    best: I32  # (n,) of a held left row, with a predicate, the position of its match so far, or NONE; right rows have none
    until: I64  # (n,) and the greatest time that a better match can have


class Rule(NamedTuple):
    """`core.join_semantics.AsOf` for kernels: looks back, looks ahead, when a left row is due, bounds of candidates."""

    back: bool
    ahead: bool
    due: int
    lower: int
    upper: int


class Chosen(NamedTuple):
    """What `match_due` and `settle_passed` find."""

    left: I64  # positions of left rows that come out
    right: I64  # (n * ROW,) and their matches; the time is NO_ROW where there is none
    left_later: I64  # positions of rows that are not due, in the order in which they were given
    right_later: I64
    counts: I64  # (5,)


class Scratch(NamedTuple):
    """For a residual predicate."""

    probe: U64  # (_AT_ONCE,)
    row: U64
    verdict: U8


def new_scratch() -> Scratch:
    return Scratch(np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.uint64), np.empty(_AT_ONCE, np.uint8))


# ---------------------------------------------------------------- the order of rows


@kernel(inline="always")
def _comes_before(group, rows, one, other):  # type: ignore[no-untyped-def]
    """By partition-group, time, and id."""
    time, later = rows[one * ROW + TS], rows[other * ROW + TS]
    earlier = time < later
    if time == later:
        earlier = np.uint64(rows[one * ROW + ID]) < np.uint64(rows[other * ROW + ID])
    return group[one] < group[other] or (group[one] == group[other] and earlier)


@kernel
def in_order(side: Rows, positions: I64) -> bool:
    """Whether rows are in the order of `match_due`."""
    group, rows = side.group, side.rows
    last_group, last_us, last_id = np.int64(NONE), np.int64(0), np.uint64(0)
    for i in range(positions.shape[0]):
        row = np.uint64(positions[i]) * np.uint64(ROW)
        mine, at_us, own = np.int64(group[positions[i]]), rows[row + np.uint64(TS)], np.uint64(rows[row + np.uint64(ID)])
        if mine < last_group or (mine == last_group and (at_us < last_us or (at_us == last_us and own < last_id))):
            return False
        last_group, last_us, last_id = mine, at_us, own
    return True


@kernel
def merge_orders(side: Rows, one: I64, other: I64, out: I64) -> None:
    """Two lists of positions in order become one."""
    group, rows = side.group, side.rows
    i = j = 0
    n, m = one.shape[0], other.shape[0]
    while i < n and j < m:
        if _comes_before(group, rows, other[j], one[i]):
            out[i + j] = other[j]
            j += 1
        else:
            out[i + j] = one[i]
            i += 1
    copy_items(out, i + j, one, i, n - i)
    copy_items(out, n + j, other, j, m - j)


# ---------------------------------------------------------------- candidates


@kernel
def _holds(mine: int, r: int, left: Rows, right: Rows, residual: Residual, scratch: Scratch) -> bool:
    """Whether the predicate holds for left row mine and right row r."""
    scratch.probe[0], scratch.row[0], scratch.verdict[0] = mine * ROW, r * ROW, 1
    program, one, other = residual.program, residual.left, residual.right
    evaluate(program, one, other, 0, left.rows, right.rows, scratch.probe, scratch.row, scratch.verdict, 0, 1)
    return bool(scratch.verdict[0] != 0)


@kernel
def _last_that_holds(
    mine: int, r: int, lower: int, most: int, left: Rows, right: Rows, residual: Residual, scratch: Scratch
) -> int:
    """The latest row of the chain from r on that is a candidate of left row `mine`, or NONE. most: the greatest right time -
    left time of a candidate."""
    at_us = left.rows[mine * ROW + TS]
    program, one, other = residual.program, residual.left, residual.right
    while r != NONE:
        n = 0
        while r != NONE and n < _AT_ONCE:
            apart = right.rows[r * ROW + TS] - at_us
            if apart < lower:
                r = NONE
                break
            if apart <= most:
                scratch.probe[n], scratch.row[n], scratch.verdict[n] = mine * ROW, r * ROW, 1
                n += 1
            r = right.next[r]
        evaluate(program, one, other, 0, left.rows, right.rows, scratch.probe, scratch.row, scratch.verdict, 0, n)
        for k in range(n):
            if scratch.verdict[k]:
                return int(scratch.row[k]) // ROW
    return NONE


# ---------------------------------------------------------------- rows that are due


@kernel(inline="always")
def _copy_row(rows, at, out, to):  # type: ignore[no-untyped-def]
    for word in range(ROW):
        out[to * ROW + word] = rows[at * ROW + word]


@kernel(inline="always")
def _best_so_far(mine, at, left, right, latest, lower, chained, out, to):  # type: ignore[no-untyped-def]
    """The match so far of a held left row whose key has entry `at`: without a predicate the latest row, as no right row has
    come since that could be none."""
    out[to * ROW + TS] = NO_ROW
    if chained:
        if left.best[mine] != NONE:
            _copy_row(right.rows, np.int64(left.best[mine]), out, to)
    elif latest[at * ROW + TS] != NO_ROW and latest[at * ROW + TS] - left.rows[mine * ROW + TS] >= lower:
        _copy_row(latest, at, out, to)


@kernel(inline="always")
def _prefetch_key(hashed, positions, i, tags, latest, group_of, stays):  # type: ignore[no-untyped-def]
    """What the rows after position i will need. stays: they get an entry if they have none."""
    prefetch(tags, first_of_bucket(hashed[positions[i + 2 * _AHEAD]], tags.shape[0]))
    at, is_known = likely_entry(hashed[positions[i + _AHEAD]], tags)
    if at != NONE and (is_known or stays):
        prefetch(latest, at * ROW)
        if not is_known:
            prefetch(group_of, at)


@kernel
def match_due(
    lefts: I64,
    rights: I64,
    left: Rows,
    right: Rows,
    keys: Latest,
    front: I64,
    least: I64,
    rule: Rule,
    residual: Residual | None,
    scratch: Scratch,
    chosen: Chosen,
) -> bool:
    """Look at the rows at these positions, which are in order (`in_order`), up to the front of their partition-group, int64
    (groups,): the time below which all that is due has come. The others are `left_later` and `right_later`. least: times below
    which right rows are no matches of any of these any more, int64 (groups,). Returns whether all have been looked at; if not,
    `keys` is full, and the next call goes on."""
    left_rows, left_group, left_next, left_state = left.rows, left.group, left.next, left.state
    right_rows, right_group, right_next, right_state = right.rows, right.group, right.next, right.state
    best_of, until_of, tags, latest, last, held = left.best, left.until, keys.tags, keys.rows, keys.last, keys.held
    out_left, out_right, left_later, right_later = chosen.left, chosen.right, chosen.left_later, chosen.right_later
    back, ahead, lower, upper, chained = rule.back, rule.ahead, rule.lower, rule.upper, keys.last.shape[0] > 0
    counts, key_counts, group_of = chosen.counts, keys.counts, keys.group
    left_hashed, right_hashed = left.hashed, right.hashed
    out, later_left, later_right = counts[CHOSEN], counts[LEFT_LATER], counts[RIGHT_LATER]
    n, m = lefts.shape[0], rights.shape[0]
    i, j = counts[LOOKED_AT] + later_left, counts[RIGHT_LOOKED_AT] + later_right
    while (i < n or j < m) and not is_full(tags, key_counts):
        mine = lefts[i] if i < n else np.int64(NONE)
        r = rights[j] if j < m else np.int64(NONE)
        due = left_rows[mine * ROW + TS] + rule.due if i < n else np.int64(0)
        of_right = i == n
        if i < n and j < m:
            time = right_rows[r * ROW + TS]
            is_first = time < due or (back and time == due)
            of_right = right_group[r] < left_group[mine] or (right_group[r] == left_group[mine] and is_first)
        if of_right:
            j += 1
            if j + 2 * _AHEAD < m:
                _prefetch_key(right_hashed, rights, j, tags, latest, group_of, True)
            at_us, key = right_rows[r * ROW + TS], right_rows[r * ROW + KEY]
            if at_us >= front[right_group[r]]:
                right_later[later_right] = r
                later_right += 1
                continue
            hashed = right_hashed[r]
            at = np.int64(entry_of(key, hashed, tags, latest))
            if ahead and at != NONE:
                waits, stay = np.int64(held[at]), np.int64(NONE)
                while waits != NONE:
                    following = np.int64(left_next[waits])
                    if left_state[waits] == HELD:
                        missed = at_us > until_of[waits]
                        takes = True
                        if residual is not None and not missed:
                            takes = _holds(waits, r, left, right, residual, scratch)
                        if missed or takes:
                            out_left[out], left_state[waits] = waits, GONE
                            if missed:
                                _best_so_far(waits, at, left, right, latest, lower, chained, out_right, out)
                            else:
                                _copy_row(right_rows, r, out_right, out)
                            out += 1
                        else:
                            left_next[waits] = stay
                            stay = waits
                    waits = following
                held[at] = stay
            right_state[r] = HELD if chained else GONE
            if back:
                if at == NONE:
                    at = np.int64(new_entry(key, hashed, right_group[r], tags, latest, group_of, last, held, key_counts, least))
                if latest[at * ROW + TS] == NO_ROW:
                    key_counts[ROWS] += 1
                _copy_row(right_rows, r, latest, at)
                if chained:
                    right_next[r], last[at] = last[at], r
            continue
        i += 1
        if i + 2 * _AHEAD < n:
            _prefetch_key(left_hashed, lefts, i, tags, latest, group_of, False)
        if due >= front[left_group[mine]]:
            left_later[later_left] = mine
            later_left += 1
            continue
        at_us, key = left_rows[mine * ROW + TS], left_rows[mine * ROW + KEY]
        hashed, best = left_hashed[mine], np.int64(NONE)
        at = np.int64(entry_of(key, hashed, tags, latest))
        time = latest[at * ROW + TS] if at != NONE else np.int64(NO_ROW)
        has_best = time != NO_ROW and time - at_us >= lower
        if has_best and residual is not None:
            best = _last_that_holds(mine, np.int64(last[at]), lower, min(upper, 0), left, right, residual, scratch)
            has_best = best != NONE
            time = right_rows[best * ROW + TS] if has_best else NO_ROW
        until = at_us + upper
        if has_best:
            until = min(until, 2 * at_us - time - 1)
        if ahead and until >= at_us + (1 if back else lower):
            if at == NONE:
                at = np.int64(new_entry(key, hashed, left_group[mine], tags, latest, group_of, last, held, key_counts, least))
            best_of[mine], until_of[mine], left_state[mine], left_next[mine] = best, until, HELD, held[at]
            held[at] = mine
            continue
        out_left[out], left_state[mine] = mine, GONE
        if not has_best:
            out_right[out * ROW + TS] = NO_ROW
        elif residual is not None:
            _copy_row(right_rows, best, out_right, out)
        else:
            _copy_row(latest, at, out_right, out)
        out += 1
    counts[CHOSEN], counts[LEFT_LATER], counts[RIGHT_LATER] = out, later_left, later_right
    counts[LOOKED_AT], counts[RIGHT_LOOKED_AT] = i - later_left, j - later_right
    return bool(i == n and j == m)


@kernel
def settle_passed(n: int, left: Rows, right: Rows, keys: Latest, front: I64, rule: Rule, chosen: Chosen) -> None:
    """The first n left rows: held ones for which no better match can come any more, as time has passed, come out."""
    rows, state, until, group, lefts, out = left.rows, left.state, left.until, left.group, chosen.left, chosen.counts[CHOSEN]
    hashed = left.hashed
    chained = keys.last.shape[0] > 0
    for mine in range(n):
        if state[mine] == HELD and until[mine] < front[group[mine]]:
            lefts[out], state[mine] = mine, GONE
            at = np.int64(entry_of(rows[mine * ROW + KEY], hashed[mine], keys.tags, keys.rows))
            _best_so_far(mine, at, left, right, keys.rows, rule.lower, chained, chosen.right, out)
            out += 1
    chosen.counts[CHOSEN] = out


# ---------------------------------------------------------------- what is kept, and what comes out


@kernel
def survivors(n: int, side: Rows, least: I64, place: I64) -> int:
    """place[i]: where row i of the first n goes when the others are dropped; NONE if it is. least: int64 (groups,), times below
    which held rows are dropped. Returns how many stay."""
    state, rows, group = side.state, side.rows, side.group
    kept = 0
    for i in range(n):
        stays = state[i] == WAITS or (state[i] == HELD and rows[i * ROW + TS] >= least[group[i]])
        place[i] = kept if stays else NONE
        kept += 1 if stays else 0
    return kept


@kernel
def relink_held(n: int, left: Rows, keys: Latest) -> None:
    """The lists of held left rows, of the first n, anew."""
    held, state, following, rows, hashed = keys.held, left.state, left.next, left.rows, left.hashed
    held[:] = NONE
    for mine in range(n):
        if state[mine] == HELD:
            at = np.int64(entry_of(rows[mine * ROW + KEY], hashed[mine], keys.tags, keys.rows))
            following[mine], held[at] = held[at], mine


@kernel
def count_chosen(lefts: I64, rights: I64, left: Rows, with_alone: bool, counts: I64, digests: U64) -> int:
    """Add the rows that come out to the counts and digests of their partition-groups, (groups,). rights: `Chosen.right`.
    with_alone: left rows without a match are rows too. Returns how many have one."""
    rows, group = left.rows, left.group
    pairs = 0
    for i in range(lefts.shape[0]):
        matched = rights[i * ROW + TS] != NO_ROW
        if matched or with_alone:
            g = group[lefts[i]]
            theirs = np.uint64(rights[i * ROW + ID]) if matched else MISSING_ID
            counts[g] += 1
            digests[g] += pair_hash(np.uint64(rows[lefts[i] * ROW + ID]), theirs)
            pairs += 1 if matched else 0
    return pairs


@kernel
def write_records(key: I64, ts: I64, ids: U64, groups: I64, first_ref: int, first: int, side: Rows) -> None:
    """Rows that wait, from position `first` on; payload references count up from first_ref."""
    rows, hashed, group, states = side.rows, side.hashed, side.group, side.state
    for i in range(key.shape[0]):
        hashed[first + i] = hash_key(key[i])
    for i in range(key.shape[0]):
        at = first + i
        rows[at * ROW + KEY], rows[at * ROW + TS] = key[i], ts[i]
        rows[at * ROW + ID], rows[at * ROW + REF] = np.int64(ids[i]), first_ref + i
        group[at], states[at] = groups[i], WAITS
