"""Types of identifiers, and the ends of time.

What: `SlaveId`, `GroupId`, `EpochIndex`, `QueryId`; the least and the greatest time in microseconds.
Why: integers of different meaning are not to be confused.
Stays out: what they identify.
"""

from __future__ import annotations

from typing import NewType

SlaveId = NewType("SlaveId", int)
GroupId = NewType("GroupId", int)
EpochIndex = NewType("EpochIndex", int)
QueryId = NewType("QueryId", int)

END_OF_TIME_US = 1 << 62  # the punctuation after the last tuple: nothing can come any more
BEGIN_OF_TIME_US = -(1 << 62)
