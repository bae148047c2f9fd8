"""The operator of top-n: the first rows of each window and group, with their numbers.

What: `Ranking`, an operator as `JoinOperator` describes it.
Why: a row's number is final when its window has ended; until then a pane keeps no more rows of a group than may come out,
times two.
Stays out: order and columns of rows (`core.kept_columns`), edges of windows (`core.time_windows`).
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swjoin.core.aggregate_functions import Accumulation
from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.data_messages import StateChunk
from swjoin.core.group_keys import GroupKeys
from swjoin.core.kept_columns import RankColumns
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.kept_rows import PaneRows, leaving_rows, rows_of_window
from swjoin.operators.keyed_operator import LeavingState, Limits, WindowOperator
from swjoin.state.group_table import GroupTable


class Ranking(WindowOperator[PaneRows]):
    """keys: the encoder of this instance. name: owner, for messages."""

    def __init__(self, windows: TimeWindows, columns: RankColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(windows, limits, name)
        self._columns, self._keys = columns, keys

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        rows, groups, panes = self._in_open_panes(rows, groups, where)
        panes = self._windows.buckets(panes)
        for pane in np.unique(panes).tolist():
            index = np.flatnonzero(panes == pane)
            self._keep(pane, rows if len(index) == len(rows) else rows.take(index), groups[index])
        if len(rows):
            self._check_memory()

    def _keep(self, start_us: int, rows: TupleBatch, groups: I64) -> None:
        pane = self._panes.setdefault(start_us, PaneRows())
        pane.add(rows, groups)
        if len(pane) >= pane.due:
            index, _ = self._columns.first(self._keys, pane.rows, self._starts(pane.rows), leading_rows)
            pane.cut_down(index)

    def _starts(self, rows: TupleBatch) -> I64 | None:
        """The window of each row by its start, where rows of several are together: int64 (n,)."""
        return self._windows.panes(rows.ts) if self._windows.in_buckets else None

    def _open_part(self, start_us: int, pane: PaneRows) -> PaneRows | None:
        is_open = pane.rows.ts >= self._next_us
        if not is_open.all():
            pane.keep(np.flatnonzero(is_open))
        return pane if len(pane) else None

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of the windows that end by this time, oldest first."""
        for start_us, end_us in self._closing(watermark_us):
            yield from self._rows_of(start_us, end_us)

    def _rows_of(self, start_us: int, end_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of a window, or of all windows of buckets between these times."""
        whole = rows_of_window(self._panes, start_us, end_us)
        if self._windows.in_buckets and len(whole) and int(whole.rows.ts.max()) >= end_us:
            whole.keep(np.flatnonzero(whole.rows.ts < end_us))
        if not len(whole):
            return
        rows, groups, starts = whole.rows, whole.groups, self._starts(whole.rows)
        index, ranks = self._columns.first(self._keys, rows, starts, leading_rows)
        most = max(1, self._limits.result_bytes * len(rows) // max(1, rows.nbytes))
        for at in range(0, len(index), most):
            piece = index[at : at + most]
            of_windows = np.full(len(piece), start_us) if starts is None else starts[piece]
            yield self._columns.rows(rows.take(piece), ranks[at : at + most], of_windows), groups[piece]

    # ------------------------------------------------------------ moves

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its rows of every pane. Between two deliveries only."""
        self._leaves(pending)
        gone = [pane.take_out(int(move_id.group)) for pane in self._panes.values()]
        self._panes = {start: pane for start, pane in self._panes.items() if len(pane)}
        return leaving_rows(move_id, gone, self._next_us, chunk_bytes)

    def take_chunk(self, chunk: StateChunk) -> None:
        """Rows of a partition-group that comes. RunFailed if other windows are open here."""
        self._check_open(chunk)
        self._accumulate(chunk.tuples, np.full(len(chunk.tuples), int(chunk.group), np.int64), "a move")

    def window_bytes(self) -> int:
        return sum(pane.nbytes for pane in self._panes.values())

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        for start, pane in self._panes.items():
            assert len(pane), f"{self._name}: an empty pane"
            panes = self._windows.panes(pane.rows.ts)
            assert panes.min() >= self._next_us, f"{self._name}: rows of windows that are closed"
            assert (self._windows.buckets(panes) == start).all(), f"{self._name}: rows in another pane"


def leading_rows(codes: I64, nulls: Bool, starts: I64 | None, order: I64) -> I64:
    """Positions of the rows whose number in the order is the least of their window and group, int64 (m,). codes, nulls: of the
    groups. starts: of the windows; None: of one window."""
    table = GroupTable((Accumulation.LEAST,), in_panes=starts is not None)
    slots = table.slots_of(codes, nulls, np.zeros(len(codes), np.int64), *(() if starts is None else (starts,)))
    table.add(0, slots, None, order)
    return np.flatnonzero(table.words(0, 1, slots) == order)
