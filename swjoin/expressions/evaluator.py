"""Evaluation of expressions over record batches, column by column.

What: `evaluate`, `satisfied`; `EvaluationFailed`.
Why: a value that cannot be computed is an error that names expression and row, not null and not another value; but only where a
row needs the value: `case when x <> 0 then 10 // x end` is right for all rows.
Stays out: functions (`expressions.functions`), what rows that do not satisfy a condition leave behind.

Common subexpressions are computed once per batch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import array_of, booleans_of, scalar_of
from swjoin.core.batch import Bool
from swjoin.core.errors import RunFailed, one_line
from swjoin.expressions.functions import FUNCTIONS
from swjoin.expressions.functions.casts import refused
from swjoin.expressions.functions.catalogue import Value
from swjoin.expressions.tree import Call, Column, Expr, Literal, can_fail, columns_read
from swjoin.expressions.types import BOOL


class EvaluationFailed(RunFailed):
    """row: index, in the batch, of the first row for which the expression has no value."""

    def __init__(self, problem: str, row: int) -> None:
        super().__init__(problem)
        self.row = row


def evaluate(expr: Expr, rows: pa.RecordBatch) -> pa.Array[Any]:
    """The expression's value for every row. EvaluationFailed if a row has none."""
    found = evaluate_all((expr,), rows)
    return found[0]


def evaluate_all(exprs: tuple[Expr, ...], rows: pa.RecordBatch) -> list[pa.Array[Any]]:
    """The value of each expression for every row. EvaluationFailed if a row has none."""
    known = _Rows(rows)
    try:
        return [known.array(expr) for expr in exprs]
    except pa.ArrowInvalid:
        raise _failure(exprs, rows) from None


def satisfied(condition: Expr, rows: pa.RecordBatch) -> Bool:
    """Which rows satisfy the condition: bool (n,); null is not satisfied."""
    found = pc.fill_null(evaluate(condition, rows), scalar_of(False, BOOL))
    return booleans_of(found)


class _Rows:
    """Rows, and the values that have been computed for them."""

    def __init__(self, rows: pa.RecordBatch) -> None:
        self._rows = rows
        self._values: dict[Expr, Value] = {}

    def __len__(self) -> int:
        return int(self._rows.num_rows)

    def array(self, expr: Expr) -> pa.Array[Any]:
        if not len(self):  # and nothing fails for no rows
            return pa.nulls(0, expr.type)
        value = self.value(expr)
        if isinstance(value, pa.Scalar):
            return pa.repeat(value, len(self))
        return value

    def value(self, expr: Expr) -> Value:
        if isinstance(expr, Literal):
            return expr.scalar
        if expr not in self._values:
            self._values[expr] = self._column(expr) if isinstance(expr, Column) else self._call(expr)
        return self._values[expr]

    def _column(self, expr: Column) -> Value:
        column = self._rows.column(expr.name)
        if pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        return column if column.type == expr.type else column.cast(expr.type)

    def _call(self, expr: Call) -> Value:
        kernel = FUNCTIONS[expr.function].kernel
        if kernel is not None:
            return kernel([self.value(arg) for arg in expr.args], expr.options, expr.type)
        return _LAZY[expr.function](self, expr)

    def where(self, mask: pa.Array[Any]) -> _Rows:
        return _Rows(self._rows.filter(mask))


def _connective(stops_at: bool) -> Callable[[_Rows, Call], Value]:
    """`and` stops at false, `or` at true: arguments that can fail are evaluated for the other rows alone."""
    combine = pc.or_kleene if stops_at else pc.and_kleene
    decided = scalar_of(stops_at, BOOL)

    def evaluated(rows: _Rows, expr: Call) -> Value:
        found: Value = scalar_of(not stops_at, BOOL)
        for arg in expr.args:
            if not can_fail(arg) or (isinstance(found, pa.Scalar) and found.as_py() is not stops_at):
                found = combine(found, rows.value(arg))
                continue
            whole = pa.repeat(found, len(rows)) if isinstance(found, pa.Scalar) else found
            open_rows = pc.coalesce(pc.not_equal(whole, decided), scalar_of(True, BOOL))
            if not pc.any(open_rows).as_py():
                return whole
            found = combine(whole, _scattered(rows.where(open_rows).array(arg), open_rows, decided))
        return found

    return evaluated


def _scattered(values: pa.Array[Any], mask: pa.Array[Any], otherwise: pa.Scalar[Any]) -> pa.Array[Any]:
    """An array with these values where the mask holds, in order."""
    holds = booleans_of(mask)
    at = np.full(len(holds), len(values), np.int64)
    at[holds] = np.arange(len(values))
    return pa.concat_arrays([values, pa.repeat(otherwise, 1)]).take(array_of(at))


def _chosen(rows: _Rows, branches: list[tuple[Callable[[_Rows], Value], Expr]], kind: pa.DataType) -> Value:
    """Of each row the value of the first branch whose condition holds. Values are evaluated for these rows alone."""
    count = len(rows)
    left = np.arange(count)  # rows without a value yet
    parts: list[pa.Array[Any]] = []
    order: list[np.ndarray[Any, np.dtype[np.int64]]] = []
    for condition, value in branches:
        found = condition(rows)
        mask = pa.repeat(found, len(rows)) if isinstance(found, pa.Scalar) else found
        mask = pc.fill_null(mask, scalar_of(False, BOOL))
        holds = booleans_of(mask)
        if holds.any():
            parts.append(rows.where(mask).array(value))
            order.append(left[holds])
            rows, left = rows.where(pc.invert(mask)), left[~holds]
    parts.append(pa.nulls(len(left), kind))
    order.append(left)
    back = np.empty(count, np.int64)
    back[np.concatenate(order)] = np.arange(count)
    return pa.concat_arrays(parts).take(array_of(back))


def _case(rows: _Rows, expr: Call) -> Value:
    *pairs, otherwise = expr.args
    whens, values = pairs[::2], pairs[1::2]
    if expr.can_fail:
        branches = [(_condition(when), value) for when, value in zip(whens, values, strict=True)]
        return _chosen(rows, [*branches, (_condition(Literal.of(True, BOOL)), otherwise)], expr.type)
    found = rows.value(otherwise)
    for when, value in zip(reversed(whens), reversed(values), strict=True):
        found = pc.if_else(pc.coalesce(rows.value(when), scalar_of(False, BOOL)), rows.value(value), found)
    return found


def _coalesce(rows: _Rows, expr: Call) -> Value:
    if not expr.can_fail:
        return pc.coalesce(*(rows.value(arg) for arg in expr.args))
    return _chosen(rows, [(_present(arg), arg) for arg in expr.args], expr.type)


def _condition(expr: Expr) -> Callable[[_Rows], Value]:
    return lambda rows: rows.value(expr)


def _present(expr: Expr) -> Callable[[_Rows], Value]:
    return lambda rows: pc.is_valid(rows.value(expr))


_LAZY: dict[str, Callable[[_Rows, Call], Value]] = {
    "and": _connective(stops_at=False),
    "or": _connective(stops_at=True),
    "case": _case,
    "coalesce": _coalesce,
}


# ---------------------------------------------------------------- errors


def _fails(expr: Expr, rows: pa.RecordBatch) -> str | None:
    """What is refused, if the expression has no value for one of these rows."""
    try:
        _Rows(rows).array(expr)
    except pa.ArrowInvalid as error:
        return refused(error)
    return None


def _shown(value: pa.Scalar) -> str:
    """A value in an error; of times that Python has none for, the integer."""
    try:
        return one_line(value, 60)
    except (OverflowError, ValueError):
        return one_line(value.cast(pa.int64() if pa.types.is_timestamp(value.type) else pa.string()), 60)


def _failure(exprs: tuple[Expr, ...], rows: pa.RecordBatch) -> EvaluationFailed:
    """The error of the first row for which one of the expressions has no value, and the innermost one of these."""
    expr = next(expr for expr in exprs if _fails(expr, rows))
    first, count = 0, rows.num_rows
    while count > 1:
        half = count // 2
        if _fails(expr, rows.slice(first, half)):
            count = half
        else:
            first, count = first + half, count - half
    row = rows.slice(first, 1)
    assert isinstance(expr, Call), "columns and literals have values"
    inner: Any = expr
    while inner.function not in _LAZY and (deeper := [arg for arg in inner.args if _fails(arg, row)]):
        inner = deeper[0]
    given = ", ".join(f"{name} = {_shown(row.column(name)[0])}" for name in columns_read(inner))
    return EvaluationFailed(f"{inner.text}: {_fails(inner, row)}{f', with {given}' if given else ''}", first)
