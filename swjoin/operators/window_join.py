"""The windowed equi-join of one query on one slave: the fresh-tuple driver over window state (SPEC section 4).

What: `WindowJoin.open(delivery) -> Work`, then `step(work, now_us, budget) -> Step` until done; `extract` and `install` for
state movement.
Why: one bounded step at a time keeps the slave on time and results bounded, even when one tuple has a million matches.
Stays out: kernels and tuning (`state`), messages to anyone (`cluster.slave`).

A delivery's tuples are fresh until they have been joined. Per mini-partition-group, fresh left tuples meet the stored right
ones, fresh right tuples the stored left ones, fresh left the fresh right; then they are stored. So every pair is found once,
and each is checked by its times. After a delivery the windows expire by its punctuations and the mini-partition-groups are
tuned.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from swjoin.batch import I64, LEFT, RIGHT, Pairs, PayloadRows, RowLayout
from swjoin.errors import RunFailed
from swjoin.messages import BEGIN_OF_TIME_US, END_OF_TIME_US, Delivery, GroupId, GroupResults, Route
from swjoin.oracle import Bounds
from swjoin.state.arrays import (
    COUNTERS,
    FRESH,
    NEVER_USED,
    STAT_COMPARISONS,
    STAT_DELAY_MAX,
    STAT_DELAY_SUM,
    STAT_PAIRS,
    STAT_SIZE,
    Inputs,
    new_candidates,
    new_fresh,
    new_hits,
    new_output,
)
from swjoin.state.histogram import HISTOGRAM_SIZE
from swjoin.state.kernels import CUR_GROUP, CURSOR_SIZE, DONE, FULL, NEED_BLOCKS, join_groups
from swjoin.state.partition_group import GroupState, WindowState, WindowTuples
from swjoin.state.payload import PayloadStore


@dataclass(frozen=True)
class Step:
    """What one step did. pairs: matches that left the result buffer, or None. done: the delivery is completely joined."""

    pairs: Pairs | None
    done: bool
    tuples: int


@dataclass
class Work:
    """The cursor over one delivery, and what it has yielded so far. Delays in microseconds."""

    delivery: Delivery
    inputs: Inputs
    results: GroupResults
    delay_histogram: I64 = field(default_factory=lambda: np.zeros(HISTOGRAM_SIZE, np.int64))
    stats: I64 = field(default_factory=lambda: np.zeros(STAT_SIZE, np.int64))
    cursor: I64 = field(default_factory=lambda: np.zeros(CURSOR_SIZE, np.int64))

    @property
    def pair_count(self) -> int:
        return int(self.stats[STAT_PAIRS])

    @property
    def comparisons(self) -> int:
        return int(self.stats[STAT_COMPARISONS])

    @property
    def delay_sum_us(self) -> int:
        return int(self.stats[STAT_DELAY_SUM])

    @property
    def delay_max_us(self) -> int:
        return int(self.stats[STAT_DELAY_MAX])


class WindowJoin:
    """Joins the deliveries of one query; owns the window state of one slave's partition-groups.

    block_tuples: tuples per block. theta_tuples: fine tuning parameter in tuples of both streams, 0 turns it off.
    window_bytes: limit of the window state. layouts: payload carried by each stream, or None. materialise: emit pairs;
    otherwise only count and digest.
    result_tuples: most pairs per step.
    """

    def __init__(
        self,
        bounds: Bounds,
        *,
        block_tuples: int,
        theta_tuples: int,
        window_bytes: int,
        left_layout: RowLayout | None,
        right_layout: RowLayout | None,
        materialise: bool,
        result_tuples: int,
    ) -> None:
        self.bounds = bounds
        self.window_limit_bytes = window_bytes
        self.state = WindowState(block_tuples, theta_tuples, window_bytes)
        layouts = (left_layout, right_layout)
        self.payload = tuple(
            PayloadStore(layout, window_bytes) if materialise and layout is not None else None for layout in layouts
        )
        self._output = new_output(max(1, result_tuples) if materialise else 0)
        self._fresh = new_fresh(1024, 256)
        self._hits = new_hits()
        self._candidates = new_candidates()
        self._expired_below = self._merged_below = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._times_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._open: Work | None = None

    # ------------------------------------------------------------ joining

    def open(self, delivery: Delivery) -> Work:
        """Take a delivery: open its new partition-groups, store its payload. RunFailed when the windows are full."""
        assert self._open is None, "the delivery before is not done"
        self.state.open_groups(delivery.groups)
        refs = [0, 0]
        for stream, batch in ((LEFT, delivery.left), (RIGHT, delivery.right)):
            store = self.payload[stream]
            if store is not None and batch.rows is not None and len(batch):
                refs[stream] = store.append(batch.rows, int(batch.ts.max()))
        if self.window_bytes() > self.window_limit_bytes:
            self._expire(now=True)
        if self.window_bytes() > self.window_limit_bytes:
            raise self._windows_full()
        routes = (delivery.left_route, delivery.right_route)
        left, right = delivery.left, delivery.right
        inputs = Inputs(
            (left.key, right.key),
            (left.ts, right.ts),
            (left.id, right.id),
            (left.arrival_us, right.arrival_us),
            (refs[LEFT], refs[RIGHT]),
            delivery.groups,
            (_offsets(delivery.left_counts), _offsets(delivery.right_counts)),
            (bool(routes[LEFT] & Route.STORE), bool(routes[RIGHT] & Route.STORE)),
            (bool(routes[LEFT] & Route.PROBE), bool(routes[RIGHT] & Route.PROBE)),
        )
        largest = int(max(delivery.left_counts.max(initial=0), delivery.right_counts.max(initial=0)))
        minis, room = len(self.state.minis.group), int(self._fresh.base[0])
        if largest > room or minis > len(self._fresh.touched):
            self._fresh = new_fresh(2 * largest if largest > room else room, minis)
        count = len(delivery.groups)
        results = GroupResults(delivery.groups, np.zeros(count, np.int64), np.zeros(count, np.uint64))
        self._open = Work(delivery, inputs, results)
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step:
        """Join partition-groups until `tuple_budget` tuples are done, the result buffer is full, or the delivery is done.

        now_us: production time of this step's pairs. When the delivery is done, windows have expired and are tuned.
        """
        assert work is self._open, "step on a delivery that is not open"
        self._output.used[0] = 0
        status, tuples = self._join_groups(work, now_us, tuple_budget)
        if status == NEED_BLOCKS and self._expire(now=True):
            status, more = self._join_groups(work, now_us, tuple_budget - tuples)
            tuples += more
        if status == NEED_BLOCKS:
            raise self._windows_full()
        pairs = self._take_pairs()
        if status == FULL:
            return Step(pairs, False, tuples)
        done = status == DONE and int(work.cursor[CUR_GROUP]) == len(work.delivery.groups)
        if done:
            self._close(work.delivery)
        return Step(pairs, done, tuples)

    def _join_groups(self, work: Work, now_us: int, tuple_budget: int) -> tuple[int, int]:
        state = self.state
        status, tuples = join_groups(
            work.inputs,
            state.pool,
            state.minis,
            state.directories,
            self._fresh,
            self._hits,
            self._candidates,
            work.cursor,
            self.bounds.lower_us,
            self.bounds.upper_us,
            now_us,
            state.theta_tuples,
            tuple_budget,
            self._output,
            work.results.counts,
            work.results.digests,
            work.stats,
            work.delay_histogram,
        )
        return int(status), int(tuples)

    def _windows_full(self) -> RunFailed:
        return RunFailed(
            f"window state of {self.window_bytes()} bytes is full; raise module.window "
            f"({self.window_limit_bytes} bytes), use more slaves, or a shorter window"
        )

    def _take_pairs(self) -> Pairs | None:
        n = int(self._output.used[0])
        if n == 0:
            return None
        out = self._output
        rows: list[PayloadRows | None] = [
            None if store is None else store.gather(out.ref[stream, :n]) for stream, store in enumerate(self.payload)
        ]
        return Pairs(
            out.key[:n].copy(),
            out.ts[LEFT, :n].copy(),
            out.ts[RIGHT, :n].copy(),
            out.id[LEFT, :n].copy(),
            out.id[RIGHT, :n].copy(),
            rows[LEFT],
            rows[RIGHT],
        )

    def _close(self, delivery: Delivery) -> None:
        """The delivery's punctuations: expire what can match nothing any more, then tune."""
        self._open = None
        self._times_us = (delivery.left_time_us, delivery.right_time_us)
        self._expire(now=False)
        self.state.tune()

    def _expire(self, *, now: bool) -> bool:
        """Drop what can match nothing any more, once it may be 1/64 of the windows (or now). True when anything was dropped.

        Every pair is checked by its times, so what stays a little longer costs memory only, while looking at all
        mini-partition-groups after every delivery would cost time that grows with the windows.
        """
        dead = self._dead_below()
        advance = max(d - b for d, b in zip(dead, self._expired_below, strict=True))
        retention = self.bounds.retention_us
        if not now and (advance <= 0 or 64 * advance < retention):
            return False
        self._expired_below = dead
        dropped = self.state.expire(*dead)
        ended = min(self._times_us) >= END_OF_TIME_US  # nothing comes that merging could serve
        moved = max(d - b for d, b in zip(dead, self._merged_below, strict=True))
        if not ended and 8 * moved >= retention:
            self._merged_below = dead
            self.state.merge()
        for store, limit in zip(self.payload, dead, strict=True):
            if store is not None:
                store.expire(limit)
        return dropped > 0

    def _dead_below(self) -> tuple[int, int]:
        """Left tuples below right time - upper, right tuples below left time + lower match no tuple to come."""
        left_time, right_time = self._times_us
        return right_time - self.bounds.upper_us, left_time + self.bounds.lower_us

    # ------------------------------------------------------------ state movement

    def group_ids(self) -> list[GroupId]:
        return self.state.group_ids()

    def extract(self, group: GroupId) -> GroupState:
        """Take a partition-group out: window tuples that can still match, payload, splitting information."""
        assert self._open is None, "a partition-group moves between deliveries"
        state = self.state
        minis = state.minis_of(group)
        counts = np.zeros((2, len(minis)), np.int64)
        tuples = []
        for stream, limit in enumerate(self._dead_below()):
            parts = []
            for i, mini in enumerate(minis.tolist()):
                at = state.positions(mini, stream)
                at = at[state.columns(at)[1] >= limit]
                counts[stream, i] = len(at)
                parts.append(at)
            index = np.concatenate(parts)
            store = self.payload[stream]
            key, ts, ids, refs = state.columns(index)
            tuples.append(WindowTuples(key, ts, ids, None if store is None else store.gather(refs)))
        patterns = state.minis.pattern[minis].astype(np.int64)
        depths = state.minis.depth[minis].astype(np.int64)
        out = GroupState(group, int(state.directories.depth[group]), patterns, depths, counts, tuples[LEFT], tuples[RIGHT])
        state.remove_group(group)
        return out

    def install(self, group: GroupState) -> None:
        """Rebuild a partition-group with the same mini-partition-groups. RunFailed when it is here already or does not fit."""
        assert self._open is None, "a partition-group moves between deliveries"
        refs = [0, 0]
        for stream, source in ((LEFT, group.left), (RIGHT, group.right)):
            store = self.payload[stream]
            if store is not None and source.rows is not None and len(source.key):
                refs[stream] = store.append(source.rows, int(source.ts.max()))
        self.state.install_group(group, (refs[LEFT], refs[RIGHT]))

    # ------------------------------------------------------------ measures and invariants

    def window_tuples(self) -> tuple[int, int]:
        return self.state.tuples()

    def window_bytes(self) -> int:
        """Bytes of blocks in use and of live payload."""
        return self.state.nbytes + sum(store.nbytes for store in self.payload if store is not None)

    def mini_group_count(self) -> int:
        return self.state.mini_group_count

    def block_count(self) -> int:
        return self.state.block_count

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant of the window state (between deliveries and between steps)."""
        self.state.validate()
        for store in self.payload:
            if store is not None:
                store.validate()
        counters = self.state.minis.counters.reshape(-1, COUNTERS)[: int(self.state.minis.control[NEVER_USED])]
        assert not counters[:, FRESH : FRESH + 2].any(), "fresh tuples left uncounted"


def _offsets(counts: I64) -> I64:
    out = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=out[1:])
    return out
