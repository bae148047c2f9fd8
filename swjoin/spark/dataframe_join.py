"""The window join for DataFrames: Spark reads and shuffles, the engine's kernels join, inside of Spark's executors.

What: `window_join(left, right, on=..., left_time=..., right_time=..., within=...) -> DataFrame`.
Why: who has a Spark job needs no other cluster, and gets the same pairs faster than by Spark's own range join.
Stays out: what executors do (`spark.shuffle_batches`, `spark.executor_join`), count and digest (`spark.row_digest`).

Two passes of mapInArrow with one shuffle between them: rows are packed into parcels by the hash of their key, a Spark partition
is a partition-group, its parcels are sorted by time and joined as they come. Executors need swjoin installed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import reduce
from operator import or_
from typing import TYPE_CHECKING, Any

from swjoin.config.arguments import Duration, TimeUnit, duration_us, one_of, python_wording, side_units, size_bytes
from swjoin.config.run import QueryConfig
from swjoin.config.sections import check_key
from swjoin.connectors.output_columns import OutputColumns
from swjoin.connectors.times import TIME_UNITS, TimeColumn, check_times
from swjoin.core.batch import LEFT, RIGHT, STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS, How
from swjoin.core.key_encoder import KeyEncoder
from swjoin.core.row_codec import StreamCodec
from swjoin.spark.executor_join import JoinSpec, join_parcels
from swjoin.spark.parquet_files import ParquetFiles, read_pieces
from swjoin.spark.shuffle_batches import PARCEL_SCHEMA, StreamSpec, pack

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import StructType

PARTITIONS_PER_CORE = 2


def window_join(
    left: DataFrame | ParquetFiles,
    right: DataFrame | ParquetFiles,
    *,
    on: str | Sequence[str] | None = None,
    left_time: str,
    right_time: str,
    within: Duration | None = None,
    lower: Duration | None = None,
    upper: Duration | None = None,
    exclusive: Sequence[str] = (),
    time_unit: TimeUnit | None = None,
    left_time_unit: TimeUnit | None = None,
    right_time_unit: TimeUnit | None = None,
    how: str = "inner",
    where: str | None = None,
    columns: Sequence[str] | None = None,
    partitions: int | None = None,
    left_on: str | Sequence[str] | None = None,
    right_on: str | Sequence[str] | None = None,
    window_memory: str = "4GB",
) -> DataFrame:
    """Every pair of rows with equal keys and lower <= right time - left time <= upper; `within=W`: lower = -W, upper = W.

    on: the key columns, or left_on and right_on where they have different names. Times: timestamps or dates, with a zone on
    both sides or on neither, or integers of `time_unit` (s, ms, us, ns) or of `left_time_unit`, `right_time_unit`. Durations:
    "250ms", "6h", or a timedelta; both bounds are inclusive unless named in `exclusive`. A null key or time matches
    nothing. columns: of the result, when not all are wanted; others do not leave the JVM. partitions: Spark partitions of the
    join, by default twice the cores. window_memory: most that the windows of one Spark partition may take, without the columns
    that are carried.

    left, right: DataFrames, or `parquet(spark, path)` where the rows are files as they are: cheaper to read.
    Columns: the key once, named as on the left, then every other column of both sides, prefixed left_ / right_ where names
    clash. how: as in docs/semantics.md; a missing side is null, semi and anti joins have the left columns.
    Lazy, as DataFrames are. UserError, before anything runs, for what is wrong in the call.
    """
    query = _query(within, lower, upper, exclusive, how, where)
    keys = _keys(on, left_on, right_on)
    sources, times = (left, right), (left_time, right_time)
    frames = (_frame_of(left), _frame_of(right))
    kinds = [_checked_types(frames[side], keys[side], times[side], side) for side in (LEFT, RIGHT)]
    units = _checked_times(kinds, times, (time_unit, left_time_unit, right_time_unit))
    encoder = KeyEncoder(*([(name, kinds[side].field(name).type) for name in keys[side]] for side in (LEFT, RIGHT)))
    _check_keys(kinds, keys, query.how)
    output = _chosen(_output(frames, kinds, keys, query.how), columns)
    count = _partition_count(frames[LEFT], partitions)
    plans = tuple(
        StreamSpec(side, len(keys[side]), encoder.native, times[side], units[side], count, query.bounds.retention_us)
        for side in (LEFT, RIGHT)
    )
    carried = [
        [*keys[side], times[side], *(c.name for c in output if c.side == side and c.name not in (*keys[side], times[side]))]
        for side in (LEFT, RIGHT)
    ]
    plan = JoinSpec(
        query.bounds,
        query.how,
        (plans[LEFT], plans[RIGHT]),
        tuple((c.side, carried[c.side].index(c.name)) for c in output),
        tuple(c.label for c in output),
        tuple(kinds[c.side].field(c.name).type for c in output),
        size_bytes(window_memory, "window_memory"),
    )
    parcels = [_packed(sources[side], carried[side], plans[side], kinds[side]) for side in (LEFT, RIGHT)]
    schema = _schema(frames, output)
    rows = _joined(parcels[LEFT].union(parcels[RIGHT]), plan, schema)
    for side in (LEFT, RIGHT):
        if query.kind.unmatched[side]:
            rows = rows.union(_without_key(frames[side], side, keys, times[side], output, schema))
    return rows


# ---------------------------------------------------------------- what is asked for


def _query(
    within: Duration | None,
    lower: Duration | None,
    upper: Duration | None,
    exclusive: Sequence[str],
    how: str,
    where: str | None,
) -> QueryConfig:
    """The one place where the arguments become a query of the engine."""
    if how not in JOIN_KINDS:
        raise UserError(f"how: {how!r} is not one of {', '.join(JOIN_KINDS)}")
    if where is not None:
        raise UserError("where: is not evaluated inside Spark; filter the result of an inner join: window_join(...).where(...)")
    wrong = [name for name in ([exclusive] if isinstance(exclusive, str) else exclusive) if name not in ("lower", "upper")]
    if wrong or isinstance(exclusive, str):
        raise UserError(f"exclusive: a list of 'lower' and 'upper', not {exclusive!r}")
    if within is not None:
        if lower is not None or upper is not None:
            raise UserError("give within, or lower and upper, not both")
        window_us = duration_us(within, "within")
        if window_us < 0:
            raise UserError("within: a window cannot be negative")
        bounds = -window_us, window_us
    elif lower is None or upper is None:
        raise UserError("give within, or both lower and upper")
    else:
        bounds = duration_us(lower, "lower"), duration_us(upper, "upper")
    return QueryConfig(*bounds, exclusive=tuple(exclusive), how=how)  # type: ignore[arg-type]


def _keys(
    on: str | Sequence[str] | None, left_on: str | Sequence[str] | None, right_on: str | Sequence[str] | None
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    if (on is None) == (left_on is None and right_on is None) or (left_on is None) != (right_on is None):
        raise UserError("give on, or both left_on and right_on")
    sides = [(name,) if isinstance(name, str) else tuple(name or ()) for name in (on or left_on, on or right_on)]
    if not sides[LEFT] or not sides[RIGHT]:
        raise UserError("on: name at least one key column")
    for columns in sides:
        check_key(columns)
    return sides[LEFT], sides[RIGHT]


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
    kinds: Sequence[pa.Schema], times: Sequence[str], units: tuple[TimeUnit | None, TimeUnit | None, TimeUnit | None]
) -> tuple[TimeUnit | None, TimeUnit | None]:
    """The unit of either side's integers. units: of both sides, of the left, of the right. UserError for times that cannot be
    compared."""
    for unit, name in zip(units, ("time_unit", "left_time_unit", "right_time_unit"), strict=True):
        if unit is not None:
            one_of(unit, TIME_UNITS, name)
    with python_wording():
        found = side_units(*units)
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


# ---------------------------------------------------------------- what comes out


@dataclass(frozen=True)
class _Output:
    """A column of the result: its name there, and which side's column it is."""

    label: str
    side: int
    name: str


def _output(
    frames: tuple[DataFrame, DataFrame], kinds: Sequence[pa.Schema], keys: tuple[tuple[str, ...], tuple[str, ...]], how: How
) -> list[_Output]:
    """All of them, named as sinks do. UserError where Spark could not tell two of them apart."""
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


def _chosen(output: list[_Output], columns: Sequence[str] | None) -> list[_Output]:
    if columns is None:
        return output
    known = {column.label: column for column in output}
    for name in columns:
        if name not in known or list(columns).count(name) > 1:
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
