"""The rows of both streams of an as-of join on one slave: those that wait for their time, and those that may still be a match.

What: `RowsByTime`: `add`, `look`, `take`, dropping what is gone, partition-groups that leave and come.
Why: rows come in any order and are looked at in the order of time; what nothing needs any more is dropped in one pass once it
is as much as the rest, so that a row costs no more for it than being copied twice.
Stays out: looking at rows (`state.as_of_kernel`), messages and counts (`operators.as_of_join`).
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np

from swjoin.core.batch import I64, LEFT, RIGHT, U8, RowLayout, TupleBatch
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.record_layout import ID, KEY, REF, ROW, TS
from swjoin.expressions.vm import Residual
from swjoin.state.as_of_kernel import CHOSEN as COMES_OUT
from swjoin.state.as_of_kernel import (
    GONE,
    HELD,
    LEFT_LATER,
    RIGHT_LATER,
    WAITS,
    Chosen,
    Rows,
    Rule,
    in_order,
    match_due,
    merge_orders,
    new_scratch,
    relink_held,
    settle_passed,
    survivors,
    write_records,
)
from swjoin.state.latest_rows import I32, NO_ROW, NONE, ROWS, LatestRows
from swjoin.state.payload_store import PayloadStore

Layouts: TypeAlias = tuple[RowLayout | None, RowLayout | None]
_LEAST = 4_096  # rows of a stream that are kept before it is looked for what is gone
_ROOM = 1 << 16  # rows for which there may be room though there are few
_NO_POSITIONS: I64 = np.empty(0, np.int64)


class _Side:
    """The rows of one stream. order: positions of rows that wait, in order; loose: those that have come since."""

    def __init__(self, stream: int, layout: RowLayout | None, limit_bytes: int) -> None:
        self.stream = stream
        self.payload = None if layout is None else PayloadStore(layout, limit_bytes)
        self.rows, self.count, self.due = _new_rows(stream, 64), 0, _LEAST
        self.stored, self.stored_due = 0, _LEAST  # rows whose payload is stored, and how many of them may be
        self.order: I64 = _NO_POSITIONS
        self.loose: list[I64] = []

    @property
    def capacity(self) -> int:
        return len(self.rows.group)

    @property
    def array_bytes(self) -> int:
        return sum(part.nbytes for part in self.rows)

    @property
    def nbytes(self) -> int:
        return self.array_bytes + (0 if self.payload is None else self.payload.nbytes)

    def more_for(self, batch: TupleBatch) -> int:
        """By how many bytes storing these rows makes it grow."""
        payload = 0 if self.payload is None or batch.rows is None else self.payload.more_for(batch.rows)
        wanted = self.count + len(batch)
        return payload + (self.array_bytes if wanted > self.capacity else 0) * -(-wanted // max(1, self.capacity))

    def reserve(self, count: int) -> None:
        if self.count + count > self.capacity:
            self.resize(max(2 * self.capacity, self.count + count))

    def resize(self, capacity: int) -> None:
        old, self.rows = self.rows, _new_rows(self.stream, capacity)
        for name in Rows._fields:
            before = getattr(old, name)
            getattr(self.rows, name)[: len(before)] = before

    @property
    def states(self) -> U8:
        return self.rows.state[: self.count]

    @property
    def records(self) -> I64:
        """int64 (count, ROW)."""
        return self.rows.rows[: self.count * ROW].reshape(-1, ROW)

    def take(self, found: I64) -> TupleBatch:
        """found: records, int64 (n, ROW)."""
        payload = None if self.payload is None else self.payload.gather(found[:, REF])
        arrival = np.zeros(len(found), np.int64)
        return TupleBatch(found[:, KEY].copy(), found[:, TS].copy(), found[:, ID].astype(np.uint64), arrival, payload)

    def waiting(self) -> I64:
        """The positions of all rows that wait, in order."""
        if self.loose:
            fresh = self.loose[0] if len(self.loose) == 1 else np.concatenate(self.loose)
            if not in_order(self.rows, fresh):
                found = self.records[fresh]
                fresh = fresh[np.lexsort((found[:, ID].view(np.uint64), found[:, TS], self.rows.group[fresh]))]
            merged = np.empty(len(self.order) + len(fresh), np.int64)
            merge_orders(self.rows, self.order, fresh, merged)
            self.order, self.loose = merged, []
        return self.order

    def drop(self, place: I64, kept: int) -> None:
        """Keep the rows with a place alone."""
        keep = np.flatnonzero(place != NONE)
        old, before = self.rows, self.records
        if self.capacity > max(4 * kept, _ROOM):
            self.rows = _new_rows(self.stream, max(64, kept + kept // 2))
        self.rows.rows[: kept * ROW] = before[keep].reshape(-1)
        for name in Rows._fields[1:]:
            column = getattr(old, name)
            if len(column):
                getattr(self.rows, name)[:kept] = column[keep]
        self.count, self.due = kept, max(_LEAST, 2 * kept)
        self.order = place[self.order]
        self.loose = [place[part] for part in self.loose]

    def keep_payload(self, records: tuple[I64, I64]) -> None:
        """Of the payload, that of these records alone, each int64 (n, ROW), which get new references."""
        assert self.payload is not None
        refs = np.concatenate([part[:, REF] for part in records])
        payload, n = self.payload.gather(refs), len(refs)
        self.payload.expire(END_OF_TIME_US + 1)
        self.stored, self.stored_due = n, max(_LEAST, 2 * n)
        if n:
            first, apart = self.payload.append(payload, END_OF_TIME_US), len(records[0])
            records[0][:, REF] = np.arange(first, first + apart)
            records[1][:, REF] = np.arange(first + apart, first + n)


def _new_rows(stream: int, capacity: int) -> Rows:
    of_left = capacity if stream == LEFT else 0
    group, following = np.empty(capacity, np.int32), np.empty(capacity, np.int32)
    records, hashed, states = np.empty(capacity * ROW, np.int64), np.empty(capacity, np.uint64), np.empty(capacity, np.uint8)
    return Rows(records, hashed, group, following, states, np.empty(of_left, np.int32), np.empty(of_left, np.int64))


class RowsByTime:
    """rule: which right row a left one joins. layouts: stored payload of either stream, or None. chained: all right rows within
    the bounds are kept, for a residual predicate. groups: partition-groups that have been seen are below it."""

    def __init__(self, rule: Rule, layouts: Layouts, limit_bytes: int, *, chained: bool) -> None:
        self.layouts, self.groups = layouts, 0
        self._rule, self._limit_bytes = rule, limit_bytes
        self._left, self._right = _Side(LEFT, layouts[LEFT], limit_bytes), _Side(RIGHT, layouts[RIGHT], limit_bytes)
        self._chained = chained and rule.back
        self._latest = LatestRows(chained=self._chained, holds=rule.ahead)
        self._front: I64 = np.empty(0, np.int64)  # of each partition-group, up to which its rows have been looked at
        self._arriving: set[int] = set()  # partition-groups that have come in part
        self._scratch = new_scratch()
        self.payload_peak_bytes = 0

    @property
    def sides(self) -> tuple[Rows, Rows]:
        return self._left.rows, self._right.rows

    @property
    def payload(self) -> tuple[PayloadStore | None, PayloadStore | None]:
        return self._left.payload, self._right.payload

    @property
    def nbytes(self) -> int:
        return self._left.nbytes + self._right.nbytes + self._latest.nbytes

    @property
    def arriving(self) -> bool:
        """Whether a partition-group has come in part."""
        return bool(self._arriving)

    def _side(self, stream: int) -> _Side:
        return self._left if stream == LEFT else self._right

    def kept(self, stream: int) -> int:
        """Rows of a stream that are not gone."""
        in_table = self._latest.row_count if stream == RIGHT and not self._chained else 0
        return in_table + int(np.count_nonzero(self._side(stream).states != GONE))

    def by_group(self) -> I64:
        """Rows that are not gone, of both streams: int64 (groups,)."""
        counts = np.zeros(self.groups, np.int64)
        for side in (self._left, self._right):
            counts += np.bincount(side.rows.group[: side.count][side.states != GONE], minlength=self.groups)
        if not self._chained:
            counts += np.bincount(self._latest.table.group[self._latest.entries()], minlength=self.groups)
        return counts

    # ------------------------------------------------------------ rows that come

    def fits(self, stream: int, batch: TupleBatch) -> bool:
        return self.nbytes + self._side(stream).more_for(batch) <= self._limit_bytes

    def add(self, stream: int, batch: TupleBatch, groups: I64) -> None:
        """Store rows, which must fit. groups: their partition-groups, int64 (n,)."""
        side = self._side(stream)
        first, n = side.count, len(batch)
        if n == 0:
            return
        self._know(int(groups.max()) + 1)
        side.reserve(n)
        ref = 0
        if side.payload is not None and batch.rows is not None:
            ref = side.payload.append(batch.rows, END_OF_TIME_US)
            side.stored += n
            payload_bytes = sum(0 if store is None else store.nbytes for store in self.payload)
            self.payload_peak_bytes = max(self.payload_peak_bytes, payload_bytes)
        write_records(batch.key, batch.ts, batch.id, groups, ref, first, side.rows)
        side.count += n
        side.loose.append(np.arange(first, first + n))

    def _know(self, groups: int) -> None:
        if groups > self.groups:
            self._front = np.concatenate([self._front, np.full(groups - self.groups, BEGIN_OF_TIME_US, np.int64)])
            self.groups = groups

    # ------------------------------------------------------------ looking at rows

    def look(self, front_us: int | I64, residual: Residual | None) -> Chosen:
        """Look at the rows below the front, of all partition-groups or int64 (groups,) of each; not at those that have not come
        whole. `left` and `right` of the answer are the positions of the left rows that come out, and their matches."""
        front = np.full(self.groups, front_us, np.int64) if isinstance(front_us, int) else self._of_groups(front_us)
        for group in self._arriving:
            front[group] = BEGIN_OF_TIME_US
        left, right, latest = self._left, self._right, self._latest
        lefts, rights = left.waiting(), right.waiting()
        most = len(lefts) + (int(np.count_nonzero(left.states == HELD)) if self._rule.ahead else 0)
        chosen = Chosen(
            np.empty(most, np.int64),
            np.empty(most * ROW, np.int64),
            np.empty(len(lefts), np.int64),
            np.empty(len(rights), np.int64),
            np.zeros(5, np.int64),
        )
        rule, sides = self._rule, (left.rows, right.rows)
        least = self._needed_us()  # by the front before, as there are left rows to be looked at above it
        while not match_due(lefts, rights, *sides, latest.table, front, least, rule, residual, self._scratch, chosen):
            latest.rebuild(least)
        self._front = np.maximum(self._front, front)
        if rule.ahead:
            settle_passed(left.count, *sides, latest.table, front, rule, chosen)
        left.order = chosen.left_later[: chosen.counts[LEFT_LATER]]
        right.order = chosen.right_later[: chosen.counts[RIGHT_LATER]]
        n = int(chosen.counts[COMES_OUT])
        return chosen._replace(left=chosen.left[:n], right=chosen.right[: n * ROW])

    def _needed_us(self) -> I64:
        """Times below which right rows that have been looked at are no matches any more: int64 (groups,)."""
        return self._front - self._rule.upper + self._rule.lower

    def _of_groups(self, front_us: I64) -> I64:
        self._know(len(front_us))
        front = self._front.copy()
        front[: len(front_us)] = front_us
        return front

    def left_records(self, positions: I64) -> I64:
        """Left rows at these positions, until rows are dropped: int64 (n, ROW)."""
        return self._left.records[positions]

    def take(self, stream: int, records: I64) -> TupleBatch:
        """Rows of these records, int64 (n, ROW), until rows are dropped."""
        return self._side(stream).take(records)

    def tail_sizes(self, stream: int, records: I64) -> I64:
        """Bytes of variable length of these rows: int64 (n,)."""
        payload = self._side(stream).payload
        return np.zeros(len(records), np.int64) if payload is None else payload.tail_sizes(records[:, REF])

    # ------------------------------------------------------------ rows that are gone

    def drop_if_due(self) -> None:
        """What is gone, of either stream, once it may be as much as what is kept."""
        if self._left.count >= self._left.due:
            self._drop_left()
        if self._right.count >= self._right.due:
            self._drop_right()
        for side in (self._left, self._right):
            if side.stored >= side.stored_due:
                self._drop_payload(side)

    def drop_what_is_gone(self) -> None:
        """Keep the rows alone that wait, or may still be a match or get one."""
        self._drop_left()
        self._drop_right()
        self._latest.rebuild(self._needed_us())
        for side in (self._left, self._right):
            self._drop_payload(side)

    def _drop_left(self) -> None:
        left = self._left
        place, least = np.empty(left.count, np.int64), np.full(self.groups, np.iinfo(np.int64).min)
        left.drop(place, survivors(left.count, left.rows, least, place))
        if self._rule.ahead:
            relink_held(left.count, left.rows, self._latest.table)

    def _drop_right(self) -> None:
        left, right = self._left, self._right
        place = np.empty(right.count, np.int64)
        right.drop(place, survivors(right.count, right.rows, self._needed_us(), place))
        if not self._chained:
            return
        table = self._latest.table
        table.last[:] = self._moved(table.last, place)
        entries = self._latest.entries()
        gone = entries[table.last[entries] == NONE]
        self._latest.records[gone, TS] = NO_ROW
        table.counts[ROWS] -= len(gone)
        following, held = right.rows.next[: right.count], right.states == HELD
        following[held] = self._moved(following[held], place)
        if self._rule.ahead:
            best, holds = left.rows.best[: left.count], left.states == HELD
            best[holds] = self._moved(best[holds], place)

    def _drop_payload(self, side: _Side) -> None:
        if side.payload is None:
            return
        kept = np.flatnonzero(side.states != GONE)
        latest = self._latest.entries() if side.stream == RIGHT and not self._chained else _NO_POSITIONS
        records = side.records[kept], self._latest.records[latest]
        side.keep_payload(records)
        side.records[kept, REF], self._latest.records[latest, REF] = records[0][:, REF], records[1][:, REF]

    @staticmethod
    def _moved(positions: I32, place: I64) -> I64:
        """New positions; NONE stays, and what is dropped becomes it."""
        if not len(place):
            return np.full(len(positions), NONE, np.int64)
        found: I64 = np.where(positions == NONE, NONE, place[positions])
        return found

    def clear(self) -> None:
        """Nothing is needed any more."""
        assert not self._arriving, "rows are dropped while a partition-group arrives"
        for side in (self._left, self._right):
            side.drop(np.full(side.count, NONE, np.int64), 0)
            side.order, side.loose = _NO_POSITIONS, []
        self._latest.clear()
        for side in (self._left, self._right):
            self._drop_payload(side)

    # ------------------------------------------------------------ moves

    def take_group(self, stream: int, group: int) -> TupleBatch:
        """The rows of a partition-group that are not gone, which are kept no longer."""
        side = self._side(stream)
        mine = np.flatnonzero((side.rows.group[: side.count] == group) & (side.states != GONE))
        found = side.records[mine]
        if stream == RIGHT:
            if not self._chained:
                entries = self._latest.entries()
                found = np.concatenate([found, self._latest.records[entries[self._latest.table.group[entries] == group]]])
            self._latest.rebuild(self._needed_us(), without=group)
        tuples = side.take(found)
        waiting = side.waiting()
        side.order = waiting[side.rows.group[waiting] != group]
        side.rows.state[mine] = GONE
        return tuples

    def expect(self, group: int) -> None:
        """A partition-group comes, in parts."""
        self._know(group + 1)
        self._front[group] = BEGIN_OF_TIME_US
        self._arriving.add(group)

    def has_come(self, group: int) -> None:
        """All of its rows are here. They wait: those that had been held are looked at once more, with the same outcome."""
        self._arriving.discard(group)

    # ------------------------------------------------------------ invariants

    def validate(self) -> None:
        """Raise AssertionError on any broken invariant."""
        for side in (self._left, self._right):
            waits = np.flatnonzero(side.states == WAITS)
            known = np.sort(np.concatenate([side.order, *side.loose]))
            assert np.array_equal(waits, known), "a row that waits is in no order, or twice"
            assert in_order(side.rows, side.order), "rows that wait are not in order"
            if side.payload is not None:
                side.payload.validate()
        self._latest.validate()
        if self._chained:
            right, last, entries = self._right, self._latest.table.last, self._latest.entries()
            assert (right.states[last[entries]] == HELD).all(), "the latest row of a key is not held"
            mine = self._latest.records[entries, :REF]
            assert np.array_equal(right.records[last[entries], :REF], mine), "a key has another latest row"
        holds = self._left.states == HELD
        until, group = self._left.rows.until[: self._left.count][holds], self._left.rows.group[: self._left.count][holds]
        assert (until >= self._front[group]).all(), "a left row is held that no row to come can join"
