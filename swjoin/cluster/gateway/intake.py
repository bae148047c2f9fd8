"""The intake of one stream: rows are classified, stamped and sorted by time.

What: `StreamIntake` turns `SourceBatch`es into time-ordered tuples. It counts and removes rows with null keys and late rows
(null times, times below the highest earlier time minus the declared bound), and sorts rows that are out of order within the
bound.
Why: after the intake every stream is in time order and every removed row has a reason, which keeps windows and epochs simple.
Lateness is a function of the input rows alone, never of speed.
Stays out: partitioning and epochs (`cluster.gateway.mini_buffers`, `cluster.master.master`), reading files (`connectors`).
"""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Any

import numpy as np

from swjoin.config.run import TimeConfig
from swjoin.core.batch import I64, STREAM_NAMES, U8, Bool, SourceBatch, TupleBatch
from swjoin.core.errors import Text, UserError, setting
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.kernel_cache import kernel
from swjoin.core.ledger import StreamCounts
from swjoin.core.sequence_numbers import without_sequence
from swjoin.core.units import format_duration

GOOD, NULL_KEY, NULL_TIME, LATE = 0, 1, 2, 3
_EMPTY_MASK, _NO_TIMES = np.empty(0, np.bool_), np.empty(0, np.int64)
LEAVE_OUT = setting("late", "time.late", "drop"), " or ", setting("late", "time.late", "side")


class LateRowError(UserError):
    """Late policy `error`: a row without a time (no_time) or past the declared bound. The runtime adds file and row from
    `row_id`."""

    def __init__(self, stream: int, row_id: int, problem: Text, remedy: Text, *, no_time: bool = False, name: str = "") -> None:
        super().__init__(problem, subject=f"{name or STREAM_NAMES[stream]}, row id {row_id}", remedy=remedy)
        self.stream, self.row_id, self.no_time = stream, row_id, no_time

    def at(self, location: str) -> LateRowError:
        """This error with the row's location (file and row) as its subject."""
        self.subject = location
        return self


@kernel
def classify(
    ts: I64, ts_valid: Bool, key_valid: Bool, split_high: I64, high: int, allowed: int, verdict: U8, running: I64
) -> tuple[int, int, int, int, int]:
    """Fill in the verdict of every row and the running maximum of times, both (n,).

    Empty masks: all rows are valid. split_high: as `SourceBatch.high_us`, or empty. Returns (new high, null keys, late rows,
    index of the first late row or -1, high before that row).
    """
    null_keys = 0
    late = 0
    first_late = -1
    high_at_first = high
    masked_ts = ts_valid.shape[0] > 0
    masked_key = key_valid.shape[0] > 0
    of_splits = split_high.shape[0] > 0
    for i in range(ts.shape[0]):
        if of_splits and split_high[i] > high:
            high = split_high[i]
        has_ts = not masked_ts or ts_valid[i]
        t = ts[i]
        v = GOOD
        if masked_key and not key_valid[i]:
            v = NULL_KEY
            null_keys += 1
        elif not has_ts:
            v = NULL_TIME
        elif t < high - allowed:
            v = LATE
        if v >= NULL_TIME:
            late += 1
            if first_late < 0:
                first_late = i
                high_at_first = high
        if has_ts and t > high:
            high = t
        verdict[i] = v
        running[i] = high
    return high, null_keys, late, first_late, high_at_first


class StreamIntake:
    """Classifies and sorts the rows of one stream.

    asap pace: `arrive_all()` after every `read`. realtime pace: `arrive_until(t)` admits rows whose running maximum of times
    is below t (when they reach the master). Times are microseconds of the stream's own time axis.
    keeps_null_keys: whether rows with a null key, which match nothing, are kept for the output. live: rows arrive when they
    are read; `arrive_until` takes a time of the run's clock, and only rows advance the stream's own time (with arrival times,
    only the clock).
    """

    def __init__(
        self, stream: int, time: TimeConfig, keeps_null_keys: bool = False, *, live: bool = False, name: str = ""
    ) -> None:
        self.stream = stream
        self.name = name or STREAM_NAMES[stream]
        self.live = live
        self.time = time
        self._keeps_null_keys = keeps_null_keys
        self._null_keys: list[TupleBatch] = []
        self.counts = StreamCounts()
        self.high_us = BEGIN_OF_TIME_US
        self.first_us: int | None = None
        self.ended = False
        self.idle = False
        self._arriving: deque[TupleBatch] = deque()
        self._held: list[TupleBatch] = []
        self._released: list[TupleBatch] = []
        self._arrived_high_us = BEGIN_OF_TIME_US

    # ------------------------------------------------------------ reading

    def check(self, batch: SourceBatch, high_us: int) -> int:
        """The highest time including these rows. Raises LateRowError where `read` would, after rows up to `high_us`; takes no
        rows."""
        verdict, running = np.empty(len(batch), np.uint8), np.empty(len(batch), np.int64)
        high, _, late, first_late, high_then = self._classify(batch, high_us, verdict, running)
        if late and self.time.late == "error":
            self._refuse(batch, int(first_late), int(verdict[first_late]), int(high_then))
        return int(high)

    def _classify(self, batch: SourceBatch, high_us: int, verdict: U8, running: I64) -> tuple[int, int, int, int, int]:
        """See `classify`. No row is late with arrival times."""
        ts_valid = _EMPTY_MASK if batch.ts_valid is None else batch.ts_valid
        key_valid = _EMPTY_MASK if batch.key_valid is None else batch.key_valid
        by_arrival = self.time.model == "arrival"
        allowed = END_OF_TIME_US if by_arrival else self.time.max_out_of_order_us
        split_high_us = _NO_TIMES if batch.high_us is None else batch.high_us
        high, null_keys, late, first_late, high_then = classify(
            batch.ts, ts_valid, key_valid, split_high_us, high_us, allowed, verdict, running
        )
        if by_arrival:
            late = 0
            np.copyto(verdict, GOOD, where=verdict != NULL_KEY)
        return high, null_keys, late, first_late, high_then

    def read(self, batch: SourceBatch, arrival_us: int | None) -> list[tuple[SourceBatch, str]]:
        """Take rows as read; returns the late rows with their reasons (late policy `side` writes them).

        arrival_us: stamp for production delay. None (realtime pace): the row's position on the time axis, kept in `arrival_us`
        until the master rebases it. Raises LateRowError under late policy `error`.
        """
        n = len(batch)
        self.counts.tuples += n
        if n == 0:
            return []
        verdict, running = np.empty(n, np.uint8), np.empty(n, np.int64)
        by_arrival, high_before = self.time.model == "arrival", self.high_us
        allowed = END_OF_TIME_US if by_arrival else self.time.max_out_of_order_us
        self.high_us, null_keys, late, first_late, high_then = self._classify(batch, high_before, verdict, running)
        if late and self.time.late == "error":
            self._refuse(batch, int(first_late), int(verdict[first_late]), int(high_then))
        self.counts.null_key += int(null_keys)
        self.counts.late += int(late)
        if not (by_arrival and self.live):  # the run's clock stamps those rows, not their own times
            self._extend_range(batch, high_before - allowed, rises=self.high_us > high_before, regular=not (null_keys or late))
        if self.first_us is None and self.high_us > BEGIN_OF_TIME_US:
            known = np.flatnonzero(running > BEGIN_OF_TIME_US)[0]
            self.first_us = int(running[known])
        side_rows = self._late_rows(batch, verdict) if late and self.time.late == "side" else []
        stamps = running if arrival_us is None else np.full(n, arrival_us, np.int64)
        times = stamps if self.time.model == "arrival" else batch.ts
        if null_keys and self._keeps_null_keys:
            self._keep_null_keys(batch, times, verdict)
        rows, columns = batch.rows, batch.columns
        key, ts, ids = batch.key, times, batch.id
        if null_keys or late:
            keep = np.flatnonzero(verdict == GOOD)
            key, ts, ids, stamps = key[keep], ts[keep], ids[keep], stamps[keep]
            rows = None if rows is None else rows.take(keep)
            columns = None if columns is None else columns.take(keep)
        if len(key):
            self._arrive_later(TupleBatch(key, ts, ids, stamps, rows, columns))
        return side_rows

    def _arrive_later(self, batch: TupleBatch) -> None:
        """Rows in the order of their arrival; after a crash those of another gateway may be at hand already."""
        if self._arriving and batch.arrival_us[0] < self._arriving[-1].arrival_us[-1]:
            batch = TupleBatch.concat([*self._arriving, batch])
            batch = batch.take(np.argsort(batch.arrival_us, kind="stable").astype(np.int64))
            self._arriving.clear()
        self._arriving.append(batch)

    def _extend_range(self, batch: SourceBatch, least_us: int, *, rises: bool, regular: bool) -> None:
        """Extend the time range by a batch, in most cases without reading its times.

        regular: no row has a null key or is late, so none is below least_us. rises: the batch has a new highest time.
        """
        counts = self.counts
        if regular and counts.earliest_us is not None and counts.latest_us is not None and counts.earliest_us <= least_us:
            if rises:
                counts.latest_us = max(counts.latest_us, self.high_us)
                return
            if counts.latest_us >= self.high_us:
                return
        counts.extend_range(batch.ts if batch.ts_valid is None else batch.ts[batch.ts_valid])

    def _keep_null_keys(self, batch: SourceBatch, ts: I64, verdict: U8) -> None:
        """Keep rows with a null key for the output, except those without a time."""
        wanted = verdict == NULL_KEY
        if batch.ts_valid is not None and self.time.model == "event":
            wanted &= batch.ts_valid
        index = np.flatnonzero(wanted)
        if len(index):
            nothing = np.zeros(len(index), np.int64)
            rows = None if batch.rows is None else batch.rows.take(index)
            self._null_keys.append(TupleBatch(nothing, ts[index], batch.id[index], nothing, rows))

    def take_null_keys(self, rebase_us: int = 0) -> TupleBatch:
        """Remove and return the rows with a null key that were kept for the output; they need not wait.

        rebase_us: origin of the time axis, with arrival times.
        """
        out, self._null_keys = self._null_keys, []
        if not out:
            return TupleBatch.empty()
        batch = TupleBatch.concat(out)
        return batch if self.time.model == "event" else dataclasses.replace(batch, ts=np.maximum(batch.ts - rebase_us, 0))

    @property
    def null_key_bytes(self) -> int:
        """Bytes of kept rows with a null key, until the next delivery."""
        return sum(batch.nbytes for batch in self._null_keys)

    def _refuse(self, batch: SourceBatch, index: int, verdict: int, high_us: int) -> None:
        row_id = int(batch.id[index])
        if verdict == NULL_TIME:
            remedy = ("choose ", *LEAVE_OUT, " to leave such rows out")
            raise LateRowError(self.stream, row_id, "no time", remedy, no_time=True, name=self.name)
        behind = high_us - int(batch.ts[index])
        declared = setting("max_out_of_order", "time.max_out_of_order", format_duration(behind))
        raise LateRowError(
            self.stream,
            row_id,
            f"its time is {format_duration(behind)} behind an earlier row, more than the declared "
            f"{format_duration(self.time.max_out_of_order_us)}",
            ("sort the input, declare ", declared, " or more, or choose ", *LEAVE_OUT),
            name=self.name,
        )

    def _late_rows(self, batch: SourceBatch, verdict: U8) -> list[tuple[SourceBatch, str]]:
        out = []
        for code, reason in ((NULL_TIME, "null time"), (LATE, "late")):
            index = np.flatnonzero(verdict == code)
            if len(index):
                valid = np.full(len(index), code == LATE)
                out.append((SourceBatch(batch.key[index], batch.ts[index], batch.id[index], None, valid), reason))
        return out

    # ------------------------------------------------------------ arriving and ordering

    def arrive_all(self) -> None:
        """asap pace: everything read has arrived."""
        while self._arriving:
            self._order(self._arriving.popleft())
        self._arrived_high_us = self.high_us
        self._release()

    def arrive_until(self, time_us: int) -> None:
        """realtime pace: admit rows below `time_us` on the time axis."""
        while self._arriving:
            head = self._arriving[0]
            n = len(head) if self.live else int(np.searchsorted(head.arrival_us, time_us, side="left"))
            if n:
                self._order(head.slice(0, n))
            if n < len(head):
                self._arriving[0] = head.slice(n, len(head))
                break
            self._arriving.popleft()
        # The clock advances the time of a stream without rows, but not past rows that are due and not read yet.
        behind = not self.ended and not self.idle and self.high_us < time_us
        by_clock = self.time.model == "arrival" if self.live else not behind
        self._arrived_high_us = max(self._arrived_high_us, time_us if by_clock else self.high_us)
        self._release()

    def become_idle(self) -> None:
        """Mark the stream idle: its source has nothing to read, and the time of the run advances without it."""
        self.idle = True

    def become_active(self) -> None:
        """Mark the stream active again. Rows older than the watermark announced meanwhile are late."""
        self.idle = False
        self.high_us = max(self.high_us, self._arrived_high_us)

    def carry(self, time_us: int) -> None:
        """Advance the time of an idle stream to that of the other stream (asap pace, and live streams)."""
        self._arrived_high_us = max(self._arrived_high_us, time_us)
        self._release()

    def carry_watermark(self, time_us: int) -> None:
        """As `carry`, to a watermark."""
        if time_us not in (BEGIN_OF_TIME_US, END_OF_TIME_US):
            self.carry(time_us + (0 if self.time.model == "arrival" else self.time.max_out_of_order_us))

    def pass_time(self, time_us: int) -> None:
        """Rows before the next one, which another gateway reads, have times up to this one; lateness is judged by it."""
        self.high_us = max(self.high_us, time_us)

    def _order(self, batch: TupleBatch) -> None:
        (self._released if self._in_order else self._held).append(batch)

    @property
    def _in_order(self) -> bool:
        """Rows need no sorting: the bound is zero (late rows are removed), or times are stamped in order."""
        return self.time.model == "arrival" or self.time.max_out_of_order_us == 0

    def _release(self) -> None:
        """Release the tuples up to the watermark, sorted by time (ties in row order)."""
        if not self._held:
            return
        mark = self.watermark_us
        batch = TupleBatch.concat(self._held)
        if (batch.ts[1:] < batch.ts[:-1]).any():
            batch = batch.take(np.argsort(batch.ts, kind="stable").astype(np.int64))
        n = int(np.searchsorted(batch.ts, mark, side="right"))
        if n:
            self._released.append(batch.slice(0, n))
        self._held = [batch.slice(n, len(batch))] if n < len(batch) else []

    @property
    def arriving_bytes(self) -> int:
        """Bytes of rows read but not yet arrived (realtime pace)."""
        return sum(batch.nbytes for batch in self._arriving)

    @property
    def arriving(self) -> bool:
        """Whether rows were read that have not arrived yet (realtime pace)."""
        return bool(self._arriving)

    @property
    def exhausted(self) -> bool:
        """Ended, and every row read has arrived."""
        return self.ended and not self._arriving

    @property
    def watermark_us(self) -> int:
        """Every tuple that arrives from now on has ts >= this; END_OF_TIME_US once the stream has ended."""
        if self.exhausted:
            return END_OF_TIME_US
        if self._arrived_high_us == BEGIN_OF_TIME_US:
            return BEGIN_OF_TIME_US
        bound = 0 if self.time.model == "arrival" else self.time.max_out_of_order_us
        return self._arrived_high_us - bound

    def end(self) -> None:
        """The source has no more rows."""
        self.ended = True

    def take_released(self) -> list[TupleBatch]:
        """Remove and return the released tuples, in time order and after all returned before."""
        self._release()
        out, self._released = self._released, []
        return out

    def take_certain(self, time_us: int, *, equal: bool) -> TupleBatch:
        """As `take_released`, but only tuples before this time, or with `equal` up to and including it."""
        self._release()
        taken: list[TupleBatch] = []
        while self._released:
            head = self._released[0]
            n = int(np.searchsorted(head.ts, time_us, side="right" if equal else "left"))
            if n:
                taken.append(head.slice(0, n))
            if n < len(head):
                self._released[0] = head.slice(n, len(head))
                break
            self._released.pop(0)
        return TupleBatch.concat(taken) if taken else TupleBatch.empty()

    @property
    def waiting_bytes(self) -> int:
        """Bytes of all tuples read but not yet taken."""
        queues = (self._arriving, self._held, self._released, self._null_keys)
        return sum(b.nbytes for queue in queues for b in queue)

    @property
    def held_bytes(self) -> int:
        """Bytes of arrived tuples that wait for older rows."""
        return sum(b.nbytes for b in self._held)

    @property
    def arrived_bytes(self) -> int:
        """Bytes of arrived tuples that are not yet taken."""
        return sum(b.nbytes for queue in (self._held, self._released) for b in queue)

    @property
    def waiting_tuples(self) -> int:
        """Good tuples read but not yet taken."""
        return sum(len(b) for queue in (self._arriving, self._held, self._released) for b in queue)

    # ------------------------------------------------------------ across a crash

    def plain_state(self) -> dict[str, Any]:
        """State without tuples, ready for JSON."""
        return {
            "counts": dataclasses.asdict(self.counts),
            "high_us": self.high_us,
            "first_us": self.first_us,
            "ended": self.ended,
            "idle": self.idle,
            "arrived_high_us": self._arrived_high_us,
        }

    def tuples_kept(self) -> dict[str, list[TupleBatch]]:
        """Tuples read and not yet taken, by queue."""
        kept = {"arriving": list(self._arriving), "held": list(self._held), "released": list(self._released)}
        return {**kept, "null_keys": list(self._null_keys)} if self._keeps_null_keys else kept

    def restore(self, plain: dict[str, Any], tuples: dict[str, list[TupleBatch]]) -> None:
        """Take over the state of another intake of this stream."""
        self.counts = StreamCounts(**plain["counts"])
        self.first_us, self.ended = plain["first_us"], plain["ended"]
        self.restore_time(plain["high_us"], plain["arrived_high_us"])
        if plain["idle"]:
            self.become_active()
        self._arriving, self._held, self._released = deque(tuples["arriving"]), tuples["held"], tuples["released"]
        self._null_keys = tuples.get("null_keys", [])

    def restore_time(self, high_us: int, arrived_high_us: int) -> None:
        """Go on from these greatest times of rows that were read, and of those that have arrived."""
        self.high_us, self._arrived_high_us = high_us, arrived_high_us

    def take_over(self, plain: dict[str, Any], tuples: dict[str, list[TupleBatch]]) -> None:
        """Take over counts and tuples of an intake of this stream besides those at hand."""
        self.counts.add(StreamCounts(**plain["counts"]))
        for batch in tuples["arriving"]:
            self._arrive_later(batch)
        (self._released if self._in_order else self._held).extend(tuples["held"])
        if tuples["released"]:
            released = TupleBatch.concat([*self._released, *tuples["released"]])
            self._released = [released.take(np.argsort(released.ts, kind="stable").astype(np.int64))]
        self._null_keys += tuples.get("null_keys", [])

    def validate(self) -> None:
        for batch in self._released:
            assert (np.diff(batch.ts) >= 0).all(), f"{self.name}: released tuples out of time order"
        counts = self.counts
        assert counts.null_key + counts.late <= counts.tuples, f"{self.name}: more rows refused than read"


def take_null_keys(
    streams: tuple[StreamIntake, ...], rebase_us: int = 0, *, count_windows: bool = False
) -> tuple[TupleBatch, TupleBatch]:
    """`StreamIntake.take_null_keys` of both streams. count_windows: in the layout of tuples with sequence numbers."""
    left, right = (stream.take_null_keys(rebase_us) for stream in streams)
    return (without_sequence(left), without_sequence(right)) if count_windows else (left, right)
