"""The operator of a multiway join: rows of several inputs with one key, whose times are within bounds of each other.

What: `MultiwayJoin`, an operator as `JoinOperator` describes it; `search_order`.
Why: joins in a row keep the pairs of each join as the window of the next one; here a row meets those of all other inputs at
once, and nothing is kept but the inputs (CQELS Cloud, section 3).
Stays out: chains and the search (`state.arrangement`), conditions and columns of what is found (`core.multiway_columns`).

A row meets the rows that came before it, of whatever epoch, so every match is found once, without an order of all inputs
(specs/cqels.md, 3.2). The other inputs are searched with the one first that has the fewest partners, as counted so far.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np

from swjoin.core.batch import I64, LEFT, ResultRows, TupleBatch
from swjoin.core.data_messages import Delivery, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, GroupId
from swjoin.core.multiway_bounds import Bounds
from swjoin.core.multiway_columns import MultiwayColumns
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import LIGHT_ROWS, Step, Work
from swjoin.operators.keyed_operator import KeyedOperator, LeavingState, Limits, StatePart
from swjoin.operators.result_buffer import TAIL_BYTES
from swjoin.state.arrangement import I32, Arrangement, Search
from swjoin.state.arrays import STAT_COMPARISONS
from swjoin.state.delay_histogram import record_delays

_ID_BYTES = 24  # of a match, besides its rows' numbers and columns


class _Search(NamedTuple):
    """Matches of some rows that have come. first: the first of these in the windows. state: as of `Arrangement.begin`.
    arrival_us: of these rows. groups: their partition-groups."""

    first: int
    state: Search
    arrival_us: I64
    groups: I64


def search_order(met: I64) -> I64:
    """For each part, the other ones with the one first in whose chains the fewest partners were met: int64 (parts,
    parts - 1). met: (parts, parts, 2), as of `state.arrangement`."""
    looked, partners = met[:, :, 0], met[:, :, 1]
    chance = (partners + 1) / (looked + 2)  # 1/2 of nothing known
    np.fill_diagonal(chance, np.inf)
    return np.argsort(chance, axis=1, kind="stable")[:, :-1].astype(np.int64)


class MultiwayJoin(KeyedOperator):
    """bounds: of the times of each two parts. keys: the encoder of this instance. name: owner, for messages."""

    def __init__(self, bounds: Bounds, columns: MultiwayColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._columns, self._keys = columns, keys
        self._rows = Arrangement(bounds, columns.layout, limits.window_bytes)
        self._order = search_order(self._rows.met)
        self._search: _Search | None = None
        self._final_us = BEGIN_OF_TIME_US

    # ------------------------------------------------------------ rows that come

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[ResultRows]:
        """Take some rows, and find their matches, in pieces of bounded size. now_us: their production time."""
        assert work is self._open, "step on a delivery that is not open"
        delivery, taken = work.delivery, 0
        if self._search is None and self._at < len(delivery.left):
            start = self._at
            self._at = stop = min(len(delivery.left), start + LIGHT_ROWS * tuple_budget)
            taken = stop - start
            rows, groups = delivery.left.slice(start, stop), self._groups[start:stop]
            self._accumulate(rows, groups, f"epoch {delivery.epoch}")
            first = self._rows.end - len(rows)
            self._search = _Search(first, self._rows.begin(), rows.arrival_us, groups)
        if self._search is not None:
            found, origins = self._next_matches(work, now_us, self._search)
            return Step(found if len(found) else None, self._ends_here(delivery), taken, origins if len(found) else None)
        if delivery.final:
            assert not self.arriving, "time advances while a partition-group arrives"
            self._pass(delivery.left_time_us)
            self._order = search_order(self._rows.met)
            self._rows.met //= 2
        self._open = None
        return Step(None, True, 0)

    def _next_matches(self, work: Work, now_us: int, search: _Search) -> tuple[ResultRows, I64]:
        """Some rows that come out, and their partition-groups."""
        most = max(1, self._limits.result_bytes // (_ID_BYTES + self._columns.row_bytes))
        most = max(1, min(most, TAIL_BYTES // max(1, self._rows.longest_tail * self._rows.parts)))
        rows, walked, done = self._rows.matches(search.state, self._order, most)
        work.stats[STAT_COMPARISONS] += walked
        found, at = self._rows_of(rows)
        newest = rows[at].max(axis=1, initial=0) - search.first
        groups = search.groups[newest]
        if len(found):
            self._count(work, found, groups)
            record_delays(now_us, search.arrival_us[newest], work.stats, work.delay_histogram)
        if done:
            self._search = None
        return found, groups

    def _rows_of(self, rows: I32) -> tuple[ResultRows, I64]:
        """What comes out of matches, int32 (m, parts), and of each of it which match it is: those that satisfy all
        conditions."""
        columns = [self._rows.rows(part) for part in rows.T.astype(np.int64)]
        return self._columns.rows(self._keys, columns)

    def _ends_here(self, delivery: Delivery) -> bool:
        return self._search is None and super()._ends_here(delivery)

    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        if not len(rows):
            return
        parts = self._columns.parts_of(rows)
        if where and int(rows.ts.min()) < self._final_us:
            late_us = int(rows.ts.min())
            raise RunFailed(f"{self._name}, {where}: a row of time {late_us} us came after its partners had passed")
        if not where:
            needed = self._rows.needed_until(rows.ts, parts) >= self._final_us
            if not needed.all():
                some = np.flatnonzero(needed)
                rows, parts, groups = rows.take(some), parts[some], groups[some]
        if len(rows):
            self._rows.add(self._columns.stored(self._keys, rows), parts, groups, self._final_us)
        if not where:
            self._rows.link()
        self._check_memory()

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        raise AssertionError("matches come out as soon as they are found")

    # ------------------------------------------------------------ what is kept

    def _pass(self, watermark_us: int) -> None:
        """Rows whose partners have passed by this time are needed no longer."""
        self._final_us = max(self._final_us, watermark_us)
        self._rows.expire(self._final_us)

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """Memory is what it was. The log is of all rows."""
        if times_us[LEFT] < END_OF_TIME_US:
            self._pass(times_us[LEFT])

    # ------------------------------------------------------------ moves

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> LeavingState:
        """A partition-group leaves with its rows. Between two deliveries only."""
        self._leaves(pending)
        state, numbers = self._rows, self._rows.numbers
        rows = state.rows(numbers)
        needed, mine = state.needed(rows, self._final_us), rows.group == int(move_id.group)
        leaving = TupleBatch.empty()
        if mine.any():
            rows = state.rows(numbers[needed & mine])
            columns = self._columns.as_sent(self._keys, rows.part, rows.key, rows.payload)
            leaving = TupleBatch(rows.key, rows.ts, rows.id, np.zeros(len(rows.key), np.int64), None, columns)
            state.keep(numbers[needed & ~mine])
        return LeavingState(move_id, [StatePart(leaving)] if len(leaving) else [], (self._final_us, 0), chunk_bytes)

    def take_chunk(self, chunk: StateChunk) -> None:
        """Rows of a partition-group that comes. RunFailed if time is another one here."""
        if chunk.times_us[0] != self._final_us:
            times = f"rows up to {chunk.times_us[0]} us are final, here up to {self._final_us} us"
            raise RunFailed(f"{self._name}: partition-group {chunk.group}: {times}")
        self._accumulate(chunk.tuples, np.full(len(chunk.tuples), int(chunk.group), np.int64))

    def group_ids(self) -> list[GroupId]:
        return [GroupId(group) for group in np.flatnonzero(self._rows.counts).tolist()]

    def tuples_by_group(self, partition_count: int) -> I64:
        counts = np.zeros(partition_count, np.int64)
        counts[: len(self._rows.counts)] = self._rows.counts
        return counts

    def window_tuples(self) -> tuple[int, int]:
        return len(self._rows), 0

    def window_bytes(self) -> int:
        return self._rows.nbytes

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        if self._search is None:
            self._rows.validate()
