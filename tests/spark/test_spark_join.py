"""The join inside Spark: the engine's cases, kinds of keys and times, names, and one clear line for each mistake."""

from __future__ import annotations

import datetime as dt
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.spark import digest, parquet, window_join
from swjoin.spark.executor_join import Joiner, JoinSpec, join_parcels
from swjoin.spark.shuffle_batches import StreamSpec, pack, unpack
from tests.support.cases import CASES, Case, Rows, by_name
from tests.support.limits import LONG_S
from tests.support.time_matrix import MATRIX, Times, expected
from tests.support.time_matrix import table as times_table
from tests.tools.oracle import brute_force

pytestmark = [pytest.mark.spark, pytest.mark.timeout(LONG_S)]
COMMON: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "time_unit": "us"}
IDS = ["left_id", "right_id"]


def frame(spark: Any, keys: Any, times: Any) -> Any:
    columns = {"id": range(len(keys)), "key": keys, "ts": times}
    return spark.createDataFrame(pa.table({name: pa.array(column, pa.int64()) for name, column in columns.items()}))


def good(rows: Rows) -> TupleBatch:
    """Rows with a key and a time; inside Spark no row is late."""
    keep = [i for i, (key, ts) in enumerate(zip(*rows, strict=True)) if key is not None and ts is not None]
    key, ts = (np.array([column[i] for i in keep], np.int64) for column in rows)
    return TupleBatch(key, ts, np.array(keep, np.uint64), ts)


def answer(left: Rows, right: Rows, bounds: Bounds) -> tuple[int, str]:
    one, two = good(left), good(right)
    i, j = brute_force(one, two, bounds)
    return len(i), format_digest(pair_digest(one.id[i], two.id[j]))


def found(joined: Any) -> tuple[int, str]:
    result = digest(joined, *IDS)
    return result.count, result.digest


def streams(seed: int, n: int = 400, keys: int = 20, span: int = 3000) -> Rows:
    random = np.random.default_rng(seed)
    return random.integers(0, keys, n).tolist(), random.integers(0, span, n).tolist()


# ---------------------------------------------------------------- the answer


@pytest.mark.drawn
@pytest.mark.parametrize(
    "case", [pytest.param(c, marks=pytest.mark.long if i % 6 else ()) for i, c in enumerate(CASES)], ids=by_name
)
def test_cases(case: Case, spark: Any) -> None:
    left, right = (frame(spark, *rows) for rows in (case.left, case.right))
    lower, upper = case.bounds
    joined = window_join(
        left, right, lower=f"{lower}us", upper=f"{upper}us", exclusive=case.exclusive, columns=IDS, partitions=2, **COMMON
    )
    assert found(joined) == answer(case.left, case.right, Bounds.of(lower, upper, case.exclusive))


@pytest.mark.parametrize("how", ["full", "semi", *(pytest.param(h, marks=pytest.mark.long) for h in ("left", "right", "anti"))])
def test_other_kinds_row_by_row(how: str, spark: Any) -> None:
    """Against DuckDB, with null keys and times, and a string as a second key column."""
    random = np.random.default_rng(7)
    tables = []
    for side in ("left", "right"):
        keys, times = streams(len(side), 300, 12)
        words = [None if random.random() < 0.1 else f"w{k % 3}" for k in keys]
        columns = {
            "key": pa.array([None if random.random() < 0.1 else k for k in keys], pa.int64()),
            "word": pa.array(words, pa.string()),
            "ts": pa.array([None if random.random() < 0.05 else t for t in times], pa.int64()),
            f"{side}_n": pa.array(range(len(keys)), pa.int64()),
        }
        tables.append(pa.table(columns))
    joined = window_join(
        *(spark.createDataFrame(t) for t in tables), on=["key", "word"], left_time="ts", right_time="ts", time_unit="us",
        lower="-40us", upper="90us", how=how, partitions=3,
    )  # fmt: skip
    connection = duckdb.connect()
    for name, table in zip(("lefts", "rights"), tables, strict=True):
        connection.register(name, table)
    mine = "l.key, l.word, l.ts, l.left_n"
    both = "coalesce(l.key, r.key), coalesce(l.word, r.word), l.ts, l.left_n, r.ts, r.right_n"
    columns = mine if how in ("semi", "anti") else both
    condition = "l.key = r.key AND l.word = r.word AND r.ts - l.ts BETWEEN -40 AND 90"
    if how not in ("semi", "anti"):  # rows without a partner keep the key columns that they have
        present = "CASE WHEN l.left_n IS NULL THEN r.{0} ELSE l.{0} END"
        columns = f"{present.format('key')}, {present.format('word')}, l.ts, l.left_n, r.ts, r.right_n"
    expected = connection.execute(f"SELECT {columns} FROM lefts l {how} JOIN rights r ON {condition}").fetchall()
    assert sorted(map(str, (tuple(row) for row in joined.collect()))) == sorted(map(str, expected))


WHERE = [
    ("left_x < right_x or (left_name = right_name and not flag) or right_ts - left_ts > 80", "full"),
    ("abs(left_x - right_x) <= 0.5 and key <> 3", "anti"),
    ("left_name > right_name", "inner"),
    ("flag and left_x / (key - 2) < right_x", "left"),
    ("left_name is null or right_x is null", "right"),
    ("left_x <> left_x", "semi"),
]


@pytest.mark.parametrize(
    ("where", "how"), [pytest.param(*each, marks=pytest.mark.long if i > 1 else ()) for i, each in enumerate(WHERE)]
)
def test_predicates(where: str, how: Any, spark: Any) -> None:
    """The rows of `swjoin.join`; columns that only the predicate reads are not in the result."""
    random, tables = np.random.default_rng(11), []
    for side in ("left", "right"):
        keys, times = streams(len(side), 400, 8)
        x = random.normal(size=400)
        x[random.random(400) < 0.1] = np.nan
        columns = {
            "key": pa.array(keys, mask=random.random(400) < 0.05),
            "ts": pa.array(times),
            "x": pa.array(x, mask=random.random(400) < 0.1),
            "name": pa.array([f"n{k}" * (k % 3) for k in random.integers(0, 9, 400).tolist()], mask=random.random(400) < 0.1),
            f"{side}_n": pa.array(range(400)),
        }
        tables.append(pa.table(columns | ({"flag": random.random(400) < 0.4} if side == "right" else {})))
    options: dict[str, Any] = {**COMMON, "within": "90us", "where": where, "how": how}
    shown = ["left_n", *(["right_n"] if how not in ("semi", "anti") else [])]
    expected = swjoin.join(*tables, **options).select(shown)
    joined = window_join(*(spark.createDataFrame(t) for t in tables), partitions=3, columns=shown, **options)
    found = sorted(map(repr, (tuple(row) for row in joined.collect())))
    assert found == sorted(map(repr, (tuple(row.values()) for row in expected.to_pylist())))
    assert len(found) > 0


def test_a_left_key_stays_out_of_right_columns_of_the_same_name(spark: Any) -> None:
    """Of a row that comes out alone because it has no time."""
    left = spark.createDataFrame(pa.table({"k": pa.array([7]), "ts": pa.array([None], pa.int64())}))
    right = spark.createDataFrame(pa.table({"k2": pa.array([7]), "k": pa.array([5]), "ts": pa.array([1])}))
    joined = window_join(
        left, right, left_on="k", right_on="k2", left_time="ts", right_time="ts", time_unit="us", within="5us", how="left"
    )
    assert [tuple(row) for row in joined.collect()] == [(7, None, None, None)]
    assert joined.columns == ["k", "left_ts", "right_k", "right_ts"]


@pytest.mark.parametrize("partitions", [1, 3, *(pytest.param(n, marks=pytest.mark.long) for n in (8, None))])
def test_the_number_of_partitions_changes_nothing(partitions: int | None, spark: Any) -> None:
    one, two = streams(1), streams(2)
    left, right = frame(spark, *one).repartition(3), frame(spark, *two).repartition(2)
    joined = window_join(left, right, within="90us", partitions=partitions, **COMMON)
    assert found(joined) == answer(one, two, Bounds(-90, 90))
    assert joined.columns == ["key", *("left_id", "left_ts", "right_id", "right_ts")]


def test_many_parcels_and_a_bounded_window(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Spark: rows in no order of time and in order; memory follows the windows, not the partition."""
    import swjoin.spark.executor_join as joining
    import swjoin.spark.shuffle_batches as parcels

    for module, name, value in (
        (parcels, "PACKED_ROWS", 4096),
        (parcels, "LEAST_ROWS", 16),
        (joining, "GATHERED_ROWS", 500),
        (joining, "FIRST_DELIVERY", 100),
        (joining, "LARGEST_DELIVERY", 300),
        (joining, "RESULT_TUPLES", 64),
    ):
        monkeypatch.setattr(module, name, value)
    bounds = Bounds(-1000, 2000)
    plans = tuple(StreamSpec(side, 1, True, "ts", "us", 3, bounds.retention_us) for side in (0, 1))
    types = (pa.int64(), pa.int64())
    plan = JoinSpec(bounds, "inner", (plans[0], plans[1]), ((0, 2), (1, 2)), ("left_id", "right_id"), types, 64 << 20)
    for disorder in (0, 3000, 1 << 30):
        rows, sent = [], []
        for side in (0, 1):
            random = np.random.default_rng(side)
            ts = np.sort(random.integers(0, 100_000, 10_000))
            ts = ts[np.argsort(ts + random.integers(0, disorder + 1, len(ts)), kind="stable")]
            key, ids = random.integers(0, 500, len(ts)), np.arange(len(ts))
            rows.append(TupleBatch(key, ts, ids.astype(np.uint64), ts))
            table = pa.table({"key": key, "ts": ts, "id": ids})
            sent += [row for batch in pack(iter(table.to_batches(max_chunksize=999)), plans[side]) for row in batch.to_pylist()]
        count = total = peak = 0
        for partition in range(3):
            mine = sorted((r for r in sent if r["partition"] == partition), key=lambda r: r["first"])
            joiner = Joiner(plan)
            for row in mine:
                for _ in joiner.put(row["side"], row["first"], unpack(pa.scalar(row["rows"]))):
                    pass
            peak = max(peak, joiner.window_rows)
            for out in join_parcels(iter(pa.Table.from_pylist(mine).to_batches()), plan):
                count += out.num_rows
                total += pair_digest(out.column(0).to_numpy().view(np.uint64), out.column(1).to_numpy().view(np.uint64))
        i, j = brute_force(*rows, bounds)
        assert (count, total % (1 << 64)) == (len(i), pair_digest(rows[0].id[i], rows[1].id[j]))
        if disorder < 1 << 30:
            assert peak < 2500  # of 6,700 in a partition


# ---------------------------------------------------------------- keys and times


def sql(left: dict[str, Any], right: dict[str, Any], condition: str) -> tuple[int, str]:
    """The answer by DuckDB."""
    l, r = (pa.table({"id": pa.array(range(len(next(iter(c.values()))))), **c}) for c in (left, right))  # noqa: E741
    connection = duckdb.connect()
    connection.register("l", l)
    connection.register("r", r)
    rows = connection.execute(f"SELECT l.id, r.id FROM l JOIN r ON {condition}").fetchall()
    ids = np.array(rows, np.uint64).reshape(-1, 2)
    return len(ids), format_digest(pair_digest(ids[:, 0], ids[:, 1]))


def test_string_and_composite_keys_with_nulls(spark: Any) -> None:
    random = np.random.default_rng(7)
    sides = []
    for kind in (pa.int32(), pa.int64()):
        words = pa.array([None if i % 11 == 0 else f"word {i % 13}" * (i % 3) for i in random.integers(0, 999, 300)])
        numbers = pa.array([None if i % 17 == 0 else int(i % 3) for i in random.integers(0, 999, 300)], kind)
        sides.append({"name": words, "number": numbers, "ts": pa.array(random.integers(0, 2000, 300))})
    frames = [spark.createDataFrame(pa.table({"id": pa.array(range(300)), **side})) for side in sides]
    times = {"left_time": "ts", "right_time": "ts", "time_unit": "us", "within": "200us", "partitions": 3}
    for keys in (["name"], ["name", "number"], ["number", "name"]):
        joined = window_join(*frames, on=keys, **times)
        assert joined.columns[: len(keys)] == keys
        equal = " AND ".join(f"l.{k} = r.{k}" for k in keys)
        assert found(joined) == sql(*sides, f"{equal} AND abs(r.ts - l.ts) <= 200")


@pytest.mark.parametrize(
    "kind", [pa.timestamp("us", "UTC"), pytest.param(pa.timestamp("us"), marks=pytest.mark.long), pa.date32()], ids=str
)
def test_timestamps_and_dates(kind: pa.DataType, spark: Any) -> None:
    step = 86_400 if kind == pa.date32() else 60
    sides = []
    for seed in (1, 2):
        random = np.random.default_rng(seed)
        seconds = pa.array(random.integers(-100, 100, 200) * step).cast(pa.timestamp("s"))
        sides.append({"key": pa.array(random.integers(0, 5, 200)), "at": seconds.cast(pa.timestamp("us")).cast(kind)})
    left, right = (spark.createDataFrame(pa.table({"id": pa.array(range(200)), **side})) for side in sides)
    width = "2d" if kind == pa.date32() else "3min"
    joined = window_join(left, right, on="key", left_time="at", right_time="at", lower="0s", upper=width, partitions=2)
    assert joined.schema["left_at"].dataType == left.schema["at"].dataType
    seconds = 2 * step if kind == pa.date32() else 180
    expected = sql(*sides, f"l.key = r.key AND epoch(r.at) - epoch(l.at) BETWEEN 0 AND {seconds}")
    assert found(joined) == expected
    assert expected[0] > 100
    rows = joined.where("left_at = right_at").selectExpr("sum(left_id) AS s").collect()
    assert rows[0]["s"] > 0


def test_units_of_integer_times(spark: Any) -> None:
    left, right = frame(spark, [1, 1], [0, 5_000]), frame(spark, [1, 1], [1_000, 9_000])
    for unit, within, count in (("s", "1000s", 1), ("ms", "4s", 3), ("ns", "4us", 3)):
        assert window_join(left, right, within=within, **{**COMMON, "time_unit": unit}).count() == count


# ---------------------------------------------------------------- columns


def test_what_is_carried_comes_back_as_it_was(spark: Any) -> None:
    schema = (
        "key long, ts timestamp, value double, tags array<string>, place struct<x: int, y: string>, n decimal(9,2), b binary"
    )
    at = dt.datetime(2024, 2, 29, 12, 0, 0, 5)
    row = (1, at, 0.5, ["a", None], (3, "y"), None, b"\x00\xff")
    left = spark.createDataFrame([row, (1, at, None, None, None, None, None)], schema)
    right = spark.createDataFrame([(1, at, "r")], "k long, ts timestamp, Other string")
    joined = window_join(left, right, left_on="key", right_on="k", left_time="ts", right_time="ts", within=0)
    assert joined.columns == ["key", "left_ts", "value", "tags", "place", "n", "b", "right_ts", "Other"]
    assert [f.dataType for f in joined.schema][:7] == [f.dataType for f in left.schema]
    rows = sorted(map(tuple, joined.collect()), key=lambda r: r[2] is None)
    assert rows[0][:7] == tuple(left.collect()[0])
    assert rows[1][2:] == (None, None, None, None, None, at, "r")
    assert (
        window_join(
            left, right, left_on="key", right_on="k", left_time="ts", right_time="ts", within=0, columns=["Other"]
        ).count()
        == 2
    )


def test_names_that_clash_and_awkward_ones(spark: Any) -> None:
    left = spark.createDataFrame([(1, 0, 2, 3)], "`a.b` long, `t``s` long, x long, left_x long")
    right = spark.createDataFrame([(1, 0, 4)], "`a.b` long, `t``s` long, x long")
    joined = window_join(left, right, on="a.b", left_time="t`s", right_time="t`s", time_unit="s", within=0)
    assert joined.columns == ["a.b", "left_t`s", "left_x", "left_x_", "right_t`s", "right_x"]
    assert tuple(joined.collect()[0]) == (1, 0, 2, 3, 0, 4)


def test_a_frame_joins_itself(spark: Any) -> None:
    one = streams(5, 100)
    same = frame(spark, *one)
    assert found(window_join(same, same, within="100us", partitions=2, **COMMON)) == answer(one, one, Bounds(-100, 100))


# ---------------------------------------------------------------- mistakes


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ({"on": "kee"}, "left: no column kee; the columns are id, key, ts, name"),
        ({"on": None}, "the join columns are missing: give on, or left_on and right_on"),
        ({"on": None, "left_on": "key", "right_on": ["key", "ts"]}, "1 columns on the left, 2 on the right"),
        ({"on": None, "left_on": "key", "right_on": "name"}, "left key is int64, right name is string"),
        ({"on": "id2"}, "right: no column id2"),
        ({"right_time": "when"}, "right: no column when"),
        ({"left_time": "name"}, "left: time column name is string; it must be a timestamp, a date or an integer"),
        (
            {"left_time": "at", "right_time": "ntz", "time_unit": None},
            "right: time column ntz has no time zone (timestamp[us])",
        ),
        ({"time_unit": None}, "left: time column ts holds integers; say which unit with time_unit='s' or"),
        (
            {"time_unit": None, "left_time_unit": "s"},
            "right: time column ts holds integers; say which unit with right_time_unit=",
        ),
        ({"left_time_unit": "s", "right_time_unit": "ms"}, "not all three"),
        ({"left_time": "at", "right_time": "at"}, "left: time column at is timestamp[us, tz=UTC]; time units are for integers"),
        ({"lower": 0}, "give within, or lower and upper, not both"),
        ({"within": None, "lower": 0}, "the window is missing: give within, or lower and upper"),
        ({"within": None, "lower": "1us", "upper": 0}, "swap them"),
        ({"within": "5 parsecs"}, "write a number and a unit"),
        ({"within": "-5us"}, "a window cannot be negative"),
        ({"within": 5}, "within: 5 has no unit"),
        ({"window_memory": 1 << 20}, "window_memory: size 1048576 has no unit"),
        ({"exclusive": "left"}, "exclusive: 'left' is not one of 'lower', 'upper'"),
        ({"how": "outer"}, "how: 'outer' is not one of 'inner', 'left', 'right', 'full', 'semi', 'anti'"),
        ({"where": "left.id < three"}, "where: column three is missing; there are left_id"),
        ({"where": "id < 3"}, "where: both sides have a column id; write left_id or right_id"),
        ({"where": "left_name < right_id"}, "where: text and a number cannot be compared with <"),
        ({"where": "left_id + right_id"}, "where: it must be a condition, but it is a number"),
        ({"partitions": 0}, "partitions: 0 is not a number from 1 on"),
        ({"columns": ["left_id", "rihgt_id"]}, "columns: rihgt_id is twice there or no column of the result"),
        ({"window_memory": "lots"}, "size 'lots'"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, dict) else "",
)
def test_mistakes(change: dict[str, Any], line: str, spark: Any) -> None:
    left = spark.createDataFrame([], "id long, key long, ts long, name string, at timestamp, ntz timestamp_ntz, id2 long")
    right = spark.createDataFrame([], "id long, key long, ts long, name string, at timestamp, ntz timestamp_ntz")
    with pytest.raises(UserError) as caught:
        window_join(left, right, **{**COMMON, "within": "1s", **change})
    assert line in str(caught.value)
    assert "\n" not in str(caught.value)


def test_mistakes_in_columns(spark: Any) -> None:
    left = spark.createDataFrame([], "id long, key long, ts long, VALUE long, d double, s string collate UTF8_LCASE")
    right = spark.createDataFrame([], "id long, key long, ts long, value long, d double, s string collate UTF8_LCASE")
    with pytest.raises(UserError, match="VALUE and value of the result differ in case only"):
        window_join(left, right, within=0, **COMMON)
    fewer = left.drop("VALUE"), right.drop("value")
    with pytest.raises(UserError, match="key column d: type double cannot be a join key"):
        window_join(*fewer, within=0, **{**COMMON, "on": "d"})
    with pytest.raises(UserError, match="has collation UTF8_LCASE; keys are compared byte by byte"):
        window_join(*fewer, within=0, **{**COMMON, "on": "s"})
    twice = left.select("key", "ts", "id", "id")
    with pytest.raises(UserError, match="left: column id occurs twice; rename one"):
        window_join(twice, right, within=0, **COMMON)
    with pytest.raises(UserError, match="id column d is double; ids are integers"):
        digest(left, "id", "d")
    with pytest.raises(UserError, match="id column no: there is none"):
        digest(left, "no", "id")
    with pytest.raises(UserError, match="id column r: holds -1; ids are not negative, and a missing side is null"):
        digest(spark.createDataFrame([(1, None), (2, -1)], "l long, r long"), "l", "r")
    with pytest.raises(UserError, match="join columns: key is named twice on one side"):
        window_join(*fewer, within=0, **{**COMMON, "on": ["key", "key"]})


def test_times_that_only_an_executor_sees(spark: Any) -> None:
    from pyspark.errors import PythonException

    left, right = frame(spark, [1], [1500]), frame(spark, [1], [2000])
    with pytest.raises(PythonException, match="time column ts is finer than one microsecond"):
        window_join(left, right, within="1us", partitions=1, **{**COMMON, "time_unit": "ns"}).count()
    left = frame(spark, [1], [1 << 60])
    with pytest.raises(PythonException, match="time column ts is out of range; check time_unit"):
        window_join(left, right, within="1us", partitions=1, **{**COMMON, "time_unit": "s"}).count()


@pytest.mark.drawn
@pytest.mark.parametrize(
    "times",
    [pytest.param(t, marks=pytest.mark.long if i % 6 else ()) for i, t in enumerate(t for t in MATRIX if t.zone is None)],
    ids=lambda t: t.name,
)
def test_times_of_every_form(times: Times, spark: Any, tmp_path: Path) -> None:
    frames = []
    for side, form in zip(("left", "right"), (times.left, times.right), strict=True):
        whole = times_table(form, side)
        kind = whole.schema.field("ts").type  # Spark has no nanoseconds, and nothing unsigned
        plain = pa.timestamp("us", kind.tz) if pa.types.is_timestamp(kind) else pa.int64() if pa.types.is_uint64(kind) else kind
        whole = whole.set_column(1, "ts", whole.column("ts").cast(plain)).append_column("id", pa.array(range(len(whole))))
        path = str(tmp_path / f"{side}.parquet")
        pq.write_table(whole, path)
        frames.append(spark.read.parquet(path) if side == "left" else parquet(spark, path))
    units = {f"{side}_time_unit": unit for side, unit in times.units.items()}
    arguments: dict[str, Any] = {"on": "key", "left_time": "ts", "right_time": "ts", "within": "1d", "partitions": 3}
    arguments |= {"time_unit": times.unit} if times.unit else units
    if times.refusal is None:
        assert found(window_join(*frames, **arguments)) == expected()
    else:
        with pytest.raises(UserError, match=times.refusal):
            window_join(*frames, **arguments)


# ---------------------------------------------------------------- files, and the daemon


def test_executors_read_the_files_themselves(spark: Any, tmp_path: Path) -> None:
    one, two = by_name_of("null keys and null times").left, streams(2, 300)
    for name, rows in (("left", one), ("right", two)):
        (tmp_path / name).mkdir()
        columns = {
            "id": pa.array(range(len(rows[0]))),
            "key": pa.array(rows[0], pa.int64()),
            "ts": pa.array(rows[1], pa.int64()),
        }
        table = pa.table({**columns, "name": pa.array([f"n{key}" for key in rows[0]])})
        pq.write_table(table.slice(0, 90), tmp_path / name / "a.parquet", row_group_size=40)
        pq.write_table(table.slice(90), tmp_path / name / "b.parquet")
    left, right = (parquet(spark, str(tmp_path / name)) for name in ("left", "right"))
    assert len(left.row_groups) == 4
    joined = window_join(left, right, within="100us", partitions=2, **COMMON)
    assert joined.columns == ["key", "left_id", "left_ts", "left_name", "right_id", "right_ts", "right_name"]
    expected = answer(one, two, Bounds(-100, 100))
    assert found(joined) == expected
    assert joined.where("left_name != right_name OR left_name != concat('n', key)").count() == 0
    assert found(window_join(left, right.frame, within="100us", partitions=2, **{**COMMON, "on": "name"})) == expected
    assert found(window_join(left, right.frame, within="100us", **COMMON)) == expected
    right.frame.withColumn("part", right.frame["id"] % 2).write.partitionBy("part").parquet(str(tmp_path / "parted"))
    with pytest.raises(UserError, match="has no column part; give the DataFrame instead"):
        parquet(spark, str(tmp_path / "parted"))


def by_name_of(name: str) -> Case:
    return next(case for case in CASES if case.name == name)


def test_the_daemon_loads_what_workers_need(capfd: pytest.CaptureFixture[str]) -> None:
    from swjoin.spark.worker_daemon import load_kernels

    load_kernels()
    assert capfd.readouterr().out == ""  # Spark reads the daemon's port from there
