"""The paper's synthetic streams: Poisson arrivals and b-model keys; a seed determines the rows (SPEC section 5).

What: `slot_counts`; `slot_tuples`, of which `slot_times` and `slot_keys` make a part; `last_time_us`, `drift_offset`,
`payload_bytes`.
Why: the in-master generator, `generate` on any number of Spark partitions, and `verify` must agree on every row.
Stays out: sources and files (`connectors.generator.source`, `spark.generate`).

Time is cut into slots of 100 ms. Every slot draws its count, times and keys from a generator keyed by (seed, stream, slot), so
any worker can make any slot. Counts are Poisson and times uniform within a slot, which is a Poisson process whose rate is
constant within slots.
Keys: the interval [0, domain) is halved recursively, a share b of the mass going to the lower half; a key is the integer cell
that the point falls into. With a domain of 2^k the cells are the leaves of k halvings, and two keys are equal with chance (b^2
+ (1 - b)^2)^k.
Drift: after every `drift_us` the keys are rotated by a further step within the domain, so that other keys are hot and the
distribution stays. A slot has one rotation, that of its start: a drift takes effect with the first slot that starts no earlier.
"""

from __future__ import annotations

import math

import numpy as np
from numba import uint64

from swjoin.config.run import ScheduleConfig, WorkloadConfig
from swjoin.core.batch import I64, U8, U64
from swjoin.core.hashing import mix64_scalar
from swjoin.core.kernel_cache import kernel

SLOT_US = 100_000
_STEP = np.uint64(0x9E3779B97F4A7C15)


def rate_factor(schedule: ScheduleConfig, time_us: I64) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    """rate(t) / rate at each time, microseconds from the start of the stream."""
    if schedule.kind == "step":
        return np.where(time_us >= schedule.at_us, schedule.factor, 1.0)
    if schedule.kind == "sine":
        return 1.0 + schedule.amplitude * np.sin(2 * np.pi * time_us / schedule.period_us)
    if schedule.kind == "burst":
        return np.where(time_us % schedule.period_us < schedule.length_us, schedule.factor, 1.0)
    return np.ones(len(time_us))


def slot_count(workload: WorkloadConfig) -> int:
    return -(-workload.duration_us // SLOT_US)


def _random(seed: int, stream: int, slot: int) -> np.random.Generator:
    return np.random.Generator(np.random.Philox(key=np.array([seed & (2**64 - 1), stream << 48 | slot], np.uint64)))


def _slot_length_us(workload: WorkloadConfig, slot: int) -> int:
    return min(SLOT_US, workload.duration_us - slot * SLOT_US)


def slot_counts(workload: WorkloadConfig, seed: int, stream: int) -> I64:
    """Tuples in each slot: int64 (slots,). Prefix sums are the ids."""
    n = slot_count(workload)
    middle = np.arange(n, dtype=np.int64) * SLOT_US + SLOT_US // 2
    factor = rate_factor(workload.schedule, middle)
    lengths = np.array([_slot_length_us(workload, s) for s in range(n)])
    mean = workload.rate_per_s * factor * lengths / 1e6
    return np.array([_random(seed, stream, s).poisson(mean[s]) for s in range(n)], np.int64)


@kernel
def _bmodel_keys(start: np.uint64, n: int, domain: int, levels: int, threshold: np.uint64, out: I64) -> None:
    """n keys from `levels` halvings each; one 64-bit draw serves two. threshold: b * 2^32."""
    state = start
    half_mask = np.uint64(0xFFFFFFFF)
    for i in range(n):
        cell = 0
        draw = np.uint64(0)
        for level in range(levels):
            if level % 2 == 0:
                state += _STEP
                draw = mix64_scalar(state)
                bits = draw & half_mask
            else:
                bits = draw >> np.uint64(32)
            cell = 2 * cell + (0 if bits < threshold else 1)
        out[i] = scaled(cell, domain, levels)


@kernel(inline="always")
def scaled(cell, domain, levels):  # type: ignore[no-untyped-def]
    """floor(cell / 2^levels * domain) without overflow: the key of a cell of [0, 1)."""
    if levels <= 31:
        return (cell * domain) >> levels
    return np.int64(cell / 2.0**levels * domain)


def level_count(domain: int) -> int:
    """Halvings per key: down to one cell when the domain is a power of two, else seven further, to a 128th of a cell."""
    levels = (domain - 1).bit_length()
    return levels if domain == 1 << levels else min(levels + 7, 60)


def drift_offset(workload: WorkloadConfig, slot: int) -> int:
    """Rotation of all keys of a slot, below the domain; the same for both streams and every seed."""
    if workload.drift_us == 0:
        return 0
    step = workload.domain * int(_STEP) >> 64  # golden ratio: rotations in a row lie far apart
    while math.gcd(step, workload.domain) != 1:  # coprime: all rotations occur before one repeats
        step += 1
    return slot * SLOT_US // workload.drift_us * step % workload.domain


def _drawn_times(workload: WorkloadConfig, seed: int, stream: int, slot: int) -> tuple[I64, np.random.Generator]:
    """Times of one slot as drawn, in no order, from the slot's start; and what draws on."""
    random = _random(seed, stream, slot)
    factor = float(rate_factor(workload.schedule, np.array([slot * SLOT_US + SLOT_US // 2]))[0])
    length = _slot_length_us(workload, slot)
    n = int(random.poisson(workload.rate_per_s * factor * length / 1e6))  # as the first draw of `slot_counts`
    return random.integers(0, length, n), random


def slot_times(workload: WorkloadConfig, seed: int, stream: int, slot: int) -> tuple[I64, int]:
    """Times (microseconds from 0, ascending) of one slot, and the state from which `slot_keys` draws its keys."""
    drawn, random = _drawn_times(workload, seed, stream, slot)
    ts = np.sort(drawn) + slot * SLOT_US
    return ts.astype(np.int64), int(random.integers(0, 2**64, dtype=np.uint64))


def last_time_us(workload: WorkloadConfig, seed: int, stream: int, slot: int) -> int:
    """Greatest time of a slot that has tuples."""
    return int(_drawn_times(workload, seed, stream, slot)[0].max()) + slot * SLOT_US


def slot_keys(workload: WorkloadConfig, slot: int, state: int, first: int, end: int) -> I64:
    """Keys of the tuples first .. end - 1 of a slot: int64 (end - first,). The state advances by the same step at each draw, so
    that no key depends on those before it. state: as of `slot_times`."""
    key = np.empty(end - first, np.int64)
    levels = level_count(workload.domain)
    start = np.uint64((state + first * (-(-levels // 2)) * int(_STEP)) & (2**64 - 1))
    threshold = np.uint64(int(workload.bias * 2**32))
    _bmodel_keys(start, end - first, workload.domain, levels, threshold, key)
    offset = drift_offset(workload, slot)
    if offset:
        key = (key + offset) % workload.domain  # below 2^63: both are less than the domain, at most 2^62
    return key


def slot_tuples(workload: WorkloadConfig, seed: int, stream: int, slot: int) -> tuple[I64, I64]:
    """Times (microseconds from 0, ascending) and keys of one slot, both int64."""
    ts, state = slot_times(workload, seed, stream, slot)
    return ts, slot_keys(workload, slot, state, 0, len(ts))


@kernel
def _fill_payload(ids: U64, salt: np.uint64, out: U8) -> None:
    width = out.shape[1]
    for i in range(ids.shape[0]):
        state = mix64_scalar(uint64(ids[i] + salt))
        for j in range(width):
            if j % 8 == 0:
                state += _STEP
                word = mix64_scalar(state)
            out[i, j] = np.uint8((word >> np.uint64(8 * (j % 8))) & np.uint64(255))


def payload_bytes(ids: U64, seed: int, stream: int, width: int) -> U8:
    """Payload of tuples: uint8 (n, width), a function of seed, stream and id."""
    out = np.empty((len(ids), width), np.uint8)
    if width:
        _fill_payload(ids, np.uint64((seed * 2 + stream + 1) * 0x9E3779B97F4A7C15 & (2**64 - 1)), out)
    return out
