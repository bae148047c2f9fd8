"""Tuples as counts: the batches that the model sends through the production roles.

What: `ModelBatch`, runs of tuples of one partition-group and one interval of time ("stretch"), for a `TupleBatch`;
`ModelPairs`, a number of pairs; `Overlaps`, how often two tuples' times satisfy the bounds;
`KeyDistribution`, the distribution of a stream's tuples over time and partition-groups, and how often two of them are equal.
Why: 10^9 tuples/s cannot be materialised, and need not be: the work of master, slaves and links depends on counts.
Stays out: computing a distribution (`forecast.key_distribution`), joining (`forecast.model.join`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, LEFT, Pairs, TupleBatch
from swjoin.core.join_semantics import Bounds

F64 = NDArray[np.float64]
_MOST_ROWS = 4096  # of chances that are kept
TUPLE_BYTES = 32  # key, time, id, arrival: as in `TupleBatch.nbytes`


@dataclass(frozen=True)
class ModelBatch(TupleBatch):
    """Runs of tuples: run i holds count[i] tuples of partition-group key[i], evenly spread over stretch `stretch[i]`.

    Columns are per run; `len` and `nbytes` are those of the tuples. ts: start of the run's stretch. Arrivals are spread evenly
    over [arrival_us, arrival_end_us]. count, stretch: int64 (runs,). tuple_bytes: of one tuple.
    """

    count: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    stretch: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    arrival_end_us: I64 = field(default_factory=lambda: np.empty(0, np.int64))
    tuple_bytes: int = TUPLE_BYTES
    _total: int = field(init=False, default=0)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_total", int(self.count.sum()))

    @staticmethod
    def of(key: I64, ts: I64, stretch: I64, arrival_us: I64, arrival_end_us: I64, count: I64, tuple_bytes: int) -> ModelBatch:
        """Runs of these columns."""
        none = np.empty(0, np.uint64)
        return ModelBatch(key, ts, none, arrival_us, None, None, count, stretch, arrival_end_us, tuple_bytes)

    def __len__(self) -> int:
        return self._total

    @property
    def nbytes(self) -> int:
        return self._total * self.tuple_bytes

    def _runs(self, which: I64 | slice, count: I64) -> ModelBatch:
        columns = (self.key, self.ts, self.stretch, self.arrival_us, self.arrival_end_us)
        key, ts, stretch, arrival, arrival_end = (c[which] for c in columns)
        return ModelBatch.of(key, ts, stretch, arrival, arrival_end, count, self.tuple_bytes)

    def slice(self, start: int, stop: int) -> ModelBatch:
        """Tuples start..stop; a run that is cut is shortened."""
        ends = np.cumsum(self.count)
        count = np.minimum(ends, stop) - np.maximum(ends - self.count, start)
        which = np.flatnonzero(count > 0)
        return self._runs(which, count[which])

    def take(self, index: I64) -> ModelBatch:
        raise NotImplementedError("runs have no single tuples")

    def pieces(self, starts: I64, lengths: I64) -> ModelBatch:
        by_group = np.argsort(self.key, kind="stable")  # a run is of one partition-group
        return self._runs(by_group, self.count[by_group])

    def followed_by(self, others: Sequence[TupleBatch]) -> ModelBatch:
        parts = [self, *(p for p in others if isinstance(p, ModelBatch))]
        names = ("key", "ts", "stretch", "arrival_us", "arrival_end_us", "count")
        key, ts, stretch, arrival, arrival_end, count = (np.concatenate([getattr(p, n) for p in parts]) for n in names)
        return ModelBatch.of(key, ts, stretch, arrival, arrival_end, count, self.tuple_bytes)


@dataclass(frozen=True)
class ModelPairs(Pairs):
    """Pairs without columns, whose digest is 0. pair_bytes: of one."""

    count: int = 0
    pair_bytes: int = 0

    @staticmethod
    def of(count: int, pair_bytes: int) -> ModelPairs:
        none, ids = np.empty(0, np.int64), np.empty(0, np.uint64)
        return ModelPairs(none, none, none, ids, ids, count=count, pair_bytes=pair_bytes)

    def __len__(self) -> int:
        return self.count

    @property
    def nbytes(self) -> int:
        return self.count * self.pair_bytes


@dataclass(frozen=True)
class KeyDistribution:
    """Distribution of both streams' tuples over time and partition-groups, and how often two tuples are equal.

    edges_us: int64 (stretches + 1,), ends of the stretches from the start of the stream; rate and hot keys are constant within.
    rotation: int64 (stretches,), index of the stretch's hot keys (drift).
    mean: float64 (stretches,), expected tuples.
    share: float64 (rotations, partition-groups), probability that a tuple belongs to a partition-group.
    equal: same shape, probability that two tuples of a partition-group and of the same rotation have equal keys.
    apart: float64 (partition-groups,), that probability for two different rotations.
    """

    edges_us: I64
    rotation: I64
    mean: F64
    share: F64
    equal: F64
    apart: F64

    @property
    def stretch_count(self) -> int:
        return len(self.edges_us) - 1

    @property
    def partition_count(self) -> int:
        return int(self.share.shape[1])


def overlap(begin_l: F64, width_l: F64, begin_r: F64, width_r: F64, lower: float, upper: float) -> F64:
    """Probability that lower <= r - l <= upper for l, r uniform in [begin, begin + width]: float64 (left, right)."""
    low, high = begin_l[:, None], begin_l[:, None] + width_l[:, None]
    start, stop = begin_r[None, :], begin_r[None, :] + width_r[None, :]

    def half_square(x: F64) -> F64:
        return np.square(np.maximum(x, 0.0)) / 2

    def below(x: float) -> F64:
        """Integral of [r - l <= x] over l and r."""
        return (
            half_square(x + high - start)
            - half_square(x + low - start)
            - half_square(x + high - stop)
            + half_square(x + low - stop)
        )

    chance: F64 = (below(upper) - below(lower)) / (width_l[:, None] * width_r[None, :])
    return np.clip(chance, 0.0, 1.0)


class Overlaps:
    """The chance that a left and a right tuple of two stretches satisfy the bounds; all slaves of a run share it."""

    def __init__(self, edges_us: I64, bounds: Bounds) -> None:
        self._edges_us, self.bounds = edges_us, bounds
        self._rows: dict[tuple[int, int], tuple[int, F64]] = {}  # by stream and stretch: first opposite one, and its chances

    def of(self, stream: int, mine: I64, other: I64) -> F64:
        """Float64 (mine, other). other: of the opposite stream."""
        out = np.zeros((len(mine), len(other)))
        for index, stretch in enumerate(mine.tolist()):
            first, row = self._row(stream, stretch)
            at = other - first
            inside = np.flatnonzero((at >= 0) & (at < len(row)))
            out[index, inside] = row[at[inside]]
        return out

    def _row(self, stream: int, stretch: int) -> tuple[int, F64]:
        found = self._rows.get((stream, stretch))
        if found is not None:
            return found
        edges, lower, upper = self._edges_us, self.bounds.lower_us, self.bounds.upper_us + 1
        if stream != LEFT:
            lower, upper = -upper, -lower
        begin, end = int(edges[stretch]), int(edges[stretch + 1])
        first = max(0, int(np.searchsorted(edges, begin + lower, side="right")) - 1)
        last = min(len(edges) - 1, int(np.searchsorted(edges, end + upper, side="left")))
        mine = np.array([0.0]), np.array([float(end - begin)])
        others = (edges[first:last] - begin).astype(np.float64), np.diff(edges[first : last + 1]).astype(np.float64)
        if stream == LEFT:
            row = overlap(*mine, *others, float(lower), float(upper))[0]
        else:
            row = overlap(*others, *mine, float(-upper), float(-lower))[:, 0]
        if len(self._rows) >= _MOST_ROWS:
            self._rows.clear()
        self._rows[stream, stretch] = first, row
        return first, row
