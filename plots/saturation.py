"""Where a curve of production delays saturates, as far as the measured rates can tell.

What: `saturation(table, where) -> Knee`, and what two knees say about their order: `grows`, `falls`, `stays`.
Why: a curve that stays flat saturates above its last rate, nobody knows where, and rates without a valid run leave gaps; a
verdict must take neither for a rate at which something happened.
Stays out: verdicts (`claims`).
"""

from __future__ import annotations

from dataclasses import dataclass

from .sweep_tables import RATE, Table, Where

GROWTH = 0.02  # s per s: the delay of a system that cannot keep up grows without end
KNEE = 3.0  # a mean delay of so many times the plateau is past it: by waiting alone (0.5 + busy / 2 epochs) it doubles


@dataclass(frozen=True)
class Knee:
    """The system saturates above `flat` and not above `rate`.

    rate: the lowest rate that saturates it; None: no measured one. flat: the highest measured rate below that; 0: none.
    certain: a rate that saturates was seen, and no run is missing between the two.
    """

    flat: float
    rate: float | None
    certain: bool


def saturation(table: Table, where: Where) -> Knee | None:
    """By means over repeats: a rate saturates when the delay grows by GROWTH or more, or is above KNEE times the lowest rate's.

    None without a valid run.
    """
    delay, growth = table.curve("delay_mean_s", RATE, None, where), table.curve("delay_growth", RATE, None, where)
    if len(delay) == 0:
        return None
    flat = 0.0
    for i, rate in enumerate(delay.x.tolist()):
        at = growth.at(rate)
        if (at is not None and growth.mean[at] >= GROWTH) or delay.mean[i] > KNEE * delay.mean[0]:
            gone = table.gone("delay_mean_s", RATE, where)
            return Knee(flat, rate, not any(flat < value < rate for value in gone if not isinstance(value, str)))
        flat = rate
    return Knee(flat, None, False)


def grows(a: Knee, b: Knee) -> bool:
    """Whether b saturates later than a: not yet where a does, or both of its bounds are higher."""
    if a.rate is None:
        return False
    return b.flat >= a.rate or (b.rate is not None and b.rate > a.rate and b.flat > a.flat)


def falls(a: Knee, b: Knee) -> bool:
    """Whether b saturates earlier than a for certain: already at a rate that a sustains, or one that is lower, without gaps."""
    if b.rate is None:
        return False
    return b.rate <= a.flat or (_comparable(a, b) and b.rate < a.rate)  # type: ignore[operator]


def stays(a: Knee, b: Knee) -> bool:
    """Whether both saturate at the same measured rate or b at a lower one, without gaps."""
    return _comparable(a, b) and b.rate <= a.rate  # type: ignore[operator]


def _comparable(a: Knee, b: Knee) -> bool:
    """Bounds of b that are not above those of a, from the same rates or lower ones."""
    return a.certain and b.certain and b.flat <= a.flat
