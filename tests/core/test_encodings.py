"""Columns in every encoding of Arrow against the same columns plain: nulls, dictionaries, views; blocks bounded by bytes."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.api import materialize
from swjoin.core import row_sizes
from swjoin.core.arrow_views import decoded
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.row_sizes import row_bytes
from swjoin.operators import result_buffer
from tests.support.commands import command

BASICS: dict[str, Any] = {"left_time": "t", "right_time": "t", "time_unit": "us", "within": "3us"}


def index_nulls(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode()


def value_nulls(values: list[Any], kind: pa.DataType) -> pa.Array:
    return pa.array(values, kind).dictionary_encode(null_encoding="encode")


def both_nulls(values: list[Any], kind: pa.DataType) -> pa.Array:
    """Some nulls are null indices, others stand for a null value; small indexes, values twice and never used."""
    array = pa.array([*values, None, *values[:1]], kind)
    index = [None if v is None and i % 2 else i for i, v in enumerate(values)]
    return pa.DictionaryArray.from_arrays(pa.array(index, pa.int8()), array)


def views(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A dictionary of views, as polars gives categoricals; of others, of the type itself."""
    view = pa.string_view() if pa.types.is_string(kind) else pa.binary_view() if pa.types.is_binary(kind) else kind
    index = pa.array([None if v is None and i % 2 else i for i, v in enumerate(values)], pa.uint32())
    return pa.DictionaryArray.from_arrays(index, pa.array(values, view))


def nested(values: list[Any], kind: pa.DataType) -> pa.Array:
    """A dictionary of a dictionary."""
    inner = value_nulls(values, kind)
    return pa.DictionaryArray.from_arrays(pa.array(np.arange(len(values)), pa.int16()), inner)


ENCODINGS = {f.__name__: f for f in (index_nulls, value_nulls, both_nulls, views, nested)}
TYPES: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (pa.string(), ["x", "", "yy"]),
    "large string": (pa.large_string(), ["x", "", "yy"]),
    "binary": (pa.binary(), [b"x", b"", b"\xff\x00"]),
    "fixed binary": (pa.binary(2), [b"ab", b"\x00\x00", b"zz"]),
    "int64": (pa.int64(), [0, 1, -5]),
    "int8": (pa.int8(), [0, 1, -5]),
    "uint64": (pa.uint64(), [0, 1, 2**64 - 1]),
    "bool": (pa.bool_(), [False, True]),
    "date": (pa.date32(), [dt.date(1970, 1, 1), dt.date(2020, 2, 2)]),
    "timestamp": (pa.timestamp("us", "UTC"), [0, 1, 10**15]),
    "duration": (pa.duration("ms"), [0, 5]),
}
PAYLOAD: dict[str, tuple[pa.DataType, list[Any]]] = {
    **TYPES,
    "double": (pa.float64(), [0.0, 1.5]),
    "half": (pa.float16(), [np.float16(0), np.float16(1.5)]),
    "decimal": (pa.decimal128(9, 2), [Decimal("0.00"), Decimal("1.25")]),
    "interval": (pa.month_day_nano_interval(), [(0, 0, 0), (1, 2, 3)]),
    "null": (pa.null(), [None]),
}


def table(key: pa.Array, payload: pa.Array | None = None) -> pa.Table:
    columns = {"k": key, "t": pa.array(np.arange(len(key))), "n": pa.array(np.arange(len(key)))}
    return pa.table(columns if payload is None else {**columns, "p": payload})


def rows_of(found: pa.Table | list[pa.RecordBatch], names: list[str] | None = None) -> list[str]:
    batches = found.to_batches() if isinstance(found, pa.Table) else found
    return sorted(str({name: row[name] for name in names or row}) for batch in batches for row in batch.to_pylist())


def pushed(left: pa.Table, right: pa.Table, **arguments: Any) -> list[pa.RecordBatch]:
    with swjoin.WindowJoin(**arguments) as join:
        found = [
            b
            for i in range(0, max(len(left), len(right)), 7)
            for b in join.push(left=left.slice(i, 7), right=right.slice(i, 7))
        ]
        found += list(join.close())
    for batch in found:
        batch.validate(full=True)
    return found


def draw_values(data: st.DataObject, kinds: dict[str, Any], side: str) -> tuple[pa.DataType, list[Any], str]:
    name = data.draw(st.sampled_from(sorted(kinds)), f"{side} type")
    kind, values = kinds[name]
    return kind, data.draw(st.lists(st.sampled_from([*values, None]), min_size=1, max_size=25), f"{side} values"), name


@given(st.data(), st.sampled_from(sorted(JOIN_KINDS)))
@settings(max_examples=60, deadline=None)
def test_a_null_is_a_null_however_it_is_encoded(data: st.DataObject, how: Any) -> None:
    kind, left_keys, name = draw_values(data, TYPES, "left")
    right_keys = data.draw(st.lists(st.sampled_from([*TYPES[name][1], None]), min_size=1, max_size=25), "right values")
    payload_kind, payload, _ = draw_values(data, PAYLOAD, "payload")
    payload = (payload * 25)[: len(left_keys)]
    encoding, other = (data.draw(st.sampled_from(sorted(ENCODINGS))) for _ in range(2))
    plain = table(pa.array(left_keys, kind), pa.array(payload, payload_kind)), table(pa.array(right_keys, kind))
    encoded_payload = ENCODINGS[other](payload, payload_kind)
    coded = (
        table(ENCODINGS[encoding](left_keys, kind), encoded_payload),
        table(ENCODINGS[data.draw(st.sampled_from(sorted(ENCODINGS)))](right_keys, kind)),
    )
    if data.draw(st.booleans(), "only one side"):
        coded = (coded[0], plain[1])
    arguments: dict[str, Any] = {**BASICS, "on": "k", "how": how}
    want = swjoin.join(*plain, **arguments)
    if how == "inner":
        left, right = plain  # names that DuckDB finds
        text = "select count(*) from left_ l join right_ r on l.k = r.k and abs(l.t - r.t) <= 3"
        with duckdb.connect() as database:
            database.register("left_", left.select(["k", "t"]))
            database.register("right_", right.select(["k", "t"]))
            (expected,) = database.sql(text).fetchall()[0]
        assert len(want) == expected
    counted = swjoin.count(*coded, **arguments)
    assert counted == swjoin.count(*plain, **arguments)
    assert counted.ledger.left.null_key == left_keys.count(None)
    found = swjoin.join(*coded, **arguments)
    found.validate(full=True)
    assert rows_of(found) == rows_of(want)
    assert rows_of(pushed(*coded, **arguments)) == rows_of(want)


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_a_predicate_sees_nulls_however_they_are_encoded(encoding: str) -> None:
    values = ["x", None, "", None, "yy"]
    left = table(pa.array([1] * 5), ENCODINGS[encoding](values, pa.string()))
    right = table(pa.array([1] * 5), pa.array(["x"] * 5))
    for where, kept in (("left_p is null", [1, 3]), ("left_p = 'x'", [0]), ("left_p != right_p", [2, 4])):
        arguments: dict[str, Any] = {**BASICS, "within": "9us", "on": "k", "where": where}
        want = sorted(n for n in kept for _ in range(5))
        assert sorted(swjoin.join(left, right, **arguments)["left_n"].to_pylist()) == want
        assert sorted(n for b in pushed(left, right, **arguments) for n in b["left_n"].to_pylist()) == want


@pytest.mark.mpi
@pytest.mark.drawn
def test_a_predicate_on_ranks_takes_dictionaries() -> None:
    key = value_nulls([7, None, 0, None, 7], pa.int64())
    left, right = table(key), table(pa.array([7, 0, 0, 7, 7]))
    arguments: dict[str, Any] = {**BASICS, "on": "k", "where": "left_k > 0"}
    assert swjoin.count(left, right, **arguments, ranks=3) == swjoin.count(left, right, **arguments)


@pytest.mark.parametrize(
    "column",
    [
        pa.RunEndEncodedArray.from_arrays([1, 3], pa.array(["a", None])),
        pa.array([b"1" * 16, None, None], pa.uuid()),
        pa.UnionArray.from_sparse(pa.array([0, 1, 0], pa.int8()), [pa.array(["x", None, None]), pa.array([1, 2, 3])]),
        pa.array([{"a": None}, None, {"a": "x"}]),
        pa.array([1, None, 0], pa.bool8()),
    ],
    ids=lambda column: str(column.type),
)
def test_encodings_that_no_key_has_are_refused_and_come_back_as_payload(column: pa.Array) -> None:
    plain = table(pa.array([1, 2, 3]))
    for function in (swjoin.join, swjoin.count):
        with pytest.raises(swjoin.UserError, match="cannot be a join key"):
            function(table(column), table(column), **BASICS, on="k")
    left = table(pa.array([1, 2, 3]), column)
    if pa.types.is_run_end_encoded(column.type):
        with pytest.raises(swjoin.UserError, match=r"column p: type .* cannot be carried"):
            swjoin.join(left, plain, **BASICS, on="k")
    else:
        found = swjoin.join(left, plain, **BASICS, on="k").sort_by("left_t")
        assert found["p"].to_pylist() == column.to_pylist()
    with pytest.raises(swjoin.UserError, match=r"column p: type .* cannot be carried"):
        swjoin.WindowJoin(
            **BASICS,
            on="k",
            left_schema=table(column, column).drop_columns(["k"]).append_column("k", plain["k"]).schema,
            right_schema=plain.schema,
        )
    with pytest.raises(swjoin.UserError, match="time column p"):
        swjoin.count(table(pa.array([1, 2, 3]), column), plain, **{**BASICS, "left_time": "p"}, on="k")


def test_ids_and_times_are_not_taken_from_dictionaries() -> None:
    coded = table(pa.array([1, 2, 3]), value_nulls([0, None, 5], pa.int64()))
    with pytest.raises(swjoin.UserError, match="time column p is dictionary"):
        swjoin.count(coded, coded, **{**BASICS, "left_time": "p"}, on="k")
    with pytest.raises(swjoin.UserError, match="id column p must hold integers"):
        swjoin.count(coded, coded, **BASICS, on="k", left_id="p")


def test_arrow_files_with_nulls_among_a_dictionarys_values(tmp_path: Path) -> None:
    coded = table(value_nulls(["x", None, "", None], pa.string()))
    plain = coded.set_column(0, "k", decoded(coded["k"].combine_chunks()))
    for name, rows in (("coded", coded), ("plain", plain)):
        with pa.ipc.new_file(str(tmp_path / f"{name}.arrow"), rows.schema) as writer:
            writer.write_table(rows)
    told = [
        command("join", str(tmp_path / f"{name}.arrow"), str(tmp_path / f"{name}.arrow"), "--on", "k", "--left-time", "t",
                "--right-time", "t", "--time-unit", "us", "--within", "3us", "-o", "count")
        for name in ("coded", "plain")
    ]  # fmt: skip
    answers = [[line for line in done.stdout.splitlines() if line.split()[0] in ("pairs", "digest")] for done in told]
    assert answers[0] == answers[1] != []


# ---------------------------------------------------------------- many values, small indexes


def category(first: int, count: int, index: pa.DataType) -> pa.Array:
    values = pa.array([f"v{i}" for i in range(first, first + count)])
    return pa.DictionaryArray.from_arrays(pa.array(range(count), index), values, ordered=True)


PARTS = [table(category(first, 100, pa.int8()), category(first, 100, pa.int8())) for first in (0, 100, 200)]
PLAIN = table(pa.array([f"v{i}" for i in range(300)]))
WIDE = {**BASICS, "within": "1s", "on": "k"}


@pytest.mark.parametrize("how", ["inner", "full"])
def test_more_values_than_indices_over_chunks_and_batches(how: Any) -> None:
    whole = pa.concat_tables(PARTS)
    assert whole["k"].num_chunks == 3
    want = rows_of(swjoin.join(PLAIN.append_column("p", PLAIN["k"]), PLAIN, **WIDE, how=how))
    expected = [f"v{i}" for i in range(300)]
    for left, right in ((whole, PLAIN), (PLAIN, whole), (whole, whole)):
        found = swjoin.join(left, right, **WIDE, how=how)
        found.validate(full=True)
        assert sorted(found["k"].to_pylist()) == sorted(expected)
    assert rows_of(swjoin.join(whole, PLAIN, **WIDE, how=how), ["k", "p"]) == rows_of(
        [pa.record_batch({"k": expected, "p": expected})]
    )
    assert len(want) == 300
    with swjoin.WindowJoin(**WIDE, how=how, max_out_of_order="1s") as join:
        batches = [b for part in PARTS for b in join.push(left=part)]
        batches += [*join.push(right=PLAIN), *join.close()]
    assert join.schema.field("p").type == pa.dictionary(pa.int32(), pa.string())
    assert rows_of(batches, ["k", "p"]) == rows_of(swjoin.join(whole, PLAIN, **WIDE, how=how), ["k", "p"])


def test_keys_of_both_sides_have_more_values_than_either() -> None:
    found = swjoin.join(PARTS[0], PARTS[1], **WIDE, how="full")
    assert sorted(found["k"].to_pylist()) == sorted(f"v{i}" for i in range(200))
    assert found.schema.field("k").type == pa.dictionary(pa.int32(), pa.string())


def test_values_that_arrow_has_no_hash_of() -> None:
    values = [Decimal("1.25"), None, Decimal("0.00")]
    left = table(pa.array([1, 2, 3]), both_nulls(values, pa.decimal32(9, 2)))
    batches = pushed(left, table(pa.array([1, 2, 3])), **WIDE)
    found = sorted((row["left_n"], row["p"]) for b in batches for row in b.to_pylist())
    assert [value for _, value in found] == values
    assert batches[0].schema.field("p").type == pa.dictionary(pa.int32(), pa.decimal32(9, 2))


def test_types_stay_where_they_suffice() -> None:
    found = swjoin.join(PARTS[0], PLAIN, **WIDE)
    assert found.schema.field("p").type == PARTS[0].schema.field("p").type
    nulls = pa.chunked_array([value_nulls(["a", None], pa.string()), value_nulls([None, "b"], pa.string())])
    left = table(pa.array([1, 1, 1, 1])).append_column("p", nulls)  # Arrow does not unify these
    assert sorted(map(str, swjoin.join(left, left, **WIDE)["left_p"].to_pylist())) == sorted(["None", "None", "a", "b"] * 4)


@pytest.mark.long
@pytest.mark.mpi
def test_more_values_than_indices_over_files(tmp_path: Path) -> None:
    (tmp_path / "cats").mkdir()
    (tmp_path / "plain").mkdir()
    for i, part in enumerate(PARTS):
        pq.write_table(part, tmp_path / "cats" / f"{i}.parquet")
    pq.write_table(PLAIN, tmp_path / "plain" / "0.parquet")
    expected = sorted(f"v{i}" for i in range(300))
    assert sorted(swjoin.join(tmp_path / "cats", PLAIN, **WIDE)["p"].to_pylist()) == expected
    options = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "us", "--within", "1s",
               "--max-out-of-order", "1s"]  # fmt: skip
    for name, ranks in (("out.parquet", []), ("out.csv", []), ("ranks.parquet", ["-n", "3"])):
        out = tmp_path / name
        done = command("join", str(tmp_path / "cats"), str(tmp_path / "plain"), *options, "-o", str(out), *ranks)
        assert done.returncode == 0, done.stderr
        found = pq.read_table(out) if name.endswith("parquet") else pa.csv.read_csv(out)
        assert sorted(found["p"].to_pylist()) == expected
        assert sorted(found["k"].to_pylist()) == expected


# ---------------------------------------------------------------- blocks bounded by bytes


def test_bytes_of_rows() -> None:
    cases: list[tuple[pa.Array, list[int]]] = [
        (pa.array(["a", "bcd", None]), [1, 3, 0]),
        (pa.array(["a", "bcd"], pa.large_string()), [1, 3]),
        (pa.array(["a" * 99], pa.string_view()), [16]),
        (pa.array([[1, 2], None, []], pa.list_(pa.int8())), [2, 0, 0]),
        (pa.array([[1, 2], None], pa.list_(pa.int64())), [16, 0]),
        (pa.array([["aa", "b"], []]), [3, 0]),
        (pa.array([["", ""]]), [2]),  # no row has fewer bytes than elements
        (pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())), [9, 0]),
        (pa.array([{"a": "xx", "b": 1}, {"a": None, "b": 2}]), [10, 8]),
        (pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2)), [8, 8]),
        (pa.array([1, None]), [8, 8]),
        (pa.array(["abc", None]).dictionary_encode(), [4, 4]),
        (pa.array([b"1" * 16], pa.uuid()), [16]),
        (pa.RunEndEncodedArray.from_arrays([1, 3], pa.array(["a", "bbb"])), [3, 3, 3]),
    ]
    for array, expected in cases:
        assert row_bytes(array).tolist() == expected, array.type
        assert row_bytes(array.slice(1)).tolist() == expected[1:], array.type
        assert row_bytes(array.slice(0, 0)).tolist() == []


def wide_table(seed: int, rows: int) -> pa.Table:
    """Text and lists of all lengths, a null key here and there."""
    random = np.random.default_rng(seed)
    text = ["x" * int(n) if n > 20 else None for n in random.integers(0, 300, rows)]
    lists = [[1] * int(n) for n in random.integers(0, 50, rows)]
    return pa.table(
        {
            "k": pa.array(random.integers(0, 5, rows), mask=random.random(rows) < 0.2),
            "t": np.sort(random.integers(0, 200, rows)),
            "s": text,
            "b": pa.array(lists, pa.list_(pa.int8())),
            "d": pa.array(text).dictionary_encode(),
            "v": pa.array(text, pa.string_view()),
        }
    )


@pytest.mark.drawn
@pytest.mark.parametrize("how", sorted(JOIN_KINDS))
@pytest.mark.parametrize("limit", [1, 2000, 50_000])
def test_blocks_are_bounded_by_bytes(how: Any, limit: int, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right = wide_table(1, 150), wide_table(2, 120)
    arguments: dict[str, Any] = {**BASICS, "within": "20us", "on": "k", "how": how, "ids": True}
    want, flat = (
        swjoin.join(*tables, **arguments) for tables in ((left, right), [t.drop_columns(["b"]) for t in (left, right)])
    )
    monkeypatch.setattr(row_sizes, "BLOCK_BYTES", limit)
    monkeypatch.setattr(result_buffer, "TAIL_BYTES", limit)
    found = swjoin.join(left, right, **arguments)
    found.validate(full=True)
    assert rows_of(found) == rows_of(want)
    lists, text = ("b", "s") if "b" in found.column_names else ("left_b", "left_s")
    blocks = found.to_batches()
    assert len(blocks) > 1 or limit == 50_000
    for block in blocks:
        assert len(block) == 1 or int(row_bytes(block[lists]).sum() + row_bytes(block[text]).sum()) <= limit
    batches = pushed(left.drop_columns(["b"]), right.drop_columns(["b"]), **arguments)
    batches = [b for b in batches if b.num_rows]
    with swjoin.WindowJoin(**arguments) as join:
        all_at_once = [*join.push(left=left.drop_columns(["b"]), right=right.drop_columns(["b"])), *join.close()]
    for result in (batches, all_at_once):
        assert rows_of(result) == rows_of(flat)
        for batch in result:
            tails = [
                row_bytes(pc.fill_null(decoded(batch[n]), "")).sum() for n in batch.schema.names if n[-2:] in ("_s", "_v", "_d")
            ]
            assert batch.num_rows == 1 or int(sum(tails)) <= limit


def test_chunks_that_do_not_fit_into_one_array_get_longer_offsets() -> None:
    class Full:
        """As a chunked array of too many bytes for its type."""

        def __init__(self, column: pa.ChunkedArray) -> None:
            self.column, self.type, self.num_chunks, self.nbytes = column, column.type, column.num_chunks, 1 << 31

        def combine_chunks(self) -> pa.Array:
            raise pa.ArrowInvalid("offset overflow while concatenating arrays")

        def cast(self, kind: pa.DataType) -> pa.ChunkedArray:
            if kind == self.type:
                raise pa.ArrowInvalid("offset overflow while concatenating arrays")
            return self.column.cast(kind)

    for values, kind in (
        (["a", None, "c"], pa.string()),
        ([["a"], None, []], pa.list_(pa.string())),
        ([{"a": b"x"}, None, {"a": None}], pa.struct([("a", pa.binary())])),
    ):
        chunked = pa.chunked_array([pa.array(values, kind), pa.array(values, kind)])
        column = materialize._Column(Full(chunked), "c")
        taken = column.take(pa.array([5, 0, None], pa.uint64()))
        assert taken.type == kind
        assert taken.to_pylist() == [values[2], values[0], None]
    with pytest.raises(swjoin.UserError, match=r"column c: 2147483648 bytes of map.* are too many; leave it out"):
        materialize._Column(Full(pa.chunked_array([pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))] * 2)), "c")


@pytest.mark.long
@pytest.mark.parametrize("kind", [pa.string(), pa.list_(pa.int8())], ids=str)
def test_three_gigabytes_of_one_column(kind: pa.DataType) -> None:
    rows = 2500
    value = "x" * (1 << 20) if pa.types.is_string(kind) else np.ones(1 << 20, np.int8)
    left = pa.table({"k": [1], "t": [1], "s": pa.array([value], kind)})
    right = pa.table({"k": [1] * rows, "t": [1] * rows})
    found = swjoin.join(left, right, **BASICS, on="k", threads=1)
    assert len(found) == rows
    assert found["s"].num_chunks > 1
    for chunk in found["s"].chunks:
        chunk.validate(full=True)
        lengths = pc.binary_length(chunk) if pa.types.is_string(kind) else pc.list_value_length(chunk)
        assert pc.all(pc.equal(lengths, 1 << 20)).as_py()
    del found
    if pa.types.is_string(kind):
        count = 0
        with swjoin.WindowJoin(**BASICS, on="k") as join:
            for results in (join.push(left=left), join.push(right=right), join.close()):
                for batch in results:
                    assert batch.num_rows <= 64
                    count += batch.num_rows
        assert count == rows
