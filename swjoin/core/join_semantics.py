"""The definition of a right answer: which pairs match, and the digest that identifies a result.

What: `Bounds`, `JoinKind`, `JOIN_KINDS`, `mix64`, `pair_digest`, `format_digest` (SPEC section 1).
Why: every engine, runtime and test compares itself with this page; it is written to be read, not to be fast.
Stays out: finding pairs: by comparing every pair in tests/tools/oracle.py, at scale in `spark.verify`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from swjoin.core.batch import LEFT, RIGHT, U64

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
