"""The state of a delivery while it is joined, and the outcome of its steps.

What: `Work`, the cursor over a delivery and its counts; `Step`, the outcome of one bounded piece; `WindowMemory`; `offsets`;
`check_columns`.
Why: slaves and every join behind `JoinOperator` exchange these values.
Stays out: joining (`operators.window_join`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeAlias, TypeVar

import numpy as np

from swjoin.core.batch import I64, LEFT, Pairs, ResultRows
from swjoin.core.data_messages import Delivery, GroupResults
from swjoin.core.errors import RunFailed
from swjoin.core.join_semantics import JoinKind
from swjoin.state.arrays import STAT_COMPARISONS, STAT_DELAY_MAX, STAT_DELAY_SUM, STAT_PAIRS, STAT_SIZE, Inputs
from swjoin.state.delay_histogram import HISTOGRAM_SIZE
from swjoin.state.join_kernel import CURSOR_SIZE

Rows = TypeVar("Rows", Pairs, ResultRows)
PAIR_BYTES = 40  # of a result row without payload: key, two times, two ids


@dataclass(frozen=True)
class Step(Generic[Rows]):
    """The outcome of one step. pairs: rows that came out, or None; of a gathering stage rows that are no pairs. done: the
    delivery is completely joined. origins: partition-groups of the rows, int64 (n,), -1 for rows with null keys; None where
    they are not known."""

    pairs: Rows | None
    done: bool
    tuples: int
    origins: I64 | None = None


AnyStep: TypeAlias = Step[Pairs] | Step[ResultRows]


@dataclass
class Work:
    """The cursor over one delivery, and its results so far. Delays in microseconds.

    comparisons_by_group: int64 (groups,). settles: the delivery consists of tuples that a partition-group's supplier had not
    joined. unmatched: results of the rows that were emitted with it, of any partition-groups: unmatched rows of a window join,
    all rows of other operators.
    """

    delivery: Delivery
    inputs: Inputs
    results: GroupResults
    delay_histogram: I64 = field(default_factory=lambda: np.zeros(HISTOGRAM_SIZE, np.int64))
    stats: I64 = field(default_factory=lambda: np.zeros(STAT_SIZE, np.int64))
    cursor: I64 = field(default_factory=lambda: np.zeros(CURSOR_SIZE, np.int64))

    comparisons_by_group: I64 = field(init=False)
    settles: bool = False
    unmatched: GroupResults | None = None

    def __post_init__(self) -> None:
        self.comparisons_by_group = np.zeros(len(self.delivery.groups), np.int64)

    @property
    def pair_count(self) -> int:
        """Rows emitted."""
        return sum(int(part.counts.sum()) for part in self.all_results)

    @property
    def _unmatched_count(self) -> int:
        return 0 if self.unmatched is None else int(self.unmatched.counts.sum())

    def match_count(self, kind: JoinKind) -> int:
        """Pairs; in a semi join, matched left tuples; in an anti join these, too, but only in the sum over all deliveries."""
        if kind.pairs or kind.first:
            return int(self.stats[STAT_PAIRS])
        return len(self.delivery.left) + len(self.delivery.null_keys[LEFT]) - self._unmatched_count

    @property
    def all_results(self) -> list[GroupResults]:
        return [self.results, *([] if self.unmatched is None else [self.unmatched])]

    @property
    def comparisons(self) -> int:
        return int(self.stats[STAT_COMPARISONS])

    @property
    def delay_sum_us(self) -> int:
        return int(self.stats[STAT_DELAY_SUM])

    @property
    def delay_max_us(self) -> int:
        return int(self.stats[STAT_DELAY_MAX])


LIGHT_ROWS = 4  # that are aggregated or gathered: about as much work as one tuple of a join


@dataclass(frozen=True)
class WindowMemory:
    """Memory of one slave's windows. peak_bytes: of all parts together; the peaks of single parts may have been at other times.

    left_bytes, left_tuples: at the end of the run.
    """

    peak_bytes: int
    peak_block_bytes: int
    peak_payload_bytes: int
    left_bytes: int
    left_tuples: int


def check_columns(delivery: Delivery, where: str) -> None:
    """RunFailed, which names `where`, for rows of another layout than of columns, or of a right side."""
    if delivery.left.rows is not None or len(delivery.right):
        raise RunFailed(f"{where}: rows of another layout, or of a right side")


def offsets(counts: I64) -> I64:
    """Start of each partition-group's tuples, and the end of the last one's: int64 (groups + 1,)."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out
