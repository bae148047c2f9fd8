"""The in-process runtime: every case of SPEC section 7, any slaves, epoch, theta, skew; DuckDB as the oracle for big ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.config.run import QueryConfig, RunConfig, SinkConfig, StreamConfig, WorkloadConfig
from swjoin.connectors.files.run_files import MetricsFile
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.errors import RunFailed
from swjoin.core.join_semantics import format_digest, pair_digest
from swjoin.core.metric_columns import COLUMNS
from swjoin.core.storage import AppendedFile
from swjoin.runtime import in_process
from swjoin.runtime.host import Addressed
from swjoin.runtime.in_process import LocalTransport, run_local
from tests.support.cases import CASES, Case, by_name, moving
from tests.support.in_process import answer, run


@pytest.mark.parametrize("case", CASES, ids=by_name)
@pytest.mark.parametrize(("slaves", "moves", "gateways"), [(1, False, 1), (3, False, 1), (4, True, 1), (3, True, 3)])
def test_known_cases(case: Case, slaves: int, moves: bool, gateways: int, tmp_path: Path) -> None:
    """The answer, standing still and while partition-groups and slaves come and go at random, whoever reads the rows."""
    sections = moving(case) if moves else {}
    sections["cluster"] = {**sections.get("cluster", {}), "gateways": gateways}
    report = run(case.write(tmp_path, row_groups=4 * gateways, **sections), tmp_path, slaves)
    assert answer(report) == case.answer()
    assert report["ledger"]["balanced"]
    table = pq.read_table(tmp_path / "run" / "results")
    assert table.num_rows == report["results"]["count"]
    gap = table["right_ts"].to_numpy() - table["left_ts"].to_numpy()
    assert ((gap >= case.bounds[0]) & (gap <= case.bounds[1])).all()


def test_nobody_waits_for_threads_that_have_ended(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every other short run took a second longer: the main thread had polled the last end, and waited for another one."""
    waits: list[bool] = []
    wait = LocalTransport.wait

    def watched(self: LocalTransport, at_most_us: int) -> Addressed | None:
        waits.append(self._main and self.closed)
        return wait(self, at_most_us)

    monkeypatch.setattr(LocalTransport, "wait", watched)
    for number in range(10):
        (tmp_path / str(number)).mkdir()
        run(CASES[0].write(tmp_path / str(number)), tmp_path / str(number), 2)
    assert waits
    assert not any(waits)


def test_case_null_rows_are_counted(tmp_path: Path) -> None:
    case = next(c for c in CASES if c.name == "null keys and null times")
    report = run(case.write(tmp_path), tmp_path)
    keys, times = case.left
    assert report["null_key"]["left"] == sum(k is None for k in keys)
    late = sum(t is None and k is not None for k, t in zip(keys, times, strict=True))
    assert report["late"]["left"] == late
    assert report["input"]["left"]["tuples"] == len(keys)


# ---------------------------------------------------------------- bigger, against DuckDB


def duckdb_answer(folder: Path, bounds: tuple[int, int]) -> tuple[int, str]:
    found = duckdb.execute(
        f"""SELECT l.file_row_number AS l, r.file_row_number AS r
        FROM read_parquet('{folder}/left.parquet', file_row_number = true) l
        JOIN read_parquet('{folder}/right.parquet', file_row_number = true) r
        ON l.key = r.key AND r.ts - l.ts BETWEEN {bounds[0]} AND {bounds[1]}"""
    ).fetchnumpy()
    return len(found["l"]), format_digest(pair_digest(np.asarray(found["l"], np.uint64), np.asarray(found["r"], np.uint64)))


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> dict[float, Path]:
    """About 60,000 tuples per stream for each skew."""
    out = {}
    for bias in (0.5, 0.7, 0.9, 0.99):
        folder = tmp_path_factory.mktemp(f"b{bias}")
        workload = WorkloadConfig(20_000 if bias < 0.9 else 4_000, 3_000_000, bias, 100_000, 8)
        for stream, name in enumerate(("left", "right")):
            parts = [slot_tuples(workload, 7, stream, s) for s in range(slot_count(workload))]
            columns = {"ts": np.concatenate([p[0] for p in parts]), "key": np.concatenate([p[1] for p in parts])}
            pq.write_table(pa.table(columns), folder / f"{name}.parquet")
        out[bias] = folder
    return out


def big_config(folder: Path, target: Path, bounds: tuple[int, int], **sections: Any) -> Path:
    plain: dict[str, Any] = {
        "join": {"lower_us": bounds[0], "upper_us": bounds[1]},
        "left": {"path": str(folder / "left.parquet"), "time_unit": "us"},
        "right": {"path": str(folder / "right.parquet"), "time_unit": "us"},
        "sink": {"kind": "count"},
        "module": {"theta": "32KB", "window": "256MB"},
        "cluster": {"distribution_epoch": "250ms"},
    }
    for name, value in sections.items():
        plain[name] = {**plain.get(name, {}), **value}
    path = target / "config.yaml"
    path.write_text(json.dumps(plain))
    return path


@pytest.mark.parametrize("bias", [0.5, 0.7, 0.9, 0.99])
def test_any_skew(bias: float, streams: dict[float, Path], tmp_path: Path) -> None:
    bounds = (-200_000, 300_000)
    if bias == 0.99:
        bounds = (-20_000, 30_000)
    expected = duckdb_answer(streams[bias], bounds)
    assert expected[0] > 1000
    report = run(big_config(streams[bias], tmp_path, bounds), tmp_path, 2)
    assert answer(report) == expected


@pytest.mark.parametrize(
    ("slaves", "epoch", "theta", "block"),
    [
        (1, "10ms", "4KB", "4KB"),
        (2, "1h", "64MB", "4KB"),
        (3, "0us", "0B", "4KB"),
        (5, "100ms", "1KB", "1KB"),
        (5, "10ms", "1.5MB", "64B"),
    ],
)
def test_any_slaves_epoch_theta_block(
    slaves: int, epoch: str, theta: str, block: str, streams: dict[float, Path], tmp_path: Path
) -> None:
    bounds = (-200_000, 300_000)
    sections = {
        "cluster": {"distribution_epoch": epoch},
        "module": {"theta": theta, "block": block},
        "sink": {"kind": "parquet"},
    }
    report = run(big_config(streams[0.7], tmp_path, bounds, **sections), tmp_path, slaves)
    assert answer(report) == duckdb_answer(streams[0.7], bounds)


def test_realtime_equals_asap(streams: dict[float, Path], tmp_path: Path) -> None:
    bounds = (-200_000, 300_000)
    config = big_config(streams[0.7], tmp_path, bounds, cluster={"distribution_epoch": "20ms"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"pace": "realtime"}))
    report = run(config, tmp_path, 2)
    assert answer(report) == duckdb_answer(streams[0.7], bounds)
    assert report["delay_s"]["p50"] > 0
    metrics = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet")
    assert max(metrics["epoch_end_us"].to_pylist()) > 2_900_000  # on the run's clock
    assert metrics["pairs"].to_numpy().sum() == report["results"]["count"]
    assert metrics.num_rows == 2 * report["epochs"]


def test_arrival_time_joins_by_arrival(tmp_path: Path) -> None:
    """Arrival stamps are the running maximum of times, from the start of the run."""
    pq.write_table(pa.table({"key": [1, 1, 1], "ts": [50_000, 20_000, 90_000]}), tmp_path / "left.parquet")
    pq.write_table(pa.table({"key": [1], "ts": [50_000]}), tmp_path / "right.parquet")
    config = big_config(tmp_path, tmp_path, (0, 0), cluster={"distribution_epoch": "10ms"}, time={"model": "arrival"})
    config.write_text(json.dumps(json.loads(config.read_text()) | {"pace": "realtime"}))
    assert run(config, tmp_path)["results"]["count"] == 2


def test_a_million_matches(tmp_path: Path) -> None:
    n = 1_000_000
    pq.write_table(pa.table({"key": np.zeros(n, np.int64), "ts": np.arange(n)}), tmp_path / "right.parquet")
    pq.write_table(pa.table({"key": [0], "ts": [n]}), tmp_path / "left.parquet")
    config = big_config(tmp_path, tmp_path, (-n, n), sink={"kind": "parquet"}, module={"result_buffer": "256KB"})
    report = run(config, tmp_path)
    assert report["results"]["count"] == n
    assert report["results"]["digest"] == format_digest(pair_digest(np.zeros(n, np.uint64), np.arange(n, dtype=np.uint64)))


def test_generator_in_the_master(tmp_path: Path) -> None:
    plain = {
        "join": {"within": "100ms"},
        "workload": {"rate": 5000, "duration": "2s", "bias": 0.7, "domain": 1000, "payload": "48B"},
        "cluster": {"distribution_epoch": "100ms"},
    }
    one = run_local(Job(config_from_plain(plain), tmp_path / "a" / "results", True, tmp_path / "a", None, ""), False)
    two = run_local(
        Job(config_from_plain({**plain, "seed": 1}), tmp_path / "b" / "results", True, tmp_path / "b", None, ""), False, 3
    )
    assert answer(one) == answer(two)
    assert one["results"]["count"] > 1000
    three = run_local(
        Job(config_from_plain({**plain, "seed": 2}), tmp_path / "c" / "results", True, tmp_path / "c", None, ""), False
    )
    assert answer(three) != answer(one)


def test_report_holds_every_field(tmp_path: Path) -> None:
    report = run(CASES[0].write(tmp_path), tmp_path)
    assert json.loads((tmp_path / "run" / "run.json").read_text()) == report
    for field in [
        "format",
        "config",
        "config_digest",
        "seed",
        "versions",
        "ranks",
        "input.left.tuples",
        "input.right.tuples",
        "null_key.left",
        "null_key.right",
        "late.left",
        "late.right",
        "shed.left",
        "shed.right",
        "results.count",
        "results.digest",
        "ledger.balanced",
        "wall_s",
        "join_s",
        "input_tuples_per_s",
        "delay_s.mean",
        "delay_s.p50",
        "delay_s.p99",
        "delay_s.max",
        "moves",
        "declustering",
        "peak_rss_bytes",
    ]:
        value: Any = report
        for part in field.split("."):
            value = value[part]
        assert value is not None, field
    assert len(report["results"]["digest"]) == 16


def test_generated_streams_without_payload_make_rows(tmp_path: Path) -> None:
    plain = {"join": {"within": "1s"}, "workload": {"rate": 1000, "duration": "1s", "payload": 0, "domain": 100}}
    (tmp_path / "config.yaml").write_text(json.dumps(plain))
    report = run(tmp_path / "config.yaml", tmp_path)
    table = pq.read_table(tmp_path / "run" / "results")
    assert table.num_rows == report["results"]["count"] > 0
    assert not [name for name in table.column_names if "payload" in name]


def test_quantiles_of_a_run_are_not_above_its_maximum(tmp_path: Path) -> None:
    pq.write_table(pa.table({"key": [1], "ts": [5]}), tmp_path / "one.parquet")
    one = StreamConfig(str(tmp_path / "one.parquet"), time_unit="us")
    config = RunConfig(queries=(QueryConfig(0, 0),), left=one, right=one, sink=SinkConfig("count"))
    report = run_local(Job(config, None, True, tmp_path / "run", None, "test"), progress=False, slave_count=1)
    delay = report["delay_s"]
    assert delay["p50"] == delay["p99"] == delay["max"] == delay["mean"] > 0
    rows = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet").to_pylist()
    assert all(row["delay_p99_us"] <= row["delay_max_us"] for row in rows)


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -1e300, 2.0**63])
@pytest.mark.filterwarnings("error")
def test_metrics_that_are_no_integers_are_refused(value: float, tmp_path: Path) -> None:
    kept = AppendedFile(tmp_path / "metrics.rows")
    row = np.zeros(len(COLUMNS))
    row[COLUMNS.index("pairs")] = value
    kept.append(np.zeros(len(COLUMNS)).tobytes() + row.tobytes())
    with pytest.raises(RunFailed, match=r"metrics.rows: corrupt: a metric that must be an integer"):
        MetricsFile(tmp_path / "run", kept)
    kept.close()


@pytest.mark.parametrize(("cores", "counts", "writes"), [(1, 1, 1), (2, 2, 1), (3, 2, 2), (8, 4, 4)])
def test_slaves_by_default(cores: int, counts: int, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(in_process, "core_count", lambda: cores)
    assert (in_process.default_slave_count(writes=False), in_process.default_slave_count(writes=True)) == (counts, writes)
