"""The windowed equi-join of one query on one slave: the fresh-tuple driver over window state (SPEC section 4).

What: `WindowJoin.open(delivery) -> Work`, then `step(work, now_us, budget) -> Step` until done.
Why: one bounded step at a time keeps the slave on time and results bounded, even when one tuple has a million matches.
Stays out: kernels and tuning (`state`), state movement (`operators.state_movement`), messages to anyone
(`cluster.slave.slave`).

A delivery's tuples are fresh until they have been joined. Per mini-partition-group, fresh left tuples meet the stored right
ones, fresh right tuples the stored left ones, fresh left the fresh right; then they are stored. So every pair is found once,
and each is checked by its times. After a delivery the windows expire by its punctuations and the mini-partition-groups are
tuned.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from swjoin.core.batch import BOTH, I64, LEFT, RIGHT, STREAM_NAMES, Pairs, PayloadRows, RowLayout, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, Route, StateChunk
from swjoin.core.errors import MORE_SLAVES, WINDOW_MEMORY, RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, GroupId
from swjoin.core.join_semantics import JOIN_KINDS, Bounds, JoinKind
from swjoin.core.record_layout import (
    FLAGS,
)
from swjoin.core.sequence_numbers import preceding_counts, with_times
from swjoin.expressions.vm import Program, Residual, no_program, no_rows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import Step, WindowMemory, Work, offsets
from swjoin.operators.state_movement import GroupExport, GroupImport
from swjoin.operators.unmatched_rows import Unmatched
from swjoin.state.arrays import (
    COUNTED,
    COUNTERS,
    FIRST_MATCHES,
    FRESH,
    IDS_ALONE,
    MARK_LEFT,
    MARK_RIGHT,
    NEVER_USED,
    PAIRS,
    Inputs,
    new_candidates,
    new_fresh,
    new_hits,
    new_output,
)
from swjoin.state.join_kernel import CUR_GROUP, CUR_SORTED, DONE, NEED_BLOCKS, join_groups
from swjoin.state.payload_store import PayloadStore
from swjoin.state.window_state import WindowState

_NO_PLACES = np.empty(0, np.int64)
TAIL_BYTES = 64 << 20  # of payload of variable length in one piece of a result


class WindowJoin:
    """Joins the deliveries of one query; owns the window state of one slave's partition-groups.

    bounds: with count windows, layouts include places (`places`), and punctuations are places. kind: which rows come out.
    where: what must hold of a pair besides.
    block_tuples: tuples per block. theta_tuples: fine tuning parameter in tuples of both streams, 0 turns it off.
    window_bytes: limit of the window state: blocks, payload and directories together. layouts: payload carried by each stream,
    or None. materialise: emit pairs; otherwise only count and digest. ids_alone: of pairs, only their ids. result_tuples: most
    pairs per step. name: of the slave, for error lines.
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
        ids_alone: bool = False,
        result_tuples: int,
        kind: JoinKind = JOIN_KINDS["inner"],
        where: Program | None = None,
        name: str = "slave",
    ) -> None:
        self.bounds = bounds
        self.kind = kind
        self.window_limit_bytes = window_bytes
        self.state = WindowState(block_tuples, theta_tuples, window_bytes, name)
        layouts = (left_layout, right_layout)
        self.payload = tuple(
            PayloadStore(layout, window_bytes) if layout is not None and (materialise or where is not None) else None
            for layout in layouts
        )
        self._where = where
        self._residual = Residual(no_program(), no_rows(), no_rows())
        self._room = max(1, result_tuples) if materialise else 0
        self._output = new_output(self._room)
        self._fresh = new_fresh(1024, 256)
        self._hits = new_hits()
        marks = (MARK_LEFT if kind.marks[LEFT] else 0) | (MARK_RIGHT if kind.marks[RIGHT] else 0)
        marks |= (COUNTED if bounds.counted else 0) | (IDS_ALONE if ids_alone else 0)
        self._mode = marks | (PAIRS if kind.pairs else 0) | (FIRST_MATCHES if kind.first else 0)
        self._candidates = new_candidates(self._mode)
        self.unmatched = Unmatched(kind, self.state)
        self._sweeping = False
        self._given, self._given_side = 0, BOTH  # rows of the output that have been taken
        self._expired_below = self._merged_below = self._times_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._open: Work | None = None
        self._settling: tuple[int, int] | None = None  # times of a supplier's tuples that are being joined here
        self._floors: dict[GroupId, tuple[int, int]] = {}
        self._peak_bytes = 0
        self.limit_blocks()

    # ------------------------------------------------------------ joining

    def open(self, delivery: Delivery, *, settles: bool = False) -> Work:
        """Take a delivery: open its new partition-groups, store its payload. RunFailed when the windows are full.

        settles: the tuples of one partition-group that its supplier had not joined yet; they are older than what was promised
        to this slave, so nothing expires by its own times until they are joined.
        """
        assert self._open is None, "the delivery before is not done"
        self._output.used[0] = self._given = 0
        self.state.open_groups(delivery.groups)
        self._settling = (delivery.left_time_us, delivery.right_time_us) if settles else None
        if not self.reserve_window_memory((delivery.left, delivery.right)):
            raise self._windows_full()
        refs = [self.store_payload(stream, batch) for stream, batch in enumerate((delivery.left, delivery.right))]
        self.limit_blocks()
        self.unmatched.stored(LEFT, delivery.left)
        self.unmatched.stored(RIGHT, delivery.right)
        routes = (delivery.left_route, delivery.right_route)
        left, right = delivery.left, delivery.right
        inputs = Inputs(
            (left.key, right.key),
            (preceding_counts(left), preceding_counts(right)) if self.bounds.counted else (left.ts, right.ts),
            (left.id, right.id),
            (left.arrival_us, right.arrival_us),
            (refs[LEFT], refs[RIGHT]),
            delivery.groups,
            (offsets(delivery.left_counts), offsets(delivery.right_counts)),
            (bool(routes[LEFT] & Route.STORE), bool(routes[RIGHT] & Route.STORE)),
            (bool(routes[LEFT] & Route.PROBE), bool(routes[RIGHT] & Route.PROBE)),
            (left.ts, right.ts) if self.bounds.counted else (_NO_PLACES, _NO_PLACES),
        )
        largest = int(max(delivery.left_counts.max(initial=0), delivery.right_counts.max(initial=0)))
        minis, room = len(self.state.minis.group), int(self._fresh.base[0])
        if largest > room or minis > len(self._fresh.touched):
            self._fresh = new_fresh(2 * largest if largest > room else room, minis)
        count = len(delivery.groups)
        results = GroupResults(delivery.groups, np.zeros(count, np.int64), np.zeros(count, np.uint64))
        self._open = Work(delivery, inputs, results, settles=settles)
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step:
        """Join partition-groups until `tuple_budget` tuples are done, the result buffer is full, or the delivery is done.

        now_us: production time of this step's pairs. When the delivery is done, windows have expired and are tuned.
        """
        assert work is self._open, "step on a delivery that is not open"
        if self._given < self._output.used[0]:
            return Step(self._take_pairs(self._given_side), False, 0)
        self._output.used[0] = self._given = 0
        if self._sweeping:
            return self._sweep(work, 0)
        status, tuples = self._join(work, now_us, tuple_budget)
        pairs = self._take_pairs(LEFT if self.kind.one_sided else BOTH)
        if self._given < self._output.used[0] or status != DONE or int(work.cursor[CUR_GROUP]) < len(work.delivery.groups):
            return Step(pairs, False, tuples)
        if self.unmatched.wanted and not work.settles:
            self._sweeping = True
            self._reach((work.delivery.left_time_us, work.delivery.right_time_us))
            self.unmatched.begin(self._dead_below(), work.delivery)
            return self._sweep(work, tuples) if pairs is None else Step(pairs, False, tuples)
        self._close(work.delivery)
        return Step(pairs, True, tuples)

    def _sweep(self, work: Work, tuples: int) -> Step:
        """What follows joining, all of it or as much as the output holds: tuples whose window has passed come out if they have
        no match. tuples: joined in this step."""
        rows = None
        while rows is None and not self.unmatched.done:
            stream, nulls = self.unmatched.step(self._output, self._room, TAIL_BYTES)
            if nulls is None:
                rows = self._take_pairs(stream)
            elif self._room:
                rows = Pairs.alone(stream, nulls, null_keys=True)
                rows = with_times(rows) if self.bounds.counted else rows
        if not self.unmatched.done or self._given < self._output.used[0]:
            return Step(rows, False, tuples)
        self._sweeping = False
        work.unmatched = self.unmatched.results()
        self._close(work.delivery)
        return Step(rows, True, tuples)

    def _join(self, work: Work, now_us: int, tuple_budget: int) -> tuple[int, int]:
        """Status and tuples joined; if need be after expiry. RunFailed when the windows are full."""
        status, tuples = self._join_groups(work, now_us, tuple_budget)
        if status == NEED_BLOCKS:
            self._expire(now=True)
            self._trim()
            status, more = self._join_groups(work, now_us, tuple_budget - tuples)
            tuples += more
        if status == NEED_BLOCKS:
            raise self._windows_full()
        return status, tuples

    def _join_groups(self, work: Work, now_us: int, tuple_budget: int) -> tuple[int, int]:
        state = self.state
        if self._where is not None:
            self._residual = Residual(self._where, *(no_rows() if store is None else store.rows() for store in self.payload))
        status, tuples = join_groups(
            work.inputs,
            state.pool,
            state.minis,
            state.directories,
            self._fresh,
            self._hits,
            self._candidates,
            self._residual,
            work.cursor,
            self.bounds.reaches,
            now_us,
            state.theta_tuples,
            tuple_budget,
            self._output,
            work.results.counts,
            work.results.digests,
            work.stats,
            work.delay_histogram,
            work.comparisons_by_group,
        )
        return int(status), int(tuples)

    def _windows_full(self) -> RunFailed:
        payload = sum(store.nbytes for store in self.payload if store is not None)
        held = f"{sum(self.window_tuples())} tuples, {self.window_bytes()} bytes, of these {payload} payload"
        return RunFailed(
            (f"its windows ({held}) would exceed ", WINDOW_MEMORY, f" ({self.window_limit_bytes} bytes) by what has come"),
            subject=self.state.owner,
            remedy=(MORE_SLAVES, "raise ", WINDOW_MEMORY, ", or use a shorter window"),
        )

    # ------------------------------------------------------------ memory

    def reserve_window_memory(self, batches: tuple[TupleBatch, ...], first_stream: int = LEFT, blocks: int = 0) -> bool:
        """Whether payload of these tuples, one batch per stream, and so many blocks fit; if need be after expiry."""

        def wanted() -> int:
            rows = [(self.payload[s], b.rows) for s, b in enumerate(batches, first_stream)]
            return blocks * self.state.block_bytes + sum(s.more_for(r) for s, r in rows if s is not None and r is not None)

        def fits() -> bool:
            return self.window_bytes() + wanted() <= self.window_limit_bytes

        if fits():
            return True
        self._expire(now=True)
        if fits():
            return True
        self._trim()
        if fits():
            return True
        for store in self.payload:
            if store is not None:
                store.tight = True  # until this has been stored: no reserve for what may come
        return fits()

    def _trim(self) -> None:
        """Give up what payload holds in reserve, for blocks or other payload."""
        for store in self.payload:
            if store is not None:
                store.trim()
        self.limit_blocks()

    def store_payload(self, stream: int, batch: TupleBatch) -> int:
        """Keep a batch's payload; returns the reference of its first row. There must be room; `limit_blocks` follows."""
        store = self.payload[stream]
        if store is None or batch.rows is None or len(batch) == 0:
            return 0
        return store.append(batch.rows, int(batch.ts.max()))

    def limit_blocks(self) -> None:
        """Blocks may take what payload has left of the limit."""
        self.state.limit_blocks(sum(store.nbytes for store in self.payload if store is not None))

    def _take_pairs(self, side: int) -> Pairs | None:
        """What lies in the output; of long payload, a part, and the rest in the next steps. side: LEFT or RIGHT when these are
        tuples of that stream alone."""
        start, self._given_side = self._given, side
        self._given = n = self._fitting(start, side)
        if n == start:
            return None
        out = self._output
        ids = out.id[LEFT, start:n].copy(), out.id[RIGHT, start:n].copy()
        if self._mode & IDS_ALONE:
            return Pairs(out.key[:0], out.key[:0], out.key[:0], *ids, side=side)
        rows: list[PayloadRows | None] = [
            None if store is None or not self._room or side == 1 - stream else store.gather(out.ref[stream, start:n])
            for stream, store in enumerate(self.payload)
        ]
        pairs = Pairs(
            out.key[start:n].copy(),
            out.ts[LEFT, start:n].copy(),
            out.ts[RIGHT, start:n].copy(),
            *ids,
            rows[LEFT],
            rows[RIGHT],
            side,
        )
        return with_times(pairs) if self.bounds.counted else pairs

    def _fitting(self, start: int, side: int) -> int:
        """Where a piece of the output ends whose tails are no more than `TAIL_BYTES`, one row at least."""
        end = int(self._output.used[0])
        stores = [s for s in enumerate(self.payload) if s[1] is not None and self._room and side != 1 - s[0]]
        if self._mode & IDS_ALONE or sum(s.longest_tail for _, s in stores if s is not None) * (end - start) <= TAIL_BYTES:
            return end
        sizes = sum((s.tail_sizes(self._output.ref[stream, start:end]) for stream, s in stores if s is not None), np.int64(0))
        return min(end, start + max(1, int(np.searchsorted(np.cumsum(sizes), TAIL_BYTES, side="right"))))

    def _close(self, delivery: Delivery) -> None:
        """The delivery's punctuations: expire what can match nothing any more, then tune."""
        work, self._open = self._open, None
        self._peak_bytes = max(self._peak_bytes, self.window_bytes())
        self._settling = None
        if work is not None and work.settles:
            for group in delivery.groups.tolist():
                self.unpin_payload(GroupId(group))
            self.state.tune()
            return
        self._reach((delivery.left_time_us, delivery.right_time_us))
        self._expire(now=False)
        self.state.tune()

    def _reach(self, times_us: tuple[int, int]) -> None:
        """The windows have been joined up to these punctuations. They may be lower than the ones before: what was promised once
        still holds, and what was dead then has lost its payload."""
        self._times_us = (max(self._times_us[LEFT], times_us[LEFT]), max(self._times_us[RIGHT], times_us[RIGHT]))

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
        dead = self.unmatched.limits(dead)
        dropped = self.state.expire(*dead)
        ended = min(self._times_us) >= END_OF_TIME_US  # nothing comes that merging could serve
        moved = max(d - b for d, b in zip(dead, self._merged_below, strict=True))
        if not ended and 8 * moved >= retention:
            self._merged_below = dead
            self.state.merge()
        for stream, store in enumerate(self.payload):
            if store is not None:
                inputs = None if self._open is None else self._open.inputs
                keep = inputs.ref[stream] if inputs is not None and len(inputs.key[stream]) else None
                store.expire(min([dead[stream], *(floor[stream] for floor in self._floors.values())]), keep)
        self.limit_blocks()
        return dropped > 0

    def forget_payload(self) -> None:
        """A partition-group has left. Payload of the last one would stay until the next delivery, which may never come."""
        if self._open is None and self.block_count() == 0 and not self.state.hidden:
            for store in self.payload:
                if store is not None:
                    store.expire(END_OF_TIME_US + 1)
            self.limit_blocks()

    def _dead_below(self) -> tuple[int, int]:
        left_time, right_time = self._times_us
        if self._settling is not None:  # from before room is made for their payload
            left_time, right_time = min(left_time, self._settling[LEFT]), min(right_time, self._settling[RIGHT])
        return self.bounds.dead_below((left_time, right_time))

    def restore(self, delivery: Delivery) -> None:
        """Store tuples that had been joined before a crash. Nothing comes out; if it matters who has matched, they are joined
        once more. RunFailed when the windows are full."""
        marks = self._mode & (MARK_LEFT | MARK_RIGHT)
        nothing = TupleBatch.empty()
        route = Route.BOTH if marks else Route.STORE
        again = replace(delivery, left_time_us=BEGIN_OF_TIME_US, right_time_us=BEGIN_OF_TIME_US)
        work = self.open(replace(again, left_route=route, right_route=route, null_keys=(nothing, nothing)))
        self._candidates.mode[0] = self._mode & (MARK_LEFT | MARK_RIGHT | COUNTED)
        while self._join(work, 0, max(1, len(delivery.left) + len(delivery.right)))[0] != DONE:
            pass
        self._candidates.mode[0] = self._mode
        self._open = None
        self.state.tune()

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """All deliveries of a distribution epoch have been restored that promised these times; what was dead then had been
        settled before the crash, and is dropped."""
        self._reach(times_us)
        if self.unmatched.wanted:
            groups = max(1, len(self.state.directories.start))
            dead = [np.full(groups, limit, np.int64) for limit in self._dead_below()]
            self.unmatched.mark_settled_before((dead[LEFT], dead[RIGHT]), self._output)
        self._expire(now=False)

    def restored(self, times_us: I64) -> None:
        """All has been restored. times_us: int64 (groups, 2), until when each partition-group had been joined."""
        if self.unmatched.wanted and len(times_us):
            dead = [self.bounds.dead_below((int(left), int(right))) for left, right in times_us]
            limits = np.array(dead, np.int64)
            self.unmatched.mark_settled_before((limits[:, LEFT].copy(), limits[:, RIGHT].copy()), self._output)
        self._expired_below = self._merged_below = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)

    # ------------------------------------------------------------ state movement

    def group_ids(self) -> list[GroupId]:
        return self.state.group_ids()

    def export_group(self, move_id: MoveId, pending: tuple[TupleBatch, TupleBatch], chunk_bytes: int) -> GroupExport:
        """Hide a partition-group, to be yielded in chunks. Between two deliveries only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        return GroupExport(self, move_id, pending, chunk_bytes)

    def import_group(self, first: StateChunk) -> GroupImport:
        """Begin to rebuild a partition-group from its first chunk. RunFailed when it is here already."""
        return GroupImport(self, first)

    @property
    def times_us(self) -> tuple[int, int]:
        """Punctuations, left and right, up to which the windows have been joined."""
        return self._times_us

    @property
    def may_append(self) -> bool:
        """Whether blocks may be taken now: a partition-group that is being joined has been promised its own."""
        return self._open is None or int(self._open.cursor[CUR_SORTED]) == 0

    def pin_payload(self, group: GroupId, times_us: tuple[int, int]) -> None:
        """Payload that a partition-group on its way may need, by its own times, stays until the floor is lifted."""
        never = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)  # there may be older tuples that have not come out yet
        self._floors[group] = never if self.unmatched.wanted else self.bounds.dead_below(times_us)

    def unpin_payload(self, group: GroupId) -> None:
        self._floors.pop(group, None)

    def rewind_expiry(self, times_us: tuple[int, int]) -> None:
        """Windows of these, older times have come: what has expired here already may have to expire once more."""
        left, right = self.bounds.dead_below(times_us)
        self._expired_below = (min(self._expired_below[0], left), min(self._expired_below[1], right))
        self.unmatched.mark_unsettled()

    # ------------------------------------------------------------ measures and invariants

    def window_tuples(self) -> tuple[int, int]:
        return self.state.tuples()

    def tuples_by_group(self, partition_count: int) -> I64:
        """Window tuples of every partition-group, both streams: int64 (partition_count,)."""
        return self.state.tuples_by_group(partition_count)

    def window_bytes(self) -> int:
        """Bytes in use: blocks, pages of payload, mini-partition-groups, directories."""
        return self.state.nbytes + sum(store.nbytes for store in self.payload if store is not None)

    def window_memory(self) -> WindowMemory:
        return WindowMemory(
            max(self._peak_bytes, self.window_bytes()),
            self.state.peak_block_count * self.state.block_bytes,
            sum(store.peak_bytes for store in self.payload if store is not None),
            self.window_bytes(),
            sum(self.window_tuples()),
        )

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
        self._validate_payload()
        counters = self.state.minis.counters.reshape(-1, COUNTERS)[: int(self.state.minis.control[NEVER_USED])]
        assert not counters[:, FRESH : FRESH + 2].any(), "fresh tuples left uncounted"

    def _validate_payload(self) -> None:
        """What may still come out has its payload: tuples that are not dead, by the times of their partition-group, and those
        that have not been settled."""
        minis = {group: self.state.minis_of(group) for group in self.state.group_ids()}
        minis |= {group: hidden.minis for group, hidden in self.state.hidden.items()}
        settling = [] if self._settling is None or self._open is None else self._open.delivery.groups.tolist()
        for stream, store in enumerate(self.payload):
            if store is None or store.live_from == 0:
                continue
            settles = self.unmatched.settles(stream)
            for group, members in minis.items():
                alive_us = self.bounds.dead_below(self._times_us)[stream]
                if group in settling:
                    alive_us = min(alive_us, self._dead_below()[stream])
                elif group in self._floors and not self.unmatched.wanted:
                    alive_us = min(alive_us, self._floors[group][stream])
                at = np.concatenate([self.state.positions(mini, stream) for mini in members.tolist()])
                _, ts, _, refs = self.state.columns(at)
                found = refs[(ts >= alive_us) | (settles & (refs & FLAGS == 0))] & ~FLAGS
                assert len(found) == 0 or found.min() >= store.live_from, (
                    f"partition-group {group}, {STREAM_NAMES[stream]}: a tuple that may come out refers to payload row "
                    f"{found.min()}, and all below {store.live_from} have been freed"
                )
