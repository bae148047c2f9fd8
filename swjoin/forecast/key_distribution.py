"""Distribution of generated streams over partition-groups, without generating them.

What: `key_distribution`: expected tuples per interval of time, and the shares of the partition-groups by the exact key masses
of the b-model, rotated by the drift; `draw`, random counts of one interval.
Why: the work of each slave follows from the number of tuples in its partition-groups and how often two of them are equal.
Stays out: single tuples (`connectors.generator.bmodel`), joining counts (`forecast.model.join`).

Keys. Up to 2^27 of them every key's mass is computed (a cell of the domain is a range of leaves of the halvings, its mass a
difference of the distribution function) and hashed as the router does. Larger domains are treated as 2^k leaves: the 2^22 or so
heaviest are hashed one by one, the others, each below a millionth of a partition-group, are spread evenly.
Intervals (`stretch` in the code). Time is cut at every end of a slot of the distribution epoch, with several gateways in
realtime pace at the ends of as many parts of it, at every 100 ms where the rate changes, at every rotation, and so often that
an interval is at most 1/8 of what a gateway may buffer.
"""

from __future__ import annotations

import functools
import math
from typing import Any

import numpy as np

from swjoin.config.run import RunConfig
from swjoin.connectors.generator.bmodel import SLOT_US, drift_offset, level_count, rate_factor
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import I64
from swjoin.core.hashing import group_of, hash_key
from swjoin.core.kernel_cache import kernel
from swjoin.forecast.model.batch import F64, TUPLE_BYTES, KeyDistribution
from swjoin.policy.epochs import slot_end_us

_EXACT_KEYS = 1 << 27
_HEAVY_KEYS = 1 << 22


def leaf_masses(levels: int, bias: float) -> F64:
    """Mass of each of the 2^levels leaves."""
    out = np.ones(1)
    for _ in range(levels):
        out = np.outer(out, [bias, 1.0 - bias]).reshape(-1)
    return out


def mass_tables(levels: int, bias: float) -> tuple[F64, F64, F64]:
    """For the upper half of a leaf's bits: mass, and mass of all before; for the lower half: mass of all before."""
    upper, lower = (leaf_masses(bits, bias) for bits in (levels - levels // 2, levels // 2))
    return upper, np.cumsum(upper) - upper, np.cumsum(lower) - lower


@kernel(inline="always")
def mass_up_to(key, domain, levels, upper, before_upper, before_lower):  # type: ignore[no-untyped-def]
    """Mass of all keys up to this one, below domain - 1: of the leaves with floor(leaf * domain / 2^levels) <= key.

    The lower bits of a leaf are distributed as all bits are, so the mass before it takes two table look-ups.
    """
    leaf = ((key + 1) << levels) // domain + (1 if ((key + 1) << levels) % domain else 0)
    bits = levels // 2
    return before_upper[leaf >> bits] + upper[leaf >> bits] * before_lower[leaf & ((1 << bits) - 1)]


@kernel
def _key_masses(domain: int, levels: int, upper: F64, before_upper: F64, before_lower: F64, out: F64) -> None:
    """Mass of every key."""
    before = 0.0
    for key in range(domain):
        after = 1.0 if key == domain - 1 else mass_up_to(key, domain, levels, upper, before_upper, before_lower)
        out[key] = max(after - before, 0.0)
        before = after


@kernel
def _add_masses(masses: F64, offset: int, partition_count: int, share: F64, square: F64) -> None:
    """share[g] and square[g]: sums of masses and of squared masses of the partition-group's keys, rotated by `offset`."""
    domain = masses.shape[0]
    for i in range(domain):
        key = i + offset
        key -= domain if key >= domain else 0
        g = group_of(hash_key(key), partition_count)
        share[g] += masses[i]
        square[g] += masses[i] * masses[i]


@kernel
def _add_heavy(
    levels: int, bias: float, ones: int, offset: int, domain: int, partition_count: int, share: F64, square: F64
) -> float:
    """Add the leaves with at most `ones` upper halves, hashed one by one; returns their mass."""
    total = 0.0
    for count in range(ones + 1):
        mass = bias ** (levels - count) * (1.0 - bias) ** count
        leaf = (1 << count) - 1
        while leaf < 1 << levels:
            key = np.int64((np.float64(leaf) / 2.0**levels) * domain) if domain != 1 << levels else np.int64(leaf)
            key = (key + offset) % domain
            g = group_of(hash_key(key), partition_count)
            share[g] += mass
            square[g] += mass * mass
            total += mass
            if count == 0:
                break
            low = leaf & -leaf  # the next number with as many bits
            ripple = leaf + low
            leaf = ripple | (((leaf ^ ripple) >> 2) // low)
    return total


def _heavy_ones(levels: int) -> int:
    """Highest number of upper halves of the heaviest _HEAVY_KEYS or so leaves."""
    total, ones = 1, 0
    while ones < levels and total + math.comb(levels, ones + 1) <= _HEAVY_KEYS:
        ones += 1
        total += math.comb(levels, ones)
    return ones


@functools.lru_cache(maxsize=4)
def _masses(domain: int, bias: float) -> F64:
    out = np.empty(domain)
    levels = level_count(domain)
    _key_masses(domain, levels, *mass_tables(levels, bias), out)
    return out


@functools.lru_cache(maxsize=256)
def shares(domain: int, bias: float, offset: int, partition_count: int) -> tuple[F64, F64]:
    """Probability that a tuple belongs to a partition-group, and that two of its tuples have equal keys: float64
    (partition_count,)."""
    share, square = np.zeros(partition_count), np.zeros(partition_count)
    if domain <= _EXACT_KEYS:
        _add_masses(_masses(domain, bias), offset, partition_count, share, square)
    else:
        levels = (domain - 1).bit_length()
        heavy = 0.0
        if bias > 0.5:
            heavy = float(_add_heavy(levels, bias, _heavy_ones(levels), offset, domain, partition_count, share, square))
        all_squares = (bias * bias + (1 - bias) ** 2) ** levels
        share += (1 - heavy) / partition_count
        square += max(all_squares - square.sum(), 0.0) / partition_count
    total = share.sum()
    equal = np.divide(square, share**2, out=np.zeros(partition_count), where=share > 0)
    return share / total, np.minimum(equal, 1.0)


def _edges(config: RunConfig) -> I64:
    """Ends of the intervals, microseconds from the start of the streams."""
    workload, cluster = config.workload, config.cluster
    end = workload.duration_us
    t_d, n_g = cluster.distribution_epoch_us, cluster.sub_group_count
    cuts = [np.array([0, end])]
    if t_d:
        slots = -(-end // t_d) * n_g
        cuts.append(np.array([slot_end_us(s, t_d, n_g) for s in range(slots)]))
    if config.gateway_count > 1 and config.pace == "realtime":  # splits are as short as that (`split_dealer.span_us`)
        parts = max(1, min(config.gateway_count, t_d // 1000))
        cuts.append(np.array([slot_end_us(s, t_d, parts) for s in range(-(-end // t_d) * parts)]))
    if workload.schedule.kind != "constant" or workload.drift_us:
        cuts.append(np.arange(0, end, SLOT_US))
    most = max(BATCH_ROWS, cluster.mini_buffer_bytes // TUPLE_BYTES // 8)
    width = int(1e6 * most / workload.rate_per_s)
    width = max(1, min(width, max(1, config.query.bounds.retention_us // 16), t_d or SLOT_US))
    cuts.append(np.arange(0, end, width))
    edges = np.unique(np.concatenate(cuts)).astype(np.int64)
    return edges[edges <= end]


def key_distribution(config: RunConfig) -> KeyDistribution:
    """The key distribution of a workload section, which both streams share. Partition-groups are those of the router."""
    workload, partitions = config.workload, config.cluster.partition_count
    edges = _edges(config)
    slots = edges[:-1] // SLOT_US
    middle = slots * SLOT_US + SLOT_US // 2
    mean = workload.rate_per_s * rate_factor(workload.schedule, middle) * np.diff(edges) / 1e6
    offsets = np.array([drift_offset(workload, int(s)) for s in slots], np.int64)
    unique, rotation = np.unique(offsets, return_inverse=True)
    both = [shares(workload.domain, workload.bias, int(o), partitions) for o in unique]
    share, equal = np.stack([b[0] for b in both]), np.stack([b[1] for b in both])
    apart = np.full(partitions, min(1.0, partitions / workload.domain))
    return KeyDistribution(edges, rotation.reshape(-1).astype(np.int64), mean, share, equal, apart)


def draw(distribution: KeyDistribution, seed: int, stream: int, stretch: int) -> I64:
    """Random tuple counts of one stream in an interval: Poisson, int64 (partition-groups,)."""
    key = np.array([seed & (2**64 - 1), stream << 48 | stretch], np.uint64)
    random: Any = np.random.Generator(np.random.Philox(key=key))
    counts: I64 = random.poisson(distribution.mean[stretch] * distribution.share[distribution.rotation[stretch]])
    return counts
