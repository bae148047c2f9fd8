"""Groups of rows that are alive, against brute force over all instants: whatever the epochs, moves and restores are; planted
bugs; what is refused."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from swjoin.core.batch import I64, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, LAST_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.life_columns import LifeColumns
from swjoin.operators import live_groups as operator
from swjoin.operators.join_operator import MoveId
from swjoin.operators.kept_rows import RowsOperator
from swjoin.operators.keyed_operator import Limits
from swjoin.operators.live_groups import LiveGroups, Rule
from swjoin.plan import live_groups as plan
from swjoin.plan.aggregates import AggregateCall
from swjoin.plan.live_groups import live_columns_of, live_types
from swjoin.plan.logical import Column, Schema
from swjoin.plan.watermarks import needed_below
from swjoin.state import life_kernel
from tests.tools.plan_oracle import Row, live_rows

TYPES = {"k": "int64", "t": "string", "v": "int64", "x": "double", "born": "int64", "dead": "int64"}
SCHEMA = Schema(tuple(Column(*column) for column in TYPES.items()), "ts")
GROUPS = 3  # partition-groups
EVERY = 4
MODES = {"changes": life_kernel.CHANGES, "boundaries": life_kernel.BOUNDARIES, "births": life_kernel.BIRTHS}
CALLS = (
    AggregateCall("n", "count"),
    AggregateCall("of_v", "count", "v"),
    AggregateCall("different", "count", "v", distinct=True),
    AggregateCall("texts", "count", "t", distinct=True),
    AggregateCall("sum_v", "sum", "v"),
    AggregateCall("sum_x", "sum", "x"),
    AggregateCall("once_v", "sum", "v", distinct=True),
    AggregateCall("once_x", "sum", "x", distinct=True),
    AggregateCall("least_v", "min", "v"),
    AggregateCall("least_x", "min", "x"),
    AggregateCall("most_v", "max", "v"),
    AggregateCall("most_x", "max", "x"),
)
PLAIN = tuple(call for call in CALLS if call.name in ("n", "of_v", "sum_v"))  # go on from the totals before
LIVES = {"for ever": 0, "finite": 20}
INTEGERS = [None, 0, 1, 1, 2, -5, (1 << 62) + 1, -(1 << 63), (1 << 63) - 1]
DOUBLES = [None, 0.0, -0.0, 1.5, 1.5, -2.0, 1e300, -1e300, 1e-300, 0.1, math.inf, -math.inf, math.nan]


class Case(NamedTuple):
    """rows: in the order of arrival. watermarks: after how many rows, and which."""

    node: plan.LiveGroups
    rows: list[Row]
    watermarks: list[tuple[int, int]]


@st.composite
def cases(draw: Callable[..., Any], wide: bool = False) -> Case:
    """wide: with integers whose sums have more than 64 bits."""
    mode = draw(st.sampled_from(sorted(MODES)))
    longest_us = draw(st.sampled_from(sorted(LIVES.values())))
    key = draw(st.sampled_from([(), ("k",), ("t",), ("k", "t")]))
    calls_of_case = draw(st.sampled_from([CALLS, PLAIN]))
    calls = () if mode == "births" else tuple(draw(st.lists(st.sampled_from(calls_of_case), unique=True)))
    node = plan.LiveGroups("g", "a", key, "born", "dead", calls, "as_of", EVERY, mode, longest_us)
    unit = EVERY if mode == "boundaries" else 1
    rows = []
    integers = INTEGERS if wide else INTEGERS[:6]
    for i in range(draw(st.integers(0, 12))):
        ts = draw(st.integers(-9, 9))
        born = -(-(ts + draw(st.sampled_from([0, 0, 0, 1, 5]))) // unit) * unit
        dead = born + unit * draw(st.integers(-1, 6 if unit == 1 else 3))
        if not longest_us and draw(st.integers(0, 4)) == 0:
            dead = draw(st.sampled_from([LAST_TIME_US, LAST_TIME_US + 1, END_OF_TIME_US, (1 << 63) - 1]))
        values = draw(st.sampled_from([None, 0, 1])), draw(st.sampled_from([None, "", "a"]))
        words = draw(st.sampled_from(integers)), draw(st.sampled_from(DOUBLES))
        rows.append(Row(i, ts, (*values, *words, born, dead)))
        if draw(st.integers(0, 4)) == 0:
            rows.append(rows[-1])
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    watermarks, last = [], BEGIN_OF_TIME_US
    for cut in cuts:
        most = min((row.ts for row in rows[cut:]), default=40)
        last = draw(st.integers(max(last, min(most, -12)), most)) if draw(st.booleans()) else max(last, min(most, 40))
        watermarks.append((cut, last))
    return Case(node, rows, watermarks)


def batch_of(rows: Sequence[Row], names: Sequence[str]) -> TupleBatch:
    columns = list(zip(*(row.values for row in rows), strict=True)) if rows else [()] * len(TYPES)
    kinds = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64()}
    arrays = {name: pa.array(list(v), kinds[kind]) for (name, kind), v in zip(TYPES.items(), columns, strict=True)}
    ts = np.array([row.ts for row in rows], np.int64)
    ids = np.array([row.id for row in rows], np.uint64)
    return TupleBatch(np.zeros(len(rows), np.int64), ts, ids, ts, None, Columns(pa.record_batch(arrays)).select(names))


def group_of(node: plan.LiveGroups, row: Row) -> int:
    return hash(tuple(row.values[list(TYPES).index(name)] for name in node.key)) % GROUPS


class Instance:
    """An operator, and the log of what has come to it. result_bytes: few, for many pieces."""

    def __init__(self, node: plan.LiveGroups, result_bytes: int = 1) -> None:
        self.node, self.columns = node, live_columns_of(node, TYPES)
        self.rule, self.limits = Rule(MODES[node.mode], node.every_us, node.longest_us), Limits(result_bytes, 1 << 20)
        self.operator = self._new()

    def _new(self) -> LiveGroups:
        return LiveGroups(self.rule, self.columns, self.columns.new_keys(), self.limits, "slave 0")

    def deliver(self, rows: Sequence[Row], watermark_us: int) -> list[ResultRows]:
        """What comes out."""
        found: list[ResultRows] = []
        work, done = self.operator.open(self.delivery(rows, watermark_us)), False
        while not done:
            step = self.operator.step(work, 0, 2)
            done = step.done
            if step.pairs is not None:
                found.append(step.pairs)
        assert sum(map(len, found)) == (0 if work.unmatched is None else work.unmatched.counts.sum())
        self.operator.validate()
        return found

    def delivery(self, rows: Sequence[Row], watermark_us: int) -> Delivery:
        ordered = sorted(rows, key=lambda row: group_of(self.node, row))
        groups = np.array([group_of(self.node, row) for row in ordered], np.int64)
        names, counts = np.unique(groups, return_counts=True)
        read = [name for name in TYPES if name in self.node.reads(set())]
        nothing = np.zeros(len(names), np.int64)
        batch, right = batch_of(ordered, read), TupleBatch.empty()
        times = watermark_us, END_OF_TIME_US
        return Delivery(0, SlaveId(0), EpochIndex(0), *times, names, counts, nothing, batch, right)

    def restart(self, log: Sequence[tuple[Sequence[Row], int]], needed_us: int, *, by_epochs: bool) -> None:
        """As after a crash: what a checkpoint forgets is not in the log."""
        self.operator, last = self._new(), BEGIN_OF_TIME_US
        for rows, watermark_us in log:
            self.operator.restore(self.delivery([row for row in rows if row.ts >= needed_us], watermark_us))
            if by_epochs:
                self.operator.restored_until((watermark_us, END_OF_TIME_US))
            last = watermark_us
        self.operator.restored(np.array([[last, END_OF_TIME_US]]))
        self.operator.validate()

    def take_from(self, other: Instance, group: int) -> None:
        move = MoveId(QueryId(0), 0, GroupId(group), SlaveId(0), SlaveId(1))
        leaving = other.operator.export_group(move, (TupleBatch.empty(), TupleBatch.empty()), 64)
        coming = None
        while not leaving.done:
            chunk = leaving.next_chunk()
            coming = coming or self.operator.import_group(chunk)
            coming.add(chunk)
        assert group not in map(int, other.operator.group_ids())
        other.operator.validate()
        self.operator.validate()


def decoded(found: Sequence[ResultRows], watermark_us: int | None = None) -> list[tuple[Any, ...]]:
    """Ids, times and values. watermark_us: below which they must be."""
    out = []
    for rows in found:
        assert rows.columns is not None
        assert watermark_us is None or (rows.ts < watermark_us).all()
        values = zip(*(column.to_pylist() for column in rows.columns.batch.columns), strict=True)
        out += list(zip(rows.id.tolist(), rows.ts.tolist(), values, strict=True))
    return out


def expected(case: Case) -> list[tuple[Any, ...]]:
    return [(row.id, row.ts, row.values) for row in live_rows(case.node, SCHEMA, case.rows)]


def same_rows(found: Sequence[Any], wanted: Sequence[Any]) -> None:
    assert sorted(map(repr, found)) == sorted(map(repr, wanted))  # NaN is equal to itself, -0.0 is not 0.0


def too_large(case: Case) -> bool:
    """Whether a sum of integers has more than 64 bits."""
    at = [i for i, call in enumerate(case.node.calls) if call.function == "sum" and call.column == "v"]
    first = len(case.node.key) + 1
    sums = [values[first + i] for _, _, values in expected(case) for i in at]
    return any(total is not None and not -(1 << 63) <= total < 1 << 63 for total in sums)


def run(case: Case) -> list[tuple[Any, ...]]:
    """On one instance."""
    instance, found, at, last = Instance(case.node), [], 0, BEGIN_OF_TIME_US
    for cut, watermark_us in [*case.watermarks, (len(case.rows), END_OF_TIME_US)]:
        rows = decoded(instance.deliver(case.rows[at:cut], watermark_us), watermark_us)
        assert case.node.may_wait or all(ts >= last for _, ts, _ in rows)
        found += rows
        at, last = cut, watermark_us
    assert instance.operator.window_tuples() == (0, 0)
    return found


def check(case: Case) -> None:
    same_rows(run(case), expected(case))


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases())
def test_whatever_the_epochs_are(case: Case) -> None:
    check(case)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(wide=True))
def test_sums_that_do_not_fit(case: Case) -> None:
    if too_large(case):
        with pytest.raises(
            RunFailed, match=r"g: (sum|once)_v of a group is -?\d+, which has more than 64 bits; cast it to DOUBLE"
        ):
            run(case)
    else:
        check(case)


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.data())
def test_moves_and_restores(case: Case, data: st.DataObject) -> None:
    """Two instances; between epochs partition-groups move, and one of them fails and is restored from what the checkpoint must
    keep."""
    found: list[Any] = []
    instances, owner, at = [Instance(case.node), Instance(case.node)], dict.fromkeys(range(GROUPS), 0), 0
    log: list[tuple[list[Row], int]] = []
    for cut, watermark_us in [*case.watermarks, (len(case.rows), END_OF_TIME_US)]:
        rows = case.rows[at:cut]
        log.append((rows, watermark_us))
        for i, instance in enumerate(instances):
            mine = [row for row in rows if owner[group_of(case.node, row)] == i]
            found += decoded(instance.deliver(mine, watermark_us), watermark_us)
        at = cut
        if watermark_us == END_OF_TIME_US:
            break
        for group in data.draw(st.lists(st.sampled_from(range(GROUPS)), unique=True)):
            instances[1 - owner[group]].take_from(instances[owner[group]], group)
            owner[group] = 1 - owner[group]
        if data.draw(st.booleans()):
            needed_us = needed_below(case.node, [watermark_us])[0]
            mine_of = [([row for row in rows if owner[group_of(case.node, row)] == 1], us) for rows, us in log]
            instances[1].restart(mine_of, needed_us, by_epochs=data.draw(st.booleans()))
    same_rows(found, expected(case))


# ---------------------------------------------------------------- by hand


def rows_of(
    node: plan.LiveGroups, *lives: tuple[Any, ...], watermarks: Sequence[tuple[int, int]] = ()
) -> list[tuple[Any, ...]]:
    """Values of the answer for lives (born, dead, v, x) of one group, in the order of instants."""
    rows = [Row(i, born, (7, "", v, x, born, dead)) for i, (born, dead, v, x) in enumerate(lives)]
    return sorted((values for _, _, values in run(Case(node, rows, list(watermarks)))), key=lambda values: values[0])


def node_of(mode: Any, *calls: AggregateCall, every_us: int = 0) -> plan.LiveGroups:
    return plan.LiveGroups("g", "a", (), "born", "dead", calls, "as_of", every_us, mode)


def test_a_group_that_empties_and_returns() -> None:
    calls = AggregateCall("n", "count"), AggregateCall("s", "sum", "v"), AggregateCall("lo", "min", "v")
    found = rows_of(node_of("changes", *calls), (-5, -2, 3, None), (-4, -2, 1, None), (0, 2, None, None))
    assert found == [(-5, 1, 3, 3), (-4, 2, 4, 1), (-2, 0, None, None), (0, 1, None, None), (2, 0, None, None)]


def test_a_minimum_that_dies_and_an_equal_one_that_does_not() -> None:
    calls = AggregateCall("lo", "min", "v"), AggregateCall("hi", "max", "v")
    found = rows_of(node_of("changes", *calls), (0, 3, 1, None), (0, 5, 1, None), (1, 9, 2, None), (2, 4, 0, None))
    assert [(us, lo) for us, lo, _ in found] == [(0, 1), (1, 1), (2, 0), (3, 0), (4, 1), (5, 2), (9, None)]
    assert [hi for _, _, hi in found] == [1, 2, 2, 2, 2, 2, None]


def test_a_sum_is_exact_again_when_what_was_large_has_died() -> None:
    found = rows_of(
        node_of("changes", AggregateCall("s", "sum", "x")), (0, 4, 0, 1e-300), (1, 3, 0, 1e300), (2, 3, 0, math.inf)
    )
    assert found == [(0, 1e-300), (1, 1e300), (2, math.inf), (3, 1e-300), (4, None)]


def test_a_sum_may_be_too_large_for_a_while_between_instants_alone() -> None:
    """Births of one instant, of which a part has more than 64 bits."""
    most = (1 << 63) - 1
    lives = [(0, 5, most, None), (0, 5, most, None), (0, 5, -most, None), (0, 5, -most, None)]
    assert rows_of(node_of("changes", AggregateCall("s", "sum", "v")), *lives) == [(0, 0), (5, None)]


def test_lives_that_touch_are_two_births() -> None:
    lives = (0, 3, 0, None), (3, 5, 0, None), (4, 6, 0, None), (6, 6, 0, None), (6, LAST_TIME_US, 0, None), (8, 9, 0, None)
    assert rows_of(node_of("births"), *lives) == [(0,), (3,), (6,)]


def test_boundaries_end_where_nothing_happens_any_more() -> None:
    """A row never dies: the boundaries up to the last birth or death come out, whenever it comes."""
    node = node_of("boundaries", AggregateCall("n", "count"), every_us=10)
    lives = (-20, 0, 0, None), (10, LAST_TIME_US, 0, None), (10, 30, 0, None), (70, 70, 0, None), (60, 80, 0, None)
    wanted = [(-20, 1), (-10, 1), (10, 2), (20, 2), (30, 1), (40, 1), (50, 1), (60, 2), (70, 2), (80, 1)]
    for watermarks in ([], [(3, 50)], [(1, 5), (3, 30), (3, 31), (3, 50), (4, 55)], [(3, 25), (3, 60)]):
        assert rows_of(node, *lives, watermarks=watermarks) == wanted


@pytest.mark.parametrize("in_order", [True, False])
def test_many_rows_alive_in_one_group_and_many_groups(in_order: bool) -> None:
    """Against NumPy: all rows of some time are alive, so their ends would be quadratic if each instant looked at them all, and
    so would sorting be of rows that come in any order."""
    n = 40_000
    random = np.random.default_rng(1)
    ts = random.integers(0, 1 << 20, n)
    ts = np.sort(ts) if in_order else ts
    v = random.integers(-1000, 1000, n)
    names = {"born": ts, "dead": ts + (1 << 19), "v": v}
    node = node_of("changes", AggregateCall("n", "count"), AggregateCall("s", "sum", "v"), AggregateCall("lo", "min", "v"))
    instance = Instance(node, 1 << 16)
    batch = Columns(pa.record_batch({name: pa.array(values) for name, values in names.items()}))
    rows = TupleBatch(np.zeros(n, np.int64), ts, np.arange(n, dtype=np.uint64), ts, None, batch.select(["v", "born", "dead"]))
    instance.limits = Limits(1 << 16, 1 << 30)
    instance.operator = instance._new()
    instance.operator._accumulate(rows, np.zeros(n, np.int64), "epoch 0")
    found = [values for rows, _ in instance.operator._closed(END_OF_TIME_US) for _, _, values in decoded([rows])]
    instants = np.unique(np.concatenate([names["born"], names["dead"]]))
    assert [values[0] for values in found] == instants.tolist()
    for at in random.integers(0, len(instants), 50).tolist():
        alive = v[(ts <= instants[at]) & (instants[at] < names["dead"])]
        assert found[at][1:] == (len(alive), int(alive.sum()) if len(alive) else None, int(alive.min()) if len(alive) else None)


@pytest.mark.parametrize("planted", ["", "take_chunk", "export_group"])
def test_totals_go_with_a_partition_group(planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """planted: what does not forget the totals at the last watermark."""
    node = plan.LiveGroups("g", "a", ("k",), "born", "dead", PLAIN[:1], "as_of", EVERY, "changes", 0)
    rows = [Row(i, 0, (i, "", None, None, 0, 20)) for i in range(4)]

    def moved() -> None:
        first, second = Instance(node), Instance(node)
        found = [*first.deliver(rows[:2], 10), *second.deliver(rows[2:], 10)]
        second.take_from(first, group_of(node, rows[0]))
        found += [*first.deliver([], END_OF_TIME_US), *second.deliver([], END_OF_TIME_US)]
        same_rows(decoded(found), expected(Case(node, rows, [])))

    if not planted:
        moved()
        return
    monkeypatch.setattr(LiveGroups, planted, getattr(RowsOperator, planted))
    with pytest.raises(AssertionError, match="totals that the rows do not have"):
        moved()


# ---------------------------------------------------------------- planted bugs


def _death_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """The last row of a piece does not die."""
    events = life_kernel._events_of

    def forgetful(rows: I64, times: I64, group: I64, count: int) -> tuple[I64, I64]:
        return events(rows[:-1] if len(rows) > 1 else rows, times, group, count)

    monkeypatch.setattr(life_kernel, "_events_of", forgetful)


def _alive_at_its_death(monkeypatch: pytest.MonkeyPatch) -> None:
    """<= for <: a row is alive until its death, that instant included."""
    lives = LifeColumns.lives

    def longer(self: LifeColumns, rows: TupleBatch) -> TupleBatch:
        found = lives(self, rows)
        return replace(found, key=np.where(found.key < LAST_TIME_US, found.key + 1, found.key))

    monkeypatch.setattr(LifeColumns, "lives", longer)


def _equal_value_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    """The front has an equal value once, that of the row which was born first."""

    def once(span: Any, lives: Any, values: Sequence[Any], *more: Any) -> life_kernel.Sweep:
        dropped = []
        for value in values:
            seen: set[tuple[int, int]] = set()
            first = np.zeros(len(value.words), np.bool_)
            for i in np.argsort(lives.born, kind="stable").tolist():
                pair = int(lives.group[i]), int(value.words[i])
                first[i] = value.accumulation not in (3, 4) or pair not in seen
                seen |= {pair} if value.born[i] else set()
            dropped.append(value._replace(born=value.born & first, died=value.died & first))
        return life_kernel.Sweep(span, lives, dropped, *more)

    monkeypatch.setattr(operator, "Sweep", once)


def _touching_values_die(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of different values each row counts for itself."""
    ones = life_kernel.first_of_values

    def apart(lives: Any, words: I64, valid: Any) -> Any:
        return ones(lives._replace(group=np.arange(len(words))), words, valid)

    monkeypatch.setattr(operator, "first_of_values", apart)


def _dropped_at_the_watermark(monkeypatch: pytest.MonkeyPatch) -> None:
    needed = LiveGroups._needed

    def hasty(self: LiveGroups, watermark_us: int) -> Any:
        return needed(self, watermark_us) & (self._kept.rows.key > watermark_us)

    monkeypatch.setattr(LiveGroups, "_needed", hasty)


def _last_death_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveGroups, "_needed", lambda self, us: (self._kept.rows.key >= us) & (us < END_OF_TIME_US))


def _boundaries_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those of a row that never dies come out up to the watermark, but for the end."""
    last = operator._last

    def beyond(lives: Any, count: int, us: int) -> I64:
        return last(lives, count, us) if us == END_OF_TIME_US else np.full(count, END_OF_TIME_US)

    monkeypatch.setattr(operator, "_last", beyond)


BUGS = {
    "a death that is forgotten": _death_forgotten,
    "<= for < at a death": _alive_at_its_death,
    "a front that drops an equal value": _equal_value_dropped,
    "equal values apart": _touching_values_die,
    "a row that is dropped at its death": _dropped_at_the_watermark,
    "the last death forgotten": _last_death_forgotten,
    "boundaries that do not wait": _boundaries_go_on,
}


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    BUGS[name](monkeypatch)

    @settings(
        max_examples=1500,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(cases())
    def property_holds(case: Case) -> None:
        check(case)

    by_hand = name == "the last death forgotten"  # random cases hardly ever show it
    with pytest.raises((AssertionError, RunFailed)):
        (test_boundaries_end_where_nothing_happens_any_more if by_hand else property_holds)()


# ---------------------------------------------------------------- what is refused


@pytest.mark.parametrize(
    ("mode", "row", "problem"),
    [
        ("changes", (5, 4, 9), "born is before the row's time"),
        ("changes", (5, 4, 4), "born is before the row's time"),
        ("changes", (5, 5, 40), "dead is more than 20 us after its time"),
        ("births", (5, 5, LAST_TIME_US), "dead is more than 20 us after its time"),
        ("boundaries", (5, 7, 8), "born or dead is no multiple of 4 us"),
        ("boundaries", (5, 8, 13), "born or dead is no multiple of 4 us"),
        ("changes", (5, LAST_TIME_US + 1, LAST_TIME_US + 2), "beyond all times"),
    ],
)
def test_lives_that_break_the_rules(mode: Any, row: tuple[int, int, int], problem: str) -> None:
    ts, born, dead = row
    node = plan.LiveGroups("g", "a", ("k",), "born", "dead", (), "as_of", EVERY, mode, 20)
    with pytest.raises(RunFailed) as failed:
        Instance(node).deliver([Row(0, 0, (0, "", 0, 0.0, 0, 4)), Row(1, ts, (0, "", 0, 0.0, born, dead))], 0)
    assert str(failed.value) == f"slave 0, epoch 0: g: a row of time {ts} us lives from {born} us to {dead} us: {problem}"


def test_a_row_without_a_birth_or_that_comes_late() -> None:
    node = plan.LiveGroups("g", "a", ("k",), "born", "dead")
    with pytest.raises(RunFailed, match="g: dead is null in 1 rows; give every row a birth and a death"):
        Instance(node).deliver([Row(0, 0, (0, "", 0, 0.0, 1, None))], 0)
    instance = Instance(node)
    instance.deliver([], 8)
    with pytest.raises(RunFailed, match="slave 0, epoch 0: a row of time 7 us came after its life had ended"):
        instance.deliver([Row(0, 7, (0, "", 0, 0.0, 7, 9))], 9)


def test_memory_is_limited_and_given_back() -> None:
    node = plan.LiveGroups("g", "a", ("k",), "born", "dead", (AggregateCall("s", "sum", "x"),))
    instance = Instance(node)
    rows = [Row(i, i, (i, "", 0, 0.5, i, i + 10 if i % 2 else LAST_TIME_US)) for i in range(100)]
    instance.deliver(rows, 200)
    assert instance.operator.window_tuples() == (50, 0)  # those that never die
    assert 50 * 57 <= instance.operator.window_bytes() <= 50 * 100
    with pytest.raises(RunFailed, match=r"windows hold \d+ bytes, above the limit of 1048576 \(module.window_bytes\)"):
        instance.deliver([Row(i, 200, (i, "", 0, 0.5, 200, 300)) for i in range(20_000)], 200)


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"born": "x"}, "g: column x is double; give int64, microseconds"),
        ({"dead": "no"}, "g: no column no; columns are k, t, v, x, born, dead"),
        ({"mode": "istream"}, "g: mode istream; use changes, boundaries, births"),
        ({"mode": "boundaries"}, "g: a boundary every 0 us; give a time above zero"),
        ({"longest_us": -1}, "g: lives of -1 us; give a time above zero, or 0: unknown"),
        ({"mode": "births"}, "g: births of groups have no aggregates; leave the calls out"),
        ({"as_of": "k"}, "g: two columns are named k; name each once"),
        ({"calls": (AggregateCall("a", "avg", "v"),)}, "g: avg of rows that are alive; use count, sum, min, max"),
        ({"calls": (AggregateCall("a", "min", "v", place=2),)}, "g: min 2 of rows that are alive; use count, sum, min, max"),
        ({"calls": (AggregateCall("a", "min", "t"),)}, "g: min of string; cast it to BIGINT or DOUBLE"),
        (
            {"calls": (AggregateCall("a", "min", "v", distinct=True),)},
            "g: min(DISTINCT ...) is not supported; leave DISTINCT out",
        ),
        ({"calls": (AggregateCall("a", "sum"),)}, "g: sum needs a column; name one"),
    ],
)
def test_nodes_that_are_refused(changes: dict[str, Any], problem: str) -> None:
    node = plan.LiveGroups("g", "a", ("k",), "born", "dead", (AggregateCall("n", "count"),))
    with pytest.raises(UserError) as refused:
        live_types(replace(node, **changes), TYPES, "ts")
    assert str(refused.value) == problem
    with pytest.raises(UserError, match="g: input a has no time; name the time column of its sources"):
        live_types(node, TYPES, None)
