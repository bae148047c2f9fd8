"""Workloads of the benchmarks: the reference workload and its variants (SPEC section 6), with their expected answers.

What: `stream` (one whole stream in memory), `deliveries` (as the master sends them), `expected` (count and digest, by sorting),
`write_streams` (Parquet with the 48-byte payload).
Why: every measurement checks its answer in the same run, against a computation that shares no code with the join.
Stays out: measuring.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
from numba import njit
from numpy.typing import NDArray

from swjoin.config.run import WorkloadConfig
from swjoin.connectors.generator.bmodel import payload_bytes, slot_count, slot_tuples
from swjoin.core.batch import TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.join_semantics import format_digest
from swjoin.policy.epochs import tuples_of_epoch
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition

WORKLOADS = {
    "reference": (WorkloadConfig(100_000, 30_000_000, 0.7), 10_000_000),
    "uniform": (WorkloadConfig(100_000, 30_000_000, 0.5), 10_000_000),
    "small": (WorkloadConfig(10_000, 60_000_000, 0.7), 10_000_000),
    "paper": (WorkloadConfig(1_500, 1_200_000_000, 0.7), 600_000_000),
}
TINY = 100  # times fewer tuples with --tiny
GROUPS = 60
EPOCH_TUPLES = 131_072  # the default of asap runs
I64 = NDArray[np.int64]
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)


def sized(workload: WorkloadConfig, tiny: bool) -> WorkloadConfig:
    """The workload itself, or the same time with few tuples."""
    return dataclasses.replace(workload, rate_per_s=workload.rate_per_s / TINY) if tiny else workload


def stream(workload: WorkloadConfig, index: int) -> TupleBatch:
    """One whole stream in memory."""
    parts = [slot_tuples(workload, 1, index, s) for s in range(slot_count(workload))]
    return from_columns(np.concatenate([p[1] for p in parts]), np.concatenate([p[0] for p in parts]))


def from_columns(key: I64, ts: I64) -> TupleBatch:
    """Rows as the master stamps them: batches of 65,536 share the moment at which they were read."""
    ids = np.arange(len(ts), dtype=np.uint64)
    return TupleBatch(key, ts, ids, ids.astype(np.int64) >> 16 << 16)


@njit
def _mix(h: np.uint64) -> np.uint64:
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xFF51AFD7ED558CCD)
    h ^= h >> np.uint64(33)
    h *= np.uint64(0xC4CEB9FE1A85EC53)
    return h ^ (h >> np.uint64(33))


@njit
def _merge_count(left: I64, right: I64, left_ts: I64, right_ts: I64, window: int) -> tuple[int, np.uint64]:
    """left, right: key << 32 | row, sorted, rows in time order. Counts and digests the pairs within the window."""
    rows = np.int64(0xFFFFFFFF)
    count = 0
    digest = np.uint64(0)
    start = 0
    for i in range(left.shape[0]):
        key, row = left[i] >> 32, left[i] & rows
        low, high = left_ts[row] - window, left_ts[row] + window
        while start < right.shape[0] and (
            right[start] >> 32 < key or (right[start] >> 32 == key and right_ts[right[start] & rows] < low)
        ):
            start += 1
        j = start
        while j < right.shape[0] and right[j] >> 32 == key and right_ts[right[j] & rows] <= high:
            count += 1
            digest += _mix(np.uint64(row) * _GOLDEN + _mix(np.uint64(right[j] & rows) * _GOLDEN + _GOLDEN))
            j += 1
    return count, digest


def expected(left: TupleBatch, right: TupleBatch, window_us: int) -> tuple[int, str]:
    """Count and digest by sorting both sides by (key, row) and walking through them together."""
    sides = [np.sort(b.key << 32 | np.arange(len(b), dtype=np.int64)) for b in (left, right)]
    count, digest = _merge_count(sides[0], sides[1], left.ts, right.ts, window_us)
    return int(count), format_digest(int(digest))


def epoch_of(left: TupleBatch, right: TupleBatch, window_us: int) -> int:
    """Tuples that an asap run delivers at a time once its windows are full."""
    first, last = min(left.ts[0], right.ts[0]), max(left.ts[-1], right.ts[-1])
    held = (len(left) + len(right)) * min(1.0, window_us / max(1, int(last - first)))
    return int(tuples_of_epoch(EPOCH_TUPLES, held))


def deliveries(
    left: TupleBatch, right: TupleBatch, epoch_tuples: int = EPOCH_TUPLES, groups: int = GROUPS, cell_bits: int = 0
) -> list[Delivery]:
    """Both streams cut into distribution epochs of about `epoch_tuples` tuples, for one slave. cell_bits: of a band's keys."""
    router = HashPartition(GroupMap(round_robin(groups, 1)), 1, cell_bits)
    start, end = int(min(left.ts[0], right.ts[0])), int(max(left.ts[-1], right.ts[-1])) + 1
    epoch_count = max(1, round((len(left) + len(right)) / epoch_tuples))
    epoch_us = -(-(end - start) // epoch_count)
    out = []
    for e in range(epoch_count):
        stop = start + epoch_us
        last = stop >= end
        parts = []
        for batch in (left, right):
            a, b = np.searchsorted(batch.ts, [start, stop])
            parts.append(router.partition(batch.slice(int(a), int(b))))
        one, two = parts
        mark = END_OF_TIME_US if last else stop
        ids = router.groups_in_order
        head = (QueryId(0), SlaveId(0), EpochIndex(e), mark, mark, ids, one.counts, two.counts, one.batch, two.batch)
        out.append(Delivery(*head, last))
        if last:
            break
        start = stop
    return out


def write_streams(folder: Path, name: str = "reference", *, tiny: bool = False) -> tuple[list[Path], tuple[int, str], int]:
    """The streams as Parquet; paths, the right answer, and the number of tuples of both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    workload, window_us = WORKLOADS[name]
    left, right = (stream(sized(workload, tiny), side) for side in range(2))
    paths = []
    for side, batch in enumerate((left, right)):
        data = payload_bytes(batch.id, 1, side, 48).reshape(-1)
        payload = pa.FixedSizeBinaryArray.from_buffers(pa.binary(48), len(batch), [None, pa.py_buffer(data)])
        path = folder / f"{name}-{side}.parquet"
        pq.write_table(pa.table({"ts": batch.ts, "key": batch.key, "payload": payload}), path, compression="lz4")
        paths.append(path)
    return paths, expected(left, right, window_us), len(left) + len(right)
