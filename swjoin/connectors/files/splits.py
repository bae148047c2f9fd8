"""Splits of files: row groups and record batches, and ranges of those that span much time.

What: `SplitReader`: the splits of an input, and the rows of one split after another.
Why: a gateway reads the splits that it is dealt, in any order. It has to know the greatest time of all rows before them, of
which others read the most.
Stays out: fragments of files (`connectors.files.fragments`), encoding rows (`connectors.files.source`).

A thread decodes the fragment that is read, and after it the first rows of the one that probably follows, which is as far away
as this one was from the last. Rows of a row group can only be decoded in order: who reads a range decodes those before it, too.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from swjoin.connectors.files.fragments import OpenFile, RowGroups, why_whole
from swjoin.connectors.files.inputs import File, file_format, refusing
from swjoin.connectors.files.read_ahead import ReadAhead
from swjoin.connectors.source import BATCH_ROWS
from swjoin.connectors.times import TimeColumn, times_us
from swjoin.core.batch import I64, Bool
from swjoin.core.errors import RunFailed, UserError
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US
from swjoin.core.splits import Split, range_ends

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class Fragment:
    """A part of an input that is decoded alone. file: index of its file. index: its own, in that file. row: position of its
    first row in the input. rows: their number, not 0."""

    file: int
    index: int
    row: int
    rows: int

    @property
    def end(self) -> int:
        return self.row + self.rows


@dataclass(frozen=True)
class SplitInput:
    """What is read.

    columns: names. times: values of the time column and positions of their rows -> times and which rows have one; UserError
    names the row. open_file: by its index; UserError when it cannot be read or has other columns. counts: by file, rows of each
    fragment; None: not known yet.
    """

    files: list[File]
    columns: list[str]
    time: TimeColumn
    times: Callable[[pa.Array, I64], tuple[I64, Bool | None]]
    open_file: Callable[[int], OpenFile]
    counts: list[list[int]] | None


def greatest_us(ts: I64, valid: Bool | None) -> int:
    """Greatest time, BEGIN_OF_TIME_US if no row has one. valid: which rows have a time; None: all."""
    return int(ts.max(initial=BEGIN_OF_TIME_US) if valid is None else ts.max(initial=BEGIN_OF_TIME_US, where=valid))


def least_us(ts: I64, valid: Bool | None) -> int:
    """Least time, END_OF_TIME_US if no row has one."""
    return int(ts.min(initial=END_OF_TIME_US) if valid is None else ts.min(initial=END_OF_TIME_US, where=valid))


class _Files:
    """Reads fragments; the file that was read last stays open, since splits in a row are in one file."""

    def __init__(self, given: SplitInput) -> None:
        self._given = given
        self._last: tuple[int, OpenFile] | None = None

    def open(self, file: int) -> OpenFile:
        if self._last is None or self._last[0] != file:
            self._last = None
            self._last = file, self._given.open_file(file)
        return self._last[1]

    def batches(self, fragment: Fragment, columns: list[str]) -> Iterator[pa.RecordBatch]:
        return self.open(fragment.file).batches(fragment.index, columns)

    def times(self, fragment: Fragment) -> Iterator[tuple[I64, Bool | None]]:
        """Of all rows; only the time column is decoded."""
        row = fragment.row
        for batch in self.batches(fragment, [self._given.time.name]):
            with refusing(self._given.files[fragment.file]):
                times = self._given.times(batch.column(0), np.arange(row, row + batch.num_rows))
            yield times
            row += batch.num_rows

    def differs(self, fragment: Fragment, how: str) -> UserError:
        """The error for a fragment that is not as the file says, which would make other rows late or change ids."""
        path = self._given.files[fragment.file]
        part = "row group" if file_format(path) == "Parquet" else "record batch"
        return UserError(f"{part} {fragment.index} {how}", subject=str(path), remedy="write the file again")


class _EarlierTimes:
    """The greatest time of a fragment's rows before the next one.

    Rows that are read are counted in (`passed`); of others the time column is decoded, once while the rows ascend.
    """

    def __init__(self, given: SplitInput) -> None:
        self._files = _Files(given)
        self._fragment: Fragment | None = None
        self._row, self._high_us = 0, BEGIN_OF_TIME_US  # the next row, counted in the fragment, and that time
        self._times: Iterator[tuple[I64, Bool | None]] = iter(())
        self._first, self._ts = 0, np.empty(0, np.int64)  # what was decoded last, from which row on

    def passed(self, rows: int, high_us: int) -> int:
        """The next rows were read. Returns the greatest time of all up to them."""
        self._row, self._high_us = self._row + rows, max(self._high_us, high_us)
        return self._high_us

    def before(self, fragment: Fragment, row: int) -> int:
        """Go to this row of a fragment. BEGIN_OF_TIME_US if no row before it has a time."""
        if fragment != self._fragment or row < self._row:
            self._fragment, self._row, self._high_us = fragment, 0, BEGIN_OF_TIME_US
            self._first, self._ts, self._times = 0, np.empty(0, np.int64), self._files.times(fragment)
        while self._row < row:
            part = self._ts[self._row - self._first : row - self._first]
            if len(part):
                self.passed(len(part), int(part.max()))
                continue
            self._first += len(self._ts)
            following = next(self._times, None)
            if following is None:
                raise self._files.differs(fragment, "has fewer rows than its file says")
            ts, valid = following
            self._ts = ts if valid is None else np.where(valid, ts, BEGIN_OF_TIME_US)
        return self._high_us


class SplitReader:
    """The splits of an input of files, and their rows: after `open`, `next` until it returns None, each time with `passed`."""

    def __init__(self, given: SplitInput) -> None:
        self._given = given
        self._earlier = _EarlierTimes(given)
        self._split = Split(0, 0, END_OF_TIME_US, BEGIN_OF_TIME_US, BEGIN_OF_TIME_US)
        self._at = 0  # position of its next row
        self._checks_end = False  # whether the end of the split has to be that of the fragment
        self._number: int | None = None  # of the fragment that is decoded
        self._stride = 1  # from the fragment decoded before it
        self._expected: int | None = None  # the fragment that the thread begins next
        self._batch: pa.RecordBatch | None = None  # decoded
        self._first = 0  # position of its first row
        self._ahead: ReadAhead | None = None
        self._decoded = _Files(given)  # in the thread, with the next
        self._started: dict[Fragment, Iterator[pa.RecordBatch]] = {}

    # ------------------------------------------------------------ splits

    @cached_property
    def fragments(self) -> list[Fragment]:
        """All that have rows, in the order of the input."""
        files, found, row = _Files(self._given), [], 0
        for file in range(len(self._given.files)):
            counts = files.open(file).counts if self._given.counts is None else self._given.counts[file]
            for index, rows in enumerate(counts):
                found += [Fragment(file, index, row, rows)] if rows else []
                row += rows
        return found

    @cached_property
    def file_starts(self) -> list[int]:
        """Position of the first row of each file; where it has none, of the next one."""
        rows = [0] * len(self._given.files)
        for fragment in self.fragments:
            rows[fragment.file] += fragment.rows
        return [0, *itertools.accumulate(rows)][:-1]

    @cached_property
    def why_whole(self) -> str | None:
        """As of `SplitSource`."""
        reason = why_whole(self._given.files)
        if reason is None and file_format(self._given.files[0]) == "Parquet":  # of others, rows tell the times
            reason = self._ranges if isinstance(self._ranges, str) else None
        return reason

    @cached_property
    def _ranges(self) -> list[tuple[int, int]] | str:
        """Least and greatest time of each fragment, or why they are unknown."""
        files, found = _Files(self._given), []
        for fragment in self.fragments:
            opened = files.open(fragment.file)
            parts = files.times(fragment)
            if isinstance(opened, RowGroups):
                values, name = opened.range_of(fragment.index), self._given.time.name
                where = f"{self._given.files[fragment.file]}: row group {fragment.index}"
                if values is None:
                    return f"{where} does not say its least and greatest {name}"
                try:
                    parts = iter([times_us(values, self._given.time)])
                except UserError as error:
                    return f"{where} has wrong times: {error}"  # one gateway names the row
            times = list(parts)
            found.append((min(least_us(*part) for part in times), max(greatest_us(*part) for part in times)))
        return found

    def splits(self, reach_us: int) -> list[Split] | None:
        """As of `SplitSource`."""
        if self.why_whole is not None or isinstance(self._ranges, str):
            return None
        found, before_us = [], BEGIN_OF_TIME_US
        for fragment, (low_us, high_us) in zip(self.fragments, self._ranges, strict=True):
            for start, end in itertools.pairwise([0, *range_ends(fragment.rows, high_us - low_us, reach_us)]):
                found.append(Split(fragment.row + start, end - start, low_us, high_us, before_us))
            before_us = max(before_us, high_us)
        return found

    # ------------------------------------------------------------ reading

    def open(self, split: Split, skip: int) -> int:
        """As of `SplitSource.open_split`. RunFailed when the files have no such rows."""
        number = bisect.bisect_right(self.fragments, split.row, key=lambda fragment: fragment.row) - 1
        end = split.row + split.rows
        if not (number >= 0 and 0 <= skip <= split.rows and end <= self.fragments[number].end):
            raise RunFailed(f"{self._given.files[0]}: rows {split.row} to {end} are not where they were; the input has changed")
        fragment = self.fragments[number]
        self._split, self._at = split, split.row + skip
        self._checks_end = self._at < end == fragment.end
        if self._at < end and (number != self._number or self._at < self._first):
            self._decode(number)
        return max(split.before_us, self._earlier.before(fragment, self._at - fragment.row))

    def _decode(self, number: int) -> None:
        """Let the thread decode this fragment, and begin the next one where two in a row were as far apart."""
        stride = number - (number - self._stride if self._number is None else self._number)
        likely = number == self._expected or (stride == self._stride != 0)
        self._expected = number + stride if likely and 0 <= number + stride < len(self.fragments) else None
        self._number, self._stride = number, stride
        self._batch, self._first = None, self.fragments[number].row
        run = partial(self._decoding, self.fragments[number], self._expected)
        if self._ahead is None:
            self._ahead = ReadAhead(run, restarts=True)
        else:
            self._ahead.restart(run)

    def _decoding(self, fragment: Fragment, expected: int | None) -> Iterator[pa.RecordBatch | None]:
        """In the thread: the rows of a fragment, and None. Then the first rows of the expected one are decoded and kept."""
        columns, started = self._given.columns, self._started.pop(fragment, None)
        self._started.clear()
        yield from self._decoded.batches(fragment, columns) if started is None else started
        yield None
        if expected is not None:
            with suppress(UserError):  # another gateway may read it
                batches = self._decoded.batches(self.fragments[expected], columns)
                first = next(batches, None)
                self._started[self.fragments[expected]] = itertools.chain(() if first is None else (first,), batches)

    def ready(self, patience_s: float) -> bool:
        """Whether `next` would return at once; waits up to this long. UserError as of `next`."""
        while self._lacks:
            if self._ahead is not None and not self._ahead.ready(patience_s):
                return False
            self._take()
        return True

    @property
    def _lacks(self) -> bool:
        """Whether the next rows, or the end, need a further batch."""
        if self._at == self._split.row + self._split.rows and not self._checks_end:
            return False
        return self._batch is None or self._at >= self._first + self._batch.num_rows

    def _take(self) -> None:
        """Take the next batch of the fragment from the thread."""
        assert self._ahead is not None, "a split is open"
        self._first += 0 if self._batch is None else self._batch.num_rows
        self._batch = self._ahead.next()
        if self._batch is None:
            if self._at < self._fragment.end:
                raise self._decoded.differs(self._fragment, "has fewer rows than its file says")
            self._checks_end = False

    @property
    def _fragment(self) -> Fragment:
        assert self._number is not None, "a split is open"
        return self.fragments[self._number]

    def next(self) -> pa.RecordBatch | None:
        """The next rows; None at the end of the split. UserError when the file has others than it says."""
        while self._lacks:
            self._take()
        rows = self._split.row + self._split.rows - self._at
        if rows == 0 and self._checks_end:
            raise self._decoded.differs(self._fragment, "has more rows than its file says")
        return None if not rows or self._batch is None else self._batch.slice(self._at - self._first, min(rows, BATCH_ROWS))

    def passed(self, ts: I64, valid: Bool | None) -> None:
        """The rows of `next` have these times. UserError when they are not as the file says: by it other rows are late."""
        high_us, split = greatest_us(ts, valid), self._split
        greatest = self._earlier.passed(len(ts), high_us)
        self._at += len(ts)
        within = split.low_us <= least_us(ts, valid) and high_us <= split.high_us
        if not within or (self._at == self._fragment.end and greatest != split.high_us):
            raise self._decoded.differs(self._fragment, f"has other times in {self._given.time.name} than its file says")

    def close(self) -> None:
        """End the thread, until a split is opened."""
        if self._ahead is not None:
            self._ahead.close()
        self._ahead, self._number, self._batch = None, None, None
