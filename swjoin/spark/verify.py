"""`verify`: a run's result recomputed by Spark, from its own reading of the input, and compared.

What: `verify(run_dir, master) -> VerifyResult`.
Why: the proof attached to every answer must come from another engine than ours: Spark's readers, Spark's join, the digest in
SQL.
Stays out: everything of the engine but the generator's definition (`connectors.generator.bmodel`) and the configuration.

The equi-join on the key gets a second equal column, the time bucket of the window's width, so that Spark hashes instead of
comparing all pairs of a hot key; the exact bounds are checked on every pair.
"""

from __future__ import annotations

from functools import reduce
from operator import and_, or_
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.config.run import RunConfig, StreamConfig
from swjoin.connectors.files.inputs import Paths, delimiter_of, file_format, list_files
from swjoin.connectors.files.verification import (
    SHOWN,
    VerifyResult,
    claimed,
    condition,
    left_out_file,
    result_files,
)
from swjoin.core.batch import STREAM_NAMES
from swjoin.core.errors import UserError
from swjoin.core.join_semantics import JOIN_KINDS, AsOf, format_digest
from swjoin.spark.generate import stream_frame
from swjoin.spark.row_digest import count_and_digest
from swjoin.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession

_UNITS = {"s": 1_000_000, "ms": 1_000, "us": 1}


# ---------------------------------------------------------------- reading, independently


def _csv(spark: SparkSession) -> DataFrameReader:
    """Of CSV files whose fields in quotes may hold line breaks and doubled quotes."""
    return spark.read.option("header", True).option("multiLine", True).option("escape", '"')


def _read(spark: SparkSession, path: Paths) -> DataFrame:
    """All rows with a `__id` column: position, files in name order."""
    from pyspark.sql import functions as f

    parts: list[Any] = []
    first = 0
    for file in list_files(path):
        if not isinstance(file, Path):
            raise UserError(f"{file}: Spark does not read hive folders and object stores here; swjoin verify does by DuckDB")
        name = file.name.lower()
        location = str(file.resolve())
        if name.endswith((".parquet", ".pq")):
            frame = spark.read.parquet(location)
        elif name.endswith((".zst", ".lz4")):
            raise UserError(f"{file}: Spark does not read this compression here; swjoin verify does by DuckDB")
        elif ".csv" in name or ".tsv" in name:
            frame = _csv(spark).option("inferSchema", True).option("sep", delimiter_of(file)).csv(location)
        elif (kind := file_format(file)) in ("JSON lines", "RDF", "RDF lines"):
            raise UserError(f"{file}: Spark does not read {kind} here; swjoin verify does by DuckDB")
        elif name.endswith(".orc"):
            frame = spark.read.orc(location)
        else:
            frame = _read_arrow(spark, file)
        # One file is read in row order; its pieces are numbered by monotonically_increasing_id, which keeps that order.
        count = frame.count()
        frame = frame.withColumn("__piece", f.monotonically_increasing_id())
        offsets = frame.groupBy(f.shiftright("__piece", 33).alias("p")).agg(f.count("*").alias("n")).orderBy("p").collect()
        start, table = first, []
        for row in offsets:
            table.append((row["p"], start))
            start += row["n"]
        starts = spark.createDataFrame(table or [(0, 0)], "p long, start long")
        frame = (
            frame.withColumn("p", f.shiftright("__piece", 33))
            .join(f.broadcast(starts), "p")
            .withColumn("__id", f.col("start") + f.col("__piece").bitwiseAND((1 << 33) - 1))
            .drop("p", "start", "__piece")
        )
        first += count
        parts.append((count, frame))
    parts = [frame for count, frame in parts if count] or [frame for _, frame in parts[:1]]  # without rows, types are guesses
    whole = parts[0]
    for part in parts[1:]:
        whole = whole.unionByName(part)
    return whole


def _read_arrow(spark: SparkSession, file: Path) -> DataFrame:
    import pyarrow as pa

    with file.open("rb") as stream:
        magic = stream.read(6)
    reader = pa.ipc.open_file(file) if magic == b"ARROW1" else pa.ipc.open_stream(file)
    table = reader.read_all()
    return spark.createDataFrame(table)


def _time_us(frame: DataFrame, config: StreamConfig) -> Any:
    """The time column in microseconds; a column without a zone holds local times of `assume_timezone`."""
    from pyspark.sql import functions as f
    from pyspark.sql.types import DateType, TimestampNTZType, TimestampType

    column = f.col(f"`{config.time}`")
    kind = frame.schema[config.time].dataType
    if config.assume_timezone is not None and isinstance(kind, DateType | TimestampNTZType):
        return f.unix_micros(f.to_utc_timestamp(column.cast("timestamp"), config.assume_timezone))
    if isinstance(kind, TimestampType | TimestampNTZType):
        return f.unix_micros(column.cast("timestamp"))
    if isinstance(kind, DateType):
        return f.unix_date(column).cast("long") * 86_400_000_000
    if config.time_unit == "ns":
        return f.expr(f"`{config.time}` div 1000")
    return column.cast("long") * _UNITS[config.time_unit or "us"]


def _stream(spark: SparkSession, config: RunConfig, side: int) -> tuple[DataFrame, list[str]]:
    """Rows of one stream that are not late: id, ts, k0, k1, ... (the key columns, which may be null), with a predicate all
    columns again, c0_NAME on the left, c1_NAME on the right, and with count windows row, the position. And the names of all
    columns."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    stream = (config.left, config.right)[side]
    if stream.path is None:
        frame, _ = stream_frame(
            spark, config.workload, config.seed, side, 4 * spark.sparkContext.defaultParallelism, payload=False
        )
        mine = [f.col(name).alias(f"c{side}_{name}") for name in ("key", "ts")]
        row_number = [] if config.query.last is None else [f.col("id").alias("row")]
        return frame.select("id", "ts", f.col("key").alias("k0"), *mine, *row_number), ["key", "ts"]
    if stream.csv is not None:
        raise UserError(f"{stream.path}: Spark does not read text with options here; swjoin verify does by DuckDB")
    frame = _read(spark, stream.path)
    ident = f.col("__id") if stream.id is None else f.col(f"`{stream.id}`").cast("long")
    keys = [f.col(f"`{name}`").alias(f"k{i}") for i, name in enumerate(stream.key)]
    names = [name for name in frame.columns if name != "__id"]
    mine = [] if config.query.where is None else [f.col(f"`{name}`").alias(f"c{side}_{name}") for name in names]
    rows = frame.select(f.col("__id"), ident.alias("id"), _time_us(frame, stream).alias("ts"), *keys, *mine)
    if config.time.late != "error" or config.time.model == "arrival":
        before = Window.orderBy("__id").rowsBetween(Window.unboundedPreceding, -1)
        upto = Window.orderBy("__id").rowsBetween(Window.unboundedPreceding, Window.currentRow)
        if config.time.model == "arrival":
            rows = rows.withColumn("ts", f.max("ts").over(upto))
        else:
            high = f.max("ts").over(before)
            no_key = reduce(or_, (f.col(f"k{i}").isNull() for i in range(len(keys))))  # matches nothing, whenever it comes
            behind = f.col("__high") - f.col("ts")
            in_time = f.lit(config.time.sort) | behind.isNull() | (behind <= config.time.max_out_of_order_us)
            rows = rows.withColumn("__high", high).where(f.col("ts").isNotNull() & (no_key | in_time))
    kept = [f"k{i}" for i in range(len(keys))] + [f"`c{side}_{name}`" for name in names if mine]
    row_number = [] if config.query.last is None else [f.col("__id").alias("row")]
    return rows.select("id", "ts", *kept, *row_number), names


def _streams(spark: SparkSession, config: RunConfig) -> list[tuple[DataFrame, list[str]]]:
    """Both streams. With local times among them, Spark distinguishes those of CSV and Arrow files from times with a zone."""
    if config.left.assume_timezone is None and config.right.assume_timezone is None:
        return [_stream(spark, config, side) for side in range(len(STREAM_NAMES))]
    name = "spark.sql.timestampType"
    before = spark.conf.get(name)
    spark.conf.set(name, "TIMESTAMP_NTZ")
    try:
        return [_stream(spark, config, side) for side in range(len(STREAM_NAMES))]
    finally:
        spark.conf.set(name, before or "TIMESTAMP_LTZ")


def _origin(*streams: DataFrame) -> int:
    """The lowest first time of both streams, 0 without any."""
    from pyspark.sql import functions as f

    firsts = [frame.agg(f.min("ts")).collect()[0][0] for frame in streams]
    return min((t for t in firsts if t is not None), default=0)


def _with_keys(rows: DataFrame) -> DataFrame:
    return rows.dropna(subset=[c for c in rows.columns if c.startswith("k")])


# ---------------------------------------------------------------- join and digest


def _joined(
    config: RunConfig, left: DataFrame, right: DataFrame, measured_from_us: int | None, condition: str | None
) -> DataFrame:
    """All matching pairs: l, r (ids); only those whose later tuple is not before `measured_from_us`, if that is given."""
    from pyspark.sql import functions as f

    bounds = config.query.bounds
    keys = [c for c in left.columns if c.startswith("k")]
    one, two = (
        frame.withColumnRenamed("id", name).withColumnRenamed("ts", f"{name}t") for frame, name in ((left, "l"), (right, "r"))
    )
    if config.query.last is None:
        pairs = _near(one, "lt", two, "rt", bounds.lower_us, bounds.upper_us, keys)
    else:  # of every pair one tuple comes first, and must be among the last of its stream before the other
        last_left, last_right = config.query.last
        left_first = _near(two, "r_passed", one, "l_place", 1 - last_left, 0, keys)
        pairs = left_first.unionByName(_near(one, "l_passed", two, "r_place", 1 - last_right, 0, keys))
    if measured_from_us is not None:
        pairs = pairs.where(f.greatest("lt", "rt") >= measured_from_us)
    if condition is not None:
        pairs = pairs.where(condition)
    if config.query.as_of is not None:
        pairs = _chosen(pairs, config.query.as_of)
    return pairs.select("l", "r")


def _chosen(pairs: DataFrame, as_of: AsOf) -> DataFrame:
    """Of the pairs of each left row, the one that an as-of join has."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    apart, before, after = f.col("rt") - f.col("lt"), f.col("rt") <= f.col("lt"), f.col("rt") >= f.col("lt")
    backwards = f.when(before, -f.col("r")).otherwise(f.col("r"))
    order, wanted = {
        "last": ((f.col("rt").desc(), f.col("r").desc()), before),
        "first": ((f.col("rt"), f.col("r")), after),
        "nearest": ((f.abs(apart), f.col("rt"), backwards), f.lit(True)),
    }[as_of.match]
    place = f.row_number().over(Window.partitionBy("l").orderBy(*order))
    return pairs.where(wanted).withColumn("place", place).where(f.col("place") == 1)


def _near(one: DataFrame, mine: str, two: DataFrame, theirs: str, lower: int, upper: int, keys: list[str]) -> DataFrame:
    """Rows of equal keys with lower <= theirs - mine <= upper."""
    from pyspark.sql import functions as f

    width = max(1, upper - lower + 1)
    # [mine + lower, mine + upper] is `width` long, so it touches at most two buckets of that width.
    first = f.expr(f"floor(({mine} + {lower}) / {width})")
    probes = one.withColumn("b0", first).withColumn("bucket", f.explode(f.array("b0", f.col("b0") + 1))).drop("b0")
    stored = two.withColumn("bucket", f.expr(f"floor({theirs} / {width})"))
    gap = f.col(theirs) - f.col(mine)
    return probes.join(stored, [*keys, "bucket"]).where(gap.between(lower, upper))


def _numbered(left: DataFrame, right: DataFrame) -> list[DataFrame]:
    """Both streams with the places of their tuples in the common order: l_place, l_passed; r_place, r_passed."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    parts = []
    for side, frame in enumerate((left, right)):
        keyed = reduce(and_, (f.col(c).isNotNull() for c in frame.columns if c.startswith("k")))
        counts = [f.when(keyed, 1).otherwise(0) if s == side else f.lit(0) for s in (0, 1)]
        parts.append(frame.select("ts", f.lit(side).alias("side"), "row", counts[0].alias("l"), counts[1].alias("r")))
    order = Window.orderBy("ts", "side", "row").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    both = parts[0].unionByName(parts[1]).select("side", "row", *(f.sum(n).over(order).alias(n) for n in ("l", "r")))
    out = []
    for side, (frame, mine, other) in enumerate(((left, "l", "r"), (right, "r", "l"))):
        places = both.where(f.col("side") == side)
        columns = f.col(mine).alias(f"{mine}_place"), f.col(other).alias(f"{mine}_passed")
        out.append(frame.join(places.select("row", *columns), "row").drop("row"))
    return out


def _rows(
    config: RunConfig, left: DataFrame, right: DataFrame, measured_from_us: int | None, condition: str | None
) -> DataFrame:
    """All rows of the join: l, r (ids; -1 where a side is missing)."""
    from pyspark.sql import functions as f

    kind = JOIN_KINDS[config.query.how]
    pairs = _joined(config, _with_keys(left), _with_keys(right), measured_from_us, condition)
    parts = [pairs] if kind.pairs else []
    if kind.first:
        parts.append(pairs.select("l").distinct().select("l", f.lit(-1).cast("long").alias("r")))
    for side, (rows, name) in enumerate(((left, "l"), (right, "r"))):
        if kind.unmatched[side]:
            alone = rows.where(f.col("ts").isNotNull()).join(pairs.select(f.col(name).alias("id")), "id", "left_anti")
            columns = {name: f.col("id")}
            parts.append(alone.select(*(columns.get(n, f.lit(-1).cast("long")).alias(n) for n in ("l", "r"))))
    return reduce(lambda one, two: one.unionByName(two), parts)


def _results(spark: SparkSession, run_dir: Path, config: RunConfig) -> DataFrame:
    files = [str(p.resolve()) for p in result_files(run_dir / "results", config)]
    return spark.read.parquet(*files) if config.sink.kind == "parquet" else _csv(spark).csv(files)


def _ids(frame: DataFrame) -> DataFrame:
    """Of result rows: l, r (ids; -1 where a side is missing)."""
    from pyspark.sql import functions as f

    ids = [f.col(name) if name in frame.columns else f.lit(None) for name in ("left_id", "right_id")]
    left, right = (f.coalesce(column.cast("long"), f.lit(-1).cast("long")) for column in ids)
    return frame.select(left.alias("l"), right.alias("r"))


def verify(run_dir: Path, master: str | None) -> VerifyResult:
    """Recompute and compare. UserError when the run or its input cannot be read; RunFailed when the run did not finish."""
    report, job = claimed(run_dir)
    if job.plan is not None:
        raise UserError(f"{run_dir}: Spark does not recompute plans with several joins; use --engine duckdb")
    config = job.config
    with open_session(master, "swjoin verify") as spark:
        (left, left_names), (right, right_names) = _streams(spark, config)
        origin = _origin(left, right) if config.time.model == "arrival" or config.measure.prefill_us else 0
        if config.time.model == "arrival":
            left, right = (_rebased(frame, origin) for frame in (left, right))
            origin = 0
        if config.query.last is not None:  # shed tuples have their places, late ones have none
            if config.time.idle_timeout_us:
                left, right = (
                    _without_left_out(spark, x, run_dir, n, late=True) for x, n in zip((left, right), STREAM_NAMES, strict=True)
                )
            left, right = _numbered(left, right)
        if any((report.get("shed") or {}).values()) or config.time.idle_timeout_us:
            left, right = (
                _without_left_out(spark, frame, run_dir, name) for frame, name in zip((left, right), STREAM_NAMES, strict=True)
            )
        where = condition(config, [left_names, right_names], "spark", lambda side, name: f"`c{side}_{name}`")
        measured_from = origin + config.measure.prefill_us if config.measure.prefill_us else None
        pairs = _rows(config, left, right, measured_from, where)
        count, digest = count_and_digest(pairs)
        said = report["results"]
        compared = config.sink.in_files and config.sink.ids
        result = VerifyResult(count, format_digest(digest), said["count"], said["digest"], compared)
        if config.sink.in_files:
            files = _results(spark, run_dir, config)
            result.file_count = files.count()
            if compared and count_and_digest(found := _ids(files)) != (count, digest):
                order = ["l", "r"]
                result.missing = [(r["l"], r["r"]) for r in pairs.exceptAll(found).orderBy(order).limit(SHOWN).collect()]
                result.surplus = [(r["l"], r["r"]) for r in found.exceptAll(pairs).orderBy(order).limit(SHOWN).collect()]
    return result


def _without_left_out(spark: SparkSession, rows: DataFrame, run_dir: Path, name: str, *, late: bool = False) -> DataFrame:
    """The rows of a stream but those that the run says it has left out (late: for being late). UserError without its list."""
    from pyspark.sql import functions as f

    listed = spark.read.parquet(str(left_out_file(run_dir).resolve())).where(f.col("stream") == name)
    if late:
        listed = listed.where(f.col("reason") != "shed")
    return rows.join(listed.select(f.col("row_id").cast("long").alias("id")), "id", "left_anti").select(*rows.columns)


def _rebased(frame: DataFrame, origin: int) -> DataFrame:
    """Time model arrival: times count from the lowest first time of both streams, not below zero."""
    from pyspark.sql import functions as f

    return frame.withColumn("ts", f.greatest(f.lit(0), f.col("ts") - origin))
