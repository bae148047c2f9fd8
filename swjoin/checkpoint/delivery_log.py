"""The delivery log: a slave's part of a checkpoint.

What: `SegmentLog` writes deliveries to the segment of their generation, in a thread, and seals the segment for a checkpoint;
`replay` reads segments back in the order of delivery.
Why: window state is a function of the delivered tuples. Writing these once, as the frames in which they came, is incremental by
nature, and can be restored on any number of slaves; expired tuples are dropped by whole segments. A delivery stays in memory
while there is room, and is never written if it expires there: with short windows and long intervals most of the log is not.
Stays out: which segments a checkpoint needs (`checkpoint.store`), joining (`operators.window_join`).
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
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

UNWRITTEN_LIMIT_BYTES = 128 << 20  # limit of unwritten deliveries of one slave


@dataclass(frozen=True)
class Segment:
    """The deliveries of one slave in one generation. newest_us: highest time of the left and of the right tuples. stage: of the
    slave in a plan."""

    name: str
    generation: int
    sub_group: int
    nbytes: int
    count: int
    tuples: int
    newest_us: tuple[int, int]
    stage: int = 0

    def to_plain(self) -> dict[str, Any]:
        return asdict(self)

    @staticmethod
    def from_plain(plain: dict[str, Any]) -> Segment:
        left, right = plain["newest_us"]
        values = {field.name: plain[field.name] for field in fields(Segment)}
        return Segment(**{**values, "newest_us": (left, right)})

    def alive(self, alive_us: tuple[int, int]) -> bool:
        """Whether some of its tuples may still match. alive_us: of its stage."""
        return self.newest_us[LEFT] >= alive_us[LEFT] or self.newest_us[RIGHT] >= alive_us[RIGHT]


@dataclass(frozen=True)
class _Unwritten:
    """A delivery in memory. watermarks: the delivery without its tuples; None where only tuples are logged."""

    frame: U8
    tuples: int
    newest_us: tuple[int, int]
    watermarks: Delivery | None


class _Open:
    """A segment being written. needed_us: times below which no checkpoint from this generation on needs its tuples."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: RecordFile | None = None
        self.tuples = 0
        self.newest_us = [BEGIN_OF_TIME_US, BEGIN_OF_TIME_US]
        self.needed_us = (BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self.unwritten_bytes = 0
        self._unwritten: deque[_Unwritten] = deque()

    def add(self, delivery: _Unwritten) -> None:
        self._unwritten.append(delivery)
        self.unwritten_bytes += delivery.frame.nbytes

    def flush(self, limit_bytes: int) -> None:
        """Drop the oldest deliveries that are not needed, and write further ones until at most `limit_bytes` are left."""
        while self._unwritten:
            oldest = self._unwritten[0]
            needed = any(newest >= limit for newest, limit in zip(oldest.newest_us, self.needed_us, strict=True))
            if needed and self.unwritten_bytes <= limit_bytes:
                return
            self._unwritten.popleft()
            self.unwritten_bytes -= oldest.frame.nbytes
            if needed:
                self._write(oldest.frame)
                self.tuples += oldest.tuples
                for stream in (LEFT, RIGHT):
                    self.newest_us[stream] = max(self.newest_us[stream], oldest.newest_us[stream])
            elif oldest.watermarks is not None:
                self._write(pack_delivery(oldest.watermarks))

    def _write(self, frame: U8) -> None:
        if self.file is None:
            self.file = RecordFile(self.path)
        self.file.append(frame)


def _newest(batch: TupleBatch) -> int:
    return int(batch.ts.max(initial=BEGIN_OF_TIME_US))


def _without_tuples(delivery: Delivery) -> Delivery:
    nothing, none = TupleBatch.empty(), np.empty(0, np.int64)
    return replace(
        delivery, groups=none, left_counts=none, right_counts=none, left=nothing, right=nothing, null_keys=(nothing, nothing)
    )


class SegmentLog:
    """One slave's log. done: takes PartSaved when a segment is durable, or an exception; called in the log's thread.

    promises: deliveries without tuples are logged too, for their watermarks.
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
        stage: int = 0,
    ) -> None:
        self._folder, self._slave, self._promises, self._stage = folder, slave, promises, stage
        self._stem = f"segment-{incarnation:04d}-{slave:04d}"
        self._sub_group = sub_group_of(slave, sub_group_count)
        self._open: dict[int, _Open] = {}  # by generation
        self._background = executors(f"log of slave {slave}", done)

    def append(self, delivery: Delivery, frame: U8 | None = None) -> None:
        """Log a delivery. frame: its bytes, if it came over a wire. Waits while the disk is too far behind."""
        if len(delivery.left) or len(delivery.right) or self._promises:
            self._background.submit(lambda: self._append(delivery, frame), delivery.nbytes)

    def _append(self, delivery: Delivery, frame: U8 | None) -> None:
        segment = self._open.get(delivery.generation)
        if segment is None:
            segment = self._open[delivery.generation] = _Open(self._folder / f"{self._stem}-{delivery.generation:06d}.log")
        # Tuples without a frame are slices of those of all slaves, and would keep all of them in memory.
        packed = pack_delivery(delivery) if frame is None else frame
        newest_us = _newest(delivery.left), _newest(delivery.right)
        watermarks = _without_tuples(delivery) if self._promises else None
        segment.add(_Unwritten(packed, len(delivery.left) + len(delivery.right), newest_us, watermarks))
        segment.needed_us = delivery.needed_us  # its own: the next generation needs less
        room = UNWRITTEN_LIMIT_BYTES
        for generation in sorted(self._open, reverse=True):
            self._open[generation].flush(room)
            room = max(0, room - self._open[generation].unwritten_bytes)

    def seal(self, generation: int, content: dict[str, Any]) -> None:
        """End a generation: its deliveries have all been appended. PartSaved has `content` and the segment."""
        self._background.submit(lambda: self._seal(generation, content))

    def _seal(self, generation: int, content: dict[str, Any]) -> PartSaved:
        segment, sealed = self._open.pop(generation, None), None
        if segment is not None:
            segment.flush(-1)
        if segment is not None and segment.file is not None:
            file = segment.file
            file.close()
            sync_folder(self._folder)
            newest = (segment.newest_us[LEFT], segment.newest_us[RIGHT])
            size = file.nbytes, file.count, segment.tuples
            sealed = Segment(file.path.name, generation, self._sub_group, *size, newest, self._stage)
        plain = None if sealed is None else sealed.to_plain()
        return PartSaved(generation, f"slave {self._slave}", {**content, "segment": plain})

    def close(self) -> None:
        """End the thread; unsealed segments belong to no checkpoint."""
        self._background.end()
        for segment in self._open.values():
            if segment.file is not None:
                segment.file.discard()


def living(segments: Sequence[Segment], alive_us: Mapping[int, tuple[int, int]]) -> list[Segment]:
    """All segments of every stage's generations that have live tuples. alive_us: of every stage."""
    generations = {(s.stage, s.generation) for s in segments if s.alive(alive_us[s.stage])}
    return [s for s in segments if (s.stage, s.generation) in generations]


def replay(folder: Path, segments: Sequence[Segment], mine: Bool, alive_us: tuple[int, int]) -> Iterator[Delivery]:
    """The live tuples of partition-groups with `mine[group]`, in the order of delivery. segments: of one stage.

    RunFailed, with file and record, when a segment is corrupt.
    """
    for _, deliveries in replay_epochs(folder, [s for s in segments if s.alive(alive_us)], mine, alive_us):
        yield from deliveries


def replay_epochs(
    folder: Path, segments: Sequence[Segment], mine: Bool, alive_us: tuple[int, int]
) -> Iterator[tuple[tuple[int, int], list[Delivery]]]:
    """As `replay`, by distribution epochs: (lowest watermarks of its deliveries, its deliveries with tuples of `mine`)."""
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
    """The live tuples of the partition-groups to keep, and the count of each."""
    group = np.repeat(np.arange(len(counts)), counts)
    index = np.flatnonzero(keep[group] & (batch.ts >= alive_us))
    if len(index) == len(batch):
        return batch, counts
    return batch.take(index), np.bincount(group[index], minlength=len(counts)).astype(np.int64)
