"""The external merge sort: every row once, in order, stable, in few files and little memory; a full disk is one line."""

from __future__ import annotations

import errno
import gc
import os
import tempfile
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.connectors.files import time_order
from swjoin.connectors.files.time_order import TimeOrder
from swjoin.core.errors import NotWritten


def rows_of(times: list[int | None], size: int, run_bytes: int) -> tuple[list[str], list[int], int]:
    """Names and positions as they come out, and the number of files."""
    order = TimeOrder(run_bytes)
    names = pa.array([f"row {i}" for i in range(len(times))], pa.string())
    for start in range(0, len(times), size):
        part = times[start : start + size]
        valid = np.array([t is not None for t in part]) if None in part else None
        order.add(pa.record_batch({"name": names[start : start + size]}), np.array([t or 0 for t in part], np.int64), valid)
    found = list(order.rows())
    files = order.runs
    return (
        [name for batch, _ in found for name in batch.column(0).to_pylist()],
        [position for _, positions in found for position in positions.tolist()],
        files,
    )


@settings(deadline=None, max_examples=200)
@given(
    times=st.lists(st.none() | st.integers(-3, 3) | st.integers(-(10**15), 10**15), max_size=300),
    size=st.sampled_from([1, 7, 100]),
    run_bytes=st.sampled_from([1, 500, 3000, 10**8]),
    most=st.sampled_from([2, 3, 64]),
)
def test_all_rows_in_order_of_time(times: list[int | None], size: int, run_bytes: int, most: int) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(time_order, "_MOST_RUNS", most)
        names, positions, _ = rows_of(times, size, run_bytes)
    wanted = sorted(range(len(times)), key=lambda i: (times[i] is None, times[i] or 0))
    assert positions == wanted
    assert names == [f"row {i}" for i in wanted]


def test_files(monkeypatch: pytest.MonkeyPatch) -> None:
    """None for what fits; one for rows in order; no more than a generation's for any number of runs."""
    assert rows_of(list(range(1000))[::-1], 10, 10**8)[2] == 0
    assert rows_of(list(range(1000)), 10, 500)[2] == 1
    monkeypatch.setattr(time_order, "_MOST_RUNS", 4)
    backwards = list(range(2000))[::-1]
    names, positions, files = rows_of(backwards, 10, 200)
    assert positions == backwards
    assert len(names) == 2000
    assert files <= 4 * 6


def test_a_full_disk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))

    class Full:
        def __init__(self) -> None:
            self.file = open(os.devnull, "wb")  # noqa: SIM115

        def write(self, data: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

        def __getattr__(self, name: str) -> Any:
            return getattr(self.file, name)

    monkeypatch.setattr(time_order.tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(NotWritten, match=rf"^{tmp_path}: rows cannot be sorted there \(No space left on device\); .* TMPDIR"):
        rows_of([3, 2, 1], 1, 1)


def test_no_folder_for_temporary_files(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(NotWritten, match="gone: rows cannot be sorted there"):
        rows_of([3, 2, 1], 1, 1)


def test_memory_is_bounded_by_the_size_of_a_run(tmp_path: Path) -> None:
    """2 million rows of 100 bytes in runs of 8 MiB, in a process of its own."""
    code = """
import resource, sys
import numpy as np, pyarrow as pa
from swjoin.connectors.files.time_order import TimeOrder
times = np.random.default_rng(1).integers(0, 1 << 40, 2_000_000)
text = pa.array(["x" * 84] * 10_000)
def used():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
warm = TimeOrder(1 << 20)
for i in range(4):
    warm.add(pa.record_batch({"text": text}), times[i * 10_000 : (i + 1) * 10_000], None)
list(warm.rows())
del warm
before = used()
order = TimeOrder(8 << 20)
for start in range(0, len(times), 10_000):
    order.add(pa.record_batch({"text": text}), times[start : start + 10_000], None)
last = count = 0
for batch, positions in order.rows():
    ts = times[positions]
    assert ts[0] >= last and (np.diff(ts) >= 0).all()
    last, count = ts[-1], count + len(positions)
assert count == len(times)
print((used() - before) >> 10)
"""
    import subprocess
    import sys

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) < 100, "MiB; all rows have 200"


def test_files_are_closed_without_a_warning() -> None:
    """Also those of a sort that nobody has finished."""
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        order = TimeOrder(100)
        for time in (5, 4, 3, 2, 1):
            order.add(pa.record_batch({"name": ["x" * 200]}), np.array([time]), None)
        assert order.runs == 5
        next(order.rows())
        del order
        gc.collect()
