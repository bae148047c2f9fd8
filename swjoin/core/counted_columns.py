"""Columns of joins whose windows count rows: which part a row is of, what parts share as codes, and the rows that come out.

What: `CountedColumns`: `parts_of`, `codes`, `joined`.
Why: the operator goes through positions and codes in integers, which know nothing of Arrow's types.
Stays out: keeping rows and finding matches (`operators.counted_join`), which columns travel (`plan.columns`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from typing import TYPE_CHECKING

from swjoin.core.arrow_views import array_of, integers_of, scalar_of
from swjoin.core.batch import I64, ResultRows, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.group_keys import GroupKeys
from swjoin.core.hashing import pair_ids

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass(frozen=True)
class CountedColumns:
    """name: of the operator, for messages. part: column of the number of a row's part. shared: columns by which parts are
    joined. shown: columns that come out, and the part whose rows have each. time, born: names of the columns of a result's
    time, of type `time_type` and int64; "" for none."""

    name: str
    part: str
    shared: tuple[str, ...]
    shown: tuple[tuple[str, int], ...]
    time: str
    time_type: pa.DataType
    born: str

    def new_keys(self) -> GroupKeys:
        """Of the one group that all rows are in."""
        return GroupKeys(())

    def parts_of(self, rows: TupleBatch) -> I64:
        """The number of each row's part, int64 (n,)."""
        assert rows.columns is not None, f"{self.name}: rows without columns"
        found: I64 = integers_of(rows.columns.column(self.part))
        return found

    def codes(self, rows: TupleBatch) -> dict[str, I64]:
        """Of each shared column, int64 (n,), equal for equal values among these rows; null is -1."""
        assert rows.columns is not None, f"{self.name}: rows without columns"
        found = {}
        for name in self.shared:
            codes = rows.columns.column(name).dictionary_encode().indices
            found[name] = integers_of(codes.fill_null(scalar_of(-1, codes.type))).astype("int64")
        return found

    def joined(self, rows: TupleBatch, positions: Sequence[I64], newest: I64) -> ResultRows:
        """The results of these rows, (m,) positions by part. newest: of the last row of each, int64 (m,)."""
        import pyarrow as pa

        assert rows.columns is not None, f"{self.name}: rows without columns"
        ts = rows.ts[newest]
        found = [(name, rows.columns.column(name).take(array_of(positions[part]))) for name, part in self.shown]
        if self.time:
            found.append((self.time, array_of(ts).view(self.time_type)))
        if self.born:
            found.append((self.born, array_of(ts)))
        ids = reduce(pair_ids, [rows.id[at] for at in positions])
        columns = None
        if found:
            columns = Columns(pa.RecordBatch.from_arrays([array for _, array in found], [name for name, _ in found]))
        return ResultRows(ids, ts, columns)
