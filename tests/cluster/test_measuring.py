"""What of a run is measured: history at full speed and apart, the machine's own overload, slower links, the exchange's time."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import load_config
from swjoin.config.run import NodesConfig
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.batch import TupleBatch
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from swjoin.monitor.host_load import Lateness, RankMeter
from swjoin.runtime.in_process import run_local
from swjoin.runtime.slow_node import Throttle
from tests.support.commands import command
from tests.tools.oracle import brute_force
from tests.tools.random_runs import Scenario, run_simulated

pytestmark = pytest.mark.quiet

PLAIN: dict[str, Any] = {
    "seed": 3,
    "pace": "realtime",
    "join": {"lower": "-800ms", "upper": "500ms"},
    "workload": {"rate": 2000, "duration": "3s", "domain": 500, "payload": "16B"},
    "cluster": {"partition_count": 12, "distribution_epoch": "50ms"},
    "module": {"theta": "8KB", "window": "64MB"},
    "measure": {"prefill": "2s"},
    "sink": {"kind": "parquet"},
}


def write(folder: Path, **sections: Any) -> Path:
    plain = {k: {**v, **sections.get(k, {})} if isinstance(v, dict) else v for k, v in PLAIN.items()}
    plain |= {k: v for k, v in sections.items() if k not in PLAIN}
    path = folder / "run.yaml"
    path.write_text(json.dumps(plain))
    return path


def run(folder: Path, ranks: int | None, slaves: int = 2, **sections: Any) -> dict[str, Any]:
    config, out = write(folder, **sections), folder / "run"
    if ranks is None:
        return run_local(Job(load_config(config), out / "results", True, out, None, "test"), False, slaves)
    done = command("run", config, "-n", ranks, "--out", out)
    assert done.returncode == 0, done.stderr
    report: dict[str, Any] = json.loads((out / "run.json").read_text())
    return report


def oracle(path: Path) -> tuple[tuple[int, str], tuple[int, str]]:
    """Count and digest of history, and of what is measured, by brute force."""
    config = load_config(path)
    streams = []
    for side in range(2):
        slots = [slot_tuples(config.workload, config.seed, side, s) for s in range(slot_count(config.workload))]
        ts, key = (np.concatenate([s[i] for s in slots]) for i in range(2))
        streams.append(TupleBatch(key, ts, np.arange(len(ts), dtype=np.uint64), ts))
    left, right = streams
    i, j = brute_force(left, right, Bounds.of(config.query.lower_us, config.query.upper_us, ()))
    end = min(int(left.ts[0]), int(right.ts[0])) + config.measure.prefill_us
    early = np.maximum(left.ts[i], right.ts[j]) < end
    first, second = (
        (int(part.sum()), format_digest(pair_digest(left.id[i[part]], right.id[j[part]]))) for part in (early, ~early)
    )
    return first, second


# ---------------------------------------------------------------- history


@pytest.mark.parametrize(
    ("ranks", "model"),
    [
        (None, "event"),
        (None, "arrival"),
        pytest.param(4, "event", marks=pytest.mark.mpi),
        pytest.param(6, "arrival", marks=pytest.mark.mpi),
    ],
)
def test_history_is_joined_first_and_counted_apart(ranks: int | None, model: str, tmp_path: Path) -> None:
    report = run(tmp_path, ranks, time={"model": model}, cluster={"sub_group_count": 2})
    history, measured = oracle(tmp_path / "run.yaml")
    assert history[0] > 1000
    assert measured[0] > 1000
    assert (report["prefill"]["pairs"], report["prefill"]["digest"]) == history
    assert (report["results"]["count"], report["results"]["digest"]) == measured
    assert report["results"]["produced"] == measured[0]
    assert report["ledger"]["balanced"]
    assert 0.8 < report["join_s"] - report["prefill"]["s"] < 6  # one second of three in real time
    files = pq.read_table(tmp_path / "run" / "results")
    assert files.num_rows == measured[0]
    rows = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet").to_pydict()
    assert sum(rows["pairs"]) == measured[0]
    assert min(rows["epoch_end_us"]) >= 2_000_000
    assert report["measured"]["from_s"] == 2.0
    assert 2.9 < report["measured"]["to_s"] < 4
    assert 0 < report["delay_s"]["mean"] < 1


@pytest.mark.mpi
def test_streams_shorter_than_history_leave_nothing_to_measure(tmp_path: Path) -> None:
    report = run(tmp_path, 3, measure={"prefill": "4s"})
    history, measured = oracle(tmp_path / "run.yaml")
    assert measured[0] == 0
    assert report["prefill"]["pairs"] == history[0] > 0
    assert report["results"]["count"] == 0


def test_history_larger_than_the_mini_buffers(tmp_path: Path) -> None:
    report = run(tmp_path, None, cluster={"mini_buffer": "64KB", "epoch_tuples": 100_000}, time={"model": "arrival"})
    history, measured = oracle(tmp_path / "run.yaml")
    assert (report["prefill"]["digest"], report["results"]["digest"]) == (history[1], measured[1])


def test_one_stream_silent_during_history(tmp_path: Path) -> None:
    """The other one's first tuple comes when history is over: nothing waits for it."""
    left = pa.table({"key": np.zeros(300, np.int64), "ts": np.arange(300) * 10_000})
    right = pa.table({"key": [0, 0], "ts": [2_500_000, 2_900_000]})
    for name, table in (("left", left), ("right", right)):
        pq.write_table(table, tmp_path / f"{name}.parquet")
    streams = {n: {"path": str(tmp_path / f"{n}.parquet"), "time_unit": "us"} for n in ("left", "right")}
    report = run(tmp_path, None, **streams)
    matches = sum(-800_000 <= r - t <= 500_000 for t in range(0, 3_000_000, 10_000) for r in (2_500_000, 2_900_000))
    assert report["results"]["count"] == matches
    assert report["prefill"]["pairs"] == 0


def test_simulated_histories() -> None:
    """Scenarios with pairs on both sides of the start; every pair of both is checked."""
    found = 0
    for seed in range(400):
        scenario = Scenario.draw(seed)
        if scenario.config.measure.prefill_us and scenario.expected(history=True)[0]:
            run_simulated(seed)
            found += scenario.expected()[0].total() > 0
    assert found >= 1


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ({"measure": {"prefill": "75ms"}}, "whole multiple of cluster.distribution_epoch"),
        ({"measure": {"prefill": "-1s"}}, "must not be negative"),
        ({"time": {"max_out_of_order": "1s"}}, "in time order"),
        ({"nodes": {"node_speed": 0}}, "node_speed must lie in 0..1"),
        ({"nodes": {"link_bytes_per_s": -1}}, "link_bytes_per_s must not be negative"),
    ],
)
def test_bad_measuring_is_one_line(section: dict[str, Any], said: str, tmp_path: Path) -> None:
    done = command("run", write(tmp_path, **section), "--out", tmp_path / "run")
    assert (done.returncode, done.stderr.count("\n")) == (2, 1)
    assert said in done.stderr


def test_history_needs_the_clock(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.write_text(json.dumps(json.loads(path.read_text()) | {"pace": "asap"}))
    done = command("run", path, "--out", tmp_path / "run")
    assert (done.returncode, "needs pace realtime" in done.stderr) == (2, True)
    done = command("simulate", write(tmp_path), "--slaves", 2)
    assert (done.returncode, "leave out measure.prefill" in done.stderr) == (2, True)


# ---------------------------------------------------------------- slow nodes and links


@pytest.mark.mpi
def test_an_overloaded_run_that_rushes_ends_soon_and_shows_its_overload(tmp_path: Path) -> None:
    """Slaves of a two-thousandth of a core: history at full speed, then more work than they can do, then the rest at once."""
    slow = {"nodes": {"node_speed": 0.0005}, "measure": {"prefill": "2s", "rush": True}, "sink": {"kind": "count"}}
    report = run(tmp_path, 4, **slow)
    assert (report["results"]["count"], report["results"]["digest"]) == oracle(tmp_path / "run.yaml")[1]
    assert report["join_s"] < 12
    rows = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet").to_pandas()
    in_time = rows[rows.epoch_end_us < report["measured"]["to_s"] * 1e6]
    assert in_time.pairs.sum() < 0.7 * rows.pairs.sum()
    assert rows.delay_mean_us.max() > 300_000


@pytest.mark.mpi
def test_a_slower_link_makes_the_later_slaves_wait(tmp_path: Path) -> None:
    """400 tuples of 72 bytes a slot and slave over 1 MB/s: about 10 ms each, in the fixed order."""
    workload = {"rate": 8000, "duration": "4s", "domain": 100_000}
    report = run(
        tmp_path, 4, nodes={"link_bytes_per_s": 2_000_000}, workload=workload, sink={"kind": "count", "carry_payload": True}
    )
    rows = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet").to_pandas()
    rows = rows[rows.epoch_end_us < report["measured"]["to_s"] * 1e6]
    exchange = rows.groupby("slave").exchange_us.median()
    transfer = rows.groupby("slave").delivered_bytes.median() / 2.0
    assert exchange[0] >= 0.9 * transfer[0] > 5_000
    assert exchange[1] >= 0.9 * (transfer[0] + transfer[1])


def test_node_speed_scales_every_slave_and_a_paused_throttle_owes_nothing() -> None:
    nodes = NodesConfig((1.0, 0.5), node_speed=0.1)
    assert [nodes.speed_of(s, 0) for s in range(3)] == [0.1, 0.05, 0.1]
    assert (nodes.imitates, NodesConfig().imitates) == (True, False)
    slept: list[float] = []
    throttle = Throttle(nodes, 0, slept.append, time.monotonic_ns)
    throttle.paused = True
    throttle.after(1_000, 0)
    assert (throttle.debt_us, slept) == (0.0, [])
    throttle.paused = False
    throttle.after(1_000, 0, 0)
    assert (round(throttle.debt_us), slept) == (9_000, [])
    throttle.after(0, 0, 2_000)
    assert slept == [0.002]
    throttle.pause()
    assert throttle.debt_us == 0


# ---------------------------------------------------------------- the machine


def test_a_meter_sees_work_of_others(tmp_path: Path) -> None:
    meter = RankMeter()
    meter.lateness.add(-5)
    meter.lateness.add(7_000)
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        pass
    found = meter.summary()
    assert 0.15 < found["cpu_s"] < 0.5
    assert found["late_s"]["max"] == 0.007
    assert found["times_s"] is None or found["times_s"][0] >= 0
    assert Lateness().quantiles() is None
