"""Splits of an input: ranges of its rows, each of which is read by one gateway.

What: `Split`; `range_ends`, which cuts rows that span much time.
Why: several gateways read one input. Which row is late, and what its id is, follow from the split, whoever reads it.
Stays out: which parts of an input are splits (its source in `connectors`), which gateway reads which one.
"""

from __future__ import annotations

from dataclasses import dataclass

LEAST_ROWS = 4_096  # of a range


@dataclass(frozen=True)
class Split:
    """Rows of one input that follow each other, read by one gateway.

    row: position of the first one in the input. rows: their number; -1: all to the end of the input, known only by reading.
    low_us, high_us: bounds of their times; BEGIN_OF_TIME_US and END_OF_TIME_US where nothing is known, END_OF_TIME_US and
    BEGIN_OF_TIME_US if no row has a time. Those of a range of a row group or a record batch are of all its rows; otherwise
    high_us is exact in files.
    before_us: greatest time of all rows before the first one, BEGIN_OF_TIME_US if none has a time; a lower bound where only
    reading tells it (`SplitSource.open_split`).
    """

    row: int
    rows: int
    low_us: int
    high_us: int
    before_us: int


def range_ends(rows: int, span_us: int, reach_us: int) -> list[int]:
    """Ends of ranges of about equal size, as many as `reach_us` fits into the time that the rows span; but none has less than
    `LEAST_ROWS` rows, which would not be worth a split, unless all rows are fewer."""
    count = max(1, min(-(-span_us // max(1, reach_us)), rows // LEAST_ROWS))
    return [rows * (number + 1) // count for number in range(count)]
