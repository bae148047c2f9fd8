"""The knee of a curve of production delays over rates, as far as the measured rates show it.

What: `find_knee(table, where) -> Knee`, and the order of two knees: `grows`, `falls`, `stays`.
Why: the knee of a flat curve lies somewhere above its last rate, and rates without a valid run leave gaps; a verdict must not
take either for a measured knee.
Stays out: verdicts (`claims`); whether one run kept up (`swjoin.monitor.sustainability`), a criterion for runs, not for curves.
"""

from __future__ import annotations

from dataclasses import dataclass

from swjoin.monitor.sustainability import GROWTH

from .sweep_tables import RATE, Table, Where

KNEE = 3.0  # mean delay past the knee / delay of the plateau; by waiting alone (0.5 + busy / 2 epochs) a delay doubles


@dataclass(frozen=True)
class Knee:
    """The system saturates above `flat`, at `rate` at the latest.

    flat: the highest measured rate below `rate`; 0: none.
    rate: the lowest measured rate that saturates the system; None: no measured rate does.
    certain: `rate` is known, and no run is missing between the two.
    """

    flat: float
    rate: float | None
    certain: bool


def find_knee(table: Table, where: Where) -> Knee | None:
    """The knee by means over repeats: a rate saturates when the delay grows by GROWTH or more, or exceeds KNEE times that of
    the lowest rate.

    None without a valid run.
    """
    delay, growth = table.curve("delay_mean_s", RATE, None, where), table.curve("delay_growth", RATE, None, where)
    if len(delay) == 0:
        return None
    flat = 0.0
    for i, rate in enumerate(delay.x.tolist()):
        at = growth.at(rate)
        if (at is not None and growth.mean[at] >= GROWTH) or delay.mean[i] > KNEE * delay.mean[0]:
            missing = table.missing("delay_mean_s", RATE, where)
            return Knee(flat, rate, not any(flat < value < rate for value in missing if not isinstance(value, str)))
        flat = rate
    return Knee(flat, None, False)


def grows(a: Knee, b: Knee) -> bool:
    """Whether b saturates at a higher rate than a: not yet where a does, or with both bounds higher."""
    if a.rate is None:
        return False
    return b.flat >= a.rate or (b.rate is not None and b.rate > a.rate and b.flat > a.flat)


def falls(a: Knee, b: Knee) -> bool:
    """Whether b certainly saturates at a lower rate than a: at a rate that a sustains, or at a lower one without gaps."""
    if b.rate is None:
        return False
    return b.rate <= a.flat or (_comparable(a, b) and b.rate < a.rate)  # type: ignore[operator]


def stays(a: Knee, b: Knee) -> bool:
    """Whether both saturate at the same measured rate or b at a lower one, without gaps."""
    return _comparable(a, b) and b.rate <= a.rate  # type: ignore[operator]


def _comparable(a: Knee, b: Knee) -> bool:
    """Bounds of b that are not above those of a, from the same rates or lower ones."""
    return a.certain and b.certain and b.flat <= a.flat
