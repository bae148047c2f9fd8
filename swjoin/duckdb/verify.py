"""`verify`: a run's result recomputed by DuckDB, from its own reading of the input, and compared.

What: `verify(run_dir, memory_bytes) -> VerifyResult`.
Why: the proof attached to every answer must come from another engine than ours, and needs no Java: DuckDB's readers, DuckDB's
join, the digest in SQL.
Stays out: everything of the engine but the generator's definition (`connectors.generator.bmodel`), the configuration, logical
plans, and the names and types of columns (`connectors.files`); the SQL of joins (`duckdb.join_rows`) and of plans
(`duckdb.plan_rows`); Spark (`spark.verify`).

Tables of a stream: rid, the position; id, ts; k0, k1, ..., the key columns, which may be null (a source of a plan has none);
c0, c1, ..., columns of the condition (of a source, all that the plan reads).
"""

from __future__ import annotations

import codecs
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.connectors import TextConfig
from swjoin.config.job import Job
from swjoin.config.run import RunConfig, StreamConfig
from swjoin.config.sections import TimeConfig
from swjoin.connectors.files.formats import common_schema, read_batches, read_schema
from swjoin.connectors.files.inputs import (
    File,
    delimiter_of,
    file_format,
    list_files,
    local_path,
    open_stream,
    partition_of,
    refusing,
    text_of,
)
from swjoin.connectors.files.verification import (
    SHOWN,
    QueriesVerified,
    VerifyResult,
    claimed,
    condition,
    condition_columns,
    left_out_file,
    result_files,
)
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.connectors.row_encoder import settle_types
from swjoin.connectors.source import BATCH_ROWS
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.columns import plain_type_named, type_named
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import format_digest
from swjoin.core.row_digests import row_hashes
from swjoin.duckdb.join_rows import NONE, count_and_digest, define_macros, key_columns, rows_of_join
from swjoin.duckdb.plan_rows import NodeTable, as_type, define_found
from swjoin.duckdb.session import name, open_database, path_list, text
from swjoin.expressions.batch_map import function_named
from swjoin.plan.columns import columns_of
from swjoin.plan.logical import IntervalJoin, LogicalPlan, Result, Source
from swjoin.plan.map_batches import MapBatches
from swjoin.plan.plain import plan_from_plain
from swjoin.plan.sharing import alone
from swjoin.plan.stages import cut

if TYPE_CHECKING:
    import pyarrow as pa

_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_HASHED_ROWS = 1 << 17  # of a batch
_ROW = "__row"  # the position of a row in what is read, beside columns of any name
_LONGEST_ROW = 4 << 20  # of a CSV file, as in `connectors.files.formats`
_SLOTS = 32  # of the generator, per batch
_TABLES = tuple((stream, f"{stream}_rows") for stream in STREAM_NAMES)


# ---------------------------------------------------------------- reading, independently


def _typed(column: str, kind: pa.DataType, how: TextConfig | None = None) -> str:
    """A column with the type that the run has read; other types than these as DuckDB finds them. how: text was read."""
    import pyarrow.types as t

    if how is not None and how.times and t.is_timestamp(kind) and kind.tz is None:
        formats = ", ".join(text(form) for form in how.times)
        return f"coalesce(try_strptime({name(column)}::VARCHAR, [{formats}]), CAST({name(column)} AS TIMESTAMP))"
    kind = kind.value_type if t.is_dictionary(kind) else kind
    tests = {
        "UBIGINT": t.is_uint64,
        "BIGINT": t.is_integer,
        "DOUBLE": t.is_floating,
        "BOOLEAN": t.is_boolean,
        "DATE": t.is_date,
        "TIME": t.is_time,
        "TIMESTAMPTZ": lambda k: t.is_timestamp(k) and k.tz is not None,
        "TIMESTAMP_NS": lambda k: t.is_timestamp(k) and k.unit == "ns",
        "TIMESTAMP": t.is_timestamp,
        "BLOB": lambda k: t.is_binary(k) or t.is_large_binary(k) or t.is_binary_view(k) or t.is_fixed_size_binary(k),
        "VARCHAR": lambda k: t.is_string(k) or t.is_large_string(k) or t.is_string_view(k),
    }
    found = next((sql for sql, is_it in tests.items() if is_it(kind)), None)
    return name(column) if found is None else f"CAST({name(column)} AS {found})"


def _refuse_unreadable(stream: StreamConfig, schema: pa.Schema, compared: Sequence[str]) -> None:
    """UserError for columns that DuckDB would read in another way than the run, without an error."""
    import pyarrow.types as t

    remedy = "; swjoin verify --engine spark may read it"
    for column in (*stream.key, *([stream.time] if stream.time else []), *([stream.id] if stream.id else []), *compared):
        alike = [other for other in schema.names if other.lower() == column.lower() and other != column]
        if alike:
            raise UserError(f"{stream.path}: DuckDB takes columns {column} and {alike[0]} for one; rename one of them")
    for column in dict.fromkeys((*stream.key, *compared)):
        kind = schema.field(column).type
        kind = kind.value_type if t.is_dictionary(kind) else kind
        finer = (t.is_timestamp(kind) and kind.tz is not None) or t.is_time(kind) or t.is_duration(kind)
        if finer and getattr(kind, "unit", "us") == "ns":
            raise UserError(f"{stream.path}: column {column} is {kind}, of which DuckDB keeps microseconds only{remedy}")


def _copied(path: File, folder: Path) -> Path:
    """A local copy of a file, which DuckDB cannot open; of a compressed one, its content."""
    copy = folder / f"copy{sum(1 for _ in folder.iterdir())}"
    with open_stream(path) as stream, copy.open("wb") as file:
        shutil.copyfileobj(stream, file, 1 << 20)
    return copy


def _recoded(path: Path, encoding: str) -> Path:
    """A copy in UTF-8 of an unpacked copy."""
    copy = path.with_suffix(".utf8")
    with path.open(encoding=encoding, newline="") as source, copy.open("w", encoding="utf-8", newline="") as target:
        shutil.copyfileobj(source, target, 1 << 20)
    return copy


def _read_csv(path: File, columns: Sequence[str], folder: Path) -> str:
    """A query of the rows of a CSV file, as text: its position, and these columns."""
    text_config = text_of(path)
    coded = codecs.lookup(text_config.encoding).name != "utf-8"
    here = None if coded or path.suffix.lower() not in (".csv", ".tsv", ".gz") else local_path(path)
    plain = _copied(path, folder) if here is None else here
    if coded:
        plain = _recoded(plain, text_config.encoding)
    nulls = ", ".join(text(spelling) for spelling in text_config.nulls)
    names = read_schema(path).names
    kinds = ", ".join(f"'c{i}': 'VARCHAR'" for i in range(len(names)))
    wanted = ", ".join(f"c{names.index(column)} AS {name(column)}" for column in columns)
    return (
        f"SELECT row_number() OVER () - 1 AS {_ROW}, {wanted} FROM read_csv({path_list([plain])}, auto_detect = false, "
        f"header = true, columns = {{{kinds}}}, delim = {text(delimiter_of(path))}, quote = '\"', escape = '\"', "
        f"nullstr = [{nulls}], allow_quoted_nulls = false, max_line_size = {_LONGEST_ROW}, parallel = false)"
    )


def _read_json(path: File, columns: Sequence[str], folder: Path) -> str:
    """A query of the rows of JSON lines, as text: their positions, and these columns."""
    plain = (local_path(path) if path.suffix.lower() == ".jsonl" else None) or _copied(path, folder)
    kinds = ", ".join(f"{text(column)}: 'VARCHAR'" for column in columns)
    return (
        f"SELECT row_number() OVER () - 1 AS {_ROW}, * FROM read_json({path_list([plain])}, format = 'newline_delimited', "
        f"columns = {{{kinds}}}, maximum_object_size = {_LONGEST_ROW})"
    )


def _arrow_batches(path: Path, columns: Sequence[str]) -> pa.RecordBatchReader:
    """The rows of an Arrow file: their positions, and these columns."""
    import pyarrow as pa

    with path.open("rb") as stream:
        magic = stream.read(6)
    reader = pa.ipc.open_file(path) if magic == b"ARROW1" else pa.ipc.open_stream(path)
    in_file = isinstance(reader, pa.RecordBatchFileReader)
    batches = (reader.get_batch(i) for i in range(reader.num_record_batches)) if in_file else reader
    return _numbered(batches, pa.schema([reader.schema.field(column) for column in columns]))


def _numbered(batches: Iterable[pa.RecordBatch], schema: pa.Schema) -> pa.RecordBatchReader:
    """Rows with their positions before these columns."""
    import pyarrow as pa

    numbered = pa.schema([(_ROW, pa.int64()), *schema])

    def made() -> Iterator[pa.RecordBatch]:
        rows = 0
        for batch in batches:
            rids = pa.array(np.arange(rows, rows + batch.num_rows))
            yield pa.record_batch([rids, *(batch.column(column) for column in schema.names)], schema=numbered)
            rows += batch.num_rows

    return pa.RecordBatchReader.from_batches(numbered, made())


def _rows_of(db: Any, file: File, columns: Sequence[str], folder: Path) -> str:
    """A query of the rows of a file: their positions, and these columns. folder: for what is unpacked."""
    partition = partition_of(file)
    rows = _file_rows(db, file, [column for column in columns if column not in partition], folder)
    values = [f", {_literal(partition[column])} AS {name(column)}" for column in columns if column in partition]
    return f"SELECT *{''.join(values)} FROM ({rows})" if values else rows


def _literal(value: pa.Scalar) -> str:
    found = value.as_py()
    return "NULL" if found is None else text(found) if isinstance(found, str) else str(found)


def _file_rows(db: Any, file: File, columns: Sequence[str], folder: Path) -> str:
    """A query of the rows that a file has itself."""
    import pyarrow as pa

    kind = file_format(file)
    if kind == "CSV":
        return _read_csv(file, columns, folder)
    if kind == "JSON lines":
        return _read_json(file, columns, folder)
    if kind in ("RDF", "RDF lines"):
        schema = read_schema(file)
        shown = pa.schema([schema.field(column) for column in columns])
        db.register("rdf_rows", _numbered(read_batches(file, schema, list(columns), BATCH_ROWS), shown))
        return "SELECT * FROM rdf_rows"
    path = local_path(file) or _copied(file, folder)
    if kind == "Parquet":
        wanted = ", ".join(name(column) for column in columns)
        return f"SELECT file_row_number AS {_ROW}, {wanted} FROM read_parquet({path_list([path])}, hive_partitioning = false)"
    if kind == "Arrow IPC":
        db.register("arrow_rows", _arrow_batches(path, columns))
        return "SELECT * FROM arrow_rows"
    raise UserError(f"{file}: DuckDB does not read {kind}; swjoin verify --engine spark may read it")


def _time_us(stream: StreamConfig, kind: pa.DataType) -> str:
    """The time column in microseconds; a column without a zone holds local times of `assume_timezone`."""
    import pyarrow.types as t

    column = _typed(stream.time, kind, stream.csv)
    if t.is_integer(kind):
        scaled = f"{column} // 1000" if stream.time_unit == "ns" else f"{column} * {_UNITS[stream.time_unit or 'us']}"
        return f"({scaled})::BIGINT"
    if t.is_timestamp(kind) and kind.tz is not None:
        return f"epoch_us({column})"
    if stream.assume_timezone is not None:
        return f"epoch_us(timezone({text(stream.assume_timezone)}, {column}::TIMESTAMP))"
    return f"epoch_us({column}::TIMESTAMP)"


def _load_files(db: Any, stream: StreamConfig, schema: pa.Schema, compared: list[str], target: str, folder: Path) -> None:
    """The table of a stream from files."""
    _refuse_unreadable(stream, schema, compared)
    more = [column for column in (stream.time, stream.id) if column]  # a static table has no time
    columns = list(dict.fromkeys((*stream.key, *more, *compared)))
    typed = {column: _typed(column, schema.field(column).type, stream.csv) for column in columns}
    wanted = [
        f"{_ROW if stream.id is None else typed[stream.id]}::UBIGINT AS id",
        f"{_time_us(stream, schema.field(stream.time).type) if stream.time else '0::BIGINT'} AS ts",
        *(f"{typed[column]} AS k{i}" for i, column in enumerate(stream.key)),
        *(f"{typed[column]} AS c{i}" for i, column in enumerate(compared)),
    ]
    for number, path in enumerate(list_files(stream.path or "", stream.csv)):
        first = db.execute(f"SELECT count(*) FROM {target}").fetchone()[0] if number else 0
        rows = f"SELECT * REPLACE ({_ROW} + {first} AS {_ROW}) FROM ({_rows_of(db, path, columns, folder)})"
        into = f"INSERT INTO {target}" if number else f"CREATE TABLE {target} AS"
        db.execute(f"{into} SELECT {_ROW} AS rid, {', '.join(wanted)} FROM ({rows})")


def _load_generated(db: Any, config: RunConfig, side: int, compared: list[str], target: str) -> None:
    """The table of a generated stream."""
    import pyarrow as pa

    schema = pa.schema([(column, pa.int64()) for column in ("rid", "key", "ts")])

    def batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        for start in range(0, slots := slot_count(config.workload), _SLOTS):
            drawn = [slot_tuples(config.workload, config.seed, side, s) for s in range(start, min(start + _SLOTS, slots))]
            ts, key = (np.concatenate(column) for column in zip(*drawn, strict=True))
            yield pa.record_batch([np.arange(rows, rows + len(ts)), key, ts], schema=schema)
            rows += len(ts)

    db.register("generated", pa.RecordBatchReader.from_batches(schema, batches()))
    others = "".join(f", {column} AS c{i}" for i, column in enumerate(compared))
    db.execute(f"CREATE TABLE {target} AS SELECT rid, rid::UBIGINT AS id, ts, key AS k0{others} FROM generated")


def _load_generated_input(db: Any, config: RunConfig, stream: StreamConfig, columns: list[str], target: str) -> None:
    """The table of a generated input of a query, with these columns."""
    from swjoin.connectors.generator.input import whole_table

    db.register("generated", whole_table(stream, config.workload, config.seed))
    numbered = f"SELECT *, row_number() OVER () - 1 AS {_ROW} FROM generated"
    wanted = [f"{_ROW}::UBIGINT AS id", "epoch_us(ts) AS ts", *(f"{name(column)} AS c{i}" for i, column in enumerate(columns))]
    db.execute(f"CREATE TABLE {target} AS SELECT {_ROW} AS rid, {', '.join(wanted)} FROM ({numbered})")


def _load(db: Any, config: RunConfig, folder: Path) -> str | None:
    """The tables left_rows and right_rows; returns the condition in SQL."""
    streams = config.left, config.right
    names, schemas = [["key", "ts"], ["key", "ts"]], []
    if config.left.path is not None:
        files = [list_files(stream.path or "", stream.csv) for stream in streams]
        strings = [file_format(found[0]) == "CSV" for found in files]
        schemas = list(settle_types(streams, [common_schema(found).schema for found in files], strings))
        names = [schema.names for schema in schemas]
    compared = condition_columns(config, names)
    for side, stream in enumerate(streams):
        target = f"{STREAM_NAMES[side]}_rows"
        if schemas:
            _load_files(db, stream, schemas[side], compared[side], target, folder)
        else:
            _load_generated(db, config, side, compared[side], target)
    return condition(config, names, "duckdb", lambda side, column: f"{'lr'[side]}_c{compared[side].index(column)}")


# ---------------------------------------------------------------- which rows were joined


def _replace(db: Any, table: str, query: str) -> None:
    """Replace a table by the result of a query."""
    db.execute(f"CREATE TABLE replaced AS {query}")
    db.execute(f"DROP TABLE {table}")
    db.execute(f"ALTER TABLE replaced RENAME TO {table}")


def _drop_late(db: Any, table: str, time: TimeConfig) -> None:
    """The rows that are late by the declared bound, and those without a time, leave the table. Where the table has keys, a row
    with a null key is never late: it matches nothing, whenever it comes."""
    if time.late == "error":
        return
    high = "max(ts) OVER (ORDER BY rid ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING)"
    no_key = " OR ".join(f"{key} IS NULL" for key in key_columns(db, table)) or "false"
    in_time = "true" if time.sort else f"high IS NULL OR ts >= high - {time.max_out_of_order_us}"
    rows = f"SELECT *, {high} AS high FROM {table}"
    _replace(db, table, f"SELECT * EXCLUDE (high) FROM ({rows}) WHERE ts IS NOT NULL AND ({no_key} OR {in_time})")


def _settle_times(db: Any, config: RunConfig) -> int:
    """Late rows leave, arrival times count from the first one. Returns the first time of both streams."""
    arrival = config.time.model == "arrival"
    for stream, source in zip(STREAM_NAMES, (config.left, config.right), strict=True):
        if source.path is None:  # in order of time
            continue
        if arrival:
            high = "max(ts) OVER (ORDER BY rid ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
            _replace(db, f"{stream}_rows", f"SELECT * REPLACE ({high} AS ts) FROM {stream}_rows")
        else:
            _drop_late(db, f"{stream}_rows", config.time)
    both = " UNION ALL ".join(f"SELECT min(ts) AS ts FROM {stream}_rows" for stream in STREAM_NAMES)
    origin = int(db.execute(f"SELECT coalesce(min(ts), 0) FROM ({both})").fetchone()[0])
    if arrival:
        for stream in STREAM_NAMES:
            db.execute(f"UPDATE {stream}_rows SET ts = greatest(0, ts - {origin})")
        origin = 0
    return origin


def _leave_out(db: Any, run_dir: Path, tables: Iterable[tuple[str, str]] = _TABLES, *, late_only: bool = False) -> None:
    """The rows that the run says it has left out leave the tables. tables: streams and their tables. late_only: those that were
    late."""
    listed = f"SELECT * FROM read_parquet({path_list([left_out_file(run_dir)])})"
    for stream, table in tables:
        ids = f"SELECT row_id FROM ({listed}) WHERE stream = {text(stream)}" + (" AND reason <> 'shed'" if late_only else "")
        _replace(db, table, f"SELECT * FROM {table} WHERE id NOT IN ({ids})")


def _number(db: Any) -> None:
    """Both streams get the places of their tuples in the common order: own, in their stream; passed, in the other one."""
    parts = []
    for side, stream in enumerate(STREAM_NAMES):
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in key_columns(db, f"{stream}_rows"))
        counts = [f"({keyed})::BIGINT" if s == side else "0" for s in (LEFT, RIGHT)]
        parts.append(f"SELECT ts, {side} AS side, rid, {counts[LEFT]} AS l, {counts[RIGHT]} AS r FROM {stream}_rows")
    order = "OVER (ORDER BY ts, side, rid ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    both = " UNION ALL ".join(parts)
    db.execute(f"CREATE TABLE places AS SELECT side, rid, sum(l) {order} AS l, sum(r) {order} AS r FROM ({both})")
    for side, (stream, own, other) in enumerate(zip(STREAM_NAMES, "lr", "rl", strict=True)):
        places = f"SELECT rid, {own}::BIGINT AS own, {other}::BIGINT AS passed FROM places WHERE side = {side}"
        _replace(db, f"{stream}_rows", f"SELECT * FROM {stream}_rows JOIN ({places}) USING (rid)")


# ---------------------------------------------------------------- result files


def _define_results(db: Any, results: Path, config: RunConfig, folder: Path) -> None:
    """The view `kept`: the rows of the result files, l and r (ids; without ids in the files, both missing)."""
    files = result_files(results, config)
    there = set(read_schema(files[0]).names)
    left = "row_id" if "row_id" in there and "left_id" not in there else "left_id"  # of rows that are no pairs
    ids = [column for column in (left, "right_id") if column in there]
    if config.sink.kind == "parquet":
        rows = f"SELECT * FROM read_parquet({path_list(files)}, hive_partitioning = false)"
    else:
        rows = " UNION ALL ".join(f"({_read_csv(path, ids, folder)})" for path in files)
    chosen = (f"coalesce({column}::UBIGINT, {NONE})" if column in ids else NONE for column in (left, "right_id"))
    db.execute("CREATE VIEW kept AS SELECT {} AS l, {} AS r FROM ({})".format(*chosen, rows))


def _except(db: Any, one: str, other: str) -> list[tuple[int, int]]:
    """The first rows of a view that are not in the other one, or not as often."""
    query = f"SELECT l, r FROM ({one} EXCEPT ALL {other}) ORDER BY l, r LIMIT {SHOWN}"
    none = (1 << 64) - 1
    found = db.execute(query).fetchall()
    return [(-1 if left == none else left, -1 if right == none else right) for left, right in found]


@dataclass(frozen=True)
class _Claimed:
    """What a run claims. results: folder of its result files. plan: of a query, whose result is `result`. inputs: of the plan's
    sources, by their names."""

    config: RunConfig
    run_dir: Path
    results: Path
    plan: LogicalPlan | None = None
    result: Result | None = None
    inputs: Mapping[str, StreamConfig] = field(default_factory=dict)

    @property
    def of_values(self) -> bool:
        return self.result is not None and self.result.of_values


def _define_join(db: Any, report: dict[str, Any], config: RunConfig, run_dir: Path, folder: Path) -> None:
    """The view `found`: the ids of all rows of the join of two streams."""
    where = _load(db, config, folder)
    origin = _settle_times(db, config)
    if config.query.last is not None:  # shed tuples have their places, late ones have none
        if config.time.idle_timeout_us:
            _leave_out(db, run_dir, late_only=True)
        _number(db)
    if any((report.get("shed") or {}).values()) or config.time.idle_timeout_us:
        _leave_out(db, run_dir)
    measured_from_us = origin + config.measure.prefill_us if config.measure.prefill_us else None
    db.execute(f"CREATE VIEW found AS {rows_of_join(db, config.query, where, measured_from_us=measured_from_us)}")


def _plan_of(job: Job, run_dir: Path) -> LogicalPlan:
    """UserError for a plan that no run can have had."""
    try:
        plan = plan_from_plain(job.plan or {})
    except UserError as error:
        raise error.prefixed(str(run_dir / "run.json")) from None
    for node in plan.nodes:
        if isinstance(node, MapBatches):
            _check_function(node, run_dir)
    sources, results = ([node for node in plan.nodes if isinstance(node, kind)] for kind in (Source, Result))
    as_run = len(results) == (len(job.queries) or 1) and len(sources) == len(job.config.inputs)
    joins = [node for node in plan.nodes if isinstance(node, IntervalJoin)]
    if any(join.semantics.bounds.count_windows for join in joins) or not as_run:
        raise UserError(f"{run_dir / 'run.json'}: plan: is not what it must be; the file is damaged")
    return plan


def _check_function(node: MapBatches, run_dir: Path) -> None:
    """UserError for a function that this process cannot import."""
    try:
        function_named(node.function)
    except UserError as error:
        raise error.prefixed(f"{run_dir}: {node.description} is not here") from None


def _define_plan(db: Any, of: _Claimed, job: Job, folder: Path) -> bool:
    """The view `found`: the ids of all rows of a query's result. Returns whether these are the pairs of a join."""
    plan, result, found = of.plan, of.result, dict[str, NodeTable]()
    assert plan is not None, "a query without a plan"
    assert result is not None, "a query without a result"
    read = columns_of(
        plan, cut(plan, "operator"), rows=False
    ).read  # all that each node reads, and that the result has, where its values are digested
    for i, source in enumerate(node for node in plan.nodes if isinstance(node, Source)):
        stream = of.inputs[source.name]
        table, columns, types = f"source{i}", list(read[source.name]), dict(source.columns)
        if stream.generate is not None:
            _load_generated_input(db, job.config, stream, columns, table)
            found[source.name] = NodeTable(table, {column: f"c{j}" for j, column in enumerate(columns)})
            continue
        schema = common_schema(list_files(stream.path or "", stream.csv)).schema
        for column in {*columns, *([stream.time] if stream.time else [])}:
            at = schema.get_field_index(column)
            if at < 0 or column not in types:
                raise UserError(
                    f"{source.name}: {stream.path}: column {column} is missing; the input has changed since the run"
                )
            schema = schema.set(at, schema.field(at).with_type(type_named(types[column])))  # also where the file has no values
        _load_files(db, stream, schema, columns, table, folder)
        if stream.time:
            _drop_late(db, table, job.config.time)
        found[source.name] = NodeTable(table, {column: f"c{j}" for j, column in enumerate(columns)})
    if job.config.time.idle_timeout_us or job.config.on_overload.policy == "shed":
        _leave_out(db, of.run_dir, [(name, rows.table) for name, rows in found.items()])
    rows = define_found(db, plan, found)
    if rows is not None and result.of_values:
        schema = plan.schema(result.name)
        query = f"SELECT {', '.join(rows.columns[column] for column in schema.types)} FROM {rows.table}"
        db.execute("DROP VIEW found")
        _define_hashes(db, "found", db.cursor().sql(query).to_arrow_reader(_HASHED_ROWS), schema.types)
    return rows is None


def _kept_rows(files: Iterable[str | Path], columns: list[str]) -> Iterator[pa.RecordBatch]:
    """Rows of result files; not by DuckDB, for which names that differ in case only are one."""
    import pyarrow.parquet as pq

    for path in files:
        with refusing(Path(path)), pq.ParquetFile(path) as file:
            for batch in file.iter_batches(_HASHED_ROWS, columns=columns):
                yield batch.select(columns)


def _define_hashes(db: Any, table: str, rows: Iterable[pa.RecordBatch], types: Mapping[str, str]) -> None:
    """A table of the hashes of rows, in the place of ids. types: of their columns, in their order."""
    import pyarrow as pa

    kinds = [plain_type_named(type_name) for type_name in types.values()]
    hashes = [np.empty(0, np.uint64)]
    for batch in rows:
        arrays = [as_type(column, kind) for column, kind in zip(batch.columns, kinds, strict=True)]
        hashes.append(row_hashes(pa.RecordBatch.from_arrays(arrays, list(types))))
    cursor = db.cursor()
    cursor.register("hashes", pa.table({"l": np.concatenate(hashes)}))
    cursor.execute(f"CREATE TABLE {table} AS SELECT l, {NONE} AS r FROM hashes")


def verify(run_dir: Path, memory_bytes: int | None = None) -> VerifyResult | QueriesVerified:
    """Recompute and compare. UserError when the run or its input cannot be read; RunFailed when the run did not finish.

    memory_bytes: limit of DuckDB's memory; None: 4 GiB, or half of the machine's if that is less."""
    report, job = claimed(run_dir)
    if job.plan is None:
        with open_database(memory_bytes) as (db, folder):
            define_macros(db)
            _define_join(db, report, job.config, run_dir, folder)
            return _compared(db, report["results"], _Claimed(job.config, run_dir, run_dir / "results"), folder)
    plan, found = _plan_of(job, run_dir), []
    inputs = dict(zip((node.name for node in plan.nodes if isinstance(node, Source)), job.config.inputs, strict=True))
    for result in (node for node in plan.nodes if isinstance(node, Result)):
        of = _Claimed(job.config, run_dir, run_dir / "results", plan, result, inputs)
        said = report["results"]
        if job.queries:
            of = replace(of, plan=alone(plan, result.name), results=run_dir / "results" / result.name)
            said = next(query for query in report["queries"] if query["name"] == result.name)
        with open_database(memory_bytes) as (db, folder):
            define_macros(db)
            of_pairs = _define_plan(db, of, job, folder)
            found.append(_compared(db, said, of, folder, of_pairs=of_pairs))
    if not job.queries:
        return found[0]
    of_all = report["results"]
    return QueriesVerified.of(dict(zip(job.queries, found, strict=True)), of_all["count"], of_all["digest"])


def _compared(db: Any, said: dict[str, Any], of: _Claimed, folder: Path, *, of_pairs: bool = True) -> VerifyResult:
    """The view `found` beside what the run claims. said: its count and digest."""
    config, (count, digest) = of.config, count_and_digest(db, "found", of_pairs=of_pairs)
    compared = config.sink.in_files and (config.sink.kind == "parquet" if of.of_values else config.sink.ids)
    result = VerifyResult(count, format_digest(digest), said["count"], said["digest"], compared, engine="DuckDB")
    if config.sink.in_files:
        if of.plan is not None and of.result is not None and of.of_values and compared:
            types = of.plan.schema(of.result.name).types
            _define_hashes(db, "kept", _kept_rows(result_files(of.results, config), list(types)), types)
        else:
            _define_results(db, of.results, config, folder)
        file_count, file_digest = count_and_digest(db, "kept", of_pairs=of_pairs)
        result.file_count = file_count
        if compared and (file_count, file_digest) != (count, digest):
            found, kept = "SELECT l, r FROM found", "SELECT l, r FROM kept"
            result.missing, result.surplus = _except(db, found, kept), _except(db, kept, found)
    return result
