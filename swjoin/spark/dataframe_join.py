"""The window join for DataFrames: Spark reads and shuffles, the engine's kernels join, inside of Spark's executors.

What: `window_join(left, right, on=..., left_time=..., right_time=..., within=...) -> DataFrame`.
Why: a Spark job needs no other cluster, and gets the same pairs faster than by Spark's own range join.
Stays out: what executors do (`spark.shuffle_batches`, `spark.executor_join`), count and digest (`spark.row_digest`).

Two passes of mapInArrow with one shuffle between them: rows are packed into parcels by the hash of their key, a Spark partition
is a partition-group, its parcels are sorted by time and joined as they come. Executors need swjoin installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Unpack

from swjoin.config.arguments import key_columns, names, size_bytes, units_of, window_fields
from swjoin.config.options import Columns, MatchOptions, TimeUnit, complete, takes_options
from swjoin.config.run import QueryConfig
from swjoin.config.sections import check_key
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.times import TimeColumn, check_times
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError, spelled
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import StreamCodec
from swjoin.expressions.compiler import compile_text, resolve
from swjoin.expressions.parser import columns_of, parse_where
from swjoin.spark.executor_join import JoinSpec, join_parcels
from swjoin.spark.parquet_files import ParquetFiles, read_pieces
from swjoin.spark.shuffle_batches import PARCEL_SCHEMA, StreamSpec, pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

PARTITIONS_PER_CORE = 2


class SparkOptions(MatchOptions, total=False):
    """Options of `window_join`."""

    columns: Columns | None
    partitions: int | None
    window_memory: str


@takes_options(SparkOptions)
def window_join(left: DataFrame | ParquetFiles, right: DataFrame | ParquetFiles, **given: Unpack[SparkOptions]) -> DataFrame:
    """Every pair of rows with equal keys and lower <= right time - left time <= upper; `within=W`: lower = -W, upper = W.

    on: the key columns, or left_on and right_on where they have different names. Times: timestamps or dates, with a zone on
    both sides or on neither, or integers of `time_unit` (s, ms, us, ns) or of `left_time_unit`, `right_time_unit`. Durations:
    "250ms", "6h", or a timedelta; both bounds are inclusive unless named in `exclusive`. A null key or time matches
    nothing. columns: of the result, when not all are wanted; others do not leave the JVM. partitions: Spark partitions of the
    join, by default twice the cores. window_memory: most that the windows of one Spark partition may take, without the columns
    that are carried. where: what else must hold of a pair, such as "left_price < right_price" (docs/semantics.md).

    left, right: DataFrames, or `parquet(spark, path)` where the rows are files as they are: cheaper to read.
    Columns: the key once, named as on the left, then every other column of both sides, prefixed left_ / right_ where names
    clash. how: as in docs/semantics.md; a missing side is null, semi and anti joins have the left columns.
    Lazy, as DataFrames are. UserError, before anything runs, for what is wrong in the call.
    """
    options = complete(window_join, given)
    query = _query(options)
    keys = key_columns(options, LEFT), key_columns(options, RIGHT)
    for columns in keys:
        check_key(columns)
    sources, times = (left, right), (options["left_time"], options["right_time"])
    frames = (_frame_of(left), _frame_of(right))
    kinds = [_checked_types(frames[side], keys[side], times[side], side) for side in (LEFT, RIGHT)]
    units = _checked_times(kinds, times, options)
    encoder = KeyEncoder(*([(name, kinds[side].field(name).type) for name in keys[side]] for side in (LEFT, RIGHT)))
    _check_keys(kinds, keys, query.how)
    output = _chosen(_output(frames, kinds, keys, query.how), options["columns"])
    count = _partition_count(frames[LEFT], options["partitions"])
    plans = tuple(
        StreamSpec(side, len(keys[side]), encoder.native, times[side], units[side], count, query.bounds.retention_us)
        for side in (LEFT, RIGHT)
    )
    read = _read(query, kinds, keys)
    carried = [
        list(dict.fromkeys([*keys[side], times[side], *(c.name for c in output if c.side == side), *read[side]]))
        for side in (LEFT, RIGHT)
    ]
    left_read, right_read = (
        tuple((name, kinds[side].field(name).type, carried[side].index(name)) for name in read[side]) for side in (LEFT, RIGHT)
    )
    plan = JoinSpec(
        query.bounds,
        query.how,
        (plans[LEFT], plans[RIGHT]),
        tuple((c.side, carried[c.side].index(c.name)) for c in output),
        tuple(c.label for c in output),
        tuple(kinds[c.side].field(c.name).type for c in output),
        size_bytes(options["window_memory"], "window_memory"),
        query.where,
        (left_read, right_read),
        query.match,
    )
    with spelled("arguments"):
        compile_text(query.where, *plan.codecs(), count_windows=False)
    parcels = [_packed(sources[side], carried[side], plans[side], kinds[side]) for side in (LEFT, RIGHT)]
    schema = _schema(frames, output)
    rows = _joined(parcels[LEFT].union(parcels[RIGHT]), plan, schema)
    for side in (LEFT, RIGHT):
        if query.kind.unmatched[side]:
            rows = rows.union(_without_key(frames[side], side, keys, times[side], output, schema))
    return rows


# ---------------------------------------------------------------- what is asked for


def _query(options: Mapping[str, Any]) -> QueryConfig:
    with spelled("arguments"):
        return QueryConfig(**window_fields(options, count_windows=False))


def _read(
    query: QueryConfig, kinds: Sequence[pa.Schema], keys: tuple[tuple[str, ...], tuple[str, ...]]
) -> tuple[list[str], list[str]]:
    """The columns of either side that the predicate reads. UserError for names that are unknown or ambiguous."""
    found: tuple[list[str], list[str]] = ([], [])
    with spelled("arguments"):
        for name in [] if query.where is None else columns_of(parse_where(query.where)):
            side, column = resolve(name, (kinds[LEFT].names, kinds[RIGHT].names), keys)
            if column not in found[side]:
                found[side].append(column)
    return found


def _checked_types(frame: DataFrame, keys: tuple[str, ...], time: str, side: int) -> pa.Schema:
    """Arrow types of a side's columns. UserError for columns that are not there, twice there, or cannot be joined."""
    from pyspark.errors import PySparkException
    from pyspark.sql.pandas.types import to_arrow_schema
    from pyspark.sql.types import StringType

    name = STREAM_NAMES[side]
    for column in (*keys, time):
        if column not in frame.columns:
            raise UserError(f"{name}: no column {column}; the columns are {', '.join(frame.columns)}")
    twice = sorted({column for column in frame.columns if frame.columns.count(column) > 1})
    if twice:
        raise UserError(f"{name}: column {twice[0]} occurs twice; rename one")
    for column in keys:
        kind = frame.schema[column].dataType
        if isinstance(kind, StringType) and not kind.isUTF8BinaryCollation():
            raise UserError(
                f"{name}: key column {column} has collation {kind.collation}; keys are compared byte by byte (UTF8_BINARY)"
            )
    try:
        return to_arrow_schema(frame.schema, timezone="UTC")
    except PySparkException as error:
        raise UserError(f"{name}: a column cannot go through Arrow: {' '.join(str(error).split())[:200]}") from None


def _check_keys(kinds: Sequence[pa.Schema], keys: tuple[tuple[str, ...], tuple[str, ...]], how: How) -> None:
    """A key column may hold either side's key where right rows come out alone."""
    for left, right in zip(*keys, strict=False):
        types = kinds[LEFT].field(left).type, kinds[RIGHT].field(right).type
        if JOIN_KINDS[how].unmatched[RIGHT] and types[LEFT] != types[RIGHT]:
            raise UserError(
                f"key columns: left {left} is {types[LEFT]}, right {right} is {types[RIGHT]}; cast one for a {how} join"
            )


def _checked_times(
    kinds: Sequence[pa.Schema], times: Sequence[str], options: Mapping[str, Any]
) -> tuple[TimeUnit | None, TimeUnit | None]:
    """The unit of either side's integers. UserError for times that cannot be compared."""
    with spelled("arguments"):
        found = units_of(options)
        left, right = (
            TimeColumn(STREAM_NAMES[s], STREAM_NAMES[s], times[s], kinds[s].field(times[s]).type, found[s], None)
            for s in (LEFT, RIGHT)
        )
        check_times(left, right, "or cast one side so that both agree")
    return found


def _partition_count(frame: DataFrame, partitions: int | None) -> int:
    if partitions is not None:
        if isinstance(partitions, bool) or not isinstance(partitions, int) or not 1 <= partitions <= 1 << 20:
            raise UserError(f"partitions: {partitions!r} is not a number from 1 on")
        return partitions
    from pyspark.errors import PySparkException

    spark = frame.sparkSession
    try:
        return PARTITIONS_PER_CORE * int(spark.sparkContext.defaultParallelism)
    except PySparkException:  # Spark Connect does not know its cores
        return int(spark.conf.get("spark.sql.shuffle.partitions") or 200)


# ---------------------------------------------------------------- result columns


@dataclass(frozen=True)
class _Output:
    """A column of the result: its name there, and which side's column it is."""

    label: str
    side: int
    name: str


def _output(
    frames: tuple[DataFrame, DataFrame], kinds: Sequence[pa.Schema], keys: tuple[tuple[str, ...], tuple[str, ...]], how: How
) -> list[_Output]:
    """All of them, named as sinks do. UserError where Spark could not distinguish two of them."""
    codecs, columns = [], []
    for side in (LEFT, RIGHT):
        others = [name for name in frames[side].columns if name not in keys[side]]
        order = [*keys[side], *others]
        codecs.append(StreamCodec(tuple((name, kinds[side].field(name).type, "row") for name in order), keys[side], None))
        if side == LEFT or not JOIN_KINDS[how].one_sided:
            columns += [(side, name) for name in (order if side == LEFT else others)]
    labels = OutputColumns(codecs[LEFT], codecs[RIGHT], ids=False, how=how).schema.names
    if frames[LEFT].sparkSession.conf.get("spark.sql.caseSensitive") != "true":
        lower = [label.lower() for label in labels]
        same = [label for label in labels if lower.count(label.lower()) > 1]
        if same:
            raise UserError(f"columns {same[0]} and {same[1]} of the result differ in case only; rename one of them")
    return [_Output(label, side, name) for label, (side, name) in zip(labels, columns, strict=True)]


def _chosen(output: list[_Output], chosen: Columns | None) -> list[_Output]:
    if chosen is None:
        return output
    columns = names(chosen, "columns")
    known = {column.label: column for column in output}
    for name in columns:
        if name not in known or columns.count(name) > 1:
            raise UserError(f"columns: {name} is twice there or no column of the result, which has {', '.join(known)}")
    if not columns:
        raise UserError("columns: name at least one")
    return [known[name] for name in columns]


def _schema(frames: tuple[DataFrame, DataFrame], output: list[_Output]) -> StructType:
    from pyspark.sql.types import StructField, StructType

    return StructType([StructField(c.label, frames[c.side].schema[c.name].dataType, True) for c in output])


# ---------------------------------------------------------------- Spark


def _column(name: str) -> Column:
    from pyspark.sql import functions as f

    return f.col("`" + name.replace("`", "``") + "`")


def _frame_of(source: DataFrame | ParquetFiles) -> DataFrame:
    return source.frame if isinstance(source, ParquetFiles) else source


def _packed(source: DataFrame | ParquetFiles, inside: Sequence[str], plan: StreamSpec, kinds: pa.Schema) -> DataFrame:
    """A stream as parcels. Nothing but what the join and its result need leaves the JVM."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegralType

    if isinstance(source, ParquetFiles) and plan.native:
        return _packed_files(source, inside, plan, kinds)
    frame = _frame_of(source)  # other keys need Spark's hash
    keys = inside[: plan.key_count]
    for name in dict.fromkeys([*keys, plan.time]):
        frame = frame.where(_column(name).isNotNull())
    columns: list[Any] = [_column(name).alias(f"c{i}") for i, name in enumerate(inside)]
    if not plan.native:
        integers = {name for name in keys if isinstance(frame.schema[name].dataType, IntegralType)}
        columns.append(f.xxhash64(*(_column(n).cast("long") if n in integers else _column(n) for n in keys)).alias("hash"))

    def parcels(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack(batches, plan)

    return frame.select(*columns).mapInArrow(parcels, PARCEL_SCHEMA)


def _packed_files(files: ParquetFiles, inside: Sequence[str], plan: StreamSpec, kinds: pa.Schema) -> DataFrame:
    types = [kinds.field(name).type for name in inside]

    def parcels(pieces: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return pack(read_pieces(pieces, inside, types, plan.key_count + 1), plan)

    return files.pieces().mapInArrow(parcels, PARCEL_SCHEMA)


def _without_key(
    frame: DataFrame,
    side: int,
    keys: tuple[tuple[str, ...], tuple[str, ...]],
    time: str,
    output: list[_Output],
    schema: StructType,
) -> DataFrame:
    """Rows of a side that can match nothing, because a key or their time is null, as rows of the result."""
    from pyspark.sql import functions as f

    columns = []
    for column, field in zip(output, schema, strict=True):
        if column.side == side:
            value = _column(column.name)
        elif column.side == LEFT and column.name in keys[LEFT]:  # the key of the side that is there
            value = _column(keys[side][keys[LEFT].index(column.name)])
        else:
            value = f.lit(None)
        columns.append(value.cast(field.dataType).alias(column.label))
    absent = reduce(or_, (_column(name).isNull() for name in (*keys[side], time)))
    return frame.where(absent).select(*columns)


def _joined(parcels: DataFrame, plan: JoinSpec, schema: StructType) -> DataFrame:
    def rows(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return join_parcels(batches, plan)

    count = plan.streams[LEFT].partition_count
    return parcels.repartitionById(count, "partition").sortWithinPartitions("first").mapInArrow(rows, schema)
