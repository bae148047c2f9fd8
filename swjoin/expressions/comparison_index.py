"""Many conditions at once: which rows may satisfy each, by a comparison of a column with a constant.

What: `ComparisonIndex.of(conditions)`, which has those that it can; `candidates(rows)`: of each condition that some rows may
satisfy, these rows. `limits_of(condition) -> Limits`, of one that is limits of columns and nothing else.
Why: thousands of queries ask one stream for this key or that limit each (CQELS Cloud, section 4.1, has an index over the
constants of patterns). Tested one after another every row costs as much as there are queries; here it costs a search, and what
it satisfies.
Stays out: the rest of a condition, which is evaluated for its candidates (`expressions.chain`). Conditions that fail for some
rows: which row does would depend on who is asked first.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import booleans_of, decoded, integers_of
from swjoin.core.batch import I64, Bool
from swjoin.expressions.tree import Call, Column, Expr, Literal, can_fail

_FIRST, _LAST = -(2**63), 2**63 - 1
_MOST = 4  # a condition that may hold for more than 1 in so many rows is tested for all of them: nothing is copied
_REVERSED = {"=": "=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}


class _Comparison(NamedTuple):
    """A column beside a constant, in this order."""

    column: Column
    operator: str
    literal: Literal


def _comparisons(condition: Expr) -> list[_Comparison]:
    """Comparisons of a column with a constant that every row satisfies which satisfies the condition."""
    found = []
    for part in condition.args if isinstance(condition, Call) and condition.function == "and" else (condition,):
        if not isinstance(part, Call) or part.function not in _REVERSED:
            continue
        operator, (one, other) = part.function, part.args
        if isinstance(one, Literal):
            operator, one, other = _REVERSED[operator], other, one
        if isinstance(one, Column) and isinstance(other, Literal) and other.scalar.is_valid and one.type == other.type:
            able = _is_exact(one.type) if operator == "=" else _is_whole(one.type)
            found += [_Comparison(one, operator, other)] if able else []
    return found


def _searched(condition: Expr) -> tuple[_Comparison, ...]:
    """Those by which rows are found: one for equality, or all limits of the first column that has one."""
    found = [] if can_fail(condition) else _comparisons(condition)
    equal = next((of for of in found if of.operator == "="), None)
    return (equal,) if equal is not None else tuple(of for of in found if of.column == found[0].column)


@dataclass(frozen=True)
class Limits:
    """A condition that is limits of columns and nothing else. least, most: by column, the values that satisfy it lie between
    them, both inclusive, as integers of 64 bits."""

    columns: tuple[Column, ...]
    least: tuple[int, ...]
    most: tuple[int, ...]

    def values(self, rows: pa.RecordBatch) -> tuple[I64, Bool]:
        """The columns' values, int64 (n, columns), and whether none of a row's is null, which satisfies nothing: (n,)."""
        found, valid = np.empty((rows.num_rows, len(self.columns)), np.int64), np.ones(rows.num_rows, np.bool_)
        for i, of in enumerate(self.columns):
            values = _as_read(rows, of)
            valid &= booleans_of(values.is_valid())
            found[:, i] = integers_of(values.cast(pa.int64()).fill_null(0))
        return found, valid


def limits_of(condition: Expr) -> Limits | None:
    """None for a condition that is something else, and for columns that are not ordered as integers."""
    found = [] if can_fail(condition) else _comparisons(condition)
    if not found or len(found) < _parts_of(condition) or not all(_is_whole(of.column.type) for of in found):
        return None
    by_column: dict[Column, list[_Comparison]] = {}
    for of in sorted(found, key=lambda of: of.column.name):
        by_column.setdefault(of.column, []).append(of)
    least, most = zip(*map(_between, by_column.values()), strict=True)
    return Limits(tuple(by_column), least, most)


def _as_read(rows: pa.RecordBatch, of: Column) -> pa.Array:
    """A column, in the type in which expressions read it."""
    column = decoded(rows.column(of.name))
    return column if column.type == of.type else column.cast(of.type)


def _is_whole(kind: pa.DataType) -> bool:
    """Whether values of a type are ordered as integers of 64 bits."""
    return bool(pa.types.is_signed_integer(kind) or pa.types.is_timestamp(kind))


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

    def candidates(self, values: pa.Array) -> Iterator[tuple[int, I64 | None]]:
        found = pc.index_in(values, value_set=self.constants)
        rows = np.flatnonzero(booleans_of(pc.is_valid(found)))
        which = integers_of(found)[rows]
        order = np.argsort(which, kind="stable")
        rows, which = rows[order], which[order]
        ends = np.flatnonzero(np.diff(which, append=-1)) + 1  # behind the rows of each constant
        for begin, end in pairwise([0, *ends.tolist()]):
            some = None if _MOST * (end - begin) > len(values) else rows[begin:end]
            for number in self.numbers[which[begin]]:
                yield number, some


@dataclass(frozen=True)
class _Limited:
    """Conditions with limits. least, most: int64, by condition, the values that satisfy it lie between them, both inclusive."""

    column: Column
    least: I64
    most: I64
    numbers: tuple[int, ...]

    def candidates(self, values: pa.Array) -> Iterator[tuple[int, I64 | None]]:
        rows = np.flatnonzero(booleans_of(pc.is_valid(values)))
        whole = integers_of(values.cast(pa.int64()))[rows]
        order = np.argsort(whole, kind="stable")
        rows, whole = rows[order], whole[order]
        begins, ends = np.searchsorted(whole, self.least, "left"), np.searchsorted(whole, self.most, "right")
        for number, begin, end in zip(self.numbers, begins.tolist(), ends.tolist(), strict=True):
            if _MOST * (end - begin) > len(values):
                yield number, None
            elif begin < end:
                yield number, np.sort(rows[begin:end])


@dataclass(frozen=True)
class ComparisonIndex:
    """numbers: of the conditions that it has. exact: of those that are satisfied by all rows that are found for them."""

    numbers: frozenset[int] = frozenset()
    exact: frozenset[int] = frozenset()
    _parts: tuple[_Equal | _Limited, ...] = field(default=(), repr=False)

    @staticmethod
    def of(conditions: Mapping[int, Expr], fewest: int = 1) -> ComparisonIndex:
        """conditions: by number, over the columns of the same rows. fewest: of a column and operator that it has."""
        by_kind: dict[tuple[Column, bool], dict[int, tuple[_Comparison, ...]]] = {}
        for number, condition in conditions.items():
            if searched := _searched(condition):
                by_kind.setdefault((searched[0].column, searched[0].operator == "="), {})[number] = searched
        several = {kind: members for kind, members in by_kind.items() if len(members) >= fewest}
        parts = [_equal(column, of) if equal else _limited(column, of) for (column, equal), of in several.items()]
        members = {number: searched for of in several.values() for number, searched in of.items()}
        exact = (number for number, searched in members.items() if len(searched) == _parts_of(conditions[number]))
        return ComparisonIndex(frozenset(members), frozenset(exact), tuple(parts))

    def candidates(self, rows: pa.RecordBatch) -> Iterator[tuple[int, I64 | None]]:
        """Of each of its conditions that some rows may satisfy, these rows, int64, ascending; no other row does. None: many
        may, and each is to be tested."""
        for part in self._parts if rows.num_rows else ():
            yield from part.candidates(_as_read(rows, part.column))


def _parts_of(condition: Expr) -> int:
    return len(condition.args) if isinstance(condition, Call) and condition.function == "and" else 1


def _equal(column: Column, members: Mapping[int, tuple[_Comparison, ...]]) -> _Equal:
    numbers: dict[Literal, list[int]] = {}
    for number, (comparison,) in members.items():
        numbers.setdefault(comparison.literal, []).append(number)
    constants = pa.concat_arrays([pa.repeat(literal.scalar, 1) for literal in numbers])
    return _Equal(column, constants, tuple(map(tuple, numbers.values())))


def _limited(column: Column, members: Mapping[int, tuple[_Comparison, ...]]) -> _Limited:
    least, most = zip(*map(_between, members.values()), strict=True)
    return _Limited(column, np.array(least, np.int64), np.array(most, np.int64), tuple(members))


def _between(comparisons: Iterable[_Comparison]) -> tuple[int, int]:
    """The least and the most of a column's values that satisfy these comparisons."""
    low, high = _FIRST, _LAST
    for _, operator, literal in comparisons:
        value = literal.scalar.cast(pa.int64()).as_py()
        if not operator.startswith("<"):
            low = max(low, value + (operator == ">"))
        if not operator.startswith(">"):
            high = min(high, value - (operator == "<"))
    return (low, high) if low <= _LAST and high >= _FIRST else (_LAST, _FIRST)  # no value is beyond them
