"""Hot keys of a join by hash: the rows of a key that has very many are dealt over several partition-groups while a run goes on.

What: `HotKey`, a key, its partition-groups, and the times of rows that are dealt or copied; `SpreadKeys`, those of one port of
a join: where rows go.
Why: all rows of a key meet in one partition-group, so a key may be more than a slave can do (specs section 4 of seed 002).
Stays out: which keys are hot (`policy.skew`), when the times are fixed (`cluster.master.key_spreading`).

Rows of one side are dealt, each to one of the partition-groups; those of the other side are copied to all of them. The key's
own one is the first: rows that are not dealt go there, and a copy always does. So a pair meets once: where its dealt row is.
Copies come first. A row is dealt only if every partner that it may have is younger than all rows that were sent before copies
began, and rows are copied as long as they may have a partner that was dealt. Both are conditions on a row's own time, so
neither the order of arrival, nor delays, nor a restart from a checkpoint matters, and no window is moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, TupleBatch
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.join_semantics import mix64


class HotKey(NamedTuple):
    """stage: of the join. key: as it travels. dealt: port whose rows are dealt. groups: partition-groups, the key's own first.
    deal_from_us: rows of the dealt side from this time on are dealt. copy_until_us: rows of the other side up to this time are
    copied."""

    stage: int
    key: int
    dealt: int
    groups: tuple[int, ...]
    deal_from_us: int = END_OF_TIME_US
    copy_until_us: int = END_OF_TIME_US


class SpreadKeys:
    """Hot keys as they concern the rows of one port. At least one."""

    def __init__(self, keys: Sequence[HotKey], port: int) -> None:
        keys = sorted(keys, key=lambda hot: hot.key)
        self._keys = np.array([hot.key for hot in keys], np.int64)
        self._dealt = np.array([hot.dealt == port for hot in keys])
        self._from_us = np.array([hot.deal_from_us for hot in keys], np.int64)
        self._until_us = np.array([hot.copy_until_us for hot in keys], np.int64)
        self._sizes = np.array([len(hot.groups) for hot in keys], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._groups = np.array([group for hot in keys for group in hot.groups], np.int64)

    def copies(self, rows: TupleBatch, groups: I64) -> tuple[I64 | None, I64]:
        """Positions of rows, each as often as it has copies, int64 (copies,), None for one of each; and the partition-groups of
        the copies. groups: of the rows' keys, int64 (n,), which may be changed."""
        place = np.searchsorted(self._keys, rows.key)
        place[place == len(self._keys)] = 0
        hot = np.flatnonzero(self._keys[place] == rows.key)
        if not len(hot):
            return None, groups
        place, times_us = place[hot], rows.ts[hot]
        dealt = self._dealt[place] & (times_us >= self._from_us[place])
        mine, of = hot[dealt], place[dealt]
        turn = (mix64(rows.id[mine]) >> np.uint64(1)).astype(np.int64)
        groups[mine] = self._groups[self._starts[of] + turn % self._sizes[of]]
        copied = ~self._dealt[place] & (times_us <= self._until_us[place])
        if not copied.any():
            return None, groups
        mine, of = hot[copied], place[copied]
        counts = np.ones(len(rows), np.int64)
        counts[mine] = self._sizes[of]
        positions = np.repeat(np.arange(len(rows)), counts)
        groups = groups[positions]
        groups[_runs((np.cumsum(counts) - counts)[mine], counts[mine])] = self._groups[_runs(self._starts[of], counts[mine])]
        return positions, groups


def _runs(starts: I64, lengths: I64) -> I64:
    """The numbers of all runs, one run after the other."""
    return np.repeat(starts - (np.cumsum(lengths) - lengths), lengths) + np.arange(int(lengths.sum()))
