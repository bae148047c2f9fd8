"""CSV files as people write them: line breaks in fields, rows of any length, and which row a line belongs to."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

import swjoin as sj
from swjoin.connectors.files import csv_format
from swjoin.connectors.files.formats import describe_row, read_batches, read_schema

ON = ["--on", "k", "--left-time", "t", "--right-time", "t", "--time-unit", "s"]
BLOCK_BYTES = 1 << 16


@pytest.fixture
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(csv_format, "_BLOCK_BYTES", BLOCK_BYTES)


def commented(path: Path, padding: int, rows: int) -> int:
    """Rows of which the second line of the comment looks like a row of the key 7. Returns their bytes."""
    lines = [f'{i},{i % 5},"first line of a longer comment here\n{i},7,second line of the comment"\n' for i in range(rows)]
    text = f"t,k,comment{'x' * padding}\n" + "".join(lines)
    path.write_text(text)
    return len(text)


@pytest.mark.parametrize("padding", range(0, 84, 7))
@pytest.mark.usefixtures("small_blocks")
def test_line_breaks_in_fields_where_a_block_ends(padding: int, tmp_path: Path) -> None:
    left, right = tmp_path / "left.csv", tmp_path / "right.csv"
    assert commented(left, padding, 2_000) > 2 * BLOCK_BYTES
    right.write_text("t,k\n" + "".join(f"{i},7\n" for i in range(2_000)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", sj.ImplausibleWarning)
        proof = sj.count(left, right, on="k", left_time="t", right_time="t", time_unit="s", within="1s")
    assert (proof.count, proof.ledger.left.tuples) == (0, 2_000)
    table = pa.Table.from_batches(read_batches(left, read_schema(left), read_schema(left).names, 65_536))
    assert table.column("t").to_pylist() == list(range(2_000))
    assert set(table.column("k").to_pylist()) == set(range(5))


def test_line_breaks_in_fields_of_a_large_file(swjoin: Any, tmp_path: Path) -> None:
    left, right = tmp_path / "left.csv", tmp_path / "right.csv"
    assert commented(left, 15, 75_000) > 4 << 20
    right.write_text("t,k\n" + "".join(f"{i},7\n" for i in range(75_000)))
    done = swjoin("join", left, right, *ON, "--within", "1s", "-o", "count")
    assert done.code == 0
    found = {line[:17].strip(): line[17:].strip() for line in done.out.splitlines()}
    assert found["pairs"] == "0"
    assert "nothing matched: no key of the left side is on the right side" in done.err[0]


@pytest.mark.usefixtures("small_blocks")
def test_the_line_of_a_row_after_line_breaks_in_fields(swjoin: Any, tmp_path: Path) -> None:
    path = tmp_path / "late.csv"
    commented(path, 0, 2_000)
    with path.open("a") as file:
        file.write("5,1,late\n")
    done = swjoin("join", path, path, *ON, "--within", "1s", "-o", "count")
    assert done.code == 2
    assert f"{path}, line 4002" in done.err[0], done.err


@pytest.mark.usefixtures("small_blocks")
def test_a_quote_that_is_never_closed_is_told_with_its_line(swjoin: Any, tmp_path: Path) -> None:
    path = tmp_path / "open.csv"
    bytes_before = commented(path, 0, 1_500)
    assert bytes_before > BLOCK_BYTES
    with path.open("a") as file:
        file.write('1500,1,"no end\n' + "".join(f"{i},1,words of a comment\n" for i in range(1_501, 20_000)))
    done = swjoin("join", path, path, *ON, "--within", "1s", "-o", "count")
    assert done.code == 2
    assert done.err == [
        f"swjoin: {path}, line 3002: the row is longer than 0 MiB; is a closing quote missing? add it, or shorten the row"
    ]
    path.write_text('t,k,comment\n1,1,"' + "x" * (1 << 18) + '"\n')
    assert describe_row(path, 0) == f"{path}, line 2", "also where its field is too long for the csv module"
    done = swjoin("join", path, path, *ON, "--within", "1s", "-o", "count")
    assert (done.code, len(done.err)) == (2, 1)
    assert f"{path}, line 2: the row is longer than" in done.err[0]
