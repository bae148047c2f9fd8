"""The memory contract: what is foretold is what is taken, limits hold, and windows that have passed leave nothing behind."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from swjoin.config.job import Job
from swjoin.config.loader import config_from_plain
from swjoin.core.batch import PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, GroupId, QueryId, SlaveId
from swjoin.core.join_semantics import Bounds
from swjoin.diagnostics.startup_memory import measure
from swjoin.forecast.input_profile import BModelKeys, workload_profile
from swjoin.forecast.key_distribution import shares
from swjoin.forecast.memory import plan_memory, to_plain
from swjoin.forecast.memory_report import add_plan, estimate_memory
from swjoin.operators.join_operator import MoveId
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes
from swjoin.runtime.in_process import run_local
from swjoin.state.arrays import MINI_BYTES, SLOT_BYTES, block_bytes
from swjoin.state.payload_store import PAGE_ROWS, PayloadStore
from tests.conftest import ROOT
from tests.support.limits import PROCESS_S

WITHIN = 0.15  # the contract; the figures in docs/memory.md are better
END = END_OF_TIME_US


def plain(
    window_s: float, rate: float, duration_s: float, bias: float = 0.7, payload: int = 0, **sections: Any
) -> dict[str, Any]:
    out: dict[str, Any] = {
        "join": {"within": f"{window_s}s"},
        "workload": {"rate": rate, "duration": f"{duration_s}s", "bias": bias, "domain": 10_000_000, "payload_bytes": payload},
        "cluster": {"partition_count": 30, "distribution_epoch": "250ms"},
        "module": {"theta": "32KB", "window": "256MB"},
        "sink": {"kind": "parquet"},
    }
    for name, value in sections.items():
        out[name] = {**out.get(name, {}), **value} if isinstance(value, dict) else value
    return out


def run(config: dict[str, Any], folder: Path, slaves: int = 2) -> dict[str, Any]:
    job = Job(config_from_plain(config), folder / "run" / "results", True, folder / "run", None, "test")
    return run_local(job, False, slaves, complete_report=add_plan)


def check(memory: dict[str, Any], factor: float = WITHIN) -> None:
    """Windows of every slave as foretold, and nothing left in them."""
    assert memory["unforeseen"] is None
    for slave in memory["slaves"]:
        window = slave["window"]
        assert window["predicted"] == pytest.approx(window["peak"], rel=factor), slave
        assert slave["left"]["window_tuples"] == 0
    buffer = memory["master"]["buffer"]
    assert 0.6 * buffer["peak"] <= buffer["predicted"] <= 2.5 * buffer["peak"]


# ---------------------------------------------------------------- foretold and taken


@pytest.mark.drawn
@pytest.mark.parametrize(
    ("bias", "window_s", "payload", "slaves"),
    [(0.5, 2, 16, 2), (0.7, 4, 48, 3), (0.7, 1, 0, 2), (0.9, 1, 48, 2), (0.9, 2, 0, 3), (0.5, 0.2, 48, 2)],
)
def test_windows_take_what_was_foretold(bias: float, window_s: float, payload: int, slaves: int, tmp_path: Path) -> None:
    kind = "parquet" if payload else "count"
    rate = 6_000 if bias == 0.9 else 15_000
    report = run(plain(window_s, rate, 2.5 * window_s + 1, bias, payload, sink={"kind": kind}), tmp_path, slaves)
    check(report["memory"])


@pytest.mark.drawn
@pytest.mark.parametrize(
    "sections",
    [
        {"workload": {"schedule": {"kind": "burst", "factor": 4.0, "period": "3s", "length": "500ms"}}},
        {"workload": {"drift": "1s", "bias": 0.85}},
        {"cluster": {"distribution_epoch": "0us", "epoch_tuples": 5000}, "workload": {"rate": 90_000, "bias": 0.5}},
        {"join": {"within": None, "lower": "-1s", "upper": "3s"}},
        {"join": {"within": None, "lower": "1s", "upper": "2s"}},
        {"module": {"theta": "8KB"}},
        {"module": {"theta": 0, "block": "1KB"}},
        {"workload": {"duration": "1s"}},  # the windows never fill
    ],
    ids=lambda s: json.dumps(s)[1:60],
)
def test_schedules_drift_bounds_and_tuning_are_foretold(sections: dict[str, Any], tmp_path: Path) -> None:
    config = plain(1.5, 15_000, 6, sink={"kind": "count"}, **sections)
    config["join"] = {name: value for name, value in config["join"].items() if value is not None}
    check(run(config, tmp_path)["memory"])


def test_realtime_windows_and_buffers(tmp_path: Path) -> None:
    config = plain(0.4, 20_000, 1.5, 0.7, 16, pace="realtime", cluster={"distribution_epoch": "50ms"})
    memory = run(config, tmp_path)["memory"]
    check(memory)
    for slave in memory["slaves"]:
        assert slave["buffer"]["predicted"] == pytest.approx(slave["buffer"]["peak"], rel=1.0)


def test_a_file_is_foretold_by_its_metadata_and_first_rows(tmp_path: Path) -> None:
    config = files(tmp_path, 60_000, text=True)
    report = run(config, tmp_path)
    check(report["memory"], 0.3)  # buffers of text double when they grow
    unknown = files(tmp_path, 3_000, suffix="csv")
    memory = run({**unknown, "sink": {"kind": "count"}}, tmp_path / "csv")["memory"]
    assert "--rate" in memory["unforeseen"]
    assert memory["slaves"][0]["window"]["predicted"] is None
    assert memory["slaves"][0]["window"]["peak"] > 0


def files(folder: Path, rows: int, suffix: str = "parquet", *, text: bool = False) -> dict[str, Any]:
    """Two files of 10,000 rows a second each, a window of 1 s."""
    random = np.random.default_rng(1)
    out = plain(1, 1, 1)
    del out["workload"]
    for side in ("left", "right"):
        columns: dict[str, Any] = {
            "ts": np.sort(random.integers(0, rows * 100, rows)),
            "key": random.integers(0, 50_000, rows),
            "value": random.random(rows),
        }
        if text:
            columns["name"] = [f"name {i % 1000}" for i in range(rows)]
        path = folder / f"{side}.{suffix}"
        if suffix == "csv":
            pc.write_csv(pa.table(columns), path)
        else:
            pq.write_table(pa.table(columns), path, row_group_size=20_000)
        out[side] = {"path": str(path), "time_unit": "us"}
    return out


@pytest.mark.drawn
@pytest.mark.mpi
def test_four_real_ranks(tmp_path: Path) -> None:
    """Windows within the contract; whole processes, which also hold what no plan counts, within a quarter."""
    config = plain(1, 30_000, 3, 0.7, 48)
    (tmp_path / "config.yaml").write_text(json.dumps(config))
    command = [sys.executable, "-m", "swjoin", "run", str(tmp_path / "config.yaml"), "-n", "4", "--out", str(tmp_path / "run")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROCESS_S, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert " predicted), 0 tuples left in them" in done.stdout
    memory = json.loads((tmp_path / "run" / "run.json").read_text())["memory"]
    check(memory)
    for rank in memory["ranks"].values():
        assert 0 < rank["start"] < rank["peak"]
        assert rank["predicted"] == pytest.approx(rank["peak"], rel=0.25)


def test_cells_are_shares_of_partition_groups() -> None:
    config = config_from_plain(plain(1, 1000, 1))
    cells = BModelKeys(config.workload).cells(30, 3, 0, 1e6)
    share, _ = shares(config.workload.domain, 0.7, 0, 30)
    assert cells.left.sum() == pytest.approx(1)
    assert cells.left.sum(1) == pytest.approx(share, rel=1e-6)
    large = config_from_plain(plain(1, 1000, 1, 0.8, workload={"domain": 1 << 30}))
    cells = BModelKeys(large.workload).cells(7, 2, 0, 1e6)
    assert cells.left.sum() == pytest.approx(1)
    assert cells.top.max() == pytest.approx(0.8**30, rel=1e-9)


# ---------------------------------------------------------------- limits


def test_the_limit_holds_for_payload_and_blocks_together(tmp_path: Path) -> None:
    config = plain(2, 8_000, 8, 0.6, 40)
    free = run(config, tmp_path / "free", 1)["memory"]["slaves"][0]["window"]["peak"]
    enough = round(1.02 * free)
    report = run({**config, "module": {"theta": "32KB", "window_bytes": enough}}, tmp_path / "enough", 1)
    assert report["memory"]["slaves"][0]["window"]["peak"] <= enough
    too_little = {**config, "module": {"theta": "32KB", "window_bytes": round(0.7 * free)}}
    with pytest.raises(RunFailed, match=r"^slave 0: its windows .* would exceed --memory .*use more slaves.*raise --memory"):
        run(too_little, tmp_path / "less", 1)


def test_mini_buffers_hold_at_most_a_batch_more(tmp_path: Path) -> None:
    limit = 1 << 20
    config = plain(
        1, 50_000, 4, 0.5, 48, cluster={"distribution_epoch": "2s", "mini_buffer_bytes": limit}, sink={"kind": "count"}
    )
    memory = run(config, tmp_path)["memory"]
    batch = 70_000 * 32  # the generator ends a batch with a slot of 100 ms
    assert limit <= memory["master"]["buffer"]["peak"] <= max(limit + batch, 2 * batch)


def delivery(epoch: int, left: TupleBatch, right: TupleBatch, times: tuple[int, int]) -> Delivery:
    one = np.zeros(1, np.int64)
    counts = np.array([len(left)]), np.array([len(right)])
    return Delivery(QueryId(0), SlaveId(0), EpochIndex(epoch), *times, one, *counts, left, right)


LAYOUT = RowLayout(4, True)


def batch(keys: Any, ts: Any, layout: RowLayout | None = LAYOUT) -> TupleBatch:
    keys, ts = np.asarray(keys, np.int64), np.asarray(ts, np.int64)
    ids = np.arange(len(keys), dtype=np.uint64)
    rows = None
    if layout is not None:
        fixed = ids.astype("<u4").view(np.uint8).reshape(len(ids), 4)
        tail = np.arange(0, 3 * len(ids) + 1, 3, dtype=np.int64) if layout.has_var else None
        rows = PayloadRows(fixed, tail, None if tail is None else np.repeat(ids.astype(np.uint8), 3))
    return TupleBatch(keys, ts, ids, np.zeros(len(keys), np.int64), rows)


def make(
    bounds: Bounds, window_bytes: int = 1 << 22, layout: RowLayout | None = LAYOUT, theta_tuples: int = 256
) -> WindowJoinOperator:
    return WindowJoinOperator(bounds, WindowSizes(64, theta_tuples, window_bytes), (layout, layout), result_tuples=10_000)


def drive(join: WindowJoinOperator, work_on: Delivery) -> list[Any]:
    work, pairs = join.open(work_on), []
    while True:
        step = join.step(work, 0, 10**6)
        pairs += [] if step.pairs is None else [step.pairs]
        if step.done:
            join.validate()
            return pairs


def test_payload_is_kept_while_it_is_joined_even_when_it_is_dead_already() -> None:
    """With both bounds negative a left tuple is dead when it comes, but joins what is there. Expiry for want of blocks, in the
    middle of its delivery, must leave its payload alone."""
    layout, n, more = RowLayout(4), 640, PAGE_ROWS + 100
    limit = 3 * PAGE_ROWS * 4 + 80 * block_bytes(64) + 200
    join = make(Bounds(-10_000, -100), window_bytes=limit, layout=layout, theta_tuples=0)
    empty, keys = batch([], [], layout), np.arange(n)
    drive(join, delivery(0, empty, batch(keys, np.full(n, -60), layout), (0, 0)))
    drive(join, delivery(1, batch(np.arange(more) + n, np.zeros(more), layout), empty, (50, 50)))  # dead, and not expired yet
    assert join.window_tuples() == (more, n)
    found = drive(join, delivery(2, batch(keys, np.full(n, 60), layout), empty, (61, 61)))
    assert join.window_tuples()[0] == n  # those before had to go
    left = np.concatenate([p.left_id for p in found])
    rows = np.concatenate([p.left_rows.fixed for p in found]).view("<u4").reshape(-1)
    assert len(left) == n
    assert (rows == left).all()


# ---------------------------------------------------------------- state returns to zero


def least_bytes(join: WindowJoinOperator) -> int:
    """One mini-partition-group and one directory entry for each partition-group: what is left of empty windows."""
    return len(join.group_ids()) * (MINI_BYTES + SLOT_BYTES)


@pytest.mark.parametrize("which", ["clock", "other stream"])
def test_a_burst_leaves_nothing_behind(which: str) -> None:
    """Blocks, pages, tails and directories of keys that fall silent return, while the clock or the other stream goes on
    (RisingWave issue 16045: state of quiet keys was kept for ever)."""
    join = make(Bounds(-1000, 1000))
    random = np.random.default_rng(1)
    empty = batch([], [])
    for epoch in range(5):
        ts = np.sort(random.integers(epoch * 100, (epoch + 1) * 100, 3000))
        burst = batch(random.integers(0, 10**6, 3000), ts)
        drive(join, delivery(epoch, burst, burst, ((epoch + 1) * 100,) * 2))
    full = join.window_memory()
    assert join.mini_group_count() > 50
    assert full.peak_payload_bytes > 8 * PAGE_ROWS * 4
    for epoch in range(5, 40):
        now = (epoch + 1) * 100
        other = batch([7], [now - 1]) if which == "other stream" else empty
        drive(join, delivery(epoch, empty, other, (now, now)))
    quiet = int(which == "other stream")  # the other stream's own last tuples
    assert join.window_tuples()[0] == 0
    assert join.window_tuples()[1] <= 64 * quiet
    assert join.block_count() == quiet
    assert join.mini_group_count() == 1
    assert [store.page_count for store in join.payload if store is not None] == [0, quiet]
    assert join.window_bytes() - least_bytes(join) < quiet * 40_000 + 1
    assert join.window_memory().peak_bytes >= full.left_bytes


@pytest.mark.parametrize("pace", ["asap", "realtime"])
def test_quiet_keys_leave_nothing_behind_in_a_run(pace: str, tmp_path: Path) -> None:
    """Both streams burst for 0.2 s; then, for a second, only right tuples of one other key come."""
    random = np.random.default_rng(2)
    n, config = 4000, plain(0.1, 1, 1, pace=pace, cluster={"distribution_epoch": "25ms", "partition_count": 6})
    del config["workload"]
    ticks = np.arange(200_000, 1_200_000, 50_000)
    for side, more in (("left", ticks[-1:]), ("right", ticks)):
        ts = np.concatenate([np.sort(random.integers(0, 200_000, n)), more])
        key = np.concatenate([random.integers(0, 10**6, n), np.full(len(more), -1)])
        pq.write_table(pa.table({"ts": ts, "key": key, "value": random.random(len(ts))}), tmp_path / f"{side}.parquet")
        config[side] = {"path": str(tmp_path / f"{side}.parquet"), "time_unit": "us"}
    report = run(config, tmp_path)
    rows = pq.read_table(tmp_path / "run" / "metrics" / "slaves.parquet").to_pylist()
    burst, quiet = rows[: len(rows) // 4], rows[-len(rows) // 4 : -6]
    assert sum(r["window_tuples"] for r in burst) > n
    assert max(r["window_tuples"] for r in quiet) <= len(ticks)
    assert max(r["block_count"] for r in quiet) <= 1
    assert max(r["mini_group_count"] for r in quiet) <= 3
    assert max(r["window_bytes"] for r in quiet) <= 3 * (MINI_BYTES + SLOT_BYTES) + 2212 + 9 * PAGE_ROWS
    assert all(s["left"]["window_tuples"] == 0 for s in report["memory"]["slaves"])


def test_a_slave_whose_last_partition_group_leaves_keeps_no_payload() -> None:
    """It may rest from then on, and get no delivery that would expire anything."""
    join = make(Bounds(-1000, 1000))
    burst = batch(np.arange(9000), np.zeros(9000))
    drive(join, delivery(0, burst, burst, (0, 0)))
    none = batch([], [])
    departure = join.export_group(MoveId(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1)), (none, none), 1 << 16)
    while not departure.done:
        departure.next_chunk()
    assert join.window_bytes() == 0
    join.validate()


@pytest.mark.parametrize("spare", [*range(0, 110_000, 10_000), 1 << 22])
def test_a_partition_group_that_arrives_near_the_limit_loses_no_pairs(spare: int) -> None:
    """The consumer is 50 s ahead. To make room by expiry, by its own times, would drop what the pending tuples still meet."""
    window_us, n = 10_000_000, 6000
    bounds, none = Bounds(-window_us, window_us), TupleBatch.empty(LAYOUT)
    keys = np.arange(n)

    def consumer(limit: int) -> WindowJoinOperator:
        join = make(bounds, limit, theta_tuples=0)
        times = (100_000_000, 100_000_000)
        drive(join, delivery(0, batch(keys, np.linspace(95e6, 100e6, n).astype(np.int64)), none, times))
        return join

    supplier = make(bounds, 1 << 24, theta_tuples=0)
    lefts = batch(keys, np.linspace(40e6, 50e6, n).astype(np.int64))
    drive(supplier, delivery(0, lefts, none, (50_000_000, 50_000_000)))
    pending = batch(keys, np.linspace(50e6, 50.1e6, n).astype(np.int64))
    found = supplier.export_group(MoveId(QueryId(0), 0, GroupId(0), SlaveId(0), SlaveId(1)), (none, pending), 1 << 20)
    chunks = []
    while not found.done:
        chunks.append(found.next_chunk())
    taken = consumer(1 << 24)
    needed = taken.window_bytes() + supplier.window_bytes()
    # `delivery` is always of partition-group 0: what arrives is called another one
    chunks = [replace(chunk, group=GroupId(1)) for chunk in chunks]
    join = consumer(needed + spare)
    arrival = join.import_group(chunks[0])
    pairs, complaint = 0, ""
    try:
        for chunk in chunks:
            arrival.add(chunk)
        work = arrival.settle(EpochIndex(1))
        assert work is not None
        while not (step := join.step(work, 0, 1 << 20)).done:
            pairs += 0 if step.pairs is None else len(step.pairs)
        pairs += 0 if step.pairs is None else len(step.pairs)
    except RunFailed as error:
        complaint = str(error)
    if complaint:
        assert spare < 1 << 20
        assert "raise --memory" in complaint
    else:
        assert pairs == n


def test_a_payload_store_that_empties_begins_anew() -> None:
    store = PayloadStore(LAYOUT, 1 << 20)
    for turn in range(4):
        first = store.append(batch(np.arange(5000), np.zeros(5000)).rows, turn)  # type: ignore[arg-type]
        assert first % PAGE_ROWS == 0
        assert store.gather(np.array([first + 7])).fixed.view("<u4")[0, 0] == 7
        store.expire(turn + 1)
        store.validate()
        assert (store.nbytes, store.page_count) == (0, 0)
    assert store.peak_bytes >= 2 * PAGE_ROWS * 4


# ---------------------------------------------------------------- the command


@pytest.fixture
def config_file(tmp_path: Path) -> Path:
    path = tmp_path / "config.yaml"
    path.write_text(json.dumps(plain(5, 50_000, 20, 0.7, 48)))
    return path


@pytest.fixture
def known_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("swjoin.diagnostics.startup_memory.measure", lambda role: 100 << 20)


@pytest.mark.drawn
@pytest.mark.usefixtures("known_start")
def test_plan_prints_a_line_for_every_rank(config_file: Path, swjoin: Any) -> None:
    done = swjoin("plan", config_file, "-n", "5")
    assert (done.code, done.err) == (0, [])
    for text in ("0 master", "1 collector", "4 slave 2", "the workload section", "1 slave or more within this limit"):
        assert text in done.out
    done = swjoin("plan", config_file, "--threads", "2")
    assert "the process" in done.out
    many = swjoin("plan", config_file, "-n", "30")
    assert "(heaviest)" in many.out
    assert len(many.out.splitlines()) < 18


@pytest.mark.usefixtures("known_start")
def test_plan_that_does_not_fit_exits_with_one_and_says_what_would(config_file: Path, swjoin: Any) -> None:
    done = swjoin("plan", config_file, "-n", "4", "--set", "module.window=10MB")
    assert done.code == 1
    assert len(done.err) == 1
    told = re.search(r"module\.window allows 10\.0 MiB; use (\d+) slaves or more, or raise it", done.err[0])
    assert told is not None
    for more, code in ((1, 1), (2, 0)):
        assert swjoin("plan", config_file, "-n", int(told[1]) + more, "--set", "module.window=10MB").code == code
    hopeless = swjoin("plan", config_file, "-n", "4", "--set", "module.window=1MB")
    assert "one partition-group alone is too large" in hopeless.err[0]


@pytest.mark.usefixtures("known_start")
def test_plan_as_json(config_file: Path, swjoin: Any) -> None:
    found = json.loads(swjoin("plan", config_file, "-n", "4", "--json").out)
    config = config_from_plain(json.loads(config_file.read_text()))
    expected = to_plain(plan_memory(config, 2, workload_profile(config)))
    found["notes"], noted = found["notes"][: len(expected["notes"])], found["notes"]
    assert {name: found[name] for name in expected} == json.loads(json.dumps(expected))
    assert any("streams' time" in note for note in noted)
    assert found["ranks"]["2"]["bytes"] > found["slaves"][0]["window_bytes"] + (100 << 20)
    assert [r["role"] for r in found["ranks"].values()] == ["master", "collector", "slave 0", "slave 1"]


@pytest.mark.usefixtures("known_start")
@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--rate", "5"], "--set workload.rate"),
        (["--row", "5B"], "--set workload.payload"),
        (["-n", "2"], "at least 3 ranks"),
        (["--set", "module.window=1B"], "at least 1MB"),
        (["-n", "4", "--threads", "2"], "--threads"),
    ],
)
def test_what_plan_refuses(options: list[str], text: str, config_file: Path, swjoin: Any) -> None:
    done = swjoin("plan", config_file, *options)
    assert done.code == 2
    assert len(done.err) == 1
    assert text in done.err[0]


@pytest.mark.drawn
@pytest.mark.usefixtures("known_start")
def test_plan_of_files(tmp_path: Path, swjoin: Any) -> None:
    path = tmp_path / "files.yaml"
    path.write_text(json.dumps(files(tmp_path, 30_000)))
    told = json.loads(swjoin("plan", path, "-n", "3", "--json").out)
    given = json.loads(swjoin("plan", path, "-n", "3", "--rate", "10000", "--json").out)
    assert given["slaves"][0]["window_bytes"] == pytest.approx(told["slaves"][0]["window_bytes"], rel=0.1)
    wide = json.loads(swjoin("plan", path, "-n", "3", "--rate", "10000,10000", "--row", "1KB", "--json").out)
    assert wide["slaves"][0]["payload_bytes"] > 10_000 * 2 * 1024
    path.write_text(json.dumps(files(tmp_path, 3_000, suffix="csv")))
    refused = swjoin("plan", path, "-n", "3")
    assert refused.code == 2
    assert "give the rate with --rate" in refused.err[0]
    assert swjoin("plan", path, "-n", "3", "--rate", "10000").code == 0
    assert swjoin("plan", path, "-n", "3", "--rate", "fast").code == 2


def test_a_plan_that_fails_costs_no_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("odd")

    monkeypatch.setattr("swjoin.forecast.memory.plan_memory", broken)
    job = Job(config_from_plain(plain(1, 1000, 1)), None, False, None, None, "test")
    assert estimate_memory(job, 2) == "ZeroDivisionError: odd"
    assert run(plain(1, 1000, 1, payload=8), tmp_path)["memory"]["unforeseen"] == "ZeroDivisionError: odd"


def test_what_a_process_takes_at_its_start_is_measured() -> None:
    found = measure("slave")
    assert found is not None
    assert 20 << 20 < found < 2 << 30
