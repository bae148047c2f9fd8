"""Ends of distribution epochs: pure functions of times, no clock.

What: boundaries of distribution epochs, in event time (asap pace) or on the run's clock (realtime pace); the size of epochs
that end by tuple count, and the slots of sub-groups (paper section V-B); when traffic is reported.
Why: the master, the simulator and the tests call the same functions.
Stays out: buffering and sending (`cluster.master.master`), when reorganization epochs end (`cluster.master.controller`).
"""

from __future__ import annotations

from collections import deque

_FIRST_PART = 4  # of a reorganization epoch, after which traffic is reported first, while windows have little state to move


def traffic_is_due(epoch_count: int, reorganization_epoch: int) -> bool:
    """Whether slaves report what they have sent since the last report, after so many distribution epochs: every
    `reorganization_epoch` of them, and after the first quarter of the first ones, rounded down."""
    return epoch_count % reorganization_epoch == 0 or epoch_count == reorganization_epoch // _FIRST_PART


def tuples_of_epoch(least: float, window_tuples: float) -> float:
    """Tuples in a distribution epoch with so many in the windows: `least`; 1/8 of the windows, if that is more, up to twice
    as many; 1/16 of the windows, if that is more.

    Larger windows need larger deliveries, for several tuples of a delivery to share a cached block: with 20 M tuples in the
    windows, deliveries of 131,072 tuples took 124 ns a tuple, of 1/16 of the windows 62 to 68 ns; with 2 M, 1/8 takes 0.93 of
    the time of 1/16. 1/16 adds little memory, and neither does twice the least.
    """
    return max(least, min(window_tuples // 8, 2 * least), window_tuples // 16)


class EpochSize:
    """Tuples in a distribution epoch, by the windows' tuples in the epochs before (`tuples_of_epoch`)."""

    def __init__(self, least: int, retention_us: int) -> None:
        self._least = least
        self._retention_us = retention_us
        self._recent: deque[tuple[int, int]] = deque()  # (newest time, tuples) of the epochs in the windows
        self._window_tuples = 0

    @property
    def tuples(self) -> int:
        return int(tuples_of_epoch(self._least, self._window_tuples))

    def closed(self, newest_us: int, tuples: int) -> None:
        """Count a closed epoch. newest_us: its highest time, or with count windows the tuples of both streams so far."""
        self._recent.append((newest_us, tuples))
        self._window_tuples += tuples
        while self._recent[0][0] < newest_us - self._retention_us:
            self._window_tuples -= self._recent.popleft()[1]

    def plain_state(self) -> list[tuple[int, int]]:
        """Ready for JSON."""
        return list(self._recent)

    def restore(self, plain: list[tuple[int, int]]) -> None:
        """Restore from `plain_state`."""
        self._recent = deque((newest_us, tuples) for newest_us, tuples in plain)
        self._window_tuples = sum(tuples for _, tuples in self._recent)


def boundary_after_us(time_us: int, origin_us: int, epoch_us: int) -> int:
    """The first boundary origin + k * epoch (k >= 1) strictly above `time_us`: the end of its epoch."""
    return origin_us + epoch_us * max(1, (time_us - origin_us) // epoch_us + 1)


def slots_ended(now_us: int, epoch_us: int, sub_group_count: int) -> int:
    """Count of slots that have ended at `now_us` on the run's clock (which starts at 0)."""
    whole, rest = divmod(now_us, epoch_us)
    return whole * sub_group_count + ((rest + 1) * sub_group_count - 1) // epoch_us


def slot_end_us(slot: int, epoch_us: int, sub_group_count: int) -> int:
    """End of the slot of this number (0, 1, ... over all distribution epochs)."""
    whole, index = divmod(slot, sub_group_count)
    return whole * epoch_us + (index + 1) * epoch_us // sub_group_count


def next_exchange_us(now_us: int, epoch_us: int, offset_us: int = 0) -> int:
    """The next exchange of a slave: the first time k * epoch + offset strictly after now."""
    return ((now_us - offset_us) // epoch_us + 1) * epoch_us + offset_us


def sub_group_of(slave: int, sub_group_count: int) -> int:
    """Sub-group of a slave: round-robin, so that the active slaves, which have the lowest ids, spread over all sub-groups."""
    return slave % sub_group_count


def slot_offset_us(slave: int, sub_group_count: int, epoch_us: int) -> int:
    """End of a slave's slot within a distribution epoch; 0 for the last sub-group, whose slot ends the epoch."""
    return (sub_group_of(slave, sub_group_count) + 1) * epoch_us // sub_group_count % epoch_us


def slots_to_skip(closed: int, due: int, sub_group_count: int) -> int:
    """Slots that a late master skips: whole rounds, so that every sub-group keeps its turn."""
    return max(0, (due - closed - 1) // sub_group_count * sub_group_count)
