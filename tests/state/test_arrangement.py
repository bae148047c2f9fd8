"""The windows of a multiway join: matches are those of a brute force, whatever is searched, given up, packed or kept."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.core.batch import I64, PayloadRows, RowLayout, TupleBatch
from swjoin.core.multiway_bounds import Bounds
from swjoin.operators.multiway_join import search_order
from swjoin.state import arrangement
from swjoin.state.arrangement import Arrangement

SPAN = 30


def _batch(random: np.random.Generator, count: int, from_us: int, first_id: int, layout: RowLayout | None) -> TupleBatch:
    ids = np.arange(first_id, first_id + count, dtype=np.uint64)
    rows = None
    if layout is not None:
        fixed = np.repeat(ids.view(np.uint8).reshape(-1, 8)[:, :1], layout.fixed_bytes, axis=1)
        tails = (None, None)
        if layout.has_var:
            sizes = (ids % np.uint64(3)).astype(np.int64)
            offsets = np.concatenate([[0], np.cumsum(sizes)])
            tails = offsets, np.repeat(ids.astype(np.uint8), sizes)
        rows = PayloadRows(np.ascontiguousarray(fixed), *tails)
    ts = from_us + random.integers(0, SPAN, count)
    return TupleBatch(random.integers(-2, 3, count), ts, ids, np.zeros(count, np.int64), rows)


def _bounds(random: np.random.Generator, parts: int) -> Bounds:
    """Of times that differ by at most so much, closed under sums."""
    lower = -random.integers(0, SPAN, (parts, parts))
    lower = np.triu(lower, 1) - np.triu(random.integers(0, SPAN, (parts, parts)), 1).T
    for k in range(parts):
        lower = np.maximum(lower, lower[:, k, None] + lower[None, k, :])
    return Bounds(lower, -lower.T)


def _matches(rows: list[tuple[int, int, int, int]], parts: int, bounds: Bounds) -> list[tuple[int, ...]]:
    """rows: key, time, id and part of each."""
    by_part = [[row for row in rows if row[3] == part] for part in range(parts)]
    found = []
    for some in product(*by_part):
        apart = [(some[j][1] - some[i][1], i, j) for i in range(parts) for j in range(parts)]
        if len({row[0] for row in some}) == 1 and all(bounds.lower[i, j] <= d <= bounds.upper[i, j] for d, i, j in apart):
            found.append(tuple(row[2] for row in some))
    return sorted(found)


@given(seed=st.integers(0, 2**32), parts=st.integers(2, 4), layout=st.sampled_from([None, (3, False), (8, True)]))
def test_matches_are_those_of_a_brute_force(seed: int, parts: int, layout: tuple[int, bool] | None) -> None:
    random = np.random.default_rng(seed)
    bounds, shape = _bounds(random, parts), None if layout is None else RowLayout(*layout)
    windows = Arrangement(bounds, shape, 1 << 20)
    came, found, final_us = list[tuple[int, int, int, int]](), list[tuple[int, ...]](), 0
    for _ in range(int(random.integers(1, 6))):
        rows = _batch(random, int(random.integers(0, 12)), final_us, len(came), shape)
        part = random.integers(0, parts, len(rows)).astype(np.int8)
        windows.add(rows, part, rows.key + 2, final_us)
        came += zip(rows.key.tolist(), rows.ts.tolist(), rows.id.tolist(), part.tolist(), strict=True)
        search, order, done = windows.begin(), search_order(windows.met), False
        while not done:
            numbers, _, done = windows.matches(search, order, int(random.integers(1, 5)))
            ids = [windows.rows(of.astype(np.int64)).id.tolist() for of in numbers.T]
            found += zip(*ids, strict=True)
        windows.validate()
        if random.random() < 0.6:  # later rows have this time, or a later one
            final_us += int(random.integers(0, SPAN))
            windows.expire(final_us)
            windows.validate()
        if random.random() < 0.3:
            rows_now = windows.rows(windows.numbers)
            windows.keep(windows.numbers[windows.needed(rows_now, final_us)])
            windows.validate()
        _check_payload(windows, shape)
    assert sorted(found) == _matches(came, parts, bounds)


def _check_payload(windows: Arrangement, layout: RowLayout | None) -> None:
    """Rows have what they came with."""
    rows = windows.rows(windows.numbers)
    if layout is None:
        assert rows.payload is None
        return
    assert rows.payload is not None
    ids = rows.id.astype(np.uint8)
    assert (rows.payload.fixed == ids[:, None]).all()
    if rows.payload.var is not None:
        assert (rows.payload.var == np.repeat(ids, (rows.id % np.uint64(3)).astype(np.int64))).all()


def _added(windows: Arrangement, keys: I64, ts: I64, part: int, final_us: int) -> None:
    count, first = len(keys), windows.end
    rows = TupleBatch(keys, ts, np.arange(first, first + count, dtype=np.uint64), np.zeros(count, np.int64))
    windows.add(rows, np.full(count, part, np.int8), np.zeros(count, np.int64), final_us)
    windows.link()


def test_rows_whose_partners_have_passed_do_not_stay_behind_one_that_is_needed() -> None:
    """Memory is that of the rows that are needed, about, though rows leave in the order in which they came."""
    bounds = Bounds(np.array([[0, -10], [-(10**9), 0]]), np.array([[0, 10**9], [10, 0]]))  # part 0 is needed for long
    windows, at = Arrangement(bounds, None, 1 << 24), 0
    _added(windows, np.zeros(1, np.int64), np.zeros(1, np.int64), 0, 0)
    for _ in range(50):
        _added(windows, np.arange(1_000), np.full(1_000, at), 1, at)
        at += 100
        windows.expire(at)
    windows.validate()
    assert len(windows) < 4_000


def test_numbers_of_rows_begin_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrangement, "_MOST_ROWS", 1_000)
    bounds = Bounds(np.array([[0, -5], [-5, 0]]), np.array([[0, 5], [5, 0]]))
    windows, found = Arrangement(bounds, None, 1 << 20), 0
    for at in range(0, 1_000, 10):
        rows = TupleBatch(np.arange(40) // 2, np.full(40, at), np.arange(40, dtype=np.uint64), np.zeros(40, np.int64))
        windows.add(rows, (np.arange(40) % 2).astype(np.int8), np.zeros(40, np.int64), at)
        search, done = windows.begin(), False
        while not done:
            numbers, _, done = windows.matches(search, search_order(windows.met), 7)
            found += len(numbers)
        windows.expire(at)
        windows.validate()
    assert found == 100 * 20
    assert windows.end < 1_000


def test_the_part_with_the_fewest_partners_is_searched_first() -> None:
    met = np.zeros((3, 3, 2), np.int64)
    met[0, 1], met[0, 2], met[1, 0] = (100, 90), (100, 2), (100, 1)
    assert search_order(met).tolist() == [[2, 1], [0, 2], [0, 1]]
