"""Results of `swjoin.join` in files and as readers: the rows of the table, the proof, the memory, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.dataset as ds
import pyarrow.parquet as pq
import pytest

import swjoin
from swjoin.connectors.files import sink
from tests.api.test_frames import EXPECTED, LEFT, OPTIONS, RIGHT, VALUES, plain, rows_of, values_of
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S


def reverse(table: pa.Table) -> pa.Table:
    return table.take(list(reversed(range(len(table)))))


def inputs(folder: Path, *, files: bool, ordered: bool) -> tuple[Any, Any]:
    """Both sides; in order or the right one backwards."""
    left, right = plain(LEFT), plain(RIGHT) if ordered else reverse(plain(RIGHT))
    if not files:
        return left, right
    for name, table in (("left", left), ("right", right)):
        pq.write_table(table, folder / f"{name}.parquet")
    return folder / "left.parquet", str(folder / "right.parquet")


@pytest.mark.parametrize("options", [{}, {"ids": True}, {"threads": 2, "how": "full"}, {"left_id": "n2"}, {"late": "drop"}])
@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("files", [True, False])
def test_a_file_has_the_rows_and_the_proof_of_the_table(
    tmp_path: Path, files: bool, ordered: bool, options: dict[str, Any]
) -> None:
    left, right = inputs(tmp_path, files=files, ordered=ordered)
    if "left_id" in options:
        with_ids = plain(LEFT).append_column("n2", pa.array(range(100, 130)))
        left = with_ids if not files else left
        if files:
            pq.write_table(with_ids, left)
    table = swjoin.join(left, right, **OPTIONS, **options)
    for name in ("out.parquet", "out.csv", "out.csv.gz"):
        found = swjoin.join(left, right, **OPTIONS, **options, out=tmp_path / name)
        assert (found, found.ledger) == (swjoin.proof(table), swjoin.proof(table).ledger)
    assert swjoin.proof(tmp_path / "out.parquet") == found
    written = pq.read_table(tmp_path / "out.parquet")
    assert written.schema == table.schema
    assert values_of(written) == values_of(table)
    assert len(csv.read_csv(tmp_path / "out.csv")) == len(csv.read_csv(tmp_path / "out.csv.gz")) == len(table)
    assert {p.name for p in tmp_path.iterdir()} - {"left.parquet", "right.parquet"} == {"out.parquet", "out.csv", "out.csv.gz"}


@pytest.mark.mpi
@pytest.mark.drawn
def test_a_file_from_ranks(tmp_path: Path) -> None:
    left, right = inputs(tmp_path, files=True, ordered=True)
    found = swjoin.join(left, right, **OPTIONS, ranks=3, out=tmp_path / "out.parquet")
    assert (found.count, found.digest) == EXPECTED
    assert swjoin.proof(tmp_path / "out.parquet") == found
    assert values_of(pq.read_table(tmp_path / "out.parquet")) == VALUES


def test_paths_are_joined_while_they_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files in time order or not are never held as tables: they are sorted where no bound says which rows are late."""
    whole = swjoin.count(plain(LEFT), reverse(plain(RIGHT)), **OPTIONS)
    shuffled = whole.count, whole.digest
    left, right = inputs(tmp_path, files=True, ordered=True)
    monkeypatch.setattr("swjoin.api.tables.open_sides", None)
    assert swjoin.join(left, right, **OPTIONS, out=tmp_path / "o.parquet").count == EXPECTED[0]
    assert swjoin.join(left, right, **OPTIONS, late="drop", max_out_of_order="1s", out=tmp_path / "o.csv").count == EXPECTED[0]
    left, right = inputs(tmp_path, files=True, ordered=False)
    for late in ("error", "drop"):
        again = swjoin.join(left, right, **OPTIONS, late=late, out=tmp_path / f"{late}.parquet")
        assert (again.count, again.digest) == shuffled
    assert not list(tmp_path.glob("*.incomplete"))
    with pytest.raises(swjoin.UserError, match=r"right.parquet, row \d+ .*behind an earlier row.*max_out_of_order="):
        swjoin.join(left, right, **OPTIONS, max_out_of_order="1s", out=tmp_path / "o.csv")


def test_what_is_there_is_protected(tmp_path: Path) -> None:
    left, right = inputs(tmp_path, files=True, ordered=True)
    for of in ((left, right), (left, plain(RIGHT))):
        with pytest.raises(swjoin.UserError, match=r"out .*left.parquet: is an input \(.*\), which would be overwritten"):
            swjoin.join(*of, **OPTIONS, out=left)
    (tmp_path / "folder.csv").mkdir()
    before = sorted(tmp_path.iterdir())
    listed = plain(LEFT).append_column("z", pa.array([[1]] * len(LEFT)))
    wrong: list[tuple[Any, dict[str, Any], str]] = [
        (left, {"out": "x.txt"}, r"out: x.txt: end it in .parquet, .csv or .csv.gz"),
        (left, {"out": 5}, "out: int is no path; name a file that ends in"),
        (left, {"out": ""}, "out: the path is empty"),
        (left, {"out": tmp_path / "no" / "x.csv"}, "out .*x.csv: directory .* does not exist"),
        (left, {"out": tmp_path / "folder.csv"}, "out .*folder.csv: is a directory; name a file"),
        (left, {"out": "x.csv", "returns": "pandas"}, "returns: 'pandas' and out are given; the rows go into the file"),
        (left, {"out": "x.csv", "late": "side"}, "late: 'side' needs a place for late rows"),
        (listed, {"out": tmp_path / "x.csv"}, r"out: .*list<item: int64>; leave the column out with columns"),
        (left, {"returns": "reader", "ranks": 3}, "ranks: a reader joins in the thread that reads it; leave ranks out"),
        (left, {"returns": "reader", "threads": 3}, "threads: a reader joins in the thread that reads it"),
    ]
    for value, options, text in wrong:
        with pytest.raises(swjoin.UserError, match=text):
            swjoin.join(value, right, **OPTIONS, **options)
    assert sorted(tmp_path.iterdir()) == before


def test_an_interrupted_join_leaves_no_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The earlier file stays; what has been written has another name."""
    target = tmp_path / "out.parquet"
    target.write_bytes(b"earlier")

    def write(self: Any, table: pa.Table, digest: int) -> None:
        original(self, table, digest)
        raise KeyboardInterrupt

    original = sink._OpenFile.write
    monkeypatch.setattr(sink._OpenFile, "write", write)
    monkeypatch.setattr(sink, "GROUP_ROWS", 50)
    monkeypatch.setattr("swjoin.api.materialize.BLOCK_PAIRS", 60)
    left, right = plain(rows_of(5, 300)), plain(rows_of(6, 300))
    with pytest.raises(KeyboardInterrupt):
        swjoin.join(left, right, **OPTIONS, threads=1, out=target)
    assert target.read_bytes() == b"earlier"
    assert {path.name for path in tmp_path.iterdir()} == {"out.parquet", "out.parquet.incomplete"}


# ---------------------------------------------------------------- readers


@pytest.mark.parametrize("ordered", [True, False])
@pytest.mark.parametrize("files", [True, False])
def test_a_reader_has_the_rows_and_the_proof_of_the_table(tmp_path: Path, files: bool, ordered: bool) -> None:
    left, right = inputs(tmp_path, files=files, ordered=ordered)
    table = swjoin.join(left, right, **OPTIONS, ids=True)
    reader = swjoin.join(left, right, **OPTIONS, ids=True, returns="reader")
    with pytest.raises(swjoin.UserError, match=r"proof: this reader .* has not been read to its end; read it first"):
        swjoin.proof(reader)
    assert isinstance(reader, pa.RecordBatchReader)
    assert values_of(reader.read_all()) == values_of(table)
    assert (swjoin.proof(reader), swjoin.proof(reader).ledger) == (swjoin.proof(table), swjoin.proof(table).ledger)
    reader = swjoin.join(left, right, **OPTIONS, returns="reader")
    assert duckdb.sql("select count(*) from reader").fetchall() == [(EXPECTED[0],)]
    assert swjoin.proof(reader).count == EXPECTED[0]
    assert len(pl.DataFrame(swjoin.join(left, right, **OPTIONS, returns="reader"))) == EXPECTED[0]


def test_errors_and_warnings_of_readers() -> None:
    with pytest.raises(swjoin.UserError, match="left table: key column usr is missing; did you mean user"):
        swjoin.join(plain(LEFT), plain(RIGHT), **{**OPTIONS, "on": "usr"}, returns="reader")
    late = swjoin.join(reverse(plain(LEFT)), plain(RIGHT), **OPTIONS, max_out_of_order="0s", returns="reader")
    with pytest.raises(swjoin.UserError, match=r"left, row id \d+: its time is \w+ behind .*declare max_out_of_order="):
        late.read_all()
    nothing = swjoin.join(plain([("a", 0, "x", 1)]), plain([("b", 0, "x", 1)]), **OPTIONS, returns="reader")
    with pytest.warns(swjoin.ImplausibleWarning, match="nothing matched"):
        assert nothing.read_all().num_rows == 0
    assert swjoin.proof(nothing).warnings


_LARGE = """
import resource, sys
import duckdb, numpy as np, pyarrow as pa, pyarrow.dataset as ds, pyarrow.parquet as pq
import swjoin

def side(name, rows):
    return pa.table({"k": np.zeros(rows, np.int64), "t": np.arange(rows), name: np.arange(rows) * 1.5, "u": np.arange(rows)})

left, right = side("a", ROWS), side("b", ROWS)
options = dict(on="k", left_time="t", right_time="t", time_unit="us", within="1h")
small = left.slice(0, 10), right.slice(0, 10)
how = sys.argv[1]
if how.startswith("out"):
    pq.write_table(left, "l.parquet"), pq.write_table(right, "r.parquet")
    swjoin.join(*small, **options, out="small.parquet")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    sides = ("l.parquet", "r.parquet") if how == "out of files" else (left, right)
    print(swjoin.join(*sides, **options, threads=1, out="out.parquet").count)
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
    sys.exit()
if how == "join":
    make = lambda left, right: swjoin.join(left, right, **options, returns="reader")
elif how == "read":
    make = lambda left, right: swjoin.WindowJoin(**options).read(left, right)
else:
    pq.write_table(left, "l.parquet"), pq.write_table(right, "r.parquet")
    files = lambda: (ds.dataset(f"{side}.parquet").scanner().to_reader() for side in "lr")
    make = lambda left, right: swjoin.WindowJoin(**options).read(*(files() if len(left) > 10 else (left, right)))
connection = duckdb.connect(config={"threads": 1})
connection.execute("set enable_progress_bar = false")
reader = make(*small)
connection.sql("select count(*), sum(a), sum(b) from reader").fetchall()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
reader = make(left, right)
print(connection.sql("select count(*), min(a + b), max(a + b) from reader").fetchall()[0])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def growth_of(folder: Path, how: str, rows: int) -> tuple[str, int]:
    """What the program has printed, and by how many bytes its memory has grown."""
    done = subprocess.run(
        [sys.executable, "-c", _LARGE.replace("ROWS", str(rows)), how],
        capture_output=True,
        text=True,
        timeout=PROCESS_S,
        check=False,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert done.returncode == 0, done.stderr
    answer, kilobytes = done.stdout.splitlines()
    return answer, int(kilobytes) << 10


@pytest.mark.parametrize("how", [*(pytest.param(how, marks=pytest.mark.long) for how in ("join", "read")), "files"])
def test_duckdb_pulls_more_than_fits_in_bounded_memory(tmp_path: Path, how: str) -> None:
    """20 million pairs, 1 GB."""
    answer, grown_bytes = growth_of(tmp_path, how, 4500)
    assert answer == "(20250000, 0.0, 13497.0)"
    assert grown_bytes < 150 << 20


@pytest.mark.parametrize("how", [pytest.param("out", marks=pytest.mark.drawn), "out of files"])
def test_a_file_is_written_in_bounded_memory(tmp_path: Path, how: str) -> None:
    """16 million pairs, 770 MB."""
    answer, grown_bytes = growth_of(tmp_path, how, 4000)
    (tmp_path / "out.parquet").unlink()
    assert answer == "16000000"
    assert grown_bytes < 200 << 20


def test_a_dataset_is_read_batch_by_batch(tmp_path: Path) -> None:
    """Files of any kind that pyarrow reads, into `WindowJoin.read`."""
    left, right = inputs(tmp_path, files=True, ordered=True)
    join = swjoin.WindowJoin(**OPTIONS)
    found = join.read(*(ds.dataset(path).scanner().to_reader() for path in (left, right))).read_all()
    assert values_of(found) == VALUES
    assert (join.count, join.digest) == EXPECTED
