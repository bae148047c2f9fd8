"""Routing by a matrix of cells, in which every left row meets every right row once.

What: `Matrix`: its cells for a number of instances, and the copies of rows.
Why: a join without an equality has no key by which partners find each other. A left row is in every cell of one row of the
matrix, a right row in every cell of one column (StreamCloud, the Cartesian product; BiStream's baseline). The line is a hash of
the row's id, so it is the same after a crash.
Stays out: the plan's nodes (`plan.logical`), moves: a cell is a partition-group like others.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from swjoin.core.batch import I64, LEFT, U64
from swjoin.core.hashing import hash_lines

MOST_LINES = 64


@dataclass(frozen=True)
class Matrix:
    """rows, columns: numbers of them, 1 to MOST_LINES each."""

    rows: int
    columns: int

    @staticmethod
    def of_instances(count: int, *, one_place: bool = False) -> Matrix:
        """The one that uses most of so many instances, and of these the one with fewest copies; its lines differ by a factor
        of two, about. one_place: left rows have one place, so there is one column."""
        if one_place:
            return Matrix(min(count, MOST_LINES), 1)
        shapes = [Matrix(rows, min(count // rows, MOST_LINES)) for rows in range(1, MOST_LINES + 1) if rows * rows <= count]
        return max((m for m in shapes if m.columns <= 2 * m.rows + 1), key=lambda m: (m.rows * m.columns, m.rows))

    @property
    def count(self) -> int:
        """Cells."""
        return self.rows * self.columns

    @property
    def word(self) -> str:
        return "cells"

    @property
    def by_key(self) -> bool:
        """Whether a row's cells depend on its key."""
        return False

    def copies(self, port: int, ids: U64, hashes: U64 | None = None) -> tuple[I64, I64]:
        """Positions of rows, each as often as it has copies and in their order, and the cell of each copy: int64 (copies,).
        ids: uint64 (n,) of the rows of the left or the right port. hashes: as of `Biclique.copies`; not read."""
        own, other = (self.rows, self.columns) if port == LEFT else (self.columns, self.rows)
        positions = np.repeat(np.arange(len(ids), dtype=np.int64), other)
        line, place = hash_lines(ids, own)[positions], np.tile(np.arange(other, dtype=np.int64), len(ids))
        return positions, (line * self.columns + place if port == LEFT else place * self.columns + line)
