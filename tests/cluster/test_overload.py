"""More tuples than the slaves can join: shed, each one counted and written down, or spilled, and nothing lost."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import duckdb
import numpy as np
import pytest

from swjoin.cluster.gateway.overload import Overload
from swjoin.cluster.gateway.selectivity import MatchEstimates
from swjoin.cluster.gateway.tuple_queue import Pending, StoreFullError
from swjoin.cluster.role import BatchRead, SavePart, Snapshot, SourceEnded, StopRequested
from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.batch import LEFT, RIGHT, PayloadRows, RowLayout, SourceBatch, TupleBatch
from swjoin.core.errors import SwjoinError
from swjoin.core.join_semantics import Bounds
from swjoin.runtime.simulator.result import SimulationError
from swjoin.runtime.spill import SpilledBatch, SpillFolder
from tests.support.effects import deliveries, reported
from tests.support.limits import PROCESS_S
from tests.support.overloaded import answer_without, config, shed
from tests.support.roles import FirstRank
from tests.tools.random_runs import Scenario, run_scenario

POLICIES = [("shed", "oldest"), ("shed", "random"), ("shed", "least_matching"), ("spill", "random")]


def overloaded(seed: int, policy: str, victims: str, *, crashes: bool = False) -> Scenario:
    """Slow slaves with tiny buffers: most of the tuples find the mini-buffers full."""
    random = np.random.default_rng(seed)
    rows = []
    for _ in range(2):
        n = 250
        ts = np.sort(random.integers(0, 60_000, n))
        rows.append(SourceBatch(random.integers(0, 12, n), ts, np.arange(n, dtype=np.uint64)))
    plain: dict[str, Any] = {
        "join": {"lower_us": -int(random.integers(1, 20_000)), "upper_us": int(random.integers(0, 20_000))},
        "seed": seed,
        "pace": "realtime",
        "cluster": {
            "partition_count": 7,
            "distribution_epoch_us": 2_000,
            "mini_buffer_bytes": 2048,
            "sub_group_count": int(random.integers(1, 3)),
        },
        "module": {"stream_buffer_bytes": 64, "theta_bytes": 256, "block_bytes": 128, "window_bytes": 1 << 20},
        "reorganization": {"policy": "random", "epoch_us": 4_000, "random_moves": 3, "declustering": "adaptive"},
        "on_overload": {"policy": policy, "victims": victims},
        "sink": {"kind": str(random.choice(["parquet", "count"]))},
    }
    befalls: tuple[tuple[int, int], ...] = ()
    if crashes:
        plain["checkpoint"] = {"epochs": 3}
        befalls = tuple((int(random.integers(50, 500)), int(random.integers(0, 4))) for _ in range(2))
    return Scenario(seed, config_from_plain(plain), int(random.integers(2, 4)), (rows[0], rows[1]), befalls)


@pytest.mark.parametrize("first", [0, pytest.param(3, marks=pytest.mark.drawn)])
@pytest.mark.parametrize(("policy", "victims"), POLICIES)
def test_what_is_left_is_joined_exactly(policy: str, victims: str, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under random delays, moves and crashes: the result is the join of all tuples but those written down as shed."""
    stored = []
    put = SpillFolder.__call__
    monkeypatch.setattr(SpillFolder, "__call__", lambda self, batch: (stored.append(len(batch)), put(self, batch))[1])
    results = [run_scenario(overloaded(seed, policy, victims, crashes=seed % 2 == 1)) for seed in range(first, first + 3)]
    if policy == "shed":
        assert sum(shed(result) > 20 for result in results) >= 1
    else:
        assert sum(stored) > 50
        assert not any(shed(result) for result in results)
    assert sum(result.recoveries for result in results) >= 1


def complaints(policy: str) -> int:
    found = 0
    for seed in range(8):
        try:
            run_scenario(overloaded(seed, policy, "random"))
        except (SimulationError, SwjoinError):
            found += 1
            if found == 3:
                break
    return found


def test_tuples_shed_and_not_written_down_are_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    relieve = Overload.relieve
    monkeypatch.setattr(Overload, "relieve", lambda self, now_us: relieve(self, now_us)[:-1])
    assert complaints("shed") == 3


def test_a_disk_that_forgets_a_tuple_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    load = SpilledBatch.load
    monkeypatch.setattr(SpilledBatch, "load", lambda self: load(self).slice(0, max(1, len(self) - 1)))
    assert complaints("spill") == 3


def test_a_disk_that_changes_a_byte_is_refused(tmp_path: Path) -> None:
    zero = np.zeros(3, np.int64)
    batch = TupleBatch(zero, np.arange(3), np.arange(3, dtype=np.uint64), zero)
    spilled = SpillFolder(tmp_path)(batch)
    assert np.array_equal(spilled.load().ts, batch.ts)
    assert not list(tmp_path.iterdir())  # without a name: nothing is left behind, whatever happens
    spilled.file.write(100, np.frombuffer(b"x", np.uint8))
    with pytest.raises(SwjoinError, match="not what was written"):
        spilled.load()


# ---------------------------------------------------------------- the queue


def numbered(start: int, stop: int, layout: RowLayout | None = None) -> TupleBatch:
    ts = np.arange(start, stop, dtype=np.int64)
    rows, n = None, len(ts)
    if layout is not None:
        lengths = np.concatenate([[0], np.cumsum(ts % 5)])
        rows = PayloadRows(np.zeros((n, layout.fixed_bytes), np.uint8), lengths, np.zeros(int(lengths[-1]), np.uint8))
    return TupleBatch(ts, ts, ts.astype(np.uint64), ts, rows)


@pytest.mark.parametrize("layout", [None, RowLayout(8, True)])
@pytest.mark.parametrize("seed", range(10))
def test_a_queue_gives_what_it_got_wherever_it_lay(seed: int, layout: RowLayout | None, tmp_path: Path) -> None:
    """Appended, stored, fetched, dropped and merged at random: in time order, each tuple once, no byte left over."""
    random = np.random.default_rng(seed)
    folder, pending = SpillFolder(tmp_path), Pending(layout)
    here: list[int] = []
    got: list[int] = []
    end = below = 0
    for _ in range(60):
        match random.integers(0, 6):
            case 0 | 1:
                start, end = end, end + int(random.integers(0, 30))
                pending.append(numbered(start, end, layout), folder if random.random() < 0.3 else None)
                here += range(start, end)
            case 2:
                pending.store(int(random.integers(0, 4000)), folder)
            case 3:
                below = max(below, int(random.integers(0, end + 1)))
                got += pending.take_below(below).ts.tolist()
                here = [x for x in here if x >= below]
            case 4:
                share = random.choice([0.2, 1.0])
                masks = [random.random(len(part)) < share for part in pending.in_memory()]
                gone = {int(x) for batch in pending.drop(masks) for x in batch.ts}
                got += sorted(gone)
                here = [x for x in here if x not in gone]
            case _:
                parts = [part for part, _ in pending.take_all()]
                for part in parts[1::2]:
                    pending.append(part, folder)
                pending.merge(parts[0::2], folder)
        pending.validate()
        assert pending.tuples == len(here)
        assert pending.first_ts_us == (here[0] if here else None)
    got += pending.take_below(end).ts.tolist()
    assert sorted(got) == list(range(end))
    assert pending.bytes == pending.stored_bytes == 0


class FullDisk:
    """Takes so many batches, and no more."""

    def __init__(self, folder: Path, batches: int) -> None:
        self._folder, self._left = SpillFolder(folder), batches

    def __call__(self, batch: TupleBatch) -> SpilledBatch:
        self._left -= 1
        if self._left < 0:
            raise StoreFullError("no space left")
        return self._folder(batch)


def test_a_disk_that_is_full_loses_nothing(tmp_path: Path) -> None:
    pending = Pending(None)
    disk = FullDisk(tmp_path, 2)
    for start in range(0, 100, 10):
        pending.append(numbered(start, start + 10), disk if start in (40, 60, 80) else None)
    with pytest.raises(StoreFullError):
        pending.store(1 << 20, disk)
    pending.validate()
    assert pending.take_below(100).ts.tolist() == list(range(100))


def test_tuples_that_arrive_among_spilled_ones_leave_them_on_disk(tmp_path: Path) -> None:
    """A partition-group that was held back comes to a slave whose tuples lie on disk."""
    pending, folder = Pending(None), SpillFolder(tmp_path)
    for start in range(0, 1000, 10):
        pending.append(numbered(start, start + 10), folder)
    before = pending.stored_bytes
    pending.merge([numbered(300, 340), numbered(320, 330)], folder)
    pending.validate()
    assert pending.stored_bytes > before
    assert pending.bytes == 0
    assert pending.take_below(1000).ts.tolist() == sorted([*range(1000), *range(300, 340), *range(320, 330)])


def test_a_restored_master_keeps_spilled_tuples_on_disk_and_slaves_get_what_they_have_room_for(tmp_path: Path) -> None:
    config = config_from_plain(
        {
            "join": {"within": "100ms"},
            "pace": "realtime",
            "on_overload": "spill",
            "checkpoint": {"interval": "1h"},
            "cluster": {"distribution_epoch": "100ms", "mini_buffer": "1MB", "partition_count": 8},
            "module": {"stream_buffer": "64KB"},
            "sink": {"kind": "count"},
        }
    )

    def first_rank(folder: str) -> FirstRank:
        rank = FirstRank(config, 2, SpillFolder(tmp_path / folder))
        rank.start()
        return rank

    rank, slots = first_rank("one"), 0
    for stream in (LEFT, RIGHT):
        n = 1_500_000
        rows = SourceBatch(np.arange(n), np.arange(n) // 3, np.arange(n, dtype=np.uint64))
        rank.handle(BatchRead(stream, rows), 0)
        rank.handle(SourceEnded(stream), 0)
    saved = None
    while saved is None:
        slots += 1
        assert slots < 20
        if slots == 5:
            rank.handle(StopRequested(), 100_000 * slots)
        commands: list[Any] = []
        for slave in range(2):
            commands += rank.handle(reported(slave, 1.0), 100_000 * slots + 1)
        saved = next((c.snapshot for c in commands if isinstance(c, SavePart) and c.snapshot.tuples), None)
        master = next((c.snapshot for c in commands if isinstance(c, SavePart) and not c.snapshot.tuples), None)
    assert master is not None
    assert rank.gateway.buffers.stored_bytes > 10 << 20
    other = first_rank("two")
    other.master.restore(json.loads(json.dumps(master.plain)), 100_000 * slots)
    plain = json.loads(json.dumps(saved.plain))
    other.gateway.restore([plain], [Snapshot(plain, saved.tuples)])
    buffers = other.gateway.buffers
    buffers.validate()
    assert buffers.nbytes < 40 << 20  # a piece of each stream
    assert buffers.stored_bytes > rank.gateway.buffers.stored_bytes / 2
    sent = []
    for slave in range(2):
        commands = other.handle(reported(slave, 0.0), 100_000 * (slots + 1) + 1)
        sent += deliveries(commands)
    assert len(sent) == 2
    sizes = [delivery.nbytes for delivery in sent]
    assert min(sizes) > 1 << 10
    assert max(sizes) < 160 << 10  # nothing new comes: an eighth of the mini-buffers


# ---------------------------------------------------------------- estimates


@pytest.mark.parametrize("bias", [0.0, 1.2])
def test_lost_pairs_are_estimated(bias: float) -> None:
    """A quarter of all tuples is dropped at random: the estimate against all pairs that are really missing."""
    random = np.random.default_rng(3)
    n, keys, span = 25_000, 500, 2_000_000
    weights = np.arange(1, keys + 1) ** -bias
    sides = []
    for _ in range(2):
        key = random.choice(keys, n, p=weights / weights.sum()).astype(np.int64)
        sides.append((key, np.sort(random.integers(0, 20_000_000, n)), random.random(n) < 0.25))
    estimates = MatchEstimates(Bounds(-span // 2, span // 2))
    for slot in range(200):
        begin, end = slot * 100_000, (slot + 1) * 100_000
        estimates.advance(end)
        gone = []
        for stream, (key, ts, drop) in enumerate(sides):
            low, high = np.searchsorted(ts, [begin, end])
            estimates.arrived(stream, key[low:high])
            gone.append(key[low:high][drop[low:high]])
        estimates.dropped((gone[LEFT], gone[RIGHT]))
    tables = {f"t{i}": {"k": key, "ts": ts, "gone": drop} for i, (key, ts, drop) in enumerate(sides)}
    import pandas as pd

    frames = [pd.DataFrame(tables[name]) for name in ("t0", "t1")]
    database = duckdb.connect()
    for name, frame in zip(("t0", "t1"), frames, strict=True):
        database.register(name, frame)
    query = "select count(*) from t0 a join t1 b on a.k = b.k and b.ts - a.ts between ? and ? where a.gone or b.gone"
    found = database.execute(query, [-span // 2, span // 2]).fetchone()
    assert found is not None
    assert 0.85 < estimates.lost_pairs / found[0] < 1.15


def test_frequent_keys_of_the_other_stream_match_most() -> None:
    estimates = MatchEstimates(Bounds(-1_000_000, 1_000_000))
    estimates.advance(0)
    estimates.arrived(LEFT, np.repeat(np.arange(10, dtype=np.int64), np.arange(10) * 10))
    scores = estimates.matches(RIGHT, np.arange(10, dtype=np.int64))
    assert (np.diff(scores) > 0).all()
    assert not estimates.matches(LEFT, np.arange(10, dtype=np.int64)).any()  # the right stream has shown nothing


# ---------------------------------------------------------------- real runs


# A delivery costs something by itself, hundredfold at a hundredth of a core: slots are long enough for that, and too short for
# the tuples.
LONG_SLOTS = ("--set", "cluster.distribution_epoch=200ms", "--set", "workload.duration=1s")


@pytest.mark.quiet
def test_a_run_that_sheds_says_what_is_missing(swjoin: Any, tmp_path: Path) -> None:
    recalls = {}
    whole = None
    for victims in ("random", "least_matching"):
        out = tmp_path / victims
        path = config(tmp_path, policy="shed", victims=victims)
        done = swjoin("run", path, "--threads", 2, "--out", out)
        assert done.code == 0, done.err
        report = json.loads((out / "run.json").read_text())
        assert report["ledger"]["balanced"]
        assert report["shed"]["left"] > 1000
        assert report["shed"]["right"] > 1000
        by_group = report["overload"]["shed_by_group"]
        assert {name: sum(counts) for name, counts in by_group.items()} == report["shed"]
        assert (report["results"]["count"], report["results"]["digest"]) == answer_without(report, out / "late.parquet")
        whole = whole or answer_without(report, None)[0]
        recalls[victims] = report["results"]["count"] / whole
        assert abs(report["overload"]["recall_estimate"] - recalls[victims]) < 0.15
        assert "shed (" in done.out
        assert "mini-buffers" in swjoin("events", out, "--kind", "shed").out
    assert recalls["least_matching"] > recalls["random"]  # what it is for


@pytest.mark.quiet  # a master that others keep from its slots delivers everything in one
def test_a_run_that_spills_loses_nothing(swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "run"
    done = swjoin("run", config(tmp_path, 0.007, policy="spill"), "--threads", 2, "--out", out, *LONG_SLOTS)
    assert done.code == 0, done.err
    report = json.loads((out / "run.json").read_text())
    assert (report["results"]["count"], report["results"]["digest"]) == answer_without(report, None)
    assert report["overload"]["spilled_tuples"] > 1000
    assert "went to disk" in done.out
    assert not (out / "late.parquet").exists()


@pytest.mark.quiet
@pytest.mark.mpi
def test_ranks_spill_and_a_resumption_knows_what_lay_on_disk(swjoin: Any, tmp_path: Path) -> None:
    """Stopped by a signal in the middle; the checkpoint holds what was on disk."""
    import os
    import signal
    import subprocess
    import sys
    import time

    out = tmp_path / "run"
    path = config(tmp_path, 0.01, policy="spill")
    words = (*LONG_SLOTS, "--set", "checkpoint.epochs=3")
    command = [sys.executable, "-m", "swjoin", "run", str(path), *words, "-n", "4", "--out", str(out)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env={**os.environ}) as process:
        deadline = time.monotonic() + PROCESS_S
        while time.monotonic() < deadline and not list(out.glob("checkpoints/checkpoint-*.json")) and process.poll() is None:
            time.sleep(0.02)
        time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        _, complaints_told = process.communicate(timeout=PROCESS_S)
    assert process.returncode == 0, complaints_told
    report = json.loads((out / "run.json").read_text())
    assert report["overload"]["spilled_tuples"] > 0
    if report["resumable"]:
        assert swjoin("run", "--resume", out, "-n", "5").code == 0
        report = json.loads((out / "run.json").read_text())
    assert report["complete"]
    assert (report["results"]["count"], report["results"]["digest"]) == answer_without(report, None)


# ---------------------------------------------------------------- what makes no sense


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        (["on_overload=shed", "pace=asap"], "on_overload: shed needs pace realtime"),
        (["on_overload=drop"], "did you mean"),
        (["on_overload={policy: shed, victims: newest}"], "newest"),
        (["on_overload={policy: spill, directory: /dev/null/x}"], "tuples cannot be spilled there"),
        (["on_overload={policy: spill, disk: 1KB}"], "at least 1MB"),
    ],
)
def test_bad_settings_are_one_line(settings: list[str], said: str, swjoin: Any, tmp_path: Path) -> None:
    path = config(tmp_path, policy="block")
    words = [word for setting in settings for word in ("--set", setting)]
    done = swjoin("run", path, *words, "--out", tmp_path / "run")
    assert done.code == 2
    assert len(done.err) == 1
    assert said in done.err[0] or said == "did you mean", done.err


def test_simulate_refuses_what_it_does_not_play(swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("simulate", config(tmp_path, policy="shed"), "--slaves", 2, "--set", "sink.kind=count")
    assert done.code == 2
    assert "simulate sheds and spills nothing" in done.err[0]


def test_a_small_limit_never_stops_the_streams_from_starting() -> None:
    """The first batch of one stream filled the buffers, and the other was never asked for its first time."""
    for seed in (61, 78):
        drawn = Scenario.draw(seed)
        cluster = dataclasses.replace(drawn.config.cluster, mini_buffer_bytes=1 << 10)
        changed: RunConfig = dataclasses.replace(drawn.config, cluster=cluster)
        run_scenario(dataclasses.replace(drawn, config=changed))
