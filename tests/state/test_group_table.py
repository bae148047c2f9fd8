"""Tables of groups, their keys and the windows of time: against Python's own dictionaries and integers, for any values."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.aggregate_functions import Accumulation, accumulation_of, from_ordered, ordered, result_type
from swjoin.core.errors import UserError
from swjoin.core.group_keys import GroupKeys
from swjoin.core.key_encoder import Dictionary, KeyEncoder
from swjoin.core.time_windows import TimeWindows
from swjoin.state.group_table import GroupTable

KINDS = (Accumulation.COUNT, Accumulation.INTEGERS, Accumulation.DOUBLES, Accumulation.LEAST, Accumulation.GREATEST)
INTEGERS = st.integers(-(1 << 63), (1 << 63) - 1)
DOUBLES = st.floats(-1e300, 1e300)
VALUES = st.tuples(st.integers(-3, 3), st.booleans(), st.one_of(st.none(), INTEGERS), st.one_of(st.none(), DOUBLES))
ROWS = st.lists(VALUES, max_size=60)
KEYS = st.tuples(
    st.sampled_from([None, "", "a", "b\0", "é"]), st.sampled_from([None, 0, -1]), st.sampled_from([None, 0.0, -0.0, math.nan])
)


def _add(table: GroupTable, rows: list[tuple[int, bool, int | None, float | None]]) -> None:
    keys = np.array([row[0] for row in rows], np.int64)
    nulls = np.array([row[1] for row in rows], np.bool_)
    slots = table.slots_of(keys, nulls, keys % 2)
    whole = np.array([0 if row[2] is None else row[2] for row in rows], np.int64)
    real = np.array([0.0 if row[3] is None else row[3] for row in rows], np.float64)
    valid = [np.array([row[i] is not None for row in rows], np.bool_) for i in (2, 3)]
    table.add(0, slots, None, None)
    table.add(1, slots, valid[0], whole)
    table.add(2, slots, valid[1], real)
    table.add(3, slots, valid[0], whole)
    table.add(4, slots, valid[0], whole)


def _read(table: GroupTable) -> dict[tuple[int, bool], tuple[Any, ...]]:
    slots, out = np.arange(len(table)), {}
    sums = table.sums(2, slots)
    for i, key in enumerate(zip(table.keys.tolist(), table.nulls.tolist(), strict=True)):
        at = slots[i : i + 1]
        low, high = int(table.words(1, 1, at).view(np.uint64)[0]), int(table.words(1, 2, at)[0])
        counts = [int(table.words(call, 0, at)[0]) for call in range(5)]
        extremes = [int(table.words(call, 1, at)[0]) if counts[call] else None for call in (3, 4)]
        out[key] = (counts[0], counts[1], (high << 64) + low, counts[2], sums[i], *extremes)
    return out


def _wanted(rows: list[tuple[int, bool, int | None, float | None]]) -> dict[tuple[int, bool], tuple[Any, ...]]:
    groups: dict[tuple[int, bool], list[Any]] = {}
    for row in rows:
        groups.setdefault(row[:2], []).append(row[2:])
    out = {}
    for key, mine in groups.items():
        whole, real = ([pair[i] for pair in mine if pair[i] is not None] for i in (0, 1))
        least = (min(whole), max(whole)) if whole else (None, None)
        out[key] = (len(mine), len(whole), sum(whole), len(real), math.fsum(real), *least)
    return out


@settings(max_examples=150)
@given(st.lists(ROWS, max_size=4))
def test_rows_added_in_parts_and_in_tables_that_are_combined(parts: list[Any]) -> None:
    one, whole = GroupTable(KINDS), GroupTable(KINDS)
    for part in parts:
        other = GroupTable(KINDS)
        _add(one, part)
        _add(other, part)
        whole.combine(other)
    rows = [row for part in parts for row in part]
    assert _read(one) == _read(whole) == _wanted(rows)
    rest = one.without(1)
    assert _read(rest) == _wanted([row for row in rows if row[0] % 2 == 0])
    moved = GroupTable(KINDS)
    _add(moved, rows[: len(rows) // 2])
    slots = np.flatnonzero(whole.groups == 1)
    moved.put(whole.keys[slots], 1, whole.taken(slots))
    assert _read(moved) == _wanted([*rows[: len(rows) // 2], *(row for row in rows if row[0] % 2 == 1)])


def test_a_table_grows_and_keeps_its_groups() -> None:
    table = GroupTable(KINDS)
    keys = np.arange(20_000, dtype=np.int64) * 7_919
    nulls, groups = np.zeros(len(keys), np.bool_), keys % 3
    for _ in range(2):
        slots = table.slots_of(keys, nulls, groups)
        table.add(0, slots, None, None)
    assert len(table) == 20_000
    assert (table.words(0, 0, slots) == 2).all()
    assert (table.keys[slots] == keys).all()
    assert (table.groups[slots] == groups).all()


@settings(max_examples=100)
@given(st.lists(st.lists(st.tuples(st.integers(-2, 2), st.integers(0, 3), INTEGERS), max_size=40), max_size=3))
def test_groups_of_several_panes_are_apart(parts: list[list[tuple[int, int, int]]]) -> None:
    kinds = (Accumulation.INTEGERS, Accumulation.LEAST)
    table, by_pane = GroupTable(kinds, in_panes=True), {pane: GroupTable(kinds) for pane in range(4)}
    for part in parts:
        keys, panes, values = np.array(part, np.int64).reshape(-1, 3).T.copy()
        none = np.zeros(len(keys), np.bool_)
        slots = table.slots_of(keys, none, keys % 2, panes)
        for call in range(2):
            table.add(call, slots, None, values)
        for pane, alone in by_pane.items():
            mine = panes == pane
            at = alone.slots_of(keys[mine], none[mine], keys[mine] % 2)
            for call in range(2):
                alone.add(call, at, None, values[mine])
    moved = GroupTable(kinds, in_panes=True)
    slots = np.flatnonzero(table.groups == 1)
    moved.put(table.keys[slots], 1, table.taken(slots), table.panes[slots])
    rest = table.without(1)
    for pane, alone in by_pane.items():
        wanted = [(k, g, w) for k, g, w in zip(*map(np.ndarray.tolist, (alone.keys, alone.groups, _words(alone))), strict=True)]
        for found, groups in ((table, (0, 1)), (moved, (1,)), (rest, (0,)), (table.only(np.arange(len(table))), (0, 1))):
            mine = found.panes == pane
            columns = (found.keys[mine], found.groups[mine], _words(found)[mine])
            shown = list(zip(*map(np.ndarray.tolist, columns), strict=True))
            assert sorted(shown) == sorted(row for row in wanted if row[1] in groups)


def _words(table: GroupTable) -> Any:
    """Accumulators of all groups, int64 (n, words)."""
    return table.taken(np.arange(len(table)))[:, 1:]


@settings(max_examples=60)
@given(st.lists(KEYS))
def test_keys_of_several_columns_come_back(rows: list[tuple[Any, ...]]) -> None:
    types = [("s", pa.string()), ("i", pa.int16()), ("d", pa.float64())]
    columns = [pa.array([row[i] for row in rows], kind) for i, (_, kind) in enumerate(types)]
    keys = GroupKeys(types)
    assert not keys.native
    codes, nulls = keys.encode(columns, len(rows))
    assert not nulls.any()
    shown = [tuple(str(v + 0.0) if isinstance(v, float) else v for v in row) for row in rows]
    for i, j in zip(range(len(rows)), range(1, len(rows)), strict=False):
        assert (codes[i] == codes[j]) == (shown[i] == shown[j])
    back = [column.to_pylist() for column in keys.columns_of(codes, nulls)]
    assert [tuple(str(v) if isinstance(v, float) else v for v in row) for row in zip(*back, strict=True)] == shown
    hashes = keys.hashed(columns, len(rows))
    assert len(set(zip(codes.tolist(), hashes.tolist(), strict=True))) == len(set(codes.tolist()))


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.one_of(st.none(), INTEGERS), st.booleans(), st.sampled_from([None, "", "seven b", "eight by", "nine byte"])
        )
    )
)
def test_keys_have_the_hashes_and_codes_of_their_bytes(rows: list[tuple[Any, ...]]) -> None:
    types = [("i", pa.int64()), ("b", pa.bool_()), ("s", pa.string())]
    columns = [pa.array([row[i] for row in rows], kind) for i, (_, kind) in enumerate(types)]
    for count in (2, 3):  # integers alone, and with text
        keys = KeyEncoder(types[:count], types[:count])
        hashes, valid, sent = keys.to_send(columns[:count])
        assert sent is not None
        again, also_valid = keys.hashed(columns[:count])
        assert again.tolist() == hashes.tolist()
        assert (valid is None) == (also_valid is None)
        texts = sent.column("key").to_pylist()
        assert [_fnv(text) for text in texts] == hashes.view(np.uint64).tolist()
        first = {text: code for code, text in reversed(list(enumerate(dict.fromkeys(texts))))}
        codes = Dictionary().codes_of(sent).tolist()
        assert codes == [first[text] for text in texts]


def _fnv(text: bytes) -> int:
    found = 0xCBF29CE484222325
    for byte in text:
        found = (found ^ byte) * 0x100000001B3 % (1 << 64)
    return found ^ found >> 32


@given(st.integers(1, 40), st.integers(1, 40), st.integers(-5, 5), st.integers(-200, 200))
def test_windows_of_a_time(size: int, slide: int, origin: int, ts: int) -> None:
    windows = TimeWindows(size, slide, origin)
    starts = [start for k in range(-300, 300) if (start := origin + k * slide) <= ts < start + size]
    inside = windows.inside(np.array([ts]))
    assert (inside is None or bool(inside[0])) == bool(starts)
    (pane,) = windows.panes(np.array([ts])).tolist()
    assert pane <= ts < pane + windows.pane_us
    if starts:
        assert windows.first_with(pane) == starts[0]
        assert all(start <= pane and pane + windows.pane_us <= start + size for start in starts)
    after = windows.first_after(ts)
    assert after + size > ts >= after - slide + size
    (bucket,) = windows.buckets(np.array([pane])).tolist()
    assert windows.in_buckets == (slide % size == 0)
    assert bucket <= pane < bucket + windows.bucket_us
    assert (bucket - origin) % windows.bucket_us == 0 or not windows.in_buckets
    assert windows.in_buckets or bucket == pane


@pytest.mark.parametrize(
    ("size_us", "slide_us", "bucket_us"),
    [(1, 1, 1_000_000), (3, 6, 999_999), (2, 1, 1), (600_000, 600_000, 600_000), (5_000_000, 5_000_000, 5_000_000)],
)
def test_buckets_are_a_second_of_short_windows(size_us: int, slide_us: int, bucket_us: int) -> None:
    assert TimeWindows(size_us, slide_us).bucket_us == bucket_us


@pytest.mark.parametrize("size", [0, -1])
def test_lengths_of_windows_are_above_zero(size: int) -> None:
    with pytest.raises(UserError, match="a window's size is"):
        TimeWindows(size, 1)


@pytest.mark.parametrize(
    "values",
    [
        pa.array([3, -4, 127, -128], pa.int8()),
        pa.array([0, 1 << 63, (1 << 64) - 1], pa.uint64()),
        pa.array([1.5, -0.0, 0.0, -math.inf, math.inf, math.nan, 1e-310]),
        pa.array([0.5, -2.5], pa.float32()),
        pa.array([True, False]),
        pa.array([5, -5], pa.timestamp("s", "UTC")),
        pa.array([5, -5], pa.date32()),
        pa.array([5, 6], pa.time32("ms")),
    ],
    ids=lambda values: str(values.type),
)
def test_ordered_codes(values: pa.Array) -> None:
    codes = ordered(values)
    back = from_ordered(codes, np.zeros(len(codes), np.bool_), values.type)
    assert back.type == values.type
    plain = [str(v + 0.0) if isinstance(v, float) else v for v in values.to_pylist()]
    assert [str(v) if isinstance(v, float) else v for v in back.to_pylist()] == plain

    def key(value: Any) -> Any:
        return (math.isnan(value), value) if isinstance(value, float) else value

    listed: list[Any] = values.to_pylist()
    by_code = [listed[i] for i in np.argsort(codes, kind="stable")]
    assert list(map(str, by_code)) == list(map(str, sorted(listed, key=key)))


@pytest.mark.parametrize(
    ("function", "argument", "problem"),
    [
        ("median", "int64", "no aggregate function median; use count, sum, avg, min, max, first, last, arg_min, arg_max"),
        ("sum", None, "sum needs a column; name one"),
        ("sum", "string", "sum of string; cast it to BIGINT or DOUBLE"),
        ("avg", "bool", "avg of bool; cast it"),
        ("max", "month_day_nano_interval", "cannot travel between stages"),
        ("arg_max", "int64", "arg_max needs a column to compare"),
        ("sum", "decimal256(50, 2)", r"sum of decimal256\(50, 2\)"),
    ],
)
def test_functions_that_cannot_be(function: str, argument: str | None, problem: str) -> None:
    with pytest.raises(UserError, match=problem):
        accumulation_of(function, argument)


def test_types_of_results() -> None:
    wanted = {
        ("count", None): "int64",
        ("count", "string"): "int64",
        ("sum", "int8"): "int64",
        ("sum", "float"): "double",
        ("avg", "uint64"): "double",
        ("sum", "decimal64(12, 3)"): "decimal128(38, 3)",
        ("avg", "decimal128(38, 3)"): "double",
        ("min", "date32[day]"): "date32[day]",
        ("max", "dictionary<values=int32, indices=int8, ordered=0>"): "int32",
    }
    assert {call: result_type(*call) for call in wanted} == wanted
