"""The operator of a stage that gathers rows: they come out as they came, and nothing is kept.

What: `Gathering`, an operator as `JoinOperator` describes it.
Why: a result of sources alone, or of several stages, has no join; its rows still come in epochs from many senders, are counted
by partition-group, and go to sinks in pieces of bounded size.
Stays out: filters and projections, which the senders have done (`cluster.exchange`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import numpy as np

from swjoin.core.batch import I64, U64, ResultRows, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import EpochIndex, GroupId
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import LIGHT_ROWS, Step, WindowMemory, Work, check_columns
from swjoin.state.arrays import STAT_PAIRS
from swjoin.state.delay_histogram import record_delays

if TYPE_CHECKING:
    from swjoin.state.arrays import Inputs

_FIXED_BYTES = 16  # of a row: id and time


class Gathering:
    """result_bytes: most bytes of rows per step, about. name: owner, for messages."""

    def __init__(self, result_bytes: int, name: str) -> None:
        self._result_bytes, self._name = result_bytes, name
        self._open: Work | None = None
        self._at = 0  # rows of the open delivery that are out

    def check_rows(self, delivery: Delivery, where: str) -> None:
        check_columns(delivery, where)

    def open(self, delivery: Delivery) -> Work:
        """Start a delivery: its rows, of the left side, are counted and digested by partition-group."""
        assert self._open is None, "the delivery before is not done"
        digests: U64 = np.zeros(len(delivery.groups), np.uint64)
        if len(delivery.left):
            used = np.flatnonzero(delivery.left_counts)
            starts = np.cumsum(delivery.left_counts)[used] - delivery.left_counts[used]
            digests[used] = np.add.reduceat(delivery.left.id, starts)
        results = GroupResults(delivery.groups, delivery.left_counts, digests)
        self._open, self._at = Work(delivery, cast("Inputs", None), results), 0
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[ResultRows]:
        """The next rows, in pieces of bounded size. now_us: their production time."""
        assert work is self._open, "step on a delivery that is not open"
        rows, start = work.delivery.left, self._at
        self._at = stop = min(len(rows), start + self._most(rows, LIGHT_ROWS * tuple_budget))
        record_delays(now_us, rows.arrival_us[start:stop], work.stats, work.delay_histogram)
        work.stats[STAT_PAIRS] += stop - start
        done = stop == len(rows)
        if done:
            self._open = None
        if stop == start:
            return Step(None, done, stop - start)
        part = rows.slice(start, stop)
        origins = np.repeat(work.delivery.groups, work.delivery.left_counts)[start:stop]
        return Step(ResultRows(part.id, part.ts, part.columns), done, stop - start, origins)

    def _most(self, rows: TupleBatch, tuple_budget: int) -> int:
        if not len(rows):
            return tuple_budget
        row_bytes = _FIXED_BYTES + (0 if rows.columns is None else rows.columns.nbytes // len(rows))
        return max(1, min(tuple_budget, self._result_bytes // row_bytes))

    # ------------------------------------------------------------ without state

    def restore(self, delivery: Delivery) -> None:
        """Nothing: what came before a crash is out."""

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """Nothing."""

    def restored(self, times_us: I64) -> None:
        """Nothing."""

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> EmptyExport:
        """A partition-group leaves without any state. Between two deliveries only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        assert not any(map(len, pending)), "delivered rows of a partition-group that leaves"
        return EmptyExport(move_id)

    def import_group(self, first: StateChunk) -> EmptyImport:
        return EmptyImport()

    @property
    def may_append(self) -> bool:
        return True

    def group_ids(self) -> list[GroupId]:
        return []

    def tuples_by_group(self, partition_count: int) -> I64:
        return np.zeros(partition_count, np.int64)

    def window_tuples(self) -> tuple[int, int]:
        return 0, 0

    def window_bytes(self) -> int:
        return 0

    def window_memory(self) -> WindowMemory:
        return WindowMemory(0, 0, 0, 0, 0)

    def mini_group_count(self) -> int:
        return 0

    def block_count(self) -> int:
        return 0

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant."""
        rows = 0 if self._open is None else len(self._open.delivery.left)
        assert self._open is None or 0 <= self._at <= rows, f"{self._name}: {self._at} of {rows} rows are out"


class EmptyExport:
    """A partition-group without state, as it leaves: one empty chunk."""

    def __init__(self, move_id: MoveId) -> None:
        self._move_id = move_id
        self.tuples = self.nbytes = 0
        self.done = False

    def waiting_tuples(self, stream: int) -> int:
        return 0

    def next_chunk(self) -> StateChunk:
        m, none = self._move_id, np.empty(0, np.int64)
        self.done = True
        head = (m.query, m.move, m.group, m.supplier, m.consumer, 0, True, (0, 0), 0, False)
        return StateChunk(*head, none, none, TupleBatch.empty())


class EmptyImport:
    """The other end of an `EmptyExport`."""

    def __init__(self) -> None:
        self.tuples = self.nbytes = 0
        self.complete = False

    def add(self, chunk: StateChunk) -> None:
        """RunFailed when the chunk has state."""
        if chunk.index or not chunk.last or len(chunk.tuples):
            raise RunFailed(f"partition-group {chunk.group}: state of a stage that keeps none")
        self.complete = True

    def waiting_tuples(self, stream: int) -> int:
        return 0

    def settle(self, epoch: EpochIndex) -> Work | None:
        return None
