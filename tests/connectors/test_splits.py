"""Splits of files: the rows of reading all from the start, whoever reads which split; times before them by brute force."""

from __future__ import annotations

import dataclasses
import struct
import tempfile
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.orc as orc
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.run import StreamConfig
from swjoin.connectors.files import fragments as fragments_module
from swjoin.connectors.files import source as source_module
from swjoin.connectors.files import splits as splits_module
from swjoin.connectors.files.fragments import RowGroups
from swjoin.connectors.files.source import FileSource, open_columns_source, open_sources
from swjoin.connectors.source import SplitSource
from swjoin.core import splits as core_splits
from swjoin.core.batch import SourceBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.splits import Split
from tests.support.limits import PROCESS_S

Group = list[int | None]  # times
ALL = Split(0, -1, BEGIN_OF_TIME_US, END_OF_TIME_US, BEGIN_OF_TIME_US)


OPEN: list[FileSource] = []


@pytest.fixture(autouse=True)
def closed() -> Iterator[None]:
    """Closes the sources of a test: each has a thread."""
    yield
    while OPEN:
        OPEN.pop().close()
    assert "read-ahead" not in [thread.name for thread in threading.enumerate()]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Small batches and ranges."""
    monkeypatch.setattr(core_splits, "LEAST_ROWS", 2)
    for module in (source_module, splits_module, fragments_module):
        monkeypatch.setattr(module, "BATCH_ROWS", 5)


def table(times: Group, first: int = 0, kind: pa.DataType | None = None) -> pa.Table:
    """Columns k, t, name (some null) and number, which makes ids."""
    rows = range(first, first + len(times))
    return pa.table(
        {
            "k": pa.array([i * 7 % 5 for i in rows], pa.int64()),
            "name": pa.array([None if i % 4 == 0 else f"row {i}" for i in rows], pa.string()),
            "t": pa.array(times, kind or pa.int64()),
            "number": pa.array([1000 + i for i in rows], pa.int64()),
        }
    )


def write(path: Path, groups: Sequence[Group], first: int = 0, compression: str | None = None) -> Path:
    """A file with these row groups or record batches."""
    schema = table([]).schema
    if path.suffix == ".parquet":
        with pq.ParquetWriter(path, schema) as writer:
            for times in groups:
                writer.write_table(table(times, first))
                first += len(times)
        return path
    new = pa.ipc.new_stream if path.suffix == ".arrows" else pa.ipc.new_file
    with new(path, schema, options=pa.ipc.IpcWriteOptions(compression=compression)) as writer:
        for times in groups:
            batches = table(times, first).combine_chunks().to_batches()
            writer.write_batch(batches[0] if batches else pa.RecordBatch.from_pylist([], schema))
            first += len(times)
    return path


def stream(path: Path | Sequence[Path], **more: Any) -> StreamConfig:
    paths = str(path) if isinstance(path, Path) else tuple(map(str, path))
    return StreamConfig(paths, ("k",), "t", **{"time_unit": "us", **more})


def input_of(config: StreamConfig, *, sort: bool = False) -> FileSource:
    OPEN.append(open_columns_source(config, ["k", "name"], sort=sort))
    return OPEN[-1]


def side_of(config: StreamConfig) -> FileSource:
    """One side of a join, with payload."""
    OPEN.append(open_sources(config, config, carry_payload=True)[0])
    return OPEN[-1]


def rows_of(batch: SourceBatch) -> list[tuple[Any, ...]]:
    """Of every row its id, its time (None: it has none), and its columns, or its key and its payload."""
    valid = [True] * len(batch) if batch.ts_valid is None else batch.ts_valid.tolist()
    times = [ts if ok else None for ts, ok in zip(batch.ts.tolist(), valid, strict=True)]
    if batch.columns is not None:
        columns = [column.to_pylist() for column in batch.columns.batch.columns]
    else:
        assert batch.rows is not None
        tails = [batch.rows.slice(i, i + 1) for i in range(len(batch))]
        columns = [batch.key.tolist(), [(t.fixed.tobytes(), b"" if t.var is None else t.var.tobytes()) for t in tails]]
    return list(zip(batch.id.tolist(), times, *columns, strict=True))


def read(source: SplitSource) -> list[tuple[Any, ...]]:
    found: list[tuple[Any, ...]] = []
    while (batch := source.read()) is not None:
        assert len(batch)
        found += rows_of(batch)
    assert source.read() is None
    return found


def greatest(rows: list[tuple[Any, ...]]) -> int:
    return max((row[1] for row in rows if row[1] is not None), default=BEGIN_OF_TIME_US)


TIMES = st.lists(st.one_of(st.none(), st.integers(-50, 50), st.integers(100, 120)), max_size=14)
FILES = st.lists(st.lists(TIMES, max_size=4), min_size=1, max_size=3)


@pytest.mark.drawn
@settings(max_examples=50, deadline=None)
@given(
    files=FILES,
    form=st.sampled_from(["parquet", "arrow", "lz4"]),
    reach_us=st.sampled_from([0, 1, 10, 30, 1 << 62]),
    joins=st.booleans(),
    row_id=st.sampled_from([None, "number"]),
    sources=st.integers(1, 3),
    random=st.randoms(use_true_random=False),
)
@pytest.mark.usefixtures("small")
def test_all_splits_are_all_rows(
    files: list[list[Group]], form: str, reach_us: int, joins: bool, row_id: str | None, sources: int, random: Any
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        paths, first = [], 0
        for number, groups in enumerate(files):
            path = Path(folder) / f"{number}.{'parquet' if form == 'parquet' else 'arrow'}"
            paths.append(write(path, groups, first, form if form == "lz4" else None))
            first += sum(map(len, groups))
        make = side_of if joins else input_of
        readers = [make(stream(paths, id=row_id)) for _ in range(sources + 2)]
        whole = read(readers[-1])
        found = readers[-2].splits(reach_us)
        assert found is not None
        assert [(split.row, split.rows) for split in found] == _expected(files, reach_us)
        kept = [reader for reader in readers[:sources] for _ in range(2)]
        for split in random.sample(found, len(found)) if random.random() < 0.7 else found:
            reader = random.choice(kept)
            skip = random.choice([0, 0, random.randint(0, split.rows), split.rows])
            assert reader.open_split(split, skip) == greatest(whole[: split.row + skip])
            if random.random() < 0.2:  # another split is opened before this one is at its end
                reader.read()
                reader.open_split(split, skip)
            assert read(reader) == whole[split.row + skip : split.row + split.rows]
            if row_id is None:
                for row in range(split.row + skip, split.row + split.rows):
                    assert reader.locate(row) == readers[-1].locate(row)
            known = [row[1] for row in whole[split.row : split.row + split.rows] if row[1] is not None]
            if known:
                assert split.low_us <= min(known) <= max(known) <= split.high_us
            assert split.before_us <= greatest(whole[: split.row])
        assert readers[0].origin_us() == next((row[1] for row in whole if row[1] is not None), None)
        for reader in readers:
            assert reader.rows_total == (len(whole) if form == "parquet" else None)
            assert reader.why_whole is None
            reader.seek(0)
            assert read(reader) == whole
        while OPEN:
            OPEN.pop().close()


def _expected(files: list[list[Group]], reach_us: int) -> list[tuple[int, int]]:
    """First row and rows of every split."""
    found, row = [], 0
    for times in (times for groups in files for times in groups):
        known = [t for t in times if t is not None]
        span = max(known) - min(known) if known else 0
        ranges = max(1, min(-(-span // max(1, reach_us)), len(times) // 2))
        ends = [len(times) * (i + 1) // ranges for i in range(ranges)]
        found += [(row + a, b - a) for a, b in zip([0, *ends], ends, strict=False) if a < b]
        row += len(times)
    return found


def test_bounds_of_row_groups_are_exact(tmp_path: Path) -> None:
    groups: list[Group] = [[5, 3], [], [None, None], [-9, None, 7], [6]]
    source = input_of(stream(write(tmp_path / "a.parquet", groups)))
    nothing = END_OF_TIME_US, BEGIN_OF_TIME_US
    assert source.splits(100) == [
        Split(0, 2, 3, 5, BEGIN_OF_TIME_US),
        Split(2, 2, *nothing, 5),
        Split(4, 3, -9, 7, 5),
        Split(7, 1, 6, 6, 7),
    ]
    assert input_of(stream(write(tmp_path / "b.parquet", []))).splits(1) == []
    assert input_of(stream(write(tmp_path / "b.parquet", []))).origin_us() is None


@pytest.mark.usefixtures("small")
def test_ranges_of_a_row_group(tmp_path: Path) -> None:
    groups: list[Group] = [[1, 2], [10, 70, 30, 40, 50, 60, 20, 80], [81]]
    source = input_of(stream(write(tmp_path / "a.parquet", groups)))
    found = source.splits(30)
    assert found is not None
    assert found[1:-1] == [Split(2, 2, 10, 80, 2), Split(4, 3, 10, 80, 2), Split(7, 3, 10, 80, 2)]
    assert [source.open_split(split) for split in found] == [BEGIN_OF_TIME_US, 2, 70, 70, 80]
    assert [split.rows for split in source.splits(1) or ()] == [2, 2, 2, 2, 2, 1], "no range has fewer rows than is worth it"


# ---------------------------------------------------------------- types of times

US, BERLIN = 1_000_000, "Europe/Berlin"
SUMMER = 1_774_746_000  # 2026-03-29 01:00 UTC, when the clocks in Berlin are turned forward
TYPES: dict[str, tuple[pa.DataType, list[int], dict[str, Any]]] = {
    **{f"{unit} {zone}": (pa.timestamp(unit, zone), [-7000, 9000, None, 4000], {}) for unit in ("s", "ms", "us", "ns")
       for zone in (None, "UTC", BERLIN)},
    **{f"local {unit}": (pa.timestamp(unit), [(SUMMER - 60) * n, (SUMMER + 9000) * n], {"assume_timezone": BERLIN})
       for unit, n in (("s", 1), ("ms", 1000), ("us", US), ("ns", 1000 * US))},
    "date": (pa.date32(), [-3, 20_000], {}),
    "date64": (pa.date64(), [-3 * 86_400_000, 86_400_000], {}),
    "local date": (pa.date32(), [20_541, 20_542], {"assume_timezone": BERLIN}),
    **{f"int64 of {unit}": (pa.int64(), [-5000, 8000], {"time_unit": unit}) for unit in ("s", "ms", "us", "ns")},
    **{f"int{bits}": (getattr(pa, f"int{bits}")(), [-100, 100], {"time_unit": "s"}) for bits in (8, 16, 32)},
    "uint8": (pa.uint8(), [3, 255], {"time_unit": "ms"}),
    "uint16": (pa.uint16(), [3, 65_535], {"time_unit": "ms"}),
    "uint32": (pa.uint32(), [3, 2**32 - 1], {"time_unit": "s"}),
    "uint64": (pa.uint64(), [3, 2**60], {"time_unit": "us"}),
}  # fmt: skip


@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.parametrize("case", TYPES)
def test_times_of_every_type(case: str, form: str, tmp_path: Path) -> None:
    kind, times, more = TYPES[case]
    found = table(times, kind=kind)
    found = pa.concat_tables([found, table(times[::-1], len(times), kind)])
    path = tmp_path / f"a.{form}"
    if form == "parquet":
        pq.write_table(found, path, row_group_size=len(times))
    else:
        with pa.ipc.new_file(path, found.schema) as writer:
            writer.write_table(found.combine_chunks(), len(times))
    config = stream(path, **{"time_unit": None, **more})
    known = [row[1] for row in read(input_of(config))[: len(times)] if row[1] is not None]
    source = input_of(config)
    splits = source.splits(1 << 62)
    assert splits is not None
    low, high = min(known), max(known)
    assert splits == [Split(0, len(times), low, high, BEGIN_OF_TIME_US), Split(len(times), len(times), low, high, high)]
    assert source.open_split(splits[1], 1) == high
    assert [row[1] for row in read(source)] == [row[1] for row in read(input_of(config))[len(times) + 1 :]]
    assert source.origin_us() == known[0]


def test_columns_of_nulls(tmp_path: Path) -> None:
    """A time column of the type null, in one file, and as the folders have it."""
    write(tmp_path / "a.parquet", [[4, 5]])
    pq.write_table(pa.table({"k": [1, 2], "name": ["x", None], "t": pa.nulls(2), "number": [1, 2]}), tmp_path / "b.parquet")
    source = input_of(stream(tmp_path))
    nothing = END_OF_TIME_US, BEGIN_OF_TIME_US
    assert source.splits(9) == [Split(0, 2, 4, 5, BEGIN_OF_TIME_US), Split(2, 2, *nothing, 5)]
    assert source.open_split(Split(2, 2, *nothing, 5)) == 5
    assert read(source) == [(2, None, 1, "x"), (3, None, 2, None)]


@pytest.mark.parametrize("form", ["parquet", "arrow"])
def test_times_of_hive_folders(form: str, tmp_path: Path) -> None:
    for day, first in ((10, 0), (9, 4)):
        (tmp_path / f"day={day}").mkdir()
        write(tmp_path / f"day={day}" / f"a.{form}", [[1, 1], [1, 1]], first)
    config = dataclasses.replace(stream(tmp_path), time="day", time_unit="s")
    source, whole = input_of(config), read(input_of(config))
    splits = source.splits(5)
    assert splits is not None
    ten, nine = (10 * US, 10 * US), (9 * US, 9 * US)
    bounds = [(*ten, BEGIN_OF_TIME_US), (*ten, 10 * US), (*nine, 10 * US), (*nine, 10 * US)]
    assert [(split.low_us, split.high_us, split.before_us) for split in splits] == bounds
    for split in splits[::-1]:
        assert source.open_split(split, 1) == 10 * US
        assert read(source) == whole[split.row + 1 : split.row + split.rows]


def test_a_column_within_another_is_not_the_time(tmp_path: Path) -> None:
    within = pa.array([{"b": 900}, {"b": 1}])
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"a": within, "k": [1, 1], "name": ["x", "y"], "a.b": [5, 6]}), path)
    source = input_of(dataclasses.replace(stream(path), time="a.b"))
    assert source.splits(9) == [Split(0, 2, 5, 6, BEGIN_OF_TIME_US)]


# ---------------------------------------------------------------- inputs that are read whole


def _csv(path: Path) -> None:
    csv.write_csv(table([4, None, 9, 2, 30]), path)


def _json(path: Path) -> None:
    path.write_text("".join(f'{{"k": 1, "name": "x", "t": {t}}}\n' for t in (4, "null", 9, 2, 30)))


NO_ROWS = "is an Arrow IPC stream, which does not say how many rows it has"
WHOLE = {
    "a.csv": (_csv, "CSV files do not say how many rows they have"),
    "a.jsonl": (_json, "JSON lines files do not say how many rows they have"),
    "a.orc": (
        lambda path: orc.write_table(table([4, None, 9, 2, 30]), path),
        "rows and times of the stripes of ORC files are unknown",
    ),
    "a.arrows": (lambda path: write(path, [[4, None], [9, 2, 30]]), f"{{}} {NO_ROWS}"),
    "a.parquet": (
        lambda path: pq.write_table(table([4, None, 9, 2, 30]), path, write_statistics=["k"], row_group_size=2),
        "{}: row group 0 does not say its least and greatest t",
    ),
}  # fmt: skip


@pytest.mark.parametrize("sort", [False, True])
@pytest.mark.parametrize("name", WHOLE)
def test_inputs_without_splits(name: str, sort: bool, tmp_path: Path) -> None:
    make, reason = WHOLE[name]
    make(tmp_path / name)
    config = stream(tmp_path / name)
    source = input_of(config, sort=sort)
    assert source.splits(100) is None
    assert source.why_whole == ("rows are sorted by time" if sort else reason.format(tmp_path / name))
    whole = read(input_of(config, sort=sort))
    assert len(whole) == 5
    for skip in [0, 3, 5, 1, 4, 2]:
        assert source.open_split(ALL, skip) == greatest(whole[:skip])
        assert read(source) == whole[skip:]
    assert source.origin_us() == (2 if sort else 4)
    with pytest.raises(RunFailed, match="row 6 is not where it was; the input has changed"):
        source.open_split(ALL, 6)


def test_one_stream_among_files(tmp_path: Path) -> None:
    write(tmp_path / "a.arrow", [[1]])
    write(tmp_path / "b.arrows", [[2]])
    assert input_of(stream(tmp_path)).why_whole == f"{tmp_path / 'b.arrows'} {NO_ROWS}"


NO_TIMES: dict[str, tuple[list[int], pa.DataType, dict[str, Any]]] = {
    "is finer than one microsecond; round the column to microseconds": ([1000, 1001], pa.timestamp("ns"), {}),
    "is out of range; check ": ([1, 1 << 61], pa.int64(), {"time_unit": "us"}),
    "is 2026-03-29 02:30:00, which does not exist in ": (
        [1, SUMMER + 5400],
        pa.timestamp("s"),
        {"assume_timezone": BERLIN},
    ),
}


@pytest.mark.parametrize("reason", NO_TIMES)
def test_statistics_that_are_no_times(reason: str, tmp_path: Path) -> None:
    times, kind, more = NO_TIMES[reason]
    path = tmp_path / "a.parquet"
    pq.write_table(table([times[0], times[0], *times], kind=kind), path, row_group_size=2)
    source = input_of(stream(path, **{"time_unit": None, **more}))
    assert source.splits(1) is None
    assert str(source.why_whole).startswith(f"{path}: row group 1 has wrong times: time column t {reason}")
    with pytest.raises(UserError, match=r"row 3 .*time column t "):
        read(source)


def test_times_of_96_bits(tmp_path: Path) -> None:
    path = tmp_path / "a.parquet"
    pq.write_table(table([1000, 2000], kind=pa.timestamp("ns")), path, use_deprecated_int96_timestamps=True)
    source = input_of(stream(path, time_unit=None))
    assert source.why_whole == f"{path}: row group 0 does not say its least and greatest t"
    assert len(read(source)) == 2


# ---------------------------------------------------------------- files that are not as they say


def _read_all(source: FileSource, splits: list[Split], skip: int = 0) -> None:
    for split in splits:
        source.open_split(split, skip)
        read(source)


@pytest.mark.parametrize(("wrong", "value"), [("greatest", 11), ("greatest", 29), ("least", 5), ("greatest", 1000)])
@pytest.mark.usefixtures("small")
def test_wrong_statistics_are_found(wrong: str, value: int, tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [[1, 2], [4, 10, 3, 21, 12, 30]])
    before = {"greatest": 30, "least": 3}[wrong]
    data = path.read_bytes()
    footer = len(data) - 8 - int.from_bytes(data[-8:-4], "little")
    old, new = struct.pack("<q", before), struct.pack("<q", value)
    assert data.count(old, footer) > 0
    path.write_bytes(data[:footer] + data[footer:].replace(old, new))
    for reach_us in (1 << 62, 1):
        source = input_of(stream(path))
        splits = source.splits(reach_us)
        assert splits is not None
        assert splits[-1].high_us == (value if wrong == "greatest" else 30)
        with pytest.raises(UserError) as error:
            _read_all(source, splits)
        assert str(error.value) == f"{path}: row group 1 has other times in t than its file says; write the file again"


@pytest.mark.parametrize(("rows", "skip", "how"), [(7, 0, "fewer"), (7, 8, "fewer"), (9, 0, "more")])
@pytest.mark.parametrize("form", ["parquet", "arrow"])
@pytest.mark.usefixtures("small")
def test_files_that_change(rows: int, skip: int, how: str, form: str, tmp_path: Path) -> None:
    path = write(tmp_path / f"a.{form}", [[5] * 8, [6]])
    source = input_of(stream(path))
    splits = source.splits(1)  # knows the rows now
    assert splits is not None
    write(path, [[5] * rows, [6]])
    with pytest.raises(UserError) as error:
        _read_all(source, splits[:1], skip)
    part = "row group" if form == "parquet" else "record batch"
    assert str(error.value) == f"{path}: {part} 0 has {how} rows than its file says; write the file again"
    with pytest.raises(RunFailed, match="rows 9 to 12 are not where they were; the input has changed"):
        source.open_split(Split(9, 3, 0, 0, 0))


@pytest.mark.usefixtures("small")
def test_errors_name_the_row(tmp_path: Path) -> None:
    for name, times in (("a", [1000, 2000]), ("b", [3000] * 6 + [4001, 5000])):
        pq.write_table(table(times, kind=pa.timestamp("ns")), tmp_path / f"{name}.parquet")
    splits = [Split(0, 2, 1, 2, BEGIN_OF_TIME_US), Split(2, 8, 3, 5, 2)]
    text = f"{tmp_path / 'b.parquet'}, row 6 (counting from 0): time column t is finer than one microsecond"
    config = stream(tmp_path, time_unit=None)
    for skip in (0, 7):  # while rows are read, and while the times before them are
        source = input_of(config)
        with pytest.raises(UserError) as error:
            _read_all(source, splits[1:], skip)
        assert str(error.value).startswith(text)
    pq.write_table(pa.table({"k": [1], "t": pa.array([1], pa.timestamp("us")), "name": ["x"]}), tmp_path / "b.parquet")
    with pytest.raises(UserError, match=r"b.parquet: column t is timestamp\[us\], in a.parquet it is timestamp\[ns\]$"):
        input_of(config).splits(1)
    source = input_of(config)
    source.open_split(Split(2, 1, 1, 1, 0))
    with pytest.raises(UserError, match=r"b.parquet: column t is timestamp\[us\], in a.parquet it is timestamp\[ns\]$"):
        source.read()
    (tmp_path / "b.parquet").write_bytes(b"PAR1")
    with pytest.raises(UserError, match=r"b.parquet: cannot be read as Parquet: "):
        input_of(config).splits(1)


def test_buffers_of_record_batches_are_checked(tmp_path: Path) -> None:
    path = write(tmp_path / "a.arrow", [[1], [2, 3]], 1)
    offsets, wrong = (struct.pack("<3i", 0, *ends) for ends in ((5, 10), (1 << 30, 1 << 30)))
    data = path.read_bytes()
    assert data.count(offsets) == 1
    path.write_bytes(data.replace(offsets, wrong))
    source = input_of(stream(path))
    splits = source.splits(9)
    assert splits is not None
    source.open_split(splits[0])
    assert read(source) == [(0, 1, 2, "row 1")]
    source.open_split(splits[1])
    with pytest.raises(UserError, match="cannot be read as Arrow IPC: "):
        source.read()


def test_corrupt_times_are_refused(tmp_path: Path) -> None:
    """Beside the rows, where errors of libraries have other ways out; one ended the process."""
    path = write(tmp_path / "a.arrow", [[2, 3]])
    path.write_bytes(path.read_bytes().replace(struct.pack("<q", 16), struct.pack("<q", 17)))  # lengths of buffers
    with pytest.raises(UserError, match=r"a\.arrow: cannot be read as Arrow IPC: buffer size must be a multiple of element"):
        input_of(stream(path)).splits(1)
    path = write(tmp_path / "a.parquet", [[2, 3]])
    int64 = b"\x15\x04\x19"  # the version of the file, and the types of k, t and number
    parts = path.read_bytes().split(int64)
    assert len(parts) == 5
    path.write_bytes(int64.join(parts[:3]) + b"\x15\x00\x19" + int64.join(parts[3:]))
    with pytest.raises(UserError, match=r"a\.parquet: cannot be read as Parquet: row group 0 has t as BOOLEAN, not as INT64$"):
        input_of(stream(path)).splits(1)


# ---------------------------------------------------------------- decoding, and its thread


@pytest.fixture
def decoded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, str]]:
    """Row groups that were decoded, with all columns or the times alone."""
    found: list[tuple[int, str]] = []
    batches = RowGroups.batches

    def counted(self: RowGroups, index: int, columns: list[str]) -> Any:
        found.append((index, "times" if columns == ["t"] else "all"))
        return batches(self, index, columns)

    monkeypatch.setattr(RowGroups, "batches", counted)
    return found


@pytest.mark.usefixtures("small")
def test_ranges_are_decoded_once(tmp_path: Path, decoded: list[tuple[int, str]]) -> None:
    path = write(tmp_path / "a.parquet", [list(range(0, 60, 2)), [70]])
    splits = input_of(stream(path)).splits(10)
    assert splits is not None
    assert len(splits) == 7
    source = input_of(stream(path))
    for split in splits[:3]:
        source.open_split(split)
        assert [row[0] for row in read(source)] == list(range(split.row, split.row + split.rows))
    assert decoded == [(0, "all")]
    for split in splits[4:6]:  # the range between them is another gateway's
        assert source.open_split(split) == split.row * 2 - 2
        assert [row[0] for row in read(source)] == list(range(split.row, split.row + split.rows))
    assert [item for item in decoded if item[0] == 0] == [(0, "all"), (0, "times")]  # the next row group may be begun


@pytest.mark.parametrize(("opened", "expected"), [([0, 1], 2), ([0], 1), ([1, 4, 7], 10), ([0, 5], None), ([3, 4, 2], None)])
def test_the_next_row_group_is_begun_before_it_is_asked_for(
    opened: list[int], expected: int | None, tmp_path: Path, decoded: list[tuple[int, str]]
) -> None:
    path = write(tmp_path / "a.parquet", [[i] for i in range(12)])
    source = input_of(stream(path))
    splits = source.splits(1)
    assert splits is not None
    for index in opened:
        source.open_split(splits[index])
        assert [row[0] for row in read(source)] == [index]
        reader: Any = source._reader
        thread = reader._ahead._thread
        _until_idle(reader)
    assert thread.is_alive()
    begun = [fragment.index for fragment in reader._started]
    assert begun == ([] if expected is None else [expected])
    decoded.clear()
    if expected is not None:
        source.open_split(splits[expected])
        assert [row[0] for row in read(source)] == [expected]
        assert (expected, "all") not in decoded
    assert [t.name for t in threading.enumerate()].count("read-ahead") == 1
    assert reader._ahead._thread is thread


def _until_idle(reader: Any) -> None:
    """Until the thread has ended its iterator: the end is put a second time then."""
    with reader._ahead._changed:
        assert reader._ahead._changed.wait_for(lambda: len(reader._ahead._items) == 1, PROCESS_S)


@pytest.mark.usefixtures("small")
def test_ready(tmp_path: Path) -> None:
    path = write(tmp_path / "a.parquet", [list(range(0, 60, 2))])
    source = input_of(stream(path))
    splits = source.splits(10)
    assert splits is not None
    for split in (splits[3], splits[0]):
        source.open_split(split, 1)
        found = 0
        while True:
            assert source.ready(PROCESS_S)
            assert source.ready(0)
            batch = source.read()
            if batch is None:
                break
            found += len(batch)
        assert found == split.rows - 1
        assert source.ready(0), "at the end, too"
