"""Memory is bounded by configuration, not by the input: 20 M + 20 M tuples from files stay under 1.5 GiB."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tests.conftest import ROOT
from tests.support.limits import LONG_S, PROCESS_S

pytestmark = pytest.mark.quiet

ROWS, CHUNK = 20_000_000, 1_000_000
SCHEMA = pa.schema([("ts", pa.int64()), ("key", pa.int64()), ("value", pa.float64())])


@pytest.mark.timeout(LONG_S)
def test_twenty_million_a_side(tmp_path: Path) -> None:
    for side in range(2):
        random = np.random.default_rng(side)
        with pq.ParquetWriter(tmp_path / f"{side}.parquet", SCHEMA, compression="lz4") as writer:
            for start in range(0, ROWS, CHUNK):
                ts = np.sort(random.integers(start * 10, (start + CHUNK) * 10, CHUNK))
                columns = [ts, random.integers(0, 10**6, CHUNK), random.random(CHUNK)]
                writer.write_table(pa.table(columns, schema=SCHEMA))
    argv = [tmp_path / "0.parquet", tmp_path / "1.parquet", "--on", "key", "--left-time", "ts", "--right-time", "ts"]
    argv += ["--time-unit", "us", "--within", "1s", "-o", tmp_path / "out.parquet", "--report", tmp_path / "report.json"]
    command = [sys.executable, "-m", "swjoin", "join", *map(str, argv)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    report = json.loads((tmp_path / "report.json").read_text())
    assert [report["input"][side]["tuples"] for side in ("left", "right")] == [ROWS, ROWS]
    # A left tuple meets the right tuples of 2 s: 200,000 of a million keys, 0.2 on average (less at both ends).
    assert report["results"]["count"] == pytest.approx(0.2 * ROWS, rel=0.01)
    assert report["peak_rss_bytes"]["0"] < 1.5 * 2**30
