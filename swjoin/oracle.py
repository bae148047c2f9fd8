"""The definition of a right answer: which pairs match, and the digest that identifies a result.

What: `Bounds`, `JoinKind`, `mix64`, `pair_digest`, `brute_force`, `answer` (SPEC section 1).
Why: every engine, runtime and test compares itself with this page; it is written to be read, not to be fast.
Stays out: anything the engine itself uses to find pairs. `verify` at scale is in `spark.verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from swjoin.batch import I64, LEFT, MISSING_ID, RIGHT, U64, Bool, TupleBatch

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Bounds:
    """A pair (l, r) of equal keys matches when lower_us <= r.ts - l.ts <= upper_us, both inclusive (microseconds).

    counted: places count instead of times. A tuple's place is its number in its stream, from 1 on; of the other stream so many
    come before it, which is what a tuple of that stream must not be above, and not so far below (`Bounds.last`).
    """

    lower_us: int
    upper_us: int
    counted: bool = False

    @staticmethod
    def of(lower_us: int, upper_us: int, exclusive: tuple[str, ...] = ()) -> Bounds:
        """Inclusive bounds from declared ones: times are whole microseconds, so an exclusive bound moves by one."""
        return Bounds(lower_us + ("lower" in exclusive), upper_us - ("upper" in exclusive))

    @staticmethod
    def last(left: int, right: int) -> Bounds:
        """Each right tuple meets the last `left` left tuples before it, each left tuple the last `right` right ones."""
        return Bounds(1 - right, left - 1, True)

    @property
    def reaches(self) -> tuple[int, int, int, int]:
        """For a left tuple, the lowest and the highest distance of a right one that it can match; the same the other way round.

        With windows of time that is of times; with count windows of the other's place from what comes before this one.
        """
        if self.counted:
            return self.lower_us, 0, -self.upper_us, 0
        return self.lower_us, self.upper_us, -self.upper_us, -self.lower_us

    @property
    def empty(self) -> bool:
        return self.lower_us > self.upper_us

    @property
    def retention_us(self) -> int:
        """How far the opposite stream's time moves on, at most, before a tuple can match nothing to come any more."""
        return max(self.upper_us, -self.lower_us, 0)

    def dead_below(self, times_us: tuple[int, int]) -> tuple[int, int]:
        """Left tuples below right time - upper, right tuples below left time + lower match nothing that comes after these
        times. With count windows a time is how many tuples of the other stream have come before whatever comes."""
        left_time, right_time = times_us
        return right_time - self.upper_us, left_time + self.lower_us

    def partners_below(self, alive_us: tuple[int, int]) -> tuple[int, int]:
        """Left and right tuples below these times match no tuple that is alive, i.e. not below `alive_us`."""
        left, right = alive_us
        return min(left, right - self.upper_us), min(right, left + self.lower_us)


How = Literal["inner", "left", "right", "full", "semi", "anti"]


@dataclass(frozen=True)
class JoinKind:
    """Which rows come out. pairs: every matching pair. first: every left tuple that has a match, once, alone. unmatched: left,
    right tuples that have none, alone, once nothing to come can match them."""

    pairs: bool
    first: bool
    unmatched: tuple[bool, bool]

    @property
    def marks(self) -> tuple[bool, bool]:
        """Whether it matters of a left, of a right tuple if it has matched."""
        return self.first or self.unmatched[LEFT], self.unmatched[RIGHT]

    @property
    def one_sided(self) -> bool:
        """Rows hold nothing of the right stream."""
        return not self.pairs


JOIN_KINDS: Final[dict[How, JoinKind]] = {
    "inner": JoinKind(True, False, (False, False)),
    "left": JoinKind(True, False, (True, False)),
    "right": JoinKind(True, False, (False, True)),
    "full": JoinKind(True, False, (True, True)),
    "semi": JoinKind(False, True, (False, False)),
    "anti": JoinKind(False, False, (True, False)),
}


def mix64(value: U64) -> U64:
    """The 64-bit finaliser of MurmurHash3 on a uint64 array."""
    h = value.astype(np.uint64, copy=True)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    h ^= h >> np.uint64(33)
    return h


def pair_digest(left_id: U64, right_id: U64) -> int:
    """Sum over pairs of mix64(left_id * golden + mix64(right_id * golden + golden)) mod 2^64; the order does not matter."""
    if len(left_id) == 0:
        return 0
    with np.errstate(over="ignore"):
        inner = mix64(right_id.astype(np.uint64) * _GOLDEN + _GOLDEN)
        mixed = mix64(left_id.astype(np.uint64) * _GOLDEN + inner)
    return int(np.add.reduce(mixed, dtype=np.uint64))


def format_digest(digest: int) -> str:
    """A digest as `run.json` shows it: 16 lower-case hex digits."""
    return f"{digest & 0xFFFFFFFFFFFFFFFF:016x}"


def places(left: I64, right: I64) -> tuple[I64, I64, I64, I64]:
    """Tuples of these times in the order of both streams (time, left before right, row): of left tuples their number and how
    many right ones come before, of right tuples their number and how many left ones come before. int64, from 0 on."""
    streams = np.repeat([LEFT, RIGHT], [len(left), len(right)])
    order = np.lexsort((np.arange(len(streams)), streams, np.concatenate([left, right])))
    before = [np.empty(len(order), np.int64) for _ in (LEFT, RIGHT)]
    for stream in (LEFT, RIGHT):
        before[stream][order] = np.cumsum(streams[order] == stream) - (streams[order] == stream)
    n = len(left)
    return before[LEFT][:n], before[RIGHT][:n], before[RIGHT][n:], before[LEFT][n:]


def in_last(order: tuple[I64, I64, I64, I64], bounds: Bounds, i: int) -> Bool:
    """Which right tuples, of all of them, are in count windows together with the i-th left one. order: `places`.

    Of two tuples the earlier must be among the last so many of its stream before the later one.
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
    order = places(left.ts, right.ts)
    for i in range(len(left)):
        gap = right.ts - left.ts[i]
        near = in_last(order, bounds, i) if bounds.counted else (gap >= bounds.lower_us) & (gap <= bounds.upper_us)
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
) -> tuple[U64, U64]:
    """Ids (left, right) of the rows of a join; MISSING_ID where a side is missing. Both in an arbitrary order.

    null_keys: ids of the tuples beside these whose key is null. shed: of those of these that were not joined; in count windows
    they have their places.
    """
    kind = JOIN_KINDS[how]
    i, j = brute_force(left, right, bounds)
    gone = (np.empty(0, np.uint64),) * 2 if shed is None else shed
    joined = ~np.isin(left.id[i], gone[LEFT]) & ~np.isin(right.id[j], gone[RIGHT])
    i, j = i[joined], j[joined]
    lefts, rights = ([left.id[i]], [right.id[j]]) if kind.pairs else ([], [])
    matched = np.isin(np.arange(len(left)), i), np.isin(np.arange(len(right)), j)
    for stream, ids in ((LEFT, left.id), (RIGHT, right.id)):
        alone = [ids[matched[stream]]] if kind.first and stream == LEFT else []
        alone += [ids[~matched[stream] & ~np.isin(ids, gone[stream])]] if kind.unmatched[stream] else []
        alone += [null_keys[stream]] if kind.unmatched[stream] and null_keys is not None else []
        for found in alone:
            missing = np.full(len(found), MISSING_ID, np.uint64)
            lefts.append(found if stream == LEFT else missing)
            rights.append(missing if stream == LEFT else found)
    return np.concatenate(lefts).astype(np.uint64), np.concatenate(rights).astype(np.uint64)
