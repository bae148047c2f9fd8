"""CSV files with a header and no rows: an empty stream, alone, on both sides, and anywhere in a directory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as sj

ROWS = "user,at,price\na,2026-01-01 10:00:00,1.5\nb,2026-01-01 10:00:01,2.5\n"
HEADER = "user,at,price\n"
ON = ["--on", "user", "--left-time", "at", "--right-time", "at"]


def written(folder: Path, **files: str) -> Path:
    folder.mkdir(exist_ok=True)
    for name, text in files.items():
        (folder / f"{name}.csv").write_text(text)
    return folder


def command(swjoin: Any, left: Path, right: Path, out: Path, *more: object) -> dict[str, str]:
    done = swjoin("join", left, right, *ON, "--within", "1h", "-o", out, *more)
    assert (done.code, done.err) == (0, [])
    return {line[:17].strip(): line[17:].strip() for line in done.out.splitlines()}


@pytest.fixture
def files(tmp_path: Path) -> Path:
    return written(tmp_path, rows=ROWS, empty=HEADER, unended=HEADER.strip())


@pytest.mark.parametrize("empty", ["empty.csv", "unended.csv"])
@pytest.mark.parametrize("how", ["inner", "left", "right", "full", "anti"])
@pytest.mark.parametrize("turned", [False, True])
def test_one_side_is_empty(empty: str, how: str, turned: bool, files: Path, swjoin: Any, tmp_path: Path) -> None:
    sides = [files / "rows.csv", files / empty]
    left, right = reversed(sides) if turned else sides
    rows = 2 if how == "full" or (how == "right" if turned else how in ("left", "anti")) else 0
    out = tmp_path / "out.parquet"
    found = command(swjoin, left, right, out, "--how", how)
    assert found["pairs"] == str(rows)
    types = {f.name: f.type for f in pq.read_schema(out)}
    assert types["user"] == pa.string()
    assert pq.read_metadata(out).num_rows == rows
    assert sj.join(left, right, on="user", left_time="at", right_time="at", within="1h", how=how).num_rows == rows


def test_both_sides_are_empty(files: Path, swjoin: Any, tmp_path: Path) -> None:
    empty = files / "empty.csv"
    out = tmp_path / "out.parquet"
    assert command(swjoin, empty, empty, out)["pairs"] == "0"
    schema = pq.read_schema(out)
    assert schema.field("user").type == pa.string()
    assert pa.types.is_timestamp(schema.field("left_at").type)
    assert schema.field("left_price").type == pa.string()
    assert sj.count(empty, empty, on="user", left_time="at", right_time="at", within="1h").count == 0


@pytest.mark.parametrize("suffix", ["csv", "count"])
def test_an_empty_side_takes_the_types_of_the_other(suffix: str, swjoin: Any, tmp_path: Path) -> None:
    other = tmp_path / "other.parquet"
    pq.write_table(pa.table({"user": pa.array([7, 8], pa.uint64()), "at": pa.array([1, 2], pa.int64())}), other)
    written(tmp_path, empty=HEADER)
    out = "count" if suffix == "count" else tmp_path / "out.csv"
    for sides in ((other, tmp_path / "empty.csv"), (tmp_path / "empty.csv", other)):
        assert command(swjoin, *sides, out, "--time-unit", "s", "--left-id", "at", "--right-id", "at")["pairs"] == "0"
    if suffix == "csv":
        assert csv.read_csv(out).num_rows == 0


@pytest.mark.parametrize("names", [("a", "b"), ("b", "a"), ("a", "c")])
def test_an_empty_hour_of_a_directory(names: tuple[str, str], swjoin: Any, tmp_path: Path) -> None:
    late = ROWS.replace("10:00:0", "11:00:0")
    hours = written(tmp_path / "hours", **{names[0]: HEADER, names[1]: ROWS, "x": HEADER, "y": late, "z": HEADER})
    whole = written(tmp_path / "whole", rows=ROWS + late.removeprefix(HEADER))
    answers = [command(swjoin, folder, whole, "count", "--late", "drop") for folder in (hours, whole)]
    assert answers[0]["digest"] == answers[1]["digest"]
    assert answers[0]["pairs"] == answers[1]["pairs"] != "0"
    joined = sj.join(hours, whole, on="user", left_time="at", right_time="at", within="1h")
    assert joined.num_rows == int(answers[0]["pairs"])
    assert joined.schema.field("left_price").type == pa.float64()


def test_a_predicate_over_columns_without_types(files: Path, swjoin: Any, tmp_path: Path) -> None:
    sides = files / "empty.csv", files / "rows.csv"
    condition = "left_price < right_price"
    assert command(swjoin, *sides, tmp_path / "o.parquet", "--where", condition, "--how", "right")["pairs"] == "2"
    joined = sj.join(*sides, on="user", left_time="at", right_time="at", within="1h", where=condition, how="right")
    assert joined.num_rows == 2
    done = swjoin("join", *sides, *ON, "--within", "1h", "-o", "count", "--where", "left_cost < right_price")
    assert done.code == 2
    assert "cost" in done.err[0]


def test_what_stays_refused(files: Path, swjoin: Any) -> None:
    (files / "nothing.csv").write_text("")
    for name, text in (("nothing.csv", "Empty CSV file"), ("empty.csv", "key column nobody is missing")):
        done = swjoin("join", files / name, files / "rows.csv", "--on", "nobody", *ON[2:], "--within", "1h", "-o", "count")
        assert done.code == 2
        assert text in done.err[0]
    hours = written(files / "hours", a="user,when\n", b=ROWS)
    done = swjoin("join", hours, files / "rows.csv", *ON, "--within", "1h", "-o", "count")
    assert done.code == 2
    assert "a.csv: column at is missing, b.csv has it once" in done.err[0]


# ---------------------------------------------------------------- columns in which nothing is


def answers(swjoin: Any, left: Path, right: Path, **options: str) -> list[int]:
    """Rows of the same outer join from the command line and from Python."""
    out = left.parent / "answer.parquet"
    flags = [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]
    given = ["--on", "k", "--left-time", "t", "--right-time", "t", "--within", "1h", "--how", "full"]
    done = swjoin("join", left, right, *given, *flags, "-o", out)
    assert done.code == 0, done.err
    table = sj.join(left, right, on="k", left_time="t", right_time="t", within="1h", how="full", **options)  # type: ignore[call-overload]
    assert table.column_names == pq.read_schema(out).names
    return [pq.read_metadata(out).num_rows, table.num_rows]


ZONED, CLOCK, NUMBERS = "2026-01-01 10:00:00Z", "2026-01-01 10:00:00", "1767225600"


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    ("time", "options"),
    [
        (ZONED, {"assume_timezone": "Europe/Berlin"}),
        (CLOCK, {"assume_timezone": "Europe/Berlin"}),
        (NUMBERS, {"assume_timezone": "Europe/Berlin", "time_unit": "s"}),
        (CLOCK, {"assume_timezone": "Europe/Berlin", "time_unit": "s"}),
        (ZONED, {"time_unit": "s"}),
        (CLOCK, {"time_unit": "s"}),
        (ZONED, {"unit_of_the_empty_side": "ms"}),
        (NUMBERS, {"unit_of_the_other_side": "ms"}),
        (None, {"assume_timezone": "Europe/Berlin"}),
        (None, {"time_unit": "s"}),
        (None, {"unit_of_the_empty_side": "ms"}),
        (None, {"assume_timezone": "Europe/Berlin", "time_unit": "s"}),
    ],
)
def test_what_is_declared_of_an_empty_time_column_is_its_type(
    time: str | None, options: dict[str, str], turned: bool, swjoin: Any, tmp_path: Path
) -> None:
    files = written(tmp_path, empty="t,k\n", other="t,k\n" + (f"{time},5\n" if time else ""))
    sides = [files / "empty.csv", files / "other.csv"]
    names = ["left", "right"]
    if turned:
        sides, names = sides[::-1], names[::-1]
    options = {
        n.replace("unit_of_the_empty_side", f"{names[0]}_time_unit").replace(
            "unit_of_the_other_side", f"{names[1]}_time_unit"
        ): v
        for n, v in options.items()
    }
    rows = 1 if time else 0
    assert answers(swjoin, *sides, **options) == [rows, rows]
    if time is not None:
        frame = pa.table({"t": pa.nulls(0), "k": pa.nulls(0)})
        both = [frame if side.stem == "empty" else side for side in sides]
        table = sj.join(*both, on="k", left_time="t", right_time="t", within="1h", how="full", **options)  # type: ignore[call-overload]
        assert table.num_rows == rows


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
def test_a_zone_declared_of_one_side_alone(tmp_path: Path, swjoin: Any) -> None:
    """In a configuration: an empty side meets local times that are made instants."""
    files = written(tmp_path, empty="t,k\n", other=f"t,k\n{CLOCK},5\n")
    for names in (("left", "right"), ("right", "left")):
        plain: dict[str, Any] = {"join": {"within": "1h", "how": "full"}, "sink": {"kind": "count"}}
        plain[names[0]] = {"path": str(files / "empty.csv"), "key": "k", "time": "t"}
        plain[names[1]] = {
            "path": str(files / "other.csv"), "key": "k", "time": "t", "assume_timezone": "Europe/Berlin",
        }  # fmt: skip
        assert sj.run(plain, out=tmp_path / names[0]).count == 1


def stored(path: Path, table: pa.Table) -> Path:
    path.parent.mkdir(exist_ok=True)
    if path.suffix == ".parquet":
        pq.write_table(table, path)
    else:
        with pa.ipc.new_file(path, table.schema) as writer:
            writer.write_table(table)
    return path


NOTHING = pa.table({"t": pa.nulls(0), "k": pa.nulls(0), "note": pa.nulls(0)})
NO_KEYS = pa.table({"t": pa.array([3, 4]), "k": pa.nulls(2), "note": pa.nulls(2)})
SOME = pa.table({"t": pa.array([1, 2]), "k": pa.array(["a", "b"]), "note": pa.array([0.5, 1.5])})


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
@pytest.mark.parametrize("turned", [False, True])
def test_columns_of_the_type_null(suffix: str, turned: bool, swjoin: Any, tmp_path: Path) -> None:
    """One file, or the first or a later file of a folder; without rows, or with nulls alone."""
    some = stored(tmp_path / f"some.{suffix}", SOME)
    cases = {
        "nothing": ([NOTHING], 2),
        "no keys": ([NO_KEYS], 4),
        "first": ([NOTHING, SOME], 2),
        "second": ([SOME, NOTHING], 2),
        "nulls first": ([NO_KEYS.slice(0, 1).set_column(0, "t", pa.array([0])), SOME], 3),
        "nulls later": ([SOME, NOTHING, NO_KEYS], 4),
    }
    for name, (tables, rows) in cases.items():
        folder = tmp_path / name
        for number, table in enumerate(tables):
            stored(folder / f"{number}.{suffix}", table)
        sides = (folder, some) if not turned else (some, folder)
        assert answers(swjoin, *sides, time_unit="s") == [rows, rows], name
    stored(tmp_path / "second" / f"2.{suffix}", SOME.set_column(1, "k", pa.array([1, 2])))
    given = ["--on", "k", "--left-time", "t", "--right-time", "t", "--within", "1s", "--time-unit", "s", "-o", "count"]
    done = swjoin("join", tmp_path / "second", some, *given)
    assert done.code == 2
    assert f"2.{suffix}: column k is int64, in 0.{suffix} it is string" in done.err[0], "other types stay refused"
    times = stored(tmp_path / f"no times.{suffix}", SOME.set_column(0, "t", pa.nulls(2)))
    done = swjoin("join", times, some, *given)
    assert done.code == 2
    assert "row 0 (counting from 0): no time; choose --late drop" in done.err[0], done.err


@pytest.mark.filterwarnings("ignore::swjoin.ImplausibleWarning")
@pytest.mark.parametrize("turned", [False, True])
@pytest.mark.parametrize(
    "keys",
    [
        pa.array([1, 2]),
        pa.array(["a", "b"]),
        pa.array(["a", "b"]).dictionary_encode(),
        pa.array(["a", "b"], pa.string_view()),
        pa.array([1, 2], pa.uint64()),
        pa.array([1, 2], pa.timestamp("ms", "UTC")),
    ],
    ids=lambda a: str(a.type),
)
def test_csv_files_without_a_key(keys: pa.Array, turned: bool, swjoin: Any, tmp_path: Path) -> None:
    files = written(tmp_path, empty="t,k,note\n1,,\n2,,x\n")
    other = stored(tmp_path / "other.parquet", pa.table({"t": pa.array([1, 2]), "k": keys}))
    sides = (other, files / "empty.csv") if turned else (files / "empty.csv", other)
    assert answers(swjoin, *sides, time_unit="s") == [4, 4]


def test_the_types_of_a_csv_column_that_begins_empty_are_those_of_later_files(swjoin: Any, tmp_path: Path) -> None:
    hours = written(tmp_path / "hours", a="t,k,price\n1,,\n", b="t,k,price\n2,5,0.5\n", c="t,k,price\n3,6,\n")
    other = written(tmp_path, other="t,k\n2,5\n3,6\n") / "other.csv"
    given: dict[str, Any] = {"on": "k", "left_time": "t", "right_time": "t", "within": "0s", "time_unit": "s"}
    joined = sj.join(hours, other, **given)
    assert joined.column("price").to_pylist() == [0.5, None]
    out = tmp_path / "out.parquet"
    done = swjoin(
        "join",
        hours,
        other,
        "--on",
        "k",
        "--left-time",
        "t",
        "--right-time",
        "t",
        "--within",
        "0s",
        "--time-unit",
        "s",
        "-o",
        out,
    )
    assert done.code == 0
    assert pq.read_table(out).column("price").to_pylist() == [0.5, None]
