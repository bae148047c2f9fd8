"""Columns of pairs out of the user's own tables, once the pairs are known.

What: `Gathered`: pairs of row positions become blocks of output rows.
Why: payload is touched once, for the rows that match; and Arrow takes columns of any type, also of those that cannot be packed.
Stays out: which rows match (`api.embedded`), names and order of the columns (`sinks.plan`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.batch import I64, LEFT, MISSING_ID, RIGHT, U64, Pairs
from swjoin.errors import UserError
from swjoin.hashing import digest_pairs
from swjoin.oracle import JOIN_KINDS
from swjoin.sinks.plan import OutputPlan, as_type
from swjoin.sources.views import decoded

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.api.whole import Side

BLOCK_PAIRS = 1 << 18


class Gathered:
    """Pairs of positions, as output rows. For one thread. digest: of the user's own ids, where there are such."""

    def __init__(self, plan: OutputPlan, sides: tuple[Side, Side]) -> None:
        self._sides = sides
        self._schema = plan.schema
        self._ids = plan.ids
        self._renamed = any(side.ids is not None for side in sides)
        self._id_columns = plan.id_columns
        self._columns = [(side, _to_take_from(sides[side].table.column(name), name)) for side, name in plan.inputs]
        keys = list(zip(plan.left.key, plan.right.key, strict=True)) if JOIN_KINDS[plan.how].unmatched[RIGHT] else []
        right = sides[RIGHT].table
        self._own_keys = {left: _to_take_from(right.column(name), name) for left, name in keys}
        self._names = [name for _, name in plan.inputs]
        self._waiting: list[tuple[U64, U64, I64, I64]] = []
        self._rows = 0
        self._blocks: list[pa.Table] = []
        self.digest = 0

    def add(self, pairs: Pairs) -> None:
        """Remember pairs; their columns are taken a block at a time."""
        times = (pairs.left_ts, pairs.right_ts) if self._ids else (pairs.left_ts[:0], pairs.right_ts[:0])
        self._waiting.append((pairs.left_id, pairs.right_id, *times))
        self._rows += len(pairs)
        if self._rows >= BLOCK_PAIRS:
            self._flush()

    def _flush(self) -> None:
        import pyarrow as pa

        if not self._waiting:
            return
        left, right, left_ts, right_ts = (
            parts[0] if len(parts) == 1 else np.concatenate(parts) for parts in zip(*self._waiting, strict=True)
        )
        self._waiting, self._rows = [], 0
        arrays: list[Any] = []
        index = (_index(left), _index(right))
        if self._ids or self._renamed:
            ids = [side.ids_of(positions) for side, positions in zip(self._sides, (left, right), strict=True)]
            self.digest = (self.digest + digest_pairs(*ids)) % 2**64
            values = {"left_id": ids[LEFT], "right_id": ids[RIGHT], "left_ts": left_ts, "right_ts": right_ts}
            missing = [positions == MISSING_ID for positions in (left, right)]
            arrays = [pa.array(values[name], mask=missing[side]) for name, _, side in self._id_columns]
        for (side, column), name, field in zip(self._columns, self._names, list(self._schema)[len(arrays) :], strict=True):
            array = _taken(column, index[side])
            if side == LEFT and name in self._own_keys:
                array = _either(index[LEFT], array, _taken(self._own_keys[name], index[RIGHT]), field.type)
            arrays.append(array)
        self._blocks.append(pa.Table.from_arrays(arrays, schema=self._schema))

    def finish(self) -> list[pa.Table]:
        """All blocks."""
        self._flush()
        return self._blocks


def _either(left: Any, mine: Any, theirs: Any, kind: pa.DataType) -> Any:
    """The key of the side that is there. left: positions there, null where that side is missing."""
    import pyarrow.compute as pc

    if left.null_count == 0:
        return as_type(mine, kind) if mine.type != kind else mine
    mine, theirs = decoded(mine), decoded(theirs)
    plain = mine.type if mine.type == theirs.type else kind
    return as_type(pc.if_else(left.is_valid(), as_type(mine, plain), as_type(theirs, plain)), kind)


def _index(positions: U64) -> Any:
    """Positions as Arrow indices; a missing side (SPEC section 1) is a null, which takes nulls."""
    import pyarrow as pa

    missing = positions == MISSING_ID
    return pa.array(positions, mask=missing) if missing.any() else pa.array(positions)


def _to_take_from(column: pa.ChunkedArray, name: str) -> Any:
    """A column as one array, for which chunks are joined once, unless there is too much for one. UserError for types that Arrow
    cannot take from."""
    import pyarrow as pa

    if column.num_chunks == 1:
        values = column.chunk(0)
    else:
        values = column.combine_chunks() if column.num_chunks else pa.array([], column.type)
    try:
        _taken(values.slice(0, 0), pa.array([], pa.uint64()))
    except pa.ArrowNotImplementedError:
        raise UserError(f"column {name}: type {column.type} cannot be carried; leave it out with columns") from None
    return values


def _taken(values: Any, index: pa.Array) -> Any:
    import pyarrow as pa
    import pyarrow.compute as pc

    if pa.types.is_string_view(values.type) or pa.types.is_binary_view(values.type):
        return _taken_views(values, index)
    return pc.take(values, index, boundscheck=False)


def _taken_views(values: Any, index: pa.Array) -> Any:
    """Arrow has no take for views, although it is the easiest: 16 bytes each, and the text stays where it is."""
    import pyarrow as pa

    n = len(index)
    if len(values) == 0:
        return pa.nulls(n, values.type)
    places = index.fill_null(0).to_numpy()
    views = np.frombuffer(values.buffers()[1] or b"", np.int64).reshape(-1, 2)[values.offset : values.offset + len(values)]
    valid = values.is_valid().take(index).fill_null(False)
    buffers = [valid.buffers()[1], pa.py_buffer(views[places]), *values.buffers()[2:]]
    return pa.Array.from_buffers(values.type, n, buffers, valid.false_count)
