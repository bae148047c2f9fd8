"""Gateways and slaves for a rate: simulated over 10 Gbit/s, and one and two gateways simulated and measured.

What: three tables of `python -m benchmarks.simulation scale`. The highest sustained rate of 1, 4, 16 and 64 gateways with
slaves in proportion, found by search (`forecast.capacity.sustainable_rate`), over that of one; the least numbers of gateways
and slaves that sustain a billion tuples per second; 1 and 2 gateways on MPI ranks, each held to an eighth of a core, and
the model of these runs.
Why: no machine here has 64 gateways; what a model says of them is worth as much as its error where both can be had.
Stays out: gateways alone on this machine (`benchmarks.gateways`), the model's error elsewhere (`benchmarks.simulation`).

Simulated runs: realtime pace, prefilled windows of W = 1 s, uniform keys, 64 bytes a tuple on the way, counted pairs; a core
and a link of 10 Gbit/s for every rank, the costs of `modern-10g`. The distribution epoch is 1 s: every gateway sends a delivery
to every slave in each, and shorter ones cost messages. A rate is sustained by the criterion of real runs, over 8 epochs.
"""

from __future__ import annotations

import dataclasses
import math
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from benchmarks import gateways as held_gateways
from benchmarks.workloads.steady_state import metrics_of, steady
from swjoin.config.loader import config_from_plain
from swjoin.core.metric_columns import COLUMNS
from swjoin.forecast.capacity import Model, Outcome, sustainable_rate
from swjoin.forecast.costs import PRESETS, CostModel
from swjoin.forecast.input_profile import workload_profile
from swjoin.forecast.model.run import simulate

GATEWAYS = (1, 4, 16, 64)
TARGET = 1e9  # tuples per second of both streams
_FIRST_RATE = 3.5e6  # of each stream and gateway: where the first search begins
_EPOCHS = 8
_GROUPS = 16  # partition-groups of a slave
_PRECISION = 1.015  # lowest rate that is not sustained / highest one that is
_HELD_S = 20  # length of the streams of held gateways
_HELD_RATE = 200_000  # of each stream
_HELD_SHARE = 8  # of a core: longer streams than of `benchmarks.gateways`, for a second half without the start


def model_of(gateways: int, slaves: int, epoch: str) -> Model:
    plain: dict[str, Any] = {
        "pace": "realtime",
        "join": {"within": "1s"},
        "workload": {"rate": gateways * _FIRST_RATE, "duration": "10s", "bias": 0.5, "domain": 10**9, "payload": "32B"},
        "cluster": {"partition_count": _GROUPS * slaves, "distribution_epoch": epoch, "mini_buffer": "4GB"},
        "module": {"theta": "64KB", "stream_buffer": "4GB", "window": "64GB"},
        "sink": {"kind": "count", "carry_payload": True},
    }
    plain["cluster"]["gateways"] = gateways
    config = config_from_plain(plain)
    return Model.of(config, PRESETS["modern-10g"], 0, workload_profile(config), _EPOCHS)


def efficiency(numbers: tuple[int, ...], slaves_each: int, epoch: str) -> float:
    """Print the highest sustained rates; returns that of the most gateways, of each of them and each stream."""
    print(f"{slaves_each} slaves for each gateway, distribution epochs of {epoch}, 10 Gbit/s")
    print("| gateways | slaves | M tuples/s sustained | of each gateway | over linear | saturates first | minutes |")
    print("|---|---|---|---|---|---|---|")
    first, each = 0.0, _FIRST_RATE
    for count in numbers:
        started, slaves = time.monotonic(), slaves_each * count
        model = model_of(count, slaves, epoch)
        known = model.run_at(slaves, 0.95 * count * each)
        found = sustainable_rate(model, slaves, known, _PRECISION)
        if not found.rate_per_s:
            raise SystemExit(f"{count} gateways: {found.resource} sustains no rate that was tried")
        each = found.rate_per_s / count
        first = first or each
        minutes = (time.monotonic() - started) / 60
        print(
            f"| {count} | {slaves} | {2 * found.rate_per_s / 1e6:,.1f} | {2 * each / 1e6:.2f} | {each / first:.3f} | "
            f"{found.resource} | {minutes:.1f} |",
            flush=True,
        )
    return each


def least(suffices: Callable[[int], bool], guess: int, step: int) -> int:
    """The least number that suffices, to within `step`, from a guess on."""
    count = guess
    if suffices(count):
        while count > step and suffices(count - step):
            count -= step
        return count
    while not suffices(count := count + step):
        pass
    return count


def for_target(target: float, each: float, slaves_each: int, epoch: str) -> None:
    """Print the least number of gateways, and then of slaves, that sustain so many tuples/s. each: what a gateway sustains of
    each stream where there are many."""
    tried: dict[tuple[int, int], Outcome] = {}

    def sustained(gateways: int, slaves: int) -> bool:
        found = tried[gateways, slaves] = model_of(gateways, slaves, epoch).run_at(slaves, target / 2)
        print(f"  {gateways} gateways, {slaves} slaves: {found.why} ({found.resource})", flush=True)
        return found.sustained

    guess = math.ceil(target / 2 / each)
    gateways = least(lambda count: sustained(count, slaves_each * count), guess, max(1, guess // 32))
    needed = max(1, math.ceil(slaves_each * gateways * tried[gateways, slaves_each * gateways].slaves_busy))
    slaves = least(lambda count: sustained(gateways, count), needed, max(1, needed // 16))
    delay = tried[gateways, slaves].delay_s
    p99 = "no pairs" if delay is None else f"p99 of the production delay {delay['p99']:.2f} s"
    print(f"{target:,.0f} tuples/s: {gateways} gateways and {slaves} slaves, {p99}\n", flush=True)


def held(costs: CostModel, repeat: int, seconds: int, rate: int, share: int) -> None:
    """Print throughput of 1 and 2 gateways held to one part in `share` of a core, simulated and measured, in the second half
    of the runs. costs: of this machine."""
    slowed = {name: share * getattr(costs, name) for name in ("source_tuple_ns", "source_byte_ns", "master_tuple_ns")}
    slowed |= {name: share * getattr(costs, name) for name in ("master_byte_ns", "message_ns")}
    print(f"2 x {rate * seconds:,} tuples, {held_gateways.SLAVES} slaves, every gateway held to 1/{share} of a core")
    print("| gateways | k tuples/s predicted | measured | predicted over measured |\n|---|---|---|---|")
    measured: dict[int, list[float]] = {1: [], 2: []}
    answers = set()
    with TemporaryDirectory(prefix="swjoin-bench-") as folder:
        for _ in range(repeat):
            for gateways, speeds in measured.items():
                report = held_gateways.run(held_gateways.config_of(gateways, seconds, rate), Path(folder), share)
                answers.add(held_gateways.answer(report))
                speeds.append(steady(metrics_of(held_gateways.newest_run(Path(folder))))[0])
    if len(answers) != 1:
        raise SystemExit(f"answers differ: {sorted(answers)}")
    for gateways, speeds in measured.items():
        config = config_from_plain(held_gateways.config_of(gateways, seconds, rate))
        told = simulate(config, held_gateways.SLAVES, dataclasses.replace(costs, **slowed))
        predicted = steady(dict(zip(COLUMNS, np.stack(told.metrics).T, strict=True)))[0]
        median, ratios = statistics.median(speeds), sorted(predicted / speed for speed in speeds)
        print(
            f"| {gateways} | {predicted / 1e3:,.0f} | {median / 1e3:,.0f} | {predicted / median:.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f}) |",
            flush=True,
        )


def tables(costs: CostModel, repeat: int, *, tiny: bool) -> None:
    """All three. costs: of this machine."""
    slaves_each, epoch = (1, "100ms") if tiny else (2, "1s")
    each = efficiency(GATEWAYS[:2] if tiny else GATEWAYS, slaves_each, epoch)
    for_target(4 * 2 * each if tiny else TARGET, each, slaves_each, epoch)
    held(costs, repeat, 8 if tiny else _HELD_S, _HELD_RATE, _HELD_SHARE)
