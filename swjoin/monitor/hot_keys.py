"""The most frequent keys of a stream, from a sample, by a frequent-items sketch.

What: `HotKeys.read` samples a few rows of each batch; `top` returns the k most frequent keys with their bounds.
Why: a hot key makes one slave slower than the others. A sketch finds it in bounded memory, and a sample in bounded time: at
most a few times `ROWS_PER_S` rows a second cost a Python call, whatever the rate.
Stays out: what a key means (`core.key_encoder`), presentation.

The sample is stratified: one random row of every `stride` rows, weighted by `stride`, so that periodic keys are not missed.
Sketches are those of Apache DataSketches. Two of them alternate, so that keys which were hot long ago are forgotten.
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
_FIRST_PERIOD_S, _PERIOD_S = 0.5, 4.0  # for which the rate is limited, at first and later; sources yield large batches
_LG_CAPACITY = 12  # 3,072 keys in each sketch
_DEVIATIONS = 2.0  # standard deviations of the sample in the bounds of a key


def load_sketches() -> Any:
    """The library. UserError when it is missing."""
    try:
        import datasketches
    except ModuleNotFoundError:
        text = f"hot keys need datasketches, which is missing; set observe.hot_keys to 0, or {how_to_install('dashboard')}"
        raise UserError(text) from None
    return datasketches


class _StratifiedSample:
    """Chooses one random row of every `stride` rows; the stride follows the rate, for at most `rows_per_s` rows a second."""

    def __init__(self, rows_per_s: int, seed: int) -> None:
        self.stride = 1
        self._rows_per_s = rows_per_s
        self._random = np.random.default_rng(seed)
        self._next = 0  # rows until the next stratum
        self._pending: int | None = None  # rows until the chosen row of the open stratum
        self._period_s = _FIRST_PERIOD_S
        self._limit = int(rows_per_s * _FIRST_PERIOD_S)  # sampled rows of a period
        self._start_s = -math.inf  # of the period
        self._rows = self._sampled = 0  # of the period
        self._double_at = self._limit  # sampled rows at which the stride doubles

    def choose(self, count: int, now_s: float) -> I64:
        """Indexes of the chosen rows among the next `count`."""
        self._adapt_stride(count, now_s)
        strata = np.arange(self._next, count, self.stride, dtype=np.int64)
        chosen = strata + self._random.integers(0, self.stride, len(strata))
        if self._pending is not None:
            chosen = np.concatenate([np.array([self._pending], np.int64), chosen])
        self._next = self._next + len(strata) * self.stride - count
        self._pending = int(chosen[-1]) - count if len(chosen) and chosen[-1] >= count else None
        chosen = chosen[:-1] if self._pending is not None else chosen
        self._sampled += len(chosen)
        return chosen

    def _adapt_stride(self, count: int, now_s: float) -> None:
        """Set the stride by the rate of the last period; within a period it only grows, with every further quarter of the
        limit."""
        elapsed = now_s - self._start_s
        if elapsed >= self._period_s:
            stride = 1
            if not math.isinf(elapsed):
                stride = math.ceil(self._rows / elapsed / self._rows_per_s)
                self._period_s = min(_PERIOD_S, 2 * self._period_s)
                self._limit = int(self._rows_per_s * self._period_s)
            self._start_s, self._rows, self._sampled, self._double_at = now_s, 0, 0, self._limit
        elif self._sampled >= self._double_at:  # the rate has grown
            stride = 2 * self.stride
            self._double_at = self._sampled + self._limit // 4
        else:
            stride = self.stride
        self._rows += count
        stride = max(1, stride, math.ceil(count / self._limit))
        if stride != self.stride:  # the open stratum ends here
            self.stride, self._next, self._pending = stride, 0, None


class HotKeys:
    """The k most frequent keys of one stream, over the last SPAN_S to 2 * SPAN_S seconds. UserError without the library."""

    def __init__(self, k: int, *, rows_per_s: int = ROWS_PER_S, span_s: float = SPAN_S, seed: int = 1) -> None:
        self._library = load_sketches()
        self._k, self._span_s = k, span_s
        self._sample = _StratifiedSample(rows_per_s, seed)
        self._span_start_s = -math.inf
        self._waiting: list[tuple[I64, int]] = []  # chosen keys and their weight
        self._spans = [self._empty(), self._empty()]  # the open one first

    def _empty(self) -> _Span:
        return _Span(self._library.frequent_items_sketch(_LG_CAPACITY))

    def read(self, keys: I64, valid: Bool | None, now_s: float) -> None:
        """Sample a batch. keys: int64 (n,); valid: (n,), None: all. now_s: of any monotonic clock."""
        rows = self._sample.choose(len(keys), now_s)
        chosen = keys[rows]
        if valid is not None:
            chosen = chosen[valid[rows]]
        if len(chosen):
            self._waiting.append((chosen, self._sample.stride))

    def _fold(self, now_s: float) -> None:
        """Add the chosen keys to the sketch; forget an old span."""
        if now_s - self._span_start_s >= self._span_s:
            self._span_start_s = now_s
            self._spans = [self._empty(), self._spans[0]]
        waiting, self._waiting = self._waiting, []
        for weight in {weight for _, weight in waiting}:
            keys, counts = np.unique(np.concatenate([k for k, w in waiting if w == weight]), return_counts=True)
            self._spans[0].add(keys, counts, weight)

    def top(self, now_s: float, text: Callable[[int], str] = str) -> dict[str, Any]:
        """The most frequent keys, ready for JSON: share_ratio of `rows` tuples, within low_ratio and high_ratio (the sketch's
        bounds and twice the sample's standard deviation). one_in: the stride. text: renders a key.
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
        return {"rows": weight, "one_in": self._sample.stride, "keys": keys}


class _Span:
    """A sketch of one span of time. weight: rows that it represents; squares: sum of the chosen rows' squared weights."""

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
