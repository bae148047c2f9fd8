"""Rows that an operator keeps, with their partition-groups.

What: `KeptRows`; `PaneRows`, of a pane that is cut down; `rows_of_window`; `leaving_rows`, of a partition-group that leaves;
`RowsOperator`, one that has no panes.
Why: rows come in batches, and are one batch when they are sorted or leave.
Stays out: which rows are kept (`operators.ranking`, `operators.sessions`, `operators.group_windows`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from swjoin.core.batch import I64, LEFT, TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, GroupId
from swjoin.operators.join_operator import MoveId
from swjoin.operators.keyed_operator import KeyedOperator, LeavingState, Limits, StatePart

_LEAST = 4_096  # rows that a pane takes before it is cut down


class KeptRows:
    """Rows in the order in which they came."""

    def __init__(self) -> None:
        self._rows: list[TupleBatch] = []
        self._groups: list[I64] = []
        self._count = self.nbytes = 0

    def __len__(self) -> int:
        return self._count

    def add(self, rows: TupleBatch, groups: I64) -> None:
        """groups: their partition-groups, int64 (n,)."""
        if len(rows):
            self._rows.append(rows)
            self._groups.append(groups)
            self._count += len(rows)
            self.nbytes += rows.nbytes + groups.nbytes

    @property
    def rows(self) -> TupleBatch:
        if len(self._rows) > 1:
            self._rows = [TupleBatch.concat(self._rows)]
        return self._rows[0] if self._rows else TupleBatch.empty()

    @property
    def groups(self) -> I64:
        if len(self._groups) > 1:
            self._groups = [np.concatenate(self._groups)]
        return self._groups[0] if self._groups else np.empty(0, np.int64)

    def keep(self, index: I64) -> None:
        """The rows at these positions alone."""
        rows, groups = self.rows, self.groups
        self._rows, self._groups, self._count, self.nbytes = [], [], 0, 0
        if len(index):
            self.add(rows.take(index), groups[index])

    def take_out(self, group: int) -> TupleBatch:
        """The rows of a partition-group, which are kept no longer."""
        mine = self.groups == group
        gone = self.rows.take(np.flatnonzero(mine))
        if mine.any():
            self.keep(np.flatnonzero(~mine))
        return gone


class PaneRows(KeptRows):
    """due: rows at which it is to be cut down to those that are needed."""

    def __init__(self) -> None:
        super().__init__()
        self.due = _LEAST

    def cut_down(self, index: I64) -> None:
        """Keep the rows at these positions alone, until there are twice as many."""
        self.keep(index)
        self.due = max(_LEAST, 2 * len(self))


def rows_of_window(panes: Mapping[int, PaneRows], start_us: int, end_us: int) -> KeptRows:
    """The rows of all panes, which are by their start (of buckets by theirs), from this time on and before that one."""
    whole = KeptRows()
    few = range(start_us, end_us) if end_us - start_us <= len(panes) else sorted(panes)
    for at in few:
        if start_us <= at < end_us and at in panes:
            whole.add(panes[at].rows, panes[at].groups)
    return whole


def leaving_rows(move_id: MoveId, parts: Sequence[TupleBatch], final_us: int, chunk_bytes: int) -> LeavingState:
    """A partition-group's rows, as they leave. final_us: what was final by this time is out."""
    some = [part for part in parts if len(part)]
    return LeavingState(move_id, [StatePart(TupleBatch.concat(some))] if some else [], (final_us, 0), chunk_bytes)


class RowsOperator(KeyedOperator):
    """An operator that keeps the rows of what has not ended. what: that ends, for messages."""

    what: str

    def __init__(self, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._kept = KeptRows()
        self._least_us = END_OF_TIME_US  # nothing that is kept ends before
        self._final_us = BEGIN_OF_TIME_US  # what had ended by then is out

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        if not len(rows):
            return
        earliest_us = int(rows.ts.min())
        if where and earliest_us < self._final_us:
            raise RunFailed(f"{self._name}, {where}: a row of time {earliest_us} us came after its {self.what} had ended")
        self._keep(rows, groups)
        self._check_memory()

    def _keep(self, rows: TupleBatch, groups: I64) -> None:
        self._kept.add(rows, groups)
        self._least_us = min(self._least_us, int(rows.ts.min()))

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """What had ended by the watermark of a restored epoch is out: memory is what it was. The log is of all rows."""
        if times_us[LEFT] < END_OF_TIME_US:
            self._pass(times_us[LEFT])

    # ------------------------------------------------------------ moves

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its rows. Between two deliveries only."""
        self._leaves(pending)
        return leaving_rows(move_id, [self._kept.take_out(int(move_id.group))], self._final_us, chunk_bytes)

    def take_chunk(self, chunk: StateChunk) -> None:
        """Rows of a partition-group that comes. RunFailed if what ended until another time is out here."""
        if chunk.times_us[0] != self._final_us:
            times = f"{self.what}s until {chunk.times_us[0]} us are out, here until {self._final_us} us"
            raise RunFailed(f"{self._name}: partition-group {chunk.group}: {times}")
        if len(chunk.tuples):
            self._keep(chunk.tuples, np.full(len(chunk.tuples), int(chunk.group), np.int64))
            self._check_memory()

    def group_ids(self) -> list[GroupId]:
        return [GroupId(group) for group in np.unique(self._kept.groups).tolist()]

    def tuples_by_group(self, partition_count: int) -> I64:
        counts: I64 = np.bincount(self._kept.groups, minlength=partition_count)
        return counts

    def window_tuples(self) -> tuple[int, int]:
        return len(self._kept), 0

    def window_bytes(self) -> int:
        return self._kept.nbytes
