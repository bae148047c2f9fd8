"""Windows of time, aligned to an origin, and the panes that they consist of.

What: `TimeWindows`: which pane and bucket a time is in, which windows have a pane, which are not closed yet.
Why: the operator, the watermark rules and the plan must agree on every edge of a window.
Stays out: what is computed of a window's rows (`operators.aggregation`).

Window k is [origin + k slide, origin + k slide + size), k any integer. A pane is as long as the greatest common divisor of size
and slide, so it lies in a window whole or not at all. A slide beyond the size leaves gaps, whose rows are in no window.
Operators keep the panes of a bucket together: one pane, or a second of panes where every window is a pane shorter than that.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from swjoin.core.batch import I64, Bool
from swjoin.core.errors import UserError

_BUCKET_US = 1_000_000


@dataclass(frozen=True)
class TimeWindows:
    """Times in microseconds; size and slide above 0. They are equal for tumbling windows."""

    size_us: int
    slide_us: int
    origin_us: int = 0

    def __post_init__(self) -> None:
        for name, value in (("size", self.size_us), ("slide", self.slide_us)):
            if value <= 0:
                raise UserError(f"a window's {name} is {value} us", remedy="give a time above zero")

    @property
    def pane_us(self) -> int:
        return math.gcd(self.size_us, self.slide_us)

    def panes(self, ts: I64) -> I64:
        """Starts of the panes of these times: int64 (n,)."""
        out: I64 = ts - (ts - self.origin_us) % self.pane_us
        return out

    @property
    def bucket_us(self) -> int:
        """Length of a bucket: a multiple of that of a pane."""
        alone = self.size_us == self.pane_us
        return self.pane_us * max(1, _BUCKET_US // self.pane_us) if alone else self.pane_us

    @property
    def in_buckets(self) -> bool:
        """Whether a bucket has several panes, each of which is a window."""
        return self.bucket_us > self.pane_us

    def buckets(self, panes: I64) -> I64:
        """Starts of the buckets of panes with these starts: int64 (n,)."""
        out: I64 = panes - (panes - self.origin_us) % self.bucket_us if self.in_buckets else panes
        return out

    def inside(self, ts: I64) -> Bool | None:
        """Which times are in some window: bool (n,). None: all."""
        if self.slide_us <= self.size_us:
            return None
        found: Bool = (ts - self.origin_us) % self.slide_us < self.size_us
        return found

    def first_with(self, pane_us: int) -> int:
        """Start of the first window that has the pane with this start."""
        past = pane_us + self.pane_us - self.size_us - self.origin_us
        return self.origin_us - (-past // self.slide_us) * self.slide_us

    def first_after(self, watermark_us: int) -> int:
        """Start of the first window that ends after this time: rows at or above the watermark can still come into it."""
        past = watermark_us - self.size_us - self.origin_us
        return self.origin_us + (past // self.slide_us + 1) * self.slide_us
