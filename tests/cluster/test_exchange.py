"""The exchange alone: tuples are cut and merged by group, an outlet keeps to its credit, a merger ends epochs when all have."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from swjoin.cluster import exchange
from swjoin.cluster.exchange import EPOCHS_AHEAD, PARTS_AHEAD, EpochHeader, Outlet
from swjoin.cluster.instances import Instances
from swjoin.cluster.messages import Granted
from swjoin.cluster.role import RoleId, Send
from swjoin.cluster.slave.merger import Merger
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, EpochIndex, SlaveId
from swjoin.core.merged_deliveries import Grouped, merged
from swjoin.plan.logical import LogicalPlan, Result
from tests.support.plan_shapes import join, shape_config, source


def _batch(keys: list[int], first_id: int = 0, ts: list[int] | None = None) -> TupleBatch:
    n = len(keys)
    ids = np.arange(first_id, first_id + n).astype(np.uint64)
    return TupleBatch(np.array(keys, np.int64), np.array(ts or [0] * n, np.int64), ids, np.zeros(n, np.int64))


def _grouped(keys: list[int], first_id: int) -> Grouped:
    """The key is the partition-group."""
    groups, counts = np.unique(np.array(sorted(keys), np.int64), return_counts=True)
    return Grouped(groups, counts.astype(np.int64), _batch(sorted(keys), first_id))


def _by_group(part: Grouped) -> dict[int, list[int]]:
    ends = np.cumsum(part.counts).tolist()
    ids = part.tuples.id.tolist()
    return {g: ids[e - c : e] for g, c, e in zip(part.groups.tolist(), part.counts.tolist(), ends, strict=True)}


@given(st.lists(st.lists(st.integers(0, 6) | st.just(40_000), max_size=20), min_size=1, max_size=5), st.integers(1, 7))
def test_parts_that_are_cut_and_merged_have_every_tuple_once(lists: list[list[int]], most: int) -> None:
    wholes = [_grouped(keys, 100 * i) for i, keys in enumerate(lists)]
    parts = [part for whole in wholes for part in whole.cut(most)]
    assert all(len(part.tuples) <= most and (part.counts > 0).all() for part in parts)
    found = merged(parts, TupleBatch.concat([part.tuples for part in parts]))
    expected: dict[int, list[int]] = {}
    for whole in wholes:
        for group, ids in _by_group(whole).items():
            expected.setdefault(group, []).extend(ids)
    assert _by_group(found) == dict(sorted(expected.items()))
    assert found.tuples.key.tolist() == np.repeat(found.groups, found.counts).tolist()


# ---------------------------------------------------------------- the outlet

_PLAN = LogicalPlan((source("a"), source("b"), join("i", "a", "b"), join("j", "i", "a", "full"), Result("out", "j")))
_INSTANCES = Instances.of(_PLAN, shape_config(), 3)


def _source_rows(keys: list[int | None], first_id: int) -> TupleBatch:
    arrays = {"k": keys, "s": ["s"] * len(keys), "v": [1] * len(keys)}
    batch = {name: pa.array(values, pa.string() if name == "s" else pa.int64()) for name, values in arrays.items()}
    batch["ts"] = pa.array([5] * len(keys), pa.timestamp("us"))
    return replace(_batch([0] * len(keys), first_id, [5] * len(keys)), columns=Columns(pa.record_batch(batch)))


@given(st.data())
def test_an_outlet_sends_every_row_once_and_keeps_to_its_credit(data: st.DataObject) -> None:
    edges = _INSTANCES.edges_from(_INSTANCES.stages.sources[0])
    outlet = Outlet(_INSTANCES, edges, data.draw(st.integers(0, 2)))
    sent: dict[RoleId, list[Delivery]] = {}
    consumed: Counter[RoleId] = Counter()
    until: dict[RoleId, int] = {}

    def serve() -> None:
        for effect in outlet.serve():
            assert isinstance(effect, Send)
            assert isinstance(effect.message, Delivery)
            sent.setdefault(effect.to, []).append(effect.message)
            assert effect.message.epoch <= until.get(effect.to, EPOCHS_AHEAD - 1)
            assert len(sent[effect.to]) - consumed[effect.to] <= PARTS_AHEAD
        outlet.validate()

    def grant(role: RoleId, count: int, epoch: int) -> None:
        consumed[role] = min(len(sent.get(role, [])), consumed[role] + count)
        until[role] = max(until.get(role, EPOCHS_AHEAD - 1), epoch)
        outlet.granted(role, Granted(epoch, consumed[role]))
        serve()

    keys = st.lists(st.integers(0, 9) | st.none(), max_size=30)
    batches = data.draw(st.lists(st.lists(keys, max_size=3), min_size=1, max_size=4))
    rows = 0
    with patch.object(exchange, "PART_ROWS", 4):
        for epoch, lists in enumerate(batches):
            header = EpochHeader(EpochIndex(epoch), 3, last=epoch == len(batches) - 1)
            for found in lists:
                outlet.add_to_all(_source_rows(found, rows), header)
                rows += len(found)
                serve()
            outlet.close(header, {edge.id: epoch * 10 for edge in edges})
            serve()
            if sent:
                grant(data.draw(st.sampled_from(sorted(sent))), data.draw(st.integers(0, 4)), epoch + 1)
        while outlet.waits or not outlet.idle:
            for role in sorted(sent):
                grant(role, 3, len(batches))
    every = [found for lists in batches for found in lists]
    nulls = sum(found.count(None) for found in every)
    for edge in edges:
        assert edge.receiver == _INSTANCES.stages.stages[0] or edge.port == 1
        parts = [part for found in sent.values() for part in found if part.edge == edge.id]
        sides = [(part.left, part.right)[edge.port] for part in parts] + [part.null_keys[edge.port] for part in parts]
        ids = sorted(i for side in sides for i in side.id.tolist())
        dropped = 0 if edge.receiver == _INSTANCES.result_edges[0].sender else nulls
        assert len(ids) == len(set(ids)) == rows - dropped
        assert outlet.ledger.sent[edge.id][0] == len(ids)
        assert outlet.ledger.null_keys[edge.id] == dropped
        assert all(len(side) <= 4 for side in sides[: len(parts)])
    for found in sent.values():
        for edge_id in {part.edge for part in found}:
            mine = [(int(part.epoch), part.final) for part in found if part.edge == edge_id]
            assert mine == sorted(mine)
            assert [epoch for epoch, final in mine if final] == list(range(len(batches)))


# ---------------------------------------------------------------- the merger

_SENDERS = {(0, RoleId(7)): 0, (1, RoleId(8)): 1, (1, RoleId(9)): 1, (2, RoleId(8)): 0}


def _part(feed: tuple[int, RoleId], epoch: int, ids: list[int], watermark_us: int | None, ts: int | None = None) -> Delivery:
    """Tuples of partition-group 3 for the port of the feed. watermark_us: of a final part."""
    port, nothing = _SENDERS.get(feed, 0), TupleBatch.empty()
    time_us = BEGIN_OF_TIME_US if watermark_us is None else watermark_us
    batch = replace(_batch([3] * len(ids), 0, [epoch * 10 if ts is None else ts] * len(ids)), id=np.array(ids, np.uint64))
    groups, counts = np.array([3] if ids else [], np.int64), np.array([len(ids)] if ids else [], np.int64)
    both: list[Any] = [(time_us, counts, batch), (BEGIN_OF_TIME_US, 0 * counts, nothing)]
    (lt, lc, left), (rt, rc, right) = both if port == 0 else both[::-1]
    labels = (feed[0], SlaveId(0), EpochIndex(epoch), lt, rt)
    return Delivery(*labels, groups, lc, rc, left, right, final=watermark_us is not None)


@given(st.data())
def test_an_epoch_ends_when_all_final_parts_have_come(data: st.DataObject) -> None:
    merger, epochs = Merger("slave 0", _SENDERS), 3
    queues: dict[tuple[int, RoleId], list[Delivery]] = {feed: [] for feed in _SENDERS}
    last_id = 0
    for epoch in range(epochs):
        for feed, queue in queues.items():
            for size in [*data.draw(st.lists(st.integers(1, 3), max_size=6)), -1]:
                count = max(0, size)
                queue.append(_part(feed, epoch, list(range(last_id, last_id + count)), (epoch + 1) * 10 if size < 0 else None))
                last_id += count
    taken: Counter[int] = Counter()
    finals: Counter[int] = Counter()
    while any(queues.values()) or merger.ready:
        able = [feed for feed, queue in queues.items() if queue and queue[0].epoch < merger.epoch + EPOCHS_AHEAD]
        if able and (not merger.ready or data.draw(st.booleans())):
            feed = data.draw(st.sampled_from(able))
            part = queues[feed].pop(0)
            finals[int(part.epoch)] += part.final
            merger.add(feed[1], part)
        else:
            assert merger.ready, "every sender waits for credit, and nothing is ready"
            epoch, before = merger.epoch, merger.times_us
            piece = merger.take()
            assert piece.came[0][1].epoch == epoch
            for side in piece.parts:
                taken.update(i for part in side for i in part.tuples.id.tolist())
            assert piece.final == (merger.epoch == epoch + 1)
            assert not piece.final or finals[epoch] == len(_SENDERS)
            assert piece.times_us == (((epoch + 1) * 10,) * 2 if piece.final else before)
        merger.validate()
    assert merger.epoch == epochs
    assert sorted(taken.elements()) == list(range(last_id))


@pytest.mark.parametrize(
    ("sender", "part", "words"),
    [
        (7, _part((1, RoleId(7)), 1, [1], None), "which does not send here"),
        (7, _part((0, RoleId(7)), 0, [1], None), "epoch 1 of role 7"),
        (7, _part((0, RoleId(7)), 2, [1], None), "epoch 1 of role 7"),
        (7, _part((0, RoleId(7)), 1, [1], None, 9), "a tuple of time 9 us is below the watermark of 10 us"),
        (7, _part((0, RoleId(7)), 1, [], 9), "the watermark falls from 10 us to 9 us"),
        (7, replace(_part((1, RoleId(8)), 1, [1], None), edge=0), "tuples for the right port"),
    ],
)
def test_parts_that_cannot_be_are_refused(sender: int, part: Delivery, words: str) -> None:
    merger = Merger("slave 0", _SENDERS)
    merger.add(RoleId(7), _part((0, RoleId(7)), 0, [0], 10))
    with pytest.raises(RunFailed, match=words):
        merger.add(RoleId(sender), part)
