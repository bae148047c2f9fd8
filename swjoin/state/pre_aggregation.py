"""Groups of rows before they travel: what the sender of rows to an aggregate may send in their place.

What: `PreAggregation`, a step of an edge, as those of `expressions.chain` are: of a batch of rows it makes one row for every
group and pane, with the accumulators of all of them.
Why: views of a join's rows change in few groups a second, however many rows there are (BiStream, section 3.3: each unit
aggregates what it has joined); and rows of an aggregate without groups all go to one instance.
Stays out: windows and their results (`operators.aggregation`), which edges have the step (`plan.stages`).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.core.aggregate_columns import AggregateColumns
from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, TupleBatch
from swjoin.core.time_windows import TimeWindows
from swjoin.state.group_table import GroupTable


def add_rows(table: GroupTable, columns: AggregateColumns, rows: TupleBatch, slots: I64) -> None:
    """Add the rows to their slots, of a table of `kinds_of(columns)`."""
    for place, call in enumerate(columns.accumulating):
        values, valid, unsigned = columns.argument(call, rows)
        table.add(place, slots, valid, values, unsigned=unsigned)
    table.add(-1, slots, None, None)


def kinds_of(columns: AggregateColumns) -> list[Accumulation]:
    """What is accumulated: of the calls that need it, and last the number of rows."""
    return [*(call.accumulation for call in columns.accumulating), Accumulation.COUNT]


@dataclass(frozen=True)
class PreAggregation:
    """columns: of the aggregate."""

    columns: AggregateColumns
    windows: TimeWindows

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """A row for every group and pane, with time, id and key of its first row. RunFailed where a value is too large to be
        accumulated."""
        if (inside := self.windows.inside(rows.ts)) is not None and not inside.all():
            rows = rows.take(np.flatnonzero(inside))
        table = GroupTable(kinds_of(self.columns), in_panes=True)
        codes, nulls = self.columns.encoded(self.columns.new_keys(), rows)
        slots = table.slots_of(codes, nulls, np.zeros(len(rows), np.int64), self.windows.panes(rows.ts))
        add_rows(table, self.columns, rows, slots)
        first = np.flatnonzero(np.diff(np.maximum.accumulate(slots), prepend=-1))  # slots are numbered as groups come
        return self.columns.grouped(rows.take(first), table.taken(np.arange(len(table))))
