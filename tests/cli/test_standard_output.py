"""`swjoin join -o -`: the rows, and nothing else, on standard output."""

from __future__ import annotations

import io
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.csv as csv
import pyarrow.parquet as pq
import pytest

import swjoin as sj
from tests.support.limits import PROCESS_S

ROWS = 3_000
TIMES = {"on": "k", "left_time": "t", "right_time": "t", "within": "30s"}
OPTIONS = ["--on", "k", "--left-time", "t", "--right-time", "t", "--within", "30s"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    paths = tmp_path / "left.parquet", tmp_path / "right.parquet"
    for path, name in zip(paths, ("a", "b"), strict=True):
        at = pa.array([i * 1_000_000 for i in range(ROWS)], pa.timestamp("us"))
        pq.write_table(pa.table({"k": [i % 5 for i in range(ROWS)], "t": at, name: [f"{name}{i}" for i in range(ROWS)]}), path)
    return paths


def command(*words: object) -> list[str]:
    return [sys.executable, "-m", "swjoin", "join", *map(str, words)]


def joined(*words: object) -> tuple[bytes, str]:
    done = subprocess.run(command(*words), capture_output=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout, done.stderr.decode()


def sorted_rows(table: pa.Table) -> list[tuple[object, ...]]:
    return sorted(zip(*(column.to_pylist() for column in table.columns), strict=True))


@pytest.mark.parametrize("ranks", [(), pytest.param(("-n", 3), marks=[pytest.mark.mpi, pytest.mark.long])])
def test_rows_alone_go_to_standard_output(ranks: tuple[object, ...], files: tuple[Path, Path]) -> None:
    answer = sj.join(*files, **TIMES)  # type: ignore[arg-type]
    out, err = joined(*files, *OPTIONS, "-o", "-", *ranks)
    assert sorted_rows(csv.read_csv(io.BytesIO(out)).cast(answer.schema)) == sorted_rows(answer)
    assert ranks or (sj.proof(answer).digest in err and re.search("results +standard output", err))
    out, err = joined(*files, *OPTIONS, "-o", "-", "--format", "arrow", *ranks)
    assert sorted_rows(pa.ipc.open_stream(out).read_all()) == sorted_rows(answer)


def test_a_reader_that_leaves_is_no_error(files: tuple[Path, Path]) -> None:
    line = f"{shlex.join(command(*files, *OPTIONS, '-o', '-'))} | head -n 1"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.stdout == '"k","t","a","right_t","b"\n' or done.stdout.startswith('"k",')
    assert "Error" not in done.stderr
    assert "Traceback" not in done.stderr


def test_a_full_disk_is_one_line(files: tuple[Path, Path]) -> None:
    line = f"{shlex.join(command(*files, *OPTIONS, '-o', '-'))} > /dev/full"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "swjoin: standard output: cannot be written (No space left on device)"


def test_a_join_that_fails_writes_no_row(files: tuple[Path, Path], tmp_path: Path) -> None:
    table = pq.read_table(files[0])
    pq.write_table(pa.concat_tables([table, table.slice(0, 1)]), tmp_path / "late.parquet")
    done = subprocess.run(
        command(tmp_path / "late.parquet", files[1], *OPTIONS, "-o", "-"), capture_output=True, timeout=PROCESS_S, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-o", "out.csv", "--format", "csv"], "swjoin: --format csv: is for -o -, standard output"),
        (["-o", "-", "--late", "side"], "swjoin: --late side with -o -: late rows need a place"),
    ],
)
def test_what_cannot_be_is_refused(words: list[str], said: str, files: tuple[Path, Path]) -> None:
    done = subprocess.run(command(*files, *OPTIONS, *words), capture_output=True, text=True, timeout=PROCESS_S, check=False)
    assert done.returncode == 2
    assert done.stderr.startswith(said)
