"""Several gateways: the same answer for any number of them, from splits of any kind of input, across stops and deaths.

Random runs are in `tests.tools`, planted bugs in `runtime.test_planted_gateways`.
"""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import csv, feather

from swjoin.config.loader import config_from_plain
from tests.support.commands import command
from tests.support.stopped_runs import _in_pieces, _run, _stopping

ROWS = 30_000


def _plain(folder: Path, kind: str = "parquet", key: str = "key", **more: Any) -> dict[str, Any]:
    sides = {s: {"path": str(folder / f"{s}.{kind}"), "key": key, "time": "ts", "time_unit": "us"} for s in ("left", "right")}
    return {
        "join": {"within": "20ms"},
        **sides,
        "time": {"max_out_of_order": "50ms", "late": "side"},
        "sink": {"kind": "parquet"},
        **more,
    }


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Files of several kinds with the same rows: out of order, some of them late, some keys and times null."""
    folder = tmp_path_factory.mktemp("inputs")
    random = np.random.default_rng(11)
    for name in ("left", "right"):
        ts = np.sort(random.integers(0, 2_000_000, ROWS))
        ts -= (random.random(ROWS) < 0.05) * random.integers(0, 90_000, ROWS)
        keys = random.integers(0, 700, ROWS)
        null_key, null_time = random.random(ROWS) < 0.01, random.random(ROWS) < 0.002
        columns = {
            "key": pa.array(keys, mask=null_key),
            "text": pa.array([f"key {key}" for key in keys], mask=null_key),
            "ts": pa.array(ts, mask=null_time),
            name: random.random(ROWS),
        }
        table = pa.table(columns)
        pq.write_table(table, folder / f"{name}.parquet", row_group_size=2_500)
        feather.write_feather(table, folder / f"{name}.arrow", chunksize=2_500)
        csv.write_csv(table, folder / f"{name}.csv")
    return folder


def _identity(report: dict[str, Any]) -> tuple[Any, ...]:
    assert report["ledger"]["balanced"]
    names = ("input", "joined", "null_key", "late", "shed")
    return report["results"]["count"], report["results"]["digest"], *(report[name] for name in names)


@pytest.fixture(scope="module")
def expected(inputs: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, ...]:
    """What one gateway gives."""
    report = _run(config_from_plain(_plain(inputs)), tmp_path_factory.mktemp("one") / "run", 1)
    assert report["late"]["left"] > 100
    return _identity(report)


@pytest.mark.parametrize("key", ["key", "text"])
@pytest.mark.parametrize("kind", ["parquet", "arrow", "csv"])
@pytest.mark.parametrize("gateways", [2, 3])
def test_several_gateways_in_one_process(
    gateways: int, kind: str, key: str, inputs: Path, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    config = config_from_plain(_plain(inputs, kind, key)).with_gateways(gateways)
    report = _run(config, tmp_path / "run", 2)
    assert _identity(report) == expected
    read = [sum(gateway["tuples"].values()) for gateway in report["gateways"]]
    assert sum(read) == 2 * ROWS
    if kind == "csv":  # one gateway reads the whole input
        assert all(tuples in (0, ROWS, 2 * ROWS) for tuples in read)
    else:
        assert min(read) > ROWS // (2 * gateways), "gateways share alike"
    late = pq.read_table(tmp_path / "run" / "late.parquet")
    assert late.num_rows == sum(report["late"].values())
    assert len(set(zip(late["stream"].to_pylist(), late["row_id"].to_pylist(), strict=True))) == late.num_rows


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize(
    ("gateways", "ranks", "key"),
    [(2, 4, "key"), pytest.param(3, 6, "text", marks=pytest.mark.long), pytest.param(4, 3, "key", marks=pytest.mark.long)],
)
def test_several_gateways_on_ranks(
    gateways: int, ranks: int, key: str, inputs: Path, expected: tuple[Any, ...], tmp_path: Path
) -> None:
    plain = _plain(inputs, key=key, cluster={"gateways": gateways, "sinks": 2})
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    done = command("run", tmp_path / "config.yaml", "-n", ranks, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert _identity(json.loads((tmp_path / "run" / "run.json").read_text())) == expected


@pytest.mark.parametrize(
    ("gateways", "key"), [([1, 2, 3, 1], "key"), ([1, 2, 3, 1], "text"), ([1, 1, 3, 2], "text"), ([3, 1, 2, 2], "text")]
)
@pytest.mark.parametrize("kind", ["parquet", pytest.param("csv", marks=pytest.mark.long)])
def test_resumptions_take_any_numbers_of_gateways(
    kind: str,
    gateways: list[int],
    key: str,
    inputs: Path,
    expected: tuple[Any, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plain = _plain(inputs, kind, key, checkpoint={"epochs": 2}, cluster={"distribution_epoch": "20ms"})
    report = _in_pieces(config_from_plain(plain), tmp_path / "run", monkeypatch, [1, 2, 3, 2], [20, 30, 20], gateways=gateways)
    assert report["complete"]
    assert _identity(report) == expected


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize("how", ["inner", pytest.param("full", marks=pytest.mark.long)])
def test_codes_of_keys_go_on_at_several_gateways_on_ranks(
    how: str, inputs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Keys of text had codes from one gateway; on ranks every gateway and slave reads them from the checkpoint."""
    sections: dict[str, Any] = {"join": {"within": "20ms", "how": how}, "cluster": {"distribution_epoch": "20ms"}}
    whole = _run(config_from_plain(_plain(inputs, key="text", **sections)), tmp_path / "whole", 1)
    config, out = config_from_plain(_plain(inputs, key="text", checkpoint={"epochs": 2}, **sections)), tmp_path / "run"
    monkeypatch.setattr("swjoin.connectors.files.source.BATCH_ROWS", 300)  # not all is read before it is stopped
    _stopping(monkeypatch, 30)
    report = _run(config, out, 2)
    assert report["resumable"]
    assert 0 < report["input"]["left"]["tuples"] < ROWS // 2
    done = command("run", "--resume", out, "-n", 5, "--gateways", 2)
    assert done.returncode == 0, done.stderr
    report = json.loads((out / "run.json").read_text())
    assert min(sum(gateway["tuples"].values()) for gateway in report["gateways"]) > 0
    assert _identity(report) == _identity(whole)


@pytest.mark.drawn
@pytest.mark.mpi
@pytest.mark.parametrize("dies", ["gateway", pytest.param("sink", marks=pytest.mark.long)])
def test_a_rank_with_a_gateway_or_a_sink_dies(dies: str, inputs: Path, tmp_path: Path) -> None:
    """Splits are dealt out again from the checkpoint, and the sink's files go on from it."""
    plain = {
        "join": {"within": "200ms"},
        "pace": "realtime",
        "workload": {"rate": 3_000, "duration": "4s", "domain": 2_000},
        "cluster": {"gateways": 2, "sinks": 2, "distribution_epoch": "50ms"},
        "checkpoint": {"epochs": 4},
        "sink": {"kind": "parquet"},
    }
    wanted = _run(config_from_plain({**plain, "pace": "asap", "checkpoint": {}}), tmp_path / "one", 1)
    config = tmp_path / "config.yaml"
    config.write_text(json.dumps(plain))
    out = tmp_path / "run"
    from subprocess import PIPE, Popen
    from sys import executable

    arguments = [executable, "-m", "swjoin", "run", str(config), "-n", "6", "--out", str(out), "-v"]
    with Popen(arguments, stderr=PIPE, text=True) as run:
        try:
            assert run.stderr is not None
            pid = next(int(line.split("process ")[1]) for line in run.stderr if f", {dies} 1" in line or f"({dies} 1" in line)
            while not list((out / "checkpoints").glob("checkpoint-*.json")):
                assert run.poll() is None
                time.sleep(0.02)
            os.kill(pid, signal.SIGKILL)
            text = run.stderr.read()
            assert run.wait(60) == 0, text
        finally:
            run.kill()
    report = json.loads((out / "run.json").read_text())
    assert len(report["checkpoints"]["recoveries"]) == 1
    assert (report["results"]["count"], report["results"]["digest"]) == (
        wanted["results"]["count"],
        wanted["results"]["digest"],
    )
    files = pq.read_table(out / "results")
    assert files.num_rows == wanted["results"]["count"]


def test_more_gateways_than_splits_are_told(inputs: Path, expected: tuple[Any, ...], tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_text(json.dumps(_plain(inputs, cluster={"gateways": 50})))
    done = command("run", tmp_path / "config.yaml", "--threads", 1, "--out", tmp_path / "run")
    assert done.returncode == 0, done.stderr
    assert "50 gateways: the inputs have 12 splits at most, so as many are used" in done.stderr
    report = json.loads((tmp_path / "run" / "run.json").read_text())
    assert len(report["gateways"]) == 12
    assert _identity(report) == expected


@pytest.mark.parametrize(
    ("join", "text"),
    [
        ({"last": 5}, "cluster: gateways must be 1 for count windows: one gateway gives tuples their places"),
        ({"within": "1s"}, "cluster: gateways must be 1 to 1024"),
    ],
)
def test_runs_that_have_one_gateway(join: dict[str, Any], text: str, tmp_path: Path) -> None:
    gateways = 2 if "last" in join else 1025
    (tmp_path / "config.yaml").write_text(json.dumps({"join": join, "cluster": {"gateways": gateways}}))
    done = command("explain", tmp_path / "config.yaml")
    assert done.returncode == 2
    assert text in done.stderr
