"""Identifier types, and the limits of time.

What: `SlaveId`, `GroupId`, `EpochIndex`, `QueryId`; the least and the greatest time in microseconds.
Why: type checking keeps integers of different meaning apart.
Stays out: what they identify.
"""

from __future__ import annotations

from typing import NewType

SlaveId = NewType("SlaveId", int)
GroupId = NewType("GroupId", int)
EpochIndex = NewType("EpochIndex", int)
QueryId = NewType("QueryId", int)

END_OF_TIME_US = 1 << 62  # the watermark after the last tuple
BEGIN_OF_TIME_US = -(1 << 62)
LAST_TIME_US = (1 << 60) - 2  # of rows that come out at the end alone: no watermark before the end is above
