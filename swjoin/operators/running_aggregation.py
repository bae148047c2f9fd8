"""The operator of a running aggregate: totals of groups, which come out whenever they have changed.

What: `RunningAggregation`, an operator as `JoinOperator` describes it.
Why: the views of an online aggregation (BiStream, section 3.3) are of all rows so far; what travels to them is one row for each
group and window of time in which the group has rows.
Stays out: panes and rows (`operators.aggregation`), complete views (`operators.group_windows`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.batch import I64, LEFT, ResultRows, TupleBatch
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, GroupId
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.aggregation import Aggregation, leaving_groups
from swjoin.operators.keyed_operator import Limits
from swjoin.state.group_table import GroupTable


class _OnePane(TimeWindows):
    """Windows whose groups come out one window after the other."""

    @property
    def bucket_us(self) -> int:
        return self.pane_us


class RunningAggregation(Aggregation):
    """windows: which do not overlap. Others as of `Aggregation`; no call is decided by rows."""

    def __init__(self, windows: TimeWindows, columns: AggregateColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(_OnePane(windows.size_us, windows.slide_us, windows.origin_us), columns, keys, limits, name)
        self._totals = GroupTable(self._kinds)  # of the panes before `_next_us`
        self._added: int | None = None  # the pane that is in the totals, and comes out now

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """As of `Aggregation`. There may be many panes of few groups, so the totals of several are taken out together."""
        out = GroupTable(self._kinds, in_panes=True)
        for start, _ in self._closing(watermark_us):
            if len(out) >= self._most_rows:
                yield from self._taken_out(out)
                out = GroupTable(self._kinds, in_panes=True)
            pane = self._panes[start]
            slots = self._totals.combine(pane)
            self._added = start
            out.add_groups(self._totals, slots, np.full(len(slots), start))
        self._pass(watermark_us)
        yield from self._taken_out(out)

    def _taken_out(self, totals: GroupTable) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of totals in panes."""
        if len(totals):
            for piece in self._pieces(int(totals.panes.min()), END_OF_TIME_US, totals):
                yield self._rows_of([piece])

    def _left(self, start_us: int, pane: GroupTable) -> None:
        if self._added != start_us:  # not one that has come out
            self._totals.combine(pane)
        self._added = None
        super()._left(start_us, pane)

    def _pass(self, watermark_us: int) -> None:
        super()._pass(watermark_us)
        if watermark_us == END_OF_TIME_US:
            self._totals = GroupTable(self._kinds)

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """What had ended by the watermark of a restored epoch is out: memory is what it was. The log is of all rows."""
        if times_us[LEFT] < END_OF_TIME_US:
            self._pass(times_us[LEFT])

    # ------------------------------------------------------------ moves

    def _totals_leave(self, group: int) -> list[TupleBatch]:
        if self._next_us == BEGIN_OF_TIME_US:
            return []
        part = leaving_groups(self._totals, group, self._next_us - self._windows.pane_us)
        self._totals = self._totals.without(group)
        return [part] if len(part) else []

    def _table_for(self, bucket: int) -> GroupTable:
        return self._totals if bucket < self._next_us else super()._table_for(bucket)

    def _tables(self) -> Iterator[GroupTable]:
        yield from self._panes.values()
        yield self._totals

    def group_ids(self) -> list[GroupId]:
        return [GroupId(int(group)) for group in np.unique(np.concatenate([table.groups for table in self._tables()]))]

    def tuples_by_group(self, partition_count: int) -> I64:
        return super().tuples_by_group(partition_count) + np.bincount(self._totals.groups, minlength=partition_count)

    def window_tuples(self) -> tuple[int, int]:
        """Groups of the totals and of all panes."""
        return sum(map(len, self._tables())), 0

    def window_bytes(self) -> int:
        return super().window_bytes() + self._totals.nbytes

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        super().validate()
        pairs = zip(self._totals.keys.tolist(), self._totals.nulls.tolist(), strict=True)
        assert len(set(pairs)) == len(self._totals), f"{self._name}: a group has two totals"
