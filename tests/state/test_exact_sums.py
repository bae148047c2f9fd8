"""Exact sums of doubles: the same as of fractions, in any order, also when values are taken away, moved or restored."""

from __future__ import annotations

import itertools
import math
from fractions import Fraction

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import example, given, settings

from swjoin.state import exact_sums
from swjoin.state.exact_sums import ExactSums

ANY = st.floats(allow_nan=True, allow_infinity=True)
FINITE = st.floats(allow_nan=False, allow_infinity=False)
LARGEST, LEAST = 1.7976931348623157e308, 5e-324


def exact(values: list[float]) -> float:
    """The sum by fractions, rounded once."""
    if any(map(math.isnan, values)) or {math.inf, -math.inf} <= set(values):
        return math.nan
    for infinite in (math.inf, -math.inf):
        if infinite in values:
            return infinite
    total = sum(map(Fraction, values), Fraction(0))
    try:
        return float(total)  # of a fraction: the nearest double, half to even
    except OverflowError:
        return math.inf if total > 0 else -math.inf


def same(one: float, two: float) -> bool:
    return one == two or (math.isnan(one) and math.isnan(two))


def zeros(count: int) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    return np.zeros(count, np.int64)


def one_sum(values: list[float]) -> float:
    sums = ExactSums(1)
    sums.add(zeros(len(values)), np.array(values, np.float64))
    return float(sums.values(zeros(1))[0])


@settings(max_examples=500, deadline=None)
@given(st.lists(ANY, max_size=40))
@example([LARGEST, LARGEST, -LARGEST])
@example([LARGEST, 2.0**970])  # half of the last place: infinite, as it rounds to even
@example([LARGEST, 2.0**970, -LEAST])
@example([1.0, 2.0**-53, 2.0**-106])
@example([1.0, 2.0**-53])
@example([1.0 + 2.0**-52, 2.0**-53])
@example([LEAST] * 3)
@example([2.0**-1022, -LEAST])
@example([-1e300, 1e-300, 1e300])
@example([0.1] * 10)
@example([-0.0, -0.0])
def test_a_sum_is_rounded_once(values: list[float]) -> None:
    assert same(one_sum(values), exact(values))


def test_a_sum_does_not_depend_on_the_order() -> None:
    values = [1e16, 1.0, -1e16, 3e-7, 1e300, -1e300, 2.5]
    assert {one_sum(list(order)) for order in itertools.permutations(values)} == {exact(values)}
    assert exact(values) == math.fsum(values)


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 4), ANY), max_size=60), st.randoms(use_true_random=False))
def test_values_are_taken_away_again(added: list[tuple[int, float]], random: object) -> None:
    sums = ExactSums(5)
    slots, values = np.array([s for s, _ in added], np.int64), np.array([v for _, v in added], np.float64)
    sums.add(slots, values)
    gone = len(added) // 2
    sums.add(slots[:gone], values[:gone], sign=-1)
    found = sums.values(np.arange(5))
    for slot in range(5):
        assert same(found[slot], exact([v for s, v in added[gone:] if s == slot]))


@settings(max_examples=200, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 3), ANY), max_size=30), st.lists(st.tuples(st.integers(0, 3), ANY), max_size=30))
def test_sums_are_combined_taken_apart_and_restored(one: list[tuple[int, float]], two: list[tuple[int, float]]) -> None:
    sums, others = ExactSums(4), ExactSums(4)
    for into, rows in ((sums, one), (others, two)):
        into.add(np.array([s for s, _ in rows], np.int64), np.array([v for _, v in rows], np.float64))
    every = np.arange(4)
    sums.combine(every[::-1].copy(), others, every)
    for slot, value in enumerate(sums.values(every)):
        assert same(value, exact([v for s, v in one if s == slot] + [v for s, v in two if s == 3 - slot]))
    moved = ExactSums(6)
    moved.restore(every + 2, sums.export(every))
    assert all(map(same, moved.values(every + 2), sums.values(every)))
    sums.combine(every[::-1].copy(), others, every, sign=-1)
    for slot, value in enumerate(sums.values(every)):
        assert same(value, exact([v for s, v in one if s == slot]))


def test_cleared_slots_are_used_again() -> None:
    sums = ExactSums(3)
    for turn in range(50):
        sums.add(np.array([0, 0, 1, 2]), np.array([1e300, float(turn), 2.0, 1e-300]))
        sums.add(np.array([2]), np.array([1e300]))
        assert sums.values(np.arange(3)).tolist() == [1e300, 2.0, 1e300]
        size = sums.nbytes
        sums.clear(np.arange(3))
        assert sums.values(np.arange(3)).tolist() == [0.0, 0.0, 0.0]
    assert sums.nbytes == size


@pytest.mark.parametrize("far", [False, True])
def test_carries_are_moved_before_digits_overflow(far: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As after 2^30 values, of which a test cannot have so many: the slot counts them."""
    sums = ExactSums(1)
    if far:
        sums.add(zeros(2), np.array([1e300, -1e300]))
    largest = float(2**53 - 1)
    for _ in range(4):
        sums.add(zeros(1000), np.full(1000, largest))
        sums._slots.uncarried[0] = exact_sums._CARRY_AFTER
    assert sums.values(zeros(1))[0] == 4000 * largest


def test_many_groups_at_once_are_those_of_fsum() -> None:
    random = np.random.default_rng(1)
    slots = random.integers(0, 1000, 200_000)
    values = random.standard_normal(200_000) * 10.0 ** random.integers(-8, 9, 200_000)
    sums = ExactSums(10)
    sums.resize(1000)
    for part in np.array_split(np.arange(200_000), 7):
        sums.add(slots[part], values[part])
    found = sums.values(np.arange(1000))
    assert all(found[slot] == math.fsum(values[slots == slot]) for slot in range(1000))
