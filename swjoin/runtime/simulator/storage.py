"""Disks, sinks and sources of the simulator.

What: `VirtualDisk`, an executor whose operations take virtual time and are lost in a crash; `MemorySink`, results that are
published by generation; `BatchSource`, batches with `seek`.
Why: the checkpointers of real runs make checkpoints in the simulator, too, and a crash may fall between any two of their steps.
Stays out: virtual time itself (`runtime.simulator.simulator`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np

from swjoin.core.batch import Pairs, ResultRows, RowLayout, SourceBatch
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.key_encoder import Dictionary
from swjoin.core.row_codec import StreamCodec
from swjoin.core.splits import Split

Schedule = Callable[[str, Callable[[], None]], None]  # performs an action after a random time: name, action


class VirtualDisk:
    """Operations in order, each after a random time. schedule: performs an action later."""

    def __init__(self, name: str, done: Callable[[Any], None], schedule: Schedule) -> None:
        self._name, self._done, self._schedule = name, done, schedule
        self._waiting: list[Callable[[], Any]] = []
        self.failure: BaseException | None = None

    def submit(self, operation: Callable[[], Any], nbytes: int = 0) -> None:
        self._waiting.append(operation)
        if len(self._waiting) == 1:
            self._schedule(self._name, self._next)

    def _next(self) -> None:
        if not self._waiting:
            return
        result = self._waiting.pop(0)()
        if self._waiting:
            self._schedule(self._name, self._next)
        if result is not None:
            self._done(result)

    def end(self) -> None:
        """Drop the waiting operations, after a crash or when their results are not needed."""
        self._waiting.clear()


_Written: TypeAlias = tuple[int, Pairs | ResultRows]


def _up_to(rows: ResultRows, rank: int) -> ResultRows:
    """The rows of a family that the query of this rank has."""
    assert rows.ranks is not None, "rows of no family"
    index = np.flatnonzero(rows.ranks <= rank)
    columns = None if rows.columns is None else rows.columns.take(index)
    return ResultRows(rows.id[index], rows.ts[index], columns)


class MemorySink:
    """Pairs, each batch with the number of its query, by generation. pairs: of all generations, published or not. checked:
    count of published pairs at the last check. families: those of queries that share rows, by the first one of each.

    As in a directory of result files, every process marks those that are not published with its own mark, the writer's.
    """

    def __init__(self, number: int = 0) -> None:
        self.number = number
        self.checked = self._writer = 0
        self.families: dict[int, Sequence[int]] = {}
        self._open: dict[int, list[_Written]] = {}
        self._sealed: dict[tuple[str, int], list[_Written]] = {}  # by name and writer
        self._shown: dict[str, list[_Written]] = {}

    def successor(self) -> MemorySink:
        """Of another process, in the same directory, when this one is excluded from the run and may yet go on."""
        other = MemorySink(self.number)
        other.checked, other._writer, other.families = self.checked, self._writer + 1, self.families
        other._sealed, other._shown = self._sealed, self._shown
        return other

    @property
    def pairs(self) -> list[_Written]:
        sealed = [group for (_, writer), group in self._sealed.items() if writer == self._writer]
        groups = [*self._shown.values(), *sealed, *self._open.values()]
        return [pairs for group in groups for pairs in group]

    @property
    def shown_count(self) -> int:
        """Count of published pairs, those of several queries for each of them."""
        return sum(len(pairs) for group in self._shown.values() for _, pairs in group)

    def write(self, pairs: Pairs | ResultRows, generation: int = 0, query: int = 0) -> None:
        """Rows of a family are those of each of its queries, as in files."""
        found = [(query, pairs)]
        if isinstance(pairs, ResultRows) and pairs.ranks is not None:
            found = [(member, _up_to(pairs, rank)) for rank, member in enumerate(self.families[query])]
        self._open.setdefault(generation, []).extend(found)

    def seal(self, generation: int) -> list[Path]:
        name = f"part-s{self.number}-{generation:06d}"
        self._sealed[name, self._writer] = self._open.pop(generation, [])
        return [Path(name)]

    def sync(self, files: Sequence[Path]) -> None:
        """Memory survives a simulated crash."""

    def name_of(self, file: Path) -> str:
        return file.name

    def publish(self, names: Sequence[str], generation: int) -> None:
        for name in names:
            found = [mark for sealed, mark in self._sealed if sealed == name]
            if self._writer in found:
                assert name not in self._shown, f"results {name} were published twice"
                found = [self._writer]
            elif name in self._shown:
                continue
            if len(found) != 1:  # as `connectors.files.sink.only_hidden`
                raise RunFailed(f"results {name}, which a checkpoint holds, are {'in several files' if found else 'gone'}")
            self._shown[name] = self._sealed.pop((name, found[0]))

    def restore(self, names: Sequence[str], generation: int) -> None:
        self.publish(names, generation)
        self._open.clear()
        self._sealed.clear()
        surplus = self._shown.keys() - set(names)
        assert not surplus, f"results {sorted(surplus)} could be seen, and no checkpoint holds them"

    def finish(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing is open."""

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing is open."""

    def abort(self, *, started: bool = True) -> None:
        """Nothing to mark."""


def _times_of(batch: SourceBatch) -> list[int]:
    """The times of a batch's rows that have one."""
    times: list[int] = (batch.ts if batch.ts_valid is None else batch.ts[batch.ts_valid]).tolist()
    return times


class SideRows:
    """Rows that gateways set aside: stream, rows, reason. A crash takes those since the restored checkpoint."""

    def __init__(self) -> None:
        self._kept: list[tuple[int, SourceBatch, str]] = []  # before the last crash
        self._new: list[list[tuple[int, SourceBatch, str]]] = []  # since then, by gateway
        self._counts: dict[tuple[int, int], int] = {}  # of these, at the checkpoint that ends a generation, by gateway

    def begin(self, gateway_count: int, generation: int | None) -> None:
        """New gateways; generation: that ends with the restored checkpoint."""
        for number, rows in enumerate(self._new if generation is not None else ()):
            self._kept += rows[: self._counts.get((generation or 0, number), 0)]
        self._new = [[] for _ in range(gateway_count)]
        self._counts.clear()

    def add(self, gateway: int, stream: int, batch: SourceBatch, reason: str) -> None:
        self._new[gateway].append((stream, batch, reason))

    def cut(self, gateway: int, generation: int) -> None:
        """The gateway saves its part of a checkpoint."""
        self._counts[generation, gateway] = len(self._new[gateway])

    @property
    def all(self) -> list[tuple[int, SourceBatch, str]]:
        return [*self._kept, *(row for rows in self._new for row in rows)]


class BatchSource:
    """One stream's batches, in order."""

    rows_total: int | None = None
    dictionary: Dictionary | None = None

    def __init__(self, batches: Sequence[SourceBatch], layout: RowLayout | None) -> None:
        self.codec = StreamCodec((), ("key",), None)
        self.layout = layout
        self._batches = list(batches)
        self._next, self._end = 0, len(self._batches)

    def read(self) -> SourceBatch | None:
        if self._next >= self._end:
            return None
        self._next += 1
        return self._batches[self._next - 1]

    def ready(self, patience_s: float) -> bool:
        return True

    def seek(self, row: int) -> None:
        """Empty batches at that row are read again."""
        self._next, self._end = self._batch_at(row), len(self._batches)

    def _batch_at(self, row: int) -> int:
        ends = np.cumsum([0, *(len(batch) for batch in self._batches)])
        assert row in ends, f"row {row} is in the middle of a batch"
        return int(np.searchsorted(ends, row, side="left"))

    def splits(self, reach_us: int) -> list[Split] | None:
        """Splits of one to three batches; None for some inputs, which one gateway reads."""
        if len(self._batches) % 5 == 4:
            return None
        found: list[Split] = []
        row = at = 0
        before_us = BEGIN_OF_TIME_US
        while at < len(self._batches):
            mine = self._batches[at : at + 1 + at % 3]
            rows, times_us = sum(map(len, mine)), [t for batch in mine for t in _times_of(batch)]
            low_us, high_us = min(times_us, default=END_OF_TIME_US), max(times_us, default=BEGIN_OF_TIME_US)
            found.append(Split(row, rows, low_us, high_us, before_us))
            row, at, before_us = row + rows, at + len(mine), max(before_us, high_us)
        return found

    def open_split(self, split: Split, skip: int = 0) -> int:
        self._next = self._batch_at(split.row + skip)
        self._end = len(self._batches) if split.rows < 0 else self._batch_at(split.row + split.rows)
        if split.rows == 0:
            self._end = self._next
        return max((t for batch in self._batches[: self._next] for t in _times_of(batch)), default=BEGIN_OF_TIME_US)

    def origin_us(self) -> int | None:
        return next((t for batch in self._batches for t in _times_of(batch)), None)

    def locate(self, row_id: int) -> str:
        return f"row {row_id}"

    def close(self, whole: dict[str, Any] | None = None) -> None:
        """Nothing is open."""
