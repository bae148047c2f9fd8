"""Joins by a band in the join module: any schedule, cells and moves against brute force; keys at their ends; planted bugs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swjoin.core.band_keys import GREATEST_VALUE, LEAST_VALUE, WIDEST, BandKeys
from swjoin.core.batch import RIGHT, TupleBatch
from swjoin.core.data_messages import Route
from swjoin.core.errors import UserError
from swjoin.core.hashing import group_of, hash_cell
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, pair_digest
from swjoin.operators.window_join import Matching
from swjoin.state import arrays
from tests.operators.test_window_join import move
from tests.support.join_module import SEARCH, delivery, drive, make, stream

GROUPS = 3
tuples = st.lists(st.tuples(st.integers(-12, 40), st.integers(-40, 160)), max_size=60)
values = st.one_of(
    st.integers(-60, 60), st.integers(-(1 << 63), (1 << 63) - 1), st.sampled_from([LEAST_VALUE, GREATEST_VALUE, 0])
)


@given(st.lists(values, max_size=12), st.lists(values, max_size=12), st.integers(0, 40), st.integers(0, 3), st.booleans())
@settings(max_examples=200, deadline=None)
def test_every_pair_of_partners_meets_once(narrow: list[int], first: list[int], width: int, more: int, wide: bool) -> None:
    """In the cell of the narrow one's value. Values beyond those that keys have meet at least once."""
    keys = BandKeys(width, (2 * width + 1).bit_length() + more, int(wide))
    first = [*first, *(value - step for value in narrow for step in (0, width))]
    first = [value for value in first if value >= -(1 << 63) and value + width < 1 << 63]
    of_narrow = keys.narrow_keys(np.array(narrow, np.int64))
    positions, of_wide = keys.wide_keys(np.array(first, np.int64))
    for value, key in zip(narrow, of_narrow.tolist(), strict=True):
        sides = (np.array(key), of_wide) if wide else (of_wide, np.array(key))
        met = Counter(positions[keys.meet(*sides)].tolist())
        for i, start in enumerate(first):
            partners = start <= value <= start + width
            assert met[i] == partners or (
                not partners and max(abs(value), abs(start)) >= GREATEST_VALUE - width and met[i] == 1
            )


@given(st.integers(0, WIDEST), st.booleans())
def test_keys_of_any_width_have_cells(width: int, wide: bool) -> None:
    keys = BandKeys.of_width(width, int(wide), exact=True)
    keys.check("band")
    assert keys.cell_bits - keys.unit_bits <= 16
    assert 1 <= arrays.Band.of(keys).reach <= 65
    assert 1 << keys.cell_bits >= 32 * (2 * width + 2)


def test_keys_without_room_are_refused() -> None:
    for keys in (BandKeys(-1, 8, RIGHT), BandKeys(8, 4, RIGHT), BandKeys(1, 63, RIGHT), BandKeys(1, 8, 2)):
        with pytest.raises(UserError, match="no keys of a band"):
            keys.check("join")


def _run(draw: Callable[..., Any], left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """Both sides in parts to two joins, between which partition-groups move; against all pairs by value and time."""
    lower = draw(st.integers(-60, 60), "lower")
    bounds = Bounds(lower, draw(st.integers(lower, lower + 90), "upper"))
    width, low = draw(st.integers(0, 9), "width"), draw(st.integers(-5, 5), "low")
    how = draw(st.sampled_from(["inner", "inner", "left", "semi", "anti"]), "how")
    wide = draw(st.integers(0, 1), "wide") if how == "inner" else RIGHT
    bits = (2 * width + 1).bit_length() + draw(st.integers(0, 4), "more bits")
    keys = BandKeys(width, bits, wide, exact=True)
    plain = [stream([k for k, _ in rows], [t for _, t in rows], None) for rows in (left, right)]
    positions, of_wide = keys.wide_keys(plain[wide].key + low)
    streams: list[TupleBatch] = [replace(batch, key=keys.narrow_keys(batch.key)) for batch in plain]
    streams[wide] = replace(plain[wide].take(positions), key=of_wide)
    in_order = draw(st.booleans(), "in order")
    options = {
        "block_tuples": draw(st.sampled_from([1, 2, 4, 16, 70]), "block"),
        "theta_tuples": draw(st.sampled_from([0, 1, 4, 1000]), "theta"),
        "result_tuples": draw(st.sampled_from([1, 7, 1000]), "result tuples"),
        "kind": JOIN_KINDS[how],
        "in_order": in_order,
        "matching": Matching(band=keys),
    }
    joins = [make(bounds, **options), make(bounds, **options)]
    owner, at = dict.fromkeys(range(GROUPS), 0), [0, 0]
    found: Counter[tuple[int, int]] = Counter()
    digest = 0
    cuts = sorted(draw(st.lists(st.integers(0, 70), max_size=4), "cuts"))
    for epoch, stop in enumerate([*cuts, 10**6]):
        ends = [min(max(a, stop), len(b)) for a, b in zip(at, streams, strict=True)]
        times = tuple(END_OF_TIME_US if e == len(b) else int(b.ts[e]) for e, b in zip(ends, streams, strict=True))
        parts = [b.slice(a, e) for b, a, e in zip(streams, at, ends, strict=True)]
        at = ends
        for which, join in enumerate(joins):
            mine = [
                p.take(np.array([i for i, k in enumerate(p.key.tolist()) if owner[_group(k, bits)] == which], np.int64))
                for p in parts
            ]
            work = delivery(epoch, mine[0], mine[1], times, GROUPS, (Route.BOTH, Route.BOTH), bits)  # type: ignore[arg-type]
            pairs, _, more = drive(join, work, draw(st.sampled_from([1, 10, 10**9]), "budget"))
            digest += more
            for p in pairs:
                found.update(zip(p.left_id.tolist(), p.right_id.tolist(), strict=True))
        for group in draw(st.lists(st.integers(0, GROUPS - 1), max_size=2), "moves"):
            source = owner[group]
            if group in joins[source].group_ids():
                move(joins[source], joins[1 - source], group)
                owner[group] = 1 - source
    i, j = _expected(plain, bounds, (wide, low, width), how)
    assert found == Counter(zip(i, j, strict=True))
    assert digest % 2**64 == pair_digest(np.array(i, np.uint64), np.array(j, np.uint64))
    assert all(sum(join.window_tuples()) == 0 and join.block_count() == 0 for join in joins)


def _group(key: int, cell_bits: int) -> int:
    return int(group_of(np.uint64(hash_cell(key, cell_bits)), GROUPS))


def _expected(streams: list[TupleBatch], bounds: Bounds, band: tuple[int, int, int], how: str) -> tuple[list[int], list[int]]:
    """Ids of the rows by the definition: low <= narrow - wide <= low + width, and times within bounds."""
    wide, low, width = band
    left, right = streams
    sign = 1 if wide == RIGHT else -1
    apart = sign * (left.key[:, None] - right.key[None, :])
    times = right.ts[None, :] - left.ts[:, None]
    met = (apart >= low) & (apart <= low + width) & (times >= bounds.lower_us) & (times <= bounds.upper_us)
    i, j = (part.tolist() for part in np.nonzero(met))
    none = 2**64 - 1
    alone = [a for a in range(len(left)) if not met[a].any()]
    if how in ("semi", "anti"):
        kept = alone if how == "anti" else sorted(set(i))
        return kept, [none] * len(kept)
    return (i + alone, j + [none] * len(alone)) if how == "left" else (i, j)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=tuples, right=tuples)
def test_any_schedule_equals_brute_force(data: st.DataObject, left: Any, right: Any) -> None:
    _run(data.draw, left, right)


@pytest.mark.parametrize("bug", ["too few tags", "a span too short", "no copies", "copies meet in the first cell, too"])
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    of, made = arrays.Band.of, BandKeys.wide_keys
    if bug == "too few tags":
        monkeypatch.setattr(arrays.Band, "of", lambda keys: of(keys)._replace(reach=of(keys).reach // 2))
    elif bug == "a span too short":
        monkeypatch.setattr(arrays.Band, "of", lambda keys: of(keys)._replace(span=max(0, of(keys).span - 2)))
    elif bug == "no copies":

        def without(self: BandKeys, first: Any) -> Any:
            return np.arange(len(first)), self.narrow_keys(first)

        monkeypatch.setattr(BandKeys, "wide_keys", without)
    else:

        def twice(self: BandKeys, first: Any) -> Any:
            positions, keys = made(self, first)
            return np.concatenate([positions, positions]), np.concatenate([keys, keys])

        monkeypatch.setattr(BandKeys, "wide_keys", twice)

    @SEARCH
    @given(data=st.data(), left=tuples, right=tuples)
    def run(data: st.DataObject, left: Any, right: Any) -> None:
        _run(data.draw, left, right)

    with pytest.raises(AssertionError):
        run()


def test_one_cell_with_all_values_is_joined() -> None:
    """More tuples than theta in one cell, which cannot be divided: the directory stays small, and nothing is lost."""
    n, keys = 600, BandKeys.of_width(10_000, RIGHT, exact=True)
    rows = stream(list(range(n)), list(range(n)), None)
    join = make(Bounds(-50, 50), block_tuples=16, theta_tuples=8, materialise=False, matching=Matching(band=keys))
    positions, of_wide = keys.wide_keys(rows.key - 5_000)
    streams = replace(rows, key=keys.narrow_keys(rows.key)), replace(rows.take(positions), key=of_wide)
    work = delivery(0, *streams, (END_OF_TIME_US,) * 2, GROUPS, (Route.BOTH, Route.BOTH), keys.cell_bits)
    minis = join.mini_group_count()
    _, count, _ = drive(join, work)
    assert count == sum(min(n, i + 51) - max(0, i - 50) for i in range(n))
    assert join.mini_group_count() - minis <= 2 * GROUPS
