"""Many conditions at once: which rows may satisfy each, by a comparison of a column with a constant.

What: `ComparisonIndex.of(conditions)`, which has those that it can; `candidates(rows)`: of each condition that some rows may
satisfy, these rows.
Why: thousands of queries ask one stream for this key or that limit each (CQELS Cloud, section 4.1, has an index over the
constants of patterns). Tested one after another every row costs as much as there are queries; here it costs a search, and what
it satisfies.
Stays out: the rest of a condition, which is evaluated for its candidates (`expressions.chain`). Conditions that fail for some
rows: which row does would depend on who is asked first.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import booleans_of, decoded, integers_of
from swjoin.core.batch import I64
from swjoin.expressions.tree import Call, Column, Expr, Literal, can_fail

_REVERSED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _comparison(condition: Expr) -> tuple[Column, str, Literal] | None:
    """The column, operator and constant of a comparison that every row satisfies which satisfies the condition; of several one
    for equality, if there is one."""
    found = []
    for part in condition.args if isinstance(condition, Call) and condition.function == "and" else (condition,):
        if not isinstance(part, Call) or part.function not in _REVERSED:
            continue
        operator, (one, other) = part.function, part.args
        if isinstance(one, Literal):
            operator, one, other = _REVERSED[operator], other, one
        if isinstance(one, Column) and isinstance(other, Literal) and other.scalar.is_valid and one.type == other.type:
            if operator == "=" and _is_exact(one.type):
                return one, operator, other
            if operator != "=" and (pa.types.is_signed_integer(one.type) or pa.types.is_timestamp(one.type)):
                found.append((one, operator, other))
    return found[0] if found else None


def _is_comparison(condition: Expr) -> bool:
    return isinstance(condition, Call) and condition.function in _REVERSED


def _is_exact(kind: pa.DataType) -> bool:
    """Whether equal values of a type are the same ones."""
    t = pa.types
    return any(is_one(kind) for is_one in (t.is_integer, t.is_string, t.is_large_string, t.is_timestamp, t.is_boolean))


@dataclass(frozen=True)
class _Equal:
    """Conditions with equality. column: as expressions read it. numbers: by constant."""

    column: Column
    constants: pa.Array
    numbers: tuple[tuple[int, ...], ...]

    def candidates(self, values: pa.Array) -> Iterator[tuple[int, I64]]:
        found = pc.index_in(values, value_set=self.constants)
        rows = np.flatnonzero(booleans_of(pc.is_valid(found)))
        which = integers_of(found)[rows]
        order = np.argsort(which, kind="stable")
        rows, which = rows[order], which[order]
        ends = np.flatnonzero(np.diff(which, append=-1)) + 1  # behind the rows of each constant
        for begin, end in pairwise([0, *ends.tolist()]):
            for number in self.numbers[which[begin]]:
                yield number, rows[begin:end]


@dataclass(frozen=True)
class _Limited:
    """Conditions with a limit. limits: int64, ascending. above: whether values above a limit satisfy them, or those below.
    inclusive: by limit, whether it does."""

    column: Column
    limits: I64
    inclusive: np.ndarray[tuple[int], np.dtype[np.bool_]]
    numbers: tuple[int, ...]
    above: bool

    def candidates(self, values: pa.Array) -> Iterator[tuple[int, I64]]:
        rows = np.flatnonzero(booleans_of(pc.is_valid(values)))
        whole = integers_of(values.cast(pa.int64()))[rows]
        order = np.argsort(whole, kind="stable")
        rows, whole = rows[order], whole[order]
        left, right = np.searchsorted(whole, self.limits, "left"), np.searchsorted(whole, self.limits, "right")
        ends = np.where(self.inclusive == self.above, left, right).tolist()
        for number, end in zip(self.numbers, ends, strict=True):
            some = rows[end:] if self.above else rows[:end]
            if len(some):
                yield number, np.sort(some)


@dataclass(frozen=True)
class ComparisonIndex:
    """numbers: of the conditions that it has. exact: of those that are a comparison alone, which their candidates satisfy."""

    numbers: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()
    _parts: tuple[_Equal | _Limited, ...] = field(default=(), repr=False)

    @staticmethod
    def of(conditions: Mapping[int, Expr], fewest: int = 1) -> ComparisonIndex:
        """conditions: by number, over the columns of the same rows. fewest: of a column and operator that it has."""
        by_kind: dict[tuple[Column, str], list[tuple[int, str, Literal]]] = {}
        for number, condition in conditions.items():
            comparison = None if can_fail(condition) else _comparison(condition)
            if comparison is not None:
                column, operator, literal = comparison
                by_kind.setdefault((column, operator[0]), []).append((number, operator, literal))
        several = {kind: members for kind, members in by_kind.items() if len(members) >= fewest}
        parts = [_equal(column, of) if kind == "=" else _limited(column, of) for (column, kind), of in several.items()]
        numbers = frozenset(number for of in several.values() for number, _, _ in of)
        exact = frozenset(number for number in numbers if _is_comparison(conditions[number]))
        return ComparisonIndex(numbers, exact, tuple(parts))

    def candidates(self, rows: pa.RecordBatch) -> Iterator[tuple[int, I64]]:
        """Of each of its conditions that some rows may satisfy, these rows, int64, ascending; no other row does."""
        for part in self._parts if rows.num_rows else ():
            column = decoded(rows.column(part.column.name))
            yield from part.candidates(column if column.type == part.column.type else column.cast(part.column.type))


def _equal(column: Column, members: list[tuple[int, str, Literal]]) -> _Equal:
    numbers: dict[Literal, list[int]] = {}
    for number, _, literal in members:
        numbers.setdefault(literal, []).append(number)
    constants = pa.concat_arrays([pa.repeat(literal.scalar, 1) for literal in numbers])
    return _Equal(column, constants, tuple(map(tuple, numbers.values())))


def _limited(column: Column, members: list[tuple[int, str, Literal]]) -> _Limited:
    limits = np.array([literal.scalar.cast(pa.int64()).as_py() for _, _, literal in members], np.int64)
    order = np.argsort(limits, kind="stable")
    inclusive = np.array([operator.endswith("=") for _, operator, _ in members])
    numbers = tuple(members[i][0] for i in order.tolist())
    return _Limited(column, limits[order], inclusive[order], numbers, above=members[0][1].startswith(">"))
