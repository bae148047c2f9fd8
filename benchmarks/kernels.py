"""Throughput of single kernels, the limits of this core, and nanoseconds per tuple by phase.

What: `ceilings` (memory limits, measured here), `rates` (our kernels alone), `breakdown` (a reference run by phase).
Why: a figure means little without its limit; tuning starts with the longest phase.
Stays out: whole runs.

Usage: python -m benchmarks.kernels [--tiny]
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from numba import njit

from benchmarks import parse
from benchmarks.join_module import new_join, touch
from benchmarks.workloads import GROUPS, WORKLOADS, deliveries, epoch_of, sized, stream
from swjoin.cluster.gateway.intake import StreamIntake
from swjoin.cluster.wire import pack_delivery
from swjoin.config.run import TimeConfig
from swjoin.core.batch import SourceBatch, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.record_layout import ROW
from swjoin.core.simd import LANES, match_mask
from swjoin.policy.placement import round_robin
from swjoin.routing.hash_partition import GroupMap, HashPartition
from swjoin.state.candidates import count_matches, digest_of
from swjoin.state.fresh_tuples import scatter_fresh, sort_fresh

REPEATS = 7


def best(measure: Callable[[], Any], repeat: int = REPEATS) -> float:
    """Shortest of a few times, in seconds: a ceiling is the limit of an undisturbed core."""
    measure()
    out = 1e9
    for _ in range(repeat):
        start = time.perf_counter()
        measure()
        out = min(out, time.perf_counter() - start)
    return out


@njit(nogil=True)
def _total(values: Any) -> int:
    total = 0
    for i in range(values.shape[0]):
        total += values[i]
    return total


@njit(nogil=True)
def _visit(values: Any, places: Any) -> int:
    total = 0
    for i in range(places.shape[0]):
        total += values[places[i]]
    return total


@njit(nogil=True)
def _scan(tags: Any, probes: Any, blocks: int) -> np.uint64:
    out = np.uint64(0)
    for b in range(blocks):
        for p in range(probes.shape[0]):
            out |= match_mask(tags, b * LANES, probes[p])
    return out


def ceilings(repeat: int = REPEATS) -> dict[str, tuple[float, str]]:
    random = np.random.default_rng(1)
    big = np.ones(32 << 20, np.int64)
    places = random.integers(0, len(big), 4 << 20)
    return {
        "memory, read in order": (big.nbytes / best(lambda: _total(big), repeat) / 1e9, "GB/s"),
        "memory, independent random reads of 256 MiB": (len(places) / best(lambda: _visit(big, places), repeat) / 1e6, "M/s"),
    }


def rates(repeat: int = REPEATS) -> dict[str, tuple[float, str]]:
    """Our kernels alone, with data in the first or second level cache unless noted."""
    random = np.random.default_rng(2)
    tags = random.integers(0, 1 << 16, 64 * LANES).astype(np.uint16)
    probes = random.integers(0, 1 << 16, 4096).astype(np.uint16)
    compared = len(tags) * len(probes)
    records, n = 2_000_000, 1024
    stored, fresh = np.ones(records * ROW, np.int64), np.ones(n * ROW, np.int64)
    probe_at = np.sort(random.integers(0, n, n)).astype(np.uint64) * np.uint64(ROW)
    near = random.integers(0, 4096, n).astype(np.uint64) * np.uint64(ROW)
    batch = TupleBatch(
        random.integers(0, 10**7, 65536), np.arange(65536), np.arange(65536, dtype=np.uint64), np.zeros(65536, np.int64)
    )
    router = HashPartition(GroupMap(round_robin(GROUPS, 1)), 1)
    verdict, ids = np.empty(n, np.uint8), np.empty((2, n), np.uint64)

    def verify() -> None:
        for _ in range(200):
            found, _far = count_matches(0, -1, 1, fresh, stored, probe_at, near, verdict, ids, 0, n, None)
            digest_of(0, ids, found)

    verified = best(verify, repeat) / 200
    return {
        "tags compared": (compared / best(lambda: _scan(tags, probes, len(tags) // LANES), repeat) / 1e9, "G comparisons/s"),
        "candidates verified and digested": (n / verified / 1e6, "M pairs/s"),
        "tuples partitioned into 60 partition-groups": (
            65536 / best(lambda: router.partition(batch), repeat) / 1e6,
            "M tuples/s",
        ),
    }


@njit(nogil=True)
def _sort_all(data: Any, pool: Any, directories: Any, minis: Any, fresh: Any) -> None:
    for g in range(data.groups.shape[0]):
        a, b = data.offsets[0][g], data.offsets[0][g + 1]
        c, d = data.offsets[1][g], data.offsets[1][g + 1]
        touched = sort_fresh(data.groups[g], 0, a, b, data, pool, directories, minis, fresh, 0)
        touched = sort_fresh(data.groups[g], 1, c, d, data, pool, directories, minis, fresh, touched)
        scatter_fresh(0, a, b, data, pool, minis, fresh, touched, None)
        scatter_fresh(1, c, d, data, pool, minis, fresh, touched, None)


def _slave_phases(work: list[Delivery], window_us: int) -> dict[str, float]:
    """Seconds per phase of the join module over a whole run."""
    join = new_join(window_us)
    touch(join)
    state, clock = join.state, time.perf_counter
    spent = dict.fromkeys(("sort", "join", "expire", "merge", "split", "all"), 0.0)

    def metered(function: Callable[..., Any], name: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            start = clock()
            out = function(*arguments)
            spent[name] += clock() - start
            return out

        return call

    for name, attribute in (("expire", "expire"), ("merge", "merge"), ("split", "tune")):
        setattr(state, attribute, metered(getattr(state, attribute), name))
    join._join_groups = metered(join._join_groups, "join")  # type: ignore[method-assign]
    for delivery in work:
        start = clock()
        cursor = join.open(delivery)
        spent["all"] += clock() - start
        start = clock()
        _sort_all(cursor.inputs, state.pool, state.directories, state.minis, join._fresh)
        spent["sort"] += clock() - start
        start = clock()
        while not join.step(cursor, 0, 1 << 40).done:
            pass
        spent["all"] += clock() - start
    return spent


def breakdown(turns: int = 5, *, tiny: bool = False) -> dict[str, float]:
    """Nanoseconds per tuple of the reference workload by phase, master and slave, one core, median of `turns`."""
    workload, window_us = WORKLOADS["reference"]
    left, right = (stream(sized(workload, tiny), side) for side in range(2))
    tuples = len(left) + len(right)
    work = deliveries(left, right, epoch_of(left, right, window_us))
    rows: list[dict[str, float]] = []
    for _ in range(turns + 1):
        slave = _slave_phases(work, window_us)
        phases = {
            "slave: bring fresh tuples into mini-partition order": slave["sort"],
            "slave: compare, verify, digest, store": slave["join"] - slave["sort"],
            "slave: split": slave["split"],
            "slave: expire and merge": slave["expire"] + slave["merge"],
            "slave: all else": slave["all"] - sum(slave[k] for k in ("join", "split", "expire", "merge")),
        }
        rows.append({name: seconds / tuples * 1e9 for name, seconds in phases.items()})
    out = {name: float(np.median([r[name] for r in rows[1:]])) for name in rows[0]}
    router = HashPartition(GroupMap(round_robin(GROUPS, 1)), 1)
    batch = left.slice(0, 65536)
    read = SourceBatch(batch.key, batch.ts, batch.id)
    out["master: judge and stamp"] = best(lambda: StreamIntake(0, TimeConfig()).read(read, 0)) / len(batch) * 1e9
    out["master: partition"] = best(lambda: router.partition(batch)) / len(batch) * 1e9
    one = work[len(work) // 2]
    out["master: pack a delivery"] = best(lambda: pack_delivery(one)) / (len(one.left) + len(one.right)) * 1e9
    return out


def main() -> None:
    from swjoin.monitor.process_settings import keep_freed_memory

    args = parse(argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0]))
    keep_freed_memory()
    repeat = 1 if args.tiny else REPEATS
    for title, rows in (("ceilings", ceilings(repeat)), ("kernels", rates(repeat))):
        print(title)
        for name, (value, unit) in rows.items():
            print(f"  {name}: {value:.1f} {unit}")
    print("a tuple's nanoseconds, reference workload")
    for name, value in breakdown(1 if args.tiny else 5, tiny=args.tiny).items():
        print(f"  {name}: {value:.1f}")


if __name__ == "__main__":
    main()
