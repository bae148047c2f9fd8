"""Inputs that change as they are read: columns of Python objects of several kinds, readers that are given twice."""

from __future__ import annotations

import datetime as dt
import uuid
from collections.abc import Callable
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as pa
import pytest

import swjoin
from swjoin.api.inputs import to_table
from swjoin.core.errors import UserError

DAY, AT = dt.date(2026, 1, 1), dt.datetime(2026, 1, 1, 10)
ZONED = AT.replace(tzinfo=dt.UTC)
TIMES: dict[str, Any] = {"left_time": "ts", "right_time": "ts", "within": "1s"}
GOOD = pd.DataFrame({"key": [1, 1], "ts": [AT, AT]})

MIXED: dict[str, tuple[list[Any], str]] = {
    "a date, a datetime": (
        [DAY, AT],
        "10:00:00 is a datetime without a time zone, 2026-01-01 in row 1 is a date; give all val",
    ),
    "a datetime, a date": ([AT, DAY], "2026-01-01 is a date, 2026-01-01 10:00:00 in row 1 is a datetime"),
    "a date, pandas' time": ([DAY, pd.Timestamp(AT)], "is a datetime without a time zone, 2026-01-01 in row 1 is a date"),
    "a date, a zoned time": ([DAY, ZONED], "is a datetime with a time zone, .* is a date"),
    "one zone, none": ([ZONED, AT], "is a datetime without a time zone, .* with a time zone; give all of them a zone, or none"),
    "no zone, one": ([AT, ZONED], "is a datetime with a time zone, .* without a time zone; give all of them a zone, or none"),
    "text, bytes": (["a", b"a"], "b'a' is bytes, a in row 1 is text"),
    "bytes, text": ([b"a", "a"], "a is text, b'a' in row 1 is bytes"),
    "numpy's text, bytes": ([np.str_("a"), np.bytes_(b"a")], "is bytes, a in row 1 is text"),
    "a boolean, a number": ([True, 1], "1 is a number, True in row 1 is a boolean"),
    "a number, a boolean": ([1.0, True], "True is a boolean, 1.0 in row 1 is a number"),
    "a number, text": ([1, "1"], "1 is text, 1 in row 1 is a number"),
    "a date, a number": ([DAY, 1], "1 is a number, 2026-01-01 in row 1 is a date"),
    "a duration, a number": ([dt.timedelta(1), 1], "1 is a number, 1 day, 0:00:00 in row 1 is a duration"),
    "times of day": ([dt.time(1), dt.time(1, tzinfo=dt.UTC)], "is a time of day with a time zone, .*; give all of them a zone"),
}


@pytest.mark.parametrize("name", MIXED)
@pytest.mark.parametrize("where", ["key", "ts", "payload"])
def test_mixed_kinds_in_a_column(where: str, name: str) -> None:
    values, message = MIXED[name]
    frame = pd.DataFrame({"key": [1, 1, 1], "ts": [AT, AT, AT], where: pd.Series([None, *values], dtype=object)})
    with pytest.raises(UserError, match=rf"^right, row 2 \(counting from 0\): column {where}: .*{message}") as caught:
        swjoin.join(GOOD, frame, on="key", **TIMES, late="drop")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("first", "second"), [(AT, ZONED), (DAY, AT), ("a", b"a")])
def test_mixed_kinds_in_an_index(first: Any, second: Any) -> None:
    mixed = pd.Index([first, second], dtype=object, name="ts")
    frames = [
        pd.DataFrame({"key": [1, 1]}, index=mixed),
        pd.DataFrame({"other": [1, 1]}, index=pd.MultiIndex.from_arrays([[1, 1], mixed], names=["key", "ts"])),
    ]
    for frame in frames:
        with pytest.raises(UserError, match=r"^left, row 1 \(counting from 0\): column ts: "):
            swjoin.count(frame, GOOD, on="key", **TIMES)


def test_mixed_kinds_in_categories() -> None:
    frame = pd.DataFrame({"key": pd.Categorical(["a", b"a", "a"]), "ts": [AT] * 3})
    with pytest.raises(UserError, match=r"left, row 1 .*: column key: b'a' is bytes, a in row 0 is text"):
        swjoin.join(frame, GOOD, on="key", **TIMES)
    fine = pd.DataFrame({"key": pd.Categorical(["a", "b", "a"]), "ts": [AT] * 3})
    assert swjoin.join(fine, fine, on="key", **TIMES).num_rows == 5


def test_mixed_kinds_in_a_stream() -> None:
    frame = pd.DataFrame({"key": pd.Series([DAY, AT], dtype=object), "ts": [AT, AT]})
    with swjoin.WindowJoin(on="key", **TIMES) as join:
        with pytest.raises(UserError, match=r"left, row 1 .*: column key: .* is a datetime"):
            join.push(left=frame)
        join.cancel()


def test_columns_that_are_not_used_may_be_mixed() -> None:
    frame = pd.DataFrame({"key": [1, 1], "ts": [AT, AT], "note": pd.Series([DAY, AT], dtype=object)})
    assert swjoin.count(frame, GOOD, on="key", **TIMES).count == 4
    assert swjoin.join(frame, GOOD, on="key", **TIMES, columns=[]).num_rows == 4
    with swjoin.WindowJoin(on="key", **TIMES, columns=[]) as join:
        list(join.push(left=frame, right=GOOD))
        list(join.close())
        assert join.count == 4
    with pytest.raises(UserError, match=r"left, row 1 .*: column note: "):
        swjoin.join(frame, GOOD, on="key", **TIMES)


@pytest.mark.parametrize(
    "values",
    [
        [1, 2.5],
        ["a", float("nan")],
        [AT, pd.NaT],
        [AT, pd.Timestamp(AT)],
        [ZONED, ZONED.astimezone(dt.timezone(dt.timedelta(hours=2)))],
        [True, None],
        [np.int8(1), 2],
        [[1], None],
    ],
)
def test_columns_of_one_kind_pass(values: list[Any]) -> None:
    frame = pd.DataFrame({"key": [1, 1], "ts": [AT, AT], "note": pd.Series(values, dtype=object)})
    assert swjoin.join(frame, GOOD, on="key", **TIMES).num_rows == 4


def test_what_is_no_kind_of_ours_is_arrows_to_refuse() -> None:
    frame = pd.DataFrame({"key": [1, 1], "ts": [AT, AT], "note": pd.Series([AT, uuid.uuid4()], dtype=object)})
    with pytest.raises(UserError, match=r"left: cannot be read as Arrow data"):
        swjoin.join(frame, GOOD, on="key", **TIMES)


@pytest.mark.parametrize("value", [pd.Timestamp(1001), pd.Timedelta(1001)])
def test_objects_finer_than_microseconds(value: Any) -> None:
    frame = pd.DataFrame({"key": [1, 1], "ts": [AT, AT], "note": pd.Series([None, value], dtype=object)})
    with pytest.raises(UserError, match=r"right, row 1 .*: column note: .* is finer than one microsecond, which"):
        swjoin.join(GOOD, frame, on="key", **TIMES)
    frame["note"] = pd.Series([None, value])
    assert swjoin.join(GOOD, frame, on="key", **TIMES).num_rows == 4


# ---------------------------------------------------------------- one object for both sides

ROWS = pa.table({"key": [1, 1, 2], "ts": pa.array([1, 2, 3], pa.timestamp("us"))})


class OneShot:
    """A stream of which every reader but the first finds the end."""

    def __init__(self) -> None:
        self.reader = ROWS.to_reader()

    def __arrow_c_stream__(self, requested_schema: object | None = None) -> object:
        return self.reader.__arrow_c_stream__(requested_schema)


READERS: dict[str, Callable[[], Any]] = {
    "Arrow": ROWS.to_reader,
    "DuckDB": lambda: duckdb.from_arrow(ROWS).to_arrow_reader(),
}


@pytest.mark.parametrize("name", READERS)
def test_one_reader_for_both_sides_is_refused(name: str) -> None:
    message = "^left and right: the same RecordBatchReader is given for both sides, and can be read once; give a table"
    reader = READERS[name]()
    for call in (swjoin.join, swjoin.count):
        with pytest.raises(UserError, match=message):
            call(reader, reader, on="key", **TIMES)
    with swjoin.WindowJoin(on="key", **TIMES) as join:
        with pytest.raises(UserError, match=message):
            join.push(left=reader, right=reader)
        list(join.push(left=reader))  # nothing has been read of it
        with pytest.raises(UserError, match=r"^right: this RecordBatchReader has been read before, and can be read once"):
            join.push(right=reader)
        list(join.push(right=READERS[name]()))
        list(join.close())
        assert join.count == 5


def test_a_reader_of_an_earlier_call_is_refused() -> None:
    reader = ROWS.to_reader()
    assert swjoin.count(ROWS, reader, on="key", **TIMES).count == 5
    with pytest.raises(UserError, match=r"^left: this RecordBatchReader has been read before, and can be read once"):
        swjoin.count(reader, ROWS, on="key", **TIMES)
    batches: Any = (batch for batch in ROWS.to_batches())
    with pytest.raises(UserError, match=r"^left: a generator is no table"):
        swjoin.count(batches, batches, on="key", **TIMES)


def test_whatever_can_be_read_again_may_be_given_twice() -> None:
    again = [
        ROWS,
        ROWS.to_batches()[0],
        ROWS.to_pandas(),
        duckdb.from_arrow(ROWS, connection=duckdb.connect()),
        OneShot(),  # read once, for both sides
    ]
    expected = swjoin.count(ROWS, ROWS.slice(0), on="key", **TIMES)
    for both in again:
        once = isinstance(both, OneShot)
        assert swjoin.count(both, both, on="key", **TIMES) == expected
        both = OneShot() if once else both
        assert swjoin.join(both, both, on="key", **TIMES).num_rows == 5
        both = OneShot() if once else both
        with swjoin.WindowJoin(on="key", **TIMES) as join:
            list(join.push(left=both, right=both))
            list(join.close())
            assert (join.count, join.digest) == (expected.count, expected.digest)


def test_a_file_may_be_given_twice(tmp_path: Any) -> None:
    import pyarrow.parquet as pq

    pq.write_table(ROWS, tmp_path / "rows.parquet")
    path = str(tmp_path / "rows.parquet")
    assert swjoin.count(path, path, on="key", **TIMES).count == 5
    assert to_table(path, "left", "ts").num_rows == 3
