"""Verdicts on the paper's claims about its figures 5 to 14: one criterion per figure.

What: `assess(figure, table) -> Verdict`, `CRITERIA` (figure -> its criterion); those of other papers by paper and figure.
Why: verdicts by hand drift towards the hoped-for result; a rule written before the measurement does not.
Stays out: where a curve saturates (`knee`), drawing, reading files, the paper's wording (`experiments/`).

Verdicts: "holds", "holds in shape" (the direction is right, a number or a regularity is not), "does not hold", "not measured".
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, pairwise

import numpy as np

from swjoin.monitor.sustainability import GROWTH
from swjoin.sweeps.metrics import BELOW

from .knee import falls, find_knee, grows, stays
from .sweep_tables import EPOCH, RATE, Curve, Table, Where, quantity, setting

HOLDS, SHAPE, FAILS, UNKNOWN = "holds", "holds in shape", "does not hold", "not measured"
LITTLE = 1.5  # "very little variations": highest / lowest delay before saturation
FULL = 57.0  # s per minute: a node that computes 95 % of the time cannot compute much more
IDLE = 0.05  # "near to zero"
SEVERAL = 3.0  # "drops to": so many times lower
ON: Where = {"tuning": "on"}
OFF: Where = {"tuning": "off"}


@dataclass(frozen=True)
class Verdict:
    verdict: str
    why: str


def assess(figure: int | str, table: Table) -> Verdict:
    """The verdict on a figure of the paper."""
    return CRITERIA[figure](table)


# ---------------------------------------------------------------- shared by criteria


def trend(y: np.ndarray) -> float:
    """Spearman's rank correlation of y with its own order: 1 when it always grows, -1 when it always falls."""
    if len(y) < 2:
        return 0.0
    ranks = np.array([(np.sum(y < v) + np.sum(y <= v) - 1) / 2 for v in y])
    if np.ptp(ranks) == 0:
        return 0.0
    return float(np.corrcoef(np.arange(len(y)), ranks)[0, 1])


def line(x: np.ndarray, y: np.ndarray) -> tuple[float, float]:
    """(slope, r^2) of the least-squares line."""
    slope, intercept = np.polyfit(x, y, 1)
    total = float(np.sum((y - y.mean()) ** 2))
    rest = float(np.sum((y - slope * x - intercept) ** 2))
    return float(slope), 1 - rest / total if total > 0 else 0.0


def _spread(curve: Curve) -> float:
    """Spread of the repeats: the wider range of the curve's two ends."""
    return float(max(curve.high[0] - curve.low[0], curve.high[-1] - curve.low[-1]))


def _rates(values: list[float]) -> str:
    return ", ".join(quantity(value) for value in values)


def _four(table: Table, where: Where) -> Where:
    """The same points with the paper's four slaves, if the table has several numbers of slaves."""
    return {"slaves": 4.0, **where} if 4.0 in table.values("slaves") else where


# ---------------------------------------------------------------- figures


def _left_out(table: Table, curves: list[tuple[str, Where]]) -> list[str]:
    """A note on rates of these curves that have no valid run."""
    missing = [(name, table.missing("delay_mean_s", RATE, where)) for name, where in curves]
    parts = [f"{name} at {_rates(rates)}" for name, rates in missing if rates]  # type: ignore[arg-type]
    return [f"Left out, because no run of them is valid: {'; '.join(parts)} tuples/s/stream"] if parts else []


def _saturation_grows(table: Table) -> tuple[str, list[str]]:
    curves = [(setting("slaves", slaves), {"slaves": slaves, **ON}) for slaves in table.values("slaves")]
    left_out, widest, knees = _left_out(table, curves), (0.0, ""), {}
    for name, where in curves:
        knee, delay = find_knee(table, where), table.curve("delay_mean_s", RATE, None, where)
        if knee is None:
            continue
        knees[name] = knee
        before = delay.mean[delay.x <= knee.flat]
        if len(before) > 1 and before.max() / before.min() > widest[0]:
            widest = (float(before.max() / before.min()), name)
    if len(knees) < 2:
        return UNKNOWN, ["Fewer than two numbers of slaves were measured", *left_out]
    if all(knee.rate is None for knee in knees.values()):
        return UNKNOWN, ["No measured rate saturated", *left_out]
    rates = [f"{name}: {f'above {quantity(k.flat)}' if k.rate is None else quantity(k.rate)}" for name, k in knees.items()]
    notes = [f"The lowest measured rate that saturates (tuples/s/stream) is {'; '.join(rates)}."]
    flat = [name for name, knee in knees.items() if knee.rate is None]
    if flat:
        notes.append(f"In the measured range the system did not saturate with {', '.join(flat)}.")
    notes += left_out
    for (first, a), (second, b) in combinations(knees.items(), 2):
        if falls(a, b):
            return FAILS, [*notes, f"It is lower with {second} than with {first}."]
    order = list(knees.values())
    if stays(order[0], order[-1]):
        return FAILS, [*notes, "It does not grow."]
    unordered = [f"{first} and {second}" for (first, a), (second, b) in pairwise(knees.items()) if not grows(a, b)]
    if unordered:
        notes.append(f"Between {', '.join(unordered)} the measured rates lie too far apart, or end too early, to tell.")
    if not any(grows(a, b) for a, b in combinations(order, 2)):
        return UNKNOWN, notes
    verdict = SHAPE if unordered else HOLDS
    unseen = [name for name, knee in knees.items() if knee.flat == 0]
    if unseen:
        verdict = SHAPE
        notes.append(f"The lowest measured rate is too high already for {', '.join(unseen)}.")
    if widest[0] > LITTLE:
        verdict = SHAPE
        notes.append(f"Before it the delay varies {widest[0]:.2g}-fold ({widest[1]}), which is more than very little.")
    elif widest[0] > 0:
        notes.append(f"Before it the delay varies at most {widest[0]:.2g}-fold.")
    return verdict, notes


def figure_5(table: Table) -> Verdict:
    """The saturating rate grows with the slaves; before it the delay varies little.

    A curve without a saturating measured rate saturates somewhere above its last rate. holds: the saturating rate grows from
    each number of slaves to the next, and below it highest / lowest delay <= 1.5 for each. In shape: it grows between some and
    falls nowhere, but two are equal or their order is unknown, or the delay varies more, or a lowest measured rate saturates
    already. Does not hold: more slaves saturate at a rate that fewer sustain, or at a lower one, or (the most against the
    fewest) at the same; where a run is missing just before it, only the first counts. Not measured: fewer than two numbers of
    slaves, none saturated, or no two of known order.
    """
    verdict, notes = _saturation_grows(table)
    return Verdict(verdict, " ".join(_sentence(note) for note in notes))


def figure_6(table: Table) -> Verdict:
    """As figure 5, and 4 slaves at 4000 tuples/s/stream take 1 to 3 s (in shape otherwise, or when that point is missing)."""
    verdict, notes = _saturation_grows(table)
    delay = table.curve("delay_mean_s", RATE, None, _four(table, ON)) if 4.0 in table.values("slaves") else None
    at = None if delay is None else delay.at(4000.0)
    if delay is None or at is None:
        notes.append("4 slaves at 4,000 tuples/s/stream were not measured")
        good = False
    else:
        notes.append(f"4 slaves at 4,000 tuples/s/stream take {quantity(delay.mean[at])} s; the paper says about 2 s")
        good = 1 <= delay.mean[at] <= 3
    if verdict == HOLDS and not good:
        verdict = SHAPE
    return Verdict(verdict, " ".join(_sentence(note) for note in notes))


def figure_7(table: Table) -> Verdict:
    """CPU time is lower with tuning, and the ratio without / with grows with the rate.

    Rates at which even the tuned slaves compute 95 % of the time are left out; for the growth of the ratio also those at which
    the untuned do. Rates at which no partition-group is large enough to be split (as many mini-partition-groups with tuning as
    without) are left out too. holds: cpu_s and work_s are lower at every rate, and the ratio of
    cpu_s grows (last > first, trend > 0) over at least two rates. In shape: cpu_s is lower at every rate, the rest is not so
    or cannot be seen. Does not hold: cpu_s is not lower at some rate.
    """
    cpu = _tuning_pairs(table, "cpu_s", "mean")
    unsplit = {rate for rate, on, off in _tuning_pairs(table, "mini_group_count", "sum") if on < 1.05 * off}
    seen = [(rate, on, off) for rate, on, off in cpu if on < FULL and rate not in unsplit]
    if not seen:
        return Verdict(UNKNOWN, "No rate was measured with and without tuning at which the slaves could keep up.")
    wrong = [rate for rate, on, off in seen if off <= on]
    if wrong:
        return Verdict(FAILS, f"CPU time is not lower with tuning at {_rates(wrong)} tuples/s/stream.")
    free = [(rate, off / on) for rate, on, off in seen if off < FULL and on > 0]
    ratios = np.array([ratio for _, ratio in free])
    grows = len(free) > 1 and ratios[-1] > ratios[0] and trend(ratios) > 0
    rates = {rate for rate, _, _ in seen}
    work = [(rate, on, off) for rate, on, off in _tuning_pairs(table, "work_s", "mean") if rate in rates]
    worked = bool(work) and all(off > on for _, on, off in work)
    rate, on, off = seen[-1]
    why = [f"At {quantity(rate)} tuples/s/stream a slave computes {off:.1f} s per minute without tuning and {on:.1f} s with"]
    if len(free) > 1:
        why.append(
            f"The ratio goes from {ratios[0]:.2g} at {quantity(free[0][0])} to {ratios[-1]:.2g} at {quantity(free[-1][0])}"
            + ("" if grows else ": it does not grow")
        )
    else:
        why.append(
            "Without tuning the slaves are fully busy at all but one measured rate, so the growth of the ratio is not seen"
        )
    if work and not worked:
        where = _rates([rate for rate, on, off in work if off <= on])
        why.append(f"CPU time really used is not lower at {where} tuples/s/stream")
    elif not work:
        why.append("CPU time really used was not measured")
    if unsplit:
        why.append(f"At {_rates(sorted(unsplit))} no partition-group is large enough to be split")
    return Verdict(HOLDS if grows and worked else SHAPE, " ".join(_sentence(w) for w in why))


def _tuning_pairs(table: Table, metric: str, over: str) -> list[tuple[float, float, float]]:
    """(rate, with tuning, without) at rates that have both."""
    on = table.curve(metric, RATE, over, _four(table, ON))
    off = table.curve(metric, RATE, over, _four(table, OFF))
    both = [(i, off.at(rate)) for i, rate in enumerate(on.x)]
    return [(float(on.x[i]), float(on.mean[i]), float(off.mean[j])) for i, j in both if j is not None]


def figure_8(table: Table) -> Verdict:
    """At 4000 tuples/s/stream the delay without tuning (about 48 s) is several times that with (about 2 s).

    48 s need 20 minutes of an overloaded system; here a minute is measured. So the measured growth is extrapolated to the mean
    over minutes 10 to 20: overloaded since the windows are full (minute 10: growth * 300 s) or from the start (growth * 900 s).
    holds: the delay is at least 3-fold, or grows without tuning (>= 0.02 s per s) and not with; and 48 s lie between half the
    lower and twice the higher extrapolation. In shape: the first only, or at another rate than 4000: without tuning the system
    saturates at a lower rate than with. Does not hold: neither, and 4000 was measured, or it is certain (figure 5) that the
    system does not saturate at a lower rate without tuning. Not measured: otherwise.
    """
    pairs = {rate: (on, off) for rate, on, off in _tuning_pairs(table, "delay_mean_s", "run")}
    curves = [("with tuning", _four(table, ON)), ("without tuning", _four(table, OFF))]
    knee_on, knee_off = (find_knee(table, where) for _, where in curves)
    left_out = _left_out(table, curves)
    if not pairs or knee_on is None or knee_off is None:
        return Verdict(UNKNOWN, " ".join(_sentence(w) for w in ("No rate was measured with and without tuning", *left_out)))
    growth = {rate: (on, off) for rate, on, off in _tuning_pairs(table, "delay_growth", "run")}
    saturates = [
        f"does not saturate in the measured range (up to {quantity(k.flat)})"
        if k.rate is None
        else f"saturates at {quantity(k.rate)} tuples/s/stream"
        for k in (knee_on, knee_off)
    ]
    why = [f"With tuning the system {saturates[0]}, without it {saturates[1]}", *left_out]
    several = near = False
    if 4000.0 in pairs:
        on, off = pairs[4000.0]
        grows_on, grows_off = growth.get(4000.0, (0.0, 0.0))
        several = off >= SEVERAL * on or (grows_off >= GROWTH > grows_on)
        low, high = 300 * grows_off, 900 * grows_off
        near = grows_off > 0 and low / 2 <= 48 <= 2 * high
        why.append(f"At 4,000 the delay is {quantity(off)} s without and {quantity(on)} s with tuning")
        if grows_off >= GROWTH:
            why.append(
                f"Without tuning it grows by {grows_off:.2g} s per s, which extrapolates to a mean of {quantity(low)} to "
                f"{quantity(high)} s over minutes 10 to 20, where the paper has about 48 s"
            )
        else:
            why.append(f"Without tuning it does not grow ({grows_off:.2g} s per s), so 48 s would not be reached in 20 minutes")
    else:
        why.append("4,000 tuples/s/stream were not measured")
    if several or grows(knee_off, knee_on):
        verdict = HOLDS if several and near else SHAPE
    elif 4000.0 in pairs or falls(knee_off, knee_on) or stays(knee_off, knee_on):
        verdict = FAILS
    else:
        verdict = UNKNOWN
        why.append("From these rates it cannot be told whether it saturates earlier without tuning")
    return Verdict(verdict, " ".join(_sentence(w) for w in why))


def _idle(table: Table, where: Where, rate: float) -> tuple[str, list[str]]:
    """The common part of figures 9 and 10."""
    words = "with" if where == ON else "without"
    idle = table.curve("idle_ratio", RATE, "mean", _four(table, where))
    if len(idle) == 0:
        return UNKNOWN, [f"Idle time {words} tuning was not measured"]
    low = [float(x) for x, y in zip(idle.x, idle.mean, strict=True) if y < IDLE]
    at, first = idle.at(rate), low[0] if low else None
    notes = []
    if at is not None:
        notes.append(f"At {quantity(rate)} tuples/s/stream the slaves {words} tuning idle {idle.mean[at]:.1%} of the time")
    if first is None:
        return (UNKNOWN if at is None else FAILS), [
            *notes,
            f"It stays above 5 % up to {quantity(float(idle.x[-1]))} tuples/s/stream",
        ]
    notes.append(f"The lowest measured rate with less than 5 % is {quantity(first)}")
    between = [x for x in idle.x if first <= x < rate]
    return (HOLDS if at is not None and idle.mean[at] < IDLE and len(between) <= 1 else SHAPE), notes


def figure_9(table: Table) -> Verdict:
    """Without tuning the idle time is near zero at 4000 tuples/s/stream.

    holds: below 5 % there, and at most one lower measured rate is below 5 % too. In shape: it falls below 5 % at another
    measured rate. Does not hold: it stays above. Not measured: no such runs, or 4000 is missing and nothing is below.
    """
    verdict, notes = _idle(table, OFF, 4000.0)
    return Verdict(verdict, " ".join(_sentence(note) for note in notes))


def figure_10(table: Table) -> Verdict:
    """As figure 9, with tuning at 6000; and tuning adds no communication.

    Communication: at each rate at which the slaves idle 5 % or more both with and without tuning, the repeats' ranges overlap
    or the mean with tuning is at most 10 % higher. If not so, or if no such rate was measured: in shape at best.
    """
    verdict, notes = _idle(table, ON, 6000.0)
    idle = {rate: min(on, off) for rate, on, off in _tuning_pairs(table, "idle_ratio", "mean")}
    on, off = (table.curve("communication_s", RATE, "mean", _four(table, where)) for where in (ON, OFF))
    more, seen = [], 0
    for i, rate in enumerate(on.x):
        j = off.at(rate)
        if j is None or idle.get(float(rate), 1.0) < IDLE:
            continue
        seen += 1
        if on.low[i] > off.high[j] and on.mean[i] > 1.1 * off.mean[j]:
            more.append(f"{quantity(float(rate))} ({on.mean[i]:.2g} against {off.mean[j]:.2g} s per minute)")
    if more:
        notes.append(f"Communication is higher with tuning at {', '.join(more)}")
    elif seen:
        notes.append(f"Communication with tuning is not above that without at all {seen} rates at which both keep up")
    else:
        notes.append("No rate was measured at which both keep up, so communication cannot be compared")
    if verdict == HOLDS and (more or not seen):
        verdict = SHAPE
    return Verdict(verdict, " ".join(_sentence(note) for note in notes))


def figure_11(table: Table) -> Verdict:
    """Communication falls per slave and grows linearly in sum with the slaves; adaptive declustering keeps the sum below.

    holds: the mean per slave falls (trend <= -0.8), the line through the sum has r^2 >= 0.9 and a positive slope, and the
    adaptive sum is below the fixed one, outside the repeats' ranges, at every measured number of slaves from 4 on. In shape:
    last < first per slave, last > first in sum, adaptive below by the means at the most slaves. Does not hold: otherwise.
    """
    fixed: Where = {"declustering": "fixed"}
    each = table.curve("communication_s", "slaves", "mean", fixed)
    total = table.curve("communication_s", "slaves", "sum", fixed)
    adaptive = table.curve("communication_s", "slaves", "sum", {"declustering": "adaptive"})
    if len(each) < 3 or len(total) < 3:
        return Verdict(UNKNOWN, "Fewer than three numbers of slaves were measured.")
    slope, fit = line(total.x.astype(float), total.mean)
    pairs = [(i, total.at(x)) for i, x in enumerate(adaptive.x) if x >= 4]
    both = [(i, j) for i, j in pairs if j is not None]
    clear = bool(both) and all(adaptive.high[i] < total.low[j] for i, j in both)
    below = bool(both) and adaptive.mean[both[-1][0]] < total.mean[both[-1][1]]
    ends = f"from {quantity(float(each.x[0]))} to {quantity(float(each.x[-1]))} slaves"
    why = [
        f"Per slave it goes from {each.mean[0]:.2g} to {each.mean[-1]:.2g} s per minute {ends}",
        f"the sum from {total.mean[0]:.2g} to {total.mean[-1]:.2g} ({slope:+.2g} per slave, r^2 = {fit:.2f})",
    ]
    text = _sentence("; ".join(why))
    if not both:
        return Verdict(UNKNOWN, f"{text} Adaptive declustering was not measured with 4 slaves or more.")
    i, j = both[-1]
    count = setting("slaves", float(adaptive.x[i]))
    text += f" With adaptive declustering the sum is {adaptive.mean[i]:.2g} instead of {total.mean[j]:.2g} with {count}."
    if trend(each.mean) <= -0.8 and fit >= 0.9 and slope > 0 and clear:
        return Verdict(HOLDS, text)
    ends_right = each.mean[-1] < each.mean[0] and total.mean[-1] > total.mean[0]
    return Verdict(SHAPE if ends_right and below else FAILS, text)


def figure_12(table: Table) -> Verdict:
    """The divergence of communication across slaves (most - least) grows with the rate.

    holds: at the highest rate it is larger than at the lowest by more than the repeats' spread, and it has a monotone trend
    (rank correlation >= 0.8). In shape: the first without the second. Does not hold: otherwise.
    """
    low, high = (table.curve("communication_s", RATE, over, _four(table, ON)) for over in ("min", "max"))
    common = [(i, low.at(x)) for i, x in enumerate(high.x)]
    both = [(i, j) for i, j in common if j is not None]
    if len(both) < 2:
        return Verdict(UNKNOWN, "Fewer than two rates were measured.")
    i, j = (np.array(k) for k in zip(*both, strict=True))
    width = high.mean[i] - low.mean[j]
    noise = ((high.high[i] - high.low[i]) + (low.high[j] - low.low[j])) / 2
    grown, spread, rho = width[-1] - width[0], max(noise[0], noise[-1]), trend(width)
    why = (
        f"Most minus least is {width[0]:.2g} s per minute at {quantity(float(high.x[i[0]]))} and {width[-1]:.2g} at "
        f"{quantity(float(high.x[i[-1]]))} tuples/s/stream; the repeats spread by {spread:.2g}; rank correlation {rho:.2f}."
    )
    return Verdict(HOLDS if grown > spread and rho >= 0.8 else SHAPE if grown > spread else FAILS, why)


def _over_epoch(table: Table, metric: str, over: str, sign: int, say: Callable[[Where, Curve], str]) -> Verdict:
    """The common part of figures 13 and 14: each measured arrival rate has its own verdict."""
    rates = table.values(RATE)
    verdicts, notes = [], []
    for where in [{RATE: rate} for rate in rates] or [{}]:
        curve = table.curve(metric, EPOCH, over, where)
        if len(curve) < 3:
            continue
        moved = sign * (curve.mean[-1] - curve.mean[0])
        regular = sign * trend(curve.mean) >= 0.9
        verdicts.append(FAILS if moved <= _spread(curve) else HOLDS if regular else SHAPE)
        at = "".join(f"At {setting(RATE, rate)}: " for rate in where.values() if len(rates) > 1)
        ends = f"from t_d = {quantity(float(curve.x[0]))} s to {quantity(float(curve.x[-1]))} s it goes from"
        notes.append(_sentence(f"{at}{ends} {curve.mean[0]:.3g} to {curve.mean[-1]:.3g} {say(where, curve)}"))
    if not verdicts:
        return Verdict(UNKNOWN, "Fewer than three distribution epochs were measured.")
    same = verdicts[0] if len(set(verdicts)) == 1 else SHAPE
    return Verdict(same, " ".join(notes))


def figure_13(table: Table) -> Verdict:
    """The delay grows with t_d.

    holds: at every measured rate, from the shortest t_d to the longest by more than the repeats' spread, with rank correlation
    >= 0.9. In shape: the first only, or not at every rate. Does not hold: at no rate. The slope is stated beside that of
    waiting alone: half a t_d at the master, then half the time that a slave is busy with a delivery: 0.5 + busy / 2.
    """

    def say(where: Where, curve: Curve) -> str:
        slope, fit = line(curve.x.astype(float), curve.mean)
        busy = table.curve("busy_ratio", EPOCH, "mean", where)
        waiting = f"; waiting alone gives 0.5 + busy / 2 = {0.5 + float(busy.mean.mean()) / 2:.2f}" if len(busy) else ""
        return f"s, with a slope of {slope:.2f} s per s of t_d (r^2 = {fit:.2f}){waiting}"

    return _over_epoch(table, "delay_mean_s", "run", 1, say)


def figure_14(table: Table) -> Verdict:
    """Communication overhead falls with t_d: criteria of figure 13 with the sign turned round."""
    return _over_epoch(table, "communication_s", "mean", -1, lambda where, curve: "s per minute")


# ---------------------------------------------------------------- StreamCloud

_SUSTAINED, _SATURATION = "sustainable_workload.rate", "saturation_tuples_per_s"
_LINEAR, _GROWS = 0.9, 0.65  # of twice the rate, when the nodes are doubled
_OVER_OPERATOR, _OVER_QUERY = 2.5, 5.0  # times, of the subqueries' rate


def streamcloud_linear(table: Table) -> Verdict:
    """The highest sustained rate grows with the nodes: holds when twice the nodes carry 1.8 times the rate at least, in shape
    when 1.3 times, at every doubling."""
    found = _sustained(table, "slaves")
    rates = {round(float(nodes)): rate for nodes, rate in found.items()}
    steps = [(a, b, rates[b] / rates[a] / (b / a)) for a, b in pairwise(sorted(rates)) if rates[a] > 0]
    if not steps:
        return Verdict(UNKNOWN, "Rates of two numbers of nodes are needed.")
    said = "; ".join(f"{b} nodes carry {rates[b]:,.0f}/s, {share:.2f} of {b / a:g} times {a}" for a, b, share in steps)
    least = min(share for *_, share in steps)
    return Verdict(HOLDS if least >= _LINEAR else SHAPE if least >= _GROWS else FAILS, _sentence(said))


def streamcloud_product(table: Table) -> Verdict:
    """Comparisons per second, which grow with the square of the rate, grow with the nodes: holds when twice the nodes make 1.8
    times as many at least, in shape when 1.3 times, at every doubling."""
    rates = {round(float(nodes)): rate for nodes, rate in _sustained(table, "slaves").items()}
    steps = [(a, b, (rates[b] / rates[a]) ** 2 / (b / a)) for a, b in pairwise(sorted(rates)) if rates[a] > 0]
    if not steps:
        return Verdict(UNKNOWN, "Rates of two numbers of nodes are needed.")
    said = "; ".join(
        f"{b} nodes carry {rates[b]:,.0f}/s, and compare {share * b / a:.2f} times as much as {a}" for a, b, share in steps
    )
    least = min(share for *_, share in steps)
    return Verdict(HOLDS if least >= _LINEAR else SHAPE if least >= _GROWS else FAILS, _sentence(said))


def streamcloud_strategies(table: Table) -> Verdict:
    """Subqueries carry 2.5 times what operators do, and 5 times what whole queries do: holds; in shape when both carry less, or
    operators were not measured."""
    found = _sustained(table, "cluster.strategy")
    if {"query", "subquery"} - found.keys():
        return Verdict(UNKNOWN, "The rates of query and subquery are needed.")
    others = {name: times for name, times in (("operator", _OVER_OPERATOR), ("query", _OVER_QUERY)) if name in found}
    over = {name: found["subquery"] / found[name] if found[name] else np.inf for name in others}
    said = f"Subquery carries {found['subquery']:,.0f}/s"
    below = {str(row.axes["cluster.strategy"]) for row in table.select(_SUSTAINED, None) if row.censored == BELOW}
    said += "".join(
        f", {'at least ' if name in below else ''}{over[name]:.3g} times what {name} does "
        f"({'below ' if name in below else ''}{found[name]:,.0f}/s)"
        for name in others
    )
    said += "" if "operator" in found else "; operator was not measured"
    holds = len(others) == len(over) == 2 and all(over[name] >= times for name, times in others.items())
    return Verdict(HOLDS if holds else SHAPE if min(over.values()) > 1 else FAILS, _sentence(said))


def streamcloud_sixty(table: Table) -> Verdict:
    """At distribution epochs of 200 ms, as in the other figures, subqueries carry 2.5 times what operators do and 5 times what
    whole queries do: holds; in shape when they carry more than both; does not hold otherwise. Other lengths of the epoch, over
    which messages are spread, are stated."""
    said, verdict = [], UNKNOWN
    for epoch_s in table.values(EPOCH):
        found = _means(table, "cluster.strategy", _SATURATION, {EPOCH: epoch_s})
        if {"query", "subquery", "operator"} - found.keys() or not found["subquery"]:
            continue
        over = [found["subquery"] / found[name] if found[name] else np.inf for name in ("operator", "query")]
        if epoch_s == 0.2:
            holds = over[0] >= _OVER_OPERATOR and over[1] >= _OVER_QUERY
            verdict = HOLDS if holds else SHAPE if min(over) > 1 else FAILS
        times = ["which carries nothing" if value == np.inf else f"{value:.3g} times" for value in over]
        rates = f"subquery carries {found['subquery']:,.0f}/s, over operator {times[0]}, over query {times[1]}"
        said.append(f"with epochs of {epoch_s:g} s {rates}")
    if verdict == UNKNOWN:
        return Verdict(UNKNOWN, "The rates of all strategies at epochs of 200 ms are needed.")
    return Verdict(verdict, _sentence("; ".join(said)))


_MUCH_TALK, _LITTLE_IDLE, _IDLE_OPERATORS = 0.40, 0.10, (0.25, 0.45)  # shares of the time


def streamcloud_causes(table: Table) -> Verdict:
    """Whole queries communicate for more than 40 % of the time, subqueries idle for less than 10 %, operators for 25 to 45 %,
    and operators communicate more than subqueries: holds. In shape: whole queries communicate most, and operators idle and
    communicate more than subqueries. Does not hold: otherwise."""
    strategies = ("query", "subquery", "operator")
    talk, idle = (_means(table, "cluster.strategy", metric) for metric in ("exchange_ratio", "waiting_ratio"))
    if set(strategies) - (talk.keys() & idle.keys()):
        return Verdict(UNKNOWN, "The times of all strategies are needed.")
    said = "; ".join(f"{name} communicates {talk[name]:.0%} of the time and idles {idle[name]:.0%}" for name in strategies)
    shape = talk["query"] == max(talk.values()) and idle["operator"] > idle["subquery"] and talk["operator"] > talk["subquery"]
    low, high = _IDLE_OPERATORS
    numbers = talk["query"] > _MUCH_TALK and idle["subquery"] < _LITTLE_IDLE and low <= idle["operator"] <= high
    return Verdict(HOLDS if shape and numbers else SHAPE if shape else FAILS, _sentence(said))


_SMALL, _EFFICIENCY = 16, {60: 0.90, 1024: 0.75}  # nodes of a small cluster; share of its rate of a node


def streamcloud_efficiency(table: Table) -> Verdict:
    """The rate of a node over the best of small clusters, up to 16 nodes, is 0.90 at 60 nodes and 0.75 at 1,024: holds; in
    shape when it is so at one of them."""
    found = {round(float(nodes)): rate for nodes, rate in _means(table, "slaves", "saturation_per_node").items()}
    small = [rate for nodes, rate in found.items() if nodes <= _SMALL]
    if not small or _EFFICIENCY.keys() - found.keys():
        return Verdict(UNKNOWN, "A small cluster, 60 and 1,024 nodes are needed.")
    shares = {nodes: found[nodes] / max(small) for nodes in _EFFICIENCY}
    good = [shares[nodes] >= least for nodes, least in _EFFICIENCY.items()]
    texts = (f"a node of {nodes:,} carries {share:.2f} of what one of a small cluster does" for nodes, share in shares.items())
    return Verdict(HOLDS if all(good) else SHAPE if any(good) else FAILS, _sentence("; ".join(texts)))


_BUSY = 0.95  # share of the time, at saturation


def streamcloud_queues(table: Table) -> Verdict:
    """Rates are sustained while the delay grows by less than 0.02 s per s. Holds: the delay of these varies at most 1.5-fold,
    at all higher rates it grows, and at the lowest of these the slaves are busy 95 % of the time. In shape: the last is not
    so."""
    metrics = ("delay_growth", "delay_mean_s", "utilisation_slaves")
    grows, delay, busy = ({float(r): v for r, v in _means(table, RATE, metric).items()} for metric in metrics)
    kept = [rate for rate in sorted(grows) if grows[rate] < GROWTH]
    beyond = [rate for rate in sorted(grows) if rate not in kept]
    if not kept or not beyond:
        return Verdict(UNKNOWN, "Rates below and above saturation are needed.")
    delays, first = [delay[rate] for rate in kept], beyond[0]
    varies = max(delays) / min(delays)
    said = (
        f"Up to {kept[-1]:,.0f}/s the delay varies {varies:.2g}-fold; at {first:,.0f}/s it grows by {grows[first]:.2g} s per s"
    )
    said += f", and the slaves are busy {busy[first]:.0%} of the time"
    shape = varies <= LITTLE and kept[-1] < first
    return Verdict(HOLDS if shape and busy[first] >= _BUSY else SHAPE if shape else FAILS, _sentence(said))


_FEWER = 0.95  # of the comparisons: fewer
_SHARP = 0.1  # s per s: growth of a delay that explodes


def streamcloud_product_queues(table: Table) -> Verdict:
    """Rates are sustained as in `streamcloud_queues`. Holds: for every number of nodes, slaves are busy 95 % of the time at the
    lowest rate that is not sustained, and at the highest rate the delay grows by 0.1 s per s or more; and at each rate that the
    fewest nodes do not sustain, it grows less with the most. In shape: the last alone."""
    found = _around_saturation(table)
    if found is None:
        return Verdict(UNKNOWN, "Two numbers of nodes, and rates below and above their saturation, are needed.")
    few, many = found[min(found)], found[max(found)]
    milder = all(many.grows[rate] < few.grows[rate] for rate in few.beyond if rate in many.grows)
    sharp = all(of.grows[max(of.grows)] >= _SHARP and of.busy[of.beyond[0]] >= _BUSY for of in found.values())
    said = "; ".join(
        f"{nodes} nodes: at {of.beyond[0]:,.0f}/s the delay grows by {of.grows[of.beyond[0]]:.2g} s per s and slaves are busy "
        f"{of.busy[of.beyond[0]]:.0%} of the time, at {max(of.grows):,.0f}/s by {of.grows[max(of.grows)]:.2g}"
        for nodes, of in sorted(found.items())
    )
    return Verdict(HOLDS if milder and sharp else SHAPE if milder else FAILS, _sentence(said))


def streamcloud_join_queues(table: Table) -> Verdict:
    """Rates are sustained as in `streamcloud_queues`. Holds: for every number of nodes, some sustained rates have at most 1.5
    times the least delay, others more, and at the lowest that is not sustained slaves are busy 95 % of the time; and at all
    rates at which the fewest nodes have more than that, the delay is shorter with the most. In shape: the last alone."""
    found = _around_saturation(table)
    if found is None:
        return Verdict(UNKNOWN, "Two numbers of nodes, and rates below and above their saturation, are needed.")
    few, many = found[min(found)], found[max(found)]
    long = [rate for rate in few.delay if few.delay[rate] > LITTLE * min(few.delay.values())]
    shorter = bool(long) and all(many.delay[rate] < few.delay[rate] for rate in long if rate in many.delay)
    regions = all(of.mild and of.busy[of.beyond[0]] >= _BUSY for of in found.values())
    said = "; ".join(
        f"{nodes} nodes: mild at {_rates(of.mild) if of.mild else 'no rate'}/s, steep from {of.beyond[0]:,.0f}/s on, where "
        f"slaves are busy {of.busy[of.beyond[0]]:.0%} of the time"
        for nodes, of in sorted(found.items())
    )
    said += f"; the delay is {'' if shorter else 'not '}shorter with {max(found)} than with {min(found)}"
    return Verdict(HOLDS if shorter and regions else SHAPE if shorter else FAILS, _sentence(said))


def streamcloud_comparisons(table: Table) -> Verdict:
    """Holds when twice the nodes, at every doubling, make at most 0.95 times the comparisons; in shape when the most nodes make
    at most 0.95 times those of the fewest."""
    found = {round(float(nodes)): made for nodes, made in _means(table, "slaves", "comparisons_per_s").items()}
    if len(found) < 2 or min(found.values()) <= 0:
        return Verdict(UNKNOWN, "Comparisons of two numbers of nodes are needed.")
    shares = [found[b] / found[a] for a, b in pairwise(sorted(found))]
    whole = found[max(found)] / found[min(found)]
    said = f"{max(found)} nodes make {whole:.2f} times the comparisons of {min(found)}"
    good = max(shares) <= _FEWER
    return Verdict(HOLDS if good else SHAPE if whole <= _FEWER else FAILS, _sentence(said))


@dataclass(frozen=True)
class _AroundSaturation:
    """By rate: growth of the delay, s per s; delay, s; busy share of the slaves. beyond: rates that are not sustained."""

    grows: dict[float, float]
    delay: dict[float, float]
    busy: dict[float, float]

    @property
    def beyond(self) -> list[float]:
        return [rate for rate in sorted(self.grows) if self.grows[rate] >= GROWTH]

    @property
    def mild(self) -> list[float]:
        """Sustained rates with a longer delay than without a queue."""
        kept = [rate for rate in sorted(self.grows) if rate not in self.beyond]
        return [rate for rate in kept if self.delay[rate] > LITTLE * min(self.delay.values())]


def _around_saturation(table: Table) -> dict[int, _AroundSaturation] | None:
    """By the number of nodes; None unless there are two, with rates below and above saturation."""
    out = {}
    for nodes in sorted({row.axes["slaves"] for row in table.rows}, key=float):
        metrics = ("delay_growth", "delay_mean_s", "utilisation_slaves")
        of = ({float(r): v for r, v in _means(table, RATE, metric, {"slaves": nodes}).items()} for metric in metrics)
        out[round(float(nodes))] = _AroundSaturation(*of)
    complete = all(of.beyond and len(of.beyond) < len(of.grows) for of in out.values())
    return out if complete and len(out) >= 2 else None


def _sustained(table: Table, axis: str) -> dict[str, float]:
    """The highest sustained rate at each value of an axis, found by a search or simulated."""
    return _means(table, axis, _SUSTAINED) or _means(table, axis, _SATURATION)


def _means(table: Table, axis: str, metric: str, where: Where | None = None) -> dict[str, float]:
    """Of a metric, at each value of an axis."""
    rows = [row for row in table.select(metric, None, where) if row.counts]
    return {str(row.axes[axis]): row.statistics["mean"] for row in rows}


CRITERIA: dict[int | str, Callable[[Table], Verdict]] = {
    5: figure_5,
    6: figure_6,
    7: figure_7,
    8: figure_8,
    9: figure_9,
    10: figure_10,
    11: figure_11,
    12: figure_12,
    13: figure_13,
    14: figure_14,
    "StreamCloud 7a": streamcloud_linear,
    "StreamCloud 7a, queues": streamcloud_queues,
    "StreamCloud 7b": streamcloud_linear,
    "StreamCloud 7b, queues": streamcloud_join_queues,
    "StreamCloud 7c": streamcloud_linear,
    "StreamCloud 7d": streamcloud_product,
    "StreamCloud 7d, queues": streamcloud_product_queues,
    "StreamCloud 7f": streamcloud_strategies,
    "StreamCloud 8": streamcloud_sixty,
    "StreamCloud 9": streamcloud_causes,
    "StreamCloud claim 4": streamcloud_comparisons,
    "StreamCloud claim 20": streamcloud_efficiency,
}


def _sentence(text: str) -> str:
    text = text if text.endswith(".") else f"{text}."
    return text[:1].upper() + text[1:]
