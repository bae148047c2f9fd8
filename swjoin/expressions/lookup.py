"""Lookups in a static table, as a step of a chain of stateless operators.

What: `TableLookup`, a function of a batch of tuples.
Why: every row of a stream meets the whole table, which is indexed once; no row is looked at by itself.
Stays out: plans, which have lookups as nodes; reading the table (`connectors.files.static_tables`).

Keys are integers, or codes of a dictionary that the table's keys fill; equal codes are equal keys, as `=` has them: a null and
a NaN match nothing, and -0.0 is 0.0. Candidates are made and tested a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from swjoin.core.arrow_views import array_of, bits_of, booleans_of
from swjoin.core.batch import I64, MISSING_ID, Bool, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.hashing import pair_ids
from swjoin.core.key_encoder import KeyEncoder
from swjoin.expressions.chain import batch_of
from swjoin.expressions.evaluator import EvaluationFailed, evaluate
from swjoin.expressions.tree import Expr, columns_read

_CANDIDATES = 1 << 17  # pairs that are tested at a time, about
_SPARSE = 4  # positions of the table of integer keys, at most, per key


@dataclass(frozen=True)
class TableLookup:
    """The tuples with the rows of a table that match. name: of the plan's node, for messages. how: of matches, which come out.
    keys: pairs of expressions of one type, over the tuples' and the table's columns. where: a further condition over both.
    shown: columns of the tuples, and of the table, that come out. of_table: names of all of the table's columns. table: makes
    its rows."""

    name: str
    how: Literal["inner", "left", "semi", "anti"]
    keys: tuple[tuple[Expr, Expr], ...]
    where: Expr | None
    shown: tuple[tuple[str, ...], tuple[str, ...]]
    of_table: frozenset[str]
    table: Callable[[], TupleBatch]

    @cached_property
    def _rows(self) -> TupleBatch:
        return self.table()

    @cached_property
    def _index(self) -> _Index:
        return _Index([mine.type for mine, _ in self.keys], self._values(1, self._rows), len(self._rows))

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """RunFailed, with the id of the row, where a condition has no value."""
        counts, starts = self._index.matches(self._values(0, rows), len(rows))
        if self.how in ("inner", "left"):
            return self._joined(rows, counts, starts)
        matched = counts > 0
        if self.where is not None:
            matched = np.zeros(len(rows), np.bool_)
            for mine, theirs in self._candidates(counts, starts):
                matched[mine[self._tested(rows, mine, theirs)]] = True
        chosen = np.flatnonzero(matched if self.how == "semi" else ~matched)
        return self._made(rows, chosen, np.full(len(chosen), -1, np.int64))

    def _joined(self, rows: TupleBatch, counts: I64, starts: I64) -> TupleBatch:
        parts: list[tuple[I64, I64]] = []
        for mine, theirs in self._candidates(counts, starts):
            if self.where is not None:
                passed = self._tested(rows, mine, theirs)
                mine, theirs = mine[passed], theirs[passed]
            parts.append((mine, theirs))
        nothing = np.empty(0, np.int64)
        mine, theirs = (np.concatenate([nothing, *(part[side] for part in parts)]) for side in (0, 1))
        if self.how == "left":
            alone = np.ones(len(rows), np.bool_)
            alone[mine] = False
            more = np.flatnonzero(alone)
            mine, theirs = np.concatenate([mine, more]), np.concatenate([theirs, np.full(len(more), -1, np.int64)])
            order = np.argsort(mine, kind="stable") if len(more) else slice(None)  # as the stream has its rows
            mine, theirs = mine[order], theirs[order]
        return self._made(rows, mine, theirs)

    def _candidates(self, counts: I64, starts: I64) -> Iterator[tuple[I64, I64]]:
        """Pairs with equal keys: positions of tuples, ascending, and of rows of the table. counts: of matches, for each tuple;
        starts: of these, in the index."""
        ends = np.cumsum(counts)
        first, done = 0, 0
        while first < len(counts):
            last = max(first + 1, int(np.searchsorted(ends, done + _CANDIDATES, "right")))
            here, size = counts[first:last], int(ends[last - 1]) - done
            mine = np.repeat(np.arange(first, last), here)
            offsets = np.arange(size) - np.repeat(ends[first:last] - here - done, here)
            yield mine, self._index.order[np.repeat(starts[first:last], here) + offsets]
            first, done = last, int(ends[last - 1])

    def _tested(self, rows: TupleBatch, mine: I64, theirs: I64) -> Bool:
        """Which of these pairs satisfy the further condition."""
        assert self.where is not None, "a condition"
        arrays, names = [pa.nulls(len(mine))], [""]
        for name in columns_read(self.where):
            of, at = (self._rows, theirs) if name in self.of_table else (rows, mine)
            assert of.columns is not None, "rows without the columns that a condition reads"
            arrays.append(of.columns.column(name).take(array_of(at)))
            names.append(name)
        try:
            found = _without_overflow(self.where, pa.RecordBatch.from_arrays(arrays, names))
        except EvaluationFailed as error:
            raise error.prefixed(f"{self.name}, row {rows.id[mine[error.row]]}") from None
        return booleans_of(pc.fill_null(found, False))

    def _values(self, side: int, rows: TupleBatch) -> list[pa.Array]:
        """The keys of rows of one side."""
        try:
            return [_comparable(_without_overflow(pair[side], batch_of(rows))) for pair in self.keys]
        except EvaluationFailed as error:
            of = "" if side == 0 else "the table's "
            raise error.prefixed(f"{self.name}, {of}row {rows.id[error.row]}") from None

    def _made(self, rows: TupleBatch, mine: I64, theirs: I64) -> TupleBatch:
        """The rows that come out. theirs: -1 for no row of the table."""
        ids = np.append(self._rows.id, MISSING_ID)[theirs]
        arrays, names = [], [*self.shown[0], *self.shown[1]]
        whole = len(mine) == len(rows) and bool((mine == np.arange(len(rows))).all())
        for name in self.shown[0]:
            assert rows.columns is not None, "rows without the columns that come out"
            column = rows.columns.column(name)
            arrays.append(column if whole else column.take(array_of(mine)))
        at = array_of(theirs, theirs < 0)
        for name in self.shown[1]:
            assert self._rows.columns is not None, "a table without the columns that come out"
            arrays.append(self._rows.columns.column(name).take(at))
        columns = Columns(pa.RecordBatch.from_arrays(arrays, names)) if names else None
        bare = replace(rows, columns=None)
        return replace(bare if whole else bare.take(mine), id=pair_ids(rows.id[mine], ids), columns=columns)


class _Index:
    """Rows of a table by their keys. order: positions of rows, those of one key together; null keys are in none."""

    def __init__(self, types: list[pa.DataType], columns: list[pa.Array], count: int) -> None:
        """types: of the keys; none: one key, of all rows."""
        self._encoder = None
        self.order: I64 = np.arange(count)
        if not types:
            self._every = count
            return
        named = [(f"key {i}", column.type) for i, column in enumerate(columns)]
        self._encoder = KeyEncoder(named, named)
        codes, valid = self._encoder.encode(columns)
        rows = self.order if valid is None else np.flatnonzero(valid)
        self.order = rows[np.argsort(codes[rows], kind="stable")]
        self._codes, self._starts, self._counts = np.unique(codes[self.order], return_index=True, return_counts=True)
        self._first = int(self._codes[0]) if len(self._codes) else 0
        span = int(self._codes[-1]) - self._first + 1 if len(self._codes) else 0
        self._slots: I64 | None = None  # of every code from the first one on, its place among the codes, or -1
        if span <= _SPARSE * len(self._codes):
            self._slots = np.full(span + 1, -1, np.int64)  # the last one is of all other codes
            self._slots[self._codes - self._first] = np.arange(len(self._codes))

    def matches(self, columns: list[pa.Array], count: int) -> tuple[I64, I64]:
        """For so many rows with these keys, how many rows of the table match, and where they begin in `order`."""
        if self._encoder is None:
            return np.full(count, self._every, np.int64), np.zeros(count, np.int64)
        if not len(self._codes):
            return np.zeros(count, np.int64), np.zeros(count, np.int64)
        codes, valid = self._encoder.find(columns)
        if self._slots is not None:
            inside = (codes >= self._first) & (codes <= self._codes[-1])
            places = self._slots[np.where(inside, codes - self._first, len(self._slots) - 1)]
            known = places >= 0
        else:
            places = np.minimum(np.searchsorted(self._codes, codes), len(self._codes) - 1)
            known = self._codes[places] == codes
        if valid is not None:
            known &= valid
        return np.where(known, self._counts[places], 0), self._starts[places]


def _comparable(column: pa.Array) -> pa.Array:
    """A key's values as a type that has codes: doubles by their bits, decimals, which have one scale, as text."""
    if pa.types.is_decimal(column.type):
        return column.cast(pa.string())
    if not pa.types.is_floating(column.type):
        return column
    missing = pc.fill_null(pc.is_nan(column), True)  # equal to nothing, as null
    return array_of(bits_of(column), booleans_of(missing))


def _without_overflow(expr: Expr, rows: pa.RecordBatch) -> pa.Array[Any]:
    """The value for every row; null where an integer overflows, as conditions of joins have it. EvaluationFailed if a row has
    none for another reason."""
    try:
        return evaluate(expr, rows)
    except EvaluationFailed as error:
        if ": integer overflow" not in str(error):
            raise
        if rows.num_rows == 1:
            return pa.nulls(1, expr.type)
    half = rows.num_rows // 2
    parts = []
    for start in (0, half):
        try:
            parts.append(_without_overflow(expr, rows.slice(start, half if start == 0 else rows.num_rows - half)))
        except EvaluationFailed as error:
            raise EvaluationFailed(str(error), error.row + start) from None
    return pa.concat_arrays(parts)
