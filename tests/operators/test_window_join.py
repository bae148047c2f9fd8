"""The join module against brute force: any schedule of deliveries, bounds, theta, block size, with moves in between."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from swjoin.cluster.wire import pack_state, unpack_state
from swjoin.core.batch import LEFT, RIGHT, RowLayout, TupleBatch
from swjoin.core.data_messages import Route
from swjoin.core.errors import RunFailed
from swjoin.core.hashing import digest_pairs
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, pair_digest
from swjoin.operators.join_operator import MoveId
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.state.delay_histogram import HISTOGRAM_SIZE, histogram_index, histogram_quantile
from tests.support.join_module import delivery, drive, make, payload, stream
from tests.tools.oracle import answer

LAYOUTS = {0: None, 1: RowLayout(9), 2: RowLayout(5, True)}


def move_id(group: int, number: int = 0) -> MoveId:
    return MoveId(QueryId(0), number, GroupId(group), SlaveId(0), SlaveId(1))


def move(source: WindowJoinOperator, target: WindowJoinOperator, group: int, chunk_bytes: int = 10**6) -> int:
    """A partition-group goes from one to the other at once, as frames; returns the number of chunks."""
    empty = tuple(TupleBatch.empty(None if store is None else store.layout) for store in source.payload)
    departure = source.export_group(move_id(group), empty, chunk_bytes)
    arrival = None
    while not departure.done:
        chunk = unpack_state(pack_state(departure.next_chunk()))
        arrival = arrival or target.import_group(chunk)
        arrival.add(chunk)
        source.validate()
        target.validate()
    assert arrival is not None
    assert arrival.complete
    assert (arrival.tuples, arrival.nbytes) == (departure.tuples, departure.nbytes)
    assert arrival.settle(EpochIndex(0)) is None
    return chunk.index + 1


tuples = st.lists(st.tuples(st.integers(-3, 12), st.integers(-40, 160)), max_size=60)


@settings(max_examples=120, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=tuples, right=tuples)
def test_any_schedule_equals_brute_force(data: st.DataObject, left: Any, right: Any) -> None:
    lower = data.draw(st.integers(-60, 60), "lower")
    bounds = Bounds(lower, data.draw(st.integers(lower - 1, lower + 90), "upper"))
    how = data.draw(st.sampled_from(list(JOIN_KINDS)), "how")
    layouts = [LAYOUTS[data.draw(st.integers(0, 2), "layout")] for _ in range(2)]
    groups = data.draw(st.sampled_from([1, 3, 8]), "groups")
    block = data.draw(st.sampled_from([1, 2, 4, 16]), "block")
    materialise = data.draw(st.booleans(), "materialise")
    result_tuples = data.draw(st.sampled_from([1, 7, 1000]), "result tuples")
    options = {
        "block_tuples": block,
        "theta_tuples": data.draw(st.sampled_from([0, 1, 4, 1000]), "theta"),
        "left_layout": layouts[0],
        "right_layout": layouts[1],
        "materialise": materialise,
        "result_tuples": result_tuples,
        "kind": JOIN_KINDS[how],
    }
    joins = [make(bounds, **options), make(bounds, **options)]
    streams = [
        stream([k for k, _ in rows], [t for _, t in rows], layout) for rows, layout in zip((left, right), layouts, strict=True)
    ]
    owner = dict.fromkeys(range(groups), 0)
    at = [0, 0]
    cuts = sorted(data.draw(st.lists(st.tuples(st.integers(0, 60), st.integers(0, 60)), max_size=5), "cuts"))
    lefts, rights = sorted(c[0] for c in cuts), sorted(c[1] for c in cuts)
    found: Counter[tuple[int, int]] = Counter()
    count = digest = 0
    for epoch, stop in enumerate([*zip(lefts, rights, strict=True), (10**6, 10**6)]):
        ends = [min(max(a, s), len(b)) for a, s, b in zip(at, stop, streams, strict=True)]
        last = stop[0] == 10**6
        times = tuple(END_OF_TIME_US if last or e == len(b) else int(b.ts[e]) for e, b in zip(ends, streams, strict=True))
        parts = [b.slice(a, e) for b, a, e in zip(streams, at, ends, strict=True)]
        at = ends
        for which, join in enumerate(joins):
            mine = [
                p.take(np.array([i for i in range(len(p)) if owner[_group(p.key[i], groups)] == which], np.int64))
                for p in parts
            ]
            pairs, n, d = drive(
                join,
                delivery(epoch, mine[0], mine[1], times, groups, (Route.BOTH, Route.BOTH)),
                data.draw(st.sampled_from([1, 10, 10**9]), "budget"),
                result_tuples,
            )
            count += n
            digest += d
            for p in pairs:
                assert p.side != RIGHT or p.left_rows is None
                assert p.side != LEFT or p.right_rows is None
                found.update(zip(p.left_id.tolist(), p.right_id.tolist(), strict=True))
                for rows, ids, layout in ((p.left_rows, p.left_id, layouts[0]), (p.right_rows, p.right_id, layouts[1])):
                    expected = payload(ids, layout)
                    if expected is not None and rows is not None:
                        assert np.array_equal(rows.fixed, expected.fixed)
                        assert rows.var is None or np.array_equal(rows.var, expected.var)
        for group in data.draw(st.lists(st.integers(0, groups - 1), max_size=2), "moves"):
            source = owner[group]
            if group in joins[source].group_ids():
                move(joins[source], joins[1 - source], group, data.draw(st.sampled_from([1, 100, 10**6]), "chunk"))
                owner[group] = 1 - source
                joins[0].validate()
                joins[1].validate()
    i, j = answer(streams[0], streams[1], bounds, how)
    assert count == len(i)
    assert digest % 2**64 == pair_digest(i, j)
    if materialise:
        assert found == Counter(zip(i.tolist(), j.tolist(), strict=True))
    assert all(sum(join.window_tuples()) == 0 and join.block_count() == 0 for join in joins)


def _group(key: int, groups: int) -> int:
    from swjoin.core.hashing import group_of, hash_key

    return int(group_of(np.uint64(hash_key(int(key))), groups))


def test_moved_group_keeps_its_mini_partition_groups() -> None:
    random = np.random.default_rng(1)
    batch = stream(random.integers(0, 500, 2000).tolist(), random.integers(0, 100, 2000).tolist(), None)
    one, two = make(Bounds(-50, 50)), make(Bounds(-50, 50))
    empty = TupleBatch.empty()
    drive(one, delivery(0, batch, empty, (100, 0), 1, (Route.BOTH, Route.BOTH)))
    shape = sorted(one.state.minis.pattern[one.state.minis_of(0)].tolist())
    depth = int(one.state.directories.depth[0])
    assert depth > 3
    assert move(one, two, 0, 5000) > 10
    assert sorted(two.state.minis.pattern[two.state.minis_of(0)].tolist()) == shape
    assert int(two.state.directories.depth[0]) == depth
    assert one.window_tuples() == (0, 0)
    assert two.window_tuples() == (2000, 0)
    first = two.export_group(move_id(0), (empty, empty), 10**6).next_chunk()
    one.import_group(first)
    with pytest.raises(RunFailed, match="is here already"):
        one.import_group(first)
    with pytest.raises(RunFailed, match="came before the directory"):
        make(Bounds(-50, 50)).import_group(dataclasses.replace(first, directory=None, index=1))


def test_a_group_that_does_not_fit_is_refused_with_one_line() -> None:
    batch = stream(list(range(2000)), [0] * 2000, None)
    one, two = make(Bounds(-50, 50)), make(Bounds(-50, 50), window_bytes=4 * 32 * 40)
    drive(one, delivery(0, batch, TupleBatch.empty(), (0, 0), 1, (Route.BOTH, Route.BOTH)))
    with pytest.raises(RunFailed, match=r"no room for .* more tuples; .*raise --memory"):
        move(one, two, 0)


@settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data(), left=tuples, right=tuples)
def test_moves_while_others_join(data: st.DataObject, left: Any, right: Any) -> None:
    """Chunks leave and arrive between any two pieces of join work; pending tuples travel, later ones are held back.

    The test plays the master: it holds a moving partition-group's tuples back and promises its consumer no more than that.
    """
    lower = data.draw(st.integers(-60, 60), "lower")
    bounds = Bounds(lower, lower + data.draw(st.integers(0, 90), "width"))
    how = data.draw(st.sampled_from(list(JOIN_KINDS)), "how")
    layout = LAYOUTS[data.draw(st.integers(0, 2), "layout")]
    options = {
        "theta_tuples": data.draw(st.sampled_from([0, 1, 4, 1000]), "theta"),
        "block_tuples": data.draw(st.sampled_from([1, 2, 4]), "block"),
        "left_layout": layout,
        "right_layout": layout,
        "result_tuples": data.draw(st.sampled_from([1, 7, 1000]), "result tuples"),
        "kind": JOIN_KINDS[how],
    }
    joins = [make(bounds, **options), make(bounds, **options)]
    streams = [stream([k for k, _ in rows], [t for _, t in rows], layout) for rows in (left, right)]
    groups, owner = 3, [0, 0, 1]
    held: dict[int, list[TupleBatch]] = {}
    flights: dict[int, dict[str, Any]] = {}
    count = digest = 0
    moves = 0

    def join_all(which: int, work: Any) -> None:
        nonlocal count, digest
        while not joins[which].step(work, 10**6, data.draw(st.sampled_from([1, 10**9]), "budget")).done:
            fly(data.draw(st.integers(0, 2), "chunks"))
        count += work.pair_count
        digest += sum(int(np.add.reduce(part.digests, dtype=np.uint64)) for part in work.all_results)

    def fly(chunks: int) -> None:
        for flight in list(flights.values()):
            for _ in range(chunks):
                if flight["departure"].done or not joins[flight["to"]].may_append:
                    break
                chunk = unpack_state(pack_state(flight["departure"].next_chunk()))
                flight["arrival"] = flight["arrival"] or joins[flight["to"]].import_group(chunk)
                flight["arrival"].add(chunk)

    def land() -> None:
        for group, flight in list(flights.items()):
            if flight["arrival"] is not None and flight["arrival"].complete:
                del flights[group]
                owner[group] = flight["to"]
                work = flight["arrival"].settle(EpochIndex(0))
                if work is not None:
                    join_all(flight["to"], work)

    def of_group(batch: TupleBatch, wanted: set[int]) -> TupleBatch:
        return batch.take(np.array([i for i in range(len(batch)) if _group(batch.key[i], groups) in wanted], np.int64))

    edges = sorted(data.draw(st.lists(st.integers(-41, 161), max_size=6), "edges"))
    start = -(10**6)
    promised = (start, start)
    for stop in [*edges, 10**6]:
        parts = [b.slice(int(np.searchsorted(b.ts, start)), int(np.searchsorted(b.ts, stop))) for b in streams]
        last = stop == 10**6
        while last and flights:
            fly(1)
            land()
        promised = (END_OF_TIME_US, END_OF_TIME_US) if last else (stop, stop)
        for group in flights:
            held.setdefault(group, [TupleBatch.empty(layout)] * 2)
            held[group] = [TupleBatch.concat([h, of_group(p, {group})]) for h, p in zip(held[group], parts, strict=True)]
        for which in (0, 1):
            mine = {g for g in range(groups) if owner[g] == which and g not in flights}
            back = [held.pop(g) for g in sorted(mine) if g in held]
            batches = []
            for side, part in enumerate(parts):
                new = TupleBatch.concat([*(h[side] for h in back), of_group(part, mine)])
                once = np.unique(new.id, return_index=True)[1]  # a group that landed just now has these tuples in both places
                new = new.take(once.astype(np.int64))
                batches.append(new.take(np.argsort(new.ts, kind="stable").astype(np.int64)))
            limits = [f["times"] for f in flights.values() if f["to"] == which]
            times = min([promised, *limits])
            join_all(which, joins[which].open(delivery(0, batches[0], batches[1], times, groups, (Route.BOTH, Route.BOTH))))
            joins[which].validate()
            land()
        for group in data.draw(st.lists(st.integers(0, groups - 1), max_size=2, unique=True), "moves"):
            if not last and group not in flights:
                source = owner[group]
                departure = joins[source].export_group(
                    move_id(group), (TupleBatch.empty(layout), TupleBatch.empty(layout)), data.draw(st.sampled_from([1, 200]))
                )
                flights[group] = {"departure": departure, "arrival": None, "to": 1 - source, "times": promised}
                moves += 1
        fly(data.draw(st.integers(0, 3), "chunks"))
        land()
        start = stop
    i, j = answer(streams[0], streams[1], bounds, how)
    assert count == len(i)
    assert digest % 2**64 == pair_digest(i, j)
    assert all(sum(join.window_tuples()) == 0 and join.block_count() == 0 for join in joins)


def test_one_key_does_not_grow_the_directory() -> None:
    join = make(Bounds(-10, 10))
    batch = stream([7] * 5000, list(range(5000)), None)
    drive(join, delivery(0, batch, TupleBatch.empty(), (5000, 0), 1, (Route.BOTH, Route.BOTH)))
    assert join.mini_group_count() == 1
    assert int(join.state.directories.depth[0]) == 0


def test_a_hot_key_among_others_splits_off_and_stops_there() -> None:
    random = np.random.default_rng(2)
    keys = np.where(random.random(5000) < 0.8, 7, random.integers(0, 10**6, 5000))
    join = make(Bounds(-10, 10), theta_tuples=64)
    drive(
        join, delivery(0, stream(keys.tolist(), list(range(5000)), None), TupleBatch.empty(), (5000, 0), 1, (Route.BOTH,) * 2)
    )
    sizes = np.array([join.state.tuples_of(m)[0] for m in join.state.minis_of(0).tolist()])
    assert sizes.max() > 3900
    assert np.sort(sizes)[-2] <= 128
    assert int(join.state.directories.depth[0]) <= 8


def test_splits_and_merges_keep_sizes_within_theta() -> None:
    join = make(Bounds(-100, 100), theta_tuples=32, block_tuples=8)
    random = np.random.default_rng(3)
    empty = TupleBatch.empty()
    for epoch, (n, low) in enumerate([(4000, 0), (4000, 100), (50, 400), (10, 600), (10, 700)]):  # merges look back
        batch = stream(random.integers(0, 10**9, n).tolist(), random.integers(low, low + 100, n).tolist(), None)
        drive(join, delivery(epoch, batch, empty, (low + 100, low + 100), 1, (Route.BOTH, Route.BOTH)))
        sizes = np.array([sum(join.state.tuples_of(m)) for m in join.state.minis_of(0).tolist()])
        assert sizes.max() <= 64, f"epoch {epoch}"
    assert join.mini_group_count() <= 4


def test_a_million_matches_leave_in_bounded_chunks() -> None:
    join = make(Bounds(-(10**7), 10**7), block_tuples=64, theta_tuples=512, window_bytes=64 << 20, result_tuples=5000)
    n = 1_000_000
    right = TupleBatch(
        np.zeros(n, np.int64), np.arange(n, dtype=np.int64), np.arange(n, dtype=np.uint64), np.zeros(n, np.int64)
    )
    empty = TupleBatch.empty()
    drive(join, delivery(0, empty, right, (n, n), 1, (Route.BOTH, Route.BOTH)))
    left = TupleBatch(np.zeros(1, np.int64), np.full(1, n, np.int64), np.zeros(1, np.uint64), np.zeros(1, np.int64))
    pairs, count, digest = drive(join, delivery(1, left, empty, (END_OF_TIME_US,) * 2, 1, (Route.BOTH, Route.BOTH)), limit=5000)
    assert count == n == sum(len(p) for p in pairs)
    assert digest == digest_pairs(np.zeros(n, np.uint64), right.id)
    assert len(pairs) >= 200


def test_quiet_keys_are_cleaned() -> None:
    """RisingWave issue 16045: state of keys that never come again was kept for ever."""
    join = make(Bounds(-10, 10))
    quiet = stream(list(range(200)), [0] * 200, None)
    empty = TupleBatch.empty()
    drive(join, delivery(0, quiet, empty, (1, 1), 8, (Route.BOTH, Route.BOTH)))
    assert join.window_tuples() == (200, 0)
    drive(join, delivery(1, empty, empty, (1000, 1000), 8, (Route.BOTH, Route.BOTH)))
    assert join.window_tuples() == (0, 0)
    assert join.block_count() == 0


@pytest.mark.parametrize(
    ("left_route", "right_route", "expected"),
    [
        (Route.BOTH, Route.BOTH, 2),
        (Route.STORE, Route.PROBE, 2),  # r0 finds the stored l0, r1 the fresh l1
        (Route.PROBE, Route.STORE, 1),  # l0 finds nothing stored yet; l1 finds the fresh r1
        (Route.STORE, Route.STORE, 0),
        (Route.PROBE, Route.PROBE, 0),
    ],
)
def test_routes(left_route: Route, right_route: Route, expected: int) -> None:
    """l0, then r0, then l1 and r1 together, out of reach of the first two; all keys equal."""
    join = make(Bounds(-10, 10))
    near, far, empty = stream([1], [0], None), stream([1], [100], None), TupleBatch.empty()
    schedule = [(near, empty, 0), (empty, near, 0), (far, far, 100)]
    routes = (left_route, right_route)
    assert sum(drive(join, delivery(e, a, b, (t, t), 1, routes))[1] for e, (a, b, t) in enumerate(schedule)) == expected


def test_full_windows_fail_with_one_line() -> None:
    join = make(Bounds(-10, 10), window_bytes=4 * 32 * 4)
    batch = stream(list(range(1000)), [0] * 1000, None)
    with pytest.raises(RunFailed, match=r"raise --memory"):
        drive(join, delivery(0, batch, TupleBatch.empty(), (0, 0), 1, (Route.BOTH, Route.BOTH)))


def test_histogram_quantiles_are_within_five_percent() -> None:
    values = np.random.default_rng(4).lognormal(8, 3, 20_000).astype(np.int64)
    histogram = np.bincount([histogram_index(int(v)) for v in values], minlength=HISTOGRAM_SIZE).astype(np.int64)
    for q in (0.01, 0.5, 0.9, 0.99):
        exact = float(np.quantile(values, q, method="inverted_cdf"))
        assert histogram_quantile(histogram, q, values.max()) == pytest.approx(exact, rel=0.05, abs=1)
    assert histogram_quantile(np.zeros(HISTOGRAM_SIZE, np.int64), 0.5, 0.0) == 0.0


@given(st.lists(st.integers(0, 1 << 40), min_size=1, max_size=9), st.floats(0, 1))
def test_no_quantile_is_above_the_maximum(values: list[int], q: float) -> None:
    histogram = np.bincount([histogram_index(v) for v in values], minlength=HISTOGRAM_SIZE).astype(np.int64)
    quantile = histogram_quantile(histogram, q, max(values))
    assert quantile <= max(values)
    exact = sorted(values)[max(1, int(np.ceil(q * len(values)))) - 1]
    assert quantile == pytest.approx(exact, rel=0.033, abs=0.5)
    assert histogram_quantile(histogram, 1.0, max(values)) == max(values)


@given(st.integers(0, 1 << 62), st.floats(0, 1))
def test_a_quantile_of_one_delay_is_that_delay(value: int, q: float) -> None:
    """In the upper half of its bucket, too, of which the middle is below it."""
    histogram = np.zeros(HISTOGRAM_SIZE, np.int64)
    histogram[histogram_index(value)] = 1
    assert histogram_quantile(histogram, q, value) == float(value)


def test_delay_counts_from_the_later_arrival() -> None:
    join = make(Bounds(-10, 10))
    left = TupleBatch(np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64), np.array([900], np.int64))
    right = TupleBatch(np.ones(1, np.int64), np.zeros(1, np.int64), np.zeros(1, np.uint64), np.array([400], np.int64))
    work = join.open(delivery(0, left, right, (1, 1), 1, (Route.BOTH, Route.BOTH)))
    assert join.step(work, 1000, 10).done
    assert (work.delay_sum_us, work.delay_max_us) == (100, 100)
