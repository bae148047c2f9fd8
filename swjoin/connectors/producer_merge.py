"""Many producers make one stream: their rows merged by time, so that none makes another one's rows late.

What: `Merge`: a lane for every producer (a client, a partition of a topic). Lanes take rows from any thread; `take` hands over
the merged rows.
Why: each producer sends in time order, up to the declared bound, but producers are ahead of each other. Behind this merge a row
is late if and only if it was late among its own producer's rows, whoever was faster.
Stays out: where rows come from (`connectors.flight.source`, `connectors.kafka.source`), judging lateness
(`cluster.master.intake`).

A row's place is the running maximum of its lane's times, ties by the lane's name: the order of the merged stream is a
function of what the lanes hold, not of when it came. A row waits until no other lane can bring one with an earlier place. A
lane that has been silent for the timeout is waited for no longer; what it brings afterwards may be late.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US

if TYPE_CHECKING:
    import pyarrow as pa

_WAKE_S = 0.1  # how soon somebody who waits sees that the merge has been closed
MOST_LANES = 1024  # each is remembered for as long as the stream goes on
MOST_FULL_LANES = 64  # rows that those who have gone left behind are kept, so the memory needs a bound over all lanes
_MOST_PIECES = 4096  # of a lane: batches of few rows take far more memory than their rows
_LEAST_ROWS = 4096  # that are taken before they have lingered


@dataclass
class _Piece:
    """Rows of one lane that wait: a batch and the places of its rows, (n,) int64, ascending."""

    batch: pa.RecordBatch
    places: I64


@dataclass
class _Lane:
    pieces: deque[_Piece] = field(default_factory=deque)
    received: int = 0  # rows
    taken: int = 0
    high_us: int = BEGIN_OF_TIME_US  # of the rows received
    taken_high_us: int = BEGIN_OF_TIME_US
    nbytes: int = 0
    spoke_s: float = 0.0
    ended: bool = False
    passing: bool = False  # nobody can come back to it

    @property
    def waiting(self) -> int:
        return self.received - self.taken


class MergeClosedError(Exception):
    """Nobody takes rows any more."""


class Merge:
    """Thread-safe. expected: so many lanes have to be there before a row is handed over, and the stream has ended when as many
    have; 0: any number, and `finish` says so.

    lane_bytes: what a lane may have waiting before `push` waits. idle_timeout_us: 0 waits for silent lanes for ever. linger_s:
    rows are handed over together, so long after the ones before.
    """

    def __init__(self, *, expected: int = 0, lane_bytes: int, idle_timeout_us: int = 0, linger_s: float = 0.002) -> None:
        self._expected, self._lane_bytes = expected, lane_bytes
        self._idle_s, self._linger_s = idle_timeout_us / 1e6, linger_s
        self._lanes: dict[str, _Lane] = {}
        self._ended = 0  # lanes that are gone
        self._emitted_us = BEGIN_OF_TIME_US
        self._finished = self._closed = False
        self._taken_s = 0.0
        self._began_s = time.monotonic()
        self._changed = threading.Condition()

    # ------------------------------------------------------------ lanes

    def open(self, name: str, *, passing: bool = False) -> int:
        """A producer is there, again or for the first time; returns how many of its rows there are already.

        passing: it will not come back, so nobody waits for it once it is gone.
        """
        with self._changed:
            lane = self._lanes.get(name)
            if lane is None:
                self._check_room()
                lane = self._lanes[name] = _Lane(passing=passing)
            lane.ended, lane.spoke_s = self._finished, time.monotonic()
            self._changed.notify_all()
            return lane.received

    def _check_room(self) -> None:
        if self._finished:
            raise UserError("the stream has ended; no producer can join it any more")
        if self._expected and len(self._lanes) >= self._expected:
            raise UserError(f"the stream has its {self._expected} producers already; go on under one of their names")
        if len(self._lanes) >= MOST_LANES:
            raise UserError(f"the stream has {MOST_LANES} producers already; go on under one of their names")
        if sum(lane.nbytes for lane in self._lanes.values()) >= MOST_FULL_LANES * self._lane_bytes:
            raise UserError(f"the rows of {len(self._lanes)} producers wait already; try again later")

    def _lane(self, name: str) -> _Lane:
        lane = self._lanes.get(name)
        if lane is None:  # one that passed, and the stream has been ended by somebody else
            raise UserError("the stream has ended for this producer; its rows from now on are not joined")
        return lane

    def received(self, name: str) -> int:
        """Rows of this lane so far."""
        with self._changed:
            lane = self._lanes.get(name)
            return 0 if lane is None else lane.received

    def taken(self, name: str) -> int:
        """Rows of this lane that have been handed over."""
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
        """More rows of a lane; waits while it has too many. times: (n,) microseconds. valid: (n,), which rows have a time.

        row: number of the first one among the lane's rows; those that are there already are left out. given_up: asked while
        waiting. UserError when rows are missing before it, or the lane has ended. MergeClosedError when nobody takes rows any
        more, or given_up says so.
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
            places = np.maximum(np.maximum.accumulate(times), max(lane.high_us, self._emitted_us))
            if len(places):
                lane.pieces.append(_Piece(batch, places))
                lane.received += len(places)
                lane.nbytes += batch.nbytes
                lane.high_us = int(places[-1])
            lane.spoke_s = time.monotonic()
            self._changed.notify_all()

    def has_room(self, name: str, nbytes: int) -> bool:
        """Whether a push of so many bytes would not have to wait; for who must not wait for one lane, because it fills others,
        too."""
        with self._changed:
            lane = self._lanes[name]
            few = len(lane.pieces) < _MOST_PIECES
            return self._closed or (few and (not lane.nbytes or lane.nbytes + nbytes <= self._lane_bytes))

    def carry(self, name: str, time_us: int) -> None:
        """A producer promises that its rows from now on are not before this time."""
        with self._changed:
            lane = self._lane(name)
            lane.high_us, lane.spoke_s = max(lane.high_us, time_us), time.monotonic()
            self._changed.notify_all()

    def end(self, name: str) -> None:
        """A producer has no more rows."""
        with self._changed:
            self._lane(name).ended = True
            self._drop_passed()
            self._changed.notify_all()

    def leave(self, name: str) -> None:
        """A producer has gone, and may come back; one that cannot has ended. One that has brought nothing is forgotten: nobody
        waits for a name that was only tried."""
        with self._changed:
            lane = self._lanes.get(name)
            if lane is not None and not lane.received and not lane.ended:
                del self._lanes[name]
                self._changed.notify_all()
            elif lane is not None and lane.passing:
                lane.ended = True
                self._drop_passed()
                self._changed.notify_all()

    def finish(self) -> None:
        """No producer has more rows."""
        with self._changed:
            self._finished = True
            for lane in self._lanes.values():
                lane.ended = True
            self._drop_passed()
            self._changed.notify_all()

    def close(self) -> None:
        """Nobody takes rows any more."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    def _drop_passed(self) -> None:
        for name in [n for n, lane in self._lanes.items() if lane.passing and lane.ended and not lane.waiting]:
            del self._lanes[name]

    # ------------------------------------------------------------ merged

    def wait(self, patience_s: float) -> None:
        """Until something has changed, or so long."""
        with self._changed:
            self._changed.wait(patience_s)

    @property
    def linger_s(self) -> float:
        """How long until rows that wait may be taken."""
        return max(0.0, self._taken_s + self._linger_s - time.monotonic())

    @property
    def ended(self) -> bool:
        """No row will come any more, and none waits."""
        with self._changed:
            done = all(lane.ended and not lane.waiting for lane in self._lanes.values())
            return done and (self._finished or 0 < self._expected <= len(self._lanes))

    @property
    def ends(self) -> tuple[bool, frozenset[str]]:
        """Whether the stream has ended, and the lanes that have, with nothing left of them."""
        with self._changed:
            done = (name for name, lane in self._lanes.items() if lane.ended and not lane.waiting and not lane.passing)
            return self._finished_for_good, frozenset(done)

    def take(self, most: int) -> pa.RecordBatch | None:
        """The next merged rows, at most so many; None when none can be handed over yet."""
        with self._changed:
            if not self._lanes or not self._due():
                return None
            ready = self._ready(most)
            if not ready:
                return None
            batch = self._merged(ready, most)
            self._taken_s = time.monotonic()
            self._drop_passed()
            self._changed.notify_all()
            return batch

    def _due(self) -> bool:
        return sum(lane.waiting for lane in self._lanes.values()) >= _LEAST_ROWS or self.linger_s == 0

    def _waited_for(self) -> dict[str, int]:
        """Lanes that may still bring rows, and the least place of those."""
        now_s = time.monotonic()

        def silent(since_s: float) -> bool:
            return self._idle_s > 0 and now_s - since_s >= self._idle_s

        found = {
            name: lane.high_us
            for name, lane in self._lanes.items()
            if not lane.ended and (lane.waiting or not silent(lane.spoke_s))
        }
        if len(self._lanes) < self._expected and not self._finished and not silent(self._began_s):
            found[""] = BEGIN_OF_TIME_US
        return found

    def holding_back(self) -> list[tuple[str, float]]:
        """Lanes without rows for which the first row of the others waits, and for how many seconds each has been silent. "":
        those that have not come, of the expected ones."""
        with self._changed:
            first = min(((int(lane.pieces[0].places[0]), n) for n, lane in self._lanes.items() if lane.waiting), default=None)
            if first is None:
                return []
            place, name = first
            found = []
            for other, high in self._waited_for().items():
                lane = self._lanes.get(other)
                if (lane is None or not lane.waiting) and place > (high if name < other else high - 1):
                    found.append((other, time.monotonic() - (self._began_s if lane is None else lane.spoke_s)))
            return found

    def open_lanes(self) -> list[tuple[str, float]]:
        """Lanes that may still bring rows, and for how many seconds each has been silent."""
        with self._changed:
            return [(name, time.monotonic() - lane.spoke_s) for name, lane in self._lanes.items() if not lane.ended]

    @property
    def missing(self) -> int:
        """Expected lanes that have not come."""
        with self._changed:
            return max(0, self._expected - len(self._lanes))

    @property
    def silent_s(self) -> float:
        """For how long nobody has brought anything."""
        with self._changed:
            return time.monotonic() - max([self._began_s, *(lane.spoke_s for lane in self._lanes.values())])

    @property
    def idle_s(self) -> float:
        """After how long a silent lane is waited for no longer; 0: never."""
        return self._idle_s

    def _ready(self, most: int) -> list[tuple[_Lane, int]]:
        """Of each lane, in the order of their names, how many rows no other lane can come before."""
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
                n = int(np.searchsorted(piece.places, bound, side="right"))
                rows += n
                if n < len(piece.places) or rows >= most:
                    break
            if rows:
                out.append((lane, rows))
        return out

    def _merged(self, ready: list[tuple[_Lane, int]], most: int) -> pa.RecordBatch:
        import pyarrow as pa

        parts = [_first_rows(lane, min(rows, most)) for lane, rows in ready]
        if len(parts) == 1:
            taken = [len(parts[0].places)]
            batch = parts[0].batch
        else:
            places = np.concatenate([part.places for part in parts])
            order = np.argsort(places, kind="stable")[:most]
            starts = np.cumsum([0, *(len(part.places) for part in parts)])
            owner = np.searchsorted(starts, order, side="right") - 1
            taken = np.bincount(owner, minlength=len(parts)).tolist()
            batch = pa.concat_batches([part.batch for part in parts]).take(pa.array(order))
        for (lane, _), part, rows in zip(ready, parts, taken, strict=True):
            if rows:
                self._emitted_us = max(self._emitted_us, int(part.places[rows - 1]))
                _drop_rows(lane, rows)
        return batch

    # ------------------------------------------------------------ across a crash

    @property
    def _finished_for_good(self) -> bool:
        """Rows that wait would be their producers' to send again, so after a crash the stream must not have ended."""
        return self._finished and not any(lane.waiting for lane in self._lanes.values())

    def position(self) -> dict[str, Any]:
        """What has been taken of every lane: rows, their highest time, and whether that was all; ready for JSON."""
        with self._changed:
            lanes = {
                name: [lane.taken, lane.taken_high_us, lane.ended and not lane.waiting]
                for name, lane in self._lanes.items()
                if not lane.passing
            }
            return {"lanes": lanes, "emitted_us": self._emitted_us, "finished": self._finished_for_good}

    def restore(self, position: dict[str, Any]) -> None:
        """In a new process: lanes are there, and their rows up to this position have been taken. Producers come back."""
        with self._changed:
            assert not any(lane.received for lane in self._lanes.values()), "a merge that has rows cannot be restored"
            now_s = time.monotonic()
            for name, (taken, high_us, ended) in position["lanes"].items():
                self._lanes[name] = _Lane(
                    received=taken, taken=taken, high_us=high_us, taken_high_us=high_us, spoke_s=now_s, ended=ended
                )
            self._emitted_us, self._finished = position["emitted_us"], position["finished"]
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
                places = np.concatenate([np.empty(0, np.int64), *(piece.places for piece in lane.pieces)])
                assert len(places) == lane.waiting, f"lane {name}: {len(places)} rows wait, {lane.waiting} are counted"
                assert (np.diff(places) >= 0).all(), f"lane {name}: places out of order"
                assert lane.nbytes >= 0, f"lane {name}: {lane.nbytes} bytes wait"


def _first_rows(lane: _Lane, rows: int) -> _Piece:
    """The first rows of a lane, which keeps them."""
    import pyarrow as pa

    batches, places, missing = [], [], rows
    for piece in lane.pieces:
        n = min(missing, len(piece.places))
        batches.append(piece.batch.slice(0, n))
        places.append(piece.places[:n])
        missing -= n
        if not missing:
            break
    return _Piece(batches[0] if len(batches) == 1 else pa.concat_batches(batches), np.concatenate(places))


def _drop_rows(lane: _Lane, rows: int) -> None:
    lane.taken += rows
    while rows:
        piece = lane.pieces[0]
        n = len(piece.places)
        if n <= rows:
            lane.pieces.popleft()
            lane.nbytes -= piece.batch.nbytes
            lane.taken_high_us = int(piece.places[-1])
            rows -= n
        else:
            rest = piece.batch.slice(rows)
            lane.nbytes += rest.nbytes - piece.batch.nbytes
            lane.taken_high_us = int(piece.places[rows - 1])
            lane.pieces[0] = _Piece(rest, piece.places[rows:])
            rows = 0
