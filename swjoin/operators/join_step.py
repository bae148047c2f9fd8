"""One delivery while it is joined, and what its steps yield.

What: `Work`, the cursor over a delivery and its counts; `Step`, the outcome of one bounded piece; `WindowMemory`; `offsets`.
Why: the slave, the join module and the planner's join module speak of the same things.
Stays out: joining (`operators.window_join`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from swjoin.core.batch import I64, LEFT, Pairs
from swjoin.core.data_messages import Delivery, GroupResults
from swjoin.core.join_semantics import JoinKind
from swjoin.state.arrays import STAT_COMPARISONS, STAT_DELAY_MAX, STAT_DELAY_SUM, STAT_PAIRS, STAT_SIZE, Inputs
from swjoin.state.delay_histogram import HISTOGRAM_SIZE
from swjoin.state.join_kernel import CURSOR_SIZE


@dataclass(frozen=True)
class Step:
    """What one step did. pairs: matches that left the result buffer, or None. done: the delivery is completely joined."""

    pairs: Pairs | None
    done: bool
    tuples: int


@dataclass
class Work:
    """The cursor over one delivery, and what it has yielded so far. Delays in microseconds.

    comparisons_by_group: int64 (groups,). settles: the delivery is what a partition-group's supplier had not joined yet.
    unmatched: rows of one stream alone that came out with it.
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
        """Rows that have come out."""
        return int(self.stats[STAT_PAIRS]) + self._alone_count

    @property
    def _alone_count(self) -> int:
        return 0 if self.unmatched is None else int(self.unmatched.counts.sum())

    def match_count(self, kind: JoinKind) -> int:
        """Pairs; left tuples that have matched in a semi join; in an anti join, too, but in the sum over all deliveries."""
        if kind.pairs or kind.first:
            return int(self.stats[STAT_PAIRS])
        return len(self.delivery.left) + len(self.delivery.null_keys[LEFT]) - self._alone_count

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


@dataclass(frozen=True)
class WindowMemory:
    """What the windows of one slave took and take. peak_bytes: of all together, and of each part at its own moment."""

    peak_bytes: int
    peak_block_bytes: int
    peak_payload_bytes: int
    left_bytes: int
    left_tuples: int


def offsets(counts: I64) -> I64:
    """Where each partition-group's tuples start, and the last one's end: int64 (groups + 1,)."""
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out
