"""Throughput of the join module against window size, skew, theta and matches per tuple; one core, answers checked.

What: `measure_all(folder)` writes one JSON of points, `draw(points, folder)` the four plots.
Why: one figure is a coincidence, a curve shows where it holds.
Stays out: other systems.

Usage: python -m benchmarks.sweeps [--out FOLDER] [--tiny]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import statistics
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks import parse
from benchmarks.join_module import THETA_BYTES, checked, run
from benchmarks.workloads import TINY, WORKLOADS, deliveries, epoch_of, expected, from_columns, sized, stream

REPEATS = 3
RATE = 100_000
Point = dict[str, Any]


def _synthetic(window_s: float, matches: float, rate: int, repeats: int) -> Point:
    """Uniform keys: `matches` per tuple with windows of `window_s` seconds at `rate` tuples/s and stream."""
    n = int(rate * (window_s + 10))
    domain = max(1, int(rate * window_s / matches))
    streams = [
        from_columns(np.random.default_rng(seed).integers(0, domain, n), np.arange(n, dtype=np.int64) * (1_000_000 // rate))
        for seed in (1, 2)
    ]
    return _point(streams, int(window_s * 1e6), THETA_BYTES, repeats)


def _point(streams: list[Any], window_us: int, theta_bytes: int, repeats: int) -> Point:
    answer = expected(streams[0], streams[1], window_us)
    work = deliveries(streams[0], streams[1], epoch_of(streams[0], streams[1], window_us))
    runs = [checked(run(work, window_us, theta_bytes, window_us), answer, "sweep") for _ in range(repeats + 1)][1:]
    rates = [r.tuples / r.seconds for r in runs]
    tuples = sum(len(b) for b in streams)
    return {"rate": statistics.median(rates), "low": min(rates), "high": max(rates), "pairs_per_tuple": answer[0] / tuples}


def measure_all(*, quick: bool = False, tiny: bool = False) -> dict[str, list[Point]]:
    """Points of all four curves: x, rate (tuples/s, once the windows are full), low, high."""
    workload, window_us = WORKLOADS["reference"]
    workload = sized(workload, tiny)
    rate, repeats = (RATE // TINY, 1) if tiny else (RATE, REPEATS)
    reference = [stream(workload, 0), stream(workload, 1)]
    out: dict[str, list[Point]] = {}
    windows = [0.1, 1, 10] if quick else [0.1, 0.3, 1, 3, 10, 30]
    out["window"] = [{"x": w, **_synthetic(w, 1.0, rate, repeats)} for w in windows]
    out["skew"] = []
    for bias in (0.5, 0.6, 0.65, 0.7, 0.75):
        skewed = dataclasses.replace(workload, bias=bias)
        out["skew"].append({"x": bias, **_point([stream(skewed, 0), stream(skewed, 1)], window_us, THETA_BYTES, repeats)})
    out["theta"] = [{"x": kb, **_point(reference, window_us, kb << 10, repeats)} for kb in (4, 8, 16, 32, 64, 128, 512, 1536)]
    out["matches"] = [{"x": m, **_synthetic(3, m, rate, repeats)} for m in (0.01, 0.1, 1, 10, 100)]
    return out


LABELS = {
    "window": ("window W [s]; uniform keys, 1 match per tuple", True),
    "skew": ("bias b of the b-model; reference workload", False),
    "theta": ("theta [KB]; reference workload", True),
    "matches": ("matches per tuple; uniform keys, W = 3 s", True),
}


def draw(points: dict[str, list[Point]], folder: Path) -> Path:
    """All four curves in one picture, PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 7), layout="constrained")
    axes = figure.subplots(2, 2)
    for axis, (name, curve) in zip(axes.flat, points.items(), strict=True):
        x = [p["x"] for p in curve]
        axis.fill_between(x, [p["low"] / 1e6 for p in curve], [p["high"] / 1e6 for p in curve], alpha=0.25)
        axis.plot(x, [p["rate"] / 1e6 for p in curve], marker="o")
        label, logarithmic = LABELS[name]
        axis.set_xlabel(label)
        axis.set_ylabel("M tuples/s")
        axis.set_ylim(bottom=0)
        if logarithmic:
            axis.set_xscale("log")
        axis.grid(alpha=0.3)
    figure.suptitle("Join module, one core, 100,000 tuples/s and stream, median and range")
    path = folder / "throughput.png"
    figure.savefig(path, dpi=110)
    return path


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("runs/bench"))
    args = parse(parser)
    args.out.mkdir(parents=True, exist_ok=True)
    points = measure_all(tiny=args.tiny)
    (args.out / "sweeps.json").write_text(json.dumps(points, indent=1))
    for name, curve in points.items():
        print(name, ", ".join(f"{p['x']:g}: {p['rate'] / 1e6:.1f}" for p in curve), "M tuples/s")
    print(draw(points, args.out))


if __name__ == "__main__":
    main()
