"""How many tuples of the other stream a tuple is expected to match, from counts of keys that fade away.

What: `MatchEstimates`: told what arrives and what is dropped, it estimates matches and the pairs that are lost.
Why: which tuples are missed least, and how much of the result is left, must be known without joining what was dropped.
Stays out: choosing (`cluster.master.overload`).

Each stream has a sketch: three rows of counters, in each of which every key has a counter that it shares with others. The
counters fade by e in the time that the bounds span; so, at a steady rate, one holds about as many tuples as one window. The
least of a key's three counters (Cormode and Muthukrishnan, count-min) ranks; their mean, less what other keys add on average,
has no bias, so its sum over many dropped tuples is near the truth.
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
_SHORTEST_US = 1_000_000  # counters that fade faster would hold nothing

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
        """The sum over the keys of estimates without bias."""
        seen = np.mean([float(self._counts[row][cells[row]].sum()) for row in range(_ROWS)])
        return float((seen * _CELLS - self._total * cells.shape[1]) / (_CELLS - 1))


class MatchEstimates:
    """Both streams. lost_pairs: the estimate so far."""

    def __init__(self, bounds: Bounds) -> None:
        span_us = max(0, bounds.upper_us - bounds.lower_us + 1)  # with count windows tuples of both streams stand for time
        self._fades_us = max(span_us, _SHORTEST_US)
        self._share = span_us / self._fades_us
        self._arrived = (_Sketch(), _Sketch())
        self._dropped = (_Sketch(), _Sketch())
        self._time_us: int | None = None
        self._missing = 1.0  # of what the counters hold after a long time, the share that they cannot hold yet
        self.lost_pairs = 0.0

    def advance(self, time_us: int) -> None:
        """The streams have come so far."""
        if self._time_us is not None and time_us > self._time_us:
            factor = math.exp((self._time_us - time_us) / self._fades_us)
            self._missing *= factor
            for sketch in (*self._arrived, *self._dropped):
                sketch.fade(factor)
        self._time_us = time_us if self._time_us is None else max(self._time_us, time_us)

    def arrived(self, stream: int, key: I64) -> None:
        if len(key):
            self._arrived[stream].add(_cells(key))

    def matches(self, stream: int, key: I64) -> F64:
        """For ranking: tuples of the other stream that each of these is expected to match at most; float64 (n,)."""
        return self._arrived[1 - stream].least(_cells(key)) * self._share

    def dropped(self, keys: tuple[I64, I64]) -> None:
        """Tuples of both streams will not be joined."""
        cells = [_cells(key) for key in keys]
        for stream in (LEFT, RIGHT):
            self._dropped[stream].add(cells[stream])
        lost = 0.0
        for stream in (LEFT, RIGHT):  # a pair of which both tuples are dropped is seen from either side: half each
            other, mine = 1 - stream, cells[stream]
            lost += self._arrived[other].mean(mine) - self._dropped[other].mean(mine) / 2
        self.lost_pairs += lost * self._share / max(1 - self._missing, 0.01)

    def plain_state(self) -> dict[str, Any]:
        """What is remembered across a crash; the counters begin anew."""
        return {"lost_pairs": self.lost_pairs}

    def restore(self, plain: dict[str, Any]) -> None:
        self.lost_pairs = plain["lost_pairs"]
