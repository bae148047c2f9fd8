"""Merge of producers: one stream from many, ordered by time.

What: `Merge`, with a lane for every producer (a client, or a partition of a topic). Lanes accept rows from any thread; `take`
returns merged rows.
Why: every producer sends in time order, up to the declared bound, but producers run ahead of each other. After the merge a row
is late if and only if it was late among its own producer's rows.
Stays out: the origin of rows (`connectors.flight.source`, `connectors.kafka.source`), the late policy
(`cluster.gateway.intake`).

A row's merge time is the running maximum of its lane's times; ties are broken by the lane's name. So the order of the merged
stream depends on the rows of the lanes, not on when they arrived. A row waits until no other lane can receive a row with an
earlier merge time. The merge does not wait for a lane that has been idle for the timeout; its later rows may be late.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.splits import row_ids

if TYPE_CHECKING:
    import pyarrow as pa

_WAKE_S = 0.1  # poll interval of waiting threads, which check whether the merge has been closed
MOST_LANES = 1024  # a lane is kept until the stream ends
MOST_FULL_LANES = 64  # bounds the memory of all lanes; rows of disconnected producers are kept
_MOST_PIECES = 4096  # of a lane: small batches take far more memory than their rows
_LEAST_ROWS = 4096  # that end the lingering
NOTHING_KEPT: Mapping[str, int] = MappingProxyType({})


@dataclass
class Piece:
    """Waiting rows of one lane. times_us: (n,) int64 merge times, ascending."""

    batch: pa.RecordBatch
    times_us: I64


@dataclass
class _Lane:
    pieces: deque[Piece] = field(default_factory=deque)
    received: int = 0  # rows
    taken: int = 0
    high_us: int = BEGIN_OF_TIME_US  # of the rows received
    taken_high_us: int = BEGIN_OF_TIME_US
    nbytes: int = 0
    active_s: float = 0.0
    ended: bool = False
    anonymous: bool = False  # its producer cannot reconnect
    split: int = 0  # among the splits of a stream that several gateways read

    @property
    def waiting(self) -> int:
        return self.received - self.taken


@dataclass
class LaneState:
    """Where a lane goes on. taken, high_us: of the rows emitted before. pieces: rows after those, which are durable. passed_us:
    later rows are not before it. ended: after the pieces."""

    split: int
    taken: int = 0
    high_us: int = BEGIN_OF_TIME_US
    passed_us: int = BEGIN_OF_TIME_US
    ended: bool = False
    pieces: list[Piece] = field(default_factory=list)

    @property
    def end(self) -> int:
        """Rows up to the last piece."""
        return self.taken + sum(len(piece.times_us) for piece in self.pieces)


class MergeClosedError(Exception):
    """The merge has been closed."""


class Merge:
    """Thread-safe. expected: number of lanes that must exist before rows are emitted, and have ended when the stream ends; 0:
    any number, and `finish` ends the stream.

    lane_bytes: capacity of a lane; `push` waits while it is full. idle_timeout_us: 0: wait for idle lanes for ever. linger_s:
    time between two batches, in which rows collect. shows_times: whether batches end with a column of the rows' merge times.
    numbers_rows: whether a column of `core.splits.row_ids` is before that: split and number of the row among its lane's rows.
    anonymous: split of all anonymous lanes, and how many of its rows have been emitted.
    """

    def __init__(self, *, expected: int = 0, lane_bytes: int, idle_timeout_us: int = 0, linger_s: float = 0.002) -> None:
        self.shows_times = self.numbers_rows = False
        self.anonymous = -1, 0
        self._expected, self._lane_bytes = expected, lane_bytes
        self._idle_s, self._linger_s = idle_timeout_us / 1e6, linger_s
        self._lanes: dict[str, _Lane] = {}
        self._ended = 0  # lanes that have ended
        self._emitted_us = BEGIN_OF_TIME_US
        self._finished = self._closed = False
        self._emitted_s = 0.0
        self._started_s = time.monotonic()
        self._changed = threading.Condition()

    # ------------------------------------------------------------ lanes

    def open(self, name: str, *, anonymous: bool = False, split: int = 0) -> int:
        """A producer connects or reconnects; returns the number of rows received from it.

        anonymous: the producer cannot reconnect, so its lane ends when it leaves. split: of a new lane.
        """
        with self._changed:
            lane = self._lanes.get(name)
            if lane is None:
                self._check_room()
                lane = self._lanes[name] = _Lane(anonymous=anonymous, split=split)
            lane.ended, lane.active_s = self._finished, time.monotonic()
            self._changed.notify_all()
            return lane.received

    def _check_room(self) -> None:
        if self._finished:
            raise UserError("the stream has ended; no producer can join it any more")
        if self._expected and self._joined >= self._expected:
            raise UserError(f"the stream has its {self._expected} producers already; go on under one of their names")
        if len(self._lanes) >= MOST_LANES:
            raise UserError(f"the stream has {MOST_LANES} producers already; go on under one of their names")
        if sum(lane.nbytes for lane in self._lanes.values()) >= MOST_FULL_LANES * self._lane_bytes:
            raise UserError(f"the rows of {len(self._lanes)} producers wait already; try again later")

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:  # an anonymous one, after another client has ended the stream
            raise UserError("the stream has ended for this producer; its rows from now on are not joined")
        return lane

    def received(self, name: str) -> int:
        """Number of rows received by a lane."""
        with self._changed:
            lane = self._lanes.get(name)
            return 0 if lane is None else lane.received

    def taken(self, name: str) -> int:
        """Number of emitted rows of a lane."""
        with self._changed:
            lane = self._lanes.get(name)
            return 0 if lane is None else lane.taken

    def push(
        self,
        name: str,
        batch: pa.RecordBatch,
        times: I64,
        valid: Bool | None,
        *,
        row: int | None = None,
        given_up: Callable[[], bool] = lambda: False,
    ) -> None:
        """Append rows to a lane; waits while it is full. times: (n,) microseconds. valid: (n,), which rows have a time.

        row: number of the first row among the lane's rows; rows that have been received are dropped. given_up: polled while
        waiting. UserError when rows before `row` are missing, or the lane has ended. MergeClosedError when the merge is closed,
        or given_up returns True.
        """
        times = times if valid is None else np.where(valid, times, BEGIN_OF_TIME_US)
        with self._changed:
            lane = self._lane(name)
            while len(lane.pieces) >= _MOST_PIECES or (lane.nbytes and lane.nbytes + batch.nbytes > self._lane_bytes):
                if self._closed or given_up():
                    raise MergeClosedError
                self._changed.wait(_WAKE_S)
            if self._closed:
                raise MergeClosedError
            known = 0 if row is None else lane.received - row
            if known < 0:
                raise UserError(f"row {row} comes after {lane.received} rows; {-known} rows are missing")
            if known:
                batch, times = batch.slice(min(known, len(times))), times[known:]
            if lane.ended and len(times):
                raise UserError("the stream has ended; it takes no more rows" if self._finished else "this producer has ended")
            times_us = np.maximum(np.maximum.accumulate(times), max(lane.high_us, self._emitted_us))
            if len(times_us):
                lane.pieces.append(Piece(batch, times_us))
                lane.received += len(times_us)
                lane.nbytes += batch.nbytes
                lane.high_us = int(times_us[-1])
            lane.active_s = time.monotonic()
            self._changed.notify_all()

    def has_room(self, name: str, nbytes: int) -> bool:
        """Whether a push of so many bytes would not wait; for threads that fill several lanes."""
        with self._changed:
            lane = self._lanes[name]
            few = len(lane.pieces) < _MOST_PIECES
            return self._closed or (few and (not lane.nbytes or lane.nbytes + nbytes <= self._lane_bytes))

    def advance(self, name: str, time_us: int) -> None:
        """A promise of a producer: its later rows are not before this time."""
        with self._changed:
            lane = self._lane(name)
            lane.high_us, lane.active_s = max(lane.high_us, time_us), time.monotonic()
            self._changed.notify_all()

    def end(self, name: str) -> None:
        """End of a producer's rows."""
        with self._changed:
            self._lane(name).ended = True
            self._drop_anonymous()
            self._changed.notify_all()

    def leave(self, name: str) -> bool:
        """A producer disconnects, and may reconnect; an anonymous one has ended. A lane that has received nothing is removed,
        so that the merge does not wait for a mistyped name. Returns whether it was."""
        with self._changed:
            lane = self._lanes.get(name)
            if lane is not None and not lane.received and not lane.ended:
                del self._lanes[name]
                self._changed.notify_all()
                return True
            if lane is not None and lane.anonymous:
                lane.ended = True
                self._drop_anonymous()
                self._changed.notify_all()
            return False

    def finish(self) -> None:
        """End of all producers' rows."""
        with self._changed:
            self._finished = True
            for lane in self._lanes.values():
                lane.ended = True
            self._drop_anonymous()
            self._changed.notify_all()

    def close(self) -> None:
        """No more rows are read; pushes raise MergeClosedError."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drop_anonymous(self) -> None:
        for name in [n for n, lane in self._lanes.items() if lane.anonymous and lane.ended and not lane.waiting]:
            del self._lanes[name]

    # ------------------------------------------------------------ merged

    def wait(self, patience_s: float) -> None:
        """Wait for a change, this long at most."""
        with self._changed:
            self._changed.wait(patience_s)

    @property
    def linger_s(self) -> float:
        """Time until waiting rows can be taken."""
        return max(0.0, self._emitted_s + self._linger_s - time.monotonic())

    @property
    def ended(self) -> bool:
        """Whether the stream has ended and all rows have been taken."""
        with self._changed:
            done = all(lane.ended and not lane.waiting for lane in self._lanes.values())
            return done and (self._finished or 0 < self._expected <= self._joined)

    def ends(self, kept: Mapping[str, int] = NOTHING_KEPT) -> tuple[bool, frozenset[str]]:
        """Whether the stream has ended, and the lanes that have ended and have no rows left. kept: as of `position`."""
        with self._changed:
            lanes = ((name, lane) for name, lane in self._lanes.items() if not lane.anonymous)
            done = (name for name, lane in lanes if lane.ended and lane.received <= max(lane.taken, kept.get(name, 0)))
            return self._finished_for_good(kept), frozenset(done)

    def take(self, most: int) -> pa.RecordBatch | None:
        """The next merged rows, at most so many; None when none are ready."""
        with self._changed:
            if not self._lanes or not self._due():
                return None
            ready = self._ready(most)
            if not ready:
                return None
            batch = self._merged(ready, most)
            self._emitted_s = time.monotonic()
            self._drop_anonymous()
            self._changed.notify_all()
            return batch

    def _due(self) -> bool:
        return sum(lane.waiting for lane in self._lanes.values()) >= _LEAST_ROWS or self.linger_s == 0

    def _waited_for(self) -> dict[str, int]:
        """Lanes that may receive rows, and the least merge time of those rows."""
        now_s = time.monotonic()

        def silent(since_s: float) -> bool:
            return self._idle_s > 0 and now_s - since_s >= self._idle_s

        found = {
            name: lane.high_us
            for name, lane in self._lanes.items()
            if not lane.ended and (lane.waiting or not silent(lane.active_s))
        }
        if self._joined < self._expected and not self._finished and not silent(self._started_s):
            found[""] = BEGIN_OF_TIME_US
        return found

    def blocking_lanes(self) -> list[tuple[str, float]]:
        """Empty lanes that the first waiting row waits for, and how many seconds each has been idle. "": expected lanes that do
        not exist yet."""
        with self._changed:
            first = min(((int(lane.pieces[0].times_us[0]), n) for n, lane in self._lanes.items() if lane.waiting), default=None)
            if first is None:
                return []
            time_us, name = first
            found = []
            for other, high in self._waited_for().items():
                lane = self._lanes.get(other)
                if (lane is None or not lane.waiting) and time_us > (high if name < other else high - 1):
                    found.append((other, time.monotonic() - (self._started_s if lane is None else lane.active_s)))
            return found

    def open_lanes(self) -> list[tuple[str, float]]:
        """Lanes that may receive rows, and how many seconds each has been idle."""
        with self._changed:
            return [(name, time.monotonic() - lane.active_s) for name, lane in self._lanes.items() if not lane.ended]

    @property
    def missing(self) -> int:
        """Number of expected lanes that do not exist yet."""
        with self._changed:
            return max(0, self._expected - self._joined)

    @property
    def _joined(self) -> int:
        """Lanes of producers; one that holds rows of before a rescaling has no split."""
        return sum(lane.split >= 0 for lane in self._lanes.values())

    @property
    def silent_s(self) -> float:
        """How long all lanes have been idle."""
        with self._changed:
            return time.monotonic() - max([self._started_s, *(lane.active_s for lane in self._lanes.values())])

    @property
    def idle_s(self) -> float:
        """Idle timeout of a lane; 0: none."""
        return self._idle_s

    def _ready(self, most: int) -> list[tuple[_Lane, int]]:
        """Lanes in the order of their names, and how many rows of each no other lane can precede."""
        waited_for = self._waited_for()
        out = []
        for name in sorted(self._lanes):
            lane = self._lanes[name]
            bound = min(
                (high if name < other else high - 1 for other, high in waited_for.items() if other != name),
                default=END_OF_TIME_US,
            )
            rows = 0
            for piece in lane.pieces:
                n = int(np.searchsorted(piece.times_us, bound, side="right"))
                rows += n
                if n < len(piece.times_us) or rows >= most:
                    break
            if rows:
                out.append((lane, rows))
        return out

    def _merged(self, ready: list[tuple[_Lane, int]], most: int) -> pa.RecordBatch:
        import pyarrow as pa

        parts = [_first_rows(lane, min(rows, most)) for lane, rows in ready]
        if len(parts) == 1:
            taken = [len(parts[0].times_us)]
            batch, times_us = parts[0].batch, parts[0].times_us
            owner = np.zeros(len(times_us), np.int64)
        else:
            times_us = np.concatenate([part.times_us for part in parts])
            order = np.argsort(times_us, kind="stable")[:most]
            starts = np.cumsum([0, *(len(part.times_us) for part in parts)])
            owner = np.searchsorted(starts, order, side="right") - 1
            taken = np.bincount(owner, minlength=len(parts)).tolist()
            batch, times_us = pa.concat_batches([part.batch for part in parts]).take(pa.array(order)), times_us[order]
        if self.numbers_rows:
            numbers = self._row_numbers([lane for lane, _ in ready], owner)
            batch = batch.append_column("row number", pa.array(numbers))
        for (lane, _), part, rows in zip(ready, parts, taken, strict=True):
            if rows:
                self._emitted_us = max(self._emitted_us, int(part.times_us[rows - 1]))
                _drop_rows(lane, rows)
        return batch.append_column("merge time", pa.array(times_us)) if self.shows_times else batch

    def _row_numbers(self, lanes: list[_Lane], owner: I64) -> I64:
        """Of emitted rows, given which lane each one comes from, before these count as taken. Rows of all anonymous lanes are
        numbered in the order in which they are emitted."""
        counts = np.bincount(owner, minlength=len(lanes))
        order = np.argsort(owner, kind="stable")
        rows = np.empty(len(owner), np.int64)
        rows[order] = np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner[order]]
        rows += np.array([lane.taken for lane in lanes])[owner]
        numbers = row_ids(np.array([lane.split for lane in lanes])[owner], rows, "a producer")
        loose = np.array([lane.anonymous for lane in lanes])[owner]
        if loose.any():
            split, before = self.anonymous
            count = int(np.count_nonzero(loose))
            numbers[loose] = row_ids(split, before + np.arange(count), "producers without a name")
            self.anonymous = split, before + count
        return numbers

    # ------------------------------------------------------------ across a crash

    def _finished_for_good(self, kept: Mapping[str, int]) -> bool:
        """Whether the stream has ended and no row waits: after a crash producers must be able to send waiting rows again."""
        ended = (lane.received <= max(lane.taken, kept.get(name, 0)) for name, lane in self._lanes.items())
        return self._finished and all(ended)

    def position(self, kept: Mapping[str, int] = NOTHING_KEPT) -> dict[str, Any]:
        """Emitted rows of every lane, their highest time, and whether the lane has ended; as JSON values. kept: rows of lanes
        that are durable, and count as emitted."""
        with self._changed:
            lanes: dict[str, list[Any]] = {}
            for name, lane in self._lanes.items():
                if not lane.anonymous:
                    rows = max(lane.taken, kept.get(name, 0))
                    lanes[name] = [rows, lane.taken_high_us, lane.ended and lane.received <= rows]
                    lanes[name] += [lane.split] * self.numbers_rows
            return {"lanes": lanes, "emitted_us": self._emitted_us, "finished": self._finished_for_good(kept)}

    def restore(self, position: dict[str, Any]) -> None:
        """In a new process: recreate lanes whose rows up to this position have been emitted. Producers reconnect."""
        with self._changed:
            assert not any(lane.received for lane in self._lanes.values()), "a merge that has rows cannot be restored"
            now_s = time.monotonic()
            for name, (taken, high_us, ended) in position["lanes"].items():
                self._lanes[name] = _Lane(
                    received=taken, taken=taken, high_us=high_us, taken_high_us=high_us, active_s=now_s, ended=ended
                )
            self._emitted_us, self._finished = position["emitted_us"], position["finished"]
            self._changed.notify_all()

    def rewind(self, lanes: Mapping[str, LaneState], emitted_us: int, *, finished: bool) -> None:
        """Go on with these lanes, in a new process or in one that has emitted more. What waits in a lane stays behind its
        pieces; other lanes have emitted nothing, or are anonymous. RunFailed when rows between the two are missing."""
        with self._changed:
            now_s = time.monotonic()
            for name, state in lanes.items():
                lane = self._lanes.get(name)
                if lane is None:
                    lane = self._lanes[name] = _Lane(received=state.end, taken=state.end, active_s=now_s, ended=state.ended)
                elif lane.taken > state.end:
                    raise RunFailed(f"producer {name}: rows {state.end} to {lane.taken}, which were accepted, are gone")
                _drop_rows(lane, state.end - lane.taken)  # those to be read again, of an earlier recovery
                lane.split, lane.taken, lane.taken_high_us = state.split, state.taken, state.high_us
                lane.pieces.extendleft(reversed(state.pieces))
                lane.nbytes += sum(piece.batch.nbytes for piece in state.pieces)
                highs_us = [int(piece.times_us[-1]) for piece in state.pieces[-1:]]
                lane.high_us = max(lane.high_us, state.high_us, state.passed_us, *highs_us)
            self._emitted_us, self._finished = emitted_us, self._finished or finished
            self._changed.notify_all()

    @property
    def splits(self) -> dict[str, int]:
        """The split of every lane but anonymous ones."""
        with self._changed:
            return {name: lane.split for name, lane in self._lanes.items() if not lane.anonymous}

    @property
    def has_anonymous(self) -> bool:
        with self._changed:
            return any(lane.anonymous for lane in self._lanes.values())

    def expect(self, count: int) -> None:
        """Replace `expected`."""
        with self._changed:
            self._expected = count
            self._changed.notify_all()

    @property
    def waiting_rows(self) -> int:
        with self._changed:
            return sum(lane.waiting for lane in self._lanes.values())

    @property
    def lanes(self) -> int:
        with self._changed:
            return len(self._lanes)

    def validate(self) -> None:
        with self._changed:
            for name, lane in self._lanes.items():
                times_us = np.concatenate([np.empty(0, np.int64), *(piece.times_us for piece in lane.pieces)])
                assert len(times_us) == lane.waiting, f"lane {name}: {len(times_us)} rows wait, expected {lane.waiting}"
                assert (np.diff(times_us) >= 0).all(), f"lane {name}: times out of order"
                assert lane.nbytes >= 0, f"lane {name}: {lane.nbytes} bytes wait"


def _first_rows(lane: _Lane, rows: int) -> Piece:
    """The first rows of a lane; they stay in it."""
    import pyarrow as pa

    batches, times_us, missing = [], [], rows
    for piece in lane.pieces:
        n = min(missing, len(piece.times_us))
        batches.append(piece.batch.slice(0, n))
        times_us.append(piece.times_us[:n])
        missing -= n
        if not missing:
            break
    return Piece(batches[0] if len(batches) == 1 else pa.concat_batches(batches), np.concatenate(times_us))


def _drop_rows(lane: _Lane, rows: int) -> None:
    lane.taken += rows
    while rows:
        piece = lane.pieces[0]
        n = len(piece.times_us)
        if n <= rows:
            lane.pieces.popleft()
            lane.nbytes -= piece.batch.nbytes
            lane.taken_high_us = int(piece.times_us[-1])
            rows -= n
        else:
            rest = piece.batch.slice(rows)
            lane.nbytes += rest.nbytes - piece.batch.nbytes
            lane.taken_high_us = int(piece.times_us[rows - 1])
            lane.pieces[0] = Piece(rest, piece.times_us[rows:])
            rows = 0
