"""Planted bugs of several gateways: the simulator's checkers, the roles' own or the oracle must catch each."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import pytest

from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.gateway.slots import Slots
from swjoin.cluster.master.split_dealer import SplitDealer
from swjoin.cluster.slave.inbox import Inbox
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import SourceBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.runtime.simulator.result import SimulationError
from swjoin.runtime.simulator.simulator import Simulation
from swjoin.runtime.simulator.storage import BatchSource
from tests.support.cases import CASES, moving
from tests.support.planted import complaints, texts
from tests.tools.random_runs import Scenario

Plant = Callable[[pytest.MonkeyPatch], None]


def _seeds(*, crashing: bool, disordered: bool = False) -> Iterator[int]:
    """Scenarios with several gateways and many tuples, in asap pace, where gateways read far apart."""
    for seed in itertools.count():
        scenario = Scenario.draw(seed)
        if scenario.config.gateway_count == 1 or scenario.config.pace != "asap" or sum(map(len, scenario.rows)) < 200:
            continue
        crashes = scenario.config.checkpoint.enabled and any(step > 140 for step, _ in scenario.crashes)  # there is one by then
        if (crashes or not crashing) and (scenario.config.time.max_out_of_order_us or not disordered):
            yield seed


def _without_the_slowest(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave ends an epoch with the greatest watermarks of its gateways."""
    take = Inbox.take

    def greatest(self: Inbox) -> Delivery | None:
        marks = [(queue[0].left_time_us, queue[0].right_time_us) for queue in self._queues if queue]
        epoch = take(self)
        if epoch is None:
            return None
        left, right = zip(*marks, strict=True)
        return dataclasses.replace(epoch, left_time_us=max(left), right_time_us=max(right))

    monkeypatch.setattr(Inbox, "take", greatest)


def _end_with_the_first(monkeypatch: pytest.MonkeyPatch) -> None:
    """A slave ends an epoch when the delivery of some gateway is missing."""
    add = Inbox.__init__
    monkeypatch.setattr(Inbox, "__init__", lambda self, count: add(self, max(1, count - 1)))
    put = Inbox.add
    monkeypatch.setattr(Inbox, "add", lambda self, gateway, d: put(self, min(gateway, len(self._queues) - 1), d))


def _dealt_twice(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, splits that were read in part are dealt again from their start."""
    restore = SplitDealer.restore

    def again(self: SplitDealer, states: Sequence[dict[str, Any]], opened: Sequence[Sequence[Sequence[int]]]) -> None:
        restore(self, states, [[[*fields[:5], 0] for fields in of] for of in opened])

    monkeypatch.setattr(SplitDealer, "restore", again)


def _open_split_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash, splits that were read in part are not dealt again."""
    restore = SplitDealer.restore
    monkeypatch.setattr(SplitDealer, "restore", lambda self, states, opened: restore(self, states, [[] for _ in opened]))


def _ids_by_gateway(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gateway numbers the rows that it reads."""
    read = BatchSource.read

    def numbered(self: BatchSource) -> SourceBatch | None:
        batch = read(self)
        if batch is None:
            return None
        first = getattr(self, "rows_read", 0)
        self.rows_read = first + len(batch)  # type: ignore[attr-defined]
        return dataclasses.replace(batch, id=batch.id - batch.id.min(initial=0) + first) if len(batch) else batch

    monkeypatch.setattr(BatchSource, "read", numbered)


def _late_by_own_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lateness is judged by the rows that this gateway has read."""
    monkeypatch.setattr(StreamIntake, "pass_time", lambda self, time_us: None)


def _shares_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """After a crash a gateway takes over the rows of one former gateway alone."""
    restore = Gateway.restore
    monkeypatch.setattr(Gateway, "restore", lambda self, saved, shares: restore(self, saved, shares[:1]))


def _wishes_not_numbered(monkeypatch: pytest.MonkeyPatch) -> None:
    """The master takes a repeated wish for one for the next split."""
    wanted = SplitDealer.wanted

    def always(self: SplitDealer, gateway: Any, wish: Any) -> Any:
        finished = self._streams[wish.stream].dealt_to[gateway]
        return wanted(self, gateway, dataclasses.replace(wish, finished=finished))

    monkeypatch.setattr(SplitDealer, "wanted", always)


def _held_back_tuples_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tuples that were held back for a move wait for the end of their slot, below which greater watermarks have been sent."""
    monkeypatch.setattr(
        Slots, "passed_us", property(lambda self: (BEGIN_OF_TIME_US,) * 2, lambda self, value: None), raising=False
    )


PLANTED = [(_without_the_slowest, False), (_end_with_the_first, False), (_dealt_twice, True), (_open_split_forgotten, True),
           (_ids_by_gateway, False), (_late_by_own_rows, False), (_shares_forgotten, True),
           (_wishes_not_numbered, False)]  # fmt: skip


@pytest.mark.drawn
@pytest.mark.parametrize(("plant", "crashing"), PLANTED, ids=lambda p: getattr(p, "__name__", ""))
@pytest.mark.parametrize("enough", [1, pytest.param(5, marks=pytest.mark.long)])
def test_planted_bugs_are_caught(plant: Plant, crashing: bool, enough: int, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    seeds = _seeds(crashing=crashing, disordered=plant is _late_by_own_rows)
    assert complaints(itertools.islice(seeds, 60), enough) == enough


def _moving_case(seed: int) -> None:
    """Check a known case that three gateways read in splits of one to three batches, while partition-groups move in every
    distribution epoch."""
    case = next(case for case in CASES if case.name == ("asymmetric", "both positive", "both negative")[seed % 3])
    plain: dict[str, Any] = {
        "seed": seed,
        "join": {"lower_us": case.bounds[0], "upper_us": case.bounds[1]},
        "cluster": {"partition_count": 7, "distribution_epoch_us": 100, "gateways": 3},
        "module": {"block_bytes": 256, "theta_bytes": 1024, "window_bytes": 1 << 20},
        "sink": {"kind": "count"},
        **moving(case),
    }
    sources = []
    for rows in (case.left, case.right):
        key, ts = (np.array(column, np.int64) for column in rows)
        cuts = np.linspace(0, len(ts), 26).astype(int)
        ids = np.arange(len(ts), dtype=np.uint64)
        sources.append([SourceBatch(key[a:b], ts[a:b], ids[a:b]) for a, b in itertools.pairwise(cuts)])
    result = Simulation(config_from_plain(plain), sources, 3, seed).run()
    if (result.count, result.digest) != case.answer():
        raise SimulationError(f"{result.count} pairs, the case has {case.answer()[0]}")


_SEEDS = [6, 52]  # of the first 90, those in which a slot that another gateway ended passes tuples that are held back


@pytest.mark.parametrize("seed", [*_SEEDS, *(pytest.param(seed, marks=pytest.mark.long) for seed in range(90, 120))])
def test_held_back_tuples_go_with_the_next_slot(seed: int) -> None:
    _moving_case(seed)


def test_held_back_tuples_that_wait_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    _held_back_tuples_wait(monkeypatch)
    assert next(texts(_SEEDS, _moving_case), None) is not None
