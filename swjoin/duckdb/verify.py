"""`verify`: a run's result recomputed by DuckDB, from its own reading of the input, and compared.

What: `verify(run_dir, memory_bytes) -> VerifyResult`.
Why: the proof attached to every answer must come from another engine than ours, and needs no Java: DuckDB's readers, DuckDB's
join, the digest in SQL.
Stays out: everything of the engine but the generator's definition (`connectors.generator.bmodel`), the configuration, and the
names and types of columns (`connectors.files`); Spark (`spark.verify`).

Tables of a stream: rid, the position; id, ts, k0, k1, ... (the key columns, which may be null); c0, c1, ..., columns of the
condition; with the side as a suffix. Streams are read into tables, pairs are never kept: an outer join finds them several
times. The join has a second equal column, the time bucket of the window's width, so that DuckDB hashes instead of comparing
all pairs of a hot key; the exact bounds are checked on every pair.
"""

from __future__ import annotations

import codecs
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.config.connectors import TextConfig
from swjoin.config.run import RunConfig, StreamConfig
from swjoin.connectors.files.formats import common_schema, read_schema
from swjoin.connectors.files.inputs import (
    File,
    delimiter_of,
    file_format,
    list_files,
    local_path,
    open_stream,
    partition_of,
    text_of,
)
from swjoin.connectors.files.verification import (
    SHOWN,
    VerifyResult,
    claimed,
    condition,
    condition_columns,
    left_out_file,
    result_files,
)
from swjoin.connectors.generator.bmodel import slot_count, slot_tuples
from swjoin.connectors.row_encoder import settle_types
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS, format_digest
from swjoin.duckdb.session import name, open_database, path_list, text

if TYPE_CHECKING:
    import pyarrow as pa

_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}
_NONE = "18446744073709551615::UBIGINT"  # the id of a missing side
_ROW = "__row"  # the position of a row in what is read, beside columns of any name
_LONGEST_ROW = 4 << 20  # of a CSV file, as in `connectors.files.formats`
_SLOTS = 32  # of the generator, per batch
# mix64 and the digest of a pair, in integers of 128 bits: no product of two with 64 bits overflows
_MACROS = (
    "low64(x) AS x & 18446744073709551615::UHUGEINT",
    "mixed(x, factor) AS low64(xor(x, x >> 33) * factor)",
    f"mix64(x) AS xor(mixed(mixed(x, {0xFF51AFD7ED558CCD}::UHUGEINT), {0xC4CEB9FE1A85EC53}::UHUGEINT), "
    f"mixed(mixed(x, {0xFF51AFD7ED558CCD}::UHUGEINT), {0xC4CEB9FE1A85EC53}::UHUGEINT) >> 33)",
    f"weighed(id) AS id::UHUGEINT * {0x9E3779B97F4A7C15}::UHUGEINT",
    f"pair_digest(l, r) AS mix64(low64(weighed(l) + mix64(low64(weighed(r) + {0x9E3779B97F4A7C15}::UHUGEINT))))::UBIGINT",
)


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
    for column in (*stream.key, stream.time, *([stream.id] if stream.id else []), *compared):
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
    found = reader.schema
    schema = pa.schema([(_ROW, pa.int64()), *(found.field(column) for column in columns)])

    def batches() -> Iterator[pa.RecordBatch]:
        rows = 0
        in_file = isinstance(reader, pa.RecordBatchFileReader)
        for batch in (reader.get_batch(i) for i in range(reader.num_record_batches)) if in_file else reader:
            rids = pa.array(np.arange(rows, rows + batch.num_rows))
            yield pa.record_batch([rids, *(batch.column(column) for column in columns)], schema=schema)
            rows += batch.num_rows

    return pa.RecordBatchReader.from_batches(schema, batches())


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
    kind = file_format(file)
    if kind == "CSV":
        return _read_csv(file, columns, folder)
    if kind == "JSON lines":
        return _read_json(file, columns, folder)
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
    columns = list(dict.fromkeys((*stream.key, stream.time, *([stream.id] if stream.id else []), *compared)))
    typed = {column: _typed(column, schema.field(column).type, stream.csv) for column in columns}
    wanted = [
        f"{_ROW if stream.id is None else typed[stream.id]}::UBIGINT AS id",
        f"{_time_us(stream, schema.field(stream.time).type)} AS ts",
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


def _replace(db: Any, stream: str, query: str) -> None:
    """Replace a stream's table by the result of a query."""
    db.execute(f"CREATE TABLE replaced AS {query}")
    db.execute(f"DROP TABLE {stream}_rows")
    db.execute(f"ALTER TABLE replaced RENAME TO {stream}_rows")


def _key_columns(db: Any, stream: str) -> list[str]:
    return [row[0] for row in db.execute(f"DESCRIBE {stream}_rows").fetchall() if row[0].startswith("k")]


def _settle_times(db: Any, config: RunConfig) -> int:
    """Late rows leave, arrival times count from the first one. Returns the first time of both streams."""
    arrival = config.time.model == "arrival"
    for stream, source in zip(STREAM_NAMES, (config.left, config.right), strict=True):
        if source.path is None:  # in order of time
            continue
        frame = "OVER (ORDER BY rid ROWS BETWEEN UNBOUNDED PRECEDING AND {})"
        if arrival:
            _replace(db, stream, f"SELECT * REPLACE (max(ts) {frame.format('CURRENT ROW')} AS ts) FROM {stream}_rows")
        elif config.time.late != "error":
            high = f"max(ts) {frame.format('1 PRECEDING')}"
            no_key = " OR ".join(f"{key} IS NULL" for key in _key_columns(db, stream))  # matches nothing, whenever it comes
            in_time = "true" if config.time.sort else f"high IS NULL OR ts >= high - {config.time.max_out_of_order_us}"
            rows = f"SELECT *, {high} AS high FROM {stream}_rows"
            _replace(db, stream, f"SELECT * EXCLUDE (high) FROM ({rows}) WHERE ts IS NOT NULL AND ({no_key} OR {in_time})")
    both = " UNION ALL ".join(f"SELECT min(ts) AS ts FROM {stream}_rows" for stream in STREAM_NAMES)
    origin = int(db.execute(f"SELECT coalesce(min(ts), 0) FROM ({both})").fetchone()[0])
    if arrival:
        for stream in STREAM_NAMES:
            db.execute(f"UPDATE {stream}_rows SET ts = greatest(0, ts - {origin})")
        origin = 0
    return origin


def _leave_out(db: Any, run_dir: Path, *, late_only: bool = False) -> None:
    """The rows that the run says it has left out leave the tables. late_only: those that were late."""
    listed = f"SELECT * FROM read_parquet({path_list([left_out_file(run_dir)])})"
    for stream in STREAM_NAMES:
        ids = f"SELECT row_id FROM ({listed}) WHERE stream = {text(stream)}" + (" AND reason <> 'shed'" if late_only else "")
        _replace(db, stream, f"SELECT * FROM {stream}_rows WHERE id NOT IN ({ids})")


def _number(db: Any) -> None:
    """Both streams get the places of their tuples in the common order: own, in their stream; passed, in the other one."""
    parts = []
    for side, stream in enumerate(STREAM_NAMES):
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in _key_columns(db, stream))
        counts = [f"({keyed})::BIGINT" if s == side else "0" for s in (LEFT, RIGHT)]
        parts.append(f"SELECT ts, {side} AS side, rid, {counts[LEFT]} AS l, {counts[RIGHT]} AS r FROM {stream}_rows")
    order = "OVER (ORDER BY ts, side, rid ROWS BETWEEN UNBOUNDED PRECEDING AND CURRENT ROW)"
    both = " UNION ALL ".join(parts)
    db.execute(f"CREATE TABLE places AS SELECT side, rid, sum(l) {order} AS l, sum(r) {order} AS r FROM ({both})")
    for side, (stream, own, other) in enumerate(zip(STREAM_NAMES, "lr", "rl", strict=True)):
        places = f"SELECT rid, {own}::BIGINT AS own, {other}::BIGINT AS passed FROM places WHERE side = {side}"
        _replace(db, stream, f"SELECT * FROM {stream}_rows JOIN ({places}) USING (rid)")


# ---------------------------------------------------------------- join and digest


def _near(probing: str, mine: str, stored: str, theirs: str, bounds: tuple[int, int]) -> str:
    """Pairs of rows of two streams, `l` and `r`, with equal keys and bounds[0] <= theirs - mine <= bounds[1]: a query."""
    lower, upper = bounds
    width = max(1, upper - lower + 1)

    def bucket(value: str) -> str:
        return f"{value} - {value} % {width} - CASE WHEN {value} % {width} < 0 THEN {width} ELSE 0 END"

    # [mine + lower, mine + upper] is `width` long, so it touches at most two buckets of that width.
    first = bucket(f"({probing}_{mine} + {lower})")
    return (
        f"SELECT * FROM (SELECT *, unnest([{first}, {first} + {width}]) AS p_bucket FROM {probing}_keyed) "
        f"JOIN (SELECT *, {bucket(f'{stored}_{theirs}')} AS s_bucket FROM {stored}_keyed) "
        f"ON p_bucket = s_bucket AND {{keys}} WHERE {stored}_{theirs} - {probing}_{mine} BETWEEN {lower} AND {upper}"
    )


def _define_rows(db: Any, config: RunConfig, measured_from_us: int | None, where: str | None) -> None:
    """The view `found`: all rows of the join, l and r (ids). measured_from_us: only pairs whose later tuple is not before."""
    keys = _key_columns(db, STREAM_NAMES[LEFT])
    for short, stream in zip("lr", STREAM_NAMES, strict=True):
        columns = [row[0] for row in db.execute(f"DESCRIBE {stream}_rows").fetchall()]
        named = ", ".join(f"{column} AS {short}_{column}" for column in columns)
        keyed = " AND ".join(f"{key} IS NOT NULL" for key in keys)
        db.execute(f"CREATE VIEW {short}_keyed AS SELECT {named} FROM {stream}_rows WHERE {keyed}")
    bounds = config.query.bounds
    if config.query.last is None:
        pairs = _near("l", "ts", "r", "ts", (bounds.lower_us, bounds.upper_us))
    else:  # of every pair one tuple comes first, and must be among the last of its stream before the other
        last_left, last_right = config.query.last
        found = _near("r", "passed", "l", "own", (1 - last_left, 0)), _near("l", "passed", "r", "own", (1 - last_right, 0))
        pairs = " UNION ALL BY NAME ".join(found)
    pairs = pairs.format(keys=" AND ".join(f"l_{key} = r_{key}" for key in keys))
    tests = [] if measured_from_us is None else [f"greatest(l_ts, r_ts) >= {measured_from_us}"]
    tests += [] if where is None else [where]
    db.execute(f"CREATE VIEW pairs AS SELECT * FROM ({pairs}) WHERE {' AND '.join(tests) or 'true'}")
    kind = JOIN_KINDS[config.query.how]
    parts = ["SELECT l_id AS l, r_id AS r FROM pairs"] if kind.pairs else []
    alone = {LEFT: f"id AS l, {_NONE} AS r", RIGHT: f"{_NONE} AS l, id AS r"}
    for side, (short, stream) in enumerate(zip("lr", STREAM_NAMES, strict=True)):
        matched = f"SELECT DISTINCT {short}_rid AS rid FROM pairs"
        if kind.first and side == LEFT:
            parts.append(f"SELECT {alone[side]} FROM left_rows SEMI JOIN ({matched}) USING (rid)")
        if kind.unmatched[side]:
            parts.append(f"SELECT {alone[side]} FROM {stream}_rows ANTI JOIN ({matched}) USING (rid) WHERE ts IS NOT NULL")
    db.execute(f"CREATE VIEW found AS {' UNION ALL '.join(parts)}")


def _count_and_digest(db: Any, view: str) -> tuple[int, int]:
    count, total = db.execute(f"SELECT count(*), sum(pair_digest(l, r)) FROM {view}").fetchone()
    return int(count), int(total or 0) % (1 << 64)


def _define_results(db: Any, run_dir: Path, config: RunConfig, folder: Path) -> None:
    """The view `kept`: the rows of the result files, l and r (ids; without ids in the files, both missing)."""
    files = result_files(run_dir, config)
    there = set(read_schema(files[0]).names)
    ids = [column for column in ("left_id", "right_id") if column in there]
    if config.sink.kind == "parquet":
        rows = f"SELECT * FROM read_parquet({path_list(files)}, hive_partitioning = false)"
    else:
        rows = " UNION ALL ".join(f"({_read_csv(path, ids, folder)})" for path in files)
    chosen = (f"coalesce({column}::UBIGINT, {_NONE})" if column in ids else _NONE for column in ("left_id", "right_id"))
    db.execute("CREATE VIEW kept AS SELECT {} AS l, {} AS r FROM ({})".format(*chosen, rows))


def _except(db: Any, one: str, other: str) -> list[tuple[int, int]]:
    """The first rows of a view that are not in the other one, or not as often."""
    query = f"SELECT l, r FROM ({one} EXCEPT ALL {other}) ORDER BY l, r LIMIT {SHOWN}"
    none = (1 << 64) - 1
    found = db.execute(query).fetchall()
    return [(-1 if left == none else left, -1 if right == none else right) for left, right in found]


def verify(run_dir: Path, memory_bytes: int | None = None) -> VerifyResult:
    """Recompute and compare. UserError when the run or its input cannot be read; RunFailed when the run did not finish.

    memory_bytes: limit of DuckDB's memory; None: 4 GiB, or half of the machine's if that is less."""
    report, config = claimed(run_dir)
    with open_database(memory_bytes) as (db, folder):
        for macro in _MACROS:
            db.execute(f"CREATE MACRO {macro}")
        where = _load(db, config, folder)
        origin = _settle_times(db, config)
        if config.query.last is not None:  # shed tuples have their places, late ones have none
            if config.time.idle_timeout_us:
                _leave_out(db, run_dir, late_only=True)
            _number(db)
        if any((report.get("shed") or {}).values()) or config.time.idle_timeout_us:
            _leave_out(db, run_dir)
        _define_rows(db, config, origin + config.measure.prefill_us if config.measure.prefill_us else None, where)
        count, digest = _count_and_digest(db, "found")
        said = report["results"]
        compared = config.sink.in_files and config.sink.ids
        result = VerifyResult(count, format_digest(digest), said["count"], said["digest"], compared, engine="DuckDB")
        if config.sink.in_files:
            _define_results(db, run_dir, config, folder)
            file_count, file_digest = _count_and_digest(db, "kept")
            result.file_count = file_count
            if compared and (file_count, file_digest) != (count, digest):
                found, kept = "SELECT l, r FROM found", "SELECT l, r FROM kept"
                result.missing, result.surplus = _except(db, found, kept), _except(db, kept, found)
    return result
