"""The Python API against the definition, DuckDB and itself: tables in any order, streams in any pieces, every refusal."""

from __future__ import annotations

import datetime as dt
import inspect
import itertools
import json
import pydoc
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import swjoin
from swjoin.api.inputs import to_table
from swjoin.config.run import RunConfig
from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.spark import window_join
from tests.conftest import ROOT
from tests.support.cases import CASES, Case, by_name
from tests.support.limits import PROCESS_S
from tests.tools.oracle import brute_force

Answer = tuple[int, str]
BASICS: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us"}


def table_of(rows: tuple[list[int | None], list[int | None]]) -> pa.Table:
    return pa.table({"key": pa.array(rows[0], pa.int64()), "ts": pa.array(rows[1], pa.int64())})


def random_table(seed: int, rows: int, keys: int = 20, span: int = 3000, *, null_share: float = 0.0) -> pa.Table:
    """Columns key, name, ts, value; times in random order."""
    random = np.random.default_rng(seed)
    key = random.integers(0, keys, rows)
    missing = random.random(rows) < null_share
    columns = {
        "key": pa.array(key, mask=missing),
        "name": pa.array([f"n{k % 7}" for k in key.tolist()], pa.string(), mask=missing),
        "ts": pa.array(random.integers(0, span, rows)),
        "value": pa.array([f"v{i}" * (i % 4) if i % 5 else None for i in range(rows)], pa.string()),
    }
    return pa.table(columns)


def brute(left: pa.Table, right: pa.Table, bounds: Bounds, keys: list[str]) -> Answer:
    """Count and digest by comparing every pair; rows with a null in a key match nothing."""
    codes: dict[Any, int] = {}
    batches = []
    for table in (left, right):
        values = list(zip(*(table.column(k).to_pylist() for k in keys), strict=True))
        good = np.array([i for i, v in enumerate(values) if None not in v], np.int64)
        key = np.array([codes.setdefault(values[i], len(codes)) for i in good], np.int64)
        ts = np.array(table.column("ts").to_pylist(), np.int64)[good] if len(good) else np.empty(0, np.int64)
        batches.append(TupleBatch(key, ts, good.astype(np.uint64), ts))
    i, j = brute_force(batches[0], batches[1], bounds)
    return len(i), format_digest(pair_digest(batches[0].id[i], batches[1].id[j]))


def answer_of(table: pa.Table) -> Answer:
    """Of the rows themselves, and what the table says of itself must agree with that."""
    found = len(table), format_digest(pair_digest(*(table.column(f"{s}_id").to_numpy() for s in ("left", "right"))))
    proof = swjoin.proof(table)
    assert (proof.count, proof.digest) == found
    assert proof.ledger.balanced
    return found


# ---------------------------------------------------------------- whole tables


@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.tuples(st.integers(0, 120), st.integers(0, 120)),
    bounds=st.tuples(st.integers(-400, 400), st.integers(-400, 400)).map(sorted),
    exclusive=st.sampled_from([(), ("lower",), "upper", ["lower", "upper"]]),
    keys=st.sampled_from(["key", "name", ["key", "name"]]),
    ordered=st.booleans(),
    threads=st.sampled_from([None, 1, 2, 3]),
)
@settings(max_examples=60, deadline=None)
def test_any_tables_equal_the_definition(
    seed: int, sizes: tuple[int, int], bounds: list[int], exclusive: Any, keys: Any, ordered: bool, threads: int | None
) -> None:
    left, right = (random_table(seed + s, n, 6, 800, null_share=0.1) for s, n in enumerate(sizes))
    if ordered:
        left, right = left.sort_by("ts"), right.sort_by("ts")
    arguments: dict[str, Any] = {**BASICS, "on": keys, "lower": f"{bounds[0]}us", "upper": f"{bounds[1]}us"}
    found = swjoin.join(left, right, **arguments, exclusive=exclusive, ids=True, threads=threads)
    names = [exclusive] if isinstance(exclusive, str) else list(exclusive)
    expected = brute(left, right, Bounds.of(bounds[0], bounds[1], tuple(names)), [keys] if isinstance(keys, str) else keys)
    assert answer_of(found) == expected
    counted = swjoin.count(left, right, **arguments, exclusive=exclusive, threads=threads)
    assert (counted.count, counted.digest) == expected
    assert counted.ledger == swjoin.proof(found).ledger
    nulls = left.column("key").null_count
    assert (counted.ledger.left.tuples, counted.ledger.left.null_key) == (len(left), nulls)


@pytest.mark.parametrize("case", CASES, ids=by_name)
def test_cases_known_to_break_such_engines(case: Case) -> None:
    """SPEC section 7; with the case's own bound of lateness, and sorted by the API where the definition does not mind."""
    time = case.settings.get("time", {})
    bound, late = time.get("max_out_of_order_us", 0), time.get("late", "error")
    sorts = time.get("sort", False)  # as tables are by default; a stream waits for long enough
    window = {"lower": f"{case.bounds[0]}us", "upper": f"{case.bounds[1]}us", "exclusive": case.exclusive}
    left, right = table_of(case.left), table_of(case.right)
    found = swjoin.join(left, right, **BASICS, **window, max_out_of_order=None if sorts else f"{bound}us", late=late, ids=True)
    assert answer_of(found) == case.answer()
    assert stream(left, right, [17, 5], max_out_of_order="1s" if sorts else f"{bound}us", late=late, **window) == case.answer()


def test_columns_are_what_duckdb_says() -> None:
    """Every column of every row, clashing names, several chunks, dictionaries, lists, booleans and decimals included."""
    parts = []
    for seed in (1, 2, 3):
        table = random_table(seed, 200, null_share=0.05)
        more = {
            "shared": pa.array([i % 3 == 0 if i % 4 else None for i in range(200)]),
            "kind": pa.array([f"kind{seed}{i % 3}" for i in range(200)]).dictionary_encode(),
            "many": pa.array([[i, seed] if i % 2 else None for i in range(200)], pa.list_(pa.int16())),
            "money": pa.array([i * seed for i in range(200)]).cast(pa.decimal128(25, 2)),
        }
        for name, column in more.items():
            table = table.append_column(name, column)
        parts.append(table)
    left, right = pa.concat_tables(parts), parts[1].drop_columns(["value", "many"])
    found = swjoin.join(left, right, **BASICS, lower="-100us", upper="250us", threads=2)
    schema = {field.name: field.type for field in found.schema}
    assert list(schema) == [
        "key", "left_name", "left_ts", "value", "left_shared", "left_kind", "many", "left_money",
        "right_name", "right_ts", "right_shared", "right_kind", "right_money",
    ]  # fmt: skip
    assert schema["left_kind"] == left.schema.field("kind").type
    plain = [t.set_column(t.column_names.index("kind"), "kind", t.column("kind").cast(pa.string())) for t in (left, right)]
    connection = duckdb.connect()
    connection.register("l", plain[0])
    connection.register("r", plain[1])
    query = (
        "SELECT l.key, l.name, l.ts, value, l.shared, l.kind, many, l.money, r.name, r.ts, r.shared, r.kind, r.money "
        "FROM l JOIN r ON l.key = r.key AND r.ts - l.ts BETWEEN -100 AND 250"
    )
    expected = connection.execute(query).fetchall()
    assert sorted(map(repr, (tuple(r.values()) for r in found.to_pylist()))) == sorted(map(repr, expected))
    assert len(expected) > 500


def test_unsorted_tables_just_work_and_keep_their_positions() -> None:
    left, right = random_table(5, 5000, 300, 90_000), random_table(6, 4000, 300, 90_000)
    found = swjoin.join(left, right, **BASICS, within="500us", ids=True)
    assert answer_of(found) == brute(left, right, Bounds(-500, 500), ["key"])
    rows = found.slice(0, 50).to_pylist()
    times = left.column("ts").to_pylist()
    assert all(times[r["left_id"]] == r["left_ts"] for r in rows)
    with pytest.raises(swjoin.UserError, match=r"left, row id \d+: its time is .*declare max_out_of_order='\w+' or more"):
        swjoin.join(left, right, **BASICS, within="500us", max_out_of_order="0us")
    dropped = swjoin.count(left, right, **BASICS, within="500us", max_out_of_order="0us", late="drop")
    assert dropped.ledger.left.late > 4000
    assert dropped.ledger.balanced


def test_a_tables_chunks_do_not_matter() -> None:
    """More than one slice of 65,536 rows, chunks of odd sizes, a slice of a larger table, sorted and not."""
    left, right = random_table(7, 150_000, 60_000, 10**6), random_table(8, 90_000, 60_000, 10**6)
    whole = swjoin.count(left, right, **BASICS, within="50ms")
    pieces = pa.concat_tables([left.slice(0, 3), left.slice(3, 99_000), left.slice(99_003, 0), left.slice(99_003)])
    assert swjoin.count(pieces, right, **BASICS, within="50ms") == whole
    larger = pa.concat_tables([random_table(9, 10), right]).combine_chunks().slice(10)
    found = swjoin.join(pieces, larger, **BASICS, within="50ms", ids=True, threads=2)
    assert answer_of(found) == (whole.count, whole.digest)
    ids = [found.column(f"{s}_id").to_numpy() for s in ("left", "right")]
    assert found.column("left_value").equals(pc.take(left.column("value"), pa.array(ids[0])))
    assert found.column("right_value").equals(pc.take(right.column("value"), pa.array(ids[1])))


def test_times_with_units_and_zones() -> None:
    base = dt.datetime(2024, 3, 31, 0, 30, tzinfo=dt.UTC)  # Berlin's clocks go forward half an hour later
    seconds = [0, 10, 3600, 7200, 7201]
    left = pa.table(
        {"k": ["a"] * 5, "at": pa.array([base + dt.timedelta(seconds=s) for s in seconds], pa.timestamp("ms", "UTC"))}
    )
    right = pa.table({"k": ["a"] * 5, "at": pa.array(left.column("at").cast(pa.timestamp("ns", "Europe/Berlin")))})
    found = swjoin.join(left, right, on="k", left_time="at", right_time="at", within=dt.timedelta(seconds=10))
    assert len(found) == 9
    assert found.schema.field("right_at").type == pa.timestamp("ns", "Europe/Berlin")
    days = pa.table({"k": ["a", "a"], "at": pa.array([dt.date(2024, 3, 31), dt.date(2024, 4, 1)])})
    found = swjoin.count(left, days, on="k", left_time="at", right_time="at", lower="-1h", upper="1d", assume_timezone="UTC")
    assert found.count == 7
    fine = pa.table({"k": ["a"], "at": pa.array([1], pa.timestamp("ns", "UTC"))})
    with pytest.raises(
        swjoin.UserError, match=r"right, row 0 \(counting from 0\): time column at is finer than one microsecond"
    ):
        swjoin.join(left, fine, on="k", left_time="at", right_time="at", within="1s")


def test_anything_with_arrows_interface() -> None:
    import pandas as pd

    class Frame:
        """What polars, DuckDB and others offer."""

        def __init__(self, table: pa.Table) -> None:
            self.table = table

        def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
            return self.table.__arrow_c_stream__(requested_schema)

    left, right = random_table(1, 100), random_table(2, 100)
    expected = swjoin.join(left, right, **BASICS, within="200us").to_pylist()
    frame = pd.DataFrame({n: left.column(n).to_pylist() for n in left.column_names}, index=range(7, 107))
    others = [
        duckdb.from_arrow(left, connection=duckdb.connect()),
        left.to_reader(),
        left.combine_chunks().to_batches()[0],
        Frame(left),
        frame,
        duckdb.from_arrow(left).to_arrow_reader(),
    ]
    for other in others:
        assert swjoin.join(other, right, **BASICS, within="200us").to_pylist() == expected
    indexed = pd.DataFrame({"v": [1]}, index=pd.DatetimeIndex(["2024-01-01"], name="at"))
    assert to_table(indexed, "left", "at").column_names == ["v", "at"]
    assert to_table(frame, "left", "ts").column_names == left.column_names


def test_views_and_columns_of_no_type() -> None:
    """polars' strings are views; what is empty in pandas has no type."""
    views = pa.array(["short", None, "longer than twelve bytes"], pa.string_view())
    left = pa.table({"key": pa.array(["a", "b", "b"], pa.string_view()), "ts": [1, 2, 3], "v": views})
    left = pa.concat_tables([left.slice(1), left])
    right = pa.table({"key": ["b"], "ts": [2], "w": pa.array([b"longer than twelve bytes"], pa.binary_view())})
    found = swjoin.join(left, right, **BASICS, within="1us")
    assert sorted(map(str, found.column("v").to_pylist())) == [
        "None",
        "None",
        "longer than twelve bytes",
        "longer than twelve bytes",
    ]
    assert (found.schema.field("v").type, found.schema.field("w").type) == (pa.string_view(), pa.binary_view())
    found.validate(full=True)
    assert stream(left, right, [2], within="1us", max_out_of_order="2us")[0] == 4
    empty = pa.table({"key": pa.nulls(0), "ts": pa.nulls(0)})
    assert swjoin.join(empty, right, **BASICS, within="1us").num_rows == 0
    assert swjoin.count(left, pa.table({"key": pa.nulls(2), "ts": [1, 2]}), **BASICS, within="1us").ledger.right.null_key == 2
    with pytest.raises(swjoin.UserError, match=r"column v: type list<item: string_view> cannot be carried; leave it out"):
        swjoin.join(left, right.append_column("v", pa.array([[]], pa.list_(pa.string_view()))), **BASICS, within="1us")


def test_windows_above_the_limit_fail() -> None:
    many = pa.table({"key": np.arange(100_000), "ts": np.zeros(100_000, np.int64)})
    for threads in (1, 2):
        with pytest.raises(
            swjoin.RunFailed, match=r"its windows .* would exceed memory .*; raise memory, or use a shorter window"
        ):
            swjoin.join(many, many, **BASICS, within="1us", memory="1MB", threads=threads)


def test_files_as_the_command_takes_them(tmp_path: Path, swjoin: Any) -> None:
    import swjoin as api

    left, right = random_table(1, 500).sort_by("ts"), random_table(2, 400).sort_by("ts")
    folder = tmp_path / "left"
    folder.mkdir()
    pq.write_table(left.slice(0, 200), folder / "a.parquet")
    pq.write_table(left.slice(200), folder / "b.parquet")
    csv.write_csv(right, tmp_path / "right.csv")
    report = tmp_path / "report.json"
    arguments = ["--on", "key", "--left-time", "ts", "--right-time", "ts", "--time-unit", "us", "--within", "99us"]
    done = swjoin("join", folder, tmp_path / "right.csv", *arguments, "-o", "count", "--report", report)
    assert done.code == 0, done.err
    said = json.loads(report.read_text())["results"]
    found = api.join(folder, str(tmp_path / "right.csv"), **BASICS, within="99us", ids=True)
    assert answer_of(found) == (said["count"], said["digest"])
    counted = api.count(folder, right, **BASICS, within="99us")
    assert (counted.count, counted.digest) == (said["count"], said["digest"])
    with pytest.raises(api.UserError, match="no such file"):
        api.join(tmp_path / "nothing.parquet", right, **BASICS, within="99us")


def test_ids_and_columns_of_the_users_own() -> None:
    left = pa.table(
        {
            "key": [1, 2, 1],
            "ts": [5, 1, 3],
            "row": pa.array([90, 80, 70], pa.uint64()),
            "a": [1, 2, 3],
            "b": ["x", "y", "z"],
        }
    )
    right = pa.table({"key": [1, 1], "ts": [4, 9], "c": [True, False]})
    found = swjoin.join(left, right, **BASICS, within="2us", left_id="row", columns=["a", "c"], ids=True)
    assert found.column_names == ["left_id", "right_id", "left_ts", "right_ts", "key", "left_ts_", "row", "a", "right_ts_", "c"]
    assert sorted(zip(*(found.column(n).to_pylist() for n in ("left_id", "right_id", "a")), strict=True)) == [
        (70, 0, 3),
        (90, 0, 1),
    ]
    assert answer_of(found)[0] == 2
    counted = swjoin.count(left, right, **BASICS, within="2us", left_id="row")
    assert counted.digest == swjoin.proof(found).digest
    assert swjoin.join(left, right, **BASICS, within="2us", columns=[]).column_names == ["key", "left_ts", "right_ts"]


def test_the_greatest_id() -> None:
    left = pa.table({"key": [1], "ts": [5], "row": pa.array([2**64 - 2], pa.uint64())})
    found = swjoin.join(left, left, **BASICS, within="2us", left_id="row", right_id="row", ids=True)
    assert found.column("left_id").to_pylist() == [2**64 - 2]


def test_ids_that_mean_a_missing_side_are_refused_in_a_stream() -> None:
    batch = pa.record_batch({"key": [1, 1], "ts": [5, 6], "row": [3, -1]})
    with swjoin.WindowJoin(**BASICS, within="2us", left_id="row", right_id="row") as join:
        with pytest.raises(swjoin.UserError, match=r"left: row 1 of the stream .*: id column row is -1; ids are 0 to"):
            join.push(left=batch)
        list(join.push(left=batch.slice(0, 1)))
        assert [b.num_rows for b in join.push(right=batch.slice(0, 1))] == [1]
        list(join.close())


def test_bounds_of_pandas() -> None:
    left = pa.table({"key": [1, 1], "ts": [5, 6]})
    bounds = {"lower": pd.Timedelta("-1us"), "upper": pd.Timedelta(0)}
    assert swjoin.count(left, left, **BASICS, **bounds) == swjoin.count(left, left, **BASICS, lower="-1us", upper=0)


def test_different_names_on_both_sides() -> None:
    trips = pa.table({"user": ["a", "b"], "kind": [1, 1], "started": [10, 20]})
    payments = pa.table({"paid": [11, 25], "customer": ["a", "b"], "type": [1, 1]})
    arguments: dict[str, Any] = {"left_time": "started", "right_time": "paid", "time_unit": "s", "lower": 0, "upper": "3s"}
    found = swjoin.join(trips, payments, left_on=["user", "kind"], right_on=["customer", "type"], **arguments)
    assert found.to_pylist() == [{"user": "a", "kind": 1, "started": 10, "paid": 11}]


# ---------------------------------------------------------------- streams


def pieces_of(table: pa.Table, sizes: list[int]) -> list[pa.RecordBatch]:
    """A table cut into batches of these sizes, again and again."""
    at, out = 0, []
    whole = table.combine_chunks().to_batches() or [pa.record_batch([[] for _ in table.schema], schema=table.schema)]
    for size in itertools.cycle(sizes):
        out.append(whole[0].slice(at, size))
        at += size
        if at >= len(table):
            return out
    raise AssertionError


def stream(left: pa.Table, right: pa.Table, sizes: list[int], seed: int = 0, **arguments: Any) -> Answer:
    """Pushed batch by batch in a random order of sides; the pairs themselves are counted and digested here."""
    random = np.random.default_rng(seed)
    sides = [pieces_of(left, sizes), pieces_of(right, sizes[::-1])]
    found: list[pa.RecordBatch] = []
    schemas = {"left_schema": left.schema, "right_schema": right.schema} if seed % 2 else {}
    with swjoin.WindowJoin(**{**BASICS, **arguments}, ids=True, **schemas) as join:
        while sides[0] or sides[1]:
            side = int(random.integers(0, 2)) if sides[0] and sides[1] else int(not sides[0])
            results = join.push(**{("left", "right")[side]: sides[side].pop(0)})
            if random.random() < 0.7:
                found += results
        found += join.close()
        assert join.ledger.balanced, join.ledger.complaints()
        table = pa.Table.from_batches(found, join.schema)
        ids = (table.column(f"{s}_id").to_numpy() for s in ("left", "right"))
        answer = len(table), format_digest(pair_digest(*ids))
        assert answer == (join.count, join.digest)
    return answer


@given(
    seed=st.integers(0, 1 << 30),
    sizes=st.lists(st.integers(1, 60), min_size=1, max_size=4),
    disorder=st.integers(0, 80),
    keys=st.sampled_from(["key", "name", ["name", "key"]]),
    window=st.integers(0, 300),
)
@settings(max_examples=40, deadline=None)
def test_streams_in_any_pieces_give_the_digest_of_the_join(
    seed: int, sizes: list[int], disorder: int, keys: Any, window: int
) -> None:
    tables = []
    for side, rows in enumerate((90, 110)):
        table = random_table(seed + side, rows, 5, 2000, null_share=0.1)
        jitter = np.random.default_rng(seed).integers(0, disorder + 1, rows)
        tables.append(table.take(np.argsort(table.column("ts").to_numpy() + jitter, kind="stable")))
    expected = swjoin.count(*tables, **{**BASICS, "on": keys}, within=f"{window}us")
    found = stream(*tables, sizes, seed, on=keys, within=f"{window}us", max_out_of_order=f"{disorder}us")
    assert found == (expected.count, expected.digest)


def test_pairs_come_as_soon_as_they_are_certain() -> None:
    left, right = ([(1, 100, "a")], [(1, 103, "b")])
    schema = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("v", pa.string())])

    def batch(rows: list[tuple[int, int, str]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist([dict(zip(schema.names, row, strict=True)) for row in rows], schema)

    join = swjoin.WindowJoin(**BASICS, within="10us", left_schema=schema, right_schema=schema)
    assert list(join.push(left=batch(left))) == []
    assert [b.to_pylist() for b in join.push(right=batch(right))] == [
        [{"key": 1, "left_ts": 100, "left_v": "a", "right_ts": 103, "right_v": "b"}]
    ]
    assert "1 pairs" in repr(join)
    late = swjoin.WindowJoin(**BASICS, within="10us", max_out_of_order="50us", left_schema=schema, right_schema=schema)
    assert list(late.push(left=batch(left), right=batch(right))) == []
    assert sum(b.num_rows for b in late.advance(to=104)) == 1
    assert list(late.close()) == []


def test_windows_expire_and_a_promise_expires_those_of_a_silent_stream() -> None:
    schema = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("v", pa.binary(100))])
    peaks = []
    with swjoin.WindowJoin(**BASICS, within="1ms", left_schema=schema, right_schema=schema) as join:
        for step in range(60):
            ts = np.arange(step * 10_000, (step + 1) * 10_000, 10)
            columns = [pa.array(ts % 97), pa.array(ts), pa.array([b"x" * 100] * len(ts), pa.binary(100))]
            for _ in join.push(left=pa.record_batch(columns, schema=schema)):
                raise AssertionError
            list(join.advance(int(ts[-1]), side="right"))
            peaks.append(join.window_bytes)
        list(join.close())
    assert max(peaks[30:]) <= 1.2 * max(peaks[10:30])
    assert join.ledger.left.joined == 60_000
    full = swjoin.WindowJoin(**BASICS, within="1h", memory="1MB", left_schema=schema, right_schema=schema)
    ts = np.arange(20_000)
    batch = pa.record_batch([pa.array(ts % 97), pa.array(ts), pa.array([b"x" * 100] * len(ts), pa.binary(100))], schema=schema)
    results = full.push(left=batch)
    with pytest.raises(swjoin.RunFailed, match="windows"):
        list(results)
    with pytest.raises(swjoin.RunFailed, match="has failed before"):
        full.close()


def test_a_refused_batch_leaves_no_trace() -> None:
    left = table_of(([1, 1, 1], [10, 20, 30]))
    right = table_of(([1], [30]))
    join = swjoin.WindowJoin(**BASICS, within="100us")
    list(join.push(left=left, right=right))
    with pytest.raises(
        swjoin.UserError, match=r"left, row id 4: its time is 5us behind an earlier row, more than the declared 0s"
    ):
        join.push(left=table_of(([1, 1], [40, 35])))
    with pytest.raises(swjoin.UserError, match="left, row id 3: no time"):
        join.push(left=table_of(([1], [None])))
    list(join.push(left=table_of(([1], [35]))))
    list(join.close())
    assert join.count == 4
    assert join.ledger.balanced
    assert join.ledger.left.tuples == 4


def test_late_rows_are_told() -> None:
    with swjoin.WindowJoin(**BASICS, within="100us", late="side") as join:
        list(join.push(left=table_of(([1, 1, 1], [10, 30, 20])), right=table_of(([1], [None]))))
        late = join.late_rows().to_pylist()
        list(join.close())
    assert late == [
        {"stream": "left", "row_id": 2, "ts": 20, "reason": "late"},
        {"stream": "right", "row_id": 0, "ts": None, "reason": "null time"},
    ]
    assert join.late_rows().num_rows == 0
    assert join.ledger.left.late == 1


def test_one_side_never_speaks() -> None:
    with swjoin.WindowJoin(**BASICS, within="100us") as join:
        assert list(join.push(left=table_of(([1, None], [10, 30])))) == []
        assert join.ledger.left.tuples == 2
        list(join.advance(40))
        assert list(join.close()) == []
    assert join.ledger.balanced
    assert (join.ledger.left.joined, join.ledger.left.null_key) == (1, 1)
    with swjoin.WindowJoin(**BASICS, within="100us") as join:
        assert list(join.close()) == []
    assert join.ledger.balanced


def test_promises_are_values_of_the_time_column() -> None:
    at = dt.datetime(2024, 1, 1, tzinfo=dt.UTC)
    schema = pa.schema([("k", pa.string()), ("at", pa.timestamp("ms", "UTC"))])
    join = swjoin.WindowJoin(on="k", left_time="at", right_time="at", within="1s", left_schema=schema, right_schema=schema)
    for value in (at, pa.scalar(at, pa.timestamp("us", "UTC")), 1_704_067_200_000):
        list(join.advance(value))
    with pytest.raises(swjoin.UserError, match="left, row id 0: its time is 1s behind"):
        join.push(left=pa.table({"k": ["a"], "at": pa.array([at - dt.timedelta(seconds=1)])}, schema=schema))
    mistakes = [("tomorrow", "is no value of the left side's time column at"), (None, "to is null")]
    mistakes += [
        (naive, "one has a time zone, the other has none") for naive in (at.replace(tzinfo=None), np.datetime64(0, "us"))
    ]
    for wrong, text in mistakes:
        with pytest.raises(swjoin.UserError, match=text):
            join.advance(wrong)
    with pytest.raises(swjoin.UserError, match="side 'middle' is not one of"):
        join.advance(at, side="middle")  # type: ignore[arg-type]
    join.cancel()


# ---------------------------------------------------------------- what is refused


LEFT, RIGHT = table_of(([1], [1])), table_of(([1], [1]))
REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "unknown how": ({"how": "outer"}, "how: 'outer' is not one of 'inner', 'left', 'right', 'full', 'semi', 'anti'"),
    "both within and lower": ({"lower": "1s"}, "give within, or lower and upper, not both"),
    "no window": ({"within": None}, "the window is missing: give within, or lower and upper"),
    "half a window": ({"within": None, "lower": "1s"}, "the window is missing"),
    "negative window": ({"within": "-1s"}, "within: '-1s': a window cannot be negative"),
    "bounds swapped": ({"within": None, "lower": "2s", "upper": "1s"}, "lower .* is above upper"),
    "no unit": ({"within": 5}, "within: 5 has no unit; write a string such as '250ms'"),
    "unknown unit": ({"within": "5 parsecs"}, "within: duration '5 parsecs': write a number and a unit"),
    "exclusive": ({"exclusive": "both"}, "exclusive: 'both' is not one of 'lower', 'upper'"),
    "missing column": ({"on": "kye"}, "left table: key column kye is missing; did you mean key?"),
    "missing time": ({"right_time": "when"}, "right table: time column when is missing"),
    "no key": ({"on": None}, "the join columns are missing: give on, or left_on and right_on"),
    "on and left_on": ({"left_on": "key"}, "give on, or left_on and right_on, not both"),
    "key twice": ({"on": ["key", "ts", "key"]}, "join columns: key is named twice on one side; name each column once"),
    "key twice on the left": (
        {"on": None, "left_on": ["key", "key"], "right_on": ["key", "ts"]},
        "join columns: key is named twice on one side",
    ),
    "nanoseconds": ({"within": pd.Timedelta("1500ns")}, r"within: Timedelta\(.*\) is finer than one microsecond; round it"),
    "nanoseconds of a bound": (
        {"within": None, "lower": pd.Timedelta("-1500ns"), "upper": "1s"},
        r"lower: Timedelta\(.*\) is finer than one microsecond",
    ),
    "nanoseconds of lateness": (
        {"max_out_of_order": pd.Timedelta("1ns")},
        "max_out_of_order: .* is finer than one microsecond",
    ),
    "numpy's nanoseconds": ({"within": np.timedelta64(1500, "ns")}, "within: .* is finer than one microsecond; round it"),
    "numpy's months": ({"within": np.timedelta64(1, "M")}, "within: duration .*: write one of a fixed length"),
    "numpy's number": ({"within": np.timedelta64(5)}, r"within: .* such as numpy.timedelta64\(5, 's'\)"),
    "a column": ({"within": ["5s"]}, "within: duration: a list is none; write text such as 250ms"),
    "durations": ({"within": np.array([1, 2])}, "within: duration: a ndarray is none; write text such as 250ms"),
    "kinds": ({"how": np.array(["inner", "left"])}, "how: .* is not one of 'inner'"),
    "no bound": ({"exclusive": None}, "exclusive: None is neither 'lower' nor 'upper' nor a list of them"),
    "key is no name": ({"on": 7}, "on: 7 is not a column name or a list of column names"),
    "time is no name": ({"left_time": 7}, "left_time: 7 is not a column name"),
    "no time unit": (
        {"time_unit": None},
        "left table: time column ts holds integers; say which unit with time_unit='s' or 'ms' or 'us' or 'ns'",
    ),
    "time unit": ({"time_unit": "m"}, "time_unit: 'm' is not one of 's', 'ms', 'us', 'ns'"),
    "late": ({"late": "ignore"}, "late: 'ignore' is not one of 'error', 'drop', 'side'"),
    "negative bound": ({"max_out_of_order": "-1s"}, "max_out_of_order: '-1s' must not be negative"),
    "memory": ({"memory": "lots"}, "memory: size 'lots': write a number and a unit"),
    "chosen column": ({"columns": ["colour"]}, "columns: colour is on neither side; there are key, ts"),
    "ids": ({"ids": "yes"}, "ids: 'yes' is neither True nor False"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_one_clear_exception(name: str) -> None:
    wrong, text = REFUSED[name]
    arguments = {**BASICS, "within": "1s", **wrong}
    with pytest.raises(swjoin.UserError, match=text):
        swjoin.join(LEFT, RIGHT, **arguments)
    with pytest.raises(swjoin.UserError, match=text):
        swjoin.WindowJoin(**arguments, left_schema=LEFT.schema, right_schema=RIGHT.schema)


@pytest.mark.parametrize(
    ("left", "more", "text"),
    [
        (5, {}, "left: a int is no table; give an Arrow table"),
        ({"key": [1]}, {}, "left: a dict is no table"),
        (pa.Table, {}, "left: a type is no table"),
        (LEFT, {"threads": 0}, "threads: 0: must be 1 or more"),
        (LEFT, {"ranks": 2}, "ranks: 2: must be 3 or more"),
        (LEFT, {"ranks": 3, "threads": 1}, "threads: on MPI every slave is a rank"),
        (LEFT, {"late": "side"}, "late: 'side' needs a place"),
        (table_of(([1], [None])), {}, "left, row id 0: no time; choose late='drop'"),
        (pa.table({"key": ["1"], "ts": [1]}), {}, "join keys: left key is string, right key is int64"),
        (pa.table({"key": [1.5], "ts": [1]}), {}, "type double cannot be a join key"),
        (pa.table({"key": [1], "ts": [1.5]}), {}, "left table: time column ts is double"),
        (pa.table([[1], [1], [1]], ["key", "ts", "ts"]), {}, "left table: column ts is there 2 times"),
        (LEFT, {"left_id": "ts", "right_id": "rows"}, "right table: id column rows is missing"),
        (pa.table({"key": [1], "ts": [1], "i": pa.array([None], pa.int64())}), {"left_id": "i"}, "id column i is null"),
        (
            pa.table({"key": [1, 2], "ts": [1, 2], "i": [0, -1]}),
            {"left_id": "i"},
            r"left, row 1 \(counting from 0\): id column i is -1; ids are 0 to 2\^64 - 2",
        ),
        (pa.table({"key": [1], "ts": [1], "i": pa.array([-5], pa.int8())}), {"left_id": "i"}, "id column i is -5; ids are"),
        (
            pa.table({"key": [1], "ts": [1], "i": pa.array([2**64 - 1], pa.uint64())}),
            {"left_id": "i"},
            "left, row 0 .*: id column i is 18446744073709551615; ids are 0 to 2",
        ),
    ],
)
def test_wrong_tables_are_one_clear_exception(left: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(swjoin.UserError, match=text):
        swjoin.join(left, RIGHT, **BASICS, within="1s", **more)


def test_a_stream_that_fails_says_so() -> None:
    def batches() -> Any:
        yield LEFT.to_batches()[0]
        raise OSError("the network is gone")

    broken = pa.RecordBatchReader.from_batches(LEFT.schema, batches())
    with pytest.raises(swjoin.UserError, match=r"left: cannot be read as Arrow data: .*the network is gone"):
        swjoin.join(broken, RIGHT, **BASICS, within="1s")


def test_misused_streams_are_one_clear_exception() -> None:
    join = swjoin.WindowJoin(**BASICS, within="1s")
    with pytest.raises(swjoin.UserError, match="push: give left=batch"):
        join.push()
    with pytest.raises(swjoin.UserError, match="schema: not known before"):
        _ = join.schema
    with pytest.raises(swjoin.UserError, match="left: a list is no table"):
        join.push(left=[1])
    with pytest.raises(swjoin.UserError, match=r"'a.parquet' is a path"):
        join.push(left="a.parquet")
    list(join.push(left=LEFT, right=RIGHT))
    for other, text in (
        (LEFT.drop_columns(["key"]), "left: column key is missing; the stream wants key, ts"),
        (LEFT.append_column("new", pa.array([1])), "left: column new is new in this batch"),
        (LEFT.set_column(0, "key", pa.array(["a"])), "left: column key is string, the stream wants int64: cast it first"),
    ):
        with pytest.raises(swjoin.UserError, match=text):
            join.push(left=other)
    list(join.push(left=LEFT.select(["ts", "key"])))  # the order of columns is nobody's business
    list(join.close())
    for call in (lambda: join.push(left=LEFT), lambda: join.advance(5), join.close):
        with pytest.raises(swjoin.UserError, match="the join is closed; make a new WindowJoin"):
            call()
    with pytest.raises(swjoin.UserError, match="left_schema: a list is no schema; give one of Arrow or polars"):
        swjoin.WindowJoin(**BASICS, within="1s", left_schema=[])  # type: ignore[arg-type]
    nested = pa.schema([("key", pa.int64()), ("ts", pa.int64()), ("v", pa.list_(pa.int64()))])
    with pytest.raises(swjoin.UserError, match=r"column v: type list<.*cannot be carried; leave it out with columns"):
        swjoin.WindowJoin(**BASICS, within="1s", left_schema=nested, right_schema=nested)


def _leave(how: str) -> None:
    with swjoin.WindowJoin(**BASICS, within="1s") as join:
        results = join.push(left=LEFT, right=RIGHT)
        if how == "open":
            list(results)
        elif how == "untaken":
            join.close()
        elif how == "cancelled":
            join.cancel()
        else:
            raise ValueError("mine")


def test_a_block_that_forgets_its_pairs_is_told() -> None:
    for how in ("open", "untaken"):
        with pytest.raises(swjoin.UserError, match="ended before all pairs were taken"):
            _leave(how)
    _leave("cancelled")
    with pytest.raises(ValueError, match="mine"):
        _leave("broken")


# ---------------------------------------------------------------- clusters


SMALL: dict[str, Any] = {
    "join": {"within": "200ms"},
    "workload": {"rate": 2000, "duration": "2s", "bias": 0.7, "domain": 1000, "payload": "8B"},
    "cluster": {"distribution_epoch": "200ms"},
}


def test_a_run_and_all_that_it_has_left(tmp_path: Path) -> None:
    run = swjoin.run(SMALL, out=tmp_path / "run", threads=2)
    assert run.complete
    assert run.ledger.balanced
    assert run.ledger.left.tuples == run.report["input"]["left"]["tuples"] > 3000
    table = run.results().to_table()
    assert len(table) == run.count > 0
    assert answer_of_run(table) == run.digest
    assert run.metrics().column("pairs").to_numpy().sum() == run.count
    assert "kind" in run.events().column_names
    page = run._repr_html_()
    assert run.digest in page
    assert f"{run.count:,}" in page
    assert "balanced" in page
    assert run.digest in repr(run)
    again = swjoin.Run.open(tmp_path / "run")
    assert again.report == run.report
    pytest.importorskip("matplotlib")
    assert len(run.plot().axes) == 3
    with pytest.raises(swjoin.UserError, match="holds a finished run"):
        swjoin.run(SMALL, out=tmp_path / "run")


def answer_of_run(table: pa.Table) -> str:
    return format_digest(pair_digest(*(table.column(f"{s}_id").to_numpy() for s in ("left", "right"))))


def test_runs_of_files_objects_and_counts(tmp_path: Path) -> None:
    file = tmp_path / "config.yaml"
    file.write_text(json.dumps({**SMALL, "sink": {"kind": "count"}}))
    run = swjoin.run(str(file))
    from swjoin.config.loader import load_config

    config = load_config(file)
    assert isinstance(config, RunConfig)
    assert swjoin.run(config).digest == run.digest
    with pytest.raises(swjoin.UserError, match="kept count and digest only"):
        run.results()
    path = run.path
    assert path.is_dir()
    del run
    assert not path.exists()


def test_wrong_runs_are_one_clear_exception(tmp_path: Path) -> None:
    with pytest.raises(swjoin.UserError, match="config: 5 is no configuration"):
        swjoin.run(5)  # type: ignore[arg-type]
    with pytest.raises(swjoin.UserError, match="out: 5 is no path"):
        swjoin.run({"join": {"within": "1s"}}, out=5)  # type: ignore[arg-type]
    with pytest.raises(swjoin.UserError, match="the window is missing"):
        swjoin.run({"join": {"within": None}})
    with pytest.raises(swjoin.UserError, match="joim: unknown configuration key"):
        swjoin.run({"joim": {}})
    with pytest.raises(swjoin.UserError, match="cannot be read"):
        swjoin.run(tmp_path / "no.yaml")
    with pytest.raises(swjoin.UserError, match=r"is .* the directory of a run"):
        swjoin.Run.open(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(swjoin.UserError, match="not valid JSON"):
        swjoin.Run.open(tmp_path)
    (tmp_path / "run.json").write_text(
        json.dumps({"config": {}, "ledger": {}, "results": {"count": None, "digest": None}, "failure": "<it broke>"})
    )
    failed = swjoin.Run.open(tmp_path)
    assert "&lt;it broke&gt;" in failed._repr_html_()
    with pytest.raises(swjoin.RunFailed, match="it broke"):
        _ = failed.ledger
    with pytest.raises(swjoin.UserError, match="was the run completed"):
        failed.metrics()


@pytest.mark.mpi
@pytest.mark.drawn
def test_on_ranks_the_answer_is_the_same(capfd: pytest.CaptureFixture[str]) -> None:
    left, right = random_table(1, 3000, 200, 30_000, null_share=0.05), random_table(2, 2500, 200, 30_000)
    here = swjoin.join(left, right, **{**BASICS, "on": ["name", "key"]}, within="300us", ids=True)
    there = swjoin.join(left, right, **{**BASICS, "on": ["name", "key"]}, within="300us", ids=True, ranks=4)
    assert answer_of(there) == answer_of(here)
    order = [("left_id", "ascending"), ("right_id", "ascending")]
    assert there.sort_by(order).equals(here.sort_by(order))
    assert swjoin.proof(there).ledger == swjoin.proof(here).ledger
    counted = swjoin.count(left, right, **BASICS, within="300us", ranks=3)
    assert counted == swjoin.count(left, right, **BASICS, within="300us")
    with pytest.raises(swjoin.UserError, match="its time is"):
        swjoin.count(left, right, **BASICS, within="300us", ranks=3, max_out_of_order="0us")
    run = swjoin.run(SMALL, ranks=3)
    assert run.digest == swjoin.run(SMALL).digest
    assert len(run.report["ranks"]) == 3
    assert capfd.readouterr() == ("", "")


def test_empty_paths_are_not_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    pq.write_table(LEFT, tmp_path / "a.parquet")
    with pytest.raises(swjoin.UserError, match=r"left: the path is empty; write \. for the working directory"):
        swjoin.join("", LEFT, **BASICS, within="1us")
    with pytest.raises(swjoin.UserError, match="proof: the path is empty"):
        swjoin.proof("")


def test_what_arrow_lends_compiles_no_kernel_anew() -> None:
    """Once for arrays that may be written to, once for those that may not, and for every mixture: ten seconds each."""
    from swjoin.cluster.gateway.intake import classify
    from swjoin.core.arrow_views import borrowed
    from swjoin.routing import hash_partition
    from swjoin.state.join_kernel import join_groups

    left, right = random_table(1, 300, 20, 3000), random_table(2, 300, 20, 3000).slice(7)
    swjoin.count(left, right, **BASICS, within="300us")
    swjoin.join(left, right, **{**BASICS, "on": ["name", "key"]}, within="300us")
    for kernel in (join_groups, classify, hash_partition._count_slots, hash_partition._scatter):
        assert kernel.signatures
        assert "readonly" not in str(kernel.signatures)
    buffer = pa.array([1, 2, 3], pa.int64()).buffers()[1]
    view = borrowed(buffer, np.int64)
    assert view.ctypes.data == buffer.address
    assert view[:3].tolist() == [1, 2, 3]
    with pytest.raises(ValueError, match="multiple"):
        borrowed(buffer.slice(0, 9), np.int64)
    assert len(borrowed(buffer.slice(0, 0), np.int64)) == 0


# ---------------------------------------------------------------- the package


def test_importing_the_package_is_cheap() -> None:
    code = (
        "import sys, swjoin\n"
        "heavy = {'numba', 'pyarrow', 'numpy', 'pandas', 'mpi4py'} & set(sys.modules)\nassert not heavy, heavy\n"
        "assert {'join', 'WindowJoin', 'run'} <= set(dir(swjoin))\n"
        "try:\n    swjoin.jion\nexcept AttributeError as error:\n    assert 'jion' in str(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT
    )
    assert done.returncode == 0, done.stderr


def test_type_checkers_see_the_signatures(tmp_path: Path) -> None:
    code = tmp_path / "user.py"
    code.write_text(
        "import swjoin\n"
        "run = swjoin.run({})\n"
        "proof = swjoin.count('a.csv', 'b.csv', on='k', left_time='t', right_time='t', within='1s')\n"
        "reveal_type(proof.count)\nreveal_type(run.digest)\n"
        "swjoin.join('a.csv', 'b.csv', on='k', left_time='t', right_time='t', within='1s', how='outer')\n"
        "swjoin.WindowJoin(within=5)\n"
    )
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "setup.cfg"), str(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    said = "\n".join(line.split(": ", 1)[1] for line in done.stdout.splitlines() if "user.py:" in line)
    assert 'Revealed type is "int"' in said, done.stdout + done.stderr
    assert 'Revealed type is "str"' in said
    assert 'Argument "how" to "join" has incompatible type' in said
    assert 'Missing named argument "left_time" for "WindowJoin"' in said
    assert 'Argument "within" to "WindowJoin" has incompatible type "int"' in said


SHARED = {
    "on": None, "left_time": inspect.Parameter.empty, "right_time": inspect.Parameter.empty, "within": None, "lower": None,
    "upper": None, "exclusive": (), "time_unit": None, "left_time_unit": None, "right_time_unit": None, "how": "inner",
    "match": "all", "where": None, "left_on": None, "right_on": None,
}  # fmt: skip
ENGINE = {
    **SHARED, "last": None, "assume_timezone": None, "left_id": None, "right_id": None, "max_out_of_order": None,
    "late": "error", "memory": None,
}  # fmt: skip
OUTPUT: dict[str, Any] = {"columns": None, "ids": False}
TABLES: dict[str, Any] = {
    name: None for name in ("threads", "ranks", "routing", "units", "csv", "left_csv", "right_csv", "progress")
}
SIGNATURES: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "join": (swjoin.join, {**ENGINE, **OUTPUT, **TABLES, "returns": "arrow", "out": None}),
    "count": (swjoin.count, {**ENGINE, **TABLES}),
    "WindowJoin": (swjoin.WindowJoin, {**ENGINE, **OUTPUT, "left_schema": None, "right_schema": None}),
    "window_join": (window_join, {**SHARED, "columns": None, "partitions": None, "window_memory": "4GB"}),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_show_every_option(name: str) -> None:
    function, options = SIGNATURES[name]
    shown = inspect.signature(function).parameters
    assert {p.name: p.default for p in shown.values() if p.kind is p.KEYWORD_ONLY} == options
    assert [p.name for p in shown.values() if p.kind is not p.KEYWORD_ONLY] == (
        [] if name == "WindowJoin" else ["left", "right"]
    )
    assert all(p.annotation is not p.empty for p in shown.values())
    assert str(shown["how"]) == "how: 'How' = 'inner'"
    helped = pydoc.render_doc(function, renderer=pydoc.plaintext)
    assert all(f"{option}: " in helped for option in options)
    tables = [] if name == "WindowJoin" else [LEFT, RIGHT]
    with pytest.raises(TypeError, match=r"got an unexpected keyword argument 'withn'; did you mean 'within'\?"):
        function(*tables, **BASICS, withn="1s")
    with pytest.raises(TypeError, match="got an unexpected keyword argument 'zzz'; the options are left_time, right_time, on,"):
        function(*tables, **BASICS, zzz=1)
    with pytest.raises(TypeError, match="needs 'right_time', which must be given by name"):
        function(*tables, on="key", left_time="ts", within="1s")


def test_all_names_are_there() -> None:
    assert all(getattr(swjoin, name) is not None for name in swjoin.__all__)
