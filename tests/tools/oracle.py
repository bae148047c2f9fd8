"""The oracle: the result of a join by comparing every pair.

What: `brute_force`, `answer`, `as_of`, `sequence_numbers`, `in_last` (SPEC section 1).
Why: every engine and runtime is compared with this module; it is written for readability, not speed.
Stays out: the definition of a match (`swjoin.core.join_semantics`).
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, U64, Bool, TupleBatch
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, How, Match


def sequence_numbers(left: I64, right: I64) -> tuple[I64, I64, I64, I64]:
    """Numbers from 0 on, int64, of tuples with these times in the order of both streams (time, left before right, row): of left
    tuples their number and the count of right ones before, of right tuples their number and the count of left ones before."""
    streams = np.repeat([LEFT, RIGHT], [len(left), len(right)])
    order = np.lexsort((np.arange(len(streams)), streams, np.concatenate([left, right])))
    before = [np.empty(len(order), np.int64) for _ in (LEFT, RIGHT)]
    for stream in (LEFT, RIGHT):
        before[stream][order] = np.cumsum(streams[order] == stream) - (streams[order] == stream)
    n = len(left)
    return before[LEFT][:n], before[RIGHT][:n], before[RIGHT][n:], before[LEFT][n:]


def in_last(order: tuple[I64, I64, I64, I64], bounds: Bounds, i: int) -> Bool:
    """Mask of the right tuples that are in count windows together with the i-th left one. order: `sequence_numbers`.

    The earlier of two tuples must be among the last `last` tuples of its stream before the later one.
    """
    left_number, rights_before, right_number, lefts_before = order
    last_left, last_right = bounds.upper_us + 1, 1 - bounds.lower_us
    mine, passed = left_number[i], rights_before[i]
    right_first = (right_number < passed) & (right_number >= passed - last_right)
    left_first = (mine < lefts_before) & (mine >= lefts_before - last_left)
    found: Bool = right_first | left_first
    return found


def brute_force(left: TupleBatch, right: TupleBatch, bounds: Bounds) -> tuple[I64, I64]:
    """Indexes (left, right) of all matching pairs by comparing every pair; O(n * m) time, O(m) memory per left tuple."""
    lefts: list[I64] = []
    rights: list[I64] = []
    order = sequence_numbers(left.ts, right.ts)
    for i in range(len(left)):
        gap = right.ts - left.ts[i]
        near = in_last(order, bounds, i) if bounds.count_windows else (gap >= bounds.lower_us) & (gap <= bounds.upper_us)
        hit = np.flatnonzero((right.key == left.key[i]) & near)
        lefts.append(np.full(len(hit), i, np.int64))
        rights.append(hit.astype(np.int64))
    if not lefts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(lefts), np.concatenate(rights)


def answer(
    left: TupleBatch,
    right: TupleBatch,
    bounds: Bounds,
    how: How,
    null_keys: tuple[U64, U64] | None = None,
    shed: tuple[U64, U64] | None = None,
    match: Match = "all",
) -> tuple[U64, U64]:
    """Ids (left, right) of the rows of a join, in any order; MISSING_ID where a side is missing.

    null_keys: ids of further tuples whose key is null. shed: ids of tuples that were not joined; they count in count windows.
    match: of an as-of join.
    """
    kind = JOIN_KINDS[how]
    i, j = brute_force(left, right, bounds)
    if match != "all":
        chosen = [(one, two) for one, two in enumerate(as_of(left, right, bounds, match)) if two is not None]
        i, j = (np.array([pair[side] for pair in chosen], np.int64) for side in (LEFT, RIGHT))
    unjoined = (np.empty(0, np.uint64),) * 2 if shed is None else shed
    joined = ~np.isin(left.id[i], unjoined[LEFT]) & ~np.isin(right.id[j], unjoined[RIGHT])
    i, j = i[joined], j[joined]
    lefts, rights = ([left.id[i]], [right.id[j]]) if kind.pairs else ([], [])
    matched = np.isin(np.arange(len(left)), i), np.isin(np.arange(len(right)), j)
    for stream, ids in ((LEFT, left.id), (RIGHT, right.id)):
        alone = [ids[matched[stream]]] if kind.first and stream == LEFT else []
        alone += [ids[~matched[stream] & ~np.isin(ids, unjoined[stream])]] if kind.unmatched[stream] else []
        alone += [null_keys[stream]] if kind.unmatched[stream] and null_keys is not None else []
        for found in alone:
            missing = np.full(len(found), MISSING_ID, np.uint64)
            lefts.append(found if stream == LEFT else missing)
            rights.append(missing if stream == LEFT else found)
    return np.concatenate(lefts).astype(np.uint64), np.concatenate(rights).astype(np.uint64)


def as_of(
    left: TupleBatch,
    right: TupleBatch,
    bounds: Bounds,
    match: Match,
    holds: Callable[[int, int], bool] = lambda i, j: True,
) -> list[int | None]:
    """Of each left tuple, the index of the right one that it joins, or None. holds: whether two indexes satisfy a predicate."""
    found: list[int | None] = []
    for i in range(len(left)):
        candidates = []
        for j in range(len(right)):
            apart = int(right.ts[j]) - int(left.ts[i])
            if left.key[i] == right.key[j] and bounds.lower_us <= apart <= bounds.upper_us and holds(i, j):
                candidates.append((apart, int(right.id[j]), j))
        before = max((c for c in candidates if c[0] <= 0), default=None)
        after = min((c for c in candidates if c[0] >= (match == "nearest")), default=None)
        if match == "nearest" and before is not None and after is not None:
            after = after if after[0] < -before[0] else None
        chosen = {"last": before, "first": after, "nearest": after or before}[match]
        found.append(None if chosen is None else chosen[2])
    return found
