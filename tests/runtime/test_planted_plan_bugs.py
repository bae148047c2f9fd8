"""Planted bugs of merging, watermarks, credit and the exchange: the simulator's checkers and the oracle of plans must catch
each one in 5 of 60 random plans. Without a bug the same plans are right (`test_plans`)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from benchmarks.baselines.best_effort_merger import BestEffortMerger
from swjoin.cluster import exchange
from swjoin.cluster.exchange import EpochHeader, Keyed, KeyedEdge, Outlet, PlacesInUse
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import Granted
from swjoin.cluster.role import Effect, Send
from swjoin.cluster.slave import stage
from swjoin.cluster.slave.merger import Merger, Piece
from swjoin.cluster.slave.stage import StageInstance
from swjoin.core.batch import LEFT, RIGHT, Pairs, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.key_encoder import KeyEncoder
from swjoin.expressions import chain
from swjoin.expressions.chain import Selection
from swjoin.expressions.evaluator import evaluate
from swjoin.operators.join_step import AnyStep
from swjoin.operators.join_windows import JoinWindows
from swjoin.plan import logical
from swjoin.plan.logical import Union, UnionInput
from swjoin.plan.stages import Edge
from swjoin.runtime.simulator.simulator import Simulation
from tests.support.planted import texts
from tests.tools.random_plans import PlanScenario, simulate

SEEDS, ENOUGH = 60, 5
TIGHT = (  # need short epochs of rows in order of arrival, or many rows in unions
    "the greatest watermark of the senders",
    "< for <= in windows",
    "a union that deduplicates",
)
SMALL_PARTS = ("a watermark moved by a part that is not final",)
Monkey = pytest.MonkeyPatch


FIRST = {  # plans that tell; when what is drawn has changed, other ones do
    "a watermark moved by a part that is not final": 27,
    "a join's promise without the window": 44,
    "a promise of what is to come": 14,
    "a promise before its rows": 14,
    "< for <= at an edge": 17,
    "a union that keeps ids": 16,
    "a hash taken for equality": 16,
}


def _caught(enough: int = ENOUGH, name: str = "", most: int = SEEDS) -> list[str]:
    """Complaints, until there are enough, of so many plans at most. name: of a bug, which may need other plans."""
    first = FIRST.get(name, 0)
    if name in TIGHT:
        plans = itertools.islice(_tight_plans(), most)
    else:
        drawn = (PlanScenario.draw(seed, calm=True) for seed in itertools.chain(range(first, most), range(first)))
        plans = (replace(plan, part_rows=1) for plan in drawn) if name in SMALL_PARTS else drawn
    found = texts(plans, lambda scenario: simulate(scenario, scenario.evaluated()["out"]))
    return list(itertools.islice(found, enough))


def _tight_plans() -> Iterator[PlanScenario]:
    """With a union of several inputs, in epochs of five tuples."""
    for seed in itertools.count():
        calm = PlanScenario.draw(seed, calm=True)
        unions = [node for node in calm.plan.nodes if isinstance(node, Union) and len(set(node.inputs)) > 1]
        if unions and 30 <= sum(map(len, calm.rows.values())) <= 120:
            cluster = replace(calm.config.cluster, distribution_epoch_us=0, epoch_tuples=5)
            yield replace(calm, config=replace(calm.config, pace="asap", cluster=cluster), batch_rows=1)


def _moved(watermark_us: int, by_us: int) -> int:
    return watermark_us if watermark_us in (BEGIN_OF_TIME_US, END_OF_TIME_US) else watermark_us + by_us


# ---------------------------------------------------------------- merging and watermarks


class _Forgiving(set[Any]):
    remove = set.discard


def _short_of_one_sender(monkeypatch: Monkey) -> None:
    next_epoch = Merger._next_epoch

    def short(self: Merger) -> None:
        next_epoch(self)
        self._missing = _Forgiving(sorted(self.feeds)[: max(1, len(self.feeds) - 1)])

    monkeypatch.setattr(Merger, "_next_epoch", short)


def _moved_by_any_part(monkeypatch: Monkey) -> None:
    """Each piece moves the watermarks to those of the final parts that have come, also when others are missing."""
    take = Merger.take

    def hasty(self: Merger) -> Piece:
        piece = take(self)
        if not piece.final:
            self.times_us = self._least(LEFT), self._least(RIGHT)
            piece.times_us = self.times_us
        return piece

    monkeypatch.setattr(Merger, "take", hasty)


def _greatest_of_senders(monkeypatch: Monkey) -> None:
    def greatest(self: Merger, port: int) -> int:
        return max((feed.next_watermark_us for feed in self.feeds.values() if feed.port == port), default=END_OF_TIME_US)

    monkeypatch.setattr(Merger, "_least", greatest)


def _promise_without_the_window(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(stage, "watermark_out", lambda join, inputs: min(inputs))


def _promise_of_what_is_to_come(monkeypatch: Monkey) -> None:
    rule = stage.watermark_out
    monkeypatch.setattr(stage, "watermark_out", lambda join, inputs: _moved(rule(join, inputs), 50))


def _promise_before_its_rows(monkeypatch: Monkey) -> None:
    """The final parts of a stage leave before the rows of its epoch."""
    close = Outlet.close

    def early(self: Outlet, header: EpochHeader, watermarks_us: Mapping[int, int]) -> None:
        held = {} if header.last else {edge: (sending.rows, sending.row_count) for edge, sending in self._sendings.items()}
        for edge in held:
            self._sendings[edge].rows, self._sendings[edge].row_count = [], 0
        close(self, header, watermarks_us)
        for edge, (rows, count) in held.items():
            self._sendings[edge].rows, self._sendings[edge].row_count = rows, count

    def end(self: StageInstance, delivery: Delivery) -> list[Effect]:
        monkeypatch.setattr(Outlet, "close", early)
        try:
            return real_end(self, delivery)
        finally:
            monkeypatch.setattr(Outlet, "close", close)

    real_end = StageInstance.end
    monkeypatch.setattr(StageInstance, "end", end)


def _strict_promise(monkeypatch: Monkey) -> None:
    """`<` for `<=`: later rows are taken to be above the watermark."""
    close = Outlet.close

    def strict(self: Outlet, header: EpochHeader, watermarks_us: Mapping[int, int]) -> None:
        close(self, header, {edge: _moved(time_us, 1) for edge, time_us in watermarks_us.items()})

    monkeypatch.setattr(Outlet, "close", strict)


def _strict_windows(monkeypatch: Monkey) -> None:
    """`<=` for `<`: windows forget rows that are as old as a partner may be."""
    dead_below = JoinWindows.dead_below

    def early(self: JoinWindows) -> Any:
        left_us, right_us = dead_below(self)
        return _moved(left_us, 1), _moved(right_us, 1)

    monkeypatch.setattr(JoinWindows, "dead_below", early)


# ---------------------------------------------------------------- rows


def _union_without_ids(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(logical, "union_row_ids", lambda index, ids: ids)


def _keyed_by(change: Callable[[KeyedEdge, Keyed], Keyed]) -> Callable[[Monkey], None]:
    keyed = KeyedEdge.keyed

    def changed(self: KeyedEdge, rows: TupleBatch, places: PlacesInUse | None) -> Keyed:
        return change(self, keyed(self, rows, places))

    return lambda monkeypatch: monkeypatch.setattr(KeyedEdge, "keyed", changed)


def _distinct(edge: KeyedEdge, keyed: Keyed) -> Keyed:
    """Of a union's rows, those with a key and a time of their own."""
    rows = keyed.rows
    if not any(isinstance(step, UnionInput) for step in edge.steps) or not len(rows) or keyed.groups is not None:
        return keyed
    return keyed._replace(rows=rows.take(np.sort(np.unique(np.stack([rows.key, rows.ts]), axis=1, return_index=True)[1])))


def _hash_for_equality(monkeypatch: Monkey) -> None:
    """Hashes, of which many are equal, are joined as keys."""
    _short_hashes(monkeypatch)
    packed = StageInstance._packed

    def hashes(self: StageInstance, port: int, batches: list[TupleBatch]) -> TupleBatch:
        batch = packed(self, port, batches)
        return batch if self.keys.native or not batches else replace(batch, key=TupleBatch.concat(batches).key)

    monkeypatch.setattr(StageInstance, "_packed", hashes)


def _short_hashes(monkeypatch: Monkey) -> None:
    hashed = KeyEncoder.hashed

    def short(self: KeyEncoder, columns: list[Any]) -> Any:
        keys, valid = hashed(self, columns)
        return keys if self.native else keys & 1, valid

    monkeypatch.setattr(KeyEncoder, "hashed", short)


def _null_keys_are_equal(monkeypatch: Monkey) -> None:
    hashed = KeyEncoder.hashed
    monkeypatch.setattr(KeyEncoder, "hashed", lambda self, columns: (hashed(self, columns)[0], None))


def _key_of_the_edge_before(monkeypatch: Monkey) -> None:
    """Rows of a stage have the key by which they were joined, not that of the edge over which they leave."""
    keys: list[Any] = []
    emit, hashed = StageInstance.emit, KeyEncoder.hashed

    def noting(self: StageInstance, step: AnyStep, delivery: Delivery) -> list[Effect]:
        keys.append(step.pairs.key if isinstance(step.pairs, Pairs) else np.empty(0, np.int64))
        try:
            return emit(self, step, delivery)
        finally:
            keys.pop()

    def stale(self: KeyEncoder, columns: list[Any]) -> Any:
        found, valid = hashed(self, columns)
        return (keys[-1] if keys and len(keys[-1]) == len(found) else found), valid

    monkeypatch.setattr(StageInstance, "emit", noting)
    monkeypatch.setattr(KeyEncoder, "hashed", stale)


# ---------------------------------------------------------------- parts and credit


def _served_by(change: Callable[[Send, int], list[Effect]]) -> Callable[[Monkey], None]:
    """change: of the part that is sent as the n-th one of an outlet."""

    def plant(monkeypatch: Monkey) -> None:
        serve = Outlet.serve

        def changed(self: Outlet) -> list[Effect]:
            before = sum(receiver.sent for receiver in self._receivers.values())
            sends = [effect for effect in serve(self) if isinstance(effect, Send)]
            return [out for i, send in enumerate(sends) for out in change(send, before + i)]

        monkeypatch.setattr(Outlet, "serve", changed)
        monkeypatch.setattr(Simulation, "MAX_STEPS", 10_000)

    return plant


def _credit_ignored(monkeypatch: Monkey) -> None:
    """A sender begins epochs that its receivers do not take yet."""
    monkeypatch.setattr(exchange._Receiver, "ready", property(lambda self: bool(self.parts)))


def _null_keys_are_dropped(edge: KeyedEdge, keyed: Keyed) -> Keyed:
    return keyed._replace(null_keys=keyed.null_keys.slice(0, 0))


def _null_is_satisfied(monkeypatch: Monkey) -> None:
    monkeypatch.setattr(chain, "satisfied", lambda condition, rows: evaluate(condition, rows).fill_null(True).to_numpy(False))


def _filtered_columns_of_others(monkeypatch: Monkey) -> None:
    """A filter drops as many rows as it must, but the last ones of the columns."""
    chosen = Selection.__call__

    def wrong(self: Selection, rows: TupleBatch) -> TupleBatch:
        found = chosen(self, rows)
        assert rows.columns is not None
        return replace(found, columns=rows.columns.slice(0, len(found)))

    monkeypatch.setattr(Selection, "__call__", wrong)


def _filters_forgotten(monkeypatch: Monkey) -> None:
    """The last filter of every edge is not done."""
    of = KeyedEdge.of

    def without(instances: Instances, edge: Edge) -> KeyedEdge:
        made = of(instances, edge)
        filters = [step for step in made.steps if isinstance(step, Selection)]
        return replace(made, steps=tuple(step for step in made.steps if step not in filters[-1:]))

    monkeypatch.setattr(KeyedEdge, "of", staticmethod(without))


BUGS: dict[str, Callable[[Monkey], None]] = {
    "a merger short of one sender": _short_of_one_sender,
    "a watermark moved by a part that is not final": _moved_by_any_part,
    "the greatest watermark of the senders": _greatest_of_senders,
    "a join's promise without the window": _promise_without_the_window,
    "a promise of what is to come": _promise_of_what_is_to_come,
    "a promise before its rows": _promise_before_its_rows,
    "< for <= at an edge": _strict_promise,
    "< for <= in windows": _strict_windows,
    "a union that keeps ids": _union_without_ids,
    "a union that deduplicates": _keyed_by(_distinct),
    "a hash taken for equality": _hash_for_equality,
    "null keys are equal": _null_keys_are_equal,
    "null keys are dropped": _keyed_by(_null_keys_are_dropped),
    "the key of another edge": _key_of_the_edge_before,
    "null satisfies a filter": _null_is_satisfied,
    "a filter that moves columns": _filtered_columns_of_others,
    "the last filter of an edge forgotten": _filters_forgotten,
    "a part lost": _served_by(lambda send, n: [] if n == 5 else [send]),
    "a part twice": _served_by(lambda send, n: [send] * (1 + (n == 5))),
    "credit ignored": _credit_ignored,
}


@pytest.mark.drawn
@pytest.mark.parametrize("enough", [1, pytest.param(ENOUGH, marks=pytest.mark.long)])
@pytest.mark.parametrize("name", BUGS)
def test_planted_bugs_are_caught(name: str, enough: int, monkeypatch: Monkey) -> None:
    BUGS[name](monkeypatch)
    monkeypatch.setattr(
        Simulation, "MAX_STEPS", 20_000
    )  # the plans need fewer than 10,000; in realtime pace a run that waits for ever goes on ticking
    assert len(_caught(enough, name, SEEDS if enough == 1 else 3 * SEEDS)) == enough


@pytest.mark.long
def test_plans_in_short_epochs_are_right() -> None:
    assert not _caught(name=TIGHT[0])


def test_best_effort_merging_is_wrong(monkeypatch: Monkey) -> None:
    """The baseline of the benchmark takes every row, and its answers are not the oracle's."""
    monkeypatch.setattr(stage, "Merger", BestEffortMerger)
    found = texts(itertools.islice(_tight_plans(), 30), lambda scenario: simulate(scenario, scenario.evaluated()["out"]))
    assert any("the oracle has" in text for text in found)


def test_equal_hashes_of_other_keys_do_no_harm(monkeypatch: Monkey) -> None:
    """Hashes only route: with two of them for all strings, every answer is right."""
    _short_hashes(monkeypatch)
    assert not _caught(most=20)


def test_lost_credit_is_caught(monkeypatch: Monkey) -> None:
    """Credit is a total, so the last one is lost: its sender waits for ever, and so do the others."""
    joined = StageInstance.joined

    def silent(self: StageInstance, *, ended: bool) -> list[Effect]:
        assert self._open is not None
        last = self._open.last and self._open.final
        return [e for e in joined(self, ended=ended) if not (last and isinstance(e, Send) and isinstance(e.message, Granted))]

    monkeypatch.setattr(StageInstance, "joined", silent)
    monkeypatch.setattr(Simulation, "MAX_STEPS", 10_000)  # in realtime pace a run that waits for ever goes on ticking
    found = _caught()
    assert len(found) == ENOUGH
    assert all(text.startswith(("every role waits for another", "no end in sight")) for text in found)
    assert sum(text.startswith("every role waits for another") for text in found) >= 3
