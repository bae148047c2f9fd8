"""Steps of a chain of stateless operators: filters, projections and copies of tuples with columns.

What: `Selection`, `Projection`, `Copying`, functions of a batch of tuples; `batch_of`, their columns.
Why: what stands between two stages is done to whole batches, where the rows are sent. Times and ids of rows stay.
Stays out: plans, which have steps, and exchanges, which do them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import array_of, booleans_of
from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.expressions.evaluator import EvaluationFailed, evaluate_all, satisfied
from swjoin.expressions.tree import Column, Expr


def batch_of(rows: TupleBatch) -> pa.RecordBatch:
    """The columns; of tuples that need none, as many rows."""
    return pa.record_batch({"": pa.nulls(len(rows))}) if rows.columns is None else rows.columns.batch


@dataclass(frozen=True)
class Selection:
    """The tuples that satisfy a condition. name: of the plan's filter, for messages."""

    name: str
    condition: Expr

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """RunFailed, with the id of the row, where the condition has no value."""
        try:
            mask = satisfied(self.condition, batch_of(rows))
        except EvaluationFailed as error:
            raise error.prefixed(f"{self.name}, row {rows.id[error.row]}") from None
        return rows if bool(mask.all()) else rows.take(np.flatnonzero(mask))


@dataclass(frozen=True)
class Projection:
    """The tuples with columns computed from theirs. columns: (name, expression, type); a column alone is passed on as it is."""

    name: str
    columns: tuple[tuple[str, Expr, pa.DataType], ...]

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """RunFailed, with the id of the row, where an expression has no value."""
        batch = batch_of(rows)
        exprs = tuple(dict.fromkeys(expr for _, expr, _ in self.columns if not isinstance(expr, Column)))
        try:
            values = dict(zip(exprs, evaluate_all(exprs, batch), strict=True))
        except EvaluationFailed as error:
            raise error.prefixed(f"{self.name}, row {rows.id[error.row]}") from None
        made = []
        for _, expr, kind in self.columns:
            value = batch.column(expr.name) if isinstance(expr, Column) else values[expr]
            made.append(value if value.type == kind else value.cast(kind))
        return replace(rows, columns=Columns(pa.RecordBatch.from_arrays(made, [name for name, _, _ in self.columns])))


@dataclass(frozen=True)
class Copying:
    """The tuples, each once for every different value of two columns, in whose place they have `column` with that value; with a
    null in either once, with the first. cell_bits: lowest bits in which values do not differ."""

    column: str
    first: str
    second: str
    cell_bits: int = 0

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        batch = batch_of(rows)
        first, second = batch.column(self.first), batch.column(self.second)
        cells = [values if self.cell_bits == 0 else pc.shift_right(values, self.cell_bits) for values in (first, second)]
        twice = booleans_of(pc.not_equal(*cells).fill_null(False))
        last = np.cumsum(1 + twice)  # position behind each tuple's copies
        positions = np.repeat(np.arange(len(rows)), 1 + twice)
        of_second = np.zeros(len(positions), np.bool_)
        of_second[last[twice] - 1] = True
        index = array_of(positions)
        key = pc.if_else(array_of(of_second), second.take(index), first.take(index))
        shown = [name for name in batch.schema.names if name not in (self.first, self.second)]
        copies = replace(rows, columns=Columns(batch.select(shown)) if shown else None).take(positions)
        rest = [] if copies.columns is None else copies.columns.batch.columns
        return replace(copies, columns=Columns(pa.RecordBatch.from_arrays([*rest, key], [*shown, self.column])))
