"""Random delays of a simulated run, its result, and its error.

What: `Delays`, `SimulationResult`, `SimulationError`.
Why: modules that choose or check scenarios use them without the simulator.
Stays out: virtual time, messages and crashes (`runtime.simulator.simulator`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from swjoin.core.batch import I64, Pairs, ResultRows, SourceBatch
from swjoin.core.data_messages import RunEvent


class SimulationError(AssertionError):
    """A checker found a broken invariant; the text contains the virtual time and the last steps."""


class OfQueries(NamedTuple):
    """batches: of every batch of `pairs`, whose query's it is. sums: count and digest of each named query."""

    batches: Sequence[int] = ()
    sums: Sequence[dict[str, Any]] = ()


@dataclass
class SimulationResult:
    """The result of a run: pairs, or other rows of a plan, in arrival order at the sink, the roles' summaries, rows set aside,
    steps taken. excluded: how many roles counted as dead."""

    pairs: list[Pairs | ResultRows]
    count: int
    digest: str
    joined: dict[str, int]
    counts: dict[str, dict[str, int]]
    set_aside: list[tuple[int, SourceBatch, str]]  # stream, rows, reason
    steps: int
    commits: list[int] = field(default_factory=list)
    events: list[RunEvent] = field(default_factory=list)
    declustering: list[dict[str, Any]] = field(default_factory=list)
    prefill: dict[str, Any] = field(default_factory=dict)
    recoveries: int = 0
    checkpoints: int = 0
    excluded: int = 0
    queries: OfQueries = field(default_factory=OfQueries)

    def ids(self) -> tuple[I64, I64]:
        """Ids of all pairs, left and right, as int64."""
        empty, pairs = np.empty(0, np.uint64), [p for p in self.pairs if isinstance(p, Pairs)]
        left = np.concatenate([empty, *(p.left_id for p in pairs)])
        right = np.concatenate([empty, *(p.right_id for p in pairs)])
        return left.astype(np.int64), right.astype(np.int64)


class Delays:
    """Random delays: each channel and actor draws a scale at the start, then heavy-tailed times around it (microseconds)."""

    def __init__(self, random: np.random.Generator, actors: int) -> None:
        self._random = random
        self._channel = 10.0 ** random.uniform(0, 5, (actors, actors))
        self._actor = 10.0 ** random.uniform(0, 4, actors)

    def message_us(self, sender: int, receiver: int) -> int:
        return 1 + int(self._channel[sender, receiver] * self._random.exponential())

    def stall_us(self, patience_us: int) -> int:
        """Time for which a source has no rows: mostly 0, sometimes much longer than the idle timeout."""
        return int(patience_us * self._random.exponential(4)) if self._random.random() < 0.2 else 0

    def work_us(self, actor: int) -> int:
        return 1 + int(self._actor[actor] * self._random.exponential())

    def gateway_count(self, most: int) -> int:
        """Of a run that goes on after a crash."""
        return int(self._random.integers(1, most + 1))
