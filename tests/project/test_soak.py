"""Soaks: who is struck, when memory counts as flat, which rate is capacity, what the answer is, and a short real one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from benchmarks.workloads.expected_results import expected, slices
from plots import soak as soak_figure
from swjoin.config.run import ScheduleConfig, WorkloadConfig
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.core.batch import TupleBatch
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.join_semantics import Bounds, format_digest, pair_digest
from tests.support.limits import PROCESS_S
from tests.tools.oracle import brute_force
from tests.tools.processes import MARK, left_of, mapped_of, memory_of
from tests.tools.soak.capacity import FIRST_RATE, Shape, Trial, find_capacity, keeps_up, result_bytes
from tests.tools.soak.memory_growth import Growth, Sample, Samples, growth, slope
from tests.tools.soak.run import ENDING, SURVIVED, Soak, check, draw_kill, main, roles_of

# ---------------------------------------------------------------- who is struck


def test_mostly_slaves_are_struck_and_never_one_of_the_last_two() -> None:
    random = np.random.default_rng(1)
    plenty = Counter(draw_kill(random, 4) for _ in range(1000))
    assert plenty["slave"] > 600
    assert set(plenty) == {*SURVIVED, *ENDING}
    few = Counter(draw_kill(random, 2) for _ in range(200))
    assert set(few) == set(ENDING)
    assert roles_of([4, 0, 3, 2]) == {0: "master", 2: "collector", 3: "slave", 4: "slave"}, "rank 1 has died"


# ---------------------------------------------------------------- memory

MIB = 1 << 20


def _samples(minutes: int, within: float = 0.0, over_all: float = 0.0, noise: float = 0.5) -> Samples:
    """A process of each role per minute, MiB: start-up, then a level; slopes in MiB a minute. The number of slaves changes."""
    random = np.random.default_rng(7)
    samples = Samples()
    for second in range(60 * minutes):
        minute, at = divmod(second, 60)
        slaves = 2 + minute % 3
        for rank in range(2 + slaves):
            level = 200 + (150 / slaves if rank > 1 else 0) - 100 * np.exp(-at / 3)
            level += within * at / 60 + over_all * minute + noise * random.normal()
            windows = 3.0 * at if rank > 1 else 0.0  # as much as a slave ever had to hold
            row = (float(second), minute, rank, roles_of(range(2 + slaves))[rank], 1000 * minute + rank, slaves)
            maps = (int(level * MIB), int(windows * MIB)) if second % 5 == 0 else ()
            samples.add(Sample(*row, int((level + windows) * MIB), int(level * MIB), *maps))
    return samples


@pytest.mark.parametrize(
    ("leak", "flat"), [({}, True), ({"within": 10.0}, False), ({"over_all": 6.0}, False), ({"within": -10.0}, True)]
)
def test_a_leak_is_told_from_new_processes_and_fewer_slaves(leak: dict[str, float], flat: bool) -> None:
    found = growth(_samples(12, **leak).columns(), 25)
    assert [g.role for g in found] == ["master", "collector", "slave"]
    for g in found:
        assert g.flat(0.01) is flat, g
        assert ("GROWS" in g.line(0.01)) is not flat
    if "within" in leak:
        assert found[0].within_per_min == pytest.approx(leak["within"] * MIB, rel=0.1)
    if "over_all" in leak:
        assert found[0].over_all_per_min == pytest.approx(leak["over_all"] * MIB, rel=0.1)
        assert abs(found[0].within_per_min) < MIB


def test_a_short_time_says_nothing() -> None:
    (master, *_) = growth(_samples(1, within=100).columns(), 25)
    assert master.judged_s < 180
    assert master.flat(0.01) is None
    assert "too short" in master.line(0.01)
    assert growth(Samples().columns(), 25) == []
    assert growth(_samples(1).columns(), 100) == []


def test_a_slope_has_a_level_for_each_group() -> None:
    time = np.array([0.0, 1, 2, 10, 11, 12])
    value = np.array([0.0, 1, 2, 50, 51, 52])
    assert slope(time, value, np.array([0, 0, 0, 1, 1, 1])) == pytest.approx((1, 0))
    assert slope(time, value, np.arange(6)) == (0, np.inf)
    assert slope(time[:3], value[:3], np.zeros(3, np.int64)) == (pytest.approx(1), np.inf)
    random = np.random.default_rng(3)
    many = [slope(np.arange(30.0), 2 * np.arange(30.0) + random.normal(size=30), np.arange(30) % 3) for _ in range(200)]
    assert np.std([m[0] for m in many]) == pytest.approx(np.mean([m[1] for m in many]), rel=0.2)


def test_room_that_is_kept_after_a_backlog_is_no_leak() -> None:
    samples = _samples(12)
    rows = [
        replace(row, resident_bytes=row.resident_bytes + (300 * MIB if row.part == 4 and row.time_s % 60 > 40 else 0))
        for row in samples.rows
    ]
    assert all(g.flat(0.01) for g in growth(Samples(rows).columns(), 25))


def test_samples_become_a_table(tmp_path: Path) -> None:
    samples = _samples(1)
    samples.save(tmp_path / "memory.parquet")
    samples.save(tmp_path / "memory.csv")
    table = pq.read_table(tmp_path / "memory.parquet")
    assert table.num_rows == len(samples.rows)
    assert table.column_names[:5] == ["time_s", "part", "rank", "role", "pid"]
    assert pyarrow.csv.read_csv(tmp_path / "memory.csv").column("role").to_pylist() == table.column("role").to_pylist()


def test_memory_of_processes() -> None:
    import os

    found = memory_of(os.getpid())
    assert found is not None
    assert found.resident_bytes > found.anonymous_bytes > MIB
    code = (  # in a process whose maps nobody else has shaped
        "import os, numpy as np; from tests.tools.processes import mapped_of\n"
        "before = mapped_of(os.getpid()); reserved = np.empty(300 << 20, np.uint8); reserved[: 50 << 20] = 1\n"
        "after = mapped_of(os.getpid()); print(before.proportional_bytes, after.reserved_bytes - before.reserved_bytes)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=PROCESS_S, check=True)
    proportional, grown = map(int, done.stdout.split())
    assert proportional > MIB
    assert 49 * MIB < grown < 100 * MIB
    assert mapped_of(2**22 + 5) is None
    assert memory_of(2**22 + 5) is None
    assert left_of("nobody has this mark") == []
    assert MARK not in os.environ


# ---------------------------------------------------------------- capacity


def test_capacity_is_found_by_doubling_and_halving(tmp_path: Path) -> None:
    shape = Shape()
    for limit in (3_000.0, 70_000.0, 400_000.0):
        tried: list[float] = []

        def attempt(_shape: Shape, rate: float, *_: Any, limit: float = limit, tried: list[float] = tried) -> Trial:
            tried.append(rate)
            return Trial(rate, 19.0, rate <= limit, "x")

        found = find_capacity(shape, 6, tmp_path / "trials", lambda line: None, attempt).rate_per_s
        assert limit / 1.3 < found <= limit
        assert tried[0] == FIRST_RATE
    with pytest.raises(RunFailed, match="is the machine busy"):
        find_capacity(shape, 6, tmp_path, lambda line: None, lambda s, rate, *_: Trial(rate, 19.0, False, "x"))


def test_a_trial_keeps_up_when_its_end_is_on_time() -> None:
    end = np.arange(0, 19_000_000, 200_000)
    pairs = np.full(len(end), 10)
    calm = {"epoch_end_us": end, "pairs": pairs, "delay_mean_us": np.where(end < 5e6, 3e6, 1e5)}
    assert keeps_up(calm, 19, 0.2)[0]
    late = {**calm, "delay_mean_us": np.full(len(end), 5e5)}
    assert keeps_up(late, 19, 0.2) == (False, "mean production delay of the last third 500 ms")
    assert not keeps_up({**calm, "pairs": 0 * pairs}, 19, 0.2)[0]


def test_bytes_of_results_follow_from_a_trial() -> None:
    shape = Shape(window_s=10)
    trial = Trial(1000, 19, True, "", pairs=280, result_bytes=28_000)  # 2 * 10 * 19 - 100 = 280
    assert result_bytes(trial, shape, 1000, 19) == pytest.approx(28_000)
    assert result_bytes(trial, shape, 2000, 60) == pytest.approx(4 * 28_000 * 1100 / 280)


def test_the_shape_moves_resizes_and_recovers() -> None:
    config = Shape(window_s=1.5, checkpoint_s=0.5, sink="count").config(1234, 90)
    assert (config.workload.duration_us, config.query.upper_us, config.workload.bias) == (90_000_000, 1_500_000, 0.7)
    assert (config.reorganization.policy, config.reorganization.declustering) == ("random", "adaptive")
    assert config.checkpoint.enabled
    assert config.checkpoint.recover


# ---------------------------------------------------------------- the answer


@pytest.mark.parametrize("bounds", [Bounds(-300_000, 300_000), Bounds(100_000, 900_000), Bounds(-700_000, -100_001)])
def test_the_answer_by_slices_is_that_of_all_pairs(bounds: Bounds) -> None:
    workload = WorkloadConfig(300, 3_050_000, 0.7, 50, schedule=ScheduleConfig("step", 0.2, 1_000_000))
    streams = []
    for stream in range(2):
        parts = [slot_tuples(workload, 5, stream, slot) for slot in range(slot_count(workload))]
        ts, key = (np.concatenate([part[i] for part in parts]) for i in (0, 1))
        streams.append(TupleBatch(key, ts, np.arange(len(ts), dtype=np.uint64), ts))
    i, j = brute_force(streams[0], streams[1], bounds)
    answer = (len(i), format_digest(pair_digest(streams[0].id[i], streams[1].id[j])))
    assert len(list(slices(workload, 5, bounds, 100))) > 5
    assert expected(workload, 5, bounds, 100) == expected(workload, 5, bounds) == answer


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    config = Shape(sink="count").config(100, 1)
    report = {"results": {"count": 2, "digest": "b"}, "ledger": {"balanced": False, "complaints": ["a tuple"]}}
    soak = Soak(config, tmp_path, 4, 60, 1)
    (tmp_path / "run" / "checkpoints").mkdir(parents=True)
    (tmp_path / "run" / "checkpoints" / "x").touch()
    wrong = check(soak, report, {"processes": 1}, (1, "a"))
    for text, line in zip(["DuckDB has 1", "a tuple", "left behind in checkpoints: ['x']", "1 processes"], wrong, strict=True):
        assert text in line
    shutil.rmtree(tmp_path / "run")
    good = {"results": {"count": 1, "digest": "a"}, "ledger": {"balanced": True}}
    assert check(soak, good, {"processes": 0}, (1, "a")) == []


# ---------------------------------------------------------------- a real one, and its figure


def test_only_an_older_soak_is_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine").touch()
    assert main(["1", "--out", str(tmp_path), "--rate", "100"]) == 2
    assert "holds no soak" in capsys.readouterr().err
    assert (tmp_path / "mine").exists()
    with pytest.raises(UserError, match="no soak that has ended"):
        soak_figure.plot(tmp_path)


@pytest.mark.mpi
@pytest.mark.long
def test_a_short_soak(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A rank is killed, then somebody whose death ends the run, which is resumed; all that holds for half an hour holds."""
    times = ["--window", "500ms", "--epoch", "100ms", "--checkpoint", "500ms", "--every", "1500ms"]
    more = [
        "--rate",
        "2000",
        "--domain",
        "1000",
        "-n",
        "5",
        "--seed",
        "3",
        "--most",
        "2",
        "--table",
        str(tmp_path / "memory.csv"),
        "--keep",
    ]
    code = main(["0.1", *times, *more, "--out", str(tmp_path / "soak")])
    said = capsys.readouterr()
    assert code == 0, said.err + said.out
    assert "right: count and digest, ledger, nothing left behind" in said.out
    told = json.loads((tmp_path / "soak" / "soak.json").read_text())
    assert told["results"]["count"] == told["answer"][0] > 1000
    first, second = (strike["kind"] for strike in told["strikes"])
    assert first in SURVIVED
    assert second in ENDING
    assert len(told["parts"]) == 2
    assert [told["left"]["processes"], told["wrong"]] == [0, []]
    table = pyarrow.csv.read_csv(tmp_path / "memory.csv")
    assert set(table.column("role").to_pylist()) == {"master", "collector", "slave"}
    assert min(table.column("resident_bytes").to_pylist()) > 0
    fig = soak_figure.plot(tmp_path / "soak")
    assert [axis.get_ylabel() for axis in fig.axes][:2] == ["resident memory (MiB)", "slaves"]
    assert len(fig.axes[0].lines) >= 5 + len(told["strikes"])
    assert (tmp_path / "soak" / "plots" / "soak.png").exists()
    assert list((tmp_path / "soak" / "run" / "results").glob("part-*"))


def test_growth_is_a_value() -> None:
    assert Growth("master", 100.0, 1.0, 1.0, 0.0, 181.0).flat(0.01)
    assert not Growth("master", 100.0, 1.1, 0.0, 0.0, 181.0).flat(0.01)
    assert not Growth("master", 100.0, 0.0, 1.1, 0.5, 181.0).flat(0.01)
    assert Growth("master", 100.0, 0.0, 1.1, 0.6, 181.0).flat(0.01)  # may be chance
