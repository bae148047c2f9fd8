"""Windows of counts, and the kernels and tables of expectations over them.

What: `mini_shares`, `spread_delays`, `Windows` (counts per stream, partition-group and stretch), `Fresh` (a delivery as a
matrix), `Meter`.
Why: keeps the arithmetic apart from the join module's protocol.
Stays out: deliveries, state movement (`forecast.model.join`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, TupleBatch
from swjoin.core.ids import GroupId
from swjoin.core.kernel_cache import kernel
from swjoin.forecast.model.batch import F64, ModelBatch
from swjoin.state.arrays import STAT_DELAY_MAX, STAT_DELAY_SUM
from swjoin.state.delay_histogram import histogram_index
from swjoin.state.extendible_hash import MAX_DEPTH

_POINTS = 8  # points in time over which arrivals of a run and results of a step are spread


@kernel
def mini_shares(tuples: F64, equal: F64, theta: int, ragged: int, share: F64, minis: F64) -> None:
    """Expectations per partition-group with `tuples` window tuples of both streams: share[g], share of its tuples that are in
    the mini-partition-group of a fresh tuple; minis[g], number of its mini-partition-groups. theta in tuples of both streams,
    0: off. ragged: expired tuples in the half-expired blocks of a mini-partition-group."""
    for g in range(tuples.shape[0]):
        share[g] = 1.0
        minis[g] = 1.0
        if theta == 0 or tuples[g] <= theta:
            continue
        rest = 0.0
        count = 0.0
        reached = 1.0  # probability that a tuple's mini-partition-group is at least this deep
        for depth in range(MAX_DEPTH + 1):
            size = tuples[g] / 2.0**depth
            spread = math.sqrt(size + tuples[g] * tuples[g] * equal[g] / 2.0**depth)
            splits = (
                0.5 * (1.0 + math.erf((size + ragged - 2.0 * theta) / (spread * math.sqrt(2.0)))) if depth < MAX_DEPTH else 0.0
            )
            splits = min(splits, reached)
            rest += (reached - splits) / 2.0**depth
            count += (reached - splits) * 2.0**depth
            reached = splits
            if reached < 1e-6:
                break
        share[g] = equal[g] + (1.0 - equal[g]) * rest
        minis[g] = count


@kernel
def spread_delays(
    pairs: int, weights: F64, triangular: F64, begins: I64, ends: I64, now: int, span: float, stats: I64, histogram: I64
) -> None:
    """Record `pairs` delays, produced evenly over [now, now + span], microseconds.

    weights, triangular: relative numbers of pairs whose later tuple arrived in [begins, ends]: with even density, and with
    linearly growing density, as the later one of two.
    """
    total = 0.0
    for i in range(weights.shape[0]):
        total += weights[i] + triangular[i]
    if pairs == 0 or total <= 0.0:
        return
    wanted = 0.0
    given = 0
    for i in range(weights.shape[0]):
        if weights[i] + triangular[i] == 0.0:
            continue
        for a in range(_POINTS):
            part = (weights[i] + triangular[i] * (2 * a + 1) / _POINTS) / _POINTS
            arrival = begins[i] + (ends[i] - begins[i]) * (a + 0.5) / _POINTS
            for p in range(_POINTS):
                wanted += pairs * part / total / _POINTS
                matches = int(min(wanted + 0.5, float(pairs))) - given
                if matches > 0:
                    late = np.int64(max(now + span * (p + 0.5) / _POINTS - arrival, 0.0))
                    histogram[histogram_index(late)] += matches
                    stats[STAT_DELAY_SUM] += late * matches
                    stats[STAT_DELAY_MAX] = max(stats[STAT_DELAY_MAX], late)
                    given += matches
    if given < pairs:  # the rest of rounding
        histogram[histogram_index(np.int64(0))] += pairs - given


@dataclass
class Meter:
    """Work done so far."""

    tuples: int = 0
    comparisons: float = 0.0
    pairs: int = 0
    visits: float = 0.0  # mini-partition-groups with fresh tuples, summed over deliveries
    groups: int = 0  # partition-groups of deliveries
    deliveries: int = 0
    growth: int = 0  # window tuples above the peak before
    extracted_bytes: int = 0
    installed_bytes: int = 0


@dataclass(frozen=True)
class Fresh:
    """One stream of a delivery as a matrix. count: float64 (partition-groups, columns); stretch, begin, end: int64
    (columns,)."""

    count: F64
    stretch: I64
    begin: I64
    end: I64


def as_matrix(groups: I64, batch: TupleBatch) -> Fresh:
    if not isinstance(batch, ModelBatch) or len(batch) == 0:
        none = np.empty(0, np.int64)
        return Fresh(np.zeros((len(groups), 0)), none, none, none)
    moment = np.stack([batch.stretch, batch.arrival_us, batch.arrival_end_us])
    if (moment == moment[:, :1]).all():  # one stretch
        alone = np.zeros((len(groups), 1))
        np.add.at(alone[:, 0], np.searchsorted(groups, batch.key), batch.count)
        return Fresh(alone, *moment[:, :1])
    unique, column = np.unique(moment, axis=1, return_inverse=True)
    count = np.zeros((len(groups), unique.shape[1]))
    np.add.at(count, (np.searchsorted(groups, batch.key), column.reshape(-1)), batch.count)
    return Fresh(count, unique[0], unique[1], unique[2])


class Windows:
    """Counts of both streams: a row per partition-group, a column per stretch from `base` on."""

    def __init__(self) -> None:
        self.rows: dict[GroupId, int] = {}
        self._free: list[int] = []
        self.base = 0
        self.counts = np.zeros((2, 4, 8))

    def open(self, group: GroupId) -> int:
        row = self.rows.get(group)
        if row is None:
            if not self._free:
                size = self.counts.shape[1]
                self._free = list(range(2 * size - 1, len(self.rows) - 1, -1))
                self.counts = np.concatenate([self.counts, np.zeros_like(self.counts)], axis=1)
            row = self.rows[group] = self._free.pop()
        return row

    def reach(self, first: int, last: int) -> None:
        """Make columns for the stretches first..last."""
        columns = self.counts.shape[2]
        if not self.counts.any():
            self.base = first
        low = min(first, self.base)
        if low == self.base and last - low < columns:
            return
        used = np.flatnonzero(self.counts.any(axis=(0, 1)))
        if len(used) == 0:  # empty, but more stretches come at once than there are columns
            self.counts = np.zeros((2, self.counts.shape[1], max(columns, 2 * (last + 1 - first))))
            return
        begin = min(low, self.base + int(used[0])) if low < self.base else min(first, self.base + int(used[0]))
        end = max(last, self.base + int(used[-1])) + 1
        wider = np.zeros((2, self.counts.shape[1], max(columns, 2 * (end - begin))))
        at = self.base + int(used[0]) - begin
        wider[:, :, at : at + used[-1] - used[0] + 1] = self.counts[:, :, used[0] : used[-1] + 1]
        self.base, self.counts = begin, wider

    def add(self, stream: int, rows: I64, stretches: I64, count: F64) -> None:
        """count: float64 (rows, stretches)."""
        if len(stretches):
            self.reach(int(stretches.min()), int(stretches.max()))
            np.add.at(self.counts[stream], (rows[:, None], stretches[None, :] - self.base), count)

    def close(self, group: GroupId) -> F64:
        """Remove a partition-group; returns its counts, float64 (2, columns)."""
        row = self.rows.pop(group)
        self._free.append(row)
        out = self.counts[:, row].copy()
        self.counts[:, row] = 0
        return out
