"""What conditions say of the difference between two times.

What: `time_differences`.
Why: where a condition bounds the time between two inputs of a join, rows are looked for, and kept, within these bounds alone.
Stays out: conditions of joins in SQL, which are planned (`frontends.sql.conditions`).
"""

from __future__ import annotations

from collections.abc import Iterator

import pyarrow as pa

from swjoin.expressions.tree import Call, Column, Expr, Literal

_MICROSECONDS = {"s": 1_000_000, "ms": 1_000, "us": 1}


def time_differences(condition: Expr) -> Iterator[tuple[str, str, int]]:
    """(one, other, least): rows satisfy the condition only if one - other >= least, microseconds rounded down, for these
    columns of timestamps."""
    waiting = [condition]
    while waiting:
        expr = waiting.pop()
        if not isinstance(expr, Call):
            continue
        if expr.function == "and":
            waiting += expr.args
        elif expr.function in (">=", ">", "<=", "<"):
            later, earlier = expr.args if expr.function[0] == ">" else expr.args[::-1]
            one, other = _shifted(later), _shifted(earlier)
            if one is not None and other is not None:
                yield one[0], other[0], other[1] - one[1]


def _shifted(expr: Expr) -> tuple[str, int] | None:
    """The column of timestamps that an expression is, and what is added to it, microseconds rounded down."""
    if isinstance(expr, Column):
        return (expr.name, 0) if pa.types.is_timestamp(expr.type) else None
    if not isinstance(expr, Call) or expr.function not in ("+", "-") or len(expr.args) != 2:
        return None
    below, by = _shifted(expr.args[0]), expr.args[1]
    if below is None or not isinstance(by, Literal) or not pa.types.is_duration(by.scalar.type) or not by.scalar.is_valid:
        return None
    unit, value = by.scalar.type.unit, by.scalar.value
    us = value // 1_000 if unit == "ns" else value * _MICROSECONDS[unit]
    return below[0], below[1] + (us if expr.function == "+" else -us)
