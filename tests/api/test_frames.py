"""Frames of every kind into every call: tables, readers, pandas, polars, DuckDB, in all their types of the same values."""

from __future__ import annotations

import asyncio
import datetime as dt
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.cli.serve import _read
from swjoin.connectors.fitting import fitted
from swjoin.connectors.flight.client import connect
from swjoin.connectors.frames import to_table
from swjoin.core.join_semantics import format_digest, pair_digest
from tests.support.live_runs import config as live_config
from tests.support.live_runs import in_thread, live

SCHEMA = pa.schema([("user", pa.string()), ("at", pa.timestamp("us")), ("page", pa.string()), ("n", pa.int64())])
OPTIONS: dict[str, Any] = {"on": "user", "left_time": "at", "right_time": "at", "within": "5s"}
START = dt.datetime(2026, 1, 1)
Row = tuple[str | None, int, str | None, int | None]
Answer = tuple[int, str]


def plain(rows: list[Row]) -> pa.Table:
    """Rows of user, second, page, n."""
    users, seconds, pages, numbers = (list(column) for column in zip(*rows, strict=True)) if rows else ([], [], [], [])
    times = [START + dt.timedelta(seconds=s) for s in seconds]
    return pa.table([users, times, pages, numbers], schema=SCHEMA)


class Foreign:
    """What has Arrow's interface and nothing else."""

    def __init__(self, table: pa.Table) -> None:
        self._table = table

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self._table.__arrow_c_stream__(requested_schema)


def cast(table: pa.Table, text: pa.DataType, *, null: bool = False) -> pa.Table:
    """Text in another type; with null, a column without values has no type."""
    for i, field in enumerate(table.schema):
        column = table.column(i)
        if null and field.name in ("page", "n") and column.null_count == len(column):
            table = table.set_column(i, field.name, pa.nulls(len(column)))
        elif field.type == pa.string():
            table = table.set_column(i, field.name, column.cast(text))
    return table


def pandas_of(table: pa.Table, text: str | None = None) -> pd.DataFrame:
    """As users make them: missing integers are floating-point numbers, a filtered frame has an index."""
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    frame = pd.DataFrame(columns, index=range(7, 7 + len(table)))
    return frame if text is None else frame.astype({"user": text, "page": text})


def pandas_of_today(table: pa.Table) -> pd.DataFrame:
    """Strings as pandas 3 has them, which Arrow reads as large strings."""
    with pd.option_context("future.infer_string", True):
        return pandas_of(table)


def polars_of(table: pa.Table, text: Any = None) -> pl.DataFrame:
    columns = {name: table.column(name).to_pylist() for name in table.column_names}
    frame = pl.DataFrame(columns, schema_overrides={"at": pl.Datetime("us")})
    return frame if text is None else frame.with_columns(pl.col("user").cast(text))


def enum_of(table: pa.Table) -> pl.DataFrame:
    return polars_of(table, pl.Enum(sorted({u for u in table.column("user").to_pylist() if u is not None})))


def duckdb_of(table: pa.Table) -> Any:
    return duckdb.from_arrow(table, connection=duckdb.connect())


def cut(table: pa.Table) -> pa.RecordBatchReader:
    """A reader of small batches."""
    return pa.RecordBatchReader.from_batches(table.schema, table.to_batches(max_chunksize=3))


KINDS: dict[str, Callable[[pa.Table], Any]] = {
    "Arrow table": lambda table: table,
    "record batch": lambda table: pa.RecordBatch.from_pylist(table.to_pylist(), SCHEMA),
    "reader": cut,
    "large strings": lambda table: cast(table, pa.large_string(), null=True),
    "views": lambda table: cast(table, pa.string_view(), null=True),
    "dictionary": lambda table: cast(table, pa.dictionary(pa.int8(), pa.string()), null=True),
    "columns in another order": lambda table: table.select(["n", "page", "user", "at"]),
    "Arrow's interface": Foreign,
    "pandas": pandas_of,
    "pandas, strings": pandas_of_today,
    "pandas, objects": lambda table: pandas_of(table, "object"),
    "pandas, nullable": lambda table: pandas_of(table).convert_dtypes(),
    "pandas, categorical": lambda table: pandas_of(table, "category"),
    "pandas, Arrow": lambda table: table.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": polars_of,
    "polars, lazy": lambda table: polars_of(table).lazy(),
    "polars, categorical": lambda table: polars_of(table, pl.Categorical),
    "polars, enum": enum_of,
    "DuckDB": duckdb_of,
    "DuckDB's reader": lambda table: duckdb_of(table).to_arrow_reader(),
}


def rows_of(seed: int, count: int) -> list[Row]:
    """In time order; a tenth of the users and pages is missing."""
    random = np.random.default_rng(seed)
    seconds = np.sort(random.integers(0, 40, count)).tolist()
    users = [None if u == 9 else f"user {u % 3} with a long name" for u in random.integers(0, 10, count).tolist()]
    pages = [None if i % 10 == 5 else f"p{i}" for i in range(count)]
    return list(zip(users, seconds, pages, [None if i % 7 == 3 else i for i in range(count)], strict=True))


def oracle(left: list[Row], right: list[Row]) -> tuple[Answer, list[str]]:
    """Every pair compared: count and digest, and the values of the pairs."""
    pairs = [(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a[0] and a[0] == b[0] and abs(a[1] - b[1]) <= 5]
    ids = np.array(pairs, np.uint64).reshape(-1, 2)
    values = sorted(str((left[i][0], *left[i][2:], *right[j][2:])) for i, j in pairs)
    return (len(pairs), format_digest(pair_digest(ids[:, 0], ids[:, 1]))), values


def values_of(found: pa.Table | list[pa.RecordBatch]) -> list[str]:
    names = ("user", "left_page", "left_n", "right_page", "right_n")
    batches = found.to_batches() if isinstance(found, pa.Table) else found
    rows = ([row[name] for name in names] for batch in batches for row in batch.to_pylist())
    return sorted(str(tuple(int(v) if isinstance(v, float) else v for v in row)) for row in rows)


LEFT, RIGHT = rows_of(1, 30), rows_of(2, 40)
EXPECTED, VALUES = oracle(LEFT, RIGHT)


# ---------------------------------------------------------------- every kind (into every call: test_matrix.py)


@pytest.mark.parametrize("declared", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_every_kind_into_window_join(kind: str, declared: bool) -> None:
    """The second batch is of an Arrow table, as is the declared schema."""
    schemas = {"left_schema": SCHEMA, "right_schema": SCHEMA} if declared else {}
    with swjoin.WindowJoin(**OPTIONS, **schemas) as join:
        found = list(join.push(left=KINDS[kind](plain(LEFT[:20])), right=KINDS[kind](plain(RIGHT))))
        found += join.push(left=plain(LEFT[20:]))
        found += join.close()
    assert (join.count, join.digest) == EXPECTED
    assert values_of(found) == VALUES


def test_every_kind_into_a_live_run(tmp_path: Path) -> None:
    """A batch of each kind in turn."""
    stream = {"flight": {}, "schema": "user: string, at: timestamp[us], page: string, n: int64", "key": ["user"], "time": "at"}
    sections = {"left": {**stream, "id": None, "time_unit": None}, "right": {**stream, "id": None, "time_unit": None}}
    left, right = rows_of(3, 10 * len(KINDS)), rows_of(4, 10 * len(KINDS))

    def push(address: str, side: str, rows: list[Row]) -> None:
        frames = [make(plain(rows[10 * i : 10 * i + 10])) for i, make in enumerate(KINDS.values())]
        with connect(address) as client:
            for frame in frames[:3]:
                client.push(side, frame, producer=side)
            assert client.push(side, iter(frames[3:]), producer=side, end=True) == len(rows)

    with live(live_config(**sections, join={"within": "5s"}), tmp_path) as (run, client):
        with pytest.raises(swjoin.UserError, match=r"push: column n is string, the stream wants int64: cast it first"):
            client.push("left", plain(left).set_column(3, "n", pa.array(["1"] * len(left))))
        with pytest.raises(swjoin.UserError, match="push: a dict is no table"):
            client.push("left", {"user": ["a"]})
        pushes = [in_thread(push, run.address, side, rows) for side, rows in (("left", left), ("right", right))]
        for pushed in pushes:
            pushed.join(60)
        client.end("left")
        client.end("right")
        assert run.result() == oracle(left, right)[0]


# ---------------------------------------------------------------- a stream of many kinds

VALUES_OF = st.tuples(
    st.sampled_from(["a", "b", None]), st.integers(0, 3), st.sampled_from(["x", "", None]), st.sampled_from([0, 7, None])
)
BATCHES = st.lists(st.tuples(st.sampled_from(sorted(KINDS)), st.lists(VALUES_OF, max_size=5)), max_size=6)


def of_kinds(drawn: list[tuple[str, list[Row]]]) -> tuple[list[Row], list[Any]]:
    """All rows, in time order, and their batches."""
    rows: list[Row] = []
    frames = []
    for kind, batch in drawn:
        begin = rows[-1][1] if rows else 0
        fresh = sorted(((u, begin + s, p, n) for u, s, p, n in batch), key=lambda row: row[1])
        rows += fresh
        frames.append(KINDS[kind](plain(fresh)))
    return rows, frames


@given(left=BATCHES, right=BATCHES, first=st.sampled_from([None, *sorted(KINDS)]))
@settings(max_examples=60, deadline=None)
def test_batches_of_any_kinds_are_one_stream(
    left: list[tuple[str, list[Row]]], right: list[tuple[str, list[Row]]], first: str | None
) -> None:
    """first: kind of the frame that declares the schemas; None: Arrow's."""
    sample = plain([("a", 0, "x", 1)])
    declared = SCHEMA if first is None else KINDS[first](sample)
    if first is not None and "reader" in first:
        declared = declared.schema
    (left_rows, left_frames), (right_rows, right_frames) = of_kinds(left), of_kinds(right)
    found: list[pa.RecordBatch] = []
    with swjoin.WindowJoin(**OPTIONS, left_schema=declared, right_schema=declared) as join:
        for i in range(max(len(left_frames), len(right_frames))):
            for side, frames in (("left", left_frames), ("right", right_frames)):
                if i < len(frames):
                    found += join.push(**{side: frames[i]})
        found += join.close()
    expected, values = oracle(left_rows, right_rows)
    assert (join.count, join.digest) == expected
    assert values_of(found) == values
    whole = swjoin.count(plain(left_rows), plain(right_rows), **OPTIONS)
    assert (whole.count, whole.digest) == expected
    assert all(batch.schema == join.schema for batch in found)


def test_empty_frames_say_nothing_about_types() -> None:
    empty = pd.DataFrame({"user": [], "at": [], "page": [], "n": []})
    for nothing in (empty, empty.astype(float), pl.DataFrame(empty.to_dict("list"))):
        with swjoin.WindowJoin(**OPTIONS) as join:
            assert list(join.push(left=nothing)) == []
            assert list(join.push(left=pandas_of(plain(LEFT)), right=pandas_of(plain(RIGHT)))) != []
            assert list(join.push(right=nothing)) == list(join.close()) == []
        assert (join.count, join.digest) == EXPECTED


@pytest.mark.parametrize("empty", [pd.DataFrame, pl.DataFrame])
def test_empty_frames_in_whole_streams(empty: Any) -> None:
    """Of one side, of both, and where only a key has no values."""
    nothing = {"user": [], "at": []}

    async def streamed(join: swjoin.WindowJoin, left: Any, right: Any) -> list[pa.RecordBatch]:
        return [batch async for batch in join.stream(left, right)]

    full: dict[str, Any] = {**OPTIONS, "how": "full"}
    for left, right in ((empty(nothing), plain(RIGHT)), (plain(LEFT), empty(nothing)), (empty(nothing), empty(nothing))):
        whole = swjoin.join(left, right, **full)
        join = swjoin.WindowJoin(**full)
        found = join.read(left, right).read_all()
        assert found.schema == whole.schema
        assert (join.count, join.digest) == (swjoin.proof(whole).count, swjoin.proof(whole).digest)
        if len(whole):
            join = swjoin.WindowJoin(**full)
            assert sum(batch.num_rows for batch in asyncio.run(streamed(join, left, right))) == len(whole)
    without = plain([(None, 1, "x", 1)]).set_column(0, "user", pa.nulls(1))
    assert swjoin.WindowJoin(**full).read(without, plain(RIGHT)).read_all().num_rows == 1 + len(RIGHT)
    with pytest.raises(swjoin.UserError, match="left table: key column user is missing; its columns are none"):
        swjoin.join(empty(), plain(RIGHT), **OPTIONS)


# ---------------------------------------------------------------- keys of types that differ


@given(
    values=st.tuples(*2 * [st.lists(st.one_of(st.none(), st.integers(-3, 3), st.integers(2**63 - 2, 2**64 - 1)), max_size=8)]),
    how=st.sampled_from(["inner", "left", "right", "full", "semi", "anti"]),
    several=st.booleans(),
)
@settings(max_examples=60, deadline=None)
def test_unsigned_keys_meet_signed_ones(values: tuple[list[int | None], list[int | None]], how: Any, several: bool) -> None:
    """By value: a number beyond 63 bits meets no negative one, whose bits are the same."""
    left = [v for v in values[0] if v is None or v >= 0]
    right = [v if v is None or v < 2**63 else v - 2**64 for v in values[1]]
    keys: dict[str, Any] = {
        "on": ["k", "s"] if several else "k",
        "left_time": "t",
        "right_time": "t",
        "within": "1s",
        "how": how,
    }
    sides = [
        pa.table(
            {"k": pa.array(v, kind), "s": ["x"] * len(v), "t": pa.array([0] * len(v), pa.timestamp("us")), "i": range(len(v))}
        )
        for v, kind in ((left, pa.uint64()), (right, pa.int64()))
    ]
    pairs = {(i, j) for i, a in enumerate(left) for j, b in enumerate(right) if a is not None and a == b}
    ones, others = {i for i, _ in pairs}, {j for _, j in pairs}
    alone = {(i, None) for i in range(len(left)) if i not in ones}
    expected = {
        "inner": pairs,
        "left": pairs | alone,
        "right": pairs | {(None, j) for j in range(len(right)) if j not in others},
        "full": pairs | alone | {(None, j) for j in range(len(right)) if j not in others},
        "semi": {(i, None) for i in ones},
        "anti": alone,
    }[how]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", swjoin.ImplausibleWarning)
        table = swjoin.join(*sides, **keys, ids=True)
        join = swjoin.WindowJoin(**keys, ids=True)
        read = join.read(*sides).read_all()
    for found in (table, read):
        rows = found.to_pylist()
        assert {(row["left_id"], row.get("right_id")) for row in rows} == expected
        assert len(rows) == len(expected)
        for row in rows:
            assert row["k"] == (right[row["right_id"]] if row["left_id"] is None else left[row["left_id"]])


def test_durations_of_other_libraries() -> None:
    for value in (pl.duration(seconds=5), pd.DateOffset(seconds=5), [5]):
        with pytest.raises(swjoin.UserError, match=rf"within: duration: a {type(value).__name__} is none; write text such as"):
            swjoin.join(plain(LEFT), plain(RIGHT), **{**OPTIONS, "within": value})


def test_many_categories_in_later_batches() -> None:
    """More than the first batch's indices of 8 bits can number."""
    with swjoin.WindowJoin(**OPTIONS) as join:
        found = list(join.push(left=pandas_of(plain([("u0", 0, "x", 1)]), "category")))
        rows: list[Row] = [(f"u{i}", 1, "x", i) for i in range(400)]
        found += join.push(left=pandas_of(plain(rows), "category"), right=pandas_of(plain(rows), "category"))
        found += join.close()
    assert sum(batch.num_rows for batch in found) == 401


# ---------------------------------------------------------------- what does not fit


@pytest.mark.parametrize(
    ("name", "array", "text"),
    [
        ("user", pa.array([5]), "left: column user is int64, the stream wants string: cast it first"),
        ("n", pa.array(["5"]), "left: column n is string, the stream wants int64: cast it first"),
        ("n", pa.array([True]), "left: column n is bool, the stream wants int64: cast it first"),
        ("n", pa.array([1.5]), "left: column n: double does not become int64 .*truncated"),
        ("n", pa.array([2**63], pa.uint64()), "left: column n: uint64 does not become int64 .*not in range"),
        ("at", pa.array([5]), "left: column at is int64, .*: a number has no unit; cast it first"),
        ("at", pa.array([START], pa.timestamp("us", "UTC")), "left: column at is .*: one has a time zone, the other has none"),
        ("at", pa.array([1], pa.timestamp("ns")), r"left: column at: timestamp\[ns\] does not become .*lose data"),
    ],
)
def test_what_does_not_fit_is_refused(name: str, array: pa.Array, text: str) -> None:
    row = plain([("a", 0, "x", 1)])
    with swjoin.WindowJoin(**OPTIONS, left_schema=SCHEMA, right_schema=SCHEMA) as join:
        with pytest.raises(swjoin.UserError, match=text):
            join.push(left=row.set_column(row.column_names.index(name), name, array))
        assert sum(batch.num_rows for batch in join.push(left=row, right=row)) == 1  # nothing of the refused batch is there
        assert list(join.close()) == []


def test_columns_whose_type_is_not_known() -> None:
    untyped = pandas_of(plain([("a", 0, None, 1)]))
    join = swjoin.WindowJoin(**OPTIONS)
    list(join.push(left=untyped, right=untyped))
    with pytest.raises(swjoin.UserError, match=r"left: column page is string, .*no values in this column, so the type"):
        join.push(left=plain([("a", 0, "x", 1)]))
    join = swjoin.WindowJoin(**OPTIONS)
    with pytest.raises(swjoin.UserError, match=r"left: column user has no values in the first batch, .*; give left_schema"):
        join.push(left=pandas_of(plain([(None, 0, "x", 1)])))


NUMBERS = [pa.int8(), pa.uint8(), pa.int32(), pa.int64(), pa.uint64(), pa.float32(), pa.float64(), pa.decimal128(20, 2)]
TEXTS = [pa.string(), pa.large_string(), pa.string_view(), pa.dictionary(pa.int8(), pa.string_view())]
BYTES = [pa.binary(), pa.large_binary(), pa.binary_view(), pa.binary(2)]
TIMES = [pa.timestamp("s"), pa.timestamp("ns"), pa.timestamp("us", "UTC"), pa.date32(), pa.duration("ms"), pa.time64("us")]


def as_time(value: Any) -> Any:
    """A date is its midnight."""
    return dt.datetime.combine(value, dt.time()) if type(value) is dt.date else value


@given(
    kinds=st.sampled_from([(a, b) for kinds in (NUMBERS, TEXTS, BYTES, TIMES) for a in kinds for b in kinds]),
    values=st.lists(st.one_of(st.none(), st.integers(0, 1 << 54)), max_size=4),
)
@settings(max_examples=300, deadline=None)
def test_a_value_fits_unchanged_or_is_refused(kinds: tuple[pa.DataType, pa.DataType], values: list[int | None]) -> None:
    """Every value is equal to what it was."""
    kind, wanted = kinds
    try:
        if kind in TEXTS or kind in BYTES:
            plain_values = [None if v is None else str(v)[:2].rjust(2) for v in values]
            text = pa.array(plain_values, pa.string())
            array = text.dictionary_encode().cast(kind) if pa.types.is_dictionary(kind) else text.cast(pa.binary()).cast(kind)
        else:
            array = pa.array(values if kind in NUMBERS else [v and v % 10**6 for v in values], pa.int64()).cast(kind)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return
    batch = pa.record_batch([array], ["v"])
    try:
        found = fitted(batch, pa.schema([("v", wanted)]), lambda _: "here").column(0)
    except swjoin.UserError as error:
        assert str(error).startswith("here: column v")  # noqa: PT017
        return
    assert found.type == wanted
    assert [*map(as_time, found.to_pylist())] == [*map(as_time, array.to_pylist())]


def test_columns_of_csv_files_are_read_as_the_stream_wants_them(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("user,at,page,n,price,ok\n007,2026-01-01 00:00:00,,,0.1,1\n")
    wanted = pa.schema([*SCHEMA, ("price", pa.decimal128(9, 2)), ("ok", pa.bool_())])
    (batch,) = _read(str(tmp_path / "a.csv"), wanted, None)
    assert batch.schema == wanted
    assert list(batch.to_pylist()[0].values()) == ["007", START, None, None, Decimal("0.10"), True]
    (tmp_path / "b.csv").write_text("user,at,page,n\na,2026-01-01 00:00:00,x,many\n")
    with pytest.raises(swjoin.UserError, match=r"b.csv: .*conversion error to int64: invalid value 'many'"):
        list(_read(str(tmp_path / "b.csv"), SCHEMA, None))


# ---------------------------------------------------------------- frames out


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("returns", ["same", "pandas", "polars", "arrow"])
def test_frames_of_the_kind_that_is_asked_for(kind: str, returns: Any) -> None:
    left = KINDS[kind](plain(LEFT))
    found = swjoin.join(left, plain(RIGHT), **OPTIONS, returns=returns)
    library = kind.partition(",")[0] if returns == "same" else returns
    wanted = {"pandas": pd.DataFrame, "polars": pl.DataFrame}.get(library, pa.Table)
    assert type(found) is (pl.LazyFrame if (kind, returns) == ("polars, lazy", "same") else wanted)
    assert values_of(to_table(found, "left")) == VALUES
    if wanted is pa.Table:
        assert swjoin.proof(found).digest == EXPECTED[1]
    else:
        with pytest.raises(swjoin.UserError, match=r"proof: this is not a table .*: join with returns='arrow' and convert"):
            swjoin.proof(found)


def test_frames_that_do_not_exist(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(swjoin.UserError, match=r"returns: 'panda' is not one of .*; did you mean 'pandas'?"):
        swjoin.join(plain(LEFT), plain(RIGHT), **OPTIONS, returns="panda")  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "polars", None)
    with pytest.raises(swjoin.UserError, match=r"returns: polars cannot be imported .*; install it, or take an Arrow table"):
        swjoin.join(plain(LEFT), plain(RIGHT), **OPTIONS, returns="polars")


# ---------------------------------------------------------------- results as a reader


def long_stream(seed: int, batches: int, read: list[int]) -> pa.RecordBatchReader:
    """Batches of 1,000 rows and a second each. read: the number of each batch is appended when it is read."""

    def rows() -> Iterator[pa.RecordBatch]:
        for i in range(batches):
            read.append(i)
            random = np.random.default_rng([seed, i])
            times = np.sort(random.integers(i * 10**6, (i + 1) * 10**6, 1_000))
            yield pa.record_batch([random.integers(0, 50, 1_000), times.astype("M8[us]")], schema=schema)

    schema = pa.schema([("k", pa.int64()), ("at", pa.timestamp("us"))])
    return pa.RecordBatchReader.from_batches(schema, rows())


LONG: dict[str, Any] = {"on": "k", "left_time": "at", "right_time": "at", "within": "20ms"}


@pytest.mark.parametrize("lengths", [(40, 40), (5, 40), (40, 0)])
def test_a_reader_of_results_is_lazy_and_bounded(lengths: tuple[int, int]) -> None:
    read: tuple[list[int], list[int]] = ([], [])
    join = swjoin.WindowJoin(**LONG)
    results = join.read(long_stream(1, lengths[0], read[0]), long_stream(2, lengths[1], read[1]))
    assert read == ([], [])
    count = most = 0
    for batch in results:
        count += batch.num_rows
        most = max(most, join.window_bytes)
        if 0 < lengths[0] == lengths[1]:
            assert abs(len(read[0]) - len(read[1])) <= 1
    assert most < 1 << 20
    whole = swjoin.count(long_stream(1, lengths[0], []).read_all(), long_stream(2, lengths[1], []).read_all(), **LONG)
    assert (join.count, join.digest, count) == (whole.count, whole.digest, whole.count)
    assert join.closed
    assert join.ledger == whole.ledger


def test_duckdb_and_polars_read_results() -> None:
    def results() -> pa.RecordBatchReader:
        return swjoin.WindowJoin(**OPTIONS).read(duckdb_of(plain(LEFT)).to_arrow_reader(), polars_of(plain(RIGHT)))

    assert values_of(to_table(pl.DataFrame(results()), "left")) == VALUES
    connection = duckdb.connect()
    connection.register("reader", results())
    assert values_of(connection.sql("select * from reader").to_arrow_table()) == VALUES


def test_wrong_data_end_a_reader() -> None:
    join = swjoin.WindowJoin(**OPTIONS)
    results = join.read(plain([("a", 5, "x", 1), ("a", 1, "x", 1)]), plain(RIGHT))
    with pytest.raises(swjoin.UserError, match=r"left, row id 1: its time is 4s behind an earlier row"):
        results.read_all()
    with pytest.raises(swjoin.RunFailed, match=r"the join has failed before \(left, row id 1"):
        join.close()
    with pytest.raises(swjoin.UserError, match="left and right: the same RecordBatchReader is given for both sides"):
        swjoin.WindowJoin(**OPTIONS).read(reader := cut(plain(LEFT)), reader)
    with pytest.raises(swjoin.UserError, match="left: a NoneType is no table"):
        swjoin.WindowJoin(**OPTIONS).read(None, plain(RIGHT))  # type: ignore[arg-type]


def test_pairs_that_are_never_taken() -> None:
    join = swjoin.WindowJoin(**OPTIONS)
    join.push(left=plain(LEFT), right=plain(RIGHT))
    with pytest.warns(ResourceWarning, match=r"pairs of a swjoin.WindowJoin were never taken"):
        join.__del__()
    join.cancel()
    join = swjoin.WindowJoin(**OPTIONS)
    list(join.push(left=plain(LEFT), right=plain(RIGHT)))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        del join
        gc.collect()
