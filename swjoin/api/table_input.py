"""Two whole inputs in memory as tuples of one join, in time order.

What: `JoinInput` (one input: its tuples, which name rows by position), `open_sides`.
Why: when all of the input is at hand, no payload needs to travel: the engine joins keys and times, and the columns of the pairs
are taken from the user's own tables at the end (`api.materialize`).
Stays out: joining (`api.embedded_join`), threads (`api.tables`), ranks (`api.mpi_join`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.api.inputs import WholeInput
from swjoin.config.arguments import Request
from swjoin.connectors.files.declared import refuse_unknown
from swjoin.connectors.frames import both_inputs
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.row_encoder import StreamColumns, TupleEncoder, describe_streams, settle_types
from swjoin.core.arrow_views import decoded
from swjoin.core.batch import I64, LEFT, MISSING_ID, RIGHT, STREAM_NAMES, U64, PayloadRows, SourceBatch
from swjoin.core.pair_columns import as_type
from swjoin.runtime.plausibility import key_text

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.config.run import StreamConfig
    from swjoin.core.key_encoder import KeyEncoder

SLICE_ROWS = 65_536


class JoinInput:
    """One input. table: all of it. ids: the user's row ids, uint64 (rows,), or None where tuples carry what they are to carry.

    by_position: tuples carry the positions of their rows, whatever ids the user names; in_id_order: or the places of their rows
    in the order of these ids, where ids decide which rows match. untyped: a file without rows, whose
    columns have no types of their own. unread: what lies beside its files.
    """

    def __init__(
        self,
        stream: int,
        table: pa.Table,
        config: StreamConfig,
        view: StreamColumns,
        keys: KeyEncoder,
        *,
        by_position: bool,
        in_id_order: bool,
        whole: WholeInput,
    ) -> None:
        self.stream, self.table, self.codec, self.keys = stream, table, view.codec, keys
        self.time, self._named = config.time, config.id is not None and not by_position
        self.taken_from: dict[str, Any] = {}  # columns, ready to take output rows from
        self.untyped, self.unread = whole.untyped, whole.unread
        tuples = TupleEncoder(config, view, keys, self._place)
        predicate_columns = [] if view.codec.rows is None else view.codec.rows.schema.names
        needed = list(dict.fromkeys([*config.key, config.time, *([config.id] if config.id else []), *predicate_columns]))
        self._slices: list[SourceBatch] = []
        ids: list[U64] = []
        first = 0
        for batch in table.select(needed).to_batches(max_chunksize=SLICE_ROWS):
            part = tuples.of(batch, first)
            if config.id is not None and by_position:
                ids.append(part.id)
                part = dataclasses.replace(part, id=np.arange(first, first + len(part), dtype=np.uint64))
            self._slices.append(part)
            first += len(part)
        self.ids = np.concatenate([np.empty(0, np.uint64), *ids]) if config.id is not None and by_position else None
        self._by_id: I64 | None = None  # positions, in the order of ids
        if self.ids is not None and in_id_order:
            self._by_id = np.argsort(self.ids, kind="stable")
            place = np.empty(len(self.ids), np.uint64)
            place[self._by_id] = np.arange(len(self.ids), dtype=np.uint64)
            starts = np.cumsum([0, *map(len, self._slices)])
            self._slices = [
                dataclasses.replace(part, id=place[start : start + len(part)])
                for part, start in zip(self._slices, starts[:-1].tolist(), strict=True)
            ]

    def _place(self, position: int) -> str:
        return f"{STREAM_NAMES[self.stream]}, row {position} (counting from 0)"

    def locate(self, row_id: int) -> str:
        """Where the row of a tuple is."""
        position = row_id if self._by_id is None else int(self._by_id[row_id])
        return f"row with id {row_id}" if self._named else f"row {position}, counting from 0"

    def positions_of(self, ids: U64) -> U64:
        """Positions of the rows of tuples with these ids, MISSING_ID where there is none."""
        if self._by_id is None:
            return ids
        missing = ids == MISSING_ID
        return np.where(
            missing, MISSING_ID, np.append(self._by_id, 0)[np.where(missing, -1, ids.view(np.int64))].astype(np.uint64)
        )

    @property
    def in_order(self) -> bool:
        """Every row has a time, and none is before the row before it."""
        high: int | None = None
        for part in self._slices:
            if part.ts_valid is not None or (part.ts[1:] < part.ts[:-1]).any():
                return False
            if len(part):
                if high is not None and int(part.ts[0]) < high:
                    return False
                high = int(part.ts[-1])
        return True

    def rows(self, *, sort: bool) -> Iterator[SourceBatch]:
        """All rows, in slices. sort: in time order, equal times in the order of the table, rows without a time last."""
        if not sort or self.in_order:
            yield from self._slices
            return
        whole = _concat(self._slices)
        known = whole.ts if whole.ts_valid is None else np.where(whole.ts_valid, whole.ts, np.iinfo(np.int64).max)
        order = np.argsort(known, kind="stable")
        for at in range(0, len(order), SLICE_ROWS):
            yield _take(whole, order[at : at + SLICE_ROWS])

    def ids_of(self, positions: U64) -> U64:
        """What the user calls these rows."""
        if self.ids is None:
            return positions
        missing = positions == MISSING_ID
        if not missing.any():
            return self.ids[positions]
        return np.where(missing, MISSING_ID, np.append(self.ids, MISSING_ID)[np.where(missing, len(self.ids), positions)])


class ReopenedInputs:
    """Both inputs, to be read again (`runtime.plausibility`)."""

    def __init__(self, sides: tuple[JoinInput, JoinInput], *, sort: bool) -> None:
        self._sides, self._sort = sides, sort

    def batches(self, stream: int) -> Iterator[SourceBatch]:
        return self._sides[stream].rows(sort=self._sort)

    def place(self, stream: int, row_id: int) -> str:
        return self._sides[stream].locate(row_id)

    def key(self, stream: int, key: int) -> str:
        return key_text(self._sides[stream].keys, stream, key)


def _concat(parts: list[SourceBatch]) -> SourceBatch:
    def masks(name: str) -> Any:
        found = [getattr(p, name) for p in parts]
        if all(mask is None for mask in found):
            return None
        return np.concatenate([np.ones(len(p), np.bool_) if m is None else m for p, m in zip(parts, found, strict=True)])

    key, ts, ids = (np.concatenate([getattr(p, name) for p in parts]) for name in ("key", "ts", "id"))
    rows = [part.rows for part in parts if part.rows is not None]
    return SourceBatch(
        key, ts, ids, masks("key_valid"), masks("ts_valid"), PayloadRows.concat(rows, rows[0].layout) if rows else None
    )


def _take(batch: SourceBatch, index: I64) -> SourceBatch:
    key_valid, ts_valid = (None if mask is None else mask[index] for mask in (batch.key_valid, batch.ts_valid))
    rows = None if batch.rows is None else batch.rows.take(index)
    return SourceBatch(batch.key[index], batch.ts[index], batch.id[index], key_valid, ts_valid, rows)


def _without_types(whole: WholeInput, config: StreamConfig) -> pa.Schema:
    """Keys and times of an empty data frame, which libraries call floating-point numbers, have no type."""
    import pyarrow as pa

    schema = whole.schema
    for i, field in enumerate(schema if whole.empty else ()):
        if field.name in (*config.key, config.time) and pa.types.is_floating(field.type):
            schema = schema.set(i, field.with_type(pa.null()))
    return schema


def _one_dictionary(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """A column whose chunks share one dictionary, which has room for their values: of its own type, or with indices of 32 bits
    (then without an order, as no chunk's is that of all)."""
    import pyarrow as pa

    kind = column.type
    if column.num_chunks < 2:
        return column
    try:
        return column.unify_dictionaries()
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):  # too many values, a null among them, or a type without a hash
        wide = pa.dictionary(kind.index_type if kind.index_type.bit_width >= 32 else pa.int32(), kind.value_type)
        return pa.chunked_array([as_type(pa.concat_arrays([decoded(chunk) for chunk in column.chunks]), wide)])


def _with_one_dictionary(tables: list[pa.Table], configs: list[StreamConfig], *, both: bool) -> list[pa.Table]:
    """Dictionaries that the result will hold, each with all values of its column. both: keys hold those of both sides."""
    import pyarrow as pa

    out = list(tables)
    for side, config in enumerate(configs):
        for i, field in enumerate(out[side].schema):
            if pa.types.is_dictionary(field.type) and (config.columns is None or field.name in {*config.columns, *config.key}):
                column = _one_dictionary(out[side].column(i))
                out[side] = out[side].set_column(i, field.with_type(column.type), column)
    for names in zip(*(config.key for config in configs), strict=False) if both else ():
        if any(
            t.column_names.count(n) != 1 or not pa.types.is_dictionary(t.schema.field(n).type)
            for t, n in zip(out, names, strict=True)
        ):
            continue
        columns = [table.column(name) for table, name in zip(out, names, strict=True)]
        values = sum(len(column.chunk(0).dictionary) for column in columns if column.num_chunks)
        for side, (name, column) in enumerate(zip(names, columns, strict=True)):
            if values > 1 << (column.type.index_type.bit_width - 1):
                wide = pa.dictionary(pa.int32(), column.type.value_type, column.type.ordered)
                out[side] = out[side].set_column(out[side].column_names.index(name), name, column.cast(wide))
    return out


def open_sides(
    request: Request, left: object, right: object, *, materialise: bool, on_rows: Callable[[int], object]
) -> tuple[JoinInput, JoinInput, OutputColumns]:
    """Both inputs, read and checked, and what result rows look like. on_rows: called with the number of rows read of files."""
    query = request.query
    wanted: set[str] | None = None
    configs = list(request.streams)
    if (configs[LEFT].columns is not None or not materialise) and query.where is None:
        wanted = {n for c in configs for n in (*c.key, c.time, c.id, *((c.columns or ()) if materialise else ())) if n}
    left, right = both_inputs(left, right)
    whole = [
        WholeInput(v, n, c.time, wanted, c.csv, on_rows) for v, n, c in zip((left, right), STREAM_NAMES, configs, strict=True)
    ]
    refuse_unknown([c.csv for c in configs], [w.text_columns for w in whole])
    one, two = configs
    found = [_without_types(w, c) for w, c in zip(whole, configs, strict=True)]
    settled = settle_types((one, two), found, [w.csv for w in whole])
    tables = [w.read(schema) for w, schema in zip(whole, settled, strict=True)]
    if materialise:
        tables = _with_one_dictionary(tables, [one, two], both=query.kind.unmatched[RIGHT])
    schemas = (one, tables[LEFT].schema), (two, tables[RIGHT].schema)
    views, keys = describe_streams(*schemas, carry=materialise, packed=False, query=query)
    in_id_order = materialise and query.as_of is not None
    sides = [
        JoinInput(s, tables[s], c, views[s], keys, by_position=materialise, in_id_order=in_id_order, whole=whole[s])
        for s, c in ((LEFT, one), (RIGHT, two))
    ]
    return sides[LEFT], sides[RIGHT], OutputColumns(views[LEFT].codec, views[RIGHT].codec, request.ids, query.how)
