"""Splits: the pieces of an input that gateways read, in the input's own order.

What: `Split`; `remaining`, the splits after a position; `range_ends`, which cuts rows that span much time; `row_ids`, ids of
rows of live splits.
Why: with several gateways the master deals out the splits of every input one by one; a split says what its reader has to know
of all rows before it, so that row ids and lateness are those of one gateway.
Stays out: making splits (`connectors`), dealing (`cluster.master.split_dealer`), reading (`cluster.gateway.open_splits`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from swjoin.core.batch import I64
from swjoin.core.errors import RunFailed
from swjoin.core.ids import BEGIN_OF_TIME_US, END_OF_TIME_US

LEAST_ROWS = 4_096  # of a range
ALL_ROWS = 1 << 62  # a position behind the last row of any input
_OFFSET_BITS, _SPLIT_BITS = 52, 11  # of a row id; its highest bit is 0
MOST_SPLITS = (1 << _SPLIT_BITS) - 1  # of a live stream, in row ids


@dataclass(frozen=True)
class Split:
    """Rows of one input that follow each other, read by one gateway.

    row: position of the first one in the input. rows: their number; -1: all to the end of the input, known only by reading.
    low_us, high_us: bounds of their times; BEGIN_OF_TIME_US and END_OF_TIME_US where nothing is known, END_OF_TIME_US and
    BEGIN_OF_TIME_US if no row has a time. Those of a range of a row group or a record batch are of all its rows. before_us:
    greatest time of all rows before the first one, BEGIN_OF_TIME_US if none has a time; a lower bound where only reading tells
    it (`SplitSource.open_split`).
    """

    row: int
    rows: int
    low_us: int = BEGIN_OF_TIME_US
    high_us: int = END_OF_TIME_US
    before_us: int = BEGIN_OF_TIME_US

    @property
    def end(self) -> int:
        """The position after its last row."""
        return ALL_ROWS if self.rows < 0 else self.row + self.rows


WHOLE = Split(0, -1)  # an input that one gateway reads


def remaining(splits: Sequence[Split], row: int) -> list[tuple[Split, int]]:
    """What is left of an input from a position on: splits, and rows at the start of each that are not read again."""
    return [(split, max(0, row - split.row)) for split in splits if split.end > row]


def range_ends(rows: int, span_us: int, reach_us: int) -> list[int]:
    """Ends of ranges of about equal size, as many as `reach_us` fits into the time that the rows span; but none has less than
    `LEAST_ROWS` rows, which would not be worth a split, unless all rows are fewer."""
    count = max(1, min(-(-span_us // max(1, reach_us)), rows // LEAST_ROWS))
    return [rows * (number + 1) // count for number in range(count)]


def row_ids(split: int | I64, offsets: I64, where: str) -> I64:
    """Ids of rows of a live stream that several gateways read: split number + 1 in bits 52 to 62, offset in the split in bits 0
    to 51. So no id is a position in a stream that one gateway read before. RunFailed, with the split's name, if one does not
    fit."""
    if np.max(split, initial=-1) >= MOST_SPLITS or (len(offsets) and int(np.max(offsets)) >= 1 << _OFFSET_BITS):
        raise RunFailed(f"{where}: row ids have room for splits below 2^11 - 1 and offsets below 2^52; name an id column")
    return offsets | (split + 1 << _OFFSET_BITS)


_Ids = TypeVar("_Ids", int, I64)


def split_and_offset(row_id: _Ids) -> tuple[_Ids, _Ids]:
    """Of an id, or of many, of `row_ids`."""
    return (row_id >> _OFFSET_BITS) - 1, row_id & (1 << _OFFSET_BITS) - 1
