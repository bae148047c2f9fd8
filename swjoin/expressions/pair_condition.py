"""A join's residual predicate over columns: rows of one side, each beside one of the other.

What: `PairCondition`.
Why: a multiway join tests pairs that have been brought together as columns; a predicate means what it means in a join of two,
as the same program tells (`expressions.vm`).
Stays out: what programs mean, and how they are compiled (`expressions.compiler`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from swjoin.core.batch import I64, Bool
from swjoin.core.columns import Columns
from swjoin.core.record_layout import REF
from swjoin.core.row_codec import RowCodec, StreamCodec, returned
from swjoin.expressions.compiler import compile_where
from swjoin.expressions.parser import Node
from swjoin.expressions.vm import PAGE_BITS, Program, Rows, evaluate, no_rows

_RECORD: Final = REF + 1  # items of a record, as far as a program reads it


@dataclass(frozen=True)
class PairCondition:
    """read: by side, the columns that the program reads. codecs: which pack these; None where there are none."""

    program: Program
    read: tuple[tuple[str, ...], tuple[str, ...]]
    codecs: tuple[RowCodec | None, RowCodec | None]

    @staticmethod
    def of(
        tree: Node,
        types: Sequence[Mapping[str, Any]],
        keys: Sequence[tuple[str, ...]],
        read: Sequence[Sequence[str]],
    ) -> PairCondition:
        """types: by side, Arrow types of all columns; keys: key columns; read: those that the predicate reads. UserError for
        types that do not fit."""
        sides = []
        for of_side, key, names in zip(types, keys, read, strict=True):
            columns = tuple((name, returned(kind), "row") for name, kind in of_side.items())
            packed = RowCodec.of([(name, kind) for name, kind, _ in columns if name in names]) if names else None
            sides.append(StreamCodec(columns, key, packed))
        program = compile_where(tree, sides[0], sides[1])
        return PairCondition(program, (tuple(read[0]), tuple(read[1])), (sides[0].rows, sides[1].rows))

    def __call__(self, left: Columns | None, right: Columns | None, count: int) -> Bool:
        """Which of so many pairs satisfy the predicate: bool (count,). left, right: with the columns that are read."""
        rows = [self._rows(side, columns) for side, columns in enumerate((left, right))]
        records: I64 = np.zeros(count * _RECORD, np.int64)
        records[REF::_RECORD] = np.arange(count)
        at = np.arange(0, count * _RECORD, _RECORD, dtype=np.uint64)
        verdict = np.ones(count, np.uint8)
        evaluate(self.program, rows[0], rows[1], 0, records, records, at, at, verdict, 0, count)
        found: Bool = verdict != 0
        return found

    def _rows(self, side: int, columns: Columns | None) -> Rows:
        codec, names = self.codecs[side], self.read[side]
        if codec is None:
            return no_rows()
        assert columns is not None, "pairs without the columns of a condition"
        packed = codec.encode(columns.select([name for name in columns.names if name in names]).batch)
        pages: I64 = np.arange((len(packed) >> PAGE_BITS) + 1)
        shape = np.array([0, packed.layout.fixed_bytes, 0], np.int64)
        rows = no_rows()._replace(arena=packed.fixed.reshape(-1), slots=pages, shape=shape)
        if packed.var_offsets is None or packed.var is None:
            return rows
        return rows._replace(tail_offsets=packed.var_offsets, tail_bytes=packed.var)
