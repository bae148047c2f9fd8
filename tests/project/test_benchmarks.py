"""The benchmarks' own arithmetic: their right answers, their deliveries, the C++ program, the verdict on a wrong peer."""

from __future__ import annotations

import importlib
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.runtime.in_process import run_local
from tests.support.limits import PROCESS_S
from tests.tools.oracle import brute_force

pytestmark = pytest.mark.quiet

ROOT = Path(__file__).parents[2]
WINDOW_US = 40_000


@pytest.fixture
def bench(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Import a benchmark module by name."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    yield importlib.import_module
    for name in ("workloads", "join_module", "growth", "run", "whole", "links", "kernels", "sweeps", "adaptation", "safety"):
        sys.modules.pop(name, None)


def streams(bench: Any) -> list[Any]:
    workloads = bench("workloads")
    random = np.random.default_rng(11)
    return [workloads.from_columns(random.integers(0, 50, 3000), np.sort(random.integers(0, 10**6, 3000))) for _ in range(2)]


def answer(left: Any, right: Any) -> tuple[int, str]:
    i, j = brute_force(left, right, Bounds(-WINDOW_US, WINDOW_US))
    return len(i), format_digest(pair_digest(left.id[i], right.id[j]))


def test_expected_answers_equal_brute_force(bench: Any) -> None:
    left, right = streams(bench)
    assert bench("workloads").expected(left, right, WINDOW_US) == answer(left, right)


def test_the_module_benchmark_joins_what_it_delivers(bench: Any) -> None:
    left, right = streams(bench)
    work = bench("workloads").deliveries(left, right, 700, 5)
    assert sum(len(d.left) for d in work) == len(left)
    assert [d.last for d in work] == [False] * (len(work) - 1) + [True]
    module = bench("join_module")
    measured = module.run(work, WINDOW_US, 4096)
    assert (measured.count, measured.digest) == answer(left, right)
    assert measured.tuples == len(left) + len(right)
    settled = module.run(work, WINDOW_US, 4096, 500_000)
    assert 0 < settled.tuples < measured.tuples
    with pytest.raises(SystemExit, match="wrong answer"):
        module.checked(measured, (measured.count + 1, measured.digest), "x")


@pytest.mark.skipif(shutil.which("g++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("flags", [["-march=native"], []], ids=["this processor", "portable"])
def test_the_reference_program_gives_the_right_pairs(bench: Any, tmp_path: Path, flags: list[str]) -> None:
    left, right = streams(bench)
    program = tmp_path / "reference"
    source = ROOT / "benchmarks" / "peers" / "reference.cpp"
    subprocess.run(["g++", "-std=c++20", "-O1", *flags, str(source), "-o", str(program)], check=True, timeout=PROCESS_S)
    raw = [tmp_path / "0.bin", tmp_path / "1.bin"]
    for path, batch in zip(raw, (left, right), strict=True):
        np.stack([batch.ts, batch.key], 1).tofile(path)
    for mode in ("plain", "batched"):
        rate = bench("run")._program_rate(program, mode, raw, answer(left, right), WINDOW_US)
        assert rate > 0


def test_a_wrong_peer_is_shown_as_wrong(monkeypatch: pytest.MonkeyPatch, bench: Any) -> None:
    specification = importlib.util.spec_from_file_location("peers_run", ROOT / "benchmarks" / "peers" / "run.py")
    assert specification is not None
    assert specification.loader is not None
    peers = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(peers)

    def report(system: str, count: int, expected: int | None = None) -> dict[str, Any]:
        common = {"version": "1", "configuration": "c", "seconds": [2.0, 1.0, 4.0], "tuples": 1000}
        return {"system": system, "count": count, "expected": expected, **common}

    failed = {"system": "d", "version": "", "failed": "no wheel"}
    lines = peers.table([report("swjoin", 7), report("a", 7), report("b", 6), report("c", 5, 5), failed], 7)
    assert [("wrong" in line, "right" in line, "failed: no wheel" in line) for line in lines[2:]] == [
        (False, True, False),
        (False, True, False),
        (True, False, False),
        (False, True, False),
        (False, False, True),
    ]
    assert "| 0 | 0 to 1 | right | 1.0 x |" in lines[3]  # 500 tuples/s, thousands are shown


def test_the_pause_of_moves_is_read_from_a_run(bench: Any, tmp_path: Path) -> None:
    """A short run in one process with a move in every reorganization epoch: every move is found, with its bytes and times."""
    adaptation = bench("adaptation")
    plain = {
        **adaptation.PAUSE,
        "join": {"within": "500ms"},
        "workload": {"rate": 5_000, "duration": "4s", "bias": 0.7, "domain": 10_000, "payload": "48B"},
        "cluster": {"distribution_epoch": "50ms", "partition_count": 8},
        "module": {"theta": "32KB", "window": "64MB"},
        "reorganization": {"policy": "random", "epoch": "500ms", "random_moves": 1},
    }
    job = Job(config_from_plain(plain), tmp_path / "run" / "results", True, tmp_path / "run", None, "test")
    report = run_local(job, False, 3)
    found = adaptation.pause_of(tmp_path / "run", 700_000, 3_900_000, settle_us=50_000)
    assert 1 <= found["moves"] <= report["moves"]  # a busy machine skips slots
    assert 0.01 < found["state_mb"] < 1  # 5,000 tuples of 72 bytes in 8 partition-groups
    assert 0 < found["transfer_ms"][0] <= found["held_ms"][1] < 3_000
    assert found["quiet_p99_ms"] > 0
    assert "MB |" in adaptation.pause_table([found])
    assert adaptation.mean_delay_ms(tmp_path / "run", 0, 4) > 0


@pytest.mark.mpi
def test_a_run_with_the_surviving_channel_and_no_checkpoints(bench: Any, tmp_path: Path) -> None:
    """What `bench safety` starts by itself: right, checked, and with fault tolerance."""
    safety = bench("safety")
    answer = safety.write_streams(tmp_path / "streams", 1)
    assert safety.write_streams(tmp_path / "streams", 1) == answer  # by what is kept of the first time
    plain = safety.cost_config(tmp_path / "streams", {})
    report = safety.run_once(plain, 3, answer, tmp_path, surviving=True)
    assert report["checkpoints"] is None
    assert sum(report["input"][side]["tuples"] for side in ("left", "right")) > 190_000
    with pytest.raises(SystemExit, match="wrong answer"):
        safety.checked(report, (answer[0] + 1, answer[1]))


def test_a_recovery_is_read_from_a_run(bench: Any, tmp_path: Path) -> None:
    safety = bench("safety")
    (tmp_path / "metrics").mkdir()
    pq.write_table(
        pa.table({"kind": ["held", "recovered"], "time_us": [1, 9_000_000]}), tmp_path / "metrics" / "events.parquet"
    )
    end, delay = [8_000_000, 9_200_000, 10_000_000, 11_000_000], [900_000, 900_000, 500_000, 100_000]
    table = pa.table({"epoch_end_us": end, "delay_mean_us": delay, "pairs": [1] * 4})
    pq.write_table(table, tmp_path / "metrics" / "slaves.parquet")
    report = {
        "checkpoints": {"recoveries": [{"s": 0.5, "tuples": 7}]},
        "config": {
            "cluster": {"distribution_epoch_us": 200_000},
            "queries": [{"upper_us": 5_000_000}],
            "workload": {"rate_per_s": 1000.0},
        },
        "delay_s": {"max": 2.0},
    }
    found = safety.recovery_of(report, tmp_path)
    assert found == {"s": 0.5, "tuples": 7, "calm_s": 1.5, "delay_s": 2.0, "window_tuples": 10_000}
