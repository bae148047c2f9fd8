"""The paper's streams: deterministic, Poisson, b-model, with the schedules asked for."""

from __future__ import annotations

import numpy as np
import pytest

from swjoin.config import ScheduleConfig, WorkloadConfig
from swjoin.sources.bmodel import SLOT_US, payload_bytes, slot_count, slot_counts, slot_tuples
from swjoin.sources.generator import GeneratorSource


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


def test_payload_is_a_function_of_the_id() -> None:
    whole = payload_bytes(np.arange(100, dtype=np.uint64), 1, 0, 48)
    assert np.array_equal(whole[40:60], payload_bytes(np.arange(40, 60, dtype=np.uint64), 1, 0, 48))
    assert len(np.unique(whole, axis=0)) == 100
    assert not np.array_equal(whole, payload_bytes(np.arange(100, dtype=np.uint64), 1, 1, 48))


def test_generator_source_reads_every_slot_once() -> None:
    workload = WorkloadConfig(100_000, 1_550_000, payload_bytes=16)
    source = GeneratorSource(workload, 2, 1, carry_payload=True)
    batches = []
    while (batch := source.read()) is not None:
        batches.append(batch)
    ids = np.concatenate([b.id for b in batches])
    assert np.array_equal(ids, np.arange(source.rows_total))
    assert batches[-1].ts[-1] < 1_550_000
    assert batches[0].rows is not None
    assert batches[0].rows.layout == source.layout
