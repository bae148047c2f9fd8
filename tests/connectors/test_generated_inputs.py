"""Generated inputs of queries: the same rows however they are read, in configurations, and verified."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
import yaml

from swjoin.config.connectors import StreamConfig
from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.input import GENERATED, GeneratedInput, whole_table
from swjoin.core.batch import SourceBatch
from swjoin.duckdb.verify import verify

CALLS = StreamConfig(key=(), time="ts", generate="calls")
WORKLOAD = WorkloadConfig(rate_per_s=3000, duration_us=2_300_000, domain=500, bias=0.6)
NAMES = [name for name, _ in GENERATED["calls"]]


def _source(*, seed: int = 3) -> GeneratedInput:
    return GeneratedInput(CALLS, WORKLOAD, seed, "cdr", NAMES)


def _rows(source: GeneratedInput) -> list[SourceBatch]:
    found = []
    while (batch := source.read()) is not None:
        found.append(batch)
    return found


def _table(batches: list[SourceBatch]) -> pa.Table:
    return pa.Table.from_batches([batch.columns.batch for batch in batches if batch.columns is not None])


def test_calls() -> None:
    table = whole_table(CALLS, WORKLOAD, 3)
    assert abs(len(table) - 6900) < 500
    assert {field.name: str(field.type) for field in table.schema} == dict(GENERATED["calls"])
    assert table == _table(_rows(_source()))
    assert table != whole_table(CALLS, WORKLOAD, 4)
    assert pc.all(pc.less(table["calling"], 500)).as_py()
    assert pc.all(pc.less(table["called"], 500)).as_py()
    lasted = pc.subtract(table["ts"], table["started"]).cast(pa.int64())
    assert pc.all(pc.equal(lasted, pc.multiply(table["duration"], 1_000_000))).as_py()
    assert 110 < pc.mean(table["duration"]).as_py() < 130
    assert set(table["district"].to_pylist()) == set(range(100))
    assert 0 < pc.min(table["x"]).as_py() < 0.01 < 0.99 < pc.max(table["y"]).as_py() < 1
    assert np.all(np.diff(table["ts"].cast(pa.int64()).to_numpy()) >= 0)


def test_splits_have_the_same_rows() -> None:
    whole, source = _table(_rows(_source())), _source()
    parts = []
    for split in source.splits(150_000) or []:
        source.open_split(split)
        parts += _rows(source)
    assert len(parts) > 10
    assert _table(parts) == whole
    assert np.array_equal(np.concatenate([part.id for part in parts]), np.arange(len(whole), dtype=np.uint64))


SQL = """
SELECT district, window_end, count(*) AS calls, avg(duration) AS mean_s
FROM TUMBLE(cdr, ts, INTERVAL '1' SECOND) WHERE x < 0.9 GROUP BY district, window_end"""


def _config(folder: Path, **sections: Any) -> Path:
    plain = {"queries": [{"sql": SQL}], "inputs": {"cdr": {"generate": "calls"}}, "seed": 5}
    plain["workload"] = {"rate": 20_000, "duration": "2s", "domain": 1000}
    (folder / "q.yaml").write_text(yaml.safe_dump(plain | sections))
    return folder / "q.yaml"


@pytest.mark.parametrize("gateways", [1, 3])
def test_a_query_over_calls_is_verified(gateways: int, tmp_path: Path, swjoin: Any) -> None:
    done = swjoin("run", _config(tmp_path), "--out", tmp_path / "run", "--gateways", gateways)
    assert done.code == 0, done.err
    assert "rows              200" in done.out
    assert verify(tmp_path / "run").equal
    said = " ".join(swjoin("explain", tmp_path / "q.yaml").out.split())
    assert "cdr: made by the master: 20,000 calls/s for 2 s, of 1,000 users; seed 5. Time ts" in said
    assert "section inputs" not in said.lower()
    assert swjoin("plan", tmp_path / "run", "-n", 4).code == 0
    assert swjoin("plan", tmp_path / "q.yaml", "-n", 4).err == [
        f"swjoin: {tmp_path / 'q.yaml'}: what a query costs is known from a run of it; run it, and give the run's directory; "
        "simulate also takes it as --profile"
    ]


@pytest.mark.parametrize(
    ("sections", "words"),
    [
        ({"inputs": {"cdr": {"generate": "call"}}}, "inputs.cdr.generate: 'call' is not known; did you mean calls?"),
        ({"inputs": {"cdr": {"generate": "calls", "time": "started"}}}, "inputs.cdr: stream: generated rows have the time ts"),
        ({"inputs": {"cdr": {"generate": "calls", "assume_timezone": "Europe/Berlin"}}}, "generated rows have the time ts"),
        ({"inputs": {"cdr": {"generate": "calls", "watch": "."}}}, "generate and watch given; a stream comes from one place"),
        ({"queries": None, "inputs": None, "join": {"within": "1s"}, "left": {"generate": "left"}}, "generate is for queries"),
    ],
)
def test_what_is_refused(sections: dict[str, Any], words: str, tmp_path: Path, swjoin: Any) -> None:
    path = _config(tmp_path, **sections)
    plain = {key: value for key, value in yaml.safe_load(path.read_text()).items() if value is not None}
    path.write_text(yaml.safe_dump(plain))
    done = swjoin("run", path, "--out", tmp_path / "run")
    assert (done.code, len(done.err)) == (2, 1)
    assert words in done.err[0]


def test_a_workload_that_nothing_is_made_of(tmp_path: Path, swjoin: Any) -> None:
    (tmp_path / "cdr.csv").write_text("ts,district,duration,x\n2026-01-01 00:00:00,1,2,0.5\n")
    path = _config(tmp_path, inputs={"cdr": {"path": str(tmp_path / "cdr.csv"), "time": "ts"}})
    done = swjoin("run", path, "--out", tmp_path / "run")
    assert done.code == 2
    assert "workload: no input is generated; leave it out" in done.err[0]
