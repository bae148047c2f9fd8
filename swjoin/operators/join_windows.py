"""The windows of one join over time: which stored tuples can still match or be emitted, and which may be dropped.

What: `JoinWindows`: watermarks, expiry, admission with expiry, payload pinned by state movements, restoring after a crash.
Why: tuples are dropped by watermarks alone, and every exception (a partition-group in a move, pending tuples of a supplier,
unmatched rows) is a lower limit in this module.
Stays out: joining (`operators.window_join`), bytes (`operators.window_store`).
"""

from __future__ import annotations

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, STREAM_NAMES, TupleBatch
from swjoin.core.data_messages import Delivery, Route
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, GroupId
from swjoin.core.join_semantics import Bounds, JoinKind
from swjoin.core.record_layout import FLAGS
from swjoin.core.units import UNBOUNDED_US
from swjoin.operators.unmatched_rows import Unmatched
from swjoin.operators.window_store import WindowStore
from swjoin.state.window_state import WindowState

EXPIRY_SHARE = 64  # windows expire once 1/64 of them may be dead
_MERGE_SHARE = 8  # buddies are merged once the windows have moved on by 1/8

_NO_TIMES = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)


def refuse_far(bounds: Bounds, batch: TupleBatch) -> None:
    """RunFailed if windows have no bounds, and a partner of one of these tuples may be further away than UNBOUNDED_US."""
    unbounded, most = bounds.retention_us >= UNBOUNDED_US, UNBOUNDED_US // 2
    if unbounded and len(batch) and max(-int(batch.ts.min()), int(batch.ts.max())) > most:
        raise RunFailed(f"a window without bounds joins times within {most} us of 1970; give bounds of time")


class JoinWindows:
    """Stored tuples of both streams and the times up to which they are needed. Times are pairs: left, right.

    times_us: watermarks up to which the windows have been joined.
    """

    def __init__(self, bounds: Bounds, kind: JoinKind, store: WindowStore) -> None:
        self.bounds = bounds
        self.kind = kind
        self.store = store
        self.unmatched = Unmatched(kind, store.state)
        self.times_us = _NO_TIMES
        self._expired_below = self._merged_below = _NO_TIMES
        self._delivery: Delivery | None = None  # being joined
        self._first_refs: tuple[int, int] | None = None  # of its payload, once it is stored
        self._settles = False
        self._pins: dict[GroupId, tuple[int, int]] = {}  # payload of groups in a move, needed from these times on

    @property
    def state(self) -> WindowState:
        return self.store.state

    # ------------------------------------------------------------ deliveries

    def open(self, delivery: Delivery, *, settles: bool) -> tuple[int, int]:
        """Open a delivery's new partition-groups and store its payload; returns the references of its first rows.

        settles: the tuples are older than the watermarks; nothing expires by its own times until `close`. RunFailed when the
        windows are full.
        """
        self.state.open_groups(delivery.groups)
        self._delivery, self._settles = delivery, settles
        batches = (delivery.left, delivery.right)
        for batch in batches:
            refuse_far(self.bounds, batch)
        if not self.reserve(batches):
            raise self.store.full()
        self._first_refs = (self.store.append_payload(LEFT, delivery.left), self.store.append_payload(RIGHT, delivery.right))
        self.store.limit_blocks()
        for stream, batch in enumerate(batches):
            self.unmatched.stored(stream, batch)
        return self._first_refs

    def close(self) -> None:
        """The open delivery has been joined: expire by its watermarks, then tune."""
        delivery, settles = self._delivery, self._settles
        assert delivery is not None, "no delivery is open"
        self.store.record_peak()
        self._forget_probes(delivery)
        self._forget_delivery()
        if settles:
            for group in delivery.groups.tolist():
                self.unpin_payload(GroupId(group))
        else:
            self.advance((delivery.left_time_us, delivery.right_time_us))
            self.expire(now=False)
        self.state.tune()

    def _forget_probes(self, delivery: Delivery) -> None:
        """Payload of tuples that have only probed: it is in the results that they have brought."""
        assert self._first_refs is not None, "a delivery without references"
        for stream, batch in enumerate((delivery.left, delivery.right)):
            store = self.store.payload[stream]
            if store is not None and batch.rows is not None and not delivery.routes[stream] & Route.STORE:
                store.take_back(self._first_refs[stream], len(batch))

    def _forget_delivery(self) -> None:
        self._delivery, self._first_refs, self._settles = None, None, False

    def advance(self, times_us: tuple[int, int]) -> None:
        """Raise the watermarks. Lower ones than before change nothing: earlier watermarks still hold, and payload of what was
        dead by them has been freed."""
        self.times_us = (max(self.times_us[LEFT], times_us[LEFT]), max(self.times_us[RIGHT], times_us[RIGHT]))

    # ------------------------------------------------------------ admission and expiry

    def reserve(self, batches: tuple[TupleBatch, ...], first_stream: int = LEFT, blocks: int = 0) -> bool:
        """Whether payload of these batches, one per stream, and so many blocks fit; if need be after expiry."""
        store, wanted = self.store, (batches, first_stream, blocks)
        if store.fits(*wanted):
            return True
        self.expire(now=True)
        if store.fits(*wanted):
            return True
        store.trim()
        if store.fits(*wanted):
            return True
        store.append_without_reserve()
        return store.fits(*wanted)

    def expire(self, *, now: bool) -> None:
        """Drop what can match nothing any more, once it may be 1/64 of the windows, or now.

        Every pair is checked by its times, so late expiry costs memory only. Expiry visits all mini-partition-groups: after
        every delivery it would cost time that grows with the windows.
        """
        dead = self.dead_below()
        advance = max(d - b for d, b in zip(dead, self._expired_below, strict=True))
        retention = self.bounds.retention_us
        if not now and (advance <= 0 or EXPIRY_SHARE * advance < retention):
            return
        self._expired_below = dead
        dead = self.unmatched.limits(dead)
        ended = min(self.times_us) >= END_OF_TIME_US  # no later tuple would profit from merging
        moved = max(d - b for d, b in zip(dead, self._merged_below, strict=True))
        if not ended and _MERGE_SHARE * moved >= retention:
            self._merged_below = dead
            self.state.merge()  # by what the last probes saw: a delivery longer than the windows leaves next to nothing
        self.state.expire(*dead)
        for stream, store in enumerate(self.store.payload):
            if store is not None:
                floor = min([dead[stream], *(pin[stream] for pin in self._pins.values())])
                store.expire(floor, self._first_ref_in_use(stream))
        self.store.limit_blocks()

    def _first_ref_in_use(self, stream: int) -> int | None:
        """Payload from this reference on belongs to the open delivery, and stays whatever its times."""
        if self._delivery is None or self._first_refs is None:
            return None
        batch = self._delivery.left if stream == LEFT else self._delivery.right
        return self._first_refs[stream] if len(batch) else None

    def dead_below(self) -> tuple[int, int]:
        """Tuples of either stream below these times match no tuple of the open delivery or of later ones."""
        left_time, right_time = self.times_us
        if self._settles and self._delivery is not None:
            left_time = min(left_time, self._delivery.left_time_us)
            right_time = min(right_time, self._delivery.right_time_us)
        return self.bounds.dead_below((left_time, right_time))

    # ------------------------------------------------------------ after a crash

    def close_restored(self) -> None:
        """The open delivery, which had been joined before a crash, has been stored again."""
        self._forget_delivery()
        self.state.tune()

    def restored_until(self, times_us: tuple[int, int]) -> None:
        """All deliveries of a distribution epoch with these watermarks have been restored.

        Tuples that were dead by then had been emitted before the crash where they were unmatched, and are dropped.
        """
        self.advance(times_us)
        if self.unmatched.wanted:
            groups = max(1, len(self.state.directories.start))
            dead = [np.full(groups, limit, np.int64) for limit in self.dead_below()]
            self.unmatched.mark_settled_before((dead[LEFT], dead[RIGHT]))
        self.expire(now=False)

    def restored(self, times_us: I64) -> None:
        """Everything has been restored. times_us: int64 (groups, 2), watermarks up to which each partition-group had been
        joined."""
        if self.unmatched.wanted and len(times_us):
            dead = [self.bounds.dead_below((int(left), int(right))) for left, right in times_us]
            limits = np.array(dead, np.int64)
            self.unmatched.mark_settled_before((limits[:, LEFT].copy(), limits[:, RIGHT].copy()))
        self._expired_below = self._merged_below = _NO_TIMES

    # ------------------------------------------------------------ state movement

    def pin_payload(self, group: GroupId, times_us: tuple[int, int]) -> None:
        """Keep the payload that a partition-group in a move needs by its own times, until `unpin_payload`."""
        self._pins[group] = _NO_TIMES if self.unmatched.wanted else self.bounds.dead_below(times_us)

    def unpin_payload(self, group: GroupId) -> None:
        self._pins.pop(group, None)

    def rewind_expiry(self, times_us: tuple[int, int]) -> None:
        """A partition-group with older windows has been revealed: what has expired here may have to expire once more."""
        left, right = self.bounds.dead_below(times_us)
        self._expired_below = (min(self._expired_below[LEFT], left), min(self._expired_below[RIGHT], right))
        self.unmatched.mark_unsettled()

    def release_payload_if_empty(self) -> None:
        """Free all payload if the last partition-group has left: the next delivery, which would expire it, may never come."""
        if self._delivery is None and self.state.block_count == 0 and not self.state.hidden:
            for store in self.store.payload:
                if store is not None:
                    store.expire(END_OF_TIME_US + 1)
            self.store.limit_blocks()

    # ------------------------------------------------------------ invariants

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant of the store, or when a tuple has lost its payload too early."""
        self.store.validate()
        assert self._delivery is not None or not self._settles, "settling without an open delivery"
        self._validate_payload()

    def _validate_payload(self) -> None:
        """Tuples that may still be emitted have their payload: those that are alive by the times of their partition-group,
        and those that may still come out unmatched."""
        minis = {group: self.state.minis_of(group) for group in self.state.group_ids()}
        minis |= {group: hidden.minis for group, hidden in self.state.hidden.items()}
        settling = self._delivery.groups.tolist() if self._settles and self._delivery is not None else []
        for stream, store in enumerate(self.store.payload):
            if store is None or store.live_from == 0:
                continue
            settles = self.unmatched.settles(stream)
            for group, members in minis.items():
                alive_us = self.bounds.dead_below(self.times_us)[stream]
                if group in settling:
                    alive_us = min(alive_us, self.dead_below()[stream])
                elif group in self._pins and not self.unmatched.wanted:
                    alive_us = min(alive_us, self._pins[group][stream])
                at = np.concatenate([self.state.positions(mini, stream) for mini in members.tolist()])
                _, ts, _, refs = self.state.columns(at)
                found = refs[(ts >= alive_us) | (settles & (refs & FLAGS == 0))] & ~FLAGS
                assert len(found) == 0 or found.min() >= store.live_from, (
                    f"partition-group {group}, {STREAM_NAMES[stream]}: a tuple that may come out refers to payload row "
                    f"{found.min()}, and all below {store.live_from} have been freed"
                )
