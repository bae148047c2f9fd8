"""Payload rows and keys: exact round trips, exact equality."""

from __future__ import annotations

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.batch import PayloadRows
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.key_encoder import Dictionary, KeyEncoder
from swjoin.core.row_codec import RowCodec

TYPES: dict[pa.DataType, st.SearchStrategy[object]] = {
    pa.int8(): st.integers(-128, 127),
    pa.uint64(): st.integers(0, 2**64 - 1),
    pa.float64(): st.floats(allow_nan=False),
    pa.bool_(): st.booleans(),
    pa.date32(): st.dates(),
    pa.timestamp("ns", "UTC"): st.datetimes(
        datetime.datetime(1970, 1, 1), datetime.datetime(2200, 1, 1), timezones=st.just(datetime.UTC)
    ),
    pa.duration("ms"): st.integers(0, 10**9).map(lambda ms: datetime.timedelta(milliseconds=ms)),
    pa.decimal128(20, 2): st.integers(-(10**17), 10**17).map(lambda i: decimal.Decimal(i) / 100),
    pa.binary(5): st.binary(min_size=5, max_size=5),
    pa.string(): st.text(max_size=8),
    pa.large_binary(): st.binary(max_size=8),
    pa.dictionary(pa.int32(), pa.string()): st.sampled_from(["p", "qq", ""]),
    pa.null(): st.none(),
}


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_rows_round_trip(data: st.DataObject) -> None:
    kinds = data.draw(st.lists(st.sampled_from(list(TYPES)), min_size=1, max_size=10))
    n = data.draw(st.integers(0, 12))
    columns = [
        pa.array(data.draw(st.lists(st.one_of(st.none(), TYPES[k]), min_size=n, max_size=n)), k)
        if not pa.types.is_dictionary(k)
        else pa.array(
            data.draw(st.lists(st.one_of(st.none(), TYPES[k]), min_size=n, max_size=n)), pa.string()
        ).dictionary_encode()
        for k in kinds
    ]
    batch = pa.record_batch(columns, [f"c{i}" for i in range(len(kinds))])
    codec = RowCodec(batch.schema)
    start = data.draw(st.integers(0, n))
    rows = codec.encode(batch.slice(start))
    assert rows.layout == codec.layout
    order = np.array(data.draw(st.permutations(range(n - start))), np.int64)
    moved = RowCodec.from_bytes(codec.to_bytes()).decode(PayloadRows.concat([rows.take(order), rows.slice(0, 0)], rows.layout))
    for column, got in zip(columns, moved, strict=True):
        expected = [column.slice(start)[int(i)].as_py() for i in order]
        assert got.to_pylist() == expected
        got.validate(full=True)


def test_types_that_cannot_be_carried_are_named() -> None:
    with pytest.raises(UserError, match=r"column tags: type list<item: int64> cannot be carried; leave it out with --columns"):
        RowCodec(pa.schema([("tags", pa.list_(pa.int64()))]))


# ---------------------------------------------------------------- keys


def codes(encoder: KeyEncoder, *columns: pa.Array) -> list[int]:
    return encoder.encode(list(columns))[0].tolist()


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(st.one_of(st.none(), st.text(max_size=3)), st.integers(0, 3), st.text(max_size=3)), max_size=40))
def test_codes_are_equal_exactly_when_keys_are(rows: list[tuple[str | None, int, str]]) -> None:
    kinds = [("a", pa.string()), ("b", pa.int64()), ("c", pa.string())]
    encoder = KeyEncoder(kinds, kinds)
    half = len(rows) // 2
    found: dict[tuple[object, ...], int] = {}
    for part in (rows[:half], rows[half:]):
        key, valid = encoder.encode(
            [
                pa.array([r[0] for r in part], pa.string()),
                pa.array([r[1] for r in part], pa.int64()),
                pa.array([r[2] for r in part], pa.string()),
            ]
        )
        for i, row in enumerate(part):
            if row[0] is None:
                assert valid is not None
                assert not valid[i]
                continue
            assert found.setdefault(row, int(key[i])) == key[i]
    assert len(set(found.values())) == len(found)


def test_strings_that_concatenate_alike_stay_apart() -> None:
    kinds = [("a", pa.string()), ("b", pa.string())]
    encoder = KeyEncoder(kinds, kinds)
    one, two = codes(encoder, pa.array(["a", "ab"]), pa.array(["bc", "c"]))
    assert one != two
    assert codes(encoder, pa.array(["ab"]), pa.array(["c"])) == [two]


def test_integers_are_their_own_keys_whatever_their_width() -> None:
    encoder = KeyEncoder([("k", pa.int32())], [("k", pa.int64())])
    assert encoder.native
    assert codes(encoder, pa.array([-5, None, 7], pa.int32())) == [-5, 0, 7]
    assert codes(KeyEncoder([("k", pa.uint64())], [("k", pa.uint64())]), pa.array([2**64 - 1], pa.uint64())) == [-1]


def test_string_types_compare_by_their_bytes() -> None:
    encoder = KeyEncoder([("k", pa.dictionary(pa.int8(), pa.string()))], [("k", pa.large_string())])
    left = codes(encoder, pa.array(["ä", "b", "ä"]).dictionary_encode())
    assert codes(encoder, pa.array(["b", "ä", ""], pa.large_string()))[:2] == [left[1], left[0]]
    assert codes(encoder, pa.array(["zz", "b"]).slice(1)) == [left[1]]


@pytest.mark.parametrize(
    ("left", "right", "message"),
    [
        (pa.string(), pa.int64(), "cast one side"),
        (pa.uint64(), pa.binary(), "cast one side"),
        (pa.timestamp("us"), pa.timestamp("ms"), "cast one side"),
        (pa.float64(), pa.float64(), "round it to an integer"),
        (pa.list_(pa.int8()), pa.list_(pa.int8()), "cannot be a join key"),
    ],
)
def test_key_types_that_do_not_agree(left: pa.DataType, right: pa.DataType, message: str) -> None:
    with pytest.raises(UserError, match=message):
        KeyEncoder([("k", left)], [("k", right)])


def test_many_distinct_keys_and_the_limit() -> None:
    keys = pa.array([f"key-{i}" for i in range(200_000)])
    encoder = KeyEncoder([("k", pa.string())], [("k", pa.string())])
    assert codes(encoder, keys) == list(range(200_000))
    assert codes(encoder, keys.slice(199_000)) == list(range(199_000, 200_000))
    encoder.dictionary = Dictionary(limit_bytes=1 << 20)
    with pytest.raises(RunFailed, match="distinct keys"):
        codes(encoder, keys)


def test_lengths_that_do_not_add_up_are_refused() -> None:
    """They come with messages and checkpoints, and bytes are copied by them."""
    codec = RowCodec(pa.schema([("a", pa.string()), ("n", pa.int32()), ("b", pa.binary())]))
    batch = pa.record_batch({"a": ["xy", "z"], "n": pa.array([1, 2], pa.int32()), "b": pa.array([b"1", b"234"])})
    rows = codec.encode(batch)
    assert [array.to_pylist() for array in codec.decode(rows)] == [["xy", "z"], [1, 2], [b"1", b"234"]]
    damaged = rows.fixed.copy()
    damaged[1, codec.slot_of("a").offset] = 255
    with pytest.raises(RunFailed, match="corrupt payload: row 1 of 2 has a tail of 4 bytes, its lengths say 258"):
        codec.decode(PayloadRows(damaged, rows.var_offsets, rows.var))
