"""The operator of sessions: each row with the session of its group that it is in.

What: `Sessions`, an operator as `JoinOperator` describes it.
Why: a session ends with a pause, and how far it reaches is known only when the watermark has passed that pause; late and early
rows join what was apart, so rows are kept until then.
Stays out: columns of rows (`core.kept_columns`), what is computed of a session's rows (`operators.aggregation`, behind it).

A session is of rows of one group, each less than the gap after the one before; it ends a gap after its last row.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from swjoin.core.batch import I64, Bool, ResultRows, TupleBatch
from swjoin.core.group_keys import GroupKeys
from swjoin.core.ids import END_OF_TIME_US
from swjoin.core.kept_columns import SessionColumns
from swjoin.operators.kept_rows import RowsOperator
from swjoin.operators.keyed_operator import Limits


class Sessions(RowsOperator):
    """gap_us: microseconds. keys: the encoder of this instance. name: owner, for messages."""

    what = "session"

    def __init__(self, gap_us: int, columns: SessionColumns, keys: GroupKeys, limits: Limits, name: str) -> None:
        super().__init__(limits, name)
        self._gap_us, self._columns, self._keys = gap_us, columns, keys

    def _keep(self, rows: TupleBatch, groups: I64) -> None:
        self._kept.add(rows, groups)
        self._least_us = min(self._least_us, int(rows.ts.min()) + self._gap_us)

    def _closed(self, watermark_us: int) -> Iterator[tuple[ResultRows, I64]]:
        """Rows of the sessions that end by this time."""
        if len(self._kept) and self._least_us <= watermark_us:
            by, starts, ends = self._found()
            rows, groups, out = self._kept.rows, self._kept.groups, np.flatnonzero(ends <= watermark_us)
            most = max(1, self._limits.result_bytes * len(rows) // max(1, rows.nbytes))
            for at in range(0, len(out), most):
                piece = out[at : at + most]
                yield self._columns.rows(rows.take(by[piece]), starts[piece], ends[piece]), groups[by[piece]]
            self._drop(by, ends, ends > watermark_us)
        self._final_us = max(self._final_us, watermark_us)

    def _found(self) -> tuple[I64, I64, I64]:
        """Positions of the rows by group and time, and start and end of each one's session: int64 (n,)."""
        rows = self._kept.rows
        codes, nulls = self._columns.encoded(self._keys, rows)
        by = np.lexsort((rows.ts, nulls, codes))
        ts, codes, nulls = rows.ts[by], codes[by], nulls[by]
        new = np.ones(len(by), np.bool_)
        new[1:] = (codes[1:] != codes[:-1]) | (nulls[1:] != nulls[:-1]) | (ts[1:] - ts[:-1] >= self._gap_us)
        first = np.flatnonzero(new)
        last = np.append(first[1:], len(by)) - 1
        session = np.cumsum(new) - 1
        return by, ts[first][session], (ts[last] + self._gap_us)[session]

    def _drop(self, by: I64, ends: I64, kept: Bool) -> None:
        """Keep only these rows, of `by`, whose sessions have these ends."""
        self._kept.keep(np.sort(by[kept]))
        self._least_us = int(ends[kept].min()) if kept.any() else END_OF_TIME_US

    def _pass(self, watermark_us: int) -> None:
        if len(self._kept) and self._least_us <= watermark_us:
            by, _, ends = self._found()
            self._drop(by, ends, ends > watermark_us)
        self._final_us = max(self._final_us, watermark_us)

    def validate(self) -> None:
        """Raise AssertionError on a broken invariant. Of a partition-group that arrives, sessions are not whole."""
        if len(self._kept) and not self.arriving:
            _, _, ends = self._found()
            assert ends.min() > self._final_us, f"{self._name}: a session that ended at {ends.min()} us is not out"
            assert ends.min() >= self._least_us, f"{self._name}: a session ends before {self._least_us} us"
