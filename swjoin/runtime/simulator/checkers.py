"""Invariants over all roles, checked after every step of a simulated run and at its end.

What: `check_ledger`, `check_stages`, `check_owners`, `check_results`, `check_commits`, `check_shown`; AssertionError names the
broken invariant.
Why: each role validates itself; only a check over all roles detects losses between them.
Stays out: stepping (`runtime.simulator.simulator`), the oracle (`tests.tools.random_runs`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from swjoin.checkpoint.store import Manifest, PlanState
from swjoin.cluster.collector import Collector
from swjoin.cluster.exchange import Outlet
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.instances import Instances
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.slave.slave import Slave
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.ids import GroupId, SlaveId
from swjoin.plan.logical import Source
from swjoin.plan.stages import Stage
from swjoin.runtime.simulator.storage import MemorySink


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


def check_stages(
    instances: Instances,
    gateways: Sequence[Gateway],
    slaves: Sequence[Slave],
    in_flight: Mapping[int, int],
    before: PlanState | None,
) -> None:
    """The ledger of a plan during the run: every row that was read is sent over each edge of its source; what was sent over an
    edge was taken, waits, or is in flight; what a stage has taken is joined. in_flight: by edge. before: at the restored
    checkpoint."""
    stages = [slave.stage for slave in slaves if slave.stage is not None]
    feeds = [gateway.feeds.outlet for gateway in gateways if gateway.feeds is not None]
    senders: list[Outlet] = [*feeds, *(stage.outlet for stage in stages)]
    taken: Counter[tuple[int, int]] = Counter()  # by stage and port
    waiting = Counter(in_flight)
    for sender in senders:
        sender.count_waiting(waiting)
    for stage in stages:
        stage.merger.count_waiting(waiting)
    for edge in instances.stages.edges:
        if not isinstance(edge.receiver, Stage):
            continue
        label = f"edge {edge.id}"
        sent = sum(sender.ledger.sent[edge.id][0] for sender in senders)
        received = sum(stage.ledger.received[edge.id][0] for stage in stages)
        away = waiting[edge.id]
        assert sent == received + away, f"{label}: {sent} rows were sent, {received} were taken, {away} are on their way"
        taken[edge.receiver.id, edge.port] += received
        if isinstance(edge.sender, Source):
            index = instances.stages.sources.index(edge.sender)
            good = _good(gateways, index) - sum(gateway.waiting_tuples(index) for gateway in gateways)
            fed = sent + sum(outlet.ledger.null_keys[edge.id] + outlet.ledger.filtered[edge.id] for outlet in feeds)
            if before is not None:
                fed += sum(before.edges[side].get(str(edge.id), [0])[0] for side in ("sent", "null_keys", "filtered"))
            assert fed == good, f"{label}: {good} rows of {edge.sender.name} have left the buffers, {fed} were sent"
    for of_plan in instances.stages.stages:
        mine = [slaves[slave] for slave in instances.slaves_of(of_plan)]
        for port, name in enumerate(STREAM_NAMES):
            there = sum(s.joined[port] + s.buffered_tuples(port) for s in mine)
            there += sum(s.stage.null_key_rows[port] + s.stage.waiting_tuples(port) for s in mine if s.stage is not None)
            assert there == taken[of_plan.id, port], (
                f"stage {of_plan.id}, {name}: {taken[of_plan.id, port]} rows came, {there} are there"
            )


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
