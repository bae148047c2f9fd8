"""Join selectivity: expected matches of a tuple in the other stream, from decaying key counts.

What: `MatchEstimates` counts arrived and dropped tuples; it estimates matches per tuple and the lost pairs.
Why: load shedding needs the value of tuples, and the size of its loss, without joining the dropped tuples.
Stays out: choosing tuples (`cluster.gateway.overload`).

Each stream has a sketch: three rows of counters, each key with one counter per row, shared with other keys. The counters decay
by a factor of e per span of the bounds; at a steady rate they count about the tuples of one window. The minimum of a key's
three counters (Cormode and Muthukrishnan, count-min) ranks tuples. Their mean, minus the average share of other keys, is
unbiased, so its sum over many dropped tuples is accurate.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64, LEFT, RIGHT
from swjoin.core.join_semantics import Bounds, mix64

_BITS = 14
_CELLS = 1 << _BITS
_ROWS = 3
_SHORTEST_US = 1_000_000  # counters with a faster decay would be almost empty

F64 = NDArray[np.float64]


def _cells(key: I64) -> I64:
    """Counters of each key: int64 (3, n)."""
    hashed = mix64(key.view(np.uint64))
    rows = [(hashed >> np.uint64(_BITS * row)) & np.uint64(_CELLS - 1) for row in range(_ROWS)]
    return np.stack(rows).astype(np.int64)


class _Sketch:
    """Counters of one kind of tuples."""

    def __init__(self) -> None:
        self._counts = np.zeros((_ROWS, _CELLS))
        self._total = 0.0

    def fade(self, factor: float) -> None:
        self._counts *= factor
        self._total *= factor

    def add(self, cells: I64) -> None:
        for row in range(_ROWS):
            self._counts[row] += np.bincount(cells[row], minlength=_CELLS)
        self._total += cells.shape[1]

    def least(self, cells: I64) -> F64:
        """An upper estimate for each key."""
        found: F64 = np.min([self._counts[row][cells[row]] for row in range(_ROWS)], axis=0)
        return found

    def mean(self, cells: I64) -> float:
        """The sum of unbiased estimates over the keys."""
        seen = np.mean([float(self._counts[row][cells[row]].sum()) for row in range(_ROWS)])
        return float((seen * _CELLS - self._total * cells.shape[1]) / (_CELLS - 1))


class MatchEstimates:
    """Estimates for both streams. lost_pairs: estimated count so far."""

    def __init__(self, bounds: Bounds) -> None:
        span_us = max(0, bounds.upper_us - bounds.lower_us + 1)  # with count windows, in tuples of both streams
        self._decay_us = max(span_us, _SHORTEST_US)
        self._share = span_us / self._decay_us
        self._arrived = (_Sketch(), _Sketch())
        self._dropped = (_Sketch(), _Sketch())
        self._time_us: int | None = None
        self._missing = 1.0  # share of the steady-state counts that the counters lack so far
        self.lost_pairs = 0.0

    def advance(self, time_us: int) -> None:
        """Decay the counters up to this time of the streams."""
        if self._time_us is not None and time_us > self._time_us:
            factor = math.exp((self._time_us - time_us) / self._decay_us)
            self._missing *= factor
            for sketch in (*self._arrived, *self._dropped):
                sketch.fade(factor)
        self._time_us = time_us if self._time_us is None else max(self._time_us, time_us)

    def arrived(self, stream: int, key: I64) -> None:
        if len(key):
            self._arrived[stream].add(_cells(key))

    def matches(self, stream: int, key: I64) -> F64:
        """For ranking: upper estimate of the matches of each tuple in the other stream; float64 (n,)."""
        return self._arrived[1 - stream].least(_cells(key)) * self._share

    def dropped(self, keys: tuple[I64, I64]) -> None:
        """Count dropped tuples of both streams and the pairs lost with them."""
        cells = [_cells(key) for key in keys]
        for stream in (LEFT, RIGHT):
            self._dropped[stream].add(cells[stream])
        lost = 0.0
        for stream in (LEFT, RIGHT):  # a pair of two dropped tuples is counted once from each side: half each
            other, mine = 1 - stream, cells[stream]
            lost += self._arrived[other].mean(mine) - self._dropped[other].mean(mine) / 2
        self.lost_pairs += lost * self._share / max(1 - self._missing, 0.01)

    def plain_state(self) -> dict[str, Any]:
        """The state that survives a crash; the counters start empty."""
        return {"lost_pairs": self.lost_pairs}

    def restore(self, plain: dict[str, Any]) -> None:
        self.lost_pairs += plain["lost_pairs"]
