"""What operators of keyed stages with one port have in common: their rows come out at ends of epochs, once, and final.

What: `KeyedOperator`; `WindowOperator`, one that has windows of time, in panes; `Limits`; `LeavingState` and `ComingState`, the
two ends of a state movement.
Why: they differ in what they keep of rows, and in which rows come out when a watermark has passed.
Stays out: what is kept (`operators.aggregation`, `operators.ranking`, `operators.sessions`).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar, cast

import numpy as np

from swjoin.core.batch import I64, LEFT, U64, ResultRows, TupleBatch
from swjoin.core.data_messages import Delivery, GroupResults, StateChunk
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US, EpochIndex, GroupId
from swjoin.core.time_windows import TimeWindows
from swjoin.operators.join_operator import MoveId
from swjoin.operators.join_step import LIGHT_ROWS, Step, WindowMemory, Work, check_columns
from swjoin.state.delay_histogram import record_delays

if TYPE_CHECKING:
    from swjoin.state.arrays import Inputs


class HasGroups(Protocol):
    """groups: partition-groups of what it has, int64 (n,)."""

    @property
    def groups(self) -> I64: ...
    def __len__(self) -> int: ...


Pane = TypeVar("Pane", bound=HasGroups)
_NO_GROUPS: I64 = np.empty(0, np.int64)


class Limits(NamedTuple):
    """result_bytes: most bytes of rows per step, about. window_bytes: most of the state."""

    result_bytes: int
    window_bytes: int


class KeyedOperator(ABC):
    """name: owner, for messages."""

    def __init__(self, limits: Limits, name: str) -> None:
        self._limits, self._name = limits, name
        self._open: Work | None = None
        self._at = 0  # rows of the open delivery that are accumulated
        self._groups: I64 = np.empty(0, np.int64)  # partition-groups of its rows
        self._out: Iterator[tuple[ResultRows, I64]] | None = None  # rows of the windows that close, and partition-groups
        self._came_us: int | None = None  # arrival of the newest row of the open delivery
        self._peak_bytes = 0
        self.arriving: set[int] = set()  # partition-groups of which some chunks have come, and not the last one

    @abstractmethod
    def _accumulate(self, rows: TupleBatch, groups: I64, where: str = "") -> None:
        """groups: partition-groups of the rows. where: of rows that no closed window may have; "": those are left out."""

    @abstractmethod
    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows that are final by this time, in pieces; of each row its partition-group."""

    @abstractmethod
    def _pass(self, watermark_us: int) -> None:
        """What is final by this time is out."""

    @abstractmethod
    def take_chunk(self, chunk: StateChunk) -> None:
        """State of a partition-group that comes. RunFailed if it does not fit."""

    @abstractmethod
    def group_ids(self) -> list[GroupId]: ...

    @abstractmethod
    def window_tuples(self) -> tuple[int, int]: ...

    @abstractmethod
    def window_bytes(self) -> int: ...

    def check_rows(self, delivery: Delivery, where: str) -> None:
        check_columns(delivery, where)

    def open(self, delivery: Delivery) -> Work:
        """Start a delivery: rows of the left side."""
        assert self._open is None, "the delivery before is not done"
        nothing: U64 = np.zeros(len(delivery.groups), np.uint64)
        results = GroupResults(delivery.groups, np.zeros(len(delivery.groups), np.int64), nothing)
        self._open, self._at = Work(delivery, cast("Inputs", None), results), 0
        self._groups = np.repeat(delivery.groups, delivery.left_counts)
        self._came_us = int(delivery.left.arrival_us.max()) if len(delivery.left) else None
        return self._open

    def step(self, work: Work, now_us: int, tuple_budget: int) -> Step[ResultRows]:
        """Accumulate some rows; after the last one of an epoch, the next rows of windows that close, in pieces of bounded
        size. now_us: their production time."""
        assert work is self._open, "step on a delivery that is not open"
        delivery, start = work.delivery, self._at
        if start < len(delivery.left):
            self._at = stop = min(len(delivery.left), start + LIGHT_ROWS * tuple_budget)
            self._accumulate(delivery.left.slice(start, stop), self._groups[start:stop], f"epoch {delivery.epoch}")
            return Step(None, self._ends_here(delivery), stop - start)
        if not delivery.final:
            self._open = None
            return Step(None, True, 0)
        if self._out is None:
            assert not self.arriving, "what ends comes out while a partition-group arrives"
            self._out = self._closed(delivery.left_time_us)
        for rows, groups in self._out:
            self._count(work, rows, groups)
            if self._came_us is not None:
                record_delays(now_us, np.full(len(rows), self._came_us, np.int64), work.stats, work.delay_histogram)
            return Step(rows, False, 0, groups)
        self._open = self._out = None
        return Step(None, True, 0)

    def _ends_here(self, delivery: Delivery) -> bool:
        """Whether the delivery is done: nothing closes before the end of an epoch."""
        if self._at < len(delivery.left) or delivery.final:
            return False
        self._open = None
        return True

    def _count(self, work: Work, rows: ResultRows, groups: I64) -> None:
        """Rows that came out, by partition-group."""
        before = work.unmatched or GroupResults(_NO_GROUPS, _NO_GROUPS, _NO_GROUPS.astype(np.uint64))
        size = 1 + max(int(groups.max()), int(before.groups.max(initial=0)))
        counts, digests = np.bincount(groups, minlength=size), np.zeros(size, np.uint64)
        counts[before.groups] += before.counts
        digests[before.groups] = before.digests
        np.add.at(digests, groups, rows.id)
        which = np.flatnonzero(counts)
        work.unmatched = GroupResults(which, counts[which], digests[which])

    # ------------------------------------------------------------ restore, moves

    def restore(self, delivery: Delivery) -> None:
        """Accumulate rows that were accumulated before a crash; those of closed windows are left out."""
        self._accumulate(delivery.left, np.repeat(delivery.groups, delivery.left_counts))

    def restored_until(self, times_us: tuple[int, int]) -> None:  # noqa: B027 - `restored` has the last watermark
        """Nothing."""

    def restored(self, times_us: I64) -> None:
        """What was final by these watermarks, which are the same for all partition-groups, is out."""
        self._pass(int(times_us[:, 0].min()))

    def _leaves(self, pending: tuple[TupleBatch, TupleBatch]) -> None:
        """A partition-group leaves between two deliveries only."""
        assert self._open is None, "a partition-group leaves between deliveries"
        assert not any(map(len, pending)), "delivered rows of a partition-group that leaves"

    def import_group(self, first: StateChunk) -> ComingState:
        return ComingState(self, self.arriving)

    def _check_memory(self) -> None:
        held = self.window_bytes()
        self._peak_bytes = max(self._peak_bytes, held)
        if held > self._limits.window_bytes:
            text = f"{self._name}: windows hold {held} bytes, above the limit of {self._limits.window_bytes}"
            raise RunFailed(f"{text} (module.window_bytes)")

    @property
    def may_append(self) -> bool:
        return self._open is None

    def window_memory(self) -> WindowMemory:
        return WindowMemory(self._peak_bytes, self._peak_bytes, 0, self.window_bytes(), self.window_tuples()[0])

    def mini_group_count(self) -> int:
        return 0

    def block_count(self) -> int:
        return 0


class WindowOperator(KeyedOperator, Generic[Pane]):
    """Rows are in panes, of which windows consist. Panes of a bucket are kept as one."""

    def __init__(self, windows: TimeWindows, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._windows = windows
        self._panes: dict[int, Pane] = {}  # by start of the bucket
        self._next_us = BEGIN_OF_TIME_US  # start of the first window that is not closed

    @abstractmethod
    def _open_part(self, start_us: int, pane: Pane) -> Pane | None:
        """What a bucket has of windows from `_next_us` on; None if nothing."""

    def _left(self, start_us: int, pane: Pane) -> None:
        """No window that is open has this pane."""

    def _in_open_panes(self, rows: TupleBatch, groups: I64, where: str) -> tuple[TupleBatch, I64, I64]:
        """The rows that are in windows, their partition-groups and panes. where: as in `_accumulate`."""
        if (inside := self._windows.inside(rows.ts)) is not None and not inside.all():
            index = np.flatnonzero(inside)
            rows, groups = rows.take(index), groups[index]
        panes = self._windows.panes(rows.ts)
        if len(rows) and int(panes.min()) < self._next_us:
            if where:
                late_us = int(rows.ts.min())
                raise RunFailed(f"{self._name}, {where}: a row of time {late_us} us came after its windows had closed")
            index = np.flatnonzero(panes >= self._next_us)
            rows, groups, panes = rows.take(index), groups[index], panes[index]
        return rows, groups, panes

    def _closing(self, watermark_us: int) -> Iterator[tuple[int, int]]:
        """The windows that end by this time and have rows, oldest first: their start and end. They are closed one by one; those
        of buckets at once, and start and end are of them all."""
        windows, panes = self._windows, deque(sorted(self._panes))
        if windows.in_buckets:
            end = min(windows.first_after(watermark_us), END_OF_TIME_US)
            if panes and panes[0] < end:
                yield panes[0], end
            panes.clear()
        while panes:
            start = max(windows.first_with(panes[0]), self._next_us)
            if start + windows.size_us > watermark_us:
                break
            yield start, start + windows.size_us
            self._next_us = start + windows.slide_us
            while panes and panes[0] < self._next_us:
                pane = panes.popleft()
                self._left(pane, self._panes.pop(pane))
        self._pass(watermark_us)

    def _pass(self, watermark_us: int) -> None:
        self._next_us = min(max(self._next_us, self._windows.first_after(watermark_us)), END_OF_TIME_US)
        self._forget()

    def _forget(self) -> None:
        for start in [start for start in self._panes if start < self._next_us]:
            pane, whole = self._panes.pop(start), start + self._windows.bucket_us <= self._next_us
            rest = None if whole or not self._windows.in_buckets else self._open_part(start, pane)
            if rest is None:
                self._left(start, pane)
            else:
                self._panes[start] = rest

    def group_ids(self) -> list[GroupId]:
        found = [np.unique(pane.groups) for pane in self._panes.values()]
        return [GroupId(int(group)) for group in np.unique(np.concatenate(found))] if found else []

    def tuples_by_group(self, partition_count: int) -> I64:
        counts = np.zeros(partition_count, np.int64)
        for pane in self._panes.values():
            counts += np.bincount(pane.groups, minlength=partition_count)
        return counts

    def window_tuples(self) -> tuple[int, int]:
        """Groups, or rows, of all panes."""
        return sum(map(len, self._panes.values())), 0

    def _check_open(self, chunk: StateChunk) -> None:
        """RunFailed if other windows are open here than where a chunk comes from."""
        if chunk.times_us[0] != self._next_us:
            here = f"its windows are open from {chunk.times_us[0]} us on, those here from {self._next_us} us"
            raise RunFailed(f"{self._name}: partition-group {chunk.group}: {here}")


class StatePart(NamedTuple):
    """Rows of a partition-group's state, of a layout: key and time of what is kept, as row or columns. stream: LEFT or RIGHT.
    pending: delivered tuples that the operator had not taken."""

    rows: TupleBatch
    stream: int = LEFT
    pending: bool = False


class LeavingState:
    """A partition-group's state, as it leaves. times_us: the watermarks up to which it is final."""

    def __init__(self, move_id: MoveId, parts: Sequence[StatePart], times_us: tuple[int, int], chunk_bytes: int) -> None:
        self._move_id, self._times_us, self._index = move_id, times_us, 0
        self._chunks: list[StatePart] = []
        for part in parts:
            rows = part.rows
            most = max(1, chunk_bytes * len(rows) // max(1, rows.nbytes))
            slices = (rows.slice(at, min(len(rows), at + most)) for at in range(0, len(rows), most))
            self._chunks += [part._replace(rows=some) for some in slices]
        self._chunks = self._chunks or [StatePart(parts[0].rows if parts else TupleBatch.empty())]
        self.tuples = self.nbytes = 0
        self.done = False

    def waiting_tuples(self, stream: int) -> int:
        """Pending tuples that are still here."""
        return sum(len(part.rows) for part in self._chunks[self._index :] if part.pending and part.stream == stream)

    def next_chunk(self) -> StateChunk:
        """The next chunk; `done` once it is the last one."""
        rows, stream, pending = self._chunks[self._index]
        self.done = self._index == len(self._chunks) - 1
        m, some = self._move_id, 0 if pending else min(1, len(rows))
        head = (m.query, m.move, m.group, m.supplier, m.consumer, self._index, self.done, self._times_us, stream, pending)
        chunk = StateChunk(*head, np.zeros(some, np.int64), np.full(some, len(rows), np.int64), rows)
        self._index += 1
        self.tuples += len(rows)
        self.nbytes += chunk.nbytes
        return chunk


class TakesChunks(Protocol):
    def take_chunk(self, chunk: StateChunk) -> None: ...


class ComingState:
    """The other end of a `LeavingState`. arriving: where its partition-group is until its last chunk."""

    def __init__(self, operator: TakesChunks, arriving: set[int]) -> None:
        self._operator, self._arriving, self._next = operator, arriving, 0
        self.tuples = self.nbytes = 0
        self.complete = False

    def add(self, chunk: StateChunk) -> None:
        """Install the next chunk. RunFailed when it does not fit."""
        if chunk.index != self._next or self.complete:
            raise RunFailed(f"partition-group {chunk.group}: chunk {chunk.index} came where {self._next} was expected")
        self._take(chunk)
        (self._arriving.discard if chunk.last else self._arriving.add)(int(chunk.group))
        self._next += 1
        self.tuples += len(chunk.tuples)
        self.nbytes += chunk.nbytes
        self.complete = chunk.last

    def _take(self, chunk: StateChunk) -> None:
        self._operator.take_chunk(chunk)

    def waiting_tuples(self, stream: int) -> int:
        return 0

    def settle(self, epoch: EpochIndex) -> Work | None:
        return None
