"""Splits of the generator: the rows of reading it all, in any order of splits and by any number of sources."""

from __future__ import annotations

import dataclasses
import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.config.run import ScheduleConfig, WorkloadConfig
from swjoin.connectors.generator import bmodel
from swjoin.connectors.generator import source as module
from swjoin.connectors.generator.source import GeneratorSource
from swjoin.connectors.source import SplitSource
from swjoin.core import splits
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.splits import Split

LEAST = 7  # rows of a range, so that small slots are cut


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(splits, "LEAST_ROWS", LEAST)
    monkeypatch.setattr(module, "BATCH_ROWS", 200)
    monkeypatch.setattr(module, "SPLIT_ROWS", 200)


def opened(workload: WorkloadConfig, stream: int = 1) -> GeneratorSource:
    return GeneratorSource(workload, 5, stream, carry_payload=True)


def rows(source: SplitSource) -> list[tuple[Any, ...]]:
    """Id, time, key and payload of every row."""
    found: list[tuple[Any, ...]] = []
    while (batch := source.read()) is not None:
        assert batch.rows is not None
        assert len(batch)
        payload = [row.tobytes() for row in batch.rows.fixed]
        found += zip(batch.id.tolist(), batch.ts.tolist(), batch.key.tolist(), payload, strict=True)
    return found


WORKLOADS = st.builds(
    WorkloadConfig,
    rate_per_s=st.sampled_from([0.1, 15, 300, 2_500, 12_345]),
    duration_us=st.integers(1, 1_450_000),
    bias=st.sampled_from([0.5, 0.7]),
    domain=st.sampled_from([1, 2, 1000, 1 << 20, 10**7]),
    payload_bytes=st.sampled_from([0, 12]),
    drift_us=st.sampled_from([0, 300_000]),
    schedule=st.sampled_from([ScheduleConfig(), ScheduleConfig("burst", factor=9.0, period_us=400_000, length_us=100_000)]),
)


@settings(max_examples=60, deadline=None)
@given(WORKLOADS, st.sampled_from([0, 1, 10_000, 35_000, 99_999, 100_000, 250_000, 1 << 62]), st.randoms(), st.integers(1, 3))
def test_all_splits_are_all_rows(workload: WorkloadConfig, reach_us: int, random: Any, sources: int) -> None:
    whole = rows(opened(workload))
    found = opened(workload).splits(reach_us)
    assert [split.row for split in found] == np.cumsum([0, *(split.rows for split in found)])[:-1].tolist()
    assert sum(split.rows for split in found) == len(whole)
    readers = [opened(workload) for _ in range(sources)]
    times = [row[1] for row in whole]
    for split in random.sample(found, len(found)):
        skip = random.choice([0, 0, random.randint(0, split.rows), split.rows])
        at, end = split.row + skip, split.row + split.rows
        reader = random.choice(readers)
        assert reader.open_split(split, skip) == max(times[:at], default=BEGIN_OF_TIME_US)
        assert rows(reader) == whole[at:end]
        assert reader.read() is None
        inside = times[split.row : end]
        assert inside
        assert split.low_us <= min(inside) <= max(inside) <= split.high_us
        assert split.before_us <= max(times[: split.row], default=BEGIN_OF_TIME_US)
        assert split.high_us - split.low_us <= reach_us or split.rows < 2 * LEAST or reach_us < bmodel.SLOT_US
    assert opened(workload).origin_us() == min(times, default=None)


def test_the_sizes_of_splits() -> None:
    even = WorkloadConfig(1_000, 1_000_000, payload_bytes=0)  # about 100 rows in a slot

    def sizes(reach_us: int, workload: WorkloadConfig = even) -> list[int]:
        return [split.rows for split in opened(workload).splits(reach_us)]

    counts = bmodel.slot_counts(even, 5, 1).tolist()
    assert sizes(100_000) == sizes(199_999) == counts
    pairs = sizes(10_000_000)
    assert sum(pairs) == sum(counts)
    assert max(pairs) <= 200 < min(a + b for a, b in itertools.pairwise(pairs))
    assert len(sizes(50_000)) == 20
    assert len(sizes(10_000)) == 100
    assert all(LEAST <= size < 2 * LEAST for size in sizes(1))
    few = dataclasses.replace(even, rate_per_s=20)
    assert all(size < LEAST for size in sizes(1, few)), "a slot of few rows is not cut"
    assert 0 not in sizes(1, few)


def test_a_range_makes_only_its_own_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    workload = WorkloadConfig(10_000, 200_000, payload_bytes=0)
    made, kernel, drawn, times = [], bmodel._bmodel_keys, [], bmodel.slot_times

    def counted(start: np.uint64, n: int, *more: Any) -> None:
        made.append(n)
        kernel(start, n, *more)

    def timed(*more: Any) -> Any:
        drawn.append(more[-1])
        return times(*more)

    monkeypatch.setattr(bmodel, "_bmodel_keys", counted)
    monkeypatch.setattr(module, "slot_times", timed)
    source = opened(workload)
    found = source.splits(10_000)
    assert len(found) == 20
    for split in found[3:6]:
        source.open_split(split)
        rows(source)
    assert made == [split.rows for split in found[3:6]]
    assert drawn == [0], "the times of a slot are made once"
    source.open_split(found[10])  # the greatest time of the slot before needs no order
    assert drawn == [0]


def test_the_whole_input_and_reading_from_the_start() -> None:
    workload = WorkloadConfig(2_000, 500_000, payload_bytes=4)
    whole = rows(opened(workload))
    source = opened(workload)
    assert source.why_whole is None
    for skip in (0, 333, len(whole)):
        before = source.open_split(Split(0, -1, 0, 0, BEGIN_OF_TIME_US), skip)
        assert before == max((row[1] for row in whole[:skip]), default=BEGIN_OF_TIME_US)
        assert rows(source) == whole[skip:]
    source.open_split(source.splits(1)[3])
    source.seek(0)
    assert rows(source) == whole


def test_a_split_of_another_workload() -> None:
    split = opened(WorkloadConfig(2_000, 500_000)).splits(1 << 40)[-1]
    with pytest.raises(RunFailed, match=r"rows up to [0-9]+ are asked for, there are [0-9]+; the workload is another"):
        opened(WorkloadConfig(1_000, 500_000)).open_split(split)
