"""Columns of pairs out of the user's own tables, once the pairs are known.

What: `OutputGatherer`: pairs of row positions become blocks of output rows.
Why: payload is touched once, for the rows that match; and Arrow takes columns of any type, also of those that cannot be packed.
Stays out: which rows match (`api.embedded_join`), names and order of the columns (`connectors.output_columns`).
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.connectors.output_columns import OutputColumns
from swjoin.core import row_sizes
from swjoin.core.arrow_views import decoded
from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, U64, Pairs
from swjoin.core.errors import UserError
from swjoin.core.hashing import digest_pairs
from swjoin.core.join_semantics import JOIN_KINDS
from swjoin.core.pair_columns import as_type

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.api.table_input import JoinInput

BLOCK_PAIRS = 1 << 16  # pieces of fewer are taken together


class OutputGatherer:
    """Pairs of positions, as blocks of output rows with the digest of their ids. For one thread.

    digests: also of ids that are neither the user's own nor among the columns; without, their digest is 0.
    """

    def __init__(self, plan: OutputColumns, sides: tuple[JoinInput, JoinInput], *, digests: bool = False) -> None:
        self._sides = sides
        self._schema = plan.schema
        self._ids = plan.ids
        self._renamed = any(side.ids is not None for side in sides)
        self._id_columns = plan.id_columns
        self._columns = [(side, _column_of(sides[side], name)) for side, name in plan.inputs]
        keys = list(zip(plan.left.key, plan.right.key, strict=True)) if JOIN_KINDS[plan.how].unmatched[RIGHT] else []
        self._own_keys = {left: _column_of(sides[RIGHT], name) for left, name in keys}
        taken = [*self._columns, *((RIGHT, column) for column in self._own_keys.values())]
        self._by_side = [[column for side, column in taken if side == stream] for stream in (LEFT, RIGHT)]
        self._taken = [column for _, column in taken]
        self._names = [name for _, name in plan.inputs]
        self._waiting: list[tuple[U64, U64, I64, I64]] = []
        self._rows = 0
        self._blocks: list[tuple[pa.Table, int]] = []
        self._digests = digests

    def add(self, pairs: Pairs) -> None:
        """Remember pairs; their columns are taken a block at a time."""
        times = (pairs.left_ts, pairs.right_ts) if self._ids else (pairs.left_ts[:0], pairs.right_ts[:0])
        left, right = (side.positions_of(ids) for side, ids in zip(self._sides, (pairs.left_id, pairs.right_id), strict=True))
        if len(pairs) >= BLOCK_PAIRS:
            self._take(left, right, *times)
            return
        self._waiting.append((left, right, *times))
        self._rows += len(pairs)
        if self._rows >= BLOCK_PAIRS:
            self._flush()

    def _flush(self) -> None:
        if self._waiting:
            parts = (part[0] if len(part) == 1 else np.concatenate(part) for part in zip(*self._waiting, strict=True))
            self._waiting, self._rows = [], 0
            self._take(*parts)

    def _take(self, left: U64, right: U64, left_ts: I64, right_ts: I64) -> None:
        """Blocks of these pairs, one unless they are too large."""
        if len(left) * self._most_bytes(len(left)) <= row_sizes.BLOCK_BYTES:
            self._add_block(left, right, left_ts, right_ts)
            return
        sizes = np.zeros(len(left), np.int64)
        for columns, positions in zip(self._by_side, (left, right), strict=True):
            for column in columns:
                sizes += np.append(column.bytes_by_row, 0)[np.minimum(positions, np.uint64(len(column.bytes_by_row)))]
        for start, stop in row_sizes.pieces_of(sizes):
            self._add_block(left[start:stop], right[start:stop], left_ts[start:stop], right_ts[start:stop])

    def _most_bytes(self, rows: int) -> int:
        """Bytes that an output row has at most, or, where that is enough to know, more."""
        whole = sum(column.nbytes if column.plain else column.most_bytes for column in self._taken)
        return whole if rows * whole <= row_sizes.BLOCK_BYTES else sum(column.most_bytes for column in self._taken)

    def _add_block(self, left: U64, right: U64, left_ts: I64, right_ts: I64) -> None:
        import pyarrow as pa

        arrays: list[Any] = []
        index = (_index(left), _index(right))
        digest = 0
        if self._ids or self._renamed or self._digests:
            ids = [side.ids_of(positions) for side, positions in zip(self._sides, (left, right), strict=True)]
            digest = digest_pairs(*ids)
            values = {"left_id": ids[LEFT], "right_id": ids[RIGHT], "left_ts": left_ts, "right_ts": right_ts}
            missing = [positions == MISSING_ID for positions in (left, right)]
            arrays = [pa.array(values[name], mask=missing[side]) for name, _, side in self._id_columns]
        for (side, column), name, field in zip(self._columns, self._names, list(self._schema)[len(arrays) :], strict=True):
            array = column.take(index[side])
            if side == LEFT and name in self._own_keys:
                array = _either(index[LEFT], array, self._own_keys[name].take(index[RIGHT]), field.type)
            arrays.append(array)
        self._blocks.append((pa.Table.from_arrays(arrays, schema=self._schema), digest))

    def take(self) -> list[tuple[pa.Table, int]]:
        """The blocks that are complete and have not been taken."""
        blocks, self._blocks = self._blocks, []
        return blocks

    def finish(self) -> list[tuple[pa.Table, int]]:
        """All blocks that have not been taken."""
        self._flush()
        return self.take()


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


class _Column:
    """A column of an input as one array, for which chunks are joined once. UserError for what Arrow cannot take from."""

    def __init__(self, column: pa.ChunkedArray, name: str) -> None:
        import pyarrow as pa

        self._kind = column.type
        if column.num_chunks == 1:
            self._values = column.chunk(0)
        else:
            self._values = pa.array([], column.type) if not column.num_chunks else _combined(column, name)
        kind = self._values.type
        self.plain = pa.types.is_primitive(kind) or pa.types.is_string(kind) or pa.types.is_large_string(kind)
        self.nbytes = self._values.nbytes
        if self.plain:
            return
        try:
            self.take(pa.array([], pa.uint64()))
        except pa.ArrowNotImplementedError:
            raise UserError(f"column {name}: type {column.type} cannot be carried; leave it out with columns") from None

    def take(self, index: pa.Array) -> pa.Array:
        """The rows at these positions; not more than an array of the column's type can hold."""
        taken = _taken(self._values, index)
        return taken if taken.type == self._kind else taken.cast(self._kind)

    @cached_property
    def bytes_by_row(self) -> Any:
        return row_sizes.row_bytes(self._values)

    @cached_property
    def most_bytes(self) -> int:
        """Of a row."""
        return int(self.bytes_by_row.max(initial=0))


def _column_of(side: JoinInput, name: str) -> _Column:
    if name not in side.taken_from:
        side.taken_from[name] = _Column(side.table.column(name), name)
    column: _Column = side.taken_from[name]
    return column


def _combined(column: pa.ChunkedArray, name: str) -> pa.Array:
    """All chunks as one array; of the same type with longer offsets where they need them."""
    import pyarrow as pa

    try:
        return column.combine_chunks()
    except pa.ArrowInvalid:
        pass
    try:
        return column.cast(_large(column.type)).combine_chunks()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise UserError(
            f"column {name}: {column.nbytes} bytes of {column.type} are too many; leave it out with columns"
        ) from None


def _large(kind: pa.DataType) -> pa.DataType:
    """The type with offsets of 64 bits."""
    import pyarrow as pa
    import pyarrow.types as t

    if t.is_string(kind) or t.is_binary(kind):
        return pa.large_string() if t.is_string(kind) else pa.large_binary()
    if t.is_list(kind):
        return pa.large_list(kind.value_field.with_type(_large(kind.value_type)))
    if t.is_struct(kind):
        return pa.struct([field.with_type(_large(field.type)) for field in kind])
    return kind


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
