"""Planted bugs of moves and checkpoints of plans: the simulator's checkers and the oracle of plans must catch each one in 5 of
60 random plans with many moves, or with crashes. Without a bug the same plans are right."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import pyarrow as pa
import pytest

from swjoin.checkpoint.checkpointers import SlaveCheckpointer
from swjoin.checkpoint.delivery_log import Segment
from swjoin.cluster.exchange import EpochHeader, Outlet
from swjoin.cluster.slave.slave import Slave
from swjoin.cluster.slave.stage import StageInstance
from swjoin.cluster.slave.state_mover import StateMover
from swjoin.cluster.slave.text_keys import TextKeys
from swjoin.config.sections import CheckpointConfig
from swjoin.core.data_messages import Delivery, StateChunk
from swjoin.plan.logical import IntervalJoin, Source
from swjoin.runtime.simulator.result import SimulationError
from swjoin.runtime.simulator.simulator import Simulation
from tests.support.planted import texts
from tests.tools.random_plans import PlanScenario, simulate

SEEDS, ENOUGH = 60, 5
PARTS = 6  # of five seeds each, without a bug
Monkey = pytest.MonkeyPatch


def _scenarios(what: str) -> Iterator[PlanScenario]:
    """The first plans with several instances, two stages and many rows. what: with many `moves`, also those of `keys` that are
    no integers, or with `crashes` in the middle."""
    for seed in itertools.count():
        calm = PlanScenario.draw(seed, calm=True)
        joins = [node for node in calm.plan.nodes if isinstance(node, IntervalJoin)]
        rows = sum(map(len, calm.rows.values()))
        crashes = what == "crashes"
        if len(joins) < 2 or rows < (100 if crashes else 60) or calm.config.pace != "asap" or (crashes and calm.width < 2):
            continue
        if crashes:
            cluster = replace(calm.config.cluster, distribution_epoch_us=0, epoch_tuples=10)
            config = replace(calm.config, checkpoint=CheckpointConfig(epochs=1), cluster=cluster)
            calm = replace(calm, batch_rows=5)
            yield replace(calm, config=config, crashes=tuple((step, calm.width) for step in (300, 900, 2_000)))
            continue
        scenario = calm.with_events()
        reorganization = scenario.config.reorganization
        texts_of_keys = any(dict(n.columns).get("k") == "string" for n in calm.plan.nodes if isinstance(n, Source))
        moving = reorganization.policy == "random" and reorganization.active_slaves != 1 and not scenario.crashes
        if moving and scenario.width > 1 and (texts_of_keys or what != "keys"):
            yield scenario


def _complaints(what: str, enough: int = 1, seeds: slice = slice(SEEDS)) -> list[str]:
    """Until there are enough."""

    def run(scenario: PlanScenario) -> None:
        try:
            simulate(scenario, scenario.evaluated()["out"])
        except pa.ArrowIndexError as error:
            raise SimulationError(f"a code of a key that this instance does not have: {error}") from error

    return list(itertools.islice(texts(itertools.islice(_scenarios(what), seeds.start, seeds.stop), run), enough))


def _fence_of_one_sender(monkeypatch: Monkey) -> None:
    """The first sender of each kind goes on to route moved partition-groups to their suppliers."""
    close = Outlet.close

    def deaf(self: Outlet, header: EpochHeader, watermarks_us: Mapping[int, int]) -> None:
        routers = {edge: sending.router for edge, sending in self._sendings.items()}
        close(self, header, watermarks_us)
        for edge, sending in self._sendings.items():
            sending.router = routers[edge] if self._index == 0 else sending.router

    monkeypatch.setattr(Outlet, "close", deaf)


def _routed_too_early(monkeypatch: Monkey) -> None:
    """Rows of an epoch that are in no part yet go with the next epoch, after its moves."""
    close = Outlet.close

    def hasty(self: Outlet, header: EpochHeader, watermarks_us: Mapping[int, int]) -> None:
        rows = {edge: list(sending.rows) for edge, sending in self._sendings.items()}
        for sending in self._sendings.values():
            sending.rows.clear()
        close(self, header, watermarks_us)
        for edge, sending in self._sendings.items():
            sending.rows = rows[edge]

    monkeypatch.setattr(Outlet, "close", hasty)


def _keys_left_behind(monkeypatch: Monkey) -> None:
    """The consumer takes the supplier's codes of keys for its own."""

    def careless(self: TextKeys, chunk: StateChunk) -> StateChunk:
        return replace(chunk, tuples=replace(chunk.tuples, columns=None))

    monkeypatch.setattr(TextKeys, "received_state", careless)


def _logged_as_they_come(monkeypatch: Monkey) -> None:
    """Parts of later epochs are logged before those of the open one."""

    def append(self: SlaveCheckpointer) -> None:
        waiting, self._early = self._early, []
        for delivery, frame in waiting:
            self._log.append(delivery, frame)

    monkeypatch.setattr(SlaveCheckpointer, "_append_until", append)


def _first_stage_alone(monkeypatch: Monkey) -> None:
    """Segments of later stages are taken for dead."""
    alive = Segment.alive
    monkeypatch.setattr(Segment, "alive", lambda self, alive_us: self.stage == 0 and alive(self, alive_us))


def _restored_without_owner(monkeypatch: Monkey) -> None:
    """A restored instance takes all partition-groups of its stage."""
    owned = StageInstance.owned.fget
    assert owned is not None
    monkeypatch.setattr(StageInstance, "owned", property(lambda self: owned(self) | True))


def _restored_not_at_all(monkeypatch: Monkey) -> None:
    restore = Slave.restore

    def forgetful(self: Slave, delivery: Delivery) -> None:
        if self.stage is None or self.stage.is_last:
            restore(self, delivery)

    monkeypatch.setattr(Slave, "restore", forgetful)


BUGS: dict[str, Callable[[Monkey], None]] = {
    "a fence at all senders but one": _fence_of_one_sender,
    "rows of the epoch after the fence": _routed_too_early,
    "keys left behind by a move": _keys_left_behind,
    "parts logged as they come": _logged_as_they_come,
    "segments of the first stage alone": _first_stage_alone,
    "restored with the groups of others": _restored_without_owner,
    "inner stages restored without tuples": _restored_not_at_all,
    "a consumer that does not wait": lambda m: m.setattr(StateMover, "imports", property(lambda self: False)),
}


WHAT = {"keys left behind by a move": "keys"} | {
    name: "crashes" for name in BUGS if any(word in name for word in ("restored", "logged", "segments"))
}


QUICK = ("a fence at all senders but one", "rows of the epoch after the fence")


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("name", "enough"), [*((name, 1) for name in QUICK), *(pytest.param(name, ENOUGH, marks=pytest.mark.long) for name in BUGS)]
)
def test_planted_bugs_are_caught(name: str, enough: int, monkeypatch: Monkey) -> None:
    BUGS[name](monkeypatch)
    monkeypatch.setattr(Simulation, "MAX_STEPS", 40_000)
    assert len(_complaints(WHAT.get(name, "moves"), enough)) == enough


@pytest.mark.long
@pytest.mark.parametrize("what", ["moves", "keys", "crashes"])
@pytest.mark.parametrize("part", range(PARTS))
def test_without_a_bug_nothing_is_caught(what: str, part: int) -> None:
    """In parts, as a plan can take half a minute."""
    assert not _complaints(what, seeds=slice(part * 5, part * 5 + 5))
