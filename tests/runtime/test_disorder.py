"""Advice for files out of order: the bound that it names is enough, at the first try."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import swjoin as sj

ON = ["--on", "k", "--left-time", "t", "--right-time", "t", "--within", "1min", "-o", "count"]


def write(path: Path, times_us: Any) -> Path:
    times = pa.array(times_us, pa.timestamp("us"))
    pq.write_table(pa.table({"k": np.arange(len(times)) % 7, "t": times}), path, row_group_size=500)
    return path


def test_a_shuffled_file_needs_one_try(swjoin: Any, tmp_path: Path) -> None:
    """The first late row lies 5 s behind, others hours."""
    times = np.arange(3_000) * 10_000_000
    some = times.copy()
    some[[100, 101]] = some[[101, 100]] - [0, 5_000_000]
    some[2_000], some[2_900] = some[2_900], some[2_000]
    left, right = write(tmp_path / "left.parquet", some), write(tmp_path / "right.parquet", times)
    line = swjoin("join", left, right, *ON).err[-1]
    assert "left.parquet, row 101 (counting from 0): its time is 15s behind an earlier row, more than the declared 0s; " in line
    assert "of all rows: left up to 2h30min behind, right in order; declare --max-out-of-order 2h30min, sort" in line
    done = swjoin("join", left, right, *ON, "--max-out-of-order", "2h30min")
    assert done.code == 0, done.err
    tables = [pq.read_table(path) for path in (left, right)]
    assert sj.count(*tables, on="k", left_time="t", right_time="t", within="1min").digest in done.out
    with pytest.raises(sj.UserError, match=r"right up to 2h30min behind; declare time.max_out_of_order: 2h30min"):
        sj.run({"within": "1min", "on": "k", "left_time": "t", "right_time": "t", "left": {"path": str(right)},
                "right": {"path": str(left)}, "sink": {"kind": "count"}})  # fmt: skip


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    left=st.lists(st.none() | st.integers(0, 20_000_000_000), min_size=1, max_size=30),
    right=st.lists(st.integers(0, 5_000_000), min_size=1, max_size=30),
)
def test_the_advice_is_always_enough(left: list[int | None], right: list[int], swjoin: Any, tmp_path: Path) -> None:
    left = [value for value in left if value is not None] or [0]
    paths = write(tmp_path / "left.parquet", left), write(tmp_path / "right.parquet", right)
    done = swjoin("join", *paths, *ON)
    if done.code == 0:
        assert left == sorted(left)
        assert right == sorted(right)
        return
    line = done.err[-1]
    found = re.search(r"declare --max-out-of-order (\S+), sort", line)
    assert found is not None, line
    assert swjoin("join", *paths, *ON, "--max-out-of-order", found[1]).code == 0


def test_a_damaged_rest_leaves_the_error_as_it_was(swjoin: Any, tmp_path: Path) -> None:
    (tmp_path / "left").mkdir()
    write(tmp_path / "left" / "a.parquet", [5_000_000, 1_000_000])
    (tmp_path / "left" / "b.parquet").write_bytes(b"PAR1")
    right = write(tmp_path / "right.parquet", [0])
    line = swjoin("join", tmp_path / "left", right, *ON).err[-1]
    assert "its time is 4s behind an earlier row, more than the declared 0s; sort the input, declare --max-" in line


@pytest.mark.long
@pytest.mark.mpi
def test_the_same_on_ranks(swjoin: Any, tmp_path: Path) -> None:
    paths = write(tmp_path / "left.parquet", [9_000_000, 8_000_000, 1_000_000]), write(tmp_path / "right.parquet", [0])
    done = swjoin("join", *paths, *ON, "-n", 3)
    assert done.code == 2
    assert any("left up to 8s behind, right in order; declare --max-out-of-order 8s, sort" in line for line in done.err), (
        done.err
    )
