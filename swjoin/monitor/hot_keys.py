"""The most frequent keys of a stream, from a sample, by a frequent-items sketch.

What: `HotKeys.read` takes a few rows of each batch, `top` tells the k most frequent keys with their bounds.
Why: a hot key is what makes one slave slower than the others. A sketch knows it in bounded memory, and a sample in bounded
time: at most a few times `ROWS_PER_S` rows a second cost a Python call, whatever the rate.
Stays out: what a key means (`core.key_encoder`), showing it.

The sample is stratified: of every `stride` rows one, at a random place, weighs as many; keys that come in a period cannot hide
from it. Sketches are those of Apache DataSketches. Two of them take turns, so that keys which were hot long ago are forgotten.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError, how_to_install

ROWS_PER_S = 16384
SPAN_S = 30.0
_FIRST_PACE_S, _PACE_S = 0.5, 4.0  # over which that holds, at first and later; sources are read in large pieces
_LG_CAPACITY = 12  # 3,072 keys in each sketch
_DEVIATIONS = 2.0  # of the sample's error


def load_sketches() -> Any:
    """The library. UserError when it is missing."""
    try:
        import datasketches
    except ModuleNotFoundError:
        text = f"hot keys need datasketches, which is missing; set observe.hot_keys to 0, or {how_to_install('dashboard')}"
        raise UserError(text) from None
    return datasketches


class HotKeys:
    """The k most frequent keys of one stream, over the last SPAN_S to 2 * SPAN_S seconds. UserError without the library."""

    def __init__(self, k: int, *, rows_per_s: int = ROWS_PER_S, span_s: float = SPAN_S, seed: int = 1) -> None:
        self._library = load_sketches()
        self._k, self._rows_per_s, self._span_s = k, rows_per_s, span_s
        self._pace_s = _FIRST_PACE_S
        self._most = int(rows_per_s * _FIRST_PACE_S)  # rows in that time
        self._random = np.random.default_rng(seed)
        self._stride = 1
        self._next = 0  # rows from here to the next stratum
        self._chosen_later: int | None = None  # row of the open stratum that is chosen, counted from here
        self._paced_s = self._began_s = -math.inf
        self._rows = self._sampled = 0  # since then
        self._enough = self._most  # sampled rows at which the stride doubles
        self._waiting: list[tuple[I64, int]] = []  # chosen keys, and what each of them weighs
        self._spans = [self._empty(), self._empty()]  # the one being filled comes first

    def _empty(self) -> _Span:
        return _Span(self._library.frequent_items_sketch(_LG_CAPACITY))

    def read(self, keys: I64, valid: Bool | None, now_s: float) -> None:
        """Take note of a batch. keys: int64 (n,); valid: (n,), None: all. now_s: of any clock that only goes forward."""
        count = len(keys)
        self._keep_pace(count, now_s)
        strata = np.arange(self._next, count, self._stride, dtype=np.int64)
        places = strata + self._random.integers(0, self._stride, len(strata))
        if self._chosen_later is not None:
            places = np.concatenate([np.array([self._chosen_later], np.int64), places])
        self._next = self._next + len(strata) * self._stride - count
        beyond = int(places[-1]) - count if len(places) and places[-1] >= count else None
        places = places[:-1] if beyond is not None else places
        self._chosen_later = beyond
        chosen = keys[places]
        if valid is not None:
            chosen = chosen[valid[places]]
        self._sampled += len(places)
        if len(chosen):
            self._waiting.append((chosen, self._stride))

    def _keep_pace(self, count: int, now_s: float) -> None:
        """Choose the stride by the rate of the last `_pace_s`; meanwhile it only grows, with every further quarter of what is
        meant for that time."""
        elapsed = now_s - self._paced_s
        if elapsed >= self._pace_s:
            stride = 1
            if not math.isinf(elapsed):
                stride = math.ceil(self._rows / elapsed / self._rows_per_s)
                self._pace_s = min(_PACE_S, 2 * self._pace_s)
                self._most = int(self._rows_per_s * self._pace_s)
            self._paced_s, self._rows, self._sampled, self._enough = now_s, 0, 0, self._most
        elif self._sampled >= self._enough:  # the rate has grown
            stride = 2 * self._stride
            self._enough = self._sampled + self._most // 4
        else:
            stride = self._stride
        self._rows += count
        stride = max(1, stride, math.ceil(count / self._most))
        if stride != self._stride:  # the open stratum ends here
            self._stride, self._next, self._chosen_later = stride, 0, None

    def _fold(self, now_s: float) -> None:
        """What was chosen goes into the sketch; an old span is forgotten."""
        if now_s - self._began_s >= self._span_s:
            self._began_s = now_s
            self._spans = [self._empty(), self._spans[0]]
        waiting, self._waiting = self._waiting, []
        for weight in {weight for _, weight in waiting}:
            keys, counts = np.unique(np.concatenate([k for k, w in waiting if w == weight]), return_counts=True)
            self._spans[0].add(keys, counts, weight)

    def top(self, now_s: float, text: Callable[[int], str] = str) -> dict[str, Any]:
        """The most frequent keys, ready for JSON. text: of a key.

        `share_ratio` of `rows` tuples, between `low_ratio` and `high_ratio`: what the sketch cannot be wrong about, and twice
        the standard deviation of the sample. `one_in`: the stride.
        """
        self._fold(now_s)
        sketch = self._library.frequent_items_sketch(_LG_CAPACITY)
        for span in self._spans:
            sketch.merge(span.sketch)
        weight = sum(span.weight for span in self._spans)
        spread = sum(span.squares for span in self._spans) / weight - 1 if weight else 0.0
        kind = self._library.frequent_items_error_type.NO_FALSE_NEGATIVES
        keys = []
        for key, estimate, low, high in sketch.get_frequent_items(kind)[: self._k]:
            error = _DEVIATIONS * math.sqrt(estimate * spread)
            ratios = {"low_ratio": max(0.0, (low - error) / weight), "high_ratio": min(1.0, (high + error) / weight)}
            keys.append({"key": text(key), "share_ratio": estimate / weight, **ratios})
        return {"rows": weight, "one_in": self._stride, "keys": keys}


class _Span:
    """A sketch of one span of time. weight: rows it stands for; squares: of the weights of the rows that were chosen."""

    def __init__(self, sketch: Any) -> None:
        self.sketch = sketch
        self.weight = 0
        self.squares = 0

    def add(self, keys: I64, counts: I64, weight: int) -> None:
        update = self.sketch.update
        for key, count in zip(keys.tolist(), (counts * weight).tolist(), strict=True):
            update(key, count)
        rows = int(counts.sum())
        self.weight += rows * weight
        self.squares += rows * weight * weight
