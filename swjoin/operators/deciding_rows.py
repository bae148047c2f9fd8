"""The rows that decide calls of an aggregate for which no few numbers do: first, last, extremes of text, different values.

What: `DecidingRows`, of the panes of an `Aggregation`; `Words`, of a call of a group table.
Why: such a call needs a row, or one of each value; until its windows have closed, a pane keeps no more rows than decide, times
two.
Stays out: which rows decide (`core.aggregate_columns`), the other calls (`operators.aggregation`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, cast

import numpy as np

from swjoin.core.aggregate_columns import F64, AggregateColumns, Call, Totals, taken, together
from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, TupleBatch
from swjoin.core.group_keys import GroupKeys
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.kept_rows import KeptRows, PaneRows, rows_of_window
from swjoin.state.group_table import GroupTable

Result = Any  # of some groups: `Words`, or an Arrow array of their values


class Words(NamedTuple):
    """What is accumulated of a call. words: as of `GroupTable.words`, each (n,). sums: of doubles."""

    words: list[I64]
    sums: F64 | None

    @staticmethod
    def of(table: GroupTable, call: int, slots: I64) -> Words:
        kind = table.kinds[call]
        sums = table.sums(call, slots) if kind == Accumulation.DOUBLES else None
        return Words([table.words(call, word, slots) for word in range(kind.words)], sums)

    @property
    def totals(self) -> Totals:
        return Totals(self.words[0], self.words.__getitem__, lambda: cast("F64", self.sums))


def joined(parts: Sequence[Result]) -> Result:
    """Results of one call of groups of several windows."""
    if len(parts) == 1:
        return parts[0]
    if not isinstance(parts[0], Words):
        return together(parts)
    sums = None if parts[0].sums is None else np.concatenate([part.sums for part in parts])
    return Words([np.concatenate(words) for words in zip(*(part.words for part in parts), strict=True)], sums)


class DecidingRows:
    """keys: the encoder of this instance. panes are named by the start of their bucket."""

    def __init__(self, windows: TimeWindows, columns: AggregateColumns, keys: GroupKeys) -> None:
        self._windows, self._columns, self._keys = windows, columns, keys
        self._calls = {i: call for i, call in enumerate(columns.calls) if call.accumulation == Accumulation.ROWS}
        self._panes: dict[int, PaneRows] = {}
        self._different: dict[str, int] = {}  # values that a call had when they were told apart last

    def __bool__(self) -> bool:
        """Whether there are such calls."""
        return bool(self._calls)

    def add(self, pane_us: int, rows: TupleBatch, groups: I64, table: GroupTable) -> None:
        """Rows of a pane, with their partition-groups. table: which has their groups."""
        pane = self._panes.setdefault(pane_us, PaneRows())
        pane.add(rows, groups)
        if len(pane) >= pane.due:
            slots = self._slots(pane, table)
            needed = np.zeros(len(pane), np.bool_)
            for call in self._calls.values():
                needed[self._deciding(call, slots, pane.rows)] = True
            pane.cut_down(np.flatnonzero(needed))

    def _slots(self, rows: KeptRows, table: GroupTable) -> I64:
        codes, nulls = self._columns.encoded(self._keys, rows.rows)
        panes = (self._windows.panes(rows.rows.ts),) if table.in_panes else ()
        return table.slots_of(codes, nulls, rows.groups, *panes)

    def _deciding(self, call: Call, slots: I64, rows: TupleBatch) -> I64:
        """Positions of the rows that decide a call; of different values the first row of each group and value."""
        if call.of_distinct is None:
            return self._columns.deciding(call, slots, rows)
        values, valid = self._columns.values_of(call, rows)
        at = np.arange(len(rows)) if valid is None else np.flatnonzero(valid)
        none, of_value = np.zeros(len(at), np.int64), GroupTable((), self._different.get(call.name, 0), in_panes=True)
        numbers = of_value.slots_of(values[at], none.astype(np.bool_), none, slots[at])
        self._different[call.name] = len(of_value)
        return at[np.diff(np.maximum.accumulate(numbers), prepend=-1) > 0]

    def results(self, start_us: int, end_us: int, table: GroupTable) -> dict[int, Callable[[I64], Result]]:
        """The results of each such call, by its place, for slots of the table, which has the groups of a window."""
        whole = rows_of_window(self._panes, start_us, end_us)
        if not len(whole):
            return {}
        slots, found = self._slots(whole, table), {}
        for i, call in self._calls.items():
            found[i] = self._result(call, slots, whole.rows, len(table))
        return found

    def _result(self, call: Call, slots: I64, rows: TupleBatch, count: int) -> Callable[[I64], Result]:
        if call.of_distinct is None:
            values = self._columns.picked(call, slots, rows, count)
            return partial(taken, values)
        at, sums = self._deciding(call, slots, rows), GroupTable([call.of_distinct])
        sums.slots_of(np.arange(count), np.zeros(count, np.bool_), np.zeros(count, np.int64))
        values, _, unsigned = self._columns.argument(call, rows)
        sums.add(0, slots[at], None, None if values is None else values[at], unsigned=unsigned)
        return partial(Words.of, sums, 0)

    def drop_before(self, pane_us: int, before_us: int) -> None:
        """Windows of a bucket before this time are closed."""
        pane = self._panes.get(pane_us)
        if pane is not None and not (is_open := pane.rows.ts >= before_us).all():
            pane.keep(np.flatnonzero(is_open))

    def drop(self, pane_us: int) -> None:
        """No window has this pane any more."""
        self._panes.pop(pane_us, None)

    def take_out(self, group: int) -> list[TupleBatch]:
        """The rows of a partition-group, which are kept no longer."""
        gone = [pane.take_out(group) for pane in self._panes.values()]
        self._panes = {start: pane for start, pane in self._panes.items() if len(pane)}
        return gone

    @property
    def nbytes(self) -> int:
        return sum(pane.nbytes for pane in self._panes.values())

    def validate(self, panes: Iterable[int]) -> None:
        """Raise AssertionError on a broken invariant. panes: that are open."""
        assert set(self._panes) <= set(panes), f"{self._columns.name}: rows of a pane that is closed"
