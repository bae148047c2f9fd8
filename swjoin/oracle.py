"""The definition of a right answer: which pairs match, and the digest that identifies a result.

What: `Bounds`, `mix64`, `pair_digest`, `brute_force` (SPEC section 1).
Why: every engine, runtime and test compares itself with this page; it is written to be read, not to be fast.
Stays out: anything the engine itself uses to find pairs. `verify` at scale is in `spark.verify`.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.batch import I64, U64, TupleBatch

MISSING_ID = np.uint64(0xFFFFFFFFFFFFFFFF)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True)
class Bounds:
    """A pair (l, r) of equal keys matches when lower_us <= r.ts - l.ts <= upper_us, both inclusive (microseconds)."""

    lower_us: int
    upper_us: int

    @staticmethod
    def of(lower_us: int, upper_us: int, exclusive: tuple[str, ...] = ()) -> Bounds:
        """Inclusive bounds from declared ones: times are whole microseconds, so an exclusive bound moves by one."""
        return Bounds(lower_us + ("lower" in exclusive), upper_us - ("upper" in exclusive))

    @property
    def empty(self) -> bool:
        return self.lower_us > self.upper_us

    @property
    def retention_us(self) -> int:
        """How far the opposite stream's time moves on, at most, before a tuple can match nothing to come any more."""
        return max(self.upper_us, -self.lower_us, 0)

    def dead_below(self, times_us: tuple[int, int]) -> tuple[int, int]:
        """Left tuples below right time - upper, right tuples below left time + lower match nothing that comes after these
        times."""
        left_time, right_time = times_us
        return right_time - self.upper_us, left_time + self.lower_us


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
    """Sum over pairs of mix64(left_id * golden + mix64(right_id)) mod 2^64; 0 for no pairs; order does not matter."""
    if len(left_id) == 0:
        return 0
    with np.errstate(over="ignore"):
        mixed = mix64(left_id.astype(np.uint64) * _GOLDEN + mix64(right_id.astype(np.uint64)))
    return int(np.add.reduce(mixed, dtype=np.uint64))


def format_digest(digest: int) -> str:
    """A digest as `run.json` shows it: 16 lower-case hex digits."""
    return f"{digest & 0xFFFFFFFFFFFFFFFF:016x}"


def brute_force(left: TupleBatch, right: TupleBatch, bounds: Bounds) -> tuple[I64, I64]:
    """Indexes (left, right) of all matching pairs by comparing every pair; O(n * m) time, O(m) memory per left tuple."""
    lefts: list[I64] = []
    rights: list[I64] = []
    for i in range(len(left)):
        gap = right.ts - left.ts[i]
        hit = np.flatnonzero((right.key == left.key[i]) & (gap >= bounds.lower_us) & (gap <= bounds.upper_us))
        lefts.append(np.full(len(hit), i, np.int64))
        rights.append(hit.astype(np.int64))
    if not lefts:
        return np.empty(0, np.int64), np.empty(0, np.int64)
    return np.concatenate(lefts), np.concatenate(rights)
