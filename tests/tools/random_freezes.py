"""Random freezes of roles in simulated runs.

What: `draw_freezes`.
Why: a role that stops for a while must only cause delay; one that stops for longer than the failure timeout is excluded from
the run, and what it does when it wakes up must not matter.
Stays out: freezing (`runtime.simulator.attempts`), real ranks that are stopped (`tests.tools.random_kills`).
"""

from __future__ import annotations

import numpy as np

from swjoin.config.run import RunConfig
from swjoin.runtime.simulator.attempts import Freeze, Freezes

_MOST_EPOCHS = 30  # in realtime pace: epochs go on while a role is frozen


def draw_freezes(random: np.random.Generator, config: RunConfig, steps: tuple[int, ...]) -> Freezes:
    """In about half of the runs, up to three. steps: choices of the mean step. Without checkpoints all are shorter than the
    timeout, as nobody may die."""
    timeout_us = int(random.choice([30, 1_000, 100_000]))
    if config.pace == "realtime":
        timeout_us = max(10, min(timeout_us, _MOST_EPOCHS * config.cluster.distribution_epoch_us))
    freezes = []
    for _ in range(int(random.integers(1, 4)) if random.random() < 0.5 else 0):
        step, pick = int(random.geometric(1 / random.choice(steps))), float(random.random())
        kind, ratio = random.random(), float(random.random())
        if kind < 0.4 or not config.checkpoint.enabled:
            freezes.append(Freeze(step, pick, int(timeout_us * ratio)))
        else:
            freezes.append(Freeze(step, pick, None if kind < 0.5 else int(timeout_us * (1 + 3 * ratio))))
    return Freezes(timeout_us, tuple(freezes))
