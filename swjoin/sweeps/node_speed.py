"""The speed of imitated nodes at which this machine saturates where the paper's machine did.

What: `calibrated_speed(directory, time_scale, say)`, the fraction of a core for `nodes.node_speed`.
Why: 4 of the paper's nodes (two Pentium III of 930 MHz, Java) saturate near 6,000 tuples/s and stream with theta = 1.5 MB
(figures 6 and 10). A core of today does the same work in a small fraction of its time; the fraction is measured, not assumed.
Stays out: imitating (`runtime.slow_node`), other differences between the machines (docs/reproduction.md).

At a speed s a slave that is busy for a share u of its time would saturate at s * u. Two runs at the paper's saturating rate,
the second near the wanted speed (costs per tuple depend a little on how often a slave sleeps), give it. Two more runs, a tenth
below and above that rate, check it: the delay must stay flat in the first and grow in the second. Otherwise the speed is
changed by a few per cent, and checked again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from swjoin.config.loader import apply_overrides, config_from_plain, load_plain
from swjoin.config.run import RunConfig, to_plain
from swjoin.core.errors import RunFailed
from swjoin.core.resources import shipped_folder
from swjoin.core.storage import write_json
from swjoin.monitor.sustainability import sustained
from swjoin.sweeps.presets import scaled
from swjoin.sweeps.run_process import run_to_end
from swjoin.sweeps.store import commit, read_json

SLAVES, RATE_PER_S = 4, 6000.0
MEASURED_S = 60
_GUESS = 0.005  # of a core, at the paper's pace
_ATTEMPTS = 3
_ROUNDS, _STEP = 8, 1.06
_FULLY_BUSY = 0.95

Say = Callable[[str], None]


def calibrated_speed(directory: Path, time_scale: int, say: Say) -> float:
    """node_speed for runs `time_scale` times as fast as the paper's: from DIR/calibration.json or the one beside DIR, of the
    same commit and machine, or measured now (about a minute with time_scale 10). RunFailed when the machine is too busy.
    """
    own, shared = directory / "calibration.json", directory.parent / f"calibration-x{time_scale}.json"
    for path in (own, shared):
        found = read_json(path)
        if found is None or found.get("time_scale") != time_scale:
            continue
        if (found["commit"], found["cores"]) == (commit(), os.cpu_count()):
            write_json(own, found)
            return float(found["node_speed"])
    found = _calibrate(directory / "calibration", time_scale, say)
    for path in (own, shared):
        write_json(path, found)
    return float(found["node_speed"])


def _calibrate(folder: Path, time_scale: int, say: Say) -> dict[str, Any]:
    runs: list[dict[str, Any]] = []

    def measure(speed: float, rate_ratio: float) -> dict[str, Any]:
        done = _run(folder / str(len(runs)), speed, RATE_PER_S * rate_ratio, time_scale)
        runs.append(done)
        say(
            f"calibration, run {len(runs)}: node_speed {speed:.5f}, {RATE_PER_S * rate_ratio:,.0f} tuples/s: "
            f"busy {done['busy_ratio']:.0%}, delay {'flat' if done['sustained'] else 'growing'}"
        )
        return done

    speed = min(1.0, _GUESS * time_scale)
    while (busy := measure(speed, 1.0)["busy_ratio"]) > _FULLY_BUSY and speed < 1:
        speed = min(1.0, 2 * speed)  # the overload may be of any factor
    speed *= 1.2 * busy
    speed *= measure(min(1.0, speed), 1.0)["busy_ratio"]
    for _ in range(_ROUNDS):
        if not measure(speed, 0.9)["sustained"]:
            speed *= _STEP
        elif measure(speed, 1.1)["sustained"]:
            speed /= _STEP
        else:
            break
    else:
        say("calibration: not confirmed; the machine is uneven, or others are using it")
    return {
        "time_scale": time_scale,
        "node_speed": speed,
        "confirmed": not runs[-1]["sustained"] and runs[-2]["sustained"] and runs[-1]["rate_per_s"] > RATE_PER_S,
        "runs": runs,
        "commit": commit(),
        "cores": os.cpu_count(),
    }


def calibration_config(speed: float, rate_per_s: float, time_scale: int) -> RunConfig:
    """The paper's defaults at a rate (tuples/s and stream, in the paper's time), as executed."""
    plain = load_plain(shipped_folder("mpi_configs") / "paper.yaml")
    prefill_s = int(config_from_plain(plain).query.bounds.retention_us // 1_000_000)
    settings = {
        "workload.rate": rate_per_s,
        "workload.duration": f"{prefill_s + MEASURED_S}s",
        "measure.prefill": f"{prefill_s}s",
    }
    plain = apply_overrides(plain, [f"{key}={value}" for key, value in settings.items()])
    return scaled(config_from_plain(plain), time_scale, speed)


def _run(out: Path, speed: float, rate_per_s: float, time_scale: int) -> dict[str, Any]:
    import pyarrow.parquet as pq

    config = calibration_config(speed, rate_per_s, time_scale)
    out.parent.mkdir(parents=True, exist_ok=True)
    path = out.with_suffix(".json")
    path.write_text(json.dumps(to_plain(config)))
    command = [sys.executable, "-m", "swjoin", "run", str(path), "-n", str(SLAVES + 2), "--out", str(out)]
    limit_s = 120 + 6 * config.workload.duration_us / 1e6
    reasons = ""
    for _ in range(_ATTEMPTS):
        shutil.rmtree(out, ignore_errors=True)  # an earlier attempt or calibration; a run never replaces another
        failure = run_to_end(command, out.with_suffix(".stderr.txt"), limit_s)
        if failure is not None:
            raise RunFailed(f"calibration: {failure}")
        report = json.loads((out / "run.json").read_text())
        if not report["machine"]["overloaded"]:
            break
        reasons = "; ".join(report["machine"]["reasons"])
    else:
        raise RunFailed(f"calibration: the machine is too busy to be measured ({reasons})")
    rows = pq.read_table(out / "metrics" / "slaves.parquet").to_pydict()
    flat, why = sustained(rows, report)
    low, high = report["measured"]["from_s"] * 1e6, report["measured"]["to_s"] * 1e6
    within = [i for i, end in enumerate(rows["epoch_end_us"]) if low < end <= high]
    busy, idle = (sum(rows[name][i] for i in within) for name in ("process_us", "idle_us"))
    return {
        "node_speed": speed,
        "rate_per_s": rate_per_s,
        "busy_ratio": busy / max(1, busy + idle),
        "sustained": flat,
        "why": why,
    }
