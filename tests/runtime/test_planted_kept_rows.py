"""Bugs planted into top-n, sessions, windows of tuples or aligned to data, views, and calls that rows decide must be caught by
random plans in the simulator."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.slave import stage
from swjoin.core.aggregate_columns import AggregateColumns, Call
from swjoin.core.batch import I64, TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.kept_columns import RankColumns
from swjoin.operators.aggregation import Aggregation
from swjoin.operators.deciding_rows import DecidingRows
from swjoin.operators.group_windows import AlignedWindows, TupleWindows, Views, _Closing
from swjoin.operators.kept_rows import KeptRows, RowsOperator
from swjoin.operators.ranking import Ranking
from swjoin.operators.running_aggregation import RunningAggregation
from swjoin.operators.sessions import Sessions
from swjoin.plan import aggregates, kept_rows
from swjoin.plan.logical import LogicalPlan, Node
from swjoin.plan.watermarks import needed_below, watermark_out
from tests.support.planted import caught, in_motion, may_move, restored
from tests.tools.plan_oracle import evaluate
from tests.tools.random_plans import PlanScenario

PLANS = 14
OF_VIEWS = [50231, 50254, 50262, 50265, 50272, 50281, 50284, 50287, 50307, 50326, 50327, 50352, 50383, 50550, 50608, 50639]
Monkey = pytest.MonkeyPatch


def _decided(node: Node, functions: Sequence[str]) -> bool:
    """Whether it calls one of these functions, or one of different values."""
    calls = node.calls if isinstance(node, aggregates.Aggregate) else ()
    return any(call.function in functions or (call.distinct and not functions) for call in calls)


def _picks(node: aggregates.Aggregate) -> bool:
    return any(call.function in ("first", "last") for call in node.calls)


@cache
def _plans(kind: str) -> tuple[PlanScenario, ...]:
    """Plans whose results have rows, with such a node."""
    of, _, moving = kind.partition(" that ")
    wanted: dict[str, Callable[[Node], bool]] = {
        "top": lambda node: isinstance(node, kept_rows.Ranked),
        "sessions": lambda node: isinstance(node, kept_rows.Sessions),
        "tuples": lambda node: isinstance(node, kept_rows.TupleWindows),
        "aligned": lambda node: isinstance(node, kept_rows.AlignedWindows),
        "aligned by start": lambda node: isinstance(node, kept_rows.AlignedWindows) and node.output_time == "start",
        "ordered calls": lambda node: isinstance(node, aggregates.Aggregate) and node.order == "row" and _picks(node),
        "calls": lambda node: _decided(node, ("first", "last", "arg_min", "arg_max")),
        "last": lambda node: _decided(node, ("last",)),
        "distinct": lambda node: _decided(node, ()),
        "views": lambda node: isinstance(node, kept_rows.Views),
    }
    if of == "views":
        seeds = [PlanScenario.draw(seed) for seed in OF_VIEWS]
        assert all(any(map(wanted[of], s.plan.nodes)) for s in seeds), "plans without views"
        return tuple(map(_in_motion, seeds) if moving else seeds)
    repeated = of in ("tuples", "aligned", "aligned by start", "ordered calls")
    drawn = (PlanScenario.draw(seed) for seed in itertools.count(30_000))
    drawn = (s for s in drawn if any(isinstance(node, kept_rows.Repeated) for node in s.plan.nodes) == repeated)
    suited = (s for s in drawn if any(map(wanted[of], s.plan.nodes)) and (not moving or may_move(s)))
    ready = map(_in_motion, suited) if moving else suited
    least = 20 if moving else 1
    good = (s for s in ready if any(wanted[of](n) and len(s.evaluated()[n.name]) >= least for n in s.plan.nodes))
    good = (s for s in good if of != "distinct" or _repeats(s))
    return tuple(itertools.islice(good, PLANS // 2 if moving else PLANS))


def _repeats(scenario: PlanScenario) -> bool:
    """Whether a call of different values has equal ones, so that the answer shows it."""
    nodes = []
    for node in scenario.plan.nodes:
        if isinstance(node, aggregates.Aggregate):
            node = replace(node, calls=tuple(replace(call, distinct=False) for call in node.calls))
        nodes.append(node)
    other = evaluate(LogicalPlan(tuple(nodes)), scenario.good_rows())
    return Counter(row.values for row in other["out"]) != Counter(row.values for row in scenario.evaluated()["out"])


def _in_motion(scenario: PlanScenario) -> PlanScenario:
    """With long sessions, too, so that what moves has rows."""
    nodes = (replace(n, gap_us=20 * n.gap_us) if isinstance(n, kept_rows.Sessions) else n for n in scenario.plan.nodes)
    return in_motion(replace(scenario, plan=LogicalPlan(tuple(nodes))))


def _one_more(monkeypatch: Monkey) -> None:
    """<= n taken for <= n + 1."""
    first = RankColumns.first
    monkeypatch.setattr(RankColumns, "first", lambda self, *given: first(replace(self, most=self.most + 1), *given))


def _ties_as_they_come(monkeypatch: Monkey) -> None:
    first = RankColumns.first

    def tied(self: RankColumns, keys: object, rows: TupleBatch, *more: object) -> tuple[I64, I64]:
        return first(self, keys, replace(rows, id=np.arange(len(rows), dtype=np.uint64)[::-1]), *more)  # type: ignore[arg-type]

    monkeypatch.setattr(RankColumns, "first", tied)


def _cut_down_at_once(monkeypatch: Monkey) -> None:
    """A pane keeps the first rows that come."""
    keep = Ranking._keep

    def hasty(self: Ranking, start_us: int, rows: TupleBatch, groups: I64) -> None:
        keep(self, start_us, rows.slice(0, 1), groups[:1])

    monkeypatch.setattr(Ranking, "_keep", hasty)


def _ended_windows_stay(monkeypatch: Monkey) -> None:
    """A bucket keeps the rows of windows that are out."""
    monkeypatch.setattr(Ranking, "_open_part", lambda self, start_us, pane: pane)


def _gap_itself_inside(monkeypatch: Monkey) -> None:
    """> for >= at a pause of the gap."""
    found = Sessions._found

    def longer(self: Sessions) -> tuple[I64, I64, I64]:
        self._gap_us += 1
        by, starts, ends = found(self)
        self._gap_us -= 1
        return by, starts, ends - 1

    monkeypatch.setattr(Sessions, "_found", longer)


def _ended_at_the_watermark(monkeypatch: Monkey) -> None:
    """A session is out when its last row is below the watermark."""
    closed = Sessions._closed
    monkeypatch.setattr(Sessions, "_closed", lambda self, us: closed(self, min(us + self._gap_us - 1, END_OF_TIME_US)))


def _left_behind(monkeypatch: Monkey) -> None:
    """The supplier keeps rows of a group that has left."""
    monkeypatch.setattr(KeptRows, "take_out", lambda self, group: self.rows.take(np.flatnonzero(self.groups == group)))


def _lost_by_a_move(monkeypatch: Monkey) -> None:
    for operator in (Ranking, RowsOperator):
        monkeypatch.setattr(operator, "take_chunk", lambda self, chunk: None)


def _undecided_after_a_move(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(DecidingRows, "take_out", lambda self, group: [])


def _out_again(monkeypatch: Monkey) -> None:
    for name in ("restored", "restored_until"):
        monkeypatch.setattr(RowsOperator, name, lambda self, times_us: None)


def _with_found(monkeypatch: Monkey, operator: type, changed: Callable[[Any, _Closing], _Closing]) -> None:
    found = operator._found  # type: ignore[attr-defined]
    monkeypatch.setattr(operator, "_found", lambda self, us: changed(self, found(self, us)))


def _numbers_forgotten(monkeypatch: Monkey) -> None:
    """The last row of a group is dropped with its windows, so numbers begin again."""

    def forgetful(self: TupleWindows, closing: _Closing) -> _Closing:
        next_window = np.maximum((closing.final - self._size) // self._slide + 1, 0)
        return closing._replace(kept=closing.kept & ((closing.keys < 0) | (closing.keys >= next_window * self._slide)))

    _with_found(monkeypatch, TupleWindows, forgetful)


def _first_row_forgotten(monkeypatch: Monkey) -> None:
    def forgetful(self: AlignedWindows, closing: _Closing) -> _Closing:
        open_until = closing.base + (closing.rows.ts - closing.base) // self._slide * self._slide + self._size
        return closing._replace(kept=closing.kept & (open_until >= closing.least_us))

    _with_found(monkeypatch, AlignedWindows, forgetful)


def _groups_forgotten(monkeypatch: Monkey) -> None:
    """A group that does not change has no row in later views."""

    def forgetful(self: Views, closing: _Closing) -> _Closing:
        return closing._replace(kept=closing.kept & (closing.rows.ts >= self._final_us))

    _with_found(monkeypatch, Views, forgetful)


def _without_the_last(monkeypatch: Monkey) -> None:
    _with_found(monkeypatch, Views, lambda self, closing: closing._replace(high=closing.high - 1))


def _totals_left_behind(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(RunningAggregation, "_totals_leave", lambda self, group: [])


def _totals_of_the_window(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(RunningAggregation, "_closed", Aggregation._closed)


def _not_in_the_totals(monkeypatch: Monkey) -> None:
    """What is out after a restore is not added to the totals."""
    monkeypatch.setattr(RunningAggregation, "_left", Aggregation._left)


def _half_open(monkeypatch: Monkey) -> None:
    """A row at the end of a window that begins with the first row is not in it."""
    found = AlignedWindows._found

    def shorter(self: AlignedWindows, watermark_us: int) -> _Closing:
        self._size -= 1
        closing = found(self, watermark_us)
        self._size += 1
        return closing

    monkeypatch.setattr(AlignedWindows, "_found", shorter)


def _numbered_at_the_watermark(monkeypatch: Monkey) -> None:
    """A row is numbered while one of its time, with a lower id, can still come."""
    found = TupleWindows._found
    monkeypatch.setattr(TupleWindows, "_found", lambda self, us: found(self, min(us + 1, END_OF_TIME_US)))


def _numbers_lost_by_a_move(monkeypatch: Monkey) -> None:
    take_chunk = RowsOperator.take_chunk

    def nameless(self: RowsOperator, chunk: StateChunk) -> None:
        tuples = replace(chunk.tuples, key=np.full(len(chunk.tuples), -1))
        take_chunk(self, replace(chunk, tuples=tuples))

    monkeypatch.setattr(RowsOperator, "take_chunk", nameless)


def _by_id(monkeypatch: Monkey) -> None:
    """The first row of a window of tuples is the one with the least id."""
    monkeypatch.setattr(AggregateColumns, "_order_of", lambda self, rows: [])


def _promise_of_ends(monkeypatch: Monkey) -> None:
    """As if rows had the times of their windows' ends."""

    def hasty(node: Node, inputs: Sequence[int]) -> int:
        return inputs[0] if isinstance(node, kept_rows.AlignedWindows) else watermark_out(node, inputs)

    monkeypatch.setattr(stage, "watermark_out", hasty)


def _nothing_needed(monkeypatch: Monkey) -> None:
    """A checkpoint forgets rows of open sessions, as if these were as short as windows."""

    def forgetful(node: object, inputs: object) -> tuple[int, int]:
        short = isinstance(node, kept_rows.Sessions | kept_rows.Repeated | aggregates.Aggregate)
        return (inputs[0], END_OF_TIME_US) if short else needed_below(node, inputs)  # type: ignore

    monkeypatch.setattr(stage, "needed_below", forgetful)


def _last_is_first(monkeypatch: Monkey) -> None:
    numbered = AggregateColumns._numbered

    def first(self: AggregateColumns, call: Call, slots: I64, rows: TupleBatch) -> tuple[I64, I64]:
        return numbered(self, call._replace(function="first") if call.function == "last" else call, slots, rows)

    monkeypatch.setattr(AggregateColumns, "_numbered", first)


def _values_apart(monkeypatch: Monkey) -> None:
    """Equal values of several deliveries are not one value."""
    deciding = DecidingRows._deciding

    def twice(self: DecidingRows, call: Call, slots: I64, rows: TupleBatch) -> I64:
        found = deciding(self, call, slots, rows)
        return found if call.of_distinct is None or len(found) == len(rows) else np.append(found, found[:1])

    monkeypatch.setattr(DecidingRows, "_deciding", twice)


def _promise_of_sessions(monkeypatch: Monkey) -> None:
    """As if all open sessions began at the watermark."""

    def hasty(node: Node, inputs: Sequence[int]) -> int:
        found = watermark_out(node, inputs)
        bounded = isinstance(node, kept_rows.Sessions) and BEGIN_OF_TIME_US < found < END_OF_TIME_US
        return found + (node.gap_us if bounded and isinstance(node, kept_rows.Sessions) else 0)

    monkeypatch.setattr(stage, "watermark_out", hasty)


BUGS: dict[str, tuple[str, Callable[[Monkey], None]]] = {
    "a row more than n": ("top", _one_more),
    "ties as rows come": ("top", _ties_as_they_come),
    "a pane that is cut down too early": ("top", _cut_down_at_once),
    "rows of ended windows that stay in their bucket": ("top", _ended_windows_stay),
    "top-n left behind by a move": ("top that moves", _left_behind),
    "top-n lost by a move": ("top that moves", _lost_by_a_move),
    "a pause of the gap inside a session": ("sessions", _gap_itself_inside),
    "a session that is out too early": ("sessions", _ended_at_the_watermark),
    "a promise beyond open sessions": ("sessions", _promise_of_sessions),
    "sessions left behind by a move": ("sessions that move", _left_behind),
    "sessions lost by a move": ("sessions that move", _lost_by_a_move),
    "sessions that come out again after a restore": ("sessions", _out_again),
    "rows of open sessions that a checkpoint forgets": ("sessions", _nothing_needed),
    "numbers that begin again": ("tuples", _numbers_forgotten),
    "a number given at the watermark": ("tuples", _numbered_at_the_watermark),
    "windows of tuples left behind by a move": ("tuples that move", _left_behind),
    "windows of tuples lost by a move": ("tuples that move", _lost_by_a_move),
    "numbers that a move forgets": ("tuples that move", _numbers_lost_by_a_move),
    "windows of tuples that come out again after a restore": ("tuples", _out_again),
    "numbered rows that a checkpoint forgets": ("tuples", _nothing_needed),
    "the least id for the first row of a window": ("ordered calls", _by_id),
    "the first row of a group forgotten": ("aligned", _first_row_forgotten),
    "a window from the first row without its end": ("aligned", _half_open),
    "a promise beyond the starts of open windows": ("aligned by start", _promise_of_ends),
    "windows from the first row lost by a move": ("aligned that move", _lost_by_a_move),
    "the first row of a group that a checkpoint forgets": ("aligned", _nothing_needed),
    "views that lose a group": ("views", _groups_forgotten),
    "views without the last one": ("views", _without_the_last),
    "totals of one window": ("views", _totals_of_the_window),
    "totals that a move leaves behind": ("views that move", _totals_left_behind),
    "views lost by a move": ("views that move", _lost_by_a_move),
    "totals without what was out after a restore": ("views", _not_in_the_totals),
    "views that come out again after a restore": ("views", _out_again),
    "rows of totals that a checkpoint forgets": ("views", _nothing_needed),
    "the first for the last": ("last", _last_is_first),
    "a value that counts twice": ("distinct", _values_apart),
    "deciding rows that a move forgets": ("calls that move", _undecided_after_a_move),
}
AFTER_A_CRASH = ("after a restore", "a checkpoint forgets")


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    kind, plant = BUGS[name]
    plans = restored(_plans(kind)) if name.endswith(AFTER_A_CRASH) else _plans(kind)
    plant(monkeypatch)
    assert caught(plans)


@pytest.mark.drawn
@pytest.mark.parametrize("kind", ["top", "sessions", "calls", "tuples", "aligned", "views"])
def test_without_a_bug_the_plans_are_right(kind: str) -> None:
    assert caught([*_plans(kind), *restored(_plans(kind))]) == []
