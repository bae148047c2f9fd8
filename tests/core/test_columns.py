"""Columns between stages: take, slice, concat and bytes keep values and length; types as text; hashes of keys."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest

from swjoin.core.columns import Columns, type_named
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import KeyEncoder

VALUES = {"k": ["a", None, "ccc", "a"], "v": [1, 2, None, 4], "b": [True, None, False, True]}


def _columns() -> Columns:
    return Columns(pa.record_batch({name: pa.array(values) for name, values in VALUES.items()}))


def _rows(columns: Columns) -> list[dict[str, object]]:
    return columns.batch.to_pylist()


def test_take_slice_and_concat_keep_rows() -> None:
    whole = _columns()
    rows = _rows(whole)
    assert _rows(whole.take(np.array([3, 0, 0, 2]))) == [rows[i] for i in (3, 0, 0, 2)]
    parts = [whole.slice(0, 1), whole.slice(1, 1), whole.slice(1, 4)]
    assert [len(part) for part in parts] == [1, 0, 3]
    assert _rows(Columns.concat(parts)) == rows
    assert Columns.concat([whole]) is whole
    assert whole.select(["v", "k"]).names == ["v", "k"]
    assert whole.select(whole.names) is whole


@pytest.mark.parametrize("start", [0, 1, 4])
def test_bytes_come_back(start: int) -> None:
    part = _columns().slice(start, 4)
    assert Columns.from_bytes(part.to_bytes()).batch.equals(part.batch)


def test_spoiled_bytes_are_refused_or_whole() -> None:
    data = _columns().to_bytes()
    for length in range(0, len(data), 5):
        with pytest.raises(RunFailed, match="corrupt columns"):
            Columns.from_bytes(data[:length].copy())
    random = np.random.default_rng(1)
    refused = 0
    for _ in range(1500):
        spoiled = data.copy()
        spoiled[random.integers(0, len(data), 2)] ^= np.uint8(random.integers(1, 256))
        try:
            Columns.from_bytes(spoiled).batch.validate(full=True)
        except RunFailed:
            refused += 1
    assert refused > 100


TYPES = (
    *(pa.null(), pa.bool_(), pa.int8(), pa.uint64(), pa.float16(), pa.float32(), pa.float64(), pa.string(), pa.large_string()),
    *(pa.string_view(), pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(7), pa.date32(), pa.date64()),
    *(pa.time32("s"), pa.time32("ms"), pa.time64("us"), pa.time64("ns"), pa.duration("ms"), pa.timestamp("us")),
    *(pa.timestamp("ns", "Europe/Berlin"), pa.decimal128(20, 0), pa.decimal256(50, -3), pa.dictionary(pa.int8(), pa.string())),
    pa.dictionary(pa.uint32(), pa.timestamp("us", "UTC"), ordered=True),
)


@pytest.mark.parametrize("kind", TYPES, ids=str)
def test_types_come_back_from_their_text(kind: pa.DataType) -> None:
    assert type_named(str(kind)) == kind


@pytest.mark.parametrize(
    "text",
    ["", "int", "int128", "list<item: int64>", "struct<a: int64>", "timestamp[h]", "date32[ms]", "decimal128(20)", "int64 "],
)
def test_other_types_are_refused(text: str) -> None:
    with pytest.raises(UserError, match="cannot travel between stages"):
        type_named(text)


@pytest.mark.parametrize(
    ("left", "right", "values"),
    [
        (pa.string(), pa.large_string(), ["", "a", None, "ab"]),
        (pa.string(), pa.dictionary(pa.int8(), pa.string()), ["", "a", None, "ab"]),
        (pa.string_view(), pa.string(), ["", "a", None, "ab"]),
        (pa.binary(), pa.binary(2), [b"ab", b"cd", None]),
        (pa.int8(), pa.int64(), [0, -1, None, 127]),
        (pa.uint64(), pa.int32(), [0, 1, None, 1 << 30]),
    ],
    ids=str,
)
def test_equal_keys_have_equal_hashes(left: pa.DataType, right: pa.DataType, values: list[object]) -> None:
    keys = KeyEncoder([("k", left)], [("k", right)])
    found = [keys.hashed([pa.array(values, pa.string()).dictionary_encode().cast(kind)] if pa.types.is_dictionary(kind)
                         else [pa.array(values, kind)]) for kind in (left, right)]  # fmt: skip
    for (hashes, valid), (others, valid_others) in [(found[0], found[1])]:
        assert valid is not None
        assert valid_others is not None
        expected = [value is not None for value in values]
        assert valid.tolist() == valid_others.tolist() == expected
        assert hashes[valid].tolist() == others[valid].tolist()
        assert len(set(hashes[valid].tolist())) == sum(expected)
