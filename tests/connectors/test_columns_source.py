"""Inputs of plans: columns with their types, times and ids of every format, seek, sort, and one line for what is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

from swjoin.config.connectors import TextConfig
from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import QueryConfig, StreamConfig
from swjoin.connectors.files.source import ColumnsSource, describe_columns, open_columns_source, open_sources
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.plan.logical import ARRIVAL_TIME, Column, IntervalJoin, LogicalPlan, Node, Result, Source, Union
from swjoin.plan.plain import plan_from_plain, plan_to_plain
from swjoin.runtime.open import open_plan_sources

ROWS = 700
FORMATS = ["parquet", "csv", "arrow"]


def table(rows: int = ROWS, seed: int = 1) -> pa.Table:
    """Columns k, t (shuffled, some null), name (some null) and number, which makes ids."""
    random = np.random.default_rng(seed)
    times: list[int | None] = (random.permutation(rows) * 1_000).tolist()
    times[3] = times[rows - 2] = None
    return pa.table(
        {
            "k": random.integers(0, 40, rows),
            "t": pa.array(times, pa.int64()),
            "name": [None if i % 11 == 0 else f"row {i}" for i in range(rows)],
            "number": np.arange(rows) + 1_000_000,
        }
    )


def write(folder: Path, found: pa.Table, form: str) -> str:
    """Two files in a folder."""
    path = folder / form
    path.mkdir()
    half = found.num_rows * 4 // 7
    for i, part in enumerate((found.slice(0, half), found.slice(half))):
        file = path / f"{i}.{form}"
        if form == "parquet":
            pq.write_table(part, file, row_group_size=100)
        elif form == "csv":
            csv.write_csv(part, file)
        else:
            with pa.ipc.new_file(file, part.schema) as out:
                out.write_table(part, 150)
    return str(path)


def stream(path: str, **more: Any) -> StreamConfig:
    return StreamConfig(path, (), "t", **{"time_unit": "us", **more})


def batches(source: ColumnsSource) -> list[SourceBatch]:
    found = []
    while (batch := source.read()) is not None:
        found.append(batch)
    source.close()
    return found


def rows_of(found: list[SourceBatch]) -> list[tuple[Any, ...]]:
    """Of every row its id, its time (None: it has none) and its columns."""
    rows = []
    for batch in found:
        assert batch.columns is None or (len(batch.columns) == len(batch) and batch.columns.names)
        assert batch.rows is None
        assert batch.key_valid is None
        assert (batch.key.dtype, batch.key.tolist()) == (np.int64, [0] * len(batch))
        valid = [True] * len(batch) if batch.ts_valid is None else batch.ts_valid.tolist()
        times = [ts if ok else None for ts, ok in zip(batch.ts.tolist(), valid, strict=True)]
        columns = [] if batch.columns is None else [column.to_pylist() for column in batch.columns.batch.columns]
        rows += list(zip(batch.id.tolist(), times, *columns, strict=True))
    return rows


def expected(found: pa.Table, *columns: str, row_id: str | None = None) -> list[tuple[Any, ...]]:
    ids = range(found.num_rows) if row_id is None else found[row_id].to_pylist()
    return list(zip(ids, found["t"].to_pylist(), *(found[name].to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("row_id", [None, "number"])
@pytest.mark.parametrize("columns", [("name", "k"), ("t", "number"), ()], ids=["two", "time and id", "none"])
def test_rows_of_every_format(form: str, row_id: str | None, columns: tuple[str, ...], tmp_path: Path) -> None:
    found = table()
    path = write(tmp_path, found, form)
    source = open_columns_source(stream(path, id=row_id), columns)
    read = batches(source)
    assert rows_of(read) == expected(found, *columns, row_id=row_id)
    assert {() if batch.columns is None else tuple(batch.columns.names) for batch in read} == {columns}
    assert source.rows_total == (ROWS if form == "parquet" else None)
    assert (source.layout, source.dictionary, source.rows) == (None, None, ROWS)
    assert source.time.kind == pa.int64()


def test_times_and_ids_are_those_of_a_join(tmp_path: Path) -> None:
    path = write(tmp_path, table(), "parquet")
    config = StreamConfig(path, ("k",), "t", "us")
    left, _, _ = open_sources(config, config, carry_payload=False)
    tuples = left.read()
    left.close()
    rows = batches(open_columns_source(config, ["k"]))[0]
    assert tuples is not None
    assert tuples.ts_valid is not None
    assert rows.ts_valid is not None
    assert tuples.ts_valid.tolist() == rows.ts_valid.tolist()
    assert (tuples.ts.tolist(), tuples.id.tolist()) == (rows.ts.tolist(), rows.id.tolist())


def test_columns_travel_with_plain_types(tmp_path: Path) -> None:
    text = pa.array(["a", None, "c"])
    given = {
        "text": text,
        "dictionary": text.dictionary_encode(),
        "view": text.cast(pa.string_view()),
        "binary": text.cast(pa.binary()),
        "price": pa.array([1, None, 3], pa.decimal128(9, 2)),
        "flag": [True, None, False],
        "nothing": pa.nulls(3),
        "t": pa.array([1, 2, 3], pa.timestamp("ms", "UTC")),
    }
    path = tmp_path / "a.arrow"
    found = pa.table(given)
    with pa.ipc.new_file(path, found.schema) as out:
        out.write_table(found)
    config = StreamConfig(str(path), (), "t")
    (batch,) = batches(open_columns_source(config, list(given), expected=describe_columns(config)))
    assert batch.columns is not None
    types = ["large_string"] * 3 + ["large_binary", "decimal128(9, 2)", "bool", "null", "timestamp[ms, tz=UTC]"]
    assert [str(kind) for kind in batch.columns.batch.schema.types] == types
    assert batch.columns.batch.to_pydict() == found.to_pydict()
    assert batch.ts.tolist() == [1_000, 2_000, 3_000]
    described = dict(describe_columns(config))
    assert described["dictionary"] == "dictionary<values=string, indices=int32, ordered=0>"
    assert described["view"] == "string_view"
    assert list(described) == list(given)


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("sort", [False, True])
def test_seek(form: str, sort: bool, tmp_path: Path) -> None:
    path = write(tmp_path, table(), form)
    read = batches(open_columns_source(stream(path), ["k"], sort=sort))
    whole, ends = rows_of(read), np.cumsum([0, *map(len, read)]).tolist()
    anywhere = form == "parquet" or sort  # other files: at ends of batches, as checkpoints are
    for row in (0, 1, 250, 400, 455, ROWS - 1, ROWS) if anywhere else ends:
        source = open_columns_source(stream(path), ["k"], sort=sort)
        source.read()
        source.seek(row)
        assert rows_of(batches(source)) == whole[row:]

    def after_the_end() -> None:
        source = open_columns_source(stream(path), ["k"], sort=sort)
        source.seek(ROWS + 1)
        source.read()

    with pytest.raises(RunFailed, match=f"row {ROWS + 1} is not where it was; the input has changed"):
        after_the_end()


@pytest.mark.parametrize("form", FORMATS)
def test_sorted_rows_have_their_own_ids(form: str, tmp_path: Path) -> None:
    found = table()
    path = write(tmp_path, found, form)
    rows = rows_of(batches(open_columns_source(stream(path), ["number"], sort=True)))
    assert sorted(rows) == sorted(expected(found, "number"), key=lambda row: row[0])
    times = [row[1] for row in rows if row[1] is not None]
    assert times == sorted(times)


def test_large_batches_are_cut(tmp_path: Path) -> None:
    rows = BATCH_ROWS + 5
    path = tmp_path / "a.arrow"
    found = pa.table({"t": np.arange(rows)})
    with pa.ipc.new_file(path, found.schema) as out:
        out.write_table(found)
    assert [len(batch) for batch in batches(open_columns_source(stream(str(path)), []))] == [BATCH_ROWS, 5]


def test_a_file_without_rows_has_the_types_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("k,t\n")
    config = stream(str(path))
    assert describe_columns(config) == (("k", "string"), ("t", "int64"))
    assert batches(open_columns_source(config, ["k"], expected=[("k", "double"), ("t", "int32")])) == []


def test_columns_of_nulls_have_the_types_of_the_plan(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"k": pa.nulls(2), "t": [1, 2]}), path)
    (batch,) = batches(open_columns_source(stream(str(path)), ["k"], expected=[("k", "int64")]))
    assert batch.columns is not None
    assert str(batch.columns.column("k").type) == "int64"


ZONED = pa.timestamp("us", "UTC")
REFUSED: dict[str, tuple[dict[str, Any], dict[str, Any], list[str], list[tuple[str, str]], str]] = {
    "time": ({"v": [1]}, {}, ["v"], [], "input {}: time column t is missing; its columns are v"),
    "type of time": (
        {"t": [1.5]},
        {},
        [],
        [],
        "input {}: time column t is double; it must be a timestamp, a date or an integer",
    ),
    "unit is missing": (
        {"t": [1]},
        {"time_unit": None},
        [],
        [],
        "input {}: time column t holds integers; say which unit with input.time_unit: s|ms|us|ns",
    ),
    "unit of timestamps": (
        {"t": pa.array([1], ZONED)},
        {},
        [],
        [],
        "input {}: time column t is timestamp[us, tz=UTC]; time units are for integers: leave the input side's out",
    ),
    "zone of instants": (
        {"t": pa.array([1], ZONED)},
        {"time_unit": None, "assume_timezone": "Europe/Berlin"},
        [],
        [],
        "input {}: time column t is timestamp[us, tz=UTC]; input.assume_timezone is for timestamps and dates without a zone: "
        "leave it out",
    ),
    "id": ({"t": [1]}, {"id": "n"}, [], [], "input {}: id column n is missing; its columns are t"),
    "type of id": ({"t": [1], "n": ["a"]}, {"id": "n"}, [], [], "input {}: id column n must hold integers"),
    "column": ({"t": [1], "number": [1]}, {}, ["numbr"], [], "input {}: column numbr is missing; did you mean number?"),
    "type that cannot travel": (
        {"t": [1], "v": [[1]]},
        {},
        ["v"],
        [],
        "input {}: column v: type list<element: int64> cannot travel between stages; leave the column out",
    ),
    "column of the plan": ({"t": [1]}, {}, [], [("v", "int64")], "input {}: column v is missing; its columns are t"),
    "type in the plan": ({"t": [1]}, {}, [], [("t", "int32")], "input {}: column t is int64, the plan has int32"),
    "text options": ({"t": [1]}, {"csv": TextConfig()}, [], [], "csv is for CSV, TSV and JSON lines files; no input is one"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refusals(case: str, tmp_path: Path) -> None:
    columns, more, wanted, types, text = REFUSED[case]
    path = str(tmp_path / "a.parquet")
    pq.write_table(pa.table(columns), path)
    with pytest.raises(UserError) as error:
        open_columns_source(stream(path, **more), wanted, expected=types)
    assert error.value.text("keys") == text.format(path)


@pytest.mark.parametrize("config", [StreamConfig(None, ()), StreamConfig(None, (), watch="in")], ids=["generator", "live"])
def test_inputs_are_files(config: StreamConfig) -> None:
    with pytest.raises(UserError, match=r"^input: no path; inputs of plans are files: Parquet, "):
        open_columns_source(config, [])


def test_files_with_other_columns(tmp_path: Path) -> None:
    for name, other in (("a", pa.int64()), ("b", pa.int32())):
        pq.write_table(pa.table({"t": [1], "v": pa.array([1], other)}), tmp_path / f"{name}.parquet")
    with pytest.raises(UserError, match=r"b\.parquet: column v is int32, in a\.parquet it is int64$"):
        batches(open_columns_source(stream(str(tmp_path)), ["v"]))
    assert len(rows_of(batches(open_columns_source(stream(str(tmp_path)), [])))) == 2


def test_an_id_that_is_null_is_named_by_file_and_row(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("t,n\n1,7\n2,\n")
    with pytest.raises(UserError, match=r"a\.csv, line 3: id column n is null; every row needs an id$"):
        batches(open_columns_source(stream(str(path), id="n"), []))


# ---------------------------------------------------------------- inputs of a whole plan


def source_of(name: str, config: StreamConfig, **fields: Any) -> Source:
    columns = tuple(Column(*pair) for pair in describe_columns(config))
    return dataclasses.replace(Source(name, columns, config.time), **fields)


def joined(name: str, left: str, right: str) -> IntervalJoin:
    return IntervalJoin(name, left, right, ("k",), ("k",), QueryConfig(0, 5))


def job_of(plan: LogicalPlan | None, *inputs: StreamConfig, **time: Any) -> Job:
    """The job as a rank gets it."""
    config = dataclasses.replace(config_from_plain({"join": {"within": "5s"}}), inputs=inputs)
    if time:
        config = dataclasses.replace(config, left=ANY, right=ANY, time=dataclasses.replace(config.time, **time))
    plain = None if plan is None else plan_to_plain(plan)
    return Job.from_json(Job(config, None, True, None, None, "test", plan=plain).to_json())


ANY = StreamConfig("any.parquet")  # with the option sort a configuration has paths


@pytest.fixture
def streams(tmp_path: Path) -> dict[str, StreamConfig]:
    """Files with times of every kind, in a column t."""
    times = {
        "naive": pa.array([3, 1, 2], pa.timestamp("us")),
        "zoned": pa.array([3, 1, 2], ZONED),
        "integer": pa.array([3, 1, 2], pa.int64()),
    }
    found = {}
    for name, time in times.items():
        pq.write_table(pa.table({"k": [1, 2, 3], "t": time}), tmp_path / f"{name}.parquet")
        found[name] = StreamConfig(str(tmp_path / f"{name}.parquet"), (), "t", "us" if name == "integer" else None)
    return found | {"berlin": dataclasses.replace(found["naive"], assume_timezone="Europe/Berlin")}


def opened(streams: dict[str, StreamConfig], *nodes: Node, **inputs: str) -> tuple[ColumnsSource, ...]:
    """inputs: name of a source -> its stream."""
    plan = LogicalPlan((*(source_of(name, streams[kind]) for name, kind in inputs.items()), *nodes))
    return open_plan_sources(job_of(plan, *(streams[kind] for kind in inputs.values())), plan, {})


def test_the_sources_of_a_plan(streams: dict[str, StreamConfig]) -> None:
    inputs = streams["zoned"], streams["integer"], streams["berlin"]
    a, b, c = (source_of(name, config) for name, config in zip("abc", inputs, strict=True))
    plan = LogicalPlan((b, joined("j", "a", "b"), a, joined("i", "j", "c"), c, Result("out", "i")))
    job = job_of(plan, inputs[1], inputs[0], inputs[2])
    assert job.plan is not None
    found = open_plan_sources(job, plan_from_plain(job.plan), {"a": ["k"], "b": ["t", "k"]})
    assert [source.where for source in found] == [str(Path(str(config.path)).parent) for config in job.config.inputs]
    assert [source.files[0].name for source in found] == ["integer.parquet", "zoned.parquet", "naive.parquet"]
    assert [source.time.side for source in found] == ["b", "a", "c"]
    rows = [rows_of(batches(source)) for source in found]
    assert rows[0] == [(0, 3, 3, 1), (1, 1, 1, 2), (2, 2, 2, 3)]
    assert rows[1] == [(0, 3, 1), (1, 1, 2), (2, 2, 3)]
    assert rows[2] == [(0, 3 - 3_600_000_000), (1, 1 - 3_600_000_000), (2, 2 - 3_600_000_000)]


def test_sources_of_a_plan_are_sorted(streams: dict[str, StreamConfig]) -> None:
    plan = LogicalPlan((source_of("a", streams["integer"]), Result("out", "a")))
    (source,) = open_plan_sources(job_of(plan, streams["integer"], sort=True), plan, {"a": ["k"]})
    assert rows_of(batches(source)) == [(1, 1, 2), (2, 2, 3), (0, 3, 1)]


def test_times_that_do_not_meet_are_not_compared(streams: dict[str, StreamConfig]) -> None:
    results = Result("out", "j"), Result("other", "b")
    assert len(opened(streams, joined("j", "a", "c"), *results, a="naive", b="zoned", c="integer")) == 3


UNION_OF_ALL = Union("u", ("a", "b"))
MEETING: dict[str, tuple[dict[str, str], tuple[Node, ...], tuple[str, str]]] = {
    "join": ({"a": "naive", "b": "zoned"}, (joined("j", "a", "b"),), ("a", "b")),
    "other way round": ({"a": "zoned", "b": "naive"}, (joined("j", "a", "b"),), ("b", "a")),
    "zone of one": ({"a": "naive", "b": "berlin"}, (joined("j", "a", "b"),), ("a", "b")),
    "union": ({"a": "naive", "b": "berlin"}, (UNION_OF_ALL,), ("a", "b")),
    "join of joins": (
        {"a": "integer", "b": "naive", "c": "zoned"},
        (joined("j", "a", "b"), joined("i", "j", "c")),
        ("b", "c"),
    ),
    "both sides": (
        {"a": "integer", "b": "naive", "c": "integer", "d": "zoned"},
        (joined("j", "a", "b"), joined("i", "c", "d"), joined("top", "j", "i")),
        ("b", "d"),
    ),
    "union below a join": (
        {"a": "zoned", "b": "zoned", "c": "naive"},
        (UNION_OF_ALL, joined("j", "c", "u")),
        ("c", "a"),
    ),
}


@pytest.mark.parametrize("case", MEETING)
def test_times_that_meet_are_comparable(case: str, streams: dict[str, StreamConfig]) -> None:
    inputs, nodes, (local, instant) = MEETING[case]
    paths = {name: streams[kind].path for name, kind in inputs.items()}
    has = "is given one (Europe/Berlin)" if inputs[instant] == "berlin" else f"has one ({ZONED})"
    with pytest.raises(UserError) as error:
        opened(streams, *nodes, Result("out", nodes[-1].name), **inputs)
    assert error.value.text("keys") == (
        f"{local} {paths[local]}: time column t has no time zone (timestamp[us]), "
        f"{instant} {paths[instant]}: time column t {has}, so they cannot be compared; "
        f"give both a zone, or name the zone in which the {local} times are local with "
        f"{local}.assume_timezone: ZONE"
    )


def test_integers_of_a_plan_need_a_unit(streams: dict[str, StreamConfig]) -> None:
    streams["integer"] = dataclasses.replace(streams["integer"], time_unit=None)
    nodes = source_of("a", streams["zoned"]), Source("b", (Column("k", "int64"), Column("t", "int64")), "t")
    plan = LogicalPlan((*nodes, joined("j", "a", "b"), Result("out", "j")))
    with pytest.raises(UserError, match=r"^b .*: time column t holds integers; say which unit with "):
        open_plan_sources(job_of(plan, streams["zoned"], streams["integer"]), plan, {})


PLAN_REFUSED: dict[str, tuple[dict[str, Any], StreamConfig | None, str]] = {
    "no time": ({"time": None}, None, "a: it has no time; rows of files need a time column; name it"),
    "arrival": ({"time": ARRIVAL_TIME}, None, "a: its time is arrival time; rows of files need a time column; name it"),
    "other time": ({"time": "k"}, None, "a: its time column is k, that of its input is t; name the same column in both"),
    "no file": (
        {},
        StreamConfig(None, (), "t"),
        "a: no path; inputs of plans are files: Parquet, ORC, CSV, JSON lines, Arrow IPC",
    ),
    "column": (
        {"columns": (Column("t", "int64"), Column("kk", "int64"))},
        None,
        "a {}: column kk is missing; did you mean k?",
    ),
    "type": ({"columns": (Column("t", "int32"),)}, None, "a {}: column t is int64, the plan has int32"),
}


@pytest.mark.parametrize("case", PLAN_REFUSED)
def test_sources_of_a_plan_are_checked(case: str, streams: dict[str, StreamConfig]) -> None:
    fields, config, text = PLAN_REFUSED[case]
    given = streams["integer"]
    plan = LogicalPlan((source_of("a", given, **fields), Result("out", "a")))
    with pytest.raises(UserError) as error:
        open_plan_sources(job_of(plan, config or given), plan, {})
    assert error.value.text("keys") == text.format(given.path)


def test_a_column_that_travels_is_in_the_file(streams: dict[str, StreamConfig]) -> None:
    plan = LogicalPlan((source_of("a", streams["integer"]), Result("out", "a")))
    with pytest.raises(UserError, match=r"^a .*integer\.parquet: column kk is missing; did you mean k\?$"):
        open_plan_sources(job_of(plan, streams["integer"]), plan, {"a": ["kk"]})


@pytest.mark.parametrize("count", [0, 1, 3])
def test_every_source_has_an_input(count: int, streams: dict[str, StreamConfig]) -> None:
    given = streams["integer"]
    plan = LogicalPlan((source_of("a", given), source_of("b", given), joined("j", "a", "b"), Result("out", "j")))
    text = rf"^plan: {count} inputs are given, the plan has 2 sources \(a, b\); give one input for each source$"
    with pytest.raises(UserError, match=text):
        open_plan_sources(job_of(plan, *[given] * count), plan, {})
