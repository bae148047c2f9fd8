"""Frames: what goes in comes out, and a damaged frame is refused, never believed."""

from __future__ import annotations

import dataclasses
from typing import get_args

import numpy as np
import pyarrow as pa
import pytest

from swjoin.cluster.messages import (
    CheckpointDurable,
    EpochClosed,
    EpochDue,
    EpochPlan,
    EpochWanted,
    EventNoted,
    Granted,
    GroupMoved,
    LoadReport,
    MeasuringStarted,
    Message,
    PartSaved,
    PrefillJoined,
    Report,
    SplitDealt,
    SplitWanted,
    StateRequest,
    StopReading,
)
from swjoin.cluster.role import GATEWAY, slave_role
from swjoin.cluster.wire import (
    CONTROL_TAG,
    FORMATS,
    RESULTS,
    address,
    addresses,
    pack,
    pack_delivery,
    pack_results,
    unpack_control,
    unpack_delivery,
    unpack_results,
)
from swjoin.core.batch import BOTH, LEFT, RIGHT, Pairs, PayloadRows, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery, GroupResults, MoveEnd, ResultChunk, Route, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId, QueryId, SlaveId
from swjoin.routing.biclique import UnitTable
from swjoin.routing.hot_keys import HotKey


def tuples(n: int, payload: bool) -> TupleBatch:
    ids = np.arange(n, dtype=np.uint64)
    rows = None
    if payload:
        offsets = np.arange(n + 1, dtype=np.int64) * 3
        rows = PayloadRows(np.arange(n * 5, dtype=np.uint8).reshape(n, 5), offsets, np.arange(3 * n, dtype=np.uint8))
    return TupleBatch(np.arange(n) - 5, np.arange(n) * 7, ids, np.arange(n) + 1, rows)


def a_delivery() -> Delivery:
    counts = np.array([4, 2], np.int64), np.array([0, 3], np.int64)
    groups = np.array([3, 9], np.int64)
    left, right = tuples(6, True), tuples(3, False)
    return Delivery(
        QueryId(0), SlaveId(2), EpochIndex(5), -7, 1 << 62, groups, *counts, left, right, True, (Route.STORE, Route.PROBE)
    )


def a_chunk() -> ResultChunk:
    n = 4
    ids = np.arange(n, dtype=np.uint64)
    rows = tuples(n, True).rows
    pairs = Pairs(np.arange(n), np.arange(n), np.arange(n), ids, ids + np.uint64(1), rows, None)
    results = GroupResults(np.array([1]), np.array([4]), np.array([2**64 - 1], np.uint64))
    labels = (QueryId(0), SlaveId(1), EpochIndex(3), True, False)
    return ResultChunk(*labels, pairs, results, np.ones(3), np.arange(5), edges=np.array([[3, 10, 640, 64]]))


def same(a: object, b: object) -> bool:
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b) and a.dtype == b.dtype  # type: ignore[arg-type, attr-defined]
    if hasattr(a, "__dataclass_fields__"):
        return all(same(getattr(a, f), getattr(b, f)) for f in a.__dataclass_fields__)
    if isinstance(a, tuple):
        return isinstance(b, tuple) and len(a) == len(b) and all(same(x, y) for x, y in zip(a, b, strict=True))
    return a == b


def test_round_trip() -> None:
    assert same(unpack_delivery(pack_delivery(a_delivery())), a_delivery())
    left = a_delivery().left
    nulls = dataclasses.replace(a_delivery(), null_keys=(left, TupleBatch.empty()))
    assert same(unpack_delivery(pack_delivery(nulls)), nulls)
    assert same(unpack_results(pack_results(a_chunk())), a_chunk())
    for stream in (LEFT, RIGHT):
        alone = dataclasses.replace(a_chunk(), pairs=Pairs.alone(stream, left, null_keys=bool(stream)))
        assert same(unpack_results(pack_results(alone)), alone)
    columns = Columns(pa.record_batch({"k": pa.array(["a", None, "b"]), "v": pa.array([1, 2, None])}))
    right = dataclasses.replace(tuples(3, False), columns=columns)
    part = dataclasses.replace(a_delivery(), right=right, null_keys=(TupleBatch.empty(), right), final=False)
    found = unpack_delivery(pack_delivery(part))
    assert not found.final
    for batch in (found.right, found.null_keys[RIGHT]):
        assert batch.columns is not None
        assert batch.columns.batch.equals(columns.batch)
    for shown, ranks in ((columns, None), (None, None), (columns, np.array([2, 0, 1]))):
        rows = dataclasses.replace(
            a_chunk(), pairs=ResultRows(right.id, right.ts, shown, ranks), sent=np.array([[0, 3, 7]], np.uint64)
        )
        again = unpack_results(pack_results(rows))
        assert isinstance(again.pairs, ResultRows)
        assert same(dataclasses.replace(again.pairs, columns=None), ResultRows(right.id, right.ts, None, ranks))
        assert shown is None or (again.pairs.columns is not None and again.pairs.columns.batch.equals(shown.batch))
        assert same(dataclasses.replace(again, pairs=None), dataclasses.replace(rows, pairs=None))
    empty = ResultChunk(QueryId(0), SlaveId(0), EpochIndex(0), False, False)
    assert same(unpack_results(pack_results(empty)), empty)


def test_a_chunk_without_rows_is_of_no_side() -> None:
    nothing: list[None] = [None] * 22
    unpack_results(pack(RESULTS, [0, 0, 0, 0, 0, 1, 0, 0, 0, BOTH, 0], nothing))
    with pytest.raises(RunFailed, match="rows of side 1: none"):
        unpack_results(pack(RESULTS, [0, 0, 0, 0, 0, 1, 0, 0, 0, RIGHT, 0], nothing))


def test_a_chunk_has_pairs_or_rows_and_as_many_columns_as_rows() -> None:
    labels, ids = [0, 0, 0, 0, 0, 1, 0, 0, 0, BOTH, 0], np.zeros(2, np.uint64)
    columns, times = Columns(pa.record_batch({"v": [1, 2, 3]})).to_bytes(), np.zeros(2, np.int64)
    pairs = [np.zeros(2, np.int64)] * 3 + [ids] * 2 + [None] * 13
    for content, complaint in (
        ([None] * 18 + [ids, times, columns, None], "3 rows of columns for 2 rows"),
        ([None] * 18 + [ids, None, None, None], "row ids and row times are of unequal length"),
        ([None] * 18 + [None, None, columns, None], "columns or ranks of no rows"),
        ([None] * 18 + [None, None, None, times], "columns or ranks of no rows"),
        ([None] * 18 + [ids, times, None, times[:1]], "1 ranks for 2 rows"),
        ([None] * 18 + [ids, times, None, times - 1], "or negative ones"),
        ([*pairs, ids, times, None, None], "pairs, and rows that are none"),
    ):
        with pytest.raises(RunFailed, match=complaint):
            unpack_results(pack(RESULTS, labels, content))


@pytest.mark.parametrize("kind", ["delivery", "results"])
def test_a_damaged_frame_is_refused_or_still_whole(kind: str) -> None:
    """Every truncation is refused; a flipped header byte is refused or leaves arrays of consistent length."""
    frame, unpack = (
        (pack_delivery(a_delivery()), unpack_delivery) if kind == "delivery" else (pack_results(a_chunk()), unpack_results)
    )
    for length in range(0, len(frame), 7):
        with pytest.raises(RunFailed, match="corrupt message"):
            unpack(frame[:length].copy())
    refused = 0
    random = np.random.default_rng(0)
    for _ in range(2000):
        damaged = frame.copy()
        damaged[random.integers(0, 600)] ^= np.uint8(random.integers(1, 256))
        try:
            unpack(damaged)
        except RunFailed:
            refused += 1
    assert refused > 500


def test_every_message_has_a_format_of_its_own() -> None:
    assert set(FORMATS) == set(get_args(Message))
    data = [form.tag for kind, form in FORMATS.items() if kind in (Delivery, ResultChunk, StateChunk, LoadReport)]
    assert len({*data, CONTROL_TAG}) == 5
    assert {form.tag for form in FORMATS.values()} == {*data, CONTROL_TAG}, "control messages keep their order among each other"


@pytest.mark.parametrize(
    "message",
    [
        StateRequest(7),
        MeasuringStarted(5_000_000),
        PartSaved(2, "slave 1", {"joined": [3, 4], "segment": {"crc": 17}}),
        CheckpointDurable(4, stop=True),
        Report(0.25),
        LoadReport(0.5),
        MoveEnd(3, GroupId(1), SlaveId(2), True, 10, 640, 5, 9),
        EpochWanted(3, True, False, (0, 64), (128, 0)),
        EpochWanted(3, True, False, (0, 64), (128, 0), (-5, 1 << 62), True),
        EpochPlan(7, (0, 1, 2), (2,), True, False, 4, True, True, ((5, 9, 0, 1), (6, 3, 1, 0)), (7, -8)),
        EpochDue(7),
        EventNoted((1, 2, "idle", -1, -1, -1, 0, 0, 0, 0.5, "left (gateway 1)", -1)),
        SplitWanted(1, 3, (5, -6)),
        SplitDealt(1, (100, 50, -5, 5, -(1 << 62)), 7),
        SplitDealt(0, before_us=3, low_us=4),
        SplitDealt(0, ended=True),
        EpochPlan(),
        EpochPlan(8, hot_keys=((HotKey(1, -5, 0, (3, 4), -9, 1 << 62), HotKey(0, 1 << 62, 1, (0,))),)),
        EpochPlan(8, hot_keys=((),)),
        EpochPlan(8, units=((UnitTable(1, (16, 0, 1), (1, 1, 1)), UnitTable(2, (), ())),)),
        EpochClosed(7, (-(1 << 62), 5)),
        EpochClosed(7, (0, 5), (), ((1, 0, -(1 << 62), (5, -(1 << 62))), (1, 1, 1 << 62, ()))),
        EpochClosed(7, (0, 5), ((1, 0, -3, 5, 100, ((-7, 60), (8, 9))), (1, 1, 4, -9, 0, ()))),
        GroupMoved(5, 4096, 17),
        PrefillJoined(),
        StopReading(),
        Granted(5, 17),
    ],
    ids=lambda message: type(message).__name__,
)
def test_small_messages_come_out_as_they_went_in(message: Message) -> None:
    form = FORMATS[type(message)]
    frame = form.pack(message)
    assert form.unpack(frame) == message
    if form.tag == CONTROL_TAG:
        assert unpack_control(frame) == message
    for length in range(0, len(frame), 7):
        with pytest.raises(RunFailed):
            form.unpack(frame[:length].copy())
    with pytest.raises(RunFailed):
        form.unpack(pack_delivery(a_delivery()))


def test_a_frame_names_its_roles() -> None:
    frame = FORMATS[Report].pack(Report(0.25))
    address(frame, slave_role(3), GATEWAY)
    assert addresses(frame) == (slave_role(3), GATEWAY)
    assert FORMATS[Report].unpack(frame) == Report(0.25)


@pytest.mark.parametrize(
    ("message", "content"),
    [
        (Report(0.25), b"[-1.0]"),
        (Report(0.25), b"[NaN]"),
        (EpochPlan(), b"[0, [-1], [], false, false, 0, false, false, []]"),
        (EpochPlan(), b"[0, [1], [], false, false, 0, false, false, [[1, 2, 3]]]"),
        (GroupMoved(1, 2), b"[1, 2, 3, 4]"),
        (StopReading(), b"[ ]"),
        (StateRequest(7), b"[true]"),
    ],
)
def test_control_messages_of_another_shape_are_refused(message: Message, content: bytes) -> None:
    form = FORMATS[type(message)]
    kind = int(form.pack(message)[16:24].view("<i8")[0])
    with pytest.raises(RunFailed, match="content of another shape"):
        form.unpack(pack(kind, [], [np.frombuffer(content, np.uint8)]))


def test_a_part_that_is_no_part_is_refused() -> None:
    frame = FORMATS[PartSaved].pack(PartSaved(2, "slave 1", {}))
    for damaged in (b'[2, "slave 1", [] ]', b'[2, "slave 1", {} ]', b"not JSON but 19 Byt"):
        part = frame.copy()
        at = bytes(part).index(b'[2, "slave 1", {}]')
        part[at : at + 19] = np.frombuffer(damaged, np.uint8)
        with pytest.raises(RunFailed, match="a part of a checkpoint"):
            FORMATS[PartSaved].unpack(part)
