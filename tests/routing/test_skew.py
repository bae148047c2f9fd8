"""Which keys are hot: samples of what is sent, shares of both streams."""

from __future__ import annotations

import json

import numpy as np
import pytest

from swjoin.policy import skew
from swjoin.policy.skew import KeySample, KeyShares

BOTH = (0, 1)


def _keys(random: np.random.Generator, rows: int, share: float) -> np.ndarray:
    return np.where(random.random(rows) < share, 7, random.integers(100, 1 << 40, rows))


@pytest.mark.parametrize(("rows", "share"), [(100_000, 0.1), (100_000, 0.03), (3_000, 0.1)])
def test_samples_tell_of_frequent_keys(rows: int, share: float) -> None:
    random, sample = np.random.default_rng(1), KeySample(4, seed=2)
    for _ in range(8):
        sample.add(_keys(random, rows, share))
    sent, counts = sample.take()
    assert sent == 8 * rows
    assert [key for key, _ in counts] == [7]
    assert counts[0][1] == pytest.approx(8 * rows * share, rel=0.15)
    assert sample.take() == (0, ())


def test_keys_get_hot_and_cold() -> None:
    """With 4 slaves above a sixteenth of either stream, and below half of that."""
    shares = KeyShares(4)
    shares.add(0, 16_000, [(7, 8_000)])
    assert not shares.hot(BOTH), "too few rows"
    shares.add(0, 84_000, [(7, 0)])
    shares.add(1, 100_000, [(9, 6_300), (8, 6_200)])
    assert shares.hot(BOTH) == [7, 9]
    assert shares.hot([1]) == [9], "the port whose rows may be dealt"
    assert shares.warm(BOTH) == {7, 8, 9}
    assert shares.rows_of(7) == (8_000, 0)
    for _ in range(30):
        shares.add(0, 20_000, [])
    assert shares.hot(BOTH) == [9]
    assert shares.warm(BOTH) == {8, 9}
    again = KeyShares(4)
    again.restore(json.loads(json.dumps(shares.plain_state())))
    assert (again.hot(BOTH), again.warm(BOTH), again.rows_of(7)) == ([9], {8, 9}, shares.rows_of(7))
    left, _ = shares.rows_of(7)
    assert left < 8_000


def test_old_counts_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skew, "_SPAN", 1_000)
    shares = KeyShares(1)
    for number in range(10_000):
        shares.add(0, 100, [(number, 30)])
    assert len(shares._counts[0]) < 50
