"""Joins by runs of partners: the same counts, digests, comparisons, delays and match flags as by blocks, and brute force."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swjoin.core.band_keys import GREATEST_VALUE, LEAST_VALUE, BandKeys
from swjoin.core.batch import RIGHT, PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Route
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, pair_digest
from swjoin.expressions.vm import ABS, INT, INT_LITERAL, LESS_EQUAL, SUBTRACT, WIDTH, Program
from swjoin.operators.window_join import Matching, WindowJoinOperator
from swjoin.state.arrays import RUN_TUPLES, new_runs
from tests.expressions import test_predicates as of_predicates
from tests.operators import test_any_order as of_any_order
from tests.operators import test_band_joins as of_bands
from tests.operators import test_join_kinds as of_kinds
from tests.operators import test_window_join as of_joins
from tests.support.join_module import delivery, make, stream

GROUPS = 2
tuples = st.lists(st.tuples(st.integers(-3, 12), st.integers(-40, 160)), max_size=80)


def _always_by_runs(join: WindowJoinOperator) -> None:
    if join._may_run:
        runs = join._runs = new_runs(0, 0)
        join._runs_after = lambda work: runs  # type: ignore[method-assign]


@contextmanager
def _all_by_runs() -> Iterator[None]:
    """Every join that is made meanwhile goes by runs, where it can."""
    made = WindowJoinOperator.__init__

    def making(self: WindowJoinOperator, *args: Any, **options: Any) -> None:
        made(self, *args, **options)
        _always_by_runs(self)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WindowJoinOperator, "__init__", making)
        yield


def _totals(join: WindowJoinOperator, work_on: Any, now_us: int) -> tuple[Any, ...]:
    """Counts, digests, comparisons and delays of one delivery. A semi join's delays are of the matches that came first."""
    work = join.open(work_on)
    while not join.step(work, now_us, 10**9).done:
        pass
    join.validate()
    parts = [(p.groups.tolist(), p.counts.tolist(), p.digests.tolist()) for p in work.all_results]
    delays = (work.delay_histogram.tolist(), work.delay_sum_us, work.delay_max_us)
    return parts, work.comparisons_by_group.tolist(), join.kind.first or delays, join.window_tuples()


def _run(draw: Callable[..., Any], left: list[tuple[int, int]], right: list[tuple[int, int]]) -> None:
    """Both sides in parts to two joins, one by runs; every delivery has the same totals."""
    lower = draw(st.integers(-60, 60), "lower")
    bounds = Bounds(lower, draw(st.integers(lower, lower + 90), "upper"))
    how = draw(st.sampled_from(["inner", "inner", "inner", "left", "semi", "anti", "full"]), "how")
    in_order = draw(st.booleans(), "in order")
    streams = [stream([k for k, _ in rows], [t for _, t in rows], None) for rows in (left, right)]
    if not in_order:
        streams = [b.take(np.array(draw(st.permutations(range(len(b))), "order"), np.int64)) for b in streams]
    band, bits = None, 0
    if draw(st.booleans(), "band") and how != "full":
        width = draw(st.integers(0, 9), "width")
        bits = (2 * width + 1).bit_length() + draw(st.integers(0, 4), "more bits")
        band = BandKeys(width, bits, draw(st.integers(0, 1), "wide") if how == "inner" else RIGHT, exact=True)
        positions, of_wide = band.wide_keys(streams[band.wide].key - draw(st.integers(-5, 5), "low"))
        streams = [
            replace(b.take(positions), key=of_wide) if i == band.wide else replace(b, key=band.narrow_keys(b.key))
            for i, b in enumerate(streams)
        ]
    options = {
        "block_tuples": draw(st.sampled_from([1, 4, 70]), "block"),
        "theta_tuples": draw(st.sampled_from([0, 4, 1000]), "theta"),
        "kind": JOIN_KINDS[how],
        "in_order": in_order,
        "matching": Matching(band=band),
        "materialise": False,
    }
    by_blocks, by_runs = make(bounds, **options), make(bounds, **options)
    _always_by_runs(by_runs)
    cuts = sorted(draw(st.lists(st.integers(0, 80), max_size=4), "cuts"))
    spread = draw(st.booleans(), "arrivals differ")
    at = [0, 0]
    for epoch, stop in enumerate([*cuts, 10**6]):
        ends = [min(max(a, stop), len(b)) for a, b in zip(at, streams, strict=True)]
        times = tuple(END_OF_TIME_US if e == len(b) else int(b.ts[e:].min()) for e, b in zip(ends, streams, strict=True))
        parts = [b.slice(a, e) for b, a, e in zip(streams, at, ends, strict=True)]
        parts = [replace(p, arrival_us=np.arange(len(p), dtype=np.int64) * 37 * spread) for p in parts]
        at = ends
        work = delivery(epoch, parts[0], parts[1], times, GROUPS, (Route.BOTH, Route.BOTH), bits)  # type: ignore[arg-type]
        assert _totals(by_blocks, work, 5_000) == _totals(by_runs, work, 5_000)


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=tuples, right=tuples)
def test_runs_are_blocks(data: st.DataObject, left: Any, right: Any) -> None:
    _run(data.draw, left, right)


def _streams(n: int, values: int, seed: int) -> list[TupleBatch]:
    rng = np.random.default_rng(seed)
    out = []
    for _ in range(2):
        ts = np.sort(rng.integers(0, 100_000, n))
        out.append(TupleBatch(rng.integers(0, values, n), ts, np.arange(n, dtype=np.uint64), ts.copy(), None))
    return out


def _chosen(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Whether the joins from here on went by runs until each of their deliveries was done."""
    seen: list[bool] = []
    close = WindowJoinOperator._close

    def closing(self: WindowJoinOperator) -> None:
        seen.append(self._runs is not None and bool(self._runs.starts.any()))
        close(self)

    monkeypatch.setattr(WindowJoinOperator, "_close", closing)
    return seen


@pytest.mark.drawn
@pytest.mark.parametrize("block_tuples", [64, 2 * RUN_TUPLES + 10])
@pytest.mark.parametrize(("values", "width"), [(1, None), (2_000, 200), (40_000, 2)])
def test_many_partners_against_brute_force(
    values: int, width: int | None, block_tuples: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """8,000 tuples a side, more than a run holds; runs are chosen where each probe has many partners, and nowhere else."""
    plain, window = _streams(8_000, values, 7), 90_000
    streams, keys = plain, None
    if width is not None:
        keys = BandKeys.of_width(2 * width, RIGHT, exact=True)
        positions, of_wide = keys.wide_keys(plain[1].key - width)
        streams = [replace(plain[0], key=keys.narrow_keys(plain[0].key)), replace(plain[1].take(positions), key=of_wide)]
    chosen = _chosen(monkeypatch)
    join = make(
        Bounds(-window, window), block_tuples=block_tuples, theta_tuples=500, window_bytes=1 << 30, materialise=False,
        matching=Matching(band=keys),
    )  # fmt: skip
    count, digest, at = 0, 0, [0, 0]
    for epoch in range(5):
        until = 20_000 * (epoch + 1)
        ends = [len(b) if epoch == 4 else int(np.searchsorted(b.ts, until)) for b in streams]
        parts = [b.slice(a, e) for b, a, e in zip(streams, at, ends, strict=True)]
        at = ends
        time = END_OF_TIME_US if epoch == 4 else until
        work = join.open(delivery(epoch, *parts, (time, time), GROUPS, (Route.BOTH, Route.BOTH), keys.cell_bits if keys else 0))
        while not join.step(work, 10**6, 10**9).done:
            pass
        assert int(work.delay_histogram.sum()) == work.pair_count
        count += work.pair_count
        digest += int(np.add.reduce(work.results.digests))
    expected, summed = 0, 0
    for start in range(0, len(plain[0]), 500):
        some = plain[0].slice(start, start + 500)
        met = abs(some.key[:, None] - plain[1].key[None, :]) <= (width or 0)
        met &= abs(some.ts[:, None] - plain[1].ts[None, :]) <= window
        i, j = np.nonzero(met)
        expected += len(i)
        summed += pair_digest(some.id[i], plain[1].id[j])
    assert (count, digest % 2**64) == (expected, summed % 2**64)
    assert any(chosen) == (values < 40_000)


@pytest.mark.parametrize("alone", [False, True])
def test_values_beyond_those_of_keys_are_tested_by_the_condition(alone: bool) -> None:
    """alone: on the narrow side alone, so that no key of the other side says that there are some."""
    rng, (least, greatest) = np.random.default_rng(3), (-(1 << 63), (1 << 63) - 1)
    near = rng.integers(-20, 20, 60)
    ends = [end + rng.integers(-9, 9, 9) for end in (LEAST_VALUE, GREATEST_VALUE, least + 9, greatest - 9)]
    left = np.concatenate([near, *ends])
    right = np.concatenate([near, *([[GREATEST_VALUE - 3]] if alone else ends)])  # its partners end with the greatest value
    keys, width, layout = BandKeys.of_width(6, RIGHT, exact=True), 3, RowLayout(8)
    code = np.zeros((6, WIDTH), np.int64)
    for i, row in enumerate(
        [(INT, 0, 0, 8, -1), (INT, 1, 0, 8, -1), (SUBTRACT,), (ABS,), (INT_LITERAL, 0, width), (LESS_EQUAL,)]
    ):
        code[i, : len(row)] = row
    none = np.empty(0, np.int64)
    where = Program(code.ravel(), none.astype(np.float64), none.astype(np.uint8), none)
    rows = []
    for values in (left, right):
        payload = PayloadRows(values.astype("<i8").view(np.uint8).reshape(-1, 8))
        rows.append(replace(stream([0] * len(values), [0] * len(values), None), rows=payload))
    positions, of_wide = keys.wide_keys(np.maximum(right, least + width) - width)
    streams = replace(rows[0], key=keys.narrow_keys(left)), replace(rows[1].take(positions), key=of_wide)
    found = []
    for by_runs in (False, True):
        matching = Matching(where=where, band=keys)
        join = make(Bounds(0, 0), materialise=False, matching=matching, left_layout=layout, right_layout=layout)
        if by_runs:
            _always_by_runs(join)
            assert join._runs is not None
        found.append(_totals(join, delivery(0, *streams, (END_OF_TIME_US,) * 2, GROUPS, (Route.BOTH,) * 2, keys.cell_bits), 0))
    assert found[0] == found[1]
    expected = sum(abs(x - y) <= width for x in left.tolist() for y in right.tolist())
    assert sum(sum(counts) for _, counts, _ in found[0][0]) == expected


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=of_joins.tuples, right=of_joins.tuples)
def test_rows_of_any_schedule(data: st.DataObject, left: Any, right: Any) -> None:
    """With payload, in steps that the output bounds."""
    with _all_by_runs():
        of_joins.test_any_schedule_equals_brute_force.hypothesis.inner_test(data, left, right)  # type: ignore[attr-defined]


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=of_joins.tuples, right=of_joins.tuples)
def test_moves_while_others_join(data: st.DataObject, left: Any, right: Any) -> None:
    with _all_by_runs():
        of_joins.test_moves_while_others_join.hypothesis.inner_test(data, left, right)  # type: ignore[attr-defined]


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=of_bands.tuples, right=of_bands.tuples)
def test_rows_of_bands(data: st.DataObject, left: Any, right: Any) -> None:
    with _all_by_runs():
        of_bands._run(data.draw, left, right)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=of_any_order.rows, right=of_any_order.rows)
def test_rows_in_any_order(data: st.DataObject, left: Any, right: Any) -> None:
    with _all_by_runs():
        of_any_order._run(data.draw, left, right)


@pytest.mark.drawn
@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_random_predicates_are_those_of_sql(tmp_path: Path) -> None:
    """Programs that can be run over columns, against DuckDB."""
    with _all_by_runs():
        of_predicates.test_random_predicates_mean_what_they_do_in_sql(0, tmp_path)
        of_predicates.test_random_float_predicates_mean_what_their_translation_does(0)
        of_predicates.test_nan_is_not_equal_to_anything_and_has_no_order(of_predicates.pa.float32())


def test_kinds_row_by_row(tmp_path: Path) -> None:
    with _all_by_runs():
        of_kinds.test_random_workloads_row_by_row(0, tmp_path)
