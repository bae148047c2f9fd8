"""The shape of a soak, and the rate at which this machine keeps up with it.

What: `Shape`, the settings of the run except rate and length; `find_capacity`, by doubling and halving; `keeps_up`;
`result_bytes`, expected size of its result files.
Why: soaks at a share of the capacity are comparable between machines.
Stays out: kills (`tests.tools.soak.run`), searches of experiments (`sweeps.search`).

A trial is a run of the same shape on as many ranks, undisturbed, until its windows are full and TAIL_S longer. It keeps up when
the mean production delay of the last third is below LATE_EPOCHS distribution epochs.
"""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.config.loader import config_from_plain
from swjoin.config.run import RunConfig
from swjoin.core.errors import RunFailed
from swjoin.runtime.simulator.result import SimulationError
from tests.tools.processes import LaunchedRun

TAIL_S = 9.0
LATE_EPOCHS = 2.0
FIRST_RATE, LOWEST_RATE, HIGHEST_RATE = 25_000.0, 1_000.0, 4e6
REFINEMENTS = 2
SHARE_OF_DISK = 0.4  # of the free space, for result files


@dataclass(frozen=True)
class Shape:
    """Settings of a soak.

    window_s: W. epoch_s: t_d. checkpoint_s: interval of checkpoints. domain: number of keys; more keys make fewer pairs.
    theta_bytes: 0 turns fine tuning off, so that every tuple costs more. groups: partition-groups.
    """

    window_s: float = 10.0
    epoch_s: float = 0.2
    checkpoint_s: float = 5.0
    domain: int = 1_000_000_000
    theta_bytes: int = 32 << 10
    groups: int = 60
    sink: str = "parquet"
    seed: int = 1

    def config(self, rate_per_s: float, duration_s: float) -> RunConfig:
        """The configuration, with random moves and resizes in every reorganization epoch."""
        epoch_us = int(self.epoch_s * 1e6)
        plain: dict[str, Any] = {
            "seed": self.seed,
            "pace": "realtime",
            "join": {"within": f"{int(self.window_s * 1e6)}us"},
            "workload": {
                "rate_per_s": rate_per_s,
                "duration_us": int(duration_s * 1e6),
                "bias": 0.7,
                "domain": self.domain,
                "payload": "48B",
            },
            "cluster": {"partition_count": self.groups, "distribution_epoch_us": epoch_us, "mini_buffer": "256MB"},
            "module": {"theta_bytes": self.theta_bytes, "stream_buffer": "64MB", "window": "4GB"},
            "reorganization": {
                "policy": "random",
                "epoch_us": 5 * epoch_us,
                "random_moves": 2,
                "declustering": "adaptive",
            },
            "checkpoint": {"interval_us": int(self.checkpoint_s * 1e6), "recover": True},
            "sink": {"kind": self.sink},
        }
        return config_from_plain(plain)


@dataclass(frozen=True)
class Trial:
    """Outcome of a run at one rate. why: the reason of the verdict. result_bytes: size of its result files."""

    rate_per_s: float
    duration_s: float
    kept_up: bool
    why: str
    pairs: int = 0
    result_bytes: int = 0


def keeps_up(rows: Mapping[str, Any], duration_s: float, epoch_s: float) -> tuple[bool, str]:
    """Whether the last third of an undisturbed run was on time. rows: columns of metrics/slaves.parquet."""
    end, pairs, delay = (np.asarray(rows[name], np.float64) for name in ("epoch_end_us", "pairs", "delay_mean_us"))
    last = end >= 2e6 / 3 * duration_s
    if not pairs[last].sum():
        return False, "no pairs in the last third"
    mean_s = float((pairs * delay)[last].sum() / pairs[last].sum() / 1e6)
    return mean_s < LATE_EPOCHS * epoch_s, f"mean production delay of the last third {mean_s * 1e3:.0f} ms"


def _try(shape: Shape, rate_per_s: float, ranks: int, folder: Path) -> Trial:
    import pyarrow.parquet as pq

    from swjoin.config.run import to_plain

    duration_s = shape.window_s + TAIL_S
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    config, out = folder / "config.yaml", folder / "run"
    config.write_text(json.dumps(to_plain(shape.config(rate_per_s, duration_s))))
    run = LaunchedRun([str(config), "-n", str(ranks), "--out", str(out)], folder / "log")
    try:
        code = run.end(1.5 * duration_s + 20)
    except SimulationError:
        return Trial(rate_per_s, duration_s, False, "not at its end after half as long again")
    if code == 2:
        raise RunFailed(f"a trial was refused: {run.said()}")
    if code:
        return Trial(rate_per_s, duration_s, False, run.said()[-120:])
    rows = pq.read_table(out / "metrics" / "slaves.parquet").to_pydict()
    kept_up, why = keeps_up(rows, duration_s, shape.epoch_s)
    report = json.loads((out / "run.json").read_text())
    written = sum(path.stat().st_size for path in (out / "results").glob("*")) if shape.sink != "count" else 0
    return Trial(rate_per_s, duration_s, kept_up, why, report["results"]["count"], written)


def find_capacity(
    shape: Shape, ranks: int, folder: Path, say: Callable[[str], None], attempt: Callable[..., Trial] = _try
) -> Trial:
    """The trial with the highest rate per stream that kept up. RunFailed when none does."""
    best: Trial | None = None
    failed = math.inf
    rate = FIRST_RATE
    refined = 0
    while LOWEST_RATE <= rate <= HIGHEST_RATE and refined <= REFINEMENTS:
        trial = attempt(shape, rate, ranks, folder)
        say(f"  {rate:,.0f} tuples/s and stream: {'keeps up' if trial.kept_up else 'does not keep up'}, {trial.why}")
        if trial.kept_up:
            best = trial
        else:
            failed = rate
        if best is None:
            rate /= 2
        elif math.isinf(failed):
            rate *= 2
        else:
            rate = math.sqrt(best.rate_per_s * failed)
            refined += 1
    shutil.rmtree(folder, ignore_errors=True)
    if best is None:
        raise RunFailed(f"not even {LOWEST_RATE:,.0f} tuples/s and stream are kept up with; is the machine busy?")
    return best


def result_bytes(trial: Trial, shape: Shape, rate_per_s: float, duration_s: float) -> float:
    """Expected size of a run's result files, from that of a trial's."""

    def pairs(rate: float, length_s: float) -> float:
        """Proportional to the pairs of tuples that are at most W apart."""
        window_s = min(shape.window_s, length_s)
        return rate**2 * (2 * window_s * length_s - window_s**2)

    return trial.result_bytes * pairs(rate_per_s, duration_s) / pairs(trial.rate_per_s, trial.duration_s)
