"""Totals of groups from step to step, against a dictionary."""

from __future__ import annotations

import numpy as np
import pytest

from swjoin.state.group_totals import GroupTotals
from swjoin.state.life_kernel import Totals


@pytest.mark.parametrize("calls", [0, 2])
def test_groups_come_and_go(calls: int) -> None:
    random, totals = np.random.default_rng(calls), GroupTotals(calls)
    wanted: dict[tuple[int, bool], tuple[int, ...]] = {}
    most = 0
    for step in range(200):
        count = int(random.integers(0, 400))
        codes, nulls = random.integers(-3, 40_000, count), random.random(count) < 0.1
        codes[nulls] = 0
        numbers, slots = totals.numbered(codes, nulls)
        groups = list(zip(codes.tolist(), nulls.tolist(), strict=True))
        assert len(slots) == len(set(groups)) == len(set(numbers.tolist()))
        before, first = totals.take(slots), np.zeros(len(slots), np.int64)
        first[numbers] = np.arange(count)
        keys = [groups[i] for i in first.tolist()]
        assert [tuple(before.alive[i : i + 1]) for i in range(len(slots))] == [wanted.get(key, (0,))[:1] for key in keys]
        alive = np.where(random.random(len(slots)) < (0.2 if step < 100 else 0.9), 0, random.integers(1, 9, len(slots)))
        values = random.integers(-(1 << 62), 1 << 62, (3, calls, len(slots)))
        totals.put(slots, Totals(alive, *values))
        for i, key in enumerate(keys):
            wanted[key] = (int(alive[i]), *values[:, :, i].ravel().tolist())
        wanted = {key: value for key, value in wanted.items() if value[0]}
        most = max(most, len(wanted))
    found = {key: (alive, *np.array([*more]).ravel().tolist()) for key, ((alive,), *more) in totals.by_group().items()}
    assert found == wanted
    assert most > 10_000 > len(wanted)
    assert totals.nbytes < 2 * (8 + 24 * calls + 50) * most


def test_what_is_empty_stays_small() -> None:
    totals = GroupTotals(1)
    for step in range(1000):
        numbers, slots = totals.numbered(np.array([step]), np.array([False]))
        assert numbers.tolist() == [0]
        totals.put(slots, Totals(np.array([step % 2]), *np.zeros((3, 1, 1), np.int64)))
        numbers, slots = totals.numbered(np.array([step]), np.array([False]))
        totals.put(slots, Totals(np.zeros(1, np.int64), *np.zeros((3, 1, 1), np.int64)))
    assert totals.by_group() == {}
    assert totals.nbytes < 200_000
