"""Aggregates a sweep by Spark: all of its runs in one tidy table.

What: `aggregate_sweep(sweep_dir, spark_master) -> paths`, and `write_sweep` within an open session: DIR/table, one row per
point of the axes, metric and `over`; DIR/runs, one row per run; both as Parquet and CSV.
Why: figures and verdicts need means over repeats with confidence intervals, not hundreds of files.
Stays out: definitions of metrics (`sweeps.metrics`), one run over its epochs (`spark.aggregate_run`), drawing (`plots/`).

Failed and invalid runs (the machine was overloaded) are left out of the means; the table has their numbers. Probes of a search
are in DIR/runs only; in the table a search is one value, `sustainable_<axis key>`, per point and repeat. Column `censored` is
"below" or "at least" when some repeat's search found only that bound ("below" when both occur), otherwise "": with a bound, the
deviation and the confidence interval of the mean are unknown.
"""

from __future__ import annotations

import csv
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from swjoin.core.errors import UserError
from swjoin.spark.aggregate_run import check_run, write_run
from swjoin.spark.session import open_session
from swjoin.sweeps.experiment import KEYS
from swjoin.sweeps.metrics import AT_LEAST, BELOW, METRICS, RUN, SPREAD, SUSTAINABLE, t_quantile
from swjoin.sweeps.results import Axes, Run, Sweep, is_sweep, read_sweep

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, SparkSession

_STATISTICS = ("mean", "sd", "ci_low", "ci_high", "min", "max")
_UNKNOWN_OF_BOUNDS = ("sd", "ci_low", "ci_high")
_SIMULATED = "utilisation_"
_INPUT = (
    *("slave", "epoch", "epoch_end_us", "left_tuples", "right_tuples", "delivered_bytes", "pairs", "comparisons", "process_us"),
    *("cpu_us", "communication_us", "exchange_us", "idle_us", "occupancy_ratio", "delay_mean_us", "delay_p99_us"),
    *("delay_max_us", "window_tuples", "window_bytes", "mini_group_count", "block_count"),
)


@dataclass
class _Group:
    """One point of the axes: its statistics, runs left out, and whether values are bounds."""

    invalid: int = 0
    failed: int = 0
    censored: str = ""
    statistics: dict[str, Any] = field(default_factory=dict)  # column -> row of Spark


def aggregate_sweep(sweep_dir: Path, spark_master: str | None) -> list[Path]:
    """Write a sweep's tables; returns their paths. UserError without finished runs, or with runs of different commits.

    The directory must have the same path for this process and for all of the Spark cluster (a shared file system): small
    files are read here, metrics by Spark. URLs such as hdfs:// and s3a:// are not understood.
    """
    sweep = read_sweep(sweep_dir)
    with open_session(spark_master, "swjoin aggregate") as spark:
        return write_sweep(spark, sweep)


# ---------------------------------------------------------------- metrics of run.json


def _mean_active(run: Run) -> float | None:
    """Mean degree of declustering over the measured phase, which ends with the run where run.json has no end."""
    changes = run.report.get("declustering") or []
    if not changes:
        return None
    from_s, to_s = run.phase_s
    to_s = float(run.report["join_s"]) if to_s is None else to_s
    times = [-float("inf"), *(float(c["time_s"]) for c in changes[1:]), float("inf")]
    slave_s = 0.0
    for change, begin, end in zip(changes, times[:-1], times[1:], strict=True):
        slave_s += float(change["active_slaves"]) * max(0.0, min(end, to_s) - max(begin, from_s))
    return slave_s / (to_s - from_s) if to_s > from_s else None


def _dig(report: Mapping[str, Any], *path: str) -> Any:
    """The value at the end of the path; None when a part of the path is missing."""
    value: Any = report
    for part in path:
        value = value.get(part) if isinstance(value, Mapping) else None
    return value


def _reported(run: Run) -> dict[str, float | None]:
    """Columns of the metrics that run.json has."""
    report = run.report
    values = {
        "active_slaves": _mean_active(run),
        "moves": report.get("moves"),
        "input_tuples_per_s": report.get("input_tuples_per_s"),
        "join_s": report.get("join_s"),
        "peak_rss_bytes_max": max((report.get("peak_rss_bytes") or {}).values(), default=None),
        "results_count": _dig(report, "results", "count"),
        **{f"utilisation_slaves_{over}": _dig(report, "utilisation", "slaves", over) for over in SPREAD},
        "utilisation_master": _dig(report, "utilisation", "master"),
        "utilisation_collector": _dig(report, "utilisation", "collector"),
        "late_s_master_p99": _dig(report, "machine", "late_s", "master", "p99"),
    }
    return {name: float(value) if run.ended_well and value is not None else None for name, value in values.items()}


def column_name(metric: str, over: str) -> str:
    """Column in DIR/runs: the metric, and its aggregate over slaves, if any."""
    return metric if over == "run" else f"{metric}_{over}"


COLUMNS = {column_name(name, over): (name, over) for name, metric in METRICS.items() for over in metric.over}

# ---------------------------------------------------------------- Spark


def _rows(spark: SparkSession, runs: Sequence[Run], phases: DataFrame) -> DataFrame:
    """The rows of the measured phases of all runs, with `point`, `from_us`, `to_us` and `measured_s`."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    files = [re.sub(r"([\\\[\]{}*?])", r"\\\1", str(run.metrics.resolve())) for run in runs if run.metrics is not None]
    frame = spark.read.option("mergeSchema", "true").parquet(*files)
    point = f.regexp_extract(f.col("_metadata.file_path"), r"([^/]+)/metrics/slaves\.parquet$", 1)
    columns = [(f.col(c) if c in frame.columns else f.lit(None)).cast("double").alias(c) for c in _INPUT]
    end = f.col("epoch_end_us")
    return (
        frame.select(point.alias("point"), *columns)
        .join(f.broadcast(phases), "point")
        .withColumn("to_us", f.coalesce("to_us", f.max(end).over(Window.partitionBy("point"))))
        .where((end > f.col("from_us")) & (end <= f.col("to_us")))
        .withColumn("measured_s", (f.col("to_us") - f.col("from_us")) / 1e6)
    )


def _by_slave(rows: DataFrame) -> DataFrame:
    """One row per run and slave: the slave's metrics, and its terms of the run's."""
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    run = Window.partitionBy("point")
    pairs, mean_s = f.col("pairs"), f.col("delay_mean_us") / 1e6
    x_s = (f.col("epoch_end_us") - f.col("from_us")) / 1e6
    rows = rows.select(
        "*",
        x_s.alias("x_s"),
        (x_s - f.sum(x_s * pairs).over(run) / f.sum("pairs").over(run)).alias("off_s"),
        f.sum("pairs").over(run).alias("all_pairs"),
        *(f.sum("pairs").over(run.orderBy(c)).alias(f"up_to_{c}") for c in ("delay_mean_us", "delay_p99_us")),
    )
    measured_s = f.max("measured_s")

    def share(column: str) -> Column:
        return f.sum(column) / 1e6 / measured_s

    def percentile(column: str, q: int) -> Column:
        reached = (f.col(f"up_to_{column}") * 100 >= f.col("all_pairs") * q) & (pairs > 0)
        return f.min(f.when(reached, f.col(column))) / 1e6

    last_pairs = f.when(f.col("x_s") > f.col("measured_s") * 2 / 3, pairs)
    own = {
        "busy_ratio": share("process_us"),
        "cpu_s": share("process_us") * 60,
        "work_s": share("cpu_us") * 60,
        "idle_ratio": share("idle_us"),
        "communication_s": share("exchange_us") * 60,
        "transfer_s": share("communication_us") * 60,
        "occupancy_mean": f.mean("occupancy_ratio"),
        "occupancy_max": f.max("occupancy_ratio"),
        "window_bytes": f.max("window_bytes"),
        "window_tuples": f.max("window_tuples"),
        "delivered_bytes_per_s": f.sum("delivered_bytes") / measured_s,
        "comparisons_per_s": f.sum("comparisons") / measured_s,
        "delay_p50_s": percentile("delay_mean_us", 50),
        "delay_p95_s": percentile("delay_mean_us", 95),
        "delay_p99_s": percentile("delay_p99_us", 99),
        "delay_max_s": f.max(f.when(pairs > 0, f.col("delay_max_us") / 1e6)),
        "measured_s": measured_s,
        "epochs": f.collect_set("epoch"),
        "first_s": f.min(f.when(pairs > 0, x_s)),
        "last_s": f.max(f.when(pairs > 0, x_s)),
        "pairs": f.sum("pairs"),
        "delays_s": f.sum(mean_s * pairs),
        "last_pairs": f.sum(last_pairs),
        "last_delays_s": f.sum(mean_s * last_pairs),
        "off_delay": f.sum(f.col("off_s") * mean_s * pairs),
        "off_off": f.sum(f.col("off_s") ** 2 * pairs),
        "tuples": f.sum(f.col("left_tuples") + f.col("right_tuples")),
        "mini_groups": f.sum("mini_group_count"),
        "blocks": f.sum("block_count"),
    }
    return rows.groupBy("point", "slave").agg(*(column.alias(name) for name, column in own.items()))


def _by_run(slaves: DataFrame) -> DataFrame:
    """One row per run: aggregates over its slaves, and over all its rows."""
    from pyspark.sql import functions as f

    how = {"min": f.min, "mean": f.mean, "max": f.max, "sum": f.sum}
    spread = [name for name, metric in METRICS.items() if metric.over != RUN and name in slaves.columns]
    measured_s = f.max("measured_s")
    epochs = f.size(f.array_distinct(f.flatten(f.collect_list("epochs"))))

    def mean(total: str, weight: str) -> Column:
        return f.sum(total) / f.when(f.sum(weight) > 0, f.sum(weight))

    return slaves.groupBy("point").agg(
        *(how[over](name).alias(column_name(name, over)) for name in spread for over in METRICS[name].over),
        mean("delays_s", "pairs").alias("delay_mean_s"),
        *(f.min(name).alias(name) for name in ("delay_p50_s", "delay_p95_s", "delay_p99_s")),
        f.max("delay_max_s").alias("delay_max_s"),
        f.when(f.max("last_s") > f.min("first_s"), f.sum("off_delay") / f.sum("off_off")).alias("delay_growth"),
        mean("last_delays_s", "last_pairs").alias("delay_last_third_s"),
        (f.sum("pairs") / measured_s).alias("pairs_per_s"),
        (f.sum("tuples") / measured_s).alias("joined_tuples_per_s"),
        (f.sum("mini_groups") / epochs).alias("mini_group_count_sum"),
        (f.sum("blocks") / epochs).alias("block_count_sum"),
    )


def _numbers(spark: SparkSession, sweep: Sweep, order: Sequence[Axes]) -> DataFrame:
    """One row per run: `point`, `group` (null: not in the table), `counts`, and all of COLUMNS."""
    import pyarrow as pa
    from pyspark.sql import functions as f

    index = {axes: i for i, axes in enumerate(order)}
    reported = [_reported(run) for run in sweep.runs]
    to_us = [None if run.phase_s[1] is None else run.phase_s[1] * 1e6 for run in sweep.runs]
    frame = spark.createDataFrame(
        pa.table(
            {
                "point": pa.array([run.name for run in sweep.runs], pa.string()),
                "group": pa.array([None if run.is_probe else index.get(run.axes) for run in sweep.runs], pa.int64()),
                "counts": pa.array([run.counts for run in sweep.runs], pa.bool_()),
                "from_us": pa.array([run.phase_s[0] * 1e6 for run in sweep.runs], pa.float64()),
                "to_us": pa.array(to_us, pa.float64()),
                **{name: pa.array([one[name] for one in reported], pa.float64()) for name in reported[0]},
            }
        )
    )
    facts = frame.drop("from_us", "to_us")
    if any(run.metrics is not None for run in sweep.runs):
        rows = _rows(spark, sweep.runs, frame.select("point", "from_us", "to_us"))
        facts = facts.join(_by_run(_by_slave(rows)), "point", "left")
    missing = {name: f.lit(None).cast("double") for name in COLUMNS if name not in facts.columns}
    return facts.withColumns(missing).select("point", "group", "counts", *COLUMNS)


def _statistics(values: DataFrame) -> DataFrame:
    """(group, column, value) -> over the repeats: how many, mean, standard deviation, 95 % confidence interval, extremes."""
    from pyspark.sql import functions as f

    student = f.array(*(f.lit(t_quantile(freedom)) for freedom in range(1, 31)))
    quantile = f.when(f.col("runs") > 31, f.lit(t_quantile(31))).otherwise(f.get(student, (f.col("runs") - 2).cast("int")))
    half = quantile * f.col("sd") / f.sqrt("runs")
    return (
        values.groupBy("group", "column")
        .agg(
            f.count("value").alias("runs"),
            f.mean("value").alias("mean"),
            f.stddev_samp("value").alias("sd"),
            f.min("value").alias("min"),
            f.max("value").alias("max"),
        )
        .select("*", (f.col("mean") - half).alias("ci_low"), (f.col("mean") + half).alias("ci_high"))
    )


# ---------------------------------------------------------------- writing


def write_sweep(spark: SparkSession, sweep: Sweep) -> list[Path]:
    """Compute and write all tables of a sweep."""
    order = sweep.order()
    numbers = _numbers(spark, sweep, order).cache()
    try:
        by_run = {row["point"]: row for row in numbers.collect()}
        if sweep.searched is None:
            values = numbers.where("counts and group is not null").unpivot("group", list(COLUMNS), "column", "value")
        else:
            name, index = SUSTAINABLE + sweep.searched, {axes: i for i, axes in enumerate(order)}
            data = [(index[one.axes], name, one.value) for one in sweep.found]
            values = spark.createDataFrame(data, "group long, column string, value double")
        statistics = _statistics(values).collect()
    finally:
        numbers.unpersist()
    groups = [_Group() for _ in order]
    for row in statistics:
        groups[row["group"]].statistics[row["column"]] = row
    for axes, group in zip(order, groups, strict=True):
        if sweep.searched is None:
            own = [run for run in sweep.runs if not run.is_probe and run.axes == axes]
            group.failed = sum(not run.ended_well for run in own)
            group.invalid = sum(run.ended_well and not run.counts for run in own)
        else:
            searches = [one for one in sweep.found if one.axes == axes]
            group.invalid = sum(one.invalid for one in searches)
            group.failed = sum(one.value is None and not one.invalid for one in searches)
            marks = {one.censored for one in searches}
            group.censored = next((mark for mark in (BELOW, AT_LEAST) if mark in marks), "")
    return [
        *_write(sweep.directory / "table", _table(sweep, order, groups)),
        *_write(sweep.directory / "runs", _run_table(sweep, by_run)),
    ]


def _kinds(sweep: Sweep, groups: Iterable[_Group]) -> list[tuple[str, str, str, str]]:
    """(column, metric, over, unit) of a point's rows; metrics that no run measured are left out."""
    if sweep.searched is not None:
        unit = "" if sweep.searched == "slaves" else KEYS.get(sweep.searched, "")
        return [(SUSTAINABLE + sweep.searched, SUSTAINABLE + sweep.searched, "run", unit)]
    measured = {column for group in groups for column, row in group.statistics.items() if row["runs"]}
    measured = measured or {column for column in COLUMNS if not column.startswith(_SIMULATED)}
    return [(column, name, over, METRICS[name].unit) for column, (name, over) in COLUMNS.items() if column in measured]


def _table(sweep: Sweep, order: Sequence[Axes], groups: Sequence[_Group]) -> dict[str, list[Any]]:
    out: dict[str, list[Any]] = {
        name: [] for name in (*sweep.axes, "metric", "unit", "over", "runs", *_STATISTICS, "invalid", "failed", "censored")
    }
    kinds = _kinds(sweep, groups)
    for axes, group in zip(order, groups, strict=True):
        for column, metric, over, unit in kinds:
            row = group.statistics.get(column)
            unknown = _UNKNOWN_OF_BOUNDS if group.censored else ()
            statistics = [None if row is None or name in unknown else row[name] for name in _STATISTICS]
            runs, left_out = 0 if row is None else row["runs"], (group.invalid, group.failed)
            line = (*axes, metric, unit, over, runs, *statistics, *left_out, group.censored)
            for values, value in zip(out.values(), line, strict=True):
                values.append(value)
    return out


def _run_table(sweep: Sweep, by_run: Mapping[str, Any]) -> dict[str, list[Any]]:
    """All runs, also failed ones, by axes and repeat."""
    positions = {axes: i for i, axes in enumerate(sweep.order())}
    runs = sorted(
        sweep.runs, key=lambda run: (positions.get(run.axes, -1), run.done["repeat"], run.done.get("searched") or 0.0, run.name)
    )
    out: dict[str, list[Any]] = {"point": [run.name for run in runs]}
    out |= {axis: [run.axes[i] for run in runs] for i, axis in enumerate(sweep.axes)}
    about = {
        "slaves": [run.done["slaves"] for run in runs],
        "repeat": [run.done["repeat"] for run in runs],
        "searched": [run.done.get("searched") for run in runs],
        "status": [run.done["status"] for run in runs],
        "valid": [bool(run.done["valid"]) for run in runs],
        "reasons": ["; ".join(run.done.get("reasons") or []) for run in runs],
        "failure": [run.done.get("failure") for run in runs],
        "wall_s": [run.done.get("wall_s") for run in runs],
        **{column: [by_run[run.name][column] for run in runs] for column in COLUMNS},
    }
    return out | {name: values for name, values in about.items() if name not in out}


def _write(path: Path, table: dict[str, list[Any]]) -> list[Path]:
    """Write PATH.parquet and PATH.csv, each under a temporary name first."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    kinds = {
        **dict.fromkeys(("metric", "unit", "over", "point", "status", "reasons", "failure", "censored"), pa.string()),
        **dict.fromkeys(("runs", "invalid", "failed", "repeat"), pa.int64()),
        **dict.fromkeys((*_STATISTICS, "searched", "wall_s", *COLUMNS), pa.float64()),
    }
    columns = {name: pa.array(values, kinds.get(name)) for name, values in table.items()}

    def write_csv(to: Path) -> None:
        with to.open("w", newline="", encoding="utf-8") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(table)
            writer.writerows(zip(*table.values(), strict=True))

    written = []
    for suffix, write in (("parquet", lambda to: pq.write_table(pa.table(columns), to)), ("csv", write_csv)):
        final = path.with_name(f"{path.name}.{suffix}")
        temporary = final.with_name(f".{final.name}.tmp")
        write(temporary)
        temporary.replace(final)
        written.append(final)
    return written


def aggregate(directories: Sequence[Path], master: str | None) -> list[Path]:
    """Write the tables of all these runs and sweeps as Parquet and CSV; returns their paths.

    UserError, before anything is written, when one of the directories is neither, or has nothing to aggregate.
    """
    directories = list(dict.fromkeys(directories))
    sweeps = {directory: read_sweep(directory) for directory in directories if is_sweep(directory)}
    for directory in directories:
        source = directory / "metrics" / "slaves.parquet"
        if directory not in sweeps and not os.path.isfile(source):
            raise UserError(f"{source}: no such file; is {directory} the directory of a run or of a sweep?")
        if directory not in sweeps:
            check_run(directory)
    written = []
    with open_session(master, "swjoin aggregate") as spark:
        for directory in directories:
            written += write_sweep(spark, sweeps[directory]) if directory in sweeps else write_run(spark, directory)
    return written
