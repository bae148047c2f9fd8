"""Planted bugs of several sinks: the simulator's checkers, the sinks' own sums or the oracle must catch each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from swjoin.cluster.collector import Collector
from swjoin.cluster.role import Effect
from swjoin.cluster.slave.results import ResultOutlet
from swjoin.core.data_messages import ResultChunk
from swjoin.core.ids import EpochIndex
from swjoin.runtime.simulator.simulator import Simulation
from swjoin.runtime.simulator.storage import MemorySink
from tests.support.planted import complaints
from tests.tools.random_runs import Scenario

Plant = Callable[[pytest.MonkeyPatch], None]


def _seeds(*, crashing: bool) -> Iterator[int]:
    """Scenarios with several sinks and many tuples."""
    for seed in itertools.count():
        scenario = Scenario.draw(seed)
        crashes = scenario.config.checkpoint.enabled and scenario.crashes
        if scenario.config.sink_count > 1 and sum(map(len, scenario.rows)) > 100 and (crashes or not crashing):
            yield seed


def _results_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    """A further sink's results after the checkpoint stay."""
    restore = MemorySink.restore

    def kept(self: MemorySink, names: Sequence[str], generation: int) -> None:
        if self.number == 0:
            restore(self, names, generation)
        else:
            self.publish([*names, *(name for name, _ in self._sealed)], generation)

    monkeypatch.setattr(MemorySink, "restore", kept)


def _tally_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash a further sink begins with no rows."""
    restore = Collector.restore

    def forgetful(self: Collector, epoch: int, states: Sequence[dict[str, Any]]) -> None:
        restore(self, epoch, states[:1] if self.number == 0 else ())

    monkeypatch.setattr(Collector, "restore", forgetful)


def _end_for_some(monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of an epoch goes to sinks with pairs of it alone."""
    end = ResultOutlet.end

    def some(self: ResultOutlet, chunk: ResultChunk) -> list[Effect]:
        counts = [sums.total[0] for sums in self._of_epoch]
        effects = end(self, chunk)
        return [effect for sink, effect in enumerate(effects) if sink == 0 or counts[sink] or chunk.last]

    monkeypatch.setattr(ResultOutlet, "end", some)
    monkeypatch.setattr(Simulation, "MAX_STEPS", 25_000)  # a sink waits for ever; without the bug these runs take up to 20,000


def _sent_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chunk in the middle of an epoch goes to two sinks."""
    send = ResultOutlet.send
    monkeypatch.setattr(ResultOutlet, "send", lambda self, chunk: [*send(self, chunk), *send(self, chunk)])


def _pairs_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pairs of the final chunk do not reach a further sink, nor its sums."""
    send = ResultOutlet._send

    def lost(self: ResultOutlet, sink: int, chunk: ResultChunk) -> Any:
        if sink and chunk.final and chunk.pairs is not None:
            chunk = dataclasses.replace(chunk, pairs=None, sent=chunk.sent - chunk.sent)  # type: ignore[operator]
        return send(self, sink, chunk)

    monkeypatch.setattr(ResultOutlet, "_send", lost)


def _no_credit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave goes on joining however much the sinks have to take."""
    monkeypatch.setattr(ResultOutlet, "waits", property(lambda self: False))


def _commit_early(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sink commits an epoch when the first slave has ended it."""
    complete = Collector._complete

    def early(self: Collector, chunk: ResultChunk, slave: int) -> None:
        complete(self, chunk, slave)
        if self.number and self._missing.get(chunk.epoch) and chunk.epoch == self.committed + 1:
            self._missing[EpochIndex(chunk.epoch)] = 0

    monkeypatch.setattr(Collector, "_complete", early)


PLANTED = [(_results_stay, True), (_tally_forgotten, True), (_end_for_some, False), (_sent_twice, False), (_pairs_lost, False),
           (_no_credit, False), (_commit_early, False)]  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize(("plant", "crashing"), PLANTED, ids=lambda p: getattr(p, "__name__", ""))
@pytest.mark.parametrize("enough", [1, pytest.param(5, marks=pytest.mark.long)])
def test_planted_bugs_are_caught(plant: Plant, crashing: bool, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert complaints(itertools.islice(_seeds(crashing=crashing), 60), enough) == enough
