"""Functions of users, called with batches of rows.

What: `BatchMap`, a function of a batch of tuples; `function_named`, the function that a plan names; `name_of`, the name of a
function; `functions_of_process`, for the time in which a run needs functions that cannot be imported.
Why: a plan is text, so it names functions. What a function gives is checked for every batch, as nothing is known of it.
Stays out: the node of a plan (`plan.map_batches`), files that ranks import functions from (`runtime.launch`).
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

import pyarrow as pa

from swjoin.core.batch import TupleBatch
from swjoin.core.columns import Columns
from swjoin.core.errors import RunFailed, UserError, one_line
from swjoin.core.row_codec import as_stored, storage
from swjoin.expressions.chain import batch_of

BatchFunction: TypeAlias = Callable[[pa.RecordBatch], Any]
_given: dict[str, BatchFunction] = {}


@contextmanager
def functions_of_process(functions: Mapping[str, BatchFunction]) -> Iterator[None]:
    """Plans of this process may name these functions, whose names no others have, meanwhile."""
    _given.update(functions)
    try:
        yield
    finally:
        for name in functions:
            del _given[name]


def function_named(name: str) -> BatchFunction:
    """The function of this name. UserError when it cannot be imported, or is not one of this process."""
    if name in _given:
        return _given[name]
    module, _, path = name.partition(":")
    if not path:
        remedy = "give an importable one: 'package.module:function'"
        raise UserError(f"map_batches: {name} was a function of another process", remedy=remedy)
    try:
        found: Any = importlib.import_module(module)
        for part in path.split("."):
            found = getattr(found, part)
    except Exception as error:  # whatever the module does when it is imported
        problem = f"map_batches: {name} cannot be imported, {type(error).__name__}: {one_line(error, 150)}"
        raise UserError(problem, remedy="write 'package.module:function', with its folder in PYTHONPATH") from error
    if not callable(found):
        raise UserError(f"map_batches: {name} is no function", remedy="name a function of a batch")
    return found  # type: ignore[no-any-return]


def name_of(function: BatchFunction) -> str | None:
    """ "package.module:function"; None for one that cannot be imported under such a name."""
    module, path = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not module or not path or module == "__main__" or "<" in path:
        return None
    name = f"{module}:{path}"
    try:
        return name if function_named(name) is function else None
    except UserError:
        return None


@dataclass(frozen=True)
class BatchMap:
    """The tuples with columns that a function computes from theirs.

    name: of the plan's node. function: as `function_named` takes it; one with the attribute `of_whole_table`, of static tables,
    gets all rows of one at once, others compute each row from its own values alone. read: columns that the function gets, of
    these types. columns: that it gives, likewise. time: the column among both that is the tuples' time; None: neither has it.
    shown: columns that are needed afterwards.
    """

    name: str
    function: str
    read: tuple[tuple[str, pa.DataType], ...]
    columns: tuple[tuple[str, pa.DataType], ...]
    time: str | None
    shown: tuple[str, ...]
    _tried: list[bool] = field(default_factory=list, compare=False, repr=False)

    @cached_property
    def _call(self) -> BatchFunction:
        return function_named(self.function)

    @property
    def of_whole_table(self) -> bool:
        return getattr(self._call, "of_whole_table", False)

    def __call__(self, rows: TupleBatch) -> TupleBatch:
        """RunFailed, with the ids of the rows, when the function fails, or gives other rows or columns than it must."""
        given = batch_of(rows)
        if not len(rows):
            made = [pa.nulls(0, storage(kind)) for _, kind in self.columns]
        else:
            try:
                made = self.mapped(given)
                if len(rows) > 1 and not self._tried and not self.of_whole_table:
                    self._check_halves(given, made)
                    self._tried.append(True)
            except RunFailed as error:
                where = f"row {rows.id[0]}" if len(rows) == 1 else f"{len(rows)} rows, {rows.id[0]} to {rows.id[-1]}"
                raise error.prefixed(f"map_batches {self.function}, {where}") from error.__cause__
        batch = pa.RecordBatch.from_arrays(made, [name for name, _ in self.columns])
        return replace(rows, columns=Columns(batch.select(list(self.shown)) if self.shown else batch))

    def mapped(self, given: pa.RecordBatch) -> list[pa.Array]:
        """The columns for these rows, as they are stored. RunFailed when the function fails, or gives others than it must."""
        arrays = [given.column(name) for name, _ in self.read]
        arrays = [a if a.type == kind else a.cast(kind) for a, (_, kind) in zip(arrays, self.read, strict=True)]
        batch = pa.RecordBatch.from_arrays(arrays, [name for name, _ in self.read])
        try:
            found = _table_of(self._call(batch))
        except Exception as error:
            raise RunFailed(f"{type(error).__name__}: {one_line(error)}") from error
        if found is None:
            remedy = "return a record batch, a table or a frame of Arrow, pandas or polars"
            raise RunFailed("it gives no table", remedy=remedy)
        if found.num_rows != len(batch):
            remedy = "give each row one, in their order; drop rows by filter"
            raise RunFailed(f"it gives {found.num_rows} rows for {len(batch)}", remedy=remedy)
        if sorted(found.schema.names) != sorted(name for name, _ in self.columns):
            wanted = ", ".join(name for name, _ in self.columns)
            remedy = "declare in schema what it gives"
            raise RunFailed(f"it gives columns {', '.join(found.schema.names)}, its schema has {wanted}", remedy=remedy)
        made = [self._stored(name, kind, found.column(name)) for name, kind in self.columns]
        if self.time is not None:
            self._check_times(given.column(self.time), made[[name for name, _ in self.columns].index(self.time)])
        return made

    def _stored(self, name: str, kind: pa.DataType, column: pa.ChunkedArray) -> pa.Array:
        """A column that the function gives. RunFailed for one of another type; where it is stored in one way, it may be another
        spelling of the type."""
        chunks = [as_stored(chunk, storage(chunk.type)) for chunk in column.chunks]
        if pa.types.is_null(column.type):
            return pa.nulls(len(column), storage(kind))
        if storage(column.type) != storage(kind):
            remedy = f"declare it so in schema, or cast it to {kind}"
            raise RunFailed(f"column {name} is {column.type}, in its schema {kind}", remedy=remedy)
        return chunks[0] if len(chunks) == 1 else pa.concat_arrays(chunks)

    def _check_times(self, before: pa.Array, after: pa.Array) -> None:
        """RunFailed if a row has another time than it had."""
        if (at := _first_difference(before, after)) is not None:
            remedy = "give what it computes another name; rows keep their times"
            raise RunFailed(f"it gives {self.time} {after[at]} to a row of {before[at]}", remedy=remedy)

    def _check_halves(self, given: pa.RecordBatch, whole: list[pa.Array]) -> None:
        """RunFailed if rows have other values in another batch: the answer would depend on how rows are cut into batches."""
        middle = -(-len(given) // 2)
        halves = self.mapped(given.slice(0, middle)), self.mapped(given.slice(middle))
        for (name, _), array, *parts in zip(self.columns, whole, *halves, strict=True):
            if (at := _first_difference(array, pa.concat_arrays(parts))) is not None:
                problem = f"it gives {name} {array[at]} in one batch, {pa.concat_arrays(parts)[at]} in another"
                raise RunFailed(problem, remedy="compute each row from its own values alone; round floats that differ")


def _table_of(value: Any) -> pa.Table | None:
    """What a function has given; None for what is no table."""
    if isinstance(value, pa.RecordBatch):
        return pa.Table.from_batches([value])
    if isinstance(value, pa.Table):
        return value
    if isinstance(value, Mapping):
        return pa.table(dict(value))
    return pa.table(value) if hasattr(value, "__arrow_c_stream__") or hasattr(value, "iloc") else None


def _first_difference(one: pa.Array, two: pa.Array) -> int | None:
    """Where two arrays of a type differ; nulls are equal, and so are NaN."""
    if one.equals(two):
        return None
    if pa.types.is_temporal(one.type):
        one, two = (array.view(pa.int64() if array.type.bit_width == 64 else pa.int32()) for array in (one, two))
    for at, (mine, theirs) in enumerate(zip(one.to_pylist(), two.to_pylist(), strict=True)):
        if mine != theirs and (mine == mine or theirs == theirs):
            return at
    return None
