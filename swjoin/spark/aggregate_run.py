"""Tables of a run, by Spark: one row per distribution epoch, per slave, per move.

What: `check_run`, `write_run`: DIR/tables/epochs.parquet and .csv, slaves.parquet and .csv, and, of a run with events,
moves.parquet and .csv.
Why: plots and papers want minimum, mean and maximum over slaves, not raw rows.
Stays out: the tables of sweeps, and several directories at once (`sweeps.aggregate`), drawing (`plots`), measuring
(`core.metric_columns`).
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow.parquet as pq

from swjoin.connectors.files.run_folder import read_events, read_metrics
from swjoin.core.errors import UserError

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_SPREAD = (
    "cpu_us",
    "communication_us",
    "exchange_us",  # not in runs of before
    "idle_us",
    "process_us",
    "occupancy_ratio",
    "window_tuples",
    "window_bytes",
    "mini_group_count",
    "block_count",
)
_SUMS = ("left_tuples", "right_tuples", "pairs", "comparisons", "delivered_bytes")
_TIMES = ("cpu_us", "communication_us", "exchange_us", "idle_us", "process_us")


def _present(metrics: DataFrame, columns: Iterable[str]) -> list[str]:
    return [c for c in columns if c in metrics.columns]


def _epochs(metrics: DataFrame) -> DataFrame:
    """One row per distribution epoch: sums, delay weighted by pairs, and the spread over slaves."""
    from pyspark.sql import functions as f

    how = (("min", f.min), ("mean", f.mean), ("max", f.max))
    spread = [fn(c).alias(f"{c}_{name}") for c in _present(metrics, _SPREAD) for name, fn in how]
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
            *(f.sum(c).alias(c) for c in _present(metrics, (*_SUMS, *_TIMES))),
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


def check_run(run_dir: Path) -> None:
    """UserError when the metrics or events of a run are missing or damaged, or its tables cannot be written."""
    columns = read_metrics(run_dir)
    for name in (*_SUMS, "delay_max_us", "window_bytes"):
        if name not in columns:
            raise UserError(f"{run_dir / 'metrics' / 'slaves.parquet'}: column {name} is missing; is it the metrics of a run?")
    if (run_dir / "metrics" / "events.parquet").exists():
        read_events(run_dir)
    if (run_dir / "tables").exists() and not (run_dir / "tables").is_dir():
        raise UserError(f"{run_dir / 'tables'}: is a file; the tables go into a directory of this name")


def write_run(spark: SparkSession, run_dir: Path) -> list[Path]:
    """Write the tables of a run as Parquet and CSV; returns their paths. UserError when they cannot be written."""
    metrics = spark.read.parquet(str((run_dir / "metrics" / "slaves.parquet").resolve()))
    frames = [("epochs", _epochs(metrics)), ("slaves", _slaves(metrics))]
    log = run_dir / "metrics" / "events.parquet"
    if log.is_file() and pq.read_metadata(log).num_rows:
        frames.append(("moves", _moves(spark.read.parquet(str(log.resolve())))))
    found = [(name, frame.toPandas()) for name, frame in frames]  # all of them, before the first is written
    tables = run_dir / "tables"
    try:
        tables.mkdir(exist_ok=True)
    except OSError as error:
        raise UserError(f"{tables}: cannot be made ({error.strerror})") from None
    written = []
    for name, table in found:
        for path, write in ((tables / f"{name}.parquet", table.to_parquet), (tables / f"{name}.csv", table.to_csv)):
            temporary = path.with_name(f".{path.name}.tmp")
            write(temporary, index=False)
            temporary.replace(path)
            written.append(path)
    return written
