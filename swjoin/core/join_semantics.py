"""Join semantics: which pairs match, and the digest that identifies a result.

What: `Bounds`, `JoinKind`, `JOIN_KINDS`, `AsOf`, `mix64`, `pair_digest`, `format_digest` (SPEC section 1).
Why: the reference for engines, runtimes and tests; written for readers, not for speed.
Stays out: finding pairs (tests/tools/oracle.py compares all pairs; `duckdb.verify` and `spark.verify` work at scale).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import numpy as np

from swjoin.core.batch import LEFT, RIGHT, U64
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Bounds:
    """A pair (l, r) of equal keys matches when lower_us <= r.ts - l.ts <= upper_us, both inclusive (microseconds).

    counted: count windows: sequence numbers, from 1 on in each stream, replace times. A partner's sequence number is at most
    the number of tuples of its stream that precede this tuple, and within the bound below it (`Bounds.last`).
    """

    lower_us: int
    upper_us: int
    count_windows: bool = False

    @staticmethod
    def of(lower_us: int, upper_us: int, exclusive: tuple[str, ...] = ()) -> Bounds:
        """Inclusive bounds from declared ones: times are whole microseconds, so an exclusive bound moves by one."""
        return Bounds(lower_us + ("lower" in exclusive), upper_us - ("upper" in exclusive))

    @staticmethod
    def last(left: int, right: int) -> Bounds:
        """Each right tuple joins the last `left` left tuples before it, each left tuple the last `right` right ones."""
        return Bounds(1 - right, left - 1, True)

    @property
    def reaches(self) -> tuple[int, int, int, int]:
        """(low, high) offsets of matching right tuples for a left probe, then of left tuples for a right probe.

        Offsets are time differences; for count windows, of the partner's sequence number from the preceding count.
        """
        if self.count_windows:
            return self.lower_us, 0, -self.upper_us, 0
        return self.lower_us, self.upper_us, -self.upper_us, -self.lower_us

    @property
    def empty(self) -> bool:
        return self.lower_us > self.upper_us

    @property
    def retention_us(self) -> int:
        """How long, in the opposite stream's time, a tuple can match later tuples."""
        return max(self.upper_us, -self.lower_us, 0)

    def dead_below(self, times_us: tuple[int, int]) -> tuple[int, int]:
        """Left and right tuples below these times match no tuple after the watermarks `times_us`. For count windows, times and
        watermarks are sequence numbers."""
        left_time, right_time = times_us
        return right_time - self.upper_us, left_time + self.lower_us

    def partners_below(self, alive_us: tuple[int, int]) -> tuple[int, int]:
        """Left and right tuples below these times match no live tuple, i.e. none from `alive_us` on."""
        left, right = alive_us
        return min(left, right - self.upper_us), min(right, left + self.lower_us)


How = Literal["inner", "left", "right", "full", "semi", "anti"]
Match = Literal["all", "last", "first", "nearest"]


@dataclass(frozen=True)
class AsOf:
    """An as-of join: of the right tuples with a left tuple's key and within bounds, its candidates, it joins one.

    match: `last`, the latest candidate that is not after the left tuple; `first`, the earliest that is not before it;
    `nearest`, that with the least distance in time, of two the earlier. Of equal times, `last` takes the greatest id, `first`
    the least, and `nearest` as `last` up to the left tuple and as `first` after it, as pandas has it. bounds: of times.
    """

    match: Literal["last", "first", "nearest"]
    bounds: Bounds

    @property
    def candidates(self) -> Bounds:
        """The bounds, less what `match` excludes; `empty` where nothing is left."""
        lower, upper = self.bounds.lower_us, self.bounds.upper_us
        return Bounds(max(lower, 0) if self.match == "first" else lower, min(upper, 0) if self.match == "last" else upper)

    @property
    def looks_back(self) -> bool:
        """Whether right tuples at or before a left one are candidates."""
        return self.match != "first" and self.candidates.lower_us <= 0

    @property
    def looks_ahead(self) -> bool:
        """Whether right tuples that are decided on after the left one are: those after it, of `first` also at its time."""
        return self.match == "first" or self.candidates.upper_us > 0

    @property
    def due_us(self) -> int:
        """A left tuple is looked at when time is so much above its own: after all right tuples of that time if it looks back,
        and before them otherwise."""
        found = self.candidates
        return found.lower_us if not self.looks_back else found.upper_us if not self.looks_ahead else 0

    def front_us(self, times_us: tuple[int, int]) -> int:
        """Given the watermarks of left and right tuples, the time below which all left tuples that are due and all right tuples
        have come."""
        left, right = times_us
        return min(left if left in (BEGIN_OF_TIME_US, END_OF_TIME_US) else left + self.due_us, right)

    def needed_below(self, front_us: int) -> tuple[int, int]:
        """Times below which left tuples have come out, and right ones are candidates of none that has not."""
        found = self.candidates
        return front_us - found.upper_us, front_us - found.upper_us + found.lower_us


@dataclass(frozen=True)
class JoinKind:
    """Result rows of a kind of join. pairs: every matching pair. first: every left tuple with a match, once, alone. unmatched:
    left, right tuples without a match, alone, once no later tuple can match them."""

    pairs: bool
    first: bool
    unmatched: tuple[bool, bool]

    @property
    def marks(self) -> tuple[bool, bool]:
        """Whether left, right tuples need a match flag."""
        return self.first or self.unmatched[LEFT], self.unmatched[RIGHT]

    @property
    def one_sided(self) -> bool:
        """Whether result rows have no right side."""
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
