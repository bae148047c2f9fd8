"""Columns of a multiway join: rows of all inputs in one layout, and the rows that come out of its matches.

What: `MultiwayColumns`; `PartColumns`, what a sender makes of an input's rows; `PartsJoin` and `PartsSide`, the joins in a row
that a match stands for; `PartRows`.
Why: the rows that come out, their ids and times are those of the joins in a row, whatever conditions and projections stand
between them; so a plan has one answer, and one digest, either way.
Stays out: finding matches (`operators.multiway_join`), which joins are one (`plan.multiway`), evaluation of conditions
(`expressions`).

An input's columns lie in slots, which are numbered by type, so that rows of all inputs have the same columns. Columns of the
key are not among them: they are known by the key.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from swjoin.core.arrow_views import array_of, integers_of
from swjoin.core.batch import I64, LEFT, RIGHT, U64, Bool, PayloadRows, ResultRows, RowLayout, TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.group_keys import GroupKeys
from swjoin.core.hashing import pair_ids
from swjoin.core.row_codec import RowCodec, as_stored, storage

if TYPE_CHECKING:
    import pyarrow as pa

PART: Final = "part"  # the column of a row's input
RowStep = Callable[[TupleBatch], TupleBatch]
Condition = Callable[[Columns | None, Columns | None, int], Bool]  # both sides of so many pairs: which of them satisfy it


@dataclass(frozen=True)
class PartColumns:
    """The rows of an input as rows of the join. part: its number, from 0 on. names: of the join's columns, key columns and
    slots, and of the input's in their place, None where it has none. types: of the join's columns."""

    part: int
    names: tuple[tuple[str, str | None], ...]
    types: tuple[pa.DataType, ...]

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        import pyarrow as pa

        arrays, n = [], len(rows)
        for (_, name), kind in zip(self.names, self.types, strict=True):
            if name is None:
                arrays.append(pa.nulls(n, kind))
            else:
                assert rows.columns is not None, "rows without the columns of their input"
                arrays.append(as_stored(rows.columns.column(name), kind))
        arrays.append(array_of(np.full(n, self.part, np.int8)))
        columns = Columns(pa.RecordBatch.from_arrays(arrays, [*(name for name, _ in self.names), PART]))
        return TupleBatch(rows.key, rows.ts, rows.id, rows.arrival_us, None, columns)


class PartRows(Protocol):
    """Rows of a part, one of each match: keys as codes and times in microseconds, int64 (m,), ids, uint64 (m,), and payload."""

    @property
    def key(self) -> I64: ...
    @property
    def ts(self) -> I64: ...
    @property
    def id(self) -> U64: ...
    @property
    def payload(self) -> PayloadRows | None: ...


class PartOrigins(NamedTuple):
    """Where an input's columns are found. slots: by column; keys: the number of the key column; time: the column that is the
    time of its rows, and its type, of microseconds."""

    slots: dict[str, str]
    keys: dict[str, int]
    time: tuple[str, pa.DataType] | None


class PartsSide(NamedTuple):
    """A side of a join. part: the input that it is; None: the join before, `join`. steps: what is done to the rows of that
    join."""

    part: int | None
    join: int = 0
    steps: tuple[RowStep, ...] = ()


@dataclass(frozen=True)
class PartsJoin:
    """One of the joins in a row. lower_us, upper_us: of right time - left time, both inclusive. output_time: as of
    `plan.logical.IntervalJoin`. read: by side, columns that the condition reads. shown: columns that come out: name, side,
    column of the side."""

    name: str
    sides: tuple[PartsSide, PartsSide]
    lower_us: int
    upper_us: int
    output_time: str
    condition: Condition | None
    read: tuple[tuple[str, ...], tuple[str, ...]]
    shown: tuple[tuple[str, int, str], ...]


@dataclass(frozen=True)
class MultiwayColumns:
    """name: of the operator, for messages. keys: names and types of the key columns, as they travel. slots: of the others.
    parts: of each input. joins: in a row, each after those that it reads."""

    name: str
    keys: tuple[tuple[str, pa.DataType], ...]
    slots: tuple[tuple[str, pa.DataType], ...]
    parts: tuple[PartOrigins, ...]
    joins: tuple[PartsJoin, ...]

    def new_keys(self) -> GroupKeys:
        """An encoder of the keys, with a dictionary of its own."""
        return GroupKeys(self.keys)

    @cached_property
    def native(self) -> bool:
        """Whether keys are their own codes; then they travel as such, not as columns."""
        return self.new_keys().native

    @cached_property
    def travels(self) -> tuple[str, ...]:
        return (*(name for name, _ in self.keys if not self.native), *(name for name, _ in self.slots), PART)

    def part_columns(self, part: int, keys: Sequence[str]) -> PartColumns:
        """What a sender makes of an input's rows. keys: its key columns."""
        of_slot = {slot: column for column, slot in self.parts[part].slots.items()}
        names = [*((name, key) for (name, _), key in zip(self.keys, keys, strict=True))]
        shown = [*names, *((name, of_slot.get(name)) for name, _ in self.slots)]
        return PartColumns(part, tuple(shown), tuple(storage(kind) for _, kind in (*self.keys, *self.slots)))

    def reads(self, part: int) -> set[str]:
        """Columns of an input that are stored."""
        return set(self.parts[part].slots)

    @cached_property
    def codec(self) -> RowCodec | None:
        return RowCodec.of(self.slots) if self.slots else None

    @property
    def layout(self) -> RowLayout | None:
        return None if self.codec is None else self.codec.layout

    @property
    def row_bytes(self) -> int:
        """Of the payload of a match, about."""
        return 0 if self.layout is None else len(self.parts) * self.layout.fixed_bytes

    # ------------------------------------------------------------ rows that come, and go

    def parts_of(self, rows: TupleBatch) -> NDArray[np.int8]:
        """The input of each row: int8 (n,)."""
        assert rows.columns is not None, f"{self.name}: rows that do not tell their input"
        found: NDArray[np.int8] = integers_of(rows.columns.column(PART))
        return found

    def stored(self, keys: GroupKeys, rows: TupleBatch) -> TupleBatch:
        """The rows with codes as keys, and payload."""
        assert rows.columns is not None, f"{self.name}: rows without columns"
        key = rows.key
        if not keys.native:
            key, _ = keys.encode([rows.columns.column(name) for name, _ in self.keys], len(rows))
        payload = None
        if self.codec is not None:
            payload = self.codec.encode(rows.columns.batch.select([name for name, _ in self.slots]))
        return TupleBatch(key, rows.ts, rows.id, rows.arrival_us, payload)

    def as_sent(self, keys: GroupKeys, parts: I64, codes: I64, payload: PayloadRows | None) -> Columns:
        """The columns of stored rows, as they have come."""
        import pyarrow as pa

        of_key = [] if keys.native else keys.columns_of(codes, np.zeros(len(codes), np.bool_))
        slots = [] if self.codec is None or payload is None else self.codec.decode(payload)
        return Columns(pa.RecordBatch.from_arrays([*of_key, *slots, array_of(parts.astype(np.int8))], list(self.travels)))

    # ------------------------------------------------------------ rows that come out

    def rows(self, keys: GroupKeys, matched: Sequence[PartRows]) -> tuple[ResultRows, I64]:
        """The rows of matches that satisfy the conditions of all joins, and which matches these are: int64 (n,). matched: by
        part. RunFailed where a condition or a projection has no value."""
        found = self._rows_of(len(self.joins) - 1, keys, matched)
        return ResultRows(found.id, found.ts, found.columns), found.key

    def _rows_of(self, join: int, keys: GroupKeys, matched: Sequence[PartRows]) -> TupleBatch:
        """Rows of one of the joins; their keys are the numbers of the matches, ascending."""
        this = self.joins[join]
        inner = {}
        for i, side in enumerate(this.sides):
            if side.part is None:
                rows = self._rows_of(side.join, keys, matched)
                for step in side.steps:
                    rows = step(rows)
                inner[i] = rows
        at: I64 = np.arange(len(matched[0].key))
        if len(inner) == 2:
            at = np.intersect1d(inner[LEFT].key, inner[RIGHT].key, assume_unique=True)
            inner = {i: rows.take(np.searchsorted(rows.key, at)) for i, rows in inner.items()}
        elif inner:
            (rows,) = inner.values()
            at = rows.key
        both = []
        for i, side in enumerate(this.sides):
            wanted = list(dict.fromkeys([*this.read[i], *(column for _, of, column in this.shown if of == i)]))
            both.append(inner[i] if side.part is None else self._part(side.part, wanted, keys, matched, at))
        return self._joined(this, both[LEFT], both[RIGHT], at)

    def _part(self, part: int, wanted: Sequence[str], keys: GroupKeys, matched: Sequence[PartRows], at: I64) -> TupleBatch:
        """The rows of an input in these matches, with these columns."""
        import pyarrow as pa

        slots, key_columns, time = self.parts[part]
        rows, arrays, whole = matched[part], dict[str, pa.Array](), len(at) == len(matched[0].key)
        if time is not None and time[0] in wanted:
            arrays[time[0]] = array_of(rows.ts[at]).view(time[1])
        if any(name in key_columns for name in wanted):
            of_key = keys.columns_of(rows.key[at], np.zeros(len(at), np.bool_))
            arrays |= {name: of_key[number] for name, number in key_columns.items()}
        stored = [slots[name] for name in wanted if name not in arrays]
        if stored and self.codec is not None:
            assert rows.payload is not None, f"{self.name}: rows without payload"
            payload = rows.payload if whole else rows.payload.take(at)
            values = dict(zip((name for name, _ in self.slots), self.codec.decode(payload), strict=True))
            arrays |= {name: values[slots[name]] for name in wanted if name not in arrays}
        columns = Columns(pa.RecordBatch.from_arrays([arrays[name] for name in wanted], list(wanted))) if wanted else None
        return TupleBatch(at, rows.ts[at], rows.id[at], np.zeros(len(at), np.int64), None, columns)

    def _joined(self, join: PartsJoin, left: TupleBatch, right: TupleBatch, at: I64) -> TupleBatch:
        """The pairs of rows one beside the other that are within the bounds and satisfy the condition."""
        import pyarrow as pa

        apart = right.ts - left.ts
        passed = (apart >= join.lower_us) & (apart <= join.upper_us)
        if not passed.all():
            some = np.flatnonzero(passed)
            left, right, at, passed = left.take(some), right.take(some), at[some], passed[some]
        if join.condition is not None:
            read = [
                None if not names or rows.columns is None else rows.columns.select(names)
                for rows, names in zip((left, right), join.read, strict=True)
            ]
            passed = join.condition(read[LEFT], read[RIGHT], len(at))
        arrays = [_column((left, right)[side], column) for _, side, column in join.shown]
        columns = Columns(pa.RecordBatch.from_arrays(arrays, [name for name, _, _ in join.shown])) if arrays else None
        times = {"max": np.maximum, "min": np.minimum}
        ts = left.ts if join.output_time == "left" else times[join.output_time](left.ts, right.ts)
        rows = TupleBatch(at, ts, pair_ids(left.id, right.id), np.zeros(len(at), np.int64), None, columns)
        return rows if passed.all() else rows.take(np.flatnonzero(passed))


def _column(rows: TupleBatch, name: str) -> pa.Array:
    assert rows.columns is not None, f"rows without column {name}"
    return rows.columns.column(name)
