"""When a distribution epoch ends: pure functions of times, no clock (SPEC section 3).

What: boundaries of distribution epochs, in event time (asap pace) or on the run's clock (realtime pace).
Why: the master asks, the policy answers; the simulator and the tests ask the same functions.
Stays out: buffering and sending (`cluster.master`), reorganization epochs.
"""

from __future__ import annotations


def boundary_after_us(time_us: int, origin_us: int, epoch_us: int) -> int:
    """The first boundary origin + k * epoch (k >= 1) strictly above `time_us`: the end of the epoch that holds it."""
    return origin_us + epoch_us * max(1, (time_us - origin_us) // epoch_us + 1)


def last_boundary_us(now_us: int, epoch_us: int) -> int:
    """The latest boundary k * epoch at or before `now_us` on the run's clock (which starts at 0)."""
    return now_us // epoch_us * epoch_us


def next_exchange_us(now_us: int, epoch_us: int) -> int:
    """When a slave that has just been served exchanges again: the next boundary strictly after now."""
    return (now_us // epoch_us + 1) * epoch_us
