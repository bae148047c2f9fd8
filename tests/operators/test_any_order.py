"""The window join over tuples in any time order: all that holds is that no tuple comes below an earlier watermark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swjoin.core.batch import LEFT, RIGHT, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.hashing import group_of, hash_key
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, pair_digest
from swjoin.operators.join_windows import JoinWindows
from swjoin.operators.window_join import WindowJoinOperator
from tests.operators.test_window_join import LAYOUTS, answer, move
from tests.support.join_module import SEARCH, delivery, drive, make, payload

GROUPS = 3
rows = st.lists(st.tuples(st.integers(-3, 12), st.integers(-40, 160)), max_size=60)


def _batch(tuples: list[tuple[int, int]], layout: Any) -> TupleBatch:
    """In the order given, with positions as ids."""
    n = len(tuples)
    key, ts = (np.array([t[i] for t in tuples], np.int64) for i in (0, 1))
    ids = np.arange(n, dtype=np.uint64)
    return TupleBatch(key, ts, ids, np.arange(n, dtype=np.int64), payload(ids, layout))


class Schedule:
    """Deliveries of both streams to two joins, in parts, with true watermarks and moves between the joins."""

    def __init__(self, draw: Callable[..., Any], left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
        self._draw = draw
        self.layouts = [LAYOUTS[draw(st.integers(0, 2), "layout")] for _ in range(2)]
        self.streams = [_batch(tuples, layout) for tuples, layout in zip((left, right), self.layouts, strict=True)]

    def deliveries(self) -> list[tuple[tuple[TupleBatch, TupleBatch], tuple[int, int]]]:
        """Parts of both streams, and the watermarks that hold after each."""
        cuts = sorted(self._draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=6), "cuts"))
        stops = [*zip(sorted(c[0] for c in cuts), sorted(c[1] for c in cuts), strict=True), (10**6, 10**6)]
        at, times, out = (0, 0), (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US), []
        for stop in stops:
            ends = tuple(min(max(a, s), len(b)) for a, s, b in zip(at, stop, self.streams, strict=True))
            if stop[0] == 10**6 or self._draw(st.booleans(), "the epoch ends"):
                after = [int(b.ts[e:].min()) if e < len(b) else END_OF_TIME_US for b, e in zip(self.streams, ends, strict=True)]
                times = after[LEFT], after[RIGHT]
            left, right = (b.slice(a, e) for b, a, e in zip(self.streams, at, ends, strict=True))
            out.append(((left, right), times))
            at = ends  # type: ignore[assignment]
        return out

    def part(self, epoch: int, parts: tuple[TupleBatch, TupleBatch], times: tuple[int, int], mine: set[int]) -> Delivery:
        """One join's share, in the order of the stream."""
        taken = []
        for batch in parts:
            own = [i for i in range(len(batch)) if _group(batch.key[i]) in mine]
            taken.append(batch.take(np.array(own, np.int64)))
        return delivery(epoch, taken[LEFT], taken[RIGHT], times, GROUPS, (Route.BOTH, Route.BOTH))


def _group(key: int) -> int:
    return int(group_of(np.uint64(hash_key(int(key))), GROUPS))


def _run(draw: Callable[..., Any], left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    lower = draw(st.integers(-60, 60), "lower")
    bounds = Bounds(lower, draw(st.integers(lower - 1, lower + 90), "upper"))
    how = draw(st.sampled_from(list(JOIN_KINDS)), "how")
    schedule = Schedule(draw, left, right)
    options = {
        "block_tuples": draw(st.sampled_from([1, 2, 4, 16]), "block"),
        "theta_tuples": draw(st.sampled_from([0, 1, 4, 1000]), "theta"),
        "left_layout": schedule.layouts[LEFT],
        "right_layout": schedule.layouts[RIGHT],
        "result_tuples": draw(st.sampled_from([1, 7, 1000]), "result tuples"),
        "kind": JOIN_KINDS[how],
        "in_order": False,
    }
    joins = [make(bounds, **options), make(bounds, **options)]
    owner = dict.fromkeys(range(GROUPS), 0)
    found: Counter[tuple[int, int]] = Counter()
    digest = 0
    for epoch, (parts, times) in enumerate(schedule.deliveries()):
        for which, join in enumerate(joins):
            mine = {group for group, of in owner.items() if of == which}
            pairs, _, more = drive(
                join, schedule.part(epoch, parts, times, mine), draw(st.sampled_from([1, 10, 10**9]), "budget")
            )
            digest += more
            for p in pairs:
                found.update(zip(p.left_id.tolist(), p.right_id.tolist(), strict=True))
                for held, ids, layout in (
                    (p.left_rows, p.left_id, schedule.layouts[0]),
                    (p.right_rows, p.right_id, schedule.layouts[1]),
                ):
                    expected = payload(ids, layout)
                    assert held is None or expected is None or np.array_equal(held.fixed, expected.fixed)
        for group in draw(st.lists(st.integers(0, GROUPS - 1), max_size=2), "moves"):
            source = owner[group]
            if group in joins[source].group_ids():
                move(joins[source], joins[1 - source], group, draw(st.sampled_from([1, 100, 10**6]), "chunk"))
                owner[group] = 1 - source
    i, j = answer(schedule.streams[LEFT], schedule.streams[RIGHT], bounds, how)
    assert found == Counter(zip(i.tolist(), j.tolist(), strict=True))
    assert digest % 2**64 == pair_digest(i, j)
    assert all(sum(join.window_tuples()) == 0 and join.block_count() == 0 for join in joins)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=rows, right=rows)
def test_any_order_equals_brute_force(data: st.DataObject, left: Any, right: Any) -> None:
    _run(data.draw, left, right)


@pytest.mark.parametrize("bug", ["tuples are taken to be in order", "a part moves the watermark"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    if bug == "tuples are taken to be in order":
        begin = WindowJoinOperator.__init__

        def ordered(self: Any, bounds: Any, sizes: Any, *more: Any, **options: Any) -> None:
            begin(self, bounds, replace(sizes, in_order=True), *more, **options)
            self.state.in_order = False  # only the checks

        monkeypatch.setattr(WindowJoinOperator, "__init__", ordered)
    else:
        advance = JoinWindows.advance
        monkeypatch.setattr(JoinWindows, "advance", lambda self, times: advance(self, (times[0] + 90, times[1] + 90)))

    @SEARCH
    @given(data=st.data(), left=rows, right=rows)
    def search(data: st.DataObject, left: Any, right: Any) -> None:
        _run(data.draw, left, right)

    with pytest.raises(AssertionError):
        search()


@pytest.mark.parametrize("how", ["inner", "left", "anti"])
@pytest.mark.parametrize("disorder", [0, 700, 1 << 40], ids=["in order", "nearly", "none"])
def test_tuples_that_lie_apart_are_not_compared(disorder: int, how: Any) -> None:
    """Of several strips of a partition-group: those whose times cannot meet, in the order in which they came, are passed over,
    also where the tuples are of one delivery, and results are few at a time."""
    random, n, bounds = np.random.default_rng(disorder), 3_000, Bounds(-40, 25)
    streams = []
    for layout in (None, None):
        ts = np.sort(random.integers(0, 100_000, n))
        ts = ts[np.argsort(ts + random.integers(0, disorder + 1, n), kind="stable")]
        streams.append(_batch(list(zip(random.integers(0, 2, n).tolist(), ts.tolist(), strict=True)), layout))
    join = make(bounds, block_tuples=64, theta_tuples=0, result_tuples=50, kind=JOIN_KINDS[how], in_order=False)
    found: Counter[tuple[int, int]] = Counter()
    compared = 0
    for part, (start, stop) in enumerate(((0, n // 3), (n // 3, n))):
        times = (END_OF_TIME_US,) * 2 if stop == n else (min(int(b.ts[stop:].min()) for b in streams),) * 2
        work = join.open(delivery(part, *(b.slice(start, stop) for b in streams), times, GROUPS, (Route.BOTH, Route.BOTH)))
        while True:
            step = join.step(work, 10**6, 10**9)
            if step.pairs is not None:
                found.update(zip(step.pairs.left_id.tolist(), step.pairs.right_id.tolist(), strict=True))
            if step.done:
                break
        compared += work.comparisons
    i, j = answer(*streams, bounds, how)
    assert found == Counter(zip(i.tolist(), j.tolist(), strict=True))
    assert len(i) > 1_000
    share = compared / (n * n)
    assert share < (0.1 if disorder < 1_000 else 1.01)
