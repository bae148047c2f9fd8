"""Invariants over all roles, checked after every step of a simulated run and at its end.

What: `check_ledger`, `check_owners`, `check_results`, `check_shown`; AssertionError names the broken invariant.
Why: each role validates itself; only a check over all roles detects losses between them.
Stays out: stepping (`runtime.simulator.simulator`), the oracle (`tests.tools.random_runs`).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from swjoin.checkpoint.store import Manifest
from swjoin.cluster.gateway.gateway import Gateway
from swjoin.cluster.master.controller import Controller
from swjoin.cluster.slave.slave import Slave
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.ids import GroupId, SlaveId


def check_ledger(gateway: Gateway, slaves: Sequence[Slave], in_flight: Sequence[int], joined_before: Sequence[int]) -> None:
    """The ledger during the run: every row read is counted exactly once. joined_before: tuples of the restored checkpoint."""
    for stream, name in enumerate(STREAM_NAMES):
        counts = gateway.streams[stream].counts
        somewhere = gateway.waiting_tuples(stream) + in_flight[stream] + joined_before[stream]
        somewhere += sum(s.buffered_tuples(stream) + s.joined[stream] for s in slaves)
        good = counts.tuples - counts.null_key - counts.late - counts.shed
        assert somewhere == good, f"{name}: {good} good tuples were read, {somewhere} are somewhere"


def check_owners(controller: Controller, slaves: Sequence[Slave]) -> None:
    """Every partition-group is open at one slave at most: its owner, or during a move its supplier or its consumer."""
    moves = {m.group: m for m in controller.moves.values()}
    owner = controller.map.owner
    places: dict[int, list[SlaveId]] = {}
    for slave in slaves:
        for group in slave.join.group_ids():
            places.setdefault(group, []).append(slave.id)
    for place, at in places.items():
        move = moves.get(GroupId(place))
        allowed = {owner[place]} if move is None else {move.supplier, move.consumer}
        assert set(at) <= allowed, f"partition-group {place} is open at slaves {at}, its owner is slave {owner[place]}"
        assert len(at) == 1, f"partition-group {place} is open at slaves {at} at once"


def check_results(summary: dict[str, Any], produced: int, commits: list[int], last_epoch: int) -> None:
    """The collector has all pairs that the slaves produced, and every epoch has been committed once, in order."""
    collected = summary["count"] + summary["history"]["count"]
    assert produced == collected, f"slaves produced {produced} pairs, the collector has {collected}"
    in_order = not commits or commits == sorted(set(commits))
    assert in_order, f"commits {commits} are out of order"
    assert summary["committed_epoch"] == last_epoch, f"commits {commits} do not lead to epoch {last_epoch}"


def check_shown(shown: int, before: int, generation: int, manifest: Manifest | None, *, counted: bool) -> None:
    """Visible pairs are those of a checkpoint, and never fewer than before. shown, before: counts of visible pairs, now and
    earlier. counted: results are only counted."""
    assert manifest is not None, "results without a checkpoint can be seen"
    assert manifest.generation >= generation, "results of a checkpoint that is not there can be seen"
    held = manifest.plain["collector"]["state"]["tally"]["count"]
    whole = manifest.generation == generation and not counted
    assert not whole or shown == held, f"{shown} pairs can be seen, the checkpoint holds {held}"
    assert shown >= before, f"{before} pairs could be seen, now {shown}"
