"""`aggregate`: a run's metrics as per-epoch tables, by Spark.

What: `aggregate(run_dir, master) -> paths`: DIR/tables/epochs.parquet and .csv, DIR/tables/slaves.parquet and .csv, and, of a
run with events, DIR/tables/moves.parquet and .csv.
Why: plots and papers want one row per distribution epoch (minimum, mean, maximum over slaves), per slave or per move, not raw
rows.
Stays out: drawing (`plots`), measuring (`cluster.metrics`).
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from swjoin.errors import UserError
from swjoin.spark.session import open_session

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

_SPREAD = (
    "cpu_us",
    "communication_us",
    "idle_us",
    "process_us",
    "occupancy_ratio",
    "window_tuples",
    "window_bytes",
    "mini_group_count",
    "block_count",
)
_SUMS = ("left_tuples", "right_tuples", "pairs", "comparisons", "delivered_bytes")


def _epochs(metrics: DataFrame) -> DataFrame:
    """One row per distribution epoch: sums, delay weighted by pairs, and the spread over slaves."""
    from pyspark.sql import functions as f

    spread = [fn(c).alias(f"{c}_{name}") for c in _SPREAD for name, fn in (("min", f.min), ("mean", f.mean), ("max", f.max))]
    delay = f.sum(f.col("delay_mean_us") * f.col("pairs")) / f.when(f.sum("pairs") > 0, f.sum("pairs"))
    return (
        metrics.groupBy("epoch")
        .agg(
            f.max("epoch_end_us").alias("epoch_end_us"),
            *(f.sum(c).alias(c) for c in _SUMS),
            delay.alias("delay_mean_us"),
            f.max("delay_max_us").alias("delay_max_us"),
            *spread,
        )
        .orderBy("epoch")
    )


def _slaves(metrics: DataFrame) -> DataFrame:
    """One row per slave over the whole run."""
    from pyspark.sql import functions as f

    return (
        metrics.groupBy("slave")
        .agg(
            f.count("*").alias("epochs"),
            *(f.sum(c).alias(c) for c in (*_SUMS, "cpu_us", "communication_us", "idle_us", "process_us")),
            f.mean("occupancy_ratio").alias("occupancy_ratio_mean"),
            f.max("window_bytes").alias("window_bytes_max"),
        )
        .orderBy("slave")
    )


def _moves(events: DataFrame) -> DataFrame:
    """One row per move, also of those that did not come to an end (nulls from there on). Times are on the run's clock.

    tuples, state_bytes: what travelled. MB_per_s: over the time that the supplier took to let it go. hold_back_s: from held to
    released.
    """
    from pyspark.sql import functions as f

    def of(kind: str, column: str) -> Column:
        return f.max(f.when(f.col("kind") == kind, f.col(column)))  # a move has one event of each kind

    left_us = of("left", "duration_us")
    return (
        events.where(f.col("kind").isin("decided", "held", "left", "released"))
        .groupBy(f.col("amount").cast("long").alias("number"))
        .agg(
            f.max("group").alias("group"),
            of("decided", "slave").alias("supplier"),
            of("decided", "peer").alias("consumer"),
            *((of(kind, "time_us") / 1e6).alias(f"{kind}_s") for kind in ("decided", "held", "released")),
            of("left", "tuples").alias("tuples"),
            of("left", "state_bytes").alias("state_bytes"),
            (of("left", "state_bytes") / f.when(left_us > 0, left_us)).alias("MB_per_s"),
            (of("released", "duration_us") / 1e6).alias("hold_back_s"),
        )
        .orderBy("number")
    )


def aggregate(run_dir: Path, master: str | None) -> list[Path]:
    """Write the tables as Parquet and CSV; returns their paths. UserError when the run has no metrics."""
    source = run_dir / "metrics" / "slaves.parquet"
    if not source.is_file():
        raise UserError(f"{source}: no such file; is {run_dir} the directory of a run?")
    tables = run_dir / "tables"
    tables.mkdir(exist_ok=True)
    written = []
    with open_session(master, "swjoin aggregate") as spark:
        metrics = spark.read.parquet(str(source.resolve()))
        frames = [("epochs", _epochs(metrics)), ("slaves", _slaves(metrics))]
        log = run_dir / "metrics" / "events.parquet"
        if log.is_file() and pq.read_metadata(log).num_rows:
            frames.append(("moves", _moves(spark.read.parquet(str(log.resolve())))))
        for name, frame in frames:
            table = frame.toPandas()
            for path, write in ((tables / f"{name}.parquet", table.to_parquet), (tables / f"{name}.csv", table.to_csv)):
                temporary = path.with_name(f".{path.name}.tmp")
                write(temporary, index=False)
                temporary.replace(path)
                written.append(path)
    return written
