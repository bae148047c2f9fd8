"""The as-of join against the definition: rows in any order, watermarks, residual predicates, moves, restore, memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any, Literal, TypeAlias

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.join_semantics import JOIN_KINDS, AsOf, Bounds
from swjoin.core.record_layout import TS
from swjoin.core.row_codec import RowCodec, StreamCodec
from swjoin.expressions.compiler import compile_text
from swjoin.expressions.vm import Program
from swjoin.operators import rows_by_time
from swjoin.operators.as_of_join import AsOfJoin
from swjoin.operators.join_operator import MoveId
from swjoin.operators.rows_by_time import RowsByTime
from tests.support.join_module import delivery, payload
from tests.tools.oracle import as_of

GROUPS = 4
LAYOUT = RowLayout(3, True)
Match: TypeAlias = Literal["last", "first", "nearest"]
MATCHES: list[Match] = ["last", "first", "nearest"]
Row = tuple[int, int | None]


@dataclass
class Case:
    """A random join and its input. disorder: how far a tuple may lie behind an earlier one."""

    seed: int
    match: Match
    bounds: Bounds
    how: Literal["inner", "left"]
    sides: tuple[TupleBatch, TupleBatch]
    disorder: int

    @staticmethod
    def of(seed: int) -> Case:
        rng = Random(seed)
        match = rng.choice(MATCHES)
        low, high = sorted((rng.randint(-30, 30), rng.randint(-30, 30)))
        low = min(low, 0) if match == "last" else low
        high = max(high, 0) if match == "first" else high
        keys, span = rng.choice([1, 3, 20]), rng.choice([5, 60, 400])
        sides = []
        for _ in range(2):
            n = rng.choice([0, 1, 30, 120])
            ts = np.array(sorted(rng.randint(0, span) for _ in range(n)), np.int64)
            ids = np.array(rng.sample(range(n), n), np.uint64) if rng.random() < 0.3 else np.arange(n, dtype=np.uint64)
            key = np.array([rng.randrange(keys) for _ in range(n)], np.int64)
            sides.append(TupleBatch(key, ts, ids, np.zeros(n, np.int64), payload(ids, LAYOUT)))
        disorder = rng.choice([0, 0, 5, 50])
        return Case(seed, match, Bounds(low, high), rng.choice(["inner", "left"]), (sides[0], sides[1]), disorder)

    @property
    def expected(self) -> Counter[Row]:
        left, right = self.sides
        found = as_of(left, right, self.bounds, self.match)
        rows = [(int(left.id[i]), None if j is None else int(right.id[j])) for i, j in enumerate(found)]
        return Counter(row for row in rows if self.how == "left" or row[1] is not None)

    def join(self, **options: Any) -> AsOfJoin:
        options = {"result_tuples": Random(self.seed).choice([1, 7, 1000]), "window_bytes": 1 << 22} | options
        return AsOfJoin(AsOf(self.match, self.bounds), (LAYOUT, LAYOUT), kind=JOIN_KINDS[self.how], **options)

    def deliveries(self) -> list[Delivery]:
        """Both streams, in as much disorder as there may be, in random epochs; the streams do not advance together."""
        rng = Random(self.seed + 1)
        came = []
        for side in self.sides:
            order = np.argsort(
                side.ts + np.array([rng.randint(0, self.disorder) for _ in range(len(side))], np.int64), kind="stable"
            )
            came.append(side.take(order))
        at, out, promised = [0, 0], [], [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US]
        while at != [len(side) for side in came]:
            parts, times = [], []
            for stream, side in enumerate(came):
                stop = min(len(side), at[stream] + rng.choice([0, 1, 5, 40]))
                parts.append(side.slice(at[stream], stop))
                at[stream] = stop
                rest = side.ts[stop:]
                time = int(rest.min()) - rng.choice([0, 0, 3]) if len(rest) else END_OF_TIME_US
                promised[stream] = max(promised[stream], time)
                times.append(promised[stream])
            out.append(delivery(len(out), parts[0], parts[1], (times[0], times[1]), GROUPS, (Route.BOTH, Route.BOTH)))
        nothing = TupleBatch.empty(LAYOUT)
        ends = (END_OF_TIME_US, END_OF_TIME_US)
        return [*out, delivery(len(out), nothing, nothing, ends, GROUPS, (Route.BOTH, Route.BOTH))]


@dataclass
class Run:
    """What came out."""

    rows: Counter[Row] = field(default_factory=Counter)

    def take(self, join: AsOfJoin, work_on: Delivery, budget: int = 10**9) -> None:
        self.finish(join, join.open(work_on), budget)

    def finish(self, join: AsOfJoin, work: Any, budget: int = 10**9) -> None:
        count = 0
        while True:
            step = join.step(work, 10**6, budget)
            join.validate()
            if (pairs := step.pairs) is not None:
                count += len(pairs)
                for stream, ids, rows in ((LEFT, pairs.left_id, pairs.left_rows), (RIGHT, pairs.right_id, pairs.right_rows)):
                    if rows is None:
                        assert stream == RIGHT
                        assert (ids == MISSING_ID).all()
                        continue
                    wanted = payload(ids, LAYOUT)
                    assert wanted is not None
                    assert wanted.var is not None
                    assert rows.var is not None
                    assert np.array_equal(rows.fixed, wanted.fixed)
                    assert bytes(rows.var) == bytes(wanted.var)
                rights = [None if r == MISSING_ID else int(r) for r in pairs.right_id]
                self.rows.update(zip(map(int, pairs.left_id), rights, strict=True))
            if step.done:
                break
        assert work.pair_count == count


def _of_group(work_on: Delivery, group: int) -> tuple[Delivery, Delivery]:
    """A delivery of the other partition-groups, and of this one."""
    found = []
    for mine in (work_on.groups != group, work_on.groups == group):
        counts = [np.where(mine, counts, 0) for counts in (work_on.left_counts, work_on.right_counts)]
        batches = [
            batch.take(np.flatnonzero(np.repeat(mine, before)))
            for batch, before in ((work_on.left, work_on.left_counts), (work_on.right, work_on.right_counts))
        ]
        found.append(replace(work_on, left_counts=counts[0], right_counts=counts[1], left=batches[0], right=batches[1]))
    return found[0], found[1]


@settings(max_examples=120, deadline=None)
@given(st.integers(0, 1 << 30))
def test_any_input_in_any_epochs(seed: int) -> None:
    case, run = Case.of(seed), Run()
    join, budget = case.join(), Random(seed).choice([1, 10**9])
    for work_on in case.deliveries():
        run.take(join, work_on, budget)
        front = join.as_of.front_us((work_on.left_time_us, work_on.right_time_us))
        out = {left for left, _ in run.rows}
        for i, (row, time) in enumerate(zip(case.sides[LEFT].id.tolist(), case.sides[LEFT].ts.tolist(), strict=True)):
            if case.how == "left" and time + join.as_of.candidates.upper_us < front:
                assert row in out, f"left row {i} has not come out, though nothing can be better"
    assert run.rows == case.expected
    assert join.window_tuples() == (0, 0)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 1 << 30))
def test_rows_that_are_only_counted(seed: int) -> None:
    case = Case.of(seed)
    with_rows, counted = case.join(), case.join(result_tuples=0)
    for work_on in case.deliveries():
        works = []
        for join in (with_rows, counted):
            work = join.open(work_on)
            while not join.step(work, 0, 10**9).done:
                pass
            works.append(work)
        for one, other in zip(works[0].all_results, works[1].all_results, strict=True):
            assert one.groups.tolist() == other.groups.tolist()
            assert one.counts.tolist() == other.counts.tolist()
            assert one.digests.tolist() == other.digests.tolist()


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 1 << 30))
def test_a_residual_predicate_restricts_the_candidates(seed: int) -> None:
    case, rng = Case.of(seed), Random(seed)
    codec = RowCodec.of([("v", pa.int64())])
    sides, values = [], []
    for side in case.sides:
        own = np.array([rng.randint(0, 5) for _ in range(len(side))], np.int64)
        rows = codec.encode(pa.record_batch({"v": own}))
        sides.append(replace(side, rows=rows))
        values.append(own)
    case.sides = (sides[0], sides[1])
    codecs = [StreamCodec((("v", pa.int64(), "row"),), (), codec) for _ in range(2)]
    where = compile_text("left_v <= right_v", codecs[0], codecs[1], count_windows=False)
    layout = codec.layout
    join = AsOfJoin(
        AsOf(case.match, case.bounds),
        (layout, layout),
        result_tuples=9,
        kind=JOIN_KINDS[case.how],
        window_bytes=1 << 22,
        where=where,
    )
    found: Counter[Row] = Counter()
    for work_on in case.deliveries():
        work = join.open(work_on)
        while True:
            step = join.step(work, 0, 50)
            join.validate()
            if (pairs := step.pairs) is not None:
                rights = [None if r == MISSING_ID else int(r) for r in pairs.right_id]
                found.update(zip(map(int, pairs.left_id), rights, strict=True))
            if step.done:
                break
    left, right = case.sides
    chosen = as_of(left, right, case.bounds, case.match, lambda i, j: bool(values[0][i] <= values[1][j]))
    rows = [(int(left.id[i]), None if j is None else int(right.id[j])) for i, j in enumerate(chosen)]
    assert found == Counter(row for row in rows if case.how == "left" or row[1] is not None)


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 1 << 30))
def test_partition_groups_move(seed: int) -> None:
    """Between two slaves, one of which may be some epochs ahead, with delivered tuples, while others arrive."""
    case, rng, run = Case.of(seed), Random(seed), Run()
    joins = [case.join(), case.join()]
    owner = [rng.randrange(2) for _ in range(GROUPS)]
    queues: list[list[Delivery]] = [[], []]
    for number, work_on in enumerate(case.deliveries()):
        if min(work_on.left_time_us, work_on.right_time_us) == END_OF_TIME_US:
            for slave in range(2):  # no partition-group moves any more
                for rest in queues[slave]:
                    run.take(joins[slave], rest)
                queues[slave].clear()
        for slave in range(2):
            mine = work_on
            for group in range(GROUPS):
                if owner[group] != slave:
                    mine = _of_group(mine, group)[0]
            queues[slave].append(mine)
        for slave in rng.sample(range(2), 2):
            for _ in range(rng.choice([0, 1, 2]) if number % 7 else 9):
                if queues[slave]:
                    run.take(joins[slave], queues[slave].pop(0))
        if rng.random() < 0.5 and min(work_on.left_time_us, work_on.right_time_us) < END_OF_TIME_US:
            _move(rng.randrange(GROUPS), owner, joins, queues, rng, run)
    for slave in range(2):
        for rest in queues[slave]:
            run.take(joins[slave], rest)
        assert joins[slave].window_tuples() == (0, 0)
    assert run.rows == case.expected


def _move(group: int, owner: list[int], joins: list[AsOfJoin], queues: list[list[Delivery]], rng: Random, run: Run) -> None:
    supplier, consumer = owner[group], 1 - owner[group]
    owner[group] = consumer
    pending: tuple[list[TupleBatch], list[TupleBatch]] = ([], [])
    for i, waiting in enumerate(queues[supplier]):
        queues[supplier][i], taken = _of_group(waiting, group)
        pending[LEFT].append(taken.left)
        pending[RIGHT].append(taken.right)
    left, right = (TupleBatch.concat([TupleBatch.empty(LAYOUT), *part]) for part in pending)
    move_id = MoveId(QueryId(0), 1, GroupId(group), SlaveId(supplier), SlaveId(consumer))
    leaving = joins[supplier].export_group(move_id, (left, right), rng.choice([1, 100, 10**6]))
    coming, work = None, None
    while not leaving.done:
        chunk = leaving.next_chunk()
        coming = coming or joins[consumer].import_group(chunk)
        coming.add(chunk)
        joins[consumer].validate()
        # the deliveries of the epochs before the move have none of its tuples
        if rng.random() < 0.1 and len(queues[consumer]) > 0 and not leaving.done:
            run.take(joins[consumer], queues[consumer].pop(0))
    assert coming is not None
    assert coming.complete
    assert coming.waiting_tuples(LEFT) == len(left)
    work = coming.settle(EpochIndex(0))
    if work is not None:
        run.finish(joins[consumer], work)
    joins[supplier].validate()


@settings(max_examples=200, deadline=None)
@given(st.integers(0, 1 << 30))
def test_restored_after_a_crash(seed: int) -> None:
    """From the log of deliveries, less what `needed_below` says; another number of slaves."""
    case, rng, run = Case.of(seed), Random(seed), Run()
    work_on = case.deliveries()
    cut = rng.randrange(len(work_on))
    first = case.join()
    for part in work_on[:cut]:
        run.take(first, part)
    times = (work_on[cut - 1].left_time_us, work_on[cut - 1].right_time_us) if cut else (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
    needed = AsOf(case.match, case.bounds).needed_below(AsOf(case.match, case.bounds).front_us(times))
    slaves = [case.join(), case.join()]
    split = rng.randrange(GROUPS + 1)
    for slave, join in enumerate(slaves):
        for part in work_on[:cut]:
            mine = _of_slave(part, slave, split)
            keep = rng.random() < 0.5  # a segment that is needed in part is kept as it is
            for stream, batch in enumerate((mine.left, mine.right)):
                if not keep:
                    fresh = np.flatnonzero(batch.ts >= needed[stream])
                    mine = _with(mine, stream, fresh)
            join.restore(mine)
            if rng.random() < 0.5:
                join.restored_until((part.left_time_us, part.right_time_us))
        join.restored(np.tile(np.array(times, np.int64), (GROUPS, 1)))
        join.validate()
        for part in work_on[cut:]:
            run.take(join, _of_slave(part, slave, split))
    assert run.rows == case.expected


def _of_slave(work_on: Delivery, slave: int, split: int) -> Delivery:
    for group in range(GROUPS):
        if (group < split) != (slave == 0):
            work_on = _of_group(work_on, group)[0]
    return work_on


def _with(work_on: Delivery, stream: int, index: np.ndarray) -> Delivery:
    """The tuples of a stream at these positions alone."""
    batch, counts = (work_on.left, work_on.left_counts) if stream == LEFT else (work_on.right, work_on.right_counts)
    of_group = np.repeat(np.arange(len(counts)), counts)[index]
    fresh = np.bincount(of_group, minlength=len(counts)).astype(np.int64)
    if stream == LEFT:
        return replace(work_on, left=batch.take(index), left_counts=fresh)
    return replace(work_on, right=batch.take(index), right_counts=fresh)


def test_right_rows_that_are_superseded_are_not_kept() -> None:
    """With an hour's bounds one right row per key is kept, and what has come since."""
    hour = 3_600_000_000
    join = AsOfJoin(
        AsOf("last", Bounds(-hour, 0)), (None, LAYOUT), result_tuples=0, kind=JOIN_KINDS["left"], window_bytes=1 << 24
    )
    keys, most = 100, 0
    for epoch in range(300):
        ts = np.arange(epoch * 1000, (epoch + 1) * 1000, dtype=np.int64)
        ids = ts.astype(np.uint64)
        right = TupleBatch(ts % keys, ts, ids, np.zeros(1000, np.int64), payload(ids, LAYOUT))
        left = TupleBatch(ts[::10] % keys, ts[::10], ids[::10], np.zeros(100, np.int64))
        time = int(ts[-1]) + 1
        work = join.open(delivery(epoch, left, right, (time, time), GROUPS, (Route.BOTH, Route.BOTH)))
        while not join.step(work, 0, 10**9).done:
            pass
        most = max(most, join.window_tuples()[RIGHT])
        assert work.pair_count == 100
    assert most == keys
    assert join.window_bytes() < 1 << 20


@pytest.mark.parametrize("keys", [300, 20_000])
@pytest.mark.parametrize("match", MATCHES)
@pytest.mark.parametrize("chained", [False, True])
def test_many_keys_that_come_and_go(match: Match, keys: int, chained: bool) -> None:
    """Of each some are in use at a time, so tables fill, drop keys, and are copied; the answers are pandas'."""
    rng, n, tolerance = np.random.default_rng(keys), 60_000, 3_000
    sides, frames = [], []
    for name in ("left_id", "right_id"):
        ts = np.sort(rng.choice(4 * n, n, replace=False)).astype(np.int64)
        key = (ts * keys // (4 * n) + rng.integers(0, 1 + keys // 20, n)) * 64
        ids = np.arange(n, dtype=np.uint64)
        sides.append(TupleBatch(key, ts, ids, np.zeros(n, np.int64), payload(ids, LAYOUT)))
        frames.append(pd.DataFrame({"key": key, "ts": ts, name: np.arange(n)}))
    directions: Any = {"last": "backward", "first": "forward", "nearest": "nearest"}
    found = pd.merge_asof(*frames, on="ts", by="key", tolerance=tolerance, direction=directions[match])
    wanted = np.where(found["right_id"].isna(), MISSING_ID, found["right_id"].fillna(0).to_numpy().astype(np.uint64))
    join = AsOfJoin(
        AsOf(match, Bounds(0 if match == "first" else -tolerance, 0 if match == "last" else tolerance)),
        (LAYOUT, LAYOUT),
        result_tuples=1000,
        kind=JOIN_KINDS["left"],
        window_bytes=1 << 24,
        where=_anything() if chained else None,
    )
    got = np.full(n, n + 1, np.uint64)
    for epoch in range(60):
        batches = [side.slice(epoch * 1000, (epoch + 1) * 1000) for side in sides]
        rest = [side.ts[(epoch + 1) * 1000 :] for side in sides]
        times = tuple(int(ts[0]) if len(ts) else END_OF_TIME_US for ts in rest)
        work = join.open(delivery(epoch, *batches, (times[0], times[1]), GROUPS, (Route.BOTH, Route.BOTH)))
        while not (step := join.step(work, 0, 10**9)).done:
            if step.pairs is not None:
                got[step.pairs.left_id] = step.pairs.right_id
        join.validate()
    assert np.array_equal(got, wanted)
    assert join.window_tuples() == (0, 0)


def _anything() -> Program | None:
    """A residual predicate that always holds."""
    codec = StreamCodec((("k", pa.int64(), "key"),), ("k",), None)
    return compile_text("left_k = right_k", codec, codec, count_windows=False)


def _to_the_end(join: AsOfJoin, work: Any) -> None:
    while not join.step(work, 0, 100).done:
        pass


def test_rows_beyond_the_limit_fail_the_run() -> None:
    join = AsOfJoin(
        AsOf("first", Bounds(0, 10**9)), (None, None), result_tuples=0, kind=JOIN_KINDS["left"], window_bytes=1 << 16
    )
    ts = np.arange(10_000, dtype=np.int64)
    left = TupleBatch(ts, ts, ts.astype(np.uint64), ts)
    work = join.open(delivery(0, left, TupleBatch.empty(), (0, 0), GROUPS, (Route.BOTH, Route.BOTH)))
    with pytest.raises(RunFailed, match=r"its rows \(.*\) would exceed"):
        _to_the_end(join, work)


# ---------------------------------------------------------------- planted bugs


def _is_caught(test: Any, count: int = 150) -> bool:
    """Whether a property fails for one of so many seeds."""
    for seed in range(count):
        try:
            test.hypothesis.inner_test(seed)
        except AssertionError:
            return True
    return False


def test_ties_by_arrival_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    def waiting(self: Any) -> I64:
        every = np.concatenate([self.order, *self.loose])
        self.loose, self.order = [], every[np.lexsort((every, self.records[every, TS], self.rows.group[every]))]
        found: I64 = self.order
        return found

    monkeypatch.setattr(rows_by_time._Side, "waiting", waiting)
    monkeypatch.setattr(RowsByTime, "validate", lambda self: None)
    assert _is_caught(test_any_input_in_any_epochs)


def test_the_expiry_of_the_only_candidate_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Right rows are kept as long as the lower bound says, less one."""
    needed_us = RowsByTime._needed_us
    monkeypatch.setattr(RowsByTime, "_needed_us", lambda self: needed_us(self) + 1)
    monkeypatch.setattr(RowsByTime, "drop_if_due", RowsByTime.drop_what_is_gone)
    assert _is_caught(test_any_input_in_any_epochs, 2000)


def test_a_group_that_is_looked_at_before_it_is_whole_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    expect = RowsByTime.expect

    def hasty(self: RowsByTime, group: int) -> None:
        expect(self, group)
        self._arriving = _Nothing(self._arriving)

    monkeypatch.setattr(RowsByTime, "expect", hasty)
    assert _is_caught(test_partition_groups_move, 400)


class _Nothing(set[int]):
    """It has no members, whatever is added."""

    def __iter__(self) -> Iterator[int]:
        return iter(())


def test_rows_that_come_out_again_after_a_crash_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(AsOfJoin, "restored", lambda self, times_us: None)
    assert _is_caught(test_restored_after_a_crash)


def test_a_log_that_forgets_matches_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash nothing before the front is known."""
    monkeypatch.setattr(AsOf, "needed_below", lambda self, front_us: (front_us, front_us))
    assert _is_caught(test_restored_after_a_crash)
