"""Findings of an experiment past the paper, in sentences: extremes, and ratios to a reference.

What: `findings(table, metrics) -> str`.
Why: such an experiment has no claim; its numbers are marked as measured, or as bounds of a search.
Stays out: drawing, verdicts on the paper's claims (`claims`).
"""

from __future__ import annotations

from swjoin.sweeps.metrics import AT_LEAST, BELOW

from .sweep_tables import Row, Table, amount, bounded, metric_label, setting

REFERENCE = "reference"  # the label of an axis to which its others are compared
_SIDE = {BELOW: -1, "": 0, AT_LEAST: 1}  # of the shown value on which the true one lies


def findings(table: Table, metrics: list[tuple[str, str | None]]) -> str:
    """For each metric its highest and lowest value with their points and ratio, and ratios to the reference."""
    said = []
    for metric, over in metrics:
        rows = [row for row in table.select(metric, over) if row.counts]
        if rows:
            said += [_extremes(table, metric, rows), *_against_reference(table, metric, rows)]
    return " ".join(said) or "Not measured yet."


def _mean(row: Row) -> float:
    return row.statistics["mean"]


def _rank(row: Row) -> tuple[float, int]:
    return _mean(row), _SIDE.get(row.censored, 0)


def _value(metric: str, row: Row) -> str:
    return bounded(amount(metric, _mean(row)), row.censored)


def _extremes(table: Table, metric: str, rows: list[Row]) -> str:
    label = metric_label(metric, rows[0].unit, rows[0].over)
    label = label[:1].upper() + label[1:]
    best, worst = max(rows, key=_rank), min(rows, key=_rank)
    if _rank(best) == _rank(worst):
        return f"{label}: {_value(metric, best)} at {f'all {len(rows)} points' if len(rows) > 1 else 'the one point measured'}."
    varying = [axis for axis in table.axes if len(table.values(axis)) > 1]

    def where(row: Row) -> str:
        same = [r for r in rows if r.censored and _rank(r) == _rank(row)] or [row]
        return "; ".join(" and ".join(setting(axis, r.axes[axis]) for axis in varying) for r in same)

    ratio = _ratio(best, worst)
    return (
        f"{label}: the highest is {_value(metric, best)} ({where(best)}), the lowest {_value(metric, worst)} ({where(worst)})"
        f"{f', a ratio of {ratio}' if ratio and _mean(best) != _mean(worst) else ''}."
    )


def _ratio(a: Row, b: Row) -> str:
    """a / b in words, as a bound if one of them is; empty when unknown."""
    sides = {side for side in (_SIDE.get(a.censored, 0), -_SIDE.get(b.censored, 0)) if side}
    if _mean(b) <= 0 or len(sides) > 1:
        return ""
    return bounded(f"{_mean(a) / _mean(b):.2g}", {1: AT_LEAST, -1: BELOW}[sides.pop()] if sides else "")


def _against_reference(table: Table, metric: str, rows: list[Row]) -> list[str]:
    """A sentence per setting of the other axes, the highest ratio first."""
    axis = next((axis for axis in table.axes if REFERENCE in table.values(axis)), None)
    if axis is None:
        return []
    others = [name for name in table.axes if name != axis and len(table.values(name)) > 1]
    groups: dict[str, list[Row]] = {}
    for row in rows:
        groups.setdefault(" and ".join(setting(name, row.axes[name]) for name in others), []).append(row)
    said = []
    for name, group in groups.items():
        begin = f"{name}: against" if name else "Against"
        reference = next((row for row in group if row.axes[axis] == REFERENCE), None)
        if reference is None:
            said.append(f"{begin} the reference nothing can be told: it was not measured.")
            continue
        compared = sorted((row for row in group if row is not reference), key=_rank, reverse=True)
        known = [(row, _ratio(row, reference)) for row in compared]
        parts = [f"{ratio or 'not known how many'} times ({setting(axis, row.axes[axis])})" for row, ratio in known]
        if parts:
            said.append(f"{begin} the reference ({_value(metric, reference)}): {', '.join(parts)}.")
    return said
