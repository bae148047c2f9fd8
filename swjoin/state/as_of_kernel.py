"""As-of joins over rows in the order of time, as kernels.

What: `match_due` looks at the left and right rows that are due, in the order of time; `settle_passed` lets left rows out whose
time for a better match has passed; `in_order`, `merge_orders`, `survivors`, `count_chosen`.
Why: of all right rows of a key only the latest can be a match, so a row costs a lookup, whatever the bounds; and of right rows
that another has superseded nothing is kept.
Stays out: when rows are due, memory, moves (`operators.as_of_join`), which row is a match (`core.join_semantics.AsOf`).

Rows of either stream are at positions from 0 on, in the order in which they came. A key has a slot. With a residual predicate
an earlier right row may be the match, so right rows of a key are a chain, the latest first, and are kept as long as bounds say.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, MISSING_ID, U8, U64
from swjoin.core.hashing import pair_hash
from swjoin.core.kernel_cache import kernel
from swjoin.core.record_layout import ID, KEY, REF, ROW, TS
from swjoin.core.simd import prefetch
from swjoin.expressions.vm import Residual, evaluate

I32 = NDArray[np.int32]
NONE = -1
WAITS, HELD, GONE = 0, 1, 2  # not looked at yet; a left row that may get a better match, a right one that may be a match; done
CHOSEN, LEFT_LATER, RIGHT_LATER, LOOKED_AT = 0, 1, 2, 3  # of `Chosen.counts`
_AHEAD = 12  # rows between the prefetches of a key's latest right row, and between the second one and its use
_AT_ONCE = 32  # candidates for which a predicate is evaluated together


class Rows(NamedTuple):
    """Rows of one stream, at positions 0 .. n - 1. Arrays may be longer."""

    rows: I64  # (n * ROW,)
    group: I32  # (n,) partition-groups
    slot: I32  # (n,) of their keys; NONE of a left row whose key no right row has
    next: I32  # (n,) of a held row, another held one of its key: of right rows the one before, of left rows any
    state: U8  # (n,)
    best: I32  # (n,) of a held left row, the position of its match so far, or NONE; right rows have none of these two
    until: I64  # (n,) and the greatest time that a better match can have


class Rule(NamedTuple):
    """`core.join_semantics.AsOf` for kernels: looks back, looks ahead, when a left row is due, bounds of candidates."""

    back: bool
    ahead: bool
    due: int
    lower: int
    upper: int


class Keys(NamedTuple):
    """By slot, the latest held right row, and the first of the held left rows; NONE for none."""

    last: I32
    held: I32


class Chosen(NamedTuple):
    """What `match_due` and `settle_passed` find."""

    left: I64  # positions of left rows that come out
    right: I64  # and of their matches, or NONE
    left_later: I64  # positions of rows that are not due, in the order in which they were given
    right_later: I64
    counts: I64  # (4,)


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
    out[i + j : n + j] = one[i:]
    out[n + j :] = other[j:]


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


@kernel
def match_due(
    lefts: I64,
    rights: I64,
    left: Rows,
    right: Rows,
    keys: Keys,
    front: I64,
    rule: Rule,
    residual: Residual | None,
    scratch: Scratch,
    chosen: Chosen,
) -> None:
    """Look at the rows at these positions, which are in order (`in_order`), up to the front of their partition-group, int64
    (groups,): the time below which all that is due has come. The others are `left_later` and `right_later`."""
    left_rows, left_group, left_slot, left_next, left_state = left.rows, left.group, left.slot, left.next, left.state
    right_rows, right_group, right_slot, right_next, right_state = right.rows, right.group, right.slot, right.next, right.state
    best_of, until_of, last, held = left.best, left.until, keys.last, keys.held
    out_left, out_right, left_later, right_later = chosen.left, chosen.right, chosen.left_later, chosen.right_later
    back, ahead, lower, upper = rule.back, rule.ahead, rule.lower, rule.upper
    i = j = out = later_left = later_right = 0
    n, m = lefts.shape[0], rights.shape[0]
    while i < n or j < m:
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
            if back and j + 2 * _AHEAD < m:
                prefetch(last, right_slot[rights[j + 2 * _AHEAD]])
                known = last[right_slot[rights[j + _AHEAD]]]
                if known != NONE:
                    prefetch(right_state, known)
            at_us, slot = right_rows[r * ROW + TS], right_slot[r]
            if at_us >= front[right_group[r]]:
                right_later[later_right] = r
                later_right += 1
                continue
            if ahead:
                waits, stay = np.int64(held[slot]), np.int64(NONE)
                while waits != NONE:
                    following = np.int64(left_next[waits])
                    if left_state[waits] == HELD:
                        missed = at_us > until_of[waits]
                        takes = True
                        if residual is not None and not missed:
                            takes = _holds(waits, r, left, right, residual, scratch)
                        if missed or takes:
                            out_left[out], out_right[out] = waits, best_of[waits] if missed else r
                            out += 1
                            left_state[waits] = GONE
                        else:
                            left_next[waits] = stay
                            stay = waits
                    waits = following
                held[slot] = stay
            right_state[r] = HELD if back else GONE
            if back:
                before = last[slot]
                right_next[r] = NONE
                if residual is not None:
                    right_next[r] = before
                elif before != NONE:
                    right_state[before] = GONE
                last[slot] = r
            continue
        i += 1
        if back and i + 2 * _AHEAD < n:
            prefetch(last, left_slot[lefts[i + 2 * _AHEAD]])
            known = left_slot[lefts[i + _AHEAD]]
            if known != NONE and last[known] != NONE:
                prefetch(right_rows, last[known] * ROW)
        if due >= front[left_group[mine]]:
            left_later[later_left] = mine
            later_left += 1
            continue
        at_us, best = left_rows[mine * ROW + TS], np.int64(NONE)
        if back and left_slot[mine] != NONE:
            best = np.int64(last[left_slot[mine]])
            if residual is not None:
                best = _last_that_holds(mine, best, lower, min(upper, 0), left, right, residual, scratch)
            elif best != NONE and right_rows[best * ROW + TS] - at_us < lower:
                best = np.int64(NONE)
        until = at_us + upper
        if best != NONE:
            until = min(until, 2 * at_us - right_rows[best * ROW + TS] - 1)
        if ahead and until >= at_us + (1 if back else lower):
            best_of[mine], until_of[mine], left_state[mine], left_next[mine] = best, until, HELD, held[left_slot[mine]]
            held[left_slot[mine]] = mine
        else:
            out_left[out], out_right[out], left_state[mine] = mine, best, GONE
            out += 1
    chosen.counts[CHOSEN], chosen.counts[LEFT_LATER], chosen.counts[RIGHT_LATER] = out, later_left, later_right
    chosen.counts[LOOKED_AT] = n - later_left


@kernel
def settle_passed(n: int, left: Rows, front: I64, chosen: Chosen) -> None:
    """The first n left rows: held ones for which no better match can come any more, as time has passed, come out."""
    state, until, group, best, lefts, rights = left.state, left.until, left.group, left.best, chosen.left, chosen.right
    out = chosen.counts[CHOSEN]
    for mine in range(n):
        if state[mine] == HELD and until[mine] < front[group[mine]]:
            lefts[out], rights[out], state[mine] = mine, best[mine], GONE
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
def relink_held(n: int, left: Rows, keys: Keys) -> None:
    """The lists of held left rows, of the first n, anew."""
    held, state, following, slot = keys.held, left.state, left.next, left.slot
    held[:] = NONE
    for mine in range(n):
        if state[mine] == HELD:
            following[mine] = held[slot[mine]]
            held[slot[mine]] = mine


@kernel
def count_chosen(
    lefts: I64, rights: I64, left: Rows, right: Rows, alone: bool, counts: I64, digests: NDArray[np.uint64]
) -> None:
    """Add the rows that come out to the counts and digests of their partition-groups, (groups,). alone: lefts come out without
    a match, and rights is not read."""
    left_rows, right_rows, group = left.rows, right.rows, left.group
    for i in range(lefts.shape[0]):
        g = group[lefts[i]]
        mine = np.uint64(left_rows[lefts[i] * ROW + ID])
        theirs = MISSING_ID if alone else np.uint64(right_rows[rights[i] * ROW + ID])
        counts[g] += 1
        digests[g] += pair_hash(mine, theirs)


@kernel
def write_records(key: I64, ts: I64, ids: U64, groups: I64, slots: I64, first_ref: int, first: int, side: Rows) -> None:
    """Rows that wait, from position `first` on; payload references count up from first_ref."""
    rows, group, slot, states = side.rows, side.group, side.slot, side.state
    for i in range(key.shape[0]):
        at = first + i
        rows[at * ROW + KEY], rows[at * ROW + TS] = key[i], ts[i]
        rows[at * ROW + ID], rows[at * ROW + REF] = np.int64(ids[i]), first_ref + i
        group[at], slot[at], states[at] = groups[i], slots[i], WAITS
