"""The input profile of a run: arrival times, payload widths, and key distribution.

What: `InputProfile`; `workload_profile` from the workload section, `file_profile` from the files' metadata and first rows.
Why: memory is estimated from rates, widths and skew; a forecast must name the source of each.
Stays out: bytes (`forecast.memory`), intervals of the model (`forecast.key_distribution`).

Keys become cells: expected shares by partition-group and the lowest bits of the hash, by which a directory is indexed. Of a
workload every key's mass is computed up to 2^24 keys; of larger domains the heaviest, and the rest is spread evenly. Of files
the first rows are a sample.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from swjoin.config.run import RunConfig, WorkloadConfig
from swjoin.connectors.generator.bmodel import SLOT_US, drift_offset, level_count, rate_factor
from swjoin.connectors.source import Source
from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, SourceBatch
from swjoin.core.errors import UserError
from swjoin.core.hashing import group_of, hash_key
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.kernel_cache import kernel
from swjoin.forecast.key_distribution import mass_tables, mass_up_to
from swjoin.forecast.model.batch import F64

if TYPE_CHECKING:
    from swjoin.connectors.files.source import FileSource

_EXACT_KEYS = 1 << 24
_HEAVY_KEYS = 1 << 18
_MOST_ROTATIONS = 4  # of a window; more of them are assumed to mix evenly
_SAMPLE_BATCHES = 2


class NotEstimableError(UserError):
    """The input cannot be estimated before the run."""


@dataclass(frozen=True)
class HashCells:
    """Shares of a window's tuples: float64 (partition-groups, 2^depth); each stream sums to 1. top: share of the cell's most
    frequent key."""

    left: F64
    right: F64
    top: F64


class Keys(Protocol):
    """A distribution of keys over cells."""

    def cells(self, partition_count: int, depth: int, begin_us: float, end_us: float) -> HashCells:
        """Cells of the tuples that arrive between these times, from the start of the streams."""
        ...


@dataclass(frozen=True)
class InputProfile:
    """Arrivals, widths and keys of both streams.

    times_us: float64 (k,), from the start of the streams, ascending.
    arrived: per stream, float64 (k,), tuples that have arrived by then; linear in between.
    fixed_bytes, tail_bytes: per stream, delivered payload of a row.
    origin: source of the figures. drifts: hot keys change. coded: keys are codes of a dictionary.
    """

    times_us: F64
    arrived: tuple[F64, F64]
    fixed_bytes: tuple[int, int]
    tail_bytes: tuple[float, float]
    keys: Keys
    origin: str
    drifts: bool = False
    coded: bool = False

    def between(self, stream: int, begin_us: float | F64, end_us: float | F64) -> F64:
        """Expected tuples of a stream that arrive between these times."""
        until = np.interp(end_us, self.times_us, self.arrived[stream])
        return np.asarray(until - np.interp(begin_us, self.times_us, self.arrived[stream]), np.float64)

    def at_rates(self, rates_per_s: tuple[float, float], retention_us: int) -> InputProfile:
        """The same keys and widths at constant rates, long enough to fill windows of this length."""
        times = np.array([0.0, 10.0 * retention_us + 3.6e9])
        left, right = (rate * times / 1e6 for rate in rates_per_s)
        return replace(self, times_us=times, arrived=(left, right), origin=f"rates as given; {self.origin}")


def carries_payload(config: RunConfig) -> bool:
    """Whether payload is read and delivered."""
    return config.sink.kind != "count" or config.sink.carry_payload


# ---------------------------------------------------------------- the workload section


@kernel
def _add_keys(
    domain: int,
    levels: int,
    upper: F64,
    before_upper: F64,
    before_lower: F64,
    offset: int,
    groups: int,
    size: int,
    share: F64,
    top: F64,
) -> None:
    """Add every key's mass, rotated by `offset`, to its cell."""
    before = 0.0
    for k in range(domain):
        after = 1.0 if k == domain - 1 else mass_up_to(k, domain, levels, upper, before_upper, before_lower)
        key = k + offset
        hashed = hash_key(key - domain if key >= domain else key)
        cell = group_of(hashed, groups) * size + np.int64(hashed & np.uint64(size - 1))
        mass = max(after - before, 0.0)
        share[cell] += mass
        top[cell] = max(top[cell], mass)
        before = after


@kernel
def _add_some(keys: I64, masses: F64, groups: int, size: int, share: F64, top: F64) -> None:
    for i in range(keys.shape[0]):
        hashed = hash_key(keys[i])
        cell = group_of(hashed, groups) * size + np.int64(hashed & np.uint64(size - 1))
        share[cell] += masses[i]
        top[cell] = max(top[cell], masses[i])


@kernel(allocates=True)
def _leaves_with(ones: int, count: int) -> I64:
    """The first `count` numbers with `ones` bits set, ascending."""
    out = np.empty(count, np.int64)
    leaf = (1 << ones) - 1
    for i in range(count):
        out[i] = leaf
        if ones == 0:
            break
        low = leaf & -leaf  # the next number with as many bits
        ripple = leaf + low
        leaf = ripple | (((leaf ^ ripple) >> 2) // low)
    return out


@functools.lru_cache(maxsize=4)
def _heavy_keys(domain: int, bias: float) -> tuple[I64, F64]:
    """The heaviest 2^18 or so keys of a large domain, and their masses: leaves with few upper halves."""
    levels = (domain - 1).bit_length()
    leaves, masses = [np.empty(0, np.int64)], [np.empty(0)]
    for ones in range(levels + 1):
        count = math.comb(levels, ones)
        if ones and sum(len(part) for part in leaves) + count > _HEAVY_KEYS:
            break
        leaves.append(_leaves_with(ones, count))
        masses.append(np.full(count, bias ** (levels - ones) * (1.0 - bias) ** ones))
    leaf = np.concatenate(leaves)
    key = leaf if domain == 1 << levels else (leaf / 2.0**levels * domain).astype(np.int64)
    return key, np.concatenate(masses)


@functools.lru_cache(maxsize=16)
def _rotated(domain: int, bias: float, offset: int, groups: int, depth: int) -> tuple[F64, F64]:
    size = 1 << depth
    share, top = np.zeros(groups * size), np.zeros(groups * size)
    if domain <= _EXACT_KEYS:
        levels = level_count(domain)
        _add_keys(domain, levels, *mass_tables(levels, bias), offset, groups, size, share, top)
    else:
        keys, masses = _heavy_keys(domain, bias)
        _add_some((keys + offset) % domain, masses, groups, size, share, top)
        share += max(0.0, 1.0 - masses.sum()) / len(share)
    return share.reshape(groups, size), top.reshape(groups, size)


@dataclass(frozen=True)
class BModelKeys:
    """Keys of the generator, the same for both streams."""

    workload: WorkloadConfig

    def cells(self, partition_count: int, depth: int, begin_us: float, end_us: float) -> HashCells:
        workload = self.workload
        last = max(int(end_us) - 1, 0) // SLOT_US
        first = max(int(begin_us), 0) // SLOT_US
        offsets = [drift_offset(workload, slot) for slot in np.linspace(first, last, 64).astype(int).tolist()]
        unique, times = np.unique(np.array(offsets, np.int64), return_counts=True)
        counts = times.astype(np.float64)
        if len(unique) > _MOST_ROTATIONS:
            unique = unique[np.linspace(0, len(unique) - 1, _MOST_ROTATIONS).astype(int)]
            counts = np.ones(len(unique))
        weights = counts / counts.sum()
        share, top = np.zeros((partition_count, 1 << depth)), np.zeros((partition_count, 1 << depth))
        for offset, weight in zip(unique.tolist(), weights.tolist(), strict=True):
            one, heaviest = _rotated(workload.domain, workload.bias, offset, partition_count, depth)
            share += weight * one
            np.maximum(top, weight * heaviest, out=top)
        return HashCells(share, share, top)


def workload_profile(config: RunConfig) -> InputProfile:
    """The profile of generated streams."""
    workload = config.workload
    edges = np.unique(np.append(np.arange(0, workload.duration_us, SLOT_US), workload.duration_us))
    factor = rate_factor(workload.schedule, edges[:-1] // SLOT_US * SLOT_US + SLOT_US // 2)
    arrived = np.concatenate([[0.0], np.cumsum(workload.rate_per_s * factor * np.diff(edges) / 1e6)])
    width = workload.payload_bytes + 1 if carries_payload(config) else 0  # a row starts with a byte of null flags
    return InputProfile(
        edges.astype(np.float64),
        (arrived, arrived),
        (width, width),
        (0.0, 0.0),
        BModelKeys(workload),
        "the workload section",
        drifts=workload.drift_us > 0,
    )


# ---------------------------------------------------------------- files


@kernel(allocates=True)
def _groups_of(keys: I64, groups: int) -> I64:
    out = np.empty(keys.shape[0], np.int64)
    for i in range(keys.shape[0]):
        out[i] = group_of(hash_key(keys[i]), groups)
    return out


@dataclass(frozen=True)
class SampledKeys:
    """Keys of a sample of both streams: distinct keys, and their shares of each stream."""

    keys: I64
    shares: tuple[F64, F64]

    @staticmethod
    def of(samples: tuple[I64, I64]) -> SampledKeys:
        unique, index = np.unique(np.concatenate(samples), return_inverse=True)
        cut = len(samples[LEFT])
        counts = [np.bincount(part, minlength=len(unique)) for part in (index[:cut], index[cut:])]
        left, right = (c / max(1, c.sum()) for c in counts)
        return SampledKeys(unique.astype(np.int64), (left, right))

    def groups(self, partition_count: int) -> I64:
        """The partition-group of every key."""
        found: I64 = _groups_of(self.keys, partition_count)
        return found

    def cells(self, partition_count: int, depth: int, begin_us: float, end_us: float) -> HashCells:
        size = 1 << depth
        out, tops = [], []
        for masses in self.shares:
            share, top = np.zeros(partition_count * size), np.zeros(partition_count * size)
            _add_some(self.keys, masses, partition_count, size, share, top)
            out.append(share.reshape(partition_count, size))
            # a key that occurs once may be a rare one: only repeated keys are known to be frequent
            tops.append(np.where(top > 2.5 * masses[masses > 0].min(initial=1.0), top, 0.0).reshape(partition_count, size))
        return HashCells(out[LEFT], out[RIGHT], np.maximum(tops[LEFT], tops[RIGHT]))


def _sample(source: Source) -> list[SourceBatch]:
    return [batch for batch in (source.read() for _ in range(_SAMPLE_BATCHES)) if batch is not None]


def _statistics(source: FileSource) -> Iterator[tuple[float, float, int]]:
    """First time, last time and rows of every row group, from Parquet metadata. NotEstimableError without them."""
    from swjoin.connectors.files.inputs import file_format

    if file_format(source.files[0]) != "Parquet":
        raise NotEstimableError(f"{source.files[0]}: only Parquet metadata have rows and times; give the rate with --rate")
    splits = source.splits(2 * END_OF_TIME_US)
    if splits is None:
        raise NotEstimableError(f"{source.why_whole}; give the rate with --rate")
    for split in splits:
        if split.low_us <= split.high_us:  # has a row with a time
            yield float(split.low_us), float(split.high_us), split.rows


def _thinned(groups: list[tuple[float, float, int]], most: int = 1000) -> list[tuple[float, float, int]]:
    """Row groups merged with their neighbours into at most `most`."""
    step = max(1, -(-len(groups) // most))
    parts = [groups[i : i + step] for i in range(0, len(groups), step)]
    return [(min(g[0] for g in part), max(g[1] for g in part), sum(g[2] for g in part)) for part in parts]


def _arrivals(streams: list[list[tuple[float, float, int]]]) -> tuple[F64, tuple[F64, F64]]:
    """Times from the start of the streams, and the tuples of each stream that have arrived by then."""
    origin = min((low for groups in streams for low, _, _ in groups), default=0.0)
    times = np.unique([0.0, 1.0, *(t - origin for groups in streams for low, high, _ in groups for t in (low, high + 1))])
    arrived = []
    for groups in streams:
        total = np.zeros(len(times))
        for low, high, rows in _thinned(groups):
            total += rows * np.clip((times - (low - origin)) / (high + 1 - low), 0.0, 1.0)
        arrived.append(total)
    return times, (arrived[LEFT], arrived[RIGHT])


def file_profile(config: RunConfig, *, with_rates: bool, open_sources: Callable[[], tuple[Source, Source]]) -> InputProfile:
    """The profile of files: keys and widths by the first rows; arrivals by the metadata, unless rates will be given
    (`at_rates`). NotEstimableError when the metadata have no rows and times.
    """
    sources: Any = open_sources()
    try:
        groups = [list(_statistics(source)) for source in sources] if with_rates else [[], []]
        samples = [_sample(source) for source in sources]
    finally:
        for source in sources:
            source.close()
    keys: list[I64] = []
    fixed: list[int] = []
    tails: list[float] = []
    for source, batches in zip(sources, samples, strict=True):
        valid = [b.key if b.key_valid is None else b.key[b.key_valid] for b in batches]
        keys.append(np.concatenate([np.empty(0, np.int64), *valid]))
        rows = [b.rows for b in batches if b.rows is not None]
        count = sum(len(r) for r in rows)
        fixed.append(0 if source.layout is None else source.layout.fixed_bytes)
        tails.append(sum(r.nbytes - r.fixed.nbytes for r in rows) / count if count else 0.0)
    times, arrived = _arrivals(groups)
    sampled = " and ".join(f"{len(k):,} {name} rows" for k, name in zip(keys, STREAM_NAMES, strict=True))
    return InputProfile(
        times,
        arrived,
        (fixed[LEFT], fixed[RIGHT]),
        (tails[LEFT], tails[RIGHT]),
        SampledKeys.of((keys[LEFT], keys[RIGHT])),
        f"{'row counts and times of the files; ' if with_rates else ''}widths and keys of the first {sampled}",
        coded=sources[LEFT].dictionary is not None,
    )
