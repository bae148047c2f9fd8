"""What one sender sends over its edges: to which receivers, and from which partition-groups to which.

What: `Traffic`, counted beside the sender's counting sort; `table`, and `fresh`, what is new in it.
Why: a row between machines costs ten to a hundred times one within a machine. Who sends what to whom says which
partition-groups should share a rank (seed 001; `policy.placement`).
Stays out: whether an edge's rows arrive (`cluster.edge_ledger`), ranks and hosts (`runtime.traffic_report`).

Counts have partition-groups as keys, never slaves, so they stay true when partition-groups move.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from swjoin.core.batch import I64
from swjoin.core.data_messages import nothing_sent
from swjoin.core.kernel_cache import kernel

_CLEARLY_MORE = 1.1
MOST_GROUPS = 512  # that are counted one by one: every edge of a sender has a matrix of them, 16 bytes a pair


@dataclass
class _Counts:
    """Of an edge, by partition-group of the sender and of the receiver: tuples (s + 1, r), int64, and bytes, float64. The last
    row has what comes from no partition-group that is known."""

    tuples: I64
    nbytes: NDArray[np.float64]


@kernel
def _count(origins: I64, slot: I64, group_of_slot: I64, width: float, tuples: I64, nbytes: NDArray[np.float64]) -> None:
    for i in range(origins.shape[0]):
        target = group_of_slot[slot[i]]
        tuples[origins[i], target] += 1  # -1: the last row
        nbytes[origins[i], target] += width


class Traffic:
    """to_slaves: by edge and slave, [rows, bytes] that were sent. work_ns, state_bytes: nominal work, and most state so far, of
    each partition-group of the sender, int64 (groups,)."""

    def __init__(self, partition_count: int, *, origins: bool) -> None:
        """origins: whether the sender has partition-groups."""
        self.work_ns, self.state_bytes = np.zeros(partition_count, np.int64), np.zeros(partition_count, np.int64)
        self._most_kept = 0.0  # rows, when the state was last looked at
        self.to_slaves: defaultdict[tuple[int, int], list[int]] = defaultdict(lambda: [0, 0])
        self._groups = partition_count if partition_count <= MOST_GROUPS else 0
        self._rows = 1 + (self._groups if origins else 0)
        self._counts: dict[int, _Counts] = {}
        self._reported = nothing_sent()

    @property
    def counts_groups(self) -> bool:
        """Whether there are few enough of them."""
        return self._groups > 0

    def _of(self, edge: int) -> _Counts:
        found = self._counts.get(edge)
        if found is None:
            shape = (self._rows, self._groups)
            found = self._counts[edge] = _Counts(np.zeros(shape, np.int64), np.zeros(shape))
        return found

    def wants_state(self, kept: int) -> bool:
        """Whether so many rows in windows are clearly more than at any time before: the state of each is not counted for
        nothing."""
        return kept > _CLEARLY_MORE * self._most_kept

    def held(self, kept: int, state_bytes: I64) -> None:
        """state_bytes: of each partition-group now, int64 (groups,)."""
        self._most_kept = kept
        np.maximum(self.state_bytes, state_bytes, out=self.state_bytes)

    def sorted_rows(self, edge: int, row_bytes: float, group_of_slot: I64, counts: I64) -> None:
        """Rows of unknown origin, by their slots. counts, group_of_slot: int64 (slots,). row_bytes: of one, on average."""
        if self.counts_groups:
            mine = self._of(edge)
            mine.tuples[-1, group_of_slot] += counts
            mine.nbytes[-1, group_of_slot] += counts * row_bytes

    def rows_from(self, edge: int, row_bytes: float, origins: I64, group_of_slot: I64, slot: I64) -> None:
        """Rows of which each has an origin, or -1, and a slot: int64 (n,)."""
        if self.counts_groups:
            tuples, nbytes = self._of(edge).tuples, self._of(edge).nbytes
            _count(origins, slot, group_of_slot, row_bytes, tuples, nbytes)

    def table(self) -> I64:
        """All so far: int64 (n, 5), see `core.data_messages.TRAFFIC_COLUMNS`."""
        parts = [nothing_sent()]
        for edge, counts in sorted(self._counts.items()):
            source, target = np.nonzero(counts.tuples)
            tuples, nbytes = counts.tuples[source, target], np.rint(counts.nbytes[source, target]).astype(np.int64)
            origin = np.where(source == self._rows - 1, -1, source)
            parts.append(np.stack([np.full(len(source), edge, np.int64), origin, target, tuples, nbytes], axis=1))
        return np.concatenate(parts)

    def fresh(self) -> I64:
        """What was sent since the last call, as of `table`."""
        before, self._reported = self._reported, self.table()
        if not len(before):
            return self._reported.copy()
        now = self._reported.copy()
        at = np.searchsorted(self._keys(now), self._keys(before))  # nothing that was counted is forgotten
        now[at, 3:] -= before[:, 3:]
        return now[now[:, 3] > 0]

    def _keys(self, table: I64) -> I64:
        """Of the rows of a table, ascending."""
        edge, source, target = table[:, 0], np.where(table[:, 1] < 0, self._groups, table[:, 1]), table[:, 2]
        keys: I64 = (edge * (self._groups + 1) + source) * self._groups + target
        return keys

    def to_plain(self) -> dict[str, Any]:
        """Ready for JSON. to_slaves: edge, slave, rows, bytes. groups: as of `table`."""
        to_slaves = [[edge, slave, *sent] for (edge, slave), sent in sorted(self.to_slaves.items())]
        groups = {"work_ns": self.work_ns.tolist(), "state_bytes": self.state_bytes.tolist()}
        return {"to_slaves": to_slaves, "groups": self.table().tolist(), **groups}
