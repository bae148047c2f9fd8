"""One tiny join through the package's own doors, and the same by definition over what an independent reading gives.

What: `Inputs`, both streams and how they are joined; `answer_of`, the package's answer; `check_answer` against the reference.
Why: a file that is accepted must be joined as what it holds, whatever types, nulls and values it has.
Stays out: how files are spoilt (`tables`).

The package's part: sources, intake, one delivery, the join module, the output plan. Now and then `run_local` as a whole, which
must give the same answer.
"""

from __future__ import annotations

import dataclasses
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.types as t

from swjoin.cluster.gateway.intake import LateRowError, StreamIntake
from swjoin.config.job import Job
from swjoin.config.run import ModuleConfig, QueryConfig, RunConfig, SinkConfig, StreamConfig, TimeConfig
from swjoin.connectors.files.inputs import list_files
from swjoin.connectors.files.source import FileSource, open_sources
from swjoin.connectors.output_columns import OutputColumns
from swjoin.core.batch import STREAM_NAMES, TupleBatch
from swjoin.core.data_messages import Delivery
from swjoin.core.errors import RunFailed
from swjoin.core.ids import END_OF_TIME_US, EpochIndex, QueryId, SlaveId
from swjoin.core.join_semantics import format_digest, pair_digest
from swjoin.operators.window_join import WindowJoinOperator
from swjoin.operators.window_store import WindowSizes
from swjoin.runtime.in_process import run_local
from swjoin.runtime.open import row_place
from tests.fuzzing.harness import Wrong

_SCALES = {"s": 1_000_000, "ms": 1_000, "us": 1}
ReadScheduler = Callable[[StreamConfig, list[Path]], list[pa.Table]]  # the tables of a stream's files, as they are


@dataclass(frozen=True)
class Inputs:
    """Both streams, the bounds in microseconds, and what becomes of late rows."""

    left: StreamConfig
    right: StreamConfig
    bounds: tuple[int, int]
    time: TimeConfig

    @property
    def streams(self) -> tuple[StreamConfig, StreamConfig]:
        return self.left, self.right

    @property
    def config(self) -> RunConfig:
        module = ModuleConfig(window_bytes=1 << 20, block_bytes=256, theta_bytes=1024)
        query = QueryConfig(*self.bounds)
        return RunConfig((query,), self.left, self.right, time=self.time, module=module, sink=SinkConfig("parquet"))


@dataclass(frozen=True)
class Answer:
    """rows: the output, in the order of ids (left, right)."""

    count: int
    digest: str
    ids: list[tuple[int, int]]
    rows: pa.RecordBatch
    plan: OutputColumns


# ---------------------------------------------------------------- the package


def _all_of(sources: tuple[FileSource, FileSource], stream: int, time: TimeConfig) -> TupleBatch:
    source, intake = sources[stream], StreamIntake(stream, time)
    while (batch := source.read()) is not None:
        try:
            intake.read(batch, 0)
        except LateRowError as error:
            raise error.at(row_place(sources, error.stream, error.row_id)) from None
        intake.arrive_all()
    intake.end()
    if source.rows_total is not None and intake.counts.tuples != source.rows_total:
        raise RunFailed(f"{STREAM_NAMES[stream]}: {intake.counts.tuples} rows were read of {source.rows_total}")
    batches = intake.take_released()
    return TupleBatch.concat(batches) if batches else TupleBatch.empty(source.layout)


def answer_of(inputs: Inputs) -> Answer:
    """By the package. Raises what it raises."""
    left, right, _ = open_sources(inputs.left, inputs.right, carry_payload=True)
    try:
        batches = [_all_of((left, right), stream, inputs.time) for stream in (0, 1)]
        plan = OutputColumns(left.codec, right.codec, True)
    finally:
        left.close()
        right.close()
    config = inputs.config
    join = WindowJoinOperator(
        config.query.bounds,
        WindowSizes(config.module.block_tuples, config.module.theta_tuples, config.module.window_bytes),
        (left.layout, right.layout),
        result_tuples=4096,
    )
    counts = [np.array([len(b)]) for b in batches]
    labels = (QueryId(0), SlaveId(0), EpochIndex(0), END_OF_TIME_US, END_OF_TIME_US)
    work, parts = join.open(Delivery(*labels, np.array([0]), *counts, *batches, True)), []
    while True:
        step = join.step(work, 0, 1 << 20)
        if step.pairs is not None:
            parts.append((step.pairs, plan.decode(step.pairs)))
        if step.done:
            break
    lefts = np.concatenate([np.empty(0, np.uint64), *(p.left_id for p, _ in parts)])
    rights = np.concatenate([np.empty(0, np.uint64), *(p.right_id for p, _ in parts)])
    rows = pa.Table.from_batches([b for _, b in parts], plan.schema).combine_chunks()
    ids = list(zip(lefts.tolist(), rights.tolist(), strict=True))
    batch = rows.to_batches()[0] if rows.num_rows else pa.RecordBatch.from_pylist([], plan.schema)
    return Answer(len(ids), format_digest(pair_digest(lefts, rights)), ids, batch, plan)


def check_whole_run(inputs: Inputs, answer: Answer, folder: Path) -> None:
    """The same by `run_local`, into a file."""
    out = folder / "out.parquet"
    report = run_local(Job(inputs.config, out, False, None, None, "fuzz"), False, 1)
    found = report["results"]["count"], report["results"]["digest"]
    if found != (answer.count, answer.digest):
        raise Wrong(f"run_local gives {found}, one delivery alone {(answer.count, answer.digest)}")
    out.unlink()


# ---------------------------------------------------------------- the reference


def _plain(column: pa.ChunkedArray) -> list[Any]:
    """Values that compare as keys must: numbers, or bytes; None for nulls."""
    kind = column.type
    if t.is_dictionary(kind):
        return _plain(column.cast(kind.value_type))
    if t.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    elif not t.is_integer(kind) and not t.is_boolean(kind):
        column = column.cast(pa.binary())
    values: list[Any] = column.to_pylist()
    return values


def _times(column: pa.ChunkedArray, unit: str | None) -> list[int | None]:
    """Microseconds. Wrong when the package should have refused them."""
    kind = column.type
    if t.is_date32(kind):
        factor = 86_400_000_000
    else:
        unit = "ms" if t.is_date64(kind) else kind.unit if t.is_timestamp(kind) else unit
        factor = _SCALES.get(str(unit), 0)
    out: list[int | None] = []
    for value in _plain(column):
        if value is not None and not factor and value % 1000:
            raise Wrong(f"a time of {value} ns was accepted")
        time = None if value is None else value * factor if factor else value // 1000
        if time is not None and abs(time) >= 1 << 61:
            raise Wrong(f"a time of {time} us was accepted")
        out.append(time)
    return out


def _good(inputs: Inputs, stream: int, table: pa.Table) -> dict[tuple[Any, ...], list[tuple[int, int, int]]]:
    """Rows that take part (time, id, place), by key. Wrong when a late row should have stopped the run."""
    config, high, out = inputs.streams[stream], None, defaultdict(list)
    keys = list(zip(*(_plain(table.column(name)) for name in config.key), strict=True))
    ids = range(table.num_rows) if config.id is None else [i % 2**64 for i in _plain(table.column(config.id))]
    times = _times(table.column(config.time), config.time_unit)
    for place, (key, time, row_id) in enumerate(zip(keys, times, ids, strict=True)):
        late = time is None or (high is not None and time < high - inputs.time.max_out_of_order_us and not inputs.time.sort)
        if None not in key:
            if late and inputs.time.late == "error":
                raise Wrong(f"{STREAM_NAMES[stream]}: row {place} is late, and the run did not stop")
            if not late:
                out[key].append((time, row_id, place))
        if time is not None:
            high = time if high is None else max(high, time)
    return out


def check_answer(inputs: Inputs, answer: Answer, read: ReadScheduler) -> None:
    """Wrong unless the independent reading, joined by definition, has the same pairs, and these the same columns."""
    tables = []
    for stream, config in enumerate(inputs.streams):
        try:
            tables.append(_one_table(config, read(config, list_files(config.path or ""))))
        except (pa.ArrowException, OSError, ValueError) as error:
            raise Wrong(f"{STREAM_NAMES[stream]} was accepted; read in one piece it is refused: {str(error)[:200]}") from None
    columns = [table.column(c.time) for c, table in zip(inputs.streams, tables, strict=True)]
    clocks = [column.type for column in columns if column.null_count < len(column)]
    if len({not t.is_timestamp(kind) or kind.tz is None for kind in clocks if not t.is_integer(kind)}) > 1:
        raise Wrong(f"times with and without a zone were joined: {clocks}")
    lefts, rights = (_good(inputs, stream, tables[stream]) for stream in (0, 1))
    lower, upper = inputs.bounds
    pairs = [
        (left_id, right_id, i, j)
        for key, rows in lefts.items()
        for left, left_id, i in rows
        for right, right_id, j in rights.get(key, ())
        if lower <= right - left <= upper
    ]
    wanted = sorted((a, b) for a, b, _, _ in pairs)
    if wanted != sorted(answer.ids):
        missing, surplus = [p for p in wanted if p not in answer.ids], [p for p in answer.ids if p not in wanted]
        raise Wrong(f"{answer.count} pairs instead of {len(wanted)}; missing {missing[:3]}, surplus {surplus[:3]}")
    ids = (np.array([p[i] for p in wanted], np.uint64) for i in (0, 1))
    if format_digest(pair_digest(*ids)) != answer.digest:
        raise Wrong(f"digest {answer.digest} of the right pairs")
    if len({(a, b) for a, b in answer.ids}) == len(answer.ids):  # ids that a user gives twice do not tell rows apart
        _check_columns(answer, {(a, b): (i, j) for a, b, i, j in pairs}, tables)


def _one_table(config: StreamConfig, parts: list[pa.Table]) -> pa.Table:
    """Files one after the other, with the columns of the first."""
    names = parts[0].schema.names
    table = pa.concat_tables([part.select(names) for part in parts])
    return (
        table
        if config.columns is None
        else table.select([n for n in names if n in {*config.columns, *config.key, config.time, config.id}])
    )


def _check_columns(answer: Answer, places: dict[tuple[int, int], tuple[int, int]], tables: list[pa.Table]) -> None:
    for label, _, side, _, name in answer.plan._columns():
        index = pa.array([places[pair][side] for pair in answer.ids], pa.int64())
        expected = comparable(tables[side].column(name)).take(index)
        found = comparable(pa.chunked_array([answer.rows.column(label)]))
        # columns of CSV files without values have no types
        typed = tables[side].column(name).null_count < tables[side].num_rows
        if (typed and not found.equals(expected)) or found.null_count != expected.null_count:
            raise Wrong(f"column {label}: {str(found)[:200]} instead of {str(expected)[:200]}")


def comparable(column: pa.ChunkedArray) -> pa.Array:
    """Equal exactly when the values are, bit by bit: NaN equals NaN, a dictionary its values."""
    kind = column.type
    if t.is_dictionary(kind):
        return comparable(column.cast(kind.value_type))
    if t.is_string(kind) or t.is_string_view(kind) or t.is_binary_view(kind):
        column = column.cast(pa.large_binary())
    array = column.combine_chunks()
    if isinstance(array, pa.ChunkedArray):
        array = array.chunk(0) if array.num_chunks else pa.array([], array.type)
    widths = {16: pa.uint16(), 32: pa.uint32(), 64: pa.uint64()}
    return array.view(widths[kind.bit_width]) if t.is_floating(kind) else array


def with_streams(inputs: Inputs, left: Path, right: Path) -> Inputs:
    """The same join of other files."""
    streams = [dataclasses.replace(c, path=str(p)) for c, p in zip(inputs.streams, (left, right), strict=True)]
    return dataclasses.replace(inputs, left=streams[0], right=streams[1])
