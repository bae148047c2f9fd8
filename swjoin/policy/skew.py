"""Which keys of a join are hot: pure rules, on estimates from samples.

What: `KeySample`, of the rows that a sender has sent; `KeyShares`, the shares of keys in both streams of a join, and which of
them are hot.
Why: a key with more than a quarter of a slave's fair share of a stream cannot be placed well (specs section 4 of seed 002: a
key above 1/(4 x slaves) of a stream). What is hot is forgotten by and by.
Stays out: what is done with a hot key (`routing.hot_keys`), when (`cluster.master.key_spreading`), the table of hot keys that
people see (`monitor.hot_keys`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from swjoin.core.batch import I64

SAMPLED = 4_096  # rows of a batch, at most
LEAST_ROWS = 16_384  # of a stream, before a key of it may be hot
_SPAN = 1 << 18  # rows of a stream after which what was counted so far counts half
_MOST_COUNTED = 2_048  # keys of a stream, or twice as many
_SHARE = 4  # a key is hot from 1 / (4 x slaves) of a stream on, and cold again below half of that


class KeySample:
    """Rows of one port of a join that a sender has sent since it told of them last. seed: of the sample."""

    def __init__(self, slaves: int, seed: int) -> None:
        self._random = np.random.default_rng([0x736B6577, seed])
        self._least = 1 / (4 * _SHARE * slaves)
        self._rows = 0
        self._counts: Counter[int] = Counter()  # of keys, for so many rows

    def add(self, keys: I64) -> None:
        """keys: int64 (n,), as they travel."""
        count = len(keys)
        self._rows += count
        sample = keys if count <= SAMPLED else keys[self._random.integers(0, count, SAMPLED)]
        found, times = np.unique(sample, return_counts=True)
        many = times * count >= self._least * count * len(sample)  # of this batch
        for key, each in zip(found[many].tolist(), times[many].tolist(), strict=True):
            self._counts[key] += each * count // len(sample)

    def take(self) -> tuple[int, tuple[tuple[int, int], ...]]:
        """Rows since the last call, and about how many of them the most frequent keys have."""
        rows, counts, self._rows, self._counts = self._rows, self._counts, 0, Counter()
        return rows, tuple((key, count) for key, count in counts.items() if count >= self._least * rows)


class KeyShares:
    """Shares of the frequent keys in the two streams of a join, of recent rows. slaves: that share the join."""

    def __init__(self, slaves: int) -> None:
        self._share = 1 / (_SHARE * slaves)
        self._rows = [0, 0]  # recent ones
        self._all_rows = [0, 0]
        self._counts: tuple[Counter[int], Counter[int]] = (Counter(), Counter())

    def add(self, port: int, rows: int, counts: Iterable[Sequence[int]]) -> None:
        """What a sender has sent to a port: its rows, and those of its most frequent keys."""
        self._rows[port] += rows
        self._all_rows[port] += rows
        for key, count in counts:
            self._counts[port][key] += count
        if self._rows[port] >= _SPAN:
            self._rows[port] //= 2
            halves = Counter({key: count // 2 for key, count in self._counts[port].items() if count > 1})
            self._counts[port].clear()
            self._counts[port].update(halves)
        if len(self._counts[port]) > 2 * _MOST_COUNTED:  # of small epochs every key has a large share
            most = self._counts[port].most_common(_MOST_COUNTED)
            self._counts[port].clear()
            self._counts[port].update(dict(most))

    def _frequent(self, share: float, ports: Iterable[int]) -> dict[int, float]:
        """Keys with more than this share of one of these streams, and their share of it."""
        found: dict[int, float] = {}
        for port in ports:
            rows = self._rows[port]
            if rows >= LEAST_ROWS:
                more = {key: count / rows for key, count in self._counts[port].items() if count > share * rows}
                found |= {key: max(each, found.get(key, 0.0)) for key, each in more.items()}
        return found

    def hot(self, ports: Iterable[int]) -> list[int]:
        """Keys that are hot in one of these streams, the hottest first."""
        found = self._frequent(self._share, ports)
        return sorted(found, key=lambda key: (-found[key], key))

    def warm(self, ports: Iterable[int]) -> set[int]:
        """Hot keys, and those that stay hot if they are."""
        return set(self._frequent(self._share / 2, ports))

    def plain_state(self) -> list[Any]:
        """Ready for JSON."""
        return [self._rows, self._all_rows, [list(counts.items()) for counts in self._counts]]

    def restore(self, plain: Sequence[Any]) -> None:
        rows, all_rows, counts = plain
        self._rows, self._all_rows = list(rows), list(all_rows)
        for port, of in enumerate(counts):
            self._counts[port].update(dict(of))

    def rows_of(self, key: int) -> tuple[int, int]:
        """Left and right rows of a key, about, as its share is now."""
        left, right = (self._counts[port][key] * self._all_rows[port] // max(1, self._rows[port]) for port in (0, 1))
        return left, right
