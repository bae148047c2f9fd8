"""Which rows are the first ones of their groups: against sorting, for any order, nulls, ties and windows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.kept_columns import OrderKey, RankColumns
from swjoin.operators.ranking import leading_rows

ROWS = st.lists(st.tuples(st.sampled_from([None, 0, 1]), *[st.one_of(st.none(), st.integers(0, 2))] * 2, st.integers(0, 2)))


@settings(max_examples=200)
@given(ROWS, st.integers(1, 3), st.integers(0, 2), st.tuples(*[st.booleans()] * 4), st.booleans())
def test_first_rows_of_groups(rows: list[Any], most: int, keys: int, flags: tuple[bool, ...], in_windows: bool) -> None:
    batch = pa.record_batch({name: pa.array([row[i] for row in rows], pa.int64()) for i, name in enumerate("gab")})
    starts = np.array([row[3] for row in rows], np.int64)
    ids = np.arange(len(rows), dtype=np.uint64)[::-1].copy()
    given_rows = TupleBatch(starts, starts, ids, starts, None, Columns(batch))
    order = tuple(OrderKey(name, *flags[2 * i : 2 * i + 2]) for i, name in enumerate("ab"[:keys]))
    columns = RankColumns("top", ("g",), (("g", pa.int64()),), (), "", "", pa.timestamp("us"), order, most, "rank", 1, 0)
    windows = starts if in_windows else None
    wanted = _first(rows, ids.tolist(), order, most, in_windows=in_windows)
    for leading in (None, leading_rows):
        index, ranks = columns.first(columns.new_keys(), given_rows, windows, leading)
        assert sorted(zip(index.tolist(), ranks.tolist(), strict=True)) == wanted


def _first(rows: list[Any], ids: list[int], order: tuple[OrderKey, ...], most: int, *, in_windows: bool) -> list[Any]:
    groups: dict[Any, list[int]] = {}
    for at, row in enumerate(rows):
        groups.setdefault((row[0], row[3] if in_windows else 0), []).append(at)

    def place(at: int) -> tuple[Any, ...]:
        parts: list[Any] = []
        for key in order:
            value = rows[at]["gab".index(key.column)]
            sign = -1 if key.descending else 1
            parts.append(((value is None) != key.nulls_first, 0 if value is None else sign * value))
        return (*parts, ids[at])

    return sorted((at, rank + 1) for mine in groups.values() for rank, at in enumerate(sorted(mine, key=place)[:most]))
