"""The paper's streams: deterministic, Poisson, b-model, with the schedules and drifts asked for."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from swjoin.config.run import ScheduleConfig, WorkloadConfig
from swjoin.connectors.generator import lsbench, nexmark
from swjoin.connectors.generator.bmodel import SLOT_US, drift_offset, payload_bytes, slot_count, slot_counts, slot_tuples
from swjoin.connectors.generator.source import GeneratorSource


def keys_of(workload: WorkloadConfig, seed: int = 1) -> np.ndarray:
    return np.concatenate([slot_tuples(workload, seed, 0, s)[1] for s in range(slot_count(workload))])


@pytest.mark.parametrize(("bias", "levels"), [(0.5, 10), (0.7, 10), (0.7, 14), (0.9, 12)])
def test_chance_of_equal_keys_is_the_b_models(bias: float, levels: int) -> None:
    keys = keys_of(WorkloadConfig(200_000, 2_000_000, bias, 1 << levels))
    counts = np.bincount(keys, minlength=1 << levels).astype(float)
    n = len(keys)
    measured = float((counts * (counts - 1)).sum() / (n * (n - 1)))
    assert measured == pytest.approx((bias**2 + (1 - bias) ** 2) ** levels, rel=0.05)


def test_a_domain_that_is_no_power_of_two_is_filled_to_its_edges() -> None:
    keys = keys_of(WorkloadConfig(100_000, 1_000_000, 0.5, 1000))
    counts = np.bincount(keys, minlength=1000)
    assert len(counts) == 1000
    assert counts.min() > 50
    assert counts.max() < 170


def test_arrivals_are_poisson() -> None:
    workload = WorkloadConfig(20_000, 20_000_000)
    ts = np.concatenate([slot_tuples(workload, 3, 1, s)[0] for s in range(slot_count(workload))])
    assert (np.diff(ts) >= 0).all()
    assert len(ts) == pytest.approx(400_000, rel=0.01)
    per_ms = np.bincount(ts // 1000, minlength=20_000)
    assert per_ms.mean() == pytest.approx(20, rel=0.02)
    assert per_ms.var() == pytest.approx(20, rel=0.06)


def test_slots_do_not_depend_on_each_other_or_on_the_seed_of_others() -> None:
    workload = WorkloadConfig(1000, 1_000_000)
    counts = slot_counts(workload, 5, 0)
    for slot in (7, 0, 9):
        ts, key = slot_tuples(workload, 5, 0, slot)
        assert len(ts) == len(key) == counts[slot]
        assert (ts // SLOT_US == slot).all()
    assert not np.array_equal(slot_tuples(workload, 5, 0, 3)[1], slot_tuples(workload, 5, 1, 3)[1])
    assert not np.array_equal(slot_tuples(workload, 5, 0, 3)[1], slot_tuples(workload, 6, 0, 3)[1])
    assert not np.array_equal(slot_tuples(workload, -1, 0, 3)[1], slot_tuples(workload, -2, 0, 3)[1])


@pytest.mark.parametrize(
    ("schedule", "inside", "outside", "ratio"),
    [
        (ScheduleConfig("step", factor=3.0, at_us=5_000_000), slice(50, 100), slice(0, 50), 3.0),
        (ScheduleConfig("burst", factor=4.0, period_us=2_000_000, length_us=500_000), slice(0, 5), slice(5, 20), 4.0),
        (ScheduleConfig("sine", amplitude=0.5, period_us=10_000_000), slice(20, 30), slice(70, 80), 3.0),
        (ScheduleConfig(), slice(0, 50), slice(50, 100), 1.0),
    ],
)
def test_schedules(schedule: ScheduleConfig, inside: slice, outside: slice, ratio: float) -> None:
    counts = slot_counts(WorkloadConfig(50_000, 10_000_000, schedule=schedule), 1, 0)
    assert counts[inside].mean() / counts[outside].mean() == pytest.approx(ratio, rel=0.06)


# ---------------------------------------------------------------- drifting hot keys

DRIFTING = WorkloadConfig(100_000, 2_000_000, 0.8, 1 << 12, drift_us=500_000)
STEADY = dataclasses.replace(DRIFTING, drift_us=0)


def pair_count(left: np.ndarray, right: np.ndarray, domain: int) -> int:
    return int(np.bincount(left, minlength=domain) @ np.bincount(right, minlength=domain))


def test_the_rows_of_a_seed_stay_what_they_were() -> None:
    """Runs and streams written by earlier versions can still be verified: without drift, not one bit has changed."""
    found = []
    for workload in (WorkloadConfig(3_000, 2_000_000, 0.7, 5_000, 12), WorkloadConfig(3_000, 400_000, 0.7, (1 << 62) - 1)):
        for stream in range(2):
            digest = hashlib.sha256(slot_counts(workload, 4, stream).tobytes())
            for slot in range(slot_count(workload)):
                ts, key = slot_tuples(workload, 4, stream, slot)
                digest.update(ts.tobytes() + key.tobytes())
            found.append(digest.hexdigest()[:16])
    assert found == ["0a4cac992470d4df", "b0170f1782891b49", "683246f558ecf6fb", "87bf48738e563615"]


def test_nothing_differs_before_the_first_drift_and_times_never_do() -> None:
    assert np.array_equal(slot_counts(DRIFTING, 1, 1), slot_counts(STEADY, 1, 1))
    for slot in range(slot_count(DRIFTING)):
        (ts, key), (steady_ts, steady_key) = slot_tuples(DRIFTING, 1, 1, slot), slot_tuples(STEADY, 1, 1, slot)
        assert np.array_equal(ts, steady_ts)
        assert np.array_equal(key, steady_key) == (slot < 5)
        assert key.dtype == steady_key.dtype == np.int64


def test_other_keys_are_hot_after_every_drift() -> None:
    periods = np.split(np.arange(slot_count(DRIFTING)), 4)
    hot = []
    for slots in periods:
        keys = np.concatenate([slot_tuples(DRIFTING, 1, 0, s)[1] for s in slots])
        counts = np.bincount(keys, minlength=DRIFTING.domain)
        hot.append(set(np.argsort(counts)[-5:].tolist()))
        assert int(counts.argmax()) == drift_offset(DRIFTING, int(slots[0]))
    assert len(set.union(*hot)) == 4 * 5


@pytest.mark.parametrize("domain", [2, 3, 4, 6, 10, 97, 1000, 1 << 12, 10_000_000, 1 << 61, (1 << 62) - 1])
def test_no_hot_key_returns_before_all_have_been_hot(domain: int) -> None:
    workload = WorkloadConfig(10, 60_000_000, domain=domain, drift_us=SLOT_US)
    offsets = [drift_offset(workload, slot) for slot in range(min(domain, 600))]
    assert len(set(offsets)) == len(offsets)
    assert 0 <= min(offsets) <= max(offsets) < domain
    far = min((b - a) % domain for a, b in itertools.pairwise(offsets))
    assert far >= domain // 3


def test_a_domain_of_one_key_cannot_drift() -> None:
    workload = WorkloadConfig(1_000, 1_000_000, domain=1, drift_us=200_000)
    assert not keys_of(workload).any()


@pytest.mark.parametrize("drift_us", [250_000, 30_000_000, 10_000])
def test_a_drift_takes_effect_at_the_next_slot(drift_us: int) -> None:
    workload = WorkloadConfig(10, 60_000_000, domain=1 << 12, drift_us=drift_us)
    step = drift_offset(dataclasses.replace(workload, drift_us=SLOT_US), 1)
    for slot in range(slot_count(workload)):
        assert drift_offset(workload, slot) == slot * SLOT_US // drift_us * step % (1 << 12)


@pytest.mark.parametrize("domain", [1000, 1 << 12, (1 << 62) - 1])
def test_both_streams_rotate_alike(domain: int) -> None:
    drifting, steady = (dataclasses.replace(w, domain=domain) for w in (DRIFTING, STEADY))
    for slot in range(slot_count(drifting)):
        keys = [slot_tuples(drifting, 1, stream, slot)[1] for stream in range(2)]
        drawn = [slot_tuples(steady, 1, stream, slot)[1] for stream in range(2)]
        for key, steady_key in zip(keys, drawn, strict=True):
            assert 0 <= key.min() <= key.max() < domain
            assert np.array_equal((key - drift_offset(drifting, slot)) % domain, steady_key)
        assert np.isin(*keys).sum() == np.isin(*drawn).sum()
        if domain <= 1 << 12:
            assert pair_count(*keys, domain) == pair_count(*drawn, domain) > 0


def test_chance_of_equal_keys_within_and_across_drifts() -> None:
    keys = [slot_tuples(DRIFTING, 1, 0, s)[1] for s in range(slot_count(DRIFTING))]
    periods = [np.concatenate(keys[first : first + 5]) for first in range(0, 20, 5)]
    chance = (0.8**2 + 0.2**2) ** 12
    for i, one in enumerate(periods):
        for j, two in enumerate(periods):
            equal = pair_count(one, two, DRIFTING.domain) - (len(one) if i == j else 0)
            measured = equal / (len(one) * (len(two) - (i == j)))
            if i == j:
                assert measured == pytest.approx(chance, rel=0.08)
            else:
                assert measured < chance / 5


def test_generate_takes_a_drift(swjoin: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[WorkloadConfig] = []

    def generate(workload: WorkloadConfig, *_: object) -> tuple[int, int]:
        seen.append(workload)
        return 0, 0

    monkeypatch.setattr("swjoin.spark.generate.generate", generate)
    argv = ["generate", "--rate", "10", "--duration", "1s", "-o", "streams"]
    assert swjoin(*argv).code == 0
    assert swjoin(*argv, "--drift", "10s").code == 0
    assert [workload.drift_us for workload in seen] == [0, 10_000_000]
    done = swjoin(*argv, "--drift=-1s")
    assert done.code == 2
    assert "drift must not be negative" in done.err[0]


def test_generate_makes_nexmark_in_this_process(swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "auction"
    argv = ["generate", "--workload", "nexmark", "--engine", "local", "-o", str(out)]
    done = swjoin(*argv, "--events", 2_500, "--seed", 3)
    assert done.code == 0
    assert "2,300 rows of bid" in done.out
    for name, table in (nexmark.tables(0, 2_500, 3) | {"side_input": nexmark.side_input()}).items():
        assert pq.read_table(out / name) == table
    query = "SELECT count(*) AS n, window_end FROM TUMBLE(bid, date_time, INTERVAL '1' DAY) GROUP BY window_start, window_end"
    assert swjoin("query", query, "--table", f"bid={out / 'bid'}:date_time", "-o", str(tmp_path / "n.parquet")).code == 0
    assert pq.read_table(tmp_path / "n.parquet")["n"].to_pylist() == [2_300]


def test_generate_makes_lsbench_in_this_process(swjoin: Any, tmp_path: Path) -> None:
    out = tmp_path / "network"
    argv = ["generate", "--workload", "lsbench", "--engine", "local", "-o", str(out)]
    done = swjoin(*argv, "--events", 2_000, "--users", 50, "--seed", 3)
    assert done.code == 0
    assert "600 rows of likedpoststream" in done.out
    for name in (*lsbench.STREAMS, lsbench.GRAPH):
        made = lsbench.made(name, 0, 50 if name == lsbench.GRAPH else 2_000, 50, 3)
        assert pq.read_table(out / name) == made


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--workload", "nexmark"], "--workload nexmark needs a number of events"),
        (["--workload", "nexmark", "--events", "0"], "needs a number of events from 1 on"),
        (["--workload", "nexmark", "--events", "9", "--rate", "5"], "--rate: is for --workload bmodel"),
        (["--workload", "nexmark", "--events", "9", "--seed", str(1 << 60)], "takes one below 2^53"),
        (["--rate", "5", "--duration", "1s", "--events", "9"], "--events: is for --workload nexmark"),
        (["--rate", "5", "--duration", "1s", "--engine", "local"], "--engine local: is for --workload nexmark"),
        (["--rate", "5", "--duration", "1s", "--users", "9"], "--users: is for --workload lsbench"),
        (["--workload", "lsbench"], "--workload lsbench needs a number of events"),
        (["--workload", "lsbench", "--events", "9", "--users", "0"], "--users 0: must be from 1 to"),
        (["--rate", "5"], "--duration: missing; --workload bmodel needs both"),
        ([], "--rate and --duration: missing"),
    ],
)
def test_generate_refuses_options_of_the_other_workload(words: list[str], message: str, swjoin: Any, tmp_path: Path) -> None:
    done = swjoin("generate", *words, "-o", str(tmp_path / "out"))
    assert done.code == 2
    assert message in done.err[0]
    assert not (tmp_path / "out").exists()


def test_payload_is_a_function_of_the_id() -> None:
    whole = payload_bytes(np.arange(100, dtype=np.uint64), 1, 0, 48)
    assert np.array_equal(whole[40:60], payload_bytes(np.arange(40, 60, dtype=np.uint64), 1, 0, 48))
    assert len(np.unique(whole, axis=0)) == 100
    assert not np.array_equal(whole, payload_bytes(np.arange(100, dtype=np.uint64), 1, 1, 48))


def test_generator_source_reads_every_slot_once() -> None:
    workload = WorkloadConfig(100_000, 1_550_000, payload_bytes=16, drift_us=400_000)
    source = GeneratorSource(workload, 2, 1, carry_payload=True)
    batches = []
    while (batch := source.read()) is not None:
        batches.append(batch)
    ids = np.concatenate([b.id for b in batches])
    assert np.array_equal(ids, np.arange(source.rows_total))
    assert batches[-1].ts[-1] < 1_550_000
    drawn = np.concatenate([slot_tuples(workload, 2, 1, s)[1] for s in range(slot_count(workload))])
    assert np.array_equal(np.concatenate([b.key for b in batches]), drawn)
    assert batches[0].rows is not None
    assert batches[0].rows.layout == source.layout
