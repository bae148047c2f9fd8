"""Columns of result rows.

What: `OutputColumns`, made of both streams' codecs, and `decode(pairs) -> RecordBatch`; `RowColumns`, the same of a plan's rows
that are no pairs; `QueryColumns`, these of several queries; `AnyColumns`.
Why: the master reads the schemas, and the collector may be another process: `OutputColumns` travel as bytes, without pickle.
Stays out: files (`connectors.files.sink`).

Columns: the key once, named as on the left, then every other column of both sides, prefixed `left_` / `right_` where names
clash; with ids also left_id, right_id (uint64) and left_ts, right_ts (int64 microseconds). A missing side is null. Semi and
anti joins have the left columns only. Rows that are no pairs have the columns of the plan, with ids also row_id (uint64) and
row_ts (int64 microseconds).
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from swjoin.config.run import RunConfig
from swjoin.core.arrow_views import array_of
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES, Pairs, ResultRows, empty_pairs
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.kept_columns import OrderKey
from swjoin.core.pair_columns import PairColumn, PairColumns, as_type
from swjoin.core.row_codec import RowCodec, StreamCodec

if TYPE_CHECKING:
    import pyarrow as pa

    from swjoin.connectors.source import Source


@dataclass(frozen=True)
class OutputColumns:
    """left, right: codecs of both streams. ids: whether the id and time columns come first."""

    of_pairs: ClassVar = True
    going_on: ClassVar = 1  # queries
    order: ClassVar[tuple[OrderKey, ...]] = ()
    left: StreamCodec
    right: StreamCodec
    ids: bool
    how: How = "inner"

    @staticmethod
    def build(left: Source, right: Source, config: RunConfig) -> OutputColumns:
        return OutputColumns(left.codec, right.codec, config.sink.ids, config.query.how)

    # ------------------------------------------------------------ columns

    def _columns(self) -> list[PairColumn]:
        """Every column from the streams."""
        right_columns = [] if JOIN_KINDS[self.how].one_sided else self.right.shown
        left_names = [name for name, _, _ in self.left.shown]
        right_names = [name for name, _, _ in right_columns if name not in self.right.key]
        reserved = {name for name, _, _ in self.id_columns}
        taken: set[str] = set(reserved)
        out: list[PairColumn] = []
        keys = [c for c in self.left.shown if c[0] in self.left.key]
        others = [c for c in self.left.shown if c[0] not in self.left.key]
        mine = [(c, 0) for c in [*keys, *others]] + [(c, 1) for c in right_columns if c[0] not in self.right.key]
        for (name, kind, origin), side in mine:
            is_key = side == 0 and name in self.left.key
            clash = name in (right_names if side == 0 else left_names) or name in reserved
            label = name if is_key or not clash else f"{('left', 'right')[side]}_{name}"
            while label in taken:
                label += "_"
            taken.add(label)
            out.append(PairColumn(label, self._key_type(name, kind) if is_key else kind, side, origin, name))
        return out

    @cached_property
    def inputs(self) -> list[tuple[int, str]]:
        """(side, input name) of every column from the streams, in output order."""
        return [(side, name) for _, _, side, _, name in self._columns()]

    @property
    def id_columns(self) -> list[tuple[str, str, int]]:
        """(name, field of `Pairs`, side)."""
        sides = (LEFT,) if JOIN_KINDS[self.how].one_sided else (LEFT, RIGHT)
        names = [(f"{STREAM_NAMES[side]}_{what}", side) for what in ("id", "ts") for side in sides]
        return [(name, name, side) for name, side in names] if self.ids else []

    def _key_type(self, name: str, kind: pa.DataType) -> pa.DataType:
        """Type of a key column: the left one's, or a common type of both sides where right tuples come out alone."""
        import pyarrow as pa

        types = {column: right for column, right, _ in self.right.columns}
        other = types.get(self.right.key[self.left.key.index(name)], kind)
        if not JOIN_KINDS[self.how].unmatched[RIGHT]:
            return kind
        if other == kind:  # each side has its own order of values
            return pa.dictionary(kind.index_type, kind.value_type) if pa.types.is_dictionary(kind) else kind
        plain = [kind, other]
        while any(pa.types.is_dictionary(k) for k in plain):
            plain = [k.value_type if pa.types.is_dictionary(k) else k for k in plain]
        if plain[0] == plain[1]:
            return plain[0]
        if pa.types.is_integer(plain[0]):
            return pa.decimal128(20) if pa.uint64() in plain else pa.int64()
        if pa.types.is_temporal(plain[0]):
            return plain[0]
        strings = pa.types.is_string(plain[0]) or pa.types.is_large_string(plain[0]) or pa.types.is_string_view(plain[0])
        return pa.large_string() if strings else pa.large_binary()

    @cached_property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        ids = [(name, pa.int64() if name.endswith("ts") else pa.uint64()) for name, _, _ in self.id_columns]
        return pa.schema([*ids, *((label, kind) for label, kind, _, _, _ in self._columns())])

    def check_text(self) -> None:
        """UserError when a column cannot be written as text."""
        check_text(self.schema)

    def decode(self, pairs: Pairs | ResultRows) -> pa.RecordBatch:
        """Pairs as a batch of output rows."""
        import pyarrow as pa

        assert isinstance(pairs, Pairs), "a plan's rows in place of pairs"

        schema, n = self.schema, len(pairs)
        arrays: list[pa.Array] = []
        for name, field, side in self.id_columns:
            arrays.append(pa.nulls(n, schema.field(name).type) if pairs.side == 1 - side else array_of(getattr(pairs, field)))
        arrays += PairColumns(self.left, self.right, tuple(self._columns())).arrays(pairs)
        return pa.record_batch(arrays, schema=schema)

    @property
    def key_names(self) -> tuple[str, ...]:
        """Columns of the key."""
        return self.left.key

    def nothing(self) -> pa.RecordBatch:
        """No rows."""
        return self.decode(empty_pairs(self.left.layout, self.right.layout))

    # ------------------------------------------------------------ serialization

    def to_bytes(self) -> bytes:
        plain = {"ids": self.ids, "how": self.how, "left": _codec_out(self.left), "right": _codec_out(self.right)}
        return json.dumps(plain).encode()


@dataclass(frozen=True)
class RowColumns:
    """Columns of a plan's rows. types: of every column, without dictionaries. ids: as in `OutputColumns`. order: of the rows in
    a file."""

    of_pairs: ClassVar = False
    going_on: ClassVar = 1  # queries
    key_names: ClassVar[tuple[str, ...]] = ()
    types: tuple[tuple[str, pa.DataType], ...]
    ids: bool
    order: tuple[OrderKey, ...] = ()

    @property
    def id_columns(self) -> list[tuple[str, str, int]]:
        return [("row_id", "id", LEFT), ("row_ts", "ts", LEFT)] if self.ids else []

    @cached_property
    def schema(self) -> pa.Schema:
        import pyarrow as pa

        ids = [("row_id", pa.uint64()), ("row_ts", pa.int64())] if self.ids else []
        return pa.schema([*ids, *self.types])

    def check_text(self) -> None:
        """UserError when a column cannot be written as text."""
        check_text(self.schema)

    def decode(self, rows: Pairs | ResultRows) -> pa.RecordBatch:
        """Rows as a batch of output rows."""
        import pyarrow as pa

        assert isinstance(rows, ResultRows), "pairs in place of a plan's rows"
        assert rows.columns is not None, "rows that were only counted"
        ids = [array_of(rows.id), array_of(rows.ts)] if self.ids else []
        columns = [as_type(rows.columns.column(name), kind) for name, kind in self.types]
        return pa.record_batch([*ids, *columns], schema=self.schema)

    def nothing(self) -> pa.RecordBatch:
        """No rows."""
        import pyarrow as pa

        return pa.record_batch([pa.nulls(0, field.type) for field in self.schema], schema=self.schema)

    def to_bytes(self) -> bytes:
        import pyarrow as pa

        schema = base64.b64encode(bytes(pa.schema(self.types).serialize())).decode()
        return json.dumps({"rows": schema, "ids": self.ids, "order": self.order}).encode()


@dataclass(frozen=True)
class QueryColumns:
    """Columns of the rows of several queries, by their names. families: numbers of those that share rows, from the narrowest
    windows to the widest (`plan.families`). dropped: names of those that have rows up to a time alone."""

    of_pairs: ClassVar = False
    queries: tuple[tuple[str, RowColumns], ...]
    families: tuple[tuple[int, ...], ...] = ()
    dropped: tuple[str, ...] = ()

    @property
    def going_on(self) -> int:
        """How many have not been dropped."""
        return len(self.queries) - len(self.dropped)

    def check_text(self) -> None:
        """UserError when a column cannot be written as text."""
        for name, columns in self.queries:
            try:
                columns.check_text()
            except UserError as error:
                raise error.prefixed(f"query {name}") from None

    def nothing(self) -> None:
        """Make no rows of each."""
        for _, columns in self.queries:
            columns.nothing()

    def to_bytes(self) -> bytes:
        queries = [[name, columns.to_bytes().decode()] for name, columns in self.queries]
        return json.dumps({"queries": queries, "families": self.families, "dropped": self.dropped}).encode()


ResultColumns: TypeAlias = OutputColumns | RowColumns
AnyColumns: TypeAlias = ResultColumns | QueryColumns


def columns_from_bytes(data: bytes) -> AnyColumns:
    """What `to_bytes` of any wrote."""
    plain = json.loads(data)
    if "queries" not in plain:
        return _of_one(plain)
    found = []
    for name, text in plain["queries"]:
        columns = _of_one(json.loads(text))
        assert isinstance(columns, RowColumns), "queries have rows"
        found.append((name, columns))
    return QueryColumns(tuple(found), tuple(map(tuple, plain["families"])), tuple(plain["dropped"]))


def _of_one(plain: dict[str, Any]) -> ResultColumns:
    import pyarrow as pa

    if "rows" not in plain:
        return OutputColumns(_codec_in(plain["left"]), _codec_in(plain["right"]), plain["ids"], plain["how"])
    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plain["rows"])))
    order = tuple(OrderKey(*key) for key in plain["order"])
    return RowColumns(tuple((field.name, field.type) for field in schema), plain["ids"], order)


def check_text(schema: pa.Schema) -> None:
    """UserError when a column cannot be written as text."""
    import pyarrow.types as t

    for field in schema:
        kind = field.type.value_type if t.is_dictionary(field.type) else field.type
        if t.is_binary(kind) or t.is_large_binary(kind) or t.is_fixed_size_binary(kind) or t.is_binary_view(kind):
            raise UserError(f"column {field.name} is {kind}, which CSV cannot hold; write Parquet or leave the column out")


def _codec_out(codec: StreamCodec) -> dict[str, Any]:
    import pyarrow as pa

    schema = pa.schema([(name, kind) for name, kind, _ in codec.columns])
    return {
        "schema": base64.b64encode(bytes(schema.serialize())).decode(),
        "origins": [origin for _, _, origin in codec.columns],
        "key": list(codec.key),
        "hidden": list(codec.hidden),
        "rows": None if codec.rows is None else base64.b64encode(codec.rows.to_bytes()).decode(),
    }


def _codec_in(plain: dict[str, Any]) -> StreamCodec:
    import pyarrow as pa

    schema = pa.ipc.read_schema(pa.py_buffer(base64.b64decode(plain["schema"])))
    columns = tuple((f.name, f.type, origin) for f, origin in zip(schema, plain["origins"], strict=True))
    rows = None if plain["rows"] is None else RowCodec.from_bytes(base64.b64decode(plain["rows"]))
    return StreamCodec(columns, tuple(plain["key"]), rows, tuple(plain["hidden"]))
