"""When a distribution epoch ends: pure functions of times, no clock (SPEC section 3).

What: boundaries of distribution epochs, in event time (asap pace) or on the run's clock (realtime pace).
Also how many tuples make an epoch where no time does, and the slots of sub-groups (paper section V-B).
Why: the master asks, the policy answers; the simulator and the tests ask the same functions.
Stays out: buffering and sending (`cluster.master.master`), reorganization epochs.
"""

from __future__ import annotations

from collections import deque

WINDOW_SHARE = 16


class EpochSize:
    """How many buffered tuples make a distribution epoch: `least`, or 1/16 of what the windows hold, if that is more.

    The larger the windows, the more tuples must come at once for each to find its block in the cache: with 20 M tuples in the
    windows, deliveries of 131,072 took 124 ns a tuple, of 1/16 of them 62 to 68. They add as little to the memory.
    """

    def __init__(self, least: int, retention_us: int) -> None:
        self._least = least
        self._retention_us = retention_us
        self._recent: deque[tuple[int, int]] = deque()  # (newest time, tuples) of the epochs that the windows still hold
        self._window_tuples = 0

    @property
    def tuples(self) -> int:
        return max(self._least, self._window_tuples // WINDOW_SHARE)

    def closed(self, newest_us: int, tuples: int) -> None:
        """An epoch was closed; its newest tuple has this time (or with count windows this place of both streams')."""
        self._recent.append((newest_us, tuples))
        self._window_tuples += tuples
        while self._recent[0][0] < newest_us - self._retention_us:
            self._window_tuples -= self._recent.popleft()[1]

    def plain_state(self) -> list[tuple[int, int]]:
        """Ready for JSON."""
        return list(self._recent)

    def restore(self, plain: list[tuple[int, int]]) -> None:
        """Go on with what `plain_state` said."""
        self._recent = deque((newest_us, tuples) for newest_us, tuples in plain)
        self._window_tuples = sum(tuples for _, tuples in self._recent)


def boundary_after_us(time_us: int, origin_us: int, epoch_us: int) -> int:
    """The first boundary origin + k * epoch (k >= 1) strictly above `time_us`: the end of the epoch that holds it."""
    return origin_us + epoch_us * max(1, (time_us - origin_us) // epoch_us + 1)


def slots_ended(now_us: int, epoch_us: int, sub_group_count: int) -> int:
    """How many slots have ended at `now_us` on the run's clock (which starts at 0)."""
    whole, rest = divmod(now_us, epoch_us)
    return whole * sub_group_count + ((rest + 1) * sub_group_count - 1) // epoch_us


def slot_end_us(slot: int, epoch_us: int, sub_group_count: int) -> int:
    """When the slot of this number (0, 1, ... over all distribution epochs) ends."""
    whole, place = divmod(slot, sub_group_count)
    return whole * epoch_us + (place + 1) * epoch_us // sub_group_count


def next_exchange_us(now_us: int, epoch_us: int, offset_us: int = 0) -> int:
    """When a slave exchanges again: the next time k * epoch + offset strictly after now."""
    return ((now_us - offset_us) // epoch_us + 1) * epoch_us + offset_us


def sub_group_of(slave: int, sub_group_count: int) -> int:
    """Sub-group of a slave: in turn, so that the active slaves, which are the first ones, spread over all sub-groups."""
    return slave % sub_group_count


def slot_offset_us(slave: int, sub_group_count: int, epoch_us: int) -> int:
    """When, within a distribution epoch, a slave's slot ends; 0 for the last sub-group, whose slot ends the epoch."""
    return (sub_group_of(slave, sub_group_count) + 1) * epoch_us // sub_group_count % epoch_us


def slots_to_skip(closed: int, due: int, sub_group_count: int) -> int:
    """How many whole rounds of slots a master that has fallen behind leaves out, in slots; every sub-group keeps its turn."""
    return max(0, (due - closed - 1) // sub_group_count * sub_group_count)
