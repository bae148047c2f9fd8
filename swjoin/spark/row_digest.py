"""Count and digest of pairs that are in Spark (docs/semantics.md, Row ids and the digest).

What: `count_and_digest(pairs)` in SQL, for `verify`; `digest(frame, left_id, right_id)` by the engine's kernel, for users.
Why: two answers are the same when their counts and digests are; a user's session may be in ANSI mode, where SQL's
multiplication refuses to wrap around.
Stays out: finding pairs.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from swjoin.core.arrow_views import integers_of
from swjoin.core.batch import U64
from swjoin.core.errors import UserError
from swjoin.core.hashing import digest_pairs
from swjoin.core.join_semantics import format_digest

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


@dataclass(frozen=True)
class Answer:
    """What identifies a result: the number of pairs, and the digest as reports show it, 16 hex digits."""

    count: int
    digest: str


def _mix(column: Any) -> Any:
    """mix64 on a long column; Spark's long arithmetic wraps around, as uint64 does."""
    from pyspark.sql import functions as f

    for constant in (0xFF51AFD7ED558CCD, 0xC4CEB9FE1A85EC53):
        column = column.bitwiseXOR(f.shiftrightunsigned(column, 33)) * f.lit(constant - (1 << 64)).cast("long")
    return column.bitwiseXOR(f.shiftrightunsigned(column, 33))


def count_and_digest(pairs: DataFrame) -> tuple[int, int]:
    """Of pairs of ids l, r (long); needs spark.sql.ansi.enabled = false."""
    from pyspark.sql import functions as f

    golden = f.lit(0x9E3779B97F4A7C15 - (1 << 64)).cast("long")
    row = (
        pairs.select(_mix(f.col("l") * golden + _mix(f.col("r") * golden + golden)).alias("d"))
        .agg(f.count("*").alias("n"), f.sum("d").alias("s"))
        .collect()[0]
    )
    return int(row["n"]), int(row["s"] or 0) % (1 << 64)


def digest(frame: DataFrame, left_id: str, right_id: str) -> Answer:
    """Count and digest of a join's result by its two id columns (integers); a null id is a missing side, 2^64 - 1.

    UserError when a column is missing, holds no integers, or holds negative ones.
    """
    from pyspark.sql import functions as f
    from pyspark.sql.types import IntegralType

    ids = []
    for name in (left_id, right_id):
        if name not in frame.columns:
            raise UserError(f"id column {name}: there is none; the columns are {', '.join(frame.columns)}")
        kind = frame.schema[name].dataType
        if not isinstance(kind, IntegralType):
            raise UserError(f"id column {name} is {kind.simpleString()}; ids are integers")
        ids.append(f.col(f"`{name}`").cast("long"))
    count, total, least = 0, 0, [0, 0]
    parts = frame.select(ids[0].alias("l"), ids[1].alias("r")).mapInArrow(_digest_parts, "n long, d long, l long, r long")
    for row in parts.collect():
        count += row["n"]
        total += row["d"]
        least = [min(least[0], row["l"]), min(least[1], row["r"])]
    for name, value in zip((left_id, right_id), least, strict=True):
        if value < 0:
            raise UserError(f"id column {name}: holds {value}; ids are not negative, and a missing side is null")
    return Answer(count, format_digest(total))


def _digest_parts(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """In an executor: count and digest (as a signed integer) of one Spark partition, and the least id of either side or 0."""
    import pyarrow as pa
    import pyarrow.compute as pc

    count, total, least = 0, 0, [0, 0]
    for batch in batches:
        count += batch.num_rows
        least = [min(known, pc.min(column).as_py() or 0) for known, column in zip(least, batch.columns, strict=True)]
        total += digest_pairs(_ids(batch.column(0)), _ids(batch.column(1)))
    total %= 1 << 64
    signed = total - (1 << 64 if total >> 63 else 0)
    yield pa.record_batch([pa.array([value], pa.int64()) for value in (count, signed, *least)], names=["n", "d", "l", "r"])


def _ids(column: pa.Array) -> U64:
    """A null is a missing side, 2^64 - 1."""
    return np.array(
        integers_of(column.fill_null(-1)).view(np.uint64)
    )  # a copy, that may be written: kernels are compiled for such
