"""The oracle itself: digest, bounds, hashing kernels against plain Python."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.hashing import digest_pairs, group_of, hash_key
from swjoin.core.join_semantics import Bounds, format_digest, mix64, pair_digest

MASK = 2**64 - 1
GOLDEN = 0x9E3779B97F4A7C15


def plain_mix(h: int) -> int:
    h ^= h >> 33
    h = h * 0xFF51AFD7ED558CCD & MASK
    h ^= h >> 33
    h = h * 0xC4CEB9FE1A85EC53 & MASK
    return h ^ h >> 33


def plain_digest(pairs: list[tuple[int, int]]) -> int:
    return sum(plain_mix((left * GOLDEN + plain_mix((right * GOLDEN + GOLDEN) & MASK)) & MASK) for left, right in pairs) & MASK


@given(st.lists(st.tuples(st.integers(0, MASK), st.integers(0, MASK)), max_size=30))
def test_digest_by_numpy_and_kernel_equals_plain_integers(pairs: list[tuple[int, int]]) -> None:
    left = np.array([p[0] for p in pairs], np.uint64)
    right = np.array([p[1] for p in pairs], np.uint64)
    assert pair_digest(left, right) == digest_pairs(left, right) == plain_digest(pairs)


def test_mix64_known_values() -> None:
    assert mix64(np.array([0, 1], np.uint64)).tolist() == [0, 0xB456BCFC34C2CB2C]


def test_the_digest_of_a_known_pair() -> None:
    """Left row 0 with right row 0 is not nothing, and the digests of earlier versions are not ours."""
    zero = np.zeros(1, np.uint64)
    golden = np.array([GOLDEN], np.uint64)
    assert pair_digest(zero, zero) == digest_pairs(zero, zero) == int(mix64(mix64(golden))[0]) == 0x6393D51C06C618DC
    assert pair_digest(zero[:0], zero[:0]) == digest_pairs(zero[:0], zero[:0]) == 0


def test_digest_is_formatted_as_16_hex_digits() -> None:
    assert format_digest(255) == "00000000000000ff"


@given(st.integers(-(2**63), 2**63 - 1), st.integers(1, 1000))
def test_group_is_in_range_and_from_the_high_bits(key: int, count: int) -> None:
    hashed = plain_mix(key & MASK)
    assert int(hash_key(np.int64(key))) == hashed
    assert int(group_of(np.uint64(hashed), count)) == (hashed >> 32) * count >> 32


def test_exclusive_bounds_move_by_one_microsecond() -> None:
    assert Bounds.of(-5, 5, ("lower",)) == Bounds(-4, 5)
    assert Bounds.of(5, 5, ("upper",)).empty
