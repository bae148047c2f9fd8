"""Planted bugs of aggregates: panes, windows, watermarks, moves and recovery. The simulator's checkers and the oracle of plans
must catch each one in 3 of 40 random plans with aggregates. Without a bug the same plans are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from functools import cache

import numpy as np
import pytest

from swjoin.cluster.slave import stage
from swjoin.core.batch import I64, Bool
from swjoin.core.data_messages import StateChunk
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.aggregation import Aggregation
from swjoin.plan.aggregates import Aggregate
from swjoin.plan.logical import Node
from swjoin.plan.watermarks import needed_below, watermark_out
from swjoin.state.group_table import GroupTable
from tests.support.planted import caught, restored
from tests.tools.random_plans import PlanScenario

PLANS, ENOUGH = 40, 2
Monkey = pytest.MonkeyPatch


def _drawn() -> Iterator[PlanScenario]:
    """Plans with aggregates whose results have rows."""
    for seed in itertools.count(20_000):
        scenario = PlanScenario.draw(seed)
        if any(isinstance(node, Aggregate) and scenario.evaluated()[node.name] for node in scenario.plan.nodes):
            yield scenario


@cache
def _plans() -> tuple[PlanScenario, ...]:
    return tuple(itertools.islice(_drawn(), PLANS))


def _closed_too_early(monkeypatch: Monkey) -> None:
    """A window closes when the watermark is its last microsecond."""
    closed = Aggregation._closed
    monkeypatch.setattr(Aggregation, "_closed", lambda self, us: closed(self, us + (us < END_OF_TIME_US)))


def _first_pane_only(monkeypatch: Monkey) -> None:
    table_of = Aggregation._table_of

    def first(self: Aggregation, start_us: int) -> GroupTable:
        kept = self._panes
        self._panes = {min(kept): kept[min(kept)]}
        out = table_of(self, start_us) if min(kept) >= start_us else GroupTable(self._kinds)
        self._panes = kept
        return out

    monkeypatch.setattr(Aggregation, "_table_of", first)


def _promise_of_the_end(monkeypatch: Monkey) -> None:
    """As if a window's rows had its end as time, and one more."""

    def hasty(node: Node, inputs: Sequence[int]) -> int:
        found = watermark_out(node, inputs)
        bounded = isinstance(node, Aggregate) and BEGIN_OF_TIME_US < found < END_OF_TIME_US
        return found + (node.windows.size_us + 1 if bounded and isinstance(node, Aggregate) else 0)

    monkeypatch.setattr(stage, "watermark_out", hasty)


def _null_is_zero(monkeypatch: Monkey) -> None:
    encode = GroupKeys.encode

    def without(self: GroupKeys, columns: object, count: int) -> tuple[I64, Bool]:
        return encode(self, columns, count)[0], np.zeros(count, np.bool_)  # type: ignore[arg-type]

    monkeypatch.setattr(GroupKeys, "encode", without)


def _empty_group_after_a_move(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(Aggregation, "take_chunk", lambda self, chunk: None)


def _left_behind(monkeypatch: Monkey) -> None:
    """The supplier keeps its groups, too."""
    monkeypatch.setattr(GroupTable, "without", lambda self, group: self)


def _other_codes(monkeypatch: Monkey) -> None:
    """The keys of a group that moves are not those of its consumer."""
    take = Aggregation.take_chunk

    def odd(self: Aggregation, chunk: StateChunk) -> None:
        chunk.tuples.key[:] = np.roll(chunk.tuples.key, 1)
        take(self, chunk)

    monkeypatch.setattr(Aggregation, "take_chunk", odd)


def _out_again(monkeypatch: Monkey) -> None:
    """After a restore, windows that were closed come out again."""
    monkeypatch.setattr(Aggregation, "restored", lambda self, times_us: None)


def _nothing_needed(monkeypatch: Monkey) -> None:
    """A checkpoint forgets rows of open windows."""

    def forgetful(node: object, inputs: object) -> tuple[int, int]:
        return (inputs[0], END_OF_TIME_US) if isinstance(node, Aggregate) else needed_below(node, inputs)  # type: ignore

    monkeypatch.setattr(stage, "needed_below", forgetful)


def _ended_windows_stay(monkeypatch: Monkey) -> None:
    """A bucket keeps the groups of windows that are out."""
    monkeypatch.setattr(Aggregation, "_open_part", lambda self, start_us, pane: pane)


def _open_windows_come_out(monkeypatch: Monkey) -> None:
    """All windows of a bucket come out with the first one that ends."""
    pieces = Aggregation._pieces
    monkeypatch.setattr(Aggregation, "_pieces", lambda self, start_us, end_us, table: pieces(self, start_us, 1 << 62, table))


def _panes_as_long_as_slides(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(TimeWindows, "pane_us", property(lambda self: self.slide_us))


def _edge_in_the_window_before(monkeypatch: Monkey) -> None:
    panes = TimeWindows.panes
    monkeypatch.setattr(TimeWindows, "panes", lambda self, ts: panes(self, ts - 1))


BUGS: dict[str, Callable[[Monkey], None]] = {
    "a window closed before its last microsecond": _closed_too_early,
    "the first pane only": _first_pane_only,
    "a promise beyond the window": _promise_of_the_end,
    "null taken for zero": _null_is_zero,
    "an empty group after a move": _empty_group_after_a_move,
    "groups left behind by a move": _left_behind,
    "codes of another instance": _other_codes,
    "windows that come out again after a restore": _out_again,
    "rows of open windows that a checkpoint forgets": _nothing_needed,
    "groups of ended windows that stay in their bucket": _ended_windows_stay,
    "open windows of a bucket that come out": _open_windows_come_out,
    "panes as long as slides": _panes_as_long_as_slides,
    "< for <= at a window's edge": _edge_in_the_window_before,
}

AFTER_A_CRASH = ("windows that come out again after a restore", "rows of open windows that a checkpoint forgets")
RARE = ("null taken for zero", "windows that come out again after a restore")


@pytest.mark.drawn
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, monkeypatch: Monkey) -> None:
    plans, enough = (restored(_plans(), 70, 50) if name in AFTER_A_CRASH else _plans()), (1 if name in RARE else ENOUGH)
    BUGS[name](monkeypatch)
    assert len(caught(plans, enough)) == enough


@pytest.mark.drawn
def test_without_a_bug_the_plans_are_right() -> None:
    assert caught([*_plans(), *restored(_plans(), 70, 50)], 1) == []
    assert any(plan.crashes for plan in _plans())
    assert sum(plan.config.reorganization.policy == "random" for plan in _plans()) > PLANS // 4
