"""A slave's part of a checkpoint: the log of what entered its windows.

What: `SegmentLog` writes deliveries to the segment of their generation, in a thread, and seals the segment when a checkpoint
wants it; `replay` reads segments back, in the order of delivery, partition-group by partition-group.
Why: window state is a function of the tuples that were delivered. Writing those once, as the frames in which they came, is
incremental by nature, and can be restored on any number of slaves; what has expired is dropped by whole segments. A delivery is
held back in memory for as long as there is room, and is never written if it has expired by then: where windows are short
beside the interval, most of the log is.
Stays out: which segments a checkpoint needs (`checkpoint.store`), joining (`operators.window_join`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields, replace
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np

from swjoin.cluster.messages import PartSaved
from swjoin.cluster.wire import pack_delivery, unpack_delivery
from swjoin.core.batch import I64, LEFT, RIGHT, U8, Bool, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US
from swjoin.core.storage import Background, Executors, RecordFile, read_records, sync_folder
from swjoin.policy.epochs import sub_group_of

HELD_BYTES = 128 << 20  # of deliveries to one slave, in memory


@dataclass(frozen=True)
class Segment:
    """The deliveries of one slave in one generation. newest_us: of the left and of the right tuples."""

    name: str
    generation: int
    sub_group: int
    nbytes: int
    count: int
    tuples: int
    newest_us: tuple[int, int]

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Segment:
        left, right = plain["newest_us"]
        known = {field.name: plain[field.name] for field in fields(Segment)}
        return Segment(**{**known, "newest_us": (left, right)})

    def alive(self, alive_us: tuple[int, int]) -> bool:
        """Whether some tuple of it may still be needed."""
        return self.newest_us[LEFT] >= alive_us[LEFT] or self.newest_us[RIGHT] >= alive_us[RIGHT]


@dataclass(frozen=True)
class _Held:
    """A delivery that is in no file yet. promise: what is left of it without tuples, where that is wanted."""

    frame: U8
    tuples: int
    newest_us: tuple[int, int]
    promise: Delivery | None


class _Open:
    """A segment being written. needed_us: what no checkpoint from this generation's on needs, as far as is known."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: RecordFile | None = None
        self.tuples = 0
        self.newest_us = [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US]
        self.needed_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self.held_bytes = 0
        self._held: deque[_Held] = deque()

    def hold(self, held: _Held) -> None:
        self._held.append(held)
        self.held_bytes += held.frame.nbytes

    def let_go(self, most_bytes: int) -> None:
        """Forget the oldest deliveries as long as they are needed no more, and write more of them until so much is held."""
        while self._held:
            held = self._held[0]
            needed = any(newest >= limit for newest, limit in zip(held.newest_us, self.needed_us, strict=True))
            if needed and self.held_bytes <= most_bytes:
                return
            self._held.popleft()
            self.held_bytes -= held.frame.nbytes
            if needed:
                self._write(held.frame)
                self.tuples += held.tuples
                for stream in (LEFT, RIGHT):
                    self.newest_us[stream] = max(self.newest_us[stream], held.newest_us[stream])
            elif held.promise is not None:
                self._write(pack_delivery(held.promise))

    def _write(self, frame: U8) -> None:
        if self.file is None:
            self.file = RecordFile(self.path)
        self.file.append(frame)


def _newest(batch: TupleBatch) -> int:
    return int(batch.ts.max(initial=BEGIN_OF_TIME_US))


def _promise(delivery: Delivery) -> Delivery:
    """What is left of a delivery without tuples."""
    nothing, none = TupleBatch.empty(), np.empty(0, np.int64)
    return replace(
        delivery, groups=none, left_counts=none, right_counts=none, left=nothing, right=nothing, null_keys=(nothing, nothing)
    )


class SegmentLog:
    """One slave's log. done: takes PartSaved when a segment is durable, or an exception; called in the log's thread.

    promises: also deliveries without tuples are wanted, for what they promise.
    """

    def __init__(
        self,
        folder: Path,
        incarnation: int,
        slave: int,
        sub_group_count: int,
        done: Callable[[Any], None],
        executors: Executors = Background,
        *,
        promises: bool = False,
    ) -> None:
        self._folder, self._slave, self._promises = folder, slave, promises
        self._stem = f"segment-{incarnation:04d}-{slave:04d}"
        self._sub_group = sub_group_of(slave, sub_group_count)
        self._open: dict[int, _Open] = {}  # by generation
        self._background = executors(f"log of slave {slave}", done)

    def append(self, delivery: Delivery, frame: U8 | None = None) -> None:
        """Keep a delivery, which came as this frame, if as one. Waits while the disk is too far behind."""
        if len(delivery.left) or len(delivery.right) or self._promises:
            self._background.submit(lambda: self._append(delivery, frame))

    def _append(self, delivery: Delivery, frame: U8 | None) -> None:
        segment = self._open.get(delivery.generation)
        if segment is None:
            segment = self._open[delivery.generation] = _Open(self._folder / f"{self._stem}-{delivery.generation:06d}.log")
        # Without a frame the tuples are a part of what all slaves got; as a frame they keep nothing else in memory.
        whole = pack_delivery(delivery) if frame is None else frame
        newest_us = _newest(delivery.left), _newest(delivery.right)
        promise = _promise(delivery) if self._promises else None
        segment.hold(_Held(whole, len(delivery.left) + len(delivery.right), newest_us, promise))
        segment.needed_us = delivery.needed_us  # its own: the next generation needs less
        room = HELD_BYTES
        for held in sorted(self._open, reverse=True):
            self._open[held].let_go(room)
            room = max(0, room - self._open[held].held_bytes)

    def seal(self, generation: int, content: dict[str, Any]) -> None:
        """Everything of this generation has been appended; PartSaved with `content` once it is durable."""
        self._background.submit(lambda: self._seal(generation, content))

    def _seal(self, generation: int, content: dict[str, Any]) -> PartSaved:
        segment, sealed = self._open.pop(generation, None), None
        if segment is not None:
            segment.let_go(-1)
        if segment is not None and segment.file is not None:
            file = segment.file
            file.close()
            sync_folder(self._folder)
            newest = (segment.newest_us[LEFT], segment.newest_us[RIGHT])
            sealed = Segment(file.path.name, generation, self._sub_group, file.nbytes, file.count, segment.tuples, newest)
        plain = None if sealed is None else sealed.to_plain()
        return PartSaved(generation, f"slave {self._slave}", {**content, "segment": plain})

    def close(self) -> None:
        """End the thread; unsealed segments belong to no checkpoint."""
        self._background.end()
        for segment in self._open.values():
            if segment.file is not None:
                segment.file.discard()


def living(segments: Sequence[Segment], alive_us: tuple[int, int], *, whole: bool) -> list[Segment]:
    """Segments that are needed. whole: all of a generation, or none."""
    generations = {s.generation for s in segments if s.alive(alive_us)}
    return [s for s in segments if (s.generation in generations if whole else s.alive(alive_us))]


def replay(folder: Path, segments: Sequence[Segment], mine: Bool, alive_us: tuple[int, int]) -> Iterator[Delivery]:
    """What entered the windows of partition-groups with `mine[group]`, in the order in which it was delivered.

    Only tuples that may still be needed: a window may be long on one side only. RunFailed, with file and place, when a segment
    is not what it was.
    """
    for _, deliveries in replay_epochs(folder, living(segments, alive_us, whole=False), mine, alive_us):
        yield from deliveries


def replay_epochs(
    folder: Path, segments: Sequence[Segment], mine: Bool, alive_us: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], list[Delivery]]]:
    """The same by distribution epochs: the least times that one of its deliveries promised, and what is `mine` of them."""
    for generation in sorted({s.generation for s in segments}):
        logs = [_deliveries(folder, s, len(mine)) for s in segments if s.generation == generation]
        merged = heapq.merge(*logs, key=lambda item: item[:2])
        for _, same in groupby(merged, key=lambda item: item[0]):
            deliveries = [delivery for _, _, delivery in same]
            times_us = min(d.left_time_us for d in deliveries), min(d.right_time_us for d in deliveries)
            yield times_us, [share for delivery in deliveries for share in _share(delivery, mine, alive_us)]


def _deliveries(folder: Path, segment: Segment, group_count: int) -> Iterator[tuple[int, int, Delivery]]:
    path = folder / segment.name
    for number, frame in enumerate(read_records(path, segment.nbytes, segment.count)):
        try:
            delivery = unpack_delivery(frame)
        except RunFailed as error:
            raise RunFailed(f"{path}: record {number}: {error}") from None
        if len(delivery.groups) and delivery.groups[-1] >= group_count:
            raise RunFailed(f"{path}: record {number}: partition-group {delivery.groups[-1]} of {group_count}")
        yield delivery.epoch, segment.sub_group, delivery


def _share(delivery: Delivery, mine: Bool, alive_us: tuple[int, int]) -> Iterator[Delivery]:
    keep = mine[delivery.groups]
    left, left_counts = _kept(delivery.left, delivery.left_counts, keep, alive_us[LEFT])
    right, right_counts = _kept(delivery.right, delivery.right_counts, keep, alive_us[RIGHT])
    if not len(left) and not len(right):
        return
    yield replace(
        delivery,
        groups=delivery.groups[keep],
        left_counts=left_counts[keep],
        right_counts=right_counts[keep],
        left=left,
        right=right,
    )


def _kept(batch: TupleBatch, counts: I64, keep: Bool, alive_us: int) -> tuple[TupleBatch, I64]:
    """The tuples that are alive, of the partition-groups to keep, and how many of each there are."""
    place = np.repeat(np.arange(len(counts)), counts)
    index = np.flatnonzero(keep[place] & (batch.ts >= alive_us))
    if len(index) == len(batch):
        return batch, counts
    return batch.take(index), np.bincount(place[index], minlength=len(counts)).astype(np.int64)
