"""Invariants over all roles, checked after every step of a simulated run and at its end.

What: `check_ledger`, `StageLedger`, `check_owners`, `check_results`, `check_commits`, `check_shown`; AssertionError names the
broken invariant.
Why: each role validates itself; only a check over all roles detects losses between them.
Stays out: stepping (`runtime.simulator.simulator`), the oracle (`tests.tools.random_runs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from swjoin.checkpoint.store import Manifest, PlanState
from swjoin.cluster.collector import Collector
from swjoin.cluster.exchange import Outlet
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.role import Role, RoleId
from swjoin.cluster.slave.merger import Merger
from swjoin.cluster.slave.slave import Slave
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.ids import GroupId, SlaveId
from swjoin.plan.logical import Source
from swjoin.plan.stages import Stage
from swjoin.runtime.simulator.storage import MemorySink

_Count: TypeAlias = tuple[str, int, int]  # what, of which edge, stage or source, and at which port of a stage


def _good(gateways: Sequence[Gateway], stream: int) -> int:
    """Rows read that are to be joined."""
    counts = [gateway.streams[stream].counts for gateway in gateways]
    return sum(c.tuples - c.null_key - c.late - c.shed for c in counts)


def check_ledger(
    gateways: Sequence[Gateway], slaves: Sequence[Slave], in_flight: Sequence[int], joined_before: Sequence[int]
) -> None:
    """The ledger during the run: every row read is counted exactly once. joined_before: tuples of the restored checkpoint."""
    for stream, name in enumerate(STREAM_NAMES):
        somewhere = in_flight[stream] + joined_before[stream]
        somewhere += sum(gateway.waiting_tuples(stream) for gateway in gateways)
        somewhere += sum(s.buffered_tuples(stream) + s.joined[stream] for s in slaves)
        good = _good(gateways, stream)
        assert somewhere == good, f"{name}: {good} good tuples were read, {somewhere} are somewhere"


class StageLedger:
    """The ledger of a plan during the run: every row that was read is sent over each edge of its source; what was sent over an
    edge was taken, waits, or is in flight; what a stage has taken is joined.

    What each role has counted is kept, as most of them have done nothing since the check before.
    """

    def __init__(self, instances: Instances) -> None:
        self._instances = instances
        self._stage_of = {slave: stage.id for stage in instances.stages.stages for slave in instances.slaves_of(stage)}
        self._of: dict[RoleId, Counter[_Count]] = {}
        self._total: Counter[_Count] = Counter()

    def count(self, changed: Mapping[RoleId, Role]) -> None:
        """Count anew what these roles have done."""
        for name, role in changed.items():
            if isinstance(role, Gateway):
                found = self._of_gateway(role)
            elif isinstance(role, Slave):
                found = self._of_slave(role)
            else:
                continue
            self._total.update(found)
            self._total.subtract(self._of.get(name, Counter()))
            self._of[name] = found

    def _of_gateway(self, gateway: Gateway) -> Counter[_Count]:
        assert gateway.feeds is not None, "a gateway of a plan without its edges"
        outlet, found = gateway.feeds.outlet, _sent(gateway.feeds.outlet)
        for dropped in (outlet.ledger.null_keys, outlet.ledger.filtered):
            for edge, rows in dropped.items():
                found["dropped", edge, 0] += rows
        for index in range(len(self._instances.stages.sources)):
            found["good", index, 0] = _good([gateway], index) - gateway.waiting_tuples(index)
        return found

    def _of_slave(self, slave: Slave) -> Counter[_Count]:
        assert slave.stage is not None, "a slave of no stage"
        found = _sent(slave.stage.outlet)
        _add_waiting(found, slave.stage.merger)
        for edge, entry in slave.stage.ledger.received.items():
            found["received", edge, 0] += entry[0]
        for port in (LEFT, RIGHT):
            joined = slave.joined[port] + slave.buffered_tuples(port)
            there = joined + slave.stage.null_key_rows[port] + slave.stage.waiting_tuples(port)
            found["there", self._stage_of[slave.id], port] = there
        return found

    def check(self, in_flight: Mapping[int, int], before: PlanState | None) -> None:
        """in_flight: by edge. before: at the restored checkpoint."""
        total, taken = self._total, Counter[tuple[int, int]]()  # by stage and port
        for edge in self._instances.stages.edges:
            if not isinstance(edge.receiver, Stage):
                continue
            label = f"edge {edge.id}"
            sent, received = total["sent", edge.id, 0], total["received", edge.id, 0]
            away = total["waiting", edge.id, 0] + in_flight[edge.id]
            assert sent == received + away, f"{label}: {sent} rows were sent, {received} were taken, {away} are on their way"
            taken[edge.receiver.id, edge.port] += received
            if isinstance(edge.sender, Source):
                good = total["good", self._instances.stages.sources.index(edge.sender), 0]
                fed = sent + total["dropped", edge.id, 0]
                if before is not None:
                    fed += sum(before.edges[side].get(str(edge.id), [0])[0] for side in ("sent", "null_keys", "filtered"))
                assert fed == good, f"{label}: {good} rows of {edge.sender.name} have left the buffers, {fed} were sent"
        for stage in self._instances.stages.stages:
            for port, name in enumerate(STREAM_NAMES):
                there, came = total["there", stage.id, port], taken[stage.id, port]
                assert there == came, f"stage {stage.id}, {name}: {came} rows came, {there} are there"


def _sent(outlet: Outlet) -> Counter[_Count]:
    """What was sent over each edge, and what waits for credit."""
    found = Counter[_Count]()
    _add_waiting(found, outlet)
    for edge, entry in outlet.ledger.sent.items():
        found["sent", edge, 0] += entry[0]
    return found


def _add_waiting(found: Counter[_Count], of: Outlet | Merger) -> None:
    waiting = Counter[int]()
    of.count_waiting(waiting)
    for edge, rows in waiting.items():
        found["waiting", edge, 0] += rows


def check_owners(controller: Controller, slaves: Sequence[Slave], first: int = 0) -> None:
    """Every partition-group is open at one slave at most: its owner, or during a move its supplier or its consumer. first:
    number of the first of these slaves, those of a stage."""
    moves = {m.group: m for m in controller.moves.values()}
    owner = controller.map.owner
    places: dict[int, list[SlaveId]] = {}
    for slave in slaves:
        for group in slave.join.group_ids():
            places.setdefault(group, []).append(SlaveId(slave.id - first))
    for place, at in places.items():
        move = moves.get(GroupId(place))
        allowed = {owner[place]} if move is None else {move.supplier, move.consumer}
        assert set(at) <= allowed, f"partition-group {place} is open at slaves {at}, its owner is slave {owner[place]}"
        assert len(at) == 1, f"partition-group {place} is open at slaves {at} at once"


def check_results(summary: dict[str, Any], produced: int) -> None:
    """The sinks have all pairs that the slaves produced. summary: of all sinks together."""
    collected = summary["count"] + summary["history"]["count"]
    assert produced == collected, f"slaves produced {produced} pairs, the sinks have {collected}"


def check_commits(sink: Collector, commits: list[int], last_epoch: int) -> None:
    """Every epoch has been committed once, in order."""
    in_order = not commits or commits == sorted(set(commits))
    assert in_order, f"sink {sink.number}: commits {commits} are out of order"
    assert sink.committed == last_epoch, f"sink {sink.number}: commits {commits} do not lead to epoch {last_epoch}"


def check_shown(sink: MemorySink, generation: int, manifest: Manifest | None, *, counted: bool) -> None:
    """Visible pairs of a sink are those of a checkpoint, and never fewer than at the check before. counted: results are only
    counted."""
    assert manifest is not None, "results without a checkpoint can be seen"
    assert manifest.generation >= generation, "results of a checkpoint that is not there can be seen"
    held, shown = manifest.plain["sinks"][sink.number]["state"]["tally"]["count"], sink.shown_count
    whole = manifest.generation == generation and not counted
    assert not whole or shown == held, f"{shown} pairs can be seen, the checkpoint holds {held}"
    assert shown >= sink.checked, f"{sink.checked} pairs could be seen, now {shown}"
    sink.checked = shown
