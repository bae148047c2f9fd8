"""Joins whose windows count rows, against brute force over the order of all rows: whatever the epochs, pieces, moves and
restores are; planted bugs; what is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import HealthCheck, Phase, find, given, settings
from hypothesis import strategies as st
from hypothesis.errors import NoSuchExample

from swjoin.core.batch import ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.operators import counted_join as operator
from swjoin.operators.join_operator import MoveId
from swjoin.operators.keyed_operator import Limits
from swjoin.plan.counted_joins import CountedJoin, counted_columns_of, counted_types
from swjoin.plan.logical import Column, Schema
from swjoin.plan.watermarks import needed_below, watermark_out
from tests.tools.plan_oracle import Row, counted_rows

TYPES = {"part": "int64", "a": "string", "b": "int64", "c": "string", "own": "double"}
COLUMNS = [  # by part: a star, a path, parts that share two or three columns, and ones that share none
    (("a", "own"), ("a",), ("a", "b")),
    (("a", "own"), ("a", "b"), ("b", "c")),
    (("a", "b"), ("a", "b", "own")),
    (("a", "b", "c"), ("a", "b", "c", "own")),
    (("a", "own"), ("b",)),
    (("a",), ("b", "c"), ("a", "b", "own"), ("c",)),
]
WINDOWS = [(1, 0), (2, 0), (3, 0), (0, 0), (0, 2), (0, 1 << 59)]  # rows, microseconds


def types_of(node: CountedJoin) -> dict[str, str]:
    """Of the columns that its parts have."""
    return {name: kind for name, kind in TYPES.items() if name == "part" or any(name in mine for mine in node.columns)}


class Case(NamedTuple):
    """rows: in the order of arrival. watermarks: after how many rows, and which."""

    node: CountedJoin
    rows: list[Row]
    watermarks: list[tuple[int, int]]


@st.composite
def cases(draw: Callable[..., Any]) -> Case:
    columns = draw(st.sampled_from(COLUMNS))
    windows = draw(st.lists(st.sampled_from(WINDOWS), min_size=len(columns), max_size=len(columns)))
    streams = draw(st.lists(st.integers(0, 1), min_size=len(columns), max_size=len(columns)))
    counts, widths = (tuple(window[i] for window in windows) for i in (0, 1))
    node = CountedJoin("j", "u", "part", columns, tuple(streams), counts, widths)
    rows = []
    for i in range(draw(st.integers(0, 14))):
        part = draw(st.integers(0, len(columns) - 1))
        values: dict[str, Any] = {"part": part}
        for name in columns[part]:
            drawn = {"a": ["x", "y"], "b": [1, -2], "c": ["x", ""], "own": [None, 0.5]}[name]
            values[name] = draw(st.sampled_from([*drawn, drawn[0], drawn[0]]))
        same = rows and draw(st.integers(0, 5)) == 0 and rows[-1].values[0] != part  # one row of a source may be of two parts
        row_id, ts = (rows[-1].id, rows[-1].ts) if same else (i * 7 % 5 + 10 * i, draw(st.integers(-4, 4)))
        rows.append(Row(row_id, ts, tuple(values.get(name) for name in TYPES)))
    cuts = sorted(draw(st.lists(st.integers(0, len(rows)), max_size=5)))
    watermarks, last = [], BEGIN_OF_TIME_US
    for cut in cuts:
        most = min((row.ts for row in rows[cut:]), default=20)
        last = draw(st.integers(max(last, min(most, -6)), most)) if draw(st.booleans()) else max(last, min(most, 20))
        watermarks.append((cut, last))
    return Case(node, rows, watermarks)


def batch_of(rows: Sequence[Row]) -> TupleBatch:
    columns = list(zip(*(row.values for row in rows), strict=True)) if rows else [()] * len(TYPES)
    kinds = {"int64": pa.int64(), "string": pa.string(), "double": pa.float64()}
    arrays = {name: pa.array(list(v), kinds[kind]) for (name, kind), v in zip(TYPES.items(), columns, strict=True)}
    ts = np.array([row.ts for row in rows], np.int64)
    ids = np.array([row.id for row in rows], np.uint64)
    return TupleBatch(np.zeros(len(rows), np.int64), ts, ids, ts, None, Columns(pa.record_batch(arrays)))


class Instance:
    """An operator, and the log of what has come to it."""

    def __init__(self, node: CountedJoin) -> None:
        self.node = node
        self.columns = counted_columns_of(node, types_of(node), {*types_of(node), "ts", "born"})
        self.operator = self._new()

    def _new(self) -> operator.CountedJoin:
        names = tuple(tuple(name for name in self.node.shared if name in mine) for mine in self.node.columns)
        parts = operator.CountedParts(names, self.node.streams, self.node.counts, self.node.widths)
        return operator.CountedJoin(parts, self.columns, Limits(1, 1 << 20), "slave 0")

    def deliver(self, rows: Sequence[Row], watermark_us: int) -> list[ResultRows]:
        """What comes out."""
        found: list[ResultRows] = []
        work, done = self.operator.open(delivery_of(rows, watermark_us)), False
        while not done:
            step = self.operator.step(work, 0, 2)
            done = step.done
            if step.pairs is not None:
                assert isinstance(step.pairs, ResultRows)
                found.append(step.pairs)
        assert sum(map(len, found)) == (0 if work.unmatched is None else work.unmatched.counts.sum())
        self.operator.validate()
        return found

    def restart(self, log: Sequence[tuple[Sequence[Row], int]], needed_us: int, *, by_epochs: bool) -> None:
        """As after a crash: what a checkpoint forgets is not in the log."""
        self.operator, last = self._new(), BEGIN_OF_TIME_US
        for rows, watermark_us in log:
            self.operator.restore(delivery_of([row for row in rows if row.ts >= needed_us], watermark_us))
            if by_epochs:
                self.operator.restored_until((watermark_us, END_OF_TIME_US))
            last = watermark_us
        self.operator.restored(np.array([[last, END_OF_TIME_US]]))
        self.operator.validate()


def delivery_of(rows: Sequence[Row], watermark_us: int) -> Delivery:
    groups, counts = (np.array([n] if rows else [], np.int64) for n in (0, len(rows)))
    times, right = (watermark_us, END_OF_TIME_US), TupleBatch.empty()
    return Delivery(0, SlaveId(0), EpochIndex(0), *times, groups, counts, np.zeros_like(counts), batch_of(rows), right)


def decoded(found: Sequence[ResultRows]) -> list[tuple[Any, ...]]:
    """Ids, times and values."""
    out = []
    for rows in found:
        assert rows.columns is not None
        values = [
            column.cast(pa.int64()) if pa.types.is_timestamp(column.type) else column for column in rows.columns.batch.columns
        ]
        out += list(zip(rows.id.tolist(), rows.ts.tolist(), zip(*(v.to_pylist() for v in values), strict=True), strict=True))
    return out


def expected(case: Case) -> list[tuple[Any, ...]]:
    types = types_of(case.node)
    rows = [
        row._replace(values=tuple(v for v, name in zip(row.values, TYPES, strict=True) if name in types)) for row in case.rows
    ]
    schema = Schema(tuple(Column(*column) for column in types.items()), "ts")
    return [(row.id, row.ts, row.values) for row in counted_rows(case.node, schema, rows)]


def run(case: Case) -> list[tuple[Any, ...]]:
    instance, found, at, last = Instance(case.node), [], 0, BEGIN_OF_TIME_US
    for cut, watermark_us in [*case.watermarks, (len(case.rows), END_OF_TIME_US)]:
        rows = decoded(instance.deliver(case.rows[at:cut], watermark_us))
        assert all(last <= ts < watermark_us for _, ts, _ in rows), "what comes out is between two watermarks"
        found += rows
        at, last = cut, watermark_us
    assert instance.operator.window_tuples() == (0, 0)
    return found


def is_right(case: Case) -> bool:
    return sorted(map(repr, run(case))) == sorted(map(repr, expected(case)))


@settings(max_examples=200, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.sampled_from([1, 2, 100]), st.sampled_from([1, 2, 100]))
def test_whatever_the_epochs_and_pieces_are(case: Case, least: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operator, "_LEAST", least)
        patch.setattr(operator, "_MOST", most)
        assert is_right(case)


@settings(max_examples=80, deadline=None, suppress_health_check=list(HealthCheck))
@given(cases(), st.data())
def test_moves_and_restores(case: Case, data: st.DataObject) -> None:
    """Between epochs the rows move to another instance, or the one that has them is restored from what it needs of the log."""
    instance, found, at = Instance(case.node), list[Any](), 0
    log: list[tuple[list[Row], int]] = []
    for cut, watermark_us in [*case.watermarks, (len(case.rows), END_OF_TIME_US)]:
        rows = case.rows[at:cut]
        log.append((rows, watermark_us))
        found += decoded(instance.deliver(rows, watermark_us))
        at = cut
        if watermark_us < END_OF_TIME_US and data.draw(st.booleans()):
            other = Instance(case.node)
            other.deliver([], watermark_us)
            move = MoveId(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1))
            leaving = instance.operator.export_group(move, (TupleBatch.empty(), TupleBatch.empty()), 64)
            coming = None
            while not leaving.done:
                chunk = leaving.next_chunk()
                coming = coming or other.operator.import_group(chunk)
                coming.add(chunk)
            assert not instance.operator.group_ids()
            instance = other
        elif watermark_us < END_OF_TIME_US and data.draw(st.booleans()):
            needed_us = instance.operator.needed_us()
            instance.restart(log, needed_us, by_epochs=data.draw(st.booleans()))
    assert sorted(map(repr, found)) == sorted(map(repr, expected(case)))


def test_only_windows_are_kept() -> None:
    node = CountedJoin("j", "u", "part", (("a",), ("a",)), (0, 1), (3, 0), (0, 5))
    instance = Instance(node)
    for step in range(100):
        rows = [Row(10 * step + part, 10 * step, (part, "x", None, None, None)) for part in (0, 1) for _ in range(4)]
        instance.deliver(rows, 10 * step + 1)
        assert instance.operator.window_tuples() == (3 + 4, 0)
        assert instance.operator.needed_us() == 10 * step


def test_a_late_row_ends_the_run() -> None:
    instance = Instance(CountedJoin("j", "u", "part", (("a",), ("a",)), (0, 0), (1, 1), (0, 0)))
    instance.deliver([], 10)
    with pytest.raises(RunFailed, match="slave 0, epoch 0: a row of time 3 us came after its window had ended"):
        instance.deliver([Row(0, 3, (0, "x", None, None, None))], 10)


BUGS: dict[str, tuple[str, Callable[..., Any]]] = {
    "a row too many is alive": (
        "_piece",
        lambda self, rows, first, parts, ts, codes, real: (piece := real(self, rows, first, parts, ts, codes))._replace(
            until=piece.until + 2
        ),
    ),
    "ids decide before streams": (
        "_in_order",
        lambda self, us, real: (
            (order := real(self, us))[np.lexsort((self._kept.rows.id[order], self._kept.rows.ts[order]))]
            if len(self._kept)
            else real(self, us)
        ),
    ),
    "an end is exclusive": ("_ends", lambda self, piece, places, real: real(self, piece, places) - 1),
    "a window forgets its oldest row": (
        "_alive",
        lambda self, parts, ts, us, real: (alive := real(self, parts, ts, us)) & (np.cumsum(alive) != 1),
    ),
}


@pytest.mark.parametrize("bug", sorted(BUGS))
def test_planted_bugs_are_caught(bug: str, monkeypatch: pytest.MonkeyPatch) -> None:
    name, planted = BUGS[bug]
    real = getattr(operator.CountedJoin, name)
    monkeypatch.setattr(operator.CountedJoin, name, lambda self, *args: planted(self, *args, real=real))
    monkeypatch.setattr(operator.CountedJoin, "validate", lambda self: None)
    quick = settings(max_examples=2_000, deadline=None, database=None, phases=[Phase.generate], derandomize=True)
    try:
        find(cases(), lambda case: not is_right(case), settings=quick)
    except NoSuchExample:
        pytest.fail(f"no case shows that {bug}")
    except AssertionError:
        pass  # the checks of a run have found it


# ---------------------------------------------------------------- the node


def test_watermarks() -> None:
    node = CountedJoin("j", "u", "part", (("a",), ("a",)), (0, 0), (1, 1), (0, 0))
    for us in (BEGIN_OF_TIME_US, -3, 0, END_OF_TIME_US):
        assert watermark_out(node, [us]) == us
    assert needed_below(node, [5]) == (BEGIN_OF_TIME_US, END_OF_TIME_US)
    assert needed_below(node, [END_OF_TIME_US])[0] == END_OF_TIME_US


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"part": "x"}, "j: no column x; columns are part, a, b, c, own"),
        ({"columns": (("a", "b"), ("a", "c"))}, "j: column own is of no part; say which parts have it"),
        ({"part": "c", "columns": (("a", "b", "own", "part"), ("a",))}, "j: column c is string; number the parts in int64"),
        ({"columns": (("a", "b", "c", "own"),)}, "j: 1 parts; give two or more, each with a stream and a window"),
        ({"counts": (1,)}, "j: 2 parts; give two or more, each with a stream and a window"),
        ({"counts": (1, -1)}, "j: a window below zero; give a number of rows, or a time"),
        (
            {"columns": (("own", "a"), ("own", "b", "c"))},
            "j: shared column own is double; cast it to one of string, large_string, int64",
        ),
        ({"born": "c"}, "j: two columns are named c; name each once"),
    ],
)
def test_what_is_refused(change: dict[str, Any], text: str) -> None:
    fields = {
        "columns": (("a", "b", "c", "own"), ("a",)),
        "streams": (0, 0),
        "counts": (1, 1),
        "widths": (0, 0),
        "part": "part",
    } | change
    with pytest.raises(UserError) as refused:
        counted_types(CountedJoin("j", "u", **fields), TYPES, "ts")
    assert str(refused.value) == text
    with pytest.raises(UserError, match="input u has no time"):
        counted_types(CountedJoin("j", "u", **fields), TYPES, None)
